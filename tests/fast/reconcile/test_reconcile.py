"""`onefold reconcile` and `onefold serve reconcile`, as a user runs them."""

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from functools import partial

import pytest

from onefold.reconcile import Record, id_of, record
from onefold.reconcile.records import open_records
from onefold.reconcile.server import ReconcileServer
from tests.lib.commands import here
from tests.lib.local_server import free_port


def fill(path, numbers, id_size=None):
    records = open_records(str(path), id_size)
    size = records.id_size
    records.add([record(number, b"note %d" % number, size) for number in numbers])
    records.close()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A folder with two stores, to be looked at only."""
    folder = tmp_path_factory.mktemp("stores")
    fill(folder / "a.db", range(1_000))
    fill(folder / "b.db", range(7, 1_005))
    return folder


@pytest.fixture
def onefold(stores, tmp_path):
    for name in ("a.db", "b.db"):
        shutil.copy(stores / name, tmp_path)
    return partial(here, cwd=tmp_path)


@contextlib.contextmanager
def serving(folder, *words, stop=signal.SIGTERM):
    command = [sys.executable, "-m", "onefold.cli.main", "serve", "reconcile", *words, "--json", "--port"]
    process = subprocess.Popen(
        [*command, "0"] if "--port" not in words else command[:-1], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield json.loads(line)
    finally:
        process.send_signal(stop)
        _, said = process.communicate(timeout=60)
    assert process.returncode == (0 if stop == signal.SIGTERM else -stop), said


def test_two_stores_are_brought_to_agreement(onefold):
    looked = onefold("reconcile", "a.db", "b.db", "--dry-run", "--json")
    told = json.loads(looked.stdout)
    assert looked.returncode == 1
    assert (told["have"], told["need"], told["agrees"], told["settled"]) == (7, 5, False, False)
    assert set(told["have_ids"]) == {id_of(number, b"note %d" % number).hex() for number in range(7)}
    assert looked.stderr.endswith("; 7 only here, 5 only there; nothing was moved\n")
    assert looked.stderr.count("only there  ") == 5

    done = onefold("reconcile", "a.db", "b.db", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert (told["pulled"]["first"], told["pushed"]["first"], told["here"], told["there"]) == (5, 7, 1_005, 1_005)
    trips = f"{told['rounds']} round trips, {told['bytes_up']:,} bytes up, {told['bytes_down']:,} down"
    assert done.stderr == f"{trips}; 5 records pulled, 7 pushed; both hold 1,005 now\n"

    again = onefold("reconcile", "b.db", "a.db")
    assert again.returncode == 0
    assert again.stderr.endswith("nothing differs: both hold 1,005\n")


def test_records_can_go_one_way_and_what_still_differs_is_exit_1(onefold):
    pulled = onefold("reconcile", "a.db", "b.db", "--no-push")
    assert pulled.returncode == 1
    assert pulled.stderr.endswith("; 5 records pulled, 0 pushed; still 7 only here, 0 only there\n")
    pushed = onefold("reconcile", "a.db", "b.db", "--no-pull")
    assert pushed.returncode == 0
    assert pushed.stderr.endswith("; 0 records pulled, 7 pushed; both hold 1,005 now\n")


def test_it_can_be_narrowed_down_to_a_time(onefold):
    done = onefold("reconcile", "a.db", "b.db", "--since", 5, "--until", 20)
    assert done.returncode == 0
    assert done.stderr.endswith("; 0 records pulled, 2 pushed; both hold 16 of that time now\n")


def test_a_new_store_gets_all_that_the_peer_has(onefold, tmp_path):
    fill(tmp_path / "short.db", range(3), 16)
    assert onefold("reconcile", "new.db", "short.db", "--wire", "xor").returncode == 0
    records = open_records(str(tmp_path / "new.db"))
    assert (len(records), records.id_size) == (3, 16)
    records.close()


def test_a_record_that_is_not_what_its_id_says_is_told_and_exit_1(onefold, tmp_path):
    records = open_records(str(tmp_path / "b.db"))
    records.add([Record(2_000, id_of(2_000, b"true"), b"false")])
    records.close()
    done = onefold("reconcile", "a.db", "b.db")
    assert done.returncode == 1
    assert "pulled  REJECT   wrong_id        1  Its time and bytes do not hash" in done.stderr
    assert done.stderr.endswith("still 0 only here, 1 only there\n")


def test_a_server_gives_and_takes_with_a_token_and_goes_on_after_a_kill(onefold, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    port = str(free_port())
    served = ["b.db", "--token-file", "token", "--port", port]
    with serving(tmp_path, *served, stop=signal.SIGKILL) as told:
        assert (told["records"], told["writable"], told["token"]) == (998, True, True)
        assert told["url"].startswith("ws://")
        without = onefold("reconcile", "a.db", told["url"])
        assert (without.returncode, len(without.stderr.splitlines())) == (2, 1)
        assert "401" in without.stderr
        pulled = onefold("reconcile", "a.db", told["url"], "--token-file", "token", "--no-push")
        assert "5 records pulled" in pulled.stderr, pulled.stderr
    with serving(tmp_path, *served) as told:
        done = onefold("reconcile", "a.db", told["url"].replace("ws", "http"), ONEFOLD_TOKEN="s3cret")  # noqa: S106
        assert done.returncode == 0, done.stderr
        assert done.stderr.endswith("; 0 records pulled, 7 pushed; both hold 1,005 now\n")


def test_a_read_only_server_takes_nothing(onefold, tmp_path):
    with serving(tmp_path, "b.db", "--read-only") as told:
        done = onefold("reconcile", "a.db", told["url"])
    assert done.returncode == 1
    assert done.stderr.endswith(
        "5 records pulled, 0 pushed; still 7 only here, 0 only there; the peer takes no records\n"
    )


def test_damage_of_the_other_store_is_one_line_and_exit_3(onefold, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as db:
        db.execute("update record_blocks set block = zeroblob(length(block))")
        db.commit()
    done = onefold("reconcile", "a.db", "b.db", "--tries", 1)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "is not as it was written" in done.stderr


def test_a_server_that_is_not_there_is_exit_3(onefold):
    done = onefold("reconcile", "a.db", f"ws://127.0.0.1:{free_port()}", "--tries", 1)
    assert done.returncode == 3
    assert "gave up after one try: ws://127.0.0.1:" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["reconcile", "a.db", "a.db"], "a.db and a.db are the same store"),
        (["reconcile", "a.db", "typo.db"], "typo.db: there is no such store"),
        (["reconcile", "typo.db", "a.db", "--dry-run"], "typo.db: there is no such store"),
        (["reconcile", "a.db", "b.db", "--dry-run", "--no-pull"], "--dry-run moves nothing"),
        (["reconcile", "a.db", "ws://me:secret@127.0.0.1"], "a user or a password"),
        (["reconcile", "a.db", "redis://me:secret@db"], "redis://...: name the file of a store"),
        (["reconcile", "a.db", "b.db", "--since", "9", "--until", "8"], "--since is 9 and --until 8"),
        (["reconcile", "a.db", "b.db", "--token-file", "a.db"], "needs no token"),
        (["serve", "reconcile", "typo.db", "--read-only"], "typo.db: there is no such store"),
        (["serve", "reconcile", "a.db", "--host", "0.0.0.0"], "token"),  # noqa: S104
        (["serve", "reconcile", "memory://"], "name the file of a store"),
        (["serve", "reconcile", "a.db", "--record-bytes-max", "9000000"], "record_bytes_max is 9000000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_one_line_and_exit_2(stores, words, text):
    done = here(*words, cwd=stores)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert text in done.stderr
    assert "secret" not in done.stderr


def test_an_id_that_both_have_at_two_times_is_left_out_of_xor_and_told(onefold, tmp_path):
    for name, time in (("c.db", 0), ("d.db", 500)):
        records = open_records(str(tmp_path / name))
        records.add([Record(number or time, id_of(number, b"elsewhere")) for number in range(100)])
        records.close()
    done = onefold("reconcile", "c.db", "d.db", "--wire", "xor", "--dry-run", "--json")
    assert (done.returncode, json.loads(done.stdout)["both_ways"]) == (0, 1)
    assert done.stderr.endswith("; 1 id known to both at two times, and left out; nothing differs: both hold 100\n")
    named = onefold("reconcile", "c.db", "d.db", "--dry-run")
    assert named.stderr.endswith("; 1 only here, 1 only there; nothing was moved\n")


@pytest.mark.parametrize(("session_s", "idle_s", "transfer_s"), [(60, 60, 3_600), (1_800, 1_800, 3_600), (7_200,) * 3])
def test_a_longer_silence_is_allowed_at_once_and_in_the_transfer_too(
    monkeypatch, onefold, session_s, idle_s, transfer_s
):
    servers: list[ReconcileServer] = []
    monkeypatch.setattr(ReconcileServer, "run", lambda server, say: servers.append(server))
    assert onefold("serve", "reconcile", "a.db", "--port", 0, "--session-s", session_s).returncode == 0
    limits = servers[0].settings.limits
    assert (limits.look_silence_s_max, limits.idle_s, limits.transfer_silence_s_max) == (session_s, idle_s, transfer_s)
