"""A stream of chains in order: per chain, messages come out in order, or after the gap before them was given up.

A second host beside `host`, for rows that are held back: the state of a bucket holds rows, and a call may give out
fewer rows or more than came in. Rows travel as Arrow blobs, one per bucket, and the state is Spark's state store. A
range that was given up comes out as a row of its own, before the message above it:
its key columns and `GAP_COLUMN` are set, all else is null; `parted` takes the two apart.

Every row is judged when it comes, and keeps that answer. A FIRST comes out when its chain releases it, all else at
once. Held rows are kept as an Arrow table in the order of their ids, which are all that the chains (`OrderedChain`)
know of them. The strategy is "light": giving up a gap releases all that its chain holds, so that losses in a row cost
one wait and not one each. Only chains that are touched or due are woken.

Time is that of the micro-batch, which Spark writes down before it runs: a batch that is tried again gives up the same
gaps. What is due comes out with the next batch, of whatever bucket:

    trigger every n seconds   a batch begins each time, even if nothing came, so that a wait ends by itself
    trigger "available"       when all is read, what is missing is given up and held rows come out; or, if the
                              settings say so, they stay in the checkpoint for the next start (`stream`)

A task has the rows in memory that came for one bucket and those that it holds, at most ``buffer_max`` per chain. The
state of a bucket:

    head       "OFOB", format, next id, count of chains, count of held rows
    chains     name (two halves), due_ms (-1: nothing is held), length of the snapshot; then the snapshots
    held       id, code, previous number; then the rows as an Arrow stream, if there are any
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from onefold.chains.columns import NO_PREVIOUS
from onefold.chains.in_order import BUFFER_MAX, Event, OrderedChain, OrderSettings, Released, Unfillable
from onefold.chains.rules import ANSWERS, STATE_FULL, Number, unpack
from onefold.errors import BadInput, Misuse
from onefold.spark import host
from onefold.spark.columns import quoted
from onefold.spark.files import Place
from onefold.spark.gaps import LOWER, UPPER, range_end
from onefold.spark.host import LABELS, Int64s, Integers, KeyColumns, MemoryOptions, Transform
from onefold.spark.meaning import Meaning, any_meaning, with_meaning, without_meaning
from onefold.verdict import Verdict

if TYPE_CHECKING:
    from onefold.spark.chains import ChainsEngine

FORMAT: Final = 1
GAP: Final = -1
"""The code of a row that is no message but a range that was given up."""

_MAGIC: Final = b"OFOB"
_HEAD: Final = struct.Struct("<4sHqqq")
_CODES: Final = {answer: code for code, answer in enumerate(ANSWERS)}

_Name: TypeAlias = tuple[int, int]


class ReleasedRow(NamedTuple):
    rows: pa.Table  # the messages; for a gap, the message above it with everything but its key set to null
    codes: NDArray[np.int8]
    bounds: Int64s  # a line per gap: lower timestamp and sequence (seen), upper timestamp and sequence (missing)


class OrderedBucket:
    """The chains of a bucket, and the rows that they hold back; ``key`` is where the key is among the columns."""

    def __init__(self, settings: OrderSettings, key: frozenset[int], chains_max: int | None = None) -> None:
        self._settings = settings.checked()
        self._key = key
        self._chains_max = chains_max
        self._asleep: dict[_Name, tuple[int, bytes]] = {}  # when it is due, and its snapshot
        self._awake: dict[_Name, OrderedChain[int]] = {}
        self._next = 0
        self._ids: list[int] = []
        self._codes: list[int] = []
        self._previous: list[int] = []
        self._rows: pa.Table | None = None
        self._held_before = 0

    def judge(self, integers: Int64s, rows: pa.Table | None, now_ms: int) -> ReleasedRow:
        """Take in the rows (None: none came), do what is due, and give out all that waits no longer."""
        self._held_before = offset = len(self._ids)
        columns = KeyColumns(*integers)
        turn = host.order(_steady(columns), columns)
        columns = columns.take(turn)
        table = self._rows
        if rows is not None:
            new = pa.Table.from_arrays(rows.take(pa.array(turn)).columns, names=rows.column_names)
            if table is not None and table.schema != new.schema:
                raise Misuse(
                    "the rows held back have other columns than those that come: use an empty checkpoint and place"
                )
            table = new if table is None else pa.concat_tables([table, new])
        self._ids += range(self._next, self._next + len(turn))
        self._codes += [GAP] * len(turn)
        self._previous += columns.previous.tolist()
        self._next += len(turn)
        going = _Going()
        names = zip(columns.key.tolist(), columns.key_check.tolist(), strict=True)
        for row, (name, number) in enumerate(zip(names, columns.number.tolist(), strict=True), offset):
            chain = self._wake(name) if number >= 0 else None
            if chain is None:
                self._codes[row] = -1 - number if number < 0 else _CODES[STATE_FULL]
                going.row(row)
                continue
            previous = None if self._previous[row] == NO_PREVIOUS else unpack(self._previous[row])
            step = chain.add(previous, unpack(number), self._ids[row], now_ms)
            self._codes[row] = _CODES[step.answer]
            if step.answer.verdict is Verdict.FIRST:
                self._follow(step.events, going)
            else:
                going.row(row)
        latest_ms = now_ms + self._settings.longest_ms  # what is due later was found by a clock that was ahead
        due = [name for name, (due, _) in self._asleep.items() if 0 <= due <= now_ms or due > latest_ms]
        due += [name for name, chain in self._awake.items() if chain.due_ms is not None]
        for name in sorted(due):
            if (chain := self._wake(name)) is not None:
                self._follow(chain.tick(now_ms), going)
        return self._out(table, going)

    def due_ms(self) -> int | None:
        """When something is to be done even if nothing comes; None: never."""
        asleep = [due for due, _ in self._asleep.values() if due >= 0]
        awake = [chain.due_ms for chain in self._awake.values() if chain.due_ms is not None]
        return min([*asleep, *awake], default=None)

    def figures(self) -> dict[str, int]:
        gaps = sum(due >= 0 for due, _ in self._asleep.values())
        gaps += sum(chain.due_ms is not None for chain in self._awake.values())
        keys = len(self._asleep) + len(self._awake)
        return {"keys": keys, "gaps": gaps, "held": len(self._ids), "held_before": self._held_before}

    def _follow(self, events: list[Event[int]], going: _Going) -> None:
        given_up: Number | None = None
        for event in events:
            if isinstance(event, Unfillable):
                given_up = event.lower
            elif isinstance(event, Released):
                row = bisect_left(self._ids, event.message)
                if given_up is not None:  # what is missing ends with the number that the next one names
                    going.gap(row, given_up, unpack(self._previous[row]))
                    given_up = None
                going.row(row)

    def _wake(self, name: _Name) -> OrderedChain[int] | None:
        if name in self._awake:
            return self._awake[name]
        if name in self._asleep:
            _, data = self._asleep.pop(name)
            chain: OrderedChain[int] = OrderedChain.restore(data)
            chain.settings = self._settings  # those of this start
        elif self._chains_max is not None and len(self._awake) + len(self._asleep) >= self._chains_max:
            return None
        else:
            chain = OrderedChain(**self._settings._asdict())
        self._awake[name] = chain
        return chain

    def _out(self, table: pa.Table | None, going: _Going) -> ReleasedRow:
        rows, gaps = np.array(going.rows, np.int64), np.array(going.is_gap, np.bool_)
        codes = np.array(self._codes, np.int8)[rows] if len(rows) else np.empty(0, np.int8)
        codes[gaps] = GAP
        stay = np.ones(len(self._ids), np.bool_)
        stay[rows] = False
        waiting = np.flatnonzero(stay)
        if len(self._ids) != len(waiting) + np.count_nonzero(~gaps):
            raise AssertionError("a row came out twice")
        bounds = np.array(going.bounds, np.int64).reshape(-1, 4)
        self._ids, self._codes, self._previous = (
            [values[i] for i in waiting] for values in (self._ids, self._codes, self._previous)
        )
        if table is None:
            return ReleasedRow(pa.table({}), codes, bounds)
        self._rows = table.take(pa.array(waiting)) if len(waiting) else None
        whole, key_only = pa.array(rows), pa.array(rows, mask=gaps)
        columns = [c.take(whole if i in self._key else key_only) for i, c in enumerate(table.columns)]
        return ReleasedRow(pa.Table.from_arrays(columns, names=table.column_names), codes, bounds)

    def snapshot(self) -> bytes:
        all_ = dict(self._asleep)
        for name, chain in self._awake.items():
            all_[name] = -1 if chain.due_ms is None else chain.due_ms, chain.snapshot()
        lines = [(*name, due, len(data)) for name, (due, data) in all_.items()]
        waiting = np.array([self._ids, self._codes, self._previous], np.int64)
        return b"".join(
            [
                _HEAD.pack(_MAGIC, FORMAT, self._next, len(lines), len(self._ids)),
                np.array(lines, np.int64).tobytes(),
                *(data for _, data in all_.values()),
                waiting.tobytes(),
                b"" if self._rows is None else to_blob(self._rows),
            ]
        )

    def resume(self, blob: bytes) -> OrderedBucket:
        """Go on where ``snapshot`` was taken; foreign bytes raise `BadInput`."""
        if len(blob) < _HEAD.size or blob[:4] != _MAGIC:
            raise BadInput(f"not a bucket of ordered chains: begins {blob[:20]!r}")
        _, format_, self._next, chain_count, held_count = _HEAD.unpack_from(blob)
        if format_ != FORMAT:
            raise BadInput(f"a bucket of ordered chains of format {format_}, this is format {FORMAT}")
        if min(chain_count, held_count) < 0 or 32 * chain_count + 24 * held_count > len(blob):
            raise BadInput(f"a broken bucket: {chain_count} chains and {held_count} rows in {len(blob)} bytes")
        try:
            at = _HEAD.size + 32 * chain_count
            for key_, check, due, length in np.frombuffer(blob[_HEAD.size : at], np.int64).reshape(-1, 4).tolist():
                if not 0 <= length <= len(blob) - at:
                    raise ValueError(f"a chain of {length} bytes at byte {at} of {len(blob)}")
                self._asleep[key_, check] = due, blob[at : at + length]
                at += length
            waiting = np.frombuffer(blob[at : at + 24 * held_count], np.int64).reshape(3, held_count)
            self._ids, self._codes, self._previous = waiting.tolist()
            self._rows = pa.ipc.open_stream(blob[at + 24 * held_count :]).read_all() if held_count else None
            if self._rows is not None:
                self._rows.validate(full=True)
        except (ValueError, OSError, MemoryError, pa.ArrowException) as error:  # as Arrow says that bytes are none
            raise BadInput(f"a broken bucket of ordered chains: {error}") from error
        return self


class _Going:
    def __init__(self) -> None:
        self.rows: list[int] = []
        self.is_gap: list[bool] = []
        self.bounds: list[tuple[int, int, int, int]] = []

    def row(self, row: int) -> None:
        self.rows.append(row)
        self.is_gap.append(False)

    def gap(self, row: int, lower: Number, upper: Number) -> None:
        self.rows.append(row)
        self.is_gap.append(True)
        self.bounds.append((*lower, *upper))


def _steady(columns: KeyColumns) -> Int64s:
    """The chains by their names: which of them finds the last room must not hang on the order in which rows came."""
    code = host.chains(columns)
    _, first = np.unique(code, return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.lexsort((columns.key_check[first], columns.key[first]))] = np.arange(len(first))
    return rank[code]


ROWS_MAX, BYTES_MAX = 1 << 17, 64 << 20  # what a task packs at a time
_INTEGERS = "__onefold_{}"
STATE = T.StructType([T.StructField("blob", T.BinaryType()), T.StructField("buckets", T.IntegerType())])

GAP_COLUMN = "__onefold_gap"
HEAD_MAX = 1 << 16
"""Bytes of a bucket's state that tell how much it holds: far more than any meaning takes."""

_WIDTH = host.SORTED
_BOUNDS = T.StructType([T.StructField(name, T.LongType()) for name in (*LOWER, *UPPER)])


Watch: TypeAlias = Callable[[int, dict[str, int]], None]


def order_chains(
    engine: ChainsEngine, wait_ms: int, memory: MemoryOptions, watch: Watch | None = None, buffer_max: int = BUFFER_MAX
) -> Transform:
    """A step that judges a stream of chained messages as `judge_chains` does, and gives each chain out in order.

    ``wait_ms``: how long a gap is waited for; ``buffer_max``: how many messages of a chain are held back at most;
    ``watch``: is called, in the tasks, with the figures of each bucket after each batch.
    What lies below the first message of a chain is a repeat (``floor="first"``).
    """
    settings = OrderSettings(wait_ms, 0, 0, "light", buffer_max, engine.gap_count_max).checked()
    if engine.floor != "first":
        raise Misuse(
            'floor is "open", must be "first" where messages are held back: the first one is where order begins'
        )
    if memory.idle_ms is not None:
        raise Misuse(f"idle_ms is {memory.idle_ms}, must be off where messages are held back: order_wait_ms is it")

    def ordered(df: DataFrame) -> DataFrame:
        if not df.isStreaming:
            raise Misuse("only a stream is brought into order: sort a table")
        engine.columns.check(df)
        host.prepare(df)
        fitted = engine.fitted(df)
        key = frozenset(df.columns.index(name) for name in engine.key)
        folded = in_buckets(df, fitted.integers(df), memory.buckets).applyInPandasWithState(
            _fold(settings, key, fitted.meaning(df, memory), memory, watch),
            blobs("codes", "bounds", "rows"), STATE, "append", GroupStateTimeout.ProcessingTimeTimeout,
        )  # fmt: skip
        schema = T.StructType([*_judged_schema(df).fields, T.StructField(GAP_COLUMN, _BOUNDS)])
        unpacked = folded.mapInArrow(_unpack, schema).toDF(*df.columns, *LABELS, GAP_COLUMN)
        gap = F.col(GAP_COLUMN)
        ends = [end for to in (LOWER, UPPER) for end in range_end(df, fitted.columns, gap[to[0]], gap[to[1]], to)]
        return unpacked.withColumn(GAP_COLUMN, F.when(gap.isNotNull(), F.struct(*ends)))

    return ordered


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
        host.settle()

    return numbered.mapInArrow(pack, blobs("bucket", "integers", "rows")).groupBy("bucket")


def _judged_schema(df: DataFrame) -> T.StructType:
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


def held_back(spark: SparkSession, checkpoint: Place) -> dict[int, tuple[int, int]]:
    """Of each bucket that holds rows back, how many, and when Spark is to look at it again, as the state tells."""
    if not (checkpoint / "commits").names():
        return {}
    rows = spark.read.format("statestore").load(str(checkpoint))
    value = F.col("value.groupState.blob")
    heads = rows.select("key.bucket", F.substring(value, 1, HEAD_MAX).alias("head"), "value.timeoutTimestamp").collect()
    counts = {}
    for row in heads:
        head = any_meaning(bytes(row["head"]))
        count = int(_HEAD.unpack_from(head)[4]) if head[:4] == _MAGIC else 0
        if count:
            counts[row["bucket"]] = count, max(0, row["timeoutTimestamp"])
    return counts


@contextmanager
def parted(ordered: DataFrame, key_columns: Sequence[str]) -> Iterator[tuple[DataFrame, DataFrame]]:
    """A batch of an ordered stream as messages and gaps; it is evaluated once, however often these two are."""
    rows = ordered.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        gap, key = F.col(GAP_COLUMN), [F.col(quoted(name)) for name in key_columns]
        bounds = [gap[name].alias(name) for name in (*LOWER, *UPPER)]
        yield rows.where(gap.isNull()).drop(GAP_COLUMN), rows.where(gap.isNotNull()).select(*key, *bounds)
    finally:
        rows.unpersist()


def _fold(
    settings: OrderSettings, key_columns: frozenset[int], meaning: Meaning, memory: MemoryOptions, watch: Watch | None
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def fold(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        integers, rows = arrived(frames, _WIDTH)
        now_ms = state.getCurrentProcessingTimeMs()
        bucket = OrderedBucket(settings, key_columns, memory.state_rows_max)
        if (blob := remembered(state, memory.buckets, meaning)) is not None:
            bucket.resume(blob)
        table = pa.Table.from_batches([from_blob(blob) for blob in rows]) if rows else None
        out = bucket.judge(np.concatenate([np.empty((_WIDTH, 0), np.int64), *integers], axis=1), table, now_ms)
        blob = bucket.snapshot()
        state.update((with_meaning(meaning, blob), memory.buckets))
        due_ms = bucket.due_ms()
        if due_ms is not None:  # Spark calls when this much and a millisecond more has passed
            state.setTimeoutDuration(max(1, due_ms - now_ms - 1))
        if watch is not None:
            count = sum(part.shape[1] for part in integers)
            watch(int(key[0]), {**bucket.figures(), "bytes": len(blob), "rows": count, "batch": batch_id()})
        lines = []
        row = gap = 0
        for batch in out.rows.combine_chunks().to_batches() if len(out.codes) else ():
            codes = out.codes[row : row + batch.num_rows]
            gaps = int(np.count_nonzero(codes == GAP))
            lines.append((codes.tobytes(), out.bounds[gap : gap + gaps].tobytes(), to_blob(batch)))
            row, gap = row + batch.num_rows, gap + gaps
        if len(out.codes):
            yield pd.DataFrame(lines, columns=["codes", "bounds", "rows"])
        host.settle()

    return fold


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
    host.settle()
