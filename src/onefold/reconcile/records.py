"""Records, and the stores that keep them.

A record is bytes with a timestamp, and the id that both are known by: the SHA-256 of the timestamp, 8 bytes big-endian,
and the body; of a set with shorter ids its first bytes. So whoever is sent a record can tell whether it is the one that
was asked for, and a peer can change neither its bytes nor its position in the order unseen. A record without a body is
an id that somebody else has the bytes of: its id is taken as it is told.

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
    """What two stores may each have: bytes with a time, known by their hash; `record` makes one."""

    timestamp: int
    id: bytes
    body: bytes | None = None
    """None: the bytes are not here."""

    @property
    def genuine(self) -> bool:
        """Whether the body is there and is the one that the id names."""
        return self.body is not None and self.id == id_of(self.timestamp, self.body, len(self.id))


def id_of(timestamp: int, body: bytes, id_size: int = 32) -> bytes:
    """The id of these bytes at that time.

    >>> id_of(5, b"1 coffee").hex()[:16]
    '9ee51c12a16f99cf'
    """
    return sha256(timestamp.to_bytes(8) + body).digest()[:id_size]


def record(timestamp: int, body: bytes, id_size: int = 32) -> Record:
    """A record of these bytes at that time, whole from 0 to 2^64 - 2 in a unit of yours; its id is their SHA-256.

    >>> record(5, b"a note").id.hex()[:8], record(5, b"a note") == record(5, b"a note")
    ('fe7f4f42', True)
    """
    if not 0 <= timestamp < INFINITY:
        raise BadInput(f"timestamp {timestamp} is no whole number from 0 to 2^64 - 2", timestamp=timestamp)
    return Record(timestamp, id_of(timestamp, body, id_size), body)


class Snapshot(Items, Protocol):
    """The records as they were at one moment, for one session; to be closed when that is over, once or twice."""

    def close(self) -> None: ...


class Records(Protocol):
    """A set of records, each known by its id, in the order of time and id.

    Shared by threads, and by processes if it is a file. What was added is kept when ``add`` returns, as durably as the
    store can.
    """

    @property
    def id_size(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, records: Sequence[Record]) -> list[bool]:
        """Keep these, all or none; for each whether it is new. One that is there already stays as it is.

        A body is not held against its id: that is for whoever got it from somewhere. `BadInput` for an id of another
        size, the timestamp 2^64 - 1, or two records of one id among these with different timestamps.
        """

    def remove(self, ids: Sequence[bytes]) -> int:
        """Forget these; how many there were."""

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, in the same order; None for one that is not there."""

    def snapshot(self) -> Snapshot:
        """The records as they are now; later changes do not show in it."""

    def close(self) -> None:
        """Let go of the store; every other call is `Misuse` from then on. May be called twice."""


class Channel(Protocol):
    """Bytes both ways, in whole messages and in order. `ConnectionError` when it is lost."""

    def send(self, data: bytes) -> None: ...

    def receive(self) -> bytes:
        """The next message of the other side; waits for it, within the limits of the channel."""

    def close(self) -> None:
        """Say good-bye; never raises. May be called twice."""


def open_records(address: str, id_size: int | None = None, *, make: bool = True) -> Records:
    """The records at an address; what is not a URL is the name of a SQLite file.

    ``id_size`` is that of a new store, by default 32; to ask one that is there for another is `Misuse`. Without
    ``make``, a file that holds no records is `Misuse`, and is left as it is.

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
    """The records, each once, of equal ids the first; `BadInput` naming one that no store may take."""
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
    """For each record whether it is new: of equal ones the first is."""
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
    """All records of one moment. It shares the columns of the set, which never change: nothing is copied."""

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
        """Snapshots that are open go on."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("these records were closed")
