"""How a topic remembers, its limits, and what time it is there."""

from collections.abc import Callable
from dataclasses import dataclass
from time import time_ns
from typing import TypeAlias

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
    """What the clock on the wall says, in milliseconds since 1970."""
    return time_ns() // 1_000_000


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
        }
