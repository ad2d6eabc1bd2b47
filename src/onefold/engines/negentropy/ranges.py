"""Ranges of the universe of records, as columns: what a message is made of.

A range has a lower and an upper bound, a mode, and the ranks of our own records that lie in it. On the wire only upper
bounds are written: a range begins where the one before it ended. So a hole between two ranges becomes a range of its
own with mode Skip, and a message that ends before the universe does skips the rest.

    Skip          nothing is asked or told about this range
    Fingerprint   one value for all ids in it
    IdList        all ids of the sender in it
    Response      xor only, server to client: ids that the client lacks, and a bit per listed id that the server lacks

To *split* a range of many records is to cut ours into ``pieces`` of equal size, with a fingerprint each; a range of few
is listed. Cost: numpy operations over all ranges at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Rows, flagged
from onefold.engines.negentropy.bound import INFINITY, Bounds, between
from onefold.engines.negentropy.items import Items


class Mode:
    """What a range says. Plain numbers: numpy is slow to compare a column with a member of an enumeration."""

    SKIP: Final = 0
    FINGERPRINT: Final = 1
    ID_LIST: Final = 2
    RESPONSE: Final = 3


@dataclass(frozen=True)
class Ranges:
    """Ascending, not overlapping ranges, with our ranks; ``payloads`` hold what a Response says."""

    lower: Bounds
    upper: Bounds
    modes: Rows
    first: Ints
    last: Ints
    payloads: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.modes)

    def sizes(self) -> Ints:
        """How many records of ours lie in each."""
        return self.last - self.first

    def take(self, which: Ints | Flags | slice) -> Ranges:
        """Some of them, in that order."""
        payloads: Sequence[bytes] = ()
        if self.payloads:
            numbers = np.arange(len(self))[which].tolist()
            payloads = [self.payloads[number] for number in numbers]
        return Ranges(
            self.lower.take(which),
            self.upper.take(which),
            self.modes[which],
            self.first[which],
            self.last[which],
            payloads,
        )

    def head(self, count: int) -> Ranges:
        """The first few. Cost: none, the columns are shared."""
        return self.take(slice(0, count))

    def tail(self, start: int) -> Ranges:
        """All but the first few. Cost: none, the columns are shared."""
        return self.take(slice(start, None))

    def shortened(self, items: Items, count: int) -> Ranges:
        """The same, the last of them cut behind its first few records."""
        end = self.first[-1:] + count
        upper = Bounds.join([self.upper.take(slice(0, -1)), _separators(items, end)])
        return replace(self, upper=upper, last=np.concatenate((self.last[:-1], end)))

    @staticmethod
    def join(parts: Sequence[Ranges]) -> Ranges:
        """All of them, one part after another."""
        payloads: list[bytes] = []
        if any(part.payloads for part in parts):
            for part in parts:
                payloads += part.payloads or [b""] * len(part)
        return Ranges(
            Bounds.join([part.lower for part in parts]),
            Bounds.join([part.upper for part in parts]),
            np.concatenate([part.modes for part in parts]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.last for part in parts]),
            payloads,
        )


def no_ranges(id_size: int) -> Ranges:
    """None at all."""
    none, nowhere = np.zeros(0, dtype=np.int64), Bounds.one(0, b"", id_size).take(slice(0, 0))
    return Ranges(nowhere, nowhere, none.astype(np.uint8), none, none)


def universe(items: Items) -> Ranges:
    """One range with everything in it."""
    lower, upper = Bounds.one(0, b"", items.id_size), Bounds.one(INFINITY, b"", items.id_size)
    mode = np.array([Mode.FINGERPRINT], dtype=np.uint8)
    return Ranges(lower, upper, mode, np.array([0]), np.array([len(items)]))


def listed(ranges: Ranges) -> Ranges:
    """The same ranges, to be listed."""
    return replace(ranges, modes=np.full(len(ranges), Mode.ID_LIST, dtype=np.uint8))


def split(items: Items, ranges: Ranges, pieces: int, list_below: int) -> tuple[Ranges, Ints]:
    """Each range cut into pieces, or listed; and of each result, which range it came from.

    The first pieces get the records that are left over, as the published implementations do. Where the set moves its
    cuts the pieces are of other sizes, and may be fewer, but at least two.
    """
    if not len(ranges):
        return ranges, ranges.first
    large = ranges.sizes() >= list_below
    cuts, owner = _cuts(items, ranges, flagged(large), pieces)
    source = np.arange(len(ranges)).repeat(1 + np.bincount(owner, minlength=len(ranges)))
    begun = np.arange(len(cuts)) + owner + 1  # the pieces that begin with a cut: each range has one that does not
    lower, upper, separators = ranges.lower.take(source), ranges.upper.take(source), _separators(items, cuts)
    first, last = ranges.first[source], ranges.last[source]
    lower.put(begun, separators)
    upper.put(begun - 1, separators)
    first[begun] = last[begun - 1] = cuts
    modes = np.where(large, np.uint8(Mode.FINGERPRINT), np.uint8(Mode.ID_LIST))[source]
    return Ranges(lower, upper, modes, first, last), source


def _cuts(items: Items, ranges: Ranges, which: Ints, pieces: int) -> tuple[Ints, Ints]:
    """The ranks at which these ranges are cut into pieces of equal size, or near them; and which range each cuts."""
    each, left = np.divmod(ranges.sizes()[which, None], pieces)
    number = np.arange(1, pieces)
    even = ranges.first[which, None] + number * each + np.minimum(number, left)
    owner = which.repeat(pieces - 1)
    cuts = items.cuts(even.ravel(), ranges.first[owner], ranges.last[owner])
    again = cuts[1:] == cuts[:-1]  # a cut lies inside its range, so those of two ranges never coincide
    if not again.any():
        return cuts, owner
    once = np.append(True, ~again)
    return cuts[once], owner[once]


def _separators(items: Items, ranks: Ints) -> Bounds:
    """The shortest bounds between the records at these ranks and those before them, by one look at the set."""
    stamps, ids = items.rows(np.concatenate((ranks - 1, ranks)))
    half = len(ranks)
    return between((stamps[:half], ids[:half]), (stamps[half:], ids[half:]))
