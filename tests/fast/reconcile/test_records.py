"""`onefold records`: lines become records, and come out again."""

import json
from functools import partial

import pytest

from onefold.reconcile import id_of
from onefold.reconcile.records import open_records
from tests.lib.commands import here, process

COFFEE, TEA = b'{"at": 5, "what": "coffee"}', b'{"at": 6, "what": "tea"}'


@pytest.fixture
def onefold(tmp_path):
    return partial(here, cwd=tmp_path)


@pytest.fixture
def notes(tmp_path, onefold):
    """A store with two records."""
    (tmp_path / "a").write_bytes(COFFEE + b"\n" + TEA)
    (tmp_path / "empty").touch()
    assert onefold("records", "add", "s.db", "a", "--time", "at").returncode == 0
    return "s.db"


def test_lines_are_records_and_none_is_kept_twice(tmp_path, onefold):
    (tmp_path / "a").write_bytes(b"one\n\ntwo\r\none")
    (tmp_path / "b").write_bytes(b"two\r\nthree\n")
    done = onefold("records", "add", "s.db", "a", "b", "--json")
    assert done.returncode == 0
    assert done.stderr == "4 records stored, 2 known, 0 lines rejected; s.db holds 4 now\n"
    told = json.loads(done.stdout)
    assert (told["records"], told["tally"]["in"], told["tally"]["first"], told["rejected"]) == (4, 6, 4, [])
    records = open_records(str(tmp_path / "s.db"))
    bodies = [b"one", b"", b"two\r", b"three"]
    assert [found and found.body for found in records.read([id_of(0, body) for body in bodies])] == bodies
    records.close()
    assert "0 records stored, 6 known" in onefold("records", "add", "s.db", "a", "b").stderr


def test_lines_that_are_no_records_are_named_and_the_others_are_kept(tmp_path, onefold):
    lines = [
        COFFEE,
        b"noon \x1b[2J",
        b"[5]",
        b'{"what": 1}',
        b'{"at": "noon"}',
        b'{"at": true}',
        b'{"at": 18446744073709551615}',
        b"[" * 100_000,
        b"x" * 600_000,
        TEA,
    ]
    (tmp_path / "a").write_bytes(b"\n".join(lines))
    done = onefold("records", "add", "s.db", "a", "--time", "at", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert [(each["line"], each["reason"]) for each in told["rejected"]] == [
        (2, "no_json"), (3, "no_time"), (4, "no_time"), (5, "bad_time"), (6, "bad_time"), (7, "bad_time"),
        (8, "no_json"), (9, "too_long"),
    ]  # fmt: skip
    assert "a:2: not JSON: b'noon \\x1b[2J'\n" in done.stderr
    assert "a:5: at is 'noon', must be a whole number from 0 to 2^64 - 2\n" in done.stderr
    assert "a:9: more than 524,288 bytes\n" in done.stderr
    assert done.stderr.endswith("2 records stored, 0 known, 8 lines rejected; s.db holds 2 now\n")


def test_only_the_first_bad_lines_are_told_one_by_one(tmp_path, onefold):
    (tmp_path / "a").write_bytes(b"bad\n" * 25)
    done = onefold("records", "add", "s.db", "a", "--time", "at")
    assert done.stderr.count("not JSON") == 20
    assert "and 5 more lines that are not records\n" in done.stderr


def test_ids_can_be_kept_without_their_bytes(tmp_path, onefold):
    first, second = id_of(5, b"elsewhere").hex(), id_of(6, b"elsewhere").hex()
    lines = [f"5,{first}", f"6,{second}\r", f"5,{first}", f"7,{first}", "x,00", f"8,{first[:-2]}", "9,xy", "10"]
    (tmp_path / "a").write_text("\n".join(lines), newline="")
    done = onefold("records", "add", "s.db", "a", "--ids", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["records"], told["tally"]["repeat"]) == (1, 2, 1)
    reasons = [(each["line"], each["reason"]) for each in told["rejected"]]
    assert reasons == [(4, "other_time"), (5, "bad_time"), (6, "bad_id"), (7, "bad_id"), (8, "bad_time")]
    shown = onefold("records", "show", "s.db", first)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "has only a time, 5; its bytes are elsewhere" in shown.stderr


def test_a_store_is_summed_up_and_listed(onefold, notes):
    done = onefold("records", "ls", notes, "--limit", 5, "--json")
    told = json.loads(done.stdout)
    assert (told["records"], told["since"], told["until"], told["id_size"]) == (2, 5, 6, 32)
    ids = [id_of(5, COFFEE).hex(), id_of(6, TEA).hex()]
    assert told["listed"] == [
        {"timestamp": 5, "id": ids[0], "bytes": len(COFFEE)},
        {"timestamp": 6, "id": ids[1], "bytes": len(TEA)},
    ]
    assert f"2 records, times 5 to 6; the file has {told['bytes']:,} bytes\n" in done.stderr
    assert f"fingerprint {told['fingerprint']}\n" in done.stderr
    assert all(id in done.stderr for id in ids)


def test_an_empty_store_has_no_times(tmp_path, onefold):
    (tmp_path / "a").touch()
    onefold("records", "add", "s.db", "a", "--id-size", 16)
    told = json.loads(onefold("records", "ls", "s.db", "--json").stdout)
    assert (told["records"], told["since"], told["id_size"]) == (0, None, 16)


def test_the_bytes_of_a_record_come_out_as_they_went_in(tmp_path, notes):
    id = id_of(6, TEA).hex()
    shown = process("records", "show", notes, id, cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, TEA.decode(), "")
    told = json.loads(here("records", "show", notes, id, "--json", cwd=tmp_path).stdout)
    assert (told["timestamp"], told["text"]) == (6, TEA.decode())


def test_records_are_forgotten(onefold, notes):
    coffee, other = id_of(5, COFFEE).hex(), "00" * 32
    done = onefold("records", "rm", notes, coffee, other, coffee, "--json")
    assert (done.returncode, json.loads(done.stdout)["removed"]) == (1, 1)
    assert done.stderr == "1 record removed; 1 was not there; s.db holds 1 now\n"
    assert onefold("records", "show", notes, coffee).returncode == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ls", "typo.db"], "typo.db: there is no such store"),
        (["ls", "empty"], "empty: there are no records in this file"),
        (["add", "s.db", "nofile"], "nofile: is not there, must be a file"),
        (["add", "s.db", "."], ".: is a folder, must be a file"),
        (["add", "s.db", "a", "--ids", "--time", "at"], "--ids and --time"),
        (["add", "s.db", "a", "--id-size", "16"], "32"),
        (["add", "memory://", "a"], "name the file of a store"),
        (["ls", "redis://me:secret@db"], "redis://...: name the file of a store"),
        (["show", "s.db", "xy"], "'xy' is not an id: ids are in hex"),
        (["rm", "s.db", "00"], "'00' has 1 byte; the ids of this store have 32"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_one_line_and_exit_2(onefold, notes, words, text):
    done = onefold("records", *words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert text in done.stderr
    assert "secret" not in done.stderr
