"""The persisted part of the engine: what a topic knows from its log alone.

    memory = fold(apply, entries, nothing)

Nothing else changes it, so all memories that read the same log are equal: one that was there all along, one rebuilt
after a crash, and one restored from a snapshot. So ``apply`` never asks what is pending, what time it is, or whether a
limit is reached: it accepts whatever the log holds. Even a purge ignores what is pending; a message that lands after it
brings its producer back, above the floor that the purge left.

    Highest, Gapped    one producer: the highest stored sequence, or every stored one, as the gaps between them
    Floors             the floors of forgotten producers, in a table of fixed size
    Keys               Idempotency-Keys, for as long as their senders are expected to retry
    Memory             all of these: the fold, and its snapshot

Cost: O(1) per entry (O(log gaps) below the head), O(producers) per purge.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, islice, pairwise
from operator import attrgetter
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from onefold.errors import BadInput, Misuse
from onefold.intervals import Gaps
from onefold.producers import records
from onefold.producers.records import Kind, Part, Pushed, SequenceBounds, SequenceEntry


@dataclass(slots=True)
class Floors:
    """What is kept of forgotten producers.

    A hash of the name selects one of ``count`` buckets, which keeps the highest sequence and epoch ever forgotten in
    it. At or below that floor, a message of an unknown producer is UNSURE, never FIRST. Names that share a bucket share
    its floor, which can make an answer UNSURE but never counts a duplicate.

    >>> floors = Floors(65_536)
    >>> floors.forget("p", 41, epoch=2)
    >>> floors.sequence("p"), floors.epoch("p"), floors.sequence("q")
    (41, 2, -1)
    """

    count: int
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def _bucket(self, name: str) -> int:
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") % self.count

    def sequence(self, name: str) -> int:
        """The highest sequence forgotten in the bucket of ``name``; -1: none."""
        return self.sequences.get(self._bucket(name), -1) if self.sequences else -1

    def epoch(self, name: str) -> int:
        """The highest epoch forgotten in the bucket of ``name``; 0: none."""
        return self.epochs.get(self._bucket(name), 0) if self.epochs else 0

    def forget(self, name: str, sequence: int, epoch: int) -> None:
        bucket = self._bucket(name)
        if sequence > self.sequences.get(bucket, -1):
            self.sequences[bucket] = sequence
        if epoch > self.epochs.get(bucket, 0):
            self.epochs[bucket] = epoch


class StoredKey(NamedTuple):
    time_ms: int
    digest: int


@dataclass(slots=True)
class Keys:
    """The Idempotency-Keys in the log that have not expired.

    A key is remembered with the digest of its payload for ``ms`` after the time of its record. Keys are in the order of
    the log and their times never fall, so the oldest is at the front. `judge` ignores expired keys but removes none,
    else the memory would not be a function of the log.

    An expired key is removed only when its room is needed: if the clock was ahead, the key is known again once it is
    right. When the clock is set back, keys with a time ahead of it get the new time, so that none is remembered for
    longer than ``ms`` from then on. Cost: O(1) amortised per key.

    >>> keys = Keys(count_max=100, ms=1000)
    >>> keys.store("a", 7, 5000)
    >>> keys.get("a", 5999), keys.get("a", 6000)
    (StoredKey(time_ms=5000, digest=7), None)
    """

    count_max: int = field(compare=False)
    ms: int = field(compare=False)
    stored: OrderedDict[str, StoredKey] = field(default_factory=OrderedDict)

    def get(self, key: str, now_ms: int) -> StoredKey | None:
        stored = self.stored.get(key)
        return None if stored is None or stored.time_ms + self.ms <= now_ms else stored

    def judge(self, key: str, digest: int, now_ms: int, pending: Mapping[str, int]) -> Pushed:
        """Whether a message with this key is stored, being written (in ``pending``), or new."""
        stored = self.get(key, now_ms)
        if stored is not None:
            same = stored.digest == digest or records.NO_DIGEST in (stored.digest, digest)
            return records.KNOWN_KEY if same else records.CONFLICT
        if key in pending:
            return records.IN_FLIGHT
        over = len(self.stored) + len(pending) - self.count_max
        if over < 0:
            return records.NEW
        # The oldest ``over + 1`` keys must have expired to make room: it is enough to look at the last of them.
        last = next(islice(self.stored.values(), over, None), None)
        return records.KEYS_FULL if last is None or last.time_ms + self.ms > now_ms else records.NEW

    def store(self, key: str, digest: int, time_ms: int) -> None:
        if self.stored:
            time_ms = max(time_ms, next(reversed(self.stored.values())).time_ms)
        self.stored.pop(key, None)
        while len(self.stored) >= self.count_max and next(iter(self.stored.values())).time_ms + self.ms <= time_ms:
            self.stored.popitem(last=False)
        self.stored[key] = StoredKey(time_ms, digest)

    def set_clock(self, ahead_ms: int, now_ms: int) -> None:
        for key, (time_ms, digest) in self.stored.items():
            self.stored[key] = StoredKey(min(time_ms + ahead_ms, now_ms), digest)


DIGEST: Final = Struct("<qI")
_MASK: Final = 0xFFFF_FFFF


class Highest:
    """One producer, as published: the highest stored sequence; all lower ones count as stored.

    Whether a sequence at or below ``forgotten`` was stored is not known: `unseen` lists it, and the caller must check
    ``forgotten`` before writing it. With the digests of the last few sequences, about 0.5 kB per producer.

    >>> p = Highest()
    >>> p.store(5, 6)
    >>> p.unseen(4, 6), p.unseen(5, 9)
    ((), ((7, 9),))
    """

    __slots__ = ("digests", "epoch", "forgotten", "head", "time_ms")

    holes = False
    repeat: Pushed = records.BEHIND_HIGHEST

    def __init__(self, forgotten: int = -1) -> None:
        self.head = -1
        self.forgotten = forgotten
        self.epoch = 0
        self.time_ms = 0
        self.digests = b""

    def unseen(self, low: int, high: int) -> tuple[Part, ...]:
        """The parts of ``low..high`` that are not known to be stored, ascending."""
        head, forgotten = self.head, self.forgotten
        if low > head:
            return ((low, high),)
        new = ((head + 1, high),) if high > head else ()
        # At or below ``forgotten`` it may have been stored or left out.
        return ((low, min(high, forgotten)), *new) if low <= forgotten else new

    def store(self, low: int, high: int, gap_count_max: int = 0) -> None:
        if high > self.head:
            self.head = high

    def gaps(self) -> list[Part]:
        """Every ``(lower, upper]`` below the head that was never stored, ascending."""
        return []

    def note(self, low: int, digests: Sequence[int], count_max: int) -> None:
        """Remember the digests of a run that begins at ``low``; only the newest ``count_max`` of all are kept."""
        if count_max:
            first = low + max(0, len(digests) - count_max)
            newest = enumerate(digests[-count_max:], first)
            packed = [DIGEST.pack(at, digest & _MASK) for at, digest in newest if digest != records.NO_DIGEST]
            self.digests = (self.digests + b"".join(packed))[-DIGEST.size * count_max :]

    def contradicts(self, low: int, high: int, digests: Sequence[int]) -> bool:
        """Whether one of ``low..high`` is stored with another digest."""
        newest = dict(DIGEST.iter_unpack(self.digests))  # if a sequence is in the log twice, the newest counts
        known = ((digest, digests[at - low]) for at, digest in newest.items() if low <= at <= high)
        return any(other not in (digest, records.NO_DIGEST) and digest != other & _MASK for digest, other in known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Highest) and self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        return self.repeat, self.head, self.forgotten, self.epoch, self.time_ms, self.digests, self.gaps()

    def __str__(self) -> str:
        return str(self.head)


_NO_GAPS: Final = Gaps[int]()
"""Shared by all producers without gaps, which are most; never changed."""


class Gapped(Highest):
    """One producer with every stored sequence, kept as the gaps between them.

    >>> p = Gapped()
    >>> p.store(5, 6, 10); p.store(9, 12, 10); print(p)
    (-1, 4] (6, 8] 12
    >>> p.unseen(6, 14)
    ((7, 8), (13, 14))
    """

    __slots__ = ("_gaps",)

    holes = True
    repeat = records.SEEN

    def __init__(self, forgotten: int = -1) -> None:
        super().__init__(forgotten)
        self._gaps = _NO_GAPS

    def unseen(self, low: int, high: int) -> tuple[Part, ...]:
        edge = max(self.head, self.forgotten)
        if low > edge:
            return ((low, high),)
        parts = [(low, min(high, self.forgotten))] if low <= self.forgotten else []
        parts.extend(self._missing(low, high))
        if high > edge:
            parts.append((edge + 1, high))
        return tuple(parts)

    def _missing(self, low: int, high: int) -> Iterator[Part]:
        gaps = self._gaps
        for i in range(max(gaps.locate(low), 0), len(gaps)):
            start, end = max(gaps.lowers[i] + 1, low), min(gaps.uppers[i], high)
            if start > high:
                return
            if start <= end:
                yield start, end

    def store(self, low: int, high: int, gap_count_max: int = 0) -> None:
        """Store ``low..high``. Equal to one by one, where only the first can divide or open a gap."""
        if low > self.head:
            edge = max(self.head, self.forgotten)
            if low - 1 > edge:
                self._gaps = self._gaps or Gaps()
                self._gaps.append(edge, low - 1)
                self._forget(gap_count_max)
        else:
            self._fill(low, low)
            self._forget(gap_count_max)
            self._fill(low + 1, high)
        if high > self.head:
            self.head = high

    def _fill(self, low: int, high: int) -> None:
        for start, end in list(self._missing(low, high)):
            self._gaps.fill(self._gaps.locate(start), start - 1, end)

    def _forget(self, gap_count_max: int) -> None:
        while len(self._gaps) > gap_count_max:
            self.forgotten = self._gaps.drop_lowest()

    def gaps(self) -> list[Part]:
        return list(self._gaps)

    def __str__(self) -> str:
        forgot = [f"forgot {self.forgotten}"] if self.forgotten >= 0 else []
        return " ".join([*forgot, *(f"({lower}, {upper}]" for lower, upper in self.gaps()), str(self.head)])


_MESSAGE, _CONFLICT, _OPEN, _PURGE, _SWITCH, _KEYED, _RESET, _CLOCK = Kind


@dataclass(slots=True)
class Memory:
    """A fold over the entries of a log. Two are equal if they answer alike, whatever their limits."""

    bounds: SequenceBounds = field(compare=False)
    on: bool = True
    producers: dict[str, Highest] = field(default_factory=dict)
    floors: Floors = field(init=False)
    keys: Keys = field(init=False)
    new: type[Highest] = field(init=False)

    def __post_init__(self) -> None:
        self.floors = Floors(self.bounds.floors_count)
        self.keys = Keys(self.bounds.keys_max, self.bounds.keys_ms)
        self.new = Gapped if self.bounds.memory == "gaps" else Highest

    def blank(self, producer: str) -> Highest:
        """The state of a producer that the memory does not hold: its floor."""
        return self.new(self.floors.sequence(producer))

    def _producer(self, name: str) -> Highest:
        return self.producers.get(name) or self.producers.setdefault(name, self.blank(name))

    def apply(self, entry: SequenceEntry) -> None:
        kind, producer, sequence, epoch, digest, time_ms = entry
        if kind == _MESSAGE:
            self.run(producer, sequence, sequence, epoch, None if digest < 0 else (digest,), time_ms)
        elif kind == _KEYED:
            if self.on:
                self.keys.store(producer, digest, time_ms)
        elif kind == _OPEN:
            self._open(producer, epoch, time_ms)
        elif kind == _PURGE:
            for name in [name for name, state in self.producers.items() if state.time_ms < sequence]:
                state = self.producers.pop(name)
                self.floors.forget(name, max(state.head, state.forgotten), state.epoch)
        elif kind == _SWITCH:
            self.on = bool(sequence)
            if not self.on:
                # Epochs outlive the switch: fenced instances stay fenced off, and no epoch is assigned twice.
                opened = {name: state for name, state in self.producers.items() if state.epoch}
                self.producers.clear()
                self.floors.sequences.clear()
                self.keys.stored.clear()
                for name, state in opened.items():
                    self._open(name, state.epoch, state.time_ms)
        elif kind == _RESET:
            if self.on:  # else no sequences are remembered
                blank = self.new()  # without the floor of its bucket
                blank.epoch = self.producers[producer].epoch if producer in self.producers else 0
                blank.time_ms = time_ms
                self.producers[producer] = blank
        elif kind == _CLOCK:
            # Set ahead, ages stay as they are; set back, no time may lie ahead of the present.
            ahead = max(0, time_ms - sequence)
            for state in self.producers.values():
                state.time_ms = min(state.time_ms + ahead, time_ms)
            self.keys.set_clock(ahead, time_ms)
        elif kind != _CONFLICT:
            raise BadInput(f"an entry of the unknown kind {kind}: {entry}", kind=kind)

    def run(self, producer: str, low: int, high: int, epoch: int, digests: Sequence[int] | None, time_ms: int) -> None:
        """Apply messages ``low..high`` of one producer at once: equal to applying them one by one."""
        if not self.on:
            return
        state = self.producers.get(producer) or self._producer(producer)
        state.store(low, high, self.bounds.gap_count_max)
        if epoch > state.epoch:  # its opening was removed from the log, or its producer was purged in between
            state.epoch = epoch
        if time_ms > state.time_ms:
            state.time_ms = time_ms
        if digests is not None:
            state.note(low, digests, self.bounds.digests_max)

    def _open(self, producer: str, epoch: int, time_ms: int) -> None:
        state = self._producer(producer)
        state.epoch = max(state.epoch, epoch)
        state.time_ms = max(state.time_ms, time_ms)


MAGIC: Final = b"OFP2"
_HEAD: Final = Struct("<4sI")
_HEADER: Final = Struct("<BB 7q 4Q")
_OLD_MAGIC: Final = b"OFP1"
_OLD_HEADER: Final = Struct("<BB 6q 4Q")
"""Of snapshots without jump_max."""
_INT64: Final = np.dtype("<i8")
_UINT32: Final = np.dtype("<u4")


def encode(memory: Memory) -> bytes:
    """The whole memory in a few columns, so that 100,000 producers take milliseconds.

        magic, CRC-32 of all that follows
        header      memory, on/off, the settings, and how many rows each table has
        producers   head, forgotten, epoch, time; lengths of name, digests and gaps; then these, concatenated
        floors      bucket and sequence; bucket and epoch
        keys        time, digest and length; then the keys, concatenated

    All integers are little endian.
    """
    bounds, floors, keys = memory.bounds, memory.floors, memory.keys.stored
    states = list(memory.producers.values())
    names = [name.encode() for name in memory.producers]
    gaps = [state.gaps() for state in states] if bounds.memory == "gaps" else [[]] * len(states)
    counts = len(states), len(floors.sequences), len(floors.epochs), len(keys)
    parts = [
        _HEADER.pack(bounds.memory == "gaps", memory.on, *bounds[1:-1], bounds.jump_max or 0, *counts),
        *(_column(map(attrgetter(name), states)) for name in ("head", "forgotten", "epoch", "time_ms")),
        _column(map(len, names), _UINT32),
        _column([len(state.digests) for state in states], _UINT32),
        _column(map(len, gaps), _UINT32),
        *names,
        *(state.digests for state in states),
        _column([bound for of_one in gaps for gap in of_one for bound in gap]),
        *(_column(column) for table in (floors.sequences, floors.epochs) for column in (table, table.values())),
        *(_column(map(attrgetter(name), keys.values())) for name in ("time_ms", "digest")),
        _column([len(key.encode()) for key in keys], _UINT32),
        *(key.encode() for key in keys),
    ]
    body = b"".join(parts)
    return _HEAD.pack(MAGIC, crc32(body)) + body


def decode(data: bytes, settings: Mapping[str, Any]) -> Memory:
    """Decode a memory; ``settings`` replace those it was encoded with.

    The CRC detects accidental damage. The values are validated too, so that foreign bytes raise `BadInput` and never
    become a wrong memory.
    """
    layout = _OLD_HEADER if data[: len(MAGIC)] == _OLD_MAGIC else _HEADER
    if len(data) < _HEAD.size + layout.size or data[: len(MAGIC)] not in (MAGIC, _OLD_MAGIC):
        raise BadInput(f"not a snapshot of producers: {len(data)} bytes that begin {data[:4].hex()!r}", offset=0)
    if _HEAD.unpack_from(data)[1] != crc32(memoryview(data)[_HEAD.size :]):
        raise BadInput(f"damaged snapshot of producers: the CRC of its {len(data)} bytes is wrong", offset=4)
    gapped, on, *numbers = layout.unpack_from(data, _HEAD.size)
    if layout is _OLD_HEADER:
        numbers.insert(6, 0)
    if max(gapped, on) > 1:
        raise BadInput(f"snapshot of producers with unknown flags {gapped}, {on}", offset=_HEAD.size)
    try:
        numbers[6] = numbers[6] or None
        old = SequenceBounds("gaps" if gapped else "highest", *numbers[:7]).checked()
    except Misuse as error:
        raise BadInput(f"snapshot of producers with impossible settings: {error}") from error
    bounds = old._replace(**settings).checked()
    count = bounds.floors_count
    if numbers[8] + numbers[9] and count != old.floors_count:
        text = f"floors_count is {count}, but the snapshot has floors in {old.floors_count} buckets"
        raise Misuse(text, floors_count=count)
    try:
        memory = Memory(bounds)
        memory.on = bool(on)
        reader = _Reader(data, _HEAD.size + layout.size)
        _read_producers(reader, memory, old, numbers[7])
        memory.floors.sequences = dict(zip(reader.column(numbers[8]), reader.column(numbers[8]), strict=True))
        memory.floors.epochs = dict(zip(reader.column(numbers[9]), reader.column(numbers[9]), strict=True))
        times, digests = reader.column(numbers[10]), reader.column(numbers[10])
        names = map(bytes.decode, reader.slices(reader.column(numbers[10], _UINT32)))
        memory.keys.stored.update(zip(names, map(StoredKey, times, digests), strict=True))
        reader.end()
    except (ValueError, UnicodeDecodeError, OverflowError) as error:
        raise BadInput(f"snapshot of producers that contradicts itself: {error}") from error
    return memory


def _read_producers(reader: _Reader, memory: Memory, old: SequenceBounds, count: int) -> None:
    heads, forgotten, epochs, times = (reader.column(count) for _ in range(4))
    name_lengths, digest_lengths, gap_counts = (reader.column(count, _UINT32) for _ in range(3))
    names = map(bytes.decode, reader.slices(name_lengths))
    digests = reader.slices(digest_lengths)
    bounds = reader.column(2 * sum(gap_counts))
    keep, gap = DIGEST.size * memory.bounds.digests_max, 0
    for i, name in enumerate(names):
        if heads[i] < -1 or forgotten[i] < -1 or epochs[i] < 0 or digest_lengths[i] % DIGEST.size:
            raise ValueError(f"producer {name!r} has head {heads[i]}, floor {forgotten[i]}, epoch {epochs[i]}")
        state = memory.new(forgotten[i])
        state.head, state.epoch, state.time_ms = heads[i], epochs[i], times[i]
        state.digests = digests[i][-keep:] if keep else b""
        gap, start = gap + 2 * gap_counts[i], gap
        if isinstance(state, Gapped):
            if old.memory == "highest":
                state.forgotten = max(state.forgotten, state.head)
            if gap > start:
                # Gaps begin at or above ``forgotten``, end below the head, and neither touch nor overlap.
                edges = [forgotten[i], *bounds[start:gap], heads[i]]
                steps = [upper - lower for lower, upper in pairwise(edges)]
                if steps[0] < 0 or min(steps[1:]) < 1:
                    raise ValueError(f"gaps out of order: {edges}")
                state._gaps = Gaps(list(zip(bounds[start:gap:2], bounds[start + 1 : gap : 2], strict=True)))
        memory.producers[name] = state
    if len(memory.producers) != count:
        raise ValueError("a producer is in it twice")


def _column(values: Iterable[int], dtype: npt.DTypeLike = _INT64) -> bytes:
    return np.fromiter(values, dtype).tobytes()


class _Reader:
    """Reads columns one after another; every length is checked before it is used."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"{size} bytes wanted at byte {start} of {len(self._data)}")
        return self._data[start : self._at]

    def column(self, count: int, dtype: np.dtype[Any] = _INT64) -> list[int]:
        column: list[int] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return column

    def slices(self, lengths: Sequence[int]) -> list[bytes]:
        data = self._take(sum(lengths))
        ends = list(accumulate(lengths))
        return [data[end - length : end] for length, end in zip(lengths, ends, strict=True)]

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"it goes on after its end at byte {self._at}")
