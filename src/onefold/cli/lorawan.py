"""``onefold lorawan``: what an operator of radio gateways asks for; a file per command.

``onefold lorawan devices``: is the registry right, and what does it say? Keys are checked, and never shown.

``onefold lorawan simulate`` and ``play``: radio traffic of which the truth is known, and stations that send it.

``onefold lorawan report``: what stored receptions tell of devices, gateways and the window.
"""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from onefold.cli.output import AsJson, emit_json, people, progress
from onefold.errors import Misuse
from onefold.report import lorawan_text
from onefold.testing.radio import RadioPlan

if TYPE_CHECKING:
    from onefold.testing.radio import RadioTraffic
    from onefold.testing.stations import Counts


def devices(
    path: Annotated[Path, typer.Argument(help="A registry: TOML, or SQLite with a table 'devices'.")],
    as_json: AsJson = False,
) -> None:
    """Check a registry of devices and list it, without its keys; what is wrong is named, and the exit code is 2."""
    from rich.table import Table

    from onefold.lorawan.registry import read_registry

    registry = read_registry(path)
    rows = [_row(entry) for _, entry in sorted(registry.by_eui.items())]
    shared = sum(len(group) > 1 for group in registry.by_address.values())
    if as_json:
        emit_json({"path": str(path), "devices": rows, "shared_addresses": shared})
        return
    table = Table("device", "address", "strategy", "server", "class", "activation", "keys", box=None)
    for row in rows:
        gateway = row["gateway"] or "any"
        how = row["activation"] + (", relaxed" if row["relaxed"] else "")
        cells = row["dev_eui"], row["dev_addr"] or "-", row["strategy"], gateway, row["class"], how
        table.add_row(*cells, ", ".join(row["keys"]))
    people.print(table)
    told = f"{len(rows):,} devices" + (f", {shared:,} addresses belong to several" if shared else "")
    people.print(told, markup=False)


def _row(entry: Any) -> dict[str, Any]:
    device = entry.device
    return {
        "dev_eui": f"{device.dev_eui:016x}",
        "dev_addr": None if device.dev_addr is None else f"{device.dev_addr:08x}",
        "strategy": str(device.strategy),
        "gateway": device.gateway,
        "class": device.device_class,
        "activation": device.activation,
        "relaxed": device.relaxed,
        "fcnt_up": entry.fcnt_up,
        "keys": [name for name in ("nwk_skey", "app_skey", "app_key") if getattr(entry, name) is not None],
    }


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
    from onefold.testing.radio import make
    from onefold.testing.radio_files import write

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
    from onefold.cli.options import read_token
    from onefold.testing.radio_files import DEVICES, read
    from onefold.testing.stations import Ring, doubled

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
    from onefold.testing.radio_files import read
    from onefold.testing.stations import Fleet

    async with Fleet(places, ring, token=token) as fleet:
        await fleet.play(read(folder), rate=rate)
        await fleet.quiet(quiet_s)
        return fleet.counts


def _made(made: "RadioTraffic", folder: Path) -> dict[str, Any]:
    from onefold.testing.radio import FrameKind

    devices = made.truth.devices
    return {
        "folder": str(folder),
        "seed": made.plan.seed,
        "receptions": len(made),
        "kinds": {kind.name.lower(): made.truth.count(kind) for kind in FrameKind},
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


StrictAdr: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict-adr",
        help="As ADR 007 has it, the last frame of a device and a join request count again after the expiry; otherwise "
        "they are known for ever.",
    ),
]
Devices: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="The registry of our devices: only their losses and suspects are told. A device that joins over the "
        "air needs its current dev_addr there, where receptions name no DevEUI.",
    ),
]


def report(
    path: Annotated[str, typer.Argument(help="A file or folder: JSON lines (also packed), Parquet, a topic's folder.")],
    format: Annotated[
        str, typer.Option(help='"json", "parquet", "onefold-log", ...; "auto": by the ending of the names.')
    ] = "auto",
    shape: Annotated[
        Literal["auto", "onefold", "bridge", "lns", "chirpstack", "table"],
        typer.Option(help="How a reception is written down; auto: found out row by row."),
    ] = "auto",
    expiry_ms: Annotated[int, typer.Option(min=1, help="How long a frame is remembered.")] = 60_000,
    fixed: Annotated[bool, typer.Option("--fixed", help="From its first reception on, not from its last.")] = False,
    strict_adr: StrictAdr = False,
    strategy: Annotated[
        Literal["drop", "mark", "none"], typer.Option(help="What the devices want done with duplicates.")
    ] = "none",
    clock_off_ms: Annotated[
        int,
        typer.Option(
            min=0,
            help="A gateway's clock that is further ahead of the server's than this is not believed; nor is one that "
            "is behind it by more than an hour (or this, if it is more): a gateway may keep what it hears so long.",
        ),
    ] = 30_000,
    devices: Devices = None,
    top: Annotated[int, typer.Option(min=0, help="How many devices, gateways and suspects to show.")] = 20,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    json: AsJson = False,
) -> None:
    """Loss, overlap, delays, replays, other windows. Exit 1 if frames were lost, may be replayed or cannot be read."""
    from onefold.spark.receptions import report as reception_report
    from onefold.spark.session import session

    with progress(people) as say:
        say("starting Spark")
        spark = session(master)
        found = reception_report.report(
            spark,
            path,
            format=format,
            shape=shape,
            expiry_ms=expiry_ms,
            sliding=not fixed,
            strict_adr=strict_adr,
            strategy=strategy,
            clock_off_ms=clock_off_ms,
            top=top,
            devices=None if devices is None else _names(devices),
            say=say,
        )
    findings = lorawan_text.findings(found)
    if json:
        emit_json({**found, "findings": findings})
    people.print(lorawan_text.report(found))
    people.print(f"found: {', '.join(findings)}" if findings else "clean: nothing is lost, nothing is suspect")
    if findings:
        raise typer.Exit(1)


def _names(path: Path) -> set[str]:
    """What receptions may call the devices of a registry."""
    from onefold.lorawan.registry import read_registry

    ours = [entry.device for entry in read_registry(path).by_eui.values()]
    return {f"{one.dev_eui:016x}" for one in ours} | {f"{one.dev_addr:08x}" for one in ours if one.dev_addr is not None}


__all__ = ["devices", "play", "report", "simulate"]
