"""./run bench ids: ids against Spark's own ways to drop duplicates, in the same run.

Events with a UUID, five more columns and their copies, in order of arrival, with no output (the noop sink). All ways
keep or mark one row per id; ours also gives each row a verdict and a reason. The streaming peers use RocksDB state
stores and changelog checkpoints. The ways take turns, and each keeps its best time: on a noisy machine only ratios are
meaningful.

    batch     ``dropDuplicates(["event_id"])``, a ``row_number`` window by arrival, and a bare shuffle: the lower bound
              for any way that brings the copies of an id together
    stream    ``dropDuplicates``, which remembers all ids; ``dropDuplicatesWithinWatermark`` of six hours, and ours with
              a window of six hours; the bytes of state per id
    flat      the time of a batch while the history grows to ten times the window
    scalar    ``IdDetector`` against a Python set
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the form of the other benchmarks
from chains import best, to_nowhere
from streaming import STATE_STORE, memory_bytes

ROWS = 2_000_000
BATCHES = 4
BEGIN = 1_700_000_000_000
HOURS = 24
WINDOW = "6 hours"


def write_events(spark: Any, path: str, rows: int, copies: float, files: int, width: int = 0) -> None:
    """Events of a day in about the order of their times; a copy comes up to an hour after its first.

    ``width``: so many bytes of text more in each row, a different one for each id.
    """
    from pyspark.sql import functions as F

    ids = max(1, round(rows * (1 - copies)))
    step = HOURS * 3_600_000 / ids
    own = F.when(F.col("id") < ids, F.col("id")).otherwise(F.pmod(F.xxhash64("id"), F.lit(ids)))
    hash_ = F.md5(F.col("k").cast("string"))
    uuid = F.concat_ws(
        "-", *(F.substring(hash_, at, size) for at, size in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12)))
    )
    late = F.when(F.col("id") < ids, F.pmod(F.xxhash64("id"), F.lit(60_000))).otherwise(
        F.pmod(F.xxhash64("id"), F.lit(3_600_000))
    )
    happened = (F.lit(BEGIN) + F.col("k") * step).cast("long")
    columns = {
        "event_id": uuid,
        "user": F.concat(F.lit("user-"), F.pmod("k", F.lit(50_000)).cast("string")),
        "happened": F.timestamp_millis(happened),
        "ingested": F.timestamp_millis(happened + late),
        "page": F.concat(F.lit("/page/"), F.pmod("k", F.lit(997)).cast("string")),
        "amount": F.col("k") / 7.0,
    }
    if width:
        columns["body"] = F.repeat(hash_, max(1, width // 32))
    table = spark.range(rows).select("id", own.alias("k")).select(*(c.alias(name) for name, c in columns.items()))
    table.repartitionByRange(files, "ingested").sortWithinPartitions("ingested").write.parquet(path)
    for i, file in enumerate(sorted(Path(path).glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))  # Spark takes files by their age


def batch(spark: Any, rows: int, copies: float, width: int, rounds: int) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from onefold.spark import judge_ids

    by_arrival = Window.partitionBy("event_id").orderBy("ingested")
    ways = {
        "dropDuplicates": lambda df: df.dropDuplicates(["event_id"]),
        "row_number": lambda df: df.withColumn("n", F.row_number().over(by_arrival)).where("n = 1").drop("n"),
        "judge_ids": judge_ids("event_id"),
        "judge_ids by order": judge_ids("event_id", order="ingested"),
        "shuffle alone": lambda df: df.repartition("event_id"),
    }
    with tempfile.TemporaryDirectory() as folder:
        write_events(spark, f"{folder}/events", rows, copies, 4, width)
        df = spark.read.parquet(f"{folder}/events")
        judged = {name: df.transform(way) for name, way in ways.items()}
        warm_up = 3 if rows * (100 + width) <= 100 * ROWS else 1  # of what takes long, one round is enough
        times = best({name: partial(to_nowhere, table) for name, table in judged.items()}, rounds, warm_up)
    wide = f", {width} bytes more a row" if width else ""
    print(f"\n## A table of {rows:,} rows, {copies:.0%} copies{wide}\n\n| way | seconds | ratio |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {seconds:.2f} | {times['dropDuplicates'] / seconds:.2f}x |", flush=True)


def stream_ways(memory: str) -> dict[str, Callable[[Any], Any]]:
    from onefold.spark import judge_ids

    return {
        "dropDuplicates": lambda df: df.dropDuplicates(["event_id"]),
        "dropDuplicatesWithinWatermark": lambda df: df.withWatermark("happened", WINDOW).dropDuplicatesWithinWatermark(
            ["event_id"]
        ),
        "judge_ids, all ids": judge_ids("event_id", memory=memory),
        "judge_ids, window": judge_ids("event_id", time="happened", window=WINDOW, memory=memory),
        "judge_ids, window by the clock": judge_ids("event_id", window=WINDOW, memory=memory),
        "shuffle alone": lambda df: df.repartition("event_id"),
    }


def once(spark: Any, folder: str, name: str, files: int) -> tuple[float, list[Any], int, int]:
    """Seconds for the whole stream, its progress reports, the bytes of its memory and how many ids it holds."""
    from onefold.spark.memory import MemoryFolder

    schema = spark.read.parquet(folder).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(folder)
    place = tempfile.mkdtemp(prefix="onefold-bench-")
    try:
        started = perf_counter()
        writer = stream_ways(f"{place}/memory")[name](source).writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = perf_counter() - started
        ids = 0
        if os.path.exists(f"{place}/memory"):
            newest = MemoryFolder.anywhere(f"{place}/memory").newest().values()
            ids = sum(run.header["figures"]["keys"] for run in newest)
        return seconds, query.recentProgress, memory_bytes(f"{place}/memory"), ids
    finally:
        shutil.rmtree(place)


def stream(spark: Any, rows: int, copies: float, width: int, rounds: int, batches: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_events(spark, f"{folder}/events", rows, copies, 4 * batches, width)
        runs: dict[str, tuple[float, list[Any], int, int]] = {}
        for turn in range(rounds + 1):  # the first one warms up
            for name in stream_ways("nowhere"):
                run = once(spark, f"{folder}/events", name, 4)
                if turn and (name not in runs or run[0] < runs[name][0]):
                    runs[name] = run
    print(f"\n## A stream of {rows:,} rows in {batches} batches, {copies:.0%} copies\n")
    print("| way | seconds | against dropDuplicates | against WithinWatermark | ids | bytes an id |")
    print("|---|---|---|---|---|---|")
    all_, within = (runs[name][0] for name in ("dropDuplicates", "dropDuplicatesWithinWatermark"))
    for name, (seconds, progress, size, ids) in runs.items():
        state = progress[-1].stateOperators
        if state:
            ids, size = state[0].numRowsTotal, state[0].memoryUsedBytes
        kept = f"{ids:,} | {size / ids:.1f}" if ids else "- | -"
        print(f"| {name} | {seconds:.1f} | {all_ / seconds:.2f}x | {within / seconds:.2f}x | {kept} |", flush=True)


def flat(spark: Any, rows: int = 50_000, batches: int = 60) -> None:
    """Seconds of a batch while the window fills, and when ten windows have passed."""
    from pyspark.sql import functions as F

    from onefold.spark import judge_ids

    print(f"\n## Batches of {rows:,} rows, six to a window\n")
    with tempfile.TemporaryDirectory() as folder:
        times = []
        for version in range(batches):
            number = F.col("id") + version * rows
            at = F.timestamp_millis(F.lit(BEGIN) + version * 3_600_000 + F.col("id"))
            df = spark.range(rows).select(F.sha1(number.cast("string")).alias("event_id"), at.alias("happened"))
            step = judge_ids("event_id", time="happened", window=WINDOW, memory=f"{folder}/memory", version=version)
            started = perf_counter()
            to_nowhere(df.transform(step))
            times.append(perf_counter() - started)
        size = memory_bytes(f"{folder}/memory")
    for first, last in ((6, 12), (12, 30), (30, batches)):
        some = sorted(times[first:last])
        print(f"- batches {first} to {last}: median {some[len(some) // 2]:.2f} s, most {some[-1]:.2f} s", flush=True)
    print(f"- memory at the end: {size / 1e6:.1f} MB, {size / (7 * rows):.1f} bytes an id of the window and a slice")


def scalar(messages: int = 300_000) -> None:
    from onefold import IdDetector

    ids = [f"{n % (messages * 9 // 10):032x}" for n in range(messages)]

    def with_set() -> None:
        seen = set()
        for id in ids:
            if id not in seen:
                seen.add(id)

    def with_detector() -> None:
        judge = IdDetector(window_ms=86_400_000).judge
        for n, id in enumerate(ids):
            judge(id, n)

    times = best({"set": with_set, "IdDetector": with_detector}, 3)
    print(f"\n## Scalar, {messages:,} messages\n\n| way | ns per message |\n|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e9 * seconds / messages:.0f} |")


PARTS = ("scalar", "batch", "stream", "flat")


def main() -> None:
    from onefold.spark.session import session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--copies", type=float, action="append", help="part of the rows; default 0.1 and 0.5")
    parser.add_argument("--width", type=int, default=0, help="bytes of text more in each row, such as 1000")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    spark = session(config=STATE_STORE)
    tasks, usual = str(2 * spark.sparkContext.defaultParallelism), spark.conf.get("spark.sql.shuffle.partitions")
    for part in options.only or PARTS:
        # A stream has no adaptive execution, which joins the small partitions of a table.
        spark.conf.set("spark.sql.shuffle.partitions", tasks if part == "stream" else usual)
        if part == "scalar":
            scalar()
        elif part == "flat":
            flat(spark)
        for copies in options.copies or (0.1, 0.5):
            if part == "batch":
                batch(spark, options.rows, copies, options.width, options.rounds)
            elif part == "stream":
                stream(spark, options.rows, copies, options.width, options.rounds, options.batches)


if __name__ == "__main__":
    main()
