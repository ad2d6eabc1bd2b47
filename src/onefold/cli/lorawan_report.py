"""``onefold lorawan report``: what stored receptions tell of devices, gateways and the window."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from onefold.cli.output import AsJson, emit_json, people
from onefold.cli.progress import progress
from onefold.report import lorawan_text

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
    from onefold.spark import reception_report
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
    from onefold.services.gateway.registry_files import read_registry

    ours = [entry.device for entry in read_registry(path).by_eui.values()]
    return {f"{one.dev_eui:016x}" for one in ours} | {f"{one.dev_addr:08x}" for one in ours if one.dev_addr is not None}
