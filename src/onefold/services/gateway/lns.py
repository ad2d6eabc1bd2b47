"""The LNS protocol of LoRa Basics Station: JSON over websockets.

    /router-info     {"router": id}                  -> {"router": id, "muxs": id, "uri": where to go}, or {"error"}
    /router/<eui>    version                         -> router_config
                     updf, jreq                      a frame that was heard
                     timesync                        -> timesync, with the time of GPS
                     dntxed                          a downlink (<- dnmsg) was on the air
                     propdf, rmtsh and all others    counted, and nothing else

What is not JSON, or has no msgtype, ends the connection: whoever speaks there is no station. A frame whose fields are
wrong is refused and counted; the station goes on. A station that comes again takes the place of its old connection,
which may be half open still.
"""

import asyncio
import json
import logging
from collections import Counter, deque
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from onefold.decoding import read_json
from onefold.engines.lorawan.answers import BUSY, MALFORMED
from onefold.errors import BadInput, Busy
from onefold.services.gateway import lns_json
from onefold.services.gateway.eui import dashed, id6, parse_eui
from onefold.services.gateway.limits import Limits
from onefold.services.gateway.radio_json import GPS_EPOCH_MS, GPS_LEAP_MS, shown
from onefold.services.gateway.reception import Downlink, Reception, station_name
from onefold.services.gateway.service import GatewayService
from onefold.services.ingest.service import Closing
from onefold.services.topic_settings import wall_ms

KINDS: Final = ("version", "updf", "jreq", "dntxed", "timesync", "propdf", "rmtsh")
OTHER: Final = "other"
NORMAL, REPLACED, BAD_DATA, OUR_ERROR, RESTART = 1000, 1008, 1007, 1011, 1012
REASON_BYTES_MAX: Final = 123
"""What a websocket's close frame can hold."""
TELL_S: Final = 10.0
"""One line on what a station does wrong, this often at most."""
log: Final = logging.getLogger("onefold.gateway")
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class Lns:
    """All stations on websockets. Lives on one event loop."""

    def __init__(self, service: GatewayService, *, public_url: str | None = None) -> None:
        self.service = service
        self.stations: dict[str, Connection] = {}
        self.messages: Counter[str] = Counter()
        """By their msgtype."""
        self._public_url = public_url

    async def discover(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell a station where to go, and hang up."""
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
            asked = read_json(text or "", "the query")
        except BadInput:
            return {"error": "the query is not JSON"}
        if not isinstance(asked, dict):
            return {"error": f"the query is {shown(asked)}, must be a JSON object"}
        try:
            eui = parse_eui(asked.get("router"), "router")
        except BadInput as error:
            return {"router": shown(asked.get("router")), "error": str(error)}
        here = f"{scope.get('scheme', 'ws')}://{HTTPConnection(scope).headers.get('host', 'localhost')}"
        uri = f"{self._public_url or here}/router/{station_name(eui)}"
        return {"router": id6(eui), "muxs": "muxs-::1", "uri": uri}

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be there for one station until one side has enough."""
        station = station_name(parse_eui(scope["path_params"]["eui"], "router"))
        if self.service.closing:
            raise Closing("the server is shutting down")
        await receive()
        await send({"type": "websocket.accept"})
        before = self.stations.get(station)
        if before is not None:
            before.close(REPLACED, "this station has connected again")
        connection = self.stations[station] = Connection(self, station, receive, send, scope["state"]["abort"])
        try:
            await connection.run()
        finally:
            if self.stations.get(station) is connection:
                del self.stations[station]

    def stop_reading(self) -> None:
        """Take no more from anybody; what is to be sent is still sent."""
        for connection in self.stations.values():
            connection.stop_reading()

    async def close(self) -> None:
        """Send what is queued, and hang up."""
        for connection in list(self.stations.values()):
            connection.close(RESTART, "the server is shutting down")
        while self.stations:
            await asyncio.sleep(0.01)


class Connection:
    """One station's websocket."""

    def __init__(self, lns: Lns, station: str, receive: Receive, send: Send, abort: Any) -> None:
        self.station = station
        self._lns, self._service = lns, lns.service
        self._limits: Limits = lns.service.settings.limits
        self._receive, self._send, self._abort = receive, send, abort
        self._queue: deque[str] = deque()
        self._news = asyncio.Event()
        self._end: tuple[int, str] | None = None
        self._ended = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._told_at = -TELL_S

    async def run(self) -> None:
        """Read and write until the end."""
        reader, writer = self._tasks = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        try:
            await self._ended.wait()
            reader.cancel()
            await asyncio.wait([writer], timeout=self._limits.write_s)
        finally:
            reader.cancel()
            if not writer.done():
                writer.cancel()
                self._abort()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Nobody stays connected whom nobody reads, or writes to."""
        if not task.cancelled() and (error := task.exception()):
            log.error("station %s: unexpected: %s: %s", self.station, type(error).__name__, error)
            self.close(OUR_ERROR, "an error of the server")

    def stop_reading(self) -> None:
        """Take no more from it."""
        if self._tasks:
            self._tasks[0].cancel()

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then hang up; the first reason counts."""
        self._end = self._end or (code, reason)
        self._ended.set()
        self._news.set()

    def send(self, text: str) -> bool:
        """Queue a message; False: the station is gone, or does not read and is now."""
        if self._end is not None:
            return False
        if len(self._queue) >= self._limits.queued_max:
            self._cut(f"{len(self._queue)} messages wait for it")
            return False
        self._queue.append(text)
        self._news.set()
        return True

    def _cut(self, why: str) -> None:
        log.error("station %s does not read (%s): cut off", self.station, why)
        self._queue.clear()
        self.close(NORMAL, "")
        self._abort()

    async def _write(self) -> None:
        send, queue = self._send, self._queue
        try:
            while True:
                async with asyncio.timeout(self._limits.write_s):
                    while queue:
                        await send({"type": "websocket.send", "text": queue.popleft()})
                if self._end is not None:
                    code, reason = self._end
                    await send({"type": "websocket.close", "code": code, "reason": reason})
                    return
                self._news.clear()
                await self._news.wait()
        except TimeoutError:
            self._cut(f"one message took {self._limits.write_s} s")
        except (RuntimeError, OSError):  # uvicorn's ways to say that the other side has gone
            self.close(NORMAL, "")

    async def _read(self) -> None:
        receive, count = self._receive, self._lns.messages
        try:
            while True:
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    self.close(NORMAL, "")
                    return
                text = message.get("text")
                if text is None:  # a remote shell's, which nobody opened
                    count[OTHER] += 1
                    continue
                kind, fields = lns_json.message(text)
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

    async def _heard(self, kind: str, fields: dict[str, Any]) -> None:
        try:
            frame = lns_json.data_up(fields) if kind == "updf" else lns_json.join_request(fields)
            radio, xtime, rctx = lns_json.radio(fields, self._service.region)
        except BadInput as error:
            self._refuse(f"{kind}: {error}")
            return
        reception = Reception(frame, self.station, radio, _Way(self, xtime, rctx), wall_ms())
        while True:
            try:
                self._service.hear(reception)
                return
            except Busy as busy:  # not read meanwhile, the station has to wait
                try:
                    await self._service.room()
                except asyncio.CancelledError:  # it was read already, and the server ends, or the station has gone
                    self._service.refuse(self.station, BUSY, str(busy))
                    raise

    def _answer(self, kind: str, fields: dict[str, Any]) -> None:
        try:
            if kind == "version":
                features = fields.get("features")
                production = isinstance(features, str) and "prod" in features.split()
                self.send(_encode(self._service.region.router_config(mux_time=time(), production=production)))
            elif kind == "timesync":
                txtime = lns_json.whole(fields, "txtime", -(2**63), 2**63 - 1)
                now = time()
                gps_us = round(now * 1e6) - 1_000 * (GPS_EPOCH_MS - GPS_LEAP_MS)
                self.send(_encode({"msgtype": kind, "txtime": txtime, "gpstime": gps_us, "MuxTime": now}))
            elif kind == "dntxed":
                name = "diid" if "diid" in fields else "seqno"  # the older name
                self._service.transmitted(lns_json.whole(fields, name, -(2**63), 2**63 - 1))
        except BadInput as error:
            self._tell(f"{kind}: {error}")

    def _refuse(self, told: str) -> None:
        self._service.refuse(self.station, MALFORMED, told)
        self._tell(told)

    def _tell(self, told: str) -> None:
        now = monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            log.error("station %s: %s", self.station, told)


class _Way:
    """The way back after one uplink: with the station's own time and antenna of it."""

    __slots__ = ("_connection", "_rctx", "_xtime")

    def __init__(self, connection: Connection, xtime: int, rctx: int) -> None:
        self._connection, self._xtime, self._rctx = connection, xtime, rctx

    def send(self, downlink: Downlink) -> bool:
        """Hand it to the station; False: it is gone."""
        return self._connection.send(dnmsg(downlink, self._xtime, self._rctx))


def dnmsg(downlink: Downlink, xtime: int, rctx: int) -> str:
    """What tells a station to transmit after an uplink that had this ``xtime`` and ``rctx``."""
    return _encode(
        {
            "msgtype": "dnmsg",
            "DevEui": dashed(downlink.dev_eui),
            "dC": 2 if downlink.device_class == "C" else 0,
            "diid": downlink.number,
            "pdu": downlink.pdu.hex(),
            "RxDelay": downlink.rx_delay_s,
            "RX1DR": downlink.rx1[1],
            "RX1Freq": downlink.rx1[0],
            "RX2DR": downlink.rx2[1],
            "RX2Freq": downlink.rx2[0],
            "priority": 0,
            "xtime": xtime,
            "rctx": rctx,
            "MuxTime": time(),
        }
    )
