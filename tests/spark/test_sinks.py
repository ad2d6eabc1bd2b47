"""One contract for all sinks: each batch is seen once, whole, in order; told against the real systems."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from threading import Event
from time import sleep

import psycopg
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from pyiceberg.catalog import load_catalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import BadInput, Misuse, StaleWrite, StoreFailed
from onefold.spark.files import Place
from onefold.spark.sinks import open_sink, publish
from onefold.spark.sinks.delta import FORBIDDEN
from onefold.spark.sinks.sink import Attempt
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict
from tests.lib.examples import proof

FORMATS = ["parquet", "delta", "iceberg", "postgres"]
ME, OTHER = "6f1c2f0e-0000-4000-8000-000000000001", "6f1c2f0e-0000-4000-8000-000000000002"
SCHEMA = "id long, text string, verdict string, reason string"
ANSWERS = [("FIRST", "in_order"), ("REPEAT", "seen"), ("FIRST", "new_chain"), ("REJECT", "no_key"), ("UNSURE", "old")]
FOLDERS = ["firsts", "repeats", "unsure", "rejects"]
COUNTER = count()


class Bench:
    """A sink of one format at a fresh place, and how a stranger with no code of ours reads it."""

    def __init__(self, spark, format, path, strategy="mark"):
        self.spark, self.format, self.path, self.strategy = spark, format, path, strategy

    def open(self, strategy=None):
        return open_sink(self.spark, self.path, format=self.format, strategy=strategy or self.strategy)

    def publish(self, batch, rows, gaps=None, stream=ME):
        return publish(self.open(), stream, batch, rows, gaps)

    def rows(self):
        if self.format == "parquet":
            folders = FOLDERS if self.strategy == "drop" else ["messages"]
            return [r for name in folders for r in self._parquet(name)]
        return self._table("")

    def gaps(self):
        if self.format == "parquet":
            return self._parquet("gaps")
        return self._table("_gaps")

    def _table(self, suffix):
        if self.format == "iceberg":
            return self._iceberg(suffix)
        return self._delta(f"{self.path}{suffix}") if self.format == "delta" else self._sql(suffix)

    def ids(self):
        return sorted(row["id"] for row in self.rows())

    def _parquet(self, name):
        return [r.asDict(recursive=True) for r in self.spark.read.parquet(f"{self.path}/batches/*/{name}").collect()]

    def _delta(self, path):
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        asked = QueryBuilder().register("t", DeltaTable(path)).execute("select count(*) as n from t").read_all()
        assert asked["n"].to_pylist() == [len(rows)]
        return rows

    def _iceberg(self, suffix):
        file, _, name = self.path.partition("#")
        return load_catalog(type="sql", uri=f"sqlite:///{file}").load_table(name + suffix).scan().to_arrow().to_pylist()

    def _sql(self, suffix):
        url, _, table = self.path.partition("#")
        with psycopg.connect(url, row_factory=dict_row) as connection:
            return connection.execute(SQL("select * from {}").format(Identifier(table + suffix))).fetchall()


@pytest.fixture
def bench(spark, tmp_path, request):
    def make(format, strategy="mark"):
        if format == "postgres":
            table = f"t{os.getpid()}_{next(COUNTER)}"  # other processes use this server, too
            return Bench(spark, format, f"{request.getfixturevalue('postgres_uri')}#{table}", strategy)
        if format == "iceberg":
            return Bench(spark, format, f"{tmp_path}/lake/catalog.db#db.out", strategy)
        return Bench(spark, format, str(tmp_path / "out"), strategy)

    return make


@pytest.fixture
def frame(spark):
    """Rows with these ids in two partitions, with the answers in turn."""

    def make(*ids, schema=SCHEMA):
        rows = [(i, f"message {i}", *ANSWERS[i % len(ANSWERS)]) for i in ids]
        return spark.createDataFrame(rows, schema).repartition(2)

    return make


def gap_frame(spark, *uppers):
    return spark.createDataFrame([("chain", None, upper) for upper in uppers], "key string, lower long, upper long")


def unreadable(spark):
    """A frame that fails as soon as anybody evaluates it."""
    row = spark.range(1).select(F.raise_error(F.lit("evaluated")).cast("long").alias("id"))
    return row.select("id", *(F.lit("x").alias(name) for name in ("text", "verdict", "reason")))


def tally(*ids):
    books = Tally()
    for i in ids:
        verdict, reason = ANSWERS[i % len(ANSWERS)]
        books.arrive()
        books.judge(Answer(Verdict(verdict), reason))
    return books


@pytest.mark.parametrize("strategy", ["drop", proof("mark"), proof("none")])
@pytest.mark.parametrize("format", FORMATS)
def test_each_batch_is_seen_once_in_order_and_the_books_add_up(spark, bench, frame, format, strategy):
    place = bench(format, strategy)
    assert place.open().last(ME) is None
    assert place.open().total() == Tally()
    assert place.publish(0, frame(0, 1, 2, 3, 4), gap_frame(spark, 7)) == tally(*range(5))
    assert place.publish(1, frame(), gap_frame(spark)) == Tally()
    assert place.publish(2, frame(5, 6), gap_frame(spark, 8, 9)) == tally(5, 6)
    assert place.open().last(ME) == 2

    lost = unreadable(spark)
    assert place.publish(2, lost, lost) is None
    with pytest.raises(Misuse, match=r"batch 1 goes backwards: .* up to 2"):
        place.publish(1, lost)
    with pytest.raises(Misuse, match=r"batch 4 leaves a hole: .* ends with batch 2, so 3 must come next"):
        place.publish(4, lost)
    with pytest.raises(Misuse, match=r"written by another checkpoint .* counted twice"):
        place.publish(0, lost, stream=OTHER)

    assert place.ids() == list(range(7))
    assert sorted(gap["upper"] for gap in place.gaps()) == [7, 8, 9]
    assert place.open().total() == tally(*range(7))
    columns = {"id", "text"} if strategy == "none" else {"id", "text", "verdict", "reason"}
    assert all(set(row) == columns for row in place.rows())
    if strategy != "none":
        assert all((row["verdict"], row["reason"]) == ANSWERS[row["id"] % 5] for row in place.rows())


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_stream_is_a_stream(bench, frame, format):
    place = bench(format, "drop")
    assert place.publish(0, frame()) == Tally()
    assert place.open().last(ME) == 0
    assert place.rows() == []
    assert place.publish(1, frame(3)) == tally(3)
    assert place.ids() == [3]


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_place_wants_batch_0(spark, bench, format):
    place = bench(format)
    with pytest.raises(Misuse, match=r"is empty, but this checkpoint goes on with batch 3: .* missing"):
        place.publish(3, unreadable(spark))


@pytest.mark.parametrize("strategy", [proof("drop"), "none"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_crash_before_the_commit_leaves_nothing_that_counts(spark, bench, frame, format, strategy, monkeypatch):
    place = bench(format, strategy)
    place.publish(0, frame(0, 1), gap_frame(spark, 7))

    def crash(*args):
        raise OSError("the driver died")

    steps = {
        "parquet": "onefold.spark.files.Place.publish_as",
        "delta": "onefold.spark.sinks.delta._Table.commit",
        "iceberg": "onefold.spark.sinks.iceberg._Table.commit",
        "postgres": "onefold.spark.sinks.postgres.PostgresSink._book",
    }
    with monkeypatch.context() as patch:
        patch.setattr(steps[format], crash)
        for _ in range(2):
            with pytest.raises(OSError, match="the driver died"):
                place.publish(1, frame(2, 3), gap_frame(spark, 8))
    assert place.open().last(ME) == 0
    assert place.ids() == [0, 1]
    assert place.open().total() == tally(0, 1)
    assert place.publish(1, frame(2, 3), gap_frame(spark, 8)) == tally(2, 3)
    assert place.ids() == [0, 1, 2, 3]
    assert sorted(gap["upper"] for gap in place.gaps()) == [7, 8]
    assert place.open().total() == tally(0, 1, 2, 3)


@pytest.mark.parametrize("format", FORMATS)
def test_a_task_that_fails_fails_the_batch_and_the_next_attempt_is_whole(spark, bench, frame, format):
    place = bench(format)
    with pytest.raises(Exception, match="evaluated"):
        place.publish(0, frame(0).union(unreadable(spark)))
    assert place.open().last(ME) is None
    assert place.publish(0, frame(0, 1)) == tally(0, 1)
    assert place.ids() == [0, 1]


@pytest.mark.parametrize("strategy", ["drop", "none"])
@pytest.mark.parametrize("format", FORMATS)
def test_the_rows_are_evaluated_once(spark, bench, format, strategy):
    seen = spark.sparkContext.accumulator(0)

    def look(arrow):
        for batch in arrow:
            seen.add(batch.num_rows)
            yield batch

    rows = spark.range(5).selectExpr("id", "'x' text", "'FIRST' verdict", "'in_order' reason")
    bench(format, strategy).publish(0, rows.mapInArrow(look, SCHEMA))
    assert seen.value == 5


@pytest.mark.parametrize("format", FORMATS)
def test_the_loser_of_two_writers_changes_nothing(bench, frame, format):
    place = bench(format)
    place.publish(0, frame(0))
    late = place.open()
    assert late.last(ME) == 0
    place.publish(1, frame(1))
    with pytest.raises(StaleWrite):
        late.write(ME, 1, frame(1), None)
    assert place.ids() == [0, 1]
    assert place.open().total() == tally(0, 1)
    assert place.publish(2, frame(2)) == tally(2)


@pytest.mark.parametrize("format", FORMATS)
def test_other_columns_or_another_strategy_are_one_clear_refusal(bench, frame, format):
    place = bench(format)
    place.publish(0, frame(0))
    with pytest.raises(Misuse, match=r"has other columns than this batch: 'txt' is missing there"):
        place.publish(1, frame(1, schema=SCHEMA.replace("text", "txt")))
    with pytest.raises(
        Misuse, match=r"has other columns than this batch: 'id' is .*(long|bigint).* there, .*int.* here"
    ):
        place.publish(1, frame(1).withColumn("id", F.col("id").cast("int")))
    place.strategy = "none"
    with pytest.raises(Misuse, match=r"strategy mark|other columns"):
        place.publish(1, frame(1))
    place.strategy = "mark"
    assert place.ids() == [0]
    assert place.publish(1, frame(1)) == tally(1)


@pytest.mark.parametrize("format", FORMATS)
def test_another_meaning_is_refused_by_its_name_and_one_that_was_not_kept_is_kept_from_now_on(bench, frame, format):
    place, meaning = bench(format), {"engine": "chains", "key": "a string, b string"}

    def sink(meaning):
        return open_sink(place.spark, place.path, format=format, strategy="mark", meaning=meaning)

    publish(place.open(), ME, 0, frame(1), None)  # as versions did that kept none
    publish(sink(meaning), ME, 1, frame(2), None)
    for check in (lambda sink: sink.last(ME), lambda sink: publish(sink, ME, 2, frame(3), None)):
        with pytest.raises(Misuse, match="begun with key = 'a string, b string', not 'b string, a string'"):
            check(sink({**meaning, "key": "b string, a string"}))
    publish(sink(meaning), ME, 2, frame(3), None)
    assert place.ids() == [1, 2, 3]


@pytest.mark.parametrize("format", FORMATS)
def test_gaps_are_the_concern_of_each_batch(spark, bench, frame, format):
    place = bench(format)
    place.publish(0, frame(0))
    place.publish(1, frame(1), gap_frame(spark, 5))
    place.publish(2, frame(2))
    place.publish(3, frame(3), gap_frame(spark, 6))
    assert sorted(gap["upper"] for gap in place.gaps()) == [5, 6]


@pytest.mark.parametrize("format", ["parquet", proof("delta"), "postgres"])
def test_a_stream_that_dies_after_each_commit_counts_every_row_once(spark, bench, tmp_path, format):
    place, source, checkpoint = bench(format, "drop"), tmp_path / "source", tmp_path / "checkpoint"
    for n in range(3):
        messages = spark.range(n * 4, n * 4 + 6).selectExpr("id", "'x' text")
        messages.coalesce(1).write.mode("append").parquet(str(source))
    died, replayed = set(), []

    def write(rows, batch):
        stream = json.loads((checkpoint / "metadata").read_text())["id"]
        if publish(place.open(), stream, batch, rows, None) is None:
            replayed.append(batch)
            rows.write.format("noop").mode("overwrite").save()  # what publish() asks of a stateful stream
        if batch not in died:
            died.add(batch)
            raise OSError("the driver died after the commit")

    def attempt():
        files = spark.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1).parquet(str(source))
        firsts = files.dropDuplicates(["id"]).selectExpr("*", "'FIRST' verdict", "'in_order' reason")
        query = firsts.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="the driver died"):
            attempt()
    attempt()
    assert replayed == [0, 1, 2]
    assert place.ids() == list(range(14))
    assert place.open().total().received == 14
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match="was written by another checkpoint"):
        attempt()
    assert place.ids() == list(range(14))


NAMES = ["a.b", 'quo"te', "back`tick", "GROSS", "größe", "100%", "$1", "'", "select", "part", "c0", "a=b", "'; drop --"]
HOSTILE = ["", "NULL", "\\N", "\\.", '"', "'", ',"\r\n', "tab\t", "\\", "größe 漢字 🎉", "{}", "$1 %s"]


@pytest.mark.parametrize("format", FORMATS)
def test_names_and_values_come_out_as_they_went_in(spark, bench, format):
    names = [name for name in NAMES if format != "delta" or not set(name) & set(FORBIDDEN)]
    fields = [T.StructField(name, T.StringType()) for name in [*names, "verdict", "reason"]]
    rows = [(*[value] * len(names), "FIRST", "in_order") for value in [*HOSTILE, None]]
    place = bench(format)
    place.publish(0, spark.createDataFrame(rows, T.StructType(fields)))
    found = place.rows()
    assert set(found[0]) == {*names, "verdict", "reason"}
    for name in names:
        assert {row[name] for row in found} == {*HOSTILE, None}
    assert len(found) == len(HOSTILE) + 1


def test_delta_refuses_names_and_types_that_its_protocol_does_not_know(bench, frame):
    place = bench("delta")
    with pytest.raises(Misuse, match="column 'two words': Delta allows none of"):
        place.publish(0, frame(0).withColumnRenamed("text", "two words"))
    with pytest.raises(Misuse, match="column 'a b': Delta allows none of"):
        place.publish(0, frame(0).withColumn("text", F.array(F.struct(F.lit(1).alias("a b")))))
    with pytest.raises(Misuse, match="column 'text' is interval day, which Delta has no type for"):
        place.publish(0, frame(0).withColumn("text", F.expr("interval 1 day")))


TYPED = {
    "byte": (T.ByteType(), -128),
    "short": (T.ShortType(), -32768),
    "int": (T.IntegerType(), -(2**31)),
    "long": (T.LongType(), -(2**63)),
    "float": (T.FloatType(), 0.5),
    "double": (T.DoubleType(), float("inf")),
    "boolean": (T.BooleanType(), True),
    "timestamp": (T.TimestampType(), datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)),
    "old": (T.TimestampType(), datetime(1600, 1, 1, 0, 0, 0, 1, UTC)),
    "day": (T.DateType(), date(1582, 10, 15)),
    "binary": (T.BinaryType(), b"\x00\xff\\x"),
    "decimal": (T.DecimalType(38, 18), Decimal("-12345678901234567890.123456789012345678")),
    "array": (T.ArrayType(T.StringType()), ["a", None, '"']),
    "struct": (T.StructType().add("x", "long").add("y", "string"), {"x": 1, "y": None}),
}


@pytest.mark.parametrize("format", FORMATS)
def test_every_type_comes_out_as_it_went_in_and_so_does_null(spark, bench, format):
    fields = [T.StructField(name, kind) for name, (kind, _) in TYPED.items()]
    fields += [T.StructField(name, T.StringType(), nullable=False) for name in ("verdict", "reason")]
    values = [value for _, value in TYPED.values()]
    rows = [(*values, "FIRST", "in_order"), (*[None] * len(values), "REJECT", "no_key")]
    place = bench(format)
    place.publish(0, spark.createDataFrame(rows, T.StructType(fields)))
    for row in place.rows():
        for name, (_, value) in TYPED.items():
            got = row[name]
            if isinstance(got, datetime) and got.tzinfo is None:
                got = got.astimezone(UTC)  # Spark gives the time of the machine's zone
            assert (bytes(got) if isinstance(got, bytearray) else got) == (value if row["verdict"] == "FIRST" else None)


def test_what_is_no_text_to_postgres_is_replaced_and_stops_nobody(spark, bench):
    place = bench("postgres")
    bad = spark.sql(
        r"""select 1L id, concat('a', char(0), 'b') text, array(concat(char(0), char(0)), r'\u0000', r'\\') list,
        cast(x'61ff' as string) broken, timestamp'294000-01-01 00:00:00' late, timestamp'-0043-03-15 00:00:00' caesar,
        'REJECT' verdict, 'no_key' reason"""
    )
    place.publish(0, bad.drop("late", "caesar"))
    (row,) = place.rows()
    assert row["text"] == "a\ufffdb"
    assert row["list"] == ["\ufffd\ufffd", "\\u0000", "\\\\"]
    assert row["broken"] == "a\ufffd"
    times = bench("postgres")
    times.publish(0, bad.select("late", "caesar", "verdict", "reason"))
    url, _, table = times.path.partition("#")
    with psycopg.connect(url) as connection:
        query = SQL("select (late at time zone 'UTC')::text, (caesar at time zone 'UTC')::text from {}")
        assert connection.execute(query.format(Identifier(table))).fetchall() == [
            ("294000-01-01 00:00:00", "0044-03-15 00:00:00 BC")
        ]


def test_a_value_that_postgres_cannot_hold_is_named(spark, bench):
    place = bench("postgres")
    rows = spark.sql("select timestamp'-9999-01-01 00:00:00' t, 'FIRST' verdict, 'in_order' reason")
    with pytest.raises(Exception, match="cannot hold a value: timestamp out of range"):
        place.publish(0, rows)
    assert place.open().last(ME) is None


def test_a_postgres_address_never_shows_its_password(spark):
    def message(url):
        with pytest.raises((Misuse, OSError)) as caught:
            open_sink(spark, url, format="postgres", strategy="mark").last(ME)
        return str(caught.value)

    for url in [
        "postgresql://me:secret@127.0.0.1:1/db#s.t",
        "postgresql://me:secret@[::1/db",
        "postgresql://me:sec#ret@host/db",
        "mysql://me:secret@host/db",
    ]:
        assert "sec" not in message(url).replace("second", "")
    assert "127.0.0.1:1/db#s.t" in message("postgresql://me:secret@127.0.0.1:1/db#s.t")
    assert "there is no schema" not in message("postgresql://me:secret@127.0.0.1:1/db#s.t")


def test_postgres_takes_an_empty_table_of_the_user_and_refuses_one_with_rows(spark, bench, frame):
    place = bench("postgres")
    url, _, table = place.path.partition("#")
    with psycopg.connect(url) as connection:
        query = SQL("create table {} (id bigint primary key, text text, verdict text, reason text)")
        connection.execute(query.format(Identifier(table)))
    place.publish(0, frame(0))
    assert place.ids() == [0]
    with pytest.raises(OSError, match="duplicate key"):  # the user's own rule holds, and nothing of the batch is seen
        place.publish(1, frame(1, 0))
    assert place.ids() == [0]
    assert place.open().last(ME) == 0
    theirs = bench("postgres")
    with psycopg.connect(url) as connection:
        query = SQL("create table {} as select 1 as x")
        connection.execute(query.format(Identifier(theirs.path.partition("#")[2])))
    with pytest.raises(Misuse, match="holds rows that no stream of ours wrote"):
        theirs.publish(0, unreadable(spark))


def test_a_second_attempt_at_a_part_replaces_the_first_in_postgres(bench, frame):
    place = bench("postgres")
    sink = place.open()
    staging = sink._stage(ME, frame(0, 1, 2), None)
    for _ in range(2):
        assert sink._copy_part(staging[""], 0, [(1, b'0,"5","again","FIRST","in_order"\n')]) == 1
    url, _, _ = place.path.partition("#")
    with psycopg.connect(url) as connection:
        query = SQL("select c0 from {} where part = 0").format(Identifier(staging[""].name))
        assert connection.execute(query).fetchall() == [(5,)]
    place.publish(0, frame(0, 1, 2))
    with pytest.raises(OSError, match="does not exist"):  # a task of the first attempt finds no table any more
        sink._copy_part(staging[""], 0, [])
    assert place.ids() == [0, 1, 2]
    with psycopg.connect(url) as connection:
        left = "select count(*) from pg_class where relname like %s"
        assert connection.execute(left, [f"%{staging[''].name}%"]).fetchone() == (0,)


def test_two_attempts_at_a_part_at_once_leave_one_in_postgres(bench, frame):
    place = bench("postgres")
    sink = place.open()
    staging = sink._stage(ME, frame(), None)[""]
    go_on = Event()

    def slow():
        yield 1, b'7,"1","slow","FIRST","in_order"\n'
        assert go_on.wait(60)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(sink._copy_part, staging, 7, slow())
        sleep(0.5)
        second = threads.submit(sink._copy_part, staging, 7, [(1, b'7,"2","quick","FIRST","in_order"\n')])
        sleep(0.5)
        assert not second.done()
        go_on.set()
        assert (first.result(), second.result()) == (1, 1)
    sink._commit(ME, 0, {"": staging})
    assert place.ids() == [2]


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(spark, bench, tmp_path, format):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    with pytest.raises(Misuse, match=r"is not a stream's output: it holds 'precious\.txt'"):
        bench(format).publish(0, unreadable(spark))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]


@pytest.mark.parametrize(
    ("format", "path", "message"),
    [
        ("delta", "hdfs://127.0.0.1:1/out", "local paths only"),
        ("nonsense", "somewhere", "must be parquet, delta, iceberg or postgres"),
    ],
)
def test_a_place_that_cannot_keep_the_promise_is_refused(spark, format, path, message):
    with pytest.raises(Misuse, match=message):
        open_sink(spark, path, format=format, strategy="mark")


def test_parquet_has_one_folder_per_batch_and_nothing_half_done(spark, bench, frame, tmp_path):
    place = bench("parquet", "drop")
    place.publish(0, frame(0, 1), gap_frame(spark, 3))
    place.publish(1, frame(2))
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["_staging", "batches", "stream.json"]
    assert [path.name for path in (out / "_staging").iterdir()] == ["attempt.json"]
    names = {path.name for path in (out / "batches" / "000000000000").iterdir()}
    assert names == {*FOLDERS, "gaps", "tally.json"}
    assert {path.name for path in (out / "batches" / "000000000001").iterdir()} == {*FOLDERS, "tally.json"}
    assert json.loads((out / "batches" / "000000000001" / "tally.json").read_text())["batch"] == 1
    columns = {"id": "bigint", "text": "string", "verdict": "string", "reason": "string"}
    signed = {"format": 1, "stream": ME, "strategy": "drop", "columns": columns}
    assert json.loads((out / "stream.json").read_text()) == signed
    assert {row.verdict for row in spark.read.parquet(f"{out}/batches/*/firsts").collect()} == {"FIRST"}


def test_an_attempt_that_was_overtaken_knows_it_and_its_draft_is_gone(spark, tmp_path):
    home = Place(spark, str(tmp_path / "home"))
    early = Attempt(home, 4)
    early.draft.make()
    early.check()
    late = Attempt(home, 4)
    with pytest.raises(StaleWrite, match="another attempt"):
        early.check()
    late.check()
    assert home.names() == ["attempt.json"]


def test_a_rename_never_goes_into_or_over_what_is_there(spark, tmp_path):
    place = Place(spark, str(tmp_path))
    (place / "a").make()
    (place / "b").make()
    with pytest.raises(StaleWrite, match="published by somebody else"):
        (place / "a").publish_as(place / "b")
    with pytest.raises(OSError, match="cannot publish"):
        (place / "nothing").publish_as(place / "c")
    assert place.names() == ["a", "b"]


def test_delta_keeps_its_books_through_a_checkpoint_and_a_user_s_own_commits(bench, frame, tmp_path):
    place = bench("delta")
    place.publish(0, frame(0, 1, 2))
    place.publish(1, frame(5, 6, 7))
    DeltaTable(place.path).optimize.compact()
    DeltaTable(place.path).create_checkpoint()
    DeltaTable(place.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert place.publish(2, frame(8)) == tally(8)
    assert place.ids() == [0, 1, 2, 5, 6, 7, 8]
    assert place.open().total() == tally(0, 1, 2, 5, 6, 7, 8)
    assert DeltaTable(place.path).metadata().partition_columns == ["verdict"]
    assert (tmp_path / "out" / "data" / "000000000002").exists()


def test_delta_keeps_its_books_when_others_let_its_commits_be_removed_from_the_log(bench, frame, tmp_path):
    place, log = bench("delta"), tmp_path / "out" / "_delta_log"
    place.publish(0, frame(0, 1, 2))
    DeltaTable(place.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 7 days"})
    DeltaTable(place.path).create_checkpoint()
    (log / f"{0:020}.json").unlink()  # as a clean-up does when they are old
    assert place.open().last(ME) == 0
    assert place.publish(1, frame(5)) == tally(5)
    assert place.open().total() == tally(0, 1, 2, 5)
    DeltaTable(place.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 8 days"})
    DeltaTable(place.path).create_checkpoint()
    (log / f"{2:020}.json").unlink()
    kept = tmp_path / "out" / "_onefold" / "books.json"
    kept.write_text(kept.read_text().replace('"batch": 1', '"batch": 0'))
    with pytest.raises(BadInput, match="holds no books of ours any more"):
        place.open().total()


def test_delta_commits_again_after_another_writer_and_never_into_the_table_of_another_stream(
    bench, frame, monkeypatch
):  # fmt: skip
    place = bench("delta")
    place.publish(0, frame(0, 1))
    table = type(place.open()._rows)
    others: list[Callable[[DeltaTable], object]] = []
    opened = table._open

    def overtaken(self):  # by a DELETE, between the look and the commit
        there = opened(self)
        if others and self._place.shown == place.path:
            others.pop()(DeltaTable(place.path))
        return there

    monkeypatch.setattr(table, "_open", overtaken)
    late = place.open()
    others.append(lambda mine: mine.delete("id = 1"))
    late._rows.commit(ME, 1, "0" * 12, frame().schema, {"batch": 1})
    assert (place.open().last(ME), place.ids()) == (1, [0])
    with pytest.raises(Misuse, match="written by another checkpoint"):
        late._rows.commit(OTHER, 0, "0" * 12, frame().schema, {"batch": 0})
    others.append(lambda mine: mine.alter.add_columns([DeltaField("more", PrimitiveType("long"))]))
    with pytest.raises(Misuse, match="has other columns than this batch: 'more' is"):
        late._rows.commit(ME, 2, "0" * 12, frame().schema, {"batch": 2})


def test_a_log_of_delta_that_cannot_be_read_is_one_line(bench, frame, tmp_path):
    place = bench("delta")
    place.publish(0, frame(0))
    (tmp_path / "out" / "_delta_log" / f"{0:020}.json").write_text("no log")
    with pytest.raises(Misuse) as caught:
        place.open().last(ME)
    assert re.fullmatch(rf"{re.escape(place.path)}: [^\n]+", str(caught.value))


def test_iceberg_knows_its_last_batch_through_compaction_and_when_its_snapshots_expire(bench, frame):
    place = bench("iceberg")
    place.publish(0, frame(0, 1, 2), None)
    file, _, name = place.path.partition("#")
    table = load_catalog(type="sql", uri=f"sqlite:///{file}").load_table(name)
    table.overwrite(table.scan().to_arrow())  # as a compaction rewrites all files
    newest = table.snapshots()[-1].snapshot_id
    ids = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != newest]
    expiry = table.maintenance.expire_snapshots()
    expiry.by_ids(ids).commit()
    assert [each.snapshot_id for each in table.refresh().snapshots()] == [newest]
    assert place.open().last(ME) == 0
    assert place.publish(0, None) is None
    assert place.publish(1, frame(5)) == tally(5)
    assert place.ids() == [0, 1, 2, 5]
    assert place.open().total() == tally(0, 1, 2, 5)


def test_what_comes_to_iceberg_between_the_look_and_the_commit_makes_no_batch_lost_or_double(
    bench, frame, monkeypatch
):  # fmt: skip
    place = bench("iceberg")
    place.publish(0, frame(0))
    rows, module = place.open()._rows, "onefold.spark.sinks.iceberg"
    files, _ = rows.writing(ME, frame().schema, 1, "a" * 12).write(frame(1))
    table, rivals = type(rows), [lambda: place.publish(1, frame(1))]
    opened = table._open

    def overtaken(self):
        there = opened(self)
        if self is rows and rivals:
            rivals.pop()()
        return there

    monkeypatch.setattr(table, "_open", overtaken)
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.remove_others", lambda *args: None)  # the other one died right after its commit
        with pytest.raises(StaleWrite, match="got batch 1 from somebody else"):
            rows.commit(ME, 1, "a" * 12, files, {})
    files, _ = rows.writing(ME, frame().schema, 2, "b" * 12).write(frame(2))
    rivals.append(lambda: place.publish(2, frame(2)))
    with pytest.raises(StaleWrite, match="a second query wrote batch 2 and removed these files"):
        rows.commit(ME, 2, "b" * 12, files, {})
    assert place.ids() == [0, 1, 2]
    file, _, name = place.path.partition("#")
    stranger = load_catalog(type="sql", uri=f"sqlite:///{file}").load_table(name)
    files, _ = rows.writing(ME, frame().schema, 3, "c" * 12).write(frame(3))
    rivals.append(lambda: stranger.delete("id = 0"))
    rows.commit(ME, 3, "c" * 12, files, {})  # once more, after another look
    assert (place.open().last(ME), place.ids()) == (3, [1, 2, 3])


def test_a_catalogue_that_somebody_else_holds_is_one_line(bench, frame, tmp_path):
    place = bench("iceberg")
    place.publish(0, frame(0))
    with closing(sqlite3.connect(tmp_path / "lake" / "catalog.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(StoreFailed, match=r"catalog\.db#db\.out\w*: OperationalError: .*database is locked"):
            place.publish(1, frame(1))
    assert place.publish(1, frame(1)) == tally(1)
    assert place.ids() == [0, 1]


def test_delta_heals_a_crash_between_the_gaps_and_the_rows(spark, bench, frame, monkeypatch):
    place = bench("delta")
    with monkeypatch.context() as patch:
        patch.setattr("onefold.spark.sinks.delta._Table.books", lambda table, kept: None)
        table = type(place.open()._rows)
        commit = table.commit
        calls = iter([commit])
        patch.setattr(table, "commit", lambda *args: next(calls)(*args))
        with pytest.raises(StopIteration):
            place.publish(0, frame(0), gap_frame(spark, 7))
    assert place.open().last(ME) is None
    assert place.publish(0, frame(0), unreadable(spark)) == tally(0)
    assert place.ids() == [0]
    assert [gap["upper"] for gap in place.gaps()] == [7]


def test_bad_books_are_never_taken_for_a_total(spark, bench, frame, tmp_path):
    place = bench("parquet")
    place.publish(0, frame(0))
    (tmp_path / "out" / "batches" / "000000000000" / "tally.json").write_text("{}")
    with pytest.raises(BadInput, match="not a tally"):
        place.open().total()
