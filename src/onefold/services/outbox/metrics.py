"""What there is to watch of a consumer, for Prometheus: read from its books and the stores when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.ports import FOREVER_MS
from onefold.services.figures import Exposed
from onefold.services.outbox.books import log
from onefold.services.outbox.calling import describe
from onefold.services.outbox.consumer import Consumer

PREFIX: Final = "onefold_outbox"
COUNTED_MAX: Final = 1_000
"""Outbox entries and dead letters are counted up to here: they are read for it, and more is as bad."""


class Metrics(Exposed):
    """The figures of a consumer, in a registry of their own; those of a store that does not answer are left out."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they are now."""
        name, books, recovered = self._consumer.app.name, self._consumer.books, self._consumer.recovered
        deliveries = CounterMetricFamily(
            f"{PREFIX}_deliveries", "Deliveries by what became of them.", labels=["endpoint", "verdict", "reason"]
        )
        for answer, count in books.tally():
            deliveries.add_metric([name, str(answer.verdict), answer.reason], count)
        yield deliveries
        yield _counter("set_aside", "Messages that this consumer made dead letters.", name, books.buried)
        yield _counter("recovered", "Outbox entries that the pump finished.", name, recovered.finished)
        yield _counter("swept", "Tokens that the pump removed: they were made for nothing.", name, recovered.swept)
        yield _counter("purged", "Tombstones that the pump removed.", name, recovered.purged)
        try:
            yield from list(self._stored(name))
        except Exception as error:
            log.warning("figures of the stores: %s", describe(error))

    def _stored(self, name: str) -> Iterator[Metric]:
        app = self._consumer.app
        world, live = app.world, app.world.tokens.live()
        age_s = 0.0 if live.oldest_ms is None else max(0, app.clock_ms() - live.oldest_ms) / 1000
        yield GaugeMetricFamily(f"{PREFIX}_live_tokens", "Tokens in the token store, of all endpoints.", live.tokens)
        yield GaugeMetricFamily(f"{PREFIX}_oldest_token_seconds", "How long the oldest token exists.", age_s)
        entries = len(world.entities.stranded(FOREVER_MS, COUNTED_MAX, name))
        yield _gauge("entries", f"Outbox entries, {COUNTED_MAX} at most.", "endpoint", {name: entries})
        buried = {queue: len(world.queue.buried(COUNTED_MAX, queue)) for queue in app.handlers}
        yield _gauge("buried", f"Dead letters, {COUNTED_MAX} at most.", "queue", buried)
        waiting = world.queue.waiting()
        yield _gauge(
            "waiting", "Messages in the queues, on loan or not.", "queue", {q: waiting.get(q, 0) for q in app.handlers}
        )


def _counter(what: str, told: str, endpoint: str, count: int) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{what}", told, labels=["endpoint"])
    family.add_metric([endpoint], count)
    return family


def _gauge(what: str, told: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{what}", told, labels=[label])
    for name, value in values.items():
        family.add_metric([name], value)
    return family
