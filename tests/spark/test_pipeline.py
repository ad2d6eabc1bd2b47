"""The commands that start Spark, as a user starts them."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.producers.topic import Topics
from onefold.testing.faults import NONE, Faults
from onefold.testing.traffic import Traffic, make, write
from tests.lib import commands
from tests.lib.commands import here as onefold
from tests.lib.examples import proof

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "t"
    write(make(Traffic(rows=3_000, chains=20, faults=Faults(malformed=0.01))), folder)
    return folder


def pipeline(folder, source, extra=""):
    path = folder / "pipeline.toml"
    path.write_text(f'[source]\npath = "{source}"\n[judge]\nfloor = "open"\n{extra}[publish]\npath = "out"\n')
    return path


@pytest.mark.parametrize("onefold", [commands.here, proof(commands.process)])
def test_the_demo_ends_with_balanced_books_and_the_truth_found(tmp_path, onefold):
    done = onefold("demo", "--rows", 5_000, "--chains", 50, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["tally"]["balanced"] is True
    assert figures["truth"]["counted_twice"] == figures["truth"]["lost"] == 0
    events = figures["events"]
    assert [events[name] for name in ("counted_twice", "lost", "perfect")] == [0, 0, True]
    counts = {line["reason"]: line["count"] for line in events["tally"]["reasons"]}
    assert counts["conflict"]
    assert sum(counts.values()) == 500
    assert f"the books balance: 500 in = {counts['new']} first + {counts['seen']} repeat" in done.stderr
    assert "the books balance: 5,000 in =" in done.stderr
    assert "source and sink agree: 5,000 rows, fingerprint " in done.stderr
    assert figures["audit"]["agrees"] is True
    assert "WARN" not in done.stderr
    assert (tmp_path / "onefold-demo" / "run" / "run.json").exists()
    report = tmp_path / "onefold-demo" / "run" / "report.html"
    assert done.stderr.endswith(f"report: {report}\n")
    assert "Nothing lost, nothing counted twice" in report.read_text(encoding="utf-8")


def test_check_finds_in_the_file_of_the_lite_demo_what_the_engines_alone_find(tmp_path):
    demo = onefold("demo", "--lite", "--rows", 10_000, "--out", tmp_path / "demo", "--json", cwd=tmp_path)
    lite = json.loads(demo.stdout)
    for engine in ("ids", "producers", "chains"):
        found = json.loads(
            onefold("check", lite["file"], *lite[engine]["check"].split(), "--json", cwd=tmp_path).stdout
        )
        for verdict in ("in", "first", "repeat", "unsure", "reject"):
            assert found["tally"][verdict] == lite[engine]["tally"][verdict], (engine, verdict)
        assert found["missing_ranges"] == lite[engine]["missing_ranges"]


def test_run_publishes_and_check_then_finds_the_firsts_clean_of_repeats(traffic, tmp_path):
    pipeline(tmp_path, traffic / "messages")
    done = onefold("run", "pipeline.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tally"]["in"] == 3_000
    assert told["report"] == str(tmp_path / "out" / "report.html")
    assert "Nothing lost, nothing counted twice" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    pipeline(tmp_path, traffic / "messages", '[report]\npage = "off"\n')
    strict = onefold("run", "pipeline.toml", "--strict", cwd=tmp_path)
    assert strict.returncode == 1, strict.stderr
    assert not (tmp_path / "out" / "report.html").exists()
    assert "figures" not in json.loads((tmp_path / "out" / "run.json").read_text())
    checked = onefold("check", tmp_path / "out" / "firsts", "--json", cwd=tmp_path)
    assert json.loads(checked.stdout)["tally"]["repeat"] == 0


def test_check_exits_1_on_findings_and_0_on_a_clean_set(traffic, tmp_path):
    found = onefold("check", traffic / "messages", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "repeated messages" in found.stderr
    write(make(Traffic(rows=1_000, chains=5, faults=NONE)), tmp_path / "clean", format="jsonl")
    clean = onefold("check", tmp_path / "clean" / "messages", cwd=tmp_path)
    assert clean.returncode == 0, clean.stderr
    assert "clean: every message is there once" in clean.stderr


def one_line(done, code, *parts):
    assert done.returncode == code, done.stderr
    complaint = [line for line in done.stderr.splitlines() if line.startswith("onefold: ")]
    assert len(complaint) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in complaint[0]


def test_a_wrong_key_is_one_line_and_nothing_is_written(traffic, tmp_path):
    pipeline(tmp_path, traffic / "messages", 'flor = "open"\n')
    one_line(onefold("run", "pipeline.toml", cwd=tmp_path), 2, "judge.flor", '"floor"')
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("data/messages", "data"),
        ("data/messages", "data/messages"),
        ("data/messages", "./data/../data/messages/out"),
        ("link/messages", "data"),
        ("data/*", "file:{}/data"),
    ],
)
def test_an_output_that_overlaps_its_source_is_exit_2_and_the_source_is_kept(traffic, tmp_path, source, output):
    shutil.copytree(traffic / "messages", tmp_path / "data" / "messages")
    (tmp_path / "link").symlink_to("data")
    before = sorted(tmp_path.rglob("*"))
    settings = f'[source]\npath = "{source}"\n[publish]\npath = "{output.format(tmp_path)}"\n'
    for mode in ("", 'mode = "stream"\n'):
        (tmp_path / "p.toml").write_text(settings.replace("[publish]", f"{mode}[publish]"))
        done = onefold("run", "p.toml", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "overlaps source.path" in done.stderr
        (tmp_path / "p.toml").unlink()
        assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_source_is_one_line(tmp_path):
    pipeline(tmp_path, "nowhere")
    one_line(onefold("run", "pipeline.toml", cwd=tmp_path), 2, "nowhere")
    assert not (tmp_path / "out").exists()


def test_a_column_of_the_wrong_type_is_one_line(traffic, tmp_path):
    table = pq.read_table(traffic / "messages")
    spoilt = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", pa.array([1.5] * table.num_rows))
    pq.write_table(spoilt, tmp_path / "x.parquet")
    pipeline(tmp_path, "x.parquet")
    one_line(onefold("run", "pipeline.toml", cwd=tmp_path), 2, "'timestamp'", "double")
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_one_line_and_exit_3(traffic, tmp_path):
    (tmp_path / "file").write_text("")
    path = pipeline(tmp_path, traffic / "messages")
    path.write_text(path.read_text().replace('path = "out"', 'path = "file/out"'))
    one_line(onefold("run", "pipeline.toml", cwd=tmp_path), 3, "file/out")


def test_check_judges_the_producers_of_a_dump_and_of_a_log(tmp_path):
    dump = pa.table(
        {"pid": ["a", "a", "a", "b"], "seq": [0, 1, 1, 2], "at": [1, 2, 3, 4], "body": ["x", "y", "z", "x"]}
    )
    (tmp_path / "dump").mkdir()
    pq.write_table(dump, tmp_path / "dump" / "d.parquet")
    words = ["--producer", "pid", "--sequence", "seq", "--order", "at", "--payload", "body", "--json"]
    found = onefold("check", tmp_path / "dump", *words, cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert json.loads(found.stdout)["findings"] == ["1 rejected row", "1 missing range of 2 messages"]
    with Topics(tmp_path / "log") as topics:
        topics.topic("orders").publish("p", [(0, b"x"), (1, b"y")])
    clean = onefold("check", tmp_path / "log" / "orders", "--producer", "producer", cwd=tmp_path)
    assert clean.returncode == 0, clean.stderr
    one_line(onefold("check", "x", "--memory", "highest", cwd=tmp_path), 2, "--memory", "--producer")


EVENTS = ("--key", "user", "--timestamp", "ts")
NO_PREVIOUS = ("--sequence", "none", "--previous-timestamp", "none", "--previous-sequence", "none")


@pytest.fixture(scope="module")
def late_events(tmp_path_factory):
    """Twenty thousand different events, one in ten of them late, that name no previous one."""
    folder = tmp_path_factory.mktemp("events") / "events"
    folder.mkdir()
    number = [1_700_000_000_000 + 1_000 * n for n in range(20_000)]
    rows = {
        "user": [f"u{n % 200}" for n in range(20_000)],
        "ts": number,
        "received": [ts + (n % 10 == 3) * 60_000 * (1 + n % 59) for n, ts in enumerate(number)],
    }
    pq.write_table(pa.table(rows), folder / "events.parquet")
    return folder


def test_late_events_without_previous_all_count_and_what_cannot_be_told_is_said(late_events, tmp_path):
    words = (*EVENTS, *NO_PREVIOUS, "--arrival", "received")
    checked = onefold("check", late_events, *words, "--json", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    figures = json.loads(checked.stdout)
    assert (figures["tally"]["first"], figures["tally"]["repeat"], figures["tally"]["unsure"]) == (20_000, 0, 0)
    assert [untold["option"] for untold in figures["cannot_tell"]] == ["previous_timestamp", "timestamp"]
    assert "clean" not in checked.stderr
    assert (
        "what was lost: the rows name no previous message; --previous-timestamp COLUMN would show it" in checked.stderr
    )
    pipeline(tmp_path, late_events, 'key = ["user"]\ntimestamp = "ts"\narrival = "received"\n')
    done = onefold("run", "pipeline.toml", "--strict", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tally"]["first"] == 20_000
    assert json.loads(done.stdout)["absent_columns"] == ["sequence", "previous_timestamp", "previous_sequence"]
    assert 'previous_timestamp = "COLUMN" in [judge] would show it' in done.stderr
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Nothing lost" not in page
    assert "Not known: what was lost" in page
    assert onefold("audit", tmp_path / "out", cwd=tmp_path).returncode == 0


def test_copies_that_bear_another_time_are_not_called_clean(tmp_path):
    rows = {"event_id": [f"e{n % 7}" for n in range(20)], "ts": list(range(1_000, 1_020))}
    pq.write_table(pa.table(rows), tmp_path / "ids.parquet")
    words = ("--key", "event_id", "--timestamp", "ts", *NO_PREVIOUS, "--arrival", "none")
    done = onefold("check", tmp_path / "ids.parquet", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "clean" not in done.stderr
    assert "nothing was found" in done.stderr
    assert "not known: copies that bear another number" in done.stderr


def test_rows_with_an_id_are_judged_by_it_and_the_engine_follows_from_the_columns_that_are_named(tmp_path):
    lines = [{"event_id": f"e{n % 7}", "ts": f"2026-03-01T08:00:{n:02}.323Z", "n": n // 2} for n in range(20)]
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = onefold("check", events, "--id", "event_id", "--order", "ts", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert (result["engine"], result["tally"]["first"], result["tally"]["repeat"]) == ("ids", 7, 13)
    assert "clean" not in done.stderr
    by_number = onefold("check", events, "--key", "event_id", "--sequence", "n", "--json", cwd=tmp_path)
    assert json.loads(by_number.stdout)["engine"] == "producers"
    one_line(
        onefold("check", events, "--id", "event_id", "--key", "n", cwd=tmp_path),
        2,
        "--key cannot be combined with --id",
    )


def test_a_column_that_was_named_and_is_not_there_is_refused_with_the_command_as_it_could_be(late_events, tmp_path):
    done = onefold("check", late_events, *EVENTS, "--previous-timestamp", "before", cwd=tmp_path)
    one_line(done, 2, "no column 'before' (previous_timestamp): the columns are user, ts, received; try: onefold check")
    assert "--key user --timestamp ts --previous-timestamp none" in done.stderr
    pipeline(tmp_path, late_events, 'key = ["user"]\ntimestamp = "ts"\nprevious_timestamp = "before"\n')
    one_line(onefold("run", "pipeline.toml", cwd=tmp_path), 2, 'previous_timestamp = "none" in [judge]')
