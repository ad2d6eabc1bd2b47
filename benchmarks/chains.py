"""./run bench chains: the chain engine and the Spark judge, as ratios against their peers in the same run.

Machines are noisy, so the candidates take turns, each keeps its best time, and only ratios are meaningful. The peers: a
Python set doing membership and add; Spark's ``dropDuplicates`` and a ``row_number`` window on the same rows, with no
output (the noop sink). "shuffle" is a bare repartition by the same key: the lower bound for any judge that brings a
chain's rows together.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

ROWS = 2_000_000
CHAINS = (100, 10_000, 200_000)
KEY = ["stream", "partition", "publisher", "chain"]


def best(ways: dict[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> dict[str, float]:
    """Seconds of each way: the best of several rounds in which all take their turn, after some to warm up."""
    times = {name: float("inf") for name in ways}
    for turn in range(rounds + warm_up):
        for name, way in ways.items():
            started = perf_counter()
            way()
            if turn >= warm_up:
                times[name] = min(times[name], perf_counter() - started)
    return times


def scalar(messages: int, rounds: int) -> None:
    from onefold import ChainDetector

    traffic = [((i * 10, 0), (i * 10 + 10, 0)) for i in range(messages)]

    def with_set() -> None:
        seen = set()
        for _, number in traffic:
            if number not in seen:
                seen.add(number)

    def with_detector() -> None:
        judge = ChainDetector().judge
        for previous, number in traffic:
            judge(previous, number)

    times = best({"set": with_set, "detector": with_detector}, rounds)
    print(f"\n## Scalar engine against a Python set, {messages:,} messages in order\n")
    print("| way | ns per message | speed, set = 1 |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e9 * seconds / messages:.0f} | {times['set'] / seconds:.2f} |")


def old_duplicates(rounds: int) -> None:
    from onefold import ChainDetector

    print("\n## An old duplicate, by the number of open gaps\n")
    print("| gaps | ns per duplicate |\n|---|---|")
    for gaps in (10, 100, 1_000, 9_000):
        detector = ChainDetector()
        numbers = [(i * 20, 0) for i in range(gaps + 1)]
        for previous, number in zip([None, *((t - 10, 0) for t, _ in numbers[1:])], numbers, strict=True):
            detector.judge(previous, number)
        copies = [((t - 10, 0), (t, 0)) for t, _ in numbers[1:]] * (90_000 // gaps)

        def again(copies: Any = copies, judge: Any = detector.judge) -> None:
            for previous, number in copies:
                judge(previous, number)

        print(f"| {gaps:,} | {1e9 * best({'x': again}, rounds)['x'] / len(copies):.0f} |")


def state() -> None:
    from onefold.testing.faults import Faults

    print("\n## State as history grows tenfold, same disorder\n")
    print("| messages per chain | bytes per chain | with 0.2 % lost for ever | ids in a set |\n|---|---|---|---|")
    for rows in (20_000, 200_000, 2_000_000):
        size, _ = _state(rows, Faults(losses=0.0))
        lossy, gaps = _state(rows, Faults())
        print(f"| {rows // 20:,} | {size:.0f} | {lossy:,.0f} ({gaps:.0f} lost ranges) | {rows * 0.9 / 20:,.0f} |")


def _state(rows: int, faults: Any) -> tuple[float, float]:
    """Bytes and missing ranges per chain, after all of the traffic."""
    from onefold import ChainDetector
    from onefold.testing.traffic import Traffic, make

    table = make(Traffic(rows=rows, chains=20, faults=faults)).messages
    numbers = ("previous_timestamp", "previous_sequence", "timestamp", "sequence")
    detectors: dict[tuple[Any, ...], ChainDetector] = {}
    for *key, pt, ps, t, s in zip(*(table[name].to_pylist() for name in (*KEY, *numbers)), strict=True):
        detector = detectors.setdefault(tuple(key), ChainDetector())
        detector.judge(None if pt is None else (pt, ps), (t, s))
    sizes = [len(detector.snapshot()) for detector in detectors.values()]
    return sum(sizes) / 20, sum(len(detector.missing()) for detector in detectors.values()) / 20


def spark(rows: int, rounds: int, counts: list[int]) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from onefold.spark import judge_chains
    from onefold.spark.session import session
    from onefold.testing.traffic import Traffic, make, write

    context = session()
    number = [*KEY, "timestamp", "sequence"]
    order = Window.partitionBy(*number).orderBy("arrival")
    steps = {
        "dropDuplicates": lambda df: df.dropDuplicates(number),
        "row_number": lambda df: df.withColumn("n", F.row_number().over(order)).where("n = 1").drop("n"),
        "judge_chains": judge_chains(),
        "shuffle": lambda df: df.repartition(*KEY),
    }
    print(f"\n## Spark, {rows:,} rows of 11 columns, verdict and reason on every row\n")
    print("| chains | dropDuplicates | row_number | judge_chains | shuffle alone |\n|---|---|---|---|---|")
    for chains in counts:
        with tempfile.TemporaryDirectory() as folder:
            write(make(Traffic(rows=rows, chains=min(chains, rows))), Path(folder) / "traffic", files=4)
            df = context.read.parquet(f"{folder}/traffic/messages")
            judged = {name: df.transform(step) for name, step in steps.items()}
            times = best({name: partial(to_nowhere, table) for name, table in judged.items()}, rounds, 6)
        peer = times["dropDuplicates"]
        cells = [f"{seconds:.2f} s, {peer / seconds:.2f}x" for seconds in times.values()]
        print(f"| {chains:,} | {' | '.join(cells)} |", flush=True)


def to_nowhere(table: Any) -> None:
    table.write.format("noop").mode("overwrite").save()


def tasks() -> None:
    """What a judging task costs besides its rows: a small table in eight of them, in processes of their own."""
    print("\n## 400 rows of 100 chains in 8 tasks\n")
    print("| the JVM and its workers talk over | seconds |\n|---|---|")
    for talk, enabled in (("Unix sockets, the default on one machine", "true"), ("TCP", "false")):
        print(f"| {talk} | {_alone(f'small({enabled!r})')} |", flush=True)


def small(unix_sockets: str) -> None:
    """Judge a small table again and again, and print the best time."""
    from onefold.spark import judge_chains
    from onefold.spark.session import session
    from onefold.testing.traffic import Traffic, make, write

    context = session(config={"spark.python.unix.domain.socket.enabled": unix_sockets})
    with tempfile.TemporaryDirectory() as folder:
        write(make(Traffic(rows=400, chains=100)), Path(folder) / "traffic", files=4)
        judged = context.read.parquet(f"{folder}/traffic/messages").transform(judge_chains(partitions=8))
        print(f"{best({'x': partial(to_nowhere, judged)}, rounds=40, warm_up=20)['x']:.3f}")


def _alone(call: str) -> str:
    """What a function of this file prints in a process of its own."""
    code = f"import sys; sys.path.insert(0, 'benchmarks'); import chains; chains.{call}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def memory() -> None:
    print("\n## Memory of a task's Python side, one chain, at most 500,000 rows in memory\n")
    print("| rows in the partition | peak MB |\n|---|---|")
    for rows in (500_000, 2_000_000, 8_000_000):
        print(f"| {rows:,} | {_alone(f'spill({rows})')} |", flush=True)


def spill(rows: int) -> None:
    """Judge one long chain in a process of its own and print its peak memory."""
    import numpy as np

    from onefold.chains.columns import ColumnarDetector
    from onefold.spark.host import KeyColumns, judge_partition

    def parts() -> Any:
        for start in range(0, rows, 10_000):
            number = np.arange(start, start + 10_000) + 1
            same = np.zeros(10_000, np.int64)
            yield KeyColumns(same, same, number, number - 1, number, same)

    before = _peak_kb(reset=True)
    judged = sum(len(codes) for codes in judge_partition(parts(), ColumnarDetector().judge, 500_000))
    assert judged == rows
    print(f"{(_peak_kb() - before) / 1024:.0f}")


def _peak_kb(reset: bool = False) -> int:
    if reset:  # else the peak of the process that started this one is still in it
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--chains", type=int, nargs="+", default=CHAINS, help="how many chains, with Spark")
    parser.add_argument("--only", choices=["scalar", "spark", "state", "tasks", "memory"])
    options = parser.parse_args()
    if options.only in (None, "scalar"):
        scalar(options.rows // 2, options.rounds)
        old_duplicates(options.rounds)
    if options.only in (None, "state"):
        state()
    if options.only in (None, "spark"):
        spark(options.rows, options.rounds, options.chains)
    if options.only in (None, "tasks"):
        tasks()
    if options.only in (None, "memory"):
        memory()


if __name__ == "__main__":
    main()
