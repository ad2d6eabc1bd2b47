"""Features that Spark before 4.1 lacks or spells differently. The rest of this package is written for all versions.

an Arrow UDF over iterators   4.1; before that a pandas UDF, whose integer columns are not copied
`try_cast`                    4.0; before that a cast of values whose text shows that they fit
tables of Arrow, both ways    4.0; before that through pandas or rows
types                         a type that a Spark version lacks has no columns there
a task for a number           4.1; before that Spark hashes the number, and tasks get uneven counts of numbers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark import inheritable_thread_target
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

SPARK: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
"""The version of PySpark, such as (4, 1). With Spark Connect, the client's; the server may be newer."""

_BOUNDS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63, "long": 63}
"""Value bits of each integer type, without the sign."""


def iterator_udf(judge: Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]], kind: T.DataType) -> Any:
    """A UDF that gets the columns of a task (at least two) batch by batch, and returns one value per row."""
    if SPARK >= (4, 1):
        judge.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
        return F.arrow_udf(judge, kind)  # type: ignore[attr-defined]
    import pandas as pd

    def judge_series(batches: Any) -> Any:
        arrays = (tuple(pa.Array.from_pandas(series) for series in batch) for batch in batches)
        for values in judge(arrays):
            yield values.to_pandas()

    judge_series.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    return F.pandas_udf(judge_series, kind)  # type: ignore[attr-defined]


def try_cast(column: Column, kind: str | T.DataType) -> Column:
    """The value cast to this type; null if it is not valid. From text, or from numbers without a fraction."""
    if hasattr(Column, "try_cast"):
        return column.try_cast(kind)
    name = kind if isinstance(kind, str) else kind.simpleString()
    if name == "timestamp":
        return F.try_to_timestamp(column)
    if name not in _BOUNDS:
        return column.cast(kind)
    # A plain cast turns "12.5" into 12, and truncates a number that is too large.
    text = F.trim(column.cast("string"))
    number = F.when(text.rlike("^[+-]?[0-9]{1,38}$"), text.cast("decimal(38,0)"))
    bound = 1 << _BOUNDS[name]
    return F.when(number.between(F.lit(-bound).cast("decimal(38,0)"), F.lit(bound - 1)), number.cast(kind))


def valid_utf8(text: Column) -> Column:
    """The text, with invalid UTF-8 replaced by a replacement character."""
    if hasattr(F, "make_valid_utf8"):
        return F.make_valid_utf8(text)
    return F.decode(text.cast("binary"), "UTF-8")


def is_utf8(value: Column) -> Column:
    """Whether the bytes are valid UTF-8."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(value.cast("string"))
    return F.encode(F.decode(value, "UTF-8"), "UTF-8") == value


def evenly(df: DataFrame, number: Column, numbers: int, tasks: int) -> DataFrame:
    """Shuffle rows by number, in range(``numbers``): each number into one task, about as many numbers per task."""
    if hasattr(df, "repartitionById"):
        return df.repartitionById(tasks, F.floor(number * tasks / numbers).cast("int"))
    return df.repartition(tasks, number)


def on_thread(spark: SparkSession, look: Callable[[], Any]) -> Callable[[], Any]:
    """A function to run on another thread, in the session of this thread."""
    if SPARK >= (4, 0):
        return inheritable_thread_target(spark)(look)  # type: ignore[no-any-return]
    return inheritable_thread_target(look)


def most_by(value: Column, rank: Column, n: int) -> Column:
    """The values of the n rows with the highest rank, highest first; rows without a rank are left out."""
    if "k" in signature(F.max_by).parameters:
        return F.max_by(value, rank, n)
    ranked = F.when(rank.isNotNull(), F.struct(rank.alias("rank"), value.alias("value")))
    highest = F.slice(F.sort_array(F.collect_list(ranked), asc=False), 1, n)
    return F.transform(highest, lambda each: each.getField("value"))


def file_of(df: DataFrame) -> Column:
    """The file that a row comes from, whatever columns the table has."""
    metadata = df.metadataColumn("_metadata") if hasattr(DataFrame, "metadataColumn") else F.col("_metadata")
    return metadata.getField("file_path")


def to_arrow(df: DataFrame) -> pa.Table:
    """All rows as an Arrow table."""
    if hasattr(DataFrame, "toArrow"):
        return df.toArrow()
    schema = arrow_schema(df.schema)
    columns = zip(*df.collect(), strict=True)
    cells = list(columns) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(cells, schema, strict=True)], schema=schema
    )


def from_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    if SPARK >= (4, 0) and table.num_rows:
        return spark.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))  # Connect rejects empty tables
    return spark.createDataFrame(rows, from_arrow_schema(table.schema))


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of the same columns, times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def kinds(*names: str) -> tuple[type[T.DataType], ...]:
    """The types with these names, if this Spark has them."""
    return tuple(getattr(T, name) for name in names if hasattr(T, name))
