"""The lag of every copy: how long after the first row of its id it came.

The rows of an id meet in one task, in one shuffle of integers: the id as a hash of 128 bits, the time, and the order if
there is one. There they are sorted, and each is told apart from the first before it. Sorts and buffers are Spark's own,
which spill to disk: an id with a million copies is a longer task, not a larger one. A self join would shuffle the rows
twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.columns import check_columns, in_order, milliseconds, quoted
from onefold.spark.diff_forms import hashable, null_masks
from onefold.spark.validate import CORRUPT

FIRST, LAG = "first_ms", "lag_ms"
"""Of the table of lags: when an id came first, null of a copy; how much later a copy came, null of a first."""

TIME_MIN, TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds. Micro- and nanoseconds of our days lie beyond."""

UNUSABLE: Final = ("malformed", "no_id", "no_time", "time_out_of_range", "no_order")
"""Why a row says nothing: it could not be read; a key column is null; time or order is no number and no time."""

TASKS_PER_CORE: Final = 4
"""Into so many parts per core a table is kept: adaptive execution does not pack the slices of one that is."""

ID, AT, ORDER = ("_onefold_a", "_onefold_b"), "_onefold_at", "_onefold_order"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowColumns:
    """The names of the columns that lags are measured by.

    >>> WindowColumns(key=("device", "counter"), time="received").named
    [('key', 'device'), ('key', 'counter'), ('time', 'received')]
    """

    key: tuple[str, ...] | None = None
    """Together they are the id of a message. None: two rows are copies if they agree in all but time and order."""
    time: str = "arrival"
    """The clock that the window is measured by: whole milliseconds, or a time."""
    order: str | None = None
    """What says which row came first, such as an offset. None: the time does."""

    def __post_init__(self) -> None:
        if self.key is not None and not self.key:
            raise Misuse("key is empty, must name at least one column, or be None: the whole row", key=self.key)
        roles = [("key", name) for name in self.key or ()] + [("order", self.order)]
        for role, name in roles:
            if name == self.time:
                raise Misuse(f"column {name!r} is the time, it cannot be the {role} too", column=name)

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is named."""
        order = [] if self.order is None else [("order", self.order)]
        return [*(("key", name) for name in self.key or ()), ("time", self.time), *order]

    def check(self, df: DataFrame) -> None:
        """Raise `Misuse` that names the column if one is missing or of a type that cannot be what it should be."""
        check_columns(df, self.named, plain=("key",), required=("key", "time", "order"), times=("time", "order"))

    def id(self, df: DataFrame) -> tuple[str, ...]:
        """The columns that make up the id."""
        if self.key is not None:
            return self.key
        rest = tuple(name for name in df.columns if name not in (self.time, self.order, CORRUPT))
        if not rest:
            raise Misuse(f"there is no column beside {self.time!r} to know a copy by", column=self.time)
        return rest


def why_unusable(df: DataFrame, columns: WindowColumns) -> Column:
    """Why a row says nothing of lags, one of `UNUSABLE`; null if it does."""
    time = milliseconds(df, columns.time)
    no = F.lit(False)
    key_is_null = [F.col(quoted(name)).isNull() for name in columns.key or ()]
    conditions = {
        "malformed": F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else no,
        "no_id": F.greatest(*key_is_null, no) if key_is_null else no,
        "no_time": time.isNull(),
        "time_out_of_range": ~time.between(TIME_MIN, TIME_MAX),
        "no_order": no if columns.order is None else in_order(df, columns.order).isNull(),
    }
    assert tuple(conditions) == UNUSABLE
    why = F.lit(None).cast("string")
    for reason, condition in reversed(conditions.items()):
        why = F.when(condition, F.lit(reason)).otherwise(why)
    return why


def timed(df: DataFrame, columns: WindowColumns) -> DataFrame:
    """The rows that can be used: the hash of their id, their time and their place in the order, all of them longs."""
    values = {name: F.col(quoted(name)) for name in columns.id(df)}
    plain = [hashable(value, df.schema[name].dataType) for name, value in values.items()]
    nulls = null_masks(values.values()) if columns.key is None else []  # of a key none is null
    at = milliseconds(df, columns.time)
    return df.where(why_unusable(df, columns).isNull()).select(
        F.xxhash64(*nulls, *plain).alias(ID[0]),
        F.xxhash64(F.lit(1), *nulls, *plain).alias(ID[1]),
        at.alias(AT),
        *([] if columns.order is None else [in_order(df, columns.order).alias(ORDER)]),
    )


def lags(rows: DataFrame) -> DataFrame:
    """Of `timed` rows: `FIRST` of the first row of each id, and `LAG` of every other.

    A lag below 0 is there only where the order is not that of the time: a copy with a clock that is behind.
    """
    by_id = Window.partitionBy(*ID).orderBy(*([ORDER] if ORDER in rows.columns else []), AT)
    number = F.row_number().over(by_id)
    first = F.first(AT).over(by_id.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    told = rows.select(AT, number.alias("number"), first.alias("first"))
    is_first = F.col("number") == 1
    return told.select(
        F.when(is_first, F.col(AT)).alias(FIRST), F.when(~is_first, F.col(AT) - F.col("first")).alias(LAG)
    )


@contextmanager
def kept(table: DataFrame) -> Iterator[DataFrame]:
    """The table, computed once, on the disks of Spark's storage as long as it is needed."""
    parts = TASKS_PER_CORE * table.sparkSession.sparkContext.defaultParallelism
    stored = table.coalesce(parts).persist(StorageLevel.DISK_ONLY)
    try:
        yield stored
    finally:
        stored.unpersist()
