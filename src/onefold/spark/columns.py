"""Which columns of a table hold a message's chain and numbers, or its producer and sequence; and whether they can.

Numbers may be whole-number columns, or text that is parsed row by row (what does not parse is that row's problem). An
arrival may also be a Spark timestamp. Anything else is a mistake of the caller, found before a single row is read.
"""

from dataclasses import dataclass, fields

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse

WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
TEXT = (T.StringType,)
TIME = (T.TimestampType,)
EXACT = (T.DecimalType,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainColumns:
    """The names of the columns; None says that there is no such column.

    >>> ChainColumns(key=("device",), timestamp="ts", sequence=None, arrival="received").key
    ('device',)
    """

    key: tuple[str, ...] = ("stream", "partition", "publisher", "chain")
    """Together they name the chain; plain values of any type, not arrays, structs or maps."""
    timestamp: str = "timestamp"
    sequence: str | None = "sequence"
    """None: every sequence is 0."""
    previous_timestamp: str | None = "previous_timestamp"
    """None: no message names its previous one, so each is only compared with the newest."""
    previous_sequence: str | None = "previous_sequence"
    arrival: str | None = "arrival"
    """The order of judgement. None: rows are judged in the order of their numbers."""

    def __post_init__(self) -> None:
        if not self.key:
            raise Misuse("key is empty, must name at least one column", key=self.key)

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is there."""
        singles = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "key"]
        return [("key", name) for name in self.key] + [(role, name) for role, name in singles if name is not None]

    def check(self, df: DataFrame) -> None:
        """Raise `Misuse` that names the column if one is missing or of a type that cannot be what it should be."""
        check_columns(df, self.named, plain=("key",), required=("key", "timestamp"), time="arrival")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerColumns:
    """The names of the columns; None says that there is no such column.

    >>> ProducerColumns(producer=("topic", "pid"), sequence="seq", order="offset", payload=("value",)).producer
    ('topic', 'pid')
    """

    producer: tuple[str, ...] = ("producer",)
    """Together they name the producer; plain values of any type, not arrays, structs or maps."""
    sequence: str = "sequence"
    order: str | None = None
    """The order of judgement, such as the offset in the log. None: rows are judged in the order of their sequences."""
    epoch: str | None = None
    """A row whose epoch is below that of an earlier one comes from a zombie. Null or negative: it has none."""
    payload: tuple[str, ...] = ()
    """The content: two rows of one sequence that differ in it contradict each other. Empty: this is not checked."""

    def __post_init__(self) -> None:
        if not self.producer:
            raise Misuse("producer is empty, must name at least one column", producer=self.producer)

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is there."""
        singles = [("sequence", self.sequence), ("order", self.order), ("epoch", self.epoch)]
        return [
            *(("producer", name) for name in self.producer),
            *((role, name) for role, name in singles if name is not None),
            *(("payload", name) for name in self.payload),
        ]

    def check(self, df: DataFrame) -> None:
        """Raise `Misuse` that names the column if one is missing or of a type that cannot be what it should be."""
        plain = ("producer", "payload")
        check_columns(
            df, self.named, plain=plain, required=("producer", "sequence", "payload"), time="order", exact="sequence"
        )


def check_columns(
    df: DataFrame,
    named: list[tuple[str, str]],
    *,
    plain: tuple[str, ...],
    required: tuple[str, ...],
    time: str,
    exact: str | None = None,
) -> None:
    """Raise `Misuse` that names the column if one of these (role, column) is missing or of a type that cannot be.

    ``plain``: roles that may be any plain value; ``time``: the one that may be a timestamp; ``exact``: the one that may
    be a decimal. All else must be whole numbers or text.
    """
    types = {field.name: field.dataType for field in df.schema.fields}
    for role, name in named:
        if name not in types:
            hint = "" if role in required else f"; if there is none, say so: {role} = none"
            raise Misuse(f"no column {name!r} ({role}): the columns are {', '.join(types)}{hint}", column=name)
        allowed = (*WHOLE, *TEXT, *(TIME if role == time else ()), *(EXACT if role == exact else ()))
        if role not in plain and not isinstance(types[name], allowed):
            wanted = "whole numbers or a timestamp" if role == time else "whole numbers"
            raise Misuse(f"column {name!r} ({role}) is {types[name].simpleString()}, must be {wanted}", column=name)
        if role in plain and not isinstance(types[name], T.AtomicType):
            # Spark hashes nested values by their leaves alone: ["a"], ["b"] and ["a", "b"], [] would be one chain.
            raise Misuse(
                f"column {name!r} ({role}) is {types[name].simpleString()}, must be a plain value", column=name
            )


def whole(df: DataFrame, name: str) -> Column:
    """The column as a long; null where it holds none."""
    column, kind = F.col(quoted(name)), df.schema[name].dataType
    if isinstance(kind, EXACT):
        return F.when(column % 1 == 0, column.try_cast("long"))
    return column.try_cast("long") if isinstance(kind, TEXT) else column.cast("long")


def milliseconds(df: DataFrame, name: str) -> Column:
    """The column as milliseconds since 1970; null where it holds none."""
    return F.unix_millis(F.col(quoted(name))) if isinstance(df.schema[name].dataType, TIME) else whole(df, name)


def quoted(name: str) -> str:
    """The name as Spark must see it, so that dots and spaces are part of it."""
    return "`" + name.replace("`", "``") + "`"
