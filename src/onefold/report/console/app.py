"""The console's server: a live page over running pipelines and servers. All of its routes only read.

    GET  /                the page; without the token, one that asks for it
    POST /login           the token, from that page
    GET  /events          the views as they change, as server-sent events
    GET  /views           the views as they are, as JSON
    GET  /explain         ?run=NUMBER&words=WORDS: what became of a message
    GET  /reports/NUMBER  the report.html of a run, and no other file
    GET  /healthz, /metrics

A browser cannot send a header with the address that somebody types in. So it is asked for the token, and gets a cookie
that stands for it: a random word of this process, which scripts cannot read and other sites cannot make it send.

The page is one file with its style and its script, which asks only the server that it came from. The script writes
foreign words as text and never as mark-up; and should one still get through, the content security policy lets no script
run but this one, by its hash, and no request go elsewhere.
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

FORM_BYTES_MAX: Final = 16 << 10
OURS: Final = ("same-origin", "none")
"""What a browser says of a request that our own page made, or a person who typed the address."""
PREFIX: Final = "onefold_console"
Explain: TypeAlias = Callable[[Path, str], dict[str, Any]]
"""What became of the message that these words name, in this run."""
REPORT_BYTES_MAX: Final = 16 << 20
WORDS_CHARS_MAX: Final = 500
LIMITS: Final = HttpLimits(connections_max=100, grace_s=5)
"""Each page that is open holds one connection."""
WRONG_S: Final = 0.5
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


class Entrance(Admission):
    """Who may look: programs with the token in their header, browsers that gave it once; without one, this machine."""

    def __init__(self, token: str | None, host: str, port: int) -> None:
        super().__init__(token, host)
        self._word = secrets.token_urlsafe(32)
        self._name = f"onefold_console_{port}"  # a cookie is of a host, not of a port

    def check(self, scope: Scope) -> None:
        """Raise the answer for the one who may not. Of other sites only a link to the page itself is followed."""
        path, headers = scope["path"], HTTPConnection(scope).headers
        locked = self._token is not None
        if path == "/login" and locked:
            return
        if headers.get("sec-fetch-site", "none") not in OURS and path != "/":
            raise HTTPException(403, "another site made this request")
        word = HTTPConnection(scope).cookies.get(self._name, "")  # whatever cookies other servers of this host set
        if not (locked and hmac.compare_digest(word.encode(), self._word.encode())):
            super().check(scope)

    def cookie(self, form: bytes) -> str | None:
        """The header Set-Cookie for a form with the right token; None for a wrong one."""
        fields = parse_qs(form.decode("utf-8", errors="replace"))  # which is short
        token = fields.get("token", [""])[0].strip()
        if self._token is None or not hmac.compare_digest(token.encode(), self._token):
            return None
        return f"{self._name}={self._word}; Path=/; HttpOnly; SameSite=Strict"


def console_metrics(views: Sequence[View]) -> Iterator[Metric]:
    """The figures of all that is watched, as they were last seen: streams need not be asked one by one."""
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
    """A page of a template, with the look of the report; ``console.html.j2`` or ``login.html.j2``."""
    report_style, own_style = template_file("onefold.report", "page.css"), template_file(__package__, "console.css")
    style, script = Markup(palette()) + report_style + own_style, template_file(__package__, "console.js")  # noqa: S704
    return (
        environment(__package__)
        .get_template(name)
        .render(style=style, style_hash=digest(style), script=script, script_hash=digest(script))
    )


def read_report(path: Path) -> bytes:
    """A file of a folder; a link to another place is not followed, and what is no file is not read."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path} is no file")
    with os.fdopen(number, "rb") as file:
        data = file.read(REPORT_BYTES_MAX + 1)
    if len(data) > REPORT_BYTES_MAX:
        raise OSError(f"{path} has more than {REPORT_BYTES_MAX:,} bytes")
    return data


class ConsoleServer(HttpServer):
    """Shows what is watched until it is stopped. It keeps nothing: a kill ends it as well as a signal."""

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
        form = b""
        async with asyncio.timeout(FORM_S):
            async for piece in request.stream():
                form += piece
                if len(form) > FORM_BYTES_MAX:
                    raise HTTPException(413, f"the form has more than {FORM_BYTES_MAX:,} bytes")
        cookie = self._entrance.cookie(form)
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
        # Pages tell ages by the time of this machine, whatever their own clock says.
        of_here = {"number": i, "now_ms": wall_ms(), "explains": view.explains and self._explain is not None}
        return {**asdict(view), **of_here}

    async def views(self, request: Request) -> Response:
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
