"""The records of one side: a timestamp and an id each. Any order will do for a timestamp; an id is a hash, mostly.

``ItemSet`` collects them, and ``seal`` sorts them. Two records with one id are refused: an exclusive or would cancel
them, and no peer could tell which one is meant. So is the timestamp 2^64 - 1, which means "above everything". After
sealing, records can still come and go, at a small cost each (see `index`).

``Items`` is the door that a session knocks at. Whatever can find bounds, add up ranges and list records can stand
behind a session: an ``ItemSet``, a table in a database, a table in Spark. All its verbs take many at once, because a
message has many ranges. Two of them are for sets that are far away, so that a message costs few reads: ``expect`` says
what will be asked about, and ``cuts`` lets a set choose where ranges are cut.

The shapes of numpy columns that this engine works on, and a few moves over many rows at once.

An id is a row of bytes, filled up with zeros to whole *limbs* of 8 bytes. Read as big-endian numbers the limbs of two
rows compare as the ids do; read as little-endian numbers they are the digits of the sum that v1 fingerprints. Indices
are positions in a sorted set; a range of items is a pair of them, lower included and upper excluded.

Where ranges begin and end: a timestamp and the beginning of an id, as short as it can be.

Two sides have different records, so a range cannot be named by positions. It is named by *bounds*: a lower one, which
is part of it, and an upper one, which is not. A bound that separates two neighbours needs the timestamp of the second
alone if the timestamps differ, else one byte more than what their ids share at the beginning; the rest of the id is
zeros. The timestamp 2^64 - 1 is reserved: with it a bound lies above every record.

Bounds come as columns, many at once. Cost: a few numpy operations, whatever their number.

What can be wrong with a session: the peer broke the protocol, or a limit was reached.

Both are bad input: foreign bytes are not what they should be. A session that raises one of them is as it was before
the message, so the caller may close it, or (rarely) wait for a better message. Neither ever comes from an honest peer
within the limits.

Numbers of variable length: base 128, most significant digit first, the high bit set on all digits but the last.

Many at once are a matrix of digits, right-aligned, and a mask of the digits that count: ``matrix[mask]`` is the bytes
of all of them in order. Foreign ones have at most 10 digits, no leading zero digit and a value below 2^64; anything
else is a ``Violation`` that names the byte. Cost: one pass per digit, over all numbers.

Fingerprints: one short value for all the ids of a range, from prefix sums, whatever the size of the range.

``xor`` is the bitwise exclusive or of the ids. v1 adds the ids as 256-bit little-endian numbers, modulo 2^256, and
hashes the sum with the count: the first 16 bytes of SHA-256(sum, varint of count). Both have an inverse. So with the
totals of all beginnings of a sorted set, the total of any range is one difference: total(upper) - total(lower).

A 256-bit number is four limbs of 64 bits, the lowest first. Adding up a column of limbs wraps around; a wrap shows as a
total below its predecessor, and is carried into the next limb. Cost: a few passes over the columns to build, O(1) per
range to ask; the hash is about a microsecond per range.

Records in order, as columns: timestamps ascending, ids ascending where timestamps are equal.

Nothing here changes after it was built. The totals that fingerprints are made of, and the sorted beginnings of the ids
by which a known id is found, are made when they are first asked for.

Cost: building is one sort of numbers, each a timestamp and the beginning of an id, so ties cost what distinct
timestamps cost; finding a bound is a binary search over the timestamps, and one over the ids where timestamps are
equal, for all bounds at once.

An index of records that changes cheaply: sorted columns, and a small overlay of what came and went since.

    main       the records when the index was last built, with their totals
    extra      records that came since: sorted columns of their own
    gone       places in main whose records went since

The rank of a record is its place among all that are there now. A bound's rank is its place in main, less the gone ones
below it, plus the extra ones below it; the other way round, a rank splits into a place in main and one in extra, by
binary search over the ranks of the extras and of the gone. A range's total is that of main, plus that of extra, less
that of the gone.

An index never changes: ``added`` and ``removed`` give a new one that shares main. So a session that holds one sees its
records stand still, while others come and go.

Cost: a change of k records is O(k log n + overlay); when the overlay is over ``overlay_max(n)`` (four times the root of
n), main is built anew by O(n) moves, without sorting. Amortised that is O(root of n) moves in numpy per record:
measured with a million records, a quarter of a millisecond for one at a time, microseconds each for a thousand at once.

Some of the records: those from one time to another, as a set of their own.

Cost: two bounds are found once; then every verb is that of the whole set, with ranks shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from math import isqrt
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onefold.errors import BadInput, Misuse

Stamps: TypeAlias = NDArray[np.uint64]
Rows: TypeAlias = NDArray[np.uint8]  # (n, width)
Limbs: TypeAlias = NDArray[np.uint64]  # (n, width / 8)
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

FEW: Final = 64  # ranges of a message: up to here a plain loop over them is faster than numpy


def width_of(id_size: int) -> int:
    """How many bytes a row has: whole limbs.

    >>> width_of(32), width_of(20)
    (32, 24)
    """
    return -(-id_size // 8) * 8


def padded(ids: Rows, width: int) -> Rows:
    """The same ids, zeros behind them, in one piece of memory."""
    if ids.shape[1] == width:
        return np.ascontiguousarray(ids)
    rows = np.zeros((len(ids), width), dtype=np.uint8)
    rows[:, : ids.shape[1]] = ids
    return rows


def whole(rows: Rows) -> NDArray[Any]:
    """Each row as one value: rows are then moved in one piece, which is much faster than byte by byte."""
    return rows.view(f"V{rows.shape[1]}")[:, 0]


def texts(rows: Rows) -> NDArray[Any]:
    """One comparable value per row. Trailing zeros do not count, and rows of one width are equal without them too."""
    return rows.view(f"S{rows.shape[1]}")[:, 0]


def blobs(rows: Rows) -> list[bytes]:
    """The rows as bytes, zeros included.

    >>> blobs(np.array([[1, 0], [2, 3]], dtype=np.uint8))
    [b'\\x01\\x00', b'\\x02\\x03']
    """
    values: list[bytes] = whole(rows).tolist()
    return values


def flagged(flags: NDArray[Any]) -> Ints:
    """Where flags are set, or numbers are not 0: ``np.flatnonzero`` at a fifth of its cost for a short column.

    >>> flagged(np.array([True, False, True])).tolist()
    [0, 2]
    """
    return flags.nonzero()[0]


def spans(lower: Ints, upper: Ints) -> Ints:
    """All indices of all the ranges, one after another.

    >>> spans(np.array([3, 10]), np.array([5, 11])).tolist()
    [3, 4, 10]
    """
    return spans_by(lower, upper - lower, 1)


def spans_by(starts: Ints, counts: Ints, step: int) -> Ints:
    """Where the members of many rows of things stand, if they are so many bytes apart.

    >>> spans_by(np.array([3, 100]), np.array([2, 1]), 32).tolist()
    [3, 35, 100]
    """
    before = counts.cumsum() - counts
    return np.asarray(np.arange(int(counts.sum())) * step + np.repeat(starts - before * step, counts), dtype=np.int64)


def windows(buffer: Any, size: int) -> NDArray[Any]:
    """Every run of so many bytes in a buffer, by where it begins: many can be read or written at once.

    >>> windows(b"abcde", 2)[np.array([0, 3])].tolist()
    [b'ab', b'de']
    """
    return np.ndarray((max(0, len(buffer) - size + 1),), dtype=f"V{size}", buffer=buffer, strides=(1,))


def firsts_differ(left: Rows, right: Rows) -> Ints:
    """For each pair of rows the first byte in which they differ; 0 for equal rows, which have none."""
    return np.asarray((left != right).argmax(axis=1), dtype=np.int64)


INFINITY: Final = 2**64 - 1


@dataclass(frozen=True)
class Bounds:
    """Many bounds: timestamps, ids filled up with zeros, and how many bytes of each id are written down."""

    timestamps: Stamps
    ids: Rows
    lengths: Ints

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, which: Ints | Flags | slice) -> Bounds:
        """Some of them, in that order."""
        if isinstance(which, slice):
            return Bounds(self.timestamps[which], self.ids[which], self.lengths[which])
        if which.dtype == np.bool_:
            which = flagged(which)
        return Bounds(self.timestamps[which], self.ids.take(which, axis=0), self.lengths[which])

    def below(self, other: Bounds) -> Flags:
        """Which of these bounds are below the other one in the same place."""
        below = self.timestamps < other.timestamps
        tied = flagged(self.timestamps == other.timestamps)
        below[tied] = texts(self.ids[tied]) < texts(other.ids[tied])
        return below

    def equal(self, other: Bounds) -> Flags:
        """Which of these bounds are equal to the other one in the same place."""
        return np.asarray((self.timestamps == other.timestamps) & (texts(self.ids) == texts(other.ids)))

    def put(self, places: Ints | Flags, others: Bounds) -> None:
        """Write others over some of these, which must be nobody else's."""
        self.timestamps[places], self.lengths[places] = others.timestamps, others.lengths
        whole(self.ids)[places] = whole(others.ids)

    def one_by_one(self) -> list[tuple[int, bytes, int]]:
        """Each as timestamp, id and length: for few of them plain values are faster than columns."""
        return list(zip(self.timestamps.tolist(), blobs(self.ids), self.lengths.tolist(), strict=True))

    @staticmethod
    def of(timestamps: list[int], prefixes: list[bytes], id_size: int) -> Bounds:
        """Bounds of these timestamps and beginnings of ids."""
        width = width_of(id_size)
        ids = bytearray().join(prefix.ljust(width, b"\0") for prefix in prefixes)
        rows = np.frombuffer(ids, dtype=np.uint8).reshape(-1, width)
        return Bounds(np.array(timestamps, dtype=np.uint64), rows, np.array([*map(len, prefixes)], dtype=np.int64))

    @staticmethod
    def one(timestamp: int, prefix: bytes, id_size: int) -> Bounds:
        """A single bound."""
        return Bounds.of([timestamp], [prefix], id_size)

    @staticmethod
    def join(parts: Sequence[Bounds]) -> Bounds:
        """All of them, one part after another."""
        return Bounds(
            np.concatenate([part.timestamps for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    @staticmethod
    def choose(first: Flags, these: Bounds, those: Bounds) -> Bounds:
        """These where the flag is set, and those where it is not."""
        return Bounds(
            np.where(first, these.timestamps, those.timestamps),
            np.where(first[:, None], these.ids, those.ids),
            np.where(first, these.lengths, those.lengths),
        )


@cache
def origin(id_size: int) -> Bounds:
    """The bound below everything; shared, so nobody may write into it."""
    return Bounds.one(0, b"", id_size)


def begun(timestamps: Stamps, ids: Rows, lengths: Ints) -> Bounds:
    """Bounds of these timestamps and of the first bytes of these ids."""
    rows, long = np.zeros_like(ids), flagged(lengths)
    kept = np.arange(ids.shape[1]) < lengths[long, None]
    whole(rows)[long] = whole(ids.take(long, axis=0) * kept)
    return Bounds(timestamps, rows, lengths)


def between(left: tuple[Stamps, Rows], right: tuple[Stamps, Rows]) -> Bounds:
    """The shortest bounds that separate records from their successors: above each left one, not above the right one.

    >>> stamps, ids = np.array([5, 5], dtype=np.uint64), np.frombuffer(b"aaaaaaaaaabbbbbb", dtype=np.uint8)
    >>> bounds = between((stamps[:1], ids.reshape(2, 8)[:1]), (stamps[1:], ids.reshape(2, 8)[1:]))
    >>> bounds.timestamps.tolist(), bounds.ids.tobytes(), bounds.lengths.tolist()
    ([5], b'aab\\x00\\x00\\x00\\x00\\x00', [3])
    """
    lengths = np.zeros(len(right[0]), dtype=np.int64)
    tied = flagged(left[0] == right[0])
    lengths[tied] = firsts_differ(left[1][tied], right[1][tied]) + 1
    return begun(right[0], right[1], lengths)


class Violation(BadInput):
    """The peer's message breaks the protocol; ``values["offset"]`` is the byte where.

    >>> raise Violation("unknown mode 7", 12, mode=7)
    Traceback (most recent call last):
    onefold.reconcile.items.Violation: byte 12: unknown mode 7
    """

    def __init__(self, what: str, offset: int, **values: Any) -> None:
        super().__init__(f"byte {offset}: {what}", offset=offset, **values)


class SessionLimit(BadInput):
    """The session reached one of its limits, which is named; it is over."""


DIGITS_MAX: Final = 10  # 64 bits in digits of 7


def write(number: int) -> bytes:
    """One number.

    >>> write(0).hex(), write(127).hex(), write(300).hex()
    ('00', '7f', '822c')
    """
    digits = [number & 127]
    while number := number >> 7:
        digits.append(number & 127 | 128)
    return bytes(reversed(digits))


def read(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it.

    >>> read(bytes.fromhex("822c"), 0)
    (300, 2)
    """
    value = 0
    for place in range(at, min(at + DIGITS_MAX, len(message))):
        digit = message[place]
        if digit == 128 and value == 0:
            raise Violation("a number with a leading zero digit", at)
        value = value << 7 | digit & 127
        if digit < 128:
            if value >> 64:
                raise Violation("a number of 2^64 or more", at)
            return value, place + 1
    raise Violation(f"a number that does not end within {DIGITS_MAX} bytes or before the message does", at)


def matrix(numbers: Stamps) -> tuple[Rows, Flags]:
    """The digits of many numbers, one row each, and which of them count."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    shifts = np.arange(7 * (width - 1), -1, -7, dtype=np.uint64)
    shifted = numbers[:, None] >> shifts
    digits = (shifted & np.uint64(127)).astype(np.uint8)
    digits[:, :-1] |= 128
    used = shifted > 0
    used[:, -1] = True
    return digits, used


def lengths(buffer: Rows, starts: Ints) -> Ints:
    """How many digits the numbers at these places have; DIGITS_MAX + 1 for those that do not end in time.

    Cost: the buffer must go on for DIGITS_MAX bytes behind the last start.
    """
    counts = np.ones(len(starts), dtype=np.int64)
    going = flagged(buffer[starts] > 127)
    for place in range(1, DIGITS_MAX + 1):
        if not len(going):
            break
        counts[going] += 1
        going = going[buffer[starts[going] + place] > 127]
    return counts


def values(buffer: Rows, starts: Ints, counts: Ints) -> Stamps:
    """The numbers at these places, which have that many digits."""
    numbers = np.zeros(len(starts), dtype=np.uint64)
    for place in range(int(counts.max(initial=0))):
        digit = (buffer[starts + place] & 127).astype(np.uint64)
        numbers = np.where(place < counts, numbers << np.uint64(7) | digit, numbers)
    return numbers


def faulty(buffer: Rows, starts: Ints, counts: Ints) -> Flags:
    """Which of these numbers are too long, too large or not as short as they could be."""
    first = buffer[starts]
    zero_led = (counts > 1) & (first == 128)
    too_large = (counts == DIGITS_MAX) & (first > 129)
    return np.asarray(zero_led | too_large | (counts > DIGITS_MAX), dtype=np.bool_)


HASHED_SIZE: Final = 16


def running_sums(limbs: Limbs) -> Limbs:
    """The sums of the first 0, 1, ... n rows, each a number of as many limbs."""
    totals = np.zeros((len(limbs) + 1, limbs.shape[1]), dtype=np.uint64)
    carried = np.zeros(len(limbs), dtype=np.uint64)
    for k in range(limbs.shape[1]):
        column = np.cumsum(limbs[:, k], dtype=np.uint64)
        wrapped = np.empty(len(column), dtype=np.bool_)
        wrapped[:1] = False
        np.less(column[1:], column[:-1], out=wrapped[1:])
        column += carried
        wraps = np.cumsum(wrapped, dtype=np.uint64)
        wraps += column < carried
        totals[1:, k] = column
        carried = wraps
    return totals


def running_xors(limbs: Limbs) -> Limbs:
    """The exclusive ors of the first 0, 1, ... n rows."""
    totals = np.zeros((len(limbs) + 1, limbs.shape[1]), dtype=np.uint64)
    np.bitwise_xor.accumulate(limbs, axis=0, out=totals[1:])
    return totals


def minus(left: Limbs, right: Limbs) -> Limbs:
    """Left less right, number by number, modulo 2^(64 limbs).

    >>> minus(np.array([[0, 1]], dtype=np.uint64), np.array([[1, 0]], dtype=np.uint64)).tolist()
    [[18446744073709551615, 0]]
    """
    result, short = left - right, left < right
    borrowed = short[:, 0]
    for k in range(1, left.shape[1]):
        short[:, k] |= borrowed & (result[:, k] == 0)
        result[:, k] -= borrowed
        borrowed = short[:, k]
    return result


def plus(left: Limbs, right: Limbs) -> Limbs:
    """Left and right, number by number, modulo 2^(64 limbs)."""
    return minus(left, minus(np.zeros_like(right), right))


def hashed(sums: Limbs, counts: Ints) -> Rows:
    """The v1 fingerprints of ranges with these sums and counts."""
    texts, numbers = blobs(sums.astype("<u8", copy=False).view(np.uint8)), counts.tolist()
    ends = {number: write(number) for number in set(numbers)}  # few: pieces of a split are of one size, or two
    hashes = [sha256(text + ends[number]).digest() for text, number in zip(texts, numbers, strict=True)]
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(sums), 32)[:, :HASHED_SIZE]


BIG: Final = np.dtype(">u8")
LITTLE: Final = np.dtype("<u8")


class Columns:
    """Sorted records that stand still."""

    def __init__(self, timestamps: Stamps, ids: Rows) -> None:
        self.timestamps = timestamps
        self.ids = ids

    def __len__(self) -> int:
        return len(self.timestamps)

    @staticmethod
    def sorted_from(timestamps: Stamps, ids: Rows) -> Columns:
        """The same records in order; ids are whole limbs wide."""
        if len(timestamps) < 2:
            return Columns(timestamps, ids)
        order = _order(timestamps - timestamps.min(), ids)
        return Columns(timestamps[order], ids.take(order, axis=0))

    @cached_property
    def sums(self) -> Limbs:
        """The sums of the first 0, 1, ... n ids, as little-endian numbers."""
        return running_sums(self.ids.view(LITTLE))

    @cached_property
    def xors(self) -> Limbs:
        """The exclusive ors of the first 0, 1, ... n ids."""
        return running_xors(self.ids.view(LITTLE))

    @cached_property
    def beginnings(self) -> Limbs:
        """The first limbs of all ids, sorted: what is not among them is no known id."""
        return np.sort(self.ids.view(BIG)[:, 0].astype(np.uint64))

    def bounds(self) -> Bounds:
        """The bounds that are the records themselves."""
        return Bounds(self.timestamps, self.ids, np.full(len(self), self.ids.shape[1]))

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        low = self.timestamps.searchsorted(bounds.timestamps).astype(np.int64)
        long = flagged(bounds.lengths)
        if len(long):
            high = self.timestamps.searchsorted(bounds.timestamps[long], side="right")
            low[long] = self._find_id(low[long], high, bounds.ids[long])
        return low

    def _find_id(self, low: Ints, high: Ints, ids: Rows) -> Ints:
        """How many records lie below these ids, if the answers lie between low and high, both included."""
        wanted, ours = texts(ids), texts(self.ids)
        while len(going := flagged(low < high)):
            middle = (low[going] + high[going]) >> 1
            less = ours[middle] < wanted[going]
            low[going[less]] = middle[less] + 1
            high[going[~less]] = middle[~less]
        return low

    def places(self, timestamps: Stamps, ids: Rows) -> Ints:
        """Where these records stand; -1 for one that is not there."""
        places = self.find(Columns(timestamps, ids).bounds())
        inside = flagged(places < len(self))
        there = np.zeros(len(places), dtype=np.bool_)
        there[inside] = texts(self.ids[places[inside]]) == texts(ids[inside])
        there[inside] &= self.timestamps[places[inside]] == timestamps[inside]
        places[~there] = -1
        return places

    def holding(self, ids: Rows) -> list[tuple[int, int]]:
        """Which of these ids are known, as pairs of its place there and its place here; under any timestamp."""
        firsts = ids.view(BIG)[:, 0].astype(np.uint64)
        places = np.minimum(self.beginnings.searchsorted(firsts), max(0, len(self) - 1))
        if not len(self) or not len(likely := flagged(self.beginnings[places] == firsts)):
            return []
        ours = flagged(np.isin(self.ids.view(BIG)[:, 0].astype(np.uint64), firsts[likely]))
        known = {self.ids[place].tobytes(): place for place in ours.tolist()}
        return [(i, known[blob]) for i in likely.tolist() if (blob := ids[i].tobytes()) in known]

    def without(self, gone: Ints) -> Columns:
        """The same records, less those at some places."""
        if not len(gone):
            return self
        kept = np.ones(len(self), dtype=np.bool_)
        kept[gone] = False
        return Columns(self.timestamps[kept], self.ids[kept])

    def merged(self, other: Columns) -> Columns:
        """The records of both. Cost: O(n) moves, no sorting."""
        if not len(other):
            return self
        places = self.find(other.bounds())
        new = places + np.arange(len(other))
        old = np.ones(len(self) + len(other), dtype=np.bool_)
        old[new] = False
        timestamps = np.empty(len(old), dtype=np.uint64)
        ids = np.empty((len(old), self.ids.shape[1]), dtype=np.uint8)
        timestamps[new], ids[new] = other.timestamps, other.ids
        timestamps[old], ids[old] = self.timestamps, self.ids
        return Columns(timestamps, ids)


def _order(leading: Stamps, ids: Rows) -> Ints:
    """The order of records by a number, and by their ids where that is equal."""
    keys = _keys(leading, ids)
    order = keys.argsort()
    tied = _tied(keys[order])
    if len(tied):
        order[tied] = order[tied][_by_id(keys[order[tied]], ids[order[tied]])]
    return order


def _by_id(ascending: Limbs, ids: Rows) -> Ints:
    """The order of records that come by ascending numbers, by their ids where those are equal."""
    group = np.cumsum(np.concatenate(([0], ascending[1:] != ascending[:-1]))).astype(np.uint64)
    keys = _keys(group, ids)
    order = keys.argsort()
    if len(_tied(keys[order])):  # ids that were made to look alike: every byte counts
        limbs = ids.view(BIG)
        columns = [limbs[:, k].astype(np.uint64) for k in reversed(range(limbs.shape[1]))]
        order = np.lexsort((*columns, group))
    return order


def _keys(leading: Limbs, ids: Rows) -> Limbs:
    """One number for each record: the leading one, and behind it as much of the id's beginning as there is room for."""
    bits = int(leading.max()).bit_length()
    if bits == 64:
        return leading
    beginnings = ids.view(BIG)[:, 0].astype(np.uint64)
    return np.asarray(leading << np.uint64(64 - bits) | beginnings >> np.uint64(bits)) if bits else beginnings


def _tied(ascending: Limbs) -> Ints:
    """The places of all numbers that are there more than once."""
    same = ascending[1:] == ascending[:-1]
    tied = np.zeros(len(ascending), dtype=np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    return flagged(tied)


OVERLAY_MIN: Final = 1_024  # smaller ones cost nothing that can be measured


def overlay_max(size: int) -> int:
    """How many changes are kept beside main before it is built anew."""
    return max(OVERLAY_MIN, 4 * isqrt(size))


class Index:
    """What a session works on: it finds bounds, adds up ranges and lists records; see `items.Items`."""

    def __init__(self, id_size: int, main: Columns, extra: Columns | None = None, gone: Ints | None = None) -> None:
        self.id_size = id_size
        self._main = main
        self._extra = extra or Columns(main.timestamps[:0], main.ids[:0])
        self._gone = np.zeros(0, dtype=np.int64) if gone is None else gone
        self._plain = not len(self._extra) and not len(self._gone)

    def __len__(self) -> int:
        return len(self._main) + len(self._extra) - len(self._gone)

    @cached_property
    def _taken(self) -> Columns:
        """The records at the gone places, to subtract them."""
        return Columns(self._main.timestamps[self._gone], self._main.ids[self._gone])

    @cached_property
    def _extra_ranks(self) -> Ints:
        places = self._main.find(self._extra.bounds())
        return places - self._gone.searchsorted(places) + np.arange(len(places))

    @cached_property
    def _alive_before(self) -> Ints:
        """For each gone place, how many records of main below it are still there."""
        return self._gone - np.arange(len(self._gone))

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Nothing to fetch: all is in memory."""

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks: one place is as near as another."""
        return ranks

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        places = self._main.find(bounds)
        if self._plain:
            return places
        return places - self._gone.searchsorted(places) + self._extra.find(bounds)

    def _split(self, ranks: Ints) -> tuple[Ints, Ints, Ints]:
        """For each rank: its place in main, in extra, and among the gone."""
        extra = self._extra_ranks.searchsorted(ranks)
        alive = ranks - extra
        gone = self._alive_before.searchsorted(alive, side="right")
        return alive + gone, extra, gone

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids, as limbs, the lowest first."""
        if self._plain:
            return minus(self._main.sums.take(upper, axis=0), self._main.sums.take(lower, axis=0))
        return minus(self._sum_below(upper), self._sum_below(lower))

    def _sum_below(self, ranks: Ints) -> Limbs:
        main, extra, gone = self._split(ranks)
        return minus(plus(self._main.sums[main], self._extra.sums[extra]), self._taken.sums[gone])

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        limbs = self._xor_below(upper) ^ self._xor_below(lower)
        return limbs.astype("<u8").view(np.uint8).reshape(len(limbs), self._main.ids.shape[1])

    def _xor_below(self, ranks: Ints) -> Limbs:
        if self._plain:
            return self._main.xors.take(ranks, axis=0)
        main, extra, gone = self._split(ranks)
        return self._main.xors[main] ^ self._extra.xors[extra] ^ self._taken.xors[gone]

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks: timestamps, and ids filled up with zeros."""
        if self._plain:
            return self._main.timestamps[ranks], self._main.ids.take(ranks, axis=0)
        main, extra, _ = self._split(ranks)
        timestamps = np.empty(len(ranks), dtype=np.uint64)
        ids = np.empty((len(ranks), self._main.ids.shape[1]), dtype=np.uint8)
        new = np.zeros(len(ranks), dtype=np.bool_)
        inside = extra < len(self._extra)
        new[inside] = self._extra_ranks[extra[inside]] == ranks[inside]
        for here, columns, places in ((new, self._extra, extra), (~new, self._main, main)):
            timestamps[here], ids[here] = columns.timestamps[places[here]], columns.ids[places[here]]
        return timestamps, ids

    def snapshot(self) -> Index:
        """Itself: it stands still."""
        return self

    def holds(self, timestamps: Stamps, ids: Rows) -> Flags:
        """Which of these records are there."""
        late, early = self._extra.places(timestamps, ids) >= 0, self._main.places(timestamps, ids)
        went = self._gone.searchsorted(early, side="right") > self._gone.searchsorted(early)
        return np.asarray(late | (early >= 0) & ~went)

    def known(self, ids: Rows) -> list[int]:
        """The places of those ids that are there, under any timestamp."""
        gone = set(self._gone.tolist())
        there = [i for i, place in self._main.holding(ids) if place not in gone]
        return there + [i for i, _ in self._extra.holding(ids)]

    def added(self, records: Columns) -> Index:
        """With more records, which must be new."""
        return self._lean(self._extra.merged(records), self._gone)

    def removed(self, timestamps: Stamps, ids: Rows) -> Index:
        """Without some records, which must be there, each named once."""
        extra = self._extra.places(timestamps, ids)
        late = extra >= 0
        places = self._main.places(timestamps[~late], ids[~late])
        gone = np.insert(self._gone, self._gone.searchsorted(np.sort(places)), np.sort(places))
        return self._lean(self._extra.without(extra[late]), gone)

    def _lean(self, extra: Columns, gone: Ints) -> Index:
        """With this overlay, or built anew when it is too large."""
        if len(extra) + len(gone) <= overlay_max(len(self._main)):
            return Index(self.id_size, self._main, extra, gone)
        return Index(self.id_size, self._main.without(gone).merged(extra))


ID_SIZES: Final = range(8, 33)  # as the source document has it; shorter ones collide too soon


class Items(Protocol):
    """Sorted records, as a session needs them. Ranges are pairs of ranks: the lower is part of it, the upper not.

    Any verb may be asked about nothing, and then does nothing.
    """

    @property
    def id_size(self) -> int:
        """How many bytes an id has."""
        ...

    def __len__(self) -> int: ...

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """A hint, to fetch all at once: the next questions are about the ranges that end at these ascending bounds.

        Each range begins where the one before it ends, the first one at the origin. Of a flagged one every record will
        be asked for, unless there are more of them than fit into a frame: then it is split as the others are. Of the
        others a set that keeps its records in leaves, and cuts between them, is asked for nothing but the leaves in
        which a bound lies, and ranges that are no longer than a leaf.
        """
        ...

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """Where to cut, near these ranks: each answer strictly between its lower and its upper, which end its range.

        A set that is far away moves a cut to where it need not look. The ranks of a range ascend, and so do the
        answers; of equal ones one is kept.
        """
        ...

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        ...

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids as little-endian numbers, modulo 2^(8 width): limbs, the lowest first."""
        ...

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids, as rows of whole limbs."""
        ...

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks: timestamps, and ids as rows of whole limbs (`arrays.width_of`)."""
        ...

    def snapshot(self) -> Items:
        """The same records, standing still while a session is under way."""
        ...


class ItemSet:
    """Records in memory.

    >>> items = ItemSet(id_size=8)
    >>> items.add(5, b"record-b"); items.add(3, b"record-a")
    >>> items.seal()
    >>> items.add(4, b"record-c"); items.remove(5, b"record-b")
    >>> len(items), items.ids()
    (2, [b'record-a', b'record-c'])
    """

    def __init__(self, id_size: int = 32) -> None:
        if id_size not in ID_SIZES:
            raise Misuse(f"id_size is {id_size}, must be from {ID_SIZES[0]} to {ID_SIZES[-1]}", id_size=id_size)
        self.id_size = id_size
        self._waiting: list[tuple[Stamps, Rows]] = []
        self._single: list[tuple[int, bytes]] = []
        self._index: Index | None = None

    @staticmethod
    def from_arrays(timestamps: ArrayLike, ids: Rows | Sequence[bytes], id_size: int | None = None) -> ItemSet:
        """A set of these records; ids are rows of bytes, or a list of bytes. It still has to be sealed."""
        if id_size is None:
            id_size = ids.shape[-1] if isinstance(ids, np.ndarray) else len(ids[0]) if len(ids) else 32
        items = ItemSet(id_size)
        items.add_many(timestamps, ids)
        return items

    def __len__(self) -> int:
        if self._index is not None:
            return len(self._index)
        return len(self._single) + sum(len(stamps) for stamps, _ in self._waiting)

    def add(self, timestamp: int, id: bytes) -> None:
        """Take one record in. Before sealing this only collects; what is wrong with it is found by ``seal``."""
        if self._index is None:
            self._single.append((timestamp, id))
        else:
            self.add_many([timestamp], [id])

    def add_many(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> None:
        """Take many records in."""
        stamps, rows = _stamps(timestamps), self._rows(ids)
        if len(stamps) != len(rows):
            raise Misuse(f"{len(stamps)} timestamps and {len(rows)} ids", timestamps=len(stamps), ids=len(rows))
        if self._index is None:
            self._waiting.append((stamps, rows))
            return
        records = _checked(stamps, rows, self.id_size)
        if known := self._index.known(records.ids):
            raise _twice(records.ids[known[0]], self.id_size)
        self._index = self._index.added(records)

    def remove(self, timestamp: int, id: bytes) -> None:
        """Take one record out; the set must be sealed, and hold it."""
        self.remove_many([timestamp], [id])

    def remove_many(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> None:
        """Take many records out; the set must be sealed, and hold them all."""
        index, stamps, rows = self.snapshot(), _stamps(timestamps), self._rows(ids)
        if len(stamps) != len(rows):
            raise Misuse(f"{len(stamps)} timestamps and {len(rows)} ids", timestamps=len(stamps), ids=len(rows))
        records = _checked(stamps, rows, self.id_size)
        if not (there := index.holds(records.timestamps, records.ids)).all():
            lost = int(flagged(~there)[0])
            stamp, id = int(records.timestamps[lost]), records.ids[lost, : self.id_size].tobytes().hex()
            raise BadInput(f"no record with timestamp {stamp} and id {id}", timestamp=stamp, id=id)
        self._index = index.removed(records.timestamps, records.ids)

    def seal(self) -> None:
        """Sort what was collected. Bad input: an id that is there twice or has another size, the timestamp 2^64 - 1."""
        if self._index is not None:
            raise Misuse("the set is sealed already")
        waiting = list(self._waiting)
        if self._single:
            waiting.append((_stamps([stamp for stamp, _ in self._single]), self._rows([id for _, id in self._single])))
        stamps = np.concatenate([np.zeros(0, dtype=np.uint64), *(stamps for stamps, _ in waiting)])
        rows = np.concatenate([np.zeros((0, width_of(self.id_size)), np.uint8), *(rows for _, rows in waiting)])
        self._index = Index(self.id_size, _checked(stamps, rows, self.id_size))
        self._waiting, self._single = [], []

    def snapshot(self) -> Index:
        """The records as they are now; later changes do not show in it."""
        if self._index is None:
            raise Misuse("the set is not sealed: call seal() first")
        return self._index

    def ids(self) -> list[bytes]:
        """All ids, in order."""
        rows = self.snapshot().rows(np.arange(len(self)))[1]
        return [row[: self.id_size].tobytes() for row in rows]

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Nothing to fetch: all is in memory."""

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks: one place is as near as another."""
        return ranks

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        return self.snapshot().find(bounds)

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids."""
        return self.snapshot().sums(lower, upper)

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        return self.snapshot().xors(lower, upper)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks."""
        return self.snapshot().rows(ranks)

    def _rows(self, ids: Rows | Sequence[bytes]) -> Rows:
        """The ids as rows of whole limbs; BadInput for one of another size."""
        if isinstance(ids, np.ndarray):
            if ids.ndim != 2 or ids.dtype != np.uint8:
                raise Misuse(f"ids are {ids.dtype} of shape {ids.shape}, must be uint8 of shape (n, {self.id_size})")
            if ids.shape[1] != self.id_size:
                raise _wrong_size(0, ids.shape[1], self.id_size)
            return padded(ids, width_of(self.id_size))
        for place, id in enumerate(ids):
            if len(id) != self.id_size:
                raise _wrong_size(place, len(id), self.id_size)
        rows = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), self.id_size)
        return padded(rows, width_of(self.id_size))


def _stamps(timestamps: ArrayLike) -> Stamps:
    """Timestamps as they are kept; BadInput for one that does not fit."""
    stamps = np.asarray(timestamps)
    if stamps.dtype.kind not in "iu":  # a mixture in which numpy sees no whole numbers of 64 bits
        values = timestamps if isinstance(timestamps, list) else stamps.tolist()
        for place, value in enumerate(values):
            if not isinstance(value, int) or not 0 <= value <= INFINITY:
                raise BadInput(f"timestamp {value!r} is no whole number from 0 to 2^64 - 2", place=place, value=value)
        return np.array(values, dtype=np.uint64)
    if len(below := flagged(stamps < 0)):
        value = int(stamps[below[0]])
        raise BadInput(f"timestamp {value} is below 0", place=int(below[0]), value=value)
    return stamps.astype(np.uint64)


def _checked(stamps: Stamps, rows: Rows, id_size: int) -> Columns:
    """The records in order, or BadInput that names the first one that may not be there."""
    if len(reserved := flagged(stamps == np.uint64(INFINITY))):
        id = rows[reserved[0], :id_size].tobytes().hex()
        raise BadInput(f"timestamp 2^64 - 1 of id {id} is reserved", timestamp=INFINITY, id=id)
    records = Columns.sorted_from(stamps, rows)
    if (records.beginnings[1:] == records.beginnings[:-1]).any():  # alike at the beginning: look at them whole
        ids = np.sort(texts(records.ids))
        if len(equal := flagged(ids[1:] == ids[:-1])):
            raise _twice(np.frombuffer(ids[equal[0]].ljust(rows.shape[1], b"\0"), dtype=np.uint8), id_size)
    return records


def _twice(row: Rows, id_size: int) -> BadInput:
    id = row[:id_size].tobytes().hex()
    return BadInput(f"id {id} is there twice", id=id)


def _wrong_size(place: int, size: int, id_size: int) -> BadInput:
    return BadInput(f"id {place} has {size} bytes, must have {id_size}", place=place, size=size, id_size=id_size)


class Window:
    """The records of a set with ``since <= timestamp <= until``.

    >>> from onefold.reconcile import ItemSet
    >>> items = ItemSet.from_arrays([1, 2, 3], [b"a" * 32, b"b" * 32, b"c" * 32]); items.seal()
    >>> len(Window(items, since=2))
    2
    """

    def __init__(self, items: Items, since: int = 0, until: int = INFINITY - 1) -> None:
        if not 0 <= since <= until < INFINITY:
            raise Misuse(f"since is {since} and until {until}: must be 0 <= since <= until < 2^64 - 1")
        self._items = items.snapshot()
        self.id_size = items.id_size
        ends = Bounds.join([Bounds.one(stamp, b"", items.id_size) for stamp in (since, until + 1)])
        found = self._items.find(ends)
        self._start, self._end = int(found[0]), int(found[1])

    def __len__(self) -> int:
        return self._end - self._start

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        return np.asarray(np.clip(self._items.find(bounds), self._start, self._end) - self._start, dtype=np.int64)

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids."""
        return self._items.sums(lower + self._start, upper + self._start)

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        return self._items.xors(lower + self._start, upper + self._start)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks."""
        return self._items.rows(ranks + self._start)

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Pass on what will be asked about."""
        self._items.expect(upper, whole)

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """Where to cut, near these ranks."""
        start = self._start
        return np.asarray(self._items.cuts(ranks + start, lower + start, upper + start) - start, dtype=np.int64)

    def snapshot(self) -> Window:
        """Itself: it stands still."""
        return self
