"""Read a log, from any process, while another writes it: by offset, by time, in parts.

A reader stops at the writer's mark, so it never sees a record that a power cut could undo. It keeps nothing open: a
segment that is filled or removed by retention meanwhile is noticed at the next read.

The index of a segment says where to begin reading: a sparse list with an entry about every 64 KiB, one with each
snapshot, and one at the end of a full segment. It is only a cache: its file is never synced, each entry has its own
crc, and a reader that finds no frame where an entry points starts from the segment's beginning. A bad index makes
reading slow, never wrong.

Cost: about 2 us a record; finding an offset decodes at most the 64 KiB between two entries of the index.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from onefold.errors import Damaged, Misuse
from onefold.producers.log import disk
from onefold.producers.log.disk import File, Files
from onefold.producers.log.frames import END, walk
from onefold.producers.ports import LogRecord

SPACING_BYTES = 64 * 1024
"""A read by offset decodes at most this much in vain: about a millisecond. (Kafka: 4 KiB, but compiled.)"""

NEVER = -(2**63)
"""Older than any record."""

_ENTRY = struct.Struct("<QQqI")


class IndexEntry(NamedTuple):
    """``offset`` begins at ``position``; no record before it in the segment is newer than ``latest``."""

    offset: int
    position: int
    latest: int


def load(files: Files, path: str, base: int) -> list[IndexEntry]:
    """The valid entries, after one for the beginning of the segment."""
    entries = [IndexEntry(base, 0, NEVER)]
    try:
        data = files.read(path)
    except OSError:
        return entries
    for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        offset, position, latest, crc = _ENTRY.unpack_from(data, at)
        rises = offset > entries[-1].offset and position > entries[-1].position
        if not rises or crc32(data[at : at + _ENTRY.size - 4]) != crc:
            break
        entries.append(IndexEntry(offset, position, latest))
    return entries


def pack(entry: IndexEntry) -> bytes:
    data = _ENTRY.pack(*entry, 0)[:-4]
    return data + crc32(data).to_bytes(4, "little")


def before(entries: Sequence[IndexEntry], offset: int) -> IndexEntry:
    return entries[bisect_right(entries, offset, key=attrgetter("offset")) - 1]


def extend(files: Files, path: str, base: int, entries: list[IndexEntry], end: int = END) -> tuple[IndexEntry, int]:
    """Add entries for the frames after the last one; returns their end, and where the last part read begins."""
    offset, position, latest = entries[-1]
    began = position
    for records, stop in walk(files, path, base, position, offset, end):
        began, position = position, stop
        offset, latest = records[-1].offset + 1, max(latest, max(record.time_ms for record in records))
        if position - entries[-1].position >= SPACING_BYTES:
            entries.append(IndexEntry(offset, position, latest))
    return IndexEntry(offset, position, latest), began


class IndexWriter:
    """The index of the segment being written. It never fails: entries that cannot be written are left out."""

    def __init__(self, files: Files, path: str, entries: list[IndexEntry]) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self.entries = entries

    def add(self, entry: IndexEntry) -> None:
        if entry.position <= self.entries[-1].position:
            return
        self.entries.append(entry)
        self._write(pack(entry), (len(self.entries) - 2) * _ENTRY.size)

    def rewrite(self) -> None:
        self._write(b"".join(map(pack, self.entries[1:])), 0)

    def _write(self, data: bytes, at: int) -> None:
        with suppress(OSError):
            self._file = self._file or self._files.open(self._path, new=True)
            self._file.truncate(at)
            self._file.write(data, at)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


CACHED_SEGMENTS_MAX = 64


class LogReader:
    def __init__(
        self, path: str | os.PathLike[str], *, files: Files = disk.REAL, durable: Callable[[], int] | None = None
    ) -> None:
        """Read the log in ``path``; ``durable`` returns how far it may be read, by default up to the writer's mark."""
        self._folder = os.fspath(path)
        self._files = files
        self._durable = durable
        self._bases: list[int] = []
        self._indexes: dict[int, list[IndexEntry]] = {}
        self.refresh()
        if not self._bases:
            raise Misuse(f"there is no log in {self._folder}", path=self._folder)

    def refresh(self) -> None:
        with disk.failing(self._folder):
            self._bases = disk.numbers(self._files, self._folder, disk.SEGMENT)
        self._indexes = {base: index for base, index in self._indexes.items() if base in self._bases[:-1]}

    @property
    def start(self) -> int:
        self.refresh()
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        if self._durable is not None:
            return self._durable()
        with disk.failing(self._folder):
            for _ in range(3):  # a mark read during a write is whole at the next try
                if (mark := disk.read_mark(self._files, self._folder)) is not None:
                    return mark
        path = f"{self._folder}/{disk.MARK}"
        why = "the mark is missing or torn; opening the log for writing makes a new one"
        raise Damaged(f"{path}: {why}", path=path, position=0)

    def read(self, start: int, end: int | None = None) -> Iterator[LogRecord]:
        """The records of ``[start, end)`` (None: all that are durable now)."""
        return chain.from_iterable(self.batches(start, end))

    def batches(self, start: int, end: int | None = None) -> Iterator[list[LogRecord]]:
        """The same records as lists, as they are read: some hundred or thousand at a time."""
        return self._batches(start, self._check(start, end))

    def _check(self, start: int, end: int | None) -> int:
        """The end of a range if all of it is in the log; else `Misuse`."""
        durable = self.end
        end = durable if end is None else end
        first = self.start
        if start < first:
            raise _removed(self._folder, start, first)
        if not start <= end <= durable:
            raise Misuse(f"{self._folder} holds [{first}, {durable}), not [{start}, {end})", start=start, end=end)
        return end

    def _batches(self, offset: int, end: int) -> Iterator[list[LogRecord]]:
        while offset < end:
            base, until = self._segment(offset, end)
            path, position = self._path(base), 0
            try:
                for records, stop in self._from(base, offset, until):
                    position = stop
                    if records:
                        yield records
                        offset += len(records)
            except FileNotFoundError:
                first = self.start
                if offset < first:
                    raise _removed(self._folder, offset, first) from None
                disk.damaged(path, position, offset, "the segment is missing")
            except OSError as error:
                raise disk.failed(error, path) from error
            if offset < until:
                self.refresh()
                if self._segment(offset, end)[0] == base:
                    disk.damaged(path, position, offset, "the record is missing or not as it was written")

    def _segment(self, offset: int, end: int) -> tuple[int, int]:
        """The segment that holds an offset, and where to stop in it: at ``end`` or at the next segment."""
        i = bisect_right(self._bases, offset)
        if i == 0:
            raise _removed(self._folder, offset, self.start)
        return self._bases[i - 1], min(end, self._bases[i]) if i < len(self._bases) else end

    def _from(self, base: int, offset: int, until: int) -> Iterator[tuple[list[LogRecord], int]]:
        """The records of one segment from an offset on; the first lists may be empty."""
        entry, path = before(self._index(base), offset), self._path(base)
        parts = walk(self._files, path, base, entry.position, entry.offset, until)
        if (first := next(parts, None)) is not None:
            parts = chain([first], parts)
        elif entry.position:  # no frame where the index points: rebuild the index
            self._indexes[base] = self._complete(base, [IndexEntry(base, 0, NEVER)])
            parts = walk(self._files, path, base, 0, base, until)
        for records, position in parts:
            yield records[max(0, offset - records[0].offset) :], position

    def ranges(self, start: int, end: int, parts: int) -> list[tuple[int, int]]:
        """Cut ``[start, end)`` into at most ``parts`` adjacent, non-empty ranges of about equal size.

        Cuts are at segments and index entries, so that readers of different parts decode nothing twice.
        """
        self._check(start, end)
        if parts < 1:
            raise Misuse(f"parts is {parts}, must be at least 1", parts=parts)
        offsets, sizes, total, offset = [start], [0], 0, start
        while offset < end:
            base, until = self._segment(offset, end)
            for entry, following in pairwise(self._index(base)):
                if offset <= entry.offset < until:
                    offsets.append(entry.offset)
                    sizes.append(total)
                if entry.offset < until and following.offset > offset:
                    total += following.position - entry.position
            offset = until
        cuts = {offsets[bisect_right(sizes, total * k // parts) - 1] for k in range(1, parts)}
        return list(pairwise(sorted({start, *cuts, end})))

    def offset_at(self, time_ms: int) -> int:
        """The first offset whose record has this time or a later one; ``end`` if there is none.

        Exact also if the writer's clock was set back. Cost: one lookup in the index of each segment before it.
        """
        end = self.end
        self.refresh()
        for base in self._bases:
            with disk.failing(self._path(base)):
                entries = self._index(base)
                if base != self._bases[-1] and entries[-1].latest < time_ms:
                    continue
                entry = [entry for entry in entries if entry.latest < time_ms][-1]
                for records, _ in walk(self._files, self._path(base), base, entry.position, entry.offset, end):
                    for record in records:
                        if record.time_ms >= time_ms:
                            return record.offset
        return end

    def latest(self, base: int) -> int:
        """The time of the newest record in a full segment."""
        return self._index(base)[-1].latest

    def _index(self, base: int) -> list[IndexEntry]:
        index = self._indexes.get(base)
        if index is None:
            index = load(self._files, disk.segment(self._folder, base, disk.INDEX), base)
            if base != self._bases[-1]:
                if len(self._indexes) >= CACHED_SEGMENTS_MAX:
                    self._indexes.clear()
                index = self._indexes[base] = self._complete(base, index)
        return index

    def _complete(self, base: int, entries: list[IndexEntry]) -> list[IndexEntry]:
        """Extend the index of a full segment to its end."""
        path = self._path(base)
        if entries[-1].position != self._files.size(path):
            last, _ = extend(self._files, path, base, entries)
            if last.position > entries[-1].position:
                entries.append(last)
            if self._durable is not None:
                writer = IndexWriter(self._files, disk.segment(self._folder, base, disk.INDEX), entries)
                writer.rewrite()
                writer.close()
        return entries

    def _path(self, base: int) -> str:
        return disk.segment(self._folder, base)


def _removed(folder: str, offset: int, first: int) -> Misuse:
    return Misuse(f"offset {offset} of {folder} was removed: the log begins at {first}", offset=offset, start=first)
