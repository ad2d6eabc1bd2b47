import inspect
import json
from pathlib import Path

import pyarrow.parquet as pq

from onefold.cli.simulate import simulate as command
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic
from tests.lib.commands import Done, here


def simulate(folder: Path, *words: str) -> Done:
    return here("simulate", *words, cwd=folder)


def test_the_defaults_are_those_of_the_simulation():
    said = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    assert {name: said[name] for name in ("rows", "chains", "seed", "skew", "text_numbers")} == {
        name: getattr(Traffic(), name) for name in ("rows", "chains", "seed", "skew", "text_numbers")
    }
    shares = {"copies", "reorder", "losses", "late_heads", "no_previous", "poisoned", "malformed"}
    assert {name: said[name] for name in shares} == {name: getattr(Faults(), name) for name in shares}


def test_simulate_says_what_it_made(tmp_path):
    done = simulate(tmp_path, "out", "--rows", "1000", "--chains", "10", "--malformed", "0.1", "--losses", "0.05")
    assert (done.returncode, done.stdout) == (0, "")
    lost = len(pq.read_table(tmp_path / "out" / "truth" / "lost.parquet"))
    ranges = len(pq.read_table(tmp_path / "out" / "truth" / "missing.parquet"))
    assert lost >= ranges > 0
    assert done.stderr == (
        "1,000 rows of 10 chains are in out/messages (parquet, files: 1)\n"
        f"800 originals + 100 copies + 100 damaged; {lost} lost, which leaves {ranges} missing ranges to find\n"
        "the truth about them is in out/truth\n"
    )


def test_every_option_reaches_the_traffic(tmp_path):
    words = "--rows 2000 --chains 20 --seed 7 --format jsonl --files 3 --copies 0.2 --reorder 0.3 --losses 0.01"
    words += " --late-heads 0.5 --no-previous 0.25 --poisoned 0.1 --malformed 0.05 --text-numbers --skew 0.5 --json"
    done = simulate(tmp_path, "out", *words.split())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["rows"], said["chains"], said["seed"], said["format"], said["files"]) == (2000, 20, 7, "jsonl", 3)
    assert said["originals"] + said["copies"] + said["damaged"] == 2000
    assert len(list((tmp_path / said["messages"]).glob("*.jsonl"))) == 3
    made = json.loads((tmp_path / said["truth"] / "traffic.json").read_text())
    assert (made["text_numbers"], made["skew"]) == (True, 0.5)
    wanted = Faults(
        copies=0.2, reorder=0.3, losses=0.01, late_heads=0.5, no_previous=0.25, poisoned=0.1, malformed=0.05
    )
    assert Faults(**made["faults"]) == wanted


def test_a_share_out_of_range_is_one_line(tmp_path):
    done = simulate(tmp_path, "out", "--losses", "2")
    assert (done.returncode, done.stderr) == (2, "onefold: losses is 2.0, must be between 0.0 and 0.9\n")
    assert not (tmp_path / "out").exists()


def test_simulate_does_not_write_over_what_is_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    done = simulate(tmp_path, "out")
    assert done.returncode == 2
    assert done.stderr == "onefold: path is 'out', which exists and is not an empty directory\n"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    done = simulate(tmp_path, "file/out")
    assert done.returncode == 3
    assert done.stderr.startswith("onefold: ")
    assert done.stderr.count("\n") == 1
