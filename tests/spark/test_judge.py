import itertools
import re
from collections import defaultdict

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from onefold import ChainDetector
from onefold.chains.rules import LATE, SEEN, pack, valid
from onefold.errors import Misuse
from onefold.spark import ChainColumns, judge_chains
from onefold.testing.faults import Faults
from onefold.testing.traffic import KEY, Traffic, make

JUMP_MAX_MS = 900_000
HOSTILE = Faults(copies=0.3, reorder=0.3, losses=0.05, late_heads=0.3, no_previous=0.2, poisoned=0.3, malformed=0.05)
CHAINED = Faults(copies=0.3, reorder=0.3, losses=0.05, late_heads=0.5)


def whole(value):
    """What a number column holds, read as strictly as the judge must: text is a number or nothing."""
    return (
        int(value)
        if isinstance(value, str) and re.fullmatch(r"-?\d+", value)
        else None
        if isinstance(value, str)
        else value
    )


def number_of(row, prefix=""):
    parts = row[f"{prefix}timestamp"], row[f"{prefix}sequence"]
    return None if parts == (None, None) and prefix else tuple(map(whole, parts))


def scalar(table, **options):
    """offset -> (verdict, reason), by the scalar engine: per chain in the order of arrival, number, previous.

    What the gaps leave open of rows without a previous number is settled by the set of the numbers that count.
    """
    answers, chains = {}, defaultdict(list)
    for row in table.to_pylist():
        key, number, previous = tuple(row[name] for name in KEY), number_of(row), number_of(row, "previous_")
        if None in key:
            answers[row["offset"]] = "REJECT", "null_key"
        elif valid(number) is None or (previous is not None and valid(previous) is None):
            answers[row["offset"]] = "REJECT", "bad_number"
        elif pack(number) is None or (previous is not None and pack(previous) is None):
            answers[row["offset"]] = "REJECT", "number_out_of_range"
        else:
            chains[key].append((row["arrival"], number, previous or (-1, -1), row["offset"]))
    for messages in chains.values():
        detector, counted = ChainDetector(jump_max_ms=JUMP_MAX_MS, **options), set()
        assert len({message[:3] for message in messages}) == len(messages), "two rows tie: choose another seed"
        for arrival, number, previous, offset in sorted(messages):
            answer = detector.judge(None if previous < (0, 0) else previous, number, arrival)
            if previous < (0, 0) and answer.verdict == "UNSURE":
                answer = SEEN if number in counted else LATE
            elif number in counted and answer.verdict == "FIRST":
                answer = SEEN
            counted |= {number} if answer.verdict == "FIRST" else set()
            answers[offset] = str(answer.verdict), answer.reason
    return answers


def judged(df, *args, **options):
    """offset -> (verdict, reason), by Spark."""
    rows = df.transform(judge_chains(*args, **options)).select("offset", "verdict", "reason").collect()
    answers = {row.offset: (row.verdict, row.reason) for row in rows}
    assert len(answers) == len(rows)
    return answers


def truth_of(made):
    return {row["offset"]: (row["verdict"], row["reason"]) for row in made.truth.rows.to_pylist()}


def differences(one, other):
    assert one.keys() == other.keys()
    return {offset: (answer, other[offset]) for offset, answer in one.items() if answer != other[offset]}


@pytest.fixture(scope="module")
def hostile():
    return make(Traffic(seed=5, rows=4_000, chains=30, skew=1.0, ties=0.2, faults=HOSTILE))


@pytest.fixture(scope="module")
def table(spark, hostile):
    return spark.createDataFrame(hostile.messages).cache()


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"floor": "first"}, {"partitions": 1}),
        ({"floor": "open"}, {"partitions": 5}),
        ({"floor": "first", "gap_count_max": 2}, {"partitions": 3}),
        ({"floor": "open", "gap_count_max": 3}, {"rows_in_memory_max": 150, "partitions": 2}),
        ({"floor": "open", "gap_count_max": 1}, {}),
    ],
)
def test_every_row_is_answered_as_by_the_scalar_engine(hostile, table, options, tasks):
    answers = judged(table, **options, **tasks)
    assert differences(answers, scalar(hostile.messages, **options)) == {}
    refused = {offset: answer for offset, answer in truth_of(hostile).items() if answer[0] == "REJECT"}
    assert differences(refused, {offset: answers[offset] for offset in refused}) == {}


@pytest.mark.parametrize("text_numbers", [False, True])
def test_with_an_open_floor_the_verdicts_on_chained_traffic_are_the_truth(spark, text_numbers):
    faults = Faults(copies=0.3, reorder=0.3, losses=0.05, late_heads=0.5, poisoned=0.5, malformed=0.1)
    made = make(Traffic(seed=8, rows=3_000, chains=40, ties=0.2, text_numbers=text_numbers, faults=faults))
    answers = judged(spark.createDataFrame(made.messages), floor="open")
    assert differences(answers, scalar(made.messages, floor="open")) == {}
    truth = truth_of(made)
    assert {o: v for o, (v, _) in answers.items()} == {o: v for o, (v, _) in truth.items()}
    assert all(answers[o] == answer for o, answer in truth.items() if answer[0] == "REJECT")


def test_the_same_rows_get_the_same_answers_in_any_order_and_partitioning_also_where_they_tie(spark):
    made = make(Traffic(seed=2, rows=3_000, chains=10, ties=0.3, faults=CHAINED))
    table = spark.createDataFrame(made.messages)
    # Whole seconds, and few of them: a message and its copies arrive at once, and so do messages of one chain.
    table = table.withColumn("arrival", (F.col("arrival") / 60_000).cast("long") * 60_000).cache()
    answers = judged(table, floor="open")
    assert len(set(answers.values())) > 3
    for seed, tasks in ((1, {}), (2, {"partitions": 1}), (3, {"partitions": 7, "rows_in_memory_max": 100})):
        mixed = table.orderBy(F.rand(seed)).repartition(3 + seed)
        assert differences(answers, judged(mixed, floor="open", **tasks)) == {}


def test_copies_that_differ_only_in_the_microsecond_of_their_arrival_are_told_apart_every_time(spark):
    rows = [("a", n, f"2024-01-01 00:00:00.{n:03}{copy:03}") for n in range(200) for copy in (10, 20)]
    df = spark.createDataFrame(rows, "id string, timestamp long, arrival string")
    df = df.withColumn("arrival", F.to_timestamp("arrival"))
    names = ChainColumns(key=("id",), sequence=None, previous_timestamp=None, previous_sequence=None)

    def firsts(rows):
        judge = judge_chains(names, jump_max_ms="off", partitions=2)
        return {row.arrival for row in rows.transform(judge).filter("verdict = 'FIRST'").collect()}

    chosen = firsts(df)
    assert len(chosen) == 200
    assert all(firsts(df.orderBy(F.rand(seed)).repartition(4)) == chosen for seed in (1, 2))


def test_without_an_arrival_rows_are_judged_in_the_order_of_their_numbers(spark):
    made = make(Traffic(seed=3, rows=2_000, chains=10, faults=CHAINED))
    table = spark.createDataFrame(made.messages.drop_columns(["arrival"]))
    answers = judged(table, ChainColumns(arrival=None))
    verdicts = [verdict for verdict, _ in answers.values()]
    truth = [verdict for verdict, _ in truth_of(made).values()]
    assert sorted(verdicts) == sorted(truth)
    assert {reason for _, reason in answers.values()} == {"new_chain", "in_order", "opens_gap", "seen"}


def test_a_table_may_have_neither_sequence_nor_previous_numbers(spark):
    df = spark.createDataFrame(
        [("a", t, i) for i, t in enumerate([5, 6, 5, 9, 8])], "device string, ts long, offset int"
    )
    names = ChainColumns(
        key=("device",),
        timestamp="ts",
        sequence=None,
        previous_timestamp=None,
        previous_sequence=None,
        arrival="offset",
    )
    reasons = [reason for _, (_, reason) in sorted(judged(df, names).items())]
    assert reasons == ["new_chain", "ahead", "seen", "ahead", "late"]


@pytest.mark.parametrize("tasks", [{}, {"partitions": 2, "rows_in_memory_max": 1_500}])
def test_in_a_table_a_late_event_that_names_no_previous_one_counts(spark, tasks):
    rows = [
        (
            f"user {n % 50}",
            1_700_000_000_000 + 1_000 * n,
            1_700_000_000_000 + 1_000 * n + (n % 10 == 3) * 60_000 * (n % 59),
        )
        for n in range(20_000)
    ]
    names = ChainColumns(
        key=("user",), timestamp="ts", sequence=None, previous_timestamp=None, previous_sequence=None, arrival="arrival"
    )
    df = spark.createDataFrame([*rows, *rows[::100]], "user string, ts long, arrival long")
    found = df.transform(judge_chains(names, **tasks)).groupBy("verdict", "reason").count().collect()
    counts = {f"{row.verdict} {row.reason}": row["count"] for row in found}
    assert counts.pop("FIRST late") > 1_500
    assert counts.pop("REPEAT seen") == 200
    assert counts.keys() == {"FIRST new_chain", "FIRST ahead"}


def test_names_of_columns_may_hold_dots_spaces_and_backticks(spark):
    made = make(Traffic(seed=4, rows=500, chains=5, faults=HOSTILE))
    odd = {name: f"a.{name} `b`.c" for name in made.messages.column_names if name != "offset"}
    table = spark.createDataFrame(made.messages.rename_columns([odd.get(n, n) for n in made.messages.column_names]))
    roles = ("timestamp", "sequence", "previous_timestamp", "previous_sequence", "arrival")
    names = ChainColumns(key=tuple(odd[name] for name in KEY), **{role: odd[role] for role in roles})
    result = table.transform(judge_chains(names))
    assert result.columns == [*table.columns, "verdict", "reason"]
    assert differences(judged(table, names), scalar(made.messages)) == {}


def test_the_columns_of_the_user_come_through_untouched(spark):
    schema = """offset int, id string, timestamp long, m map<string,int>, a array<string>, s struct<x:int,y:string>,
                deep struct<m:map<string,int>>, many array<map<string,int>>, `dotted.name` double, b binary"""
    rows = [
        (i, "k", i // 2, {"x": i}, ["a", None], (i, None), ({"y": i},), [{"z": 1}, None], i / 3, bytes([i]))
        for i in range(20)
    ]
    df = spark.createDataFrame([*rows, (20, None, None, None, None, None, None, None, None, None)], schema)
    names = ChainColumns(key=("id",), sequence=None, previous_timestamp=None, previous_sequence=None, arrival="offset")
    result = df.transform(judge_chains(names))
    assert result.schema.fields[:-2] == df.schema.fields
    assert [(f.name, f.dataType.simpleString()) for f in result.schema.fields[-2:]] == [
        ("verdict", "string"),
        ("reason", "string"),
    ]
    came, left = (
        sorted(d.select(*df.schema.names[:8], "b").collect(), key=lambda row: row.offset)
        for d in (df, result.drop("dotted.name"))
    )
    assert came == left
    assert result.filter("verdict = 'FIRST'").count() == 10


def test_copies_that_differ_only_in_a_map_get_the_same_answers_every_time(spark):
    df = spark.createDataFrame(
        [(n, {"hop": i}) for n in range(100) for i in range(4)], "timestamp long, m map<string,int>"
    )
    df = df.withColumn("id", F.lit("a"))
    names = ChainColumns(key=("id",), sequence=None, previous_timestamp=None, previous_sequence=None, arrival=None)

    def firsts(rows):
        result = rows.transform(judge_chains(names, partitions=1)).filter("verdict = 'FIRST'")
        return {(row.timestamp, row.m["hop"]) for row in result.collect()}

    assert len(firsts(df)) == 100
    assert firsts(df.orderBy(F.rand(1))) == firsts(df.orderBy(F.rand(2))) == firsts(df)


AFTERWARDS = {
    "filter on a user's column": lambda df: df.filter("offset % 3 = 0"),
    "filter on the key": lambda df: df.filter("partition = 1"),
    "filter on the verdict": lambda df: df.filter("verdict = 'REPEAT' and offset > 1000"),
    "order": lambda df: df.orderBy("offset"),
    "order and limit": lambda df: df.orderBy("offset").limit(100),
    "limit": lambda df: df.limit(100),
    "limit of the repeats": lambda df: df.filter("verdict = 'REPEAT'").limit(50),
    "sample": lambda df: df.sample(0.1, seed=1),
    "another partitioning": lambda df: df.repartition(3),
    "one of each": lambda df: df.dropDuplicates(["offset"]),
    "union with itself": lambda df: df.filter("offset < 500").union(df.filter("offset >= 3000")),
    "join": lambda df: df.join(df.sparkSession.range(0, 4000, 7).withColumnRenamed("id", "offset"), "offset"),
    "nothing but the verdict": lambda df: df.select("offset", "verdict", "reason"),
}


@pytest.fixture(scope="module")
def answers(table):
    return judged(table)


@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_is_done_afterwards_does_not_change_an_answer(table, answers, name):
    rows = AFTERWARDS[name](table.transform(judge_chains())).select("offset", "verdict", "reason").collect()
    assert rows
    assert {row.offset: (row.verdict, row.reason) for row in rows}.items() <= answers.items()


def test_an_empty_table_gives_an_empty_table(table):
    result = table.filter("false").transform(judge_chains())
    assert result.collect() == []
    assert result.columns == [*table.columns, "verdict", "reason"]


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        (lambda df: df.drop("publisher"), {}, "no column 'publisher' (key)"),
        (lambda df: df.drop("arrival"), {"arrival": "arrival"}, "no column 'arrival' (arrival)"),
        (lambda df: df, {"timestamp": "time"}, "no column 'time' (timestamp)"),
        (lambda df: df.withColumn("sequence", F.lit(1.5)), {}, "column 'sequence' (sequence) is double"),
        (lambda df: df.withColumn("arrival", F.lit(True)), {}, "column 'arrival' (arrival) is boolean"),
        (
            lambda df: df.withColumn("timestamp", F.lit(True)),
            {},
            "column 'timestamp' (timestamp) is boolean, must be whole numbers or times",
        ),
        (
            lambda df: df.withColumn("chain", F.create_map(F.lit(1), F.lit(2))),
            {},
            "column 'chain' (key) is map<int,int>",
        ),
        (lambda df: df.withColumn("chain", F.array(F.create_map(F.lit(1), F.lit(2)))), {}, "column 'chain' (key)"),
        (lambda df: df.withColumn("verdict", F.lit("x")), {}, "column 'verdict' already"),
        (lambda df: df.withColumn("Reason", F.lit("x")), {}, "column 'Reason' already"),
    ],
)
def test_a_table_that_cannot_be_judged_is_misuse_and_names_the_column(table, change, names, message):
    with pytest.raises(Misuse, match=re.escape(message)):
        change(table).transform(judge_chains(ChainColumns(**names)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap_count_max": 0}, "gap_count_max is 0"),
        ({"floor": "low"}, "floor is 'low'"),
        ({"rows_in_memory_max": 0}, "rows_in_memory_max is 0"),
        ({"partitions": 0}, "partitions is 0"),
        ({"partitions": -1}, "partitions is -1"),
        ({"jump_max_ms": -5}, "jump_max_ms is -5"),
        ({"jump_max_ms": "soon"}, "jump_max_ms is 'soon'"),
        ({"columns": ChainColumns(arrival=None), "jump_max_ms": 5}, "jump_max_ms needs an arrival column"),
    ],
)
def test_a_setting_that_makes_no_sense_is_misuse_before_any_table_is_seen(options, message):
    with pytest.raises(Misuse, match=re.escape(message)):
        judge_chains(**options)


def test_a_key_is_at_least_one_column():
    with pytest.raises(Misuse, match="key is"):
        ChainColumns(key=())


def test_chains_are_told_apart_by_each_part_of_their_key(spark):
    keys = list(itertools.product(["a", "b", "ab", ""], ["a", "b", "ab", ""]))
    rows = [(*key, 7, i) for i, key in enumerate(keys)]
    df = spark.createDataFrame(
        pa.table(dict(zip(["x", "y", "timestamp", "offset"], map(list, zip(*rows, strict=True)), strict=True)))
    )
    names = ChainColumns(
        key=("x", "y"), sequence=None, previous_timestamp=None, previous_sequence=None, arrival="offset"
    )
    assert set(judged(df, names, partitions=1).values()) == {("FIRST", "new_chain")}
