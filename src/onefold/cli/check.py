"""``onefold check``: find what is wrong with a data set, without writing anything."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from rich.text import Text
from typer import Argument, Exit, Option

from onefold.cli.mistakes import are_small, format_of, refuse_mistakes
from onefold.cli.options import names_of, reader_options, refuse
from onefold.cli.output import emit_json, people, progress
from onefold.errors import Misuse
from onefold.report import advice, agreement, text
from onefold.tally import Tally

if TYPE_CHECKING:
    from onefold.spark.engine import Engine

_KEY = "stream,partition,publisher,chain"
GAP_COUNT_MAX = 10_000
"""As the engines have it by default."""
READING: Final = {"--format": "auto", "--bad-files": "stop", "--partition-types": "text", "--master": "local[*]"}
"""Options of the reader with their defaults."""

_NUMBERS: Final = "If rows have a number and the one before it (chains)"
_SOURCES: Final = "If rows have a source and a running number (producers)"
_IDS: Final = "If rows have an id"
_READING: Final = "Reading the data"
_SHOWING: Final = "What is shown"
_COLUMN: Final = "COLUMN"
_COLUMNS: Final = "COLUMN,..."

_Id = Annotated[
    str | None,
    Option(metavar=_COLUMNS, rich_help_panel=_IDS, help="The id: the columns that all copies of a message share."),
]
_Payload: TypeAlias = Annotated[
    str,
    Option(
        metavar=_COLUMNS, rich_help_panel=_IDS,
        help='The content: a copy with other content is a conflict. "none": not compared. Also with --producer.',
    ),
]  # fmt: skip
_Order: TypeAlias = Annotated[
    str,
    Option(
        metavar=_COLUMN, rich_help_panel=_IDS,
        help='When a row came in: the first in this order counts. "none": any order. Also with --producer.',
    ),
]  # fmt: skip
Producer = Annotated[
    str | None,
    Option(metavar=_COLUMNS, rich_help_panel=_SOURCES, help="The source, such as a device; --key means the same here."),
]
_Sequence: TypeAlias = Annotated[
    str | None,
    Option(
        metavar=_COLUMN, rich_help_panel=_SOURCES,
        help="The running number of the source. With --number: the counter of messages with the same number, or "
        '"none". Default: the column "sequence", if there is one.',
    ),
]  # fmt: skip
_Epoch: TypeAlias = Annotated[
    str,
    Option(
        metavar=_COLUMN, rich_help_panel=_SOURCES,
        help='A number that rises when the source is replaced: rows of an older epoch are rejected. "none": no epochs.',
    ),
]  # fmt: skip
_Time: TypeAlias = Annotated[
    str,
    Option(
        metavar=_COLUMN, rich_help_panel=_SOURCES,
        help='When the message was made, the same in all copies: needed if counters restart at 0. "none": they do not.',
    ),
]  # fmt: skip
_Memory: TypeAlias = Annotated[
    Literal["highest", "gaps"],
    Option(
        rich_help_panel=_SOURCES,
        help='A number below the highest that was not seen before is new ("gaps") or a repeat ("highest").',
    ),
]
_JumpMax: TypeAlias = Annotated[
    int,
    Option(min=0, rich_help_panel=_SOURCES, help="Reject a number more than this above the highest; 0: no limit."),
]
_Key: TypeAlias = Annotated[
    str,
    Option(
        metavar=_COLUMNS, rich_help_panel=_NUMBERS,
        help="The columns whose rows are numbered together, such as a device. With --sequence alone: the source.",
    ),
]  # fmt: skip
_Number: TypeAlias = Annotated[
    str,
    Option(
        "--timestamp", "--number", metavar=_COLUMN, rich_help_panel=_NUMBERS,
        help="The number of a message: an integer, such as Unix time in ms, or a time (timestamp, date, ISO 8601).",
    ),
]  # fmt: skip
_PreviousTimestamp: TypeAlias = Annotated[
    str | None,
    Option(
        "--previous-timestamp", "--previous", metavar=_COLUMN, rich_help_panel=_NUMBERS,
        help='The number of the previous message; "none": losses cannot be found. '
        'Default: the column "previous_timestamp", if there is one.',
    ),
]  # fmt: skip
_PreviousSequence: TypeAlias = Annotated[
    str | None,
    Option(
        metavar=_COLUMN, rich_help_panel=_NUMBERS,
        help='The sequence of the previous message, or "none". Default: "previous_sequence", if there is one.',
    ),
]  # fmt: skip
_Arrival: TypeAlias = Annotated[
    str | None,
    Option(
        metavar=_COLUMN, rich_help_panel=_NUMBERS,
        help="When a row came in (Unix time in ms, or a time): the order of judgement. "
        '"none": by number. Default: the column "arrival", if there is one.',
    ),
]  # fmt: skip
_Floor: TypeAlias = Annotated[
    Literal["first", "open"],
    Option(
        rich_help_panel=_NUMBERS,
        help='A number below the first that arrived is new ("open") or a repeat ("first").',
    ),
]
_GapCountMax: TypeAlias = Annotated[
    int,
    Option(
        min=1, rich_help_panel=_NUMBERS,
        help="Missing ranges remembered per chain or source; above this, the oldest are forgotten and UNSURE.",
    ),
]  # fmt: skip
_Format: TypeAlias = Annotated[
    str,
    Option(
        rich_help_panel=_READING,
        help='"parquet", "json", "csv", "onefold-log", or another format of Spark; "auto": by file extension.',
    ),
]
_Option: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE", rich_help_panel=_READING,
        help="An option of Spark's reader, such as sep=; or header=false; repeatable.",
    ),
]  # fmt: skip
BadFiles = Annotated[
    Literal["stop", "set_aside"],
    Option(
        rich_help_panel=_READING,
        help='A file that cannot be read is an error ("stop"), or is named and left out ("set_aside").',
    ),
]
PartitionTypes = Annotated[
    Literal["text", "infer"],
    Option(
        rich_help_panel=_READING,
        help='Values of partition folders such as device=001: "text": as written; "infer": 001 becomes the number 1.',
    ),
]
_Master: TypeAlias = Annotated[
    str, Option(rich_help_panel=_READING, help="Spark master; local[*]: this machine, all cores.")
]


def check(
    path: Annotated[
        str, Argument(help="A file or folder that Spark can read, kafka://HOST/TOPIC, or a catalogue table: db.events.")
    ],
    id: _Id = None,
    payload: _Payload = "none",
    order: _Order = "none",
    producer: Producer = None,
    sequence: _Sequence = None,
    epoch: _Epoch = "none",
    time: _Time = "none",
    memory: _Memory = "gaps",
    jump_max: _JumpMax = 0,
    key: _Key = _KEY,
    timestamp: _Number = "timestamp",
    previous_timestamp: _PreviousTimestamp = None,
    previous_sequence: _PreviousSequence = None,
    arrival: _Arrival = None,
    floor: _Floor = "open",
    gap_count_max: _GapCountMax = GAP_COUNT_MAX,
    format: _Format = "auto",
    option: _Option = None,
    bad_files: BadFiles = "stop",
    partition_types: PartitionTypes = "text",
    master: _Master = "local[*]",
    ranges: Annotated[int, Option(min=0, rich_help_panel=_SHOWING, help="How many missing ranges to show.")] = 20,
    json: Annotated[
        bool, Option("--json", rich_help_panel=_SHOWING, help="Print the figures as JSON on standard output.")
    ] = False,
) -> None:
    """Find the duplicates, gaps and malformed rows of a data set. Exit 1 if there are any, else 0.

    \b
    What do your rows have?
      an id                             --id event_id
      a source and a running number     --key device --sequence n
      a number and the one before it    --key device --number ts --previous prev_ts

    With --id it shows how many copies there are, of which ids and from which files; with --order received_at also how
    late they come and which window would catch them; with --payload status,amount which ones differ from the first.

    What the named columns cannot show, such as losses where no row names the previous one, is listed with the option
    that would show it; such a data set is never called clean.
    """
    from onefold.spark import run as jobs
    from onefold.spark.ingest import SourceSpec
    from onefold.spark.session import session

    columns = ColumnOptions(
        id, key, timestamp, sequence, previous_timestamp, previous_sequence, arrival, floor, producer, order, epoch,
        time, payload, memory, jump_max, gap_count_max,
    )  # fmt: skip
    kind = format_of(path) if format == "auto" else format
    engine = columns.engine(kind)
    options = reader_options(option)
    try:
        table = refuse_mistakes(path, kind, engine.reads, options, master=master)
    except Misuse as error:
        if columns.is_silent and error.values.get("role") == "key":
            raise no_columns_named(path, error.values["columns"]) from None
        raise
    with progress(people) as say:
        say("starting Spark")
        spark = session(master, brief=are_small(path))
        source = SourceSpec(
            path=path, format=kind, options=options, bad_files=bad_files, partition_types=partition_types,
            probed=table is not None,
        )  # fmt: skip
        result = jobs.check(spark, source, engine, ranges_max=ranges, say=say).to_dict()
    has_findings = _show_findings(result, json)
    reading = {"--format": format, "--bad-files": bad_files, "--partition-types": partition_types, "--master": master}
    people.lines(*_better_commands(result, path, engine, reading, option or ()))
    if has_findings:
        raise Exit(1)


class ColumnOptions(NamedTuple):
    """The options that say what the rows have."""

    id: str | None
    key: str
    timestamp: str
    sequence: str | None
    previous_timestamp: str | None
    previous_sequence: str | None
    arrival: str | None
    floor: Literal["first", "open"]
    producer: str | None
    order: str
    epoch: str
    time: str
    payload: str
    memory: Literal["highest", "gaps"]
    jump_max: int
    gap_count_max: int

    @property
    def is_silent(self) -> bool:
        """Whether no option names the columns of a message."""
        return self.id is self.producer is None and self.key == _KEY

    def engine(self, kind: str = "") -> "Engine":
        """The engine that these columns choose; `Misuse` names an option of another engine.

        ``kind``: the format. Messages of Kafka are judged in the order of the topic unless another order is named.
        """
        from onefold.spark.chains import ChainsEngine
        from onefold.spark.columns import ChainColumns, ProducerColumns
        from onefold.spark.ids import IdColumns, IdsEngine
        from onefold.spark.producers import ProducersEngine

        key, producer = self.key, self.producer
        order, content = _maybe(self.order), names_of(_maybe(self.payload) or "")
        kafka_time, kafka_offset = ("kafka_timestamp", "kafka_offset") if kind == "kafka" else (None, None)
        of_chains = {
            "--timestamp": self.timestamp != "timestamp",
            "--previous": self.previous_timestamp is not None,
            "--previous-sequence": self.previous_sequence is not None,
            "--arrival": self.arrival is not None,
            "--floor": self.floor != "open",
        }
        of_producers = {
            "--memory": self.memory != "gaps",
            "--jump-max": self.jump_max != 0,
            "--epoch": self.epoch != "none",
            "--time": self.time != "none",
        }
        is_numbered = key != _KEY and self.sequence not in (None, "none")
        if is_numbered and producer is self.id is None and not any(of_chains.values()):
            producer, key = key, _KEY
        if self.id is not None:
            named = {"--key": key != _KEY, "--sequence": self.sequence is not None, "--producer": producer is not None}
            bound = {"--gap-count-max": self.gap_count_max != GAP_COUNT_MAX}
            refuse({**named, **of_chains, **of_producers, **bound}, "cannot be combined with --id")
            return IdsEngine(columns=IdColumns(id=names_of(self.id), order=order or kafka_time, payload=content))
        if producer is None:
            refuse({"--order": order is not None, "--payload": bool(content)}, "needs --id or --producer")
            refuse(of_producers, "needs --producer")
            roles = ("sequence", "previous_timestamp", "previous_sequence", "arrival")
            optional = {role: _maybe(name) for role in roles if (name := getattr(self, role)) is not None}
            optional = {"arrival": kafka_time, **optional} if kafka_time else optional
            columns = ChainColumns(key=names_of(key), timestamp=self.timestamp, **optional)
            return ChainsEngine(columns=columns, floor=self.floor, gap_count_max=self.gap_count_max)
        refuse({"--key": key != _KEY, **of_chains}, "cannot be combined with --producer")
        numbered = ProducerColumns(
            producer=names_of(producer), sequence=self.sequence or "sequence", order=order or kafka_offset,
            epoch=_maybe(self.epoch), time=_maybe(self.time), payload=content,
        )  # fmt: skip
        bounds = {"gap_count_max": self.gap_count_max, "jump_max": self.jump_max or None}
        return ProducersEngine(columns=numbered, memory=self.memory, **bounds)  # type: ignore[arg-type]


def _show_findings(result: dict[str, Any], json: bool) -> bool:
    findings = text.findings(result)
    if json:
        emit_json({**result, "findings": findings})
    tally = Tally.from_dict(result["tally"])
    people.print(text.books(tally, result["engine"]))
    for part in advice.copies(result["copies"]) if "copies" in result else ():
        people.print(part, soft_wrap=isinstance(part, Text))
    if result["engine"] != "ids":
        people.print(text.ranges(result, f"; --ranges {result['missing_ranges']} shows them"))
    people.print(text.banner(tally))
    people.lines(*agreement.files_read(result["manifest"]), *text.absent(result))
    unknown = text.cannot_tell(result)
    clean = "nothing was found" if unknown else "clean: every message is there once"
    people.lines(f"found: {', '.join(findings)}" if findings else clean)
    people.lines(*unknown)
    return bool(findings)


def _better_commands(
    result: Mapping[str, Any], path: str, engine: "Engine", reading: Mapping[str, str], options: Sequence[str]
) -> Iterator[Text]:
    """The command with the time column that would tell restarts of counters from copies."""
    from onefold.spark.columns import Usual

    for unknown in (each for each in result["cannot_tell"] if each["option"] == "time"):
        columns: dict[str, list[str]] = {}
        for role, name in engine.columns.named:
            if not isinstance(name, Usual):
                columns.setdefault(role, []).append(name)
        named = {**{role: ",".join(names) for role, names in columns.items()}, "time": unknown["value"]}
        pairs = [(f"--{role.replace('_', '-')}", name) for role, name in named.items()]
        pairs += [pair for pair in reading.items() if pair not in READING.items()]
        pairs += [("--option", option) for option in options]
        command = shlex.join(["onefold", "check", path, *(word for pair in pairs for word in pair)])
        yield text.foreign(f"try: {command}", text.LINE_MAX)


def no_columns_named(path: str, columns: Sequence[str]) -> Misuse:
    """The error for a command that names no column, where no column has a default name."""
    ids = ("id", "uuid", "guid", "event_id", "message_id")
    near = next((name for name in columns if name.lower() in ids or name.lower().endswith(("_id", "uuid"))), "COLUMN")
    return Misuse(
        f"what names a message? The columns are {', '.join(columns)}. An id: --id {near}; a source and a running "
        "number: --key COLUMN --sequence COLUMN; a number and that of the one before: --key COLUMN --number COLUMN "
        f"--previous COLUMN; try: onefold check {shlex.quote(path)} --id {shlex.quote(near)}"
    )


def _maybe(name: str) -> str | None:
    return None if name == "none" else name
