"""Entities, outboxes and tokens in a SQLite file, for all processes of one machine.

Each call is one transaction: one sync for all that it was given, however many there are. A transaction that writes
holds the write lock from its beginning, so what it looks at stays as it is until it ends. What only reads waits for
nobody. The statements are in `outbox_entities`,
`outbox_tokens` and `outbox_settling`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from secrets import token_hex
from threading import Lock

from onefold.engines.outbox.record import Entity, Key
from onefold.engines.outbox.steps import Birth, Finish, Open, Opened, Removal, Settle, Settled
from onefold.errors import Misuse
from onefold.ports import FOREVER_MS, Live, Stranded, Token
from onefold.stores.counters import wall_ms
from onefold.stores.sqlite import outbox_entities as entities_table
from onefold.stores.sqlite import outbox_tokens as tokens_table
from onefold.stores.sqlite.database import BUSY_S
from onefold.stores.sqlite.outbox_schema import SCHEMA, Borrowed, LedgerFile
from onefold.stores.sqlite.outbox_settling import settle


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
            return entities_table.load(db, keys)

    def persist(self, entities: Sequence[Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others."""
        if not entities:
            return []
        with self._writing() as (db, now_ms):
            return [entities_table.persist(db, entity, now_ms) for entity in entities]

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before one time or after the other, oldest first; of one endpoint or of all."""
        with self._reading() as db:
            return entities_table.stranded(db, before_ms, after_ms, limit, endpoint)

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time, and say how many there were."""
        with self._writing() as (db, _):
            return entities_table.purge(db, before_ms, endpoint)

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        with self._reading(many=len(tokens) > 1) as db:
            return tokens_table.holds(db, tokens)

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist."""
        if not any(birth.tokens for birth in births):  # only asked whether the parents are there
            held = iter(self.holds([birth.parent for birth in births if birth.guarded]))
            return [not birth.guarded or next(held) for birth in births]
        with self._writing() as (db, now_ms):
            return tokens_table.create(db, births, now_ms)

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others."""
        if removals:
            with self._writing() as (db, _):
                tokens_table.remove(db, removals)

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        with self._writing() as (db, _):
            return tokens_table.discard(db, token, parent)

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""
        with self._reading() as db:
            return tokens_table.listed(db, after, limit, orphans=orphans)

    def live(self) -> Live:
        """How many there are, and when the oldest was made. Cost: it looks at each."""
        with self._reading() as db:
            return tokens_table.live(db)

    def warnings(self) -> list[str]:
        """None: what can lose something is not opened."""
        return []

    def open(self, steps: Sequence[Open]) -> list[Opened]:
        """Entities, each with whether its token exists at the same moment."""
        with self._reading(many=len(steps) > 1) as db:
            return entities_table.open_(db, steps)

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
                entities_table.finish(db, steps)

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
