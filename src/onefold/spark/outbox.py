"""``writeStream.foreachBatch(outbox_sink(...))``: the rows of a stream become messages with tokens, each once.

Spark retries a batch after a crash, from its beginning. So that nothing is sent twice, each batch is always cut in the
same way: a row becomes a text (JSON), the hash of the text selects a bucket, the rows of a bucket are sorted and cut
into chunks. A chunk is sent by the outbox algorithm under an increasing mark, ``batch << 20 | chunk``, which is kept
per bucket beside its outbox: a chunk that was sent before is recognised by its mark, and an interrupted chunk is
finished. Equal rows are separate messages.

The executors send; each bucket is one task. The store keeps an entity per bucket, and one for the source.

Not detected: a replayed batch with other rows than before. Spark reads the same input again, but a step that uses the
clock or random numbers makes other rows of it. Do that behind the sink, in the handler.

A bucket is a source (see `onefold.outbox.plans`) and a chunk is one mark of it. Rows are sorted, so a replayed task
cuts the same chunks: those taken before are skipped, and an interrupted one is finished. If Spark runs two tasks for a
bucket speculatively, they conflict at the version of the source's entity, and one succeeds.

A batch must be finished with the cut it was begun with: with another number of buckets or another column, rows would be
in other chunks, and some would be sent twice and some never. So the store also keeps the current batch, how it is cut,
and whether it is complete. The next batch may be cut in another way, because it begins only after this one is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold import errors
from onefold.errors import Misuse, OnefoldError, StaleWrite
from onefold.outbox import plans
from onefold.outbox.plans import Entity, Key, Out, Outcome, mark_of
from onefold.outbox.ports import EntityStore, Ledger, open_ledger, open_queue, open_tokens
from onefold.outbox.runner import World, run_one
from onefold.spark.columns import AnyColumns, Names, listed, quoted
from onefold.spark.host import REASON, VERDICT
from onefold.spark.session import has_executors, query_id, ship
from onefold.verdict import Verdict

Item = TypeVar("Item")

ENDPOINT: Final = "spark"
"""The endpoint of the entities of such sources."""
BUCKET, BODY = "bucket", "body"
CHUNK_BITS: Final = 20
"""The bits of a mark for the chunk; the rest is the batch. 500 million rows per bucket, 8 trillion batches."""
TRIES_MAX: Final = 20
"""How often a chunk with a concurrent writer is tried: that is a copy of this task, so the second try finds it done."""
FIGURES: Final = "applied long, resumed long, duplicate long, kind string, error string"
BUCKETS_MAX: Final = 10_000
NUMBER_MAX: Final = (1 << 63 - CHUNK_BITS) - 1
JSON: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Lossless: by default Spark cuts times to milliseconds and leaves null fields out."""


class SentBatch(NamedTuple):
    """How many messages of a batch were sent."""

    applied: int
    """By this try."""
    resumed: int
    """In chunks that an earlier try had begun."""
    duplicate: int
    """By an earlier try; skipped now."""


def outbox_sink(
    *, store: str, transport: str, to: str, source: str, tokens: str | None = None, plan: str | None = None,
    body: Names | None = None, buckets: int = 8, chunk_max: int = 500, only: Verdict | None = Verdict.FIRST,
) -> Callable[[DataFrame, int], None]:  # fmt: skip
    """A function for ``foreachBatch`` that sends each row of a stream as one message, once.

        url = "postgresql://shop@db/shop"
        sink = outbox_sink(store=url, transport=url, to="orders", source="orders-topic")
        stream.writeStream.foreachBatch(sink).option("checkpointLocation", "checkpoints/orders").start()

    ``store``, ``tokens`` and ``transport`` are addresses as for an `Endpoint`, which all executors can reach; ``to`` is
    a queue. ``source`` names this stream: the name must be unique, and the same after each restart. A stream with a new
    checkpoint needs a new name, because its batches count from 0 again: otherwise `Misuse`.

    ``body``: the columns that are sent, as a JSON object; None: all but verdict and reason. Decimals are sent as
    text, times as ISO 8601 in UTC, null as null. ``only``: send only rows with this verdict, if rows have one; None:
    all.

    Cost: one shuffle of the texts; per chunk one transaction (with ``tokens``: five writes) and one send.
    """
    sink = OutboxSink(store, transport, to, source, tokens, plan, body, buckets, chunk_max, only)

    def send(rows: DataFrame, batch: int) -> None:
        sink.send(rows, batch, query_id(rows.sparkSession))

    return send


def send_batch(
    df: DataFrame, *, store: str, transport: str, to: str, source: str, mark: int, tokens: str | None = None,
    plan: str | None = None, body: Names | None = None, buckets: int = 8, chunk_max: int = 500,
    only: Verdict | None = Verdict.FIRST,
) -> SentBatch:  # fmt: skip
    """Send each row of a table as one message, once, however often the job is run with this mark.

    ``mark`` is the number of the job's run, such as its day, 20260131; the marks of a source must increase. The other
    arguments are those of `outbox_sink`. A mark below the highest that was sent sends nothing; one above a mark that
    was begun and is not finished is `Misuse`, because the rest of that would be lost.
    """
    sink = OutboxSink(store, transport, to, source, tokens, plan, body, buckets, chunk_max, only)
    return sink.send(df, mark, "")


@dataclass(frozen=True, slots=True)
class OutboxSink:
    """Sends the rows of a batch; has the addresses of stores, because every task opens its own connections."""

    store: str = field(repr=False)
    transport: str = field(repr=False)
    to: str
    source: str
    tokens: str | None = field(repr=False)
    plan: str | None
    body: Names | None
    buckets: int
    chunk_max: int
    only: Verdict | None

    def __post_init__(self) -> None:
        if self.plan is not None and self.plan not in plans.PLANS:
            raise Misuse(f"plan is {self.plan!r}, must be one of {', '.join(plans.PLANS)}", plan=self.plan)
        if self.plan == "local":
            raise Misuse(
                "the plan 'local' is an endpoint's; it takes what is sent here under any other plan", plan="local"
            )
        if self.plan == "transactional" and self.tokens is not None:
            raise Misuse("the plan 'transactional' keeps entities and tokens in one database: leave tokens out")
        for name, most in (("buckets", BUCKETS_MAX), ("chunk_max", plans.OUTGOING_MAX)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise Misuse(f"{name} is {value}, must be from 1 to {most:,}", **{name: value})
        for name, url in self.urls.items():
            if url.startswith("memory:"):
                raise Misuse(f"{name} is {url!r}: every task would have a memory of its own")
        if any(sign in plans.check_name(self.source, "source") for sign in ":#/"):
            raise Misuse(f"source is {self.source!r}, must be without ':', '#' and '/'", source=self.source)
        plans.check_queue(self.to)

    @property
    def urls(self) -> dict[str, str]:
        return {"store": self.store, "transport": self.transport, "tokens": self.tokens or ""}

    @contextmanager
    def opened(self) -> Iterator[World]:
        with ExitStack() as stack:
            ledger: Ledger = stack.enter_context(closing(open_ledger(self.store)))
            tokens = ledger if self.tokens is None else stack.enter_context(closing(open_tokens(self.tokens)))
            yield World(ledger, tokens, stack.enter_context(closing(open_queue(self.transport))))

    def send(self, rows: DataFrame, number: int, query: str) -> SentBatch:
        if not 0 <= number <= NUMBER_MAX:
            raise Misuse(f"mark is {number}, must be from 0 to {NUMBER_MAX:,}", mark=number)
        if has_executors(rows.sparkSession):
            for name, url in self.urls.items():
                if url.startswith("sqlite:"):
                    raise Misuse(
                        f"{name} is a SQLite file: the executors of a cluster would each have one of their own"
                    )
            ship(rows.sparkSession)
        rows, columns = self._with_body(rows)
        only = str(self.only) if self.only is not None and VERDICT in rows.columns else ""
        schema = hashlib.sha256(rows.select(*columns).schema.json().encode()).hexdigest()[:16]
        shape = {"buckets": self.buckets, "chunk_max": self.chunk_max, "only": only, "columns": schema}
        batch = OutboxBatch(Key(ENDPOINT, self.source), number, query, shape)
        with self.opened() as world:  # on the driver first: creates tables once, and a wrong address is one line
            due = batch.begin(world.entities)
        if not due:  # evaluate the rows all the same, because the stream may have state of its own
            rows.write.format("noop").mode("overwrite").save()
            return SentBatch(0, 0, 0)
        if only:
            rows = rows.where(F.col(VERDICT) == only)
        # The rows as texts, each bucket in a partition of its own, sorted.
        texts = rows.select(F.to_json(F.struct(*columns), JSON).alias(BODY))
        bucket = F.pmod(F.xxhash64(BODY), F.lit(self.buckets)).cast("int")
        parts = (
            texts.select(bucket.alias(BUCKET), BODY).repartitionById(self.buckets, BUCKET).sortWithinPartitions(BODY)
        )
        sender = replace(self, body=None)  # an expression cannot be pickled into tasks
        figures = parts.mapInArrow(partial(sender._send_partition, number), FIGURES).collect()
        for row in figures:
            if row["error"]:
                kind: type[OnefoldError] = getattr(errors, row["kind"], OnefoldError)
                raise kind(row["error"])
        applied, resumed, duplicate = (sum(row[name] for row in figures) for name in SentBatch._fields)
        with self.opened() as world:
            batch.finish(world.entities)
        return SentBatch(applied, resumed, duplicate)

    def _with_body(self, rows: DataFrame) -> tuple[DataFrame, list[Column]]:
        """The rows with the columns of the body added, and these columns."""
        every = [name for name in rows.columns if name not in (VERDICT, REASON)]
        names = listed(every if self.body is None else self.body)
        if not names:
            raise Misuse("body is empty, must name at least one column")
        for name in names:
            if not AnyColumns(name=(name,)).are_in(rows):
                raise Misuse(f"no column {name!r} (body): the columns are {', '.join(rows.columns)}", column=name)
        wanted = AnyColumns(name=tuple(names))
        rows = wanted.added_to(rows)
        return rows, [F.col(quoted(n)).cast(exact(rows.schema[n].dataType)).alias(n) for n in wanted.of(rows).name]

    def _send_partition(self, number: int, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send one bucket, sorted; runs in a task. Our own errors are returned as a row, because raised here they would
        become a long Java error."""
        counts = dict.fromkeys((Outcome.APPLIED, Outcome.RESUMED, Outcome.DUPLICATE), 0)
        kind, text = "", ""
        rows = chain.from_iterable(
            zip(part[BUCKET].to_pylist(), part[BODY].to_pylist(), strict=True) for part in parts
        )  # fmt: skip
        try:
            first = next(rows, None)
            if first is not None:
                with self.opened() as world:
                    for bucket, group in groupby(chain([first], rows), itemgetter(0)):
                        for index, chunk in enumerate(chunks((body for _, body in group), self.chunk_max)):
                            counts[self._send_chunk(world, number, bucket, index, chunk)] += len(chunk)
        except OnefoldError as error:
            kind, text = type(error).__name__, str(error)
        row = {**{str(outcome): count for outcome, count in counts.items()}, "kind": kind, "error": text}
        yield pa.RecordBatch.from_pylist([row])

    def _send_chunk(self, world: World, number: int, bucket: int, index: int, chunk: list[str]) -> Outcome:
        where = f"{self.source}, batch {number}, bucket {bucket}, chunk {index}"
        if index >> CHUNK_BITS:
            raise Misuse(f"{where}: a bucket can have {1 << CHUNK_BITS:,} chunks: use more buckets, or smaller batches")
        outgoing = plans.outgoings([Out(self.to, json.loads(text)) for text in chunk], where)
        source = plans.Taken(Key(ENDPOINT, f"{self.source}:{bucket}"), number << CHUNK_BITS | index, outgoing)
        plan = self.plan or ("transactional" if self.tokens is None else "parented")
        for _ in range(TRIES_MAX):
            outcome = run_one(
                world, plans.sourced_at_once(source) if plan == "transactional" else plans.sourced(source)
            )
            if outcome is not Outcome.CONFLICT:
                return outcome
        raise StaleWrite(f"{where}: somebody else wrote it in each of {TRIES_MAX} tries")


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    key: Key
    number: int
    query: str
    """The id of its stream; empty: it is not of a stream."""
    shape: dict[str, Any]
    """The settings that determine the chunk of a row."""

    def begin(self, entities: EntityStore) -> bool:
        """Record that the batch has begun; False if it is complete already, `Misuse` if it must not begin like this."""
        for _ in range(TRIES_MAX):
            entity = entities.load([self.key])[0]
            state = entity.state or {}
            query = state.get("query", "")
            if self.query and query and query != self.query:
                raise Misuse(
                    f"source {self.key.name!r} belongs to the stream {query}, this one is {self.query}: a new stream,"
                    " or a new checkpoint, counts its batches from 0 again and needs a source of another name",
                    source=self.key.name,
                )
            begun = mark_of(entity.state)
            if self.number < begun:
                return False
            if self.number == begun:
                self._check_shape(state["shape"])
                return True
            if not state.get("complete", True):
                raise Misuse(
                    f"source {self.key.name!r}: batch {begun} was begun and is not complete; finish it before"
                    f" {self.number}, or what is left of it is never sent",
                    source=self.key.name,
                )
            if self._keep(entities, entity, complete=False):
                return True
        raise self._stale()

    def finish(self, entities: EntityStore) -> None:
        for _ in range(TRIES_MAX):
            entity = entities.load([self.key])[0]
            if mark_of(entity.state) != self.number or entity.state["complete"]:
                return
            if self._keep(entities, entity, complete=True):
                return
        raise self._stale()

    def _keep(self, entities: EntityStore, entity: Entity, *, complete: bool) -> bool:
        query = self.query or (entity.state or {}).get("query", "")
        state = {"mark": self.number, "shape": self.shape, "query": query, "complete": complete}
        return entities.persist([entity.changed(state)])[0]

    def _check_shape(self, begun: dict[str, Any]) -> None:
        for name, value in self.shape.items():
            if begun.get(name) != value:
                raise Misuse(
                    f"source {self.key.name!r}: batch {self.number} was begun with {name} {begun.get(name)!r}, not"
                    f" {value!r}: it must be finished as it was begun; the next one may differ",
                    source=self.key.name,
                )

    def _stale(self) -> StaleWrite:
        return StaleWrite(f"source {self.key.name!r}: somebody else wrote it in each of {TRIES_MAX} tries")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Cut into lists of this size; the last may be shorter.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest: Iterator[Any] = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


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
