"""A small LNS server in the tests' own process: enough to hold the stations to the protocol, and to be rude to them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve

from onefold.lorawan import DataUp
from onefold.lorawan.mic import ack_down
from onefold.testing.radio import RadioTraffic


class Peer:
    """Answers every first copy of a confirmed frame, as the truth's devices expect it."""

    def __init__(self, made: RadioTraffic, *, token: str = "", spoilt: int = 0, cut_after: int = 0) -> None:
        """``spoilt``: flip this bit of every answer; ``cut_after``: close each connection after so many messages."""
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.discovered: list[str] = []
        self.token, self.spoilt, self.cut_after = token, spoilt, cut_after
        self.error: str | None = None
        self._keys = {d.dev_addr: (d.dev_eui, d.nwk_skey) for d in made.world.devices}
        frames = [frame for frame in made.frames if isinstance(frame, DataUp)]
        self._confirmed = {(frame.dev_addr, frame.fcnt) for frame in frames if frame.confirmed}
        self._down = 0
        self.url = ""

    @property
    def uplinks(self) -> list[dict[str, Any]]:
        return [message for _, message in self.messages if message["msgtype"] in ("updf", "jreq")]

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Peer"]:
        async with serve(self._talk, "127.0.0.1", 0, process_request=self._let_in) as server:
            self._server: Server = server
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    def _let_in(self, connection: ServerConnection, request: Any) -> Any:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "no token\n")
        return None

    async def _talk(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        if socket.request.path == "/router-info":
            router = json.loads(await socket.recv())["router"]
            self.discovered.append(router)
            place = {"error": self.error} if self.error else {"muxs": "::0", "uri": f"{self.url}/router/{router}"}
            await socket.send(json.dumps({"router": router, **place}))
            return
        eui = socket.request.path.removeprefix("/router/").replace("-", "").lower()
        count = 0
        async for text in socket:
            message = json.loads(text)
            self.messages.append((eui, message))
            await self._answer(socket, message)
            count += 1
            if self.cut_after and count > self.cut_after:
                socket.transport.abort()
                return

    async def _answer(self, socket: ServerConnection, message: dict[str, Any]) -> None:
        if message["msgtype"] == "version":
            await socket.send(json.dumps({"msgtype": "router_config", "region": "EU863"}))
        elif message["msgtype"] == "timesync":
            await socket.send(json.dumps({"msgtype": "timesync", "txtime": message["txtime"], "gpstime": 1}))
        elif message["msgtype"] == "updf":
            frame = message["DevAddr"] % (1 << 32), message["FCnt"]
            if frame in self._confirmed:
                self._confirmed.remove(frame)
                await self._acknowledge(socket, message, frame[0])

    async def _acknowledge(self, socket: ServerConnection, message: dict[str, Any], dev_addr: int) -> None:
        dev_eui, nwk_skey = self._keys[dev_addr]
        self._down += 1
        pdu = bytearray(ack_down(nwk_skey=nwk_skey, dev_addr=dev_addr, fcnt=self._down))
        pdu[-1] ^= self.spoilt
        down = {"msgtype": "dnmsg", "DevEui": f"{dev_eui:016x}", "dC": 0, "diid": self._down, "pdu": pdu.hex()}
        down |= {"RxDelay": 1, "RX1DR": 5, "RX1Freq": 868_100_000, "RX2DR": 0, "RX2Freq": 869_525_000, "priority": 1}
        await socket.send(json.dumps(down | {"xtime": message["upinfo"]["xtime"], "rctx": 0}))


async def settled(peer: Peer, count: int) -> None:
    """Wait until so many uplinks have come; the test's own timeout is the limit."""
    while len(peer.uplinks) < count:
        await asyncio.sleep(0.01)
