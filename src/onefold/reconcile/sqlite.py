"""Records in a SQLite file, for sets larger than memory; safe to share among threads and processes.

    record_set      one row: the form of these tables, the id size, a version raised by every change, the count
    record_ids      by id: the timestamp, and the number of the body if there is one
    record_bodies   by number, in order of arrival
    record_leaves   by number: the line of the directory
    record_blocks   by number: the records of the leaf

A *leaf* is a run of some hundred sorted records, stored as one blob. The *directory* has a line for each leaf: its
first and last record, the count, the sum and the XOR of its ids, and a checksum (SQLite has none, and a damaged leaf
must not look like a difference). Prefix totals over the lines answer every question about the edges of leaves; a leaf
is read only for a position inside it. Bodies are stored apart from ids, so that looking up an id reads a small tree;
blocks apart from lines, so that the directory is read without them. A timestamp is stored as the signed 64-bit number
with the same bits.

Every change is one transaction, synced before it returns; it rewrites the leaves of its records, 20 to 40 kB each. The
directory is cached in memory (400 kB for a million records) with its version, and read again only after another process
has written. A session reads the directory and a few leaves: ``expect`` reads those of a message at once, and ``cuts``
moves a cut inside an unread leaf to an edge of that leaf, so splitting large ranges reads nothing.

A snapshot is a read transaction on its own connection: readers and writers do not wait for each other. While one is
open SQLite's WAL grows with each write; the caller limits how many are open, and for how long. Memory: the leaves of
the current message, up to ``items_max`` records of 40 bytes, with totals of 32.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, cached_property
from os import PathLike
from os.path import abspath
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from onefold.errors import BadInput, Damaged, Misuse
from onefold.reconcile import items
from onefold.reconcile.items import Bounds, Columns, Flags, Ints, Limbs, Rows, Stamps, padded
from onefold.reconcile.records import Record, by_id, columns_of, flags
from onefold.stores.sqlite import BUSY_S, Database

LEAF_ITEMS: Final = 512
"""Records of a new leaf; it may grow to twice that. 20 kB are five pages of SQLite: finding a difference costs one such
read, and adding a record one such write. Smaller leaves would make the directory large."""

Lines = NDArray[np.void]


@cache
def line_type(id_size: int) -> np.dtype[np.void]:
    item = [("stamp", ">u8"), ("id", "u1", (id_size,))]
    total = "<u8", (-(-id_size // 8),)
    fields: list[Any] = [("first", item), ("last", item), ("count", "<u8"), ("sum", *total), ("xor", *total)]
    return np.dtype([*fields, ("checksum", "<u4"), ("number", "<u8")])


class Loaded(NamedTuple):
    """Leaves that were read: their places in the directory, and their records, concatenated."""

    leaves: Ints
    records: Columns
    begins: Ints
    """The index of each leaf's first record; then the number of records."""

    def part(self, leaf: int) -> Columns:
        at = int(np.searchsorted(self.leaves, leaf))
        own = slice(int(self.begins[at]), int(self.begins[at + 1]))
        return Columns(self.records.timestamps[own], self.records.ids[own])


class Directory:
    """The lines of all leaves, in order, at one version of the file."""

    def __init__(self, id_size: int, version: int, lines: Lines) -> None:
        self.id_size, self.version, self.lines = id_size, version, lines

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def firsts(self) -> Columns:
        return _edges(self.lines["first"], self.id_size)

    @cached_property
    def lasts(self) -> Columns:
        return _edges(self.lines["last"], self.id_size)

    @cached_property
    def counts(self) -> Ints:
        return np.asarray(self.lines["count"].astype(np.int64))

    @cached_property
    def starts(self) -> Ints:
        """The rank of each leaf's first record; then the number of records."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.counts)))

    @cached_property
    def sums(self) -> Limbs:
        """The sums of the ids in the first 0, 1, ... n leaves."""
        return items.running_sums(self.lines["sum"])

    @cached_property
    def xors(self) -> Limbs:
        return items.running_xors(self.lines["xor"])

    def around(self, bounds: Bounds) -> tuple[Ints, Ints]:
        """For each bound, how many leaves lie wholly below it, and how many begin below it: equal at an edge."""
        return self.lasts.find(bounds), self.firsts.find(bounds)

    def leaf_of(self, ranks: Ints) -> Ints:
        """The leaf of each rank; for the rank after the last record, the number of leaves."""
        return np.searchsorted(self.starts, ranks, side="right") - 1

    def groups(self, leaves: Ints, items_max: int) -> list[Ints]:
        steps = np.diff(np.cumsum(self.counts[leaves]) // items_max)
        return np.split(leaves, np.flatnonzero(steps) + 1) if len(leaves) else []

    def loaded(self, leaves: Ints, parts: Sequence[Columns]) -> Loaded:
        begins = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.counts[leaves])))
        stamps = np.concatenate([np.zeros(0, dtype=np.uint64), *(part.timestamps for part in parts)])
        none = padded(np.zeros((0, self.id_size), np.uint8), self.id_size)
        return Loaded(leaves, Columns(stamps, np.concatenate([none, *(part.ids for part in parts)])), begins)

    def replaced(self, leaves: Ints, places: Ints, lines: Lines) -> Directory:
        """The next version: without these leaves, and with new lines, each inserted at its old place."""
        places = places - np.searchsorted(leaves, places)
        return Directory(self.id_size, self.version + 1, np.insert(np.delete(self.lines, leaves), places, lines))


def _edges(edges: Any, id_size: int) -> Columns:
    return Columns(edges["stamp"].astype(np.uint64), padded(edges["id"], id_size))


def sizes_of(totals: Ints, leaf_items: int) -> tuple[Ints, Ints]:
    """Cut stretches of so many records into leaves: the size of each leaf, and the index of its stretch.

    A stretch that fits into one leaf becomes one; else its leaves have about the same size.

    >>> [column.tolist() for column in sizes_of(np.array([0, 20, 33]), 10)]
    [[20, 11, 11, 11], [1, 2, 2, 2]]
    """
    pieces = np.where(totals > 2 * leaf_items, totals // leaf_items, np.minimum(totals, 1))
    each, rest = np.divmod(totals, np.maximum(pieces, 1))
    source = np.repeat(np.arange(len(totals)), pieces)
    number = np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return each[source] + (number < rest[source]), source


def cut(records: Columns, sizes: Ints, id_size: int, number: int) -> tuple[Lines, list[bytes]]:
    """Records as leaves of these sizes, numbered from ``number``: lines, and blocks of all timestamps, then all ids."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    lines = np.zeros(len(sizes), dtype=line_type(id_size))
    for name, places in (("first", starts), ("last", ends - 1)):
        lines[name]["stamp"] = records.timestamps[places]
        lines[name]["id"] = records.ids[places, :id_size]
    lines["count"], lines["number"] = sizes, np.arange(number, number + len(sizes))
    lines["sum"] = items.minus(records.sums[ends], records.sums[starts])
    lines["xor"] = records.xors[ends] ^ records.xors[starts]
    blocks, stamps = [], records.timestamps.astype(items.LITTLE, copy=False)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        blocks.append(stamps[start:end].tobytes() + records.ids[start:end, :id_size].tobytes())
    lines["checksum"] = [crc32(block) for block in blocks]
    return lines, blocks


FORM: Final = 1
IDS_AT_ONCE: Final = 10_000
"""Ids in one query: some hundred kilobytes."""

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
    """A second, read-only connection to an existing file; it never waits for writers."""

    def __init__(self, path: str, *, busy_s: float) -> None:
        self.path = path
        with self._told():
            address = f"{Path(path).absolute().as_uri()}?mode=rw"
            self._connection = sqlite3.connect(
                address, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("pragma query_only=on")


def directory_of(db: sqlite3.Connection, id_size: int, cached: Directory | None) -> Directory:
    """The current directory: the cached one, if the version is the same."""
    version, count = db.execute("select version, count from record_set").fetchone()
    if cached is not None and cached.version == version:
        return cached
    lines = b"".join(line for (line,) in db.execute("select line from record_leaves order by line"))
    form = line_type(id_size)
    directory = Directory(id_size, version, np.frombuffer(lines, dtype=form, count=len(lines) // form.itemsize))
    if len(lines) % form.itemsize or int(directory.starts[-1]) != count:
        text = f"{_path(db)}: the directory does not match the {count} records of the file"
        raise Damaged(text, path=_path(db), count=count)
    return directory


def read_leaves(db: sqlite3.Connection, directory: Directory, leaves: Ints) -> list[Columns]:
    """The records of each of these leaves; `Damaged` if a leaf does not match its checksum."""
    lines = directory.lines[leaves]
    numbers, counts, checksums = (lines[name].tolist() for name in ("number", "count", "checksum"))
    blocks = dict(db.execute(_BLOCKS, [json.dumps(numbers)]))
    parts = []
    for number, count, checksum in zip(numbers, counts, checksums, strict=True):
        block = blocks.get(number, b"")
        if len(block) != count * (8 + directory.id_size) or crc32(block) != checksum:
            raise Damaged(f"{_path(db)}: leaf {number} is not as it was written", path=_path(db), leaf=number)
        stamps = np.frombuffer(block, dtype=items.LITTLE, count=count).astype(np.uint64, copy=False)
        ids = np.frombuffer(block, dtype=np.uint8, offset=8 * count).reshape(count, directory.id_size)
        parts.append(Columns(stamps, padded(ids, directory.id_size)))
    return parts


def select(db: sqlite3.Connection, statement: str, ids: Sequence[bytes]) -> list[tuple[bytes, int, Any]]:
    """The rows of the ids that are in the file: id, timestamp, and the body or its number."""
    rows: list[tuple[bytes, int, Any]] = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        joined = b"".join(ids[start : start + IDS_AT_ONCE])
        rows += ((id, stamp % 2**64, body) for id, stamp, body in db.execute(statement, [joined, len(ids[0])]))
    return rows


def _path(db: sqlite3.Connection) -> str:
    return str(db.execute("pragma database_list").fetchone()[2])


class Leaves:
    """The leaves of a file, in a transaction that changes them.

    A record belongs to the first leaf whose last record is not below it; one above all leaves, to the last leaf.
    Neighbouring leaves that change together are one stretch, which is cut again: so leaves that grew are split, leaves
    that shrank are joined, and empty ones go. A small leaf between two unchanged ones stays small.
    """

    def __init__(self, db: sqlite3.Connection, directory: Directory, leaf_items: int, items_max: int) -> None:
        self._db, self._directory, self._leaf_items, self._items_max = db, directory, leaf_items, items_max
        self._number = int(directory.lines["number"].max(initial=0)) + 1

    def changed(self, records: Columns, sign: int) -> Directory:
        """The directory after adding new records (sign 1), or removing existing ones (-1); the records are sorted."""
        directory = self._directory
        if not len(directory):
            leaves = np.zeros(0, dtype=np.int64)
            sizes, places = sizes_of(np.array([len(records)]), self._leaf_items)
            return directory.replaced(leaves, places, self._write(leaves, records, sizes))
        owner = np.minimum(directory.lasts.find(records.bounds()), len(directory) - 1)
        leaves = np.unique(owner)
        all_places, lines = [], []
        for group in directory.groups(leaves, self._items_max):
            own = slice(*np.searchsorted(owner, (group[0], group[-1] + 1)))
            old = directory.loaded(group, read_leaves(self._db, directory, group)).records
            mine = Columns(records.timestamps[own], records.ids[own])
            stretches = np.flatnonzero(np.diff(group, prepend=-2) > 1)
            moves = np.bincount(np.searchsorted(group, owner[own]), minlength=len(group))
            totals = np.add.reduceat(directory.counts[group] + sign * moves, stretches)
            sizes, source = sizes_of(totals, self._leaf_items)
            if sign > 0:
                new = old.merged(mine)
            else:
                places = old.places(mine.timestamps, mine.ids)
                if len(missing := np.flatnonzero(places < 0)):
                    id = mine.ids[missing[0]].tobytes().hex()
                    raise Damaged(f"the record with id {id} is in no leaf", id=id)
                new = old.without(places)
            lines.append(self._write(group, new, sizes))
            all_places.append(group[stretches][source])
        return directory.replaced(leaves, np.concatenate(all_places), np.concatenate(lines))

    def _write(self, leaves: Ints, records: Columns, sizes: Ints) -> Lines:
        numbers = [(number,) for number in self._directory.lines["number"][leaves].tolist()]
        self._db.executemany("delete from record_leaves where number = ?", numbers)
        self._db.executemany("delete from record_blocks where number = ?", numbers)
        lines, blocks = cut(records, sizes, self._directory.id_size, self._number)
        self._number += len(lines)
        new, heads = lines["number"].tolist(), items.blobs(lines.view(np.uint8).reshape(len(lines), lines.itemsize))
        self._db.executemany("insert into record_leaves values (?, ?)", zip(new, heads, strict=True))
        self._db.executemany("insert into record_blocks values (?, ?)", zip(new, blocks, strict=True))
        return lines


class SqliteSnapshot:
    """A `Snapshot` of a file: a read transaction, which keeps SQLite's WAL growing until it is closed."""

    def __init__(self, file: Beside, directory: Directory, items_max: int) -> None:
        """Take over a connection in a read transaction, at the version of the directory."""
        self._file: Beside | None = file
        self.id_size, self._directory, self._items_max = directory.id_size, directory, items_max
        self._loaded = directory.loaded(np.zeros(0, dtype=np.int64), [])

    def __len__(self) -> int:
        return int(self._directory.starts[-1])

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Read the leaves with a bound inside, and those of whole ranges; drop the others."""
        below, begun = self._directory.around(upper)
        before = np.concatenate((np.zeros(1, dtype=np.int64), below[:-1]))[: len(below)][whole]
        leaves = np.union1d(below[below < begun], items.spans(before, np.maximum(before, begun[whole])))
        if self._directory.counts[leaves].sum() <= self._items_max:
            self._loaded = self._read(leaves)

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same rank if its leaf is in memory; else the nearer edge of the leaf that lies inside the range."""
        leaves, starts = self._directory.leaf_of(ranks), self._directory.starts
        begin, end = starts[leaves], starts[leaves + 1]
        begin_inside, end_inside = begin > lower, end < upper
        nearer_end = end_inside & (~begin_inside | (end - ranks < ranks - begin))
        edges = np.where(nearer_end, end, np.where(begin_inside, begin, ranks))
        return np.where(np.isin(leaves, self._loaded.leaves), ranks, edges)

    def find(self, bounds: Bounds) -> Ints:
        below, begun = self._directory.around(bounds)
        ranks = self._directory.starts[below]
        inside = np.flatnonzero(below < begun)
        for which, begins, records in self._parts(below[inside]):
            ranks[inside[which]] += records.find(bounds.take(inside[which])) - begins
        return ranks

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        leaves, offsets = self._leaf_offsets(np.concatenate((lower, upper)))
        totals = self._directory.sums[leaves]
        for which, begins, places, records in self._inside(leaves, offsets, np.flatnonzero(offsets)):
            totals[which] = items.plus(totals[which], items.minus(records.sums[places], records.sums[begins]))
        return items.minus(totals[len(lower) :], totals[: len(lower)])

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        leaves, offsets = self._leaf_offsets(np.concatenate((lower, upper)))
        totals = self._directory.xors[leaves]
        for which, begins, places, records in self._inside(leaves, offsets, np.flatnonzero(offsets)):
            totals[which] ^= records.xors[places] ^ records.xors[begins]
        limbs = totals[len(lower) :] ^ totals[: len(lower)]
        return limbs.astype(items.LITTLE).view(np.uint8).reshape(len(limbs), 8 * limbs.shape[1])

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks; those at the edges of leaves come from the directory."""
        leaves, offsets = self._leaf_offsets(ranks)
        firsts, lasts = self._directory.firsts, self._directory.lasts
        stamps, ids = firsts.timestamps[leaves], firsts.ids[leaves]
        after = self._directory.counts[leaves] - 1 - offsets
        last = np.flatnonzero(after == 0)
        stamps[last], ids[last] = lasts.timestamps[leaves[last]], lasts.ids[leaves[last]]
        for which, _, places, records in self._inside(leaves, offsets, np.flatnonzero((offsets > 0) & (after > 0))):
            stamps[which], ids[which] = records.timestamps[places], records.ids[places]
        return stamps, ids

    def snapshot(self) -> SqliteSnapshot:
        return self

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._loaded = self._directory.loaded(np.zeros(0, dtype=np.int64), [])

    def _leaf_offsets(self, ranks: Ints) -> tuple[Ints, Ints]:
        """The leaf of each rank, and the offset of the rank in it."""
        leaves = self._directory.leaf_of(ranks)
        return leaves, ranks - self._directory.starts[leaves]

    def _inside(self, leaves: Ints, offsets: Ints, which: Ints) -> Iterator[tuple[Ints, Ints, Ints, Columns]]:
        """For the selected ranks, in parts: which, where their leaf begins, their position, and the records."""
        for some, begins, records in self._parts(leaves[which]):
            here = which[some]
            yield here, begins, begins + offsets[here], records

    def _parts(self, leaves: Ints) -> Iterator[tuple[Ints, Ints, Columns]]:
        """For these leaves, in parts: which of them, where each begins among the records, and the records."""
        for group in self._directory.groups(np.unique(leaves), self._items_max):
            if not np.isin(group, self._loaded.leaves).all():  # leaves in memory stay, if there is room
                more = np.union1d(self._loaded.leaves, group)
                few = self._directory.counts[more].sum() <= self._items_max
                self._loaded = self._read(more if few else group)
            loaded = self._loaded
            which = np.flatnonzero((leaves >= group[0]) & (leaves <= group[-1]))
            yield which, loaded.begins[np.searchsorted(loaded.leaves, leaves[which])], loaded.records

    def _read(self, leaves: Ints) -> Loaded:
        """Load ascending leaves; those in memory are not read again."""
        if self._file is None:
            raise Misuse("this snapshot was closed")
        missing = np.setdiff1d(leaves, self._loaded.leaves)
        with self._file.reading() as db:
            new = dict(zip(missing.tolist(), read_leaves(db, self._directory, missing), strict=True))
        parts = [new.get(leaf) or self._loaded.part(leaf) for leaf in leaves.tolist()]
        return self._directory.loaded(leaves, parts)


ITEMS_MAX: Final = 1 << 16
"""Records of a snapshot in memory at once: 5 MB. With four times as many a session was a tenth faster."""


class SqliteRecords:
    """`Records` in a file: durable (WAL, every commit synced), shared by threads and processes."""

    def __init__(
        self, path: str | PathLike[str], id_size: int | None = None, *, make: bool = True,
        leaf_items: int = LEAF_ITEMS, items_max: int = ITEMS_MAX, busy_s: float = BUSY_S,
    ) -> None:  # fmt: skip
        """Open or create the file. ``id_size`` is stored in it: 32 by default, `Misuse` if the file has another.

        Without ``make`` nothing is created: a database without records is `Misuse`, and is not changed.
        """
        for name, value in (("leaf_items", leaf_items), ("items_max", items_max)):
            if value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})
        self._leaf_items, self._items_max, self._busy_s = leaf_items, items_max, busy_s
        self._path = abspath(path)  # a snapshot opens the file again, perhaps in another working directory
        if not make:
            with closing(Beside(self._path, busy_s=busy_s)) as file, file.reading() as db:
                if db.execute("select 1 from sqlite_master where name = 'record_set'").fetchone() is None:
                    raise Misuse(f"{self._path}: there are no records in this file", path=self._path)
        self._database = Database(path, SCHEMA, busy_s=busy_s)
        try:
            self.id_size = self._check_form(id_size)
            self._reader = Beside(self._path, busy_s=busy_s)
        except BaseException:
            self._database.close()
            raise
        self._directory: Directory | None = None
        self._write_lock, self._read_lock = Lock(), Lock()
        self._open = True

    def _check_form(self, id_size: int | None) -> int:
        """The id size of the file, which is initialised if it is new; `Misuse` if form or id size do not match."""
        with self._database.writing() as db:
            row = db.execute("select form, id_size from record_set").fetchone()
            if row is None:
                row = FORM, items.check_id_size(32 if id_size is None else id_size)
                db.execute("insert into record_set values (?, ?, 0, 0)", row)
        (form, size), path = row, self._database.path
        if form != FORM:
            raise Misuse(f"{path}: the records have form {form}, this onefold knows form {FORM}", form=form)
        if id_size not in (None, size):
            text = f"{path}: id_size is {id_size}, but the ids in this file have {size} bytes"
            raise Misuse(text, id_size=id_size, kept=size)
        return int(size)

    def __len__(self) -> int:
        with self._read_lock:
            self._check_open()
            with self._reader.reading() as db:
                return int(db.execute("select count from record_set").fetchone()[0])

    def add(self, records: Sequence[Record]) -> list[bool]:
        distinct = by_id(records, self.id_size)
        bodies = {id: record.body for id, record in distinct.items() if record.body is not None}
        new = self._add(columns_of(distinct.values(), self.id_size), bodies)
        return flags(records, items.blobs(new.ids[:, : self.id_size]))

    def add_items(self, timestamps: Stamps, ids: Rows) -> int:
        """Add many ids without bodies, a row of uint8 each, all or none; how many are new."""
        return len(self._add(_checked(timestamps, ids, self.id_size), {}))

    def remove(self, ids: Sequence[bytes]) -> int:
        with self._write_lock:
            self._check_open()
            with self._database.writing() as db:
                rows = select(db, _KNOWN, self._distinct(ids))
                if not rows:
                    return 0
                db.executemany("delete from record_ids where id = ?", [(id,) for id, _, _ in rows])
                bodies = [(body,) for _, _, body in rows if body is not None]
                db.executemany("delete from record_bodies where number = ?", bodies)
                records = columns_of([Record(stamp, id) for id, stamp, _ in rows], self.id_size)
                directory = self._change_leaves(db, records, -1)
            self._directory = directory  # only once committed
        return len(rows)

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        with self._read_lock:
            self._check_open()
            with self._reader.reading() as db:
                rows = select(db, _READ, self._distinct(ids))
        records = {id: Record(stamp, id, body) for id, stamp, body in rows}
        return [records.get(id) for id in ids]

    def snapshot(self) -> SqliteSnapshot:
        self._check_open()
        file = Beside(self._path, busy_s=self._busy_s)
        try:
            with file.reading() as db:
                db.execute("begin")  # a read transaction: later writes do not show in it
                cached = self._directory
                directory = directory_of(db, self.id_size, cached)
        except BaseException:
            file.close()
            raise
        if cached is None or cached.version < directory.version:
            self._directory = directory
        return SqliteSnapshot(file, directory, self._items_max)

    def close(self) -> None:
        """Close the file; open snapshots stay usable."""
        with self._write_lock, self._read_lock:
            self._open = False
            self._reader.close()
            self._database.close()

    def _add(self, records: Columns, bodies: Mapping[bytes, bytes]) -> Columns:
        """Add sorted records with different ids; returns the new ones."""
        with self._write_lock:
            self._check_open()
            with self._database.writing() as db:
                old = [id for id, _, _ in select(db, _KNOWN, items.blobs(records.ids[:, : self.id_size]))]
                new = records
                if old:
                    rows = np.frombuffer(b"".join(old), dtype=np.uint8).reshape(len(old), self.id_size)
                    same = np.isin(items.texts(records.ids), items.texts(padded(rows, self.id_size)))
                    new = records.without(np.flatnonzero(same))
                if not len(new):
                    return new
                order = np.argsort(new.ids.view(items.BIG)[:, 0].astype(np.uint64))  # by id, to write each page once
                ids, stamps = items.blobs(new.ids[order, : self.id_size]), new.timestamps[order].view(np.int64).tolist()
                (last,) = db.execute("select coalesce(max(number), 0) from record_bodies").fetchone()
                numbers = {id: last + n for n, id in enumerate(filter(bodies.__contains__, ids), 1)}
                rows_of_bodies = ((number, bodies[id]) for id, number in numbers.items())
                db.executemany("insert into record_bodies values (?, ?)", rows_of_bodies)
                rows_of_ids = zip(ids, stamps, map(numbers.get, ids), strict=True)
                db.executemany("insert into record_ids values (?, ?, ?)", rows_of_ids)
                directory = self._change_leaves(db, new, 1)
            self._directory = directory  # only once committed
        return new

    def _change_leaves(self, db: sqlite3.Connection, records: Columns, sign: int) -> Directory:
        directory = directory_of(db, self.id_size, self._directory)
        directory = Leaves(db, directory, self._leaf_items, self._items_max).changed(records, sign)
        db.execute("update record_set set version = ?, count = ?", [directory.version, int(directory.starts[-1])])
        return directory

    def _distinct(self, ids: Sequence[bytes]) -> list[bytes]:
        """The ids of the right size, each once."""
        return [id for id in dict.fromkeys(ids) if len(id) == self.id_size]

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self._path}: these records were closed")


def _checked(timestamps: Stamps, ids: Rows, id_size: int) -> Columns:
    """The caller's columns, sorted and without duplicates; `Misuse` or `BadInput` names the first fault."""
    if timestamps.dtype != np.uint64 or ids.dtype != np.uint8 or ids.shape != (len(timestamps), id_size):
        text = f"timestamps are {timestamps.dtype} of shape {timestamps.shape}, ids {ids.dtype} of shape {ids.shape}"
        raise Misuse(f"{text}: must be uint64 of shape (n,), and uint8 of shape (n, {id_size})")
    records = items.sorted_records(timestamps, padded(ids, id_size), id_size)
    if (records.beginnings[1:] == records.beginnings[:-1]).any():  # equal first limbs: compare whole ids
        whole, same = items.texts(records.ids), records.timestamps[1:] == records.timestamps[:-1]
        records = records.without(np.flatnonzero(same & (whole[1:] == whole[:-1])))
        sorted_ids = np.sort(items.texts(records.ids))
        if len(twice := np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])):
            id = sorted_ids[twice[0]].ljust(id_size, b"\0").hex()
            raise BadInput(f"id {id} comes with two timestamps", id=id)
    return records
