"""The server process: a store behind a websocket, for many peers at once.

    GET /          a websocket: binary messages are frames of `exchange`, text is NIP-77; without it, facts as JSON
    GET /healthz, /metrics

All but /healthz need the token, if there is one. SIGTERM and SIGINT stop the server: it takes no more connections,
answers the messages that it has, and closes the store. After a kill, acknowledged records are stored, and a peer that
reconnects finds what is still missing.

The messages of a connection are answered in order, one at a time, by worker threads. The next message is read only
when the answer has been sent, so the server holds at most one message per peer. A peer's silence is the time from then
until its next message arrives, without the time that a message waits for a thread or is worked on.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from onefold.net.http import NORMAL, POLICY, RESTART, Closing, HttpServer, answer, stop_all, websocket_route
from onefold.net.websocket import REPLY_BYTES_MAX
from onefold.reconcile import exchange
from onefold.reconcile.nip77 import Subscriptions
from onefold.reconcile.peer import Peer, PeerBooks, ReconcileLimits
from onefold.reconcile.records import Records

PREFIX: Final = "onefold_reconcile"
COUNTERS: Final = {
    "sessions": "Sessions that were opened.",
    "bytes_in": "Bytes of messages received.",
    "bytes_out": "Bytes of messages sent.",
    "fetched": "Records that were fetched.",
}


def reconcile_metrics(books: PeerBooks, connections: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", connections)
    yield GaugeMetricFamily(f"{PREFIX}_open_sessions", "Sessions that are open.", books.sessions)
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, books.of(name))
    tally = books.pushed()
    yield CounterMetricFamily(f"{PREFIX}_arrived", "Pushed records that arrived.", tally.received)
    yield GaugeMetricFamily(f"{PREFIX}_pending", "Pushed records without an outcome; 0 at rest.", tally.pending)
    pushed = CounterMetricFamily(f"{PREFIX}_pushed", "Pushed records by outcome.", labels=["outcome"])
    for verdict, reason in (*exchange.OUTCOMES, exchange.NOT_TAKEN):
        pushed.add_metric([reason], tally.count(verdict, reason))
    yield pushed
    errors = CounterMetricFamily(f"{PREFIX}_errors", "Errors sent to peers, by name.", labels=["error"])
    for name, count in sorted(books.troubles().items()):
        errors.add_metric([name], count)
    yield errors


THREADS: Final = 4
"""More would only compete for the interpreter's lock, also with the event loop."""
T = TypeVar("T")


@dataclass(slots=True)
class Account:
    used_s: float = 0.0
    """Seconds of the threads that one peer has used."""


class AnswerTurns:
    """Threads shared by many peers: of the waiting peers, the one that has used least time is next.

    A message can be crafted to take a tenth of a second to answer: a peer that sends many of these waits behind the
    others. To be used on one event loop.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, "onefold-reconcile")
        self._free = threads
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def run(self, account: Account, call: Callable[..., T], *values: Any) -> T:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (account.used_s, next(self._numbers), turn))
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # called and cancelled at once: pass the turn on
                self._free += 1
                self._call_next()
            raise
        began = loop.time()
        try:
            return await self.off(call, *values)
        finally:
            account.used_s += loop.time() - began
            self._free += 1
            self._call_next()

    async def off(self, call: Callable[..., T], *values: Any) -> T:
        """Call it in a thread without waiting for a turn: for short calls."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *values)

    def close(self) -> None:
        """Wait for the calls that are running; no other is started."""
        self._pool.shutdown()

    def _call_next(self) -> None:
        while self._free and self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.cancelled():
                self._free -= 1
                turn.set_result(None)


class PeerConnection:
    def __init__(self, server: ReconcileServer, receive: Receive, send: Send, abort: Callable[[], None]) -> None:
        settings, self._turns, self._books = server.settings, server.turns, server.books
        self._receive, self._send, self._abort, self._limits = receive, send, abort, settings.limits
        self._account = Account()
        common = server.records, settings.limits, time.thread_time, server.books
        self._peer = Peer(*common, writable=settings.writable, bodies=settings.bodies, answer_bytes_max=REPLY_BYTES_MAX)
        self._subscriptions = Subscriptions(*common)
        self._waiting: asyncio.Timeout | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._waiting is not None:
            with contextlib.suppress(RuntimeError):  # the timeout has just expired
                self._waiting.reschedule(0)

    async def run(self) -> None:
        try:
            if (end := await self._serve()) is not None:
                code, reason = end
                await self._write({"type": "websocket.close", "code": code, "reason": reason})
        except TimeoutError:
            self._books.trouble("unread")
            self._abort()
        except (RuntimeError, OSError):
            pass  # how uvicorn says that the client has disconnected
        finally:
            await asyncio.shield(self._turns.off(self._close))

    async def _serve(self) -> tuple[int, str] | None:
        """The close code and reason; None if the client has disconnected."""
        now = asyncio.get_running_loop().time
        while not self._stopped:
            began = now()
            try:
                async with asyncio.timeout(self._limits.idle_s) as self._waiting:
                    message = await self._receive()
            except TimeoutError:  # idle for too long, or `stop` was called
                break
            finally:
                self._waiting = None
            if message["type"] == "websocket.disconnect":
                return None
            reply = await self._turns.run(self._account, self._answer, message, now() - began)
            if reply is not None:
                await self._write({"type": "websocket.send", **reply})
            if self._peer.over or self._subscriptions.over:
                return POLICY, f"{self._limits.troubles_max} errors, troubles_max"
        if self._stopped:
            return RESTART, "the server is shutting down"
        self._books.trouble("idle")
        return NORMAL, f"idle for {self._limits.idle_s:g} s"

    def _answer(self, message: Message, silence_s: float) -> dict[str, Any] | None:
        """The message to send, if any; called in a thread."""
        self._peer.waited(silence_s)
        self._subscriptions.waited(silence_s)
        self._subscriptions.expire()
        if message.get("bytes") is not None:
            return {"bytes": self._peer.answer(message["bytes"])}
        self._peer.expire()
        reply = self._subscriptions.answer(message.get("text") or "")
        return None if reply is None else {"text": reply}

    async def _write(self, message: Message) -> None:
        async with asyncio.timeout(self._limits.write_s):
            await self._send(message)

    def _close(self) -> None:
        self._peer.close()
        self._subscriptions.close()


PORT: Final = 7657


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """Where a server listens, its token and limits. Beyond loopback a token is required."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any free port."""
    token: str | None = field(default=None, repr=False)
    writable: bool = True
    """Whether peers may push records."""
    bodies: bool = True
    """Whether the store has the bytes of its records; false: only ids."""
    limits: ReconcileLimits = field(default_factory=ReconcileLimits)


class ReconcileServer(HttpServer):
    """Serves a store of records until it is stopped, then closes the store."""

    name = "reconcile"

    def __init__(self, records: Records, settings: ReconcileSettings | None = None) -> None:
        self.settings = settings = settings or ReconcileSettings()
        self.books = PeerBooks()
        self.records = records
        self.turns = AnswerTurns()
        self._open: set[PeerConnection] = set()
        super().__init__(settings.host, settings.port, settings.token, settings.limits)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        try:
            super().run(say)
        finally:
            self.records.close()

    async def serve(self) -> None:
        """Serve until stopped; every peer gets the answer to its last message, and a close code."""
        limits = self.settings.limits
        try:
            await self.answer(
                [Route("/", self._about, methods=["GET"]), websocket_route("/{path:path}", self._peer)],
                health=lambda: {"sessions": self.books.sessions},
                metrics=lambda: reconcile_metrics(self.books, self.connections),
                message_bytes_max=limits.message_bytes_max,
                drain=lambda: stop_all(self._open, limits.grace_s),
            )
        finally:
            self.turns.close()
        self.books.pushed().check()  # all is answered: a record without a verdict was lost in the server

    async def _about(self, request: Request) -> Response:
        what = "negentropy over a websocket: finds what two stores lack of each other"
        about = {"onefold": "reconcile", "what": what, "version": exchange.VERSION, "id_size": self.records.id_size}
        return answer({**about, "writable": self.settings.writable, "bodies": self.settings.bodies})

    async def _peer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            raise HTTPException(404)
        if self.closing:
            raise Closing("the server is shutting down")
        await receive()
        await send({"type": "websocket.accept"})
        connection = PeerConnection(self, receive, send, scope["state"]["abort"])
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
