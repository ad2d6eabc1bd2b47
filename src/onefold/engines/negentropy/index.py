"""An index of records that changes cheaply: sorted columns, and a small overlay of what came and went since.

    main       the records when the index was last built, with their totals
    extra      records that came since: sorted columns of their own
    gone       places in main whose records went since

The rank of a record is its place among all that are there now. A bound's rank is its place in main, less the gone ones
below it, plus the extra ones below it; the other way round, a rank splits into a place in main and one in extra, by
binary search over the ranks of the extras and of the gone. A range's total is that of main, plus that of extra, less
that of the gone.

An index never changes: ``added`` and ``removed`` give a new one that shares main. So a session that holds one sees its
records stand still, while others come and go.

Cost: a change of k records is O(k log n + overlay); when the overlay is over ``overlay_max(n)`` (four times the root of
n), main is built anew by O(n) moves, without sorting. Amortised that is O(root of n) moves in numpy per record:
measured with a million records, a quarter of a millisecond for one at a time, microseconds each for a thousand at once.
"""

from __future__ import annotations

from functools import cached_property
from math import isqrt
from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Rows, Stamps
from onefold.engines.negentropy.bound import Bounds
from onefold.engines.negentropy.columns import Columns
from onefold.engines.negentropy.fingerprint import minus, plus

OVERLAY_MIN: Final = 1_024  # smaller ones cost nothing that can be measured


def overlay_max(size: int) -> int:
    """How many changes are kept beside main before it is built anew."""
    return max(OVERLAY_MIN, 4 * isqrt(size))


class Index:
    """What a session works on: it finds bounds, adds up ranges and lists records; see `items.Items`."""

    def __init__(self, id_size: int, main: Columns, extra: Columns | None = None, gone: Ints | None = None) -> None:
        self.id_size = id_size
        self._main = main
        self._extra = extra or Columns(main.timestamps[:0], main.ids[:0])
        self._gone = np.zeros(0, dtype=np.int64) if gone is None else gone
        self._plain = not len(self._extra) and not len(self._gone)

    def __len__(self) -> int:
        return len(self._main) + len(self._extra) - len(self._gone)

    @cached_property
    def _taken(self) -> Columns:
        """The records at the gone places, to subtract them."""
        return Columns(self._main.timestamps[self._gone], self._main.ids[self._gone])

    @cached_property
    def _extra_ranks(self) -> Ints:
        places = self._main.find(self._extra.bounds())
        return places - self._gone.searchsorted(places) + np.arange(len(places))

    @cached_property
    def _alive_before(self) -> Ints:
        """For each gone place, how many records of main below it are still there."""
        return self._gone - np.arange(len(self._gone))

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Nothing to fetch: all is in memory."""

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks: one place is as near as another."""
        return ranks

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        places = self._main.find(bounds)
        if self._plain:
            return places
        return places - self._gone.searchsorted(places) + self._extra.find(bounds)

    def _split(self, ranks: Ints) -> tuple[Ints, Ints, Ints]:
        """For each rank: its place in main, in extra, and among the gone."""
        extra = self._extra_ranks.searchsorted(ranks)
        alive = ranks - extra
        gone = self._alive_before.searchsorted(alive, side="right")
        return alive + gone, extra, gone

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids, as limbs, the lowest first."""
        if self._plain:
            return minus(self._main.sums.take(upper, axis=0), self._main.sums.take(lower, axis=0))
        return minus(self._sum_below(upper), self._sum_below(lower))

    def _sum_below(self, ranks: Ints) -> Limbs:
        main, extra, gone = self._split(ranks)
        return minus(plus(self._main.sums[main], self._extra.sums[extra]), self._taken.sums[gone])

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        limbs = self._xor_below(upper) ^ self._xor_below(lower)
        return limbs.astype("<u8").view(np.uint8).reshape(len(limbs), self._main.ids.shape[1])

    def _xor_below(self, ranks: Ints) -> Limbs:
        if self._plain:
            return self._main.xors.take(ranks, axis=0)
        main, extra, gone = self._split(ranks)
        return self._main.xors[main] ^ self._extra.xors[extra] ^ self._taken.xors[gone]

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks: timestamps, and ids filled up with zeros."""
        if self._plain:
            return self._main.timestamps[ranks], self._main.ids.take(ranks, axis=0)
        main, extra, _ = self._split(ranks)
        timestamps = np.empty(len(ranks), dtype=np.uint64)
        ids = np.empty((len(ranks), self._main.ids.shape[1]), dtype=np.uint8)
        new = np.zeros(len(ranks), dtype=np.bool_)
        inside = extra < len(self._extra)
        new[inside] = self._extra_ranks[extra[inside]] == ranks[inside]
        for here, columns, places in ((new, self._extra, extra), (~new, self._main, main)):
            timestamps[here], ids[here] = columns.timestamps[places[here]], columns.ids[places[here]]
        return timestamps, ids

    def snapshot(self) -> Index:
        """Itself: it stands still."""
        return self

    def holds(self, timestamps: Stamps, ids: Rows) -> Flags:
        """Which of these records are there."""
        late, early = self._extra.places(timestamps, ids) >= 0, self._main.places(timestamps, ids)
        went = self._gone.searchsorted(early, side="right") > self._gone.searchsorted(early)
        return np.asarray(late | (early >= 0) & ~went)

    def known(self, ids: Rows) -> list[int]:
        """The places of those ids that are there, under any timestamp."""
        gone = set(self._gone.tolist())
        there = [i for i, place in self._main.holding(ids) if place not in gone]
        return there + [i for i, _ in self._extra.holding(ids)]

    def added(self, records: Columns) -> Index:
        """With more records, which must be new."""
        return self._lean(self._extra.merged(records), self._gone)

    def removed(self, timestamps: Stamps, ids: Rows) -> Index:
        """Without some records, which must be there, each named once."""
        extra = self._extra.places(timestamps, ids)
        late = extra >= 0
        places = self._main.places(timestamps[~late], ids[~late])
        gone = np.insert(self._gone, self._gone.searchsorted(np.sort(places)), np.sort(places))
        return self._lean(self._extra.without(extra[late]), gone)

    def _lean(self, extra: Columns, gone: Ints) -> Index:
        """With this overlay, or built anew when it is too large."""
        if len(extra) + len(gone) <= overlay_max(len(self._main)):
            return Index(self.id_size, self._main, extra, gone)
        return Index(self.id_size, self._main.without(gone).merged(extra))
