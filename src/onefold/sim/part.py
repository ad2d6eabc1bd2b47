"""The part that a row plays, and what a judge that is right must say of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from onefold.engines.chains import answers as A
from onefold.verdict import Answer


class Part(IntEnum):
    """Why a row is there; its code wherever parts travel in columns."""

    ORIGINAL = 0
    COPY = 1
    POISONED = 2
    NULL_KEY = 3
    NULL_NUMBER = 4
    NEGATIVE_NUMBER = 5
    BAD_PREVIOUS = 6
    FAR_FUTURE = 7
    BIG_SEQUENCE = 8
    BIG_TIMESTAMP = 9
    TEXT_NUMBER = 10


REJECTIONS: Final[Mapping[Part, Answer]] = {
    Part.POISONED: A.JUMP_TOO_FAR,
    Part.NULL_KEY: A.NULL_KEY,
    Part.NULL_NUMBER: A.BAD_NUMBER,
    Part.NEGATIVE_NUMBER: A.BAD_NUMBER,
    Part.BAD_PREVIOUS: A.BAD_NUMBERING,
    Part.FAR_FUTURE: A.JUMP_TOO_FAR,
    Part.BIG_SEQUENCE: A.NUMBER_OUT_OF_RANGE,
    Part.BIG_TIMESTAMP: A.NUMBER_OUT_OF_RANGE,
    Part.TEXT_NUMBER: A.BAD_NUMBER,
}
"""The parts that are damage, and the one answer to each."""

KINDS: Final = tuple(part for part in REJECTIONS if part is not Part.POISONED)
"""The kinds of malformed rows."""
