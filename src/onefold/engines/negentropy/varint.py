"""Numbers of variable length: base 128, most significant digit first, the high bit set on all digits but the last.

Many at once are a matrix of digits, right-aligned, and a mask of the digits that count: ``matrix[mask]`` is the bytes
of all of them in order. Foreign ones have at most 10 digits, no leading zero digit and a value below 2^64; anything
else is a ``Violation`` that names the byte. Cost: one pass per digit, over all numbers.
"""

from typing import Final

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Rows, Stamps, flagged
from onefold.engines.negentropy.violation import Violation

DIGITS_MAX: Final = 10  # 64 bits in digits of 7


def write(number: int) -> bytes:
    """One number.

    >>> write(0).hex(), write(127).hex(), write(300).hex()
    ('00', '7f', '822c')
    """
    digits = [number & 127]
    while number := number >> 7:
        digits.append(number & 127 | 128)
    return bytes(reversed(digits))


def read(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it.

    >>> read(bytes.fromhex("822c"), 0)
    (300, 2)
    """
    value = 0
    for place in range(at, min(at + DIGITS_MAX, len(message))):
        digit = message[place]
        if digit == 128 and value == 0:
            raise Violation("a number with a leading zero digit", at)
        value = value << 7 | digit & 127
        if digit < 128:
            if value >> 64:
                raise Violation("a number of 2^64 or more", at)
            return value, place + 1
    raise Violation(f"a number that does not end within {DIGITS_MAX} bytes or before the message does", at)


def matrix(numbers: Stamps) -> tuple[Rows, Flags]:
    """The digits of many numbers, one row each, and which of them count."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    shifts = np.arange(7 * (width - 1), -1, -7, dtype=np.uint64)
    shifted = numbers[:, None] >> shifts
    digits = (shifted & np.uint64(127)).astype(np.uint8)
    digits[:, :-1] |= 128
    used = shifted > 0
    used[:, -1] = True
    return digits, used


def lengths(buffer: Rows, starts: Ints) -> Ints:
    """How many digits the numbers at these places have; DIGITS_MAX + 1 for those that do not end in time.

    Cost: the buffer must go on for DIGITS_MAX bytes behind the last start.
    """
    counts = np.ones(len(starts), dtype=np.int64)
    going = flagged(buffer[starts] > 127)
    for place in range(1, DIGITS_MAX + 1):
        if not len(going):
            break
        counts[going] += 1
        going = going[buffer[starts[going] + place] > 127]
    return counts


def values(buffer: Rows, starts: Ints, counts: Ints) -> Stamps:
    """The numbers at these places, which have that many digits."""
    numbers = np.zeros(len(starts), dtype=np.uint64)
    for place in range(int(counts.max(initial=0))):
        digit = (buffer[starts + place] & 127).astype(np.uint64)
        numbers = np.where(place < counts, numbers << np.uint64(7) | digit, numbers)
    return numbers


def faulty(buffer: Rows, starts: Ints, counts: Ints) -> Flags:
    """Which of these numbers are too long, too large or not as short as they could be."""
    first = buffer[starts]
    zero_led = (counts > 1) & (first == 128)
    too_large = (counts == DIGITS_MAX) & (first > 129)
    return np.asarray(zero_led | too_large | (counts > DIGITS_MAX), dtype=np.bool_)
