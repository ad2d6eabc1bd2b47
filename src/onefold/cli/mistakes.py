"""Mistakes that are found without Spark, whose start takes longer than to tell them: paths, formats, columns, types.

Files of this machine are looked at by pyarrow, as far as that is quick; of all others, and of more than that, Spark
itself finds what is wrong. Columns are checked by the very rules that a DataFrame is checked by.
"""

import csv
import io
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onefold.cli.output import local_folder
from onefold.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from onefold.spark.engine import Named

_FORMATS: Final = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".orc": "orc", ".parquet": "parquet",
}  # fmt: skip
_PACKED: Final = (".gz", ".bz2", ".zst")
_KNOWN: Final = ("parquet", "json", "jsonl", "ndjson", "csv", "orc", "text", "avro", "delta", "iceberg", "onefold-log")
_OPTIONS: Final = {"parquet": set[str](), "csv": {"header", "sep", "delimiter"}, "json": set[str]()}
"""Formats that are looked at, and the options of text that are understood."""
UNKNOWN: Final = 20, 0
"""The decimal that stands for a type of Parquet that only Spark knows: it is taken for an id, a number and a time."""
PEEK_BYTES_MAX: Final = 64 << 20
PEEK_FILES_MAX: Final = 1_000
PEEK_ROWS: Final = 1_000
"""How many rows are looked at before a text column is believed to hold numbers or times."""
_MOMENT: Final = re.compile(r"\s*([+-]?[0-9]+|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)\s*")
"""Whatever may be a whole number or a time; what it is exactly, Spark reads."""
_TIMES: Final = ("timestamp", "arrival", "order", "time", "sequence")


class Peek(NamedTuple):
    """What can be seen of a table without Spark; in the place of a DataFrame, where columns are checked."""

    schema: "StructType"
    texts: Mapping[str, Sequence[str]]
    """The first values of columns that are text."""
    complete: bool
    """Whether all columns are known."""

    @property
    def columns(self) -> list[str]:
        return self.schema.names


def corrected(words: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """The command with what was wrong in it put right; None if nobody knows how.

    >>> corrected(["check", "a b", "--id", "shop,ordr"], {"column": "ordr", "role": "id", "right": "order"})
    "onefold check 'a b' --id shop,order"
    >>> corrected(["check", "x"], {"column": "ts", "role": "arrival", "required": False})
    'onefold check x --arrival none'
    """
    role, right = values.get("role"), values.get("right")
    wrong = values.get("column") if role is not None else values.get("wrong")
    if role is not None and right is None:
        right = "COLUMN" if values.get("required") else "none"
    if wrong is None or right is None:
        return None
    line, is_right = list(words), False
    for i, word in enumerate(words):
        option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
        parts = value.split(",")
        if wrong in (word, *parts) and (role is None or sign or (i and words[i - 1].startswith("--"))):
            line[i], is_right = option + sign + ",".join(right if part == wrong else part for part in parts), True
            line[i] = right if word == wrong else line[i]
    if not is_right and role is None:
        return None
    return shlex.join(["onefold", *line, *([] if is_right else [f"--{str(role).replace('_', '-')}", right])])


def format_of(path: str) -> str:
    """By the ending of the file, or of the first file in the folder that has a known one; a topic has its own file."""
    folder = Path(path)
    if (folder / "topic.json").is_file():
        return "onefold-log"
    files = _visible(folder) if folder.is_dir() else iter([folder])
    endings = (Path(file.stem).suffix if file.suffix in _PACKED else file.suffix for file in files)
    return next((_FORMATS[ending] for ending in endings if ending in _FORMATS), "parquet")


def _visible(folder: Path) -> Iterator[Path]:
    """The files in a folder. As for Spark, what begins with a dot or an underscore is not there."""
    for file in sorted(folder.rglob("*")):
        if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts) and file.is_file():
            yield file


def refuse_path(path: str, what: str = "") -> Path | None:
    """Where a path of this machine leads, else `Misuse` that names the nearest one; None: it is elsewhere, or several.

    ``what``: the setting that names it.
    """
    if not path or any(sign in path for sign in "*?[{"):
        return None
    place = local_folder(path)
    if place is None or place.exists():
        return place
    names = [each.name for each in place.parent.iterdir()] if place.parent.is_dir() else []
    near = next((str(Path(path).with_name(name)) for name in get_close_matches(place.name, names, n=1)), None)
    hint = "" if near is None else f", did you mean {near}?"
    raise Misuse(f"{what}{': ' if what else ''}there is nothing at {path}{hint}", path=path, wrong=path, right=near)


def refuse_mistakes(
    path: str, kind: str, columns: "Named", options: Mapping[str, str] | None = None, what: str = ""
) -> Peek | None:
    """Refuse a path, a format or a column that cannot be, as far as files of this machine tell; what was seen of it."""
    place = refuse_path(path, what)
    if kind not in _KNOWN and (near := get_close_matches(kind, _KNOWN, n=1, cutoff=0.75)):
        raise Misuse(f"the format is {kind!r}, did you mean {near[0]!r}?", wrong=kind, right=near[0])
    names = [name for _, name in columns.named]
    table = None if place is None else peek(place, kind, names, options)
    if place is None or table is None:
        return None
    try:
        _check(table, columns)
    except Misuse:
        if table.complete:
            raise
        table = peek(place, kind, names, options, rows_max=None)  # a column may begin further down
        if table is not None and table.complete:
            _check(table, columns)
    return table


def _check(table: Peek, columns: "Named") -> None:
    from onefold.spark.columns import no_number

    columns.check(table)
    for role, name in columns.named:
        values = table.texts.get(name, ()) if role in _TIMES else ()
        if values and not any(_MOMENT.fullmatch(value) for value in values):
            raise no_number(name, role, values[0])


def refuse_run(path: str) -> Path | None:
    """The folder of a complete run, or of a stream; None: it is elsewhere."""
    folder = refuse_path(path)
    if folder is not None and not any((folder / name).exists() for name in ("run.json", "stream.json")):
        raise Misuse(f"{path} is not a complete run: it holds no run.json or stream.json", path=path)
    return folder


def peek(
    path: Path, kind: str, names: Collection[str], options: Mapping[str, str] | None = None,
    rows_max: int | None = PEEK_ROWS,
) -> Peek | None:  # fmt: skip
    """The columns of a table, those of JSON by so many of its lines; None if they are not to be had quickly.

    ``names``: the columns that are asked for, as they were spelled.
    """
    import pyarrow as pa

    kind, own = "json" if kind in ("jsonl", "ndjson") else kind, {n.lower(): v for n, v in (options or {}).items()}
    if kind not in _OPTIONS or (kind != "parquet" and not own.keys() <= _OPTIONS[kind]):
        return None
    files = [path] if path.is_file() else list(islice(_visible(path), PEEK_FILES_MAX + 1))
    if not 0 < len(files) <= PEEK_FILES_MAX:
        return None
    try:
        if kind == "parquet":
            table: Peek | None = _parquet(files, names)
        else:
            table = _csv(files, own) if kind == "csv" else _json(files, names, rows_max)
    except (OSError, ValueError, pa.ArrowException, csv.Error):  # Spark says what is wrong with the file
        return None
    return None if table is None else _with_folders(table, path, files)


def _with_folders(table: Peek, path: Path, files: Sequence[Path]) -> Peek:
    from pyspark.sql.types import StringType, StructField, StructType

    parts = (part.partition("=") for file in files for part in file.relative_to(path).parts[:-1])
    folders = {name: StructField(name, StringType()) for name, sign, _ in parts if sign}
    names = {name.lower() for name in folders}
    rest = [field for field in table.schema if field.name.lower() not in names]
    return table._replace(schema=StructType([*rest, *folders.values()]))


def _parquet(files: Sequence[Path], names: Collection[str]) -> Peek:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import DecimalType, StructField, StructType

    fields: dict[str, Any] = {}
    for file in files:
        for field in pq.read_schema(file):
            fields.setdefault(field.name, field.type)
    columns = []
    for name, kind in fields.items():
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        try:
            columns.append(StructField(name, from_arrow_type(kind)))
        except Exception:  # whatever it says of a type that it does not know: Spark knows
            columns.append(StructField(name, DecimalType(*UNKNOWN)))
    texts = [name for name in names if name in fields and pa.types.is_string(fields[name])]
    values: dict[str, list[str]] = {}
    if texts:
        reader = pq.ParquetFile(files[0])
        own = [name for name in texts if name in reader.schema_arrow.names]
        for batch in islice(reader.iter_batches(PEEK_ROWS, columns=own) if own else (), 1):
            values = {name: [each for each in batch[name].to_pylist() if each is not None] for name in own}
    return Peek(StructType(columns), values, complete=True)


def _csv(files: Sequence[Path], options: Mapping[str, str]) -> Peek | None:
    from pyspark.sql.types import StringType, StructField, StructType

    separator = options.get("sep", options.get("delimiter", ","))
    if len(separator) != 1:
        return None
    names, texts = dict[str, None](), dict[str, list[str]]()
    for i, file in enumerate(files):
        with _text_of(file) as lines:
            rows = csv.reader(lines, delimiter=separator)
            first = next(rows, [])
            has_header = options.get("header", "true").lower() == "true"
            own = first if has_header else [f"_c{n}" for n in range(len(first))]
            names |= dict.fromkeys(own)
            for row in islice(rows, 0 if i else PEEK_ROWS):
                for name, value in zip(own, row, strict=False):
                    texts.setdefault(name, []).extend([value] if value else [])
    return Peek(StructType([StructField(name, StringType()) for name in names]), texts, complete=True)


def _json(files: Sequence[Path], names: Collection[str], rows_max: int | None) -> Peek | None:
    from pyspark.sql.types import StructField, StructType

    kinds, texts, rows, size = dict[str, Any](), dict[str, list[str]](), 0, 0
    lines = (line for file in files for line in _text_of(file))
    for line in lines:
        size += len(line)
        if size > PEEK_BYTES_MAX or rows == rows_max:
            break
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # a line that cannot be read is a row, which is rejected
            continue
        for name, value in row.items() if isinstance(row, dict) else ():
            if name not in kinds or isinstance(value, dict):
                kinds[name] = _kind(value, kinds.get(name))
            if rows < PEEK_ROWS and isinstance(value, str | int | float):
                texts.setdefault(name, []).append(str(value))
        rows += 1
    spellings: dict[str, list[str]] = {}
    for name in kinds:
        spellings.setdefault(name.lower(), []).append(name)
    own = [next((each for each in same if each in names), max(same)) for same in spellings.values()]
    fields = [StructField(name, kinds[name]) for name in own]
    return Peek(StructType(fields), texts, complete=next(lines, None) is None) if fields else None


def _kind(value: Any, before: "DataType | None" = None) -> "DataType":
    """How a value of JSON is read where it names or numbers a message: as text, or with its parts."""
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    if isinstance(value, dict):
        parts = {field.name: field.dataType for field in before} if isinstance(before, StructType) else {}
        parts |= {name: _kind(each, parts.get(name)) for name, each in value.items()}
        return StructType([StructField(name, kind) for name, kind in parts.items()])
    return ArrayType(StringType()) if isinstance(value, list) else before or StringType()


def _text_of(file: Path) -> io.TextIOWrapper:
    import pyarrow as pa

    return io.TextIOWrapper(
        pa.input_stream(str(file), compression="detect"), encoding="utf-8-sig", errors="replace", newline=""
    )
