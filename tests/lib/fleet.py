"""Two gateway servers as processes, one Redis, three stations each; killed and started again on the way, then counted.

Shared by the suite (`tests/proof/test_gateway_fleet.py`), by ``./run soak lorawan`` and by ``./run bench lorawan``.
Every station hears every frame, every frame is confirmed. So of n frames under one strategy there are 6 n receptions:

    drop    n upstream                      n acknowledgements, whoever gives them
    mark    6 n upstream, 5 n marked        n
    none    6 n upstream, none marked       n
"""

import asyncio
import json
import signal
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from onefold.lorawan.registry import registry_of
from onefold.producers.log.reader import LogReader
from onefold.producers.records import Kind
from onefold.testing.radio import QUIET, RETRIES_MAX, HeardFrame, RadioTraffic, heard, make, registry
from onefold.testing.stations import Ack, Counts, Fleet, Ring, doubled
from tests.lib.local_server import free_port
from tests.lib.redis_server import RedisServer

STATIONS = 3
"""Of each server."""
DEVICE_S = 1.0
"""Between two uplinks of a device, on average. Faster than any real one, and still slower than a server falls behind:
one that is two frames of a device behind another refuses its own copies as old instead of marking them."""
RETRY_S = 3.0
"""A device waits so long for its acknowledgement before it sends again."""
START_S = 60


class Gateway:
    """``onefold serve gateway`` as a process, on one port for all its lives."""

    def __init__(self, folder: Path, name: str, devices: Path, *flags: str) -> None:
        self.folder, self.name, self.port = folder, name, free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        words = ["serve", "gateway", str(folder), "--devices", str(devices), "--name", name, "--port", str(self.port)]
        self._command = [sys.executable, "-m", "onefold.cli.main", *words, *flags]
        self._log = folder.parent / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> "Gateway":
        """Start it, and do not wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def start(self) -> "Gateway":
        """It answers when this returns."""
        return self.launch().up()

    def up(self) -> "Gateway":
        """Wait until it answers."""
        assert self._process is not None
        until = monotonic() + START_S
        while monotonic() < until:
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with {self._process.returncode}: {self._log.read_text()}")
            try:
                self.get("/healthz")
            except OSError:
                sleep(0.02)  # there is nothing that could be waited for but the port
            else:
                return self
        raise AssertionError(f"the server does not come up: {self._log.read_text()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def get(self, path: str) -> str:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait()
        self._process = None
        return code

    def records(self, topic: str = "uplinks") -> list[dict[str, Any]]:
        """What went upstream."""
        if not (self.folder / topic).exists():
            return []
        log = LogReader(self.folder / topic)
        return [json.loads(r.payload) for r in log.read(log.start, log.end) if r.kind == Kind.MESSAGE]

    def __enter__(self) -> "Gateway":
        return self.launch()

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class Outcome:
    """What became of the frames of one strategy."""

    frames: int = 0
    upstream: int = 0
    unique: int = 0
    """Frames that are upstream once or more."""
    marked: int = 0
    acks: int = 0
    """Acknowledgements, all together."""
    acknowledged: int = 0
    """Frames that have one or more."""

    @property
    def lost(self) -> int:
        """Frames that nobody has upstream."""
        return self.frames - self.unique


@dataclass
class Found:
    """What became of everything."""

    by_strategy: dict[str, Outcome] = field(default_factory=dict)
    sent: int = 0
    unsent: int = 0
    """Messages that a station had no connection for."""
    by_two: int = 0
    """Frames that two servers acknowledged."""
    claimed: int = 0
    """Frames that nobody has upstream, though one server was told that another has them (`keep_all`)."""
    acknowledged_only: int = 0
    """Frames that were acknowledged and are not upstream."""
    servers: Counter[str] = field(default_factory=Counter)
    """Acknowledgements by server."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Of the receptions that went upstream."""
    problems: list[str] = field(default_factory=list)
    received: int = 0
    """Receptions that the servers have an answer for, where they keep all (`keep_all`)."""


Trouble = Callable[["Scene"], Coroutine[Any, Any, None]]
"""What goes wrong meanwhile."""
Play = Callable[["Scene", float | None], Coroutine[Any, Any, None]]
"""How the stations send what they heard, at most so many receptions a second."""


@dataclass
class Scene:
    """Everything that is running."""

    made: RadioTraffic
    redis: RedisServer
    gateways: list[Gateway]
    fleet: Fleet

    async def reached(self, share: float) -> None:
        """Wait until this share of the messages has been sent."""
        wanted = share * len(self.made)
        while self.fleet.counts.sent + self.fleet.counts.unsent < wanted:
            await asyncio.sleep(0.002)

    async def kill(self, gateway: Gateway) -> None:
        """Kill a server, start it again, and wait until its stations are back: else the next one leaves none at all."""
        gateway.kill()
        await asyncio.to_thread(gateway.start)
        mine = [station for station in self.fleet.stations.values() if station.at == gateway.url]
        while any(station._socket is None for station in mine):
            await asyncio.sleep(0.01)

    async def restart_redis(self, down_s: float = 0.2) -> None:
        """Kill Redis, leave it down for a moment, start it again."""
        self.redis.kill()
        await asyncio.sleep(down_s)
        await asyncio.to_thread(self.redis.start)


async def straight(scene: Scene, rate: float | None) -> None:
    """One frame after the other, whatever becomes of them."""
    await scene.fleet.play(heard(scene.made), rate=rate)


async def patient(scene: Scene, rate: float | None) -> None:
    """As devices do it: what is not acknowledged is sent again, three times at most, and only then the next one."""
    names = frame_names(scene.made)
    starts = dict(sorted(names, reverse=True))
    rounds: defaultdict[int, list[tuple[tuple[str, int], HeardFrame]]] = defaultdict(list)
    for number, line in zip(scene.made.truth.frame.tolist(), heard(scene.made), strict=True):
        device, counter = names[number]
        rounds[counter - starts[device]].append((names[number], line))
    counts = scene.fleet.counts
    for n in sorted(rounds):
        waiting = rounds[n]
        for _ in range(1 + RETRIES_MAX):
            await scene.fleet.play((line for _, line in waiting), rate=rate)
            await until(scene.fleet, _all_of({name for name, _ in waiting}), RETRY_S)
            waiting = [one for one in waiting if one[0] not in _acknowledged(counts.acks)]
            if not waiting:
                break


def ring(made: RadioTraffic) -> Ring:
    """The keys of its devices."""
    return Ring(registry_of(tomllib.loads("".join(registry(made)))["device"], "the traffic"))


async def until(fleet: Fleet, done: Callable[[Counts], bool], seconds: float) -> None:
    """Wait until something is so of what the stations count, as long as this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not done(fleet.counts):
                await asyncio.sleep(0.01)


def _all_of(wanted: set[tuple[str, int]]) -> Callable[[Counts], bool]:
    return lambda counts: wanted <= _acknowledged(counts.acks)


def frame_names(made: RadioTraffic) -> list[tuple[str, int]]:
    """DevEUI and 16-bit counter of every frame, by its number."""
    names = [f"{device.dev_eui:016x}" for device in made.world.devices]
    pairs = zip(made.air.device.tolist(), made.air.counter.tolist(), strict=True)
    return [(names[device], counter & 0xFFFF) for device, counter in pairs]


def traffic(frames: int, rate: float, strategy: Any = "mixed", seed: int = 1) -> RadioTraffic:
    """``frames`` of each strategy, of so many devices that none has to hurry at this rate."""
    total = 3 * frames if strategy == "mixed" else frames
    devices = min(total, 3 * ceil(rate * DEVICE_S / (2 * STATIONS) / 3))
    plan = replace(QUIET, seed=seed, frames=total, devices=devices, gateways=2 * STATIONS)
    return make(replace(plan, confirmed=1.0, strategy=strategy))


def run(
    root: Path, made: RadioTraffic, *flags: str, trouble: Trouble | None = None, rate: float | None = None,
    play: Play = straight,
) -> Found:  # fmt: skip
    """Play this traffic to two servers, three stations each; what became of it."""
    devices = root / "devices.toml"
    devices.write_text("".join(registry(made)))
    with ExitStack() as open_things:
        redis = open_things.enter_context(RedisServer(root / "redis"))
        words = ("--coordinator", redis.url, *flags)
        gateways = [Gateway(root / name, name, devices, *words) for name in ("a", "b")]
        for gateway in gateways:
            open_things.enter_context(gateway)
        for gateway in gateways:
            gateway.up()
        return asyncio.run(_run(made, redis, gateways, trouble, lambda scene: play(scene, rate)))


async def _run(
    made: RadioTraffic, redis: RedisServer, gateways: list[Gateway], trouble: Trouble | None, play: Trouble
) -> Found:
    places = {eui: gateways[i // STATIONS].url for i, eui in enumerate(made.world.gateways)}
    async with Fleet(places, ring(made)) as fleet:
        scene = Scene(made, redis, gateways, fleet)
        task = asyncio.create_task(trouble(scene)) if trouble is not None else None
        await play(scene)
        if task is not None:
            await task
        await fleet.quiet(0.5)
        codes = await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in gateways))
        assert codes == [0, 0], f"the servers ended with {codes}"
        await fleet.quiet(0.1)
    return count(made, {gateway.url: gateway for gateway in gateways}, fleet)


def count(made: RadioTraffic, gateways: Mapping[str, Gateway], fleet: Fleet) -> Found:
    """Count what is upstream and what was acknowledged; the servers have ended."""
    strategies = {f"{d.dev_eui:016x}": d.strategy for d in made.world.devices if not d.stranger}
    records = [record for gateway in gateways.values() for record in gateway.records()]
    counts = fleet.counts
    found = Found(sent=counts.sent, unsent=counts.unsent, problems=list(counts.problems))
    for strategy in sorted(set(strategies.values())):
        mine = [record for record in records if strategies[record["dev_eui"]] == strategy]
        acks = [ack for ack in counts.acks if strategies[ack.device] == strategy]
        found.by_strategy[strategy] = Outcome(
            frames=sum(device.sent for device in made.truth.devices
                       if strategies[f"{device.dev_eui:016x}"] == strategy),
            upstream=len(mine),
            unique=len(_frames(mine)),
            marked=sum(record.get("dup_msg", False) for record in mine),
            acks=len(acks),
            acknowledged=len(_acknowledged(acks)),
        )  # fmt: skip
    found.by_two = len(doubled(counts.acks))
    everything = [record for gateway in gateways.values() for record in gateway.records("receptions")]
    lost = set(frame_names(made)) - _frames(records)
    found.claimed = len(lost & _frames([r for r in everything if r["reason"] in ("other_server", "late")]))
    found.acknowledged_only = len(_acknowledged(counts.acks) - _frames(records))
    found.servers = Counter(gateways[ack.server].name for ack in counts.acks)
    found.verdicts = Counter(f"{record['verdict']} {record['reason']}" for record in records)
    found.received = len(everything)
    return found


def _frames(records: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(record["dev_eui"], record["fcnt"] & 0xFFFF) for record in records}


def _acknowledged(acks: list[Ack]) -> set[tuple[str, int]]:
    return {(ack.device, ack.uplink) for ack in acks}
