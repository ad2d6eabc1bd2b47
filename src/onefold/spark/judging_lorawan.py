"""What a pipeline needs to know of the lorawan engine: receptions are read from whatever shape they are stored in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.lorawan.bank import LATE_MS
from onefold.engines.lorawan.columnar import EXPIRY_MS, Windows
from onefold.errors import Misuse
from onefold.spark.columns import milliseconds, quoted
from onefold.spark.counters import missing_counters
from onefold.spark.judging import Named, State, Untold
from onefold.spark.meaning import Meaning
from onefold.spark.reception_columns import ReceptionColumns
from onefold.spark.reception_judge import STATUS, judge_receptions, receptions_meaning
from onefold.spark.receptions import TYPES, column_of, not_receptions, receptions, text_of
from onefold.spark.stateful import Watch
from onefold.spark.table import REASON, VERDICT, Transform
from onefold.spark.uplinks import merge_uplinks

FLAT: Final = "flat"
"""The shape of a table whose columns are named by `ReceptionColumns`."""


class AnyShape:
    """No columns in particular: what a row is, is found out row by row."""

    named: Final[list[tuple[str, str]]] = []

    def check(self, df: DataFrame) -> None:
        """Any table will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lorawan:
    """By who heard a frame, and when; see `judge_receptions`."""

    columns: ReceptionColumns = field(default_factory=ReceptionColumns)
    """Other names than the usual ones only where the shape is "flat"."""
    shape: str = "auto"
    """How receptions are stored: one of the shapes of `receptions`, "auto", or "flat": as the columns say."""
    expiry_ms: int = EXPIRY_MS
    sliding: bool = True
    echo_ms: int = 0
    strict_adr: bool = False
    strategy: str = "none"
    late_ms: int = LATE_MS
    partitions: int | None = None
    engine: str = field(default="lorawan", init=False)

    def __post_init__(self) -> None:
        if self.shape != FLAT and self.columns != ReceptionColumns():
            raise Misuse(f"columns are named, which needs shape {FLAT!r}, not {self.shape!r}", shape=self.shape)

    @property
    def key(self) -> Sequence[str]:
        """The columns that name a device."""
        return self.columns.device

    @property
    def reads(self) -> Named:
        """The columns, or whatever there is."""
        return self.columns if self.shape == FLAT else AnyShape()

    def fitted(self, source: DataFrame) -> Lorawan:
        """All that is named must be there."""
        return self

    def cannot_tell(self) -> Sequence[Untold]:
        """Nothing but what guarantees.md says."""
        return ()

    def shaped(self, source: DataFrame) -> DataFrame:
        """One row per reception."""
        return source if self.shape == FLAT else receptions(source, self.shape)

    def others(self, source: DataFrame) -> int:
        """Events that are no receptions."""
        return 0 if self.shape == FLAT else not_receptions(source, self.shape).count()

    def table(self) -> Transform:
        """The step that judges a table."""
        return judge_receptions(
            self.columns,
            expiry_ms=self.expiry_ms,
            sliding=self.sliding,
            strategy=self.strategy,
            echo_ms=self.echo_ms,
            strict_adr=self.strict_adr,
            partitions=self.partitions,
        )

    def stream(self, state: State, watch: Watch) -> Transform:
        """The step that judges a stream."""
        if state.ordered_wait_ms is not None:
            raise Misuse(f"order_wait_ms is {state.ordered_wait_ms}, but only chains can be put in order")
        if state.idle_ms is not None:
            raise Misuse(f"idle_ms is {state.idle_ms}, but frames are forgotten by expiry_ms and late_ms")
        judge = judge_receptions(
            self.columns,
            expiry_ms=self.expiry_ms,
            sliding=self.sliding,
            strategy=self.strategy,
            echo_ms=self.echo_ms,
            strict_adr=self.strict_adr,
            late_ms=self.late_ms,
            state_rows_max=state.state_rows_max,
            buckets=state.buckets,
            watch=watch,
        )
        # Under "none" rows pass as they came: what a sink does not know to take off must not be put on.
        return judge if self.strategy != "none" else lambda df: df.transform(judge).drop(STATUS)

    def meaning(self, df: DataFrame, state: State) -> Meaning:
        """The columns, or the shape that they are made from, the windows and the buckets."""
        windows = Windows(expiry_ms=self.expiry_ms, sliding=self.sliding, echo_ms=self.echo_ms)
        meaning = receptions_meaning(
            df, self.columns, windows=windows, strict_adr=self.strict_adr, buckets=state.buckets
        )
        return {**meaning, "shape": self.shape}

    def missing(self, firsts: DataFrame) -> DataFrame:
        """The counters of each device that nobody heard."""
        return missing_counters(firsts, self.columns)

    def keys(self, rows: DataFrame) -> int:
        """Which devices were heard."""
        firsts = rows.where(F.col(VERDICT) == "FIRST")
        return firsts.select(*(F.col(quoted(name)) for name in self.key)).distinct().count() if self.key else 0

    def extras(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """The uplinks: each with all of its receptions, and the best of them."""
        return {"uplinks": merge_uplinks(self._normal(rows))}

    def _normal(self, rows: DataFrame) -> DataFrame:
        """Judged rows under the usual names."""
        if self.shape != FLAT:
            return rows
        names = self.columns
        said = {
            "frame": _joined(rows, names.frame),
            "station": text_of(rows, names.station),
            "time_ms": milliseconds(rows, names.time),
            "kind": F.lit("data") if names.kind is None else F.coalesce(text_of(rows, names.kind), F.lit("data")),
            "device": _joined(rows, names.device),
            "fcnt": F.lit(None) if names.fcnt is None else F.col(quoted(names.fcnt)),
        }
        # Other columns that are named as in the normal form are what they are there, if they can be.
        more = {name: column_of(rows, name) for name in TYPES if name in rows.columns and name not in said}
        usual = {name: said.get(name, more.get(name)) for name in TYPES}
        columns = [
            (F.lit(None) if said is None else said).try_cast(TYPES[name]).alias(name) for name, said in usual.items()
        ]
        return rows.select(*columns, VERDICT, REASON, STATUS)


def _joined(rows: DataFrame, names: Sequence[str]) -> Column:
    """Several columns as one text, which tells apart what they tell apart."""
    if len(names) == 1:
        return text_of(rows, names[0])
    return F.to_json(F.struct(*(F.col(quoted(name)) for name in names))) if names else F.lit(None)
