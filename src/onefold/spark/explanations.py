"""Why a message counted or did not: every copy of it in the output of a run, and whether it is known to be missing.

The query is for a message, a chain, a device or a producer: words that each equal one of the columns that identify a
message in this run, or values of named columns. A row must match all of them. The matching missing ranges are listed
too: those of the chain, or those that contain the number.

Cost: three passes over the columns of the query, of which Spark reads only row groups that may match; only shown rows
are read in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark import columns
from onefold.spark.audits import FILE_AT, published
from onefold.spark.columns import TEXT, TIME, WHOLE, in_order, milliseconds, moment, quoted, told, whole, written_moment
from onefold.spark.engine import SOURCES, Engine, Subject, usual_engines
from onefold.spark.files import Place
from onefold.spark.gaps import LOWER, UPPER
from onefold.spark.host import REASON, VERDICT
from onefold.spark.publish import GAPS, RUN
from onefold.spark.sinks.parquet import BATCHES, STREAM

BAR: Final = "|"
"""Between the parts of a number that has two, as reports write it: 1700000000000|3."""
WORDS_MAX: Final = 50
CELL_CHARS_MAX: Final = 200
"""How much of a text is shown, because a payload may be a megabyte."""
LIMIT: Final = 100


def explain(
    spark: SparkSession, path: str, words: Sequence[str] = (), *, pairs: Mapping[str, str] | None = None,
    judging: Engine | None = None, limit: int = LIMIT,
) -> dict[str, Any]:  # fmt: skip
    """Everything in the output of a run or a stream that matches the words; the first ``limit`` rows and ranges.

        explain(spark, "out", ["7c9e6679"])

    ``judging``: the engine of the run. Without it the usual columns are assumed if the rows have them, else any column
    may match a word.
    """
    output = Place(spark, path)
    if not (output / RUN).exists() and not (output / STREAM).exists():
        raise Misuse(f"{output.shown} is not a complete run: it holds no {RUN} or {STREAM}", path=output.shown)
    rows = published(spark, output, at=FILE_AT)
    if VERDICT not in rows.columns:
        raise Misuse(f'{output.shown} was published with strategy "none": its rows have no verdict', path=output.shown)
    engine, subject = naming(rows, judging)
    target = read_target(rows, subject, words, pairs or {})
    matching = rows.where(target.condition(rows))
    counts = sorted(tuple(row) for row in matching.groupBy(VERDICT, REASON).count().collect())
    total = sum(count for *_, count in counts)
    ranges, missing = _missing(output / GAPS, spark, target, limit)
    return {
        "run": output.shown,
        "engine": engine,
        "asked": {"words": list(target.words), "columns": dict(target.pairs)},
        "columns": [*subject.key, *subject.message],
        "rows": total,
        "counts": [dict(zip(("verdict", "reason", "count"), line, strict=True)) for line in counts],
        "shown": first_rows(matching, subject, limit) if total else [],
        "missing_ranges": ranges,
        "missing_ranges_shown": missing,
    }


def naming(rows: DataFrame, judging: Engine | None) -> tuple[str | None, Subject]:
    """The engine's name and the roles of the columns: of ``judging``, else of the first engine whose usual columns are
    all there; else every plain column may identify a message.
    """
    if judging is None:
        usual = (each for each in usual_engines() if {name for _, name in each.columns.named} <= set(rows.columns))
        judging = next(usual, None)
    if judging is None:
        plain = [field.name for field in rows.schema if isinstance(field.dataType, T.AtomicType)]
        subject = Subject(message=tuple(name for name in plain if name not in (VERDICT, REASON, FILE_AT)))
    else:
        subject = judging.fitted(rows).subject(rows)
    source = subject.source or next((name for name in SOURCES if name in rows.columns), None)
    return None if judging is None else judging.name, replace(subject, source=source)


@dataclass(frozen=True, slots=True)
class ExplainTarget:
    """Words that must each equal an identifying column, and values that named columns must have."""

    subject: Subject
    words: tuple[str, ...]
    pairs: Mapping[str, str]

    def condition(self, rows: DataFrame) -> Column:
        message = self.subject.message
        conditions = [_equals(rows, name, value) for name, value in self.pairs.items()]
        for word in self.words:
            cells = [_equals(rows, name, word) for name in (*self.subject.key, *message)]
            parts = word.split(BAR)
            if len(parts) == len(message) > 1:
                cells.append(_all(_equals(rows, *pair) for pair in zip(message, parts, strict=True)))
            conditions.append(_any(cells))
        return _all(conditions)

    def in_ranges(self, gaps: DataFrame) -> Column | None:
        """The condition on missing ranges: the key matches, and the number lies inside. None: no range can match."""
        key, message = self.subject.key, self.subject.message
        number = tuple(name for name in message if name in self.pairs)
        if number and (number[0] != self.subject.number or number != message[: len(number)]):
            return None
        if any(name not in (*key, *number) for name in self.pairs):
            return None
        is_sequenced = len(message) > 1
        conditions = [_equals(gaps, name, value) for name, value in self.pairs.items() if name in key]
        if number:
            conditions.append(_inside(gaps, BAR.join(self.pairs[name] for name in number), is_sequenced))
        for word in self.words:
            keys = [_equals(gaps, name, word) for name in key if name in gaps.columns]
            conditions.append(_any((*keys, _inside(gaps, word, is_sequenced))))
        return _all(conditions)


def read_target(rows: DataFrame, subject: Subject, words: Sequence[str], pairs: Mapping[str, str]) -> ExplainTarget:
    """Parse the query; a word COLUMN=VALUE with an existing column is a value of that column."""
    refuse_nothing(words, pairs, [*subject.key, *subject.message])
    named, rest = dict(pairs), []
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name in rows.columns:
            named[name] = value
        else:
            rest.append(word)
    for name in named:
        if name not in rows.columns:
            columns = ", ".join(each for each in rows.columns if each != FILE_AT)
            raise Misuse(f"no column {name!r}: the columns are {columns}", column=name)
    return ExplainTarget(subject, tuple(rest), named)


def refuse_nothing(words: Sequence[str], pairs: Mapping[str, str], columns: Sequence[str]) -> None:
    if not words and not pairs:
        raise Misuse(f"nothing is asked for: give a value of {', '.join(columns)}")
    if len(words) + len(pairs) > WORDS_MAX:
        raise Misuse(f"{len(words) + len(pairs)} words are given, at most {WORDS_MAX} are allowed")


def _equals(df: DataFrame, name: str, value: str) -> Column:
    """Whether a column equals a value given as text; whole numbers are compared so that Spark can skip row groups."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    number = _whole(value)
    if isinstance(kind, WHOLE):
        return F.lit(False) if number is None else column == F.lit(number)
    if isinstance(kind, TEXT):
        return column == value
    if isinstance(kind, TIME):
        own, wanted = moment(df, name), written_moment(F.lit(value))
        return _all(a == b for a, b in zip(own, wanted, strict=True) if a is not None and b is not None)
    if isinstance(kind, T.BinaryType):
        return F.hex(column) == value.upper()
    return column.cast("string") == value


def _inside(gaps: DataFrame, value: str, is_sequenced: bool) -> Column:
    """Whether a number lies in the ranges: above the lower end, up to the upper end.

    ``is_sequenced``: a number has a sequence besides its time, so that a time alone is half a number.
    """
    names = [(low, up) for low, up in zip(LOWER, UPPER, strict=True) if up in gaps.columns]
    first, *rest = value.split(BAR)
    numbers = [_whole(part) for part in rest]
    if None in numbers or len(rest) >= len(names):
        return F.lit(False)
    at = [part for part in written_moment(F.lit(first)) if part is not None]
    if _whole(first) is not None or rest or is_sequenced or len(names) == 1:
        at = [at[0], *(F.lit(number) for number in numbers)]
    lower, upper, number = (
        F.struct(*(cell.cast("long").alias(f"c{i}") for i, cell in enumerate(cells[: len(at)])))
        for cells in (_ends(gaps, [low for low, _ in names]), _ends(gaps, [up for _, up in names]), at)
    )
    open_below = milliseconds(gaps, names[0][0]).isNull()
    # Half a number may lie in a range that is within its millisecond.
    inside = open_below | (number > lower) | ((number == lower) & (lower == upper))
    return at[0].isNotNull() & (number <= upper) & inside


def _ends(gaps: DataFrame, names: Sequence[str]) -> list[Column]:
    """The end of each range in whole numbers: for a time, milliseconds and the part below them."""
    if len(names) == 1:
        return [whole(gaps, names[0])]
    time, sequence = moment(gaps, names[0]), whole(gaps, names[1])
    return [time.ms, sequence if time.below is None else sequence + time.below]


def _whole(text: str) -> int | None:
    """The number of a text; None if it is not a number that a long can hold.

    >>> _whole("-5"), _whole("5.0"), _whole("9" * 30)
    (-5, None, None)
    """
    digits = text.removeprefix("-")
    number = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _all(parts: Iterable[Column]) -> Column:
    return reduce(and_, parts, F.lit(True))


def _any(parts: Iterable[Column]) -> Column:
    return reduce(or_, parts, F.lit(False))


def first_rows(matching: DataFrame, subject: Subject, limit: int) -> list[dict[str, Any]]:
    """The first rows, with the copies of a message side by side, in the order of their arrival."""
    key, message, arrival, source = subject.key, subject.message, subject.order, subject.source
    named = {*key, *message, arrival, source, VERDICT, REASON}
    cells = [_cell(matching, name, is_named=name in named) for name in matching.columns if name != FILE_AT]
    order = [_order(matching, name) for name in (*key, *message, *((arrival,) if arrival else ()))]
    # Sorted by the values, before these become text.
    first = matching.orderBy(*order, VERDICT, REASON).limit(limit)
    lines = []
    for row, at in first.select(F.struct(*cells).alias("row"), FILE_AT).collect():
        values = {name: _plain(value) for name, value in row.asDict().items()}
        line = {
            "key": {name: values[name] for name in key},
            "message": {name: values[name] for name in message},
            "arrival": values[arrival] if arrival else None,
            "source": values[source] if source else None,
            "verdict": values[VERDICT],
            "reason": values[REASON],
            "found_in": _folder(at),
            "more": {name: value for name, value in values.items() if name not in named and value is not None},
        }
        lines.append(line)
    return lines


def _folder(file: str) -> str:
    """The folder of a file in the output of the run.

    >>> _folder("file:///out/repeats/part-0.parquet")
    'repeats'
    >>> _folder("file:///out/batches/000000000012/firsts/part-0.parquet")
    'batches/000000000012/firsts'
    """
    parts = file.split("/")
    return "/".join(parts[-4:-1] if len(parts) > 3 and parts[-4] == BATCHES else parts[-2:-1])


def _cell(df: DataFrame, name: str, *, is_named: bool) -> Column:
    """A value to show: unchanged if it identifies a message and its type is short, else as text that is cut."""
    kind = df.schema[name].dataType
    if is_named and isinstance(kind, T.AtomicType) and not isinstance(kind, T.StringType | T.BinaryType):
        return told(df, name)
    return columns.cut_text(df, name, CELL_CHARS_MAX)


def _order(df: DataFrame, name: str) -> Column:
    """The order of a column; numbers and times in text by their values, other text before them."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if not isinstance(kind, T.AtomicType):
        return column.cast("string")
    return F.struct(in_order(df, name), column) if isinstance(kind, T.StringType) else column


def _missing(path: Place, spark: SparkSession, target: ExplainTarget, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """How many missing ranges match, and the first of them; a stream has no list, because messages may still come."""
    gaps = path.read() if path.exists() else None
    condition = None if gaps is None else target.in_ranges(gaps)
    if gaps is None or condition is None:
        return 0, []
    ranges = gaps.where(condition)
    lines = ranges.orderBy(*(F.col(quoted(name)) for name in gaps.columns)).limit(limit + 1)
    first = lines.select(*(told(gaps, name) for name in gaps.columns)).collect()
    count = len(first) if len(first) <= limit else ranges.count()
    return count, [{name: _plain(value) for name, value in row.asDict().items()} for row in first[:limit]]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)
