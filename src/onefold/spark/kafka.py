"""Kafka topics as a source: which offsets are read, how a value becomes columns, and how many messages there are.

    kafka://host:9092,host2:9092/orders,refunds

Spark's own connector reads them if it is installed (see `docs/cluster.md`), else `kafka_source`, a Python data source
on librdkafka. Both take the options of Spark's connector and return the same columns.

    offsets     of a table are settled when it is opened, so that a retried task reads the same messages. Those of a
                stream are in its checkpoint. Offsets that the broker no longer has end the job
    columns     `kafka_topic`, `kafka_partition`, `kafka_offset`, `kafka_timestamp` and `kafka_key`, then those of the
                value
    malformed   a value that does not fit is a row whose value columns are null, with the value in ``_corrupt_record``:
                as text, or as "0x" and hex if it is not text. A message without a value is such a row with empty text
    the count   is the number of offsets if as many rows were read. In compacted or transactional topics some offsets
                hold no message: then another consumer counts the messages, without Spark
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import BadInput, Misuse
from onefold.spark.columns import CORRUPT, TEXT
from onefold.spark.dialect import SPARK, arrow_schema, is_utf8
from onefold.spark.files import Manifest, Place, SourceFile, first_line
from onefold.spark.session import has_executors, require_libraries
from onefold.spark.signature import signature

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from onefold.spark.ingest import OpenSource
    from onefold.spark.versions import FileKey

KAFKA: Final = "kafka"
"""The name of Spark's own connector."""
OWN: Final = "onefold-kafka"
"""The name of our data source, see `kafka_source`."""
SCHEME: Final = "kafka://"
VALUE: Final = "value"
Offsets: TypeAlias = Mapping[tuple[str, int], int]
"""By topic and partition."""

ANSWER_S: Final = 10.0
"""How long a broker may take to answer. (librdkafka gives up a connection after 30 s, a request after 60 s.)"""
SILENCE_S: Final = 60.0
"""How long to wait for the next message of a range: long enough for the broker to elect another leader."""
POLL_S: Final = 0.2
MESSAGES_MAX: Final = 10_000
MESSAGES_BYTES: Final = 16 << 20
"""About how many bytes of messages a task holds at once, besides librdkafka's own queue of 64 MB."""
THREADS_MAX: Final = 8
EARLIEST, LATEST = -2, -1
"""The special offsets in the JSON of Spark's connector."""
MESSAGE: Final = T.StructType([
    T.StructField("key", T.BinaryType()), T.StructField(VALUE, T.BinaryType()),
    T.StructField("topic", T.StringType()), T.StructField("partition", T.IntegerType()),
    T.StructField("offset", T.LongType()), T.StructField("timestamp", T.TimestampType()),
])  # fmt: skip
"""A message, with the columns of Spark's connector."""
TAKEN: Final = {"kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_key", CORRUPT}
FORMATS: Final = ("json", "avro", "text", "bytes")

_OURS: Final = {
    "enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True,
    "auto.offset.reset": "error", "allow.auto.create.topics": False, "check.crcs": True,
}  # fmt: skip
"""Properties that guarantee that no message is skipped or damaged, and that no offset is committed."""
_NAMED: Final = {
    "subscribe": "topic", "startingoffsets": "start", "startingtimestamp": "start", "endingoffsets": "end",
    "endingtimestamp": "end", "maxoffsetspertrigger": "max_offsets_per_trigger",
    "kafka.bootstrap.servers": "bootstrap_servers",
}  # fmt: skip
"""Options of Spark's connector that have another name in the settings."""
_KNOWN: Final = {*_NAMED, "minpartitions", "assign", "startingoffsetsbytimestampstrategy"}


class OffsetRange(NamedTuple):
    """Messages of a partition: from ``start`` up to, but not including, ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int | None = None
    """How many messages there are; None: not counted."""

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.start)

    @property
    def shown(self) -> str:
        return f"partition {self.partition} of {self.topic}, offsets {self.start:,} to {self.end - 1:,},"

    @property
    def metadata_path(self) -> str:
        """The name in `OpenSource.rows_by_file`."""
        return f"{self.topic}/{self.partition}"

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}/{self.start}-{self.end}"

    @classmethod
    def named(cls, name: str) -> OffsetRange:
        topic, partition, offsets = name.split("/")
        start, _, end = offsets.partition("-")
        return cls(topic, int(partition), int(start), int(end))

    def piece(self, start: int, end: int) -> OffsetRange:
        return self._replace(start=start, end=min(end, self.end))


def offsets_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as Spark's connector writes them."""
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = at
    return document


def offsets_of(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(number)): at for topic, parts in document.items() for number, at in parts.items()}


@dataclass(frozen=True)
class Cluster:
    """Brokers and topics, through librdkafka. Every method raises `OSError` if the brokers do not answer."""

    servers: str
    topics: tuple[str, ...]
    start: str = "earliest"
    """Where reading begins: "earliest", "latest", an ISO time, Unix milliseconds, or JSON as for Spark."""
    end: str = "latest"
    assigned: tuple[tuple[str, int], ...] | None = None
    """Some of the partitions; None: all."""
    offsets_max: int | None = None
    tasks: int | None = None
    properties: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Cluster:
        """From the options of Spark's connector; `Misuse` names an unknown one."""
        given = {name.lower(): value for name, value in options.items()}
        own = {name: value for name, value in given.items() if not name.startswith("kafka.")}
        for name, value in own.items():
            if name not in _KNOWN and (name, value) != ("failondataloss", "true"):
                raise Misuse(
                    f"option {name!r} is for Spark's own connector, which is not here; known: kafka.*, minPartitions",
                    option=name,
                )
        properties: dict[str, Any] = {
            name[len("kafka.") :]: value for name, value in options.items() if name.lower().startswith("kafka.")
        }
        for name in _OURS.keys() & properties.keys():
            raise Misuse(
                f"option 'kafka.{name}' cannot be changed: its value guarantees that no message is skipped", option=name
            )
        some = json.loads(own["assign"]) if "assign" in own else None
        topics = tuple(own.get("subscribe", "").split(",")) if some is None else tuple(some)
        return cls(
            servers=str(properties.pop("bootstrap.servers", "")),
            topics=topics,
            assigned=None if some is None else tuple((topic, number) for topic in topics for number in some[topic]),
            start=own.get("startingtimestamp") or own.get("startingoffsets", "earliest"),
            end=own.get("endingtimestamp") or own.get("endingoffsets", "latest"),
            offsets_max=_count(own, "maxoffsetspertrigger"),
            tasks=_count(own, "minpartitions"),
            properties=properties,
        )

    def __getstate__(self) -> dict[str, Any]:  # to a task: without the connection
        return {name: value for name, value in self.__dict__.items() if name not in ("_asking", "_troubles")}

    @cached_property
    def _troubles(self) -> list[str]:
        """The errors that librdkafka reported, the latest last."""
        return []

    def consumer(self) -> Consumer:
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise Misuse(
                "confluent-kafka is not installed: pip install 'onefold[kafka]', or give Spark its own connector"
                f" (--packages {package()})"
            ) from error
        quiet = {"group.id": "onefold", "log_level": 0, "error_cb": lambda error: self._troubles.append(error.str())}
        try:
            return Consumer({**quiet, **self.properties, **_OURS, "bootstrap.servers": self.servers})
        except KafkaException as error:
            raise Misuse(f"{self.shown}: {error.args[0].str().removesuffix('.')}") from error

    @cached_property
    def _asking(self) -> Consumer:
        return self.consumer()

    @property
    def shown(self) -> str:
        return f"{SCHEME}{self.servers}/{','.join(self.topics)}"

    def _ask(self, question: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return question()
        except KafkaException as error:
            self._asking.poll(0)  # lets librdkafka report the cause
            why = self._trouble(error.args[0].str())
            raise OSError(f"{self.shown}: no broker answers within {ANSWER_S:.0f} s: {why}") from error

    def _trouble(self, otherwise: str) -> str:
        """The latest error of librdkafka, except "all brokers are down", which is only its consequence."""
        return next((line for line in reversed(self._troubles) if "brokers are down" not in line), otherwise)

    def partitions(self) -> list[tuple[str, int]]:
        """Every partition that the topics have now; `Misuse` names a topic that does not exist."""
        if self.assigned is not None:
            return [*self.assigned]
        every: list[tuple[str, int]] = []
        for topic in self.topics:
            metadata = self._ask(partial(self._asking.list_topics, topic, ANSWER_S)).topics[topic]
            if metadata.error is not None or not metadata.partitions:
                others = sorted(self._ask(lambda: self._asking.list_topics(timeout=ANSWER_S)).topics)
                near = next(iter(get_close_matches(topic, others, n=1)), None)
                why = f": {metadata.error.str()}" if metadata.error else ""
                hint = f"did you mean {near}" if near else f"there are {', '.join(others[:20]) or 'none'}"
                raise Misuse(f"{SCHEME}{self.servers}: no topic {topic!r}{why}; {hint}", topic=topic)
            every += [(topic, number) for number in sorted(metadata.partitions)]
        return every

    def kept(self) -> dict[tuple[str, int], tuple[int, int]]:
        """For each partition, the first offset that the broker still has, and the next offset to be written."""
        from confluent_kafka import TopicPartition

        def ask(where: tuple[str, int]) -> tuple[int, int]:
            bounds = self._ask(lambda: self._asking.get_watermark_offsets(TopicPartition(*where), ANSWER_S))
            if bounds is None:
                raise OSError(f"{self.shown}: no broker answers within {ANSWER_S:.0f} s")
            return (int(bounds[0]), int(bounds[1]))

        every = self.partitions()
        with ThreadPoolExecutor(THREADS_MAX) as pool:
            return dict(zip(every, pool.map(ask, every), strict=True))

    def starts(self) -> Offsets:
        """The offsets where a stream begins, settled now."""
        return self._settled("start", self.start, self.kept())

    def ends(self) -> Offsets:
        """For each partition, the next offset to be written."""
        return {where: high for where, (_, high) in self.kept().items()}

    def refuse_new_topic(self, read: Offsets, ends: Offsets) -> None:
        """Raise `OSError` if a partition ends before the offset up to which it was ``read``, or does not exist."""
        for where, at in read.items():
            if where[0] in self.topics and at > (end := ends.get(where, 0)):
                raise OSError(
                    f"{self.shown}: partition {where[1]} of {where[0]} ends at offset {end:,}, and is to be read from"
                    f" or up to {at:,}: was the topic made anew?"
                )

    def ranges(self, read: Offsets = MappingProxyType({})) -> list[OffsetRange]:
        """The ranges that a table reads, settled now. ``read``: up to where partitions were read before. These continue
        there if there is more; a partition added to their topics begins at its first message, whatever ``start`` says.
        """
        kept, topics = self.kept(), {topic for topic, _ in read}
        self.refuse_new_topic(read, {where: high for where, (_, high) in kept.items()})
        is_new = any(topic not in topics for topic, _ in kept)
        starts = self._settled("start", self.start, kept) if is_new else {}
        starts = {where: read.get(where, 0) if where[0] in topics else starts[where] for where in kept}
        ends = self._settled("end", self.end, kept)
        more = [where for where in kept if where not in read or starts[where] < ends[where]]
        ranges = [OffsetRange(*where, starts[where], ends[where]) for where in more]
        for part in ranges:
            if part.start > part.end:
                at = f"partition {part.partition} of {part.topic}"
                raise Misuse(f"{self.shown}: {at} starts at offset {part.start:,} and ends at {part.end:,}")
        self.check(ranges, kept)
        return ranges

    def check(
        self, ranges: Sequence[OffsetRange], kept: Mapping[tuple[str, int], tuple[int, int]] | None = None
    ) -> None:  # fmt: skip
        """Raise `OSError` that names the first range of which the broker does not have every offset."""
        kept = self.kept() if kept is None else kept
        for part in ranges:
            low, _ = kept.get((part.topic, part.partition), (0, 0))
            if part.offsets and part.start < low:
                raise OSError(
                    f"{self.shown}: offsets {part.start:,} to {min(low, part.end) - 1:,} of partition {part.partition}"
                    f" of {part.topic} are gone: the broker keeps those from {low:,} on, and nothing is skipped in"
                    " silence"
                )
        highs = {where: high for where, (_, high) in kept.items()}
        self.refuse_new_topic({(part.topic, part.partition): part.end for part in ranges}, highs)

    def _settled(self, what: str, text: str, kept: Mapping[tuple[str, int], tuple[int, int]]) -> Offsets:
        """The offset that ``text`` means in each partition."""
        if text in ("earliest", "latest"):
            return {where: bounds[text == "latest"] for where, bounds in kept.items()}
        if text.lstrip().startswith("{"):
            named = _named_offsets(what, text)
            for where in sorted(named.keys() ^ kept.keys()):
                have = "is not there" if where in named else "is not named"
                raise Misuse(
                    f"{self.shown}: {what}: partition {where[1]} of {where[0]} {have}: all must be", **{what: text}
                )
            special = {EARLIEST: 0, LATEST: 1}
            return {where: kept[where][special[at]] if at in special else at for where, at in named.items()}
        from confluent_kafka import TopicPartition

        at_ms = milliseconds_of(what, text)
        wanted = [TopicPartition(*where, at_ms) for where in kept]
        offsets = dict[tuple[str, int], int]()
        for each in self._ask(lambda: self._asking.offsets_for_times(wanted, ANSWER_S)):
            where = each.topic, each.partition
            if each.error is not None:
                raise OSError(f"{self.shown}: partition {where[1]} of {where[0]}: {each.error.str()}")
            offsets[where] = int(each.offset) if each.offset >= 0 else kept[where][1]  # no message that late
        return offsets

    def messages(self, part: OffsetRange) -> Iterator[list[Message]]:
        """The messages of a range, in batches. Raise `OSError` if one is gone, or the broker falls silent."""
        from confluent_kafka import KafkaError, TopicPartition

        consumer = self.consumer()
        try:
            consumer.assign([TopicPartition(part.topic, part.partition, part.start)])
            at, heard, size = part.start, time.monotonic(), MESSAGES_BYTES // MESSAGES_MAX
            while at < part.end:
                most = max(1, min(MESSAGES_MAX, MESSAGES_BYTES // size, part.end - at))
                messages = []
                for message in consumer.consume(most, POLL_S):
                    error = message.error()
                    if error is None:
                        at = (message.offset() or 0) + 1
                        messages += [message] if at <= part.end else []
                    elif error.code() == KafkaError._PARTITION_EOF:
                        at = max(at, message.offset() or 0)  # the last offsets may hold no message
                    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                        self.check([part.piece(at, part.end)])
                        raise OSError(f"{self.shown}: offset {at:,} of {part.topic}[{part.partition}]: {error.str()}")
                    elif not error.retriable() and error.code() not in (
                        KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE,
                    ):  # fmt: skip
                        raise OSError(f"{self.shown}: partition {part.partition} of {part.topic}: {error.str()}")
                if messages:
                    heard, size = time.monotonic(), max(size, *(len(each) for each in messages))
                    yield messages
                elif time.monotonic() - heard > SILENCE_S:
                    why = f": {self._trouble('the partition ends there')}"
                    raise OSError(
                        f"{self.shown}: partition {part.partition} of {part.topic} gives nothing from offset {at:,} on,"
                        f" and is to be read up to {part.end:,}{why}"
                    )
        finally:
            consumer.close()

    def counted(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """The ranges with their messages counted by reading them."""

        def count(part: OffsetRange) -> OffsetRange:
            return part._replace(rows=sum(map(len, self.messages(part))))

        with ThreadPoolExecutor(THREADS_MAX) as pool:
            return tuple(pool.map(count, ranges))


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**63:
        shown = _NAMED.get(name, name)
        raise Misuse(f"{shown} is {text!r}, must be a whole number of at least 1", **{shown: text})
    return int(text)


def _named_offsets(what: str, text: str) -> Offsets:
    wrong = Misuse(f'{what} is {text[:80]!r}, must be like {{"topic": {{"0": 23, "1": -2}}}}', **{what: text})
    try:
        offsets = offsets_of(json.loads(text))
    except (ValueError, AttributeError, RecursionError) as error:
        raise wrong from error
    if not all(type(at) is int and at >= EARLIEST for at in offsets.values()):
        raise wrong
    return offsets


def milliseconds_of(what: str, text: str) -> int:
    """Unix milliseconds from a text of digits, or from an ISO time, which is UTC unless it has an offset.

    >>> milliseconds_of("start", "1970-01-01T00:00:02"), milliseconds_of("start", "1500")
    (2000, 1500)
    """
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        either = '"earliest", "latest", a time such as 2026-01-31T12:00:00, or offsets as JSON'
        raise Misuse(f"{what} is {text[:80]!r}, must be {either}", **{what: text}) from error
    return round((at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp() * 1_000)


def package() -> str:
    """The Maven coordinates of Spark's own connector."""
    return f"org.apache.spark:spark-sql-kafka-0-10_{'2.13' if SPARK >= (4, 0) else '2.12'}:{pyspark.__version__}"


@dataclass(frozen=True, slots=True)
class TopicManifest(Manifest):
    """The offsets that a table was read from, and the messages at them."""

    ranges: tuple[OffsetRange, ...] = ()
    topic: str = ""

    @property
    def rows(self) -> int | None:
        counts = [part.rows for part in self.ranges]
        return None if self.why_not or None in counts else sum(counts)  # type: ignore[arg-type]

    @property
    def parts(self) -> Sequence[OffsetRange]:
        return self.ranges

    def to_dict(self) -> dict[str, Any]:
        offsets = {"partitions": len(self.ranges), "offsets": sum(part.offsets for part in self.ranges)}
        return {**Manifest.to_dict(self), "topic": self.topic, **offsets}

    def lines(self) -> bytes:
        return "".join(json.dumps(part._asdict()) + "\n" for part in self.ranges).encode()


@dataclass(frozen=True, slots=True)
class Topic:
    """Topics as in the settings: where they are, which offsets, what a value is."""

    servers: str
    topics: tuple[str, ...]
    start: str = "earliest"
    end: str = "latest"
    offsets_max: str | None = None
    value: str = "json"
    schema: str | None = None
    """The columns: for JSON as Spark DDL, for Avro its schema as JSON. None, for JSON: inferred from the values."""
    connector: str = "auto"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All other options, which are passed to the connector unchanged."""

    @classmethod
    def of(cls, path: str, options: Mapping[str, str]) -> Topic:
        """From a URL and options as named in the settings; `Misuse` names an invalid one."""
        servers, _, names = path.removeprefix(SCHEME).partition("/")
        topics = tuple(names.split(","))
        if (
            not path.startswith(SCHEME)
            or not servers
            or not all(re.fullmatch(r"[\w.-]{1,249}", each) for each in topics)
        ):
            raise Misuse(f"{path!r} is no topic, must be like kafka://host:9092/topic", path=path)
        if "@" in servers:
            raise Misuse(
                "a kafka:// address takes no user or password: give kafka.sasl.username and kafka.sasl.password"
            )
        rest = dict(options)
        own = {name: rest.pop(option) for name, option in _TOPIC_OPTIONS.items() if option in rest}
        for name in rest:
            if (better := _NAMED.get(name.lower())) is not None:
                raise Misuse(f"option {name!r} is called {better!r} here", option=name)
            if name.lower() == "failondataloss" and rest[name].lower() != "true":
                raise Misuse(
                    f"option {name!r} is {rest[name]!r}, which skips messages in silence: leave it out", option=name
                )
        if (file := rest.pop("value.schema_file", None)) is not None:
            if "schema" in own:
                raise Misuse("value.schema and value.schema_file are both given: one of them says what a value is")
            try:
                own["schema"] = Path(file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise Misuse(f"value.schema_file: {file}: {getattr(error, 'strerror', None) or error}") from error
        topic = cls(servers, topics, **own, options=rest)
        choices = (("value.format", topic.value, FORMATS), ("connector", topic.connector, ("auto", "spark", "onefold")))
        for name, word, words in choices:
            if word not in words:
                raise Misuse(f"{name} is {word!r}, must be one of {', '.join(words)}", **{name: word})
        if topic.value == "avro" and topic.schema is None:
            raise Misuse('value.format is "avro", which needs value.schema or value.schema_file')
        if topic.value in ("text", "bytes") and topic.schema is not None:
            raise Misuse(f"value.schema is given, but value.format is {topic.value!r}, which has none")
        return topic

    @property
    def shown(self) -> str:
        return f"{SCHEME}{self.servers}/{','.join(self.topics)}"

    def connector_options(self, ranges: Iterable[OffsetRange] | None = None) -> dict[str, str]:
        """The options for the connector. ``ranges``: read exactly these; None: a stream, or everything there is."""
        own = {"kafka.bootstrap.servers": self.servers}
        if ranges is None:
            own |= {"subscribe": ",".join(self.topics), **_bound("start", self.start)}
            return {**self.options, **own, **_bound("end", self.end)}
        parts, assigned = list(ranges), dict[str, list[int]]()
        for part in parts:
            assigned.setdefault(part.topic, []).append(part.partition)
        starts = {(part.topic, part.partition): part.start for part in parts}
        ends = {(part.topic, part.partition): part.end for part in parts}
        exact = {"assign": assigned, "startingOffsets": offsets_json(starts), "endingOffsets": offsets_json(ends)}
        return {**self.options, **own, **{name: json.dumps(offsets) for name, offsets in exact.items()}}

    def stream_options(self) -> dict[str, str]:
        bound = {} if self.offsets_max is None else {"maxOffsetsPerTrigger": self.offsets_max}
        options = {name: value for name, value in self.connector_options().items() if not name.startswith("ending")}
        return {**options, **bound}

    def ranges(
        self, spark: SparkSession, kind: str, read: Offsets = MappingProxyType({})
    ) -> list[OffsetRange]:  # fmt: skip
        """The ranges to read, settled now. ``read``: up to where partitions were read before."""
        if kind == OWN:
            return Cluster.of(self.connector_options()).ranges(read)
        # Through Spark's connector, as only it may be able to log in. "latest" would mean another offset in each pass.
        messages = spark.read.format(kind).options(**self.connector_options()).load().groupBy("topic", "partition")
        bounds = messages.agg(F.min("offset"), F.max("offset")).sort("topic", "partition").collect()
        ranges = [OffsetRange(at[0], at[1], read.get((at[0], at[1]), at[2]), at[3] + 1) for at in bounds]
        return [part for part in ranges if part.offsets]

    def reader(self, spark: SparkSession) -> str:
        """The name of the connector: Spark's own if it is installed, else ours, registered with the session."""
        if self.connector != "onefold" and has_connector(spark):
            return KAFKA
        if self.connector == "spark":
            raise Misuse(f'connector is "spark", which this session does not have: --packages {package()}')
        if SPARK < (4, 0):
            raise Misuse(f"Kafka on Spark {pyspark.__version__} needs Spark's own connector: --packages {package()}")
        from onefold.spark.kafka_source import OnefoldKafka

        Cluster.of(self.connector_options()).partitions()  # raises errors before Spark can wrap them
        if has_executors(spark):
            require_libraries(spark, ["confluent_kafka"])
        spark.dataSource.register(OnefoldKafka)
        return OWN

    def refuse_absent(self) -> None:
        """Without Spark, refuse brokers that do not answer and topics that do not exist; not if there are options of
        Kafka, which Spark's connector may understand and librdkafka not.
        """
        if not any(name.lower().startswith("kafka.") for name in self.options) and find_spec("confluent_kafka"):
            Cluster(self.servers, self.topics).partitions()

    def table(self, messages: DataFrame, roles: Collection[str], *, stream: bool) -> DataFrame:
        """The messages with the columns of their values. ``roles``: the columns that identify a message."""
        key, value = F.col("key"), F.col(VALUE)
        named = {"topic": F.col("topic"), "partition": F.col("partition"), "offset": F.col("offset"),
                 "timestamp": F.col("timestamp"), "key": readable(key)}  # fmt: skip
        own = [column.alias(f"kafka_{name}") for name, column in named.items()]
        if self.value == "bytes":
            return messages.select(*own, value)
        if self.value == "text":
            is_text = value.isNull() | is_utf8(value)
            return messages.select(
                *own,
                F.when(is_text, value.cast("string")).alias(VALUE),
                F.when(~is_text, readable(value)).alias(CORRUPT),
            )
        if self.value == "avro":
            return self._avro(messages.select(*own, value))
        return self._json(messages.select(*own, value.cast("string").alias(VALUE)), roles, stream)

    def _json(self, lines: DataFrame, roles: Collection[str], stream: bool) -> DataFrame:
        from onefold.spark.ingest import JsonTable, survey

        if self.schema is not None:
            kinds = {each.name: each.dataType for each in _of_ddl(lines.sparkSession, self.schema)}
            texts = {name for name, kind in kinds.items() if isinstance(kind, TEXT) and name in roles}
            table = JsonTable({name: (name,) for name in kinds}, kinds, frozenset(texts))
        elif stream or SPARK < (4, 0):
            what = "a stream" if stream else f"Spark {pyspark.__version__}"
            raise Misuse(
                f'value.schema is missing: {what} must know the columns, such as "event_id string, at timestamp"'
            )
        else:
            table = JsonTable.of(survey(lines, strict=True).keys, roles, {})
        _refuse_taken(table.types)
        rows = table.rows(lines, {}, F.coalesce(readable(F.col(VALUE).cast("binary")), F.lit("")))
        own = [name for name in lines.columns if name != VALUE]
        return rows.select(*own, *(name for name in rows.columns if name not in own))

    def _avro(self, messages: DataFrame) -> DataFrame:
        if has_executors(messages.sparkSession):
            require_libraries(messages.sparkSession, ["fastavro"])
        record = AvroRecord.of(self.schema or "")
        _refuse_taken(field.name for field in record.kind)
        own = [field for field in messages.schema if field.name != VALUE]
        schema = T.StructType([*own, *record.kind, T.StructField(CORRUPT, T.StringType())])
        return messages.mapInArrow(record.rows, schema)


_TOPIC_OPTIONS: Final = {
    "start": "start", "end": "end", "offsets_max": "max_offsets_per_trigger", "value": "value.format",
    "schema": "value.schema", "connector": "connector",
}  # fmt: skip


def _bound(what: str, text: str) -> dict[str, str]:
    """Start or end as options of Spark's connector."""
    prefix = "starting" if what == "start" else "ending"
    if text in ("earliest", "latest") or text.lstrip().startswith("{"):
        return {f"{prefix}Offsets": text}
    strategy = {f"{prefix}OffsetsByTimestampStrategy": "latest"} if what == "start" else {}
    return {f"{prefix}Timestamp": str(milliseconds_of(what, text)), **strategy}


def has_connector(spark: SparkSession) -> bool:
    """Whether Spark's own connector is installed. No broker is contacted."""
    reader = spark.read.format(KAFKA).option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    try:
        return bool(reader.load().schema)
    except (PySparkException, Py4JJavaError) as error:
        return re.search("Failed to find data source|DATA_SOURCE_NOT_FOUND|ClassNotFound", first_line(error)) is None


def readable(value: Column) -> Column:
    """Bytes as text, injectively: UTF-8 as is; other bytes, and text that begins with "0x", as "0x" and hex."""
    text = value.cast("string")
    return F.when(is_utf8(value) & ~text.startswith("0x"), text).otherwise(F.concat(F.lit("0x"), F.hex(value)))


def _of_ddl(spark: SparkSession, text: str) -> T.StructType:
    try:
        return spark.createDataFrame([], text.strip()).schema
    except (PySparkException, ValueError, TypeError) as error:
        raise Misuse(
            f'value.schema is {text[:80]!r}, must be like "event_id string, at timestamp": {first_line(error)}'
        ) from error


def _refuse_taken(names: Iterable[str]) -> None:
    for name in names:
        if name.lower() in TAKEN:
            raise Misuse(f"a value has a column {name!r}, which is the name of a column of the message", column=name)


class AvroRecord:
    """Avro values of a topic, all of one schema, without a header."""

    def __init__(self, schema: Any, kind: T.StructType) -> None:
        self.schema, self.kind = schema, kind

    @classmethod
    def of(cls, text: str) -> AvroRecord:
        try:
            import fastavro
        except ImportError as error:
            raise Misuse("fastavro is not installed: pip install 'onefold[kafka]'") from error
        try:
            document = json.loads(text)
            fastavro.parse_schema(document)
            kind = _AvroTypes().kind(document, "")
        except Misuse:
            raise
        except Exception as error:  # fastavro raises many types for an invalid schema
            raise Misuse(f"value.schema is no schema of Avro: {first_line(error)}") from error
        if not isinstance(kind, T.StructType):
            raise Misuse(f"value.schema is {kind.simpleString()}, must be a record")
        return cls(document, kind)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The messages with their values decoded; runs in a task."""
        from fastavro import parse_schema, schemaless_reader

        schema, struct = parse_schema(self.schema), pa.struct(list(arrow_schema(self.kind)))
        nothing: dict[str, Any] = dict.fromkeys(self.kind.names)

        def decoded(value: bytes | None) -> Any:
            if value is None:
                return None
            stream = BytesIO(value)
            try:
                record = schemaless_reader(stream, schema, None)
                return record if stream.tell() == len(value) else None
            except Exception:  # fastavro raises many types for bytes that do not fit: the row is malformed
                return None

        def fits(record: Any) -> bool:
            try:
                pa.array([record], struct)
            except (pa.ArrowException, ValueError, OverflowError, TypeError):
                return False
            return True

        for batch in batches:
            values = batch.column(batch.schema.get_field_index(VALUE)).to_pylist()
            records = [decoded(value) for value in values]
            try:
                columns = pa.array([record or nothing for record in records], struct)
            except (pa.ArrowException, ValueError, OverflowError, TypeError):
                records = [record if record is not None and fits(record) else None for record in records]
                columns = pa.array([record or nothing for record in records], struct)
            corrupt = [
                None if record is not None else "" if value is None else f"0x{value.hex().upper()}"
                for record, value in zip(records, values, strict=True)
            ]
            own = [(name, batch.column(i)) for i, name in enumerate(batch.schema.names) if name != VALUE]
            fields = [(struct.field(i).name, column) for i, column in enumerate(columns.flatten())]
            named = [*own, *fields, (CORRUPT, pa.array(corrupt, pa.string()))]
            yield pa.RecordBatch.from_arrays([column for _, column in named], names=[name for name, _ in named])


_AVRO: Final[Mapping[str, T.DataType]] = {
    "string": T.StringType(), "bytes": T.BinaryType(), "int": T.IntegerType(), "long": T.LongType(),
    "float": T.FloatType(), "double": T.DoubleType(), "boolean": T.BooleanType(),
}  # fmt: skip
_LOGICAL: Final[Mapping[str, T.DataType]] = {
    "timestamp-millis": T.TimestampType(), "timestamp-micros": T.TimestampType(), "date": T.DateType(),
    "local-timestamp-millis": T.TimestampNTZType(), "local-timestamp-micros": T.TimestampNTZType(),
}  # fmt: skip


class _AvroTypes:
    """Maps the types of an Avro schema to Spark's. A type that Spark lacks is `Misuse`; logical types that Spark lacks
    are removed from the schema, so that the type below is read.
    """

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def kind(self, schema: Any, at: str) -> T.DataType:
        if isinstance(schema, list):
            members = [each for each in schema if each != "null"]
            if len(members) != 1:
                raise Misuse(
                    f"value.schema: {at or 'the value'} is a union of {len(members)} types, must be of one and null"
                )
            return self.kind(members[0], at)
        if isinstance(schema, str):
            if schema in _AVRO:
                return _AVRO[schema]
            if schema not in self._named:
                raise Misuse(f"value.schema: {at or 'the value'} is {schema!r}, which is no type here")
            return self.kind(self._named[schema], at)
        name, logical = schema["type"], schema.get("logicalType")
        if isinstance(name, dict | list):
            return self.kind(name, at)
        if logical == "decimal" and 1 <= schema.get("precision", 0) <= 38:
            return T.DecimalType(schema["precision"], schema.get("scale", 0))
        if logical in _LOGICAL and name in ("int", "long"):
            return _LOGICAL[logical]
        if logical is not None:
            del schema["logicalType"]
        if "name" in schema:
            for alias in (schema["name"], f"{schema.get('namespace', '')}.{schema['name']}".lstrip(".")):
                self._named[alias] = schema
        if name in ("enum", "fixed"):
            return T.StringType() if name == "enum" else T.BinaryType()
        if name == "array":
            if _least(schema["items"], self._named) == 0:
                raise Misuse(f"value.schema: {at}: items of no bytes could be any number")
            return T.ArrayType(self.kind(schema["items"], f"{at}[]"))
        if name == "map":
            return T.MapType(T.StringType(), self.kind(schema["values"], f"{at}{{}}"))
        if name in ("record", "error"):
            if schema["name"] in self._open:
                raise Misuse(f"value.schema: {at}: {schema['name']} holds itself, which no column can")
            self._open.append(schema["name"])
            fields = [
                T.StructField(each["name"], self.kind(each["type"], f"{at}.{each['name']}".lstrip(".")))
                for each in schema["fields"]
            ]
            self._open.pop()
            return T.StructType(fields)
        return self.kind(name, at)


def _least(schema: Any, named: Mapping[str, Any]) -> int:
    """The least number of bytes that a value takes."""
    if isinstance(schema, dict) and schema.get("type") in ("record", "error"):
        return sum(_least(each["type"], named) for each in schema["fields"])
    if isinstance(schema, dict) and schema.get("type") == "fixed":
        return int(schema["size"])
    if isinstance(schema, dict):
        return _least(schema["type"], named)
    return 0 if schema == "null" else _least(named[schema], named) if isinstance(schema, str) and schema in named else 1


def open_table(
    spark: SparkSession, path: str, options: Mapping[str, str], roles: Collection[str],
    only: Iterable[str] | None = None,
) -> OpenSource:  # fmt: skip
    """The messages of a topic as a table. ``roles``: the columns that identify a message. ``only``: read these ranges,
    by their names in `listed`.
    """
    from onefold.spark.ingest import OpenSource

    topic = Topic.of(path, options)
    kind = topic.reader(spark)
    ranges = topic.ranges(spark, kind) if only is None else joined(map(OffsetRange.named, only))
    cluster = Cluster.of(topic.connector_options(ranges)) if kind == OWN else None
    if cluster is not None:
        cluster.check(ranges)
    reader = spark.read.format(kind).options(**topic.connector_options(ranges))
    messages = reader.load() if any(part.offsets for part in ranges) else spark.createDataFrame([], MESSAGE)
    why_not = "" if cluster is not None else "Spark's own connector alone reads the topic"
    manifest = TopicManifest(why_not=why_not, ranges=tuple(ranges), topic=topic.shown)

    def count(read: int) -> TopicManifest:
        if cluster is None:
            return manifest
        if read == sum(part.offsets for part in ranges):
            return replace(manifest, ranges=tuple(part._replace(rows=part.offsets) for part in ranges))
        return replace(manifest, ranges=cluster.counted(ranges))

    def by_partition() -> dict[str, int]:
        counts = rows.groupBy("kafka_topic", "kafka_partition").count().collect()
        return {f"{name}/{number}": int(many) for name, number, many in counts}

    rows = topic.table(messages, roles, stream=False)
    return OpenSource(rows, manifest, None, by_partition, count)


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Join consecutive ranges into one for each partition; `BadInput` if there is a hole between them.

    >>> [part.name for part in joined(map(OffsetRange.named, ["t/0/5-9", "t/0/0-5", "t/1/2-3"]))]
    ['t/0/0-9', 't/1/2-3']
    """
    whole: dict[tuple[str, int], OffsetRange] = {}
    for part in sorted(ranges, key=lambda part: part[:4]):
        before = whole.get((part.topic, part.partition), part)
        if part.start not in (before.start, before.end):
            raise BadInput(f"partition {part.partition} of {part.topic}: no run read {before.end:,} to {part.start:,}")
        whole[part.topic, part.partition] = before._replace(end=part.end)
    return [*whole.values()]


def listed(
    spark: SparkSession, path: str, options: Mapping[str, str], before: Iterable[FileKey]
) -> list[SourceFile]:  # fmt: skip
    """The ranges that were read ``before``, and the new ones, each as if it were a file. A new partition has a range
    even if that is empty, so that "latest" is settled once.
    """
    topic = Topic.of(path, options)
    ranges = [OffsetRange.named(each.path) for each in before]
    read = {(part.topic, part.partition): part.end for part in joined(ranges)}
    ranges += topic.ranges(spark, topic.reader(spark), read)
    return [SourceFile(part.name, part.offsets, 0) for part in ranges]


def ranges_read(manifest: bytes, checkpoint: Place) -> list[str]:
    """The ranges that a run read, from its ``manifest`` or those of its versions, one after the other; those of a
    stream, from its checkpoint.
    """
    if manifest:
        return [OffsetRange(**json.loads(line)).name for line in manifest.splitlines()]
    done = max((int(name) for name in (checkpoint / "commits").names() if name.isdecimal()), default=None)
    if done is None:
        raise Misuse(f"{checkpoint.shown} has no batch: how far the stream has read is not known")
    ends = (checkpoint / "offsets" / str(done)).read_bytes().decode().splitlines()[2]
    starts = offsets_of((signature(checkpoint) or {}).get("start") or {})
    return [OffsetRange(*where, starts.get(where, 0), end).name for where, end in offsets_of(json.loads(ends)).items()]


def open_stream(
    spark: SparkSession, path: str, options: Mapping[str, str], roles: Collection[str],
    start: Mapping[str, Any] | None,
) -> tuple[DataFrame, Mapping[str, Any] | None]:  # fmt: skip
    """The messages of a topic as a stream, and its first offsets: ``start``, else as the settings say.

    Until a batch is done, Spark asks a Python data source for its first offset at each start; so the caller keeps it.
    None: Spark's own connector keeps it.
    """
    topic = Topic.of(path, options)
    kind = topic.reader(spark)
    if kind == OWN:
        start = offsets_json(Cluster.of(topic.connector_options()).starts()) if start is None else start
        topic = replace(topic, start=json.dumps(start))
    return topic.table(
        spark.readStream.format(kind).options(**topic.stream_options()).load(), roles, stream=True
    ), start
