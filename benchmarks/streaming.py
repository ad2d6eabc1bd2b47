"""./run bench streaming: the judge of a stream against Spark's own streaming deduplication, in the same run.

Same files, same triggers, no output (the noop sink); the peers with RocksDB state stores and changelog checkpoints:
``dropDuplicates`` on key and number, which remembers all; ``dropDuplicatesWithinWatermark`` of one hour. "shuffle" is a
bare repartition by the chain's key. State bytes are Spark's reported state store memory; for the judge, the bytes of
the newest files of its memory.

    compare    2 M rows in 4 batches, at 100, 10,000 and 200,000 chains
    small      2 M rows in 20 batches
    touched    5 % of the chains have messages in a batch
    history    a batch of 1,000 rows, with 10,000 and with 10 M chains in memory
    growth     memory after 1x and 10x the history
    equal      a stream against a table of the same rows
    ordered    chains put in order (order_wait_ms), all ways written as Parquet files; 2 M rows in 4 batches
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
BATCHES = 4
KEY = ["stream", "partition", "publisher", "chain"]
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}  # fmt: skip
"""Of the peers: on disk, and what is checkpointed of a batch is what it changed."""


def ways(memory: str) -> dict[str, Callable[[Any], Any]]:
    from pyspark.sql import functions as F

    from onefold.spark import judge_chains

    number = [*KEY, "timestamp", "sequence"]

    def within(df: Any) -> Any:
        return df.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(number)

    return {
        "dropDuplicates": lambda df: df.dropDuplicates(number),
        "dropDuplicatesWithinWatermark": lambda df: within(df.withColumn("at", F.timestamp_millis("arrival"))),
        "judge_chains": judge_chains(memory=memory),
        "shuffle": lambda df: df.repartition(*KEY),
    }


def once(spark: Any, folder: Path, name: str, files: int) -> tuple[float, list[Any], int]:
    """Seconds for the whole stream, its progress reports, and the bytes of its memory."""
    schema = spark.read.parquet(str(folder)).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))
    place = tempfile.mkdtemp(prefix="onefold-bench-")
    try:
        started = perf_counter()
        writer = ways(f"{place}/memory")[name](source).writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = perf_counter() - started
        return seconds, query.recentProgress, memory_bytes(f"{place}/memory")
    finally:
        shutil.rmtree(place)


def memory_bytes(path: str) -> int:
    from onefold.spark.memory import MemoryFolder

    if not os.path.exists(path):
        return 0
    memory = MemoryFolder.anywhere(path)
    return sum(run.size for bucket in memory.buckets_there() for run in memory.runs(bucket))


def compare(spark: Any, rows: int, chains: int, rounds: int, batches: int = BATCHES, per_batch: int = 4) -> None:
    from onefold.testing.traffic import Traffic, make, write

    with tempfile.TemporaryDirectory() as folder:
        write(make(Traffic(rows=rows, chains=chains)), Path(folder) / "t", files=batches * per_batch)
        times: dict[str, float] = {}
        reports: dict[str, list[Any]] = {}
        sizes: dict[str, int] = {}
        for turn in range(rounds + 1):  # the first one warms up
            for name in ways("nowhere"):
                seconds, progress, size = once(spark, Path(folder) / "t" / "messages", name, per_batch)
                if turn and seconds < times.get(name, float("inf")):
                    times[name], reports[name], sizes[name] = seconds, progress, size
    print(f"\n## {rows:,} rows, {chains:,} chains, {batches} batches\n")
    print("| way | rows/s | ratio | seconds per batch | state rows | state MB |\n|---|---|---|---|---|---|")
    for name, seconds in times.items():
        each = [p.durationMs["triggerExecution"] / 1000 for p in reports[name] if p.numInputRows]
        shown = [f"{s:.1f}" for s in (each if len(each) <= BATCHES else (each[0], sum(each) / len(each), each[-1]))]
        state = reports[name][-1].stateOperators
        kept = f"{state[0].numRowsTotal:,} | {state[0].memoryUsedBytes / 1e6:.1f}" if state else "- | -"
        kept = f"- | {sizes[name] / 1e6:.2f}" if sizes[name] else kept
        ratio = times["dropDuplicates"] / seconds
        print(f"| {name} | {rows / seconds:,.0f} | {ratio:.2f}x | {' '.join(shown)} | {kept} |", flush=True)


def touched(spark: Any, rows: int, chains: int = 200_000, batches: int = 20) -> None:
    """Batches that each touch one chain in twenty: rows are sorted by chain before they are split into files."""
    from pyspark.sql import functions as F

    from onefold.testing.traffic import Traffic, make, write

    with tempfile.TemporaryDirectory() as folder:
        write(make(Traffic(rows=rows, chains=chains)), Path(folder) / "t", files=4)
        table = spark.read.parquet(f"{folder}/t/messages")
        part = F.pmod(F.xxhash64(*KEY), F.lit(batches))
        table.repartition(batches, part).write.parquet(f"{folder}/parts")
        files = sorted(Path(folder, "parts").glob("*.parquet"))
        for i, file in enumerate(files):
            os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
        times = {name: min(once(spark, Path(folder) / "parts", name, 1)[0] for _ in range(2))
                 for name in ("dropDuplicates", "judge_chains")}  # fmt: skip
    print(f"\n## {rows:,} rows, {chains:,} chains, {len(files)} batches of other chains each\n")
    for name, seconds in times.items():
        print(f"- {name}: {seconds:.1f} s, {times['dropDuplicates'] / seconds:.2f}x", flush=True)


def history(spark: Any, rows: int = 1_000) -> None:
    """The time of small batches, with little and with much in memory."""
    from pyspark.sql import functions as F

    from onefold.spark import ChainColumns, judge_chains

    columns = ChainColumns(key=("chain",), timestamp="number", sequence=None, previous_timestamp="previous",
                           previous_sequence=None, arrival=None)  # fmt: skip
    print(f"\n## Batches of {rows:,} rows, by how many chains are in memory\n")
    medians = []
    for chains in (10_000, 10_000_000):
        with tempfile.TemporaryDirectory() as folder:

            def batch(version: int, ids: Any) -> float:
                number, previous = F.lit(version + 1).cast("long"), F.lit(version).cast("long")
                df = ids.select(F.col("id").alias("chain"), number.alias("number"), previous.alias("previous"))
                started = perf_counter()
                step = judge_chains(columns, memory=f"{folder}/memory", version=version)
                df.transform(step).write.format("noop").mode("overwrite").save()
                return perf_counter() - started

            fill = batch(0, spark.range(chains))
            some = spark.range(rows).withColumn("id", F.pmod(F.xxhash64("id"), F.lit(chains)))
            times = sorted(batch(version, some) for version in range(1, 12))
            medians.append(times[len(times) // 2])
            size = memory_bytes(f"{folder}/memory")
        print(f"- {chains:,} chains ({size / 1e6:.0f} MB, filled in {fill:.1f} s): median {medians[-1]:.3f} s, "
              f"most {times[-1]:.3f} s", flush=True)  # fmt: skip
    print(f"\n{medians[1] / medians[0]:.2f}x the time with a thousand times the chains.", flush=True)


def growth(spark: Any) -> None:
    """Memory after 1x and 10x the history with the same disorder (nothing lost for ever)."""
    from onefold.testing.faults import Faults
    from onefold.testing.traffic import Traffic, make, write

    print("\n## Memory as history grows tenfold, 1,000 chains, nothing lost for ever\n")
    print("| messages | judge: bytes | dropDuplicates: state rows | bytes |\n|---|---|---|---|")
    for rows in (100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            write(make(Traffic(rows=rows, chains=1_000, faults=Faults(losses=0.0))), Path(folder) / "t", files=4)
            messages = Path(folder) / "t" / "messages"
            size = once(spark, messages, "judge_chains", 1)[2]
            state = once(spark, messages, "dropDuplicates", 1)[1][-1].stateOperators[0]
        print(f"| {rows:,} | {size:,} | {state.numRowsTotal:,} | {state.memoryUsedBytes:,} |", flush=True)


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
        step = judge_chains(memory=f"{folder}/memory")
        writer = source.transform(step).writeStream.format("parquet").option("path", f"{folder}/out")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        streamed = spark.read.parquet(f"{folder}/out").select("offset", "verdict", "reason")
        judged = table.transform(judge_chains()).select("offset", "verdict", "reason")
        both = judged.join(streamed.toDF("offset", "verdict_", "reason_"), "offset", "full")
        differing = both.where("not (verdict <=> verdict_ and reason <=> reason_)")
        left_open = differing.where("reason_ = 'behind_head'").count()
        differing = differing.count() - left_open
        poison = streamed.where("reason = 'jump_too_far'").count()
    print(f"\n## Stream against table, {rows:,} rows, 8 batches, one poisoned row in each of 1,000 chains\n")
    print(f"{differing} rows differ, besides {left_open} that came late and name no previous message: a table knows, "
          f"a stream leaves them open. {poison:,} were refused as jump_too_far.", flush=True)  # fmt: skip


def ordered(spark: Any, rows: int, chains: int, rounds: int) -> None:
    """The job of a stream with and without order, against dropDuplicates to Spark's own sink of files."""
    from onefold.spark.chains import ChainsEngine
    from onefold.spark.ingest import SourceSpec
    from onefold.spark.stream import Streaming, run_stream
    from onefold.testing.traffic import Traffic, make, write

    waits = {
        "as they come": None,
        "in order, wait 0 s": 0,
        "in order, wait 1 s": 1_000,
        "in order, wait 1 h": 3_600_000,
    }

    def once_written(messages: str, place: str, way: str) -> tuple[float, int]:
        """Seconds, and how many messages were held back at most."""
        started = perf_counter()
        if way == "dropDuplicates":
            source = spark.readStream.schema(spark.read.parquet(messages).schema).option("maxFilesPerTrigger", 4)
            firsts = source.parquet(messages).dropDuplicates([*KEY, "timestamp", "sequence"])
            writer = firsts.writeStream.format("parquet").option("path", f"{place}/out")
            query = writer.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
            return perf_counter() - started, 0
        most = [0]
        run_stream(
            spark, SourceSpec(path=messages, options={"maxFilesPerTrigger": "4"}), ChainsEngine(),
            Streaming(checkpoint=f"{place}/checkpoint", ordered_wait_ms=waits[way]), f"{place}/out",
            tell=lambda progress: most.append(progress.held),
        )  # fmt: skip
        return perf_counter() - started, max(most)

    times: dict[str, tuple[float, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(make(Traffic(rows=rows, chains=chains)), Path(folder) / "t", files=BATCHES * 4)
        for turn in range(rounds + 1):  # the first one warms up
            for way in ("dropDuplicates", *waits):
                with tempfile.TemporaryDirectory() as place:
                    result = once_written(f"{folder}/t/messages", place, way)
                times[way] = min(times.get(way, result), result) if turn else (float("inf"), 0)
    print(f"\n## In order: {rows:,} rows, {chains:,} chains, {BATCHES} batches, written as Parquet\n")
    print("| way | rows/s | ratio | held at most |\n|---|---|---|---|")
    for way, (seconds, held) in times.items():
        ratio = times["dropDuplicates"][0] / seconds
        print(f"| {way} | {rows / seconds:,.0f} | {ratio:.2f}x | {held:,} |", flush=True)


PARTS = ("growth", "equal", "history", "compare", "small", "touched", "ordered")


def main() -> None:
    from onefold.spark.session import session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chains", type=int, action="append")
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    spark = session(config=STATE_STORE)
    spark.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    for part in options.only or PARTS:
        if part == "growth":
            growth(spark)
        elif part == "equal":
            equal(spark)
        elif part == "history":
            history(spark)
        elif part == "touched":
            touched(spark, options.rows)
        elif part == "ordered":
            for chains in options.chains or CHAINS:
                ordered(spark, options.rows, chains, options.rounds)
        elif part == "small":
            compare(spark, options.rows, 10_000, options.rounds, batches=20, per_batch=1)
        else:
            for chains in options.chains or CHAINS:
                compare(spark, options.rows, chains, options.rounds)


if __name__ == "__main__":
    main()
