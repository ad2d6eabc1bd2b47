"""``onefold check``: what is wrong with a data set, without writing anything."""

from typing import Annotated, Literal

import typer

from onefold.cli.output import emit_json, people
from onefold.cli.progress import progress
from onefold.report import text
from onefold.tally import Tally

_FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".orc": "orc"}


def check(
    path: Annotated[str, typer.Argument(help="A file or folder that Spark can read.")],
    format: Annotated[
        str, typer.Option(help='"parquet", "json", "csv", ...; "auto": by the ending of the names.')
    ] = "auto",
    key: Annotated[str, typer.Option(help="The columns that name the chain, with commas.")] = (
        "stream,partition,publisher,chain"
    ),
    timestamp: Annotated[str, typer.Option(help="Column of the number's timestamp.")] = "timestamp",
    sequence: Annotated[str, typer.Option(help='Column of its sequence, or "none".')] = "sequence",
    previous_timestamp: Annotated[
        str, typer.Option(help='Column of the previous number\'s timestamp, or "none".')
    ] = "previous_timestamp",
    previous_sequence: Annotated[str, typer.Option(help='Column of its sequence, or "none".')] = "previous_sequence",
    arrival: Annotated[str, typer.Option(help='Column of the arrival time, or "none".')] = "arrival",
    floor: Annotated[Literal["first", "open"], typer.Option(help="Is what lies below the first arrival new?")] = "open",
    gap_count_max: Annotated[int, typer.Option(min=1, help="Gaps remembered per chain.")] = 10_000,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    ranges: Annotated[int, typer.Option(min=0, help="How many missing ranges to show.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Find the duplicates, gaps and malformed rows of a data set. Exit 1 if there are any, 0 if it is clean."""
    from onefold.spark import jobs
    from onefold.spark.columns import ChainColumns
    from onefold.spark.judging import Chains
    from onefold.spark.session import session

    columns = ChainColumns(
        key=tuple(name.strip() for name in key.split(",") if name.strip()),
        timestamp=timestamp,
        sequence=_maybe(sequence),
        previous_timestamp=_maybe(previous_timestamp),
        previous_sequence=_maybe(previous_sequence),
        arrival=_maybe(arrival),
    )
    with progress(people) as say:
        say("starting Spark")
        spark = session(master)
        source = jobs.Source(path=path, format=_format(path) if format == "auto" else format)
        judging = Chains(columns=columns, floor=floor, gap_count_max=gap_count_max)
        result = jobs.check(spark, source, judging, ranges_max=ranges, say=say).to_dict()
    found = text.findings(result)
    if json:
        emit_json({**result, "findings": found})
    tally = Tally.from_dict(result["tally"])
    people.print(text.books(tally))
    people.print(text.ranges(result))
    people.print(text.banner(tally))
    people.print(f"found: {', '.join(found)}" if found else "clean: every message is there once", highlight=False)
    if found:
        raise typer.Exit(1)


def _maybe(name: str) -> str | None:
    return None if name == "none" else name


def _format(path: str) -> str:
    """By the ending of the file, or of the first file in the folder that has a known one."""
    from pathlib import Path

    place = Path(path)
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return next((_FORMATS[file.suffix] for file in files if file.suffix in _FORMATS), "parquet")
