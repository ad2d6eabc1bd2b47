"""The messages of the LNS protocol, decoded: every field of its type and in its range, or an error that names it.

Stations send DevAddr and MIC as signed 32-bit numbers (their code casts them), and the protocol's text does not say so:
both signs are taken. FPort is -1 where the frame has none. FCtrl says how long FOpts is; a message whose two disagree
cannot be put back into the frame that was on the air, so its MIC could not be checked.
"""

from collections.abc import Mapping
from typing import Any, Final

from onefold.decoding import read_json
from onefold.engines.lorawan.frames import DataUp, JoinRequest
from onefold.errors import BadInput
from onefold.services.gateway.eui import parse_dashed
from onefold.services.gateway.radio_json import GPS_EPOCH_MS, GPS_LEAP_MS, PHY_BYTES_MAX, shown, trusted_ms
from onefold.services.gateway.reception import Radio
from onefold.services.gateway.regions import Region

UNCONFIRMED_UP: Final = 0x40
CONFIRMED_UP: Final = 0x80
FIXED_BYTES: Final = 12
"""Of a data frame without FOpts, FPort and FRMPayload."""
INT64: Final = 2**63


def message(text: str) -> tuple[str, dict[str, Any]]:
    """What kind of message it is, and its fields."""
    found = read_json(text, "the message")
    if type(found) is not dict:
        raise BadInput(f"the message is {shown(found)}, must be a JSON object")
    kind = found.get("msgtype")
    if type(kind) is not str:
        raise BadInput(f"msgtype is {_shown(found, 'msgtype')}, must be a text")
    return kind, found


def data_up(fields: Mapping[str, Any]) -> DataUp:
    """The frame of an ``updf``."""
    mhdr = whole(fields, "MHdr", 0, 255)
    if mhdr not in (UNCONFIRMED_UP, CONFIRMED_UP):
        raise BadInput(f"MHdr is {mhdr}, must be {UNCONFIRMED_UP} or {CONFIRMED_UP} for data from a device")
    fctrl = whole(fields, "FCtrl", 0, 255)
    fopts = octets(fields, "FOpts")
    if len(fopts) != fctrl & 15:
        raise BadInput(f"FOpts has {len(fopts)} bytes, FCtrl {fctrl} says {fctrl & 15}")
    port = whole(fields, "FPort", -1, 255)
    payload = octets(fields, "FRMPayload")
    if port < 0 and payload:
        raise BadInput(f"FPort is -1 with an FRMPayload of {len(payload)} bytes, must be empty")
    if FIXED_BYTES + len(fopts) + (port >= 0) + len(payload) > PHY_BYTES_MAX:
        raise BadInput(f"FRMPayload has {len(payload)} bytes: no frame is longer than {PHY_BYTES_MAX}")
    return DataUp(
        mhdr,
        whole(fields, "DevAddr", -(2**31), 2**32 - 1) & 0xFFFFFFFF,
        fctrl,
        whole(fields, "FCnt", 0, 0xFFFF),
        fopts,
        None if port < 0 else port,
        payload,
        whole(fields, "MIC", -(2**31), 2**32 - 1) & 0xFFFFFFFF,
    )


def join_request(fields: Mapping[str, Any]) -> JoinRequest:
    """The frame of a ``jreq``."""
    mhdr = whole(fields, "MHdr", 0, 255)
    if mhdr != 0:
        raise BadInput(f"MHdr is {mhdr}, must be 0 for a join request")
    return JoinRequest(
        mhdr,
        parse_dashed(fields.get("JoinEui"), "JoinEui"),
        parse_dashed(fields.get("DevEui"), "DevEui"),
        whole(fields, "DevNonce", 0, 0xFFFF),
        whole(fields, "MIC", -(2**31), 2**32 - 1) & 0xFFFFFFFF,
    )


def radio(fields: Mapping[str, Any], region: Region) -> tuple[Radio, int, int]:
    """How it was heard, and what the station wants back with an answer: its ``xtime`` and ``rctx``."""
    rate = whole(fields, "DR", 0, 15)
    if not region.is_up(rate):
        raise BadInput(f"DR is {rate}, {region.name} has 0 to {len(region.rx1_rates) - 1} for devices")
    frequency = whole(fields, "Freq", 1, 2**32 - 1)
    info = fields.get("upinfo")
    if type(info) is not dict:
        raise BadInput(f"upinfo is {_shown(fields, 'upinfo')}, must be an object")
    xtime = whole(info, "xtime", -INT64, INT64 - 1)
    rctx = whole(info, "rctx", -INT64, INT64 - 1)
    heard = Radio(frequency, rate, _level(info, "rssi"), _level(info, "snr"), _time_ms(info))
    return heard, xtime, rctx


def whole(fields: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number within these; 5.0 and true are none."""
    value = fields.get(name)
    if type(value) is not int or not low <= value <= high:
        raise BadInput(f"{name} is {_shown(fields, name)}, must be a whole number, {low} to {high}", field=name)
    return value


def octets(fields: Mapping[str, Any], name: str) -> bytes:
    """Bytes in hex digits."""
    value = fields.get(name)
    if type(value) is str and len(value) <= 2 * PHY_BYTES_MAX and " " not in value:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise BadInput(
        f"{name} is {_shown(fields, name)}, must be the hex digits of up to {PHY_BYTES_MAX} bytes", field=name
    )


def _level(info: Mapping[str, Any], name: str) -> float | None:
    value = info.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not -1_000 <= value <= 1_000:
        raise BadInput(f"upinfo: {name} is {shown(value)}, must be a number, -1000 to 1000", field=name)
    return float(value)


def _time_ms(info: Mapping[str, Any]) -> int | None:
    """From GPS where the station has it (microseconds since 1980), else from its own idea of UTC (seconds)."""
    gps = info.get("gpstime")
    if type(gps) is int and 0 < gps < INT64:
        return trusted_ms(gps // 1_000 + GPS_EPOCH_MS - GPS_LEAP_MS)
    own = info.get("rxtime")
    if isinstance(own, int | float) and 0 < own < 2**40:
        return trusted_ms(round(own * 1_000))
    return None


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return shown(fields[name]) if name in fields else "missing"
