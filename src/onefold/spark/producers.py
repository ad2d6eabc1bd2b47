"""``df.transform(judge_producers(...))``: every row of a table or a stream of numbered messages gets its verdict.

For any rows with a producer and a sequence: Kafka or Pulsar topics, our own log. Six or seven integers per row cross to
Python (see `host`). The answers are those of the scalar `Sequences` when every FIRST is persisted at once. A producer
is treated as a chain, so that the columnar chain detector judges it:

    memory "highest"   a chain whose messages name no previous one: each is compared with the head only
    memory "gaps"      a chain whose message s names s - 1 as its previous one, and that begins with a message -1

The message -1 is added, one per producer, so that everything below the first sequence is a gap like any other. Rules
that chains do not have are applied around them:

    epochs      a row below the highest epoch before it is refused before the chain sees it
    jumps       so is a row more than ``jump_max`` above the highest sequence before it, if that is set
    conflicts   a repeat is compared with the digest of its FIRST

A negative sequence marks a row that is refused already: ``refused(code)`` is answered with ``code``.

With a ``time``, counters may restart, and producers are not chains: rows are judged in the order of their times, by the
rules of `onefold.producers.restarts`. ``order`` then only decides which of the copies counts.

With a memory, a producer's record is that of its chain, its highest epoch and the digests of the last ``digests_max``
stored sequences. Within a batch a repeat is compared with its first, however far apart they are; across batches, with
these digests: every conflict of the scalar engine is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.chains import columns as P
from onefold.chains.columns import NO_PREVIOUS, ChainMessages, ColumnarDetector
from onefold.chains.rules import ANSWERS as CHAIN_ANSWERS
from onefold.chains.rules import ChainSettings
from onefold.errors import Misuse
from onefold.hashed_names import find
from onefold.producers import records as A
from onefold.producers.records import ANSWERS, DIGESTS_MAX, GAP_COUNT_MAX, MemoryKind, SequenceBounds
from onefold.producers.restarts import NEVER, Counters, Runs, SortedCounters, begins
from onefold.spark import host
from onefold.spark.chains import recalled, remember, without_idle
from onefold.spark.columns import (
    CORRUPT,
    EXACT,
    RANGE_ENDS,
    TEXT,
    TIME,
    WHOLE,
    ProducerColumns,
    in_order,
    no_time,
    quoted,
    readings,
    unit_of,
    whole,
)
from onefold.spark.engine import Engine, Identity, Subject, Untold, named_like
from onefold.spark.gaps import CHAINS, counters_of, missing_sequences, named_sequences
from onefold.spark.host import Codes, Int64s, Integers, KeyColumns, MemoryOptions, Transform
from onefold.spark.meaning import Meaning, of_columns
from onefold.spark.memory import BUCKETS, FORMAT, Bucket, ItemLists, KeyRecords, by_name
from onefold.spark.notes import NoteRules, ranked
from onefold.verdict import Verdict

if TYPE_CHECKING:
    from onefold.settings import Judge
    from onefold.tally import Tally

Bools: TypeAlias = NDArray[np.bool_]

NO_EPOCH: Final = -1
CODES: Final = {answer.reason: code for code, answer in enumerate(A.ANSWERS)}

_MEANINGS: Final = {
    A.NEW: (P.NEW_CHAIN, P.IN_ORDER, P.OPENS_GAP, P.AHEAD),
    A.FILLS_GAP: (P.FILLS_GAP,),
    A.SEEN: (P.SEEN,),
    A.BEHIND_HIGHEST: (P.BEHIND_HEAD,),
    A.FORGOTTEN: (P.FORGOTTEN,),
    A.STATE_FULL: (P.STATE_FULL,),
}
_OF_CHAIN: Final = np.array(  # the producers' code of each code of the chains
    [next((CODES[a.reason] for a, codes in _MEANINGS.items() if i in codes), -1) for i in range(len(CHAIN_ANSWERS))],
    np.int8,
)
_STORED: Final = np.array([answer in (A.NEW, A.FILLS_GAP, A.RESTARTED) for answer in A.ANSWERS])
_BEHIND: Final = np.array([answer in (A.SEEN, A.BEHIND_HIGHEST, A.FORGOTTEN) for answer in A.ANSWERS])


def refused(reason: str) -> int:
    """The negative sequence that means "refused for this reason"."""
    return -1 - CODES[reason]


class Digests(NamedTuple):
    owner: Int64s  # whose: a number for each producer
    sequence: Int64s
    digest: Int64s

    @classmethod
    def none(cls) -> Digests:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def take(self, rows: Int64s | Bools) -> Digests:
        return Digests(*(column[rows] for column in self))

    def and_then(self, other: Digests) -> Digests:
        return Digests(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class AsChain(NamedTuple):
    """Sequences as messages of chains, including the added messages -1."""

    memory: MemoryKind
    previous: Int64s
    number: Int64s
    before: Int64s  # the rows before which a message was added

    @classmethod
    def of(cls, sequence: Int64s, memory: MemoryKind, fresh: Bools) -> AsChain:
        """``fresh``: which rows are the first of an unknown producer."""
        number = sequence + 1
        if memory == "highest":
            return cls(memory, np.full(len(number), NO_PREVIOUS, np.int64), number, np.empty(0, np.int64))
        before = np.flatnonzero(fresh)
        return cls(memory, np.insert(sequence, before, NO_PREVIOUS), np.insert(number, before, 0), before)

    def spread(self, column: Int64s) -> Int64s:
        """A column of the rows, extended to the added messages."""
        return np.insert(column, self.before, column[self.before]) if len(self.before) else column

    def answers(self, codes: Codes) -> Codes:
        if len(self.before):
            codes = np.delete(codes, self.before + np.arange(len(self.before)))
        if self.memory == "highest":  # which has no reason of its own for the highest itself
            codes = np.where(codes == P.SEEN, P.BEHIND_HEAD, codes).astype(np.int8)
        return _OF_CHAIN[codes]


def fences(rank: Int64s, epoch: Int64s, start: Int64s) -> Codes:
    """The code of each row that its epoch refuses, -1 of all others.

    ``rank`` numbers the producers 0, 1, 2... as they come; ``start`` is the highest epoch known of each before.

    >>> codes = fences(np.zeros(4, np.int64), np.array([1, 2, 1, -1]), np.array([NO_EPOCH]))
    >>> [A.ANSWERS[code].reason if code >= 0 else "" for code in codes]
    ['', '', 'stale_epoch', 'epoch_missing']
    """
    codes = np.full(len(epoch), -1, np.int8)
    if not len(epoch) or epoch.min() >= max(epoch.max(), start.max()):
        return codes
    firsts = np.flatnonzero(begins(rank))
    levels, level = np.unique(np.insert(epoch, firsts, start), return_inverse=True)
    highest = np.maximum.accumulate(np.insert(rank, firsts, rank[firsts]) * len(levels) + level)
    # the row before it, its producer's start first
    before = levels[highest[np.arange(len(epoch)) + rank] % len(levels)]
    codes[epoch < before] = CODES["stale_epoch"]
    codes[(epoch < before) & (epoch == NO_EPOCH)] = CODES["epoch_missing"]
    return codes


def jumps(rank: Int64s, sequence: Int64s, start: Int64s, jump_max: int | None) -> Bools:
    """Which rows lie more than ``jump_max`` above the highest sequence of their producer, without such rows.

    ``rank`` numbers the producers 0, 1, 2... as they come; ``start`` is the highest sequence known of each before; -1:
    none, and then its first row may be any. Only producers with such a row are checked row by row: rare, and exact.

    >>> rows = np.array([5, 9, 2**62, 10, 6])
    >>> jumps(np.zeros(5, np.int64), rows, np.array([-1]), 1000).tolist()
    [False, False, True, False, False]
    """
    refused = np.zeros(len(sequence), np.bool_)
    if jump_max is None or not len(sequence):
        return refused
    heads = start[start >= 0]
    least = min(int(sequence.min()), int(heads.min())) if len(heads) else int(sequence.min())
    if int(sequence.max()) - least <= jump_max:
        return refused
    firsts = np.flatnonzero(begins(rank))
    levels, level = np.unique(np.insert(sequence, firsts, start), return_inverse=True)
    highest = np.maximum.accumulate(np.insert(rank, firsts, rank[firsts]) * len(levels) + level)
    before = levels[highest[np.arange(len(sequence)) + rank] % len(levels)]
    far = np.flatnonzero((before >= 0) & (sequence - np.maximum(before, 0) > jump_max))
    ends = np.append(firsts[1:], len(sequence))
    for producer in np.unique(rank[far]).tolist():  # a refused row does not raise the highest sequence
        head, first = int(start[producer]), int(firsts[producer])
        for row, own in enumerate(sequence[first : ends[producer]].tolist(), first):
            if own - head > jump_max and head >= 0:
                refused[row] = True
            else:
                head = max(head, own)
    return refused


def contradictions(rows: Digests, codes: Codes, before: Digests) -> tuple[Int64s, Digests]:
    """Which rows contradict the stored row of their sequence, and which rows are stored newly.

    ``before``: the rows stored before. The rows of one sequence must be in the order of judgement.
    """
    copies = np.flatnonzero(_BEHIND[codes])
    stored = rows.take(_STORED[codes])
    if not len(copies):
        return copies, stored
    repeats, everything = rows.take(copies), before.and_then(stored)
    bits = max(10, (8 * len(copies)).bit_length())
    marked = np.zeros(1 << bits, np.bool_)
    marked[_slots(repeats, bits)] = True
    originals = everything.take(marked[_slots(everything, bits)])  # leaves out most rows without copies
    both = originals.and_then(repeats)
    order = np.lexsort((both.sequence, both.owner))  # stable: stored rows come before their copies
    owner, sequence, digest = both.take(order)
    position = np.arange(len(order))
    opens = np.maximum.accumulate(np.where(begins(owner, sequence), position, 0))
    last = np.maximum.accumulate(np.where(order < len(originals.owner), position, -1))
    different = np.empty(len(order), np.bool_)
    different[order] = (last >= opens) & (digest[last] != digest)
    return copies[different[len(originals.owner) :]], stored


def _slots(rows: Digests, bits: int) -> NDArray[np.uint64]:
    mixed = rows.sequence.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= rows.owner.view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed * np.uint64(0xFF51AFD7ED558CCD)) >> np.uint64(64 - bits)


class Stored(NamedTuple):
    """The stored rows of counters that restart, where a number alone does not identify a message."""

    owner: Int64s
    sequence: Int64s
    digest: Int64s
    time: Int64s

    @classmethod
    def none(cls) -> Stored:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def reviewed(self, codes: Codes, rows: Stored, count_max: int) -> Stored:
        """Write ``conflict`` into the codes of rows that contradict stored ones; return the rows stored afterwards."""
        both = Stored(*(np.concatenate(pair) for pair in zip(self, rows, strict=True)))
        named = Digests(both.owner, ranked(both.sequence, both.time), both.digest)
        count = len(self.owner)
        new = np.arange(count, len(both.owner))
        conflicts, _ = contradictions(named.take(new), codes, named.take(np.arange(count)))
        codes[conflicts] = CODES["conflict"]
        stays = np.concatenate((np.arange(count), new[_STORED[codes]]))
        stays = stays[np.argsort(both.owner[stays], kind="stable")]
        owner = both.owner[stays]
        stays = stays[np.searchsorted(owner, owner, "right") - np.arange(len(owner)) <= count_max]
        return Stored(*(column[stays] for column in both))


def listed(items: Runs | Stored, keys: int) -> ItemLists:
    return ItemLists(np.bincount(items.owner, minlength=keys).astype(np.int64), tuple(items[1:]))


def give_up_idle(records: KeyRecords, counters: Counters, options: MemoryOptions, now_ms: int) -> None:
    """Keep only the newest run of idle producers."""
    if options.idle_ms is not None:
        owner = counters.runs.owner
        is_last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
        heard = records.values["heard"]
        counters.give_up(((heard < now_ms - options.idle_ms) & (heard > 0))[owner] & ~is_last)


class ColumnarSequences:
    """Judges a table's rows, in batches; the rows of a producer must be contiguous, also across batches.

    >>> columns = ColumnarSequences("gaps", 10_000)
    >>> producer, epoch = np.zeros(4, np.int64), np.full(4, NO_EPOCH)
    >>> [A.ANSWERS[code].reason for code in columns.judge(producer, epoch, np.array([2, 3, 0, 3]))]
    ['new', 'new', 'fills_gap', 'seen']
    """

    def __init__(self, memory: MemoryKind, gap_count_max: int, jump_max: int | None = None) -> None:
        self._memory: MemoryKind = memory
        self._jump_max = jump_max
        self._detector = ColumnarDetector(ChainSettings(gap_count_max + 1))  # it counts the infinite gap too
        self._epoch = (-1, NO_EPOCH)  # the producer that the last batch ended with, and its highest epoch
        self._highest = (-1, -1)  # and its highest sequence
        self._stored = Digests.none()

    def judge(self, producer: Int64s, epoch: Int64s, sequence: Int64s, *_: Int64s) -> Codes:
        """The code of each row's answer, its index in ``ANSWERS``; ``producer`` holds numbers from 0."""
        if len(sequence) and sequence.min() >= 0:
            return self._judge(producer, epoch, sequence)
        codes = np.where(sequence < 0, -1 - sequence, 0).astype(np.int8)
        good = np.flatnonzero(sequence >= 0)
        if len(good):
            codes[good] = self._judge(producer[good], epoch[good], sequence[good])
        return codes

    def _judge(self, producer: Int64s, epoch: Int64s, sequence: Int64s) -> Codes:
        first = begins(producer)
        start = np.full(int(np.count_nonzero(first)), NO_EPOCH, np.int64)
        if self._epoch[0] == producer[0]:
            start[0] = self._epoch[1]
        codes = fences(np.cumsum(first) - 1, epoch, start)
        last = int(np.flatnonzero(first)[-1])
        self._epoch = int(producer[-1]), max(int(start[-1]), int(epoch[last:].max()))
        live = np.flatnonzero(codes < 0)
        if len(live) < len(codes):
            producer, sequence = producer[live], sequence[live]
        if len(live) and self._jump_max is not None:
            far = self._jumps(producer, sequence)
            codes[live[far]] = CODES["jump_too_far"]
            live, producer, sequence = live[~far], producer[~far], sequence[~far]
        if len(live):
            rows = AsChain.of(sequence, self._memory, begins(producer))  # adding a message -1 twice is harmless
            codes[live] = rows.answers(self._detector.judge(rows.spread(producer), rows.previous, rows.number))
        return codes

    def _jumps(self, producer: Int64s, sequence: Int64s) -> Bools:
        first = begins(producer)
        start = np.full(int(np.count_nonzero(first)), -1, np.int64)
        if self._highest[0] == producer[0]:
            start[0] = self._highest[1]
        far = jumps(np.cumsum(first) - 1, sequence, start, self._jump_max)
        last = int(np.flatnonzero(first)[-1])
        newest = sequence[last:][~far[last:]]
        self._highest = int(producer[-1]), max(int(start[-1]), int(newest.max()) if len(newest) else -1)
        return far

    def review(self, producer: Int64s, epoch: Int64s, sequence: Int64s, digest: Int64s, codes: Codes) -> Codes:
        """The codes, with ``conflict`` where a repeat's digest is not that of the first.

        The rows of one sequence must come in the order of judgement, in one call or in consecutive calls.
        """
        rows = Digests(producer, sequence, digest)
        conflicts, stored = contradictions(rows, codes, self._stored)
        codes = codes.copy()
        codes[conflicts] = CODES["conflict"]
        stored = self._stored.and_then(stored)
        self._stored = stored.take((stored.owner == producer[-1]) & (stored.sequence == sequence[-1]))
        return codes


def judge_producers(
    columns: ProducerColumns | None = None, *, time: str | None = None, remember: MemoryKind | None = None,
    digests_max: int = DIGESTS_MAX,
    gap_count_max: int = GAP_COUNT_MAX, jump_max: int | None = None, partitions: int | None = None,
    rows_in_memory_max: int = host.ROWS_IN_MEMORY_MAX, memory: str | None = None, version: int | None = None,
    idle_ms: int | None = None, state_rows_max: int | None = None, buckets: int = BUCKETS,
) -> Transform:  # fmt: skip
    """A step that adds ``verdict`` and ``reason`` to a table or a stream of numbered messages.

        judged = df.transform(judge_producers(ProducerColumns(producer="device", sequence="n", time="ts")))

    ``time``: the column with the time that the producer gave the message, which copies share (the same as
    ``columns.time``): where the sequence falls and the time rises, the counter of the producer restarted, and a new
    epoch begins. Then gaps of all epochs are remembered, and neither ``jump_max`` nor an epoch column may be given.

    ``remember``: "highest", the default without a ``time``, treats every sequence not above the highest as a repeat, as
    the log of PIP-6 does; "gaps" remembers up to ``gap_count_max`` missing ranges per producer, and a message that
    fills one is FIRST. The rows come out in no particular order. ``jump_max``: a sequence more than this above the
    highest one before it is rejected; None: no limit.

    ``partitions``: how many tasks judge; None: by the size of the input. ``rows_in_memory_max``: of a task; more are
    sorted on disk.

    ``memory``: the folder of the memory. A stream needs one; a table with a memory needs its ``version``, one above the
    last (in ``foreachBatch``, the number of the batch). Options of the memory: ``digests_max``, for how many of a
    producer's sequences the payload is remembered across batches; ``idle_ms``, after how long without a message a
    producer gives up its gaps; ``state_rows_max``, how many producers a bucket remembers, beyond which messages of new
    ones are UNSURE; ``buckets``, into how many parts the memory is split. (``memory="highest"`` and ``"gaps"`` are
    still accepted for ``remember``; a folder of such a name is "./gaps".)
    """
    kinds: dict[str | None, MemoryKind] = {"highest": "highest", "gaps": "gaps"}
    if memory in kinds:
        remember, memory = kinds[memory], None
    columns = columns or ProducerColumns()
    columns = columns if time is None else replace(columns, time=time)
    engine = ProducersEngine(
        columns=columns, memory=remember or usual_memory(columns), digests_max=digests_max, gap_count_max=gap_count_max,
        jump_max=jump_max, partitions=partitions, rows_in_memory_max=rows_in_memory_max,
    )  # fmt: skip
    return engine.step(
        MemoryOptions(path=memory, version=version, idle_ms=idle_ms, state_rows_max=state_rows_max, buckets=buckets)
    )


TIME_NAMES: Final = re.compile(r"time|date|(^|_)ts($|_)|_(at|ms)$", re.IGNORECASE)
LOOKS_MAX: Final = 4
"""How many columns are tried as times; each costs a pass over the rows."""
NEAR: Final = 10
"""How far above the lowest sequence a restarted counter may begin, as its first messages may be lost; at most a tenth
of the producer's range of sequences."""


def might_be_time(rows: DataFrame, name: str) -> bool:
    kind = rows.schema[name].dataType
    return isinstance(kind, TIME) or (isinstance(kind, (*TEXT, *WHOLE)) and TIME_NAMES.search(name) is not None)


def anew_by_time(rows: DataFrame, names: ProducerColumns, firsts: int) -> tuple[int, int, int, int]:
    """How many messages share their sequence with one of another time, how often the sequence falls while the time
    rises, how often it falls to the beginning, and in how many producers it does."""
    key, time = [F.col(quoted(name)) for name in names.producer], in_order(rows, str(names.time))
    number = whole(rows, names.sequence)
    narrow = rows.select(F.struct(*key).alias("key"), time.alias("time"), number.alias("number")).dropna()
    each = Window.partitionBy("key")
    before = F.lag(F.struct("time", "number")).over(each.orderBy("time", "number"))
    looked = narrow.distinct().withColumns(
        {"before": before, "least": F.min("number").over(each), "most": F.max("number").over(each)}
    )
    falls = F.col("number") <= F.col("before.number")
    near = F.least(F.call_function("div", F.col("most") - F.col("least"), F.lit(10)), F.lit(NEAR))
    anew = falls & (F.col("number") <= F.col("least") + near)
    figures = F.count("*"), F.count_if(falls), F.count_if(anew), F.count_distinct(F.when(anew, F.col("key")))
    messages, fallen, begun, producers = looked.agg(*figures).collect()[0]
    return messages - firsts, fallen, begun, producers


def usual_memory(columns: ProducerColumns) -> MemoryKind:
    return "highest" if columns.time is None else "gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersEngine(Engine):
    """By the sequences of a producer; see `judge_producers`."""

    name: ClassVar[str] = "producers"
    answers = ANSWERS

    columns: ProducerColumns = field(default_factory=ProducerColumns)
    memory: MemoryKind = "highest"
    digests_max: int = DIGESTS_MAX
    gap_count_max: int = GAP_COUNT_MAX
    jump_max: int | None = None

    def __post_init__(self) -> None:
        SequenceBounds(
            self.memory, gap_count_max=self.gap_count_max, digests_max=self.digests_max, jump_max=self.jump_max
        ).checked()
        if (time := self.columns.time) is not None:
            others = {"epoch": self.columns.epoch, "jump_max": self.jump_max}
            for name, value in (*others.items(), ("memory", "highest" if self.memory == "highest" else None)):
                if value is not None:
                    raise Misuse(f"{name} is {value!r}, but a time ({time!r}) tells the epochs: name one of the two")
        Engine.__post_init__(self)

    @classmethod
    def configured(cls, judge: Judge, *, strategy: str, partitions: int | None) -> ProducersEngine:
        if judge.sequence is None:
            raise Misuse('judge.sequence: is "none", but producers are judged by it')
        columns = ProducerColumns(**named_like(ProducerColumns, judge))
        own = named_like(cls, judge) | {"jump_max": None if judge.jump_max == "off" else judge.jump_max}
        own["memory"] = usual_memory(columns) if judge.memory == "auto" else judge.memory
        return cls(columns=columns, **own, partitions=partitions)

    @property
    def key(self) -> tuple[str, ...]:
        return self.columns.producer

    def integers(self, df: DataFrame) -> Integers:
        names, key = self.columns, [F.col(quoted(name)) for name in self.key]
        read = readings(df, [names.order, names.time])
        rows = df.withColumns(read) if read else df
        sequence = whole(df, names.sequence)
        before_all = F.lit(host.BEFORE_ALL).cast("long")
        order = sequence if names.order is None else F.coalesce(in_order(rows, names.order), before_all)
        none = F.lit(NO_EPOCH).cast("long")
        epoch = none if names.epoch is None else F.greatest(F.coalesce(whole(df, names.epoch), none), none)
        if names.time is not None:
            order, epoch = F.coalesce(in_order(rows, names.time), before_all), none if names.order is None else order
        payload = [part for name in names.payload for part in (F.col(quoted(name)).isNull(), F.col(quoted(name)))]
        columns = (
            F.xxhash64(*key),
            F.xxhash64(F.lit(1), *key),
            F.coalesce(order, before_all),
            epoch,
            self._judged(rows, sequence),
            host.tie(df, {*names.producer, names.sequence}),
            # Spark's hash skips nulls, so that (null, "a") would equal ("a", null): hash whether each part is null
            *([F.xxhash64(*payload)] if payload else []),
        )
        return Integers(columns, read, key)

    def _judged(self, df: DataFrame, sequence: Column) -> Column:
        names = self.columns
        unreadable = F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else F.lit(False)
        if names.epoch is not None and isinstance(df.schema[names.epoch].dataType, (*TEXT, *EXACT)):
            unreadable = unreadable | (F.col(quoted(names.epoch)).isNotNull() & whole(df, names.epoch).isNull())
        nameless = F.lit(False)
        for name in names.producer:
            nameless = nameless | F.col(quoted(name)).isNull()
        refusals = {
            "bad_sequence": sequence.isNull() | (sequence < 0) | (sequence == (1 << 63) - 1),
            "bad_time": self._no_time(df),
            "null_key": nameless,
            "malformed": unreadable,
        }
        for reason, condition in refusals.items():
            if condition is not None:
                sequence = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(sequence)
        return sequence

    def _no_time(self, df: DataFrame) -> Column | None:
        names = self.columns
        order = None if names.order is None else no_time(df, names.order)
        if names.time is None:
            return order
        time = in_order(df, names.time)
        timeless = time.isNull() | (time == NEVER)
        return timeless if order is None else timeless | order

    def judge_partition(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        if self.columns.time is not None:
            wanted = (2, 4, *((host.SORTED,) if self.columns.payload else ()))
            return host.judge_partition(parts, SortedCounters().judge, self.rows_in_memory_max, wanted=wanted)
        sequences = ColumnarSequences(self.memory, self.gap_count_max, self.jump_max)
        if not self.columns.payload:
            return host.judge_partition(parts, sequences.judge, self.rows_in_memory_max)
        wanted = (*host.PREVIOUS_NUMBER, host.SORTED)
        return host.judge_partition(
            parts, sequences.judge, self.rows_in_memory_max, wanted=wanted, review=sequences.review
        )

    def judge_bucket(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        codes = np.where(rows.number < 0, -1 - rows.number, 0).astype(np.int8)
        good = np.flatnonzero(rows.number >= 0)
        if len(good):
            own = rows if len(good) == len(codes) else rows.take(good)
            judge = self._judge_bucket if self.columns.time is None else self._judge_restarts
            codes[good] = judge(own, bucket, options, now_ms)
        return codes

    def _judge_restarts(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        first = begins(rows.key, rows.key_check)
        key, check = rows.key[first], rows.key_check[first]
        turn = by_name(key, check)
        key, check, rank = key[turn], check[turn], np.argsort(turn)[np.cumsum(first) - 1]
        entries = bucket.find(CHAINS, key, check)
        at = np.full(len(key), -1) if entries is None else find(entries.key, entries.check, key, check)
        if options.state_rows_max is not None:
            room = (at >= 0) | (np.cumsum(at < 0) <= options.state_rows_max - bucket.figures["keys"])
            if not room.all():
                codes = np.full(len(rank), CODES["state_full"], np.int8)
                if len(some := np.flatnonzero(room[rank])):
                    codes[some] = self._judge_restarts(rows.take(some), bucket, options, now_ms)
                return codes
        counters, stored = Counters.none(len(key), self.gap_count_max), Stored.none()
        if entries is not None:
            own = np.flatnonzero(at >= 0)
            before = counters_of(entries, self.gap_count_max)
            bucket.figures["gaps"] -= len(before.missing().owner)
            give_up_idle(entries, before, options, now_ms)
            counters.runs = before.runs._replace(owner=own[before.runs.owner])
            counters.forgotten[own] = before.forgotten
            counts, digests = entries.lists["digests"]
            stored = Stored(np.repeat(own, counts), *digests)
        by_owner = np.argsort(rank, kind="stable")  # by name, not as the producers came
        owner, time, sequence = rank[by_owner], rows.arrival[by_owner], rows.number[by_owner]
        judged = counters.judge(owner, time, sequence)
        if rows.more:
            stored = stored.reviewed(judged, Stored(owner, sequence, rows.more[0][by_owner], time), self.digests_max)
        bucket.figures["keys"] += int(np.count_nonzero(at < 0))
        bucket.figures["gaps"] += len(counters.missing().owner)
        values = {"heard": np.full(len(key), now_ms, np.int64), "forgotten": counters.forgotten}
        lists = {name: listed(items, len(key)) for name, items in (("runs", counters.runs), ("digests", stored))}
        bucket.keep(CHAINS, KeyRecords(key, check, values, lists))
        codes = np.empty(len(rank), np.int8)
        codes[by_owner] = judged
        return codes

    def _judge_bucket(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        # The infinite gap counts there too.
        bank, entries = recalled(bucket, rows, ChainSettings(self.gap_count_max + 1), options, now_ms)
        before, heads = bank.names, bank.chains.head
        first = begins(rows.key, rows.key_check)
        rank = np.cumsum(first) - 1
        names = rows.key[first], rows.key_check[first]
        at = bank.find(*names)
        known_epochs = np.empty(0, np.int64) if entries is None else entries.values["epoch"]
        judged = fences(rank, rows.previous, np.append(known_epochs, NO_EPOCH)[at])
        live = np.flatnonzero(judged < 0)
        if self.jump_max is not None:  # a producer's head in the bank is its highest sequence, + 1
            present, own = np.unique(rank[live], return_inverse=True)
            far = jumps(own, rows.number[live], np.append(heads, 0)[at[present]] - 1, self.jump_max)
            judged[live[far]] = CODES["jump_too_far"]
            live = live[~far]
        accepted = rows.take(live)
        fresh = begins(accepted.key, accepted.key_check) & (at[rank[live]] < 0)
        chain = AsChain.of(accepted.number, self.memory, fresh)
        messages = ChainMessages(
            chain.spread(accepted.key), chain.spread(accepted.key_check), chain.previous, chain.number
        )
        judged[live] = chain.answers(bank.judge(messages, now_ms))
        if self.jump_max is not None:  # a producer without room has no highest sequence to jump from
            full = np.isin(rank, rank[judged == CODES["state_full"]])
            judged[full & (judged == CODES["jump_too_far"])] = CODES["state_full"]
        # The positions in the bank of the producers known before, and of those of the batch (-1: none).
        moved, now_at = bank.find(*before), bank.find(*names)
        epochs = np.full(len(bank), NO_EPOCH, np.int64)
        epochs[moved] = known_epochs
        own = np.flatnonzero(now_at >= 0)
        highest = np.maximum.reduceat(rows.previous, np.flatnonzero(first))
        epochs[now_at[own]] = np.maximum(epochs[now_at[own]], highest[own])
        digests = Digests.none()
        if entries is not None:
            counts, (sequence, digest) = entries.lists["digests"]
            digests = Digests(np.repeat(moved, counts), sequence, digest)
        if rows.more:
            contents = Digests(now_at[rank], rows.number, rows.more[0])
            conflicts, stored = contradictions(contents, judged, digests)
            judged[conflicts] = CODES["conflict"]
            stored = digests.and_then(stored)
            stored = stored.take(np.argsort(stored.owner, kind="stable"))
            after = np.searchsorted(stored.owner, stored.owner, "right") - np.arange(len(stored.owner))
            digests = stored.take(after <= self.digests_max)
        else:
            digests = digests.take(np.argsort(digests.owner, kind="stable"))
        counts = np.bincount(digests.owner, minlength=len(bank)).astype(np.int64)
        remember(bucket, bank, {"epoch": epochs}, {"digests": ItemLists(counts, (digests.sequence, digests.digest))})
        return judged

    def compacted(
        self, table: str, records: KeyRecords, figures: dict[str, int], options: MemoryOptions, now_ms: int
    ) -> KeyRecords:
        if "runs" not in records.lists:
            return without_idle(records, figures, options, now_ms)
        counters = counters_of(records)
        figures["gaps"] -= len(counters.missing().owner)
        give_up_idle(records, counters, options, now_ms)
        figures["gaps"] += len(counters.missing().owner)
        lists = {**records.lists, "runs": listed(counters.runs, len(records.key))}
        return records._replace(values={**records.values, "forgotten": counters.forgotten}, lists=lists)

    def meaning(self, df: DataFrame, options: MemoryOptions) -> Meaning:
        return {
            "engine": self.name,
            "state": FORMAT,
            **of_columns(df, self.columns.named),
            "memory": self.memory,
            "jump_max": "off" if self.jump_max is None else self.jump_max,
            "buckets": options.buckets,
        }

    def missing(self, firsts: DataFrame) -> DataFrame:
        """With memory "gaps", the ranges between neighbours; with "highest", holes mean nothing."""
        missing = missing_sequences(firsts, self.columns)
        return missing if self.memory == "gaps" else missing.limit(0)

    def missing_messages(self, ranges: DataFrame) -> Column:
        _, lower, _, upper = RANGE_ENDS
        return F.sum(F.col(upper) - F.coalesce(F.col(lower), F.lit(-1)))

    def named_gaps(self, rows: DataFrame, gaps: DataFrame) -> DataFrame:
        missing = named_sequences(rows, self.columns, gaps)
        return missing if self.memory == "gaps" else missing.limit(0)

    def note_rules(self, df: DataFrame) -> NoteRules:
        order = self.subject(df).arrival
        return NoteRules(
            answers=self.answers,
            claims="one_below" if self.memory == "gaps" else None,
            restarts=self.columns.time is not None,
            is_floor_open=True,
            ms_bits=0,
            is_time=False,
            arrival=None if order is None else unit_of(df, order),
        )

    def cannot_tell(self, tally: Tally) -> Sequence[Untold]:
        if restarts := tally.count(*A.RESTARTED):
            many = f"the {restarts:,} restarts of counters" if restarts > 1 else "the restart of a counter"
            return (Untold("restarts", f"what was lost around {many}: the last messages before, the first ones after"),)
        if self.memory == "gaps":
            return ()
        return (Untold("lost", 'what was lost: with memory = "highest" holes mean nothing', "memory", "gaps"),)

    def doubts(self, rows: DataFrame, tally: Tally) -> Sequence[Untold]:
        """Whether counters seem to restart although no ``time`` is given; only checked if there are repeats.

        Unlike a late copy, a restart falls back to the beginning of the sequence while the time rises.
        """
        names, repeats = self.columns, tally.count(Verdict.REPEAT) + tally.count(*A.CONFLICT)
        if names.time is not None or names.epoch is not None or not repeats:
            return ()
        looks, own_names = [], {*names.producer, names.sequence}
        for name in [name for name in rows.columns if might_be_time(rows, name) and name not in own_names][:LOOKS_MAX]:
            own, falls, anew, producers = anew_by_time(rows, replace(names, time=name), tally.count(Verdict.FIRST))
            if 2 * own >= repeats and 0 < falls <= 2 * anew:
                looks.append((own, name, anew, producers))
        if not looks:
            return ()
        own, name, anew, producers = min(looks)  # the time that most copies share
        many = f"{anew:,} times in {producers:,} producers"
        text = f"{own:,} of the {repeats:,} repeats have a {name!r} of their own, and {many} the sequence begins anew"
        return (Untold("copies", f"whether counters restart: {text} while {name!r} rises", "time", name),)

    def subject(self, rows: DataFrame) -> Subject:
        sequence, order, time = self.columns.sequence, self.columns.order, self.columns.time
        timed = order is not None and isinstance(rows.schema[order].dataType, TIME)
        numbers = (sequence,) if time is None else (sequence, time)
        return Subject(
            key=self.key,
            identity=Identity(names=self.key, numbers=numbers),
            message=tuple(name for name in numbers if name not in self.key),
            number=sequence,
            least=0,
            order=order,
            axis=time or order,
            axis_is_time=timed or time is not None,
            arrival=order if timed else None,
            no_arrival="no time of arrival: judge.order must be a column of timestamps",
        )
