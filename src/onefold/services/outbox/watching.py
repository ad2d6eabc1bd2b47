"""/metrics and /healthz of a consumer, on loopback, in a thread beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from onefold.services import serving
from onefold.services.bounded_http import config
from onefold.services.ingest.limits import Limits
from onefold.services.outbox.consumer import Consumer
from onefold.services.outbox.metrics import Metrics

HOST: Final = "127.0.0.1"
LIMITS: Final = Limits(connections_max=16, grace_s=1)
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
    metrics = Metrics(consumer)
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
