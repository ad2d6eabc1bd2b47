"""Idempotency keys: the memory of senders that have no sequence, for as long as they are expected to retry.

A key is remembered with the digest of its payload for ``keys_ms`` after the time of its record. Keys stand in the
order of the log, and their times never fall, so the old ones are in front and expiry takes them from there. Time only
passes with the records: a question about the present looks past expired keys, but removes none, or the memory would
not be a function of the log.

Clocks can be wrong. An expired key is removed only when its room is needed: if the clock that said so was ahead, it is
known again when the clock comes back. And a key's time never lies ahead of the present: when the clock is set back,
younger keys take the present's time, so that none is remembered for longer than ``keys_ms`` from then on.

Cost: O(1) amortised per key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from onefold.engines.producers.answers import CONFLICT, IN_FLIGHT, KEYS_FULL, KNOWN_KEY, NEW, Pushed
from onefold.engines.producers.records import NO_DIGEST


class Stored(NamedTuple):
    """What is remembered of a key."""

    time_ms: int
    digest: int


class Keys:
    """The keys that the log holds and that are not expired.

    >>> keys = Keys(count_max=100, ms=1000)
    >>> keys.store("a", 7, 5000)
    >>> keys.get("a", 5999), keys.get("a", 6000)
    (Stored(time_ms=5000, digest=7), None)
    """

    __slots__ = ("_stored", "count_max", "ms")

    def __init__(self, count_max: int, ms: int) -> None:
        self.count_max = count_max
        self.ms = ms
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def items(self) -> list[tuple[str, Stored]]:
        """All keys with what is remembered of them, oldest first."""
        return list(self._stored.items())

    def get(self, key: str, now_ms: int) -> Stored | None:
        """What is remembered of a key; None if it is unknown or expired."""
        stored = self._stored.get(key)
        return None if stored is None or stored.time_ms + self.ms <= now_ms else stored

    def judge(self, key: str, digest: int, now_ms: int, pending: Mapping[str, int]) -> Pushed:
        """Is a message with this key stored, being written (among ``pending``), or new?"""
        stored = self.get(key, now_ms)
        if stored is not None:
            return KNOWN_KEY if stored.digest == digest or NO_DIGEST in (stored.digest, digest) else CONFLICT
        if key in pending:
            return IN_FLIGHT
        return KEYS_FULL if self._full(len(pending), now_ms) else NEW

    def _full(self, pending: int, now_ms: int) -> bool:
        over = len(self._stored) + pending - self.count_max
        if over < 0:
            return False
        # So many of the oldest, and one more, must have expired to make room: it is enough to look at the last of them.
        last = next(islice(self._stored.values(), over, None), None)
        return last is None or last.time_ms + self.ms > now_ms

    def store(self, key: str, digest: int, time_ms: int) -> None:
        """The log holds this key."""
        if self._stored:
            time_ms = max(time_ms, next(reversed(self._stored.values())).time_ms)
        self._stored.pop(key, None)
        while len(self._stored) >= self.count_max and next(iter(self._stored.values())).time_ms + self.ms <= time_ms:
            self._stored.popitem(last=False)
        self._stored[key] = Stored(time_ms, digest)

    def set_clock(self, ahead_ms: int, now_ms: int) -> None:
        """The clock was set ahead by so much, or back (0), to the present."""
        for key, (time_ms, digest) in self._stored.items():
            self._stored[key] = Stored(min(time_ms + ahead_ms, now_ms), digest)

    def restore(self, key: str, digest: int, time_ms: int) -> None:
        """Put back what a snapshot holds, oldest first; nothing expires."""
        self._stored[key] = Stored(time_ms, digest)

    def clear(self) -> None:
        """Forget all keys."""
        self._stored.clear()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._stored == other._stored

    __hash__ = None  # type: ignore[assignment] # it changes
