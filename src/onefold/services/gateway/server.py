"""The server process: stations in front, counters and log behind, and an end that loses nothing.

SIGTERM and SIGINT stop it: nothing more is read, what is in hand is decided and stored, its acknowledgements are sent.
A kill does none of that; the counters and the log are where they were, and the next start goes on from them. SIGHUP
reads the registry again, and so does a change of its file.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from onefold.ports import CounterStore
from onefold.services import serving
from onefold.services.bounded_http import config
from onefold.services.gateway.app import application
from onefold.services.gateway.lns import Lns
from onefold.services.gateway.metrics import Metrics
from onefold.services.gateway.registry_files import RegistryFile
from onefold.services.gateway.service import GatewayService
from onefold.services.gateway.settings import GatewaySettings
from onefold.services.topic_settings import TopicSettings, wall_ms
from onefold.services.topics import Topics
from onefold.stores.counters import open_counters
from onefold.stores.sqlite.counter_store import SqliteCounters

PORT: Final = 7655
LOGGERS: Final = ("onefold.gateway", "onefold.ingest", "uvicorn.error", "asyncio")
COUNTERS: Final = "counters.db"
"""In the server's folder: the counters of the devices that only it serves."""
WATCH_S: Final = 2.0
TEND_S: Final = 10.0


class Link(Protocol):
    """Another protocol that brings receptions in."""

    problem: str | None
    """Why it brings none; None: it can."""

    async def start(self) -> None:
        """Begin to take them."""
        ...

    async def stop(self) -> None:
        """Take no more."""
        ...

    def figures(self) -> Mapping[str, int]:
        """What there is to watch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where it listens, for whom, and what stands behind it."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    public_url: str | None = None
    """Where stations are sent by the discovery, if not to where they asked: ``wss://...`` of a proxy in front."""
    coordinator: str | None = field(default=None, repr=False)
    """The address of the counters that all servers share; None: this server is the only one. May hold a password."""
    topics: TopicSettings = field(default_factory=TopicSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)


class GatewayServer(serving.Listening):
    """Serves stations until it is stopped.

    ``run`` blocks. In the main thread it listens to signals; in any other, `stop` ends it. ``links`` makes the other
    protocols' links, for a service.
    """

    loggers = LOGGERS

    def __init__(
        self,
        folder: Path,
        devices: Path,
        settings: ServerSettings | None = None,
        *,
        links: Callable[[GatewayService], Mapping[str, Link]] = lambda service: {},
        counters: CounterStore | None = None,
    ) -> None:
        self.settings = settings or ServerSettings()
        serving.check_host(self.settings.host, self.settings.token)  # before anything is opened or made
        self.registry = RegistryFile(devices)
        self.links: Mapping[str, Link] = {}
        self.service: GatewayService | None = None
        self._make_links = links
        folder.mkdir(parents=True, exist_ok=True)
        self._topics = Topics(folder, self.settings.topics)
        self._shared = counters
        if counters is None and self.settings.coordinator is not None:
            self._shared = open_counters(self.settings.coordinator)
        self._local = SqliteCounters(folder / COUNTERS, wall_ms)
        super().__init__(self.settings.host, self.settings.port, self.settings.token)

    def warnings(self) -> list[str]:
        """What the coordinator is set up to lose, or why it does not say; one sentence each. Blocks."""
        ask: Callable[[], list[str]] | None = getattr(self._shared, "warnings", None)
        if ask is None:
            return []
        try:
            return ask()
        except Exception as error:
            return [f"the coordinator is not there: {error}"]

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the address as soon as stations are answered."""
        try:
            super().run(say)
        finally:
            self._topics.close()

    async def _serve(self, ready: Callable[[], None]) -> None:
        service = self.service = GatewayService(
            self.settings.gateway, self.registry.registry, self._topics, shared=self._shared, local=self._local
        )
        try:
            await self._answer(service, ready)
        finally:
            await service.close()
        service.tally.check()

    async def _answer(self, service: GatewayService, ready: Callable[[], None]) -> None:
        settings, limits = self.settings, self.settings.gateway.limits
        lns = Lns(service, public_url=settings.public_url)
        links = self.links = self._make_links(service)
        figures = {name: link.figures for name, link in links.items()}
        metrics = Metrics(service, lns, lambda: len(server.server_state.connections), figures)
        admission = serving.Admission(settings.token, settings.host, bare=True)
        app = application(service, lns, metrics, admission, told=settings.token is None, problems=self._problems)

        async def drain() -> None:
            lns.stop_reading()
            await service.drain(limits.grace_s)
            await lns.close()

        server = self._server = serving.Server(
            config(app, limits, message_bytes_max=limits.message_bytes_max), ready, drain
        )
        tasks = [asyncio.create_task(work) for work in (self._watch(service), _tend(service))]
        try:
            for link in links.values():
                await link.start()
            self._on_hangup(service)
            await server.serve([self._socket])
        finally:
            for task in tasks:
                task.cancel()
            for link in links.values():  # last: they too had acknowledgements to send
                await link.stop()

    def _problems(self) -> dict[str, str]:
        found = {} if self.registry.problem is None else {"registry": self.registry.problem}
        found |= {name: link.problem for name, link in self.links.items() if link.problem is not None}
        return found | (self.service.problems() if self.service is not None else {})

    async def _watch(self, service: GatewayService) -> None:
        """Use the registry again when its file has changed."""
        while True:
            await asyncio.sleep(WATCH_S)
            await self._reload(service, changed=True)

    async def _reload(self, service: GatewayService, *, changed: bool) -> None:
        if await asyncio.to_thread(lambda: self.registry.reload(changed=changed)):
            service.use(self.registry.registry)

    def _on_hangup(self, service: GatewayService) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        running: set[asyncio.Task[None]] = set()

        def reload() -> None:
            running.add(task := asyncio.create_task(self._reload(service, changed=False)))
            task.add_done_callback(running.discard)

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


async def _tend(service: GatewayService) -> None:
    """See to what the topics owe by the clock alone (snapshots, retention), for ever."""
    while True:
        await asyncio.sleep(TEND_S)
        await asyncio.to_thread(service.delivery.tend)
