"""The plan `local`: the row of a message is its token. And the transactions of others: the sender's, the handler's."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic, process_time, sleep
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onefold import Endpoint, Out
from onefold.errors import Misuse, StoreFailed
from onefold.outbox import Entity, Key, Outcome, Settled
from onefold.outbox.plans import Commit, Message, unpack_message
from onefold.outbox.ports import Ahead, LocalStore, Parcel, open_local
from onefold.outbox.stores.sqlite import MemoryLedger, MemoryLocal, MemoryQueue
from tests.lib.ledgers import Clock

ONE = Key("shop", "1")


class Place(NamedTuple):
    url: str
    connect: Callable[[], Any]
    """A connection of the caller's own."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return Place(f"sqlite:///{tmp_path}/shop.db", lambda: sqlite3.connect(tmp_path / "shop.db"))
    uri, schema = request.getfixturevalue("postgres_uri"), request.getfixturevalue("postgres_schema")

    def connect() -> Any:
        connection = psycopg.connect(uri)
        connection.execute(sql.SQL("set search_path to {}").format(sql.Identifier(schema)))
        connection.commit()
        return connection

    return Place(f"{uri}#{schema}", connect)


@pytest.fixture
def store(place) -> Iterator[LocalStore]:
    store = open_local(place.url)
    yield store
    store.close()


@pytest.fixture
def app(place) -> Iterator[Endpoint]:
    with Endpoint("shop", store=place.url) as app:
        yield app


def rows(place, statement: str) -> list[Any]:
    connection = place.connect()
    try:
        return list(connection.execute(statement).fetchall())
    finally:
        connection.close()


def change(place, statement: str) -> None:
    connection = place.connect()
    connection.execute(statement)
    connection.commit()
    connection.close()


def write(db, n: int) -> None:
    db.execute(f"insert into mine values ({'?' if isinstance(db, sqlite3.Connection) else '%s'})", [n])  # noqa: S608


def leased(store: LocalStore, many: int = 1) -> list[str]:
    store.send([Parcel("orders", b"x")] * many)
    return [delivery.receipt for delivery in store.lease(["orders"], many, 60_000)]


def test_what_is_committed_is_one_thing_row_state_and_messages(store):
    [receipt] = leased(store)
    out = Message("t2", "next", {"n": 1}, "t1")
    assert store.commit([Commit(Entity(ONE, state=7), (receipt,), (out,))]) == [Settled.DONE]
    assert store.waiting() == {"next": 1}
    assert store.peek([ONE]) == [Entity(ONE, 1, 7)]
    [sent] = store.lease(["next"], 1, 60_000)
    assert unpack_message(sent.payload)._replace(realm="") == out


def test_what_is_leased_ahead_is_leased_with_the_commit_or_not_at_all(tmp_path):
    store = open_local(f"sqlite:///{tmp_path}/shop.db")
    receipts = leased(store, 2)
    store.send([Parcel("orders", b"next")] * 3)
    stale, good = (Commit(Entity(ONE, version), (receipts[0],), ()) for version in (1, 0))
    ahead = Ahead(["orders"], 2, 60_000)
    assert (store.commit([stale], ahead), ahead.deliveries) == ([Settled.STALE], ())
    assert store.commit([good], ahead) == [Settled.DONE]
    assert [(each.payload, each.times) for each in ahead.deliveries] == [(b"next", 1)] * 2
    assert len(store.lease(["orders"], 9, 60_000)) == 1
    store.close()


def test_who_finds_no_row_or_another_version_changes_nothing(store):
    first, second, third = leased(store, 3)
    assert store.commit([Commit(Entity(ONE, state=1), (first,), ())]) == [Settled.DONE]
    steps = [
        Commit(Entity(Key("shop", "2"), state=1), (first,), (Message("t", "next", 1),)),
        Commit(Entity(ONE, 0, 5), (second,), (Message("t", "next", 1),)),
        Commit(Entity(ONE, 1, 6), (third,), (Message("t", "next", 1),)),
    ]
    assert store.commit(steps) == [Settled.NO_TOKEN, Settled.STALE, Settled.DONE]
    assert store.waiting() == {"orders": 1, "next": 1}
    assert [entity.state for entity in store.peek([ONE, Key("shop", "2")])] == [6, None]


def test_of_two_that_hold_one_row_the_first_to_settle_gets_through(place, app):
    app.handler("orders", key="n")(lambda state, message: ((state or 0) + 1, []))
    app.take("s", 1, [Out("orders", {"n": 1})])
    world = app.world
    deliveries = [world.queue.lease(["orders"], 1, 1, 5_000)[0] for _ in range(2)]
    messages = [unpack_message(delivery.payload) for delivery in deliveries]
    ends = [app.process(message, delivery) for message, delivery in zip(messages, deliveries, strict=True)]
    assert (ends, app.state("1"), world.queue.waiting()) == ([Outcome.APPLIED, Outcome.DUPLICATE], 1, {})


@given(numbers=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20), batch=st.integers(1, 8))
def test_folding_is_the_same_as_one_after_the_other(numbers, batch):
    sums: dict[str, list[int]] = {}
    with Endpoint("shop", store=MemoryLocal()) as app:

        @app.handler("orders", key="key")
        def handle(state, message):
            if message["fails"]:
                raise ValueError("no")
            return [*(state or []), message["n"]], [Out("next", {"n": message["n"]})]

        bodies = [{"key": key, "n": n, "fails": fails} for n, (key, fails) in enumerate(numbers)]
        app.take("s", 1, [Out("orders", body) for body in bodies])
        for body in bodies:
            if not body["fails"]:
                sums.setdefault(str(body["key"]), []).append(body["n"])
        tally = app.consume(until_empty=True, batch=batch, attempts_max=1)
        assert {key: app.state(key) for key in sums} == sums
        good = sum(not body["fails"] for body in bodies)
        assert app.world.queue.waiting() == ({"next": good} if good else {})
        assert (len(app.world.queue.buried()), tally.received) == (len(bodies) - good, len(bodies))


def test_the_plan_is_local_where_store_and_queue_are_one(tmp_path):
    at, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    assert Endpoint("shop", store=at).plan == Endpoint("shop", store=at, transport=at).plan == "local"
    assert Endpoint("shop", store=at, transport=other).plan == "transactional"
    with pytest.raises(Misuse, match="leave 'transport' out"):
        Endpoint("shop", store=at, transport=other, plan="local")
    with pytest.raises(Misuse, match="MemoryLedger is no queue: name one by 'transport'"):
        Endpoint("shop", store=MemoryLedger())
    with pytest.raises(Misuse, match="a handler that has no key needs the plan 'local'"):
        Endpoint("shop", store=at, transport=other).handler("orders")(lambda message: [])
    with pytest.raises(Misuse, match="sending in your own transaction needs the plan 'local'"):
        Endpoint("shop", store=MemoryLedger(), transport=MemoryQueue()).send(None, Out("orders", 1))


def test_what_the_plan_transactional_left_in_the_same_database_is_finished(place):
    with Endpoint("shop", store=place.url, plan="transactional") as before:
        before.take("s", 1, [Out("orders", {"n": 1})])
    with Endpoint("shop", store=place.url) as app:
        app.handler("orders", key="n")(lambda state, message: ((state or 0) + 1, [Out("orders2", {"n": 1})]))
        app.handler("orders2", key="n")(lambda state, message: (state + 1, []))
        app.consume(until_empty=True)
        assert (app.state("1"), app.world.queue.waiting(), app.world.tokens.live().tokens) == (2, {}, 0)


def test_a_message_whose_row_is_its_token_is_kept_from_who_would_look_for_a_token(place):
    with Endpoint("shop", store=place.url) as app:
        app.take("s", 1, [Out("orders", {"n": 1})])
    with Endpoint("shop", store=place.url, plan="transactional") as other:
        other.handler("orders", key="n")(lambda state, message: (1, []))
        other.consume(until_empty=True)
        [letter] = other.world.queue.buried()
        assert letter.reason.startswith("foreign_token: ")


# The caller's transaction.


def test_what_is_sent_in_a_callers_transaction_is_there_with_its_rows_or_not_at_all(place, app):
    app.world  # noqa: B018 # makes the tables
    change(place, "create table mine (n int)")
    for ending, found in (("rollback", {}), ("commit", {"orders": 2})):
        connection = place.connect()
        connection.execute("insert into mine values (1)")
        app.send(connection, Out("orders", {"n": 1}), Out("orders", {"n": 2}))
        assert app.world.queue.waiting() == {}
        getattr(connection, ending)()
        connection.close()
        assert app.world.queue.waiting() == found
    assert rows(place, "select n from mine") == [(1,)]
    messages = [unpack_message(each.payload) for each in app.world.queue.lease(["orders"], 10, 60_000)]
    assert [message["n"] for message in messages] == [1, 2]
    assert len({message.token for message in messages}) == 2


def test_sessions_and_connections_of_sqlalchemy_are_callers_too(place, app):
    app.world  # noqa: B018
    kind = "sqlite" if place.url.startswith("sqlite") else "postgresql+psycopg"
    engine = sqlalchemy.create_engine(f"{kind}://", creator=place.connect)
    for begin in (engine.connect, lambda: Session(engine)):
        with begin() as kept:
            app.send(kept, Out("orders", 1))
            app.send(kept)
            kept.commit()
        with begin() as lost:
            app.send(lost, Out("orders", 2))
    engine.dispose()
    assert app.world.queue.waiting() == {"orders": 2}


def test_asynchronous_connections_are_awaited(postgres_uri, postgres_url):
    async def send_all(app: Endpoint) -> None:
        with_psycopg = await psycopg.AsyncConnection.connect(postgres_uri)
        await app.send(with_psycopg, Out("orders", 1))
        await with_psycopg.commit()
        await app.send(with_psycopg, Out("orders", 2))
        await with_psycopg.close()
        with_asyncpg = await asyncpg.connect(postgres_uri)
        async with with_asyncpg.transaction():
            await app.send(with_asyncpg, Out("orders", 3), Out("orders", 4, delay_s=60))
        undone = with_asyncpg.transaction()
        await undone.start()
        await app.send(with_asyncpg, Out("orders", 5))
        await undone.rollback()
        await with_asyncpg.close()
        engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(postgres_uri))
        async with engine.connect() as connection:
            await app.send(connection, Out("orders", 6))
            await app.send(connection)
            await connection.commit()
        async with AsyncSession(engine) as session:
            await app.send(session, Out("orders", 7))
            await session.commit()
            await app.send(session, Out("orders", 8))
        await engine.dispose()

    with Endpoint("shop", store=postgres_url) as app:
        asyncio.run(send_all(app))
        bodies = [unpack_message(each.payload).body for each in app.world.queue.lease(["orders"], 10, 60_000)]
        assert (bodies, app.world.queue.waiting()) == ([1, 3, 6, 7], {"orders": 5})


def test_a_connection_to_another_store_is_refused(place, app, tmp_path):
    with pytest.raises(Misuse, match=r"the connection is a builtins\.object"):
        app.send(object(), Out("orders", 1))
    if place.url.startswith("sqlite"):
        with Endpoint("shop", store=f"sqlite:///{tmp_path}/other.db") as other:
            other.world  # noqa: B018
        with pytest.raises(Misuse, match="the connection is to another store"):
            app.send(sqlite3.connect(tmp_path / "other.db"), Out("orders", 1))


def test_where_a_connection_finds_no_tables_it_is_said_what_makes_them(place, app):
    app.world  # noqa: B018
    change(place, "drop table outbox_queue")
    with (
        closing(place.connect()) as own,
        pytest.raises(Misuse, match="no tables of an outbox; `onefold outbox migrate`"),
    ):
        app.send(own, Out("orders", 1))
    address = place.url.partition("#")[0].replace("postgresql://", "postgresql+psycopg://")
    with (
        sqlalchemy.create_engine(address).connect() as connection,
        pytest.raises(Misuse, match="onefold outbox migrate"),
    ):
        app.send(connection, Out("orders", 1))


def test_a_table_of_the_users_own_is_relayed_once_whatever_order_its_ids_commit_in(place, app):
    app.world  # noqa: B018
    change(place, "create table mine (id integer, body text)")

    def take(db):
        taken = list(db.execute("delete from mine where id in (select id from mine order by id limit 2) returning id"))
        return [Out("orders", {"id": number}) for (number,) in taken]

    change(place, "insert into mine values (2, 'b'), (3, 'c'), (5, 'e')")
    assert [app.relay(take) for _ in range(3)] == [2, 1, 0]
    change(place, "insert into mine values (1, 'a'), (4, 'd')")  # they began before, and commit late
    with pytest.raises(KeyError):
        app.relay(lambda db: [*take(db), {"out": Out("orders", 1)}["nothing"]])
    assert [app.relay(take) for _ in range(2)] == [2, 0]
    bodies = [unpack_message(each.payload).body["id"] for each in app.world.queue.lease(["orders"], 10, 60_000)]
    assert (sorted(bodies), rows(place, "select id from mine")) == ([1, 2, 3, 4, 5], [])


# Handlers with tables of their own.


def test_a_handler_writes_its_own_tables_in_the_transaction_that_settles(place, app):
    app.world  # noqa: B018
    change(place, "create table mine (n int)")

    @app.handler("orders")
    def own(message, db):
        write(db, message["n"])
        if message["n"] == 2:
            raise ValueError("no")
        return [Out("sums", {"n": message["n"], "sum": "all"})]

    @app.handler("sums", key="sum")
    def add(state, message, db):
        write(db, 10 * message["n"])
        return (state or 0) + message["n"], []

    app.take("s", 1, [Out("orders", {"n": n}) for n in range(1, 5)])
    app.consume(until_empty=True, attempts_max=1)
    assert [n for (n,) in rows(place, "select n from mine order by n")] == [1, 3, 4, 10, 30, 40]
    assert (app.state("all"), len(app.world.queue.buried())) == (8, 1)


def test_what_a_late_handler_wrote_is_undone(place, app):
    app.world  # noqa: B018
    change(place, "create table mine (n int)")

    @app.handler("orders")
    def own(message, db):
        db.execute("insert into mine values (1)")

    app.take("s", 1, [Out("orders", {"n": 1})])
    first, second = (app.world.queue.lease(["orders"], 1, 1, 5_000)[0] for _ in range(2))
    message = unpack_message(first.payload)
    assert app.process(message, second) is Outcome.APPLIED
    assert app.process(message, first) is Outcome.DUPLICATE
    assert rows(place, "select n from mine") == [(1,)]


def test_a_handler_that_ends_our_transaction_stops_the_consumer(tmp_path):
    with Endpoint("shop", store=f"sqlite:///{tmp_path}/a.db") as app:
        app.handler("orders")(lambda message, db: db.commit())
        app.take("s", 1, [Out("orders", 1)])
        with pytest.raises(Misuse, match="it must not commit"):
            app.consume(until_empty=True)


# The worker.


def test_a_handler_that_takes_long_holds_nobody(app):
    """What came with its message, and what was sent after that, is settled while it still blocks, and within 0.5 s. The
    machine may be busy: one round of ten shows that."""
    begun, going_on = threading.Event(), threading.Event()

    @app.handler("orders", key="n")
    def handle(state, message):
        if message["n"] % 100 == 0:
            begun.set()
            assert going_on.wait(60)
        return 1, []

    def delay_s(first: int) -> float:
        app.take("s", first, [Out("orders", {"n": n}) for n in range(first, first + 20)])
        consumer = threading.Thread(target=lambda: app.consume(until_empty=True))
        consumer.start()
        assert begun.wait(60)
        start = monotonic()
        app.take("later", first, [Out("orders", {"n": first + 20})])
        while None in {app.state(str(n)) for n in range(first + 1, first + 21)}:
            assert monotonic() - start < 60
            sleep(0.01)
        delay = monotonic() - start
        assert app.state(str(first)) is None
        going_on.set()
        consumer.join(60)
        assert app.state(str(first)) == 1
        begun.clear()
        going_on.clear()
        return delay

    assert any(delay_s(first) < 0.5 for first in range(0, 1_000, 100))


def test_one_hot_key_is_at_least_half_as_fast_as_many(place):
    def cpu_s(source: str, keys: int) -> float:
        with Endpoint(source, store=place.url) as app:
            app.handler(source, key=lambda message: message["n"] % keys)(lambda state, message: ((state or 0) + 1, []))
            app.take(source, 1, [Out(source, {"n": n}) for n in range(1_000)])
            start = process_time()
            app.consume(until_empty=True, batch=100)
            seconds = process_time() - start
            assert sum(app.state(str(key)) for key in range(keys)) == 1_000
        return seconds

    cpu_s("warm", 1)
    assert cpu_s("hot", 1) < 2 * cpu_s("many", 500)


def test_coroutines_that_are_not_ready_hold_nobody(app):
    done: list[int] = []

    @app.handler("orders", key="n")
    async def handle(state, message):
        while message["n"] == 0 and len(done) < 9:
            await asyncio.sleep(0.01)
        done.append(message["n"])
        return 1, []

    app.take("s", 1, [Out("orders", {"n": n}) for n in range(5)])
    consumer = threading.Thread(target=lambda: app.consume(until_empty=True, batch=3))
    consumer.start()
    app.take("s", 2, [Out("orders", {"n": n}) for n in range(5, 10)])
    consumer.join(60)
    assert not consumer.is_alive()
    assert (done[-1], sorted(done)) == (0, list(range(10)))


def test_messages_of_one_key_are_handled_in_order_by_whoever_consumes(place):
    """Three consumers with small batches; some messages fail once, one for ever."""
    seen: dict[int, list[int]] = {key: [] for key in range(5)}
    failures: dict[int, int] = {}

    def consumer() -> None:
        with Endpoint("shop", store=place.url) as app:

            @app.handler("orders", key="key", ordered=True)
            def handle(state, message):
                n = message["n"]
                if n == 61 or (n % 17 == 3 and failures.setdefault(n, 0) < 1):
                    failures[n] = failures.get(n, 0) + 1
                    raise ValueError("no")
                return [*(state or []), n], []

            app.consume(until_empty=True, batch=7, attempts_max=3, backoff_s=0.02)

    with Endpoint("shop", store=place.url) as app:
        app.take("s", 1, [Out("orders", {"key": n % 5, "n": n}) for n in range(120)])
        threads = [threading.Thread(target=consumer) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert {key: app.state(str(key)) for key in seen} == {
            key: [n for n in range(key, 120, 5) if n != 61] for key in seen
        }
        [letter] = app.world.queue.buried()
        assert (unpack_message(letter.payload)["n"], app.world.queue.waiting()) == (61, {})


KILLED = """
import os, sys
from onefold import Endpoint

with Endpoint("shop", store=sys.argv[1]) as app:
    @app.handler("orders", key="n")
    def handle(state, message):
        if message["n"] == 7:
            os.kill(os.getpid(), 9)
        return 1, []

    app.consume(until_empty=True, lease_s=0.2, attempts_max=1)
"""


def test_a_message_that_kills_its_process_takes_no_other_with_it(place, app):
    app.take("s", 1, [Out("orders", {"n": n}) for n in range(20)])
    deaths = 0
    while True:
        done = subprocess.run([sys.executable, "-c", KILLED, place.url], capture_output=True, timeout=120)
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        deaths += 1
    assert deaths == 20, "each was its own"
    assert [n for n in range(20) if app.state(str(n)) is None] == [7]
    [letter] = app.world.queue.buried()
    assert (unpack_message(letter.payload)["n"], app.world.queue.waiting()) == (7, {})


def test_what_came_back_is_counted_when_it_is_begun_and_not_with_those_beside_it(place, app):
    seen: dict[int, list[int]] = {}

    @app.handler("orders", key="n")
    def handle(state, message):
        seen[message["n"]] = [times for (times,) in rows(place, "select times from outbox_queue order by times")]
        return 1, []

    app.take("s", 1, [Out("orders", {"n": n}) for n in range(9)])
    queue = app.world.queue
    queue.release(queue.lease(["orders"], 9, 60_000))  # as if the process had died
    assert app.consume(until_empty=True).received == 9
    assert sorted(seen.values(), key=len) == [[1] * others + [2] for others in range(9)]


def test_a_clock_that_was_a_month_ahead_makes_nobody_wait():
    clock = Clock()
    with Endpoint("shop", store=MemoryLocal(clock), clock_ms=clock) as app:
        app.handler("orders", key="n")(lambda state, message: (1, []))
        app.take("s", 1, [Out("orders", {"n": n}) for n in range(30)])
        clock.pass_ms(30 * 86_400_000)
        assert len(app.world.queue.lease(["orders"], 30, 30_000)) == 30
        clock.pass_ms(-30 * 86_400_000)
        assert app.consume(until_empty=True).received == 30


def test_a_store_that_starts_is_waited_for(monkeypatch):
    trouble = [StoreFailed("it starts")] * 2
    store = MemoryLocal()
    waiting = store.waiting

    def refused():
        if trouble:
            raise trouble.pop()
        return waiting()

    monkeypatch.setattr(store, "waiting", refused)
    with Endpoint("shop", store=store) as app:
        app.handler("orders", key="n")(lambda state, message: (1, []))
        app.take("s", 1, [Out("orders", {"n": 1})])
        assert app.consume(until_empty=True).received == 1
    assert not trouble


def test_on_postgres_neither_a_lease_nor_a_state_writes_an_index(postgres_uri, postgres_url, postgres_schema):
    with Endpoint("shop", store=postgres_url) as app:
        app.handler("orders", key="n")(lambda state, message: ((state or 0) + 1, []))
        for mark in range(20):
            app.take("s", mark, [Out("orders", {"n": n}) for n in range(5)])
            app.consume(until_empty=True)
    with psycopg.connect(postgres_uri, autocommit=True) as db:
        db.execute("select pg_stat_force_next_flush()")
        found = db.execute(
            "select relname, n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = %s", [postgres_schema]
        )
        counts = {name: (updates, hot) for name, updates, hot in found}
    for table in ("outbox_queue", "outbox_entities"):
        updates, hot = counts[table]
        assert updates >= 95
        assert hot >= 0.9 * updates, table
