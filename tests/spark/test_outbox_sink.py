"""The outbox sink: the rows of a batch become messages once, however often the batch is tried."""

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from onefold.errors import BadInput, Misuse, StoreFailed
from onefold.outbox.plans import unpack_message
from onefold.outbox.ports import open_ledger, open_queue
from onefold.spark import outbox_sink, send_batch
from onefold.spark.outbox import SentBatch


class Bench:
    """A ledger and a queue in files of their own, and what was sent through them."""

    def __init__(self, folder):
        self.ledger_file, self.queue_file = folder / "ledger.db", folder / "queue.db"
        self.places = {"store": f"sqlite:///{self.ledger_file}", "transport": f"sqlite:///{self.queue_file}"}
        self.names = {**self.places, "to": "orders", "source": "clicks", "buckets": 2, "chunk_max": 4}

    def sink(self, **changed):
        return outbox_sink(**{**self.names, **changed})

    def messages(self, queue="orders"):
        """Take all that waits, as a consumer would."""
        with closing(open_queue(self.places["transport"])) as transport:
            deliveries = transport.lease([queue], 10_000, 60_000)
            transport.acknowledge(deliveries)
        return [unpack_message(delivery.payload) for delivery in deliveries]

    def tokens(self, url=None):
        with closing(open_ledger(url or self.places["store"])) as ledger:
            return ledger.listed(limit=10_000)

    def stranded(self):
        with closing(open_ledger(self.places["store"])) as ledger:
            return ledger.stranded(2**62, 10_000)

    def refuse(self, file, table, when, verb="insert"):
        """From now on the database itself refuses such a row, until it is told otherwise."""
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(
                f"create trigger full before {verb} on {table} when {when}"
                " begin select raise(abort, 'the disk is full'); end;"
            )

    def allow(self, file):
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript("drop trigger full;")


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def ids(messages):
    return sorted(message["id"] for message in messages)


def test_each_row_is_one_message_with_a_token_of_its_own(spark, bench):
    bench.sink()(spark.range(50), 0)
    messages = bench.messages()
    assert ids(messages) == list(range(50))
    assert {message.token for message in messages} == {token.token for token in bench.tokens()}
    assert len({message.token for message in messages}) == 50
    assert all(token.parent == "" for token in bench.tokens())
    assert bench.stranded() == []


def test_a_batch_that_is_replayed_sends_nothing_again_and_equal_rows_are_messages_of_their_own(spark, bench):
    rows = spark.createDataFrame([(i,) for i in [*range(20), *[7] * 9]], "id long").repartition(3)
    bench.sink()(rows, 7)
    bench.sink()(rows.repartition(1), 7)
    bench.sink()(spark.range(30, 33), 8)
    bench.sink()(rows, 7)
    assert ids(bench.messages()) == sorted([*range(20), *[7] * 9, *range(30, 33)])


def test_before_spark_4_1_a_task_may_have_several_buckets(spark, bench, monkeypatch):
    for kind in type(spark.range(1)).__mro__:
        if "repartitionById" in vars(kind):
            monkeypatch.delattr(kind, "repartitionById")
    rows = spark.createDataFrame([(i % 70,) for i in range(100)], "id long")
    for partitions in (1, 3):
        bench.sink(buckets=8)(rows.repartition(partitions), 0)
    assert ids(bench.messages()) == sorted(i % 70 for i in range(100))


@pytest.mark.parametrize("plan", ["transactional", "parented"])
def test_a_batch_that_failed_in_the_middle_is_finished_by_its_replay(spark, bench, plan):
    sink = bench.sink(plan=plan)
    sink(spark.range(1_000, 1_001), 0)  # the tables are there
    bench.refuse(bench.queue_file, "outbox_queue", "cast(new.payload as text) like '%\"id\":17}%'")
    with pytest.raises(StoreFailed, match="the disk is full"):
        sink(spark.range(40), 1)
    sent_before = bench.messages()
    assert bench.stranded()
    bench.allow(bench.queue_file)
    sink(spark.range(40), 1)
    later = bench.messages()
    assert later
    assert ids({message.token: message for message in [*sent_before, *later]}.values()) == [*range(40), 1_000]
    assert bench.stranded() == []
    assert len(bench.tokens()) == 41


def test_a_store_that_fails_before_the_mark_is_taken_loses_nothing(spark, bench):
    sink = bench.sink()
    sink(spark.range(1_000, 1_001), 0)
    bench.refuse(bench.ledger_file, "outbox_entries", "new.name = 'clicks:1'")
    with pytest.raises(StoreFailed, match="the disk is full"):
        sink(spark.range(40), 1)
    bench.allow(bench.ledger_file)
    sink(spark.range(40), 1)
    messages = bench.messages()
    assert ids(messages) == [*range(40), 1_000]
    assert len(bench.tokens()) == 41


def test_a_batch_job_is_told_what_was_sent(spark, bench):
    assert send_batch(spark.range(10), mark=20260131, **bench.names) == SentBatch(10, 0, 0)
    assert send_batch(spark.range(10), mark=20260131, **bench.names) == SentBatch(0, 0, 10)
    assert send_batch(spark.range(10), mark=20260130, **bench.names) == SentBatch(0, 0, 0)
    assert send_batch(spark.range(10), mark=20260201, **bench.names) == SentBatch(10, 0, 0)


def test_a_mark_that_is_not_complete_must_be_finished_first(spark, bench):
    send_batch(spark.range(1), mark=1, **bench.names)
    bench.refuse(bench.queue_file, "outbox_queue", "true")
    with pytest.raises(StoreFailed):
        send_batch(spark.range(5), mark=2, **bench.names)
    bench.allow(bench.queue_file)
    with pytest.raises(Misuse, match="batch 2 was begun and is not complete; finish it before 3"):
        send_batch(spark.range(5), mark=3, **bench.names)
    assert send_batch(spark.range(5), mark=2, **bench.names).duplicate < 5
    assert send_batch(spark.range(5), mark=3, **bench.names).applied == 5


@pytest.mark.parametrize("changed", [{"buckets": 4}, {"chunk_max": 5}, {"body": ["id"]}])
def test_a_batch_must_be_finished_in_the_shape_it_was_begun_in(spark, bench, changed):
    rows = spark.range(9).withColumn("x", F.lit(1))
    bench.sink()(rows, 0)
    with pytest.raises(Misuse, match="batch 0 was begun with"):
        bench.sink(**changed)(rows, 0)
    bench.sink(**changed)(rows, 1)
    assert ids(bench.messages()) == sorted([*range(9)] * 2)


def test_only_firsts_are_sent_and_without_their_verdict(spark, bench):
    rows = spark.range(6).withColumn("verdict", F.expr("if(id % 2 = 0, 'FIRST', 'REPEAT')"))
    bench.sink()(rows.withColumn("reason", F.lit("in_order")), 0)
    assert sorted(json.dumps(message.body) for message in bench.messages()) == [f'{{"id": {i}}}' for i in (0, 2, 4)]
    bench.sink(source="all", only=None)(rows, 0)
    assert ids(bench.messages()) == list(range(6))


def test_values_arrive_as_they_were(spark, bench):
    row = (2**62 + 1, Decimal("0.1000000000000000000001"), datetime(2026, 1, 31, 12, 0, 0, 123456), None, [Decimal(7)])
    schema = "n long, sum decimal(38, 22), at timestamp, nothing string, sums array<decimal(38, 22)>, odd struct<a:int>"
    bench.sink()(spark.createDataFrame([(*row, (1,))], schema), 0)
    (message,) = bench.messages()
    assert datetime.fromisoformat(message.body.pop("at")) == row[2].replace(tzinfo=UTC)
    assert message.body == {
        "n": 2**62 + 1,
        "sum": "0.1000000000000000000001",
        "nothing": None,
        "sums": ["7.0000000000000000000000"],
        "odd": {"a": 1},
    }


def test_a_stream_sends_each_row_once_over_restarts(spark, bench, tmp_path):
    folder = tmp_path / "in"

    def run(checkpoint="checkpoint"):
        source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(folder))
        writer = source.writeStream.foreachBatch(bench.sink()).option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    for i in range(2):
        spark.range(i * 10, i * 10 + 10).coalesce(1).write.mode("append").parquet(str(folder))
    run()
    os.remove(tmp_path / "checkpoint" / "commits" / "1")  # as if it had been killed before it wrote that
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    spark.range(20, 30).coalesce(1).write.mode("append").parquet(str(folder))
    run()
    assert ids(bench.messages()) == list(range(30))
    with pytest.raises(Exception, match="needs a source of another name"):
        run("another")


def test_tokens_may_be_kept_in_redis(spark, bench, redis_url):
    sink = bench.sink(tokens=redis_url)
    sink(spark.range(20), 0)
    sink(spark.range(20), 0)
    from onefold.outbox.ports import open_tokens

    with closing(open_tokens(redis_url)) as tokens:
        assert {token.token for token in tokens.listed()} == {message.token for message in bench.messages()}
    assert bench.tokens() == []


def test_executors_send_by_way_of_servers(spark, bench, postgres_uri, nats_url):
    places = {"store": postgres_uri, "transport": nats_url, "source": "clicks-over-servers"}
    rows = spark.range(20)
    for _ in range(2):
        bench.sink(**places)(rows, 0)
    with closing(open_queue(nats_url)) as transport, closing(open_ledger(postgres_uri)) as ledger:
        deliveries = transport.lease(["orders"], 100, 60_000, 5_000)
        transport.acknowledge(deliveries)
        messages = [unpack_message(delivery.payload) for delivery in deliveries]
        assert ids(messages) == list(range(20))
        assert all(ledger.holds([message.token for message in messages]))
        for message in messages:
            ledger.discard(message.token)


def test_a_message_that_is_too_large_is_named(spark, bench):
    with pytest.raises(BadInput, match=r"clicks, batch 0, bucket ., chunk 0: a message to 'orders' has"):
        bench.sink()(spark.range(1).withColumn("text", F.expr("repeat('x', 300000)")), 0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"buckets": 0}, "buckets is 0, must be from 1 to 10,000"),
        ({"chunk_max": 1_001}, "chunk_max is 1001, must be from 1 to 1,000"),
        ({"plan": "bold"}, "plan is 'bold', must be one of checkpointed, parented, transactional"),
        ({"plan": "transactional", "tokens": "redis://h"}, "leave tokens out"),
        ({"store": "memory://"}, "store is 'memory://': each task would have a memory of its own"),
        ({"source": "a:1"}, "must be without ':', '#' and '/'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(bench, changed, told):
    with pytest.raises(Misuse, match=told):
        bench.sink(**changed)


def test_a_column_that_is_not_there_is_named(spark, bench):
    with pytest.raises(Misuse, match=r"no column 'sum' \(body\): the columns are id"):
        bench.sink(body=["id", "sum"])(spark.range(1), 0)
