"""Waiting for answers: many who wait are one question to the store, asked again and again.

The answer may come through another desk on another machine, so the store is what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from onefold.errors import StoreFailed
from onefold.services.outbox.desk import ANSWERED, Slot

POLL_S: Final = 0.05
"""Between two questions: what an answer may come too late by."""
ASKED_MAX: Final = 500
"""Ids in one question; the others' turn comes in the same round."""

Look = Callable[[Sequence[str]], Awaitable[list[Slot | None]]]


class Waiting:
    """All who wait for an answer; lives on one event loop."""

    def __init__(self, look: Look, wait_s_max: float) -> None:
        self._look = look
        self._wait_s_max = wait_s_max
        self._waiters: dict[str, set[asyncio.Future[Slot | None]]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    async def answer(self, request: str, slot: Slot, wait_s: float) -> Slot:
        """The slot when it is answered, else as it was, after so many seconds at most."""
        seconds = min(wait_s, self._wait_s_max)
        if slot.status == ANSWERED or seconds <= 0 or self._closed:
            return slot
        future: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(request, set()).add(future)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            return await asyncio.wait_for(future, seconds) or slot
        except TimeoutError:
            return slot
        finally:
            self._waiters.get(request, set()).discard(future)
            if not self._waiters.get(request, True):
                del self._waiters[request]

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed = True
        for request in list(self._waiters):
            self._tell(request, None)

    async def _ask(self) -> None:
        while self._waiters:
            await asyncio.sleep(POLL_S)
            ids = list(self._waiters)
            for first in range(0, len(ids), ASKED_MAX):
                await self._ask_for(ids[first : first + ASKED_MAX])

    async def _ask_for(self, ids: Sequence[str]) -> None:
        try:
            slots = await self._look(ids)
        except StoreFailed:  # it may be back in a moment; who waits has a limit anyway
            return
        for request, slot in zip(ids, slots, strict=True):
            if slot is None or slot.status == ANSWERED:  # gone: there is nothing more to wait for
                self._tell(request, slot)

    def _tell(self, request: str, slot: Slot | None) -> None:
        for future in self._waiters.get(request, ()):
            if not future.done():
                future.set_result(slot)
