"""Which columns of a table hold a message's chain and numbers, or its producer and sequence; and how they are read.

Numbers are whole-number columns, decimals that are whole, or text that is parsed row by row. Times are all of these
(the unit is the user's, milliseconds where it matters), or timestamps, timestamps without a zone (taken as UTC), dates,
or ISO 8601 text (without a zone: UTC). The session's time zone never matters. A row with any other value is refused
with a reason; a column type that cannot hold such values is a mistake of the caller, found before any row is read.

`packed` checks what can be checked of a chain's row without a memory: is its key complete, its number a number, its
time plausible? The result is one integer per row: the packed number, or, for a refused row, the negative integer of the
reason (see `chains.columns`). All of it is native column logic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.chains.columns import NO_PREVIOUS, refused
from onefold.chains.rules import SEQUENCE_BITS, SEQUENCE_MAX, TIMESTAMP_MAX
from onefold.errors import Misuse
from onefold.spark.dialect import try_cast

Names: TypeAlias = str | Column | Iterable[str | Column]
"""One column or several: names, fields of structs, expressions."""

WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
TEXT = (T.StringType,)
EXACT = (T.DecimalType,)
STAMPS = (T.TimestampType, T.TimestampNTZType)
TIME = (*STAMPS, T.DateType)

RANGE_ENDS: Final = ("lower_timestamp", "lower_sequence", "upper_timestamp", "upper_sequence")
"""The columns of the missing ranges beside the key."""
CORRUPT: Final = "_corrupt_record"
"""The column with the text of a row that could not be read."""
OURS: Final = ("_onefold_", "__onefold_")
"""Prefixes of the columns that are added temporarily."""

DAY_MS: Final = 86_400_000
_LONG_MAX: Final = (1 << 63) - 1
_DATE: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = _DATE + "[T ][0-9]{1,2}:[0-9]{2}"
_SECONDS: Final = _CLOCK + ":[0-9]{2}([.][0-9]{1,9}0*)?"  # beyond nanoseconds nothing is kept
_ZONE: Final = " ?(Z|[+-][0-9]{1,2}(:?[0-9]{2})?|[A-Za-z][A-Za-z0-9_+/:-]*)$"


class Columns(Protocol):
    """The columns of a table: a DataFrame, or what is known of one without Spark."""

    @property
    def columns(self) -> list[str]: ...
    @property
    def schema(self) -> T.StructType: ...


def no_column(name: str, role: str, columns: Sequence[str], *, required: bool) -> Misuse:
    columns = [each for each in columns if each != CORRUPT]
    near = next(iter(get_close_matches(name, columns, n=1)), None)
    close = "" if near is None else f", did you mean {near!r}"
    others = f"the columns are {', '.join(columns)}" if columns else "no row in it could be read"
    text = f"no column {name!r} ({role}){close}: {others}"
    hint = "" if required else f"; if there is none: {role}=None"
    return Misuse(f"{text}{hint}", column=name, role=role, said=text, required=required, right=near, columns=columns)


def no_number(name: str, role: str, example: str) -> Misuse:
    """The error for a column of text without a single number, or time, among its first values."""
    what = "a whole number" if role == "sequence" else "a whole number or a time"
    return Misuse(f"column {name!r} is text without {what} in it, such as {example[:80]!r}", column=name)


class Usual(str):
    """A default name of a column: a table may lack it."""

    __slots__ = ()


class Computed(str):
    """The name of a column that is computed by an expression."""

    __slots__ = ("column",)
    column: Column

    @classmethod
    def of(cls, column: Column) -> Computed:
        text = re.sub("^Column<'(.*)'>$", r"\1", str(column), flags=re.DOTALL)
        name = cls(text)
        name.column = column
        return name


class RoleColumns:
    """Columns of a table by role: a field is a role, and holds the name of a column, several, or None.

    Subclasses are dataclasses that say which types the columns of each role may have.
    """

    __slots__ = ()

    key_role: ClassVar[str]
    """The role whose columns identify a message or its chain: at least one column must have it."""
    plain: ClassVar[tuple[str, ...]]
    """Roles that may hold any plain value."""
    times: ClassVar[tuple[str, ...]]
    """Roles that hold times or whole numbers; all roles that are not listed must be whole numbers."""
    required: ClassVar[tuple[str, ...]]
    ranged: ClassVar[str | None] = None
    """The role whose columns are beside the ends of missing ranges."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            names = getattr(self, each.name)
            several = isinstance(each.default, tuple)
            if several:
                names = tuple(listed(names))
            elif not isinstance(names, str | None) and not _is_column(names):
                (names,) = names if isinstance(names, list | tuple) and len(names) == 1 else (names,)
                if not isinstance(names, str):
                    raise Misuse(f"{each.name} is {names!r}, must be one column", **{each.name: names})
            elif _is_column(names):
                names = Computed.of(names)
            object.__setattr__(self, each.name, names)
        if not getattr(self, self.key_role):
            raise Misuse(f"{self.key_role} is empty, must name at least one column", **{self.key_role: ()})

    @property
    def named(self) -> list[tuple[str, str]]:
        roles = [(each.name, getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        several = [(role, (names,) if isinstance(names, str | None) else names) for role, names in roles]
        return [(role, name) for role, names in several for name in names if name is not None]

    def of(self, df: Columns) -> Self:
        """The same columns, spelled as in this table; a column that it lacks is unchanged."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        spelled = {
            role: tuple(_spelling(df, name) for name in names) if isinstance(names, tuple) else _spelling(df, names)
            for role, names in own.items()
            if names is not None
        }
        return replace(self, **spelled)  # type: ignore[type-var]

    def beside(self, df: Columns) -> dict[str, Field | Computed]:
        """The named fields of structs and expressions, which are no columns yet, by name."""
        added: dict[str, Field | Computed] = {}
        for _, name in self.of(df).named:
            if name in df.columns or in_any_case([*added], name) is not None:  # the same column to Spark
                continue
            if isinstance(name, Computed):
                added[name] = name
            elif (field := _field(df.schema, name.split("."))) is not None:
                added[name] = field
        return added

    def added_to(self, df: DataFrame) -> DataFrame:
        """The table with the named fields of structs and expressions added as columns."""
        added = {
            name: each.column if isinstance(each, Computed) else F.col(each.path)
            for name, each in self.beside(df).items()
        }
        return df.withColumns(added) if added else df

    def fitted(self, df: DataFrame) -> tuple[DataFrame, Self]:
        """The table with all named columns, and their names in its spelling; raises `Misuse` as `check` does."""
        df = self.added_to(df)
        self.check(df)
        return df, self.of(df)

    def types(self, df: Columns) -> dict[str, T.DataType]:
        """The types of all columns and named fields; that of an expression is not known until it is added."""
        fields = {name: each.kind for name, each in self.beside(df).items() if isinstance(each, Field)}
        return {**{field.name: field.dataType for field in df.schema.fields}, **fields}

    def check(self, df: Columns) -> None:
        """Raise `Misuse` that names the column if one is missing or of a wrong type."""
        types = self.types(df)
        for role, name in self.of(df).named:
            if isinstance(name, Computed):
                continue
            own = name if name in types else in_any_case([*types], name)
            if own is None:
                raise no_column(name, role, df.columns, required=role in self.required)
            kind = types[own]
            numbers = (*WHOLE, *TEXT, *EXACT, *(TIME if role in self.times else ()))
            if role not in self.plain and not isinstance(kind, numbers):
                wanted = "whole numbers or times" if role in self.times else "whole numbers"
                raise Misuse(f"column {name!r} ({role}) is {kind.simpleString()}, must be {wanted}", column=name)
            if role in self.plain and not isinstance(kind, T.AtomicType):
                # Spark hashes nested values by their leaves alone: ["a"], ["b"] and ["a", "b"], [] would be one chain.
                raise Misuse(f"column {name!r} ({role}) is {kind.simpleString()}, must be a plain value", column=name)
            if role in self.plain and role != "payload" and collation(kind) is not None:
                # Spark hashes the bytes, and compares by the collation: what it calls equal would be two chains here.
                raise Misuse(
                    f"column {name!r} ({role}) has the collation {collation(kind)}, and names are told apart by their "
                    f"bytes: cast it to a plain string first, such as lower({name}) collate UTF8_BINARY",
                    column=name,
                )
        for name in () if self.ranged is None else getattr(self, self.ranged):
            if name.lower() in RANGE_ENDS:
                what = "the missing ranges have a column so named, rename it"
                raise Misuse(f"column {name!r} ({self.ranged}): {what}", column=name)


def listed(names: Names) -> list[str]:
    """One column or several as a list of names; an expression gets a name too."""
    several: Any = [names] if isinstance(names, str) or _is_column(names) else names
    return [Computed.of(name) if _is_column(name) else name for name in several]


def _is_column(value: object) -> bool:
    return type(value).__name__ == "Column"  # before Spark 4, Connect had a Column class of its own


def _spelling(df: Columns, name: str) -> str:
    """A column as the table spells it: an exact match, else one that ignores case."""
    if name in df.columns:
        return str(name) if isinstance(name, Computed) else name  # an expression cannot be pickled into tasks
    own = None if isinstance(name, Computed) else in_any_case(df.columns, name)
    return name if own is None else own


def in_any_case(names: Sequence[str], name: str) -> str | None:
    same = [each for each in names if each.lower() == name.lower()]
    return same[0] if len(same) == 1 else None


class Field(NamedTuple):
    path: str
    kind: T.DataType


def _field(kind: T.DataType, parts: Sequence[str]) -> Field | None:
    """A field of nested structs by its path, ignoring case; None: there is none."""
    path: list[str] = []
    for part in parts:
        names = kind.names if isinstance(kind, T.StructType) else []
        own = part if part in names else in_any_case(names, part)
        if own is None or not isinstance(kind, T.StructType):
            return None
        path.append(quoted(own))
        kind = kind[own].dataType
    return Field(".".join(path), kind) if len(path) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyColumns(RoleColumns):
    """Columns without roles: of the table, fields of structs, expressions."""

    name: tuple[str, ...] = ()

    key_role = "name"
    plain = ("name",)
    times = ()
    required = ("name",)

    def are_in(self, df: Columns) -> bool:
        beside = self.beside(df)
        return all(df.columns.count(name) == 1 or name in beside for name in self.of(df).name)

    def put_into(self, df: DataFrame) -> DataFrame:
        """The table, with these columns under the names given here."""
        df = self.added_to(df)
        spelled = {own: name for own, name in zip(self.of(df).name, self.name, strict=True) if own != name}
        return df.withColumnsRenamed(spelled) if spelled else df


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainColumns(RoleColumns):
    """The names of the columns; None: there is no such column. A default name that a table lacks counts as None.

    >>> ChainColumns(key="device", timestamp="ts", sequence=None, arrival="received").key
    ('device',)
    """

    key: tuple[str, ...] = ("stream", "partition", "publisher", "chain")
    """Together they name the chain; plain values of any type, not arrays, structs or maps."""
    timestamp: str = "timestamp"
    """Milliseconds, or a time. The part of a time below the millisecond takes the place of the sequence."""
    sequence: str | None = Usual("sequence")
    """None: every sequence is 0, or the part of the time below the millisecond."""
    previous_timestamp: str | None = Usual("previous_timestamp")
    """None: messages do not name their previous ones, so each is only compared with the newest."""
    previous_sequence: str | None = Usual("previous_sequence")
    arrival: str | None = Usual("arrival")
    """The order of judgement. Null comes before all times. None: rows are judged in the order of their numbers."""

    key_role = ranged = "key"
    plain = ("key",)
    times = ("timestamp", "previous_timestamp", "arrival")
    required = ("key", "timestamp")

    def of(self, df: Columns) -> ChainColumns:
        """The columns that this table has: defaults that it lacks become None."""
        spelled = super(ChainColumns, self).of(df)
        present = set(df.columns)
        absent = {role for role, name in spelled.named if isinstance(name, Usual) and name not in present}
        is_whole = self.sequence is not None and self.previous_timestamp is not None
        if is_whole and {"sequence", "previous_timestamp"}.isdisjoint(absent):
            absent.discard("previous_sequence")  # half of the previous number: taking it for 0 would be a guess
        none: dict[str, Any] = dict.fromkeys(absent)
        return replace(spelled, **none)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerColumns(RoleColumns):
    """The names of the columns; None: there is no such column.

    >>> ProducerColumns(producer=("topic", "pid"), sequence="seq", order="offset", payload=("value",)).producer
    ('topic', 'pid')
    """

    producer: tuple[str, ...] = ("producer",)
    """Together they name the producer; plain values of any type, not arrays, structs or maps."""
    sequence: str = "sequence"
    order: str | None = None
    """The order of judgement, such as the offset in the log, or a time. Null comes first. None: rows are judged in the
    order of their sequences."""
    time: str | None = None
    """When the producer made the message, the same for all copies: where the sequence falls and the time rises, the
    counter of the producer restarted. None: counters never restart."""
    epoch: str | None = None
    """A row whose epoch is below that of an earlier row comes from a zombie. Null or negative: no epoch."""
    payload: tuple[str, ...] = ()
    """The content: two rows of one sequence that differ in it contradict each other. Empty: this is not checked."""

    key_role = ranged = "producer"
    plain = ("producer", "payload")
    times = ("order", "time")
    required = ("producer", "sequence", "payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceptionColumns(RoleColumns):
    """The names of the columns, by default those of `receptions`; None: there is no such column.

    >>> ReceptionColumns(frame=("dev_addr", "fcnt", "mic"), station="gateway", kind=None).frame
    ('dev_addr', 'fcnt', 'mic')
    """

    frame: tuple[str, ...] = ("frame",)
    """Together they name the frame: equal for every reception of one transmission, and of its exact copies. Plain
    values of any type, not arrays, structs or maps."""
    station: str = "station"
    time: str = "time_ms"
    """When it was heard, in milliseconds since 1970 or as a time: the order of judgement."""
    kind: str | None = "kind"
    """"data" or "join"; null is data. None: all are data."""
    fcnt: str | None = "fcnt"
    """The device's counter, of 16 or 32 bits. None: nothing can be known to be missing."""
    device: tuple[str, ...] = ("device",)
    """Together they name the device: the same one for every reception of a frame. Its last counted frame is known
    beyond the expiry, and its counters are searched for missing ones. Empty: they are not, and each frame is known for
    ever."""

    key_role, ranged = "frame", "device"
    plain = ("frame", "station", "kind", "device")
    times = ("time",)
    required = ("frame", "station", "time", "device")


def collation(kind: T.DataType) -> str | None:
    """The collation of a text column, by which values with different bytes can be equal; None: there is none."""
    name = getattr(kind, "collation", None)
    return None if name in (None, "UTF8_BINARY") else str(name)


def refuse_ours(df: DataFrame) -> None:
    """Refuse a table with a column whose name has one of our prefixes."""
    for name in df.columns:
        if name.lower().startswith(OURS):
            raise Misuse(f"there is a column {name!r}: rename it, such names are added on the way", column=name)


class Moment(NamedTuple):
    """The value of a time column; null if the cell is null or no time."""

    ms: Column
    """Milliseconds since 1970, rounded down; of whole numbers the number, whatever its unit."""
    below: Column | None
    """The nanoseconds below the millisecond, from 0 to 999,999. None: this type of column has none."""


def whole(df: DataFrame, name: str) -> Column:
    """The column as a long; null where it is not a whole number."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, EXACT):
        return F.when(column % 1 == 0, try_cast(F.floor(column), "long"))
    return try_cast(column, "long") if isinstance(kind, TEXT) else column.cast("long")


def moment(df: DataFrame, name: str) -> Moment:
    """The column as a time; uses the parsed columns of `readings` if they were added to the table."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, TEXT):
        return (_Written.added(name) if _Written.name(name, 0) in df.columns else _Written.of(column)).moment
    if isinstance(kind, STAMPS):
        at = _instant(column, kind)
        return Moment(F.unix_millis(at), _below(at))
    if isinstance(kind, T.DateType):
        return Moment(F.unix_date(column).cast("long") * DAY_MS, None)
    return Moment(whole(df, name), None)


def readings(df: DataFrame, names: Iterable[str | None]) -> dict[str, Column]:
    """Columns to add to a table before `moment` is called repeatedly for these columns, so that text is parsed once."""
    texts = [name for name in names if name is not None and isinstance(df.schema[name].dataType, TEXT)]
    return {_Written.name(name, i): part for name in texts for i, part in enumerate(_Written.of(F.col(quoted(name))))}


def written_moment(text: Column) -> Moment:
    """A text as a time: a whole number is milliseconds, anything else must be ISO 8601."""
    return _Written.of(text).moment


class _Written(NamedTuple):
    """A parsed text: a whole number, or an instant and its nanoseconds below the microsecond."""

    number: Column
    at: Column
    finer: Column

    @classmethod
    def of(cls, text: Column) -> _Written:
        text = F.trim(text.cast(T.StringType()))  # without a collation, which regular expressions may not support
        number = try_cast(text, "long")
        finer = F.rpad(F.regexp_extract(text, "[.][0-9]{6}([0-9]{1,3})", 1), 3, "0").cast("long")
        # ISO 8601 as Spark reads it, with seconds and a zone; else null: Spark would also accept a time without a date.
        zoned = (
            F.when(text.rlike(_SECONDS + _ZONE), text)
            .when(text.rlike(_SECONDS + "$"), F.concat(text, F.lit("Z")))
            .when(text.rlike(_DATE + "$"), F.concat(text, F.lit("T00:00:00Z")))
            .when(text.rlike(_CLOCK + "$"), F.concat(text, F.lit(":00Z")))
            .when(text.rlike(_CLOCK + _ZONE), F.regexp_replace(text, f"({_CLOCK})", "$1:00"))
        )
        at = try_cast(zoned, "timestamp")
        return cls(number, F.when(number.isNull(), at), F.when(number.isNull(), finer))

    @classmethod
    def added(cls, name: str) -> _Written:
        return cls(*(F.col(quoted(cls.name(name, i))) for i in range(len(cls._fields))))

    @classmethod
    def name(cls, column: str, i: int) -> str:
        return f"_onefold_{cls._fields[i]}_{column}"

    @property
    def moment(self) -> Moment:
        below = F.when(self.number.isNull(), _below(self.at) + self.finer).otherwise(F.lit(0).cast("long"))
        return Moment(F.coalesce(self.number, F.unix_millis(self.at)), below)


def milliseconds(df: DataFrame, name: str) -> Column:
    """The column as milliseconds since 1970, rounded down; null where it holds no time."""
    return moment(df, name).ms


def in_order(df: DataFrame, name: str) -> Column:
    """The column as longs in the order of its times, to the microsecond; null where it holds no time.

    Whole numbers are unchanged. In text they may occur beside times, and are converted to microseconds: up to 2^43,
    beyond which they continue by ones, so that nothing overflows and numbers of any unit keep their order.
    """
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, STAMPS):
        return F.unix_micros(_instant(column, kind))
    ms, below = moment(df, name)
    if below is None:
        return ms
    most = _LONG_MAX - 1000 * TIMESTAMP_MAX
    spread = _within(ms, most) + 999 * _within(ms, TIMESTAMP_MAX)
    micros = F.when(ms.between(-TIMESTAMP_MAX, TIMESTAMP_MAX - 1), F.call_function("div", below, F.lit(1000)))
    return F.when(ms.isNotNull(), spread + F.coalesce(micros, F.lit(0).cast("long")))


def ordered_time(df: DataFrame, name: str, value: Column) -> Column:
    """The inverse of `in_order`: a time of the column's type if it is one of times, else milliseconds."""
    kind, unit = df.schema[name].dataType, unit_of(df, name)
    if isinstance(kind, STAMPS):
        below = F.pmod(value, F.lit(1000))
        return as_time(F.call_function("div", value - below, F.lit(1000)), below * 1000, kind)
    if unit == "text":
        far = F.abs(value) > 1000 * TIMESTAMP_MAX
        near = F.call_function("div", value, F.lit(1000))
        return F.when(far, value - F.signum(value).cast("long") * 999 * TIMESTAMP_MAX).otherwise(near)
    return as_time(value, None, kind) if isinstance(kind, TIME) else value


def unit_of(df: DataFrame, name: str) -> Literal["ms", "us", "text"]:
    """The unit of `in_order` for a column: milliseconds, microseconds, or, for text, either."""
    kind = df.schema[name].dataType
    return "us" if isinstance(kind, STAMPS) else "text" if isinstance(kind, TEXT) else "ms"


def no_time(df: DataFrame, name: str) -> Column | None:
    """Whether the column holds a value that is no time; None: all values of its type are times."""
    if not isinstance(df.schema[name].dataType, (*TEXT, *EXACT)):
        return None
    return F.col(quoted(name)).isNotNull() & milliseconds(df, name).isNull()


def as_time(ms: Column, nanos: Column | None, kind: T.DataType) -> Column:
    """A moment as a value of a time type; ``nanos``: the part below the millisecond."""
    if isinstance(kind, T.DateType):
        return F.date_from_unix_date(F.call_function("div", ms, F.lit(DAY_MS)).cast("int"))
    below = F.lit(0).cast("long") if nanos is None else F.call_function("div", nanos, F.lit(1000))
    micros = ms * 1000 + below
    return F.timestamp_micros(micros) if isinstance(kind, T.TimestampType) else _epoch() + micros * _microsecond()


def told(df: DataFrame, name: str) -> Column:
    """A value for JSON: numbers and text unchanged, times in ISO 8601, bytes in hex, anything else as text."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, STAMPS):
        micros = F.unix_micros(_instant(column, kind))
        text = F.translate((_epoch() + micros * _microsecond()).cast("string"), " ", "T")
        column = F.concat(text, F.lit("Z")) if isinstance(kind, T.TimestampType) else text
    elif isinstance(kind, T.BinaryType):
        column = F.lower(F.hex(column))
    elif not isinstance(kind, (*WHOLE, *TEXT, T.BooleanType, T.FloatType, T.DoubleType)):
        column = column.cast("string")
    return column.alias(name)


def cut_text(df: DataFrame, name: str, chars_max: int) -> Column:
    """A value as text, bytes in hex, no longer than this."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, T.BinaryType):
        column = F.lower(F.hex(F.substring(column, 1, chars_max)))
    return F.left(column.cast("string"), F.lit(chars_max)).alias(name)


def _instant(column: Column, kind: T.DataType) -> Column:
    """A timestamp; one without a zone is taken as UTC, while a cast would use the session's time zone."""
    if isinstance(kind, T.TimestampType):
        return column
    return F.timestamp_micros(F.call_function("div", column - _epoch(), _microsecond()))


def _epoch() -> Column:
    return F.expr("timestamp_ntz '1970-01-01 00:00:00'")


def _microsecond() -> Column:
    return F.expr("interval '0.000001' second")


def _below(at: Column) -> Column:
    return F.pmod(F.unix_micros(at), F.lit(1000)) * 1000


def _within(value: Column, bound: int) -> Column:
    return F.greatest(F.least(value, F.lit(bound)), F.lit(-bound))


def quoted(name: str) -> str:
    """The name in backticks, so that dots and spaces are part of it."""
    return "`" + name.replace("`", "``") + "`"


class Packed(NamedTuple):
    """A row's numbers, as columns of longs; ``arrival`` is null where it is not known."""

    previous: Column
    number: Column
    arrival: Column


def packed(df: DataFrame, columns: ChainColumns, jump_max_ms: int | None) -> Packed:
    """The packed numbers of every row; ``number`` is negative if the row is refused."""
    own = _Parts.of(df, columns.timestamp, columns.sequence)
    before = None
    if columns.previous_timestamp is not None:
        before = _Parts.of(df, columns.previous_timestamp, columns.previous_sequence)
    fine = columns.sequence is None and columns.previous_sequence is None
    parts = [own] if before is None else [own, before]
    number, none = own.packed(fine), F.lit(NO_PREVIOUS).cast("long")
    previous = none if before is None else F.coalesce(before.packed(fine), none)
    bad = own.not_natural
    if before is not None:  # half a previous number, or one that does not parse, is malformed
        names = [name for name in (columns.previous_timestamp, columns.previous_sequence) if name is not None]
        bad |= _any([F.col(quoted(name)).isNotNull() for name in names]) & before.not_natural
    finer = [] if fine else [part.time.below > 0 for part in parts if part.time.below is not None]
    jumps = None
    if jump_max_ms is not None and columns.arrival is not None:
        arrival = milliseconds(df, columns.arrival)
        # An absurdly early arrival must not overflow, which would end the job.
        bounded = F.when(arrival < -TIMESTAMP_MAX, F.lit(-TIMESTAMP_MAX)).otherwise(arrival)
        jumps = own.time.ms - bounded > jump_max_ms
    refusals = [
        ("malformed", F.col(CORRUPT).isNotNull() if CORRUPT in df.columns else None),
        ("null_key", _any([F.col(quoted(name)).isNull() for name in columns.key])),
        ("bad_number", bad),
        ("number_out_of_range", _any([part.too_big for part in parts])),
        ("time_too_fine", _any(finer) if finer else None),
        ("bad_numbering", previous >= number),
        ("bad_time", None if columns.arrival is None else no_time(df, columns.arrival)),
        ("jump_too_far", jumps),
    ]
    judged = number
    for reason, condition in reversed(refusals):
        if condition is not None:
            judged = F.when(condition, F.lit(refused(reason)).cast("long")).otherwise(judged)
    return Packed(previous, judged, number if columns.arrival is None else in_order(df, columns.arrival))


class _Parts(NamedTuple):
    """A number: its time, and its sequence if there is a column of it."""

    time: Moment
    sequence: Column | None

    @classmethod
    def of(cls, df: DataFrame, timestamp: str, sequence: str | None) -> _Parts:
        return cls(moment(df, timestamp), None if sequence is None else whole(df, sequence))

    def packed(self, fine: bool) -> Column:
        """One long. ``fine``: without a sequence, the part of the time below the millisecond takes its place."""
        rest = self.time.below if fine and self.sequence is None else self.sequence
        return F.shiftleft(self.time.ms, SEQUENCE_BITS).bitwiseOR(F.lit(0).cast("long") if rest is None else rest)

    @property
    def not_natural(self) -> Column:
        return _any([part.isNull() | (part < 0) for part in (self.time.ms, self.sequence) if part is not None])

    @property
    def too_big(self) -> Column:
        late = self.time.ms > TIMESTAMP_MAX
        return late if self.sequence is None else late | (self.sequence > SEQUENCE_MAX)


def _any(conditions: list[Column]) -> Column:
    return reduce(or_, conditions)
