import gzip
import json

import pytest

from tests.commands import here
from tests.spark import reception_files as files


@pytest.fixture
def events(tmp_path):
    """The counter 3 is missing in it, and one row is a status."""
    rows = [*files.stored("chirpstack 3"), {"devEUI": "d1", "margin": 4}]
    (tmp_path / "events.ndjson.gz").write_bytes(gzip.compress(files.lines(rows).encode()))
    return tmp_path


def test_a_packed_file_is_reported_with_one_command(spark, events):
    done = here("lorawan", "report", events / "events.ndjson.gz", "--json", cwd=events)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["receptions"], found["uplinks"], found["lost"], found["gateways"]) == (7, 3, 1, 2)
    assert (found["shared_uplinks"], found["not_receptions"]) == (2, 1)
    assert found["findings"] == ["1 lost uplinks"]
    assert "5 rows: 7 receptions, 1 rows that are none" in done.stderr
    assert "the books balance: 7 in = 4 first + 3 repeat" in done.stderr
    assert "found: 1 lost uplinks" in done.stderr


def test_clean_receptions_are_no_finding_and_only_people_are_told(spark, tmp_path):
    rows = [row for row in files.stored("lns") if row["message"].get("FCnt") != 4]
    (tmp_path / "receptions.jsonl").write_text(files.lines(rows))
    done = here(
        "lorawan", "report", tmp_path / "receptions.jsonl", "--strategy", "mark", "--fixed", "--top", "1", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "clean: nothing is lost, nothing is suspect" in done.stderr
    assert "and 1 more" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.json",), "there is nothing at "),
        (("empty.json",), "empty.json has no receptions: it is empty"),
        (("empty.json", "--shape", "morse"), "morse"),
        (("empty.json", "--expiry-ms", "0"), "--expiry-ms"),
    ],
)
def test_what_cannot_be_reported_is_a_mistake_of_the_caller(spark, tmp_path, words, said):
    (tmp_path / "empty.json").write_text("")
    done = here("lorawan", "report", tmp_path / words[0], *words[1:], cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
