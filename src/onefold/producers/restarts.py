"""Counters that restart: a device reboots, and numbers its messages from 0 again.

A message is identified by its time and its sequence together; both are the device's own, so a copy has the same ones.
While a counter runs, its sequences rise with the time. So, of two messages that follow each other in time,

    the sequence rises      the same epoch: what lies between them is missing
    it falls, or stays      the counter restarted between them: a new epoch

and if both sequence and time fall, the message is only late. A table sorted by time shows every epoch
(`SortedCounters`). A stream remembers *runs*: consecutive sequences, with the times of both ends.

    [0..56] at 10..66    [58..90] at 68..100    [0..7] at 130..137
                      57 is missing          a restart: 90 is followed by 0

By its time a message falls between two runs or into one. Between runs it is new, whatever its sequence: number 1 at
131 was seen, number 1 at 120 was not. It extends a run, joins two, or starts its own. Within a run it was seen if its
sequence lies there too; else sequence and time contradict each other, and it is UNSURE.

    restarted     FIRST, and adds an epoch: their count is the number of restarts, in any order of arrival
    fills_gap     FIRST, between messages that were seen
    new           FIRST, after all that was seen

Beyond ``runs_max`` runs the oldest is given up, and everything up to its end is UNSURE from then on. Nothing is FIRST
twice. Messages lost right before or after a restart cannot be detected, nor can a restart at the very number that was
due next; and a clock that steps back looks like a restart.

The rule is ours. Cost: O(log runs) to find one, 32 bytes each; on numpy a sort per batch.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.producers.records import (
    ANSWERS,
    CONFLICT,
    FILLS_GAP,
    FORGOTTEN,
    GAP_COUNT_MAX,
    NEW,
    RESTARTED,
    SEEN,
    TIME_CONTRADICTS,
    Pushed,
)

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]

NEVER: Final = -(1 << 63)
"""Before every time."""
_CODES: Final = {answer: code for code, answer in enumerate(ANSWERS)}
_NEW, _FILLS_GAP, _RESTARTED, _SEEN = (_CODES[answer] for answer in (NEW, FILLS_GAP, RESTARTED, SEEN))
_FORGOTTEN, _CONTRADICTS, _CONFLICT = (_CODES[answer] for answer in (FORGOTTEN, TIME_CONTRADICTS, CONFLICT))


class Run(NamedTuple):
    """Consecutive sequences, all of them seen, with the times of both ends."""

    since: int
    low: int
    until: int
    high: int


class RestartingCounter:
    """The messages of one device.

    >>> c = RestartingCounter()
    >>> rows = (10, 0), (11, 1), (14, 4), (20, 0), (12, 2), (11, 1), (22, 2), (21, 1)
    >>> print(*(c.judge(*row).reason for row in rows), sep=", ")
    new, new, new, restarted, fills_gap, seen, new, fills_gap
    >>> print(c)
    [0..2] at 10..12 [4..4] at 14..14 [0..2] at 20..22
    >>> c.missing(), c.restarts
    ([(12, 2, 3)], 1)
    """

    __slots__ = ("forgotten", "runs", "runs_max")

    def __init__(self, runs_max: int = GAP_COUNT_MAX) -> None:
        self.runs: list[Run] = []
        self.runs_max = runs_max
        self.forgotten = NEVER

    def judge(self, time: int, sequence: int) -> Pushed:
        """Judge a message, and remember it if it is FIRST."""
        if time <= self.forgotten:
            return FORGOTTEN
        at = bisect_right(self.runs, (time, sequence, float("inf")))
        before = self.runs[at - 1] if at else None
        after = self.runs[at] if at < len(self.runs) else None
        if before is not None and (time, sequence) <= (before.until, before.high):
            return SEEN if before.low <= sequence <= before.high else TIME_CONTRADICTS
        was = before is not None and after is not None and before.high >= after.low
        now = (before is not None and before.high >= sequence) + (after is not None and sequence >= after.low)
        run = Run(time, sequence, time, sequence)
        if before is not None and before.high + 1 == sequence:
            at, run = at - 1, Run(before.since, before.low, time, sequence)
        joined = after is not None and after.low == sequence + 1
        if after is not None and joined:
            run = Run(run.since, run.low, after.until, after.high)
        self.runs[at : at + (run.low != sequence) + joined] = [run]
        if len(self.runs) > self.runs_max:
            self.forgotten = self.runs.pop(0).until
        return RESTARTED if now > was else NEW if after is None else FILLS_GAP

    @property
    def restarts(self) -> int:
        return sum(run.high >= other.low for run, other in pairwise(self.runs))

    def missing(self) -> list[tuple[int, int, int]]:
        """The missing ranges: time and number of the message before, and the last missing number.

        A device is assumed to begin at 0: the range before the first message seen has the number -1, and no time.
        """
        start = [] if self.forgotten != NEVER else [Run(NEVER, -1, NEVER, -1)]
        runs = [*start, *self.runs]
        return [(run.until, run.high, other.low - 1) for run, other in pairwise(runs) if other.low > run.high + 1]

    def __str__(self) -> str:
        forgot = [] if self.forgotten == NEVER else [f"forgot {self.forgotten}"]
        return " ".join([*forgot, *(f"[{r.low}..{r.high}] at {r.since}..{r.until}" for r in self.runs)])


def begins(*names: Int64s) -> Bools:
    """Which rows differ from the one before them in any of these columns."""
    changes = np.logical_or.reduce([name[1:] != name[:-1] for name in names])
    return np.concatenate(([True], changes))[: len(names[0])]


class SortedCounters:
    """Judges a table, in windows that follow each other and are sorted by device, time and sequence.

    >>> time, sequence = np.array([10, 11, 11, 20, 21]), np.array([0, 1, 1, 0, 1])
    >>> codes = SortedCounters().judge(np.zeros(5, np.int64), time, sequence)
    >>> [ANSWERS[code].reason for code in codes]
    ['new', 'new', 'seen', 'restarted', 'new']
    """

    def __init__(self) -> None:
        self._last = (-1, 0, 0, 0)  # device, time, sequence and content of the last row of the last window

    def judge(self, owner: Int64s, time: Int64s, sequence: Int64s, digest: Int64s | None = None) -> Codes:
        """The code of each row; ``owner`` holds device numbers from 0. A negative sequence marks a refused row."""
        codes = np.where(sequence < 0, -1 - sequence, 0).astype(np.int8)
        good = np.flatnonzero(sequence >= 0)
        if not len(good):
            return codes
        columns = (owner, time, sequence, np.zeros_like(owner) if digest is None else digest)
        # The last row of the last window is put in front, and removed at the end.
        device, at, number, content = (
            np.concatenate(([last], column[good])) for last, column in zip(self._last, columns, strict=True)
        )
        is_first = begins(device, at, number)
        same = device[1:] == device[:-1]
        judged = np.where(same & (number[1:] <= number[:-1]), _RESTARTED, _NEW).astype(np.int8)
        judged[~is_first[1:]] = _SEEN
        first = content[np.maximum.accumulate(np.where(is_first, np.arange(len(device)), 0))]
        judged[(content != first)[1:]] = _CONFLICT
        codes[good] = judged
        self._last = int(device[-1]), int(at[-1]), int(number[-1]), int(first[-1])
        return codes


class Runs(NamedTuple):
    """The runs of many devices, sorted by device and time."""

    owner: Int64s
    since: Int64s
    low: Int64s
    until: Int64s
    high: Int64s

    def take(self, rows: Int64s | Bools) -> Runs:
        return Runs(*(column[rows] for column in self))


class MissingRuns(NamedTuple):
    owner: Int64s
    lower: Int64s
    upper: Int64s
    since: Int64s  # when the lower end was seen; NEVER: before the first message


@dataclass(slots=True)
class Counters:
    """The memory of many devices, which are numbered from 0."""

    runs: Runs
    forgotten: Int64s
    """Per device: the end of the newest run that was given up."""
    runs_max: int = GAP_COUNT_MAX

    @classmethod
    def none(cls, count: int, runs_max: int = GAP_COUNT_MAX) -> Counters:
        runs = Runs(*(np.empty(0, np.int64) for _ in Runs._fields))
        return cls(runs, np.full(count, NEVER, np.int64), runs_max)

    def judge(self, owner: Int64s, time: Int64s, sequence: Int64s) -> Codes:
        """The codes of a batch, which must be sorted by device, time and sequence.

        Equal to the scalar form row by row, except that a row never falls into a run made by other rows of its batch.
        """
        runs, count = self.runs, len(self.runs.owner)
        owners, times, numbers = (
            np.concatenate(pair)
            for pair in ((runs.owner, owner), (runs.since, time), (runs.low, sequence))
        )  # fmt: skip
        order = np.lexsort((numbers, times, owners))  # stable: a run comes before an equal row
        is_run = order < count
        rows = np.flatnonzero(~is_run)  # positions of the rows among the runs, in their order
        at = np.maximum.accumulate(np.where(is_run, order, -1))[rows]  # the run that began last
        before = Runs(*(np.append(column, -1)[at] for column in runs))  # -1: there is none
        inside = (before.owner == owner) & ((time < before.until) | (time == before.until) & (sequence <= before.high))
        fits = (before.low <= sequence) & (sequence <= before.high)
        codes = np.where(inside, np.where(fits, _SEEN, _CONTRADICTS), _NEW).astype(np.int8)
        codes[time <= self.forgotten[owner]] = _FORGOTTEN
        first = begins(owner, time, sequence) & (codes == _NEW)
        codes[~first & (codes == _NEW)] = _SEEN
        stays = is_run.copy()
        stays[rows[first]] = True
        items = order[stays]
        until, high = np.concatenate((runs.until, time)), np.concatenate((runs.high, sequence))
        every = Runs(owners[items], times[items], numbers[items], until[items], high[items])
        codes[first] = _reasons(every, items < count)[items >= count]
        runs = self.runs = _joined(every)
        later = np.searchsorted(runs.owner, runs.owner, "right") - np.arange(len(runs.owner))  # of the device, with it
        self.give_up(later > self.runs_max)
        return codes

    def give_up(self, expired: Bools) -> None:
        """Forget these runs, which must be the oldest of their devices."""
        np.maximum.at(self.forgotten, self.runs.owner[expired], self.runs.until[expired])
        self.runs = self.runs.take(~expired)

    def missing(self) -> MissingRuns:
        owner, low, high = self.runs.owner, self.runs.low, self.runs.high
        starts = begins(owner)
        lower = np.where(starts, -1, np.concatenate(([-1], high[:-1]))[: len(high)])
        since = np.where(starts, NEVER, np.concatenate(([NEVER], self.runs.until[:-1]))[: len(high)])
        is_missing = (low > lower + 1) & (~starts | (self.forgotten[owner] == NEVER))
        return MissingRuns(owner[is_missing], lower[is_missing], low[is_missing] - 1, since[is_missing])


def _reasons(items: Runs, is_run: Bools) -> Codes:
    """Why each row among runs is FIRST, if the rows are judged one after the other."""
    index = np.arange(len(is_run))
    has_before = ~begins(items.owner)
    before = np.concatenate(([0], items.high[:-1]))[: len(index)]
    following = np.where(is_run, index, len(index))
    following = np.append(np.minimum.accumulate(following[::-1])[::-1], len(index))[1:]  # the next run, if any
    has_after = np.append(items.owner, -1)[following] == items.owner
    after = np.append(items.low, 0)[following]
    was = has_before & has_after & (before >= after)
    now = (has_before & (before >= items.low)).astype(np.int8) + (has_after & (items.low >= after))
    return np.where(now > was, _RESTARTED, np.where(has_after, _FILLS_GAP, _NEW)).astype(np.int8)


def _joined(items: Runs) -> Runs:
    """The items with consecutive sequences joined into runs."""
    apart = begins(items.owner)
    apart[1:] |= items.low[1:] != items.high[:-1] + 1
    starts = np.flatnonzero(apart)
    ends = np.append(starts, len(apart))[1:] - 1
    return Runs(items.owner[starts], items.since[starts], items.low[starts], items.until[ends], items.high[ends])
