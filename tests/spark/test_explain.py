"""`onefold explain`, over runs whose every row is known: they are written by hand."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onefold.cli.explain import explained
from onefold.errors import Misuse
from onefold.spark.audits import published
from onefold.spark.explanations import explain, naming, read_target
from onefold.spark.files import Place
from tests.lib.commands import here as onefold

pytestmark = pytest.mark.usefixtures("spark")

NUMBERS = ("timestamp", "sequence", "previous_timestamp", "previous_sequence", "arrival")
EVIL = "[red]\x1b[2J\u202e<b>"


def chain_rows(*rows):
    """(publisher, chain, timestamp, sequence, arrival, verdict, reason)"""
    names = ("publisher", "chain", "timestamp", "sequence", "arrival", "verdict", "reason")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    types = {name: pa.int64() if name in NUMBERS else pa.string() for name in names}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    size = len(rows)
    return (
        table.append_column("stream", pa.array(["s"] * size, pa.string()))
        .append_column("partition", pa.array([0] * size, pa.int32()))
        .append_column("previous_timestamp", pa.array([None] * size, pa.int64()))
        .append_column("previous_sequence", pa.array([None] * size, pa.int64()))
        .append_column("payload", pa.array(["x" * 1_000] * size, pa.string()))
    )


def put(table, folder):
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("explained") / "a run"
    put(chain_rows(("p", "c1", 10, 0, 1_000, "FIRST", "new_chain"), ("p", "c1", 11, 2, 2_000, "FIRST", "in_order"),
                   ("q", "c2", 10, 0, 1_500, "FIRST", "new_chain"), (EVIL, "c3", 5, 0, 7, "FIRST", "new_chain")),
        out / "firsts")  # fmt: skip
    put(chain_rows(("p", "c1", 10, 0, 1_340, "REPEAT", "seen"), ("p", "c1", 10, 0, 1_200, "REPEAT", "seen")),
        out / "repeats")  # fmt: skip
    put(chain_rows(("p", "c1", None, 0, 3_000, "REJECT", "bad_number")), out / "rejects")
    gaps = {"stream": ["s", "s"], "partition": pa.array([0, 0], pa.int32()), "publisher": ["p", "q"],
            "chain": ["c1", "c2"], "lower_timestamp": [20, 30], "lower_sequence": [1, 0],
            "upper_timestamp": [25, 30], "upper_sequence": [4, 9]}  # fmt: skip
    put(pa.table(gaps), out / "gaps")
    settings = {"source": {"path": "in"}, "publish": {"path": "out"}}
    (out / "run.json").write_text(json.dumps({"complete": True, "engine": "chains", "settings": settings}))
    return out


def test_every_copy_of_a_message_is_told_with_its_arrival_verdict_and_rule(run, tmp_path):
    done = onefold("explain", run, "p", "10", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    told = [(row["verdict"], row["reason"], row["arrival"], row["found_in"]) for row in found["shown"]]
    assert told == [("FIRST", "new_chain", 1_000, "firsts"), ("REPEAT", "seen", 1_200, "repeats"),
                    ("REPEAT", "seen", 1_340, "repeats")]  # fmt: skip
    assert [row["rule"] for row in found["shown"]][
        1
    ] == "Its number was seen, or lies in a range that has been seen completely."
    assert found["shown"][2]["arrived"] == "1970-01-01 00:00:01.340 (+340 ms)"
    assert found["shown"][0]["key"] == {"stream": "s", "partition": 0, "publisher": "p", "chain": "c1"}
    assert len(found["shown"][0]["more"]["payload"]) == 200
    assert found["sentence"] == "3 rows: 1 FIRST, 2 REPEAT"


def test_a_chain_is_told_with_what_never_arrived(run, tmp_path):
    done = onefold("explain", run, "--key", "chain=c1", cwd=tmp_path)
    assert done.returncode == 0
    assert "5 rows: 2 FIRST, 2 REPEAT, 1 REJECT; 1 range is missing" in done.stderr
    assert "20|1" in done.stderr
    assert "25|4" in done.stderr
    assert done.stdout == ""


WORDS = {
    ("c1", "11|2"): (1, 0),
    ("c1", "11|3"): (0, 0),
    ("c1", "22"): (0, 1),  # nobody sent it: it lies in a range that is missing
    ("c1", "20|1"): (0, 0),  # the lower end was seen
    ("c1", "25|4"): (0, 1),
    ("c1", "timestamp=25", "sequence=4"): (0, 1),
    ("c1", "timestamp=25", "sequence=5"): (0, 0),
    ("c1", "sequence=4"): (0, 0),  # half a number, and the lower half, lies nowhere
    ("c2", "30"): (0, 1),  # within one millisecond
    ("chain=c2",): (1, 1),
    ("payload=" + "x" * 1_000, "c2"): (1, 0),  # no column that ranges have
    ("10",): (4, 0),
    ("no=such",): (0, 0),  # no column of this name: a word like any other
    ("9" * 40,): (0, 0),
}


def test_all_words_must_match_rows_or_ranges(spark, run):
    """All questions at once, as conditions: a job for the rows and one for the ranges."""
    rows, gaps = published(spark, Place(spark, str(run))), spark.read.parquet(str(run / "gaps"))
    asked = [read_target(rows, naming(rows, None)[1], words, {}) for words in WORDS]
    inside = [wanted.in_ranges(gaps) for wanted in asked]
    matching = rows.agg(*(F.count_if(wanted.condition(rows)) for wanted in asked)).collect()[0]
    missing = gaps.agg(*(F.count_if(F.lit(False) if each is None else each) for each in inside)).collect()[0]
    assert dict(zip(WORDS, zip(matching, missing, strict=True), strict=True)) == WORDS


def test_nothing_found_is_exit_1_and_names_the_columns(run, tmp_path):
    done = onefold("explain", run, "nobody", cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing matches" in done.stderr
    assert "stream, partition, publisher, chain, timestamp, sequence" in done.stderr


def test_what_is_shown_is_bounded_and_foreign_words_are_only_text(run, tmp_path):
    done = onefold("explain", run, "s", "--limit", 2, cwd=tmp_path)
    assert "and 5 more rows" in done.stderr
    assert "[red]?[2J?<b>" in done.stderr
    assert "\x1b[2J" not in done.stderr


def test_what_cannot_be_asked_is_refused(spark, run, tmp_path):
    for words, said in (
        ((), "nothing is asked for"),
        (("--key", "nope=1"), "no column 'nope'"),
        (("--key", "chain"), "must be COLUMN=VALUE"),
        (("--key", "chain=1", "--key", "chain=2"), "once for a column"),
    ):
        done = onefold("explain", run, *words, cwd=tmp_path)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert onefold("explain", tmp_path, "x", cwd=tmp_path).returncode == 2
    unmarked = tmp_path / "none"
    put(pa.table({"a": [1]}), unmarked / "messages")
    (unmarked / "run.json").write_text("{}")
    with pytest.raises(Misuse, match="strategy"):
        explain(spark, str(unmarked), ["1"])


def test_a_stream_names_the_batch_and_a_stations_frames_are_known_by_their_columns(spark, tmp_path):
    rows = {"frame": ["f1", "f1"], "station": ["north", "south"], "time_ms": [5, 9], "kind": ["data"] * 2,
            "device": ["d"] * 2, "fcnt": [7, 7], "verdict": ["FIRST", "REPEAT"],
            "reason": ["new_frame", "heard_elsewhere"]}  # fmt: skip
    put(pa.table(rows), tmp_path / "batches" / f"{3:012}" / "messages")
    (tmp_path / "stream.json").write_text("{}")
    found = explain(spark, str(tmp_path), ["d", "7"])
    assert found["engine"] == "lorawan"
    assert [(row["source"], row["found_in"]) for row in found["shown"]] == [
        ("north", "batches/000000000003/messages"),
        ("south", "batches/000000000003/messages"),
    ]


def test_a_question_can_come_from_any_thread(run):
    """As those of the console do: Spark's active session is that of one thread."""
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(explained, str(run), ["c1", "22"]).result()["missing_ranges"] == 1


def test_rows_of_no_known_shape_are_found_by_any_column(spark, tmp_path):
    rows = {"who": [b"\xff\x01", b"\xff\x02"], "n": ["1", "2"], "at": pa.array([1.5, 2.5]), "verdict": ["FIRST"] * 2}
    put(pa.table({**rows, "reason": ["x", "y"]}), tmp_path / "messages")
    (tmp_path / "run.json").write_text("{}")
    found = explain(spark, str(tmp_path), ["ff02", "2.5"])
    assert [row["message"]["n"] for row in found["shown"]] == ["2"]
