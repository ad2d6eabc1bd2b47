"""``stream.transform(order_chains(...))``: per chain, messages come out in order, or after the gap was given up.

A second host beside `judge_stream`, for an engine that holds rows back: the state of a bucket holds rows, and a call
may give out fewer rows or more than came in. A range that was given up comes out as a row of its own, before the
message above it: its key columns and `GAP_COLUMN` are set, all else is null; `parted` takes the two apart.

Within a task the rows of a chain stand in order. Time is that of the micro-batch, which Spark writes down before it
runs: a batch that is tried again gives up the same gaps. What is due comes out with the next batch, of whatever bucket:

    trigger every n seconds   a batch begins each time, even if nothing came, so that a wait ends by itself
    trigger "available"       when all is read, what is missing is given up and held rows come out; or, if the
                              settings say so, they stay in the checkpoint for the next start (`streams`)

Memory of a task: the rows that came for one bucket and those that it holds, which ``buffer_max`` bounds per chain.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from onefold.engines.chains import ANSWERS
from onefold.engines.chains.ordering_settings import BUFFER_MAX, GAP_COUNT_MAX, Settings
from onefold.errors import Misuse
from onefold.spark.columns import ChainColumns, quoted
from onefold.spark.gaps import LOWER, UPPER, range_end
from onefold.spark.judge import chains_meaning, integers, jump_limit
from onefold.spark.meaning import Meaning, any_meaning, with_meaning
from onefold.spark.ordered_bucket import GAP, OrderedBucket, Out, held_count
from onefold.spark.ordering import SORTED
from onefold.spark.place import Place
from onefold.spark.shipping import ship
from onefold.spark.stateful import (
    BUCKETS,
    LABELS,
    STATE,
    Watch,
    batch_id,
    blobs,
    came,
    from_blob,
    in_buckets,
    judged_schema,
    remembered,
    to_blob,
)
from onefold.spark.table import Transform, refuse_taken
from onefold.spark.workers import settle

GAP_COLUMN = "__onefold_gap"
HEAD_MAX = 1 << 16
"""Bytes of a bucket's state that tell how much it holds: far more than any meaning takes."""

_WIDTH = SORTED
_BOUNDS = T.StructType([T.StructField(name, T.LongType()) for name in (*LOWER, *UPPER)])


def order_chains(
    columns: ChainColumns | None = None,
    *,
    wait_ms: int,
    buffer_max: int = BUFFER_MAX,
    gap_count_max: int = GAP_COUNT_MAX,
    jump_max_ms: int | Literal["auto", "off"] = "auto",
    state_rows_max: int | None = None,
    buckets: int = BUCKETS,
    watch: Watch | None = None,
) -> Transform:
    """A step that judges a stream of chained messages as `judge_chains` does, and gives each chain out in order.

    ``wait_ms``: how long a gap is waited for; ``buffer_max``: how many messages of a chain are held back at most.
    What lies below the first message of a chain is a repeat (``floor="first"``).
    """
    names = columns or ChainColumns()
    settings = Settings(wait_ms, 0, 0, "light", buffer_max, gap_count_max).checked()
    jump_limit(jump_max_ms, names)
    for name, value in {"buckets": buckets, "state_rows_max": state_rows_max}.items():
        if value is not None and value < 1:
            raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})

    def ordered(df: DataFrame) -> DataFrame:
        if not df.isStreaming:
            raise Misuse("only a stream is brought into order: sort a table")
        names.check(df)
        present = names.of(df)
        refuse_taken(df)
        ship(df.sparkSession)
        resume = _Resume(settings, frozenset(df.columns.index(name) for name in names.key), state_rows_max)
        jump = jump_limit(jump_max_ms, present)
        meaning = chains_meaning(df, present, floor="first", jump_max_ms=jump, buckets=buckets, ordered=True)
        grouped = in_buckets(df, integers(df, present, jump), buckets)
        folded = grouped.applyInPandasWithState(
            _fold(resume, buckets, meaning, watch),
            blobs("codes", "bounds", "rows"),
            STATE,
            "append",
            GroupStateTimeout.ProcessingTimeTimeout,
        )
        schema = T.StructType([*judged_schema(df).fields, T.StructField(GAP_COLUMN, _BOUNDS)])
        unpacked = folded.mapInArrow(_unpack, schema).toDF(*df.columns, *LABELS, GAP_COLUMN)
        gap = F.col(GAP_COLUMN)
        ends = [end for to in (LOWER, UPPER) for end in range_end(df, present, gap[to[0]], gap[to[1]], to)]
        return unpacked.withColumn(GAP_COLUMN, F.when(gap.isNotNull(), F.struct(*ends)))

    return ordered


def held_back(spark: SparkSession, checkpoint: Place) -> dict[int, tuple[int, int]]:
    """Of each bucket that holds rows back, how many, and when Spark is to look at it again, as the state tells."""
    if not (checkpoint / "commits").names():
        return {}
    rows = spark.read.format("statestore").load(str(checkpoint))
    value = F.col("value.groupState.blob")
    heads = rows.select("key.bucket", F.substring(value, 1, HEAD_MAX).alias("head"), "value.timeoutTimestamp").collect()
    held = {row["bucket"]: (held_count(any_meaning(bytes(row["head"]))), row["timeoutTimestamp"]) for row in heads}
    return {bucket: (count, max(0, due_ms)) for bucket, (count, due_ms) in held.items() if count}


@contextmanager
def parted(ordered: DataFrame, key_columns: Sequence[str]) -> Iterator[tuple[DataFrame, DataFrame]]:
    """A batch of an ordered stream as messages and gaps; it is evaluated once, however often these two are."""
    kept = ordered.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        gap, key = F.col(GAP_COLUMN), [F.col(quoted(name)) for name in key_columns]
        bounds = [gap[name].alias(name) for name in (*LOWER, *UPPER)]
        yield kept.where(gap.isNull()).drop(GAP_COLUMN), kept.where(gap.isNotNull()).select(*key, *bounds)
    finally:
        kept.unpersist()


@dataclass(frozen=True, slots=True)
class _Resume:
    settings: Settings
    key: frozenset[int]
    chains_max: int | None

    def __call__(self, blob: bytes | None) -> OrderedBucket:
        if blob is None:
            return OrderedBucket(self.settings, self.key, self.chains_max)
        return OrderedBucket.restore(blob, self.settings, self.key, self.chains_max)


def _fold(
    resume: _Resume, buckets: int, meaning: Meaning, watch: Watch | None
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def fold(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        integers, rows = came(frames, _WIDTH)
        now_ms = state.getCurrentProcessingTimeMs()
        bucket = resume(remembered(state, buckets, meaning))
        table = pa.Table.from_batches([from_blob(blob) for blob in rows]) if rows else None
        out = bucket.judge(np.concatenate([np.empty((_WIDTH, 0), np.int64), *integers], axis=1), table, now_ms)
        blob = bucket.snapshot()
        state.update((with_meaning(meaning, blob), buckets))
        due_ms = bucket.due_ms()
        if due_ms is not None:  # Spark calls when this much and a millisecond more has passed
            state.setTimeoutDuration(max(1, due_ms - now_ms - 1))
        if watch is not None:
            arrived = sum(part.shape[1] for part in integers)
            watch(int(key[0]), {**bucket.figures(), "bytes": len(blob), "rows": arrived, "batch": batch_id()})
        if len(out.codes):
            yield _lines(out)
        settle()

    return fold


def _lines(out: Out) -> pd.DataFrame:
    lines: dict[str, list[bytes]] = {"codes": [], "bounds": [], "rows": []}
    row = gap = 0
    for batch in out.rows.combine_chunks().to_batches():
        codes = out.codes[row : row + batch.num_rows]
        gaps = int(np.count_nonzero(codes == GAP))
        lines["codes"].append(codes.tobytes())
        lines["bounds"].append(out.bounds[gap : gap + gaps].tobytes())
        lines["rows"].append(to_blob(batch))
        row, gap = row + batch.num_rows, gap + gaps
    return pd.DataFrame(lines)


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    labels = [pa.array([str(answer[part]) for answer in ANSWERS]) for part in (0, 1)]
    for batch in batches:
        for codes, bounds, blob in zip(batch["codes"], batch["bounds"], batch["rows"], strict=True):
            rows = from_blob(blob.as_buffer())
            code = np.frombuffer(codes.as_buffer(), np.int8)
            message = pa.array(code, mask=code == GAP)
            ends = np.frombuffer(bounds.as_buffer(), np.int64).reshape(-1, 4)
            gaps = pa.StructArray.from_arrays([pa.array(end) for end in ends.T], names=_BOUNDS.names)
            gap = gaps.take(pa.array(np.cumsum(code == GAP) - 1, mask=code != GAP))
            columns = [*rows.columns, *(label.take(message) for label in labels), gap]
            yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *LABELS, GAP_COLUMN])
    settle()
