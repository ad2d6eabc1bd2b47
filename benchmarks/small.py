"""./run bench small: five rows, with every setting at its default, against ``dropDuplicates`` of the same rows.

The cost in a unit test of a user's pipeline: a session with Spark's own defaults (200 shuffle partitions, adaptive
execution), a hand-made table of five rows, and the output collected. A table of unknown size (read through a Python
function) is measured too. They take turns; each keeps its best time.
"""

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

ROWS = [("a", 1, None), ("a", 2, 1), ("a", 2, 1), ("b", 1, None), ("b", 4, 3)]
NAMES = "key string, timestamp long, previous_timestamp long"


def ways() -> dict[str, Callable[[Any], Any]]:
    from onefold.spark import ChainColumns, ProducerColumns, judge_chains, judge_producers

    chains = ChainColumns(key=("key",), sequence=None, previous_sequence=None, arrival=None)
    producers = ProducerColumns(producer=("key",), sequence="timestamp", order=None)
    return {
        "dropDuplicates": lambda df: df.dropDuplicates(["key", "timestamp"]),
        "judge_chains": judge_chains(chains),
        "judge_producers": judge_producers(producers),
    }


def main() -> None:
    from onefold.spark import local_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    spark = local_session()
    spark.conf.unset("spark.sql.shuffle.partitions")
    table = spark.createDataFrame(ROWS, NAMES)
    tables = {
        "five rows": table,
        "of unknown size": table.mapInArrow(lambda batches: batches, NAMES),
    }
    print("| rows | way | first time | best time | ratio |\n|---|---|---|---|---|")
    for name, rows in tables.items():
        times: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for way, step in ways().items():
                started = perf_counter()
                if len(rows.transform(step).collect()) < 4:
                    raise SystemExit(f"{way} lost rows")
                times.setdefault(way, []).append(perf_counter() - started)
        peer = min(times["dropDuplicates"])
        for way, seconds in times.items():
            best = min(seconds)
            print(f"| {name} | {way} | {seconds[0]:.2f} s | {best * 1000:.0f} ms | {best / peer:.2f} |", flush=True)


if __name__ == "__main__":
    main()
