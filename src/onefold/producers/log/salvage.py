"""Verify a damaged log, and copy what is whole into a new one.

A log refuses to open when a record that was durable is missing. `verify` names every damaged place, `salvage` copies
every whole record into a new log. Frames carry their offsets and are valid only at their own position, so reading can
continue after any damage, and what is lost is known exactly, except at the very end: there the mark and the snapshots
give a lower bound.

A log has no holes: in the new log the records after a loss move down, and the snapshots with them. The state in a
snapshot covers all records before it, also the lost ones, so nothing of it is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, groupby
from operator import attrgetter

from onefold.errors import Misuse
from onefold.producers.log import disk
from onefold.producers.log.disk import Files, Snapshots
from onefold.producers.log.frames import END, encode, headers, walk
from onefold.producers.log.segments import SEGMENT_BYTES
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot

AHEAD_MS = 60_000
"""Tolerated difference between the clocks of this machine and the one that wrote the log."""
_ALL = 1_000_000  # snapshots to keep: all


def moment(time_ms: int) -> str:
    """A time in UTC for people; in ms if it is outside the calendar.

    >>> moment(1_767_225_600_000), moment(2**62)
    ('2026-01-01 00:00:00.000', '4611686018427387904 ms')
    """
    try:
        day = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return day.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place: the records ``first`` to ``last`` are missing or altered."""

    path: str
    position: int
    first: int
    last: int
    before: int
    """How many whole records the log has before it."""

    def __str__(self) -> str:
        lost = f"offset {self.first} is" if self.first == self.last else f"offsets {self.first} to {self.last} are"
        return f"{self.path} at byte {self.position}: {lost} lost, after {self.before} whole records"


@dataclass(slots=True)
class Findings:
    path: str
    start: int = 0
    start_known: bool = True
    """Whether the log's start was recorded; if not, records before ``start`` were removed by retention, or lost."""
    end: int = 0
    """After the last record that is known to have existed."""
    records: int = 0
    """Whole records."""
    damages: list[Damage] = field(default_factory=list)
    ahead: int = 0
    """Records with a time in the future: a clock was ahead. No damage; retention and keys recover from it."""
    ahead_first: int = -1
    """The offset of the first of them."""
    ahead_ms: int = 0
    """The latest of their times."""
    torn_bytes: int = 0
    """Bytes after the last record, of a group that was never acknowledged. The writer cuts them off; no damage."""
    snapshots: list[int] = field(default_factory=list)
    """Positions of the undamaged snapshots."""
    snapshots_damaged: list[int] = field(default_factory=list)

    def lose(self, path: str, position: int, next_offset: int) -> None:
        """Note that all records from the end so far up to ``next_offset`` are lost."""
        if next_offset > self.end:
            self.damages.append(Damage(path, position, self.end, next_offset - 1, self.records))
            self.end = next_offset

    @property
    def ok(self) -> bool:
        """Whether everything acknowledged is there."""
        return not self.damages and not self.snapshots_damaged

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [(damage.first, damage.last) for damage in self.damages]

    @property
    def can_go_on(self) -> bool:
        """Whether a writer can rebuild its memory; not if the beginning was removed and no snapshot is whole."""
        return self.start == 0 or bool(self.snapshots)

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.records} whole records of [{self.start}, {self.end})"]
        lines += [f"  {damage}, before {self.records - damage.before} more" for damage in self.damages]
        lines += [f"  the snapshot at {position} is damaged" for position in self.snapshots_damaged]
        if self.ahead:
            future = f"{self.ahead} with a time that is yet to come, from offset {self.ahead_first} on, up to"
            lines.append(f"  {future} {moment(self.ahead_ms)}: a clock was ahead; no damage")
        if not self.start_known:
            lines.append(f"  it begins at {self.start}, and nothing says whether retention removed what lies before")
        lines += [f"  {self.torn_bytes} bytes at the end were never acknowledged"] if self.torn_bytes else []
        lines += [] if self.can_go_on else ["  its beginning was removed and no snapshot is whole: it can only be read"]
        return "\n".join(lines)


def verify(path: str | os.PathLike[str], *, files: Files = disk.REAL, now_ms: int | None = None) -> Findings:
    """Read a whole log and report damage; with ``now_ms`` also records of the future. Cost: 2 us per record."""
    findings = Findings(os.fspath(path))
    for records in _whole_records(files, findings):
        future = [record for record in records if now_ms is not None and record.time_ms > now_ms + AHEAD_MS]
        if future and not findings.ahead:
            findings.ahead_first = future[0].offset
        findings.ahead += len(future)
        findings.ahead_ms = max([findings.ahead_ms, *(record.time_ms for record in future)])
    return findings


def salvage(
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    segment_bytes: int = SEGMENT_BYTES,
    files: Files = disk.REAL,
) -> Findings:
    """Copy whole records into a new log in ``to``, a new or empty folder. Offsets are kept up to the first loss."""
    findings, folder = Findings(os.fspath(path)), os.fspath(to)
    if files.list(folder):
        raise Misuse(f"{folder} is not empty: a salvaged log needs a folder of its own", path=folder)
    with disk.failing(folder):
        files.make_folder(folder)
        batches = _whole_records(files, findings)
        first = next(batches, [])  # sets findings.start
        base = end = findings.start
        file, position = files.open(disk.segment(folder, base), new=True), 0
        for records in chain([first], batches):
            for time_ms, group in groupby(records, attrgetter("time_ms")):  # one group per time
                if position >= segment_bytes:
                    file.sync()
                    file.close()
                    base, position = end, 0
                    file = files.open(disk.segment(folder, base), new=True)
                drafts = [Draft(*record[2:]) for record in group]
                data = encode(drafts, end, time_ms, base, position)
                file.write(data, position)
                position += len(data)
                end += len(drafts)
        file.sync()
        file.close()
        disk.write_file(files, f"{folder}/{disk.MARK}", disk.pack_mark(end))  # makes it a log
        disk.write_start(files, folder, findings.start)
    old, new = Snapshots(files, findings.path, _ALL), Snapshots(files, folder, _ALL)
    new.open()
    for position in findings.snapshots:
        snapshot = old.get(position)
        if snapshot is not None:
            lost = sum(min(last + 1, position) - first for first, last in findings.lost if first < position)
            new.save(SequencesSnapshot(position - lost, snapshot.state))
    return findings


def _whole_records(files: Files, findings: Findings) -> Iterator[list[LogRecord]]:
    """Every whole record, in order; losses between them are added to the findings."""
    folder = findings.path
    with disk.failing(folder):
        bases = disk.numbers(files, folder, disk.SEGMENT)
        snapshots = Snapshots(files, folder, _ALL)
        for position in snapshots.positions():
            whole = snapshots.get(position) is not None
            (findings.snapshots if whole else findings.snapshots_damaged).append(position)
        known_end = max([disk.read_mark(files, folder) or 0, *findings.snapshots])
        if not bases and not known_end:
            raise Misuse(f"there is no log in {folder}", path=folder)
        first, begins = bases[0] if bases else 0, disk.read_mark(files, folder, disk.START)
        findings.start_known = begins is not None or not first
        findings.start = findings.end = first if begins is None else min(first, begins)
        position = 0
        path = folder
        for base in bases:
            findings.lose(path, position, base)
            path = disk.segment(folder, base)
            position = 0
            for records, at, stop in _segment(files, path, base, findings.end):
                position = stop
                findings.lose(path, at, records[0].offset)
                findings.records += len(records)
                findings.end = records[-1].offset + 1
                yield records
        if bases and known_end <= findings.end:
            findings.torn_bytes = len(files.read(path, position).rstrip(b"\0"))
        findings.lose(path, position, known_end)


def _segment(files: Files, path: str, base: int, offset: int) -> Iterator[tuple[list[LogRecord], int, int]]:
    """The whole records of a segment from an offset on, with the position of damage before them, and where they end."""
    position, offset = 0, max(base, offset)
    while True:
        for at, head in headers(files, path, base, position):
            if head.offset < offset:
                continue
            stop = at
            for records, stop in walk(files, path, base, at, head.offset, END):
                yield records, position, stop
                offset = records[-1].offset + 1
            if stop > at:
                position = stop
                break
        else:
            return
