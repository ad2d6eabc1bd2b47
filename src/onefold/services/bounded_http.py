"""How uvicorn is set up, with the bounds that it does not have: how many connections, how slow a head, how long a head.

Without the first two, a thousand clients that send a byte of their headers every few seconds hold the server for as
long as they like. Connections also leave a quarter of the open files to the stores: a server whose connections took all
of them could answer none. The third one h11 knows only for heads that come in pieces.

A request that says how long its body is in two ways (Transfer-Encoding and Content-Length) is refused: a proxy before
the server may have believed the other one, and then two requests are one for it and two here (RFC 9112, 6.1).
"""

import asyncio
import resource
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from onefold.services.serving import Socket

if TYPE_CHECKING:
    import h11

FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 34\r\n"
    b'retry-after: 1\r\nconnection: close\r\n\r\n{"error": "too many connections"}\n'
)


class Bounds(Protocol):
    """What of a server's limits counts here."""

    @property
    def connections_max(self) -> int:
        """Connections at the same time."""
        ...

    @property
    def head_bytes_max(self) -> int:
        """Request line and headers."""
        ...

    @property
    def head_s(self) -> float:
        """From the connection to the end of the first head."""
        ...

    @property
    def keep_alive_s(self) -> float:
        """Of silence between two requests."""
        ...

    @property
    def grace_s(self) -> float:
        """What is in hand at a shutdown may take so long."""
        ...


def config(app: ASGIApp, limits: Bounds, *, message_bytes_max: int | None) -> uvicorn.Config:
    """The settings of a server for this app; ``message_bytes_max`` is that of a websocket message.

    None: there are no websockets. A request to become one is answered like any other, as HTTP has it.
    """
    return uvicorn.Config(
        framed(app, limits.head_bytes_max),
        http=bounded(limits),
        ws="none" if message_bytes_max is None else Socket,
        ws_max_size=message_bytes_max or 1,
        ws_per_message_deflate=False,  # a small frame must not become a large message
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[("x-content-type-options", "nosniff"), ("cache-control", "no-store")],
        timeout_keep_alive=max(1, round(limits.keep_alive_s)),
        timeout_graceful_shutdown=max(1, round(limits.grace_s)),
        h11_max_incomplete_event_size=limits.head_bytes_max,
    )


def framed(app: ASGIApp, head_bytes_max: int) -> ASGIApp:
    """The app, behind a look at the head of each request."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        refused = None if scope["type"] == "lifespan" else _refused(scope, head_bytes_max)
        if refused is None:
            await app(scope, receive, send)
            return
        status, told = refused
        await JSONResponse({"error": told}, status, {"connection": "close"})(scope, receive, send)

    return checked


def _refused(scope: Scope, head_bytes_max: int) -> tuple[int, str] | None:
    names = {name for name, _ in scope["headers"]}
    if {b"transfer-encoding", b"content-length"} <= names:
        return 400, "Transfer-Encoding and Content-Length are both there: only one can say how long the body is"
    line = len(scope.get("method", "GET")) + len(scope["raw_path"]) + len(scope["query_string"]) + len("  HTTP/1.1\r\n")
    line += bool(scope["query_string"])  # its question mark
    size = line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"]) + len("\r\n")
    if size > head_bytes_max:
        return 431, f"the head of the request has {size:,} bytes, the limit is {head_bytes_max:,}"
    return None


def connections_max(limits: Bounds, files_max: int | None = None) -> int:
    """How many connections there may be: no more than the limit, and three quarters of the files that may be open.

    >>> from onefold.services.ingest.limits import Limits
    >>> connections_max(Limits(connections_max=1_000), files_max=400)
    300
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files_max is None else files_max
    return limits.connections_max if files == resource.RLIM_INFINITY else min(limits.connections_max, files * 3 // 4)


def bounded(limits: Bounds) -> type[H11Protocol]:
    """The protocol class for these limits; uvicorn takes a class and makes the instances itself."""

    class Bounded(_Bounded):
        bounds = limits
        room = connections_max(limits)

    return Bounded


class _Bounded(H11Protocol):
    bounds: Bounds
    room: int
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.room:
            transport.write(FULL)
            transport.close()
        else:
            self._wait(self.bounds.head_s)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._wait(None)

    def handle_websocket_upgrade(self, event: "h11.Request") -> None:
        self._wait(None)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request had come already
            self._wait(self.bounds.keep_alive_s + self.bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def _wait(self, seconds: float | None) -> None:
        """The next head must be there within this time; None: it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self, *_: Any) -> None:
        if not self.transport.is_closing():
            self.transport.close()
