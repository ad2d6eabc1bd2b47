"""How long an ordered chain waits, how often it asks and how much it holds.

Each default stands beside its precedent. Waiting and asking are for messages that were only overtaken or lost on the
way; the two bounds are for those that never come.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from onefold.errors import Misuse

Strategy: TypeAlias = Literal["light", "full"]

WAIT_MS = 5_000
"""Streamr client: gapFillTimeout 5000. Most gaps are messages that overtook each other, and close by themselves."""
RETRY_MS = 5_000
"""Streamr client: retryResendAfter 5000."""
REQUESTS_MAX = 5
"""Streamr client: maxGapRequests 5."""
BUFFER_MAX = 10_000
"""Streamr client: no limit, so one lost message can fill the memory. Here as many messages as the detector has gaps."""
GAP_COUNT_MAX = 10_000
"""As the detector's: 10,000 ranges given up stay below 1 MB."""


class Settings(NamedTuple):
    """What the constructor of an ordered chain was told."""

    wait_ms: int
    retry_ms: int
    requests_max: int
    strategy: Strategy
    buffer_max: int
    gap_count_max: int

    @property
    def longest_ms(self) -> int:
        """How far ahead of now the next thing to do can be."""
        return max(1, self.wait_ms, self.retry_ms)

    def checked(self) -> Settings:
        """Return self if every setting makes sense; else raise `Misuse` naming the first that does not."""
        if self.strategy not in ("light", "full"):
            raise Misuse(f'strategy is {self.strategy!r}, must be "light" or "full"', strategy=self.strategy)
        least = {"wait_ms": 0, "retry_ms": 0, "requests_max": 0, "buffer_max": 1, "gap_count_max": 1}
        for name, value in self._asdict().items():
            if name in least and value < least[name]:
                raise Misuse(f"{name} is {value}, must be at least {least[name]}", **{name: value})
        return self
