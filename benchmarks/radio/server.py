"""Frames per second through one gateway server on one core, and how long a decision takes at half that load.

The server is a process pinned to one core, with its log and its counters on disk and every integrity code checked; the
stations are this process, on the other cores. Two loads, as fast as the server reads:

    1 station     every reception is a new frame: claimed, synced to the log
    3 stations    every frame is heard three times, under Drop: two of three receptions are duplicates

Then confirmed frames at half the rate that was reached: the server's own histogram says how long it took from a
reception to its answer, the stations say how long until the acknowledgement was there, which is sent after the sync.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from onefold.testing.radio import QUIET, RadioTraffic, heard, make, registry
from onefold.testing.stations import Fleet
from tests.lib.fleet import Gateway, ring, until

CORES = sorted(os.sched_getaffinity(0))
DEVICES = 1_000
ASKED_FOR = 2_000
"""Frames a second that a server has to do: how long a decision takes is shown at half of this, too."""
POLL_S = 0.02


@dataclass(frozen=True)
class Flood:
    """What a server did with all that it got."""

    stations: int
    receptions: int
    receptions_s: float
    frames_s: float
    """Different ones."""


@dataclass(frozen=True)
class Wait:
    """How long things took at some load."""

    receptions_s: float
    decision_p50_ms: float
    """From the server's histogram: at most so long."""
    decision_p99_ms: float
    ack_p50_ms: float
    ack_p99_ms: float
    acks: int
    frames: int


@contextmanager
def pinned() -> Iterator[None]:
    """What is started inside runs on the first core, this process on the others from then on."""
    try:
        os.sched_setaffinity(0, CORES[:1])
        yield
    finally:
        os.sched_setaffinity(0, CORES[1:] or CORES)


def traffic(receptions: int, stations: int, confirmed: float) -> RadioTraffic:
    frames = receptions // stations
    plan = replace(QUIET, frames=frames, devices=min(DEVICES, frames), gateways=stations, strategy="drop")
    return make(replace(plan, confirmed=confirmed))


@contextmanager
def server(root: Path, made: RadioTraffic) -> Iterator[Gateway]:
    devices = root / "devices.toml"
    devices.write_text("".join(registry(made)))
    gateway = Gateway(root / "a", "a", devices)
    with pinned():
        gateway.launch()
    with gateway_running(gateway):
        yield gateway


@contextmanager
def gateway_running(gateway: Gateway) -> Iterator[None]:
    try:
        gateway.up()
        yield
        assert gateway.stop() == 0
    finally:
        gateway.kill()


def flood(receptions: int, stations: int) -> Flood:
    """As fast as the server reads."""
    made = traffic(receptions, stations, confirmed=0.0)
    lines = list(heard(made))

    async def play(gateway: Gateway) -> float:
        async with Fleet(dict.fromkeys(made.world.gateways, gateway.url), ring(made)) as fleet:
            began = perf_counter()
            await fleet.play(lines)
            while (await asyncio.to_thread(figures, gateway))["receptions"] < len(lines):
                await asyncio.sleep(POLL_S)
            return perf_counter() - began

    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as root:
        with server(Path(root), made) as gateway:
            spent = asyncio.run(play(gateway))
        stored = len(gateway.records())
        assert stored == made.plan.frames, f"{stored} of {made.plan.frames} frames are upstream"
    return Flood(stations, len(lines), len(lines) / spent, made.plan.frames / spent)


def wait(receptions: int, stations: int, rate: float) -> Wait:
    """Confirmed frames at this rate."""
    made = traffic(receptions, stations, confirmed=1.0)
    lines = list(heard(made))

    async def play(gateway: Gateway) -> tuple[Fleet, dict[str, float]]:
        async with Fleet(dict.fromkeys(made.world.gateways, gateway.url), ring(made)) as fleet:
            await fleet.play(lines, rate=rate)
            await until(fleet, lambda counts: len(counts.acks) >= made.plan.frames, 10)
            return fleet, await asyncio.to_thread(figures, gateway)

    with (
        tempfile.TemporaryDirectory(prefix="onefold-bench-") as root,
        server(Path(root), made) as gateway,
    ):
        fleet, found = asyncio.run(play(gateway))
    assert not fleet.counts.problems, fleet.counts.problems
    waits = sorted(1_000 * ack.waited_s for ack in fleet.counts.acks)
    return Wait(
        receptions_s=rate,
        decision_p50_ms=found["p50"],
        decision_p99_ms=found["p99"],
        ack_p50_ms=waits[len(waits) // 2],
        ack_p99_ms=waits[len(waits) * 99 // 100],
        acks=len(waits),
        frames=made.plan.frames,
    )


def figures(gateway: Gateway) -> dict[str, float]:
    """How many receptions have an answer; and upper bounds in ms of how long that took, at the median and at 99 %."""
    text = gateway.get("/metrics")
    counts = [float(n) for n in re.findall(r"^onefold_gateway_receptions_total\{[^}]*\} (\S+)$", text, re.MULTILINE)]
    found = {"receptions": sum(counts)}
    pattern = r'^onefold_gateway_decision_seconds_bucket\{le="([^"]+)"\} (\S+)$'
    buckets = [(float(bound), float(n)) for bound, n in re.findall(pattern, text, re.MULTILINE)]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        found[name] = next((1_000 * bound for bound, n in buckets if n >= share * buckets[-1][1]), float("nan"))
    return found


def measure(receptions: int = 60_000, rounds: int = 3) -> dict[str, Any]:
    """The best of some rounds of both loads, then the waits at half of what is asked for and of what was reached."""
    floods = [max((flood(receptions, n) for _ in range(rounds)), key=lambda one: one.receptions_s) for n in (1, 3)]
    rates = (ASKED_FOR / 2, floods[0].frames_s / 2)
    waits = [wait(min(receptions, int(10 * rate)), 1, rate) for rate in rates]
    return {"floods": [asdict(one) for one in floods], "waits": [asdict(one) for one in waits]}


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = ["| load | receptions/s | frames/s |", "|---|---|---|"]
    for one in found["floods"]:
        name = "1 station, every frame new" if one["stations"] == 1 else f"{one['stations']} stations, Drop"
        lines.append(f"| {name} | {one['receptions_s']:,.0f} | {one['frames_s']:,.0f} |")
    for one in found["waits"]:
        lines.append(
            f"\nAt {one['receptions_s']:,.0f} confirmed frames/s: "
            f"decided in at most {one['decision_p50_ms']:g} ms (p50), {one['decision_p99_ms']:g} ms (p99); "
            f"acknowledged, after the sync, in {one['ack_p50_ms']:.1f} ms (p50), {one['ack_p99_ms']:.1f} ms (p99); "
            f"{one['acks']:,} of {one['frames']:,} acknowledged."
        )
    return "\n".join(lines)
