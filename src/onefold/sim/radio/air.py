"""What is sent: frames, and the transmissions that carry them.

A *frame* is what a device makes once, with its counter; a *transmission* is a frame on the air at some time: the first
one, a retry because no acknowledgement came, or a replay by somebody else. Both lie in flat arrays; uplinks come first
among the frames, device after device, each device's in order.

    frames          uplinks | forged | foreign | join requests
    transmissions   one of each frame | retries of confirmed uplinks | replays

Two things are arranged so that the truth can be told from the air alone. What a replay or a restart is judged by is
*sure* to be heard: the uplink after a replayed one, and those around a restart. And devices that may restart their
counter are not replayed: of such a device nobody can tell a replay from a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from onefold.sim.radio.plan import RETRIES_MAX, RadioPlan
from onefold.sim.radio.world import Bools, Ints, World

BEGIN_MS: Final = 1_704_067_200_000
"""2024-01-01: no transmission is earlier."""
JOIN_MS: Final = 10_000
"""Between two join requests of a device, and before its first uplink."""
RESET_AFTER: Final = 4
"""Uplinks before a restart, at least: below it a restarted counter would not be a step back."""


class Frames(IntEnum):
    """Kinds of frames."""

    UPLINK = 0
    FORGED = 1
    FOREIGN = 2
    JOIN = 3


class Sent(IntEnum):
    """Why a frame is on the air."""

    FIRST = 0
    RETRY = 1
    REPLAY = 2


@dataclass(frozen=True, slots=True, eq=False)
class Air:
    """All that was sent. Columns by frame, then by transmission; counters are 32 bit."""

    kind: Ints
    device: Ints
    counter: Ints
    """Of a join request: its nonce."""
    confirmed: Bools
    frame: Ints
    """Per transmission, as all that follow: what it carries."""
    time_ms: Ints
    sent: Ints
    lost: Bools
    """Nobody hears it."""
    sure: Bools
    """The nearest gateway hears it for certain."""


@dataclass(slots=True)
class _Uplinks:
    device: Ints
    place: Ints
    """In its device's row of uplinks, from 0."""
    count: Ints
    """How many uplinks its device has."""
    counter: Ints
    confirmed: Bools
    retries: Ints
    time_ms: Ints
    lost: Bools
    sure: Bools


def transmit(rng: np.random.Generator, plan: RadioPlan, world: World) -> Air:
    """Draw what is sent."""
    up = _uplinks(rng, plan, world)
    replayed, replay_ms = _replays(rng, plan, world, up)
    up.lost &= ~up.sure
    retry_of, retry_ms = _retries(rng, plan, up)
    forged = rng.integers(plan.frames, size=round(plan.forged * plan.frames))
    foreign = rng.integers(plan.devices, len(world.devices), size=round(plan.foreign * plan.frames))
    joining, nonce, join_ms = _joins(rng, world, up)
    extra = [len(forged), len(foreign), len(joining)]
    first_ms = np.concatenate([up.time_ms, up.time_ms[forged], rng.choice(up.time_ms, len(foreign)), join_ms])
    frame = np.concatenate([np.arange(len(first_ms)), retry_of, replayed])
    none = np.zeros(sum(extra), np.bool_)
    return Air(
        kind=np.repeat(np.arange(4), [plan.frames, *extra]),
        device=np.concatenate([up.device, up.device[forged], foreign, joining]),
        counter=np.concatenate(
            [
                up.counter,
                up.counter[forged] + rng.integers(1, 100, len(forged)),
                rng.integers(0, 50_000, len(foreign)),
                nonce,
            ]
        ),
        confirmed=np.concatenate([up.confirmed, none]),
        frame=frame,
        time_ms=np.concatenate([first_ms, retry_ms, replay_ms]),
        sent=np.repeat(np.arange(3), [len(first_ms), len(retry_of), len(replayed)]),
        lost=np.concatenate([up.lost, none])[frame],
        sure=np.concatenate([up.sure, none])[frame] & (np.arange(len(frame)) < plan.frames),
    )


def _uplinks(rng: np.random.Generator, plan: RadioPlan, world: World) -> _Uplinks:
    each, more = divmod(plan.frames, plan.devices)
    counts = np.full(plan.devices, each) + (np.arange(plan.devices) < more)
    device = np.repeat(np.arange(plan.devices), counts)
    starts = np.cumsum(counts) - counts
    place = np.arange(plan.frames) - starts[device]
    count = counts[device]
    confirmed = rng.random(plan.frames) < plan.confirmed
    again = confirmed & (rng.random(plan.frames) < plan.retries)
    retries = np.where(again, rng.integers(1, RETRIES_MAX + 1, plan.frames), 0)
    counter, restart = _counters(rng, world, device, place, count)
    gap = rng.uniform(0.5, 1.5, plan.frames) * plan.interval_ms
    gap = np.maximum(gap, plan.quiet_ms) + np.concatenate([[0], retries[:-1]]) * plan.retry_range_ms[1]
    time = np.cumsum(gap)
    time += (rng.random(plan.devices) * plan.interval_ms - time[starts])[device]  # each device begins when it likes
    return _Uplinks(
        device=device,
        place=place,
        count=count,
        counter=counter,
        confirmed=confirmed,
        retries=retries,
        time_ms=BEGIN_MS + 3 * JOIN_MS + time.astype(np.int64),
        lost=rng.random(plan.frames) < plan.losses,
        sure=restart | np.concatenate([restart[1:], [False]]),
    )


def _counters(rng: np.random.Generator, world: World, device: Ints, place: Ints, count: Ints) -> tuple[Ints, Bools]:
    """The counter of each uplink, and which is the first after a restart."""
    rolls = np.array([d.rolls_over for d in world.devices])[device]
    resets = np.array([d.resets for d in world.devices])[device] & (count >= 2 * RESET_AFTER)
    epoch = np.array([d.epoch for d in world.devices])[device]
    counter = np.where(rolls, ((epoch + 1) << 16) - (count + 1) // 2, device % 2) + place  # devices begin at 0 or at 1
    life = place - count // 2
    counter = np.where(resets & (life >= 0), life + device % 2, counter)
    return counter.astype(np.int64), resets & (life == 0)


def _retries(rng: np.random.Generator, plan: RadioPlan, up: _Uplinks) -> tuple[Ints, Ints]:
    """The uplinks that are sent again, and when: uplink by uplink, in order."""
    of = np.repeat(np.arange(len(up.device)), up.retries)
    starts = np.cumsum(up.retries) - up.retries
    wait = rng.integers(*plan.retry_range_ms, len(of))
    total = np.cumsum(wait)
    before = np.concatenate([[0], total])[starts]
    return of, up.time_ms[of] + total - before[of]


def _replays(rng: np.random.Generator, plan: RadioPlan, world: World, up: _Uplinks) -> tuple[Ints, Ints]:
    """The uplinks that somebody sends again, and when: after the device's next one was heard."""
    fixed = ~np.array([d.resets for d in world.devices])[up.device]
    could = np.flatnonzero(fixed & (up.place < up.count - 1))
    count = min(round(plan.replays * plan.frames), len(could))
    chosen = rng.choice(could, count, replace=False)
    up.sure[chosen] = True  # who replays it has heard it, and so has the network
    up.sure[chosen + 1] = True
    later = plan.quiet_ms + rng.exponential(plan.interval_ms, count).astype(np.int64)
    return chosen, up.time_ms[chosen + 1] + later


def _joins(rng: np.random.Generator, world: World, up: _Uplinks) -> tuple[Ints, Ints, Ints]:
    """Who asks to join, with which nonce, and when: once or twice before its first uplink."""
    first_ms = up.time_ms[up.place == 0]
    joining = np.flatnonzero([d.joins for d in world.devices])
    twice = joining[rng.random(len(joining)) < 0.3]
    nonce = rng.integers(0, 65_000, len(joining))
    devices = np.concatenate([joining, twice])
    second = np.isin(joining, twice)
    nonces = np.concatenate([nonce, nonce[second] + 1])
    before = np.concatenate([np.full(len(joining), 2), np.full(len(twice), 1)]) * JOIN_MS
    return devices, nonces, first_ms[devices] - before
