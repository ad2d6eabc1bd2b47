"""The memory of an engine between the batches of a stream or between runs: a folder of sorted files.

    PATH/_onefold.json                          the signature: an id, and the memory's meaning (see `meaning`)
    PATH/0007/000000000012-000000000009.run     bucket 7 after version 12, with versions 9 to 11 merged into it

A version is a batch of a stream or a run. The first bits of a key's hash select its bucket. Version V reads, for each
bucket that it has rows for, the state *below* V, and writes version V of the bucket: by write, fsync and rename, or by
one put on an object store. So a retried batch reads what its first attempt read and writes the same bytes, concurrent
attempts are harmless, and leftovers of a dead attempt are overwritten. No commit is needed: only the next version reads
this one, and it starts only after this one was published.

A run holds the records that its version touched, sorted by key; a lookup asks the newest run first and finds the key by
binary search in a mapped file. So a batch costs what it touches. A version that is written merges the runs before it
while they are small next to it, like the carry of a counter: a bucket has a few runs, a record is rewritten a few times
in all, and the largest run of a bucket only when the others have grown to a fraction of it. That fraction differs
between buckets, so that they are not all rewritten at once. Runs that no version needs any more are removed.

A table that an engine forgets is no longer merged, and does not count when runs are compared: memory that is split by
time, a table for each slice, is forgotten slice by slice.

A record has a 128-bit name, values, and lists of values, all int64 columns. A column is stored in as few bytes as its
range needs, and in none if it is constant: for a chain without missing messages, 16 bytes of name, its head and where
it began. A bucket may also have a blob, for memory that is rewritten as a whole.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.hashed_names import find
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.objects import LOCK, file_system, local_path
from onefold.stores.addresses import is_far

Int64s: TypeAlias = NDArray[np.int64]

FORMAT: Final = 1
MARK: Final = "_onefold.json"
BUCKETS: Final = 32
"""Two buckets for each of sixteen cores. The memory is split by it: fixed for the life of a folder."""
KEEP: Final = 2
"""How many of the last versions can be retried, as the memory below them is kept; Spark retries only the last batch."""

ALL: Final = 1 << 62
"""Above every version."""

_MAGIC: Final = b"OFmm"
_HEAD: Final = struct.Struct("<4sHHIQ")  # magic, format, reserved, CRC of the header, length of the header
_RUN: Final = re.compile(r"(\d{12})-(\d{12})\.run")
_NARROW: Final = ((8, "<u1"), (16, "<u2"), (32, "<u4"))


class ItemLists(NamedTuple):
    """One list per record, concatenated; items may have several columns."""

    counts: Int64s
    columns: tuple[Int64s, ...]

    def take(self, rows: Int64s) -> ItemLists:
        items = items_of(np.cumsum(self.counts)[rows], counts := self.counts[rows])
        return ItemLists(counts, tuple(column[items] for column in self.columns))


def items_of(ends: Int64s, counts: Int64s) -> Int64s:
    """The positions of the items of lists with these ends and lengths."""
    places: Int64s = np.repeat(ends - np.cumsum(counts), counts) + np.arange(int(counts.sum()))
    return places


class KeyRecords(NamedTuple):
    """Records as columns, sorted by name."""

    key: Int64s
    check: Int64s
    values: Mapping[str, Int64s] = {}
    lists: Mapping[str, ItemLists] = {}

    def take(self, rows: Int64s) -> KeyRecords:
        values = {name: column[rows] for name, column in self.values.items()}
        lists = {name: items.take(rows) for name, items in self.lists.items()}
        return KeyRecords(self.key[rows], self.check[rows], values, lists)

    @classmethod
    def merged(cls, newest_first: list[KeyRecords]) -> KeyRecords:
        """All records, sorted; of those with the same name, the newest."""
        if len(newest_first) == 1:
            return newest_first[0]
        first = newest_first[0]
        key, check = (np.concatenate([records[half] for records in newest_first]) for half in (0, 1))
        order = by_name(key, check)  # stable: of one name the newest comes first
        key_, check_ = key[order], check[order]
        same = (key_[1:] == key_[:-1]) & (check_[1:] == check_[:-1])
        values = {name: np.concatenate([r.values[name] for r in newest_first]) for name in first.values}
        lists = {}
        for name in first.lists:
            parts = [records.lists[name] for records in newest_first]
            columns = (np.concatenate(of) for of in zip(*(part.columns for part in parts), strict=True))
            lists[name] = ItemLists(np.concatenate([part.counts for part in parts]), tuple(columns))
        return cls(key, check, values, lists).take(order[np.concatenate(([True], ~same))[: len(order)]])


def by_name(key: Int64s, check: Int64s) -> Int64s:
    """The positions of these names in sorted order; stable.

    Sorts by the first half alone, unless two names share it: so parts that are sorted already are only merged.
    """
    order: Int64s = np.argsort(key, kind="stable")
    first, other = key[order], check[order]
    if np.any((first[1:] == first[:-1]) & (other[1:] < other[:-1])):
        order = np.lexsort((check, key))
    return order


class Storage:
    """A folder that all tasks can access: a local path, or any URL that pyarrow.fs opens."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files: Any = None
        if is_far(url):
            self._files, self.root = file_system(self.url)
        else:
            self.root = local_path(url)

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, without drafts of files; empty if the folder does not exist."""
        if self._files is None:
            try:
                names = os.listdir(f"{self.root}/{folder}")
            except FileNotFoundError:
                return []
        else:
            from pyarrow import fs

            where = fs.FileSelector(f"{self.root}/{folder}".rstrip("/"), allow_not_found=True)
            names = [info.base_name for info in self._files.get_file_info(where)]
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str) -> memoryview:
        """The bytes of a file, memory-mapped if it is local; `FileNotFoundError` if there is none."""
        if self._files is None:
            with open(f"{self.root}/{name}", "rb") as file:
                empty = os.fstat(file.fileno()).st_size == 0
                return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        with self._files.open_input_file(f"{self.root}/{name}") as file:
            return memoryview(file.read())

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically and durably."""
        path = f"{self.root}/{name}"
        if self._files is not None:
            with self._files.open_output_stream(path) as stream:
                stream.write(data)
            return
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        draft = f"{folder}/.{uuid4().hex}"
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            if self._files is None:
                os.remove(f"{self.root}/{name}")
            else:
                self._files.delete_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return  # removed by another attempt of the same task


class RunFile:
    """A file of a bucket; only the requested parts are read."""

    def __init__(self, data: memoryview, place: str) -> None:
        self._data, self._place = data, place
        if len(data) < _HEAD.size or bytes(data[:4]) != _MAGIC:
            raise BadInput(f"{place} is no memory: it begins {bytes(data[:8]).hex() or 'nowhere'}", path=place)
        _, format_, _, checksum, length = _HEAD.unpack_from(data)
        if format_ != FORMAT:
            raise BadInput(f"{place} is a memory of format {format_}, this is format {FORMAT}", path=place)
        text = bytes(data[_HEAD.size : _HEAD.size + length])
        if not text or len(text) != length or zlib.crc32(text) != checksum:  # CRC of b"" is 0: zeros would pass
            raise BadInput(f"{place} is damaged: its header is not what was written", path=place)
        self.header: dict[str, Any] = json.loads(text)
        self._start = _HEAD.size + length
        if len(data) != self._start + self.header["bytes"]:
            raise BadInput(f"{place} is damaged: {len(data)} bytes, not {self._start + self.header['bytes']}")

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def owner(self) -> str:
        return str(self.header["owner"])

    def rows_but(self, tables: Set[str]) -> int:
        """The number of records in all other tables than these."""
        return sum(table["rows"] for name, table in self.header["tables"].items() if name not in tables)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn the errors that numpy raises on a damaged file into `BadInput` with its path."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, MemoryError) as error:
            raise BadInput(f"{self._place} is damaged: {error}", path=self._place) from error

    @property
    def blob(self) -> bytes:
        with self._reading():
            at, size = self.header["blob"]
            return bytes(self._data[self._start + at : self._start + at + size])

    def verify(self) -> None:
        """Read the whole file; `BadInput` if its checksum or its order is wrong."""
        if zlib.crc32(self._data[self._start :]) != self.header["crc"]:
            raise BadInput(f"{self._place} is damaged: its checksum differs", path=self._place)
        for name in self.header["tables"]:
            key, check, *_ = self.records(name)
            if np.any((key[1:] < key[:-1]) | ((key[1:] == key[:-1]) & (check[1:] <= check[:-1]))):
                raise BadInput(f"{self._place} is damaged: {name} is not sorted", path=self._place)

    def find(self, table: str, key: Int64s, check: Int64s) -> Int64s:
        """The positions of these names in a table; -1 for absent ones."""
        with self._reading():
            if table not in self.header["tables"]:
                return np.full(len(key), -1, np.int64)
            keys = self._raw(table, "key"), self._raw(table, "check")
            return find(*keys, key, check)

    def records(self, table: str, rows: Int64s | None = None) -> KeyRecords:
        """The records at these positions, or all records."""
        with self._reading():
            layout = self.header["tables"][table]
            key, check = (self._column(table, half)(rows) for half in ("key", "check"))
            values = {name: self._column(table, f"value:{name}")(rows) for name in layout["values"]}
            lists = {}
            for name, width in layout["lists"].items():
                counts = self._column(table, f"counts:{name}")
                if rows is None:
                    lists[name] = ItemLists(counts(None), self._items(table, name, width, None))
                    continue
                ends = self._column(table, f"ends:{name}")(rows)
                own = counts(rows)
                lists[name] = ItemLists(own, self._items(table, name, width, items_of(ends, own)))
            return KeyRecords(key, check, values, lists)

    def _items(self, table: str, name: str, width: int, rows: Int64s | None) -> tuple[Int64s, ...]:
        return tuple(self._column(table, f"list:{name}:{i}")(rows) for i in range(width))

    def _raw(self, table: str, column: str) -> NDArray[Any]:
        at, count, kind, _ = self.header["tables"][table]["columns"][column]
        return np.frombuffer(self._data, kind, count, self._start + at)

    def _column(self, table: str, column: str) -> Callable[[Int64s | None], Int64s]:
        """A function from positions to values."""
        _, count, kind, least = self.header["tables"][table]["columns"][column]
        if not kind:
            return lambda rows: np.full(count if rows is None else len(rows), least, np.int64)
        raw = self._raw(table, column)
        return lambda rows: (raw if rows is None else raw[rows]).astype(np.int64) + least


def encoded(tables: Mapping[str, KeyRecords], blob: bytes, more: Mapping[str, Any]) -> bytes:
    """The bytes of a run."""
    parts: list[bytes] = []
    size = 0

    def add(data: bytes) -> int:
        nonlocal size
        at, padding = size, -len(data) % 8
        parts.extend((data, b"\0" * padding))
        size += len(data) + padding
        return at

    def column(values: Int64s, *, narrow: bool = True) -> list[Any]:
        least, most = (int(values.min()), int(values.max())) if len(values) and narrow else (0, 0)
        if narrow and least == most:
            return [0, len(values), "", least]
        for bits, kind in _NARROW if narrow else ():
            if (most - least) >> bits == 0:
                return [add((values - least).astype(kind).tobytes()), len(values), kind, least]
        return [add(values.astype("<i8").tobytes()), len(values), "<i8", 0]

    described = {}
    for name, records in tables.items():
        halves = {"key": column(records.key, narrow=False), "check": column(records.check, narrow=False)}
        columns = halves | {f"value:{key}": column(values) for key, values in records.values.items()}
        for key, items in records.lists.items():
            columns[f"counts:{key}"] = column(items.counts)
            columns[f"ends:{key}"] = column(np.cumsum(items.counts))
            columns |= {f"list:{key}:{i}": column(values) for i, values in enumerate(items.columns)}
        described[name] = {
            "rows": len(records.key),
            "values": list(records.values),
            "lists": {key: len(items.columns) for key, items in records.lists.items()},
            "columns": columns,
        }
    place = [add(blob), len(blob)]
    body = b"".join(parts)
    header = {**more, "tables": described, "blob": place, "bytes": len(body), "crc": zlib.crc32(body)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_HEAD.size + len(text)) % 8)  # keeps the mapped columns behind it aligned
    return _HEAD.pack(_MAGIC, FORMAT, 0, zlib.crc32(text), len(text)) + text + body


class Bucket:
    """One bucket as a version finds it, with the records that the version adds."""

    def __init__(self, memory: MemoryFolder, number: int, version: int) -> None:
        self._memory, self._number, self.version = memory, number, version
        self._runs = memory.runs(number, version)
        self._kept: dict[str, list[KeyRecords]] = {}  # by this version, newest first
        newest = self._runs[0].header if self._runs else {}
        # Another stream's versions may all be ones that this version does not read.
        for file in memory.files(number)[:1]:
            memory.check_owner(newest["owner"] if newest.get("version") == file[0] else memory.run(number, *file).owner)
        self.before: Mapping[str, int] = newest.get("figures", {"keys": 0, "gaps": 0})
        """The figures of the previous version."""
        self.figures: dict[str, int] = dict(self.before)
        """The number of keys and of gaps remembered after this version."""
        self._forgotten: set[str] = set()
        self.blob = self._runs[0].blob if self._runs else b""
        self.rows = 0
        """The number of rows judged by this version."""

    def find(self, table: str, key: Int64s, check: Int64s) -> KeyRecords | None:
        """The known records of these names, sorted by name; None: no name is known. The names must be distinct."""
        order = by_name(key, check)
        key, check = key[order], check[order]
        parts: list[KeyRecords] = []
        for records in self._kept.get(table, []):
            at = find(records.key, records.check, key, check)
            parts.append(records.take(at[at >= 0]))
            key, check = key[at < 0], check[at < 0]
        for run in self._runs:
            if not len(key):
                break
            at = run.find(table, key, check)
            if (at >= 0).any():
                parts.append(run.records(table, at[at >= 0]))
            key, check = key[at < 0], check[at < 0]
        parts = [part for part in parts if len(part.key)]
        return KeyRecords.merged(parts) if parts else None

    def keep(self, table: str, records: KeyRecords) -> None:
        """Replace the records of these names."""
        self._kept.setdefault(table, []).insert(0, records)

    def counts(self) -> dict[str, int]:
        """The number of records of each table; a record that was kept again counts again."""
        counts = Counter({name: sum(len(part.key) for part in parts) for name, parts in self._kept.items()})
        for run in self._runs:
            counts.update({name: table["rows"] for name, table in run.header["tables"].items()})
        return {name: count for name, count in counts.items() if name not in self._forgotten}

    def forget(self, table: str) -> None:
        """Stop merging a table: it disappears with the last run that holds it."""
        self._forgotten.add(table)
        self._kept.pop(table, None)

    def write(self, compact: Compact | None = None) -> None:
        """Write this version, merged with earlier runs that are small next to it; then remove runs no longer needed."""
        stacks = {name: list(parts) for name, parts in self._kept.items()}
        count = sum(len(part.key) for parts in stacks.values() for part in parts)
        ratio, low, older = 3 + self._number % 4, self.version, list(self._runs)
        while older and (rows := older[0].rows_but(self._forgotten)) <= ratio * count:
            run = older.pop(0)
            for name in run.header["tables"].keys() - self._forgotten:
                stacks.setdefault(name, []).append(run.records(name))
            count, low = count + rows, run.header["low"]
        tables = {name: KeyRecords.merged(parts) for name, parts in stacks.items()}
        if compact is not None and low < self.version:
            tables = {name: compact(name, records, self.figures) for name, records in tables.items()}
        header = {
            "version": self.version,
            "low": low,
            "before": older[0].header["version"] if older else -1,
            "owner": self._memory.owner,
            "rows": self.rows,
            "figures": self.figures,
        }
        self._memory.write(self._number, self.version, low, encoded(tables, self.blob, header))


Compact: TypeAlias = Callable[[str, KeyRecords, dict[str, int]], KeyRecords]
"""Table and rewritten records -> the records to keep; may change the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFolder:
    """The folder as passed to tasks, with its owner and its number of buckets."""

    path: str
    id: str = ""
    """The folder's id: a task that reads another id does not see the driver's folder."""
    owner: str = ""
    """The stream that writes the folder, or the name of the runs that continue it."""
    buckets: int = BUCKETS
    keep: int = KEEP
    storage: Storage

    @classmethod
    def opened(
        cls, path: str, meaning: Meaning, *, buckets: int = BUCKETS, owner: str = "", keep: int = KEEP
    ) -> MemoryFolder:
        """The memory at this path, created if absent; `Misuse` if it has another meaning or is no memory."""
        if keep < 1:
            raise Misuse(f"keep is {keep}, must be at least 1", keep=keep)
        storage = Storage(path)
        signed = signature(storage)
        if signed is None:
            if names := [name for name in storage.names() if name != LOCK]:
                raise Misuse(f"{path} is no memory: it holds {names[0]!r}; choose an empty folder", path=path)
            signed = {"format": FORMAT, "kind": "memory", "id": uuid4().hex, "meaning": dict(meaning)}
            storage.write(MARK, (json.dumps(signed, indent=2) + "\n").encode())
            signed = signature(storage) or signed  # if two processes created it at once, the later one
        refuse_other(path, signed["meaning"], meaning)
        return cls(path=path, id=signed["id"], owner=owner, buckets=buckets, keep=keep, storage=storage)

    @classmethod
    def anywhere(cls, path: str) -> MemoryFolder:
        """A memory to inspect, whatever its meaning; `Misuse` if there is none."""
        storage = Storage(path)
        signed = signature(storage)
        if signed is None:
            raise Misuse(f"{path} is no memory: it has no {MARK}", path=path)
        return cls(path=path, id=signed["id"], buckets=int(signed["meaning"].get("buckets", BUCKETS)), storage=storage)

    def check_shared(self) -> None:
        """In a task: `Misuse` unless the folder is the one that the driver opened."""
        signed = signature(self.storage)
        if signed is None or signed["id"] != self.id:
            raise Misuse(
                f"{self.path}: this machine does not see the memory that the driver sees: put it on a file system that"
                " all executors share",
                path=self.path,
            )

    def check_owner(self, owner: str) -> None:
        if self.owner and owner and owner != self.owner:
            raise Misuse(
                f"{self.path} is the memory of another checkpoint ({owner}): its versions are not those of this stream;"
                " use the checkpoint and the memory that belong together, or an empty folder for each",
                path=self.path,
            )

    def bucket_of(self, key: Int64s) -> NDArray[np.int64]:
        """The bucket of each key, by its first bits; `host` computes the same as a Column."""
        return ((key.view(np.uint64) >> np.uint64(32)) * np.uint64(self.buckets) >> np.uint64(32)).astype(np.int64)

    def runs(self, bucket: int, below: int = ALL) -> list[RunFile]:
        """The consecutive runs of a bucket below a version, newest first."""
        files = self.files(bucket)
        runs: list[RunFile] = []
        for version, low in covering(files, below):
            run = self.run(bucket, version, low)
            if runs and runs[-1].header["before"] != version:
                raise self._hole(bucket, int(runs[-1].header["before"]))
            runs.append(run)
        if runs and runs[-1].header["before"] != -1:
            raise self._hole(bucket, int(runs[-1].header["before"]))
        return runs

    def run(self, bucket: int, version: int, low: int) -> RunFile:
        name = _name(bucket, version, low)
        return RunFile(self.storage.read(name), f"{self.path}/{name}")

    def _hole(self, bucket: int, version: int) -> BadInput:
        return BadInput(
            f"{self.path}: version {version} of bucket {bucket} is missing: what it held is not known any more"
        )

    def files(self, bucket: int) -> list[tuple[int, int]]:
        """Version and lowest merged version of each run of a bucket, newest first."""
        names = (_RUN.fullmatch(name) for name in self.storage.names(f"{bucket:04}"))
        return sorted(((int(name[1]), int(name[2])) for name in names if name), reverse=True)

    def write(self, bucket: int, version: int, low: int, data: bytes) -> None:
        self.storage.write(_name(bucket, version, low), data)
        files = self.files(bucket)
        needed = {file for below in range(version - self.keep + 1, version + 2) for file in covering(files, below)}
        for file in files:
            if file not in needed and file[0] <= version:
                self.storage.remove(_name(bucket, *file))

    def buckets_there(self) -> list[int]:
        return [int(name) for name in self.storage.names() if len(name) == 4 and name.isdecimal()]

    def newest(self, below: int = ALL) -> dict[int, RunFile]:
        """The newest run of each bucket below a version; its header holds the figures."""
        newest = {}
        for bucket in self.buckets_there():
            for file in covering(self.files(bucket), below)[:1]:
                newest[bucket] = self.run(bucket, *file)
        return newest

    def table(self, name: str, below: int = ALL) -> Iterator[tuple[int, KeyRecords]]:
        """All records of a table, bucket by bucket."""
        for bucket in self.buckets_there():
            parts = [run.records(name) for run in self.runs(bucket, below) if name in run.header["tables"]]
            if parts:
                yield bucket, KeyRecords.merged(parts)

    def drop_from(self, version: int) -> None:
        """Remove this version and all above it, after a run that was not published."""
        for bucket in self.buckets_there():
            for file in self.files(bucket):
                if file[0] >= version:
                    self.storage.remove(_name(bucket, *file))


def covering(files: Iterable[tuple[int, int]], below: int) -> list[tuple[int, int]]:
    """The runs, of a bucket's newest first, that together hold everything below a version.

    >>> covering([(12, 9), (11, 11), (10, 10), (9, 9), (8, 0)], below=12)
    [(11, 11), (10, 10), (9, 9), (8, 0)]
    >>> covering([(12, 9), (11, 11), (10, 10), (9, 9), (8, 0)], below=13)
    [(12, 9), (8, 0)]
    """
    runs: list[tuple[int, int]] = []
    for version, low in files:
        if version < below:
            runs.append((version, low))
            below = low
    return runs


def signature(storage: Storage) -> dict[str, Any] | None:
    """The folder's signature; None: it is not signed."""
    try:
        signed = read_json(bytes(storage.read(MARK)), f"{storage.url}/{MARK}")
    except FileNotFoundError:
        return None
    if not isinstance(signed, dict) or signed.get("kind") != "memory" or signed.get("format") != FORMAT:
        raise Misuse(f"{storage.url} is no memory of format {FORMAT}: its {MARK} says otherwise", path=storage.url)
    return signed


def _name(bucket: int, version: int, low: int) -> str:
    return f"{bucket:04}/{version:012}-{low:012}.run"
