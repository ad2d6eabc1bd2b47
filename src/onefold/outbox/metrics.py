"""/metrics and /healthz of a consumer, on loopback, in a thread beside it; figures are read at each request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from onefold.net.http import HttpServer
from onefold.net.limits import HttpLimits
from onefold.outbox.ports import FOREVER_MS
from onefold.outbox.runner import describe
from onefold.outbox.worker import Consumer, log

PREFIX: Final = "onefold_outbox"
COUNTED_MAX: Final = 1_000
"""Outbox entries and dead letters are counted up to here, because each has to be read."""


def outbox_metrics(consumer: Consumer) -> Iterator[Metric]:
    """The metrics of a consumer; those of its stores are left out while a store does not answer."""
    name, books, recovered = consumer.app.name, consumer.books, consumer.recovered
    deliveries = CounterMetricFamily(
        f"{PREFIX}_deliveries", "Deliveries by verdict and reason.", labels=["endpoint", "verdict", "reason"]
    )
    for answer, count in books.tally():
        deliveries.add_metric([name, str(answer.verdict), answer.reason], count)
    yield deliveries
    for what, help_text, count in (
        ("set_aside", "Messages that this consumer made dead letters.", books.buried),
        ("recovered", "Outbox entries that the pump finished.", recovered.finished),
        ("swept", "Tokens that the pump removed because no message uses them.", recovered.swept),
        ("purged", "Tombstones that the pump removed.", recovered.purged),
    ):
        yield _labelled(CounterMetricFamily, what, help_text, "endpoint", {name: count})
    try:
        yield from list(_stored(consumer))
    except Exception as error:
        log.warning("the metrics of the stores are left out: %s", describe(error))


def _stored(consumer: Consumer) -> Iterator[Metric]:
    app, gauge = consumer.app, GaugeMetricFamily
    world, live = app.world, app.world.tokens.live()
    age_s = 0.0 if live.oldest_ms is None else max(0, app.clock_ms() - live.oldest_ms) / 1000
    yield gauge(f"{PREFIX}_live_tokens", "Tokens in the token store, for all endpoints.", live.tokens)
    yield gauge(f"{PREFIX}_oldest_token_seconds", "Age of the oldest token.", age_s)
    entries = {app.name: len(world.entities.stranded(FOREVER_MS, COUNTED_MAX, app.name))}
    yield _labelled(gauge, "entries", f"Outbox entries, {COUNTED_MAX} at most.", "endpoint", entries)
    buried = {queue: len(world.queue.buried(COUNTED_MAX, queue)) for queue in app.handlers}
    yield _labelled(gauge, "buried", f"Dead letters, {COUNTED_MAX} at most.", "queue", buried)
    parcels = world.queue.waiting()
    waiting = {queue: parcels.get(queue, 0) for queue in app.handlers}
    yield _labelled(gauge, "waiting", "Messages in the queues, leased or not.", "queue", waiting)


def _labelled(
    family: type[CounterMetricFamily | GaugeMetricFamily], what: str, help_text: str, label: str, values: dict[str, int]
) -> Metric:
    metric = family(f"{PREFIX}_{what}", help_text, labels=[label])
    for name, value in values.items():
        metric.add_metric([name], value)
    return metric


HOST: Final = "127.0.0.1"
LIMITS: Final = HttpLimits(connections_max=16, grace_s=1)
"""A monitor asks twice a minute."""


class ConsumerServer(HttpServer):
    """/metrics and /healthz without a token, hence on loopback only."""

    name = "outbox"
    open_paths = ()

    def __init__(self, consumer: Consumer, port: int) -> None:
        self._consumer = consumer
        super().__init__(HOST, port, None, LIMITS)

    async def serve(self) -> None:
        consumer = self._consumer

        def health() -> dict[str, Any]:
            if consumer.trouble is not None:
                return {"problem": consumer.trouble}
            return {"endpoint": consumer.app.name, "queues": list(consumer.app.handlers)}

        await self.answer([], health=health, metrics=lambda: outbox_metrics(consumer), blocking=True)


@contextmanager
def watched(consumer: Consumer, port: int) -> Iterator[str]:
    """Serve within this context, at the URL it yields; port 0: any free port."""
    server = ConsumerServer(consumer, port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="onefold-watching", daemon=True)
    thread.start()
    server.ready.wait()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join()
