"""Round places on an axis: of numbers, of time, and of spans of time on a logarithmic one."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from onefold.report.quantities import brief, moment, span

TIME_STEPS: Final = tuple(
    unit * n
    for unit, times in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 30, 90, 365, 3_650)),
    )
    for n in times
)
SPAN_TICKS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)
"""Where a span of time is labelled: milliseconds, seconds, minutes, hours, days."""

Tick = tuple[float, str]


def ticks(low: int, high: int, time: bool, most: int) -> list[Tick]:
    """At most so many round places from low to high, with their labels.

    >>> ticks(0, 95, time=False, most=5)
    [(0, '0'), (20, '20'), (40, '40'), (60, '60'), (80, '80')]
    >>> [label for _, label in ticks(1_700_000_000_000, 1_700_003_600_000, time=True, most=4)]
    ['22:15', '22:30', '22:45', '23:00']
    >>> [label for _, label in ticks(1_000_000, 1_000_250, time=False, most=3)]  # which in short would be one number
    ['1,000,000', '1,000,100', '1,000,200']
    """
    step = _step(max(1, high - low) / max(1, most), time)
    first = -(-low // step) * step
    places = list(range(first, high + 1, step))[: 4 * most]
    labels = [_label(place, step) if time else brief(place) for place in places]
    if not time and len(set(labels)) < len(labels):
        labels = [f"{place:,}" for place in places]
    return list(zip(places, labels, strict=True))


def _step(least: float, time: bool) -> int:
    if time:
        return next((step for step in TIME_STEPS if step >= least), int(least) + 1)
    size = 10 ** max(0, math.floor(math.log10(least)) if least > 0 else 0)
    return int(next(size * n for n in (1, 2, 5, 10) if size * n >= least))


def _label(ms: int, step: int) -> str:
    """As much of a time as the step asks for."""
    try:
        when = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return moment(ms)
    if step >= 86_400_000:
        return f"{when:%Y-%m-%d}"
    if step >= 60_000:
        return f"{when:%m-%d}" if when.hour == when.minute == 0 else f"{when:%H:%M}"
    return f"{when:%H:%M:%S}" if step >= 1_000 else f"{when:%S}.{when.microsecond // 1000:03}"


def logarithmic(highest: float, left: float, width: float) -> Callable[[float], float]:
    """Where a span of time stands on an axis whose every doubling is as long; 0 is its left end."""
    whole = math.log2(max(1.0, highest) + 1)
    return lambda value: left + math.log2(max(0.0, value) + 1) / whole * width


def span_ticks(highest: float, room: Callable[[float], float], apart: float) -> list[Tick]:
    """The labelled places of such an axis, no nearer to each other than ``apart``."""
    kept: list[Tick] = []
    for value in SPAN_TICKS:
        if value <= highest and (not kept or room(value) - room(kept[-1][0]) >= apart):
            kept.append((value, span(value)))
    return kept
