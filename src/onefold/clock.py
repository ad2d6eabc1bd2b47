"""Clocks, as functions that a service or a store is given; rules never look at one."""

import time
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]
SECONDS_BELOW: Final = 100_000_000_000
"""Milliseconds until March 1973: times that all lie before were hardly meant as such."""


def wall_ms() -> int:
    """Unix time in milliseconds; it may be set ahead or back at any moment."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Milliseconds since some moment: nobody can set this clock, and it counts a machine's sleep too."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
