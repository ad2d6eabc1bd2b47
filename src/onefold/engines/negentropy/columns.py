"""Records in order, as columns: timestamps ascending, ids ascending where timestamps are equal.

Nothing here changes after it was built. The totals that fingerprints are made of, and the sorted beginnings of the ids
by which a known id is found, are made when they are first asked for.

Cost: building is one sort of numbers, each a timestamp and the beginning of an id, so ties cost what distinct
timestamps cost; finding a bound is a binary search over the timestamps, and one over the ids where timestamps are
equal, for all bounds at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import Ints, Limbs, Rows, Stamps, flagged, texts
from onefold.engines.negentropy.bound import Bounds
from onefold.engines.negentropy.fingerprint import running_sums, running_xors

BIG: Final = np.dtype(">u8")
LITTLE: Final = np.dtype("<u8")


class Columns:
    """Sorted records that stand still."""

    def __init__(self, timestamps: Stamps, ids: Rows) -> None:
        self.timestamps = timestamps
        self.ids = ids

    def __len__(self) -> int:
        return len(self.timestamps)

    @staticmethod
    def sorted_from(timestamps: Stamps, ids: Rows) -> Columns:
        """The same records in order; ids are whole limbs wide."""
        if len(timestamps) < 2:
            return Columns(timestamps, ids)
        order = _order(timestamps - timestamps.min(), ids)
        return Columns(timestamps[order], ids.take(order, axis=0))

    @cached_property
    def sums(self) -> Limbs:
        """The sums of the first 0, 1, ... n ids, as little-endian numbers."""
        return running_sums(self.ids.view(LITTLE))

    @cached_property
    def xors(self) -> Limbs:
        """The exclusive ors of the first 0, 1, ... n ids."""
        return running_xors(self.ids.view(LITTLE))

    @cached_property
    def beginnings(self) -> Limbs:
        """The first limbs of all ids, sorted: what is not among them is no known id."""
        return np.sort(self.ids.view(BIG)[:, 0].astype(np.uint64))

    def bounds(self) -> Bounds:
        """The bounds that are the records themselves."""
        return Bounds(self.timestamps, self.ids, np.full(len(self), self.ids.shape[1]))

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        low = self.timestamps.searchsorted(bounds.timestamps).astype(np.int64)
        long = flagged(bounds.lengths)
        if len(long):
            high = self.timestamps.searchsorted(bounds.timestamps[long], side="right")
            low[long] = self._find_id(low[long], high, bounds.ids[long])
        return low

    def _find_id(self, low: Ints, high: Ints, ids: Rows) -> Ints:
        """How many records lie below these ids, if the answers lie between low and high, both included."""
        wanted, ours = texts(ids), texts(self.ids)
        while len(going := flagged(low < high)):
            middle = (low[going] + high[going]) >> 1
            less = ours[middle] < wanted[going]
            low[going[less]] = middle[less] + 1
            high[going[~less]] = middle[~less]
        return low

    def places(self, timestamps: Stamps, ids: Rows) -> Ints:
        """Where these records stand; -1 for one that is not there."""
        places = self.find(Columns(timestamps, ids).bounds())
        inside = flagged(places < len(self))
        there = np.zeros(len(places), dtype=np.bool_)
        there[inside] = texts(self.ids[places[inside]]) == texts(ids[inside])
        there[inside] &= self.timestamps[places[inside]] == timestamps[inside]
        places[~there] = -1
        return places

    def holding(self, ids: Rows) -> list[tuple[int, int]]:
        """Which of these ids are known, as pairs of its place there and its place here; under any timestamp."""
        firsts = ids.view(BIG)[:, 0].astype(np.uint64)
        places = np.minimum(self.beginnings.searchsorted(firsts), max(0, len(self) - 1))
        if not len(self) or not len(likely := flagged(self.beginnings[places] == firsts)):
            return []
        ours = flagged(np.isin(self.ids.view(BIG)[:, 0].astype(np.uint64), firsts[likely]))
        known = {self.ids[place].tobytes(): place for place in ours.tolist()}
        return [(i, known[blob]) for i in likely.tolist() if (blob := ids[i].tobytes()) in known]

    def without(self, gone: Ints) -> Columns:
        """The same records, less those at some places."""
        if not len(gone):
            return self
        kept = np.ones(len(self), dtype=np.bool_)
        kept[gone] = False
        return Columns(self.timestamps[kept], self.ids[kept])

    def merged(self, other: Columns) -> Columns:
        """The records of both. Cost: O(n) moves, no sorting."""
        if not len(other):
            return self
        places = self.find(other.bounds())
        new = places + np.arange(len(other))
        old = np.ones(len(self) + len(other), dtype=np.bool_)
        old[new] = False
        timestamps = np.empty(len(old), dtype=np.uint64)
        ids = np.empty((len(old), self.ids.shape[1]), dtype=np.uint8)
        timestamps[new], ids[new] = other.timestamps, other.ids
        timestamps[old], ids[old] = self.timestamps, self.ids
        return Columns(timestamps, ids)


def _order(leading: Stamps, ids: Rows) -> Ints:
    """The order of records by a number, and by their ids where that is equal."""
    keys = _keys(leading, ids)
    order = keys.argsort()
    tied = _tied(keys[order])
    if len(tied):
        order[tied] = order[tied][_by_id(keys[order[tied]], ids[order[tied]])]
    return order


def _by_id(ascending: Limbs, ids: Rows) -> Ints:
    """The order of records that come by ascending numbers, by their ids where those are equal."""
    group = np.cumsum(np.concatenate(([0], ascending[1:] != ascending[:-1]))).astype(np.uint64)
    keys = _keys(group, ids)
    order = keys.argsort()
    if len(_tied(keys[order])):  # ids that were made to look alike: every byte counts
        limbs = ids.view(BIG)
        columns = [limbs[:, k].astype(np.uint64) for k in reversed(range(limbs.shape[1]))]
        order = np.lexsort((*columns, group))
    return order


def _keys(leading: Limbs, ids: Rows) -> Limbs:
    """One number for each record: the leading one, and behind it as much of the id's beginning as there is room for."""
    bits = int(leading.max()).bit_length()
    if bits == 64:
        return leading
    beginnings = ids.view(BIG)[:, 0].astype(np.uint64)
    return np.asarray(leading << np.uint64(64 - bits) | beginnings >> np.uint64(bits)) if bits else beginnings


def _tied(ascending: Limbs) -> Ints:
    """The places of all numbers that are there more than once."""
    same = ascending[1:] == ascending[:-1]
    tied = np.zeros(len(ascending), dtype=np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    return flagged(tied)
