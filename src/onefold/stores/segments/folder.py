"""The folder of a log: the names in it, the mark of what is durable, and what an error of the system means.

    00000000000000000000.log     a segment, named after the first offset in it; frames from byte 0
    00000000000000000000.index   where to begin reading in it (a cache)
    snapshots/                   one file per snapshot, named after its position
    torn/                        what recovery cut off: bytes of a group that was never acknowledged
    durable                      the mark: the next offset, written after each sync; readers go no further
    start                        where the log begins: the first offset that retention has left
    lock                         held by the one writer

The mark is not synced: after a power cut it may be older than the truth or torn (it has a crc), but never ahead of it.
So the writer takes it as a lower bound only: a log that ends before its mark has lost what it had acknowledged. The
start is synced before anything is removed: a log that begins behind it has lost its beginning. Logs of before there was
such a file get one when they are opened for writing; until then nobody can tell whether their beginning was removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn
from zlib import crc32

from onefold.errors import Damaged, StoreFailed
from onefold.stores.segments.files import Files

SEGMENT, INDEX, SNAPSHOT, TORN = ".log", ".index", ".snap", ".bytes"
MARK, START, LOCK, SNAPSHOTS_FOLDER, TORN_FOLDER = "durable", "start", "lock", "snapshots", "torn"


def name(number: int, kind: str) -> str:
    """The name of a file that is about an offset: of one width, so that names sort as numbers do."""
    return f"{number:020d}{kind}"


def numbers(files: Files, folder: str, kind: str) -> list[int]:
    """The offsets that the files of one kind are named after, ascending; other files are not ours."""
    cut = -len(kind)
    names = files.list(folder)
    return [int(n[:cut]) for n in names if len(n) == 20 - cut and n.endswith(kind) and n[:cut].isdecimal()]


def pack_mark(offset: int) -> bytes:
    """The mark as it is written: 8 bytes, and 4 that tell a whole one from one torn between two values."""
    data = offset.to_bytes(8, "little")
    return data + crc32(data).to_bytes(4, "little")


def read_start(files: Files, folder: str) -> int | None:
    """Where the log begins; None if that was never written down, or is torn."""
    return read_mark(files, folder, START)


def write_start(files: Files, folder: str, offset: int) -> None:
    """Write down where the log begins; durable when it returns."""
    file = files.open(f"{folder}/{START}", new=True)
    try:
        file.write(pack_mark(offset), 0)
        file.sync()
    finally:
        file.close()
    files.sync_folder(folder)


def read_mark(files: Files, folder: str, file: str = MARK) -> int | None:
    """How far the log is known to be durable; None if the mark is missing or torn."""
    try:
        data = files.read(f"{folder}/{file}", 0, 12)
    except FileNotFoundError:
        return None
    offset = int.from_bytes(data[:8], "little")
    return offset if data == pack_mark(offset) else None


def failed(error: OSError, path: str) -> StoreFailed:
    """What an error of the system means to a caller: which file, which cause."""
    path = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else path
    cause = error.strerror or str(error) or type(error).__name__
    return StoreFailed(f"{path}: {cause}", cause=cause, path=path)


@contextmanager
def failing(path: str) -> Iterator[None]:
    """Within: an error of the system becomes `StoreFailed`."""
    try:
        yield
    except OSError as error:
        raise failed(error, path) from error


def damaged(path: str, position: int, offset: int, why: str) -> NoReturn:
    """Refuse a log, and say where."""
    raise Damaged(f"{path} at byte {position}, offset {offset}: {why}", path=path, position=position, offset=offset)
