"""./run bench streaming: the stateful judge against Spark's own streaming deduplication, in the same run.

Same files, same triggers, written to nowhere (the noop sink); RocksDB state stores with changelog checkpoints for all.
The peers: ``dropDuplicates`` on key and number, which remembers all; ``dropDuplicatesWithinWatermark`` of one hour.
"shuffle" is a bare repartition by the chain's key. State bytes are what Spark reports of its state store's memory;
of the judge also the blobs themselves.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

ROWS = 2_000_000
CHAINS = (100, 10_000, 200_000)
BATCHES, FILES_PER_BATCH = 4, 4
KEY = ["stream", "partition", "publisher", "chain"]


def ways(figures: Any) -> dict[str, Callable[[Any], Any]]:
    from pyspark.sql import functions as F

    from onefold.spark import judge_chains

    number = [*KEY, "timestamp", "sequence"]

    def within(df: Any) -> Any:
        return df.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(number)

    return {
        "dropDuplicates": lambda df: df.dropDuplicates(number),
        "dropDuplicatesWithinWatermark": lambda df: within(df.withColumn("at", F.timestamp_millis("arrival"))),
        "judge_chains": judge_chains(watch=figures.add),
        "shuffle": lambda df: df.repartition(*KEY),
    }


def once(spark: Any, folder: Path, step: Callable[[Any], Any]) -> tuple[float, list[Any]]:
    """Seconds for the whole stream, and its progress reports."""
    schema = spark.read.parquet(str(folder)).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(folder))
    checkpoint = tempfile.mkdtemp(prefix="onefold-bench-")
    try:
        started = perf_counter()
        writer = step(source).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return perf_counter() - started, query.recentProgress
    finally:
        shutil.rmtree(checkpoint)


def compare(spark: Any, rows: int, chains: int, rounds: int) -> None:
    from onefold.spark.stream import BucketFigures
    from onefold.testing.traffic import Traffic, make, write

    figures = BucketFigures.on(spark)
    with tempfile.TemporaryDirectory() as folder:
        write(make(Traffic(rows=rows, chains=chains)), Path(folder) / "t", files=BATCHES * FILES_PER_BATCH)
        times: dict[str, float] = {}
        reports: dict[str, list[Any]] = {}
        for turn in range(rounds + 1):  # the first one warms up
            for name, step in ways(figures).items():
                seconds, progress = once(spark, Path(folder) / "t" / "messages", step)
                if turn and seconds < times.get(name, float("inf")):
                    times[name], reports[name] = seconds, progress
    print(f"\n## {rows:,} rows, {chains:,} chains, {BATCHES} batches\n")
    print("| way | rows/s | ratio | seconds per batch | state rows | state MB |\n|---|---|---|---|---|---|")
    for name, seconds in times.items():
        batches = [f"{p.durationMs['triggerExecution'] / 1000:.1f}" for p in reports[name] if p.numInputRows]
        state = reports[name][-1].stateOperators
        kept = f"{state[0].numRowsTotal:,} | {state[0].memoryUsedBytes / 1e6:.1f}" if state else "- | -"
        ratio = times["dropDuplicates"] / seconds
        print(f"| {name} | {rows / seconds:,.0f} | {ratio:.2f}x | {' '.join(batches)} | {kept} |", flush=True)
    peer = reports["dropDuplicates"][-1].stateOperators[0].memoryUsedBytes
    blobs = figures.total("bytes")
    print(f"\nThe judge's blobs: {blobs:,} bytes, {blobs / rows:.3f} per message; dropDuplicates {peer / rows:.1f}, "
          f"{peer / blobs:,.0f} times as much.", flush=True)  # fmt: skip


def growth(spark: Any) -> None:
    """State after 1x and 10x the history with the same disorder (nothing lost for ever)."""
    from onefold.spark.stream import BucketFigures
    from onefold.testing.faults import Faults
    from onefold.testing.traffic import Traffic, make, write

    print("\n## State as history grows tenfold, 1,000 chains, nothing lost for ever\n")
    print("| messages | judge: state rows | bytes | dropDuplicates: state rows | bytes |\n|---|---|---|---|---|")
    for rows in (100_000, 1_000_000):
        figures = BucketFigures.on(spark)
        with tempfile.TemporaryDirectory() as folder:
            write(make(Traffic(rows=rows, chains=1_000, faults=Faults(losses=0.0))), Path(folder) / "t", files=4)
            cells = []
            for name in ("judge_chains", "dropDuplicates"):
                _, progress = once(spark, Path(folder) / "t" / "messages", ways(figures)[name])
                state = progress[-1].stateOperators[0]
                size = figures.total("bytes") if name == "judge_chains" else state.memoryUsedBytes
                cells += [f"{state.numRowsTotal:,}", f"{size:,}"]
        print(f"| {rows:,} | {' | '.join(cells)} |", flush=True)


def equal(spark: Any, rows: int = 1_000_000) -> None:
    """Whether a stream in eight batches answers, row for row, as a table of the same rows."""
    from onefold.spark import judge_chains
    from onefold.testing.faults import Faults
    from onefold.testing.traffic import Traffic, make, write

    with tempfile.TemporaryDirectory() as folder:
        faults = Faults(malformed=0.01, poisoned=1.0)
        write(make(Traffic(rows=rows, chains=1_000, faults=faults)), Path(folder) / "t", files=8)
        messages = f"{folder}/t/messages"
        for i, file in enumerate(sorted(Path(messages).glob("*.parquet"))):
            os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))  # Spark takes files by their age
        table = spark.read.parquet(messages)
        source = spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).parquet(messages)
        writer = source.transform(judge_chains()).writeStream.format("parquet").option("path", f"{folder}/out")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        streamed = spark.read.parquet(f"{folder}/out").select("offset", "verdict", "reason")
        judged = table.transform(judge_chains()).select("offset", "verdict", "reason")
        differing = streamed.exceptAll(judged).count() + judged.exceptAll(streamed).count()
        poison = streamed.where("reason = 'jump_too_far'").count()
    print(f"\n## Stream against table, {rows:,} rows, 8 batches, one poisoned row in each of 1,000 chains\n")
    print(f"{differing} rows differ; {poison:,} were refused as jump_too_far.", flush=True)


def main() -> None:
    from onefold.spark.session import session
    from onefold.spark.stream import STATE_STORE

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chains", type=int, action="append")
    parser.add_argument("--only", choices=["compare", "growth", "equal"])
    options = parser.parse_args()
    spark = session(config=STATE_STORE)
    spark.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    if options.only in (None, "growth"):
        growth(spark)
    if options.only in (None, "equal"):
        equal(spark)
    if options.only in (None, "compare"):
        for chains in options.chains or CHAINS:
            compare(spark, options.rows, chains, options.rounds)


if __name__ == "__main__":
    main()
