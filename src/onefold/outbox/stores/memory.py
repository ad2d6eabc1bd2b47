"""A ledger and a queue in memory: right among the threads of one process, gone with it.

They are those of `sqlite`, over a database that has no file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from onefold.clock import wall_ms
from onefold.outbox.stores.sqlite import (
    LEDGER_SCHEMA,
    POLL_S,
    QUEUE_SCHEMA,
    Borrowed,
    SharedFile,
    SqliteLedger,
    SqliteQueue,
)


class InMemory(Borrowed):
    """A connection to a database of its own, which is gone when it is closed."""

    path = "memory://"

    def __init__(self, schema: Sequence[str], kind: str) -> None:
        super().__init__(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), schema, kind)

    close = SharedFile.close


class MemoryLedger(SqliteLedger):
    """A `Ledger` in memory.

    >>> from onefold.outbox import plans
    >>> ledger = MemoryLedger()
    >>> ledger.create([plans.Create("", "a1", (("t1", "orders"),), guarded=False)])
    [True]
    >>> ledger.settle([plans.Settle(plans.Entity(plans.Key("shop", "7"), state={"paid": 20}), "t1", "t1")] * 2)
    [<Settled.DONE: 'done'>, <Settled.NO_TOKEN: 'no_token'>]
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms, realm: str | None = None) -> None:
        """Begin with nothing; ``realm``: the name that messages know this store by, a new one if it is not given."""
        self._begin(InMemory(LEDGER_SCHEMA, "ledger"), clock_ms, realm)


class MemoryQueue(SqliteQueue):
    """A `Queue` in memory.

    >>> from onefold.outbox.ports import Parcel
    >>> queue = MemoryQueue(lambda: 0)
    >>> queue.send([Parcel("orders", b"{}")])
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    [Delivery(queue='orders', payload=b'{}', receipt='1-1', times=1)]
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    []
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms) -> None:
        self._begin(InMemory(QUEUE_SCHEMA, "queue"), clock_ms, POLL_S)
