"""Which ids of a peer's lists do we hold? All lists of a message are matched at once.

Each id, ours and theirs, becomes one number: its range, then the beginning of the id, then whose it is, then its place.
Sorted, equal ids of both sides are neighbours, and the places say which ones they are; the ids are then compared whole.
The beginnings of different ids of one range are seldom alike. Where they are, by chance, by malice or because lists are
very long, that range is matched by a dictionary: slower, and as exact.

Cost: one sort of numbers; 0.1 microseconds per id.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Rows, flagged
from onefold.engines.negentropy.columns import BIG

NOBODY: Final = -1
BEGINNING_BITS_MIN: Final = 16


@dataclass(frozen=True)
class Listed:
    """The ids of many ranges, one range after another: how many each has."""

    ids: Rows
    counts: Ints

    @cached_property
    def ranges(self) -> Ints:
        """For each id the number of its range."""
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def starts(self) -> Ints:
        """Where each range begins."""
        return self.counts.cumsum() - self.counts


@dataclass(frozen=True)
class Matched:
    """For each of our ids the place of its equal among theirs, or NOBODY; and the other way round."""

    ours: Ints
    theirs: Ints
    twice: Ints
    """Ids that they list twice in one range: the places of the second ones."""


def match(ours: Listed, theirs: Listed) -> Matched:
    """Pair the ids of both sides that are equal and in the same range."""
    partner_of_ours = np.full(len(ours.ids), NOBODY, dtype=np.int64)
    partner_of_theirs = np.full(len(theirs.ids), NOBODY, dtype=np.int64)
    matched = Matched(partner_of_ours, partner_of_theirs, np.zeros(0, dtype=np.int64))
    if not len(theirs.ids):
        return matched
    range_bits = max(1, (len(ours.counts) - 1).bit_length())
    place_bits = max(len(ours.ids), len(theirs.ids)).bit_length()
    if 64 - range_bits - place_bits - 1 < BEGINNING_BITS_MIN:
        return _by_dictionary(ours, theirs, matched, np.arange(len(ours.counts)))
    ours_at, theirs_at, crowded = _pairs(ours, theirs, range_bits, place_bits)
    equal = _alike(ours.ids, ours_at, theirs.ids, theirs_at)
    if not equal.all():
        ours_at, theirs_at = ours_at[equal], theirs_at[equal]
    partner_of_ours[ours_at] = theirs_at
    partner_of_theirs[theirs_at] = ours_at
    return _by_dictionary(ours, theirs, matched, crowded) if len(crowded) else matched


def _pairs(ours: Listed, theirs: Listed, range_bits: int, place_bits: int) -> tuple[Ints, Ints, Ints]:
    """Places of ours and of theirs that look alike, and the ranges where more than one of a side or of both do."""
    keys = np.concatenate(
        [_keys(ours, 0, range_bits, place_bits), _keys(theirs, 1 << place_bits, range_bits, place_bits)]
    )
    keys.sort()
    alike = (keys[1:] ^ keys[:-1]) >> np.uint64(place_bits + 1) == 0
    side = (keys >> np.uint64(place_bits)).astype(np.uint8) & 1
    pair = alike & (side[:-1] < side[1:])
    odd = alike & ~pair
    odd[1:] |= alike[1:] & alike[:-1]
    crowded = np.unique(keys[:-1][odd] >> np.uint64(64 - range_bits)).astype(np.int64)
    left, place = flagged(pair), np.uint64((1 << place_bits) - 1)
    return (keys[left] & place).astype(np.int64), (keys[left + 1] & place).astype(np.int64), crowded


def _keys(listed: Listed, side: int, range_bits: int, place_bits: int) -> Limbs:
    """Range, beginning of the id, side and place, in one number each."""
    below = np.uint64(place_bits + 1)
    beginning = listed.ids.view(BIG)[:, 0].astype(np.uint64) >> np.uint64(range_bits) >> below << below
    key = listed.ranges.astype(np.uint64) << np.uint64(64 - range_bits) | beginning
    return np.asarray(key | np.arange(side, side + len(key), dtype=np.uint64))


def _alike(left: Rows, left_at: Ints, right: Rows, right_at: Ints) -> Flags:
    """Which ids at these places are equal in every byte."""
    these, those = left.view(np.uint64), right.view(np.uint64)
    equal = these.take(left_at, axis=0) == those.take(right_at, axis=0)
    return np.asarray(np.logical_and.reduce([equal[:, k] for k in range(equal.shape[1])]))


def _by_dictionary(ours: Listed, theirs: Listed, matched: Matched, ranges: Ints) -> Matched:
    """Match these ranges id by id, over whatever was found of them before."""
    twice: list[int] = []
    for number in ranges.tolist():
        start, end = _span(ours, number)
        matched.ours[start:end] = NOBODY
        listed: dict[bytes, int] = {}
        for place in range(*_span(theirs, number)):
            matched.theirs[place] = NOBODY
            if listed.setdefault(theirs.ids[place].tobytes(), place) != place:
                twice.append(place)
        beginnings = theirs.ids[slice(*_span(theirs, number)), :8].view(np.uint64)[:, 0]
        likely = np.isin(ours.ids[start:end, :8].view(np.uint64)[:, 0], beginnings)
        for mine in (flagged(likely) + start).tolist():
            partner = listed.get(ours.ids[mine].tobytes(), NOBODY)
            matched.ours[mine] = partner
            if partner != NOBODY:
                matched.theirs[partner] = mine
    return Matched(matched.ours, matched.theirs, np.array(twice, dtype=np.int64))


def _span(listed: Listed, number: int) -> tuple[int, int]:
    start = int(listed.starts[number])
    return start, start + int(listed.counts[number])
