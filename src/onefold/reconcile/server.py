"""The server process: a store behind a websocket, for many peers at once.

SIGTERM and SIGINT stop it: no more connections, what is in hand is answered, the store is closed. A kill does none of
that: records that were acknowledged are stored, and a peer that comes back finds out what is still missing.

What there is to watch of a reconcile server, for Prometheus: read from its books when somebody asks.

Threads for the work of many peers: of those who wait, whoever has used least is next.

A message can be made so that it takes a tenth of a second to answer. Whoever sends many of these waits longer and
longer behind those who do not; an honest peer waits for what is being done when it comes, and hardly for anything else.

One websocket: its messages are answered in order, one at a time, by threads of the server.

It is read again only when the answer has left, so a peer has at most one message in the server's hands. Silence counts
from then until its next message is here: not while it waits for its turn, nor while it is answered.

The routes.

    GET /          a websocket: binary messages are ours (`links.exchange`), text is NIP-77; else what this is, as JSON
    GET /healthz, /metrics

Whoever asks needs the token, if there is one, but for /healthz.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold.net import http as serving
from onefold.net.http import OPEN_PATHS, Admission, Closing, Exposed, answer, config, refusal
from onefold.reconcile.exchange import VERSION
from onefold.reconcile.nip77 import Subscriptions
from onefold.reconcile.peer import Peer, PeerBooks, ReconcileLimits
from onefold.reconcile.records import Records
from onefold.reconcile.transfer import NOT_TAKEN, OUTCOMES

PREFIX: Final = "onefold_reconcile"
COUNTERS: Final = {
    "sessions": "Sessions that were opened.",
    "bytes_in": "Bytes of messages that came in.",
    "bytes_out": "Bytes of messages that went out.",
    "fetched": "Records that were asked for and answered.",
}


class ReconcileMetrics(Exposed):
    """The figures of a server, in a registry of their own."""

    def __init__(self, books: PeerBooks, connections: Callable[[], int]) -> None:
        self._books = books
        self._connections = connections
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they are now."""
        yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", self._connections())
        yield GaugeMetricFamily(f"{PREFIX}_open_sessions", "Sessions that are open.", self._books.sessions)
        for name, told in COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", told, self._books.of(name))
        books = self._books.pushed()
        yield CounterMetricFamily(f"{PREFIX}_arrived", "Records that came to be stored.", books.received)
        yield GaugeMetricFamily(f"{PREFIX}_pending", "Records that came and have no outcome; 0 at rest.", books.pending)
        pushed = CounterMetricFamily(f"{PREFIX}_pushed", "Records that were pushed, by outcome.", labels=["outcome"])
        for verdict, reason in (*OUTCOMES.values(), NOT_TAKEN):
            pushed.add_metric([reason], books.count(verdict, reason))
        yield pushed
        errors = CounterMetricFamily(f"{PREFIX}_errors", "Errors that peers were told, by name.", labels=["error"])
        for name, count in sorted(self._books.troubles().items()):
            errors.add_metric([name], count)
        yield errors


THREADS: Final = 4
"""At work at the same time. More would only take turns at the interpreter's lock, and keep the event loop from it."""
T = TypeVar("T")


@dataclass(slots=True)
class Account:
    """What one peer has used."""

    used_s: float = 0.0


class AnswerTurns:
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


NORMAL: Final = 1000
POLICY: Final = 1008
RESTART: Final = 1012


class PeerConnection:
    """Reads, has it answered, writes; until one side has enough."""

    def __init__(
        self, receive: Receive, send: Send, abort: Callable[[], None], turns: AnswerTurns, limits: ReconcileLimits,
        books: PeerBooks, peer: Peer, subscriptions: Subscriptions,
    ) -> None:  # fmt: skip
        self._receive, self._send, self._abort = receive, send, abort
        self._turns, self._limits, self._books = turns, limits, books
        self._account = Account()
        self._peer, self._subscriptions = peer, subscriptions
        self._waiting: asyncio.Timeout | None = None
        self._stopped = False

    def stop(self) -> None:
        """Answer what was read, then close."""
        self._stopped = True
        if self._waiting is not None:
            with contextlib.suppress(RuntimeError):  # its time was up at this very moment
                self._waiting.reschedule(0)

    async def run(self) -> None:
        """Serve it to its end."""
        try:
            end = await self._serve()
            if end is not None:
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
            message = await self._next()
            silence_s = now() - began
            if message is None:
                return self._silence()
            if message["type"] == "websocket.disconnect":
                return None
            data, text = message.get("bytes"), message.get("text") or ""
            if data is not None:
                answer = await self._turns.run(self._account, self._answer, data, silence_s)
                await self._write({"type": "websocket.send", "bytes": answer})
            else:
                told = await self._turns.run(self._account, self._reply, text, silence_s)
                if told is not None:
                    await self._write({"type": "websocket.send", "text": told})
            if self._peer.over or self._subscriptions.over:
                return POLICY, f"{self._limits.troubles_max} errors, troubles_max"
        return self._silence()

    async def _next(self) -> Message | None:
        """The next message; None if none came in time, or none should come any more."""
        try:
            async with asyncio.timeout(self._limits.idle_s) as self._waiting:
                return await self._receive()
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def _silence(self) -> tuple[int, str]:
        if self._stopped:
            return RESTART, "the server is shutting down"
        self._books.trouble("idle")
        return NORMAL, f"idle: nothing was heard for {self._limits.idle_s:g} s"

    def _answer(self, data: bytes, silence_s: float) -> bytes:
        self._wait(silence_s)
        self._subscriptions.expire()
        return self._peer.answer(data)

    def _reply(self, text: str, silence_s: float) -> str | None:
        self._wait(silence_s)
        self._peer.expire()
        self._subscriptions.expire()
        return self._subscriptions.answer(text)

    def _wait(self, silence_s: float) -> None:
        self._peer.waited(silence_s)
        self._subscriptions.waited(silence_s)

    async def _write(self, message: Message) -> None:
        async with asyncio.timeout(self._limits.write_s):
            await self._send(message)

    def _close(self) -> None:
        self._peer.close()
        self._subscriptions.close()


WHAT: Final = "negentropy over a websocket: finds what two stores lack of each other"


class ReconcileApp:
    """The routes, as an ASGI app around one store; lives on one event loop."""

    def __init__(
        self, records: Records, admission: Admission, limits: ReconcileLimits, connections: Callable[[], int],
        *, writable: bool, bodies: bool, books: PeerBooks, clock: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        self.books = books
        self._records, self._limits, self._clock = records, limits, clock
        self._writable, self._bodies = writable, bodies
        self._admission = admission
        self._metrics = ReconcileMetrics(self.books, connections)
        self._turns = AnswerTurns()
        self._closing = False
        self._open: set[PeerConnection] = set()
        self._routes: ASGIApp = Router(
            [
                Route("/", self.about, methods=["GET"]),
                Route("/healthz", self.healthz, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer for it."""
        scope["app"] = self  # starlette: an unknown path is an exception, not a page
        try:
            if scope["path"] not in OPEN_PATHS:
                self._admission.check(scope)
            if scope["type"] == "websocket":
                await self._websocket(scope, receive, send)
            else:
                await self._routes(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            headers = error.headers if isinstance(error, HTTPException) else None
            with suppress(RuntimeError):  # it was answered, or upgraded, already; then the connection is closed
                await answer({"error": told}, status, headers)(scope, receive, send)

    async def about(self, request: Request) -> Response:
        """GET /, by something that is no peer."""
        told = {"onefold": "reconcile", "what": WHAT, "version": VERSION, "id_size": self._records.id_size}
        return answer({**told, "writable": self._writable, "bodies": self._bodies})

    async def healthz(self, request: Request) -> Response:
        """GET /healthz."""
        if self._closing:
            return answer({"status": "closing"}, 503)
        return answer({"status": "ok", "sessions": self.books.sessions})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def close(self) -> None:
        """Every peer gets the answer to what it sent, and is told that this is the end."""
        self._closing = True
        for connection in self._open:
            connection.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.grace_s):
                while self._open:
                    await asyncio.sleep(0.01)

    def end(self) -> None:
        """All was answered: the threads go."""
        self._turns.close()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            raise HTTPException(404)
        if self._closing:
            raise Closing("the server is shutting down")
        await receive()
        await send({"type": "websocket.accept"})
        common = self._records, self._limits, self._clock, self.books
        connection = PeerConnection(
            receive, send, scope["state"]["abort"], self._turns, self._limits, self.books,
            Peer(*common, writable=self._writable, bodies=self._bodies), Subscriptions(*common),
        )  # fmt: skip
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)


PORT: Final = 7657
LOGGERS: Final = ("onefold.reconcile", "onefold.ingest", "uvicorn.error", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """Where it listens, for whom, and what they may do."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    writable: bool = True
    """Whether records are taken, or only given."""
    bodies: bool = True
    """Whether the store has the bytes of its records, or knows ids alone."""
    limits: ReconcileLimits = field(default_factory=ReconcileLimits)


class ReconcileServer(serving.Listening):
    """Serves a store of records until it is stopped; then closes it."""

    loggers = LOGGERS

    def __init__(self, records: Records, settings: ReconcileSettings | None = None) -> None:
        self.settings = settings or ReconcileSettings()
        self.books = PeerBooks()
        self._records = records
        super().__init__(self.settings.host, self.settings.port, self.settings.token)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the address as soon as requests are answered."""
        try:
            super().run(say)
        finally:
            self._records.close()

    async def _serve(self, ready: Callable[[], None]) -> None:
        settings = self.settings
        app = ReconcileApp(
            self._records, Admission(settings.token, settings.host), settings.limits,
            lambda: len(server.server_state.connections), writable=settings.writable, bodies=settings.bodies,
            books=self.books,
        )  # fmt: skip
        bounds = config(app, settings.limits, message_bytes_max=settings.limits.message_bytes_max)
        server = self._server = serving.Server(bounds, ready, app.close)
        try:
            await server.serve([self._socket])
        finally:
            app.end()
        self.books.pushed().check()  # all was answered: what came has a verdict, or it was lost in here
