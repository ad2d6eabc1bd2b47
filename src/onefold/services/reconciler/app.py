"""The routes.

    GET /          a websocket: binary messages are ours (`links.exchange`), text is NIP-77; else what this is, as JSON
    GET /healthz, /metrics

Whoever asks needs the token, if there is one, but for /healthz.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from onefold.links.exchange import VERSION
from onefold.ports.records import Records
from onefold.services.ingest.guard import OPEN_PATHS, answer, refusal
from onefold.services.ingest.service import Closing
from onefold.services.reconciler.books import Books
from onefold.services.reconciler.connection import Connection
from onefold.services.reconciler.limits import ReconcileLimits
from onefold.services.reconciler.metrics import Metrics
from onefold.services.reconciler.nip77 import Subscriptions
from onefold.services.reconciler.peer import Peer
from onefold.services.reconciler.turns import Turns
from onefold.services.serving import Admission

WHAT: Final = "negentropy over a websocket: finds what two stores lack of each other"


class ReconcileApp:
    """The routes, as an ASGI app around one store; lives on one event loop."""

    def __init__(
        self, records: Records, admission: Admission, limits: ReconcileLimits, connections: Callable[[], int],
        *, writable: bool, bodies: bool, books: Books, clock: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        self.books = books
        self._records, self._limits, self._clock = records, limits, clock
        self._writable, self._bodies = writable, bodies
        self._admission = admission
        self._metrics = Metrics(self.books, connections)
        self._turns = Turns()
        self._closing = False
        self._open: set[Connection] = set()
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
        connection = Connection(
            receive, send, scope["state"]["abort"], self._turns, self._limits, self.books,
            Peer(*common, writable=self._writable, bodies=self._bodies), Subscriptions(*common),
        )  # fmt: skip
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
