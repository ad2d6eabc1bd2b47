"""Who is there: devices with their keys, gateways with a place, a range and a delay.

Gateways stand anywhere in a square; a device stands in the range of one that is drawn for it, and whoever else is near
enough hears it too. Strangers are devices of other networks: they have an address and a key, and are in no registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from onefold.sim.radio.plan import STRATEGIES, RadioPlan

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

STRANGERS: Final = 8
JOIN_EUI: Final = 0x70B3D57ED0000001
GATEWAY_EUI: Final = 0x0016C001FF100000
PREFIXES: Final = (0x26000000, 0xFC000000)
"""Of addresses. Stations say them as signed numbers: the second kind comes out negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimDevice:
    """A device, as a registry knows it."""

    dev_eui: int
    dev_addr: int
    nwk_skey: bytes
    app_key: bytes
    strategy: str
    joins: bool = False
    resets: bool = False
    """Restarts its counter on the way, and is let."""
    rolls_over: bool = False
    epoch: int = 0
    """The high word of its counter before it rolls over."""
    stranger: bool = False

    def __repr__(self) -> str:  # never the keys
        return f"SimDevice({self.dev_eui:016x}, {self.dev_addr:08x}, {self.strategy})"


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Devices first, then the strangers; the columns are by device, or by device and gateway."""

    devices: list[SimDevice]
    gateways: list[str]
    """Their ids, 16 hex digits."""
    heard: Bools
    nearest: Ints
    """Per device: the gateway that hears it best."""
    rssi: Floats
    delay_ms: Floats
    """Per gateway."""


def build(rng: np.random.Generator, plan: RadioPlan) -> World:
    """Draw the world."""
    people = plan.devices + STRANGERS
    devices = _devices(rng, plan)
    where = rng.uniform(0, plan.side_m, (plan.gateways, 2))
    home = rng.integers(plan.gateways, size=people)
    reach = min(plan.range_m, plan.side_m) * np.sqrt(rng.random(people))  # the root: evenly over the disc
    angle = rng.uniform(0, 2 * np.pi, people)
    place = where[home] + reach[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    distance = np.hypot(*(place[:, None, :] - where[None, :, :]).transpose(2, 0, 1))
    delay = rng.uniform(0.5, 1.5, plan.gateways) * plan.delay_ms
    if plan.gateways > 1:
        delay[-1] = plan.slow_ms
    return World(
        devices=devices,
        gateways=[f"{GATEWAY_EUI + i:016x}" for i in range(plan.gateways)],
        heard=distance <= plan.range_m,
        nearest=np.argmin(distance, axis=1).astype(np.int64),
        rssi=np.maximum(-30 - 35 * np.log10(np.maximum(distance, 10) / 10), -135),  # the limit of LoRa, at 10 km
        delay_ms=delay,
    )


def _devices(rng: np.random.Generator, plan: RadioPlan) -> list[SimDevice]:
    people = plan.devices + STRANGERS
    addresses = _addresses(rng, people)
    shared = round(plan.shared * plan.devices)
    for i in rng.permutation(plan.devices)[:shared]:
        addresses[int(i)] = addresses[int(rng.integers(plan.devices))]
    order = rng.permutation(plan.devices)
    ends = np.cumsum([round(share * plan.devices) for share in (plan.joins, plan.rollovers, plan.resets)])
    joins, rolls, resets = (set(part.tolist()) for part in np.split(order, ends)[:3])
    keys = rng.bytes(32 * people)
    return [
        SimDevice(
            dev_eui=0x70B3D57ED0100000 + i,
            dev_addr=addresses[i],
            nwk_skey=keys[32 * i : 32 * i + 16],
            app_key=keys[32 * i + 16 : 32 * i + 32],
            strategy=plan.strategy if plan.strategy != "mixed" else STRATEGIES[i % 3],
            joins=i in joins,
            resets=i in resets,
            rolls_over=i in rolls,
            epoch=i % 3,
            stranger=i >= plan.devices,
        )
        for i in range(people)
    ]


def _addresses(rng: np.random.Generator, count: int) -> list[int]:
    """So many different ones."""
    low = rng.choice(1 << 24, size=count, replace=False)
    return [PREFIXES[i % 2] | int(value) for i, value in enumerate(low)]
