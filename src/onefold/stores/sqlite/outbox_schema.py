"""The tables of the outbox in SQLite.

They have no row numbers of their own: equal content is equal rows, whatever was there before. That keeps a table that
is filled and emptied all day small, and lets the explorer tell when two histories led to the same place.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onefold.stores.sqlite.database import Database

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
