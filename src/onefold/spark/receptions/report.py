"""``onefold lorawan report``: figures of stored receptions for an operator, as one plain document.

The receptions are read, judged and numbered (`with_window`) once, into a temporary folder; every figure is a native
aggregate over that, so only sums and short lists leave Spark. Lists are cut at ``top``; the counts are of everything.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.columns import CORRUPT
from onefold.spark.files import Place
from onefold.spark.host import REASON, VERDICT
from onefold.spark.receptions import counters, reading
from onefold.spark.receptions.judge import STATUS, WINDOW, judge_receptions, strength, with_window
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

ECHO_MS: Final = 1_000
"""A station that has a frame twice within this heard one transmission twice: a second antenna, an image frequency. A
device sends again later than that: its receive windows open after one and two seconds."""

WINDOWS_MS: Final = (
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000,
)  # fmt: skip

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
OURS: Final = "ours"
_UPLINK: Final = ("frame", WINDOW)
SUSPECT: Final = "why"


def per_uplink(rows: DataFrame) -> DataFrame:
    """One narrow row per uplink; ``copies``: how often an unconfirmed one came again after the expiry."""
    copied = (F.col(REASON) == "counted_before") & ~F.coalesce("confirmed", F.lit(False))
    return rows.groupBy(*_UPLINK).agg(
        *(F.max(name).alias(name) for name in ("kind", "device", "fcnt")),
        F.min(F.coalesce("received_ms", "time_ms")).alias("order_ms"),
        F.min("time_ms").alias("first_ms"),
        F.count(F.lit(1)).alias("receptions"),
        F.count_distinct("station").alias("stations"),
        F.count_if(copied).alias("copies"),
    )


def with_ours(uplinks: DataFrame, devices: Collection[str] | None) -> DataFrame:
    """The uplinks with ``ours``: whether the device is among these; None: all are."""
    if devices is None:
        return uplinks.withColumn(OURS, F.lit(True))
    names = uplinks.sparkSession.createDataFrame(
        [(name, True) for name in sorted(set(devices))], f"device string, {OURS} boolean"
    )
    uplinks = uplinks.join(F.broadcast(names), "device", "left")
    return uplinks.withColumn(OURS, F.coalesce(OURS, F.lit(False)))


def uplink_totals(uplinks: DataFrame) -> dict[str, Any]:
    data, join, foreign = F.col("kind") == "data", F.col("kind") == "join", ~F.col(OURS)
    totals = uplinks.agg(
        F.count_if(data).alias("uplinks"),
        F.count_distinct(F.when(data, F.col("device"))).alias("devices"),
        F.count_if(data & (F.col("stations") > 1)).alias("shared_uplinks"),
        F.count_if(data & (F.col("receptions") > F.col("stations"))).alias("doubled_uplinks"),
        F.count_if(join).alias("joins"),
        F.count_distinct(F.when(join, F.col("device"))).alias("joining_devices"),
        F.count_if(data & foreign).alias("foreign_uplinks"),
        F.count_distinct(F.when(data & foreign, F.col("device"))).alias("foreign_devices"),
    )
    return totals.collect()[0].asDict()


def gateway_figures(rows: DataFrame, top: int) -> tuple[int, list[dict[str, Any]]]:
    """The number of gateways, and the figures of those with most receptions."""
    again = F.col("time_ms") - F.lag("time_ms").over(Window.partitionBy(*_UPLINK, "station").orderBy("time_ms"))
    off = F.col("clock_off_ms")
    each = (
        rows.withColumn("again_ms", again)
        .groupBy(*_UPLINK, "station")
        .agg(
            F.count(F.lit(1)).alias("receptions"),
            F.min(F.when(F.col("own_time"), F.col("time_ms"))).alias("own_ms"),
            F.max(strength()).alias("strength"),
            F.count_if(F.col("again_ms") < ECHO_MS).alias("echoes"),
            F.count_if(F.col("again_ms") >= ECHO_MS).alias("resubmissions"),
            F.count_if(F.col("own_time")).alias("own_clock"),
            F.count_if(off.isNotNull() & ~F.col("own_time")).alias("clock_not_believed"),
            F.max(F.abs(off)).alias("clock_off_max_ms"),
        )
    )
    of_uplink = Window.partitionBy(*_UPLINK)
    each = each.withColumns(
        {
            "stations": F.count(F.lit(1)).over(of_uplink),
            "clocks": F.count("own_ms").over(of_uplink),
            "behind_ms": F.col("own_ms") - F.min("own_ms").over(of_uplink),
            "best": F.max("strength").over(of_uplink)["station"] == F.col("station"),
        }
    )
    timed = F.col("own_ms").isNotNull() & (F.col("clocks") > 1)
    behind = F.percentile_approx(F.when(timed, F.col("behind_ms")), list(QUANTILES.values()), 10_000)
    by_station = each.groupBy("station").agg(
        F.sum("receptions").alias("receptions"),
        F.count(F.lit(1)).alias("uplinks"),
        F.count_if(F.col("stations") > 1).alias("shared"),
        F.count_if(F.col("best")).alias("best"),
        F.count_if(timed).alias("timed"),
        F.count_if(timed & (F.col("behind_ms") == 0)).alias("first"),
        behind.alias("behind_ms"),
        F.count_if(F.col("receptions") > 1).alias("repeated_uplinks"),
        *(F.sum(name).alias(name) for name in ("echoes", "resubmissions", "own_clock", "clock_not_believed")),
        F.max("clock_off_max_ms").alias("clock_off_max_ms"),
    )
    rows = by_station.select("*", F.count(F.lit(1)).over(Window.partitionBy()).alias("all"))
    busiest = [row.asDict() for row in rows.orderBy(F.desc("receptions"), "station").limit(top).collect()]
    total = busiest[0]["all"] if busiest else by_station.count()
    for row in busiest:
        del row["all"]
        behind_ms = row.pop("behind_ms") or [None] * len(QUANTILES)
        row["overlap_share"] = _share(row["shared"], row["uplinks"])
        row["best_share"] = _share(row["best"], row["uplinks"])
        row["first_share"] = _share(row["first"], row["timed"])
        row["behind_first_ms"] = dict(zip(QUANTILES, behind_ms, strict=True))
    return total, busiest


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def steps(uplinks: DataFrame) -> DataFrame:
    """The uplinks of our devices with the steps of their counters, and with the reason to suspect a replay.

    A restarted device may send the same frames again: one that fits between its neighbours is no suspect. A frame in no
    line is forged, replayed or of another device with the same address, since a MIC cannot be checked here; if it is
    not far behind, a gateway may have kept it. A confirmed frame is sent again until its confirmation comes, also after
    the expiry, and is no suspect; an unconfirmed one is not sent again.
    """
    counted = F.col("device").isNotNull() & F.col("fcnt").isNotNull()
    data = uplinks.where((F.col("kind") == "data") & F.col(OURS) & counted)
    rows = counters.counter_steps(data, ["device"], "fcnt", "order_ms", frame=["frame"])
    anew = F.col(counters.NEXT_STEP) == "reset"
    fits = F.coalesce((F.col(counters.TO_NEXT) > 0) & ((F.col(counters.AHEAD) > 0) | anew), F.lit(False))
    again = (F.col(counters.STEP) == "again") & ~fits
    stray = F.col(counters.STEP) == "stray"
    fell = (F.col(counters.STEP).isin("next", "gap") & (F.col(counters.AHEAD) < -counters.BACKLOG_MAX)) | (
        stray & (F.abs(counters.AHEAD) > counters.BACKLOG_MAX)
    )
    jumped = stray & (F.col("fcnt") > F.col(counters.PREVIOUS))
    why = (
        F.when((again & (F.col(WINDOW) > 1)) | (F.col("copies") > 0), F.lit("frame_again"))
        .when(again, F.lit("counter_again"))
        .when(jumped, F.lit("counter_jumped"))
        .when(fell, F.lit("counter_fell_back"))
    )
    return rows.withColumn(SUSPECT, why).drop(counters.AHEAD, counters.TO_NEXT, counters.NEXT_STEP)


def loss_figures(stepped: DataFrame, top: int) -> dict[str, Any]:
    """Losses by the counters, in total and of the devices that lost most."""
    step = F.col(counters.STEP)
    by_device = stepped.groupBy("device").agg(
        F.count(F.lit(1)).alias("uplinks"),
        F.sum(counters.LOST).alias("lost"),
        F.count_if(F.col(counters.LOST) > 0).alias("gaps"),
        F.max(counters.LOST).alias("longest_gap"),
        F.count_if(step == "reset").alias("resets"),
        F.count_if(step == "roll_over").alias("roll_overs"),
        F.count_if(F.col(SUSPECT).isNotNull()).alias("suspects"),
    )
    summed = ("lost", "gaps", "resets", "roll_overs", "suspects")
    [row] = by_device.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in summed)).collect()
    worst = by_device.orderBy(F.desc("lost"), F.desc("resets"), F.desc("uplinks"), "device").limit(top).collect()
    rows = [{**w.asDict(), "loss_share": _share(w["lost"], w["uplinks"] + w["lost"])} for w in worst]
    return {**row.asDict(), "shown": rows}


def suspect_figures(stepped: DataFrame, top: int) -> dict[str, Any]:
    """The uplinks that may be replays: how many, by reason, and the first of them."""
    suspects = stepped.where(F.col(SUSPECT).isNotNull())
    why = {row[SUSPECT]: row["count"] for row in suspects.groupBy(SUSPECT).count().collect()}
    names = ("device", "fcnt", "first_ms", "receptions", "stations", SUSPECT)
    first = suspects.select(*names).orderBy("first_ms", "device", "fcnt").limit(top)
    rows = [row.asDict() for row in first.collect()] if why else []
    return {"count": sum(why.values()), "why": dict(sorted(why.items())), "shown": rows}


def what_if(rows: DataFrame, windows_ms: Sequence[int], *, sliding: bool) -> tuple[int, list[tuple[int, int]]]:
    """The number of receptions, and for each window how many uplinks they would be, exactly, by their times: of all of
    them, and of those with a clock of their own.
    """
    [row] = (_sliding(rows, windows_ms) if sliding else _fixed(rows, windows_ms)).collect()
    return row["n"], [(row[f"all_{window}"], row[f"own_{window}"]) for window in windows_ms]


def _sliding(rows: DataFrame, windows_ms: Sequence[int]) -> DataFrame:
    """A frame's next uplink begins after a pause of the length of the window."""
    each, by_clock = (Window.partitionBy("frame", *more).orderBy("time_ms") for more in ((), ("own_time",)))
    lags = rows.select(
        "own_time",
        (F.col("time_ms") - F.lag("time_ms").over(each)).alias("all"),
        (F.col("time_ms") - F.lag("time_ms").over(by_clock)).alias("own"),
    )
    sums = [
        F.count_if(condition & (F.col(name).isNull() | (F.col(name) >= window))).alias(f"{name}_{window}")
        for name, condition in (("all", F.lit(True)), ("own", F.col("own_time")))
        for window in windows_ms
    ]
    return lags.agg(F.count(F.lit(1)).alias("n"), *sums)


def _fixed(rows: DataFrame, windows_ms: Sequence[int]) -> DataFrame:
    """A frame's next uplink begins when the window that the last one began is over."""
    own = F.when(F.col("own_time"), F.col("time_ms"))
    times = rows.groupBy("frame").agg(
        F.array_sort(F.collect_list("time_ms")).alias("all"), F.array_sort(F.collect_list(own)).alias("own")
    )

    def windows(times: str, window_ms: int) -> Column:
        start = F.struct(F.lit(-window_ms).cast("long").alias("since"), F.lit(0).cast("long").alias("n"))

        def add(state: Column, time: Column) -> Column:
            new = time - state["since"] >= window_ms
            since = F.when(new, time).otherwise(state["since"])
            return F.struct(since.alias("since"), (state["n"] + new.cast("long")).alias("n"))

        return F.coalesce(F.sum(F.aggregate(times, start, add, lambda state: state["n"])), F.lit(0))

    sums = [windows(name, window).alias(f"{name}_{window}") for name in ("all", "own") for window in windows_ms]
    return times.agg(F.coalesce(F.sum(F.size("all")), F.lit(0)).alias("n"), *sums)


Say: TypeAlias = Callable[[str], None]

FORMAT: Final = 1
TOP: Final = 20
_NARROW: Final = [name for name in reading.TYPES if name not in ("payload", CORRUPT)]


def report(
    spark: SparkSession, path: str, *, format: str = "auto", shape: str = "auto", expiry_ms: int = 60_000,
    sliding: bool = True, strict_adr: bool = False, strategy: str = "none", clock_off_ms: int = reading.CLOCK_OFF_MS,
    top: int = TOP, devices: Collection[str] | None = None, say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """All figures of the receptions at a path, ready for JSON.

    ``devices``: our devices, by DevEUI or DevAddr as in the receptions, in lower-case digits; losses and suspects of
    others are not counted. None: all devices are ours.
    """
    started = monotonic()
    judge = judge_receptions(expiry_ms=expiry_ms, sliding=sliding, strict_adr=strict_adr, strategy=strategy)
    if top < 0:
        raise Misuse(f"top is {top}, must be at least 0", top=top)
    settings = {
        "expiry_ms": expiry_ms, "sliding": sliding, "strict_adr": strict_adr, "strategy": strategy,
        "clock_off_ms": clock_off_ms,
    }  # fmt: skip
    folder = tempfile.mkdtemp(prefix="onefold-lorawan-")
    try:
        say("reading receptions")
        rows = reading.recognised(reading.read_rows(spark, path, format=format), shape, clock_off_ms=clock_off_ms)
        rows = _kept(rows, f"{folder}/rows")
        contents = _contents(rows, path)
        say("judging")
        judged = rows.where(F.col("source") != reading.NOT_RECEPTION).select(*reading.TYPES).transform(judge)
        judged = _kept(with_window(judged).select(*_NARROW, VERDICT, REASON, STATUS, WINDOW), f"{folder}/judged")
        books = _books(judged, contents["receptions"])
        heard = judged.where(F.col(WINDOW).isNotNull())
        say("merging uplinks")
        uplinks = _kept(with_ours(per_uplink(heard), devices), f"{folder}/uplinks")
        totals = uplink_totals(uplinks)
        say("looking at counters")
        stepped = _kept(steps(uplinks), f"{folder}/steps")
        losses, suspects = loss_figures(stepped, top), suspect_figures(stepped, top)
        say("looking at gateways")
        gateways, busiest = gateway_figures(heard, top)
        say("trying other windows")
        windows = _other_windows(heard.where(F.col("kind") == "data"), expiry_ms, sliding=sliding)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "format": FORMAT,
        "path": path if "://" in path else Place(spark, path).shown,
        **contents,
        **books,
        **totals,
        "gateways": gateways,
        "lost": losses["lost"],
        "loss_share": _share(losses["lost"], max(1, totals["uplinks"] - totals["foreign_uplinks"] + losses["lost"])),
        "losses": losses,
        "suspects": suspects,
        "gateways_shown": busiest,
        "windows": windows,
        "settings": settings,
        "seconds": round(monotonic() - started, 3),
    }


def _kept(rows: DataFrame, folder: str) -> DataFrame:
    rows.write.parquet(f"file:{folder}")
    return rows.sparkSession.read.parquet(f"file:{folder}")


def _contents(rows: DataFrame, path: str) -> dict[str, Any]:
    """The number of rows and receptions, by shape; `Misuse` if there is no reception."""
    leads = F.coalesce(F.col(reading.ROW), F.lit(0)) == 0
    groups = rows.groupBy("source").agg(F.count(F.lit(1)).alias("n"), F.count_if(leads).alias("rows")).collect()
    sources = {row["source"]: row["n"] for row in groups}
    others, count_all = sources.pop(reading.NOT_RECEPTION, 0), sum(row["rows"] for row in groups)
    if not sources:
        shapes = f"{count_all:,} rows, none of a shape that is known ({', '.join(reading.SHAPES)})"
        raise Misuse(f"{path} has no receptions: {shapes if count_all else 'it is empty'}", path=path)
    return {
        "rows": count_all,
        "not_receptions": others,
        "receptions": sum(sources.values()),
        "sources": dict(sorted(sources.items())),
    }


def _books(judged: DataFrame, received: int) -> dict[str, Any]:
    """The tally by verdict and reason, checked, and the counts by status."""
    counts, statuses = Counter[Answer](), Counter[str]()
    for row in judged.groupBy(VERDICT, REASON, STATUS).count().collect():
        counts[Answer(Verdict(row[VERDICT]), row[REASON])] += row["count"]
        statuses[row[STATUS] or "rejected"] += row["count"]
    tally = Tally(received, counts).check()
    return {"engine": "lorawan", "tally": tally.to_dict(), "statuses": dict(sorted(statuses.items()))}


def _other_windows(data: DataFrame, expiry_ms: int, *, sliding: bool) -> list[dict[str, Any]]:
    lengths = sorted({*WINDOWS_MS, expiry_ms})
    receptions, counts = what_if(data, lengths, sliding=sliding)
    return [
        {"window_ms": n, "uplinks": every, "repeats": receptions - every, "uplinks_own_clock": timed}
        for n, (every, timed) in zip(lengths, counts, strict=True)
    ]
