"""Foreign bytes become ranges, or a ``Violation`` that names the first byte that is wrong.

A range's length depends on what it says, so one short loop walks from range to range; it only finds where they start.
All else is decoded and checked for all ranges at once: numbers are minimal and below 2^64, a prefix is not longer than
an id, timestamps do not run over, bounds ascend strictly, modes are those of this wire and this side, counts fit into
what is left of the message.

Cost: about 0.2 microseconds per range in the loop, as much again in numpy; nothing is allocated for a count before its
bytes are seen to be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from onefold.engines.negentropy import varint
from onefold.engines.negentropy.arrays import Ints, Rows, Stamps, padded, spans_by, width_of, windows
from onefold.engines.negentropy.bound import INFINITY, Bounds, origin
from onefold.engines.negentropy.ranges import Mode
from onefold.engines.negentropy.violation import Violation

EARLY: Final = 16  # ranges before the fault


@dataclass(frozen=True)
class Layout:
    """What the ranges of a wire look like, for the side that reads."""

    id_size: int
    fingerprint_size: int
    modes: frozenset[int]


@dataclass(frozen=True)
class Incoming:
    """The ranges of a message: where they start, their bounds, and where what they say begins."""

    message: bytes
    layout: Layout
    starts: Ints
    lower: Bounds
    upper: Bounds
    modes: Rows
    bodies: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def fingerprints(self, which: Ints) -> Rows:
        """The fingerprints that these ranges carry."""
        places = self.bodies[which, None] + np.arange(self.layout.fingerprint_size)
        return np.asarray(np.frombuffer(self.message, dtype=np.uint8)[places])

    def counts(self, which: Ints) -> Ints:
        """How many ids each of these ranges lists."""
        return self._counts(which)[0]

    def _counts(self, which: Ints) -> tuple[Ints, Ints]:
        """How many ids each of these ranges lists, and where the first stands."""
        buffer = np.frombuffer(self.message + bytes(varint.DIGITS_MAX), dtype=np.uint8)
        digits = varint.lengths(buffer, self.bodies[which])
        return varint.values(buffer, self.bodies[which], digits).astype(np.int64), self.bodies[which] + digits

    def id_lists(self, which: Ints) -> tuple[Rows, Ints, Ints]:
        """The ids that these ranges list, one after another, how many each lists, and where each list ends."""
        size = self.layout.id_size
        counts, starts = self._counts(which)
        rows = windows(self.message, size)[spans_by(starts, counts, size)].view(np.uint8).reshape(-1, size)
        return padded(rows, width_of(size)), counts, starts + counts * size


def read_ranges(message: bytes, at: int, layout: Layout) -> Incoming:
    """The ranges of a message from this byte on."""
    found, stop = _walk(message, at, layout)
    if stop is not None and len(found) <= EARLY:
        _look_closely(message, found, layout)
        raise stop
    starts = np.array(found, dtype=np.int64)
    buffer = np.frombuffer(message + bytes(layout.id_size + 300), dtype=np.uint8)  # so that no look ends outside
    digits = varint.lengths(buffer, starts)
    heads = starts + digits
    lengths = buffer[heads].astype(np.int64)
    faults = [(starts[varint.faulty(buffer, starts, digits)], "a timestamp that is no minimal number below 2^64")]
    faults.append((heads[lengths > layout.id_size], f"a prefix longer than an id, which has {layout.id_size} bytes"))
    lengths = np.minimum(lengths, layout.id_size)
    timestamps, over = _timestamps(varint.values(buffer, starts, digits))
    faults.append((starts[over], "a timestamp of 2^64 - 1 or more"))
    upper = Bounds(timestamps, _prefixes(buffer, heads + 1, lengths, width_of(layout.id_size)), lengths)
    lower = Bounds.join([origin(layout.id_size), upper]).take(slice(0, -1))
    faults.append((starts[~lower.below(upper)], "a bound that is not above the one before it"))
    _complain(faults, stop)
    bodies = heads + lengths + 2
    return Incoming(message, layout, starts, lower, upper, buffer[bodies - 1], bodies)


def _walk(message: bytes, at: int, layout: Layout) -> tuple[list[int], Violation | None]:
    """Where the ranges start, as far as they can be followed, and what ended the walk before the message's end."""
    size, fingerprint_size, end, place = layout.id_size, layout.fingerprint_size, len(message), at
    lists, responses = Mode.ID_LIST in layout.modes, Mode.RESPONSE in layout.modes
    starts: list[int] = []
    remember = starts.append
    try:
        while place < end:
            remember(place)
            while message[place] > 127:
                place += 1
            place += message[place + 1] + 3
            mode = message[place - 1]
            if not mode:
                continue
            if mode == 1:
                place += fingerprint_size
            elif mode == 2 and lists:
                count = message[place]
                place += 1
                if count > 127:
                    count, place = varint.read(message, place - 1)
                place += count * size
            elif mode == 3 and responses:
                count, place = varint.read(message, place)
                count, place = varint.read(message, place + count * size)
                place += count
            else:
                return starts, Violation(f"unknown mode {mode}", place - 1, mode=mode)
    except IndexError:
        return starts, Violation("the message ends inside a range", end)
    except Violation as fault:
        return starts, fault
    if place > end:
        return starts, Violation("a range that goes on behind the end of the message", starts[-1])
    return starts, None


def _look_closely(message: bytes, starts: list[int], layout: Layout) -> None:
    """Raise the first fault in the bounds of these ranges, which are few; columns would take longer."""
    before = (0, b"")
    for start in starts:
        number, head = varint.read(message, start)
        stamp = before[0] + number - 1 if number else INFINITY
        if number and stamp >= INFINITY:
            raise Violation("a timestamp of 2^64 - 1 or more", start)
        length = message[head] if head < len(message) else 0
        if length > layout.id_size:
            raise Violation(f"a prefix longer than an id, which has {layout.id_size} bytes", head)
        bound = (stamp, message[head + 1 : head + 1 + length].rstrip(b"\0"))
        if bound <= before:
            raise Violation("a bound that is not above the one before it", start)
        before = bound


def _timestamps(numbers: Stamps) -> tuple[Stamps, Ints]:
    """Timestamps out of differences (0 is infinity, else 1 + difference), and the places where they run over."""
    infinite = numbers == 0
    steps = numbers - np.uint64(1)
    steps[infinite] = 0
    stamps = np.cumsum(steps, dtype=np.uint64)
    over = np.flatnonzero((stamps < steps) | (stamps == np.uint64(INFINITY)))
    stamps[infinite] = np.uint64(INFINITY)
    return stamps, over


def _prefixes(buffer: Rows, starts: Ints, lengths: Ints, width: int) -> Rows:
    """The prefixes at these places, filled up with zeros."""
    ids = np.zeros((len(starts), width), dtype=np.uint8)
    long = np.flatnonzero(lengths)
    places = np.arange(int(lengths.max(initial=0)))
    found = buffer[starts[long, None] + places]
    found[places >= lengths[long, None]] = 0
    ids[long, : len(places)] = found
    return ids


def _complain(faults: list[tuple[Ints, str]], stop: Violation | None) -> None:
    """Raise the fault that comes first in the message, if there is one."""
    first = [(int(places[0]), text) for places, text in faults if len(places)]
    if first:
        offset, text = min(first)
        if stop is None or offset <= stop.values["offset"]:
            raise Violation(text, offset)
    if stop is not None:
        raise stop
