"""The persisted part: what a topic knows from its log, and from nothing else.

    memory = fold(apply, entries, nothing)

There is no other way to change it, so two memories that read the same log are equal: the one that was there all along,
the one that came up after a crash, and the one that began from a snapshot of either. So ``apply`` never asks what is
pending, what time it is, or whether a limit is reached: it takes what the log holds. Not even a purge looks at what is
pending; a message that lands after it brings its producer back, above the floor that the purge left.

``run`` applies many messages of one producer with consecutive sequences at once, and equals applying one by one.

Cost: O(1) per entry (O(log gaps) below the head), O(producers) per purge.
"""

from __future__ import annotations

from collections.abc import Sequence

from onefold.engines.producers.bounds import Bounds
from onefold.engines.producers.floors import Floors
from onefold.engines.producers.keys import Keys
from onefold.engines.producers.known import Gapped, Highest, Known
from onefold.engines.producers.records import Entry, Kind
from onefold.errors import BadInput

_MESSAGE, _CONFLICT, _OPEN, _PURGE, _SWITCH, _KEYED, _RESET, _CLOCK = Kind


class Memory:
    """A fold over the entries of a log.

    >>> memory = Memory(Bounds())
    >>> for sequence in (0, 1, 5):
    ...     memory.apply(Entry(Kind.MESSAGE, "p", sequence))
    >>> memory.producers["p"].head
    5
    """

    __slots__ = ("_new", "bounds", "floors", "keys", "on", "producers")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.on = True
        self.producers: dict[str, Known] = {}
        self.floors = Floors(bounds.floors_count)
        self.keys = Keys(bounds.keys_max, bounds.keys_ms)
        self._new = Gapped if bounds.memory == "gaps" else Highest

    def blank(self, producer: str) -> Known:
        """What is known of a producer of which the memory holds nothing: its floor."""
        return self._new(self.floors.sequence(producer))

    def _known(self, producer: str) -> Known:
        known = self.producers.get(producer)
        if known is None:
            known = self.producers[producer] = self.blank(producer)
        return known

    def apply(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        kind, producer, sequence, epoch, digest, time_ms = entry
        if kind == _MESSAGE:
            self.run(producer, sequence, sequence, epoch, None if digest < 0 else (digest,), time_ms)
        elif kind == _KEYED:
            if self.on:
                self.keys.store(producer, digest, time_ms)
        elif kind == _OPEN:
            self._open(producer, epoch, time_ms)
        elif kind == _PURGE:
            self._purge(sequence)
        elif kind == _SWITCH:
            self._switch(sequence)
        elif kind == _RESET:
            self._reset(producer, time_ms)
        elif kind == _CLOCK:
            self._set_clock(sequence, time_ms)
        elif kind != _CONFLICT:
            raise BadInput(f"an entry of the unknown kind {kind}: {entry}", kind=kind)

    def run(self, producer: str, low: int, high: int, epoch: int, digests: Sequence[int] | None, time_ms: int) -> None:
        """The next entries are the messages ``low..high`` of one producer."""
        if not self.on:
            return
        known = self.producers.get(producer) or self._known(producer)
        known.store(low, high, self.bounds.gap_count_max)
        if epoch > known.epoch:  # its opening is not in this log any more, or its producer was purged in between
            known.epoch = epoch
        if time_ms > known.time_ms:
            known.time_ms = time_ms
        if digests is not None:
            known.note(low, digests, self.bounds.digests_max)

    def _open(self, producer: str, epoch: int, time_ms: int) -> None:
        known = self._known(producer)
        known.epoch = max(known.epoch, epoch)
        known.time_ms = max(known.time_ms, time_ms)

    def _purge(self, before_ms: int) -> None:
        idle = [name for name, known in self.producers.items() if known.time_ms < before_ms]
        for name in idle:
            known = self.producers.pop(name)
            self.floors.forget(name, max(known.head, known.forgotten), known.epoch)

    def _switch(self, on: int) -> None:
        self.on = bool(on)
        if self.on:
            return
        # Epochs outlive the switch: who was fenced off stays fenced off, and no epoch is given out twice.
        opened = {name: known for name, known in self.producers.items() if known.epoch}
        self.producers.clear()
        self.floors.sequences.clear()
        self.keys.clear()
        for name, known in opened.items():
            self._open(name, known.epoch, known.time_ms)

    def _reset(self, producer: str, time_ms: int) -> None:
        if not self.on:  # nothing is remembered of sequences then
            return
        known = self.producers.get(producer)
        blank = self.producers[producer] = self._new()  # without the floor of its bucket
        blank.epoch = known.epoch if known else 0
        blank.time_ms = time_ms

    def _set_clock(self, before_ms: int, now_ms: int) -> None:
        """Ages stay what they are when the clock is set ahead; set back, nothing may be younger than the present."""
        ahead = max(0, now_ms - before_ms)
        for known in self.producers.values():
            known.time_ms = min(known.time_ms + ahead, now_ms)
        self.keys.set_clock(ahead, now_ms)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Memory)
            and self.on == other.on
            and self.bounds.memory == other.bounds.memory
            and self.producers == other.producers
            and self.floors == other.floors
            and self.keys == other.keys
        )

    __hash__ = None  # type: ignore[assignment] # it changes
