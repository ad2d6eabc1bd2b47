"""How a topic remembers, its limits, and what time it is there."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import time_ns
from typing import Final, TypeAlias

from onefold.engines.producers.bounds import (
    DIGESTS_MAX,
    GAP_COUNT_MAX,
    KEYS_MAX,
    KEYS_MS,
    PRODUCERS_MAX,
    MemoryKind,
    Settings,
)

Clock: TypeAlias = Callable[[], int]


def wall_ms() -> int:
    """Unix time in milliseconds; it may be set ahead or back at any moment."""
    return time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Milliseconds that have passed since some moment; nobody can set it, and it counts a machine's sleep too."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


STEP_MAX_MS: Final = 10_000
"""A wall clock that differs by more from what has passed was set. ntpd slews up to 0.128 s and steps beyond; this
leaves room for smeared leap seconds and machines that stall."""
STEPOUT_MS: Final = 300_000
"""A clock that was set is believed when it has stayed so for so long: ntpd's stepout."""


class TopicTime:
    """The time of a topic: it follows the wall clock, but not at once when that is set.

    Time passes as ``elapsed_ms`` says. The wall clock is followed while it agrees with that. When it does not it was
    set, or is wrong: the difference is shown (`off_ms`), counted (`steps`) and not believed until it has lasted for
    `STEPOUT_MS`; then it is `due`, and `follow` takes it. So a single reading 70 years ahead changes nothing. What is
    not seen is what a clock did while nobody ran the topic: it begins at the wall clock's time, or at that of the last
    record where the wall clock is behind it.

    >>> time = TopicTime(0, 1_000, 0)
    >>> time.read(9_999_000, 100), time.off_ms  # one wild reading
    (1100, 9997900)
    >>> time.read(1_200, 200), time.off_ms
    (1200, 0)
    """

    def __init__(self, last_ms: int, wall_ms: int, elapsed_ms: int) -> None:
        self.time_ms = max(last_ms, wall_ms)
        self.off_ms = 0
        """How far the wall clock is ahead of the topic's time; 0 while it is followed."""
        self.steps = 0
        """How often the wall clock was seen to be set."""
        self._elapsed_ms = elapsed_ms
        self._since_ms: int | None = None
        self.read(wall_ms, elapsed_ms)

    def read(self, wall_ms: int, elapsed_ms: int) -> int:
        """What time it is; it never falls."""
        passed = max(0, elapsed_ms - self._elapsed_ms)
        self._elapsed_ms = elapsed_ms
        off = wall_ms - self.time_ms - passed
        if abs(off) <= STEP_MAX_MS:
            self.time_ms = max(self.time_ms, wall_ms)
            self._since_ms, self.off_ms = None, 0
            return self.time_ms
        if self._since_ms is None or abs(off - self.off_ms) > STEP_MAX_MS:
            self._since_ms = elapsed_ms
            self.steps += 1
        self.time_ms += passed
        self.off_ms = off
        return self.time_ms

    @property
    def due(self) -> bool:
        """Has the wall clock stayed where it was set to for long enough to be believed?"""
        return self._since_ms is not None and self._elapsed_ms - self._since_ms >= STEPOUT_MS

    def follow(self) -> None:
        """Take the wall clock's time."""
        self.time_ms += self.off_ms
        self._since_ms, self.off_ms = None, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """How a topic remembers, and its limits."""

    deduplicate: bool = True
    """Of a new topic; afterwards `Topic.switch` changes it."""
    memory: MemoryKind = "highest"
    """Of a new topic; it keeps it for ever."""
    producers_max: int = PRODUCERS_MAX
    gap_count_max: int = GAP_COUNT_MAX
    digests_max: int = DIGESTS_MAX
    keys_max: int = KEYS_MAX
    keys_ms: int = KEYS_MS
    jump_max: int | None = None
    """A sequence further above the highest of its producer is rejected; None: any is taken, as published."""
    idle_ms: int | None = None
    """Producers not heard from for so long are forgotten down to a floor; None: never."""
    snapshot_entries: int = 100_000
    """A snapshot after so many records: half a second of reading at the next start. (PIP-6 has 1,000.)"""
    snapshot_ms: int = 60_000
    retain_bytes: int | None = None
    retain_ms: int | None = None
    pending_bytes_max: int = 64 << 20
    """Payloads that wait to be stored; beyond, `Busy`."""
    message_bytes_max: int = 1 << 20

    def of_memory(self) -> Settings:
        """The arguments of `Sequences`."""
        return {
            "memory": self.memory,
            "producers_max": self.producers_max,
            "gap_count_max": self.gap_count_max,
            "digests_max": self.digests_max,
            "keys_max": self.keys_max,
            "keys_ms": self.keys_ms,
            "jump_max": self.jump_max,
        }
