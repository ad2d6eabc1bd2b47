"""The records of one side: a timestamp and an id each. Any order will do for a timestamp; an id is a hash, mostly.

``ItemSet`` collects them, and ``seal`` sorts them. Two records with one id are refused: an exclusive or would cancel
them, and no peer could tell which one is meant. So is the timestamp 2^64 - 1, which means "above everything". After
sealing, records can still come and go, at a small cost each (see `index`).

``Items`` is the door that a session knocks at. Whatever can find bounds, add up ranges and list records can stand
behind a session: an ``ItemSet``, a table in a database, a table in Spark. All its verbs take many at once, because a
message has many ranges. Two of them are for sets that are far away, so that a message costs few reads: ``expect`` says
what will be asked about, and ``cuts`` lets a set choose where ranges are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Rows, Stamps, flagged, padded, texts, width_of
from onefold.engines.negentropy.bound import INFINITY, Bounds
from onefold.engines.negentropy.columns import Columns
from onefold.engines.negentropy.index import Index
from onefold.errors import BadInput, Misuse

ID_SIZES: Final = range(8, 33)  # as the source document has it; shorter ones collide too soon


class Items(Protocol):
    """Sorted records, as a session needs them. Ranges are pairs of ranks: the lower is part of it, the upper not.

    Any verb may be asked about nothing, and then does nothing.
    """

    @property
    def id_size(self) -> int:
        """How many bytes an id has."""
        ...

    def __len__(self) -> int: ...

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """A hint, to fetch all at once: the next questions are about the ranges that end at these ascending bounds.

        Each range begins where the one before it ends, the first one at the origin. Of a flagged one every record will
        be asked for, unless there are more of them than fit into a frame: then it is split as the others are. Of the
        others a set that keeps its records in leaves, and cuts between them, is asked for nothing but the leaves in
        which a bound lies, and ranges that are no longer than a leaf.
        """
        ...

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """Where to cut, near these ranks: each answer strictly between its lower and its upper, which end its range.

        A set that is far away moves a cut to where it need not look. The ranks of a range ascend, and so do the
        answers; of equal ones one is kept.
        """
        ...

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        ...

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids as little-endian numbers, modulo 2^(8 width): limbs, the lowest first."""
        ...

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids, as rows of whole limbs."""
        ...

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks: timestamps, and ids as rows of whole limbs (`arrays.width_of`)."""
        ...

    def snapshot(self) -> Items:
        """The same records, standing still while a session is under way."""
        ...


class ItemSet:
    """Records in memory.

    >>> items = ItemSet(id_size=8)
    >>> items.add(5, b"record-b"); items.add(3, b"record-a")
    >>> items.seal()
    >>> items.add(4, b"record-c"); items.remove(5, b"record-b")
    >>> len(items), items.ids()
    (2, [b'record-a', b'record-c'])
    """

    def __init__(self, id_size: int = 32) -> None:
        if id_size not in ID_SIZES:
            raise Misuse(f"id_size is {id_size}, must be from {ID_SIZES[0]} to {ID_SIZES[-1]}", id_size=id_size)
        self.id_size = id_size
        self._waiting: list[tuple[Stamps, Rows]] = []
        self._single: list[tuple[int, bytes]] = []
        self._index: Index | None = None

    @staticmethod
    def from_arrays(timestamps: ArrayLike, ids: Rows | Sequence[bytes], id_size: int | None = None) -> ItemSet:
        """A set of these records; ids are rows of bytes, or a list of bytes. It still has to be sealed."""
        if id_size is None:
            id_size = ids.shape[-1] if isinstance(ids, np.ndarray) else len(ids[0]) if len(ids) else 32
        items = ItemSet(id_size)
        items.add_many(timestamps, ids)
        return items

    def __len__(self) -> int:
        if self._index is not None:
            return len(self._index)
        return len(self._single) + sum(len(stamps) for stamps, _ in self._waiting)

    def add(self, timestamp: int, id: bytes) -> None:
        """Take one record in. Before sealing this only collects; what is wrong with it is found by ``seal``."""
        if self._index is None:
            self._single.append((timestamp, id))
        else:
            self.add_many([timestamp], [id])

    def add_many(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> None:
        """Take many records in."""
        stamps, rows = _stamps(timestamps), self._rows(ids)
        if len(stamps) != len(rows):
            raise Misuse(f"{len(stamps)} timestamps and {len(rows)} ids", timestamps=len(stamps), ids=len(rows))
        if self._index is None:
            self._waiting.append((stamps, rows))
            return
        records = _checked(stamps, rows, self.id_size)
        if known := self._index.known(records.ids):
            raise _twice(records.ids[known[0]], self.id_size)
        self._index = self._index.added(records)

    def remove(self, timestamp: int, id: bytes) -> None:
        """Take one record out; the set must be sealed, and hold it."""
        self.remove_many([timestamp], [id])

    def remove_many(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> None:
        """Take many records out; the set must be sealed, and hold them all."""
        index, stamps, rows = self.snapshot(), _stamps(timestamps), self._rows(ids)
        if len(stamps) != len(rows):
            raise Misuse(f"{len(stamps)} timestamps and {len(rows)} ids", timestamps=len(stamps), ids=len(rows))
        records = _checked(stamps, rows, self.id_size)
        if not (there := index.holds(records.timestamps, records.ids)).all():
            lost = int(flagged(~there)[0])
            stamp, id = int(records.timestamps[lost]), records.ids[lost, : self.id_size].tobytes().hex()
            raise BadInput(f"no record with timestamp {stamp} and id {id}", timestamp=stamp, id=id)
        self._index = index.removed(records.timestamps, records.ids)

    def seal(self) -> None:
        """Sort what was collected. Bad input: an id that is there twice or has another size, the timestamp 2^64 - 1."""
        if self._index is not None:
            raise Misuse("the set is sealed already")
        waiting = list(self._waiting)
        if self._single:
            waiting.append((_stamps([stamp for stamp, _ in self._single]), self._rows([id for _, id in self._single])))
        stamps = np.concatenate([np.zeros(0, dtype=np.uint64), *(stamps for stamps, _ in waiting)])
        rows = np.concatenate([np.zeros((0, width_of(self.id_size)), np.uint8), *(rows for _, rows in waiting)])
        self._index = Index(self.id_size, _checked(stamps, rows, self.id_size))
        self._waiting, self._single = [], []

    def snapshot(self) -> Index:
        """The records as they are now; later changes do not show in it."""
        if self._index is None:
            raise Misuse("the set is not sealed: call seal() first")
        return self._index

    def ids(self) -> list[bytes]:
        """All ids, in order."""
        rows = self.snapshot().rows(np.arange(len(self)))[1]
        return [row[: self.id_size].tobytes() for row in rows]

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Nothing to fetch: all is in memory."""

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks: one place is as near as another."""
        return ranks

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        return self.snapshot().find(bounds)

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids."""
        return self.snapshot().sums(lower, upper)

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        return self.snapshot().xors(lower, upper)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks."""
        return self.snapshot().rows(ranks)

    def _rows(self, ids: Rows | Sequence[bytes]) -> Rows:
        """The ids as rows of whole limbs; BadInput for one of another size."""
        if isinstance(ids, np.ndarray):
            if ids.ndim != 2 or ids.dtype != np.uint8:
                raise Misuse(f"ids are {ids.dtype} of shape {ids.shape}, must be uint8 of shape (n, {self.id_size})")
            if ids.shape[1] != self.id_size:
                raise _wrong_size(0, ids.shape[1], self.id_size)
            return padded(ids, width_of(self.id_size))
        for place, id in enumerate(ids):
            if len(id) != self.id_size:
                raise _wrong_size(place, len(id), self.id_size)
        rows = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), self.id_size)
        return padded(rows, width_of(self.id_size))


def _stamps(timestamps: ArrayLike) -> Stamps:
    """Timestamps as they are kept; BadInput for one that does not fit."""
    stamps = np.asarray(timestamps)
    if stamps.dtype.kind not in "iu":  # a mixture in which numpy sees no whole numbers of 64 bits
        values = timestamps if isinstance(timestamps, list) else stamps.tolist()
        for place, value in enumerate(values):
            if not isinstance(value, int) or not 0 <= value <= INFINITY:
                raise BadInput(f"timestamp {value!r} is no whole number from 0 to 2^64 - 2", place=place, value=value)
        return np.array(values, dtype=np.uint64)
    if len(below := flagged(stamps < 0)):
        value = int(stamps[below[0]])
        raise BadInput(f"timestamp {value} is below 0", place=int(below[0]), value=value)
    return stamps.astype(np.uint64)


def _checked(stamps: Stamps, rows: Rows, id_size: int) -> Columns:
    """The records in order, or BadInput that names the first one that may not be there."""
    if len(reserved := flagged(stamps == np.uint64(INFINITY))):
        id = rows[reserved[0], :id_size].tobytes().hex()
        raise BadInput(f"timestamp 2^64 - 1 of id {id} is reserved", timestamp=INFINITY, id=id)
    records = Columns.sorted_from(stamps, rows)
    if (records.beginnings[1:] == records.beginnings[:-1]).any():  # alike at the beginning: look at them whole
        ids = np.sort(texts(records.ids))
        if len(equal := flagged(ids[1:] == ids[:-1])):
            raise _twice(np.frombuffer(ids[equal[0]].ljust(rows.shape[1], b"\0"), dtype=np.uint8), id_size)
    return records


def _twice(row: Rows, id_size: int) -> BadInput:
    id = row[:id_size].tobytes().hex()
    return BadInput(f"id {id} is there twice", id=id)


def _wrong_size(place: int, size: int, id_size: int) -> BadInput:
    return BadInput(f"id {place} has {size} bytes, must have {id_size}", place=place, size=size, id_size=id_size)
