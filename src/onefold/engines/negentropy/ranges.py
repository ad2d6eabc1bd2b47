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

from onefold.engines.negentropy.arrays import Flags, Ints, Rows
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
        cut = between(items.rows(end - 1), items.rows(end))
        upper = Bounds.join([self.upper.take(slice(0, -1)), cut])
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

    The first pieces get the records that are left over, as the published implementations do.
    """
    if not len(ranges):
        return ranges, ranges.first
    sizes = ranges.sizes()
    large = sizes >= list_below
    counts = np.where(large, pieces, 1)
    source = np.repeat(np.arange(len(ranges)), counts)
    starts = np.cumsum(counts) - counts
    number = np.arange(len(source)) - starts[source]
    each, left = np.divmod(sizes, counts)
    first = ranges.first[source] + number * each[source] + np.minimum(number, left[source])
    last = first + each[source] + (number < left[source])
    cuts = np.flatnonzero(number)
    separators = between(items.rows(first[cuts] - 1), items.rows(first[cuts]))
    lower, upper = _copy(ranges.lower.take(source)), _copy(ranges.upper.take(source))
    for bounds, places in ((lower, cuts), (upper, cuts - 1)):
        bounds.timestamps[places], bounds.ids[places] = separators.timestamps, separators.ids
        bounds.lengths[places] = separators.lengths
    modes = np.where(large, np.uint8(Mode.FINGERPRINT), np.uint8(Mode.ID_LIST))[source]
    return Ranges(lower, upper, modes, first, last), source


def _copy(bounds: Bounds) -> Bounds:
    """Bounds of one's own, to write into."""
    return Bounds(bounds.timestamps.copy(), bounds.ids.copy(), bounds.lengths.copy())
