"""``advise_window(df)``: how long must copies be remembered, what does that cost, and which copies are still missed?

After a window an id is forgotten, and a copy counts again. The right window follows from the lags of the copies in the
data, which are measured here.

    window      an id is remembered for this long after its first row; a copy whose lag is at most that is caught. A
                later copy begins a window of its own, so the leaks given here are an upper bound
    watermark   the same with Spark's ``dropDuplicatesWithinWatermark``, where a copy must come *less* than the delay
                after its first, and rows that are late by the delay are dropped silently. Spark forgets an id when its
                watermark, itself a delay behind, has passed the end of the window: it remembers for twice as long
    intervals   the memory of `judge_chains`: one entry per chain and one per gap, whatever the lags are

How each is measured, exactly and with only counts on the driver:

    lags        the rows of an id meet in one task, in one shuffle of integers (a hash of the id of 128 bits, the time,
                the order), and are sorted there. An id with a million copies is a longer task, not a larger one: sorts
                spill. A self join would shuffle the rows twice
    lateness    how far the time of a row lies behind the latest time before it, which the delay of a watermark must
                cover. A running maximum would be one task; so the order is cut into slots, one aggregate gives the
                highest time of each, and within a slot the rows are sorted
    quantiles   values are counted in buckets by their first twelve binary digits, as in floating point; the bucket of
                the wanted rank again in 65,536 finer ones, until it is a single value: one pass up to 4 s in
                milliseconds, two up to three days, at most five. At most a megabyte for each
    peaks       an id is remembered from its first row on, so the peak is the largest number of firsts in any stretch of
                the window's length. Firsts are counted by slots of a 64th of the shortest window, or wider to stay
                below a million slots, and rounded up to whole slots: never too small

Cost: two passes over the narrow columns, one shuffle of integers, and a few passes over one number per row, which is
kept on the disks of Spark's storage meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from fractions import Fraction
from time import monotonic
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.ids.rules import NAME_BYTES
from onefold.spark.columns import (
    CORRUPT,
    OURS,
    ChainColumns,
    Names,
    RoleColumns,
    in_order,
    listed,
    milliseconds,
    packed,
    quoted,
    readings,
)
from onefold.spark.dialect import from_arrow, to_arrow
from onefold.spark.fingerprints import hashable, null_masks
from onefold.spark.gaps import missing_ranges
from onefold.spark.notes import DIGITS
from onefold.spark.session import cores

FIRST, LAG = "first_ms", "lag_ms"
"""Columns of the table of lags: the time of an id's first row, null for a copy; the lag of a copy, null for a first."""

TIME_MIN, TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds. Micro- and nanoseconds of our days lie beyond."""

UNUSABLE: Final = ("malformed", "no_id", "no_time", "time_out_of_range", "no_order")
"""Why a row cannot be used: it could not be read; a key column is null; time or order is neither number nor time."""

TASKS_PER_CORE: Final = 4
"""How many partitions per core a persisted table has: adaptive execution does not coalesce these."""

ID, AT, ORDER = ("_onefold_a", "_onefold_b"), "_onefold_at", "_onefold_order"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowColumns(RoleColumns):
    """The names of the columns that lags are measured by.

    >>> WindowColumns(key=("device", "counter"), time="received").named
    [('key', 'device'), ('key', 'counter'), ('time', 'received')]
    """

    key: tuple[str, ...] | None = None
    """Together they are the id of a message. None: two rows are copies if all columns but time and order are equal."""
    time: str = "arrival"
    """The clock that the window is measured by: whole milliseconds, or a time."""
    order: str | None = None
    """The column that says which row came first, such as an offset. None: the time."""

    plain = ("key",)
    times = ("time", "order")
    required = ("key", "time", "order")

    def __post_init__(self) -> None:
        if self.key is not None and not self.key:
            raise Misuse("key is empty, must name at least one column, or be None: the whole row", key=self.key)
        roles = [("key", name) for name in self.key or ()] + [("order", self.order)]
        for role, name in roles:
            if name == self.time:
                raise Misuse(f"column {name!r} is the time, it cannot be the {role} too", column=name)

    def id(self, df: DataFrame) -> tuple[str, ...]:
        if self.key is not None:
            return self.key
        others = (self.time, self.order, CORRUPT)
        rest = tuple(name for name in df.columns if name not in others and not name.lower().startswith(OURS))
        if not rest:
            raise Misuse(f"there is no column beside {self.time!r} to identify a copy by", column=self.time)
        return rest


def why_unusable(df: DataFrame, columns: WindowColumns) -> Column:
    """Why a row cannot be used, one of `UNUSABLE`; null if it can."""
    time = milliseconds(df, columns.time)
    no = F.lit(False)
    key_is_null = [F.col(quoted(name)).isNull() for name in columns.key or ()]
    conditions = {
        "malformed": F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else no,
        "no_id": F.greatest(*key_is_null, no) if key_is_null else no,
        "no_time": time.isNull(),
        "time_out_of_range": ~time.between(TIME_MIN, TIME_MAX),
        "no_order": no if columns.order is None else in_order(df, columns.order).isNull(),
    }
    assert tuple(conditions) == UNUSABLE
    why = F.lit(None).cast("string")
    for reason, condition in reversed(conditions.items()):
        why = F.when(condition, F.lit(reason)).otherwise(why)
    return why


def usable_rows(df: DataFrame, columns: WindowColumns) -> dict[str, Any]:
    """How many rows there are, how many cannot be used and why, and the time span of the others; one pass."""
    why = why_unusable(df, columns)
    time = F.when(why.isNull(), milliseconds(df, columns.time))
    sample = F.first(F.col(quoted(columns.time)).cast("string"), ignorenulls=True)
    reasons = [F.count_if(why == reason) for reason in UNUSABLE]
    row = df.agg(F.count(F.lit(1)), F.min(time), F.max(time), sample, *reasons).collect()[0]
    rows, low, high, example, *counts = row
    unusable = {reason: count for reason, count in zip(UNUSABLE, counts, strict=True) if count}
    if rows and low is None:
        why_not = ", ".join(f"{count:,} {reason}" for reason, count in unusable.items())
        raise Misuse(
            f"none of {rows:,} rows can be used: {why_not}; {columns.time!r} holds {example!r}", column=columns.time
        )
    return {"rows": rows, "unusable": unusable, "from_ms": low or 0, "to_ms": high or 0}


def timed(df: DataFrame, columns: WindowColumns) -> DataFrame:
    """The usable rows as longs: the hash of their id, their time and their order."""
    values = {name: F.col(quoted(name)) for name in columns.id(df)}
    plain = [hashable(value, df.schema[name].dataType) for name, value in values.items()]
    nulls = null_masks(values.values()) if columns.key is None else []  # key columns are not null here
    at = milliseconds(df, columns.time)
    return df.where(why_unusable(df, columns).isNull()).select(
        F.xxhash64(*nulls, *plain).alias(ID[0]),
        F.xxhash64(F.lit(1), *nulls, *plain).alias(ID[1]),
        at.alias(AT),
        *([] if columns.order is None else [in_order(df, columns.order).alias(ORDER)]),
    )


def lags(rows: DataFrame) -> DataFrame:
    """From `timed` rows: `FIRST` of the first row of each id, and `LAG` of every other.

    A lag is below 0 only if the order is not that of the times: the copy's clock is behind.
    """
    by_id = Window.partitionBy(*ID).orderBy(*([ORDER] if ORDER in rows.columns else []), AT)
    number = F.row_number().over(by_id)
    first = F.first(AT).over(by_id.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    numbered = rows.select(AT, number.alias("number"), first.alias("first"))
    is_first = F.col("number") == 1
    return numbered.select(
        F.when(is_first, F.col(AT)).alias(FIRST), F.when(~is_first, F.col(AT) - F.col("first")).alias(LAG)
    )


@contextmanager
def stored(table: DataFrame) -> Iterator[DataFrame]:
    """The table, computed once and kept on the disks of Spark's storage within the context."""
    parts = TASKS_PER_CORE * cores(table.sparkSession)
    on_disk = table.coalesce(parts).persist(StorageLevel.DISK_ONLY)
    try:
        yield on_disk
    finally:
        on_disk.unpersist()


LATE: Final = "late_ms"
APART: Final = "apart"

SLOTS: Final = 4_096
_SLOT, _BEFORE = "slot", "before"


def behind(rows: DataFrame) -> DataFrame:
    """From `timed` rows with an order, for ids judged by a time that copies share: `FIRST` of the first row of each id;
    `LAG` of every copy, how far its time lies behind the latest before it; `LATE` of all rows; and whether a copy is
    `APART`, that is, its time differs from that of its first.
    """
    by_id = Window.partitionBy(*ID).orderBy(ORDER, AT)
    first = F.first(AT).over(by_id.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    number = F.row_number().over(by_id)
    late = lateness(rows.select(AT, ORDER, (number == 1).alias("is_first"), (first != F.col(AT)).alias(APART)))
    is_first = F.col("is_first")
    cells = F.when(is_first, F.col(AT)).alias(FIRST), F.when(~is_first, F.col(LATE)).alias(LAG)
    return late.select(*cells, LATE, APART)


def lateness(rows: DataFrame) -> DataFrame:
    """From `timed` rows with an order, at least one: `LATE` of each, 0 if no row before it has a later time, and their
    other columns.
    """
    low, high = rows.agg(F.min(ORDER), F.max(ORDER)).collect()[0]
    # As floats, which do not overflow. Orders that round to the same float fall into the same slot.
    slot = F.floor((F.col(ORDER).cast("double") - F.lit(float(low))) / F.lit((high - low) // SLOTS + 1.0))
    slotted = rows.withColumn(_SLOT, slot)
    slots = to_arrow(slotted.groupBy(_SLOT).agg(F.max(AT).alias(AT)).orderBy(_SLOT))
    highest = np.maximum.accumulate(slots.column(AT).to_numpy())
    before = pa.table({_SLOT: slots.column(_SLOT), _BEFORE: pa.array([None, *highest[:-1].tolist()], pa.int64())})
    earlier = F.broadcast(from_arrow(rows.sparkSession, before))
    in_slot = Window.partitionBy(_SLOT).orderBy(ORDER, AT).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    latest = F.greatest(F.max(AT).over(in_slot), F.col(_BEFORE))
    return slotted.join(earlier, _SLOT).select(*rows.columns, (latest - F.col(AT)).alias(LATE))


FINER: Final = 16
"""The first pass buckets values by ``DIGITS`` binary digits, to 1 in 2,048; each further pass by this many more."""

_LOWER, _COUNT = "lower", "count"


class Quantile(NamedTuple):
    """The smallest value such that at least a share of all values is at most that; and the number of these values."""

    value: int
    upto: int


class _Bucket(NamedTuple):
    """The bucket of a rank: 2^shift values from ``lower`` on; how many values are below it, and in it."""

    lower: int
    shift: int
    below: int
    here: int

    @classmethod
    def of(
        cls, rank: int, lower: NDArray[np.int64], count: NDArray[np.int64], *, below: int = 0, shift: int | None = None
    ) -> _Bucket:
        """The bucket that a rank falls into; ``shift``: that of the bucket; None, in the first pass: by its size."""
        ends = below + np.cumsum(count)
        at = int(np.searchsorted(ends, rank))
        start, here = int(lower[at]), int(count[at])
        digits = max(0, start.bit_length() - DIGITS) if shift is None else shift
        return cls(start, digits, int(ends[at]) - here, here)


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The distribution of values. Values below 0 count as 0, and are also counted separately."""

    values: DataFrame
    name: str
    lower: NDArray[np.int64]
    """The lower ends of the buckets, ascending."""
    count: NDArray[np.int64]
    nulls: int
    negative: int
    least: int
    """The smallest value, if it is below 0; else 0."""
    most: int
    """The largest value, or 0."""

    @classmethod
    def of(cls, values: DataFrame, name: str) -> Distribution:
        """Count the values of a column, in one pass."""
        value = F.greatest(F.col(name), F.lit(0).cast("long"))
        bucket = _cut(value, F.greatest(F.length(F.bin(value)) - DIGITS, F.lit(0)))
        by_bucket = values.groupBy(F.when(F.col(name).isNotNull(), bucket).alias(_LOWER))  # greatest(null, 0) is 0
        cells = F.count(F.lit(1)).alias(_COUNT), F.count_if(F.col(name) < 0), F.min(name), F.max(name)
        counts = to_arrow(by_bucket.agg(*cells))
        rows = counts.filter(counts.column(_LOWER).is_valid()).sort_by(_LOWER)
        lower, count, negative, least, most = (column.to_numpy() for column in rows.columns)
        return cls(
            values=values,
            name=name,
            lower=lower,
            count=count,
            nulls=sum(counts.column(_COUNT).to_pylist()) - int(count.sum()),
            negative=int(negative.sum()),
            least=int(least.min(initial=0)),
            most=int(most.max(initial=0)),
        )

    @property
    def total(self) -> int:
        return int(self.count.sum())

    def quantiles(self, shares: Iterable[float]) -> dict[float, Quantile]:
        """The exact quantiles of these shares, each above 0 and at most 1; nothing if there is no value."""
        ranks = {share: rank_of(share, self.total) for share in shares} if self.total else {}
        buckets = {rank: _Bucket.of(rank, self.lower, self.count) for rank in set(ranks.values())}
        value = F.greatest(F.col(self.name), F.lit(0).cast("long"))
        while coarse := {bucket.lower: bucket.shift for bucket in buckets.values() if bucket.shift}:
            finer = F.lit(None).cast("long")
            for start, shift in coarse.items():
                is_inside = F.col(self.name).isNotNull() & value.between(start, start + (1 << shift) - 1)
                finer = F.when(is_inside, _cut(value, F.lit(max(0, shift - FINER)))).otherwise(finer)
            inside = self.values.select(finer.alias(_LOWER)).where(F.col(_LOWER).isNotNull())
            counts = to_arrow(inside.groupBy(_LOWER).agg(F.count(F.lit(1)).alias(_COUNT))).sort_by(_LOWER)
            lower, count = (column.to_numpy() for column in counts.columns)
            for rank, (start, shift, below, _) in buckets.items():
                if shift:
                    own = (lower >= start) & (lower < start + (1 << shift))
                    digits = max(0, shift - FINER)
                    buckets[rank] = _Bucket.of(rank, lower[own], count[own], below=below, shift=digits)
        return {share: Quantile(buckets[r].lower, buckets[r].below + buckets[r].here) for share, r in ranks.items()}

    def to_dict(self, quantiles: Mapping[float, Quantile]) -> dict[str, Any]:
        """Count, maximum, quantiles and bins, for JSON."""
        values = {f"{share:.15g}": quantile.value for share, quantile in sorted(quantiles.items())}
        return {
            "count": self.total,
            "most_ms": max(0, self.most),
            "quantiles": values,
            "bins": bins(self.lower, self.count),
        }


def bins(lower: NDArray[np.int64], count: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """How many values there are from one power of two up to the next: (from, below, count)."""
    counts = Counter[int]()
    for start, here in zip(lower.tolist(), count.tolist(), strict=True):
        counts[start.bit_length()] += here
    return [(1 << bits >> 1, 1 << bits, here) for bits, here in sorted(counts.items())]


def rank_of(share: float, total: int) -> int:
    """The rank, from 1, of the quantile of this share.

    >>> rank_of(0.99, 200), rank_of(0.07, 100), rank_of(0.5, 3), rank_of(1, 5)
    (198, 7, 2, 5)
    """
    # By the decimal text of the number: as floats, 0.07 * 100 is 7.000000000000001.
    exact = Fraction(str(share)) * total
    return max(1, -(-exact.numerator // exact.denominator))


def _cut(value: Column, digits: Column) -> Column:
    shifted = F.call_function("shiftright", value, digits.cast("int"))
    return F.call_function("shiftleft", shifted, digits.cast("int"))


ID_BYTES: Final = 24
"""The minimum: a hash of 16 bytes and a time of 8. Spark's RocksDB takes about 90 with its overhead."""
ID_SIZES: Final = {"ids": NAME_BYTES, None: ID_BYTES}
"""By engine."""
GAP_BYTES: Final = 16
"""The two ends of a gap, packed."""

SLOTS_PER_WINDOW: Final = 64
SLOTS_MAX: Final = 1 << 20
WIDER: Final = 16


class Peaks(NamedTuple):
    """The most ids that each window has to remember, and the width of the slots; 1: the numbers are exact."""

    ids: dict[int, int]
    slot_ms: int


def peaks(table: DataFrame, windows_ms: Sequence[int], *, slots_max: int = SLOTS_MAX) -> Peaks:
    """The peaks for windows of these lengths, from a table of `lags`."""
    firsts = table.where(F.col(FIRST).isNotNull())
    slot_ms = max(1, min(windows_ms) // SLOTS_PER_WINDOW)
    while True:
        slots = firsts.groupBy((F.col(FIRST) - F.pmod(F.col(FIRST), F.lit(slot_ms))).alias("slot")).count()
        firsts_by_slot = to_arrow(slots.limit(slots_max + 1))
        if firsts_by_slot.num_rows <= slots_max:
            break
        slot_ms *= WIDER
    starts, counts = (column.to_numpy() for column in firsts_by_slot.sort_by("slot").columns)
    return Peaks({ms: busiest(starts, counts, ms, slot_ms) for ms in windows_ms}, slot_ms)


def busiest(starts: NDArray[np.int64], counts: NDArray[np.int64], window_ms: int, slot_ms: int) -> int:
    """The most firsts in the slots that a window can touch, both ends included.

    >>> busiest(np.array([0, 10, 20, 50]), np.array([5, 1, 2, 7]), window_ms=15, slot_ms=10)
    8
    """
    if not len(starts):
        return 0
    reach = -(-window_ms // slot_ms) * slot_ms
    sums = np.concatenate(([0], np.cumsum(counts)))
    since = np.searchsorted(starts, starts - reach)
    return int((sums[1:] - sums[since]).max())


def interval_memory(df: DataFrame, columns: ChainColumns | None) -> Mapping[str, Any]:
    """The size of interval memory for these messages: a head for each chain, and the gaps.

    Without numbers and previous numbers there are no intervals: then the reason.
    """
    if columns is None:
        return {"why_not": "it needs numbered messages: name the columns of chain, number and previous number"}
    if columns.previous_timestamp is None:
        return {"why_not": "it needs messages that name their previous number"}
    columns.check(df)
    sound = df.where(packed(df, columns, None).number >= 0)
    gaps = missing_ranges(sound, columns).count()
    keys = int(sound.agg(F.count_distinct(*(F.col(quoted(name)) for name in columns.key))).collect()[0][0])
    return {"chains": keys, "gaps": gaps, "entries": keys + gaps, "bytes": ID_BYTES * keys + GAP_BYTES * gaps}


FORMAT: Final = 1
SHARES: Final = (0.99, 0.999, 0.9999)
SHARES_MAX: Final = 16
SHOWN: Final = (0.5, 0.9)
"""Quantiles that are always listed beside the requested shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFor:
    """The shortest window that catches a share of the copies."""

    share: float
    window_ms: int
    caught: int
    leaked: int
    leaked_share: float
    """Of all copies."""
    ids: int
    """The most ids that it has to remember at its peak."""
    bytes: int
    """16 bytes per id and 8 for its time; without the overhead of a store."""
    watermark_ms: int
    """The delay of a watermark that catches the same share."""
    watermark_ids: int
    watermark_bytes: int
    unsure: int = 0
    """For ids judged by a shared time: how many firsts are later than the window, which makes them UNSURE."""

    @classmethod
    def of(
        cls, share: float, lag: Quantile, delay_ms: int, copies: int, peak: Peaks, unsure: int = 0,
        id_bytes: int = ID_BYTES,
    ) -> WindowFor:  # fmt: skip
        ids, watermark_ids = peak.ids[lag.value], peak.ids[2 * delay_ms]
        return cls(
            share=share,
            window_ms=lag.value,
            caught=lag.upto,
            leaked=copies - lag.upto,
            leaked_share=(copies - lag.upto) / copies,
            ids=ids,
            bytes=id_bytes * ids,
            watermark_ms=delay_ms,
            watermark_ids=watermark_ids,
            watermark_bytes=ID_BYTES * watermark_ids,
            unsure=unsure,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What was measured, and which window follows from it."""

    key: Sequence[str]
    time: str
    order: str | None
    rows: int
    unusable: Mapping[str, int]
    """Rows that cannot be used, by reason; see `UNUSABLE`."""
    from_ms: int
    to_ms: int
    ids: int
    copies: int
    lags: Mapping[str, Any]
    late: Mapping[str, Any] | None
    """How late rows are; None: unknown without an order."""
    skewed: Mapping[str, int]
    """Copies whose time is before that of their first, although they came later: clocks disagree."""
    windows: Sequence[WindowFor]
    slot_ms: int
    """How finely peaks were counted; 1: exactly."""
    engine: str | None
    """"ids": windows are those of that engine; with an order, by how far a copy is behind the newest time before it."""
    apart: int
    """For ids: copies whose time differs from their first's, which a window by a shared time would not find."""
    id_bytes: int
    intervals: Mapping[str, Any]
    seconds: float

    @property
    def recommended(self) -> WindowFor | None:
        """The window for the largest requested share; None: there are no copies, so none is needed."""
        return max(self.windows, key=lambda window: window.share, default=None)

    def to_dict(self) -> dict[str, Any]:
        best = self.recommended
        return {
            "format": FORMAT,
            **asdict(self),
            "recommended_ms": None if best is None else best.window_ms,
            "all_ids_bytes": self.id_bytes * self.ids,
        }


def advise_window(
    df: DataFrame, *, key: Names | None = None, time: str = "arrival", order: str | None = None,
    shares: Iterable[float] = SHARES, chains: ChainColumns | None = None, say: Callable[[str], None] | None = None,
    engine: Literal["ids"] | None = None,
) -> Advice:  # fmt: skip
    """Measure the lags of the copies in a table, and which windows would catch which share of them.

    ``key``: the columns of a message's id. None: chain and number of ``chains``, else all columns but time and order.
    ``time``: the clock of the window. ``order``: the column that says which row came first if the time does not, such
    as the offset of rows with an event time; with it, lateness is measured too. ``chains``: the columns of numbered
    messages, to compare with interval memory. None: the usual names, if all are there. ``engine``: "ids" measures for
    `judge_ids`; with an ``order``, for its ``time``, which copies share with their first.
    """
    started, say = monotonic(), say or (lambda step: None)
    wanted = sorted(set(shares))
    for share in wanted:
        if not 0 < share <= 1:
            raise Misuse(f"share is {share}, must be above 0 and at most 1", share=share)
    if not 0 < len(wanted) <= SHARES_MAX:
        raise Misuse(f"there are {len(wanted)} shares, must be 1 to {SHARES_MAX}", shares=wanted)
    if chains is None and all(name in df.columns for _, name in ChainColumns(arrival=None).named):
        chains = ChainColumns(arrival=None)
    columns = WindowColumns(key=_key(key, chains), time=time, order=order)
    df, columns = columns.fitted(df)
    say("looking at the columns")
    read = readings(df, (columns.time, columns.order))
    df = df.withColumns(read) if read else df
    usable = usable_rows(df, columns)
    say("measuring lags")
    rows, every = timed(df, columns), (*SHOWN, *wanted)
    by_shared_time = engine == "ids" and order is not None and usable["rows"] > 0
    with stored(behind(rows) if by_shared_time else lags(rows)) as table:
        copies = Distribution.of(table, LAG)
        lag = copies.quantiles(every)
        late, lateness_of = None, {share: Quantile(0, 0) for share in wanted}
        if order is not None and copies.nulls:
            with nullcontext(table) if by_shared_time else stored(lateness(rows)) as late_rows:
                distribution = Distribution.of(late_rows, LATE)
                lateness_of = distribution.quantiles(every)
                late = distribution.to_dict(lateness_of)
        say("counting what must be remembered")
        # The delay must exceed the lag of every copy and the lateness of every row.
        delays = {share: 1 + max(lag[share].value, lateness_of[share].value) for share in wanted if lag}
        lengths = [*(lag[share].value for share in delays), *(2 * delay for delay in delays.values())]
        peak = peaks(table, lengths) if lengths else Peaks({}, 1)
        every_window = [lag[share].value for share in delays]
        apart, *unsure = _beyond(table, every_window) if by_shared_time else [0] * (1 + len(every_window))
    say("comparing with interval memory")
    return Advice(
        key=columns.id(df),
        time=time,
        order=order,
        **usable,
        ids=copies.nulls,
        copies=copies.total,
        lags=copies.to_dict(lag),
        late=late,
        skewed={"copies": copies.negative, "most_ms": max(0, -copies.least)},
        windows=[
            WindowFor.of(share, lag[share], delay, copies.total, peak, late_firsts, ID_SIZES[engine])
            for (share, delay), late_firsts in zip(delays.items(), unsure, strict=True)
        ],
        engine=engine,
        apart=apart,
        id_bytes=ID_SIZES[engine],
        slot_ms=peak.slot_ms,
        intervals=interval_memory(df, chains),
        seconds=round(monotonic() - started, 3),
    )


def _beyond(table: DataFrame, windows_ms: Sequence[int]) -> list[int]:
    """How many copies are `APART`, and how many firsts are later than each window."""
    late = (F.count_if(F.col(FIRST).isNotNull() & (F.col(LATE) > ms)) for ms in windows_ms)
    return [int(count) for count in table.agg(F.count_if(APART), *late).collect()[0]]


def _key(key: Names | None, chains: ChainColumns | None) -> tuple[str, ...] | None:
    if key is not None:
        return tuple(dict.fromkeys(listed(key)))
    if chains is None:
        return None
    return (*chains.key, *(name for name in (chains.timestamp, chains.sequence) if name is not None))
