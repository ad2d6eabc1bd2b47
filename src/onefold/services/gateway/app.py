"""The routes.

    /router-info, /router/<eui>    websockets, for stations: see `lns`
    GET /healthz, /metrics

Whoever asks needs the token, but for /healthz. Stations send it as Basics Station does: the file ``tc.key`` holds the
header, ``Authorization: Bearer TOKEN`` or the bare ``Authorization: TOKEN``.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from onefold.services.gateway.lns import Lns
from onefold.services.gateway.metrics import Metrics
from onefold.services.gateway.service import GatewayService
from onefold.services.ingest.guard import answer, refusal
from onefold.services.serving import Admission

OPEN_PATHS: Final = frozenset({"/healthz"})


def application(
    service: GatewayService, lns: Lns, metrics: Metrics, admission: Admission, *, told: bool,
    problems: Callable[[], dict[str, str]],
) -> ASGIApp:  # fmt: skip
    """The whole of it; ``told``: /healthz says what is wrong, not only that something is."""

    async def healthz(request: Request) -> Response:
        if service.closing:
            return answer({"status": "closing"}, 503)
        found = problems()
        if found:
            return answer({"status": "trouble", **({"problems": found} if told else {})}, 503)
        return answer({"status": "ok", "stations": len(lns.stations)})

    async def figures(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    router = Router(
        [
            WebSocketRoute("/router-info", _Asgi(lns.discover)),
            WebSocketRoute("/router/{eui}", _Asgi(lns.serve)),
            Route("/healthz", healthz, methods=["GET"]),
            Route("/metrics", figures, methods=["GET"]),
        ],
        redirect_slashes=False,
    )
    return Guard(router, admission)


class _Asgi:
    """An ASGI app that starlette does not take for an endpoint of its own: no wrapping, so less to do per message."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class Guard:
    """Who may ask, and what an error becomes: an ASGI app around the routes."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer for it."""
        scope["app"] = self  # starlette: an unknown path is an exception, not a page
        try:
            if scope["path"] not in OPEN_PATHS:
                self._admission.check(scope)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            headers = error.headers if isinstance(error, HTTPException) else None
            with suppress(RuntimeError):  # it was answered, or upgraded, already; then the connection is closed
                await answer({"error": told}, status, headers)(scope, receive, send)
