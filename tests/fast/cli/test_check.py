"""Mistakes that ``onefold check`` finds without starting Spark."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lib.commands import here


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"event_id": "a"}) + "\n" + json.dumps({"event_id": "b", "h": {}})
    )
    (tmp_path / "events.csv").write_text("event_id,ts\na,1\n")
    (tmp_path / "days" / "day=1").mkdir(parents=True)
    pq.write_table(pa.table({"event_id": ["a"]}), tmp_path / "days" / "day=1" / "x.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("nowhere --id event_id", "there is nothing at nowhere"),
        (
            "events.jsonl --id evnt_id",
            "no column 'evnt_id' (id), did you mean 'event_id': the columns are event_id, h;",
        ),
        ("events.csv --id id", "no column 'id' (id): the columns are event_id, ts; try: onefold check events.csv --id"),
        ("days --id nothing", "no column 'nothing' (id): the columns are event_id, day;"),
        ("events.csv --key event_id --sequence seq", "no column 'seq' (sequence): the columns are event_id, ts;"),
        ("events.csv --id event_id --floor open --memory highest", "--memory is 'highest', which needs no --id"),
        ("events.csv --id event_id --floor first", "--floor is 'first', which needs no --id"),
        ("events.csv --id event_id --gap-count-max 5", "--gap-count-max is 5, which needs no --id"),
        ("events.csv --producer event_id --floor first", "--floor is 'first', which needs no --producer"),
        ("events.csv --order ts", "--order is 'ts', which needs --id or --producer"),
    ],
)
def test_a_mistake_is_one_line_and_starts_no_spark(folder, words, line):
    done = here("check", *words.split(), cwd=folder)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "starting Spark" not in done.stderr
