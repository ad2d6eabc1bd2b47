"""``judged.transform(merge_uplinks)``: one row per uplink, with all who heard it and the best of them.

An uplink is what a frame's FIRST and its REPEATs are together, also those that came after the expiry
(``counted_before``). Its window begins at each FIRST: a frame that counts again is a second uplink of the same frame,
with ``window`` 2. What was rejected is no uplink; what is
UNSURE is kept with the window that it falls into, or the first.

Cost: one shuffle by frame. All receptions of one frame must fit into the memory of a task.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.spark.table import VERDICT

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
