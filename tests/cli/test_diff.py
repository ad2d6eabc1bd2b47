"""``onefold diff``: what it says, writes and repairs, and what it refuses."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.commands import here as onefold


def folder_of(path, rows):
    path.mkdir()
    pq.write_table(pa.table({"id": [r[0] for r in rows], "name": [r[1] for r in rows]}), path / "x.parquet")
    return path


def test_the_command_finds_writes_and_repairs_and_then_finds_nothing_to_copy(spark, tmp_path):
    a = folder_of(tmp_path / "a", [(1, "x"), (2, "y"), (3, "z"), (4, "w")])
    b = folder_of(tmp_path / "b", [(1, "x"), (3, "z"), (4, "other"), (5, "v")])
    out = tmp_path / "out"
    found = onefold("diff", a, b, "--key", "id", "--out", out, "--repair", "--json", "--samples", 0, cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert json.loads((out / "diff.json").read_text())["only_a"] == 1
    assert pq.read_table(out / "have").to_pylist() == [{"id": 2, "name": "y"}]
    assert pq.read_table(out / "need").to_pylist() == [{"id": 5, "name": "v"}]
    assert pq.read_table(out / "differing")["id"].to_pylist() == [4]
    told = json.loads(found.stdout)
    assert (told["copied"], told["only_a"], told["only_b"], told["differing"]) == (1, 0, 1, 1)
    assert told["shown"] == {}
    assert "repaired: 1 rows were appended to B" in found.stderr
    assert "they differ: 0 only in A, 1 only in B, 1 keys with other content" in found.stderr
    assert pq.read_table(b)["id"].to_pylist().count(2) == 1
    again = onefold("diff", a, b, "--key", "id", "--repair", "--json", cwd=tmp_path)
    assert again.returncode == 1
    assert (json.loads(again.stdout)["copied"], json.loads(again.stdout)["shown"]["only_b"]) == (0, [{"id": 5}])
    assert "only in B: id 5" in again.stderr


def test_equal_tables_of_other_formats_are_equal(spark, tmp_path):
    a = folder_of(tmp_path / "a", [(1, "x"), (2, None)])
    (tmp_path / "b.csv").write_text("id;name\n2;\n1;x\n")
    done = onefold("diff", a, tmp_path / "b.csv", "--option-b", "sep=;", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "equal: 2 rows, fingerprint " in done.stderr


def test_what_cannot_be_read_compared_or_repaired_is_refused_in_one_line(spark, tmp_path):
    a = folder_of(tmp_path / "a", [(1, "x"), (2, "y")])
    b = folder_of(tmp_path / "b", [(1, "x")])
    for words, said in [
        ((a, tmp_path / "nowhere"), "there is nothing at"),
        ((a, b / "x.parquet", "--repair"), "is a single file"),
        ((a, f"{b}/*", "--repair"), "cannot be appended to"),
        ((a, b, "--format-b", "delta", "--repair"), "cannot be appended to"),
        ((a, b, "--key", "nope"), "no column 'nope'"),
        ((a, b, "--option-a", "x"), "NAME=VALUE"),
        ((a, b, "--out", tmp_path / "a"), "holds 'x.parquet'"),
    ]:
        done = onefold("diff", *words, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
    assert [path.name for path in b.iterdir()] == ["x.parquet"]
