"""./run soak outbox: 100,000 orders are placed, paid and shipped by processes that are killed; then count.

    till -> orders -> payments -> shipping      entities and tokens in PostgreSQL, messages in NATS JetStream

The till and two consumers of each stage are processes. At least 100 times one of them is killed (SIGKILL) under load
and restarted; now and then one is stopped for longer than its lease and resumes while another one has its messages.
With ``--servers`` PostgreSQL and NATS are killed and restarted, too. With ``--tokens`` the tokens are kept separately,
in Redis, with the plan given there.

At the end every order must be placed, paid and shipped exactly once, counted by SQL, and no token, outbox entry or
message may be left. Exit code 1 if a check fails. The suite runs a thirtieth of it.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does: benchmarks and tests are packages of the root

from tests.lib.shop.counting import Place
from tests.lib.shop.crew import Trouble, shop
from tests.lib.shop.servers import Servers


def table(done: Counter[str], cut_off: int, many: int, seconds: float) -> str:
    """What was done, and how fast it went all the same."""
    rows = [
        *sorted(done.items()),
        ("outbox not empty then", cut_off),
        ("orders", many),
        ("messages", 3 * many),
        ("messages/s", round(3 * many / seconds)),
    ]
    return "\n".join(f"{name:<24}{count:>10,}" for name, count in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--customers", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--freezes", type=int, default=5, help="workers stopped for longer than their lease")
    parser.add_argument("--servers", type=int, default=0, metavar="N", help="restarts of servers, in turn")
    parser.add_argument("--each", type=int, default=2, help="consumers of each stage")
    parser.add_argument("--tokens", choices=["parented", "checkpointed"], help="tokens in Redis, by this plan")
    parser.add_argument("--minutes", type=float, default=30, help="it must end by then")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onefold-outbox-") as folder, Servers(Path(folder)) as servers:
        store, transport = servers.postgres(), servers.nats()
        place = Place(store, transport, servers.redis() if given.tokens else "", given.tokens or "")
        trouble = Trouble(
            given.kills, freezes=given.freezes, restarts=servers.restarts, restart_count=given.servers, seed=given.seed
        )
        began = monotonic()
        try:
            told, seconds = shop(
                Path(folder), place, given.orders, trouble, customers=given.customers, each=given.each,
                within_s=60 * given.minutes, say=lambda line: print(line, flush=True),
            )  # fmt: skip
        except AssertionError as error:
            print(f"OFF after {monotonic() - began:.0f} s, {dict(trouble.done)}: {str(error)[:4_000]}", flush=True)
            return 1
    print(
        table(trouble.done, trouble.cut_off, given.orders, seconds), f"{told} [{seconds:.0f} s]", sep="\n", flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
