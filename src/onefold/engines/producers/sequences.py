"""Is this message stored already? Answered before it is written, so that no crash and no retry loses or doubles it.

A producer numbers its messages. For each producer there are two numbers, in two maps:

    pushed       the highest sequence that was given to the store
    persisted    the highest sequence that the store has confirmed

    sequence > pushed                   FIRST     write it
    sequence > pushed + jump_max        REJECT    it lies too far ahead to be believed, if jump_max is set
    sequence <= persisted               REPEAT    it is in the log: confirm it, and write nothing
    persisted < sequence <= pushed      UNSURE    it is on its way, and may still fail: the sender must try again

The answer between the two must not be REPEAT: the sender would take it for stored, and if the write then fails, the
message is lost. When a write fails while others are on their way, the topic is *fenced*: all is UNSURE until the last
of them is back. Then pushed falls back to persisted, and the retry of what failed is FIRST.

Persisted is the `Memory`, a fold over the log: recovery = snapshot + the rest of the log. Pushed is the `Overlay`, the
parts in flight; a crash throws it away. With ``memory="gaps"`` both know ranges instead of one number, so that a lower
sequence which was never stored is FIRST. A batch that was stored in part is FIRST with the parts that are new.

From: Pulsar PIP-6; epochs, floors, digests, keys and jumps are ours. Cost: O(1) at the head, O(log gaps) below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Unpack

from onefold.engines.producers import answers as A
from onefold.engines.producers import bounds as B
from onefold.engines.producers import snapshot as snapshots
from onefold.engines.producers.answers import Part, Pushed
from onefold.engines.producers.bounds import Bounds, MemoryKind, Settings
from onefold.engines.producers.known import Known
from onefold.engines.producers.memory import Memory
from onefold.engines.producers.names import SEQUENCE_MAX, valid_name
from onefold.engines.producers.overlay import Overlay
from onefold.engines.producers.records import Entry, Kind, one_each
from onefold.errors import Busy, Misuse
from onefold.verdict import Verdict


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

    __slots__ = ("_memory", "_overlay")

    def __init__(
        self,
        memory: MemoryKind = "highest",
        *,
        producers_max: int = B.PRODUCERS_MAX,
        gap_count_max: int = B.GAP_COUNT_MAX,
        digests_max: int = B.DIGESTS_MAX,
        floors_count: int = B.FLOORS_COUNT,
        keys_max: int = B.KEYS_MAX,
        keys_ms: int = B.KEYS_MS,
        jump_max: int | None = None,
    ) -> None:
        """Begin with an empty log.

        ``jump_max`` refuses a sequence that lies more than so much above the highest one pushed of its producer, so
        that one wrong number cannot make all honest ones repeats; None, the default, takes any, as published. The very
        first sequence of a producer has nothing to be measured by, and may be any.
        """
        bounds = Bounds(memory, producers_max, gap_count_max, digests_max, floors_count, keys_max, keys_ms, jump_max)
        self._memory = Memory(bounds.checked())
        self._overlay = Overlay()

    def push(
        self,
        producer: str,
        sequence: int,
        *,
        high: int | None = None,
        epoch: int | None = None,
        digests: Sequence[int] | None = None,
    ) -> Pushed:
        """Judge a message, or the batch ``sequence..high``; what is FIRST is pending from here on.

        Every part of a FIRST must be reported by `persist` or `fail`. ``digests`` are those of the payloads, one for
        each sequence: with them, a repeat that differs from what is stored is REJECT. Never raises on a message.
        """
        high = sequence if high is None else high
        if type(sequence) is not int or type(high) is not int or not 0 <= sequence <= high <= SEQUENCE_MAX:
            return A.BAD_SEQUENCE
        known = self._memory.producers.get(producer) if type(producer) is str else None
        if known is None and not valid_name(producer):
            return A.BAD_NAME
        if digests is not None:
            one_each(digests, sequence, high)
        if not self._memory.on:
            return self._first(producer, A.SWITCHED_OFF, ((sequence, high),))
        if self._overlay.fenced:
            return A.FENCED
        if known is None or known.epoch != (epoch or 0) or self._overlay.openings:
            known = known or self._memory.blank(producer)
            refusal = self._refusal(producer, known, epoch or 0)
            if refusal is not None:
                return refusal
        return self._judge(producer, known, sequence, high, digests)

    def _judge(self, producer: str, known: Known, low: int, high: int, digests: Sequence[int] | None) -> Pushed:
        if digests is not None and low <= known.head and known.contradicts(low, high, digests):
            return A.CONFLICT
        parts = known.unseen(low, high)
        if not parts:
            return known.repeat
        start, end = parts[0]
        if start <= known.forgotten:
            return A.FORGOTTEN
        flight = self._overlay.flights.get(producer)
        jump_max = self._memory.bounds.jump_max
        if jump_max is not None:
            highest = known.head if flight is None else max(known.head, flight.high)
            if start - highest > jump_max and highest >= 0:
                return A.JUMP_TOO_FAR
        # A memory without holes cannot take what lies below the highest pushed sequence any more.
        if flight is not None and start <= flight.high and (not known.holes or flight.overlaps(parts)):
            return A.IN_FLIGHT
        if start != low or end != high:
            return self._first(producer, A.REST_OF_BATCH, parts)
        return self._first(producer, A.NEW if low > known.head else A.FILLS_GAP, parts)

    def _first(self, producer: str, answer: Pushed, parts: tuple[Part, ...]) -> Pushed:
        self._overlay.take_off(producer, parts)
        return answer.of(parts)

    def _refusal(self, producer: str, known: Known, epoch: int) -> Pushed | None:
        """Why the producer may not write now: its epoch is not the one that counts, or there is no room for it."""
        if type(epoch) is not int or epoch < 0:
            return A.UNKNOWN_EPOCH
        if 0 < epoch < known.epoch:
            return A.STALE_EPOCH
        if producer in self._overlay.openings:
            return A.IN_FLIGHT
        if epoch > known.epoch:
            return A.FORGOTTEN if epoch <= self._memory.floors.epoch(producer) else A.UNKNOWN_EPOCH
        if epoch < known.epoch:
            return A.EPOCH_MISSING
        return A.PRODUCERS_FULL if self._full(producer) else None

    def _full(self, producer: str) -> bool:
        known, flights, openings = self._memory.producers, self._overlay.flights, self._overlay.openings
        room = self._memory.bounds.producers_max - len(known)
        if room > len(flights) + len(openings) or producer in known or producer in flights or producer in openings:
            return False
        return room <= len({*flights, *openings} - known.keys())

    def persist(
        self, producer: str, sequence: int, *, epoch: int = 0, digests: Sequence[int] | None = None, time_ms: int = 0
    ) -> None:
        """The store has the pushed part that holds this sequence. `Misuse` if nothing such is pending.

        Call it in the order of the log: the memory must become what a replay of the log would make it.
        """
        low, high = self._overlay.land(producer, sequence)
        self.apply_run(producer, low, high, epoch, digests, time_ms)

    def fail(self, producer: str, sequence: int) -> None:
        """The store does not have the pushed part that holds this sequence, and never will."""
        self._overlay.crash(producer, sequence)

    def push_open(self, producer: str) -> int:
        """The epoch that the producer gets next; until `persist_open`, all that it sends is UNSURE.

        A producer that was opened may only send with its newest epoch: an older instance of it is fenced off. No epoch
        is given out twice, not even after the producer was forgotten. `Busy` when there is no room for a new producer.
        """
        if not valid_name(producer):
            raise Misuse(f"{producer!r} cannot be opened: {A.RULES[A.BAD_NAME]}", producer=producer)
        if self._full(producer):
            raise Busy(f"{producer!r} is new, and producers_max is reached: {self}", producer=producer)
        return self._overlay.open(producer, max(self.epoch(producer), self._memory.floors.epoch(producer)))

    def persist_open(self, producer: str, epoch: int, time_ms: int) -> None:
        """The store has the opening with this epoch."""
        self._overlay.opened(producer, epoch)
        self.apply(Entry(Kind.OPEN, producer, epoch=epoch, time_ms=time_ms))

    def fail_open(self, producer: str, epoch: int) -> None:
        """The store does not have the opening with this epoch: the old epoch goes on."""
        self._overlay.opened(producer, epoch)

    def push_key(self, key: str, digest: int, now_ms: int) -> Pushed:
        """Judge a message that has an Idempotency-Key instead of a sequence; a FIRST is pending from here on."""
        if not valid_name(key):
            return A.BAD_NAME
        on = self._memory.on
        if on and self._overlay.fenced:
            return A.FENCED
        answer = self._memory.keys.judge(key, digest, now_ms, self._overlay.keys) if on else A.SWITCHED_OFF
        if answer.verdict is Verdict.FIRST:
            self._overlay.use_key(key)
        return answer

    def persist_key(self, key: str, digest: int, time_ms: int) -> None:
        """The store has the message with this key."""
        self._overlay.used_key(key)
        self.apply(Entry(Kind.KEYED, key, digest=digest, time_ms=time_ms))

    def fail_key(self, key: str) -> None:
        """The store does not have the message with this key: a retry is new."""
        self._overlay.used_key(key)

    def forget_overlay(self) -> None:
        """Give up all that is pending at once: a whole group of writes failed."""
        self._overlay = Overlay()

    def apply(self, entry: Entry) -> None:
        """Take the next entry of the log into the memory. ``persist`` is: take it off the overlay, then apply."""
        self._memory.apply(entry)

    def apply_run(
        self, producer: str, low: int, high: int, epoch: int, digests: Sequence[int] | None, time_ms: int
    ) -> None:
        """Take the next entries of the log, the messages ``low..high`` of one producer: as `apply` one by one."""
        if digests is not None:
            one_each(digests, low, high)
        self._memory.run(producer, low, high, epoch, digests, time_ms)

    def snapshot(self) -> bytes:
        """The memory, settings included and the overlay not; it belongs to the position of the next entry."""
        return snapshots.encode(self._memory)

    @classmethod
    def restore(cls, data: bytes, **settings: Unpack[Settings]) -> Sequences:
        """Go on where ``snapshot`` was taken; settings that are given replace those of the snapshot.

        Damaged or foreign bytes raise `BadInput`. From ``highest`` to ``gaps``, all up to the highest sequence is
        forgotten: nobody knows what of it was stored.
        """
        restored = cls()
        restored._memory = snapshots.decode(data, settings)
        return restored

    def last_sequence_id(self, producer: str) -> int:
        """The highest persisted sequence; -1 if none.

        Not the pushed one: an application that goes on after it would lose a write that fails.
        """
        return known.head if (known := self._memory.producers.get(producer)) else -1

    def floor(self, producer: str) -> int:
        """What lies at or below was forgotten, and is UNSURE unless known otherwise; -1: nothing was."""
        return (self._memory.producers.get(producer) or self._memory.blank(producer)).forgotten

    def epoch(self, producer: str) -> int:
        """The persisted epoch; 0 if the producer was never opened."""
        return known.epoch if (known := self._memory.producers.get(producer)) else 0

    @property
    def known(self) -> Mapping[str, Known]:
        """What is remembered of every producer."""
        return MappingProxyType(self._memory.producers)

    @property
    def stored(self) -> Pushed:
        """What is answered of a sequence that is stored."""
        return A.SEEN if self._memory.bounds.memory == "gaps" else A.BEHIND_HIGHEST

    @property
    def persisted(self) -> Mapping[str, int]:
        """The highest stored sequence of every producer. Cost: O(producers)."""
        return MappingProxyType({name: k.head for name, k in self._memory.producers.items() if k.head >= 0})

    @property
    def pushed(self) -> Mapping[str, int]:
        """The highest sequence of every producer that was given to the store and not failed. Cost: O(producers)."""
        flown = {name: max(flight.high, self.last_sequence_id(name)) for name, flight in self._overlay.flights.items()}
        return MappingProxyType({**self.persisted, **flown})

    @property
    def pending(self) -> int:
        """How many parts, openings and keys are not answered for yet."""
        return len(self._overlay)

    @property
    def fenced(self) -> bool:
        """Is a failed write being cleared up?"""
        return self._overlay.fenced

    @property
    def switched_on(self) -> bool:
        """Is deduplication on?"""
        return self._memory.on

    def __len__(self) -> int:
        return len(self._memory.producers)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequences) and self._memory == other._memory

    __hash__ = None  # type: ignore[assignment] # it changes

    def __str__(self) -> str:
        state = "fenced, " * self._overlay.fenced + "off, " * (not self._memory.on)
        return f"{state}{len(self)} producers, {len(self._memory.keys)} keys, {len(self._overlay)} pending"
