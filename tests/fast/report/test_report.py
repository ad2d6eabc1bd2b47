"""``onefold report``: renders again, from what a run left, without Spark."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from onefold.spark import objects
from tests.lib import report_documents as documents
from tests.lib.commands import here


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(documents.run()))
    return folder


def test_the_page_is_written_into_the_folder_of_the_run(run, tmp_path):
    done = here("report", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert sorted(path.name for path in run.iterdir()) == ["report.html", "run.json"]


def test_the_page_goes_where_it_is_told_to_and_the_figures_to_standard_output(run, tmp_path):
    done = here("report", run / "run.json", "--out", "a page.html", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["tally"] == documents.run()["tally"]
    assert "open sesame" not in done.stdout
    assert (tmp_path / "a page.html").exists()
    assert not (run / "report.html").exists()


def test_the_page_goes_into_a_folder_that_is_named_and_through_a_pipe(run, tmp_path):
    (tmp_path / "pages").mkdir()
    assert here("report", run, "--out", "pages", cwd=tmp_path).returncode == 0
    page = (tmp_path / "pages" / "report.html").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        piped = pool.submit((tmp_path / "pipe").read_bytes)
        assert here("report", run, "--out", "pipe", cwd=tmp_path).returncode == 0
        assert piped.result(60) == page


def test_of_runs_that_go_on_in_a_store_all_documents_are_fetched(tmp_path, monkeypatch):
    batch = tmp_path / "out" / "batches" / "000000000000"
    batch.mkdir(parents=True)
    (tmp_path / "out" / "stream.json").write_text("{}")
    (batch / "tally.json").write_text(json.dumps(documents.run()["tally"]))
    (batch / "run.json").write_text(json.dumps(documents.run()))

    def files_below(url):
        files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        return [objects.StoredFile(f"{url}/{file.relative_to(tmp_path / 'out')}", 1, 1) for file in files]

    monkeypatch.setattr(objects, "files_below", files_below)
    monkeypatch.setattr(objects, "opened", lambda url: (tmp_path / url.removeprefix("s3://")).open("rb"))
    assert here("report", "s3://out", "--out", "page.html", cwd=tmp_path).returncode == 0
    assert "1 run report" in (tmp_path / "page.html").read_text(encoding="utf-8").replace("</b>", "")


def test_a_run_that_is_wrong_has_a_page_too(run, tmp_path):
    (run / "run.json").write_text(json.dumps(documents.broken()))
    assert here("report", run, cwd=tmp_path).returncode == 0
    assert "The books do not balance" in (run / "report.html").read_text(encoding="utf-8")


def test_the_page_opens_in_the_browser_if_asked(run, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    assert here("report", run, "--open", cwd=tmp_path).returncode == 0
    assert opened == [str(run / "report.html")]


def test_exit_codes_tell_wrong_usage_from_trouble(run, tmp_path):
    assert here("report", tmp_path / "nowhere", cwd=tmp_path).returncode == 2
    assert here("report", run, "--out", tmp_path / "no folder" / "x.html", cwd=tmp_path).returncode == 3
    (run / "run.json").write_text('{"tally": 5}')
    assert here("report", run, cwd=tmp_path).returncode == 2


def test_no_spark_is_needed(run, tmp_path, monkeypatch):
    for name in ("pyspark", "pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert here("report", run, cwd=tmp_path).returncode == 0
