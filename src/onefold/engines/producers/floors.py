"""What is kept of forgotten producers: a floor, in memory that does not grow.

A producer that is forgotten must not come back as if it were new, or its old messages would count again. So each name
belongs to one of ``count`` buckets, by its hash, and a bucket keeps the highest sequence and epoch that were ever
forgotten in it. At or below the floor of its bucket, a message of an unknown producer is UNSURE, never FIRST.
Two names may share a bucket: then the floor of one also holds for the other, which costs answers but never a duplicate.
A new producer can ask for its floor and begin above it.

Cost: one hash per question, none while nothing was forgotten; at most ``count`` numbers of each sort.
"""

from __future__ import annotations

from hashlib import blake2b


class Floors:
    """The floors of a fixed number of buckets.

    >>> floors = Floors(65_536)
    >>> floors.forget("p", 41, epoch=2)
    >>> floors.sequence("p"), floors.epoch("p"), floors.sequence("q")
    (41, 2, -1)
    """

    __slots__ = ("count", "epochs", "sequences")

    def __init__(self, count: int) -> None:
        self.count = count
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def _bucket(self, name: str) -> int:
        return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") % self.count

    def sequence(self, name: str) -> int:
        """The highest sequence that was forgotten in the bucket of ``name``; -1: none was."""
        return self.sequences.get(self._bucket(name), -1) if self.sequences else -1

    def epoch(self, name: str) -> int:
        """The highest epoch that was forgotten in the bucket of ``name``; 0: none was."""
        return self.epochs.get(self._bucket(name), 0) if self.epochs else 0

    def forget(self, name: str, sequence: int, epoch: int) -> None:
        """Raise the floor of the bucket of ``name``; it never sinks."""
        bucket = self._bucket(name)
        if sequence > self.sequences.get(bucket, -1):
            self.sequences[bucket] = sequence
        if epoch > self.epochs.get(bucket, 0):
            self.epochs[bucket] = epoch

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Floors)
            and self.count == other.count
            and self.sequences == other.sequences
            and self.epochs == other.epochs
        )

    __hash__ = None  # type: ignore[assignment] # it changes
