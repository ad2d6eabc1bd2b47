"""A user's own stream: it answers as the table would, whatever its batches; its memory is bounded by disorder."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import judge_chains
from onefold.spark.memory import MemoryFolder
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make, write
from tests.lib.commands import here

_names = itertools.count()


@pytest.fixture
def stream(spark, tmp_path):
    """Judge a folder of Parquet files as a stream, so many files a batch; the rows that came out, and the query."""

    def run(folder, files=1, checkpoint=None, read=True, **settings):
        name = f"judged_{next(_names)}"
        for i, file in enumerate(sorted(Path(folder).glob("*.parquet"))):
            os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))  # Spark takes files by their age
        schema = spark.read.parquet(str(folder)).schema
        source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))
        out = str(tmp_path / name)
        place = str(checkpoint or tmp_path / f"{name}.checkpoint")
        step = judge_chains(memory=f"{place}.memory", **settings)
        writer = source.transform(step).writeStream.format("parquet").option("path", out)
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        return (spark.read.parquet(out) if read else out), query

    return run


def verdicts(df):
    return sorted((row["offset"], row["verdict"], row["reason"]) for row in df.collect())


@pytest.mark.parametrize(("seed", "files", "per_batch"), [(2, 7, 2), (3, 5, 1)])
def test_a_stream_answers_as_the_table(spark, stream, tmp_path, seed, files, per_batch):
    write(make(Traffic(rows=3_000, chains=20, seed=seed)), tmp_path / "traffic", files=files)
    folder = tmp_path / "traffic" / "messages"
    table = spark.read.parquet(str(folder)).transform(judge_chains(floor="open"))
    judged, query = stream(folder, per_batch, buckets=3, floor="open")
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
    for offset, *answer in verdicts(stream(folder)[0]):
        left += answer == ["UNSURE", "behind_head"]
        assert table[offset] in open_rows if answer == ["UNSURE", "behind_head"] else table[offset] == tuple(answer)
    assert left > 100


def test_one_poisoned_row_per_chain_loses_no_honest_row(spark, stream, tmp_path):
    traffic = make(Traffic(rows=2_000, chains=10, faults=Faults(poisoned=1.0)))
    write(traffic, tmp_path / "traffic", files=4)
    folder = tmp_path / "traffic" / "messages"
    judged, _ = stream(folder, floor="open")
    table = spark.read.parquet(str(folder)).transform(judge_chains(floor="open"))
    assert judged.where("reason = 'jump_too_far'").count() > 0
    assert verdicts(judged) == verdicts(table)


def test_a_memory_tells_what_it_holds_and_a_batch_that_is_read_again_answers_the_same(spark, stream, tmp_path):
    write(make(Traffic(rows=4_000, chains=300)), tmp_path / "traffic", files=4)
    folder, checkpoint = tmp_path / "traffic" / "messages", tmp_path / "checkpoint"
    judged, _ = stream(folder, checkpoint=checkpoint, buckets=4)
    memory = MemoryFolder.anywhere(f"{checkpoint}.memory")
    headers = [run.header for run in memory.newest().values()]
    assert sum(header["figures"]["keys"] for header in headers) == judged.where("reason = 'new_chain'").count()
    assert {header["version"] for header in headers} == {3}
    before = {path: path.read_bytes() for path in Path(f"{checkpoint}.memory").glob("*/*.run")}
    for name in ("3", ".3.crc"):  # as if the driver had died
        (checkpoint / "commits" / name).unlink()
    again, query = stream(folder, checkpoint=checkpoint, read=False, buckets=4)
    assert [p.batchId for p in query.recentProgress if p.numInputRows] == [3]
    files = [str(file) for file in Path(again).glob("*.parquet")]
    last = {row[0]: row for row in verdicts(judged)}
    rows = verdicts(spark.read.parquet(*files))
    assert rows
    assert all(last[row[0]] == row for row in rows)
    assert before == {path: path.read_bytes() for path in Path(f"{checkpoint}.memory").glob("*/*.run")}


def test_the_command_tells_what_is_remembered_of_a_stream_and_of_a_key_and_what_is_damaged(spark, stream, tmp_path):
    write(make(Traffic(rows=1_000, chains=5)), tmp_path / "traffic", files=2)
    judged, _ = stream(tmp_path / "traffic" / "messages", checkpoint=tmp_path / "c", buckets=2)
    memory = tmp_path / "c.memory"
    done = here("memory", "ls", memory, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["version"], told["meaning"]["engine"], told["keys"]) == (0, 1, "chains", 5)
    assert here("memory", "ls", tmp_path, cwd=tmp_path).returncode == 2
    key = judged.where("verdict = 'FIRST'").select("stream", "partition", "publisher", "chain").first()
    done = here("memory", "show", memory, *key, "--json", cwd=tmp_path)
    newest = judged.where("verdict = 'FIRST'").where(
        " and ".join(f"{name} = '{value}'" for name, value in key.asDict().items())
    )
    head = max(row.timestamp << 20 | row.sequence for row in newest.collect())
    assert json.loads(done.stdout)["remembered"]["head"] == head
    assert here("memory", "show", memory, "a", "1", "b", "c", cwd=tmp_path).returncode == 1
    assert here("memory", "show", memory, "a", cwd=tmp_path).returncode == 2
    assert here("memory", "verify", memory, cwd=tmp_path).returncode == 0
    file = max(memory.glob("*/*.run"))
    file.write_bytes(file.read_bytes()[:-8])
    done = here("memory", "verify", memory, cwd=tmp_path)
    assert done.returncode == 1
    assert file.name in done.stderr


def test_the_memory_of_another_stream_is_refused(stream, tmp_path):
    write(make(Traffic(rows=100, chains=5)), tmp_path / "traffic", files=1)
    folder, checkpoint = tmp_path / "traffic" / "messages", tmp_path / "checkpoint"
    stream(folder, checkpoint=checkpoint, buckets=2)
    shutil.copy(next(folder.glob("*.parquet")), folder / "more.parquet")
    shutil.rmtree(checkpoint)
    with pytest.raises(Exception, match="the memory of another checkpoint"):
        stream(folder, checkpoint=checkpoint, buckets=2)


def test_a_table_goes_on_from_its_memory_by_version(spark, tmp_path):
    write(make(Traffic(rows=2_000, chains=20, seed=4)), tmp_path / "traffic", files=2)
    table = spark.read.parquet(str(tmp_path / "traffic" / "messages")).where("previous_timestamp is not null")
    halves = [table.where(f"pmod(floor(offset / 500), 2) = {half}") for half in (0, 1)]
    memory = str(tmp_path / "memory")
    judged = [half.transform(judge_chains(memory=memory, version=i, buckets=2)) for i, half in enumerate(halves)]
    one, two = verdicts(judged[0]), verdicts(judged[1])
    assert verdicts(judged[0]) == one, "version 0 reads nothing of version 1"
    assert verdicts(judged[1]) == two
    counts = {verdict: sum(row[1] == verdict for row in one + two) for verdict in ("FIRST", "REPEAT")}
    whole = verdicts(table.transform(judge_chains()))
    assert counts == {verdict: sum(row[1] == verdict for row in whole) for verdict in counts}


def test_a_stream_without_a_memory_and_a_table_without_a_version_are_told_what_to_add(spark, tmp_path):
    write(make(Traffic(rows=10, chains=2)), tmp_path / "traffic", files=1)
    folder = str(tmp_path / "traffic" / "messages")
    table = spark.read.parquet(folder)
    with pytest.raises(Misuse, match='a stream needs a memory: add memory="FOLDER"'):
        spark.readStream.schema(table.schema).parquet(folder).transform(judge_chains())
    with pytest.raises(Misuse, match="needs a version: add version=N"):
        table.transform(judge_chains(memory=str(tmp_path / "memory")))
    with pytest.raises(Misuse, match='idle_ms is 5, which needs a memory: add memory="FOLDER"'):
        table.transform(judge_chains(idle_ms=5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(Misuse, match=r"is no memory: it holds 'notes.txt'"):
        table.transform(judge_chains(memory=str(tmp_path / "mine"), version=0))


def test_beyond_state_rows_max_new_chains_are_unsure(stream, tmp_path):
    write(make(Traffic(rows=1_000, chains=50)), tmp_path / "traffic", files=2)
    judged, _ = stream(tmp_path / "traffic" / "messages", buckets=1, state_rows_max=10)
    full = judged.where("reason = 'state_full'")
    assert full.where("verdict != 'UNSURE'").count() == 0
    key = ("stream", "partition", "publisher", "chain")
    assert judged.where("verdict = 'FIRST'").select(*key).distinct().count() == 10
    assert full.select(*key).distinct().count() > 0


def test_another_number_of_buckets_is_refused(spark, stream, tmp_path):
    write(make(Traffic(rows=500, chains=5)), tmp_path / "traffic", files=2)
    folder, checkpoint = tmp_path / "traffic" / "messages", tmp_path / "checkpoint"
    stream(folder, buckets=2, checkpoint=checkpoint)
    write(make(Traffic(rows=500, chains=5, seed=9)), tmp_path / "more", files=1)
    for file in (tmp_path / "more" / "messages").glob("*.parquet"):
        file.rename(folder / f"more-{file.name}")
    with pytest.raises(Exception, match="begun with buckets = 2, not 3"):
        stream(folder, buckets=3, checkpoint=checkpoint)


def test_a_users_own_stream_does_not_go_on_with_another_meaning(spark, stream, tmp_path):
    write(make(Traffic(rows=500, chains=5)), tmp_path / "traffic", files=2)
    folder, checkpoint = tmp_path / "traffic" / "messages", tmp_path / "checkpoint"
    stream(folder, buckets=2, checkpoint=checkpoint)
    for file in list(folder.glob("*.parquet")):
        shutil.copy(file, folder / f"more-{file.name}")
    with pytest.raises(Exception, match="memory was begun with floor = 'first', not 'open'"):
        stream(folder, buckets=2, floor="open", checkpoint=checkpoint)


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
    judged, _ = stream(tmp_path / "rows")
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
        source.transform(judge_chains(memory=str(tmp_path / "memory"), buckets=0))
