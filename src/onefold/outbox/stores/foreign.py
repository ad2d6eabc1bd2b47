"""Adds rows to the queue by the caller's connection, in its open transaction: sqlite3, psycopg, asyncpg, SQLAlchemy.
Nothing is committed or rolled back here, so messages are sent with the caller's own rows, or not at all.

The connection must be to the store of the endpoint: the statement checks the store's realm and inserts nothing if it is
another one, which the row count shows.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from onefold.errors import Misuse
from onefold.outbox.ports import Parcel

_SQLITE: Final = """
    insert into outbox_queue (queue, payload, due_ms, span_ms, priority)
    select ?, ?, ?, ?, ? where exists (select 1 from outbox_realm where realm = ?)
"""
_POSTGRES: Final = """
    insert into {schema}.outbox_queue (queue, priority, starts_ms, span_ms, payload)
    select queue, priority, case when delay > 0
        then (extract(epoch from clock_timestamp()) * 1000)::bigint + delay end, delay, payload
    from unnest(%(queues)s::text[], %(priorities)s::smallint[], %(delays)s::bigint[], %(payloads)s::bytea[])
        with ordinality as new (queue, priority, delay, payload, n)
    where exists (select from {schema}.outbox_realm where realm = %(realm)s::text)
    order by n
"""


def add_rows(connection: Any, parcels: Sequence[Parcel], realm: str, schema: str | None, now_ms: int) -> Any:
    """Add the parcels; returns an awaitable if the connection is asynchronous. ``schema``: of PostgreSQL, quoted."""
    rows = [
        (queue, payload, now_ms + delay_ms if delay_ms else 0, delay_ms, priority, realm)
        for queue, payload, delay_ms, priority in parcels
    ]
    arguments = {
        "queues": [parcel.queue for parcel in parcels], "priorities": [parcel.priority for parcel in parcels],
        "delays": [parcel.delay_ms for parcel in parcels], "payloads": [parcel.payload for parcel in parcels],
        "realm": realm,
    }  # fmt: skip
    statement = _POSTGRES.format(schema=schema)
    library = next((name for each in type(connection).__mro__ if (name := each.__module__.split(".")[0]) in _KNOWN), "")
    if library == "sqlite3" and schema is None:
        with _tables():
            return _check(connection.executemany(_SQLITE, rows).rowcount, parcels)
    if library == "psycopg" and schema is not None:
        with _tables():
            done = connection.execute(statement, arguments)
        if hasattr(done, "__await__"):
            return _awaited(done, parcels)
        return _check(done.rowcount, parcels)
    if library == "asyncpg" and schema is not None:
        return _awaited(connection.execute(_numbered(statement), *arguments.values()), parcels)
    if library == "sqlalchemy":
        return _by_sqlalchemy(connection, rows if schema is None else arguments, statement, parcels, schema is None)
    wanted = "sqlite3" if schema is None else "psycopg or asyncpg"
    kind = f"{type(connection).__module__}.{type(connection).__name__}"
    raise Misuse(f"the connection is a {kind}; for this store it must be one of {wanted}, or of SQLAlchemy")


_KNOWN: Final = ("sqlite3", "psycopg", "asyncpg", "sqlalchemy")


def _by_sqlalchemy(connection: Any, arguments: Any, statement: str, parcels: Sequence[Parcel], is_sqlite: bool) -> Any:
    """``connection`` may be a session. `exec_driver_sql` begins the transaction if none is open."""

    def add(there: Any) -> Any:
        dialect = there.dialect
        if dialect.name != ("sqlite" if is_sqlite else "postgresql"):
            raise Misuse(f"the connection is to {dialect.name}, the store is not")
        if is_sqlite:
            return there.exec_driver_sql(_SQLITE, arguments)
        if dialect.driver == "asyncpg":
            return there.exec_driver_sql(_numbered(statement), tuple(arguments.values()))
        return there.exec_driver_sql(statement, arguments)

    async def added() -> None:
        there = connection if has_driver else await connection.connection()
        with _tables():
            done = await add(there)
        _check(done.rowcount, parcels)

    is_async = any(".asyncio" in each.__module__ for each in type(connection).__mro__)
    if not parcels:  # without rows SQLAlchemy runs a statement once, without arguments
        return asyncio.sleep(0) if is_async else None
    has_driver = hasattr(connection, "exec_driver_sql")
    if is_async:
        return added()
    with _tables():
        return _check(add(connection if has_driver else connection.connection()).rowcount, parcels)


def _numbered(statement: str) -> str:
    """Numbered parameters instead of named ones, in the order in which they first appear.

    >>> _numbered("select %(a)s, %(b)s, %(a)s")
    'select $1, $2, $1'
    """
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%\((\w+)\)s", number, statement)


async def _awaited(done: Awaitable[Any], parcels: Sequence[Parcel]) -> None:
    with _tables():
        answer = await done
    # asyncpg returns the text "INSERT 0 3"
    _check(int(answer.split()[-1]) if isinstance(answer, str) else answer.rowcount, parcels)


@contextmanager
def _tables() -> Iterator[None]:
    """Turn a library's error for missing tables into `Misuse`."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's error
        if getattr(cause, "sqlstate", "") not in _NO_TABLE and not str(cause).startswith("no such table: outbox_"):
            raise
        raise Misuse(
            "nothing was sent: the database of this connection has no tables of an outbox;"
            " `onefold outbox migrate` makes them"
        ) from error


_NO_TABLE: Final = ("42P01", "3F000")
"""SQLSTATE: undefined table, invalid schema name."""


def _check(rows: int, parcels: Sequence[Parcel]) -> None:
    if rows != len(parcels):
        raise Misuse("nothing was sent: the connection is to another store than the endpoint's")


assert sqlite3.Connection.__module__ == "sqlite3", "connections are recognised by the name of their module"
