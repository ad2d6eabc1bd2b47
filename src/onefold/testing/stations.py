"""Simulated stations that speak the LoRa Basics Station LNS protocol to a server, many on one event loop.

    /router-info    {"router": id} ->   <- {"router": id, "muxs": id, "uri": "ws://..."}    discovery
    uri             version ->          <- router_config                                    configuration
                    updf, jreq ->                                                           uplinks
                    dntxed ->           <- dnmsg                                            downlinks, confirmed
                    timesync ->         <- timesync                                         time

A station that loses its server connects again, from the discovery on; what it hears meanwhile is lost and counted, as
with real stations. Every ``dnmsg`` is parsed, its integrity code checked, and kept as an `Ack`. Devices may share an
address, so the code identifies the device; the clock value that the server repeats identifies the uplink.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final, NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from onefold.errors import BadInput, Misuse, OnefoldError
from onefold.lorawan.frames import parse_down
from onefold.lorawan.mic import find_owner
from onefold.lorawan.radio import dashed, document
from onefold.lorawan.registry import Registry, read_registry
from onefold.testing.radio import HeardFrame


class Ack(NamedTuple):
    """One acknowledgement, transmitted by one station for one server."""

    device: str
    uplink: int
    """The 16-bit counter of the uplink that it answers."""
    mic: int
    """The integrity code of that uplink: a restarted device reuses counters, but not with the same code."""
    counter: int
    station: str
    server: str
    waited_s: float
    """Since the uplink was handed to the server."""


class Ring:
    """The keys of all devices, and the last down counter of each."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._last: dict[int, int] = {}

    @classmethod
    def read(cls, file: Path) -> Ring:
        try:
            return cls(read_registry(file))
        except FileNotFoundError as error:
            raise Misuse(f"{file}: is not there: 'onefold lorawan simulate' makes such a folder") from error

    def answer(self, pdu: bytes) -> tuple[str, int, bool]:
        """Device, 32-bit counter and ACK bit of a down frame; `BadInput` if no device has a key that fits."""
        down = parse_down(pdu)
        entries = self._registry.by_address.get(down.dev_addr, [])
        keys = ((entry.nwk_skey or b"", self._last.get(entry.device.dev_eui)) for entry in entries)
        owner, counter, _ = find_owner(keys, down)
        if counter is None:
            raise BadInput(f"the integrity code of a down frame to {down.dev_addr:08x} is wrong: {pdu.hex()}")
        dev_eui = entries[owner].device.dev_eui
        self._last[dev_eui] = max(counter, self._last.get(dev_eui, 0))
        return f"{dev_eui:016x}", counter, down.ack


def doubled(acks: Iterable[Ack]) -> Mapping[tuple[str, int, int], set[str]]:
    """The uplinks (device, counter, integrity code) that more than one server acknowledged; there must be none."""
    servers_by_uplink: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    for ack in acks:
        servers_by_uplink[ack.device, ack.uplink, ack.mic].add(ack.server)
    return {uplink: servers for uplink, servers in servers_by_uplink.items() if len(servers) > 1}


OPEN_S: Final = 10.0
AGAIN_S: Final = 0.05
"""Between two attempts to connect; real stations wait 10 s and more, which is too long for a test."""
MESSAGE_BYTES_MAX: Final = 1 << 20
UPLINKS_KEPT_MAX: Final = 100_000
"""Per station, to identify the uplink that a server answers."""
YIELD_EVERY: Final = 32
"""Messages sent before the readers run."""

LOG: Final = logging.getLogger("onefold.stations")
LOG.addHandler(logging.NullHandler())


@dataclass(slots=True)
class Counts:
    sent: int = 0
    unsent: int = 0
    """Heard while there was no connection: lost."""
    connects: int = 0
    received: int = 0
    transmitted: int = 0
    timesyncs: int = 0
    problems: list[str] = field(default_factory=list)
    """Invalid messages of a server; the first hundred."""
    acks: list[Ack] = field(default_factory=list)

    def problem(self, text: str) -> None:
        if len(self.problems) < 100:
            self.problems.append(text)


class Station:
    def __init__(self, eui: str, at: str, ring: Ring, counts: Counts, *, token: str | None = None) -> None:
        self.eui, self.at = eui, at.rstrip("/")
        self.config: dict[str, Any] | None = None
        """The router_config of the server; None before the first."""
        self._ring, self._counts = ring, counts
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._socket: ClientConnection | None = None
        self._sent: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and wait for the configuration; then run in the background."""
        self._task = asyncio.create_task(self._live(await self._connected()))

    async def send(self, heard: HeardFrame) -> bool:
        """Send a frame that was heard; False if there is no connection."""
        if self._socket is None:
            return False
        self._sent[heard.xtime] = heard.message, perf_counter()
        if len(self._sent) > UPLINKS_KEPT_MAX:
            self._sent.popitem(last=False)
        try:
            await self._socket.send(heard.message)
        except ConnectionClosed:
            return False
        return True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def _live(self, socket: ClientConnection) -> None:
        while True:
            with suppress(ConnectionClosed):
                async for text in socket:
                    await self._receive(socket, text)
            self._socket = None
            while self._socket is None:
                try:
                    socket = await self._connected()
                except (OSError, WebSocketException, OnefoldError, TimeoutError):
                    await asyncio.sleep(AGAIN_S)

    async def _connected(self) -> ClientConnection:
        url = f"{self.at}/router-info"
        async with await self._open(url) as socket:
            await socket.send(json.dumps({"router": dashed(int(self.eui, 16))}))
            reply = document(await asyncio.wait_for(socket.recv(), OPEN_S), f"{url}: the answer")
        if reply.get("error"):
            raise Misuse(f"{url}: {reply['error']}")
        if not isinstance(reply.get("uri"), str):
            raise BadInput(f"{url}: said {str(reply)[:200]}, must name a uri")
        uri = str(reply["uri"])
        socket = await self._open(uri)
        version = {"msgtype": "version", "station": "onefold", "firmware": None, "package": None, "model": "simulated"}
        try:
            await socket.send(json.dumps(version | {"protocol": 2, "features": ""}))
            config = document(await asyncio.wait_for(socket.recv(), OPEN_S), f"{uri}: the answer")
            if config.get("msgtype") != "router_config":
                raise BadInput(f"{uri}: said {str(config)[:200]}, must be a router_config")
            await socket.send(json.dumps({"msgtype": "timesync", "txtime": int(time() * 1e6)}))
        except BaseException:
            await socket.close()
            raise
        self.config = config
        self._socket = socket
        self._counts.connects += 1
        return socket

    async def _open(self, url: str) -> ClientConnection:
        try:
            # No pings: the closed socket shows that a server is gone.
            return await connect(
                url, additional_headers=self._headers, compression=None, proxy=None, open_timeout=OPEN_S,
                close_timeout=1, ping_interval=None, max_size=MESSAGE_BYTES_MAX, logger=LOG,
            )  # fmt: skip
        except InvalidStatus as error:
            status = error.response.status_code
            kind = Misuse if 400 <= status < 500 else ConnectionError
            raise kind(f"{url}: the server said {status} {error.response.reason_phrase}") from error
        except InvalidURI as error:
            raise Misuse(f"{url}: {error}") from error
        except (OSError, EOFError, TimeoutError) as error:
            raise ConnectionError(f"{url}: cannot connect: {error}") from error

    async def _receive(self, socket: ClientConnection, text: str | bytes) -> None:
        now = perf_counter()
        self._counts.received += 1
        try:
            message = document(text, "the message")
            if message.get("msgtype") == "dnmsg":
                uplink, began = self._sent[message["xtime"]]
                device, counter, is_ack = self._ring.answer(bytes.fromhex(message["pdu"]))
                self._counts.transmitted += 1
                if is_ack:
                    frame = json.loads(uplink)
                    ack = Ack(device, frame["FCnt"], frame["MIC"], counter, self.eui, self.at, now - began)
                    self._counts.acks.append(ack)
                done = {"msgtype": "dntxed", "diid": message["diid"], "DevEui": message["DevEui"]}
                done |= {"rctx": message.get("rctx", 0), "xtime": message["xtime"], "txtime": time(), "gpstime": 0}
                with suppress(ConnectionClosed):
                    await socket.send(json.dumps(done))
            elif message.get("msgtype") == "timesync":
                self._counts.timesyncs += "gpstime" in message
        except (BadInput, KeyError, TypeError, ValueError) as error:
            self._counts.problem(f"{self.eui}: {error!r} of {str(text)[:200]}")


class Fleet:
    """All stations of some traffic; an async context manager."""

    def __init__(self, places: Mapping[str, str], ring: Ring, *, token: str | None = None) -> None:
        """``places``: the server (``ws://host:port``) of each station (hex id)."""
        self.counts = Counts()
        self.stations = {eui: Station(eui, at, ring, self.counts, token=token) for eui, at in places.items()}

    async def __aenter__(self) -> Fleet:
        try:
            await asyncio.gather(*(station.start() for station in self.stations.values()))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def play(self, lines: Iterable[HeardFrame], *, rate: float | None = None) -> None:
        """Send the frames in order, each by its station; at most ``rate`` a second."""
        began = perf_counter()
        for n, heard in enumerate(lines):
            if rate is not None and (ahead := began + n / rate - perf_counter()) > 0.001:
                await asyncio.sleep(ahead)
            elif n % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if await self.stations[heard.station].send(heard):
                self.counts.sent += 1
            else:
                self.counts.unsent += 1

    async def quiet(self, seconds: float) -> None:
        """Wait until the servers have sent nothing for so long."""
        received = -1
        while received != self.counts.received:
            received = self.counts.received
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        await asyncio.gather(*(station.close() for station in self.stations.values()))
