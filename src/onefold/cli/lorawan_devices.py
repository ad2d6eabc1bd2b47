"""``onefold lorawan devices``: is the registry right, and what does it say? Keys are checked, and never shown."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onefold.cli.output import AsJson, emit_json, people


def devices(
    path: Annotated[Path, typer.Argument(help="A registry: TOML, or SQLite with a table 'devices'.")],
    as_json: AsJson = False,
) -> None:
    """Check a registry of devices and list it, without its keys; what is wrong is named, and the exit code is 2."""
    from rich.table import Table

    from onefold.services.gateway.registry_files import read_registry

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
