"""``df.transform(judge_chains(...))``: every row of a table gets its verdict and reason.

The rows of a chain meet in one task (a shuffle by the chain's key). There, six integers per row cross to Python in
Arrow batches, are put in the order of judgement and judged; one byte per row comes back and becomes the two columns.
The wide row itself stays in the JVM. Nothing depends on the order in which rows arrive at the task, so a retried task
and a repeated job answer the same.

Memory of a task: its Python side is bounded by ``rows_in_memory_max`` (see `spill`); the rows that wait in the JVM
spill to disk by themselves.

The chain engine as a guest of the stateful host: a bank of chains per bucket.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.chains import ANSWERS
from onefold.chains import columns as bank_snapshot
from onefold.chains.columns import ChainBank, ChainMessages, TableDetector
from onefold.chains.rules import GAP_COUNT_MAX, ChainDetector, Floor
from onefold.errors import Misuse
from onefold.spark.columns import WHOLE, ChainColumns, packed, quoted, readings
from onefold.spark.host import (
    BEFORE_ALL,
    BUCKETS,
    REASON,
    ROWS_IN_MEMORY_MAX,
    VERDICT,
    Codes,
    Hosted,
    Int64s,
    Integers,
    KeyColumns,
    Options,
    Transform,
    Watch,
    chains,
    judge_partition,
    order,
    prepare,
    tie,
    with_verdict,
)
from onefold.spark.meaning import Meaning, of_columns


@dataclass(frozen=True, slots=True)
class ChainFold:
    """Puts the rows of a bucket in the order of judgement, and shows them to the bank."""

    bank: ChainBank

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row."""
        columns = KeyColumns(*integers)
        rows = order(chains(columns), columns)
        sorted_ = columns.take(rows)
        codes = np.empty(len(rows), np.int8)
        messages = ChainMessages(sorted_.key, sorted_.key_check, sorted_.previous, sorted_.number)
        codes[rows] = self.bank.judge(messages, now_ms)
        return codes

    def snapshot(self) -> bytes:
        """The memory of the bank."""
        return self.bank.snapshot()

    def figures(self) -> dict[str, int]:
        """What there is to watch."""
        return {"keys": len(self.bank), "gaps": self.bank.gap_count}


@dataclass(frozen=True, slots=True)
class ResumeChains:
    """Opens the bank of a bucket with these settings."""

    gap_count_max: int
    floor: Floor
    idle_ms: int | None
    chains_max: int | None

    def __call__(self, blob: bytes | None) -> ChainFold:
        """The bank as the last batch left it; None: an empty one."""
        bank = ChainBank(
            gap_count_max=self.gap_count_max, floor=self.floor, idle_ms=self.idle_ms, chains_max=self.chains_max
        )
        return ChainFold(bank if blob is None else bank.resume(blob))


__all__ = ["REASON", "VERDICT", "Transform", "integers", "judge_chains", "jump_limit"]

JUMP_MAX_MS = 900_000
"""A quarter of an hour: more than clocks that are set at all are off, less than a mistaken year, day or unit."""


def judge_chains(
    columns: ChainColumns | None = None,
    *,
    gap_count_max: int = GAP_COUNT_MAX,
    floor: Floor = "first",
    jump_max_ms: int | Literal["auto", "off"] = "auto",
    partitions: int | None = None,
    rows_in_memory_max: int = ROWS_IN_MEMORY_MAX,
    idle_ms: int | None = None,
    state_rows_max: int | None = None,
    buckets: int = BUCKETS,
    watch: Watch | None = None,
) -> Transform:
    """A step that adds ``verdict`` and ``reason`` to a table or a stream of chained messages.

    ``jump_max_ms``: how far a number's timestamp may lie ahead of its arrival; "auto" is 900 s if there is an arrival
    column. The rows come out in no particular order.

    Of tables only: ``partitions``, how many tasks judge (None: by the size of the input), and ``rows_in_memory_max``.

    Of streams only: ``idle_ms``, after how long without a message a chain gives up its gaps; ``state_rows_max``, how
    many chains a bucket remembers, beyond which messages of new chains are UNSURE; ``buckets``, into how many parts the
    state is split; ``watch``, which is told the figures of each bucket.
    """
    names = columns or ChainColumns()
    ChainDetector(gap_count_max=gap_count_max, floor=floor)  # refuses misuse now, not in a task
    jump_limit(jump_max_ms, names)
    options = Options(
        partitions=partitions,
        rows_in_memory_max=rows_in_memory_max,
        idle_ms=idle_ms,
        state_rows_max=state_rows_max,
        buckets=buckets,
        watch=watch,
    )
    resume = ResumeChains(gap_count_max, floor, idle_ms, state_rows_max)
    resume(None)
    judge = ChainsTask(gap_count_max, floor, rows_in_memory_max)

    def chains_judged(df: DataFrame) -> DataFrame:
        names.check(df)
        present = names.of(df)
        prepare(df, options)
        jump = jump_limit(jump_max_ms, present)
        meaning = chains_meaning(df, present, floor=floor, jump_max_ms=jump, buckets=buckets)
        engine = Hosted(integers(df, present, jump), resume, ANSWERS, meaning)
        return with_verdict(df, names.key, engine, judge, options)

    return chains_judged


def chains_meaning(
    df: DataFrame, names: ChainColumns, *, floor: Floor, jump_max_ms: int | None, buckets: int, ordered: int = 0
) -> Meaning:
    """What the memory of a stream of chains means; ``ordered`` is the format of chains in order."""
    return {
        "engine": "chains",
        "state": ordered or bank_snapshot.FORMAT,
        **of_columns(df, names.named),
        "floor": floor,
        "jump_max_ms": "off" if jump_max_ms is None else jump_max_ms,
        "buckets": buckets,
        "ordered": bool(ordered),
    }


@dataclass(frozen=True, slots=True)
class ChainsTask:
    """Judges a partition of a table, in a task."""

    gap_count_max: int
    floor: Floor
    rows_in_memory_max: int

    def __call__(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        table = TableDetector(gap_count_max=self.gap_count_max, floor=self.floor)
        return judge_partition(
            parts, table.judge, self.rows_in_memory_max, review=table.review, review_due=lambda: table.due
        )


def _key(names: ChainColumns) -> list[Column]:
    return [F.col(quoted(name)) for name in names.key]


def integers(df: DataFrame, names: ChainColumns, jump_max_ms: int | None) -> Integers:
    """What the judgement needs of a row: the `KeyColumns`, as longs without nulls."""
    read = readings(df, [names.timestamp, names.previous_timestamp, names.arrival])
    numbers = packed(df.withColumns(read) if read else df, names, jump_max_ms)
    columns = (
        F.xxhash64(*_key(names)),
        F.xxhash64(F.lit(1), *_key(names)),
        F.coalesce(numbers.arrival, F.lit(BEFORE_ALL).cast("long")),
        numbers.previous,
        numbers.number,
        _tie(df, names),
    )
    return Integers(columns, read)


def _tie(df: DataFrame, names: ChainColumns) -> Column:
    """Of a time, the order has seen the microseconds only: it is hashed too."""
    return tie(df, {name for role, name in names.named if role == "key" or isinstance(df.schema[name].dataType, WHOLE)})


def jump_limit(jump_max_ms: int | Literal["auto", "off"], names: ChainColumns) -> int | None:
    """How far ahead of its arrival a number may be, in ms; None: no limit."""
    if jump_max_ms == "off" or (jump_max_ms == "auto" and names.arrival is None):
        return None
    if jump_max_ms == "auto":
        return JUMP_MAX_MS
    if not isinstance(jump_max_ms, int) or jump_max_ms < 0:
        raise Misuse(
            f'jump_max_ms is {jump_max_ms!r}, must be a number of ms, "auto" or "off"', jump_max_ms=jump_max_ms
        )
    if names.arrival is None:
        raise Misuse(
            "jump_max_ms needs an arrival column to measure from, and arrival is none", jump_max_ms=jump_max_ms
        )
    return jump_max_ms
