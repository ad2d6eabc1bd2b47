"""./run bench diff: finding the differences of two Spark tables, against the usual ways, in one run.

The tables are written as Parquet, equal but for a given number of rows: some missing on either side, some changed. Each
round checks that every way finds exactly these rows, and a wrong result ends the run. The ways take turns, each keeps
its best time, and only ratios are meaningful. The peers: a full outer join on the key that compares every column;
``exceptAll`` both ways; datacompy's Spark comparison, if it is installed.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple

SIZES = (1_000_000, 10_000_000)
DIFFERENCES = 100
KEY = "id"


class Found(NamedTuple):
    only_a: int
    only_b: int
    changed: int


def tables(spark: Any, rows: int, differences: int, folder: str) -> tuple[Any, Any, Found]:
    """Two tables of seven columns; every (rows // differences)-th row is missing here, there, or changed."""
    from pyspark.sql import functions as F

    number = F.col(KEY)
    wide = spark.range(0, rows, 1, 8).select(
        number,
        F.concat(F.lit("device-"), number % 5_000).alias("device"),
        (F.lit(1_700_000_000_000) + number * 37).alias("timestamp"),
        (F.xxhash64(number) / 1e12).alias("value"),
        (number % 7 == 0).alias("flag"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + number).alias("received"),
        F.concat(F.lit("message "), F.hex(F.xxhash64(number, F.lit(1)))).alias("body"),
    )
    step = max(2, rows // differences)
    chosen, turn = number % step == step // 2, F.floor(number / step) % 3
    changed = F.when(chosen & (turn == 2), F.lit("changed")).otherwise(F.col("body"))
    wide.where(~(chosen & (turn == 1))).write.parquet(f"{folder}/a")
    wide.where(~(chosen & (turn == 0))).withColumn("body", changed).repartition(8).write.parquet(f"{folder}/b")
    turns = [i % 3 for i in range(len(range(step // 2, rows, step)))]
    truth = Found(turns.count(0), turns.count(1), turns.count(2))
    return spark.read.parquet(f"{folder}/a"), spark.read.parquet(f"{folder}/b"), truth


def by_diff(a: Any, b: Any, hash: Any = "xxhash64") -> Found:
    from onefold.spark import diff

    with diff(a, b, key=[KEY], hash=hash) as found:
        return Found(found.summary.only_a, found.summary.only_b, found.summary.differing)


def by_join(a: Any, b: Any) -> Found:
    from pyspark.sql import functions as F

    rest = [name for name in a.columns if name != KEY]
    there = [df.withColumn("there", F.lit(True)).alias(name) for df, name in ((a, "a"), (b, "b"))]
    joined = there[0].join(there[1], F.col(f"a.{KEY}") == F.col(f"b.{KEY}"), "full_outer")
    same = F.lit(True)
    for name in rest:
        same = same & F.col(f"a.{name}").eqNullSafe(F.col(f"b.{name}"))
    counts = joined.agg(
        F.count_if(F.col("b.there").isNull()),
        F.count_if(F.col("a.there").isNull()),
        F.count_if(F.col("a.there").isNotNull() & F.col("b.there").isNotNull() & ~same),
    )
    return Found(*counts.collect()[0])


def by_except(a: Any, b: Any) -> Found:
    """Whole rows both ways; a changed row is in both."""
    ours, theirs = a.exceptAll(b).select(KEY).collect(), b.exceptAll(a).select(KEY).collect()
    changed = len({row[0] for row in ours} & {row[0] for row in theirs})
    return Found(len(ours) - changed, len(theirs) - changed, changed)


def by_datacompy(a: Any, b: Any) -> Found:
    datacompy = import_module("datacompy")  # not among our dependencies
    found = datacompy.SparkSQLCompare(a.sparkSession, a, b, join_columns=[KEY])
    return Found(found.df1_unq_rows.count(), found.df2_unq_rows.count(), found.all_mismatch().count())


def main(argv: list[str] | None = None) -> None:
    from onefold.spark.session import session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help=f"default {SIZES}")
    parser.add_argument("--differences", type=int, default=DIFFERENCES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    spark = session()
    ways: dict[str, Callable[[Any, Any], Found]] = {"full outer join": by_join, "diff": by_diff}
    ways["diff, sha256"] = partial(by_diff, hash="sha256")
    ways["exceptAll"] = by_except
    if find_spec("datacompy"):
        ways["datacompy"] = by_datacompy
    else:
        print("datacompy is not installed: left out")
    for rows in options.rows or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            a, b, truth = tables(spark, rows, options.differences, folder)
            times = dict.fromkeys(ways, float("inf"))
            for _ in range(options.rounds):
                for name, way in ways.items():
                    started = perf_counter()
                    found = way(a, b)
                    times[name] = min(times[name], perf_counter() - started)
                    assert found == truth, f"{name} found {found}, the truth is {truth}"
        print(f"\n## Two tables of {rows:,} rows, {sum(truth):,} differences, best of {options.rounds}\n")
        print("| way | seconds | speed, full outer join = 1 |\n|---|---|---|")
        for name, seconds in times.items():
            print(f"| {name} | {seconds:.2f} | {times['full outer join'] / seconds:.2f} |", flush=True)
        print(f"\nAll are exact: {truth.only_a} only in A, {truth.only_b} only in B, {truth.changed} changed.")


if __name__ == "__main__":
    main()
