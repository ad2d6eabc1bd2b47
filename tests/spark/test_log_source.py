import threading

import pytest

from onefold.errors import Misuse
from onefold.producers.records import NEW
from onefold.producers.topic import Topics
from onefold.spark import register_log
from onefold.spark import run as jobs
from onefold.spark import stream as streams
from onefold.spark.columns import ProducerColumns
from onefold.spark.ingest import SourceSpec
from onefold.spark.log_source import SCHEMA, OnefoldLog
from onefold.spark.producers import ProducersEngine
from onefold.tally import Tally
from tests.lib.producer_trials import reading


@pytest.fixture
def topics(tmp_path):
    with Topics(tmp_path / "log", segment_bytes=4_000) as topics:
        yield topics


def fill(topics, producer: str, first: int, count: int) -> None:
    topics.topic("orders").publish(producer, [(n, b"%d" % n) for n in range(first, first + count)])


def load(spark, topics, **options):
    register_log(spark)
    return spark.read.format("onefold-log").options(**options).load(str(topics.root / "orders"))


def test_a_table_has_every_message_once_from_several_tasks(spark, topics):
    for n in range(0, 1_000, 50):
        fill(topics, f"p{n % 100}", n, 50)
    df = load(spark, topics)
    assert df.rdd.getNumPartitions() > 1
    rows = df.select("offset", "producer", "sequence", "payload").orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(1_000))
    assert all(bytes(row.payload) == b"%d" % row.sequence for row in rows)


def test_only_messages_are_read_unless_all_kinds_are_asked_for(spark, topics):
    topic = topics.topic("orders")
    session = topic.connect("p")
    topic.publish("p", [(0, b"a")], session.epoch)
    topic.publish("p", [(0, b"b")], session.epoch)
    topic.publish_keyed("key", b"c")
    assert [row.kind for row in load(spark, topics).orderBy("offset").collect()] == ["message", "keyed"]
    every = [row.kind for row in load(spark, topics, kinds="all").orderBy("offset").collect()]
    assert every == ["open", "message", "conflict", "keyed"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kinds": "some"}, "kinds is 'some'"),
        ({"tasks": "x"}, "tasks is 'x', must be a whole number"),
        ({"colour": "red"}, "option 'colour' is unknown"),
    ],
)
def test_a_wrong_option_is_named(spark, topics, options, said):
    fill(topics, "p", 0, 1)
    with pytest.raises(Exception, match=said):
        load(spark, topics, **options).count()


def test_a_stream_goes_on_where_it_ended_and_reads_each_offset_once(spark, topics, tmp_path):
    register_log(spark)
    seen: list[list[int]] = []

    def read_on() -> None:
        reader = spark.readStream.format("onefold-log").option("maxRecordsPerTrigger", "70")
        writer = reader.load(str(topics.root / "orders")).writeStream.option("checkpointLocation", str(tmp_path / "c"))
        each = writer.foreachBatch(lambda rows, _: seen.append([row.offset for row in rows.select("offset").collect()]))
        each.trigger(availableNow=True).start().awaitTermination()

    fill(topics, "p", 0, 100)
    read_on()
    fill(topics, "p", 100, 50)
    read_on()
    assert [len(batch) for batch in seen] == [70, 30, 50]
    assert sorted(offset for batch in seen for offset in batch) == list(range(150))


@pytest.mark.parametrize(("start", "first"), [("latest", None), ("30", 30), ("1970-01-01T00:00:02", 20)])
def test_a_stream_begins_where_it_is_told_to(start, first, tmp_path):
    now = [0]
    with Topics(tmp_path, clock=lambda: now[0]) as topics:
        for n in range(0, 40, 10):
            fill(topics, "p", n, 10)
            now[0] += 1_000
        options = {"path": str(tmp_path / "orders"), "start": start}
        assert OnefoldLog(options).streamReader(SCHEMA).initialOffset() == {"offset": 40 if first is None else first}
        with pytest.raises(Misuse, match="start is 'soon'"):
            OnefoldLog({**options, "start": "soon"}).streamReader(SCHEMA).initialOffset()


def test_a_pipeline_reads_a_log_and_judges_its_producers(spark, topics, tmp_path):
    """What was stored with deduplication off is made clean afterwards: batch and stream agree. A log that grows
    meanwhile is no trouble to the audit: what was read is compared, not what is there now.
    """
    topics.topic("orders").switch(False)
    fill(topics, "p", 0, 40)
    fill(topics, "p", 20, 40)
    fill(topics, "q", 5, 5)
    source = SourceSpec(path=str(topics.root / "orders"), format="onefold-log")
    judging = ProducersEngine(
        columns=ProducerColumns(order="offset", payload=("payload",)), memory="gaps", partitions=2
    )
    grown = Tally()

    def say(step: str) -> None:
        if step == "auditing":
            fill(topics, "p", 60, 1)
            grown.arrive()
            grown.judge(NEW)

    run = jobs.run(spark, source, judging, str(tmp_path / "out"), say=say)
    assert run.audit is not None
    assert (run.audit.agrees, run.audit.ids) == (True, 65)
    assert str(run.tally) == "85 in = 65 first + 20 repeat + 0 unsure + 0 reject"
    assert (run.keys, run.ranges) == (2, [{"producer": "q", "lower_sequence": None, "upper_sequence": 4}])
    streaming = streams.Streaming(checkpoint=str(tmp_path / "checkpoint"), buckets=2)
    progress = streams.run_stream(spark, source, judging, streaming, str(tmp_path / "stream"), stop=threading.Event())
    assert progress.tally == run.tally + grown


@pytest.mark.proof
def test_a_stream_has_each_message_once_while_producers_and_the_server_are_killed(spark, tmp_path):
    assert "each exactly once" in reading(spark, tmp_path, kills=4, lines=400)
