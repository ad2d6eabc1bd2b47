"""``audit(source, published)``: the proof that a sink holds exactly what its source sent.

    rows    every row of the source is published once, under whatever verdict, and nothing else is: by fingerprints of
            the whole rows, and where those differ, by the rows
    ids     no id is twice among the firsts, and each repeat has its first (`audit_ids`)

The first is compared with the source itself, so it does not matter by which bug, crash or hand a row was lost. The
second looks at what was published alone.

Cost: a pass over each table; over what was published only, if the fingerprint of the source is known already.

The ids of messages: what an id is, by engine, and whether each counts once.

An id is made of the columns that a message is known by, read as the judge reads them. No id may be twice among the
firsts, and each repeat must have its first: one that has none counts nowhere. Some reasons call a message a repeat
without knowing of its first, by their rule; those are counted apart.

Cost: one shuffle of ids, 32 bytes each.

Rows that are counted and summed up in passing, while another job reads them: the sums cost no pass of their own.

The audit of a run: its source against the folder that it left.

While a batch run reads its source, the fingerprint of every row is taken in passing. When the rows are published, those
that can now be read there are summed up and compared with it. Only if the two do not agree is the source read a second
time, to name what is missing or surplus. So a source that grows while the run is going on is no trouble.

``onefold audit`` comes later and knows no fingerprint: it reads both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse, OnefoldError
from onefold.spark.columns import milliseconds, quoted
from onefold.spark.differences import Summary, chosen, diff, sampled, spoken
from onefold.spark.engine import Engine, Identity
from onefold.spark.files import Place
from onefold.spark.fingerprints import (
    Fingerprint,
    aggregates,
    fingerprint,
    row_form,
    row_id,
    whole_row_id,
    with_words,
)
from onefold.spark.host import REASON, VERDICT
from onefold.spark.publish import FOLDERS, MESSAGES, RUN, STAGING
from onefold.spark.signature import Signed, signed
from onefold.spark.sinks import open_sink
from onefold.spark.sinks.parquet import BATCHES, STREAM
from onefold.tally import Tally

BY_RULE: Final = ("below_floor", "behind_head", "behind_highest")
"""Reasons that call a message a repeat without knowing of its first: as published, see docs/guarantees.md."""

_ID, _AT, _SOON = "_onefold_id", "_onefold_at", "_onefold_soon"
_FIRSTS, _REPEATS, _RULED = "_onefold_firsts", "_onefold_repeats", "_onefold_ruled"


def id_form(identity: Identity, df: DataFrame) -> Column:
    """The canonical form of the id of each row."""
    names = [(F.col(quoted(name)), df.schema[name].dataType) for name in identity.names]
    return row_form([*names, *((cell, T.LongType()) for cell in identity.number(df))])


class Ids:
    """The ids of judged rows, each with how often it is a first and how often a repeat."""

    def __init__(self, judged: DataFrame, known: Identity) -> None:
        self._known = known
        rows = _marked(judged, known, [VERDICT, REASON])
        if known.time is None:
            soon = F.greatest(F.count_if(_first()) - 1, F.lit(0))
        else:
            # An id that expires may be new again: one too many is a first that comes too soon after the one before.
            before = F.lag(_AT).over(Window.partitionBy(_ID, VERDICT).orderBy(_AT))
            rows = rows.withColumn(_SOON, _first() & (F.col(_AT) - before < known.expiry_ms))
            soon = F.count_if(_SOON)
        self._grouped = rows.groupBy(_ID).agg(
            F.count_if(_first()).alias(_FIRSTS),
            F.count_if(~_first() & ~_ruled()).alias(_REPEATS),
            F.count_if(~_first() & _ruled()).alias(_RULED),
            soon.alias(_SOON),
        )

    def counts(self) -> dict[str, int]:
        """How many ids count, how many of them more than once, how many repeats there are, and how many have no first;
        runs one job.
        """
        alone = F.col(_FIRSTS) == 0
        cells = {
            "ids": F.count_if(~alone),
            "twice": F.count_if(F.col(_SOON) > 0),
            "repeats": F.sum(F.col(_REPEATS) + F.col(_RULED)),
            "orphans": F.sum(F.when(alone, F.col(_REPEATS))),
            "orphans_by_rule": F.sum(F.when(alone, F.col(_RULED))),
        }
        row = self._grouped.agg(*(cell.alias(name) for name, cell in cells.items())).collect()[0]
        return {name: int(row[name] or 0) for name in cells}

    def wrong(self, judged: DataFrame) -> Mapping[str, DataFrame]:
        """The firsts that are one of several, and the repeats without a first, whole rows."""
        rows = _marked(judged, self._known, judged.columns)
        twice = self._grouped.where(F.col(_SOON) > 0).select(_ID)
        alone = self._grouped.where((F.col(_FIRSTS) == 0) & (F.col(_REPEATS) > 0)).select(_ID)
        kinds = {"twice": (twice, _first()), "orphans": (alone, ~_first() & ~_ruled())}
        return {
            name: rows.where(which).join(ids, _ID, "left_semi").drop(_ID, _AT) for name, (ids, which) in kinds.items()
        }


def _marked(judged: DataFrame, known: Identity, names: list[str]) -> DataFrame:
    """Firsts and repeats with these columns, the hash of their id, and when they came."""
    at = F.lit(None).cast("long") if known.time is None else milliseconds(judged, known.time)
    rows = judged.where(F.col(VERDICT).isin("FIRST", "REPEAT"))
    kept = [F.col(quoted(name)) for name in names]
    return rows.select(*kept, F.unhex(row_id(id_form(known, judged))).alias(_ID), at.alias(_AT))


def _first() -> Column:
    return F.col(VERDICT) == "FIRST"


def _ruled() -> Column:
    return F.col(REASON).isin(*BY_RULE)


class Passing:
    """Watches a table go by: how many rows there were, and their fingerprint by these columns; None: only counted.

    The figures are those of the first job that reads the table to its end, and wait for it. A stage that Spark has to
    run twice is seen twice: figures that agree are true, figures that do not are a reason to look again. Where Spark
    finds that nothing comes out of a job it forgets what was seen on the way.
    """

    def __init__(self, names: Sequence[str] | None = None, *, called: str = "onefold") -> None:
        self._seen = Observation(called)  # two in one plan need two names
        self._names = names

    def watch(self, df: DataFrame) -> DataFrame:
        """The same rows, seen in passing."""
        if self._names is None:
            return df.observe(self._seen, F.count(F.lit(1)).alias(_cell(0)))
        cells = [cell.alias(_cell(i)) for i, cell in enumerate(aggregates())]
        words = with_words(df, [whole_row_id(df, self._names)])
        return words.observe(self._seen, *cells).select(*(F.col(quoted(name)) for name in df.columns))

    @property
    def rows(self) -> int:
        """How many there were; 0 too if that was forgotten."""
        return int(self._figures().get(_cell(0)) or 0)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Of all of them; None if it was forgotten."""
        seen = self._figures()
        return Fingerprint.of([seen[_cell(i)] for i in range(len(seen))]) if seen else None

    def _figures(self) -> Mapping[str, Any]:
        try:
            return self._seen.get
        except Py4JJavaError:  # a row without any cells, which cannot be handed over
            return {}


def comparable(df: DataFrame) -> list[str]:
    """The columns whose values have a form: all but those of a type that nobody can compare."""
    found = []
    for name in df.columns:
        try:
            whole_row_id(df, [name])
        except Misuse:
            continue
        found.append(name)
    return found


def _cell(i: int) -> str:
    return f"cell{i}"


SHOWN_MAX: Final = 20
"""How many of each kind are named; the tables have all of them."""
NAMED_MAX: Final = 3
"""How many of each kind an error names in its one line."""

WRONG: Final = {"missing": "missing in the sink", "surplus": "not in the source", "twice": "counted twice"}
"""The kinds that make an audit fail, in words."""


UNSORTED: Final = ("map<", "variant")
"""Types that Spark does not sort by; with one among them, what is wrong is named as it comes."""


class AuditFailed(OnefoldError):
    """What was published is not what the source holds: do not use it. The text names the first of what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found."""

    source: int
    """How many rows the source holds."""
    published: int
    fingerprint_source: str
    fingerprint_published: str
    missing: int = 0
    """How many rows of the source were not published."""
    surplus: int = 0
    """How many rows were published that the source does not hold."""
    ids: int | None = None
    """How many ids are among the firsts; None: what was published says nothing of verdicts."""
    twice: int = 0
    """How many ids are there more than once."""
    repeats: int = 0
    orphans: int = 0
    """How many repeats have no first, though their reason knows of one."""
    orphans_by_rule: int = 0
    """How many repeats have no first by the rule of their reason: nothing can tell whether they are copies."""
    left_out: Sequence[str] = ()
    """Columns of a type that nobody can compare."""
    shown: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The first ids of what is wrong, by kind."""
    tables: Mapping[str, DataFrame] = field(default_factory=dict, repr=False, compare=False)
    """All rows of what is wrong, by kind."""

    @property
    def agrees(self) -> bool:
        """Whether source and sink hold the same rows, and every id counts once."""
        return not (self.missing or self.surplus or self.twice)

    @property
    def clean(self) -> bool:
        """Whether there is nothing to report at all."""
        return self.agrees and not self.orphans and not self.orphans_by_rule

    def check(self) -> Audit:
        """Return self if source and sink agree; raise `AuditFailed` that names the first ids if not."""
        if not self.agrees:
            words = "; ".join(self._told(kind) for kind in WRONG if getattr(self, kind))
            raise AuditFailed(f"source and sink do not agree: {words}", audit=self.to_dict())
        return self

    def _told(self, kind: str) -> str:
        count, ids = getattr(self, kind), [f"[{spoken(row)}]" for row in self.shown.get(kind, [])[:NAMED_MAX]]
        more = [f"{count - len(ids):,} more"] if count > len(ids) else []
        return f"{count:,} {WRONG[kind]}: {', '.join([*ids, *more])}"

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        figures = ("source", "published", "fingerprint_source", "fingerprint_published", "missing", "surplus")
        of_ids = ("ids", "twice", "repeats", "orphans", "orphans_by_rule")
        told = {name: getattr(self, name) for name in (*figures, *of_ids)}
        return {"agrees": self.agrees, **told, "left_out": list(self.left_out), "shown": self.shown}


def audit(
    source: DataFrame, published: DataFrame, identity: Identity | Iterable[str] | None = None, *,
    columns: Iterable[str] | None = None, sent: Fingerprint | None = None,
) -> Audit:  # fmt: skip
    """Compare what a source holds with what was published of it.

    ``published`` has the columns of the source, and ``verdict`` and ``reason`` if they are to be looked at.
    ``identity``: the columns by which two rows are the same message; None: no ids are looked at. ``columns``: what
    must agree; None: every column of the source. ``sent``: the fingerprint of the source by these columns, if it was
    taken while it was read; then the source is only read again if the two do not agree.
    """
    known = identity if isinstance(identity, Identity) or identity is None else Identity(names=tuple(identity))
    _, names = chosen(source, published, None, source.columns if columns is None else columns)
    passing = Passing(names)
    rows = published if sent is None else passing.watch(published)
    ids = None if known is None or VERDICT not in published.columns else Ids(rows, known)
    counts = {} if ids is None else ids.counts()
    wrong = AuditFinding(names if known is None else known.columns)
    if sent is not None and sent == _there(published, names, passing if ids is not None else None):
        same = str(sent)
        compared = Summary(rows_a=sent.count, rows_b=sent.count, fingerprint_a=same, fingerprint_b=same)
    else:
        compared = _looked_at(source, published, names, wrong)
    if ids is not None and (counts["twice"] or counts["orphans"]):
        for kind, table in ids.wrong(published).items():
            wrong.add(kind, table, counts[kind])
    return Audit(
        source=compared.rows_a,
        published=compared.rows_b,
        fingerprint_source=compared.fingerprint_a,
        fingerprint_published=compared.fingerprint_b,
        missing=compared.only_a,
        surplus=compared.only_b,
        left_out=[name for name in source.columns if name not in names],
        shown=wrong.shown,
        tables=wrong.tables,
        **counts,
    )


class AuditFinding:
    """Tables of what is wrong, by kind, and the first ids of each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.tables: dict[str, DataFrame] = {}
        self.shown: dict[str, list[dict[str, Any]]] = {}

    def add(self, kind: str, rows: DataFrame, count: int) -> None:
        """Keep the rows of a kind, if there are any."""
        if count:
            columns = [quoted(name) for name in self._names]
            named = rows.select(*columns)
            if not any(word in field.dataType.simpleString() for field in named.schema for word in UNSORTED):
                named = named.distinct().orderBy(*columns)
            self.tables[kind] = rows
            self.shown[kind] = sampled(named, self._names, SHOWN_MAX)


def _there(published: DataFrame, names: Sequence[str], passing: Passing | None) -> Fingerprint:
    """The fingerprint of what was published: as it was seen in passing, or by a pass of its own."""
    seen = None if passing is None else passing.fingerprint
    return fingerprint(published, [whole_row_id(published, names)]) if seen is None else seen


def _looked_at(source: DataFrame, published: DataFrame, names: Sequence[str], wrong: AuditFinding) -> Summary:
    """Compare source and sink row by row where they differ."""
    # By SHA-256: what a source holds, somebody else may have chosen.
    with diff(source, published, columns=names, hash="sha256") as found:
        wrong.add("missing", found.only_a, found.summary.only_a)
        wrong.add("surplus", found.only_b, found.summary.only_b)
        return found.summary


KINDS = {"missing", "surplus", "twice", "orphans"}
"""The folders that hold what is wrong."""
NO_FILES = "UNABLE_TO_INFER_SCHEMA"
"""What Spark says of folders without a single file."""

_FOLDER = "_onefold_folder"


def audit_run(source: DataFrame, place: Place, judging: Engine, sent: Fingerprint | None = None) -> Audit:
    """Compare the messages of a source with what a run published at a place."""
    rows = _found(source.sparkSession, place)
    if rows is None:
        rows = source.limit(0).withColumns({name: F.lit("") for name in (VERDICT, REASON)})
    return audit(source, rows, judging.fitted(source).subject(source).identity, columns=comparable(source), sent=sent)


def published(spark: SparkSession, place: Place) -> DataFrame:
    """All rows that a run published, under whatever verdict, or all batches of a stream; `Misuse` if there is no file
    of any.
    """
    rows = _found(spark, place)
    if rows is None:
        raise Misuse(f"{place.shown} holds no rows of a run", path=place.shown)
    return rows


def _found(spark: SparkSession, place: Place) -> DataFrame | None:
    """The rows of all folders that are there; None if they hold no file."""
    names = [MESSAGES, *FOLDERS.values()]
    batches = [place / BATCHES / name for name in (place / BATCHES).names()]
    if batches:  # a batch has the folders of its stream's strategy; of one that is damaged, some
        there = [str(place / BATCHES / "*" / name) for name in names if any((b / name).exists() for b in batches)]
    else:
        there = [str(place / name) for name in names if (place / name).exists()]
    try:
        return spark.read.parquet(*there) if there else None
    except AnalysisException as error:
        if error.getCondition() != NO_FILES:
            raise
        return None


def books(spark: SparkSession, place: Place) -> Tally:
    """The books that a run, or a stream, left there."""
    if (place / STREAM).exists():
        strategy = (place / STREAM).read_json()["strategy"]
        return open_sink(spark, str(place), format="parquet", strategy=strategy).total()
    if not (place / RUN).exists():
        raise Misuse(f"{place.shown} is not a complete run: it holds no {RUN}", path=place.shown)
    return Tally.from_dict((place / RUN).read_json()["tally"])


def books_differ(run: Tally, spark: SparkSession, place: Place) -> list[str]:
    """Where the books of a run say another number than its rows, or rows lie in a folder of another verdict; one line
    each.
    """
    folder = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -2)
    rows = _found(spark, place)
    counted = [] if rows is None else rows.groupBy(VERDICT, REASON, folder.alias(_FOLDER)).count().collect()
    said, there, lines = {str(answer): count for answer, count in run}, Counter[str](), []
    for verdict, reason, name, count in counted:
        there[f"{verdict} {reason}"] += count
        if name in FOLDERS.values() and name != FOLDERS.get(verdict):
            lines.append(f"{count:,} rows that are {verdict} lie in {name}/")
    return lines + [
        f"the books say {said.get(answer, 0):,} {answer}, the rows {there[answer]:,}"
        for answer in {**said, **there}
        if said.get(answer, 0) != there[answer]
    ]


@contextmanager
def kinds_folder(place: Place) -> Iterator[Signed]:
    """A folder for what is wrong: emptied of what an audit left there, refused if something else lives there."""
    with signed(place, "audit", [STAGING]) as folder:
        for name in (*sorted(KINDS), STAGING):
            folder.remove(name)
        yield folder


def keep_in(folder: Signed, audited: Audit) -> None:
    """Write all rows of what is wrong to a folder of their own, by kind."""
    staging = folder.place / STAGING
    keep(audited, staging)
    folder.replace({kind: staging / kind for kind in audited.tables}, KINDS)
    folder.remove(STAGING)


def keep(audited: Audit, place: Place) -> None:
    """Write all rows of what is wrong to a folder, by kind."""
    for kind, rows in audited.tables.items():
        rows.write.parquet(str(place / kind))
