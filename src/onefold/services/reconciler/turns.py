"""Threads for the work of many peers: of those who wait, whoever has used least is next.

A message can be made so that it takes a tenth of a second to answer. Whoever sends many of these waits longer and
longer behind those who do not; an honest peer waits for what is being done when it comes, and hardly for anything else.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

THREADS: Final = 4
"""At work at the same time. More would only take turns at the interpreter's lock, and keep the event loop from it."""
T = TypeVar("T")


@dataclass(slots=True)
class Account:
    """What one peer has used."""

    used_s: float = 0.0


class Turns:
    """Lives on one event loop; what it calls runs in threads."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, "onefold-reconcile")
        self._free = threads
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def run(self, account: Account, call: Callable[..., T], *values: Any) -> T:
        """Call it in a thread, when it is this peer's turn."""
        loop = asyncio.get_running_loop()
        await self._turn(account)
        began = loop.time()
        try:
            return await self.off(call, *values)
        finally:
            account.used_s += loop.time() - began
            self._free += 1
            self._call_next()

    async def off(self, call: Callable[..., T], *values: Any) -> T:
        """Call it in a thread, at once: for what takes no time."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *values)

    def close(self) -> None:
        """Wait for what is in hand; nothing else is begun."""
        self._pool.shutdown()

    async def _turn(self, account: Account) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (account.used_s, next(self._numbers), turn))
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # called and cancelled at once: the turn is somebody else's
                self._free += 1
                self._call_next()
            raise

    def _call_next(self) -> None:
        while self._free and self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.cancelled():
                self._free -= 1
                turn.set_result(None)
