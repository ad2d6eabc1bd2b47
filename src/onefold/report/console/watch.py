"""The views of pipelines and servers in the console (`View`), and polling all of them (`Watch`).

A pipeline is read from its folder (`Folder`), where `onefold run` writes its progress and its result. Files that have
not changed are not read again. A file may be torn, old, or not from onefold: that is shown, not raised.

    progress.jsonl, stream.json   of a stream: a line per batch, and one that says how it ended
    progress.json, run.json       of a batch run: the current step; the result, once it is complete

A server is asked over HTTP (`WatchedServer`): ``/healthz`` for its health, ``/metrics`` for its counts. Answers are
foreign: they are bounded in time and size, and neither redirects nor proxies are used.

A `View` is bounded, and foreign text in it is made printable. Listeners get the views that changed; a slow one skips
versions in between, never the last, so nothing queues up.
"""

import asyncio
import http.client
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from onefold.errors import Misuse, OnefoldError
from onefold.report.documents import PROGRESS, RUN, STREAM, ReportPart, json_objects, key_word, read_object
from onefold.tally import Tally
from onefold.text import plain
from onefold.verdict import Verdict

Kind: TypeAlias = Literal["stream", "run", "server"]
State: TypeAlias = Literal["waiting", "running", "complete", "stopped", "trouble"]
Unit: TypeAlias = Literal["count", "bytes", "seconds", "rate"]
Fact: TypeAlias = tuple[str, float, Unit]
Counts: TypeAlias = tuple[int, int, int, int]
"""In the order of the law: first, repeat, unsure, reject."""

TEXT_CHARS_MAX: Final = 120
shown: Final = partial(plain, most=TEXT_CHARS_MAX)
POINTS_MAX: Final = 150
REJECTS_MAX: Final = 6
WHOLE_MAX: Final = 2**53
ENDS: Final[Mapping[Any, tuple[State, str]]] = {
    "end": ("complete", "all read"),
    "stopped": ("stopped", "stopped"),
    "failed": ("trouble", "ended with an error"),
}
BATCH_FACTS: Final[Mapping[str, tuple[str, Unit]]] = {
    "gaps": ("open gaps", "count"),
    "keys": ("keys remembered", "count"),
    "state_bytes": ("state", "bytes"),
    "rows_per_second": ("last batch", "rate"),
    "seconds": ("it took", "seconds"),
    "held": ("held back", "count"),
    "behind": ("still to read", "count"),
}
STEPS, REPORT = "progress.json", "report.html"
WATCHED: Final = (RUN, STEPS, STREAM, PROGRESS, REPORT)
DOCUMENT_BYTES_MAX: Final = 8 << 20
"""The largest run.json; a run's is below 1 MB."""
TAIL_BYTES: Final = 512 << 10
"""How much of the end of progress.jsonl is read: about 500 batches."""
TAIL_LINES: Final = 500
STEPS_MAX: Final = 20
STATES: Final[Mapping[Any, State]] = {"running": "running", "failed": "trouble", "complete": "complete"}
RejectedRows: TypeAlias = Callable[[Path], Sequence[tuple[str, str]]]
"""Some rejected rows in the folder of a run or a batch: the reason, and the row as text."""
ANSWER_BYTES_MAX: Final = 4 << 20
"""The largest answer; a thousand topics have about 1 MB of figures."""
ASK_S: Final = 3.0
ALL_S: Final = 10.0
SERVER_FACTS: Final[Mapping[str, tuple[str, Unit]]] = {
    **{f"onefold_{name}": BATCH_FACTS[name] for name in ("gaps", "keys", "state_bytes", "behind", "held")},
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
"""The figures to show, in this order; several topics or queues are summed."""
WATCHED_MAX: Final = 64
QUIET_S: Final = 15.0
"""A listener without news gets an empty event after this time: proxies close connections after a silent minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Rejected rows of one reason, with one of the rows if known."""

    reason: str
    count: int
    where: str = ""
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    name: str
    kind: Kind
    state: State
    told: str
    """The current step, or the error."""
    at_ms: int | None = None
    counts: Counts | None = None
    balanced: bool = True
    points: tuple[tuple[int, int, int, int, int], ...] = ()
    """The time, and the counts at that time."""
    facts: tuple[Fact, ...] = ()
    rejects: tuple[Rejected, ...] = ()
    """The newest first."""
    report: bool = False
    explains: bool = False


class Watched(Protocol):
    """Something to poll, from one thread at a time."""

    @property
    def name(self) -> str: ...

    @property
    def every_s(self) -> float: ...

    def look(self) -> View:
        """The current view; errors are in the view, not raised."""
        ...


def whole(value: Any) -> int:
    """The value if it is an integer that a browser can represent, else ValueError."""
    if type(value) is not int or not -WHOLE_MAX < value < WHOLE_MAX:
        raise ValueError(f"{shown(value)} is not a whole number below {WHOLE_MAX:,}")
    return value


def counts_of(tally: Tally) -> Counts:
    first, repeat, unsure, reject = (whole(tally.count(verdict)) for verdict in Verdict)
    return first, repeat, unsure, reject


def stream_view(
    lines: Sequence[Mapping[str, Any]], more: Mapping[str, Any], rejected: Callable[[int], Sequence[tuple[str, str]]]
) -> View:
    """The view of a stream with these lines; ``rejected``: some rejected rows of a batch, with reasons."""
    batches = [line for line in lines if type(line.get("batch")) is int][-POINTS_MAX - 1 :]
    if not batches:
        return View(kind="stream", state="waiting", told="no batch yet", **more)
    tallies = [Tally.from_dict(line["tally"]) for line in batches]
    last, tally = batches[-1], tallies[-1]
    state, how = ENDS.get(lines[-1].get("event"), ("running", ""))
    text = f"{how}; batch {last['batch']:,}" if how else f"batch {last['batch']:,}"
    if not tally.balanced:
        state, text = "trouble", f"THE BOOKS DO NOT BALANCE: {tally}"
    facts = ReportPart({**last, "held": last.get("held") or None})  # "held" is shown only if it is not 0
    points = tuple((whole(line["at_ms"]), *counts_of(tally)) for line, tally in zip(batches, tallies, strict=True))
    return View(
        kind="stream", state=state, told=text, at_ms=whole(lines[-1]["at_ms"]), counts=counts_of(tally),
        balanced=tally.balanced, points=points[-POINTS_MAX:], rejects=_rejects(batches, tallies, rejected),
        facts=tuple((label, facts[name].real(), unit) for name, (label, unit) in BATCH_FACTS.items() if facts[name]),
        **more,
    )  # fmt: skip


def _rejects(
    batches: Sequence[Mapping[str, Any]], tallies: Sequence[Tally], rejected: Callable[[int], Sequence[tuple[str, str]]]
) -> tuple[Rejected, ...]:
    """The rejects of the last batches, by the growth of the books; the newest with rows."""
    rejects: list[Rejected] = []
    grown = [(batches[0], tallies[0], Tally())] if batches[0]["batch"] == 0 else []
    grown += [(line, new, old) for (old, new), line in zip(pairwise(tallies), batches[1:], strict=True)]
    for line, new, old in reversed(grown):
        more = {answer: count - old.count(*answer) for answer, count in new if answer.verdict is Verdict.REJECT}
        samples = dict(reversed(rejected(line["batch"]))) if any(more.values()) and not rejects else {}
        rejects += [
            Rejected(reason=shown(answer.reason), count=count, where=f"batch {line['batch']:,}",
                     row=plain(samples.get(answer.reason, ""), 300))
            for answer, count in more.items()
            if count > 0
        ]  # fmt: skip
        if len(rejects) >= REJECTS_MAX:
            break
    return tuple(rejects[:REJECTS_MAX])


class Folder:
    """The folder of a run or a stream, which need not exist yet."""

    every_s: Final = 0.5

    def __init__(self, path: Path, rejected: RejectedRows = lambda folder: ()) -> None:
        self.path = path
        words = str(path)  # of a long path its end, where runs differ
        self.name = shown(words if len(words) <= TEXT_CHARS_MAX else f"...{words[3 - TEXT_CHARS_MAX :]}")
        self._rejected = rejected
        self._signs: list[tuple[int, int, int] | None] = []
        self._view: View | None = None

    @property
    def explains(self) -> bool:
        """Whether `explain` works for this folder; from any thread."""
        return any((self.path / name).is_file() for name in (RUN, STREAM))

    def look(self) -> View:
        signs: list[tuple[int, int, int] | None] = []
        for name in WATCHED:
            try:
                stat = os.stat(self.path / name)
            except OSError:
                signs.append(None)
            else:
                signs.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        if self._view is None or signs != self._signs:
            self._signs, self._view = signs, self._read()
        return self._view

    def _read(self) -> View:
        names = {name for name in WATCHED if (self.path / name).is_file()}
        more: dict[str, Any] = {"name": self.name, "report": REPORT in names, "explains": self.explains}
        try:
            if STREAM in names and PROGRESS not in names and (runs := sorted(self.path.glob(f"batches/*/{RUN}"))):
                return self._run_view(names, more, runs[-1].parent)
            if names & {PROGRESS, STREAM}:
                lines = _tail(self.path / PROGRESS) if PROGRESS in names else []
                return stream_view(lines, more, lambda batch: self._rejected(self.path / "batches" / f"{batch:012}"))
            return self._run_view(names, more, self.path)
        except (OSError, OnefoldError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            kind: Kind = "stream" if names & {PROGRESS, STREAM} else "run"
            ours = isinstance(error, LookupError | TypeError | AttributeError)  # their messages are for programmers
            why = "it is not as onefold writes it" if ours else error
            return View(kind=kind, state="trouble", told=shown(f"cannot be read: {why}"), **more)

    def _run_view(self, names: set[str], more: dict[str, Any], place: Path) -> View:
        """``place``: the folder of the run; with [memory], that of the newest version."""
        steps = read_object(self.path / STEPS, "steps", bytes_max=DOCUMENT_BYTES_MAX) if STEPS in names else {}
        state = STATES.get(steps.get("state"), "running") if steps else "complete"
        if state != "complete":
            past, now = steps["steps"][:-1], steps["steps"][-1][0]
            seconds = ((shown(name), ReportPart(took, "steps").real()) for name, took in past[-STEPS_MAX:])
            facts: tuple[Fact, ...] = tuple((name, took, "seconds") for name, took in seconds)
            text = shown(steps.get("why") or now)
            return View(kind="run", state=state, told=text, at_ms=whole(steps["at_ms"]), facts=facts, **more)
        if not (place / RUN).is_file():
            return View(kind="run", state="waiting", told="nothing there yet", **more)
        run = read_object(place / RUN, "tally", bytes_max=DOCUMENT_BYTES_MAX)
        tally = Tally.from_dict(run["tally"])
        knows_gaps = all(each["about"] != "lost" for each in run.get("cannot_tell") or ())
        figures: list[tuple[str, str, Unit]] = [("open gaps", "missing_ranges", "count")] if knows_gaps else []
        figures += [] if "version" in run else [(f"{key_word(ReportPart(run))}s", "keys", "count")]
        figures += [("remembered", "state_entries", "count"), ("took", "seconds", "seconds")]
        samples = dict(reversed(self._rejected(place) if tally.count(Verdict.REJECT) else ()))
        rejects = tuple(
            Rejected(reason=shown(answer.reason), count=count, row=plain(samples.get(answer.reason, ""), 300))
            for answer, count in tally
            if answer.verdict is Verdict.REJECT
        )
        audit = run.get("audit") or {}
        agrees, alone = audit.get("agrees"), whole(audit.get("orphans", 0)) + whole(audit.get("orphans_by_rule", 0))
        text = f"version {whole(run['version']):,} complete" if "version" in run else "complete"
        text = text if tally.balanced else "THE BOOKS DO NOT BALANCE"
        if tally.balanced:
            text += "" if agrees is None else "; source and sink agree" if agrees else "; SOURCE AND SINK DO NOT AGREE"
            text += f"; {alone:,} repeats have no first" if alone else ""
            text += "; not everything is known, see the report" if run.get("cannot_tell") else ""
        return View(
            kind="run", state="complete" if tally.balanced and agrees is not False else "trouble", told=text,
            at_ms=round((place / RUN).stat().st_mtime * 1000), counts=counts_of(tally), balanced=tally.balanced,
            facts=tuple((label, ReportPart(run)[name].real(), unit) for label, name, unit in figures if name in run),
            rejects=rejects, **more,
        )  # fmt: skip


def _tail(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return [*json_objects(file.read(TAIL_BYTES).splitlines()[1 if size > TAIL_BYTES else 0 :][-TAIL_LINES:])]


class WatchedServer:
    """A server of onefold, or a stream that was started with --metrics, at its address."""

    every_s: Final = 2.0

    def __init__(self, url: str, token: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:  # it may hold a password, so it is not shown
            raise Misuse(
                "server is an address with a login, must be like http://127.0.0.1:7654; see --server-token-file"
            )
        try:
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # the port is not a number
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
                self._points.clear()  # it was restarted, and counts from 0
                self._reasons = None
            self._points.append((now, *counts))
        where = "since the last look" if self._reasons is not None else "before the console was started"
        for reason, count in (reasons - (self._reasons or Counter())).items():
            self._rejects.appendleft(Rejected(reason=shown(reason), count=count, where=where))
        self._reasons = reasons
        sums: Counter[str] = Counter()
        for sample in samples:
            if sample.name in SERVER_FACTS and abs(sample.value) < 2**53:  # unknown figures are NaN
                sums[sample.name] += sample.value  # type: ignore[assignment]  # some are fractions
        facts = tuple((label, float(sums[name]), unit) for name, (label, unit) in SERVER_FACTS.items() if name in sums)
        state: State = "running" if health == "ok" else "trouble"
        return self._view(state, "answers" if health == "ok" else f"says: {health}", counts, facts)

    def _view(self, state: State, text: str, counts: Counts | None = None, facts: tuple[Fact, ...] = ()) -> View:
        return View(
            name=self.name, kind="server", state=state, told=shown(text), at_ms=self._heard_ms, counts=counts,
            points=tuple(self._points), facts=facts, rejects=tuple(self._rejects),
        )  # fmt: skip

    def _health(self) -> str:
        """The status in /healthz; a stream with --metrics has none, and returns its figures there."""
        status, body = self._ask("/healthz")
        document = next(json_objects([body]), {})
        return shown(document.get("status", "ok" if status == 200 else f"status {status}"))

    def _ask(self, path: str) -> tuple[int, bytes]:
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        connection = kinds[self._parts.scheme](self._parts.hostname or "", self._parts.port, timeout=ASK_S)

        # The timeout is per read: a server that sends a byte a second would block for weeks.
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
            body = answer.read(ANSWER_BYTES_MAX + 1)
        finally:
            alarm.cancel()
            connection.close()
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"{path} has more than {ANSWER_BYTES_MAX:,} bytes")
        return answer.status, body


def _counted(samples: list[Sample]) -> tuple[Counts | None, Counter[str]]:
    """The sums by verdict (None if it counts no messages), and the rejects by reason."""
    sums: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for sample in samples:
        verdict = sample.labels.get("verdict", "").upper()
        if verdict not in list(Verdict) or not 0 <= sample.value < 2**53 or sample.name.endswith("_created"):
            continue
        sums[verdict] += int(sample.value)
        if verdict == Verdict.REJECT and "reason" in sample.labels:
            reasons[sample.labels["reason"]] += int(sample.value)
    first, repeat, unsure, reject = (sums[verdict] for verdict in Verdict)
    return ((first, repeat, unsure, reject) if sums else None), reasons


class Watch:
    """The newest view of everything watched, on one event loop."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        names = [each.name for each in watched]
        if not 1 <= len(names) <= WATCHED_MAX:
            raise Misuse(f"{len(names)} runs and servers are given, must be 1 to {WATCHED_MAX}")
        for name in names:
            if names.count(name) > 1:
                raise Misuse(f"{name} is given twice", name=name)
        self.watched = tuple(watched)
        self.views: list[View] = [
            View(name=each.name, kind="run", state="waiting", told="not looked at yet") for each in watched
        ]
        self._versions = [0] * len(names)
        self._news = asyncio.Condition()
        self._closing = False
        self._pool = ThreadPoolExecutor(min(8, len(names)), thread_name_prefix="onefold-console")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(len(self.watched)):
                group.create_task(self._look(i))

    async def _look(self, i: int) -> None:
        loop, each = asyncio.get_running_loop(), self.watched[i]
        while True:
            try:
                view = await loop.run_in_executor(self._pool, each.look)
            except Exception as error:  # one view must not end the others
                view = View(name=each.name, kind="run", state="trouble", told=shown(f"{type(error).__name__}: {error}"))
            if view != self.views[i] or not self._versions[i]:
                async with self._news:
                    self.views[i] = view
                    self._versions[i] += 1
                    self._news.notify_all()
            await asyncio.sleep(each.every_s)

    async def listen(self) -> AsyncIterator[list[int]]:
        """Yield the numbers of new views: first all; an empty list after a long silence."""
        heard = [-1] * len(self.views)
        while not self._closing:
            # Do not yield inside: a slow reader must not hold the lock.
            async with self._news:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        while not self._closing and self._versions == heard:
                            await self._news.wait()
                new = [i for i, version in enumerate(self._versions) if version != heard[i]]
                heard = list(self._versions)
            yield new

    async def close(self) -> None:
        self._closing = True
        async with self._news:
            self._news.notify_all()

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
