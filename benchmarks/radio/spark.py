"""Receptions judged on Spark, against what else Spark offers, in the same run.

The ways take turns on the same rows and write to nowhere; each keeps its best round, ratios are to dropDuplicates:

- dropDuplicates: one row per frame. No expiry, no reason, and which row is left is left to chance.
- window: what the sliding expiry is in SQL: the row before (lag) says where a window begins, a sum numbers the windows,
  and the first row (row_number) and first station of each say what a row is. All in the JVM.
- judge_receptions, sliding and fixed. There is no way to say "fixed" with window functions.
- shuffle: a bare repartition by frame: nothing that brings the rows of a frame together can be faster.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

EXPIRY_MS = 60_000


class Rate(NamedTuple):
    way: str
    frames: int
    rows_s: float
    ratio: float
    """To dropDuplicates at this number of frames."""


def receptions(spark: Any, rows: int, frames: int) -> Any:
    """Rows of twelve columns: every frame by several stations, again after 5 s and after 2 minutes, in no order."""
    from pyspark.sql import functions as F

    number, copy = F.col("id") % frames, F.floor(F.col("id") / frames)
    again = F.when(copy % 7 == 6, 120_000).when(copy % 3 == 2, 5_000).otherwise(0)
    return spark.range(0, rows, 1, 4).select(
        F.lit("data").alias("kind"),
        F.sha2(number.cast("string"), 256).alias("frame"),
        F.lpad(F.hex(number % 1_000), 16, "0").alias("device"),
        F.floor(number / 1_000).alias("fcnt"),
        (number % 10 == 0).alias("confirmed"),
        F.lpad(F.hex(F.abs(F.hash("id")) % 12), 16, "0").alias("station"),
        (F.lit(1_700_000_000_000) + number * 50 + copy * 130_000 + again + F.abs(F.hash("id", F.lit(1))) % 300).alias(
            "time_ms"
        ),
        F.lit(True).alias("own_time"),
        (-F.abs(F.hash("id", F.lit(2))) % 120).cast("double").alias("rssi"),
        (F.abs(F.hash("id", F.lit(3))) % 20).cast("double").alias("snr"),
        F.sha2(F.col("id").cast("string"), 224).alias("payload"),
        F.lit("bench").alias("source"),
    )


def by_window(df: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = ["time_ms", F.xxhash64("station", "payload")]
    by_time = Window.partitionBy("frame").orderBy(*order)
    in_window = Window.partitionBy("frame", "_window").orderBy(*order)
    opens = F.coalesce(F.col("time_ms") - F.lag("time_ms").over(by_time) >= EXPIRY_MS, F.lit(True))
    rows = df.withColumn("_opens", opens)
    rows = rows.withColumn("_window", F.sum(F.col("_opens").cast("long")).over(by_time))
    rows = rows.withColumns({"_place": F.row_number().over(in_window), "_first": F.first("station").over(in_window)})
    repeat = F.when(F.col("station") == F.col("_first"), "resubmitted").otherwise("other_station")
    return rows.withColumn("reason", F.when(F.col("_place") == 1, "new_frame").otherwise(repeat)).drop(
        "_opens", "_window", "_place", "_first"
    )


def ways() -> dict[str, Callable[[Any], Any]]:
    from onefold.spark import judge_receptions

    return {
        "dropDuplicates": lambda df: df.dropDuplicates(["frame"]),
        "window": by_window,
        "judge_receptions": judge_receptions(expiry_ms=EXPIRY_MS),
        "judge_receptions, strict_adr": judge_receptions(expiry_ms=EXPIRY_MS, strict_adr=True),
        "judge_receptions, fixed": judge_receptions(expiry_ms=EXPIRY_MS, sliding=False),
        "shuffle": lambda df: df.repartition("frame"),
    }


def measure(
    spark: Any, rows: int = 2_000_000, frames: Sequence[int] = (10_000, 200_000, 700_000), *, rounds: int = 3,
    warm_up: int = 1,
) -> list[Rate]:  # fmt: skip
    """Rows per second of each way, for each number of different frames among the rows."""
    rates = []
    for count in frames:
        with tempfile.TemporaryDirectory() as folder:
            receptions(spark, rows, count).write.parquet(f"{folder}/air")
            df = spark.read.parquet(f"{folder}/air")
            judged = {name: df.transform(way) for name, way in ways().items()}
            _agree(judged["window"], judged["judge_receptions, strict_adr"])  # level 1 alone, as the window
            seconds = _best({name: partial(_to_nowhere, table) for name, table in judged.items()}, rounds, warm_up)
        peer = seconds["dropDuplicates"]
        rates += [Rate(name, count, rows / spent, peer / spent) for name, spent in seconds.items()]
    return rates


def _agree(window: Any, judged: Any) -> None:
    """Both find as many firsts: they do the same thing."""
    counts = [df.where("reason = 'new_frame'").count() for df in (window, judged)]
    assert counts[0] == counts[1], counts


def _to_nowhere(table: Any) -> None:
    table.write.format("noop").mode("overwrite").save()


def _best(tries: dict[str, Callable[[], None]], rounds: int, warm_up: int) -> dict[str, float]:
    times = dict.fromkeys(tries, float("inf"))
    for turn in range(rounds + warm_up):
        for name, way in tries.items():
            began = perf_counter()
            way()
            if turn >= warm_up:
                times[name] = min(times[name], perf_counter() - began)
    return times
