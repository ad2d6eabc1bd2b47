"""Turns at entities, among the threads of one process.

Two threads at one entity do no harm: one is told so by the store, and tries again. But where a whole queue is about one
entity they would do little else. So a thread takes the entities of a round, and leaves those that another one has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from onefold.engines.outbox.record import Key


class Turns:
    """Who is at which entity. Turns are short, a round each, and nobody waits for one while having another."""

    def __init__(self) -> None:
        self._taken: set[Key] = set()
        self._given = threading.Condition()

    @contextmanager
    def at(self, keys: Sequence[Key], wait_s: float) -> Iterator[set[Key]]:
        """Those of the entities that are free, until this ends; if none is, the first to become so."""
        with self._given:
            self._given.wait_for(lambda: not self._taken.issuperset(keys), wait_s)
            ours = set(keys) - self._taken
            self._taken |= ours
        try:
            yield ours
        finally:
            self._give(ours)

    def _give(self, keys: Iterable[Key]) -> None:
        with self._given:
            self._taken.difference_update(keys)
            self._given.notify_all()
