"""Radio frames inside Spark: device, counter and level-1 key of a frame, without a byte of it leaving the JVM.

The keys are those of `engines.lorawan.keys`, byte for byte: SHA-256 over DevAddr, MIC, the frame without its MIC, and
the counter; of a join request over JoinEUI, DevEUI and DevNonce. Numbers are hashed as they are on the air, lowest byte
first, so the key of a PHYPayload is made of nothing but slices of it. What can be read is what `engines.lorawan.frames`
can read.

    data     MHDR 1 | DevAddr 4 | FCtrl 1 | FCnt 2 | FOpts 0-15 | [FPort 1 | FRMPayload] | MIC 4
    join     MHDR 1 | JoinEUI 8 | DevEUI 8 | DevNonce 2 | MIC 4
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.lorawan.frames import (
    CONFIRMED_UP,
    DATA_BYTES_MIN,
    FOPTS_BITS,
    JOIN_BYTES,
    JOIN_REQUEST,
    MAJOR_BITS,
    PHY_BYTES_MAX,
    TYPE_BITS,
    UNCONFIRMED_UP,
)  # fmt: skip
from onefold.spark.reception_fields import HEX, little, swapped

LNS: Final = (
    "MHdr long, DevAddr long, FCtrl long, FCnt long, FOpts string, FPort long, FRMPayload string, MIC long, "
    "JoinEui string, DevEui string, DevNonce long, msgtype string, "
    "upinfo struct<rxtime: double, rssi: double, snr: double>"
)
"""The fields of a station's message that matter; one of another type is null."""

EUI: Final = "^([0-9A-Fa-f]{2}-){7}[0-9A-Fa-f]{2}$"
_U32: Final = 0xFFFF_FFFF


def with_frames(rows: DataFrame, phy: Column, said: Column) -> DataFrame:
    """Add what the frame of a PHYPayload (bytes) or of a station's message (JSON) is: ``phy`` and ``lns``.

    Both are structs; null where there is none, so all other rows cost nothing. The kind of a message that is no frame
    is null, that of a frame that no device sent is "other".
    """
    rows = rows.withColumns({"bytes": phy, "up": F.from_json(said, LNS)})
    rows = rows.withColumns({"mhdr": _byte(F.col("bytes"), 0), "fctrl": _byte(F.col("bytes"), 5)})
    rows = rows.withColumns({"type": _phy_type(), "bits": _lns_bits()})
    return rows.withColumns({"phy": _phy(), "lns": _lns()}).drop("bytes", "up", "mhdr", "fctrl", "type", "bits")


def _phy_type() -> Column:
    """ "join" or "data" if the bytes can be read as such, "other" if they are something else; null: neither."""
    size, mhdr = F.octet_length("bytes"), F.col("mhdr")
    options = F.col("fctrl").bitwiseAND(F.lit(FOPTS_BITS))
    kind = mhdr.bitwiseAND(F.lit(TYPE_BITS))
    return (
        F.when(~kind.isin(JOIN_REQUEST, UNCONFIRMED_UP, CONFIRMED_UP), F.lit("other"))
        .when((mhdr == JOIN_REQUEST) & (size == JOIN_BYTES), F.lit("join"))
        .when(_is_data(mhdr) & size.between(DATA_BYTES_MIN + options, F.lit(PHY_BYTES_MAX)), F.lit("data"))
    )


def _phy() -> Column:
    phy, size, kind = F.col("bytes"), F.octet_length("bytes"), F.col("type")
    options = F.col("fctrl").bitwiseAND(F.lit(FOPTS_BITS))
    mic, raw = _slice(phy, size - 4, F.lit(4)), _slice(phy, F.lit(0), size - 4)
    key = F.concat(_cut(phy, 1, 4), mic, raw, _cut(phy, 6, 2))
    join, data = kind == "join", kind == "data"
    frame = F.struct(
        kind.alias("kind"),
        F.sha2(F.when(join, _cut(phy, 1, 18)).when(data, key), 256).alias("frame"),
        F.when(join, swapped(F.hex(_cut(phy, 9, 8)), 8)).when(data, swapped(F.hex(_cut(phy, 1, 4)), 4)).alias("device"),
        F.when(data, _byte(phy, 6) + 256 * _byte(phy, 7)).cast("string").alias("fcnt"),
        (F.col("mhdr") == CONFIRMED_UP).cast("string").alias("confirmed"),
        F.when(data, F.lower(F.hex(_slice(phy, options + 9, size - options - 13)))).alias("payload"),
    )
    return F.when(phy.isNotNull(), frame)


def _lns_bits() -> Column:
    """What the key of a station's frame is made of, in hex; null if there is anything in it that cannot be.

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
        & (F.length(options) == 2 * fctrl.bitwiseAND(F.lit(FOPTS_BITS)))
        & (F.length(data) <= 2 * PHY_BYTES_MAX + 12)
    )  # fmt: skip
    join_eui, dev_eui = (F.replace(F.col(f"up.{name}"), F.lit("-"), F.lit("")) for name in ("JoinEui", "DevEui"))
    join = F.concat(swapped(join_eui, 8), swapped(dev_eui, 8), little(nonce, 2))
    named = F.col("up.JoinEui").rlike(EUI) & F.col("up.DevEui").rlike(EUI)
    asked = named & nonce.between(0, 0xFFFF) & (mhdr == JOIN_REQUEST) & mic.isNotNull()
    return F.when(F.col("up.msgtype") == "updf", F.when(right, data)).otherwise(F.when(asked, join))


def _lns() -> Column:
    up, data, seconds = F.col("up"), F.col("up.msgtype") == "updf", F.col("up.upinfo.rxtime")
    address = F.lpad(F.hex(up["DevAddr"].bitwiseAND(F.lit(_U32))), 8, "0")
    frame = F.struct(
        F.when(data, F.lit("data")).when(up["msgtype"] == "jreq", F.lit("join")).alias("kind"),
        F.sha2(F.unhex("bits"), 256).alias("frame"),
        F.when(data, address).otherwise(up["DevEui"]).alias("device"),
        F.when(data, up["FCnt"]).cast("string").alias("fcnt"),
        (up["MHdr"] == CONFIRMED_UP).cast("string").alias("confirmed"),
        F.when(data, F.lower(up["FRMPayload"])).alias("payload"),
        F.when(seconds.between(1, 1e11), F.round(seconds * 1000).cast("long").cast("string")).alias("own_ms"),
        up["upinfo"]["rssi"].cast("string").alias("rssi"),
        up["upinfo"]["snr"].cast("string").alias("snr"),
    )
    return F.when(up["msgtype"].isNotNull(), frame)


def _is_data(mhdr: Column) -> Column:
    known = mhdr.bitwiseAND(F.lit(TYPE_BITS)).isin(UNCONFIRMED_UP, CONFIRMED_UP)
    return known & (mhdr.bitwiseAND(F.lit(MAJOR_BITS)) == 0)


def _cut(data: Column, start: int, size: int) -> Column:
    return F.substring(data, start + 1, size)


def _slice(data: Column, start: Column, size: Column) -> Column:
    return F.substring(data, start + 1, F.greatest(size, F.lit(0)))


def _byte(data: Column, at: int) -> Column:
    """A byte as a number; null beyond the end."""
    return F.conv(F.nullif(F.hex(_cut(data, at, 1)), F.lit("")), 16, 10).try_cast("int")
