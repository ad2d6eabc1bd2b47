"""``onefold audit``: the proof that a run published exactly what its source holds."""

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
    run: Annotated[str, Argument(help="The folder that `onefold run` left, or the pipeline's TOML file.")],
    out: Annotated[str | None, Option(help="Where to write all rows that are wrong, by kind.")] = None,
    json: AsJson = False,
) -> None:
    """Compare what the source of a run holds now with what the run published, row by row and id by id.

    Names each row that is missing or surplus, each id that counts twice, each repeat without a first, and where the
    books and the rows differ. Files of the source that have grown, shrunk, vanished or been written again since the run
    are named too, by its manifest, and rows that the reader gives are compared with a count of their own. Exit 1 if
    there is anything, 0 if all agrees. A repeat of which no first is known (`below_floor`, `behind_highest`) is a
    finding too: it counts nowhere.
    """
    from onefold.cli.pipeline import opened
    from onefold.cli.stream import checkpoint_of
    from onefold.spark.audits import audit_run, books, books_differ, keep_in, kinds_folder
    from onefold.spark.files import Manifest, Place, located
    from onefold.spark.ingest import KAFKA, open_source
    from onefold.spark.kafka import ranges_read
    from onefold.spark.lakes import PACKAGES, open_snapshot
    from onefold.spark.publish import MANIFEST
    from onefold.spark.signature import refuse_overlap
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
        # What cannot be done is refused first.
        with nullcontext() if out is None else kinds_folder(Place(spark, out)) as folder:
            rows = open_snapshot(path, publish.format, publish.options).read(spark) if is_table else None
            sink = partial(open_sink, spark, path, format=publish.format, options=publish.options)
            tally = books(spark, output) if rows is None else sink(strategy=publish.strategy).total()
            before = output / MANIFEST  # of a batch run, and not of one that an older version made
            if source.format == KAFKA:  # what was read, not what is there by now
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
    """What is to be audited, and where it was published; `Misuse` if that cannot be."""
    from onefold.cli.pipeline import refuse_pipeline
    from onefold.spark.signature import refuse_overlap

    refuse_path(run)
    settings = load(Path(run), os.environ) if run.endswith(".toml") else _settings(run)
    publish, source = settings.publish, settings.source
    path = publish.path if run.endswith(".toml") else run
    if publish.format == "postgres":
        raise Misuse(f"{run}: published as postgres, only parquet, delta and iceberg can be audited", run=run)
    if publish.format == "parquet":
        refuse_run(path)
    elif source.format == "kafka" and settings.memory.path is not None:
        raise Misuse(f"{run}: which offsets a run with [memory] read is kept beside parquet only", run=run)
    refuse_pipeline(settings)
    folders = [("the source", source.path), *([("the run", path)] if publish.is_folder else [])]
    refuse_overlap(folders, [] if out is None else [("--out", out)])
    return settings, path


def _settings(run: str) -> Settings:
    """By what the run was made, as its own run.json says."""
    # By Python's own means if they reach the folder: a Spark must not be started before its settings are known.
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
            raise Misuse(f"{run}: run.json keeps no secrets, and so lacks {secrets[0]}: give the TOML file", run=run)
        return Settings.model_validate(settings)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise Misuse(
            f"{run}: run.json does not name the run's source; `onefold.spark.audit` takes tables", run=run
        ) from error
