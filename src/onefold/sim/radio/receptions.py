"""Who heard what: transmissions become receptions, in the order in which they reach the server.

A gateway in range hears a transmission unless it fades; sometimes it has it twice, the second time as a mirror image on
another frequency, 30 dB down or more. Every gateway has its own way to the server, and one of them is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from onefold.sim.radio.air import BEGIN_MS, Air
from onefold.sim.radio.plan import RadioPlan
from onefold.sim.radio.world import Bools, Floats, Ints, World

CHANNELS_HZ: Final = (868_100_000, 868_300_000, 868_500_000)
DATA_RATES: Final = 6
NOISE_DBM: Final = -117
"""The noise of a LoRa channel: what is above it is the SNR, which the chips report up to about 10 dB."""
IMAGE_DB: Final = 30
IMAGE_HZ: Final = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Receptions:
    """Columns by reception, in order of arrival."""

    transmission: Ints
    gateway: Ints
    at_ms: Ints
    """When it reaches the server."""
    mirror: Bools
    rssi: Floats
    snr: Floats
    frequency_hz: Ints
    data_rate: Ints
    xtime: Ints
    """The gateway's own microseconds: the gateway in the high bits, and no two alike."""

    def __len__(self) -> int:
        return len(self.at_ms)


def receive(rng: np.random.Generator, plan: RadioPlan, world: World, air: Air) -> Receptions:
    """Draw who hears what, and when the server knows."""
    device = air.device[air.frame]
    hears = world.heard[device] & (rng.random((len(device), plan.gateways)) >= plan.fades)
    hears[np.arange(len(device)), world.nearest[device]] |= air.sure
    hears &= ~air.lost[:, None]
    transmission, gateway = (axis.astype(np.int64) for axis in np.nonzero(hears))
    rssi = world.rssi[device[transmission], gateway] + rng.normal(0, 3, len(gateway))
    delay = world.delay_ms[gateway] * rng.uniform(0.9, 1.1, len(gateway))
    at = air.time_ms[transmission] + np.maximum(delay, 1).astype(np.int64)
    channel = rng.integers(len(CHANNELS_HZ), size=len(device))
    frequency = np.array(CHANNELS_HZ)[channel][transmission]
    twice = np.flatnonzero(rng.random(len(at)) < plan.mirrors)
    every = np.concatenate([np.arange(len(at)), twice])
    mirror = np.arange(len(every)) >= len(at)
    order = np.argsort(at[every], kind="stable")  # an image never comes before its frame
    which, mirror = every[order], mirror[order]
    weaker = mirror * (IMAGE_DB + rng.uniform(0, 15, len(which)))
    level = rssi[which] - weaker
    return Receptions(
        transmission=transmission[which],
        gateway=gateway[which],
        at_ms=at[which],
        mirror=mirror,
        rssi=np.round(level, 1),
        snr=np.round(np.clip(level - NOISE_DBM, -20, 10), 1),
        frequency_hz=frequency[which] + mirror * IMAGE_HZ,
        data_rate=rng.integers(DATA_RATES, size=len(device))[transmission[which]],
        xtime=_xtime(air.time_ms[transmission[which]], gateway[which]),
    )


def _xtime(time_ms: Ints, gateway: Ints) -> Ints:
    """Microseconds of the air, the gateway above bit 48; within a millisecond they are counted."""
    micros: Ints = (time_ms - BEGIN_MS) * 1_000 + np.arange(len(time_ms)) % 1_000
    return micros + (gateway + 1 << 48)
