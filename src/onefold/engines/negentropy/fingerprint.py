"""Fingerprints: one short value for all the ids of a range, from prefix sums, whatever the size of the range.

``xor`` is the bitwise exclusive or of the ids. v1 adds the ids as 256-bit little-endian numbers, modulo 2^256, and
hashes the sum with the count: the first 16 bytes of SHA-256(sum, varint of count). Both have an inverse. So with the
totals of all beginnings of a sorted set, the total of any range is one difference: total(upper) - total(lower).

A 256-bit number is four limbs of 64 bits, the lowest first. Adding up a column of limbs wraps around; a wrap shows as a
total below its predecessor, and is carried into the next limb. Cost: a few passes over the columns to build, O(1) per
range to ask; the hash is about a microsecond per range.
"""

from hashlib import sha256
from typing import Final

import numpy as np

from onefold.engines.negentropy import varint
from onefold.engines.negentropy.arrays import Ints, Limbs, Rows, blobs

HASHED_SIZE: Final = 16


def running_sums(limbs: Limbs) -> Limbs:
    """The sums of the first 0, 1, ... n rows, each a number of as many limbs."""
    totals = np.zeros((len(limbs) + 1, limbs.shape[1]), dtype=np.uint64)
    carried = np.zeros(len(limbs), dtype=np.uint64)
    for k in range(limbs.shape[1]):
        column = np.cumsum(limbs[:, k], dtype=np.uint64)
        wrapped = np.empty(len(column), dtype=np.bool_)
        wrapped[:1] = False
        np.less(column[1:], column[:-1], out=wrapped[1:])
        column += carried
        wraps = np.cumsum(wrapped, dtype=np.uint64)
        wraps += column < carried
        totals[1:, k] = column
        carried = wraps
    return totals


def running_xors(limbs: Limbs) -> Limbs:
    """The exclusive ors of the first 0, 1, ... n rows."""
    totals = np.zeros((len(limbs) + 1, limbs.shape[1]), dtype=np.uint64)
    np.bitwise_xor.accumulate(limbs, axis=0, out=totals[1:])
    return totals


def minus(left: Limbs, right: Limbs) -> Limbs:
    """Left less right, number by number, modulo 2^(64 limbs).

    >>> minus(np.array([[0, 1]], dtype=np.uint64), np.array([[1, 0]], dtype=np.uint64)).tolist()
    [[18446744073709551615, 0]]
    """
    result, short = left - right, left < right
    borrowed = short[:, 0]
    for k in range(1, left.shape[1]):
        short[:, k] |= borrowed & (result[:, k] == 0)
        result[:, k] -= borrowed
        borrowed = short[:, k]
    return result


def plus(left: Limbs, right: Limbs) -> Limbs:
    """Left and right, number by number, modulo 2^(64 limbs)."""
    return minus(left, minus(np.zeros_like(right), right))


def hashed(sums: Limbs, counts: Ints) -> Rows:
    """The v1 fingerprints of ranges with these sums and counts."""
    texts, numbers = blobs(sums.astype("<u8", copy=False).view(np.uint8)), counts.tolist()
    ends = {number: varint.write(number) for number in set(numbers)}  # few: pieces of a split are of one size, or two
    hashes = [sha256(text + ends[number]).digest() for text, number in zip(texts, numbers, strict=True)]
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(sums), 32)[:, :HASHED_SIZE]
