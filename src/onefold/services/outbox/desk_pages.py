"""Which requests end when: the pages of the desk's diary, so that what is expired can be found and removed.

A store finds entities by their name alone. So the desk keeps pages, entities of its own: each has the ids of the
requests that end within the same ten seconds, spread over a few leaves so that many writers do not meet at one. An id
is on its page before the request is made. A cursor says up to which page all is removed, and from which time on ids can
be taken: a desk whose window becomes longer does not remember what was forgotten before.

A clock that was ahead for a while moves both into the future. When it is back, the cursor goes back too, and a time
that is still to come becomes now: what lies before is forgotten, as it would be, and what is made from now on is taken.

Cost: one more write for each request, of some 40 bytes for each id on the same leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from onefold.engines.outbox import Entity, Key, mark_of
from onefold.errors import StaleWrite
from onefold.ports import EntityStore

PAGE_MS: Final = 10_000
LEAVES: Final = 16
AT_ONCE: Final = 500
"""Entities that are read or written in one call."""
PAGES_MAX: Final = 8_640
"""That are gone through in one go: a day. After a month of silence, or of a wrong clock, the next goes on."""
BACK_MS: Final = 7 * 86_400_000
"""So far a cursor goes back that a wrong clock put into the future: a desk is tended every minute, unless it is off."""
TRIES_MAX: Final = 10
MARK: Final = "~"
"""Begins the names of pages: no id does."""


class Pages:
    """The diary of one desk."""

    def __init__(self, endpoint: str, window_ms: int) -> None:
        self._endpoint = endpoint
        self._window_ms = window_ms
        self._oldest_ms: int | None = None

    def key(self, request: str, until_ms: int) -> Key:
        """The leaf that a request belongs on."""
        return self._leaf(until_ms // PAGE_MS, crc32(request.encode()) % LEAVES)

    def begin(self, entities: EntityStore, now_ms: int) -> int:
        """See that there is a cursor, once: nothing that is made from now on ends before now. Ids must be younger than
        what this returns."""
        if self._oldest_ms is not None and self._oldest_ms <= now_ms:
            return self._oldest_ms
        for _ in range(TRIES_MAX):
            cursor = entities.load([self._cursor])[0]
            kept = {"mark": now_ms // PAGE_MS - 1, "window_ms": self._window_ms, "oldest_ms": 0, **(cursor.state or {})}
            if kept["window_ms"] < self._window_ms:
                kept["oldest_ms"] = max(kept["oldest_ms"], now_ms - kept["window_ms"])
            kept["window_ms"] = self._window_ms
            kept["oldest_ms"] = min(kept["oldest_ms"], now_ms)
            if kept == cursor.state or entities.persist([cursor.changed(kept)])[0]:
                self._oldest_ms = int(kept["oldest_ms"])
                return self._oldest_ms
        raise _contended(self._cursor)

    def expire(self, entities: EntityStore, now_ms: int, slack_ms: int) -> int:
        """Remove the requests that ended so long ago, of a day at most; how many there were."""
        before_ms = now_ms - slack_ms
        cursor = entities.load([self._cursor])[0]
        first = mark_of(cursor.state) + 1
        if first > now_ms // PAGE_MS + 1:
            first = (before_ms - BACK_MS) // PAGE_MS
        last = min(before_ms // PAGE_MS, first + PAGES_MAX) - 1
        if cursor.state is None or first > last:
            return 0
        removed, step = 0, AT_ONCE // LEAVES
        for start in range(first, last + 1, step):
            pages = range(start, min(start + step, last + 1))
            keys = [self._leaf(page, leaf) for page in pages for leaf in range(LEAVES)]
            leaves = [leaf for leaf in entities.load(keys) if leaf.state is not None]
            requests = [Key(self._endpoint, request) for leaf in leaves for request in leaf.state["ids"]]
            removed += sum(_removed(entities, part) for part in _parts(requests))
            _removed(entities, [leaf.key for leaf in leaves])
        entities.persist(
            [cursor.changed({**cursor.state, "mark": last})]
        )  # if somebody else was faster, so much the better
        return removed

    @property
    def _cursor(self) -> Key:
        return Key(self._endpoint, f"{MARK}cursor")

    def _leaf(self, page: int, leaf: int) -> Key:
        return Key(self._endpoint, f"{MARK}{page}.{leaf}")


def noted(leaf: Entity, request: str) -> Entity | None:
    """The leaf with this id on it; None: it is there."""
    ids = [] if leaf.state is None else leaf.state["ids"]
    return None if request in ids else leaf.changed({"ids": [*ids, request]})


def _removed(entities: EntityStore, keys: Sequence[Key]) -> int:
    """Remove the states of these; how many had one."""
    removed, left = 0, list(keys)
    for _ in range(TRIES_MAX):
        found = [entity for entity in entities.load(left) if entity.state is not None] if left else []
        done = entities.persist([entity.changed(None) for entity in found]) if found else []
        removed += sum(done)
        left = [entity.key for entity, gone in zip(found, done, strict=True) if not gone]
        if not left:
            return removed
    raise _contended(left[0])


def _contended(key: Key) -> StaleWrite:
    return StaleWrite(f"{key}: somebody else wrote it in each of {TRIES_MAX} tries")


def _parts(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    return (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE))
