"""Hosting an engine on Spark: a table or a stream goes in, every row comes out with its verdict and reason.

An engine says which integers of a row it needs and how it judges those (`Engine`); this file does the rest. The wide
row never meets the judgement, and the order in which rows reach a task means nothing, so that a task or a batch that
is tried again answers the same.

A table takes one shuffle by the key and one Arrow UDF over the integers; one byte per row comes back. A task puts its
rows in the order of judgement (by chain, then arrival, then number) itself: sorting the wide rows in the JVM was
measured at half the time of the whole job. Up to ``rows_in_memory_max`` rows are sorted and judged at once (about 150
bytes each at the peak). A larger partition is an external sort: sorted runs in a temporary file, read back in windows
that follow each other in the order of judgement. Where messages of one number must be compared, however far apart they
came, the rows are gone through once more, sorted by number: that is the review.

A micro-batch of a stream takes this way, each step in all tasks at once:

    pack      rows become Arrow blobs, one per bucket of keys; their integers travel beside them       (mapInArrow)
    fold      per bucket: the engine goes on from its blob, judges the integers, leaves a new blob     (stateful)
    unpack    blobs become rows again, now with verdict and reason                                     (mapInArrow)

Memory of a task: the rows of one bucket in one micro-batch, as Arrow; the source's limits (``maxFilesPerTrigger`` and
its like) bound it.

A chain's name is 128 bits of hash. The first 64 number the chains and the other 64 check that no two chains share a
number; should two ever do so, all 128 bits are compared. Producers and devices are chains here too.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from onefold.errors import Misuse
from onefold.spark.columns import quoted, refuse_ours
from onefold.spark.meaning import Meaning, with_meaning, without_meaning
from onefold.spark.session import believed_bytes, cores, ship
from onefold.verdict import Answer

if TYPE_CHECKING:
    from onefold.spark.engine import Engine

Int64s: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int8]
Transform: TypeAlias = Callable[[DataFrame], DataFrame]

LABELS = VERDICT, REASON = "verdict", "reason"

BEFORE_ALL = -(1 << 63)
"""The arrival of a row that has none: it is judged before the others of its chain."""
SORTED = 6
"""How many columns take part in the order."""


class KeyColumns(NamedTuple):
    """What crosses from Spark to Python, one integer per row each."""

    key: Int64s  # the first half of the chain's name
    key_check: Int64s  # the other half
    arrival: Int64s
    previous: Int64s  # what sorts rows of one number: of a chain the previous number, of a producer the epoch
    number: Int64s
    tie: Int64s  # settles, the same way every time, the order of rows that are equal in everything above
    more: tuple[Int64s, ...] = ()  # what else a judge needs of a row; the order does not look at it

    @classmethod
    def of(cls, columns: Iterable[Int64s]) -> KeyColumns:
        """The columns as they crossed: first those that have names, then ``more``."""
        key, key_check, arrival, previous, number, tie, *more = columns
        return cls(key, key_check, arrival, previous, number, tie, tuple(more))

    @property
    def flat(self) -> tuple[Int64s, ...]:
        return (self.key, self.key_check, self.arrival, self.previous, self.number, self.tie, *self.more)

    def take(self, rows: Int64s) -> KeyColumns:
        return KeyColumns.of(column[rows] for column in self.flat)


def concatenate(parts: list[KeyColumns]) -> KeyColumns:
    if len(parts) == 1:
        return parts[0]
    return KeyColumns.of(np.concatenate(columns) for columns in zip(*(part.flat for part in parts), strict=True))


def chains(columns: KeyColumns) -> Int64s:
    """A small number for each row's chain, equal for equal names and only for those."""
    encoded = pa.array(columns.key).dictionary_encode()
    codes: Int64s = encoded.indices.to_numpy().astype(np.int64)
    check = np.empty(len(encoded.dictionary), np.int64)
    check[codes] = columns.key_check
    if np.array_equal(check[codes], columns.key_check):
        return codes
    names = np.stack((columns.key, columns.key_check))
    return np.unique(names, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def order(chain: Int64s, columns: KeyColumns) -> Int64s:
    """The rows, sorted by chain, arrival, number, previous and tie.

    Arrivals are nearly sorted already, and chain numbers are sorted by their digits: a fifth of the time of a
    comparison sort over the same columns.
    """
    rows: Int64s = np.argsort(columns.arrival, kind="stable")
    most = int(chain.max(initial=0))
    if most < 1 << 8:  # numpy sorts integers of 8 and 16 bits without comparing them
        rows = rows[np.argsort(chain.astype(np.uint8)[rows], kind="stable")]
    else:
        for shift in range(0, most.bit_length(), 16):
            rows = rows[np.argsort((chain >> shift).astype(np.uint16)[rows], kind="stable")]
    chain, arrival = chain[rows], columns.arrival[rows]
    same = (chain[1:] == chain[:-1]) & (arrival[1:] == arrival[:-1])
    if not same.any():
        return rows
    # Rows that came at the same time as the next one.
    before, after = np.concatenate(([False], same[:-1])), np.concatenate((same[1:], [False]))
    alone = same & ~before & ~after  # most are two, and a comparison settles them
    at = np.flatnonzero(alone)
    one, other = rows[at], rows[at + 1]
    behind = columns.tie[one] > columns.tie[other]
    for column in (columns.previous, columns.number):
        behind = (column[one] > column[other]) | (column[one] == column[other]) & behind
    wrong = at[behind]
    rows[wrong], rows[wrong + 1] = rows[wrong + 1], rows[wrong]
    more = same & ~alone
    if more.any():
        block = np.concatenate(([0], np.cumsum(~more)))
        tied = np.flatnonzero(np.concatenate((more, [False])) | np.concatenate(([False], more)))
        row = rows[tied]
        rows[tied] = row[np.lexsort((columns.tie[row], columns.previous[row], columns.number[row], block[tied]))]
    return rows


Judge: TypeAlias = Callable[..., Codes]

ROWS_IN_MEMORY_MAX = 4_000_000
"""600 MB at the peak; Spark's own advice is 64 MB to 128 MB of shuffle data per task, which is far below it."""

_BATCH = 65_536
_JUDGED = [0, 1, 2, 4, 3, 5, -1]  # sorted by key, key_check, arrival, number, previous, tie, row
_REVIEWED = [0, 1, 4, 2, 3, 5, -1]  # sorted by key, key_check, number; then as judged

PREVIOUS_NUMBER = (3, 4)  # where the columns stand that a chain is judged by


def judge_partition(
    parts: Iterator[KeyColumns],
    judge: Judge,
    rows_in_memory_max: int,
    *,
    wanted: tuple[int, ...] = PREVIOUS_NUMBER,
    review: Judge | None = None,
    review_due: Callable[[], bool] = lambda: True,
) -> Iterator[Codes]:
    """The codes of all rows, in the order in which the rows came.

    ``judge``: chain and the wanted columns -> codes; it sees the rows in the order of judgement. ``review``: chain, the
    wanted columns and the codes -> codes; the rows of one number come to it in the order of judgement, in one call or
    in calls that follow each other. ``review_due`` is asked when all rows are judged: without need there is no review.
    """
    buffer: list[KeyColumns] = []
    with ExitStack() as files:
        runs: list[_Run] = []
        file = files.enter_context(tempfile.TemporaryFile())
        rows = waiting = 0
        for part in parts:
            if waiting + len(part.key) > rows_in_memory_max and waiting:
                runs.append(_Run(_table(concatenate(buffer), rows - waiting), file))
                buffer, waiting = [], 0
            buffer.append(part)
            waiting += len(part.key)
            rows += len(part.key)
        if rows == 0:
            return
        if runs:
            runs.append(_Run(_table(concatenate(buffer), rows - waiting), file))
            # Written, not only sized: on a full disk this is an error, a store into a sparse map would end the process.
            disk = files.enter_context(tempfile.TemporaryFile())
            for start in range(0, rows, _BATCH):
                disk.write(bytes(min(_BATCH, rows - start)))
            disk.flush()
            codes: Codes = np.memmap(disk, np.int8, "r+", shape=(rows,))
            names = _Names()
            for window in _windows(runs, rows_in_memory_max):
                codes[window[-1]] = judge(names(window), *(window[i] for i in wanted))
            if review is not None and review_due():
                again = files.enter_context(tempfile.TemporaryFile())
                names = _Names()
                by_number = [_Run(run.read(0, run.rows), again, _REVIEWED) for run in runs]
                for window in _windows(by_number, rows_in_memory_max):
                    row = window[-1]
                    codes[row] = review(names(window), *(window[i] for i in wanted), codes[row])
        else:
            columns = concatenate(buffer)
            chain = chains(columns)
            turn = order(chain, columns)
            sorted_ = (chain[turn], *(columns.flat[i][turn] for i in wanted))
            judged = judge(*sorted_)
            codes = np.empty(rows, np.int8)
            codes[turn] = judged if review is None or not review_due() else review(*sorted_, judged)
        for start in range(0, rows, _BATCH):
            yield codes[start : start + _BATCH]


def _table(columns: KeyColumns, first_row: int) -> Int64s:
    return np.stack((*columns.flat, np.arange(first_row, first_row + len(columns.key))))


def _sorted(table: Int64s, keys: list[int]) -> Int64s:
    return table[:, np.lexsort(table[keys][::-1])]


class _Run:
    """A sorted table at the end of a file, which all runs share: rows are read by position, nothing stays in memory."""

    def __init__(self, table: Int64s, file: IO[bytes], keys: list[int] = _JUDGED) -> None:
        self._width, self.rows = table.shape
        self.keys = keys
        self._file = file
        self._begin = file.seek(0, os.SEEK_END)
        np.ascontiguousarray(_sorted(table, keys)).tofile(self._file)
        self._file.flush()

    def read(self, start: int, end: int) -> Int64s:
        table = np.empty((self._width, end - start), np.int64)
        for i, column in enumerate(table):
            data = os.pread(self._file.fileno(), 8 * (end - start), self._begin + 8 * (i * self.rows + start))
            column[:] = np.frombuffer(data, np.int64)
        return table

    def key(self, at: int) -> tuple[int, ...]:
        return tuple(self.read(at, at + 1)[self.keys, 0].tolist())

    def end(self, low: int, limit: tuple[int, ...]) -> int:
        """The first position from ``low`` on whose key is beyond the limit."""
        high = self.rows
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.key(middle) <= limit else (low, middle)
        return low


def _windows(runs: list[_Run], rows_max: int) -> Iterator[Int64s]:
    """The union of the sorted runs, cut into consecutive sorted windows of at most ``rows_max`` rows."""
    step = max(1, rows_max // len(runs))
    starts = [0] * len(runs)
    while unread := [(run, start) for run, start in zip(runs, starts, strict=True) if start < run.rows]:
        limit = min(run.key(min(start + step, run.rows) - 1) for run, start in unread)
        ends = [run.end(start, limit) for run, start in zip(runs, starts, strict=True)]
        parts = [run.read(start, end) for run, start, end in zip(runs, starts, ends, strict=True)]
        starts = ends
        yield _sorted(np.concatenate(parts, axis=1), runs[0].keys)


class _Names:
    """Numbers the chains of consecutive windows, the same for the same chain, also across a window's end."""

    def __init__(self) -> None:
        self._count = 0
        self._last: tuple[int, int] | None = None

    def __call__(self, window: Int64s) -> Int64s:
        key, check = window[0], window[1]
        first = (int(key[0]), int(check[0])) != self._last
        changes = np.concatenate(([first], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))
        names: Int64s = self._count + np.cumsum(changes)
        self._count, self._last = int(names[-1]), (int(key[-1]), int(check[-1]))
        return names


@cache
def settle() -> None:
    """Call at the end of a task: once per worker, what is loaded by then is left out of later garbage collections.

    With pandas and pyarrow loaded, searching all of it after each task can take longer than a small task did.
    """
    gc.collect()
    gc.freeze()


BUCKETS = 32
"""Sixteen cores' worth of work, two buckets each. The state is split by it: a checkpoint keeps its number."""

ROWS_MAX, BYTES_MAX = 1 << 17, 64 << 20  # what a task packs at a time
TASK_BYTES = 64 << 20
"""Spark's own advisory size of a task's input, spark.sql.adaptive.advisoryPartitionSizeInBytes."""
TASKS_MAX = 100_000

_INTEGERS = "__onefold_{}"
STATE = T.StructType([T.StructField("blob", T.BinaryType()), T.StructField("buckets", T.IntegerType())])

Watch: TypeAlias = Callable[[int, dict[str, int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMemory:
    idle_ms: int | None = None  # after how long without a message a key gives up its gaps
    state_rows_max: int | None = None
    """How many keys a bucket remembers; messages of new ones beyond that are UNSURE."""
    buckets: int = BUCKETS
    ordered_wait_ms: int | None = None
    """None: messages come out as they come. Else per chain in order: what comes too early is held back so long."""
    watch: Watch | None = None  # is called, in the tasks, with the figures of each bucket after each batch

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise Misuse(f"buckets is {self.buckets}, must be at least 1", buckets=self.buckets)


class Fold(Protocol):
    """An engine at work on one bucket."""

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row; ``integers`` has one line per column asked for. The order of the rows means nothing."""

    def snapshot(self) -> bytes:
        """The memory, as the next batch gets it back."""

    def figures(self) -> dict[str, int]:
        """What there is to watch, such as how many keys are remembered."""


class Integers(NamedTuple):
    columns: Sequence[Column]  # longs, never null; the first is a hash of the key
    readings: Mapping[str, Column]
    """What they are made from besides the columns of the row: it is added to the row, and taken off again."""
    key: Sequence[Column]  # what the rows of a table are shuffled by

    def read(self, df: DataFrame) -> DataFrame:
        return df.withColumns(dict(self.readings)) if self.readings else df


def with_verdict(df: DataFrame, engine: Engine, memory: StreamMemory) -> DataFrame:
    engine.columns.check(df)
    prepare(df)
    of_streams = {"idle_ms": memory.idle_ms, "state_rows_max": memory.state_rows_max}
    settings = {"partitions": engine.partitions} if df.isStreaming else of_streams
    for name, value in settings.items():
        if value is not None:
            kind = "table" if df.isStreaming else "stream"
            raise Misuse(f"{name} is {value}, but only a {kind} has it, and this is none", **{name: value})
    engine = engine.fitted(df)
    integers = engine.integers(df)
    if df.isStreaming:
        folded = in_buckets(df, integers, memory.buckets).applyInPandasWithState(
            _fold(engine, len(integers.columns), engine.meaning(df, memory), memory),
            blobs("codes", "rows"), STATE, "append", GroupStateTimeout.NoTimeout,
        )  # fmt: skip
        return folded.mapInArrow(_unpack(engine.answers), judged_schema(df)).toDF(*df.columns, *LABELS)
    believed = believed_bytes(df)
    if believed is None:
        tasks = int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    else:  # no fewer than four per core: they need not be equally long
        tasks = max(4 * cores(df.sparkSession), min(believed // TASK_BYTES, TASKS_MAX))

    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        parts = (KeyColumns.of(column.to_numpy(zero_copy_only=False) for column in batch) for batch in batches)
        for codes in engine.judge_partition(parts):
            yield pa.array(codes)
        settle()

    # "Not deterministic" keeps the optimizer from moving it across the shuffle, or evaluating it twice.
    judged: Any = F.arrow_udf(judge, T.ByteType()).asNondeterministic()  # type: ignore[attr-defined]
    rows = df.repartition(engine.partitions or tasks, *integers.key)
    coded = rows.transform(integers.read).withColumn(REASON, judged(*integers.columns))
    # The verdict or reason of a code is a look-up in a constant array.
    words = [F.array(*(F.lit(str(answer[part])) for answer in engine.answers)) for part in (0, 1)]
    labels = {name: F.get(array, F.col(REASON)) for name, array in zip(LABELS, words, strict=True)}
    return coded.withColumns(labels).select(*(F.col(quoted(name)) for name in df.columns), *LABELS)


def prepare(df: DataFrame) -> None:
    """Refuse a table with columns that the judge writes or adds on the way, and see that the executors know onefold."""
    refuse_ours(df)
    for name in df.columns:
        if name.lower() in LABELS:  # to Spark, Reason and reason are one column: it would be overwritten
            raise Misuse(f"there is a column {name!r} already: rename it, the judge writes one", column=name)
    ship(df.sparkSession)


def tie(df: DataFrame, ordered: set[str]) -> Column:
    """A hash of all that the order of judgement does not see yet, that is, of all but the ``ordered`` columns."""
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


def in_buckets(df: DataFrame, integers: Integers, buckets: int) -> GroupedData:
    """The rows packed, and grouped by the bucket of their key: the columns ``bucket``, ``integers`` and ``rows``."""
    names = [_INTEGERS.format(i) for i in range(len(integers.columns))]
    added = df.transform(integers.read).withColumns(dict(zip(names, integers.columns, strict=True)))
    numbered = added.drop(*integers.readings).toDF(*_positions(df), *names)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_MAX or size >= BYTES_MAX:
                yield _split(waiting, names, buckets)
                waiting, rows, size = [], 0, 0
        if rows:
            yield _split(waiting, names, buckets)
        settle()

    return numbered.mapInArrow(pack, blobs("bucket", "integers", "rows")).groupBy("bucket")


def judged_schema(df: DataFrame) -> T.StructType:
    """What is unpacked: the columns of ``df``, called by their positions, with verdict and reason."""
    fields = [T.StructField(name, field.dataType) for name, field in zip(_positions(df), df.schema.fields, strict=True)]
    return T.StructType([*fields, *(T.StructField(name, T.StringType()) for name in LABELS)])


def _positions(df: DataFrame) -> list[str]:
    # mapInArrow looks columns up by name and stumbles over dots: on their way they are called by their positions.
    return [f"c{i}" for i in range(len(df.columns))]


def blobs(*names: str) -> T.StructType:
    """Columns of blobs; ``bucket`` is a number."""
    kinds = {"bucket": T.IntegerType()}
    return T.StructType([T.StructField(name, kinds.get(name, T.BinaryType())) for name in names])


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


def to_blob(rows: pa.RecordBatch | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_blob(blob: Any) -> pa.RecordBatch:
    with pa.ipc.open_stream(blob) as reader:
        return reader.read_next_batch()


def _fold(
    engine: Engine, width: int, meaning: Meaning, memory: StreamMemory
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def fold(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        integers, rows = arrived(frames, width)
        bucket = engine.fold(remembered(state, memory.buckets, meaning), memory)
        codes = bucket.judge(np.concatenate(integers, axis=1), state.getCurrentProcessingTimeMs())
        blob = bucket.snapshot()
        state.update((with_meaning(meaning, blob), memory.buckets))
        if memory.watch is not None:
            figures = {**bucket.figures(), "bytes": len(blob), "rows": len(codes), "batch": batch_id()}
            memory.watch(int(key[0]), figures)
        parts = np.split(codes, np.cumsum([part.shape[1] for part in integers])[:-1])
        yield pd.DataFrame({"codes": [part.astype(np.int8).tobytes() for part in parts], "rows": rows})
        settle()

    return fold


def arrived(frames: Iterator[pd.DataFrame], width: int) -> tuple[list[Int64s], list[bytes]]:
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
    number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    return -1 if number is None else int(number)


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
