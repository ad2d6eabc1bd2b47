"""./run soak producers: topics that lose power, fail to write and are killed; then count.

    power    a topic on a simulated disk: power fails before every operation in turn. For each, several possible disk
             contents (writes lost, torn, reordered) are opened; every producer resends messages without a receipt
    faults   each operation of a topic's life fails with EIO, ENOSPC or EROFS; the producers retry
    log      the same two for the log alone, with retention, recovery from recovery, and snapshots (tests/lib/power.py)
    kills    ``onefold serve ingest`` under load, kill -9 at random moments, restarted; the clients retry
    spark    a Spark stream reads the log while ``onefold publish`` and the server are killed and restarted

Each part checks: no message with a receipt is missing, none is stored twice, each producer's are in order. A control
with deduplication off must show duplicates. The suite runs a tenth of it.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does: benchmarks and tests are packages of the root

from tests.lib.power import Counts, cut_everywhere, fail_everywhere, many_lives
from tests.lib.producer_trials import faults, kills, power, reading

POINTS, STATES, KILLS = 5_000, 20_000, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["power", "faults", "log", "kills", "spark"])
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--states", type=int, default=STATES)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "power": lambda: _until(lambda seed: power(seed)[0], options, "power cuts of a topic"),
        "faults": lambda: _until(faults, options, "failing operations of a topic", states=0, share=10),
        "log": lambda: _log(options),
        "kills": lambda: print(kills(options.kills, options.seed, say=lambda line: print(line, flush=True))),
        "spark": lambda: _reading(options),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()
    if options.only in (None, "power"):
        _, doubles = power(options.seed, deduplicate=False)
        assert doubles, "the control has no duplicates: the soak proves nothing"
        print(f"control, deduplication off: {doubles:,} messages stored twice")


def _until(
    look: Callable[[int], Counts], options: argparse.Namespace, what: str, states: int | None = None, share: int = 1
) -> None:
    total, seed, began = Counts(), options.seed, monotonic()
    while total.points < options.points // share or total.states < (options.states if states is None else states):
        counts = look(seed)
        total.points += counts.points
        total.states += counts.states
        seed += 1
    print(f"{what}: {total.points:,} points, {total.states:,} states, {monotonic() - began:.0f} s: "
          "nothing lost, nothing twice", flush=True)  # fmt: skip


def _reading(options: argparse.Namespace) -> None:
    from onefold.spark.session import session

    with tempfile.TemporaryDirectory(prefix="onefold-reading-") as folder:
        print(reading(session("local[2]"), Path(folder), options.kills // 5, 20_000, seed=options.seed), flush=True)


def _log(options: argparse.Namespace) -> None:
    _until(cut_everywhere, options, "power cuts of a log")
    _until(many_lives, options, "lives of a log", states=0)
    _until(fail_everywhere, options, "failing operations of a log", states=0)


if __name__ == "__main__":
    main()
