"""Records, and the stores that keep them.

A record is bytes with a timestamp. Its id is the SHA-256 of the timestamp (8 bytes, big-endian) and the body, cut to
the id size of the store. So the receiver of a record can check that it is the one it asked for, and a peer can change
neither its bytes nor its place in the order unnoticed. A record without a body is an id whose bytes are elsewhere: such
an id cannot be checked.

Stores are opened by address: ``memory://``, ``sqlite:///x.db`` or a plain file name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np

from onefold.errors import BadInput, Misuse
from onefold.reconcile.items import INFINITY, Columns, Index, Items, Window, check_id_size, padded
from onefold.stores.addresses import nothing_at, scheme_of


class Record(NamedTuple):
    """Bytes with a time, known by their hash; `record` makes one."""

    timestamp: int
    id: bytes
    body: bytes | None = None
    """None: this store does not have the bytes."""

    @property
    def genuine(self) -> bool:
        """Whether the body is there and hashes to the id."""
        return self.body is not None and self.id == id_of(self.timestamp, self.body, len(self.id))


def id_of(timestamp: int, body: bytes, id_size: int = 32) -> bytes:
    """The id of these bytes at that time.

    >>> id_of(5, b"1 coffee").hex()[:16]
    '9ee51c12a16f99cf'
    """
    return sha256(timestamp.to_bytes(8) + body).digest()[:id_size]


def record(timestamp: int, body: bytes, id_size: int = 32) -> Record:
    """A record of these bytes; the time is a whole number from 0 to 2^64 - 2, in any unit.

    >>> record(5, b"a note").id.hex()[:8], record(5, b"a note") == record(5, b"a note")
    ('fe7f4f42', True)
    """
    if not 0 <= timestamp < INFINITY:
        raise BadInput(f"timestamp {timestamp} is no whole number from 0 to 2^64 - 2", timestamp=timestamp)
    return Record(timestamp, id_of(timestamp, body, id_size), body)


class Snapshot(Items, Protocol):
    """The records as they were at one moment, for one session. Close it afterwards; ``close`` may be called twice."""

    def close(self) -> None: ...


class Records(Protocol):
    """A set of records, each known by its id, ordered by time and id.

    Safe to share among threads, and among processes if it is a file. When ``add`` returns, the records are kept as
    durably as the store can.
    """

    @property
    def id_size(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, records: Sequence[Record]) -> list[bool]:
        """Store these records, all or none; for each, whether it is new. An existing record stays as it is.

        Bodies are not checked against ids: that is for the caller. `BadInput` for an id of another size, the timestamp
        2^64 - 1, or one id with two timestamps among these records.
        """

    def remove(self, ids: Sequence[bytes]) -> int:
        """Delete the records with these ids; how many there were."""

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, in the same order; None for a missing one."""

    def snapshot(self) -> Snapshot:
        """The records as they are now, without later changes."""

    def close(self) -> None:
        """Release the store; every later call raises `Misuse`. May be called twice."""


class Channel(Protocol):
    """Whole messages both ways, in order. `ConnectionError` when the connection is lost."""

    def send(self, data: bytes) -> None: ...

    def receive(self) -> bytes:
        """The next message of the other side; blocks for as long as the channel allows."""

    def close(self) -> None:
        """Never raises. May be called twice."""


def open_records(address: str, id_size: int | None = None, *, make: bool = True) -> Records:
    """The records at an address: a URL, or the name of a SQLite file.

    ``id_size`` is for a new store, by default 32; an existing store with another size is `Misuse`. Without ``make``, a
    file that holds no records is `Misuse`, and is not changed.

    >>> len(open_records("memory://"))
    0
    >>> open_records("redis://me:secret@db")
    Traceback (most recent call last):
    onefold.errors.Misuse: no records at redis://...; there are some at memory://, sqlite:///file.db, ...
    """
    scheme, path = scheme_of(address) if "://" in address else ("sqlite", address)
    if scheme == "memory":
        return MemoryRecords(32 if id_size is None else id_size)
    if scheme != "sqlite" or not path:
        raise nothing_at(address, "records", "memory://, sqlite:///file.db, sqlite:////folder/file.db, file.db")
    from onefold.reconcile.sqlite import SqliteRecords

    return SqliteRecords(path, id_size, make=make)


def by_id(records: Iterable[Record], id_size: int) -> dict[bytes, Record]:
    """The records by id, the first of each; `BadInput` that names a record that no store may take."""
    distinct: dict[bytes, Record] = {}
    for record in records:
        id = record.id.hex()
        if len(record.id) != id_size:
            raise BadInput(f"id {id} has {len(record.id)} bytes, must have {id_size}", id=id, id_size=id_size)
        if not 0 <= record.timestamp < INFINITY:
            text = f"timestamp {record.timestamp} of id {id} is no whole number from 0 to 2^64 - 2"
            raise BadInput(text, id=id, timestamp=record.timestamp)
        first = distinct.setdefault(record.id, record)
        if first.timestamp != record.timestamp:
            text = f"id {id} comes with two timestamps, {first.timestamp} and {record.timestamp}"
            raise BadInput(text, id=id, timestamps=(first.timestamp, record.timestamp))
    return distinct


def flags(records: Sequence[Record], new: Iterable[bytes]) -> list[bool]:
    """For each record, whether it is new: of records with one new id, only the first is."""
    firsts = set(new)
    answers = []
    for record in records:
        answers.append(record.id in firsts)
        firsts.discard(record.id)
    return answers


def columns_of(records: Iterable[Record], id_size: int) -> Columns:
    pairs = [(record.timestamp, record.id) for record in records]
    stamps = np.array([stamp for stamp, _ in pairs], dtype=np.uint64)
    ids = np.frombuffer(b"".join(id for _, id in pairs), dtype=np.uint8).reshape(len(pairs), id_size)
    return Columns.sorted_from(stamps, padded(ids, id_size))


class MemorySnapshot(Window):
    """All records at one moment. It shares the immutable columns of the set: nothing is copied."""

    def close(self) -> None: ...


class MemoryRecords:
    """`Records` in a dict, with an index beside it.

    >>> records = MemoryRecords()
    >>> records.add([record(5, b"1 coffee"), record(5, b"1 coffee"), record(6, b"2 teas")])
    [True, False, True]
    >>> len(records.snapshot())
    2
    """

    def __init__(self, id_size: int = 32) -> None:
        self.id_size = check_id_size(id_size)
        self._records: dict[bytes, Record] = {}
        self._index = Index(id_size, columns_of([], id_size))
        self._lock = Lock()
        self._open = True

    def __len__(self) -> int:
        self._check_open()
        return len(self._records)

    def add(self, records: Sequence[Record]) -> list[bool]:
        distinct = by_id(records, self.id_size)
        with self._lock:
            self._check_open()
            new = {id: record for id, record in distinct.items() if id not in self._records}
            self._index = self._index.added(columns_of(new.values(), self.id_size))
            self._records.update(new)
        return flags(records, new)

    def remove(self, ids: Sequence[bytes]) -> int:
        with self._lock:
            self._check_open()
            records = {id: self._records[id] for id in ids if id in self._records}
            columns = columns_of(records.values(), self.id_size)
            self._index = self._index.removed(columns.timestamps, columns.ids)
            for id in records:
                del self._records[id]
        return len(records)

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        with self._lock:
            self._check_open()
            return [self._records.get(id) for id in ids]

    def snapshot(self) -> MemorySnapshot:
        with self._lock:
            self._check_open()
            return MemorySnapshot(self._index)

    def close(self) -> None:
        """Open snapshots stay usable."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("these records were closed")
