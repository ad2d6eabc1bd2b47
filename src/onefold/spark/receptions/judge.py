"""``df.transform(judge_receptions(...))``: every reception of a radio frame gets its verdict, reason and status.

Level 1 of ADR 007 over stored receptions, in event time: of all stations that heard a frame, and of all its copies
within the expiry, one reception counts. The expiry is exact, to the millisecond, whatever the order in which the rows
are read; there is no watermark. Beyond the expiry the last counted frame of a device is known until another one of that
device is counted, and a join request for ever (unless ``strict_adr``).

The rows of a device are judged in one task, by time. Eight integers per row go to Python; the wide row stays in the JVM
(see `onefold.spark.host`). Rows without a device, and join requests, are grouped by frame instead, and the same frame
is then a repeat for ever.

Rows of one frame and one millisecond are judged in a fixed but arbitrary order: by hashes of the station and of the
rest of the row.

With a memory, a bucket holds a bank of the frames of the last hour or so, rewritten with each batch.

``judged.transform(merge_uplinks)``: one row per uplink, with all receptions and the best one. An uplink is a FIRST and
its REPEATs, also those after the expiry (``counted_before``). Each FIRST begins a window: a frame that counts again is
a second uplink of the same frame, with ``window`` 2. Rejected receptions belong to no uplink; UNSURE ones to the window
in which they fall, or to the first.

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
"""A quarter of an hour: no clock that is set is that far off. A time further ahead of the batch is invalid: one such
row would expire the whole memory."""


STATUS = "status"

_JUDGED_BY = (2, 3, 4, 6, 7)  # the positions of time, join, station and both halves of the frame among the integers
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

    ``sliding``: whether every sighting restarts ``expiry_ms``, or only the first one counts. ``strategy`` is that of
    the devices; it decides on the status of copies from other stations. ``echo_ms``: a station that hears a frame again
    within this heard one transmission twice. ``strict_adr``: every expired frame is new, as in the ADR, also the last
    frame of a device and a join request. The rows come out in no particular order.

    ``partitions``: the number of tasks; None: by the size of the input. ``rows_in_memory_max``: per task; more are
    sorted on disk.

    ``memory``: the folder that keeps the state. A stream needs one; a table with a memory needs its ``version``, one
    above the last (in ``foreachBatch``, the number of the batch). With a memory: ``late_ms``, how far behind the newest
    row a row may be and still be judged exactly; ``state_rows_max``, how many frames a bucket remembers, beyond which
    new ones are UNSURE; ``buckets``, the number of parts of the memory.
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
    """May differ from the default only if the shape is "flat"."""
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
        FrameBank(self.windows, late_ms=self.late_ms)  # raises Misuse here, not in a task
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
        turn = np.arange(len(good))  # the rows are in the order of judgement
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
        # Under "none" rows pass unchanged: a sink would not remove the column.
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
        # Other columns with a name of the normal form have its meaning, if their type allows.
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
            # People know a frame by its counter; the frame distinguishes two with the same counter.
            message=(*counter, *(name for name in names.frame if name not in self.key)),
            number=names.fcnt if self.key else None,
            order=names.time,
            axis=names.time,
            arrival=names.time,
            window_ms=self.expiry_ms,
            source=names.station,
        )


def _joined(rows: DataFrame, names: Sequence[str]) -> Column:
    """Several columns as one text, different for different values."""
    if len(names) == 1:
        return text_of(rows, names[0])
    return F.to_json(F.struct(*(F.col(quoted(name)) for name in names))) if names else F.lit(None)


def status(strategy: Strategy) -> Column:
    """The status of ADR 007 by reason; null for rejected rows."""
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
    counts = F.col(VERDICT).isin("FIRST", "UNSURE")  # UNSURE is not held back as a duplicate
    return F.when(counts, F.lit(str(Status.NOT_DUPLICATE))).when(F.col(VERDICT) == "REPEAT", repeat)


def integers(df: DataFrame, names: ReceptionColumns, *, strict_adr: bool = False) -> Integers:
    """The integers of a row for its judgement, without nulls: chain, time, join, station, tie, frame.

    The chain is the device; for rows without a device, for join requests, and with ``strict_adr`` it is the frame.
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
    """One row per uplink of judged receptions (`read_receptions`, then `judge_receptions`), in no particular order.

    ``first_ms`` and ``last_ms`` are the times of the first and last reception, ``receptions`` all of them, the FIRST
    before the others and these by time, ``stations`` the number of different stations, ``best_station`` the one with
    the highest SNR, then RSSI.
    """
    heard = ("station", "time_ms", "own_time", "rssi", "snr", "reason")
    # Of several in one millisecond any may be the FIRST; an UNSURE one may be earlier.
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
    """The receptions with ``window``: the number of their uplink among those of the frame; null for rejected ones."""
    first = F.col(VERDICT) == "FIRST"
    # Of several in one millisecond the FIRST was judged first.
    in_time = Window.partitionBy("frame").orderBy("time_ms", first.desc())
    number = F.sum(first.cast("int")).over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return judged.withColumn(WINDOW, F.when(F.col(VERDICT) != "REJECT", F.greatest(number, F.lit(1))))


def strength() -> Column:
    """Orders receptions by quality: SNR, then RSSI, then the earlier one."""
    return F.struct("snr", "rssi", (-F.col("time_ms")).alias("sooner"), "station")
