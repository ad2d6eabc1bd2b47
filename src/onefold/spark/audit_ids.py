"""The ids of messages: what an id is, by engine, and whether each counts once.

An id is made of the columns that a message is known by, read as the judge reads them. No id may be twice among the
firsts, and each repeat must have its first: one that has none counts nowhere. Some reasons call a message a repeat
without knowing of its first, by their rule; those are counted apart.

Cost: one shuffle of ids, 32 bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.spark.columns import milliseconds, moment, quoted
from onefold.spark.diff_forms import row_form
from onefold.spark.diff_ranges import row_id
from onefold.spark.judging import Chains, Judging, Producers
from onefold.spark.judging_lorawan import Lorawan
from onefold.spark.table import REASON, VERDICT

BY_RULE: Final = ("below_floor", "behind_head", "behind_highest")
"""Reasons that call a message a repeat without knowing of its first: as published, see docs/guarantees.md."""

_ID, _AT, _SOON = "_onefold_id", "_onefold_at", "_onefold_soon"
_FIRSTS, _REPEATS, _RULED = "_onefold_firsts", "_onefold_repeats", "_onefold_ruled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """By what two rows are the same message."""

    names: tuple[str, ...]
    """Columns that are compared as they are: the chain, the producer, the frame."""
    numbers: tuple[str, ...] = ()
    """Columns that are compared as whole numbers or times, whatever their type."""
    time: str | None = None
    expiry_ms: int = 0
    """With a time: an id is new again after so long."""

    @property
    def columns(self) -> list[str]:
        """All of which the id is made."""
        return [*self.names, *self.numbers]

    def form(self, df: DataFrame) -> Column:
        """The canonical form of the id of each row."""
        names = [(F.col(quoted(name)), df.schema[name].dataType) for name in self.names]
        return row_form([*names, *((cell, T.LongType()) for cell in self.number(df))])

    def number(self, df: DataFrame) -> list[Column]:
        """The number of each row in longs, equal where the judge takes it for the same."""
        times = [moment(df, name) for name in self.numbers]
        return [part for time in times for part in time if part is not None]


def identity(judging: Judging) -> Identity | None:
    """The identity that an engine judges by; None if it is none of ours."""
    if isinstance(judging, Chains):
        numbers = (judging.columns.timestamp, judging.columns.sequence)
        return Identity(names=judging.columns.key, numbers=tuple(name for name in numbers if name is not None))
    if isinstance(judging, Producers):
        return Identity(names=judging.columns.producer, numbers=(judging.columns.sequence,))
    if isinstance(judging, Lorawan):
        return Identity(names=judging.columns.frame, time=judging.columns.time, expiry_ms=judging.expiry_ms)
    return None


class Ids:
    """The ids of judged rows, each with how often it is a first and how often a repeat."""

    def __init__(self, judged: DataFrame, known: Identity) -> None:
        self._known = known
        rows = _marked(judged, known, [VERDICT, REASON])
        if known.time is None:
            soon = F.greatest(F.count_if(_first()) - 1, F.lit(0))
        else:
            # An id that expires may be new again: one too many is a first that comes too soon after the one before.
            before = F.lag(_AT).over(Window.partitionBy(_ID, VERDICT).orderBy(_AT))
            rows = rows.withColumn(_SOON, _first() & (F.col(_AT) - before < known.expiry_ms))
            soon = F.count_if(_SOON)
        self._grouped = rows.groupBy(_ID).agg(
            F.count_if(_first()).alias(_FIRSTS),
            F.count_if(~_first() & ~_ruled()).alias(_REPEATS),
            F.count_if(~_first() & _ruled()).alias(_RULED),
            soon.alias(_SOON),
        )

    def counts(self) -> dict[str, int]:
        """How many ids count, how many of them more than once, how many repeats there are, and how many have no first;
        runs one job.
        """
        alone = F.col(_FIRSTS) == 0
        cells = {
            "ids": F.count_if(~alone),
            "twice": F.count_if(F.col(_SOON) > 0),
            "repeats": F.sum(F.col(_REPEATS) + F.col(_RULED)),
            "orphans": F.sum(F.when(alone, F.col(_REPEATS))),
            "orphans_by_rule": F.sum(F.when(alone, F.col(_RULED))),
        }
        row = self._grouped.agg(*(cell.alias(name) for name, cell in cells.items())).collect()[0]
        return {name: int(row[name] or 0) for name in cells}

    def wrong(self, judged: DataFrame) -> Mapping[str, DataFrame]:
        """The firsts that are one of several, and the repeats without a first, whole rows."""
        rows = _marked(judged, self._known, judged.columns)
        twice = self._grouped.where(F.col(_SOON) > 0).select(_ID)
        alone = self._grouped.where((F.col(_FIRSTS) == 0) & (F.col(_REPEATS) > 0)).select(_ID)
        kinds = {"twice": (twice, _first()), "orphans": (alone, ~_first() & ~_ruled())}
        return {
            name: rows.where(which).join(ids, _ID, "left_semi").drop(_ID, _AT) for name, (ids, which) in kinds.items()
        }


def _marked(judged: DataFrame, known: Identity, names: list[str]) -> DataFrame:
    """Firsts and repeats with these columns, the hash of their id, and when they came."""
    at = F.lit(None).cast("long") if known.time is None else milliseconds(judged, known.time)
    rows = judged.where(F.col(VERDICT).isin("FIRST", "REPEAT"))
    kept = [F.col(quoted(name)) for name in names]
    return rows.select(*kept, F.unhex(row_id(known.form(judged))).alias(_ID), at.alias(_AT))


def _first() -> Column:
    return F.col(VERDICT) == "FIRST"


def _ruled() -> Column:
    return F.col(REASON).isin(*BY_RULE)
