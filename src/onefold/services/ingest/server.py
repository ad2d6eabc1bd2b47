"""The server process: a socket, uvicorn on it, and an end that loses nothing.

SIGTERM and SIGINT stop it: no more connections, what is in hand is stored and answered, the topics save what they
remember and let go of their logs. A kill does none of that, and loses nothing that was acknowledged either.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from onefold.services import serving
from onefold.services.bounded_http import config
from onefold.services.ingest.app import application
from onefold.services.ingest.limits import Limits
from onefold.services.ingest.metrics import Metrics
from onefold.services.ingest.service import Service
from onefold.services.topics import Topics

PORT: Final = 7654
LOGGERS: Final = ("onefold.ingest", "uvicorn.error", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where it listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    create: bool = True
    """Does a publish to an unknown topic make it?"""
    limits: Limits = field(default_factory=Limits)


class IngestServer(serving.Listening):
    """Serves the topics of a folder until it is stopped; then closes them."""

    loggers = LOGGERS

    def __init__(self, topics: Topics, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        self._topics = topics
        super().__init__(self.settings.host, self.settings.port, self.settings.token)

    async def _serve(self, ready: Callable[[], None]) -> None:
        limits = self.settings.limits
        service = Service(self._topics, limits, create=self.settings.create)
        metrics = Metrics(service, lambda: len(server.server_state.connections))
        app = application(service, metrics, self.settings.token, self.settings.host)
        # Uvicorn would cut the websockets off; so they are drained first.
        server = self._server = serving.Server(
            config(app, limits, message_bytes_max=limits.body_bytes_max), ready, lambda: service.drain(limits.grace_s)
        )
        tending = asyncio.create_task(service.tend())
        try:
            await server.serve([self._socket])
        finally:
            tending.cancel()
            await service.close()
