"""The streaming job: judge a source as it grows, and publish every micro-batch exactly once.

Spark's checkpoint keeps where the source was read to and what the judge remembers; the sink keeps which batch it holds.
Whatever dies in between, the next start tries the last batch again: the judge answers the same, because the rows of a
batch are judged in a fixed order from the state before it, and the sink recognises the batch's number. So every message
is counted once, and the books of the run are the sum of its batches' books.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal, TypeAlias

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.errors import Misuse, OnefoldError
from onefold.spark.files import failed_file
from onefold.spark.jobs import Source
from onefold.spark.judging import Judging, State
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.ordered import held_back, parted
from onefold.spark.overlap import refuse_inside, refuse_overlap
from onefold.spark.place import Place, located
from onefold.spark.publish import Strategy
from onefold.spark.shipping import is_cluster, require_libraries
from onefold.spark.signature import FORMAT, MARK, OURS, locked, signature
from onefold.spark.sinks import Format, Sink, open_sink, publish
from onefold.spark.stream_files import SetAside, StreamFiles
from onefold.spark.watching import BEFORE, BucketFigures, Progress, Watcher

AVAILABLE = "available"
ONCE = "once"
"""Of a stream that has a batch to finish: that one, then stop."""
OrderEnd: TypeAlias = Literal["give_up", "hold"]
METADATA, OFFSETS, COMMITS = "metadata", "offsets", "commits"
"""What Spark keeps in a checkpoint: the stream's id, where each batch ends, and which batches are done."""
POLL_S = 0.5

_MISUSE = "onefold.errors.Misuse: "

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
    order_end: OrderEnd = "give_up"
    """What becomes of messages that are still held back when all that is there is read. "give_up": what is missing
    before them is given up at once, and they come out. "hold": they stay in the checkpoint for the next start."""

    def __post_init__(self) -> None:
        if self.order_end == "hold" and (self.ordered_wait_ms is None or self.trigger != AVAILABLE):
            raise Misuse(
                f'order_end is "hold", which needs order_wait_ms and trigger = "{AVAILABLE}"', order_end=self.order_end
            )


def run_stream(
    spark: SparkSession, source: Source, judging: Judging, streaming: Streaming, path: str, *,
    format: Format = "parquet", strategy: Strategy = "drop",
    tell: Callable[[Progress], None] = lambda progress: None, stop: threading.Event | None = None,
    say: Callable[[str], None] = print,
) -> Progress:  # fmt: skip
    """Judge a source as a stream until it ends, fails, or ``stop`` is set; what came of it in the end.

    ``tell`` is called after every batch, ``say`` if there is something to know before the first. When ``stop`` is set,
    the batch in hand is finished. A checkpoint or an output that was begun with other columns or rules is `Misuse`,
    and so is one that another stream is using.
    """
    stop = stop or threading.Event()
    folders = [("the checkpoint", streaming.checkpoint), *([] if format == "postgres" else [("the output", path)])]
    writes = [(name, located(spark, folder)) for name, folder in folders]
    gaps = [("the gaps", f"{writes[-1][1]}_gaps")] if format == "delta" else []
    refuse_overlap([("the source", located(spark, source.path))], [*writes, *gaps])
    for outer, inner in permutations(writes, 2):
        refuse_inside(outer, inner)
    files = StreamFiles(spark, source, judging.reads, Place(spark, streaming.checkpoint))
    df = files.table().transform(judging.shaped)
    meaning = judging.meaning(df, streaming)
    sink = open_sink(spark, path, format=format, strategy=strategy, meaning=meaning)
    _check_checkpoint(Place(spark, streaming.checkpoint), meaning, sink)
    with ExitStack() as locks:
        for _, folder in folders:
            Place(spark, folder).make()
            locks.enter_context(locked(Place(spark, folder), "stream"))
        _sign_checkpoint(Place(spark, streaming.checkpoint), meaning, say)
        return _run(df, files, sink, judging, streaming, tell, stop)


def _check_checkpoint(checkpoint: Place, meaning: Meaning, sink: Sink) -> None:
    """Raise `Misuse` if it is no checkpoint, or what it remembers means something else, or it is not the sink's."""
    names = checkpoint.names()
    if names and METADATA not in names and not OURS & set(names):
        raise Misuse(f"{checkpoint.shown} is no checkpoint: it holds {names[0]!r}; choose another")
    signed = signature(checkpoint)
    if signed is not None and (checkpoint / OFFSETS).names():  # before its first batch it remembers nothing
        refuse_other(checkpoint.shown, signed.get("meaning", {}), meaning)
    sink.last(_stream(checkpoint) if METADATA in names else "")


def _sign_checkpoint(checkpoint: Place, meaning: Meaning, say: Callable[[str], None]) -> None:
    """Keep what the checkpoint means; of one that was begun by a version that did not, say what it is taken for."""
    if signature(checkpoint) is None and (checkpoint / OFFSETS).names():
        settings = ", ".join(f"{name} = {value}" for name, value in meaning.items())
        say(f"{checkpoint.shown} does not say what it was begun with; taken to be, from now on: {settings}")
    (checkpoint / MARK).write_json({"format": FORMAT, "kind": "checkpoint", "meaning": dict(meaning)})


def _stream(checkpoint: Place) -> str:
    """The id that Spark gave the stream when it made the checkpoint."""
    return str((checkpoint / METADATA).read_json()["id"])


def _run(
    df: DataFrame, files: StreamFiles, sink: Sink, judging: Judging, streaming: Streaming,
    tell: Callable[[Progress], None], stop: threading.Event,
) -> Progress:  # fmt: skip
    spark, checkpoint = df.sparkSession, Place(df.sparkSession, streaming.checkpoint)
    if is_cluster(str(spark.sparkContext.master)):
        require_libraries(spark, ["numpy", "pandas", "pyarrow"])
    # A batch without data ends a wait; where all that is there is read, it would be followed by another for ever.
    waits = {"spark.sql.streaming.noDataMicroBatches.enabled": str(streaming.trigger != AVAILABLE).lower()}
    _settle(spark, {**STATE_STORE, **waits}, judging.partitions)
    figures = BucketFigures.on(spark)
    watcher = Watcher(sink.total, figures, lambda progress: tell(files.noted(progress)))
    errors: list[Exception] = []

    def each(rows: DataFrame, batch: int) -> None:
        if stop.is_set() or watcher.problem:
            raise _Stopped
        try:
            files.check(batch)
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

    def go(trigger: str) -> Progress:
        rows = df
        while True:
            judged = rows.transform(judging.stream(streaming, figures.add))
            writer = judged.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
            errors.clear()
            watcher.begin()
            try:
                _wait(_triggered(writer, trigger).start(), stop, errors)
            except SetAside:  # the batch is begun again, by a query that leaves them out
                rows = files.table().transform(judging.shaped)
                continue
            files.look()
            return files.noted(watcher.settled())

    spark.streams.addListener(watcher)
    try:
        if streaming.ordered_wait_ms is None:
            return go(streaming.trigger)
        return _ordered(spark, checkpoint, streaming, streaming.ordered_wait_ms, figures, go, stop)
    finally:
        spark.streams.removeListener(watcher)


def _ordered(
    spark: SparkSession, checkpoint: Place, streaming: Streaming, wait_ms: int, figures: BucketFigures,
    go: Callable[[str], Progress], stop: threading.Event,
) -> Progress:  # fmt: skip
    """Go, and see to what is held back: before the first batch it is counted, after the last one it is given up.

    A wait ends with a batch, and of itself Spark begins none after a start, or when all is read. So one without rows is
    written into its log, as Spark itself writes those: at a start with an interval it sets the clock going; at the end
    of what is there it is dated so late that all waits are over. What a batch does hangs on its date alone, so one that
    is tried again gives up the same.
    """
    held = held_back(spark, checkpoint)
    for bucket, (rows, _) in held.items():
        figures.add(bucket, {"held": rows, f"held{BEFORE}": rows, "rows": 0, "batch": -1})
    if held and streaming.trigger != AVAILABLE:
        _add_empty_batch(checkpoint, _now_ms())
    progress = go(streaming.trigger)
    while streaming.trigger == AVAILABLE and streaming.order_end == "give_up" and progress.held and not stop.is_set():
        latest_ms = max((due_ms for _, due_ms in held_back(spark, checkpoint).values()), default=0)
        if not _add_empty_batch(checkpoint, max(_now_ms(), latest_ms) + wait_ms + 1):
            break
        before, progress = progress, go(ONCE)
        if progress.held >= before.held:
            break
    return progress


def _add_empty_batch(checkpoint: Place, at_ms: int) -> bool:
    """Let the stream go on with a batch of this date and without rows; False if it has one to finish, or has none."""
    last = _newest(checkpoint / OFFSETS)
    if last is None or last != _newest(checkpoint / COMMITS):
        return False
    version, circumstances, *ends = (checkpoint / OFFSETS / str(last)).read_bytes().decode().split("\n")
    if version != "v1":
        return False
    dated = json.dumps({**json.loads(circumstances), "batchTimestampMs": at_ms})
    (checkpoint / OFFSETS / str(last + 1)).write_bytes("\n".join([version, dated, *ends]).encode())
    return True


def _newest(log: Place) -> int | None:
    return max((int(name) for name in log.names() if name.isdecimal()), default=None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
    if trigger == ONCE:
        return writer.trigger(once=True)
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
        cause = _cause(error)
        if cause.startswith(_MISUSE):  # found out by a task
            raise Misuse(cause.removeprefix(_MISUSE)) from error
        raise OSError(f"the stream ended: {cause}") from error


def _cause(error: StreamingQueryException) -> str:
    """The line that says what went wrong: a file that could not be read, the last line of a Python error, else Spark's
    first.
    """
    text = str(error).split("=== Streaming Query ===")[0]
    if (failed := failed_file(text)) is not None:
        return failed
    lines = [line for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line.startswith(("onefold.", "Misuse", "BadInput"))]
    told = [line for line in lines if not line.startswith((" ", "\t", "Traceback"))]
    return (python[-1] if python else (told or lines)[0]).strip()
