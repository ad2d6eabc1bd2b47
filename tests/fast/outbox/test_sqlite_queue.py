"""What is SQLite's own of the queue: processes that share a file, kills, and leases that cost what they give out."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onefold.errors import Damaged, Misuse, StoreFailed
from onefold.outbox.ports import Buried, Delivery, Parcel
from onefold.outbox.stores.sqlite import SqliteQueue
from onefold.stores.sqlite import Database
from tests.lib.commands import lines_after_kill
from tests.lib.dict_queue import DictQueue
from tests.lib.examples import examples

LONG_MS = 60_000

WORKER = """
import sys
from onefold.outbox.ports import open_queue

print("ready", flush=True)
sys.stdin.readline()
queue = open_queue(sys.argv[1])
while found := queue.lease(["orders", "other"], 5, 1_000, wait_ms=1_300):
    queue.acknowledge(found)
    print(*(each.payload.decode() for each in found), flush=True)
"""
SENDER = """
import sys
from onefold.outbox.ports import Parcel
from onefold.outbox.ports import open_queue

queue = open_queue(sys.argv[1])
for n in range(100_000):
    queue.send([Parcel("orders", b"%d" % m) for m in (2 * n, 2 * n + 1)])
    print(n, flush=True)
"""


def process(code: str, path) -> subprocess.Popen:
    words = [sys.executable, "-c", code, f"sqlite:///{path}"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(it: subprocess.Popen) -> str:
    assert it.stdout is not None
    return str(it.stdout.readline())


def parcels(*payloads: object, to: str = "orders") -> list[Parcel]:
    return [Parcel(to, str(payload).encode()) for payload in payloads]


def payloads(found: list[Delivery]) -> list[str]:
    return [each.payload.decode() for each in found]


def test_processes_share_the_parcels_and_kill_9_of_one_loses_none(tmp_path):
    many = 300
    workers = [process(WORKER, tmp_path / "new.db") for _ in range(3)]
    for worker in workers:
        line_of(worker)
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    queue = SqliteQueue(tmp_path / "new.db")
    queue.send([*parcels(*range(100)), *parcels(*range(100, many), to="other")])
    heard = [line_of(workers[0]) for _ in range(3)]
    heard += lines_after_kill(workers[0])
    outs = [*heard, *(worker.communicate(timeout=60)[0] for worker in workers[1:])]
    came = {word for out in outs for word in out.split()}
    while queue.waiting():  # what it held, if the others had gone home before its lease ran out
        found = queue.lease(["orders", "other"], 5, LONG_MS, wait_ms=5_000)
        queue.acknowledge(found)
        came |= set(payloads(found))
    missing = {str(n) for n in range(many)} - came
    assert len(missing) <= 5, "at most what the one who died had acknowledged and not told"
    queue.close()


def test_kill_9_loses_nothing_that_was_sent_and_keeps_each_batch_whole(tmp_path):
    sender = process(SENDER, tmp_path / "q.db")
    heard = [line_of(sender) for _ in range(100)]
    heard += lines_after_kill(sender)
    assert [int(line) for line in heard] == list(range(len(heard)))
    queue = SqliteQueue(tmp_path / "q.db")
    found = queue.lease(["orders"], 1_000_000, LONG_MS)
    assert payloads(found) == [str(n) for n in range(len(found))]
    assert len(found) - 2 * len(heard) in (0, 2)  # the last: it was made, and nobody heard of it
    queue.close()


def test_what_is_on_loan_stays_so_when_the_file_is_opened_again(tmp_path):
    clock = [1_000]
    queue = SqliteQueue(tmp_path / "q.db", lambda: clock[0])
    queue.send(parcels("a", "b", "c"))
    held = queue.lease(["orders"], 2, LONG_MS)
    queue.bury(held[1:], "no")
    queue.close()
    queue = SqliteQueue(tmp_path / "q.db", lambda: clock[0])
    assert payloads(queue.lease(["orders"], 5, LONG_MS)) == ["c"]
    queue.acknowledge(held)
    assert queue.waiting() == {"orders": 1}
    assert [letter.payload for letter in queue.buried()] == [b"b"]
    clock[0] += LONG_MS
    assert [(each.payload, each.times) for each in queue.lease(["orders"], 5, LONG_MS)] == [(b"c", 2)]
    queue.close()


def test_a_parcel_of_another_process_is_noticed_within_the_polling_time(tmp_path):
    queue = SqliteQueue(tmp_path / "q.db", poll_s=0.05)
    found: list[Delivery] = []
    waiter = threading.Thread(target=lambda: found.extend(queue.lease(["orders"], 5, LONG_MS, wait_ms=30_000)))
    waiter.start()
    code = "import sys; from onefold.outbox.ports import Parcel; from onefold.outbox.ports import open_queue; "
    code += "open_queue(sys.argv[1]).send([Parcel('orders', b'a')])"
    assert process(code, tmp_path / "q.db").wait(60) == 0
    waiter.join(60)
    assert payloads(found) == ["a"]
    queue.close()


def steps(queue: SqliteQueue, limit: int) -> int:
    """How much work for SQLite a lease of so many is, and all else that is done with them."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    with queue._database.reading() as db:
        db.set_progress_handler(tick, 1)
        found = queue.lease(["orders", "other"], limit, LONG_MS)
        queue.extend(found, LONG_MS)
        queue.release(found[:1])
        queue.acknowledge(found[1:])
        assert queue.lease(["nobody"], limit, LONG_MS, wait_ms=1) == []
        db.set_progress_handler(None, 0)
    assert len(found) == limit
    return count


def test_a_lease_costs_what_it_gives_out_however_many_wait_or_are_on_loan_or_ran_out(tmp_path):
    clock = [1_000]
    queue = SqliteQueue(tmp_path / "q.db", lambda: clock[0])
    queue.send(parcels(*range(100)))
    few = steps(queue, 10)
    queue.send(parcels(*range(20_000)))
    assert steps(queue, 10) < 1.5 * few, "many wait"
    queue.lease(["orders"], 10_000, 5_000)
    assert steps(queue, 10) < 1.5 * few, "many are on loan"
    clock[0] += 6_000
    assert steps(queue, 10) < 1.5 * few, "the leases of many ran out"
    assert steps(queue, 100) < 15 * few
    queue.close()


def test_a_file_of_an_earlier_version_is_taken_over_and_what_strayed_in_it_is_found(tmp_path):
    now_ms, month_ms = 1_700_000_000_000, 30 * 86_400_000
    with sqlite3.connect(tmp_path / "q.db") as db:  # as 0.1 made it
        db.execute(
            "create table outbox_queue (position integer primary key autoincrement, queue text not null,"
            " due_ms integer not null default 0, loan integer not null default 0, times integer not null default 0,"
            " payload blob not null)"
        )
        rows = [(0, b"waits"), (now_ms + 60_000, b"leased"), (now_ms + month_ms, b"strayed")]
        db.executemany("insert into outbox_queue (queue, due_ms, payload) values ('orders', ?, ?)", rows)
    db.close()
    queue = SqliteQueue(tmp_path / "q.db", lambda: now_ms)
    assert payloads(queue.lease(["orders"], 10, LONG_MS)) == ["waits", "strayed"]
    SqliteQueue(tmp_path / "q.db").close()
    queue.close()


def test_what_came_back_goes_before_what_never_was_out(tmp_path):
    clock = [1_000]
    queue = SqliteQueue(tmp_path / "q.db", lambda: clock[0])
    queue.send(parcels(*range(10)))
    queue.lease(["orders"], 3, 100)
    queue.release(queue.lease(["orders"], 1, 100))
    clock[0] += 100
    assert payloads(queue.lease(["orders"], 6, 100)) == ["0", "1", "2", "3", "4", "5"]
    queue.close()


def test_who_finds_nothing_does_not_ask_for_the_write_lock(tmp_path):
    queue = SqliteQueue(tmp_path / "q.db", busy_s=0.1)
    other = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    other.execute("begin immediate")
    assert queue.lease(["orders"], 1, LONG_MS, wait_ms=50) == []
    queue.acknowledge([])
    with pytest.raises(StoreFailed, match=r"q\.db: database is locked"):
        queue.send(parcels("a"))
    other.execute("rollback")
    queue.send(parcels("a"))
    other.execute("begin immediate")
    with pytest.raises(StoreFailed, match=r"q\.db: database is locked"):
        queue.lease(["orders"], 1, LONG_MS)
    other.execute("rollback")
    assert payloads(queue.lease(["orders"], 1, LONG_MS)) == ["a"]
    other.close()
    queue.close()


def test_a_full_disk_keeps_nothing_of_the_batch_and_it_can_be_sent_again(tmp_path):
    queue = SqliteQueue(tmp_path / "q.db")
    batch = [Parcel("orders", b"x" * 1_000)] * 200
    with queue._database.reading() as db:
        db.execute("pragma max_page_count=20")
    with pytest.raises(StoreFailed, match=r"q\.db: database or disk is full"):
        queue.send(batch)
    assert queue.waiting() == {}
    with queue._database.reading() as db:
        db.execute("pragma max_page_count=100000")
    queue.send(batch)
    assert queue.waiting() == {"orders": 200}
    queue.close()


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    (tmp_path / "q.db").write_text("a letter, not a database. " * 100)
    with pytest.raises(Damaged, match=r"q\.db: file is not a database"):
        SqliteQueue(tmp_path / "q.db")
    assert (tmp_path / "q.db").read_text().startswith("a letter")


def test_other_tables_may_be_in_the_same_file(tmp_path):
    other = Database(tmp_path / "q.db", ["create table if not exists t (n integer)"])
    queue = SqliteQueue(tmp_path / "q.db")
    queue.send(parcels("a"))
    with other.writing() as db:
        db.execute("insert into t values (1)")
    assert payloads(queue.lease(["orders"], 1, LONG_MS)) == ["a"]
    other.close()
    queue.close()


@pytest.mark.parametrize("poll_s", [0, -1, float("nan")])
def test_a_polling_time_that_is_none_is_refused(tmp_path, poll_s):
    with pytest.raises(Misuse, match=r"poll_s is .*, must be more than 0"):
        SqliteQueue(tmp_path / "q.db", poll_s=poll_s)


def test_who_leases_while_others_send_and_give_back_gets_everything_once(tmp_path):
    queue, again = SqliteQueue(tmp_path / "q.db"), SqliteQueue(tmp_path / "q.db")
    many, came = 200, Counter[str]()
    lock = threading.Lock()

    def send(queue: SqliteQueue, first: int) -> None:
        for n in range(first, many, 2):
            queue.send(parcels(n))

    def take(queue: SqliteQueue) -> None:
        deadline = time.monotonic() + 60
        while sum(came.values()) < many and time.monotonic() < deadline:
            found = queue.lease(["orders"], 3, LONG_MS, wait_ms=20)
            queue.release([each for each in found if each.times == 1 and each.payload.endswith(b"7")])
            done = [each for each in found if not (each.times == 1 and each.payload.endswith(b"7"))]
            queue.acknowledge(done)
            with lock:
                came.update(payloads(done))

    threads = [threading.Thread(target=send, args=args) for args in ((queue, 0), (again, 1))]
    threads += [threading.Thread(target=take, args=[each]) for each in (queue, queue, again)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert came == {str(n): 1 for n in range(many)}
    assert queue.waiting() == {}
    queue.close()
    again.close()


NAMES = st.sampled_from(["b", "a"])
MS = st.sampled_from([5, 10, 20])


class SqliteIsLikeDicts(RuleBasedStateMachine):
    """Whatever is done to both, both say the same; the receipts are the same too, for positions and loans are.

    Leases have no limit here: of more that came back than are wanted, SQLite takes those that came first, not the
    oldest of all.
    """

    def __init__(self):
        super().__init__()
        self.now_ms = 1_000
        self.folder = TemporaryDirectory()
        self.sqlite = SqliteQueue(Path(self.folder.name) / "q.db", self.clock)
        with self.sqlite._database.reading() as db:
            db.execute("pragma synchronous=off")  # the power stays on here
        self.queues = (DictQueue(self.clock), self.sqlite)
        self.has_token: list[Delivery] = []
        self.letters: list[Buried] = []

    def clock(self) -> int:
        return self.now_ms

    def both(self, verb):
        one, two = (verb(queue) for queue in self.queues)
        assert one == two
        return one

    @rule(names=st.lists(NAMES, min_size=1, max_size=3))
    def send(self, names):
        self.both(lambda queue: queue.send([Parcel(name, b"%d" % at) for at, name in enumerate(names)]))

    @rule(names=st.lists(NAMES, min_size=1, max_size=3), lease_ms=MS)
    def lease(self, names, lease_ms):
        self.has_token += self.both(lambda queue: queue.lease(names, 1_000, lease_ms))

    @rule(ms=MS)
    def pass_ms(self, ms):
        self.now_ms += ms

    def some(self, data):
        """Of those that were given out last: they may be on loan, or not long ago they were."""
        return (
            data.draw(st.lists(st.sampled_from(self.has_token[-6:]), min_size=1, max_size=4)) if self.has_token else []
        )

    @rule(data=st.data())
    def acknowledge(self, data):
        some = self.some(data)
        self.both(lambda queue: queue.acknowledge(some))

    @rule(data=st.data(), lease_ms=MS)
    def extend(self, data, lease_ms):
        some = self.some(data)
        self.both(lambda queue: queue.extend(some, lease_ms))

    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 5, 20]))
    def release(self, data, delay_ms):
        some = self.some(data)
        self.both(lambda queue: queue.release(some, delay_ms))

    @rule(data=st.data())
    def bury(self, data):
        some = self.some(data)
        self.both(lambda queue: queue.bury(some, "why"))
        self.letters = self.both(lambda queue: queue.buried()) or self.letters

    @rule(data=st.data(), deliver=st.booleans())
    def dig_up(self, data, deliver):
        some = data.draw(st.lists(st.sampled_from(self.letters), min_size=1, max_size=3)) if self.letters else []
        self.both(lambda queue: queue.dig_up(some, deliver=deliver))

    @invariant()
    def as_many_wait(self):
        self.both(lambda queue: queue.waiting())

    def teardown(self):
        self.sqlite.close()
        self.folder.cleanup()


SqliteIsLikeDicts.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
test_sqlite_and_dicts_always_say_the_same = SqliteIsLikeDicts.TestCase
