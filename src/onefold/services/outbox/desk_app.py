"""The routes of the desk.

    POST   /{queue}         make room for a request under a new id: 201, and Location says where
    PUT    /{queue}/{id}    the same under the client's id, a UUID of version 7: 201; again: 200
    POST   /{queue}/{id}    a JSON body: submit it. 202, or 200 with the answer; again: the same, and nothing is sent
    GET    /{queue}/{id}    {"status": "open"|"submitted"|"answered", "until_ms": ..., "answer": ...}
    DELETE /{queue}/{id}    forget it: 204; again: 204
    GET    /healthz, /metrics

404: never issued. 409: there is a request of this id, with another body or for another queue. 410: expired or
forgotten, and never executed. 429 and 503 mean: the same again, later. ``Prefer: wait=10`` on POST and GET waits for
the answer for so many seconds, or for as long as the server lets one wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold.decoding import read_json
from onefold.errors import BadInput, OnefoldError
from onefold.services.ingest.guard import OPEN_PATHS, answer, refusal
from onefold.services.ingest.limits import Body, Budget, Limits
from onefold.services.outbox.desk import ANSWERED, Desk, Differs, Gone, Slot, Unknown
from onefold.services.outbox.desk_waiting import Waiting
from onefold.services.serving import Admission

THREADS: Final = 16
"""Requests that are at the stores at the same time."""
METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE"})
STATUSES: Final[Mapping[type[OnefoldError], int]] = {Unknown: 404, Differs: 409, Gone: 410}
WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)
"""Of RFC 7240, section 4.3."""
T = TypeVar("T")


class DeskApp:
    """The routes, as an ASGI app; lives on one event loop."""

    def __init__(
        self, desk: Desk, admission: Admission, limits: Limits, *, wait_s_max: float,
        problem: Callable[[], str | None] = lambda: None, figures: Callable[[], bytes] = lambda: b"", told: bool = True,
    ) -> None:  # fmt: skip
        self.closing = False
        self._desk = desk
        self._problem = problem
        self._figures = figures
        self._told = told
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="onefold-desk")
        self._waiting = Waiting(lambda ids: self._off(desk.states, ids), wait_s_max)
        self._registry = CollectorRegistry()
        labels, text = ["method", "status"], "Requests by how they were answered."
        counted = Counter("onefold_desk_requests", text, labels, registry=self._registry)
        self.app: ASGIApp = Guard(self._routes(), admission, limits, counted)

    async def close(self) -> None:
        """Whoever waits is answered now; nothing else is begun."""
        self.closing = True
        self._waiting.close()

    def end(self) -> None:
        """All was answered: the threads go."""
        self._pool.shutdown(wait=True)

    def _routes(self) -> Router:
        return Router(
            [
                Route("/healthz", self.healthz, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
                Route("/{queue}", self.issue, methods=["POST"]),
                Route("/{queue}/{id}", self.put, methods=["PUT"]),
                Route("/{queue}/{id}", self.submit, methods=["POST"]),
                Route("/{queue}/{id}", self.look, methods=["GET"]),
                Route("/{queue}/{id}", self.forget, methods=["DELETE"]),
            ],
            redirect_slashes=False,
        )

    async def issue(self, request: Request) -> Response:
        """POST /{queue}."""
        await _no_body(request)
        queue, new = request.path_params["queue"], self._desk.issue()
        await self._off(self._desk.put, queue, new)
        return answer({"id": new, "status": "open"}, 201, {"location": f"/{queue}/{new}"})

    async def put(self, request: Request) -> Response:
        """PUT /{queue}/{id}."""
        await _no_body(request)
        queue, named = _named(request)
        made = await self._off(self._desk.put, queue, named)
        return answer(_document(named, await self._off(self._desk.status, named, queue)), 201 if made else 200)

    async def submit(self, request: Request) -> Response:
        """POST /{queue}/{id}."""
        queue, named = _named(request)
        wait_s = _wait_s(request)
        slot = await self._off(self._desk.submit, queue, named, _json(await request.body()))
        slot = await self._waiting.answer(named, slot, wait_s)
        return answer(_document(named, slot), 200 if slot.status == ANSWERED else 202)

    async def look(self, request: Request) -> Response:
        """GET /{queue}/{id}."""
        queue, named = _named(request)
        wait_s = _wait_s(request)
        slot = await self._off(self._desk.status, named, queue)
        return answer(_document(named, await self._waiting.answer(named, slot, wait_s)))

    async def forget(self, request: Request) -> Response:
        """DELETE /{queue}/{id}."""
        queue, named = _named(request)
        await self._off(self._desk.forget, named, queue)
        return Response(status_code=204)

    async def healthz(self, request: Request) -> Response:
        """GET /healthz."""
        if self.closing:
            return answer({"status": "closing"}, 503)
        problem = self._problem()
        if problem is not None:
            return answer({"status": "trouble", **({"problem": problem} if self._told else {})}, 503)
        return answer({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        consumed = await self._off(self._figures)
        return Response(generate_latest(self._registry) + consumed, media_type=CONTENT_TYPE_LATEST)

    async def _off(self, call: Callable[..., T], *values: Any) -> T:
        """In a thread: the stores block."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *values)


class Guard:
    """Who may ask, how much, and what an error becomes: an ASGI app around the routes."""

    def __init__(self, app: ASGIApp, admission: Admission, limits: Limits, counted: Counter) -> None:
        self._app = app
        self._counted = counted
        self._admission = admission
        self._limits = limits
        self._budget = Budget(limits.in_hand_bytes_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer for it."""
        if scope["type"] != "http":
            raise RuntimeError(f"the desk takes no {scope['type']}")
        scope["app"] = self  # starlette: an unknown path is an exception, not a page
        body = Body(scope, receive, self._limits, self._budget)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._counted.labels(method, str(message["status"])).inc()
                if not body.ended and not await body.discard():
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS or scope["method"] not in ("GET", "HEAD"):  # POST would issue
                self._admission.check(scope)
            await self._app(scope, body.receive, sending)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, told = _refusal(error)
            if not started:
                headers = error.headers if isinstance(error, HTTPException) else None
                await answer({"error": told}, status, headers)(scope, receive, sending)
        finally:
            body.close()


def _refusal(error: Exception) -> tuple[int, str]:
    status = STATUSES.get(type(error)) if isinstance(error, OnefoldError) else None
    return refusal(error) if status is None else (status, str(error))


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["queue"], request.path_params["id"].lower()


def _document(named: str, slot: Slot) -> dict[str, Any]:
    told = {"id": named, "status": slot.status, "until_ms": slot.until_ms}
    return {**told, "answer": slot.answer} if slot.status == ANSWERED else told


async def _no_body(request: Request) -> None:
    if await request.body():
        raise BadInput("a body has no effect here: it is POST /{queue}/{id} that submits one")


def _json(body: bytes) -> Any:
    return read_json(body, "the body")


def _wait_s(request: Request) -> int:
    found = WAIT.search(",".join(request.headers.getlist("prefer")))
    return int(found[1]) if found else 0
