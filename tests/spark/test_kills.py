"""A driver that dies between the sink's commit and Spark's, or before both: every row once. The control has doubles."""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from onefold.sim.traffic import Traffic, make
from onefold.sim.writing import write
from onefold.spark import jobs, judge_chains, streams
from onefold.spark.judging import Chains

DRIVER = """
import os, signal, sys
from onefold.spark import jobs, streams
from onefold.spark.judging import Chains
from onefold.spark.session import session

folder, moment, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
publish = streams.publish

def deadly(sink, stream, batch, rows, gaps):
    if moment == "before" and batch == at:
        os.kill(os.getpid(), signal.SIGKILL)
    tally = publish(sink, stream, batch, rows, gaps)
    if moment == "after" and batch == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return tally

streams.publish = deadly
streams.run_stream(
    session("local[2]", memory="1g"),
    jobs.Source(path=f"{folder}/in/messages", options={"maxFilesPerTrigger": "1"}),
    Chains(partitions=2),
    streams.Streaming(checkpoint=f"{folder}/checkpoint", buckets=2),
    f"{folder}/out",
)
"""


@pytest.fixture(autouse=True)
def traffic(tmp_path):
    """Four files, which are read one after the other."""
    write(make(Traffic(rows=2_000, chains=20)), tmp_path / "in", files=4)
    for i, file in enumerate(sorted((tmp_path / "in" / "messages").glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))


def counted(spark, *paths):
    rows: Counter[tuple[int, str]] = Counter()
    for path in paths:
        rows.update((row["offset"], row["verdict"]) for row in spark.read.parquet(path).collect())
    return rows


def test_every_row_once_whenever_the_driver_dies(spark, tmp_path):
    def start(moment, at):
        words = [sys.executable, "-c", DRIVER, str(tmp_path), moment, str(at)]
        return subprocess.run(words, capture_output=True, timeout=180).returncode

    deaths = [("after", 0), ("before", 2)]
    assert [start(*death) for death in deaths] == [-signal.SIGKILL] * len(deaths)
    assert start("never", 0) == 0
    folders = [f"{tmp_path}/out/batches/*/{name}" for name in ("firsts", "repeats", "unsure", "rejects")]
    table = spark.read.parquet(f"{tmp_path}/in/messages").transform(judge_chains())
    expected = Counter((row["offset"], row["verdict"]) for row in table.collect())
    assert counted(spark, *folders) == expected


def test_without_the_commit_protocol_an_end_after_the_write_makes_duplicates(spark, tmp_path, monkeypatch):
    """The control, with an error in place of the kill: after either, Spark knows nothing of the batch."""
    ends = [1]

    def naive(sink, stream, batch, rows, gaps):
        rows.write.mode("append").parquet(f"{tmp_path}/naive")
        if batch in ends:
            ends.remove(batch)
            raise OSError("the end")

    def start():
        streams.run_stream(
            spark,
            jobs.Source(path=f"{tmp_path}/in/messages", options={"maxFilesPerTrigger": "1"}),
            Chains(partitions=2),
            streams.Streaming(checkpoint=f"{tmp_path}/checkpoint", buckets=2),
            f"{tmp_path}/out",
        )

    monkeypatch.setattr(streams, "publish", naive)
    with pytest.raises(OSError, match="the end"):
        start()
    start()
    rows = counted(spark, f"{tmp_path}/naive")
    assert max(rows.values()) == 2
    assert sum(rows.values()) > 2_000
