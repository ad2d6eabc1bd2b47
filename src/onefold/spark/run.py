"""The two batch jobs: ``run`` publishes a judged source, ``check`` only reports what is wrong with one.

Both run the same steps, each once: ingest, judge, books, missing ranges; ``run`` adds figures, publish and audit. Both
return the same `Run`. A run whose audit finds other rows than the source sent is not complete, and names them.

With a memory, a run continues from the last one: it reads the files that are new since (`versions`), judges them
against the memory, and publishes them as the next version beside the earlier ones. Missing ranges are then read from
the memory. A table (Delta, PostgreSQL) is written as by a stream, atomically with the version.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.spark import publish
from onefold.spark.audits import Audit, AuditFailed, audit_run, comparable, keep, published
from onefold.spark.columns import CORRUPT, quoted, told
from onefold.spark.dialect import SPARK, on_thread
from onefold.spark.engine import FILE, SOURCES, Engine, Untold
from onefold.spark.figures import Figures, Phases, Span, circumstances
from onefold.spark.files import NAMED_MAX, Manifest, Place, located, naming_files
from onefold.spark.fingerprints import Passing
from onefold.spark.gaps import NAME, key_names, noted_gaps, remembered_gaps
from onefold.spark.host import VERDICT, MemoryOptions
from onefold.spark.ingest import AT, OpenSource, SourceSpec, listed, open_source
from onefold.spark.memory import MemoryFolder
from onefold.spark.notes import Notes
from onefold.spark.overlap import refuse_inside, refuse_overlap
from onefold.spark.session import has_executors, is_connect
from onefold.spark.signature import locked
from onefold.spark.sinks import FOLDERS, Format, Sink, open_sink
from onefold.spark.sinks.parquet import ParquetSink
from onefold.spark.versions import Version, VersionLog
from onefold.tally import Tally

Say: TypeAlias = Callable[[str], None]

FORMAT = 1
NOTES = "_notes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    tally: Tally
    engine: str
    keys: int
    gaps: int
    ranges: list[dict[str, Any]]  # the first missing ranges: key columns, lower and upper ends
    seconds: float
    missing: int | None = None  # the number of messages in these ranges, where known
    cannot_tell: Sequence[Untold] = ()  # what this run cannot know, and the setting that would help
    absent: Sequence[str] = ()  # usual columns that the source lacks; judged without them
    others: int = 0  # rows of the source that are no messages: counted, not judged
    path: str | None = None
    audit: Audit | None = None  # published rows compared with the source; None for a check
    figures: Mapping[str, Any] | None = None
    """Further data for a report, see `Figures`; None: not taken."""
    manifest: Manifest = field(default_factory=Manifest)
    """The files of the source, with row counts taken independently of the reader."""
    changed: Sequence[str] = ()  # changes to source files during the run, one line each
    version: int | None = None  # of a run with a memory; None: without
    copies: Mapping[str, Any] | None = None
    """For a check of ids: copies and their ids, sources, lags, and those that contradict their first."""
    left: int = 0  # files that arrived after this version began: the next run reads them

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "complete": True,
            "tally": self.tally.to_dict(),
            "engine": self.engine,
            "keys": self.keys,
            "missing_ranges": self.gaps,
            "missing_ranges_shown": self.ranges,
            "missing_messages": self.missing,
            "cannot_tell": [untold._asdict() for untold in self.cannot_tell],
            "absent_columns": list(self.absent),
            "state_entries": self.keys + self.gaps,  # the state of a detector: one head per key, and the gaps
            "others": self.others,
            "seconds": round(self.seconds, 3),
            "path": self.path,
            **({} if self.version is None else {"version": self.version, "files_left": self.left}),
            "audit": None if self.audit is None else self.audit.to_dict(),
            "manifest": {**self.manifest.to_dict(), "changed": list(self.changed)},
            **({} if self.figures is None else {"figures": self.figures}),
            **({} if self.copies is None else {"copies": self.copies}),
        }


@naming_files()
def run(
    spark: SparkSession, source: SourceSpec, engine: Engine, path: str, *, strategy: publish.Strategy = "drop",
    settings: Mapping[str, Any] | None = None, ranges_max: int = 20, figures: Figures | None = None, say: Say = print,
    memory: MemoryOptions | None = None, format: Format = "parquet", options: Mapping[str, str] = MappingProxyType({}),
) -> Run:  # fmt: skip
    """Judge a source and publish the result at ``path``, atomically. ``figures``: to take for a report.

    ``memory``: continue from the memory that the last run left; `NothingNew` if everything is published already.
    """
    phases = Phases("opening the source", say)
    with ExitStack() as stack:
        if memory is None:
            refuse_overlap([("the source", located(spark, source.path))], [("the output", located(spark, path))])
            going, read = None, _read(spark, source, engine)
            output: publish.Output = stack.enter_context(publish.opened(spark, path))
        else:
            going = stack.enter_context(going_on(spark, source, engine, path, memory, format, strategy, options))
            read, output, strategy = going.read, going.output, strategy if format == "parquet" else "mark"
        engine, messages = read.engine, read.messages
        passing = Passing(comparable(messages))
        judged = _judge(read, messages, output.staging, strategy, phases.begin, passing, going, figures)
        rows = judged.rows
        with ThreadPoolExecutor(2, thread_name_prefix="onefold-run") as threads:  # they mostly plan queries
            phases.begin("finding what is missing")
            listing = threads.submit(on_thread(spark, partial(_missing, judged, output.staging, ranges_max)))
            picturing = threads.submit(
                on_thread(spark, partial(judged.pictures, figures, lambda: listing.result().gaps))
            )
            missing: _Missing = listing.result()
            if figures is not None:
                phases.begin("taking figures")
            pictures = picturing.result()
        result = {**judged.result, **missing.result}
        extras = engine.extras(rows) if format == "parquet" else {}
        for name, extra in extras.items():
            (output.staging / name).write(extra)
        others = engine.others(read.opened.rows)
        phases.begin("publishing")
        output.commit(publish.staged(output.staging, rows, strategy, _columns(messages), extras=extras))
        phases.begin("auditing")
        audited = audit_run(messages, output.place, engine, passing.fingerprint, goes_on=bool(result.get("version")))
        if not audited.agrees:
            keep(audited, output.keep(publish.AUDIT))
        audited.check()
        if pictures is not None:
            pictures |= circumstances(read.opened.rows, phases)
        complete = Run(
            **result, others=others, seconds=phases.seconds, path=output.shown, audit=audited, figures=pictures
        )
        document = {**complete.to_dict(), "settings": dict(settings or {})}
        output.finish(complete.tally, document, complete.manifest.lines())
    return complete


@naming_files()
def check(spark: SparkSession, source: SourceSpec, engine: Engine, *, ranges_max: int = 20, say: Say = print) -> Run:
    """Judge a source and report what is wrong with it; writes only a temporary folder, and removes it."""
    started = monotonic()
    read = _read(spark, source, engine, at=True)
    with ExitStack() as stack:
        staging = None
        if not has_executors(spark):  # else no shared folder is known: rows stay in Spark's storage
            folder = tempfile.mkdtemp(prefix="onefold-check-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            staging = Place(spark, folder)
        needed = {name for _, name in read.engine.columns.named} | {CORRUPT}
        engine, columns = read.engine, read.messages.columns
        through = next((name for name in SOURCES if name in columns), None)
        file = F.col(AT) if AT in columns else F.input_file_name()
        at = file if through is None else F.col(quoted(through)).cast("string")
        # The clients of Spark Connect 4.0 and 4.1 cannot join an observed table with itself.
        tells_copies = engine.tells_copies and not (is_connect(spark) and SPARK < (4, 2))
        more = [at.alias(FILE)] if tells_copies else []
        narrow = read.messages.select(*(F.col(quoted(name)) for name in columns if name in needed), *more)
        judged = _judge(read, narrow, staging, "mark", say, Passing())
        say("finding what is missing")
        missing = _missing(judged, staging, ranges_max, publishes=False)
        if staging is None:
            for kept in (judged.rows, missing.gaps):
                stack.callback(kept.unpersist)
        copies = None
        if tells_copies:
            say("comparing copies")
            copies = {**engine.copies(judged.rows, judged.tally), "through": through or "file"}
        result = {**judged.result, **missing.result}
        result["cannot_tell"] += tuple(engine.doubts(read.messages, judged.tally))
        others = engine.others(read.opened.rows)
        return Run(**result, others=others, copies=copies, seconds=monotonic() - started)


class _Messages(NamedTuple):
    opened: OpenSource
    engine: Engine  # without usual columns that are absent
    absent: list[str]
    messages: DataFrame
    reader: Passing | None  # counts the source's rows as they are read; None: every row is a message


def _read(spark: SparkSession, source: SourceSpec, engine: Engine, *, at: bool = False) -> _Messages:
    opened = open_source(spark, source, engine.reads, at=at)
    fitted = engine.fitted(opened.rows)
    present = {role for role, _ in fitted.columns.named}
    absent = [name for role, name in engine.columns.named if role not in present]
    messages = fitted.shaped(opened.rows)
    if messages is opened.rows:
        return _Messages(opened, fitted, absent, messages, None)
    reader = Passing(called="onefold_reader")
    return _Messages(opened, fitted, absent, fitted.shaped(opened.rows.transform(reader.watch)), reader)


@dataclass(frozen=True, slots=True)
class GoingOn:
    """A run that continues from the memory that the last one left."""

    read: _Messages
    output: publish.Output
    memory: MemoryFolder
    options: MemoryOptions
    version: Version
    before: Sequence[Place]  # the missing ranges of the previous version; empty: this is the first
    published: Place | None  # the folder of all versions; None: a table

    def listed(self) -> list[DataFrame]:
        """The missing ranges of the previous version: they name keys that have no row in this one."""
        return [gaps.read() for gaps in self.before if gaps.exists()]

    def firsts(self, rows: DataFrame) -> DataFrame:
        """The firsts of all versions so far."""
        if self.published is not None and self.version.number:
            rows = rows.unionByName(published(rows.sparkSession, self.published))
        return rows.where(F.col(VERDICT) == "FIRST")

    def keys(self) -> int:
        newest = self.memory.newest(self.version.number + 1).values()
        return sum(int(run.header["figures"].get("keys", 0)) for run in newest)


@contextmanager
def going_on(
    spark: SparkSession, source: SourceSpec, engine: Engine, path: str, memory: MemoryOptions, format: Format,
    strategy: publish.Strategy, options: Mapping[str, str],
) -> Iterator[GoingOn]:  # fmt: skip
    """Prepare the next version, with memory and output locked; `NothingNew` if everything is published."""
    folders = [("the memory", str(memory.path)), *([("the output", path)] if format in FOLDERS else [])]
    writes = [(name, located(spark, folder)) for name, folder in folders]
    refuse_overlap([("the source", located(spark, source.path))], writes)
    for outer, inner in permutations(writes, 2):
        refuse_inside(outer, inner)
    with ExitStack() as stack:
        locks = []
        for _, folder in folders:
            Place(spark, folder).make()
            locks.append(stack.enter_context(locked(Place(spark, folder), "run")))
        log = VersionLog(str(memory.path))
        opened = partial(open_sink, spark, path, format=format, strategy=strategy, options=options)
        last = opened().last(log.id or "")
        version = log.next(last, listed(spark, source, partial(log.read, last)), memory.version)
        read = _read(spark, replace(source, only=version.files), engine)
        goes_on = replace(memory, version=version.number, now_ms=version.now_ms)
        meaning = read.engine.meaning(read.messages, goes_on)
        home = MemoryFolder.opened(str(memory.path), meaning, buckets=goes_on.buckets, keep=goes_on.keep)
        sink = opened(meaning={**meaning, **read.engine.source_meaning()})
        sink.last(home.id)
        for lock in locks:
            lock.check()
        log.begin(version)
        if isinstance(sink, ParquetSink):
            judged = read.messages.transform(read.engine.step(goes_on))
            output: publish.Output = sink.draft(home.id, version.number, judged.schema)
            before, place = [sink.folder(last) / publish.GAPS] if last is not None else [], Place(spark, path)
        else:
            table = TableDraft(spark, Place(spark, home.path), sink, home.id, version.number)
            output, place = table, None
            before = [table.listing(last)] if last is not None else []
        yield GoingOn(read, output, home, goes_on, version, before, place)


@dataclass(frozen=True, slots=True)
class TableDraft:
    """A version for a table: staged and audited beside the memory, then written by a sink atomically with its number.
    Its missing ranges stay with the memory.
    """

    spark: SparkSession
    home: Place
    sink: Sink
    stream: str
    version: int

    @property
    def place(self) -> Place:
        return self.home / publish.STAGING / f"{self.version:012}"

    @property
    def staging(self) -> Place:
        return self.place / publish.STAGING

    @property
    def shown(self) -> str:
        return str(self.sink)

    def listing(self, version: int) -> Place:
        return self.home / "_missing" / f"{version:012}"

    def commit(self, parts: Mapping[str, Place]) -> None:
        for name, part in parts.items():
            (self.place / name).remove()
            part.move_to(self.place / name)

    def keep(self, name: str) -> Place:
        return self.place / name

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        kept = self.listing(self.version)
        kept.remove()
        (self.home / "_missing").make()
        (self.place / publish.GAPS).move_to(kept)
        self.sink.write(self.stream, self.version, (self.place / publish.MESSAGES).read(), None)
        self.place.remove()
        for name in (self.home / "_missing").names():
            if name < f"{self.version:012}":
                (self.home / "_missing" / name).remove()


class _Judged(NamedTuple):
    engine: Engine
    tally: Tally
    result: dict[str, Any]  # what both jobs report of a source, without the missing ranges
    rows: DataFrame
    span: Span | None  # of the firsts on the timeline
    notes: Notes | None  # of the tasks; None: incomplete, or not supported by the engine
    naming: DataFrame  # rows that contain every key
    is_noted: bool  # whether the tasks' notes or a memory know the missing ranges
    going: GoingOn | None

    def pictures(self, figures: Figures | None, gaps: Callable[[], DataFrame]) -> dict[str, Any] | None:
        if figures is None:
            return None
        return figures.take(
            self.rows, gaps, self.engine, self.tally, self.result["keys"], self.span, self.notes, self.naming
        )


def _judge(
    read: _Messages, messages: DataFrame, staging: Place | None, strategy: publish.Strategy, say: Say,
    passing: Passing, going: GoingOn | None = None, figures: Figures | None = None,
) -> _Judged:  # fmt: skip
    """Judge the messages and write them to the staging folder; ``passing`` observes each message before it is judged.

    Without a ``staging`` folder, the rows stay in Spark's storage.
    """
    engine, opened = read.engine, read.opened
    say("judging")
    books, folder = publish.Books(engine.answers), None if staging is None else str(staging / NOTES)
    options = replace(MemoryOptions() if going is None else going.options, notes=folder)
    judged = messages.transform(passing.watch).transform(engine.step(options))
    span = {} if figures is None else Span.firsts(judged, engine.subject(judged))
    rows = publish.stage(judged.transform(books.watch, **span), staging, strategy)
    say("keeping the books")
    opened = opened.counted((read.reader or passing).rows)
    received = _believed(opened, (read.reader or passing).rows)
    tally = books.tally(received if read.reader is None else passing.rows)
    if tally is None or not tally.balanced:  # a stage that Spark retried was observed twice: count again before failing
        tally = publish.books(rows, messages.count())
    tally.check()
    rules = engine.note_rules(messages)
    notes = None if rules is None or folder is None else Notes.read(folder, rules, tally)
    keys = going.keys() if going is not None else engine.keys(rows, tally) if notes is None else notes.keys
    result = {
        "tally": tally,
        "engine": engine.name,
        "keys": keys,
        "cannot_tell": engine.cannot_tell(tally),
        "absent": read.absent,
        "manifest": opened.manifest,
        "changed": opened.changed(),
        **({} if going is None else {"version": going.version.number, "left": going.version.left}),
    }
    axis = Span(*map(books.seen, Span._fields)) if span else None
    naming = engine.naming(rows) if going is None else rows
    is_noted = rules is not None and (going is not None or notes is not None)
    return _Judged(engine, tally, result, rows, axis, notes, naming, is_noted, going)


class _Missing(NamedTuple):
    result: dict[str, Any]  # what both jobs report of the missing ranges
    gaps: DataFrame  # the missing ranges


def _missing(judged: _Judged, staging: Place | None, ranges_max: int, *, publishes: bool = True) -> _Missing:
    """Write the missing ranges to the staging folder, or keep them in Spark's storage, and list the first."""
    engine, rows, going = judged.engine, judged.rows, judged.going
    if not judged.is_noted:
        firsts = rows.where(F.col(VERDICT) == "FIRST") if going is None else going.firsts(rows)
        missing = engine.missing(firsts)
    else:
        spark, notes = rows.sparkSession, judged.notes
        if going is not None:
            open_gaps = remembered_gaps(spark, going.memory, going.version.number + 1)
        else:
            open_gaps = noted_gaps(spark, notes.gaps if notes is not None else ())
        tables = [judged.naming] if going is None else [judged.naming, *going.listed()]
        missing = engine.named_gaps(rows, key_names(tables, engine.key, open_gaps).join(open_gaps, [*NAME]))
    watched, ranges, gaps = Passing(called="onefold_gaps"), [], missing
    if engine.knows_gaps or publishes:
        gaps = publish.kept(missing.transform(watched.watch), None if staging is None else staging / publish.GAPS)
    if engine.knows_gaps:
        first = gaps.orderBy(*_columns(gaps)).limit(ranges_max).select(*(told(gaps, name) for name in gaps.columns))
        ranges = [row.asDict() for row in first.collect()]
    count = engine.missing_messages(gaps)
    result = {
        "gaps": len(ranges) if len(ranges) < ranges_max or not engine.knows_gaps else watched.rows or gaps.count(),
        "ranges": ranges,
        "missing": gaps.agg(count).collect()[0][0] if count is not None and ranges else None,
    }
    return _Missing(result, gaps)


def _believed(opened: OpenSource, read: int) -> int:
    """The rows by the manifest, if counted, else ``read``; `AuditFailed` names files where they differ."""
    counted = opened.manifest.rows
    if counted is None or read == counted:
        return read
    # In a file that is being appended to, Hadoop's readers also read the line after the end they were given.
    if counted < read <= counted + sum(" has grown " in line for line in opened.changed()):
        return read
    by_file = opened.rows_by_file()  # a stage that Spark retried was observed twice: read again
    rows = [(file, by_file.get(file.metadata_path, 0)) for file in opened.manifest.parts]
    wrong = [f"{file.shown} holds {file.rows:,} rows, {n:,} were read" for file, n in rows if file.rows != n]
    if wrong:
        more = [f"and {len(wrong) - NAMED_MAX:,} more files"] if len(wrong) > NAMED_MAX else []
        raise AuditFailed(f"the reader did not give what the files hold: {'; '.join([*wrong[:NAMED_MAX], *more])}")
    return counted


def _columns(df: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in df.columns]
