"""What there is to watch, for Prometheus: read from the service when somebody asks, counted nowhere twice."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.services.figures import Exposed
from onefold.services.gateway.lns import Lns
from onefold.services.gateway.service import GatewayService

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
COUNTERS: Final = {
    "arrived": "Receptions as the links read them; what became of them is counted where they are judged.",
    "evicted": "Frames that level 1 forgot too early.",
    "recovered": "Records an earlier run left behind.",
    "unreadable": "Records an earlier run left behind that cannot be read.",
    "unstored": "Records given up at the end.",
    "unkept": "Receptions that were to be kept, and too many waited for the disk.",
    "failed": "Receptions that ended in an error of ours.",
}
Figures = Callable[[], Mapping[str, int]]


class Metrics(Exposed):
    """The figures of a gateway's server, in a registry of their own; ``links``: those of other protocols."""

    def __init__(
        self, service: GatewayService, lns: Lns, connections: Callable[[], int], links: Mapping[str, Figures]
    ) -> None:
        self._service = service
        self._lns = lns
        self._connections = connections
        self._links = links
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they are now."""
        delivery = self._service.delivery
        receptions = CounterMetricFamily(
            f"{PREFIX}_receptions", "Receptions by what became of them.", labels=["verdict", "reason", "status"]
        )
        for (answer, status), count in sorted(delivery.statuses.items()):
            receptions.add_metric([str(answer.verdict), answer.reason, status], count)
        yield receptions
        downlinks = CounterMetricFamily(f"{PREFIX}_downlinks", "Acknowledgements, by outcome.", labels=["outcome"])
        for name, count in delivery.downlinks.figures().items():
            downlinks.add_metric([name], count)
        yield downlinks
        messages = CounterMetricFamily(f"{PREFIX}_messages", "Messages of stations, by kind.", labels=["msgtype"])
        for name, count in sorted(self._lns.messages.items()):
            messages.add_metric([name], count)
        yield messages
        links = GaugeMetricFamily(f"{PREFIX}_link", "Figures of the other protocols.", labels=["link", "figure"])
        for link, ask in self._links.items():
            for name, count in ask().items():
                links.add_metric([link, name], count)
        yield links
        yield HistogramMetricFamily(
            f"{PREFIX}_decision_seconds", "From the arrival of a reception to its answer.",
            buckets=delivery.latency.buckets(), sum_value=delivery.latency.sum_s,
        )  # fmt: skip
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        figures = self._service.figures()
        for name, told in GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", told, figures[name])
        yield GaugeMetricFamily(f"{PREFIX}_stations", "Stations that are connected.", len(self._lns.stations))
        yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", self._connections())
        for name, told in COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", told, figures[name])
