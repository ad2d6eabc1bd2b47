"""The devices as a registry in TOML, which a gateway server reads. Its keys are as made up as its devices."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.sim.radio.air import Frames
from onefold.sim.radio.traffic import RadioTraffic
from onefold.sim.radio.world import SimDevice


def registry(made: RadioTraffic) -> Iterator[str]:
    """The text of the registry, device by device; strangers are not in it."""
    starts = first_counters(made)
    for i, device in enumerate(made.world.devices):
        if not device.stranger:
            yield entry(device, starts[i])


def entry(device: SimDevice, start: int = 0) -> str:
    """One device; ``start`` is the first counter that it uses."""
    lines = [
        "[[device]]",
        f'dev_eui = "{device.dev_eui:016x}"',
        f'dev_addr = "{device.dev_addr:08x}"',
        f'nwk_skey = "{device.nwk_skey.hex()}"',
        f'strategy = "{device.strategy}"',
        f'activation = "{"otaa" if device.joins else "abp"}"',
    ]
    if device.joins:
        lines.append(f'app_key = "{device.app_key.hex()}"')
    if device.resets:
        lines.append("relaxed = true")
    if device.rolls_over:  # nobody can guess a high word that was never heard, nor one that passed unheard
        lines.append(f"fcnt_up = {start - 1}")
    return "\n".join(lines) + "\n\n"


def first_counters(made: RadioTraffic) -> dict[int, int]:
    """The first counter that each device uses, by its number."""
    uplinks = made.air.kind == Frames.UPLINK
    pairs = zip(made.air.device[uplinks].tolist(), made.air.counter[uplinks].tolist(), strict=True)
    starts: dict[int, int] = {}
    for device, counter in pairs:
        starts.setdefault(device, counter)
    return starts
