"""The LNS protocol of LoRa Basics Station: JSON over websockets.

    /router-info     {"router": id}                  -> {"router": id, "muxs": id, "uri": where to go}, or {"error"}
    /router/<eui>    version                         -> router_config
                     updf, jreq                      a frame that was heard
                     timesync                        -> timesync, with the time of GPS
                     dntxed                          a downlink (<- dnmsg) was on the air
                     propdf, rmtsh and all others    only counted

A message that is not JSON, or has no msgtype, ends the connection: the sender is no station. A frame with wrong fields
is refused and counted, and the connection stays. A station that connects again replaces its old connection, which may
still be half open.

Stations send DevAddr and MIC as signed 32-bit numbers (their code casts them), though the protocol's text does not say
so: both forms are accepted. FPort is -1 if the frame has none. If FCtrl and FOpts disagree, the frame that was on the
air cannot be rebuilt. An EUI is written with dashes (``00-16-C0-01-FF-10-A2-35``) or as ID6, four groups as in an IPv6
address (``16:c001:ff10:a235``, ``::1``), both perhaps after ``router-``, or as a number, perhaps signed.
"""

import asyncio
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv6Address
from time import time
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from onefold.clock import wall_ms
from onefold.decoding import read_json
from onefold.errors import BadInput, Busy
from onefold.lorawan import radio
from onefold.lorawan.flow import GatewayLimits, GatewayService
from onefold.lorawan.frames import CONFIRMED_UP, DATA_BYTES_MIN, PHY_BYTES_MAX, UNCONFIRMED_UP, DataUp, JoinRequest
from onefold.lorawan.radio import Complaints, Downlink, Radio, Reception, Region, dashed, shown, station_name, whole
from onefold.lorawan.rules import BUSY, MALFORMED
from onefold.net.http import Closing

MAX: Final = 2**64 - 1
PLAIN: Final = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{2}([-:][0-9a-fA-F]{2}){7}")
ID6: Final = re.compile(r"(::|[0-9a-fA-F])[0-9a-fA-F:]{0,18}")
TEXT_MAX: Final = 60


def parse_eui(value: object, field: str) -> int:
    """An EUI in any of its forms as a number; `BadInput` names the field and its value.

    >>> [parse_eui(x, "router") for x in ("::1", 1, "00-00-00-00-00-00-00-01", "router-0:0:0:1", "0000000000000001")]
    [1, 1, 1, 1, 1]
    >>> f"{parse_eui('16::a235', 'router'):016x} {parse_eui(-1, 'router'):016x}"
    '001600000000a235 ffffffffffffffff'
    """
    if type(value) is int and -(2**63) <= value <= MAX:
        return value & MAX
    if isinstance(value, str) and len(value) <= TEXT_MAX:
        text = value.removeprefix("router-")
        if PLAIN.fullmatch(text):
            return int(text.replace("-", "").replace(":", ""), 16)
        if ID6.fullmatch(text):
            with suppress(ValueError):  # an IPv6 address, but for its front half
                return int(IPv6Address("0:0:0:0" + ":" * (text[:2] != "::") + text))
    raise BadInput(f"{field} is {shown(value)}, must be an EUI, such as 00-16-C0-01-FF-10-A2-35 or 16:c001:ff10:a235")


def parse_dashed(value: object, field: str) -> int:
    """An EUI with dashes as a number; the EUIs of devices have no other form.

    >>> f"{parse_dashed('85-27-C1-DF-EE-A4-16-9E', 'DevEui'):x}"
    '8527c1dfeea4169e'
    """
    if type(value) is str and len(value) == 23 and value[2::3] == "-------" and PLAIN.fullmatch(value):
        return int(value.replace("-", ""), 16)
    raise BadInput(f"{field} is {shown(value)}, must be an EUI with dashes, such as 00-16-C0-01-FF-10-A2-35")


def id6(eui: int) -> str:
    """An EUI as ID6; the longest run of two or more zero groups is left out.

    >>> [id6(x) for x in (0, 1, 0x16C001FF10A235, 0x16 << 48, 0x160000000000A235)]
    ['::0', '::1', '16:c001:ff10:a235', '16::', '1600::a235']
    """
    text = str(IPv6Address(0x0001_0001_0001_0001 << 64 | eui)).removeprefix("1:1:1:1")
    return text.removeprefix(":") if text[:2] != "::" else text if eui else "::0"


INT64: Final = 2**63


def read_message(text: str) -> tuple[str, dict[str, Any]]:
    fields = radio.document(text, "the message")
    return radio.text(fields, "msgtype"), fields


def data_up(fields: Mapping[str, Any]) -> DataUp:
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
    if DATA_BYTES_MIN + len(fopts) + (port >= 0) + len(payload) > PHY_BYTES_MAX:
        raise BadInput(f"FRMPayload has {len(payload)} bytes: no frame is longer than {PHY_BYTES_MAX}")
    dev_addr = whole(fields, "DevAddr", -(2**31), 2**32 - 1) & 0xFFFFFFFF
    fcnt = whole(fields, "FCnt", 0, 0xFFFF)
    mic = whole(fields, "MIC", -(2**31), 2**32 - 1) & 0xFFFFFFFF
    return DataUp(mhdr, dev_addr, fctrl, fcnt, fopts, None if port < 0 else port, payload, mic)


def join_request(fields: Mapping[str, Any]) -> JoinRequest:
    mhdr = whole(fields, "MHdr", 0, 255)
    if mhdr != 0:
        raise BadInput(f"MHdr is {mhdr}, must be 0 for a join request")
    join_eui, dev_eui = (parse_dashed(fields.get(name), name) for name in ("JoinEui", "DevEui"))
    nonce, mic = whole(fields, "DevNonce", 0, 0xFFFF), whole(fields, "MIC", -(2**31), 2**32 - 1) & 0xFFFFFFFF
    return JoinRequest(mhdr, join_eui, dev_eui, nonce, mic)


def read_radio(fields: Mapping[str, Any], region: Region) -> tuple[Radio, int, int]:
    """The radio data, and the ``xtime`` and ``rctx`` that go back to the station with an answer."""
    rate = whole(fields, "DR", 0, 15)
    if rate >= len(region.rx1_rates):
        raise BadInput(f"DR is {rate}, {region.name} has 0 to {len(region.rx1_rates) - 1} for devices")
    frequency = whole(fields, "Freq", 1, 2**32 - 1)
    info = radio.part(fields, "upinfo")
    xtime = whole(info, "xtime", -INT64, INT64 - 1)
    rctx = whole(info, "rctx", -INT64, INT64 - 1)
    time_ms, gps_us, rxtime = None, info.get("gpstime"), info.get("rxtime")
    if type(gps_us) is int and 0 < gps_us < INT64:  # from GPS where the station has it, microseconds since 1980
        time_ms = radio.trusted_ms(gps_us // 1_000 + radio.GPS_EPOCH_MS - radio.GPS_LEAP_MS)
    elif isinstance(rxtime, int | float) and 0 < rxtime < 2**40:  # else from its own idea of UTC, in seconds
        time_ms = radio.trusted_ms(round(rxtime * 1_000))
    return Radio(frequency, rate, radio.decibels(info, "rssi"), radio.decibels(info, "snr"), time_ms), xtime, rctx


def octets(fields: Mapping[str, Any], name: str) -> bytes:
    value = fields.get(name)
    if type(value) is str and len(value) <= 2 * PHY_BYTES_MAX:
        with suppress(ValueError):
            data = bytes.fromhex(value)
            if 2 * len(data) == len(value):  # fromhex skips white space
                return data
    raise radio.wrong(fields, name, f"the hex digits of up to {PHY_BYTES_MAX} bytes")


KINDS: Final = ("version", "updf", "jreq", "dntxed", "timesync", "propdf", "rmtsh")
OTHER: Final = "other"
NORMAL, REPLACED, BAD_DATA, OUR_ERROR, RESTART = 1000, 1008, 1007, 1011, 1012
REASON_BYTES_MAX: Final = 123
"""The capacity of a websocket's close frame."""
log: Final = logging.getLogger("onefold.gateway")
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class Lns:
    """All stations on websockets. Lives on one event loop."""

    def __init__(self, service: GatewayService, *, public_url: str | None = None) -> None:
        self.service = service
        self.stations: dict[str, StationConnection] = {}
        self.messages: Counter[str] = Counter()
        self._public_url = public_url

    async def discover(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a station the URL to connect to, and close."""
        await receive()
        await send({"type": "websocket.accept"})
        with suppress(TimeoutError):
            async with asyncio.timeout(self.service.settings.limits.head_s):
                message = await receive()
                if message["type"] == "websocket.receive":
                    await send({"type": "websocket.send", "text": _encode(self._direction(message.get("text"), scope))})
        await send({"type": "websocket.close", "code": NORMAL})

    def _direction(self, text: str | None, scope: Scope) -> dict[str, Any]:
        try:
            query = read_json(text or "", "the query")
        except BadInput:
            return {"error": "the query is not JSON"}
        if not isinstance(query, dict):
            return {"error": f"the query is {shown(query)}, must be a JSON object"}
        try:
            eui = parse_eui(query.get("router"), "router")
        except BadInput as error:
            return {"router": shown(query.get("router")), "error": str(error)}
        here = f"{scope.get('scheme', 'ws')}://{HTTPConnection(scope).headers.get('host', 'localhost')}"
        uri = f"{self._public_url or here}/router/{station_name(eui)}"
        return {"router": id6(eui), "muxs": "muxs-::1", "uri": uri}

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one station until either side closes."""
        station = station_name(parse_eui(scope["path_params"]["eui"], "router"))
        if self.service.closing:
            raise Closing("the server is shutting down")
        await receive()
        await send({"type": "websocket.accept"})
        before = self.stations.get(station)
        if before is not None:
            before.close(REPLACED, "this station has connected again")
        connection = self.stations[station] = StationConnection(self, station, receive, send, scope["state"]["abort"])
        try:
            await connection.run()
        finally:
            if self.stations.get(station) is connection:
                del self.stations[station]

    def stop_reading(self) -> None:
        """Read no more from any station; queued messages are still sent."""
        for connection in self.stations.values():
            connection.stop_reading()

    async def close(self) -> None:
        for connection in list(self.stations.values()):
            connection.close(RESTART, "the server is shutting down")
        while self.stations:
            await asyncio.sleep(0.01)


class StationConnection:
    def __init__(self, lns: Lns, station: str, receive: Receive, send: Send, abort: Any) -> None:
        self.station = station
        self._lns, self._service = lns, lns.service
        self._limits: GatewayLimits = lns.service.settings.limits
        self._receive, self._send, self._abort = receive, send, abort
        self._queue: deque[str] = deque()
        self._wakeup = asyncio.Event()
        self._end: tuple[int, str] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._complaints = Complaints()

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        try:
            await self._write()
        except TimeoutError:
            self._cut(f"one message took {self._limits.write_s} s")
        except (RuntimeError, OSError):  # from uvicorn if the other side has gone
            self.close(NORMAL, "")
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            self.stop_reading()

    def stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then close; the first reason counts."""
        self._end = self._end or (code, reason)
        self.stop_reading()
        self._wakeup.set()

    def _fail(self, error: Exception) -> None:
        log.error("station %s: unexpected: %s: %s", self.station, type(error).__name__, error)
        self.close(OUR_ERROR, "an error of the server")

    def send(self, text: str) -> bool:
        """Queue a message; False: the station is gone, or is cut off now because it does not read."""
        if self._end is not None:
            return False
        if len(self._queue) >= self._limits.queued_max:
            self._cut(f"{len(self._queue)} messages wait for it")
            return False
        self._queue.append(text)
        self._wakeup.set()
        return True

    def _cut(self, why: str) -> None:
        log.error("station %s does not read (%s): cut off", self.station, why)
        self._queue.clear()
        self.close(NORMAL, "")
        self._abort()

    async def _write(self) -> None:
        while True:
            while self._queue:
                async with asyncio.timeout(self._limits.write_s):
                    await self._send({"type": "websocket.send", "text": self._queue.popleft()})
            if self._end is not None:
                code, reason = self._end
                async with asyncio.timeout(self._limits.write_s):
                    await self._send({"type": "websocket.close", "code": code, "reason": reason})
                return
            self._wakeup.clear()
            await self._wakeup.wait()

    async def _read(self) -> None:
        receive, count = self._receive, self._lns.messages
        try:
            while True:
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    self.close(NORMAL, "")
                    return
                text = message.get("text")
                if text is None:  # binary: of a remote shell, which we never open
                    count[OTHER] += 1
                    continue
                kind, fields = read_message(text)
                count[kind if kind in KINDS else OTHER] += 1
                if kind == "updf" or kind == "jreq":
                    self._service.arrive()
                    await self._heard(kind, fields)
                else:
                    self._answer(kind, fields)
        except BadInput as error:
            self._service.arrive()
            self._refuse(str(error))
            self.close(BAD_DATA, str(error).encode()[:REASON_BYTES_MAX].decode(errors="ignore"))
        except Exception as error:
            self._fail(error)

    async def _heard(self, kind: str, fields: dict[str, Any]) -> None:
        try:
            frame = data_up(fields) if kind == "updf" else join_request(fields)
            signal, xtime, rctx = read_radio(fields, self._service.region)
        except BadInput as error:
            self._refuse(f"{kind}: {error}")
            return

        def back(downlink: Downlink) -> bool:  # with the xtime and antenna of the uplink
            return self.send(dnmsg(downlink, xtime, rctx))

        reception = Reception(frame, self.station, signal, back, wall_ms())
        while True:
            try:
                self._service.hear(reception)
                return
            except Busy as busy:  # read no more from this station until there is room
                try:
                    await self._service.room()
                except asyncio.CancelledError:  # the server ends, or the station has gone
                    self._service.refuse(self.station, BUSY, str(busy))
                    raise

    def _answer(self, kind: str, fields: dict[str, Any]) -> None:
        try:
            if kind == "version":
                features = fields.get("features")
                production = isinstance(features, str) and "prod" in features.split()
                self.send(_encode(self._service.region.router_config(mux_time=time(), production=production)))
            elif kind == "timesync":
                txtime = whole(fields, "txtime", -INT64, INT64 - 1)
                now = time()
                gps_us = round(now * 1e6) - 1_000 * (radio.GPS_EPOCH_MS - radio.GPS_LEAP_MS)
                self.send(_encode({"msgtype": kind, "txtime": txtime, "gpstime": gps_us, "MuxTime": now}))
            elif kind == "dntxed":
                name = "diid" if "diid" in fields else "seqno"  # the older name
                self._service.transmitted(whole(fields, name, -INT64, INT64 - 1))
        except BadInput as error:
            self._complaints.tell(self.station, f"{kind}: {error}")

    def _refuse(self, problem: str) -> None:
        self._service.refuse(self.station, MALFORMED, problem)
        self._complaints.tell(self.station, problem)


def dnmsg(downlink: Downlink, xtime: int, rctx: int) -> str:
    """The message that has a station transmit after an uplink with this ``xtime`` and ``rctx``."""
    (rx1_hz, rx1_rate), (rx2_hz, rx2_rate) = downlink.rx1, downlink.rx2
    message = {
        "msgtype": "dnmsg", "DevEui": dashed(downlink.dev_eui), "dC": 2 if downlink.device_class == "C" else 0,
        "diid": downlink.number, "pdu": downlink.pdu.hex(), "RxDelay": downlink.rx_delay_s,
        "RX1DR": rx1_rate, "RX1Freq": rx1_hz, "RX2DR": rx2_rate, "RX2Freq": rx2_hz,
        "priority": 0, "xtime": xtime, "rctx": rctx, "MuxTime": time(),
    }  # fmt: skip
    return _encode(message)
