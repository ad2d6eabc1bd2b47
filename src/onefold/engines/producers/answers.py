"""Every answer the producers engine can give, and the rule behind each in one sentence.

The position in ``ANSWERS`` is the answer's code wherever answers travel in columns. New answers go to the end. A FIRST
also says what of it is new (`Pushed.parts`): of a batch that was stored in part, only the rest may be written.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from onefold.verdict import Answer, Verdict

Part: TypeAlias = tuple[int, int]
"""A range of sequences, both ends inclusive."""


class Pushed(Answer):
    """The answer to a push: equal to a plain `Answer`, and with the ranges that are new.

    >>> pushed = NEW.of(((6, 9),))
    >>> pushed == Answer(Verdict.FIRST, "new"), pushed.parts
    (True, ((6, 9),))
    """

    parts: tuple[Part, ...] = ()
    """The inclusive ranges to write; empty unless FIRST."""

    def of(self, parts: tuple[Part, ...]) -> Pushed:
        """The same answer, for these new parts."""
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
IN_FLIGHT: Final = Pushed(Verdict.UNSURE, "in_flight")
FENCED: Final = Pushed(Verdict.UNSURE, "fenced")
FORGOTTEN: Final = Pushed(Verdict.UNSURE, "forgotten")
PRODUCERS_FULL: Final = Pushed(Verdict.UNSURE, "producers_full")
KEYS_FULL: Final = Pushed(Verdict.UNSURE, "keys_full")
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
WRITE_FAILED: Final = Pushed(Verdict.UNSURE, "write_failed")
JUMP_TOO_FAR: Final = Pushed(Verdict.REJECT, "jump_too_far")
BUSY: Final = Pushed(Verdict.UNSURE, "busy")
BAD_TIME: Final = Pushed(Verdict.REJECT, "bad_time")

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
    BAD_TIME: "What it is ordered by is neither a whole number nor a time.",
}

ANSWERS: Final = tuple(RULES)
