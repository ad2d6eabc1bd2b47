"""Radio traffic from one seed: the world is drawn, then the air, then who hears it; the truth follows from these.

The same plan makes the same traffic, byte for byte. Cost: some 10 us per distinct frame (its integrity code) and 5 us
per reception when it is written; nothing else runs row by row in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onefold.engines.lorawan.frames import Frame
from onefold.sim.radio.air import Air, transmit
from onefold.sim.radio.plan import RadioPlan
from onefold.sim.radio.receptions import Receptions, receive
from onefold.sim.radio.signing import sign
from onefold.sim.radio.truth import RadioTruth, tell
from onefold.sim.radio.world import World, build


@dataclass(frozen=True, slots=True, eq=False)
class RadioTraffic:
    """What was sent, what was heard, and the truth about it."""

    plan: RadioPlan
    world: World
    air: Air
    frames: list[Frame]
    """By their number in the air."""
    receptions: Receptions
    truth: RadioTruth

    def __len__(self) -> int:
        """How many receptions there are."""
        return len(self.receptions)


def make(plan: RadioPlan) -> RadioTraffic:
    """Make the traffic.

    >>> made = make(RadioPlan(frames=100, devices=10))
    >>> sum(device.sent for device in made.truth.devices)
    100
    """
    rng = np.random.default_rng(plan.seed)
    world = build(rng, plan)
    air = transmit(rng, plan, world)
    heard = receive(rng, plan, world, air)
    return RadioTraffic(plan, world, air, sign(rng, world, air), heard, tell(world, air, heard))
