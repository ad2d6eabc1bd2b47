"""Making an index: where its buckets begin, and what is in them.

Rows without a time are scattered over 65,536 buckets by the first bits of their ids, in one pass; of a smaller table
neighbours are then put together. Of rows with a time a first pass reads that column alone, to see where the times are;
the second one adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.errors import BadInput
from onefold.spark.peer_buckets import Buckets, summed
from onefold.spark.peer_layout import Layout, quantiles
from onefold.spark.peer_naming import BEGINNING_BITS, TIME, Naming


@dataclass(frozen=True, slots=True)
class Build:
    """How a table is indexed."""

    naming: Naming
    shown: str
    bucket_rows: int

    def made(self, df: DataFrame) -> tuple[Layout, Buckets]:
        """A layout for this table, and its sums."""
        if self.naming.time is not None:
            layout = self._by_time(df, after=-1)
            return layout, summed(self.naming.with_id(df), layout)
        fine = summed(self.naming.with_id(df), Layout.by_id(BEGINNING_BITS))
        bits = min(BEGINNING_BITS, max(0, fine.rows // self.bucket_rows - 1).bit_length())
        layout = Layout.by_id(max(1, bits), fine.rows)
        grouped = fine.taken(slice(0, -1)).grouped(1 << (BEGINNING_BITS - int(layout.bits[0])))
        return layout, grouped.padded(len(layout))

    def extended(self, df: DataFrame, layout: Layout, known: Buckets) -> tuple[Layout, Buckets]:
        """The layout with room for the times of more rows that come after all known ones, and the sums of these."""
        if self.naming.time is not None:
            latest = int(_latest(layout, known))
            later = self._by_time(df, after=latest)
            if later.rows:
                layout = layout.then(later, latest)
        return layout, summed(self.naming.with_id(df), layout)

    def _by_time(self, df: DataFrame, after: int) -> Layout:
        """A layout for the rows after a time; `BadInput` if a row has no time."""
        time = F.col(TIME)
        later = F.when(time > after, time)
        times = self.naming.with_id(df).select(TIME)
        rows, count, found = times.agg(
            F.count_if(time.isNull() | (time < 0)), F.count(later), quantiles(later)
        ).collect()[0]  # fmt: skip
        if rows:
            column = self.naming.time
            raise BadInput(
                f"{self.shown}: {rows} rows have no time in {column!r}: it is null, or before 0 (1970)",
                rows=rows, column=column,
            )  # fmt: skip
        return Layout.by_time(np.array(found or [], dtype=np.uint64), count, self.bucket_rows)


def _latest(layout: Layout, known: Buckets) -> np.uint64:
    """The time of the last row."""
    last = np.flatnonzero(known.counts > 0)[-1:]
    times = np.where(layout.cut[last], layout.starts[layout.slots[last]], known.high[last])
    return np.uint64(times[0]) if len(times) else np.uint64(0)
