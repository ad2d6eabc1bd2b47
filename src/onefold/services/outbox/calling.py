"""How a handler is called: what it returns is checked, and what it raises is told apart from what a store raises.

Handlers that are coroutines run on one event loop, in a thread of its own: all of a batch are begun before the first is
waited for, so a hundred of them that wait for something wait together.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from onefold.engines.outbox.handling import Handler, KeyOf, handled
from onefold.engines.outbox.record import Message
from onefold.engines.outbox.steps import Handled
from onefold.errors import Misuse, OnefoldError

TEXT_MAX: Final = 500
"""Characters of an error that are kept with a dead letter."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler, and the queue that it is for."""

    queue: str
    call: Handler
    key: KeyOf


class HandlerFailed(OnefoldError):
    """A handler raised, or returned what cannot be kept; the error itself is the cause of this one."""


class Loop:
    """An event loop in a thread of its own, which is started when the first coroutine comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, Handled]) -> Future[Handled]:
        """Start it there; the result can be waited for in any other thread."""
        with self._lock:
            if self._closed:
                work.close()
                raise Misuse("the endpoint is closed: there is no loop for async handlers any more")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="onefold-handlers", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what still runs, and end the thread. May be called twice."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def calling(call: Handler, message: Message, loop: Loop) -> Callable[[Any], Handled | Future[Handled]]:
    """What `stores.attempts.Job` calls with the state; whatever goes wrong is `HandlerFailed`."""

    def handle(state: Any) -> Handled | Future[Handled]:
        try:
            answer = call(state, message)
            if not inspect.iscoroutine(answer):
                return handled(answer, message)
        except BaseException as error:  # SystemExit and the like must not end a thread of the consumer either
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # somebody pressed Ctrl-C
            raise _failed(message, error) from error
        return loop.begin(_awaited(answer, message))

    return handle


async def _awaited(answer: Coroutine[Any, Any, Any], message: Message) -> Handled:
    try:
        return handled(await answer, message)
    except GeneratorExit:
        raise
    except BaseException as error:  # here it would end the loop, and all who wait for it would wait for ever
        raise _failed(message, error) from error


def _failed(message: Message, error: BaseException) -> HandlerFailed:
    return HandlerFailed(f"{message.to}: {describe(error)}", token=message.token)


def describe(error: BaseException) -> str:
    """An error in one line.

    >>> describe(ValueError("no such order"))
    'ValueError: no such order'
    """
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:TEXT_MAX]
