"""The server process: a store behind a websocket, for many peers at once.

SIGTERM and SIGINT stop it: no more connections, what is in hand is answered, the store is closed. A kill does none of
that: records that were acknowledged are stored, and a peer that comes back finds out what is still missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from onefold.ports.records import Records
from onefold.services import serving
from onefold.services.bounded_http import config
from onefold.services.reconciler.app import ReconcileApp
from onefold.services.reconciler.books import Books
from onefold.services.reconciler.limits import ReconcileLimits
from onefold.services.serving import Admission

PORT: Final = 7657
LOGGERS: Final = ("onefold.reconcile", "onefold.ingest", "uvicorn.error", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """Where it listens, for whom, and what they may do."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    writable: bool = True
    """Whether records are taken, or only given."""
    bodies: bool = True
    """Whether the store has the bytes of its records, or knows ids alone."""
    limits: ReconcileLimits = field(default_factory=ReconcileLimits)


class ReconcileServer(serving.Listening):
    """Serves a store of records until it is stopped; then closes it."""

    loggers = LOGGERS

    def __init__(self, records: Records, settings: ReconcileSettings | None = None) -> None:
        self.settings = settings or ReconcileSettings()
        self.books = Books()
        self._records = records
        super().__init__(self.settings.host, self.settings.port, self.settings.token)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the address as soon as requests are answered."""
        try:
            super().run(say)
        finally:
            self._records.close()

    async def _serve(self, ready: Callable[[], None]) -> None:
        settings = self.settings
        app = ReconcileApp(
            self._records, Admission(settings.token, settings.host), settings.limits,
            lambda: len(server.server_state.connections), writable=settings.writable, bodies=settings.bodies,
            books=self.books,
        )  # fmt: skip
        bounds = config(app, settings.limits, message_bytes_max=settings.limits.message_bytes_max)
        server = self._server = serving.Server(bounds, ready, app.close)
        try:
            await server.serve([self._socket])
        finally:
            app.end()
        self.books.pushed().check()  # all was answered: what came has a verdict, or it was lost in here
