"""A log on a disk that loses power: at every operation, in many torn states, also while it recovers.

A writer does what writers do: appends groups, saves snapshots, removes old segments, closes and opens again, is killed.
Before every operation on the disk the power could go; then some of the disks that could be left are opened and asked:

    every acknowledged record is there once, in order, at its offset, unless retention removed it
    nothing else is there, but the beginning of the one group that was being written
    the newest snapshot is the last that was acknowledged, or the one that was being saved
    it can be appended to, and that is there too

Everything comes from one seed. `Counts` says how much was looked at; a broken promise is an `AssertionError` that names
the seed and the operation.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from onefold.errors import StoreFailed
from onefold.producers.log.disk import START, read_mark
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot
from tests.lib.disk import PowerCut, SimDisk

FOLDER = "/log"
SEGMENT_BYTES = 700
"""So small that a few groups fill one: rolling and retention happen all the time."""

ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS)


@dataclass
class Counts:
    """How much was looked at."""

    points: int = 0
    """Operations before which the power could go, or which failed."""
    states: int = 0
    """Disks that such a moment could leave, each opened and checked."""
    again: int = 0
    """Of these: left by a second cut, during the recovery from the first."""


@dataclass
class Promises:
    """What a log has acknowledged, and what it was asked for in vain or just now."""

    records: list[LogRecord] = field(default_factory=list)
    groups: list[list[LogRecord]] = field(default_factory=list)
    """Not acknowledged: of one of these any beginning may survive."""
    snapshots: list[SequencesSnapshot] = field(default_factory=list)
    saving: list[SequencesSnapshot] = field(default_factory=list)
    """Not acknowledged: may be there or not."""

    def check(self, log: SegmentLog) -> None:
        """Hold a log that was opened after a crash to its word."""
        found = list(log.read(log.start))
        known = self.records[log.start :]
        assert log.end == log.start + len(found)
        assert found[: len(known)] == known, f"acknowledged: {len(known)}, there: {len(found)} or others"
        rest = found[len(known) :]
        assert not rest or any(rest == group[: len(rest)] for group in self.groups), "records that nobody wrote"
        newest, last = log.load(), self.snapshots[-1] if self.snapshots else None
        assert newest in (last, *self.saving), f"another snapshot: {newest}"
        kept = sorted(snapshot.position for snapshot in self.snapshots + self.saving)[-2:]
        assert log.start <= (kept[0] if len(kept) == 2 else 0), "retention took what a snapshot needs"

    def settle(self, log: SegmentLog) -> None:
        """Go on from what a recovered log holds: now all of it is promised."""
        self.records += list(log.read(max(log.start, len(self.records))))
        self.groups = []


class Writer:
    """Does at random what the users of a log do, and keeps account of what was promised."""

    def __init__(self, disk: SimDisk, rng: Random, promises: Promises) -> None:
        self.disk, self.rng, self.promises = disk, rng, promises
        self.log: SegmentLog | None = None

    def step(self) -> None:
        """One thing; `StoreFailed` if the disk would not."""
        if self.log is None:
            self.log = open_log(self.disk)
            self.promises.check(self.log)
            self.promises.settle(self.log)
        action = self.rng.choices([self.append, self.save, self.trim, self.reopen, self.kill], [14, 3, 2, 1, 1])[0]
        action(self.log)

    def append(self, log: SegmentLog) -> None:
        """A group of one to five records."""
        promises, first = self.promises, log.end
        group = drafts(self.rng, self.rng.randrange(1, 6), first)
        promises.groups.append([LogRecord(first + n, first, *draft) for n, draft in enumerate(group)])
        assert log.append(group, first) == first
        promises.records += promises.groups[-1]
        promises.groups = []

    def save(self, log: SegmentLog) -> None:
        """A snapshot of now, or of a little before."""
        promises = self.promises
        lowest = max([log.start, *(snapshot.position for snapshot in promises.snapshots)])
        snapshot = SequencesSnapshot(self.rng.randint(lowest, log.end), self.rng.randbytes(self.rng.randrange(40)))
        promises.saving.append(snapshot)
        log.save(snapshot)
        promises.saving.pop()
        promises.snapshots.append(snapshot)

    def trim(self, log: SegmentLog) -> None:
        """As much as is allowed, or all but some bytes."""
        if self.rng.random() < 0.5:
            log.trim(log.end)
        else:
            log.retain(bytes=self.rng.randrange(4 * SEGMENT_BYTES))

    def reopen(self, log: SegmentLog) -> None:
        """Stop in good order; the next step starts again."""
        log.close()
        self.log = None

    def kill(self, _: SegmentLog) -> None:
        """Stop without a word: what was written and not synced is still there for the next start."""
        self.disk.kill()
        self.log = None


def open_log(disk: SimDisk) -> SegmentLog:
    """The log on a disk, with segments that are soon full."""
    log = SegmentLog(FOLDER, segment_bytes=SEGMENT_BYTES, files=disk)
    begins = read_mark(disk, FOLDER, START)
    assert begins is not None
    assert log.start <= begins, f"begins at {log.start}, retention knows of {begins}"
    return log


def drafts(rng: Random, count: int, sequence: int) -> list[Draft]:
    """Messages of various sizes, some empty, some that look like the beginning of a frame, some full of zeros."""
    payloads = [rng.choice([b"", b"OFL1", bytes(30), rng.randbytes(rng.randrange(1, 90))]) for _ in range(count)]
    return [Draft(0, f"p{rng.randrange(3)}", sequence + n, 1, crc32(p), p) for n, p in enumerate(payloads)]


def cut_everywhere(seed: int, steps: int = 30, states: int = 4, again: int = 10) -> Counts:
    """Cut the power before every operation of a writer's life, and open ``states`` of the disks that could be left.

    Every ``again``-th of them is also cut before each operation of its recovery.
    """
    counts, rng, promises, disk = Counts(), Random(seed), Promises(), SimDisk()

    def look(_: str) -> None:
        counts.points += 1
        for _number in range(states):
            counts.states += 1
            deep = counts.states % again == 0
            state = seed * 1_000_003 + counts.states
            try:
                survive(disk.crash(Random(state)), promises, Random(state), counts if deep else None)
            except Exception as error:
                raise AssertionError(f"seed {seed}, before operation {disk.operations + 1}, state {state}") from error

    disk.before = look
    writer = Writer(disk, rng, promises)
    for _ in range(steps):
        writer.step()
    return counts


def survive(disk: SimDisk, promises: Promises, rng: Random, counts: Counts | None = None) -> None:
    """Open a log after a cut and hold it to its word; with ``counts``: cut its recovery, too, at each operation."""
    if counts is not None:

        def look(_: str) -> None:
            counts.states += 1
            counts.again += 1
            survive(disk.crash(Random(rng.random())), promises, rng)

        disk.before = look
    log = open_log(disk)
    disk.before = None
    promises.check(log)
    more = drafts(rng, 2, log.end)
    found = list(log.read(log.start))
    first = log.append(more, 1)
    after = [*found, *(LogRecord(first + n, 1, *draft) for n, draft in enumerate(more))]
    assert list(log.read(log.start)) == after
    assert list(open_log(disk.crash(rng)).read(log.start)) == after, "appended after recovery, gone after another cut"


def many_lives(seed: int, lives: int = 20, operations: int = 60) -> Counts:
    """One log through many ends, one after the other, some of them during recovery: power cuts, and writers killed."""
    counts, rng, promises, disk = Counts(), Random(seed), Promises(), SimDisk()
    for _ in range(lives):
        counts.points += 1
        counts.states += 1
        disk.cut(rng.randrange(1, operations))
        writer = Writer(disk, rng, promises)
        try:
            while True:
                writer.step()
        except PowerCut:
            if rng.random() < 0.4:
                disk.kill()
                disk.heal()
            else:
                disk = disk.crash(rng)
        except Exception as error:
            raise AssertionError(f"seed {seed}, life {counts.points}") from error
    return counts


def fail_everywhere(seed: int, steps: int = 30, lasting: Sequence[int] = (1, 2, 7)) -> Counts:
    """Let each operation of a writer's life fail, once or several in a row: the log has to say so and to go on."""
    counts, operation = Counts(), 0
    while True:
        operation += 1
        for count in lasting:
            if not _live_with_failure(seed, steps, operation, count):
                return counts
            counts.states += 1
        counts.points += 1


def _live_with_failure(seed: int, steps: int, operation: int, count: int) -> bool:
    """One life with ``count`` failures from an operation on; False if it ended before that."""
    rng, promises, disk = Random(seed), Promises(), SimDisk(rng=Random(seed + operation))
    disk.fail(operation, count, ERRORS[operation % len(ERRORS)])
    writer = Writer(disk, rng, promises)
    try:
        for _ in range(steps):
            try:
                writer.step()
            except StoreFailed:
                _look_after_failure(writer, count)
        reached = disk.operations >= operation
        disk.heal()
        writer.kill(open_log(SimDisk()))
        log = open_log(disk)
        promises.check(log)
        promises.settle(log)
        # What was recovered was readable: a power cut must not take it back.
        survive(disk.crash(rng), promises, rng)
    except Exception as error:
        raise AssertionError(f"seed {seed}, operation {operation}, {count} failures") from error
    return reached


def _look_after_failure(writer: Writer, count: int) -> None:
    promises, log = writer.promises, writer.log
    if log is not None:
        assert list(log.read(log.start)) == promises.records[log.start :], "a failed group can be read"
        if count == 1:
            promises.groups = []  # the failed group was cut off at once: no crash brings it back
    rng = Random(writer.disk.operations)
    survive(writer.disk.crash(rng), promises, rng)
