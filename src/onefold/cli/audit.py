"""``onefold audit``: the proof that a run published exactly what its source holds."""

import os
from contextlib import nullcontext
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from onefold.cli.output import emit_json, local_folder, people, progress
from onefold.errors import Misuse
from onefold.report import agreement
from onefold.report.text import foreign, hidden_in
from onefold.settings import Settings, load


def audit(
    run: Annotated[str, typer.Argument(help="The folder that `onefold run` left, or the pipeline's TOML file.")],
    out: Annotated[str | None, typer.Option(help="Where to write all rows that are wrong, by kind.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Compare what the source of a run holds now with what the run published, row by row and id by id.

    Names each row that is missing or surplus, each id that counts twice, each repeat without a first, and where the
    books say another number than the rows. Files of the source that have grown, shrunk, vanished or been written again
    since the run are named too, by its manifest, and rows that the reader gives are compared with a count of their own.
    Exit 1 if there is anything, 0 if all agrees. A repeat that has no first by the rule of its reason is a finding too:
    it counts nowhere.
    """
    with progress(people) as say:
        say("starting Spark")
        found = _audited(run, out, say)
    if json:
        emit_json(found)
    for line in agreement.audited(found):
        people.print(line, soft_wrap=True)
    for line in found["books"]:
        people.print(foreign(f"  {line}", agreement.ROW_CHARS_MAX), soft_wrap=True)
    for line in agreement.files_read(found["manifest"]):
        people.print(line, soft_wrap=True)
    wrong_files = found["manifest"]["changed"] or found["manifest"]["set_aside"]
    alone = found["orphans"] or found["orphans_by_rule"]
    if not found["agrees"] or alone or found["books"] or wrong_files:
        raise typer.Exit(1)


def _audited(run: str, out: str | None, say: Any) -> dict[str, Any]:
    from onefold.cli.pipeline import opened
    from onefold.spark.audits import audit_run, books, books_differ, keep_in, kinds_folder
    from onefold.spark.files import Manifest, Place, located
    from onefold.spark.ingest import open_source
    from onefold.spark.publish import MANIFEST
    from onefold.spark.signature import refuse_overlap

    settings = load(Path(run), os.environ) if run.endswith(".toml") else _settings(run)
    if settings.publish.format != "parquet":
        raise Misuse(f"{run}: published as {settings.publish.format}, only parquet can be audited", run=run)
    path = settings.publish.path if run.endswith(".toml") else run
    refuse_overlap([("the source", settings.source.path), ("the run", path)], [] if out is None else [("--out", out)])
    spark, source, judging = opened(settings)
    place = Place(spark, path)
    if out is not None:
        refuse_overlap([("the source", located(spark, source.path))], [("--out", located(spark, out))])
    # What cannot be done is refused first.
    with nullcontext() if out is None else kinds_folder(Place(spark, out)) as folder:
        tally = books(spark, place)
        now = open_source(spark, source, judging.reads)
        kept = place / MANIFEST  # of a batch run, and not of one that an older version made
        changed = []
        if kept.exists() and now.files is not None:
            changed = Manifest.from_lines(kept.read_bytes()).changed(now.files.listed(), new=True)
        say("auditing")
        messages = judging.shaped(now.rows)
        audited = audit_run(messages, place, judging)
        differ = books_differ(tally, spark, place) if audited.ids is not None else []
        counted = now.manifest.rows
        read = audited.source if messages is now.rows or counted is None else now.rows.count()
        if counted is not None and read != counted:
            differ.append(f"the files hold {counted:,} rows, the reader gave {read:,}")
        if folder is not None:
            keep_in(folder, audited)
    manifest = {**now.manifest.to_dict(), "changed": changed}
    return {**audited.to_dict(), "books": differ, "manifest": manifest, "run": place.shown}


def _folder(run: str) -> Any:
    """The folder, by Python's own means if they reach it: a Spark must not be started before its settings are known."""
    if (folder := local_folder(run)) is not None:
        return folder
    from onefold.spark.files import Place
    from onefold.spark.session import session

    return Place(session(), run)


def _settings(run: str) -> Settings:
    """By what the run was made, as its own run.json says."""
    place = _folder(run)
    if (place / "stream.json").exists():
        raise Misuse(f"{run} is the output of a stream, which does not name its source: give its TOML file", run=run)
    if not (place / "run.json").exists():
        raise Misuse(f"{run} is not a complete run: it holds no run.json", run=run)
    try:
        told = loads((place / "run.json").read_bytes())["settings"]
        if secrets := hidden_in(told):
            raise Misuse(f"{run}: run.json keeps no secrets, and so lacks {secrets[0]}: give the TOML file", run=run)
        return Settings.model_validate(told)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise Misuse(
            f"{run}: run.json does not name the run's source; `onefold.spark.audit` takes tables", run=run
        ) from error
