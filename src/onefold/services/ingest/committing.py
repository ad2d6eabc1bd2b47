"""The asyncio side of the group commit: many requests, one sync.

Judging is quick and is done on the event loop (`Topic.submit`). Storing waits for a disk and is done in a thread
(`Topic.flush`): at most one at a time for a topic, again and again while anybody waits. Whoever comes while one is
under way is stored by the next, so the group grows with the load by itself, and nobody waits for a timer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

from onefold.errors import StoreFailed
from onefold.services.requests import Message, Receipt, Session
from onefold.services.topic import Topic

T = TypeVar("T")
log: Final = logging.getLogger("onefold.ingest")

FAILURE_S: Final = 60
"""How long a failed store counts as a problem: a server that gets no requests because of it could never show that it
works again."""


class Desk:
    """A topic, and the one who commits for all who wait."""

    def __init__(self, name: str, topic: Topic, pool: Executor) -> None:
        self.name = name
        self.topic = topic
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Future[Any], asyncio.Future[Any]]] = []
        self._committer: asyncio.Task[None] | None = None
        self._failure: tuple[float, str] | None = None
        self._switching = asyncio.Lock()

    @property
    def problem(self) -> str | None:
        """What is wrong with it; None: nothing."""
        if self._failure is not None and self._loop.time() - self._failure[0] < FAILURE_S:
            return self._failure[1]
        return self.topic.problem

    def publish(self, producer: str, messages: Sequence[Message], epoch: int | None) -> Awaitable[list[Receipt]]:
        """Judge now; the receipts when it is stored."""
        return self._settled(self.topic.submit(producer, messages, epoch))

    def publish_keyed(self, key: str, payload: bytes) -> Awaitable[Receipt]:
        """Judge now; the receipt when it is stored."""
        return self._settled(self.topic.submit_keyed(key, payload))

    async def connect(self, name: str | None) -> Session:
        """Open a producer's session."""
        return await self._aside(lambda: self.topic.connect(name))

    async def switch(self, deduplicate: bool) -> None:
        """Switch deduplication on or off, unless it is so already: to switch on again would forget."""
        async with self._switching:
            if deduplicate != self.topic.deduplicates:
                await self._aside(lambda: self.topic.switch(deduplicate))

    def _settled(self, future: Future[T]) -> "asyncio.Future[T]":
        answer: asyncio.Future[T] = self._loop.create_future()
        if future.done():  # nothing of it is to be stored
            answer.set_result(future.result())
            return answer
        self._waiting.append((future, answer))
        if self._committer is None:
            self._committer = self._loop.create_task(self._commit())
        return answer

    async def _commit(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                lost: Exception = StoreFailed(f"topic {self.name}: a flush ended without an answer")
                try:
                    await self._loop.run_in_executor(self._pool, self.topic.flush)
                except Exception as error:
                    lost = error
                    log.error("topic %s: %s: %s", self.name, type(error).__name__, error)
                for future, answer in group:
                    self._answer(answer, future, lost)
        finally:
            self._committer = None

    def _answer(self, answer: "asyncio.Future[T]", future: Future[T], lost: Exception) -> None:
        error = future.exception() if future.done() else lost
        self._note(error)
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(future.result())
        else:
            answer.set_exception(error)

    async def _aside(self, ask: Callable[[], T]) -> T:
        """Ask the topic for something that it stores by itself."""
        try:
            result = await self._loop.run_in_executor(self._pool, ask)
        except StoreFailed as error:
            self._note(error)
            raise
        self._note(None)
        return result

    def _note(self, error: BaseException | None) -> None:
        if error is None:
            self._failure = None
        else:
            self._failure = self._loop.time(), str(error)

    async def drain(self) -> None:
        """Wait until nobody waits."""
        while self._committer is not None:
            await asyncio.wait([self._committer])
