"""One HTTP connection, with the two bounds that uvicorn does not have: how many there may be, and how slow a head.

Without them, a thousand clients that send a byte of their headers every few seconds hold the server for as long as they
like.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

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
    def head_s(self) -> float:
        """From the connection to the end of the first head."""
        ...

    @property
    def keep_alive_s(self) -> float:
        """Of silence between two requests."""
        ...


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
