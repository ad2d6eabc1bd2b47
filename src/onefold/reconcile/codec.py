"""Ranges of the universe of records, as columns: what a message is made of.

A range has a lower and an upper bound, a mode, and the ranks of our own records that lie in it. On the wire only upper
bounds are written: a range begins where the one before it ended. So a hole between two ranges becomes a range of its
own with mode Skip, and a message that ends before the universe does skips the rest.

    Skip          nothing is asked or told about this range
    Fingerprint   one value for all ids in it
    IdList        all ids of the sender in it
    Response      xor only, server to client: ids that the client lacks, and a bit per listed id that the server lacks

To *split* a range of many records is to cut ours into ``pieces`` of equal size, with a fingerprint each; a range of few
is listed. Cost: numpy operations over all ranges at once.

Foreign bytes become ranges, or a ``Violation`` that names the first byte that is wrong.

A range's length depends on what it says, so one short loop walks from range to range; it only finds where they start.
All else is decoded and checked, few ranges one by one and many at once: numbers are minimal and below 2^64, a prefix is
not longer than an id, timestamps do not run over, no bound lies below the one before it, modes are those of this wire
and this side, counts fit into what is left of the message.

A range may end where it begins: published servers close a full frame with such a one. Nothing lies in it, so whatever
its fingerprint is, it says nothing, and is dropped here: neither side ever sees one. Only ids in it are a fault.

Cost: about 0.2 microseconds per range in the loop, as much again in numpy; nothing is allocated for a count before its
bytes are seen to be there.

Ranges become bytes. Where one does not begin at the end of the one before it, a Skip comes first.

Few are written one by one. Many are written all at once: a matrix with one row per range, and a mask of the bytes that
count.

    timestamp digits | prefix length | prefix | mode | fingerprint, or the digits of a count

``matrix[mask]`` is then the message, but for the ids of lists, which are put in between.

With a frame limit as many ranges are written as fit, and the caller is told which. A list that does not fit alone can
be cut behind the records that do.

Which ids of a peer's lists do we hold? All lists of a message are matched at once.

Each id, ours and theirs, becomes one number: its range, then the beginning of the id, then whose it is, then its place.
Sorted, equal ids of both sides are neighbours, and the places say which ones they are; the ids are then compared whole.
The beginnings of different ids of one range are seldom alike. Where they are, by chance, by malice or because lists are
very long, that range is matched by a dictionary: slower, and as exact.

Cost: one sort of numbers; 0.1 microseconds per id.

The sparse reply to a list: only what differs, though the wire has no word for it.

v1 answers a list with a list: all ids of the server in that range. But a range may be answered in pieces. Where both
sides agree the server skips, and between two ids that both have, where they do not, it lists its own. So the reply
grows with the differences, not with the records.

The difficulty: a listed id comes without its timestamp. The server knows those of the ids that both have, and that the
list is in order. Say C is listed, unknown to the server, between P and Q that both have; C's timestamp is then
somewhere from P's to Q's. Two short bounds enclose it all the same:

    above P, not above C:   C's id > P's id: P's timestamp and C's id, as far as it differs from P's;
                            else C is later than P: P's timestamp + 1
    above C, not above Q:   C's id < Q's id: Q's timestamp and Q's id, as far as it differs from C's;
                            else C is earlier than Q: Q's timestamp

Records of the server between P and Q have timestamps, and ordinary bounds. The lower one of the lower bounds and the
higher one of the upper bounds enclose both kinds. A list that cannot be in order is answered whole.

A *slot* is a place between two neighbours that both have, or at the end of a range: those with ids of one side in them
are listed. Cost: numpy operations over all lists of a message.

What the two wires have in common, as far as a session is concerned: the rest of it is theirs.

A message is a head (v1: the version; xor: nothing) and ranges. Wires differ in the fingerprint, in the modes that one
side may send the other, and in how a server answers a list of ids.

What a session may cost, whatever the peer sends: rounds, bytes and ids that it says we lack.

An honest session has few rounds: the logarithm of the records, and what frame limits force. Of two forced rounds one
after the other, what did not fit into the first is in the second: together they carry a frame in one direction. So one
more round is allowed for every quarter of the smallest frame that passed (v1: 1,024 bytes, xor: 256), and bytes have a
limit of their own. Time is the caller's to limit; an engine has no clock.

The wire that is spoken today, version 1: every message begins with the byte 0x61; ids have 32 bytes.

    Message      := 0x61 <Range>*
    Range        := <upper bound> <mode: varint> <payload>
    Skip         := mode 0
    Fingerprint  := mode 1, 16 bytes: SHA-256(sum of the ids modulo 2^256, little-endian; varint of their count)
    IdList       := mode 2, <count: varint> <id>*

Versions are 0x60 to 0x6f. A server that is spoken to in another one answers with its own, alone, and the client decides
whether it can speak that; a client that gets such an answer has no session.

A server answers a list with its own ids in that range; ``sparse`` says which of them it can leave out.

The wire of the source document: no version, ids of 8 to 32 bytes, fingerprints that are exclusive ors.

    Message      := <Range>*
    Range        := <upper bound> <mode: varint> <payload>
    Skip         := mode 0
    Fingerprint  := mode 1, the exclusive or of the ids
    IdList       := mode 2, <count: varint> <id>*
    Response     := mode 3, <count: varint> <id>*, <size: varint> <bits>

A server answers a list with a Response: the ids that only the server has, and a bit for each listed id, from the lowest
of the first byte on, that says whether the server lacks it. Bytes behind the last set bit are left out.

For trusted peers only. Exclusive or is linear: among 264 records of his choice an attacker finds some whose exclusive
or is whatever he likes, in milliseconds, and so hides a difference behind an equal fingerprint. v1 does not have this
flaw.

The published implementation counts a record that equals a bound as below it, against its own text. That matters where
ids differ in their last byte alone: it has such a record on one side of the bound and we on the other, and it is named
in both directions, as one that it lacks and as one that we do. Both have it then, so a session takes both back; that is
why it tells what it found only with its last message. Of such ids it may also name one in a single direction, or miss
one: ids should be hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from onefold.errors import Misuse
from onefold.reconcile import items as varint
from onefold.reconcile.items import (
    BIG,
    FEW,
    HASHED_SIZE,
    ID_SIZES,
    INFINITY,
    Bounds,
    Flags,
    Ints,
    Items,
    Limbs,
    Rows,
    SessionLimit,
    Stamps,
    Violation,
    begun,
    between,
    blobs,
    firsts_differ,
    flagged,
    hashed,
    origin,
    padded,
    spans,
    spans_by,
    texts,
    width_of,
    windows,
)


class Mode:
    """What a range says. Plain numbers: numpy is slow to compare a column with a member of an enumeration."""

    SKIP: Final = 0
    FINGERPRINT: Final = 1
    ID_LIST: Final = 2
    RESPONSE: Final = 3


@dataclass(frozen=True)
class Ranges:
    """Ascending, not overlapping ranges, with our ranks; ``payloads`` hold what a Response says."""

    lower: Bounds
    upper: Bounds
    modes: Rows
    first: Ints
    last: Ints
    payloads: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.modes)

    def sizes(self) -> Ints:
        """How many records of ours lie in each."""
        return self.last - self.first

    def take(self, which: Ints | Flags | slice) -> Ranges:
        """Some of them, in that order."""
        payloads: Sequence[bytes] = ()
        if self.payloads:
            numbers = np.arange(len(self))[which].tolist()
            payloads = [self.payloads[number] for number in numbers]
        return Ranges(
            self.lower.take(which),
            self.upper.take(which),
            self.modes[which],
            self.first[which],
            self.last[which],
            payloads,
        )

    def head(self, count: int) -> Ranges:
        """The first few. Cost: none, the columns are shared."""
        return self.take(slice(0, count))

    def tail(self, start: int) -> Ranges:
        """All but the first few. Cost: none, the columns are shared."""
        return self.take(slice(start, None))

    def shortened(self, items: Items, count: int) -> Ranges:
        """The same, the last of them cut behind its first few records."""
        end = self.first[-1:] + count
        upper = Bounds.join([self.upper.take(slice(0, -1)), _separators(items, end)])
        return replace(self, upper=upper, last=np.concatenate((self.last[:-1], end)))

    @staticmethod
    def join(parts: Sequence[Ranges]) -> Ranges:
        """All of them, one part after another."""
        payloads: list[bytes] = []
        if any(part.payloads for part in parts):
            for part in parts:
                payloads += part.payloads or [b""] * len(part)
        return Ranges(
            Bounds.join([part.lower for part in parts]),
            Bounds.join([part.upper for part in parts]),
            np.concatenate([part.modes for part in parts]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.last for part in parts]),
            payloads,
        )


def no_ranges(id_size: int) -> Ranges:
    """None at all."""
    none, nowhere = np.zeros(0, dtype=np.int64), Bounds.one(0, b"", id_size).take(slice(0, 0))
    return Ranges(nowhere, nowhere, none.astype(np.uint8), none, none)


def universe(items: Items) -> Ranges:
    """One range with everything in it."""
    lower, upper = Bounds.one(0, b"", items.id_size), Bounds.one(INFINITY, b"", items.id_size)
    mode = np.array([Mode.FINGERPRINT], dtype=np.uint8)
    return Ranges(lower, upper, mode, np.array([0]), np.array([len(items)]))


def listed(ranges: Ranges) -> Ranges:
    """The same ranges, to be listed."""
    return replace(ranges, modes=np.full(len(ranges), Mode.ID_LIST, dtype=np.uint8))


def split(items: Items, ranges: Ranges, pieces: int, list_below: int) -> tuple[Ranges, Ints]:
    """Each range cut into pieces, or listed; and of each result, which range it came from.

    The first pieces get the records that are left over, as the published implementations do. Where the set moves its
    cuts the pieces are of other sizes, and may be fewer, but at least two.
    """
    if not len(ranges):
        return ranges, ranges.first
    large = ranges.sizes() >= list_below
    cuts, owner = _cuts(items, ranges, flagged(large), pieces)
    source = np.arange(len(ranges)).repeat(1 + np.bincount(owner, minlength=len(ranges)))
    begun = np.arange(len(cuts)) + owner + 1  # the pieces that begin with a cut: each range has one that does not
    lower, upper, separators = ranges.lower.take(source), ranges.upper.take(source), _separators(items, cuts)
    first, last = ranges.first[source], ranges.last[source]
    lower.put(begun, separators)
    upper.put(begun - 1, separators)
    first[begun] = last[begun - 1] = cuts
    modes = np.where(large, np.uint8(Mode.FINGERPRINT), np.uint8(Mode.ID_LIST))[source]
    return Ranges(lower, upper, modes, first, last), source


def _cuts(items: Items, ranges: Ranges, which: Ints, pieces: int) -> tuple[Ints, Ints]:
    """The ranks at which these ranges are cut into pieces of equal size, or near them; and which range each cuts."""
    each, left = np.divmod(ranges.sizes()[which, None], pieces)
    number = np.arange(1, pieces)
    even = ranges.first[which, None] + number * each + np.minimum(number, left)
    owner = which.repeat(pieces - 1)
    cuts = items.cuts(even.ravel(), ranges.first[owner], ranges.last[owner])
    again = cuts[1:] == cuts[:-1]  # a cut lies inside its range, so those of two ranges never coincide
    if not again.any():
        return cuts, owner
    once = np.append(True, ~again)
    return cuts[once], owner[once]


def _separators(items: Items, ranks: Ints) -> Bounds:
    """The shortest bounds between the records at these ranks and those before them, by one look at the set."""
    stamps, ids = items.rows(np.concatenate((ranks - 1, ranks)))
    half = len(ranks)
    return between((stamps[:half], ids[:half]), (stamps[half:], ids[half:]))


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
    buffer: Rows
    """The message, and zeros behind it."""
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
        return np.asarray(self.buffer[places])

    def counts(self, which: Ints) -> Ints:
        """How many ids each of these ranges lists."""
        return self._counts(which)[0]

    def _counts(self, which: Ints) -> tuple[Ints, Ints]:
        """How many ids each of these ranges lists, and where the first stands."""
        bodies = self.bodies[which]
        digits = varint.lengths(self.buffer, bodies)
        return varint.values(self.buffer, bodies, digits).astype(np.int64), bodies + digits

    def id_lists(self, which: Ints) -> tuple[Rows, Ints, Ints]:
        """The ids that these ranges list, one after another, how many each lists, and where each list ends."""
        size = self.layout.id_size
        counts, starts = self._counts(which)
        rows = windows(self.buffer, size)[spans_by(starts, counts, size)].view(np.uint8).reshape(-1, size)
        return padded(rows, width_of(size)), counts, starts + counts * size


def read_ranges(message: bytes, at: int, layout: Layout) -> Incoming:
    """The ranges of a message from this byte on."""
    found, stop = _walk(message, at, layout)
    if stop is not None:
        # The true fault may be a bound before it. Many are not all looked at again: the last one, where the walk ended.
        _read_few(message, found if len(found) <= FEW else found[-1:], layout)
        raise stop
    buffer = np.frombuffer(message + bytes(layout.id_size + 300), dtype=np.uint8)  # so that no look ends outside
    starts = np.array(found, dtype=np.int64)
    if len(found) <= FEW:
        upper, bodies = _read_few(message, found, layout)
    else:
        upper, bodies = _read_many(buffer, starts, layout)
    lower, modes = _lower(upper, layout), buffer[bodies - 1]
    if len(empty := flagged(lower.equal(upper))):
        _check_empty(buffer, starts[empty], modes[empty], bodies[empty])
        kept = np.ones(len(starts), dtype=np.bool_)
        kept[empty] = False
        starts, lower, upper, modes, bodies = (
            starts[kept],
            lower.take(kept),
            upper.take(kept),
            modes[kept],
            bodies[kept],
        )
    return Incoming(message, buffer, layout, starts, lower, upper, modes, bodies)


def _read_few(message: bytes, starts: list[int], layout: Layout) -> tuple[Bounds, Ints]:
    """The upper bounds of ranges, one by one, and where what they say begins; or the first fault in them."""
    before = (0, b"")
    stamps, prefixes, bodies = [], [], []
    for start in starts:
        number, head = varint.read(message, start)
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
    """The same, all at once."""
    digits = varint.lengths(buffer, starts)
    heads = starts + digits
    lengths = buffer[heads].astype(np.int64)
    faults = [(starts[varint.faulty(buffer, starts, digits)], "a timestamp that is no minimal number below 2^64")]
    faults.append((heads[lengths > layout.id_size], f"a prefix longer than an id, which has {layout.id_size} bytes"))
    lengths = np.minimum(lengths, layout.id_size)
    timestamps, over = _timestamps(varint.values(buffer, starts, digits))
    faults.append((starts[over], "a timestamp of 2^64 - 1 or more"))
    upper = Bounds(timestamps, _prefixes(buffer, heads + 1, lengths, width_of(layout.id_size)), lengths)
    faults.append((starts[upper.below(_lower(upper, layout))], "a bound that is below the one before it"))
    first = [(int(places[0]), text) for places, text in faults if len(places)]
    if first:
        offset, text = min(first)
        raise Violation(text, offset)
    return upper, heads + lengths + 2


def _check_empty(buffer: Rows, starts: Ints, modes: Rows, bodies: Ints) -> None:
    """Violation if a range in which nothing can lie lists ids, or has bits for some."""
    told = (modes >= Mode.ID_LIST) & (buffer[bodies] > 0) | (modes == Mode.RESPONSE) & (buffer[bodies + 1] > 0)
    if told.any():
        raise Violation("ids in a range that ends where it begins", int(starts[told][0]))


def _lower(upper: Bounds, layout: Layout) -> Bounds:
    """Where ranges begin that end at these bounds."""
    return Bounds.join([origin(layout.id_size), upper.take(slice(0, -1))]).take(slice(0, len(upper)))


def _walk(message: bytes, at: int, layout: Layout) -> tuple[list[int], Violation | None]:
    """Where the ranges start, as far as they can be followed, and what ended the walk before the message's end."""
    size, fingerprint_size, end, place = layout.id_size, layout.fingerprint_size, len(message), at
    responses = Mode.RESPONSE in layout.modes
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
            elif mode == 2:
                if (count := message[place]) > 127:
                    count, place = varint.read(message, place)
                    place += count * size
                else:
                    place += 1 + count * size
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


def _timestamps(numbers: Stamps) -> tuple[Stamps, Ints]:
    """Timestamps out of differences (0 is infinity, else 1 + difference), and the places where they run over."""
    infinite = numbers == 0
    steps = numbers - np.uint64(1)
    steps[infinite] = 0
    stamps = np.cumsum(steps, dtype=np.uint64)
    over = flagged((stamps < steps) | (stamps == np.uint64(INFINITY)))
    stamps[infinite] = np.uint64(INFINITY)
    return stamps, over


def _prefixes(buffer: Rows, starts: Ints, lengths: Ints, width: int) -> Rows:
    """The prefixes at these places, filled up with zeros."""
    ids = np.zeros((len(starts), width), dtype=np.uint8)
    long = flagged(lengths)
    places = np.arange(int(lengths.max(initial=0)))
    found = buffer[starts[long, None] + places]
    found[places >= lengths[long, None]] = 0
    ids[long, : len(places)] = found
    return ids


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


NOBODY: Final = -1
BEGINNING_BITS_MIN: Final = 16


@dataclass(frozen=True)
class Listed:
    """The ids of many ranges, one range after another: how many each has."""

    ids: Rows
    counts: Ints

    @cached_property
    def ranges(self) -> Ints:
        """For each id the number of its range."""
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def starts(self) -> Ints:
        """Where each range begins."""
        return self.counts.cumsum() - self.counts


@dataclass(frozen=True)
class Matched:
    """For each of our ids the place of its equal among theirs, or NOBODY; and the other way round."""

    ours: Ints
    theirs: Ints
    twice: Ints
    """Ids that they list twice in one range: the places of the second ones."""


def match(ours: Listed, theirs: Listed) -> Matched:
    """Pair the ids of both sides that are equal and in the same range."""
    partner_of_ours = np.full(len(ours.ids), NOBODY, dtype=np.int64)
    partner_of_theirs = np.full(len(theirs.ids), NOBODY, dtype=np.int64)
    matched = Matched(partner_of_ours, partner_of_theirs, np.zeros(0, dtype=np.int64))
    if not len(theirs.ids):
        return matched
    range_bits = max(1, (len(ours.counts) - 1).bit_length())
    place_bits = max(len(ours.ids), len(theirs.ids)).bit_length()
    if 64 - range_bits - place_bits - 1 < BEGINNING_BITS_MIN:
        return _by_dictionary(ours, theirs, matched, np.arange(len(ours.counts)))
    ours_at, theirs_at, crowded = _pairs(ours, theirs, range_bits, place_bits)
    equal = _alike(ours.ids, ours_at, theirs.ids, theirs_at)
    if not equal.all():
        ours_at, theirs_at = ours_at[equal], theirs_at[equal]
    partner_of_ours[ours_at] = theirs_at
    partner_of_theirs[theirs_at] = ours_at
    return _by_dictionary(ours, theirs, matched, crowded) if len(crowded) else matched


def _pairs(ours: Listed, theirs: Listed, range_bits: int, place_bits: int) -> tuple[Ints, Ints, Ints]:
    """Places of ours and of theirs that look alike, and the ranges where more than one of a side or of both do."""
    keys = np.concatenate(
        [_keys(ours, 0, range_bits, place_bits), _keys(theirs, 1 << place_bits, range_bits, place_bits)]
    )
    keys.sort()
    alike = (keys[1:] ^ keys[:-1]) >> np.uint64(place_bits + 1) == 0
    side = (keys >> np.uint64(place_bits)).astype(np.uint8) & 1
    pair = alike & (side[:-1] < side[1:])
    odd = alike & ~pair
    odd[1:] |= alike[1:] & alike[:-1]
    crowded = np.unique(keys[:-1][odd] >> np.uint64(64 - range_bits)).astype(np.int64)
    left, place = flagged(pair), np.uint64((1 << place_bits) - 1)
    return (keys[left] & place).astype(np.int64), (keys[left + 1] & place).astype(np.int64), crowded


def _keys(listed: Listed, side: int, range_bits: int, place_bits: int) -> Limbs:
    """Range, beginning of the id, side and place, in one number each."""
    below = np.uint64(place_bits + 1)
    beginning = listed.ids.view(BIG)[:, 0].astype(np.uint64) >> np.uint64(range_bits) >> below << below
    key = listed.ranges.astype(np.uint64) << np.uint64(64 - range_bits) | beginning
    return np.asarray(key | np.arange(side, side + len(key), dtype=np.uint64))


def _alike(left: Rows, left_at: Ints, right: Rows, right_at: Ints) -> Flags:
    """Which ids at these places are equal in every byte."""
    these, those = left.view(np.uint64), right.view(np.uint64)
    equal = these.take(left_at, axis=0) == those.take(right_at, axis=0)
    return np.asarray(np.logical_and.reduce([equal[:, k] for k in range(equal.shape[1])]))


def _by_dictionary(ours: Listed, theirs: Listed, matched: Matched, ranges: Ints) -> Matched:
    """Match these ranges id by id, over whatever was found of them before."""
    twice: list[int] = []
    for number in ranges.tolist():
        start, end = _span(ours, number)
        matched.ours[start:end] = NOBODY
        listed: dict[bytes, int] = {}
        for place in range(*_span(theirs, number)):
            matched.theirs[place] = NOBODY
            if listed.setdefault(theirs.ids[place].tobytes(), place) != place:
                twice.append(place)
        beginnings = theirs.ids[slice(*_span(theirs, number)), :8].view(np.uint64)[:, 0]
        likely = np.isin(ours.ids[start:end, :8].view(np.uint64)[:, 0], beginnings)
        for mine in (flagged(likely) + start).tolist():
            partner = listed.get(ours.ids[mine].tobytes(), NOBODY)
            matched.ours[mine] = partner
            if partner != NOBODY:
                matched.theirs[partner] = mine
    return Matched(matched.ours, matched.theirs, np.array(twice, dtype=np.int64))


def _span(listed: Listed, number: int) -> tuple[int, int]:
    start = int(listed.starts[number])
    return start, start + int(listed.counts[number])


@dataclass(frozen=True)
class Answered:
    """The lists of a message: our records in their ranges, their ids, and which of them are the same."""

    ranges: Ranges
    stamps: Stamps
    ours: Listed
    theirs: Listed
    matched: Matched


def full_reply(answered: Answered) -> tuple[Ranges, Ints]:
    """All our ids in each range, as published; and of each result, which range it answers."""
    return listed(answered.ranges), np.arange(len(answered.ranges))


def sparse_reply(answered: Answered) -> tuple[Ranges, Ints]:
    """Our ids where the two sides differ; and of each result, which range it answers."""
    slots = _Slots.of(answered)
    lower, upper = slots.lower(), slots.upper()
    wrong = np.zeros(len(answered.ranges), dtype=np.bool_)
    wrong[answered.ours.ranges[slots.common[1:]][np.diff(answered.matched.ours[slots.common]) < 0]] = True
    wrong[slots.number[~lower.below(upper)]] = True
    replies, source = listed(Ranges(lower, upper, np.zeros(len(slots.number), np.uint8), *slots.ours)), slots.number
    if wrong.any():
        kept, whole = flagged(~wrong[source]), flagged(wrong)
        replies = Ranges.join([replies.take(kept), listed(answered.ranges.take(whole))])
        source = np.concatenate((source[kept], whole))
        order = source.argsort(kind="stable")
        replies, source = replies.take(order), source[order]
    return replies, source


@dataclass(frozen=True)
class _Slots:
    """The slots that hold ids of one side only."""

    answered: Answered
    common: Ints
    """Our places of the ids that both have."""
    number: Ints
    """The range of each slot."""
    before: Ints
    """How many of the common ids lie before each slot: the neighbours are this one less 1, and this one."""
    bounded_below: Flags
    bounded_above: Flags
    theirs_first: Ints
    """Their first id in the slot, a place; NOBODY if there is none."""
    theirs_last: Ints

    @staticmethod
    def of(answered: Answered) -> _Slots:
        matched, count = answered.matched, len(answered.ranges)
        common = flagged(matched.ours != NOBODY)
        ours, theirs = flagged(matched.ours == NOBODY), flagged(matched.theirs == NOBODY)
        our_slots = _slots_of(matched.ours, ours, answered.ours)
        their_slots = _slots_of(matched.theirs, theirs, answered.theirs)
        # Slot s of range r has s - r common ids before it: every range has one slot more than common ids.
        used = np.zeros(len(common) + count, dtype=np.bool_)
        used[our_slots] = used[their_slots] = True
        slots = flagged(used)
        commons = np.bincount(answered.ours.ranges[common], minlength=count)
        slot_ends = np.cumsum(commons + 1)
        number = slot_ends.searchsorted(slots, side="right")
        before = slots - number
        common_ends = commons.cumsum()
        first, last = (np.full(len(slots), NOBODY, dtype=np.int64) for _ in range(2))
        where = slots.searchsorted(their_slots)
        last[where] = theirs  # of several assignments to one place the last one stays
        first[where[::-1]] = theirs[::-1]
        starts = common_ends - commons
        return _Slots(
            answered, common, number, before, before > starts[number], before < common_ends[number], first, last
        )

    @cached_property
    def ours(self) -> tuple[Ints, Ints]:
        """The ranks of our records in each slot."""
        ranges, starts = self.answered.ranges, self.answered.ours.starts
        first, last = ranges.first[self.number].copy(), ranges.last[self.number].copy()
        below, above = self.bounded_below, self.bounded_above
        shift = ranges.first[self.number] - starts[self.number]
        first[below] = self.common[self.before[below] - 1] + 1 + shift[below]
        last[above] = self.common[self.before[above]] + shift[above]
        return first, last

    def lower(self) -> Bounds:
        """Above the neighbour below, not above anything in the slot; or where the range begins."""
        places = flagged(self.bounded_below)
        neighbour = self.common[self.before[places] - 1]
        stamps, ids = self.answered.stamps, self.answered.ours.ids
        first, last = self.ours
        bounds, known = self._empty(places), last[places] > first[places]
        if known.any():
            mine = between(_rows(stamps, ids, neighbour[known]), _rows(stamps, ids, neighbour[known] + 1))
            bounds.put(known, mine)
        listed = self.theirs_first[places] != NOBODY
        theirs = _above(_rows(stamps, ids, neighbour[listed]), self._their_ids(self.theirs_first[places][listed]))
        bounds.put(listed, _extreme(bounds.take(listed), theirs, known[listed], lowest=True))
        return self._completed(self.answered.ranges.lower, places, bounds)

    def upper(self) -> Bounds:
        """Above all in the slot, not above the neighbour; or where the range ends."""
        places = flagged(self.bounded_above)
        neighbour = self.common[self.before[places]]
        stamps, ids = self.answered.stamps, self.answered.ours.ids
        first, last = self.ours
        bounds, known = self._empty(places), last[places] > first[places]
        if known.any():
            mine = between(_rows(stamps, ids, neighbour[known] - 1), _rows(stamps, ids, neighbour[known]))
            bounds.put(known, mine)
        listed = self.theirs_last[places] != NOBODY
        theirs = _not_above(self._their_ids(self.theirs_last[places][listed]), _rows(stamps, ids, neighbour[listed]))
        bounds.put(listed, _extreme(bounds.take(listed), theirs, known[listed], lowest=False))
        return self._completed(self.answered.ranges.upper, places, bounds)

    def _their_ids(self, places: Ints) -> Rows:
        return self.answered.theirs.ids.take(places, axis=0)

    def _empty(self, places: Ints) -> Bounds:
        width = self.answered.ours.ids.shape[1]
        return Bounds(
            np.zeros(len(places), dtype=np.uint64),
            np.zeros((len(places), width), dtype=np.uint8),
            np.zeros(len(places), dtype=np.int64),
        )

    def _completed(self, ends: Bounds, places: Ints, bounds: Bounds) -> Bounds:
        """These bounds in their places, and the ends of the ranges in the others."""
        whole = ends.take(self.number)
        whole.put(places, bounds)
        return whole


def _slots_of(partners: Ints, alone: Ints, listed: Listed) -> Ints:
    """The slots of the ids that one side has alone."""
    commons = np.cumsum(partners != NOBODY)
    return np.asarray(commons[alone] + listed.ranges[alone])


def _rows(stamps: Stamps, ids: Rows, places: Ints) -> tuple[Stamps, Rows]:
    return stamps[places], ids.take(places, axis=0)


def _extreme(mine: Bounds, theirs: Bounds, known: Flags, lowest: bool) -> Bounds:
    """Of two bounds each the lowest or the highest; theirs where there is no other."""
    better = mine.below(theirs) if lowest else theirs.below(mine)
    return Bounds.choose(known & better, mine, theirs)


def _above(neighbour: tuple[Stamps, Rows], ids: Rows) -> Bounds:
    """Above a neighbour, not above a record behind it of which only the id is known."""
    larger = texts(ids) > texts(neighbour[1])
    lengths = np.where(larger, firsts_differ(neighbour[1], ids) + 1, 0)
    return begun(neighbour[0] + ~larger, ids, lengths)


def _not_above(ids: Rows, neighbour: tuple[Stamps, Rows]) -> Bounds:
    """Above a record of which only the id is known, not above a neighbour behind it."""
    smaller = texts(ids) < texts(neighbour[1])
    lengths = np.where(smaller, firsts_differ(ids, neighbour[1]) + 1, 0)
    return begun(neighbour[0], neighbour[1], lengths)


@dataclass(frozen=True)
class Replying:
    """How lists are answered: with what differs only, or with all; in how many bytes at most (0: no limit)."""

    sparse: bool
    room: int
    split: int
    list_below: int


class Wire(Protocol):
    """One version of the protocol."""

    @property
    def head(self) -> bytes:
        """What every message begins with."""
        ...

    @property
    def frame_size_min(self) -> int:
        """The smallest frame limit that published implementations take."""
        ...

    @property
    def both_ways(self) -> bool:
        """Whether a peer may name an id in both directions, though both sides have it."""
        ...

    def check(self, id_size: int) -> None:
        """Misuse, if this wire has no ids of that size."""
        ...

    def fingerprint_size(self, id_size: int) -> int:
        """How many bytes a fingerprint has."""
        ...

    def fingerprints(self, items: Items, lower: Ints, upper: Ints) -> Rows:
        """One for each of these ranges of ranks."""
        ...

    def body(self, message: bytes, initiator: bool) -> int | None:
        """Where the ranges of a message begin; None if it is of another version, and to be answered with ours."""
        ...

    def modes(self, initiator: bool) -> frozenset[int]:
        """What a range may say to this side."""
        ...

    def replies(self, items: Items, answered: Answered, how: Replying) -> tuple[Ranges, Ints]:
        """What a server answers to lists, and of each result which list it answers."""
        ...


FRAME_SIZE_MIN: Final = 4_096  # as the published v1 implementations have it
FRAME_SIZE_MIN_XOR: Final = 1_024  # as the published implementation of that wire has it


@dataclass(frozen=True)
class Limits:
    """The limits of one session."""

    rounds_max: int = 64  # a billion records need 8; the rest is for peers that split otherwise
    bytes_max: int = 1 << 30  # both directions; a million records that all differ take 64 MB
    needs_max: int = 10_000_000  # a list of 32-byte ids of that length is 320 MB

    def __post_init__(self) -> None:
        for name in ("rounds_max", "bytes_max", "needs_max"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name} is {getattr(self, name)}, must be at least 1", **{name: getattr(self, name)})


@dataclass(frozen=True)
class Spent:
    """What a session has cost so far."""

    rounds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    needs: int = 0

    def received(self, size: int, limits: Limits, frame_size_min: int = FRAME_SIZE_MIN) -> Spent:
        """With one more message from the peer, whose frames are no smaller; SessionLimit if that is too much."""
        passed = self.bytes_in + size + self.bytes_out
        if passed > limits.bytes_max:
            raise SessionLimit(f"the session is over: {passed} bytes passed, bytes_max is {limits.bytes_max}")
        forced_bytes = frame_size_min // 4
        rounds_max = limits.rounds_max + passed // forced_bytes
        if self.rounds >= rounds_max:
            raise SessionLimit(
                f"the session is over: {self.rounds} rounds, rounds_max is {limits.rounds_max} (and one more for every "
                f"{forced_bytes} bytes)",
                rounds=self.rounds,
            )
        return Spent(self.rounds + 1, self.bytes_in + size, self.bytes_out, self.needs)

    def found(self, needs: int, limits: Limits) -> Spent:
        """With so many more ids that we lack; SessionLimit if these are too many."""
        if self.needs + needs > limits.needs_max:
            raise SessionLimit(
                f"the session is over: the peer told {self.needs + needs} ids, needs_max is {limits.needs_max}",
                needs=self.needs + needs,
            )
        return Spent(self.rounds, self.bytes_in, self.bytes_out, self.needs + needs)

    def sent(self, size: int) -> Spent:
        """With one more message to the peer."""
        return Spent(self.rounds, self.bytes_in, self.bytes_out + size, self.needs)


VERSION: Final = 0x61
VERSIONS: Final = range(0x60, 0x70)
ID_SIZE: Final = 32


class WireV1:
    """Version 1 of the protocol."""

    head: Final = bytes([VERSION])
    frame_size_min: Final = FRAME_SIZE_MIN
    both_ways: Final = False

    def check(self, id_size: int) -> None:
        """Misuse, if ids do not have 32 bytes."""
        if id_size != ID_SIZE:
            raise Misuse(f"ids have {id_size} bytes; those of wire v1 have {ID_SIZE}", id_size=id_size)

    def fingerprint_size(self, id_size: int) -> int:
        """How many bytes a fingerprint has."""
        return HASHED_SIZE

    def fingerprints(self, items: Items, lower: Ints, upper: Ints) -> Rows:
        """One for each of these ranges of ranks. Cost: O(1) each, whatever the range."""
        return hashed(items.sums(lower, upper), upper - lower)

    def body(self, message: bytes, initiator: bool) -> int | None:
        """Where the ranges begin; None if a server is to answer with its version."""
        if not message:
            raise Violation("an empty message; it begins with its version", 0)
        version = message[0]
        if version not in VERSIONS:
            raise Violation(f"0x{version:02x} is no version of the protocol", 0, version=version)
        if version != VERSION:
            if initiator:
                raise Violation(f"the peer speaks version 0x{version:02x}, not 0x{VERSION:02x}", 0, version=version)
            return None
        return 1

    def modes(self, initiator: bool) -> frozenset[int]:
        """What a range may say."""
        return frozenset({Mode.SKIP, Mode.FINGERPRINT, Mode.ID_LIST})

    def replies(self, items: Items, answered: Answered, how: Replying) -> tuple[Ranges, Ints]:
        """Our ids in each listed range, or those of them around which something differs."""
        return sparse_reply(answered) if how.sparse else full_reply(answered)


class WireXor:
    """The unversioned protocol of the source document."""

    head: Final = b""
    frame_size_min: Final = FRAME_SIZE_MIN_XOR
    both_ways: Final = True

    def check(self, id_size: int) -> None:
        """Misuse, if ids have a size that this wire does not know."""
        if id_size not in ID_SIZES:
            raise Misuse(f"ids have {id_size} bytes; those of wire xor have 8 to 32", id_size=id_size)

    def fingerprint_size(self, id_size: int) -> int:
        """How many bytes a fingerprint has: those of an id."""
        return id_size

    def fingerprints(self, items: Items, lower: Ints, upper: Ints) -> Rows:
        """One for each of these ranges of ranks. Cost: O(1) each, whatever the range."""
        return items.xors(lower, upper)[:, : items.id_size]

    def body(self, message: bytes, initiator: bool) -> int | None:
        """Where the ranges begin: at once."""
        return 0

    def modes(self, initiator: bool) -> frozenset[int]:
        """What a range may say; a Response comes from a server."""
        both = {Mode.SKIP, Mode.FINGERPRINT, Mode.ID_LIST}
        return frozenset(both | {Mode.RESPONSE} if initiator else both)

    def replies(self, items: Items, answered: Answered, how: Replying) -> tuple[Ranges, Ints]:
        """A Response to each list. One that is too long for a frame becomes a list of ours, or is split."""
        responses = Responses.to(answered, items.id_size)
        ranges = answered.ranges
        numbers = np.arange(len(ranges))
        modes = np.full(len(ranges), Mode.RESPONSE, dtype=np.uint8)
        told = Ranges(ranges.lower, ranges.upper, modes, ranges.first, ranges.last, responses.payloads)
        if how.sparse:
            numbers = flagged(responses.tells)
            told = told.take(numbers)
        sizes = np.array([len(payload) for payload in told.payloads], dtype=np.int64)
        long = sizes + RANGE_MAX > how.room if how.room else np.zeros(len(sizes), dtype=np.bool_)
        if not long.any():
            return told, numbers
        pieces, source = split(items, ranges.take(numbers[long]), how.split, how.list_below)
        told, numbers = Ranges.join([told.take(~long), pieces]), np.concatenate((numbers[~long], numbers[long][source]))
        order = numbers.argsort(kind="stable")
        return told.take(order), numbers[order]


@dataclass(frozen=True)
class Responses:
    """What a server says to lists, and whether it says anything at all."""

    payloads: list[bytes]
    tells: Ints

    @staticmethod
    def to(answered: Answered, id_size: int) -> Responses:
        """Of each list what only the server has, and which of the listed ids it lacks."""
        ours = flagged(answered.matched.ours == NOBODY)
        theirs = flagged(answered.matched.theirs == NOBODY)
        count = len(answered.ranges)
        haves = np.bincount(answered.ours.ranges[ours], minlength=count)
        ids = answered.ours.ids[ours, :id_size].tobytes()
        number = answered.theirs.ranges[theirs]
        place = theirs - answered.theirs.starts[number]
        sizes = np.zeros(count, dtype=np.int64)
        sizes[number] = place // 8 + 1  # of several assignments to one place the last one stays
        starts = sizes.cumsum() - sizes
        bits = np.zeros(int(sizes.sum()), dtype=np.uint8)
        np.bitwise_or.at(bits, starts[number] + place // 8, np.left_shift(1, place % 8).astype(np.uint8))
        field = bits.tobytes()
        payloads, at, bit = [], 0, 0
        for have, size in zip(haves.tolist(), sizes.tolist(), strict=True):
            end = at + have * id_size
            payloads.append(b"".join((varint.write(have), ids[at:end], varint.write(size), field[bit : bit + size])))
            at, bit = end, bit + size
        return Responses(payloads, haves + sizes)
