"""Why a message counted or did not: every copy of it in the output of a run, and whether it is known to be missing.

What is asked for is a message, a chain, a device or a producer: words that each equal one of the columns that name a
message in this run, or values of named columns. A row must match all of them. Besides the rows, the missing ranges that
match are found: those of the chain, or those in which the number lies.

Cost: three passes over the columns that are asked for, of which Spark reads the row groups that can hold them; whole
rows are read of those that are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.audit_runs import published
from onefold.spark.columns import in_order, quoted, told
from onefold.spark.explain_naming import Naming, naming
from onefold.spark.explain_wanted import Wanted, read_wanted
from onefold.spark.judging import Judging
from onefold.spark.place import Place
from onefold.spark.publish import GAPS, RUN
from onefold.spark.sinks.parquet import BATCHES, STREAM
from onefold.spark.table import REASON, VERDICT

CELL_CHARS_MAX: Final = 200
"""How much of a text is shown; a payload may be a megabyte."""
LIMIT: Final = 100

_FILE: Final = "_onefold_file"
_ROW: Final = "_onefold_row"


def explain(
    spark: SparkSession, path: str, words: Sequence[str] = (), *, pairs: Mapping[str, str] | None = None,
    judging: Judging | None = None, limit: int = LIMIT,
) -> dict[str, Any]:  # fmt: skip
    """All that the output of a run or a stream says of what the words name; the first ``limit`` rows and ranges.

    ``judging``: by which columns the run was judged. Without it they are taken for the usual ones if the rows have
    them, else any column may match a word.
    """
    place = Place(spark, path)
    if not (place / RUN).exists() and not (place / STREAM).exists():
        raise Misuse(f"{place.shown} is not a complete run: it holds no {RUN} or {STREAM}", path=place.shown)
    rows = published(spark, place)
    if VERDICT not in rows.columns:
        raise Misuse(f'{place.shown} was published with strategy "none": its rows have no verdict', path=place.shown)
    known = naming(rows, judging)
    wanted = read_wanted(rows, known, words, pairs or {})
    matching = rows.where(wanted.condition(rows))
    counts = sorted(tuple(row) for row in matching.groupBy(VERDICT, REASON).count().collect())
    total = sum(count for *_, count in counts)
    ranges, missing = _missing(spark, place, wanted, limit)
    return {
        "run": place.shown,
        "engine": known.engine,
        "asked": wanted.asked,
        "columns": list(known.all),
        "rows": total,
        "counts": [dict(zip(("verdict", "reason", "count"), line, strict=True)) for line in counts],
        "shown": _shown(matching, known, limit) if total else [],
        "missing_ranges": ranges,
        "missing_ranges_shown": missing,
    }


def _shown(matching: DataFrame, known: Naming, limit: int) -> list[dict[str, Any]]:
    """The first rows, copies of a message side by side and in the order of their arrival."""
    named = {*known.all, VERDICT, REASON, *(name for name in (known.arrival, known.source) if name)}
    cells = [_cell(matching, name) if name in named else _text(matching, name) for name in matching.columns]
    file = matching.metadataColumn("_metadata")["file_path"]
    order = [_order(matching, name) for name in (*known.key, *known.message)]
    order += [_order(matching, known.arrival)] if known.arrival else []
    # Sorted before it is cut: the order is that of the values, not of their texts.
    first = matching.orderBy(*order, VERDICT, REASON).limit(limit)
    found = first.select(F.struct(*cells).alias(_ROW), file.alias(_FILE)).collect()
    return [_told(row[_ROW], row[_FILE], known) for row in found]


def _told(row: Row, file: str, known: Naming) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in row.asDict().items()}
    told = {*known.all, known.arrival, known.source, VERDICT, REASON}
    return {
        "key": {name: values[name] for name in known.key},
        "message": {name: values[name] for name in known.message},
        "arrival": values[known.arrival] if known.arrival else None,
        "source": values[known.source] if known.source else None,
        "verdict": values[VERDICT],
        "reason": values[REASON],
        "found_in": _folder(file),
        "more": {name: value for name, value in values.items() if name not in told and value is not None},
    }


def _folder(file: str) -> str:
    """In which folder of the run a file lies.

    >>> _folder("file:///out/repeats/part-0.parquet")
    'repeats'
    >>> _folder("file:///out/batches/000000000012/firsts/part-0.parquet")
    'batches/000000000012/firsts'
    """
    parts = file.split("/")
    return "/".join(parts[-4:-1] if len(parts) > 3 and parts[-4] == BATCHES else parts[-2:-1])


def _missing(spark: SparkSession, place: Place, wanted: Wanted, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """The missing ranges that match, if the run has a list of them: a stream has none, for what is missing may come."""
    if not (place / GAPS).exists():
        return 0, []
    gaps = spark.read.parquet(str(place / GAPS))
    condition = wanted.in_ranges(gaps)
    if condition is None:
        return 0, []
    found = gaps.where(condition)
    lines = found.orderBy(*(F.col(quoted(name)) for name in gaps.columns)).limit(limit + 1)
    first = lines.select(*(told(gaps, name) for name in gaps.columns)).collect()
    count = len(first) if len(first) <= limit else found.count()
    return count, [{name: _plain(value) for name, value in row.asDict().items()} for row in first[:limit]]


def _cell(df: DataFrame, name: str) -> Column:
    """A value as it is, if it is short by its type."""
    kind = df.schema[name].dataType
    short = isinstance(kind, T.AtomicType) and not isinstance(kind, T.StringType | T.BinaryType)
    return told(df, name) if short else _text(df, name)


def _text(df: DataFrame, name: str) -> Column:
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    text = F.lower(F.hex(F.substring(column, 1, CELL_CHARS_MAX))) if isinstance(kind, T.BinaryType) else None
    return F.left(column.cast("string") if text is None else text, F.lit(CELL_CHARS_MAX)).alias(name)


def _order(df: DataFrame, name: str) -> Column:
    """Numbers and times that are text in order of what they say, what says none before them."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if not isinstance(kind, T.AtomicType):
        return column.cast("string")
    return F.struct(in_order(df, name), column) if isinstance(kind, T.StringType) else column


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return value if isinstance(value, str | int | float | None) else str(value)
