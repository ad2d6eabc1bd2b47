"""The batch jobs end to end: what is published, what is refused, what is left behind."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onefold.errors import Misuse
from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns
from onefold.spark.ingest import SourceSpec
from onefold.tally import Tally
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, score, write
from tests.lib.examples import proof

OPEN = ChainsEngine(floor="open", partitions=2)
OWNS = '{"format": 1, "kind": "run", "owns": {"tally.json": null, "_staging": null}}'
FAULTY = Faults(poisoned=0.3, malformed=0.02, losses=0.02, late_heads=0.2)


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic") / "t"
    write(make(Traffic(rows=4_000, chains=30, faults=FAULTY)), folder)
    return folder


def run(spark, folder, out, judging=OPEN, **options):
    source = SourceSpec(path=str(folder / "messages"), format=options.pop("format", "parquet"))
    return jobs.run(spark, source, judging, str(out), say=lambda step: None, **options)


@pytest.fixture(scope="module")
def finished(spark, traffic, tmp_path_factory):
    """A run of the traffic, and its folder: to be looked at, not changed."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    return run(spark, traffic, folder), folder


@pytest.fixture
def again(finished, tmp_path):
    """A copy of the folder of a finished run, to do something to."""
    shutil.copytree(finished[1], tmp_path / "out")
    return tmp_path / "out"


def offsets(folder):
    return sorted(pq.read_table(folder, columns=["offset"])["offset"].to_pylist())


def test_a_run_finds_the_truth_and_its_books_balance(traffic, finished):
    result, out = finished
    assert score(out, traffic / "truth").perfect
    assert result.tally.balanced
    assert result.tally.received == 4_000
    assert Tally.from_dict(json.loads((out / "tally.json").read_text())) == result.tally
    written = json.loads((out / "run.json").read_text())
    assert written["complete"] is True
    assert written["audit"]["agrees"] is True
    assert written["audit"]["fingerprint_source"] == written["audit"]["fingerprint_published"]
    assert written["missing_ranges"] == pq.read_table(traffic / "truth" / "missing.parquet").num_rows


def test_every_row_is_published_exactly_once_and_nothing_else_is_left(finished):
    _, out = finished
    folders = ["firsts", "repeats", "unsure", "rejects"]
    assert sorted(o for name in folders for o in offsets(out / name)) == list(range(4_000))
    names = {path.name for path in out.iterdir()}
    assert names == {*folders, "gaps", "tally.json", "manifest.jsonl", "run.json", "_onefold.json"}


def test_running_twice_gives_the_same_output(spark, traffic, finished, again):
    first, out = finished
    second = run(spark, traffic, again)
    assert offsets(again / "firsts") == offsets(out / "firsts")
    assert second.tally == first.tally


def test_mark_keeps_every_row_with_its_verdict_and_replaces_the_folders_of_another_strategy(spark, traffic, again):
    result = run(spark, traffic, again, strategy="mark")
    table = pq.read_table(again / "messages")
    assert table.num_rows == 4_000
    counts = {row["values"]: row["counts"] for row in table["verdict"].value_counts().to_pylist()}
    assert counts["FIRST"] == result.audit.ids == result.tally.to_dict()["first"]
    names = {path.name for path in again.iterdir()}
    assert names == {"messages", "gaps", "tally.json", "manifest.jsonl", "run.json", "_onefold.json"}


def test_none_passes_every_row_on_as_it_came(spark, traffic, tmp_path):
    result = run(spark, traffic, tmp_path / "out", strategy="none")
    assert (result.audit.published, result.audit.ids) == (4_000, None)
    came, went = pq.read_table(traffic / "messages"), pq.read_table(tmp_path / "out" / "messages")
    assert went.schema.names == came.schema.names
    assert went.sort_by("offset").equals(came.sort_by("offset").cast(went.schema))


def test_json_lines_with_text_numbers_and_broken_lines_lose_nothing(spark, tmp_path):
    made = make(Traffic(rows=2_000, chains=10, text_numbers=True, faults=FAULTY))
    write(made, tmp_path / "t", format="jsonl")
    with next((tmp_path / "t" / "messages").glob("*.jsonl")).open("a") as file:
        file.write('{"stream": "cut off\n{}\n')
    result = run(spark, tmp_path / "t", tmp_path / "out", format="jsonl")
    reasons = {line["reason"]: line["count"] for line in result.tally.to_dict()["reasons"]}
    assert result.tally.received == 2_002
    assert reasons["malformed"] == 1
    true = made.truth.rows.filter(pa.compute.equal(made.truth.rows["verdict"], "REJECT")).num_rows
    assert result.tally.to_dict()["reject"] == true + 2


def test_csv_is_read_with_its_header(spark, tmp_path):
    (tmp_path / "messages").mkdir()
    rows = ["device,ts,before", "a,5,", "a,6,5", "a,6,5", "a,x,6", "a,9,8"]
    (tmp_path / "messages" / "x.csv").write_text("\n".join(rows) + "\n")
    columns = ChainColumns(
        key=("device",),
        timestamp="ts",
        sequence=None,
        previous_timestamp="before",
        previous_sequence=None,
        arrival=None,
    )
    result = run(spark, tmp_path, tmp_path / "out", ChainsEngine(columns=columns, partitions=1), format="csv")
    assert str(result.tally) == "5 in = 3 first + 1 repeat + 0 unsure + 1 reject"
    gap = {"device": "a", "lower_timestamp": 6, "lower_sequence": 0, "upper_timestamp": 8, "upper_sequence": 0}
    assert result.ranges == [gap]


def test_an_empty_source_is_a_complete_run_of_nothing(spark, traffic, tmp_path):
    empty = pq.read_table(traffic / "messages").slice(0, 0)
    (tmp_path / "messages").mkdir()
    pq.write_table(empty, tmp_path / "messages" / "x.parquet")
    result = run(spark, tmp_path, tmp_path / "out")
    assert str(result.tally) == "0 in = 0 first + 0 repeat + 0 unsure + 0 reject"
    assert pq.read_table(tmp_path / "out" / "firsts").num_rows == 0


def test_check_finds_what_run_finds_and_writes_nothing(spark, traffic, finished):
    source = SourceSpec(path=str(traffic / "messages"))
    checked = jobs.check(spark, source, OPEN, say=lambda step: None)
    assert checked.tally == finished[0].tally
    assert checked.path is None


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(spark, traffic, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(Misuse, match=r"precious\.txt"):
        run(spark, traffic, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def listing(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("strategy", ["drop", "mark", "none"])
def test_a_source_inside_the_output_is_refused_and_not_touched(spark, traffic, tmp_path, strategy):
    shutil.copytree(traffic, tmp_path / "data")
    before = listing(tmp_path)
    with pytest.raises(Misuse, match=r"the output .* overlaps the source"):
        run(spark, tmp_path / "data", tmp_path / "data", strategy=strategy)
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    "names", [["messages"], ["_staging"], ["firsts", "gaps"], ["tally.json"], ["audit", "uplinks"]]
)
def test_a_folder_of_only_such_names_as_a_run_has_is_somebody_elses_without_a_signature(
    spark, traffic, tmp_path, names
):
    for name in names:
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "part-0.parquet").write_text("mine")
    before = listing(tmp_path)
    with pytest.raises(Misuse, match=f"signed it: it holds '{sorted(names)[0]}'"):
        run(spark, traffic, tmp_path / "out")
    assert listing(tmp_path) == before


def test_what_somebody_puts_into_a_runs_folder_is_named_and_never_removed(spark, traffic, again):
    for name in ("mine.txt", "messages/x.parquet", "firsts/mine.txt", "gaps/deep/er/mine.txt"):
        file = again / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
        before = listing(again)
        with pytest.raises(Misuse, match=f"holds '{name.removesuffix('/x.parquet')}'"):
            run(spark, traffic, again)
        assert listing(again) == before
        file.unlink()
        if "messages" in name:
            file.parent.rmdir()
    assert run(spark, traffic, again).tally.balanced


def test_a_run_of_the_version_that_did_not_sign_is_known_by_its_run_json_and_replaced(spark, traffic, again):
    (again / "_onefold.json").unlink()
    run(spark, traffic, again, strategy="mark")
    assert not (again / "firsts").exists()
    (again / "_onefold.json").unlink()
    (again / "run.json").write_text('{"complete": true}')  # whose this is, nobody knows
    with pytest.raises(Misuse, match="no run of onefold signed it"):
        run(spark, traffic, again)
    assert (again / "messages").exists()


@pytest.mark.parametrize(
    "left",
    [
        proof({}),
        proof({"_onefold.json.new": '{"form'}),
        {"_onefold.json": OWNS, "_staging/1/rows/part-0": "half", "tally.json": "x"},
    ],
)
def test_whenever_the_first_run_died_the_next_one_goes_on(spark, traffic, tmp_path, left):
    (tmp_path / "out").mkdir()
    for name, text in left.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(text)
    assert run(spark, traffic, tmp_path / "out").tally.balanced
    assert not (tmp_path / "out" / "_staging").exists()


def test_of_two_runs_at_once_into_one_folder_the_second_is_refused(spark, traffic, finished, tmp_path):
    refused = []

    def say(step):
        if step == "finding what is missing":
            with pytest.raises(Misuse, match="another run is writing to"):
                run(spark, traffic, tmp_path / "out")
            refused.append(step)

    source = SourceSpec(path=str(traffic / "messages"))
    result = jobs.run(spark, source, OPEN, str(tmp_path / "out"), say=say)
    assert refused
    assert result.audit is not None
    assert result.audit.agrees
    assert finished[0].tally == result.tally


def test_a_run_that_fails_is_not_complete(spark, traffic, again, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("onefold.spark.publish.RunFolder.finish", fail)
        with pytest.raises(OSError, match="disk full"):
            run(spark, traffic, again)
    assert not (again / "run.json").exists()
    assert not (again / "_staging").exists()
    assert run(spark, traffic, again).tally.balanced
    assert (again / "run.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/no/such/place"}, "there is nothing at /no/such/place"),
        ({"format": "nonsense"}, "cannot read .* as nonsense"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_clear_line(spark, traffic, tmp_path, change, message):
    source = SourceSpec(**({"path": str(traffic / "messages")} | change))
    with pytest.raises(Misuse, match=message) as caught:
        jobs.run(spark, source, OPEN, str(tmp_path / "out"), say=lambda step: None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_text_column_without_numbers_is_the_wrong_column(spark, tmp_path):
    (tmp_path / "messages").mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "ts": ["monday", "tuesday"]}), tmp_path / "messages" / "x.parquet")
    columns = ChainColumns(
        key=("k",), timestamp="ts", sequence=None, previous_timestamp=None, previous_sequence=None, arrival=None
    )
    with pytest.raises(Misuse, match="column 'ts' is text without a whole number or a time in it, such as 'monday'"):
        run(spark, tmp_path, tmp_path / "out", ChainsEngine(columns=columns))
