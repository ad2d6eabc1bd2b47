"""A pipeline in stream mode, as a user runs it: goes on where it ended, is watched, and stops when asked."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from onefold.cli import demo
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write
from tests.lib.commands import here

pytestmark = pytest.mark.usefixtures("spark")

COMMAND = [sys.executable, "-m", "onefold.cli.main", "run", "pipeline.toml", "--json"]


@pytest.fixture
def folder(tmp_path):
    write(make(Traffic(rows=2_000, chains=20, faults=Faults(malformed=0.01))), tmp_path / "in")
    pipeline(tmp_path)
    return tmp_path


def pipeline(folder, trigger="available"):
    text = f'[source]\npath = "in/messages"\nmode = "stream"\ntrigger = "{trigger}"\n[publish]\npath = "out"\n'
    (folder / "pipeline.toml").write_text(text + '[spark]\nmaster = "local[2]"\nmemory = "1g"\nbuckets = 2\n')


def run(folder, *words):
    return here("run", "pipeline.toml", "--json", *words, cwd=folder)


def test_a_start_goes_on_where_the_last_one_ended_and_a_lost_checkpoint_is_refused(folder):
    first = run(folder)
    assert first.returncode == 0, first.stderr
    *batches, end = map(json.loads, first.stdout.splitlines())
    assert [line["event"] for line in batches] == ["batch"]
    assert (end["event"], end["tally"]["in"], end["tally"]["balanced"]) == ("end", 2_000, True)
    assert end["keys"] == 20
    assert "the books balance: 2,000 in =" in first.stderr
    assert "WARN" not in first.stderr
    told = [json.loads(line) for line in (folder / "out" / "progress.jsonl").read_text().splitlines()]
    assert [line["event"] for line in told] == ["batch", "end"]
    assert told[0]["tally"] == end["tally"]
    page = (folder / "out" / "report.html").read_text()
    assert "2,000" in page
    assert "A stream counts what is missing" not in page  # it has a gap map, as the page of a table has
    drawn = json.loads((folder / "out" / "figures.json").read_text())
    assert drawn["missing_ranges"] == end["gaps"] > 0
    assert set(drawn["missing_ranges_shown"][0]) > {"stream", "lower_timestamp", "upper_timestamp"}
    assert sum(map(sum, [*drawn["figures"]["timeline"]["bins"], drawn["figures"]["timeline"]["outside"]])) == 2_000
    assert drawn["figures"]["lags"]["count"] == end["tally"]["repeat"]

    for name, own in (("stream", "out"), ("stream.checkpoint", "out.checkpoint")):  # what a demo clears away
        paths = (path.relative_to(folder / own).as_posix() for path in (folder / own).rglob("*") if path.is_file())
        assert [path for path in paths if not demo._OWN[name].fullmatch(path)] == []

    again = run(folder, "--strict")
    assert again.returncode == 1, again.stderr  # there are rejects
    assert json.loads(again.stdout.splitlines()[-1])["tally"] == end["tally"]

    shutil.rmtree(folder / "out.checkpoint")
    lost = run(folder)
    assert lost.returncode == 2
    assert "was written by another checkpoint" in lost.stderr
    assert "Traceback" not in lost.stderr


def refused_beside(folder):
    """No other stream may have the checkpoint or the output of the one that runs here."""
    pipeline(folder)
    for change in (
        'path = "out"\n',
        'path = "out"\ncheckpoint = "c"\n',
        'path = "o"\ncheckpoint = "out.checkpoint"\n',
    ):
        text = (folder / "pipeline.toml").read_text().replace('path = "out"\n', change)
        (folder / "other.toml").write_text(text)
        done = here("run", "other.toml", cwd=folder)
        assert done.returncode == 2, done.stderr
        assert "another" in done.stderr


def test_it_is_watched_while_it_runs_nobody_else_has_its_place_and_sigterm_ends_it_with_0(folder):
    pipeline(folder, trigger="1 second")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*COMMAND, "--metrics", str(port)]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["rows"] == 2_000
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                assert "onefold_keys 20.0" in page.read().decode()
            refused_beside(folder)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"


def test_a_stream_goes_on_when_nobody_reads_its_lines_any_more(folder):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody:
        done = subprocess.run(COMMAND, cwd=folder, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all read; published in" in done.stderr


@pytest.mark.proof
def test_of_two_streams_at_once_on_one_checkpoint_or_output_the_second_is_refused(folder):
    pipeline(folder, trigger="1 second")
    with subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["rows"] == 2_000
            refused_beside(folder)
        finally:
            process.kill()
    done = run(folder)  # killed: at once another one can go on
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tally"]["in"] == 2_000


def test_a_folder_that_is_no_checkpoint_and_an_output_that_is_no_streams_are_refused_and_kept(folder):
    for name, said in (("out.checkpoint", "is no checkpoint"), ("out", "is not a stream's output")):
        (folder / name / "_staging").mkdir(parents=True)
        (folder / name / "_staging" / "mine").write_text("mine")
        done = run(folder)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert (folder / name / "_staging" / "mine").read_text() == "mine"
        shutil.rmtree(folder / name)
    pipeline(folder)
    text = (folder / "pipeline.toml").read_text()
    for checkpoint in ("out", "out/checkpoint", "."):
        (folder / "pipeline.toml").write_text(
            text.replace('path = "out"', f'path = "out"\ncheckpoint = "{checkpoint}"')
        )
        done = run(folder)
        assert done.returncode == 2, done.stderr
        assert "lies inside" in done.stderr or "overlaps source.path" in done.stderr
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[source]\npath = "in"\nmode = "strem"\n[publish]\npath = "out"\n', 'must be "batch" or "stream"'),
        ('[source]\npath = "in/messages"\n[publish]\npath = "out"\nformat = "delta"\n', 'needs source.mode = "stream"'),
    ],
)
def test_wrong_settings_are_one_line_and_exit_2(folder, text, said):
    (folder / "pipeline.toml").write_text(text)
    done = run(folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_trigger_is_one_line_and_exit_2(folder):
    pipeline(folder, trigger="soon")
    done = run(folder)
    assert done.returncode == 2, done.stderr
    assert "trigger is 'soon'" in done.stderr
