"""Keys: those with the most that does not count, and of those that miss something a strip of what was seen.

A range that is missing was *forgotten* if a message from within it, or from above it, was answered UNSURE forgotten:
what the engine forgets is the lowest, all of it up to a mark.

Cost: one job. Rows are counted by key before they are shuffled; of the missing ranges, which are far fewer, each key
keeps its widest. Then every task passes on the worst of its keys.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from onefold.spark.columns import milliseconds, quoted
from onefold.spark.figures_subject import VERDICTS, Subject, cell, has
from onefold.spark.table import REASON

KEY_CHARS_MAX: Final = 60
KEY_COLUMNS_MAX: Final = 8
RANGES_MAX: Final = 6_000
"""Of all strips together: what a document holds beside the rest."""

_KEY = "_onefold_key"
_SEEN_FROM, _SEEN_TO, _FORGOTTEN = "_onefold_from", "_onefold_to", "_onefold_forgotten"
_LOWER, _UPPER, _WIDTH = "_onefold_lower", "_onefold_upper", "_onefold_width"
_RANGES, _LOST, _SHOWN, _SHARE = "_onefold_ranges", "_onefold_lost", "_onefold_shown", "_onefold_share"


def keys_and_strips(
    rows: DataFrame, gaps: DataFrame, subject: Subject, *, keys_max: int, strips_max: int, ranges_max: int
) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
    """The keys with the most that is not first; the keys that miss most, if any does. No columns name a key: None."""
    if not subject.key:
        return None, None
    names = [f"{_KEY}{i}" for i in range(len(subject.key))]
    told = _counted(rows, subject, names)
    if subject.number is None:
        told = told.withColumns({name: F.lit(None).cast("long") for name in (_RANGES, _LOST, _SHOWN)})
    else:
        told = told.join(_gathered(gaps, subject, names, ranges_max), names, "left")
    told = told.withColumn(_SHARE, _share(subject))
    key = F.struct(*(cell(told, name, KEY_CHARS_MAX) for name in names[:KEY_COLUMNS_MAX])).alias(_KEY)
    every = F.struct(key, *VERDICTS, _SEEN_FROM, _SEEN_TO, _FORGOTTEN, _RANGES, _SHOWN, _SHARE)
    rest = F.col("REPEAT") + F.col("UNSURE") + F.col("REJECT")
    # Of equal ones the key decides, so that two runs tell the same.
    worst = F.max_by(F.when(rest > 0, every), F.when(rest > 0, F.struct(rest, *names)), keys_max)
    missed = F.col(_RANGES) > 0
    strips = F.max_by(F.when(missed, every), F.when(missed, F.struct(_SHARE, _RANGES, *names)), strips_max)
    lines, drawn = told.agg(worst, strips).collect()[0]
    return [_line(row, subject) for row in lines or []], _strips(drawn or [], subject)


def _counted(rows: DataFrame, subject: Subject, names: list[str]) -> DataFrame:
    """The keys with their four counts, where their firsts begin and end, and up to where they were forgotten."""
    number = F.lit(None).cast("long") if subject.number is None else milliseconds(rows, subject.number)
    by_key = rows.groupBy(*(F.col(quoted(name)).alias(alias) for name, alias in zip(subject.key, names, strict=True)))
    return by_key.agg(
        *(F.count_if(has(verdict)).alias(verdict) for verdict in VERDICTS),
        F.min(F.when(has("FIRST"), number)).alias(_SEEN_FROM),
        F.max(F.when(has("FIRST"), number)).alias(_SEEN_TO),
        F.max(F.when(F.col(REASON) == "forgotten", number)).alias(_FORGOTTEN),
    )


def _gathered(gaps: DataFrame, subject: Subject, names: list[str], ranges_max: int) -> DataFrame:
    """The keys that miss something: how many ranges, how much of it, and the widest of them."""
    key = [F.col(quoted(name)).alias(alias) for name, alias in zip(subject.key, names, strict=True)]
    lower, upper = milliseconds(gaps, subject.lower), milliseconds(gaps, subject.upper)
    # Before all that was seen something is missing, but only who counts from a known number knows how much.
    start = upper if subject.least is None else F.lit(subject.least - 1).cast("long")
    ranges = gaps.select(
        *key, lower.alias(_LOWER), upper.alias(_UPPER), (upper - F.coalesce(lower, start)).alias(_WIDTH)
    )
    # The width alone would not tell which of two equal ones is shown.
    widest = F.max_by(F.struct(_WIDTH, _LOWER, _UPPER), F.struct(_WIDTH, _UPPER), ranges_max)
    return ranges.groupBy(*names).agg(
        F.count(F.lit(1)).alias(_RANGES), F.sum(_WIDTH).alias(_LOST), widest.alias(_SHOWN)
    )


def _share(subject: Subject) -> Column:
    """How much of a key is missing: of its time, or of its messages where they are counted without holes."""
    counted = F.col(_LOST) + F.col("FIRST")
    every = F.col(_SEEN_TO) - F.col(_SEEN_FROM) if subject.number_is_time else counted
    return F.coalesce(F.least(F.try_divide(F.col(_LOST), every), F.lit(1.0)), F.lit(0.0))


def _line(row: Row, subject: Subject) -> dict[str, Any]:
    return {"key": _named(row, subject), "counts": [row[verdict] for verdict in VERDICTS]}


def _named(row: Row, subject: Subject) -> dict[str, Any]:
    return dict(zip(subject.key, row[_KEY], strict=False))  # of very many columns the first


def _strips(rows: list[Row], subject: Subject) -> dict[str, Any] | None:
    if not rows:
        return None
    total = sum(len(row[_SHOWN]) for row in rows)
    most = total if total <= RANGES_MAX else RANGES_MAX // len(rows)
    told = [_strip(row, subject, most) for row in rows]
    return {"column": subject.number, "time": subject.number_is_time, "rows": told}


def _strip(row: Row, subject: Subject, most: int) -> dict[str, Any]:
    widest = sorted(row[_SHOWN], key=lambda found: -found[_WIDTH])[:most]
    shown = sorted(((found[_LOWER], found[_UPPER]) for found in widest), key=lambda ends: ends[1])
    before = [upper if subject.least is None else subject.least for lower, upper in shown if lower is None]
    return {
        "key": _named(row, subject),
        "from": min([row[_SEEN_FROM], *before]),
        "to": max([row[_SEEN_TO], *(upper for _, upper in shown)]),
        "ranges": row[_RANGES],
        "shown": [[lower, upper, _kind(lower, row[_FORGOTTEN])] for lower, upper in shown],
        "missing": round(row[_SHARE], 4),
    }


def _kind(lower: int | None, forgotten: int | None) -> str:
    """Of a range: its memory was given up, if a message from above its lower end was answered so."""
    return "missing" if forgotten is None or (lower is not None and lower >= forgotten) else "forgotten"
