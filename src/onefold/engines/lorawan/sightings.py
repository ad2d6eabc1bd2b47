"""Who heard a key: the memory of level 1.

An entry says which station was first, and when it was heard first and last. It expires: *sliding*, when it was not
heard for ``expiry_ms`` (each hit begins the time anew, as in the ADR); or *fixed*, ``expiry_ms`` after it was first
heard. A key that comes at the very moment of expiry is new.

Entries stand in the order in which they expire, so what is expired is in front and is dropped as time goes. When there
is no more room the front one goes before its time: then a miss may be a mistake until it would have expired, and
`forgot` says so. Time never falls: an earlier one counts as the latest that was seen.

Cost: O(1) amortised, some 300 bytes per entry.
"""

from collections import OrderedDict
from typing import NamedTuple

from onefold.errors import Misuse


class Sighting(NamedTuple):
    """What is remembered of a key."""

    station: str
    """The first station."""
    since_ms: int
    """When it was heard first."""
    last_ms: int
    """When it was heard last, by any station."""
    own_ms: int
    """When it was heard last by the first station, as the clock said then, also if that was set back before."""


class Sightings:
    """The keys that were heard and are not expired.

    >>> sightings = Sightings(expiry_ms=60_000)
    >>> sightings.see(b"key", "a", 0), sightings.see(b"key", "b", 59_999).station, sightings.see(b"key", "b", 119_999)
    (None, 'a', None)
    """

    __slots__ = ("_forgot_until_ms", "_heard", "_now_ms", "entries_max", "evicted", "expiry_ms", "sliding")

    # Expiry: 60 s sliding is the ADR's. Entries: a minute at 16,000 frames/s, far above one server's radio traffic.
    def __init__(self, *, expiry_ms: int = 60_000, sliding: bool = True, entries_max: int = 1_000_000) -> None:
        if expiry_ms < 1:
            raise Misuse(f"expiry_ms is {expiry_ms}, must be at least 1", expiry_ms=expiry_ms)
        if entries_max < 1:
            raise Misuse(f"entries_max is {entries_max}, must be at least 1", entries_max=entries_max)
        self.expiry_ms = expiry_ms
        self.sliding = sliding
        self.entries_max = entries_max
        self.evicted = 0
        self._heard: OrderedDict[bytes, Sighting] = OrderedDict()
        self._now_ms: int | None = None
        self._forgot_until_ms: int | None = None

    def __len__(self) -> int:
        return len(self._heard)

    def see(self, key: bytes, station: str, now_ms: int) -> Sighting | None:
        """What was remembered of this key before now; None if it is new. From now on it is remembered."""
        clock_ms = now_ms
        now_ms = self._pass_time(now_ms)
        before = self._heard.get(key)
        if before is None:
            if len(self._heard) >= self.entries_max:
                self._evict()
            self._heard[key] = Sighting(station, now_ms, now_ms, clock_ms)
            return None
        own_ms = clock_ms if station == before.station else before.own_ms
        self._heard[key] = Sighting(before.station, before.since_ms, now_ms, own_ms)
        if self.sliding:
            self._heard.move_to_end(key)
        return before

    def forget(self, key: bytes) -> None:
        """Take back a sighting: the frame was refused, and what is refused leaves no trace."""
        self._heard.pop(key, None)

    def forgot(self, now_ms: int) -> bool:
        """Could a miss be due to an entry that went before its time?"""
        if self._forgot_until_ms is None:
            return False
        return max(now_ms, self._now_ms or now_ms) < self._forgot_until_ms

    def _pass_time(self, now_ms: int) -> int:
        """Drop what is expired. All that is left has not."""
        if self._now_ms is not None and now_ms < self._now_ms:
            now_ms = self._now_ms
        self._now_ms = now_ms
        heard = self._heard
        while heard:
            key = next(iter(heard))
            if self._expires_ms(heard[key]) > now_ms:
                break
            del heard[key]
        return now_ms

    def _evict(self) -> None:
        _, gone = self._heard.popitem(last=False)
        self.evicted += 1
        # The front one expires first, and those that went before it had expired earlier still.
        self._forgot_until_ms = self._expires_ms(gone)

    def _expires_ms(self, sighting: Sighting) -> int:
        return (sighting.last_ms if self.sliding else sighting.since_ms) + self.expiry_ms
