"""The server process of the desk: requests in front, and behind it the consumer that brings the answers.

SIGTERM and SIGINT stop it: no more connections, what is in hand is done and answered, whoever waits for an answer is
told how it stands. A kill does none of that: what was acknowledged is stored, and the rest can be asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from onefold.engines.outbox.handling import BODY_BYTES_MAX
from onefold.services import serving
from onefold.services.bounded_http import config
from onefold.services.ingest.limits import Limits
from onefold.services.outbox.consumer import Consumer, Consuming
from onefold.services.outbox.desk import Desk
from onefold.services.outbox.desk_app import DeskApp
from onefold.services.outbox.metrics import Metrics
from onefold.services.serving import Admission

PORT: Final = 7656
LOGGERS: Final = ("onefold.desk", "onefold.ingest", "onefold.outbox", "uvicorn.error", "asyncio")
WAIT_S_MAX: Final = 30.0
"""Proxies cut a silent request off after 60 s."""
AGAIN_S: Final = 1.0
"""Until the consumer is started again after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskSettings:
    """Where it listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    wait_s_max: float = WAIT_S_MAX
    limits: Limits = field(default_factory=lambda: Limits(body_bytes_max=BODY_BYTES_MAX, in_hand_bytes_max=64 << 20))


class DeskServer(serving.Listening):
    """Serves a desk until it is stopped; then closes it."""

    loggers = LOGGERS

    def __init__(self, desk: Desk, settings: DeskSettings | None = None) -> None:
        self.settings = settings or DeskSettings()
        serving.check_host(self.settings.host, self.settings.token)  # before anything is opened or made
        self.desk = desk
        desk.endpoint.world  # noqa: B018 # opens the stores: what is wrong with them is told before anybody asks
        self._problem: str | None = None
        self._consumer: Consumer | None = None
        self._ending = threading.Event()
        super().__init__(self.settings.host, self.settings.port, self.settings.token)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the address as soon as requests are answered."""
        consuming = threading.Thread(target=self._consume, name="onefold-desk-answers")
        consuming.start()
        try:
            super().run(say)
        finally:
            self._ending.set()
            consuming.join()
            self.desk.close()

    async def _serve(self, ready: Callable[[], None]) -> None:
        settings = self.settings
        admission = Admission(settings.token, settings.host)
        app = DeskApp(
            self.desk, admission, settings.limits, wait_s_max=settings.wait_s_max,
            problem=self.problem, figures=self.figures, told=settings.token is None,
        )  # fmt: skip
        server = self._server = serving.Server(
            config(app.app, settings.limits, message_bytes_max=None), ready, app.close
        )
        try:
            await server.serve([self._socket])
        finally:
            app.end()

    def problem(self) -> str | None:
        """Why answers do not come in; None: they do."""
        found = self._problem or (None if self._consumer is None else self._consumer.trouble)
        return None if found is None else f"answers do not come in: {found}"

    def figures(self) -> bytes:
        """Those of the consumer, for Prometheus."""
        return b"" if self._consumer is None else Metrics(self._consumer).text()

    def _consume(self) -> None:
        """Bring the answers, and do the chores, until the end."""
        while not self._ending.is_set():
            settings = Consuming(tombstone_s=self.desk.tombstone_s)
            self._consumer = Consumer(self.desk.endpoint, settings, stop=self._ending)
            try:
                self._consumer.run(self._well)
            except Exception as error:
                self._problem = str(error)
                self._ending.wait(AGAIN_S)

    def _well(self) -> None:
        self._problem = None
