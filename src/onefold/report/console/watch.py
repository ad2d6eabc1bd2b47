"""What is shown of one pipeline or server, and looking at all of them again and again.

A `View` is plain and bounded, and of foreign texts nothing but text. A listener hears what changed; a slow one misses
words in between, never the last, so nothing piles up for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from onefold.errors import Misuse
from onefold.tally import Tally
from onefold.verdict import Verdict

Kind: TypeAlias = Literal["stream", "run", "server"]
State: TypeAlias = Literal["waiting", "running", "complete", "stopped", "trouble"]
Unit: TypeAlias = Literal["count", "bytes", "seconds", "rate"]
Fact: TypeAlias = tuple[str, float, Unit]
Counts: TypeAlias = tuple[int, int, int, int]
"""In the order of the law: first, repeat, unsure, reject."""

TEXT_CHARS_MAX: Final = 120
POINTS_MAX: Final = 150
REJECTS_MAX: Final = 6
WHOLE_MAX: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Rows of one reason that were rejected; of some, one of them."""

    reason: str
    count: int
    where: str = ""
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    name: str
    kind: Kind
    state: State
    told: str
    """What it is doing, or what is wrong."""
    at_ms: int | None = None
    """When it was last heard from."""
    counts: Counts | None = None
    balanced: bool = True
    points: tuple[tuple[int, int, int, int, int], ...] = ()
    """The time, and the counts up to then."""
    facts: tuple[Fact, ...] = ()
    rejects: tuple[Rejected, ...] = ()
    """The newest first."""
    report: bool = False
    """Whether there is a page of it."""
    explains: bool = False
    """Whether it can be asked about a message."""

    def to_dict(self) -> dict[str, Any]:
        rejects = [{name: getattr(each, name) for name in each.__slots__} for each in self.rejects]
        return {**{name: getattr(self, name) for name in self.__slots__}, "rejects": rejects}


class Watched(Protocol):
    """Something that can be looked at again and again, from one thread at a time."""

    @property
    def name(self) -> str: ...

    @property
    def every_s(self) -> float: ...

    def look(self) -> View:
        """How it stands now; what is wrong with it is in the view, not raised."""
        ...


def shown(value: object, most: int = TEXT_CHARS_MAX) -> str:
    """A foreign value as a short line of text.

    >>> shown("a\\x00b\\u202ec" + "d" * 200, 10)
    'a?b?cdd...'
    """
    words = str(value)
    words = words if len(words) <= most else words[: most - 3] + "..."
    return "".join(sign if sign.isprintable() else "?" for sign in words)


def finite(value: Any) -> float:
    """A number that JSON can carry; ValueError for all else.

    >>> finite(5)
    5.0
    >>> finite(float("nan"))
    Traceback (most recent call last):
    ValueError: nan is no figure
    """
    if type(value) not in (int, float) or not -(2.0**63) < value < 2.0**63:
        raise ValueError(f"{shown(value)} is no figure")
    return float(value)


def whole(value: Any) -> int:
    """A whole number that a browser can hold, such as a time; ValueError for all else."""
    if type(value) is not int or not -WHOLE_MAX < value < WHOLE_MAX:
        raise ValueError(f"{shown(value)} is no whole number below {WHOLE_MAX:,}")
    return value


def counts_of(tally: Tally) -> Counts:
    first, repeat, unsure, reject = (whole(tally.count(verdict)) for verdict in Verdict)
    return first, repeat, unsure, reject


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
        self.views: list[View] = [
            View(name=each.name, kind="run", state="waiting", told="not looked at yet") for each in watched
        ]
        self._versions = [0] * len(names)
        self._news = asyncio.Condition()
        self._closing = False
        self._pool = ThreadPoolExecutor(min(8, len(names)), thread_name_prefix="onefold-console")

    async def run(self) -> None:
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
        self._closing = True
        async with self._news:
            self._news.notify_all()

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def now_ms() -> int:
    """The time of this machine: pages tell ages by it, whatever their own clock says."""
    return round(time.time() * 1000)
