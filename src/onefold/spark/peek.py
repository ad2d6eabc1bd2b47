"""The columns of local files before Spark is started, as far as pyarrow finds them quickly."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, DecimalType, StringType, StructField, StructType

_OPTIONS: Final = {"parquet": set[str](), "csv": {"header", "sep", "delimiter"}, "json": set[str]()}
"""The formats that are supported, each with the reader options that are."""
UNKNOWN: Final = DecimalType(20, 0)
"""Stands for a Parquet type that only Spark knows; a decimal passes as an id, a number and a time."""
PEEK_BYTES_MAX: Final = 64 << 20
PEEK_FILES_MAX: Final = 1_000
PEEK_ROWS: Final = 1_000
"""How many rows are checked for a number or a time before a text column is refused."""


class Peek(NamedTuple):
    """The columns of a table, known without Spark; takes the place of a DataFrame in checks of columns."""

    schema: StructType
    texts: Mapping[str, Sequence[str]]
    """The first values of columns that are text."""
    complete: bool
    """Whether all columns are known."""

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    def is_known(self, name: str) -> bool:
        """Whether the type of a column is what Spark makes of it."""
        return self.schema[name].dataType != UNKNOWN


def peek(
    path: Path, kind: str, names: Collection[str], options: Mapping[str, str] | None = None,
    rows_max: int | None = PEEK_ROWS,
) -> Peek | None:  # fmt: skip
    """The columns of a table, for JSON those of the first ``rows_max`` lines; None if they cannot be found quickly.

    ``names``: the columns that are asked for, as spelled by the user.
    """
    kind, own = "json" if kind in ("jsonl", "ndjson") else kind, {n.lower(): v for n, v in (options or {}).items()}
    if kind not in _OPTIONS or (kind != "parquet" and not own.keys() <= _OPTIONS[kind]):
        return None
    files = [path] if path.is_file() else list(islice(visible(path), PEEK_FILES_MAX + 1))
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
    parts = (part.partition("=") for file in files for part in file.relative_to(path).parts[:-1])
    folders = {name: StructField(name, StringType()) for name, sign, _ in parts if sign}
    names = {name.lower() for name in folders}
    rest = [field for field in table.schema if field.name.lower() not in names]
    return table._replace(schema=StructType([*rest, *folders.values()]))


def _parquet(files: Sequence[Path], names: Collection[str]) -> Peek:
    fields: dict[str, Any] = {}
    for file in files:
        for field in pq.read_schema(file):
            fields.setdefault(field.name, field.type)
    columns = []
    for name, kind in fields.items():
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        try:
            columns.append(StructField(name, from_arrow_type(kind)))
        except Exception:  # a type that PySpark does not map; each version raises another exception
            columns.append(StructField(name, UNKNOWN))
    texts = [name for name in names if name in fields and pa.types.is_string(fields[name])]
    values: dict[str, list[str]] = {}
    if texts:
        reader = pq.ParquetFile(files[0])
        own = [name for name in texts if name in reader.schema_arrow.names]
        for batch in islice(reader.iter_batches(PEEK_ROWS, columns=own) if own else (), 1):
            values = {name: [each for each in batch[name].to_pylist() if each is not None] for name in own}
    return Peek(StructType(columns), values, complete=True)


def _csv(files: Sequence[Path], options: Mapping[str, str]) -> Peek | None:
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
    kinds, texts, rows, size = dict[str, Any](), dict[str, list[str]](), 0, 0
    is_complete = True
    for line in (line for file in files for line in _text_of(file)):
        size += len(line)
        if size > PEEK_BYTES_MAX or rows == rows_max:
            is_complete = False
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
    return Peek(StructType(fields), texts, is_complete) if size else None


def _kind(value: Any, before: DataType | None = None) -> DataType:
    """The type of a JSON value in a column that identifies a message: text, or a struct of its fields."""
    if isinstance(value, dict):
        parts = {field.name: field.dataType for field in before} if isinstance(before, StructType) else {}
        parts |= {name: _kind(each, parts.get(name)) for name, each in value.items()}
        return StructType([StructField(name, kind) for name, kind in parts.items()])
    return ArrayType(StringType()) if isinstance(value, list) else before or StringType()


def _text_of(file: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        pa.input_stream(str(file), compression="detect"), encoding="utf-8-sig", errors="replace", newline=""
    )


def visible(folder: Path) -> Iterator[Path]:
    """The files below a folder, without names that Spark skips: those that begin with a dot or an underscore."""
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        yield from (Path(at, name) for name in sorted(files) if not name.startswith((".", "_")))
