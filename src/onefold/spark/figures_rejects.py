"""Some of the rows that were refused, of each reason a few, as text.

Which rows: those with the lowest hash of key and number, so the same ones in every run, and not all from one key.
Cost: one job; each task passes on no more than are asked for.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from onefold.spark.columns import quoted
from onefold.spark.diff_forms import hashable
from onefold.spark.figures_subject import Subject, cell, has
from onefold.spark.table import REASON, VERDICT
from onefold.tally import Tally
from onefold.verdict import Verdict

COLUMNS_MAX: Final = 40
CELL_CHARS_MAX: Final = 120

_PLACE, _HASH, _ROW = "_onefold_place", "_onefold_hash", "_onefold_row"


def reject_samples(rows: DataFrame, subject: Subject, tally: Tally, *, samples_max: int) -> list[dict[str, Any]]:
    """Each reason to reject with its count and some rows, the most frequent first."""
    counts = {answer.reason: count for answer, count in tally if answer.verdict is Verdict.REJECT and count}
    found = _samples(rows, subject, samples_max) if counts and samples_max else {}
    often = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [{"reason": reason, "count": counts[reason], "rows": found.get(reason, [])} for reason in often]


def _samples(rows: DataFrame, subject: Subject, samples_max: int) -> dict[str, list[dict[str, Any]]]:
    refused = rows.where(has("REJECT"))
    by = [hashable(F.col(quoted(name)), rows.schema[name].dataType) for name in subject.columns]
    shown = F.struct(*(cell(rows, name, CELL_CHARS_MAX) for name in _columns(rows, subject)))
    narrow = refused.select(REASON, F.xxhash64(F.lit(0), *by).alias(_HASH), shown.alias(_ROW))
    place = F.row_number().over(Window.partitionBy(REASON).orderBy(_HASH))
    some = narrow.withColumn(_PLACE, place).where(F.col(_PLACE) <= samples_max)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(some.collect(), key=lambda row: row[_PLACE]):
        found.setdefault(row[REASON], []).append(_texts(row[_ROW].asDict()))
    return found


def _columns(rows: DataFrame, subject: Subject) -> list[str]:
    """Those that a message is judged by, and as many of the others as there is room for; in their own order."""
    own = [name for name in rows.columns if name not in (VERDICT, REASON)]
    judged = set(subject.columns)
    chosen = sorted(own, key=lambda name: name not in judged)[:COLUMNS_MAX]
    return [name for name in own if name in chosen]


def _texts(row: dict[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in row.items()}
