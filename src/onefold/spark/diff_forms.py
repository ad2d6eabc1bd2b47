"""The canonical form of a row: text that is equal exactly where the values are.

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
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse

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
