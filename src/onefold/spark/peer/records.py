"""A Spark table as a read-only store of records, so that a server can offer it for reconciliation.

Only ids are served: the rows themselves are not sent, and nothing is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.reconcile.records import Record
from onefold.spark.columns import quoted
from onefold.spark.dialect import from_arrow, to_arrow
from onefold.spark.peer.index import ROWS_MAX, Indexed, TableIndex, TableItems
from onefold.spark.peer.naming import ID, TIME, rows_of, words


def rows_with(index: Indexed, ids: Sequence[bytes]) -> DataFrame:
    """The rows of the table with these ids."""
    return _with_ids(index, ids).select(*(F.col(quoted(name)) for name in index.df.columns))


def as_table(spark: SparkSession, ids: Sequence[bytes]) -> DataFrame:
    """Ids as a table of one column, ``id``, in hex."""
    return from_arrow(spark, pa.table({"id": pa.array([id.hex() for id in ids], pa.string())}))


def _with_ids(index: Indexed, ids: Sequence[bytes]) -> DataFrame:
    wanted = as_table(index.df.sparkSession, ids).withColumnRenamed("id", ID)
    return index.naming.with_id(index.df).join(wanted, ID, "left_semi")


REFRESH_S: Final = 10.0
"""A session sees the table as it was at most so many seconds ago."""


class TableRecords:
    """The rows of a table, as `onefold.reconcile.records.Records` without bodies.

    The index is built with the first session, and updated when another opens, at most every ``refresh_s``.
    """

    id_size: Final = 32

    def __init__(
        self, index: TableIndex, *, refresh_s: float = REFRESH_S, rows_max: int = ROWS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._index, self._refresh_s, self._rows_max, self._clock = index, refresh_s, rows_max, clock
        self._lock = threading.Lock()
        self._indexed: Indexed | None = None
        self._refreshed_at, self._closed = 0.0, False

    def __len__(self) -> int:
        return self._now().buckets.rows

    def add(self, records: Sequence[Record]) -> list[bool]:
        raise Misuse("a Spark table is read-only here: write to it with Spark")

    def remove(self, ids: Sequence[bytes]) -> int:
        raise Misuse("a Spark table is read-only here: write to it with Spark")

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, without bodies, by one job; None for a missing one."""
        if wrong := next((id for id in ids if len(id) != self.id_size), None):
            raise Misuse(f"an id has {len(wrong)} bytes, must have {self.id_size}")
        if not ids:
            return []
        times, rows = rows_of(to_arrow(_with_ids(self._now(), ids).select(TIME, *words())))
        stamps = {row.tobytes(): int(at) for at, row in zip(times, rows, strict=True)}
        return [Record(stamps[id], id) if id in stamps else None for id in ids]

    def snapshot(self) -> TableItems:
        return TableItems(self._now(), rows_max=self._rows_max)

    def close(self) -> None:
        self._closed, self._indexed = True, None

    def _now(self) -> Indexed:
        with self._lock:
            if self._closed:
                raise Misuse("the table is closed")
            if self._indexed is None or self._clock() - self._refreshed_at >= self._refresh_s:
                self._indexed = self._index.refresh()
                self._refreshed_at = self._clock()
            return self._indexed
