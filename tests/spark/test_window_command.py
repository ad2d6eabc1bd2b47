import json

import pytest

from tests.lib.commands import here

START = 1_700_000_000_000


@pytest.fixture
def readings(tmp_path):
    """A hundred readings of a device, each fifth of which comes again, up to two seconds later; and a torn line."""
    arrivals = [(i, START + 1_000 * i) for i in range(1, 101)]
    arrivals += [(i, at + 100 * lag) for lag, (i, at) in enumerate(arrivals[::5], 1)]
    rows = [{"device": "a", "n": 10 * i, "before": 10 * (i - 1), "arrival": at} for i, at in arrivals]
    path = tmp_path / "readings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{torn\n")
    return path


def test_the_window_is_told_to_people_and_to_programs(spark, readings, tmp_path):
    numbered = ("--chain", "device", "--number", "n", "--previous", "before")
    done = here("window", readings, *numbered, "--quantile", "0.5", "--json", cwd=tmp_path)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["rows"], found["ids"], found["copies"]) == (121, 100, 20)
    assert (found["unusable"], found["key"]) == ({"malformed": 1}, ["device", "n"])
    assert {w["share"]: (w["window_ms"], w["leaked"]) for w in found["windows"]} == {
        0.5: (1_000, 10), 0.99: (2_000, 0), 0.999: (2_000, 0), 0.9999: (2_000, 0),
    }  # fmt: skip
    assert [w["ids"] for w in found["windows"]] == [2, 3, 3, 3]
    assert found["intervals"] == {"chains": 1, "gaps": 0, "entries": 1, "bytes": 24}
    assert found["recommendation"].startswith("judge by numbers: 1 entry remembers everything")
    assert "121 rows: 100 ids, 20 copies (16.7 %)" in done.stderr
    assert "not used: 1 row: could not be read" in done.stderr
    assert found["recommendation"] in done.stderr


def test_without_copies_it_says_so_and_is_content(spark, readings, tmp_path):
    done = here("window", readings, "--key", "device,n,arrival", "--time", "before", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "121 rows: 120 ids, 0 copies" in done.stderr
    assert "all times are before 1973" in done.stderr
    assert "there are no copies: this data needs no window" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--time", "when"), "no column 'when' (time)"),
        (("--time", "device", "--key", "n"), "column 'device' is text without a whole number or a time in it"),
        (("--quantile", "1.5"), "share is 1.5, must be above 0 and at most 1"),
        (("--number", "n"), "--number needs --chain"),
        (("--chain", "device", "--number", "n"), "--number and --previous must have as many columns"),
        (("--chain", "device", "--number", "n,n,n"), "--number is 'n,n,n', must be one column or two"),
        (("--key", ","), "key is empty"),
    ],
)
def test_what_cannot_be_measured_is_a_mistake_of_the_caller(spark, readings, tmp_path, words, said):
    done = here("window", readings, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
