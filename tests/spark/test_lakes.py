"""Tables of a lake as sources: checked, run, audited, explained and compared like files, by one snapshot."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from tests.lib.commands import here

SCHEMA = pa.schema({
    "event_id": pa.string(), "n": pa.int64(), "at": pa.timestamp("us", "UTC"), "day": pa.string(),
    "tags": pa.list_(pa.string()),  # of structs pyiceberg writes null lists as empty ones
})  # fmt: skip


def events(first, last, *copies):
    """Events with these numbers, and copies of some; every third has no tags."""
    rows = [
        {"event_id": f"e{n}", "n": n, "at": n * 1_000_000, "day": f"d {n % 3}", "tags": None if n % 3 else ["x"]}
        for n in (*range(first, last), *copies)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class Lake:
    """The same rows as a Delta table and as an Iceberg table, both by day."""

    def __init__(self, folder):
        self.delta, self.iceberg = str(folder / "delta"), f"{folder}/lake/catalog.db#db.events"
        (folder / "lake").mkdir()
        uri, warehouse = f"sqlite:///{folder}/lake/catalog.db", (folder / "lake").as_uri()
        self.catalog = load_catalog("default", type="sql", uri=uri, warehouse=warehouse)
        self.catalog.create_namespace("db")
        with (table := self.catalog.create_table("db.events", schema=SCHEMA)).update_spec() as spec:
            spec.add_identity("day")
        self.table = table

    def append(self, rows):
        write_deltalake(self.delta, rows, mode="append", partition_by=["day"])
        self.table.append(rows)


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(tmp_path)


def told(*words, cwd, code=0):
    done = here(*words, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_snapshot_is_checked_and_compared_and_its_own_metadata_counts_the_rows(lake, tmp_path):
    lake.append(events(0, 50, 3, 4))
    lake.append(events(50, 60))
    for path, format, version in [
        (lake.delta, "delta", 1), (lake.iceberg, "iceberg", lake.table.current_snapshot().snapshot_id)
    ]:  # fmt: skip
        found = told("check", path, "--id", "event_id", cwd=tmp_path, code=1)
        assert found["tally"]["in"] == 62
        assert found["tally"]["repeat"] == 2
        assert found["manifest"]["rows"] == 62
        assert found["manifest"]["snapshot"] == {"format": format, "table": path, "version": version}
    assert told("diff", lake.delta, lake.iceberg, cwd=tmp_path)["rows_a"] == 62
    DeltaTable(lake.delta).delete("n = 7")
    drift = told("diff", lake.delta, lake.iceberg, "--key", "event_id,n", cwd=tmp_path, code=1)
    assert [row["event_id"] for row in drift["shown"]["only_b"]] == ["e7"]
    before = told("diff", lake.delta, lake.iceberg, "--option-a", "versionAsOf=1", cwd=tmp_path)
    assert before["equal"]
    for path, option in ((lake.delta, "timestampAsOf=2020-01-01"), (lake.iceberg, "branch=other")):
        done = here("diff", path, path, "--option-a", option, cwd=tmp_path)
        assert (done.returncode, "needs Spark's own" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_is_run_audited_and_explained_and_a_run_that_goes_on_reads_what_came_since(lake, tmp_path, format):
    path = getattr(lake, format)
    judge = '[judge]\nengine = "ids"\nid = ["event_id"]\n'
    source = f'[source]\npath = "{path}"\nformat = "{format}"\n'
    lake.append(events(0, 30, 3))
    (tmp_path / "once.toml").write_text(f'{source}{judge}[publish]\npath = "once"\n')
    done = told("run", "once.toml", cwd=tmp_path)
    assert (done["tally"]["in"], done["manifest"]["rows"], done["audit"]["agrees"]) == (31, 31, True)
    assert told("audit", tmp_path / "once", cwd=tmp_path)["agrees"]
    assert told("explain", tmp_path / "once", "e3", cwd=tmp_path)["rows"] == 2

    to = f'format = "{format}"\npath = "{tmp_path}/{"out" if format == "delta" else "lake/catalog.db#db.out"}"\n'
    (tmp_path / "on.toml").write_text(f'{source}{judge}[memory]\npath = "memory"\n[publish]\n{to}')
    assert told("run", "on.toml", cwd=tmp_path)["tally"]["in"] == 31
    lake.append(events(30, 40, 5))
    second = told("run", "on.toml", cwd=tmp_path)
    assert (second["version"], second["tally"]["in"], second["manifest"]["rows"]) == (1, 11, 11)
    assert not (tmp_path / "out" / "progress.json").exists()  # a table holds no files of ours
    assert "nothing_new" in told("run", "on.toml", cwd=tmp_path)
    table = lake.catalog.load_table("db.out") if format == "iceberg" else None
    rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table() if table is None else table.scan().to_arrow()
    firsts = [row["n"] for row in rows.to_pylist() if row["verdict"] == "FIRST"]
    assert (len(rows), sorted(firsts)) == (42, list(range(40)))
    audited = told("audit", "on.toml", cwd=tmp_path)
    assert (audited["source"], audited["published"], audited["agrees"], audited["books"]) == (42, 42, True, [])
    if format == "delta":
        DeltaTable(str(tmp_path / "out")).delete("n = 7")
        audited = told("audit", "on.toml", cwd=tmp_path, code=1)
        assert (audited["missing"], len(audited["books"])) == (1, 1)


def test_a_stream_of_a_table_needs_a_connector_and_says_so(lake, tmp_path):
    lake.append(events(0, 3))
    text = f'[source]\npath = "{lake.delta}"\nformat = "delta"\nmode = "stream"\n'
    (tmp_path / "s.toml").write_text(f'{text}[judge]\nengine = "ids"\nid = ["event_id"]\n[publish]\npath = "s"\n')
    done = here("run", "s.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "a stream reads a delta table through Spark's own connector, which is not here" in done.stderr
    assert not (tmp_path / "s").exists()
