"""``onefold init``: a commented pipeline.toml, made from the settings' own models.

So it cannot leave out a key or show an old default.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Final

from typer import Argument, Option

from onefold.cli.mistakes import format_of, refuse_path
from onefold.cli.options import names_of, refuse
from onefold.cli.output import AsJson, local_folder, tell
from onefold.errors import Misuse
from onefold.settings import TABLES, Settings, Table

SET: Final = {"source.path": "messages", "publish.path": "out", "judge.floor": "open"}
"""What the template sets; all else is in it as a comment."""
HEAD: Final = """\
# A onefold pipeline: `onefold run` with this file reads [source], gives every message a verdict by [judge]
# and writes what comes of it to [publish]. A line of # and a key shows the default.
# The environment overrides a key: ONEFOLD_JUDGE__FLOOR=first, with two underscores."""


def template(values: Mapping[str, object] = SET) -> str:
    """The commented pipeline.toml that ``onefold init`` writes: every key with its meaning, its default or its value.

    >>> print("\\n".join(template().splitlines()[-2:]))
    # Any other Spark setting, such as { "spark.sql.session.timeZone" = "UTC" }.
    #config = {}
    """
    lines, tables = [HEAD], list(TABLES.items())
    while tables:
        table, model = tables.pop(0)
        lines += ["", *_comment(model.__doc__ or ""), f"[{table}]"]
        for key, field in model.model_fields.items():
            name = f"{table}.{key}"
            if isinstance(field.default, Table):  # the last key of its table, in which it is one
                tables.insert(0, (name, type(field.default)))
                continue
            default = "none" if field.default is None else field.default
            line = f"{key} = {json.dumps(values.get(name, default))}"
            lines += ["", *_comment(field.description or ""), line if name in values else f"#{line}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(" ".join(text.split()), width=100, break_long_words=False)]


def init(
    path: Annotated[Path, Argument(help="The file to write.")] = Path("pipeline.toml"),
    source: Annotated[str | None, Option(help="A file or folder to read: sets its path and format.")] = None,
    id: Annotated[str | None, Option(help="Columns of the id, with commas: sets the engine of ids.")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite the file if it is there.")] = False,
    schema: Annotated[bool, Option("--schema", help="Write no file: print the JSON Schema of all keys.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline.toml with every key, its meaning and its default."""
    if schema:
        refuse({"--source": source, "--id": id, "--force": force, "--json": as_json}, "has no effect with --schema")
        print(json.dumps(Settings.model_json_schema(), indent=2))
        return
    values: dict[str, object] = dict(SET)
    if source is not None:
        refuse_path(source)
        local = local_folder(source) is None or Path(source).is_absolute() or path.parent == Path()
        values |= {"source.path": source if local else str(Path(source).absolute()), "source.format": format_of(source)}
    if id is not None:
        del values["judge.floor"]
        values |= {"judge.engine": "ids", "judge.id": names_of(id)}
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template(values))
    except FileExistsError as error:
        raise Misuse(f"{path}: exists already; --force overwrites it", path=str(path)) from error
    first = "set source.path in it, then " if source is None else ""
    tell(f"wrote {path}: {first}`onefold run {path}`", {"path": str(path)}, as_json)
