"""What a memory costs: how many ids a window has to remember at its peak, and what interval memory keeps instead.

An id is remembered from its first row on, for the length of the window. So the peak is the largest number of firsts in
any stretch of time so long. The firsts are counted by slots of a 64th of the shortest window, and only slots that hold
any reach the driver, so a few rows from a wrong century cost nothing. A stretch is taken as all slots that it touches:
the number is never too small, and at most what a window that is 1/64 longer would have to remember. Slots become
wider, and this error larger, where there would be more than a million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.spark.columns import ChainColumns, quoted
from onefold.spark.gaps import missing_ranges
from onefold.spark.validate import packed
from onefold.spark.window_lags import FIRST

ID_BYTES: Final = 24
"""A hash of 16 bytes and a time of 8: the least. With what a store adds it is about 90 in Spark's RocksDB."""
GAP_BYTES: Final = 16
"""The two ends of a gap, packed."""

SLOTS_PER_WINDOW: Final = 64
SLOTS_MAX: Final = 1 << 20
WIDER: Final = 16


class Peaks(NamedTuple):
    """How many ids each window has to remember at most, and how wide the slots were; 1: the numbers are exact."""

    ids: dict[int, int]
    slot_ms: int


def peaks(table: DataFrame, windows_ms: Sequence[int], *, slots_max: int = SLOTS_MAX) -> Peaks:
    """Of a table of lags (`window_lags`): the peaks for windows of these lengths."""
    firsts = table.where(F.col(FIRST).isNotNull())
    slot_ms = max(1, min(windows_ms) // SLOTS_PER_WINDOW)
    while True:
        slots = firsts.groupBy((F.col(FIRST) - F.pmod(F.col(FIRST), F.lit(slot_ms))).alias("slot")).count()
        found = slots.limit(slots_max + 1).toArrow()
        if found.num_rows <= slots_max:
            break
        slot_ms *= WIDER
    starts, counts = (found.sort_by("slot").column(name).to_numpy() for name in ("slot", "count"))
    return Peaks({ms: busiest(starts, counts, ms, slot_ms) for ms in windows_ms}, slot_ms)


def busiest(starts: NDArray[np.int64], counts: NDArray[np.int64], window_ms: int, slot_ms: int) -> int:
    """The most firsts in slots that a window can touch, both its ends included.

    >>> busiest(np.array([0, 10, 20, 50]), np.array([5, 1, 2, 7]), window_ms=15, slot_ms=10)
    8
    """
    if not len(starts):
        return 0
    reach = -(-window_ms // slot_ms) * slot_ms
    sums = np.concatenate(([0], np.cumsum(counts)))
    since = np.searchsorted(starts, starts - reach)
    return int((sums[1:] - sums[since]).max())


def interval_memory(df: DataFrame, columns: ChainColumns | None) -> Mapping[str, Any]:
    """What interval memory remembers of these messages: a head for each chain, and what is missing.

    Without numbers and what came before them there are no intervals: then why.
    """
    if columns is None:
        return {"why_not": "it needs numbered messages: name the columns of chain, number and previous number"}
    if columns.previous_timestamp is None:
        return {"why_not": "it needs messages that name their previous number"}
    columns.check(df)
    sound = df.where(packed(df, columns, None).number >= 0)
    gaps = missing_ranges(sound, columns).count()
    keys = int(sound.agg(F.count_distinct(*(F.col(quoted(name)) for name in columns.key))).collect()[0][0])
    return {"chains": keys, "gaps": gaps, "entries": keys + gaps, "bytes": ID_BYTES * keys + GAP_BYTES * gaps}
