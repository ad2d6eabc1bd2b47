"""The windows of many frames, packed into columns: what one bucket of a stream remembers of level 1.

A table is judged with all of its rows at hand; a stream in batches, and a late row may belong before what was judged
already. A bank keeps, of each frame, its last window, until nothing that may still come can meet it: until the newest
time of the bucket has passed the window's last sighting by the expiry and ``late_ms``. Then

    a row at or after its frame's last sighting     is judged as in a table
    a row before it, within the window              is a hit; so is one less than the expiry before its opener
    a row the expiry or more before the opener      UNSURE late: the windows before the last one are not kept
    a row of an unknown frame                       opens a window; but less than the expiry after the newest sighting
                                                    that was given up it is UNSURE late: it may be a hit in that one

So what is less than ``late_ms`` behind the newest is never late for want of memory, and in time order the answers are
those of a table. A row changes nothing if it is late. With ``frames_max`` frames remembered, rows of further ones are
UNSURE state_full.

    head       "OFFB", format, newest time, newest that was given up, count, checksum of the columns
    columns    key, key_check, station, since, last, own: eight bytes each

Cost: a binary search per frame of the batch, and a copy of the columns where frames are added or dropped.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from onefold.engines.lorawan.columnar import (
    CODES,
    EXPIRY_MS_MAX,
    NEVER,
    Bools,
    Codes,
    Int64s,
    Known,
    Rows,
    Windows,
    begins,
    judge,
)
from onefold.errors import BadInput, Misuse

FORMAT: Final = 1
LATE_MS: Final = 3_600_000
"""An hour: what a gateway kept while it had no backhaul comes as late as that was long."""

_MAGIC: Final = b"OFFB"
_HEAD: Final = struct.Struct("<4sHqqQI")
_LATE, _STATE_FULL = CODES["late"], CODES["state_full"]
_RESUBMITTED, _ECHOED, _OTHER_STATION = CODES["resubmitted"], CODES["echoed"], CODES["other_station"]
_JOIN_REPEATED = CODES["join_repeated"]


class Receptions(NamedTuple):
    """Rows of a batch, contiguous by frame, and in it by time; none of them refused."""

    key: Int64s
    key_check: Int64s
    station: Int64s
    time: Int64s
    join: Bools

    def rows(self) -> Rows:
        """As the columnar engine takes them."""
        return Rows(begins(self.key, self.key_check), self.station, self.time, self.join)

    def take(self, rows: Int64s) -> Receptions:
        """These rows."""
        key, key_check, station, time, join = self
        return Receptions(key[rows], key_check[rows], station[rows], time[rows], join[rows])


class FrameBank:
    """The frames of a bucket, sorted by the first half of their names."""

    def __init__(self, windows: Windows, *, late_ms: int = LATE_MS, frames_max: int | None = None) -> None:
        if not 0 <= late_ms <= EXPIRY_MS_MAX:
            raise Misuse(f"late_ms is {late_ms}, must be from 0 to {EXPIRY_MS_MAX}", late_ms=late_ms)
        if frames_max is not None and frames_max < 1:
            raise Misuse(f"state_rows_max is {frames_max}, must be at least 1", state_rows_max=frames_max)
        self._windows = windows
        self._late_ms = late_ms
        self._frames_max = frames_max
        self._key, self._key_check = np.empty(0, np.int64), np.empty(0, np.int64)
        self._known = Known.nothing(0)
        self._newest = self._given_up = NEVER

    def __len__(self) -> int:
        return len(self._key)

    def judge(self, receptions: Receptions) -> Codes:
        """The code of each row."""
        if not len(receptions.time):
            return np.empty(0, np.int8)
        first = begins(receptions.key, receptions.key_check)
        frame = np.cumsum(first) - 1
        names = receptions.key[first], receptions.key_check[first]
        at = self._find(*names)
        known = self._recall(at)
        codes = self._judge_late(receptions, frame, at < 0, known)
        codes[self._no_room(*names, at, frame, codes < 0)[frame] & (codes < 0)] = _STATE_FULL
        live = np.flatnonzero(codes < 0)
        rows = receptions.take(live).rows()
        heard = frame[live][rows.begins]
        codes[live], after = judge(rows, known.take(heard), self._windows)
        for column, values in zip(known, after, strict=True):
            column[heard] = values
        self._learn(names, at, known)
        self._newest = max(self._newest, int(receptions.time.max()))
        self._give_up()
        return codes

    def _recall(self, at: Int64s) -> Known:
        known = Known.nothing(len(at))
        there = np.flatnonzero(at >= 0)
        for column, values in zip(known, self._known, strict=True):
            column[there] = values[at[there]]
        return known

    def _judge_late(self, receptions: Receptions, frame: Int64s, new: Bools, known: Known) -> Codes:
        """The codes of the rows that come before what is known, -1 of all others; they may move an opener back."""
        time, expiry, echo = receptions.time, self._windows.expiry_ms, self._windows.echo_ms
        codes = np.full(len(time), -1, np.int8)
        codes[new[frame] & (time < self._given_up + expiry)] = _LATE
        behind = np.flatnonzero(time < known.last[frame])
        if not len(behind):
            return codes
        rank, time, frame = frame, time[behind], frame[behind]
        station, since, _, own = known.take(frame)
        hit = time > since - expiry
        codes[behind] = np.where(hit, np.int8(_OTHER_STATION), np.int8(_LATE))
        same = np.flatnonzero(hit & (receptions.station[behind] == station))
        time, frame, own = time[same], frame[same], own[same]
        near = np.abs(time - own) < echo  # its own sighting: the window's beginning may be of another station by now
        near[1:] |= (frame[1:] == frame[:-1]) & (np.diff(time) < echo)
        codes[behind[same]] = np.where(near, np.int8(_ECHOED), np.int8(_RESUBMITTED))
        np.maximum.at(known.own, frame, time)
        codes[behind[hit & receptions.join[behind]]] = _JOIN_REPEATED
        if self._windows.sliding:
            np.minimum.at(known.since, rank[behind[hit]], receptions.time[behind[hit]])
        return codes

    def _no_room(self, key: Int64s, key_check: Int64s, at: Int64s, frame: Int64s, live: Bools) -> Bools:
        """Of each frame, whether it is new and there is no room for it."""
        refused = np.zeros(len(at), np.bool_)
        if self._frames_max is None:
            return refused
        wants = np.zeros(len(at), np.bool_)
        wants[frame[live]] = True
        new = np.flatnonzero(wants & (at < 0))
        by_name = new[np.lexsort((key_check[new], key[new]))]  # the same ones, however often it is tried
        refused[by_name[max(0, self._frames_max - len(self)) :]] = True
        return refused

    def _find(self, key: Int64s, key_check: Int64s) -> Int64s:
        """Where these frames stand in the bank; -1 for those that are new."""
        if not len(self):
            return np.full(len(key), -1, np.int64)
        at = np.minimum(np.searchsorted(self._key, key), len(self) - 1)
        found = np.where(self._key[at] == key, at, -1).astype(np.int64)
        for i in np.flatnonzero((found >= 0) & (self._key_check[at] != key_check)):  # two names, one first half
            same = range(int(found[i]), int(np.searchsorted(self._key, key[i], "right")))
            found[i] = next((j for j in same if self._key_check[j] == key_check[i]), -1)
        return found

    def _learn(self, names: tuple[Int64s, Int64s], at: Int64s, known: Known) -> None:
        old = np.flatnonzero(at >= 0)
        for column, values in zip(self._known, known, strict=True):
            column[at[old]] = values[old]
        new = np.flatnonzero((at < 0) & (known.last != NEVER))
        new = new[np.argsort(names[0][new], kind="stable")]
        place = np.searchsorted(self._key, names[0][new])
        self._key, self._key_check = (
            np.insert(column, place, name[new])
            for column, name in zip((self._key, self._key_check), names, strict=True)
        )
        self._known = Known(
            *(np.insert(column, place, values[new]) for column, values in zip(self._known, known, strict=True))
        )

    def _give_up(self) -> None:
        """Drop the windows that nothing can meet any more but what is later than ``late_ms``."""
        gone = self._newest - self._known.last >= self._windows.expiry_ms + self._late_ms
        if gone.any():
            self._given_up = max(self._given_up, int(self._known.last[gone].max()))
            kept = np.flatnonzero(~gone)
            self._key, self._key_check, self._known = self._key[kept], self._key_check[kept], self._known.take(kept)

    def snapshot(self) -> bytes:
        """All that is remembered, as bytes; the settings are not in it."""
        columns = np.stack((self._key, self._key_check, *self._known)).astype("<i8").tobytes()
        head = _HEAD.pack(_MAGIC, FORMAT, self._newest, self._given_up, len(self), zlib.crc32(columns))
        return head + columns

    def resume(self, data: bytes) -> FrameBank:
        """Go on where another bank's snapshot was taken, with the settings of this one; else `BadInput`."""
        if len(data) < _HEAD.size or data[:6] != _HEAD.pack(_MAGIC, FORMAT, 0, 0, 0, 0)[:6]:
            raise BadInput(f"not a bank of frames of format {FORMAT}: begins {data[:6].hex()}", offset=0)
        _, _, newest, given_up, count, checksum = _HEAD.unpack_from(data)
        columns = data[_HEAD.size :]
        if len(columns) != 48 * count or zlib.crc32(columns) != checksum:
            raise BadInput(f"a damaged bank of frames: {len(columns)} bytes of {count} frames", offset=_HEAD.size)
        self._key, self._key_check, *known = np.frombuffer(columns, "<i8").astype(np.int64).reshape(6, -1)
        self._known = Known(*known)
        self._newest, self._given_up = newest, given_up
        return self

    def __str__(self) -> str:
        return f"{len(self)} frame{'s' * (len(self) != 1)}"
