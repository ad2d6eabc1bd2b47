"""A file and a folder, each with two truths: what a process sees, and what is on the disk.

Between the two lies what was changed since the last sync. If the power goes, any part of that may have reached the
disk; `after_crash` draws one such part. If the sync of a file fails, likewise, and what is missing is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import TypeAlias

SECTOR_BYTES = 512

Write: TypeAlias = tuple[int, bytes | None]
"""Where, what; None: the file was cut there."""


class Inode:
    """A file without a name: what a process reads, what is on the disk, and what lies between them."""

    __slots__ = ("cache", "disk", "writes")

    def __init__(self, content: bytes = b"") -> None:
        self.cache: bytes | bytearray = content  # copied only when it is changed
        self.disk = content
        self.writes: list[Write] = []

    def change(self, write: Write) -> None:
        """A write or a cut, as far as the page cache."""
        if isinstance(self.cache, bytes):
            self.cache = bytearray(self.cache)
        _apply(self.cache, write)
        self.writes.append(write)

    def sync(self) -> None:
        """All writes since the last one reach the disk."""
        if self.writes:
            disk = bytearray(self.disk)
            for write in self.writes:
                _apply(disk, write)
            self.disk = bytes(disk)
            self.writes.clear()

    def fail_sync(self, rng: Random) -> None:
        """Some writes reach the disk, and none is remembered as missing."""
        self.disk = self.after_crash(rng)
        self.writes.clear()

    def after_crash(self, rng: Random) -> bytes:
        """What could be on the disk if the power went now."""
        survivors = [write for write in self.writes if rng.random() < 0.7]
        if rng.random() < 0.5:
            rng.shuffle(survivors)
        disk = bytearray(self.disk)
        for write in survivors:
            for piece in _torn(write, rng):
                _apply(disk, piece)
        if self.writes and rng.random() < 0.3:  # the new size made it, the data did not
            disk.extend(bytes(max(0, len(self.cache) - len(disk))))
        return bytes(disk)


def _apply(content: bytearray, write: Write) -> None:
    at, data = write
    if data is None:
        del content[at:]
        at, data = len(content), bytes(at - len(content))
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _torn(write: Write, rng: Random) -> list[Write]:
    """The pieces of a write that survived, in the order in which they did."""
    at, data = write
    fate = rng.random()
    if not data or fate < 0.4:
        return [write]
    if fate < 0.7:
        return [(at, data[: rng.randrange(len(data) + 1)])]
    borders = [0, *range(SECTOR_BYTES - at % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    pieces: list[Write] = [(at + a, data[a:b]) for a, b in pairwise(borders)]
    return [piece for piece in pieces if rng.random() < 0.6]


class Folder:
    """The names in a folder: as a process sees them, as they are on the disk, and the changes between them."""

    __slots__ = ("cache", "changes", "disk")

    def __init__(self, names: Mapping[str, Inode] | None = None) -> None:
        self.cache: dict[str, Inode] = dict(names or {})
        self.disk = dict(self.cache)
        self.changes: list[dict[str, Inode | None]] = []

    def change(self, names: dict[str, Inode | None]) -> None:
        """Names that appear (with their file) or go (None), together or not at all."""
        _rename(self.cache, names)
        self.changes.append(names)

    def sync(self) -> None:
        """All changes since the last one reach the disk."""
        for names in self.changes:
            _rename(self.disk, names)
        self.changes.clear()

    def after_crash(self, rng: Random) -> dict[str, Inode]:
        """The names that could be on the disk if the power went now."""
        names = dict(self.disk)
        for change in self.changes:
            if rng.random() < 0.5:
                _rename(names, change)
        return names


def _rename(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode
