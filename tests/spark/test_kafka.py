"""Topics of Kafka as a source, against librdkafka's mock cluster: tables, streams, and what can be wrong with them."""

import json

import pytest

from onefold.spark import run as jobs
from onefold.spark import stream as streams
from onefold.spark.audits import published
from onefold.spark.files import Place
from onefold.spark.ids import IdColumns, IdsEngine
from onefold.spark.ingest import SourceSpec
from tests.lib.kafka_broker import KafkaBroker

EVENTS = "event_id string, amount long"


@pytest.fixture(scope="module")
def broker():
    return KafkaBroker()


def events(first: int, count: int):
    """In four partitions; each tenth event is a copy of the one before, in the next partition."""
    for n in range(first, first + count):
        yield n % 4, f"k{n % 7}", json.dumps({"event_id": f"e{n - (n % 10 == 9)}", "amount": n})


def source(broker, topic: str, **options: str) -> SourceSpec:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return SourceSpec(path=broker.url(topic), format="kafka", options=named)


def counts(tally) -> dict[str, int]:
    return {str(answer): count for answer, count in tally}


def ids() -> IdsEngine:
    return IdsEngine(columns=IdColumns(id=("event_id",), order="kafka_offset"), partitions=2)


def test_a_topic_is_judged_with_all_its_messages_and_its_offsets_are_kept(spark, broker, tmp_path):
    """What does not fit is a row; a topic that grows meanwhile is no trouble: its offsets were settled."""
    broker.send("orders", events(0, 1_000))
    broker.send(
        "orders", [(0, None, b"\xff\xfe"), (1, "k", None), (2, "0x41", b"[1]"), (3, b"\xfe", '{"amount": "x"}')]
    )

    def say(step: str) -> None:
        if step == "judging":
            broker.send("orders", events(1_000, 10))

    run = jobs.run(spark, source(broker, "orders", value__schema=EVENTS), ids(), str(tmp_path / "out"), say=say)
    assert counts(run.tally) == {"FIRST new": 900, "REPEAT seen": 100, "REJECT malformed": 4}
    assert run.audit is not None
    assert run.audit.agrees
    lines = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    ranges = [{"topic": "orders", "partition": n, "start": 0, "end": 251, "rows": 251} for n in range(4)]
    assert lines == ranges
    assert run.manifest.to_dict()["rows"] == 1_004
    rejects = spark.read.parquet(str(tmp_path / "out" / "rejects")).orderBy("kafka_partition").collect()
    assert [(row["_corrupt_record"], row["kafka_key"]) for row in rejects] == [
        ("0xFFFE", None), ("", "k"), ("[1]", "0x30783431"), ('{"amount": "x"}', "0xFE"),
    ]  # fmt: skip
    first = spark.read.parquet(str(tmp_path / "out" / "firsts")).where("amount = 5").collect()[0]
    assert (first.kafka_topic, first.kafka_partition, first.kafka_offset, first.kafka_key) == ("orders", 1, 1, "k5")
    assert first.kafka_timestamp.year >= 2020


def test_a_stream_reads_each_offset_once_bounded_per_batch_and_goes_on(spark, broker, tmp_path):
    broker.send("flow", events(0, 400))
    spec = source(broker, "flow", value__schema=EVENTS, max_offsets_per_trigger="300")
    streaming = streams.Streaming(checkpoint=str(tmp_path / "checkpoint"), buckets=2)
    batches: list[int] = []

    def go_on():
        return streams.run_stream(
            spark, spec, ids(), streaming, str(tmp_path / "out"), tell=lambda progress: batches.append(progress.rows)
        )

    assert counts(go_on().tally) == {"FIRST new": 360, "REPEAT seen": 40}
    broker.send("flow", [*events(400, 100), (0, None, "no JSON")])
    last = go_on()
    assert counts(last.tally) == {"FIRST new": 450, "REPEAT seen": 50, "REJECT malformed": 1}
    assert batches == [300, 100, 101]
    rows = published(spark, Place(spark, str(tmp_path / "out"))).select("kafka_partition", "kafka_offset")
    assert rows.distinct().count() == rows.count() == 501
