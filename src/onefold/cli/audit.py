"""``onefold audit``: prove that a run published exactly what its source holds."""

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from json import loads
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError
from typer import Argument, Exit, Option

from onefold.cli.mistakes import refuse_path, refuse_run
from onefold.cli.output import AsJson, local_folder, people, progress, tell
from onefold.errors import Misuse
from onefold.report import agreement
from onefold.report.text import foreign, hidden_in
from onefold.settings import Settings, load


def audit(
    run: Annotated[str, Argument(help="The output folder of `onefold run`, or the pipeline's TOML file.")],
    out: Annotated[str | None, Option(help="A folder for all wrong rows, by kind.")] = None,
    json: AsJson = False,
) -> None:
    """Compare what the source of a run holds now with what the run published, row by row and id by id.

    Findings are: rows that are missing or surplus, ids that count twice, repeats without a first, books that differ
    from the rows, and source files that changed or vanished since the run (by its manifest). The rows from the reader
    are compared with an independent count. Exit 1 if there is a finding, else 0. A repeat whose first is unknown by
    rule (`below_floor`, `behind_highest`) is a finding too: it counts nowhere.
    """
    from onefold.cli.pipeline import opened
    from onefold.cli.stream import checkpoint_of
    from onefold.spark.audits import audit_run, books, books_differ, keep_in, kinds_folder
    from onefold.spark.files import Manifest, Place, located
    from onefold.spark.ingest import KAFKA, open_source
    from onefold.spark.kafka import ranges_read
    from onefold.spark.lakes import PACKAGES, open_snapshot
    from onefold.spark.overlap import refuse_overlap
    from onefold.spark.publish import MANIFEST
    from onefold.spark.sinks import open_sink
    from onefold.spark.sinks.parquet import BATCHES

    settings, path = _what(run, out)
    publish, is_table = settings.publish, settings.publish.format in PACKAGES
    with progress(people) as say:
        say("starting Spark")
        spark, source, judging = opened(settings)
        output = Place(spark, path)
        if out is not None:
            refuse_overlap([("the source", located(spark, source.path))], [("--out", located(spark, out))])
        # Refuse a folder that cannot be written before the long work.
        with nullcontext() if out is None else kinds_folder(Place(spark, out)) as folder:
            rows = open_snapshot(path, publish.format, publish.options).read(spark) if is_table else None
            sink = partial(open_sink, spark, path, format=publish.format, options=publish.options)
            tally = books(spark, output) if rows is None else sink(strategy=publish.strategy).total()
            before = output / MANIFEST  # only batch runs have one, and not those of older versions
            if source.format == KAFKA:  # audit the offsets that were read, not what the topic holds now
                versions = [output / BATCHES / name / MANIFEST for name in sorted((output / BATCHES).names())]
                log = b"".join(file.read_bytes() for file in (before, *versions) if file.exists())
                source = replace(source, only=ranges_read(log, Place(spark, checkpoint_of(settings))))
            now = open_source(spark, source, judging.reads)
            changed = []
            if before.exists() and now.files is not None:
                changed = Manifest.from_lines(before.read_bytes()).changed(now.files.listed(), new=True)
            say("auditing")
            messages = judging.shaped(now.rows)
            audited = audit_run(messages, output if rows is None else rows, judging)
            differ = books_differ(tally, spark, output if rows is None else rows) if audited.ids is not None else []
            is_counted = now.count is not None or now.manifest.rows is not None
            read = audited.source if messages is now.rows or not is_counted else now.rows.count()
            now = now.counted(read)
            counted = now.manifest.rows
            if counted is not None and read != counted:
                what = "the files hold" if now.files is not None else "the topic holds"
                differ.append(f"{what} {counted:,} rows, the reader gave {read:,}")
            if folder is not None:
                keep_in(folder, audited)
    manifest = {**now.manifest.to_dict(), "changed": changed}
    document = {**audited.to_dict(), "books": differ, "manifest": manifest, "run": output.shown}
    differences = (foreign(f"  {difference}", agreement.ROW_CHARS_MAX) for difference in differ)
    tell([*agreement.audited(document), *differences, *agreement.files_read(manifest)], document, json)
    if not audited.clean or differ or changed or now.manifest.aside:
        raise Exit(1)


def _what(run: str, out: str | None) -> tuple[Settings, str]:
    """The settings of the run, and where it published; `Misuse` if that cannot be audited."""
    from onefold.cli.pipeline import refuse_pipeline
    from onefold.spark.overlap import refuse_overlap

    refuse_path(run)
    settings = load(Path(run), os.environ) if run.endswith(".toml") else _settings(run)
    publish, source = settings.publish, settings.source
    path = publish.path if run.endswith(".toml") else run
    if publish.format == "postgres":
        raise Misuse(f"{run}: published as postgres, only parquet, delta and iceberg can be audited", run=run)
    if publish.format == "parquet":
        refuse_run(path)
    elif source.format == "kafka" and settings.memory.path is not None:
        raise Misuse(f"{run}: a run with [memory] keeps the offsets that it read only beside parquet", run=run)
    refuse_pipeline(settings)
    folders = [("the source", source.path), *([("the run", path)] if publish.is_folder else [])]
    refuse_overlap(folders, [] if out is None else [("--out", out)])
    return settings, path


def _settings(run: str) -> Settings:
    """The settings in the run's own run.json."""
    # Without Spark if the folder is local: Spark must not start before its settings are known.
    folder: Any = local_folder(run)
    if folder is None:
        from onefold.spark.files import Place
        from onefold.spark.session import session

        folder = Place(session(), run)
    if (folder / "stream.json").exists():
        raise Misuse(f"{run} is the output of a stream, which does not name its source: give its TOML file", run=run)
    if not (folder / "run.json").exists():
        raise Misuse(f"{run} is not a complete run: it holds no run.json", run=run)
    try:
        settings = loads((folder / "run.json").read_bytes())["settings"]
        if secrets := hidden_in(settings):
            raise Misuse(f"{run}: run.json keeps no secrets, so it lacks {secrets[0]}: give the TOML file", run=run)
        return Settings.model_validate(settings)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise Misuse(
            f"{run}: run.json does not name the run's source; `onefold.spark.audit` takes tables", run=run
        ) from error
