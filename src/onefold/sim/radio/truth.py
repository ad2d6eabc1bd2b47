"""What every reception really is, and how many uplinks of every device were sent, heard and lost.

The *first* reception of a frame is the one that reaches the server first. Of the others, one of the same transmission
is by another gateway (or a mirror image by the same); one of a later transmission is a retry, or a replay if it was not
the device that sent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from onefold.sim.radio.air import Air, Frames, Sent
from onefold.sim.radio.receptions import Receptions
from onefold.sim.radio.world import Bools, Ints, World


class Kind(IntEnum):
    """What a reception is; ``name.lower()`` in the truth's file."""

    FIRST = 0
    OTHER_GATEWAY = 1
    RETRY = 2
    MIRROR = 3
    REPLAY = 4
    FORGED = 5
    FOREIGN = 6


class DeviceTruth(NamedTuple):
    """What became of the uplinks of one device: ``sent = heard + lost``."""

    dev_eui: int
    sent: int
    """Uplinks with a counter of their own, however often they were on the air."""
    heard: int
    lost: int
    lost_between: int
    """Of the lost: those with a heard one before and after, which the counters of what was heard give away."""
    joins: int
    """Join requests that were heard."""
    resets: int
    rollovers: int


@dataclass(frozen=True, slots=True, eq=False)
class RadioTruth:
    """Columns by reception, in order of arrival, and the devices."""

    kind: Ints
    frame: Ints
    """Which frame of the air it carries."""
    devices: list[DeviceTruth]

    def count(self, kind: Kind) -> int:
        """How many receptions are of this kind."""
        return int(np.sum(self.kind == kind))


def tell(world: World, air: Air, heard: Receptions) -> RadioTruth:
    """Work the truth out."""
    frame = air.frame[heard.transmission]
    genuine = (air.sent[heard.transmission] != Sent.REPLAY) & np.isin(air.kind[frame], (Frames.UPLINK, Frames.JOIN))
    first = np.full(len(air.kind), len(frame))
    lines = np.flatnonzero(genuine)
    np.minimum.at(first, frame[lines], lines)
    kind = _kinds(air, heard, frame, first)
    return RadioTruth(kind, frame, _devices(world, air, first < len(frame)))


def _kinds(air: Air, heard: Receptions, frame: Ints, first: Ints) -> Ints:
    line = np.arange(len(frame))
    of_first = np.append(heard.transmission, -1)[first[frame]]
    conditions = {
        Kind.FORGED: air.kind[frame] == Frames.FORGED,
        Kind.FOREIGN: air.kind[frame] == Frames.FOREIGN,
        Kind.REPLAY: air.sent[heard.transmission] == Sent.REPLAY,
        Kind.FIRST: line == first[frame],
        Kind.MIRROR: heard.mirror,
        Kind.OTHER_GATEWAY: heard.transmission == of_first,
    }
    return np.select(list(conditions.values()), [int(kind) for kind in conditions], int(Kind.RETRY))


def _devices(world: World, air: Air, heard: Bools) -> list[DeviceTruth]:
    count = sum(not device.stranger for device in world.devices)
    uplink = air.kind == Frames.UPLINK
    device, counter, got = air.device[uplink], air.counter[uplink], heard[uplink]
    place = np.arange(len(device))
    low, high = np.full(count, len(device)), np.full(count, -1)
    np.minimum.at(low, device[got], place[got])
    np.maximum.at(high, device[got], place[got])
    between = ~got & (place > low[device]) & (place < high[device])
    same = device[1:] == device[:-1]
    back = same & (counter[1:] < counter[:-1])
    rolled = same & (counter[1:] >> 16 > counter[:-1] >> 16)
    joins = air.device[(air.kind == Frames.JOIN) & heard]
    columns = [device, device[got], device[~got], device[between], joins, device[1:][back], device[1:][rolled]]
    counts = [np.bincount(column, minlength=count).tolist() for column in columns]
    names = [device.dev_eui for device in world.devices[:count]]
    return [DeviceTruth(*row) for row in zip(names, *counts, strict=True)]
