"""``onefold run``: a pipeline from its TOML file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from onefold.cli.output import emit_json, local_folder, people, progress, step_log
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
            help="Exit 1 if anything is unsure, rejected or missing, or a repeat has no first. What the columns cannot "
            "show is reported, but does not change the exit code.",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the figures as JSON on standard output; of a stream, one line per batch."),
    ] = False,
    version: Annotated[
        int | None,
        typer.Option(
            "--version",
            min=0,
            help="With memory.path: the version that this run publishes. A published one is shown again if its files "
            "are the same, else refused.",
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics",
            min=1,
            max=65535,
            help='With source.mode = "stream": serve /metrics for Prometheus on this port of 127.0.0.1.',
        ),
    ] = None,
) -> None:
    """Judge every message of a source, and publish firsts, repeats, unsure, rejects, gaps and the books (counts per
    verdict).

    A batch run is complete when its folder holds run.json; the next run replaces it. It ends with an audit: the output
    is read back and compared with the rows read from the source, and these with a count that did not go through the
    reader (manifest.jsonl). If they differ, the run is not complete, and the wrong rows are in audit/. Exit 1 if
    unreadable files were set aside. With memory.path a run continues from the last one: it reads the files that are
    new, and publishes them as the next version. A stream publishes each batch exactly once, and continues where it
    ended. Ctrl-C and SIGTERM let the current batch finish.
    """
    from onefold.cli.pipeline import refuse_pipeline

    settings = load(pipeline, os.environ)
    is_stream = settings.source.mode == "stream"
    if metrics is not None and not is_stream:
        raise Misuse(f'{pipeline}: --metrics needs source.mode = "stream"', metrics=metrics)
    if version is not None and settings.memory.path is None:
        raise Misuse(f"{pipeline}: --version needs memory.path", version=version)
    refuse_pipeline(settings)
    if is_stream:
        raise typer.Exit(stream(settings, strict=strict, json=json, metrics=metrics))
    found = False
    for result in execute_all(settings, version):
        found |= _show(settings, result, strict=strict, json=json)
    if found:
        raise typer.Exit(1)


def execute_all(settings: Settings, version: int | None) -> Iterator[dict[str, Any]]:
    """Run the pipeline; with a memory, first the version that was begun and not finished, then the new files."""
    while True:
        yield (result := execute(settings, version))
        if version is not None or not result.get("files_left"):
            return


def _show(settings: Settings, result: dict[str, Any], *, strict: bool, json: bool) -> bool:
    """Print the result of a run; return whether there is a finding."""
    if json:
        emit_json(result)
    if "nothing_new" in result:
        people.print(result["nothing_new"], highlight=False)
    elif "version" in result:
        people.print(f"version {result['version']}", highlight=False)
    if "tally" not in result:
        return False
    tally = Tally.from_dict(result["tally"])
    people.print(text.books(tally, settings.judge.engine))
    people.print(text.ranges(result, "; all are in gaps/ of the output"))
    people.print(text.banner(tally))
    for line in text.absent(result):
        people.print(line, soft_wrap=True)
    if result["others"]:
        others = f"{result['others']:,} rows of the source are no messages: not judged, not in the books"
        people.print(others, highlight=False)
    audited, unclear = agreement.audited(result["audit"]), text.cannot_tell(result, toml=True)
    for line in (*audited, *unclear, *agreement.files_read(result["manifest"])):
        people.print(line, soft_wrap=True)
    people.lines(f"published in {result['path']}")
    if result["report"]:
        people.lines(f"report: {result['report']}")
    # Repeats that have their first are no finding: a pipeline is there to remove them.
    unknown = tally.count(Verdict.UNSURE) or tally.count(Verdict.REJECT) or result["missing_ranges"]
    unknown = unknown or result["manifest"]["changed"]
    alone = result["audit"]["orphans"] or result["audit"]["orphans_by_rule"]
    return bool(result["manifest"]["set_aside"] or (strict and (unknown or alone)))


def execute(settings: Settings, version: int | None = None) -> dict[str, Any]:
    """Run a batch pipeline with progress, and write its page; return its figures, and where the page is."""
    from onefold.cli.pipeline import columns_in_toml, figures_of, memory_of, opened
    from onefold.spark import run as jobs
    from onefold.spark.files import Place
    from onefold.spark.overlap import refuse_overlap
    from onefold.spark.versions import NothingNew

    writes = [("publish.path", settings.publish.path)] if settings.publish.is_folder else []
    writes += [] if settings.memory.path is None else [("memory.path", settings.memory.path)]
    refuse_overlap([("source.path", settings.source.path)], writes)
    page, is_parquet = settings.report.page, settings.publish.format == "parquet"
    folder = local_folder(settings.publish.path) if is_parquet else None  # a table keeps no files of ours
    with progress(people) as say, step_log(folder, say) as begin:
        say("starting Spark")
        spark, source, engine = opened(settings)
        place = Place(spark, settings.publish.path) if is_parquet else None
        public = without_secrets(settings.model_dump(mode="json"))  # run.json is beside the rows, for all to read
        try:
            with columns_in_toml():
                result = jobs.run(
                    spark, source, engine, settings.publish.path, strategy=settings.publish.strategy, settings=public,
                    ranges_max=settings.report.ranges_max, figures=None if page == "off" else figures_of(settings),
                    say=begin, memory=memory_of(settings, version), format=settings.publish.format,
                    options=settings.publish.options,
                ).to_dict()  # fmt: skip
        except NothingNew as nothing:
            return {**_document(place, nothing.version), "version": nothing.version, "nothing_new": str(nothing)}
        report = None
        if page != "off" and place is not None:
            report = _leave_page(spark, result["path"], {**result, "settings": public})
    return {**result, "report": report}


def _document(output: Any, version: int) -> dict[str, Any]:
    """The run.json of a published version; empty if it was published to a table."""
    from onefold.spark.publish import REPORT, RUN
    from onefold.spark.sinks.parquet import version_folder

    if output is None:
        return {}
    folder = version_folder(output, version)
    report = folder / REPORT
    return {**(folder / RUN).read_json(), "report": report.shown if report.exists() else None}


def _leave_page(spark: Any, path: str, document: dict[str, Any]) -> str | None:
    """Write the page of a complete run beside its rows; on failure print a line and return None."""
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
