"""``onefold diff``: what it says, writes and repairs, and what it refuses."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.cli.mistakes import format_of
from tests.lib.commands import here as onefold


def folder_of(path, rows):
    path.mkdir(parents=True)
    pq.write_table(pa.table({"id": [r[0] for r in rows], "name": [r[1] for r in rows]}), path / "x.parquet")
    return path


def test_the_command_finds_writes_and_repairs_and_then_finds_nothing_to_copy(spark, tmp_path):
    """B is a table of JSON with a column that is folders."""
    (tmp_path / "a").mkdir()
    rows = {"id": [1, 2, 3, 4], "name": ["x", "two\nlines", "z", "w"], "day": [1, 2, 1, 1]}
    pq.write_table(pa.table(rows), tmp_path / "a" / "x.parquet")
    (tmp_path / "b" / "day=1").mkdir(parents=True)
    lines = ({"id": id, "name": name} for id, name in ((1, "x"), (3, "z"), (4, "other"), (5, "v")))
    (tmp_path / "b" / "day=1" / "x.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("of another comparison")
    (out / "diff.json").write_text('{"equal": true}')  # whose folder this is, also without a signature
    found = onefold("diff", a, b, "--key", "id", "--out", out, "--repair", "--json", "--samples", 0, cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert json.loads((out / "diff.json").read_text())["only_a"] == 1
    assert not (out / "report.html").exists()
    assert pq.read_table(out / "have").to_pylist() == [{"id": 2, "name": "two\nlines", "day": 2}]
    assert pq.read_table(out / "need").to_pylist() == [{"id": 5, "name": "v", "day": 1}]
    assert pq.read_table(out / "differing")["id"].to_pylist() == [4]
    told = json.loads(found.stdout)
    assert (told["copied"], told["only_a"], told["only_b"], told["differing"]) == (1, 0, 1, 1)
    assert told["shown"] == {}
    assert "repaired: 1 rows were appended to B" in found.stderr
    assert "they differ: 0 only in A, 1 only in B, 1 keys with other content" in found.stderr
    assert {place.name for place in b.iterdir() if place.is_dir()} == {"day=1", "day=2"}
    (copied,) = (b / "day=2").glob("*.json")
    assert json.loads(copied.read_text()) == {"id": 2, "name": "two\nlines"}
    again = onefold("diff", a, b, "--key", "id", "--repair", "--json", cwd=tmp_path)
    assert again.returncode == 1
    assert (json.loads(again.stdout)["copied"], json.loads(again.stdout)["shown"]["only_b"]) == (0, [{"id": 5}])
    assert "only in B: id 5" in again.stderr


def test_doubled_and_changed_rows_are_told_apart_and_named_on_the_page(spark, tmp_path):
    rows = [(id, "paid" if id != 4 else "a" * 90) for id in range(1, 7)]
    a = folder_of(tmp_path / "a", rows)
    changed = {3: "cancelled", 4: "a" * 90 + "!"}
    b = folder_of(tmp_path / "b", [(id, changed.get(id, name)) for id, name in [*rows, rows[1], rows[1], rows[4]]])
    done = onefold("diff", a, b, "--key", "id", "--out", tmp_path / "out", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (document["differing"], document["doubled"], document["only_a"], document["only_b"]) == (2, 2, 0, 0)
    assert "2 keys with other content, 2 keys more often in one of them" in done.stderr
    assert "differs: id 3: name: paid -> cancelled" in done.stderr
    assert "a -> ...aaaaaaaaaaaa!" in done.stderr
    assert "doubled: id 2: 1 in A, 3 in B" in done.stderr
    doubled = pq.read_table(tmp_path / "out" / "doubled").to_pylist()
    assert {row["id"]: (row["rows_a"], row["rows_b"]) for row in doubled} == {2: (1, 3), 5: (1, 2)}
    assert onefold("report", tmp_path / "out", cwd=tmp_path).returncode == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "id 3: name: paid -&gt; cancelled" in page
    assert "id 5: 1 in A, 2 in B" in page


def test_equal_tables_of_other_formats_are_equal(spark, tmp_path):
    a = folder_of(tmp_path / "a", [(1, "x"), (2, None)])
    (tmp_path / "b.csv").write_text("id;name\n2;\n1;x\n")
    done = onefold("diff", a, tmp_path / "b.csv", "--option-b", "sep=;", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "equal: 2 rows, fingerprint " in done.stderr


def test_the_format_is_that_of_the_files_that_spark_sees(tmp_path):
    folder_of(tmp_path / "t", [(1, "x")])
    for hidden in (".t.onefold-index", "_onefold_repair"):
        (tmp_path / "t" / hidden).mkdir()
        (tmp_path / "t" / hidden / "index.json").touch()
    assert format_of(str(tmp_path / "t")) == "parquet"
    assert format_of(str(tmp_path / "t" / "_onefold_repair" / "index.json")) == "json"


def test_what_cannot_be_read_compared_or_repaired_is_refused_in_one_line(spark, tmp_path):
    a = folder_of(tmp_path / "a", [(1, "x"), (2, "y")])
    b = folder_of(tmp_path / "b", [(1, "x")])
    folder_of(tmp_path / "c" / "have", [(1, "x")])  # as an outcome has it, but nobody signed it
    for words, said in [
        ((a, tmp_path / "nowhere"), "there is nothing at"),
        ((a, b / "x.parquet", "--repair"), "is a single file"),
        ((a, f"{b}/*", "--repair"), "cannot be appended to"),
        ((a, b, "--format-b", "delta", "--repair"), "there is no Delta table at"),
        ((a, b, "--key", "nope"), "no column 'nope'"),
        ((a, b, "--option-a", "x"), "NAME=VALUE"),
        (("ws://127.0.0.1:1", b), "the peer is given second"),
        ((a, b, "--out", tmp_path / "c"), "holds 'have'"),
        ((a, b, "--out", tmp_path / "a"), "overlaps A"),
        ((a, b, "--out", tmp_path / "b" / "out"), "overlaps B"),
        ((a, b / ".." / "a", "--repair"), "overlaps A"),
    ]:
        done = onefold("diff", *words, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
    assert [path.name for path in b.iterdir()] == ["x.parquet"]
    assert [path.name for path in (tmp_path / "c").rglob("*.parquet")] == ["x.parquet"]
