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

With a memory, a bucket holds a bank of the frames of the last hour or so, rewritten with each batch.

``judged.transform(merge_uplinks)``: one row per uplink, with all who heard it and the best of them. An uplink is what a
frame's FIRST and its REPEATs are together, also those that came after the expiry (``counted_before``). Its window
begins at each FIRST: a frame that counts again is a second uplink of the same frame, with ``window`` 2. What was
rejected is no uplink; what is UNSURE is kept with the window that it falls into, or the first.

Cost: one shuffle by frame. All receptions of one frame must fit into the memory of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, ClassVar, Final

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
from onefold.spark import host
from onefold.spark.columns import CORRUPT, ReceptionColumns, milliseconds, quoted, readings
from onefold.spark.dialect import try_cast
from onefold.spark.engine import AnyShape, Engine, Identity, Named, Subject, named_like
from onefold.spark.host import REASON, VERDICT, Codes, Integers, KeyColumns, MemoryOptions, Transform
from onefold.spark.meaning import Meaning, of_columns
from onefold.spark.memory import BUCKETS, Bucket
from onefold.spark.receptions.counters import missing_counters
from onefold.spark.receptions.reading import TYPES, column_of, not_receptions, receptions, text_of

if TYPE_CHECKING:
    from onefold.settings import Judge

AHEAD_MS_MAX: Final = 900_000
"""A quarter of an hour: more than clocks that are set at all are off. What is further ahead of the batch than that is
no time: one such row would age all that is remembered."""


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
    rows_in_memory_max: int = host.ROWS_IN_MEMORY_MAX,
    memory: str | None = None,
    version: int | None = None,
    late_ms: int = LATE_MS,
    state_rows_max: int | None = None,
    buckets: int = BUCKETS,
) -> Transform:
    """A step that adds ``verdict``, ``reason`` and ``status`` to a table or a stream of receptions.

        uplinks = merge_uplinks(read_receptions(spark, "net/receptions").transform(judge_receptions()))

    ``sliding``: whether every sighting begins the wait of ``expiry_ms`` anew, or only the first. ``strategy`` is that
    of the devices, and decides on the status of what another station heard too. ``echo_ms``: a station that has a frame
    again sooner than this heard one transmission twice. ``strict_adr``: what is expired is new, as in the ADR, also the
    last frame of a device and a join request. The rows come out in no particular order.

    ``partitions``: how many tasks judge; None: by the size of the input. ``rows_in_memory_max``: of a task; more are
    sorted on disk.

    ``memory``: the folder that keeps what was seen. A stream needs one; a table that has one needs its
    ``version``, one above the last (in ``foreachBatch``, the number of the batch). With it: ``late_ms``, how far behind
    the newest a row may be and still be compared with all before it; ``state_rows_max``, how many frames a bucket
    remembers, beyond which new ones are UNSURE; ``buckets``, into how many parts the memory is split.
    """
    engine = LorawanEngine(
        columns=columns or ReceptionColumns(), shape=FLAT, expiry_ms=expiry_ms, sliding=sliding, echo_ms=echo_ms,
        strict_adr=strict_adr, strategy=strategy, late_ms=late_ms, partitions=partitions,
        rows_in_memory_max=rows_in_memory_max,
    )  # fmt: skip
    return engine.step(MemoryOptions(path=memory, version=version, state_rows_max=state_rows_max, buckets=buckets))


FLAT: Final = "flat"
"""The shape of a table whose columns are named by `ReceptionColumns`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LorawanEngine(Engine):
    name: ClassVar[str] = "lorawan"
    answers = ANSWERS
    timed = True

    columns: ReceptionColumns = field(default_factory=ReceptionColumns)
    """Other names than the usual ones only where the shape is "flat"."""
    shape: str = "auto"
    """How receptions are stored: one of the shapes of `receptions`, "auto", or "flat": as the columns say."""
    expiry_ms: int = EXPIRY_MS
    sliding: bool = True
    echo_ms: int = 0
    strict_adr: bool = False
    strategy: str = "none"
    late_ms: int = LATE_MS

    def __post_init__(self) -> None:
        if self.shape != FLAT and self.columns != ReceptionColumns():
            raise Misuse(f"columns are named, which needs shape {FLAT!r}, not {self.shape!r}", shape=self.shape)
        if self.strategy not in list(Strategy):
            raise Misuse(f"strategy is {self.strategy!r}, must be {', '.join(Strategy)}", strategy=self.strategy)
        FrameBank(self.windows, late_ms=self.late_ms)  # refuses misuse now, not in a task
        Engine.__post_init__(self)

    @classmethod
    def configured(cls, judge: Judge, *, strategy: str, partitions: int | None) -> LorawanEngine:
        more = {"sliding": judge.expiry == "sliding", "strategy": strategy, "partitions": partitions}
        named = {
            role: name for role, name in named_like(ReceptionColumns, judge).items() if (role, name) != ("time", None)
        }
        columns = ReceptionColumns(**named)
        return cls(columns=columns, **named_like(cls, judge), **more)  # type: ignore[arg-type]

    @property
    def windows(self) -> Windows:
        return Windows(expiry_ms=self.expiry_ms, sliding=self.sliding, echo_ms=self.echo_ms)

    @property
    def key(self) -> tuple[str, ...]:
        return self.columns.device

    @property
    def reads(self) -> Named:
        return self.columns if self.shape == FLAT else AnyShape()

    @property
    def reads_lines(self) -> bool:
        return self.shape != FLAT

    def shaped(self, source: DataFrame) -> DataFrame:
        return source if self.shape == FLAT else receptions(source, self.shape)

    def others(self, source: DataFrame) -> int:
        return 0 if self.shape == FLAT else not_receptions(source, self.shape).count()

    def integers(self, df: DataFrame) -> Integers:
        return integers(df, self.columns, strict_adr=self.strict_adr)

    def judge_partition(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        stations = ColumnarStations(self.windows, strict_adr=self.strict_adr)
        return host.judge_partition(parts, stations.judge, self.rows_in_memory_max, wanted=_JUDGED_BY)

    def judge_bucket(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        bank = FrameBank(
            self.windows, late_ms=self.late_ms, frames_max=options.state_rows_max, strict_adr=self.strict_adr
        )
        if bucket.blob:
            bank.resume(bucket.blob)
        codes = np.where(rows.number < 0, -1 - rows.number, CODES["bad_time"]).astype(np.int8)
        good = np.flatnonzero((rows.number >= 0) & (rows.arrival <= now_ms + AHEAD_MS_MAX))
        chain, chain_check, time, join, station, tie, key, key_check = rows.take(good).flat
        by_frame = KeyColumns(key, key_check, time, join, station, tie)
        order = host.order(host.chains(by_frame), by_frame)
        turn = np.arange(len(good))  # they came in the order of judgement
        receptions = ReceptionArrays(key, key_check, station, time, join != 0, chain, chain_check, turn)
        codes[good[order]] = bank.judge(receptions.take(order))
        bucket.blob = bank.snapshot()
        bucket.figures = {"keys": len(bank), "gaps": 0}
        return codes

    def meaning(self, df: DataFrame, options: MemoryOptions) -> Meaning:
        return {
            "engine": self.name,
            "state": STRICT_FORMAT if self.strict_adr else FORMAT,
            **of_columns(df, self.columns.named),
            "expiry": "sliding" if self.sliding else "fixed",
            "expiry_ms": self.expiry_ms,
            "echo_ms": self.echo_ms,
            "strict_adr": self.strict_adr,
            "buckets": options.buckets,
        }

    def source_meaning(self) -> Meaning:
        return {"shape": self.shape}

    def step(self, options: MemoryOptions | None = None) -> Transform:
        judge = Engine.step(self, options)

        def receptions_judged(df: DataFrame) -> DataFrame:
            for name in df.columns:
                if name.lower() == STATUS:
                    raise Misuse(f"there is a column {name!r} already: rename it, the judge writes one", column=name)
            return df.transform(judge).withColumn(STATUS, status(Strategy(self.strategy)))

        return receptions_judged

    def stream(self, options: MemoryOptions) -> Transform:
        if options.idle_ms is not None:
            raise Misuse(f"idle_ms is {options.idle_ms}, but frames are forgotten by expiry_ms and late_ms")
        judge = self.step(options)
        # Under "none" rows pass as they came: what a sink does not know to take off must not be put on.
        return judge if self.strategy != "none" else lambda df: df.transform(judge).drop(STATUS)

    def missing(self, firsts: DataFrame) -> DataFrame:
        return missing_counters(firsts, self.columns)

    def extras(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        if self.shape != FLAT:
            return {"uplinks": merge_uplinks(rows)}
        names = self.columns  # judged rows, under the usual names
        own = {
            "frame": _joined(rows, names.frame),
            "station": text_of(rows, names.station),
            "time_ms": milliseconds(rows, names.time),
            "kind": F.lit("data") if names.kind is None else F.coalesce(text_of(rows, names.kind), F.lit("data")),
            "device": _joined(rows, names.device),
            "fcnt": F.lit(None) if names.fcnt is None else F.col(quoted(names.fcnt)),
        }
        # Other columns that are named as in the normal form are what they are there, if they can be.
        more = {name: column_of(rows, name) for name in TYPES if name in rows.columns and name not in own}
        usual = {name: own.get(name, more.get(name)) for name in TYPES}
        normal = [
            try_cast(F.lit(None) if column is None else column, TYPES[name]).alias(name)
            for name, column in usual.items()
        ]
        return {"uplinks": merge_uplinks(rows.select(*normal, VERDICT, REASON, STATUS))}

    def subject(self, rows: DataFrame) -> Subject:
        names = self.columns
        counter = () if names.fcnt is None else (names.fcnt,)
        return Subject(
            key=self.key,
            identity=Identity(names=names.frame, time=names.time, expiry_ms=self.expiry_ms),
            # By its counter, as people know a frame; the frame itself tells two of the same counter apart.
            message=(*counter, *(name for name in names.frame if name not in self.key)),
            number=names.fcnt if self.key else None,
            order=names.time,
            axis=names.time,
            arrival=names.time,
            window_ms=self.expiry_ms,
            source=names.station,
        )


def _joined(rows: DataFrame, names: Sequence[str]) -> Column:
    """Several columns as one text, which tells apart what they tell apart."""
    if len(names) == 1:
        return text_of(rows, names[0])
    return F.to_json(F.struct(*(F.col(quoted(name)) for name in names))) if names else F.lit(None)


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
    for reason, status_ in by_reason.items():
        repeat = F.when(F.col(REASON) == reason, F.lit(str(status_))).otherwise(repeat)
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
        named = reduce(and_, (column.isNotNull() for column in device), F.coalesce(kind != "join", F.lit(True)))
        by_device = F.xxhash64(F.lit(2), *device), F.xxhash64(F.lit(3), *device)
        chain = tuple(F.when(named, of).otherwise(by) for of, by in zip(by_device, frame, strict=True))
    malformed = F.coalesce(~kind.isin("data", "join"), F.lit(False))
    if CORRUPT in df.columns:
        malformed = malformed | F.col(CORRUPT).isNotNull()
    station = F.col(quoted(names.station))
    nameless = reduce(or_, (column.isNull() for column in key), station.isNull())
    bad_time = time.isNull() | (time < 0) | (time > TIME_MS_MAX)
    judged = F.xxhash64(station).bitwiseAND(F.lit(_LONG_MAX))  # 63 bits; negative where the row is refused
    for reason, condition in (("bad_time", bad_time), ("null_key", nameless), ("malformed", malformed)):
        judged = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(judged)
    numbers = (
        *chain,
        F.coalesce(time, F.lit(-1).cast("long")),
        F.when(kind == "join", 1).otherwise(0).cast("long"),
        judged,
        host.tie(df, {*names.frame, names.station}),
        *frame,
    )
    return Integers(numbers, read, numbers[:1])


WINDOW: Final = "window"


def merge_uplinks(judged: DataFrame) -> DataFrame:
    """The uplinks of judged receptions (`read_receptions`, then `judge_receptions`): one row a frame, in no order.

    ``first_ms`` and ``last_ms`` are the times of the first and last reception, ``receptions`` all of them, the FIRST
    before the others and those by time, ``stations`` how many different ones heard it, ``best_station`` the one with
    the highest SNR, then RSSI.
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
