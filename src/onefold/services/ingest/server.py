"""The server process: a socket, uvicorn on it, and an end that loses nothing.

SIGTERM and SIGINT stop it: no more connections, what is in hand is stored and answered, the topics save what they
remember and let go of their logs. A kill does none of that, and loses nothing that was acknowledged either.
"""

import asyncio
import contextlib
import ipaddress
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import uvicorn

from onefold.errors import Misuse
from onefold.services.ingest.app import application
from onefold.services.ingest.limits import Limits
from onefold.services.ingest.metrics import Metrics
from onefold.services.ingest.protocol import bounded
from onefold.services.ingest.service import Service
from onefold.services.topics import Topics

PORT: Final = 7654
LOGGERS: Final = ("onefold.ingest", "uvicorn.error", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where it listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    create: bool = True
    """Does a publish to an unknown topic make it?"""
    limits: Limits = field(default_factory=Limits)


class IngestServer:
    """Serves the topics of a folder until it is stopped; then closes them.

    ``run`` blocks. In the main thread it listens to signals; in any other, `stop` ends it.
    """

    def __init__(self, topics: Topics, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        if self.settings.token is None and not is_loopback(self.settings.host):
            raise Misuse(f"host is {self.settings.host!r}: to listen on more than loopback needs a token",
                         host=self.settings.host)  # fmt: skip
        self._topics = topics
        self._server: _Server | None = None
        self._socket = _listen(self.settings.host, self.settings.port)
        self.ready = threading.Event()

    @property
    def url(self) -> str:
        """Where it is, for a client on this machine."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the address as soon as requests are answered."""
        url = self.url

        def ready() -> None:
            self.ready.set()
            say(url)

        _more_files()
        with _one_line_errors():
            asyncio.run(self._serve(ready))

    def stop(self) -> None:
        """Ask it to end; from any thread."""
        if self._server is not None:
            self._server.should_exit = True

    async def _serve(self, ready: Callable[[], None]) -> None:
        limits = self.settings.limits
        service = Service(self._topics, limits, create=self.settings.create)
        metrics = Metrics(service, lambda: len(server.server_state.connections))
        app = application(service, metrics, self.settings.token, self.settings.host)
        server = self._server = _Server(_config(app, limits), service, ready)
        tending = asyncio.create_task(service.tend())
        try:
            await server.serve([self._socket])
        finally:
            tending.cancel()
            await service.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._service.drain(self._service.limits.grace_s)  # uvicorn would cut the websockets off
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


def _config(app: object, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # uvicorn has ASGI types of its own
        http=bounded(limits),
        ws="websockets-sansio",
        ws_max_size=limits.body_bytes_max,
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


def is_loopback(host: str) -> bool:
    """Is this only reached from this machine?

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return all(ipaddress.ip_address(str(at[0]).partition("%")[0]).is_loopback for *_, at in _addresses(host, 0))


def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)  # type: ignore[return-value]
    except OSError as error:
        raise Misuse(f"host is {host!r}: {error.strerror}", host=host) from error


def _listen(host: str, port: int) -> socket.socket:
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


def _more_files() -> None:
    """Take as many open files as the system lets us: a topic has four, a connection one, and the usual limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """What goes wrong is one line on standard error each; nothing else is logged."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("onefold: %(message)s"))
    handler.setLevel(logging.ERROR)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).propagate = True


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        record.exc_info, record.exc_text, record.stack_info = None, None, None
        line = super().format(record)
        return " ".join((f"{line}: {type(error).__name__}: {error}" if error else line).split())
