"""``format("onefold-kafka")``: Kafka topics as a table or a stream, without Spark's own connector.

It has the columns of Spark's connector and takes some of its options: ``kafka.*`` (properties of
librdkafka), ``subscribe``, ``startingOffsets``, ``endingOffsets``, ``startingTimestamp``, ``endingTimestamp``,
``maxOffsetsPerTrigger`` and ``minPartitions``. The offsets of a stream are written as Spark's connector writes them.

A task reads a range of offsets of one partition with a consumer of its own, which commits nothing: reading a range
again returns the same messages, or an error if the broker no longer has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from onefold.errors import Misuse
from onefold.spark.dialect import arrow_schema
from onefold.spark.kafka import MESSAGE, OWN, Cluster, OffsetRange, Offsets, offsets_json, offsets_of, package

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # an older Spark reads all that is there: "available" is one batch
    ReadAllAvailable = ReadLimit = ReadMaxRows = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

TASKS: Final = 64
"""The most ranges that a table is cut into, unless ``minPartitions`` asks for more."""
RANGE_OFFSETS_MIN: Final = 50_000
"""A range of fewer offsets is not cut: another task's connection would cost more than its messages."""


class OnefoldKafka(DataSource):
    @classmethod
    def name(cls) -> str:
        return OWN

    def schema(self) -> T.StructType:
        return MESSAGE

    def reader(self, schema: T.StructType) -> KafkaTableReader:
        return KafkaTableReader(self.options)

    def streamReader(self, schema: T.StructType) -> KafkaStreamReader:
        return KafkaStreamReader(self.options)


class _KafkaReader:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._cluster = Cluster.of(options)

    def cut(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        offsets = sum(part.offsets for part in ranges)
        size = max(RANGE_OFFSETS_MIN, -(-offsets // TASKS))
        if self._cluster.tasks is not None:
            size = min(size, max(1, -(-offsets // self._cluster.tasks)))
        pieces = [part.piece(at, at + size) for part in ranges for at in range(part.start, part.end, size)]
        return [InputPartition(tuple(piece)) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's placeholder if there is nothing to read
            return
        schema, part = arrow_schema(MESSAGE), OffsetRange(*partition.value)
        for messages in self._cluster.messages(part):
            columns = [
                [message.key() for message in messages],
                [message.value() for message in messages],
                [part.topic] * len(messages),
                [part.partition] * len(messages),
                [message.offset() for message in messages],
                [None if (at := message.timestamp())[0] == 0 else at[1] * 1_000 for message in messages],
            ]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class KafkaTableReader(_KafkaReader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self.cut(self._cluster.ranges())


class KafkaStreamReader(_KafkaReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _until: Offsets | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        if ReadMaxRows is None and self._cluster.offsets_max is not None:
            raise Misuse(f"max_offsets_per_trigger needs Spark 4.2 or Spark's own connector: --packages {package()}")

    def initialOffset(self) -> dict[str, dict[str, int]]:
        return dict(json.loads(self._cluster.start))  # settled by `kafka.open_stream`

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._cluster.ends()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._cluster.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(
        self, start: dict[str, dict[str, int]] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, dict[str, int]]:
        begin = offsets_of(start or {})
        until = self._cluster.ends() if self._until is None else self._until
        self._cluster.refuse_new_topic(begin, until)
        ends: Offsets = {**begin, **until}
        if limit is not None and isinstance(limit, ReadMaxRows):
            ends = shared_out({where: (begin.get(where, 0), end) for where, end in ends.items()}, limit.max_rows)
        return offsets_json(ends)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        return offsets_json(self._cluster.ends())

    def partitions(
        self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
    ) -> Sequence[InputPartition]:  # fmt: skip
        begin = offsets_of(start)  # a partition added since is read from its first message
        ranges = [OffsetRange(*where, begin.get(where, 0), at) for where, at in offsets_of(end).items()]
        self._cluster.check([part for part in ranges if part.offsets])
        return self.cut(ranges)


def shared_out(ranges: Mapping[tuple[str, int], tuple[int, int]], most: int) -> Offsets:
    """Where each partition ends in a batch of ``most`` offsets, shared in proportion to what each has to read.

    >>> shared_out({("t", 0): (0, 90), ("t", 1): (5, 15), ("t", 2): (7, 7)}, 10)
    {('t', 0): 9, ('t', 1): 6, ('t', 2): 7}
    >>> shared_out({("t", 0): (0, 2), ("t", 1): (0, 2)}, 1)
    {('t', 0): 1, ('t', 1): 0}
    """
    waiting = {where: end - start for where, (start, end) in ranges.items()}
    total = sum(waiting.values())
    if total <= most:
        return {where: end for where, (_, end) in ranges.items()}
    shares = {where: most * offsets // total for where, offsets in waiting.items()}
    rest = most - sum(shares.values())
    for where in sorted(waiting, key=lambda each: shares[each] - waiting[each])[:rest]:
        shares[where] += 1
    return {where: start + shares[where] for where, (start, _) in ranges.items()}
