"""``onefold run``: a pipeline from its TOML file."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from onefold.cli.output import emit_json, people
from onefold.cli.progress import progress
from onefold.cli.stream import stream
from onefold.errors import Misuse
from onefold.report import text
from onefold.settings import Settings, load
from onefold.tally import Tally
from onefold.verdict import Verdict


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline's TOML file; `onefold init` writes one.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 if anything was unsure, rejected or missing.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON on standard output; of a stream, a line a batch.")
    ] = False,
    metrics: Annotated[
        int | None, typer.Option("--metrics", min=1, max=65535, help="Of a stream: a port for Prometheus, on loopback.")
    ] = None,
) -> None:
    """Judge every message of a source, and publish firsts, repeats, unsure, rejects, gaps and the books.

    A batch run is complete when its folder holds run.json; running again replaces it. A stream publishes each of its
    batches once; starting it again goes on where it ended. Ctrl-C and SIGTERM let the batch in hand finish.
    """
    settings = load(pipeline, os.environ)
    if settings.source.mode == "stream":
        raise typer.Exit(stream(settings, strict=strict, json=json, metrics=metrics))
    if metrics is not None:
        raise Misuse(f'{pipeline}: --metrics needs source.mode = "stream"', metrics=metrics)
    result = execute(settings)
    if json:
        emit_json(result)
    tally = Tally.from_dict(result["tally"])
    people.print(text.books(tally, settings.judge.engine))
    people.print(text.ranges(result))
    people.print(text.banner(tally))
    if result["others"]:
        people.print(
            f"{result['others']:,} rows of the source are no messages: not judged, in no book", highlight=False
        )
    people.print(f"published in {result['path']}", highlight=False)
    # Repeats are what a pipeline is there to remove; they are no finding.
    if strict and (tally.count(Verdict.UNSURE) or tally.count(Verdict.REJECT) or result["missing_ranges"]):
        raise typer.Exit(1)


def execute(settings: Settings) -> dict[str, Any]:
    """Run the pipeline of these settings, showing progress; its figures."""
    from onefold.cli.pipeline import opened
    from onefold.spark import jobs

    with progress(people) as say:
        say("starting Spark")
        spark, source, judging = opened(settings)
        result = jobs.run(
            spark,
            source,
            judging,
            settings.publish.path,
            strategy=settings.publish.strategy,
            settings=settings.model_dump(mode="json"),
            ranges_max=settings.report.ranges_max,
            say=say,
        )
    return result.to_dict()
