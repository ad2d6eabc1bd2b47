"""A real gateway server for tests, in a thread or in a process, and stations that speak to it."""

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from onefold.clock import wall_ms
from onefold.errors import StoreFailed
from onefold.lorawan.flow import GatewayLimits, GatewayService, GatewaySettings, ticks_ms
from onefold.lorawan.frames import DataUp, JoinRequest, parse_down
from onefold.lorawan.mic import signed_up
from onefold.lorawan.ports import CounterStore
from onefold.lorawan.radio import Downlink, Radio, Reception
from onefold.lorawan.registry import registry_of
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished
from onefold.lorawan.server import GatewayServer, GatewayServerSettings
from onefold.lorawan.stores.sqlite import MemoryCounters
from onefold.producers.log.reader import LogReader
from onefold.producers.topic import Topics

KEY = "000102030405060708090a0b0c0d0e0f"


def device(number: int = 1, *, eui: Any = None, **more: Any) -> dict[str, Any]:
    """A device of a registry."""
    given = {"dev_eui": f"{eui or number:016x}", "dev_addr": f"{number:08x}", "nwk_skey": KEY, "strategy": "drop"}
    return {**given, **more}


def write_registry(path: Path, *devices: dict[str, Any]) -> Path:
    """A TOML file of these devices."""
    lines = []
    for each in devices:
        lines += ["[[device]]", *(f"{name} = {json.dumps(value)}" for name, value in each.items() if value is not None)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def uplink(fcnt: int, number: int = 1, *, confirmed: bool = False, payload: bytes = b"x", key: str = KEY) -> DataUp:
    """A frame that a device sends."""
    nwk_skey = bytes.fromhex(key)
    return signed_up(nwk_skey=nwk_skey, dev_addr=number, fcnt=fcnt, payload=payload, confirmed=confirmed)


def updf(frame: DataUp, *, xtime: int = 1, **more: Any) -> dict[str, Any]:
    """How a station tells of it; address and code signed, as real stations send them."""
    info = {"rctx": 0, "xtime": xtime, "gpstime": 0, "fts": -1, "rssi": -50, "snr": 9.5, "rxtime": 1_794_764_902.5}
    return {
        "msgtype": "updf", "MHdr": frame.mhdr, "DevAddr": signed(frame.dev_addr), "FCtrl": frame.fctrl,
        "FCnt": frame.fcnt, "FOpts": frame.fopts.hex(), "FPort": -1 if frame.fport is None else frame.fport,
        "FRMPayload": frame.payload.hex(), "MIC": signed(frame.mic), "DR": 5, "Freq": 868_100_000, "upinfo": info,
        **more,
    }  # fmt: skip


def jreq(frame: JoinRequest, *, xtime: int = 1) -> dict[str, Any]:
    """The same for a join request."""
    info = {"rctx": 0, "xtime": xtime, "gpstime": 0, "fts": -1, "rssi": -50, "snr": 9.5, "rxtime": 0}
    join, dev = (eui.to_bytes(8, "big").hex("-").upper() for eui in (frame.join_eui, frame.dev_eui))
    return {
        "msgtype": "jreq", "MHdr": 0, "JoinEui": join, "DevEui": dev, "DevNonce": frame.dev_nonce,
        "MIC": signed(frame.mic), "DR": 5, "Freq": 868_100_000, "upinfo": info,
    }  # fmt: skip


def signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number


class FaultyCounters(MemoryCounters):
    """A coordinator that can be down, or held up; ``lost``: it does what it is asked and its answer is lost."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.down = False
        self.lost = False
        self.asked = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        self._ask()
        made = super().claim(claims, finished)
        if self.lost:
            raise StoreFailed("the answer was lost")
        return made

    def known(self, devices: Sequence[str]) -> list[Counters | None]:
        self._ask()
        return super().known(devices)

    def unfinished(self, server: str) -> list[Unfinished]:
        self._ask()
        return super().unfinished(server)

    def close(self) -> None:
        """Others may have it still."""

    def _ask(self) -> None:
        self.asked.set()
        assert self.let_go.wait(60)
        if self.down:
            raise StoreFailed("nobody is there")


def kept(counters: MemoryCounters) -> int:
    """Of how many devices it has counters or nonces."""
    with counters._database.reading() as db:
        rows = db.execute("select device from lorawan_counters union all select distinct device from lorawan_nonces")
        return len(rows.fetchall())


class Running:
    """A server that answers."""

    def __init__(self, url: str, folder: Path, token: str | None = None, server: GatewayServer | None = None):
        self.url, self.folder, self.token, self.server = url, folder, token, server
        self.address = url.removeprefix("http://")

    def stop(self) -> None:
        """Ask a server in a thread to end."""
        assert self.server is not None
        self.server.stop()

    def ask(self, path: str) -> tuple[int, Any]:
        client = http.client.HTTPConnection(self.address, timeout=60)
        with contextlib.closing(client):
            client.request("GET", path, headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
            reply = client.getresponse()
            told = reply.read()
        return reply.status, json.loads(told) if reply.getheader("content-type") == "application/json" else told

    def figures(self) -> dict[str, float]:
        """All metrics, by name and labels."""
        lines = self.ask("/metrics")[1].decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def figure(self, name: str) -> float:
        return self.figures().get(f"onefold_gateway_{name}", 0)

    def wait_for(self, name: str, value: float) -> None:
        """Ask until a figure is reached; each ask is a round trip through the server's event loop."""
        self.wait(lambda: self.figure(name) == value, lambda: f"{name} is {self.figure(name)}, not {value}")

    def wait(self, reached: Callable[[], bool], told: Callable[[], str] = lambda: "never") -> None:
        for _ in range(3_000):
            if reached():
                return
        raise AssertionError(told())

    def answers(self) -> dict[str, int]:
        """How many receptions got which answer."""
        found: dict[str, int] = {}
        for name, value in self.figures().items():
            if name.startswith("onefold_gateway_receptions_total"):
                labels = dict(part.split("=") for part in name[name.index("{") + 1 : -1].split(","))
                found[labels["reason"].strip('"')] = found.get(labels["reason"].strip('"'), 0) + int(value)
        return found

    def settled(self, count: int) -> dict[str, int]:
        """Wait until so many receptions are decided and done; their answers."""
        self.wait(lambda: sum(self.answers().values()) >= count and self.figure("in_hand") == 0,
                  lambda: f"{self.answers()} {self.figure('in_hand')} in hand")  # fmt: skip
        return self.answers()

    @contextlib.contextmanager
    def station(self, eui: int = 1, **options: Any) -> Iterator["Station"]:
        headers = options.pop("headers", {"Authorization": f"Bearer {self.token}"} if self.token else None)
        url = f"ws://{self.address}/router/{eui:016x}"
        with connect(url, additional_headers=headers, compression=None, close_timeout=2, **options) as websocket:
            yield Station(websocket)


class Station:
    """One station's websocket."""

    def __init__(self, websocket: ClientConnection):
        self.websocket = websocket
        self.sent = 0

    def send(self, message: Any) -> None:
        self.websocket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def hear(self, frame: DataUp | JoinRequest, **more: Any) -> None:
        self.sent += 1
        told = updf(frame, xtime=self.sent, **more) if isinstance(frame, DataUp) else jreq(frame, xtime=self.sent)
        self.send(told)

    def message(self, timeout: float = 60) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.websocket.recv(timeout=timeout))
        return found

    def version(self, features: str = "") -> dict[str, Any]:
        """Say who we are; what the server says then."""
        self.send({"msgtype": "version", "station": "2.0.6", "protocol": 2, "features": features})
        return self.message()

    def end(self) -> tuple[int, str]:
        """Wait for the server to close; its code and reason."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.websocket.recv(timeout=60)
        return self.websocket.close_code or 0, self.websocket.close_reason or ""

    def sync(self) -> list[dict[str, Any]]:
        """All that the server has sent by now: until it answers what we ask now."""
        self.send({"msgtype": "timesync", "txtime": 77})
        found = []
        while (message := self.message()).get("txtime") != 77:
            found.append(message)
        return found


@contextlib.contextmanager
def running(
    folder: Path, *devices: dict[str, Any], counters: Any = None, limits: GatewayLimits | None = None,
    server: dict[str, Any] | None = None, **settings: Any,
) -> Iterator[Running]:  # fmt: skip
    """A server in a thread; ``server``: of `GatewayServerSettings`, the rest of `GatewaySettings`."""
    folder.mkdir(exist_ok=True)
    registry = folder / "devices.toml"
    if devices or not registry.exists():
        write_registry(registry, *(devices or [device()]))
    gateway = GatewaySettings(limits=limits or GatewayLimits(grace_s=30), **settings)
    topics = Topics(folder)
    made = GatewayServer(
        folder, registry, topics.topic, GatewayServerSettings(port=0, gateway=gateway, **(server or {})),
        counters=counters,
    )  # fmt: skip
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        assert made.ready.wait(60)
        yield Running(made.url, folder, (server or {}).get("token"), made)
    finally:
        made.stop()
        thread.join(60)
        assert not thread.is_alive()
        topics.close()
    assert made.service is not None
    made.service.tally.check()


class Way:
    """The way back to a station: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Downlink] = []

    def __call__(self, downlink: Downlink) -> bool:
        self.sent.append(downlink)
        return True

    def counters(self) -> list[int]:
        """The counters of what was sent down."""
        return [parse_down(each.pdu).fcnt for each in self.sent]


def reception(
    frame: DataUp | JoinRequest, station: int = 1, *, back: Way | None = None, received_ms: int | None = None
) -> Reception:
    """What a link hands to a service."""
    at = wall_ms() if received_ms is None else received_ms
    return Reception(frame, f"{station:016x}", Radio(868_100_000, 5, -50.0, 9.0), back, at)


class Direct(GatewayService):
    """A service without links: the test hands receptions in, and counts them as a link does."""

    def hear(self, reception: Reception) -> None:
        self.arrive()
        super().hear(reception)


@contextlib.asynccontextmanager
async def service(
    folder: Path, *devices: dict[str, Any], shared: CounterStore | None = None, local: CounterStore | None = None,
    kill: bool = False, ticks: Callable[[], int] = ticks_ms, **settings: Any,
) -> AsyncIterator[GatewayService]:  # fmt: skip
    """A service on this event loop, without links; at the end all is decided, or with ``kill`` it ends as it is."""
    topics = Topics(folder)
    made = Direct(
        GatewaySettings(**settings), registry_of(devices or [device()], "devices"), topics.topic, shared=shared,
        local=MemoryCounters(wall_ms) if local is None else local, ticks=ticks,
    )  # fmt: skip
    try:
        yield made
        if not kill:
            async with asyncio.timeout(60):
                await made.idle()
            made.tally.check()
            assert (made.in_hand, made.figures()["in_flight"]) == (0, 0)
    finally:
        if kill:
            for desk in made._desks:
                desk._finished.clear()
        await made.close()
        topics.close()


def answered(made: GatewayService) -> dict[str, int]:
    """How many receptions got which answer."""
    found: dict[str, int] = {}
    for (answer, _), count in made.statuses.items():
        found[answer.reason] = found.get(answer.reason, 0) + count
    return found


class Process:
    """A server in a process of its own."""

    alive: ClassVar[list[subprocess.Popen]] = []

    def __init__(self, folder: Path, devices: Path, *words: str, **variables: str):
        command = [sys.executable, "-m", "onefold.cli.main", "serve", "gateway", str(folder)]
        command += ["--devices", str(devices), "--port", "0", "--json", *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        self.alive.append(self.process)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()
        self.started = json.loads(line)
        self.server = Running(self.started["url"], folder)

    def end(self) -> tuple[int, str]:
        """Wait for it; its exit code and what it said to people."""
        _, said = self.process.communicate(timeout=60)
        self.alive.remove(self.process)
        return self.process.returncode, said


def stored(folder: Path, topic: str = "uplinks") -> list[dict[str, Any]]:
    """The records in a topic's log."""
    reader = LogReader(folder / topic)
    return [json.loads(record.payload) for record in reader.read(reader.start, reader.end) if record.kind == 0]
