"""``onefold run``: a pipeline from its TOML file."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from onefold.cli.output import emit_json, local_folder, people, progress, steps_told
from onefold.cli.stream import stream
from onefold.errors import Misuse, OnefoldError
from onefold.report import agreement, text
from onefold.report.text import without_secrets
from onefold.settings import Settings, load
from onefold.tally import Tally
from onefold.verdict import Verdict


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline's TOML file; `onefold init` writes one.")],
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit 1 if anything was unsure, rejected or missing, or a repeat has no first, be it by the rule of "
            "its reason. What cannot be told at all is said, and changes no exit code.",
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON on standard output; of a stream, a line a batch.")
    ] = False,
    metrics: Annotated[
        int | None, typer.Option("--metrics", min=1, max=65535, help="Of a stream: a port for Prometheus, on loopback.")
    ] = None,
) -> None:
    """Judge every message of a source, and publish firsts, repeats, unsure, rejects, gaps and the books.

    A batch run is complete when its folder holds run.json; running again replaces it. It ends with an audit: what can
    now be read there is compared with what was read from the source, and that with a count of its rows that did not go
    through the reader (manifest.jsonl); if they do not agree it is not complete, the rows that are wrong are named, and
    kept in audit/. Exit 1 if files could not be read and were set aside. A stream publishes each of its batches once;
    starting it again goes on where it ended. Ctrl-C and SIGTERM let the batch in hand finish.
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
    for line in text.absent(result):
        people.print(line, soft_wrap=True)
    if result["others"]:
        others = f"{result['others']:,} rows of the source are no messages: not judged, in no book"
        people.print(others, highlight=False)
    audited, untold = agreement.audited(result["audit"]), text.cannot_tell(result, toml=True)
    for line in (*audited, *untold, *agreement.files_read(result["manifest"])):
        people.print(line, soft_wrap=True)
    people.print(f"published in {result['path']}", highlight=False)
    if result["report"]:
        people.print(f"report: {result['report']}", markup=False, highlight=False, soft_wrap=True)
    # Repeats are what a pipeline is there to remove; they are no finding, if each has its first.
    unknown = tally.count(Verdict.UNSURE) or tally.count(Verdict.REJECT) or result["missing_ranges"]
    unknown = unknown or result["manifest"]["changed"]
    alone = result["audit"]["orphans"] or result["audit"]["orphans_by_rule"]
    if result["manifest"]["set_aside"] or (strict and (unknown or alone)):
        raise typer.Exit(1)


def execute(settings: Settings) -> dict[str, Any]:
    """Run the pipeline of these settings, showing progress, and leave its page; its figures, and where the page is."""
    from onefold.cli.pipeline import columns_in_toml, opened
    from onefold.spark import run as jobs
    from onefold.spark.figures import Figures
    from onefold.spark.signature import refuse_overlap

    refuse_overlap([("source.path", settings.source.path)], [("publish.path", settings.publish.path)])
    page = settings.report.page
    samples = {} if page == "samples" else {"samples_max": 0}
    with progress(people) as say, steps_told(local_folder(settings.publish.path), say) as begin:
        say("starting Spark")
        spark, source, engine = opened(settings)
        public = without_secrets(settings.model_dump(mode="json"))  # run.json lies beside the rows, for all readers
        with columns_in_toml():
            result = jobs.run(
                spark, source, engine, settings.publish.path, strategy=settings.publish.strategy, settings=public,
                ranges_max=settings.report.ranges_max, figures=None if page == "off" else Figures(**samples), say=begin,
            ).to_dict()  # fmt: skip
        report = None if page == "off" else _leave_page(spark, settings.publish.path, {**result, "settings": public})
    return {**result, "report": report}


def _leave_page(spark: Any, path: str, document: dict[str, Any]) -> str | None:
    """Write the page of a complete run beside its rows, wherever they are; None, and a line, if that cannot be."""
    from onefold.report.page import RunReport
    from onefold.spark.files import Place
    from onefold.spark.publish import REPORT

    file = Place(spark, path) / REPORT
    try:
        file.write_bytes(RunReport(document).html().encode())
    except (OSError, OnefoldError) as error:  # the run is complete, and its page can be made again
        people.print(f"no page: {error}; `onefold report` makes one", style="yellow", markup=False, soft_wrap=True)
        return None
    return file.shown
