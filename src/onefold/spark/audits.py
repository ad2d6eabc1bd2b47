"""``audit(source, published)``: proves that a sink holds exactly what its source sent.

    rows    every row of the source is published exactly once, under any verdict, and nothing else is: by fingerprints
            of whole rows, and where those differ, by the rows. The comparison is with the source itself, so any loss is
            found, whether by a bug, a crash or an operator
    ids     no id occurs twice among the firsts, and each repeat has its first: a message without one counts nowhere. An
            id consists of the columns that identify a message, read as the judge reads them. Some reasons call a
            message a repeat by rule, without knowing its first; those are counted separately

A batch run takes the fingerprint of its source while reading it (`Passing`), and compares it with what can be read from
the output. Only if the two differ is the source read again, to name the missing and surplus rows. So a source that
grows during the run is no problem. ``onefold audit`` runs later and has no fingerprint: it reads both.

Where the fingerprint is known, an id is 128 bits of two unrelated hashes, xxhash64 and murmur3. The judge names chains
by xxhash64 alone: two names crafted to collide in the judge would have to collide in both hashes to deceive the audit.
Otherwise an id is the SHA-256 of its form.

Cost: a pass over each table, or over the output only if the fingerprint of the source is known; one shuffle of ids, 32
bytes each, or 16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse, OnefoldError
from onefold.spark.columns import AnyColumns, Names, milliseconds, quoted
from onefold.spark.commits import files_of
from onefold.spark.differences import Summary, chosen, diff, sampled, spoken
from onefold.spark.engine import Engine, Identity
from onefold.spark.files import Place, parquet
from onefold.spark.fingerprints import (
    Fingerprint,
    Passing,
    fingerprint,
    hashable,
    null_masks,
    row_form,
    row_id,
    row_values,
    whole_row_id,
)
from onefold.spark.host import REASON, VERDICT
from onefold.spark.publish import FOLDERS, MESSAGES, RUN, STAGING, TALLY
from onefold.spark.signature import Signed, signed
from onefold.spark.sinks import open_sink
from onefold.spark.sinks.parquet import BATCHES, STREAM
from onefold.tally import Tally

BY_RULE: Final = ("below_floor", "behind_head", "behind_highest")
"""Reasons, as published, that call a message a repeat without knowing its first; see docs/guarantees.md."""
WRONG: Final = {"missing": "missing in the sink", "surplus": "not in the source", "twice": "counted twice"}
"""The kinds of findings that make an audit fail, in words."""
KINDS: Final = {"missing", "surplus", "twice", "orphans"}
"""The folders of findings, one per kind."""
SHOWN_MAX: Final = 20
"""Ids shown per kind; the tables hold all rows."""
NAMED_MAX: Final = 3
"""Ids per kind in the one line of an error."""
UNSORTED: Final = ("map<", "variant")
"""Types that Spark cannot sort by; findings with such a column are shown unsorted."""
FILE_AT: Final = "_onefold_file"
"""The column with the file of a row, if requested."""
NO_FILES: Final = "UNABLE_TO_INFER_SCHEMA"
"""Spark's error class for folders without any file."""

_ID, _AT, _SOON = ["_onefold_id0", "_onefold_id1"], "_onefold_at", "_onefold_soon"
_KIND, _FIRST, _REPEAT, _RULED = "_onefold_kind", "_onefold_first", "_onefold_repeat", "_onefold_ruled"
_KINDS: Final = {_FIRST: 0, _REPEAT: 1, _RULED: 2}


class AuditFailed(OnefoldError):
    """The published rows differ from the source: do not use them. The text names the first findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    source: int
    """Rows of the source."""
    published: int
    fingerprint_source: str
    fingerprint_published: str
    missing: int = 0
    """Rows of the source that were not published."""
    surplus: int = 0
    """Published rows that the source does not hold."""
    ids: int | None = None
    """Ids among the firsts; None: the published rows have no verdicts."""
    twice: int = 0
    """Ids that count again before they have expired."""
    again: int = 0
    """Firsts of an id that had expired before and so counts again."""
    repeats: int = 0
    orphans: int = 0
    """Repeats without a first, though their reason implies one."""
    orphans_by_rule: int = 0
    """Repeats without a first, by the rule of their reason: whether they are copies cannot be known."""
    elsewhere: int = 0
    """For a run with a memory: repeats with a first in an earlier version, which is not checked, or with none."""
    left_out: Sequence[str] = ()
    """Columns of a type that cannot be compared."""
    shown: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The first ids of the findings, by kind."""
    tables: Mapping[str, DataFrame] = field(default_factory=dict, repr=False, compare=False)
    """All rows of the findings, by kind."""

    @property
    def agrees(self) -> bool:
        """Whether source and sink hold the same rows and every id counts once."""
        return not (self.missing or self.surplus or self.twice)

    @property
    def clean(self) -> bool:
        return self.agrees and not self.orphans and not self.orphans_by_rule

    def check(self) -> Audit:
        """Return self if source and sink agree; else raise `AuditFailed` with the first ids."""
        if self.agrees:
            return self
        findings = []
        for kind, words in WRONG.items():
            if count := getattr(self, kind):
                ids = [f"[{spoken(row)}]" for row in self.shown.get(kind, [])[:NAMED_MAX]]
                more = [f"{count - len(ids):,} more"] if count > len(ids) else []
                findings.append(f"{count:,} {words}: {', '.join([*ids, *more])}")
        raise AuditFailed(f"source and sink do not agree: {'; '.join(findings)}", audit=self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        rows = ("source", "published", "fingerprint_source", "fingerprint_published", "missing", "surplus")
        ids = ("ids", "twice", "again", "repeats", "orphans", "orphans_by_rule", "elsewhere")
        figures = {name: getattr(self, name) for name in (*rows, *ids)}
        return {"agrees": self.agrees, **figures, "left_out": list(self.left_out), "shown": self.shown}


def audit(
    source: DataFrame, published: DataFrame, identity: Identity | Names | None = None, *,
    columns: Names | None = None, sent: Fingerprint | None = None, goes_on: bool = False,
) -> Audit:  # fmt: skip
    """Compare a source with the rows published from it.

    ``published`` has the columns of the source, and ``verdict`` and ``reason`` if they are to be checked.
    ``identity``: the columns by which two rows are the same message; None: ids are not checked. ``columns``: the
    columns that must agree; None: every column of the source. ``sent``: the fingerprint of these columns of the source,
    if taken while it was read; the source is then read again only if the fingerprints differ. ``goes_on``: a repeat may
    have its first in an earlier version, which is not checked.
    """
    _, names = chosen(source, published, None, source.columns if columns is None else columns)
    ids_in: tuple[str, ...] = ()
    if identity is not None and not isinstance(identity, Identity):
        ids_in, _ = map(tuple, chosen(source, published, identity, names))
        identity = Identity(names=ids_in)
    source, published = (AnyColumns(name=(*names, *ids_in)).put_into(df) for df in (source, published))
    wrong = AuditFinding(names if identity is None else identity.columns)
    passing = Passing(names)
    ids, counts = None, {}
    if identity is not None and VERDICT in published.columns:
        ids = Ids(published if sent is None else passing.watch(published), identity, strong=sent is None)
        counts = ids.counts()
        if goes_on:
            counts["elsewhere"] = counts.pop("orphans") + counts.pop("orphans_by_rule")
    seen = None if ids is None or sent is None else passing.fingerprint
    if sent is not None and sent == (seen or fingerprint(published, row_values(published, names))):
        same = str(sent)
        compared = Summary(rows_a=sent.count, rows_b=sent.count, fingerprint_a=same, fingerprint_b=same)
    else:  # by SHA-256: a source's rows may be crafted to collide
        with diff(source, published, columns=names, hash="sha256") as difference:
            compared = difference.summary
            wrong.add("missing", difference.only_a, compared.only_a)
            wrong.add("surplus", difference.only_b, compared.only_b)
    if ids is not None and (counts["twice"] or counts.get("orphans")):
        for kind, table in ids.wrong(published).items():
            wrong.add(kind, table, counts.get(kind, 0))
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
    """The rows and the first ids of each kind of finding."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.tables: dict[str, DataFrame] = {}
        self.shown: dict[str, list[dict[str, Any]]] = {}

    def add(self, kind: str, rows: DataFrame, count: int) -> None:
        if count:
            columns = [quoted(name) for name in self._names]
            named = rows.select(*columns)
            if not any(word in field.dataType.simpleString() for field in named.schema for word in UNSORTED):
                named = named.distinct().orderBy(*columns)
            self.tables[kind] = rows
            self.shown[kind] = sampled(named, self._names, SHOWN_MAX)


class Ids:
    """The ids of judged rows, each with its number of firsts and repeats.

    ``strong``: by SHA-256; else by the fast hashes described above.
    """

    def __init__(self, judged: DataFrame, identity: Identity, *, strong: bool = True) -> None:
        self._identity = identity
        self._strong = strong
        # Shuffled without partial aggregation: few ids occur twice, so it would hardly reduce the rows.
        rows = self._marked(judged, []).repartition(*_ID)
        soon = F.greatest(F.count_if(_is(_FIRST)) - 1, F.lit(0))
        if identity.time is not None:
            # An id that has expired may be first again; a first sooner than that after the previous one is an error.
            before = F.lag(_AT).over(Window.partitionBy(*_ID, _KIND).orderBy(_AT))
            rows = rows.withColumn(_SOON, _is(_FIRST) & (F.col(_AT) - before < identity.expiry_ms))
            soon = F.count_if(_SOON)
        self._grouped = rows.groupBy(*_ID).agg(
            *(F.count_if(_is(kind)).alias(kind) for kind in (_FIRST, _REPEAT, _RULED)),
            soon.alias(_SOON),
        )

    def _marked(self, judged: DataFrame, names: Iterable[str]) -> DataFrame:
        """Firsts and repeats with these columns, their kind, the hash of their id in two halves, and their time."""
        identity = self._identity
        cells = [(F.col(quoted(name)), judged.schema[name].dataType) for name in identity.names]
        cells += [(cell, T.LongType()) for cell in identity.number(judged)]
        if self._strong:
            whole = F.unhex(row_id(row_form(cells)))
            halves = [F.substring(whole, 1, 16), F.substring(whole, 17, 16)]
        else:
            values = [*null_masks(cell for cell, _ in cells), *(hashable(*cell) for cell in cells)]
            high, low = (F.hash(F.lit(i), *values).cast("long") for i in range(2))
            halves = [F.xxhash64(F.lit(2), *values), F.shiftleft(high, 32).bitwiseXOR(low)]
        repeat = F.when(F.col(REASON).isin(*BY_RULE), _KINDS[_RULED]).otherwise(_KINDS[_REPEAT])
        kind = F.when(F.col(VERDICT) == "FIRST", _KINDS[_FIRST]).otherwise(repeat).cast("byte")  # shuffled: no text
        return judged.where(F.col(VERDICT).isin("FIRST", "REPEAT")).select(
            *(F.col(quoted(name)) for name in names),
            kind.alias(_KIND),
            *(half.alias(name) for half, name in zip(halves, _ID, strict=True)),
            *([] if identity.time is None else [milliseconds(judged, identity.time).alias(_AT)]),
        )

    def counts(self) -> dict[str, int]:
        """The numbers of ids, of ids that count twice or again, of repeats, and of repeats without a first; runs one
        job.
        """
        alone = F.col(_FIRST) == 0
        cells = {
            "ids": F.count_if(~alone),
            "twice": F.count_if(F.col(_SOON) > 0),
            "again": F.sum(F.greatest(F.col(_FIRST) - 1, F.lit(0)) - F.col(_SOON)),
            "repeats": F.sum(F.col(_REPEAT) + F.col(_RULED)),
            "orphans": F.sum(F.when(alone, F.col(_REPEAT))),
            "orphans_by_rule": F.sum(F.when(alone, F.col(_RULED))),
        }
        row = self._grouped.agg(*(cell.alias(name) for name, cell in cells.items())).collect()[0]
        return {name: int(row[name] or 0) for name in cells}

    def wrong(self, judged: DataFrame) -> Mapping[str, DataFrame]:
        """The whole rows of firsts whose id counts twice, and of repeats without a first."""
        rows = self._marked(judged, judged.columns)
        twice, alone = F.col(_SOON) > 0, (F.col(_FIRST) == 0) & (F.col(_REPEAT) > 0)
        kinds = {"twice": (_is(_FIRST), twice), "orphans": (_is(_REPEAT), alone)}
        return {
            kind: rows.where(which).join(self._grouped.where(ids).select(*_ID), _ID, "left_semi").drop(*_ID, _AT, _KIND)
            for kind, (which, ids) in kinds.items()
        }


def _is(kind: str) -> Column:
    return F.col(_KIND) == _KINDS[kind]


def comparable(df: DataFrame) -> list[str]:
    """All columns except those of a type that cannot be compared."""
    names = []
    for name in df.columns:
        try:
            whole_row_id(df, [name])
        except Misuse:
            continue
        names.append(name)
    return names


def audit_run(
    source: DataFrame, output: Place | DataFrame, judging: Engine, sent: Fingerprint | None = None, *,
    goes_on: bool = False,
) -> Audit:  # fmt: skip
    """Compare the messages of a source with the folder or table that a run published. ``goes_on``: firsts may be in
    earlier versions.
    """
    rows = _published(source.sparkSession, output) if isinstance(output, Place) else output
    if rows is None:
        rows = source.limit(0).withColumns({name: F.lit("") for name in (VERDICT, REASON)})
    identity = judging.fitted(source).subject(source).identity
    return audit(source, rows, identity, columns=comparable(source), sent=sent, goes_on=goes_on)


def published(
    spark: SparkSession, output: Place | str, folder: str | None = None, *, at: str | None = None
) -> DataFrame:
    """All rows that a run or the batches of a stream published, without partial batches or dead attempts.

    ``folder``: only this one, such as "firsts"; None: the rows of all verdicts. ``at``: add a column of this name with
    the file of each row. `Misuse` if there are no files.
    """
    place = Place(spark, output) if isinstance(output, str) else output
    rows = _published(spark, place, at, None if folder is None else [folder])
    if rows is None:
        raise Misuse(f"{place.shown} holds no rows of a run", path=place.shown)
    return rows


def _published(
    spark: SparkSession, output: Place, at: str | None = None, folders: Sequence[str] | None = None
) -> DataFrame | None:
    """The rows of all existing folders; None if they hold no file."""
    names = [MESSAGES, *FOLDERS.values()] if folders is None else folders
    if not output.renames:
        paths = files_of(output, names, batches=BATCHES, whole=TALLY)
    elif batches := [output / BATCHES / name for name in (output / BATCHES).names()]:
        # A batch has the folders of its stream's strategy; a damaged batch may lack some.
        paths = [str(output / BATCHES / "*" / name) for name in names if any((b / name).exists() for b in batches)]
    else:
        paths = [str(output / name) for name in names if (output / name).exists()]
    try:
        rows = parquet(spark, paths, at=at) if paths else None
        if rows is not None and rows.schema:  # Spark Connect reads the files only now
            return rows
    except AnalysisException as error:
        if NO_FILES not in str(error):
            raise
    return None


def books(spark: SparkSession, output: Place) -> Tally:
    """The books of a run or stream in its output."""
    if (output / STREAM).exists():
        strategy = (output / STREAM).read_json()["strategy"]
        return open_sink(spark, str(output), format="parquet", strategy=strategy).total()
    if not (output / RUN).exists():
        raise Misuse(f"{output.shown} is not a complete run: it holds no {RUN}", path=output.shown)
    return Tally.from_dict((output / RUN).read_json()["tally"])


def books_differ(run: Tally, spark: SparkSession, output: Place | DataFrame) -> list[str]:
    """The differences between the books of a run and its rows, and rows in the folder of another verdict; one line
    each.
    """
    folder = F.regexp_replace(F.element_at(F.split(FILE_AT, "/"), -2), "^_onefold_folder=", "")
    no_folder = F.lit("//")  # of a table
    rows = _published(spark, output, FILE_AT) if isinstance(output, Place) else output.withColumn(FILE_AT, no_folder)
    counts = [] if rows is None else rows.groupBy(VERDICT, REASON, folder.alias("_onefold_folder")).count().collect()
    booked, counted, lines = {str(answer): count for answer, count in run}, Counter[str](), []
    for verdict, reason, name, count in counts:
        counted[f"{verdict} {reason}"] += count
        if name in FOLDERS.values() and name != FOLDERS.get(verdict):
            lines.append(f"{count:,} rows that are {verdict} lie in {name}/")
    return lines + [
        f"the books say {booked.get(answer, 0):,} {answer}, the rows {counted[answer]:,}"
        for answer in {**booked, **counted}
        if booked.get(answer, 0) != counted[answer]
    ]


@contextmanager
def kinds_folder(path: Place) -> Iterator[Signed]:
    """A folder for findings: removes those of an earlier audit; refused if the folder holds anything else."""
    with signed(path, "audit", [STAGING]) as folder:
        for name in (*sorted(KINDS), STAGING):
            folder.remove(name)
        yield folder


def keep_in(folder: Signed, audited: Audit) -> None:
    """Replace the findings in a folder by those of this audit, one subfolder per kind."""
    staging = folder.place / STAGING
    keep(audited, staging)
    folder.replace({kind: staging / kind for kind in audited.tables}, KINDS)
    folder.remove(STAGING)


def keep(audited: Audit, path: Place) -> None:
    """Write all rows of the findings to a folder, one subfolder per kind."""
    for kind, rows in audited.tables.items():
        (path / kind).write(rows)
