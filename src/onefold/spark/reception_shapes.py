"""The shapes in which receptions are stored, and how each is read. One entry of `SHAPES` a shape.

A shape is known by a field that only it has, so rows of several shapes may be mixed. What it says of a row comes as
columns of text, which `receptions` reads all alike; ``whole`` says whether all else is there that a row must have. Two
shapes have a list of those who heard the frame, `rxInfo`: what that says is read once for each of them.

====================  =============================================  ==============================================
shape                 a row is                                       frames are told apart by
====================  =============================================  ==============================================
``onefold``           a record of our own log (services/gateway)     the level-1 key, which it carries
``bridge``            an uplink event of a gateway bridge            the level-1 key, from the PHYPayload
``lns``               a Basics Station message, updf or jreq         the level-1 key, from the fields
``chirpstack``        an application event (v3, v4) with rxInfo[]    device, counter, port, payload: there is no MIC
``table``             a reception in the normal form                 what the table says
====================  =============================================  ==============================================
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.spark import reception_frames as frames
from onefold.spark.reception_fields import content, eui, hexadecimal, joined, objects, octets
from onefold.spark.validate import CORRUPT

NOT_RECEPTION: Final = "not_reception"
"""The source of a row that is no reception, such as a status event: neither judged nor rejected, but counted."""

TABLE: Final = "table"
"""The shape of the normal form: what it says is taken as it stands."""

LISTED: Final = ("bridge", "chirpstack")
"""Those that have a list of who heard the frame."""

RECEIVED: Final = ("received_ms", "at_ms", "time", "publishedAt", "_timestamp")
"""What the time is called at which a row was received or stored."""

NAMES: Final = (
    *RECEIVED, "v", "kind", "key", "dev_eui", "dev_addr", "fcnt", "confirmed", "payload", "station", "router",
    "time_ms", "rssi", "snr", "verdict", "reason", "phyPayload", "msgtype", "message", "rxInfo", "deviceInfo",
    "devEUI", "devEui", "devAddr", "fCnt", "fPort", "data", "confirmedUplink", "frame", "device", "own_time",
    "clock_off_ms", CORRUPT,
)  # fmt: skip
"""The fields that any shape looks at; upper and lower case are told apart."""

RX_NAMES: Final = ("gatewayId", "gatewayID", "gwTime", "nsTime", "time", "rssi", "snr", "loRaSNR")
"""Those of an entry of rxInfo."""


class Fields:
    """The fields of a JSON object, each as text under its own name."""

    def __init__(self, names: Sequence[str], prefix: str) -> None:
        self._columns = {name: f"{prefix}{n}" for n, name in enumerate(names)}

    def __getitem__(self, name: str) -> Column:
        return F.col(self._columns[name])

    def first(self, *names: str) -> Column:
        """The first of these fields that is there and not null."""
        return F.coalesce(*(self[name] for name in names))

    def of(self, rows: DataFrame, text: str) -> DataFrame:
        """The rows with the fields of the objects in a column; all null where there is none."""
        return rows.select("*", F.json_tuple(F.col(text), *self._columns).alias(*self._columns.values()))

    @property
    def none(self) -> Column:
        """Whether there is not one of them."""
        return F.coalesce(*(F.col(column) for column in self._columns.values())).isNull()


class Stored(NamedTuple):
    """A row, opened."""

    fields: Fields
    listed: Column
    """The entries of rxInfo as text, but for damaged ones; null if there is no such list, or none that can be read."""
    damaged: Column
    """Whether there are entries, and all of them are damaged."""
    info: Column
    """deviceInfo of an application event."""
    phy: Column
    """The frame of its PHYPayload."""
    lns: Column
    """The frame of what a station said; it may be wrapped: ``{"station": ..., "message": {...}}``."""


class Shape(NamedTuple):
    """How to know a shape, how to know what is no reception in it, and how to read the rest."""

    name: str
    known: Callable[[Stored], Column]
    is_reception: Callable[[Stored], Column]
    read: Callable[[Stored], Mapping[str, Column]]


def opened(rows: DataFrame) -> tuple[DataFrame, Stored]:
    """The rows of a column ``text`` with what is in them."""
    fields = Fields(NAMES, "_f")
    rows = fields.of(rows, "text").withColumns(
        {
            "entries": objects(fields["rxInfo"]),
            "info": F.from_json(fields["deviceInfo"], "devEui string"),
        }
    )
    rows = rows.withColumn("listed", F.filter("entries", lambda entry: ~_damaged(entry)))
    none_left = (F.array_size("listed") == 0) & (F.array_size("entries") > 0)
    rows = rows.withColumn("damaged", F.coalesce(none_left, F.lit(False))).drop("entries")
    said = F.coalesce(fields["message"], F.when(fields["msgtype"].isNotNull(), F.col("text")))
    rows = frames.with_frames(rows, octets(fields["phyPayload"]), said)
    return rows, Stored(fields, *(F.col(name) for name in Stored._fields[1:]))


def heard_by(rx: Fields) -> dict[str, Column]:
    """What an entry of rxInfo says, in any version; ``received`` is when its gateway's message came."""
    return {
        "station": rx.first("gatewayId", "gatewayID"),
        "own": rx.first("gwTime", "time"),
        "received": rx["nsTime"],
        "rssi": rx["rssi"],
        # Version 4 leaves out what is zero.
        "snr": F.coalesce(rx.first("snr", "loRaSNR"), F.when(rx["gatewayId"].isNotNull(), F.lit("0"))),
    }


def _damaged(entry: Column) -> Column:
    """Whether a gateway itself says that what it heard is not what was sent: then it heard no frame."""
    status = F.when(entry.contains("crcStatus"), F.get_json_object(entry, "$.crcStatus"))
    return F.coalesce(status.isin("BAD_CRC", "1"), F.lit(False))


def _onefold(row: Stored) -> dict[str, Column]:
    fields, kind, frame = row.fields, row.fields["kind"], hexadecimal(row.fields["key"])
    # With all receptions kept, the log also has those that the server found forged.
    forged = F.coalesce(fields["reason"] == "bad_mic", F.lit(False))
    return {
        "kind": kind,
        "frame": F.when(F.length(frame) == 64, frame),
        "device": fields.first("dev_eui", "dev_addr"),
        "own": fields["time_ms"],
        "received": fields["received_ms"],
        "payload": hexadecimal(fields["payload"]),
        **{name: fields[name] for name in ("fcnt", "confirmed", "station", "rssi", "snr")},
        "whole": ~forged & ((kind == "join") | ((kind == "data") & fields["fcnt"].isNotNull())),
    }


def _of_frame(frame: Column) -> dict[str, Column]:
    columns = {name: frame[name] for name in ("kind", "frame", "device", "fcnt", "confirmed", "payload")}
    return {**columns, "whole": frame["frame"].isNotNull()}


def _bridge(row: Stored) -> dict[str, Column]:
    return {**_of_frame(row.phy), "received": row.fields.first(*RECEIVED)}


def _lns(row: Stored) -> dict[str, Column]:
    return {
        **_of_frame(row.lns),
        "station": row.fields.first("station", "router"),
        "own": row.lns["own_ms"],
        "received": row.fields.first(*RECEIVED),
        "rssi": row.lns["rssi"],
        "snr": row.lns["snr"],
    }


def _chirpstack(row: Stored) -> dict[str, Column]:
    fields, said, data = row.fields, row.fields["fCnt"], row.fields["data"]
    # A join event of version 3 has receptions too, and no counter. Version 4 leaves out what is zero or empty.
    join = row.info.isNull() & F.coalesce(said, data).isNull()
    fcnt = F.when(~join, F.coalesce(said, F.lit("0")))
    kind = F.when(join, F.lit("join")).otherwise(F.lit("data"))
    device = F.coalesce(row.info["devEui"], fields.first("devEUI", "devEui"))
    return {
        "kind": kind,
        "frame": joined(kind, eui(device), fcnt, fields["fPort"], data, F.when(join, fields["devAddr"])),
        "device": device,
        "fcnt": fcnt,
        "confirmed": fields.first("confirmed", "confirmedUplink"),
        "payload": content(data),
        "received": fields.first(*RECEIVED),
        "whole": row.listed.isNotNull() & device.isNotNull(),
    }


def _table(row: Stored) -> dict[str, Column]:
    fields = row.fields
    same = ("frame", "device", "fcnt", "confirmed", "station", "rssi", "snr", "payload", "own_time", "clock_off_ms")
    return {
        **{name: fields[name] for name in same},
        "kind": F.coalesce(fields["kind"], F.lit("data")),
        "own": fields["time_ms"],
        "received": fields["received_ms"],
        "whole": fields[CORRUPT].isNull(),
    }


def _has(*names: str) -> Callable[[Stored], Column]:
    return lambda row: F.coalesce(*(row.fields[name] for name in names)).isNotNull()


def _is_frame(row: Stored) -> Column:
    return F.coalesce(row.phy["kind"] != "other", F.lit(True)) & ~row.damaged


def _always(_: Stored) -> Column:
    return F.lit(True)


SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape("onefold", lambda row: _has("v")(row) & _has("verdict")(row), _always, _onefold),
        # A gateway hears frames of gateways and of other protocols too.
        Shape("bridge", _has("phyPayload"), _is_frame, _bridge),
        # A station also says hello, asks for the time, and tells what it sent.
        Shape("lns", lambda row: row.lns.isNotNull(), lambda row: row.lns["kind"].isNotNull(), _lns),
        # Events that nobody heard: status, ack, error, in version 4 also join.
        Shape(
            "chirpstack", _has("rxInfo"), lambda row: F.coalesce(F.array_size(row.listed) > 0, F.lit(True)), _chirpstack
        ),
        Shape(TABLE, lambda row: (_has("frame")(row) & _has("station")(row)) | _has(CORRUPT)(row), _always, _table),
    )
}
"""By name, in the order in which they are tried."""
