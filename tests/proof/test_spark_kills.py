"""A driver that dies between the sink's commit and Spark's, or before both: every row once. The control has doubles."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from onefold.spark import judge_chains, judge_ids
from onefold.spark.lakes import open_snapshot
from onefold.testing.traffic import Traffic, make, write
from tests.lib import dying_driver
from tests.lib.examples import sample


@pytest.fixture
def start(tmp_path):
    """Start a driver that dies of its own hand in this batch of four, or never; its exit code."""
    write(make(Traffic(rows=2_000, chains=20)), tmp_path / "in", files=4)
    for i, file in enumerate(sorted((tmp_path / "in" / "messages").glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))

    def run(way, moment, at):
        words = [sys.executable, "-m", "tests.lib.dying_driver", str(tmp_path), way, moment, str(at)]
        return subprocess.run(words, capture_output=True, timeout=600).returncode

    return run


def counted(spark, *paths):
    rows: Counter[tuple[int, str]] = Counter()
    for path in paths:
        rows.update((row["offset"], row["verdict"]) for row in spark.read.parquet(path).collect())
    return rows


NUMBER = ["stream", "partition", "publisher", "chain", "timestamp", "sequence"]
JUDGES = {"careful": judge_chains(floor="open"), "ids": judge_ids(NUMBER, order="offset")}


@pytest.mark.parametrize(
    ("way", "deaths"),
    [
        sample("careful", [("after", 2)]),
        ("careful", [("after", 0), ("before", 2)]),
        ("ids", [("after", 0), ("before", 2)]),
    ],
)
def test_every_row_once_whenever_the_driver_dies(spark, tmp_path, start, way, deaths):
    assert [start(way, *death) for death in deaths] == [-signal.SIGKILL] * len(deaths)
    dying_driver.stream(spark, str(tmp_path), way)
    folders = [f"{tmp_path}/out/batches/*/{name}" for name in ("firsts", "repeats", "unsure", "rejects")]
    table = spark.read.parquet(f"{tmp_path}/in/messages").transform(JUDGES[way])
    expected = Counter((row["offset"], row["verdict"]) for row in table.collect())
    assert {verdict for _, verdict in expected} == {"FIRST", "REPEAT"}
    assert counted(spark, *folders) == expected


@pytest.mark.parametrize(
    ("format", "deaths"),
    [
        sample("delta", [("between", 1)]),
        sample("iceberg", [("after", 1)]),
        ("delta", [("after", 0), ("between", 2), ("before", 3)]),
        ("iceberg", [("between", 0), ("after", 2), ("before", 3)]),
    ],
)
def test_a_table_of_a_lake_has_every_row_once_whenever_the_driver_dies(spark, tmp_path, start, format, deaths):
    """As its own library reads it, and as ours does."""
    assert [start(format, *death) for death in deaths] == [-signal.SIGKILL] * len(deaths)
    dying_driver.stream(spark, str(tmp_path), format)
    path = f"{tmp_path}/{dying_driver.PLACES[format]}"
    if format == "delta":
        rows = DeltaTable(path).to_pyarrow_table()
    else:
        catalog = load_catalog("default", type="sql", uri=f"sqlite:///{path.partition('#')[0]}")
        rows = catalog.load_table("db.out").scan().to_arrow()
    table = spark.read.parquet(f"{tmp_path}/in/messages").transform(JUDGES["careful"])
    expected = Counter((row["offset"], row["verdict"]) for row in table.collect())
    assert sum(expected.values()) == 2_000
    assert Counter(zip(rows["offset"].to_pylist(), rows["verdict"].to_pylist(), strict=True)) == expected
    own = open_snapshot(path, format, {}).read(spark)
    assert Counter((row["offset"], row["verdict"]) for row in own.collect()) == expected


def test_chains_come_out_in_order_each_row_once_whenever_the_driver_dies(spark, tmp_path, start):
    """Batches 0 to 3 bring rows, the last one gives up what is missing: as if nobody had died."""

    def batches():
        rows: dict[tuple[str, str], list[list[Any]]] = {}
        for file in sorted((tmp_path / "out" / "batches").glob("*/*/*.parquet")):
            own = [tuple(row.values()) for row in pq.ParquetFile(file).read().to_pylist()]
            rows.setdefault((file.parts[-3], file.parts[-2]), []).append(own)
        return {place: sorted(filter(None, files)) for place, files in rows.items()}

    dying_driver.stream(spark, str(tmp_path), "ordered")
    expected = batches()
    assert sum(len(file) for place, files in expected.items() if place[1] != "gaps" for file in files) == 2_000
    for folder in ("out", "ordered.checkpoint"):
        shutil.rmtree(tmp_path / folder)
    for death in [("held", 0), ("before", 1), ("after", 2), ("held", 3), ("before", 4)]:
        assert start("ordered", *death) == -signal.SIGKILL
    dying_driver.stream(spark, str(tmp_path), "ordered")
    assert batches() == expected


def test_without_the_commit_protocol_the_same_death_makes_duplicates(spark, tmp_path, start):
    assert start("naive", "after", 1) == -signal.SIGKILL
    assert start("naive", "never", 0) == 0
    rows = counted(spark, f"{tmp_path}/naive")
    assert max(rows.values()) == 2
    assert sum(rows.values()) > 2_000
