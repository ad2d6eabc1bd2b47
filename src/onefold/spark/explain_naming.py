"""Which columns name a message: who it is from, which of theirs it is, when it came, and through whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from onefold.spark.audit_ids import identity
from onefold.spark.judging import Chains, Judging, Producers
from onefold.spark.judging_lorawan import Lorawan
from onefold.spark.table import REASON, VERDICT

SOURCES: Final = ("source", "station", "gateway", "receiver", "relay", "node")
"""Columns of these names say through whom a copy came, where the engine knows of no such column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The columns by what they say."""

    engine: str | None = None
    key: tuple[str, ...] = ()
    """Who: a chain, a producer, a device."""
    message: tuple[str, ...] = ()
    """Which of theirs: its number, its frame."""
    number: str | None = None
    """The column whose values the missing ranges are of; of two, the first."""
    arrival: str | None = None
    """The order of judgement."""
    source: str | None = None
    """Through whom a copy came."""

    @property
    def all(self) -> tuple[str, ...]:
        """What a word may equal."""
        return (*self.key, *self.message)


def naming(rows: DataFrame, judging: Judging | None) -> Naming:
    """As the engine reads a row; if it is not known, as rows with these columns are usually read."""
    found = _usual(rows) if judging is None else _of(judging.fitted(rows))
    if found.source is not None:
        return found
    return replace(found, source=next((name for name in SOURCES if name in rows.columns), None))


def _of(judging: Judging) -> Naming:
    known = identity(judging)
    key = tuple(judging.key)
    message = tuple(name for name in (known.columns if known else ()) if name not in key)
    found = Naming(engine=judging.engine, key=key, message=message)
    if isinstance(judging, Chains):
        return replace(found, number=judging.columns.timestamp, arrival=judging.columns.arrival)
    if isinstance(judging, Producers):
        return replace(found, number=judging.columns.sequence, arrival=judging.columns.order)
    if isinstance(judging, Lorawan):
        names = judging.columns
        counter = () if names.fcnt is None else (names.fcnt,)
        # By its counter, as people know a frame; the frame itself tells two of the same counter apart.
        return replace(
            found, message=(*counter, *message), number=names.fcnt, arrival=names.time, source=names.station
        )  # fmt: skip
    return found


def _usual(rows: DataFrame) -> Naming:
    """By the columns of the first engine whose usual ones are all there; else every plain column may name a message."""
    engines: tuple[Judging, ...] = (Chains(), Lorawan(), Producers())
    for judging in engines:
        if all(name in rows.columns for _, name in judging.columns.named):
            return _of(judging)
    plain = [field.name for field in rows.schema if isinstance(field.dataType, T.AtomicType)]
    return Naming(message=tuple(name for name in plain if name not in (VERDICT, REASON)))
