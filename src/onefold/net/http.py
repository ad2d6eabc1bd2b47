"""What every server of this room shares: a socket, uvicorn on it, who may ask, and an end that loses nothing.

SIGTERM and SIGINT stop a server: no more connections, what is in hand is finished, the process ends with 0.

How uvicorn is set up, with the bounds that it does not have: how many connections, how slow a head, how long a head.

Without the first two, a thousand clients that send a byte of their headers every few seconds hold the server for as
long as they like. Connections also leave a quarter of the open files to the stores: a server whose connections took all
of them could answer none. The third one h11 knows only for heads that come in pieces.

A request that says how long its body is in two ways (Transfer-Encoding and Content-Length) is refused: a proxy before
the server may have believed the other one, and then two requests are one for it and two here (RFC 9112, 6.1).

What the `/metrics` of every server and consumer have in common.

Every bound of the service on one page, and the two that are kept while bytes come in: of a body, and of all.

Who may ask, and what an error becomes: the outermost layer, around every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import resource
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from onefold.errors import BadInput, Busy, Damaged, Misuse, OnefoldError, StaleWrite, StoreFailed
from onefold.text import printable, without_logins

if TYPE_CHECKING:
    import h11


class Server(uvicorn.Server):
    """Uvicorn; ``ready`` is called when it answers, ``drain`` before its connections are cut."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._ready = ready
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, finish what is in hand, then cut the rest off."""
        for server in self.servers:
            server.close()
        await self._drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again: the process ends with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Listening(ABC):
    """What the server processes have in common: a socket, a start that is told, and a stop.

    ``run`` blocks. In the main thread it listens to signals; in any other, `stop` ends it. A subclass says what is
    served, by `_serve`.
    """

    loggers: ClassVar[Sequence[str]] = ("uvicorn.error", "asyncio")
    """Whose errors are told, a line each."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        check_host(host, token)
        self.ready = threading.Event()
        self._server: Server | None = None
        self._socket = listen(host, port)

    @property
    def url(self) -> str:
        """Where it is, for a client on this machine."""
        return url_of(self._socket)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the address as soon as requests are answered."""
        url = self.url

        def ready() -> None:
            self.ready.set()
            say(url)

        run(self._serve(ready), self.loggers)

    def stop(self) -> None:
        """Ask it to end; from any thread."""
        if self._server is not None:
            self._server.should_exit = True

    @abstractmethod
    async def _serve(self, ready: Callable[[], None]) -> None:
        """Answer on the socket until the end; ``ready`` is called when that begins."""


LINGER_S: Final = 10.0
"""For what is still to be written when the app is done with a websocket; uvicorn waits as long for a good-bye."""


class Socket(WebSocketsSansIOProtocol):
    """Uvicorn's websocket, with three things mended.

    To close one waits for what is still to be written: who does not read is cut off by ``scope["state"]["abort"]``, and
    some time after the app has ended. While he does not read, answers to his pings would pile up: only the latest is
    kept. And a refusal is an answer: uvicorn would log each as an app that forgot to answer.
    """

    _pong = b""

    def handle_connect(self, event: Request) -> None:
        """The request for an upgrade came in."""
        super().handle_connect(event)
        scope: Any = getattr(self, "scope", None)
        if scope is not None:
            scope["state"]["abort"] = self.transport.abort

    def handle_ping(self) -> None:
        """A ping came in; the protocol has made the answer."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self._pong = b"".join(self.conn.data_to_send()) or self._pong

    def resume_writing(self) -> None:
        """The other side reads again."""
        super().resume_writing()
        pong, self._pong = self._pong, b""
        self.transport.write(pong)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The app has ended."""
        super().on_task_complete(task)
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)

    async def send(self, message: Any) -> None:
        """What the app says."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True


class Admission:
    """Who may ask: whoever has the token; without one, programs on this machine.

    Without a token the server only listens on loopback. That keeps other machines out, but not a web page in a browser
    on this one; so requests that a page made (they have an Origin), or that name a host which only some DNS says is
    here, are refused.
    """

    def __init__(self, token: str | None, host: str, *, bare: bool = False) -> None:
        self._host = host.lower()
        self._token = None if token is None else token.encode()
        self._bare = bare  # the token may also be all that the header Authorization says

    def check(self, scope: Scope) -> None:
        """Raise the answer for the one who may not."""
        headers = HTTPConnection(scope).headers
        if self._token is None:
            host = headers.get("host", "localhost").rpartition("@")[2]
            name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if "origin" in headers or not (name.lower() in ("localhost", self._host) or _is_loopback_address(name)):
                raise HTTPException(403, "without a token only programs on this machine may ask, no web pages")
            return
        told = headers.get("authorization", "").strip()
        kind, _, given = told.partition(" ")
        if kind.lower() != "bearer":
            given = told if self._bare else ""
        if not hmac.compare_digest(given.strip().encode(), self._token):
            raise HTTPException(401, "the header Authorization: Bearer TOKEN is missing or wrong",
                                {"www-authenticate": "Bearer"})  # fmt: skip


def check_host(host: str, token: str | None) -> None:
    """`Misuse` for a server that would listen to everybody without a token."""
    if token is None and not is_loopback(host):
        raise Misuse(f"host is {host!r}: to listen on more than loopback needs a token", host=host)


def is_loopback(host: str) -> bool:
    """Is this only reached from this machine?

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return all(_is_loopback_address(str(at[0]).partition("%")[0]) for *_, at in _addresses(host, 0))


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
    """A socket that listens there; port 0: any that is free."""
    family, kind, protocol, _, at = _addresses(host, port)[0]
    # The protocol must be named: asyncio turns Nagle's delay off only where it reads TCP there, and answers took 40 ms.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(at)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where it is, for a client on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(serving: Awaitable[None], loggers: Sequence[str]) -> None:
    """Run a server to its end, with as many files as there may be and one line for each thing that goes wrong."""

    async def main() -> None:
        await serving

    _more_files()
    with one_line_errors(loggers):
        asyncio.run(main())


def _more_files() -> None:
    """Take as many open files as the system lets us: a topic has four, a connection one, and the usual limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def one_line_errors(loggers: Sequence[str]) -> Iterator[None]:
    """What goes wrong is one line on standard error each; nothing else is logged."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("onefold: %(message)s"))
    handler.setLevel(logging.ERROR)
    for name in loggers:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).propagate = True


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        record.exc_info, record.exc_text, record.stack_info = None, None, None
        line = super().format(record)
        text = " ".join((f"{line}: {type(error).__name__}: {error}" if error else line).split())
        return printable(without_logins(text))


FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 34\r\n"
    b'retry-after: 1\r\nconnection: close\r\n\r\n{"error": "too many connections"}\n'
)


class ProtocolLimits(Protocol):
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


def config(app: ASGIApp, limits: ProtocolLimits, *, message_bytes_max: int | None) -> uvicorn.Config:
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


def connections_max(limits: ProtocolLimits, files_max: int | None = None) -> int:
    """How many connections there may be: no more than the limit, and three quarters of the files that may be open.

    >>> connections_max(HttpLimits(connections_max=1_000), files_max=400)
    300
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files_max is None else files_max
    return limits.connections_max if files == resource.RLIM_INFINITY else min(limits.connections_max, files * 3 // 4)


def bounded(limits: ProtocolLimits) -> type[H11Protocol]:
    """The protocol class for these limits; uvicorn takes a class and makes the instances itself."""

    class Bounded(_Bounded):
        bounds = limits
        room = connections_max(limits)

    return Bounded


class _Bounded(H11Protocol):
    bounds: ProtocolLimits
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

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
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


class Exposed(Collector):
    """Figures in a registry of their own, read when they are asked for; a subclass says which, by `collect`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is promised before it is asked for."""
        return []


TOO_SLOW: Final = "the body did not come within {} s"
TOO_LARGE: Final = "the body has more than {:,} bytes, the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may ask of the server."""

    connections_max: int = 1_000
    """Redis allows 10,000; each of ours may hold a body."""
    head_bytes_max: int = 16 << 10
    """Request line and headers; nginx allows 4 x 8 KiB, h11 64 KiB."""
    body_bytes_max: int = 4 << 20
    """Of an HTTP body and of a websocket message."""
    in_hand_bytes_max: int = 256 << 20
    """Of all bodies that were not answered yet, together."""
    messages_max: int = 10_000
    outstanding_max: int = 16
    """Requests on one websocket that were not answered yet; after them it is not read."""
    read_max: int = 1_000
    """Records that one GET can ask for."""
    head_s: float = 20
    """From the connection to the end of the first head."""
    keep_alive_s: float = 60
    """Of silence between two requests; nginx waits 75 s, uvicorn 5."""
    body_s: float = 30
    """For a whole body; nginx waits 60 s between two reads, which lets a body last for days."""
    linger_s: float = 1
    """How long the rest of a refused body is read and thrown away, so that the refusal can be read at all."""
    grace_s: float = 20
    """What is in hand at a shutdown may take so long."""


class Budget:
    """The bytes that are in hand, everywhere in the service.

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
        """So many more come in; `Busy` if that is too much, and they do not count."""
        if self.in_hand + size > self.bytes_max:
            raise Busy(
                f"{self.in_hand:,} bytes are in hand, {size:,} more would be over the limit of {self.bytes_max:,}"
            )
        self.in_hand += size

    def give(self, size: int) -> None:
        """So many were answered."""
        self.in_hand -= size


class Body:
    """The body of one HTTP request as it comes in, within the limits, whatever its head says of its length."""

    def __init__(self, scope: Scope, receive: Receive, limits: HttpLimits, budget: Budget) -> None:
        names = dict(scope["headers"])
        self._receive = receive
        self._limits = limits
        self._budget = budget
        self._expected = b"expect" in names  # the client waits for a "100 Continue" before it sends a body
        self._deadline: float | None = None
        self._size = 0
        self._taken = 0
        self.ended = b"transfer-encoding" not in names and names.get(b"content-length", b"0") == b"0"

    async def receive(self) -> Message:
        """The next piece, for starlette; 413, 408 or `Busy` where a limit is reached."""
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._limits.body_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._next()
        except TimeoutError:
            raise HTTPException(408, TOO_SLOW.format(self._limits.body_s)) from None
        if self._size > self._limits.body_bytes_max:
            raise HTTPException(413, TOO_LARGE.format(self._limits.body_bytes_max))
        size = len(message.get("body", b""))
        self._budget.take(size)
        self._taken += size
        return message

    async def discard(self) -> bool:
        """Read on without keeping anything, for a moment; whether that was the end, and the connection can go on."""
        if self._expected and not self._size:
            return self.ended
        try:
            async with asyncio.timeout(self._limits.linger_s):
                while not self.ended and self._size <= 2 * self._limits.body_bytes_max:
                    await self._next()
        except TimeoutError:
            pass
        return self.ended

    def close(self) -> None:
        """The request was answered: its bytes are no longer in hand."""
        self._budget.give(self._taken)
        self._taken = 0

    async def _next(self) -> Message:
        message = await self._receive()
        self._expected = False
        self._size += len(message.get("body", b""))
        self.ended = self.ended or not message.get("more_body", False)  # a disconnect has none either
        return message


class UnknownTopic(OnefoldError):
    """404: nobody made this topic."""


class Closing(OnefoldError):
    """503: the server is shutting down, try again."""


class Limited(Protocol):
    """A service whose requests have limits, and a budget of bytes that they share."""

    @property
    def limits(self) -> HttpLimits:
        """What a client may ask."""
        ...

    @property
    def budget(self) -> Budget:
        """Bytes in hand."""
        ...


RETRY_S: Final = {429: "1", 503: "1"}
OPEN_PATHS: Final = frozenset({"/healthz"})
STATUSES: Final[Mapping[type[Exception], int]] = {
    BadInput: 400,
    Misuse: 400,
    UnknownTopic: 404,
    Busy: 429,
    StaleWrite: 503,
    StoreFailed: 503,
    Closing: 503,
    Damaged: 500,
    OSError: 503,
}
log: Final = logging.getLogger("onefold.ingest")


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; those to try again say when."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    more = {"retry-after": RETRY_S[status]} if status in RETRY_S else {}
    return Response(body, status, {**more, **(headers or {})}, "application/json")


def refusal(error: BaseException) -> tuple[int, str]:
    """The status for an error, and one line on it; what nobody expected is logged and not told."""
    if isinstance(error, HTTPException):
        detail = error.detail
        phrase = HTTPStatus(error.status_code).phrase
        return error.status_code, detail if detail and detail != phrase else phrase.lower()
    for kind in type(error).__mro__:
        if kind in STATUSES:
            told = error.strerror or "" if isinstance(error, OSError) else str(error)
            status = STATUSES[kind]
            if status >= 500 and not isinstance(error, StoreFailed | Closing):
                log.error("%s: %s", type(error).__name__, error)
            return status, told or type(error).__name__
    log.error("unexpected: %s: %s", type(error).__name__, error)
    return 500, str(error) if isinstance(error, OnefoldError) else f"unexpected: {type(error).__name__}"


class Guard:
    """An ASGI app around the routes."""

    def __init__(self, app: ASGIApp, service: Limited, token: str | None, host: str) -> None:
        self._app = app
        self._service = service
        self._admission = Admission(token, host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer for it."""
        scope["app"] = self  # starlette: an unknown path is an exception, not a page
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(scope, receive, self._service.limits, self._service.budget)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if not body.ended and not await body.discard():
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, body.receive, sending)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            if not started:
                headers = error.headers if isinstance(error, HTTPException) else None
                await answer({"error": told}, status, headers)(scope, receive, sending)
        finally:
            body.close()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        upgraded = False

        async def sending(message: Message) -> None:
            nonlocal upgraded
            upgraded = upgraded or message["type"] == "websocket.accept"
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, receive, sending)
        except WebSocketDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            if upgraded:
                with suppress(RuntimeError, OSError):  # it may be closed already
                    await send({"type": "websocket.close", "code": 1011})
            else:
                headers = error.headers if isinstance(error, HTTPException) else None
                await answer({"error": told}, status, headers)(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        if scope["path"] not in OPEN_PATHS:
            self._admission.check(scope)
