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

from onefold.spark import judge_chains, judge_ids
from onefold.testing.traffic import Traffic, make, write
from tests.lib.examples import sample

DRIVER = """
import os, signal, sys
from onefold.spark import in_order
from onefold.spark import stream as streams
from onefold.spark.chains import ChainsEngine
from onefold.spark.ids import IdColumns, IdsEngine
from onefold.spark.ingest import SourceSpec
from onefold.spark.session import session

folder, way, moment, at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
careful, complete = streams.publish, in_order.Place.write_json

def naive(sink, stream, batch, rows, gaps):
    rows.write.mode("append").parquet(f"{folder}/naive")

def deadly(sink, stream, batch, rows, gaps):
    if moment == "before" and batch == at:
        os.kill(os.getpid(), signal.SIGKILL)
    tally = (naive if way == "naive" else careful)(sink, stream, batch, rows, gaps)
    if moment == "after" and batch == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return tally

def unfinished(place, document):
    if moment == "held" and str(place).endswith(f"_held/{at:012}.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    complete(place, document)

streams.publish, in_order.Place.write_json = deadly, unfinished
ordered = way == "ordered"
chains = ChainsEngine(partitions=2, floor="first" if ordered else "open")
columns = IdColumns(id=("stream", "partition", "publisher", "chain", "timestamp", "sequence"), time="timestamp",
                    order="offset")
ids = IdsEngine(partitions=2, columns=columns, window_ms=86_400_000)
streams.run_stream(
    session("local[2]", memory="1g", config={"spark.sql.shuffle.partitions": "2"}),
    SourceSpec(path=f"{folder}/in/messages", options={"maxFilesPerTrigger": "1"}),
    ids if way == "ids" else chains,
    streams.Streaming(
        checkpoint=f"{folder}/{way}.checkpoint", buckets=2, ordered_wait_ms=3_600_000 if ordered else None
    ),
    f"{folder}/out",
)
"""


@pytest.fixture
def start(tmp_path):
    """Start a driver that dies of its own hand, in this batch of four; its exit code."""
    write(make(Traffic(rows=2_000, chains=20)), tmp_path / "in", files=4)
    for i, file in enumerate(sorted((tmp_path / "in" / "messages").glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))

    def run(way, moment, at):
        words = [sys.executable, "-c", DRIVER, str(tmp_path), way, moment, str(at)]
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
    assert start(way, "never", 0) == 0
    folders = [f"{tmp_path}/out/batches/*/{name}" for name in ("firsts", "repeats", "unsure", "rejects")]
    table = spark.read.parquet(f"{tmp_path}/in/messages").transform(JUDGES[way])
    expected = Counter((row["offset"], row["verdict"]) for row in table.collect())
    assert {verdict for _, verdict in expected} == {"FIRST", "REPEAT"}
    assert counted(spark, *folders) == expected


def test_chains_come_out_in_order_each_row_once_whenever_the_driver_dies(tmp_path, start):
    """Batches 0 to 3 bring rows, the last one gives up what is missing: as if nobody had died."""

    def batches():
        rows: dict[tuple[str, str], list[list[Any]]] = {}
        for file in sorted((tmp_path / "out" / "batches").glob("*/*/*.parquet")):
            own = [tuple(row.values()) for row in pq.ParquetFile(file).read().to_pylist()]
            rows.setdefault((file.parts[-3], file.parts[-2]), []).append(own)
        return {place: sorted(filter(None, files)) for place, files in rows.items()}

    assert start("ordered", "never", 0) == 0
    expected = batches()
    assert sum(len(file) for place, files in expected.items() if place[1] != "gaps" for file in files) == 2_000
    for folder in ("out", "ordered.checkpoint"):
        shutil.rmtree(tmp_path / folder)
    for death in [("held", 0), ("before", 1), ("after", 2), ("held", 3), ("before", 4)]:
        assert start("ordered", *death) == -signal.SIGKILL
    assert start("ordered", "never", 0) == 0
    assert batches() == expected


def test_without_the_commit_protocol_the_same_death_makes_duplicates(spark, tmp_path, start):
    assert start("naive", "after", 1) == -signal.SIGKILL
    assert start("naive", "never", 0) == 0
    rows = counted(spark, f"{tmp_path}/naive")
    assert max(rows.values()) == 2
    assert sum(rows.values()) > 2_000
