"""What all routes share: the topics and their desks, the limits, and the way to an end."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

from onefold.errors import BadInput, Damaged, OnefoldError
from onefold.services.ingest.committing import Desk
from onefold.services.ingest.limits import Budget, Limits
from onefold.services.topic import Topic
from onefold.services.topics import FILE, Topics, topic_folder

THREADS: Final = 16
"""Topics that are written to at the same time; a disk does not get faster by more."""
PROBLEMS_MAX: Final = 100
TEND_S: Final = 10


class UnknownTopic(OnefoldError):
    """Nobody made this topic: 404."""


class Closing(OnefoldError):
    """The server is about to end: 503, try again."""


class Stoppable(Protocol):
    """A websocket, as far as the service knows it."""

    def stop(self) -> None:
        """Answer what was read, then close."""
        ...


class Service:
    """The topics of a folder, for many clients at once. Lives on one event loop."""

    def __init__(self, topics: Topics, limits: Limits, *, create: bool = True) -> None:
        self.topics = topics
        self.limits = limits
        self.create = create
        """Does a publish to an unknown topic make it?"""
        self.budget = Budget(limits.in_hand_bytes_max)
        self.desks: dict[str, Desk] = {}
        self.sockets: set[Stoppable] = set()
        self.closing = False
        self._unopened: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="onefold-ingest")

    async def desk(self, name: str, *, create: bool, deduplicate: bool | None = None) -> Desk:
        """Where this topic is asked; what is not there is made, or `UnknownTopic`."""
        desk = self.desks.get(name)
        if desk is None:
            self.check_open()
            loop = asyncio.get_running_loop()
            topic = await loop.run_in_executor(self._pool, self._open, name, create, deduplicate)
            desk = self.desks.setdefault(name, Desk(name, topic, self._pool))
        return desk

    def _open(self, name: str, create: bool, deduplicate: bool | None) -> Topic:
        if not create and not (topic_folder(self.topics.root, name) / FILE).is_file():
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        defaults = None if deduplicate is None else replace(self.topics.defaults, deduplicate=deduplicate)
        try:
            topic = self.topics.topic(name, create=create, defaults=defaults)
        except BadInput as error:
            self._note(name, error)
            raise Damaged(str(error), topic=name) from error  # it is not the client's input that is bad
        except Exception as error:
            self._note(name, error)
            raise
        self._unopened.pop(name, None)
        return topic

    def _note(self, name: str, error: Exception) -> None:
        if len(self._unopened) < PROBLEMS_MAX and (self.topics.root / name / FILE).is_file():
            self._unopened[name] = str(error)

    def check_open(self) -> None:
        """`Closing` if nothing new is begun any more."""
        if self.closing:
            raise Closing("the server is shutting down")

    def problems(self) -> dict[str, str]:
        """What is wrong, by topic; empty: nothing is known to be."""
        found = {name: desk.problem for name, desk in self.desks.items() if desk.problem is not None}
        return found | dict(self._unopened)

    async def names(self) -> list[str]:
        """The topics that are there, open or not."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.topics.names)

    async def tend(self) -> None:
        """See to what topics owe by the clock alone (snapshots, retention), for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TEND_S)
            for desk in list(self.desks.values()):
                await loop.run_in_executor(self._pool, desk.topic.tend)

    async def drain(self, seconds: float) -> None:
        """No more is taken; what is in hand on the websockets is answered, and they are closed."""
        self.closing = True
        deadline = asyncio.get_running_loop().time() + seconds
        for socket in list(self.sockets):
            socket.stop()
        while self.sockets and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Store what is queued, save what is remembered, let go of the logs; `BooksDoNotBalance` if they do not."""
        self.closing = True
        for desk in self.desks.values():
            await desk.drain()
        try:
            await asyncio.get_running_loop().run_in_executor(None, self.topics.close)
        finally:
            self._pool.shutdown(wait=False)
