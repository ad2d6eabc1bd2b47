"""Ranges become bytes. Where one does not begin at the end of the one before it, a Skip comes first.

Few are written one by one. Many are written all at once: a matrix with one row per range, and a mask of the bytes that
count.

    timestamp digits | prefix length | prefix | mode | fingerprint, or the digits of a count

``matrix[mask]`` is then the message, but for the ids of lists, which are put in between.

With a frame limit as many ranges are written as fit, and the caller is told which. A list that does not fit alone can
be cut behind the records that do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onefold.engines.negentropy import varint
from onefold.engines.negentropy.arrays import FEW, Flags, Ints, Rows, Stamps, blobs, flagged, spans, spans_by, windows
from onefold.engines.negentropy.bound import INFINITY, Bounds, origin
from onefold.engines.negentropy.items import Items
from onefold.engines.negentropy.ranges import Mode, Ranges

HEAD_MAX: Final = 10 + 1 + 32 + 1  # a bound and a mode
RANGE_MAX: Final = 2 * HEAD_MAX + 10  # a Skip, a head and a count: what a list costs beside its ids
HEAD_MIN: Final = 3

Fingerprints = Callable[[Items, Ints, Ints], Rows]


@dataclass(frozen=True)
class Written:
    """The bytes of some ranges, and how far the message reaches with each of them."""

    data: bytes
    ends: Ints


@dataclass(frozen=True)
class Writer:
    """Writes ranges over these records, with the fingerprints of a wire."""

    items: Items
    fingerprints: Fingerprints
    fingerprint_size: int

    def write(self, ranges: Ranges, after: Bounds | None = None) -> Written:
        """All of them, behind what was written up to a bound."""
        start = after or origin(self.items.id_size)
        return self._write_few(ranges, start) if len(ranges) <= FEW else self._write_many(ranges, start)

    def _write_few(self, ranges: Ranges, start: Bounds) -> Written:
        [end], message, ends = start.one_by_one(), bytearray(), []
        for lower, upper, mode, body in zip(
            ranges.lower.one_by_one(),
            ranges.upper.one_by_one(),
            ranges.modes.tolist(),
            self._bodies(ranges),
            strict=True,
        ):
            if lower[:2] != end[:2]:
                message += _head(lower, end, Mode.SKIP)
                end = lower
            message += _head(upper, end, mode) + body
            end = upper
            ends.append(len(message))
        return Written(bytes(message), np.array(ends, dtype=np.int64))

    def _bodies(self, ranges: Ranges) -> list[bytes]:
        """What each range says: a fingerprint, a list of ids, or the payload of a Response."""
        bodies = list(ranges.payloads) or [b""] * len(ranges)
        if len(which := flagged(ranges.modes == Mode.FINGERPRINT)):
            prints = self.fingerprints(self.items, ranges.first[which], ranges.last[which])
            for number, value in zip(which.tolist(), blobs(prints), strict=True):
                bodies[number] = value
        if len(which := flagged(ranges.modes == Mode.ID_LIST)):
            ids, at = self._ids(ranges.first[which], ranges.last[which]).tobytes(), 0
            for number, count in zip(which.tolist(), ranges.sizes()[which].tolist(), strict=True):
                end = at + count * self.items.id_size
                bodies[number] = varint.write(count) + ids[at:end]
                at = end
        return bodies

    def _ids(self, first: Ints, last: Ints) -> Rows:
        return self.items.rows(spans(first, last))[1][:, : self.items.id_size]

    def _write_many(self, ranges: Ranges, start: Bounds) -> Written:
        holes = ~ranges.lower.equal(Bounds.join([start, ranges.upper.take(slice(0, -1))]))
        rows = np.arange(len(ranges)) + holes.cumsum()  # of the ranges; a Skip stands in the row before
        heads, used = self._matrix(ranges, rows, holes, start.timestamps)
        sizes = used.sum(axis=1)
        data = heads[used].tobytes()
        if not (ranges.modes >= Mode.ID_LIST).any():
            return Written(data, sizes.cumsum()[rows])
        return self._with_bodies(ranges, data, sizes.cumsum()[rows])

    def _matrix(self, ranges: Ranges, rows: Ints, holes: Flags, before: Stamps) -> tuple[Rows, Flags]:
        """The heads of all ranges and Skips, and the fingerprints and counts behind them."""
        total = len(ranges) + int(holes.sum())
        bounds = _placed(total, rows, ranges.upper, rows[holes] - 1, ranges.lower.take(holes))
        stamps, stamped = varint.matrix(_differences(bounds.timestamps, before))
        lengths = bounds.lengths[:, None]
        longest = int(lengths.max(initial=0))
        modes = np.zeros((total, 1), dtype=np.uint8)
        modes[rows, 0] = ranges.modes
        always = np.ones((total, 1), dtype=np.bool_)
        values = [stamps, lengths.astype(np.uint8), bounds.ids[:, :longest], modes]
        masks = [stamped, always, np.arange(longest) < lengths, always]
        for mode, tails in ((Mode.FINGERPRINT, self._fingerprints), (Mode.ID_LIST, self._counts)):
            which = ranges.modes == mode
            if which.any():
                value, mask = tails(ranges.first[which], ranges.last[which])
                values.append(_spread(total, rows[which], value))
                masks.append(_spread(total, rows[which], mask))
        return np.concatenate(values, axis=1), np.concatenate(masks, axis=1)

    def _fingerprints(self, first: Ints, last: Ints) -> tuple[Rows, Flags]:
        prints = self.fingerprints(self.items, first, last)
        return prints, np.ones(prints.shape, dtype=np.bool_)

    def _counts(self, first: Ints, last: Ints) -> tuple[Rows, Flags]:
        return varint.matrix((last - first).astype(np.uint64))

    def _with_bodies(self, ranges: Ranges, heads: bytes, head_ends: Ints) -> Written:
        """Heads, and behind each the ids that it lists or the payload of its Response."""
        size, lists = self.items.id_size, ranges.modes == Mode.ID_LIST
        first, last = ranges.first[lists], ranges.last[lists]
        bodies = np.zeros(len(ranges), dtype=np.int64)
        bodies[lists] = (last - first) * size
        if ranges.payloads:
            bodies += np.array([len(payload) for payload in ranges.payloads])
        shifts = bodies.cumsum() - bodies
        starts = head_ends + shifts
        data = bytearray(len(heads) + int(bodies.sum()))
        lengths = np.diff(head_ends, prepend=0)
        places = np.arange(len(heads)) + shifts.repeat(lengths)
        np.frombuffer(data, dtype=np.uint8)[places] = np.frombuffer(heads, dtype=np.uint8)
        ids = np.ascontiguousarray(self._ids(first, last))
        windows(data, size)[spans_by(starts[lists], last - first, size)] = ids.view(f"V{size}")[:, 0]
        for number in flagged(bodies * ~lists).tolist():
            data[starts[number] : starts[number] + bodies[number]] = ranges.payloads[number]
        return Written(bytes(data), starts + bodies)

    def write_some(self, ranges: Ranges, room: int, after: Bounds | None = None) -> tuple[bytes, Ranges]:
        """As many as fit into so many bytes: the bytes, and the ranges that are in them."""
        window = self._window(ranges, room)
        written = self.write(window, after)
        fits = int(written.ends.searchsorted(room, side="right"))
        data = written.data[: int(written.ends[fits - 1])] if fits else b""
        return data, window.head(fits)

    def _window(self, ranges: Ranges, room: int) -> Ranges:
        """The first ranges, hardly more than can fit: what need not be written is not fingerprinted either."""
        window = ranges.head(room // HEAD_MIN + 1)
        least = np.where(window.modes == Mode.ID_LIST, 1 + window.sizes() * self.items.id_size, 0) + HEAD_MIN
        least[window.modes == Mode.FINGERPRINT] += self.fingerprint_size
        if window.payloads:
            least += np.array([len(payload) for payload in window.payloads])
        return window.head(int(np.searchsorted(least.cumsum(), room)) + 1)

    def cut_to_fit(self, ranges: Ranges, room: int) -> Ranges:
        """The same ranges, up to the first list that would not fit alone; that one with the records that do."""
        records_max = (room - RANGE_MAX) // self.items.id_size
        long = flagged((ranges.modes == Mode.ID_LIST) & (ranges.sizes() > records_max))
        if not len(long):
            return ranges
        return ranges.head(int(long[0]) + 1).shortened(self.items, records_max)


def _head(bound: tuple[int, bytes, int], before: tuple[int, bytes, int], mode: int) -> bytes:
    """A bound behind another one, and a mode."""
    timestamp, id, length = bound
    step = 0 if timestamp == INFINITY else timestamp - before[0] + 1
    return varint.write(step) + bytes((length,)) + id[:length] + bytes((mode,))


def _differences(timestamps: Stamps, before: Stamps) -> Stamps:
    """Timestamps as they are written: 0 for infinity, else 1 + what is added to the one before."""
    steps = timestamps - np.concatenate((before, timestamps[:-1])) + np.uint64(1)
    return np.where(timestamps == np.uint64(INFINITY), np.uint64(0), steps)


def _placed(total: int, rows: Ints, these: Bounds, other_rows: Ints, others: Bounds) -> Bounds:
    """Two kinds of bounds, each in its rows."""
    if total == len(rows):
        return these
    order = np.empty(total, dtype=np.int64)
    order[rows] = np.arange(len(rows))
    order[other_rows] = np.arange(len(rows), total)
    return Bounds.join([these, others]).take(order)


def _spread(total: int, rows: Ints, values: NDArray[Any]) -> NDArray[Any]:
    """These values in their rows, zeros in the others."""
    spread = np.zeros((total, values.shape[1]), dtype=values.dtype)
    spread[rows] = values
    return spread
