"""``df.transform(judge_chains(...))``: every row of a table or a stream of chains gets its verdict and reason.

The rows of a chain meet in one task (a shuffle by the chain's key). There, six integers per row cross to Python in
Arrow batches, are put in the order of judgement and judged; one byte per row comes back and becomes the two columns.
The wide row itself stays in the JVM. With a memory, the chains that a batch touches become a bank, and are kept as
records of their heads and gaps. `host` does all this; `in_order` holds rows back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.chains.columns import ChainBank, ChainMessages, Chains, GapRows, TableDetector
from onefold.chains.rules import ANSWERS, GAP_COUNT_MAX, NEW_CHAIN, SEQUENCE_BITS, ChainSettings, Floor
from onefold.errors import Misuse
from onefold.spark import host, in_order
from onefold.spark.columns import WHOLE, ChainColumns, packed, quoted, readings, unit_of
from onefold.spark.engine import Engine, Identity, Subject, Untold, named_like
from onefold.spark.gaps import CHAINS, missing_ranges, named_ranges
from onefold.spark.host import Codes, Int64s, Integers, KeyColumns, MemoryOptions, Transform
from onefold.spark.meaning import Meaning, of_columns
from onefold.spark.memory import BUCKETS, FORMAT, Bucket, ItemLists, KeyRecords
from onefold.spark.notes import NoteRules
from onefold.tally import Tally

if TYPE_CHECKING:
    from onefold.settings import Judge
    from onefold.tally import Tally

JUMP_MAX_MS = 900_000
"""A quarter of an hour: more than clocks that are set are ever off, less than a mistaken year, day or unit."""


def judge_chains(
    columns: ChainColumns | None = None, *, gap_count_max: int = GAP_COUNT_MAX, floor: Floor = "first",
    jump_max_ms: int | Literal["auto", "off"] = "auto", partitions: int | None = None,
    rows_in_memory_max: int = host.ROWS_IN_MEMORY_MAX, memory: str | None = None, version: int | None = None,
    idle_ms: int | None = None, state_rows_max: int | None = None, buckets: int = BUCKETS,
) -> Transform:  # fmt: skip
    """A step that adds ``verdict`` and ``reason`` to a table or a stream of chained messages.

        judged = df.transform(judge_chains(ChainColumns(key="device", timestamp="ts", arrival="received")))

    ``jump_max_ms``: how far a number's timestamp may lie ahead of its arrival; "auto" is 900 s if there is an arrival
    column. The rows come out in no particular order.

    ``partitions``: how many tasks judge; None: by the size of the input. ``rows_in_memory_max``: of a task; more are
    sorted on disk.

    ``memory``: the folder of the memory. A stream needs one; a table with a memory needs its ``version``, one above the
    last (in ``foreachBatch``, the number of the batch). Options of the memory: ``idle_ms``, after how long without a
    message a chain gives up its gaps; ``state_rows_max``, how many chains a bucket remembers, beyond which messages of
    new chains are UNSURE; ``buckets``, into how many parts the memory is split.
    """
    engine = ChainsEngine(
        columns=columns or ChainColumns(), gap_count_max=gap_count_max, floor=floor, jump_max_ms=jump_max_ms,
        partitions=partitions, rows_in_memory_max=rows_in_memory_max,
    )  # fmt: skip
    return engine.step(
        MemoryOptions(path=memory, version=version, idle_ms=idle_ms, state_rows_max=state_rows_max, buckets=buckets)
    )


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
        # A name equal to the default may be missing in the source: run.json writes out defaults too.
        for role in ("sequence", "previous_timestamp", "previous_sequence", "arrival"):
            if columns[role] == (usual := getattr(ChainColumns(), role)):
                columns[role] = usual
        return cls(columns=ChainColumns(**columns), **named_like(cls, judge), partitions=partitions)

    @property
    def key(self) -> tuple[str, ...]:
        return self.columns.key

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
        # The order uses only the microseconds of a time, so a time is part of the tie too.
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

    def judge_bucket(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        if options.ordered_wait_ms is not None:
            return in_order.judge_bucket(rows, bucket, in_order.settings_of(self, options), options, now_ms)
        bank, _ = recalled(bucket, rows, ChainSettings(self.gap_count_max, self.floor), options, now_ms)
        codes = bank.judge(ChainMessages(rows.key, rows.key_check, rows.previous, rows.number), now_ms)
        remember(bucket, bank)
        return codes

    def compacted(
        self, table: str, records: KeyRecords, figures: dict[str, int], options: MemoryOptions, now_ms: int
    ) -> KeyRecords:
        return without_idle(records, figures, options, now_ms)

    def meaning(self, df: DataFrame, options: MemoryOptions) -> Meaning:
        present = self.fitted(df)
        limit, ordered = present.jump_limit(), options.ordered_wait_ms is not None
        return {
            "engine": self.name,
            "state": FORMAT,
            **of_columns(df, present.columns.named),
            "floor": self.floor,
            "jump_max_ms": "off" if limit is None else limit,
            "buckets": options.buckets,
            "ordered": ordered,
        }

    def ordered(self, options: MemoryOptions) -> in_order.OrderedStep:
        in_order.settings_of(self, options)  # refuses misuse now, not in a task
        return lambda rows: in_order.in_order(rows, self, options)

    def missing(self, firsts: DataFrame) -> DataFrame:
        return missing_ranges(firsts, self.columns, floor=self.floor)

    def naming(self, rows: DataFrame) -> DataFrame:
        return rows.where((F.col(host.REASON) == NEW_CHAIN.reason) | (F.col(host.VERDICT) == "REJECT"))

    def named_gaps(self, rows: DataFrame, gaps: DataFrame) -> DataFrame:
        return named_ranges(rows, self.columns, gaps, floor=self.floor)

    def note_rules(self, df: DataFrame) -> NoteRules:
        names = self.columns
        return NoteRules(
            answers=self.answers,
            claims=None if names.previous_timestamp is None else "previous",
            is_floor_open=self.floor == "open",
            ms_bits=SEQUENCE_BITS,
            is_time=True,
            arrival=None if names.arrival is None else unit_of(df, names.arrival),
        )

    def keys(self, rows: DataFrame, tally: Tally) -> int:
        return tally.count(*NEW_CHAIN)

    def cannot_tell(self, tally: Tally) -> Sequence[Untold]:
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


def recalled(
    bucket: Bucket, rows: KeyColumns, settings: ChainSettings, options: MemoryOptions, now_ms: int
) -> tuple[ChainBank, KeyRecords | None]:
    """The chains of these rows that a bucket remembers: as a bank, and as records. Call `remember` afterwards."""
    key, check = rows.key, rows.key_check
    first = np.concatenate(([True], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))[: len(key)]
    entries = bucket.find(CHAINS, key[first], check[first])
    bank = ChainBank(settings) if entries is None else ChainBank(settings, **columns_of(entries))
    _count(bucket.figures, bank, -1)
    if options.state_rows_max is not None:
        bank.chains_max = max(0, options.state_rows_max - bucket.figures["keys"])
    if options.idle_ms is not None:
        bank.give_up(now_ms - options.idle_ms)
    return bank, entries


def remember(
    bucket: Bucket,
    bank: ChainBank,
    values: Mapping[str, Int64s] | None = None,
    lists: Mapping[str, ItemLists] | None = None,
) -> None:
    """Write a bank back to its bucket, with further values and lists of its chains."""
    _count(bucket.figures, bank, 1)
    chains, gaps = bank.chains, bank.gaps
    own = {"head": chains.head, "heard": chains.heard_ms, "forgotten": chains.forgotten}
    missing = ItemLists(np.bincount(gaps.owner, minlength=len(bank)).astype(np.int64), (gaps.lower, gaps.upper))
    bucket.keep(
        CHAINS, KeyRecords(chains.key, chains.key_check, {**own, **(values or {})}, {"gaps": missing, **(lists or {})})
    )


def without_idle(records: KeyRecords, figures: dict[str, int], options: MemoryOptions, now_ms: int) -> KeyRecords:
    """The records without the gaps of idle chains, which makes them smaller."""
    if options.idle_ms is None:
        return records
    bank = ChainBank(**columns_of(records))
    _count(figures, bank, -1)
    bank.give_up(now_ms - options.idle_ms)
    _count(figures, bank, 1)
    counts = np.bincount(bank.gaps.owner, minlength=len(bank)).astype(np.int64)
    gaps = ItemLists(counts, (bank.gaps.lower, bank.gaps.upper))
    values = {**records.values, "forgotten": bank.chains.forgotten}
    return records._replace(values=values, lists={**records.lists, "gaps": gaps})


def columns_of(records: KeyRecords) -> dict[str, Any]:
    """The arguments of a `ChainBank`, from records."""
    counts, (lower, upper) = records.lists["gaps"]
    values = (records.values[name] for name in ("head", "heard", "forgotten"))
    owner = np.repeat(np.arange(len(counts)), counts)
    return {"chains": Chains(records.key, records.check, *values), "gaps": GapRows(owner, lower, upper)}


def _count(figures: dict[str, int], bank: ChainBank, sign: int) -> None:
    figures["keys"] += sign * len(bank)
    figures["gaps"] += sign * bank.gap_count
