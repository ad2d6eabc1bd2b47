"""After a crash: the memory comes back from a snapshot and the rest of the log, equal to one that never crashed.

A snapshot is the memory *together with its position*, the offset of the first record that is not in it. The two are
only worth something as a pair: with a position too high, records are missing from the memory and would be stored twice;
with one too low, records are applied twice. So `recover` refuses a tail that does not begin there, or that skips one.
What was pushed and not persisted is gone, as it must be: nobody knows of it, and its sender will try again.

`Cadence` says when a snapshot is due. Replayed entries count, or a topic that often crashes would never take one.

Cost of recovery: O(producers) for the snapshot and O(1) per entry behind it, whatever the age of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Unpack

from onefold.engines.producers.bounds import Settings
from onefold.engines.producers.records import Entry
from onefold.engines.producers.sequences import Sequences
from onefold.errors import BadInput, Misuse


class Snapshot(NamedTuple):
    """A memory and its place in the log."""

    position: int
    """The offset of the first record that is not in the state."""
    state: bytes
    """What `Sequences.snapshot` gave."""


class Recovered(NamedTuple):
    """What came back."""

    sequences: Sequences
    position: int
    """The offset of the next record."""
    since_snapshot: int
    """How many records were replayed: they count towards the next snapshot."""


def recover(snapshot: Snapshot | None, tail: Iterable[tuple[int, Entry]], **settings: Unpack[Settings]) -> Recovered:
    """The memory after the last entry of ``tail``, which holds ``(offset, entry)`` from the snapshot's position on.

    Without a snapshot the tail is the whole log, from offset 0.

    >>> from onefold.engines.producers.records import Kind
    >>> log = [(offset, Entry(Kind.MESSAGE, "p", sequence)) for offset, sequence in enumerate([3, 4, 8])]
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
    return Recovered(sequences, position, position - start)


class Cadence:
    """When to take a snapshot: after so many entries, or so long after the last one, whichever is first.

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
        """So many entries were added to the log, or replayed from it."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self.count += count

    def due(self, now_ms: int) -> bool:
        """Should a snapshot be taken? Never when nothing was added since the last."""
        if not self.count or self._since_ms is None:
            return False
        return self.count >= self.entries or now_ms - self._since_ms >= self.ms

    def done(self, now_ms: int) -> None:
        """A snapshot of all that was noted is durable."""
        self.count = 0
        self._since_ms = now_ms
