"""Leaves: stretches of some hundred records in order, each one blob; and the directory, which has a line for each.

A line of the directory says which records are the first and the last of its leaf, how many there are, and the sum and
the exclusive or of their ids. Added up from the first leaf to the last, these are the totals at the edges of leaves. So
from the directory alone comes every answer about edges: the rank of a bound between two leaves, the fingerprint of
whole leaves, the records beside an edge. Only for what lies inside a leaf has that leaf to be read.

A line is kept in the bytes that numpy reads it from. Its first field is the first record, timestamp and id big-endian:
lines sorted as bytes are in the order of the records. A checksum of the leaf is part of it: SQLite has none of its own,
and a rotten leaf must not look like a difference.

Cost: 200 bytes per leaf with 32-byte ids, for a million records 400 kB.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from onefold.engines.negentropy.arrays import Ints, Limbs, Rows, Stamps, padded, width_of
from onefold.engines.negentropy.bound import Bounds
from onefold.engines.negentropy.columns import LITTLE, Columns
from onefold.engines.negentropy.fingerprint import minus, running_sums, running_xors

LEAF_ITEMS: Final = 512
"""Records of a leaf that is cut anew; it may grow to twice that. 20 kB are five pages of SQLite: a difference costs one
such read on the way, and a record that comes one such write. Smaller leaves would make the directory large."""

Lines = NDArray[np.void]


@cache
def line_type(id_size: int) -> np.dtype[np.void]:
    """How a line of the directory lies in memory and in the file."""
    item = [("stamp", ">u8"), ("id", "u1", (id_size,))]
    total = "<u8", (width_of(id_size) // 8,)
    fields: list[Any] = [("first", item), ("last", item), ("count", "<u8"), ("sum", *total), ("xor", *total)]
    return np.dtype([*fields, ("checksum", "<u4"), ("number", "<u8")])


class Loaded(NamedTuple):
    """Some leaves, read: by their places in the directory, their records one behind another."""

    leaves: Ints
    records: Columns
    begins: Ints
    """Where each leaf begins among the records; at the end, how many there are."""

    def part(self, leaf: int) -> Columns:
        """The records of one of these leaves."""
        at = int(np.searchsorted(self.leaves, leaf))
        own = slice(int(self.begins[at]), int(self.begins[at + 1]))
        return Columns(self.records.timestamps[own], self.records.ids[own])


class Directory:
    """The lines of all leaves, in order, as they are at a version of the file."""

    def __init__(self, id_size: int, version: int, lines: Lines) -> None:
        self.id_size = id_size
        self.version = version
        self.lines = lines

    def __len__(self) -> int:
        """How many leaves there are."""
        return len(self.lines)

    @cached_property
    def firsts(self) -> Columns:
        """The first record of each leaf."""
        return _edges(self.lines["first"], self.id_size)

    @cached_property
    def lasts(self) -> Columns:
        """The last record of each leaf."""
        return _edges(self.lines["last"], self.id_size)

    @cached_property
    def counts(self) -> Ints:
        """How many records each leaf holds."""
        return np.asarray(self.lines["count"].astype(np.int64))

    @cached_property
    def starts(self) -> Ints:
        """The rank that each leaf begins with; at the end, how many records there are."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.counts)))

    @cached_property
    def sums(self) -> Limbs:
        """The sums of the ids in the first 0, 1, ... n leaves."""
        return running_sums(self.lines["sum"])

    @cached_property
    def xors(self) -> Limbs:
        """The exclusive ors of the ids in the first 0, 1, ... n leaves."""
        return running_xors(self.lines["xor"])

    def around(self, bounds: Bounds) -> tuple[Ints, Ints]:
        """For each bound, how many leaves lie wholly below it, and how many begin below it.

        If these are the same the bound lies at an edge; if not, inside the leaf with the first number.
        """
        return self.lasts.find(bounds), self.firsts.find(bounds)

    def leaf_of(self, ranks: Ints) -> Ints:
        """The leaf of each rank; for the rank above all records, one above all leaves."""
        return np.searchsorted(self.starts, ranks, side="right") - 1

    def groups(self, leaves: Ints, items_max: int) -> list[Ints]:
        """Ascending leaves, in groups of hardly more records than this."""
        steps = np.diff(np.cumsum(self.counts[leaves]) // items_max)
        return np.split(leaves, np.flatnonzero(steps) + 1) if len(leaves) else []

    def loaded(self, leaves: Ints, parts: Sequence[Columns]) -> Loaded:
        """Ascending leaves, with the records of each."""
        begins = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.counts[leaves])))
        stamps = np.concatenate([np.zeros(0, dtype=np.uint64), *(part.timestamps for part in parts)])
        ids = np.concatenate([np.zeros((0, width_of(self.id_size)), np.uint8), *(part.ids for part in parts)])
        return Loaded(leaves, Columns(stamps, ids), begins)

    def replaced(self, gone: Ints, places: Ints, lines: Lines) -> Directory:
        """The next version: without some leaves, and with new ones, each before what was at its place."""
        kept = np.delete(self.lines, gone)
        return Directory(self.id_size, self.version + 1, np.insert(kept, places - np.searchsorted(gone, places), lines))


def _edges(items: Any, id_size: int) -> Columns:
    return Columns(items["stamp"].astype(np.uint64), padded(items["id"], width_of(id_size)))


def packed(records: Columns, id_size: int) -> bytes:
    """The records of a leaf as they are kept: all timestamps, then all ids."""
    return records.timestamps.astype(LITTLE).tobytes() + records.ids[:, :id_size].tobytes()


def unpacked(blob: bytes, count: int, id_size: int) -> Columns:
    """The records of a leaf, without a copy where ids are whole limbs."""
    stamps: Stamps = np.frombuffer(blob, dtype=LITTLE, count=count).astype(np.uint64, copy=False)
    ids: Rows = np.frombuffer(blob, dtype=np.uint8, offset=8 * count).reshape(count, id_size)
    return Columns(stamps, padded(ids, width_of(id_size)))


def sizes_of(totals: Ints, leaf_items: int) -> tuple[Ints, Ints]:
    """How stretches with so many records are cut into leaves: the size of each leaf, and which stretch it is of.

    What fits into one leaf is one; else all leaves of a stretch have about the same size.

    >>> [column.tolist() for column in sizes_of(np.array([0, 20, 33]), 10)]
    [[20, 11, 11, 11], [1, 2, 2, 2]]
    """
    pieces = np.where(totals > 2 * leaf_items, totals // leaf_items, np.minimum(totals, 1))
    each, left = np.divmod(totals, np.maximum(pieces, 1))
    source = np.repeat(np.arange(len(totals)), pieces)
    number = np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return each[source] + (number < left[source]), source


def cut(records: Columns, sizes: Ints, id_size: int, number: int) -> tuple[Lines, list[bytes]]:
    """Records as leaves of these sizes, numbered from here on: their lines, and their blobs."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    lines = np.zeros(len(sizes), dtype=line_type(id_size))
    for name, places in (("first", starts), ("last", ends - 1)):
        lines[name]["stamp"] = records.timestamps[places]
        lines[name]["id"] = records.ids[places, :id_size]
    lines["count"], lines["number"] = sizes, np.arange(number, number + len(sizes))
    lines["sum"] = minus(records.sums[ends], records.sums[starts])
    lines["xor"] = records.xors[ends] ^ records.xors[starts]
    blobs = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        blobs.append(packed(Columns(records.timestamps[start:end], records.ids[start:end]), id_size))
    lines["checksum"] = [crc32(blob) for blob in blobs]
    return lines, blobs
