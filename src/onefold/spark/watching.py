"""Watching a stream: after every batch, what was counted, how fast, and what is remembered.

Spark's listener tells rates, durations and the size of the state store; the sink tells the books; the judge tells, of
each bucket, how many keys it remembers, how many ranges are missing and how many messages are held back. Two of them
must agree after every batch: rows judged = rows published + growth of what is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from onefold.tally import BooksDoNotBalance, Tally

SETTLE_S = 10.0
BEFORE = "_before"
"""Ends the name of a figure whose first word counts, not its newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a stream stands after a batch."""

    batch: int = -1
    rows: int = 0
    """Rows that came in with this batch."""
    rows_per_second: float = 0.0
    seconds: float = 0.0
    """How long the batch took."""
    behind: int | None = None
    """How much of the source is not read yet, if the source says so."""
    state_rows: int = 0
    state_bytes: int = 0
    keys: int = 0
    gaps: int = 0
    """Ranges that are missing now."""
    held: int = 0
    """Messages held back to come out in order."""
    tally: Tally = field(default_factory=Tally)
    """Of all batches so far, also those of earlier starts."""
    set_aside: tuple[Mapping[str, Any], ...] = ()
    """Files that could not be read: path, size, trouble."""
    changed: tuple[str, ...] = ()
    """Files that changed after they were read, one line each."""

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "tally": self.tally.to_dict()}


class BucketFigures:
    """What the judge says of its buckets, brought from the tasks to the driver; the newest word of a bucket counts."""

    def __init__(self, context: SparkContext) -> None:
        self._newest = context.accumulator({}, _Newest())

    @classmethod
    def on(cls, spark: SparkSession) -> BucketFigures:
        """Figures of the tasks of this session."""
        return cls(spark.sparkContext)

    @property
    def add(self) -> Callable[[int, dict[str, int]], None]:
        """What tasks call; it can be shipped to them."""
        newest = self._newest

        def add(bucket: int, figures: dict[str, int]) -> None:
            newest.add({bucket: figures})

        return add

    def total(self, name: str) -> int:
        """The sum over all buckets."""
        return sum(figures.get(name, 0) for figures in self._newest.value.values())

    def arrived(self, batch: int) -> int:
        """How many rows a batch brought, also if it was retried, as long as no later one has begun."""
        return sum(word["rows"] for word in self._newest.value.values() if word["batch"] == batch)

    def grown(self, name: str) -> int:
        """By how much it has grown since the first word of each bucket, which told what was before it."""
        return self.total(name) - self.total(name + BEFORE)


class _Newest(AccumulatorParam[dict[int, dict[str, int]]]):
    def zero(self, value: dict[int, dict[str, int]]) -> dict[int, dict[str, int]]:
        return {}

    def addInPlace(
        self, value1: dict[int, dict[str, int]], value2: dict[int, dict[str, int]]
    ) -> dict[int, dict[str, int]]:
        for bucket, figures in value2.items():
            first = {name: n for name, n in value1.get(bucket, {}).items() if name.endswith(BEFORE)}
            value1[bucket] = {**figures, **first}
        return value1


class Watcher(StreamingQueryListener):
    """Keeps the progress of a stream, and tells it after every batch that published something."""

    def __init__(self, total: Callable[[], Tally], figures: BucketFigures, tell: Callable[[Progress], None]) -> None:
        self._total = total
        self._figures = figures
        self._tell = tell
        self._tally: Tally | None = None
        self._batches: set[int] = set()
        self._held = 0
        self._ended = threading.Event()
        self.progress = Progress()
        self.problem: str | None = None  # an error raised in a listener is lost

    def begin(self) -> None:
        """A query begins; one before it may have ended."""
        self._ended.clear()

    def published(self, batch: int, tally: Tally | None) -> None:
        """The sink holds this batch; None: it held it before."""
        self._batches.add(batch)
        self._weigh(batch, tally)
        if tally is None or self._tally is None:
            self._tally = self._total()
        else:
            self._tally = self._tally + tally

    def _weigh(self, batch: int, tally: Tally | None) -> None:
        """Compare what was judged with what was published. Retried tasks count once in both."""
        came = self._figures.arrived(batch)
        held = self._figures.grown("held")
        grown, self._held = held - self._held, held
        if tally is not None and tally.received + grown != came:
            held_back = f", {grown} more are held" if grown else ""
            self.problem = f"batch {batch}: {came} rows were judged, {tally.received} were published{held_back}"

    def settled(self) -> Progress:
        """The progress when all has been told: the listener hears of things a little later than they happen."""
        self._ended.wait(SETTLE_S)
        if self.problem is not None:
            raise BooksDoNotBalance(self.problem)
        if self._tally is None:
            self._tally = self._total()
        return replace(self.progress, tally=self._tally, held=self._figures.total("held"))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to tell yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No news."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last word."""
        self._ended.set()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done."""
        told = event.progress
        if told.batchId not in self._batches:
            return
        self._batches.discard(told.batchId)
        state = told.stateOperators
        seconds = told.durationMs.get("triggerExecution", 0) / 1000
        self.progress = Progress(
            batch=told.batchId,
            rows=told.numInputRows,
            rows_per_second=round(told.numInputRows / seconds, 1) if seconds else 0.0,
            seconds=seconds,
            behind=_behind(told.sources),
            state_rows=sum(operator.numRowsTotal for operator in state),
            state_bytes=self._figures.total("bytes"),
            keys=self._figures.total("keys"),
            gaps=self._figures.total("gaps"),
            held=self._figures.total("held"),
            tally=self._tally or Tally(),
        )
        self._tell(self.progress)


def _behind(sources: list[Any]) -> int | None:
    """How many offsets are left, of sources that count (Kafka's maxOffsetsBehindLatest and its like)."""
    left = [source.metrics.get("maxOffsetsBehindLatest") for source in sources if source.metrics]
    known = [int(value) for value in left if value is not None]
    return sum(known) if known else None
