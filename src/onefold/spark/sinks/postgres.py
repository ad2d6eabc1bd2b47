"""Batches in PostgreSQL tables: the executors copy, one transaction of the driver makes visible.

The rows go straight from the tasks to the database, as text that Spark itself makes of them; no row passes through
Python one by one. What happens in the database is told in `onefold.stores.postgres.batches`.

    string: text    byte, short: smallint    int: integer    long: bigint      float: real    double: double precision
    boolean: boolean    decimal: numeric     date: date      binary: bytea     timestamp: timestamp with time zone
    timestamp_ntz: timestamp without time zone    array, map, struct, variant: jsonb    anything else: text

PostgreSQL's text cannot hold NUL, and neither it nor jsonb holds bytes that are no UTF-8. Both become U+FFFD, as in
HTML and CommonMark: an error would let one hostile message stop the stream for ever. A time outside PostgreSQL's range
(4713 BC to 294276 AD) is an error.

With ``drop`` and ``mark`` the table has ``verdict`` and ``reason``; who wants what counts reads ``where verdict =
'FIRST'``. With ``none`` the rows are as they came, and the books are in TABLE_tally all the same.
"""

import io
import json
from collections.abc import Callable, Iterator
from typing import LiteralString

import pyarrow as pa
import pyarrow.csv as csv
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.spark.columns import quoted
from onefold.spark.judge import REASON, VERDICT
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.publish import Strategy
from onefold.spark.sinks.sink import another
from onefold.stores.postgres import batches
from onefold.stores.postgres.address import parse
from onefold.tally import Tally

NO_TEXT = "\ufffd"
NESTED = (T.ArrayType, T.MapType, T.StructType, T.VariantType)
TYPES: dict[type[T.DataType], LiteralString] = {
    T.ByteType: "smallint",
    T.ShortType: "smallint",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.BooleanType: "boolean",
    T.DecimalType: "numeric",
    T.TimestampType: "timestamp with time zone",
    T.TimestampNTZType: "timestamp without time zone",
    T.DateType: "date",
    T.BinaryType: "bytea",
}
# The era is written out because the year before 1 AD is 1 BC; the offset, because a session may have any zone.
FORMATS: dict[type[T.DataType], str] = {
    T.TimestampType: "yyyy-MM-dd HH:mm:ss.SSSSSSxxxxx G",
    T.TimestampNTZType: "yyyy-MM-dd HH:mm:ss.SSSSSS G",
    T.DateType: "yyyy-MM-dd G",
}


class PostgresSink:
    """A table, and beside it its gaps, its books and the id of its last batch."""

    def __init__(self, url: str, strategy: Strategy, meaning: Meaning | None = None) -> None:
        self._batches = batches.Batches(parse(url))
        self._meaning = meaning
        self._strategy = strategy

    def __str__(self) -> str:
        return str(self._batches.address)

    def last(self, stream: str) -> int | None:
        """What the table of the stream says."""
        found = self._batches.stream()
        if found is None:
            return None
        owner, batch, meaning = found
        if owner != stream:
            raise another(self)
        if self._meaning is not None and meaning is not None:
            refuse_other(self, json.loads(meaning), self._meaning)
        return batch

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        """Let the executors copy everything into staging, then move it in one transaction."""
        staging = self._stage(stream, rows, gaps)
        return self._batches.commit(stream, batch, staging, (VERDICT, REASON))

    def total(self) -> Tally:
        """The sum of the books."""
        return self._batches.total()

    def _stage(self, stream: str, rows: DataFrame, gaps: DataFrame | None) -> dict[str, batches.Staging]:
        hidden = {VERDICT, REASON} if self._strategy == "none" else set()
        frames = {batches.ROWS: rows} | ({} if gaps is None else {batches.GAPS: gaps})
        kinds = {kind: [_column(field, hidden) for field in frame.schema] for kind, frame in frames.items()}
        meaning = None if self._meaning is None else json.dumps(dict(self._meaning))
        staging = self._batches.begin(stream, kinds, meaning)
        for kind, frame in frames.items():
            text = frame.select(*(_text(field).alias(f"c{n}") for n, field in enumerate(frame.schema)))
            text.mapInArrow(_copier(self._batches, staging[kind]), "sent long").collect()
        return staging


def _copier(
    store: batches.Batches, staging: batches.Staging
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def copy(arrow: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        sent = store.copy(staging, part, (_csv(batch, part) for batch in arrow))
        yield pa.record_batch({"sent": pa.array([sent], pa.int64())})

    return copy


def _csv(batch: pa.RecordBatch, part: int) -> tuple[int, bytes]:
    """The rows with their part before them; null is nothing, the empty text is ``""``, and so COPY reads them."""
    parts = pa.repeat(pa.scalar(part, pa.int32()), batch.num_rows)
    table = pa.Table.from_arrays([parts, *batch.columns], names=["part", *batch.schema.names])
    buffer = io.BytesIO()
    csv.write_csv(table, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return batch.num_rows, buffer.getvalue()


def _column(field: T.StructField, hidden: set[str]) -> batches.Column:
    kind = type(field.dataType)
    name: LiteralString = TYPES.get(kind, "jsonb" if issubclass(kind, NESTED) else "text")
    return batches.Column(field.name, name, kept=field.name not in hidden)


def _text(field: T.StructField) -> Column:
    """The column as PostgreSQL reads it."""
    column, kind = F.col(quoted(field.name)), type(field.dataType)
    if kind in FORMATS:
        return F.regexp_replace(F.date_format(column, FORMATS[kind]), r"^\+", "")  # "+" stands before years over 9999
    if kind is T.BinaryType:
        return F.concat(F.lit("\\x"), F.hex(column))
    if issubclass(kind, NESTED):
        # An escaped NUL, but not an escaped backslash with u0000 after it.
        json = F.to_json(column, {"ignoreNullFields": "false"})
        return F.make_valid_utf8(F.regexp_replace(json, r"(?<!\\)((?:\\\\)*)\\u0000", f"$1{NO_TEXT}"))
    return F.make_valid_utf8(F.replace(column.cast("string"), F.lit("\0"), F.lit(NO_TEXT)))
