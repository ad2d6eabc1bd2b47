"""Where to begin reading in a segment: a sparse list that can be lost.

An entry says: the frames of this segment before ``position`` end with the offset before ``offset``, and none of them
is newer than ``latest``. One is added for about every 64 KiB, one with each snapshot, and one at the very end when the
segment is full. The file is never synced, each entry has its own crc, and a reader that finds no frame where an entry
points falls back to the segment's beginning: an index can make reading slow, but never wrong.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from onefold.stores.segments.files import File, Files

SPACING_BYTES = 64 * 1024
"""A read by offset decodes at most this much for nothing: about a millisecond. (Kafka: 4 KiB, but compiled.)"""

NEVER = -(2**63)
"""Older than any record."""

_ENTRY = struct.Struct("<QQqI")


class Entry(NamedTuple):
    """A place in a segment, and what is known of all before it."""

    offset: int
    position: int
    latest: int


def load(files: Files, path: str, base: int) -> list[Entry]:
    """The entries that are whole and in order, with the one that every segment has: its beginning."""
    entries = [Entry(base, 0, NEVER)]
    try:
        data = files.read(path)
    except OSError:
        return entries
    for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        offset, position, latest, crc = _ENTRY.unpack_from(data, at)
        if crc32(data[at : at + _ENTRY.size - 4]) != crc:
            break
        if offset <= entries[-1].offset or position <= entries[-1].position:
            break
        entries.append(Entry(offset, position, latest))
    return entries


def pack(entry: Entry) -> bytes:
    """An entry as it is written."""
    data = _ENTRY.pack(*entry, 0)[:-4]
    return data + crc32(data).to_bytes(4, "little")


def before(entries: Sequence[Entry], offset: int) -> Entry:
    """The last entry at or before an offset."""
    return entries[bisect_right(entries, offset, key=_offset) - 1]


def _offset(entry: Entry) -> int:
    return entry.offset


class IndexWriter:
    """The index of the segment that is being written. It never fails: what cannot be written is not in the cache."""

    def __init__(self, files: Files, path: str, entries: list[Entry]) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self.entries = entries

    def add(self, entry: Entry) -> None:
        """Remember an entry, and write it behind the others."""
        if entry.position <= self.entries[-1].position:
            return
        self.entries.append(entry)
        with suppress(OSError):
            if self._file is None:
                self._file = self._files.open(self._path, new=True)
            self._file.write(pack(entry), (len(self.entries) - 2) * _ENTRY.size)

    def rewrite(self) -> None:
        """Write all entries in place of whatever the file held."""
        with suppress(OSError):
            if self._file is None:
                self._file = self._files.open(self._path, new=True)
            self._file.truncate(0)
            self._file.write(b"".join(map(pack, self.entries[1:])), 0)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
