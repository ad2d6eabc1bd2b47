"""What every server of this room shares: a socket, uvicorn on it, who may ask, and an end that loses nothing.

SIGTERM and SIGINT stop a server: no more connections, what is in hand is finished, the process ends with 0.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import resource
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Scope
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from onefold.errors import Misuse
from onefold.links.plain import printable, without_logins


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
