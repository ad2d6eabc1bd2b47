"""Level 1 over columns: many frames at once, and what a device remembers beyond it.

The scalar `Stations` is the truth; this form gives the same answers faster. What is to be known of a frame is one
*window*: the station that opened it, when it did, and when the frame was last heard, by anybody and by that station. A
row is a miss, and opens a window, or it is a hit in the one that is open:

    sliding   a row opens a window if the row before it is ``expiry_ms`` or more away: one comparison each
    fixed     a window ends ``expiry_ms`` after it opened, whatever comes in between. Where rows follow each other more
              closely than that for longer than that, the openers are found by going from one to the next; everywhere
              else they are those of the sliding window

All else follows from the opener of a row's window: the same station resubmits, or echoes if it heard the frame a moment
before; another one only heard it too.

What outlasts the expiry is one frame for each *chain*, the one that was counted last. The chain of a data frame is its
device, that of a join request the request itself: a nonce is used once. A row that would open a window of the frame
that the row before it in its chain opened is no new one:

    F9  F9' F9''         197 s apart: a device that still waits for its confirmation; FIRST, then REPEAT counted_before
    F9  F10  F9'         F9' is FIRST by level 1 again: only its counter tells that it is old
    J7  J7'              REPEAT nonce_used

Openers that stand side by side in their chain, ordered by time, are compared: one more numpy pass, which
``strict_adr`` leaves out.

What was known before a batch stands in it as made-up rows before the first one of its frame: the last sighting, and
where the window is fixed its opener too.

A negative station marks a row that was refused before it came here: ``refused(reason)`` is answered with that reason,
and the row is no part of any frame.

Cost: a dozen numpy passes, and a step in Python for each fixed window within a longer stretch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.engines.lorawan import answers as A
from onefold.errors import Misuse

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]

EXPIRY_MS: Final = 60_000
"""The one minute of ADR 007."""
EXPIRY_MS_MAX: Final = 366 * 86_400_000
"""A year: a counter of 16 bits rolls over sooner, and sums of so many of them still fit into 63 bits."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: what lies beyond is no time."""
NEVER: Final = -(1 << 62)
"""Before all times, and far enough from them that differences do not overflow."""

CODES: Final = {answer.reason: code for code, answer in enumerate(A.ANSWERS)}
_NEW_FRAME, _NEW_JOIN = CODES["new_frame"], CODES["new_join"]
_RESUBMITTED, _ECHOED, _OTHER_STATION = CODES["resubmitted"], CODES["echoed"], CODES["other_station"]
_JOIN_REPEATED = CODES["join_repeated"]
_COUNTED_BEFORE, _NONCE_USED = CODES["counted_before"], CODES["nonce_used"]


def refused(reason: str) -> int:
    """The station that stands for "refused already, for this reason"."""
    return -1 - CODES[reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How long a frame is remembered."""

    expiry_ms: int = EXPIRY_MS
    sliding: bool = True
    """Whether every sighting begins the wait anew."""
    echo_ms: int = 0
    """A station that heard the frame less than this ago hears the same transmission twice; 0: never."""

    def __post_init__(self) -> None:
        for name, least in (("expiry_ms", 1), ("echo_ms", 0)):
            value = getattr(self, name)
            if not least <= value <= EXPIRY_MS_MAX:
                raise Misuse(f"{name} is {value}, must be from {least} to {EXPIRY_MS_MAX}", **{name: value})


class Rows(NamedTuple):
    """Columns of equal length, sorted by frame, then time, then a tie-breaker of the caller's choice."""

    begins: Bools
    """Is it the first row of its frame?"""
    station: Int64s
    time: Int64s
    join: Bools
    """Is it a join request?"""


class Known(NamedTuple):
    """The last window of each frame; ``last`` is ``NEVER`` where there is none."""

    station: Int64s
    """Who opened it."""
    since: Int64s
    last: Int64s
    own: Int64s
    """When the station that opened it heard it last."""

    @classmethod
    def nothing(cls, frames: int) -> Known:
        """So many frames that were never heard."""
        return cls(np.zeros(frames, np.int64), *(np.full(frames, NEVER, np.int64) for _ in range(3)))

    def take(self, frames: Int64s) -> Known:
        """These frames."""
        return Known(*(column[frames] for column in self))


def begins(*names: Int64s) -> Bools:
    """Which rows are the first of their frame; its name may be several columns."""
    changes = np.logical_or.reduce([name[1:] != name[:-1] for name in names])
    return np.concatenate(([True], changes))[: len(names[0])]


def judge(rows: Rows, known: Known, windows: Windows) -> tuple[Codes, Known]:
    """The code of each row, and the last window of each frame after it.

    ``known`` has a line for each frame of the rows, in their order; no row may be older than its frame's ``last``.
    """
    if not len(rows.time):
        return np.empty(0, np.int8), known
    all_rows, made_up = _with_known(rows, known, windows.sliding)
    older, each = np.flatnonzero(known.last != NEVER), 1 if windows.sliding else 2
    own = all_rows.time.copy()
    own[made_up[each - 1 :: each]] = known.own[older]
    judged = classify(all_rows, own, windows)
    ends = np.append(np.flatnonzero(all_rows.begins)[1:], len(own)) - 1
    opened = judged.opener[ends]
    since = all_rows.time[opened]
    if windows.sliding:  # there the made-up row is the last sighting, not the opener
        still = made_up == opened[older]
        since[older[still]] = known.since[older[still]]
    after = Known(all_rows.station[opened], since, all_rows.time[ends], own[judged.own[ends]])
    return np.delete(judged.codes, made_up), after


def _with_known(rows: Rows, known: Known, sliding: bool) -> tuple[Rows, Int64s]:
    """The rows with what is known of their frames among them, and where that came to stand."""
    older = np.flatnonzero(known.last != NEVER)
    if not len(older):
        return rows, older
    each = 1 if sliding else 2
    firsts = np.flatnonzero(rows.begins)[older]
    before = np.repeat(firsts, each)
    last = known.last[older]
    both = Rows(
        np.insert(rows.begins, before, np.arange(len(before)) % each == 0),
        np.insert(rows.station, before, np.repeat(known.station[older], each)),
        np.insert(rows.time, before, last if sliding else np.stack((known.since[older], last), axis=1).ravel()),
        np.insert(rows.join, before, False),
    )
    both.begins[firsts + each * np.arange(1, len(firsts) + 1)] = False
    return both, before + np.arange(len(before))


class Judged(NamedTuple):
    """What came of rows."""

    codes: Codes
    opener: Int64s
    """Which row opened its window."""
    own: Int64s
    """Which row of the window's station was the last one, up to and with it."""


def classify(rows: Rows, own: Int64s, windows: Windows) -> Judged:
    """What each row is; ``own``: of rows of a window's station, when it heard the frame last."""
    pause = np.diff(rows.time, prepend=rows.time[:1])
    opens = _openers(rows.begins, pause, windows)
    place = np.arange(len(opens))
    opener = np.maximum.accumulate(np.where(opens, place, 0))
    same = rows.station == rows.station[opener]
    codes = np.where(same, np.int8(_RESUBMITTED), np.int8(_OTHER_STATION))
    last_own = np.maximum.accumulate(np.where(same, place, 0))
    if windows.echo_ms:
        before = own[last_own[np.maximum(place - 1, 0)]]
        codes[same & (rows.time - before < windows.echo_ms)] = _ECHOED
    codes[opens] = _NEW_FRAME
    if rows.join.any():
        codes[rows.join] = np.where(opens[rows.join], np.int8(_NEW_JOIN), np.int8(_JOIN_REPEATED))
    return Judged(codes, opener, last_own)


def _openers(begins: Bools, pause: Int64s, windows: Windows) -> Bools:
    opens = begins | (pause >= windows.expiry_ms)
    if windows.sliding:
        return opens
    # One axis for all: pauses add up, and between stretches lies just one expiry. It rises with the rows.
    axis = np.cumsum(np.where(opens, windows.expiry_ms, pause))
    starts = np.flatnonzero(opens)
    ends = np.append(starts[1:], len(opens))
    long = axis[ends - 1] - axis[starts] >= windows.expiry_ms
    rows = np.flatnonzero(np.repeat(long, ends - starts))
    steps = np.searchsorted(axis[rows], axis[rows] + windows.expiry_ms).tolist()
    found, at = [], 0
    while at < len(steps):  # over the end of a stretch, the first row beyond is the start of the next
        found.append(at)
        at = steps[at]
    opens[rows[found]] = True
    return opens


def openers(codes: Codes) -> Int64s:
    """The rows that opened a window."""
    return np.flatnonzero((codes == _NEW_FRAME) | (codes == _NEW_JOIN))


def as_again(codes: Codes) -> Codes:
    """What openers are whose frame was counted last in their chain already."""
    return np.where(codes == _NEW_JOIN, np.int8(_NONCE_USED), np.int8(_COUNTED_BEFORE))


class ColumnarStations:
    """Judges batches of rows; the rows of a chain must be contiguous over all batches, and in order.

    >>> columns = ColumnarStations(Windows())
    >>> device, frame, data, time = *np.zeros((3, 4), np.int64), np.array([0, 1_000, 2_000, 62_000])
    >>> [A.ANSWERS[code].reason for code in columns.judge(device, time, data, np.array([7, 8, 7, 7]), frame, frame)]
    ['new_frame', 'other_station', 'resubmitted', 'counted_before']
    """

    def __init__(self, windows: Windows, *, strict_adr: bool = False) -> None:
        self._windows = windows
        self._strict_adr = strict_adr
        # Of the chain that the last batch ended with:
        self._chain: int | None = None
        self._open: dict[tuple[int, int], tuple[int, ...]] = {}  # what is known of its frames
        self._last: tuple[int, int] | None = None  # the frame of its last opener

    def judge(
        self, chain: Int64s, time: Int64s, join: Int64s, station: Int64s, frame: Int64s, frame_check: Int64s
    ) -> Codes:
        """The code of each row's answer, which is its place in ``ANSWERS``; ``join`` is 1 for join requests.

        A frame's name is two columns, both halves of a hash; its rows are all of one chain.
        """
        codes = np.where(station < 0, -1 - station, 0).astype(np.int8)
        good = np.flatnonzero(station >= 0)
        if len(good) < len(codes):
            chain, time, join, station, frame, frame_check = (
                column[good] for column in (chain, time, join, station, frame, frame_check)
            )
        if len(good):
            codes[good] = self._judge(chain, frame, frame_check, time, join != 0, station)
        return codes

    def _judge(
        self, chain: Int64s, frame: Int64s, frame_check: Int64s, time: Int64s, join: Bools, station: Int64s
    ) -> Codes:
        if int(chain[0]) != self._chain:
            self._open, self._last = {}, None
        self._chain = int(chain[0])
        by_frame = np.argsort(frame, kind="stable")  # in a frame, the rows stay in the order of judgement
        names = chain[by_frame], frame[by_frame], frame_check[by_frame]
        if (begins(*names) & ~begins(*names[:2])).any():  # two names, one first half
            by_frame = np.lexsort((frame_check, frame, chain))
            names = chain[by_frame], frame[by_frame], frame_check[by_frame]
        rows = Rows(begins(*names), station[by_frame], time[by_frame], join[by_frame])
        of_chain, key, key_check = (name[rows.begins] for name in names)
        judged, after = judge(rows, self._recall(of_chain, key, key_check), self._windows)
        codes = np.empty(len(chain), np.int8)
        codes[by_frame] = judged
        ends_with = int(chain[-1])
        if ends_with != self._chain:
            self._open = {}
        last = np.flatnonzero(of_chain == ends_with)
        self._remember(key[last], key_check[last], after.take(last), int(time[-1]))
        if not self._strict_adr:
            self._know_again(codes, chain, frame, frame_check)
        self._chain = ends_with
        return codes

    def _recall(self, chain: Int64s, frame: Int64s, frame_check: Int64s) -> Known:
        known = Known.nothing(len(chain))
        if self._open:
            for i in np.flatnonzero(chain == self._chain):
                if before := self._open.get((int(frame[i]), int(frame_check[i]))):
                    for column, value in zip(known, before, strict=True):
                        column[i] = value
        return known

    def _remember(self, frame: Int64s, frame_check: Int64s, after: Known, newest: int) -> None:
        """What the rows of this chain may still meet, if more of them come."""
        names = zip(frame.tolist(), frame_check.tolist(), strict=True)
        self._open.update(zip(names, zip(*(column.tolist() for column in after), strict=True), strict=True))
        place = Known._fields.index("last")
        for name in [name for name, known in self._open.items() if newest - known[place] >= self._windows.expiry_ms]:
            del self._open[name]

    def _know_again(self, codes: Codes, chain: Int64s, frame: Int64s, frame_check: Int64s) -> None:
        opens = openers(codes)
        if not len(opens):
            return
        names = chain[opens], frame[opens], frame_check[opens]
        again = ~begins(*names)
        again[0] = int(names[0][0]) == self._chain and (int(names[1][0]), int(names[2][0])) == self._last
        codes[opens[again]] = as_again(codes[opens[again]])
        self._last = int(names[1][-1]), int(names[2][-1])  # of the last chain, whose first row opened a window
