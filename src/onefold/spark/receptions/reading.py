"""Stored receptions in one normal form: one row per reception.

    kind frame device fcnt confirmed station time_ms own_time rssi snr payload source
    _corrupt_record received_ms clock_off_ms

The shape is decided row by row, by a field that only this shape has, so shapes may be mixed:

====================  =============================================  ==============================================
shape                 a row is                                       a frame is identified by
====================  =============================================  ==============================================
``onefold``           a record of our own log                        the level-1 key, which it carries
``bridge``            an uplink event of a gateway bridge            the level-1 key, from the PHYPayload
``lns``               a Basics Station message, updf or jreq         the level-1 key, from the fields
``chirpstack``        an application event (v3, v4) with rxInfo[]    device, counter, port, payload: there is no MIC
``table``             a reception in the normal form                 the column ``frame``
====================  =============================================  ==============================================

A row becomes

* one or several receptions: an event may list all gateways that heard it (`rxInfo`);
* nothing, if it is no reception (a status event, a station's hello): it is counted and not judged (`not_receptions`);
* a rejected reception, if it cannot be read: its text is in ``_corrupt_record``.

The time is that of the station's own clock if it has one. That clock may be behind the server's by up to an hour,
`LATE_MS`: a gateway without a backhaul keeps what it hears, and its clock is right all the same. It may be ahead by 30
seconds. A clock beyond that is ignored, or a gateway whose clock is in 1980 would split every frame that it heard:
then, as without a clock, the time is that of receipt by the server. ``own_time`` says which, ``clock_off_ms`` how far
off the clock was. Numbers are milliseconds: a time before 1980 (in seconds, for instance) is invalid, and a reception
without a time is rejected as ``bad_time``. Rows that are in the normal form already, in columns or as JSON, are taken
as they are.

All of this is native column logic: no byte leaves the JVM. Foreign data is read as text, so a value that cannot be read
is null and spoils only its own reception; no expression in this file can fail a job. Keys and validity are those of
`onefold.lorawan.frames`, byte for byte: SHA-256 over DevAddr, MIC, the frame without its MIC, and the counter; for a
join request over JoinEUI, DevEUI and DevNonce. Numbers are hashed as they are on the air, lowest byte first, so the key
is made of slices of the PHYPayload:

    data     MHDR 1 | DevAddr 4 | FCtrl 1 | FCnt 2 | FOpts 0-15 | [FPort 1 | FRMPayload] | MIC 4
    join     MHDR 1 | JoinEUI 8 | DevEUI 8 | DevNonce 2 | MIC 4
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.lorawan import frames
from onefold.lorawan.columns import LATE_MS, TIME_MS_MAX
from onefold.lorawan.radio import GPS_EPOCH_MS
from onefold.spark.columns import CORRUPT, EXACT, STAMPS, TEXT, WHOLE, milliseconds, quoted
from onefold.spark.dialect import try_cast
from onefold.spark.files import Place, first_line
from onefold.spark.ingest import LOG, register_log

HEX: Final = "^([0-9a-f]{2})*$"
_NUMBER: Final = r"^[0-9]+([.][0-9]+)?([eE][+]?[0-9]{1,2})?$"
_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{1,2}:[0-9]{2}"
_NO_ZONE: Final = _TIME + r"(:[0-9]{2}([.][0-9]*)?)?$"
_PART: Final = "[0-9a-f]{1,4}"
_PARTS: Final = f"({_PART}(:{_PART})*)?"
_GROUPS: Final = f"^({_PART}(:{_PART}){{3}}|{_PARTS}::{_PARTS})$"


def objects(text: Column) -> Column:
    """The entries of a JSON array as texts, also a ``null``; of a single object, that one; null if it is neither."""
    alone = F.ltrim(text).startswith("{")
    entries = F.from_json(F.when(alone, F.concat(F.lit("["), text, F.lit("]"))).otherwise(text), "array<string>")
    return F.transform(entries, lambda entry: F.coalesce(entry, F.lit("null")))


def number(text: Column, low: int, high: int) -> Column:
    value = try_cast(text, "long")
    return F.when(value.between(low, high), value)


def real(text: Column) -> Column:
    """A finite number, else null."""
    value = try_cast(text, "double")
    return F.when(F.abs(value) < float("inf"), value)  # NaN is greater than infinity to Spark


def yes(text: Column) -> Column:
    """Whether it is true; a missing field is false, as in protobuf."""
    return F.coalesce(try_cast(text, "boolean"), F.lit(False))


def instant(text: Column) -> Column:
    """Unix time in milliseconds, from such a number or an ISO date and time (without a zone: UTC), else null."""
    text = F.trim(text)
    zoned = F.when(text.rlike(_NO_ZONE), F.concat(text, F.lit("Z"))).when(text.rlike(_TIME), text)
    number = F.when(text.rlike(_NUMBER), try_cast(F.floor(try_cast(text, "decimal(38,3)")), "long"))
    return believable(F.coalesce(number, F.unix_millis(try_cast(zoned, "timestamp"))))


def believable(time_ms: Column) -> Column:
    """The time, or null outside of 1970 to 9999, so that sums of times never overflow."""
    return F.when(time_ms.between(0, TIME_MS_MAX), time_ms)


def hexadecimal(text: Column) -> Column:
    """Hex in lower case; null if it is not hex."""
    low = F.lower(text)
    return F.when(low.rlike(HEX), low)


def content(text: Column) -> Column:
    """Bytes in base64 or hex, as hex.

    Some texts are both. Pairs of digits and small letters are taken as hex, since base64 hardly ever has no capital.
    Other texts whose length is a multiple of four are taken as base64, as ChirpStack writes it, also ``AAAA``.
    """
    decoded = F.lower(F.hex(octets(text)))
    whole = F.when(F.length(text) % 4 == 0, decoded)
    return F.coalesce(F.when(text.rlike(HEX), text), whole, hexadecimal(text), decoded)


def octets(text: Column) -> Column:
    """Bytes in base64, also with the alphabet of URLs or without padding."""
    return F.try_to_binary(F.translate(text, "-_", "+/"), F.lit("base64"))


def eui(text: Column) -> Column:
    """The EUI of a gateway or device in lower-case hex, however it is written.

    ``00-16-C0-01-FF-10-A2-35``, with colons, as four groups (``16:c001:ff10:a235``, ``::1``), also after ``router-``,
    or as base64 of 8 bytes. In the four groups one run of zeros may be left out. Other names only become lower case.
    """
    # The lambda keeps the rare forms out of the generated code for the usual one.
    odd = F.get(F.transform(F.array(F.trim(text)), _odd_eui), F.lit(0))
    return F.when(text.rlike("^[0-9a-f]{8,}$"), text).otherwise(odd)


def _odd_eui(text: Column) -> Column:
    low = F.lower(text)
    digits = F.regexp_replace(low, "^router-", "")
    recognised = (
        F.when(digits.rlike("^([0-9a-f]{2}[-:]){7}[0-9a-f]{2}$"), F.regexp_replace(digits, "[-:]", ""))
        .when(digits.rlike("^[0-9a-f]{16}$"), digits)
        .when(digits.rlike(_GROUPS), _groups(digits))
        .when(text.rlike("^[A-Za-z0-9+/]{11}=$"), F.lower(F.hex(octets(text))))
    )
    return F.coalesce(recognised, F.when(low != "", low))


def _groups(low: Column) -> Column:
    """Four groups of up to four digits as one number; one run of zeros may be left out. Null if they are not four."""
    ends = F.split(low, "::")
    head, tail = (F.filter(F.split(F.get(ends, F.lit(n)), ":"), lambda part: part != "") for n in (0, 1))
    tail = F.coalesce(tail, F.array().cast("array<string>"))
    left_out = F.when(low.contains("::"), 4 - F.size(head) - F.size(tail)).otherwise(0)
    between = F.array_repeat(F.lit("0"), F.greatest(F.lit(0), left_out))
    groups = F.transform(F.concat(head, between, tail), lambda part: F.lpad(part, 4, "0"))
    return F.when((F.size(groups) == 4) & (low.contains("::") == (left_out > 0)), F.array_join(groups, ""))


def little(value: Column, size: int) -> Column:
    """The lowest bytes of a number as hex, in little-endian order."""
    digits = F.lpad(F.hex(value.bitwiseAND(F.lit((1 << 8 * size) - 1))), 2 * size, "0")
    return swapped(digits, size)


def swapped(digits: Column, size: int) -> Column:
    return F.concat(*(F.substring(digits, 2 * n + 1, 2) for n in reversed(range(size))))


def joined(*parts: Column) -> Column:
    """The SHA-256 of several texts, each with its length before it, since any may be null; as hex."""
    lengths = [F.concat(F.coalesce(F.length(part), F.lit(-1)).cast("string"), F.lit(":")) for part in parts]
    pieces = [piece for n, part in zip(lengths, parts, strict=True) for piece in (n, F.coalesce(part, F.lit("")))]
    return F.sha2(F.concat(*pieces), 256)


LNS: Final = (
    "MHdr long, DevAddr long, FCtrl long, FCnt long, FOpts string, FPort long, FRMPayload string, MIC long, "
    "JoinEui string, DevEui string, DevNonce long, msgtype string, "
    "upinfo struct<rxtime: double, rssi: double, snr: double>"
)
"""The fields of a station's message that are used; one with another type is null."""

EUI: Final = "^([0-9A-Fa-f]{2}-){7}[0-9A-Fa-f]{2}$"
_U32: Final = 0xFFFF_FFFF


def with_frames(rows: DataFrame, phy: Column, message: Column) -> DataFrame:
    """Add the frame of a PHYPayload (bytes) as ``phy``, and that of a station's message (JSON) as ``lns``.

    Both are structs, and null where there is none, so other rows cost nothing. The kind of a message without a frame is
    null, that of a frame that is not from a device "other".
    """
    rows = rows.withColumns({"bytes": phy, "up": F.from_json(message, LNS)})
    rows = rows.withColumns({"mhdr": _byte(F.col("bytes"), 0), "fctrl": _byte(F.col("bytes"), 5)})
    size, mhdr, kind = F.octet_length("bytes"), F.col("mhdr"), F.col("mhdr").bitwiseAND(F.lit(frames.TYPE_BITS))
    smallest = frames.DATA_BYTES_MIN + F.col("fctrl").bitwiseAND(F.lit(frames.FOPTS_BITS))
    type_ = (
        F.when(~kind.isin(frames.JOIN_REQUEST, frames.UNCONFIRMED_UP, frames.CONFIRMED_UP), F.lit("other"))
        .when((mhdr == frames.JOIN_REQUEST) & (size == frames.JOIN_BYTES), F.lit("join"))
        .when(_is_data(mhdr) & size.between(smallest, F.lit(frames.PHY_BYTES_MAX)), F.lit("data"))
    )
    rows = rows.withColumns({"type": type_, "bits": _lns_bits()})
    return rows.withColumns({"phy": _phy(), "lns": _lns()}).drop("bytes", "up", "mhdr", "fctrl", "type", "bits")


def _phy() -> Column:
    phy, size, kind = F.col("bytes"), F.octet_length("bytes"), F.col("type")
    options = F.col("fctrl").bitwiseAND(F.lit(frames.FOPTS_BITS))
    mic, raw = _slice(phy, size - 4, F.lit(4)), _slice(phy, F.lit(0), size - 4)
    key = F.concat(_cut(phy, 1, 4), mic, raw, _cut(phy, 6, 2))
    join, data = kind == "join", kind == "data"
    frame = F.struct(
        kind.alias("kind"),
        F.sha2(F.when(join, _cut(phy, 1, 18)).when(data, key), 256).alias("frame"),
        F.when(join, swapped(F.hex(_cut(phy, 9, 8)), 8)).when(data, swapped(F.hex(_cut(phy, 1, 4)), 4)).alias("device"),
        F.when(data, _byte(phy, 6) + 256 * _byte(phy, 7)).cast("string").alias("fcnt"),
        (F.col("mhdr") == frames.CONFIRMED_UP).cast("string").alias("confirmed"),
        F.when(data, F.lower(F.hex(_slice(phy, options + 9, size - options - 13)))).alias("payload"),
    )
    return F.when(phy.isNotNull(), frame)


def _lns_bits() -> Column:
    """The bytes that the key of a station's frame is made of, in hex; null if any field is invalid.

    Numbers of 32 bits may be signed, as real stations send them.
    """
    mhdr, address, fctrl, fcnt, port, mic, nonce = (
        F.col(f"up.{name}") for name in ("MHdr", "DevAddr", "FCtrl", "FCnt", "FPort", "MIC", "DevNonce")
    )
    options, payload = (F.lower(f"up.{name}") for name in ("FOpts", "FRMPayload"))
    start = F.concat(little(mhdr, 1), little(address, 4), little(fctrl, 1), little(fcnt, 2))
    frame = F.concat(start, options, F.when(port >= 0, little(port, 1)).otherwise(F.lit("")), payload)
    data = F.concat(little(address, 4), little(mic, 4), frame, little(fcnt, 2))
    right = (
        _is_data(mhdr) & mhdr.between(0, 0xFF) & fctrl.between(0, 0xFF) & fcnt.between(0, 0xFFFF)
        & address.between(-(1 << 31), _U32) & mic.between(-(1 << 31), _U32)
        & (port.between(0, 0xFF) | ((port == -1) & (payload == "")))
        & options.rlike(HEX) & payload.rlike(HEX)
        & (F.length(options) == 2 * fctrl.bitwiseAND(F.lit(frames.FOPTS_BITS)))
        & (F.length(data) <= 2 * frames.PHY_BYTES_MAX + 12)
    )  # fmt: skip
    join_eui, dev_eui = (F.replace(F.col(f"up.{name}"), F.lit("-"), F.lit("")) for name in ("JoinEui", "DevEui"))
    join = F.concat(swapped(join_eui, 8), swapped(dev_eui, 8), little(nonce, 2))
    named = F.col("up.JoinEui").rlike(EUI) & F.col("up.DevEui").rlike(EUI)
    right_join = named & nonce.between(0, 0xFFFF) & (mhdr == frames.JOIN_REQUEST) & mic.isNotNull()
    return F.when(F.col("up.msgtype") == "updf", F.when(right, data)).otherwise(F.when(right_join, join))


def _lns() -> Column:
    up, data, seconds = F.col("up"), F.col("up.msgtype") == "updf", F.col("up.upinfo.rxtime")
    address = F.lpad(F.hex(up["DevAddr"].bitwiseAND(F.lit(_U32))), 8, "0")
    frame = F.struct(
        F.when(data, F.lit("data")).when(up["msgtype"] == "jreq", F.lit("join")).alias("kind"),
        F.sha2(F.unhex("bits"), 256).alias("frame"),
        F.when(data, address).otherwise(up["DevEui"]).alias("device"),
        F.when(data, up["FCnt"]).cast("string").alias("fcnt"),
        (up["MHdr"] == frames.CONFIRMED_UP).cast("string").alias("confirmed"),
        F.when(data, F.lower(up["FRMPayload"])).alias("payload"),
        F.when(seconds.between(1, 1e11), F.round(seconds * 1000).cast("long").cast("string")).alias("own_ms"),
        up["upinfo"]["rssi"].cast("string").alias("rssi"),
        up["upinfo"]["snr"].cast("string").alias("snr"),
    )
    return F.when(up["msgtype"].isNotNull(), frame)


def _is_data(mhdr: Column) -> Column:
    is_up = mhdr.bitwiseAND(F.lit(frames.TYPE_BITS)).isin(frames.UNCONFIRMED_UP, frames.CONFIRMED_UP)
    return is_up & (mhdr.bitwiseAND(F.lit(frames.MAJOR_BITS)) == 0)


def _cut(data: Column, start: int, size: int) -> Column:
    return F.substring(data, start + 1, size)


def _slice(data: Column, start: Column, size: Column) -> Column:
    return data.substr(start + 1, F.greatest(size, F.lit(0)))


def _byte(data: Column, at: int) -> Column:
    return try_cast(F.conv(F.nullif(F.hex(_cut(data, at, 1)), F.lit("")), 16, 10), "int")


NOT_RECEPTION: Final = "not_reception"
"""The source of a row that is no reception, such as a status event: only counted, not judged."""

TABLE: Final = "table"
"""The shape of the normal form, which is taken as it is."""

LISTED: Final = ("bridge", "chirpstack")

RECEIVED: Final = ("received_ms", "at_ms", "time", "publishedAt", "_timestamp")
"""Names of the time at which a row was received or stored."""

NAMES: Final = (
    *RECEIVED, "v", "kind", "key", "dev_eui", "dev_addr", "fcnt", "confirmed", "payload", "station", "router",
    "time_ms", "rssi", "snr", "verdict", "reason", "phyPayload", "msgtype", "message", "rxInfo", "deviceInfo",
    "devEUI", "devEui", "devAddr", "fCnt", "fPort", "data", "confirmedUplink", "frame", "device", "own_time",
    "clock_off_ms", CORRUPT,
)  # fmt: skip
"""The fields that any shape uses; case-sensitive."""

RX_NAMES: Final = ("gatewayId", "gatewayID", "gwTime", "nsTime", "time", "rssi", "snr", "loRaSNR")


class Fields:
    """The fields of a JSON object as text, by name."""

    def __init__(self, names: Sequence[str], prefix: str) -> None:
        self._columns = {name: f"{prefix}{n}" for n, name in enumerate(names)}

    def __getitem__(self, name: str) -> Column:
        return F.col(self._columns[name])

    def first(self, *names: str) -> Column:
        return F.coalesce(*(self[name] for name in names))

    def of(self, rows: DataFrame, text: str) -> DataFrame:
        return rows.select("*", F.json_tuple(F.col(text), *self._columns).alias(*self._columns.values()))

    @property
    def none(self) -> Column:
        return F.coalesce(*(F.col(column) for column in self._columns.values())).isNull()


class StoredReceptions(NamedTuple):
    fields: Fields
    listed: Column
    """The entries of rxInfo without a wrong CRC, as text; null if there is no list, or it cannot be read."""
    damaged: Column
    """Whether there are entries, and all of them have a wrong CRC."""
    info: Column
    phy: Column
    lns: Column
    """The frame of a station's message; it may be wrapped: ``{"station": ..., "message": {...}}``."""


class Shape(NamedTuple):
    """Recognises rows of a shape, tells which of them are receptions, and reads those."""

    name: str
    matches: Callable[[StoredReceptions], Column]
    is_reception: Callable[[StoredReceptions], Column]
    read: Callable[[StoredReceptions], Mapping[str, Column]]


def opened(rows: DataFrame) -> tuple[DataFrame, StoredReceptions]:
    """Parse the rows of a column ``text``."""
    fields = Fields(NAMES, "_f")
    info = F.from_json(fields["deviceInfo"], "devEui string")
    rows = fields.of(rows, "text").withColumns({"entries": objects(fields["rxInfo"]), "info": info})

    def is_good(entry: Column) -> Column:
        """Unless the gateway says that the CRC is wrong: then it heard no frame."""
        status = F.when(entry.contains("crcStatus"), F.get_json_object(entry, "$.crcStatus"))
        return ~F.coalesce(status.isin("BAD_CRC", "1"), F.lit(False))

    rows = rows.withColumn("listed", F.filter("entries", is_good))
    none_left = (F.array_size("listed") == 0) & (F.array_size("entries") > 0)
    rows = rows.withColumn("damaged", F.coalesce(none_left, F.lit(False))).drop("entries")
    message = F.coalesce(fields["message"], F.when(fields["msgtype"].isNotNull(), F.col("text")))
    rows = with_frames(rows, octets(fields["phyPayload"]), message)
    return rows, StoredReceptions(fields, *(F.col(name) for name in StoredReceptions._fields[1:]))


def heard_by(rx: Fields) -> dict[str, Column]:
    """The fields of an entry of rxInfo, in any version; ``received`` is when its gateway's message arrived."""
    return {
        "station": rx.first("gatewayId", "gatewayID"),
        "own": rx.first("gwTime", "time"),
        "received": rx["nsTime"],
        "rssi": rx["rssi"],
        # Version 4 leaves out what is zero.
        "snr": F.coalesce(rx.first("snr", "loRaSNR"), F.when(rx["gatewayId"].isNotNull(), F.lit("0"))),
    }


def _onefold(row: StoredReceptions) -> dict[str, Column]:
    fields, kind, frame = row.fields, row.fields["kind"], hexadecimal(row.fields["key"])
    # With all receptions kept, the log also has frames whose code was wrong, or was not checked in a flood of such.
    forged = F.coalesce(fields["reason"].isin("bad_mic", "mic_budget"), F.lit(False))
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


def _lns_shape(row: StoredReceptions) -> dict[str, Column]:
    return {
        **_of_frame(row.lns),
        "station": row.fields.first("station", "router"),
        "own": row.lns["own_ms"],
        "received": row.fields.first(*RECEIVED),
        "rssi": row.lns["rssi"],
        "snr": row.lns["snr"],
    }


def _chirpstack(row: StoredReceptions) -> dict[str, Column]:
    fields, counter, data = row.fields, row.fields["fCnt"], row.fields["data"]
    # A join event of version 3 has receptions too, and no counter. Version 4 leaves out what is zero or empty.
    join = row.info.isNull() & F.coalesce(counter, data).isNull()
    fcnt = F.when(~join, F.coalesce(counter, F.lit("0")))
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


def _shape_table(row: StoredReceptions) -> dict[str, Column]:
    fields = row.fields
    same = ("frame", "device", "fcnt", "confirmed", "station", "rssi", "snr", "payload", "own_time", "clock_off_ms")
    return {
        **{name: fields[name] for name in same},
        "kind": F.coalesce(fields["kind"], F.lit("data")),
        "own": fields["time_ms"],
        "received": fields["received_ms"],
        "whole": fields[CORRUPT].isNull(),
    }


def _has(*names: str) -> Callable[[StoredReceptions], Column]:
    return lambda row: F.coalesce(*(row.fields[name] for name in names)).isNotNull()


def _always(_: StoredReceptions) -> Column:
    return F.lit(True)


SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape("onefold", lambda row: _has("v")(row) & _has("verdict")(row), _always, _onefold),
        # A gateway also hears other gateways and other protocols.
        Shape(
            "bridge",
            _has("phyPayload"),
            lambda row: F.coalesce(row.phy["kind"] != "other", F.lit(True)) & ~row.damaged,
            lambda row: {**_of_frame(row.phy), "received": row.fields.first(*RECEIVED)},
        ),
        # A station also says hello, asks for the time, and tells what it sent.
        Shape("lns", lambda row: row.lns.isNotNull(), lambda row: row.lns["kind"].isNotNull(), _lns_shape),
        # Events without receptions: status, ack, error, in version 4 also join.
        Shape(
            "chirpstack", _has("rxInfo"), lambda row: F.coalesce(F.array_size(row.listed) > 0, F.lit(True)), _chirpstack
        ),
        Shape(
            TABLE, lambda row: (_has("frame")(row) & _has("station")(row)) | _has(CORRUPT)(row), _always, _shape_table
        ),
    )
}
"""By name, in the order in which they are tried."""


TYPES: Final = {
    "kind": "string", "frame": "string", "device": "string", "fcnt": "long", "confirmed": "boolean",
    "station": "string", "time_ms": "long", "own_time": "boolean", "rssi": "double", "snr": "double",
    "payload": "string", "source": "string", CORRUPT: "string", "received_ms": "long", "clock_off_ms": "long",
}  # fmt: skip

CLOCK_OFF_MS: Final = 30_000
"""Half of the default expiry, so that two trusted clocks never split one transmission."""

MALFORMED: Final = "malformed"
"""The source of a row that is not even a JSON object."""

ROW: Final = "_place"
"""The position of a reception in the list of its row; null: the row has no list."""

FCNT_MAX: Final = 0xFFFF_FFFF
TEXTS: Final = (
    "kind", "frame", "device", "fcnt", "confirmed", "payload", "station", "own", "received", "rssi", "snr",
    "own_time", "clock_off_ms",
)  # fmt: skip

MUST_HAVE: Final = ("frame", "station", "time_ms")
"""The columns that every table in the normal form has."""

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
    ahead of the server's by more than ``clock_off_ms`` is ignored, and one behind it by more than `LATE_MS` (or by
    ``clock_off_ms``, if that is more).
    """
    rows = recognised(df, shape, clock_off_ms=clock_off_ms)
    return rows.where(F.col("source") != NOT_RECEPTION).select(*TYPES)


def not_receptions(df: DataFrame, shape: str = "auto") -> DataFrame:
    """The rows that are no receptions, as a column ``text``."""
    rows = recognised(df, shape)
    return rows.where(F.col("source") == NOT_RECEPTION).select("text")


def recognised(df: DataFrame, shape: str = "auto", *, clock_off_ms: int = CLOCK_OFF_MS) -> DataFrame:
    """All rows in the normal form; those that are no receptions have ``source`` "not_reception" and their ``text``.

    To count the rows of the source, count those where ``_place`` is null or 0.
    """
    if shape != "auto" and shape not in SHAPES:
        raise Misuse(f"shape is {shape!r}, must be auto, {', '.join(SHAPES)}", shape=shape)
    if clock_off_ms < 0:
        raise Misuse(f"clock_off_ms is {clock_off_ms}, must be at least 0", clock_off_ms=clock_off_ms)
    if set(MUST_HAVE) <= set(df.columns) and shape in ("auto", TABLE):
        return _table(df)
    text, stored_ms = _text(df)
    rows, row = opened(df.select(text.alias("text"), stored_ms.alias("stored_ms")))
    rows = _texts(rows, row, list(SHAPES.values()) if shape == "auto" else [SHAPES[shape]])
    return _normal(_each(rows), clock_off_ms)


def _texts(rows: DataFrame, row: StoredReceptions, shapes: list[Shape]) -> DataFrame:

    def same_names(read: Mapping[str, Column]) -> Column:
        columns = [read.get(name, F.lit(None)).cast("string").alias(name) for name in TEXTS]
        return F.struct(*columns, F.coalesce(read["whole"], F.lit(False)).alias("whole"))

    source = F.lit(NOT_RECEPTION)
    for shape in reversed(shapes):
        named = F.when(shape.is_reception(row), F.lit(shape.name)).otherwise(F.lit(NOT_RECEPTION))
        source = F.when(shape.matches(row), named).otherwise(source)
    broken = row.fields.none & F.from_json("text", "map<string,string>").isNull()
    rows = rows.withColumn("source", F.when(broken, F.lit(MALFORMED)).otherwise(source))
    texts = F.lit(None)
    for shape in shapes:
        texts = F.when(F.col("source") == shape.name, same_names(shape.read(row))).otherwise(texts)
    columns = ("text", "stored_ms", "source", "listed")
    return rows.select(*columns, texts.alias("said")).select(*columns, "said.*")


def _each(rows: DataFrame) -> DataFrame:
    """One row per reception, where a row has a list of them."""
    fcnt = number(F.col("fcnt"), 0, FCNT_MAX)
    as_said = F.col("source") == TABLE
    whole = F.col("frame").isNotNull() & (F.col("fcnt").isNull() | fcnt.isNotNull())
    whole = F.coalesce("whole", F.lit(False)) & (as_said | whole)
    device = F.when(as_said, F.col("device")).otherwise(eui(F.col("device")))
    listed = F.when(F.col("source").isin(*LISTED), F.col("listed"))
    rows = rows.withColumns({"device": device, "fcnt": fcnt, "whole": whole, "listed": listed})
    # In a valid list, an invalid entry is its own corrupt record, so the text of the row is not copied to each entry.
    kept_text = F.when(F.coalesce(~F.col("whole") | (F.array_size("listed") == 0), F.lit(True)), F.col("text"))
    rows = rows.withColumn("text", kept_text)
    rows = rows.select("*", F.posexplode_outer("listed").alias(ROW, "rx")).drop("listed")
    rx = Fields(RX_NAMES, "_rx")
    texts = {name: F.coalesce(text, F.col(name)) for name, text in heard_by(rx).items()}
    return rx.of(rows, "rx").withColumns(texts)


def _normal(rows: DataFrame, clock_off_ms: int) -> DataFrame:
    judged, as_said = F.col("source") != NOT_RECEPTION, F.col("source") == TABLE

    def set_clock(time_ms: Column) -> Column:
        return F.when(as_said | (time_ms >= GPS_EPOCH_MS), time_ms)

    received = F.coalesce(set_clock(instant(F.col("received"))), F.when(~as_said, F.col("stored_ms")))
    station = F.when(as_said, F.col("station")).otherwise(eui(F.col("station")))
    rows = rows.withColumns({"own_ms": set_clock(instant(F.col("own"))), "received_ms": received, "station": station})
    own = F.col("own_ms")
    off = F.when(as_said, try_cast(F.col("clock_off_ms"), "long")).otherwise(own - F.col("received_ms"))
    near = F.coalesce(off.between(-max(LATE_MS, clock_off_ms), clock_off_ms), F.lit(True))
    believed = F.when(as_said, F.coalesce(try_cast(F.col("own_time"), "boolean"), F.lit(True)))
    believed = believed.otherwise(own.isNotNull() & near)
    whole = F.col("whole") & (as_said | F.col("station").isNotNull())
    columns = {
        "confirmed": F.when(judged, yes(F.col("confirmed"))),
        "time_ms": F.when(as_said | believed, own).otherwise(F.col("received_ms")),
        "own_time": F.when(judged, believed),
        "rssi": real(F.col("rssi")),
        "snr": real(F.col("snr")),
        "clock_off_ms": off,
        CORRUPT: F.when(judged & ~whole, F.coalesce("text", "rx")),
        "text": F.when(~judged, F.col("text")),
    }
    return rows.withColumns(columns).select(*TYPES, ROW, "text")


def _table(df: DataFrame) -> DataFrame:
    """A table in the normal form: columns that it lacks are null or have their default."""
    usual = {"kind": F.lit("data"), "own_time": F.lit(True)}
    columns = []
    for name, kind in TYPES.items():
        column = F.lit(None).cast(kind)
        if name == "source":
            column = F.lit(TABLE)  # says how we read the row, also if the table has such a column
        elif name in df.columns:
            if (theirs := column_of(df, name)) is None:
                type_name, wanted = df.schema[name].dataType.simpleString(), _MAY_BE[_meaning(name)][1]
                raise Misuse(f"column {name!r} is {type_name}, must be {wanted}", column=name)
            column = theirs
        columns.append((F.coalesce(column, usual[name]) if name in usual else column).alias(name))
    null = F.lit(None)
    return df.select(*columns, null.cast("int").alias(ROW), null.cast("string").alias("text"))


def column_of(df: DataFrame, name: str) -> Column | None:
    """A column of the normal form from a table's column; None if its type is not possible.

    Bytes become hex; an invalid value becomes null.
    """
    column, type_, meaning = F.col(quoted(name)), df.schema[name].dataType, _meaning(name)
    if not isinstance(type_, _MAY_BE[meaning][0]):
        return None
    if meaning == "time":
        if isinstance(type_, STAMPS):
            return believable(milliseconds(df, name))
        return believable(instant(column) if isinstance(type_, TEXT) else try_cast(column, "long"))
    if meaning == "string":
        return text_of(df, name)
    if name == "fcnt":
        return number(column, 0, FCNT_MAX)
    return real(column) if meaning == "double" else try_cast(column, TYPES[name])


def text_of(df: DataFrame, name: str) -> Column:
    column = F.col(quoted(name))
    return F.lower(F.hex(column)) if isinstance(df.schema[name].dataType, T.BinaryType) else column.cast("string")


def _meaning(name: str) -> str:
    return "time" if name in ("time_ms", "received_ms") else TYPES[name]


def _text(df: DataFrame) -> tuple[Column, Column]:
    """The JSON text of each row, and when it was stored, if known."""
    types = {kind.name: kind.dataType for kind in df.schema.fields}

    def stored(name: str) -> Column:
        is_time = isinstance(types.get(name), STAMPS)
        return (believable(milliseconds(df, name)) if is_time else F.lit(None)).cast("long")

    for name, time, kinds in (
        ("payload", "time", (T.BinaryType,)),
        ("value", "timestamp", (T.BinaryType, T.StringType)),
    ):
        if isinstance(types.get(name), kinds):
            return F.col(name).cast("string"), stored(time)
    text = F.to_json(F.struct(*(F.col(quoted(name)) for name in df.columns if name != CORRUPT)))
    return (F.coalesce(F.col(CORRUPT), text) if CORRUPT in types else text), F.lit(None).cast("long")


LINES: Final = {"json": "text", "jsonl": "text", "ndjson": "text", "text": "text"}
"""Formats with one JSON object a line. Spark's JSON reader would need another pass to infer a schema."""

_ENDINGS: Final = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".txt": "json", ".log": "json",
                   ".parquet": "parquet", ".orc": "orc"}  # fmt: skip
_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_GLOB: Final = "*.{json,jsonl,ndjson,txt,log}*"


def read_receptions(spark: SparkSession, path: str, format: str = "auto", shape: str = "auto") -> DataFrame:
    """The receptions at a path in the form that `judge_receptions` takes, one row each.

    ``shape``: how they are stored, such as "chirpstack"; "auto": decided row by row. ``format``: of the files; "auto":
    by their names.
    """
    return receptions(read_rows(spark, path, format=format), shape)


def read_rows(
    spark: SparkSession, path: str, *, format: str = "auto", options: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows at a path as they are stored; "auto" goes by file endings, and recognises the folder of a topic."""
    if "://" not in path and not any(char in path for char in "*?[{") and not Place(spark, path).exists():
        raise Misuse(f"there is nothing at {path}", path=path)
    kind = found_format(spark, path) if format == "auto" else format
    if kind == LOG:
        register_log(spark)
    reader = spark.read.format(LINES.get(kind, kind)).options(**(options or {}))
    folder = Place(spark, path)
    if kind in LINES and format == "auto" and folder.names() != [str(folder).rsplit("/", 1)[-1]]:
        reader = reader.option("pathGlobFilter", _GLOB)  # the folder may hold a registry or a read-me, too
    try:
        return reader.load(path)
    except (AnalysisException, Py4JJavaError) as error:  # the latter for an unknown format
        raise Misuse(f"cannot read {path} as {kind}: {first_line(error)}", path=path, format=kind) from error


def found_format(spark: SparkSession, path: str) -> str:
    """By the ending of the file, or of the first file in the folder with a known ending."""
    is_elsewhere = "://" in path and not path.startswith("file:")
    is_pattern = any(char in path for char in "*?[{")
    names = [path] if is_elsewhere or is_pattern else Place(spark, path).names()
    if "topic.json" in names:
        return LOG
    for name in [path, *names]:
        for packed in _PACKED:
            name = name.removesuffix(packed)  # it may be compressed twice
        for ending, kind in _ENDINGS.items():
            if name.endswith(ending):
                return kind
    return "parquet"
