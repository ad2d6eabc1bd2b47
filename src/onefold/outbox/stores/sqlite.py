"""A ledger and a queue in SQLite files, for all processes of one machine; both may be in one file. The in-memory
versions are the same over a database without a file: correct among the threads of one process, and lost with it.

Each call is one transaction, and one sync for all its arguments, however many. A writing transaction holds the write
lock from its start, so what it reads cannot change before it ends. Readers do not wait for writers.

*The ledger.* One statement reads an entity and its entries, so they are consistent. A write names the version that was
read; if no row matches, another writer was first. The tables have no rowids: equal content is equal rows, whatever was
there before. That keeps a table that is filled and emptied all day small, and lets the explorer detect that two
histories led to the same state.

*The queue.* A row is a parcel. ``due_ms`` is 0 while it waits; for a leased or delayed row it is the time when it may
be delivered again. So one index by queue and ``due_ms`` finds both: waiting rows in their order, and rows that are due
again. Of each no more than a batch is read, however many rows there are. ``loan`` is the number of the delivery that
leases the row. It is part of the receipt, and a receipt with an old number changes nothing. Positions are never reused
(``autoincrement``): otherwise a late acknowledgement could delete a new parcel. A waiter polls SQLite's
``data_version``, which changes when another connection has written; threads of its own process wake it at once.

All processes that share the file must use the same clock. A clock set forward ends leases early: that only causes
duplicates, which a queue may always deliver. Set back again, it would leave rows due in months. So a row keeps the
length of its lease or delay (``span_ms``), and a row whose lease or delay began in the future is due. To find these
rows without another index, each lease checks when the row that is due last in each queue began. If not in the future,
no row of the queue waits longer than that row's own lease or delay; otherwise all rows that began in the future are
made due.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from os import PathLike
from secrets import token_hex
from threading import Condition
from time import monotonic
from typing import Any, Final, TypeVar

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox import plans, ports
from onefold.stores.sqlite import BUSY_S, Database

T = TypeVar("T")
LEDGER_SCHEMA: Final = (
    """
    create table if not exists outbox_entities (
        endpoint text,
        name text,
        version integer not null,
        state text,
        at_ms integer not null,
        primary key (endpoint, name)
    ) without rowid
    """,
    "create index if not exists outbox_tombstones on outbox_entities (at_ms) where state is null",
    """
    create table if not exists outbox_entries (
        endpoint text,
        name text,
        entry_name text,
        entry text not null,
        at_ms integer not null,
        primary key (endpoint, name, entry_name)
    ) without rowid
    """,
    """
    create table if not exists outbox_tokens (
        token text primary key,
        destination text not null,
        parent text not null,
        attempt text not null,
        at_ms integer not null
    ) without rowid
    """,
    "create index if not exists outbox_children on outbox_tokens (parent) where parent <> ''",
    "create table if not exists outbox_realm (realm text primary key) without rowid",
    *ports.SCHEMA_TABLE,
)

_OPEN: Final = """
    select exists (select 1 from outbox_tokens where token = ?), version, state, (
        select json_group_object(entry_name, entry) from outbox_entries as x
        where x.endpoint = e.endpoint and x.name = e.name
    )
    from (select 1) left join outbox_entities as e on endpoint = ? and name = ?
"""
_INSERT: Final = """
    insert into outbox_entities (state, at_ms, version, endpoint, name) values {rows} on conflict do nothing
"""
# An upsert that only updates: SQLite would search the whole table for an UPDATE from many values.
_UPDATE: Final = """
    insert into outbox_entities (state, at_ms, version, endpoint, name) select * from (values {rows}) as new
    where exists (select 1 from outbox_entities where endpoint = new.column4 and name = new.column5)
    on conflict (endpoint, name)
    do update set state = excluded.state, at_ms = excluded.at_ms, version = excluded.version
    where version = excluded.version - 1
"""
_ENTRY_NAMES: Final = "select entry_name from outbox_entries where endpoint = ? and name = ?"
_KEEP: Final = """
    insert into outbox_entries (endpoint, name, entry_name, entry, at_ms) values {rows}
    on conflict do update set entry = excluded.entry
"""
_DROP: Final = "delete from outbox_entries where (endpoint, name, entry_name) in (values {rows})"
_STRANDED: Final = """
    select endpoint, name, entry_name, at_ms, entry from outbox_entries
    where (at_ms < ?1 or at_ms > ?2) and (?3 is null or endpoint = ?3)
    order by at_ms, endpoint, name, entry_name limit ?4
"""
_PURGE: Final = """
    delete from outbox_entities
    where state is null and at_ms < ?1 and (?2 is null or endpoint = ?2) and not exists (
        select 1 from outbox_entries as x where x.endpoint = outbox_entities.endpoint and x.name = outbox_entities.name
    )
"""
_HOLDS: Final = "select 1 from outbox_tokens where token = ?"
_CREATE: Final = """
    insert into outbox_tokens (token, destination, parent, attempt, at_ms) values {rows} on conflict do nothing
"""
_REMOVE: Final = "delete from outbox_tokens where token in (values {rows})"
_FREE_CHILDREN: Final = "update outbox_tokens set parent = '' where parent = ? and attempt = ? and parent <> ''"
_SWEEP: Final = "delete from outbox_tokens where parent = ? and parent <> ''"
_DISCARD: Final = "delete from outbox_tokens where token = ?1 and (?2 is null or parent = ?2)"
_LISTED: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens
    where token > ? order by token limit ?
"""
# Few tokens have a parent, and only briefly: the partial index contains only these.
_ORPHANS: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens as t indexed by outbox_children
    where parent <> '' and token > ? and not exists (select 1 from outbox_tokens as p where p.token = t.parent)
    order by token limit ?
"""
_LIVE: Final = "select count(*), min(at_ms) from outbox_tokens"
_NAME_REALM: Final = "insert into outbox_realm select ? where not exists (select 1 from outbox_realm)"


CHUNK: Final = 64
"""Rows per statement."""


class SharedFile(Database):
    """A file whose connection is shared by threads: one transaction at a time, none after `close`."""

    def __init__(self, path: str | PathLike[str], schema: Sequence[str], kind: str, *, busy_s: float) -> None:
        """``kind``: the word for it in error messages, such as ledger or queue."""
        self._share(kind)
        super().__init__(path, schema, busy_s=busy_s)

    def _share(self, kind: str) -> None:
        self._kind = kind
        self.turn = Condition()
        """The lock on the connection; `close` wakes the threads that wait on it."""
        self._open = True

    def check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self.path}: this {self._kind} was closed")

    @contextmanager
    def writing(self, rows: object = True) -> Iterator[sqlite3.Connection]:
        """If ``rows`` is empty, nothing is written: do not wait for other writers."""
        with self.turn:
            self.check_open()
            with super().writing() if rows else super().reading() as db:
                yield db

    @contextmanager
    def reading(self, *, many: bool = False) -> Iterator[sqlite3.Connection]:
        """``many``: one transaction for several statements; SQLite's implicit one for each costs more than the read."""
        with self.turn:
            self.check_open()
            with super().reading() as db:
                try:
                    if many:
                        db.execute("begin")
                    yield db
                finally:
                    if many and db.in_transaction:
                        db.execute("rollback")

    @contextmanager
    def tidying(self) -> Iterator[sqlite3.Connection]:
        """A transaction without a sync: a power cut may undo it, until the next synced transaction makes it durable
        too."""
        with self.reading() as db:
            try:
                db.execute("pragma synchronous=normal")
                with self.writing():
                    yield db
            finally:
                try:
                    db.execute("pragma synchronous=full")
                except BaseException:
                    db.close()  # better no ledger than one without durability
                    raise

    def close(self) -> None:
        with self.turn:
            self._open = False
            super().close()
            self.turn.notify_all()


class Borrowed(SharedFile):
    """A connection opened and closed by its owner, who is responsible for durability."""

    path = "a borrowed connection"

    def __init__(self, connection: sqlite3.Connection, schema: Sequence[str], kind: str) -> None:
        self._share(kind)
        self._connection = connection
        with self.writing() as db:
            for statement in schema:
                db.execute(statement)

    tidying = SharedFile.writing

    def close(self) -> None:
        """Stop using the connection, without closing it."""
        self._open = False


class SqliteLedger:
    """A `Ledger` in a file: durable (WAL, every commit synced), shared by threads and processes."""

    def __init__(
        self, path: str | PathLike[str], clock_ms: Callable[[], int] = wall_ms, *, busy_s: float = BUSY_S
    ) -> None:
        """Open or create the file; `StoreFailed` after waiting ``busy_s`` for other writers."""
        self._begin_ledger(SharedFile(path, LEDGER_SCHEMA, "ledger", busy_s=busy_s), clock_ms)

    @classmethod
    def over(cls, connection: sqlite3.Connection, clock_ms: Callable[[], int] = wall_ms) -> SqliteLedger:
        """On a connection owned and closed by the caller; its durability is not checked."""
        ledger = cls.__new__(cls)
        ledger._begin_ledger(Borrowed(connection, LEDGER_SCHEMA, "ledger"), clock_ms)
        return ledger

    def _begin_ledger(self, database: SharedFile, clock_ms: Callable[[], int], realm: str | None = None) -> None:
        self._database, self._clock_ms = database, clock_ms
        try:
            with database.writing() as db:
                ports.check_schema(str(database.path), db.execute(ports.SCHEMA_ASKED).fetchone()[0])
                db.execute(_NAME_REALM, [realm or token_hex(8)])
                (self._realm,) = db.execute("select realm from outbox_realm").fetchone()
        except BaseException:
            database.close()
            raise

    @property
    def realm(self) -> str:
        self._database.check_open()
        return str(self._realm)

    def load(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        return [entity for entity, _ in self.open([plans.Open(key, "") for key in keys])]

    def persist(self, entities: Sequence[plans.Entity]) -> list[bool]:
        written = []
        with self._database.writing(entities) as db:
            now_ms = self._clock_ms()  # after taking the write lock: waiting for it must not count as age
            for entity in entities:
                written.append(_changed(db, _UPDATE if entity.version else _INSERT, [_row(entity, now_ms)]) == 1)
                if not written[-1]:
                    continue
                outbox = entity.packed_outbox
                names = [name for (name,) in db.execute(_ENTRY_NAMES, entity.key) if name not in outbox]
                if names:
                    _changed(db, _DROP, [(*entity.key, name) for name in names])
                if outbox:
                    _changed(db, _KEEP, [(*entity.key, name, entry, now_ms) for name, entry in outbox.items()])
        return written

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = ports.FOREVER_MS
    ) -> list[ports.Stranded]:
        """Scans all entries: there are only as many as messages in progress, and an index would slow every write."""
        with self._database.reading() as db:
            rows = db.execute(_STRANDED, (before_ms, after_ms, endpoint, limit)).fetchall()
        return [ports.Stranded.stored(*row) for row in rows]

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        with self._database.writing() as db:
            return db.execute(_PURGE, (before_ms, endpoint)).rowcount

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        with self._database.reading(many=len(tokens) > 1) as db:
            return _holds(db, tokens)

    def create(self, births: Sequence[plans.Create]) -> list[bool]:
        if not any(birth.tokens for birth in births):  # nothing to make: only check the parents
            exist = iter(self.holds([birth.parent for birth in births if birth.guarded]))
            return [not birth.guarded or next(exist) for birth in births]
        created = []
        with self._database.writing() as db:
            now_ms = self._clock_ms()
            for birth in births:
                created.append(not birth.guarded or _holds(db, [birth.parent])[0])
                if created[-1] and birth.tokens:
                    parent, attempt = birth.parent, birth.attempt
                    _changed(db, _CREATE, [(token, to, parent, attempt, now_ms) for token, to in birth.tokens])
        return created

    def remove(self, removals: Sequence[plans.Remove]) -> None:
        # A second removal of the same token has no effect; different tokens have different children.
        first = {removal.token: removal for removal in reversed(removals)}
        tokens = [(token,) for token in first]
        if tokens:
            with self._database.writing() as db:
                _changed(db, _REMOVE, tokens)
                db.executemany(_FREE_CHILDREN, first.values())
                db.executemany(_SWEEP, tokens)

    def discard(self, token: str, parent: str | None = None) -> bool:
        with self._database.writing() as db:
            return db.execute(_DISCARD, (token, parent)).rowcount == 1

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[ports.Token]:
        with self._database.reading() as db:
            return [ports.Token(*row) for row in db.execute(_ORPHANS if orphans else _LISTED, (after, limit))]

    def live(self) -> ports.Live:
        """Cost: scans all tokens."""
        with self._database.reading() as db:
            return ports.Live(*db.execute(_LIVE).fetchone())

    def warnings(self) -> list[str]:
        """None: a store that could lose commits is not opened."""
        return []

    def open(self, steps: Sequence[plans.Open]) -> list[tuple[plans.Entity, bool]]:
        opened = []
        with self._database.reading(many=len(steps) > 1) as db:
            ask = db.cursor().execute
            for key, token in steps:
                has_token, version, state, entries = ask(_OPEN, (token, *key)).fetchone()
                outbox = {} if entries == "{}" else json.loads(entries)
                opened.append((plans.Entity.unpacked(key, version or 0, state, outbox), has_token == 1))
        return opened

    def settle(self, steps: Sequence[plans.Settle]) -> list[plans.Settled]:
        """Nearly always the whole batch succeeds: every token exists and every version matches. Then it takes a handful
        of statements, each for all rows, and their row counts show that nothing was missing. Otherwise all is rolled
        back to the savepoint, and each step is tried alone."""
        with self._database.writing(steps) as db:
            now_ms = self._clock_ms()
            if _settled(db, steps, now_ms):
                return [plans.Settled.DONE] * len(steps)
            answers = []
            for step in steps:
                if step.token is not None and not _holds(db, [step.token])[0]:
                    answers.append(plans.Settled.NO_TOKEN)
                else:
                    answers.append(plans.Settled.DONE if _settled(db, [step], now_ms) else plans.Settled.STALE)
            return answers

    def finish(self, steps: Sequence[plans.Finish]) -> None:
        """Not synced: an entry restored by a power cut is sent again, and the tokens filter out the duplicates."""
        if steps:
            with self._database.tidying() as db:
                _changed(db, _DROP, [(*step.key, step.name) for step in steps])

    def close(self) -> None:
        self._database.close()


def _row(entity: plans.Entity, now_ms: int) -> tuple[Any, ...]:
    """The values for `_UPDATE` or, for a new entity, `_INSERT`."""
    return entity.packed_state, now_ms, entity.version + 1, *entity.key


@cache
def _statement(sql: str, width: int, rows: int) -> str:
    return sql.format(rows=", ".join([f"({', '.join('?' * width)})"] * rows))


def _executed(db: sqlite3.Connection, sql: str, rows: Sequence[Sequence[Any]]) -> Iterator[sqlite3.Cursor]:
    """Executes a statement with ``{rows}``: half the time of `executemany`, which runs the statement for each row."""
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        yield db.execute(_statement(sql, len(chunk[0]), len(chunk)), list(chain.from_iterable(chunk)))


def _changed(db: sqlite3.Connection, sql: str, rows: Sequence[Sequence[Any]]) -> int:
    """The number of rows that a statement inserted, updated or deleted."""
    return sum(cursor.rowcount for cursor in _executed(db, sql, rows))


def _holds(db: sqlite3.Connection, tokens: Sequence[str]) -> list[bool]:
    ask = db.cursor().execute
    return [ask(_HOLDS, (token,)).fetchone() is not None for token in tokens]


def _settled(db: sqlite3.Connection, steps: Sequence[plans.Settle], now_ms: int) -> bool:
    """Settle all steps; False, with nothing changed, if any cannot be settled."""
    sending = [(step, entry) for step in steps if (entry := step.entry)]
    spent = [(step.token,) for step in steps if step.token is not None]
    born = {(out.token,) for _, entry in sending for out in entry.outgoing}
    keys = {step.entity.key for step in steps}
    if len(steps) > 1 and (len(keys) < len(steps) or len(set(spent)) < len(spent) or not born.isdisjoint(spent)):
        return False  # one step depends on another: their order matters
    old = [_row(step.entity, now_ms) for step in steps if step.entity.version]
    new = [_row(step.entity, now_ms) for step in steps if not step.entity.version]
    db.execute("savepoint settle")
    done = all(
        _changed(db, statement, rows) == len(rows)
        for statement, rows in ((_REMOVE, spent), (_UPDATE, old), (_INSERT, new))
        if rows
    )
    if not done:
        db.execute("rollback to settle")
    elif sending:
        entries = [(*step.entity.key, step.name, plans.pack_entry(entry), now_ms) for step, entry in sending]
        _changed(db, _KEEP, entries)
        tokens = [(out.token, out.to, "", entry.attempt, now_ms) for _, entry in sending for out in entry.outgoing]
        _changed(db, _CREATE, tokens)
    db.execute("release settle")
    return done


POLL_S = 0.02
"""How long a parcel sent by another process may go unnoticed: 20 ms; a poll costs some microseconds."""

SPAN_MS = 3_600_000
"""The assumed length of leases from earlier versions, which did not store it: an hour, a dozen times the longest
default delay."""

QUEUE_SCHEMA: Final = (
    f"""
    create table if not exists outbox_queue (
        position integer primary key autoincrement,
        queue text not null,
        due_ms integer not null default 0,
        loan integer not null default 0,
        times integer not null default 0,
        payload blob not null,
        span_ms integer not null default {SPAN_MS},
        priority integer not null default 0,
        answers text,
        turn text
    )
    """,
    """
    create table if not exists outbox_buried (
        number integer primary key autoincrement,
        queue text not null,
        reason text not null,
        at_ms integer not null,
        payload blob not null
    )
    """,
    "drop index if exists outbox_buried_queue",
    "create index if not exists outbox_buried_copies on outbox_buried (queue, payload)",
)
# Files of earlier versions lack these columns.
_COLUMNS: Final = {
    "span_ms": f"alter table outbox_queue add column span_ms integer not null default {SPAN_MS}",
    "priority": "alter table outbox_queue add column priority integer not null default 0",
    "turn": "alter table outbox_queue add column turn text",
    "answers": "alter table outbox_queue add column answers text",
}
QUEUE_INDEXES: Final = (
    "create index if not exists outbox_queue_turn on outbox_queue (queue, due_ms, priority desc)",
    "drop index if exists outbox_queue_due",
    "create index if not exists outbox_queue_turns on outbox_queue (queue, turn, position) where turn is not null",
)
_SEND: Final = "insert into outbox_queue (queue, payload, due_ms, span_ms, priority) values {rows}"
_FIND = """
    select -priority, position from (
        select * from (
            select priority, position from outbox_queue where queue = ?1 and due_ms = 0
            order by priority desc, position limit ?3
        )
        union all
        select * from (
            select priority, position from outbox_queue where queue = ?1 and due_ms > 0 and due_ms <= ?2
            order by due_ms limit ?3
        )
    ) order by priority desc, position limit ?3
"""
_LEND = """
    update outbox_queue set due_ms = ?1 + ?2, span_ms = ?2, times = times + 1, loan = loan + 1
    where position in (select value from json_each(?3))
    returning position, queue, payload, times, loan
"""
_NEXT = "select min(due_ms) from outbox_queue where queue = ? and due_ms > 0"
_BEGAN = "select due_ms - span_ms from outbox_queue where queue = ? and due_ms > 0 order by due_ms desc limit 1"
_MAKE_DUE = "update outbox_queue set due_ms = 0 where queue = ?1 and due_ms > ?2 and due_ms - span_ms > ?2"
_STRAYED = """
    select queue, count(*), max(due_ms) - ?1 from outbox_queue where due_ms - span_ms > ?1 + ?2
    group by queue order by queue
"""
_ACKNOWLEDGE = "delete from outbox_queue where position = ? and loan = ?"
_EXTEND = """
    update outbox_queue set due_ms = ?1 + ?2, span_ms = ?2 where position = ?3 and loan = ?4 and due_ms > ?1
"""
_RELEASE = """
    update outbox_queue set due_ms = ?, span_ms = ?, times = times * ?, loan = loan + 1 where position = ? and loan = ?
"""
_BURY = """
    insert into outbox_buried (queue, reason, at_ms, payload)
    select queue, ?, ?, payload from outbox_queue as q where position = ? and loan = ?
        and not exists (select 1 from outbox_buried as b where b.queue = q.queue and b.payload = q.payload)
"""
_BURIED = """
    select queue, payload, cast(number as text), reason, at_ms from outbox_buried
    where ?1 is null or queue = ?1 order by number limit ?2
"""
_BACK = "insert into outbox_queue (queue, payload) select queue, payload from outbox_buried where number = ?"
_FORGET = "delete from outbox_buried where number = ?"
_WAITING = "select queue, count(*) from outbox_queue group by queue"
_NO_TURN: Final = """
    select position, payload from outbox_queue where queue = ? and turn is null order by position limit ?
"""
_NAME_TURN: Final = "update outbox_queue set turn = ? where position = ?"
# Due: neither leased nor delayed; also if its lease or delay began in the future.
_IN_TURN: Final = """
    select position from outbox_queue as q
    where queue = ?1 and turn is not null and (due_ms <= ?2 or due_ms - span_ms > ?2 + ?3) and not exists (
        select 1 from outbox_queue as e where e.queue = ?1 and e.turn = q.turn and e.position < q.position
            and e.times > 0 and e.due_ms > ?2 and e.due_ms - e.span_ms <= ?2 + ?3
    )
    order by position limit ?4
"""
LOCAL_SCHEMA: Final = LEDGER_SCHEMA + QUEUE_SCHEMA
_ANSWERS: Final = "select answers from outbox_queue where position = ? and loan = ?"
_ANSWER: Final = "update outbox_queue set answers = ? where position = ? and loan = ?"
_PEEK: Final = """
    select version, state from (values {rows}) as key
    left join outbox_entities on endpoint = key.column1 and name = key.column2
"""
_COUNT: Final = "update outbox_queue set times = times + ? where position = ? and loan = ?"
_THERE: Final = "select 1 from outbox_queue where position = ?"
_SPEND: Final = "delete from outbox_queue where position in (values {rows})"


class SqliteQueue:
    """A `Queue` in a file, perhaps that of the ledger: durable (WAL, every commit synced), shared by threads and
    processes."""

    def __init__(
        self, path: str | PathLike[str], clock_ms: Callable[[], int] = wall_ms, *,
        poll_s: float = POLL_S, busy_s: float = BUSY_S,
    ) -> None:  # fmt: skip
        """Open or create the file; `StoreFailed` after waiting ``busy_s`` for other writers."""
        if not poll_s > 0:
            raise Misuse(f"poll_s is {poll_s}, must be more than 0", poll_s=poll_s)
        self._begin_queue(SharedFile(path, QUEUE_SCHEMA, "queue", busy_s=busy_s), clock_ms, poll_s)

    def _begin_queue(self, database: SharedFile, clock_ms: Callable[[], int], poll_s: float) -> None:
        self._database, self._clock_ms, self._poll_s = database, clock_ms, poll_s
        self._changes = 0
        with database.writing() as db:
            columns = {name for _, name, *_ in db.execute("pragma table_info(outbox_queue)")}
            for statement in (*(sql for name, sql in _COLUMNS.items() if name not in columns), *QUEUE_INDEXES):
                db.execute(statement)

    def send(self, parcels: Sequence[ports.Parcel]) -> None:
        ports.check_parcels(parcels)
        with self._database.writing(parcels) as db:
            _changed(db, _SEND, _parcel_rows(parcels, self._clock_ms()))
            self._tell()

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[ports.Delivery]:
        """The oldest of all these queues together; `Misuse` if the queue is closed while waiting."""
        queues = ports.check_lease(queues, limit, lease_ms, wait_ms)
        deadline = monotonic() + wait_ms / 1000
        with self._database.turn:
            self._database.check_open()
            seen = None
            while True:
                with self._database.reading() as db:
                    strayed, some = self._strayed(db, queues), self._find(db, queues, 1)
                    if (strayed or some) and (leased := self._taken(db, queues, limit, lease_ms)):
                        return leased
                if not wait_ms or (seen is not None and not self._wait(deadline, queues, seen)):
                    return []
                seen = self._seen()  # before the next query: a later change is noticed after it

    def _taken(self, db: sqlite3.Connection, queues: Sequence[str], limit: int, lease_ms: int) -> list[ports.Delivery]:
        """Not synced: if a power cut undoes a lease, the parcel is redelivered."""
        with self._database.tidying():
            return self._lent(db, self._due(db, queues, limit), lease_ms)

    def lend(self, find: Callable[[], Sequence[int]], lease_ms: int) -> list[ports.Delivery]:
        """Lease the rows at these positions, in their order."""
        with self._database.tidying() as db:
            return self._lent(db, find(), lease_ms)

    def _lent(self, db: sqlite3.Connection, positions: Sequence[int], lease_ms: int) -> list[ports.Delivery]:
        rows = db.execute(_LEND, [self._clock_ms(), lease_ms, json.dumps(positions)]).fetchall()
        by_position = {row[0]: row for row in rows}
        return [
            ports.Delivery(queue, body, f"{at}-{loan}", times)
            for at, queue, body, times, loan in map(by_position.__getitem__, positions)
        ]

    def acknowledge(self, deliveries: Sequence[ports.Delivery]) -> None:
        """Not synced: a parcel restored by a power cut is a duplicate."""
        lent = [delivery.numbers for delivery in deliveries]
        self._database.check_open()
        if lent:
            with self._database.tidying() as db:
                db.executemany(_ACKNOWLEDGE, lent)

    def extend(self, deliveries: Sequence[ports.Delivery], lease_ms: int) -> None:
        ports.check_least("lease_ms", lease_ms, 1)
        lent = [delivery.numbers for delivery in deliveries]
        self._database.check_open()
        if lent:
            with self._database.tidying() as db:
                now_ms = self._clock_ms()
                db.executemany(_EXTEND, [(now_ms, lease_ms, *loan) for loan in lent])

    def release(self, deliveries: Sequence[ports.Delivery], delay_ms: int = 0, *, anew: bool = False) -> None:
        ports.check_least("delay_ms", delay_ms, 0)
        lent = [delivery.numbers for delivery in deliveries]
        self._database.check_open()
        if lent:
            with self._database.tidying() as db:
                due_ms = self._clock_ms() + delay_ms if delay_ms else 0
                db.executemany(_RELEASE, [(due_ms, delay_ms, not anew, *loan) for loan in lent])
                self._tell()

    def count(self, deliveries: Sequence[ports.Delivery], by: int) -> None:
        with self._database.tidying() as db:
            db.executemany(_COUNT, [(by, *delivery.numbers) for delivery in deliveries])

    def bury(self, deliveries: Sequence[ports.Delivery], reason: str) -> None:
        lent = [delivery.numbers for delivery in deliveries]
        with self._database.writing(lent) as db:
            why = reason[: ports.REASON_MAX], self._clock_ms()
            db.executemany(_BURY, [(*why, *loan) for loan in dict.fromkeys(lent)])
            db.executemany(_ACKNOWLEDGE, lent)

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[ports.Buried]:
        ports.check_least("limit", limit, 1)
        with self._database.reading() as db:
            return [ports.Buried(*row) for row in db.execute(_BURIED, [queue, limit])]

    def dig_up(self, letters: Sequence[ports.Buried], *, deliver: bool) -> None:
        numbers = [(letter.number,) for letter in dict.fromkeys(letters)]
        with self._database.writing(numbers) as db:
            if deliver:
                db.executemany(_BACK, numbers)
                self._tell()
            db.executemany(_FORGET, numbers)

    def waiting(self) -> dict[str, int]:
        """The number of parcels in each queue. Cost: counts all rows of an index."""
        with self._database.reading() as db:
            return dict(db.execute(_WAITING).fetchall())

    def strayed(self, *, mend: bool = False) -> list[ports.Strayed]:
        """Rows whose lease or delay began in the future; scans all rows. ``mend`` is done in the same transaction."""
        with self._database.writing(mend) as db:
            now_ms = self._clock_ms()
            strayed = [ports.Strayed(*row) for row in db.execute(_STRAYED, [now_ms, ports.STEP_MS])]
            if mend and strayed:
                self._make_due(db, [each.queue for each in strayed])
                self._tell()
        return strayed

    def close(self) -> None:
        self._database.close()

    def _due(self, db: sqlite3.Connection, queues: Sequence[str], limit: int) -> list[int]:
        """In a transaction: the rows that can be leased, including rows delayed by a wrong clock."""
        if self._strayed(db, queues):
            self._make_due(db, queues)
        return self._find(db, queues, limit)

    def _strayed(self, db: sqlite3.Connection, queues: Sequence[str]) -> bool:
        return self._began_ms(db, queues) > self._clock_ms() + ports.STEP_MS

    def _make_due(self, db: sqlite3.Connection, queues: Sequence[str]) -> None:
        now_ms = self._clock_ms()
        db.executemany(_MAKE_DUE, [(queue, now_ms + ports.STEP_MS) for queue in queues])

    def _began_ms(self, db: sqlite3.Connection, queues: Sequence[str]) -> int:
        """The latest start of a lease or delay, among the row of each queue that is due last."""
        rows = [db.execute(_BEGAN, [queue]).fetchone() for queue in queues]
        return max((row[0] for row in rows if row is not None), default=0)

    def _find(self, db: sqlite3.Connection, queues: Sequence[str], limit: int) -> list[int]:
        now_ms = self._clock_ms()
        found = [row for queue in queues for row in db.execute(_FIND, [queue, now_ms, limit])]
        if len(queues) > 1:
            found = sorted(found)[:limit]
        return [position for _, position in found]

    def _wait(self, deadline: float, queues: Sequence[str], seen: tuple[int, int]) -> bool:
        """Wait until there may be something to lease; False on timeout."""
        with self._database.reading() as db:
            dues = [db.execute(_NEXT, [queue]).fetchone()[0] for queue in queues]
            began_ms = self._began_ms(db, queues)
        next_ms = min((due for due in dues if due is not None), default=None)
        while (rest_s := deadline - monotonic()) > 0:
            self._database.turn.wait(min(rest_s, self._poll_s))
            self._database.check_open()
            now_ms = self._clock_ms()
            if self._seen() != seen or (next_ms is not None and next_ms <= now_ms) or began_ms > now_ms + ports.STEP_MS:
                return True
        return False

    def _seen(self) -> tuple[int, int]:
        """A value that changes when this object or another connection has written the file."""
        with self._database.reading() as db:
            return self._changes, db.execute("pragma data_version").fetchone()[0]

    def _tell(self) -> None:
        self._changes += 1
        self._database.turn.notify_all()


def _parcel_rows(parcels: Sequence[ports.Parcel], now_ms: int) -> list[tuple[Any, ...]]:
    return [
        (queue, payload, now_ms + delay_ms if delay_ms else 0, delay_ms, priority)
        for queue, payload, delay_ms, priority in parcels
    ]


class SqliteLocal(SqliteLedger, SqliteQueue):
    """A `LocalStore` in a file: ledger and queue over one connection, and one transaction for both."""

    def __init__(
        self, path: str | PathLike[str], clock_ms: Callable[[], int] = wall_ms, *,
        poll_s: float = POLL_S, busy_s: float = BUSY_S,
    ) -> None:  # fmt: skip
        self._begin(SharedFile(path, LOCAL_SCHEMA, "store", busy_s=busy_s), clock_ms, poll_s)

    @classmethod
    def over(cls, connection: sqlite3.Connection, clock_ms: Callable[[], int] = wall_ms) -> SqliteLocal:
        """On a connection owned and closed by the caller; its durability is not checked."""
        store = cls.__new__(cls)
        store._begin(Borrowed(connection, LOCAL_SCHEMA, "store"), clock_ms)
        return store

    def _begin(
        self, database: SharedFile, clock_ms: Callable[[], int], poll_s: float = POLL_S, realm: str | None = None
    ) -> None:
        self._begin_ledger(database, clock_ms, realm)
        self._begin_queue(database, clock_ms, poll_s)

    @property
    def place(self) -> str:
        return ports.place_of(self.realm)

    @property
    def quoted_schema(self) -> None:
        return None

    def peek(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        with self._database.reading(many=len(keys) > CHUNK) as db:
            return self._peeked(db, keys)

    def transact(self, work: Callable[[ports.LocalTransaction], T]) -> T:
        """Handlers that take the connection hold the file's one write lock: other writers wait."""
        with self._database.writing() as db:
            return work(_Transaction(self, db))

    def _peeked(self, db: sqlite3.Connection, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        rows = [row for cursor in _executed(db, _PEEK, keys) for row in cursor]
        found = zip(keys, rows, strict=True)
        return [plans.Entity.unpacked(key, version or 0, state, {}) for key, (version, state) in found]

    def keep(self, steps: Sequence[plans.Keep]) -> list[dict[str, Any] | None]:
        kept: list[dict[str, Any] | None] = []
        with self._database.writing(steps) as db:
            for step in steps:
                row = ports.numbers_of(step.receipt)
                there = db.execute(_ANSWERS, row).fetchone()
                kept.append(None if there is None else {**json.loads(there[0] or "{}"), **step.answers})
                if there is not None and step.answers:
                    db.execute(_ANSWER, (plans.pack(kept[-1]), *row))
        return kept

    def lease_in_turn(
        self, queue: str, turn_of: Callable[[bytes], str], limit: int, lease_ms: int
    ) -> list[ports.Delivery]:
        ports.check_lease([queue], limit, lease_ms, 0)

        def find() -> list[int]:  # under the write lock
            new = db.execute(_NO_TURN, [queue, limit]).fetchall()
            db.executemany(_NAME_TURN, [(turn_of(payload), position) for position, payload in new])
            return [at for (at,) in db.execute(_IN_TURN, [queue, self._clock_ms(), ports.STEP_MS, limit])]

        with self._database.reading() as db:
            return self.lend(find, lease_ms)

    def holds_row(self, delivery: ports.Delivery) -> bool:
        with self._database.reading() as db:
            return db.execute(_THERE, delivery.numbers[:1]).fetchone() is not None

    def commit(self, steps: Sequence[plans.Commit], ahead: ports.Ahead | None = None) -> list[plans.Settled]:
        with self._database.writing(steps) as db:
            now_ms = self._clock_ms()
            if self._committed(db, steps, now_ms):
                if ahead is not None:
                    found = self._due(db, ahead.queues, ahead.limit)
                    ahead.deliveries = self._lent(db, found, ahead.lease_ms) if found else ()
                return [plans.Settled.DONE] * len(steps)
            answers = []
            for step in steps:
                rows = [ports.numbers_of(receipt)[:1] for receipt in step.receipts]
                if any(db.execute(_THERE, row).fetchone() is None for row in rows):
                    answers.append(plans.Settled.NO_TOKEN)
                else:
                    done = len(steps) > 1 and self._committed(db, [step], now_ms)
                    answers.append(plans.Settled.DONE if done else plans.Settled.STALE)
            return answers

    def _committed(self, db: sqlite3.Connection, steps: Sequence[plans.Commit], now_ms: int) -> bool:
        """Commit all steps; False, with nothing changed, if any cannot be committed."""
        rows = [ports.numbers_of(receipt)[:1] for step in steps for receipt in step.receipts]
        entities = [step.entity for step in steps if step.entity is not None]
        old = [_row(entity, now_ms) for entity in entities if entity.version]
        new = [_row(entity, now_ms) for entity in entities if not entity.version]
        db.execute("savepoint onefold_commit")
        done = all(
            _changed(db, statement, values) == len(values)
            for statement, values in ((_SPEND, rows), (_UPDATE, old), (_INSERT, new))
            if values
        )
        if not done:
            db.execute("rollback to onefold_commit")
        elif parcels := ports.parcels_of((message for step in steps for message in step.messages), self.place):
            _changed(db, _SEND, _parcel_rows(parcels, now_ms))
            self._tell()
        db.execute("release onefold_commit")
        return done


@dataclass(frozen=True, slots=True)
class _Transaction:
    store: SqliteLocal
    connection: sqlite3.Connection

    def peek(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        return self.store._peeked(self.connection, keys)

    def commit(self, steps: Sequence[plans.Commit]) -> bool:
        return self.store._committed(self.connection, steps, self.store._clock_ms())

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        db = self.connection
        db.execute("savepoint onefold_handler")
        try:
            yield
        except BaseException:
            if db.in_transaction:
                db.execute("rollback to onefold_handler")
            raise
        finally:
            if not db.in_transaction:
                raise ports.EndedTransaction(
                    "a handler ended the transaction that settles its message: it must not commit"
                )
            db.execute("release onefold_handler")


class InMemory(Borrowed):
    """A connection to its own in-memory database, which is lost on `close`."""

    path = "memory://"

    def __init__(self, schema: Sequence[str], kind: str) -> None:
        super().__init__(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), schema, kind)

    close = SharedFile.close


class MemoryLedger(SqliteLedger):
    """A `Ledger` in memory.

    >>> ledger = MemoryLedger()
    >>> ledger.create([plans.Create("", "a1", (("t1", "orders"),), guarded=False)])
    [True]
    >>> ledger.settle([plans.Settle(plans.Entity(plans.Key("shop", "7"), state={"paid": 20}), "t1", "t1")] * 2)
    [<Settled.DONE: 'done'>, <Settled.NO_TOKEN: 'no_token'>]
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms, realm: str | None = None) -> None:
        """Starts empty; ``realm``: the name of this store in messages, a new one by default."""
        self._begin_ledger(InMemory(LEDGER_SCHEMA, "ledger"), clock_ms, realm)


class MemoryQueue(SqliteQueue):
    """A `Queue` in memory.

    >>> queue = MemoryQueue(lambda: 0)
    >>> queue.send([ports.Parcel("orders", b"{}")])
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    [Delivery(queue='orders', payload=b'{}', receipt='1-1', times=1)]
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    []
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms) -> None:
        self._begin_queue(InMemory(QUEUE_SCHEMA, "queue"), clock_ms, POLL_S)


class MemoryLocal(SqliteLocal):
    """A `LocalStore` in memory."""

    def __init__(self, clock_ms: Callable[[], int] = wall_ms, realm: str | None = None) -> None:
        self._begin(InMemory(LOCAL_SCHEMA, "store"), clock_ms, realm=realm)
