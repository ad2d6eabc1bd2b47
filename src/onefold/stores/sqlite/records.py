"""Records in a SQLite file, for sets that are larger than memory allows: shared by threads and processes.

Every change is one transaction, synced before it returns. Beside the records it writes the leaves that they belong to
(`record_leaves`), so a session reads a directory and a few leaves, never the whole set. The directory is kept in
memory with the version that it is of; every change raises the version in the file. So a new session reads it again only
if another process wrote, and its own changes are put into it as they are made.

A snapshot is a read transaction on a connection of its own: it waits for no writer, and no writer waits for it. While
one is open SQLite's log grows with what is written, so a session should end some time. How many are open at once is for
the caller to bound.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from os import PathLike
from os.path import abspath
from threading import Lock
from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import Ints, Rows, Stamps, blobs, padded, texts, width_of
from onefold.engines.negentropy.bound import INFINITY
from onefold.engines.negentropy.columns import Columns
from onefold.engines.negentropy.records import Record
from onefold.errors import BadInput, Misuse
from onefold.stores.records import by_id, columns_of, flags
from onefold.stores.sqlite.database import BUSY_S, Database
from onefold.stores.sqlite.record_changes import Leaves
from onefold.stores.sqlite.record_file import (
    SCHEMA,
    Beside,
    check_there,
    count_of,
    directory_of,
    drop_ids,
    founded,
    known_ids,
    put_ids,
    read_records,
    set_version,
)
from onefold.stores.sqlite.record_leaves import LEAF_ITEMS, Directory
from onefold.stores.sqlite.record_snapshot import SqliteSnapshot

ITEMS_MAX: Final = 1 << 16
"""Records of a snapshot that are in memory at once: 5 MB. With four times that a session was a tenth faster."""


class SqliteRecords:
    """`Records` in a file: durable (WAL, every commit synced), shared by threads and processes."""

    def __init__(
        self,
        path: str | PathLike[str],
        id_size: int | None = None,
        *,
        make: bool = True,
        leaf_items: int = LEAF_ITEMS,
        items_max: int = ITEMS_MAX,
        busy_s: float = BUSY_S,
    ) -> None:
        """Open or create the file. ``id_size`` is kept in it: 32 if it is new, and `Misuse` if it has another.

        Without ``make`` nothing is created: `Misuse` if the file is a database of something else, which is not touched.
        """
        for name, value in (("leaf_items", leaf_items), ("items_max", items_max)):
            if value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})
        self._leaf_items, self._items_max, self._busy_s = leaf_items, items_max, busy_s
        if not make:
            check_there(abspath(path), busy_s)
        self._database = Database(path, SCHEMA, busy_s=busy_s)
        try:
            self.id_size = founded(self._database, id_size)
            self._path = abspath(path)  # a snapshot opens it again, perhaps from another working folder
            self._reader = Beside(self._path, busy_s=busy_s)
        except BaseException:
            self._database.close()
            raise
        self._directory: Directory | None = None
        self._write_lock, self._read_lock = Lock(), Lock()
        self._open = True

    def __len__(self) -> int:
        with self._read_lock:
            self._check_open()
            with self._reader.reading() as db:
                return count_of(db)

    def add(self, records: Sequence[Record]) -> list[bool]:
        """Keep these, all or none; for each whether it is new."""
        told = by_id(records, self.id_size)
        bodies = {id: record.body for id, record in told.items() if record.body is not None}
        new = self._add(columns_of(told.values(), self.id_size), bodies)
        return flags(records, blobs(new.ids[:, : self.id_size]))

    def add_items(self, timestamps: Stamps, ids: Rows) -> int:
        """Keep many ids without bodies, a row of uint8 each, all or none; how many are new."""
        return len(self._add(_checked(timestamps, ids, self.id_size), {}))

    def remove(self, ids: Sequence[bytes]) -> int:
        """Forget these; how many there were."""
        asked = self._askable(ids)
        with self._write_lock:
            self._check_open()
            with self._database.writing() as db:
                known = known_ids(db, asked)
                if not known:
                    return 0
                drop_ids(db, known)
                gone = columns_of([Record(stamp, id) for id, stamp, _ in known], self.id_size)
                directory = self._leaves(db).removed(gone)
                set_version(db, directory)
            self._directory = directory
        return len(known)

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, in the same order; None for one that is not there."""
        with self._read_lock:
            self._check_open()
            with self._reader.reading() as db:
                found = read_records(db, self._askable(ids))
        return [found.get(id) for id in ids]

    def snapshot(self) -> SqliteSnapshot:
        """The records as they are now."""
        self._check_open()
        file = Beside(self._path, busy_s=self._busy_s)
        try:
            with file.standing_still() as db:
                known = self._directory
                directory = directory_of(db, self.id_size, known)
        except BaseException:
            file.close()
            raise
        if known is None or known.version < directory.version:
            self._directory = directory
        return SqliteSnapshot(file, directory, self._items_max)

    def close(self) -> None:
        """Let go of the file; snapshots that are open go on."""
        with self._write_lock, self._read_lock:
            self._open = False
            self._reader.close()
            self._database.close()

    def _add(self, records: Columns, bodies: Mapping[bytes, bytes]) -> Columns:
        """Keep records of different ids, in order; those of them that are new."""
        with self._write_lock:
            self._check_open()
            with self._database.writing() as db:
                known = [id for id, _, _ in known_ids(db, blobs(records.ids[:, : self.id_size]))]
                new = records.without(_among(records, known, self.id_size))
                if not len(new):
                    return new
                put_ids(db, new, self.id_size, bodies)
                directory = self._leaves(db).added(new)
                set_version(db, directory)
            self._directory = directory  # not before it is committed
        return new

    def _leaves(self, db: sqlite3.Connection) -> Leaves:
        """The leaves as they are in this transaction."""
        return Leaves(db, directory_of(db, self.id_size, self._directory), self._leaf_items, self._items_max)

    def _askable(self, ids: Sequence[bytes]) -> list[bytes]:
        """Each once, without those that cannot be there."""
        return [id for id in dict.fromkeys(ids) if len(id) == self.id_size]

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self._path}: these records were closed")


def _among(records: Columns, ids: Sequence[bytes], id_size: int) -> Ints:
    """The places of records that have one of these ids."""
    if not ids:
        return np.zeros(0, dtype=np.int64)
    rows = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), id_size)
    return np.flatnonzero(np.isin(texts(records.ids), texts(padded(rows, width_of(id_size)))))


def _checked(timestamps: Stamps, ids: Rows, id_size: int) -> Columns:
    """Foreign columns in order, equal records once; an error naming the first thing that is wrong with them."""
    if timestamps.dtype != np.uint64 or ids.dtype != np.uint8 or ids.shape != (len(timestamps), id_size):
        told = f"timestamps are {timestamps.dtype} of shape {timestamps.shape}, ids {ids.dtype} of shape {ids.shape}"
        raise Misuse(f"{told}: must be uint64 of shape (n,), and uint8 of shape (n, {id_size})")
    if len(reserved := np.flatnonzero(timestamps == np.uint64(INFINITY))):
        id = ids[reserved[0]].tobytes().hex()
        raise BadInput(f"timestamp 2^64 - 1 of id {id} is reserved", id=id, timestamp=INFINITY)
    records = Columns.sorted_from(timestamps, padded(ids, width_of(id_size)))
    if (records.beginnings[1:] == records.beginnings[:-1]).any():  # alike at the beginning: look at them whole
        same = records.timestamps[1:] == records.timestamps[:-1]
        records = records.without(np.flatnonzero(same & (texts(records.ids[1:]) == texts(records.ids[:-1]))))
        sorted_ids = np.sort(texts(records.ids))
        if len(twice := np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])):
            id = sorted_ids[twice[0]].ljust(id_size, b"\0").hex()
            raise BadInput(f"id {id} comes with two timestamps", id=id)
    return records
