"""Fingerprints of tables, range by range: where two are equal, nothing has to be looked at.

The ids of all rows are scattered over ranges by a hash of their key. A range is summed up by native aggregates, in the
task that reads the rows, so what is shuffled is a few numbers per range and not the rows:

    count    how many rows
    xors     two words of 64 bits, XORed
    sums     the same, added up in halves of 32 bits: what XOR cannot see, a row that is there twice, or gone together
             with its copy

A word is a hash of what the row holds. Two ranges with equal fingerprints hold the same rows as often, but for an
accident of 2^-128, as in negentropy. Against intent there are two ways to make the words:

    xxhash64   over the values as they are. Fast. Who may choose the texts of a table can make two rows that it takes
               for one
    sha256     over the id, which is the SHA-256 of the row's canonical form (`diff_forms`); three times the work

Sums are linear: who may choose very many rows can make two sets agree in either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

WORDS: Final = 2
HALF: Final = (1 << 32) - 1
ROW_BYTES: Final = 16 << 10
"""So many bytes of the input a range: at 50 bytes a row, the 300 rows that are read again for a difference."""
BITS_MIN, BITS_MAX = 6, 16
"""64 ranges at least; 65,536 at most, whose sums fit into a few megabytes of every task and of the driver."""
_SIZE_UNKNOWN: Final = 1 << 60  # Spark says 2^63 - 1 of a source that tells nothing

RANGE: Final = "_onefold_range"
_VALUE, _WORD, _COUNT = "_onefold_value{}", "_onefold_word{}", "_onefold_count"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The sum of a set of rows; sums of parts add up."""

    count: int = 0
    xors: tuple[int, ...] = (0,) * WORDS
    sums: tuple[int, ...] = (0,) * (2 * WORDS)

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Fingerprint:
        """From what `aggregates` gives: null of no rows at all."""
        count, *rest = (int(cell or 0) for cell in cells)
        return cls(count, tuple(rest[:WORDS]), tuple(rest[WORDS:]))

    def __str__(self) -> str:
        """Sixteen bytes in hex, for people and for files: a hash of all of it."""
        numbers = (self.count, *(x % (1 << 64) for x in self.xors), *self.sums)
        return sha256(b"".join(n.to_bytes(16, "little") for n in numbers)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two tables, range by range."""

    ranges: int
    """Into how many the ids were scattered."""
    differing: NDArray[np.int64]
    """Those whose fingerprints differ."""
    a: Fingerprint
    b: Fingerprint


def range_of(key: Iterable[Column], bits: int) -> Column:
    """The range that a key falls into, of 2^bits. Spark hashes equal values alike, and a null like nothing."""
    return F.shiftrightunsigned(F.xxhash64(*key), 64 - bits)


def row_id(row: Column) -> Column:
    """The id of a row's form: SHA-256, in hex."""
    return F.sha2(row, 256)


def with_words(df: DataFrame, values: Sequence[Column]) -> DataFrame:
    """The table with the words of each row, made from these values of it."""
    # In two steps, so that what is dear is made once and not once a word.
    names = [_VALUE.format(i) for i in range(len(values))]
    valued = df.withColumns(dict(zip(names, values, strict=True)))
    return valued.withColumns({_WORD.format(i): F.xxhash64(F.lit(i), *names) for i in range(WORDS)}).drop(*names)


def word_names() -> list[str]:
    """The columns that the words stand in."""
    return [_WORD.format(i) for i in range(WORDS)]


def aggregates() -> list[Column]:
    """Of a table with words: the cells of its fingerprint."""
    words = [F.col(name) for name in word_names()]
    halves = [half for word in words for half in (F.shiftrightunsigned(word, 32), word.bitwiseAND(F.lit(HALF)))]
    cells = [F.count(F.lit(1)), *map(F.bit_xor, words), *map(F.sum, halves)]
    return [cell.alias(f"{_COUNT}{i}") for i, cell in enumerate(cells)]


def fingerprint(df: DataFrame, values: Sequence[Column]) -> Fingerprint:
    """The fingerprint of a whole table."""
    return Fingerprint.of(with_words(df, values).agg(*aggregates()).collect()[0])


def compare(a: DataFrame, b: DataFrame, bits: int) -> Compared:
    """Compare two tables that have a RANGE and words, in one job."""
    ranges = 1 << bits
    # One number for side and range: Spark groups by a single long faster than by two columns.
    sides = a.unionByName(b.withColumn(RANGE, F.col(RANGE) + ranges))
    found = sides.groupBy(RANGE).agg(*aggregates()).toArrow()
    cells = np.array([column.to_numpy() for column in found.columns], dtype=np.int64)
    both = np.zeros((2 * ranges, len(cells) - 1), np.int64)
    both[cells[0]] = cells[1:].T
    tables = (both[:ranges], both[ranges:])
    differing = np.flatnonzero((tables[0] != tables[1]).any(axis=1))
    totals = [Fingerprint.of([*_total(table)]) for table in tables]
    return Compared(ranges, differing.astype(np.int64), totals[0], totals[1])


def bits_for(tables: Iterable[DataFrame]) -> int:
    """How many ranges there should be, as a power of two, by what Spark believes of the size of the larger table."""
    sizes = [int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())) for df in tables]
    if max(sizes) >= _SIZE_UNKNOWN:
        return BITS_MAX
    return min(BITS_MAX, max(BITS_MIN, (max(sizes) // ROW_BYTES).bit_length()))


def _total(table: NDArray[np.int64]) -> Iterable[int]:
    """The cells of all ranges together; whole numbers of Python, which do not overflow."""
    yield sum(table[:, 0].tolist())
    yield from (int(x) for x in np.bitwise_xor.reduce(table[:, 1 : 1 + WORDS], axis=0))
    yield from (sum(column.tolist()) for column in table[:, 1 + WORDS :].T)
