"""The sorted records of one side, a timestamp and an id each, as numpy columns.

Reconciliation compares *ranges* of records by fingerprints. A session asks a set three things, always for many ranges
at once: how many records lie below a bound (``find``), the sum or XOR of the ids in a range (``sums``, ``xors``), and
the records at given ranks (``rows``). `Items` is that port: an `ItemSet` in memory, a SQLite file and a Spark table
implement it. ``expect`` and ``cuts`` save reads where the set is not in memory.

- The order is by timestamp, then by id. The *rank* of a record is its position; a range is a pair of ranks, lower
  included, upper excluded. Positions differ between the two sides, so on the wire a range ends at a *bound*: a
  timestamp and a prefix of an id. The shortest bound between two records is the second's timestamp if the timestamps
  differ, else one byte more than the common prefix of their ids. The timestamp 2^64 - 1 is reserved: the bound above
  every record.
- Sums come from prefix totals: total(upper) - total(lower), O(1) for any range, since addition modulo 2^256 and XOR
  have an inverse. That is also why an id may be in a set only once: twice, it would cancel itself out.
- An id is padded with zeros to whole *limbs* of 8 bytes. Read as big-endian numbers, limbs compare as ids do; read as
  little-endian numbers, they are the digits of the sum, the lowest first.
- A sealed set changes cheaply (`Index`): recent additions and removals are kept in a small overlay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
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

INFINITY: Final = 2**64 - 1
"""The timestamp of the bound above all records; records have lower ones."""
ID_SIZES: Final = range(8, 33)  # as in the source document; shorter ids collide too soon
BIG: Final = np.dtype(">u8")
LITTLE: Final = np.dtype("<u8")


def padded(ids: Rows, id_size: int) -> Rows:
    """Ids as contiguous rows of whole limbs, padded with zeros."""
    if id_size % 8 == 0:
        return np.ascontiguousarray(ids)
    rows = np.zeros((len(ids), -(-id_size // 8) * 8), dtype=np.uint8)
    rows[:, :id_size] = ids
    return rows


def whole(rows: Rows) -> NDArray[Any]:
    """Each row as one opaque value: numpy copies those much faster than rows of bytes."""
    return rows.view(f"V{rows.shape[1]}")[:, 0]


def texts(rows: Rows) -> NDArray[Any]:
    """One comparable value per row. numpy ignores trailing zeros, which is harmless among rows of one width."""
    return rows.view(f"S{rows.shape[1]}")[:, 0]


def blobs(rows: Rows) -> list[bytes]:
    """The rows as bytes, zeros included."""
    values: list[bytes] = whole(rows).tolist()
    return values


def flagged(flags: NDArray[Any]) -> Ints:
    """Where a column is not 0: ``np.flatnonzero`` at a fifth of its cost for a short column."""
    return flags.nonzero()[0]


def spans(lower: Ints, upper: Ints) -> Ints:
    """The indices in all these ranges, concatenated."""
    return spans_by(lower, upper - lower, 1)


def spans_by(starts: Ints, counts: Ints, step: int) -> Ints:
    """Runs of positions, ``step`` apart, concatenated.

    >>> spans_by(np.array([3, 100]), np.array([2, 1]), 32).tolist()
    [3, 35, 100]
    """
    before = counts.cumsum() - counts
    return np.asarray(np.arange(int(counts.sum())) * step + np.repeat(starts - before * step, counts), dtype=np.int64)


def firsts_differ(a: Rows, b: Rows) -> Ints:
    """For each pair of rows the index of the first byte in which they differ; 0 for equal rows."""
    return np.asarray((a != b).argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class Bounds:
    """Many bounds: timestamps, id prefixes padded with zeros, and the lengths of the prefixes."""

    timestamps: Stamps
    ids: Rows
    lengths: Ints

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, which: Ints | Flags | slice) -> Bounds:
        if isinstance(which, slice):
            return Bounds(self.timestamps[which], self.ids[which], self.lengths[which])
        if which.dtype == np.bool_:
            which = flagged(which)
        return Bounds(self.timestamps[which], self.ids.take(which, axis=0), self.lengths[which])

    def below(self, other: Bounds) -> Flags:
        below = self.timestamps < other.timestamps
        tied = flagged(self.timestamps == other.timestamps)
        below[tied] = texts(self.ids[tied]) < texts(other.ids[tied])
        return below

    def equal(self, other: Bounds) -> Flags:
        return np.asarray((self.timestamps == other.timestamps) & (texts(self.ids) == texts(other.ids)))

    def put(self, places: Ints | Flags, others: Bounds) -> None:
        """Overwrite some bounds in place; the columns must not be shared."""
        self.timestamps[places], self.lengths[places] = others.timestamps, others.lengths
        whole(self.ids)[places] = whole(others.ids)

    def one_by_one(self) -> list[tuple[int, bytes, int]]:
        """Tuples of timestamp, id and length: for a few bounds these are faster than columns."""
        return list(zip(self.timestamps.tolist(), blobs(self.ids), self.lengths.tolist(), strict=True))

    @staticmethod
    def of(timestamps: list[int], prefixes: list[bytes], id_size: int) -> Bounds:
        width = -(-id_size // 8) * 8
        ids = bytearray().join(prefix.ljust(width, b"\0") for prefix in prefixes)
        rows = np.frombuffer(ids, dtype=np.uint8).reshape(-1, width)
        return Bounds(np.array(timestamps, dtype=np.uint64), rows, np.array([*map(len, prefixes)], dtype=np.int64))

    @staticmethod
    def one(timestamp: int, prefix: bytes, id_size: int) -> Bounds:
        return Bounds.of([timestamp], [prefix], id_size)

    @staticmethod
    def join(parts: Sequence[Bounds]) -> Bounds:
        columns = zip(*((part.timestamps, part.ids, part.lengths) for part in parts), strict=True)
        return Bounds(*map(np.concatenate, columns))

    @staticmethod
    def choose(which: Flags, a: Bounds, b: Bounds) -> Bounds:
        """Bounds of ``a`` where the flag is set, else of ``b``."""
        return Bounds(
            np.where(which, a.timestamps, b.timestamps),
            np.where(which[:, None], a.ids, b.ids),
            np.where(which, a.lengths, b.lengths),
        )

    @staticmethod
    @cache
    def origin(id_size: int) -> Bounds:
        """The bound below everything. It is cached: do not write into it."""
        return Bounds.one(0, b"", id_size)

    @staticmethod
    def prefixes(timestamps: Stamps, ids: Rows, lengths: Ints) -> Bounds:
        """Bounds at the first ``lengths`` bytes of each id."""
        rows, long = np.zeros_like(ids), flagged(lengths)
        mask = np.arange(ids.shape[1]) < lengths[long, None]
        whole(rows)[long] = whole(ids.take(long, axis=0) * mask)
        return Bounds(timestamps, rows, lengths)

    @staticmethod
    def between(before: tuple[Stamps, Rows], after: tuple[Stamps, Rows]) -> Bounds:
        """The shortest bounds between records and their successors: above ``before``, not above ``after``.

        >>> stamps, ids = np.array([5, 5], dtype=np.uint64), np.frombuffer(b"aaaaaaaaaabbbbbb", dtype=np.uint8)
        >>> bounds = Bounds.between((stamps[:1], ids.reshape(2, 8)[:1]), (stamps[1:], ids.reshape(2, 8)[1:]))
        >>> bounds.timestamps.tolist(), bounds.ids.tobytes(), bounds.lengths.tolist()
        ([5], b'aab\\x00\\x00\\x00\\x00\\x00', [3])
        """
        lengths = np.zeros(len(after[0]), dtype=np.int64)
        tied = flagged(before[0] == after[0])
        lengths[tied] = firsts_differ(before[1][tied], after[1][tied]) + 1
        return Bounds.prefixes(after[0], after[1], lengths)


def running_sums(limbs: Limbs) -> Limbs:
    """The sums of the first 0, 1, ... n rows, as limbs.

    A total below its predecessor has wrapped around: that is carried into the next limb.
    """
    totals = np.zeros((len(limbs) + 1, limbs.shape[1]), dtype=np.uint64)
    carry = np.zeros(len(limbs), dtype=np.uint64)
    for k in range(limbs.shape[1]):
        column = np.cumsum(limbs[:, k], dtype=np.uint64)
        wrapped = np.empty(len(column), dtype=np.bool_)
        wrapped[:1] = False
        np.less(column[1:], column[:-1], out=wrapped[1:])
        column += carry
        wraps = np.cumsum(wrapped, dtype=np.uint64)
        wraps += column < carry
        totals[1:, k] = column
        carry = wraps
    return totals


def running_xors(limbs: Limbs) -> Limbs:
    totals = np.zeros((len(limbs) + 1, limbs.shape[1]), dtype=np.uint64)
    np.bitwise_xor.accumulate(limbs, axis=0, out=totals[1:])
    return totals


def minus(a: Limbs, b: Limbs) -> Limbs:
    """a - b, row by row, modulo 2^(64 limbs).

    >>> minus(np.array([[0, 1]], dtype=np.uint64), np.array([[1, 0]], dtype=np.uint64)).tolist()
    [[18446744073709551615, 0]]
    """
    result, short = a - b, a < b
    borrow = short[:, 0]
    for k in range(1, a.shape[1]):
        short[:, k] |= borrow & (result[:, k] == 0)
        result[:, k] -= borrow
        borrow = short[:, k]
    return result


def plus(a: Limbs, b: Limbs) -> Limbs:
    return minus(a, minus(np.zeros_like(b), b))


class Columns:
    """Immutable sorted records. The prefix totals and the sorted first limbs are computed when first needed.

    Cost: building is one sort of 64-bit keys, each a timestamp and the first bits of an id, so ties cost no more than
    distinct timestamps. Finding is a binary search over the timestamps, and one over the ids where timestamps are
    equal, for all bounds at once.
    """

    def __init__(self, timestamps: Stamps, ids: Rows) -> None:
        self.timestamps = timestamps
        self.ids = ids

    def __len__(self) -> int:
        return len(self.timestamps)

    @staticmethod
    def sorted_from(timestamps: Stamps, ids: Rows) -> Columns:
        if len(timestamps) < 2:
            return Columns(timestamps, ids)
        keys = _keys(timestamps - timestamps.min(), ids)
        order = keys.argsort()
        tied = _tied(keys[order])
        if len(tied):
            ascending, rows = keys[order[tied]], ids[order[tied]]
            group = np.cumsum(np.concatenate(([0], ascending[1:] != ascending[:-1]))).astype(np.uint64)
            keys = _keys(group, rows)
            by_id = keys.argsort()
            if len(_tied(keys[by_id])):  # ids with equal beginnings, perhaps on purpose: compare every byte
                limbs = rows.view(BIG)
                columns = [limbs[:, k].astype(np.uint64) for k in reversed(range(limbs.shape[1]))]
                by_id = np.lexsort((*columns, group))
            order[tied] = order[tied][by_id]
        return Columns(timestamps[order], ids.take(order, axis=0))

    @cached_property
    def sums(self) -> Limbs:
        return running_sums(self.ids.view(LITTLE))

    @cached_property
    def xors(self) -> Limbs:
        return running_xors(self.ids.view(LITTLE))

    @cached_property
    def beginnings(self) -> Limbs:
        """The first limbs of all ids, sorted, to rule out quickly that an id is here."""
        return np.sort(self.ids.view(BIG)[:, 0].astype(np.uint64))

    def bounds(self) -> Bounds:
        return Bounds(self.timestamps, self.ids, np.full(len(self), self.ids.shape[1]))

    def find(self, bounds: Bounds) -> Ints:
        low = self.timestamps.searchsorted(bounds.timestamps).astype(np.int64)
        long = flagged(bounds.lengths)
        if not len(long):
            return low
        least, most = low[long], self.timestamps.searchsorted(bounds.timestamps[long], side="right")
        wanted, ours = texts(bounds.ids[long]), texts(self.ids)
        while len(active := flagged(least < most)):
            middle = (least[active] + most[active]) >> 1
            less = ours[middle] < wanted[active]
            least[active[less]] = middle[less] + 1
            most[active[~less]] = middle[~less]
        low[long] = least
        return low

    def places(self, timestamps: Stamps, ids: Rows) -> Ints:
        """The positions of these records; -1 for a missing one."""
        places = self.find(Columns(timestamps, ids).bounds())
        inside = flagged(places < len(self))
        here = np.zeros(len(places), dtype=np.bool_)
        here[inside] = texts(self.ids[places[inside]]) == texts(ids[inside])
        here[inside] &= self.timestamps[places[inside]] == timestamps[inside]
        places[~here] = -1
        return places

    def holding(self, ids: Rows) -> list[tuple[int, int]]:
        """The ids that are here, under any timestamp: pairs of their position in ``ids`` and their position here."""
        firsts = ids.view(BIG)[:, 0].astype(np.uint64)
        places = np.minimum(self.beginnings.searchsorted(firsts), max(0, len(self) - 1))
        if not len(self) or not len(likely := flagged(self.beginnings[places] == firsts)):
            return []
        ours = flagged(np.isin(self.ids.view(BIG)[:, 0].astype(np.uint64), firsts[likely]))
        positions = {self.ids[position].tobytes(): position for position in ours.tolist()}
        return [(i, positions[blob]) for i in likely.tolist() if (blob := ids[i].tobytes()) in positions]

    def without(self, places: Ints) -> Columns:
        if not len(places):
            return self
        keep = np.ones(len(self), dtype=np.bool_)
        keep[places] = False
        return Columns(self.timestamps[keep], self.ids[keep])

    def merged(self, other: Columns) -> Columns:
        """The records of both. Cost: O(n) copies, no sorting."""
        if not len(other):
            return self
        new = self.find(other.bounds()) + np.arange(len(other))
        old = np.ones(len(self) + len(other), dtype=np.bool_)
        old[new] = False
        timestamps = np.empty(len(old), dtype=np.uint64)
        ids = np.empty((len(old), self.ids.shape[1]), dtype=np.uint8)
        timestamps[new], ids[new] = other.timestamps, other.ids
        timestamps[old], ids[old] = self.timestamps, self.ids
        return Columns(timestamps, ids)


def _keys(leading: Limbs, ids: Rows) -> Limbs:
    """One number for each record: the leading one, then as many of the id's first bits as fit."""
    bits = int(leading.max()).bit_length()
    if bits == 64:
        return leading
    beginnings = ids.view(BIG)[:, 0].astype(np.uint64)
    return np.asarray(leading << np.uint64(64 - bits) | beginnings >> np.uint64(bits)) if bits else beginnings


def _tied(ascending: Limbs) -> Ints:
    """The positions of all numbers that occur more than once."""
    same = ascending[1:] == ascending[:-1]
    tied = np.zeros(len(ascending), dtype=np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    return flagged(tied)


OVERLAY_MIN: Final = 1_024  # up to here the overlay costs nothing measurable


def overlay_max(size: int) -> int:
    return max(OVERLAY_MIN, 4 * isqrt(size))


class Index:
    """Records that change cheaply: sorted columns, and a small overlay of later additions and removals.

        main       the records when the index was last built, with their totals
        extra      records added since: sorted columns of their own
        holes      positions in main whose records were removed since

    A bound's rank is its position in main, minus the holes below it, plus the extras below it; a rank splits into a
    position in main and one in extra by binary search. A range's total is that of main, plus extra, minus the holes.

    An index is immutable: ``added`` and ``removed`` return a new one that shares main. Cost: a change of k records is
    O(k log n + overlay); beyond ``overlay_max(n)`` main is rebuilt by O(n) copies. With a million records: 0.25 ms
    for one at a time, microseconds each for a thousand at once.
    """

    def __init__(self, id_size: int, main: Columns, extra: Columns | None = None, holes: Ints | None = None) -> None:
        self.id_size = id_size
        self._main = main
        self._extra = extra or Columns(main.timestamps[:0], main.ids[:0])
        self._holes = np.zeros(0, dtype=np.int64) if holes is None else holes
        self._plain = not len(self._extra) and not len(self._holes)

    def __len__(self) -> int:
        return len(self._main) + len(self._extra) - len(self._holes)

    @cached_property
    def _removed(self) -> Columns:
        return Columns(self._main.timestamps[self._holes], self._main.ids[self._holes])

    @cached_property
    def _extra_ranks(self) -> Ints:
        places = self._main.find(self._extra.bounds())
        return places - self._holes.searchsorted(places) + np.arange(len(places))

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Nothing to fetch: all is in memory."""

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        return ranks

    @cached_property
    def _alive_before(self) -> Ints:
        """For each hole, how many records of main below it remain."""
        return self._holes - np.arange(len(self._holes))

    def find(self, bounds: Bounds) -> Ints:
        places = self._main.find(bounds)
        if self._plain:
            return places
        return places - self._holes.searchsorted(places) + self._extra.find(bounds)

    def _split(self, ranks: Ints) -> tuple[Ints, Ints, Ints]:
        """For each rank: its position in main, in extra, and among the holes."""
        extra = self._extra_ranks.searchsorted(ranks)
        alive = ranks - extra
        holes = self._alive_before.searchsorted(alive, side="right")
        return alive + holes, extra, holes

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        return minus(self._sum_below(upper), self._sum_below(lower))

    def _sum_below(self, ranks: Ints) -> Limbs:
        if self._plain:
            return self._main.sums.take(ranks, axis=0)
        main, extra, holes = self._split(ranks)
        return minus(plus(self._main.sums[main], self._extra.sums[extra]), self._removed.sums[holes])

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        limbs = self._xor_below(upper) ^ self._xor_below(lower)
        return limbs.astype(LITTLE).view(np.uint8).reshape(len(limbs), self._main.ids.shape[1])

    def _xor_below(self, ranks: Ints) -> Limbs:
        if self._plain:
            return self._main.xors.take(ranks, axis=0)
        main, extra, holes = self._split(ranks)
        return self._main.xors[main] ^ self._extra.xors[extra] ^ self._removed.xors[holes]

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
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
        return self

    def holds(self, timestamps: Stamps, ids: Rows) -> Flags:
        late, early = self._extra.places(timestamps, ids) >= 0, self._main.places(timestamps, ids)
        removed = self._holes.searchsorted(early, side="right") > self._holes.searchsorted(early)
        return np.asarray(late | (early >= 0) & ~removed)

    def known(self, ids: Rows) -> list[int]:
        """The positions of the ids that are in the index, under any timestamp."""
        holes = set(self._holes.tolist())
        alive = [i for i, position in self._main.holding(ids) if position not in holes]
        return alive + [i for i, _ in self._extra.holding(ids)]

    def added(self, records: Columns) -> Index:
        return self._lean(self._extra.merged(records), self._holes)

    def removed(self, timestamps: Stamps, ids: Rows) -> Index:
        """Without these records, which must be in the index, each named once."""
        extra = self._extra.places(timestamps, ids)
        late = extra >= 0
        places = np.sort(self._main.places(timestamps[~late], ids[~late]))
        holes = np.insert(self._holes, self._holes.searchsorted(places), places)
        return self._lean(self._extra.without(extra[late]), holes)

    def _lean(self, extra: Columns, holes: Ints) -> Index:
        if len(extra) + len(holes) <= overlay_max(len(self._main)):
            return Index(self.id_size, self._main, extra, holes)
        return Index(self.id_size, self._main.without(holes).merged(extra))


class Items(Protocol):
    """Sorted records, as a session needs them. Ranges are pairs of ranks, lower included, upper excluded.

    Every method must accept empty columns.
    """

    @property
    def id_size(self) -> int: ...

    def __len__(self) -> int: ...

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """A hint, so that all can be fetched at once: the next calls are about the ranges that end at these bounds.

        The bounds ascend; each range begins where the one before it ends, the first one at the origin. Every record of
        a flagged range will be needed, unless they do not fit into a frame. In the others, a set that keeps its records
        in leaves needs only the leaves in which a bound lies, and ranges no longer than a leaf.
        """

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """Where to cut, near these ranks: each result strictly between ``lower`` and ``upper``, the ends of its range.

        A set that is not in memory moves a cut to a rank that needs no read. The ranks of a range ascend, and so must
        the results; duplicates are dropped.
        """

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids as little-endian numbers, modulo 2^(8 width): limbs, lowest first."""

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the XOR of its ids, as rows of whole limbs."""

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks: timestamps, and ids as rows of whole limbs (`padded`)."""

    def snapshot(self) -> Items:
        """The same records, frozen for the length of a session."""


class ItemSet:
    """Records in memory: collect them, then ``seal`` to sort them; after that they can still be added and removed.

    >>> items = ItemSet(id_size=8)
    >>> items.add(5, b"record-b"); items.add(3, b"record-a")
    >>> items.seal()
    >>> items.add(4, b"record-c"); items.remove(5, b"record-b")
    >>> len(items), items.ids()
    (2, [b'record-a', b'record-c'])
    """

    def __init__(self, id_size: int = 32) -> None:
        self.id_size = check_id_size(id_size)
        self._waiting: list[tuple[Stamps, Rows]] = []
        self._single: list[tuple[int, bytes]] = []
        self._index: Index | None = None

    @staticmethod
    def from_arrays(timestamps: ArrayLike, ids: Rows | Sequence[bytes], id_size: int | None = None) -> ItemSet:
        """An unsealed set of these records; ids are rows of bytes, or a list of bytes."""
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
        """Add one record. Before sealing it is only collected; ``seal`` checks it."""
        if self._index is None:
            self._single.append((timestamp, id))
        else:
            self.add_many([timestamp], [id])

    def add_many(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> None:
        """Add many records: their timestamps, and their ids in the same order."""
        stamps, rows = self._parsed(timestamps, ids)
        if self._index is None:
            self._waiting.append((stamps, rows))
            return
        records = _checked(stamps, rows, self.id_size)
        if repeats := self._index.known(records.ids):
            raise _twice(records.ids[repeats[0]].tobytes()[: self.id_size])
        self._index = self._index.added(records)

    def remove(self, timestamp: int, id: bytes) -> None:
        """Remove one record of a sealed set; it must be in the set."""
        self.remove_many([timestamp], [id])

    def remove_many(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> None:
        """Remove many records of a sealed set, all or none; all of them must be in the set."""
        index = self.snapshot()
        records = _checked(*self._parsed(timestamps, ids), self.id_size)
        if not (present := index.holds(records.timestamps, records.ids)).all():
            missing = int(flagged(~present)[0])
            stamp, id = int(records.timestamps[missing]), records.ids[missing, : self.id_size].tobytes().hex()
            raise BadInput(f"no record with timestamp {stamp} and id {id}", timestamp=stamp, id=id)
        self._index = index.removed(records.timestamps, records.ids)

    def seal(self) -> None:
        """Sort the collected records. `BadInput`: a duplicate id, one of another size, the timestamp 2^64 - 1."""
        if self._index is not None:
            raise Misuse("the set is sealed already")
        singles = self._parsed([stamp for stamp, _ in self._single], [id for _, id in self._single])
        stamps = np.concatenate([*(stamps for stamps, _ in self._waiting), singles[0]])
        rows = np.concatenate([*(rows for _, rows in self._waiting), singles[1]])
        self._index = Index(self.id_size, _checked(stamps, rows, self.id_size))
        self._waiting, self._single = [], []

    def snapshot(self) -> Index:
        if self._index is None:
            raise Misuse("the set is not sealed: call seal() first")
        return self._index

    def ids(self) -> list[bytes]:
        return blobs(self.rows(np.arange(len(self)))[1][:, : self.id_size])

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Nothing to fetch: all is in memory."""

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        return ranks

    def find(self, bounds: Bounds) -> Ints:
        return self.snapshot().find(bounds)

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        return self.snapshot().sums(lower, upper)

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        return self.snapshot().xors(lower, upper)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        return self.snapshot().rows(ranks)

    def _parsed(self, timestamps: ArrayLike, ids: Rows | Sequence[bytes]) -> tuple[Stamps, Rows]:
        """The caller's records as columns; BadInput for a timestamp out of range or an id of another size."""
        stamps, id_size = np.asarray(timestamps), self.id_size
        if stamps.dtype.kind not in "iu":  # values on both sides of 2^63: numpy makes them floats
            values = np.asarray(timestamps, dtype=object).tolist()
            for number, value in enumerate(values):
                if not isinstance(value, int | np.integer) or not 0 <= value <= INFINITY:
                    text = f"timestamp {value!r} is no whole number from 0 to 2^64 - 2"
                    raise BadInput(text, place=number, value=value)
            stamps = np.array(values, dtype=np.uint64)
        if len(below := flagged(stamps < 0)):
            value = int(stamps[below[0]])
            raise BadInput(f"timestamp {value} is below 0", place=int(below[0]), value=value)
        if isinstance(ids, np.ndarray) and (ids.ndim != 2 or ids.dtype != np.uint8):
            raise Misuse(f"ids are {ids.dtype} of shape {ids.shape}, must be uint8 of shape (n, {id_size})")
        for number, size in enumerate([ids.shape[1]] if isinstance(ids, np.ndarray) else map(len, ids)):
            if size != id_size:
                text = f"id {number} has {size} bytes, must have {id_size}"
                raise BadInput(text, place=number, size=size, id_size=id_size)
        if not isinstance(ids, np.ndarray):
            ids = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), id_size)
        if len(stamps) != len(ids):
            raise Misuse(f"{len(stamps)} timestamps and {len(ids)} ids", timestamps=len(stamps), ids=len(ids))
        return stamps.astype(np.uint64), padded(ids, id_size)


def check_id_size(id_size: int) -> int:
    if id_size not in ID_SIZES:
        raise Misuse(f"id_size is {id_size}, must be from {ID_SIZES[0]} to {ID_SIZES[-1]}", id_size=id_size)
    return id_size


def sorted_records(stamps: Stamps, rows: Rows, id_size: int) -> Columns:
    """The records, sorted; BadInput that names an id with the reserved timestamp."""
    if len(reserved := flagged(stamps == np.uint64(INFINITY))):
        id = rows[reserved[0], :id_size].tobytes().hex()
        raise BadInput(f"timestamp 2^64 - 1 of id {id} is reserved", timestamp=INFINITY, id=id)
    return Columns.sorted_from(stamps, rows)


def _checked(stamps: Stamps, rows: Rows, id_size: int) -> Columns:
    """The records, sorted; BadInput that names a reserved timestamp or a duplicate id."""
    records = sorted_records(stamps, rows, id_size)
    if (records.beginnings[1:] == records.beginnings[:-1]).any():  # equal first limbs: compare whole ids
        ids = np.sort(texts(records.ids))
        if len(equal := flagged(ids[1:] == ids[:-1])):
            raise _twice(ids[equal[0]].ljust(id_size, b"\0"))
    return records


def _twice(id: bytes) -> BadInput:
    return BadInput(f"id {id.hex()} is there twice", id=id.hex())


class Window:
    """The records of a set with ``since <= timestamp <= until``, as a set.

    Cost: two bounds are looked up once; then every method is that of the whole set, with ranks shifted.

    >>> items = ItemSet.from_arrays([1, 2, 3], [b"a" * 32, b"b" * 32, b"c" * 32]); items.seal()
    >>> len(Window(items, since=2))
    2
    """

    def __init__(self, items: Items, since: int = 0, until: int = INFINITY - 1) -> None:
        if not 0 <= since <= until < INFINITY:
            raise Misuse(f"since is {since} and until {until}: must be 0 <= since <= until < 2^64 - 1")
        self._items = items.snapshot()
        self.id_size = items.id_size
        ends = self._items.find(Bounds.of([since, until + 1], [b"", b""], items.id_size))
        self._start, self._end = int(ends[0]), int(ends[1])

    def __len__(self) -> int:
        return self._end - self._start

    def find(self, bounds: Bounds) -> Ints:
        return np.asarray(np.clip(self._items.find(bounds), self._start, self._end) - self._start, dtype=np.int64)

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        return self._items.sums(lower + self._start, upper + self._start)

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        return self._items.xors(lower + self._start, upper + self._start)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        return self._items.rows(ranks + self._start)

    def expect(self, upper: Bounds, whole: Flags) -> None:
        self._items.expect(upper, whole)

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        start = self._start
        return np.asarray(self._items.cuts(ranks + start, lower + start, upper + start) - start, dtype=np.int64)

    def snapshot(self) -> Window:
        return self
