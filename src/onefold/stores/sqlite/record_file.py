"""The tables of a set of records in SQLite, and the statements on them.

    record_set      one row: the form of these tables, the size of an id, a version that every change raises, the count
    record_ids      by id: the timestamp, and the number of the body if there is one
    record_bodies   by number, in the order in which they came
    record_leaves   by number: the line of the directory
    record_blocks   by number: the records of the leaf

Bodies are apart from ids, so that whether an id is known is found in a small tree; blocks are apart from lines, so that
the directory is read without them. A timestamp of 64 bits is kept as the signed number with the same bits.

Many ids are asked for at once, packed into one blob, which SQLite takes apart.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from onefold.engines.negentropy.arrays import Ints, blobs
from onefold.engines.negentropy.columns import BIG, Columns
from onefold.engines.negentropy.records import Record
from onefold.errors import Damaged, Misuse
from onefold.stores.records import check_id_size
from onefold.stores.sqlite.database import Database
from onefold.stores.sqlite.record_leaves import Directory, line_type, unpacked

FORM: Final = 1
IDS_AT_ONCE: Final = 10_000
"""Ids in one question: some hundred kilobytes."""

SCHEMA: Final = (
    "create table if not exists record_set (form integer, id_size integer, version integer, count integer)",
    "create table if not exists record_ids (id blob primary key, timestamp integer, body integer) without rowid",
    "create table if not exists record_bodies (number integer primary key, body blob not null)",
    "create table if not exists record_leaves (number integer primary key, line blob not null)",
    "create table if not exists record_blocks (number integer primary key, block blob not null)",
)
_KNOWN: Final = """
    with recursive place(n) as (select 0 union all select n + ?2 from place where n + ?2 < length(?1))
    select id, timestamp, body from record_ids where id in (select substr(?1, n + 1, ?2) from place)
"""
_READ: Final = """
    with recursive place(n) as (select 0 union all select n + ?2 from place where n + ?2 < length(?1))
    select id, timestamp, bodies.body from record_ids ids left join record_bodies bodies on bodies.number = ids.body
    where id in (select substr(?1, n + 1, ?2) from place)
"""
_BLOCKS: Final = "select number, block from record_blocks where number in (select value from json_each(?))"


class Beside(Database):
    """A second connection to a file that is there: it only reads, and waits for no writer."""

    def __init__(self, path: str, *, busy_s: float) -> None:
        """Open it; a file that is gone is not made anew."""
        self.path = path
        with self._told():
            address = f"{Path(path).absolute().as_uri()}?mode=rw"
            self._connection = sqlite3.connect(
                address, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("pragma query_only=on")

    @contextmanager
    def standing_still(self) -> Iterator[sqlite3.Connection]:
        """From the first look at the file on, until the connection is closed, what others write does not show."""
        with self._told():
            self._connection.execute("begin")
            yield self._connection


def check_there(path: str, busy_s: float) -> None:
    """`Misuse` unless the file holds a set of records; nothing is written to it."""
    with closing(Beside(path, busy_s=busy_s)) as file, file.reading() as db:
        if db.execute("select 1 from sqlite_master where name = 'record_set'").fetchone() is None:
            raise Misuse(f"{path}: there are no records in this file", path=path)


def founded(database: Database, id_size: int | None) -> int:
    """The size of the ids in this file, which is from now on a set of records; `Misuse` if it is of another kind."""
    with database.writing() as db:
        row = db.execute("select form, id_size from record_set").fetchone()
        if row is None:
            row = FORM, check_id_size(32 if id_size is None else id_size)
            db.execute("insert into record_set values (?, ?, 0, 0)", row)
    form, kept = row
    if form != FORM:
        raise Misuse(f"{database.path}: the records have form {form}, and this onefold knows form {FORM}", form=form)
    if id_size not in (None, kept):
        told = f"{database.path}: id_size is {id_size}, and the ids in this file have {kept} bytes"
        raise Misuse(told, id_size=id_size, kept=kept)
    return int(kept)


def directory_of(db: sqlite3.Connection, id_size: int, known: Directory | None) -> Directory:
    """The directory as it is now: the known one, if nothing changed since."""
    version, count = db.execute("select version, count from record_set").fetchone()
    if known is not None and known.version == version:
        return known
    lines = b"".join(line for (line,) in db.execute("select line from record_leaves order by line"))
    form = line_type(id_size)
    directory = Directory(id_size, version, np.frombuffer(lines, dtype=form, count=len(lines) // form.itemsize))
    if len(lines) % form.itemsize or int(directory.starts[-1]) != count:
        told = f"{_path(db)}: the directory is not that of the {count} records that were kept"
        raise Damaged(told, path=_path(db), count=count)
    return directory


def set_version(db: sqlite3.Connection, directory: Directory) -> None:
    """Note that the file is at the version of this directory."""
    db.execute("update record_set set version = ?, count = ?", [directory.version, int(directory.starts[-1])])


def count_of(db: sqlite3.Connection) -> int:
    """How many records there are."""
    return int(db.execute("select count from record_set").fetchone()[0])


def read_leaves(db: sqlite3.Connection, directory: Directory, leaves: Ints) -> list[Columns]:
    """The records of these leaves, one by one; `Damaged` if one is not as it was written."""
    lines = directory.lines[leaves]
    numbers, counts, checksums = (lines[name].tolist() for name in ("number", "count", "checksum"))
    found = dict(db.execute(_BLOCKS, [json.dumps(numbers)]))
    parts = []
    for number, count, checksum in zip(numbers, counts, checksums, strict=True):
        block = found.get(number, b"")
        if len(block) != count * (8 + directory.id_size) or crc32(block) != checksum:
            raise Damaged(f"{_path(db)}: leaf {number} is not as it was written", path=_path(db), leaf=number)
        parts.append(unpacked(block, count, directory.id_size))
    return parts


def known_ids(db: sqlite3.Connection, ids: Sequence[bytes]) -> list[tuple[bytes, int, int | None]]:
    """Those of these ids that are there: id, timestamp, number of the body."""
    return [(id, stamp % 2**64, body) for id, stamp, body in _asked(db, _KNOWN, ids)]


def read_records(db: sqlite3.Connection, ids: Sequence[bytes]) -> dict[bytes, Record]:
    """Those of these ids that are there, with their bodies."""
    return {id: Record(stamp % 2**64, id, body) for id, stamp, body in _asked(db, _READ, ids)}


def put_ids(db: sqlite3.Connection, records: Columns, id_size: int, bodies: Mapping[bytes, bytes]) -> None:
    """Keep ids that are new, with the bodies of those that have one."""
    order = np.argsort(records.ids.view(BIG)[:, 0].astype(np.uint64))  # so that each page of the tree is met once
    ids, stamps = blobs(records.ids[order, :id_size]), records.timestamps[order].view(np.int64).tolist()
    (number,) = db.execute("select coalesce(max(number), 0) from record_bodies").fetchone()
    numbers = {id: number + n for n, id in enumerate(filter(bodies.__contains__, ids), 1)}
    db.executemany("insert into record_bodies values (?, ?)", ((n, bodies[id]) for id, n in numbers.items()))
    db.executemany("insert into record_ids values (?, ?, ?)", zip(ids, stamps, map(numbers.get, ids), strict=True))


def drop_ids(db: sqlite3.Connection, known: Sequence[tuple[bytes, int, int | None]]) -> None:
    """Forget ids that are there, and their bodies."""
    db.executemany("delete from record_ids where id = ?", [(id,) for id, _, _ in known])
    db.executemany("delete from record_bodies where number = ?", [(body,) for _, _, body in known if body is not None])


def _asked(db: sqlite3.Connection, statement: str, ids: Sequence[bytes]) -> Iterator[tuple[bytes, int, Any]]:
    size = len(ids[0]) if ids else 0
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield from db.execute(statement, [b"".join(ids[start : start + IDS_AT_ONCE]), size])


def _path(db: sqlite3.Connection) -> str:
    return str(db.execute("pragma database_list").fetchone()[2])
