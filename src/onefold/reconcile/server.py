"""The server process: a store behind a websocket, for many peers at once.

    GET /          a websocket: binary messages are ours (`exchange`), text is NIP-77; else what this is, as JSON
    GET /healthz, /metrics

Whoever asks needs the token, if there is one, but for /healthz. SIGTERM and SIGINT stop it: no more connections, what
is in hand is answered, the store is closed. A kill does none of that: records that were acknowledged are stored, and a
peer that comes back finds out what is still missing.

Messages of a connection are answered in order, one at a time, by threads of the server. It is read again only when the
answer has left, so a peer has at most one message in the server's hands. Silence counts from then until its next
message is here: not while it waits for its turn, nor while it is answered.
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
    "bytes_in": "Bytes of messages that came in.",
    "bytes_out": "Bytes of messages that went out.",
    "fetched": "Records that were asked for and answered.",
}


def reconcile_metrics(books: PeerBooks, connections: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", connections)
    yield GaugeMetricFamily(f"{PREFIX}_open_sessions", "Sessions that are open.", books.sessions)
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, books.of(name))
    tally = books.pushed()
    yield CounterMetricFamily(f"{PREFIX}_arrived", "Records that came to be stored.", tally.received)
    yield GaugeMetricFamily(f"{PREFIX}_pending", "Records that came and have no outcome; 0 at rest.", tally.pending)
    pushed = CounterMetricFamily(f"{PREFIX}_pushed", "Records that were pushed, by outcome.", labels=["outcome"])
    for verdict, reason in (*exchange.OUTCOMES, exchange.NOT_TAKEN):
        pushed.add_metric([reason], tally.count(verdict, reason))
    yield pushed
    errors = CounterMetricFamily(f"{PREFIX}_errors", "Errors that peers were told, by name.", labels=["error"])
    for name, count in sorted(books.troubles().items()):
        errors.add_metric([name], count)
    yield errors


THREADS: Final = 4
"""At work at the same time. More would only take turns at the interpreter's lock, and keep the event loop from it."""
T = TypeVar("T")


@dataclass(slots=True)
class Account:
    used_s: float = 0.0
    """What one peer has used."""


class AnswerTurns:
    """Threads for the work of many peers: of those who wait, whoever has used least is next.

    A message can be made so that it takes a tenth of a second to answer: whoever sends many of these waits behind those
    who do not. Lives on one event loop.
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
            if turn.done() and not turn.cancelled():  # called and cancelled at once: the turn is somebody else's
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
        """Call it in a thread, at once: for what takes no time."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *values)

    def close(self) -> None:
        """Wait for what is in hand; nothing else is begun."""
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
            with contextlib.suppress(RuntimeError):  # its time was up at this very moment
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
            pass  # uvicorn's ways to say that the other side has gone
        finally:
            await asyncio.shield(self._turns.off(self._close))

    async def _serve(self) -> tuple[int, str] | None:
        """How it ends; None: the other side went."""
        now = asyncio.get_running_loop().time
        while not self._stopped:
            began = now()
            try:
                async with asyncio.timeout(self._limits.idle_s) as self._waiting:
                    message = await self._receive()
            except TimeoutError:  # nothing came in time, or `stop` wants nothing more
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
        return NORMAL, f"idle: nothing was heard for {self._limits.idle_s:g} s"

    def _answer(self, message: Message, silence_s: float) -> dict[str, Any] | None:
        """In a thread: what to send, if anything."""
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
    """Where a server listens, who may ask, and what a peer may cost. Beyond loopback a token is needed."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    writable: bool = True
    """Whether records are taken, or only given."""
    bodies: bool = True
    """Whether the store has the bytes of its records, or knows ids alone."""
    limits: ReconcileLimits = field(default_factory=ReconcileLimits)


class ReconcileServer(HttpServer):
    """Serves a store of records until it is stopped; then closes it."""

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
        """Answer until the end; every peer gets the answer to what it sent, and is told that this is the end."""
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
        self.books.pushed().check()  # all was answered: what came has a verdict, or it was lost in here

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
