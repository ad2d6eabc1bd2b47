"""The producers judge on Spark: tables answer as the scalar engine, streams as tables, and no row is a crash."""

import os
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.producers import Kind, SequenceEntry, Sequences
from onefold.spark import ProducerColumns, judge_producers, missing_sequences

LONG_MAX = 2**63 - 1
NAMES = ProducerColumns(
    producer=("topic", "pro.ducer"), sequence="sequence", order="offset", epoch="epoch", payload=("key", "value")
)
ARROW = pa.schema(
    {
        "offset": pa.int64(),
        "topic": pa.string(),
        "pro.ducer": pa.int64(),
        "sequence": pa.int64(),
        "epoch": pa.int32(),
        "key": pa.string(),
        "value": pa.binary(),
    }
)
SCHEMA = "offset long, topic string, `pro.ducer` long, sequence long, epoch int, key string, value binary"


def dump(rows, seed):
    """What a topic may hold if nobody looks: copies, late ones, zombies, contradictions and holes."""
    rng = random.Random(seed)
    heads = {(topic, producer): 0 for topic in "ab" for producer in range(4)}
    for offset in range(rows):
        name = rng.choice(list(heads))
        heads[name] += rng.choice([1, 1, 1, 2, 3])
        sequence = max(0, heads[name] - rng.choice([0, 0, 0, 1, 2, 5, 30]))
        epoch = max(1, offset * 3 // rows + 1 - (rng.random() < 0.05))
        value = b"x" if rng.random() < 0.02 else b"%d" % sequence
        yield offset, *name, sequence, epoch if rng.random() < 0.98 else None, "k" if sequence % 2 else None, value


def scalar(rows, memory):
    sequences, answers = Sequences(memory, digests_max=10_000), {}
    for offset, topic, number, sequence, epoch, key, value in rows:
        producer, digest = f"{topic}.{number}", [hash((key, value)) & 0xFFFFFFFF]
        if (epoch or 0) > sequences.epoch(producer):
            sequences.apply(SequenceEntry(Kind.OPEN, producer, 0, epoch, 0, 0))
        answer = sequences.push(producer, sequence, epoch=epoch, digests=digest)
        if answer.parts:
            sequences.persist(producer, sequence, epoch=epoch or 0, digests=digest)
        answers[offset] = str(answer)
    return answers


def judged(df, *args, **options):
    rows = df.transform(judge_producers(*args, **options)).select("offset", "verdict", "reason").collect()
    answers = {row.offset: f"{row.verdict} {row.reason}" for row in rows}
    assert len(answers) == len(rows)
    return answers


@pytest.fixture(scope="module")
def rows():
    return list(dump(2_000, seed=4))


@pytest.fixture(scope="module")
def table(spark, rows):
    return spark.createDataFrame(rows, SCHEMA).repartition(3).cache()


@pytest.mark.parametrize(
    ("memory", "tasks"), [("highest", {}), ("gaps", {"partitions": 2}), ("gaps", {"rows_in_memory_max": 90})]
)
def test_every_row_of_a_table_is_answered_as_by_the_scalar_engine(rows, table, memory, tasks):
    answers = judged(table, NAMES, memory=memory, **tasks)
    truth = scalar(rows, memory)
    assert {o: (a, truth[o]) for o, a in answers.items() if a != truth[o]} == {}
    assert len(answers) == len(rows)
    behind = {"REPEAT behind_highest"} if memory == "highest" else {"REPEAT seen", "FIRST fills_gap"}
    refused = {"REJECT conflict", "REJECT stale_epoch", "REJECT epoch_missing"}
    assert set(answers.values()) == {"FIRST new", *behind, *refused}


def test_a_stream_of_three_batches_answers_as_the_table(spark, rows, table, tmp_path):
    folder, out = tmp_path / "dump", tmp_path / "judged"
    folder.mkdir()
    for i in range(3):
        columns = zip(*rows[i * 700 : (i + 1) * 700], strict=True)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, ARROW.types, strict=True)]
        pq.write_table(pa.table(arrays, schema=ARROW), folder / f"{i}.parquet")
        os.utime(folder / f"{i}.parquet", (1_700_000_000 + i, 1_700_000_000 + i))  # Spark takes files by their age
    source = spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    step = judge_producers(NAMES, remember="gaps", digests_max=10_000, memory=str(tmp_path / "memory"), buckets=2)
    writer = source.transform(step).writeStream.format("parquet").option("path", str(out))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [700, 700, 600]
    came = spark.read.parquet(str(out))
    assert came.columns == [*table.columns, "verdict", "reason"]
    assert {r.offset: f"{r.verdict} {r.reason}" for r in came.collect()} == judged(table, NAMES, memory="gaps")


def test_what_cannot_be_judged_is_refused_row_by_row_with_its_reason(spark):
    rows: dict[str, list[tuple[str | None, ...]]] = {
        "REJECT malformed": [("p", "7", "0", "{broken"), (None, None, None, "{"), ("p", "8", "one", None)],
        "REJECT null_key": [(None, "1", None, None), (None, None, None, None)],
        "REJECT bad_sequence": [
            ("p", bad, "1", None) for bad in (None, "", "x", "-1", "1.5", str(LONG_MAX), str(2**64), "1e3")
        ],
        "FIRST new": [("p", str(LONG_MAX - 1), "1", None), ("q", "0", None, None), ("r", "0", "-1", None)],
    }
    answered = [(answer, row) for answer, some in rows.items() for row in some]
    flat = [(offset, answer, *row) for offset, (answer, row) in enumerate(answered)]
    df = spark.createDataFrame(
        flat, "offset int, answer string, producer string, sequence string, epoch string, c string"
    )
    df = df.withColumnRenamed("c", "_corrupt_record")
    names = ProducerColumns(epoch="epoch", order="offset")
    assert judged(df, names) == {row[0]: row[1] for row in flat}


def test_sequences_may_be_decimals_but_not_fractions(spark):
    values = ["0", "1.0", "1.5", "99999999999999999999", "-3", None, "2"]
    df = spark.createDataFrame(list(enumerate(values)), "offset int, text string")
    df = df.select("offset", F.lit("p").alias("producer"), F.col("text").cast("decimal(38,4)").alias("sequence"))
    bad = "REJECT bad_sequence"
    wanted = ["FIRST new", "FIRST new", bad, bad, bad, bad, "FIRST new"]
    assert judged(df, ProducerColumns(order="offset")) == dict(enumerate(wanted))


def test_rows_that_tie_get_the_same_answers_in_any_order_and_partitioning(spark):
    rows = [(n * 4 + i, "p", n, i, 10 - i) for n in range(100) for i in range(4)]
    df = spark.createDataFrame(rows, "offset int, producer string, sequence int, hop int, value int")
    names = ProducerColumns(payload=("value",))
    answers = judged(df, names)
    assert sorted(answers.values()) == ["FIRST new"] * 100 + ["REJECT conflict"] * 300
    assert judged(df.orderBy(F.rand(1)).repartition(5), names, partitions=2, rows_in_memory_max=50) == answers


def test_a_null_is_part_of_the_payload_at_its_own_place(spark):
    rows = [(0, "p", 1, "a", None), (1, "p", 1, None, "a"), (2, "p", 1, "a", None), (3, "p", 1, None, None)]
    df = spark.createDataFrame(rows, "offset int, producer string, sequence int, x string, y string")
    answers = judged(df, ProducerColumns(order="offset", payload=("x", "y")))
    assert list(map(answers.get, range(4))) == [
        "FIRST new",
        "REJECT conflict",
        "REPEAT behind_highest",
        "REJECT conflict",
    ]


def test_a_sequence_far_ahead_is_rejected_in_a_table_if_that_is_asked_for(spark):
    rows = [("p", 0, 1), ("p", 1, 2), ("p", 2**62, 3), ("p", 2, 4), ("q", 2**62, 5)]
    table = spark.createDataFrame(rows, "producer string, sequence long, at long")
    columns = ProducerColumns(order="at")
    for jump_max, reasons in (
        (1_000, ["new", "new", "jump_too_far", "new", "new"]),
        (None, [*["new"] * 3, "behind_highest", "new"]),
    ):
        judged = table.transform(judge_producers(columns, jump_max=jump_max)).orderBy("at").collect()
        assert [row.reason for row in judged] == reasons


def test_what_is_missing_lies_between_what_was_first(spark):
    df = spark.createDataFrame(
        [("a", s) for s in (0, 1, 4, 4, 9)] + [("b", 2)] + [("c", 0)], "producer string, sequence long"
    )
    firsts = df.transform(judge_producers(memory="gaps")).where("verdict = 'FIRST'")
    found = {tuple(row) for row in missing_sequences(firsts).collect()}
    assert found == {("a", 1, 3), ("a", 4, 8), ("b", None, 1)}


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        (lambda df: df, {"producer": ("who",)}, "no column 'who' (producer): the columns are offset, topic"),
        (lambda df: df, {"sequence": "seq"}, "no column 'seq' (sequence)"),
        (lambda df: df, {"order": "at"}, "no column 'at' (order): "),
        (lambda df: df, {"epoch": "e"}, "if there is none: epoch=None"),
        (lambda df: df, {"payload": ("body",)}, "no column 'body' (payload)"),
        (lambda df: df.withColumn("sequence", F.lit(1.5).cast("double")), {}, "column 'sequence' (sequence) is double"),
        (lambda df: df.withColumn("epoch", F.lit(True)), {"epoch": "epoch"}, "column 'epoch' (epoch) is boolean"),
        (lambda df: df.withColumn("value", F.array("key")), {"payload": ("value",)}, "must be a plain value"),
        (lambda df: df.withColumn("topic", F.array("key")), {}, "column 'topic' (producer) is array<string>"),
        (lambda df: df.withColumn("Verdict", F.lit("x")), {}, "column 'Verdict' already"),
    ],
)
def test_a_table_that_cannot_be_judged_is_misuse_and_names_the_column(table, change, names, message):
    with pytest.raises(Misuse, match=re.escape(message)):
        change(table).transform(judge_producers(ProducerColumns(**{"producer": ("topic",), **names})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remember": "all"}, "memory is 'all'"),
        ({"gap_count_max": 0}, "gap_count_max is 0"),
        ({"digests_max": -1}, "digests_max is -1"),
        ({"partitions": 0}, "partitions is 0"),
        ({"rows_in_memory_max": 0}, "rows_in_memory_max is 0"),
        ({"idle_ms": 0}, "idle_ms is 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_misuse_before_any_table_is_seen(options, message):
    with pytest.raises(Misuse, match=re.escape(message)):
        judge_producers(**options)


def test_what_needs_a_memory_is_misuse_without_one(table):
    with pytest.raises(Misuse, match="state_rows_max is 5, which needs a memory"):
        table.transform(judge_producers(NAMES, state_rows_max=5))
    with pytest.raises(Misuse, match="producer is empty"):
        ProducerColumns(producer=())
