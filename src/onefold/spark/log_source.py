"""``format("onefold-log")``: a topic's log as a table or a stream.

    df = spark.read.format("onefold-log").load("log/orders")

An offset of the stream is an offset of the log, so a Spark checkpoint says exactly which records were read, and a
restart continues there. Only records that the log's writer has marked as durable are read. A task reads a range of
offsets, cut at the borders of segments and index entries; records become Arrow batches.

Options: ``start`` (for a stream: "earliest", "latest", an offset or a time such as "2026-01-31T12:00:00", in UTC),
``maxRecordsPerTrigger``, ``kinds`` ("messages", or "all": also conflicts, sessions, purges and switches), ``tasks``
(the most tasks that read).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from onefold.errors import Misuse
from onefold.producers.log.reader import LogReader
from onefold.producers.records import MESSAGES, Kind
from onefold.spark.ingest import LOG

OPTIONS: Final = ("path", "start", "maxRecordsPerTrigger", "kinds", "tasks")
TASKS: Final = 16
_KINDS = {
    "offset": T.LongType(), "time": T.TimestampType(), "kind": T.StringType(), "producer": T.StringType(),
    "sequence": T.LongType(), "epoch": T.LongType(), "payload": T.BinaryType(),
}  # fmt: skip
SCHEMA: Final = T.StructType([T.StructField(name, kind, False) for name, kind in _KINDS.items()])


class OnefoldLog(DataSource):
    @classmethod
    def name(cls) -> str:
        return LOG

    def schema(self) -> T.StructType:
        return SCHEMA

    def reader(self, schema: T.StructType) -> "TableReader":
        return TableReader(self.options)

    def streamReader(self, schema: T.StructType) -> "StreamReader":
        return StreamReader(self.options)


class _TopicReader:
    """The options and the log, for both readers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        unknown = sorted(name for name in options if name.lower() not in {option.lower() for option in OPTIONS})
        if unknown:
            raise Misuse(f"option {unknown[0]!r} is unknown, the options are {', '.join(OPTIONS)}", option=unknown[0])
        if "path" not in options:
            raise Misuse('the path of the topic is missing: load("FOLDER/TOPIC")')
        self.path = Path(options["path"].removeprefix("file:"))
        self.start = options.get("start", "earliest")
        self.tasks = _whole(options, "tasks", TASKS)
        self.rows_max = _whole(options, "maxRecordsPerTrigger", None)
        kinds = options.get("kinds", "messages")
        if kinds not in ("messages", "all"):
            raise Misuse(f"kinds is {kinds!r}, must be 'messages' or 'all'", kinds=kinds)
        self.kinds = {int(kind) for kind in (MESSAGES if kinds == "messages" else Kind)}

    def bounds(self) -> tuple[int, int]:
        log = LogReader(self.path)
        return log.start, log.end

    def offset_at(self, text: str) -> int | None:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return LogReader(self.path).offset_at(round(at.timestamp() * 1_000))

    def cut(self, start: int, end: int) -> list[InputPartition]:
        return [InputPartition(part) for part in LogReader(self.path).ranges(start, end, self.tasks or TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        names = {int(kind): kind.name.lower() for kind in Kind}
        schema = to_arrow_schema(SCHEMA, timezone="UTC")
        for records in LogReader(self.path).batches(*partition.value):
            chunk = [record for record in records if record.kind in self.kinds]
            if not chunk:
                continue
            offset, time_ms, kind, producer, sequence, epoch, _, payload = zip(*chunk, strict=True)
            micros = [ms * 1_000 for ms in time_ms]
            columns = [offset, micros, [names[k] for k in kind], producer, sequence, epoch, payload]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _whole(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in options:
        return default
    text = options[name]
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Misuse(f"{name} is {text!r}, must be a whole number of at least 1", **{name: text})
    return int(text)


class TableReader(_TopicReader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self.cut(*self.bounds())


class StreamReader(_TopicReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _until: int | None = None

    def initialOffset(self) -> dict[str, int]:
        first, end = self.bounds()
        if self.start in ("earliest", "latest"):
            return {"offset": first if self.start == "earliest" else end}
        offset = int(self.start) if self.start.isascii() and self.start.isdigit() else self.offset_at(self.start)
        if offset is None or not first <= offset <= end:
            wanted = f"earliest, latest, a time or an offset from {first} to {end}"
            raise Misuse(f"start is {self.start!r}, must be {wanted}", start=self.start)
        return {"offset": offset}

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.bounds()[1]

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.rows_max is None else ReadMaxRows(self.rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = self.bounds()[1] if self._until is None else self._until
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["offset"] + limit.max_rows)
        return {"offset": max(end, start["offset"])}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"offset": self.bounds()[1]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.cut(start["offset"], end["offset"])
