"""What radio traffic to make: how many of everything, and how often which thing goes wrong.

The defaults are a small town on a bad day. `QUIET` is the same town when nothing goes wrong: every gateway hears every
frame once. Settings out of range are `Misuse`, and the text names the field and its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onefold.errors import Misuse
from onefold.sim.faults import DAY_MS, Range, check

Strategies: TypeAlias = Literal["drop", "mark", "none", "mixed"]
STRATEGIES: Final = ("drop", "mark", "none")

RETRIES_MAX: Final = 3
"""Confirmed frames are sent again at most so often: what network servers let pass as the same frame."""
RETRY_MS: Final = (2_500, 5_000)
"""Between two transmissions of a confirmed frame: both receive windows have to pass without an answer."""
RECEPTIONS_MAX: Final = 20_000_000
"""Above it the tables of one run no longer fit into a small machine's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioPlan:
    """What to make; a share is one of uplinks unless said otherwise.

    >>> RadioPlan(devices=5, frames=4)
    Traceback (most recent call last):
    onefold.errors.Misuse: devices is 5, must be at most frames, which is 4
    """

    seed: int = 1
    devices: int = 50
    gateways: int = 5
    frames: int = 5_000
    """Uplinks that the devices send, all together; what is sent again, replayed or forged comes on top."""
    interval_ms: int = 60_000
    """Mean time between two uplinks of a device."""
    side_m: int = 10_000
    """The gateways stand in a square of this side."""
    range_m: int = 5_000
    """How far a gateway hears; a device is in the range of one at least."""
    delay_ms: int = 40
    """From a gateway to the server, as a rule."""
    slow_ms: int = 600
    """The same for the last of two or more gateways, which hangs on a mobile link."""
    strategy: Strategies = "mixed"
    """Of all devices; mixed: each has its own."""
    confirmed: float = 0.25
    retries: float = 0.3
    """Share of *confirmed* uplinks whose acknowledgement is missed: sent again, up to three times."""
    retry_ms: int = 0
    """How long a device waits before it sends a confirmed frame again, in the median: half of that to half as much
    again. 0: as soon as both receive windows have passed, 2.5 to 5 s. Stacks that back off wait for minutes."""
    losses: float = 0.02
    """Uplinks that no gateway hears, however often they are sent."""
    fades: float = 0.05
    """Share of *receptions* that fail, one gateway at a time."""
    mirrors: float = 0.01
    """Share of *receptions* that a gateway has twice: same instant, other frequency, much weaker."""
    replays: float = 0.01
    """Recorded by somebody and sent again when the device is further on."""
    forged: float = 0.01
    """Frames on top with a device's address, a counter that fits, and a wrong integrity code."""
    foreign: float = 0.01
    """Frames on top of devices of other networks: in no registry."""
    joins: float = 0.2
    """Share of *devices* that join over the air, once or twice."""
    rollovers: float = 0.1
    """Share of *devices* whose 16-bit counter rolls over on the way."""
    resets: float = 0.1
    """Share of *devices* that restart their counter on the way."""
    shared: float = 0.04
    """Share of *devices* that have the address of another."""

    def __post_init__(self) -> None:
        check(self, RANGES)
        if self.devices > self.frames:
            text = f"devices is {self.devices}, must be at most frames, which is {self.frames}"
            raise Misuse(text, devices=self.devices)
        if self.strategy not in (*STRATEGIES, "mixed"):
            text = f"strategy is {self.strategy!r}, must be one of {', '.join(STRATEGIES)}, mixed"
            raise Misuse(text, strategy=self.strategy)
        if 0 < self.retry_ms < RETRY_MS[0]:
            text = (
                f"retry_ms is {self.retry_ms}, must be 0 or at least {RETRY_MS[0]}: both receive windows have to pass"
            )
            raise Misuse(text, retry_ms=self.retry_ms)
        if (special := self.joins + self.rollovers + self.resets) > 1:
            text = f"joins + rollovers + resets is {special:g}, must be at most 1: each is of other devices"
            raise Misuse(text, joins=self.joins, rollovers=self.rollovers, resets=self.resets)
        if self.frames * self.gateways > RECEPTIONS_MAX:
            most = RECEPTIONS_MAX // self.gateways
            raise Misuse(f"frames is {self.frames}, must be at most {most} for {self.gateways} gateways")

    @property
    def retry_range_ms(self) -> tuple[int, int]:
        """Between two transmissions of a confirmed frame."""
        return (self.retry_ms // 2, self.retry_ms * 3 // 2) if self.retry_ms else RETRY_MS

    @property
    def quiet_ms(self) -> int:
        """What a device leaves between two uplinks at least, so that no slow gateway turns their order round."""
        return 2 * (self.delay_ms + self.slow_ms) + 1_000


RANGES: Final[Mapping[str, Range]] = {
    "seed": (0, 2**63 - 1),
    "devices": (1, 100_000),
    "gateways": (1, 1_000),
    "frames": (1, 10_000_000),
    "interval_ms": (1_000, DAY_MS),
    "side_m": (1, 1_000_000),
    "range_m": (1, 10_000_000),
    "delay_ms": (1, 10_000),
    "slow_ms": (1, 10_000),  # far below the 60 s for which a server remembers a frame
    "confirmed": (0.0, 1.0),
    "retries": (0.0, 1.0),
    "retry_ms": (0, DAY_MS),
    "losses": (0.0, 0.9),
    "fades": (0.0, 0.9),
    "mirrors": (0.0, 1.0),
    "replays": (0.0, 1.0),
    "forged": (0.0, 1.0),
    "foreign": (0.0, 1.0),
    "joins": (0.0, 1.0),
    "rollovers": (0.0, 1.0),
    "resets": (0.0, 1.0),
    "shared": (0.0, 1.0),
}

QUIET: Final = RadioPlan(
    range_m=10_000_000,
    confirmed=0,
    retries=0,
    losses=0,
    fades=0,
    mirrors=0,
    replays=0,
    forged=0,
    foreign=0,
    joins=0,
    rollovers=0,
    resets=0,
    shared=0,
)
"""Every gateway hears every frame, once; make others of it with `dataclasses.replace`."""
