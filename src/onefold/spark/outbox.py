"""``writeStream.foreachBatch(outbox_sink(...))``: the rows of a stream become messages with tokens, each once.

Spark tries a batch again after a crash, from its beginning. So that nothing is sent twice, each batch is cut the same
way every time: the row becomes a text (JSON), the text says by its hash which bucket the row belongs to, a bucket's
rows are sorted and cut into chunks. A chunk is sent by the outbox algorithm under a mark that grows, ``batch << 20 |
chunk``, which is kept per bucket beside its outbox: a chunk that was sent before is known by its mark, and a chunk that
was cut off is finished. Equal rows are messages of their own.

The executors send; each bucket is one task. The store keeps an entity per bucket, and one for the source (`Batch`).

What this cannot know: that a replayed batch has other rows than before. Spark reads the same input again; a step that
asks the clock or a random number makes other rows of it. Do that behind the sink, in the handler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold import errors
from onefold.engines.outbox import PLANS, Key
from onefold.engines.outbox.handling import OUTGOING_MAX, check_name, check_queue
from onefold.errors import Misuse, OnefoldError
from onefold.spark.columns import quoted
from onefold.spark.outbox_batch import Batch
from onefold.spark.outbox_task import BODY, BUCKET, CHUNK_BITS, ENDPOINT, FIGURES_SPARK, Places, Task
from onefold.spark.shipping import is_cluster, ship
from onefold.spark.table import REASON, VERDICT
from onefold.verdict import Verdict

BUCKETS_MAX: Final = 10_000
NUMBER_MAX: Final = (1 << 63 - CHUNK_BITS) - 1
JSON: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Whole: Spark would cut times to milliseconds and leave null fields out."""


class Sent(NamedTuple):
    """How many messages of a batch were sent."""

    applied: int
    """Now."""
    resumed: int
    """Of chunks that an earlier try began."""
    duplicate: int
    """By an earlier try, long before."""


def outbox_sink(
    *, store: str, transport: str, to: str, source: str, tokens: str | None = None, plan: str | None = None,
    body: Sequence[str] | None = None, buckets: int = 8, chunk_max: int = 500, only: Verdict | None = Verdict.FIRST,
) -> Callable[[DataFrame, int], None]:  # fmt: skip
    """A function for ``foreachBatch`` that sends each row of a stream as one message, once.

    ``store``, ``tokens`` and ``transport`` are addresses as an `Endpoint` takes them, which all executors can reach;
    ``to`` is a queue. ``source`` names this stream: it must be its own, and the same after each restart. A stream that
    begins anew, with a new checkpoint, needs a new name: its batches count from 0 again, and `Misuse` says so.

    ``body`` are the columns that are sent, as a JSON object; None: all but verdict and reason. Decimals are sent as
    text, times as ISO 8601 in UTC, null as null. ``only``: of rows that have a verdict, those with this one; None: all.

    Cost: one shuffle of the texts; per chunk one transaction (with ``tokens``: five writes) and one send.
    """
    sink = _sink(store, transport, to, source, tokens, plan, body, buckets, chunk_max, only)

    def send(rows: DataFrame, batch: int) -> None:
        sink.send(rows, batch, _query(rows.sparkSession))

    return send


def send_batch(
    df: DataFrame, *, store: str, transport: str, to: str, source: str, mark: int, tokens: str | None = None,
    plan: str | None = None, body: Sequence[str] | None = None, buckets: int = 8, chunk_max: int = 500,
    only: Verdict | None = Verdict.FIRST,
) -> Sent:  # fmt: skip
    """Send each row of a table as one message, once, however often the job is run with this mark.

    ``mark`` is the number of the job's run, such as its day, 20260131; a source's marks must grow. The rest is as for
    `outbox_sink`. A mark below the highest that was sent sends nothing; one above a mark that was begun and is not
    finished is `Misuse`, for what is left of that would be lost.
    """
    return _sink(store, transport, to, source, tokens, plan, body, buckets, chunk_max, only).send(df, mark, "")


def _sink(
    store: str, transport: str, to: str, source: str, tokens: str | None, plan: str | None,
    body: Sequence[str] | None, buckets: int, chunk_max: int, only: Verdict | None,
) -> _Sink:  # fmt: skip
    plan = plan or ("transactional" if tokens is None else "parented")
    if plan not in PLANS:
        raise Misuse(f"plan is {plan!r}, must be one of {', '.join(PLANS)}", plan=plan)
    if plan == "transactional" and tokens is not None:
        raise Misuse("the plan 'transactional' keeps entities and tokens in one database: leave tokens out")
    for name, value, most in (("buckets", buckets, BUCKETS_MAX), ("chunk_max", chunk_max, OUTGOING_MAX)):
        if not 1 <= value <= most:
            raise Misuse(f"{name} is {value}, must be from 1 to {most:,}", **{name: value})
    for name, url in (("store", store), ("transport", transport), ("tokens", tokens or "")):
        if url.startswith("memory:"):
            raise Misuse(f"{name} is {url!r}: every task would have a memory of its own")
    if any(sign in check_name(source, "source") for sign in ":#/"):
        raise Misuse(f"source is {source!r}, must be without ':', '#' and '/'", source=source)
    places = Places(store=store, transport=transport, tokens=tokens)
    named = None if body is None else tuple(body)
    return _Sink(places, check_queue(to), source, plan == "transactional", named, buckets, chunk_max, only)


@dataclass(frozen=True, slots=True)
class _Sink:
    places: Places
    to: str
    source: str
    at_once: bool
    body: tuple[str, ...] | None
    buckets: int
    chunk_max: int
    only: Verdict | None

    def send(self, rows: DataFrame, number: int, query: str) -> Sent:
        if not 0 <= number <= NUMBER_MAX:
            raise Misuse(f"mark is {number}, must be from 0 to {NUMBER_MAX:,}", mark=number)
        self._check_reach(rows.sparkSession)
        columns = self._columns(rows)
        batch = Batch(Key(ENDPOINT, self.source), number, query, self._shape(rows, columns))
        with self.places.opened() as world:  # here first: tables are made once, and a wrong address is one line
            due = batch.begin(world.entities)
        if not due:  # whatever state the stream keeps still has to go through it
            rows.write.format("noop").mode("overwrite").save()
            return Sent(0, 0, 0)
        sent = self._sent(rows, columns, number)
        with self.places.opened() as world:
            batch.finish(world.entities)
        return sent

    def _sent(self, rows: DataFrame, columns: list[Column], number: int) -> Sent:
        task = Task(
            places=self.places,
            source=self.source,
            number=number,
            to=self.to,
            chunk_max=self.chunk_max,
            at_once=self.at_once,
        )
        figures = self._addressed(rows, columns).mapInArrow(task, FIGURES_SPARK).collect()
        for row in figures:
            if row["error"]:
                kind: type[OnefoldError] = getattr(errors, row["kind"], OnefoldError)
                raise kind(row["error"])
        applied, resumed, duplicate = (sum(row[name] for row in figures) for name in Sent._fields)
        return Sent(applied, resumed, duplicate)

    def _check_reach(self, spark: SparkSession) -> None:
        if not is_cluster(str(spark.sparkContext.master)):
            return
        for name in ("store", "transport", "tokens"):
            if (getattr(self.places, name) or "").startswith("sqlite:"):
                raise Misuse(f"{name} is a SQLite file: the executors of a cluster would each have one of their own")
        ship(spark)

    def _columns(self, rows: DataFrame) -> list[Column]:
        types = {column.name: column.dataType for column in rows.schema.fields}
        names = self.body if self.body is not None else [name for name in types if name not in (VERDICT, REASON)]
        for name in names:
            if name not in types:
                raise Misuse(f"no column {name!r} (body): the columns are {', '.join(types)}", column=name)
        if not names:
            raise Misuse("body is empty, must name at least one column")
        return [F.col(quoted(name)).cast(exact(types[name])).alias(name) for name in names]

    def _shape(self, rows: DataFrame, columns: list[Column]) -> dict[str, Any]:
        schema = rows.select(*columns).schema.json()
        only = str(self.only) if self.only is not None and VERDICT in rows.columns else ""
        digest = hashlib.sha256(schema.encode()).hexdigest()[:16]
        return {"buckets": self.buckets, "chunk_max": self.chunk_max, "only": only, "columns": digest}

    def _addressed(self, rows: DataFrame, columns: list[Column]) -> DataFrame:
        """The rows as texts, each bucket in a partition of its own, sorted."""
        if self.only is not None and VERDICT in rows.columns:
            rows = rows.where(F.col(VERDICT) == str(self.only))
        texts = rows.select(F.to_json(F.struct(*columns), JSON).alias(BODY))
        bucket = F.pmod(F.xxhash64(BODY), F.lit(self.buckets)).cast("int")
        return texts.select(bucket.alias(BUCKET), BODY).repartitionById(self.buckets, BUCKET).sortWithinPartitions(BODY)


def exact(kind: T.DataType) -> T.DataType:
    """The type that JSON holds without loss: decimals are text, at any depth.

    >>> exact(T.ArrayType(T.DecimalType(38, 18))).simpleString()
    'array<string>'
    """
    if isinstance(kind, T.DecimalType):
        return T.StringType()
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(exact(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(exact(kind.keyType), exact(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, exact(f.dataType), f.nullable) for f in kind.fields])
    return kind


def _query(spark: SparkSession) -> str:
    """The id of the stream whose batch this is, which its checkpoint keeps; empty outside of one."""
    return str(spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "")
