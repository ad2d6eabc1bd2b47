"""Ids over columns: many at once, in a table or in the batches of a stream.

The scalar `IdDetector` is the reference; this form gives the same answers faster. Each row has a 128-bit name in two
halves. Rows of one name are found by sorting the first half; only where two rows share it, which are about the copies,
the second half and the order of judgement are compared. So a table costs one sort of 64-bit numbers, and a little per
copy. The first row of each name is given by its index:

    name     a   b   a   c   b   a
    first    0   1   0   3   1   0        a row that is its own first is new; all others are copies of it

A table larger than memory comes in windows sorted by name (`SortedIds`); a name that continues in the next window is
carried over.

A stream is judged batch by batch (`judge_batch`), with the horizon after the previous batch, as if its rows came in the
order of their times. The memory is slices of names (`Slices`), sorted by name and searched by bisection. With shared
times only the slices of the batch's rows are searched, with the clock all of them. New names are kept unless the batch
itself makes them too old. Within a batch, rows of one name are copies whatever their times are.

Cost: a sort per batch, a binary search per name and searched slice; 16 bytes per name, 8 more with content.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.ids.rules import ANSWERS, FORGOTTEN, NEW, SEEN, STATE_FULL, TIME_MAX, IdSettings

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]

CODES: Final = {answer.reason: code for code, answer in enumerate(ANSWERS)}
_NEW, _SEEN, _FORGOTTEN, _STATE_FULL = (CODES[answer.reason] for answer in (NEW, SEEN, FORGOTTEN, STATE_FULL))
_BAD_TIME = CODES["bad_time"]
NO_TIME: Final = -(1 << 63)
"""The lowest of the times that mark refused rows, see `refused`."""


def refused(reason: str) -> int:
    """The time of a row that was already refused for this reason."""
    return NO_TIME + CODES[reason]


class IdRows(NamedTuple):
    """Columns of equal length."""

    key: Int64s  # the first half of the name
    check: Int64s  # the other half
    order: Int64s  # among the rows of a name, the lowest is judged first; then by time, then by tie
    time: Int64s  # or the mark of a refused row
    tie: Int64s
    digest: Int64s | None = None  # of the content; None: not compared

    def take(self, rows: Int64s | Bools) -> IdRows:
        key, check, order, time, tie = (column[rows] for column in self[:5])
        return IdRows(key, check, order, time, tie, None if self.digest is None else self.digest[rows])


def refusals(time: Int64s) -> Codes:
    """The code of each refused row, -1 for all others."""
    return np.where(time < NO_TIME + len(ANSWERS), time - NO_TIME, -1).astype(np.int8)


def firsts(rows: IdRows) -> Int64s:
    """For each row the index of the first row with the same name.

    >>> column = np.array([7, 8, 7, 7])
    >>> firsts(IdRows(column, column * 0, np.array([2, 0, 1, 1]), column * 0, np.array([0, 0, 1, 0]))).tolist()
    [3, 1, 3, 3]
    """
    first = np.arange(len(rows.key))
    by_key = np.argsort(rows.key)
    key = rows.key[by_key]
    same = key[1:] == key[:-1]
    if not same.any():
        return first
    at = np.flatnonzero(np.concatenate((same, [False])) | np.concatenate(([False], same)))
    some, key = by_key[at], key[at]
    begins = np.concatenate(([True], key[1:] != key[:-1]))
    check = rows.check[some]
    if np.any((check[1:] != check[:-1]) & ~begins[1:]):  # two names, one first half
        turn = np.lexsort((check, key))
        some, key, check = some[turn], key[turn], check[turn]
        begins = np.concatenate(([True], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))
    # Per name keep the rows with the lowest order, of these those with the lowest time, then tie: no sort needed.
    starts = np.flatnonzero(begins)
    rest, sizes = np.arange(len(some)), np.diff(starts, append=len(some))
    all_sizes, firsts_of = sizes, starts
    for column in (rows.order, rows.time, rows.tie):
        if not column.any():  # no such column
            continue
        values = column[some[rest]]
        lowest = values == np.repeat(np.minimum.reduceat(values, firsts_of), sizes)
        sizes = np.add.reduceat(lowest, firsts_of, dtype=np.int64)
        rest, firsts_of = rest[lowest], np.cumsum(sizes) - sizes
        if len(rest) == len(starts):
            break
    first[some] = np.repeat(some[rest[firsts_of]], all_sizes)
    return first


def judge_table(rows: IdRows, settings: IdSettings) -> Codes:
    """The code of each row of a table; all rows of a name must be there."""
    codes = refusals(rows.time)
    if codes.max(initial=-1) >= 0:
        good = np.flatnonzero(codes < 0)
        codes[good] = judge_table(rows.take(good), settings)
        return codes
    first = firsts(rows)
    copies = np.flatnonzero(first != np.arange(len(first)))
    codes[:] = _NEW
    codes[copies] = _SEEN
    if rows.digest is not None:
        other = rows.digest[copies] != rows.digest[first[copies]]
        codes[copies[other]] = CODES[settings.differs.reason]
    return codes


class SortedIds:
    """Judges a table in consecutive windows that are sorted by name, then by the order of judgement."""

    def __init__(self, settings: IdSettings) -> None:
        self._settings = settings
        self._last: tuple[int, int, int] | None = None  # the last name of the last window, and its content

    def judge(self, rows: IdRows) -> Codes:
        """The code of each row of the next window."""
        codes = refusals(rows.time)
        good = np.flatnonzero(codes < 0)
        if not len(good):
            return codes
        rows = rows.take(good)
        key, check, digest = rows.key, rows.check, np.zeros_like(rows.key) if rows.digest is None else rows.digest
        goes_on = self._last is not None and self._last[:2] == (key[0], check[0])
        begins = np.concatenate(([not goes_on], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))
        start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), -1))
        content = digest[start]
        if goes_on and self._last is not None:
            content[start < 0] = self._last[2]
        judged = np.where(begins, _NEW, _SEEN).astype(np.int8)
        judged[digest != content] = CODES[self._settings.differs.reason]
        codes[good] = judged
        self._last = int(key[-1]), int(check[-1]), int(content[-1])
        return codes


class SliceNames(NamedTuple):
    """Names, sorted."""

    key: Int64s
    check: Int64s
    digest: Int64s | None = None


class Slices(Protocol):
    """The names of a memory, by the number of their slice."""

    def counts(self) -> dict[int, int]:
        """How many names each slice holds."""

    def find(self, slice_: int, key: Int64s, check: Int64s) -> tuple[Bools, Int64s | None]:
        """Which of these names a slice holds, and the digests of those; None: it has no digests."""

    def keep(self, slice_: int, names: SliceNames) -> None:
        """Add names that no slice holds."""

    def drop(self, slice_: int) -> None:
        """Forget a slice."""


def judge_batch(
    rows: IdRows, slices: Slices, settings: IdSettings, newest: int | None, now_ms: int | None = None,
    *, reached: int | None = None, is_part: bool = False,
) -> tuple[Codes, int | None]:  # fmt: skip
    """The code of each row of a batch, and the newest time after it; adds new names to the slices.

    ``newest``: the newest time before the batch. With the clock all times of the batch must be equal. ``is_part``: the
    batch comes in several calls, sorted by name, and ``reached`` is the newest time so far; the last name of a call is
    kept however old it is, since it may continue in the next.
    """
    codes = refusals(rows.time)
    reached = newest if reached is None else reached
    good = codes < 0
    if settings.window_ms is not None:
        codes[good & (np.abs(rows.time) >= TIME_MAX)] = _BAD_TIME
        if settings.clock and good.any():  # a clock that is set back stands still
            time = max(int(rows.time[good].max()), reached if reached is not None else -TIME_MAX)
            rows = rows._replace(time=np.where(good, time, rows.time))
            newest = reached = time
            _forget(slices, settings, time)  # before they are searched
        elif now_ms is not None:
            codes[good & (rows.time > settings.ahead(now_ms)[1])] = _BAD_TIME
        horizon = settings.horizon(newest)
        if horizon is not None:
            codes[(codes < 0) & (rows.time < horizon)] = _FORGOTTEN
    live = np.flatnonzero(codes < 0)
    if not len(live):
        return codes, reached
    rows = rows.take(live)
    first = firsts(rows)
    is_first = first == np.arange(len(first))
    ids = np.flatnonzero(is_first)
    ids = ids[np.lexsort((rows.check[ids], rows.key[ids]))]
    names = rows.take(ids)
    numbers = names.time // settings.slice_ms if settings.window_ms is not None else np.zeros(len(ids), np.int64)
    is_known, digest = _known(names, numbers, slices, settings.clock)
    if settings.window_ms is not None and not is_known.all():
        most = int(names.time[~is_known].max())
        most = most if now_ms is None or settings.clock else min(most, settings.ahead(now_ms)[0])
        reached = most if reached is None else max(reached, most)
    _forget(slices, settings, reached)
    room = _keep(names, numbers, ~is_known, slices, settings, settings.horizon(reached), is_part)
    judged = np.full(len(first), _SEEN, np.int8)
    judged[ids] = np.where(is_known, _SEEN, np.where(room, _NEW, _STATE_FULL))
    full = np.zeros(len(first), np.bool_)
    full[ids] = ~is_known & ~room
    judged[full[first]] = _STATE_FULL
    if rows.digest is not None:
        content = np.empty(len(first), np.int64)
        content[ids] = digest if digest is not None else rows.digest[ids]
        judged[(judged == _SEEN) & (rows.digest != content[first])] = CODES[settings.differs.reason]
    codes[live] = judged
    return codes, reached


def _known(names: IdRows, numbers: Int64s, slices: Slices, clock: bool) -> tuple[Bools, Int64s | None]:
    """Which names the slices hold, and the content of each name's first row: as remembered, else its own."""
    is_known = np.zeros(len(names.key), np.bool_)
    digest = None if names.digest is None else names.digest.copy()
    counts = slices.counts()
    for slice_ in counts if clock else [each for each in np.unique(numbers).tolist() if each in counts]:
        rows = np.flatnonzero(~is_known) if clock else np.flatnonzero(numbers == slice_)
        there, digests = slices.find(slice_, names.key[rows], names.check[rows])
        is_known[rows[there]] = True
        if digest is not None and digests is not None:
            digest[rows[there]] = digests
    return is_known, digest


def _forget(slices: Slices, settings: IdSettings, newest: int | None) -> None:
    horizon = settings.horizon(newest)
    if horizon is not None:
        for slice_ in [each for each in slices.counts() if each < settings.slice_of(horizon)]:
            slices.drop(slice_)


def _keep(
    names: IdRows, numbers: Int64s, new: Bools, slices: Slices, settings: IdSettings, horizon: int | None, is_part: bool
) -> Bools:
    """Keep the new names above the horizon, and the last one of a part; returns which new names have room."""
    room = new.copy()
    if settings.ids_max is not None:
        room[np.flatnonzero(new)[max(0, settings.ids_max - sum(slices.counts().values())) :]] = False
    young = numbers >= (np.iinfo(np.int64).min if horizon is None else settings.slice_of(horizon))
    young[-1] |= is_part
    rows = np.flatnonzero(room & young)
    for slice_ in np.unique(numbers[rows]).tolist():
        own = names.take(rows[numbers[rows] == slice_])
        slices.keep(slice_, SliceNames(own.key, own.check, own.digest))
    return room
