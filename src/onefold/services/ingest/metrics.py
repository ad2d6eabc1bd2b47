"""What there is to watch, for Prometheus: read from the topics when somebody asks, counted nowhere twice."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.services.figures import Exposed
from onefold.services.ingest.service import Service

GAUGES = {
    "producers": "Producers that are remembered.",
    "pending": "Parts, sessions and keys that are judged and not stored yet.",
    "queued_bytes": "Bytes of payload that wait to be stored.",
    "end": "The offset that the next record gets.",
    "start": "The first offset that is kept.",
    "clock_off_ms": "How far the wall clock is ahead of the topic's time; not 0: it was set, and is not believed yet.",
}
NAMES = {"end": "log_end_offset", "start": "log_start_offset"}


class Metrics(Exposed):
    """The figures of a service, in a registry of their own."""

    def __init__(self, service: Service, connections: Callable[[], int]) -> None:
        self._service = service
        self._connections = connections
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they are now."""
        desks = dict(self._service.desks)
        yield GaugeMetricFamily("onefold_topics", "Topics that are open.", len(desks))
        yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", self._connections())
        yield GaugeMetricFamily("onefold_in_hand_bytes", "Bytes of bodies in hand.", self._service.budget.in_hand)
        messages = CounterMetricFamily(
            "onefold_messages", "Messages by what became of them.", labels=["topic", "verdict", "reason"]
        )
        arrived = CounterMetricFamily("onefold_messages_in", "Messages that arrived.", labels=["topic"])
        unjudged = GaugeMetricFamily(
            "onefold_messages_unjudged", "Messages that arrived and have no verdict; at rest 0.", labels=["topic"]
        )
        groups = CounterMetricFamily("onefold_groups", "Commit groups: one write and one sync each.", labels=["topic"])
        gauges = {
            key: GaugeMetricFamily(f"onefold_{NAMES.get(key, key)}", told, labels=["topic"])
            for key, told in GAUGES.items()
        }
        for name, desk in desks.items():
            books = desk.topic.books()
            arrived.add_metric([name], books.received)
            unjudged.add_metric([name], books.pending)
            for answer, count in books:
                messages.add_metric([name, str(answer.verdict), answer.reason], count)
            figures = desk.topic.figures()
            groups.add_metric([name], figures["groups"])
            for key, gauge in gauges.items():
                gauge.add_metric([name], figures[key])
        yield from (messages, arrived, unjudged, groups, *gauges.values())
