"""Which requests end when: the pages of the desk's diary, so that what is expired can be found and removed.

A store finds entities by their name alone. So the desk keeps pages, entities of its own: each has the ids of the
requests that end within the same ten seconds, spread over a few leaves so that many writers do not meet at one. An id
is on its page before the request is made. A cursor says up to which page all is removed.

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
TRIES_MAX: Final = 10
MARK: Final = "~"
"""Begins the names of pages: no id does."""


class Pages:
    """The diary of one desk."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._begun = False

    def key(self, request: str, until_ms: int) -> Key:
        """The leaf that a request belongs on."""
        return self._leaf(until_ms // PAGE_MS, crc32(request.encode()) % LEAVES)

    def begin(self, entities: EntityStore, now_ms: int) -> None:
        """See that there is a cursor, once: nothing that is made from now on ends before now."""
        if self._begun:
            return
        cursor = entities.load([self._cursor])[0]
        if cursor.state is None:
            entities.persist([cursor.changed({"mark": now_ms // PAGE_MS - 1})])  # or somebody else did
        self._begun = True

    def expire(self, entities: EntityStore, before_ms: int) -> int:
        """Remove the requests that ended before this time; how many there were."""
        cursor = entities.load([self._cursor])[0]
        first, last = mark_of(cursor.state) + 1, before_ms // PAGE_MS - 1
        if cursor.state is None or first > last:
            return 0
        removed = 0
        for keys in _parts([self._leaf(page, leaf) for page in range(first, last + 1) for leaf in range(LEAVES)]):
            leaves = [leaf for leaf in entities.load(keys) if leaf.state is not None]
            requests = [Key(self._endpoint, request) for leaf in leaves for request in leaf.state["ids"]]
            removed += sum(_removed(entities, part) for part in _parts(requests))
            _removed(entities, [leaf.key for leaf in leaves])
        entities.persist([cursor.changed({"mark": last})])  # if somebody else was faster, so much the better
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
    raise StaleWrite(f"{left[0]}: somebody else wrote it in each of {TRIES_MAX} tries")


def _parts(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    return (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE))
