"""A stream goes on only with what gave its memory its meaning; the setting that differs is named, with both values."""

import dataclasses
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.errors import Misuse
from onefold.spark import stream as streams
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns, ProducerColumns, ReceptionColumns
from onefold.spark.ingest import SourceSpec
from onefold.spark.meaning import difference, refuse_other
from onefold.spark.producers import ProducersEngine
from onefold.spark.receptions.judge import LorawanEngine
from onefold.tally import Tally

KEY = ("device", "site")
COLUMNS = ChainColumns(key=KEY, timestamp="n", sequence=None, previous_timestamp="p", previous_sequence=None)
CHAINS = ChainsEngine(columns=COLUMNS)
PRODUCERS = ProducersEngine(columns=ProducerColumns(producer=KEY, sequence="n", order="arrival"))
LORAWAN = LorawanEngine(
    columns=ReceptionColumns(frame=("device", "n"), station="site", time="arrival", kind=None, device=(), fcnt=None),
    shape="flat",
)


class Bench:
    """A source that can be sent again, and the stream that judges it."""

    def __init__(self, spark, folder, format="parquet"):
        self.spark, self.folder, self.format, self.files, self.lines = spark, folder, format, 0, []
        (folder / "in").mkdir()
        self.come()

    def come(self):
        """The same fifty messages, in one more file."""
        numbers = list(range(1, 51))
        columns = {
            "device": [f"d{n % 2}" for n in numbers],
            "site": [f"s{n % 2}" for n in numbers],
            "n": numbers,
            "m": [n + 100 for n in numbers],
            "p": pa.array([n - 2 if n > 2 else None for n in numbers], pa.int64()),
            "arrival": numbers,
        }
        self.files += 1
        pq.write_table(pa.table(columns), self.folder / "in" / f"{self.files}.parquet")

    def run(self, judging, **state):
        streaming = streams.Streaming(**{"checkpoint": str(self.folder / "c"), "buckets": 2, **state})
        source, out = SourceSpec(path=str(self.folder / "in")), str(self.folder / "out")
        return streams.run_stream(
            self.spark, source, judging, streaming, out, format=self.format, say=self.lines.append
        ).tally


@pytest.fixture
def bench(spark, tmp_path):
    return Bench(spark, tmp_path)


def columns(judging, **change):
    return dataclasses.replace(judging, columns=dataclasses.replace(judging.columns, **change))


OTHERS: dict[Any, list[tuple[Any, dict[str, int], str]]] = {
    CHAINS: [
        (columns(CHAINS, key=KEY[::-1]), {}, "key = 'device string, site string', not 'site string, device str"),
        (columns(CHAINS, timestamp="m"), {}, "timestamp = 'n bigint', not 'm bigint'"),
        (columns(CHAINS, previous_timestamp=None), {}, "previous_timestamp = 'p bigint', not none"),
        (dataclasses.replace(CHAINS, floor="open"), {}, "floor = 'first', not 'open'"),
        (dataclasses.replace(CHAINS, jump_max_ms="off"), {}, "jump_max_ms = 900000, not 'off'"),
        (CHAINS, {"buckets": 3}, "buckets = 2, not 3"),
        (CHAINS, {"ordered_wait_ms": 5}, "ordered = False, not True"),
        (PRODUCERS, {}, "engine = 'chains', not 'producers'"),
    ],
    PRODUCERS: [
        (columns(PRODUCERS, producer=KEY[::-1]), {}, "producer = 'device string, site string', not"),
        (columns(PRODUCERS, payload=("p",)), {}, "payload = none, not 'p bigint'"),
        (dataclasses.replace(PRODUCERS, memory="gaps"), {}, "memory = 'highest', not 'gaps'"),
    ],
    LORAWAN: [
        (dataclasses.replace(LORAWAN, expiry_ms=9), {}, "expiry_ms = 60000, not 9"),
        (columns(LORAWAN, frame=("n", "device")), {}, "frame = 'device string, n bigint', not 'n bigint, dev"),
    ],
}


@pytest.mark.parametrize("judging", OTHERS, ids=lambda judging: judging.name)
def test_another_meaning_is_refused_by_name_and_nothing_is_counted_again(bench, judging):
    first = bench.run(judging)
    assert first.received == 50
    bench.come()
    for other, state, said in OTHERS[judging]:
        with pytest.raises(Misuse, match="begun with") as caught:
            bench.run(other, **state)
        assert said in str(caught.value)
        assert "set it back, or begin anew" in str(caught.value)
    again = bench.run(judging)
    assert (again.to_dict()["first"], again.received) == (first.to_dict()["first"], 100)


def test_the_output_knows_it_too_and_so_does_the_memory(bench):
    bench.run(CHAINS)
    bench.come()
    other = columns(CHAINS, key=KEY[::-1])
    (bench.folder / "c" / "_onefold.json").unlink()
    with pytest.raises(Misuse, match=r"out was begun with key = 'device string, site string'"):
        bench.run(other)
    stream = json.loads((bench.folder / "out" / "stream.json").read_text())
    del stream["meaning"]  # now both are as the version before left them
    (bench.folder / "out" / "stream.json").write_text(json.dumps(stream))
    with pytest.raises(Misuse, match=r"memory was begun with key"):
        bench.run(other)


def test_a_checkpoint_of_a_version_that_kept_no_meaning_goes_on_and_says_for_what_it_is_taken(bench):
    bench.run(CHAINS)
    (bench.folder / "c" / "_onefold.json").unlink()
    stream = json.loads((bench.folder / "out" / "stream.json").read_text())
    (bench.folder / "out" / "stream.json").write_text(json.dumps({k: v for k, v in stream.items() if k != "meaning"}))
    bench.come()
    assert bench.run(CHAINS).to_dict()["first"] == 50
    (line,) = bench.lines
    assert "does not say what it was begun with; taken to be, from now on: engine = chains" in line
    assert "key = device string, site string" in line
    assert json.loads((bench.folder / "out" / "stream.json").read_text()) == stream
    bench.run(CHAINS)
    assert len(bench.lines) == 1


def test_bounds_may_change_from_start_to_start(bench):
    bench.run(CHAINS)
    bench.come()
    tally = bench.run(dataclasses.replace(CHAINS, gap_count_max=5), idle_ms=10**9, state_rows_max=1_000)
    assert (tally.received, tally.to_dict()["first"]) == (100, 50)


def test_what_was_begun_without_a_single_batch_binds_nobody(bench):
    with pytest.raises(Misuse, match="trigger"):
        bench.run(CHAINS, trigger="soon")
    assert bench.run(columns(CHAINS, key=KEY[::-1])) != Tally()


values = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2) | st.sampled_from(["x", "y"]))


@given(values, values)
def test_two_meanings_differ_exactly_if_they_are_not_equal_and_the_difference_names_both_values(one, other):
    assert (difference(one, other) is None) == (one == other)
    if one == other:
        refuse_other("here", one, other)
    else:
        with pytest.raises(Misuse, match="here was begun with"):
            refuse_other("here", one, other)
