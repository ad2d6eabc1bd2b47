"""Receptions, whatever they are stored as, in one normal form: one row per reception.

    kind frame device fcnt confirmed station time_ms own_time rssi snr payload source
    _corrupt_record received_ms clock_off_ms

Which shape a row has is decided row by row (`reception_shapes`). Three things can come of a row:

* receptions, one or several: an event may list all gateways that heard it;
* nothing, if it is none (a status event, a station's hello): `not_receptions` has it, and it is counted, not judged;
* a reception that should be one and cannot be read: it is kept, with its text in ``_corrupt_record``, to be rejected.

Time is the station's own clock where it has one. A clock that is far from the server's is not believed, or one gateway
that woke up in 1980 would tear every frame apart that it heard: then the time is when the server received it, as it is
where there is no clock; ``own_time`` says which, ``clock_off_ms`` how far off the clock was.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark.columns import TIME, milliseconds, quoted
from onefold.spark.reception_fields import believable, eui, instant, number, real, yes
from onefold.spark.reception_shapes import (
    NOT_RECEPTION,
    RX_NAMES,
    SHAPES,
    Fields,
    Shape,
    Stored,
    damaged,
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
"""Half of the usual expiry: two clocks that are believed never are further apart than the window of a frame."""

CLOCK_SET_MS: Final = 315_964_800_000
"""6 January 1980, where GPS begins. No gateway is older: an earlier clock was never set."""

MALFORMED: Final = "malformed"
"""The source of a row that is not even a JSON object."""

ROW: Final = "_place"
"""Which reception of its row it is; null: the row has no list of them."""

FCNT_MAX: Final = 0xFFFF_FFFF
TEXTS: Final = (
    "kind", "frame", "device", "fcnt", "confirmed", "payload", "station", "own", "received", "rssi", "snr",
)  # fmt: skip
"""What a shape may say of a row, as text."""

TABLE: Final = ("frame", "station", "time_ms")


def receptions(df: DataFrame, shape: str = "auto", *, clock_off_ms: int = CLOCK_OFF_MS) -> DataFrame:
    """The receptions of a table or stream in the normal form; ``shape`` is one of `SHAPES`, or "auto": by the row.

    The table may be our log, text (one JSON object a row in ``value``), events with their fields as columns, or a table
    that has the columns of the normal form already; of these it needs ``frame``, ``station`` and ``time_ms``.
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
    if set(TABLE) <= set(df.columns) and shape in ("auto", "table"):
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
    whole = F.coalesce("whole", F.lit(False)) & F.col("frame").isNotNull() & (F.col("fcnt").isNull() | fcnt.isNotNull())
    rows = rows.withColumns({"device": eui(F.col("device")), "fcnt": fcnt, "whole": whole})
    # In a list that can be read, an entry that cannot stands for itself: the text need not be carried for each of them.
    kept = F.when(F.coalesce(~F.col("whole") | (F.size("listed") == 0), F.lit(True)), F.col("text"))
    rows = rows.withColumn("text", kept)
    rows = rows.select("*", F.posexplode_outer("listed").alias(ROW, "rx")).drop("listed")
    rx = Fields(RX_NAMES, "_rx")
    said = {name: F.coalesce(text, F.col(name)) for name, text in heard_by(rx).items()}
    source = F.when(damaged(rx), F.lit(NOT_RECEPTION)).otherwise(F.col("source"))
    return rx.of(rows, "rx").withColumns({**said, "source": source})


def _normal(rows: DataFrame, clock_off_ms: int) -> DataFrame:
    """The same as what it means: numbers, times, addresses."""
    own, received = instant(F.col("own")), F.coalesce(instant(F.col("received")), F.col("stored_ms"))
    rows = rows.withColumns(
        {"own_ms": F.when(own >= CLOCK_SET_MS, own), "received_ms": received, "station": eui(F.col("station"))}
    )
    off = F.col("own_ms") - F.col("received_ms")
    believed = F.col("own_ms").isNotNull() & (F.coalesce(F.abs(off), F.lit(0)) <= clock_off_ms)
    judged = F.col("source") != NOT_RECEPTION
    whole = F.col("whole") & F.col("station").isNotNull()
    made = {
        "confirmed": F.when(judged, yes(F.col("confirmed"))),
        "time_ms": F.when(believed, F.col("own_ms")).otherwise(F.col("received_ms")),
        "own_time": F.when(judged, believed),
        "rssi": real(F.col("rssi")),
        "snr": real(F.col("snr")),
        "clock_off_ms": off,
        CORRUPT: F.when(judged & ~whole, F.coalesce("text", "rx")),
        "text": F.when(~judged, F.coalesce("text", "rx")),
    }
    return rows.withColumns(made).select(*TYPES, ROW, "text")


def _same_names(read: Mapping[str, Column]) -> Column:
    """What a shape says, under all the names that there are."""
    nothing = F.lit(None)
    texts = [read.get(name, nothing).cast("string").alias(name) for name in TEXTS]
    return F.struct(*texts, F.coalesce(read["whole"], F.lit(False)).alias("whole"))


def _table(df: DataFrame) -> DataFrame:
    """A table that has the columns already: those that it lacks are null, or what a reception usually is."""
    types = {kind.name: kind.dataType for kind in df.schema.fields}
    missing = {"kind": F.lit("data"), "own_time": F.lit(True), "source": F.lit("table")}

    def column(name: str, kind: str) -> Column:
        if name not in types:
            return missing.get(name, F.lit(None)).cast(kind)
        if name in ("time_ms", "received_ms"):
            return believable(milliseconds(df, name))
        return F.col(quoted(name)).try_cast(kind)

    for name in TABLE:
        wanted: tuple[type[T.DataType], ...] = (T.AtomicType,)
        if not isinstance(types[name], wanted):
            raise Misuse(f"column {name!r} is {types[name].simpleString()}, must be a plain value", column=name)
    null = F.lit(None)
    columns = [column(name, kind).alias(name) for name, kind in TYPES.items()]
    return df.select(*columns, null.cast("int").alias(ROW), null.cast("string").alias("text"))


def _text(df: DataFrame) -> tuple[Column, Column]:
    """The JSON text of every row, and when it was stored if the source tells."""
    types = {kind.name: kind.dataType for kind in df.schema.fields}

    def stored(name: str) -> Column:
        known = isinstance(types.get(name), TIME)
        return (believable(F.unix_millis(F.col(name))) if known else F.lit(None)).cast("long")

    for name, time, kinds in (
        ("payload", "time", (T.BinaryType,)),
        ("value", "timestamp", (T.BinaryType, T.StringType)),
    ):
        if isinstance(types.get(name), kinds):
            return F.col(name).cast("string"), stored(time)
    text = F.to_json(F.struct(*(F.col(quoted(name)) for name in df.columns if name != CORRUPT)))
    return (F.coalesce(F.col(CORRUPT), text) if CORRUPT in types else text), F.lit(None).cast("long")
