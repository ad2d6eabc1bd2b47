"""Files that cannot be read, or change: what `check`, `run`, `report` and `audit` say of them, and how they exit."""

import gzip
import json

import pytest

from tests.lib.commands import here as onefold

COLUMNS = ["--key", "device", "--timestamp", "ts", "--sequence", "none", "--previous-timestamp", "none"]
COLUMNS += ["--previous-sequence", "none", "--arrival", "none"]
LINES = ['{"device": "a", "ts": 1}', '{"device": "b", "ts": 1}']


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text("\n".join(LINES) + "\n")
    names = "".join(f'{name} = "none"\n' for name in ("sequence", "previous_timestamp", "previous_sequence", "arrival"))
    (tmp_path / "pipeline.toml").write_text(
        f'[source]\npath = "in"\nformat = "jsonl"\n[judge]\nkey = ["device"]\ntimestamp = "ts"\n{names}'
        '[publish]\npath = "out"\n[spark]\npartitions = 1\n'
    )
    return tmp_path


def set_aside(folder):
    text = (folder / "pipeline.toml").read_text()
    (folder / "pipeline.toml").write_text(text.replace("[judge]", 'bad_files = "set_aside"\n[judge]'))


def test_a_torn_file_ends_a_run_by_name_or_is_set_aside_and_told_everywhere(folder, spark):
    (folder / "in" / "2.jsonl.gz").write_bytes(gzip.compress("\n".join(LINES * 50).encode())[:40])
    stopped = onefold("run", "pipeline.toml", cwd=folder)
    assert stopped.returncode == 3
    assert "/in/2.jsonl.gz: Compressed file ended before the end-of-stream marker was reached" in stopped.stderr
    assert not (folder / "out").exists()
    set_aside(folder)
    done = onefold("run", "pipeline.toml", "--json", cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "set aside: " in done.stderr
    assert "/in/2.jsonl.gz, 40 bytes: Compressed file ended" in done.stderr
    assert "counted without the reader: 2 rows in 1 file" in done.stderr
    (aside,) = json.loads(done.stdout)["manifest"]["set_aside"]
    assert aside["size"] == 40
    told = onefold("report", "out", cwd=folder)
    assert "Some files could not be read." in told.stdout + told.stderr
    page = (folder / "out" / "report.html").read_text()
    assert "Some files could not be read" in page
    assert "2.jsonl.gz" in page
    checked = onefold("check", folder / "in", *COLUMNS, cwd=folder)
    assert checked.returncode == 3
    checked = onefold("check", folder / "in", *COLUMNS, "--bad-files", "set_aside", cwd=folder)
    assert checked.returncode == 1
    assert "1 file that cannot be read" in checked.stderr
    assert "clean" not in checked.stderr


def test_files_that_change_after_a_run_are_named_by_the_audit(folder, spark):
    (folder / "in" / "2.jsonl").write_text("\n".join(LINES) + "\n")
    assert onefold("run", "pipeline.toml", cwd=folder).returncode == 0
    good = onefold("audit", folder / "out", cwd=folder)
    assert good.returncode == 0, good.stderr
    assert "counted without the reader: 4 rows in 2 files" in good.stderr
    with (folder / "in" / "1.jsonl").open("a") as file:
        file.write("\n\n")  # no row is new: only the manifest can tell
    (folder / "in" / "2.jsonl").write_text("\n".join(reversed(LINES)) + "\n")
    (folder / "in" / "3.jsonl").write_text("\n")
    bad = onefold("audit", folder / "out", cwd=folder)
    assert bad.returncode == 1, bad.stderr
    assert "/in/1.jsonl has grown from 50 to 52 bytes" in bad.stderr
    assert "/in/2.jsonl was written again: 50 bytes, as before" in bad.stderr
    assert "/in/3.jsonl is new" in bad.stderr
