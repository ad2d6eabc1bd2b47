"""The counters of devices in a SQLite file, for all processes of one machine.

A batch of claims is one transaction, with one sync. It takes the write lock at its beginning, so nobody else can write
between its reads and writes. A batch in which all claims are lost and none is finished costs no sync. A second table
holds the messages of claims that were won and are not yet stored upstream, a third the nonces, some 50 bytes a row. An
older file without the column ``frame`` gets it when it is opened.

`MemoryCounters` does the same in a database without a file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from threading import Lock

from onefold.errors import Misuse
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished, decide, decide_join, won_before
from onefold.stores.sqlite import BUSY_S, Database

SCHEMA = (
    """
    create table if not exists lorawan_counters (
        device text primary key,
        fcnt_up integer not null,
        fcnt_down integer not null,
        server text not null,
        until_ms integer,
        frame text not null default ''
    ) without rowid
    """,
    "create index if not exists lorawan_counters_due on lorawan_counters (until_ms) where until_ms is not null",
    """
    create table if not exists lorawan_unfinished (
        server text,
        number integer,
        device text not null,
        fcnt_up integer not null,
        body text not null,
        primary key (server, number)
    ) without rowid
    """,
    """
    create table if not exists lorawan_nonces (
        device text,
        nonce integer,
        primary key (device, nonce)
    ) without rowid
    """,
)
KNOWN_MAX = 500
"""Devices in one statement; SQLite takes 999 values or more."""

_KNOWN = """
    select device, fcnt_up, fcnt_down, server, frame from lorawan_counters
    where (until_ms is null or until_ms > ?) and device in ({})
"""
_FIND = _KNOWN.format("?")
_KEEP = """
    insert or replace into lorawan_counters (device, fcnt_up, fcnt_down, server, frame, until_ms)
    values (?, ?, ?, ?, ?, ?)
"""
_USED = "select 1 from lorawan_nonces where device = ? and nonce = ?"
_USE = "insert or ignore into lorawan_nonces (device, nonce) values (?, ?)"
_COLUMNS = "select name from pragma_table_info('lorawan_counters')"
_ADD_FRAME = "alter table lorawan_counters add column frame text not null default ''"
_PUT = "insert or replace into lorawan_unfinished (server, number, device, fcnt_up, body) values (?, ?, ?, ?, ?)"
_FINISH = "delete from lorawan_unfinished where server = ? and number = ?"
_UNFINISHED = "select number, device, fcnt_up, body from lorawan_unfinished where server = ? order by number"
_KEPT = "select number, device, fcnt_up, body from lorawan_unfinished where server = ? and number = ?"
_PURGE = "delete from lorawan_counters where until_ms <= ?"


class SqliteCounters:
    """A `CounterStore` in a file: durable (WAL, every commit synced), shared by threads and processes.

    All processes that share the file must use the same clock: it decides when entries with ``keep_ms`` expire.
    """

    def __init__(self, path: str | PathLike[str], clock_ms: Callable[[], int], *, busy_s: float = BUSY_S) -> None:
        """Open or create the file. A call that waits longer than ``busy_s`` for other writers raises `StoreFailed`."""
        self._begin(Database(path, SCHEMA, busy_s=busy_s), clock_ms)

    def _begin(self, database: Database, clock_ms: Callable[[], int]) -> None:
        self._database, self._clock_ms = database, clock_ms
        self._lock = Lock()  # one connection, one transaction at a time
        self._open = True
        with database.writing() as db:
            if ("frame",) not in db.execute(_COLUMNS).fetchall():
                db.execute(_ADD_FRAME)

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        with self._exclusive():
            if not claims and not finished:
                return []
            with self._database.writing() as db:
                now_ms = self._clock_ms()  # after the wait for the write lock
                db.execute(_PURGE, [now_ms])
                db.executemany(_FINISH, finished)
                return [_claim(db, claim, now_ms) for claim in claims]

    def unfinished(self, server: str) -> list[Unfinished]:
        with self._exclusive(), self._database.reading() as db:
            return [Unfinished(*row) for row in db.execute(_UNFINISHED, [server])]

    def known(self, devices: Sequence[str]) -> list[Counters | None]:
        counters: dict[str, Counters] = {}
        with self._exclusive():
            now_ms = self._clock_ms()
            for at in range(0, len(devices), KNOWN_MAX):
                part = devices[at : at + KNOWN_MAX]
                query = _KNOWN.format(", ".join("?" * len(part)))
                with self._database.reading() as db:
                    counters |= {device: Counters(*row) for device, *row in db.execute(query, [now_ms, *part])}
        return [counters.get(device) for device in devices]

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._database.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._lock:
            if not self._open:
                raise Misuse(f"{self._database.path}: these counters were closed")
            yield


class InMemory(Database):
    def __init__(self) -> None:
        self.path = "memory://"
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in SCHEMA:
            self._connection.execute(statement)


class MemoryCounters(SqliteCounters):
    """A `CounterStore` in memory, for the threads of one process.

    >>> counters = MemoryCounters(lambda: 0)
    >>> a, b = counters.claim([Claim("0004a30b001c0530", server, fcnt_up=7) for server in ("a", "b")])
    >>> a.won, b.won, b.server
    (True, False, 'a')
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._begin(InMemory(), clock_ms)


def _claim(db: sqlite3.Connection, claim: Claim, now_ms: int) -> Claimed:
    row = db.execute(_FIND, [now_ms, claim.entry]).fetchone()
    before = Counters(*row[1:]) if row else None
    if claim.nonce is None:
        counters, claimed = decide(before, claim)
    else:
        counters = Counters(claim.fcnt_up, 0, claim.server)
        used = db.execute(_USED, [claim.device, claim.nonce]).fetchone() is not None
        claimed = decide_join(before, claim, used=used)
    if not claimed.won:
        row = db.execute(_KEPT, [claim.server, claim.number]).fetchone() if claim.body else None
        return claimed._replace(won=won_before(Unfinished(*row) if row else None, claim))
    until_ms = now_ms + claim.keep_ms if claim.keep_ms else None
    db.execute(_KEEP, [claim.entry, *counters, until_ms])
    if claim.nonce is not None:
        db.execute(_USE, [claim.device, claim.nonce])
    if claim.body:
        db.execute(_PUT, [claim.server, claim.number, claim.device, claim.fcnt_up, claim.body])
    return claimed
