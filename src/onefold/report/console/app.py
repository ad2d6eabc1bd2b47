"""The console's server: a live page over running pipelines and servers. All routes only read.

    GET  /                the page; without the token, a login page
    POST /login           the token, from the login page
    GET  /events          the views as they change, as server-sent events
    GET  /views           the views as they are, as JSON
    GET  /explain         ?run=NUMBER&words=WORDS: the copies of a message and their verdicts
    GET  /reports/NUMBER  the report.html of a run, and no other file
    GET  /healthz, /metrics

A browser cannot send the token in a header. The login page asks for it and sets a cookie instead: a random value of
this process, HttpOnly and SameSite=Strict.

The page is one file with its style and its script, which only talks to its own server. The script writes foreign values
as text, never as markup. Should markup still get through, the content security policy allows no other script, by hash,
and no request to other hosts.
"""

import asyncio
import hmac
import json
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from markupsafe import Markup
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope

from onefold.clock import wall_ms
from onefold.errors import BadInput, Busy
from onefold.net.http import Admission, HttpServer, answer
from onefold.net.limits import HttpLimits
from onefold.report.charts import palette
from onefold.report.console.watch import REPORT, Folder, View, Watch, Watched
from onefold.report.page import digest, environment, template_file
from onefold.verdict import Verdict

OURS: Final = ("same-origin", "none")
"""Sec-Fetch-Site of requests from our own page, or from a typed address."""
PREFIX: Final = "onefold_console"
Explain: TypeAlias = Callable[[Path, str], dict[str, Any]]
"""Explain the message that these words name, in this run."""
REPORT_BYTES_MAX: Final = 16 << 20
WORDS_CHARS_MAX: Final = 500
LIMITS: Final = HttpLimits(connections_max=100, grace_s=5, body_bytes_max=16 << 10, body_s=10)
"""Each open page holds one connection; the only body is the form with the token."""
WRONG_S: Final = 0.5
PAGE_HEADERS: Final = {
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "frame-ancestors 'none'",
}
REPORT_HEADERS: Final = {
    **PAGE_HEADERS,
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
}
"""A report has no script; a foreign file in its place can do nothing."""


class Entrance(Admission):
    """Admits programs that send the token, and browsers that logged in; without a token, only this machine."""

    def __init__(self, token: str | None, host: str, port: int) -> None:
        super().__init__(token, host)
        self._word = secrets.token_urlsafe(32)
        self._name = f"onefold_console_{port}"  # cookies are per host, not per port

    def check(self, scope: Scope) -> None:
        """Raise the error for requests that are not admitted. Other sites may only link to the page itself."""
        path, headers = scope["path"], HTTPConnection(scope).headers
        locked = self._token is not None
        if path == "/login" and locked:
            return
        if headers.get("sec-fetch-site", "none") not in OURS and path != "/":
            raise HTTPException(403, "another site made this request")
        word = HTTPConnection(scope).cookies.get(self._name, "")  # other servers of this host may set cookies too
        if not (locked and hmac.compare_digest(word.encode(), self._word.encode())):
            super().check(scope)

    def cookie(self, form: bytes) -> str | None:
        """The Set-Cookie header for a form with the right token, else None."""
        fields = parse_qs(form.decode("utf-8", errors="replace"))  # the limits keep it short
        token = fields.get("token", [""])[0].strip()
        if self._token is None or not hmac.compare_digest(token.encode(), self._token):
            return None
        return f"{self._name}={self._word}; Path=/; HttpOnly; SameSite=Strict"


def console_metrics(views: Sequence[View]) -> Iterator[Metric]:
    """The latest figures of everything watched, so that Prometheus need not scrape each stream."""
    well = GaugeMetricFamily(f"{PREFIX}_well", "1: nothing is wrong with it.", labels=["name", "kind", "state"])
    messages = GaugeMetricFamily(f"{PREFIX}_messages", "Messages by verdict.", labels=["name", "verdict"])
    heard = GaugeMetricFamily(f"{PREFIX}_heard_seconds", "When it was last heard from.", labels=["name"])
    figures = GaugeMetricFamily(f"{PREFIX}_figure", "What else it tells.", labels=["name", "figure"])
    for view in views:
        well.add_metric([view.name, view.kind, view.state], int(view.state != "trouble"))
        for verdict, count in zip(Verdict, view.counts or (), strict=False):
            messages.add_metric([view.name, str(verdict)], count)
        if view.at_ms is not None:
            heard.add_metric([view.name], view.at_ms / 1000)
        for label, value, _ in view.facts:
            figures.add_metric([view.name, label], value)
    yield from (well, messages, heard, figures)


@cache
def page(name: str) -> str:
    """A page with the style of the report: ``console.html.j2`` or ``login.html.j2``."""
    report_style, own_style = template_file("onefold.report", "page.css"), template_file(__package__, "console.css")
    style, script = Markup(palette()) + report_style + own_style, template_file(__package__, "console.js")  # noqa: S704
    return (
        environment(__package__)
        .get_template(name)
        .render(style=style, style_hash=digest(style), script=script, script_hash=digest(script))
    )


def read_report(path: Path) -> bytes:
    """Read a regular file; links are not followed."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path} is not a file")
    with os.fdopen(number, "rb") as file:
        data = file.read(REPORT_BYTES_MAX + 1)
    if len(data) > REPORT_BYTES_MAX:
        raise OSError(f"{path} has more than {REPORT_BYTES_MAX:,} bytes")
    return data


class ConsoleServer(HttpServer):
    """Serves the page until it is stopped. It has no state: a kill is as good as a signal."""

    name = "console"

    def __init__(
        self, watched: Sequence[Watched], explain: Explain | None = None, *, host: str = "127.0.0.1", port: int = 7658,
        token: str | None = None, limits: HttpLimits = LIMITS,
    ) -> None:  # fmt: skip
        self._watch = Watch(watched)
        self._explain = explain
        self._explaining = asyncio.Lock()
        super().__init__(host, port, token, limits)
        self._entrance = Entrance(token, host, self._socket.getsockname()[1])

    async def serve(self) -> None:
        routes = [
            Route("/", self.index, methods=["GET"]),
            Route("/login", self.login, methods=["POST"]),
            Route("/events", self.events, methods=["GET"]),
            Route("/views", self.views, methods=["GET"]),
            Route("/explain", self.explain, methods=["GET"]),
            Route("/reports/{number:int}", self.report, methods=["GET"]),
        ]
        try:
            await self.answer(
                routes,
                health=lambda: {"watched": len(self._watch.views)},
                metrics=lambda: console_metrics(self._watch.views),
                admission=self._entrance,
                drain=self._watch.close,
                beside=[self._watch.run()],
            )
        finally:
            self._watch.end()

    def refuse(self, error: Exception, scope: Scope) -> Response:
        if scope["path"] == "/" and isinstance(error, HTTPException) and error.status_code == 401:
            return HTMLResponse(page("login.html.j2"), 401, PAGE_HEADERS)
        return super().refuse(error, scope)

    async def index(self, request: Request) -> Response:
        return HTMLResponse(page("console.html.j2"), headers=PAGE_HEADERS)

    async def login(self, request: Request) -> Response:
        cookie = self._entrance.cookie(await request.body())
        if cookie is None:
            await asyncio.sleep(WRONG_S)
            return HTMLResponse(page("login.html.j2"), 401, PAGE_HEADERS)
        return RedirectResponse("/", 303, {"set-cookie": cookie})

    async def events(self, request: Request) -> Response:

        async def events() -> AsyncIterator[str]:
            async for new in self._watch.listen():
                if not new:
                    yield ": still here\n\n"
                for i in new:
                    yield f"event: view\ndata: {json.dumps(self._view(i), ensure_ascii=False, allow_nan=False)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def _view(self, i: int) -> dict[str, Any]:
        view = self._watch.views[i]
        # Pages compute ages by the clock of this machine, not by their own.
        of_here = {"number": i, "now_ms": wall_ms(), "explains": view.explains and self._explain is not None}
        return {**asdict(view), **of_here}

    async def views(self, request: Request) -> Response:
        return answer({"views": [self._view(i) for i in range(len(self._watch.views))]})

    async def explain(self, request: Request) -> Response:
        """GET /explain: one at a time, because each is a job on all cores."""
        number, words = request.query_params.get("run", ""), request.query_params.get("words", "")
        folder = self._folder(int(number) if number.isdecimal() and len(number) < 9 else -1)
        if self._explain is None:
            raise BadInput("explaining needs Spark, which is not installed")
        if not folder.explains:
            raise BadInput(f"{folder.name} cannot be explained: it is not complete")
        if not 0 < len(words.strip()) <= WORDS_CHARS_MAX:
            raise BadInput(f"words has {len(words):,} characters, must have 1 to {WORDS_CHARS_MAX}")
        if self._explaining.locked():
            raise Busy("another question is being answered")
        async with self._explaining:
            return answer(await asyncio.to_thread(self._explain, folder.path, words))

    async def report(self, request: Request) -> Response:
        folder = self._folder(request.path_params["number"])
        try:
            html = await asyncio.to_thread(read_report, folder.path / REPORT)
        except OSError as error:
            raise HTTPException(404, f"{folder.name} has no report") from error
        return HTMLResponse(html, headers=REPORT_HEADERS)

    def _folder(self, number: int) -> Folder:
        folder = self._watch.watched[number] if 0 <= number < len(self._watch.watched) else None
        if not isinstance(folder, Folder):
            raise HTTPException(404, "there is no run of this number")
        return folder
