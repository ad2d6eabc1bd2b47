"""Hosting a fold engine over a table: the rows of a key meet in one task, and every row gets its verdict and reason.

The counterpart of `stateful`, which does it for streams. An engine that is hosted says which integers of a row it needs
and how it judges those of a partition; this file does the rest: one shuffle by the key, one Arrow UDF over the
integers, one byte per row back. The wide row stays in the JVM.

The step that chains and producers share is `with_verdict`: a table goes this way, a stream the other.

The order of judgement of the rows of a partition: by chain, then arrival, then number.

Rows reach a task in whatever order the shuffle delivered them. Sorting the wide rows in the JVM was measured at half
the time of the whole job; here only the six integers that the judgement needs are sorted, and the rows stay where they
are. Chains are numbered by hashing, arrivals are nearly sorted already, and chain numbers are sorted by their digits:
a fifth of the time of a comparison sort over the same columns.

The rows of producers are put in order here too: a producer is a chain whose numbers are its sequences.

A chain's name is 128 bits of hash. The first 64 number the chains and the other 64 check that no two chains share a
number; should two ever do so, all 128 bits are compared.

Judging a partition in bounded memory, however many rows it has.

Up to ``rows_in_memory_max`` rows are sorted and judged at once (about 150 bytes each at the peak). A larger partition
is an external sort: full buffers are sorted and written to a temporary file, and then read back a window at a time. A
window ends at the smallest of the runs' next milestones, so it holds at most a buffer's worth of rows, and the windows
follow each other in the order of judgement. The codes go to a file too, one byte per row, at the row's own place.

Where messages of one number must be compared with each other, however far apart they came, the rows are gone through
once more, sorted by number: that is the review.

The Python processes in which Spark runs our functions.

A worker serves task after task, and after each it searches everything it has loaded for garbage: with pandas and
pyarrow that can take longer than a small task did. What is loaded never becomes garbage, so after its first task a
worker is told to search it no more.

Hosting a fold engine in a stream: the memory of many keys in Spark's state store, Python called per bucket.

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

import gc
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, NamedTuple, Protocol, TypeAlias

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
from onefold.spark.session import ship
from onefold.verdict import Answer

Int64s: TypeAlias = NDArray[np.int64]

BEFORE_ALL = -(1 << 63)
"""The arrival of a row that has none: it is judged before the others of its chain."""
SORTED = 6
"""How many columns take part in the order."""


class KeyColumns(NamedTuple):
    """What crosses from Spark to Python, one integer per row each."""

    key: Int64s
    """The first half of the chain's name."""
    key_check: Int64s
    """The other half."""
    arrival: Int64s
    previous: Int64s
    """What sorts rows of one number: of a chain the previous number, of a producer the epoch."""
    number: Int64s
    tie: Int64s
    """Settles, the same way every time, the order of rows that are equal in everything above."""
    more: tuple[Int64s, ...] = ()
    """What else a judge needs of a row; the order does not look at it."""

    @classmethod
    def of(cls, columns: Iterable[Int64s]) -> "KeyColumns":
        """The columns as they crossed: first those that have names, then ``more``."""
        key, key_check, arrival, previous, number, tie, *more = columns
        return cls(key, key_check, arrival, previous, number, tie, tuple(more))

    @property
    def flat(self) -> tuple[Int64s, ...]:
        """All columns, one after the other."""
        return (self.key, self.key_check, self.arrival, self.previous, self.number, self.tie, *self.more)

    def take(self, rows: Int64s) -> "KeyColumns":
        """These rows, in this order."""
        return KeyColumns.of(column[rows] for column in self.flat)


def concatenate(parts: list[KeyColumns]) -> KeyColumns:
    """All parts as one."""
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
    """The rows, sorted by chain, arrival, number, previous and tie."""
    rows: Int64s = np.argsort(columns.arrival, kind="stable")
    for digit in _digits(chain):
        rows = rows[np.argsort(digit[rows], kind="stable")]
    chain, arrival = chain[rows], columns.arrival[rows]
    same = (chain[1:] == chain[:-1]) & (arrival[1:] == arrival[:-1])
    if same.any():
        _settle_ties(rows, same, columns)
    return rows


def _digits(chain: Int64s) -> Iterator[NDArray[np.unsignedinteger]]:
    """The lowest digit first; small ones, for numpy sorts integers of 8 and 16 bits without comparing them."""
    most = int(chain.max(initial=0))
    if most < 1 << 8:
        yield chain.astype(np.uint8)
    else:
        for shift in range(0, most.bit_length(), 16):
            yield (chain >> shift).astype(np.uint16)


def _settle_ties(rows: Int64s, same: NDArray[np.bool_], columns: KeyColumns) -> None:
    """Put rows that came at the same time in order; ``same``: is it so of a row and the next one?"""
    before, after = np.concatenate(([False], same[:-1])), np.concatenate((same[1:], [False]))
    alone = same & ~before & ~after  # most are two, and a comparison settles them
    one = np.flatnonzero(alone)
    wrong = one[_is_behind(rows[one], rows[one + 1], columns)]
    rows[wrong], rows[wrong + 1] = rows[wrong + 1], rows[wrong]
    more = same & ~alone
    if more.any():
        block = np.concatenate(([0], np.cumsum(~more)))
        tied = np.flatnonzero(np.concatenate((more, [False])) | np.concatenate(([False], more)))
        row = rows[tied]
        rows[tied] = row[np.lexsort((columns.tie[row], columns.previous[row], columns.number[row], block[tied]))]


def _is_behind(one: Int64s, other: Int64s, columns: KeyColumns) -> NDArray[np.bool_]:
    """Does the one row belong behind the other?"""
    behind = columns.tie[one] > columns.tie[other]
    for column in (columns.previous, columns.number):
        left, right = column[one], column[other]
        behind = (left > right) | (left == right) & behind
    return behind


Codes: TypeAlias = NDArray[np.int8]
Judge: TypeAlias = Callable[..., Codes]

ROWS_IN_MEMORY_MAX = 4_000_000
"""600 MB at the peak; Spark's own advice is 64 MB to 128 MB of shuffle data per task, which is far below it."""

_BATCH = 65_536
_JUDGED = [0, 1, 2, 4, 3, 5, -1]  # sorted by key, key_check, arrival, number, previous, tie, place
_REVIEWED = [0, 1, 4, 2, 3, 5, -1]  # sorted by key, key_check, number; then as judged

PREVIOUS_NUMBER = (3, 4)
"""Where the columns stand that a chain is judged by."""


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
        rows = held = 0
        for part in parts:
            if held + len(part.key) > rows_in_memory_max and held:
                runs.append(_Run(_table(concatenate(buffer), rows - held), file))
                buffer, held = [], 0
            buffer.append(part)
            held += len(part.key)
            rows += len(part.key)
        if rows == 0:
            return
        if not runs:
            yield from _slices(_judge_all(concatenate(buffer), judge, wanted, review, review_due))
            return
        runs.append(_Run(_table(concatenate(buffer), rows - held), file))
        codes = _codes(rows, files.enter_context(tempfile.TemporaryFile()))
        names = _Names()
        for window in _windows(runs, rows_in_memory_max):
            codes[window[-1]] = judge(names(window), *(window[i] for i in wanted))
        if review is not None and review_due():
            again = files.enter_context(tempfile.TemporaryFile())
            names = _Names()
            for window in _windows([_Run(run.read(0, run.rows), again, _REVIEWED) for run in runs], rows_in_memory_max):
                place = window[-1]
                codes[place] = review(names(window), *(window[i] for i in wanted), codes[place])
        yield from _slices(codes)


def _judge_all(
    columns: KeyColumns, judge: Judge, wanted: tuple[int, ...], review: Judge | None, review_due: Callable[[], bool]
) -> Codes:
    chain = chains(columns)
    rows = order(chain, columns)
    codes = np.empty(len(rows), np.int8)
    seen = (chain[rows], *(columns.flat[i][rows] for i in wanted))
    judged = judge(*seen)
    codes[rows] = judged if review is None or not review_due() else review(*seen, judged)
    return codes


def _table(columns: KeyColumns, first_place: int) -> Int64s:
    return np.stack((*columns.flat, np.arange(first_place, first_place + len(columns.key))))


def _codes(rows: int, file: IO[bytes]) -> Codes:
    # Written, not only sized: on a full disk this is an error, a store into a sparse map would end the process.
    for start in range(0, rows, _BATCH):
        file.write(bytes(min(_BATCH, rows - start)))
    file.flush()
    return np.memmap(file, np.int8, "r+", shape=(rows,))


def _slices(codes: Codes) -> Iterator[Codes]:
    for start in range(0, len(codes), _BATCH):
        yield codes[start : start + _BATCH]


def _sorted(table: Int64s, keys: list[int]) -> Int64s:
    """A table of columns and places, in the order of these."""
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
        """The rows from start to end, as a table."""
        table = np.empty((self._width, end - start), np.int64)
        for i, column in enumerate(table):
            data = os.pread(self._file.fileno(), 8 * (end - start), self._begin + 8 * (i * self.rows + start))
            column[:] = np.frombuffer(data, np.int64)
        return table

    def key(self, at: int) -> tuple[int, ...]:
        """What the row at this position is sorted by."""
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
    """Call at the end of a task: once per worker, all that is loaded by then is left out of later searches."""
    gc.collect()
    gc.freeze()


BUCKETS = 32
"""Sixteen cores' worth of work, two buckets each. The state is split by it: a checkpoint keeps its number."""

ROWS_MAX, BYTES_MAX = 1 << 17, 64 << 20  # what a task packs at a time


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


TASK_BYTES = 64 << 20
"""Spark's own advisory size of a task's input, spark.sql.adaptive.advisoryPartitionSizeInBytes."""

TASKS_MAX = 100_000
_SIZE_UNKNOWN = 1 << 60  # Spark says 2^63 - 1 of a source that tells nothing

VERDICT, REASON = LABELS

Transform: TypeAlias = Callable[[DataFrame], DataFrame]
JudgePartition: TypeAlias = Callable[[Iterator[KeyColumns]], Iterator[Codes]]


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
        parts = (KeyColumns.of(column.to_numpy(zero_copy_only=False) for column in batch) for batch in batches)
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
