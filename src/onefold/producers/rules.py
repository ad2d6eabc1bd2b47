"""Is this message stored already? Answered before it is written, so that no crash and no retry loses or doubles it.

A producer numbers its messages. For each producer there are two numbers, in two maps:

    pushed       the highest sequence that was given to the store
    persisted    the highest sequence that the store has confirmed

    sequence > pushed                   FIRST     write it
    sequence > pushed + jump_max        REJECT    too far ahead, if jump_max is set
    sequence <= persisted               REPEAT    it is in the log: confirm it, and write nothing
    persisted < sequence <= pushed      UNSURE    it is being written, which may still fail: the sender must try again

The last answer must not be REPEAT: the sender would take the message for stored, and if the write then fails, it is
lost. When a write fails while others are in flight, the topic is *fenced*: everything is UNSURE until the last of them
has returned. Then pushed falls back to persisted, and the retry of the failed message is FIRST.

Persisted is the `Memory`, a fold over the log: recovery = snapshot + the rest of the log. Pushed is the overlay: what
is in flight (parts, openings, keys), and is lost in a crash. A producer with nothing in flight has pushed = persisted,
so lifting a fence needs no undo. With ``memory="gaps"`` both hold ranges instead of one number, so that a lower
sequence that was never stored is FIRST. A partly stored batch is FIRST with the parts that are new.

From: Pulsar PIP-6; epochs, floors, digests, keys and jumps are ours. Cost: O(1) at the head, O(log gaps) below it; a
store that does not answer in the order of the pushes costs O(parts of the producer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from onefold.errors import BadInput, Busy, Misuse
from onefold.producers import records
from onefold.producers.records import Kind, Part, Pushed, SequenceBounds, SequenceEntry
from onefold.producers.state import Highest, Memory, decode, encode
from onefold.verdict import Verdict


@dataclass(slots=True)
class Flight:
    """The parts of one producer that are being written, in the order of their pushes."""

    parts: deque[Part] = field(default_factory=deque)
    high: int = -1

    def overlaps(self, parts: tuple[Part, ...]) -> bool:
        return any(low <= end and start <= high for low, high in parts for start, end in self.parts)

    def take(self, sequence: int) -> Part | None:
        for i, part in enumerate(self.parts):
            if part[0] <= sequence <= part[1]:
                del self.parts[i]
                return part
        return None


class Sequences:
    """Judges the messages of all producers of one topic.

    >>> s = Sequences()
    >>> print(s.push("p", 5), s.push("p", 5), s.push("p", 6), sep=", ")
    FIRST new, UNSURE in_flight, FIRST new
    >>> s.persist("p", 5); s.fail("p", 6)
    >>> print(s.push("p", 5), s.push("p", 4, high=9), sep=", ")
    REPEAT behind_highest, FIRST rest_of_batch
    >>> s.last_sequence_id("p"), s.pushed["p"]
    (5, 9)
    """

    __slots__ = ("_flights", "_keys", "_memory", "_openings", "fenced")

    def __init__(self, memory: records.MemoryKind = "highest", **limits: Any) -> None:
        """Start with an empty log; for the limits see `SequenceBounds`."""
        self._memory = Memory(SequenceBounds(memory, **limits).checked())
        self.forget_overlay()

    def forget_overlay(self) -> None:
        """Discard everything pending: a whole group of writes failed."""
        self._flights: dict[str, Flight] = {}
        self._openings: dict[str, list[int]] = {}
        self._keys: dict[str, int] = {}
        self.fenced = False

    def push(
        self,
        producer: str,
        sequence: int,
        *,
        high: int | None = None,
        epoch: int | None = None,
        digests: Sequence[int] | None = None,
    ) -> Pushed:
        """Judge a message, or the batch ``sequence..high``; the parts of a FIRST are pending afterwards.

        Every part of a FIRST must be reported by `persist` or `fail`. ``digests`` holds one digest of the payload per
        sequence: with them, a repeat that differs from what is stored is REJECT. Never raises on a message.
        """
        high = sequence if high is None else high
        if type(sequence) is not int or type(high) is not int or not 0 <= sequence <= high <= records.SEQUENCE_MAX:
            return records.BAD_SEQUENCE
        state = self._memory.producers.get(producer) if type(producer) is str else None
        if state is None and not records.valid_name(producer):
            return records.BAD_NAME
        if digests is not None:
            records.one_each(digests, sequence, high)
        if not self._memory.on:
            if epoch is not None and (type(epoch) is not int or not 0 <= epoch <= records.EPOCH_MAX):
                return records.UNKNOWN_EPOCH  # a log could not hold it
            return self._first(producer, records.SWITCHED_OFF, ((sequence, high),))
        if self.fenced:
            return records.FENCED
        if state is None or state.epoch != (epoch or 0) or self._openings:
            state = state or self._memory.blank(producer)
            refusal = self._refusal(producer, state, epoch or 0)
            if refusal is not None:
                return refusal
        return self._judge(producer, state, sequence, high, digests)

    def _judge(self, producer: str, state: Highest, low: int, high: int, digests: Sequence[int] | None) -> Pushed:
        if digests is not None and low <= state.head and state.contradicts(low, high, digests):
            return records.CONFLICT
        parts = state.unseen(low, high)
        if not parts:
            return state.repeat
        start, end = parts[0]
        if start <= state.forgotten:
            return records.FORGOTTEN
        flight = self._flights.get(producer)
        jump_max = self._memory.bounds.jump_max
        if jump_max is not None:
            highest = state.head if flight is None else max(state.head, flight.high)
            if start - highest > jump_max and highest >= 0:
                return records.JUMP_TOO_FAR
        # A memory without holes cannot store anything below the highest pushed sequence.
        if flight is not None and start <= flight.high and (not state.holes or flight.overlaps(parts)):
            return records.IN_FLIGHT
        if start != low or end != high:
            return self._first(producer, records.REST_OF_BATCH, parts)
        return self._first(producer, records.NEW if low > state.head else records.FILLS_GAP, parts)

    def _first(self, producer: str, answer: Pushed, parts: tuple[Part, ...]) -> Pushed:
        flight = self._flights.get(producer)
        if flight is None:
            flight = self._flights[producer] = Flight()
        flight.parts.extend(parts)
        if (high := parts[-1][1]) > flight.high:
            flight.high = high
        return answer.of(parts)

    def _refusal(self, producer: str, state: Highest, epoch: int) -> Pushed | None:
        """Why the producer may not write now: its epoch is not the current one, or there is no room for it."""
        if type(epoch) is not int or epoch < 0:
            return records.UNKNOWN_EPOCH
        if 0 < epoch < state.epoch:
            return records.STALE_EPOCH
        if producer in self._openings:
            return records.IN_FLIGHT
        if epoch > state.epoch:
            return records.FORGOTTEN if epoch <= self._memory.floors.epoch(producer) else records.UNKNOWN_EPOCH
        if epoch < state.epoch:
            return records.EPOCH_MISSING
        return records.PRODUCERS_FULL if self._full(producer) else None

    def _full(self, producer: str) -> bool:
        stored, flights, openings = self._memory.producers, self._flights, self._openings
        room = self._memory.bounds.producers_max - len(stored)
        if room > len(flights) + len(openings) or producer in stored or producer in flights or producer in openings:
            return False
        return room <= len({*flights, *openings} - stored.keys())

    def persist(
        self, producer: str, sequence: int, *, epoch: int = 0, digests: Sequence[int] | None = None, time_ms: int = 0
    ) -> None:
        """The pending part with this sequence is stored; `Misuse` if there is none. Call it in the order of the log."""
        low, high = self._land(producer, sequence)
        self.apply_run(producer, low, high, epoch, digests, time_ms)

    def fail(self, producer: str, sequence: int) -> None:
        """The pending part that holds this sequence will never be stored: fence the topic while others are pending."""
        self._land(producer, sequence)
        self.fenced = bool(self._flights)

    def _land(self, producer: str, sequence: int) -> Part:
        flight = self._flights.get(producer)
        part = flight.take(sequence) if flight else None
        if flight is None or part is None:
            raise Misuse(f"nothing pending of {producer!r} holds {sequence}", producer=producer, sequence=sequence)
        if not flight.parts:
            del self._flights[producer]
            self.fenced = self.fenced and bool(self._flights)
        return part

    def push_open(self, producer: str) -> int:
        """Assign the producer its next epoch; until `persist_open`, everything it sends is UNSURE.

        Only the newest epoch may send: older instances are fenced off. No epoch is assigned twice, not even after the
        producer was forgotten. `Busy` if there is no room for a new producer.
        """
        if not records.valid_name(producer):
            raise Misuse(f"{producer!r} cannot be opened: {records.RULES[records.BAD_NAME]}", producer=producer)
        if self._full(producer):
            raise Busy(f"{producer!r} is new, and producers_max is reached: {self}", producer=producer)
        openings = self._openings.setdefault(producer, [])
        openings.append(max(self.epoch(producer), self._memory.floors.epoch(producer), *openings) + 1)
        return openings[-1]

    def persist_open(self, producer: str, epoch: int, time_ms: int) -> None:
        self.fail_open(producer, epoch)  # no longer pending
        self.apply(SequenceEntry(Kind.OPEN, producer, epoch=epoch, time_ms=time_ms))

    def fail_open(self, producer: str, epoch: int) -> None:
        """The opening with this epoch was not stored: the old epoch stays valid."""
        openings = self._openings.get(producer, [])
        if epoch not in openings:
            raise Misuse(f"no opening of {producer!r} with epoch {epoch} is pending", producer=producer, epoch=epoch)
        openings.remove(epoch)
        if not openings:
            del self._openings[producer]

    def push_key(self, key: str, digest: int, now_ms: int) -> Pushed:
        """Judge a message with an Idempotency-Key instead of a sequence; a FIRST is pending afterwards."""
        if not records.valid_name(key):
            return records.BAD_NAME
        on = self._memory.on
        if on and self.fenced:
            return records.FENCED
        answer = self._memory.keys.judge(key, digest, now_ms, self._keys) if on else records.SWITCHED_OFF
        if answer.verdict is Verdict.FIRST:
            self._keys[key] = self._keys.get(key, 0) + 1  # more than one only while deduplication is off
        return answer

    def persist_key(self, key: str, digest: int, time_ms: int) -> None:
        self.fail_key(key)  # no longer pending
        self.apply(SequenceEntry(Kind.KEYED, key, digest=digest, time_ms=time_ms))

    def fail_key(self, key: str) -> None:
        """The message with this key was not stored: a retry is new."""
        if key not in self._keys:
            raise Misuse(f"no message with the key {key!r} is pending", key=key)
        self._keys[key] -= 1
        if not self._keys[key]:
            del self._keys[key]

    def apply(self, entry: SequenceEntry) -> None:
        """Apply the next entry of the log to the memory. (`persist` removes it from the overlay, then applies it.)"""
        self._memory.apply(entry)

    def apply_run(
        self, producer: str, low: int, high: int, epoch: int, digests: Sequence[int] | None, time_ms: int
    ) -> None:
        """Apply the next entries of the log, messages ``low..high`` of one producer: like `apply` one by one."""
        if digests is not None:
            records.one_each(digests, low, high)
        self._memory.run(producer, low, high, epoch, digests, time_ms)

    def snapshot(self) -> bytes:
        """The memory with its settings, without the overlay; it belongs to the position of the next entry."""
        return encode(self._memory)

    @classmethod
    def restore(cls, data: bytes, **settings: Any) -> Sequences:
        """Continue from a ``snapshot``; settings given here replace those of the snapshot.

        Damaged or foreign bytes raise `BadInput`. From ``highest`` to ``gaps``, everything up to the highest sequence
        counts as forgotten: the snapshot does not say which of it was stored.
        """
        restored = cls()
        restored._memory = decode(data, settings)
        return restored

    def last_sequence_id(self, producer: str) -> int:
        """The highest persisted sequence; -1: none. Continuing after the pushed one would lose a failed write."""
        return state.head if (state := self._memory.producers.get(producer)) else -1

    def floor(self, producer: str) -> int:
        """Sequences at or below it were forgotten: UNSURE unless known to be stored; -1: no floor."""
        return (self._memory.producers.get(producer) or self._memory.blank(producer)).forgotten

    def epoch(self, producer: str) -> int:
        """The newest epoch of this producer; 0: none."""
        return state.epoch if (state := self._memory.producers.get(producer)) else 0

    @property
    def producers(self) -> Mapping[str, Highest]:
        return MappingProxyType(self._memory.producers)

    @property
    def stored(self) -> Pushed:
        return records.SEEN if self._memory.bounds.memory == "gaps" else records.BEHIND_HIGHEST

    @property
    def persisted(self) -> Mapping[str, int]:
        """The highest stored sequence of every producer. Cost: O(producers)."""
        heads = {name: state.head for name, state in self._memory.producers.items() if state.head >= 0}
        return MappingProxyType(heads)

    @property
    def pushed(self) -> Mapping[str, int]:
        """The highest sequence of every producer that is stored or pending. Cost: O(producers)."""
        pending = {name: max(flight.high, self.last_sequence_id(name)) for name, flight in self._flights.items()}
        return MappingProxyType({**self.persisted, **pending})

    @property
    def pending(self) -> int:
        """How many parts, openings and keys are in flight."""
        parts = sum(len(flight.parts) for flight in self._flights.values())
        return parts + sum(map(len, self._openings.values())) + sum(self._keys.values())

    @property
    def switched_on(self) -> bool:
        """Whether this topic deduplicates."""
        return self._memory.on

    def __len__(self) -> int:
        return len(self._memory.producers)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequences) and self._memory == other._memory

    def __str__(self) -> str:
        state = "fenced, " * self.fenced + "off, " * (not self._memory.on)
        return f"{state}{len(self)} producers, {len(self._memory.keys.stored)} keys, {self.pending} pending"


class SequencesSnapshot(NamedTuple):
    """A memory with its position in the log; `recover` refuses a tail that does not begin there or that has a hole."""

    position: int
    """The offset of the first record that is not in the state."""
    state: bytes
    """From `Sequences.snapshot`."""


class RecoveredSequences(NamedTuple):
    sequences: Sequences
    position: int
    """The offset of the next record."""
    since_snapshot: int
    """How many records were replayed: they count towards the next snapshot."""


def recover(
    snapshot: SequencesSnapshot | None,
    tail: Iterable[tuple[int, SequenceEntry]],
    **settings: Any,
) -> RecoveredSequences:
    """The memory after the last entry of ``tail``, which holds ``(offset, entry)`` from the snapshot's position on.

    Without a snapshot the tail is the whole log, from offset 0. The memory equals one that never crashed; what was
    pushed and not persisted is lost, and its sender will try again. Cost: O(producers), and O(1) per entry of the tail.

    >>> log = [(offset, SequenceEntry(Kind.MESSAGE, "p", sequence)) for offset, sequence in enumerate([3, 4, 8])]
    >>> recover(None, log).sequences.last_sequence_id("p")
    8
    """
    start = 0 if snapshot is None else snapshot.position
    sequences = Sequences(**settings) if snapshot is None else Sequences.restore(snapshot.state, **settings)
    position, apply = start, sequences.apply
    for offset, entry in tail:
        if offset != position:
            raise BadInput(f"the log goes on at offset {offset}, not {position}", offset=offset, position=position)
        apply(entry)
        position += 1
    return RecoveredSequences(sequences, position, position - start)


class Cadence:
    """When to take a snapshot: after ``entries`` entries or ``ms`` after the last one, whichever is first.

    Replayed entries count, else a topic that crashes often would never take one.

    >>> cadence = Cadence(entries=10, ms=60_000)
    >>> cadence.note(9, now_ms=0); cadence.due(59_999), cadence.due(60_000)
    (False, True)
    >>> cadence.note(1, now_ms=5); cadence.due(5)
    True
    """

    __slots__ = ("_since_ms", "count", "entries", "ms")

    def __init__(self, entries: int, ms: int) -> None:
        if min(entries, ms) < 1:
            raise Misuse(f"a snapshot every {entries} entries or {ms} ms", entries=entries, ms=ms)
        self.entries = entries
        self.ms = ms
        self.count = 0
        self._since_ms: int | None = None

    def note(self, count: int, now_ms: int) -> None:
        if self._since_ms is None:
            self._since_ms = now_ms
        self.count += count

    def due(self, now_ms: int) -> bool:
        """Whether to take a snapshot now; never if nothing was added since the last one."""
        if not self.count or self._since_ms is None:
            return False
        return self.count >= self.entries or now_ms - self._since_ms >= self.ms

    def done(self, now_ms: int) -> None:
        self.count = 0
        self._since_ms = now_ms
