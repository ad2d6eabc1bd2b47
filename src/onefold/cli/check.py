"""``onefold check``: what is wrong with a data set, without writing anything."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Argument, Exit, Option

from onefold.cli.output import emit_json, people, progress
from onefold.errors import Misuse
from onefold.report import agreement, text
from onefold.tally import Tally

if TYPE_CHECKING:
    from onefold.spark.engine import Engine

_FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".orc": "orc", ".parquet": "parquet"}
_KEY = "stream,partition,publisher,chain"

Producer = Annotated[str | None, Option(help="The columns that name the producer: judges producers, not chains.")]
BadFiles = Annotated[
    Literal["stop", "set_aside"],
    Option(help='A file that cannot be read: "stop" and name it, or "set_aside": go on without it and name it.'),
]
PartitionTypes = Annotated[
    Literal["text", "infer"],
    Option(help='Values of folders like device=001: "text" as it is written, or "infer" as Spark guesses.'),
]
_Sequence: TypeAlias = Annotated[
    str | None, Option(help='Column of its sequence, or "none". Default: sequence, if there is one.')
]
_PreviousTimestamp: TypeAlias = Annotated[
    str | None,
    Option(help='Column of the previous number\'s timestamp, or "none". Default: previous_timestamp, if there is one.'),
]
_PreviousSequence: TypeAlias = Annotated[
    str | None, Option(help='Column of its sequence, or "none". Default: previous_sequence, if there is one.')
]
_Arrival: TypeAlias = Annotated[
    str | None, Option(help='Column of the arrival: whole ms, or a time; or "none". Default: arrival, if there is one.')
]


def check(
    path: Annotated[str, Argument(help="A file or folder that Spark can read.")],
    format: Annotated[
        str, Option(help='"parquet", "json", "csv", "onefold-log", ...; "auto": by the ending of the names.')
    ] = "auto",
    key: Annotated[str, Option(help="The columns that name the chain, with commas.")] = _KEY,
    timestamp: Annotated[
        str, Option(help="Column of the number's timestamp: whole ms, or a time (timestamp, date, ISO 8601).")
    ] = "timestamp",
    sequence: _Sequence = None,
    previous_timestamp: _PreviousTimestamp = None,
    previous_sequence: _PreviousSequence = None,
    arrival: _Arrival = None,
    floor: Annotated[Literal["first", "open"], Option(help="Is what lies below the first arrival new?")] = "open",
    producer: Producer = None,
    order: Annotated[str, Option(help='Of producers: column of the order, or "none": by sequence.')] = "none",
    payload: Annotated[str, Option(help='Of producers: columns of the content, or "none".')] = "none",
    memory: Annotated[
        Literal["highest", "gaps"], Option(help="Of producers: is a lower sequence that was never seen new?")
    ] = "gaps",
    jump_max: Annotated[int, Option(min=0, help="Of producers: reject jumps beyond it; 0: none is too far.")] = 0,
    gap_count_max: Annotated[int, Option(min=1, help="Gaps remembered per chain or producer.")] = 10_000,
    bad_files: BadFiles = "stop",
    partition_types: PartitionTypes = "text",
    master: Annotated[str, Option(help="Where Spark runs.")] = "local[*]",
    ranges: Annotated[int, Option(min=0, help="How many missing ranges to show.")] = 20,
    json: Annotated[bool, Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Find the duplicates, gaps and malformed rows of a data set. Exit 1 if there are any, 0 if none were found.

    What cannot be told from these columns, such as a loss where no row names its previous one, is said, with the option
    that would tell it; then the data set is not called clean.
    """
    from onefold.spark import run as jobs
    from onefold.spark.chains import ChainsEngine
    from onefold.spark.columns import ChainColumns, ProducerColumns
    from onefold.spark.ingest import SourceSpec
    from onefold.spark.producers import ProducersEngine
    from onefold.spark.session import session

    engine: Engine
    if producer is None:
        texts = {"--order": (order, "none"), "--payload": (payload, "none"), "--memory": (memory, "gaps")}
        refuse_without({**texts, "--jump-max": (jump_max, 0)}, "--producer")
        before = {"previous_timestamp": previous_timestamp, "previous_sequence": previous_sequence}
        options = {"sequence": sequence, **before, "arrival": arrival}
        named = {role: _maybe(name) for role, name in options.items() if name is not None}
        columns = ChainColumns(key=names_of(key), timestamp=timestamp, **named)
        engine = ChainsEngine(columns=columns, floor=floor, gap_count_max=gap_count_max)
    else:
        of_chains = {"--key": (key, _KEY), "--timestamp": (timestamp, "timestamp"), "--arrival": (arrival, None)}
        refuse_without(of_chains, "no --producer")
        content = names_of(_maybe(payload) or "")
        number = sequence or "sequence"
        dump = ProducerColumns(producer=names_of(producer), sequence=number, order=_maybe(order), payload=content)
        engine = ProducersEngine(columns=dump, memory=memory, gap_count_max=gap_count_max, jump_max=jump_max or None)
    with progress(people) as say:
        say("starting Spark")
        spark = session(master)
        kind = format_of(path) if format == "auto" else format
        source = SourceSpec(path=path, format=kind, bad_files=bad_files, partition_types=partition_types)
        with _columns_in_options(path, engine):
            result = jobs.check(spark, source, engine, ranges_max=ranges, say=say).to_dict()
    if _show_findings(result, json):
        raise Exit(1)


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

    As for Spark, what begins with a dot or an underscore is not there: an index has files of its own.
    """
    from pathlib import Path

    folder = Path(path)
    if (folder / "topic.json").is_file():
        return "onefold-log"
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    visible = (f for f in files if not any(part.startswith((".", "_")) for part in f.relative_to(folder).parts))
    return next((_FORMATS[file.suffix] for file in visible if file.suffix in _FORMATS), "parquet")
