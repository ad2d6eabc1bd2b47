"""Clocks, passed to services and stores as functions; rules never read one."""

import time
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]
SECONDS_BELOW: Final = 100_000_000_000
"""Milliseconds until March 1973: if all times are below it, they are probably seconds."""


def wall_ms() -> int:
    """Unix time in milliseconds; it may be set forward or back at any moment."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Milliseconds of a monotonic clock that also counts the time when the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
