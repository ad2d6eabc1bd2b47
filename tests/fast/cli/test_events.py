"""Simulated events with ids: exactly as many rows, and a truth that a plain set agrees with."""

import json
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import IdDetector
from onefold.testing import Events, make_events
from tests.lib.commands import here
from tests.lib.examples import examples

SETTINGS = st.builds(
    Events,
    seed=st.integers(0, 99),
    rows=st.integers(1, 400),
    copies=st.floats(0, 1),
    same=st.floats(0, 0.5),
    late=st.floats(0, 0.5),
    conflicts=st.floats(0, 1),
)


@settings(max_examples=examples(200), deadline=None)
@given(SETTINGS)
def test_the_truth_is_that_of_a_set_with_endless_memory(events):
    made = make_events(events)
    messages, rows = made.messages.to_pylist(), made.rows.to_pylist()
    assert len(messages) == len(rows) == events.rows
    ids, newest = IdDetector(), 0
    first: dict[str, Any] = {}
    for message, row in zip(messages, rows, strict=True):
        content = json.dumps([message["status"], message["amount"]])
        assert str(ids.judge(message["event_id"], content=content)) == f"{row['verdict']} {row['reason']}"
        original = first.setdefault(message["event_id"], message)
        assert (row["of"], row["lag_ms"] is None) == (original["offset"], original is message)
        assert message["ts"] == original["ts"]
        changed = [name for name in ("status", "amount") if message[name] != original[name]]
        assert row["differs"] == "".join(changed)
        if row["lag_ms"] is not None:
            assert row["lag_ms"] == (message["ingested_at"] - original["ingested_at"]) // timedelta(milliseconds=1)
        ms = round(message["ts"].timestamp() * 1000)
        newest = max(newest, ms)
        assert row["late_ms"] == newest - ms


def test_there_are_copies_of_every_kind(tmp_path):
    done = here("simulate", "out", "--ids", "--rows", "20000", "--files", "2", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said["ids"] + said["copies"] == said["rows"] == 20_000
    truth = pq.read_table(tmp_path / "out" / "truth" / "rows.parquet").to_pylist()
    beyond = sum(row["late_ms"] > said["window_ms"] for row in truth if row["verdict"] != "FIRST")
    assert beyond == said["beyond_window"] == round(0.02 * said["copies"])
    assert 0 < said["conflicts"] < said["same_time"] < said["copies"]
    line = (tmp_path / "out" / "messages" / "part-00000.jsonl").read_text().splitlines()[0]
    assert json.loads(line)["ts"].endswith("Z")


@pytest.mark.parametrize("words", ["--ids --chains 5", "--ids --losses 0.1", "--late 0.1", "--ids --conflicts 2"])
def test_options_of_the_other_traffic_are_refused(tmp_path, words):
    done = here("simulate", "out", *words.split(), cwd=tmp_path)
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False), done.stderr
