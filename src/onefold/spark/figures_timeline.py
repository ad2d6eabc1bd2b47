"""Verdicts over time: how many of each fall into each of some sixty equal stretches.

The axis spans the firsts (all rows, if there are none) without the outermost thousandth on either side where that lies
far off: one number from the year 2200 must not press an hour of traffic into a single stretch. What lies beyond is
counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.spark.columns import milliseconds
from onefold.spark.figures_subject import VERDICTS, Subject, has
from onefold.spark.table import VERDICT
from onefold.tally import Tally
from onefold.verdict import Verdict

OUTERMOST: Final = (0.001, 0.999)
ACCURACY: Final = 10_000
"""Of Spark's own sketch, its default: a rank is off by a ten-thousandth of all rows."""
FAR: Final = 5
"""Far off: further from the quantiles than one part in so many of what lies between them."""

_AT, _BIN = "_onefold_at", "_onefold_bin"


@dataclass(frozen=True, slots=True)
class Axis:
    """Equal stretches of whole numbers, the first of which begins at ``low``.

    >>> Axis.around(0, 100, 3, 97, 60)
    Axis(low=0, width=2, bins=51)
    >>> Axis.around(0, 10**15, 3, 97, 10).high
    120
    """

    low: int
    width: int
    bins: int

    @classmethod
    def around(cls, least: int, most: int, low: int, high: int, bins_max: int) -> Axis:
        """From the least value to the most, but not far beyond two quantiles."""
        far = (high - low) // FAR
        start, end = max(least, low - far), min(most, high + far)
        width = -(-(end - start + 1) // bins_max)
        return cls(start, width, -(-(end - start + 1) // width))

    @property
    def high(self) -> int:
        """Where the last one ends."""
        return self.low + self.width * self.bins

    def bin(self, at: Column) -> Column:
        """The number of the stretch that a value falls into; null: outside."""
        # Subtracted with care: foreign numbers may be as far apart as a long cannot tell.
        number = F.call_function("div", F.try_subtract(at, F.lit(self.low)), F.lit(self.width))
        return F.when((at >= self.low) & (number < self.bins), number)


def timeline(rows: DataFrame, subject: Subject, tally: Tally, *, bins_max: int) -> dict[str, Any] | None:
    """Four counts for each stretch of time, and of what lies outside; None if no row says when it was.

    Cost: two jobs, the first for the axis.
    """
    if subject.axis is None:
        return None
    placed = rows.select(VERDICT, milliseconds(rows, subject.axis).alias(_AT))
    axis = _axis(placed.where(has("FIRST")) if tally.count(Verdict.FIRST) else placed, bins_max)
    if axis is None:
        return None
    counts = [F.count_if(has(verdict)) for verdict in VERDICTS]
    counted = {row[0]: list(row[1:]) for row in placed.groupBy(axis.bin(F.col(_AT)).alias(_BIN)).agg(*counts).collect()}
    nothing = [0] * len(VERDICTS)
    return {
        "column": subject.axis,
        "time": subject.axis_is_time,
        "from": axis.low,
        "to": axis.high,
        "bins": [counted.get(i, nothing) for i in range(axis.bins)],
        "outside": counted.get(None, nothing),
    }


def _axis(placed: DataFrame, bins_max: int) -> Axis | None:
    cells = [F.min(_AT), F.max(_AT), F.percentile_approx(_AT, list(OUTERMOST), ACCURACY)]
    least, most, quantiles = placed.agg(*cells).collect()[0]
    return None if least is None else Axis.around(least, most, quantiles[0], quantiles[1], bins_max)
