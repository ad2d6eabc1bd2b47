"""./run soak reconcile: many clients at once reconcile their stores with one server, on a busy machine; then count.

The server is ``onefold serve reconcile`` over a SQLite file. Every client is a separate ``onefold reconcile``, with a
copy of that file that lacks some records and has some of its own. All start at the same time, beside programs that only
burn CPU. Each must exit with 0 and must have found exactly its own records; in the end the server must hold all records
of all clients, and each client all but those that others pushed after it had looked.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does: benchmarks and tests are packages of the root

from tests.lib.crowd import crowd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--differences", type=int, default=100, help="of each client, and as many the other way")
    parser.add_argument("--burners", type=int, default=2, help="programs that only take the processor")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onefold-reconcile-") as folder:
        told = crowd(Path(folder), **vars(options))
    print("; ".join(f"{name} {value}" for name, value in told.items()))
    print(f"{options.clients} clients at once, {options.records:,} records: all exact")


if __name__ == "__main__":
    main()
