"""How long after its first a copy came: the quantiles, and how many copies there are in each power of two.

A copy is so much later than its first; of an id that expires, and so may be new again, than the last first before it. A
copy whose first is not there (it lies below a floor, in another run) has no lag. Joins and sorts are Spark's own, which
spill: an id with a million copies is a longer task, not a larger one.

Lags up to four seconds are told exactly, longer ones to one part in two thousand: one pass is enough for a picture.
`onefold window` is exact.

Cost: one job, with one shuffle of (hash of the id, arrival), or none if the copies are few.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from onefold.spark.audit_ids import Identity
from onefold.spark.columns import milliseconds, quoted
from onefold.spark.diff_forms import hashable
from onefold.spark.figures_subject import Subject, has
from onefold.spark.table import VERDICT
from onefold.spark.window_ranks import DIGITS, Distribution, rank_of

SHARES: Final = (0.5, 0.9, 0.99, 0.999, 0.9999, 1)

_BOTH = ("FIRST", "REPEAT")
_ID, _AT, _FIRST, _AGAIN, _LAG = "_onefold_id", "_onefold_at", "_onefold_first", "_onefold_again", "_onefold_lag"


def lags(rows: DataFrame, subject: Subject, *, copies: int) -> dict[str, Any]:
    """The lags of all copies, or why there are none to tell."""
    if subject.arrival is None or subject.identity is None:
        return {"why_not": subject.no_arrival}
    told = {"column": subject.arrival, "window_ms": subject.window_ms}
    if not copies:
        return {**told, "count": 0, "bins": [], "quantiles": {}}
    found = Distribution.of(_lags(rows, subject.identity, subject.arrival), _LAG)
    bins = [list(entry) for entry in found.bins()]
    return {**told, "count": found.total, "bins": bins, "quantiles": _quantiles(found)}


def _lags(rows: DataFrame, identity: Identity, arrival: str) -> DataFrame:
    # By 64 bits: among ten million ids two share a hash once in 400,000 runs, and a picture is none the worse for it.
    values = [hashable(F.col(quoted(name)), rows.schema[name].dataType) for name in identity.names]
    values += identity.number(rows)
    timed = rows.select(VERDICT, F.xxhash64(*values).alias(_ID), milliseconds(rows, arrival).alias(_AT))
    firsts, copies = (timed.where(has(verdict) & F.col(_AT).isNotNull()).drop(VERDICT) for verdict in _BOTH)
    found = _since_the_last(firsts, copies) if identity.time else _since_the_only(firsts, copies)
    # Subtracted with care: foreign times may be as far apart as a long cannot tell.
    return found.select(F.try_subtract(_AT, _FIRST).alias(_LAG)).where(F.col(_LAG).isNotNull())


def _since_the_only(firsts: DataFrame, copies: DataFrame) -> DataFrame:
    """Copies with the arrival of their first: an id counts once."""
    return copies.join(firsts.withColumnRenamed(_AT, _FIRST), _ID)


def _since_the_last(firsts: DataFrame, copies: DataFrame) -> DataFrame:
    """Copies with the arrival of the last first before them: an id that expires may count again."""
    both = firsts.withColumn(_AGAIN, F.lit(False)).unionByName(copies.withColumn(_AGAIN, F.lit(True)))
    by_id = Window.partitionBy(_ID).orderBy(_AT, _AGAIN).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    first = F.last(F.when(~F.col(_AGAIN), F.col(_AT)), ignorenulls=True).over(by_id)
    return both.withColumn(_FIRST, first).where(_AGAIN)


def _quantiles(found: Distribution) -> dict[str, int]:
    """Within how long such shares of the copies came, rounded up to the end of a bucket."""
    if not found.total:
        return {}
    upto = np.cumsum(found.count)
    buckets = {share: int(found.lower[np.searchsorted(upto, rank_of(share, found.total))]) for share in SHARES}
    ends = {share: lower + (1 << max(0, lower.bit_length() - DIGITS)) - 1 for share, lower in buckets.items()}
    return {f"{share:g}": min(end, found.most) for share, end in ends.items()}
