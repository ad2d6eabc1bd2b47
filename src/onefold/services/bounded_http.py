"""How uvicorn is set up, with the two bounds that it does not have: how many connections, and how slow a head.

Without them, a thousand clients that send a byte of their headers every few seconds hold the server for as long as they
like.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvicorn
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


def config(app: object, limits: Bounds, *, message_bytes_max: int) -> uvicorn.Config:
    """The settings of a server for this app; ``message_bytes_max`` is that of a websocket message."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # uvicorn has ASGI types of its own
        http=bounded(limits),
        ws=Socket,
        ws_max_size=message_bytes_max,
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


def bounded(limits: Bounds) -> type[H11Protocol]:
    """The protocol class for these limits; uvicorn takes a class and makes the instances itself."""

    class Bounded(_Bounded):
        bounds = limits

    return Bounded


class _Bounded(H11Protocol):
    bounds: Bounds
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
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
