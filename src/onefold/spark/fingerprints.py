"""Canonical forms of rows, their ids, and fingerprints of tables.

The *form* of a row is text; two forms are equal if and only if Spark calls the values equal. The *id* of a row is the
SHA-256 of its form:

    null            n in place of the value   in;  tn:  and so on; of a struct, an array or a map just n
    whole numbers   i12;                      of any width
    booleans        b1                        b0
    float, double   f123;  d123;              xxhash64 of the bits, which no two values share; every NaN is one value,
                                              and -0.0 is 0.0, as in Spark's own comparisons
    decimals        m1.50;                    with the digits of the column's type
    dates           D19000;                   days since 1970
    timestamps      T1700000000000000;        microseconds since 1970, whatever the time zone of the session
    text            t3:abc                    the length in bytes, then the bytes; a collation means nothing here
    binary          y00FF;                    in hex
    structs         s(fields)                 in the order of the type
    arrays          a2:(elements)
    maps            p2:(entries)              sorted: a map has no order
    other values    v5:(text)                 local times, intervals, variants: as Spark writes them

Each value begins with its type and ends at a known place (a length or a terminator), so forms can be concatenated: no
two rows share one. The form of a row is one flat concatenation with constants merged, because many small expressions
would cost more than the hash. Two tables are cast to common types first (`common`); text is never taken for a number.

A *fingerprint* sums up a set of rows by native aggregates, in the task that reads them, so that only a few numbers are
shuffled: the count; two *words* of 64 bits, XORed; and the words summed in halves of 32 bits, for what XOR cannot see:
a row that is there twice, or missing together with its copy. Fingerprints of parts can be added, so a table is summed
up range by range, by a hash of the key. Equal fingerprints mean the same rows equally often, except with a probability
of 2^-128, as in negentropy. A word is a hash of the row, made in one of two ways:

    xxhash64   over the values. Fast. Somebody who may choose texts in a table can craft two rows with the same words
    sha256     over the id; four times the work

Sums are linear: somebody who may choose very many rows can make two sets agree in either way.

A run compares what it read with what it published by xxhash64, which detects bugs, crashes and disk errors. Crafting
two rows with equal words gains nothing there: the run would also have to write one of them in place of the other.
Where two tables have different owners, as in ``onefold audit``, it is SHA-256.

`Passing` and `Counts` observe a table while a job reads it for another purpose, and cost no pass of their own. Their
figures are those of the first job that reads the table to its end, and reading them waits for it. A stage that Spark
runs twice is observed twice: so figures that agree are right, and figures that do not must be checked. If Spark
optimises a job to an empty result, it drops the observation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from operator import add
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.columns import quoted
from onefold.spark.dialect import kinds, to_arrow, try_cast
from onefold.spark.session import believed_bytes

DIGITS: Final[Mapping[type[T.DataType], int]] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
"""Whole number types from narrow to wide, and the digits that a decimal needs for them."""
DIGITS_MAX: Final = 38
"""The widest decimal of Spark."""
MASK_BITS: Final = 31
"""Columns per bit mask of nulls."""
VARIANT: Final = kinds("VariantType")
AS_TEXT: Final = (
    *(T.TimestampNTZType, T.DayTimeIntervalType, T.YearMonthIntervalType),
    *kinds("AnyTimeType", "CalendarIntervalType"),
    *VARIANT,
)
"""Types that are compared by the text that Spark writes for their values."""

WORDS: Final = 2
HALF: Final = (1 << 32) - 1
ROW_BYTES: Final = 16 << 10
"""Input bytes per range: at 50 bytes a row, a difference makes 300 rows be read again."""
BITS_MIN, BITS_MAX = 6, 16
"""At least 64 ranges; at most 65,536, whose sums take a few megabytes in every task and in the driver."""

RANGE: Final = "_onefold_range"
_VALUE, _WORD, _COUNT = "_onefold_value{}", "_onefold_word{}", "_onefold_count"

Pieces: TypeAlias = list[str | Column]


def row_form(columns: Iterable[tuple[Column, T.DataType]]) -> Column:
    """The form of several values, concatenated: text that is never null. `Misuse` for a type without a form."""
    merged: Pieces = []
    for piece in (piece for column, kind in columns for piece in _pieces(column, kind)):
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return F.concat(*(F.lit(piece) if isinstance(piece, str) else piece for piece in merged))


def form(column: Column, kind: T.DataType) -> Column:
    return row_form([(column, kind)])


def row_id(row: Column) -> Column:
    """The id of a row's form, in hex."""
    return F.sha2(row, 256)


def whole_row_id(df: DataFrame, names: Iterable[str]) -> Column:
    return row_id(row_form((F.col(quoted(name)), df.schema[name].dataType) for name in names))


def _pieces(column: Column, kind: T.DataType) -> Pieces:
    """The parts of the form of a value, none of them null."""
    if type(kind) in DIGITS:
        return ["i", _text(column), ";"]
    if isinstance(kind, T.StringType):
        return ["t", _text(F.octet_length(column)), ":", F.coalesce(column.cast(T.StringType()), F.lit(""))]
    if isinstance(kind, T.BinaryType):
        return ["y", _text(F.hex(column)), ";"]
    if isinstance(kind, T.BooleanType):
        return [F.when(column, "b1").when(~column, "b0").otherwise("bn")]
    if isinstance(kind, T.FloatType | T.DoubleType):
        bits = F.when(column.isNotNull(), F.xxhash64(column))
        return ["f" if isinstance(kind, T.FloatType) else "d", _text(bits), ";"]
    if isinstance(kind, T.DecimalType):
        # By try_cast, which writes 0.0000001 whatever the session's settings; a cast may write 1E-7.
        return ["m", _text(try_cast(column, "string")), ";"]
    if isinstance(kind, T.DateType):
        return ["D", _text(F.unix_date(column)), ";"]
    if isinstance(kind, T.TimestampType):
        return ["T", _text(F.unix_micros(column)), ";"]
    if isinstance(kind, T.NullType):
        return ["n"]
    if isinstance(kind, AS_TEXT):
        text = F.to_json(column, {"timeZone": "UTC"}) if isinstance(kind, VARIANT) else column.cast("string")
        return ["v", _text(F.octet_length(text)), ":", F.coalesce(text, F.lit(""))]
    return [F.coalesce(_nested(column, kind), F.lit("n"))]


def _text(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("n"))


def _nested(column: Column, kind: T.DataType) -> Column:
    """The form of a struct, an array or a map; null for null."""
    if isinstance(kind, T.StructType):
        fields = [(column.getField(f.name), f.dataType) for f in kind.fields]
        return F.when(column.isNotNull(), F.concat(F.lit("s"), row_form(fields)) if fields else F.lit("s"))
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        tag, forms = "a", F.transform(column, lambda element: form(element, inner))
    elif isinstance(kind, T.MapType):
        key, value = kind.keyType, kind.valueType
        entries = F.transform(
            F.map_entries(column),
            lambda entry: row_form([(entry.getField("key"), key), (entry.getField("value"), value)]),
        )
        tag, forms = "p", F.array_sort(entries)
    else:
        raise Misuse(f"values of type {kind.simpleString()} cannot be compared: leave the column out", type=str(kind))
    return F.concat(F.lit(tag), F.size(forms).cast("string"), F.lit(":"), F.array_join(forms, ""))


def hashable(column: Column, kind: T.DataType) -> Column:
    """A value as input of Spark's hash; nested values by their form, because the hash only sees their leaves."""
    return column if isinstance(kind, T.AtomicType) and not isinstance(kind, VARIANT) else form(column, kind)


def null_masks(columns: Iterable[Column]) -> list[Column]:
    """Bit masks of the values that are null, because Spark's hash skips nulls."""
    bits = [F.when(column.isNull(), F.lit(1 << i % MASK_BITS)).otherwise(F.lit(0)) for i, column in enumerate(columns)]
    return [reduce(add, bits[i : i + MASK_BITS]) for i in range(0, len(bits), MASK_BITS)]


def row_values(df: DataFrame, names: Iterable[str]) -> list[Column]:
    """The input of xxhash64 for these columns: the masks of nulls, then the values."""
    cells = [(F.col(quoted(name)), df.schema[name].dataType) for name in names]
    # Text by its bytes, whatever the collation.
    plain = [
        (c.cast(T.StringType()), T.StringType()) if isinstance(kind, T.StringType) else (c, kind) for c, kind in cells
    ]
    return [*null_masks(cell for cell, _ in cells), *(hashable(cell, kind) for cell, kind in plain)]


def common(a: T.DataType, b: T.DataType) -> T.DataType | None:
    """The type in which values of both can be compared without loss, or None."""
    if isinstance(a, T.StructType) and isinstance(b, T.StructType):
        pairs = zip(a.fields, b.fields, strict=True) if a.names == b.names else ()
        kinds = [(field.name, common(field.dataType, other.dataType)) for field, other in pairs]
        fields = [T.StructField(name, kind) for name, kind in kinds if kind is not None]
        return T.StructType(fields) if a.names == [field.name for field in fields] == b.names else None
    if isinstance(a, T.ArrayType) and isinstance(b, T.ArrayType):
        inner = common(a.elementType, b.elementType)
        return None if inner is None else T.ArrayType(inner)
    if isinstance(a, T.MapType) and isinstance(b, T.MapType):
        key, value = common(a.keyType, b.keyType), common(a.valueType, b.valueType)
        return None if key is None or value is None else T.MapType(key, value)
    if isinstance(a, T.StringType) and isinstance(b, T.StringType):
        return T.StringType()
    if isinstance(a, T.FractionalType) and isinstance(b, T.FractionalType) and type(a) is not type(b):
        return None if T.DecimalType in (type(a), type(b)) else T.DoubleType()
    whole = list(DIGITS)
    if type(a) in DIGITS and type(b) in DIGITS:
        return whole[max(whole.index(type(a)), whole.index(type(b)))]()
    exact_a, exact_b = _exact(a), _exact(b)
    if exact_a is not None and exact_b is not None:
        scale = max(exact_a.scale, exact_b.scale)
        digits = scale + max(exact_a.precision - exact_a.scale, exact_b.precision - exact_b.scale)
        return T.DecimalType(digits, scale) if digits <= DIGITS_MAX else None
    return a if a == b else None


def _exact(kind: T.DataType) -> T.DecimalType | None:
    if isinstance(kind, T.DecimalType):
        return kind
    return T.DecimalType(DIGITS[type(kind)], 0) if type(kind) in DIGITS else None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The sum of a set of rows; sums of parts can be added."""

    count: int = 0
    xors: tuple[int, ...] = (0,) * WORDS
    sums: tuple[int, ...] = (0,) * (2 * WORDS)

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Fingerprint:
        """From the cells of `aggregates`, which are null if there were no rows."""
        count, *rest = (int(cell or 0) for cell in cells)
        return cls(count, tuple(rest[:WORDS]), tuple(rest[WORDS:]))

    def __str__(self) -> str:
        """A hash of the fingerprint, sixteen bytes in hex."""
        numbers = (self.count, *(x % (1 << 64) for x in self.xors), *self.sums)
        return sha256(b"".join(n.to_bytes(16, "little") for n in numbers)).hexdigest()[:32]


def with_words(df: DataFrame, values: Sequence[Column]) -> DataFrame:
    """The table with the words of each row, made from these values."""
    # In two steps, so that expensive values are computed once, not once per word.
    names = [_VALUE.format(i) for i in range(len(values))]
    valued = df.withColumns(dict(zip(names, values, strict=True)))
    return valued.withColumns({_WORD.format(i): F.xxhash64(F.lit(i), *names) for i in range(WORDS)}).drop(*names)


def word_names() -> list[str]:
    return [_WORD.format(i) for i in range(WORDS)]


def aggregates() -> list[Column]:
    """The aggregates over a table with words that make its fingerprint."""
    words = [F.col(name) for name in word_names()]
    halves = [half for word in words for half in (F.shiftrightunsigned(word, 32), word.bitwiseAND(F.lit(HALF)))]
    cells = [F.count(F.lit(1)), *map(F.bit_xor, words), *map(F.sum, halves)]
    return [cell.alias(f"{_COUNT}{i}") for i, cell in enumerate(cells)]


def fingerprint(df: DataFrame, values: Sequence[Column]) -> Fingerprint:
    return Fingerprint.of(with_words(df, values).agg(*aggregates()).collect()[0])


class Passing:
    """Observes a table: its number of rows, and their fingerprint by these columns; None: only the number."""

    def __init__(self, names: Sequence[str] | None = None, *, called: str = "onefold") -> None:
        self._seen = Observation(called)  # two in one plan need two names
        self._names = names

    def watch(self, df: DataFrame) -> DataFrame:
        if self._names is None:
            return df.observe(self._seen, F.count(F.lit(1)).alias("cell0"))
        cells = [cell.alias(f"cell{i}") for i, cell in enumerate(aggregates())]
        words = with_words(df, row_values(df, self._names))
        return words.observe(self._seen, *cells).select(*(F.col(quoted(name)) for name in df.columns))

    @property
    def rows(self) -> int:
        """The number of rows; also 0 if Spark dropped the observation."""
        return int(_observed(self._seen).get("cell0") or 0)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of all rows; None if Spark dropped the observation."""
        figures = _observed(self._seen)
        return Fingerprint.of([figures[f"cell{i}"] for i in range(len(figures))]) if figures else None


class Counts:
    """Observes how often each value of a column of whole numbers (at most 52 bits) occurs; nulls are not counted.

    Spark's histogram joins the two nearest bins only when it has more than its maximum; so with at most ``values_max``
    different numbers it only ever joins bins of the same number.
    """

    def __init__(self, number: Column, values_max: int, *, called: str) -> None:
        self._seen = Observation(called)
        # As text: before Spark 4.1, observed arrays cannot be passed to Python.
        self._cell = F.to_json(F.histogram_numeric(number, F.lit(2 * values_max)))
        self.is_watching = False

    def watch(self, df: DataFrame, **more: Column) -> DataFrame:
        """The same table, counted when it is read; ``more``: other aggregates to observe."""
        self.is_watching = True
        return df.observe(self._seen, self._cell.alias("counts"), *(cell.alias(name) for name, cell in more.items()))

    @property
    def counts(self) -> dict[int, int] | None:
        """How often each number occurred; None if Spark dropped the observation, or nothing was watched."""
        figures = _observed(self._seen) if self.is_watching else {}
        if not figures:
            return None
        counts = Counter[int]()
        for bin_ in json.loads(figures["counts"] or "[]"):
            counts[round(bin_["x"])] += round(bin_["y"])
        return dict(counts)

    def seen(self, name: str) -> Any:
        """The value of one of the other aggregates; None if Spark dropped the observation."""
        return _observed(self._seen).get(name)


def _observed(observation: Observation) -> Mapping[str, Any]:
    try:
        return observation.get
    except Py4JJavaError:  # a row without cells, which py4j cannot pass on
        return {}


@dataclass(frozen=True, slots=True)
class Compared:
    ranges: int
    """The number of ranges."""
    differing: NDArray[np.int64]
    """The ranges whose fingerprints differ."""
    a: Fingerprint
    b: Fingerprint


def range_of(key: Iterable[Column], bits: int) -> Column:
    """The range of a key, of 2^bits. Spark's hash is the same for equal values, and skips nulls."""
    return F.shiftrightunsigned(F.xxhash64(*key), 64 - bits)


def bits_for(tables: Iterable[DataFrame]) -> int:
    """The binary logarithm of the number of ranges, by Spark's estimate of the size of the larger table."""
    sizes = [believed_bytes(table) for table in tables]
    if None in sizes:
        return BITS_MAX
    return min(BITS_MAX, max(BITS_MIN, (max(size or 0 for size in sizes) // ROW_BYTES).bit_length()))


def compare(a: DataFrame, b: DataFrame, bits: int) -> Compared:
    """Compare two tables that have a RANGE and words, in one job."""
    ranges = 1 << bits
    # Side and range as one number: Spark groups by a single long faster than by two columns.
    sides = a.unionByName(b.withColumn(RANGE, F.col(RANGE) + ranges))
    sums = to_arrow(sides.groupBy(RANGE).agg(*aggregates()))
    cells = np.array([column.to_numpy() for column in sums.columns], dtype=np.int64)
    both = np.zeros((2 * ranges, len(cells) - 1), np.int64)
    both[cells[0]] = cells[1:].T
    totals = []
    for table in (both[:ranges], both[ranges:]):
        xors = tuple(int(x) for x in np.bitwise_xor.reduce(table[:, 1 : 1 + WORDS], axis=0))
        # Summed as Python integers, which do not overflow.
        count, *halves = (sum(column.tolist()) for column in np.delete(table, range(1, 1 + WORDS), axis=1).T)
        totals.append(Fingerprint(count, xors, tuple(halves)))
    differing = np.flatnonzero((both[:ranges] != both[ranges:]).any(axis=1))
    return Compared(ranges, differing.astype(np.int64), totals[0], totals[1])
