"""How long decisions take: counts by upper bound, as Prometheus wants them, at the price of one bisection each."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class Latency:
    """A histogram.

    >>> latency = Latency((0.1, 1.0))
    >>> for seconds in (0.05, 0.1, 0.3, 7.0):
    ...     latency.note(seconds)
    >>> latency.buckets(), round(latency.sum_s, 2)
    ([('0.1', 2), ('1.0', 3), ('+Inf', 4)], 7.45)
    """

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self._bounds = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """One more took so long."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """How many took at most so long, by bound."""
        found, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
