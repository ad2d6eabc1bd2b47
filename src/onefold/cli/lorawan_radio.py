"""``onefold lorawan simulate`` and ``play``: radio traffic of which the truth is known, and stations that send it."""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from onefold.cli.output import AsJson, emit_json, people
from onefold.errors import Misuse
from onefold.sim.radio.plan import RadioPlan

if TYPE_CHECKING:
    from onefold.sim.radio.traffic import RadioTraffic
    from onefold.sim.stations import Counts

Share: TypeAlias = float
USUAL = RadioPlan()


def simulate(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist or is empty.")],
    devices: Annotated[int, typer.Option(help="How many devices send.")] = USUAL.devices,
    gateways: Annotated[int, typer.Option(help="How many gateways listen.")] = USUAL.gateways,
    frames: Annotated[int, typer.Option(help="How many uplinks the devices send, all together.")] = USUAL.frames,
    seed: Annotated[int, typer.Option(help="The same seed and settings make the same traffic.")] = USUAL.seed,
    interval_ms: Annotated[int, typer.Option(help="Mean time between two uplinks of a device.")] = USUAL.interval_ms,
    side_m: Annotated[int, typer.Option(help="The gateways stand in a square of this side.")] = USUAL.side_m,
    range_m: Annotated[int, typer.Option(help="How far a gateway hears.")] = USUAL.range_m,
    strategy: Annotated[
        Literal["drop", "mark", "none", "mixed"], typer.Option(help="Of all devices; mixed: each has its own.")
    ] = "mixed",
    confirmed: Annotated[Share, typer.Option(help="Share of uplinks that ask for an answer.")] = USUAL.confirmed,
    retries: Annotated[Share, typer.Option(help="Share of those that miss it and are sent again.")] = USUAL.retries,
    retry_ms: Annotated[
        int, typer.Option(help="How long a device waits before it sends such a one again (median). 0: 2.5 to 5 s.")
    ] = USUAL.retry_ms,
    losses: Annotated[Share, typer.Option(help="Share of uplinks that nobody hears.")] = USUAL.losses,
    fades: Annotated[Share, typer.Option(help="Share of receptions that fail, one at a time.")] = USUAL.fades,
    mirrors: Annotated[Share, typer.Option(help="Share of receptions with a weak image.")] = USUAL.mirrors,
    replays: Annotated[Share, typer.Option(help="Share of uplinks that somebody replays.")] = USUAL.replays,
    forged: Annotated[Share, typer.Option(help="Forged frames on top, as a share of uplinks.")] = USUAL.forged,
    foreign: Annotated[Share, typer.Option(help="Frames of other networks, as a share of uplinks.")] = USUAL.foreign,
    joins: Annotated[Share, typer.Option(help="Share of devices that join over the air.")] = USUAL.joins,
    rollovers: Annotated[Share, typer.Option(help="Share of devices whose counter rolls over.")] = USUAL.rollovers,
    resets: Annotated[Share, typer.Option(help="Share of devices that restart their counter.")] = USUAL.resets,
    shared: Annotated[Share, typer.Option(help="Share of devices with another one's address.")] = USUAL.shared,
    as_json: AsJson = False,
) -> None:
    """Make radio traffic of which the truth is known, as messages of LoRa Basics Stations.

    FOLDER/receptions.jsonl is what the gateways heard, FOLDER/devices.toml the registry of the devices, FOLDER/truth
    what every reception is, and how many uplinks of every device were sent and lost.
    """
    from onefold.sim.radio.traffic import make
    from onefold.sim.radio.writing import write

    plan = RadioPlan(
        seed=seed, devices=devices, gateways=gateways, frames=frames, interval_ms=interval_ms, side_m=side_m,
        range_m=range_m, strategy=strategy, confirmed=confirmed, retries=retries, retry_ms=retry_ms, losses=losses,
        fades=fades, mirrors=mirrors, replays=replays, forged=forged, foreign=foreign, joins=joins, rollovers=rollovers,
        resets=resets, shared=shared,
    )  # fmt: skip
    with people.status(f"making {frames:,} uplinks"):
        made = make(plan)
        write(made, folder)
    summary = _made(made, folder)
    people.print(_told(summary), markup=False, soft_wrap=True)
    if as_json:
        emit_json(summary)


def play(
    folder: Annotated[Path, typer.Argument(help="A folder that 'onefold lorawan simulate' made.")],
    servers: Annotated[
        list[str], typer.Argument(metavar="SERVER...", help="ws://HOST:PORT; several share the stations.")
    ],
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token of the stations; or the variable ONEFOLD_TOKEN.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Messages a second; as fast as it goes else.")] = None,
    quiet_s: Annotated[
        float, typer.Option(min=0, help="Go when the servers have said nothing for so long, after the last message.")
    ] = 1.0,
    as_json: AsJson = False,
) -> int:
    """Be the stations: send simulated traffic to servers that speak the Basics Station protocol, and take the answers.

    Exit code 1: a server sent something wrong, two servers acknowledged one uplink, or a connection was lost.
    """
    from onefold.cli.token import read_token
    from onefold.sim.radio.acks import Ring, doubled
    from onefold.sim.radio.writing import DEVICES, read

    if not all(server.startswith(("ws://", "wss://")) for server in servers):
        raise Misuse(f"{', '.join(servers)}: must be ws://HOST:PORT or wss://HOST:PORT")
    ring, token = Ring.read(folder / DEVICES), read_token(token_file)
    stations = sorted({heard.station for heard in read(folder)})
    places = {station: servers[i % len(servers)] for i, station in enumerate(stations)}
    began = perf_counter()
    counts = asyncio.run(_played(folder, places, ring, token, rate, quiet_s))
    summary = _played_summary(counts, len(places), perf_counter() - began - quiet_s)
    summary["acknowledged_by_two"] = len(doubled(counts.acks))
    people.print(_told_play(summary), markup=False, soft_wrap=True)
    if as_json:
        emit_json(summary)
    return 1 if summary["problems"] or summary["acknowledged_by_two"] or summary["unsent"] else 0


async def _played(
    folder: Path, places: dict[str, str], ring: Any, token: str | None, rate: float | None, quiet_s: float
) -> "Counts":
    from onefold.sim.radio.writing import read
    from onefold.sim.stations import Fleet

    async with Fleet(places, ring, token=token) as fleet:
        await fleet.play(read(folder), rate=rate)
        await fleet.quiet(quiet_s)
        return fleet.counts


def _made(made: "RadioTraffic", folder: Path) -> dict[str, Any]:
    from onefold.sim.radio.truth import Kind

    devices = made.truth.devices
    return {
        "folder": str(folder),
        "seed": made.plan.seed,
        "receptions": len(made),
        "kinds": {kind.name.lower(): made.truth.count(kind) for kind in Kind},
        "devices": len(devices),
        "gateways": len(made.world.gateways),
        **{name: sum(getattr(device, name) for device in devices) for name in ("sent", "heard", "lost", "joins")},
    }


def _told(made: dict[str, Any]) -> str:
    kinds = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in made["kinds"].items())
    return (
        f"{made['receptions']:,} receptions by {made['gateways']:,} gateways are in {made['folder']}/receptions.jsonl\n"
        f"they are {kinds}\n"
        f"{made['devices']:,} devices sent {made['sent']:,} uplinks, {made['lost']:,} of which nobody heard\n"
        f"the registry is {made['folder']}/devices.toml, the truth is in {made['folder']}/truth"
    )


def _played_summary(counts: "Counts", stations: int, seconds: float) -> dict[str, Any]:
    names = ("sent", "unsent", "connects", "received", "transmitted", "timesyncs")
    waits = sorted(ack.waited_s * 1000 for ack in counts.acks)
    return {
        "stations": stations,
        **{name: getattr(counts, name) for name in names},
        "acknowledged": len(counts.acks),
        "uplinks_acknowledged": len({(ack.device, ack.uplink, ack.mic) for ack in counts.acks}),
        "seconds": round(seconds, 3),
        "ack_ms": {name: round(waits[int(len(waits) * q)], 2) for name, q in (("p50", 0.5), ("p99", 0.99)) if waits},
        "problems": counts.problems,
    }


def _told_play(said: dict[str, Any]) -> str:
    per_second = said["sent"] / said["seconds"] if said["seconds"] else 0
    lines = [
        f"{said['stations']:,} stations sent {said['sent']:,} messages"
        f" in {said['seconds']:.1f} s ({per_second:,.0f} a second)",
        f"{said['acknowledged']:,} acknowledgements came for {said['uplinks_acknowledged']:,} uplinks",
    ]
    if said["ack_ms"]:
        lines[-1] += f", after {said['ack_ms']['p50']:g} ms (median), {said['ack_ms']['p99']:g} ms (99 %)"
    if said["unsent"]:
        lines.append(f"{said['unsent']:,} messages were lost: there was no connection")
    if said["acknowledged_by_two"]:
        lines.append(f"{said['acknowledged_by_two']:,} uplinks were acknowledged by two servers")
    return "\n".join([*lines, *said["problems"]])
