"""Ordered mode: each chain comes out in order or after its gap was given up; nothing is lost, whatever the batches."""

import dataclasses
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.chains import ANSWERS
from onefold.errors import BadInput, Misuse
from onefold.spark import stream as streams
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns
from onefold.spark.host import MemoryOptions
from onefold.spark.in_order import verify_held
from onefold.spark.ingest import SourceSpec
from onefold.spark.memory import Storage
from onefold.spark.producers import ProducersEngine
from onefold.tally import BooksDoNotBalance, Tally
from onefold.testing.traffic import Traffic, make, write

HOUR = 3_600_000
COLUMNS = ChainColumns(key=("device",), sequence=None, previous_timestamp="before", previous_sequence=None)
BOUNDS = ("lower_timestamp", "lower_sequence", "upper_timestamp", "upper_sequence")


class Bench:
    """A source that grows file by file, and the stream that orders it."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.files, self.arrival = spark, folder, 0, 0
        (folder / "in").mkdir()

    def come(self, *messages):
        """Rows (device, before, timestamp) as one more file."""
        n = len(messages)
        columns = [
            pa.array(list(column), kind) for column, kind in zip(zip(*messages, strict=True), KINDS, strict=True)
        ]
        arrival = pa.array(range(self.arrival, self.arrival + n), pa.int64())
        table = pa.table([*columns, arrival], names=["device", "before", "timestamp", "arrival"])
        self.arrival, self.files = self.arrival + n, self.files + 1
        path = self.folder / "in" / f"{self.files:03}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + self.files,) * 2)

    def run(self, wait_ms, trigger="available", order_end=None, **more):
        return streams.run_stream(
            self.spark,
            SourceSpec(path=str(self.folder / "in"), options={"maxFilesPerTrigger": "1"}),
            ChainsEngine(columns=COLUMNS, jump_max_ms="off"),
            streams.Streaming(
                checkpoint=str(self.folder / "c"),
                trigger=trigger,
                ordered_wait_ms=wait_ms,
                order_end=order_end or ("hold" if wait_ms is not None and trigger == "available" else "give_up"),
                buckets=2,
            ),
            str(self.folder / "out"),
            strategy="mark",
            **more,
        )

    def batches(self):
        """Of each batch the messages, in the order of their chain's rows as they stand in the files."""
        return [self.read(path, "messages") for path in sorted((self.folder / "out" / "batches").iterdir())]

    def out(self, device="a"):
        return [[r["timestamp"] for r in rows if r["device"] == device] for rows in self.batches()]

    def gaps(self):
        rows = [r for path in sorted((self.folder / "out" / "batches").iterdir()) for r in self.read(path, "gaps")]
        return [(row["device"], *(row[name] for name in BOUNDS)) for row in rows]

    def read(self, path, name):
        files = sorted((path / name).glob("*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


KINDS = (pa.string(), pa.int64(), pa.int64())


@pytest.fixture
def bench(spark, tmp_path):
    return Bench(spark, tmp_path)


def test_what_came_early_comes_out_after_what_was_missing_also_across_a_restart(bench):
    bench.come(("a", None, 1), ("a", 2, 3), ("b", None, 7), ("a", 3, 4))
    bench.come(("a", 2, 3), ("b", 7, 8))  # a repeat of one that is held: at once
    first = bench.run(HOUR)
    assert (first.held, first.tally.received) == (2, 4)
    bench.come(("a", 1, 2), ("a", 4, 5))
    commits = bench.folder / "c" / "commits"
    (commits / "1").unlink()  # as if the driver had died between the sink's commit and Spark's
    (commits / ".1.crc").unlink()
    last = bench.run(HOUR)
    assert bench.out() == [[1], [3], [2, 3, 4, 5]]
    assert bench.out("b") == [[7], [8], []]
    assert bench.gaps() == []
    assert (last.held, last.gaps, str(last.tally)) == (0, 0, "8 in = 7 first + 1 repeat + 0 unsure + 0 reject")
    reasons = {(r["timestamp"], r["reason"]) for rows in bench.batches()[1:] for r in rows if r["device"] == "a"}
    assert reasons == {(3, "seen"), (3, "opens_gap"), (4, "in_order"), (2, "fills_gap"), (5, "in_order")}


def test_a_gap_is_given_up_with_the_first_batch_after_the_wait(bench):
    bench.come(("a", None, 1), ("a", 5, 6), ("a", 6, 7), ("a", 8, 9))
    assert bench.run(1).held == 3
    time.sleep(0.01)
    bench.come(("c", None, 1), ("b", None, 1))
    assert bench.run(1).held == 0
    assert bench.out() == [[1], [6, 7, 9]]
    assert bench.gaps() == [("a", 1, 0, 5, 0), ("a", 7, 0, 8, 0)]
    bench.come(("a", 1, 5))
    bench.run(1)
    assert [(r["verdict"], r["reason"]) for r in bench.batches()[2]] == [("UNSURE", "given_up")]


@pytest.mark.proof  # the next one of that name is the same after a restart
def test_with_an_interval_a_wait_ends_although_nothing_comes(bench):
    bench.come(("a", None, 1), ("a", 5, 6))
    stop, told = threading.Event(), []

    def tell(progress):
        told.append(progress)
        if progress.tally.received == 2 or len(told) > 300:
            stop.set()

    last = bench.run(300, trigger="200 milliseconds", tell=tell, stop=stop)
    assert (last.tally.received, last.held) == (2, 0)
    assert told[0].held == 1
    assert [r for rows in bench.out() for r in rows] == [1, 6]
    assert bench.gaps() == [("a", 1, 0, 5, 0)]


@pytest.mark.parametrize(("format", "strategy"), [("parquet", "drop"), ("parquet", "none"), ("delta", "drop")])
def test_faulty_traffic_comes_out_once_each_chain_ascending(spark, tmp_path, format, strategy):
    write(make(Traffic(rows=2_000, chains=12, seed=5)), tmp_path / "traffic", files=3)
    folder = tmp_path / "traffic" / "messages"
    for i, file in enumerate(sorted(Path(folder).glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i,) * 2)
    last = streams.run_stream(
        spark,
        SourceSpec(path=str(folder), options={"maxFilesPerTrigger": "1"}),
        ChainsEngine(),
        streams.Streaming(checkpoint=str(tmp_path / "c"), ordered_wait_ms=0, buckets=3),
        str(tmp_path / "out"),
        format=format,
        strategy=strategy,
    )
    assert (last.held, last.tally.received, last.tally.balanced) == (0, 2_000, True)
    batches = sorted((tmp_path / "out" / {"parquet": "batches", "delta": "data"}[format]).iterdir())
    firsts, others = {"parquet": ("firsts/", "[!fg]*/"), "delta": ("*/verdict=FIRST/", "*/verdict=[!F]*/")}[format]
    firsts = "messages/" if strategy == "none" else firsts
    newest: dict[Any, tuple[int, int]] = {}
    offsets = []
    for batch in batches:
        numbers: dict[Any, list[tuple[int, int]]] = {}
        place: dict[Any, Path] = {}
        for file in sorted(batch.glob(f"{firsts}*.parquet")):
            for row in pq.ParquetFile(file).read().to_pylist():
                key = tuple(row[name] for name in ChainColumns().key)
                numbers.setdefault(key, []).append((row["timestamp"] or 0, row["sequence"] or 0))
                assert place.setdefault(key, file) == file
                offsets.append(row["offset"])
        for key, own in numbers.items():
            assert own == sorted(own)
            if strategy != "none":  # else there are copies among them
                assert newest.get(key, (-1, -1)) < own[0]
                assert len(set(own)) == len(own)
            newest[key] = own[-1]
        rest = [file for file in batch.glob(f"{others}*.parquet") if strategy != "none"]
        offsets += [row["offset"] for file in rest for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted(offsets) == list(range(2_000))


def died(folder, moment):
    """Leave of batch 1 what a driver leaves that dies at this moment."""
    checkpoint, held = folder / "c", folder / "c" / "memory" / "_held"
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    if moment == "after the sink's commit":
        return
    shutil.rmtree(folder / "out" / "batches" / f"{1:012}")
    if moment == "before the sink's commit":
        return
    (held / f"{1:012}.json").unlink()
    for file in (held / f"{1:012}").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:50])
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    if moment == "while held rows are written":
        return
    run = next((checkpoint / "memory").glob(f"*/{1:012}-*.run"))
    run.unlink()


def test_a_driver_that_dies_at_any_moment_ends_with_the_same_rows_and_the_same_memory(bench):
    bench.come(("a", None, 1), ("a", 2, 3), ("b", None, 7), ("c", None, 1))
    bench.come(("a", 3, 4), ("b", 8, 9), ("a", 2, 3), ("b", 9, 10), ("c", 1, 2))
    assert bench.run(HOUR).held == 4

    def left():
        held = bench.folder / "c" / "memory" / "_held"
        rows = [row for file in held.glob(f"{1:012}/*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
        runs = {file.name: file.read_bytes() for file in (bench.folder / "c" / "memory").glob("*/*.run")}
        return sorted(map(str, rows)), runs, bench.batches()

    before = left()
    for moment in ("after the sink's commit", "before the sink's commit", "while held rows are written", "in a task"):
        died(bench.folder, moment)
        last = bench.run(HOUR)
        assert (last.held, last.tally.received) == (4, 5)
        assert left() == before
    bench.come(("a", 1, 2), ("b", 7, 8))
    assert bench.run(HOUR).held == 0
    assert (bench.out(), bench.out("b"), bench.out("c")) == (
        [[1], [3], [2, 3, 4]],
        [[7], [], [8, 9, 10]],
        [[1], [2], []],
    )


def test_held_rows_that_are_lost_or_of_other_columns_end_the_stream(bench):
    bench.come(*((device, *numbers) for device in "abcdefgh" for numbers in ((None, 1), (2, 3))))
    assert bench.run(HOUR).held == 8
    bench.come(("a", 1, 2))
    held = bench.folder / "c" / "memory" / "_held"
    document = held / f"{0:012}.json"
    told = document.read_text()
    for text, error, words in [
        (told.replace('"rows": 8', '"rows": 9'), BooksDoNotBalance, "9 rows were held back and 8 of them came again"),
        (told.replace("bigint", "int"), Misuse, "other columns"),
    ]:
        document.write_text(text)
        with pytest.raises(error, match=words):
            bench.run(HOUR)
    document.unlink()
    with pytest.raises(BadInput, match="what batch 0 held back is lost"):
        bench.run(HOUR)
    document.write_text(told)
    assert bench.run(HOUR).held == 7


def test_verify_reads_what_is_held_back_too(bench):
    bench.come(("a", None, 1), ("a", 2, 3), ("a", 3, 4))
    bench.run(HOUR)
    storage = Storage(str(bench.folder / "c" / "memory"))
    assert verify_held(storage) == (1, [])
    (file,) = (bench.folder / "c" / "memory" / "_held" / f"{0:012}").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    files, problems = verify_held(storage)
    assert (files, len(problems)) == (1, 2)
    assert "is damaged" in problems[0]
    assert "has 0 rows that can be read, not 2" in problems[1]


@pytest.mark.parametrize(
    ("published", "problem"), [(1, ""), (2, "batch 0: 3 rows were judged, 2 were published, 2 are")]
)
def test_rows_judged_are_rows_published_or_held(bench, published, problem):
    bench.come(("a", None, 1), ("a", 2, 3), ("a", 3, 4))
    bench.run(HOUR)
    figures = streams.MemoryFigures(str(bench.folder / "c" / "memory"))
    watcher = streams.Watcher(Tally, figures, lambda progress: None)
    figures.look(0)
    watcher.published(0, Tally(published, {ANSWERS[0]: published}))
    assert (watcher.problem or "")[: len(problem) or None] == problem


def test_a_stream_goes_on_although_its_clock_stepped_back(bench):
    bench.come(*((device, None, 1) for device in "abcdefgh"))
    assert bench.run(None).tally.received == 8
    commits, offsets = bench.folder / "c" / "commits", bench.folder / "c" / "offsets"
    for file in (commits / "0", commits / ".0.crc", offsets / ".0.crc"):
        file.unlink()  # as if it had died there, at a time that the clock has yet to reach
    version, told, end = (offsets / "0").read_text().split("\n")
    told = json.dumps({**json.loads(told), "batchTimestampMs": json.loads(told)["batchTimestampMs"] + HOUR})
    (offsets / "0").write_text("\n".join([version, told, end]))
    bench.come(("a", 1, 2), ("a", 2, 3), ("a", 3, 4))  # not all buckets hear of the earlier time
    assert bench.run(None).tally.received == 11


def test_when_all_is_read_what_is_missing_is_given_up_and_all_that_is_held_comes_out_once(bench):
    bench.come(("a", None, 1), ("a", 2, 3), ("b", None, 7), ("a", 3, 4), ("b", 8, 9), ("a", 6, 7))
    told: list[Any] = []
    last = bench.run(HOUR, order_end="give_up", tell=told.append)
    assert (last.held, str(last.tally)) == (0, "6 in = 6 first + 0 repeat + 0 unsure + 0 reject")
    assert [progress.held for progress in told] == [4, 0]
    assert (bench.out(), bench.out("b")) == ([[1], [3, 4, 7]], [[7], [9]])
    assert sorted(bench.gaps()) == [("a", 1, 0, 2, 0), ("a", 4, 0, 6, 0), ("b", 7, 0, 8, 0)]
    commits = bench.folder / "c" / "commits"
    (commits / "1").unlink()  # as if the driver had died between the sink's commit and Spark's, in the last batch
    (commits / ".1.crc").unlink()
    bench.come(("a", 1, 2), ("a", 7, 8))
    last = bench.run(HOUR, order_end="give_up")
    assert (last.held, str(last.tally)) == (0, "8 in = 7 first + 0 repeat + 1 unsure + 0 reject")
    assert bench.out() == [[1], [3, 4, 7], [2, 8]]


def test_after_a_restart_what_is_held_is_known_although_nothing_comes(bench):
    bench.come(("a", None, 1), ("a", 2, 3), ("a", 3, 4), ("b", None, 1), ("b", 5, 6))
    assert bench.run(HOUR).held == 3
    last = bench.run(HOUR)
    assert (last.held, last.tally.received) == (3, 2)
    bench.come(("a", 1, 2))
    last = bench.run(HOUR)
    assert (last.held, last.tally.received) == (1, 5)
    last = bench.run(HOUR, order_end="give_up")
    assert (last.held, last.tally.received) == (0, 6)
    assert bench.gaps() == [("b", 1, 0, 5, 0)]


def test_with_an_interval_a_wait_ends_after_a_restart_too_although_nothing_comes(bench):
    bench.come(("a", None, 1), ("a", 5, 6))
    assert bench.run(300).held == 1
    stop = threading.Event()

    def tell(progress):
        if not progress.held or progress.batch > 300:
            stop.set()

    last = bench.run(300, trigger="200 milliseconds", tell=tell, stop=stop)
    assert (last.tally.received, last.held) == (2, 0)
    assert bench.gaps() == [("a", 1, 0, 5, 0)]


def test_misuse_is_refused_before_the_stream_starts(bench):
    bench.come(("a", None, 1))
    with pytest.raises(Misuse, match="wait_ms is -1"):
        bench.run(-1, order_end="give_up")
    with pytest.raises(Misuse, match="buckets is 0"):
        MemoryOptions(ordered_wait_ms=1, buckets=0)
    ordered = streams.Streaming(checkpoint="c", ordered_wait_ms=1)
    for judging, streaming, word in [
        (ChainsEngine(floor="open"), ordered, "floor"),
        (ChainsEngine(), dataclasses.replace(ordered, idle_ms=5), "idle_ms"),
        (ProducersEngine(), ordered, "only chains"),
    ]:
        with pytest.raises(Misuse, match=word):
            judging.ordered(streaming)
    assert not (bench.folder / "c").exists()
