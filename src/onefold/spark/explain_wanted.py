"""What is asked for, as conditions: on judged rows, and on the ranges that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.columns import TEXT, TIME, WHOLE, milliseconds, moment, quoted, whole, written_moment
from onefold.spark.explain_naming import Naming
from onefold.spark.gaps import LOWER, UPPER

BAR: Final = "|"
"""Between the parts of a number that has two, as reports write it: 1700000000000|3."""
WORDS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Wanted:
    """Words that each must equal a naming column, and values that named columns must have."""

    known: Naming
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


def read_wanted(rows: DataFrame, known: Naming, words: Sequence[str], pairs: Mapping[str, str]) -> Wanted:
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
    return Wanted(known, tuple(rest), named)


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
