"""A queue in a SQLite file, for all processes of one machine.

A row is a parcel. ``due_ms`` is 0 while it waits; on loan, or given back with a delay, it says when it may be given out
again. So one index by queue and ``due_ms`` leads to both: those that wait, in their order, and those whose time came.
From each no more than the batch is read, however many rows there are. ``loan`` is the number of the delivery that holds
the row. It is part of the receipt, and a receipt whose loan is over changes nothing.

Positions are never used twice (``autoincrement``): else a late acknowledgement could hit a new parcel.

Each verb is one transaction, one sync for the whole batch; with nothing to write there is none. Who waits asks SQLite
for ``data_version``, which changes when another connection wrote, and is woken at once by threads of its own process.

The clock must be the same for all that share the file. One that is set forward ends leases early: then there are
copies, which a queue may always deliver. One that comes back again would leave rows due in months. So a row keeps how
long its lease or delay is (``span_ms``), and one that began later than it is now is due. To find those without another
index, each look asks when the row of each queue that is due last began. If that is no time to come, no row of the queue
waits longer than that one does, which is at most its own lease or delay; if it is, all such rows are made due.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from threading import Condition
from time import monotonic

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox.ports import Buried, Delivery, Parcel, Strayed
from onefold.outbox.stores.queues import (
    REASON_MAX,
    STEP_MS,
    check_lease,
    check_least,
    check_parcels,
    letter_number,
    numbered,
)
from onefold.stores.sqlite import BUSY_S, Database

POLL_S = 0.02
"""How long a parcel of another process may lie unseen: a fiftieth of a second; a look costs some microseconds."""

SPAN_MS = 3_600_000
"""Taken for the length of a lease that an earlier version gave, which did not say: an hour, a dozen times the longest
delay by default."""

SCHEMA = (
    f"""
    create table if not exists outbox_queue (
        position integer primary key autoincrement,
        queue text not null,
        due_ms integer not null default 0,
        loan integer not null default 0,
        times integer not null default 0,
        payload blob not null,
        span_ms integer not null default {SPAN_MS}
    )
    """,
    "create index if not exists outbox_queue_due on outbox_queue (queue, due_ms)",
    """
    create table if not exists outbox_buried (
        number integer primary key autoincrement,
        queue text not null,
        reason text not null,
        at_ms integer not null,
        payload blob not null
    )
    """,
    "create index if not exists outbox_buried_queue on outbox_buried (queue)",
)
_SEND = "insert into outbox_queue (queue, payload) values (?, ?)"
_FIND = """
    select position from (
        select * from (select position from outbox_queue where queue = ?1 and due_ms = 0 order by position limit ?3)
        union all
        select * from (
            select position from outbox_queue where queue = ?1 and due_ms > 0 and due_ms <= ?2 order by due_ms limit ?3
        )
    ) order by position limit ?3
"""
_LEND = """
    update outbox_queue set due_ms = ?1 + ?2, span_ms = ?2, times = times + 1, loan = times + 1
    where position in (select value from json_each(?3))
    returning position, queue, payload, times
"""
_NEXT = "select min(due_ms) from outbox_queue where queue = ? and due_ms > 0"
_BEGAN = "select due_ms - span_ms from outbox_queue where queue = ? and due_ms > 0 order by due_ms desc limit 1"
_FREE = "update outbox_queue set due_ms = 0 where queue = ?1 and due_ms > ?2 and due_ms - span_ms > ?2"
_STRAYED = """
    select queue, count(*), max(due_ms) - ?1 from outbox_queue where due_ms - span_ms > ?1 + ?2
    group by queue order by queue
"""
_REMOVE = "delete from outbox_queue where position = ? and loan = ?"
_EXTEND = """
    update outbox_queue set due_ms = ?1 + ?2, span_ms = ?2 where position = ?3 and loan = ?4 and due_ms > ?1
"""
_RELEASE = "update outbox_queue set due_ms = ?, span_ms = ?, loan = 0 where position = ? and loan = ?"
_BURY = """
    insert into outbox_buried (queue, reason, at_ms, payload)
    select queue, ?, ?, payload from outbox_queue where position = ? and loan = ?
"""
_BURIED = """
    select queue, payload, cast(number as text), reason, at_ms from outbox_buried order by number limit ?
"""
_BURIED_OF = """
    select queue, payload, cast(number as text), reason, at_ms from outbox_buried
    where queue = ? order by number limit ?
"""
_BACK = "insert into outbox_queue (queue, payload) select queue, payload from outbox_buried where number = ?"
_FORGET = "delete from outbox_buried where number = ?"
_WAITING = "select queue, count(*) from outbox_queue group by queue"


class SqliteQueue:
    """A `Queue` in a file: durable (WAL, every commit synced), shared by threads and processes.

    The file may be the one that the ledger is in. Both write it in turns.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        clock_ms: Callable[[], int] = wall_ms,
        *,
        poll_s: float = POLL_S,
        busy_s: float = BUSY_S,
    ) -> None:
        """Open or create the file; other writers are waited for ``busy_s`` at most, then it is `StoreFailed`."""
        if not poll_s > 0:
            raise Misuse(f"poll_s is {poll_s}, must be more than 0", poll_s=poll_s)
        self._clock_ms = clock_ms
        self._poll_s = poll_s
        self._database = Database(path, SCHEMA, busy_s=busy_s)
        self._add_span()
        self._changed = Condition()  # its lock guards the connection: one transaction at a time
        self._changes = 0
        self._open = True

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Take them all, in one transaction."""
        check_parcels(parcels)
        with self._writing(parcels) as db:
            db.executemany(_SEND, parcels)
            self._tell()

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[Delivery]:
        """The oldest of all these queues together; a waiter that the queue is closed on is told so by `Misuse`."""
        queues = check_lease(queues, limit, lease_ms, wait_ms)
        deadline = monotonic() + wait_ms / 1000
        with self._changed:
            self._check_open()
            while True:
                seen = self._seen()  # before looking: what comes while we look is noticed after it
                self._free(queues)
                if self._find(queues, 1) and (leased := self._lend(queues, limit, lease_ms)):
                    return leased
                if not self._wait(deadline, queues, seen):
                    return []

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget them; one whose lease ran out too, unless it was given out again."""
        lent = [numbered(delivery) for delivery in deliveries]
        with self._writing(lent) as db:
            db.executemany(_REMOVE, lent)

    def extend(self, deliveries: Sequence[Delivery], lease_ms: int) -> None:
        """Let the leases run from now, of those that still do."""
        check_least("lease_ms", lease_ms, 1)
        lent = [numbered(delivery) for delivery in deliveries]
        with self._writing(lent) as db:
            now_ms = self._clock_ms()
            db.executemany(_EXTEND, [(now_ms, lease_ms, *loan) for loan in lent])

    def release(self, deliveries: Sequence[Delivery], delay_ms: int = 0) -> None:
        """Give them out again, after so long; this receipt is worth nothing any more."""
        check_least("delay_ms", delay_ms, 0)
        lent = [numbered(delivery) for delivery in deliveries]
        with self._writing(lent) as db:
            due_ms = self._clock_ms() + delay_ms if delay_ms else 0
            db.executemany(_RELEASE, [(due_ms, delay_ms, *loan) for loan in lent])
            self._tell()

    def bury(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Set them aside; one that was given out again is left to whom it was given to."""
        lent = [numbered(delivery) for delivery in deliveries]
        with self._writing(lent) as db:
            told = reason[:REASON_MAX], self._clock_ms()
            db.executemany(_BURY, [(*told, *loan) for loan in dict.fromkeys(lent)])
            db.executemany(_REMOVE, lent)

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[Buried]:
        """Dead letters, oldest first."""
        check_least("limit", limit, 1)
        with self._changed:
            self._check_open()
            with self._database.reading() as db:
                rows = db.execute(_BURIED, [limit]) if queue is None else db.execute(_BURIED_OF, [queue, limit])
                return [Buried(*row) for row in rows]

    def dig_up(self, letters: Sequence[Buried], *, deliver: bool) -> None:
        """Put them back or remove them; one that is not there any more does no harm."""
        numbers = [(letter_number(letter),) for letter in dict.fromkeys(letters)]
        with self._writing(numbers) as db:
            if deliver:
                db.executemany(_BACK, numbers)
                self._tell()
            db.executemany(_FORGET, numbers)

    def waiting(self) -> dict[str, int]:
        """How many parcels each queue holds. Cost: all rows of an index are counted."""
        with self._changed:
            self._check_open()
            with self._database.reading() as db:
                return dict(db.execute(_WAITING).fetchall())

    def strayed(self, *, mend: bool = False) -> list[Strayed]:
        """Rows whose lease or delay began later than it is now; all are looked at. Mended in one transaction."""
        with self._writing([mend] if mend else []) as db:
            now_ms = self._clock_ms()
            found = [Strayed(*row) for row in db.execute(_STRAYED, [now_ms, STEP_MS])]
            if mend and found:
                db.executemany(_FREE, [(each.queue, now_ms + STEP_MS) for each in found])
                self._tell()
        return found

    def close(self) -> None:
        """Let go of the file."""
        with self._changed:
            self._open = False
            self._database.close()
            self._changed.notify_all()

    @contextmanager
    def _writing(self, rows: Sequence[object]) -> Iterator[sqlite3.Connection]:
        """A transaction that writes so many rows; without any there is no need for one."""
        with self._changed:
            self._check_open()
            with self._database.writing() if rows else self._database.reading() as db:
                yield db

    def _add_span(self) -> None:
        """A file of an earlier version has no such column."""
        with self._database.reading() as db:
            if _has_span(db):
                return
        with self._database.writing() as db:
            if not _has_span(db):  # nobody else was faster
                db.execute(f"alter table outbox_queue add column span_ms integer not null default {SPAN_MS}")

    def _free(self, queues: Sequence[str]) -> None:
        """Make due what waits for a time that only a wrong clock can have set."""
        now_ms = self._clock_ms()
        strayed = [queue for queue, began_ms in self._began(queues).items() if began_ms > now_ms + STEP_MS]
        if strayed:
            with self._database.writing() as db:
                now_ms = self._clock_ms()  # with the write lock in hand: others went on while we waited for it
                db.executemany(_FREE, [(queue, now_ms + STEP_MS) for queue in strayed])

    def _began(self, queues: Sequence[str]) -> dict[str, int]:
        """When the lease or delay began that ends last; of those queues that have one."""
        with self._database.reading() as db:
            found = {queue: db.execute(_BEGAN, [queue]).fetchone() for queue in queues}
        return {queue: row[0] for queue, row in found.items() if row is not None}

    def _find(self, queues: Sequence[str], limit: int) -> list[int]:
        """Positions that may be given out, the oldest first."""
        now_ms = self._clock_ms()
        with self._database.reading() as db:
            found = [row[0] for queue in queues for row in db.execute(_FIND, [queue, now_ms, limit])]
        return sorted(found)[:limit]

    def _lend(self, queues: Sequence[str], limit: int, lease_ms: int) -> list[Delivery]:
        with self._database.writing() as db:
            found = json.dumps(self._find(queues, limit))
            rows = db.execute(_LEND, [self._clock_ms(), lease_ms, found]).fetchall()
        return [Delivery(queue, payload, f"{at}-{times}", times) for at, queue, payload, times in sorted(rows)]

    def _wait(self, deadline: float, queues: Sequence[str], seen: tuple[int, int]) -> bool:
        """Until there may be something to lease: False if the time is up first."""
        with self._database.reading() as db:
            dues = [db.execute(_NEXT, [queue]).fetchone()[0] for queue in queues]
        next_ms = min((due for due in dues if due is not None), default=None)
        began_ms = max(self._began(queues).values(), default=0)
        while (left := deadline - monotonic()) > 0:
            self._changed.wait(min(left, self._poll_s))
            self._check_open()
            now_ms = self._clock_ms()
            if self._seen() != seen or (next_ms is not None and next_ms <= now_ms) or began_ms > now_ms + STEP_MS:
                return True
        return False

    def _seen(self) -> tuple[int, int]:
        """Another value when this object, or anybody else, wrote the file."""
        with self._database.reading() as db:
            return self._changes, db.execute("pragma data_version").fetchone()[0]

    def _tell(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self._database.path}: this queue was closed")


def _has_span(db: sqlite3.Connection) -> bool:
    return any(name == "span_ms" for _, name, *_ in db.execute("pragma table_info(outbox_queue)"))
