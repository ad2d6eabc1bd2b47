"""Mistakes that the commands find without starting Spark, each with the command as it may have been meant."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.cli.mistakes import refuse_mistakes
from onefold.errors import Misuse
from onefold.spark import IdColumns
from onefold.spark.peek import PEEK_ROWS
from tests.lib.commands import here, process


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"event_id": "a"}) + "\n" + json.dumps({"event_id": "b", "h": {}})
    )
    (tmp_path / "events.csv").write_text("event_id,ts\na,1\n")
    (tmp_path / "semicolon.csv").write_text("event_id;ts\na;1\n")
    (tmp_path / "two words.csv").write_text("event_id,ts\na,1\n")
    (tmp_path / "notes.txt").write_text("a\n")
    (tmp_path / "garbage.jsonl").write_bytes(bytes(range(256)))
    (tmp_path / "nothing").mkdir()
    (tmp_path / "days" / "day=1").mkdir(parents=True)
    pq.write_table(pa.table({"event_id": ["a"]}), tmp_path / "days" / "day=1" / "x.parquet")
    for name, kind in (("a", pa.int64()), ("b", pa.string())):
        table = pa.table({"id": pa.array([1]).cast(kind), "sum": [2.5], "on": [True]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "out" / "firsts").mkdir(parents=True)
    pq.write_table(pa.table({"event_id": ["a"]}), tmp_path / "out" / "firsts" / "x.parquet")
    source, publish = {"path": str(tmp_path / "events.csv"), "format": "csv"}, {"path": str(tmp_path / "out")}
    settings = {"source": source, "publish": publish, "judge": {"engine": "ids", "id": ["evnt_id"]}}
    (tmp_path / "out" / "run.json").write_text(json.dumps({"tally": {}, "settings": settings}))
    for name, path in (("p", "events.csv"), ("q", "evnts.csv")):
        judge = '[judge]\nengine = "ids"\nid = ["evnt_id"]\n'
        text = f'[source]\npath = "{path}"\nformat = "csv"\n{judge}[publish]\npath = "new"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


TRY = "; try: onefold "
MISTAKES = [
    ("check nowhere --id event_id", "there is nothing at nowhere"),
    ("check evnts.csv --id event_id", f"did you mean events.csv{TRY}check events.csv --id event_id"),
    (
        "check events.jsonl --id evnt_id",
        "no column 'evnt_id' (id), did you mean 'event_id': the columns are event_id, h"
        f"{TRY}check events.jsonl --id event_id",
    ),
    ("check events.jsonl --id=x,evnt_id --order h", "no column 'x' (id): the columns are event_id, h"),
    ("check events.csv --id id", f"no column 'id' (id): the columns are event_id, ts{TRY}check events.csv --id"),
    ("check days --id nothing", "no column 'nothing' (id): the columns are event_id, day;"),
    ("check events.csv --key event_id --sequence seq", "no column 'seq' (sequence): the columns are event_id, ts;"),
    ("check events.csv --id ts --order event_id", "column 'event_id' is text without a whole number or a time in it"),
    ("check a.parquet --key id --number on", "column 'on' (timestamp) is boolean, must be whole numbers or times"),
    ("check events.csv --id event_id --format cvs", f"did you mean 'csv'{TRY}check events.csv --id event_id --format"),
    ("check events.csv --idd event_id", f"{TRY}check events.csv --id event_id"),
    ("check events.csv", "what names a message? The columns are event_id, ts. An id: --id event_id; a source"),
    ("check events.csv --id event_id --floor open --memory highest", "--memory cannot be combined with --id"),
    ("check events.csv --id event_id --floor first", "--floor cannot be combined with --id"),
    ("check events.csv --id event_id --gap-count-max 5", "--gap-count-max cannot be combined with --id"),
    ("check events.csv --producer event_id --floor first", "--floor cannot be combined with --producer"),
    ("check events.csv --order ts", "--order needs --id or --producer"),
    ("window events.csv --id event_id", f"no column 'arrival' (time): the columns are event_id, ts{TRY}window"),
    ("window events.csv --id evnt --time ts", f"{TRY}window events.csv --id event_id --time ts"),
    ("window events.csv --id event_id --key ts", "--key cannot be combined with --id"),
    (
        "window events.csv --time ts --key event_id --chain ts --number event --previous ts",
        "no column 'event' (timestamp), did you",
    ),
    ("diff a.parquet c.parquet", "there is nothing at c.parquet, did you mean "),
    ("diff a.parquet b.parquet --key ids", "no column 'ids' in the first table, did you mean 'id': the columns are id"),
    ("diff a.parquet b.parquet --key id", "column 'id' is bigint in the first table and string in the second"),
    ("diff a.parquet events.csv --key id", "column 'id' is only in the first table"),
    ("run q.toml", "source.path: there is nothing at "),
    (
        "run p.toml",
        "no column 'evnt_id' (id), did you mean 'event_id': the columns are event_id, ts; name another: id =",
    ),
    ("audit ot", f"there is nothing at ot, did you mean out{TRY}audit out"),
    ("audit out", "no column 'evnt_id' (id), did you mean 'event_id'"),
    ("audit days", "days is not a complete run: it holds no run.json"),
    ("audit p.toml", "there is nothing at "),
    ("explain ot a", f"{TRY}explain out a"),
    ("explain days a", "days is not a complete run: it holds no run.json or stream.json"),
    ("explain out", "nothing is asked for: give a value of event_id, verdict, reason"),
    ("explain out --key evnt_id=a", f"{TRY}explain out --key event_id=a"),
    ("report days", "days holds no run.json, stream.json or diff.json: it is not a complete run"),
    ("check nix.db#db.x --id id", "nix.db#db.x: there is no catalogue at nix.db"),
    ("check nowhere --id id --format delta", "there is no Delta table at nowhere"),
    ("check x --id id --format iceberg", "x names no Iceberg table: it must be like lake/catalog.db#db.events"),
    ("diff nowhere.db#a.b events.csv", "nowhere.db#a.b: there is no catalogue at nowhere.db"),
    ("check", f"Missing argument 'path'. (see onefold check --help){TRY}check events.jsonl --id event_id"),
    ("check two words.csv --id event_id", f"{TRY}check 'two words.csv' --id event_id"),
    ("check garbage.jsonl --id event_id", "no column 'event_id' (id): no row in it could be read"),
    ("check nothing --id event_id", "nothing is a folder without files"),
    ("diff a.parquet nothing --key id", "nothing is a folder without files"),
    ("check notes.txt --id event_id", "notes.txt is not a Parquet file: name its format, --format csv, or format ="),
    ("check events.csv --id event_id --format parquet", "events.csv is a file of csv: --format csv"),
    ("check semicolon.csv --id event_id", "one column, 'event_id;ts': name the separator, --option 'sep=;'"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES)
def test_a_mistake_is_one_line_and_starts_no_spark(folder, words, line):
    done = here(*words.split(), cwd=folder)
    assert done.returncode == 2, done.stderr
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "starting Spark" not in done.stderr


@pytest.mark.parametrize("words", [MISTAKES[1][0], MISTAKES[2][0], "diff a.parquet b.parquet --key ids", "run p.toml"])
def test_where_no_java_could_start_a_mistake_is_found_all_the_same(folder, words):
    done = process(*words.split(), cwd=folder, JAVA_HOME="/nowhere", PATH="/nowhere")
    assert (done.returncode, "did you mean" in done.stderr) == (2, True), done.stderr


def test_a_column_that_begins_further_down_is_no_mistake(folder):
    lines = [{"event_id": "a"}] * 2_000 + [{"event_id": "a", "ts": "2024-01-01T00:00:00Z", "shop": {"name": "x"}}]
    (folder / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for words in ("--id shop.name --order ts", "--id event_id --payload ts"):
        done = here("check", "long.jsonl", *words.split(), "--order", "nothing", cwd=folder)
        assert "no column 'nothing' (order)" in done.stderr
    table = refuse_mistakes(str(folder / "long.jsonl"), "json", IdColumns(id=("shop.name",), order="ts"))
    assert table is not None
    assert table.complete
    (folder / "just.jsonl").write_text(
        '{"event_id": "a"}\n' * PEEK_ROWS + '{"shop": "x"}\n'
    )  # only the last one has it
    assert refuse_mistakes(str(folder / "just.jsonl"), "json", IdColumns(id=("shop",))) is not None


def test_files_that_cannot_be_looked_at_are_left_to_spark(folder, monkeypatch):
    (folder / "bad.parquet").write_bytes(b"no parquet")
    (folder / "wide.csv").write_text("a||b\n1||2\n")
    columns = IdColumns(id=("nothing",))
    assert refuse_mistakes(str(folder / "bad.parquet"), "parquet", columns) is None
    assert refuse_mistakes(str(folder / "wide.csv"), "csv", columns, {"sep": "||"}) is None
    assert refuse_mistakes(str(folder / "events.csv"), "csv", columns, {"multiLine": "true"}) is None
    assert refuse_mistakes("s3://bucket/a", "parquet", columns) is None
    assert refuse_mistakes("dbfs:/a", "parquet", columns) is None
    assert refuse_mistakes("nowhere", "parquet", columns, master="yarn") is None
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert refuse_mistakes("nowhere", "parquet", columns) is None
    monkeypatch.delenv("HADOOP_CONF_DIR")
    assert refuse_mistakes(str(folder / "*.csv"), "csv", columns) is None
    with pytest.raises(Misuse, match="no column 'nothing'"):
        refuse_mistakes(str(folder / "events.csv"), "csv", columns, {"sep": ";"})


def test_the_format_of_a_file_url_is_that_of_its_files(folder):
    done = here("check", f"file://{folder}/events.csv", "--id", "evnt_id", cwd=folder)
    assert "did you mean 'event_id': the columns are event_id, ts" in done.stderr
    (folder / "lines").mkdir()
    (folder / "lines" / "1.jsonl").write_text('{"event_id": 1}')
    done = here("check", f"file:{folder}/lines", "--id", "evnt_id", cwd=folder)
    assert "did you mean 'event_id': the columns are event_id;" in done.stderr


def test_the_files_of_a_pattern_that_the_shell_expanded_are_named_by_the_pattern(folder):
    files = [f"days/part-{i}.jsonl" for i in range(300)]
    for file in files:
        (folder / file).touch()
    done = here("check", *files, "--id", "event_id", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.endswith(f"... (see onefold check --help){TRY}check 'days/part-*.jsonl' --id event_id\n")
    assert len(done.stderr) < 500
    done = here("check", "events.csv", "events.jsonl", "--id", "event_id", cwd=folder)
    assert done.stderr == ("onefold: Got unexpected extra argument(s) (events.jsonl) (see onefold check --help)\n")
    assert here("check", *["long name"] * 3_000, cwd=folder).returncode == 2


@pytest.mark.parametrize("words", [("explore", "--message", "s3://b/x"), ("publish", "a", "--name", "gs://b/x")])
def test_what_only_looks_like_the_url_of_a_store_is_no_path(words, tmp_path):
    assert "on this machine" not in here(*words, cwd=tmp_path).stderr
    assert "on this machine" not in here("explore", "x:y", "--message", '{"file": "s3://b/x"}', cwd=tmp_path).stderr


@pytest.mark.parametrize("command", ["ingest log", "console --run ."])
def test_a_token_file_that_is_not_there_is_wrong_usage(command, tmp_path):
    done = here("serve", *command.split(), "--token-file", "nope", cwd=tmp_path)
    assert (done.returncode, "'nope' does not exist" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [("simulate", "s3://b/x"), ("run", "s3a://b/p.toml"), ("demo", "--out=gs://b/x"), ("serve", "desk", "dbfs:/x")],
)
def test_the_url_of_a_store_is_refused_where_a_path_of_this_machine_is_meant(words, tmp_path):
    done = here(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "on this machine" in done.stderr
    assert not list(tmp_path.iterdir())
