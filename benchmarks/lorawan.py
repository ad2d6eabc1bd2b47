"""./run bench lorawan: one gateway server, the coordinator, the Spark job.

    server         frames per second through one server on one core, and the decision latency at half that load
    coordinator    claims per second through Redis, SQLite and memory, against alternatives on Redis
    spark          receptions judged per second, against window functions

Each part prints ratios against its peers, measured in the same run.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does: benchmarks and tests are packages of the root


def server(receptions: int, rounds: int) -> tuple[Any, str]:
    from benchmarks.radio import server

    found = server.measure(receptions, rounds)
    return found, "## One server on one core\n\n" + server.table(found)


def coordinator(rounds: int) -> tuple[Any, str]:
    from benchmarks.radio import coordinator

    rates = coordinator.measure(rounds=rounds)
    heading = "## Claims per second through the coordinator (and as a multiple of SET NX's)\n\n"
    return [rate._asdict() for rate in rates], heading + coordinator.table(rates)


def spark(rows: int, rounds: int) -> tuple[Any, str]:
    from benchmarks.radio import spark
    from onefold.spark.session import session

    frames = [count for count in (10_000, 200_000, 1_000_000) if 2 * count <= rows] or [max(1, rows // 2)]
    rates = spark.measure(session(), rows, frames, rounds=rounds)
    lines = [f"## {rows:,} receptions on Spark, rows per second (and as a multiple of dropDuplicates')", ""]
    lines += ["| way | " + " | ".join(f"{count:,} frames" for count in frames) + " |", "|---|" + "---|" * len(frames)]
    for way in dict.fromkeys(rate.way for rate in rates):
        cells = [f"{rate.rows_s:,.0f} ({rate.ratio:.2f}x)" for rate in rates if rate.way == way]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return [rate._asdict() for rate in rates], "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["server", "coordinator", "spark"])
    parser.add_argument("--receptions", type=int, default=60_000, help="of each load of the server")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the Spark job")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object on standard output")
    options = parser.parse_args()
    parts: dict[str, Callable[[], tuple[Any, str]]] = {
        "server": lambda: server(options.receptions, options.rounds),
        "coordinator": lambda: coordinator(options.rounds),
        "spark": lambda: spark(options.rows, options.rounds),
    }
    found = {}
    for name, part in parts.items():
        if options.only in (None, name):
            found[name], text = part()
            print(f"\n{text}", file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
