"""The words of the ADR: what to do with duplicates, and what a frame is at one network server.

The *strategy* is a property of a device. The *status* is what level 1 (one server, its own memory) makes of a frame:
nobody heard it before, another station did, or the same station did. Status, strategy, "asks for a confirmation" and
"first message" together say where the frame goes (`routing`). Level 2, between servers, does not change the status.
"""

from enum import StrEnum


class Strategy(StrEnum):
    """What to do with what was heard before."""

    DROP = "drop"
    """It goes nowhere."""
    MARK = "mark"
    """It goes upstream, marked as a duplicate: its signal strength helps to locate the device."""
    NONE = "none"
    """It goes upstream as it is: the default of the ADR."""


class Status(StrEnum):
    """What level 1 makes of a frame; the names in the ADR are NonDuplicate, SoftDuplicate and so on."""

    NOT_DUPLICATE = "not_duplicate"
    """Not heard before, or so long ago that it is forgotten."""
    SOFT_DUPLICATE = "soft_duplicate"
    """Heard by another station before, and the strategy lets it pass."""
    RESUBMISSION = "resubmission"
    """Heard by the same station before (DuplicateDueToResubmission)."""
    DUPLICATE = "duplicate"
    """Heard by another station before, and the strategy drops it; or a join request that was heard before."""


# By their plain names, which read like the ADR and are found without asking the class each time.
DROP, MARK, NONE = Strategy
NOT_DUPLICATE, SOFT_DUPLICATE, RESUBMISSION, DUPLICATE = Status
