"""The order of judgement of the rows of a partition: by chain, then arrival, then number.

Rows reach a task in whatever order the shuffle delivered them. Sorting the wide rows in the JVM was measured at half
the time of the whole job; here only the six integers that the judgement needs are sorted, and the rows stay where they
are. Chains are numbered by hashing, arrivals are nearly sorted already, and chain numbers are sorted by their digits:
a fifth of the time of a comparison sort over the same columns.

The rows of producers are put in order here too: a producer is a chain whose numbers are its sequences.

A chain's name is 128 bits of hash. The first 64 number the chains and the other 64 check that no two chains share a
number; should two ever do so, all 128 bits are compared.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Int64s: TypeAlias = NDArray[np.int64]

BEFORE_ALL = -(1 << 63)
"""The arrival of a row that has none: it is judged before the others of its chain."""
SORTED = 6
"""How many columns take part in the order."""


class Columns(NamedTuple):
    """What crosses from Spark to Python, one integer per row each."""

    key: Int64s
    """The first half of the chain's name."""
    key_check: Int64s
    """The other half."""
    arrival: Int64s
    previous: Int64s
    """What sorts rows of one number: of a chain the previous number, of a producer the epoch."""
    number: Int64s
    tie: Int64s
    """Settles, the same way every time, the order of rows that are equal in everything above."""
    more: tuple[Int64s, ...] = ()
    """What else a judge needs of a row; the order does not look at it."""

    @classmethod
    def of(cls, columns: Iterable[Int64s]) -> "Columns":
        """The columns as they crossed: first those that have names, then ``more``."""
        key, key_check, arrival, previous, number, tie, *more = columns
        return cls(key, key_check, arrival, previous, number, tie, tuple(more))

    @property
    def flat(self) -> tuple[Int64s, ...]:
        """All columns, one after the other."""
        return (self.key, self.key_check, self.arrival, self.previous, self.number, self.tie, *self.more)

    def take(self, rows: Int64s) -> "Columns":
        """These rows, in this order."""
        return Columns.of(column[rows] for column in self.flat)


def concatenate(parts: list[Columns]) -> Columns:
    """All parts as one."""
    if len(parts) == 1:
        return parts[0]
    return Columns.of(np.concatenate(columns) for columns in zip(*(part.flat for part in parts), strict=True))


def chains(columns: Columns) -> Int64s:
    """A small number for each row's chain, equal for equal names and only for those."""
    encoded = pa.array(columns.key).dictionary_encode()
    codes: Int64s = encoded.indices.to_numpy().astype(np.int64)
    check = np.empty(len(encoded.dictionary), np.int64)
    check[codes] = columns.key_check
    if np.array_equal(check[codes], columns.key_check):
        return codes
    names = np.stack((columns.key, columns.key_check))
    return np.unique(names, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def order(chain: Int64s, columns: Columns) -> Int64s:
    """The rows, sorted by chain, arrival, number, previous and tie."""
    rows: Int64s = np.argsort(columns.arrival, kind="stable")
    for digit in _digits(chain):
        rows = rows[np.argsort(digit[rows], kind="stable")]
    chain, arrival = chain[rows], columns.arrival[rows]
    same = (chain[1:] == chain[:-1]) & (arrival[1:] == arrival[:-1])
    if same.any():
        _settle_ties(rows, same, columns)
    return rows


def _digits(chain: Int64s) -> Iterator[NDArray[np.unsignedinteger]]:
    """The lowest digit first; small ones, for numpy sorts integers of 8 and 16 bits without comparing them."""
    most = int(chain.max(initial=0))
    if most < 1 << 8:
        yield chain.astype(np.uint8)
    else:
        for shift in range(0, most.bit_length(), 16):
            yield (chain >> shift).astype(np.uint16)


def _settle_ties(rows: Int64s, same: NDArray[np.bool_], columns: Columns) -> None:
    """Put rows that came at the same time in order; ``same``: is it so of a row and the next one?"""
    before, after = np.concatenate(([False], same[:-1])), np.concatenate((same[1:], [False]))
    alone = same & ~before & ~after  # most are two, and a comparison settles them
    one = np.flatnonzero(alone)
    wrong = one[_is_behind(rows[one], rows[one + 1], columns)]
    rows[wrong], rows[wrong + 1] = rows[wrong + 1], rows[wrong]
    more = same & ~alone
    if more.any():
        block = np.concatenate(([0], np.cumsum(~more)))
        tied = np.flatnonzero(np.concatenate((more, [False])) | np.concatenate(([False], more)))
        row = rows[tied]
        rows[tied] = row[np.lexsort((columns.tie[row], columns.previous[row], columns.number[row], block[tied]))]


def _is_behind(one: Int64s, other: Int64s, columns: Columns) -> NDArray[np.bool_]:
    """Does the one row belong behind the other?"""
    behind = columns.tie[one] > columns.tie[other]
    for column in (columns.previous, columns.number):
        left, right = column[one], column[other]
        behind = (left > right) | (left == right) & behind
    return behind
