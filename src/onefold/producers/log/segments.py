"""The append-only log in segment files: the writer.

One ``append`` is one commit group: one write and one sync, shared by all its records; it returns after the sync. A
record is durable when its bytes are synced *and* the name of its segment is: the folder of a new segment is synced
before its first group.

    append    repair if broken; roll if full; write; sync; mark
    roll      cut off the preallocated zeros; make a new file, sync the folder; continue there
    repair    after any failure: reopen the file, truncate it at the durable end, rewrite the last block, sync
    open      lock; load the newest whole snapshot; check the frames after it; cut a torn end; make the rest durable
    retain    remove whole segments from the front, one by one, never the one that is being written

After a failed sync the page cache says nothing about the disk, so the group is never trusted: it is cut off at once, or
if that fails too, before the next group. (If the process ends first, the next start may find a part of the group, as
after any crash.) Space for later groups is preallocated as zeros together with a group: a sync without a new file size
takes half the time. Zeros are never a frame.

Cost: about 1.5 us a record of 100 bytes on top of one write and one ``fdatasync``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TypeAlias

from onefold.errors import Damaged, Misuse, StoreFailed
from onefold.producers.log import disk
from onefold.producers.log import reader as index
from onefold.producers.log.disk import File, Files, Snapshots
from onefold.producers.log.frames import END, HEAD_BYTES_MAX, encode, header, headers, was_durable
from onefold.producers.log.reader import IndexEntry, IndexWriter, LogReader
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot

TORN_COUNT_MAX = 16
"""Torn ends kept for inspection; each is at most one group long."""

BLOCK_BYTES = 4096
"""The smallest unit that file systems write, and that a failed write can damage."""

Tail: TypeAlias = tuple[IndexEntry, list[IndexEntry], int]
"""The end of a segment, its index, and where its last group begins (the end, if no group was read)."""


def find_end(files: Files, folder: str, bases: list[int], start: int, mark: int) -> Tail:
    """Check the log from ``start`` on, the position of the newest snapshot; change nothing.

    A bad frame in the last segment is the torn end of a group that was never acknowledged, unless something proves that
    it was durable: a later group after it, the writer's mark, or a snapshot beyond it. Then, and for a bad frame in any
    other segment, `Damaged` is raised.
    """
    first = bisect_right(bases, start) - 1
    for base, following in zip(bases[first:-1], bases[first + 1 :], strict=True):
        offset, position, _ = _follow(files, folder, base, max(base, start), following)[0]
        if offset != following:
            why = "the record is missing or not as it was written"
            disk.damaged(disk.segment(folder, base), position, offset, why)
    base = bases[-1]
    tail = _follow(files, folder, base, max(base, start), END)
    offset, position, _ = tail[0]
    path, least = disk.segment(folder, base), max(mark, start)
    if offset < least:
        disk.damaged(path, position, offset, f"records up to {least} were acknowledged and are not there")
    if was_durable(files, path, base, position):
        disk.damaged(path, position, offset, "the record is not as it was written, and later ones are")
    stray = header(files.read(path, position, HEAD_BYTES_MAX), 0, position, base)
    if stray is not None and stray.offset != offset:
        disk.damaged(path, position, offset, f"the record there has the offset {stray.offset}")
    return tail


def _follow(files: Files, folder: str, base: int, offset: int, end: int) -> Tail:
    path = disk.segment(folder, base)
    entries = index.load(files, disk.segment(folder, base, disk.INDEX), base)
    entry = index.before(entries, max(base, offset - 1))  # check at least one frame against the index
    del entries[entries.index(entry) + 1 :]
    last, began = index.extend(files, path, base, entries, end)
    if last == entry and entry.position:  # no frame where the index points: discard the index
        entries = [IndexEntry(base, 0, index.NEVER)]
        last, began = index.extend(files, path, base, entries, end)
    frames = takewhile(lambda frame: frame[0] < last.position, headers(files, path, base, began))
    return last, entries, max((at - head.group for at, head in frames), default=last.position)


SEGMENT_BYTES = 64 * 1024 * 1024
"""The unit of retention: small enough to be removed often, large enough to be few. (Kafka 1 GiB, NATS 8 MiB.)"""

SNAPSHOTS_KEPT = 2
"""A spare in case the newest is damaged; to survive two damaged ones, keep three."""

AHEAD_BYTES = 1024 * 1024
"""Preallocated at once: with groups of 100 records of 100 bytes, one sync in fifty records a new file size."""


class SegmentLog:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        snapshots_kept: int = SNAPSHOTS_KEPT,
        files: Files = disk.REAL,
    ) -> None:
        """Open the log in ``path``, or make it. `StoreFailed` if another process writes it."""
        if segment_bytes < 1 or snapshots_kept < 1:
            raise Misuse(f"segment_bytes {segment_bytes} and snapshots_kept {snapshots_kept} must be at least 1")
        self._folder = os.fspath(path)
        self._files = files
        self._segment_bytes = segment_bytes
        self._snapshots = Snapshots(files, self._folder, snapshots_kept)
        self._broken = False
        self._handles: list[File] = []
        try:
            with disk.failing(self._folder):
                self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        files, folder = self._files, self._folder
        files.make_folder(folder)
        try:
            self._handles.append(files.lock(f"{folder}/{disk.LOCK}"))
        except BlockingIOError as error:
            cause = "another process writes this log"
            raise StoreFailed(f"{folder}: {cause}", cause=cause, path=folder) from error
        self._snapshots.open()
        snapshot, mark = self._snapshots.newest(), disk.read_mark(files, folder) or 0
        bases = self._bases = disk.numbers(files, folder, disk.SEGMENT)
        if not bases:
            if mark or self._snapshots.positions():
                raise Damaged(f"{folder}: no segment is left", path=folder, position=0)
            files.open(self._path(0), new=True).close()
            bases.append(0)
        if disk.read_mark(files, folder, disk.START) is None:
            disk.write_start(files, folder, bases[0])
        # Names made by a killed writer may not be on the disk yet.
        files.sync_folder(folder)
        position = 0 if snapshot is None else snapshot.position
        if position < bases[0]:
            why = "the log no longer begins at 0, and no snapshot to continue from is whole"
            raise Damaged(f"{self._path(bases[0])}: {why}", path=self._path(bases[0]), position=0)
        self._base, (last, entries, group) = bases[-1], find_end(files, folder, bases, position, mark)
        self._end, self._position, self._latest = last
        self._group = entries[-1]
        self._file = files.open(self._path(self._base))
        self._handles.append(self._file)
        self._make_sure(group, mark)
        self._room = self._position
        self._index = IndexWriter(files, disk.segment(folder, self._base, disk.INDEX), entries)
        self._index.rewrite()
        self._mark = files.open(f"{folder}/{disk.MARK}", new=True)
        self._handles.append(self._mark)
        self._mark.write(disk.pack_mark(self._end), 0)

    def _make_sure(self, group: int, mark: int) -> None:
        """Cut off a torn end, and make the rest durable.

        The last group may be in the page cache only (its writer was killed before the sync) or even marked clean there
        without being written (its sync failed). So a group beyond the mark is written again in place, and synced. A
        crash during this leaves what was there before.
        """
        files, path, aside = self._files, self._path(self._base), f"{self._folder}/{disk.TORN_FOLDER}"
        if torn := files.read(path, self._position).rstrip(b"\0"):  # preallocated zeros
            # Best effort: these bytes were never acknowledged, and a full disk must not keep the log closed.
            with suppress(OSError):
                files.make_folder(aside)
                names = [name for name in files.list(aside) if name.endswith(disk.TORN)]
                for old in names[: max(0, len(names) + 1 - TORN_COUNT_MAX)]:
                    files.unlink(f"{aside}/{old}")
                same = [int(old[21 : -len(disk.TORN)]) for old in names if old.startswith(disk.name(self._end, "-"))]
                kind = f"-{max(same, default=0) + 1:03d}{disk.TORN}"
                disk.write_file(files, f"{aside}/{disk.name(self._end, kind)}", torn)
                files.sync_folder(aside)
        if mark < self._end:
            self._file.write(files.read(path, group, self._position - group), group)
        self._file.truncate(self._position)
        self._file.sync()

    @property
    def start(self) -> int:
        return self._bases[0]

    @property
    def end(self) -> int:
        return self._end

    def append(self, drafts: Sequence[Draft], time_ms: int) -> int:
        """See `AppendLog`; after `StoreFailed` the next call first repairs the file."""
        self._check_open()
        first = self._end
        if not drafts:
            return first
        try:
            if self._broken:
                self._repair()
            if self._position >= self._segment_bytes:
                self._roll()
            position = self._position
            self._group = IndexEntry(first, position, self._latest)
            if position - self._index.entries[-1].position >= index.SPACING_BYTES:
                self._index.add(self._group)
            data = encode(drafts, first, time_ms, self._base, position)
            self._broken = True  # also if the next lines are interrupted
            self._file.write(data, position)
            position += len(data)
            if position > self._room:
                ahead = max(0, min(AHEAD_BYTES, self._segment_bytes - position))
                self._room = position + ahead
                with suppress(OSError):  # a nearly full disk may still hold the group
                    self._file.write(bytes(ahead), position)
            self._file.sync()
        except OSError as error:
            self._broken = True
            with suppress(OSError):
                self._repair()
            raise disk.failed(error, self._path(self._base)) from error
        self._position, self._end, self._broken = position, first + len(drafts), False
        if time_ms > self._latest:
            self._latest = time_ms
        try:
            self._mark.write(disk.pack_mark(self._end), 0)
        except OSError:  # the group is durable without the mark, but the next group must wait for it
            self._broken = True
        return first

    def _roll(self) -> None:
        files, base = self._files, self._end
        if self._room > self._position:
            self._file.truncate(self._position)  # needs no sync: zeros that reappear are not frames
            self._room = self._position
        file = files.open(self._path(base), new=True)
        try:
            files.sync_folder(self._folder)
        except BaseException:
            file.close()
            with suppress(OSError):
                files.unlink(self._path(base))  # its name may not be durable: do not rely on it next time
            raise
        self._index.add(IndexEntry(base, self._position, self._latest))
        self._index.close()
        self._handles.remove(self._file)
        self._file.close()
        self._handles.append(file)
        self._file, self._base, self._position, self._room = file, base, 0, 0
        self._latest = index.NEVER
        self._bases.append(base)
        begin = IndexEntry(base, 0, index.NEVER)
        self._index = IndexWriter(files, disk.segment(self._folder, base, disk.INDEX), [begin])

    def _repair(self) -> None:
        """Restore file and mark to what was acknowledged, through a descriptor opened after the failure."""
        path = self._path(self._base)
        file = self._files.open(path)
        try:
            # Rewrite the block that holds both the last durable bytes and failed ones: the failure may have damaged it
            # on the disk while the page cache calls it clean.
            block = self._position // BLOCK_BYTES * BLOCK_BYTES
            durable = self._files.read(path, block, self._position - block)
            file.truncate(self._position)
            file.write(durable, block)
            file.sync()
            self._mark.write(disk.pack_mark(self._end), 0)
        except BaseException:
            file.close()
            raise
        self._handles.remove(self._file)
        with suppress(OSError):
            self._file.close()
        self._handles.append(file)
        self._file, self._room, self._broken = file, self._position, False

    def read(self, start: int, end: int | None = None) -> Iterator[LogRecord]:
        self._check_open()
        return self._reader().read(start, end)

    def _reader(self) -> LogReader:
        return LogReader(self._folder, files=self._files, durable=lambda: self._end)

    def save(self, snapshot: SequencesSnapshot) -> None:
        """See `AppendLog`; a position before ``start`` or beyond ``end`` is `Misuse`."""
        self._check_open()
        position = snapshot.position
        if not self.start <= position <= self._end:
            text = f"a snapshot at {position} of a log that holds [{self.start}, {self._end})"
            raise Misuse(text, position=position)
        self._index.add(self._group)  # where the next opening begins to check
        self._snapshots.save(snapshot)

    def load(self) -> SequencesSnapshot | None:
        self._check_open()
        return self._snapshots.newest()

    def trim(self, before_offset: int) -> int:
        """Remove whole segments below an offset, as far as no kept snapshot needs them; return the new ``start``.

        The new start is recorded first, so that a segment missing for another reason is recognised as lost. Each
        removal is synced before the next: otherwise a power cut could leave the second on the disk without the first,
        and so a hole.
        """
        self._check_open()
        files, folder, bases = self._files, self._folder, self._bases
        with disk.failing(folder):
            limit = min(before_offset, self._snapshots.safe_position())
            start = max((base for base in bases if base <= limit), default=bases[0])
            if start > bases[0]:
                disk.write_start(files, folder, start)
            while bases[0] < start:
                files.sync_folder(folder)  # the previous removal, also one of a call that failed
                with suppress(FileNotFoundError):
                    files.unlink(disk.segment(folder, bases[0], disk.INDEX))
                files.unlink(self._path(bases[0]))
                del bases[0]
            files.sync_folder(folder)
        return self.start

    def retain(self, *, bytes: int | None = None, before_ms: int | None = None) -> int:
        """See `AppendLog`. The segment being written stays; if it begins with a record older than ``before_ms`` it is
        closed now, so that it can be removed later."""
        self._check_open()
        with disk.failing(self._folder):
            if before_ms is not None and self._end > self._base and not self._broken:
                first, last = (next(self.read(at, at + 1)).time_ms for at in (self._base, self._end - 1))
                if min(first, last) < before_ms:  # the clock may have been ahead at the first
                    self._roll()
            sizes = [self._files.size(self._path(base)) for base in self._bases[:-1]]
            reader, total, limit = self._reader(), sum(sizes) + self._position, self.start
            for number, size in enumerate(sizes):
                old = before_ms is not None and _newest(reader, self._bases[number:], before_ms) < before_ms
                if not old and (bytes is None or total <= bytes):
                    break
                total, limit = total - size, self._bases[number + 1]
        return self.trim(limit)

    def close(self) -> None:
        if self._handles:
            with suppress(OSError):
                if self._broken:
                    self._repair()
                if self._room > self._position:
                    self._file.truncate(self._position)
            self._index.close()
            self._release()

    def _release(self) -> None:
        files, self._handles = self._handles, []
        for file in reversed(files):  # the lock last
            with suppress(OSError):
                file.close()

    def _check_open(self) -> None:
        if not self._handles:
            raise Misuse(f"{self._folder} was closed", path=self._folder)

    def _path(self, base: int) -> str:
        return disk.segment(self._folder, base)


def _newest(reader: LogReader, bases: Sequence[int], enough_ms: int) -> int:
    """When the newest record of the first of these segments was stored; the search ends below ``enough_ms``.

    The clock may have been far ahead. A record was stored no later than those after it, so a segment is at least as
    old as its newest record and as the first record of every later segment.
    """
    end = reader.end
    latest, newest = reader.latest(bases[0]), min((r.time_ms for r in reader.read(end - 1, end)), default=0)
    for begin in bases[1:]:
        if latest < enough_ms or latest <= newest or begin >= end:
            break
        latest = min(latest, next(reader.read(begin, begin + 1)).time_ms)
    return min(latest, newest)
