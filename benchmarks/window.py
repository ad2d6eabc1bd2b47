"""./run bench window: measuring the lag of repeats on Spark, against hand-written ways, in one run.

A table of messages with ids as text, a tenth of which are repeated, some often, after lags of a known distribution; and
one id with a hundredth of all copies. The ways find the same quantiles, which are checked against the true ones:

    self join      every row joined with the first of its id, then Spark's exact ``percentile``, which keeps a map of
                   all distinct lags
    self join,     the same with ``approx_percentile``: bounded memory, not exact
      approximate
    lags alone     the part of the advisor that does the same work: lags and exact quantiles
    advise_window  the whole advisor: also the state of each window, with its watermark

The ways take turns, each keeps its best time, and only ratios are meaningful. The heap is small on purpose
(``--memory``): a way that keeps too much fails here. Beside the time are the peak heap use, garbage included, of the
JVM, which is driver and executor in one, and the growth of the driver's Python.
"""

import argparse
import resource
import tempfile
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIZES = (1_000_000, 10_000_000)
SHARES = (0.99, 0.999, 0.9999)
START = 1_700_000_000_000
PER_SECOND = 500
PART = 1_000_000
KEY = ["device", "counter"]


class Spent(NamedTuple):
    seconds: float
    heap_mb: float
    python_mb: float


def table(rows: int, folder: str) -> list[int]:
    """Write the table, in parts; the true quantiles of its lags."""
    rng = np.random.default_rng(1)
    copies = rows // 10
    firsts = rows - copies
    at = np.arange(firsts, dtype=np.int64) * 1_000 // PER_SECOND
    again = rng.integers(0, firsts, copies)
    again[: copies // 100] = 7
    lags = np.clip(rng.lognormal(8.5, 1.5, copies), 1, 86_400_000).astype(np.int64)  # the joins tell by a lag of 0
    ids, times = np.concatenate([np.arange(firsts), again]), START + np.concatenate([at, at[again] + lags])
    order = rng.permutation(rows)
    for part in range(0, rows, PART):
        some = order[part : part + PART]
        names = pa.array([f"device-{i:05}" for i in range(5_000)]).take(pa.array(ids[some] % 5_000))
        digits = rng.bytes(16 * len(some)).hex()
        body = pa.array([digits[i : i + 32] for i in range(0, len(digits), 32)])
        columns = {"device": names, "counter": ids[some] // 5_000, "arrival": times[some], "body": body}
        pq.write_table(pa.table(columns), f"{folder}/{part // PART:04}.parquet")
    return [int(value) for value in np.quantile(lags, SHARES, method="inverted_cdf")]


def by_join(df: Any, *, exact: bool = True) -> list[int]:
    from pyspark.sql import functions as F

    firsts = df.groupBy(*KEY).agg(F.min("arrival").alias("first"))
    lags = df.join(firsts, KEY).select((F.col("arrival") - F.col("first")).alias("lag")).where("lag > 0")
    measure = F.percentile if exact else F.percentile_approx
    return [int(value) for value in lags.agg(measure("lag", list(SHARES))).collect()[0][0]]


def by_approximation(df: Any) -> list[int]:
    return by_join(df, exact=False)


def by_lags(df: Any) -> list[int]:
    from onefold.spark.window import LAG, Distribution, WindowColumns, lags, stored, timed

    with stored(lags(timed(df, WindowColumns(key=tuple(KEY))))) as found:
        return [quantile.value for quantile in Distribution.of(found, LAG).quantiles(SHARES).values()]


def by_advice(df: Any) -> list[int]:
    from onefold.spark.window import advise_window

    return [window.window_ms for window in advise_window(df, key=KEY, shares=SHARES).windows]


def spent(spark: Any, way: Callable[[Any], list[int]], df: Any) -> tuple[Spent, list[int]]:
    """Run a way, and what it took."""
    jvm = spark.sparkContext._jvm
    jvm.System.gc()
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    heap = [pool for pool in pools if pool.getType().toString() == "Heap memory"]
    for pool in heap:
        pool.resetPeakUsage()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, perf_counter()
    found = way(df)
    seconds = perf_counter() - started
    used = sum(pool.getPeakUsage().getUsed() for pool in heap)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Spent(seconds, used / 2**20, grown / 2**10), found


def main(argv: list[str] | None = None) -> None:
    from onefold.spark.session import session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help=f"default {SIZES}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="1g", help="the heap of Spark's JVM")
    options = parser.parse_args(argv)
    spark = session(memory=options.memory)
    ways: dict[str, Callable[[Any], list[int]]] = {
        "self join": by_join,
        "self join, approximate": by_approximation,
        "lags alone": by_lags,
        "advise_window": by_advice,
    }
    for rows in options.rows or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            truth = table(rows, folder)
            df = spark.read.parquet(folder)
            best: dict[str, Spent] = {}
            off: dict[str, float] = {}
            for _ in range(options.rounds):
                for name, way in ways.items():
                    took, found = spent(spark, way, df)
                    best[name] = min(best.get(name, took), took)
                    off[name] = max(abs(a - b) / b for a, b in zip(found, truth, strict=True))
                    assert "join" in name or found == truth, f"{name} found {found}, the truth is {truth}"
        print(f"\n## {rows:,} rows, {rows // 10:,} copies, heap {options.memory}; the windows are {truth} ms\n")
        print("| way | seconds | speed, self join = 1 | heap, MB | Python grew, MB | off by at most |")
        print("|---|---|---|---|---|---|")
        for name, (seconds, heap, python) in best.items():
            ratio = best["self join"].seconds / seconds
            print(f"| {name} | {seconds:.2f} | {ratio:.2f} | {heap:.0f} | {python:.1f} | {off[name]:.2%} |", flush=True)


if __name__ == "__main__":
    main()
