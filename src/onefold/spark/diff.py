"""``diff(a, b)``: which rows two tables do not share. Exact, and much is never looked at.

Two passes. The first sums both tables up, range by range (`diff_ranges`), and shuffles nothing but sums. Where they
differ, and only there, the second reads the rows again and compares them one by one, by their ids (`diff_rows`). Equal
tables cost one pass; a few differences cost a second one over the columns, and next to no shuffle; where all is
different, ids of 32 bytes are shuffled, and the wide rows stay where they are.

Both tables are read twice and must not change in between.

Fingerprints of tables, range by range: where two are equal, nothing has to be looked at.

The ids of all rows are scattered over ranges by a hash of their key. A range is summed up by native aggregates, in the
task that reads the rows, so what is shuffled is a few numbers per range and not the rows:

    count    how many rows
    xors     two words of 64 bits, XORed
    sums     the same, added up in halves of 32 bits: what XOR cannot see, a row that is there twice, or gone together
             with its copy

A word is a hash of what the row holds. Two ranges with equal fingerprints hold the same rows as often, but for an
accident of 2^-128, as in negentropy. Against intent there are two ways to make the words:

    xxhash64   over the values as they are. Fast. Who may choose the texts of a table can make two rows that it takes
               for one
    sha256     over the id, which is the SHA-256 of the row's canonical form (`diff_forms`); three times the work

Sums are linear: who may choose very many rows can make two sets agree in either way.

The canonical form of a row: text that is equal exactly where the values are.

An id is the SHA-256 of it. So it tells apart all that differs, and nothing that Spark calls equal:

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

What comes first says what follows and where it ends, so forms can be put one after the other: no two rows share one.
Two tables are brought to common types first (`common`); text is never taken for a number.

All of a row is one flat concatenation, in which constants are merged: a form of many small steps costs three times as
much, more than the hash.

The rows behind fingerprints that differ: read again, in those ranges only, and compared by their ids.

What is shuffled is narrow: the id of a row's key and the id of the whole row, 32 bytes each. From them comes the
*delta*: the ids that one table holds more often than the other, and how often each has their key. It is small where
the tables are alike, and it is what the rows are then picked by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from hashlib import sha256
from operator import add
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.columns import quoted

WORDS: Final = 2
HALF: Final = (1 << 32) - 1
ROW_BYTES: Final = 16 << 10
"""So many bytes of the input a range: at 50 bytes a row, the 300 rows that are read again for a difference."""
BITS_MIN, BITS_MAX = 6, 16
"""64 ranges at least; 65,536 at most, whose sums fit into a few megabytes of every task and of the driver."""
_SIZE_UNKNOWN: Final = 1 << 60  # Spark says 2^63 - 1 of a source that tells nothing

RANGE: Final = "_onefold_range"
_VALUE, _WORD, _COUNT = "_onefold_value{}", "_onefold_word{}", "_onefold_count"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The sum of a set of rows; sums of parts add up."""

    count: int = 0
    xors: tuple[int, ...] = (0,) * WORDS
    sums: tuple[int, ...] = (0,) * (2 * WORDS)

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Fingerprint:
        """From what `aggregates` gives: null of no rows at all."""
        count, *rest = (int(cell or 0) for cell in cells)
        return cls(count, tuple(rest[:WORDS]), tuple(rest[WORDS:]))

    def __str__(self) -> str:
        """Sixteen bytes in hex, for people and for files: a hash of all of it."""
        numbers = (self.count, *(x % (1 << 64) for x in self.xors), *self.sums)
        return sha256(b"".join(n.to_bytes(16, "little") for n in numbers)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two tables, range by range."""

    ranges: int
    """Into how many the ids were scattered."""
    differing: NDArray[np.int64]
    """Those whose fingerprints differ."""
    a: Fingerprint
    b: Fingerprint


def range_of(key: Iterable[Column], bits: int) -> Column:
    """The range that a key falls into, of 2^bits. Spark hashes equal values alike, and a null like nothing."""
    return F.shiftrightunsigned(F.xxhash64(*key), 64 - bits)


def row_id(row: Column) -> Column:
    """The id of a row's form: SHA-256, in hex."""
    return F.sha2(row, 256)


def with_words(df: DataFrame, values: Sequence[Column]) -> DataFrame:
    """The table with the words of each row, made from these values of it."""
    # In two steps, so that what is dear is made once and not once a word.
    names = [_VALUE.format(i) for i in range(len(values))]
    valued = df.withColumns(dict(zip(names, values, strict=True)))
    return valued.withColumns({_WORD.format(i): F.xxhash64(F.lit(i), *names) for i in range(WORDS)}).drop(*names)


def word_names() -> list[str]:
    """The columns that the words stand in."""
    return [_WORD.format(i) for i in range(WORDS)]


def aggregates() -> list[Column]:
    """Of a table with words: the cells of its fingerprint."""
    words = [F.col(name) for name in word_names()]
    halves = [half for word in words for half in (F.shiftrightunsigned(word, 32), word.bitwiseAND(F.lit(HALF)))]
    cells = [F.count(F.lit(1)), *map(F.bit_xor, words), *map(F.sum, halves)]
    return [cell.alias(f"{_COUNT}{i}") for i, cell in enumerate(cells)]


def fingerprint(df: DataFrame, values: Sequence[Column]) -> Fingerprint:
    """The fingerprint of a whole table."""
    return Fingerprint.of(with_words(df, values).agg(*aggregates()).collect()[0])


def compare(a: DataFrame, b: DataFrame, bits: int) -> Compared:
    """Compare two tables that have a RANGE and words, in one job."""
    ranges = 1 << bits
    # One number for side and range: Spark groups by a single long faster than by two columns.
    sides = a.unionByName(b.withColumn(RANGE, F.col(RANGE) + ranges))
    found = sides.groupBy(RANGE).agg(*aggregates()).toArrow()
    cells = np.array([column.to_numpy() for column in found.columns], dtype=np.int64)
    both = np.zeros((2 * ranges, len(cells) - 1), np.int64)
    both[cells[0]] = cells[1:].T
    tables = (both[:ranges], both[ranges:])
    differing = np.flatnonzero((tables[0] != tables[1]).any(axis=1))
    totals = [Fingerprint.of([*_total(table)]) for table in tables]
    return Compared(ranges, differing.astype(np.int64), totals[0], totals[1])


def bits_for(tables: Iterable[DataFrame]) -> int:
    """How many ranges there should be, as a power of two, by what Spark believes of the size of the larger table."""
    sizes = [int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())) for df in tables]
    if max(sizes) >= _SIZE_UNKNOWN:
        return BITS_MAX
    return min(BITS_MAX, max(BITS_MIN, (max(sizes) // ROW_BYTES).bit_length()))


def _total(table: NDArray[np.int64]) -> Iterable[int]:
    """The cells of all ranges together; whole numbers of Python, which do not overflow."""
    yield sum(table[:, 0].tolist())
    yield from (int(x) for x in np.bitwise_xor.reduce(table[:, 1 : 1 + WORDS], axis=0))
    yield from (sum(column.tolist()) for column in table[:, 1 + WORDS :].T)


DIGITS: Final[Mapping[type[T.DataType], int]] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
"""Whole numbers from narrow to wide, and how many digits a decimal needs for them."""
DIGITS_MAX: Final = 38
"""The widest decimal of Spark."""
MASK_BITS: Final = 31
"""So many columns share a number that says which of them are null."""
AS_TEXT: Final = (T.TimestampNTZType, T.AnyTimeType, T.AnsiIntervalType, T.CalendarIntervalType, T.VariantType)
"""Types whose values are told apart by what Spark writes for them."""


Pieces: TypeAlias = list[str | Column]


def row_form(columns: Iterable[tuple[Column, T.DataType]]) -> Column:
    """The form of several values, one after the other: text that is never null. `Misuse` if a type has none."""
    merged: Pieces = []
    for piece in (piece for column, kind in columns for piece in _pieces(column, kind)):
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return F.concat(*(F.lit(piece) if isinstance(piece, str) else piece for piece in merged))


def form(column: Column, kind: T.DataType) -> Column:
    """The form of a value."""
    return row_form([(column, kind)])


def hashable(column: Column, kind: T.DataType) -> Column:
    """A value as Spark's own hash can take it: nested ones only by their form, of which it would see the leaves."""
    return column if isinstance(kind, T.AtomicType) and not isinstance(kind, T.VariantType) else form(column, kind)


def null_masks(columns: Iterable[Column]) -> list[Column]:
    """Which of the values are null, as bits of whole numbers: Spark's own hash passes over a null."""
    every = list(columns)
    parts = [every[i : i + MASK_BITS] for i in range(0, len(every), MASK_BITS)]
    return [
        reduce(add, (F.when(c.isNull(), F.lit(1 << i)).otherwise(F.lit(0)) for i, c in enumerate(p))) for p in parts
    ]


def common(a: T.DataType, b: T.DataType) -> T.DataType | None:
    """The type in which values of both can be compared without loss; None if there is none."""
    if isinstance(a, T.StructType) and isinstance(b, T.StructType):
        return _common_struct(a, b)
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


def as_type(column: Column, kind: T.DataType, wanted: T.DataType) -> Column:
    """The column in the common type; as it stands if it has it."""
    return column if kind.simpleString() == wanted.simpleString() else column.cast(wanted)


def _pieces(column: Column, kind: T.DataType) -> Pieces:
    """The form of a value in parts, none of them null."""
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
        # With try_cast, which writes 0.0000001 whatever the session is set to; a cast may write 1E-7.
        return ["m", _text(column.try_cast("string")), ";"]
    if isinstance(kind, T.DateType):
        return ["D", _text(F.unix_date(column)), ";"]
    if isinstance(kind, T.TimestampType):
        return ["T", _text(F.unix_micros(column)), ";"]
    if isinstance(kind, T.NullType):
        return ["n"]
    if isinstance(kind, AS_TEXT):
        text = F.to_json(column, {"timeZone": "UTC"}) if isinstance(kind, T.VariantType) else column.cast("string")
        return ["v", _text(F.octet_length(text)), ":", F.coalesce(text, F.lit(""))]
    return [F.coalesce(_nested(column, kind), F.lit("n"))]


def _text(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("n"))


def _nested(column: Column, kind: T.DataType) -> Column:
    """The form of a struct, an array or a map; null of null."""
    if isinstance(kind, T.StructType):
        fields = [(column.getField(f.name), f.dataType) for f in kind.fields]
        return F.when(column.isNotNull(), F.concat(F.lit("s"), row_form(fields)) if fields else F.lit("s"))
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return _listed("a", F.transform(column, lambda element: form(element, inner)))
    if isinstance(kind, T.MapType):
        key, value = kind.keyType, kind.valueType
        entries = F.transform(
            F.map_entries(column),
            lambda entry: row_form([(entry.getField("key"), key), (entry.getField("value"), value)]),
        )
        return _listed("p", F.array_sort(entries))
    raise Misuse(f"values of type {kind.simpleString()} cannot be compared: leave the column out", type=str(kind))


def _listed(tag: str, forms: Column) -> Column:
    return F.concat(F.lit(tag), F.size(forms).cast("string"), F.lit(":"), F.array_join(forms, ""))


def _common_struct(a: T.StructType, b: T.StructType) -> T.DataType | None:
    if a.names != b.names:
        return None
    kinds = [common(x.dataType, y.dataType) for x, y in zip(a.fields, b.fields, strict=True)]
    fields = [T.StructField(name, kind) for name, kind in zip(a.names, kinds, strict=True) if kind is not None]
    return T.StructType(fields) if len(fields) == len(a.fields) else None


def _exact(kind: T.DataType) -> T.DecimalType | None:
    if isinstance(kind, T.DecimalType):
        return kind
    return T.DecimalType(DIGITS[type(kind)], 0) if type(kind) in DIGITS else None


KEPT_SHARE: Final = 1 / 8
"""If no more of the ranges differ, their rows are kept in Spark's storage; else they are read again when wanted."""
ALL_SHARE: Final = 1 / 2
"""If more of the ranges differ, it does not pay to look whether a row is in one of them."""

DELTA_MAX: Final = 50_000
"""So many ids that differ, of about 100 bytes, come to the driver and go from there to every task."""

TOLD: Final = ("differs_in", "row_a", "row_b")
"""What stands beside the key of rows that differ."""

_KEY, _ROW, _N, _I = "_onefold_key", "_onefold_row", ("_onefold_na", "_onefold_nb"), "_onefold_i"
_KEYED: Final = ("_onefold_ka", "_onefold_kb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two tables, and how its rows are compared."""

    df: DataFrame
    cells: Mapping[str, Column]
    """The columns that are compared, in the common types."""
    kinds: Mapping[str, T.DataType]
    key: Sequence[str]
    key_form: Column
    row_form: Column
    range: Column
    values: Sequence[Column]
    """What the words of a row are made from."""

    def summed(self) -> DataFrame:
        """What the fingerprints are made of: the range and the words of each row."""
        return with_words(self.df.withColumn(RANGE, self.range), self.values).select(RANGE, *word_names())

    def suspects(self, ranges: DataFrame | None, *, whole: bool) -> DataFrame:
        """The rows in these ranges, all columns, with the ids of key and row; None: all rows."""
        rows = self.df
        if ranges is not None:
            rows = rows.withColumn(RANGE, self.range).join(F.broadcast(ranges), RANGE, "left_semi").drop(RANGE)
        rows = rows.withColumn(_ROW, F.unhex(row_id(self.row_form)))
        return rows.withColumn(_KEY, F.col(_ROW) if whole else F.unhex(row_id(self.key_form)))


class DiffRows:
    """The rows that two tables do not share."""

    def __init__(self, a: Side, b: Side, compared: Compared, *, whole: bool) -> None:
        self._sides = (a, b)
        self._whole = whole
        self._kept: list[DataFrame] = []
        self._clean = not len(compared.differing)
        share = len(compared.differing) / compared.ranges
        spark = a.df.sparkSession
        ranges = spark.createDataFrame(pa.table({RANGE: compared.differing})) if share <= ALL_SHARE else None
        self._suspects = [side.suspects(ranges, whole=whole) for side in self._sides]
        if not self._clean and share <= KEPT_SHARE:
            self._suspects = [self._keep(suspects) for suspects in self._suspects]
        self._delta = self._deltas()
        if not self._clean:
            found = self._delta.limit(DELTA_MAX + 1).toArrow()
            small = found.num_rows <= DELTA_MAX
            self._delta = spark.createDataFrame(found) if small else self._keep(self._delta)

    def counts(self) -> dict[str, int]:
        """How many rows and keys there are of each kind; runs the comparison."""
        if self._clean:
            return {}
        a, b = (F.col(name) for name in _KEYED)
        keys = self._delta.groupBy(_KEY).agg(*(F.any_value(name).alias(name) for name in _KEYED))
        cells = {"repeated_a": F.count_if(a > 1), "repeated_b": F.count_if(b > 1)}
        if self._whole:  # a row is its own key
            cells |= {"only_a": F.sum(F.when(a > b, a - b)), "only_b": F.sum(F.when(b > a, b - a))}
        else:
            cells |= {"only_a": F.sum(F.when(b == 0, a)), "only_b": F.sum(F.when(a == 0, b))}
            cells |= {"differing": F.count_if((a > 0) & (b > 0))}
        found = keys.agg(*(cell.alias(name) for name, cell in cells.items())).collect()[0]
        return {name: int(found[name] or 0) for name in cells}

    def only(self, side: int) -> DataFrame:
        """The rows of a side whose key the other lacks; of whole rows, what it holds more of."""
        df = self._sides[side].df
        if self._clean:
            return df.limit(0)
        if self._whole:
            rows = self._surplus(side)
        else:  # the other side has none of them, so all are wanted
            alone = self._delta.where(F.col(_KEYED[1 - side]) == 0).select(_ROW)
            rows = self._suspects[side].join(alone, _ROW, "left_semi")
        return rows.select(*(F.col(quoted(name)) for name in df.columns))

    def differing(self) -> DataFrame:
        """The rows that a shared key has on one side only, those of both sides paired."""
        a, b = (self._contents(side) for side in (0, 1))
        key, kinds = self._sides[0].key, self._sides[0].kinds
        rest = [name for name in kinds if name not in key]
        paired = a.join(b, [_KEY, _I], "full_outer")
        told = [F.coalesce(F.col("a_key").getField(name), F.col("b_key").getField(name)).alias(name) for name in key]
        differs = [
            F.when(
                form(F.col("a").getField(name), kinds[name]) != form(F.col("b").getField(name), kinds[name]),
                F.lit(name),
            )
            for name in rest
        ]
        both = F.col("a").isNotNull() & F.col("b").isNotNull()
        names = F.array_compact(F.array(*differs)) if differs else F.array().cast("array<string>")
        found = (F.when(both, names), F.col("a"), F.col("b"))
        return paired.select(*told, *(cell.alias(name) for cell, name in zip(found, TOLD, strict=True)))

    def close(self) -> None:
        """Give back what was kept in Spark's storage."""
        for df in self._kept:
            df.unpersist()
        self._kept.clear()

    def _keep(self, df: DataFrame) -> DataFrame:
        self._kept.append(df)
        return df.persist()

    def _deltas(self) -> DataFrame:
        """The ids that one side holds more often, how often each does, and how often each has their key."""
        ones = (F.lit(1).cast("long"), F.lit(0).cast("long"))
        a, b = (
            suspects.select(_KEY, _ROW, ones[i].alias(_N[0]), ones[1 - i].alias(_N[1]))
            for i, suspects in enumerate(self._suspects)
        )
        # By the key alone, so that the rows of a key meet once, and both steps below find them together.
        together = a.unionAll(b).repartition(_KEY)
        counted = together.groupBy(_KEY, _ROW).agg(*(F.sum(name).alias(name) for name in _N))
        if self._whole:
            totals = {_KEYED[i]: F.col(_N[i]) for i in (0, 1)}
        else:
            totals = {_KEYED[i]: F.sum(_N[i]).over(Window.partitionBy(_KEY)) for i in (0, 1)}
        return counted.withColumns(totals).where(F.col(_N[0]) != F.col(_N[1]))

    def _surplus(self, side: int) -> DataFrame:
        """The rows of a side that it holds more of, so many of them."""
        more = F.col(_N[side]) - F.col(_N[1 - side])
        wanted = self._delta.where(more > 0).drop(_KEY)
        rows = self._suspects[side].join(wanted, _ROW)
        nth = F.row_number().over(Window.partitionBy(_ROW).orderBy(_ROW))
        return rows.withColumn(_I, nth).where(F.col(_I) <= more)

    def _contents(self, side: int) -> DataFrame:
        """The rows of shared keys that the other side lacks: key and content as structs, numbered within the key."""
        it, name = self._sides[side], "ab"[side]
        surplus = self._surplus(side).where((F.col(_KEYED[0]) > 0) & (F.col(_KEYED[1]) > 0))
        if self._clean or self._whole:
            surplus = surplus.limit(0)
        rest = [
            column for column in it.cells if column not in it.key
        ] or it.key  # a struct of nothing cannot be written
        content = F.struct(*(it.cells[column].alias(column) for column in rest))
        keyed = F.struct(*(it.cells[column].alias(column) for column in it.key))
        nth = F.row_number().over(Window.partitionBy(_KEY).orderBy(_ROW))
        return surplus.select(_KEY, nth.alias(_I), keyed.alias(f"{name}_key"), content.alias(name))


Hash: TypeAlias = Literal["xxhash64", "sha256"]
HASHES: Final = get_args(Hash)
SPOKEN_MAX: Final = 200
"""How much of a row an error shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was found, in figures."""

    rows_a: int
    rows_b: int
    fingerprint_a: str
    fingerprint_b: str
    ranges: int = 0
    """Into how many ranges the ids were scattered, and compared by their fingerprints."""
    ranges_differing: int = 0
    """In how many of them the rows were compared one by one."""
    only_a: int = 0
    """How many rows of A are missing in B."""
    only_b: int = 0
    differing: int = 0
    """Of how many keys both have rows, and not the same ones."""
    repeated_a: int = 0
    """How many of the rows, or keys, that were found different A holds more than once."""
    repeated_b: int = 0

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, as often."""
        return not (self.only_a or self.only_b or self.differing)

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {"equal": self.equal, **asdict(self)}


class Diff:
    """What two tables do not share: figures at once, rows when they are asked for.

    A ``with`` block, or ``close()``, gives back what was kept in Spark's storage for the rows.
    """

    def __init__(self, rows: DiffRows, compared: Compared) -> None:
        self._rows = rows
        self.summary = Summary(
            rows_a=compared.a.count,
            rows_b=compared.b.count,
            fingerprint_a=str(compared.a),
            fingerprint_b=str(compared.b),
            ranges=compared.ranges,
            ranges_differing=len(compared.differing),
            **rows.counts(),
        )

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, as often."""
        return self.summary.equal

    @property
    def only_a(self) -> DataFrame:
        """The rows of A that B lacks, as they are in A; of a row that A holds more often, so many more."""
        return self._rows.only(0)

    @property
    def only_b(self) -> DataFrame:
        """The rows of B that A lacks."""
        return self._rows.only(1)

    @property
    def differing(self) -> DataFrame:
        """Rows of one key that differ: the key, ``differs_in`` (the columns), ``row_a`` and ``row_b``.

        Where a key has several rows, those that both hold are left out and the others are paired; ``row_a`` or
        ``row_b`` is null where there are more of them on the other side.
        """
        return self._rows.differing()

    def close(self) -> None:
        """Give back what was kept."""
        self._rows.close()

    def __enter__(self) -> Diff:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def diff(
    a: DataFrame, b: DataFrame, *, key: Iterable[str] | None = None, columns: Iterable[str] | None = None,
    buckets: int | None = None, hash: Hash = "xxhash64",
) -> Diff:  # fmt: skip
    """Compare two tables.

    ``key``: the columns that name a row; None: a row is named by all that it holds, and counted as often as it is
    there, as ``exceptAll`` does. ``columns``: what else must agree; None: every other column, which then both must
    have. ``buckets``: into how many ranges the ids are scattered, a power of two; None: by the size of the tables.
    ``hash``: what the fingerprints are made with, see `diff_ranges`; "sha256" where somebody may want the difference
    not to be found. Rows are always compared by SHA-256.

    Two nulls are equal, every NaN is one value, and text is compared by its bytes.
    """
    names, rest = chosen(a, b, key, columns)
    bits = bits_for([a, b]) if buckets is None else _bits(buckets)
    if hash not in HASHES:
        raise Misuse(f"hash is {hash!r}, must be {' or '.join(HASHES)}", hash=hash)
    sides = _sides(a, b, names, rest, bits, whole=key is None, hash=hash)
    compared = compare(sides[0].summed(), sides[1].summed(), bits)
    return Diff(DiffRows(sides[0], sides[1], compared, whole=key is None), compared)


def sampled(df: DataFrame, names: Iterable[str] | None, most: int) -> list[dict[str, Any]]:
    """A few rows as JSON can hold them, in order; by these columns or all."""
    columns = [quoted(name) for name in (df.columns if names is None else names)]
    rows = df.select(*columns).limit(most).collect()
    return [{name: _plain(value) for name, value in row.asDict(recursive=True).items()} for row in rows]


def spoken(row: Mapping[str, Any]) -> str:
    r"""A row, or an id, in words, on one line, without anything that a terminal obeys.

    >>> spoken({"device": "a\n", "ts": 5})
    'device a?, ts 5'
    """
    words = ", ".join(f"{name} {'null' if value is None else value}" for name, value in row.items())
    return "".join(sign if sign.isprintable() else "?" for sign in words)[:SPOKEN_MAX]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def chosen(
    a: DataFrame, b: DataFrame, key: Iterable[str] | None, columns: Iterable[str] | None
) -> tuple[list[str], list[str]]:
    """The key and the other columns that are compared; `Misuse` that names the column if one is missing."""
    if isinstance(key, str) or isinstance(columns, str):
        raise Misuse(f"key and columns are lists of names, not {key or columns!r}", key=key, columns=columns)
    names = [] if key is None else list(dict.fromkeys(key))
    if key is not None and not names:
        raise Misuse("key is empty, must name at least one column, or be None: the whole row", key=key)
    if taken := [name for name in names if name.lower() in TOLD]:
        raise Misuse(f"key column {taken[0]!r} has a name that the outcome needs: rename it", column=taken[0])
    if columns is None:
        alone = [name for name in (*a.columns, *b.columns) if (name in a.columns) != (name in b.columns)]
        if alone:
            owner = "the first" if alone[0] in a.columns else "the second"
            raise Misuse(f"column {alone[0]!r} is only in {owner} table: name the columns to compare", column=alone[0])
    rest = [name for name in (a.columns if columns is None else dict.fromkeys(columns)) if name not in names]
    for name in (*names, *rest):
        for df, which in ((a, "first"), (b, "second")):
            if df.columns.count(name) != 1:
                there = ", ".join(df.columns)
                raise Misuse(f"no column {name!r} in the {which} table: the columns are {there}", column=name)
    if not names and not rest:
        raise Misuse("there is no column to compare")
    return names, rest


def _sides(
    a: DataFrame, b: DataFrame, key: Sequence[str], rest: Sequence[str], bits: int, *, whole: bool, hash: Hash
) -> list[Side]:
    """Both tables with the columns that are compared, brought to common types."""
    kinds = {}
    for name in (*key, *rest):
        ours, theirs = a.schema[name].dataType, b.schema[name].dataType
        kind = common(ours, theirs)
        if kind is None:
            kinds_of = f"{ours.simpleString()} in the first table and {theirs.simpleString()} in the second"
            raise Misuse(f"column {name!r} is {kinds_of}: cast one of them", column=name)
        try:
            form(F.lit(None), kind)
        except Misuse as error:
            raise Misuse(f"column {name!r}: {error}", column=name) from error
        kinds[name] = kind
    sides = []
    for df in (a, b):
        cells = {name: as_type(F.col(quoted(name)), df.schema[name].dataType, kind) for name, kind in kinds.items()}
        plain = {name: hashable(cell, kinds[name]) for name, cell in cells.items()}
        named = rest if whole else key
        key_form, both = (row_form((cells[name], kinds[name]) for name in names) for names in (named, (*key, *rest)))
        sides.append(
            Side(
                df=df,
                cells=cells,
                kinds=kinds,
                key=key,
                key_form=key_form,
                row_form=both,
                range=range_of((plain[name] for name in named), bits),
                values=[row_id(both)] if hash == "sha256" else [*null_masks(cells.values()), *plain.values()],
            )
        )
    return sides


def _bits(buckets: int) -> int:
    if not 2 <= buckets <= 1 << BITS_MAX or buckets & (buckets - 1):
        raise Misuse(f"buckets is {buckets}, must be a power of two from 2 to {1 << BITS_MAX}", buckets=buckets)
    return buckets.bit_length() - 1
