"""./run soak lorawan: two gateway servers, a Redis, three stations that all hear every frame; kill, then count.

    truth     simulated traffic with every case (roll-overs, restarts, replays, forgeries), through one server
    whole     no faults: 10,000 confirmed frames under each strategy
    kills     kill -9 of one server or the other under load, then restart; under Drop
    retries   the same, with devices that resend unacknowledged frames: then nothing is lost
    redis     Redis is killed and restarted; claims wait meanwhile (--when-down park); under Drop

Each part checks: no frame is acknowledged by two servers, none is upstream twice under Drop, every acknowledged frame
is upstream. A frame that a killed server had won but not stored waits in the coordinator's outbox, and is stored when
the server is back: nothing is lost between claim and log. The suite runs a fiftieth of it.
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
