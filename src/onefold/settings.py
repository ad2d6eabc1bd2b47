"""The TOML file of a pipeline as frozen, validated settings; each problem is one line with file, key and value.

    [source] what to read   [judge] by which rules   [publish] where to   [memory] of the runs before
    [report] what to show   [spark] the session

No setting is ignored: unknown tables and keys are refused with the nearest known one, and so are keys that this kind of
pipeline does not have. Values are not converted: the text "5" is not a number. The environment overrides the file:
``ONEFOLD_JUDGE__FLOOR=open`` is ``judge.floor = "open"``, with two underscores between table and key.

The docstrings below the fields are also the comments in the file of ``onefold init``. Nothing here imports Spark.
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
"""How many problems are shown at once: more than a person fixes before the next try."""
VALUE_CHARS_MAX: Final = 80
"""How much of a wrong value is shown."""
HIDDEN: Final = ("options", "config")
"""Keys whose values may hold passwords: errors do not show them."""
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
"""Messages in terms of TOML instead of pydantic's own."""


class WholeOr:
    """One of the words, or a whole number. One validator, because a union reports a problem per member."""

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
    """Values as Spark spells them; dotted keys, which TOML reads as nested tables, are joined again."""
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
    """Marks a key that only some pipelines have; in others, values but the default are refused."""

    mode: str | None = None
    engine: str | tuple[str, ...] | None = None
    """One engine or several."""
    shape: str | None = None
    format: str | None = None
    remembers: str | None = None
    """"yes": a stream, or a run with [memory]."""

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
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


with warnings.catch_warnings(action="ignore", category=UserWarning):  # "schema" shadows a deprecated method of pydantic

    class Value(Table):
        """For Kafka: the format of a message's value. A value that does not fit is rejected, with its text."""

        format: Literal["json", "avro", "text", "bytes"] = "json"
        """"json": an object, whose keys are columns. "avro": a record, whose fields are columns. "text", "bytes": one
        column, value."""
        schema: MaybeName = None  # type: ignore[assignment]
        """The columns. For JSON in Spark's DDL, such as "event_id string, at timestamp"; other keys are not read. For
        Avro its schema. "none": inferred, for a batch of JSON."""
        schema_file: MaybeName = None
        """Instead of the schema: a file with it, such as an .avsc. A relative path starts at the folder of this
        file."""


class Source(Table):
    """Where the messages are."""

    path: Name
    """A file, a folder or a URL. A relative path starts at the folder of this file."""
    table: MaybeName = None
    """Instead of the path: a table of Spark's catalogue, such as "db.events" or "catalog.db.events"."""
    format: Name = "parquet"
    """Any format that Spark can read: "parquet", "json", "csv", "orc", ...; "onefold-log": the log of a topic; "kafka":
    topics of Kafka."""
    bootstrap_servers: Annotated[MaybeName, KAFKA] = None
    """For Kafka, instead of the path: its brokers, such as "host:9092,host2:9092"."""
    topic: Annotated[Topics, KAFKA] = None
    """For Kafka, instead of the path: the topic, or a list of topics."""
    start: Annotated[Name, KAFKA] = "earliest"
    """For Kafka: where reading begins: "earliest", "latest", a time such as "2026-01-31T12:00:00" (UTC), or the offset
    of each partition, as JSON: '{"orders": {"0": 23, "1": -2}}' (-2: earliest, -1: latest). A stream uses it only at
    its first start, then its checkpoint."""
    end: Annotated[Name, KAFKA, BATCH] = "latest"
    """For a batch of Kafka: where reading ends, in the same forms."""
    max_offsets_per_trigger: Annotated[int | Literal["off"], WholeOr("off", least=1), KAFKA, STREAM] = "off"
    """For a stream of Kafka: the largest number of offsets per micro-batch. "off": no limit."""
    options: Texts = {}
    """Options of Spark's reader for that format, such as { header = true } for CSV."""
    bad_files: Literal["stop", "set_aside"] = "stop"
    """What happens if a file cannot be read: it is empty, torn, or not of its format. "stop": nothing is judged, and
    the error names the file. "set_aside": the other files are judged; the file is named in the output and on the page,
    its rows are unknown, and the exit code is 1."""
    partition_types: Literal["text", "infer"] = "text"
    """For partition folders such as device=001. "text": the value is as written, so 001 and 1 are two devices.
    "infer": Spark infers the type, such as a number."""
    mode: Literal["batch", "stream"] = "batch"
    """"batch": read what is there, once. "stream": read what is there and what comes, in micro-batches, each published
    exactly once; a restart continues where the last start ended."""
    trigger: Annotated[Name, STREAM] = "available"
    """For a stream. "available": read all that is there now, then stop. Else how often a batch begins, such as
    "10 seconds"."""
    value: Annotated[Value, KAFKA] = Value()
    """For Kafka: the format of a message's value."""

    @property
    def reader_options(self) -> dict[str, str]:
        """The options of the reader; for Kafka also the keys of this table."""
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
            return data  # validation reports it key by key
        path = f"kafka://{servers}/{','.join(names)}"
        if data.get("path", path) != path:
            raise PydanticCustomError(
                "whole", "bootstrap_servers and topic are given instead of a path: leave the path out"
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
            raise PydanticCustomError("whole", "table is given instead of path and format: leave those out")
        return {**data, "path": table, "format": "table"}


class Judge(Table):
    """The rules by which messages are recognised."""

    engine: Literal["chains", "producers", "lorawan", "ids"] = "chains"
    """The engine. "ids": each message has an id that its copies share, such as a UUID; ids are remembered for a window
    of time. "chains": each message has a number and names the previous one; the gaps are remembered. "producers": each
    message has a producer and a sequence; the highest is remembered, or the gaps. "lorawan": each row is a radio frame
    that a station heard; of all stations that heard it within the expiry, one counts."""
    id: Annotated[Names, IDS] = ("id",)
    """For ids: the columns that together name a message, the same in all of its copies; "header.id" is a field of a
    struct."""
    window: Annotated[Name, REMEMBERS, IDS] = "off"
    """For ids in a stream or with [memory]: how long ids are remembered, such as "7 days" or "12 hours"; older messages
    are UNSURE. `onefold window` measures which window the data needs. "off": for ever, at 16 bytes an id."""
    keep: Annotated[Literal["first", "last"], BATCH, IDS] = "first"
    """For a batch of ids: which message of an id counts, by the order. "last": for tables of changes."""
    on_conflict: Annotated[Literal["reject", "repeat"], IDS] = "reject"
    """For ids with a payload: a copy with other content is rejected as a conflict ("reject"), or is a copy like any
    other ("repeat")."""
    key: Annotated[Names, CHAINS] = ("stream", "partition", "publisher", "chain")
    """For chains: the columns that together name the chain of a message."""
    timestamp: Annotated[Name, CHAINS] = "timestamp"
    """For chains: the column with the first half of a message's number: whole milliseconds, or a time (a
    timestamp, a date, or ISO 8601 text)."""
    sequence: Annotated[MaybeName, NUMBERED] = "sequence"
    """For chains and producers: the column with the sequence of a message. For chains it is the second half of the
    number, which counts messages of the same millisecond; "none": no such column: the sequence is 0, or the part of
    the time below the millisecond."""
    previous_timestamp: Annotated[MaybeName, CHAINS] = "previous_timestamp"
    """For chains: the column with the timestamp of the previous message. "none": no message names one; then each is
    only compared with the newest of its chain, and no gap can be found."""
    previous_sequence: Annotated[MaybeName, CHAINS] = "previous_sequence"
    """For chains: the column with the sequence of the previous message. "none": it is always 0."""
    arrival: Annotated[MaybeName, CHAINS] = "arrival"
    """For chains: the column with when a row came in, in milliseconds or as a time: the order of judgement. Null comes
    before all times. "none": rows are judged in the order of their numbers."""
    floor: Annotated[Literal["first", "open"], CHAINS] = "first"
    """For chains: what a number below the first that arrived in its chain is. "first", the default: a repeat; right if
    an earlier run counted the numbers below. "open": new if not seen yet; right for stored data, where calling it a
    repeat could lose it."""
    gap_count_max: Annotated[int, Field(ge=1), NUMBERED] = 10_000
    """For chains and producers: how many gaps are remembered per chain, or per producer. Above this the oldest is
    forgotten, and messages from it are UNSURE."""
    jump_max_ms: Annotated[int | Literal["auto", "off"], WholeOr("auto", "off", least=0), CHAINS] = "auto"
    """For chains: how far ahead of its arrival a timestamp may be, in milliseconds; above this it is rejected, so that
    one wrong number cannot turn all later ones into repeats. "auto": 900000 (15 minutes) if there is an arrival column.
    "off": no limit."""
    jump_max: Annotated[int | Literal["off"], WholeOr("off", least=1), PRODUCERS] = "off"
    """For producers: how far above the highest sequence of its producer a sequence may be; above this it is rejected,
    so that one wrong number cannot turn all later ones into repeats. The first of a producer may be any. "off": no
    limit."""
    idle_ms: Annotated[int | Literal["off"], WholeOr("off", least=1), REMEMBERS, NUMBERED] = "off"
    """For a stream, or with [memory]: after this many milliseconds of silence the gaps of a chain or producer are
    forgotten; messages from them are then UNSURE. "off": never."""
    state_rows_max: Annotated[int | Literal["off"], WholeOr("off", least=1), REMEMBERS] = "off"
    """For a stream, or with [memory]: how many chains, producers, frames or ids each bucket remembers; above this,
    messages of new ones are UNSURE. "off": no limit."""
    order_wait_ms: Annotated[int | Literal["off"], WholeOr("off", least=0), STREAM, CHAINS] = "off"
    """For a stream of chains: release messages in order: hold them back until the ones missing before them arrive, at
    most this many milliseconds; then the missing ones are given up and listed in the gaps. "off": no holding back."""
    order_end: Annotated[Literal["give_up", "hold"], STREAM, CHAINS] = "give_up"
    """For a stream of chains with order_wait_ms and trigger "available": what happens to messages that are still held
    back when everything is read. "give_up": the missing ones are given up and listed in the gaps, and the held messages
    are released. "hold": they stay in the checkpoint, not in the books, until the next start; right if the next run
    brings what is missing."""
    producer: Annotated[Names, PRODUCERS] = ("producer",)
    """For producers: the columns that together name the producer of a message."""
    order: Annotated[MaybeName, COMPARED] = None
    """For producers and ids: the column by which rows are ordered for judgement, such as the offset in a log, or a
    time. Null comes first. "none": the order of the sequences, or of the times."""
    epoch: Annotated[MaybeName, PRODUCERS] = None
    """For producers: the column with the epoch; a row with a lower epoch than an earlier row is rejected, and sequences
    continue across epochs. (If they restart with each epoch, add the column to producer instead.) "none": no such
    column."""
    payload: Annotated[tuple[Name, ...], Strict(False), COMPARED] = ()
    """For producers and ids: the columns with the content; rows of one sequence or id that differ in them are a
    conflict."""
    memory: Annotated[Literal["auto", "highest", "gaps"], PRODUCERS] = "auto"
    """For producers. "highest": a sequence that is not above the highest is a repeat. "gaps": a lower one that was
    never seen is new. "auto": "gaps" with a time, else "highest"."""
    shape: Annotated[Literal["auto", "flat", "onefold", "bridge", "lns", "chirpstack", "table"], LORAWAN] = "auto"
    """For lorawan: how receptions are stored. "auto": detected row by row: our own log; events of a gateway bridge, a
    Basics Station or ChirpStack, one JSON object per row; or a table of receptions. "flat": a table with the columns
    named below."""
    frame: Annotated[Names, FLAT] = ("frame",)
    """For lorawan, flat: the columns that together name a frame: equal in all receptions of one transmission."""
    station: Annotated[Name, FLAT] = "station"
    """For lorawan, flat: the column with the station that heard it."""
    time: Annotated[MaybeName, TIMED] = None
    """A column in milliseconds, or a time. For ids: when the event happened, the same in all copies: the window goes by
    it. "none": by the clock of the runs or batches. For producers: when the message was made, the same in all copies:
    if the sequence falls while the time rises, the counter restarted. "none": counters never restart. For lorawan,
    flat: when a frame was heard: the order of judgement; "none": time_ms."""
    kind: Annotated[MaybeName, FLAT] = "kind"
    """For lorawan, flat: the column with "data" or "join". "none": all rows are data."""
    device: Annotated[tuple[Name, ...], Strict(False), FLAT] = ("device",)
    """For lorawan, flat: the columns that together name the device, the same in all receptions of a frame. An empty
    list: counters are not checked, and each frame is remembered for ever."""
    fcnt: Annotated[MaybeName, FLAT] = "fcnt"
    """For lorawan, flat: the column with the device's frame counter, which shows losses. "none": no such column."""
    expiry: Annotated[Literal["sliding", "fixed"], LORAWAN] = "sliding"
    """For lorawan: whether each reception of a frame restarts its expiry ("sliding"), or not ("fixed")."""
    expiry_ms: Annotated[int, Field(ge=1, le=366 * 86_400_000), LORAWAN] = 60_000
    """For lorawan: how long a frame is remembered, in milliseconds; after that, the same frame is new, unless it was
    the last one counted of its device."""
    echo_ms: Annotated[int, Field(ge=0, le=366 * 86_400_000), LORAWAN] = 0
    """For lorawan: a station that reports a frame again within this many milliseconds heard one transmission twice,
    such as with two antennas; later, the device sent it again. 0: the device always sent it again."""
    strict_adr: Annotated[bool, LORAWAN] = False
    """For lorawan: forget as ADR 007 does: after the expiry the last frame of a device counts again, and so does a join
    request. Default: they are repeats for ever."""
    late_ms: Annotated[int, Field(ge=0, le=366 * 86_400_000), STREAM, LORAWAN] = 3_600_000
    """For a stream of lorawan: how far a reception may be behind the newest one and still be judged exactly, in
    milliseconds. Later ones may be UNSURE. The memory grows with this."""


class Publish(Table):
    """Where the outcome goes."""

    path: Name
    """A folder or a URL for firsts, repeats, unsure, rejects, gaps and the books; for a batch of lorawan also uplinks,
    each with all of its receptions. A relative path starts at the folder of this file."""
    strategy: Literal["drop", "mark", "none"] = "drop"
    """What happens to messages that are not FIRST. "drop": they are published in folders of their own. "mark": all
    messages stay together, with their verdicts. "none": all stay together, without verdicts."""
    format: Annotated[Literal["parquet", "delta", "iceberg", "postgres"], REMEMBERS] = "parquet"
    """For a stream, or with [memory]. "parquet": folders of files. "delta": a Delta table at the path. "iceberg": a
    table of a catalogue: "lake/catalog.db#db.events" if the catalogue is a file, or "prod.db.events" of a catalogue in
    pyiceberg's own settings. "postgres": a table at a URL like postgresql://user@host/database#schema.table. Other runs
    write parquet."""
    options: Annotated[Texts, REMEMBERS] = {}
    """For delta and iceberg: options of the store or the catalogue, as deltalake or pyiceberg name them, such as
    { "s3.endpoint" = "https://..." }."""
    checkpoint: Annotated[Name, STREAM] = "auto"
    """For a stream: the folder of its checkpoint. It belongs to the output: keep or remove both. "auto": the path with
    ".checkpoint" appended."""

    @property
    def is_folder(self) -> bool:
        """Whether the path is a folder, and not the address of a table."""
        return self.format in ("parquet", "delta")

    @model_validator(mode="after")
    def _has_store(self) -> "Publish":
        if self.options and self.format not in ("delta", "iceberg"):
            raise PydanticCustomError("whole", 'has options, which need format "delta" or "iceberg"')
        return self


class Memory(Table):
    """The memory that runs continue from."""

    path: Annotated[MaybeName, BATCH] = None
    """For a batch run: a folder or a URL that all executors see. Each run then continues from the last one: it reads
    the files that are new, and publishes them as the next version, in batches/ below publish.path. It belongs to that
    output: keep or remove both. "none": each run starts from nothing. The memory of a stream is in its checkpoint."""


class Report(Table):
    """What is shown at the end."""

    ranges_max: Annotated[int, Field(ge=0)] = 20
    """How many missing ranges are shown; the output of a batch run has all of them."""
    page: Literal["samples", "figures", "off"] = "samples"
    """"samples": write report.html, a page with all figures and some of the rejected rows. "figures": without these
    rows. "off": no page and no figures for one, which saves a few seconds (a stream's page then has only the books)."""


class Spark(Table):
    """The Spark session. Only for a session that onefold starts; a running one is used as it is."""

    master: Name = "local[*]"
    """The Spark master; "local[*]": this machine with all its cores."""
    partitions: Annotated[int | Literal["auto"], WholeOr("auto", least=1)] = "auto"
    """How many tasks judge messages. "auto": by the size of the input."""
    buckets: Annotated[int, Field(ge=1, le=4096), REMEMBERS] = 32
    """For a stream, or with [memory]: into how many parts the memory is split; more than there are tasks. Fixed when a
    memory is created."""
    memory: Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]*[kmgtKMGT])$")] = "auto"
    """Memory of the JVM, such as "4g". "auto": by the memory of the machine."""
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
        """Messages of Kafka are judged in the order of their partition unless another order is named."""
        order = {"chains": ("arrival", "kafka_timestamp")}.get(self.judge.engine, ("order", "kafka_offset"))
        if self.source.format != "kafka" or self.judge.engine == "lorawan" or order[0] in self.judge.model_fields_set:
            return self
        judge = self.judge.model_copy(update={order[0]: order[1]})
        return self.model_copy(update={"judge": judge})


TABLES: Final[Mapping[str, type[Table]]] = {
    name: field.annotation for name, field in Settings.model_fields.items() if isinstance(field.annotation, type)
}


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read the file, apply the environment, and validate; `Misuse` has one line per problem."""
    data: dict[str, Any] = {"source": {}, "publish": {}} | _read(
        path
    )  # so that the error for an empty file is about their paths
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
    """The keys that are set and belong to another kind of pipeline, each with what it needs."""
    remembers = settings.source.mode == "stream" or settings.memory.path is not None
    kind = {
        "mode": settings.source.mode,
        "format": settings.source.format,
        "engine": settings.judge.engine,
        "shape": settings.judge.shape
        if settings.judge.engine == "lorawan"
        else "flat",  # all sources of other engines are tables
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
                        yield (table, key), f"is {'set' if key in HIDDEN else _shown(value)}, which needs {needed}"
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
    except ValueError as error:  # the message has line and column, except for a number of 5,000 digits
        raise Misuse(f"{path}: not TOML: {error}", path=str(path)) from error
    except RecursionError as error:
        raise Misuse(f"{path}: not TOML: it is nested too deep", path=str(path)) from error


def _override(data: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Put the environment into the data; return the variable of each key, and the problems."""
    origins: dict[tuple[str, ...], str] = {}
    problems = []
    for variable in sorted(environ):
        table, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        # ONEFOLD_DEBUG and the like are no settings; ONEFOLD_JUDGE_FLOOR is a typing error.
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
        if detail["type"] == "whole":  # the value is a whole table, which may hold a password
            return f"{name}: {detail['msg']}"
        theirs = detail["msg"].replace("Input should be ", "must be ").replace("'", '"')
        value = "" if set(where) & set(HIDDEN) else f"is {_shown(detail['input'])}, "
        return f"{name}: {value}{OUR_WORDS.get(detail['type'], theirs)}"
    # For an unknown key or table: the nearest one, the same key in another table, or the list of all.
    kind = "key" if table else "table"
    model = Value if table == ["source", "value"] else TABLES[table[0]] if table else None
    names = list(TABLES if model is None else model.model_fields)
    near = get_close_matches(key, names, n=1) or [f"{t}.{key}" for t, m in TABLES.items() if key in m.model_fields]
    hint = f'did you mean "{near[0]}"?' if near else f"the {kind}s are {', '.join(names)}"
    return f"{name}: unknown {kind}, {hint}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."
