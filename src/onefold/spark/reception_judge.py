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
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.lorawan.answers import ANSWERS
from onefold.engines.lorawan.bank import FORMAT, LATE_MS, STRICT_FORMAT
from onefold.engines.lorawan.columnar import EXPIRY_MS, TIME_MS_MAX, ColumnarStations, Windows, refused
from onefold.engines.lorawan.status import Status, Strategy
from onefold.errors import Misuse
from onefold.spark.columns import milliseconds, quoted, readings
from onefold.spark.meaning import Meaning, of_columns
from onefold.spark.ordering import Columns
from onefold.spark.reception_columns import ReceptionColumns
from onefold.spark.reception_fold import Resume
from onefold.spark.spill import ROWS_IN_MEMORY_MAX, Codes, judge_partition
from onefold.spark.stateful import BUCKETS, Hosted, Integers, Watch
from onefold.spark.table import REASON, VERDICT, Options, Transform, prepare, tie, with_verdict
from onefold.spark.validate import CORRUPT

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
    resume = Resume(windows, late_ms, state_rows_max, strict_adr)
    resume(None)  # refuses misuse now, not in a task
    judge = _Judge(windows, rows_in_memory_max, strict_adr)

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
class _Judge:
    """Judges a partition of a table, in a task."""

    windows: Windows
    rows_in_memory_max: int
    strict_adr: bool

    def __call__(self, parts: Iterator[Columns]) -> Iterator[Codes]:
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
