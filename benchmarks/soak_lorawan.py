"""./run soak lorawan: two gateway servers, a Redis, three stations each hearing every frame; killed, and counted.

    truth     simulated traffic with all that can happen (roll-overs, restarts, replays, forgeries), through one server
    whole     nothing goes wrong: 10,000 confirmed frames under each strategy
    kills     kill -9 of one server or the other under load, started again; under Drop
    retries   the same, and devices send again what is not acknowledged: then nothing is lost
    redis     Redis is killed and started again; claims wait meanwhile (--when-down park); under Drop

Every time: nothing is acknowledged by two servers, nothing is upstream twice under Drop, whatever is acknowledged is
upstream. What a killed server had won and not stored waits in the outbox of the coordinator, and is stored when it is
back: nothing is lost between claim and log. The suite runs a fiftieth of it.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does: benchmarks and tests are packages of the root

from tests.lib.gateway_trials import RATE, kills, redis, retries, truth, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=float, default=RATE, help="receptions a second, both servers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["truth", "whole", "kills", "retries", "redis"])
    options = parser.parse_args()
    frames, seed, rate = options.frames, options.seed, options.rate
    parts: dict[str, Callable[[Path], str]] = {
        "truth": lambda root: truth(root, frames, seed=seed, rate=rate)[0],
        "whole": lambda root: whole(root, frames, rate=rate),
        "kills": lambda root: kills(root, frames, options.kills, seed=seed, rate=rate)[0],
        "retries": lambda root: retries(root, frames, options.kills, seed=seed, rate=rate)[0],
        "redis": lambda root: redis(root, frames, options.kills, seed=seed, rate=rate)[0],
    }
    for name, part in parts.items():
        if options.only in (None, name):
            began = monotonic()
            with tempfile.TemporaryDirectory(prefix=f"onefold-lorawan-{name}-") as root:
                print(f"{name}: {part(Path(root))} [{monotonic() - began:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
