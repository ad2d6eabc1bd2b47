"""All that is watched: looked at again and again, and whoever listens hears what changed, newest word only.

A listener that is slow misses words in between, never the last; so nothing piles up for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from onefold.errors import Misuse
from onefold.services.console.view import View, Watched, shown

WATCHED_MAX: Final = 64
QUIET_S: Final = 15.0
"""After so long without news a listener gets an empty word: proxies cut silent connections off after a minute."""


class Watch:
    """The newest view of everything that is watched; lives on one event loop."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        names = [each.name for each in watched]
        if not 1 <= len(names) <= WATCHED_MAX:
            raise Misuse(f"{len(names)} runs and servers are given, must be 1 to {WATCHED_MAX}")
        for name in names:
            if names.count(name) > 1:
                raise Misuse(f"{name} is given twice", name=name)
        self.watched = tuple(watched)
        self.views: list[View] = [_unseen(each) for each in watched]
        self._versions = [0] * len(names)
        self._news = asyncio.Condition()
        self._closing = False
        self._pool = ThreadPoolExecutor(min(8, len(names)), thread_name_prefix="onefold-console")

    async def run(self) -> None:
        """Look until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for i in range(len(self.watched)):
                group.create_task(self._look(i))

    async def _look(self, i: int) -> None:
        loop, each = asyncio.get_running_loop(), self.watched[i]
        while True:
            try:
                view = await loop.run_in_executor(self._pool, each.look)
            except Exception as error:  # a view must not end all others
                view = View(name=each.name, kind="run", state="trouble", told=shown(f"{type(error).__name__}: {error}"))
            if view != self.views[i] or not self._versions[i]:
                async with self._news:
                    self.views[i] = view
                    self._versions[i] += 1
                    self._news.notify_all()
            await asyncio.sleep(each.every_s)

    async def listen(self) -> AsyncIterator[list[int]]:
        """Which views are new, again and again: first all of them; an empty list after a long silence."""
        heard = [-1] * len(self.views)
        while not self._closing:
            # Nothing is yielded inside: who is slow to read must not hold what all others wait for.
            async with self._news:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        while not self._closing and self._versions == heard:
                            await self._news.wait()
                new = [i for i, version in enumerate(self._versions) if version != heard[i]]
                heard = list(self._versions)
            yield new

    async def close(self) -> None:
        """Let all listeners go."""
        self._closing = True
        async with self._news:
            self._news.notify_all()

    def end(self) -> None:
        """Look no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _unseen(each: Watched) -> View:
    return View(name=each.name, kind="run", state="waiting", told="not looked at yet")


def now_ms() -> int:
    """The time of this machine: pages tell ages by it, whatever their own clock says."""
    return round(time.time() * 1000)
