"""The pushed part: what was given to the store and is not answered for yet.

It lies over the memory as a thin sheet, and it is the only thing that a crash or a failed group takes away. A flight is
the parts of one producer that are being written, in the order in which they were pushed, and the highest sequence of
them. It is gone when its last part has landed, so a producer without a flight has pushed = persisted.

When a part fails and others are still out, the overlay is *fenced* until the last of them is back. There is nothing to
undo then: no flight is left, and pushed has fallen back to persisted for all producers at once.

Cost: O(1) when the store answers in the order of the pushes; else O(parts of the producer).
"""

from __future__ import annotations

from collections import deque

from onefold.engines.producers.answers import Part
from onefold.errors import Misuse


class Flight:
    """The parts of one producer that are being written."""

    __slots__ = ("high", "parts")

    def __init__(self) -> None:
        self.parts: deque[Part] = deque()
        self.high = -1

    def overlaps(self, parts: tuple[Part, ...]) -> bool:
        """Is any sequence of ``parts`` being written?"""
        return any(low <= end and start <= high for low, high in parts for start, end in self.parts)

    def take(self, sequence: int) -> Part | None:
        """Remove the first part that holds this sequence; None if there is none."""
        for i, part in enumerate(self.parts):
            if part[0] <= sequence <= part[1]:
                del self.parts[i]
                return part
        return None


class Overlay:
    """All that is pending: parts of producers, openings, keys.

    >>> overlay = Overlay()
    >>> overlay.take_off("p", ((1, 3),)); overlay.take_off("q", ((7, 7),))
    >>> overlay.crash("p", 2); overlay.fenced
    True
    >>> overlay.land("q", 7), overlay.fenced
    ((7, 7), False)
    """

    __slots__ = ("fenced", "flights", "keys", "openings")

    def __init__(self) -> None:
        self.flights: dict[str, Flight] = {}
        self.openings: dict[str, list[int]] = {}
        self.keys: dict[str, int] = {}
        self.fenced = False

    def __len__(self) -> int:
        parts = sum(len(flight.parts) for flight in self.flights.values())
        return parts + sum(map(len, self.openings.values())) + sum(self.keys.values())

    def take_off(self, producer: str, parts: tuple[Part, ...]) -> None:
        """These parts are given to the store."""
        flight = self.flights.get(producer)
        if flight is None:
            flight = self.flights[producer] = Flight()
        flight.parts.extend(parts)
        high = parts[-1][1]
        if high > flight.high:
            flight.high = high

    def land(self, producer: str, sequence: int) -> Part:
        """The store has answered for the part that holds this sequence: take it off. `Misuse` if there is none."""
        flight = self.flights.get(producer)
        part = flight.take(sequence) if flight else None
        if flight is None or part is None:
            raise Misuse(f"nothing pending of {producer!r} holds {sequence}", producer=producer, sequence=sequence)
        if not flight.parts:
            del self.flights[producer]
            self.fenced = self.fenced and bool(self.flights)
        return part

    def crash(self, producer: str, sequence: int) -> None:
        """The store has failed the part that holds this sequence: fence, while others are out."""
        self.land(producer, sequence)
        self.fenced = bool(self.flights)

    def open(self, producer: str, epoch: int) -> int:
        """An opening with the next epoch above ``epoch`` and above those on their way is given to the store."""
        openings = self.openings.setdefault(producer, [])
        openings.append(max(epoch, *openings, 0) + 1)
        return openings[-1]

    def opened(self, producer: str, epoch: int) -> None:
        """The store has answered for this opening."""
        openings = self.openings.get(producer, [])
        if epoch not in openings:
            raise Misuse(f"no opening of {producer!r} with epoch {epoch} is pending", producer=producer, epoch=epoch)
        openings.remove(epoch)
        if not openings:
            del self.openings[producer]

    def use_key(self, key: str) -> None:
        """A message with this key is given to the store."""
        self.keys[key] = self.keys.get(key, 0) + 1  # more than one only while deduplication is off

    def used_key(self, key: str) -> None:
        """The store has answered for a message with this key."""
        if key not in self.keys:
            raise Misuse(f"no message with the key {key!r} is pending", key=key)
        self.keys[key] -= 1
        if not self.keys[key]:
            del self.keys[key]
