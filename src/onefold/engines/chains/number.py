"""Message numbers: pairs ``(timestamp, sequence)``, compared first by one, then by the other.

The timestamp is milliseconds since 1970, the sequence breaks ties within one millisecond. Where many numbers are held
at once they are packed into one signed 64-bit integer, ``timestamp << 20 | sequence``, which keeps their order. That
leaves 43 bits of time (to the year 2248) and 1,048,576 messages per millisecond; what does not fit is never wrapped.
"""

import math
from typing import TypeAlias

Number: TypeAlias = tuple[int, int]

START: Number = (-1, -1)
"""Below every number."""

INFINITY: tuple[float, float] = (math.inf, math.inf)
"""Above every number."""

SEQUENCE_BITS = 20
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
TIMESTAMP_MAX = (1 << (63 - SEQUENCE_BITS)) - 1

PART_MAX = (1 << 63) - 1
"""The largest timestamp and the largest sequence of a number that is not packed: what any store or wire can hold."""


def valid(value: object) -> Number | None:
    """The value as a number if it is one: two whole numbers, none negative.

    >>> valid((10, 0)), valid([10, 0]), valid((10, -1)), valid((float("inf"), 0)), valid("10|0")
    ((10, 0), (10, 0), None, None, None)
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    timestamp, sequence = value
    if type(timestamp) is not int or type(sequence) is not int or timestamp < 0 or sequence < 0:
        return None
    return timestamp, sequence


def just_below(number: Number) -> Number:
    """The largest pair below this one; not itself a valid number when the sequence is 0."""
    return number[0], number[1] - 1


def just_above(number: Number) -> Number:
    """The smallest number above this one."""
    return number[0], number[1] + 1


def text(number: Number) -> str:
    """How a number prints.

    >>> text((10, 0)), text(START)
    ('10|0', '-inf')
    """
    return "-inf" if number == START else f"{number[0]}|{number[1]}"


def pack(number: Number) -> int | None:
    """One int64 in the same order; None if it does not fit.

    >>> unpack(pack((1_700_000_000_000, 3))), pack((TIMESTAMP_MAX + 1, 0)), pack((1, SEQUENCE_MAX + 1))
    ((1700000000000, 3), None, None)
    """
    timestamp, sequence = number
    if not (0 <= timestamp <= TIMESTAMP_MAX and 0 <= sequence <= SEQUENCE_MAX):
        return None
    return timestamp << SEQUENCE_BITS | sequence


def unpack(packed: int) -> Number:
    """The pair that was packed."""
    return packed >> SEQUENCE_BITS, packed & SEQUENCE_MAX
