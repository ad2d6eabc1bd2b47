"""``df.transform(judge_chains(...))``: every row of a table or a stream of chains gets its verdict and reason.

The rows of a chain meet in one task (a shuffle by the chain's key). There, six integers per row cross to Python in
Arrow batches, are put in the order of judgement and judged; one byte per row comes back and becomes the two columns.
The wide row itself stays in the JVM. Of a stream, a bucket of the state is a bank of chains. How it is done is in
`host`; in order, with rows held back, in `in_order`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.chains.columns import FORMAT, ChainBank, ChainMessages, TableDetector
from onefold.chains.rules import ANSWERS, GAP_COUNT_MAX, ChainSettings, Floor
from onefold.errors import Misuse
from onefold.spark import host, in_order
from onefold.spark.columns import WHOLE, ChainColumns, packed, quoted, readings
from onefold.spark.engine import Engine, Identity, Subject, Untold, named_like
from onefold.spark.gaps import missing_ranges
from onefold.spark.host import Codes, Int64s, Integers, KeyColumns, StreamMemory, Transform
from onefold.spark.meaning import Meaning, of_columns

if TYPE_CHECKING:
    from onefold.settings import Judge

JUMP_MAX_MS = 900_000
"""A quarter of an hour: more than clocks that are set at all are off, less than a mistaken year, day or unit."""


def judge_chains(
    columns: ChainColumns | None = None, *, gap_count_max: int = GAP_COUNT_MAX, floor: Floor = "first",
    jump_max_ms: int | Literal["auto", "off"] = "auto", partitions: int | None = None,
    rows_in_memory_max: int = host.ROWS_IN_MEMORY_MAX, idle_ms: int | None = None, state_rows_max: int | None = None,
    buckets: int = host.BUCKETS, watch: host.Watch | None = None,
) -> Transform:  # fmt: skip
    """A step that adds ``verdict`` and ``reason`` to a table or a stream of chained messages.

    ``jump_max_ms``: how far a number's timestamp may lie ahead of its arrival; "auto" is 900 s if there is an arrival
    column. The rows come out in no particular order.

    Of tables only: ``partitions``, how many tasks judge (None: by the size of the input), and ``rows_in_memory_max``.

    Of streams only: ``idle_ms``, after how long without a message a chain gives up its gaps; ``state_rows_max``, how
    many chains a bucket remembers, beyond which messages of new chains are UNSURE; ``buckets``, into how many parts the
    state is split; ``watch``, which is called with the figures of each bucket.
    """
    engine = ChainsEngine(
        columns=columns or ChainColumns(), gap_count_max=gap_count_max, floor=floor, jump_max_ms=jump_max_ms,
        partitions=partitions, rows_in_memory_max=rows_in_memory_max,
    )  # fmt: skip
    return engine.step(StreamMemory(idle_ms=idle_ms, state_rows_max=state_rows_max, buckets=buckets, watch=watch))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsEngine(Engine):
    """By the intervals of a chain that were not seen; see `judge_chains`."""

    name: ClassVar[str] = "chains"
    answers = ANSWERS

    columns: ChainColumns = field(default_factory=ChainColumns)
    floor: Floor = "first"
    gap_count_max: int = GAP_COUNT_MAX
    jump_max_ms: int | Literal["auto", "off"] = "auto"

    def __post_init__(self) -> None:
        ChainSettings(self.gap_count_max, self.floor).checked()  # refuses misuse now, not in a task
        self.jump_limit()
        Engine.__post_init__(self)

    @classmethod
    def configured(cls, judge: Judge, *, strategy: str, partitions: int | None) -> ChainsEngine:
        columns: dict[str, Any] = named_like(ChainColumns, judge)
        # A name that is the default is the usual one, which a source may lack: run.json writes out what was left open.
        for role in ("sequence", "previous_timestamp", "previous_sequence", "arrival"):
            if columns[role] == (usual := getattr(ChainColumns(), role)):
                columns[role] = usual
        return cls(columns=ChainColumns(**columns), **named_like(cls, judge), partitions=partitions)

    @property
    def key(self) -> tuple[str, ...]:
        return self.columns.key

    def fitted(self, source: DataFrame) -> ChainsEngine:
        return replace(self, columns=self.columns.of(source))

    def jump_limit(self) -> int | None:
        """How far ahead of its arrival a number may be, in ms; None: no limit."""
        jump_max_ms, arrival = self.jump_max_ms, self.columns.arrival
        if jump_max_ms == "off" or (jump_max_ms == "auto" and arrival is None):
            return None
        if jump_max_ms == "auto":
            return JUMP_MAX_MS
        if not isinstance(jump_max_ms, int) or jump_max_ms < 0:
            problem = f'jump_max_ms is {jump_max_ms!r}, must be a number of ms, "auto" or "off"'
        elif arrival is None:
            problem = "jump_max_ms needs an arrival column to measure from, and arrival is none"
        else:
            return jump_max_ms
        raise Misuse(problem, jump_max_ms=jump_max_ms)

    def integers(self, df: DataFrame) -> Integers:
        names, key = self.columns, [F.col(quoted(name)) for name in self.key]
        read = readings(df, [names.timestamp, names.previous_timestamp, names.arrival])
        numbers = packed(df.withColumns(read) if read else df, names, self.jump_limit())
        # Of a time, the order has seen the microseconds only: it is part of the tie too.
        ordered = {n for role, n in names.named if role == "key" or isinstance(df.schema[n].dataType, WHOLE)}
        columns = (
            F.xxhash64(*key),
            F.xxhash64(F.lit(1), *key),
            F.coalesce(numbers.arrival, F.lit(host.BEFORE_ALL).cast("long")),
            numbers.previous,
            numbers.number,
            host.tie(df, ordered),
        )
        return Integers(columns, read, key)

    def judge_partition(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        table = TableDetector(ChainSettings(self.gap_count_max, self.floor))
        return host.judge_partition(
            parts, table.judge, self.rows_in_memory_max, review=table.review, review_due=lambda: table.due
        )

    def fold(self, blob: bytes | None, memory: StreamMemory) -> ChainFold:
        settings = ChainSettings(self.gap_count_max, self.floor)
        bank = ChainBank(settings, idle_ms=memory.idle_ms, chains_max=memory.state_rows_max)
        return ChainFold(bank if blob is None else bank.resume(blob))

    def meaning(self, df: DataFrame, memory: StreamMemory) -> Meaning:
        present = self.fitted(df)
        limit, ordered = present.jump_limit(), memory.ordered_wait_ms is not None
        return {
            "engine": self.name,
            "state": in_order.FORMAT if ordered else FORMAT,
            **of_columns(df, present.columns.named),
            "floor": self.floor,
            "jump_max_ms": "off" if limit is None else limit,
            "buckets": memory.buckets,
            "ordered": ordered,
        }

    def step(self, memory: StreamMemory | None = None) -> Transform:
        """The step that judges a table or a stream, or judges a stream and puts each chain in order."""
        if memory is None or memory.ordered_wait_ms is None:
            return Engine.step(self, memory)
        if self.floor != "first":
            raise Misuse(
                'floor is "open", must be "first" where messages are held back: the first one is where order begins'
            )
        if memory.idle_ms is not None:
            raise Misuse(f"idle_ms is {memory.idle_ms}, must be off where messages are held back: order_wait_ms is it")
        return in_order.order_chains(self, memory.ordered_wait_ms, memory)

    def missing(self, firsts: DataFrame) -> DataFrame:
        return missing_ranges(firsts, self.columns, floor=self.floor)

    def keys(self, rows: DataFrame) -> int:
        return rows.where(F.col(host.REASON) == "new_chain").count()

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

    def subject(self, rows: DataFrame) -> Subject:
        names = self.columns
        numbers = tuple(name for name in (names.timestamp, names.sequence) if name is not None)
        return Subject(
            key=self.key,
            identity=Identity(names=self.key, numbers=numbers),
            message=tuple(name for name in numbers if name not in self.key),
            number=names.timestamp,
            number_is_time=True,
            order=names.arrival,
            axis=names.timestamp,
            arrival=names.arrival,
            no_arrival="no arrival column: set judge.arrival",
        )


@dataclass(frozen=True, slots=True)
class ChainFold:
    bank: ChainBank

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        columns = KeyColumns(*integers)
        rows = host.order(host.chains(columns), columns)
        sorted_ = columns.take(rows)
        codes = np.empty(len(rows), np.int8)
        messages = ChainMessages(sorted_.key, sorted_.key_check, sorted_.previous, sorted_.number)
        codes[rows] = self.bank.judge(messages, now_ms)
        return codes

    def snapshot(self) -> bytes:
        return self.bank.snapshot()

    def figures(self) -> dict[str, int]:
        return {"keys": len(self.bank), "gaps": self.bank.gap_count}
