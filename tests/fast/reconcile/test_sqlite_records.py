"""What is SQLite's own of the records: leaves, memory, processes that share a file, crashes and damage."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from onefold.errors import BadInput, Damaged, Misuse, StoreFailed
from onefold.reconcile import ItemSet, Record, Session, record
from onefold.reconcile.sqlite import SqliteRecords, SqliteSnapshot
from tests.lib.examples import examples


def columns(count: int, id_size: int = 32, seed: int = 1):
    rng = np.random.default_rng(seed)
    ids = np.frombuffer(rng.bytes(count * id_size), dtype=np.uint8).reshape(count, id_size)
    return (1_700_000_000 + rng.integers(0, 10**7, count)).astype(np.uint64), ids


@contextmanager
def seen(records: SqliteRecords) -> Iterator[SqliteSnapshot]:
    with closing(records.snapshot()) as snapshot:
        yield snapshot


def listed(records: SqliteRecords) -> list[tuple[int, bytes]]:
    with seen(records) as snapshot:
        stamps, ids = snapshot.rows(np.arange(len(snapshot)))
    return [(stamp, row[: records.id_size].tobytes()) for stamp, row in zip(stamps.tolist(), ids, strict=True)]


def sizes(path) -> list[int]:
    """How many records each leaf holds, in order."""
    with closing(SqliteRecords(path)) as records, seen(records) as snapshot:
        return [int(count) for count in snapshot._directory.counts]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.db"


def test_many_ids_come_as_columns(path):
    stamps, ids = columns(3_000)
    with closing(SqliteRecords(path, leaf_items=50)) as records:
        assert records.add_items(stamps[:2_000], ids[:2_000]) == 2_000
        assert records.add_items(stamps[1_000:], ids[1_000:]) == 1_000
        assert len(records) == 3_000
        assert records.read([ids[7].tobytes()]) == [Record(int(stamps[7]), ids[7].tobytes())]
        pairs = zip(stamps.tolist(), (row.tobytes() for row in ids), strict=True)
        assert listed(records) == sorted(pairs)
    assert max(sizes(path)) <= 100


def test_columns_with_an_id_twice_are_taken_once_or_refused(path):
    stamps, ids = columns(4)
    again = np.concatenate((ids, ids[:2]))
    with closing(SqliteRecords(path)) as records:
        with pytest.raises(BadInput, match=f"id {ids[0].tobytes().hex()} comes with two timestamps"):
            records.add_items(np.concatenate((stamps, stamps[:2] + np.array([1, 0], dtype=np.uint64))), again)
        with pytest.raises(BadInput, match=f"timestamp 2.64 - 1 of id {ids[3].tobytes().hex()} is reserved"):
            records.add_items(np.array([1, 2, 3, 2**64 - 1], dtype=np.uint64), ids)
        with pytest.raises(Misuse, match=r"ids uint8 of shape \(4, 32\): must be uint64 of shape \(n,\), and uint8 of"):
            records.add_items(stamps.astype(np.int64), ids)
        assert len(records) == 0
        assert records.add_items(np.concatenate((stamps, stamps[:2])), again) == 4


def test_leaves_grow_split_join_and_vanish(path):
    many = [record(n, b"%d" % n) for n in range(200)]
    with closing(SqliteRecords(path, leaf_items=10)) as records:
        for one in many[:21]:
            records.add([one])
        assert sizes(path) == [11, 10]
        records.add(many[21:])
        assert sizes(path) == [11] + [11] * 9 + [10] * 9
        records.remove([one.id for one in many[50:180]])
        assert len(sizes(path)) <= 8
        assert listed(records) == [(one.timestamp, one.id) for one in many[:50] + many[180:]]
        records.remove([one.id for one in many])
        assert sizes(path) == []
        assert records.add(many[:1]) == [True]


def test_a_session_reads_few_leaves_and_a_second_one_no_directory(path):
    stamps, ids = columns(60_000)
    plain = ItemSet.from_arrays(stamps[1:], ids[1:])
    plain.seal()
    with closing(SqliteRecords(path, leaf_items=100)) as records:
        records.add_items(stamps, ids)
        for as_client in (False, True):
            said: list[str] = []
            with seen(records) as snapshot:
                assert snapshot._file is not None
                snapshot._file._connection.set_trace_callback(said.append)
                client, server = (snapshot, plain) if as_client else (plain, snapshot)
                found = list(play(Session(client), Session(server)))
            assert found == [ids[0].tobytes()]
            assert len(said) <= 4  # one question per message, at most
            assert all("record_blocks" in each for each in said)
            assert sum(each.count(",") + 1 for each in said) < 80  # of 600 leaves


def play(client: Session, server: Session) -> Iterator[bytes]:
    message: bytes | None = client.initiate()
    while message is not None:
        reply = server.reconcile(message).reply
        assert reply is not None
        message, have, need = client.reconcile(reply)
        yield from have + need


def test_memory_is_bounded_whatever_the_size_of_the_set(path):
    count, gone = 150_000, slice(None, None, 300)
    stamps, ids = columns(count)
    plain = ItemSet.from_arrays(np.delete(stamps, np.s_[gone]), np.delete(ids, np.s_[gone], axis=0))
    plain.seal()
    plain.sums(np.zeros(1, np.int64), np.zeros(1, np.int64))  # totals are made when first asked for
    with closing(SqliteRecords(path, items_max=8_192)) as records:
        records.add_items(stamps, ids)
        with seen(records) as snapshot:
            sessions = Session(plain, frame_size_max=20_000), Session(snapshot, frame_size_max=20_000)
            tracemalloc.start()
            try:
                found = set(play(*sessions))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    assert found == {row.tobytes() for row in ids[gone]}
    assert peak < 4e6 < count * 72 / 2  # an ItemSet has 72 bytes per record


def test_the_size_of_ids_is_kept_in_the_file(path):
    SqliteRecords(path, 16).close()
    with closing(SqliteRecords(path)) as records:
        assert records.id_size == 16
    with pytest.raises(Misuse, match="id_size is 20, but the ids in this file have 16 bytes"):
        SqliteRecords(path, 20)


def test_a_file_of_another_form_is_not_touched(path):
    SqliteRecords(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("update record_set set form = 2")
        db.commit()
    with pytest.raises(Misuse, match="the records have form 2, this onefold knows form 1"):
        SqliteRecords(path)


def test_a_database_of_something_else_is_not_touched_unless_a_store_is_to_be_made(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table orders (number)")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(Misuse, match=r"r\.db: there are no records in this file"):
        SqliteRecords(path, make=False)
    assert path.read_bytes() == before
    SqliteRecords(path).close()
    SqliteRecords(path, make=False).close()


def test_a_rotten_leaf_is_damage_and_not_a_difference(path):
    with closing(SqliteRecords(path, leaf_items=10)) as records:
        records.add_items(*columns(100))
    with closing(sqlite3.connect(path)) as db:
        db.execute("update record_blocks set block = zeroblob(length(block)) where number = 3")
        db.commit()
    with (
        closing(SqliteRecords(path)) as records,
        seen(records) as snapshot,
        pytest.raises(Damaged, match=r"r\.db: leaf 3 is not as"),
    ):
        snapshot.rows(np.arange(100))


def test_a_leaf_that_is_lost_is_damage(path):
    with closing(SqliteRecords(path, leaf_items=10)) as records:
        records.add_items(*columns(100))
    with closing(sqlite3.connect(path)) as db:
        db.execute("delete from record_leaves where number = 3")
        db.commit()
    with closing(SqliteRecords(path)) as records:
        with pytest.raises(Damaged, match=r"r\.db: the directory does not match the 100 records"):
            records.snapshot()
        with pytest.raises(Damaged, match="the directory does not match"):
            records.add([record(1, b"x")])
        assert len(records) == 100


def test_a_file_that_is_no_database_is_damage(path):
    path.write_bytes(b"\x01" * 4_096)
    with pytest.raises(Damaged, match=r"r\.db: file is not a database"):
        SqliteRecords(path)


def test_a_snapshot_of_a_file_that_is_gone_makes_no_new_one(path):
    with closing(SqliteRecords(path)) as records:
        for left in path.parent.iterdir():
            left.unlink()
        with pytest.raises(StoreFailed, match="unable to open"):
            records.snapshot()
    assert not path.exists()


def test_a_snapshot_that_was_closed_says_so(path):
    with closing(SqliteRecords(path)) as records:
        records.add_items(*columns(10))
        with seen(records) as snapshot:
            assert len(snapshot.rows(np.arange(10))[0]) == 10
    with pytest.raises(Misuse, match="this snapshot was closed"):
        snapshot.rows(np.arange(10))


WRITER = """
import sys
from onefold.reconcile import record
from onefold.reconcile.sqlite import SqliteRecords

records = SqliteRecords(sys.argv[1], leaf_items=8)
for start in range(0, 100_000, 7):
    records.add([record(n * 37 % 1_000, b"%d" % n) for n in range(start, start + 7)])
    print(start + 7, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_was_said_to_be_kept(path):
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        with closing(SqliteRecords(path, leaf_items=8)) as records:
            told = [int(line) for line, _ in zip(writer.stdout, range(30), strict=False)][-1]
            writer.kill()
            told = max([told, *(int(line) for line in writer.stdout if line.endswith("\n"))])
            writer.wait()
            kept = listed(records)
            assert len(kept) == len(records) >= told
            first = [record(n * 37 % 1_000, b"%d" % n) for n in range(len(kept))]
            assert kept == sorted((one.timestamp, one.id) for one in first)
            assert records.read([one.id for one in first]) == first


# Few ids and times, so that they meet; several leaves all the same.
IDS = [bytes([n]) * 8 for n in range(40)]
some_ids = st.lists(st.sampled_from(IDS), max_size=12, unique=True)


class RecordsMachine(RuleBasedStateMachine):
    """Two connections to one file against a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="onefold-records-")
        self.stores = [self.opened(), self.opened()]
        self.kept: dict[bytes, Record] = {}
        self.old: tuple[SqliteSnapshot, list[tuple[int, bytes]]] | None = None

    def opened(self) -> SqliteRecords:
        return SqliteRecords(os.path.join(self.folder, "r.db"), 8, leaf_items=2, items_max=6)

    def teardown(self) -> None:
        if self.old is not None:
            self.old[0].close()
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)

    @property
    def pairs(self) -> list[tuple[int, bytes]]:
        return sorted((one.timestamp, one.id) for one in self.kept.values())

    @rule(
        who=st.integers(0, 1), ids=some_ids, stamp=st.sampled_from([0, 3, 2**64 - 9]), body=st.sampled_from([b"", None])
    )
    def add(self, who, ids, stamp, body):
        told = [Record(stamp + id[0] % 5, id, body) for id in ids]
        assert self.stores[who].add(told) == [id not in self.kept for id in ids]
        for one in told:
            self.kept.setdefault(one.id, one)

    @rule(who=st.integers(0, 1), ids=some_ids)
    def remove(self, who, ids):
        assert self.stores[who].remove(ids) == sum(id in self.kept for id in ids)
        for id in ids:
            self.kept.pop(id, None)

    @rule(who=st.integers(0, 1))
    def open_again(self, who):
        self.stores[who].close()
        self.stores[who] = self.opened()

    @rule(who=st.integers(0, 1))
    def stand_still(self, who):
        if self.old is not None:
            snapshot, pairs = self.old
            assert as_pairs(snapshot) == pairs
            snapshot.close()
        self.old = self.stores[who].snapshot(), self.pairs

    @invariant()
    def same(self):
        for store in self.stores:
            assert len(store) == len(self.kept)
            with seen(store) as snapshot:
                assert as_pairs(snapshot) == self.pairs
                cut = np.arange(len(self.kept) + 1)
                total = [sum(int.from_bytes(id, "little") for _, id in self.pairs[n:]) % 2**64 for n in cut]
                assert snapshot.sums(cut, np.full_like(cut, len(self.kept)))[:, 0].tolist() == total
        assert self.stores[0].read(IDS) == [self.kept.get(id) for id in IDS]


def as_pairs(snapshot: SqliteSnapshot) -> list[tuple[int, bytes]]:
    stamps, ids = snapshot.rows(np.arange(len(snapshot)))
    return [(stamp, row.tobytes()) for stamp, row in zip(stamps.tolist(), ids, strict=True)]


def test_whatever_is_done_in_whatever_order_a_file_holds_what_a_dict_holds():
    run_state_machine_as_test(
        RecordsMachine, settings=settings(max_examples=examples(20), stateful_step_count=12, deadline=None)
    )
