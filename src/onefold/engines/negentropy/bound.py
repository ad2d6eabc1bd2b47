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
from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import (
    Flags,
    Ints,
    Rows,
    Stamps,
    blobs,
    firsts_differ,
    flagged,
    texts,
    whole,
    width_of,
)

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
        if isinstance(which, slice):
            return Bounds(self.timestamps[which], self.ids[which], self.lengths[which])
        if which.dtype == np.bool_:
            which = flagged(which)
        return Bounds(self.timestamps[which], self.ids.take(which, axis=0), self.lengths[which])

    def below(self, other: Bounds) -> Flags:
        """Which of these bounds are below the other one in the same place."""
        below = self.timestamps < other.timestamps
        tied = flagged(self.timestamps == other.timestamps)
        below[tied] = texts(self.ids[tied]) < texts(other.ids[tied])
        return below

    def equal(self, other: Bounds) -> Flags:
        """Which of these bounds are equal to the other one in the same place."""
        return np.asarray((self.timestamps == other.timestamps) & (texts(self.ids) == texts(other.ids)))

    def put(self, places: Ints | Flags, others: Bounds) -> None:
        """Write others over some of these, which must be nobody else's."""
        self.timestamps[places], self.lengths[places] = others.timestamps, others.lengths
        whole(self.ids)[places] = whole(others.ids)

    def one_by_one(self) -> list[tuple[int, bytes, int]]:
        """Each as timestamp, id and length: for few of them plain values are faster than columns."""
        return list(zip(self.timestamps.tolist(), blobs(self.ids), self.lengths.tolist(), strict=True))

    @staticmethod
    def of(timestamps: list[int], prefixes: list[bytes], id_size: int) -> Bounds:
        """Bounds of these timestamps and beginnings of ids."""
        width = width_of(id_size)
        ids = bytearray().join(prefix.ljust(width, b"\0") for prefix in prefixes)
        rows = np.frombuffer(ids, dtype=np.uint8).reshape(-1, width)
        return Bounds(np.array(timestamps, dtype=np.uint64), rows, np.array([*map(len, prefixes)], dtype=np.int64))

    @staticmethod
    def one(timestamp: int, prefix: bytes, id_size: int) -> Bounds:
        """A single bound."""
        return Bounds.of([timestamp], [prefix], id_size)

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
    rows, long = np.zeros_like(ids), flagged(lengths)
    kept = np.arange(ids.shape[1]) < lengths[long, None]
    whole(rows)[long] = whole(ids.take(long, axis=0) * kept)
    return Bounds(timestamps, rows, lengths)


def between(left: tuple[Stamps, Rows], right: tuple[Stamps, Rows]) -> Bounds:
    """The shortest bounds that separate records from their successors: above each left one, not above the right one.

    >>> stamps, ids = np.array([5, 5], dtype=np.uint64), np.frombuffer(b"aaaaaaaaaabbbbbb", dtype=np.uint8)
    >>> bounds = between((stamps[:1], ids.reshape(2, 8)[:1]), (stamps[1:], ids.reshape(2, 8)[1:]))
    >>> bounds.timestamps.tolist(), bounds.ids.tobytes(), bounds.lengths.tolist()
    ([5], b'aab\\x00\\x00\\x00\\x00\\x00', [3])
    """
    lengths = np.zeros(len(right[0]), dtype=np.int64)
    tied = flagged(left[0] == right[0])
    lengths[tied] = firsts_differ(left[1][tied], right[1][tied]) + 1
    return begun(right[0], right[1], lengths)
