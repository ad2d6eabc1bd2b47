"""One TOML file -> frozen, validated settings; every problem is one line that names file, key and value.

    [source] what to read   [judge] how   [publish] where to   [report] what to show   [spark] with which means

A setting is never ignored: a key or table that is not known is refused, with the nearest known one. Values are not bent
into shape either: the text "5" is no number. The environment overrides the file: ``ONEFOLD_JUDGE__FLOOR=open`` is
``judge.floor = "open"``, with two underscores between table and key.

The docstrings below the fields are also the comments of the file that ``onefold init`` writes. Nothing here imports
Spark.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, Strict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from onefold.errors import Misuse

PREFIX: Final = "ONEFOLD_"
PROBLEMS_MAX: Final = 5
"""How many problems are told at once: more than a person mends before the next try."""
VALUE_CHARS_MAX: Final = 80
"""How much of a wrong value is shown: one that is longer is known by its beginning."""


def _whole_or(*words: str, least: int) -> PlainValidator:
    # One validator instead of a union: a union would report one problem per member.
    def check(value: object) -> object:
        if value in words or (type(value) is int and value >= least):
            return value
        either = ", ".join(json.dumps(word) for word in words)
        raise PydanticCustomError("whole_or", f"must be {either} or a whole number of at least {least}")

    return PlainValidator(check)


def _texts(value: object) -> object:
    """Values as Spark spells them; dotted keys, which TOML reads as tables in tables, joined again."""
    return dict(_flat(value, "")) if isinstance(value, dict) else value


def _flat(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value) if isinstance(value, bool | int | float) else value


Name: TypeAlias = Annotated[str, Field(min_length=1)]
MaybeName: TypeAlias = Annotated[Name | None, BeforeValidator(lambda value: None if value == "none" else value)]
Names: TypeAlias = Annotated[tuple[Name, ...], Strict(False), Field(min_length=1)]  # TOML has lists only
Texts: TypeAlias = Annotated[dict[str, str], BeforeValidator(_texts)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Source(_Table):
    """Where the messages are."""

    path: Name
    """A file, a folder or a URL. A relative path starts at the folder of this file."""
    format: Name = "parquet"
    """Any format that Spark can read: "parquet", "json", "csv", "orc", ..."""
    options: Texts = {}
    """Options of Spark's reader for that format, such as { header = true } for CSV."""
    mode: Literal["batch", "stream"] = "batch"
    """"batch": what is there, once. "stream": what is there and what comes, in micro-batches, each published exactly
    once; a start goes on where the last one ended."""
    trigger: Name = "available"
    """Of a stream. "available": all that is there now, then stop. Else how often a batch begins, such as
    "10 seconds"."""


class Judge(_Table):
    """How a message is recognised, and what is done when that cannot be known."""

    engine: Literal["chains"] = "chains"
    """The rules. "chains": each message has a number and names the one before it; what was seen is remembered as the
    gaps between."""
    key: Names = ("stream", "partition", "publisher", "chain")
    """The columns that together name the chain of a message."""
    timestamp: Name = "timestamp"
    """The column with the first half of a message's number: whole milliseconds."""
    sequence: MaybeName = "sequence"
    """The column with the second half, which counts messages of the same millisecond. "none": there is no such column,
    every sequence is 0."""
    previous_timestamp: MaybeName = "previous_timestamp"
    """The column with the timestamp of the message before. "none": no message names one; then each is only compared
    with the newest of its chain, and no gap can be found."""
    previous_sequence: MaybeName = "previous_sequence"
    """The column with the sequence of the message before. "none": it is always 0."""
    arrival: MaybeName = "arrival"
    """The column that says when a row came in, in milliseconds or as a timestamp: the order of judgement. "none": rows
    are judged in the order of their numbers."""
    floor: Literal["first", "open"] = "first"
    """What a number below the first one that arrived in its chain is. "first", the default: a repeat, right where an
    earlier run counted what lies below. "open": new, while unseen, right for stored data: nothing says that it was
    counted before, and to call it a repeat could lose it."""
    gap_count_max: Annotated[int, Field(ge=1)] = 10_000
    """How many gaps of a chain are remembered. Above it the oldest is forgotten, and a message from there is UNSURE."""
    jump_max_ms: Annotated[int | Literal["auto", "off"], _whole_or("auto", "off", least=0)] = "auto"
    """How far ahead of its arrival a timestamp may be, in milliseconds; what is further is rejected, so that one
    poisoned number cannot mute a chain. "auto": 900000 (a quarter of an hour) if there is an arrival column. "off": no
    limit."""
    idle_ms: Annotated[int | Literal["off"], _whole_or("off", least=1)] = "off"
    """Of a stream: a chain not heard from for so long gives up its gaps; what lies there is UNSURE from then on."""
    state_rows_max: Annotated[int | Literal["off"], _whole_or("off", least=1)] = "off"
    """Of a stream: how many chains a bucket of the state remembers; beyond, messages of new chains are UNSURE."""
    order_wait_ms: Annotated[int | Literal["off"], _whole_or("off", least=0)] = "off"
    """Of a stream: hold messages back until what is missing before them arrives, at most so long; then what is missing
    is given up, and told in the gaps. "off": messages come out as they come."""

    def columns(self) -> dict[str, Any]:
        """The arguments of `onefold.spark.ChainColumns`, which this file must not import: it would bring in Spark.

        >>> Judge(key=["device"], arrival="none").columns()["arrival"] is None
        True
        """
        roles = ("key", "timestamp", "sequence", "previous_timestamp", "previous_sequence", "arrival")
        return {role: getattr(self, role) for role in roles}


class Publish(_Table):
    """Where the outcome goes."""

    path: Name
    """A folder or a URL; it gets firsts, repeats, unsure, rejects, gaps and the books. A relative path starts at the
    folder of this file."""
    strategy: Literal["drop", "mark", "none"] = "drop"
    """What happens to a message that is not a FIRST. "drop": it is kept apart. "mark": it stays, with its verdict.
    "none": it stays, unmarked."""
    format: Literal["parquet", "delta", "postgres"] = "parquet"
    """Of a stream: "parquet" is folders of files, "delta" a Delta table at the path, "postgres" a table at a URL like
    postgresql://user@host/database#schema.table. A batch run writes parquet."""
    checkpoint: Name = "auto"
    """Of a stream: where Spark keeps how far it has come. It belongs to the output: keep or remove both. "auto": the
    path with ".checkpoint" after it."""


class Report(_Table):
    """What is shown at the end."""

    ranges_max: Annotated[int, Field(ge=0)] = 20
    """How many of the missing ranges are shown; the output always has all of them."""


class Spark(_Table):
    """The means. Only for a session that onefold starts; one that is running is used as it is."""

    master: Name = "local[*]"
    """Where Spark runs: "local[*]" is this machine with all its cores."""
    partitions: Annotated[int | Literal["auto"], _whole_or("auto", least=1)] = "auto"
    """How many tasks judge. "auto": by the size of the input."""
    buckets: Annotated[int, Field(ge=1, le=4096)] = 32
    """Into how many parts the state of a stream is split; more than its tasks. A checkpoint keeps its number."""
    memory: Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]*[kmgtKMGT])$")] = "auto"
    """Memory of the Java side, such as "4g". "auto": by the memory of the machine."""
    config: Texts = {}
    """Any other Spark setting, such as { "spark.sql.session.timeZone" = "UTC" }."""


class Settings(_Table):
    """A pipeline, as its TOML file says it.

    >>> settings = Settings.model_validate({"source": {"path": "in"}, "publish": {"path": "out"}})
    >>> settings.judge.floor, settings.spark.partitions
    ('first', 'auto')
    """

    source: Source
    judge: Judge = Judge()
    publish: Publish
    report: Report = Report()
    spark: Spark = Spark()


TABLES: Final[Mapping[str, type[_Table]]] = {
    name: field.annotation for name, field in Settings.model_fields.items() if isinstance(field.annotation, type)
}


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read the file, let the environment override it, and check all; raises `Misuse` with one line per problem."""
    data: dict[str, Any] = {"source": {}, "publish": {}} | _read(path)  # so that what is missing is their path
    origins, problems = _override(data, environ)
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        problems += [_problem(detail, path, origins) for detail in error.errors(include_url=False)]
    if problems:
        rest = len(problems) - PROBLEMS_MAX
        told = problems[:PROBLEMS_MAX] + ([f"{path}: and {rest} more"] if rest > 0 else [])
        raise Misuse("\n".join(told), path=str(path), problems=tuple(problems))
    folder = path.parent.absolute()
    return settings.model_copy(update={t: _placed(getattr(settings, t), folder) for t in ("source", "publish")})


def _placed(table: Source | Publish, folder: Path) -> _Table:
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
    except tomllib.TOMLDecodeError as error:
        raise Misuse(f"{path}: not TOML: {error}", path=str(path)) from error  # its text ends in line and column


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
    value = json.dumps(detail["input"], default=str, ensure_ascii=False)
    value = value if len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 3] + "..."
    return f"{name}: is {value}, {_wanted(detail)}"


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
