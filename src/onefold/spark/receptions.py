"""Receptions, whatever they are stored as, in one normal form: one row per reception.

    kind frame device fcnt confirmed station time_ms own_time rssi snr payload source
    _corrupt_record received_ms clock_off_ms

Which shape a row has is decided row by row (`reception_shapes`). Three things can come of a row:

* receptions, one or several: an event may list all gateways that heard it;
* nothing, if it is none (a status event, a station's hello): `not_receptions` has it, and it is counted, not judged;
* a reception that should be one and cannot be read: it is kept, with its text in ``_corrupt_record``, to be rejected.

Time is the station's own clock where it has one. It may be behind the server's by up to an hour, `LATE_MS`: a gateway
without a backhaul keeps what it hears, and its clock is right all the same. It may be ahead by no more than 30 seconds.
A clock beyond that is not believed, or one gateway that woke up in 1980 would tear every frame apart that it heard:
then the time is when the server received it, as it is where there is no clock; ``own_time`` says which,
``clock_off_ms`` how far off the clock was. Numbers are milliseconds: one from before 1980 (seconds, for instance) is no
time, and a reception without any is rejected as ``bad_time``. Rows that are in the normal form already, in columns or
as JSON, are believed as they stand.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.engines.lorawan.bank import LATE_MS
from onefold.errors import Misuse
from onefold.spark.columns import EXACT, STAMPS, TEXT, WHOLE, milliseconds, quoted
from onefold.spark.reception_fields import believable, eui, instant, number, real, yes
from onefold.spark.reception_shapes import (
    LISTED,
    NOT_RECEPTION,
    RX_NAMES,
    SHAPES,
    TABLE,
    Fields,
    Shape,
    Stored,
    heard_by,
    opened,
)
from onefold.spark.validate import CORRUPT

TYPES: Final = {
    "kind": "string", "frame": "string", "device": "string", "fcnt": "long", "confirmed": "boolean",
    "station": "string", "time_ms": "long", "own_time": "boolean", "rssi": "double", "snr": "double",
    "payload": "string", "source": "string", CORRUPT: "string", "received_ms": "long", "clock_off_ms": "long",
}  # fmt: skip
"""The columns of the normal form."""

CLOCK_OFF_MS: Final = 30_000
"""Half of the usual expiry: what came at once is not torn apart by two clocks that are believed."""

CLOCK_SET_MS: Final = 315_964_800_000
"""6 January 1980, where GPS begins. No gateway is older: an earlier clock was never set."""

MALFORMED: Final = "malformed"
"""The source of a row that is not even a JSON object."""

ROW: Final = "_place"
"""Which reception of its row it is; null: the row has no list of them."""

FCNT_MAX: Final = 0xFFFF_FFFF
TEXTS: Final = (
    "kind", "frame", "device", "fcnt", "confirmed", "payload", "station", "own", "received", "rssi", "snr",
    "own_time", "clock_off_ms",
)  # fmt: skip
"""What a shape may say of a row, as text."""

MUST_HAVE: Final = ("frame", "station", "time_ms")
"""The columns by which a table in the normal form is known."""

_NUMBERS: Final = (*WHOLE, *TEXT, *EXACT, T.FloatType, T.DoubleType, T.NullType)
_TIMES: Final = (*_NUMBERS, *STAMPS)
_MAY_BE: Final[Mapping[str, tuple[tuple[type[T.DataType], ...], str]]] = {
    "string": ((T.AtomicType, T.NullType), "a plain value"),
    "long": (_NUMBERS, "numbers"),
    "double": (_NUMBERS, "numbers"),
    "boolean": ((T.BooleanType, *_NUMBERS), "true or false"),
    "time": (_TIMES, "whole numbers or a timestamp"),
}


def receptions(df: DataFrame, shape: str = "auto", *, clock_off_ms: int = CLOCK_OFF_MS) -> DataFrame:
    """The receptions of a table or stream in the normal form; ``shape`` is one of `SHAPES`, or "auto": by the row.

    The table may be our log, text (one JSON object a row in ``value``), events with their fields as columns, or a table
    that has the columns of the normal form already; of these it needs ``frame``, ``station`` and ``time_ms``. A clock
    ahead of the server's by more than ``clock_off_ms`` is not believed, nor one behind it by more than `LATE_MS` (or by
    ``clock_off_ms``, where that is more).
    """
    found = recognised(df, shape, clock_off_ms=clock_off_ms)
    return found.where(F.col("source") != NOT_RECEPTION).select(*TYPES)


def not_receptions(df: DataFrame, shape: str = "auto") -> DataFrame:
    """The rows that are no receptions, as ``text``."""
    found = recognised(df, shape)
    return found.where(F.col("source") == NOT_RECEPTION).select("text")


def recognised(df: DataFrame, shape: str = "auto", *, clock_off_ms: int = CLOCK_OFF_MS) -> DataFrame:
    """Receptions and what is none together: the normal form, with ``source`` "not_reception" and ``text`` for the rest.

    A row of the source is counted where ``_place`` is null or 0.
    """
    if shape != "auto" and shape not in SHAPES:
        raise Misuse(f"shape is {shape!r}, must be auto, {', '.join(SHAPES)}", shape=shape)
    if clock_off_ms < 0:
        raise Misuse(f"clock_off_ms is {clock_off_ms}, must be at least 0", clock_off_ms=clock_off_ms)
    if set(MUST_HAVE) <= set(df.columns) and shape in ("auto", TABLE):
        return _table(df)
    text, stored_ms = _text(df)
    rows, row = opened(df.select(text.alias("text"), stored_ms.alias("stored_ms")))
    told = _told(rows, row, list(SHAPES.values()) if shape == "auto" else [SHAPES[shape]])
    return _normal(_each(told), clock_off_ms)


def _told(rows: DataFrame, row: Stored, shapes: list[Shape]) -> DataFrame:
    """What the rows say, each by its own shape: texts under the same names."""
    source = F.lit(NOT_RECEPTION)
    for shape in reversed(shapes):
        named = F.when(shape.is_reception(row), F.lit(shape.name)).otherwise(F.lit(NOT_RECEPTION))
        source = F.when(shape.known(row), named).otherwise(source)
    broken = row.fields.none & F.from_json("text", "map<string,string>").isNull()
    rows = rows.withColumn("source", F.when(broken, F.lit(MALFORMED)).otherwise(source))
    said = F.lit(None)
    for shape in shapes:
        said = F.when(F.col("source") == shape.name, _same_names(shape.read(row))).otherwise(said)
    return rows.select("text", "stored_ms", "source", "listed", said.alias("said")).select(
        "text", "stored_ms", "source", "listed", "said.*"
    )


def _each(rows: DataFrame) -> DataFrame:
    """One row for each of those who heard it, where there is a list of them."""
    fcnt = number(F.col("fcnt"), 0, FCNT_MAX)
    as_said = F.col("source") == TABLE
    whole = F.col("frame").isNotNull() & (F.col("fcnt").isNull() | fcnt.isNotNull())
    whole = F.coalesce("whole", F.lit(False)) & (as_said | whole)
    device = F.when(as_said, F.col("device")).otherwise(eui(F.col("device")))
    listed = F.when(F.col("source").isin(*LISTED), F.col("listed"))
    rows = rows.withColumns({"device": device, "fcnt": fcnt, "whole": whole, "listed": listed})
    # In a list that can be read, an entry that cannot stands for itself: the text need not be carried for each of them.
    kept = F.when(F.coalesce(~F.col("whole") | (F.array_size("listed") == 0), F.lit(True)), F.col("text"))
    rows = rows.withColumn("text", kept)
    rows = rows.select("*", F.posexplode_outer("listed").alias(ROW, "rx")).drop("listed")
    rx = Fields(RX_NAMES, "_rx")
    said = {name: F.coalesce(text, F.col(name)) for name, text in heard_by(rx).items()}
    return rx.of(rows, "rx").withColumns(said)


def _normal(rows: DataFrame, clock_off_ms: int) -> DataFrame:
    """The same as what it means: numbers, times, addresses."""
    judged, as_said = F.col("source") != NOT_RECEPTION, F.col("source") == TABLE

    def set_clock(time_ms: Column) -> Column:
        return F.when(as_said | (time_ms >= CLOCK_SET_MS), time_ms)

    received = F.coalesce(set_clock(instant(F.col("received"))), F.when(~as_said, F.col("stored_ms")))
    station = F.when(as_said, F.col("station")).otherwise(eui(F.col("station")))
    rows = rows.withColumns({"own_ms": set_clock(instant(F.col("own"))), "received_ms": received, "station": station})
    own = F.col("own_ms")
    off = F.when(as_said, F.col("clock_off_ms").try_cast("long")).otherwise(own - F.col("received_ms"))
    near = F.coalesce(off.between(-max(LATE_MS, clock_off_ms), clock_off_ms), F.lit(True))
    believed = F.when(as_said, F.coalesce(F.col("own_time").try_cast("boolean"), F.lit(True)))
    believed = believed.otherwise(own.isNotNull() & near)
    whole = F.col("whole") & (as_said | F.col("station").isNotNull())
    made = {
        "confirmed": F.when(judged, yes(F.col("confirmed"))),
        "time_ms": F.when(as_said | believed, own).otherwise(F.col("received_ms")),
        "own_time": F.when(judged, believed),
        "rssi": real(F.col("rssi")),
        "snr": real(F.col("snr")),
        "clock_off_ms": off,
        CORRUPT: F.when(judged & ~whole, F.coalesce("text", "rx")),
        "text": F.when(~judged, F.col("text")),
    }
    return rows.withColumns(made).select(*TYPES, ROW, "text")


def _same_names(read: Mapping[str, Column]) -> Column:
    """What a shape says, under all the names that there are."""
    nothing = F.lit(None)
    texts = [read.get(name, nothing).cast("string").alias(name) for name in TEXTS]
    return F.struct(*texts, F.coalesce(read["whole"], F.lit(False)).alias("whole"))


def _table(df: DataFrame) -> DataFrame:
    """A table that has the columns already: those that it lacks are null, or what a reception usually is."""
    usual = {"kind": F.lit("data"), "own_time": F.lit(True)}
    columns = []
    for name, kind in TYPES.items():
        said = F.lit(None).cast(kind)
        if name == "source":
            said = F.lit(TABLE)  # whatever theirs is, ours says how the row was read
        elif name in df.columns:
            said = _said(df, name)
        columns.append((F.coalesce(said, usual[name]) if name in usual else said).alias(name))
    null = F.lit(None)
    return df.select(*columns, null.cast("int").alias(ROW), null.cast("string").alias("text"))


def _said(df: DataFrame, name: str) -> Column:
    """A column as the normal form has it, or `Misuse` that says why it cannot be."""
    column = column_of(df, name)
    if column is None:
        found, wanted = df.schema[name].dataType.simpleString(), _MAY_BE[_meaning(name)][1]
        raise Misuse(f"column {name!r} is {found}, must be {wanted}", column=name)
    return column


def column_of(df: DataFrame, name: str) -> Column | None:
    """A column of the normal form, of whatever type a table has it; None: it is of one that cannot be.

    Bytes become hex; a value that is none (not a number, beyond all bounds) becomes null.
    """
    column, type_, meaning = F.col(quoted(name)), df.schema[name].dataType, _meaning(name)
    if not isinstance(type_, _MAY_BE[meaning][0]):
        return None
    if meaning == "time":
        if isinstance(type_, STAMPS):
            return believable(milliseconds(df, name))
        return believable(instant(column) if isinstance(type_, TEXT) else column.try_cast("long"))
    if meaning == "string":
        return text_of(df, name)
    if name == "fcnt":
        return number(column, 0, FCNT_MAX)
    return real(column) if meaning == "double" else column.try_cast(TYPES[name])


def text_of(df: DataFrame, name: str) -> Column:
    """A column as text; bytes as hex."""
    column = F.col(quoted(name))
    return F.lower(F.hex(column)) if isinstance(df.schema[name].dataType, T.BinaryType) else column.cast("string")


def _meaning(name: str) -> str:
    return "time" if name in ("time_ms", "received_ms") else TYPES[name]


def _text(df: DataFrame) -> tuple[Column, Column]:
    """The JSON text of every row, and when it was stored if the source tells."""
    types = {kind.name: kind.dataType for kind in df.schema.fields}

    def stored(name: str) -> Column:
        known = isinstance(types.get(name), STAMPS)
        return (believable(milliseconds(df, name)) if known else F.lit(None)).cast("long")

    for name, time, kinds in (
        ("payload", "time", (T.BinaryType,)),
        ("value", "timestamp", (T.BinaryType, T.StringType)),
    ):
        if isinstance(types.get(name), kinds):
            return F.col(name).cast("string"), stored(time)
    text = F.to_json(F.struct(*(F.col(quoted(name)) for name in df.columns if name != CORRUPT)))
    return (F.coalesce(F.col(CORRUPT), text) if CORRUPT in types else text), F.lit(None).cast("long")
