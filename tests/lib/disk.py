"""A disk that loses power, in memory: what a log may rely on, taken literally.

It stands behind the same door as the real file system (`onefold.producers.log.disk.Files`) and knows two truths of
each file: what a running process reads (the page cache) and what is on the disk. Between them lie the writes since the
last sync; of each folder likewise the new names, renames and removals since the last sync of the folder.

`crash` makes a disk as a power cut could have left it: of the writes in between any survived, in any order, each whole,
torn at a byte, or in part of its sectors, and where a file had grown there may be zeros; any of the names changed or
not. More than real disks do, never less: what holds here holds there.

`fail` lets operations fail. A sync that fails does what Linux does: the writes are given up, some reached the disk, and
the page cache keeps calling them clean, so that a later sync reports success without having written them.

A file and a folder, each with two truths: what a process sees, and what is on the disk.

Between the two lies what was changed since the last sync. If the power goes, any part of that may have reached the
disk; `after_crash` draws one such part. If the sync of a file fails, likewise, and what is missing is forgotten.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from typing import TypeAlias

from onefold.producers.log.disk import File, Files

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


class PowerCut(BaseException):
    """The power is gone. Not an error that a program could catch and go on from."""


class SimFile(File):
    """An open file on a simulated disk."""

    __slots__ = ("_disk", "_inode", "_lock")

    def __init__(self, disk: SimDisk, inode: Inode, lock: str | None = None) -> None:
        self._disk = disk
        self._inode = inode
        self._lock = lock

    def write(self, data: bytes, at: int) -> None:
        """Write all; a write that fails may have written some."""
        error = self._disk.operation("write")
        if error is not None:
            self._inode.change((at, data[: self._disk.rng.randrange(len(data) + 1)]))
            raise error
        self._inode.change((at, bytes(data)))

    def sync(self) -> None:
        """Make all that was written durable."""
        error = self._disk.operation("sync")
        if error is not None:
            self._inode.fail_sync(self._disk.rng)
            raise error
        self._inode.sync()

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._disk.attempt("truncate")
        if size != len(self._inode.cache):
            self._inode.change((size, None))

    def close(self) -> None:
        """Let go of it and of its lock."""
        if self._lock is not None:
            self._disk.locks.discard(self._lock)


class SimDisk(Files):
    """A file system in memory that remembers what is not durable yet.

    >>> disk = SimDisk()
    >>> file = disk.open("/a", new=True)
    >>> file.write(b"kept", 0); file.sync(); disk.sync_folder("/")
    >>> file.write(b"lost?", 4)
    >>> len({disk.crash(Random(seed)).read("/a") for seed in range(100)}) > 5
    True
    """

    def __init__(self, contents: Mapping[str, bytes] | None = None, rng: Random | None = None) -> None:
        """Begin with these files, by their whole path, all durable."""
        self._rng = rng
        self.locks: set[str] = set()
        self.operations = 0
        self.before: Callable[[str], None] | None = None
        """Called before each operation, with its name: to look at the disk as it is at every moment."""
        self._folders: dict[str, Folder] = {"/": Folder()}
        self._fail_at, self._fail_until, self._errno = 0, 0, errno.EIO
        self._cut_at: int | None = None
        for path, content in (contents or {}).items():
            folder, _, name = path.rpartition("/")
            names = self._folders.setdefault(folder or "/", Folder())
            names.cache[name] = names.disk[name] = Inode(content)

    @property
    def rng(self) -> Random:
        """What chance is drawn from when an operation fails."""
        self._rng = self._rng or Random(0)
        return self._rng

    def fail(self, at: int, count: int = 1, error: int = errno.EIO) -> None:
        """Let ``count`` operations fail, the first of them the ``at``-th from now (1: the next)."""
        self._fail_at = self.operations + at
        self._fail_until, self._errno = self._fail_at + count, error

    def cut(self, at: int) -> None:
        """Let the power go before the ``at``-th operation from now (1: the next), which is after the one before it."""
        self._cut_at = self.operations + at

    def heal(self) -> None:
        """Let nothing fail any more, and the power stay."""
        self._fail_at = self._fail_until = 0
        self._cut_at = None

    def operation(self, name: str) -> OSError | None:
        """Count an operation; the error that it shall end with, if any."""
        if self.before is not None:
            self.before(name)
        self.operations += 1
        if self._cut_at is not None and self.operations >= self._cut_at:
            raise PowerCut
        if self._fail_at <= self.operations < self._fail_until:
            return OSError(self._errno, f"{os.strerror(self._errno)} (simulated {name})")
        return None

    def attempt(self, name: str) -> None:
        """Count an operation that fails without having done anything."""
        error = self.operation(name)
        if error is not None:
            raise error

    def kill(self) -> None:
        """All processes end, the machine goes on: locks are free, the page cache stays."""
        self.locks.clear()

    def crash(self, rng: Random) -> SimDisk:
        """A disk as a power cut at this moment could have left it; this one stays as it is."""
        after = SimDisk(rng=rng)
        known: dict[int, Inode] = {}
        for path, folder in self._folders.items():
            names = {}
            for name, inode in folder.after_crash(rng).items():
                if id(inode) not in known:
                    known[id(inode)] = Inode(inode.after_crash(rng))
                names[name] = known[id(inode)]
            after._folders[path] = Folder(names)
        return after

    def contents(self) -> dict[str, bytes]:
        """Every file as a process reads it, by its whole path."""
        return {
            os.path.join(path, name): bytes(inode.cache)
            for path, folder in self._folders.items()
            for name, inode in folder.cache.items()
        }

    def open(self, path: str, *, new: bool = False) -> SimFile:
        """Open for writing; ``new``: make it if it is not there."""
        self.attempt("open")
        folder, name = self._place(path)
        if name not in folder.cache:
            if not new:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            folder.change({name: Inode()})
        return SimFile(self, folder.cache[name])

    def lock(self, path: str) -> SimFile:
        """Open a file and hold its lock until it is closed."""
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        self.open(path, new=True)
        self.locks.add(path)
        return SimFile(self, self._inode(path), path)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """What a process reads: the page cache."""
        return bytes(self._inode(path).cache[start : None if size is None else start + size])

    def size(self, path: str) -> int:
        """How long the file is."""
        return len(self._inode(path).cache)

    def list(self, folder: str) -> list[str]:
        """The names in a folder, ascending; none if it is not there."""
        return sorted(self._folders[folder].cache) if folder in self._folders else []

    def make_folder(self, path: str) -> None:
        """Make a folder; durable when it returns, as the door says."""
        if path not in self._folders:
            self.attempt("make_folder")
            self._folders[path] = Folder()

    def rename(self, old: str, new: str) -> None:
        """Put a file in the place of another, within a folder, as one change."""
        self.attempt("rename")
        folder, name = self._place(old)
        folder.change({name: None, os.path.basename(new): self._inode(old)})

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self.attempt("unlink")
        folder, name = self._place(path)
        self._inode(path)
        folder.change({name: None})

    def sync_folder(self, path: str) -> None:
        """Make the changes of names in a folder durable."""
        self.attempt("sync_folder")  # names are kept in a journal: a change that was not written is not forgotten
        self._folders[path].sync()

    def _place(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.rpartition("/")
        names = self._folders.get(folder or "/")
        if names is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return names, name

    def _inode(self, path: str) -> Inode:
        folder, name = self._place(path)
        if name not in folder.cache:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return folder.cache[name]
