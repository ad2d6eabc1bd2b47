"""The few things that a log asks of a file system, and the real one.

Behind this small door stands the machine's own disk, or a simulated one that loses power. The verbs are those whose
durability differs:

    write     is in the page cache, and nowhere else, until ``sync`` has returned
    new file, rename, unlink     are durable only after ``sync_folder`` of the folder
    make_folder     is the exception: durable when it returns, with every parent that it had to make

Errors are the `OSError` of the machine: what they mean to a log is said by the log.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Protocol


class File(Protocol):
    """One file that is open for writing."""

    def write(self, data: bytes, at: int) -> None:
        """Write all of ``data`` at a position; beyond the end the file grows."""
        ...

    def sync(self) -> None:
        """Make all that was written durable. After an error nothing is known of what was written since the last."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file; durable after ``sync``."""
        ...

    def close(self) -> None:
        """Let go of it (and of its lock); says nothing about durability."""
        ...


class Files(Protocol):
    """A file system, seen from a log."""

    def open(self, path: str, *, new: bool = False) -> File:
        """Open for writing; ``new``: make it if it is not there."""
        ...

    def lock(self, path: str) -> File:
        """Open a file and hold its lock until it is closed; `BlockingIOError` if another holds it."""
        ...

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """At most ``size`` bytes from ``start``; fewer only at the end of the file."""
        ...

    def size(self, path: str) -> int:
        """How long the file is."""
        ...

    def list(self, folder: str) -> list[str]:
        """The names in a folder, ascending; none if it is not there."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder, with its parents; durable when it returns."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Put a file in the place of another, or of none."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make new files, renames and removals in this folder durable."""
        ...


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes, at: int) -> None:
        """Write all; the system may take less at once than it is given (a signal, a disk that is nearly full)."""
        done = os.pwrite(self._fd, data, at)
        while done < len(data):
            more = os.pwrite(self._fd, memoryview(data)[done:], at + done)
            if more == 0:
                raise OSError(0, f"the system takes no more than {done} of {len(data)} bytes")
            done += more

    def sync(self) -> None:
        """``fdatasync``: the data, and of the metadata what reading it back needs (the size), not the times."""
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        """Close the descriptor, once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFiles:
    """The file system of this machine."""

    __slots__ = ()

    def open(self, path: str, *, new: bool = False) -> File:
        """Open a descriptor; new files can be read by all, as the umask allows."""
        return RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0), 0o666))

    def lock(self, path: str) -> File:
        """``flock``: it goes away with the process, however that ends."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return RealFile(fd)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read through the page cache."""
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
        """As the file system says."""
        return os.stat(path).st_size

    def list(self, folder: str) -> list[str]:
        """Sorted: the names of a log begin with offsets of one width."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        """Parents first, each synced into its own parent; also one that is there: its maker may have been killed."""
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            with suppress(PermissionError):  # a parent that we may not look into is not of our making
                self.sync_folder(parent)
            return
        self.make_folder(parent)
        with suppress(FileExistsError):  # another was faster; a file in its place is found by whoever goes in
            os.mkdir(path)
        self.sync_folder(parent)

    def rename(self, old: str, new: str) -> None:
        """Atomic for whoever looks on; durable only with the folder."""
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove the name; who has the file open goes on reading it."""
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """A folder can be opened and synced like a file."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


REAL = RealFiles()
