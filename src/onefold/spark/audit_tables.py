"""``audit(source, published)``: the proof that a sink holds exactly what its source sent.

    rows    every row of the source is published once, under whatever verdict, and nothing else is: by fingerprints of
            the whole rows, and where those differ, by the rows
    ids     no id is twice among the firsts, and each repeat has its first (`audit_ids`)

The first is compared with the source itself, so it does not matter by which bug, crash or hand a row was lost. The
second looks at what was published alone.

Cost: a pass over each table; over what was published only, if the fingerprint of the source is known already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame

from onefold.errors import OnefoldError
from onefold.spark.audit_ids import Identity, Ids
from onefold.spark.audit_passing import Passing, whole_row_id
from onefold.spark.columns import quoted
from onefold.spark.diff_ranges import Fingerprint, fingerprint
from onefold.spark.diff_tables import Summary, chosen, diff, sampled, spoken
from onefold.spark.table import VERDICT

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
    wrong = Wrong(names if known is None else known.columns)
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


class Wrong:
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


def _looked_at(source: DataFrame, published: DataFrame, names: Sequence[str], wrong: Wrong) -> Summary:
    """Compare source and sink row by row where they differ."""
    # By SHA-256: what a source holds, somebody else may have chosen.
    with diff(source, published, columns=names, hash="sha256") as found:
        wrong.add("missing", found.only_a, found.summary.only_a)
        wrong.add("surplus", found.only_b, found.summary.only_b)
        return found.summary
