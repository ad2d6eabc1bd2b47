"""The streaming job: judge a source as it grows, and publish every micro-batch exactly once.

Spark's checkpoint keeps where the source was read to and what the judge remembers; the sink keeps which batch it holds.
Whatever dies in between, the next start tries the last batch again: the judge answers the same, because the rows of a
batch are judged in a fixed order from the state before it, and the sink recognises the batch's number. So every message
is counted once, and the books of the run are the sum of its batches' books.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.errors import Misuse, OnefoldError
from onefold.spark.ingest import read_stream
from onefold.spark.jobs import Source
from onefold.spark.judging import Judging, State
from onefold.spark.ordered import parted
from onefold.spark.overlap import refuse_overlap
from onefold.spark.place import Place, located
from onefold.spark.publish import Strategy
from onefold.spark.shipping import is_cluster, require_libraries
from onefold.spark.signature import MARK, locked
from onefold.spark.sinks import Format, Sink, open_sink, publish
from onefold.spark.watching import BucketFigures, Progress, Watcher

AVAILABLE = "available"
METADATA = "metadata"
POLL_S = 0.5

STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}  # fmt: skip
"""On disk, and what is checkpointed of a batch is what it changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming(State):
    """How the stream goes, and how it remembers."""

    checkpoint: str
    trigger: str = AVAILABLE
    """"available": all that is there now, then stop; else how often a batch begins, such as "10 seconds"."""


def run_stream(
    spark: SparkSession, source: Source, judging: Judging, streaming: Streaming, path: str, *,
    format: Format = "parquet", strategy: Strategy = "drop",
    tell: Callable[[Progress], None] = lambda progress: None, stop: threading.Event | None = None,
) -> Progress:  # fmt: skip
    """Judge a source as a stream until it ends, fails, or ``stop`` is set; what came of it in the end.

    ``tell`` is called after every batch. When ``stop`` is set, the batch in hand is finished.
    """
    stop = stop or threading.Event()
    folders = [("the checkpoint", streaming.checkpoint), *([] if format == "postgres" else [("the output", path)])]
    writes = [(name, located(spark, folder)) for name, folder in folders]
    refuse_overlap([("the source", located(spark, source.path))], writes)
    df = read_stream(spark, source.path, format=source.format, options=source.options, columns=judging.reads)
    sink = open_sink(spark, path, format=format, strategy=strategy)
    with ExitStack() as locks:
        for place in [_checkpoint(spark, streaming.checkpoint, sink), *(Place(spark, p) for _, p in folders[1:])]:
            place.make()
            locks.enter_context(locked(place, "stream"))
        return _run(df, sink, judging, streaming, tell, stop)


def _checkpoint(spark: SparkSession, path: str, sink: Sink) -> Place:
    """The place of the checkpoint; refused if it is no checkpoint, or not that of the sink."""
    place = Place(spark, path)
    names = place.names()
    if names and METADATA not in names and MARK not in names:
        raise Misuse(f"{place.shown} is no checkpoint: it holds {names[0]!r}; choose another", path=path)
    sink.last(_stream(place) if METADATA in names else "")
    return place


def _stream(checkpoint: Place) -> str:
    """The id that Spark gave the stream when it made the checkpoint."""
    return str((checkpoint / METADATA).read_json()["id"])


def _run(
    df: DataFrame, sink: Sink, judging: Judging, streaming: Streaming, tell: Callable[[Progress], None],
    stop: threading.Event,
) -> Progress:  # fmt: skip
    spark, checkpoint = df.sparkSession, Place(df.sparkSession, streaming.checkpoint)
    if is_cluster(str(spark.sparkContext.master)):
        require_libraries(spark, ["numpy", "pandas", "pyarrow"])
    # A batch without data ends a wait; where all that is there is read, it would be followed by another for ever.
    waits = {"spark.sql.streaming.noDataMicroBatches.enabled": str(streaming.trigger != AVAILABLE).lower()}
    _settle(spark, {**STATE_STORE, **waits}, judging.partitions)
    figures = BucketFigures.on(spark)
    watcher = Watcher(sink.total, figures, tell)
    errors: list[Exception] = []

    def each(rows: DataFrame, batch: int) -> None:
        if stop.is_set() or watcher.problem:
            raise _Stopped
        try:
            stream = _stream(checkpoint)
            if streaming.ordered_wait_ms is None:
                tally = publish(sink, stream, batch, rows, None)
            else:
                with parted(rows, judging.key) as (messages, gaps):
                    tally = publish(sink, stream, batch, messages, gaps)
        except (OnefoldError, OSError) as error:
            errors.append(error)
            raise
        if tally is None:  # committed before a crash: the state still has to go through it
            rows.write.format("noop").mode("overwrite").save()
        watcher.published(batch, tally)

    judged = df.transform(judging.shaped).transform(judging.stream(streaming, figures.add))
    spark.streams.addListener(watcher)
    try:
        writer = judged.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        _wait(_triggered(writer, streaming.trigger).start(), stop, errors)
        return watcher.settled()
    finally:
        spark.streams.removeListener(watcher)


class _Stopped(Exception):
    """Somebody asked to stop, and the batch before is finished."""


def _settle(spark: SparkSession, config: Mapping[str, str], partitions: int | None) -> None:
    for key, value in config.items():
        spark.conf.set(key, value)
    # One state store each: two per core, not the many fine slices that suit a table.
    tasks = partitions or 2 * spark.sparkContext.defaultParallelism
    spark.conf.set("spark.sql.shuffle.partitions", str(tasks))


def _triggered(writer: Any, trigger: str) -> Any:
    if trigger == AVAILABLE:
        return writer.trigger(availableNow=True)
    try:
        return writer.trigger(processingTime=trigger)
    except Exception as error:
        raise Misuse(f'trigger is {trigger!r}, must be "available" or a time such as "10 seconds"') from error


def _wait(query: StreamingQuery, stop: threading.Event, errors: list[Exception]) -> None:
    try:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
            if stop.is_set() and not query.status["isTriggerActive"]:
                query.stop()
    except StreamingQueryException as error:
        if "_Stopped" in str(error):
            return
        if errors:
            raise errors[-1] from None
        raise OSError(f"the stream ended: {_cause(error)}") from error


def _cause(error: StreamingQueryException) -> str:
    """The line that says what went wrong: the last one of a Python error, else Spark's first."""
    lines = [line for line in str(error).split("=== Streaming Query ===")[0].splitlines() if line.strip()]
    python = [line for line in lines if line.startswith(("onefold.", "Misuse", "BadInput"))]
    return (python or lines)[0 if not python else -1].strip()
