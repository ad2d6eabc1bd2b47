"""Entities, outboxes and tokens in a SQLite file, for all processes of one machine.

Each call is one transaction: one sync for all that it was given, however many there are. A transaction that writes
holds the write lock from its beginning, so what it looks at stays as it is until it ends. What only reads waits for
nobody. The statements are in `outbox_entities`,
`outbox_tokens` and `outbox_settling`.

Entities and their outboxes in SQLite; the caller sees to the transaction.

An entity and its entries are read by one statement, so they are of one moment. A write names the version that was read,
and the row says by not being found that somebody else was faster.

The tables of the outbox in SQLite.

They have no row numbers of their own: equal content is equal rows, whatever was there before. That keeps a table that
is filled and emptied all day small, and lets the explorer tell when two histories led to the same place.

Tokens in SQLite; the caller sees to the transaction.

The one transaction of the plan `transactional`, in SQLite: tokens go, entities are written, entries and tokens come.

Nearly always all of a batch is in order: every token is there and every version is right. Then the batch is a handful
of statements, each for all of its rows at once, and their row counts say that nothing was missing. If one was, all is
undone up to the savepoint, and each step is judged alone.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from secrets import token_hex
from threading import Lock
from typing import Any, Final

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox.ports import FOREVER_MS, Live, Stranded, Token
from onefold.outbox.steps import (
    Birth,
    Entity,
    Entry,
    Finish,
    Key,
    Open,
    OpenedAttempt,
    Removal,
    Settle,
    Settled,
    pack_entry,
)
from onefold.outbox.stores.packing import pack_outbox, pack_state, read_entry, settled_entry, unpack
from onefold.stores.sqlite import BUSY_S, Database

_LOAD: Final = """
    select version, state, (
        select json_group_object(entry_name, entry) from outbox_entries as x
        where x.endpoint = e.endpoint and x.name = e.name
    )
    from outbox_entities as e where endpoint = ? and name = ?
"""
_NEVER: Final = (None, None, "{}")
_OPEN: Final = """
    select exists (select 1 from outbox_tokens where token = ?), version, state, (
        select json_group_object(entry_name, entry) from outbox_entries as x
        where x.endpoint = e.endpoint and x.name = e.name
    )
    from (select 1) left join outbox_entities as e on endpoint = ? and name = ?
"""
INSERT: Final = """
    insert into outbox_entities (state, at_ms, version, endpoint, name) values (?, ?, ? + 1, ?, ?)
    on conflict do nothing
"""
UPDATE: Final = """
    update outbox_entities set state = ?, at_ms = ?, version = version + 1
    where version = ? and endpoint = ? and name = ?
"""
_ENTRY_NAMES: Final = "select entry_name from outbox_entries where endpoint = ? and name = ?"
KEEP: Final = """
    insert into outbox_entries (endpoint, name, entry_name, entry, at_ms) values (?, ?, ?, ?, ?)
    on conflict do update set entry = excluded.entry
"""
_DROP: Final = "delete from outbox_entries where endpoint = ? and name = ? and entry_name = ?"
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


def load(db: sqlite3.Connection, keys: Sequence[Key]) -> list[Entity]:
    """Each of its own moment, unless the caller began a transaction."""
    ask = db.cursor().execute
    return [_entity(key, *(ask(_LOAD, key).fetchone() or _NEVER)) for key in keys]


def open_(db: sqlite3.Connection, steps: Sequence[Open]) -> list[OpenedAttempt]:
    """Each of one moment with its token."""
    ask, opened = db.cursor().execute, []
    for key, token in steps:
        held, version, state, entries = ask(_OPEN, (token, *key)).fetchone()
        opened.append(OpenedAttempt(_entity(key, version, state, entries), held == 1))
    return opened


def persist(db: sqlite3.Connection, entity: Entity, now_ms: int) -> bool:
    """Write it with its whole outbox, if the version is right."""
    if db.execute(UPDATE if entity.version else INSERT, row_of(entity, now_ms)).rowcount != 1:
        return False
    outbox = pack_outbox(entity)
    gone = [(*entity.key, name) for (name,) in db.execute(_ENTRY_NAMES, entity.key) if name not in outbox]
    if gone:
        db.executemany(_DROP, gone)
    if outbox:
        db.executemany(KEEP, [(*entity.key, name, entry, now_ms) for name, entry in outbox.items()])
    return True


def finish(db: sqlite3.Connection, steps: Sequence[Finish]) -> None:
    """Remove these entries."""
    db.executemany(_DROP, [(*step.key, step.name) for step in steps])


def stranded(db: sqlite3.Connection, before_ms: int, after_ms: int, limit: int, endpoint: str | None) -> list[Stranded]:
    """Old entries. There are as many as messages under way, so all are looked at: an index would cost each write."""
    rows = db.execute(_STRANDED, (before_ms, after_ms, endpoint, limit))
    found = [(Key(*key), name, at_ms, entry) for *key, name, at_ms, entry in rows]
    return [Stranded(key, name, at_ms, read_entry(key, name, entry)) for key, name, at_ms, entry in found]


def purge(db: sqlite3.Connection, before_ms: int, endpoint: str | None) -> int:
    """Remove old tombstones."""
    return db.execute(_PURGE, (before_ms, endpoint)).rowcount


def row_of(entity: Entity, now_ms: int) -> tuple[Any, ...]:
    """What `UPDATE` or, for a new one, `INSERT` takes."""
    return pack_state(entity.state), now_ms, entity.version, *entity.key


def _entity(key: Key, version: int | None, state: str | None, entries: str) -> Entity:
    if version is None:
        return Entity(key)
    return unpack(key, version, state, {} if entries == "{}" else json.loads(entries))


SCHEMA = (
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
)


class LedgerFile(Database):
    """The file of a ledger: not every write to it has to outlive a power cut."""

    @contextmanager
    def tidying(self) -> Iterator[sqlite3.Connection]:
        """A transaction that everybody sees at once, and that costs no sync: a power cut may undo it.

        It is in the log all the same, in its place: the next transaction that is synced makes it durable too.
        """
        try:
            with self._told():
                self._connection.execute("pragma synchronous=normal")
            with self.writing() as db:
                yield db
        finally:
            self._sync_from_now_on()

    def _sync_from_now_on(self) -> None:
        try:
            with self._told():
                self._connection.execute("pragma synchronous=full")
        except BaseException:
            self._connection.close()  # rather no ledger than one that forgets
            raise


class Borrowed(LedgerFile):
    """A connection that somebody else opened, and will close: whether it is durable is theirs to know."""

    def __init__(self, connection: sqlite3.Connection, schema: Sequence[str]) -> None:
        """Make what is not there yet."""
        self.path = "a borrowed connection"
        self._connection = connection
        with self.writing() as db:
            for statement in schema:
                db.execute(statement)

    @contextmanager
    def tidying(self) -> Iterator[sqlite3.Connection]:
        """A transaction like any other."""
        with self.writing() as db:
            yield db

    def close(self) -> None:
        """Leave it open."""


_HOLDS: Final = "select 1 from outbox_tokens where token = ?"
CREATE: Final = """
    insert into outbox_tokens (token, destination, parent, attempt, at_ms) values (?, ?, ?, ?, ?)
    on conflict do nothing
"""
REMOVE: Final = "delete from outbox_tokens where token = ?"
_FREE: Final = "update outbox_tokens set parent = '' where parent = ? and attempt = ? and parent <> ''"
_SWEEP: Final = "delete from outbox_tokens where parent = ? and parent <> ''"
_DISCARD: Final = "delete from outbox_tokens where token = ?1 and (?2 is null or parent = ?2)"
_LISTED: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens
    where token > ? order by token limit ?
"""
# Few tokens have a parent, for a moment each: they are found by the index that holds these alone.
_ORPHANS: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens as t indexed by outbox_children
    where parent <> '' and token > ? and not exists (select 1 from outbox_tokens as p where p.token = t.parent)
    order by token limit ?
"""
_LIVE: Final = "select count(*), min(at_ms) from outbox_tokens"


def holds(db: sqlite3.Connection, tokens: Sequence[str]) -> list[bool]:
    """Which of them exist."""
    ask = db.cursor().execute
    return [ask(_HOLDS, (token,)).fetchone() is not None for token in tokens]


def create(db: sqlite3.Connection, births: Sequence[Birth], now_ms: int) -> list[bool]:
    """For each: all of its tokens, or none."""
    made = []
    for birth in births:
        made.append(not birth.guarded or holds(db, [birth.parent])[0])
        if made[-1] and birth.tokens:
            parent, attempt = birth.parent, birth.attempt
            db.executemany(CREATE, [(token, to, parent, attempt, now_ms) for token, to in birth.tokens])
    return made


def remove(db: sqlite3.Connection, removals: Sequence[Removal]) -> None:
    """The tokens go; their children of the right attempt are free, the others go too."""
    # The second removal of a token finds nothing left; those of different tokens do not touch each other's children.
    first = {removal.token: removal for removal in reversed(removals)}
    tokens = [(token,) for token in first]
    db.executemany(REMOVE, tokens)
    db.executemany(_FREE, first.values())
    db.executemany(_SWEEP, tokens)


def discard(db: sqlite3.Connection, token: str, parent: str | None) -> bool:
    """One token alone."""
    return db.execute(_DISCARD, (token, parent)).rowcount == 1


def listed(db: sqlite3.Connection, after: str, limit: int, *, orphans: bool) -> list[Token]:
    """By name, from behind one."""
    return [Token(*row) for row in db.execute(_ORPHANS if orphans else _LISTED, (after, limit))]


def live(db: sqlite3.Connection) -> Live:
    """How many there are."""
    return Live(*db.execute(_LIVE).fetchone())


Sending = list[tuple[Settle, Entry]]
"""The steps that send something, with what that is."""


def settle(db: sqlite3.Connection, steps: Sequence[Settle], now_ms: int) -> list[Settled]:
    """What becomes of each, in this order."""
    if len(steps) > 1:
        sending = [(step, entry) for step in steps if (entry := settled_entry(step))]
        if _apart(steps, sending) and _at_once(db, steps, sending, now_ms):
            return [Settled.DONE] * len(steps)
    return [_one(db, step, now_ms) for step in steps]


def _apart(steps: Sequence[Settle], sending: Sending) -> bool:
    """No step needs what another one changes: their order makes no difference."""
    keys = {step.entity.key for step in steps}
    spent = [step.token for step in steps if step.token is not None]
    born = {out.token for _, entry in sending for out in entry.outgoing}
    return len(keys) == len(steps) and len(set(spent)) == len(spent) and born.isdisjoint(spent)


def _at_once(db: sqlite3.Connection, steps: Sequence[Settle], sending: Sending, now_ms: int) -> bool:
    """Whether all was in order; if not, nothing is changed."""
    db.execute("savepoint settle")
    done = _changed(db, steps, now_ms)
    if not done:
        db.execute("rollback to settle")
    elif sending:
        db.executemany(KEEP, [_entry_row(step, entry, now_ms) for step, entry in sending])
        db.executemany(CREATE, [row for _, entry in sending for row in _token_rows(entry, now_ms)])
    db.execute("release settle")
    return done


def _changed(db: sqlite3.Connection, steps: Sequence[Settle], now_ms: int) -> bool:
    spent = [(step.token,) for step in steps if step.token is not None]
    known = [row_of(step.entity, now_ms) for step in steps if step.entity.version]
    new = [row_of(step.entity, now_ms) for step in steps if not step.entity.version]
    return all(
        db.executemany(statement, rows).rowcount == len(rows)
        for statement, rows in ((REMOVE, spent), (UPDATE, known), (INSERT, new))
        if rows
    )


def _one(db: sqlite3.Connection, step: Settle, now_ms: int) -> Settled:
    if step.token is not None and not holds(db, [step.token])[0]:
        return Settled.NO_TOKEN
    if db.execute(UPDATE if step.entity.version else INSERT, row_of(step.entity, now_ms)).rowcount != 1:
        return Settled.STALE
    if step.token is not None:
        db.execute(REMOVE, (step.token,))
    entry = settled_entry(step)
    if entry is not None:
        db.execute(KEEP, _entry_row(step, entry, now_ms))
        db.executemany(CREATE, _token_rows(entry, now_ms))
    return Settled.DONE


def _entry_row(step: Settle, entry: Entry, now_ms: int) -> tuple[Any, ...]:
    return *step.entity.key, step.name, pack_entry(entry), now_ms


def _token_rows(entry: Entry, now_ms: int) -> list[tuple[Any, ...]]:
    return [(out.token, out.to, "", entry.attempt, now_ms) for out in entry.outgoing]


class SqliteLedger:
    """A `Ledger` in a file: durable (WAL, every commit synced), shared by threads and processes."""

    def __init__(
        self, path: str | PathLike[str], clock_ms: Callable[[], int] = wall_ms, *, busy_s: float = BUSY_S
    ) -> None:
        """Open or create the file; other writers are waited for ``busy_s`` at most, then it is `StoreFailed`."""
        self._begin(LedgerFile(path, SCHEMA, busy_s=busy_s), clock_ms)

    @classmethod
    def over(cls, connection: sqlite3.Connection, clock_ms: Callable[[], int] = wall_ms) -> SqliteLedger:
        """On a connection that somebody else owns, and closes; nothing is said about durability there."""
        ledger = cls.__new__(cls)
        ledger._begin(Borrowed(connection, SCHEMA), clock_ms)
        return ledger

    def _begin(self, database: LedgerFile, clock_ms: Callable[[], int]) -> None:
        self._database = database
        self._clock_ms = clock_ms
        self._lock = Lock()  # one connection, one transaction at a time
        self._open = True
        try:
            with database.writing() as db:
                db.execute(
                    "insert into outbox_realm select ? where not exists (select 1 from outbox_realm)", [token_hex(8)]
                )
                (self._realm,) = db.execute("select realm from outbox_realm").fetchone()
        except BaseException:
            database.close()
            raise

    @property
    def realm(self) -> str:
        """The name of this store, made when the file was."""
        self._check_open()
        return str(self._realm)

    def load(self, keys: Sequence[Key]) -> list[Entity]:
        """The entities, in this order; version 0 for those that never were."""
        with self._reading(many=len(keys) > 1) as db:
            return load(db, keys)

    def persist(self, entities: Sequence[Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others."""
        if not entities:
            return []
        with self._writing() as (db, now_ms):
            return [persist(db, entity, now_ms) for entity in entities]

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before one time or after the other, oldest first; of one endpoint or of all."""
        with self._reading() as db:
            return stranded(db, before_ms, after_ms, limit, endpoint)

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time, and say how many there were."""
        with self._writing() as (db, _):
            return purge(db, before_ms, endpoint)

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        with self._reading(many=len(tokens) > 1) as db:
            return holds(db, tokens)

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist."""
        if not any(birth.tokens for birth in births):  # only asked whether the parents are there
            held = iter(self.holds([birth.parent for birth in births if birth.guarded]))
            return [not birth.guarded or next(held) for birth in births]
        with self._writing() as (db, now_ms):
            return create(db, births, now_ms)

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others."""
        if removals:
            with self._writing() as (db, _):
                remove(db, removals)

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        with self._writing() as (db, _):
            return discard(db, token, parent)

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""
        with self._reading() as db:
            return listed(db, after, limit, orphans=orphans)

    def live(self) -> Live:
        """How many there are, and when the oldest was made. Cost: it looks at each."""
        with self._reading() as db:
            return live(db)

    def warnings(self) -> list[str]:
        """None: what can lose something is not opened."""
        return []

    def open(self, steps: Sequence[Open]) -> list[OpenedAttempt]:
        """Entities, each with whether its token exists at the same moment."""
        with self._reading(many=len(steps) > 1) as db:
            return open_(db, steps)

    def settle(self, steps: Sequence[Settle]) -> list[Settled]:
        """Do each or change nothing for it, in this order, all in one transaction that is durable when it returns."""
        if not steps:
            return []
        with self._writing() as (db, now_ms):
            return settle(db, steps, now_ms)

    def finish(self, steps: Sequence[Finish]) -> None:
        """Remove these outbox entries; the versions stay. One that is not there does no harm.

        Not synced: an entry that a power cut brings back is sent once more, and nobody has a token for it.
        """
        if not steps:
            return
        with self._lock:
            self._check_open()
            with self._database.tidying() as db:
                finish(db, steps)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._open = False
            self._database.close()

    @contextmanager
    def _reading(self, *, many: bool = False) -> Iterator[sqlite3.Connection]:
        """``many`` statements: one transaction for all, for SQLite's own for each costs more than the reading."""
        with self._lock:
            self._check_open()
            with self._database.reading() as db:
                if not many:
                    yield db
                    return
                try:
                    db.execute("begin")
                    yield db
                finally:
                    if db.in_transaction:
                        db.execute("rollback")

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        with self._lock:
            self._check_open()
            with self._database.writing() as db:
                # With the write lock in hand: whoever waited for it has not aged.
                yield db, self._clock_ms()

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self._database.path}: this ledger was closed")
