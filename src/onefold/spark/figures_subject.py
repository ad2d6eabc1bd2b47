"""Where the figures of a run look: which columns of the judged rows are a key, a number, a time, by engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.spark.audit_ids import Identity, identity
from onefold.spark.columns import TIME, WHOLE, quoted
from onefold.spark.gaps import LOWER, UPPER
from onefold.spark.judging import Chains, Judging, Producers
from onefold.spark.judging_lorawan import Lorawan
from onefold.spark.table import VERDICT

VERDICTS: Final = ("FIRST", "REPEAT", "UNSURE", "REJECT")
"""In the order of the law: so stand the four counts of every figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The columns of the judged rows by what the figures need them for."""

    key: tuple[str, ...] = ()
    identity: Identity | None = None
    number: str | None = None
    """Whose ranges are missing; None: nothing is ever known to be."""
    number_is_time: bool = False
    lower: str = LOWER[1]
    upper: str = UPPER[1]
    """The ends of a missing range."""
    least: int | None = None
    """The number that every key begins at; None: nobody knows."""
    axis: str | None = None
    """By which the rows are put on the timeline."""
    axis_is_time: bool = True
    arrival: str | None = None
    """The clock by which copies are late."""
    no_arrival: str = "this engine knows of no time of arrival"
    """Why there is no such clock."""
    window_ms: int | None = None
    """After how long a copy is no longer known as one; None: it always is."""

    @classmethod
    def of(cls, judging: Judging, rows: DataFrame) -> Subject:
        """As the engine reads a row."""
        key, known = tuple(judging.key), identity(judging)
        if isinstance(judging, Chains):
            names = judging.columns
            return cls(
                key=key,
                identity=known,
                number=names.timestamp,
                number_is_time=True,
                lower=LOWER[0],
                upper=UPPER[0],
                axis=names.timestamp,
                arrival=names.arrival,
                no_arrival="no arrival column: set judge.arrival",
            )
        if isinstance(judging, Producers):
            order = judging.columns.order
            timed = order is not None and isinstance(rows.schema[order].dataType, TIME)
            return cls(
                key=key,
                identity=known,
                number=judging.columns.sequence,
                least=0,
                axis=order,
                axis_is_time=timed,
                arrival=order if timed else None,
                no_arrival="no time of arrival: judge.order must be a column of timestamps",
            )
        if isinstance(judging, Lorawan):
            time = judging.columns.time
            return cls(
                key=key,
                identity=known,
                number=judging.columns.fcnt if key else None,
                axis=time,
                arrival=time,
                window_ms=judging.expiry_ms,
            )
        return cls(key=key)

    @property
    def columns(self) -> list[str]:
        """All of them."""
        ids = [] if self.identity is None else self.identity.columns
        singles = [name for name in (self.number, self.axis, self.arrival) if name is not None]
        return list(dict.fromkeys([*self.key, *ids, *singles]))


def has(verdict: str) -> Column:
    """Whether a row has this verdict."""
    return F.col(VERDICT) == verdict


def cell(df: DataFrame, name: str, chars_max: int) -> Column:
    """A value to show: a whole number as it is, all else as text, which is cut."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, WHOLE):
        return column.alias(name)
    text = F.lower(F.hex(F.substring(column, 1, chars_max))) if isinstance(kind, T.BinaryType) else column
    return F.left(text.cast("string"), F.lit(chars_max)).alias(name)
