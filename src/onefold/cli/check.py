"""``onefold check``: what is wrong with a data set, without writing anything."""

import csv
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from typer import Argument, Exit, Option

from onefold.cli.output import emit_json, people, progress
from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.report import agreement, text
from onefold.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from onefold.spark.engine import Engine

_FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".orc": "orc", ".parquet": "parquet"}
_KEY = "stream,partition,publisher,chain"
GAP_COUNT_MAX = 10_000
"""As the engines have it by default."""

_Id = Annotated[
    str | None, Option(help="The columns that copies share, such as an event id: judges ids, which need nothing else.")
]
Producer = Annotated[str | None, Option(help="The columns that name the producer: judges producers, not chains.")]
BadFiles = Annotated[
    Literal["stop", "set_aside"],
    Option(help='A file that cannot be read: "stop" and name it, or "set_aside": go on without it and name it.'),
]
PartitionTypes = Annotated[
    Literal["text", "infer"],
    Option(help='Values of folders like device=001: "text" as it is written, or "infer" as Spark guesses.'),
]
_Format: TypeAlias = Annotated[
    str, Option(help='"parquet", "json", "csv", "onefold-log", ...; "auto": by the ending of the names.')
]
_Key: TypeAlias = Annotated[
    str, Option(help="The columns that name the chain, with commas; with --sequence alone, the producer.")
]
_Number: TypeAlias = Annotated[
    str,
    Option(
        "--timestamp",
        "--number",
        help="Column of the number's timestamp: whole ms, or a time (timestamp, date, ISO 8601).",
    ),
]
_Order: TypeAlias = Annotated[
    str, Option(help='Of ids and producers: column of the order, such as the arrival, or "none".')
]
_Epoch: TypeAlias = Annotated[
    str, Option(help='Of producers: column of the epoch, which rises at a restart, or "none".')
]
_Payload: TypeAlias = Annotated[
    str, Option(help='Of ids and producers: columns of the content; a copy that differs is a conflict; or "none".')
]
_Sequence: TypeAlias = Annotated[
    str | None, Option(help='Column of its sequence, or "none". Default: sequence, if there is one.')
]
_PreviousTimestamp: TypeAlias = Annotated[
    str | None,
    Option(
        "--previous-timestamp",
        "--previous",
        help='Column of the previous number\'s timestamp, or "none". Default: previous_timestamp, if there is one.',
    ),
]
_PreviousSequence: TypeAlias = Annotated[
    str | None, Option(help='Column of its sequence, or "none". Default: previous_sequence, if there is one.')
]
_Arrival: TypeAlias = Annotated[
    str | None, Option(help='Column of the arrival: whole ms, or a time; or "none". Default: arrival, if there is one.')
]


def check(
    path: Annotated[
        str, Argument(help="A file or folder that Spark can read, or a table of its catalogue, such as db.events.")
    ],
    id: _Id = None,
    format: _Format = "auto",
    key: _Key = _KEY,
    timestamp: _Number = "timestamp",
    sequence: _Sequence = None,
    previous_timestamp: _PreviousTimestamp = None,
    previous_sequence: _PreviousSequence = None,
    arrival: _Arrival = None,
    floor: Annotated[Literal["first", "open"], Option(help="Is what lies below the first arrival new?")] = "open",
    producer: Producer = None,
    order: _Order = "none",
    epoch: _Epoch = "none",
    payload: _Payload = "none",
    memory: Annotated[
        Literal["highest", "gaps"], Option(help="Of producers: is a lower sequence that was never seen new?")
    ] = "gaps",
    jump_max: Annotated[int, Option(min=0, help="Of producers: reject jumps beyond it; 0: none is too far.")] = 0,
    gap_count_max: Annotated[int, Option(min=1, help="Gaps remembered per chain or producer.")] = GAP_COUNT_MAX,
    bad_files: BadFiles = "stop",
    partition_types: PartitionTypes = "text",
    master: Annotated[str, Option(help="Where Spark runs.")] = "local[*]",
    ranges: Annotated[int, Option(min=0, help="How many missing ranges to show.")] = 20,
    json: Annotated[bool, Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Find the duplicates, gaps and malformed rows of a data set. Exit 1 if there are any, 0 if none were found.

    What do your rows have? An id: --id event_id. A source and a running number: --key device --sequence n. A number and
    that of the one before: --key device --number ts --previous prev_ts.

    What cannot be told from these columns, such as a loss where no row names its previous one, is said, with the option
    that would tell it; then the data set is not called clean.
    """
    from onefold.spark import run as jobs
    from onefold.spark.ingest import SourceSpec
    from onefold.spark.session import session

    given = Given(
        id, key, timestamp, sequence, previous_timestamp, previous_sequence, arrival, floor, producer, order, epoch,
        payload, memory, jump_max, gap_count_max,
    )  # fmt: skip
    engine = given.engine()
    kind = format_of(path) if format == "auto" else format
    with _columns_in_options(path, engine):
        if kind != "table":
            refuse_mistakes(path, kind, engine)
    with progress(people) as say:
        say("starting Spark")
        spark = session(master)
        source = SourceSpec(path=path, format=kind, bad_files=bad_files, partition_types=partition_types)
        with _columns_in_options(path, engine):
            result = jobs.check(spark, source, engine, ranges_max=ranges, say=say).to_dict()
    if _show_findings(result, json):
        raise Exit(1)


class Given(NamedTuple):
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
    payload: str
    memory: Literal["highest", "gaps"]
    jump_max: int
    gap_count_max: int

    def engine(self) -> "Engine":
        """The engine that follows from the columns that are named; `Misuse` names an option of another one."""
        from onefold.spark.chains import ChainsEngine
        from onefold.spark.columns import ChainColumns, ProducerColumns
        from onefold.spark.ids import IdColumns, IdsEngine
        from onefold.spark.producers import ProducersEngine

        key, producer, order, content = (
            self.key,
            self.producer,
            _maybe(self.order),
            names_of(_maybe(self.payload) or ""),
        )
        previous = {"--previous": self.previous_timestamp, "--previous-sequence": self.previous_sequence}
        optional = {**previous, "--arrival": self.arrival}
        of_chains = {
            "--timestamp": (self.timestamp, "timestamp"),
            **{name: (own, None) for name, own in optional.items()},
        }
        of_producers = {
            "--memory": (self.memory, "gaps"),
            "--jump-max": (self.jump_max, 0),
            "--epoch": (self.epoch, "none"),
        }
        of_chains["--floor"] = (self.floor, "open")
        is_numbered = key != _KEY and self.sequence not in (None, "none")
        if is_numbered and producer is self.id is None and all(own == usual for own, usual in of_chains.values()):
            producer, key = key, _KEY
        if self.id is not None:
            others = {"--key": (key, _KEY), "--sequence": (self.sequence, None), "--producer": (producer, None)}
            bound = {"--gap-count-max": (self.gap_count_max, GAP_COUNT_MAX)}
            refuse_without({**others, **of_chains, **of_producers, **bound}, "no --id")
            return IdsEngine(columns=IdColumns(id=names_of(self.id), order=order, payload=content))
        if producer is None:
            refuse_without({"--order": (self.order, "none"), "--payload": (self.payload, "none")}, "--id or --producer")
            refuse_without(of_producers, "--producer")
            roles = ("sequence", "previous_timestamp", "previous_sequence", "arrival")
            named = {role: _maybe(name) for role in roles if (name := getattr(self, role)) is not None}
            columns = ChainColumns(key=names_of(key), timestamp=self.timestamp, **named)
            return ChainsEngine(columns=columns, floor=self.floor, gap_count_max=self.gap_count_max)
        refuse_without({"--key": (key, _KEY), **of_chains}, "no --producer")
        numbered = ProducerColumns(
            producer=names_of(producer), sequence=self.sequence or "sequence", order=order, epoch=_maybe(self.epoch),
            payload=content,
        )  # fmt: skip
        bounds = {"gap_count_max": self.gap_count_max, "jump_max": self.jump_max or None}
        return ProducersEngine(columns=numbered, memory=self.memory, **bounds)  # type: ignore[arg-type]


def _show_findings(result: dict[str, Any], json: bool) -> bool:
    findings = text.findings(result)
    if json:
        emit_json({**result, "findings": findings})
    tally = Tally.from_dict(result["tally"])
    people.print(text.books(tally, result["engine"]))
    people.print(text.ranges(result))
    people.print(text.banner(tally))
    people.lines(*agreement.files_read(result["manifest"]), *text.absent(result))
    untold = text.cannot_tell(result)
    clean = "nothing was found" if untold else "clean: every message is there once"
    people.lines(f"found: {', '.join(findings)}" if findings else clean)
    people.lines(*untold)
    return bool(findings)


@contextmanager
def _columns_in_options(path: str, engine: "Engine") -> Iterator[None]:
    """Say of a column that is not there what the command could be."""
    from onefold.spark.columns import Usual

    try:
        yield
    except Misuse as error:
        if "role" not in error.values:
            raise
        chosen: dict[str, list[str]] = {}
        for role, name in engine.columns.named:
            if not isinstance(name, Usual):
                chosen.setdefault(role, []).append(name)
        wrong, required = error.values["role"], error.values["required"]
        named = {role: ",".join(names) for role, names in chosen.items()} | {wrong: "COLUMN" if required else "none"}
        options = (f"--{role.replace('_', '-')} {shlex.quote(name)}" for role, name in named.items())
        command = f"onefold check {shlex.quote(path)} {' '.join(options)}"
        raise Misuse(f"{error.values['said']}; try: {command}", **error.values) from error


PEEK_BYTES_MAX = 64 << 20
PEEK_FILES_MAX = 1_000
"""What is looked at before Spark is started, which takes longer; of more, Spark itself finds what is wrong."""


def refuse_mistakes(path: str, kind: str, engine: "Engine") -> None:
    """Refuse a path or a column that is not there before Spark is started, as far as files of this machine tell."""
    from pathlib import Path

    from onefold.spark.columns import Usual

    if "://" in path or path.startswith("file:") or any(sign in path for sign in "*?[{"):
        return
    if not Path(path).exists():
        raise Misuse(f"there is nothing at {path}", path=path)
    columns = _columns_of(Path(path), kind)
    if not columns:
        return
    present = {name.lower() for name in columns}
    for role, name in engine.columns.named:
        if not isinstance(name, Usual) and name.lower() not in present and name.split(".")[0].lower() not in present:
            required = role in engine.columns.required  # type: ignore[attr-defined]
            close = [f", did you mean {other!r}" for other in get_close_matches(name, columns, n=1)]
            said = f"no column {name!r} ({role}){''.join(close)}: the columns are {', '.join(columns)}"
            raise Misuse(said, column=name, role=role, said=said, required=required)


def _columns_of(path: "Path", kind: str) -> list[str]:
    """The columns that any of these files has; nothing if that cannot be told quickly."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in files if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)]
    if not files or len(files) > PEEK_FILES_MAX or kind not in ("parquet", "json", "csv"):
        return []
    if kind != "parquet" and sum(file.stat().st_size for file in files) > PEEK_BYTES_MAX:
        return []
    columns: dict[str, None] = {}
    try:
        for file in files:
            parts = (part.partition("=") for part in file.relative_to(path).parts[:-1])
            columns |= {name: None for name, sign, _ in parts if sign}
            if kind == "parquet":
                columns |= dict.fromkeys(pq.read_schema(file).names)
            elif kind == "csv":
                with file.open(newline="", encoding="utf-8-sig") as lines:
                    columns |= dict.fromkeys(next(csv.reader(lines), []))
            else:
                with file.open("rb") as lines:
                    for line in lines:
                        row = read_json(line, str(file)) if line.strip() else {}
                        columns |= dict.fromkeys(row if isinstance(row, dict) else ())
    except (OSError, ValueError, BadInput, pa.ArrowException, csv.Error):  # Spark says what is wrong with the file
        return []
    return list(columns)


def refuse_without(options: Mapping[str, tuple[object, object]], needed: str) -> None:
    for option, (value, default) in options.items():
        if value != default:
            raise Misuse(f"{option} is {value!r}, which needs {needed}", option=option)


def names_of(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _maybe(name: str) -> str | None:
    return None if name == "none" else name


def format_of(path: str) -> str:
    """By the ending of the file, or of the first file in the folder that has a known one; a topic has its own file.

    What is neither, and has a name such as ``db.events``, is a table of the catalogue. As for Spark, what begins with a
    dot or an underscore is not there: an index has files of its own.
    """
    from pathlib import Path

    from onefold.spark.ingest import TABLE, is_table_name

    folder = Path(path)
    if not folder.exists() and is_table_name(path):
        return TABLE
    if (folder / "topic.json").is_file():
        return "onefold-log"
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    visible = (f for f in files if not any(part.startswith((".", "_")) for part in f.relative_to(folder).parts))
    return next((_FORMATS[file.suffix] for file in visible if file.suffix in _FORMATS), "parquet")
