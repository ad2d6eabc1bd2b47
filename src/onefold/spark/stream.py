"""The streaming job: judge a source as it grows, and publish every micro-batch exactly once.

Spark's checkpoint records how far the source was read, the memory inside it what the judge remembers after each batch,
and the sink its last batch. ``foreachBatch`` judges each batch as a table that continues from the memory, with the
batch's number as its version. After any crash the next start retries the last batch: the judge answers the same,
because it reads only versions below that number, and the sink recognises the number. So every message is counted once,
and the books of the run are the sum of its batches' books. If chains come out in order (`in_order`), a batch also
judges the rows that the batch before it held back.

For each batch, rates and durations come from Spark's listener, the books from the sink, and the numbers of rows judged
and remembered from the memory. They must agree: rows judged = rows published + rows held back.

Spark reads each file of a stream's folder once. An unreadable file ends the stream, at every start again; a file that
changes later is ignored. So before a batch is judged, its files are opened by other means (`files`): unreadable files
are named, and the stream ends, or continues without them and keeps their names in the checkpoint, so that every start
leaves out the same files. Files whose modification times differ from those in the checkpoint are named too.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import listener
from pyspark.sql.streaming.query import StreamingQuery

from onefold.errors import Misuse, OnefoldError, StaleWrite
from onefold.spark import objects
from onefold.spark.commits import in_threads
from onefold.spark.engine import Engine, Named
from onefold.spark.files import Place, SourceFile, cannot_read, failed_file, located, plain_path
from onefold.spark.host import MemoryOptions
from onefold.spark.ingest import OpenedStream, SourceSpec, open_stream
from onefold.spark.meaning import refuse_other
from onefold.spark.memory import MARK as MEMORY_MARK
from onefold.spark.memory import MemoryFolder
from onefold.spark.overlap import refuse_inside, refuse_overlap
from onefold.spark.publish import Strategy
from onefold.spark.session import cores, has_executors, is_connect, require_libraries
from onefold.spark.signature import FORMAT, MARK, OURS, Lock, locked, signature
from onefold.spark.sinks import FOLDERS, Format, Sink, open_sink, publish
from onefold.tally import BooksDoNotBalance, Tally

SETTLE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    batch: int = -1
    rows: int = 0  # rows that came in with this batch
    rows_per_second: float = 0.0
    seconds: float = 0.0
    behind: int | None = None  # how many offsets are not read yet, if the source reports them
    state_rows: int = 0
    state_bytes: int = 0
    keys: int = 0
    gaps: int = 0
    held: int = 0  # messages held back to come out in order
    tally: Tally = field(default_factory=Tally)  # of all batches so far, also those of earlier starts
    set_aside: tuple[Mapping[str, Any], ...] = ()  # files that could not be read: path, size, trouble
    changed: tuple[str, ...] = ()  # files that changed after they were read, one line each

    def to_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__slots__}, "tally": self.tally.to_dict()}


class MemoryFigures:
    """Figures of a stream's memory after its newest batch."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._totals: dict[str, int] = {}
        self._arrived: dict[int, int] = {}
        self._due_ms: list[tuple[int, int]] = []

    def look(self, batch: int) -> None:
        memory = MemoryFolder.anywhere(self._path)
        buckets = [memory.runs(bucket) for bucket in memory.buckets_there()]
        newest = [runs[0].header for runs in buckets if runs]
        self._totals = {name: sum(run["figures"].get(name, 0) for run in newest) for name in ("keys", "gaps", "held")}
        self._totals["bytes"] = sum(run.size for runs in buckets for run in runs)
        self._arrived = {batch: sum(run["rows"] for run in newest if run["version"] == batch)}
        self._due_ms = [
            (run["figures"]["due"], run["figures"]["latest"]) for run in newest if run["figures"].get("held")
        ]

    def total(self, name: str) -> int:
        return self._totals.get(name, 0)

    def arrived(self, batch: int) -> int:
        """How many rows a batch judged, including those held back before."""
        return self._arrived.get(batch, 0)

    def over(self, now_ms: int, wait_ms: int) -> bool:
        """Whether a wait is over, or ends later than possible: then a clock was ahead, and a batch dates it again."""
        return any(not now_ms < due_ms <= now_ms + max(1, wait_ms) for due_ms, _ in self._due_ms)

    @property
    def latest_ms(self) -> int:
        """When the last wait ends."""
        return max((latest_ms for _, latest_ms in self._due_ms), default=0)


class Watcher(listener.StreamingQueryListener):
    """Keeps the progress of a stream, and reports it after every batch that published something."""

    def __init__(self, total: Callable[[], Tally], figures: MemoryFigures, tell: Callable[[Progress], None]) -> None:
        self._total = total
        self._figures = figures
        self._tell = tell
        self._tally: Tally | None = None
        self._batches: set[int] = set()
        self._ended = threading.Event()
        self.idle = threading.Event()
        """Set when a trigger found nothing to do."""
        self.progress = Progress()
        self.problem: str | None = None  # kept here, because an error raised in a listener is lost

    def begin(self) -> None:
        self._ended.clear()
        self.idle.clear()

    def published(self, batch: int, tally: Tally | None) -> None:
        """The sink holds this batch (``tally`` None: it did before). Compares rows judged with rows published."""
        self._batches.add(batch)
        judged, held = self._figures.arrived(batch), self._figures.total("held")
        if tally is not None and tally.received + held != judged:
            more = f", {held} are held" if held else ""
            self.problem = f"batch {batch}: {judged} rows were judged, {tally.received} were published{more}"
        self._tally = self._total() if tally is None or self._tally is None else self._tally + tally

    def wait_for_end(self) -> None:
        """Wait for the event of the end: it comes a little late, and must not be taken for that of the next query."""
        self._ended.wait(SETTLE_S)

    def settled(self) -> Progress:
        """The final progress; waits for the listener, whose events come a little late."""
        self.wait_for_end()
        if self.problem is not None:
            raise BooksDoNotBalance(self.problem)
        if self._tally is None:
            self._tally = self._total()
        return replace(self.progress, tally=self._tally, held=self._figures.total("held"))

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:
        """Nothing to report yet."""

    def onQueryIdle(self, event: listener.QueryIdleEvent) -> None:
        self.idle.set()

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:
        self._ended.set()

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:
        done = event.progress
        if done.batchId not in self._batches:
            return
        self._batches.discard(done.batchId)
        seconds = done.durationMs.get("triggerExecution", 0) / 1000
        behind = [count for source in done.sources if (count := _behind(source)) is not None]
        self.progress = Progress(
            batch=done.batchId,
            rows=done.numInputRows,
            rows_per_second=round(done.numInputRows / seconds, 1) if seconds else 0.0,
            seconds=seconds,
            behind=sum(behind) if behind else None,
            state_rows=self._figures.total("keys"),
            state_bytes=self._figures.total("bytes"),
            keys=self._figures.total("keys"),
            gaps=self._figures.total("gaps"),
            held=self._figures.total("held"),
            tally=self._tally or Tally(),
        )
        self._tell(self.progress)


def _behind(source: Any) -> int | None:
    """How many offsets are left to read, for sources with offsets by topic and partition, like Kafka."""
    try:
        latest, end = json.loads(source.latestOffset), json.loads(source.endOffset)
        left = [at - end.get(topic, {}).get(n, 0) for topic, parts in latest.items() for n, at in parts.items()]
        return int(sum(left))
    except (TypeError, ValueError, AttributeError):
        return None


SET_ASIDE: Final = "onefold_files.json"
"""In the checkpoint: the files that were set aside."""
LOOK_S: Final = 10.0
"""The least time between two comparisons of the files that were read with those in the folder."""


class SetAside(OnefoldError):
    """Files of the batch were set aside as unreadable: the batch must be started again, without them."""


class StreamFiles:
    """Checks the files of a stream, by its checkpoint and its folder; does nothing for other sources."""

    def __init__(self, spark: SparkSession, source: SourceSpec, columns: Named, checkpoint: Place) -> None:
        self._spark, self._source, self._columns, self._checkpoint = spark, source, columns, checkpoint
        self._opened: OpenedStream | None = None
        self._looked_s = 0.0
        document = (checkpoint / SET_ASIDE).read_json() if (checkpoint / SET_ASIDE).exists() else {"set_aside": []}
        self.start: Mapping[str, Any] | None = (signature(checkpoint) or {}).get("start")
        """The first offsets of topics."""
        self.aside = [SourceFile.from_dict(line) for line in document["set_aside"]]
        """Files that this start or an earlier one set aside."""
        self.changed: list[str] = []
        """Files that have changed since they were read, one line each."""
        self.copy: CheckpointCopy | None = None
        self.locks: list[Lock] = []

    def table(self, log: Place | None = None) -> DataFrame:
        """The source as a stream, without the files set aside. ``log``: the local copy of the checkpoint, if any."""
        self._checkpoint = log or self._checkpoint
        files = str(self._checkpoint / SOURCE)
        self._opened = open_stream(
            self._spark, self._source, self._columns, self.aside, log=files, start=self.start
        )  # fmt: skip
        self.start = self._opened.start
        return self._opened.rows

    def begin(self, batch: int) -> None:
        """Before a batch is judged: check its files, and copy the checkpoint to its store if it has one.

        Raise `StaleWrite` if another start has taken a lock over.
        """
        for lock in self.locks:
            lock.check()
        self.check(batch)
        if self.copy is not None:
            self.copy.keep()

    def end(self) -> None:
        """After the query has ended."""
        if self.copy is not None:
            self.copy.keep()
        self.look()

    def check(self, batch: int) -> None:
        """Before a batch is judged: raise `OSError` that names its unreadable files, or set them aside."""
        if self._opened is None or self._opened.files is None:
            return
        numbers = range(self._offset(batch - 1) + 1, self._offset(batch) + 1)
        entries = [entry for number in numbers for entry in self._entries(number) if entry["batchId"] == number]
        aside = {file.path for file in self.aside}
        paths = [path for path in (plain_path(entry["path"]) for entry in entries) if path not in aside]
        bad = [file for file in map(self._opened.judged, self._opened.files.looked_at(paths)) if file.trouble]
        if bad and self._source.bad_files == "stop":
            raise OSError(cannot_read(bad))
        if bad:
            self.aside += bad
            lines = [{**file.to_dict(), "metadata_path": file.metadata_path} for file in self.aside]
            (self._checkpoint / SET_ASIDE).write_json({"set_aside": lines})
            raise SetAside(f"batch {batch}: {len(bad)} files were set aside")
        if time.monotonic() - self._looked_s >= LOOK_S:
            self.look()

    def _offset(self, batch: int) -> int:
        """The entry of Spark's log of files in the checkpoint with which a batch ends."""
        file = self._checkpoint / OFFSETS / str(batch)
        if batch < 0 or not file.exists():
            return -1
        last = file.read_bytes().decode().splitlines()[2]
        if last == "-":  # there were no files yet
            return -1
        return int(json.loads(last)["logOffset"]) if last.startswith("{") else int(last)

    def _entries(self, number: int) -> list[dict[str, Any]]:
        log = self._checkpoint / SOURCE
        for name in (str(number), f"{number}.compact"):
            if (log / name).exists():
                return [json.loads(line) for line in (log / name).read_bytes().decode().splitlines()[1:]]
        return []

    def look(self) -> None:
        """Compare the modification times of all files that were read with those in the folder."""
        if self._opened is None or self._opened.files is None:
            return
        self._looked_s = time.monotonic()
        names = (self._checkpoint / SOURCE).names()
        compact = max((int(name.removesuffix(".compact")) for name in names if name.endswith(".compact")), default=-1)
        read: dict[str, int] = {}
        for number in sorted({int(name.removesuffix(".compact")) for name in names}):
            if number >= compact:
                read |= {plain_path(entry["path"]): entry["timestamp"] for entry in self._entries(number)}
        self.changed = [
            f"{file.shown} changed after it was found: it has {file.size:,} bytes now, and is not read again"
            for file in self._opened.files.listed()
            if file.modified_ms > read.get(file.path, file.modified_ms)
        ]

    def noted(self, progress: Progress) -> Progress:
        aside = tuple(file.to_dict() for file in self.aside)
        return replace(progress, set_aside=aside, changed=tuple(self.changed))


AVAILABLE = "available"
ONCE = "once"
"""Finish the batch that was begun, then stop."""
OrderEnd: TypeAlias = Literal["give_up", "hold"]
METADATA, OFFSETS, COMMITS, SOURCES = "metadata", "offsets", "commits", "sources"
SOURCE = f"{SOURCES}/0"
"""Spark's part of a checkpoint: the stream's id, where each batch ends, which batches are done, the files."""
PARTS = (METADATA, SET_ASIDE, SOURCES, OFFSETS, COMMITS)
"""Spark's part and the files set aside, in the order in which they must be copied."""
MEMORY = "memory"
"""The judge's part of a checkpoint."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming(MemoryOptions):
    checkpoint: str
    trigger: str = AVAILABLE
    """"available": read all there is now, then stop; else the interval of batches, such as "10 seconds"."""
    order_end: OrderEnd = "give_up"
    """What happens to messages still held back when everything is read. "give_up": the messages missing before them are
    given up at once, and they come out. "hold": they stay in the checkpoint for the next start."""

    def __post_init__(self) -> None:
        MemoryOptions.__post_init__(self)
        if self.order_end == "hold" and (self.ordered_wait_ms is None or self.trigger != AVAILABLE):
            needed = f'order_wait_ms and trigger = "{AVAILABLE}"'
            raise Misuse(f'order_end is "hold", which needs {needed}', order_end=self.order_end)


def run_stream(
    spark: SparkSession, source: SourceSpec, engine: Engine, streaming: Streaming, path: str, *,
    format: Format = "parquet", strategy: Strategy = "drop", options: Mapping[str, str] = MappingProxyType({}),
    tell: Callable[[Progress], None] = lambda progress: None, stop: threading.Event | None = None,
    say: Callable[[str], None] = print,
) -> Progress:  # fmt: skip
    """Judge a source as a stream until it ends, fails, or ``stop`` is set; return the final progress.

    ``tell`` is called after every batch, ``say`` with notices before the first. When ``stop`` is set, the current batch
    is finished. A checkpoint or an output of other columns, rules or streams is `Misuse`.
    """
    if is_connect(spark):
        raise Misuse(
            "a stream of a pipeline needs a session of its own, not Spark Connect, where each batch is published by the"
            " server: run it there, as a batch with [memory], or as df.transform(judge_...(memory=...)).writeStream"
        )
    folders = [("the checkpoint", streaming.checkpoint), *([("the output", path)] if format in FOLDERS else [])]
    writes = [(name, located(spark, folder)) for name, folder in folders]
    gaps = [("the gaps", f"{writes[-1][1]}_gaps")] if format == "delta" else []
    refuse_overlap([("the source", located(spark, source.path))], [*writes, *gaps])
    for outer, inner in permutations(writes, 2):
        refuse_inside(outer, inner)
    checkpoint = Place(spark, streaming.checkpoint)
    files = StreamFiles(spark, source, engine.reads, checkpoint)
    df = files.table().transform(engine.shaped)
    meaning = {**engine.meaning(df, streaming), **engine.source_meaning()}
    sink = open_sink(spark, path, format=format, strategy=strategy, meaning=meaning, options=options)
    names = checkpoint.names()
    if names and METADATA not in names and not OURS & set(names):
        raise Misuse(f"{checkpoint.shown} is no checkpoint: it holds {names[0]!r}; choose another")
    signed = signature(checkpoint)
    if signed is not None and (checkpoint / OFFSETS).names():  # without a batch there is nothing to protect
        refuse_other(checkpoint.shown, signed.get("meaning", {}), meaning)
    sink.last(_stream(checkpoint) if METADATA in names else "")
    streaming = replace(streaming, path=str(checkpoint / MEMORY))
    if (checkpoint / COMMITS).names() and not (checkpoint / MEMORY / MEMORY_MARK).exists():
        raise Misuse(
            f"{checkpoint.shown} has batches but no {MEMORY}/: it was begun by a version that remembered in Spark's"
            " state store, or the folder was removed; begin anew with an empty checkpoint and an empty output",
            place=checkpoint.shown,
        )
    if streaming.ordered_wait_ms is not None:
        engine.ordered(streaming)  # refuses misuse now
    with ExitStack() as locks:
        for _, folder in folders:
            Place(spark, folder).make()
            files.locks.append(locks.enter_context(locked(Place(spark, folder), "stream")))
        if signature(checkpoint) is None and (checkpoint / OFFSETS).names():  # of a version that did not sign
            settings = ", ".join(f"{name} = {value}" for name, value in meaning.items())
            say(f"{checkpoint.shown} does not say what it was begun with; taken to be, from now on: {settings}")
        begun = {} if files.start is None else {"start": files.start}
        (checkpoint / MARK).write_json({"format": FORMAT, "kind": "checkpoint", "meaning": dict(meaning), **begun})
        if not checkpoint.by_spark:
            folder = locks.enter_context(tempfile.TemporaryDirectory(prefix="onefold-stream-"))
            files.copy = CheckpointCopy(checkpoint, folder)
            df = files.table(Place(spark, f"file:{folder}")).transform(engine.shaped)
            streaming = replace(streaming, checkpoint=f"file:{folder}")
        return _run(df, files, sink, engine, streaming, tell, stop or threading.Event())


class CheckpointCopy:
    """A local copy of Spark's part of a checkpoint in a store that Spark cannot write to.

    The checkpoint in the store is authoritative. It is copied here at a start, and what Spark has written is put into
    the store before its batch is judged, so that any later start can retry a batch that is published or in the memory.
    The contents of a batch are put once: a start that was taken for dead cannot change its successor's batch.
    """

    def __init__(self, home: Place, folder: str) -> None:
        self._home, self.folder = home, Path(folder)
        self._kept: dict[str, tuple[int, int]] = {}
        in_threads(self._fetch, [file.url for part in PARTS for file in objects.files_below(str(home / part))])
        self._kept = self._there()

    def _fetch(self, url: str) -> None:
        copy = self.folder / url.removeprefix(f"{self._home}/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        with objects.opened(url) as stored:
            copy.write_bytes(stored.read())

    def _there(self) -> dict[str, tuple[int, int]]:
        """All files with size and time, in the order in which they must be put."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        stats = {path.relative_to(self.folder).as_posix(): path.stat() for path in sorted(paths)}
        return {
            name: (stat.st_size, stat.st_mtime_ns)
            for part in PARTS
            for name, stat in stats.items()
            if name.split("/")[0] == part
        }

    def keep(self) -> None:
        """Put new files into the store, and remove from it those that Spark has removed here."""
        there = self._there()
        for name in (name for name, stat in there.items() if self._kept.get(name) != stat):
            file, data = self._home / name, (self.folder / name).read_bytes()
            if not name.startswith((SOURCES, OFFSETS)) or name in self._kept:
                file.write_over(data)
            elif not file.write_new(data):
                raise StaleWrite(f"{file} was begun by another start of this stream in between", path=str(file))
        for name in self._kept.keys() - there.keys():
            (self._home / name).remove()
        self._kept = there


def _stream(checkpoint: Place) -> str:
    """The stream id in Spark's checkpoint."""
    return str((checkpoint / METADATA).read_json()["id"])


def _run(
    df: DataFrame, files: StreamFiles, sink: Sink, engine: Engine, streaming: Streaming,
    tell: Callable[[Progress], None], stop: threading.Event,
) -> Progress:  # fmt: skip
    spark, checkpoint = df.sparkSession, Place(df.sparkSession, streaming.checkpoint)
    if has_executors(spark):
        require_libraries(spark, ["numpy", "pandas", "pyarrow"])
    spark.conf.set("spark.sql.shuffle.partitions", str(engine.partitions or 2 * cores(spark)))  # a table gets more
    if streaming.ordered_wait_ms is not None:  # report every trigger that finds nothing to do
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    engine = replace(engine, partitions=None)
    figures = MemoryFigures(str(streaming.path))
    if (checkpoint / COMMITS).names():
        figures.look(-1)
    watcher = Watcher(sink.total, figures, lambda progress: tell(files.noted(progress)))
    errors: list[Exception] = []
    wait_ms, over = streaming.ordered_wait_ms, threading.Event()

    def each(rows: DataFrame, batch: int) -> None:
        if stop.is_set() or over.is_set() or watcher.problem:
            raise _Stopped
        watcher.idle.clear()
        try:
            files.begin(batch)
            tally = _publish(sink, engine, streaming, rows, batch)
            figures.look(batch)
        except (OnefoldError, OSError) as error:
            errors.append(error)
            raise
        watcher.published(batch, tally)

    def asked() -> bool:
        """Whether the query is to end: `stop` is set, or a wait is over and a trigger found nothing to do."""
        waits = wait_ms is not None and streaming.trigger != AVAILABLE and watcher.idle.is_set()
        (over.set if waits and figures.over(_now_ms(), wait_ms or 0) else over.clear)()
        return stop.is_set() or over.is_set()

    def go(trigger: str) -> Progress:
        rows = df
        while True:
            writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
            errors.clear()
            over.clear()
            watcher.begin()
            try:
                _wait(_triggered(writer, trigger).start(), asked, errors)
            except SetAside:  # start the batch again, by a query without these files
                watcher.wait_for_end()
                rows = files.table().transform(engine.shaped)
                continue
            files.end()
            return files.noted(watcher.settled())

    spark.streams.addListener(watcher)
    try:
        progress = go(streaming.trigger)
        while over.is_set() and not stop.is_set():
            _add_empty_batch(checkpoint, _now_ms())
            progress = go(streaming.trigger)
        if progress.held and streaming.trigger == AVAILABLE and streaming.order_end == "give_up" and not stop.is_set():
            _add_empty_batch(checkpoint, max(_now_ms(), figures.latest_ms))
            progress = go(ONCE)
        return progress
    finally:
        spark.streams.removeListener(watcher)


def _publish(sink: Sink, engine: Engine, streaming: Streaming, rows: DataFrame, batch: int) -> Tally | None:
    """Judge a batch and publish it; None: it was published before, after the rows that it holds back were kept."""
    checkpoint = Place(rows.sparkSession, streaming.checkpoint)
    stream = _stream(checkpoint)
    version = replace(streaming, version=batch, now_ms=_began_ms(checkpoint, batch), owner=stream)
    if version.ordered_wait_ms is None:
        return publish(sink, stream, batch, rows.transform(engine.stream(version)), None)
    if sink.last(stream) == batch:
        return None
    with engine.ordered(version)(rows) as (messages, gaps):
        return publish(sink, stream, batch, messages, gaps)


def _add_empty_batch(checkpoint: Place, at_ms: int) -> None:
    """Add a batch of this date and without rows to Spark's log, unless there is a batch to finish.

    A wait ends with a batch, and Spark begins none if nothing arrives, or when everything is read. So an empty one is
    written into its log: dated now if there is an interval, at the end late enough that all waits are over. What a
    batch does depends on its date alone, so a retry does the same.
    """
    last = _newest(checkpoint / OFFSETS)
    if last is None or last != _newest(checkpoint / COMMITS):
        return
    version, circumstances, *ends = (checkpoint / OFFSETS / str(last)).read_bytes().decode().split("\n")
    if version != "v1":
        raise Misuse(f"{checkpoint.shown}: Spark's log has format {version!r}, to which no empty batch can be added")
    dated = json.dumps({**json.loads(circumstances), "batchTimestampMs": at_ms})
    (checkpoint / OFFSETS / str(last + 1)).write_bytes("\n".join([version, dated, *ends]).encode())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _began_ms(checkpoint: Place, batch: int) -> int:
    """When Spark began a batch, from its log: the same for every attempt."""
    circumstances = (checkpoint / OFFSETS / str(batch)).read_bytes().decode().split("\n")[1]
    return int(json.loads(circumstances)["batchTimestampMs"])


def _newest(log: Place) -> int | None:
    return max((int(name) for name in log.names() if name.isdecimal()), default=None)


class _Stopped(Exception):
    """Raised instead of judging another batch after a request to stop."""


def _triggered(writer: Any, trigger: str) -> Any:
    if trigger == AVAILABLE:
        return writer.trigger(availableNow=True)
    if trigger == ONCE:
        return writer.trigger(once=True)
    try:
        return writer.trigger(processingTime=trigger)
    except Exception as error:
        raise Misuse(f'trigger is {trigger!r}, must be "available" or a time such as "10 seconds"') from error


def _wait(query: StreamingQuery, asked: Callable[[], bool], errors: list[Exception]) -> None:
    """Wait until the query ends; if ``asked`` says so, stop it between two batches."""
    try:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
            if asked() and not query.status["isTriggerActive"]:
                query.stop()
    except StreamingQueryException as error:
        if "_Stopped" in str(error):
            return
        if errors:
            raise errors[-1] from None
        cause = _cause(error)
        if cause != (misuse := cause.removeprefix("onefold.errors.Misuse: ")):  # raised in a task
            raise Misuse(misuse) from error
        raise OSError(f"the stream ended: {cause}") from error


def _cause(error: StreamingQueryException) -> str:
    """The unreadable file, else the last line of a Python error, else Spark's first line."""
    text = str(error).split("=== Streaming Query ===")[0]
    if (failed := failed_file(text)) is not None:
        return failed
    lines = [line for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line.startswith(("onefold.", "Misuse", "BadInput"))]
    flush = [line for line in lines if not line.startswith((" ", "\t", "Traceback"))]
    return (python[-1] if python else (flush or lines)[0]).strip()
