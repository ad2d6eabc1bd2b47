"""A Spark table as a peer: the index, what a session makes of it, and the commands."""

import contextlib
import json
from hashlib import sha256
from types import SimpleNamespace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.errors import BadInput, Misuse, StaleWrite
from onefold.reconcile import Record, Session
from onefold.reconcile.exchange import Pipe
from onefold.reconcile.records import MemoryRecords
from onefold.spark.diff_files import DiffTable
from onefold.spark.peer import naming as peer_layout
from onefold.spark.peer.index import PARTS_MAX, Buckets, TableIndex, TableItems
from onefold.spark.peer.naming import Naming
from onefold.spark.peer.records import TableRecords
from tests.lib.commands import here as onefold
from tests.lib.reconciling import running
from tests.lib.table_listing import buckets_of, sealed


@pytest.fixture(autouse=True)
def few_quantiles(monkeypatch):
    """Tables of a thousand rows need no more, and many take Spark longer than the rows do."""
    monkeypatch.setattr(peer_layout, "QUANTILES", 256)


@pytest.fixture
def table(tmp_path):
    """A folder of parquet files: (key, time, text), written by name; the same time as a timestamp, if wanted."""
    (tmp_path / "t").mkdir()

    def write(name, keys, times=None, *, stamped=False):
        columns = {
            "k": pa.array(keys, pa.int64()),
            "at": pa.array([key * 10 for key in keys] if times is None else times, pa.int64()),
            "text": [f"row {key}" for key in keys],
        }
        if stamped:  # a part of a millisecond does not count
            columns["stamp"] = pa.array([key * 10_000 + 999 for key in keys], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table(columns), tmp_path / "t" / name)

    return SimpleNamespace(path=str(tmp_path / "t"), folder=tmp_path, write=write)


def key_id(key):
    return sha256(b"i%d;" % key).digest()


def same(found, layout, pairs):
    wanted = buckets_of(layout, pairs)
    return all((getattr(found, name) == getattr(wanted, name)).all() for name in Buckets.__dataclass_fields__)


@contextlib.contextmanager
def jobs(spark):
    """The Spark jobs that a block starts."""
    told: list[int] = []
    name = uuid4().hex
    spark.sparkContext.setJobGroup(name, name)
    yield told
    told += spark.sparkContext.statusTracker().getJobIdsForGroup(name)
    spark.sparkContext.setJobGroup("", "")


@pytest.mark.parametrize("time", [None, "at"], ids=["without a time", "by time"])
def test_an_index_follows_its_table(spark, table, time):
    """Made, kept, extended by new files alone, made again for files that changed, and always right."""

    def pairs(*keys):
        return [(at(key) if time else 0, key_id(key)) for keys in keys for key in keys]

    def at(key):
        return 5_000 if key % 3 == 0 and key < 1_000 else key * 10

    def write(name, keys):
        table.write(name, keys, [at(key) for key in keys])

    def index():
        return TableIndex(spark, DiffTable(table.path), Naming(columns=("k",), time=time), bucket_rows=20)

    write("a ü.parquet", range(1_000))
    one = index()
    first = one.refresh()
    assert same(first.buckets, first.layout, pairs(range(1_000)))
    assert 20 <= len(first.layout) <= 200
    assert first.buckets.counts.max() < 80
    with jobs(spark) as used:
        again = index().refresh()
    assert len(used) <= 2  # the files are listed, and Spark looks at a schema: no row is read
    assert same(again.buckets, first.layout, pairs(range(1_000)))

    write("b.parquet", range(1_000, 1_500))
    (place,) = (table.folder / ".t.onefold-index").iterdir()
    kept = {file.name for file in place.iterdir()}
    (place / "part-0.npz.new").touch()  # as if another process were writing it
    more = one.refresh()
    assert kept & {file.name for file in place.iterdir() if file.name.startswith("part")}
    assert (place / "part-0.npz.new").exists()
    assert same(more.buckets, more.layout, pairs(range(1_500)))
    assert more.buckets.counts.max() < 80

    write("a ü.parquet", range(0, 1_000, 2))
    with pytest.raises(StaleWrite, match="rows, the index has"):
        TableItems(more).rows(np.arange(1_500))
    (table.folder / "t" / "b.parquet").rename(table.folder / "t" / "c.parquet")
    for file in place.iterdir():
        file.write_bytes(b"{")
    last = index().refresh()
    assert same(last.buckets, last.layout, pairs(range(0, 1_000, 2), range(1_000, 1_500)))


def test_many_parts_are_folded_and_stay_right(spark, table):
    table.write("0.parquet", range(900))
    index = TableIndex(spark, DiffTable(table.path), Naming(columns=("k",)), bucket_rows=100)
    index.refresh()
    (place,) = (table.folder / ".t.onefold-index").iterdir()
    head = json.loads((place / "index.json").read_text())
    (part,) = head["parts"]
    none = place / "part-none.npz"
    none.write_bytes(Buckets.none(17).to_bytes())
    empty = [{"name": "part-none.npz", "rows": 0, "files": []} for _ in range(PARTS_MAX)]
    (place / "index.json").write_text(json.dumps({**head, "parts": [part, *empty]}))
    table.write("1.parquet", range(900, 950))
    found = TableIndex(spark, DiffTable(table.path), Naming(columns=("k",)), bucket_rows=100).refresh()
    assert same(found.buckets, found.layout, [(0, key_id(key)) for key in range(950)])
    parts = json.loads((place / "index.json").read_text())["parts"]
    assert len(parts) == 10
    assert sum(part["rows"] for part in parts) == 950
    assert not none.exists() or any(part["name"] == none.name for part in parts)


@pytest.mark.parametrize("time", [None, "stamp"], ids=["without a time", "by a timestamp"])
def test_a_message_costs_one_spark_job_at_most(spark, table, time):
    table.write("a.parquet", range(2_000), stamped=True)
    index = TableIndex(spark, DiffTable(table.path), Naming(columns=("k",), time=time), bucket_rows=16).refresh()
    gone, extra = {5, 1_700, 1_999}, {9_000}
    mine = [(key * 10 if time else 0, key_id(key)) for key in {*range(2_000), *extra} - gone]
    client, server = Session(sealed(mine)), Session(TableItems(index))
    have: set[bytes] = set()
    need: set[bytes] = set()
    message: bytes | None = client.initiate()
    while message is not None:
        with jobs(spark) as used:
            reply = server.reconcile(message).reply
        assert reply is not None
        assert len(used) <= 1
        message, surplus, missing = client.reconcile(reply)
        have, need = have | set(surplus), need | set(missing)
    assert have == {key_id(key) for key in extra}
    assert need == {key_id(key) for key in gone}


def test_rows_without_a_time_are_counted_and_refused(spark, table):
    table.write("a.parquet", [1, 2, 3, 4], [1, None, -1, -2])
    with pytest.raises(BadInput, match="3 rows have no time in 'at'"):
        TableIndex(spark, DiffTable(table.path), Naming(time="at")).refresh()


def test_a_new_file_that_brings_a_column_changes_the_ids_of_all_rows(spark, tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    index = TableIndex(spark, DiffTable(str(folder), options={"mergeSchema": "true"}), Naming())
    pq.write_table(pa.table({"k": [1]}), folder / "a.parquet")
    index.refresh()
    pq.write_table(pa.table({"k": [2], "z": [3]}), folder / "b.parquet")
    found = index.refresh()
    assert same(found.buckets, found.layout, [(0, sha256(form).digest()) for form in (b"i1;in;", b"i2;i3;")])
    assert [place.name for place in tmp_path.iterdir() if place != folder] == [".t.onefold-index"]


def test_columns_that_cannot_be_are_refused_by_name(spark, table):
    table.write("a.parquet", [1])
    for naming, why in (
        (Naming(columns=("K",)), "no column 'K'"),
        (Naming(time="text"), "column 'text' is string, must be whole numbers or a timestamp"),
    ):
        with pytest.raises(Misuse, match=why):
            TableIndex(spark, DiffTable(table.path), naming).refresh()
    with pytest.raises(Misuse, match="columns is empty"):
        Naming(columns=())
    (table.folder / "t" / "b.parquet").write_text("none")
    with pytest.raises(OSError, match=r"cannot read .*/t/b.parquet: Parquet file size is 4 bytes[^;]*$"):
        TableIndex(spark, DiffTable(table.path), Naming(columns=("k",))).refresh()


def test_a_table_is_a_store_that_is_only_read_and_seen_anew_after_a_while(spark, table):
    table.write("a.parquet", range(40))
    now = [0.0]
    index = TableIndex(spark, DiffTable(table.path), Naming(columns=("k",), time="at"))
    records = TableRecords(index, refresh_s=10, clock=lambda: now[0])
    assert len(records) == 40
    assert records.read([key_id(3), key_id(99)]) == [Record(30, key_id(3)), None]
    table.write("b.parquet", range(40, 45))
    snapshot = records.snapshot()
    assert len(snapshot) == 40
    now[0] = 10
    assert (len(records.snapshot()), len(snapshot)) == (45, 40)
    for verb in (records.add, records.remove):
        with pytest.raises(Misuse, match="read-only here"):
            verb([])
    records.close()
    with pytest.raises(Misuse, match="closed"):
        records.snapshot()


def test_two_tables_meet_over_a_websocket(spark, table):
    """One is served, the other is compared with it: other files, another order of columns and wider numbers."""
    table.write("a.parquet", range(1_200))
    other = table.folder / "other.json"
    rows = [{"text": f"row {key}", "k": key, "at": key * 10} for key in range(5, 1_203)]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    served = TableRecords(TableIndex(spark, DiffTable(str(other), "json"), Naming(time="at"), bucket_rows=30))
    with running(served, writable=False, bodies=False) as server:
        url = server.server.url
        done = onefold(
            "diff", table.path, url, "--time", "at", "--out", table.folder / "out", "--json", cwd=table.folder
        )
        assert done.returncode == 1, done.stderr
        told = json.loads(done.stdout)
        assert (told["only_here"], told["only_there"], told["rows"], told["rows_peer"]) == (5, 3, 1_200, 1_198)
        assert "they differ: 5 only here, 3 only there; 1,200 and 1,198 rows" in done.stderr
        have = spark.read.parquet(f"{table.folder}/out/have").collect()
        assert sorted((row.k, row.at, row.text) for row in have) == [(k, k * 10, f"row {k}") for k in range(5)]
        need = spark.read.parquet(f"{table.folder}/out/need").collect()
        assert sorted(row.id for row in need) == sorted(row["id"] for row in told["shown"]["only_there"])
        assert json.loads((table.folder / "out" / "diff.json").read_text()) == told


def test_a_table_is_compared_with_a_store_by_its_key(spark, table):
    table.write("a.parquet", range(100))
    store = MemoryRecords()
    store.add([Record(0, key_id(key)) for key in range(100)])
    with running(store) as server:
        done = onefold("diff", table.path, server.server.url, "--key", "k", cwd=table.folder)
        assert done.returncode == 0, done.stderr
        assert "equal: 100 rows; " in done.stderr
        store.remove([key_id(3)])
        done = onefold("diff", table.path, server.server.url, "--key", "k", "--samples", 1, cwd=table.folder)
        assert done.returncode == 1
        assert "only here: k 3" in done.stderr


def test_a_peer_that_breaks_the_protocol_is_exit_3(spark, table, monkeypatch):
    table.write("a.parquet", range(10))
    monkeypatch.setattr("onefold.reconcile.client.dial", lambda *words: lambda: Pipe(lambda frame: b"?"))
    done = onefold("diff", table.path, "ws://127.0.0.1:1", "--key", "k", cwd=table.folder)
    assert done.returncode == 3
    assert "the comparison with the peer failed: the peer answers with a frame of kind b'?'" in done.stderr


def test_options_without_an_effect_are_refused(tmp_path):
    peer = "ws://127.0.0.1:1"
    for words, why in (
        (("diff", "a", peer, "--repair"), "--repair is for two tables, and B is a peer"),
        (("diff", "a", peer, "--hash", "sha256"), "--hash is for two tables"),
        (("diff", "a", "b", "--time", "at"), "--time is for a peer, and B is none"),
        (("diff", "a", "ws://me:secret@h"), "a server is given a token"),
        (("serve", "reconcile", "notes.db", "--key", "k"), "--key is for tables: it needs --spark"),
        (("serve", "reconcile", "t", "--spark", "--read-only"), "--read-only is not for --spark"),
    ):
        done = onefold(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert why in done.stderr
        assert "secret" not in done.stderr
    assert not list(tmp_path.iterdir())
