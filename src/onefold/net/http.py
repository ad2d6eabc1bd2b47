"""The shell of every server: a socket with uvicorn, admission, limits, error responses, graceful shutdown.

A server is a subclass of `HttpServer`: it has a name (it logs as ``onefold.NAME``), statuses for its own errors, and a
coroutine `serve` that ends in `answer` with its routes, its health and its metrics. The shell does the rest:

    GET /healthz    {"status": "ok"|"trouble"|"closing", ...}, 200 or 503; needs no token
    GET /metrics    for Prometheus, collected when it is read
    errors          {"error": "..."} with the status of `STATUSES`; an unexpected error is logged and not sent
    SIGTERM, SIGINT take no more connections, finish open requests, exit with 0

uvicorn gets the limits that it lacks: how many connections, how slow a request head, how long a head. Without them a
thousand clients that send a byte of their headers every few seconds can hold a server for as long as they like.
Connections leave a quarter of the open files to the stores: a server whose connections took all of them could answer
none. A request with both Transfer-Encoding and Content-Length is refused: a proxy in front may have used the other one,
and what it took for one request would be two here (request smuggling; RFC 9112, 6.1).

Without a token a server listens on loopback only. That keeps other machines out, but not a web page in a browser on
this machine; so requests from a page (they have an Origin), and requests for another host name than this server's (DNS
rebinding), are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import os
import resource
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from onefold.errors import BadInput, Busy, Damaged, Misuse, OnefoldError, StaleWrite, StoreFailed
from onefold.net.limits import HttpLimits
from onefold.net.process import on_signals, one_line_errors

if TYPE_CHECKING:
    import h11

LINGER_S: Final = 10.0
"""For sending what is buffered when the app is done with a websocket; uvicorn waits as long for a close frame."""
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 34\r\n"
    b'retry-after: 1\r\nconnection: close\r\n\r\n{"error": "too many connections"}\n'
)
RETRY_S: Final = {429: "1", 503: "1"}
NORMAL, BAD_DATA, POLICY, OUR_ERROR, RESTART, TRY_AGAIN = 1000, 1007, 1008, 1011, 1012, 1013
"""Close codes of websockets (RFC 6455, 7.4.1, and the IANA registry)."""
Statuses: TypeAlias = Mapping[type[BaseException], int]


class Closing(OnefoldError):
    """503: the server is shutting down, try again."""


STATUSES: Final[Statuses] = {
    BadInput: 400,
    Misuse: 400,
    Busy: 429,
    StaleWrite: 503,
    StoreFailed: 503,
    Closing: 503,
    Damaged: 500,
    OSError: 503,
}


class HttpServer(ABC):
    """A server process; ``run`` blocks. In the main thread signals end it; from any other thread, `stop`."""

    name: ClassVar[str]
    statuses: ClassVar[Statuses] = {}
    """For its own errors, in addition to `STATUSES`."""
    loggers: ClassVar[Sequence[str]] = ()
    """Loggers whose errors are printed, in addition to its own."""
    open_paths: ClassVar[Sequence[str]] = ("/healthz",)
    """Readable without a token."""

    def __init__(self, host: str, port: int, token: str | None, limits: HttpLimits) -> None:
        check_host(host, token)
        self.ready = threading.Event()
        self.closing = False
        self.host, self.token, self.limits = host, token, limits
        self.budget = Budget(limits.in_hand_bytes_max)
        self.log = logging.getLogger(f"onefold.{self.name}")
        self._say: Callable[[str], None] = lambda url: None
        self._stopped = False
        self._uvicorn: _Uvicorn | None = None
        self._socket = listen(host, port)

    @abstractmethod
    async def serve(self) -> None:
        """Prepare, `answer`, and clean up after the last request."""

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def connections(self) -> int:
        return 0 if self._uvicorn is None else len(self._uvicorn.server_state.connections)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve until stopped; ``say`` is called with the URL as soon as requests are answered."""
        self._say = say
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:  # a topic has four files open, a connection one, and the usual limit is low
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with one_line_errors((f"onefold.{self.name}", *self.loggers, "uvicorn.error", "asyncio")):
            asyncio.run(self.serve())

    def stop(self) -> None:
        """Ask the server to end; from any thread, and at any time."""
        self._stopped = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def answer(
        self,
        routes: Sequence[BaseRoute],
        *,
        health: Callable[[], dict[str, Any]],
        metrics: Callable[[], Iterable[Metric]],
        blocking: bool = False,
        admission: Admission | None = None,
        message_bytes_max: int | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
        beside: Sequence[Coroutine[Any, Any, None]] = (),
    ) -> None:
        """Answer requests until stopped; the tasks ``beside`` are cancelled then.

        ``health`` returns facts; with ``problem`` or ``problems`` among them the status is 503, and only a server
        without a token shows them. ``metrics`` are collected in a thread if they are ``blocking``.
        ``message_bytes_max`` limits a websocket message; None: no websockets, and an upgrade request is answered like
        any other. ``drain`` finishes open websockets, which uvicorn would cut off.
        """

        async def healthz(request: HttpRequest) -> Response:
            if self.closing:
                return answer({"status": "closing"}, 503)
            facts = health()
            if facts.keys().isdisjoint(("problem", "problems")):
                return answer({"status": "ok", **facts})
            return answer({"status": "trouble", **(facts if self.token is None else {})}, 503)

        async def figures(request: HttpRequest) -> Response:
            text = await asyncio.to_thread(exposition, metrics) if blocking else exposition(metrics)
            return Response(text, media_type=CONTENT_TYPE_LATEST)

        async def end() -> None:
            self.closing = True
            if drain is not None:
                await drain()

        def ready() -> None:
            self.ready.set()
            self._say(self.url)

        own = [Route("/healthz", healthz, methods=["GET"]), Route("/metrics", figures, methods=["GET"])]
        router = Router([*own, *routes], redirect_slashes=False)
        limits, files = self.limits, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = limits.connections_max
        room = most if files == resource.RLIM_INFINITY else min(most, files * 3 // 4)
        config = uvicorn.Config(
            Guard(router, self, admission or Admission(self.token, self.host)),
            http=type("Bounded", (_Bounded,), {"bounds": limits, "room": room}),
            ws="none" if message_bytes_max is None else _Socket,
            ws_max_size=message_bytes_max or 1,
            ws_per_message_deflate=False,  # a small frame must not inflate to a large message
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
        self._uvicorn = _Uvicorn(config, ready, end)
        self._uvicorn.should_exit = self._stopped
        tasks = [asyncio.create_task(work) for work in beside]
        try:
            await self._uvicorn.serve([self._socket])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def refuse(self, error: Exception, scope: Scope) -> Response:
        status, text = refusal(error, self.log, self.statuses)
        return answer({"error": text}, status, error.headers if isinstance(error, HTTPException) else None)

    def answered(self, method: str, status: int) -> None:  # noqa: B027 # most servers do not count
        """Called for each HTTP response; for a server that counts them."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The outermost ASGI app, around the routes: admission, limits, error responses."""

    app: ASGIApp
    server: HttpServer
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self.server
        if refused := _refused_head(scope, server.limits.head_bytes_max):
            status, text = refused
            await answer({"error": text}, status, {"connection": "close"})(scope, receive, send)
            return
        scope["app"] = self  # makes starlette raise for an unknown path instead of answering with a page
        is_http = scope["type"] == "http"
        body = Body(scope, receive, server.limits, server.budget)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] in ("http.response.start", "websocket.accept")
            if message["type"] == "http.response.start":
                server.answered(scope["method"], message["status"])
                if not body.ended and not await body.discard():
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            if scope["path"] not in server.open_paths or scope.get("method") not in ("GET", "HEAD"):
                self.admission.check(scope)
            await self.app(scope, body.receive if is_http else receive, sending)
        except (ClientDisconnect, WebSocketDisconnect):
            pass
        except Exception as error:
            response = server.refuse(error, scope)
            if not started:
                await response(scope, receive, sending)
            elif not is_http:
                with contextlib.suppress(RuntimeError, OSError):  # it may be closed already
                    await send({"type": "websocket.close", "code": OUR_ERROR})
        finally:
            body.close()


def _refused_head(scope: Scope, head_bytes_max: int) -> tuple[int, str] | None:
    """A status and a line for a head that is ambiguous or too long; h11 only limits heads that arrive in pieces."""
    if {b"transfer-encoding", b"content-length"} <= {name for name, _ in scope["headers"]}:
        return 400, "Transfer-Encoding and Content-Length are both there: only one may give the length of the body"
    line = len(scope.get("method", "GET")) + len(scope["raw_path"]) + len(scope["query_string"]) + len("  HTTP/1.1\r\n")
    line += bool(scope["query_string"])  # its question mark
    size = line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"]) + len("\r\n")
    if size > head_bytes_max:
        return 431, f"the head of the request has {size:,} bytes, the limit is {head_bytes_max:,}"
    return None


def websocket_route(path: str, app: ASGIApp) -> BaseRoute:
    """A route straight to an ASGI app, without starlette's wrapper, which costs time per message."""
    route = WebSocketRoute(path, app)
    route.app = app
    return route


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; 429 and 503 say when to try again."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    more = {"retry-after": RETRY_S[status]} if status in RETRY_S else {}
    return Response(body, status, {**more, **(headers or {})}, "application/json")


def refusal(error: BaseException, log: logging.Logger, statuses: Statuses) -> tuple[int, str]:
    """The status for an error, and one line about it; an unexpected one is logged, and its text is not sent."""
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        return error.status_code, error.detail if error.detail not in ("", phrase) else phrase.lower()
    for kind in type(error).__mro__:
        status = statuses.get(kind) or STATUSES.get(kind)
        if status is not None:
            if status >= 500 and not isinstance(error, StoreFailed | Closing):
                log.error("%s: %s", type(error).__name__, error)
            text = error.strerror if isinstance(error, OSError) else str(error)
            return status, text or type(error).__name__
    log.error("unexpected: %s: %s", type(error).__name__, error)
    return 500, str(error) if isinstance(error, OnefoldError) else f"unexpected: {type(error).__name__}"


def exposition(metrics: Callable[[], Iterable[Metric]]) -> bytes:
    class Families(Collector):
        def collect(self) -> Iterable[Metric]:
            return metrics()

    registry = CollectorRegistry()
    registry.register(Families())
    return generate_latest(registry)


class Admission:
    """Admits requests with the token; if there is none, programs on this machine."""

    def __init__(self, token: str | None, host: str, *, bare: bool = False) -> None:
        self._host = host.lower()
        self._token = None if token is None else token.encode()
        self._bare = bare  # also accept a header Authorization that is the token alone

    def check(self, scope: Scope) -> None:
        headers = HTTPConnection(scope).headers
        if self._token is None:
            host = headers.get("host", "localhost").rpartition("@")[2]
            name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if "origin" in headers or not (name.lower() in ("localhost", self._host) or _is_loopback_address(name)):
                raise HTTPException(403, "without a token only programs on this machine are admitted, no web pages")
            return
        value = headers.get("authorization", "").strip()
        kind, _, token = value.partition(" ")
        if kind.lower() != "bearer":
            token = value if self._bare else ""
        if not hmac.compare_digest(token.strip().encode(), self._token):
            raise HTTPException(401, "the header Authorization: Bearer TOKEN is missing or wrong",
                                {"www-authenticate": "Bearer"})  # fmt: skip


def check_host(host: str, token: str | None) -> None:
    """`Misuse` for a server that would listen beyond loopback without a token."""
    if token is None and not is_loopback(host):
        raise Misuse(f"host is {host!r}: to listen on more than loopback needs a token", host=host)


def is_loopback(host: str) -> bool:
    """Whether this host can be reached only from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return all(_is_loopback_address(str(address[0]).partition("%")[0]) for *_, address in _addresses(host, 0))


def _is_loopback_address(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)  # type: ignore[return-value]
    except OSError as error:
        raise Misuse(f"host is {host!r}: {error.strerror}", host=host) from error


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free port."""
    family, *_, address = _addresses(host, port)[0]
    try:
        listener = socket.create_server(address, family=family, backlog=512)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), f"{host}:{port}") from error
    # asyncio disables Nagle's algorithm only for sockets that name TCP as protocol; without it answers took 40 ms.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listener.detach())


class Budget:
    """The bytes of all request bodies that a server holds.

    >>> budget = Budget(10)
    >>> budget.take(8)
    >>> budget.take(3)
    Traceback (most recent call last):
        ...
    onefold.errors.Busy: 8 bytes are in hand, 3 more would be over the limit of 10
    >>> budget.give(8)
    >>> budget.in_hand
    0
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.in_hand = 0

    def take(self, size: int) -> None:
        """Count more bytes; `Busy` if they are too many, and they do not count."""
        if self.in_hand + size > self.bytes_max:
            raise Busy(
                f"{self.in_hand:,} bytes are in hand, {size:,} more would be over the limit of {self.bytes_max:,}"
            )
        self.in_hand += size

    def give(self, size: int) -> None:
        self.in_hand -= size


class Body:
    """The body of one HTTP request as it arrives, within the limits, whatever its Content-Length says."""

    def __init__(self, scope: Scope, receive: Receive, limits: HttpLimits, budget: Budget) -> None:
        names = dict(scope["headers"])
        self._receive = receive
        self._limits = limits
        self._budget = budget
        self._expected = b"expect" in names  # the client waits for a "100 Continue" before it sends a body
        self._deadline: float | None = None
        self._size = 0
        self._counted = 0
        self.ended = b"transfer-encoding" not in names and names.get(b"content-length", b"0") == b"0"

    async def receive(self) -> Message:
        """The next piece, for starlette; 413, 408 or `Busy` where a limit is reached."""
        limits = self._limits
        self._deadline = self._deadline or asyncio.get_running_loop().time() + limits.body_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._next()
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {limits.body_s} s") from None
        if self._size > limits.body_bytes_max:
            raise HTTPException(413, f"the body has more than {limits.body_bytes_max:,} bytes, the limit")
        size = len(message.get("body", b""))
        self._budget.take(size)
        self._counted += size
        return message

    async def discard(self) -> bool:
        """Read and discard the rest for ``linger_s``; whether that was all, and the connection can be kept."""
        if self._expected and not self._size:
            return self.ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.linger_s):
                while not self.ended and self._size <= 2 * self._limits.body_bytes_max:
                    await self._next()
        return self.ended

    def close(self) -> None:
        self._budget.give(self._counted)

    async def _next(self) -> Message:
        message = await self._receive()
        self._expected = False
        self._size += len(message.get("body", b""))
        self.ended = self.ended or not message.get("more_body", False)  # a disconnect has none either
        return message


class Stoppable(Protocol):
    def stop(self) -> None: ...


async def stop_all(connections: Iterable[Stoppable], seconds: float) -> None:
    """Stop all connections of a collection, and wait until they have left it, at most so many seconds."""
    for connection in list(connections):
        connection.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while any(True for _ in connections):
                await asyncio.sleep(0.01)


class _Uvicorn(uvicorn.Server):
    """Calls ``ready`` when it answers, and ``drain`` before it closes connections."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._ready = ready
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._drain()
        await super().shutdown(sockets)

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """As uvicorn's, but a handled signal is not raised again: the process ends with 0."""
        return on_signals(self.handle_exit)


class _Socket(WebSocketsSansIOProtocol):
    """Uvicorn's websocket, with three fixes.

    Closing waits until the write buffer is sent: a client that does not read is aborted by ``scope["state"]["abort"]``,
    or ``LINGER_S`` after the app has ended. While a client does not read, pongs would pile up: only the latest is kept.
    And a refused handshake counts as complete: uvicorn would log each as an app that did not answer.
    """

    _pong = b""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope: Any = getattr(self, "scope", None)
        if scope is not None:
            scope["state"]["abort"] = self.transport.abort

    def handle_ping(self) -> None:  # the protocol has prepared the pong
        if self.writable.is_set():
            super().handle_ping()
        else:
            self._pong = b"".join(self.conn.data_to_send()) or self._pong

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._pong = self._pong, b""
        self.transport.write(pong)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True


class _Bounded(H11Protocol):
    """Uvicorn's HTTP with a limit on connections, and a deadline for the next request head."""

    bounds: HttpLimits
    room: int
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.room:
            transport.write(FULL)
            transport.close()
        else:
            self._expect_head(self.bounds.head_s)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._expect_head(None)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._expect_head(None)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request has already arrived
            self._expect_head(self.bounds.keep_alive_s + self.bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_head(None)
        super().connection_lost(exc)

    def _expect_head(self, seconds: float | None) -> None:
        """Close the connection after this time; None: the head has arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self.transport.close)
