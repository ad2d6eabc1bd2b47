"""What goes upstream: one JSON object for each message, the same for every protocol that brought it in."""

import json
from typing import Any, Final

from onefold.engines.lorawan.frames import DataUp
from onefold.engines.lorawan.judge import Judged
from onefold.services.gateway.reception import Reception

FORMAT: Final = 1
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def record(server: str, reception: Reception, dev_eui: int | None, judged: Judged) -> bytes:
    """One reception and what became of it; ``dev_eui`` None: it is nobody's that we know."""
    frame, radio = reception.frame, reception.radio
    name = None if dev_eui is None else f"{dev_eui:016x}"
    row: dict[str, Any]
    if isinstance(frame, DataUp):
        row = {
            "v": FORMAT,
            "kind": "data",
            "key": frame.key.hex(),
            "dev_eui": name,
            "dev_addr": f"{frame.dev_addr:08x}",
            "fcnt": judged.fcnt,
            "fport": frame.fport,
            "payload": frame.payload.hex(),
            "confirmed": frame.confirmed,
            "adr": frame.adr,
        }
    else:
        row = {
            "v": FORMAT,
            "kind": "join",
            "key": frame.key.hex(),
            "dev_eui": f"{frame.dev_eui:016x}",
            "join_eui": f"{frame.join_eui:016x}",
            "dev_nonce": frame.dev_nonce,
        }
    row["server"] = server
    row["station"] = reception.station
    row["time_ms"] = radio.time_ms
    row["received_ms"] = reception.received_ms
    row["rssi"] = radio.rssi
    row["snr"] = radio.snr
    row["frequency"] = radio.frequency_hz
    row["dr"] = radio.data_rate
    row["verdict"], row["reason"] = judged.answer
    row["status"] = None if dev_eui is None else judged.status  # refused before it had one
    if judged.route.marked:
        row["dup_msg"] = True
    return _encode(row).encode()


def refused(server: str, station: str, received_ms: int, verdict: str, reason: str, told: str) -> bytes:
    """Something that was no reception."""
    row = {"v": FORMAT, "kind": None, "server": server, "station": station, "received_ms": received_ms,
           "verdict": verdict, "reason": reason, "told": told}  # fmt: skip
    return _encode(row).encode()
