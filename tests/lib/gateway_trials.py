"""Two gateway servers under load: what is done to them, and what must be true then. Also for ``./run soak lorawan``."""

import asyncio
import random
from math import ceil
from pathlib import Path

from onefold.testing.radio import RadioPlan, heard, make, registry, truth_lines
from onefold.testing.stations import Fleet
from tests.lib.fleet import DEVICE_S, STATIONS, Found, Gateway, Play, Scene, patient, ring, run, straight, traffic
from tests.lib.radio_score import RadioScore, score, verdicts

RATE = 2_000.0
"""Messages a second, both servers together: what two servers, six stations and Redis do on two cores, with room."""


def truth(root: Path, frames: int, *, seed: int = 1, rate: float = RATE) -> tuple[str, RadioScore]:
    """All kinds of traffic through one server; its verdicts against the truth."""
    made = make(RadioPlan(frames=frames, devices=max(1, min(frames, ceil(rate * DEVICE_S))), seed=seed))
    devices = root / "devices.toml"
    devices.write_text("".join(registry(made)))

    async def play() -> None:
        async with Fleet(dict.fromkeys(made.world.gateways, gateway.up().url), ring(made)) as fleet:
            await fleet.play(heard(made), rate=rate)
            await fleet.quiet(0.5)
            assert await asyncio.to_thread(gateway.stop) == 0
            assert not fleet.counts.problems, fleet.counts.problems[:3]

    with Gateway(root / "a", "a", devices, "--keep-all") as gateway:
        asyncio.run(play())
    lines = list(truth_lines(made))
    result = score(lines, verdicts(lines, gateway.records("receptions")))
    assert result.perfect, result
    return f"{result.receptions:,} receptions of {result.uplinks:,} frames: every verdict is right", result


def whole(root: Path, frames: int, *, rate: float = RATE) -> str:
    """The three strategies at once, each with devices of its own; what came of it, or an AssertionError."""
    found = run(root, traffic(frames, rate), rate=rate)
    check(found)
    copies = 2 * STATIONS
    for strategy, upstream, marked in (
        ("drop", frames, 0),
        ("mark", copies * frames, (copies - 1) * frames),
        ("none", copies * frames, 0),
    ):
        of = found.by_strategy[strategy]
        assert (of.frames, of.upstream, of.marked) == (frames, upstream, marked), f"{strategy}: {of}"
        assert (of.acks, of.acknowledged) == (frames, frames), f"{strategy}: {of}"
    assert found.unsent == 0, found
    told = ", ".join(f"{name} {of.upstream:,} ({of.marked:,} marked)" for name, of in found.by_strategy.items())
    return (
        f"{frames:,} frames under each strategy, {found.sent:,} receptions; upstream: {told};"
        f" acknowledged once each, {_by_server(found)}"
    )


def kills(
    root: Path, frames: int, count: int, *, seed: int = 1, rate: float = RATE, play: Play = straight
) -> tuple[str, Found]:
    """Kill one server or the other, so often; what came of it, or an AssertionError."""
    rng = random.Random(seed)

    async def trouble(scene: Scene) -> None:
        for n in range(count):
            await scene.reached((n + rng.uniform(0.3, 0.9)) / count)
            await scene.kill(scene.gateways[n % 2])

    found = run(root, traffic(frames, rate, "drop", seed), "--keep-all", trouble=trouble, rate=rate, play=play)
    check(found)
    assert found.claimed == 0, f"{found.claimed} frames were claimed and are not upstream"
    of = found.by_strategy["drop"]
    return (
        f"{count} kills, {frames:,} frames: {of.upstream:,} upstream, none twice; {of.acknowledged:,} acknowledged,"
        f" none by two servers ({_by_server(found)}); {of.lost:,} lost, {found.claimed:,} of them between claim and"
        f" log; {found.unsent:,} receptions had no connection"
    ), found


def retries(root: Path, frames: int, count: int, *, seed: int = 1, rate: float = RATE) -> tuple[str, Found]:
    """The same with devices that send again; nothing may be lost."""
    told, found = kills(root, frames, count, seed=seed, rate=rate, play=patient)
    of = found.by_strategy["drop"]
    assert (of.lost, of.acknowledged) == (0, frames), told
    unsure = found.verdicts["UNSURE forgotten"]
    return f"{told}; {unsure:,} upstream as unsure: their first copy was claimed before a kill", found


def redis(root: Path, frames: int, count: int, *, seed: int = 1, rate: float = RATE) -> tuple[str, Found]:
    """Kill Redis so often; nothing may be missing."""

    async def trouble(scene: Scene) -> None:
        for n in range(count):
            await scene.reached((n + 0.5) / count)
            await scene.restart_redis()

    made = traffic(frames, rate, "drop", seed)
    found = run(root, made, "--when-down", "park", "--keep-all", trouble=trouble, rate=rate)
    check(found)
    of = found.by_strategy["drop"]
    assert (of.upstream, of.lost) == (frames, 0), f"{found}"
    assert found.received == found.sent == len(made), f"the books do not balance: {found}"
    return (
        f"Redis restarted {count} times, {frames:,} frames: {of.upstream:,} upstream, none twice, none lost;"
        f" {of.acknowledged:,} acknowledged in time ({_by_server(found)}); {found.received:,} receptions, all answered"
    ), found


def check(found: Found) -> None:
    """What holds whatever happens."""
    assert not found.problems, found.problems[:3]
    assert found.by_two == 0, f"{found.by_two} frames were acknowledged by two servers"
    assert found.acknowledged_only == 0, f"{found.acknowledged_only} frames were acknowledged and are not upstream"
    if "drop" in found.by_strategy:
        drop = found.by_strategy["drop"]
        assert drop.upstream == drop.unique, f"{drop.upstream - drop.unique} frames are upstream twice"


def _by_server(found: Found) -> str:
    return ", ".join(f"{count:,} by {name}" for name, count in sorted(found.servers.items()))
