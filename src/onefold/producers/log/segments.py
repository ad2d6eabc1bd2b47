"""The append-only log in segment files: the writer.

One ``append`` is one commit group: one write and one sync, shared by all its records; nothing is answered before the
sync has returned. A record is durable when its bytes are synced *and* the name of its segment is: a new segment's
folder is synced before the first group goes into it.

    append    repair if broken; roll if full; write; sync; mark
    roll      cut the room that was made ahead; new file, sync the folder; go on there
    repair    after any failure: open the file anew, cut it at the durable end, write the last block again, sync
    open      lock; newest whole snapshot; check the frames behind it; cut a torn end; make sure of the rest
    retain    remove whole segments from the front, one by one, never the one that is being written

After a failed sync the page cache says nothing about the disk, so nothing that was in that group is ever trusted: it
is cut off at once, and if even that fails, before the next group. (If the process ends before either could be done, it
is what any group is whose writer died: of it a beginning may be found at the next start.) Room for later groups is
written ahead, as zeros, together with a group: a sync that need not record a new file size takes half the time. Zeros
are no frame.

Cost: about 1.5 us a record of 100 bytes on top of one write and one ``fdatasync``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

from onefold.errors import Damaged, Misuse, StoreFailed
from onefold.producers.log import disk
from onefold.producers.log import reader as index
from onefold.producers.log.disk import File, Files, Snapshots
from onefold.producers.log.frames import END, HEAD_BYTES_MAX, encode, header, headers, walk, was_durable
from onefold.producers.log.reader import IndexEntry, IndexWriter, LogReader
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot

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
    entries: list[IndexEntry]
    group: int
    """Where the last group that was looked at begins; the position if none was."""


def find_end(files: Files, folder: str, bases: list[int], start: int, mark: int) -> Tail:
    """Check the log from the offset ``start`` on, where the newest snapshot stands; change nothing.

    A bad frame in the last segment is the torn end of a group that was never acknowledged; unless something proves that
    it was durable: a later group behind it, the writer's mark, a snapshot beyond it. Then, and for a bad frame in any
    other segment, the log is refused: `Damaged`.
    """
    first = bisect_right(bases, start) - 1
    for base, following in zip(bases[first:-1], bases[first + 1 :], strict=True):
        tail = _follow(files, folder, base, max(base, start), following)
        if tail.end != following:
            path = disk.segment(folder, base)
            disk.damaged(path, tail.position, tail.end, "the record is missing or not as it was written")
    tail = _follow(files, folder, bases[-1], max(bases[-1], start), END)
    path, known = disk.segment(folder, tail.base), max(mark, start)
    if tail.end < known:
        disk.damaged(path, tail.position, tail.end, f"records up to {known} were acknowledged and are not there")
    if was_durable(files, path, tail.base, tail.position):
        disk.damaged(path, tail.position, tail.end, "the record is not as it was written, and later ones are")
    stray = header(files.read(path, tail.position, HEAD_BYTES_MAX), 0, tail.position, tail.base)
    if stray is not None and stray.offset != tail.end:
        disk.damaged(path, tail.position, tail.end, f"the record there has the offset {stray.offset}")
    return tail


def _follow(files: Files, folder: str, base: int, offset: int, end: int) -> Tail:
    path = disk.segment(folder, base)
    entries = index.load(files, f"{folder}/{disk.name(base, disk.INDEX)}", base)
    entry = index.before(entries, max(base, offset - 1))  # at least one frame has to be where the index says
    tail = _walk(files, path, base, entry, entries, end)
    if tail.end == entry.offset and entry.position:  # no frame where the index points: it is not believed
        begin = IndexEntry(base, 0, index.NEVER)
        tail = _walk(files, path, base, begin, [begin], end)
    return tail


def _walk(files: Files, path: str, base: int, entry: IndexEntry, entries: list[IndexEntry], end: int) -> Tail:
    offset, position, latest = entry
    entries = [earlier for earlier in entries if earlier.offset <= offset]
    began = position
    for records, stop in walk(files, path, base, position, offset, end):
        began, position = position, stop
        offset = records[-1].offset + 1
        latest = max(latest, max(record.time_ms for record in records))
        if position - entries[-1].position >= index.SPACING_BYTES:
            entries.append(IndexEntry(offset, position, latest))
    frames = takewhile(lambda frame: frame[0] < position, headers(files, path, base, began))
    group = max((at - head.group for at, head in frames), default=position)
    return Tail(base, position, offset, latest, entries, group)


def make_sure(files: Files, folder: str, file: File, tail: Tail, mark: int) -> None:
    """Cut off what is torn, and make the rest durable.

    What can be read is not yet what is on the disk. The last group may be in the page cache only (its writer was killed
    before the sync) or even marked clean there without being written (its sync failed). So a group beyond the mark is
    written once more in its place, and synced. A crash at any point of this leaves what was there before.
    """
    path = disk.segment(folder, tail.base)
    torn = files.read(path, tail.position).rstrip(b"\0")  # zeros are room that was made ahead
    if torn:
        # Only a courtesy: these bytes were never acknowledged, and a full disk must not keep the log shut.
        with suppress(OSError):
            _keep_aside(files, f"{folder}/{disk.TORN_FOLDER}", tail.end, torn)
    if mark < tail.end:
        file.write(files.read(path, tail.group, tail.position - tail.group), tail.group)
    file.truncate(tail.position)
    file.sync()


def _keep_aside(files: Files, folder: str, offset: int, torn: bytes) -> None:
    files.make_folder(folder)
    names = [file_name for file_name in files.list(folder) if file_name.endswith(disk.TORN)]
    for old in names[: max(0, len(names) + 1 - TORN_COUNT_MAX)]:
        files.unlink(f"{folder}/{old}")
    same = [int(old[21 : -len(disk.TORN)]) for old in names if old.startswith(disk.name(offset, "-"))]
    number = max(same, default=0) + 1
    disk.write_file(files, f"{folder}/{disk.name(offset, f'-{number:03d}{disk.TORN}')}", torn)
    files.sync_folder(folder)


def beyond(
    reader: LogReader, bases: Sequence[int], sizes: Sequence[int], bytes_max: int | None, before_ms: int | None
) -> int:
    total, limit = sum(sizes), bases[0]
    for i, (base, following, size) in enumerate(zip(bases, bases[1:], sizes, strict=False)):
        old = before_ms is not None and _latest(reader, base, bases[i + 1 :], before_ms) < before_ms
        large = bytes_max is not None and total > bytes_max
        if not old and not large:
            break
        total, limit = total - size, following
    return limit


def _latest(reader: LogReader, base: int, following: Sequence[int], enough_ms: int) -> int:
    """When the newest record of a segment was stored at the latest; looked for until it is below ``enough_ms``.

    A clock may have been far ahead. Records are stored in the order in which they came, so none is younger than one
    behind it: a segment is as old as the youngest record in it, or the beginning of one behind it.
    """
    end = reader.end
    latest, newest = reader.latest(base), min((r.time_ms for r in reader.read(end - 1, end)), default=0)
    for begin in following:
        if latest < enough_ms or latest <= newest or begin >= end:
            break
        latest = min(latest, next(reader.read(begin, begin + 1)).time_ms)
    return min(latest, newest)


def remove(files: Files, folder: str, bases: list[int], limit: int) -> None:
    """Remove the segments all of whose offsets are below a limit, and take them off the list of bases.

    Where the log begins is written down first: a segment that is missing although nobody removed it is a loss that can
    be told. Each removal is synced before the next: were two under way at once, the second could be on the disk without
    the first, and a power cut would leave a hole.
    """
    start = max((base for base in bases if base <= limit), default=bases[0])
    if start > bases[0]:
        disk.write_start(files, folder, start)
    while len(bases) > 1 and bases[1] <= limit:
        files.sync_folder(folder)  # the removal before this one, also if that was in a call that failed
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{disk.name(bases[0], disk.INDEX)}")
        files.unlink(f"{folder}/{disk.name(bases[0], disk.SEGMENT)}")
        del bases[0]
    files.sync_folder(folder)


SEGMENT_BYTES = 64 * 1024 * 1024
"""The unit of retention: small enough to remove often, large enough to be few. (Kafka 1 GiB, NATS 8 MiB.)"""

SNAPSHOTS_KEPT = 2
"""If the newest turns out damaged, there is one more; who wants to survive two damaged ones asks for three."""

AHEAD_BYTES = 1024 * 1024
"""One sync in fifty, at 100 records of 100 bytes, pays for the others; more would only lengthen that one."""


class SegmentLog:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        snapshots_kept: int = SNAPSHOTS_KEPT,
        files: Files = disk.REAL,
    ) -> None:
        """Open the log in ``path``, made if it is not there. `StoreFailed` if another process writes it."""
        if segment_bytes < 1 or snapshots_kept < 1:
            raise Misuse(f"segment_bytes {segment_bytes} and snapshots_kept {snapshots_kept} must be at least 1")
        self._folder = os.fspath(path)
        self._files = files
        self._segment_bytes = segment_bytes
        self._snapshots = Snapshots(files, self._folder, snapshots_kept)
        self._broken = False
        self._held: list[File] = []
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
            self._held.append(files.lock(f"{folder}/{disk.LOCK}"))
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
        # Names that a killed writer made may be in this machine's memory only.
        files.sync_folder(folder)
        position = 0 if snapshot is None else snapshot.position
        if position < bases[0]:
            why = "the log no longer begins at 0, and no snapshot that it could go on from is whole"
            raise Damaged(f"{self._path(bases[0])}: {why}", path=self._path(bases[0]), position=0)
        tail = find_end(files, folder, bases, position, mark)
        self._base, self._position, self._end, self._latest, entries, _ = tail
        self._group = entries[-1]
        self._file = files.open(self._path(self._base))
        self._held.append(self._file)
        make_sure(files, folder, self._file, tail, mark)
        self._room = self._position
        self._index = IndexWriter(files, f"{folder}/{disk.name(self._base, disk.INDEX)}", entries)
        self._index.rewrite()
        self._mark = files.open(f"{folder}/{disk.MARK}", new=True)
        self._held.append(self._mark)
        self._mark.write(disk.pack_mark(self._end), 0)

    @property
    def start(self) -> int:
        return self._bases[0]

    @property
    def end(self) -> int:
        return self._end

    def append(self, drafts: Sequence[Draft], time_ms: int) -> int:
        """As `AppendLog` has it; after `StoreFailed` the next call first clears up what is left of this one."""
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
            self._broken = True  # also for whatever interrupts the next lines
            self._file.write(data, position)
            position += len(data)
            if position > self._room:
                ahead = max(0, min(AHEAD_BYTES, self._segment_bytes - position))
                self._room = position + ahead
                with suppress(OSError):  # on a disk that is nearly full, what fits shall be kept
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
        except OSError:  # the group is durable with or without the mark, but the next group has to wait for it
            self._broken = True
        return first

    def _roll(self) -> None:
        files, base = self._files, self._end
        if self._room > self._position:
            self._file.truncate(self._position)  # needs no sync: zeros that come back are still no frames
            self._room = self._position
        file = files.open(self._path(base), new=True)
        try:
            files.sync_folder(self._folder)
        except BaseException:
            file.close()
            with suppress(OSError):
                files.unlink(self._path(base))  # its name may be in memory only: it must not be relied on next time
            raise
        self._index.add(IndexEntry(base, self._position, self._latest))
        self._index.close()
        self._held.remove(self._file)
        self._file.close()
        self._held.append(file)
        self._file, self._base, self._position, self._room = file, base, 0, 0
        self._latest = index.NEVER
        self._bases.append(base)
        begin = IndexEntry(base, 0, index.NEVER)
        self._index = IndexWriter(files, f"{self._folder}/{disk.name(base, disk.INDEX)}", [begin])

    def _repair(self) -> None:
        """Bring file and mark to what was acknowledged, through a descriptor that has not seen the failure."""
        path = self._path(self._base)
        file = self._files.open(path)
        try:
            # The block that the last durable bytes share with the failed ones is written again: the failure may have
            # spoilt it on the disk, while the page cache calls it clean.
            block = self._position // BLOCK_BYTES * BLOCK_BYTES
            durable = self._files.read(path, block, self._position - block)
            file.truncate(self._position)
            file.write(durable, block)
            file.sync()
            self._mark.write(disk.pack_mark(self._end), 0)
        except BaseException:
            file.close()
            raise
        self._held.remove(self._file)
        with suppress(OSError):
            self._file.close()
        self._held.append(file)
        self._file, self._room, self._broken = file, self._position, False

    def read(self, start: int, end: int | None = None) -> Iterator[LogRecord]:
        self._check_open()
        return self._reader().read(start, end)

    def _reader(self) -> LogReader:
        return LogReader(self._folder, files=self._files, durable=lambda: self._end)

    def save(self, snapshot: SequencesSnapshot) -> None:
        """Keep a snapshot; durable when it returns. A position beyond ``end`` or before ``start`` is `Misuse`."""
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
        """Remove whole segments below an offset, as far as no kept snapshot needs them; return the new ``start``."""
        self._check_open()
        with disk.failing(self._folder):
            limit = min(before_offset, self._snapshots.safe_position())
            remove(self._files, self._folder, self._bases, limit)
        return self.start

    def retain(self, *, bytes: int | None = None, before_ms: int | None = None) -> int:
        """As `AppendLog` has it. The segment that is being written stays; but one that begins with a record older than
        ``before_ms`` is closed now, so that it can go when all of it is."""
        self._check_open()
        with disk.failing(self._folder):
            if before_ms is not None and self._end > self._base and not self._broken:
                first, last = (next(self.read(at, at + 1)).time_ms for at in (self._base, self._end - 1))
                if min(first, last) < before_ms:  # the first one's clock may have been ahead
                    self._roll()
            sizes = [self._files.size(self._path(base)) for base in self._bases[:-1]]
            limit = beyond(self._reader(), self._bases, [*sizes, self._position], bytes, before_ms)
        return self.trim(limit)

    def close(self) -> None:
        if self._held:
            with suppress(OSError):
                if self._broken:
                    self._repair()
                if self._room > self._position:
                    self._file.truncate(self._position)
            self._index.close()
            self._release()

    def _release(self) -> None:
        files, self._held = self._held, []
        for file in reversed(files):  # the lock last
            with suppress(OSError):
                file.close()

    def _check_open(self) -> None:
        if not self._held:
            raise Misuse(f"{self._folder} was closed", path=self._folder)

    def _path(self, base: int) -> str:
        return disk.segment(self._folder, base)
