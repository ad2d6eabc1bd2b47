"""Level 1 over columns: many frames at once, in a table or in the batches of a stream.

The scalar `Stations` is the reference; this form gives the same answers faster. The state of a frame is one *window*:
the station that opened it, when it did, and when the frame was last heard, by any station and by that one. A row is a
miss, which opens a window, or a hit in the open one:

    sliding   a row opens a window if the row before it is ``expiry_ms`` or more away: one comparison each
    fixed     a window ends ``expiry_ms`` after it opened. Where rows follow each other more closely than that for
              longer than that, the openers are found by stepping from one to the next

A hit by the opener's station is a resubmission, or an echo if the station heard the frame a moment before; a hit by
another station is ``other_station``.

One frame per *chain* outlasts the expiry: the last one counted. The chain of a data frame is its device, that of a join
request the request itself: a nonce is used once. ``strict_adr`` leaves this out.

    F9  F9' F9''         197 s apart: a device that still waits for its confirmation; FIRST, then REPEAT counted_before
    F9  F10  F9'         F9' is FIRST on level 1 again: only its counter shows that it is old
    J7  J7'              REPEAT nonce_used

A table is judged chain after chain, by time (`ColumnarStations`); a stream in batches, where a late row may belong
before rows that were judged already. Both keep their state in a `FrameBank`. It keeps the last window of each frame
until the newest time of the bucket is the expiry plus ``late_ms`` after the window's last sighting:

    a row at or after its frame's last sighting     is judged as in a table
    a row before it, within the window              is a hit; so is one less than the expiry before its opener
    a row the expiry or more before the opener      UNSURE late: the windows before the last one are not kept
    a row of an unknown frame                       opens a window; but less than the expiry after the newest dropped
                                                    sighting it is UNSURE late: it may be a hit in that window

So a row less than ``late_ms`` behind the newest is never late because a window was dropped, and rows in time order get
the answers of a table. A late row changes no state. With ``frames_max`` frames remembered, or as many chains, rows of
further ones are UNSURE state_full. A snapshot:

    head       "OFFB", format, newest time, newest dropped sighting, count, [count of chains,] checksum of the columns
    columns    key, key_check, station, since, last, own: eight bytes each
    [chains]   chain, chain_check, key, key_check, time: eight bytes each; not in format 1, of strict_adr

Buckets of format 1 are by frame and those of format 2 by chain, so neither can go on from the other.

Cost: a dozen numpy passes, a step in Python for each fixed window within a longer stretch; of a bank a binary search
per frame of the batch, and a copy of the columns where frames are added or dropped.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.errors import BadInput, Misuse
from onefold.hashed_names import find
from onefold.lorawan import rules

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]
Chains: TypeAlias = NDArray[np.int64]

EXPIRY_MS: Final = 60_000
"""The one minute of ADR 007."""
EXPIRY_MS_MAX: Final = 366 * 86_400_000
"""A year: a counter of 16 bits rolls over sooner, and sums of so many of them still fit into 63 bits."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999; later times are invalid."""
NEVER: Final = -(1 << 62)
"""Before all times, and far enough from them that differences do not overflow."""

CODES: Final = {answer.reason: code for code, answer in enumerate(rules.ANSWERS)}
_NEW_FRAME, _NEW_JOIN = CODES["new_frame"], CODES["new_join"]
_RESUBMITTED, _ECHOED, _OTHER_STATION = CODES["resubmitted"], CODES["echoed"], CODES["other_station"]
_JOIN_REPEATED = CODES["join_repeated"]
_COUNTED_BEFORE, _NONCE_USED = CODES["counted_before"], CODES["nonce_used"]


def refused(reason: str) -> int:
    """The negative station number that marks a row as refused for this reason; it belongs to no frame."""
    return -1 - CODES[reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    expiry_ms: int = EXPIRY_MS
    sliding: bool = True
    """Whether every sighting restarts the expiry."""
    echo_ms: int = 0
    """A station that hears a frame again within this hears one transmission twice; 0: never."""

    def __post_init__(self) -> None:
        for name, least in (("expiry_ms", 1), ("echo_ms", 0)):
            value = getattr(self, name)
            if not least <= value <= EXPIRY_MS_MAX:
                raise Misuse(f"{name} is {value}, must be from {least} to {EXPIRY_MS_MAX}", **{name: value})


class ReceptionRows(NamedTuple):
    """Columns of equal length, sorted by frame, then time, then a tie-breaker of the caller's choice."""

    begins: Bools
    """Whether it is the first row of its frame."""
    station: Int64s
    time: Int64s
    join: Bools


class KnownFrames(NamedTuple):
    """The last window of each frame; ``last`` is ``NEVER`` where there is none."""

    station: Int64s
    since: Int64s
    last: Int64s
    own: Int64s
    """When the station that opened it heard it last."""

    def take(self, frames: Int64s) -> KnownFrames:
        return KnownFrames(*(column[frames] for column in self))


def begins(*names: Int64s) -> Bools:
    """Which rows are the first of their frame; several columns may make up its name."""
    changes = np.logical_or.reduce([name[1:] != name[:-1] for name in names])
    return np.concatenate(([True], changes))[: len(names[0])]


def judge(rows: ReceptionRows, memory: KnownFrames, windows: Windows) -> tuple[Codes, KnownFrames]:
    """The code of each row, and the last window of each frame after it.

    ``memory`` has a line for each frame of the rows, in their order; no row may be older than its frame's ``last``.
    """
    if not len(rows.time):
        return np.empty(0, np.int8), memory
    # The memory is inserted as one made-up row per frame, or two with fixed windows.
    older, each = np.flatnonzero(memory.last != NEVER), 1 if windows.sliding else 2
    all_rows, made_up = rows, older
    if len(older):
        firsts = np.flatnonzero(rows.begins)[older]
        before, last = np.repeat(firsts, each), memory.last[older]
        times = last if windows.sliding else np.stack((memory.since[older], last), axis=1).ravel()
        all_rows = ReceptionRows(
            np.insert(rows.begins, before, np.arange(len(before)) % each == 0),
            np.insert(rows.station, before, np.repeat(memory.station[older], each)),
            np.insert(rows.time, before, times),
            np.insert(rows.join, before, False),
        )
        all_rows.begins[firsts + each * np.arange(1, len(firsts) + 1)] = False
        made_up = before + np.arange(len(before))
    own = all_rows.time.copy()
    own[made_up[each - 1 :: each]] = memory.own[older]
    codes, opener, last_own = classify(all_rows, own, windows)
    ends = np.append(np.flatnonzero(all_rows.begins)[1:], len(own)) - 1
    opened = opener[ends]
    since = all_rows.time[opened]
    if windows.sliding:  # here the made-up row is the last sighting, not the opener
        still = made_up == opened[older]
        since[older[still]] = memory.since[older[still]]
    after = KnownFrames(all_rows.station[opened], since, all_rows.time[ends], own[last_own[ends]])
    return np.delete(codes, made_up), after


def classify(rows: ReceptionRows, own: Int64s, windows: Windows) -> tuple[Codes, Int64s, Int64s]:
    """For each row: its code, the row that opened its window, and the last row up to it of the opener's station.

    ``own``: for rows of the opener's station, when it heard the frame last.
    """
    pause = np.diff(rows.time, prepend=rows.time[:1])
    opens = rows.begins | (pause >= windows.expiry_ms)
    if not windows.sliding:
        # One rising axis for all rows: the sum of the pauses, with exactly one expiry between two stretches.
        axis = np.cumsum(np.where(opens, windows.expiry_ms, pause))
        starts = np.flatnonzero(opens)
        ends = np.append(starts[1:], len(opens))
        long = axis[ends - 1] - axis[starts] >= windows.expiry_ms
        inside = np.flatnonzero(np.repeat(long, ends - starts))
        steps = np.searchsorted(axis[inside], axis[inside] + windows.expiry_ms).tolist()
        firsts, at = [], 0
        while at < len(steps):  # beyond a stretch, the next row is the start of the next stretch
            firsts.append(at)
            at = steps[at]
        opens[inside[firsts]] = True
    index = np.arange(len(opens))
    opener = np.maximum.accumulate(np.where(opens, index, 0))
    same = rows.station == rows.station[opener]
    codes = np.where(same, np.int8(_RESUBMITTED), np.int8(_OTHER_STATION))
    last_own = np.maximum.accumulate(np.where(same, index, 0))
    if windows.echo_ms:
        before = own[last_own[np.maximum(index - 1, 0)]]
        codes[same & (rows.time - before < windows.echo_ms)] = _ECHOED
    codes[opens] = _NEW_FRAME
    if rows.join.any():
        codes[rows.join] = np.where(opens[rows.join], np.int8(_NEW_JOIN), np.int8(_JOIN_REPEATED))
    return codes, opener, last_own


STRICT_FORMAT: Final = 1
FORMAT: Final = 2
LATE_MS: Final = 3_600_000
"""An hour: frames that a gateway kept while it had no backhaul come that late."""

_MAGIC: Final = b"OFFB"
_HEADS: Final = {STRICT_FORMAT: struct.Struct("<4sHqqQI"), FORMAT: struct.Struct("<4sHqqQQI")}
_LATE, _STATE_FULL = CODES["late"], CODES["state_full"]


class ReceptionArrays(NamedTuple):
    """Rows of a batch, contiguous by frame, and in it by time; none of them refused."""

    key: Int64s
    key_check: Int64s
    station: Int64s
    time: Int64s
    join: Bools
    chain: Int64s
    chain_check: Int64s
    turn: Int64s
    """The position of the row when all are sorted by chain, and within it by time."""

    def take(self, rows: Int64s) -> ReceptionArrays:
        return ReceptionArrays._make(column[rows] for column in self)


class FrameBank:
    """The frames of a bucket, sorted by the first half of their names."""

    def __init__(
        self, windows: Windows, *, late_ms: int = LATE_MS, frames_max: int | None = None, strict_adr: bool = False
    ) -> None:
        if not 0 <= late_ms <= EXPIRY_MS_MAX:
            raise Misuse(f"late_ms is {late_ms}, must be from 0 to {EXPIRY_MS_MAX}", late_ms=late_ms)
        if frames_max is not None and frames_max < 1:
            raise Misuse(f"state_rows_max is {frames_max}, must be at least 1", state_rows_max=frames_max)
        self._windows = windows
        self._late_ms = late_ms
        self._frames_max = frames_max
        self._frames = np.empty((6, 0), np.int64)  # the name in two halves, and `KnownFrames`
        # For each chain the frame that opened a window last, sorted like the frames: chain, check, key, check, time.
        self._chains = None if strict_adr else np.empty((5, 0), np.int64)
        self._format = STRICT_FORMAT if strict_adr else FORMAT
        self._newest = self._dropped = NEVER

    def __len__(self) -> int:
        return len(self._frames[0])

    def judge(self, receptions: ReceptionArrays) -> Codes:
        if not len(receptions.time):
            return np.empty(0, np.int8)
        first = begins(receptions.key, receptions.key_check)
        frame = np.cumsum(first) - 1
        names = np.stack((receptions.key[first], receptions.key_check[first]))
        at = find(self._frames[0], self._frames[1], names[0], names[1])
        there = np.flatnonzero(at >= 0)
        windows = np.full((4, len(at)), NEVER, np.int64)
        windows[:, there] = self._frames[2:, at[there]]
        memory = KnownFrames(*windows)  # views of the rows of ``windows``
        codes = self._judge_late(receptions, frame, at < 0, memory)
        if self._frames_max is not None:
            no_room = self._no_room(receptions.take(np.flatnonzero(first)), at, frame[codes < 0], self._frames_max)
            codes[no_room[frame] & (codes < 0)] = _STATE_FULL
        live = np.flatnonzero(codes < 0)
        of_frame = begins(receptions.key[live], receptions.key_check[live])
        rows = ReceptionRows(of_frame, receptions.station[live], receptions.time[live], receptions.join[live])
        heard = frame[live][rows.begins]
        codes[live], windows[:, heard] = judge(rows, memory.take(heard), self._windows)
        self._frames[2:, at[there]] = windows[:, there]
        new = np.flatnonzero((at < 0) & (memory.last != NEVER))
        new = new[np.argsort(names[0, new], kind="stable")]
        slots = np.searchsorted(self._frames[0], names[0, new])
        self._frames = np.insert(self._frames, slots, np.vstack((names, windows))[:, new], axis=1)
        if self._chains is not None:
            self._chains = _mark_last_frames(self._chains, codes, receptions)
        self._newest = max(self._newest, int(receptions.time.max()))
        # Drop the windows that only rows later than late_ms could still hit.
        last = KnownFrames(*self._frames[2:]).last
        expired = self._newest - last >= self._windows.expiry_ms + self._late_ms
        if expired.any():
            self._dropped = max(self._dropped, int(last[expired].max()))
            self._frames = self._frames[:, ~expired]
        return codes

    def _judge_late(self, receptions: ReceptionArrays, frame: Int64s, new: Bools, memory: KnownFrames) -> Codes:
        """The codes of rows before the last sighting of their frame, else -1; they may move an opener back."""
        time, expiry, echo = receptions.time, self._windows.expiry_ms, self._windows.echo_ms
        codes = np.full(len(time), -1, np.int8)
        codes[new[frame] & (time < self._dropped + expiry)] = _LATE
        behind = np.flatnonzero(time < memory.last[frame])
        if not len(behind):
            return codes
        rank, time, frame = frame, time[behind], frame[behind]
        station, since, _, own = memory.take(frame)
        hit = time > since - expiry
        codes[behind] = np.where(hit, np.int8(_OTHER_STATION), np.int8(_LATE))
        same = np.flatnonzero(hit & (receptions.station[behind] == station))
        time, frame, own = time[same], frame[same], own[same]
        near = np.abs(time - own) < echo  # not ``since``, which may be of another station by now
        near[1:] |= (frame[1:] == frame[:-1]) & (np.diff(time) < echo)
        codes[behind[same]] = np.where(near, np.int8(_ECHOED), np.int8(_RESUBMITTED))
        np.maximum.at(memory.own, frame, time)
        codes[behind[hit & receptions.join[behind]]] = _JOIN_REPEATED
        if self._windows.sliding:
            np.minimum.at(memory.since, rank[behind[hit]], receptions.time[behind[hit]])
        return codes

    def _no_room(self, frames: ReceptionArrays, at: Int64s, wanted: Int64s, frames_max: int) -> Bools:
        """Which of the wanted frames are new (``at`` below 0) and have no room."""
        refused, wants = np.zeros((2, len(at)), np.bool_)
        wants[wanted] = True
        new = np.flatnonzero(wants & (at < 0))
        if self._chains is not None:
            strange = new[find(self._chains[0], self._chains[1], frames.chain[new], frames.chain_check[new]) < 0]
            by_chain = strange[np.lexsort((frames.chain_check[strange], frames.chain[strange]))]
            nth = np.cumsum(begins(frames.chain[by_chain], frames.chain_check[by_chain]))
            refused[by_chain[nth > frames_max - len(self._chains[0])]] = True
            new = new[~refused[new]]
        by_name = new[np.lexsort((frames.key_check[new], frames.key[new]))]  # a retry refuses the same frames
        refused[by_name[max(0, frames_max - len(self)) :]] = True
        return refused

    def snapshot(self) -> bytes:
        """The state as bytes, without the settings."""
        columns = self._frames.astype("<i8").tobytes()
        counts = [len(self)]
        if self._chains is not None:
            columns += self._chains.astype("<i8").tobytes()
            counts.append(len(self._chains[0]))
        head = _MAGIC, self._format, self._newest, self._dropped, *counts, zlib.crc32(columns)
        return _HEADS[self._format].pack(*head) + columns

    def resume(self, data: bytes) -> FrameBank:
        """Take over another bank's snapshot, with the settings of this one; `BadInput` if that cannot be."""
        head, format_ = _HEADS[self._format], int.from_bytes(data[4:6], "little")
        if data[:4] == _MAGIC and format_ != self._format and format_ in _HEADS:
            strict = str(format_ == STRICT_FORMAT).lower()
            raise BadInput(
                f"this memory is of format {format_}, kept with strict_adr = {strict} (or by a version that had no "
                "other way): go on with that, or begin a new checkpoint",
                offset=4,
            )
        if len(data) < head.size or data[:4] != _MAGIC or format_ != self._format:
            raise BadInput(f"not a bank of frames of format {self._format}: begins {data[:6].hex()}", offset=0)
        _, _, newest, dropped, count, *chains, checksum = head.unpack_from(data)
        columns, frames_end = data[head.size :], 48 * count
        if len(columns) != frames_end + 40 * sum(chains) or zlib.crc32(columns) != checksum:
            raise BadInput(f"a damaged bank of frames: {len(columns)} bytes of {count} frames", offset=head.size)
        numbers = np.frombuffer(columns, "<i8").astype(np.int64)
        self._frames = numbers[: 6 * count].reshape(6, -1)
        if self._chains is not None:
            self._chains = numbers[6 * count :].reshape(5, -1)
        self._newest, self._dropped = newest, dropped
        return self


def _mark_last_frames(chains: Chains, codes: Codes, receptions: ReceptionArrays) -> Chains:
    """Change the codes of openers whose frame was already the last one of their chain; returns the new last ones.

    Remembered frames are compared in the order of time: a late opener is not compared with later frames.
    """
    opens = np.flatnonzero((codes == _NEW_FRAME) | (codes == _NEW_JOIN))
    if not len(opens):
        return chains
    opens = opens[np.argsort(receptions.turn[opens])]
    rows = receptions.take(opens)
    first = begins(rows.chain, rows.chain_check)
    at = find(chains[0], chains[1], rows.chain[first], rows.chain_check[first])
    there = np.flatnonzero(at >= 0)
    chain = np.concatenate((there, np.cumsum(first) - 1))
    key, key_check, time = np.hstack((chains[2:, at[there]], np.stack((rows.key, rows.key_check, rows.time))))
    order = np.lexsort((np.arange(len(chain)), time, chain))  # of the same time, remembered frames come first
    again = np.zeros(len(chain), np.bool_)
    again[order] = ~begins(chain[order], key[order], key_check[order])
    known_again = opens[again[len(there) :]]
    codes[known_again] = np.where(codes[known_again] == _NEW_JOIN, np.int8(_NONCE_USED), np.int8(_COUNTED_BEFORE))
    lasts = order[np.append(np.flatnonzero(np.diff(chain[order])), len(order) - 1)]
    values = np.stack((rows.chain[first], rows.chain_check[first], key[lasts], key_check[lasts], time[lasts]))
    chains[:, at[there]] = values[:, there]
    new = np.flatnonzero(at < 0)
    new = new[np.argsort(values[0, new], kind="stable")]
    return np.insert(chains, np.searchsorted(chains[0], values[0, new]), values[:, new], axis=1)


class ColumnarStations:
    """Judges batches of rows; the rows of a chain must be contiguous across batches, and in order.

    The first chain of a batch may continue one of the last batch, and its last chain may continue in the next, so each
    has its own bank. All chains between them share one.

    >>> columns = ColumnarStations(Windows())
    >>> device, frame, data, time = *np.zeros((3, 4), np.int64), np.array([0, 1_000, 2_000, 62_000])
    >>> [rules.ANSWERS[code].reason for code in columns.judge(device, time, data, np.array([7, 8, 7, 7]), frame, frame)]
    ['new_frame', 'other_station', 'resubmitted', 'counted_before']
    """

    def __init__(self, windows: Windows, *, strict_adr: bool = False) -> None:
        self._new_bank = partial(FrameBank, windows, late_ms=0, strict_adr=strict_adr)
        self._bank, self._chain = self._new_bank(), -1

    def judge(
        self, chain: Int64s, time: Int64s, join: Int64s, station: Int64s, frame: Int64s, frame_check: Int64s
    ) -> Codes:
        """The code of each row's answer, its position in ``ANSWERS``; ``join`` is 1 for join requests.

        A chain is a number from 0 up. Both halves of a hash name a frame; all its rows are of one chain.
        """
        codes = np.where(station < 0, -1 - station, 0).astype(np.int8)
        good = np.flatnonzero(station >= 0)
        rows = ReceptionArrays(frame, frame_check, station, time, join != 0, chain, chain, np.arange(len(chain)))
        edges = np.flatnonzero(np.diff(chain[good])) + 1
        for start, end in pairwise(sorted({0, *edges[:1].tolist(), *edges[-1:].tolist(), len(good)})):
            part = good[start:end]
            by_frame = rows.take(part[np.argsort(frame[part], kind="stable")])  # and within it by time
            if (begins(by_frame.key, by_frame.key_check) & ~begins(by_frame.key)).any():  # two names, one first half
                by_frame = rows.take(part[np.lexsort((frame_check[part], frame[part]))])
            if int(chain[part[0]]) != self._chain:
                self._bank = self._new_bank()
            self._chain = int(chain[part[-1]])
            codes[by_frame.turn] = self._bank.judge(by_frame)
        return codes
