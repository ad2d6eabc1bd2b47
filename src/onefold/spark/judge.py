"""``df.transform(judge_chains(...))``: every row of a table gets its verdict and reason.

The rows of a chain meet in one task (a shuffle by the chain's key). There, six integers per row cross to Python in
Arrow batches, are put in the order of judgement and judged; one byte per row comes back and becomes the two columns.
The wide row itself stays in the JVM. Nothing depends on the order in which rows arrive at the task, so a retried task
and a repeated job answer the same.

Memory of a task: its Python side is bounded by ``rows_in_memory_max`` (see `spill`); the rows that wait in the JVM
spill to disk by themselves.
"""

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.engines.chains import ANSWERS
from onefold.engines.chains.columnar import ColumnarDetector
from onefold.engines.chains.detector import GAP_COUNT_MAX, ChainDetector, Floor
from onefold.errors import Misuse
from onefold.spark.chain_fold import Resume
from onefold.spark.columns import WHOLE, ChainColumns, quoted
from onefold.spark.ordering import Columns
from onefold.spark.shipping import ship
from onefold.spark.spill import ROWS_IN_MEMORY_MAX, judge_partition
from onefold.spark.stateful import BUCKETS, Hosted, Watch, judge_stream
from onefold.spark.validate import packed

JUMP_MAX_MS = 900_000
"""A quarter of an hour: more than clocks that are set at all are off, less than a mistaken year, day or unit."""

TASK_BYTES = 64 << 20
"""Spark's own advisory size of a task's input, spark.sql.adaptive.advisoryPartitionSizeInBytes."""

TASKS_MAX = 100_000
_SIZE_UNKNOWN = 1 << 60  # Spark says 2^63 - 1 of a source that tells nothing

VERDICT, REASON = "verdict", "reason"

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


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
    jump = jump_limit(jump_max_ms, names)
    if rows_in_memory_max < 1:
        raise Misuse(
            f"rows_in_memory_max is {rows_in_memory_max}, must be at least 1", rows_in_memory_max=rows_in_memory_max
        )
    if partitions is not None and partitions < 1:
        raise Misuse(f"partitions is {partitions}, must be at least 1", partitions=partitions)

    resume = Resume(gap_count_max, floor, idle_ms, state_rows_max)
    resume(None)

    def with_verdict(df: DataFrame) -> DataFrame:
        names.check(df)
        refuse_taken(df)
        ship(df.sparkSession)
        if df.isStreaming:
            engine = Hosted(integers(df, names, jump), resume, ANSWERS)
            return judge_stream(df, engine, buckets=buckets, watch=watch)
        rows = df.repartition(partitions or _task_count(df), *_key(names))
        judge = _judge_udf(gap_count_max, floor, rows_in_memory_max)
        coded = rows.withColumn(REASON, judge(*integers(rows, names, jump)))
        return coded.withColumns({VERDICT: _label(0), REASON: _label(1)}).select(*_all(df), VERDICT, REASON)

    return with_verdict


def _key(names: ChainColumns) -> list[Column]:
    return [F.col(quoted(name)) for name in names.key]


def integers(df: DataFrame, names: ChainColumns, jump_max_ms: int | None) -> tuple[Column, ...]:
    """What the judgement needs of a row: the `Columns`, as longs without nulls."""
    numbers = packed(df, names, jump_max_ms)
    return (
        F.xxhash64(*_key(names)),
        F.xxhash64(F.lit(1), *_key(names)),
        F.coalesce(numbers.arrival, F.lit(-1).cast("long")),
        numbers.previous,
        numbers.number,
        _tie(df, names),
    )


def _judge_udf(gap_count_max: int, floor: Floor, rows_in_memory_max: int) -> Callable[..., Column]:
    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        detector = ColumnarDetector(gap_count_max=gap_count_max, floor=floor)
        parts = (Columns(*(column.to_numpy(zero_copy_only=False) for column in batch)) for batch in batches)
        for codes in judge_partition(parts, detector.judge, rows_in_memory_max):
            yield pa.array(codes)

    # "Not deterministic" keeps the optimizer from moving it across the shuffle, or evaluating it twice.
    return F.arrow_udf(judge, T.ByteType()).asNondeterministic()  # type: ignore[no-any-return,attr-defined]


def _label(part: int) -> Column:
    """The verdict or reason of a code: a look-up in a constant array."""
    return F.get(F.array(*(F.lit(str(answer[part])) for answer in ANSWERS)), F.col(REASON))


def _task_count(df: DataFrame) -> int:
    """By what Spark believes of the input's size, and no fewer than four per core: they need not be equally long."""
    spark = df.sparkSession
    believed = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    if believed >= _SIZE_UNKNOWN:
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return max(4 * spark.sparkContext.defaultParallelism, min(believed // TASK_BYTES, TASKS_MAX))


def _tie(df: DataFrame, names: ChainColumns) -> Column:
    """A hash of all that the order of judgement does not see yet; of a time, it has seen the milliseconds only."""
    ordered = {name for role, name in names.named if role == "key" or isinstance(df.schema[name].dataType, WHOLE)}
    rest = [field for field in df.schema.fields if field.name not in ordered]
    values = [F.col(quoted(f.name)) if _hashable(f.dataType) else F.col(quoted(f.name)).cast("string") for f in rest]
    return F.xxhash64(*values) if values else F.lit(0).cast("long")


def _hashable(kind: T.DataType) -> bool:
    """Whether Spark hashes values of this type: not if there is a map anywhere in it."""
    if isinstance(kind, T.StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _hashable(kind.elementType)
    return not isinstance(kind, T.MapType | T.VariantType)


def _all(df: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in df.columns]


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


def refuse_taken(df: DataFrame) -> None:
    """Refuse a table that has a column of one of the names that the judge writes."""
    for name in df.columns:
        if name.lower() in (VERDICT, REASON):  # to Spark, Reason and reason are one column: it would be overwritten
            raise Misuse(f"there is a column {name!r} already: rename it, the judge writes one", column=name)
