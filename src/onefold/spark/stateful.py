"""Hosting a fold engine in a stream: the memory of many keys in Spark's state store, Python called per bucket.

An engine that is hosted says which integers of a row it needs (the first is the hash of the row's key) and how it goes
on from a blob; this file does the rest. A micro-batch takes this way, each step in all tasks at once:

    pack      rows become Arrow blobs, one per bucket of keys; their integers travel beside them       (mapInArrow)
    fold      per bucket: the engine goes on from its blob, judges the integers, leaves a new blob     (stateful)
    unpack    blobs become rows again, now with verdict and reason                                     (mapInArrow)

So the wide row is never unpacked where the state is, and the shuffle moves a few blobs instead of many rows. The order
in which blobs reach a bucket means nothing: an engine puts its rows in order itself, so that a batch that is tried
again answers the same. Memory of a task: the rows of one bucket in one micro-batch, as Arrow; the source's limits
(``maxFilesPerTrigger`` and its like) bound it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from onefold.errors import Misuse
from onefold.spark.meaning import Meaning, with_meaning, without_meaning
from onefold.spark.workers import settle
from onefold.verdict import Answer

BUCKETS = 32
"""Sixteen cores' worth of work, two buckets each. The state is split by it: a checkpoint keeps its number."""

ROWS_MAX, BYTES_MAX = 1 << 17, 64 << 20  # what a task packs at a time

Int64s: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int8]

LABELS = ("verdict", "reason")

_INTEGERS = "__onefold_{}"
STATE = T.StructType([T.StructField("blob", T.BinaryType()), T.StructField("buckets", T.IntegerType())])


class Fold(Protocol):
    """An engine at work on one bucket."""

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row; ``integers`` has one line per column asked for. The order of the rows means nothing."""
        ...

    def snapshot(self) -> bytes:
        """The memory, as the next batch gets it back."""
        ...

    def figures(self) -> dict[str, int]:
        """What there is to watch, such as how many keys are remembered."""
        ...


class Integers(NamedTuple):
    """What a judgement needs of a row."""

    columns: Sequence[Column]
    """Longs, never null; the first is a hash of the key."""
    readings: Mapping[str, Column]
    """What they are made from besides the columns of the row: it is added to the row, and taken off again."""

    def read(self, df: DataFrame) -> DataFrame:
        """The table with all that the integers are made from."""
        return df.withColumns(dict(self.readings)) if self.readings else df


@dataclass(frozen=True, slots=True)
class Hosted:
    """What an engine must say to be hosted."""

    integers: Integers
    resume: Callable[[bytes | None], Fold]
    """Go on from a blob; None: from nothing."""
    answers: Sequence[Answer]
    """What the codes mean."""
    meaning: Meaning
    """What its memory means, see `meaning`."""


Watch: TypeAlias = Callable[[int, dict[str, int]], None]


def judge_stream(df: DataFrame, engine: Hosted, *, buckets: int = BUCKETS, watch: Watch | None = None) -> DataFrame:
    """The stream with ``verdict`` and ``reason`` on every row, remembered by buckets of keys."""
    if buckets < 1:
        raise Misuse(f"buckets is {buckets}, must be at least 1", buckets=buckets)
    folded = in_buckets(df, engine.integers, buckets).applyInPandasWithState(
        _fold(engine, buckets, watch),
        blobs("codes", "rows"),
        STATE,
        "append",
        GroupStateTimeout.NoTimeout,
    )
    return folded.mapInArrow(_unpack(engine.answers), judged_schema(df)).toDF(*df.columns, *LABELS)


def in_buckets(df: DataFrame, integers: Integers, buckets: int) -> GroupedData:
    """The rows packed, and grouped by the bucket of their key: the columns ``bucket``, ``integers`` and ``rows``."""
    names = [_INTEGERS.format(i) for i in range(len(integers.columns))]
    added = df.transform(integers.read).withColumns(dict(zip(names, integers.columns, strict=True)))
    numbered = added.drop(*integers.readings).toDF(*_places(df), *names)
    return numbered.mapInArrow(_pack(names, buckets), blobs("bucket", "integers", "rows")).groupBy("bucket")


def judged_schema(df: DataFrame) -> T.StructType:
    """What is unpacked: the columns of ``df``, called by their places, with verdict and reason."""
    fields = [T.StructField(place, field.dataType) for place, field in zip(_places(df), df.schema.fields, strict=True)]
    return T.StructType([*fields, *(T.StructField(name, T.StringType()) for name in LABELS)])


def _places(df: DataFrame) -> list[str]:
    # mapInArrow looks columns up by name and stumbles over dots: on their way they are called by their places.
    return [f"c{i}" for i in range(len(df.columns))]


def blobs(*names: str) -> T.StructType:
    """Columns of blobs; ``bucket`` is a number."""
    kinds = {"bucket": T.IntegerType()}
    return T.StructType([T.StructField(name, kinds.get(name, T.BinaryType())) for name in names])


def _pack(names: list[str], buckets: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_MAX or size >= BYTES_MAX:
                yield _split(held, names, buckets)
                held, rows, size = [], 0, 0
        if rows:
            yield _split(held, names, buckets)
        settle()

    return pack


def _split(batches: list[pa.RecordBatch], names: list[str], buckets: int) -> pa.RecordBatch:
    """One line per bucket: its integers, and its rows as an Arrow blob."""
    table = pa.Table.from_batches(batches)
    integers = np.stack([table[name].to_numpy() for name in names])
    bucket = (integers[0].view(np.uint64) % np.uint64(buckets)).astype(np.uint16 if buckets < 1 << 16 else np.int64)
    order = np.argsort(bucket, kind="stable")
    integers = integers[:, order]
    rows = table.drop_columns(names).take(pa.array(order)).combine_chunks().to_batches()[0]
    ends = np.searchsorted(bucket[order], np.arange(buckets + 1))
    some = [i for i in range(buckets) if ends[i] < ends[i + 1]]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(some, pa.int32()),
            pa.array([np.ascontiguousarray(integers[:, ends[i] : ends[i + 1]]).tobytes() for i in some], pa.binary()),
            pa.array([to_blob(rows.slice(ends[i], ends[i + 1] - ends[i])) for i in some], pa.binary()),
        ],
        names=["bucket", "integers", "rows"],
    )


def to_blob(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_blob(blob: Any) -> pa.RecordBatch:
    """The rows of an Arrow stream of one batch."""
    with pa.ipc.open_stream(blob) as reader:
        return reader.read_next_batch()


def _fold(
    hosted: Hosted, buckets: int, watch: Watch | None
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    width, resume, meaning = len(hosted.integers.columns), hosted.resume, hosted.meaning  # columns stay with the driver

    def fold(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        integers, rows = came(frames, width)
        engine = resume(remembered(state, buckets, meaning))
        codes = engine.judge(np.concatenate(integers, axis=1), state.getCurrentProcessingTimeMs())
        blob = engine.snapshot()
        state.update((with_meaning(meaning, blob), buckets))
        if watch is not None:
            watch(int(key[0]), {**engine.figures(), "bytes": len(blob), "rows": len(codes), "batch": batch_id()})
        parts = np.split(codes, np.cumsum([part.shape[1] for part in integers])[:-1])
        yield pd.DataFrame({"codes": [part.astype(np.int8).tobytes() for part in parts], "rows": rows})
        settle()

    return fold


def came(frames: Iterator[pd.DataFrame], width: int) -> tuple[list[Int64s], list[bytes]]:
    """What was packed for a bucket: the integers of each blob, and the blobs."""
    integers: list[Int64s] = []
    rows: list[bytes] = []
    for frame in frames:
        integers += [np.frombuffer(data, np.int64).reshape(width, -1) for data in frame["integers"]]
        rows += list(frame["rows"])
    return integers, rows


def remembered(state: GroupState, buckets: int, meaning: Meaning) -> bytes | None:
    """The blob that the last batch left to this bucket; None: there was none. `Misuse` if it means something else."""
    if not state.exists:
        return None
    blob, had = state.get
    if had != buckets:
        raise Misuse(f"the checkpoint was made with {had} buckets, this run has {buckets}", buckets=buckets)
    return without_meaning(meaning, blob)


def batch_id() -> int:
    """The number of the batch that this task works for; -1 outside of one."""
    context = TaskContext.get()
    said = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    return -1 if said is None else int(said)


def _unpack(answers: Sequence[Answer]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    verdicts, reasons = ([str(answer[part]) for answer in answers] for part in (0, 1))

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        labels = pa.array(verdicts), pa.array(reasons)
        for batch in batches:
            for codes, blob in zip(batch["codes"], batch["rows"], strict=True):
                rows = from_blob(blob.as_buffer())
                code = pa.array(np.frombuffer(codes.as_buffer(), np.int8))
                columns = [*rows.columns, *(label.take(code) for label in labels)]
                yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *LABELS])
        settle()

    return unpack
