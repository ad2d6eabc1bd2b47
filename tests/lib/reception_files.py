"""Receptions of one little world in every shape that they are stored in. The same facts, told by other systems.

Device d (DevEUI 0011223344556677, DevAddr 26011bda) sends counters 1, 2 and 4; gateways a and b hear 1 and 2 (b 40 ms
later), only a hears 4. Then it joins, and both hear that.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from onefold.lorawan import DataUp, JoinRequest
from onefold.lorawan.frames import Frame

A, B = 0x0016C001FF10A235, 0x2
DEV_EUI, DEV_ADDR, JOIN_EUI = 0x0011223344556677, 0xFC00AC01, 0x70B3D57ED0000001
START_MS = 1_700_000_000_000


class Heard(NamedTuple):
    frame: Frame
    fcnt: int
    station: int
    at_ms: int
    snr: float


def data(fcnt: int, *, confirmed: bool = False, payload: bytes = b"\xab\x02", mic: int = 0xAC90F4D4) -> DataUp:
    return DataUp(0x80 if confirmed else 0x40, DEV_ADDR, 0x02, fcnt & 0xFFFF, b"\x05\xff", 1, payload, mic + fcnt)


def world(start_ms: int = START_MS) -> list[Heard]:
    join = JoinRequest(0, JOIN_EUI, DEV_EUI, 0xABCD, 77)
    frames: list[tuple[Frame, int]] = [(data(1), 1), (data(2, confirmed=True), 2), (data(4), 4), (join, 0)]
    heard = []
    for n, (frame, fcnt) in enumerate(frames):
        for station, late, snr in ((A, 0, 5.5), (B, 40, 7.0)):
            if fcnt != 4 or station == A:
                heard.append(Heard(frame, fcnt, station, start_ms + 100_000 * n + late, snr))
    return heard


def iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:03d}Z"


def onefold(one: Heard) -> dict[str, Any]:
    frame = one.frame
    said: dict[str, Any] = {"v": 1, "key": frame.key.hex(), "dev_eui": f"{DEV_EUI:016x}"}
    if isinstance(frame, DataUp):
        said |= {"kind": "data", "dev_addr": f"{frame.dev_addr:08x}", "fcnt": one.fcnt, "fport": frame.fport,
                 "payload": frame.payload.hex(), "confirmed": frame.confirmed, "adr": False}  # fmt: skip
    else:
        said |= {"kind": "join", "join_eui": f"{frame.join_eui:016x}", "dev_nonce": frame.dev_nonce}
    return said | {"server": "s", "station": f"{one.station:016x}", "time_ms": one.at_ms, "received_ms": one.at_ms + 9,
                   "rssi": -100, "snr": one.snr, "verdict": "FIRST", "reason": "new_frame",
                   "status": "not_duplicate"}  # fmt: skip


def bridge(one: Heard, version: int = 4) -> dict[str, Any]:
    phy = base64.b64encode(one.frame.phy).decode()
    if version == 3:
        rx = {"gatewayID": base64.b64encode(one.station.to_bytes(8, "big")).decode(), "time": iso(one.at_ms),
              "loRaSNR": one.snr, "rssi": -100}  # fmt: skip
    else:
        rx = {"gatewayId": f"{one.station:016x}", "gwTime": iso(one.at_ms), "nsTime": iso(one.at_ms + 9),
              "snr": one.snr, "rssi": -100}  # fmt: skip
    return {"phyPayload": phy, "txInfo": {"frequency": 868_100_000}, "rxInfo": rx}


def signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def lns(one: Heard) -> dict[str, Any]:
    frame = one.frame
    if isinstance(frame, DataUp):
        said = {"msgtype": "updf", "MHdr": frame.mhdr, "DevAddr": signed(frame.dev_addr), "FCtrl": frame.fctrl,
                "FCnt": frame.fcnt, "FOpts": frame.fopts.hex().upper(), "FPort": frame.fport,
                "FRMPayload": frame.payload.hex().upper(), "MIC": signed(frame.mic)}  # fmt: skip
    else:
        euis = {"JoinEui": frame.join_eui, "DevEui": frame.dev_eui}
        said = {"msgtype": "jreq", "MHdr": frame.mhdr, "DevNonce": frame.dev_nonce, "MIC": signed(frame.mic),
                **{name: eui.to_bytes(8, "big").hex("-").upper() for name, eui in euis.items()}}  # fmt: skip
    upinfo = {"rctx": 0, "rssi": -100, "snr": one.snr, "rxtime": one.at_ms / 1000}
    station = "::2" if one.station == B else one.station.to_bytes(8, "big").hex("-").upper()
    return {"station": station, "at_ms": one.at_ms + 9, "message": {**said, "DR": 5, "upinfo": upinfo}}


def chirpstack(heard: list[Heard], version: int = 4) -> list[dict[str, Any]]:
    """One event for each frame, with all who heard it; version 4 tells of joins without them."""
    events = []
    for fcnt in (1, 2, 4, 0):
        all_of = [one for one in heard if one.fcnt == fcnt]
        frame = all_of[0].frame
        event: dict[str, Any] = {"devAddr": "26011bda", "rxInfo": [bridge(one, version)["rxInfo"] for one in all_of]}
        if isinstance(frame, DataUp):
            event |= {"fCnt": fcnt, "fPort": frame.fport, "data": base64.b64encode(frame.payload).decode()}
        if version == 3:
            event |= {
                "devEUI": f"{DEV_EUI:016x}",
                "confirmedUplink": fcnt == 2,
                "publishedAt": iso(all_of[0].at_ms + 9),
            }
        else:
            event |= {"deviceInfo": {"devEui": f"{DEV_EUI:016x}"}, "confirmed": fcnt == 2, "time": iso(all_of[0].at_ms)}
            if not isinstance(frame, DataUp):
                del event["rxInfo"]
        events.append(event)
    return events


def stored(shape: str, start_ms: int = START_MS) -> list[dict[str, Any]]:
    """The world as rows of a shape."""
    heard = world(start_ms)
    if shape.startswith("chirpstack"):
        return chirpstack(heard, int(shape[-1]))
    made = {"onefold": onefold, "lns": lns, "bridge 3": lambda one: bridge(one, 3), "bridge 4": bridge}[shape]
    return [made(one) for one in heard]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
