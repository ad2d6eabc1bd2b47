"""The vocabulary of the producers engine: kinds of record, answers and limits.

The memory of a topic is a fold over its entries, from the first to the last. So an entry holds everything that the
memory may depend on, including the time, and nothing else: no payload, no offset.

A FIRST also says which part is new (`Pushed.parts`): of a partly stored batch, only the rest may be written.

Reaching a limit gives an answer (UNSURE ``producers_full``, ``keys_full``, ``forgotten``): it never counts a duplicate
and never drops a message. The limits apply to what is *admitted*; what the log holds is always remembered.

A name is text of 1 to 200 bytes of UTF-8, so that it fits into every frame and snapshot; the same holds for an
Idempotency-Key. A sequence is a whole number from 0 to 2^63 - 2, so that the next one fits into 64 bits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias

from onefold.errors import Misuse
from onefold.verdict import Answer, Verdict


class Kind(IntEnum):
    """What a record is; the value is its code in the log."""

    MESSAGE = 0
    """A message: ``producer``, ``sequence``, ``epoch`` (0: none) and the ``digest`` of its payload."""
    CONFLICT = 1
    """A message that contradicts a stored one, kept for the record; the memory does not change."""
    OPEN = 2
    """``producer`` was opened: ``epoch`` is its new epoch, older ones are fenced off from here on."""
    PURGE = 3
    """Producers whose last record is older than ``sequence`` (a time in ms) are forgotten."""
    SWITCH = 4
    """Deduplication goes on (``sequence`` 1) or off (0). Off forgets all sequences and keys; epochs stay."""
    KEYED = 5
    """A message with an Idempotency-Key (in ``producer``) and the ``digest`` of its payload."""
    RESET = 6
    """The sequences of ``producer`` are forgotten, without a floor; its epoch stays."""
    CLOCK = 7
    """The clock was set, from ``sequence`` (a time in ms) to the time of this record."""


MESSAGES: Final = frozenset({Kind.MESSAGE, Kind.KEYED})
"""The records for readers of the log; all others are the topic's own."""

NO_DIGEST: Final = -1
"""The digest of a message whose payload is not compared: it never conflicts."""


class SequenceEntry(NamedTuple):
    """One record of the log, reduced to what the memory needs."""

    kind: int
    producer: str = ""
    sequence: int = 0
    epoch: int = 0
    digest: int = NO_DIGEST
    time_ms: int = 0


def one_each(digests: Sequence[int], low: int, high: int) -> None:
    if len(digests) != high - low + 1:
        raise Misuse(f"{len(digests)} digests for the sequences {low}..{high}", low=low, high=high)


Part: TypeAlias = tuple[int, int]
"""A range of sequences, both ends inclusive."""


class Pushed(Answer):
    """The answer to a push, with the ranges that are new; equal to the plain `Answer`.

    >>> pushed = NEW.of(((6, 9),))
    >>> pushed == Answer(Verdict.FIRST, "new"), pushed.parts
    (True, ((6, 9),))
    """

    parts: tuple[Part, ...] = ()
    """The inclusive ranges to write; empty unless FIRST."""

    def of(self, parts: tuple[Part, ...]) -> Pushed:
        pushed = tuple.__new__(Pushed, self)
        pushed.parts = parts
        return pushed


NEW: Final = Pushed(Verdict.FIRST, "new")
FILLS_GAP: Final = Pushed(Verdict.FIRST, "fills_gap")
REST_OF_BATCH: Final = Pushed(Verdict.FIRST, "rest_of_batch")
SWITCHED_OFF: Final = Pushed(Verdict.FIRST, "switched_off")
SEEN: Final = Pushed(Verdict.REPEAT, "seen")
BEHIND_HIGHEST: Final = Pushed(Verdict.REPEAT, "behind_highest")
KNOWN_KEY: Final = Pushed(Verdict.REPEAT, "known_key")
IN_FLIGHT: Final = Pushed(Verdict.UNSURE, "in_flight", retry=True)
FENCED: Final = Pushed(Verdict.UNSURE, "fenced", retry=True)
FORGOTTEN: Final = Pushed(Verdict.UNSURE, "forgotten")
PRODUCERS_FULL: Final = Pushed(Verdict.UNSURE, "producers_full", retry=True)
KEYS_FULL: Final = Pushed(Verdict.UNSURE, "keys_full", retry=True)
CONFLICT: Final = Pushed(Verdict.REJECT, "conflict")
STALE_EPOCH: Final = Pushed(Verdict.REJECT, "stale_epoch")
UNKNOWN_EPOCH: Final = Pushed(Verdict.REJECT, "unknown_epoch")
EPOCH_MISSING: Final = Pushed(Verdict.REJECT, "epoch_missing")
BAD_SEQUENCE: Final = Pushed(Verdict.REJECT, "bad_sequence")
BAD_NAME: Final = Pushed(Verdict.REJECT, "bad_name")
NULL_KEY: Final = Pushed(Verdict.REJECT, "null_key")
MALFORMED: Final = Pushed(Verdict.REJECT, "malformed")
STATE_FULL: Final = Pushed(Verdict.UNSURE, "state_full")
TOO_LARGE: Final = Pushed(Verdict.REJECT, "too_large")
WRITE_FAILED: Final = Pushed(Verdict.UNSURE, "write_failed", retry=True)
JUMP_TOO_FAR: Final = Pushed(Verdict.REJECT, "jump_too_far")
BUSY: Final = Pushed(Verdict.UNSURE, "busy", retry=True)
BAD_TIME: Final = Pushed(Verdict.REJECT, "bad_time")
RESTARTED: Final = Pushed(Verdict.FIRST, "restarted")
TIME_CONTRADICTS: Final = Pushed(Verdict.UNSURE, "time_contradicts")

RULES: Final = {
    NEW: "It is above all that is stored of its producer.",
    FILLS_GAP: 'It is below the highest stored sequence, and was never stored (memory = "gaps").',
    REST_OF_BATCH: "A part of its batch was stored before; only the rest is new.",
    SWITCHED_OFF: "Deduplication is off: everything counts.",
    SEEN: 'It is stored (memory = "gaps").',
    BEHIND_HIGHEST: 'It is not above the highest stored sequence of its producer: as published (memory = "highest").',
    KNOWN_KEY: "A message with its Idempotency-Key is stored.",
    IN_FLIGHT: "It, or what decides on it, is being written: the outcome is not known yet, try again.",
    FENCED: "A failed write is being cleared up: try again.",
    FORGOTTEN: "The memory of its producer or its range was given up, and it may have been stored before that.",
    PRODUCERS_FULL: "Its producer is new, and there is no room to remember another one within producers_max.",
    KEYS_FULL: "Its Idempotency-Key is new, and there is no room to remember another one within keys_max.",
    CONFLICT: "It is stored with another payload: one of the two is wrong.",
    STALE_EPOCH: "Its producer was opened again since: it comes from a zombie.",
    UNKNOWN_EPOCH: "Its epoch was never given out.",
    EPOCH_MISSING: "Its producer was opened with an epoch, and it names none.",
    BAD_SEQUENCE: "Its sequence, or a bound of its batch, is no whole number from 0 to 2^63 - 2, or low is above high.",
    BAD_NAME: "Its producer's name, or its key, is empty, no text, or longer than 200 bytes of UTF-8.",
    NULL_KEY: "A part of its producer's name is null.",
    MALFORMED: "The row could not be read at all.",
    STATE_FULL: "Its producer is new, and there is no room to remember another one within state_rows_max.",
    TOO_LARGE: "Its payload is longer than message_bytes_max.",
    WRITE_FAILED: "The store could not keep it: nothing was acknowledged, try again.",
    JUMP_TOO_FAR: "It lies more than jump_max above the highest sequence of its producer.",
    BUSY: "Too much waits to be stored, or the topic is about to close: it was not taken, try again.",
    BAD_TIME: "Its time, or what it is ordered by, is neither a whole number nor a time.",
    RESTARTED: "It shows that the counter of its producer restarted: the sequence falls while the time rises.",
    TIME_CONTRADICTS: "Its time lies among consecutive sequences that were seen, and its sequence does not.",
}

ANSWERS: Final = tuple(RULES)
"""The position of an answer is its code wherever answers travel in columns: new answers go to the end."""
RETRIED: Final = frozenset(answer for answer in ANSWERS if answer.retry)


MemoryKind: TypeAlias = Literal["highest", "gaps"]

PRODUCERS_MAX = 100_000
"""Below 50 MB with their digests. Pulsar puts at most 10,000 into a snapshot and silently loses the others."""
GAP_COUNT_MAX = 10_000
"""As for chains: even with this many gaps a producer stays below 1 MB."""
DIGESTS_MAX = 16
"""A retry repeats what was sent last. Kafka keeps the last 5 batches per producer for the same reason."""
FLOORS_COUNT = 65_536
"""A forgotten producer shares its floor with one name in 65,536; 13 MB when every bucket is in use."""
KEYS_MAX = 100_000
"""As many as producers, for about as much memory."""
KEYS_MS = 86_400_000
"""24 hours, as at Stripe: within them a retry is known, after them it is new."""
JUMP_MAX = 1 << 40
"""For servers, whose clients are not trusted. A tebibyte if sequences are offsets in a file (PIP-6's own example), 34
years if they are milliseconds. (Kafka accepts only the next sequence, PIP-6 any.)"""


class SequenceBounds(NamedTuple):
    memory: MemoryKind = "highest"
    producers_max: int = PRODUCERS_MAX
    gap_count_max: int = GAP_COUNT_MAX
    digests_max: int = DIGESTS_MAX
    floors_count: int = FLOORS_COUNT
    keys_max: int = KEYS_MAX
    keys_ms: int = KEYS_MS
    jump_max: int | None = None
    """Reject a sequence further above the highest pushed one of its producer, so that one wrong number cannot turn all
    honest ones into repeats; None: accept any, as published. The first sequence of a producer is never rejected."""

    def checked(self) -> SequenceBounds:
        """Return self if every bound is valid; else raise `Misuse` naming the first that is not.

        >>> SequenceBounds(keys_max=0).checked()
        Traceback (most recent call last):
        onefold.errors.Misuse: keys_max is 0, must be a whole number from 1
        """
        if self.memory not in ("highest", "gaps"):
            raise Misuse(f'memory is {self.memory!r}, must be "highest" or "gaps"', memory=self.memory)
        for name, value in zip(self._fields[1:], self[1:], strict=True):
            if name == "jump_max" and value is None:
                continue
            least = 0 if name == "digests_max" else 1
            if type(value) is not int or not least <= value < 2**63:
                raise Misuse(f"{name} is {value!r}, must be a whole number from {least}", **{name: value})
        return self


SEQUENCE_MAX: Final = 2**63 - 2
EPOCH_MAX: Final = 2**32 - 1
NAME_BYTES_MAX: Final = 200


def valid_name(name: object) -> bool:
    """
    >>> valid_name("p"), valid_name(""), valid_name(None), valid_name("a" * 201), valid_name("half a pair: \\ud800")
    (True, False, False, False, False)
    """
    if type(name) is not str or not 0 < len(name) <= NAME_BYTES_MAX:
        return False
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False
