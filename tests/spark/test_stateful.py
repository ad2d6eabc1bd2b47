"""The stateful judge: a stream answers as the table would, whatever its batches; its state is bounded by disorder."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import judge_chains
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write

_names = itertools.count()


@pytest.fixture
def stream(spark, tmp_path):
    """Judge a folder of Parquet files as a stream, so many files a batch; the rows that came out, and the query."""

    def run(folder, step, files=1, checkpoint=None):
        name = f"judged_{next(_names)}"
        for i, file in enumerate(sorted(Path(folder).glob("*.parquet"))):
            os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))  # Spark takes files by their age
        schema = spark.read.parquet(str(folder)).schema
        source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))
        out = str(tmp_path / name)
        writer = source.transform(step).writeStream.format("parquet").option("path", out)
        place = str(checkpoint or tmp_path / f"{name}.checkpoint")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.read.parquet(out), query

    return run


def verdicts(df):
    return sorted((row["offset"], row["verdict"], row["reason"]) for row in df.collect())


@pytest.mark.parametrize(("seed", "files", "per_batch"), [(2, 7, 2), (3, 5, 1)])
def test_a_stream_answers_as_the_table(spark, stream, tmp_path, seed, files, per_batch):
    write(make(Traffic(rows=3_000, chains=20, seed=seed)), tmp_path / "traffic", files=files)
    folder = tmp_path / "traffic" / "messages"
    table = spark.read.parquet(str(folder)).transform(judge_chains(floor="open"))
    judged, query = stream(folder, judge_chains(buckets=3, floor="open"), per_batch)
    assert verdicts(judged) == verdicts(table)
    assert len([p for p in query.recentProgress if p.numInputRows]) == -(-files // per_batch)


def test_what_names_no_previous_message_and_comes_late_is_known_to_a_table_and_unsure_in_a_stream(
    spark, stream, tmp_path
):
    write(make(Traffic(rows=2_000, chains=10, faults=Faults(no_previous=1.0, late_heads=1.0))), tmp_path / "t", files=4)
    folder = tmp_path / "t" / "messages"
    table = {row[0]: row[1:] for row in verdicts(spark.read.parquet(str(folder)).transform(judge_chains()))}
    open_rows = {("FIRST", "late"), ("REPEAT", "seen")}
    left = 0
    for offset, *answer in verdicts(stream(folder, judge_chains())[0]):
        left += answer == ["UNSURE", "behind_head"]
        assert table[offset] in open_rows if answer == ["UNSURE", "behind_head"] else table[offset] == tuple(answer)
    assert left > 100


def test_one_poisoned_row_per_chain_loses_no_honest_row(spark, stream, tmp_path):
    traffic = make(Traffic(rows=2_000, chains=10, faults=Faults(poisoned=1.0)))
    write(traffic, tmp_path / "traffic", files=4)
    folder = tmp_path / "traffic" / "messages"
    judged, _ = stream(folder, judge_chains(floor="open"))
    table = spark.read.parquet(str(folder)).transform(judge_chains(floor="open"))
    assert judged.where("reason = 'jump_too_far'").count() > 0
    assert verdicts(judged) == verdicts(table)


def test_the_state_is_a_row_per_bucket(stream, tmp_path):
    write(make(Traffic(rows=4_000, chains=300)), tmp_path / "traffic", files=2)
    _, query = stream(tmp_path / "traffic" / "messages", judge_chains(buckets=4))
    assert query.lastProgress.stateOperators[0].numRowsTotal == 4


def test_beyond_state_rows_max_new_chains_are_unsure(stream, tmp_path):
    write(make(Traffic(rows=1_000, chains=50)), tmp_path / "traffic", files=2)
    judged, _ = stream(tmp_path / "traffic" / "messages", judge_chains(buckets=1, state_rows_max=10))
    full = judged.where("reason = 'state_full'")
    assert full.where("verdict != 'UNSURE'").count() == 0
    key = ("stream", "partition", "publisher", "chain")
    assert judged.where("verdict = 'FIRST'").select(*key).distinct().count() == 10
    assert full.select(*key).distinct().count() > 0


def test_another_number_of_buckets_is_refused(spark, stream, tmp_path):
    write(make(Traffic(rows=500, chains=5)), tmp_path / "traffic", files=2)
    folder, checkpoint = tmp_path / "traffic" / "messages", tmp_path / "checkpoint"
    stream(folder, judge_chains(buckets=2), checkpoint=checkpoint)
    write(make(Traffic(rows=500, chains=5, seed=9)), tmp_path / "more", files=1)
    for file in (tmp_path / "more" / "messages").glob("*.parquet"):
        file.rename(folder / f"more-{file.name}")
    with pytest.raises(Exception, match="made with 2 buckets"):
        stream(folder, judge_chains(buckets=3), checkpoint=checkpoint)


def test_a_users_own_stream_does_not_go_on_with_another_meaning(spark, stream, tmp_path):
    write(make(Traffic(rows=500, chains=5)), tmp_path / "traffic", files=2)
    folder, checkpoint = tmp_path / "traffic" / "messages", tmp_path / "checkpoint"
    stream(folder, judge_chains(buckets=2), checkpoint=checkpoint)
    for file in list(folder.glob("*.parquet")):
        shutil.copy(file, folder / f"more-{file.name}")
    with pytest.raises(Exception, match="the state of this stream was begun with floor = 'first', not 'open'"):
        stream(folder, judge_chains(buckets=2, floor="open"), checkpoint=checkpoint)


def test_columns_of_every_kind_come_through(spark, stream, tmp_path):
    key = {"stream": F.lit("s"), "partition": F.lit(1), "publisher": F.lit("p"), "chain": F.lit("c")}
    numbers = {"timestamp": F.col("id"), "sequence": F.lit(0).cast("long")}
    before = {"previous_timestamp": F.lit(None).cast("long"), "previous_sequence": F.lit(None).cast("long")}
    other = {
        "a b.c": F.array(F.lit("x"), F.lit(None)),
        "struct": F.struct(F.lit(1.5).alias("Größe"), F.lit(None).cast("date").alias("d")),
        "map": F.create_map(F.lit("k"), F.col("id")),
        "at": F.timestamp_millis(F.col("id")),
        "plain": F.timestamp_millis(F.col("id")).cast("timestamp_ntz"),
        "price": F.lit("12.50").cast("decimal(10,2)"),
        "data": F.lit(b"\x00\xff"),
    }
    rows = spark.range(5).select(*(c.alias(n) for n, c in {**key, **numbers, **before, **other}.items()))
    rows.withColumn("arrival", F.col("timestamp")).coalesce(1).write.parquet(str(tmp_path / "rows"))
    judged, _ = stream(tmp_path / "rows", judge_chains())
    came = spark.read.parquet(str(tmp_path / "rows"))
    assert judged.drop("verdict", "reason").schema == came.schema
    assert sorted(map(str, judged.drop("verdict", "reason").collect())) == sorted(map(str, came.collect()))


def test_misuse_is_refused_before_the_stream_starts(spark, tmp_path):
    with pytest.raises(Misuse, match="idle_ms is 0"):
        judge_chains(idle_ms=0)
    write(make(Traffic(rows=10, chains=2)), tmp_path / "traffic", files=1)
    folder = str(tmp_path / "traffic" / "messages")
    source = spark.readStream.schema(spark.read.parquet(folder).schema).parquet(folder)
    with pytest.raises(Misuse, match="buckets is 0"):
        source.transform(judge_chains(buckets=0))
