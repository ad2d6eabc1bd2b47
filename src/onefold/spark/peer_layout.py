"""Where the buckets of an index begin: the records of a table cut into stretches, in their order of time and id.

A layout is a row of *slots* of time, each from its start to the next one's. A slot is one bucket; or, where a single
millisecond holds very many rows, that millisecond alone is a slot, cut by the first bits of the ids into 2^bits
buckets. A table without times is one such slot, at 0. Behind a slot that is cut there is always another one, so that a
cut slot has one time only.

The starts are quantiles of the times, so buckets are of about the same size whatever the distribution. A layout grows
at its end only: buckets keep their numbers, and sums that were made before stay good.

Cost: the bucket of a row without a time is a shift in the JVM; of one with a time, a binary search in numpy, and two
numbers of the row cross over for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Stamps
from onefold.engines.negentropy.bound import Bounds
from onefold.spark.peer_naming import BEGINNING_BITS, TIME, WORDS, beginning

BUCKETS_MAX: Final = 1 << 16
"""What the sums of all buckets take in the driver: some 10 MB."""
QUANTILES: Final = 1 << 14
"""Of the times of a table. Cuts of heavy milliseconds may double them, so that BUCKETS_MAX is never passed."""
QUANTILE_ERROR: Final = 4
"""The inverse of a quantile's error, in buckets: none is more than half as large again as it should be."""


@dataclass(frozen=True)
class Layout:
    """The starts of the slots, into how many bits each is cut, and for how many rows that was thought out."""

    starts: Stamps
    bits: Ints
    rows: int

    @staticmethod
    def by_id(bits: int, rows: int = 0) -> Layout:
        """All at time 0, cut by the first bits of the ids."""
        return Layout(np.array([0, 1], dtype=np.uint64), np.array([bits, 0]), rows)

    @staticmethod
    def by_time(quantiles: Stamps, rows: int, bucket_rows: int) -> Layout:
        """Slots that begin at these ascending times, as many as give each bucket so many rows."""
        kept = quantiles[:: max(1, -(-bucket_rows * len(quantiles) // max(1, rows)))]
        starts, repeats = np.unique(kept, return_counts=True)
        cut = repeats > 1
        bits = np.where(cut, np.ceil(np.log2(repeats)).astype(np.int64), 0)
        behind = np.setdiff1d(starts[cut] + np.uint64(1), starts)
        before = np.zeros(int(not len(starts) or starts[0] > 0), dtype=np.uint64)
        every = np.concatenate((before, starts, behind))
        order = np.argsort(every)
        padded = np.concatenate((np.zeros(len(before), np.int64), bits, np.zeros(len(behind), np.int64)))
        return Layout(every[order], padded[order], rows)

    def __len__(self) -> int:
        return int(self.firsts[-1]) + (1 << int(self.bits[-1]))

    @property
    def by_id_alone(self) -> bool:
        """Whether all rows are in one slot, which is cut: then the id alone tells the bucket."""
        return len(self.starts) == 2 and bool(self.bits[0])

    @cached_property
    def firsts(self) -> Ints:
        """The first bucket of each slot."""
        counts = np.left_shift(1, self.bits)
        return np.cumsum(counts) - counts

    @cached_property
    def slots(self) -> Ints:
        """The slot of each bucket."""
        return np.repeat(np.arange(len(self.starts)), np.left_shift(1, self.bits))

    @cached_property
    def cut(self) -> Flags:
        """Which buckets are parts of a slot: in these the ids tell the order, in the others the time does."""
        return np.asarray(self.bits[self.slots] > 0)

    def then(self, later: Layout, after: int) -> Layout:
        """This one, and those slots of a later one that begin after a time up to which all rows are known."""
        new = later.starts > np.uint64(after)
        old = ~np.isin(self.starts, later.starts[new])  # but for the last one, which is empty, and may be cut now
        starts = np.concatenate((self.starts[old], later.starts[new]))
        bits = np.concatenate((self.bits[old], later.bits[new]))
        return Layout(starts, bits, self.rows + later.rows)

    def places(self, times: Stamps, words: Limbs) -> Ints:
        """The buckets that rows with these times, and first words of ids, are in."""
        slot = np.searchsorted(self.starts, times, side="right") - 1
        bits = self.bits[slot]
        inner = (words >> np.uint64(1)) >> (63 - bits).astype(np.uint64)  # in two steps: by 64 nothing can be shifted
        return np.asarray(self.firsts[slot] + inner.astype(np.int64), dtype=np.int64)

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        """From when to when, that left out, these buckets reach; None: for ever."""
        end = int(self.slots[last]) + 1
        until = int(self.starts[end]) if end < len(self.starts) else None
        return int(self.starts[self.slots[first]]), until

    def column(self) -> Column:
        """The bucket of a row that has a time and words; the id is enough if it alone tells it."""
        if self.by_id_alone:
            return F.shiftright(beginning(), BEGINNING_BITS - int(self.bits[0]))

        def places(times: pa.Array, words: pa.Array) -> pa.Array:
            return pa.array(self.places(*(column.to_numpy().view(np.uint64) for column in (times, words))))

        place = F.arrow_udf(places, T.LongType())  # type: ignore[attr-defined]
        return place(F.col(TIME), F.col(WORDS[0]))  # type: ignore[no-any-return]

    def order(self) -> Column:
        """What tells rows of one bucket apart from those of its neighbours: the time, or the first word of the id."""
        word = F.col(WORDS[0]).bitwiseXOR(F.lit(-(1 << 63)))  # as Spark compares numbers with a sign
        if self.by_id_alone:
            return word
        cut = self.starts[self.bits > 0].tolist()
        return F.when(F.col(TIME).isin(cut), word).otherwise(F.col(TIME)) if cut else F.col(TIME)


def quantiles(time: Column) -> Column:
    """The times that cut a table into QUANTILES stretches of about the same size."""
    # As one text that Spark splits itself: an array of so many literals takes seconds to hand over.
    shares = ",".join(map(str, np.arange(QUANTILES) / QUANTILES))
    return F.percentile_approx(time, F.split(F.lit(shares), ",").cast("array<double>"), QUANTILE_ERROR * QUANTILES)


def first_words(bounds: Bounds) -> Limbs:
    """The first words of bounds."""
    return bounds.ids[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
