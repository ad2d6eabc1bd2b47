"""``onefold init``: a commented pipeline.toml to start from."""

from pathlib import Path
from typing import Annotated

import typer

from onefold.cli.output import AsJson, emit_json, people
from onefold.cli.template import template
from onefold.errors import Misuse


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("pipeline.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline.toml with every key, its meaning and its default."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template())
    except FileExistsError as error:
        raise Misuse(f"{path}: exists already; --force overwrites it", path=str(path)) from error
    people.print(f"wrote {path}: set source.path in it, then `onefold run {path}`", markup=False, soft_wrap=True)
    if as_json:
        emit_json({"path": str(path)})
