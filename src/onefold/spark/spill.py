"""Judging a partition in bounded memory, however many rows it has.

Up to ``rows_in_memory_max`` rows are sorted and judged at once (about 150 bytes each at the peak). A larger partition
is an external sort: full buffers are sorted and written to a temporary file, and then read back a window at a time. A
window ends at the smallest of the runs' next milestones, so it holds at most a buffer's worth of rows, and the windows
follow each other in the order of judgement. The codes go to a file too, one byte per row, at the row's own place.

Where messages of one number must be compared with each other, however far apart they came, the rows are gone through
once more, sorted by number: that is the review.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.spark.ordering import Columns, Int64s, chains, concatenate, order

Codes: TypeAlias = NDArray[np.int8]
Judge: TypeAlias = Callable[..., Codes]

ROWS_IN_MEMORY_MAX = 4_000_000
"""600 MB at the peak; Spark's own advice is 64 MB to 128 MB of shuffle data per task, which is far below it."""

_BATCH = 65_536
_JUDGED = [0, 1, 2, 4, 3, 5, -1]  # sorted by key, key_check, arrival, number, previous, tie, place
_REVIEWED = [0, 1, 4, 2, 3, 5, -1]  # sorted by key, key_check, number; then as judged

PREVIOUS_NUMBER = (3, 4)
"""Where the columns stand that a chain is judged by."""


def judge_partition(
    parts: Iterator[Columns],
    judge: Judge,
    rows_in_memory_max: int,
    *,
    wanted: tuple[int, ...] = PREVIOUS_NUMBER,
    review: Judge | None = None,
    review_due: Callable[[], bool] = lambda: True,
) -> Iterator[Codes]:
    """The codes of all rows, in the order in which the rows came.

    ``judge``: chain and the wanted columns -> codes; it sees the rows in the order of judgement. ``review``: chain, the
    wanted columns and the codes -> codes; the rows of one number come to it in the order of judgement, in one call or
    in calls that follow each other. ``review_due`` is asked when all rows are judged: without need there is no review.
    """
    buffer: list[Columns] = []
    with ExitStack() as files:
        runs: list[_Run] = []
        file = files.enter_context(tempfile.TemporaryFile())
        rows = held = 0
        for part in parts:
            if held + len(part.key) > rows_in_memory_max and held:
                runs.append(_Run(_table(concatenate(buffer), rows - held), file))
                buffer, held = [], 0
            buffer.append(part)
            held += len(part.key)
            rows += len(part.key)
        if rows == 0:
            return
        if not runs:
            yield from _slices(_judge_all(concatenate(buffer), judge, wanted, review, review_due))
            return
        runs.append(_Run(_table(concatenate(buffer), rows - held), file))
        codes = _codes(rows, files.enter_context(tempfile.TemporaryFile()))
        names = _Names()
        for window in _windows(runs, rows_in_memory_max):
            codes[window[-1]] = judge(names(window), *(window[i] for i in wanted))
        if review is not None and review_due():
            again = files.enter_context(tempfile.TemporaryFile())
            names = _Names()
            for window in _windows([_Run(run.read(0, run.rows), again, _REVIEWED) for run in runs], rows_in_memory_max):
                place = window[-1]
                codes[place] = review(names(window), *(window[i] for i in wanted), codes[place])
        yield from _slices(codes)


def _judge_all(
    columns: Columns, judge: Judge, wanted: tuple[int, ...], review: Judge | None, review_due: Callable[[], bool]
) -> Codes:
    chain = chains(columns)
    rows = order(chain, columns)
    codes = np.empty(len(rows), np.int8)
    seen = (chain[rows], *(columns.flat[i][rows] for i in wanted))
    judged = judge(*seen)
    codes[rows] = judged if review is None or not review_due() else review(*seen, judged)
    return codes


def _table(columns: Columns, first_place: int) -> Int64s:
    return np.stack((*columns.flat, np.arange(first_place, first_place + len(columns.key))))


def _codes(rows: int, file: IO[bytes]) -> Codes:
    # Written, not only sized: on a full disk this is an error, a store into a sparse map would end the process.
    for start in range(0, rows, _BATCH):
        file.write(bytes(min(_BATCH, rows - start)))
    file.flush()
    return np.memmap(file, np.int8, "r+", shape=(rows,))


def _slices(codes: Codes) -> Iterator[Codes]:
    for start in range(0, len(codes), _BATCH):
        yield codes[start : start + _BATCH]


def _sorted(table: Int64s, keys: list[int]) -> Int64s:
    """A table of columns and places, in the order of these."""
    return table[:, np.lexsort(table[keys][::-1])]


class _Run:
    """A sorted table at the end of a file, which all runs share: rows are read by position, nothing stays in memory."""

    def __init__(self, table: Int64s, file: IO[bytes], keys: list[int] = _JUDGED) -> None:
        self._width, self.rows = table.shape
        self.keys = keys
        self._file = file
        self._begin = file.seek(0, os.SEEK_END)
        np.ascontiguousarray(_sorted(table, keys)).tofile(self._file)
        self._file.flush()

    def read(self, start: int, end: int) -> Int64s:
        """The rows from start to end, as a table."""
        table = np.empty((self._width, end - start), np.int64)
        for i, column in enumerate(table):
            data = os.pread(self._file.fileno(), 8 * (end - start), self._begin + 8 * (i * self.rows + start))
            column[:] = np.frombuffer(data, np.int64)
        return table

    def key(self, at: int) -> tuple[int, ...]:
        """What the row at this position is sorted by."""
        return tuple(self.read(at, at + 1)[self.keys, 0].tolist())

    def end(self, low: int, limit: tuple[int, ...]) -> int:
        """The first position from ``low`` on whose key is beyond the limit."""
        high = self.rows
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.key(middle) <= limit else (low, middle)
        return low


def _windows(runs: list[_Run], rows_max: int) -> Iterator[Int64s]:
    """The union of the sorted runs, cut into consecutive sorted windows of at most ``rows_max`` rows."""
    step = max(1, rows_max // len(runs))
    starts = [0] * len(runs)
    while unread := [(run, start) for run, start in zip(runs, starts, strict=True) if start < run.rows]:
        limit = min(run.key(min(start + step, run.rows) - 1) for run, start in unread)
        ends = [run.end(start, limit) for run, start in zip(runs, starts, strict=True)]
        parts = [run.read(start, end) for run, start, end in zip(runs, starts, ends, strict=True)]
        starts = ends
        yield _sorted(np.concatenate(parts, axis=1), runs[0].keys)


class _Names:
    """Numbers the chains of consecutive windows, the same for the same chain, also across a window's end."""

    def __init__(self) -> None:
        self._count = 0
        self._last: tuple[int, int] | None = None

    def __call__(self, window: Int64s) -> Int64s:
        key, check = window[0], window[1]
        first = (int(key[0]), int(check[0])) != self._last
        changes = np.concatenate(([first], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))
        names: Int64s = self._count + np.cumsum(changes)
        self._count, self._last = int(names[-1]), (int(key[-1]), int(check[-1]))
        return names
