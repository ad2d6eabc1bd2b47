"""What a pipeline needs to know of an engine, and what each engine says: one class per engine, named after it.

The jobs read, judge, publish and keep the books for whatever stands behind `Engine`; a new engine is a class here, or
in a file of its own (`judging_lorawan`).

What a pipeline needs to know of the lorawan engine: receptions are read from whatever shape they are stored in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Protocol, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.chains.rules import GAP_COUNT_MAX, Floor
from onefold.errors import Misuse
from onefold.lorawan.columns import EXPIRY_MS, LATE_MS, Windows
from onefold.producers.records import DIGESTS_MAX, MemoryKind
from onefold.spark.chains import chains_meaning, judge_chains, jump_limit
from onefold.spark.columns import ChainColumns, ProducerColumns, milliseconds, quoted
from onefold.spark.gaps import missing_ranges, missing_sequences
from onefold.spark.host import BUCKETS, REASON, VERDICT, Transform, Watch
from onefold.spark.in_order import order_chains
from onefold.spark.meaning import Meaning
from onefold.spark.producers import judge_producers, producers_meaning
from onefold.spark.receptions.counters import missing_counters
from onefold.spark.receptions.judge import (
    STATUS,
    ReceptionColumns,
    judge_receptions,
    merge_uplinks,
    receptions_meaning,
)
from onefold.spark.receptions.reading import TYPES, column_of, not_receptions, receptions, text_of


class Named(Protocol):
    """The columns of a table, by what they are for."""

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is there."""
        ...

    def check(self, df: DataFrame) -> None:
        """Raise `Misuse` that names the column if one is missing or of a wrong type."""
        ...


class Untold(NamedTuple):
    """Something that an engine cannot tell with these settings, and the setting that would tell it."""

    about: Literal["lost", "copies"]
    what: str
    option: str
    """The setting's name."""
    value: str
    """What it must be; COLUMN stands for the name of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """How a stream remembers."""

    idle_ms: int | None = None
    state_rows_max: int | None = None
    buckets: int = BUCKETS
    ordered_wait_ms: int | None = None
    """None: messages come out as they come. Else per chain in order: what comes too early is held back so long."""


class Engine(Protocol):
    """How messages are judged."""

    @property
    def engine(self) -> str:
        """Its name: chains, producers, lorawan."""
        ...

    @property
    def columns(self) -> Named:
        """Where it looks."""
        ...

    @property
    def reads(self) -> Named:
        """What the source must have, before it is shaped."""
        ...

    @property
    def key(self) -> Sequence[str]:
        """The columns that name a chain, a producer, a device."""
        ...

    @property
    def partitions(self) -> int | None:
        """How many tasks judge; None: by the size of the input."""
        ...

    def fitted(self, source: DataFrame) -> Engine:
        """The same, looking only where this source has columns."""
        ...

    def shaped(self, source: DataFrame) -> DataFrame:
        """The messages of the source, one a row, with the columns that are looked at."""
        ...

    def others(self, source: DataFrame) -> int:
        """How many rows of the source are no messages, and are not among the shaped ones."""
        ...

    def table(self) -> Transform:
        """The step that judges a table."""
        ...

    def stream(self, state: EngineState, watch: Watch) -> Transform:
        """The step that judges a stream."""
        ...

    def meaning(self, df: DataFrame, state: EngineState) -> Meaning:
        """What the memory of a stream of these rows means: whoever goes on with it must mean the same."""
        ...

    def missing(self, firsts: DataFrame) -> DataFrame:
        """The ranges that are known to be missing: the key, lower ends (seen; null: before all), upper ends."""
        ...

    def cannot_tell(self) -> Sequence[Untold]:
        """What nobody may claim of rows that were judged like this."""
        ...

    def keys(self, rows: DataFrame) -> int:
        """How many chains, producers or devices there are among judged rows."""
        ...

    def extras(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """What a batch run publishes besides, by the name of its folder, made from the judged rows."""
        ...


class AsItStands:
    """An engine whose source holds the messages as they are judged, and that publishes nothing besides."""

    __slots__ = ()

    columns: Named

    @property
    def reads(self) -> Named:
        """The columns that are looked at."""
        return self.columns

    def fitted(self, source: DataFrame) -> Self:
        """All that is named must be there."""
        return self

    def shaped(self, source: DataFrame) -> DataFrame:
        """The source."""
        return source

    def others(self, source: DataFrame) -> int:
        """Every row is a message."""
        return 0

    def extras(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """Nothing."""
        return {}

    def cannot_tell(self) -> Sequence[Untold]:
        """Nothing but what guarantees.md says of the engine."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsEngine(AsItStands):
    """By the intervals of a chain that were not seen; see `judge_chains`."""

    columns: ChainColumns = field(default_factory=ChainColumns)
    floor: Floor = "first"
    gap_count_max: int = GAP_COUNT_MAX
    jump_max_ms: int | Literal["auto", "off"] = "auto"
    partitions: int | None = None
    engine: str = field(default="chains", init=False)

    @property
    def key(self) -> Sequence[str]:
        """The columns that name a chain."""
        return self.columns.key

    def fitted(self, source: DataFrame) -> ChainsEngine:
        """Without the usual columns that are not there."""
        return replace(self, columns=self.columns.of(source))

    def table(self) -> Transform:
        """The step that judges a table."""
        return judge_chains(
            self.columns,
            floor=self.floor,
            gap_count_max=self.gap_count_max,
            jump_max_ms=self.jump_max_ms,
            partitions=self.partitions,
        )

    def stream(self, state: EngineState, watch: Watch) -> Transform:
        """The step that judges a stream, or judges it and puts it in order."""
        if state.ordered_wait_ms is not None:
            return self._ordered(state, state.ordered_wait_ms, watch)
        return judge_chains(
            self.columns,
            floor=self.floor,
            gap_count_max=self.gap_count_max,
            jump_max_ms=self.jump_max_ms,
            idle_ms=state.idle_ms,
            state_rows_max=state.state_rows_max,
            buckets=state.buckets,
            watch=watch,
        )

    def meaning(self, df: DataFrame, state: EngineState) -> Meaning:
        """The columns, floor, jump guard, buckets, and whether rows are held back."""
        present = self.columns.of(df)
        return chains_meaning(
            df,
            present,
            floor=self.floor,
            jump_max_ms=jump_limit(self.jump_max_ms, present),
            buckets=state.buckets,
            ordered=state.ordered_wait_ms is not None,
        )

    def _ordered(self, state: EngineState, wait_ms: int, watch: Watch) -> Transform:
        if self.floor != "first":
            raise Misuse(
                'floor is "open", must be "first" where messages are held back: the first one is where order begins'
            )
        if state.idle_ms is not None:
            raise Misuse(f"idle_ms is {state.idle_ms}, must be off where messages are held back: order_wait_ms is it")
        return order_chains(
            self.columns,
            wait_ms=wait_ms,
            gap_count_max=self.gap_count_max,
            jump_max_ms=self.jump_max_ms,
            state_rows_max=state.state_rows_max,
            buckets=state.buckets,
            watch=watch,
        )

    def missing(self, firsts: DataFrame) -> DataFrame:
        """What lies between neighbours that do not name each other."""
        return missing_ranges(firsts, self.columns, floor=self.floor)

    def cannot_tell(self) -> Sequence[Untold]:
        """Without previous numbers a loss leaves no trace, and a number is all that a message is known by."""
        if self.columns.previous_timestamp is not None:
            return ()
        number = self.columns.timestamp
        alike = f"rows of one key that share their {number!r} are copies here, and rows with another are other messages"
        return (
            Untold("lost", "what was lost: the rows name no previous message", "previous_timestamp", "COLUMN"),
            Untold("copies", f"copies that bear another number: {alike}", "timestamp", "COLUMN"),
        )

    def keys(self, rows: DataFrame) -> int:
        """Every chain has one first message."""
        return rows.where(F.col(REASON) == "new_chain").count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers(AsItStands):
    """By the sequences of a producer; see `judge_producers`."""

    columns: ProducerColumns = field(default_factory=ProducerColumns)
    memory: MemoryKind = "highest"
    digests_max: int = DIGESTS_MAX
    gap_count_max: int = GAP_COUNT_MAX
    jump_max: int | None = None
    partitions: int | None = None
    engine: str = field(default="producers", init=False)

    @property
    def key(self) -> Sequence[str]:
        """The columns that name a producer."""
        return self.columns.producer

    def table(self) -> Transform:
        """The step that judges a table."""
        return judge_producers(
            self.columns,
            memory=self.memory,
            gap_count_max=self.gap_count_max,
            jump_max=self.jump_max,
            partitions=self.partitions,
        )

    def stream(self, state: EngineState, watch: Watch) -> Transform:
        """The step that judges a stream."""
        if state.ordered_wait_ms is not None:
            raise Misuse(f"order_wait_ms is {state.ordered_wait_ms}, but only chains can be put in order")
        return judge_producers(
            self.columns,
            memory=self.memory,
            digests_max=self.digests_max,
            gap_count_max=self.gap_count_max,
            jump_max=self.jump_max,
            idle_ms=state.idle_ms,
            state_rows_max=state.state_rows_max,
            buckets=state.buckets,
            watch=watch,
        )

    def meaning(self, df: DataFrame, state: EngineState) -> Meaning:
        """The columns, memory, jump guard and buckets."""
        return producers_meaning(df, self.columns, memory=self.memory, jump_max=self.jump_max, buckets=state.buckets)

    def missing(self, firsts: DataFrame) -> DataFrame:
        """With memory "gaps", what lies between neighbours; with "highest" holes mean nothing."""
        missing = missing_sequences(firsts, self.columns)
        return missing if self.memory == "gaps" else missing.limit(0)

    def cannot_tell(self) -> Sequence[Untold]:
        """With memory "highest" a hole may be anything."""
        if self.memory == "gaps":
            return ()
        return (Untold("lost", 'what was lost: with memory = "highest" holes mean nothing', "memory", "gaps"),)

    def keys(self, rows: DataFrame) -> int:
        """Who has a message that counts."""
        firsts = rows.where(F.col("verdict") == "FIRST")
        return firsts.select(*(F.col(quoted(name)) for name in self.key)).distinct().count()


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

    def stream(self, state: EngineState, watch: Watch) -> Transform:
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

    def meaning(self, df: DataFrame, state: EngineState) -> Meaning:
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
