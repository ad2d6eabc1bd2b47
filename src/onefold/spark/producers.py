"""``df.transform(judge_producers(...))``: every row of a dump of a log gets its verdict and reason.

For any table or stream with a producer and a sequence: topics of Kafka or Pulsar, our own log. The rows of a producer
meet in one task and are judged there in a fixed order, as the log would have judged them (see `sequences`); what
crosses to Python are six or seven integers per row, and the wide row stays in the JVM, as for chains (see `judge`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.producers.answers import ANSWERS
from onefold.engines.producers.bounds import DIGESTS_MAX, GAP_COUNT_MAX, Bounds, MemoryKind
from onefold.spark.columns import EXACT, TEXT, ProducerColumns, in_order, no_time, quoted, readings, whole
from onefold.spark.meaning import Meaning, of_columns
from onefold.spark.ordering import BEFORE_ALL, SORTED, Columns
from onefold.spark.producer_fold import FORMAT, Resume
from onefold.spark.sequences import NO_EPOCH, ColumnarSequences, refused
from onefold.spark.spill import PREVIOUS_NUMBER, ROWS_IN_MEMORY_MAX, Codes, judge_partition
from onefold.spark.stateful import BUCKETS, Hosted, Integers, Watch
from onefold.spark.table import Options, Transform, prepare, tie, with_verdict
from onefold.spark.validate import CORRUPT

_LONG_MAX = (1 << 63) - 1


def judge_producers(
    columns: ProducerColumns | None = None,
    *,
    memory: MemoryKind = "highest",
    digests_max: int = DIGESTS_MAX,
    gap_count_max: int = GAP_COUNT_MAX,
    jump_max: int | None = None,
    partitions: int | None = None,
    rows_in_memory_max: int = ROWS_IN_MEMORY_MAX,
    idle_ms: int | None = None,
    state_rows_max: int | None = None,
    buckets: int = BUCKETS,
    watch: Watch | None = None,
) -> Transform:
    """A step that adds ``verdict`` and ``reason`` to a table or a stream of numbered messages.

    ``memory``: "highest" takes all that is not above the highest sequence for a repeat, as the log of PIP-6 does;
    "gaps" knows up to ``gap_count_max`` missing ranges per producer, and what fills one is FIRST. The rows come out in
    no particular order. ``jump_max``: a sequence that lies more than so much above the highest one before it is
    rejected; None: any is taken.

    Of tables only: ``partitions``, how many tasks judge (None: by the size of the input), and ``rows_in_memory_max``.

    Of streams only: ``digests_max``, of how many of a producer's sequences the payload is remembered from batch to
    batch; ``idle_ms``, after how long without a message a producer gives up its gaps; ``state_rows_max``, how many
    producers a bucket remembers, beyond which messages of new ones are UNSURE; ``buckets``, into how many parts the
    state is split; ``watch``, which is told the figures of each bucket.
    """
    names = columns or ProducerColumns()
    Bounds(memory, gap_count_max=gap_count_max, digests_max=digests_max, jump_max=jump_max).checked()
    options = Options(
        partitions=partitions,
        rows_in_memory_max=rows_in_memory_max,
        idle_ms=idle_ms,
        state_rows_max=state_rows_max,
        buckets=buckets,
        watch=watch,
    )
    resume = Resume(memory, gap_count_max, digests_max, idle_ms, state_rows_max, jump_max)
    resume(None)  # refuses misuse now, not in a task
    judge = _Judge(memory, gap_count_max, rows_in_memory_max, bool(names.payload), jump_max)

    def producers_judged(df: DataFrame) -> DataFrame:
        names.check(df)
        prepare(df, options)
        meaning = producers_meaning(df, names, memory=memory, jump_max=jump_max, buckets=buckets)
        return with_verdict(df, names.producer, Hosted(integers(df, names), resume, ANSWERS, meaning), judge, options)

    return producers_judged


def producers_meaning(
    df: DataFrame, names: ProducerColumns, *, memory: MemoryKind, jump_max: int | None, buckets: int
) -> Meaning:
    """What the memory of a stream of producers means."""
    return {
        "engine": "producers",
        "state": FORMAT,
        **of_columns(df, names.named),
        "memory": memory,
        "jump_max": "off" if jump_max is None else jump_max,
        "buckets": buckets,
    }


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges a partition of a table, in a task."""

    memory: MemoryKind
    gap_count_max: int
    rows_in_memory_max: int
    payload: bool
    jump_max: int | None = None

    def __call__(self, parts: Iterator[Columns]) -> Iterator[Codes]:
        sequences = ColumnarSequences(self.memory, self.gap_count_max, self.jump_max)
        if not self.payload:
            return judge_partition(parts, sequences.judge, self.rows_in_memory_max)
        return judge_partition(
            parts,
            sequences.judge,
            self.rows_in_memory_max,
            wanted=(*PREVIOUS_NUMBER, SORTED),
            review=sequences.review,
        )


def integers(df: DataFrame, names: ProducerColumns) -> Integers:
    """What the judgement needs of a row, as longs without nulls: `Columns`, and the digest if there is a payload."""
    read = readings(df, [names.order])
    rows = df.withColumns(read) if read else df
    key = [F.col(quoted(name)) for name in names.producer]
    sequence = whole(df, names.sequence)
    order = sequence if names.order is None else in_order(rows, names.order)
    none = F.lit(NO_EPOCH).cast("long")
    epoch = none if names.epoch is None else F.greatest(F.coalesce(whole(df, names.epoch), none), none)
    payload = [part for name in names.payload for part in (F.col(quoted(name)).isNull(), F.col(quoted(name)))]
    columns = (
        F.xxhash64(*key),
        F.xxhash64(F.lit(1), *key),
        F.coalesce(order, F.lit(BEFORE_ALL).cast("long")),
        epoch,
        _judged(rows, names, sequence),
        tie(df, {*names.producer, names.sequence}),
        # With nulls told apart from nothing: Spark's hash passes over them, and (null, "a") would equal ("a", null).
        *([F.xxhash64(*payload)] if payload else []),
    )
    return Integers(columns, read)


def _judged(df: DataFrame, names: ProducerColumns, sequence: Column) -> Column:
    """The sequence; negative where the row is refused."""
    unreadable = F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else F.lit(False)
    if names.epoch is not None and isinstance(df.schema[names.epoch].dataType, (*TEXT, *EXACT)):
        unreadable = unreadable | (F.col(quoted(names.epoch)).isNotNull() & whole(df, names.epoch).isNull())
    nameless = F.lit(False)
    for name in names.producer:
        nameless = nameless | F.col(quoted(name)).isNull()
    bad = sequence.isNull() | (sequence < 0) | (sequence == _LONG_MAX)
    judged = sequence
    bad_time = None if names.order is None else no_time(df, names.order)
    refusals = (("bad_sequence", bad), ("bad_time", bad_time), ("null_key", nameless), ("malformed", unreadable))
    for reason, condition in refusals:
        if condition is None:
            continue
        judged = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(judged)
    return judged
