"""The counters of devices in memory: right among the threads of one process, gone with it; so are unfinished bodies.

They are those of `sqlite`, over a database that has no file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from onefold.lorawan.stores.sqlite import SCHEMA, SqliteCounters
from onefold.stores.sqlite import Database


class InMemory(Database):
    def __init__(self) -> None:
        self.path = "memory://"
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in SCHEMA:
            self._connection.execute(statement)


class MemoryCounters(SqliteCounters):
    """A `CounterStore` in memory.

    >>> from onefold.lorawan.rules import Claim
    >>> counters = MemoryCounters(lambda: 0)
    >>> a, b = counters.claim([Claim("0004a30b001c0530", server, fcnt_up=7) for server in ("a", "b")])
    >>> a.won, b.won, b.server
    (True, False, 'a')
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """Begin with nothing; the clock says when what is kept for a while (``keep_ms``) is to be forgotten."""
        self._begin(InMemory(), clock_ms)
