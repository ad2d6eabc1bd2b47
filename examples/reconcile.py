"""A phone and a laptop sync their notes: missing notes are found and copied in both directions, despite a crash.

The laptop serves its store (`onefold serve reconcile laptop.db`); the phone reconciles with it (`onefold reconcile
phone.db ws://...`). Each record is verified by its id before it is stored.

Run it: python examples/reconcile.py
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onefold.reconcile import (
    ReconcileServer,
    ReconcileSettings,
    Reconciliation,
    Records,
    dial,
    open_records,
    reconcile,
    record,
)


class Killed(Exception):
    """The battery is empty."""


def write(store: Records, *numbers: int) -> None:
    """Add notes, each with the time of writing."""
    store.add([record(1_700_000_000 + 60 * number, b"note %d" % number) for number in numbers])


@contextmanager
def served(store: Records) -> Iterator[str]:
    """The URL of a server, which closes the store at the end."""
    server = ReconcileServer(store, ReconcileSettings(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        server.ready.wait()
        yield server.url
    finally:
        server.stop()
        thread.join()


def show(done: Reconciliation) -> None:
    print(f"  only here {done.have}, only there {done.need}")
    print(f"  pulled: {done.pulled}")
    print(f"  pushed: {done.pushed}")
    print(f"  both hold {done.here:,} now: {done.settled and done.here == done.there}")


def main() -> None:
    """Reconcile, get killed in the middle, and continue."""
    with tempfile.TemporaryDirectory() as folder:
        phone, laptop = (open_records(str(Path(folder) / name)) for name in ("phone.db", "laptop.db"))
        write(phone, *range(10_000), 31_337)
        write(laptop, *range(10_000), 40_000, 40_001)
        with served(laptop) as url:
            print("a few notes differ")
            show(reconcile(phone, dial(url)))

            write(laptop, *range(20_000, 20_500))

            def die(line: str) -> None:
                if line.startswith("pulled"):
                    raise Killed

            with suppress(Killed):
                reconcile(phone, dial(url), say=die)
            print(f"killed: {len(phone) - 10_003} of 500 notes are here")
            show(reconcile(phone, dial(url)))
        phone.close()


if __name__ == "__main__":
    main()
