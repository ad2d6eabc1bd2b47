"""Radio traffic from one seed: it draws the world, the air and the receptions; the truth follows from them.

The same plan makes the same traffic, byte for byte.

- `RadioWorld`: gateways stand anywhere in a square; a device stands in the range of one drawn for it, and every other
  gateway in range hears it too. Strangers are devices of other networks, and not in the registry.
- `Air`: a *frame* is made once by a device, with its counter; a *transmission* is a frame on the air at some time: the
  first one, a retry because no acknowledgement came, or a replay by somebody else. Both are in flat arrays:

      frames          uplinks (device after device, each device's in order) | forged | foreign | join requests
      transmissions   one of each frame | retries of confirmed uplinks | replays

- `RadioReceptions`: a gateway in range hears a transmission unless it fades; sometimes it has it twice, the second time
  as a mirror image on another frequency, 30 dB down or more. Each gateway has its delay to the server, one is slow.
- `RadioTruth`: the *first* reception of a frame is the one that reaches the server first. Another one of the same
  transmission is by another gateway, or a mirror image by the same; one of a later transmission is a retry, or a replay
  if the device did not send it.

Two rules make the truth decidable from the receptions alone. The uplinks that a replay or a restart is judged by are
*sure* to be heard: the one after a replayed uplink, and those around a restart. And devices that may restart their
counter are not replayed: nobody could tell a replay from a restart.

In a folder, which is written whole or not at all:

    receptions.jsonl          {"station": "0016...", "at_ms": 1704067230000, "message": {"msgtype": "updf", ...}}
    devices.toml              a registry of the devices, for `onefold serve gateway --devices`
    truth/receptions.jsonl    the kind of each of these lines, in the same order
    truth/devices.jsonl       per device, how many uplinks were sent, heard, lost
    truth/plan.json           the plan

Receptions are messages of a Basics Station, ``updf`` and ``jreq``. Stations write addresses and integrity codes as
*signed* 32-bit numbers, ids with dashes, a missing port as -1. Lines are joined from text: the frame's part is made
once per frame, and nothing in it needs escaping.

Cost: some 10 us per distinct frame (its integrity code; copies share their frame) and 5 us per reception when it is
written; nothing else runs row by row in Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from onefold.errors import BadInput, Misuse
from onefold.lorawan.frames import DataUp, Frame
from onefold.lorawan.mic import signed_join, signed_up
from onefold.lorawan.radio import dashed
from onefold.testing.faults import DAY_MS, MostlyLess, Share, check, whole_folder

Strategies: TypeAlias = Literal["drop", "mark", "none", "mixed"]
STRATEGIES: Final = ("drop", "mark", "none")

RETRIES_MAX: Final = 3
"""Retries of a confirmed frame; network servers accept as many as the same frame."""
RETRY_MS: Final = (2_500, 5_000)
"""Between two transmissions of a confirmed frame: both receive windows must pass without an answer."""
RECEPTIONS_MAX: Final = 20_000_000
"""Beyond it the tables of one run do not fit into the memory of a small machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioPlan:
    """The settings of a simulation; shares are of uplinks unless noted. The defaults are a small town on a bad day.

    >>> RadioPlan(devices=5, frames=4)
    Traceback (most recent call last):
    onefold.errors.Misuse: devices is 5, must be at most frames, which is 4
    """

    seed: Annotated[int, (0, 2**63 - 1)] = 1
    devices: Annotated[int, (1, 100_000)] = 50
    gateways: Annotated[int, (1, 1_000)] = 5
    frames: Annotated[int, (1, 10_000_000)] = 5_000
    """Uplinks of all devices together; retries, replays and forged frames come on top."""
    interval_ms: Annotated[int, (1_000, DAY_MS)] = 60_000
    side_m: Annotated[int, (1, 1_000_000)] = 10_000
    range_m: Annotated[int, (1, 10_000_000)] = 5_000
    """How far a gateway hears; each device is in the range of at least one."""
    delay_ms: Annotated[int, (1, 10_000)] = 40
    """From a gateway to the server; the mean."""
    slow_ms: Annotated[int, (1, 10_000)] = 600
    """The delay of the last of two or more gateways, on a mobile link; far below the expiry of 60 s."""
    strategy: Strategies = "mixed"
    """Of all devices; mixed: they differ."""
    confirmed: Share = 0.25
    retries: Share = 0.3
    """Share of *confirmed* uplinks whose acknowledgement is missed: sent again, up to three times."""
    retry_ms: Annotated[int, (0, DAY_MS)] = 0
    """The median wait before a retry, which varies by half of it either way. 0: 2.5 to 5 s, after both receive windows.
    Devices that back off wait for minutes."""
    losses: MostlyLess = 0.02
    """Uplinks that no gateway hears, retries included."""
    fades: MostlyLess = 0.05
    """Share of *receptions* that fail, one gateway at a time."""
    mirrors: Share = 0.01
    """Share of *receptions* that a gateway has twice: same instant, other frequency, much weaker."""
    replays: Share = 0.01
    """Uplinks that somebody records and sends again after the device's next ones."""
    forged: Share = 0.01
    """Frames on top with a device's address, a counter that fits, and a wrong integrity code."""
    foreign: Share = 0.01
    """Frames on top from devices of other networks, which are not in the registry."""
    joins: Share = 0.2
    """Share of *devices* that join over the air, once or twice."""
    rollovers: Share = 0.1
    """Share of *devices* whose 16-bit counter rolls over on the way."""
    resets: Share = 0.1
    """Share of *devices* that restart their counter on the way."""
    shared: Share = 0.04
    """Share of *devices* with the address of another one."""

    def __post_init__(self) -> None:
        check(self)
        if self.devices > self.frames:
            text = f"devices is {self.devices}, must be at most frames, which is {self.frames}"
            raise Misuse(text, devices=self.devices)
        if self.strategy not in (*STRATEGIES, "mixed"):
            text = f"strategy is {self.strategy!r}, must be one of {', '.join(STRATEGIES)}, mixed"
            raise Misuse(text, strategy=self.strategy)
        if 0 < self.retry_ms < RETRY_MS[0]:
            text = f"retry_ms is {self.retry_ms}, must be 0 or at least {RETRY_MS[0]}"
            raise Misuse(f"{text}: both receive windows have to pass", retry_ms=self.retry_ms)
        if (special := self.joins + self.rollovers + self.resets) > 1:
            text = f"joins + rollovers + resets is {special:g}, must be at most 1: each is of other devices"
            raise Misuse(text, joins=self.joins, rollovers=self.rollovers, resets=self.resets)
        if self.frames * self.gateways > RECEPTIONS_MAX:
            most = RECEPTIONS_MAX // self.gateways
            raise Misuse(f"frames is {self.frames}, must be at most {most} for {self.gateways} gateways")

    @property
    def retry_range_ms(self) -> tuple[int, int]:
        return (self.retry_ms // 2, self.retry_ms * 3 // 2) if self.retry_ms else RETRY_MS

    @property
    def quiet_ms(self) -> int:
        """The least time between two uplinks of a device, so that no slow gateway reverses their order."""
        return 2 * (self.delay_ms + self.slow_ms) + 1_000


QUIET: Final = RadioPlan(
    range_m=10_000_000, confirmed=0, retries=0, losses=0, fades=0, mirrors=0, replays=0, forged=0, foreign=0,
    joins=0, rollovers=0, resets=0, shared=0,
)  # fmt: skip
"""Every gateway hears every frame, once; a base for `dataclasses.replace`."""


Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

STRANGERS: Final = 8
JOIN_EUI: Final = 0x70B3D57ED0000001
GATEWAY_EUI: Final = 0x0016C001FF100000
PREFIXES: Final = (0x26000000, 0xFC000000)
"""Of addresses. Stations write them as signed numbers; the second is negative then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimDevice:
    dev_eui: int
    dev_addr: int
    nwk_skey: bytes = field(repr=False)
    app_key: bytes = field(repr=False)
    strategy: str
    joins: bool = False
    resets: bool = False
    """Restarts its counter, and is registered as relaxed."""
    rolls_over: bool = False
    epoch: int = 0
    """The high word of its counter before it rolls over."""
    stranger: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RadioWorld:
    """Devices first, then the strangers; the columns are by device, or by device and gateway."""

    devices: list[SimDevice]
    gateways: list[str]
    heard: Bools
    nearest: Ints
    """Per device: the gateway that hears it best."""
    rssi: Floats
    delay_ms: Floats
    """Per gateway."""


def build(rng: np.random.Generator, plan: RadioPlan) -> RadioWorld:
    count = plan.devices + STRANGERS
    low = rng.choice(1 << 24, size=count, replace=False)
    addresses = [PREFIXES[i % 2] | int(value) for i, value in enumerate(low)]
    for i in rng.permutation(plan.devices)[: round(plan.shared * plan.devices)]:
        addresses[int(i)] = addresses[int(rng.integers(plan.devices))]
    order = rng.permutation(plan.devices)
    ends = np.cumsum([round(share * plan.devices) for share in (plan.joins, plan.rollovers, plan.resets)])
    joins, rolls, resets = (set(part.tolist()) for part in np.split(order, ends)[:3])
    keys = rng.bytes(32 * count)
    devices = [
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
        for i in range(count)
    ]
    where = rng.uniform(0, plan.side_m, (plan.gateways, 2))
    home = rng.integers(plan.gateways, size=count)
    reach = min(plan.range_m, plan.side_m) * np.sqrt(rng.random(count))  # the root: evenly over the disc
    angle = rng.uniform(0, 2 * np.pi, count)
    position = where[home] + reach[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    distance = np.hypot(*(position[:, None, :] - where[None, :, :]).transpose(2, 0, 1))
    delay = rng.uniform(0.5, 1.5, plan.gateways) * plan.delay_ms
    if plan.gateways > 1:
        delay[-1] = plan.slow_ms
    return RadioWorld(
        devices=devices,
        gateways=[f"{GATEWAY_EUI + i:016x}" for i in range(plan.gateways)],
        heard=distance <= plan.range_m,
        nearest=np.argmin(distance, axis=1).astype(np.int64),
        rssi=np.maximum(-30 - 35 * np.log10(np.maximum(distance, 10) / 10), -135),  # the limit of LoRa, at 10 km
        delay_ms=delay,
    )


BEGIN_MS: Final = 1_704_067_200_000
"""2024-01-01: no transmission is earlier."""
JOIN_MS: Final = 10_000
"""Between two join requests of a device, and before its first uplink."""
RESET_AFTER: Final = 4
"""The least number of uplinks before a restart, so that the restarted counter is a step back."""


class Frames(IntEnum):
    UPLINK = 0
    FORGED = 1
    FOREIGN = 2
    JOIN = 3


class SentFrame(IntEnum):
    """Why a frame is on the air."""

    FIRST = 0
    RETRY = 1
    REPLAY = 2


@dataclass(frozen=True, slots=True, eq=False)
class Air:
    """All that was sent. Columns by frame, then by transmission; counters have 32 bits."""

    kind: Ints
    device: Ints
    counter: Ints
    """Of a join request: its nonce."""
    confirmed: Bools
    frame: Ints
    """Per transmission, like all columns below: the frame that it carries."""
    time_ms: Ints
    sent: Ints
    lost: Bools
    sure: Bools
    """The nearest gateway hears it for certain."""


@dataclass(slots=True)
class _Uplinks:
    device: Ints
    ordinal: Ints
    """The position among the uplinks of its device, from 0."""
    count: Ints
    counter: Ints
    confirmed: Bools
    retries: Ints
    time_ms: Ints
    lost: Bools
    sure: Bools


def transmit(rng: np.random.Generator, plan: RadioPlan, world: RadioWorld) -> Air:
    up = _uplinks(rng, plan, world)
    # Replays, after the device's next uplink was heard.
    fixed = ~np.array([d.resets for d in world.devices])[up.device]
    could = np.flatnonzero(fixed & (up.ordinal < up.count - 1))
    replayed = rng.choice(could, min(round(plan.replays * plan.frames), len(could)), replace=False)
    up.sure[replayed] = up.sure[replayed + 1] = True  # the replayer has heard it, and so has the network
    later = plan.quiet_ms + rng.exponential(plan.interval_ms, len(replayed)).astype(np.int64)
    replay_ms = up.time_ms[replayed + 1] + later
    up.lost &= ~up.sure
    # Retries: uplink by uplink, in order.
    retry_of = np.repeat(np.arange(len(up.device)), up.retries)
    total = np.cumsum(rng.integers(*plan.retry_range_ms, len(retry_of)))
    before = np.concatenate([[0], total])[np.cumsum(up.retries) - up.retries]
    retry_ms = up.time_ms[retry_of] + total - before[retry_of]
    forged = rng.integers(plan.frames, size=round(plan.forged * plan.frames))
    foreign = rng.integers(plan.devices, len(world.devices), size=round(plan.foreign * plan.frames))
    # Join requests: one or two before the first uplink.
    once = np.flatnonzero([d.joins for d in world.devices])
    twice = rng.random(len(once)) < 0.3
    nonces = rng.integers(0, 65_000, len(once))
    joining, nonce = np.concatenate([once, once[twice]]), np.concatenate([nonces, nonces[twice] + 1])
    before_ms = np.repeat([2, 1], [len(once), int(np.sum(twice))]) * JOIN_MS
    join_ms = up.time_ms[up.ordinal == 0][joining] - before_ms
    extra = [len(forged), len(foreign), len(joining)]
    first_ms = np.concatenate([up.time_ms, up.time_ms[forged], rng.choice(up.time_ms, len(foreign)), join_ms])
    frame = np.concatenate([np.arange(len(first_ms)), retry_of, replayed])
    none = np.zeros(sum(extra), np.bool_)
    forged_counter = up.counter[forged] + rng.integers(1, 100, len(forged))
    return Air(
        kind=np.repeat(np.arange(4), [plan.frames, *extra]),
        device=np.concatenate([up.device, up.device[forged], foreign, joining]),
        counter=np.concatenate([up.counter, forged_counter, rng.integers(0, 50_000, len(foreign)), nonce]),
        confirmed=np.concatenate([up.confirmed, none]),
        frame=frame,
        time_ms=np.concatenate([first_ms, retry_ms, replay_ms]),
        sent=np.repeat(np.arange(3), [len(first_ms), len(retry_of), len(replayed)]),
        lost=np.concatenate([up.lost, none])[frame],
        sure=np.concatenate([up.sure, none])[frame] & (np.arange(len(frame)) < plan.frames),
    )


def _uplinks(rng: np.random.Generator, plan: RadioPlan, world: RadioWorld) -> _Uplinks:
    each, more = divmod(plan.frames, plan.devices)
    counts = np.full(plan.devices, each) + (np.arange(plan.devices) < more)
    device = np.repeat(np.arange(plan.devices), counts)
    starts = np.cumsum(counts) - counts
    ordinal = np.arange(plan.frames) - starts[device]
    count = counts[device]
    confirmed = rng.random(plan.frames) < plan.confirmed
    again = confirmed & (rng.random(plan.frames) < plan.retries)
    retries = np.where(again, rng.integers(1, RETRIES_MAX + 1, plan.frames), 0)
    rolls, resets, epoch = (
        np.array([getattr(d, name) for d in world.devices])[device] for name in ("rolls_over", "resets", "epoch")
    )
    begin = device % 2  # devices count from 0 or from 1
    life, resets = ordinal - count // 2, resets & (count >= 2 * RESET_AFTER)
    counter = np.where(rolls, ((epoch + 1) << 16) - (count + 1) // 2, begin) + ordinal
    counter = np.where(resets & (life >= 0), life + begin, counter)
    restart = resets & (life == 0)  # the first after a restart
    gap = rng.uniform(0.5, 1.5, plan.frames) * plan.interval_ms
    gap = np.maximum(gap, plan.quiet_ms) + np.concatenate([[0], retries[:-1]]) * plan.retry_range_ms[1]
    time = np.cumsum(gap)
    time += (rng.random(plan.devices) * plan.interval_ms - time[starts])[device]  # a random start per device
    return _Uplinks(
        device=device,
        ordinal=ordinal,
        count=count,
        counter=counter.astype(np.int64),
        confirmed=confirmed,
        retries=retries,
        time_ms=BEGIN_MS + 3 * JOIN_MS + time.astype(np.int64),
        lost=rng.random(plan.frames) < plan.losses,
        sure=restart | np.concatenate([restart[1:], [False]]),
    )


CHANNELS_HZ: Final = (868_100_000, 868_300_000, 868_500_000)
DATA_RATES: Final = 6
NOISE_DBM: Final = -117
"""The noise of a LoRa channel. The SNR is relative to it; the chips report at most about 10 dB."""
IMAGE_DB: Final = 30
IMAGE_HZ: Final = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class RadioReceptions:
    """Columns by reception, in order of arrival."""

    transmission: Ints
    gateway: Ints
    at_ms: Ints
    mirror: Bools
    rssi: Floats
    snr: Floats
    frequency_hz: Ints
    data_rate: Ints
    xtime: Ints
    """The gateway's own clock in microseconds, unique, with the gateway in the high bits."""


def receive(rng: np.random.Generator, plan: RadioPlan, world: RadioWorld, air: Air) -> RadioReceptions:
    """Draw which gateways hear which transmission, and when it arrives at the server."""
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
    order = np.argsort(at[every], kind="stable")  # stable: a mirror image comes after its frame
    which, mirror = every[order], mirror[order]
    weaker = mirror * (IMAGE_DB + rng.uniform(0, 15, len(which)))
    level = rssi[which] - weaker
    return RadioReceptions(
        transmission=transmission[which],
        gateway=gateway[which],
        at_ms=at[which],
        mirror=mirror,
        rssi=np.round(level, 1),
        snr=np.round(np.clip(level - NOISE_DBM, -20, 10), 1),
        frequency_hz=frequency[which] + mirror * IMAGE_HZ,
        data_rate=rng.integers(DATA_RATES, size=len(device))[transmission[which]],
        xtime=(air.time_ms[transmission[which]] - BEGIN_MS) * 1_000
        + np.arange(len(which)) % 1_000  # unique within a millisecond
        + (gateway[which] + 1 << 48),
    )


PAYLOAD_BYTES: Final = (1, 24)
FPORT_MAX: Final = 223


def sign(rng: np.random.Generator, world: RadioWorld, air: Air) -> Iterator[Frame]:
    count = len(air.kind)
    lengths = rng.integers(*PAYLOAD_BYTES, count)
    ends = np.cumsum(lengths).tolist()
    payloads = rng.bytes(ends[-1])
    wrong = rng.integers(1, 1 << 32, count).tolist()
    columns = (air.kind, air.device, air.counter, air.confirmed, lengths)
    rows = zip(*(column.tolist() for column in columns), ends, wrong, strict=True)
    for kind, device, counter, confirmed, length, end, other in rows:
        owner = world.devices[device]
        if kind == Frames.JOIN:
            yield signed_join(app_key=owner.app_key, join_eui=JOIN_EUI, dev_eui=owner.dev_eui, dev_nonce=counter)
            continue
        frame = signed_up(
            nwk_skey=owner.nwk_skey,
            dev_addr=owner.dev_addr,
            fcnt=counter,
            payload=payloads[end - length : end],
            fport=1 + end % FPORT_MAX,
            confirmed=confirmed,
            adr=True,
        )
        yield frame._replace(mic=frame.mic ^ other) if kind == Frames.FORGED else frame


class FrameKind(IntEnum):
    """The kind of a reception; ``name.lower()`` in the file of the truth."""

    FIRST = 0
    OTHER_GATEWAY = 1
    RETRY = 2
    MIRROR = 3
    REPLAY = 4
    FORGED = 5
    FOREIGN = 6


class DeviceTruth(NamedTuple):
    """The uplinks of one device: ``sent = heard + lost``."""

    dev_eui: int
    sent: int
    """Uplinks with a counter of their own, however often they were on the air."""
    heard: int
    lost: int
    lost_between: int
    """The lost ones with a heard one before and after, which show in the counters of the heard ones."""
    joins: int
    resets: int
    rollovers: int


@dataclass(frozen=True, slots=True, eq=False)
class RadioTruth:
    """Columns by reception, in order of arrival, and the devices."""

    kind: Ints
    frame: Ints
    devices: list[DeviceTruth]

    def count(self, kind: FrameKind) -> int:
        return int(np.sum(self.kind == kind))


def tell(world: RadioWorld, air: Air, heard: RadioReceptions) -> RadioTruth:
    frame = air.frame[heard.transmission]
    replayed = air.sent[heard.transmission] == SentFrame.REPLAY
    lines = np.flatnonzero(~replayed & np.isin(air.kind[frame], (Frames.UPLINK, Frames.JOIN)))
    first = np.full(len(air.kind), len(frame))
    np.minimum.at(first, frame[lines], lines)
    of_first = np.append(heard.transmission, -1)[first[frame]]
    conditions = {
        FrameKind.FORGED: air.kind[frame] == Frames.FORGED,
        FrameKind.FOREIGN: air.kind[frame] == Frames.FOREIGN,
        FrameKind.REPLAY: replayed,
        FrameKind.FIRST: np.arange(len(frame)) == first[frame],
        FrameKind.MIRROR: heard.mirror,
        FrameKind.OTHER_GATEWAY: heard.transmission == of_first,
    }
    kind = np.select(list(conditions.values()), [int(kind) for kind in conditions], int(FrameKind.RETRY))
    arrived = first < len(frame)  # by frame
    count = sum(not device.stranger for device in world.devices)
    uplink = air.kind == Frames.UPLINK
    device, counter, got = air.device[uplink], air.counter[uplink], arrived[uplink]
    index = np.arange(len(device))
    low, high = np.full(count, len(device)), np.full(count, -1)
    np.minimum.at(low, device[got], index[got])
    np.maximum.at(high, device[got], index[got])
    between = ~got & (index > low[device]) & (index < high[device])
    same = device[1:] == device[:-1]
    back = same & (counter[1:] < counter[:-1])
    rolled = same & (counter[1:] >> 16 > counter[:-1] >> 16)
    joins = air.device[(air.kind == Frames.JOIN) & arrived]
    columns = [device, device[got], device[~got], device[between], joins, device[1:][back], device[1:][rolled]]
    counts = [np.bincount(column, minlength=count).tolist() for column in columns]
    names = [device.dev_eui for device in world.devices[:count]]
    return RadioTruth(kind, frame, [DeviceTruth(*row) for row in zip(names, *counts, strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class RadioTraffic:
    plan: RadioPlan
    world: RadioWorld
    air: Air
    frames: list[Frame]
    receptions: RadioReceptions
    truth: RadioTruth

    def __len__(self) -> int:
        return len(self.receptions.at_ms)


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
    return RadioTraffic(plan, world, air, list(sign(rng, world, air)), heard, tell(world, air, heard))


class TruthLine(NamedTuple):
    station: str
    key: str
    """The frame's key, in hex: the same for all receptions of a frame."""
    kind: FrameKind
    frame: int
    device: str
    """Its DevEUI, in hex; also for strangers."""
    counter: int
    """32 bits; of a join request: its nonce."""
    join: bool


class HeardFrame(NamedTuple):
    """A line of the traffic: the message of one station, and its time of arrival."""

    station: str
    at_ms: int
    message: str
    xtime: int
    """The station's own clock in the message; the answer repeats it."""


def truth_lines(traffic: RadioTraffic) -> Iterator[TruthLine]:
    keys = [frame.key.hex() for frame in traffic.frames]
    names = [f"{device.dev_eui:016x}" for device in traffic.world.devices]
    owners, counters = (column.tolist() for column in (traffic.air.device, traffic.air.counter))
    joins = [not hasattr(frame, "fcnt") for frame in traffic.frames]
    kinds = list(FrameKind)
    columns = (traffic.receptions.gateway, traffic.truth.kind, traffic.truth.frame)
    for gateway, kind, frame in zip(*(column.tolist() for column in columns), strict=True):
        station, device = traffic.world.gateways[gateway], names[owners[frame]]
        yield TruthLine(station, keys[frame], kinds[kind], frame, device, counters[frame], joins[frame])


def as_json(line: TruthLine) -> str:
    return (
        f'{{"station":"{line.station}","key":"{line.key}","kind":"{line.kind.name.lower()}","frame":{line.frame},'
        f'"device":"{line.device}","counter":{line.counter},"join":{str(line.join).lower()}}}\n'
    )


def registry(traffic: RadioTraffic) -> Iterator[str]:
    """The text of the registry, device by device, without strangers."""
    starts = first_counters(traffic)
    for i, device in enumerate(traffic.world.devices):
        if device.stranger:
            continue
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
        if device.rolls_over:  # a high word that was never heard, or changed unheard, cannot be guessed
            lines.append(f"fcnt_up = {starts[i] - 1}")
        yield "\n".join(lines) + "\n\n"


def first_counters(traffic: RadioTraffic) -> dict[int, int]:
    """The first counter that each device uses, by its number."""
    uplinks = traffic.air.kind == Frames.UPLINK
    pairs = zip(traffic.air.device[uplinks].tolist(), traffic.air.counter[uplinks].tolist(), strict=True)
    return dict(reversed(list(pairs)))  # each device's uplinks stand in order


def heard(traffic: RadioTraffic) -> Iterator[HeardFrame]:
    """Every reception in order of arrival, as in the file."""
    arrivals = traffic.receptions
    texts = [_frame(frame) for frame in traffic.frames]
    times = traffic.air.time_ms[arrivals.transmission]
    columns = (traffic.truth.frame, arrivals.gateway, arrivals.at_ms, times, arrivals.rssi, arrivals.snr)
    numbers = (arrivals.frequency_hz, arrivals.data_rate, arrivals.xtime)
    rows = zip(*(column.tolist() for column in columns + numbers), strict=True)
    for frame, gateway, at_ms, time_ms, rssi, snr, frequency, data_rate, xtime in rows:
        seconds = f"{time_ms // 1000}.{time_ms % 1000:03d}"
        message = (
            f'{texts[frame]},"RefTime":{seconds},"DR":{data_rate},"Freq":{frequency},"upinfo":{{"rctx":0,'
            f'"xtime":{xtime},"gpstime":0,"fts":-1,"rssi":{rssi},"snr":{snr},"rxtime":{seconds}}}}}'
        )
        yield HeardFrame(traffic.world.gateways[gateway], at_ms, message, xtime)


def signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _frame(frame: Frame) -> str:
    if isinstance(frame, DataUp):
        return (
            f'{{"msgtype":"updf","MHdr":{frame.mhdr},"DevAddr":{signed(frame.dev_addr)},"FCtrl":{frame.fctrl},'
            f'"FCnt":{frame.fcnt},"FOpts":"{frame.fopts.hex().upper()}",'
            f'"FPort":{-1 if frame.fport is None else frame.fport},'
            f'"FRMPayload":"{frame.payload.hex().upper()}","MIC":{signed(frame.mic)}'
        )
    return (
        f'{{"msgtype":"jreq","MHdr":{frame.mhdr},"JoinEui":"{dashed(frame.join_eui)}",'
        f'"DevEui":"{dashed(frame.dev_eui)}","DevNonce":{frame.dev_nonce},"MIC":{signed(frame.mic)}'
    )


RECEPTIONS: Final = "receptions.jsonl"
DEVICES: Final = "devices.toml"
TRUTH: Final = "truth/receptions.jsonl"
ORDER: Final = ["station", "at_ms", "message"]
LINE_BYTES_MAX: Final = 16_384
"""The longest line that is read; our messages have less than a kilobyte."""


def write(traffic: RadioTraffic, folder: str | Path) -> None:
    """Write traffic, registry and truth into a folder, which must not exist or be empty."""
    with whole_folder(Path(folder), "folder") as whole:
        (whole / "truth").mkdir()
        lines = heard(traffic)
        _write(whole / RECEPTIONS, (f'{{"station":"{s}","at_ms":{at},"message":{text}}}\n' for s, at, text, _ in lines))
        _write(whole / DEVICES, registry(traffic))
        _write(whole / TRUTH, map(as_json, truth_lines(traffic)))
        devices = ({**row._asdict(), "dev_eui": f"{row.dev_eui:016x}"} for row in traffic.truth.devices)
        _write(whole / "truth/devices.jsonl", (json.dumps(row) + "\n" for row in devices))
        _write(whole / "truth/plan.json", [json.dumps(asdict(traffic.plan), indent=2), "\n"])


def read(folder: str | Path) -> Iterator[HeardFrame]:
    """The lines of a folder's traffic; `BadInput` names the file and the line."""
    file = Path(folder) / RECEPTIONS
    if not file.is_file():
        raise Misuse(f"{file}: is not there: 'onefold lorawan simulate' makes such a folder", folder=str(folder))
    with file.open("rb") as opened:
        number = 0
        while text := opened.readline(LINE_BYTES_MAX):
            number += 1
            try:
                line = json.loads(text)
                station, at_ms, xtime = line["station"], line["at_ms"], line["message"]["upinfo"]["xtime"]
                if len(station) != 16 or int(station, 16) < 0 or (type(at_ms), type(xtime)) != (int, int):
                    raise ValueError(station)
                # The text as it is: serialising it again would cost as much as parsing it.
                message = text.partition(b'"message":')[2].rstrip()[:-1] if [*line] == ORDER else None
                yield HeardFrame(station, at_ms, message.decode() if message else json.dumps(line["message"]), xtime)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise BadInput(f"{file}:{number}: is no reception: {text[:80]!r}") from error


def _write(file: Path, texts: Iterable[str]) -> None:
    with file.open("w", encoding="utf-8") as out:
        out.writelines(texts)
