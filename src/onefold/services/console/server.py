"""The server process of the console. It keeps nothing: SIGTERM, SIGINT and a kill end it alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from onefold.services import serving
from onefold.services.bounded_http import config
from onefold.services.console.app import ConsoleApp, Explain, Pages
from onefold.services.console.entrance import Entrance
from onefold.services.console.view import Watched
from onefold.services.console.watch import Watch
from onefold.services.ingest.limits import Limits

PORT: Final = 7658
LOGGERS: Final = ("onefold.console", "onefold.ingest", "uvicorn.error", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where it listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=lambda: Limits(connections_max=100, grace_s=5))
    """Each page that is open holds one connection."""


class ConsoleServer(serving.Listening):
    """Shows what is watched until it is stopped."""

    loggers = LOGGERS

    def __init__(
        self, watched: Sequence[Watched], pages: Pages, settings: ConsoleSettings | None = None,
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
