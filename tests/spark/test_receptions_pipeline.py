"""Pipelines of receptions, from the command line: what is published, and whether the books balance."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from onefold.cli.pipeline import engine_of, format_of
from onefold.settings import Settings
from onefold.spark.columns import ReceptionColumns
from onefold.spark.receptions.counters import missing_counters
from onefold.spark.receptions.judge import LorawanEngine
from tests.lib.commands import here
from tests.lib.receptions import ARROW, air, scalar, write


@pytest.fixture(scope="module")
def rows():
    return air(600, seed=8)


def pipeline(tmp_path, *more, mode="batch", strategy="drop"):
    text = ["[source]", 'path = "air"', 'format = "parquet"', f'mode = "{mode}"', "[judge]", 'engine = "lorawan"',
            *more, "[publish]", 'path = "out"', f'strategy = "{strategy}"', "[spark]", "partitions = 2"]  # fmt: skip
    (tmp_path / "pipeline.toml").write_text("\n".join(text))
    return here("run", "pipeline.toml", "--json", cwd=tmp_path)


def test_a_batch_pipeline_publishes_receptions_gaps_and_uplinks_and_its_books_balance(spark, rows, tmp_path):
    write(rows, tmp_path / "air", 0, 0)
    done = pipeline(tmp_path, 'shape = "flat"')
    assert done.returncode == 0, done.stderr
    truth = scalar(rows, "drop")
    tally = json.loads(done.stdout)["tally"]
    assert tally["in"] == len(rows)
    assert tally["first"] == sum(word.startswith("FIRST") for word in truth.values())
    assert "other_station" in done.stderr
    assert "Another station of this server heard it first." in " ".join(done.stderr.split())
    out = tmp_path / "out"
    names = {"firsts", "repeats", "unsure", "rejects", "gaps", "uplinks", "tally.json", "run.json"}
    assert {path.name for path in out.iterdir()} == names | {
        "report.html",
        "progress.json",
        "manifest.jsonl",
        "_onefold.json",
    }
    came = {name: pq.read_table(out / name) for name in ("firsts", "repeats", "uplinks")}
    assert came["uplinks"].num_rows == came["firsts"].num_rows == tally["first"]
    heard = sum(len(receptions) for receptions in came["uplinks"]["receptions"].to_pylist())
    assert heard == came["firsts"].num_rows + came["repeats"].num_rows
    firsts = spark.read.parquet(str(out / "firsts"))
    assert spark.read.parquet(str(out / "gaps")).count() == missing_counters(firsts).count()
    assert json.loads((out / "run.json").read_text())["keys"] == 7


def test_another_engine_at_the_same_place_leaves_no_uplinks_of_the_run_before(spark, rows, tmp_path):
    write(rows[:50], tmp_path / "air", 0, 0)
    assert pipeline(tmp_path, 'shape = "flat"', strategy="none").returncode == 0
    assert (tmp_path / "out" / "uplinks").exists()
    messages = pq.read_table(tmp_path / "out" / "messages")
    assert messages.schema.names == ARROW.names  # as they came
    text = (tmp_path / "pipeline.toml").read_text()
    text = text.replace(
        'engine = "lorawan"\nshape = "flat"', 'engine = "producers"\nproducer = ["device"]\nsequence = "fcnt"'
    )
    (tmp_path / "pipeline.toml").write_text(text)
    assert here("run", "pipeline.toml", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "out" / "uplinks").exists()


def test_a_stream_pipeline_goes_on_where_it_ended_and_its_books_are_those_of_a_batch(rows, tmp_path):
    half = len(rows) // 2
    write(rows[:half], tmp_path / "air", 0, 0)
    assert pipeline(tmp_path, 'shape = "flat"', "late_ms = 60000", mode="stream").returncode == 0
    write(rows[half:], tmp_path / "air", 1, 1)
    done = pipeline(tmp_path, 'shape = "flat"', "late_ms = 60000", mode="stream")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    truth = Counter(word.split()[0].lower() for word in scalar(rows, "drop").values())
    tally = last["tally"]
    assert (tally["in"], tally["first"], tally["repeat"]) == (len(rows), truth["first"], truth["repeat"])
    assert 0 < last["keys"] < truth["first"]
    assert "frames, 0 gaps" in done.stderr
    batch = tmp_path / "out" / "batches" / "000000000001"
    assert pq.read_table(batch / "firsts").schema.names[-3:] == ["verdict", "reason", "status"]


@pytest.mark.proof
def test_a_stream_of_chirpstack_events_under_none_passes_as_it_came(tmp_path):
    heard = {"time": "2024-05-05T10:00:00.000Z", "rssi": -100, "loRaSNR": 5}
    event = {"devEUI": "00000000000000d1", "fCnt": 3, "fPort": 1, "data": "0a0b"}
    event["rxInfo"] = [{"gatewayID": gateway, **heard} for gateway in ("a1", "b2")]
    (tmp_path / "air").mkdir()
    (tmp_path / "air" / "x.json").write_text(json.dumps(event) + "\n" + json.dumps(event | {"fCnt": 5}) + "\n{broken\n")
    head = (
        '[source]\npath = "air"\nformat = "json"\nmode = "{}"\n[judge]\nengine = "lorawan"\n'
        '[publish]\npath = "{}"\nstrategy = "{}"\n[spark]\npartitions = 2\n'
    )
    for mode, strategy in (("stream", "none"), ("batch", "drop")):
        (tmp_path / "p.toml").write_text(head.format(mode, mode, strategy) + "buckets = 2\n" * (mode == "stream"))
        done = here("run", "p.toml", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        tally = json.loads(done.stdout.splitlines()[-1] if mode == "stream" else done.stdout)["tally"]
        assert (tally["in"], tally["first"], tally["repeat"], tally["reject"]) == (5, 2, 2, 1)
    (batch,) = (tmp_path / "stream" / "batches").iterdir()
    assert not {"verdict", "reason", "status"} & set(pq.read_table(batch / "messages").schema.names)
    assert pq.read_table(tmp_path / "batch" / "gaps").to_pylist() == [
        {"device": "00000000000000d1", "lower_sequence": 3, "upper_sequence": 4}
    ]


def test_uplinks_of_a_flat_table_take_what_its_columns_can_say_and_no_more(spark):
    # No kind is data; bytes are named in hex; a signal that is no number is none; a column of another world is left.
    rows = [
        (b"\xab\x01", b"\x0a", 5, None, "d", 1, float("nan"), ["x"], "FIRST", "new_frame", "not_duplicate"),
        (b"\xab\x01", b"\x0b", 6, "data", "d", 1, 2.5, ["y"], "REPEAT", "other_station", "duplicate"),
    ]
    types = (
        "mic binary, gateway binary, time_ms long, kind string, device string, fcnt long, snr double, "
        "payload array<string>, verdict string, reason string, status string"
    )
    flat = LorawanEngine(shape="flat", columns=ReceptionColumns(frame=("mic",), station="gateway"))
    (row,) = flat.extras(spark.createDataFrame(rows, types))["uplinks"].collect()
    assert (row.frame, row.kind, row.best_station, row.best_snr, row.payload) == ("ab01", "data", "0b", 2.5, None)
    assert [(one.station, one.snr) for one in row.receptions] == [("0a", None), ("0b", 2.5)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "text"),
        ({"multiLine": "true"}, "json"),
        ({"multiline": "TRUE"}, "json"),
        ({"MULTILINE": "false"}, "text"),
    ],
)
def test_json_is_read_as_lines_unless_an_object_may_take_several(options, wanted):
    source = {"path": "air", "format": "json", "options": options}
    settings = Settings.model_validate({"source": source, "judge": {"engine": "lorawan"}, "publish": {"path": "out"}})
    assert format_of(settings, engine_of(settings)) == wanted


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('frame = ["mic"]', 'judge.frame: is ["mic"], which needs judge.shape = "flat"'),
        ("late_ms = 5", 'judge.late_ms: is 5, which needs source.mode = "stream"'),
        ("gap_count_max = 5", 'judge.gap_count_max: is 5, which needs judge.engine = "chains" or "producers"'),
        ("expiry_ms = 0", "judge.expiry_ms: is 0, must be greater than or equal to 1"),
        ('expiry = "never"', 'judge.expiry: is "never", must be "sliding" or "fixed"'),
        ('shape = "flit"', 'judge.shape: is "flit", must be "auto", "flat"'),
    ],
)
def test_a_key_that_makes_no_sense_here_is_refused(tmp_path, line, problem):
    done = pipeline(tmp_path, line)
    assert done.returncode == 2
    assert problem in " ".join(done.stderr.split())
