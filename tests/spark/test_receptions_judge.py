"""The judge of receptions on Spark: tables answer as the scalar engine, streams as tables, and no row is a crash."""

import random
import re
from collections import Counter
from itertools import pairwise

import pytest
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import ReceptionColumns, judge_receptions
from tests.lib.receptions import SCHEMA, START, air, scalar, write


def words(df):
    rows = df.select("offset", "verdict", "reason", "status").collect()
    found = {row.offset: " ".join(str(word) for word in row[1:]) for row in rows}
    assert len(found) == len(rows)
    return found


def judged(df, *args, **options):
    return words(df.transform(judge_receptions(*args, **options)))


@pytest.fixture(scope="module")
def rows():
    return air(600, seed=8)


@pytest.fixture(scope="module")
def table(spark, rows):
    return spark.createDataFrame(rows, SCHEMA).orderBy(F.rand(3)).repartition(3).cache()


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, {}),
        ({"strategy": "drop"}, {"partitions": 2, "rows_in_memory_max": 200}),
        ({"sliding": False, "strategy": "mark", "echo_ms": 200}, {"rows_in_memory_max": 90}),
        ({"strict_adr": True}, {"rows_in_memory_max": 300}),
    ],
)
def test_every_row_of_a_table_is_answered_as_by_the_scalar_engine(rows, table, options, tasks):
    answers, truth = judged(table, **options, **tasks), scalar(rows, **options)
    assert {o: (a, truth[o]) for o, a in answers.items() if a != truth[o]} == {}
    assert len(answers) == len(rows)
    repeats = {"drop": "duplicate"}.get(options.get("strategy", "none"), "soft_duplicate")
    wanted = {"FIRST new_frame not_duplicate", "FIRST new_join not_duplicate", "REPEAT join_repeated duplicate",
              f"REPEAT other_station {repeats}", "REPEAT resubmitted resubmission"}  # fmt: skip
    if "strict_adr" not in options:
        wanted |= {"REPEAT counted_before resubmission", "REPEAT nonce_used duplicate"}
    assert set(answers.values()) == wanted | ({f"REPEAT echoed {repeats}"} if "echo_ms" in options else set())


def streamed(spark, folder, out, buckets=2, **options):
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
    step = judge_receptions(buckets=buckets, memory=f"{out}.memory", **options)
    writer = source.transform(step).writeStream.format("parquet").option("path", str(out))
    query = writer.option("checkpointLocation", f"{out}.checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    return query, spark.read.parquet(str(out))


def test_a_stream_in_batches_answers_as_the_table_and_goes_on_after_a_restart(spark, rows, table, tmp_path):
    cuts = [0, len(rows) // 3, len(rows) // 2, len(rows)]
    options = {"strategy": "drop", "echo_ms": 200}
    for i, (low, high) in enumerate(pairwise(cuts)):
        mixed = rows[low:high]
        random.Random(i).shuffle(mixed)
        write(mixed, tmp_path / "air", i, i)
        if i > 0:  # two batches; a stop; one more from the checkpoint
            query, came = streamed(spark, tmp_path / "air", tmp_path / "out", **options)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [cuts[3] - cuts[2]]
    assert came.columns == [*table.columns, "verdict", "reason", "status"]
    assert words(came) == judged(table, **options)


def test_the_last_frame_of_a_device_and_a_join_are_repeats_however_late_they_come(spark, tmp_path):
    def one(offset, kind, frame, hours, device="d"):
        return offset, kind, frame, device, 7, "a", START + hours * 3_600_000

    batches = [
        [one(0, "data", "f7", 0), one(1, "join", "j", 0), one(2, "data", "x", 0, None)],
        [one(3, "data", "f7", 30), one(4, "join", "j", 30), one(5, "data", "x", 30, None)],
        [one(6, "data", "f8", 60), one(7, "join", "k", 60), one(8, "data", "f7", 90), one(9, "join", "j", 90)],
    ]
    new, again = "FIRST new_frame not_duplicate", "REPEAT counted_before resubmission"
    join, used = "FIRST new_join not_duplicate", "REPEAT nonce_used duplicate"
    truth = {0: new, 1: join, 2: new, 3: again, 4: used, 5: again, 6: new, 7: join, 8: new, 9: used}
    table = spark.createDataFrame([row for batch in batches for row in batch], SCHEMA)
    assert judged(table) == truth
    assert set(judged(table, strict_adr=True).values()) == {new, join}
    for n, batch in enumerate(batches):
        write(batch, tmp_path / "air", n, n)
    assert words(streamed(spark, tmp_path / "air", tmp_path / "out", late_ms=0)[1]) == truth


def test_what_comes_too_late_for_the_memory_is_unsure_and_what_is_in_time_is_not(spark, tmp_path):
    def one(offset, frame, at, station="a"):
        return offset, "data", frame, f"device of {frame}", 0, station, START + at

    write([one(0, "f", 0), one(1, "g", 659_999), one(2, "h", 660_000)], tmp_path / "air", 0, 0)
    late = [one(3, "f", 1_000, "b"), one(4, "i", 59_999), one(5, "i", 60_000), one(6, "g", 600_000, "b")]
    write(late, tmp_path / "air", 1, 1)
    _, came = streamed(spark, tmp_path / "air", tmp_path / "out", buckets=1, late_ms=600_000)
    first, unsure = "FIRST new_frame not_duplicate", "UNSURE late not_duplicate"
    heard = "REPEAT other_station soft_duplicate"
    assert words(came) == {0: first, 1: first, 2: first, 3: unsure, 4: unsure, 5: first, 6: heard}


def test_a_time_far_ahead_of_the_batch_is_refused_and_ages_nothing(spark, tmp_path):
    def one(offset, at):
        return offset, "data", "f", "d", 0, "a", at

    write([one(0, START), one(1, 10**14)], tmp_path / "air", 0, 0)
    write([one(2, START + 59_999)], tmp_path / "air", 1, 1)
    _, came = streamed(spark, tmp_path / "air", tmp_path / "out", late_ms=0)
    new = "FIRST new_frame not_duplicate"
    assert words(came) == {0: new, 1: "REJECT bad_time None", 2: "REPEAT resubmitted resubmission"}


def test_what_cannot_be_judged_is_refused_row_by_row_with_its_reason(spark):
    good = ("data", "f", "a", "5", None)
    cases = [
        ("FIRST new_frame", good),
        ("FIRST new_frame", (None, "g", "a", "5", None)),
        ("FIRST new_join", ("join", "h", "a", "0", None)),
        ("REJECT malformed", (*good[:4], "{broken")),
        ("REJECT malformed", ("beacon", *good[1:])),
        ("REJECT null_key", ("data", None, "a", "5", None)),
        ("REJECT null_key", ("data", "f", None, "5", None)),
        *(("REJECT bad_time", ("data", "f", "a", bad, None)) for bad in (None, "", "x", "-1", "1.5", str(2**63 - 1))),
    ]
    flat = [(offset, *row) for offset, (_, row) in enumerate(cases)]
    df = spark.createDataFrame(flat, "offset int, kind string, frame string, station string, time_ms string, c string")
    names = ReceptionColumns(device=(), fcnt=None)
    found = judged(df.withColumnRenamed("c", "_corrupt_record"), names)
    assert [" ".join(found[i].split()[:2]) for i in range(len(cases))] == [answer for answer, _ in cases]
    assert {found[i].split()[2] for i in range(3, len(cases))} == {"None"}


def test_frames_may_be_several_columns_of_any_type_and_times_timestamps(spark):
    rows = [
        (0, 1, b"x", "a", 0),
        (1, 1, b"x", "b", 1),
        (2, 1, b"y", "a", 2),
        (3, 2, b"x", "a", 3),
        (4, 1, b"x", "a", 4),
    ]
    df = spark.createDataFrame(rows, "offset int, `dev.addr` int, mic binary, gw string, at int")
    df = df.withColumn("at", F.timestamp_millis(F.col("at").cast("long")))
    names = ReceptionColumns(frame=("dev.addr", "mic"), station="gw", time="at", kind=None, device=(), fcnt=None)
    reasons = {offset: answer.split()[1] for offset, answer in judged(df, names).items()}
    assert reasons == {0: "new_frame", 1: "other_station", 2: "new_frame", 3: "new_frame", 4: "resubmitted"}


def test_rows_of_one_millisecond_get_the_same_answers_in_any_order_and_partitioning(spark):
    rows = [(n * 4 + i, "data", f"{n}", "d", n, "ab"[i % 2], 5) for n in range(100) for i in range(4)]
    df = spark.createDataFrame(rows, SCHEMA)
    answers = judged(df)
    assert Counter(answer.split()[0] for answer in answers.values()) == {"FIRST": 100, "REPEAT": 300}
    assert judged(df.orderBy(F.rand(1)).repartition(5), partitions=2, rows_in_memory_max=50) == answers


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        (lambda df: df, {"frame": ("mic",)}, "no column 'mic' (frame): the columns are offset, kind"),
        (lambda df: df, {"station": "gw"}, "no column 'gw' (station)"),
        (lambda df: df, {"kind": "sort"}, "if there is none: kind=None"),
        (lambda df: df, {"fcnt": "counter"}, "if there is none: fcnt=None"),
        (lambda df: df.withColumn("time_ms", F.lit(1.5)), {}, "column 'time_ms' (time) is"),
        (lambda df: df.withColumn("frame", F.array("frame")), {}, "column 'frame' (frame) is array<string>"),
        (lambda df: df.withColumn("Status", F.lit("x")), {}, "column 'Status' already"),
        (lambda df: df.withColumn("Reason", F.lit("x")), {}, "column 'Reason' already"),
    ],
)
def test_a_table_that_cannot_be_judged_is_misuse_and_names_the_column(table, change, names, message):
    with pytest.raises(Misuse, match=re.escape(message)):
        change(table).transform(judge_receptions(ReceptionColumns(**names)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "keep"}, "strategy is 'keep', must be drop, mark, none"),
        ({"expiry_ms": 0}, "expiry_ms is 0"),
        ({"echo_ms": -1}, "echo_ms is -1"),
        ({"late_ms": -1}, "late_ms is -1"),
        ({"state_rows_max": 0}, "state_rows_max is 0"),
        ({"partitions": 0}, "partitions is 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_misuse_before_any_table_is_seen(options, message):
    with pytest.raises(Misuse, match=re.escape(message)):
        judge_receptions(**options)
    with pytest.raises(Misuse, match="frame is empty"):
        ReceptionColumns(frame=())
