"""Counters that restart, on Spark: in a check, a table, a stream, runs that go on, and in words."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import ProducerColumns, judge_producers, missing_sequences
from onefold.spark import run as jobs
from onefold.spark.explanations import explain
from onefold.spark.figures import Figures
from onefold.spark.host import MemoryOptions
from onefold.spark.ingest import SourceSpec
from onefold.spark.producers import ProducersEngine
from onefold.testing import Faults, Readings, make_readings, score, write
from tests.lib.commands import here
from tests.lib.going_on import answers, hours

NAMES = ProducerColumns(producer=("device",), sequence="seq", time="ts", order="offset", payload=("temperature",))
AS_SAID = "--devices 40 --reboots 83 --rows 40336 --copies 0.01522 --losses 0.010425 --seed 2"
"""40,000 readings: 417 of them lost, 753 delivered twice."""


def engine(**options):
    return ProducersEngine(columns=NAMES, memory="gaps", partitions=2, **options)


@pytest.fixture(scope="module")
def air(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("air")
    assert here("simulate", "all", *AS_SAID.split(), "--format", "jsonl", cwd=folder).returncode == 0
    write(
        make_readings(Readings(rows=1_500, devices=6, reboots=12, faults=Faults(losses=0.05, late_heads=0))),
        folder / "few",
    )
    return folder


def ranges(table):
    return sorted(str(sorted(row.items())) for row in table.to_pylist())


def test_check_finds_all_copies_and_all_losses_but_those_around_a_reboot_which_it_says(spark, air):
    lost = pq.read_table(air / "all" / "truth" / "lost.parquet")["can_be_found"].to_pylist()
    words = (air / "all" / "messages", "--key", "device", "--sequence", "seq")
    done = here("check", *words, "--time", "ts", "--json", cwd=air)
    assert (done.returncode, len(lost), sum(lost)) == (1, 417, 413), done.stderr
    found = json.loads(done.stdout)
    assert "39,583 first + 753 repeat + 0 unsure + 0 reject" in done.stderr
    assert (found["missing_messages"], found["keys"]) == (413, 40)
    assert found["findings"] == ["753 repeated messages", f"{found['missing_ranges']} missing ranges of 413 messages"]
    assert "not known: what was lost around the 83 restarts of counters" in done.stderr
    assert "try:" not in done.stderr


def test_without_the_time_check_says_that_it_looks_like_restarts_and_what_to_write(spark, air):
    messages = air / "all" / "messages"
    done = here("check", messages, "--key", "device", "--sequence", "seq", cwd=air)
    assert " repeats have a 'ts' of their own, and " in done.stderr
    assert "the sequence begins anew while 'ts' rises; --time ts would show it" in done.stderr
    better = f"try: onefold check {messages} --producer device --sequence seq --time ts"
    assert better in done.stderr.splitlines()
    more = ("--format", "json", "--bad-files", "set_aside", "--option", "encoding=UTF-8")
    done = here("check", messages, "--key", "device", "--sequence", "seq", *more, cwd=air)
    assert f"{better} {' '.join(more)}" in done.stderr.splitlines()


def test_copies_that_only_come_later_do_not_look_like_restarts(spark, tmp_path):
    made = make_readings(Readings(rows=2_000, devices=4, reboots=0, faults=Faults(copies=0.2, late_heads=0)))
    write(made, tmp_path / "calm")
    done = here("check", tmp_path / "calm" / "messages", "--key", "device", "--sequence", "seq", cwd=tmp_path)
    assert "repeated messages" in done.stderr
    assert "restart" not in done.stderr
    renamed = made.messages.rename_columns(["device", "made", "seq", "temperature", "arrived_at", "offset"])
    pq.write_table(renamed, tmp_path / "later.parquet")
    done = here("check", tmp_path / "later.parquet", "--key", "device", "--sequence", "seq", cwd=tmp_path)
    assert "repeated messages" in done.stderr
    assert "restart" not in done.stderr


def test_a_run_is_right_row_by_row_and_shows_it(spark, air, tmp_path):
    out = tmp_path / "out"
    source = SourceSpec(path=str(air / "few" / "messages"))
    result = jobs.run(spark, source, engine(), str(out), figures=Figures(), say=lambda step: None)
    assert score(out, air / "few" / "truth").perfect
    assert result.audit is not None
    assert (result.audit.agrees, result.audit.twice) == (True, 0)
    assert result.missing == pq.read_table(air / "few" / "truth" / "lost.parquet")["can_be_found"].to_pylist().count(
        True
    )
    assert [untold.about for untold in result.cannot_tell] == ["restarts"]
    reboot = pq.read_table(air / "few" / "truth" / "reboots.parquet").to_pylist()[0]
    told = explain(spark, str(out), [reboot["device"]], pairs={"seq": "3"}, judging=engine())
    firsts = [row for row in told["shown"] if row["verdict"] == "FIRST"]
    assert len({row["message"]["ts"] for row in firsts}) == len(firsts) > 1
    gap = pq.read_table(out / "gaps").to_pylist()[0]
    told = explain(spark, str(out), [gap["device"], str(gap["upper_sequence"])], judging=engine())
    assert gap["lower_timestamp"] in [row["lower_timestamp"] for row in told["missing_ranges_shown"]]


def test_runs_that_go_on_answer_as_one_run_and_know_all_that_is_missing(spark, air, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    memory = MemoryOptions(path=str(tmp_path / "memory"))
    messages = pq.read_table(air / "few" / "messages")
    for number, part in enumerate(hours(messages, 3)):
        pq.write_table(part, source / f"{number}.parquet")
        spec, out = SourceSpec(path=str(source)), str(tmp_path / "hourly")
        result = jobs.run(spark, spec, engine(), out, memory=memory, say=lambda step: None)
    versions = sorted((tmp_path / "hourly" / "batches").iterdir())
    truth = pq.read_table(air / "few" / "truth" / "rows.parquet").to_pylist()
    assert {offset: answer[0] for offset, answer in answers(versions).items()} == {
        row["offset"]: row["verdict"] for row in truth
    }
    assert Counter(answer[1] for answer in answers(versions).values())["restarted"] == 12
    assert ranges(pq.read_table(versions[-1] / "gaps")) == ranges(
        pq.read_table(air / "few" / "truth" / "missing.parquet")
    )
    lost = pq.read_table(air / "few" / "truth" / "lost.parquet")["can_be_found"].to_pylist()
    assert (result.keys, result.missing) == (6, sum(lost))
    assert sum(lost) < len(lost)
    shown = here("memory", "show", "memory", "device-000", cwd=tmp_path)
    assert shown.returncode == 0
    assert " gaps" in shown.stderr


@pytest.mark.parametrize("kind", ["iso", "timestamp", "number"])
def test_a_stream_answers_as_the_table_whatever_the_time_is_written_as(spark, air, tmp_path, kind):
    at = F.timestamp_millis("ts")
    time = {"iso": F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"), "timestamp": at, "number": F.col("ts")}[kind]
    rows = spark.read.parquet(str(air / "few" / "messages")).withColumn("ts", time)
    for number in range(3):
        part = rows.where((F.col("offset") >= 500 * number) & (F.col("offset") < 500 * number + 500))
        part.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    step = judge_producers(NAMES, memory=str(tmp_path / "memory"), buckets=2)
    writer = source.transform(step).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    came = spark.read.parquet(str(tmp_path / "out"))
    table = rows.transform(judge_producers(NAMES))
    counts = [Counter(row.verdict for row in judged.collect()) for judged in (came, table)]
    assert counts[0] == counts[1]
    assert came.where("reason = 'restarted'").count() == table.where("reason = 'restarted'").count() == 12
    truth = {row["offset"]: row["verdict"] for row in pq.read_table(air / "few" / "truth" / "rows.parquet").to_pylist()}
    assert {row.offset: row.verdict for row in came.collect()} == truth
    missing = missing_sequences(came.where("verdict = 'FIRST'"), NAMES)
    assert missing.schema["lower_timestamp"].dataType.typeName() == ("timestamp" if kind == "timestamp" else "long")
    lower = F.unix_millis("lower_timestamp") if kind == "timestamp" else F.col("lower_timestamp")
    expected = ranges(pq.read_table(air / "few" / "truth" / "missing.parquet"))
    assert ranges(missing.withColumn("lower_timestamp", lower).toArrow()) == expected


def test_a_row_without_a_time_is_refused(spark):
    rows = [
        ("a", 0, "2026-03-01T08:00:00Z"),
        ("a", 1, None),
        ("a", 1, "yesterday"),
        ("a", 0, "2026-03-02"),
        (None, 0, None),
    ]
    df = spark.createDataFrame(rows, "producer string, sequence long, ts string")
    judged = df.transform(judge_producers(time="ts")).collect()
    assert sorted(f"{row.verdict} {row.reason}" for row in judged) == [
        "FIRST new", "FIRST restarted", "REJECT bad_time", "REJECT bad_time", "REJECT null_key",
    ]  # fmt: skip


def test_what_a_time_makes_needless_is_refused(spark, tmp_path):
    with pytest.raises(Misuse, match="memory is 'highest'"):
        judge_producers(time="ts", remember="highest")
    (tmp_path / "x.csv").write_text("device,seq,ts\na,1,1\n")
    for words, line in {
        "--key device --sequence seq --time when": "no column 'when' (time)",
        "--key device --sequence seq --time ts --epoch seq": "epoch is 'seq', but a time ('ts') tells the epochs",
        "--key device --number seq --time ts": "--time needs --producer",
        "--id device --time ts": "--time cannot be combined with --id",
    }.items():
        done = here("check", tmp_path / "x.csv", *words.split(), cwd=tmp_path)
        assert (done.returncode, line in done.stderr) == (2, True), done.stderr
