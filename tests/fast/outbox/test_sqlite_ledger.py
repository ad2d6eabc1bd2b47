"""What is SQLite's own of the ledger: processes that share a file, crashes, damage, and what it costs to do nothing."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from itertools import count
from threading import Thread, Timer

import pytest

from onefold.errors import BadInput, Damaged, Misuse, StoreFailed
from onefold.lorawan.stores.sqlite import SqliteCounters
from onefold.outbox.plans import Create, Entity, Entry, Finish, Key, Open, Outgoing, Remove, Settle, Settled
from onefold.outbox.ports import Live, open_ledger, open_tokens
from onefold.outbox.stores.sqlite import MemoryLedger, SqliteLedger
from tests.lib.commands import lines_after_kill

KEY = Key("shop", "7")
STEP = Finish(KEY, "t1")

RACER = """
import sys
from onefold.outbox.plans import Entry, Key, Outgoing
from onefold.outbox.plans import Create, Finish, Open, Settle, Settled
from onefold.outbox.ports import open_ledger

name, url, many, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
ledger = open_ledger(url)
ledger.create([Create("", "first", tuple((f"t{n}", "orders") for n in range(many)), False)] if name == "first" else [])
for at in range(0, many, batch):
    left = [f"t{n}" for n in range(at, min(many, at + batch))]
    while left:
        step = [Open(Key("shop", str(int(token[1:]) % 3)), token) for token in left[:3]]
        steps = []
        for (key, token), (entity, held) in zip(step, ledger.open(step)):
            if held:
                entity = entity.changed({"n": (entity.state or {"n": 0})["n"] + 1})
                entry = Entry((Outgoing("x", token, f"c {token} {name}"),), "a1")
                steps.append(Settle(entity.keeping(token, entry), token, token))
        answers = ledger.settle(steps)
        done = [each for each, answer in zip(steps, answers) if answer is Settled.DONE]
        ledger.finish([Finish(each.entity.key, each.name) for each in done])
        print(*(each.name for each in done), flush=True)
        conflicts = {each.name for each, answer in zip(steps, answers) if answer is not Settled.DONE}
        left = [token for token in left[:3] if token in conflicts] + left[3:]
"""


def racer(name: str, path, many: int, batch: int) -> subprocess.Popen:
    words = [sys.executable, "-c", RACER, name, f"sqlite:///{path}", str(many), str(batch)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(*racers: subprocess.Popen) -> None:
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()


def clock() -> int:
    return 0


def entry(*tokens: str) -> Entry:
    return Entry(tuple(Outgoing("shipping", None, token) for token in tokens), "a1")


def first(ledger: SqliteLedger, *tokens: str) -> None:
    ledger.create([Create("", "first", tuple((token, "orders") for token in tokens), guarded=False)])


def test_of_processes_that_race_for_a_message_one_settles_it(tmp_path):
    many, path = 150, tmp_path / "x.db"
    with closing(SqliteLedger(path)) as ledger:
        first(ledger, *(f"t{n}" for n in range(many)))
    racers = [racer(name, path, many, batch) for name, batch in (("a", 1), ("b", 3), ("c", 60))]
    go(*racers)
    settled = Counter[str]()
    for each in racers:
        out, _ = each.communicate(timeout=60)
        assert each.returncode == 0
        settled.update(out.split())
    assert settled == Counter(f"t{n}" for n in range(many))
    with closing(SqliteLedger(path)) as ledger:
        entities = ledger.load([Key("shop", str(n)) for n in range(3)])
        assert [(entity.state, entity.version, entity.outbox) for entity in entities] == [({"n": 50}, 50, {})] * 3
        assert sorted(token.token.split()[1] for token in ledger.listed()) == sorted(settled)


def test_processes_that_make_a_file_at_once_agree_on_its_realm(tmp_path):
    asks = (
        "import sys; from onefold.outbox.ports import open_ledger; sys.stdin.readline(); "
        "print(open_ledger(sys.argv[1]).realm)"
    )
    words = [sys.executable, "-c", asks, f"sqlite:///{tmp_path / 'new.db'}"]
    makers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    realms = [each.communicate("\n", timeout=60)[0] for each in makers]
    with closing(SqliteLedger(tmp_path / "new.db")) as ledger:
        assert realms == [f"{ledger.realm}\n"] * 3


def test_kill_9_loses_no_settle_that_was_answered_and_holds_nobody_up(tmp_path):
    process = racer("first", tmp_path / "x.db", 20_000, 1)
    go(process)
    assert process.stdout is not None
    answered = [process.stdout.readline().strip() for _ in range(200)]
    answered += lines_after_kill(process)
    began = time.monotonic()
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        assert not any(ledger.holds(answered))
        entities = ledger.load([Key("shop", str(n)) for n in range(3)])
        applied = sum(entity.state["n"] for entity in entities)
        assert applied - len(answered) in (0, 1)  # 1: it was made, and nobody heard of it
        assert ledger.live().tokens == 20_000, "one token more for each that is gone"
        assert sum(len(entity.outbox) for entity in entities) <= 1
        first(ledger, "another")
    assert time.monotonic() - began < 4


def test_all_of_it_is_there_when_the_file_is_opened_again(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db", clock)) as ledger:
        first(ledger, "t1")
        ledger.persist([Entity(KEY, 0, {"paid": 20}).keeping("t1", entry("c1"))])
        before = ledger.realm, ledger.open([Open(KEY, "t1")]), ledger.listed(), ledger.stranded(1, 10)
    with closing(SqliteLedger(tmp_path / "x.db", clock)) as ledger:
        assert (ledger.realm, ledger.open([Open(KEY, "t1")]), ledger.listed(), ledger.stranded(1, 10)) == before


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreFailed, match=r"none/x\.db: unable to open"):
        SqliteLedger(tmp_path / "none" / "x.db")


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    (tmp_path / "x.db").write_text("a letter, not a database. " * 100)
    with pytest.raises(Damaged, match=r"x\.db: file is not a database"):
        SqliteLedger(tmp_path / "x.db")
    assert (tmp_path / "x.db").read_text().startswith("a letter")


def test_damaged_pages_are_told_and_not_guessed_at(tmp_path):
    path = tmp_path / "x.db"
    with closing(SqliteLedger(path)) as ledger:
        ledger.persist([Entity(Key("shop", str(n)), 0, "x" * 100) for n in range(1_000)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(b"\xff" * (size - 8 * 4096))
    with closing(SqliteLedger(path)) as ledger, pytest.raises(Damaged, match=r"x\.db: .*malformed"):
        ledger.load([Key("shop", str(n)) for n in range(1_000)])


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("update outbox_entities set state = '{'", "shop/7: its state is no JSON"),
        ("update outbox_entries set entry = '{'", "shop/7: its outbox entry 't1' cannot be read"),
        ("update outbox_entries set entry = '{}'", "shop/7: its outbox entry 't1' cannot be read"),
        ("update outbox_entries set entry = '[]'", "shop/7: its outbox entry 't1' cannot be read"),
    ],
)
def test_a_row_that_somebody_else_wrote_is_named(tmp_path, statement, told):
    with closing(SqliteLedger(tmp_path / "x.db", clock)) as ledger:
        ledger.persist([Entity(KEY, 0, {"paid": 20}).keeping("t1", entry("c1"))])
        with closing(sqlite3.connect(tmp_path / "x.db")) as db, db:
            db.execute(statement)
        with pytest.raises(Damaged, match=told):
            ledger.load([KEY])
        if "entries" in statement:
            with pytest.raises(Damaged, match=told):
                ledger.stranded(1, 10)


def test_who_holds_the_file_too_long_is_not_waited_for(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db", busy_s=0.2)) as ledger:
        first(ledger, "t1")
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            began = time.monotonic()
            with pytest.raises(StoreFailed, match=r"x\.db: database is locked"):
                ledger.settle([Settle(Entity(KEY), "t1", "t1")])
            assert 0.15 < time.monotonic() - began < 4
            other.execute("rollback")
        assert ledger.settle([Settle(Entity(KEY), "t1", "t1")]) == [Settled.DONE]


@pytest.mark.parametrize("verb", ["persist", "finish"])
def test_who_is_interrupted_while_it_waits_for_the_lock_does_not_keep_it(tmp_path, verb, request):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        ledger.persist([Entity(KEY, 0, 1).keeping("t1", entry("c1"))])
        call = {"persist": lambda: ledger.persist([Entity(KEY, 1, 2)]), "finish": lambda: ledger.finish([STEP])}[verb]
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False)) as other:
            other.execute("begin immediate")

            def interrupt() -> None:
                os.kill(os.getpid(), signal.SIGINT)
                other.execute("rollback")

            timer = Timer(0.2, interrupt)  # when it waits; nothing can be seen of that from outside
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            timer.join()
            other.execute("begin immediate")
            other.execute("rollback")
        assert ledger.load([KEY]) == [Entity(KEY, 1, 1).keeping("t1", entry("c1"))]
        with ledger._database.reading() as db:
            assert db.execute("pragma synchronous").fetchone() == (2,)
        call()
        assert ledger.load([KEY])[0].outbox == {}


def test_odd_names_are_told_apart_or_refused(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        first(ledger, "a\0b", "a")
        assert ledger.holds(["a\0b", "a", "a\0c"]) == [True, True, False]
        for half in (["\ud800"], ["a", "\ud800"]):
            with pytest.raises(BadInput, match=r"x\.db cannot keep the text '\\ud800'"):
                ledger.holds(half)
        assert ledger.live().tokens == 2


def test_what_reads_or_has_nothing_to_write_waits_for_no_writer(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db", clock, busy_s=0)) as ledger:
        first(ledger, "t1")
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            other.execute("delete from outbox_tokens")
            assert ledger.open([Open(KEY, "t1")])[0][1]
            assert ledger.load([KEY]) == [Entity(KEY)]
            assert ledger.holds(["t1"]) == [True]
            assert ledger.create([Create("t1", "", ()), Create("t2", "", ())]) == [True, False]
            assert (ledger.live(), len(ledger.listed()), ledger.listed(orphans=True)) == (Live(1, 0), 1, [])
            assert (ledger.persist([]), ledger.settle([]), ledger.create([]), ledger.stranded(1, 1)) == ([], [], [], [])
            ledger.remove([])
            ledger.finish([])
            other.execute("rollback")


def test_only_what_a_power_cut_may_undo_is_not_synced(tmp_path):
    def level() -> int:
        with ledger._database.reading() as db:
            return int(db.execute("pragma synchronous").fetchone()[0])

    with closing(SqliteLedger(tmp_path / "x.db", busy_s=0)) as ledger:
        ledger.persist([Entity(KEY, 0, 1).keeping("t1", entry("c1"))])
        with ledger._database.tidying():
            assert level() == 1, "normal: in the log, but not synced"
        assert level() == 2, "full"
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            with pytest.raises(StoreFailed, match="locked"):
                ledger.finish([Finish(KEY, "t1")])
            assert level() == 2, "also after it failed"
            other.execute("rollback")
            ledger.finish([Finish(KEY, "t1")])
            assert level() == 2
            assert other.execute("select count(*) from outbox_entries").fetchone() == (0,), "seen by all, at once"


def test_a_full_disk_keeps_nothing_of_the_batch_and_it_can_be_made_again(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        first(ledger, "t1", "t2")
        batch = [
            Settle(Entity(KEY, 0, 1).keeping("t1", entry("c1")), "t1", "t1"),
            Settle(Entity(Key("shop", "8"), 0, "x" * 500_000), "t2", "t2"),
        ]
        with ledger._database.reading() as db:
            db.execute("pragma max_page_count=20")
        with pytest.raises(StoreFailed, match=r"x\.db: database or disk is full"):
            ledger.settle(batch)
        assert ledger.open([Open(KEY, "t1")]) == [(Entity(KEY), True)]
        assert ledger.live().tokens == 2
        with ledger._database.reading() as db:
            db.execute("pragma max_page_count=100000")
        assert ledger.settle(batch) == [Settled.DONE] * 2
        assert [token.token for token in ledger.listed()] == ["c1"]


def test_what_cannot_be_packed_undoes_the_whole_batch(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        with pytest.raises(Exception, match="not a JSON value"):
            ledger.persist([Entity(KEY, 0, 1), Entity(Key("shop", "8"), 0, {1, 2})])
        assert ledger.load([KEY]) == [Entity(KEY)]


def test_no_space_is_used_for_what_was_processed_long_ago(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        pages = []
        for n in range(40):
            names = [f"{n:03} {m:029}" for m in range(50)]
            first(ledger, *names)
            entities = ledger.load([Key("shop", str(m)) for m in range(50)])
            steps = [
                Settle(entity.changed({"n": n}).keeping(name, entry(f"c {name}")), name, name)
                for entity, name in zip(entities, names, strict=True)
            ]
            assert set(ledger.settle(steps)) == {Settled.DONE}
            ledger.finish([Finish(step.entity.key, step.name) for step in steps])
            ledger.remove([Remove(f"c {name}", "") for name in names])
            with ledger._database.reading() as db:
                pages += db.execute("pragma page_count").fetchone()
        assert (ledger.live().tokens, ledger.stranded(2**60, 1)) == (0, [])
        assert pages[-1] == pages[5]


def test_equal_content_is_equal_rows_whatever_was_there_before():
    def dumped(*detours: str) -> list[str]:
        connection = sqlite3.connect(":memory:")
        ledger = SqliteLedger.over(connection, clock)
        for detour in detours:
            first(ledger, detour)
            ledger.persist([Entity(Key("shop", detour)).keeping(detour, entry())])
        ledger.finish([Finish(Key("shop", detour), detour) for detour in detours])
        ledger.remove([Remove(detour, "") for detour in detours])
        ledger.purge(1)
        first(ledger, "t1", "t2")
        ledger.settle([Settle(Entity(KEY, 0, 1).keeping("t1", entry("c1")), "t1", "t1")])
        return [line for line in connection.iterdump() if "outbox_realm" not in line]

    assert dumped() == dumped("x") == dumped("y", "x")


@pytest.mark.parametrize("isolation_level", ["", None])
def test_a_borrowed_connection_is_used_and_left_open(isolation_level):
    connection = sqlite3.connect(":memory:", isolation_level=isolation_level)
    ledger = SqliteLedger.over(connection, clock)
    first(ledger, "t1")
    assert ledger.settle([Settle(Entity(KEY, 0, 1), "t1", "t1")] * 2) == [Settled.DONE, Settled.NO_TOKEN]
    assert not connection.in_transaction
    image = connection.serialize()
    assert not ledger.discard("t1")
    ledger.persist([Entity(KEY, 1, 2)])
    connection.deserialize(image)
    assert ledger.load([KEY]) == [Entity(KEY, 1, 1)], "as it was when the image was taken"
    ledger.close()
    with pytest.raises(Misuse, match="a borrowed connection: this ledger was closed"):
        ledger.load([KEY])
    assert connection.execute("select count(*) from outbox_entities").fetchone() == (1,)
    assert SqliteLedger.over(connection, clock).realm == SqliteLedger.over(connection, clock).realm


def test_one_file_may_hold_other_things_too(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger, closing(SqliteCounters(tmp_path / "x.db", clock)) as other:
        first(ledger, "t1")
        assert other.known(["d"]) == [None]
        assert ledger.live().tokens == 1


def test_orphans_are_found_without_looking_at_every_token(tmp_path):
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        first(ledger, "t1")
        with ledger._database.reading() as db:
            from onefold.outbox.stores.sqlite import _ORPHANS

            plan = " ".join(row[3] for row in db.execute(f"explain query plan {_ORPHANS}", ["", 1]))
        assert "USING INDEX outbox_children" in plan


def test_threads_may_share_one_object(tmp_path):
    numbers, wins = count(), Counter[int]()
    with closing(SqliteLedger(tmp_path / "x.db")) as ledger:
        first(ledger, *(f"t{n}" for n in range(60)))

        def work() -> None:
            while (n := next(numbers)) < 240:
                entity, held = ledger.open([Open(Key("shop", str(n % 60)), f"t{n % 60}")])[0]
                if held and ledger.settle([Settle(entity, f"t{n % 60}", f"t{n % 60}")]) == [Settled.DONE]:
                    wins[n % 60] += 1

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wins == Counter(range(60))


# By address


def test_a_ledger_is_opened_by_its_address(tmp_path):
    assert isinstance(open_ledger("memory://"), MemoryLedger)
    for opener in (open_ledger, open_tokens):
        with closing(opener(f"sqlite:///{tmp_path}/a%20b.db")) as store:
            assert isinstance(store, SqliteLedger)
    assert (tmp_path / "a b.db").exists()


@pytest.mark.parametrize("opener", [open_ledger, open_tokens])
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", "''"),
        ("x.db", "'x.db'"),
        ("memory://x", "memory://..."),
        ("sqlite://x.db", "sqlite://..."),
        ("sqlite:///", "sqlite://..."),
        ("mysql://me:secret@db.example", "mysql://..."),
        ("postgresql:/me:secret@db.example/x", "'postgresql:...'"),
        ("secret@db.example", "an address that is not shown"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_without_its_password(opener, url, shown):
    with pytest.raises(Misuse, match=r"there are some at memory://, sqlite:///file\.db") as refused:
        opener(url)
    assert f" at {shown};" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_file_takes_no_options(tmp_path):
    with pytest.raises(Misuse, match=r"x\.db\?busy_s=1: sqlite:/// takes no options"):
        open_ledger(f"sqlite:///{tmp_path}/x.db?busy_s=1")
    assert list(tmp_path.iterdir()) == []


def test_redis_keeps_tokens_alone():
    with pytest.raises(Misuse, match=r"no ledger at redis://\.\.\.; there are some at memory://"):
        open_ledger("redis://me:secret@127.0.0.1:6379/0")


@pytest.mark.parametrize("option", ["retries=3", "timeout_s=soon", "timeout_s=inf", "replicas_min=1.5"])
def test_an_option_that_redis_tokens_do_not_have_is_refused(option):
    with pytest.raises(Misuse, match=option.partition("=")[0]) as refused:
        open_tokens(f"redis://me:secret@127.0.0.1:6379/0?{option}")
    assert "secret" not in str(refused.value)
