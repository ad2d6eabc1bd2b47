"""One TOML file -> frozen, validated settings; every problem is one line that names file, key and value.

    [source] what to read   [judge] how   [publish] where to   [memory] what was before
    [report] what to show   [spark] with which means

A setting is never ignored: a key or table that is not known is refused, with the nearest known one, and so is a key
that this kind of pipeline does not have. Values are not bent into shape either: the text "5" is no number. The
environment overrides the file: ``ONEFOLD_JUDGE__FLOOR=open`` is ``judge.floor = "open"``, with two underscores between
table and key.

The docstrings below the fields are also the comments of the file that ``onefold init`` writes. Nothing here imports
Spark.
"""

import json
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from onefold.errors import Misuse
from onefold.stores.addresses import is_far

Name: TypeAlias = Annotated[str, Field(min_length=1)]
MaybeName: TypeAlias = Annotated[Name | None, BeforeValidator(lambda value: None if value == "none" else value)]
Names: TypeAlias = Annotated[
    tuple[Name, ...],
    Strict(False),  # TOML has lists only
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
Topics: TypeAlias = Annotated[Names | None, BeforeValidator(lambda value: None if value == "none" else value)]
PREFIX: Final = "ONEFOLD_"
PROBLEMS_MAX: Final = 5
"""How many problems are told at once: more than a person mends before the next try."""
VALUE_CHARS_MAX: Final = 80
"""How much of a wrong value is shown: one that is longer is known by its beginning."""
OUR_WORDS: Final = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "tuple_type": "must be a list",
    "string_pattern_mismatch": 'must be "auto" or a size such as "512m" or "4g"',  # only memory has a pattern
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
"""Where pydantic's own words would not help a writer of TOML."""


class WholeOr:
    """One of the words, or a whole number: one validator, because a union would report one problem per member."""

    def __init__(self, *words: str, least: int) -> None:
        self.words, self.least = words, least

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.words)}, {"type": "integer", "minimum": self.least}]}

    def _checked(self, value: object) -> object:
        if value in self.words or (type(value) is int and value >= self.least):
            return value
        either = ", ".join(json.dumps(word) for word in self.words)
        raise PydanticCustomError("whole_or", f"must be {either} or a whole number of at least {self.least}")


def _flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Values as Spark spells them; dotted keys, which TOML reads as tables in tables, joined again."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value) if isinstance(value, bool | int | float) else value


Texts: TypeAlias = Annotated[
    dict[str, str], BeforeValidator(lambda value: dict(_flat(value)) if isinstance(value, dict) else value)
]


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a key that only some pipelines have; elsewhere a value other than the default is refused, not ignored."""

    mode: str | None = None
    engine: str | tuple[str, ...] | None = None
    """One engine, or any of several."""
    shape: str | None = None
    format: str | None = None
    remembers: str | None = None
    """"yes": a stream, or a run that goes on from a memory."""

    def suits(self, engine: str) -> bool:
        """Whether pipelines of this engine may have the key."""
        return self.engine is None or engine in ((self.engine,) if isinstance(self.engine, str) else self.engine)


MEMORY_NEEDED: Final = 'source.mode = "stream" or memory.path'
STREAM: Final = Only(mode="stream")
BATCH: Final = Only(mode="batch")
KAFKA: Final = Only(format="kafka")
REMEMBERS: Final = Only(remembers="yes")
CHAINS: Final = Only(engine="chains")
PRODUCERS: Final = Only(engine="producers")
NUMBERED: Final = Only(engine=("chains", "producers"))
IDS: Final = Only(engine="ids")
COMPARED: Final = Only(engine=("producers", "ids"))
LORAWAN: Final = Only(engine="lorawan")
FLAT: Final = Only(engine="lorawan", shape="flat")
TIMED: Final = Only(engine=("lorawan", "ids", "producers"), shape="flat")


class Table(BaseModel):
    """A table of the file: strict, frozen, and each key documented."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a method that pydantic no longer wants

    class Value(Table):
        """For topics of Kafka: what the value of a message is. One that does not fit is rejected, with its text."""

        format: Literal["json", "avro", "text", "bytes"] = "json"
        """"json": an object, whose keys are columns. "avro": a record, whose fields are columns. "text", "bytes": one
        column, value."""
        schema: MaybeName = None  # type: ignore[assignment]
        """The columns: of JSON in Spark's DDL, such as "event_id string, at timestamp"; other keys are not read. Of
        Avro its schema. "none": of a batch of JSON, what is there says it."""
        schema_file: MaybeName = None
        """In place of the schema: a file that holds it, such as an .avsc. A relative path starts at the folder of this
        file."""


class Source(Table):
    """Where the messages are."""

    path: Name
    """A file, a folder or a URL. A relative path starts at the folder of this file."""
    table: MaybeName = None
    """In place of the path: a table of Spark's catalogue, such as "db.events" or "catalog.db.events"."""
    format: Name = "parquet"
    """Any format that Spark can read: "parquet", "json", "csv", "orc", ...; "onefold-log" is the log of a topic;
    "kafka" are topics of Kafka."""
    bootstrap_servers: Annotated[MaybeName, KAFKA] = None
    """For Kafka, in place of the path: its brokers, such as "host:9092,host2:9092"."""
    topic: Annotated[Topics, KAFKA] = None
    """For Kafka, in place of the path: the topic, or a list of them."""
    start: Annotated[Name, KAFKA] = "earliest"
    """For Kafka: where reading begins: "earliest", "latest", a time such as "2026-01-31T12:00:00" (UTC), or the offset
    of each partition, as JSON: '{"orders": {"0": 23, "1": -2}}' (-2: earliest, -1: latest). A stream begins there once;
    then its checkpoint says where to go on."""
    end: Annotated[Name, KAFKA, BATCH] = "latest"
    """For a batch of Kafka: where reading ends, in the same words."""
    max_offsets_per_trigger: Annotated[int | Literal["off"], WholeOr("off", least=1), KAFKA, STREAM] = "off"
    """For a stream of Kafka: how many offsets a micro-batch reads at most."""
    options: Texts = {}
    """Options of Spark's reader for that format, such as { header = true } for CSV."""
    bad_files: Literal["stop", "set_aside"] = "stop"
    """What happens to a file that cannot be read: empty, torn, not of its format. "stop": nothing is judged, and the
    error names it. "set_aside": the rest is judged; the file is named in the output and on the page, nobody knows how
    many rows it holds, and the exit code is 1."""
    partition_types: Literal["text", "infer"] = "text"
    """For folders named like device=001: "text": the value is what is written there, so that 001 and 1 are two
    devices. "infer": whatever Spark takes it for, such as a number."""
    mode: Literal["batch", "stream"] = "batch"
    """"batch": what is there, once. "stream": what is there and what comes, in micro-batches, each published exactly
    once; a start goes on where the last one ended."""
    trigger: Annotated[Name, STREAM] = "available"
    """For a stream: "available": all that is there now, then stop. Else how often a batch begins, such as
    "10 seconds"."""
    value: Annotated[Value, KAFKA] = Value()
    """For Kafka: what the value of a message is."""

    @property
    def reader_options(self) -> dict[str, str]:
        """The options of the reader; of Kafka also what the keys of this table say."""
        if self.format != "kafka":
            return self.options
        value = {f"value.{key}": text for key, text in self.value.model_dump().items() if text is not None}
        most = (
            {}
            if self.max_offsets_per_trigger == "off"
            else {"max_offsets_per_trigger": str(self.max_offsets_per_trigger)}
        )
        return {**self.options, "start": self.start, "end": self.end, **most, **value}

    @model_validator(mode="before")
    @classmethod
    def _of_topic(cls, data: object) -> object:
        """Topics are a source whose path is kafka://SERVERS/TOPICS."""
        if not isinstance(data, dict) or not isinstance(data.get("path", ""), str):
            return data
        servers, topics = (None if data.get(key) == "none" else data.get(key) for key in ("bootstrap_servers", "topic"))
        if data.get("path", "").startswith("kafka://"):
            data = {"format": "kafka", **data}
        if servers is None and topics is None:
            if data.get("format") == "kafka" and "path" not in data:
                raise PydanticCustomError("whole", 'format is "kafka", and bootstrap_servers and topic are missing')
            return data
        if servers is None or topics is None:
            raise PydanticCustomError("whole", "bootstrap_servers and topic go together: one is missing")
        names = [topics] if isinstance(topics, str) else topics
        if (
            not isinstance(servers, str)
            or not isinstance(names, list | tuple)
            or not all(isinstance(n, str) for n in names)
        ):
            return data  # which is told key by key
        path = f"kafka://{servers}/{','.join(names)}"
        if data.get("path", path) != path:
            raise PydanticCustomError(
                "topic", "bootstrap_servers and topic are given in place of a path: leave that out"
            )
        return {**data, "path": path}

    @model_validator(mode="before")
    @classmethod
    def _of_table(cls, data: object) -> object:
        """A table is a source of the format "table", whose path is its name."""
        table = data.get("table") if isinstance(data, dict) else None
        if not isinstance(data, dict) or table in (None, "none"):
            return data
        if (data.get("path", table), data.get("format", "table")) != (table, "table"):
            raise PydanticCustomError("whole", "table is given in place of path and format: leave those out")
        return {**data, "path": table, "format": "table"}


class Judge(Table):
    """How a message is recognised, and what is done when that cannot be known."""

    engine: Literal["chains", "producers", "lorawan", "ids"] = "chains"
    """The rules. "ids": each message has an id that its copies share, such as a UUID; ids are remembered, for a window
    of time. "chains": each message has a number and names the one before it; what was seen is remembered as the gaps
    between. "producers": each message has a producer and a sequence; the highest is remembered, or the gaps. "lorawan":
    each row is a radio frame that a station heard; of all that heard it within the expiry, one counts."""
    id: Annotated[Names, IDS] = ("id",)
    """For ids: the columns that together name a message, the same in all of its copies; "header.id" is a field of a
    struct."""
    window: Annotated[Name, REMEMBERS, IDS] = "off"
    """For a stream or a memory of ids: for how long ids are remembered, such as "7 days" or "12 hours"; a message that
    is older is UNSURE. `onefold window` says which window the data needs. "off": for ever, at 16 bytes an id."""
    keep: Annotated[Literal["first", "last"], BATCH, IDS] = "first"
    """For a batch of ids: which of the messages of an id counts, by the order. "last": for tables of changes."""
    on_conflict: Annotated[Literal["reject", "repeat"], IDS] = "reject"
    """For ids with a payload: what a copy with other content is. "reject": a conflict, which is rejected. "repeat": a
    copy all the same."""
    key: Annotated[Names, CHAINS] = ("stream", "partition", "publisher", "chain")
    """For chains: the columns that together name the chain of a message."""
    timestamp: Annotated[Name, CHAINS] = "timestamp"
    """For chains: the column with the first half of a message's number: whole milliseconds, or a time (a
    timestamp, a date, or ISO 8601 text)."""
    sequence: Annotated[MaybeName, NUMBERED] = "sequence"
    """For chains and producers: the column with the sequence of a message. For chains it is the second half of the
    number, which counts messages of the same millisecond; "none": there is no such column, every sequence is 0,
    or what the time has below its millisecond."""
    previous_timestamp: Annotated[MaybeName, CHAINS] = "previous_timestamp"
    """For chains: the column with the timestamp of the message before. "none": no message names one; then each is only
    compared with the newest of its chain, and no gap can be found."""
    previous_sequence: Annotated[MaybeName, CHAINS] = "previous_sequence"
    """For chains: the column with the sequence of the message before. "none": it is always 0."""
    arrival: Annotated[MaybeName, CHAINS] = "arrival"
    """For chains: the column that says when a row came in, in milliseconds or as a time: the order of judgement. Null
    comes before all times. "none": rows are judged in the order of their numbers."""
    floor: Annotated[Literal["first", "open"], CHAINS] = "first"
    """For chains: what a number below the first one that arrived in its chain is. "first", the default: a repeat, right
    where an earlier run counted what lies below. "open": new, while unseen, right for stored data: nothing says that it
    was counted before, and to call it a repeat could lose it."""
    gap_count_max: Annotated[int, Field(ge=1), NUMBERED] = 10_000
    """For chains and producers: how many gaps of a chain, or of a producer whose gaps are remembered, are kept. Above
    it the oldest is forgotten, and a message from there is UNSURE."""
    jump_max_ms: Annotated[int | Literal["auto", "off"], WholeOr("auto", "off", least=0), CHAINS] = "auto"
    """For chains: how far ahead of its arrival a timestamp may be, in milliseconds; what is further is rejected, so
    that one poisoned number cannot mute a chain. "auto": 900000 (a quarter of an hour) if there is an arrival column.
    "off": no limit."""
    jump_max: Annotated[int | Literal["off"], WholeOr("off", least=1), PRODUCERS] = "off"
    """For producers: how far above the highest sequence of its producer a sequence may lie; what is further is
    rejected, so that one wrong number cannot make all that follow repeats. The first one of a producer may be any.
    "off": no limit."""
    idle_ms: Annotated[int | Literal["off"], WholeOr("off", least=1), REMEMBERS, NUMBERED] = "off"
    """For a stream or a memory: a chain or producer not heard from for so long gives up its gaps; what lies there is
    UNSURE from then on."""
    state_rows_max: Annotated[int | Literal["off"], WholeOr("off", least=1), REMEMBERS] = "off"
    """For a stream or a memory: how many chains, producers, frames or ids a bucket of it remembers; beyond, those of
    new ones are UNSURE."""
    order_wait_ms: Annotated[int | Literal["off"], WholeOr("off", least=0), STREAM, CHAINS] = "off"
    """For a stream of chains: hold messages back until what is missing before them arrives, at most so long; then what
    is missing is given up, and told in the gaps. "off": messages come out as they come."""
    order_end: Annotated[Literal["give_up", "hold"], STREAM, CHAINS] = "give_up"
    """For a stream of chains with order_wait_ms and trigger "available": what becomes of messages that are still held
    back when all that is there is read. "give_up": what is missing before them is given up at once, told in the gaps,
    and they come out. "hold": they stay in the checkpoint, in no book, and wait on at the next start: right where the
    next run, an hour later, brings what is missing."""
    producer: Annotated[Names, PRODUCERS] = ("producer",)
    """For producers: the columns that together name the producer of a message."""
    order: Annotated[MaybeName, COMPARED] = None
    """For producers and ids: the column that says in which order rows are judged, such as the offset in a log, or a
    time. Null comes before all others. "none": in the order of their sequences, or of their times."""
    epoch: Annotated[MaybeName, PRODUCERS] = None
    """For producers: the column with the epoch; a row whose epoch is below that of an earlier one is rejected, and the
    sequence goes on from epoch to epoch. (Where it begins anew with each, the epoch is part of the producer's name.)
    "none": there is no such column."""
    payload: Annotated[tuple[Name, ...], Strict(False), COMPARED] = ()
    """For producers and ids: the columns that hold the content; two rows of one sequence or id that differ in it are a
    conflict."""
    memory: Annotated[Literal["auto", "highest", "gaps"], PRODUCERS] = "auto"
    """For producers: "highest": what is not above the highest sequence is a repeat. "gaps": a lower one that was never
    seen is new. "auto": "gaps" with a time, else "highest"."""
    shape: Annotated[Literal["auto", "flat", "onefold", "bridge", "lns", "chirpstack", "table"], LORAWAN] = "auto"
    """For lorawan: how receptions are stored. "auto": each row says it itself; our own log, events of a gateway bridge,
    of a Basics Station or of ChirpStack, one JSON object a row, or a table of receptions. "flat": a table with the
    columns that are named below."""
    frame: Annotated[Names, FLAT] = ("frame",)
    """For lorawan, flat: the columns that together name a frame: equal for all who heard one transmission."""
    station: Annotated[Name, FLAT] = "station"
    """For lorawan, flat: the column with the station that heard it."""
    time: Annotated[MaybeName, TIMED] = None
    """For ids: the column that says when the event happened, the same for all of its copies: by it ids are forgotten.
    "none": the clock of the runs or batches stands in. For producers: the column that says when a message was made, the
    same for all of its copies: where the sequence falls and the time rises, the counter restarted, and its epochs are
    told apart. "none": it never does. For lorawan, flat: the column that says when a frame was heard:
    the order of judgement; "none": time_ms. In milliseconds, or as a time."""
    kind: Annotated[MaybeName, FLAT] = "kind"
    """For lorawan, flat: the column that says "data" or "join". "none": all are data."""
    device: Annotated[tuple[Name, ...], Strict(False), FLAT] = ("device",)
    """For lorawan, flat: the columns that together name the device, the same one for all receptions of a frame; none:
    no counters are looked through, and each frame is known for ever."""
    fcnt: Annotated[MaybeName, FLAT] = "fcnt"
    """For lorawan, flat: the column with the device's counter, which tells what was lost. "none": there is none."""
    expiry: Annotated[Literal["sliding", "fixed"], LORAWAN] = "sliding"
    """For lorawan: whether each reception of a frame begins its expiry anew, or only the first."""
    expiry_ms: Annotated[int, Field(ge=1, le=366 * 86_400_000), LORAWAN] = 60_000
    """For lorawan: for how long a frame is known; after it, the same frame is a new one, unless it is the one that its
    device had counted last."""
    echo_ms: Annotated[int, Field(ge=0, le=366 * 86_400_000), LORAWAN] = 0
    """For lorawan: a station that has a frame again sooner than this heard one transmission twice, such as with two
    antennas; else the device sent it again. 0: it always did."""
    strict_adr: Annotated[bool, LORAWAN] = False
    """For lorawan: forget as ADR 007 does: after the expiry the last frame of a device counts again, and so does a join
    request. Else they are repeats for ever."""
    late_ms: Annotated[int, Field(ge=0, le=366 * 86_400_000), STREAM, LORAWAN] = 3_600_000
    """For a stream of lorawan: how far behind the newest reception one may be and still be compared with all before it.
    What is later may be UNSURE. The memory grows with it."""


class Publish(Table):
    """Where the outcome goes."""

    path: Name
    """A folder or a URL; it gets firsts, repeats, unsure, rejects, gaps and the books; of a batch of lorawan also
    uplinks, each with all of its receptions. A relative path starts at the folder of this file."""
    strategy: Literal["drop", "mark", "none"] = "drop"
    """What happens to a message that is not a FIRST. "drop": it is kept apart. "mark": it stays, with its verdict.
    "none": it stays, unmarked."""
    format: Annotated[Literal["parquet", "delta", "iceberg", "postgres"], REMEMBERS] = "parquet"
    """For a stream or a memory: "parquet" is folders of files, "delta" a Delta table at the path, "iceberg" a table of
    a catalogue: "lake/catalog.db#db.events", where the catalogue is a file, or "prod.db.events" of a catalogue that
    pyiceberg's own settings name, "postgres" a table at a URL like postgresql://user@host/database#schema.table. A run
    without a memory writes parquet."""
    options: Annotated[Texts, REMEMBERS] = {}
    """For delta and iceberg: options of the store, or of the catalogue, in the words of deltalake or pyiceberg, such as
    { "s3.endpoint" = "https://..." }."""
    checkpoint: Annotated[Name, STREAM] = "auto"
    """For a stream: where Spark keeps how far it has come. It belongs to the output: keep or remove both. "auto": the
    path with ".checkpoint" after it."""

    @property
    def is_folder(self) -> bool:
        """Whether the path is one, and not the address of a table."""
        return self.format in ("parquet", "delta")

    @model_validator(mode="after")
    def _has_store(self) -> "Publish":
        if self.options and self.format not in ("delta", "iceberg"):
            raise PydanticCustomError("options", 'has options, which need format "delta" or "iceberg"')
        return self


class Memory(Table):
    """What runs remember of those before them."""

    path: Annotated[MaybeName, BATCH] = None
    """For a batch run: a folder or a URL that all executors see. Each run then goes on from the last one: it reads the
    files that came since, and publishes them as the next version, in batches/ below publish.path. It belongs to that
    output: keep or remove both. "none": a run begins with nothing seen. A stream remembers in its checkpoint."""


class Report(Table):
    """What is shown at the end."""

    ranges_max: Annotated[int, Field(ge=0)] = 20
    """How many of the missing ranges are shown; the output of a batch run has all of them."""
    page: Literal["samples", "figures", "off"] = "samples"
    """"samples": report.html is left, a page with all figures and some of the rejected rows. "figures": without those
    rows. "off": no page, and no figures for one, which saves a few seconds (a stream leaves one with its books)."""


class Spark(Table):
    """The means. Only for a session that onefold starts; one that is running is used as it is."""

    master: Name = "local[*]"
    """Where Spark runs: "local[*]" is this machine with all its cores."""
    partitions: Annotated[int | Literal["auto"], WholeOr("auto", least=1)] = "auto"
    """How many tasks judge. "auto": by the size of the input."""
    buckets: Annotated[int, Field(ge=1, le=4096), REMEMBERS] = 32
    """For a stream or a memory: into how many parts what is remembered is split; more than its tasks. A memory keeps
    its number."""
    memory: Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]*[kmgtKMGT])$")] = "auto"
    """Memory of the Java side, such as "4g". "auto": by the memory of the machine."""
    config: Texts = {}
    """Any other Spark setting, such as { "spark.sql.session.timeZone" = "UTC" }."""


class Settings(Table):
    """A pipeline, as its TOML file says it.

    >>> settings = Settings.model_validate({"source": {"path": "in"}, "publish": {"path": "out"}})
    >>> settings.judge.floor, settings.spark.partitions
    ('first', 'auto')
    """

    source: Source
    judge: Judge = Judge()
    publish: Publish
    memory: Memory = Memory()
    report: Report = Report()
    spark: Spark = Spark()

    @model_validator(mode="after")
    def _in_order_of_offsets(self) -> "Settings":
        """Messages of Kafka are judged as they stand in their partition, unless another order is named."""
        order = {"chains": ("arrival", "kafka_timestamp")}.get(self.judge.engine, ("order", "kafka_offset"))
        if self.source.format != "kafka" or self.judge.engine == "lorawan" or order[0] in self.judge.model_fields_set:
            return self
        judge = self.judge.model_copy(update={order[0]: order[1]})
        return self.model_copy(update={"judge": judge})


TABLES: Final[Mapping[str, type[Table]]] = {
    name: field.annotation for name, field in Settings.model_fields.items() if isinstance(field.annotation, type)
}


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read the file, let the environment override it, and check all; raises `Misuse` with one line per problem."""
    data: dict[str, Any] = {"source": {}, "publish": {}} | _read(path)  # so that what is missing is their path
    origins, problems = _override(data, environ)
    try:
        settings = Settings.model_validate(data)
        problems += [
            f"{origins.get(where) or f'{path}: ' + '.'.join(where)}: {text}" for where, text in misplaced(settings)
        ]
    except ValidationError as error:
        problems += [_problem(detail, path, origins) for detail in error.errors(include_url=False)]
    if problems:
        rest = len(problems) - PROBLEMS_MAX
        lines = problems[:PROBLEMS_MAX] + ([f"{path}: and {rest} more"] if rest > 0 else [])
        raise Misuse("\n".join(lines), path=str(path), problems=tuple(problems))
    tables = {}
    for name in ("source", "publish", "memory"):
        table = getattr(settings, name)
        named = {key: getattr(table, key, None) for key in ("path", "checkpoint")}
        if _is_name(table):
            named.pop("path")
        paths = {key: value for key, value in named.items() if value not in (None, "auto")}
        local = {key: value for key, value in paths.items() if not is_far(value) and not value.startswith("file:")}
        tables[name] = table.model_copy(update={key: str(path.parent.absolute() / local[key]) for key in local})
    if (file := settings.source.value.schema_file) is not None:
        value = settings.source.value.model_copy(update={"schema_file": str(path.parent.absolute() / file)})
        tables["source"] = tables["source"].model_copy(update={"value": value})
    return settings.model_copy(update=tables)


def _is_name(table: Table) -> bool:
    """Whether the path is the name of a table in a catalogue."""
    kind = getattr(table, "format", None)
    return kind == "table" or (kind == "iceberg" and "#" not in table.path and "/" not in table.path)  # type: ignore[attr-defined]


def misplaced(settings: Settings) -> Iterator[tuple[tuple[str, str], str]]:
    """The keys that say something and belong to another kind of pipeline, each with what it would need."""
    remembers = settings.source.mode == "stream" or settings.memory.path is not None
    kind = {
        "mode": settings.source.mode,
        "format": settings.source.format,
        "engine": settings.judge.engine,
        "shape": settings.judge.shape if settings.judge.engine == "lorawan" else "flat",  # of others, all are tables
        "remembers": "yes" if remembers else "no",
    }
    names = {"mode": "source.mode", "format": "source.format", "engine": "judge.engine", "shape": "judge.shape"}
    for table, model in TABLES.items():
        for key, field in model.model_fields.items():
            value = getattr(getattr(settings, table), key)
            for only in (mark for mark in field.metadata if isinstance(mark, Only) and value != field.default):
                for part, wanted in asdict(only).items():
                    some = (wanted,) if isinstance(wanted, str) else wanted or (kind[part],)
                    if kind[part] not in some:
                        either = " or ".join(f'"{word}"' for word in some)
                        needed = f"{names[part]} = {either}" if part in names else MEMORY_NEEDED
                        yield (table, key), f"is {_shown(value)}, which needs {needed}"
                        break


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Misuse(f"{path}: no such file; `onefold init` writes one to start from", path=str(path)) from error
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror or error}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise Misuse(f"{path}: not TOML: not UTF-8 at byte {error.start}", path=str(path)) from error
    except ValueError as error:  # its text ends in line and column, unless it is about a number of 5,000 digits
        raise Misuse(f"{path}: not TOML: {error}", path=str(path)) from error
    except RecursionError as error:
        raise Misuse(f"{path}: not TOML: it is nested too deep", path=str(path)) from error


def _override(data: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Put what the environment says into the data; returns which variable said what, and what made no sense."""
    origins: dict[tuple[str, ...], str] = {}
    problems = []
    for variable in sorted(environ):
        table, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        # ONEFOLD_DEBUG and its like are not ours; ONEFOLD_JUDGE_FLOOR is, with a slip.
        if not variable.startswith(PREFIX) or not (key or table.split("_")[0] in TABLES):
            continue
        if table not in TABLES or key not in TABLES[table].model_fields:
            names = [f"{t}__{k}".upper() for t, model in TABLES.items() for k in model.model_fields]
            near = get_close_matches(variable.removeprefix(PREFIX), names, n=1)
            problems.append(f"{variable}: unknown setting" + (f", did you mean {PREFIX}{near[0]}?" if near else ""))
        elif isinstance(data.setdefault(table, {}), dict):
            data[table] = data[table] | {key: _literal(environ[variable], TABLES[table].model_fields[key].annotation)}
            origins[table, key] = variable
    return origins, problems


def _literal(text: str, annotation: Any) -> Any:
    """The text as a TOML value where the key takes numbers, booleans, lists or tables; else as it stands."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    is_typed = any(each in (int, bool, tuple, dict, Value) for each in _types(annotation))
    return table["value"] if len(table) == 1 and (is_typed or isinstance(table["value"], str)) else text


def _types(annotation: Any) -> Iterator[Any]:
    """The annotation, and all types in it."""
    yield from (annotation, get_origin(annotation))
    for inner in get_args(annotation):
        yield from _types(inner)


def _problem(detail: ErrorDetails, path: Path, origins: Mapping[tuple[str, ...], str]) -> str:
    *table, key = where = tuple(str(part) for part in detail["loc"])
    name = origins.get(where[:2]) or f"{path}: {'.'.join(where)}"
    if detail["type"] == "missing":
        return f"{name}: is missing"
    if detail["type"] != "extra_forbidden":
        if detail["type"] == "whole":  # of a table, which may hold a password
            return f"{name}: {detail['msg']}"
        theirs = detail["msg"].replace("Input should be ", "must be ").replace("'", '"')
        return f"{name}: is {_shown(detail['input'])}, {OUR_WORDS.get(detail['type'], theirs)}"
    # Of an unknown key or table: the nearest one, the same key elsewhere, or all there are.
    kind = "key" if table else "table"
    model = Value if table == ["source", "value"] else TABLES[table[0]] if table else None
    names = list(TABLES if model is None else model.model_fields)
    near = get_close_matches(key, names, n=1) or [f"{t}.{key}" for t, m in TABLES.items() if key in m.model_fields]
    hint = f'did you mean "{near[0]}"?' if near else f"the {kind}s are {', '.join(names)}"
    return f"{name}: unknown {kind}, {hint}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."
