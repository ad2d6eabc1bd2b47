"""Numbered readings of devices that reboot, with the truth about them.

A device counts its readings from 0, and from 0 again after each reboot. The times of readings rise, and copies share
them; copies arrive later, some readings arrive late, some never. Readings right before and after a reboot may be lost
too, which cannot be detected. So the truth says which lost readings can be found: those between two delivered ones of
one epoch, and those before the first delivered one of the first epoch.

Rows, copies and losses add up as those of chains do (`Plan`). Cost: the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np
import pyarrow as pa

from onefold.errors import Misuse
from onefold.testing.faults import Faults, Plan, check, plan
from onefold.testing.traffic import BEGIN_MS, DISTANCE_MAX_MS, SPAN_MAX_MS, Bools, Ints, Made, Truth, spread

EPOCH_MIN: Final = 16
"""The least number of readings between two reboots."""
NOT_THEIRS: Final = ("late_heads", "no_previous", "poisoned", "malformed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What to make.

    >>> made = make_readings(Readings(rows=1000, devices=4, reboots=5))
    >>> len(made.messages), made.messages.column_names
    (1000, ['device', 'ts', 'seq', 'temperature', 'arrival', 'offset'])
    """

    seed: Annotated[int, (0, 2**63 - 1)] = 1
    rows: Annotated[int, (1, 50_000_000)] = 10_000
    """Delivered rows, exactly: originals and copies."""
    devices: Annotated[int, (1, 1_000_000)] = 40
    reboots: Annotated[int, (0, 10_000_000)] = 80
    interval_ms: Annotated[int, (2, 86_400_000)] = 1_000
    """Mean time between two readings of a device."""
    faults: Faults = field(default_factory=lambda: Faults(late_heads=0))

    def __post_init__(self) -> None:
        check(self)
        for name in NOT_THEIRS:
            if getattr(self.faults, name):
                raise Misuse(f"{name} is {getattr(self.faults, name)}, which readings of devices do not have: 0")
        if self.rows * self.interval_ms > SPAN_MAX_MS:
            raise Misuse(f"interval_ms is {self.interval_ms}, must be at most {SPAN_MAX_MS // self.rows}")
        counts = plan(self.rows, self.devices, self.faults)
        if self.reboots > (room := len(_places(self._lengths(counts)))):
            raise Misuse(
                f"reboots is {self.reboots}, must be at most {room} for so many readings", reboots=self.reboots
            )

    def _lengths(self, counts: Plan) -> Ints:
        return spread(np.random.default_rng(self.seed), counts.originals + counts.lost, self.devices, 0.0)


def _places(lengths: Ints) -> Ints:
    """The readings that may begin a new epoch."""
    starts = np.cumsum(lengths) - lengths
    index = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    rest = np.repeat(lengths, lengths) - index
    return np.flatnonzero((index > 0) & (index % EPOCH_MIN == 0) & (rest >= EPOCH_MIN))


def make_readings(readings: Readings) -> Made:
    """Make readings of devices whose counters restart, with copies and losses, and the truth about them."""
    rng, faults = np.random.default_rng(readings.seed), readings.faults
    counts = plan(readings.rows, readings.devices, faults)
    lengths = readings._lengths(counts)
    starts, device = np.cumsum(lengths) - lengths, np.repeat(np.arange(len(lengths)), lengths)
    reboots = np.sort(rng.choice(_places(lengths), readings.reboots, replace=False))
    row = np.arange(len(device))
    begins = np.zeros(len(device), np.bool_)
    begins[starts] = begins[reboots] = True
    first = np.maximum.accumulate(np.where(begins, row, 0))
    elapsed = np.cumsum(rng.integers(1, 2 * readings.interval_ms, len(device)))  # no two of a device at one time
    time, sequence = BEGIN_MS + elapsed - elapsed[starts][device], row - first
    lost = np.zeros(len(device), np.bool_)
    lost[rng.choice(len(device), counts.lost, replace=False)] = True
    originals = np.flatnonzero(~lost)
    copied = rng.choice(originals, counts.copied, replace=False)
    again = rng.choice(copied, counts.copies - counts.copied) if counts.copies else copied
    arrival = time + rng.integers(1, DISTANCE_MAX_MS, len(lengths), endpoint=True)[device]
    late = rng.random(len(device)) < faults.reorder
    arrival[late] += rng.integers(0, faults.reorder_ms, int(late.sum()), endpoint=True)
    source = np.concatenate([originals, copied, again])
    arrivals = arrival[source]
    arrivals[len(originals) :] += rng.integers(0, faults.copy_delay_ms, len(copied) + len(again), endpoint=True)
    order = np.argsort(arrivals, kind="stable")
    rows, is_copy = source[order], order >= len(originals)
    names = pa.array([f"device-{i:03}" for i in range(len(lengths))])
    messages = {
        "device": names.take(pa.array(device[rows])),
        "ts": pa.array(time[rows]),
        "seq": pa.array(sequence[rows]),
        "temperature": pa.array(180 + rng.integers(0, 80, len(device))[rows]),
        "arrival": pa.array(arrivals[order]),
        "offset": pa.array(np.arange(len(rows))),
    }
    verdict = pa.array(["FIRST", "REPEAT"]).take(pa.array(is_copy.astype(np.int8)))
    findable, missing = _findable(begins, np.isin(row, starts), lost)

    def named(at: Ints, **more: pa.Array) -> pa.Table:
        columns = {"device": names.take(pa.array(device[at])), "ts": pa.array(time[at]), "seq": pa.array(sequence[at])}
        return pa.table(columns | more)

    after, none = missing
    below = np.maximum.accumulate(np.where(lost, -1, row))[after - 1]
    truth = Truth(
        rows=pa.table({"offset": messages["offset"], "verdict": verdict}),
        lost=named(np.flatnonzero(lost), can_be_found=pa.array(findable[lost])),
        missing=pa.table({
            "device": names.take(pa.array(device[after])),
            "lower_timestamp": pa.array(time[below], mask=none),
            "lower_sequence": pa.array(sequence[below], mask=none),
            "upper_sequence": pa.array(sequence[after] - 1),
        }),
        reboots=named(reboots),
    )  # fmt: skip
    return Made(readings, pa.table(messages), truth)


def _findable(begins: Bools, is_device: Bools, lost: Bools) -> tuple[Bools, tuple[Ints, Bools]]:
    """Which lost readings can be found; and the delivered ones above them, with whether none is below."""
    row = np.arange(len(lost))
    starts = np.flatnonzero(begins)
    epoch, since = np.cumsum(begins) - 1, np.maximum.accumulate(np.where(begins, row, 0))
    last = np.maximum.reduceat(np.where(lost, -1, row), starts)[epoch]
    below = np.maximum.accumulate(np.where(lost, -1, row))
    is_first = is_device[since]
    findable = lost & (row < last) & ((below >= since) | is_first)
    after = np.flatnonzero(~lost[1:] & findable[:-1] & ~begins[1:]) + 1
    return findable, (after, below[after - 1] < since[after])
