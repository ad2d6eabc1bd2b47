"""``onefold report``: the page of a run, made again from what the run left."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from onefold.cli.output import AsJson, emit_json, people, replace_file

PAGE = "report.html"


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, a stream or `diff --out`, or a file from --json.")],
    out: Annotated[Path | None, typer.Option(help=f"Where the page goes; else {PAGE} there or beside it.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: AsJson = False,
) -> None:
    """Write one HTML page that shows a run: what was lost or counted twice, where, why, and what it cost.

    It needs no network, holds no script and no data but samples, and stays below 2 MB. The figures come from run.json
    (diff.json, the batches of a stream) alone; nothing is computed again, and no Spark is started.
    """
    from onefold.report.page import RunReport

    loaded = RunReport.load(run)
    path = out if out is not None else (run if run.is_dir() else run.parent) / PAGE
    lines = list(loaded.lines())  # all of the document is looked at before anything is written
    replace_file(path, loaded.html().encode())
    if json:
        emit_json(loaded.document)
    for thing in lines:
        people.print(thing, soft_wrap=isinstance(thing, Text))
    people.lines(f"report: {path.absolute()}")
    if show:
        typer.launch(str(path.absolute()))
