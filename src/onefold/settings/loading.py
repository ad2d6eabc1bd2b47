"""Reading the file, letting the environment override it, and telling what is wrong: one line a problem."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from onefold.errors import Misuse
from onefold.settings.tables import TABLES, Only, Publish, Settings, Source, Table

PREFIX: Final = "ONEFOLD_"
PROBLEMS_MAX: Final = 5
"""How many problems are told at once: more than a person mends before the next try."""
VALUE_CHARS_MAX: Final = 80
"""How much of a wrong value is shown: one that is longer is known by its beginning."""


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read the file, let the environment override it, and check all; raises `Misuse` with one line per problem."""
    data: dict[str, Any] = {"source": {}, "publish": {}} | _read(path)  # so that what is missing is their path
    origins, problems = _override(data, environ)
    try:
        settings = Settings.model_validate(data)
        problems += [
            f"{origins.get(where) or f'{path}: ' + '.'.join(where)}: {text}" for where, text in misplaced(settings)
        ]
    except ValidationError as error:
        problems += [_problem(detail, path, origins) for detail in error.errors(include_url=False)]
    if problems:
        rest = len(problems) - PROBLEMS_MAX
        told = problems[:PROBLEMS_MAX] + ([f"{path}: and {rest} more"] if rest > 0 else [])
        raise Misuse("\n".join(told), path=str(path), problems=tuple(problems))
    folder = path.parent.absolute()
    return settings.model_copy(update={t: _placed(getattr(settings, t), folder) for t in ("source", "publish")})


def misplaced(settings: Settings) -> Iterator[tuple[tuple[str, str], str]]:
    """The keys that say something and belong to another kind of pipeline, each with what it would need."""
    kind = {"mode": settings.source.mode, "engine": settings.judge.engine, "shape": settings.judge.shape}
    names = {"mode": "source.mode", "engine": "judge.engine", "shape": "judge.shape"}
    for table, model in TABLES.items():
        for key, field in model.model_fields.items():
            value = getattr(getattr(settings, table), key)
            for only in (mark for mark in field.metadata if isinstance(mark, Only) and value != field.default):
                for part, wanted in asdict(only).items():
                    some = (wanted,) if isinstance(wanted, str) else wanted or (kind[part],)
                    if kind[part] not in some:
                        either = " or ".join(f'"{word}"' for word in some)
                        yield (table, key), f"is {_shown(value)}, which needs {names[part]} = {either}"
                        break


def _placed(table: Source | Publish, folder: Path) -> Table:
    paths = {key: value for key in ("path", "checkpoint") if (value := getattr(table, key, "auto")) != "auto"}
    local = {key: value for key, value in paths.items() if "://" not in value and not value.startswith("file:")}
    return table.model_copy(update={key: str(folder / value) for key, value in local.items()})


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Misuse(f"{path}: no such file; `onefold init` writes one to start from", path=str(path)) from error
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror or error}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise Misuse(f"{path}: not TOML: not UTF-8 at byte {error.start}", path=str(path)) from error
    except ValueError as error:  # its text ends in line and column, unless it is about a number of 5,000 digits
        raise Misuse(f"{path}: not TOML: {error}", path=str(path)) from error
    except RecursionError as error:
        raise Misuse(f"{path}: not TOML: it is nested too deep", path=str(path)) from error


def _override(data: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Put what the environment says into the data; returns which variable said what, and what made no sense."""
    origins: dict[tuple[str, ...], str] = {}
    problems = []
    for variable in sorted(environ):
        table, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        # ONEFOLD_DEBUG and its like are not ours; ONEFOLD_JUDGE_FLOOR is, with a slip.
        if not variable.startswith(PREFIX) or not (key or table.split("_")[0] in TABLES):
            continue
        if table not in TABLES or key not in TABLES[table].model_fields:
            known = [f"{t}__{k}".upper() for t, model in TABLES.items() for k in model.model_fields]
            near = get_close_matches(variable.removeprefix(PREFIX), known, n=1)
            problems.append(f"{variable}: unknown setting" + (f", did you mean {PREFIX}{near[0]}?" if near else ""))
        elif isinstance(data.setdefault(table, {}), dict):
            data[table] = data[table] | {key: _literal(environ[variable], TABLES[table].model_fields[key].annotation)}
            origins[table, key] = variable
    return origins, problems


def _literal(text: str, annotation: Any) -> Any:
    """The text as a TOML value where the key takes numbers, lists or tables; else as it stands, quoted or not."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    takes_more = {int, tuple, dict} & {annotation, get_origin(annotation), *get_args(annotation)}
    return read["value"] if len(read) == 1 and (takes_more or isinstance(read["value"], str)) else text


def _problem(detail: ErrorDetails, path: Path, origins: Mapping[tuple[str, ...], str]) -> str:
    where = tuple(str(part) for part in detail["loc"])
    name = origins.get(where[:2]) or f"{path}: {'.'.join(where)}"
    if detail["type"] == "missing":
        return f"{name}: is missing"
    if detail["type"] == "extra_forbidden":
        return f"{name}: {_unknown(where)}"
    return f"{name}: is {_shown(detail['input'])}, {_wanted(detail)}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."


def _unknown(where: tuple[str, ...]) -> str:
    """What to say of a key or table that nobody knows: the nearest one, the same key elsewhere, or all there are."""
    *table, key = where
    kind = "key" if table else "table"
    known = list(TABLES[table[0]].model_fields if table else TABLES)
    near = get_close_matches(key, known, n=1) or [f"{t}.{key}" for t, m in TABLES.items() if key in m.model_fields]
    return f"unknown {kind}, " + (f'did you mean "{near[0]}"?' if near else f"the {kind}s are {', '.join(known)}")


def _wanted(detail: ErrorDetails) -> str:
    theirs = detail["msg"].replace("Input should be ", "must be ").replace("'", '"')
    return OUR_WORDS.get(detail["type"], theirs)


OUR_WORDS: Final = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "tuple_type": "must be a list",
    "string_pattern_mismatch": 'must be "auto" or a size such as "512m" or "4g"',  # only memory has a pattern
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
"""Where pydantic's own words would not help a writer of TOML."""
