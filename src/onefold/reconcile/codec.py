"""The wire format of messages: ranges to bytes, and untrusted bytes to ranges.

A range has a lower and an upper bound, a mode, and the ranks of our own records in it. Only upper bounds are written:
a range begins where the one before it ended. A hole between two ranges is written as a range with mode Skip, and a
message that ends before the universe does skips the rest.

    Message      := <head> <Range>*          head: v1 0x61, the version; xor nothing
    Range        := <upper bound> <mode: varint> <payload>
    upper bound  := <timestamp: varint of 1 + difference to the one before; 0: infinity> <length: varint> <prefix>
    Skip         := mode 0                   says nothing about this range
    Fingerprint  := mode 1, one value for all ids in the range
                       v1: 16 bytes of SHA-256(sum of the ids modulo 2^256, little-endian; varint of their count)
                       xor: the XOR of the ids
    IdList       := mode 2, <count: varint> <id>*
    Response     := mode 3, <count: varint> <id>*, <size: varint> <bits>        xor only, from the server
    varint       := digits of base 128, the most significant first, the high bit set on all but the last; at most 10

v1 is the wire in use today: ids of 32 bytes, versions 0x60 to 0x6f; a server that gets another version than its own
answers with its version byte alone. xor is the wire of the source document: ids of 8 to 32 bytes, for trusted peers
only. XOR is linear: an attacker who chooses 264 records finds in milliseconds some that hide a difference behind an
equal fingerprint.

Reading and writing are each implemented twice: a plain loop for up to ``FEW`` ranges, numpy columns with a mask for
more. Measured: columns alone make a session with a single difference 40 % slower, the loop alone makes large messages
three times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onefold.errors import BadInput, Misuse
from onefold.reconcile.items import INFINITY, Bounds, Flags, Ints, Items, Rows, Stamps, blobs, flagged, padded, spans_by

FEW: Final = 64  # ranges of a message: up to here a plain loop is faster than numpy
DIGITS_MAX: Final = 10  # 64 bits in digits of 7
HEAD_MAX: Final = DIGITS_MAX + 1 + 32 + 1  # a bound and a mode
RANGE_MAX: Final = 2 * HEAD_MAX + DIGITS_MAX  # a Skip, a head and a count: the overhead of a list
HEAD_MIN: Final = 3
FRAME_SIZE_MIN: Final = 4_096
"""The smallest frame limit in bytes, as in the published implementations of v1."""
FRAME_SIZE_MIN_XOR: Final = 1_024
"""The same for wire xor, as in its published implementation."""
HASHED_SIZE: Final = 16
VERSION: Final = 0x61
VERSIONS: Final = range(0x60, 0x70)


class Violation(BadInput):
    """The peer's message breaks the protocol; ``values["offset"]`` is the offset of the fault."""

    def __init__(self, what: str, offset: int, **values: Any) -> None:
        super().__init__(f"byte {offset}: {what}", offset=offset, **values)


def write_number(number: int) -> bytes:
    """A varint.

    >>> write_number(0).hex(), write_number(127).hex(), write_number(300).hex()
    ('00', '7f', '822c')
    """
    digits = [number & 127]
    while number := number >> 7:
        digits.append(number & 127 | 128)
    return bytes(reversed(digits))


def read_number(message: bytes, at: int) -> tuple[int, int]:
    """The varint at an offset, and the offset after it.

    >>> read_number(bytes.fromhex("822c"), 0)
    (300, 2)
    """
    value = 0
    for offset in range(at, min(at + DIGITS_MAX, len(message))):
        digit = message[offset]
        if digit == 128 and value == 0:
            raise Violation("a number with a leading zero digit", at)
        value = value << 7 | digit & 127
        if digit < 128:
            if value >> 64:
                raise Violation("a number of 2^64 or more", at)
            return value, offset + 1
    raise Violation(f"a number that does not end within {DIGITS_MAX} bytes or before the message does", at)


def _numbers_at(buffer: Rows, starts: Ints) -> tuple[Stamps, Ints]:
    """The varints at these offsets, and how many digits each has; DIGITS_MAX + 1 for one that is too long."""
    counts = np.ones(len(starts), dtype=np.int64)
    unfinished = flagged(buffer[starts] > 127)
    for step in range(1, DIGITS_MAX + 1):
        if not len(unfinished):
            break
        counts[unfinished] += 1
        unfinished = unfinished[buffer[starts[unfinished] + step] > 127]
    numbers = np.zeros(len(starts), dtype=np.uint64)
    for step in range(int(counts.max(initial=0))):
        digit = (buffer[starts + step] & 127).astype(np.uint64)
        numbers = np.where(step < counts, numbers << np.uint64(7) | digit, numbers)
    return numbers, counts


def _digits_of(numbers: Stamps) -> tuple[Rows, Flags]:
    """Varints as rows of digits, right-aligned, and a mask of the digits in use."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    shifted = numbers[:, None] >> np.arange(7 * (width - 1), -1, -7, dtype=np.uint64)
    digits = (shifted & np.uint64(127)).astype(np.uint8)
    digits[:, :-1] |= 128
    used = shifted > 0
    used[:, -1] = True
    return digits, used


def hashed(sums: NDArray[np.uint64], counts: Ints) -> Rows:
    """The v1 fingerprints of ranges with these sums and counts. Cost: about a microsecond each."""
    texts, numbers = blobs(sums.astype("<u8", copy=False).view(np.uint8)), counts.tolist()
    ends = {number: write_number(number) for number in set(numbers)}  # few: the pieces of a split have one or two sizes
    hashes = [sha256(text + ends[number]).digest() for text, number in zip(texts, numbers, strict=True)]
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(sums), 32)[:, :HASHED_SIZE]


@dataclass(frozen=True)
class Wire:
    name: str
    head: bytes
    frame_size_min: int
    """The smallest frame limit that published implementations accept."""
    id_sizes: range
    xor: bool
    """Fingerprints are XORs, and a server answers a list with a Response."""

    def check(self, id_size: int) -> None:
        if id_size not in self.id_sizes:
            sizes = "8 to 32" if self.xor else "32"
            raise Misuse(f"ids have {id_size} bytes; those of wire {self.name} have {sizes}", id_size=id_size)

    def fingerprint_size(self, id_size: int) -> int:
        return id_size if self.xor else HASHED_SIZE

    def fingerprints(self, items: Items, lower: Ints, upper: Ints) -> Rows:
        """The fingerprints of these ranges of ranks. Cost: O(1) each."""
        if self.xor:
            return items.xors(lower, upper)[:, : items.id_size]
        return hashed(items.sums(lower, upper), upper - lower)

    def body(self, message: bytes, initiator: bool) -> int | None:
        """The offset of the first range; None if the message has another version, and the reply is ours alone."""
        if self.xor:
            return 0
        if not message:
            raise Violation("an empty message; it begins with its version", 0)
        version = message[0]
        if version not in VERSIONS:
            raise Violation(f"0x{version:02x} is no version of the protocol", 0, version=version)
        if version != VERSION and initiator:
            raise Violation(f"the peer speaks version 0x{version:02x}, not 0x{VERSION:02x}", 0, version=version)
        return 1 if version == VERSION else None


V1: Final = Wire("v1", bytes([VERSION]), FRAME_SIZE_MIN, range(32, 33), xor=False)
XOR: Final = Wire("xor", b"", FRAME_SIZE_MIN_XOR, range(8, 33), xor=True)


class Mode:
    """The modes of a range. Plain numbers, because numpy compares a column with an enum member slowly."""

    SKIP: Final = 0
    FINGERPRINT: Final = 1
    ID_LIST: Final = 2
    RESPONSE: Final = 3


@dataclass(frozen=True)
class Ranges:
    """Ascending ranges that do not overlap, with our ranks; ``payloads`` are the bodies of Responses."""

    lower: Bounds
    upper: Bounds
    modes: Rows
    first: Ints
    last: Ints
    payloads: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.modes)

    def sizes(self) -> Ints:
        """How many of our records lie in each."""
        return self.last - self.first

    def take(self, which: Ints | Flags | slice) -> Ranges:
        """Some of the ranges, in that order. A slice shares the columns."""
        payloads: Sequence[bytes] = ()
        if self.payloads:
            payloads = [self.payloads[number] for number in np.arange(len(self))[which].tolist()]
        lower, upper = self.lower.take(which), self.upper.take(which)
        return Ranges(lower, upper, self.modes[which], self.first[which], self.last[which], payloads)

    def as_lists(self) -> Ranges:
        return replace(self, modes=np.full(len(self), Mode.ID_LIST, dtype=np.uint8))

    @staticmethod
    def join(parts: Sequence[Ranges]) -> Ranges:
        payloads: list[bytes] = []
        if any(part.payloads for part in parts):
            for part in parts:
                payloads += part.payloads or [b""] * len(part)
        lower, upper = Bounds.join([part.lower for part in parts]), Bounds.join([part.upper for part in parts])
        columns = zip(*((part.modes, part.first, part.last) for part in parts), strict=True)
        modes, first, last = map(np.concatenate, columns)
        return Ranges(lower, upper, modes, first, last, payloads)


def universe(items: Items) -> Ranges:
    lower, upper = Bounds.one(0, b"", items.id_size), Bounds.one(INFINITY, b"", items.id_size)
    mode = np.array([Mode.FINGERPRINT], dtype=np.uint8)
    return Ranges(lower, upper, mode, np.array([0]), np.array([len(items)]))


def split(items: Items, ranges: Ranges, pieces: int, list_below: int) -> tuple[Ranges, Ints]:
    """Cut each large range into pieces of equal size, a fingerprint each; a small one becomes a list.

    Returns the results, and the index of the range that each came from. The first pieces get the remainder, as in the
    published implementations. Where the set moves its cuts, pieces differ in size and may be fewer, but at least two.
    """
    if not len(ranges):
        return ranges, ranges.first
    large = ranges.sizes() >= list_below
    which = flagged(large)
    each, rest = np.divmod(ranges.sizes()[which, None], pieces)
    number = np.arange(1, pieces)
    even = ranges.first[which, None] + number * each + np.minimum(number, rest)
    owner = which.repeat(pieces - 1)
    cuts = items.cuts(even.ravel(), ranges.first[owner], ranges.last[owner])
    duplicates = cuts[1:] == cuts[:-1]  # a cut lies inside its range, so cuts of two ranges never coincide
    if duplicates.any():
        distinct = np.append(True, ~duplicates)
        cuts, owner = cuts[distinct], owner[distinct]
    source = np.arange(len(ranges)).repeat(1 + np.bincount(owner, minlength=len(ranges)))
    after = np.arange(len(cuts)) + owner + 1  # the pieces that begin at a cut: all but the first of each range
    lower, upper, separators = ranges.lower.take(source), ranges.upper.take(source), _separators(items, cuts)
    first, last = ranges.first[source], ranges.last[source]
    lower.put(after, separators)
    upper.put(after - 1, separators)
    first[after] = last[after - 1] = cuts
    modes = np.where(large, np.uint8(Mode.FINGERPRINT), np.uint8(Mode.ID_LIST))[source]
    return Ranges(lower, upper, modes, first, last), source


def _separators(items: Items, ranks: Ints) -> Bounds:
    """The shortest bounds between the records at these ranks and their predecessors, by one read of the set."""
    stamps, ids = items.rows(np.concatenate((ranks - 1, ranks)))
    half = len(ranks)
    return Bounds.between((stamps[:half], ids[:half]), (stamps[half:], ids[half:]))


def windows(buffer: Any, size: int) -> NDArray[Any]:
    """A view of a buffer: element i is the ``size`` bytes from offset i, so many can be read or written at once."""
    return np.ndarray((max(0, len(buffer) - size + 1),), dtype=f"V{size}", buffer=buffer, strides=(1,))


@dataclass(frozen=True)
class Layout:
    id_size: int
    fingerprint_size: int
    responses: bool
    """Whether a message may hold Responses."""


@dataclass(frozen=True)
class Incoming:
    """The ranges of a message: their offsets, bounds and modes, and the offsets of their bodies."""

    message: bytes
    buffer: Rows
    """The message, padded with zeros."""
    layout: Layout
    starts: Ints
    lower: Bounds
    upper: Bounds
    modes: Rows
    bodies: Ints

    def fingerprints(self, which: Ints) -> Rows:
        return np.asarray(self.buffer[self.bodies[which, None] + np.arange(self.layout.fingerprint_size)])

    def counts(self, which: Ints) -> Ints:
        return _numbers_at(self.buffer, self.bodies[which])[0].astype(np.int64)

    def id_lists(self, which: Ints) -> tuple[Rows, Ints, Ints]:
        """The ids that these ranges list, concatenated; how many each lists, and the offset where each list ends."""
        size = self.layout.id_size
        numbers, digits = _numbers_at(self.buffer, self.bodies[which])
        counts, starts = numbers.astype(np.int64), self.bodies[which] + digits
        rows = windows(self.buffer, size)[spans_by(starts, counts, size)].view(np.uint8).reshape(-1, size)
        return padded(rows, size), counts, starts + counts * size


def read_ranges(message: bytes, at: int, layout: Layout) -> Incoming:
    """The ranges of a message from this offset on, or a `Violation` that names the offset of the fault.

    A range's length depends on its content, so a short loop finds where each starts. All else is checked afterwards;
    nothing is allocated for a count before its bytes are known to be there. A range may be empty (equal bounds):
    published servers close a full frame with one. It is dropped; only ids in it are a fault. Cost: 0.4 microseconds
    per range.
    """
    offsets, fault = _walk(message, at, layout)
    if fault is not None:
        # The cause may be a bad bound before it. Of many ranges only the last is checked, where the walk ended.
        _read_few(message, offsets if len(offsets) <= FEW else offsets[-1:], layout)
        raise fault
    buffer = np.frombuffer(message + bytes(layout.id_size + 300), dtype=np.uint8)  # padded: no read leaves the buffer
    starts = np.array(offsets, dtype=np.int64)
    if len(offsets) <= FEW:
        upper, bodies = _read_few(message, offsets, layout)
    else:
        upper, bodies = _read_many(buffer, starts, layout)
    lower, modes = _lower(upper, layout), buffer[bodies - 1]
    if (empty := lower.equal(upper)).any():
        nonempty = (modes >= Mode.ID_LIST) & (buffer[bodies] > 0) | (modes == Mode.RESPONSE) & (buffer[bodies + 1] > 0)
        if (empty & nonempty).any():
            raise Violation("ids in an empty range", int(starts[empty & nonempty][0]))
        keep = ~empty
        starts, modes, bodies = starts[keep], modes[keep], bodies[keep]
        lower, upper = lower.take(keep), upper.take(keep)
    return Incoming(message, buffer, layout, starts, lower, upper, modes, bodies)


def _walk(message: bytes, at: int, layout: Layout) -> tuple[list[int], Violation | None]:
    """The offsets of the ranges, and the fault that ended the walk before the end of the message, if any."""
    size, fingerprint_size, end, offset = layout.id_size, layout.fingerprint_size, len(message), at
    starts: list[int] = []
    add = starts.append
    try:
        while offset < end:
            add(offset)
            while message[offset] > 127:
                offset += 1
            offset += message[offset + 1] + 3
            mode = message[offset - 1]
            if not mode:
                continue
            if mode == 1:
                offset += fingerprint_size
            elif mode == 2:
                if (count := message[offset]) > 127:
                    count, offset = read_number(message, offset)
                    offset += count * size
                else:
                    offset += 1 + count * size
            elif mode == 3 and layout.responses:
                count, offset = read_number(message, offset)
                count, offset = read_number(message, offset + count * size)
                offset += count
            else:
                return starts, Violation(f"unknown mode {mode}", offset - 1, mode=mode)
    except IndexError:
        return starts, Violation("the message ends inside a range", end)
    except Violation as fault:
        return starts, fault
    if offset > end:
        return starts, Violation("a range that goes on beyond the end of the message", starts[-1])
    return starts, None


def _read_few(message: bytes, starts: list[int], layout: Layout) -> tuple[Bounds, Ints]:
    """The upper bounds of the ranges and the offsets of their bodies; or the first fault in a bound."""
    before = (0, b"")
    stamps, prefixes, bodies = [], [], []
    for start in starts:
        number, head = read_number(message, start)
        stamp = before[0] + number - 1 if number else INFINITY
        if number and stamp >= INFINITY:
            raise Violation("a timestamp of 2^64 - 1 or more", start)
        length = message[head] if head < len(message) else 0
        if length > layout.id_size:
            raise Violation(f"a prefix longer than an id, which has {layout.id_size} bytes", head)
        prefix = message[head + 1 : head + 1 + length]
        bound = (stamp, prefix.rstrip(b"\0"))
        if bound < before:
            raise Violation("a bound that is below the one before it", start)
        before = bound
        stamps.append(stamp)
        prefixes.append(prefix)
        bodies.append(head + length + 2)
    return Bounds.of(stamps, prefixes, layout.id_size), np.array(bodies, dtype=np.int64)


def _read_many(buffer: Rows, starts: Ints, layout: Layout) -> tuple[Bounds, Ints]:
    numbers, digits = _numbers_at(buffer, starts)
    lead = buffer[starts]
    not_minimal = (digits > 1) & (lead == 128) | (digits == DIGITS_MAX) & (lead > 129) | (digits > DIGITS_MAX)
    heads = starts + digits
    lengths = buffer[heads].astype(np.int64)
    too_long = lengths > layout.id_size
    lengths = np.minimum(lengths, layout.id_size)

    infinite = numbers == 0
    steps = numbers - np.uint64(1)
    steps[infinite] = 0
    stamps = np.cumsum(steps, dtype=np.uint64)
    over = (stamps < steps) | (stamps == np.uint64(INFINITY))
    stamps[infinite] = np.uint64(INFINITY)

    ids, long = padded(np.zeros((len(starts), layout.id_size), dtype=np.uint8), layout.id_size), flagged(lengths)
    places = np.arange(int(lengths.max(initial=0)))
    prefixes = buffer[heads[long, None] + 1 + places]
    prefixes[places >= lengths[long, None]] = 0
    ids[long, : len(places)] = prefixes

    upper = Bounds(stamps, ids, lengths)
    faults = [
        (starts[not_minimal], "a timestamp that is no minimal number below 2^64"),
        (heads[too_long], f"a prefix longer than an id, which has {layout.id_size} bytes"),
        (starts[over], "a timestamp of 2^64 - 1 or more"),
        (starts[upper.below(_lower(upper, layout))], "a bound that is below the one before it"),
    ]
    if first := [(int(offsets[0]), text) for offsets, text in faults if len(offsets)]:
        offset, text = min(first)
        raise Violation(text, offset)
    return upper, heads + lengths + 2


def _lower(upper: Bounds, layout: Layout) -> Bounds:
    return Bounds.join([Bounds.origin(layout.id_size), upper.take(slice(0, -1))]).take(slice(0, len(upper)))


@dataclass(frozen=True)
class Writer:
    """Writes ranges over these records, with a Skip before each range that does not begin where the last one ended."""

    items: Items
    wire: Wire

    def write(self, ranges: Ranges, after: Bounds | None = None) -> tuple[bytes, Ints]:
        """The bytes of all ranges, to follow what was written up to ``after``; and the offset where each range ends."""
        start = after or Bounds.origin(self.items.id_size)
        if len(ranges) <= FEW:
            return self._write_few(ranges, start)
        heads, ends = self._write_many(ranges, start)
        return self._with_bodies(ranges, heads, ends) if (ranges.modes >= Mode.ID_LIST).any() else (heads, ends)

    def _write_few(self, ranges: Ranges, start: Bounds) -> tuple[bytes, Ints]:
        bodies = list(ranges.payloads) or [b""] * len(ranges)
        if len(which := flagged(ranges.modes == Mode.FINGERPRINT)):
            prints = self.wire.fingerprints(self.items, ranges.first[which], ranges.last[which])
            for number, value in zip(which.tolist(), blobs(prints), strict=True):
                bodies[number] = value
        if len(which := flagged(ranges.modes == Mode.ID_LIST)):
            ids, at = self._ids(ranges.first[which], ranges.last[which]).tobytes(), 0
            for number, count in zip(which.tolist(), ranges.sizes()[which].tolist(), strict=True):
                stop = at + count * self.items.id_size
                bodies[number] = write_number(count) + ids[at:stop]
                at = stop
        [end], message, ends = start.one_by_one(), bytearray(), []
        bounds = zip(ranges.lower.one_by_one(), ranges.upper.one_by_one(), strict=True)
        for (lower, upper), mode, body in zip(bounds, ranges.modes.tolist(), bodies, strict=True):
            if lower[:2] != end[:2]:
                message += _head(lower, end, Mode.SKIP)
                end = lower
            message += _head(upper, end, mode) + body
            end = upper
            ends.append(len(message))
        return bytes(message), np.array(ends, dtype=np.int64)

    def _ids(self, first: Ints, last: Ints) -> Rows:
        return self.items.rows(spans_by(first, last - first, 1))[1][:, : self.items.id_size]

    def _write_many(self, ranges: Ranges, start: Bounds) -> tuple[bytes, Ints]:
        """One row per range or Skip: timestamp digits | prefix length | prefix | mode | fingerprint or count."""
        holes = ~ranges.lower.equal(Bounds.join([start, ranges.upper.take(slice(0, -1))]))
        rows = np.arange(len(ranges)) + holes.cumsum()  # the row of each range; its Skip is the row before
        total, bounds = len(ranges) + int(holes.sum()), ranges.upper
        if total > len(ranges):
            order = np.empty(total, dtype=np.int64)
            order[rows] = np.arange(len(rows))
            order[rows[holes] - 1] = np.arange(len(rows), total)
            bounds = Bounds.join([ranges.upper, ranges.lower.take(holes)]).take(order)
        steps = bounds.timestamps - np.concatenate((start.timestamps, bounds.timestamps[:-1])) + np.uint64(1)
        infinite = bounds.timestamps == np.uint64(INFINITY)
        stamps, stamped = _digits_of(np.where(infinite, np.uint64(0), steps))
        lengths = bounds.lengths[:, None]
        longest = int(lengths.max(initial=0))
        modes = np.zeros((total, 1), dtype=np.uint8)
        modes[rows, 0] = ranges.modes
        always = np.ones((total, 1), dtype=np.bool_)
        values: list[NDArray[Any]] = [stamps, lengths.astype(np.uint8), bounds.ids[:, :longest], modes]
        masks: list[NDArray[Any]] = [stamped, always, np.arange(longest) < lengths, always]
        for mode in (Mode.FINGERPRINT, Mode.ID_LIST):
            which = flagged(ranges.modes == mode)
            if not len(which):
                continue
            first, last = ranges.first[which], ranges.last[which]
            if mode == Mode.FINGERPRINT:
                value = self.wire.fingerprints(self.items, first, last)
                mask = np.ones(value.shape, dtype=np.bool_)
            else:
                value, mask = _digits_of((last - first).astype(np.uint64))
            for columns, column in ((values, value), (masks, mask)):
                spread = np.zeros((total, column.shape[1]), dtype=column.dtype)
                spread[rows[which]] = column
                columns.append(spread)
        used = np.concatenate(masks, axis=1)
        return np.concatenate(values, axis=1)[used].tobytes(), used.sum(axis=1).cumsum()[rows]

    def _with_bodies(self, ranges: Ranges, heads: bytes, head_ends: Ints) -> tuple[bytes, Ints]:
        """The heads, each followed by the ids of its list or the payload of its Response."""
        size, lists = self.items.id_size, ranges.modes == Mode.ID_LIST
        first, last = ranges.first[lists], ranges.last[lists]
        bodies = np.zeros(len(ranges), dtype=np.int64)
        bodies[lists] = (last - first) * size
        if ranges.payloads:
            bodies += np.array([len(payload) for payload in ranges.payloads])
        shifts = bodies.cumsum() - bodies
        starts = head_ends + shifts
        data = bytearray(len(heads) + int(bodies.sum()))
        places = np.arange(len(heads)) + shifts.repeat(np.diff(head_ends, prepend=0))
        np.frombuffer(data, dtype=np.uint8)[places] = np.frombuffer(heads, dtype=np.uint8)
        ids = np.ascontiguousarray(self._ids(first, last))
        windows(data, size)[spans_by(starts[lists], last - first, size)] = ids.view(f"V{size}")[:, 0]
        for number in flagged(bodies * ~lists).tolist():
            data[starts[number] : starts[number] + bodies[number]] = ranges.payloads[number]
        return bytes(data), starts + bodies

    def write_some(self, ranges: Ranges, room: int, after: Bounds | None = None) -> tuple[bytes, Ranges]:
        """The first ranges that fit into ``room`` bytes, and their bytes."""
        # First drop most of what cannot fit, so that it is not fingerprinted.
        ranges = ranges.take(slice(0, room // HEAD_MIN + 1))
        least = np.where(ranges.modes == Mode.ID_LIST, 1 + ranges.sizes() * self.items.id_size, 0) + HEAD_MIN
        least[ranges.modes == Mode.FINGERPRINT] += self.wire.fingerprint_size(self.items.id_size)
        if ranges.payloads:
            least += np.array([len(payload) for payload in ranges.payloads])
        ranges = ranges.take(slice(0, int(np.searchsorted(least.cumsum(), room)) + 1))
        data, ends = self.write(ranges, after)
        fits = int(ends.searchsorted(room, side="right"))
        return data[: int(ends[fits - 1])] if fits else b"", ranges.take(slice(0, fits))

    def cut_to_fit(self, ranges: Ranges, room: int) -> Ranges:
        """The ranges up to and including the first list that would not fit alone, which is shortened to what fits."""
        records_max = (room - RANGE_MAX) // self.items.id_size
        long = flagged((ranges.modes == Mode.ID_LIST) & (ranges.sizes() > records_max))
        if not len(long):
            return ranges
        ranges = ranges.take(slice(0, int(long[0]) + 1))
        end = ranges.first[-1:] + records_max
        upper = Bounds.join([ranges.upper.take(slice(0, -1)), _separators(self.items, end)])
        return replace(ranges, upper=upper, last=np.concatenate((ranges.last[:-1], end)))


def _head(bound: tuple[int, bytes, int], before: tuple[int, bytes, int], mode: int) -> bytes:
    timestamp, id, length = bound
    step = 0 if timestamp == INFINITY else timestamp - before[0] + 1
    return write_number(step) + bytes((length,)) + id[:length] + bytes((mode,))
