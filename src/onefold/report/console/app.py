"""The routes. All of them only read.

GET  /                the page; without the token, one that asks for it
POST /login           the token, from that page
GET  /events          the views as they change, as server-sent events
GET  /views           the views as they are, as JSON
GET  /explain         ?run=NUMBER&words=WORDS: what became of a message
GET  /reports/NUMBER  the report.html of a run, and no other file
GET  /healthz, /metrics

Who may look: programs with the token in their header, browsers that gave it once; without one, this machine.

A browser cannot send a header with the address that somebody types in. So it is asked for the token, and gets a cookie
that stands for it: a random word of this process, which scripts cannot read and other sites cannot make it send.

The figures of all that is watched, for Prometheus: streams need not be asked one by one.

The server process of the console. It keeps nothing: SIGTERM, SIGINT and a kill end it alike.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold.errors import BadInput, Busy
from onefold.net import http as serving
from onefold.net.http import OPEN_PATHS, Admission, Exposed, HttpLimits, answer, config, refusal
from onefold.report.console.folders import REPORT, Folder
from onefold.report.console.watch import Watch, Watched, now_ms
from onefold.verdict import Verdict

FORM_BYTES_MAX: Final = 16 << 10
OURS: Final = ("same-origin", "none")
"""What a browser says of a request that our own page made, or a person who typed the address."""


class Entrance:
    """The door of a console at this port."""

    def __init__(self, token: str | None, host: str, port: int) -> None:
        self._admission = Admission(token, host)
        self._token = token
        self._word = secrets.token_urlsafe(32)
        self._name = f"onefold_console_{port}"  # a cookie is of a host, not of a port

    @property
    def locked(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def check(self, scope: Scope) -> None:
        """Raise the answer for the one who may not. Of other sites only a link to the page itself is followed."""
        site = HTTPConnection(scope).headers.get("sec-fetch-site")
        if site is not None and site not in OURS and scope["path"] != "/":
            raise HTTPException(403, "another site made this request")
        if not self._known(scope):
            self._admission.check(scope)

    def _known(self, scope: Scope) -> bool:
        if not self.locked:
            return False
        given = HTTPConnection(scope).cookies.get(self._name, "")  # whatever cookies other servers of this host set
        return hmac.compare_digest(given.encode(), self._word.encode())

    def cookie(self, form: bytes) -> str | None:
        """The header Set-Cookie for a form with the right token; None for a wrong one."""
        fields = parse_qs(form.decode("utf-8", errors="replace"))  # which is short
        given = fields.get("token", [""])[0].strip()
        if self._token is None or not hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        return f"{self._name}={self._word}; Path=/; HttpOnly; SameSite=Strict"


PREFIX: Final = "onefold_console"


class ConsoleMetrics(Exposed):
    """Those of a watch, in a registry of their own."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        """All figures, as they were last seen."""
        well = GaugeMetricFamily(f"{PREFIX}_well", "1: nothing is wrong with it.", labels=["name", "kind", "state"])
        messages = GaugeMetricFamily(f"{PREFIX}_messages", "Messages by verdict.", labels=["name", "verdict"])
        heard = GaugeMetricFamily(f"{PREFIX}_heard_seconds", "When it was last heard from.", labels=["name"])
        figures = GaugeMetricFamily(f"{PREFIX}_figure", "What else it tells.", labels=["name", "figure"])
        for view in self._watch.views:
            well.add_metric([view.name, view.kind, view.state], int(view.state != "trouble"))
            for verdict, count in zip(Verdict, view.counts or (), strict=False):
                messages.add_metric([view.name, str(verdict)], count)
            if view.at_ms is not None:
                heard.add_metric([view.name], view.at_ms / 1000)
            for label, value, _ in view.facts:
                figures.add_metric([view.name, label], value)
        yield from (well, messages, heard, figures)


Explain: TypeAlias = Callable[[Path, str], dict[str, Any]]
"""What became of the message that these words name, in this run."""

REPORT_BYTES_MAX: Final = 16 << 20
WORDS_CHARS_MAX: Final = 500
WRONG_S: Final = 0.5
"""A wrong token is answered after so long."""
FORM_S: Final = 10.0
PAGE_HEADERS: Final = {
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "frame-ancestors 'none'",
}
REPORT_HEADERS: Final = {
    **PAGE_HEADERS,
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
}
"""A report has no script; should the file be another than ours, it may do nothing here."""


@dataclass(frozen=True, slots=True)
class ConsolePages:
    """What a browser is shown: made by others, served here."""

    console: str
    login: str


class ConsoleApp:
    """The routes, as an ASGI app around one watch; lives on one event loop."""

    def __init__(self, watch: Watch, pages: ConsolePages, entrance: Entrance, explain: Explain | None) -> None:
        self._watch, self._pages, self._entrance, self._explain = watch, pages, entrance, explain
        self._explaining = asyncio.Lock()
        self._metrics = ConsoleMetrics(watch)
        self._routes: ASGIApp = Router(
            [
                Route("/", self.page, methods=["GET"]),
                Route("/login", self.login, methods=["POST"]),
                Route("/events", self.events, methods=["GET"]),
                Route("/views", self.views, methods=["GET"]),
                Route("/explain", self.explain, methods=["GET"]),
                Route("/reports/{number:int}", self.report, methods=["GET"]),
                Route("/healthz", self.healthz, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer for it."""
        if scope["type"] != "http":
            raise RuntimeError(f"the console takes no {scope['type']}")
        scope["app"] = self  # starlette: an unknown path is an exception, not a page
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._admitted(scope, receive, sending)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, told = refusal(error)
            headers = error.headers if isinstance(error, HTTPException) else None
            if not started:
                with suppress(OSError):
                    await answer({"error": told}, status, headers)(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in OPEN_PATHS and not (path == "/login" and self._entrance.locked):
            try:
                self._entrance.check(scope)
            except HTTPException as error:
                if path != "/" or error.status_code != 401:
                    raise
                await HTMLResponse(self._pages.login, 401, PAGE_HEADERS)(scope, receive, send)
                return
        await self._routes(scope, receive, send)

    async def page(self, request: Request) -> Response:
        """GET /."""
        return HTMLResponse(self._pages.console, headers=PAGE_HEADERS)

    async def login(self, request: Request) -> Response:
        """POST /login."""
        cookie = self._entrance.cookie(await _form(request))
        if cookie is None:
            await asyncio.sleep(WRONG_S)
            return HTMLResponse(self._pages.login, 401, PAGE_HEADERS)
        return RedirectResponse("/", 303, {"set-cookie": cookie})

    async def events(self, request: Request) -> Response:
        """GET /events."""
        return StreamingResponse(self._told(), media_type="text/event-stream")

    async def _told(self) -> AsyncIterator[str]:
        async for new in self._watch.listen():
            if not new:
                yield ": still here\n\n"
            for i in new:
                yield f"event: view\ndata: {json.dumps(self._view(i), ensure_ascii=False, allow_nan=False)}\n\n"

    def _view(self, i: int) -> dict[str, Any]:
        view = self._watch.views[i].to_dict()
        return {"number": i, "now_ms": now_ms(), **view, "explains": view["explains"] and self._explain is not None}

    async def views(self, request: Request) -> Response:
        """GET /views."""
        return answer({"views": [self._view(i) for i in range(len(self._watch.views))]})

    async def explain(self, request: Request) -> Response:
        """GET /explain: one at a time, for each is a job on all cores."""
        number, words = request.query_params.get("run", ""), request.query_params.get("words", "")
        folder = self._folder(int(number) if number.isdecimal() and len(number) < 9 else -1)
        if self._explain is None:
            raise BadInput("nothing can be asked: explaining needs Spark, which is not installed")
        if not folder.explains:
            raise BadInput(f"{folder.name} cannot be asked: it is not complete")
        if not 0 < len(words.strip()) <= WORDS_CHARS_MAX:
            raise BadInput(f"words has {len(words):,} characters, must have 1 to {WORDS_CHARS_MAX}")
        if self._explaining.locked():
            raise Busy("another question is being answered")
        async with self._explaining:
            return answer(await asyncio.to_thread(self._explain, folder.path, words))

    async def report(self, request: Request) -> Response:
        """GET /reports/NUMBER."""
        folder = self._folder(request.path_params["number"])
        try:
            page = await asyncio.to_thread(_read, folder.path / REPORT)
        except OSError as error:
            raise HTTPException(404, f"{folder.name} has no report") from error
        return HTMLResponse(page, headers=REPORT_HEADERS)

    def _folder(self, number: int) -> Folder:
        found = self._watch.watched[number] if 0 <= number < len(self._watch.watched) else None
        if not isinstance(found, Folder):
            raise HTTPException(404, "there is no run of this number")
        return found

    async def healthz(self, request: Request) -> Response:
        """GET /healthz."""
        return answer({"status": "ok", "watched": len(self._watch.views)})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def _form(request: Request) -> bytes:
    """The body of a small form."""
    form = b""
    async with asyncio.timeout(FORM_S):
        async for piece in request.stream():
            form += piece
            if len(form) > FORM_BYTES_MAX:
                raise HTTPException(413, f"the form has more than {FORM_BYTES_MAX:,} bytes")
    return form


def _read(path: Path) -> bytes:
    """A file of a folder; a link to another place is not followed, and what is no file is not read."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path} is no file")
    with os.fdopen(number, "rb") as file:
        page = file.read(REPORT_BYTES_MAX + 1)
    if len(page) > REPORT_BYTES_MAX:
        raise OSError(f"{path} has more than {REPORT_BYTES_MAX:,} bytes")
    return page


PORT: Final = 7658
LOGGERS: Final = ("onefold.console", "onefold.ingest", "uvicorn.error", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where it listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    limits: HttpLimits = field(default_factory=lambda: HttpLimits(connections_max=100, grace_s=5))
    """Each page that is open holds one connection."""


class ConsoleServer(serving.Listening):
    """Shows what is watched until it is stopped."""

    loggers = LOGGERS

    def __init__(
        self, watched: Sequence[Watched], pages: ConsolePages, settings: ConsoleSettings | None = None,
        explain: Explain | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings or ConsoleSettings()
        self._watch = Watch(watched)
        self._pages, self._explain = pages, explain
        super().__init__(self.settings.host, self.settings.port, self.settings.token)

    async def _serve(self, ready: Callable[[], None]) -> None:
        settings = self.settings
        entrance = Entrance(settings.token, settings.host, self._socket.getsockname()[1])
        app = ConsoleApp(self._watch, self._pages, entrance, self._explain)
        bounds = config(app, settings.limits, message_bytes_max=None)
        server = self._server = serving.Server(bounds, ready, self._watch.close)
        looking = asyncio.create_task(self._watch.run())
        try:
            await server.serve([self._socket])
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            self._watch.end()
