"""The server process: stations in front, counters and log behind, and an end that loses nothing.

SIGTERM and SIGINT stop it: nothing more is read, what is in hand is decided and stored, its acknowledgements are sent.
A kill does none of that; the counters and the log are where they were, and the next start goes on from them. SIGHUP
reads the registry again, and so does a change of its file.

    /router-info, /router/<eui>    websockets, for stations: see `lns`
    GET /healthz, /metrics

Whoever asks needs the token, but for /healthz. Stations send it as Basics Station does: the file ``tc.key`` holds the
header, ``Authorization: Bearer TOKEN`` or the bare ``Authorization: TOKEN``.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.clock import wall_ms
from onefold.lorawan.flow import DurableTopic, GatewayService, GatewaySettings
from onefold.lorawan.links.lns import Lns
from onefold.lorawan.ports import CounterStore, open_counters
from onefold.lorawan.radio import GatewayLink
from onefold.lorawan.registry import RegistryFile
from onefold.lorawan.stores.sqlite import SqliteCounters
from onefold.net.http import Admission, HttpServer, check_host, websocket_route

PREFIX: Final = "onefold_gateway"
GAUGES: Final = {
    "in_hand": "Receptions that were taken and are not done.",
    "in_flight": "Receptions without an answer.",
    "claiming": "Claims in flight, and receptions that wait for a look-up.",
    "parked": "How many of them wait for a coordinator that is down.",
    "devices": "Devices in the registry.",
    "sessions": "Devices that were heard since the start.",
    "sightings": "Frames that level 1 remembers.",
    "unaccounted": "Receptions that arrived and have no verdict, at rest; anything but 0 is an error of the server.",
}
FIGURES: Final = {
    "arrived": "Receptions as the links read them; what became of them is counted where they are judged.",
    "evicted": "Frames that level 1 forgot too early.",
    "recovered": "Records an earlier run left behind.",
    "unreadable": "Records an earlier run left behind that cannot be read.",
    "unstored": "Records given up at the end.",
    "unkept": "Receptions that were to be kept, and too many waited for the disk.",
    "failed": "Receptions that ended in an error of ours.",
}


PORT: Final = 7655
COUNTERS: Final = "counters.db"
"""In the server's folder: the counters of the devices that only it serves."""
WATCH_S: Final = 2.0
TEND_S: Final = 10.0


def gateway_metrics(
    service: GatewayService, lns: Lns, links: Mapping[str, GatewayLink], connections: int
) -> Iterator[Metric]:
    """What there is to watch: read from the service when somebody asks, counted nowhere twice."""
    receptions = CounterMetricFamily(
        f"{PREFIX}_receptions", "Receptions by what became of them.", labels=["verdict", "reason", "status"]
    )
    for (judged, status), count in sorted(service.statuses.items()):
        receptions.add_metric([str(judged.verdict), judged.reason, status], count)
    yield receptions
    for name, meaning, label, counts in (
        ("downlinks", "Acknowledgements, by outcome.", "outcome", service.downlinks.outcomes.items()),
        ("messages", "Messages of stations, by kind.", "msgtype", sorted(lns.messages.items())),
    ):
        family = CounterMetricFamily(f"{PREFIX}_{name}", meaning, labels=[label])
        for value, count in counts:
            family.add_metric([value], count)
        yield family
    protocols = GaugeMetricFamily(f"{PREFIX}_link", "Figures of the other protocols.", labels=["link", "figure"])
    for name, link in links.items():
        for figure, count in link.figures().items():
            protocols.add_metric([name, figure], count)
    yield protocols
    yield HistogramMetricFamily(
        f"{PREFIX}_decision_seconds", "From the arrival of a reception to its answer.",
        buckets=service.latency.buckets(), sum_value=service.latency.sum_s,
    )  # fmt: skip
    figures = service.figures()
    for name, meaning in GAUGES.items():
        yield GaugeMetricFamily(f"{PREFIX}_{name}", meaning, figures[name])
    yield GaugeMetricFamily(f"{PREFIX}_stations", "Stations that are connected.", len(lns.stations))
    yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", connections)
    for name, meaning in FIGURES.items():
        yield CounterMetricFamily(f"{PREFIX}_{name}", meaning, figures[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServerSettings:
    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    public_url: str | None = None
    """Where stations are sent by the discovery, if not to where they asked: ``wss://...`` of a proxy in front."""
    coordinator: str | None = field(default=None, repr=False)
    """The address of the counters that all servers share; None: this server is the only one. May hold a password."""
    gateway: GatewaySettings = field(default_factory=GatewaySettings)


class GatewayServer(HttpServer):
    """Serves stations until it is stopped.

    ``run`` blocks. In the main thread it listens to signals; in any other, `stop` ends it. ``topic`` opens a
    durable topic by its name; ``links`` makes the other protocols' links, for a service.
    """

    name = "gateway"

    def __init__(
        self, folder: Path, devices: Path, topic: Callable[[str], DurableTopic],
        settings: GatewayServerSettings | None = None, *, counters: CounterStore | None = None,
        links: Callable[[GatewayService], Mapping[str, GatewayLink]] = lambda service: {},
    ) -> None:  # fmt: skip
        self.settings = settings = settings or GatewayServerSettings()
        check_host(settings.host, settings.token)  # before anything is opened or made
        self.registry = RegistryFile(devices)
        self.links: Mapping[str, GatewayLink] = {}
        self.service: GatewayService | None = None
        self._make_links = links
        folder.mkdir(parents=True, exist_ok=True)
        self._topic = topic
        self._shared = counters
        if counters is None and self.settings.coordinator is not None:
            self._shared = open_counters(self.settings.coordinator)
        self._local = SqliteCounters(folder / COUNTERS, wall_ms)
        super().__init__(settings.host, settings.port, settings.token, settings.gateway.limits)

    def warnings(self) -> list[str]:
        """What the coordinator is set up to lose, or why it does not say; one sentence each. Blocks."""
        ask: Callable[[], list[str]] | None = getattr(self._shared, "warnings", None)
        if ask is None:
            return []
        try:
            return ask()
        except Exception as error:
            return [f"the coordinator is not there: {error}"]

    async def serve(self) -> None:
        settings, limits = self.settings, self.settings.gateway.limits
        service = self.service = GatewayService(
            settings.gateway, self.registry.registry, self._topic, shared=self._shared, local=self._local
        )
        lns = Lns(service, public_url=settings.public_url)

        def health() -> dict[str, Any]:
            problems = {} if self.registry.problem is None else {"registry": self.registry.problem}
            problems |= {name: link.problem for name, link in self.links.items() if link.problem is not None}
            problems |= service.problems()
            return {"problems": problems} if problems else {"stations": len(lns.stations)}

        hung_up = asyncio.Event()

        async def watch() -> None:
            """Use the registry again when its file has changed, and on SIGHUP."""
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(hung_up.wait(), WATCH_S)
                changed = not hung_up.is_set()
                hung_up.clear()
                if await asyncio.to_thread(self.registry.reload, changed=changed):
                    service.sessions.use(self.registry.registry)

        async def tend() -> None:
            while True:
                await asyncio.sleep(TEND_S)
                await asyncio.to_thread(service.tend)

        async def drain() -> None:
            lns.stop_reading()
            await service.drain(limits.grace_s)
            await lns.close()

        async with AsyncExitStack() as ending:
            ending.push_async_callback(service.close)
            links = self.links = self._make_links(service)
            for link in links.values():
                ending.push_async_callback(link.stop)  # after the last request: they too have acknowledgements to send
                await link.start()
            if threading.current_thread() is threading.main_thread():
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
            await self.answer(
                [websocket_route("/router-info", lns.discover), websocket_route("/router/{eui}", lns.serve)],
                health=health,
                metrics=lambda: gateway_metrics(service, lns, links, self.connections),
                admission=Admission(settings.token, settings.host, bare=True),
                message_bytes_max=limits.message_bytes_max,
                drain=drain,
                beside=[watch(), tend()],
            )
        service.tally.check()
