"""``onefold lorawan``: commands for operators of radio gateways. Keys of devices are checked, but never shown."""

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

from rich.table import Table
from typer import Argument, Exit, Option

from onefold.cli.options import Expiry, Fixed, Format, ServerToken, StrictAdr, read_token
from onefold.cli.output import AsJson, emit_json, people, progress, tell
from onefold.errors import Misuse
from onefold.report import lorawan_text
from onefold.testing.radio import RadioPlan


def devices(
    path: Annotated[
        Path, Argument(exists=True, dir_okay=False, help="A registry: TOML, or SQLite with a table 'devices'.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a registry of devices and list it without its keys. Exit code 2: it cannot be read, and why is printed."""
    from onefold.lorawan.registry import read_registry

    registry = read_registry(path)
    rows: list[dict[str, Any]] = [
        {
            "dev_eui": f"{entry.device.dev_eui:016x}",
            "dev_addr": None if entry.device.dev_addr is None else f"{entry.device.dev_addr:08x}",
            "strategy": str(entry.device.strategy),
            "gateway": entry.device.gateway,
            "class": entry.device.device_class,
            "activation": entry.device.activation,
            "relaxed": entry.device.relaxed,
            "fcnt_up": entry.fcnt_up,
            "keys": [name for name in ("nwk_skey", "app_skey", "app_key") if getattr(entry, name) is not None],
        }
        for _, entry in sorted(registry.by_eui.items())
    ]
    shared = sum(len(group) > 1 for group in registry.by_address.values())
    if as_json:
        emit_json({"path": str(path), "devices": rows, "shared_addresses": shared})
        return
    table = Table("device", "address", "strategy", "server", "class", "activation", "keys", box=None)
    for row in rows:
        server, how = row["gateway"] or "any", row["activation"] + (", relaxed" if row["relaxed"] else "")
        keys = ", ".join(row["keys"])
        table.add_row(row["dev_eui"], row["dev_addr"] or "-", row["strategy"], server, row["class"], how, keys)
    people.print(table)
    several = f", {shared:,} addresses belong to several" if shared else ""
    people.lines(f"{len(rows):,} devices{several}")


USUAL = RadioPlan()


def simulate(
    folder: Annotated[Path, Argument(help="A folder that does not exist or is empty.")],
    devices: Annotated[int, Option(help="Number of devices.")] = USUAL.devices,
    gateways: Annotated[int, Option(help="Number of gateways.")] = USUAL.gateways,
    frames: Annotated[int, Option(help="Uplinks of all devices together.")] = USUAL.frames,
    seed: Annotated[int, Option(help="The same seed and settings make the same traffic.")] = USUAL.seed,
    interval_ms: Annotated[int, Option(help="Mean time between two uplinks of a device, in ms.")] = USUAL.interval_ms,
    side_m: Annotated[int, Option(help="Side of the square in which the gateways stand, in m.")] = USUAL.side_m,
    range_m: Annotated[int, Option(help="How far a gateway hears, in m.")] = USUAL.range_m,
    strategy: Annotated[
        Literal["drop", "mark", "none", "mixed"], Option(help="Strategy of all devices; mixed: they differ.")
    ] = "mixed",
    confirmed: Annotated[float, Option(help="Share of uplinks that ask for a confirmation.")] = USUAL.confirmed,
    retries: Annotated[float, Option(help="Share of those that miss it and are sent again.")] = USUAL.retries,
    retry_ms: Annotated[
        int, Option(help="Median wait of a device before it sends one again, in ms. 0: 2.5 to 5 s.")
    ] = USUAL.retry_ms,
    losses: Annotated[float, Option(help="Share of uplinks that nobody hears.")] = USUAL.losses,
    fades: Annotated[float, Option(help="Share of receptions that fail, one gateway at a time.")] = USUAL.fades,
    mirrors: Annotated[
        float, Option(help="Share of receptions that come twice, the second as a weak image.")
    ] = USUAL.mirrors,
    replays: Annotated[float, Option(help="Share of uplinks that somebody replays.")] = USUAL.replays,
    forged: Annotated[float, Option(help="Forged frames on top, as a share of uplinks.")] = USUAL.forged,
    foreign: Annotated[float, Option(help="Frames of other networks, as a share of uplinks.")] = USUAL.foreign,
    joins: Annotated[float, Option(help="Share of devices that join over the air.")] = USUAL.joins,
    rollovers: Annotated[float, Option(help="Share of devices whose counter rolls over.")] = USUAL.rollovers,
    resets: Annotated[float, Option(help="Share of devices that restart their counter.")] = USUAL.resets,
    shared: Annotated[float, Option(help="Share of devices with the address of another one.")] = USUAL.shared,
    as_json: AsJson = False,
) -> None:
    """Make radio traffic with known truth, as messages of LoRa Basics Stations.

    FOLDER/receptions.jsonl has the receptions, FOLDER/devices.toml the registry, FOLDER/truth the kind of each
    reception, and how many uplinks of each device were sent and lost.
    """
    from onefold.testing.radio import FrameKind, make, write

    plan = RadioPlan(
        seed=seed, devices=devices, gateways=gateways, frames=frames, interval_ms=interval_ms, side_m=side_m,
        range_m=range_m, strategy=strategy, confirmed=confirmed, retries=retries, retry_ms=retry_ms, losses=losses,
        fades=fades, mirrors=mirrors, replays=replays, forged=forged, foreign=foreign, joins=joins, rollovers=rollovers,
        resets=resets, shared=shared,
    )  # fmt: skip
    with people.status(f"making {frames:,} uplinks"):
        traffic = make(plan)
        write(traffic, folder)
    truth = traffic.truth
    summary: dict[str, Any] = {
        "folder": str(folder),
        "seed": seed,
        "receptions": len(traffic),
        "kinds": {kind.name.lower(): truth.count(kind) for kind in FrameKind},
        "devices": len(truth.devices),
        "gateways": len(traffic.world.gateways),
        **{name: sum(getattr(device, name) for device in truth.devices) for name in ("sent", "heard", "lost", "joins")},
    }
    kind_counts = " + ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in summary["kinds"].items())
    lines = (
        f"{len(traffic):,} receptions by {summary['gateways']:,} gateways are in {folder}/receptions.jsonl\n"
        f"they are {kind_counts}\n"
        f"{summary['devices']:,} devices sent {summary['sent']:,} uplinks, {summary['lost']:,} of which nobody heard\n"
        f"the registry is {folder}/devices.toml, the truth is in {folder}/truth"
    )
    tell(lines, summary, as_json)


def play(
    folder: Annotated[Path, Argument(help="A folder that 'onefold lorawan simulate' made.")],
    servers: Annotated[
        list[str], Argument(metavar="SERVER", help="ws://HOST:PORT; several divide the stations between them.")
    ],
    token_file: ServerToken = None,
    rate: Annotated[float | None, Option(min=0.001, help="Messages per second. Default: as fast as possible.")] = None,
    quiet_s: Annotated[
        float, Option(min=0, help="End when the servers have sent nothing for this long, in seconds.")
    ] = 1.0,
    as_json: AsJson = False,
) -> int:
    """Send simulated radio traffic to servers, as gateways with LoRa Basics Station would, and check the answers.

    Exit code 1: a server sent something invalid, two servers acknowledged one uplink, or a connection was lost.
    """
    from onefold.testing.radio import DEVICES, read
    from onefold.testing.stations import Counts, Fleet, Ring, doubled

    if not all(server.startswith(("ws://", "wss://")) for server in servers):
        raise Misuse(f"{', '.join(servers)}: must be ws://HOST:PORT or wss://HOST:PORT")
    ring, token = Ring.read(folder / DEVICES), read_token(token_file)
    stations = sorted({heard.station for heard in read(folder)})
    places = {station: servers[i % len(servers)] for i, station in enumerate(stations)}

    async def fleet_counts() -> Counts:
        async with Fleet(places, ring, token=token) as fleet:
            await fleet.play(read(folder), rate=rate)
            await fleet.quiet(quiet_s)
            return fleet.counts

    began = perf_counter()
    counts = asyncio.run(fleet_counts())
    seconds = round(perf_counter() - began - quiet_s, 3)
    waits = sorted(ack.waited_s * 1000 for ack in counts.acks)
    spread = {name: round(waits[int(len(waits) * q)], 2) for name, q in (("p50", 0.5), ("p99", 0.99)) if waits}
    uplinks, twice = len({(ack.device, ack.uplink, ack.mic) for ack in counts.acks}), len(doubled(counts.acks))
    names = ("sent", "unsent", "connects", "received", "transmitted", "timesyncs")
    summary: dict[str, Any] = {
        "stations": len(places),
        **{name: getattr(counts, name) for name in names},
        "acknowledged": len(counts.acks),
        "uplinks_acknowledged": uplinks,
        "seconds": seconds,
        "ack_ms": spread,
        "problems": counts.problems,
        "acknowledged_by_two": twice,
    }
    per_second = counts.sent / seconds if seconds else 0
    waited = f", after {spread['p50']:g} ms (median), {spread['p99']:g} ms (99 %)" if spread else ""
    lines = [
        f"{len(places):,} stations sent {counts.sent:,} messages in {seconds:.1f} s ({per_second:,.0f} a second)",
        f"{len(counts.acks):,} acknowledgements came for {uplinks:,} uplinks{waited}",
    ]
    if counts.unsent:
        lines.append(f"{counts.unsent:,} messages were lost: there was no connection")
    if twice:
        lines.append(f"{twice:,} uplinks were acknowledged by two servers")
    tell([*lines, *summary["problems"]], summary, as_json)
    return 1 if counts.problems or twice or counts.unsent else 0


def report(
    path: Annotated[
        str, Argument(help="A file or folder: JSON lines (also compressed), Parquet, or the folder of a topic.")
    ],
    format: Format = "auto",
    shape: Annotated[
        Literal["auto", "onefold", "bridge", "lns", "chirpstack", "table"],
        Option(help="The format of a row; auto: decided row by row."),
    ] = "auto",
    expiry_ms: Expiry = 60_000,
    fixed: Fixed = False,
    strict_adr: StrictAdr = False,
    strategy: Annotated[Literal["drop", "mark", "none"], Option(help="The devices' strategy for duplicates.")] = "none",
    clock_off_ms: Annotated[
        int,
        Option(min=0, help="Ignore a gateway's clock that is ahead by more than this, or behind by this and an hour."),
    ] = 30_000,
    devices: Annotated[
        Path | None,
        Option(exists=True, dir_okay=False, help="The registry of our devices: count only their losses and suspects."),
    ] = None,
    top: Annotated[int, Option(min=0, help="How many devices, gateways and suspects to list.")] = 20,
    master: Annotated[str, Option(help="Where Spark runs.")] = "local[*]",
    json: AsJson = False,
) -> None:
    """Loss, overlap, delays, replays, other windows. Exit 1 if frames were lost, may be replayed or cannot be read.

    If receptions name no DevEUI, a device that joins over the air needs its current dev_addr in --devices.
    """
    from onefold.spark.receptions.report import report as reception_report
    from onefold.spark.session import session

    ours: set[str] | None = None
    if devices is not None:  # receptions name a device by its DevEUI or its DevAddr
        from onefold.lorawan.registry import read_registry

        entries = [entry.device for entry in read_registry(devices).by_eui.values()]
        ours = {f"{device.dev_eui:016x}" for device in entries}
        ours |= {f"{device.dev_addr:08x}" for device in entries if device.dev_addr is not None}
    with progress(people) as say:
        say("starting Spark")
        document = reception_report(
            session(master), path, format=format, shape=shape, expiry_ms=expiry_ms, sliding=not fixed,
            strict_adr=strict_adr, strategy=strategy, clock_off_ms=clock_off_ms, top=top, devices=ours, say=say,
        )  # fmt: skip
    findings = lorawan_text.findings(document)
    if json:
        emit_json({**document, "findings": findings})
    people.print(lorawan_text.report(document))
    people.print(f"found: {', '.join(findings)}" if findings else "clean: nothing is lost, nothing is suspect")
    if findings:
        raise Exit(1)
