"""``df.transform(judge_receptions(...))``: every reception of a radio frame gets its verdict, reason and status.

Level 1 of ADR 007 over stored receptions, in event time: of all stations that heard a frame, and of all its copies
within the expiry, one reception counts. The expiry is exact, to the millisecond, whatever the order in which the rows
are read; no watermark decides anything. And the frame that a device had counted last is known beyond the expiry, for as
long as no other one of that device is counted; so is each join request, for ever (``strict_adr``: they are not).

The rows of a device meet in one task and are judged there by time; what crosses to Python are eight integers per row,
and the wide row stays in the JVM (see `judge`, which does it for chains). Where no device is named, and of join
requests, the rows of a frame do, and the same frame is then a repeat for ever.

Rows of one frame and one millisecond are judged in an order that is fixed, and says nothing: by hashes of the station
and of all else that the row holds.

Level 1 of lorawan as a guest of the stateful host: a bank of frames per bucket.

Which columns of a table hold a reception: the frame, the station that heard it, and when it did.

``judged.transform(merge_uplinks)``: one row per uplink, with all who heard it and the best of them.

An uplink is what a frame's FIRST and its REPEATs are together, also those that came after the expiry
(``counted_before``). Its window begins at each FIRST: a frame that counts again is a second uplink of the same frame,
with ``window`` 2. What was rejected is no uplink; what is
UNSURE is kept with the window that it falls into, or the first.

Cost: one shuffle by frame. All receptions of one frame must fit into the memory of a task.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.lorawan.columns import (
    CODES,
    EXPIRY_MS,
    FORMAT,
    LATE_MS,
    STRICT_FORMAT,
    TIME_MS_MAX,
    ColumnarStations,
    FrameBank,
    ReceptionArrays,
    Windows,
    refused,
)
from onefold.lorawan.rules import ANSWERS, Status, Strategy
from onefold.spark.columns import CORRUPT, check_columns, milliseconds, quoted, readings, refuse_range_ends
from onefold.spark.host import (
    BUCKETS,
    REASON,
    ROWS_IN_MEMORY_MAX,
    VERDICT,
    Codes,
    Hosted,
    Int64s,
    Integers,
    KeyColumns,
    Options,
    Transform,
    Watch,
    chains,
    judge_partition,
    order,
    prepare,
    tie,
    with_verdict,
)
from onefold.spark.meaning import Meaning, of_columns

AHEAD_MS_MAX: Final = 900_000
"""A quarter of an hour: more than clocks that are set at all are off. What is further ahead of the batch than that is
no time: one such row would age all that is remembered."""


@dataclass(frozen=True, slots=True)
class ReceptionFold:
    """Puts the rows of a bucket in the order of judgement, and shows them to the bank."""

    bank: FrameBank

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row, whatever the order in which the rows come; ``now_ms``: when the batch began."""
        columns = KeyColumns.of(integers)
        codes = np.where(columns.number < 0, -1 - columns.number, CODES["bad_time"]).astype(np.int8)
        good = np.flatnonzero((columns.number >= 0) & (columns.arrival <= now_ms + AHEAD_MS_MAX))
        columns = columns.take(good)
        turn = np.empty(len(good), np.int64)
        turn[order(chains(columns), columns)] = np.arange(len(good))
        chain, chain_check, time, join, station, tie, key, key_check = columns.flat
        by_frame = KeyColumns(key, key_check, time, join, station, tie)
        rows = order(chains(by_frame), by_frame)
        receptions = ReceptionArrays(key, key_check, station, time, join != 0, chain, chain_check, turn)
        codes[good[rows]] = self.bank.judge(receptions.take(rows))
        return codes

    def snapshot(self) -> bytes:
        """The memory of the bank."""
        return self.bank.snapshot()

    def figures(self) -> dict[str, int]:
        """What there is to watch."""
        return {"keys": len(self.bank), "gaps": 0}


@dataclass(frozen=True, slots=True)
class ResumeReceptions:
    """Opens the bank of a bucket with these settings."""

    windows: Windows
    late_ms: int
    frames_max: int | None
    strict_adr: bool = False

    def __call__(self, blob: bytes | None) -> ReceptionFold:
        """The bank as the last batch left it; None: an empty one."""
        bank = FrameBank(self.windows, late_ms=self.late_ms, frames_max=self.frames_max, strict_adr=self.strict_adr)
        return ReceptionFold(bank if blob is None else bank.resume(blob))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceptionColumns:
    """The names of the columns; None says that there is no such column. They are by default those of `receptions`.

    >>> ReceptionColumns(frame=("dev_addr", "fcnt", "mic"), station="gateway", kind=None).frame
    ('dev_addr', 'fcnt', 'mic')
    """

    frame: tuple[str, ...] = ("frame",)
    """Together they name the frame: equal for every reception of one transmission, and of its exact copies. Plain
    values of any type, not arrays, structs or maps."""
    station: str = "station"
    time: str = "time_ms"
    """When it was heard, in milliseconds since 1970 or as a time: the order of judgement."""
    kind: str | None = "kind"
    """"data" or "join"; null is data. None: all are data."""
    device: tuple[str, ...] = ("device",)
    """Together they name the device: the same one for every reception of a frame. The frame that it had counted last
    is known beyond the expiry, and its counters are looked through for what is missing. Empty: they are not, and each
    frame is known for ever."""
    fcnt: str | None = "fcnt"
    """The device's counter, of 16 or 32 bits. None: nothing can be known to be missing."""

    def __post_init__(self) -> None:
        if not self.frame:
            raise Misuse("frame is empty, must name at least one column", frame=self.frame)

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is there."""
        singles = [("station", self.station), ("time", self.time), ("kind", self.kind), ("fcnt", self.fcnt)]
        return [
            *(("frame", name) for name in self.frame),
            *((role, name) for role, name in singles if name is not None),
            *(("device", name) for name in self.device),
        ]

    def check(self, df: DataFrame) -> None:
        """Raise `Misuse` that names the column if one is missing or of a type that cannot be what it should be."""
        plain = ("frame", "station", "kind", "device")
        check_columns(df, self.named, plain=plain, required=("frame", "station", "time", "device"), times=("time",))
        refuse_range_ends(self.device, "device")


STATUS = "status"

_JUDGED_BY = (2, 3, 4, 6, 7)  # where time, join, station and both halves of the frame stand among what crosses
_LONG_MAX = (1 << 63) - 1


def judge_receptions(
    columns: ReceptionColumns | None = None,
    *,
    expiry_ms: int = EXPIRY_MS,
    sliding: bool = True,
    strategy: str = "none",
    echo_ms: int = 0,
    strict_adr: bool = False,
    partitions: int | None = None,
    rows_in_memory_max: int = ROWS_IN_MEMORY_MAX,
    late_ms: int = LATE_MS,
    state_rows_max: int | None = None,
    buckets: int = BUCKETS,
    watch: Watch | None = None,
) -> Transform:
    """A step that adds ``verdict``, ``reason`` and ``status`` to a table or a stream of receptions.

    ``sliding``: whether every sighting begins the wait of ``expiry_ms`` anew, or only the first. ``strategy`` is that
    of the devices, and decides on the status of what another station heard too. ``echo_ms``: a station that has a frame
    again sooner than this heard one transmission twice. ``strict_adr``: what is expired is new, as in the ADR, also the
    last frame of a device and a join request. The rows come out in no particular order.

    Of tables only: ``partitions``, how many tasks judge (None: by the size of the input), and ``rows_in_memory_max``.

    Of streams only: ``late_ms``, how far behind the newest a row may be and still be compared with all before it;
    ``state_rows_max``, how many frames a bucket remembers, beyond which new ones are UNSURE; ``buckets``, into how many
    parts the state is split; ``watch``, which is told the figures of each bucket.
    """
    names = columns or ReceptionColumns()
    windows = Windows(expiry_ms=expiry_ms, sliding=sliding, echo_ms=echo_ms)
    if strategy not in list(Strategy):
        raise Misuse(f"strategy is {strategy!r}, must be {', '.join(Strategy)}", strategy=strategy)
    options = Options(
        partitions=partitions,
        rows_in_memory_max=rows_in_memory_max,
        idle_ms=None,
        state_rows_max=state_rows_max,
        buckets=buckets,
        watch=watch,
    )
    resume = ResumeReceptions(windows, late_ms, state_rows_max, strict_adr)
    resume(None)  # refuses misuse now, not in a task
    judge = ReceptionsTask(windows, rows_in_memory_max, strict_adr)

    def receptions_judged(df: DataFrame) -> DataFrame:
        names.check(df)
        for name in df.columns:
            if name.lower() == STATUS:
                raise Misuse(f"there is a column {name!r} already: rename it, the judge writes one", column=name)
        prepare(df, options)
        narrow = integers(df, names, strict_adr=strict_adr)
        meaning = receptions_meaning(df, names, windows=windows, strict_adr=strict_adr, buckets=buckets)
        judged = with_verdict(df, narrow.columns[:1], Hosted(narrow, resume, ANSWERS, meaning), judge, options)
        return judged.withColumn(STATUS, status(Strategy(strategy)))

    return receptions_judged


def receptions_meaning(
    df: DataFrame, names: ReceptionColumns, *, windows: Windows, strict_adr: bool, buckets: int
) -> Meaning:
    """What the memory of a stream of receptions means."""
    return {
        "engine": "lorawan",
        "state": STRICT_FORMAT if strict_adr else FORMAT,
        **of_columns(df, names.named),
        "expiry": "sliding" if windows.sliding else "fixed",
        "expiry_ms": windows.expiry_ms,
        "echo_ms": windows.echo_ms,
        "strict_adr": strict_adr,
        "buckets": buckets,
    }


@dataclass(frozen=True, slots=True)
class ReceptionsTask:
    """Judges a partition of a table, in a task."""

    windows: Windows
    rows_in_memory_max: int
    strict_adr: bool

    def __call__(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        stations = ColumnarStations(self.windows, strict_adr=self.strict_adr)
        return judge_partition(parts, stations.judge, self.rows_in_memory_max, wanted=_JUDGED_BY)


def status(strategy: Strategy) -> Column:
    """The status of ADR 007 that a reason comes to; null of what was rejected."""
    heard_too = Status.DUPLICATE if strategy == Strategy.DROP else Status.SOFT_DUPLICATE
    by_reason = {
        "other_station": heard_too,
        "echoed": heard_too,
        "resubmitted": Status.RESUBMISSION,
        "counted_before": Status.RESUBMISSION,
    }
    repeat = F.lit(str(Status.DUPLICATE))
    for reason, known in by_reason.items():
        repeat = F.when(F.col(REASON) == reason, F.lit(str(known))).otherwise(repeat)
    counts = F.col(VERDICT).isin("FIRST", "UNSURE")  # what cannot be known is not kept back as a duplicate
    return F.when(counts, F.lit(str(Status.NOT_DUPLICATE))).when(F.col(VERDICT) == "REPEAT", repeat)


def integers(df: DataFrame, names: ReceptionColumns, *, strict_adr: bool = False) -> Integers:
    """What the judgement needs of a row, as longs without nulls: chain, time, whether it joins, station, tie, frame.

    The chain is the device; it is the frame where that is not named, of join requests, and by ``strict_adr``.
    """
    key, device = ([F.col(quoted(name)) for name in named] for named in (names.frame, names.device))
    kind = F.lit(None).cast("string") if names.kind is None else F.col(quoted(names.kind)).cast("string")
    read = readings(df, [names.time])
    time = milliseconds(df.withColumns(read) if read else df, names.time)
    frame: tuple[Column, ...] = (F.xxhash64(*key), F.xxhash64(F.lit(1), *key))
    chain = frame
    if device and not strict_adr:
        named = F.coalesce(kind != "join", F.lit(True))
        for column in device:
            named = named & column.isNotNull()
        by_device = F.xxhash64(F.lit(2), *device), F.xxhash64(F.lit(3), *device)
        chain = tuple(F.when(named, of).otherwise(by) for of, by in zip(by_device, frame, strict=True))
    columns = (
        *chain,
        F.coalesce(time, F.lit(-1).cast("long")),
        F.when(kind == "join", 1).otherwise(0).cast("long"),
        _judged(df, names, kind, time),
        tie(df, {*names.frame, names.station}),
        *frame,
    )
    return Integers(columns, read)


def _judged(df: DataFrame, names: ReceptionColumns, kind: Column, time: Column) -> Column:
    """A hash of the station, of 63 bits; negative where the row is refused."""
    malformed = F.coalesce(~kind.isin("data", "join"), F.lit(False))
    if CORRUPT in df.columns:
        malformed = malformed | F.col(CORRUPT).isNotNull()
    station = F.col(quoted(names.station))
    nameless = station.isNull()
    for name in names.frame:
        nameless = nameless | F.col(quoted(name)).isNull()
    bad_time = time.isNull() | (time < 0) | (time > TIME_MS_MAX)
    judged = F.xxhash64(station).bitwiseAND(F.lit(_LONG_MAX))
    for reason, condition in (("bad_time", bad_time), ("null_key", nameless), ("malformed", malformed)):
        judged = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(judged)
    return judged


WINDOW: Final = "window"


def merge_uplinks(judged: DataFrame) -> DataFrame:
    """The uplinks of judged receptions (`receptions`, then `judge_receptions`), in no particular order.

    ``first_ms`` and ``last_ms`` are the times of the first and last reception, ``receptions`` all of them, the FIRST
    before the others and those by time,
    ``stations`` how many different ones heard it, ``best_station`` the one with the highest SNR, then RSSI.
    """
    heard = ("station", "time_ms", "own_time", "rssi", "snr", "reason")
    # Of several in one millisecond, any may be the FIRST; and one that is UNSURE may be of before it.
    order = (F.col(VERDICT) != "FIRST").alias("later"), "time_ms"
    in_order = F.array_sort(F.collect_list(F.struct(*order, *(name for name in heard if name != "time_ms"))))
    merged = (
        with_window(judged)
        .where(F.col(WINDOW).isNotNull())
        .groupBy("frame", WINDOW)
        .agg(
            *(F.max(name).alias(name) for name in ("kind", "device", "fcnt", "confirmed", "payload")),
            F.min("time_ms").alias("first_ms"),
            F.max("time_ms").alias("last_ms"),
            F.min("received_ms").alias("received_ms"),
            in_order.alias("receptions"),
            F.count_distinct("station").alias("stations"),
            F.max(strength()).alias("best"),
        )
    )
    own_order = F.transform("receptions", lambda one: F.struct(*(one[name].alias(name) for name in heard)))
    best = [F.col(f"best.{name}").alias(f"best_{name}") for name in ("station", "snr", "rssi")]
    names = ("frame", WINDOW, "kind", "device", "fcnt", "confirmed", "payload", "first_ms", "last_ms", "received_ms")
    return merged.select(*names, "stations", own_order.alias("receptions"), *best)


def with_window(judged: DataFrame) -> DataFrame:
    """The receptions with ``window``: the how-manieth uplink of its frame each belongs to, of those that do."""
    first = F.col(VERDICT) == "FIRST"
    # Of several in one millisecond, the FIRST was judged first.
    in_time = Window.partitionBy("frame").orderBy("time_ms", first.desc())
    number = F.sum(first.cast("int")).over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return judged.withColumn(WINDOW, F.when(F.col(VERDICT) != "REJECT", F.greatest(number, F.lit(1))))


def strength() -> Column:
    """What orders receptions by how well they were heard: SNR, then RSSI, then which was earlier."""
    return F.struct("snr", "rssi", (-F.col("time_ms")).alias("sooner"), "station")
