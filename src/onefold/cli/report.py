"""``onefold report``: make the page of a run again from its documents."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from onefold.cli.output import AsJson, emit_json, local_folder, people, replace_file
from onefold.errors import Misuse
from onefold.stores.addresses import is_far

PAGE = "report.html"


def report(
    run: Annotated[
        str, typer.Argument(help="Folder or URL of a run, stream or `diff --out`; or a file with the output of --json.")
    ],
    out: Annotated[
        str | None, typer.Option(help=f"File or folder for the page. Default: {PAGE} in the run, or beside the file.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: AsJson = False,
) -> None:
    """Write one HTML page that shows a run: what was lost or counted twice, where, why, and at what cost.

    The page needs no network and no script, holds no data but samples, and stays below 2 MB. All figures come from
    run.json (diff.json, the batches of a stream); nothing is computed again, and Spark is not needed.
    """
    from onefold.report.page import RunReport

    with _documents_of(run) as folder:
        loaded = RunReport.load(folder)
    if is_far(run):
        loaded.document["path"] = run
    beside = run.rstrip("/") if is_far(run) or folder.is_dir() else str(folder.parent)
    path = out if out is not None else f"{beside}/{PAGE}"
    lines = list(loaded.lines())  # checks the whole document before anything is written
    if (file := local_folder(path)) is not None:
        file = file / PAGE if file.is_dir() else file
        write = Path.write_bytes if file.exists() and not file.is_file() else replace_file  # such as /dev/stdout
        write(file, loaded.html().encode())
        path = str(file.absolute())
    else:
        from onefold.spark.objects import file_system

        store, name = file_system(path)
        with store.open_output_stream(name) as stream:
            stream.write(loaded.html().encode())
    if json:
        emit_json(loaded.document)
    for thing in lines:
        people.print(thing, soft_wrap=isinstance(thing, Text))
    people.lines(f"report: {path}")
    if show:
        typer.launch(path)


@contextmanager
def _documents_of(run: str) -> Iterator[Path]:
    """The folder or file of a run; for a run in an object store, a local copy of its documents, without rows."""
    local = local_folder(run)
    if local is not None:
        yield local
        return
    from onefold.report.documents import BATCHES, DIFF, FIGURES, NUMBERED, PROGRESS, RUN, STREAM, TALLY
    from onefold.spark.objects import files_below, opened

    root = f"{run.rstrip('/')}/"
    wanted = re.compile(rf"{RUN}|{DIFF}|{STREAM}|{FIGURES}|{PROGRESS}|{BATCHES}/{NUMBERED}/({TALLY}|{RUN})")
    files = {file.url[len(root) :]: file.url for file in files_below(run)}
    names = [name for name in files if wanted.fullmatch(name)]
    if not names:
        raise Misuse(f"{run} holds no {RUN}, {STREAM} or {DIFF}: it is not a complete run", path=run)
    with tempfile.TemporaryDirectory(prefix="onefold-report-") as folder:
        for name in names:
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with opened(files[name]) as file:
                copy.write_bytes(file.read())
        yield Path(folder)
