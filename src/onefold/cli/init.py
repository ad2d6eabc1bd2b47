"""``onefold init``: a commented pipeline.toml, made from the models of the settings, so it is always complete."""

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
from onefold.settings import TABLES, Only, Settings, Table

SET: Final = {"source.path": "messages", "publish.path": "out", "judge.floor": "open"}
"""What the template sets; all other keys are comments."""
HEAD: Final = """\
# A onefold pipeline: `onefold run` reads [source], gives every message a verdict by the rules in [judge],
# and writes the outcome to [publish]. A commented key shows its default.
# Environment variables override keys: ONEFOLD_JUDGE__FLOOR=first, with two underscores."""


def template(values: Mapping[str, object] = SET) -> str:
    """The commented pipeline.toml that ``onefold init`` writes: every key with its meaning, its default or its value.

    If ``values`` name an engine, keys of other engines are left out.

    >>> print("\\n".join(template().splitlines()[-2:]))
    # Any other Spark setting, such as { "spark.sql.session.timeZone" = "UTC" }.
    #config = {}
    """
    lines, engine, tables = [HEAD], str(values.get("judge.engine", "")), list(TABLES.items())
    while tables:
        table, model = tables.pop(0)
        lines += ["", *_comment(model.__doc__ or ""), f"[{table}]"]
        for key, field in model.model_fields.items():
            name = f"{table}.{key}"
            if isinstance(field.default, Table):  # the last key of its table, and a table itself
                tables.insert(0, (name, type(field.default)))
                continue
            if engine and any(isinstance(mark, Only) and not mark.suits(engine) for mark in field.metadata):
                continue
            default = "none" if field.default is None else field.default
            line = f"{key} = {_toml(values.get(name, default))}"
            lines += ["", *_comment(field.description or ""), line if name in values else f"#{line}"]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """JSON is TOML too, but for the two halves of a character beyond 16 bits, and a raw DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(" ".join(text.split()), width=100, break_long_words=False)]


def init(
    path: Annotated[Path, Argument(help="The file to write.")] = Path("pipeline.toml"),
    source: Annotated[str | None, Option(help="The file or folder to read; its format is detected.")] = None,
    id: Annotated[str | None, Option(metavar="COLUMN,...", help="The id (engine ids).")] = None,
    key: Annotated[
        str | None, Option(metavar="COLUMN,...", help="The source, such as a device; needs --sequence or --number.")
    ] = None,
    sequence: Annotated[
        str | None, Option(metavar="COLUMN", help="The running number of the source (engine producers).")
    ] = None,
    number: Annotated[
        str | None, Option(metavar="COLUMN", help="The number of a message, such as its time (engine chains).")
    ] = None,
    previous: Annotated[
        str | None, Option(metavar="COLUMN", help="With --number: the number of the previous message.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
    schema: Annotated[bool, Option("--schema", help="Print the JSON Schema of all keys, and write no file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline.toml with every key, its meaning and its default.

    Name columns as for `onefold check`; the file then holds only the keys of that engine.
    """
    if schema:
        columns = {"--id": id, "--key": key, "--sequence": sequence, "--number": number, "--previous": previous}
        refuse({"--source": source, **columns, "--force": force, "--json": as_json}, "has no effect with --schema")
        print(json.dumps(Settings.model_json_schema(), indent=2))
        return
    values: dict[str, object] = dict(SET)
    if source is not None:
        refuse_path(source)
        local = local_folder(source)
        place = source if local is None or path.parent == Path() else str(local.absolute())
        values |= {"source.path": place, "source.format": format_of(source)}
    if judged := _judge(id, key, sequence, number, previous):
        del values["judge.floor"]
        values |= {f"judge.{name}": value for name, value in judged.items()}
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template(values))
    except FileExistsError as error:
        raise Misuse(f"{path}: exists already; --force overwrites it", path=str(path)) from error
    first = "set source.path in it, then " if source is None else ""
    tell(f"wrote {path}: {first}`onefold run {path}`", {"path": str(path)}, as_json)


def _judge(
    id: str | None, key: str | None, sequence: str | None, number: str | None, previous: str | None
) -> dict[str, object]:
    """The keys of [judge] for these columns."""
    if id is not None:
        others = {"--key": key, "--sequence": sequence, "--number": number, "--previous": previous}
        refuse(others, "cannot be combined with --id")
        return {"engine": "ids", "id": names_of(id)}
    if number is not None:
        columns = {"timestamp": number, "sequence": sequence, "previous_timestamp": previous}
        named = {"key": names_of(key)} if key is not None else {}
        return {"engine": "chains", **named, **{role: name for role, name in columns.items() if name}, "floor": "open"}
    refuse({"--previous": previous}, "needs --number")
    if key is None and sequence is None:
        return {}
    if key is None or sequence is None:
        raise Misuse("--key goes with --sequence (a running number per source) or --number (chains)")
    return {"engine": "producers", "producer": names_of(key), "sequence": sequence}
