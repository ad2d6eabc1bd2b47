"""Ordered mode: each chain comes out in order or after its gap was given up; nothing is lost, whatever the batches."""

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.chains import ANSWERS
from onefold.chains.columns import NO_PREVIOUS, refused
from onefold.chains.in_order import OrderedChain, OrderSettings, Released, Unfillable
from onefold.chains.rules import pack
from onefold.errors import BadInput, Misuse
from onefold.spark import stream as streams
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns
from onefold.spark.host import MemoryOptions
from onefold.spark.in_order import GAP, OrderedBucket
from onefold.spark.ingest import SourceSpec
from onefold.spark.stream import BucketFigures, Watcher
from onefold.tally import Tally
from onefold.testing.traffic import Traffic, make, write
from onefold.verdict import Verdict
from tests.lib.examples import examples

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


def test_faulty_traffic_comes_out_once_each_chain_ascending(spark, tmp_path):
    made = make(Traffic(rows=2_000, chains=12, seed=5))
    write(made, tmp_path / "traffic", files=3)
    folder = tmp_path / "traffic" / "messages"
    for i, file in enumerate(sorted(Path(folder).glob("*.parquet"))):
        os.utime(file, (1_700_000_000 + i,) * 2)
    last = streams.run_stream(
        spark,
        SourceSpec(path=str(folder), options={"maxFilesPerTrigger": "1"}),
        ChainsEngine(),
        streams.Streaming(checkpoint=str(tmp_path / "c"), ordered_wait_ms=0, buckets=3),
        str(tmp_path / "out"),
    )
    assert (last.held, last.tally.received, last.tally.balanced) == (0, 2_000, True)
    rows = spark.read.parquet(*(str(p) for p in (tmp_path / "out" / "batches").glob("*/*") if p.name in FOLDERS))
    assert sorted(r["offset"] for r in rows.select("offset").collect()) == list(range(2_000))
    newest: dict[Any, tuple[int, int]] = {}
    for batch in sorted((tmp_path / "out" / "batches").iterdir()):
        for file in sorted((batch / "firsts").glob("*.parquet")):
            for row in pq.ParquetFile(file).read().to_pylist():
                key = tuple(row[name] for name in ChainColumns().key)
                number = row["timestamp"], row["sequence"]
                assert newest.get(key, (-1, -1)) < number
                newest[key] = number


@pytest.mark.parametrize(("held", "problem"), [(3, None), (2, "batch 0: 5 rows were judged, 2 were published, 2 more")])
def test_rows_judged_are_rows_published_or_held(spark, held, problem):
    figures = BucketFigures(spark)
    watcher = Watcher(Tally, figures, lambda progress: None)
    tally = Tally(2, {ANSWERS[0]: 2})
    for _ in range(2):  # a task that was tried twice says the same twice
        figures.add(1, {"held": held, "held_before": 0, "rows": 5, "at_ms": 10, "batch": 0})
    watcher.published(0, tally)
    assert (watcher.problem or "").startswith(problem or "")
    assert bool(watcher.problem) == bool(problem)
    watcher.problem = None
    watcher.published(1, Tally())  # an empty batch touches no bucket
    assert watcher.problem is None


def test_a_clock_that_steps_back_between_two_batches_is_no_trouble(spark):
    figures = BucketFigures(spark)
    watcher = Watcher(Tally, figures, lambda progress: None)
    for batch, (bucket, at_ms) in enumerate([(1, 9_000), (2, 7_000), (2, 7_000), (1, 8_000)]):
        figures.add(bucket, {"held": 0, "held_before": 0, "rows": 3, "at_ms": at_ms, "batch": batch})
        watcher.published(batch, Tally(3, {ANSWERS[0]: 3}))
        assert watcher.problem is None


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


def test_of_a_bucket_the_newest_word_counts_and_of_what_was_before_the_first(spark):
    figures = BucketFigures(spark)
    for word in ({"held": 5, "held_before": 2}, {"held": 9, "held_before": 5}):
        figures.add(1, word)
    figures.add(2, {"held": 1, "held_before": 1})
    assert (figures.total("held"), figures.grown("held")) == (10, 7)


FOLDERS = {"firsts", "repeats", "unsure", "rejects"}


def test_misuse_is_refused_before_the_stream_starts(spark):
    with pytest.raises(Misuse, match="wait_ms is -1"):
        ChainsEngine().step(MemoryOptions(ordered_wait_ms=-1))
    with pytest.raises(Misuse, match="buckets is 0"):
        MemoryOptions(ordered_wait_ms=1, buckets=0)
    with pytest.raises(Misuse, match="only a stream"):
        spark.range(1).transform(ChainsEngine().step(MemoryOptions(ordered_wait_ms=1)))
    ordered = streams.Streaming(checkpoint="c", ordered_wait_ms=1)
    for judging, streaming, word in [
        (ChainsEngine(floor="open"), ordered, "floor"),
        (ChainsEngine(), dataclasses.replace(ordered, idle_ms=5), "idle_ms"),
    ]:
        with pytest.raises(Misuse, match=word):
            judging.stream(streaming)


SMALL = OrderSettings(20, 0, 0, "light", 3, 2)
KEY = frozenset({0})


def columns(rows):
    """(chain, previous or None, number), in the order of judgement, as integers and a table."""
    integers = np.array(
        [
            (c, -c, i, NO_PREVIOUS if p is None else pack((p, 0)), pack((n, 0)) if n >= 0 else n, 0)
            for i, (c, p, n) in enumerate(rows)
        ],
        np.int64,
    )
    chain, number = [c for c, _, _ in rows], [n for _, _, n in rows]
    table = pa.table([pa.array(chain, pa.int64()), pa.array(number, pa.int64())], names=["c0", "c1"])
    return integers.reshape(-1, 6).T, table


def naive(chains, rows, now):
    """What the chains say when they are asked directly: per chain (number, answer) and gaps, in order."""
    out: dict[int, list[Any]] = {}
    for c, p, n in sorted(rows, key=lambda row: row[0]):
        told = out.setdefault(c, [])
        if n < 0:
            told.append((n, ANSWERS[-1 - n]))
            continue
        message = [n, p, None]
        chain = chains.setdefault(c, OrderedChain(**SMALL._asdict()))
        step = chain.add(None if p is None else (p, 0), (n, 0), message, now)
        message[2] = step.answer
        if step.answer.verdict is Verdict.FIRST:
            told += spoken(step.events)
        else:
            told.append((n, step.answer))
    for c, chain in chains.items():
        out.setdefault(c, []).extend(spoken(chain.tick(now)))
    return {c: told for c, told in out.items() if told}


def spoken(events):
    lower = None
    for event in events:
        if isinstance(event, Unfillable):
            lower = event.lower
        elif isinstance(event, Released):
            number, previous, answer = event.message
            if lower is not None:
                yield ("gap", lower, (previous, 0))
                lower = None
            yield (number, answer)


def said(out):
    told: dict[int, list[Any]] = {}
    bounds = iter(out.bounds.tolist())
    for row, code in zip(out.rows.to_pylist(), out.codes.tolist(), strict=True):
        if code == GAP:
            a, b, c, d = next(bounds)
            assert row["c1"] is None
            told.setdefault(row["c0"], []).append(("gap", (a, b), (c, d)))
        else:
            told.setdefault(row["c0"], []).append((row["c1"], ANSWERS[code]))
    assert next(bounds, None) is None
    return told


numbers = st.integers(0, 15)
messages = st.tuples(st.integers(1, 3), st.none() | numbers, numbers | st.just(refused("null_key"))) | st.tuples(
    st.integers(1, 3), st.just(0), numbers
).map(lambda m: (m[0], max(0, m[2] - 1), m[2]))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(-15, 15), st.lists(messages, max_size=8)), max_size=8))
def test_a_bucket_says_what_its_chains_say_through_any_snapshots(batches):
    chains: dict[int, OrderedChain[Any]] = {}
    bucket, now, came, went = OrderedBucket(SMALL, KEY), 0, 0, 0
    for passed, rows in batches:
        now = max(0, now + passed)  # a clock may step back
        integers, table = columns(rows)
        out = bucket.judge(integers, table if rows else None, now)
        assert said(out) == naive(chains, rows, now)
        came, went = came + len(rows), went + int(np.count_nonzero(out.codes != GAP))
        held = sum(chain.held_count for chain in chains.values())
        assert (came - went, bucket.figures()["held"]) == (held, held)
        assert bucket.due_ms() == min((c.due_ms for c in chains.values() if c.due_ms is not None), default=None)
        bucket = OrderedBucket(SMALL, KEY).resume(bucket.snapshot())
        assert bucket.figures()["held"] == held


def test_the_order_in_which_rows_reach_a_bucket_means_nothing():
    rows = [(c, n - 1, n) for c in range(6) for n in (1, 3, 2)]
    integers, table = columns(rows)
    turn = np.random.default_rng(1).permutation(len(rows))
    one, other = (OrderedBucket(SMALL, KEY, chains_max=4) for _ in range(2))
    a, b = one.judge(integers, table, 0), other.judge(integers[:, turn], table.take(turn), 0)
    assert said(a) == said(b)
    assert sum(answer.reason == "state_full" for told in said(a).values() for _, answer in told) == 6
    assert one.snapshot() == other.snapshot()


def test_foreign_state_and_other_columns_are_refused():
    bucket = OrderedBucket(SMALL, KEY)
    integers, table = columns([(1, 0, 1), (1, 2, 3)])
    bucket.judge(integers, table, 0)
    blob = bucket.snapshot()
    for bad in (b"", b"OFBK" + blob[4:], blob[:4] + b"\x09" + blob[5:], blob[:-200], blob[:40]):
        with pytest.raises(BadInput):
            OrderedBucket(SMALL, KEY).resume(bad)
    integers, table = columns([(1, 1, 2)])
    with pytest.raises(Misuse, match="other columns"):
        bucket.judge(integers, table.rename_columns(["c0", "c2"]), 0)
