"""What a writer does before it may append: find the end of the log, and make sure of it.

The frames from the newest snapshot on are checked. A bad frame in the last segment is the torn end of a group that was
never acknowledged, and is cut off; unless something proves that it was durable: a later group behind it, the writer's
mark, a snapshot beyond it. Then, and for a bad frame in any other segment, the log is refused and nothing is changed.

What was found is not yet what is on the disk. The last group may be in the page cache only (its writer was killed
before the sync) or even marked clean there without being written (its sync failed). So a group beyond the mark is
written once more in its place, and synced, before the log goes on behind it. A crash at any point of this leaves what
was there before.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

from onefold.stores.segments import index
from onefold.stores.segments.files import File, Files
from onefold.stores.segments.folder import INDEX, SEGMENT, TORN, TORN_FOLDER, damaged, name
from onefold.stores.segments.frames import HEAD_BYTES_MAX, header
from onefold.stores.segments.index import Entry
from onefold.stores.segments.scan import END, headers, walk, was_durable

TORN_COUNT_MAX = 16
"""So many torn ends are kept for whoever wants to look; each is at most a group long."""

BLOCK_BYTES = 4096
"""What a file system writes at least, and what a failed write can spoil."""


class Tail(NamedTuple):
    """Where a log ends: the last segment, the place and the offset behind its last frame, and what its index knows."""

    base: int
    position: int
    end: int
    latest: int
    entries: list[Entry]
    group: int
    """Where the last group that was looked at begins; the position if none was."""


def find_end(files: Files, folder: str, bases: list[int], start: int, mark: int) -> Tail:
    """Check the log from the offset ``start`` on; `Damaged` if it ends before ``mark`` or is not whole up to there."""
    first = bisect_right(bases, start) - 1
    for base, following in zip(bases[first:-1], bases[first + 1 :], strict=True):
        tail = _follow(files, folder, base, max(base, start), following)
        if tail.end != following:
            path = f"{folder}/{name(base, SEGMENT)}"
            damaged(path, tail.position, tail.end, "the record is missing or not as it was written")
    tail = _follow(files, folder, bases[-1], max(bases[-1], start), END)
    path = f"{folder}/{name(tail.base, SEGMENT)}"
    if tail.end < max(mark, start):
        damaged(path, tail.position, tail.end, f"records up to {max(mark, start)} were acknowledged and are not there")
    if was_durable(files, path, tail.base, tail.position):
        damaged(path, tail.position, tail.end, "the record is not as it was written, and later ones are")
    stray = header(files.read(path, tail.position, HEAD_BYTES_MAX), 0, tail.position, tail.base)
    if stray is not None and stray.offset != tail.end:
        damaged(path, tail.position, tail.end, f"the record there has the offset {stray.offset}")
    return tail


def _follow(files: Files, folder: str, base: int, offset: int, end: int) -> Tail:
    path = f"{folder}/{name(base, SEGMENT)}"
    entries = index.load(files, f"{folder}/{name(base, INDEX)}", base)
    entry = index.before(entries, max(base, offset - 1))  # at least one frame has to be where the index says
    tail = _walk(files, path, base, entry, entries, end)
    if tail.end == entry.offset and entry.position:  # no frame where the index points: it is not believed
        begin = Entry(base, 0, index.NEVER)
        tail = _walk(files, path, base, begin, [begin], end)
    return tail


def _walk(files: Files, path: str, base: int, entry: Entry, entries: list[Entry], end: int) -> Tail:
    offset, position, latest = entry
    entries = [known for known in entries if known.offset <= offset]
    began = position
    for records, stop in walk(files, path, base, position, offset, end):
        began, position = position, stop
        offset = records[-1].offset + 1
        latest = max(latest, max(record.time_ms for record in records))
        if position - entries[-1].position >= index.SPACING_BYTES:
            entries.append(Entry(offset, position, latest))
    frames = takewhile(lambda frame: frame[0] < position, headers(files, path, base, began))
    group = max((at - head.group for at, head in frames), default=position)
    return Tail(base, position, offset, latest, entries, group)


def make_sure(files: Files, folder: str, file: File, tail: Tail, mark: int) -> None:
    """Cut off what is torn, and make what was found durable."""
    path = f"{folder}/{name(tail.base, SEGMENT)}"
    torn = files.read(path, tail.position).rstrip(b"\0")  # zeros are room that was made ahead
    if torn:
        # Only a courtesy: these bytes were never acknowledged, and a full disk must not keep the log shut.
        with suppress(OSError):
            _keep_aside(files, f"{folder}/{TORN_FOLDER}", tail.end, torn)
    if mark < tail.end:
        file.write(files.read(path, tail.group, tail.position - tail.group), tail.group)
    file.truncate(tail.position)
    file.sync()


def cut_back(files: Files, path: str, file: File, position: int) -> None:
    """After a failed write or sync: cut a file at its durable end, and make sure of that.

    The block that the last durable bytes share with the failed ones is written again: the failure may have spoilt it on
    the disk, while the page cache calls it clean.
    """
    block = position // BLOCK_BYTES * BLOCK_BYTES
    durable = files.read(path, block, position - block)
    file.truncate(position)
    file.write(durable, block)
    file.sync()


def _keep_aside(files: Files, folder: str, offset: int, torn: bytes) -> None:
    files.make_folder(folder)
    names = [known for known in files.list(folder) if known.endswith(TORN)]
    for old in names[: max(0, len(names) + 1 - TORN_COUNT_MAX)]:
        files.unlink(f"{folder}/{old}")
    same = [int(known[21 : -len(TORN)]) for known in names if known.startswith(name(offset, "-"))]
    number = max(same, default=0) + 1
    file = files.open(f"{folder}/{name(offset, f'-{number:03d}{TORN}')}", new=True)
    try:
        file.write(torn, 0)
        file.sync()
    finally:
        file.close()
    files.sync_folder(folder)
