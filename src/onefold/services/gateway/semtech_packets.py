"""The datagrams of Semtech's packet forwarder, protocol versions 1 and 2: bytes to receptions, downlinks to bytes.

All begin with four bytes: the version, a token of two that the answer repeats, and what it is. What a gateway sends
goes on with its EUI (eight bytes, big-endian) and, in PUSH_DATA and TX_ACK, a JSON object:

    gateway to server    PUSH_DATA 0 {"rxpk": [...], "stat": {...}}    PULL_DATA 2    TX_ACK 5 {"txpk_ack": {...}}
    server to gateway    PUSH_ACK 1                                    PULL_ACK 4     PULL_RESP 3 {"txpk": {...}}

Version 1 knows no TX_ACK, and the token of its PULL_RESP is unused. The rules are those of PROTOCOL.TXT in Semtech's
repository ``packet_forwarder``.
"""

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onefold.engines.lorawan.frames import Frame, parse
from onefold.errors import BadInput
from onefold.services.gateway import radio_json as field
from onefold.services.gateway.reception import Downlink, Radio
from onefold.services.gateway.regions import Region

VERSIONS: Final = frozenset({1, 2})
PUSH_DATA, PUSH_ACK, PULL_DATA, PULL_RESP, PULL_ACK, TX_ACK = range(6)
FROM_GATEWAYS: Final = frozenset({PUSH_DATA, PULL_DATA, TX_ACK})
HEAD_BYTES: Final = 12
TICKS: Final = 2**32
"""The concentrator counts microseconds in 32 bits: it starts again after 71 minutes."""
FSK_BITS_PER_S: Final = 50_000
"""The one FSK rate of LoRaWAN."""
LORA_RATE: Final = re.compile(r"SF([0-9]{1,2})BW([0-9]{1,4})")
CRC_OK: Final = 1


class Datagram(NamedTuple):
    """One datagram of a gateway; ``body`` is what follows the EUI."""

    version: int
    token: bytes
    kind: int
    eui: int
    body: bytes


class Heard(NamedTuple):
    """One ``rxpk``: the frame, how it came in, and the concentrator's clock when it ended."""

    frame: Frame
    radio: Radio
    ticks: int


class Window(NamedTuple):
    """When to transmit: at a tick of the concentrator's clock, or (None) at once; and how."""

    ticks: int | None
    frequency_hz: int
    data_rate: int


def read(data: bytes) -> Datagram:
    """A datagram from a gateway; `BadInput`: it is none.

    >>> read(bytes.fromhex("02 abcd 02 0016c001ff10a235")).token.hex()
    'abcd'
    """
    if len(data) < HEAD_BYTES:
        raise BadInput(f"the datagram has {len(data)} bytes, must have at least {HEAD_BYTES}", bytes=len(data))
    version, kind = data[0], data[3]
    if version not in VERSIONS:
        raise BadInput(f"byte 0 of the datagram, the version, is {version}, must be 1 or 2", version=version)
    if kind not in FROM_GATEWAYS:
        raise BadInput(f"byte 3 of the datagram is {kind}, no gateway sends that", kind=kind)
    return Datagram(version, data[1:3], kind, int.from_bytes(data[4:HEAD_BYTES]), data[HEAD_BYTES:])


def answer(to: Datagram) -> bytes:
    """PUSH_ACK or PULL_ACK, with the token of what it answers."""
    return bytes([to.version]) + to.token + bytes([PUSH_ACK if to.kind == PUSH_DATA else PULL_ACK])


def packets(push: Mapping[str, Any], packets_max: int) -> list[Any]:
    """The ``rxpk`` of a PUSH_DATA, at most so many; none if it only brings the gateway's statistics."""
    found = push.get("rxpk", [])
    if not isinstance(found, list):
        raise BadInput(f"rxpk is {field.shown(found)}, must be an array")
    if len(found) > packets_max:
        raise BadInput(f"rxpk has {len(found)} packets, the limit is {packets_max}", packets=len(found))
    return found


def heard(packet: object, region: Region) -> Heard | None:
    """One ``rxpk``; None: it has no CRC that is right, so its bytes are not to be trusted."""
    if not isinstance(packet, dict):
        raise BadInput(f"a packet of rxpk is {field.shown(packet)}, must be an object")
    if packet.get("stat") is None or field.integer(packet, "stat", -1, 1) != CRC_OK:
        return None
    ticks = field.integer(packet, "tmst", 0, TICKS - 1)
    megahertz = field.number(packet, "freq", 0.000_001, field.FREQUENCY_HZ_MAX / 1e6)
    data_rate = region.data_rate(*_rate(packet))
    rssi, snr = _levels(packet)
    phy = field.octets(packet, "data")
    if "size" in packet and field.integer(packet, "size", 0, field.PHY_BYTES_MAX) != len(phy):
        raise BadInput(f"size is {packet['size']}, but data has {len(phy)} bytes", size=packet["size"])
    return Heard(parse(phy), Radio(round(megahertz * 1e6), data_rate, rssi, snr, _time_ms(packet)), ticks)


def failure(ack: Datagram) -> str | None:
    """Why the gateway will not transmit, as its TX_ACK says; None: it will."""
    if not ack.body.strip(b"\0 "):  # an empty body is a success, and some forwarders send the zero that ends a string
        return None
    told = field.part(field.document(ack.body, "TX_ACK"), "txpk_ack")
    if told.get("error") is None:  # newer forwarders warn of a power that they cannot reach, and transmit
        return None
    error = field.text(told, "error")
    return None if error == "NONE" else error


def window(downlink: Downlink, ticks: int, *, second: bool) -> Window:
    """The first or the second receive window after an uplink that ended at this tick.

    One of class C listens to its second window all the time, so that need not be waited for.
    """
    if second and downlink.device_class == "C":
        return Window(None, *downlink.rx2)
    delay_s = downlink.rx_delay_s + second
    return Window((ticks + delay_s * 1_000_000) % TICKS, *(downlink.rx2 if second else downlink.rx1))


def transmit(version: int, token: bytes, pdu: bytes, at: Window, region: Region, power_dbm: int) -> bytes:
    """PULL_RESP: transmit this, then. A downlink in LoRa has inverted polarity and no CRC: no gateway hears it."""
    spreading, bandwidth_khz = region.modulation(at.data_rate)
    when = {"imme": True} if at.ticks is None else {"imme": False, "tmst": at.ticks}
    if spreading:
        how = {
            "modu": "LORA",
            "datr": f"SF{spreading}BW{bandwidth_khz}",
            "codr": "4/5",
            "ipol": True,
            "ncrc": True,
        }
    else:
        how = {"modu": "FSK", "datr": FSK_BITS_PER_S, "fdev": FSK_BITS_PER_S // 2}
    packet = {
        **when,
        "freq": round(at.frequency_hz / 1e6, 6),
        "rfch": 0,
        "powe": power_dbm,
        **how,
        "size": len(pdu),
        "data": base64.b64encode(pdu).decode(),
    }
    head = bytes([version]) + (token if version > 1 else b"\0\0") + bytes([PULL_RESP])
    return head + json.dumps({"txpk": packet}, separators=(",", ":")).encode()


def _rate(packet: Mapping[str, Any]) -> tuple[int, int]:
    if packet.get("modu") == "FSK":
        field.integer(packet, "datr", FSK_BITS_PER_S, FSK_BITS_PER_S)
        return 0, 0
    if packet.get("modu") != "LORA":
        raise BadInput(f"modu is {field.shown(packet.get('modu'))}, must be LORA or FSK")
    found = LORA_RATE.fullmatch(field.text(packet, "datr"))
    if found is None:
        raise BadInput(f"datr is {field.shown(packet['datr'])}, must be like SF7BW125")
    return int(found[1]), int(found[2])


def _levels(packet: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """RSSI and SNR; of several antennas the one that heard best. FSK has no SNR."""
    antennas = packet.get("rsig")
    if not antennas or "rssi" in packet:
        return field.decibels(packet, "rssi"), field.decibels(packet, "lsnr")
    if not isinstance(antennas, list) or not all(isinstance(antenna, dict) for antenna in antennas):
        raise BadInput(f"rsig is {field.shown(antennas)}, must be an array of objects")
    levels = [(field.number(antenna, "rssic", -1_000, 1_000), field.decibels(antenna, "lsnr")) for antenna in antennas]
    return max(levels, key=lambda level: (-math.inf if level[1] is None else level[1], level[0]))


def _time_ms(packet: Mapping[str, Any]) -> int | None:
    time_ms = field.moment_ms(packet, "time")
    return field.gps_ms(packet, "tmms") if time_ms is None else time_ms
