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

Beside the frames, and for ever, stands of each chain the frame that opened a window last, and when: one row for each
device, and one for each join request. There are ``frames_max`` of these at most, too. By ``strict_adr`` there are none.

    head       "OFFB", format, newest time, newest that was given up, count, [count of chains,] checksum of the columns
    columns    key, key_check, station, since, last, own: eight bytes each
    [chains]   chain, chain_check, key, key_check, time: eight bytes each

Format 1, of strict_adr, has no chains. Its buckets are by frame and those of format 2 by chain, so neither can go on
from the other.

Cost: a binary search per frame of the batch, and a copy of the columns where frames are added or dropped.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    as_again,
    begins,
    judge,
    openers,
)
from onefold.errors import BadInput, Misuse

STRICT_FORMAT: Final = 1
FORMAT: Final = 2
LATE_MS: Final = 3_600_000
"""An hour: what a gateway kept while it had no backhaul comes as late as that was long."""

_MAGIC: Final = b"OFFB"
_HEADS: Final = {STRICT_FORMAT: struct.Struct("<4sHqqQI"), FORMAT: struct.Struct("<4sHqqQQI")}
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
    chain: Int64s
    chain_check: Int64s
    turn: Int64s
    """The place of the row when all are sorted by chain, and in it by time."""

    def rows(self) -> Rows:
        """As the columnar engine takes them."""
        return Rows(begins(self.key, self.key_check), self.station, self.time, self.join)

    def take(self, rows: Int64s) -> Receptions:
        """These rows."""
        key, key_check, station, time, join, *chain_and_turn = self
        heard = key[rows], key_check[rows], station[rows], time[rows], join[rows]
        return Receptions(*heard, *(column[rows] for column in chain_and_turn))


class _Chains:
    """The frame that opened a window last, of each chain; sorted by the first half of the chain's name."""

    def __init__(self, columns: NDArray[np.int64] | None = None) -> None:
        self.columns = np.empty((5, 0), np.int64) if columns is None else columns  # chain, check, key, check, time

    def __len__(self) -> int:
        return len(self.columns[0])

    def know_again(self, codes: Codes, receptions: Receptions) -> None:
        """Change the codes of openers whose frame was the last one of their chain, and remember those that are now.

        What is remembered stands among the openers by its time: one that comes late is not compared with what came
        after it."""
        opens = openers(codes)
        if not len(opens):
            return
        opens = opens[np.argsort(receptions.turn[opens])]
        rows = receptions.take(opens)
        first = begins(rows.chain, rows.chain_check)
        at = find(self.columns[0], self.columns[1], rows.chain[first], rows.chain_check[first])
        there = np.flatnonzero(at >= 0)
        chain = np.concatenate((there, np.cumsum(first) - 1))
        key, key_check, time = (
            np.concatenate((known, column))
            for known, column in zip(self.columns[2:, at[there]], (rows.key, rows.key_check, rows.time), strict=True)
        )
        order = np.lexsort((np.arange(len(chain)), time, chain))  # of one time, what was known before comes first
        again = np.zeros(len(chain), np.bool_)
        again[order] = ~begins(chain[order], key[order], key_check[order])
        known_again = opens[again[len(there) :]]
        codes[known_again] = as_again(codes[known_again])
        lasts = order[np.append(np.flatnonzero(np.diff(chain[order])), len(order) - 1)]
        values = np.stack((rows.chain[first], rows.chain_check[first], key[lasts], key_check[lasts], time[lasts]))
        self.columns[:, at[there]] = values[:, there]
        new = np.flatnonzero(at < 0)
        new = new[np.argsort(values[0, new], kind="stable")]
        self.columns = np.insert(self.columns, np.searchsorted(self.columns[0], values[0, new]), values[:, new], axis=1)


def find(names: Int64s, checks: Int64s, name: Int64s, check: Int64s) -> Int64s:
    """Where these names of two halves stand, of which the first halves are sorted; -1 for those that do not."""
    if not len(names):
        return np.full(len(name), -1, np.int64)
    at = np.minimum(np.searchsorted(names, name), len(names) - 1)
    found = np.where(names[at] == name, at, -1).astype(np.int64)
    for i in np.flatnonzero((found >= 0) & (checks[at] != check)):  # two names, one first half
        same = range(int(found[i]), int(np.searchsorted(names, name[i], "right")))
        found[i] = next((j for j in same if checks[j] == check[i]), -1)
    return found


class FrameBank:
    """The frames of a bucket, sorted by the first half of their names."""

    def __init__(
        self,
        windows: Windows,
        *,
        late_ms: int = LATE_MS,
        frames_max: int | None = None,
        strict_adr: bool = False,
    ) -> None:
        if not 0 <= late_ms <= EXPIRY_MS_MAX:
            raise Misuse(f"late_ms is {late_ms}, must be from 0 to {EXPIRY_MS_MAX}", late_ms=late_ms)
        if frames_max is not None and frames_max < 1:
            raise Misuse(f"state_rows_max is {frames_max}, must be at least 1", state_rows_max=frames_max)
        self._windows = windows
        self._late_ms = late_ms
        self._frames_max = frames_max
        self._key, self._key_check = np.empty(0, np.int64), np.empty(0, np.int64)
        self._known = Known.nothing(0)
        self._chains: _Chains | None = None if strict_adr else _Chains()
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
        at = find(self._key, self._key_check, *names)
        known = self._recall(at)
        codes = self._judge_late(receptions, frame, at < 0, known)
        codes[self._no_room(receptions.take(np.flatnonzero(first)), at, frame, codes < 0)[frame] & (codes < 0)] = (
            _STATE_FULL
        )
        live = np.flatnonzero(codes < 0)
        rows = receptions.take(live).rows()
        heard = frame[live][rows.begins]
        codes[live], after = judge(rows, known.take(heard), self._windows)
        for column, values in zip(known, after, strict=True):
            column[heard] = values
        self._learn(names, at, known)
        if self._chains is not None:
            self._chains.know_again(codes, receptions)
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

    def _no_room(self, frames: Receptions, at: Int64s, frame: Int64s, live: Bools) -> Bools:
        """Of each frame, whether it is new and there is no room for it, or for its chain."""
        refused = np.zeros(len(at), np.bool_)
        if self._frames_max is None:
            return refused
        wants = np.zeros(len(at), np.bool_)
        wants[frame[live]] = True
        new = np.flatnonzero(wants & (at < 0))
        if self._chains is not None:
            known = find(self._chains.columns[0], self._chains.columns[1], frames.chain[new], frames.chain_check[new])
            strange = new[known < 0]
            by_chain = strange[np.lexsort((frames.chain_check[strange], frames.chain[strange]))]
            nth = np.cumsum(begins(frames.chain[by_chain], frames.chain_check[by_chain]))
            refused[by_chain[nth > self._frames_max - len(self._chains)]] = True
            new = new[~refused[new]]
        by_name = new[np.lexsort((frames.key_check[new], frames.key[new]))]  # the same ones, however often it is tried
        refused[by_name[max(0, self._frames_max - len(self)) :]] = True
        return refused

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
        counts = [len(self)]
        if self._chains is not None:
            columns += self._chains.columns.astype("<i8").tobytes()
            counts.append(len(self._chains))
        head = _HEADS[self._format].pack(
            _MAGIC, self._format, self._newest, self._given_up, *counts, zlib.crc32(columns)
        )
        return head + columns

    @property
    def _format(self) -> int:
        return STRICT_FORMAT if self._chains is None else FORMAT

    def resume(self, data: bytes) -> FrameBank:
        """Go on where another bank's snapshot was taken, with the settings of this one; else `BadInput`."""
        head, found = _HEADS[self._format], int.from_bytes(data[4:6], "little")
        if data[:4] == _MAGIC and found != self._format and found in _HEADS:
            strict = str(found == STRICT_FORMAT).lower()
            raise BadInput(
                f"this memory is of format {found}, kept with strict_adr = {strict} (or by a version that had no other "
                "way): go on with that, or begin a new checkpoint",
                offset=4,
            )
        if len(data) < head.size or data[:4] != _MAGIC or found != self._format:
            raise BadInput(f"not a bank of frames of format {self._format}: begins {data[:6].hex()}", offset=0)
        _, _, newest, given_up, count, *chains, checksum = head.unpack_from(data)
        columns, frames_end = data[head.size :], 48 * count
        if len(columns) != frames_end + 40 * sum(chains) or zlib.crc32(columns) != checksum:
            raise BadInput(f"a damaged bank of frames: {len(columns)} bytes of {count} frames", offset=head.size)
        numbers = np.frombuffer(columns, "<i8").astype(np.int64)
        self._key, self._key_check, *known = numbers[: 6 * count].reshape(6, -1)
        self._known = Known(*known)
        if self._chains is not None:
            self._chains = _Chains(numbers[6 * count :].reshape(5, -1))
        self._newest, self._given_up = newest, given_up
        return self

    def __str__(self) -> str:
        return f"{len(self)} frame{'s' * (len(self) != 1)}"
