"""A server as its own figures tell it: ``/healthz`` says whether it is well, ``/metrics`` what it counted.

The answers are foreign: bounded in time and size, no redirect is followed, no proxy is asked.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.report.console.watch import POINTS_MAX, REJECTS_MAX, Counts, Fact, Rejected, State, Unit, View, shown
from onefold.verdict import Verdict

BYTES_MAX: Final = 4 << 20
"""Of an answer: a thousand topics have about 1 MB of figures."""
ASK_S: Final = 3.0
ALL_S: Final = 10.0
"""For a whole answer."""
FACTS: Final[Mapping[str, tuple[str, Unit]]] = {
    "onefold_gaps": ("open gaps", "count"),
    "onefold_keys": ("keys remembered", "count"),
    "onefold_state_bytes": ("state", "bytes"),
    "onefold_behind": ("still to read", "count"),
    "onefold_held": ("held back", "count"),
    "onefold_topics": ("topics", "count"),
    "onefold_producers": ("producers", "count"),
    "onefold_pending": ("not stored yet", "count"),
    "onefold_queued_bytes": ("waiting to be stored", "bytes"),
    "onefold_gateway_devices": ("devices", "count"),
    "onefold_gateway_stations": ("stations", "count"),
    "onefold_gateway_sightings": ("frames remembered", "count"),
    "onefold_gateway_in_flight": ("without an answer", "count"),
    "onefold_gateway_parked": ("parked", "count"),
    "onefold_outbox_live_tokens": ("messages in flight", "count"),
    "onefold_outbox_oldest_token_seconds": ("the oldest", "seconds"),
    "onefold_outbox_entries": ("outbox entries", "count"),
    "onefold_outbox_waiting": ("in the queues", "count"),
    "onefold_outbox_buried": ("dead letters", "count"),
    "onefold_reconcile_open_sessions": ("open sessions", "count"),
    "onefold_reconcile_sessions_total": ("sessions", "count"),
    "onefold_reconcile_fetched_total": ("records given", "count"),
    "onefold_connections": ("connections", "count"),
}
"""Figures that are shown, in this order; those of several topics or queues are added up."""


class WatchedServer:
    """A server of onefold, or a stream that was started with --metrics, at its address."""

    every_s: Final = 2.0

    def __init__(self, url: str, token: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:  # which may hold a password: it is not shown
            raise Misuse(
                "server is an address with a login, must be like http://127.0.0.1:7654; see --server-token-file"
            )
        try:
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that no number is
            is_address = False
        if not is_address or parts.path.strip("/") or parts.query or parts.fragment:
            raise Misuse(f"server is {shown(url.partition('?')[0])!r}, must be like http://127.0.0.1:7654")
        self._parts = parts
        self._token = token
        self._clock = clock
        self._points: deque[tuple[int, int, int, int, int]] = deque(maxlen=POINTS_MAX)
        self._reasons: Counter[str] | None = None
        self._rejects: deque[Rejected] = deque(maxlen=REJECTS_MAX)
        self._heard_ms: int | None = None
        self.name = shown(f"{parts.scheme}://{parts.netloc}")

    def look(self) -> View:
        now = round(self._clock() * 1000)
        try:
            health = self._health()
            status, body = self._ask("/metrics")
            if status != 200:
                raise ValueError("it wants another token" if status in (401, 403) else f"/metrics has status {status}")
            families = text_string_to_metric_families(body.decode("utf-8", errors="replace"))
            samples = [sample for family in families for sample in family.samples]
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return self._view("trouble", f"does not answer: {why}")
        self._heard_ms = now
        counts, reasons = _counted(samples)
        if counts is not None:
            if self._points and any(new < old for new, old in zip(counts, self._points[-1][1:], strict=True)):
                self._points.clear()  # it was started again, and counts from 0
                self._reasons = None
            self._points.append((now, *counts))
        where = "since the last look" if self._reasons is not None else "before the console was started"
        for reason, count in (reasons - (self._reasons or Counter())).items():
            self._rejects.appendleft(Rejected(reason=shown(reason), count=count, where=where))
        self._reasons = reasons
        sums: Counter[str] = Counter()
        for sample in samples:
            if sample.name in FACTS and abs(sample.value) < 2**53:  # who does not know says NaN
                sums[sample.name] += sample.value  # type: ignore[assignment]  # some are fractions
        facts = tuple((label, float(sums[name]), unit) for name, (label, unit) in FACTS.items() if name in sums)
        state: State = "running" if health == "ok" else "trouble"
        return self._view(state, "answers" if health == "ok" else f"says: {health}", counts, facts)

    def _view(
        self, state: State, text: str, counts: Counts | None = None, facts: tuple[Fact, ...] = ()
    ) -> View:  # fmt: skip
        return View(
            name=self.name, kind="server", state=state, told=shown(text), at_ms=self._heard_ms, counts=counts,
            points=tuple(self._points), facts=facts, rejects=tuple(self._rejects),
        )  # fmt: skip

    def _health(self) -> str:
        """What /healthz says; a stream with --metrics has none, and answers there with its figures."""
        status, body = self._ask("/healthz")
        try:
            document = read_json(body, "/healthz")
        except BadInput:
            document = None
        if isinstance(document, dict) and "status" in document:
            return shown(document["status"])
        return "ok" if status == 200 else f"status {status}"

    def _ask(self, path: str) -> tuple[int, bytes]:
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        connection = kinds[self._parts.scheme](self._parts.hostname or "", self._parts.port, timeout=ASK_S)

        # The timeout is that of a single read: who sends a byte a second would hold us for weeks.
        def cut_off() -> None:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

        alarm = threading.Timer(ALL_S, cut_off)
        alarm.daemon = True
        alarm.start()
        try:
            headers = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(BYTES_MAX + 1)
        finally:
            alarm.cancel()
            connection.close()
        if len(body) > BYTES_MAX:
            raise ValueError(f"{path} has more than {BYTES_MAX:,} bytes")
        return answer.status, body


def _counted(samples: list[Sample]) -> tuple[Counts | None, Counter[str]]:
    """The sums by verdict, and of what was rejected by reason; None: it counts no messages."""
    sums: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    counts_messages = False
    for sample in samples:
        verdict = sample.labels.get("verdict", "").upper()
        if verdict not in list(Verdict) or not 0 <= sample.value < 2**53 or sample.name.endswith("_created"):
            continue
        counts_messages = True
        sums[verdict] += int(sample.value)
        if verdict == Verdict.REJECT and "reason" in sample.labels:
            reasons[sample.labels["reason"]] += int(sample.value)
    first, repeat, unsure, reject = (sums[verdict] for verdict in Verdict)
    return ((first, repeat, unsure, reject) if counts_messages else None), reasons
