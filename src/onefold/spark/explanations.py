"""Why a message counted or did not: every copy of it in the output of a run, and whether it is known to be missing.

What is asked for is a message, a chain, a device or a producer: words that each equal one of the columns that name a
message in this run, or values of named columns. A row must match all of them. Besides the rows, the missing ranges that
match are found: those of the chain, or those in which the number lies.

Cost: three passes over the columns that are asked for, of which Spark reads the row groups that can hold them; whole
rows are read of those that are shown.

Which columns name a message: who it is from, which of theirs it is, when it came, and through whom.

What is asked for, as conditions: on judged rows, and on the ranges that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.audits import published
from onefold.spark.columns import TEXT, TIME, WHOLE, in_order, milliseconds, moment, quoted, told, whole, written_moment
from onefold.spark.engine import Engine, usual_engines
from onefold.spark.files import Place
from onefold.spark.gaps import LOWER, UPPER
from onefold.spark.host import REASON, VERDICT
from onefold.spark.publish import GAPS, RUN
from onefold.spark.sinks.parquet import BATCHES, STREAM

SOURCES: Final = ("source", "station", "gateway", "receiver", "relay", "node")
"""Columns of these names say through whom a copy came, where the engine knows of no such column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectName:
    """The columns by what they say."""

    engine: str | None = None
    key: tuple[str, ...] = ()
    """Who: a chain, a producer, a device."""
    message: tuple[str, ...] = ()
    """Which of theirs: its number, its frame."""
    number: str | None = None
    """The column whose values the missing ranges are of; of two, the first."""
    arrival: str | None = None
    """The order of judgement."""
    source: str | None = None
    """Through whom a copy came."""

    @property
    def all(self) -> tuple[str, ...]:
        """What a word may equal."""
        return (*self.key, *self.message)


def naming(rows: DataFrame, judging: Engine | None) -> SubjectName:
    """As the engine reads a row; if it is not known, as rows with these columns are usually read."""
    found = _usual(rows) if judging is None else _of(judging.fitted(rows), rows)
    if found.source is not None:
        return found
    return replace(found, source=next((name for name in SOURCES if name in rows.columns), None))


def _of(judging: Engine, rows: DataFrame) -> SubjectName:
    subject = judging.subject(rows)
    return SubjectName(
        engine=judging.name,
        key=subject.key,
        message=subject.message,
        number=subject.number,
        arrival=subject.order,
        source=subject.source,
    )


def _usual(rows: DataFrame) -> SubjectName:
    """By the columns of the first engine whose usual ones are all there; else every plain column may name a message."""
    for judging in usual_engines():
        if all(name in rows.columns for _, name in judging.columns.named):
            return _of(judging, rows)
    plain = [field.name for field in rows.schema if isinstance(field.dataType, T.AtomicType)]
    return SubjectName(message=tuple(name for name in plain if name not in (VERDICT, REASON)))


BAR: Final = "|"
"""Between the parts of a number that has two, as reports write it: 1700000000000|3."""
WORDS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class ExplainTarget:
    """Words that each must equal a naming column, and values that named columns must have."""

    known: SubjectName
    words: tuple[str, ...]
    pairs: Mapping[str, str]

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, for JSON."""
        return {"words": list(self.words), "columns": dict(self.pairs)}

    def condition(self, rows: DataFrame) -> Column:
        """On judged rows."""
        words = (_any(self._named(rows, word)) for word in self.words)
        return _all((*words, *(_equals(rows, name, value) for name, value in self.pairs.items())))

    def _named(self, rows: DataFrame, word: str) -> list[Column]:
        found = [_equals(rows, name, word) for name in self.known.all]
        parts = word.split(BAR)
        if len(parts) == len(self.known.message) > 1:
            found.append(_all(_equals(rows, *pair) for pair in zip(self.known.message, parts, strict=True)))
        return found

    @property
    def _sequenced(self) -> bool:
        return len(self.known.message) > 1

    def in_ranges(self, gaps: DataFrame) -> Column | None:
        """On missing ranges: theirs is the key, and the number lies inside. None: ranges cannot be what is meant."""
        number = tuple(name for name in self.known.message if name in self.pairs)
        if number and (number[0] != self.known.number or number != self.known.message[: len(number)]):
            return None
        if any(name not in (*self.known.key, *number) for name in self.pairs):
            return None
        conditions = [_equals(gaps, name, value) for name, value in self.pairs.items() if name in self.known.key]
        conditions += [_inside(gaps, BAR.join(self.pairs[name] for name in number), self._sequenced)] if number else []
        for word in self.words:
            keys = [_equals(gaps, name, word) for name in self.known.key if name in gaps.columns]
            conditions.append(_any((*keys, _inside(gaps, word, self._sequenced))))
        return _all(conditions)


def read_wanted(rows: DataFrame, known: SubjectName, words: Sequence[str], pairs: Mapping[str, str]) -> ExplainTarget:
    """What is asked for; a word COLUMN=VALUE of a column that is there is a value of it."""
    if not words and not pairs:
        raise Misuse(f"nothing is asked for: give a value of {', '.join(known.all)}", columns=list(known.all))
    if len(words) + len(pairs) > WORDS_MAX:
        raise Misuse(f"{len(words) + len(pairs)} words are given, at most {WORDS_MAX} are looked for")
    named, rest = dict(pairs), []
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name in rows.columns:
            named[name] = value
        else:
            rest.append(word)
    for name in named:
        if name not in rows.columns:
            raise Misuse(f"no column {name!r}: the columns are {', '.join(rows.columns)}", column=name)
    return ExplainTarget(known, tuple(rest), named)


def _equals(df: DataFrame, name: str, value: str) -> Column:
    """Whether a column has this value, which was given as text; whole numbers so that Spark can skip by them."""
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


def _inside(gaps: DataFrame, value: str, sequenced: bool) -> Column:
    """Whether a number lies in the ranges: above what was seen, up to what is known to exist.

    ``sequenced``: a number has a sequence beside its time, so that a time alone is half a number.
    """
    names = [(low, up) for low, up in zip(LOWER, UPPER, strict=True) if up in gaps.columns]
    first, *rest = value.split(BAR)
    numbers = [_whole(part) for part in rest]
    if None in numbers or len(rest) >= len(names):
        return F.lit(False)
    at = [part for part in written_moment(F.lit(first)) if part is not None]
    if _whole(first) is not None or rest or sequenced or len(names) == 1:
        at = [at[0], *(F.lit(number) for number in numbers)]
    lower, upper, number = (
        F.struct(*(cell.cast("long").alias(f"c{i}") for i, cell in enumerate(cells[: len(at)])))
        for cells in (_ends(gaps, [low for low, _ in names]), _ends(gaps, [up for _, up in names]), at)
    )
    open_below = milliseconds(gaps, names[0][0]).isNull()
    # Of a range within one millisecond half a number cannot tell where it lies: it may.
    inside = open_below | (number > lower) | ((number == lower) & (lower == upper))
    return at[0].isNotNull() & (number <= upper) & inside


def _ends(gaps: DataFrame, names: Sequence[str]) -> list[Column]:
    """The end of each range in whole numbers: of a time milliseconds, and what it has below them."""
    if len(names) == 1:
        return [whole(gaps, names[0])]
    time = moment(gaps, names[0])
    sequence = whole(gaps, names[1])
    return [time.ms, sequence if time.below is None else sequence + time.below]


def _whole(text: str) -> int | None:
    """The number that a text is; None if it is none that a column could hold.

    >>> _whole("-5"), _whole("5.0"), _whole("9" * 30)
    (-5, None, None)
    """
    digits = text.removeprefix("-")
    number = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _join(how: Callable[[Column, Column], Column], parts: Iterable[Column], empty: bool) -> Column:
    return reduce(how, parts, F.lit(empty))


def _all(parts: Iterable[Column]) -> Column:
    return _join(lambda a, b: a & b, parts, True)


def _any(parts: Iterable[Column]) -> Column:
    return _join(lambda a, b: a | b, parts, False)


CELL_CHARS_MAX: Final = 200
"""How much of a text is shown; a payload may be a megabyte."""
LIMIT: Final = 100

_FILE: Final = "_onefold_file"
_ROW: Final = "_onefold_row"


def explain(
    spark: SparkSession, path: str, words: Sequence[str] = (), *, pairs: Mapping[str, str] | None = None,
    judging: Engine | None = None, limit: int = LIMIT,
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


def _shown(matching: DataFrame, known: SubjectName, limit: int) -> list[dict[str, Any]]:
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


def _told(row: Row, file: str, known: SubjectName) -> dict[str, Any]:
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


def _missing(spark: SparkSession, place: Place, wanted: ExplainTarget, limit: int) -> tuple[int, list[dict[str, Any]]]:
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
