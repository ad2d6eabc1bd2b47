"""What is SQLite's own of the counters: processes that share a file, crashes, and what cannot be durable is refused."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from onefold.errors import Damaged, Misuse, StoreFailed
from onefold.lorawan.rules import Claim, Claimed, Counters, Unfinished
from onefold.lorawan.stores.sqlite import SCHEMA, SqliteCounters
from onefold.stores.sqlite import Database
from tests.lib.commands import lines_after_kill

RACER = """
import json, sys
from onefold.lorawan.rules import Claim, Finished
from onefold.lorawan.ports import open_counters

name, url, frames, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
counters = open_counters(url)
claims = [
    Claim(f"d{n % 3}", name, n // 3, wants_down=True, body=f"{n} of {name}", number=n) for n in range(frames)
]
finished = []
for at in range(0, frames, batch):
    part = claims[at : at + batch]
    answers = counters.claim(part, finished)
    finished = [Finished(name, c.number) for c, a in zip(part, answers) if a.won]
    won = [(c.device, c.fcnt_up, a.fcnt_down) for c, a in zip(part, answers) if a.won]
    print(json.dumps(won), flush=True)
"""


def racer(name: str, path, frames: int, batch: int) -> subprocess.Popen:
    words = [sys.executable, "-c", RACER, name, f"sqlite:///{path}", str(frames), str(batch)]
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


def test_of_processes_that_race_for_a_frame_one_wins_also_while_the_file_is_made(tmp_path):
    frames = 300
    racers = [
        racer(name, tmp_path / "new.db", frames, batch) for name, batch in zip("abcd", (1, 1, 7, 50), strict=True)
    ]
    go(*racers)
    wins = []
    for each in racers:
        out, _ = each.communicate(timeout=60)
        assert each.returncode == 0
        wins += [tuple(win) for line in out.splitlines() for win in json.loads(line)]
    assert set(Counter((device, up) for device, up, _ in wins).values()) == {1}
    assert set(Counter((device, down) for device, _, down in wins).values()) == {1}
    counters = SqliteCounters(tmp_path / "new.db", clock)
    for device in ("d0", "d1", "d2"):
        known = counters.known([device])[0]
        assert known is not None
        assert known.fcnt_up == frames // 3 - 1
        assert known.fcnt_down == sum(win[0] == device for win in wins)
    counters.close()


def test_kill_9_loses_no_claim_that_was_answered_and_holds_nobody_up(tmp_path):
    process = racer("a", tmp_path / "x.db", 30_000, 1)
    go(process)
    for _ in range(200):
        assert process.stdout is not None
        last = json.loads(process.stdout.readline())
    last = [last, *map(json.loads, lines_after_kill(process))][-1]
    [(device, up, down)] = last
    began = time.monotonic()
    counters = SqliteCounters(tmp_path / "x.db", clock)
    known = counters.known([device])[0]
    assert known is not None
    assert known.fcnt_up - up in (0, 1)  # 1: it was made, and nobody heard of it
    assert known.fcnt_down - down in (0, 1)
    assert counters.claim([Claim(device, "b", up)])[0].won is False
    assert counters.claim([Claim(device, "b", up + 2)])[0].won
    # The message of the last claim, of all that it made: the answered one, or one more that nobody heard of.
    [(number, device, up, body)] = counters.unfinished("a")
    assert number - (3 * last[0][1] + int(last[0][0][1:])) in (0, 1)
    assert (device, up, body) == (f"d{number % 3}", number // 3, f"{number} of a")
    assert time.monotonic() - began < 4
    counters.close()


def test_a_file_from_before_there_were_messages_is_opened_and_has_them_from_then_on(tmp_path):
    before = Database(tmp_path / "x.db", [statement for statement in SCHEMA if "unfinished" not in statement])
    with before.writing() as db:
        db.execute("insert into lorawan_counters values ('d', 7, 2, 'a', null, '')")
    before.close()
    counters = SqliteCounters(tmp_path / "x.db", clock)
    assert (counters.known(["d"])[0], counters.unfinished("a")) == (Counters(7, 2, "a"), [])
    counters.claim([Claim("d", "a", 8, body="eight", number=5)])
    assert counters.unfinished("a") == [Unfinished(5, "d", 8, "eight")]
    counters.close()


def test_a_file_from_before_frames_were_kept_is_opened_and_keeps_them_from_then_on(tmp_path):
    old = [statement.replace(",\n        frame text not null default ''", "") for statement in SCHEMA[:3]]
    assert "frame" not in "".join(old)
    before = Database(tmp_path / "x.db", old)
    with before.writing() as db:
        db.execute("insert into lorawan_counters values ('d', 7, 2, 'a', null)")
    before.close()
    both = [SqliteCounters(tmp_path / "x.db", clock) for _ in range(2)]
    assert both[0].known(["d"]) == [Counters(7, 2, "a")]
    both[0].claim([Claim("d", "a", 8, frame="ab" * 32), Claim("join/x", "a", 0, nonce=7)])
    assert both[1].known(["d"]) == [Counters(8, 2, "a", "ab" * 32)]
    assert not both[1].claim([Claim("join/x", "a", 0, nonce=7)])[0].won
    for each in both:
        each.close()


def test_the_file_is_kept_in_the_one_way_that_loses_nothing(tmp_path):
    database = Database(tmp_path / "x.db")
    with database.reading() as db:
        assert db.execute("pragma journal_mode").fetchone() == ("wal",)
        assert db.execute("pragma synchronous").fetchone() == (2,)
    database.close()


@pytest.mark.parametrize("path", [":memory:", ""])
def test_what_cannot_be_durable_is_refused(path):
    with pytest.raises(Misuse, match=f"^{path}: SQLite keeps its journal as '(memory|delete)' here, not as 'wal'"):
        Database(path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreFailed, match=r"none/x\.db: unable to open"):
        SqliteCounters(tmp_path / "none" / "x.db", clock)


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    (tmp_path / "x.db").write_text("a letter, not a database. " * 100)
    with pytest.raises(Damaged, match=r"x\.db: file is not a database"):
        SqliteCounters(tmp_path / "x.db", clock)
    assert (tmp_path / "x.db").read_text().startswith("a letter")


def test_who_holds_the_file_too_long_is_not_waited_for(tmp_path):
    counters = SqliteCounters(tmp_path / "x.db", clock, busy_s=0.2)
    counters.claim([Claim("d", "a", 1)])
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("begin immediate")
    began = time.monotonic()
    with pytest.raises(StoreFailed, match=r"x\.db: database is locked"):
        counters.claim([Claim("d", "a", 2)])
    assert 0.15 < time.monotonic() - began < 4
    assert counters.known(["d"])[0] == Counters(1, 0, "a"), "readers do not wait"
    other.execute("rollback")
    assert counters.claim([Claim("d", "a", 2)])[0].won
    other.close()
    counters.close()


def test_a_full_disk_keeps_nothing_of_the_batch_and_it_can_be_made_again(tmp_path):
    counters = SqliteCounters(tmp_path / "x.db", clock)
    counters.claim([Claim("d", "a", 1, wants_down=True)])
    batch = [Claim("d", "a", 2, wants_down=True, body="two"), *(Claim(f"{n:01000}", "a", 1) for n in range(200))]
    with counters._database.reading() as db:
        db.execute("pragma max_page_count=10")
    with pytest.raises(StoreFailed, match=r"x\.db: database or disk is full"):
        counters.claim(batch)
    assert (counters.known(["d"])[0], counters.unfinished("a")) == (Counters(1, 1, "a"), [])
    with counters._database.reading() as db:
        db.execute("pragma max_page_count=100000")
    assert counters.claim(batch)[0] == Claimed(True, "a", 2, 2, None)
    assert counters.unfinished("a") == [Unfinished(0, "d", 2, "two")]
    counters.close()


def test_an_error_inside_a_transaction_undoes_it(tmp_path):
    database = Database(tmp_path / "x.db", ["create table if not exists t (n integer)"])

    def write_and_fail() -> None:
        with database.writing() as db:
            db.execute("insert into t values (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    with database.writing() as db:
        assert db.execute("select count(*) from t").fetchone() == (0,)
    database.close()


def test_threads_may_share_one_object(tmp_path):
    counters = SqliteCounters(tmp_path / "x.db", clock)
    wins: Counter[int] = Counter()

    def race(name: str) -> None:
        for up in range(100):
            if counters.claim([Claim("d", name, up)])[0].won:
                wins[up] += 1
            assert counters.known(["d"])[0] is not None

    threads = [threading.Thread(target=race, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.close()
    assert set(wins.values()) == {1}
    assert wins[99] == 1
