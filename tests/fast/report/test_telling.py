"""What pipelines write for the console while they run."""

import json

import pytest

from onefold.cli.output import BatchLines, step_log


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_per_batch_with_its_time_and_only_the_newest_are_kept(tmp_path):
    lines = BatchLines(tmp_path, lines_max=3, clock=lambda: 5.0)
    for batch in range(7):
        lines.tell({"batch": batch})
    assert [line["batch"] for line in read(tmp_path / "progress.jsonl")] == [3, 4, 5, 6]
    assert read(tmp_path / "progress.jsonl")[0]["at_ms"] == 5_000
    assert {path.name for path in tmp_path.iterdir()} == {"progress.jsonl"}


def test_a_line_that_a_crash_tore_does_not_spoil_the_next(tmp_path):
    (tmp_path / "progress.jsonl").write_text('{"batch": 1}\n{"ba')
    BatchLines(tmp_path).tell({"batch": 2})
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert (lines[1], json.loads(lines[2])["batch"]) == ('{"ba', 2)


def test_a_folder_that_cannot_be_written_to_stops_nothing(tmp_path):
    BatchLines(tmp_path / "not there").tell({"batch": 1})
    with step_log(tmp_path / "not there", lambda step: None) as begin:
        begin("judging")


def test_a_run_tells_its_steps_and_how_it_ended(tmp_path):
    times = iter([0.0, 1.0, 1.0, 3.5, 3.5, 4.0])
    said: list[str] = []
    with step_log(tmp_path, said.append, clock=lambda: next(times)) as begin:
        assert not (tmp_path / "progress.json").exists()
        begin("judging")
        assert json.loads((tmp_path / "progress.json").read_text())["state"] == "running"
        begin("publishing")
    told = json.loads((tmp_path / "progress.json").read_text())
    assert told == {
        "state": "complete",
        "began_ms": 0,
        "at_ms": 4_000,
        "steps": [["judging", 2.5], ["publishing", 0.5]],
    }
    assert said == ["judging", "publishing"]


def test_a_run_that_fails_says_why(tmp_path):
    def fail():
        with step_log(tmp_path, lambda step: None) as begin:
            begin("judging")
            raise OSError("no jdbc://me:hunter2@db/x, says \udcff")  # as of the name of a file that is no text

    with pytest.raises(OSError, match="hunter2"):
        fail()
    told = json.loads((tmp_path / "progress.json").read_text())
    assert (told["state"], told["why"]) == ("failed", "OSError: no jdbc://me:(hidden)@db/x, says \udcff")


def test_a_password_is_hidden_before_the_reason_is_cut(tmp_path):
    def fail():
        with step_log(tmp_path, lambda step: None) as begin:
            begin("judging")
            raise OSError(f"{'x' * 470} jdbc://me:hunter2hunter2@db/x")

    with pytest.raises(OSError, match="hunter2"):
        fail()
    assert "hunter" not in (tmp_path / "progress.json").read_text()
