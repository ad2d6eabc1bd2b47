"""One connection to NATS, on an event loop of its own thread, for callers that know nothing of asyncio.

nats-py can reconnect by itself. Then it keeps what is published meanwhile and sends it later, when nobody waits for it
any more; and a request that was under way is only missed when its time is up. So it is told not to. A connection that
breaks, or does not answer in time, fails whatever is under way on it, at once and by `StoreFailed`, and is thrown away.
The next call makes a new one. A server that went away and came back is found again in that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from onefold.errors import Misuse, OnefoldError, StoreFailed
from onefold.stores.nats.address import Address

T = TypeVar("T")
Work = Callable[[Client], Coroutine[Any, Any, T]]
# A dead peer that sends no FIN is noticed after two of these; whoever waits for an answer notices earlier.
PING_S = 10
_FAILURES = (nats.errors.Error, nats.js.errors.Error, OSError, asyncio.CancelledError)  # a TimeoutError is an OSError


class Link:
    """Runs work on a connection; threads may share it. The first call makes the thread and the connection."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        *,
        credentials: str | None = None,
        prepare: Callable[[Client], Awaitable[None]],
    ) -> None:
        """``prepare`` is done on each new connection before anything else is."""
        self.address = address
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._prepare = prepare
        self._guard = Lock()  # of the thread's beginning and end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._open = True
        # From here on: touched by the loop's thread alone.
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._lost: asyncio.Future[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def run(self, work: Work[T], wait_s: float = 0) -> T:
        """What the work comes to; it has ``timeout_s``, and what it means to wait besides."""
        with self._guard:  # until it is on the loop: one that `close` has stopped would never come to it
            loop = self._running()
            future = asyncio.run_coroutine_threadsafe(self._run(work, wait_s), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: nobody waits for it any more
            raise

    def close(self) -> None:
        """End the connection and the thread; whoever waits in `run` is told by `Misuse`. May be called twice."""
        with self._guard:
            self._open = False
            if self._loop is None or self._thread is None:
                return
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        self._check_open()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(_silent)
            self._thread = Thread(target=self._loop.run_forever, name="onefold-nats", daemon=True)
            self._thread.start()
        return self._loop

    async def _run(self, work: Work[T], wait_s: float) -> T:
        try:
            client, lost = await asyncio.wait_for(self._connected(), self._timeout_s)
            return await self._work(work, client, lost, self._timeout_s + wait_s)
        except OnefoldError:
            self._check_open()
            raise
        except _FAILURES as error:
            self._check_open()
            raise StoreFailed(f"{self.address}: {_line(error)}") from error

    async def _work(self, work: Work[T], client: Client, lost: asyncio.Future[None], limit_s: float) -> T:
        task = asyncio.ensure_future(work(client))
        both: set[asyncio.Future[Any]] = {task, lost}
        try:
            await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if lost.done():
                raise StoreFailed(f"{self.address}: the connection was lost")
            raise TimeoutError(f"no answer within {limit_s} s")
        except TimeoutError:  # ours or one of nats-py: the other end may be gone without a word
            self._drop(client)
            raise
        finally:
            task.cancel()

    async def _connected(self) -> tuple[Client, asyncio.Future[None]]:
        async with self._connecting:
            if self._client is not None and self._lost is not None:
                if self._client.is_connected and not self._lost.done():
                    return self._client, self._lost
                self._drop(self._client)
            client, lost = Client(), asyncio.get_running_loop().create_future()
            try:
                await self._connect(client, lost)
                await self._prepare(client)
            except BaseException:
                self._drop(client)
                raise
            self._client, self._lost = client, lost
            return client, lost

    async def _connect(self, client: Client, lost: asyncio.Future[None]) -> None:
        async def gone() -> None:
            if not lost.done():
                lost.set_result(None)

        told: list[Exception] = []

        async def tell(error: Exception) -> None:
            if not client.is_connected:  # later ones are raised to whom they concern
                told.append(error)

        try:
            await self._try(client, gone, tell)
        except nats.errors.NoServersError:
            raise told[-1] if told else nats.errors.NoServersError from None  # it forgets what it met

    async def _try(self, client: Client, gone: Callable[[], Any], tell: Callable[[Exception], Any]) -> None:
        await client.connect(
            list(self.address.servers),
            error_cb=tell,
            disconnected_cb=gone,
            closed_cb=gone,
            name="onefold",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=max(1, int(self._timeout_s)),
            ping_interval=PING_S,
            user=self.address.user,
            password=self.address.password,
            token=self.address.token,
            user_credentials=None if self._credentials is None else Path(self._credentials),
        )

    def _drop(self, client: Client) -> None:
        """Close it behind the scenes: what does not answer would hold us up."""
        if client is self._client:
            if self._lost is not None and not self._lost.done():
                self._lost.set_result(None)  # others use it too: they are not to wait for nothing
            self._client = self._lost = None
        task = asyncio.ensure_future(self._close(client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, client: Client) -> None:
        try:
            await asyncio.wait_for(client.close(), self._timeout_s)
        except Exception:
            return  # it is gone in any case

    async def _end(self) -> None:
        if self._client is not None:
            self._drop(self._client)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._timeout_s)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=self._timeout_s)

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse(f"{self.address}: this queue was closed")


def _silent(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """What nats-py leaves lying about when a connection breaks was told by `StoreFailed` already."""


def _line(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "the connection was lost"
    return " ".join(str(error).split()) or type(error).__name__
