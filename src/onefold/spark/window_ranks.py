"""Exact quantiles of whole numbers, in bounded memory: no sort, no sketch, no list of all values.

Every value falls into a bucket by its first twelve binary digits, as floating-point numbers do: those below 4,096 have
one each, larger ones share. One native aggregate counts them. The bucket that holds the wanted rank is then counted
again in 65,536 finer ones, until a bucket is a single value. So a quantile up to 4 s in milliseconds costs one pass,
up to three days two, and any of 64 bits at most five. What reaches the driver are counts: one for each bucket that
holds a value, 16 bytes, so at most a megabyte for each quantile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

DIGITS: Final = 12
"""By so many binary digits values are told apart in the first pass: to 1 in 2,048."""
FINER: Final = 16
"""By so many more in each pass after it."""

_LOWER, _COUNT, _NEGATIVE, _LEAST, _MOST = "lower", "count", "negative", "least", "most"


class Quantile(NamedTuple):
    """The smallest value up to which there is at least such a share of all; and how many there are up to it."""

    value: int
    upto: int


class _Place(NamedTuple):
    """Where a rank lies: in the bucket of the values from ``lower`` on, 2^shift of them."""

    lower: int
    shift: int
    below: int
    here: int


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """How values are distributed. Those below 0 count as 0, and are counted apart."""

    values: DataFrame
    name: str
    lower: NDArray[np.int64]
    """Where buckets begin, ascending."""
    count: NDArray[np.int64]
    nulls: int
    negative: int
    least: int
    """The smallest value, if it is below 0; else 0."""
    most: int
    """The largest value, or 0."""

    @classmethod
    def of(cls, values: DataFrame, name: str) -> Distribution:
        """Count the values of a column, in one pass."""
        value = F.greatest(F.col(name), F.lit(0).cast("long"))
        bucket = _cut(value, F.greatest(F.length(F.bin(value)) - DIGITS, F.lit(0)))
        counted = values.groupBy(F.when(F.col(name).isNotNull(), bucket).alias(_LOWER)).agg(  # greatest(null, 0) is 0
            F.count(F.lit(1)).alias(_COUNT),
            F.count_if(F.col(name) < 0).alias(_NEGATIVE),
            F.min(name).alias(_LEAST),
            F.max(name).alias(_MOST),
        )
        found = counted.toArrow()
        rows = found.filter(found.column(_LOWER).is_valid()).sort_by(_LOWER)
        lower, count, negative, least, most = (column.to_numpy() for column in rows.columns)
        return cls(
            values=values,
            name=name,
            lower=lower,
            count=count,
            nulls=sum(found.column(_COUNT).to_pylist()) - int(count.sum()),
            negative=int(negative.sum()),
            least=int(least.min(initial=0)),
            most=int(most.max(initial=0)),
        )

    @property
    def total(self) -> int:
        """How many values there are."""
        return int(self.count.sum())

    def bins(self) -> list[tuple[int, int, int]]:
        """How many values there are from one power of two up to the next: (from, below, count)."""
        counted: dict[int, int] = {}
        for lower, count in zip(self.lower.tolist(), self.count.tolist(), strict=True):
            counted[lower.bit_length()] = counted.get(lower.bit_length(), 0) + count
        return [(1 << bits >> 1, 1 << bits, count) for bits, count in sorted(counted.items())]

    def quantiles(self, shares: Iterable[float]) -> dict[float, Quantile]:
        """The exact quantiles of these shares, each above 0 and at most 1; nothing if there is no value."""
        ranks = {share: rank_of(share, self.total) for share in shares} if self.total else {}
        places = {rank: _locate(self.lower, self.count, 0, rank, None) for rank in set(ranks.values())}
        while coarse := {place.lower: place.shift for place in places.values() if place.shift}:
            lower, count = self._split(coarse)
            for rank, (start, shift, below, _) in places.items():
                if shift:
                    inside = (lower >= start) & (lower < start + (1 << shift))
                    places[rank] = _locate(lower[inside], count[inside], below, rank, max(0, shift - FINER))
        return {share: Quantile(places[r].lower, places[r].below + places[r].here) for share, r in ranks.items()}

    def _split(self, buckets: Mapping[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count the values of these buckets, lower end and digits each, in finer ones."""
        value = F.greatest(F.col(self.name), F.lit(0).cast("long"))
        finer = F.lit(None).cast("long")
        for lower, shift in buckets.items():
            inside = F.col(self.name).isNotNull() & value.between(lower, lower + (1 << shift) - 1)
            finer = F.when(inside, _cut(value, F.lit(max(0, shift - FINER)))).otherwise(finer)
        wanted = self.values.select(finer.alias(_LOWER)).where(F.col(_LOWER).isNotNull())
        found = wanted.groupBy(_LOWER).agg(F.count(F.lit(1)).alias(_COUNT)).toArrow().sort_by(_LOWER)
        return found.column(_LOWER).to_numpy(), found.column(_COUNT).to_numpy()


def rank_of(share: float, total: int) -> int:
    """The place, from 1, of the value up to which there is such a share of all.

    >>> rank_of(0.99, 200), rank_of(0.07, 100), rank_of(0.5, 3), rank_of(1, 5)
    (198, 7, 2, 5)
    """
    # By the number as it is written: 0.07 * 100 is 7.000000000000001 to a float.
    exact = Fraction(str(share)) * total
    return max(1, -(-exact.numerator // exact.denominator))


def _cut(value: Column, digits: Column) -> Column:
    """The value without its last binary digits."""
    shifted = F.call_function("shiftright", value, digits.cast("int"))
    return F.call_function("shiftleft", shifted, digits.cast("int"))


def _locate(lower: NDArray[np.int64], count: NDArray[np.int64], below: int, rank: int, shift: int | None) -> _Place:
    """The bucket that a rank falls into; ``shift``: its digits, None in the first pass: by its own size."""
    ends = below + np.cumsum(count)
    at = int(np.searchsorted(ends, rank))
    start, here = int(lower[at]), int(count[at])
    digits = max(0, start.bit_length() - DIGITS) if shift is None else shift
    return _Place(start, digits, int(ends[at]) - here, here)
