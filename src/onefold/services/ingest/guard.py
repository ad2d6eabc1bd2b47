"""Who may ask, and what an error becomes: the outermost layer, around every request."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from onefold.errors import BadInput, Busy, Damaged, Misuse, OnefoldError, StaleWrite, StoreFailed
from onefold.services.ingest.limits import Body
from onefold.services.ingest.service import Closing, Service, UnknownTopic
from onefold.services.serving import Admission

RETRY_S: Final = {429: "1", 503: "1"}
OPEN_PATHS: Final = frozenset({"/healthz"})
STATUSES: Final[Mapping[type[Exception], int]] = {
    BadInput: 400,
    Misuse: 400,
    UnknownTopic: 404,
    Busy: 429,
    StaleWrite: 503,
    StoreFailed: 503,
    Closing: 503,
    Damaged: 500,
    OSError: 503,
}
log: Final = logging.getLogger("onefold.ingest")


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; those to try again say when."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    more = {"retry-after": RETRY_S[status]} if status in RETRY_S else {}
    return Response(body, status, {**more, **(headers or {})}, "application/json")


def refusal(error: BaseException) -> tuple[int, str]:
    """The status for an error, and one line on it; what nobody expected is logged and not told."""
    if isinstance(error, HTTPException):
        detail = error.detail
        phrase = HTTPStatus(error.status_code).phrase
        return error.status_code, detail if detail and detail != phrase else phrase.lower()
    for kind in type(error).__mro__:
        if kind in STATUSES:
            told = error.strerror or "" if isinstance(error, OSError) else str(error)
            status = STATUSES[kind]
            if status >= 500 and not isinstance(error, StoreFailed | Closing):
                log.error("%s: %s", type(error).__name__, error)
            return status, told or type(error).__name__
    log.error("unexpected: %s: %s", type(error).__name__, error)
    return 500, str(error) if isinstance(error, OnefoldError) else f"unexpected: {type(error).__name__}"


class Guard:
    """An ASGI app around the routes."""

    def __init__(self, app: ASGIApp, service: Service, token: str | None, host: str) -> None:
        self._app = app
        self._service = service
        self._admission = Admission(token, host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer for it."""
        scope["app"] = self  # starlette: an unknown path is an exception, not a page
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(scope, receive, self._service.limits, self._service.budget)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if not body.ended and not await body.discard():
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, body.receive, sending)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            if not started:
                headers = error.headers if isinstance(error, HTTPException) else None
                await answer({"error": told}, status, headers)(scope, receive, sending)
        finally:
            body.close()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        upgraded = False

        async def sending(message: Message) -> None:
            nonlocal upgraded
            upgraded = upgraded or message["type"] == "websocket.accept"
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, receive, sending)
        except WebSocketDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            if upgraded:
                with suppress(RuntimeError, OSError):  # it may be closed already
                    await send({"type": "websocket.close", "code": 1011})
            else:
                headers = error.headers if isinstance(error, HTTPException) else None
                await answer({"error": told}, status, headers)(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        if scope["path"] not in OPEN_PATHS:
            self._admission.check(scope)
