"""What the two wires have in common, as far as a session is concerned: the rest of it is theirs.

A message is a head (v1: the version; xor: nothing) and ranges. Wires differ in the fingerprint, in the modes that one
side may send the other, and in how a server answers a list of ids.
"""

from dataclasses import dataclass
from typing import Protocol

from onefold.engines.negentropy.arrays import Ints, Rows
from onefold.engines.negentropy.items import Items
from onefold.engines.negentropy.ranges import Ranges
from onefold.engines.negentropy.sparse import Answered


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
