"""Hosting a fold engine over a table: the rows of a key meet in one task, and every row gets its verdict and reason.

The counterpart of `stateful`, which does it for streams. An engine that is hosted says which integers of a row it needs
and how it judges those of a partition; this file does the rest: one shuffle by the key, one Arrow UDF over the
integers, one byte per row back. The wide row stays in the JVM.

The step that chains and producers share is `with_verdict`: a table goes this way, a stream the other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.columns import quoted, refuse_ours
from onefold.spark.ordering import Columns
from onefold.spark.shipping import ship
from onefold.spark.spill import Codes
from onefold.spark.stateful import LABELS, Hosted, Watch, judge_stream
from onefold.spark.workers import settle

TASK_BYTES = 64 << 20
"""Spark's own advisory size of a task's input, spark.sql.adaptive.advisoryPartitionSizeInBytes."""

TASKS_MAX = 100_000
_SIZE_UNKNOWN = 1 << 60  # Spark says 2^63 - 1 of a source that tells nothing

VERDICT, REASON = LABELS

Transform: TypeAlias = Callable[[DataFrame], DataFrame]
JudgePartition: TypeAlias = Callable[[Iterator[Columns]], Iterator[Codes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How it is done: what both kinds of judge let the caller say."""

    partitions: int | None
    rows_in_memory_max: int
    idle_ms: int | None
    state_rows_max: int | None
    buckets: int
    watch: Watch | None

    def __post_init__(self) -> None:
        for name in ("rows_in_memory_max", "partitions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})

    def check(self, df: DataFrame) -> None:
        """Refuse what only a stream has of a table, and the other way round."""
        table, stream = ("partitions",), ("idle_ms", "state_rows_max")
        for name in table if df.isStreaming else stream:
            value = getattr(self, name)
            if value is not None:
                kind = "table" if df.isStreaming else "stream"
                raise Misuse(f"{name} is {value}, but only a {kind} has it, and this is none", **{name: value})


def with_verdict(
    df: DataFrame, key: Sequence[str | Column], engine: Hosted, judge: JudgePartition, options: Options
) -> DataFrame:
    """The table or stream with ``verdict`` and ``reason`` on every row; ``judge`` is for a partition of a table."""
    if df.isStreaming:
        return judge_stream(df, engine, buckets=options.buckets, watch=options.watch)
    keys = [F.col(quoted(name)) if isinstance(name, str) else name for name in key]
    rows = df.repartition(options.partitions or _task_count(df), *keys)
    coded = rows.transform(engine.integers.read).withColumn(REASON, _judge_udf(judge)(*engine.integers.columns))
    labels = {name: _label(engine, part) for part, name in enumerate(LABELS)}
    return coded.withColumns(labels).select(*(F.col(quoted(name)) for name in df.columns), *LABELS)


def prepare(df: DataFrame, options: Options) -> None:
    """What comes before anything is judged: refuse what cannot be, and see that the executors know onefold."""
    refuse_taken(df)
    ship(df.sparkSession)
    options.check(df)


def refuse_taken(df: DataFrame) -> None:
    """Refuse a table that has a column of one of the names that the judge writes, or that are added on the way."""
    refuse_ours(df)
    for name in df.columns:
        if name.lower() in LABELS:  # to Spark, Reason and reason are one column: it would be overwritten
            raise Misuse(f"there is a column {name!r} already: rename it, the judge writes one", column=name)


def tie(df: DataFrame, ordered: set[str]) -> Column:
    """A hash of all that the order of judgement does not see yet, that is, of all but the ``ordered`` columns."""
    rest = [field for field in df.schema.fields if field.name not in ordered]
    values = [F.col(quoted(f.name)) if _hashable(f.dataType) else F.col(quoted(f.name)).cast("string") for f in rest]
    return F.xxhash64(*values) if values else F.lit(0).cast("long")


def _judge_udf(judge_partition: JudgePartition) -> Callable[..., Column]:
    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        parts = (Columns.of(column.to_numpy(zero_copy_only=False) for column in batch) for batch in batches)
        for codes in judge_partition(parts):
            yield pa.array(codes)
        settle()

    # "Not deterministic" keeps the optimizer from moving it across the shuffle, or evaluating it twice.
    return F.arrow_udf(judge, T.ByteType()).asNondeterministic()  # type: ignore[no-any-return,attr-defined]


def _label(engine: Hosted, part: int) -> Column:
    """The verdict or reason of a code: a look-up in a constant array."""
    return F.get(F.array(*(F.lit(str(answer[part])) for answer in engine.answers)), F.col(REASON))


def believed_bytes(df: DataFrame) -> int | None:
    """What Spark believes of the size of a table; None if its source tells nothing."""
    believed = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    return None if believed >= _SIZE_UNKNOWN else believed


def _task_count(df: DataFrame) -> int:
    """By what Spark believes of the input's size, and no fewer than four per core: they need not be equally long."""
    spark = df.sparkSession
    believed = believed_bytes(df)
    if believed is None:
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return max(4 * spark.sparkContext.defaultParallelism, min(believed // TASK_BYTES, TASKS_MAX))


def _hashable(kind: T.DataType) -> bool:
    """Whether Spark hashes values of this type: not if there is a map anywhere in it."""
    if isinstance(kind, T.StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _hashable(kind.elementType)
    return not isinstance(kind, T.MapType | T.VariantType)
