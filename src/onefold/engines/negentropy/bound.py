"""Where ranges begin and end: a timestamp and the beginning of an id, as short as it can be.

Two sides have different records, so a range cannot be named by positions. It is named by *bounds*: a lower one, which
is part of it, and an upper one, which is not. A bound that separates two neighbours needs the timestamp of the second
alone if the timestamps differ, else one byte more than what their ids share at the beginning; the rest of the id is
zeros. The timestamp 2^64 - 1 is reserved: with it a bound lies above every record.

Bounds come as columns, many at once. Cost: a few numpy operations, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onefold.engines.negentropy.arrays import Flags, Ints, Rows, Stamps, firsts_differ, texts, width_of

INFINITY: Final = 2**64 - 1


@dataclass(frozen=True)
class Bounds:
    """Many bounds: timestamps, ids filled up with zeros, and how many bytes of each id are written down."""

    timestamps: Stamps
    ids: Rows
    lengths: Ints

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, which: Ints | Flags | slice) -> Bounds:
        """Some of them, in that order."""
        return Bounds(self.timestamps[which], self.ids[which], self.lengths[which])

    def keys(self) -> NDArray[Any]:
        """One value each that compares as the bounds do.

        >>> two = Bounds.join([Bounds.one(5, b"b", 8), Bounds.one(5, b"ab", 8)])
        >>> np.argsort(two.keys()).tolist()
        [1, 0]
        """
        stamps = self.timestamps.astype(">u8").view(np.uint8).reshape(len(self), 8)
        return texts(np.concatenate((stamps, self.ids), axis=1))

    def below(self, other: Bounds) -> Flags:
        """Which of these bounds are below the other one in the same place."""
        tied = (self.timestamps == other.timestamps) & (texts(self.ids) < texts(other.ids))
        return np.asarray((self.timestamps < other.timestamps) | tied)

    def equal(self, other: Bounds) -> Flags:
        """Which of these bounds are equal to the other one in the same place."""
        return np.asarray((self.timestamps == other.timestamps) & (texts(self.ids) == texts(other.ids)))

    @staticmethod
    def one(timestamp: int, prefix: bytes, id_size: int) -> Bounds:
        """A single bound."""
        ids = np.zeros((1, width_of(id_size)), dtype=np.uint8)
        ids[0, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
        return Bounds(np.array([timestamp], dtype=np.uint64), ids, np.array([len(prefix)]))

    @staticmethod
    def join(parts: Sequence[Bounds]) -> Bounds:
        """All of them, one part after another."""
        return Bounds(
            np.concatenate([part.timestamps for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    @staticmethod
    def choose(first: Flags, these: Bounds, those: Bounds) -> Bounds:
        """These where the flag is set, and those where it is not."""
        return Bounds(
            np.where(first, these.timestamps, those.timestamps),
            np.where(first[:, None], these.ids, those.ids),
            np.where(first, these.lengths, those.lengths),
        )


@cache
def origin(id_size: int) -> Bounds:
    """The bound below everything; shared, so nobody may write into it."""
    return Bounds.one(0, b"", id_size)


def begun(timestamps: Stamps, ids: Rows, lengths: Ints) -> Bounds:
    """Bounds of these timestamps and of the first bytes of these ids."""
    kept = np.arange(ids.shape[1]) < lengths[:, None]
    return Bounds(timestamps, np.where(kept, ids, np.uint8(0)), lengths)


def between(left: tuple[Stamps, Rows], right: tuple[Stamps, Rows]) -> Bounds:
    """The shortest bounds that separate records from their successors: above each left one, not above the right one.

    >>> stamps, ids = np.array([5, 5], dtype=np.uint64), np.frombuffer(b"aaaaaaaaaabbbbbb", dtype=np.uint8)
    >>> bounds = between((stamps[:1], ids.reshape(2, 8)[:1]), (stamps[1:], ids.reshape(2, 8)[1:]))
    >>> bounds.timestamps.tolist(), bounds.ids.tobytes(), bounds.lengths.tolist()
    ([5], b'aab\\x00\\x00\\x00\\x00\\x00', [3])
    """
    lengths = np.zeros(len(right[0]), dtype=np.int64)
    tied = np.flatnonzero(left[0] == right[0])
    lengths[tied] = firsts_differ(left[1][tied], right[1][tied]) + 1
    return begun(right[0], right[1], lengths)
