"""What there is to watch of a reconcile server, for Prometheus: read from its books when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.services.figures import Exposed
from onefold.services.reconciler.books import Books
from onefold.services.reconciler.transfer import NOT_TAKEN, OUTCOMES

PREFIX: Final = "onefold_reconcile"
COUNTERS: Final = {
    "sessions": "Sessions that were opened.",
    "bytes_in": "Bytes of messages that came in.",
    "bytes_out": "Bytes of messages that went out.",
    "fetched": "Records that were asked for and answered.",
}


class Metrics(Exposed):
    """The figures of a server, in a registry of their own."""

    def __init__(self, books: Books, connections: Callable[[], int]) -> None:
        self._books = books
        self._connections = connections
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they are now."""
        yield GaugeMetricFamily("onefold_connections", "Connections of all kinds.", self._connections())
        yield GaugeMetricFamily(f"{PREFIX}_open_sessions", "Sessions that are open.", self._books.sessions)
        for name, told in COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", told, self._books.of(name))
        books = self._books.pushed()
        yield CounterMetricFamily(f"{PREFIX}_arrived", "Records that came to be stored.", books.received)
        yield GaugeMetricFamily(f"{PREFIX}_pending", "Records that came and have no outcome; 0 at rest.", books.pending)
        pushed = CounterMetricFamily(f"{PREFIX}_pushed", "Records that were pushed, by outcome.", labels=["outcome"])
        for verdict, reason in (*OUTCOMES.values(), NOT_TAKEN):
            pushed.add_metric([reason], books.count(verdict, reason))
        yield pushed
        errors = CounterMetricFamily(f"{PREFIX}_errors", "Errors that peers were told, by name.", labels=["error"])
        for name, count in sorted(self._books.troubles().items()):
            errors.add_metric([name], count)
        yield errors
