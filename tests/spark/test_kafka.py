"""Topics of Kafka as a source, against librdkafka's mock cluster: tables, streams, and what can be wrong with them."""

import json
import random
import re
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from types import SimpleNamespace

import fastavro
import pytest
from confluent_kafka import KafkaError

from onefold.spark import run as jobs
from onefold.spark import stream as streams
from onefold.spark.audits import published
from onefold.spark.engine import AnyShape
from onefold.spark.files import Place
from onefold.spark.host import MemoryOptions
from onefold.spark.ids import IdColumns, IdsEngine
from onefold.spark.ingest import SourceSpec, listed, open_source
from onefold.spark.kafka import Cluster, Topic, ranges_read
from onefold.spark.kafka_source import KafkaStreamReader
from onefold.spark.versions import FileKey, NothingNew
from tests.lib.commands import here
from tests.lib.kafka_broker import KafkaBroker

TOPICS: set[str] = set()
"""Those that a test wrote already for the next one."""
EVENTS = "event_id string, amount long"


@pytest.fixture(scope="module")
def broker():
    return KafkaBroker()


def events(first: int, count: int):
    """In four partitions; each tenth event is a copy of the one before, in the next partition."""
    for n in range(first, first + count):
        yield n % 4, f"k{n % 7}", json.dumps({"event_id": f"e{n - (n % 10 == 9)}", "amount": n})


def bulk():
    """Twenty megabytes for one partition, of which the broker keeps the last five."""
    rng = random.Random(1)
    return ((0, None, rng.randbytes(10_000)) for _ in range(2_000))


def source(broker, topic: str, **options: str) -> SourceSpec:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return SourceSpec(path=broker.url(topic), format="kafka", options=named)


def counts(tally) -> dict[str, int]:
    return {str(answer): count for answer, count in tally}


def ids() -> IdsEngine:
    return IdsEngine(columns=IdColumns(id=("event_id",), order="kafka_offset"), partitions=2)


def test_a_topic_is_judged_with_all_its_messages_and_its_offsets_are_kept(spark, broker, tmp_path):
    """What does not fit is a row; a topic that grows meanwhile is no trouble: its offsets were settled."""
    around = (f"\n {value}\r\n" if n % 2 else value for n, (_, _, value) in enumerate(events(0, 1_000)))  # is JSON, too
    broker.send("orders", ((n % 4, f"k{n % 7}", value) for n, value in enumerate(around)))
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
    batches: list[tuple[int, int | None]] = []

    def tell(progress):
        batches.append((progress.rows, progress.behind))

    def go_on():
        return streams.run_stream(spark, spec, ids(), streaming, str(tmp_path / "out"), tell=tell)

    assert counts(go_on().tally) == {"FIRST new": 360, "REPEAT seen": 40}
    broker.send("flow", [*events(400, 100), (0, None, "no JSON")])
    last = go_on()
    assert counts(last.tally) == {"FIRST new": 450, "REPEAT seen": 50, "REJECT malformed": 1}
    assert batches == [(300, 100), (100, 0), (101, 0)]
    rows = published(spark, Place(spark, str(tmp_path / "out"))).select("kafka_partition", "kafka_offset")
    assert rows.distinct().count() == rows.count() == 501
    read = ranges_read(b"", Place(spark, str(tmp_path / "checkpoint")))
    assert sorted(read) == ["flow/0/0-126", *(f"flow/{n}/0-125" for n in (1, 2, 3))]


def test_a_run_goes_on_at_the_offsets_where_the_last_one_ended(spark, broker, tmp_path):
    broker.send("hourly", events(0, 80))
    spec, memory = (
        source(broker, "hourly", value__schema=EVENTS),
        MemoryOptions(path=str(tmp_path / "memory"), buckets=2),
    )

    def go_on():
        run = jobs.run(spark, spec, ids(), str(tmp_path / "out"), memory=memory, say=lambda step: None)
        return counts(run.tally), [(part.start, part.end) for part in run.manifest.parts]

    assert go_on() == ({"FIRST new": 72, "REPEAT seen": 8}, [(0, 20)] * 4)
    broker.send("hourly", [(1, None, '{"event_id": "e3"}'), (2, None, '{"event_id": "new"}')])
    assert go_on() == ({"FIRST new": 1, "REPEAT seen": 1}, [(20, 21), (20, 21)])
    with pytest.raises(NothingNew):
        go_on()


AVRO = {
    "type": "record", "name": "Event",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "shop", "type": {"type": "record", "name": "Shop", "fields": [{"name": "n", "type": "int"}]}},
    ],
}  # fmt: skip


def test_values_in_avro_are_columns_and_what_does_not_fit_is_a_row(spark, broker):
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    event = {"event_id": "e1", "at": at, "note": None, "sum": Decimal("1.25"), "tags": ["a", "b"], "shop": {"n": 7}}
    value = BytesIO()
    fastavro.schemaless_writer(value, fastavro.parse_schema(AVRO), event)
    whole = value.getvalue()
    odd = [b"", whole + b"x", whole[:-1], b"\xff" * 20, None]
    broker.send("avro", [(0, None, whole), *((0, None, each) for each in odd)])
    spec = source(broker, "avro", value__format="avro", value__schema=json.dumps(AVRO))
    rows = open_source(spark, spec, AnyShape()).rows.orderBy("kafka_offset").collect()
    first = rows[0].asDict(recursive=True)
    assert {name: first[name] for name in event} == {**event, "at": datetime(2026, 1, 31, 12)}
    assert first["_corrupt_record"] is None
    texts = [row["_corrupt_record"] for row in rows[1:]]
    assert texts == ["0x", f"0x{whole.hex().upper()}78", f"0x{whole[:-1].hex().upper()}", "0x" + "FF" * 20, ""]
    assert all(row["event_id"] is row["shop"] is None for row in rows[1:])


def test_values_may_be_text_or_bytes(spark, broker):
    broker.send("plain", [(0, None, "a"), (0, None, b"\xff"), (0, None, None)])

    def read(kind: str):
        rows = open_source(spark, source(broker, "plain", value__format=kind), AnyShape()).rows.orderBy("kafka_offset")
        return [tuple(row)[5:] for row in rows.collect()]

    assert read("text") == [("a", None), (None, "0xFF"), (None, None)]
    assert read("bytes") == [(b"a",), (b"\xff",), (None,)]


def test_a_json_topic_without_a_schema_has_the_columns_of_its_values_and_a_number_stays_as_it_is_written(spark, broker):
    broker.send(
        "free", [(0, None, '{"event_id": 1.50, "a": 1}'), (1, None, '{"event_id": "x", "b": [2]}'), (2, None, "")]
    )
    rows = open_source(spark, source(broker, "free"), IdColumns(id=("event_id",))).rows.orderBy("kafka_partition")
    own = [tuple(row) for row in rows.select("event_id", "a", "b", "_corrupt_record").collect()]
    assert own == [("1.50", 1, None, None), ("x", None, [2], None), (None, None, None, "")]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"start": '{"times": {"0": 3, "1": -2, "2": -1, "3": 4}}'}, [(3, 5), (0, 5), (5, 5), (4, 5)]),
        ({"end": '{"times": {"0": 3, "1": -2, "2": -1, "3": 4}}'}, [(0, 3), (0, 0), (0, 5), (0, 4)]),
        ({"start": "latest"}, [(5, 5)] * 4),
        ({"start": "2126-01-01T00:00:00"}, [(5, 5)] * 4),
    ],
)
def test_reading_begins_and_ends_where_it_is_told_to(broker, options, ranges):
    if "times" not in TOPICS:
        broker.send("times", events(0, 20))
        TOPICS.add("times")
    cluster = Cluster.of(Topic.of(broker.url("times"), options).connector_options())
    assert [(part.start, part.end) for part in cluster.ranges()] == ranges


def test_what_is_latest_is_said_once_and_a_run_that_goes_on_reads_what_came_since(spark, broker, tmp_path, monkeypatch):
    broker.send("late", events(0, 8))
    spec = source(broker, "late", value__schema=EVENTS, start="latest")
    memory = MemoryOptions(path=str(tmp_path / "memory"), buckets=2)

    def go_on():
        run = jobs.run(spark, spec, ids(), str(tmp_path / "out"), memory=memory, say=lambda step: None)
        return run.tally.received, [part.name for part in run.manifest.parts]

    assert go_on() == (0, [f"late/{n}/2-2" for n in range(4)])
    broker.send("late", events(8, 3))
    assert go_on() == (3, ["late/0/2-3", "late/1/2-3", "late/2/2-3"])
    bounds = Cluster.kept
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "kept", lambda cluster: {**bounds(cluster), ("late", 1): (0, 2)})
        with pytest.raises(OSError, match=r"partition 1 of late ends at offset 2, .* up to 3: was the topic made anew"):
            go_on()
    with monkeypatch.context() as patch:  # a partition that was added is read from its first message
        patch.setattr(Cluster, "kept", lambda cluster: {**bounds(cluster), ("late", 4): (0, 6)})
        names = [file.path for file in listed(spark, spec, lambda: [FileKey("late/0/2-3", 1, 0)]) or ()]
    assert names == ["late/0/2-3", "late/1/0-3", "late/2/0-3", "late/3/0-2", "late/4/0-6"]


def test_offsets_that_name_the_start_bind_the_first_run_only(spark, broker, monkeypatch):
    """Later the broker may have dropped those that were read, and partitions may have been added."""
    broker.send("named", events(0, 16))
    offsets = json.dumps({"named": dict.fromkeys("0123", 1)})
    spec = source(broker, "named", value__schema=EVENTS, start=offsets)
    before = [FileKey(file.path, file.size, 0) for file in listed(spark, spec, lambda: []) or ()]
    assert [key.path for key in before] == [f"named/{n}/1-4" for n in range(4)]
    broker.send("named", events(16, 2))
    bounds = Cluster.kept
    kept = {("named", 0): (3, 5), ("named", 4): (0, 6)}
    monkeypatch.setattr(Cluster, "kept", lambda cluster: {**bounds(cluster), **kept})
    names = [file.path for file in listed(spark, spec, lambda: before) or ()]
    assert names == [*(key.path for key in before), "named/0/4-5", "named/1/4-5", "named/4/0-6"]
    monkeypatch.setattr(Cluster, "kept", lambda cluster: {**bounds(cluster), ("named", 0): (5, 9)})
    with pytest.raises(OSError, match="offsets 4 to 4 of partition 0 of named are gone"):
        listed(spark, spec, lambda: before)


def test_a_stream_whose_topic_was_made_anew_ends_at_its_next_look(broker):
    broker.send("anew", events(0, 8))
    reader = KafkaStreamReader({"kafka.bootstrap.servers": broker.servers, "subscribe": "anew"})
    assert reader.latestOffset({"anew": {"0": 2, "1": 1}, "left": {"0": 9}})["anew"] == dict.fromkeys("0123", 2)
    with pytest.raises(OSError, match="partition 4 of anew ends at offset 0, and is to be read from or up to 1"):
        reader.latestOffset({"anew": {"4": 1}})


def test_a_time_that_a_broker_cannot_look_up_is_no_time_after_all_messages():
    class Silent:
        def get_watermark_offsets(self, partition, timeout):
            return 0, 9

        def offsets_for_times(self, partitions, timeout):
            return [SimpleNamespace(topic="t", partition=0, offset=-1, error=KafkaError(KafkaError._TIMED_OUT))]

    cluster = Cluster("x:1", ("t",), start="2026-01-01", assigned=(("t", 0),))
    cluster.__dict__["_asking"] = Silent()
    with pytest.raises(OSError, match="partition 0 of t: "):
        cluster.starts()


def test_messages_are_counted_one_by_one_where_offsets_do_not_tell(broker):
    """As of a compacted topic, of which fewer rows come than there are offsets."""
    broker.send("counted", events(0, 30))
    cluster = Cluster.of(Topic.of(broker.url("counted"), {}).connector_options())
    assert [part.rows for part in cluster.counted(cluster.ranges())] == [8, 8, 7, 7]


def test_what_is_wrong_is_one_line_that_names_it(spark, broker, tmp_path):
    broker.send("narrow", events(0, 4))
    broker.send("gone", bulk())
    pipeline = tmp_path / "pipeline.toml"
    gone = "offsets 5 to 1,... of partition 0 of gone are gone: the broker keeps those from 1,... on"
    start = 'start = \'{"gone": {"0": 5, "1": 0, "2": 0, "3": 0}}\'\n'
    cases = [
        ("127.0.0.1:1", "narrow", "", "", 3, "kafka://127.0.0.1:1/narrow: no broker answers .*: .*Connection refused"),
        (broker.servers, "narow", "", "", 2, "no topic 'narow': .*; did you mean narrow$"),
        (broker.servers, "narrow", 'start = "soon"\n', "", 2, 'start is \'soon\', must be "earliest", "latest"'),
        (broker.servers, "narrow", 'start = \'{"narrow": {"0": 1}}\'\n', "", 2, "start: partition 1 of narrow is not"),
        (broker.servers, "narrow", "", 'schema = "event_id strin"\n', 2, "value.schema is 'event_id strin', must"),
        (broker.servers, "narrow", "", 'schema = "other string"\n', 2, "no column 'event_id'"),
        (broker.servers, "narrow", "", 'schema = "kafka_key string"\n', 2, "a value has a column 'kafka_key'"),
        (broker.servers, "narrow", "", 'format = "avro"\n', 2, 'value.format is "avro", which needs value.schema'),
        (broker.servers, "narrow", "", 'format = "avro"\nschema = "{}"\n', 2, "value.schema is no schema of Avro"),
        (broker.servers, "narrow", "", 'schema_file = "no.avsc"\n', 2, "value.schema_file: .*no.avsc: No such file"),
        (broker.servers, "narrow", 'mode = "stream"\n', "", 2, "value.schema is missing: a stream must know"),
        (broker.servers, "gone", start, 'schema = "event_id string"\n', 3, gone),
        (broker.servers, "gone", f'mode = "stream"\n{start}', 'schema = "event_id string"\n', 3, gone),
        (broker.servers, "narrow", 'options = { "kafka.sasl.jaas.config" = "x" }\n', "", 2, "JAAS"),
        (broker.servers, "narrow", 'options = { "kafka.sasl.pasword" = "hunter2" }\n', "", 2, "sasl.pasword"),
        (broker.servers, "narrow", 'options = { includeHeaders = "true" }\n', "", 2, "'includeheaders' is for Spark's"),
        (broker.servers, "narrow", 'options = { failOnDataLoss = "false" }\n', "", 2, "skips messages in silence"),
        (broker.servers, "narrow", 'options = { startingOffsets = "latest" }\n', "", 2, "is called 'start' here"),
        (broker.servers, "narrow", 'options = { connector = "spark" }\n', "", 2, "--packages org.apache.spark:"),
    ]  # fmt: skip
    for servers, topic, more, value, code, line in cases:
        pipeline.write_text(
            f'[judge]\nengine = "ids"\nid = "event_id"\n[source]\nbootstrap_servers = "{servers}"\ntopic = "{topic}"\n'
            f'format = "kafka"\n{more}[source.value]\n{value}[publish]\npath = "out"\n'
        )
        done = here("run", str(pipeline), cwd=tmp_path)
        errors = [each for each in done.stderr.splitlines() if each.startswith("onefold: ")]
        assert (done.returncode, len(errors)) == (code, 1), (more, value, done.stderr)
        assert re.search(line, errors[0]), (line, errors)
        assert "hunter2" not in done.stderr
        out = tmp_path / "out"
        assert not (out / "run.json").exists()
        assert not list(out.glob("batches/*")), (more, value)


def test_a_stream_whose_offsets_are_gone_ends_and_says_which(spark, broker, tmp_path):
    spec = source(broker, "short", value__format="text")
    streaming = streams.Streaming(checkpoint=str(tmp_path / "checkpoint"), buckets=2)
    judging = IdsEngine(columns=IdColumns(id=("value",)), partitions=2)
    broker.send("short", [(0, None, "first")])
    streams.run_stream(spark, spec, judging, streaming, str(tmp_path / "out"))
    broker.send("short", bulk())
    with pytest.raises(OSError, match=r"offsets 1 to .* of partition 0 of short are gone"):
        streams.run_stream(spark, spec, judging, streaming, str(tmp_path / "out"))


def test_the_command_checks_runs_audits_and_explains_a_topic_and_keeps_no_password(spark, broker, tmp_path):
    broker.send("told", events(0, 40))
    done = here("check", broker.url("told"), "--id", "event_id", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    figures = json.loads(done.stdout)
    assert figures["tally"]["repeat"] == 4
    assert [figures["manifest"][name] for name in ("rows", "offsets", "partitions")] == [40, 40, 4]
    done = here("window", broker.url("told"), "--id", "event_id", "--time", "kafka_timestamp", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        here(
            "diff", broker.url("told"), broker.url("told"), "--key", "kafka_partition,kafka_offset", cwd=tmp_path
        ).returncode
        == 0
    )
    (tmp_path / "pipeline.toml").write_text(
        f'[source]\npath = "{broker.url("told")}"\noptions = {{ "kafka.sasl.password" = "hunter2" }}\n'
        '[judge]\nengine = "ids"\nid = "event_id"\n[publish]\npath = "out"\n'
    )
    assert here("run", "pipeline.toml", cwd=tmp_path).returncode == 0
    assert "hunter2" not in "".join(file.read_text() for file in (tmp_path / "out").glob("*.*"))
    broker.send("told", events(40, 4))  # is no concern of the run
    done = here("audit", "pipeline.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"] == 40
    done = here("explain", str(tmp_path / "out"), "e8", "--json", cwd=tmp_path)
    assert [row["verdict"] for row in json.loads(done.stdout)["shown"]] == ["FIRST", "REPEAT"]


def test_a_first_batch_that_is_tried_again_begins_where_it_began(spark, broker, tmp_path, monkeypatch):
    """Spark asks for the first offset at each start until a batch is done; by then retention may have moved it."""
    spec = source(broker, "begun", value__format="text")
    streaming = streams.Streaming(checkpoint=str(tmp_path / "checkpoint"), buckets=2)
    judging = IdsEngine(columns=IdColumns(id=("value",)), partitions=2)

    def go_on():
        return streams.run_stream(spark, spec, judging, streaming, str(tmp_path / "out"))

    def dies(*args):
        raise OSError("the driver died")

    broker.send("begun", [(0, None, "first")])
    with monkeypatch.context() as patch:
        patch.setattr(streams, "publish", dies)
        with pytest.raises(OSError, match="the driver died"):
            go_on()
    broker.send("begun", bulk())
    with pytest.raises(OSError, match=r"offsets 0 to 0 of partition 0 of begun are gone"):
        go_on()
