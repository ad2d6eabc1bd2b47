"""Ledgers and token stores to test with, by name: each is new, and shares nothing with the others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier


class Clock:
    def __init__(self):
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms


class Place(NamedTuple):
    """A store, and what the tests have to do with it besides."""

    store: Any
    again: Callable[[], Any]
    """Another one that shares what is stored, as a second process would have."""
    clock: Clock


@contextmanager
def in_memory(_request) -> Iterator[Place]:
    from onefold.outbox.stores.sqlite import MemoryLedger

    store = MemoryLedger(clock := Clock())
    yield Place(store, lambda: store, clock)


@contextmanager
def opened(make: Callable[[Clock], Any]) -> Iterator[Place]:
    clock = Clock()
    stores = [make(clock)]

    def again() -> Any:
        stores.append(make(clock))
        return stores[-1]

    yield Place(stores[0], again, clock)
    for store in stores:
        store.close()


def in_sqlite(request) -> Any:
    from onefold.outbox.stores.sqlite import SqliteLedger

    path = request.getfixturevalue("tmp_path") / f"{uuid4().hex}.db"
    return opened(lambda clock: SqliteLedger(path, clock))


@contextmanager
def in_postgres(request) -> Iterator[Place]:
    """A schema of its own for each test: the tables are made in the first schema of the search path."""
    from onefold.outbox.stores.postgres import PostgresLedger

    uri, schema = request.getfixturevalue("postgres_uri"), f"ledger_{uuid4().hex}"
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute(SQL("create schema {}").format(Identifier(schema)))
    url = f"{uri}{'&' if '?' in uri else '?'}options=-csearch_path%3D{schema}"
    with opened(lambda clock: PostgresLedger(url, clock)) as place:
        yield place
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute(SQL("drop schema {} cascade").format(Identifier(schema)))


def in_redis(request) -> Any:
    from onefold.outbox.stores.redis import RedisTokens

    url, prefix = request.getfixturevalue("redis_server").url, f"{uuid4().hex}:"
    return opened(lambda clock: RedisTokens(url, prefix=prefix, clock_ms=clock))


LEDGERS: dict[str, Callable[..., Any]] = {"memory": in_memory, "sqlite": in_sqlite, "postgres": in_postgres}
TOKENS: dict[str, Callable[..., Any]] = {**LEDGERS, "redis": in_redis}
