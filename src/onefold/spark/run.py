"""The two batch jobs: ``run`` publishes a judged source, ``check`` only tells what is wrong with one.

Each room is entered once, in this order: ingest, judge, books, missing ranges, figures, publish, audit. Both jobs
return the same `Run`. A run whose audit does not find its rows as its source sent them is not complete, and says which.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.spark import publish
from onefold.spark.audits import Audit, AuditFailed, Passing, audit_run, comparable, keep
from onefold.spark.columns import CORRUPT, quoted, told
from onefold.spark.engine import Engine, Untold
from onefold.spark.figures import Figures, Phases, circumstances
from onefold.spark.files import NAMED_MAX, Manifest, Place, located, naming_files
from onefold.spark.host import VERDICT
from onefold.spark.ingest import OpenSource, SourceSpec, open_source
from onefold.spark.signature import refuse_overlap
from onefold.tally import Tally

Say: TypeAlias = Callable[[str], None]

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    tally: Tally
    engine: str
    keys: int
    gaps: int
    ranges: list[dict[str, Any]]  # the first missing ranges: key columns, lower and upper ends
    seconds: float
    cannot_tell: Sequence[Untold] = ()  # what nobody may claim of this run, and which setting would tell it
    absent: Sequence[str] = ()  # usual columns that the source does not have, and that the judgement did without
    others: int = 0  # how many rows of the source were no messages: counted, not judged
    path: str | None = None
    audit: Audit | None = None  # what was published against what the source sent; None of a check
    figures: Mapping[str, Any] | None = None
    """What a report shows besides, see `Figures`; None: they were not taken."""
    manifest: Manifest = field(default_factory=Manifest)
    """The files of the source, and their rows as they were counted without its reader."""
    changed: Sequence[str] = ()  # what happened to files of the source while they were judged, one line each

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "complete": True,
            "tally": self.tally.to_dict(),
            "engine": self.engine,
            "keys": self.keys,
            "missing_ranges": self.gaps,
            "missing_ranges_shown": self.ranges,
            "cannot_tell": [untold._asdict() for untold in self.cannot_tell],
            "absent_columns": list(self.absent),
            "state_entries": self.keys + self.gaps,  # what a detector would remember: one head per key, and the gaps
            "others": self.others,
            "seconds": round(self.seconds, 3),
            "path": self.path,
            "audit": None if self.audit is None else self.audit.to_dict(),
            "manifest": {**self.manifest.to_dict(), "changed": list(self.changed)},
            **({} if self.figures is None else {"figures": self.figures}),
        }


@naming_files()
def run(
    spark: SparkSession, source: SourceSpec, engine: Engine, path: str, *, strategy: publish.Strategy = "drop",
    settings: Mapping[str, Any] | None = None, ranges_max: int = 20, figures: Figures | None = None, say: Say = print,
) -> Run:  # fmt: skip
    """Judge a source and publish the result at ``path``; complete or not at all. ``figures``: to take for a report."""
    refuse_overlap([("the source", located(spark, source.path))], [("the output", located(spark, path))])
    phases = Phases("opening the source", say)
    read = _read(spark, source, engine)
    engine, messages = read.engine, read.messages
    passing = Passing(comparable(messages))
    with publish.opened(spark, path) as output:
        result, rows, gaps = _judge(read, messages, output.staging, strategy, ranges_max, phases.begin, passing)
        extras = engine.extras(rows)
        for name, extra in extras.items():
            extra.write.parquet(str(output.staging / name))
        others = engine.others(read.opened.rows)
        pictures = None
        if figures is not None:
            phases.begin("taking figures")
            pictures = figures.take(rows, gaps, engine, result["tally"], result["keys"])
        phases.begin("publishing")
        publish.commit(output, publish.staged(output.staging, rows, strategy, _columns(messages), extras=extras))
        phases.begin("auditing")
        audited = audit_run(messages, output.place, engine, passing.fingerprint)
        if not audited.agrees:
            output.signed.own({publish.AUDIT: None})
            keep(audited, output.place / publish.AUDIT)
        audited.check()
        if pictures is not None:
            pictures |= circumstances(read.opened.rows, phases)
        complete = Run(
            **result, others=others, seconds=phases.seconds, path=output.place.shown, audit=audited, figures=pictures
        )
        document = {**complete.to_dict(), "settings": dict(settings or {})}
        publish.finish(output, complete.tally, document, complete.manifest.lines())
    return complete


@naming_files()
def check(spark: SparkSession, source: SourceSpec, engine: Engine, *, ranges_max: int = 20, say: Say = print) -> Run:
    """Judge a source and tell what is wrong with it; only a temporary folder is written, and removed."""
    started = monotonic()
    read = _read(spark, source, engine)
    folder = tempfile.mkdtemp(prefix="onefold-check-")
    try:
        needed = {name for _, name in read.engine.columns.named} | {CORRUPT}
        narrow = read.messages.select(*(F.col(quoted(name)) for name in read.messages.columns if name in needed))
        result, _, _ = _judge(read, narrow, Place(spark, folder), "mark", ranges_max, say, Passing())
        return Run(**result, others=read.engine.others(read.opened.rows), seconds=monotonic() - started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Messages(NamedTuple):
    opened: OpenSource
    engine: Engine  # without the usual columns that are not there
    absent: list[str]
    messages: DataFrame
    reader: Passing | None  # counts the rows of the source in passing; None: every row is a message


def _read(spark: SparkSession, source: SourceSpec, engine: Engine) -> _Messages:
    opened = open_source(spark, source, engine.reads)
    fitted = engine.fitted(opened.rows)
    present = {name for _, name in fitted.columns.named}
    absent = [name for _, name in engine.columns.named if name not in present]
    messages = fitted.shaped(opened.rows)
    if messages is opened.rows:
        return _Messages(opened, fitted, absent, messages, None)
    reader = Passing(called="onefold_reader")
    return _Messages(opened, fitted, absent, fitted.shaped(opened.rows.transform(reader.watch)), reader)


def _judge(
    read: _Messages, messages: DataFrame, staging: Place, strategy: publish.Strategy, ranges_max: int, say: Say,
    passing: Passing,
) -> tuple[dict[str, Any], DataFrame, DataFrame]:  # fmt: skip
    """What both jobs tell of a source, the judged rows, and the missing ranges; ``passing`` sees each message first."""
    engine, opened = read.engine, read.opened
    say("judging")
    judged = messages.transform(passing.watch).transform(engine.step())
    rows = publish.stage(judged, staging, strategy)
    say("keeping the books")
    received = _believed(opened, (read.reader or passing).rows)
    tally = publish.books(rows, received if read.reader is None else passing.rows)
    if not tally.balanced:  # a stage that Spark ran twice was observed twice: count again before crying out
        tally = publish.books(rows, messages.count())
    tally.check()
    say("finding what is missing")
    gaps_path = str(staging / publish.GAPS)
    engine.missing(rows.where(F.col(VERDICT) == "FIRST")).write.parquet(gaps_path)
    gaps = messages.sparkSession.read.parquet(gaps_path)
    first = gaps.orderBy(*_columns(gaps)).limit(ranges_max).select(*(told(gaps, name) for name in gaps.columns))
    result = {
        "tally": tally,
        "engine": engine.name,
        "keys": engine.keys(rows),
        "gaps": gaps.count(),
        "ranges": [row.asDict() for row in first.collect()],
        "cannot_tell": engine.cannot_tell(),
        "absent": read.absent,
        "manifest": opened.manifest,
        "changed": opened.changed(),
    }
    return result, rows, gaps


def _believed(opened: OpenSource, read: int) -> int:
    """How many rows came in, as counted without the reader; `AuditFailed` that names the files if it gave others."""
    counted = opened.manifest.rows
    if counted is None or read == counted:
        return read
    # Of a file that is being appended to, Hadoop's readers take the line that follows the end which they were told.
    if counted < read <= counted + sum(" has grown " in line for line in opened.changed()):
        return read
    by_file = opened.rows_by_file()  # a stage that Spark ran twice was observed twice: so it is read again
    rows = [(file, by_file.get(file.metadata_path, 0)) for file in opened.manifest.files]
    wrong = [f"{file.shown} holds {file.rows:,} rows, {n:,} were read" for file, n in rows if file.rows != n]
    if wrong:
        more = [f"and {len(wrong) - NAMED_MAX:,} more files"] if len(wrong) > NAMED_MAX else []
        raise AuditFailed(f"the reader did not give what the files hold: {'; '.join([*wrong[:NAMED_MAX], *more])}")
    return counted


def _columns(df: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in df.columns]
