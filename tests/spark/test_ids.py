"""Ids on Spark: a table is a set, a stream a set that forgets; any column may be an id, and the pipeline knows them."""

import json
import logging
import os
import random
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onefold import IdDetector, Verdict
from onefold.errors import Misuse
from onefold.spark import IdColumns, explain, judge_ids
from onefold.spark import run as jobs
from onefold.spark.figures import Figures
from onefold.spark.host import MemoryOptions
from onefold.spark.ids import IdsEngine
from onefold.spark.ingest import SourceSpec
from tests.lib.commands import here as onefold

HOUR = 3_600_000
NOON = 1_700_000_000_000


def verdicts(df, *by):
    """Verdict and reason of each row, by its number."""
    return {row["n"]: (row["verdict"], row["reason"]) for row in df.collect()}


def test_seven_ids_in_twenty_rows_are_seven_firsts(spark):
    rows = [(n, f"id-{n % 7}", NOON + n * 1_000) for n in range(20)]
    df = spark.createDataFrame(rows, "n int, event_id string, ts long")
    for step in (judge_ids("event_id"), judge_ids("EVENT_ID", time="ts"), judge_ids(["event_id"], order="ts")):
        counts = Counter(verdicts(df.transform(step)).values())
        assert counts == {("FIRST", "new"): 7, ("REPEAT", "seen"): 13}
    first = verdicts(df.transform(judge_ids("event_id", order="ts")))
    assert [n for n, (verdict, _) in sorted(first.items()) if verdict == "FIRST"] == list(range(7))
    last = verdicts(df.transform(judge_ids("event_id", order="ts", keep="last")))
    assert [n for n, (verdict, _) in sorted(last.items()) if verdict == "FIRST"] == list(range(13, 20))


def test_unique_events_of_which_some_come_late_are_all_first(spark):
    df = spark.range(100_000).select(
        F.col("id").cast("string").alias("event_id"),
        (F.col("id") - F.when(F.col("id") % 20 == 0, 5_000).otherwise(0)).alias("ts"),
    )
    judged = df.transform(judge_ids("event_id", time="ts")).groupBy("verdict", "reason").count().collect()
    assert [tuple(row) for row in judged] == [("FIRST", "new", 100_000)]


CELLS = [
    "n",  # a whole number
    "cast(n as string)",
    "cast(n as decimal(20, 3))",
    "cast(n as double) / 3",
    "timestamp_millis(n * 1000 + 1)",
    "date_from_unix_date(n)",
    "cast(cast(n as string) as binary)",
    "named_struct('a', n, 'b', cast(null as string))",
    "array(n, cast(null as int))",
    "array(named_struct('x', array(cast(n as string))))",
]


def test_an_id_may_be_of_any_type(spark):
    cells = [f"{cell} as c{i}" for i, cell in enumerate(CELLS)]
    df = spark.range(12).selectExpr("cast(id as int) as row", "cast(id % 5 as int) as n").selectExpr("row", *cells)
    df = df.localCheckpoint()
    for i in range(len(CELLS)):
        reasons = Counter(row["reason"] for row in df.transform(judge_ids(f"c{i}")).collect())
        assert reasons == {"new": 5, "seen": 7}, CELLS[i]


def test_nested_values_are_told_apart_by_their_shape_and_nulls_by_their_place(spark):
    rows = [
        (["a"], ["b"]),
        (["a", "b"], []),
        ([], ["a", "b"]),
        (["a", None], ["b"]),
        ([None, "a"], ["b"]),
        (["a"], ["b"]),
    ]
    df = spark.createDataFrame(rows, "x array<string>, y array<string>")
    reasons = Counter(row["reason"] for row in df.transform(judge_ids(["x", "y"])).collect())
    assert reasons == {"new": 5, "seen": 1}


def test_fields_of_structs_and_names_in_any_case(spark, tmp_path):
    df = spark.range(6).selectExpr(
        "cast(id as int) as n", "named_struct('Device', id % 2, 'more', id) as H", "id as `h.x`"
    )
    for name in ("H.Device", "h.device", "H.DEVICE"):
        assert Counter(reason for _, reason in verdicts(df.transform(judge_ids(name))).values()) == {
            "new": 2,
            "seen": 4,
        }
    assert {reason for _, reason in verdicts(df.transform(judge_ids("h.x"))).values()} == {
        "new"
    }  # a column of that name
    memory = judge_ids("h.device", memory=str(tmp_path / "m"), version=0, window="1 hour")
    assert Counter(reason for _, reason in verdicts(df.transform(memory)).values()) == {"new": 2, "seen": 4}
    with pytest.raises(Misuse, match=r"^no column 'h.nothing' \(id\): the columns are n, H, h.x$"):
        df.transform(judge_ids("h.nothing"))


def test_what_has_no_id_or_no_time_is_refused_and_is_nobodys_first(spark):
    rows = [
        (0, None, "2026-01-01T00:00:00Z"),
        (1, "a", "yesterday"),
        (2, "a", None),
        (3, "a", "2026-01-01"),
        (4, "", "5"),
    ]
    df = spark.createDataFrame(rows, "n int, id string, ts string")
    assert verdicts(df.transform(judge_ids("id", time="ts"))) == {
        0: ("REJECT", "null_id"),
        1: ("REJECT", "bad_time"),
        2: ("REJECT", "bad_time"),
        3: ("FIRST", "new"),
        4: ("FIRST", "new"),
    }
    assert verdicts(df.transform(judge_ids(["id", "n"], order="ts")))[1] == ("REJECT", "bad_time")


def test_content_is_compared_with_that_of_the_first(spark):
    rows = [
        (0, "a", 1, "x", None),
        (1, "a", 2, "x", None),
        (2, "a", 3, None, "x"),
        (3, "a", 0, "z", None),
        (4, "b", 1, "x", "x"),
    ]
    df = spark.createDataFrame(rows, "n int, id string, at int, u string, v string")
    judged = verdicts(df.transform(judge_ids("id", order="at", payload=["u", "v"])))
    assert judged == dict.fromkeys(range(3), ("REJECT", "conflict")) | dict.fromkeys((3, 4), ("FIRST", "new"))
    judged = verdicts(
        df.where("n < 3").transform(judge_ids("id", order="at", payload=["U", "v"], on_conflict="repeat"))
    )
    assert judged == {0: ("FIRST", "new"), 1: ("REPEAT", "seen"), 2: ("REPEAT", "changed")}


def test_the_same_row_is_first_however_the_table_is_cut(spark):
    df = spark.range(2_000).selectExpr("cast(id as int) as n", "id % 300 as k", "uuid() as noise").localCheckpoint()
    wanted = verdicts(df.transform(judge_ids("k", partitions=1)))
    assert Counter(verdict for verdict, _ in wanted.values())["FIRST"] == 300
    assert verdicts(df.repartition(7).transform(judge_ids("k", partitions=3, rows_in_memory_max=100))) == wanted


def messages(seed, count=4_000, hours=48):
    """Events of two days in about the order of their times, copies among them, each some hours after its first."""
    chance = random.Random(seed)
    events = [(f"{seed}-{n}", NOON + int(n * hours * HOUR / count)) for n in range(count)]
    arrivals = [(time + chance.randrange(HOUR), id, time) for id, time in events]
    for id, time in chance.sample(events, count // 3):
        arrivals.append((time + int(chance.expovariate(1 / (4 * HOUR))), id, time))
    return [(n, id, time) for n, (_, id, time) in enumerate(sorted(arrivals))]


def in_files(folder, rows, sizes):
    """The rows in files of these sizes, over and over, as a stream takes them."""
    folder.mkdir()
    at = 0
    for number in range(len(rows)):
        if at >= len(rows):
            break
        part = rows[at : at + sizes[number % len(sizes)]]
        columns = {
            "n": [r[0] for r in part],
            "id": [r[1] for r in part],
            "ts": pa.array([r[2] for r in part], pa.timestamp("ms", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{number:04}.parquet")
        os.utime(folder / f"{number:04}.parquet", (1_700_000_000 + number,) * 2)
        at += len(part)


def streamed(spark, folder, out, step, files):
    schema = spark.read.parquet(str(folder)).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))
    writer = source.transform(step).writeStream.format("parquet").option("path", str(out / "rows"))
    query = writer.option("checkpointLocation", str(out / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return verdicts(spark.read.parquet(str(out / "rows")))


@pytest.mark.parametrize(("sizes", "files"), [([977], 1), ([300, 1_100, 40], 2)])
def test_a_stream_in_any_split_is_a_set_within_the_window_and_unsure_beyond(spark, tmp_path, sizes, files):
    rows, window = messages(1), 8 * HOUR
    in_files(tmp_path / "in", rows, sizes)
    step = judge_ids("id", time="ts", window="8 hours", memory=str(tmp_path / "memory"), buckets=1)
    judged = streamed(spark, tmp_path / "in", tmp_path, step, files)
    scalar, at = IdDetector(window), 0
    wanted: dict = {}
    parts = sorted((tmp_path / "in").iterdir())
    for start in range(0, len(parts), files):  # batch by batch, each in the order of its times
        count = sum(pq.read_metadata(part).num_rows for part in parts[start : start + files])
        batch = sorted(rows[at : at + count], key=lambda row: row[2])
        wanted |= {n: tuple(map(str, scalar.judge(id, time))) for n, id, time in batch}
        at += count
    # Of the copies of one batch, which one is first is settled by their hash.
    assert Counter(judged.values()) == Counter(wanted.values())
    ids = {n: id for n, id, _ in rows}
    firsts = Counter(ids[n] for n, (verdict, _) in judged.items() if verdict == "FIRST")
    assert set(firsts.values()) == {1}
    beyond = {n for n, answer in judged.items() if answer == ("UNSURE", "forgotten")}
    assert beyond == {n for n, answer in wanted.items() if answer == ("UNSURE", "forgotten")}
    assert len(beyond) > 50


def test_a_batch_that_is_tried_again_answers_the_same_and_a_memory_of_another_meaning_is_refused(spark, tmp_path):
    def batch(numbers, version, **other):
        df = spark.createDataFrame([(n, f"id-{n % 40}", NOON + n % 40) for n in numbers], "n int, id string, ts long")
        settings = {"time": "ts", "window": "1 hour", "memory": str(tmp_path / "m"), "version": version} | other
        return verdicts(df.transform(judge_ids("id", **settings)))

    first = batch(range(30), 0)
    second = batch(range(20, 70), 1)
    assert Counter(verdict for verdict, _ in second.values()) == {"FIRST": 10, "REPEAT": 40}
    assert batch(range(20, 70), 1) == second
    assert batch(range(30), 0) == first
    with pytest.raises(Misuse, match="window_ms = 3600000, not 7200000"):
        batch(range(3), 2, window="2 hours")
    with pytest.raises(Misuse, match="time = 'ts bigint', not none"):
        batch(range(3), 2, time=None)
    with pytest.raises(Misuse, match='keep is "last", which only a table can do'):
        batch(range(3), 2, keep="last")
    with pytest.raises(Misuse, match="payload = none, not 'n int'"):
        batch(range(3), 2, payload="n")


def test_content_is_compared_from_batch_to_batch(spark, tmp_path):
    def batch(content, version):
        df = spark.createDataFrame([(0, "a", content), (1, f"b{version}", content)], "n int, id string, c string")
        step = judge_ids("id", payload="c", window="1 hour", memory=str(tmp_path / "m"), version=version)
        return [answer for _, answer in sorted(verdicts(df.transform(step)).items())]

    new = ("FIRST", "new")
    assert batch("x", 0) == [new, new]
    assert batch("x", 1) == [("REPEAT", "seen"), new]
    assert batch("y", 2) == [("REJECT", "conflict"), new]
    assert batch("x", 3) == [("REPEAT", "seen"), new]


def test_a_memory_without_a_window_says_once_what_it_costs_and_a_bound_makes_unsure(spark, tmp_path, caplog):
    def batch(numbers, version):
        df = spark.createDataFrame([(n, n) for n in numbers], "n int, id int")
        step = judge_ids("id", memory=str(tmp_path / "m"), version=version, state_rows_max=10, buckets=1)
        return Counter(reason for _, reason in verdicts(df.transform(step)).values())

    with caplog.at_level(logging.WARNING, "onefold"):
        assert batch(range(8), 0) == {"new": 8}
        assert batch(range(20), 1) == {"seen": 8, "new": 2, "state_full": 10}
    (line,) = [record.getMessage() for record in caplog.records if "no window" in record.getMessage()]
    assert "16 bytes each" in line
    assert "`onefold window`" in line


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"id": []}, "id is empty"),
        ({"id": "id", "window": "soon"}, "window is 'soon', must be a time such as \"7 days\""),
        ({"id": "id", "window": 0}, "window_ms is 0"),
        ({"id": "id", "keep": "last"}, "needs a column that says which one that is"),
        ({"id": "id", "keep": "best"}, "keep is 'best'"),
        ({"id": "id", "on_conflict": "drop"}, "on_conflict is 'drop'"),
        ({"id": "m"}, r"column 'm' \(id\) is map<string,string>: maps have no order"),
        ({"id": "id", "time": "s.u"}, r"no column 's.u' \(time\): the columns are"),
        ({"id": "id", "time": "m"}, "must be whole numbers or times"),
        ({"id": "id", "order": "nothing"}, "if there is none: order=None"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_row_is_read(spark, settings, text):
    df = spark.range(1).selectExpr("id", "map('a', 'b') as m", "named_struct('t', id) as s")
    with pytest.raises(Misuse, match=text):
        df.transform(judge_ids(**settings))


def iso(second):
    return datetime.fromtimestamp(NOON / 1000 + second, UTC).isoformat()


@pytest.fixture
def events(tmp_path):
    """Events of a shop as JSON lines: 300 ids, 60 copies, one without an id, two that contradict their first."""
    lines = [{"event_id": f"e{n % 300}", "ts": iso(n % 300), "user": n % 300 % 7, "at": iso(n)} for n in range(360)]
    lines[350]["user"] = lines[351]["user"] = 99
    lines.append({"event_id": None, "ts": lines[0]["ts"], "user": 1, "at": lines[0]["at"]})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


IDS = IdsEngine(columns=IdColumns(id=("event_id",), time="ts", order="at", payload=("user",)), partitions=2)
TALLY = {"FIRST new": 300, "REPEAT seen": 58, "REJECT conflict": 2, "REJECT null_id": 1}


def test_a_run_publishes_audits_and_shows_ids(spark, events):
    result = jobs.run(
        spark, SourceSpec(path=str(events / "in"), format="json"), IDS, str(events / "out"), figures=Figures(),
        say=lambda step: None,
    )  # fmt: skip
    assert {str(answer): count for answer, count in result.tally if count} == TALLY
    assert (result.keys, result.gaps, result.cannot_tell[0].about) == (300, 0, "lost")
    assert result.audit is not None
    assert (result.audit.ids, result.audit.twice, result.audit.repeats, result.audit.orphans) == (300, 0, 58, 0)
    assert result.figures is not None
    assert len(result.figures["worst_keys"]) == 20
    assert result.figures["lags"]["count"] == 58  # by ISO text
    assert sum(map(sum, result.figures["timeline"]["bins"])) + sum(result.figures["timeline"]["outside"]) == 361
    assert [line["reason"] for line in result.figures["rejects"]] == ["conflict", "null_id"]
    document = explain(spark, str(events / "out"), ["e50"], judging=IDS)
    assert [(row["verdict"], row["reason"]) for row in document["shown"]] == [("FIRST", "new"), ("REJECT", "conflict")]
    checked = jobs.check(spark, SourceSpec(path=str(events / "in"), format="json"), IDS, say=lambda step: None)
    assert {str(answer): count for answer, count in checked.tally if count} == TALLY


def test_runs_that_go_on_remember_ids(spark, events):
    out, memory = str(events / "out"), MemoryOptions(path=str(events / "memory"), buckets=2)
    source = SourceSpec(path=str(events / "in"), format="json")
    engine = IdsEngine(columns=IdColumns(id=("event_id",), time="ts"), window_ms=24 * HOUR, partitions=2)
    first = jobs.run(spark, source, engine, out, memory=memory, say=lambda step: None)
    again = (events / "in" / "events.jsonl").read_text().replace("e2", "f2")
    (events / "in" / "more.jsonl").write_text(again)
    second = jobs.run(spark, source, engine, out, memory=memory, say=lambda step: None)
    count = sum(str(n).startswith("2") for n in range(300))
    assert [first.tally.count(Verdict.FIRST), second.tally.count(Verdict.FIRST), second.version] == [300, count, 1]
    assert second.keys == 300 + count
    assert second.audit is not None and second.audit.agrees  # noqa: PT018


PIPELINE = """
[source]
path = "in"
format = "json"
[judge]
engine = "ids"
id = ["event_id"]
time = "ts"
order = "at"
payload = ["user"]
{judge}
[publish]
path = "out"
{more}
[spark]
partitions = 2
buckets = {buckets}
"""


def write_pipeline(folder, judge="", more="", buckets=32):
    (folder / "pipeline.toml").write_text(PIPELINE.format(judge=judge, more=more, buckets=buckets))


@pytest.mark.usefixtures("spark")
def test_a_check_answers_what_people_ask_of_copies(tmp_path):
    """Against the truth of the simulator: how many, from where, how late, which windows, which contradictions."""
    words = ("--rows", "5000", "--files", "3", "--conflicts", "0.1", "--seed", "3")
    assert onefold("simulate", "sim", "--ids", *words, cwd=tmp_path).returncode == 0
    truth = pq.read_table(tmp_path / "sim" / "truth" / "rows.parquet").to_pylist()
    ids = [line["event_id"] for file in sorted((tmp_path / "sim" / "messages").glob("*"))
           for line in map(json.loads, file.read_text().splitlines())]  # fmt: skip
    copies = [row for row in truth if row["verdict"] != "FIRST"]
    done = onefold(
        "check", tmp_path / "sim" / "messages", "--id", "event_id", "--order", "ingested_at", "--payload",
        "status,amount", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["tally"]["repeat"] == sum(row["verdict"] == "REPEAT" for row in truth)
    answers = found["copies"]
    assert (answers["copies"], answers["ids"]) == (len(copies), len({row["of"] for row in copies}))
    often = Counter(ids[row["offset"]] for row in copies)
    assert [each["copies"] for each in answers["worst"]] == sorted(often.values(), reverse=True)[:20]
    assert all(often[each["id"]["event_id"]] == each["copies"] for each in answers["worst"])
    part = [f"part-{i:05}.jsonl" for i in range(3) for _ in range(5000 * (i + 1) // 3 - 5000 * i // 3)]
    places = Counter((part[row["of"]], part[row["offset"]]) for row in copies)
    assert {(each["first"], each["copy"]): each["copies"] for each in answers["from"]} == places
    lags = sorted(row["lag_ms"] for row in copies)
    assert answers["lags"]["within"] == [[ms, sum(lag <= ms for lag in lags)] for ms, _ in answers["lags"]["within"]]
    for window in answers["lags"]["windows"]:
        exact = int(np.quantile(lags, window["share"], method="inverted_cdf"))
        assert exact <= window["window_ms"] <= exact * (1 + 1 / 2048)
        assert window["caught"] == sum(lag <= window["window_ms"] for lag in lags)
    differs = Counter(row["differs"] for row in copies if row["differs"])
    assert answers["conflicts"]["columns"] == differs
    assert answers["conflicts"]["copies"] == differs.total()
    assert "with other content than the first, in: status (" in done.stderr
    assert " -> " in done.stderr


@pytest.mark.usefixtures("spark")
def test_what_a_check_cannot_say_of_copies_it_says(tmp_path):
    lines = [{"h": {"id": n % 4}, "n": n, "source": f"s{n % 2}"} for n in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = onefold("check", tmp_path / "in.jsonl", "--id", "h.id", "--json", cwd=tmp_path)
    answers = json.loads(done.stdout)["copies"]
    assert (answers["copies"], answers["ids"], answers["through"]) == (2, 2, "source")
    assert {(each["first"], each["copy"]) for each in answers["from"]} == {("s0", "s0"), ("s1", "s1")}
    assert "--order COLUMN would tell" in answers["lags"]["why_not"]
    done = onefold("check", tmp_path / "in.jsonl", "--id", "h.id", "--order", "n", "--json", cwd=tmp_path)
    assert "is no time" in json.loads(done.stdout)["copies"]["lags"]["why_not"]
    done = onefold("check", tmp_path / "in.jsonl", "--id", "n", "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["copies"]) == (0, {"copies": 0, "ids": 0, "through": "source"})
    assert "nothing was found" in done.stderr
    assert "clean" not in done.stderr


@pytest.mark.usefixtures("spark")
def test_the_commands_know_ids(events):
    write_pipeline(events)
    done = onefold("run", "pipeline.toml", "--json", cwd=events)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tally"]["reasons"][0] == {"verdict": "FIRST", "reason": "new", "count": 300}
    assert "not known: what was lost: an id says nothing of the messages around it" in done.stderr
    assert "No message with its id was seen before." in " ".join(done.stderr.split())
    done = onefold("explain", events / "out", "e50", cwd=events)
    assert (done.returncode, "2 rows: 1 FIRST, 1 REJECT" in done.stderr) == (0, True), done.stderr
    done = onefold("audit", "pipeline.toml", cwd=events)
    assert done.returncode == 0, done.stderr
    page = (events / "out" / "report.html").read_text(encoding="utf-8")
    assert "Ids are told apart by 128 bits of hash." in page


@pytest.mark.usefixtures("spark")
def test_a_stream_of_the_pipeline_remembers_ids_from_start_to_start(events):
    streams = 'window = "1 day"\n', "[source]", '[source]\nmode = "stream"'
    write_pipeline(events, judge=streams[0], buckets=2)
    text = (events / "pipeline.toml").read_text().replace(*streams[1:])
    (events / "pipeline.toml").write_text(text)
    assert onefold("run", "pipeline.toml", cwd=events).returncode == 0
    (events / "in" / "again.jsonl").write_text((events / "in" / "events.jsonl").read_text())
    done = onefold("run", "pipeline.toml", "--json", cwd=events)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    counts = {f"{line['verdict']} {line['reason']}": line["count"] for line in last["tally"]["reasons"]}
    assert counts == {"FIRST new": 300, "REPEAT seen": 416, "REJECT conflict": 4, "REJECT null_id": 2}
    assert last["keys"] == 300
