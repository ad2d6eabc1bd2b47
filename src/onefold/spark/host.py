"""Run an engine on Spark: takes a table or a stream, returns every row with its verdict and reason.

An engine defines which integers of a row it needs and how to judge them (`Engine`); this file does the rest. Only those
integers reach the judge, never the wide row. The order in which rows reach a task does not matter, so a retried task or
batch returns the same answers.

A table takes one shuffle by the key and one Arrow UDF over the integers, which returns one byte per row. Each task
sorts its rows into judgement order (by chain, then arrival, then number) itself: sorting the wide rows in the JVM was
measured at half the time of the whole job. Up to ``rows_in_memory_max`` rows are sorted and judged at once (about 150
bytes each at the peak). A larger partition is an external sort: sorted runs in a temporary file, read back as
consecutive windows in judgement order. Where messages with the same number must be compared, however far apart they
arrived, a second pass reads the rows sorted by number: the review.

With a memory (`memory`), for a stream or a table that continues from one, rows are shuffled by the bucket of their key.
The same function judges them against the versions below this one, then writes its own version before it returns the
first code. Streams always work this way; the wide row stays in the JVM there too. A partition larger than
``rows_in_memory_max`` is sorted on disk as above and judged window by window.

A chain's name is a 128-bit hash. The first 64 bits identify the chain, the other 64 detect two chains with the same
first half; if there are any, all 128 bits are compared. Producers and devices are chains here too.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.columns import quoted, refuse_ours
from onefold.spark.dialect import evenly, iterator_udf, kinds
from onefold.spark.meaning import Meaning
from onefold.spark.memory import BUCKETS, KEEP, Bucket, KeyRecords, MemoryFolder, Storage
from onefold.spark.notes import NoteTaker
from onefold.spark.session import believed_bytes, cores, ship

if TYPE_CHECKING:
    from onefold.spark.engine import Engine

Int64s: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int8]
Transform: TypeAlias = Callable[[DataFrame], DataFrame]

LABELS = VERDICT, REASON = "verdict", "reason"

BEFORE_ALL = -(1 << 63)
"""The arrival of a row without one: it is judged before the other rows of its chain."""
SORTED = 6
"""Number of columns in the sort order."""


class KeyColumns(NamedTuple):
    """The columns passed from Spark to Python, one integer per row each."""

    key: Int64s  # first half of the chain's hash
    key_check: Int64s  # second half
    arrival: Int64s
    previous: Int64s  # sorts rows with the same number: a chain's previous number, a producer's epoch
    number: Int64s
    tie: Int64s  # deterministic order of rows that are equal in all columns above
    more: tuple[Int64s, ...] = ()  # other columns that a judge needs; not part of the sort order

    @classmethod
    def of(cls, columns: Iterable[Int64s]) -> KeyColumns:
        """From columns in the order of `flat`: the named ones, then ``more``."""
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
    """A small number for each row's chain; equal exactly for rows of the same chain."""
    encoded = pa.array(columns.key).dictionary_encode()
    codes: Int64s = encoded.indices.to_numpy().astype(np.int64)
    check = np.empty(len(encoded.dictionary), np.int64)
    check[codes] = columns.key_check
    if np.array_equal(check[codes], columns.key_check):
        return codes
    names = np.stack((columns.key, columns.key_check))
    return np.unique(names, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def order(chain: Int64s, columns: KeyColumns) -> Int64s:
    """Row indices, sorted by chain, arrival, number, previous and tie.

    Arrivals are nearly sorted already, and chain numbers are radix-sorted: this takes a fifth of the time of a
    comparison sort over the same columns.
    """
    rows: Int64s = np.argsort(columns.arrival, kind="stable")
    most = int(chain.max(initial=0))
    if most < 1 << 8:  # numpy uses a radix sort for 8-bit and 16-bit integers
        rows = rows[np.argsort(chain.astype(np.uint8)[rows], kind="stable")]
    else:
        for shift in range(0, most.bit_length(), 16):
            rows = rows[np.argsort((chain >> shift).astype(np.uint16)[rows], kind="stable")]
    chain, arrival = chain[rows], columns.arrival[rows]
    same = (chain[1:] == chain[:-1]) & (arrival[1:] == arrival[:-1])
    if not same.any():
        return rows
    # Rows with the same arrival as a neighbour.
    before, after = np.concatenate(([False], same[:-1])), np.concatenate((same[1:], [False]))
    alone = same & ~before & ~after  # most ties are pairs: one comparison orders them
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

BUCKETS_MAX = 4096
ROWS_IN_MEMORY_MAX = 4_000_000
"""600 MB at the peak; the 64 MB to 128 MB of shuffle data per task that Spark recommends are far below."""

_BATCH = 65_536
_JUDGED = [0, 1, 2, 4, 3, 5, -1]  # sorted by key, key_check, arrival, number, previous, tie, row
_REVIEWED = [0, 1, 4, 2, 3, 5, -1]  # sorted by key, key_check, number; then as judged

PREVIOUS_NUMBER = (3, 4)  # positions of the columns by which a chain is judged


def judge_partition(
    parts: Iterator[KeyColumns],
    judge: Judge,
    rows_in_memory_max: int,
    *,
    wanted: Sequence[int] | None = PREVIOUS_NUMBER,
    group: Callable[[Int64s], Int64s] | None = None,
    review: Judge | None = None,
    review_due: Callable[[], bool] = lambda: True,
    ordered: bool = True,
) -> Iterator[Codes]:
    """The codes of all rows, in input order.

    ``judge``: chain and the wanted columns (None: all) -> codes; it gets the rows in judgement order, unless they fit
    into memory and ``ordered`` is false. ``group``: key -> number; chains with the same number are passed together.
    ``review``: chain, the wanted columns and the codes -> codes; it gets the rows of one number in judgement order, in
    one call or in consecutive calls. ``review_due`` is called when all rows are judged; if false, the review is
    skipped.
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
            # Written, not only sized: a full disk is an error here, but kills the process on a store into a sparse map.
            disk = files.enter_context(tempfile.TemporaryFile())
            for start in range(0, rows, _BATCH):
                disk.write(bytes(min(_BATCH, rows - start)))
            disk.flush()
            codes: Codes = np.memmap(disk, np.int8, "r+", shape=(rows,))
            names = _Names()
            wanted = range(len(buffer[0].flat)) if wanted is None else wanted
            for window in _windows(runs, rows_in_memory_max):  # sorted by key, and so by group
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
            chain, turn = _turns(columns, group, ordered)
            wanted = range(len(columns.flat)) if wanted is None else wanted
            sorted_ = (chain[turn], *(columns.flat[i][turn] for i in wanted))
            judged = judge(*sorted_)
            codes = np.empty(rows, np.int8)
            codes[turn] = judged if review is None or not review_due() else review(*sorted_, judged)
        yield from batches(codes)


def _turns(columns: KeyColumns, group: Callable[[Int64s], Int64s] | None, ordered: bool) -> tuple[Int64s, Int64s]:
    """A number for each row's chain, and the row indices in judgement order, or only grouped if not ``ordered``."""
    if not ordered:
        chain = np.zeros(len(columns.key), np.int64)
        groups = chain if group is None else group(columns.key)
        return chain, np.argsort(groups.astype(np.uint16), kind="stable")
    chain = chains(columns)
    if group is not None:
        groups = np.empty(int(chain.max()) + 1, np.int64)
        groups[chain] = group(columns.key)
        rank = np.empty(len(groups), np.int64)
        rank[np.argsort(groups, kind="stable")] = np.arange(len(groups))
        chain = rank[chain]
    return chain, order(chain, columns)


def batches(codes: Codes) -> Iterator[Codes]:
    for start in range(0, len(codes), _BATCH):
        yield codes[start : start + _BATCH]


def _table(columns: KeyColumns, first_row: int) -> Int64s:
    return np.stack((*columns.flat, np.arange(first_row, first_row + len(columns.key))))


def _sorted(table: Int64s, keys: list[int]) -> Int64s:
    return table[:, np.lexsort(table[keys][::-1])]


class _Run:
    """A sorted table, appended to a file shared by all runs; rows are read by position and not kept in memory."""

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
        """The first position from ``low`` on whose key is greater than the limit."""
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
    """Numbers the chains of consecutive windows; a chain that spans windows keeps its number."""

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
    """Call at the end of a task: once per worker, excludes all objects loaded by then from later garbage collections.

    With pandas and pyarrow loaded, scanning them after each task can take longer than a small task.
    """
    gc.collect()
    gc.freeze()


WRITERS = 16
"""Buckets that a task writes concurrently."""
TASK_BYTES = 64 << 20
"""Spark's own advisory size of a task's input, spark.sql.adaptive.advisoryPartitionSizeInBytes."""
TASKS_MAX = 100_000
SMALL_BYTES = 1 << 20
"""A table gets at most one task per this many bytes: starting a Python worker costs more than judging so few rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The memory of a judge: its path, its version and its limits."""

    path: str | None = None  # None: no memory, only for a table
    version: int | None = None  # None: the stream's batch id
    now_ms: int | None = None  # start of the batch; None: Spark's current timestamp, which a retry repeats
    owner: str = ""  # owner of the memory; empty: the stream's query id
    idle_ms: int | None = None  # a key without a message for this long gives up its gaps
    state_rows_max: int | None = None
    """Keys that a bucket remembers; messages of further keys are UNSURE."""
    buckets: int = BUCKETS
    keep: int = KEEP
    notes: str | None = None  # folder for the tasks' notes, see `notes`; None: none are taken
    ordered_wait_ms: int | None = None
    """None: messages come out as they arrive. Else in order per chain: an early message is held back for this long."""

    def __post_init__(self) -> None:
        least = {"buckets": 1, "keep": 1, "idle_ms": 1, "state_rows_max": 1, "version": 0}
        for name, value in least.items():
            if (own := getattr(self, name)) is not None and own < value:
                raise Misuse(f"{name} is {own}, must be at least {value}", **{name: own})
        if self.buckets > BUCKETS_MAX:
            raise Misuse(f"buckets is {self.buckets}, must be at most {BUCKETS_MAX}", buckets=self.buckets)

    def opened(self, df: DataFrame, meaning: Meaning) -> MemoryFolder | None:
        """The memory for these rows, created if absent; None: a table without one. `Misuse` if an option is wrong."""
        if self.path is None:
            if df.isStreaming:
                raise Misuse(
                    'a stream needs a memory: add memory="FOLDER" to the judge, a folder of this stream alone, on a'
                    " file system that all executors see"
                )
            for name in ("version", "idle_ms", "state_rows_max"):
                if (value := getattr(self, name)) is not None:
                    raise Misuse(f'{name} is {value}, which needs a memory: add memory="FOLDER"', **{name: value})
            return None
        if self.version is None and not df.isStreaming:
            raise Misuse(
                "a table that goes on from a memory needs a version: add version=N, one above the last; in foreachBatch"
                " it is the number of the batch"
            )
        return MemoryFolder.opened(self.path, meaning, buckets=self.buckets, owner=self.owner, keep=self.keep)


class Integers(NamedTuple):
    columns: Sequence[Column]  # longs, never null; the first is a hash of the key
    readings: Mapping[str, Column]
    """Helper columns from which ``columns`` are computed: added to the row, and dropped again."""
    key: Sequence[Column]  # the rows of a table are shuffled by these

    def read(self, df: DataFrame) -> DataFrame:
        return df.withColumns(dict(self.readings)) if self.readings else df


def with_verdict(df: DataFrame, engine: Engine, options: MemoryOptions) -> DataFrame:
    names = df.columns
    prepare(df)
    df = engine.columns.added_to(df)
    engine.columns.check(df)
    engine = engine.fitted(df)
    rows = labelled(coded(df, engine, options), engine, F.col(REASON))
    return rows if len(df.columns) == len(names) else rows.select(*map(quoted, names), *LABELS)


def coded(df: DataFrame, engine: Engine, options: MemoryOptions, *more: Column) -> DataFrame:
    """The rows with the code of their answer as ``reason``; ``more``: further columns for the engine."""
    integers = engine.integers(df)
    memory = options.opened(df, engine.meaning(df, options))
    columns = [*integers.columns, *more]
    if timed := memory is not None and options.now_ms is None and (engine.timed or options.idle_ms is not None):
        columns.append(F.unix_millis(F.current_timestamp()))  # the same when the batch is retried

    rules = None if options.notes is None else engine.note_rules(df)
    storage = None if options.notes is None else Storage(options.notes)

    def judge(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        arrays: Iterator[Sequence[Int64s]] = (
            [column.to_numpy(zero_copy_only=False) for column in batch] for batch in batches
        )
        notes = None
        if rules is not None and storage is not None:
            notes = NoteTaker(rules, storage, engine.rows_in_memory_max)
            arrays = notes.watch_rows(arrays)
        if memory is None:
            codes = engine.judge_partition(map(KeyColumns.of, arrays))
        else:
            codes = Remembering(engine, memory, options).judge_partition(arrays, timed=timed)
        for part in codes if notes is None else notes.watch_codes(codes):
            yield pa.array(part)
        settle()

    # "Nondeterministic" keeps the optimizer from moving the UDF across the shuffle or evaluating it twice.
    judged = iterator_udf(judge, T.ByteType()).asNondeterministic()
    rows = shuffled(df, integers, engine.partitions, memory)
    codes = rows.transform(integers.read).withColumn(REASON, judged(*columns))
    return codes.select(*(F.col(quoted(name)) for name in df.columns), REASON)


def labelled(rows: DataFrame, engine: Engine, code: Column) -> DataFrame:
    """The rows with the verdict and reason of a code, looked up in constant arrays."""
    words = [F.array(*(F.lit(str(answer[part])) for answer in engine.answers)) for part in (0, 1)]
    labels = {name: F.get(array, code) for name, array in zip(LABELS, words, strict=True)}
    columns = [F.col(quoted(name)) for name in rows.columns if name not in LABELS]
    return rows.withColumns(labels).select(*columns, *LABELS)


def shuffled(df: DataFrame, integers: Integers, partitions: int | None, memory: MemoryFolder | None) -> DataFrame:
    """Shuffle rows by key: a table into tasks by its size; with a memory, each bucket into one task."""
    spark, most = df.sparkSession, TASKS_MAX if memory is None else memory.buckets
    if partitions is None and df.isStreaming:  # no adaptive execution, and batches are small: one task per core
        partitions = cores(spark)
    if partitions is None and (believed := believed_bytes(df)) is not None:
        # At least four tasks per core, since tasks differ in length; fewer for a small table.
        partitions = min(max(4 * cores(spark), believed // TASK_BYTES), 1 + believed // SMALL_BYTES)
    tasks = None if partitions is None else min(partitions, most)
    if memory is None:
        return df.repartition(*integers.key) if tasks is None else df.repartition(tasks, *integers.key)
    first = F.shiftrightunsigned(integers.columns[0], 32)
    bucket = F.shiftright(first * memory.buckets, 32)
    return df.repartition(bucket) if tasks is None else evenly(df, bucket, memory.buckets, tasks)


def _property(name: str) -> str | None:
    """A local property that Spark's driver sets for the tasks of a batch."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


class Remembering:
    """A task with a memory: judges the rows of its buckets and writes the next version of each."""

    def __init__(self, engine: Engine, memory: MemoryFolder, options: MemoryOptions) -> None:
        version = options.version if options.version is not None else _property("streaming.sql.batchId")
        if version is None:
            raise Misuse("a memory was asked for outside of a stream's batch: say which version this is")
        self._version, self._engine, self._options = int(version), engine, options
        self._memory = replace(memory, owner=memory.owner or _property("sql.streaming.queryId") or "")
        self._memory.check_shared()
        self._buckets: dict[int, Bucket] = {}
        self._now_ms = options.now_ms or 0

    def judge_partition(self, arrays: Iterator[Sequence[Int64s]], *, timed: bool) -> Iterator[Codes]:
        """The codes of all rows, after writing the memory. ``timed``: the last column is the time of the batch."""
        parts = self._timed(arrays) if timed else map(KeyColumns.of, arrays)
        grouped = judge_partition(
            parts, self._judge, self._engine.rows_in_memory_max, wanted=None, group=self._memory.bucket_of,
            ordered=self._engine.ordered_rows,
        )  # fmt: skip
        for number, codes in enumerate(grouped):
            if not number:
                self._write()
            yield codes

    def _timed(self, arrays: Iterator[Sequence[Int64s]]) -> Iterator[KeyColumns]:
        for *columns, now_ms in arrays:
            self._now_ms = int(now_ms[0]) if len(now_ms) else self._now_ms
            yield KeyColumns.of(columns)

    def _judge(self, chain: Int64s, *columns: Int64s) -> Codes:
        rows = KeyColumns.of(columns)
        numbers = self._memory.bucket_of(rows.key)
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        codes = np.empty(len(chain), np.int8)
        for start, end in pairwise([*starts.tolist(), len(chain)]):
            number = int(numbers[start])
            bucket = self._buckets.get(number)
            if bucket is None:
                bucket = self._buckets[number] = Bucket(self._memory, number, self._version)
            bucket.rows += end - start
            own = KeyColumns.of(column[start:end] for column in rows.flat)
            codes[start:end] = self._engine.judge_bucket(own, bucket, self._options, self._now_ms)
        return codes

    def _write(self) -> None:
        def compact(table: str, records: KeyRecords, figures: dict[str, int]) -> KeyRecords:
            return self._engine.compacted(table, records, figures, self._options, self._now_ms)

        # Concurrently: each write waits for fsync, and the disk syncs many files in the time of one.
        with ThreadPoolExecutor(min(WRITERS, max(1, len(self._buckets)))) as writers:
            list(writers.map(lambda bucket: bucket.write(compact), self._buckets.values()))


def prepare(df: DataFrame) -> None:
    """Refuse a table with columns that the judge writes or adds internally, and ship onefold to the executors."""
    refuse_ours(df)
    for name in df.columns:
        if name.lower() in LABELS:  # Spark's column names are case-insensitive: it would be overwritten
            raise Misuse(f"there is a column {name!r} already: rename it, the judge writes one", column=name)
    ship(df.sparkSession)


def tie(df: DataFrame, ordered: set[str]) -> Column:
    """A hash of all columns that the judgement order does not cover, that is, all but the ``ordered`` columns."""
    rest = [field for field in df.schema.fields if field.name not in ordered]
    values = [F.col(quoted(f.name)) if _hashable(f.dataType) else F.col(quoted(f.name)).cast("string") for f in rest]
    return F.xxhash64(*values) if values else F.lit(0).cast("long")


def name_of(spark: SparkSession, columns: Sequence[tuple[str, str]], values: Sequence[str]) -> tuple[int, int]:
    """The hash of a key, from its columns with their types and its values as text."""
    texts = spark.createDataFrame([tuple(values)], [f"c{i}" for i in range(len(values))])
    key = [F.col(f"c{i}").cast(kind) for i, (_, kind) in enumerate(columns)]
    first, check = texts.select(F.xxhash64(*key), F.xxhash64(F.lit(1), *key)).collect()[0]
    return int(first), int(check)


def _hashable(kind: T.DataType) -> bool:
    """Whether Spark can hash values of this type: not if it contains a map or a variant."""
    if isinstance(kind, T.StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _hashable(kind.elementType)
    return not isinstance(kind, (T.MapType, *kinds("VariantType")))
