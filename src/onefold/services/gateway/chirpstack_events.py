"""The JSON of the ChirpStack gateway bridge, versions 3 and 4: events to receptions, downlinks to commands.

Both are protobuf messages (``gw.proto``) in their JSON form, on topics ``[PREFIX/]gateway/ID/event/up`` and
``.../command/down``. Bytes are base64. What differs:

    version    gateway              modulation                             bandwidth    rx time    timing
    3          gatewayID, base64    "LORA" and loRaModulationInfo {...}    kHz          time       "DELAY", ...
    4          gatewayId, hex       {"lora": {...}}                        Hz           gwTime     {"delay": {...}}

Version 4 leaves out what is zero, as protobuf does: no ``snr`` is an SNR of 0 dB. A command is written in the version
that the gateway spoke, and offers both windows; the gateway transmits in at most one. The ``context`` of an uplink is
the gateway's own note of its clock, and goes back as it came.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onefold.engines.lorawan.frames import Frame, parse
from onefold.errors import BadInput
from onefold.services.gateway import radio_json as field
from onefold.services.gateway.reception import Downlink, Radio
from onefold.services.gateway.regions import Region

STATION: Final = re.compile(r"[0-9a-fA-F]{16}")
FSK_BITS_PER_S: Final = 50_000
CONTEXT_BYTES_MAX: Final = 256
"""The bridge writes 4 for a packet forwarder, 16 for a Basics Station."""
BAD_CRC: Final = ("BAD_CRC", 1)
HINT: Final = 'set marshaler="json" in the gateway bridge (json=true in the MQTT forwarder): protobuf is not read here'


class Topic(NamedTuple):
    """Who speaks, and of what; ``root`` is where its commands go."""

    root: str
    """``eu868/gateway/0016c001ff10a235``"""
    station: str
    event: str


class Heard(NamedTuple):
    """One uplink, and what the way back needs to know of it."""

    frame: Frame
    radio: Radio
    version: int
    context: bytes
    board: int
    antenna: int


def read_topic(text: str) -> Topic | None:
    """The parts of the topic of an event; None: it is none.

    >>> read_topic("eu868/gateway/0016c001ff10a235/event/up")
    Topic(root='eu868/gateway/0016c001ff10a235', station='0016c001ff10a235', event='up')
    """
    levels = text.split("/")
    if len(levels) < 4 or levels[-4] != "gateway" or levels[-2] != "event" or not STATION.fullmatch(levels[-3]):
        return None
    return Topic("/".join(levels[:-2]), levels[-3].lower(), levels[-1])


def heard(payload: bytes, station: str, region: Region) -> Heard | None:
    """An uplink that came on the topic of this station; None: its CRC is wrong."""
    event = read(payload)
    tx, rx = field.part(event, "txInfo"), field.part(event, "rxInfo")
    version = 3 if isinstance(tx.get("modulation"), str) else 4
    named = _gateway(rx, version)
    if named != station:  # what the broker guards is the topic
        raise BadInput(f"the event names gateway {named}, but came on the topic of {station}", gateway=named)
    if rx.get("crcStatus") in BAD_CRC:
        return None
    spreading, bandwidth_khz = _rate_3(tx) if version == 3 else _rate_4(tx)
    radio = Radio(
        field.integer(tx, "frequency", 1, field.FREQUENCY_HZ_MAX),
        region.data_rate(spreading, bandwidth_khz),
        field.decibels(rx, "rssi"),
        field.decibels(rx, "loRaSNR") if version == 3 else field.decibels({"snr": 0.0, **rx}, "snr"),
        field.moment_ms(rx, "gwTime") or field.moment_ms(rx, "time"),  # early ones of version 4 still say time
    )
    context = field.octets(rx, "context", CONTEXT_BYTES_MAX) if rx.get("context") is not None else b""
    board, antenna = (field.integer({name: 0, **rx}, name, 0, 255) for name in ("board", "antenna"))
    return Heard(parse(field.octets(event, "phyPayload")), radio, version, context, board, antenna)


def read(payload: bytes) -> dict[str, Any]:
    """The JSON of an event; whoever sends protobuf is told how to change that."""
    try:
        return field.document(payload, "the event")
    except BadInput as error:
        raise BadInput(f"{error}; {HINT}") from None


def name(downlink: Downlink) -> int:
    """What a downlink is called in 32 bits, which is all that version 4 has for it."""
    return downlink.number % 2**32


def outcome(payload: bytes) -> tuple[int | None, bool]:
    """Of an ``event/ack``: the name of the downlink, if it says, and whether one of the windows will be used."""
    ack = read(payload)
    items = ack.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadInput(f"items is {field.shown(items)}, must be an array of objects")
    named = None
    if ack.get("downlinkID") is not None:
        named = int.from_bytes(field.octets(ack, "downlinkID", 16)) % 2**32
    elif ack.get("downlinkId") is not None:
        named = field.integer(ack, "downlinkId", 0, 2**32 - 1)
    if not items:  # bridges before 3.9 knew one window
        return named, not ack.get("error")
    return named, any(item.get("status") in ("OK", 1) for item in items)


def command(station: str, uplink: Heard, downlink: Downlink, region: Region, power_dbm: int) -> bytes:
    """``command/down``: both windows, in the version of the uplink; one of class C need not wait for its second."""
    delay_s = downlink.rx_delay_s
    windows = [(downlink.rx1, delay_s), (downlink.rx2, None if downlink.device_class == "C" else delay_s + 1)]
    items = [
        {
            "phyPayload": _base64(downlink.pdu),
            "txInfo": {
                "frequency": frequency,
                "power": power_dbm,
                **(_how_3 if uplink.version == 3 else _how_4)(*region.modulation(data_rate)),
                "board": uplink.board,
                "antenna": uplink.antenna,
                **(_when_3 if uplink.version == 3 else _when_4)(after_s),
                "context": _base64(uplink.context),
            },
        }
        for (frequency, data_rate), after_s in windows
    ]
    if uplink.version == 3:
        ids = {
            "gatewayID": _base64(bytes.fromhex(station)),
            "token": downlink.number % 2**16,
            "downlinkID": _base64((downlink.number % 2**128).to_bytes(16)),
        }
    else:
        ids = {"gatewayId": station, "downlinkId": name(downlink)}
    return json.dumps({**ids, "items": items}, separators=(",", ":")).encode()


def _gateway(rx: Mapping[str, Any], version: int) -> str:
    name = "gatewayID" if "gatewayID" in rx else "gatewayId"
    value = field.text(rx, name)
    if STATION.fullmatch(value):
        return value.lower()
    if version == 3 and len(eui := field.octets(rx, name, 8)) == 8:
        return eui.hex()
    raise BadInput(f"{name} is {field.shown(value)}, must be an EUI", field=name)


def _rate_3(tx: Mapping[str, Any]) -> tuple[int, int]:
    if tx["modulation"] == "FSK":
        return _fsk(field.part(tx, "fskModulationInfo"))
    if tx["modulation"] != "LORA":
        raise BadInput(f"modulation is {field.shown(tx['modulation'])}, must be LORA or FSK")
    lora = field.part(tx, "loRaModulationInfo")
    return field.integer(lora, "spreadingFactor", 5, 12), field.integer(lora, "bandwidth", 1, 2_000)


def _rate_4(tx: Mapping[str, Any]) -> tuple[int, int]:
    how = field.part(tx, "modulation")
    if "fsk" in how:
        return _fsk(field.part(how, "fsk"))
    lora = field.part(how, "lora")
    return field.integer(lora, "spreadingFactor", 5, 12), field.integer(lora, "bandwidth", 1_000, 2_000_000) // 1_000


def _fsk(how: Mapping[str, Any]) -> tuple[int, int]:
    field.integer(how, "datarate", FSK_BITS_PER_S, FSK_BITS_PER_S)
    return 0, 0


def _how_3(spreading: int, bandwidth_khz: int) -> dict[str, Any]:
    if not spreading:
        return {"modulation": "FSK", "fskModulationInfo": _fsk_down()}
    lora = {"bandwidth": bandwidth_khz, "spreadingFactor": spreading, "codeRate": "4/5", "polarizationInversion": True}
    return {"modulation": "LORA", "loRaModulationInfo": lora}


def _how_4(spreading: int, bandwidth_khz: int) -> dict[str, Any]:
    if not spreading:
        return {"modulation": {"fsk": _fsk_down()}}
    hertz = bandwidth_khz * 1_000
    lora = {"bandwidth": hertz, "spreadingFactor": spreading, "codeRate": "CR_4_5", "polarizationInversion": True}
    return {"modulation": {"lora": lora}}


def _fsk_down() -> dict[str, int]:
    return {"datarate": FSK_BITS_PER_S, "frequencyDeviation": FSK_BITS_PER_S // 2}


def _when_3(after_s: int | None) -> dict[str, Any]:
    if after_s is None:
        return {"timing": "IMMEDIATELY", "immediatelyTimingInfo": {}}
    return {"timing": "DELAY", "delayTimingInfo": {"delay": f"{after_s}s"}}


def _when_4(after_s: int | None) -> dict[str, Any]:
    return {"timing": {"immediately": {}} if after_s is None else {"delay": {"delay": f"{after_s}s"}}}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
