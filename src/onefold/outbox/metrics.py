"""/metrics and /healthz of a consumer, on loopback, in a thread beside it.

What there is to watch of a consumer, for Prometheus: read from its books and the stores when somebody asks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from onefold.net import http as serving
from onefold.net.http import Exposed, HttpLimits, config
from onefold.outbox.ports import FOREVER_MS
from onefold.outbox.runner import describe
from onefold.outbox.worker import Consumer, log

PREFIX: Final = "onefold_outbox"
COUNTED_MAX: Final = 1_000
"""Outbox entries and dead letters are counted up to here: they are read for it, and more is as bad."""


class OutboxMetrics(Exposed):
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


HOST: Final = "127.0.0.1"
LIMITS: Final = HttpLimits(connections_max=16, grace_s=1)
"""Who watches asks twice a minute."""


@contextmanager
def watched(consumer: Consumer, port: int) -> Iterator[str]:
    """Answer while this lasts, at the address that it gives; port 0: any that is free."""
    listener = serving.listen(HOST, port)
    ready = threading.Event()

    async def drained() -> None:
        pass

    server = serving.Server(config(application(consumer), LIMITS, message_bytes_max=None), ready.set, drained)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve([listener])), name="onefold-watching", daemon=True
    )
    thread.start()
    ready.wait()
    try:
        yield serving.url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def application(consumer: Consumer) -> ASGIApp:
    """The two routes; without a token, so for programs on this machine only."""
    metrics = OutboxMetrics(consumer)
    admission = serving.Admission(None, HOST)

    async def healthz(request: Request) -> Response:
        if consumer.trouble is not None:
            return JSONResponse({"status": "trouble", "problem": consumer.trouble}, 503)
        return JSONResponse({"status": "ok", "endpoint": consumer.app.name, "queues": list(consumer.app.handlers)})

    async def figures(request: Request) -> Response:
        return Response(await asyncio.to_thread(metrics.text), media_type=CONTENT_TYPE_LATEST)

    router = Router(
        [Route("/healthz", healthz, methods=["GET"]), Route("/metrics", figures, methods=["GET"])],
        redirect_slashes=False,
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = guarded  # starlette: an unknown path is an exception, not a page
        try:
            admission.check(scope)
            await router(scope, receive, send)
        except HTTPException as error:
            with suppress(RuntimeError):  # it was answered already
                await JSONResponse({"error": error.detail}, error.status_code)(scope, receive, send)

    return guarded
