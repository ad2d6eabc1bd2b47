"""What of a stored record concerns the memory: the log, as the producers engine sees it.

The memory of a topic is a fold over these entries, from the first to the last. So an entry holds all that the memory
may depend on, the time included, and nothing that only the store cares for, like payloads and offsets.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from onefold.errors import Misuse


class Kind(IntEnum):
    """What a record is; the value is its code in the log."""

    MESSAGE = 0
    """A message: ``producer``, ``sequence``, ``epoch`` (0: none) and the ``digest`` of its payload."""
    CONFLICT = 1
    """A message that contradicts a stored one. It is kept on record; the memory does not change."""
    OPEN = 2
    """``producer`` was opened: ``epoch`` is its new epoch, older ones are fenced off from here on."""
    PURGE = 3
    """Producers whose last record is older than ``sequence`` (a time in ms) are forgotten."""
    SWITCH = 4
    """Deduplication goes on (``sequence`` 1) or off (0). Off forgets all sequences and keys; epochs stay."""
    KEYED = 5
    """A message with an Idempotency-Key, which stands in ``producer``, and the ``digest`` of its payload."""
    RESET = 6
    """What is remembered of the sequences of ``producer`` is dropped, without a floor; its epoch stays."""
    CLOCK = 7
    """The clock was set: what was ``sequence`` (a time in ms) until now is the time of this record from here on."""


MESSAGES: Final = frozenset({Kind.MESSAGE, Kind.KEYED})
"""What a reader of the log wants to see; the rest is what a topic notes for itself."""

NO_DIGEST: Final = -1
"""The digest of a message whose payload nobody looked at: it can neither agree nor conflict."""


class Entry(NamedTuple):
    """One record of the log, without what the memory does not need.

    >>> Entry(Kind.MESSAGE, "p", 7, time_ms=1000)
    Entry(kind=<Kind.MESSAGE: 0>, producer='p', sequence=7, epoch=0, digest=-1, time_ms=1000)
    """

    kind: int
    producer: str = ""
    sequence: int = 0
    epoch: int = 0
    digest: int = NO_DIGEST
    time_ms: int = 0


def one_each(digests: Sequence[int], low: int, high: int) -> None:
    """Refuse digests that are not one for each sequence of a run."""
    if len(digests) != high - low + 1:
        raise Misuse(f"{len(digests)} digests for the sequences {low}..{high}", low=low, high=high)
