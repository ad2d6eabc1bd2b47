"""``diff`` on files: reading the tables, writing the outcome, appending missing rows."""

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark import publish
from onefold.spark.columns import CORRUPT, quoted
from onefold.spark.dialect import try_cast
from onefold.spark.differences import diff, sampled, spoken
from onefold.spark.engine import AnyShape
from onefold.spark.files import Place, located
from onefold.spark.ingest import read
from onefold.spark.overlap import refuse_overlap
from onefold.spark.signature import Signed, signed

HAVE, NEED, DIFFERING, DOUBLED, SUMMARY, REPORT = "have", "need", "differing", "doubled", "diff.json", "report.html"
FILES: Final = (SUMMARY, f"{SUMMARY}.new", REPORT, f"{REPORT}.new")
DRAFT: Final = re.compile("_onefold_repair_[0-9a-f]{32}")
"""The folder in which rows are written on trial before they are appended; Spark skips names with an underscore."""

_JSON: Final = ("json", "jsonl", "ndjson")
_TEXT: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {"mode": "FAILFAST", "inferSchema": "true"},
    **{name: {"mode": "FAILFAST"} for name in _JSON},
}
_APPENDABLE: Final = {"parquet": "parquet", "orc": "orc", "csv": "csv", **dict.fromkeys(_JSON, "json")}
_WRITTEN: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {
        "header": "true",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    },
    "json": {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"},
}
"""Options to write values so that Spark reads them unchanged: by default it strips blanks, and cuts times to ms."""


@dataclass(frozen=True, slots=True)
class DiffTable:
    """Where a table is, and how it is read."""

    path: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)


def read_table(spark: SparkSession, table: DiffTable) -> DataFrame:
    """The table; a line that cannot be read ends the comparison, because it cannot be compared.

    The types of partition folders such as ``day=1`` are inferred, to compare with a table that has the column.
    """
    options = {**_TEXT.get(table.format, {}), **table.options}
    df = read(spark, table.path, format=table.format, options=options, columns=AnyShape(), partition_types="infer")
    return df.drop(CORRUPT) if table.format in _TEXT else df


def outcome(spark: SparkSession, path: str, tables: Iterable[str]) -> AbstractContextManager[Signed]:
    """A folder for the differences of these tables; refused if it overlaps one, or has other content than a diff."""
    refuse_overlap([("a table", located(spark, table)) for table in tables], [("--out", located(spark, path))])

    def vouched(folder: Place) -> list[str]:
        """The entries of a diff in a folder of an earlier version, which has no signature, only a diff.json."""
        try:
            document = (folder / SUMMARY).read_json() if (folder / SUMMARY).exists() else None
        except ValueError:
            return []
        return [HAVE, NEED, DIFFERING, DOUBLED] if isinstance(document, dict) and "equal" in document else []

    return signed(Place(spark, path), "diff", [*FILES, publish.STAGING], vouched)


def write_outcome(folder: Signed, tables: Mapping[str, DataFrame], figures: Mapping[str, Any]) -> None:
    """Replace an earlier outcome: the rows of each kind as Parquet, then the figures."""
    folder.remove(publish.STAGING)
    staging = folder.place / publish.STAGING
    for name, rows in tables.items():
        (staging / name).write(rows)
    for name in (SUMMARY, REPORT):
        folder.remove(name)
    folder.replace({name: staging / name for name in tables}, [HAVE, NEED, DIFFERING, DOUBLED])
    folder.remove(publish.STAGING)
    (folder.place / SUMMARY).write_json(dict(figures))


def check_appendable(spark: SparkSession, table: DiffTable) -> None:
    """`Misuse` if rows cannot be appended to the table as files."""
    if table.format not in _APPENDABLE or any(char in table.path for char in "*?[{"):
        raise Misuse(
            f"{table.path} as {table.format} cannot be appended to: repair needs a folder of files", path=table.path
        )
    folder = Place(spark, table.path)
    if not folder.by_spark:
        raise Misuse(f"{table.path}: repair needs Spark's own connector for that store", path=table.path)
    name = table.path.rstrip("/").rpartition("/")[2]
    if folder.names() == [name] and not (folder / name).exists():
        raise Misuse(f"{table.path} is a single file: repair needs a folder of files", path=table.path)


def append(spark: SparkSession, rows: DataFrame, table: DiffTable) -> None:
    """Append rows to a table of files, in its columns and types; all of them, or `Misuse` and none.

    A row that would be read back differently, such as a text of two lines in CSV, would still be missing, and would be
    appended again and again. So all rows are first written to a draft folder and read back.

    After a crash some rows may be visible; a second comparison finds only the rest missing, so a retry is safe.
    """
    check_appendable(spark, table)
    folder, fields = Place(spark, table.path), read_table(spark, table).schema.fields
    for target in fields:
        if target.name not in rows.columns:
            raise Misuse(f"column {target.name!r} of {table.path} is not in the other table", column=target.name)
    wanted = rows.select(*(F.col(quoted(f.name)) for f in fields))
    # A number that is too large for its column becomes null here, which shows when the draft is read back.
    fitting = wanted.select(*(try_cast(F.col(quoted(f.name)), f.dataType).alias(f.name) for f in fields))
    for name in folder.names():
        if DRAFT.fullmatch(name):  # left by a crash
            (folder / name).remove()
    partitions, inner, columns = [], folder, {f.name for f in fields}  # partition columns, from the outermost
    while names := [name for name in inner.names() if "=" in name and name.partition("=")[0] in columns]:
        partitions.append(names[0].partition("=")[0])
        inner = inner / names[0]
    kind, draft = _APPENDABLE[table.format], folder / f"_onefold_repair_{uuid4().hex}"
    options = {**_WRITTEN.get(kind, {}), **table.options}
    writer = fitting.write.mode("append").options(**options).partitionBy(*partitions).format(kind)
    try:
        writer.save(str(draft))
        as_read = {"header": "true", **table.options, "mode": "PERMISSIVE"}
        again = spark.read.schema(T.StructType(fields)).options(**as_read).format(kind).load(str(draft))
        with diff(wanted, again) as lost:
            if not lost.equal:
                (row,) = sampled(lost.only_a, None, 1)
                raise Misuse(
                    f"{table.path} as {table.format} cannot keep {lost.summary.only_a:,} rows, such as [{spoken(row)}]:"
                    " they would be read back differently; nothing was appended",
                    path=table.path,
                )
    finally:
        draft.remove()
    writer.save(str(folder))
