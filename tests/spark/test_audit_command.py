"""``onefold audit``: a good run agrees with its source; what is done to its folder later is found, and named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write
from tests.lib.commands import here as onefold


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit") / "t"
    write(make(Traffic(rows=400, chains=4, faults=Faults(malformed=0.02))), folder)
    return folder / "messages"


def pipeline(folder, source, *, mode="batch"):
    (folder / "pipeline.toml").write_text(
        f'[source]\npath = "{source}"\nmode = "{mode}"\n[judge]\nfloor = "open"\n[publish]\npath = "out"\n'
        + ('strategy = "mark"\n' if mode == "stream" else '[report]\npage = "off"\n')
        + "[spark]\npartitions = 1\n"
    )


def rewrite(file, change):
    """Change a file behind Spark's back; what Hadoop knows of its content goes too."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    pq.write_table(change(pq.read_table(file)), file)


def tampered(table):
    """One row gone, one doubled, one changed, and one that has a verdict which there is not."""
    changed = table.slice(2, 1)
    at = table.schema.get_field_index("arrival")
    changed = changed.set_column(at, "arrival", pa.array([7], table.schema.field("arrival").type))
    at = table.schema.get_field_index("verdict")
    odd = table.slice(3, 1).set_column(at, "verdict", pa.array(["MAYBE\n"], pa.string()))
    return pa.concat_tables([table.slice(1, 1), table.slice(1, 1), changed, odd, table.slice(4)])


def test_a_good_run_agrees_and_what_is_done_to_it_later_is_named(traffic, tmp_path, spark):
    pipeline(tmp_path, traffic)
    (tmp_path / "out" / "audit" / "missing").mkdir(parents=True)
    (tmp_path / "out" / "_onefold.json").write_text('{"format": 1, "kind": "run", "owns": {"audit": null}}')
    done = onefold("run", "pipeline.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["audit"]["agrees"] is True
    assert "source and sink agree: 400 rows, fingerprint " in done.stderr
    assert not (tmp_path / "out" / "audit").exists()
    (first,) = (tmp_path / "out" / "firsts").glob("*.parquet")
    (repeat,) = (tmp_path / "out" / "repeats").glob("*.parquet")
    lost = pq.read_table(repeat).num_rows
    rewrite(first, tampered)
    repeat.unlink()
    (reject,) = (tmp_path / "out" / "rejects").glob("*.parquet")
    (reject.with_name(f".{reject.name}.crc")).unlink(missing_ok=True)
    reject.rename(tmp_path / "out" / "unsure" / "moved.parquet")
    for place, said in ((traffic, "overlaps the source"), (tmp_path / "out" / "x", "overlaps the run")):
        wrong = onefold("audit", tmp_path / "out", "--out", place, cwd=tmp_path)
        assert (wrong.returncode, said in wrong.stderr) == (2, True), wrong.stderr
    for _ in range(2):
        bad = onefold("audit", tmp_path / "out", "--out", tmp_path / "wrong", cwd=tmp_path)
        assert bad.returncode == 1, bad.stderr
    assert pq.read_table(tmp_path / "wrong" / "surplus").num_rows == 2
    (tmp_path / "wrong" / "surplus" / "mine").write_text("mine")
    wrong = onefold("audit", tmp_path / "out", "--out", tmp_path / "wrong", cwd=tmp_path)
    assert (wrong.returncode, "'surplus/mine'" in wrong.stderr) == (2, True), wrong.stderr
    assert f"SOURCE AND SINK DO NOT AGREE: {lost + 2:,} rows missing, 2 surplus, 1 ids twice" in bad.stderr
    assert "in the source, not published" in bad.stderr
    assert "counts more than once" in bad.stderr
    assert " REPEAT seen, the rows 0\n" in bad.stderr
    assert "the books say 0 MAYBE?" in bad.stderr
    assert " rows that are REJECT lie in unsure/\n" in bad.stderr


def test_the_batches_of_a_stream_are_audited_by_its_pipeline(traffic, tmp_path, spark):
    pipeline(tmp_path, traffic, mode="stream")
    streamed = onefold("run", "pipeline.toml", cwd=tmp_path)
    assert streamed.returncode == 0, streamed.stderr
    good = onefold("audit", "pipeline.toml", "--json", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    told = json.loads(good.stdout)
    assert (told["agrees"], told["books"], told["source"], told["published"]) == (True, [], 400, 400)
    refused = onefold("audit", tmp_path / "out", cwd=tmp_path)
    assert refused.returncode == 2
    assert "is the output of a stream" in refused.stderr


def test_a_secret_of_the_settings_is_not_kept_and_the_audit_asks_for_the_file_that_has_it(traffic, tmp_path, spark):
    pipeline(tmp_path, traffic)
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text().replace("[judge]", '[source.options]\npassword = "hunter2"\n[judge]'))
    assert onefold("run", "pipeline.toml", cwd=tmp_path).returncode == 0
    assert "hunter2" not in (tmp_path / "out" / "run.json").read_text()
    refused = onefold("audit", "out", cwd=tmp_path)
    assert refused.returncode == 2
    assert "out: run.json keeps no secrets, so it lacks source.options.password: give the TOML file" in refused.stderr
    assert onefold("audit", "pipeline.toml", cwd=tmp_path).returncode == 0


def test_what_is_no_run_is_refused_in_one_line(traffic, tmp_path, spark):
    (tmp_path / "empty").mkdir()
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand" / "run.json").write_text('{"settings": {}}')
    pipeline(tmp_path, traffic)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").touch()
    for words, said in [
        ((tmp_path / "empty",), "is not a complete run: it holds no run.json"),
        ((tmp_path / "by-hand",), "does not name the run's source"),
        (("pipeline.toml", "--out", tmp_path / "full"), "no audit of onefold signed it: it holds 'mine'"),
    ]:
        done = onefold("audit", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) <= 2
