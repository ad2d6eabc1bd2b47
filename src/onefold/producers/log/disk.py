"""The folder of a log: its files, and the file system operations it needs.

    00000000000000000000.log     a segment, named after its first offset; frames from byte 0
    00000000000000000000.index   positions to begin reading in it (a cache)
    snapshots/                   one file per snapshot, named after its position
    torn/                        bytes cut off by recovery, of groups that were never acknowledged
    durable                      the mark: the next offset, written after each sync; readers go no further
    start                        the first offset that retention has left
    lock                         held by the one writer

The mark is not synced: after a power cut it may be outdated or torn (it has a crc), but never too high. So the writer
uses it as a lower bound: a log that ends before its mark has lost acknowledged records. The start is synced before
anything is removed: a log that begins after it has lost its beginning. Logs from before this file existed get one when
they are opened for writing; until then nothing shows whether their beginning was removed.

`Files` is the file system; tests use one that loses power.

    write                         in the page cache only, until ``sync`` has returned
    new file, rename, unlink      durable only after ``sync_folder`` of the folder
    make_folder                   the exception: durable when it returns, with every parent that it made
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn
from zlib import crc32

from onefold.errors import Damaged, StoreFailed
from onefold.producers.rules import SequencesSnapshot


class File:
    """A file that is open for writing; errors are `OSError`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes, at: int) -> None:
        """Write all of ``data`` at a position; the file grows as needed."""
        done = os.pwrite(self._fd, data, at)
        while done < len(data):  # a signal, a disk that is nearly full
            more = os.pwrite(self._fd, memoryview(data)[done:], at + done)
            if more == 0:
                raise OSError(0, f"the system takes no more than {done} of {len(data)} bytes")
            done += more

    def sync(self) -> None:
        """Make all writes durable, with the file size but without its times.

        After an error the state of the writes since the last sync is unknown.
        """
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """Cut the file; durable after ``sync``."""
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Files:
    """The file system of the machine; tests replace it by one that loses power."""

    __slots__ = ()

    def open(self, path: str, *, new: bool = False) -> File:
        """Open for writing; ``new``: create the file if it does not exist."""
        return File(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0), 0o666))

    def lock(self, path: str) -> File:
        """Lock a file until it is closed or the process ends; `BlockingIOError` if another process holds the lock."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return File(fd)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """At most ``size`` bytes from ``start``; fewer only at the end of the file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            wanted = max(0, os.fstat(fd).st_size - start)
            if size is not None and size < wanted:
                wanted = size
            data = os.pread(fd, wanted, start)
            while len(data) < wanted and (more := os.pread(fd, wanted - len(data), start + len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, folder: str) -> list[str]:
        """The names in a folder, ascending; none if it does not exist."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        """Make a folder, parents first, and sync it into its parent, even if it exists: its maker may have been killed
        before the sync."""
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            with suppress(PermissionError):  # a parent that we may not read was not made by us
                self.sync_folder(parent)
            return
        self.make_folder(parent)
        with suppress(FileExistsError):  # made meanwhile; if it is a file, using it as a folder fails
            os.mkdir(path)
        self.sync_folder(parent)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing ``new`` if it exists."""
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove the name; processes that have the file open can still read it."""
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Make new files, renames and removals in this folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


REAL = Files()


SEGMENT, INDEX, SNAPSHOT, TORN = ".log", ".index", ".snap", ".bytes"
MARK, START, LOCK, SNAPSHOTS_FOLDER, TORN_FOLDER = "durable", "start", "lock", "snapshots", "torn"
_PART = ".part"


def name(number: int, kind: str) -> str:
    """The name of a file for an offset, of fixed width, so that names sort like numbers."""
    return f"{number:020d}{kind}"


def segment(folder: str, base: int, kind: str = SEGMENT) -> str:
    return f"{folder}/{name(base, kind)}"


def numbers(files: Files, folder: str, kind: str) -> list[int]:
    """The offsets in the names of the files of one kind, ascending; other files are ignored."""
    cut = -len(kind)
    names = files.list(folder)
    return [int(n[:cut]) for n in names if len(n) == 20 - cut and n.endswith(kind) and n[:cut].isdecimal()]


def pack_mark(offset: int) -> bytes:
    """The mark as bytes: 8 for the offset, 4 for a crc that detects torn writes."""
    data = offset.to_bytes(8, "little")
    return data + crc32(data).to_bytes(4, "little")


def write_file(files: Files, path: str, data: bytes) -> None:
    """Write and sync a file; its name is durable after ``sync_folder``."""
    file = files.open(path, new=True)
    try:
        file.write(data, 0)
        file.truncate(len(data))
        file.sync()
    finally:
        file.close()


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replace a file atomically: write beside it, sync, rename; durable after ``sync_folder``."""
    part = path + _PART
    try:
        write_file(files, part, data)
    except OSError:
        with suppress(OSError):
            files.unlink(part)
        raise
    files.rename(part, path)


def write_start(files: Files, folder: str, offset: int) -> None:
    write_file(files, f"{folder}/{START}", pack_mark(offset))
    files.sync_folder(folder)


def read_mark(files: Files, folder: str, file: str = MARK) -> int | None:
    """The offset in the mark (or in ``file``); None if it is missing or torn."""
    try:
        data = files.read(f"{folder}/{file}", 0, 12)
    except FileNotFoundError:
        return None
    offset = int.from_bytes(data[:8], "little")
    return offset if data == pack_mark(offset) else None


def failed(error: OSError, path: str) -> StoreFailed:
    path = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else path
    cause = error.strerror or str(error) or type(error).__name__
    return StoreFailed(f"{path}: {cause}", cause=cause, path=path)


@contextmanager
def failing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed(error, path) from error


def damaged(path: str, position: int, offset: int, why: str) -> NoReturn:
    raise Damaged(f"{path} at byte {position}, offset {offset}: {why}", path=path, position=position, offset=offset)


MAGIC = b"OFS1"
_HEADER = struct.Struct("<4sIQQ")
_CHECKED_FROM = 8  # the magic and the crc itself are not in the crc


def pack(snapshot: SequencesSnapshot) -> bytes:
    body = _HEADER.pack(MAGIC, 0, snapshot.position, len(snapshot.state))[_CHECKED_FROM:] + snapshot.state
    return MAGIC + crc32(body).to_bytes(4, "little") + body


def unpack(data: bytes) -> SequencesSnapshot | None:
    if len(data) < _HEADER.size:
        return None
    magic, crc, position, length = _HEADER.unpack_from(data)
    if magic != MAGIC or len(data) != _HEADER.size + length or crc32(memoryview(data)[_CHECKED_FROM:]) != crc:
        return None
    return SequencesSnapshot(position, data[_HEADER.size :])


class Snapshots:
    """The newest few snapshots of one log, replaced atomically.

        magic "OFS1" | crc32 of all that follows | position | length of the state | state

    If the crc finds damage, the next older snapshot is used; so more than one is kept, and no record that the oldest
    needs is ever removed.
    """

    def __init__(self, files: Files, folder: str, count: int) -> None:
        self._files = files
        self._folder = f"{folder}/{SNAPSHOTS_FOLDER}"
        self._count = count

    def open(self) -> None:
        with failing(self._folder):
            self._files.make_folder(self._folder)
            for leftover in self._files.list(self._folder):
                if leftover.endswith(_PART):
                    self._files.unlink(f"{self._folder}/{leftover}")

    def positions(self) -> list[int]:
        return numbers(self._files, self._folder, SNAPSHOT)

    def get(self, position: int) -> SequencesSnapshot | None:
        path = self._path(position)
        with failing(path):
            try:
                snapshot = unpack(self._files.read(path))
            except FileNotFoundError:
                return None
        return snapshot if snapshot is not None and snapshot.position == position else None

    def newest(self) -> SequencesSnapshot | None:
        return next(filter(None, map(self.get, reversed(self.positions()))), None)

    def safe_position(self) -> int:
        """Records below it are not needed even if all kept snapshots but the oldest are lost; 0: all are needed."""
        whole = [position for position in self.positions()[-self._count :] if self.get(position) is not None]
        if len(whole) < self._count:
            return 0
        with failing(self._folder):
            # A writer killed between a rename and its sync left a name that is not durable yet.
            self._files.sync_folder(self._folder)
        return whole[0]

    def save(self, snapshot: SequencesSnapshot) -> None:
        """Save durably, then remove the oldest beyond the kept number."""
        path = self._path(snapshot.position)
        with failing(path):
            replaces = snapshot.position in self.positions()
            replace_file(self._files, path, pack(snapshot))
            try:
                self._files.sync_folder(self._folder)
            except OSError:
                # A power cut may undo the rename, so neither retention nor the removal of older ones may rely on it.
                # If it replaced another snapshot it stays: one of the two exists in any case.
                if not replaces:
                    with suppress(OSError):
                        self._files.unlink(path)
                raise
        with suppress(OSError):  # need not be durable: an extra old snapshot does no harm
            for position in self.positions()[: -self._count]:
                self._files.unlink(self._path(position))

    def _path(self, position: int) -> str:
        return f"{self._folder}/{name(position, SNAPSHOT)}"
