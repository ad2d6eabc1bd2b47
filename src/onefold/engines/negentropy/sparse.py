"""The sparse reply to a list: only what differs, though the wire has no word for it.

v1 answers a list with a list: all ids of the server in that range. But a range may be answered in pieces. Where both
sides agree the server skips, and between two ids that both have, where they do not, it lists its own. So the reply
grows with the differences, not with the records.

The difficulty: a listed id comes without its timestamp. The server knows those of the ids that both have, and that the
list is in order. Say C is listed, unknown to the server, between P and Q that both have; C's timestamp is then
somewhere from P's to Q's. Two short bounds enclose it all the same:

    above P, not above C:   C's id > P's id: P's timestamp and C's id, as far as it differs from P's;
                            else C is later than P: P's timestamp + 1
    above C, not above Q:   C's id < Q's id: Q's timestamp and Q's id, as far as it differs from C's;
                            else C is earlier than Q: Q's timestamp

Records of the server between P and Q have timestamps, and ordinary bounds. The lower one of the lower bounds and the
higher one of the upper bounds enclose both kinds. A list that cannot be in order is answered whole.

A *slot* is a place between two neighbours that both have, or at the end of a range: those with ids of one side in them
are listed. Cost: numpy operations over all lists of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Rows, Stamps, firsts_differ, flagged, texts
from onefold.engines.negentropy.bound import Bounds, begun, between
from onefold.engines.negentropy.matching import NOBODY, Listed, Matched
from onefold.engines.negentropy.ranges import Ranges, listed


@dataclass(frozen=True)
class Answered:
    """The lists of a message: our records in their ranges, their ids, and which of them are the same."""

    ranges: Ranges
    stamps: Stamps
    ours: Listed
    theirs: Listed
    matched: Matched


def full_reply(answered: Answered) -> tuple[Ranges, Ints]:
    """All our ids in each range, as published; and of each result, which range it answers."""
    return listed(answered.ranges), np.arange(len(answered.ranges))


def sparse_reply(answered: Answered) -> tuple[Ranges, Ints]:
    """Our ids where the two sides differ; and of each result, which range it answers."""
    slots = _Slots.of(answered)
    lower, upper = slots.lower(), slots.upper()
    wrong = np.zeros(len(answered.ranges), dtype=np.bool_)
    wrong[answered.ours.ranges[slots.common[1:]][np.diff(answered.matched.ours[slots.common]) < 0]] = True
    wrong[slots.number[~lower.below(upper)]] = True
    replies, source = listed(Ranges(lower, upper, np.zeros(len(slots.number), np.uint8), *slots.ours)), slots.number
    if wrong.any():
        kept, whole = flagged(~wrong[source]), flagged(wrong)
        replies = Ranges.join([replies.take(kept), listed(answered.ranges.take(whole))])
        source = np.concatenate((source[kept], whole))
        order = source.argsort(kind="stable")
        replies, source = replies.take(order), source[order]
    return replies, source


@dataclass(frozen=True)
class _Slots:
    """The slots that hold ids of one side only."""

    answered: Answered
    common: Ints
    """Our places of the ids that both have."""
    number: Ints
    """The range of each slot."""
    before: Ints
    """How many of the common ids lie before each slot: the neighbours are this one less 1, and this one."""
    bounded_below: Flags
    bounded_above: Flags
    theirs_first: Ints
    """Their first id in the slot, a place; NOBODY if there is none."""
    theirs_last: Ints

    @staticmethod
    def of(answered: Answered) -> _Slots:
        matched, count = answered.matched, len(answered.ranges)
        common = flagged(matched.ours != NOBODY)
        ours, theirs = flagged(matched.ours == NOBODY), flagged(matched.theirs == NOBODY)
        our_slots = _slots_of(matched.ours, ours, answered.ours)
        their_slots = _slots_of(matched.theirs, theirs, answered.theirs)
        # Slot s of range r has s - r common ids before it: every range has one slot more than common ids.
        used = np.zeros(len(common) + count, dtype=np.bool_)
        used[our_slots] = used[their_slots] = True
        slots = flagged(used)
        commons = np.bincount(answered.ours.ranges[common], minlength=count)
        slot_ends = np.cumsum(commons + 1)
        number = slot_ends.searchsorted(slots, side="right")
        before = slots - number
        common_ends = commons.cumsum()
        first, last = (np.full(len(slots), NOBODY, dtype=np.int64) for _ in range(2))
        where = slots.searchsorted(their_slots)
        last[where] = theirs  # of several assignments to one place the last one stays
        first[where[::-1]] = theirs[::-1]
        starts = common_ends - commons
        return _Slots(
            answered, common, number, before, before > starts[number], before < common_ends[number], first, last
        )

    @cached_property
    def ours(self) -> tuple[Ints, Ints]:
        """The ranks of our records in each slot."""
        ranges, starts = self.answered.ranges, self.answered.ours.starts
        first, last = ranges.first[self.number].copy(), ranges.last[self.number].copy()
        below, above = self.bounded_below, self.bounded_above
        shift = ranges.first[self.number] - starts[self.number]
        first[below] = self.common[self.before[below] - 1] + 1 + shift[below]
        last[above] = self.common[self.before[above]] + shift[above]
        return first, last

    def lower(self) -> Bounds:
        """Above the neighbour below, not above anything in the slot; or where the range begins."""
        places = flagged(self.bounded_below)
        neighbour = self.common[self.before[places] - 1]
        stamps, ids = self.answered.stamps, self.answered.ours.ids
        first, last = self.ours
        bounds, known = self._empty(places), last[places] > first[places]
        if known.any():
            mine = between(_rows(stamps, ids, neighbour[known]), _rows(stamps, ids, neighbour[known] + 1))
            bounds.put(known, mine)
        listed = self.theirs_first[places] != NOBODY
        theirs = _above(_rows(stamps, ids, neighbour[listed]), self._their_ids(self.theirs_first[places][listed]))
        bounds.put(listed, _extreme(bounds.take(listed), theirs, known[listed], lowest=True))
        return self._completed(self.answered.ranges.lower, places, bounds)

    def upper(self) -> Bounds:
        """Above all in the slot, not above the neighbour; or where the range ends."""
        places = flagged(self.bounded_above)
        neighbour = self.common[self.before[places]]
        stamps, ids = self.answered.stamps, self.answered.ours.ids
        first, last = self.ours
        bounds, known = self._empty(places), last[places] > first[places]
        if known.any():
            mine = between(_rows(stamps, ids, neighbour[known] - 1), _rows(stamps, ids, neighbour[known]))
            bounds.put(known, mine)
        listed = self.theirs_last[places] != NOBODY
        theirs = _not_above(self._their_ids(self.theirs_last[places][listed]), _rows(stamps, ids, neighbour[listed]))
        bounds.put(listed, _extreme(bounds.take(listed), theirs, known[listed], lowest=False))
        return self._completed(self.answered.ranges.upper, places, bounds)

    def _their_ids(self, places: Ints) -> Rows:
        return self.answered.theirs.ids.take(places, axis=0)

    def _empty(self, places: Ints) -> Bounds:
        width = self.answered.ours.ids.shape[1]
        return Bounds(
            np.zeros(len(places), dtype=np.uint64),
            np.zeros((len(places), width), dtype=np.uint8),
            np.zeros(len(places), dtype=np.int64),
        )

    def _completed(self, ends: Bounds, places: Ints, bounds: Bounds) -> Bounds:
        """These bounds in their places, and the ends of the ranges in the others."""
        whole = ends.take(self.number)
        whole.put(places, bounds)
        return whole


def _slots_of(partners: Ints, alone: Ints, listed: Listed) -> Ints:
    """The slots of the ids that one side has alone."""
    commons = np.cumsum(partners != NOBODY)
    return np.asarray(commons[alone] + listed.ranges[alone])


def _rows(stamps: Stamps, ids: Rows, places: Ints) -> tuple[Stamps, Rows]:
    return stamps[places], ids.take(places, axis=0)


def _extreme(mine: Bounds, theirs: Bounds, known: Flags, lowest: bool) -> Bounds:
    """Of two bounds each the lowest or the highest; theirs where there is no other."""
    better = mine.below(theirs) if lowest else theirs.below(mine)
    return Bounds.choose(known & better, mine, theirs)


def _above(neighbour: tuple[Stamps, Rows], ids: Rows) -> Bounds:
    """Above a neighbour, not above a record behind it of which only the id is known."""
    larger = texts(ids) > texts(neighbour[1])
    lengths = np.where(larger, firsts_differ(neighbour[1], ids) + 1, 0)
    return begun(neighbour[0] + ~larger, ids, lengths)


def _not_above(ids: Rows, neighbour: tuple[Stamps, Rows]) -> Bounds:
    """Above a record of which only the id is known, not above a neighbour behind it."""
    smaller = texts(ids) < texts(neighbour[1])
    lengths = np.where(smaller, firsts_differ(ids, neighbour[1]) + 1, 0)
    return begun(neighbour[0], neighbour[1], lengths)
