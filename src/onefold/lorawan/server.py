"""The gateway server process: its routes, metrics and shutdown.

SIGTERM and SIGINT stop it: it reads no more, decides and stores the receptions in progress, and acknowledges them.
After a kill the next start continues from the counters and the log. SIGHUP reloads the registry, and so does a change
of its file.

    /router-info, /router/<eui>    websockets, for stations: see `lns`
    GET /healthz, /metrics

All but /healthz need the token. Stations send it as Basics Station does: their file ``tc.key`` holds the header,
``Authorization: Bearer TOKEN`` or ``Authorization: TOKEN``.
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
    "in_hand": "Receptions in progress.",
    "in_flight": "Receptions without an answer.",
    "claiming": "Claims without a result, and receptions that wait for a look-up.",
    "parked": "Those of them that wait for a coordinator that is down.",
    "devices": "Devices in the registry.",
    "sessions": "Devices heard since the start.",
    "sightings": "Frames that level 1 remembers.",
    "unaccounted": "Arrivals minus verdicts while nothing is in progress; anything but 0 is an error of the server.",
}
FIGURES: Final = {
    "arrived": "Receptions read by the links; receptions_total counts them where they are judged.",
    "evicted": "Frames that level 1 evicted before their expiry.",
    "recovered": "Records that an earlier run had won and not stored.",
    "unreadable": "Records that an earlier run had won and that cannot be read.",
    "unstored": "Records given up at shutdown.",
    "unkept": "Receptions that --keep-all did not store, because too many waited for the disk.",
    "failed": "Receptions that ended in an unexpected error.",
}


PORT: Final = 7655
COUNTERS: Final = "counters.db"
"""In the server's folder: the counters of the devices that only it serves."""
WATCH_S: Final = 2.0
TEND_S: Final = 10.0


def gateway_metrics(
    service: GatewayService, lns: Lns, links: Mapping[str, GatewayLink], connections: int
) -> Iterator[Metric]:
    """All metrics, read from the service at each scrape."""
    receptions = CounterMetricFamily(
        f"{PREFIX}_receptions", "Receptions by answer and status.", labels=["verdict", "reason", "status"]
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
    """0: any free port."""
    token: str | None = field(default=None, repr=False)
    public_url: str | None = None
    """Where the discovery sends stations, such as ``wss://...`` of a proxy; None: to the host that they asked."""
    coordinator: str | None = field(default=None, repr=False)
    """The URL of the counters that all servers share, perhaps with a password; None: this is the only server."""
    gateway: GatewaySettings = field(default_factory=GatewaySettings)


class GatewayServer(HttpServer):
    """Serves stations until it is stopped.

    ``run`` blocks. In the main thread signals end it; in any other, `stop` does. ``topic`` opens a durable topic by its
    name; ``links`` makes the links of the other protocols.
    """

    name = "gateway"

    def __init__(
        self, folder: Path, devices: Path, topic: Callable[[str], DurableTopic],
        settings: GatewayServerSettings | None = None, *, counters: CounterStore | None = None,
        links: Callable[[GatewayService], Mapping[str, GatewayLink]] = lambda service: {},
    ) -> None:  # fmt: skip
        self.settings = settings = settings or GatewayServerSettings()
        check_host(settings.host, settings.token)  # before any file is opened or created
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
        """Settings of the coordinator that can lose data, or why it does not answer; one sentence each. Blocks."""
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
            """Reload the registry when its file has changed, and on SIGHUP."""
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
                ending.push_async_callback(link.stop)  # after the drain, which sends acknowledgements
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
