"""The two batch jobs: ``run`` publishes a judged source, ``check`` only tells what is wrong with one.

Each room is passed once, in this order: ingest, judge, tally, figures, publish, audit. Both jobs return the same `Run`.
A run whose audit does not find its rows as its source sent them is not complete, and says which.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.spark import publish
from onefold.spark.audit import Audit, AuditFailed, Passing, audit_run, comparable, keep
from onefold.spark.columns import quoted, told
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
    """What a job found."""

    tally: Tally
    engine: str
    keys: int
    """How many chains, producers or devices."""
    gaps: int
    """How many ranges are missing."""
    ranges: list[dict[str, Any]]
    """The first of them: key columns, lower and upper ends."""
    seconds: float
    cannot_tell: Sequence[Untold] = ()
    """What nobody may claim of this run, and which setting would tell it."""
    absent: Sequence[str] = ()
    """Usual columns that the source does not have, and that the judgement did without."""
    others: int = 0
    """How many rows of the source were no messages: counted, not judged."""
    path: str | None = None
    audit: Audit | None = None
    """What was published against what the source sent; None of a check."""
    figures: Mapping[str, Any] | None = None
    """What a report shows besides, see `Figures`; None: they were not taken."""
    manifest: Manifest = field(default_factory=Manifest)
    """The files of the source, and their rows as they were counted without its reader."""
    changed: Sequence[str] = ()
    """What happened to files of the source while they were judged, one line each."""

    @property
    def state_entries(self) -> int:
        """What a detector would remember of all this: one head per key, and the gaps."""
        return self.keys + self.gaps

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
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
            "state_entries": self.state_entries,
            "others": self.others,
            "seconds": round(self.seconds, 3),
            "path": self.path,
            "audit": None if self.audit is None else self.audit.to_dict(),
            "manifest": {**self.manifest.to_dict(), "changed": list(self.changed)},
            **({} if self.figures is None else {"figures": self.figures}),
        }


@naming_files()
def run(
    spark: SparkSession, source: SourceSpec, judging: Engine, path: str, *, strategy: publish.Strategy = "drop",
    settings: Mapping[str, Any] | None = None, ranges_max: int = 20, figures: Figures | None = None, say: Say = print,
) -> Run:  # fmt: skip
    """Judge a source and publish the result at ``path``; complete or not at all. ``figures``: to take for a report."""
    refuse_overlap([("the source", located(spark, source.path))], [("the output", located(spark, path))])
    phases = Phases("opening the source", say)
    opened = open_source(spark, source, judging.reads)
    came = opened.rows
    absent, judging = _fitted(judging, came)
    df, reading = _counted(came, judging)
    sent = Passing(comparable(df))
    with publish.opened(spark, path) as output:
        place, staging = output.place, output.staging
        found, rows, gaps = _judge(df, staging, judging, strategy, ranges_max, phases.begin, sent, opened, reading)
        extras = judging.extras(rows)
        publish.stage_extras(output.staging, extras)
        others = judging.others(came)
        taken = None
        if figures is not None:
            phases.begin("taking figures")
            taken = figures.take(rows, gaps, judging, found["tally"], found["keys"])
        phases.begin("publishing")
        publish.commit(output, publish.staged(output.staging, rows, strategy, _columns(df), extras=extras))
        phases.begin("auditing")
        audited = audit_run(df, place, judging, sent.fingerprint)
        if not audited.agrees:
            output.signed.own({publish.AUDIT: None})
            keep(audited, place / publish.AUDIT)
        audited.check()
        if taken is not None:
            taken |= circumstances(came, phases)
        result = Run(
            **found, absent=absent, others=others, seconds=phases.seconds,
            path=place.shown, audit=audited, figures=taken,
        )  # fmt: skip
        document = {**result.to_dict(), "settings": dict(settings or {})}
        publish.finish(output, result.tally, document, result.manifest.lines())
    return result


@naming_files()
def check(spark: SparkSession, source: SourceSpec, judging: Engine, *, ranges_max: int = 20, say: Say = print) -> Run:
    """Judge a source and tell what was found; only a temporary folder is written, and removed."""
    started = monotonic()
    opened = open_source(spark, source, judging.reads)
    came = opened.rows
    absent, judging = _fitted(judging, came)
    df, reading = _counted(came, judging)
    folder = tempfile.mkdtemp(prefix="onefold-check-")
    try:
        judged_columns = {name for _, name in judging.columns.named} | {"_corrupt_record"}
        narrow = df.select(*(F.col(quoted(name)) for name in df.columns if name in judged_columns))
        staging = Place(spark, folder)
        found, _, _ = _judge(narrow, staging, judging, "mark", ranges_max, say, Passing(), opened, reading)
        return Run(**found, absent=absent, others=judging.others(came), seconds=monotonic() - started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _counted(came: DataFrame, judging: Engine) -> tuple[DataFrame, Passing | None]:
    """The messages of what came, and a count of its rows in passing; None: every row is a message."""
    df = judging.shaped(came)
    if df is came:
        return df, None
    reading = Passing(called="onefold_reader")
    return judging.shaped(came.transform(reading.watch)), reading


def _fitted(judging: Engine, source: DataFrame) -> tuple[list[str], Engine]:
    """The usual columns that are not there, and the engine without them."""
    fitted = judging.fitted(source)
    there = {name for _, name in fitted.columns.named}
    return [name for _, name in judging.columns.named if name not in there], fitted


def _judge(
    df: DataFrame, staging: Place, judging: Engine, strategy: publish.Strategy, ranges_max: int, say: Say,
    sent: Passing, opened: OpenSource, reading: Passing | None,
) -> tuple[dict[str, Any], DataFrame, DataFrame]:  # fmt: skip
    say("judging")
    judged = df.transform(sent.watch).transform(judging.step())
    rows = publish.stage(judged, staging, strategy)
    say("keeping the books")
    came = _believed(opened, (reading or sent).rows)
    tally = publish.books(rows, came if reading is None else sent.rows)
    if not tally.balanced:  # a stage that Spark ran twice was observed twice: count again before crying out
        tally = publish.books(rows, df.count())
    tally.check()
    say("finding what is missing")
    firsts = rows.where(F.col(VERDICT) == "FIRST")
    gaps_path = str(staging / publish.GAPS)
    judging.missing(firsts).write.parquet(gaps_path)
    gaps = df.sparkSession.read.parquet(gaps_path)
    first = gaps.orderBy(*_columns(gaps)).limit(ranges_max).select(*(told(gaps, name) for name in gaps.columns))
    ranges = [row.asDict() for row in first.collect()]
    found = {"tally": tally, "engine": judging.name, "keys": judging.keys(rows), "gaps": gaps.count()}
    files = {"manifest": opened.manifest, "changed": opened.changed()}
    return {**found, "ranges": ranges, "cannot_tell": judging.cannot_tell(), **files}, rows, gaps


def _believed(opened: OpenSource, read: int) -> int:
    """How many rows came in, by the count that was made without the reader; `AuditFailed` that names the files if the
    reader gave others.
    """
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
        words = "; ".join([*wrong[:NAMED_MAX], *more])
        raise AuditFailed(f"the reader did not give what the files hold: {words}")
    return counted


def _columns(df: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in df.columns]
