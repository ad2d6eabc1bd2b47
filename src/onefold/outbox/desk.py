"""The desk: requests from outside get their token here, by an issue/submit handshake.

A client that gets no response does not know whether its request arrived. So a request has two idempotent steps: it is
issued under an id (*open*), then submitted with a body (*submitted*), which sends the message, once. A request that was
never issued, has expired or was forgotten cannot be submitted. A request is an entity, and a source with the marks 0
and 1 (see `plans`): mark 1 sends. The digest of the first body is kept with it; another body is refused. A handler
answers by `Out.reply`; the answer is a message to the desk's own queue, and is stored with the request. The request
expires when its id is a window old.

    open --submit--> submitted --the handler's reply--> answered
      \\___________________ forget, or a window ___________________> gone

*Ids* are UUIDs of version 7, which contain the time at which they were made. A forgotten request must never be issued
again, or it would be executed twice. So an id is accepted for one window after its own time, and forgotten ids are
remembered for at least as long.

*Pages.* A store finds entities by name only. To find expired requests, the desk keeps pages, entities of its own: each
lists the ids of the requests that expire within the same ten seconds, spread over several leaves to avoid write
conflicts. An id is written to its page before the request is issued. A cursor holds the last page whose requests are
removed, and the time that ids must be younger than: a desk whose window becomes longer does not remember what was
forgotten before. A clock that was ahead for a while moves both into the future; when it is right again, the cursor goes
back, and the time becomes now. Cost: one more write per request, of some 40 bytes for each id on the same leaf.

    POST   /{queue}         issue a request under a new id: 201, with its URL in Location
    PUT    /{queue}/{id}    issue it under the client's id, a UUID of version 7: 201; again: 200
    POST   /{queue}/{id}    submit a JSON body: 202, or 200 with the answer; again: the same, and nothing is sent
    GET    /{queue}/{id}    {"status": "open"|"submitted"|"answered", "until_ms": ..., "answer": ...}
    DELETE /{queue}/{id}    forget it: 204; again: 204
    GET    /healthz, /metrics

404: never issued. 409: the id belongs to a request with another body or for another queue. 410: expired or forgotten,
and not executed. 429 and 503: try again later. ``Prefer: wait=10`` on POST and GET waits up to 10 seconds for the
answer, within the server's limit. SIGTERM and SIGINT stop the server: requests in hand are finished, and clients that
wait get the current status.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from secrets import randbits
from typing import Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID
from zlib import crc32

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from onefold.clock import wall_ms
from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse, OnefoldError, StaleWrite, StoreFailed
from onefold.net.http import Body, Budget, HttpServer, Statuses, answer, check_host, refusal
from onefold.net.limits import HttpLimits
from onefold.outbox import Entity, Key, Message, Out, Outcome, mark_of, pack
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.metrics import outbox_metrics
from onefold.outbox.plans import BODY_BYTES_MAX, NO_HEADERS, TRACE, check_queue
from onefold.outbox.ports import EntityStore, Ledger, Queue, TokenStore
from onefold.outbox.worker import Consumer, Consuming, log

VERSION: Final = 7
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_id(now_ms: int) -> str:
    """A new id with this time.

    >>> time_of(new_id(1_800_000_000_000))
    1800000000000
    """
    time, version, variant = now_ms << 80, VERSION << 76, 0b10 << 62
    return str(UUID(int=time | version | randbits(12) << 64 | variant | randbits(62)))


def check_id(text: str) -> str:
    """The id in lower case; `BadInput` if it is not a UUID of version 7.

    >>> check_id("0190D3A4-5B6C-7000-8000-000000000000")
    '0190d3a4-5b6c-7000-8000-000000000000'
    >>> check_id("6f1c2f0e-0000-4000-8000-000000000001")
    Traceback (most recent call last):
    onefold.errors.BadInput: id is '6f1c2f0e-0000-4000-8000-000000000001', must be a UUID of version 7
    """
    if not _ID.fullmatch(text.lower()):
        raise BadInput(f"id is {text!r:.100}, must be a UUID of version {VERSION}")
    return text.lower()


def time_of(request: str) -> int:
    """When the id was made, by its maker's clock: Unix time in milliseconds."""
    return UUID(request).int >> 80


PAGE_MS: Final = 10_000
LEAVES: Final = 16
AT_ONCE: Final = 500
"""Entities read or written in one call."""
PAGES_MAX: Final = 8_640
"""Pages per `expire`: those of one day. After a longer pause, or a wrong clock, the next call goes on."""
BACK_MS: Final = 7 * 86_400_000
"""How far to set back a cursor that a wrong clock put into the future: a desk expires every minute, unless it is off.
"""
TRIES_MAX: Final = 10
MARK: Final = "~"
"""The first character of the names of pages and cursor; no id begins with it."""


class DeskPages:
    """Which requests of one desk expire when."""

    def __init__(self, endpoint: str, window_ms: int) -> None:
        self._endpoint, self._window_ms = endpoint, window_ms
        self._cursor = Key(endpoint, f"{MARK}cursor")
        self._oldest_ms: int | None = None

    def key(self, request: str, until_ms: int) -> Key:
        return self._leaf(until_ms // PAGE_MS, crc32(request.encode()) % LEAVES)

    def begin(self, entities: EntityStore, now_ms: int) -> int:
        """Create the cursor if there is none: requests issued from now on expire after now. Returns the time that ids
        must be younger than."""
        if self._oldest_ms is not None and self._oldest_ms <= now_ms:
            return self._oldest_ms
        for _ in range(TRIES_MAX):
            cursor = entities.load([self._cursor])[0]
            new = {"mark": now_ms // PAGE_MS - 1, "window_ms": self._window_ms, "oldest_ms": 0}
            state = {**new, **(cursor.state or {})}
            oldest_ms, window_ms = state["oldest_ms"], state["window_ms"]
            if window_ms < self._window_ms:
                oldest_ms = max(oldest_ms, now_ms - window_ms)
            state = {**state, "window_ms": self._window_ms, "oldest_ms": min(oldest_ms, now_ms)}
            if state == cursor.state or entities.persist([cursor.changed(state)])[0]:
                self._oldest_ms = int(state["oldest_ms"])
                return self._oldest_ms
        raise _contended(self._cursor, TRIES_MAX)

    def expire(self, entities: EntityStore, now_ms: int, slack_ms: int) -> int:
        """Remove the requests that expired ``slack_ms`` ago or earlier, up to a day of them; returns how many."""
        before_ms = now_ms - slack_ms
        cursor = entities.load([self._cursor])[0]
        first = mark_of(cursor.state) + 1
        if first > now_ms // PAGE_MS + 1:
            first = (before_ms - BACK_MS) // PAGE_MS
        last = min(before_ms // PAGE_MS, first + PAGES_MAX) - 1
        if cursor.state is None or first > last:
            return 0
        removed, step = 0, AT_ONCE // LEAVES
        for start in range(first, last + 1, step):
            pages = range(start, min(start + step, last + 1))
            keys = [self._leaf(page, leaf) for page in pages for leaf in range(LEAVES)]
            leaves = [leaf for leaf in entities.load(keys) if leaf.state is not None]
            requests = [Key(self._endpoint, request) for leaf in leaves for request in leaf.state["ids"]]
            for at in range(0, len(requests), AT_ONCE):
                removed += _remove(entities, requests[at : at + AT_ONCE])
            _remove(entities, [leaf.key for leaf in leaves])
        # A conflict is fine: another process has moved the cursor.
        entities.persist([cursor.changed({**cursor.state, "mark": last})])
        return removed

    def _leaf(self, page: int, leaf: int) -> Key:
        return Key(self._endpoint, f"{MARK}{page}.{leaf}")


def _remove(entities: EntityStore, keys: Sequence[Key]) -> int:
    removed, rest = 0, list(keys)
    for _ in range(TRIES_MAX):
        there = [entity for entity in entities.load(rest) if entity.state is not None] if rest else []
        done = entities.persist([entity.changed(None) for entity in there]) if there else []
        removed += sum(done)
        rest = [entity.key for entity, is_removed in zip(there, done, strict=True) if not is_removed]
        if not rest:
            return removed
    raise _contended(rest[0], TRIES_MAX)


WINDOW_S: Final = 86_400
"""As long as Stripe keeps the answer to an idempotency key."""
WINDOW_S_MAX: Final = 6 * 86_400
"""Consumers and recoveries keep tombstones of forgotten requests for seven days: the window must be shorter."""
AHEAD_S: Final = 300
"""How far a client's clock may be ahead; Kerberos allows as much."""
SLACK_S: Final = 3_600
"""Between the expiry of a request and its removal: clocks of two desks may differ, and attempts take time."""
TEND_S: Final = 60
SEND_TRIES_MAX: Final = 30
"""Tries of a write that others contend for: more than there are threads."""
OPEN, SUBMITTED, ANSWERED = "open", "submitted", "answered"


class Unknown(OnefoldError):
    """No such request was ever issued."""


class Gone(OnefoldError):
    """The request is expired or forgotten: it is not executed, and its id cannot be used again."""


class Differs(OnefoldError):
    """The id belongs to a request for another queue or with another body."""


class Slot(NamedTuple):
    status: str
    """``open``, ``submitted`` or ``answered``."""
    until_ms: int
    """When it expires."""
    answer: Any = None


class Desk:
    """Takes requests, and sends each on once. Some process must consume its endpoint, for answers and for expiry.

    All desks of one name must have the same window. It can be changed; an id that was too old stays too old.
    """

    def __init__(
        self, *, store: str | Ledger | EntityStore, transport: str | Queue | None = None,
        tokens: str | TokenStore | None = None, plan: str | None = None, name: str = "desk",
        window_s: float = WINDOW_S, queues: Collection[str] | None = None, clock_ms: Callable[[], int] = wall_ms,
    ) -> None:  # fmt: skip
        if not 0 < window_s <= WINDOW_S_MAX:
            raise Misuse(f"window_s is {window_s}, must be above 0 and at most {WINDOW_S_MAX:,}", window_s=window_s)
        self.endpoint = Endpoint(name, store=store, transport=transport, tokens=tokens, plan=plan, clock_ms=clock_ms)
        # The desk has entities that are no requests, so the id is checked.
        self.endpoint.handler(name, key=lambda message: check_id(str(message.get("request"))))(answered)
        self.endpoint.chores.append(self._tend)
        self.queues = None if queues is None else frozenset(check_queue(queue) for queue in queues)
        """Queues that requests may be for; None: all but the desk's own."""
        self._window_ms = round(window_s * 1_000)
        self._pages = DeskPages(name, self._window_ms)
        self._tended_ms = 0

    @property
    def tombstone_s(self) -> float:
        """How long tombstones of forgotten requests must be kept, at least."""
        return self._window_ms / 1_000 + SLACK_S

    def issue(self) -> str:
        """A new id, to be passed to `put`."""
        return new_id(self.endpoint.clock_ms())

    def put(self, queue: str, request: str) -> bool:
        """Issue a request under this id; False if that was done before."""
        request = check_id(request)
        self._check_queue(queue)
        now, at = self.endpoint.clock_ms(), time_of(request)
        if at > now + AHEAD_S * 1_000:
            raise BadInput(f"id {request} has a time {(at - now) // 1_000:,} s ahead, at most {AHEAD_S} s are allowed")
        if at + self._window_ms <= now:
            raise Gone(f"id {request} is more than {self._window_ms // 1_000:,} s old: make a new one")
        if at <= self._pages.begin(self.endpoint.world.entities, now):
            raise Gone(f"id {request} was too old when the window was shorter: make a new one")
        entities = self.endpoint.world.entities
        new: dict[str, Any] = {"mark": 0, "queue": queue, "until_ms": at + self._window_ms}
        for _ in range(SEND_TRIES_MAX):
            leaf, slot = entities.load([self._pages.key(request, new["until_ms"]), self.endpoint.key(request)])
            if slot.version:  # issued before, perhaps with another window
                leaf = entities.load([self._pages.key(request, self._live(slot, queue).state["until_ms"])])[0]
            ids = [] if leaf.state is None else leaf.state["ids"]
            paged = request in ids or entities.persist([leaf.changed({"ids": [*ids, request]})])[0]
            if paged and (slot.version or entities.persist([slot.changed(new)])[0]):
                return not slot.version
        raise _contended(f"request {request}", SEND_TRIES_MAX)

    def submit(self, queue: str, request: str, body: Any, headers: Mapping[str, str] = NO_HEADERS) -> Slot:
        """Submit a request with this body, and send it once, however often this is called; `Differs` for another body.
        Only the ``headers`` of the first call count."""
        request = check_id(request)
        self._check_queue(queue)
        digest = hashlib.sha256(pack(body).encode()).hexdigest()
        until_ms = self._live(self._load(request), queue).state["until_ms"]
        origin = f"{self.endpoint.name}/{request}"
        outs = [Out(queue, body, headers)]
        outcome = self.endpoint.take(request, 1, outs, origin=origin, known=True, also={"digest": digest})
        if outcome is Outcome.CONFLICT:
            raise _contended(f"request {request}", SEND_TRIES_MAX)
        if outcome is Outcome.APPLIED:  # sent; a second look could find it expired and say that it was not executed
            return Slot(SUBMITTED, until_ms)
        entity = self._live(self._load(request), queue)
        if entity.state.get("digest") != digest:
            raise Differs(f"request {request} was submitted with another body")
        return slot_of(entity)

    def status(self, request: str, queue: str | None = None) -> Slot:
        """The status of a request; raises `Unknown` or `Gone`."""
        return slot_of(self._live(self._load(check_id(request)), queue))

    def states(self, requests: Sequence[str]) -> list[Slot | None]:
        """The status of several requests in one read; None for those that are unknown or gone."""
        entities = self.endpoint.world.entities.load([self.endpoint.key(request) for request in requests])
        return [None if entity.state is None else slot_of(entity) for entity in entities]

    def forget(self, request: str, queue: str | None = None) -> None:
        """Forget a request, whatever its status. A submitted message is still processed; its answer is dropped."""
        request = check_id(request)
        for _ in range(SEND_TRIES_MAX):
            entity = self._load(request)
            if entity.version and entity.state is None:
                return
            self._check_known(entity, queue)
            if self.endpoint.world.entities.persist([entity.changed(None)])[0]:
                return
        raise _contended(f"request {request}", SEND_TRIES_MAX)

    def expire(self) -> int:
        """Remove the requests that expired an hour ago or earlier; returns how many."""
        return self._pages.expire(self.endpoint.world.entities, self.endpoint.clock_ms(), SLACK_S * 1_000)

    def close(self) -> None:
        self.endpoint.close()

    def answering(self) -> DeskAnswers:
        """A context in which answers are received; at least one process must enter it."""
        return DeskAnswers(self)

    @property
    def aio(self) -> AsyncDesk:
        return AsyncDesk(self)

    def _tend(self) -> None:
        now = self.endpoint.clock_ms()
        if not 0 <= now - self._tended_ms < TEND_S * 1_000:  # also if the clock was set back since
            self._tended_ms = now
            self.expire()

    def _live(self, entity: Entity, queue: str | None) -> Entity:
        self._check_known(entity, queue)
        if entity.state is None:
            raise Gone(f"request {entity.key.name} is expired or forgotten")
        if entity.state["until_ms"] <= self.endpoint.clock_ms():
            raise Gone(f"request {entity.key.name} is expired")
        return entity

    def _check_known(self, entity: Entity, queue: str | None) -> None:
        request = entity.key.name
        if not entity.version:
            if time_of(request) + self._window_ms <= self.endpoint.clock_ms():
                raise Gone(f"request {request} is expired, if it was ever issued")
            raise Unknown(f"request {request} was never issued")
        if entity.state is not None and queue not in (None, entity.state["queue"]):
            raise Differs(f"request {request} is for the queue {entity.state['queue']}, not {queue}")

    def _check_queue(self, queue: str) -> None:
        check_queue(queue)
        if queue == self.endpoint.name or (self.queues is not None and queue not in self.queues):
            raise Unknown(f"this desk takes no requests for the queue {queue!r}")

    def _load(self, request: str) -> Entity:
        return self.endpoint.world.entities.load([self.endpoint.key(request)])[0]


class AsyncDesk:
    """The methods of a desk, to be awaited; each runs in a thread, because the stores block."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def put(self, queue: str, request: str) -> bool:
        return await asyncio.to_thread(self.desk.put, queue, request)

    async def submit(self, queue: str, request: str, body: Any, headers: Mapping[str, str] = NO_HEADERS) -> Slot:
        return await asyncio.to_thread(self.desk.submit, queue, request, body, headers)

    async def status(self, request: str, queue: str | None = None) -> Slot:
        return await asyncio.to_thread(self.desk.status, request, queue)

    async def forget(self, request: str, queue: str | None = None) -> None:
        await asyncio.to_thread(self.desk.forget, request, queue)


def answered(state: Any, message: Message) -> tuple[Any, list[Out]]:
    """The handler of the desk's own queue: stores the first answer with its request."""
    if state is None or "answer" in state:
        return state, []
    return {**state, "answer": message.get("answer")}, []


def slot_of(entity: Entity) -> Slot:
    state = entity.state
    status = ANSWERED if "answer" in state else SUBMITTED if mark_of(state) else OPEN
    return Slot(status, state["until_ms"], state.get("answer"))


def _contended(what: object, tries: int) -> StaleWrite:
    return StaleWrite(f"{what}: another process wrote it in each of {tries} tries")


POLL_S: Final = 0.05
"""Between two reads of the store: how late an answer may be noticed."""
ASKED_MAX: Final = 500
"""Ids per read; a round reads all that are waited for."""


class Waiting:
    """The clients that wait for an answer, on one event loop. One task polls the store for all of them, because the
    answer may come through another desk."""

    def __init__(self, look: Callable[[Sequence[str]], Awaitable[list[Slot | None]]], wait_s_max: float) -> None:
        self._look = look
        self._wait_s_max = wait_s_max
        self._waiters: dict[str, set[asyncio.Future[Slot | None]]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._closed = False

    async def answer(self, request: str, slot: Slot, wait_s: float) -> Slot:
        """Wait up to ``wait_s`` for the answer; returns ``slot`` if there is none."""
        seconds = min(wait_s, self._wait_s_max)
        if slot.status == ANSWERED or seconds <= 0 or self._closed:
            return slot
        future: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(request, set()).add(future)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            return await asyncio.wait_for(future, seconds) or slot
        except TimeoutError:
            return slot
        finally:
            self._waiters[request].discard(future)
            if not self._waiters[request]:
                del self._waiters[request]

    async def close(self) -> None:
        """Return from all calls of `answer`, and let later ones not wait."""
        self._closed = True
        for request in self._waiters:
            self._resolve(request, None)

    async def _poll(self) -> None:
        while self._waiters:
            await asyncio.sleep(POLL_S)
            ids = list(self._waiters)
            for at in range(0, len(ids), ASKED_MAX):
                part = ids[at : at + ASKED_MAX]
                try:
                    slots = await self._look(part)
                except StoreFailed:  # try again; every client has a time limit
                    continue
                for request, slot in zip(part, slots, strict=True):
                    if slot is None or slot.status == ANSWERED:  # None: gone, so no answer can come
                        self._resolve(request, slot)

    def _resolve(self, request: str, slot: Slot | None) -> None:
        for future in self._waiters.get(request, ()):
            if not future.done():
                future.set_result(slot)


THREADS: Final = 16
"""Requests that use the stores at the same time."""
METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE"})
STATUSES: Final[Statuses] = {Unknown: 404, Differs: 409, Gone: 410}
WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)
"""Of RFC 7240, section 4.3."""
T = TypeVar("T")


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["queue"], request.path_params["id"].lower()


def _document(named: str, slot: Slot) -> dict[str, Any]:
    document = {"id": named, "status": slot.status, "until_ms": slot.until_ms}
    return {**document, "answer": slot.answer} if slot.status == ANSWERED else document


async def _no_body(request: Request) -> None:
    if await request.body():
        raise BadInput("a body has no effect here: it is POST /{queue}/{id} that submits one")


def _wait_s(request: Request) -> int:
    wait = WAIT.search(",".join(request.headers.getlist("prefer")))
    return int(wait[1]) if wait else 0


PORT: Final = 7656
DESK_LIMITS: Final = HttpLimits(body_bytes_max=BODY_BYTES_MAX, in_hand_bytes_max=64 << 20)
WAIT_S_MAX: Final = 30.0
"""Proxies cut a silent request off after 60 s."""
AGAIN_S: Final = 1.0
"""Pause before the consumer is restarted after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskSettings:
    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    wait_s_max: float = WAIT_S_MAX
    limits: HttpLimits = DESK_LIMITS


class DeskAnswers:
    """Consumes the desk's own queue in a thread: receives answers, and removes expired requests."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._error: str | None = None
        self._ending = threading.Event()
        self.consumer: Consumer | None = None

    @property
    def problem(self) -> str | None:
        return self._error or (None if self.consumer is None else self.consumer.trouble)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._consume, name="onefold-desk-answers")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _consume(self) -> None:
        def clear() -> None:
            self._error = None

        while not self._ending.is_set():
            settings = Consuming(tombstone_s=self._desk.tombstone_s)
            self.consumer = Consumer(self._desk.endpoint, settings, stop=self._ending)
            try:
                self.consumer.run(clear)
            except Exception as error:
                self._error = str(error)
                self._ending.wait(AGAIN_S)


class DeskApp:
    """The desk as an ASGI app, to be mounted into yours, which has to check who may use it.

    desk = Desk(store="sqlite:///shop.db")

    @asynccontextmanager
    async def lifespan(app):
        with desk.answering():
            yield

    app = Starlette(routes=[Mount("/requests", DeskApp(desk))], lifespan=lifespan)
    """

    def __init__(self, desk: Desk, *, wait_s_max: float = WAIT_S_MAX, limits: HttpLimits | None = None) -> None:
        self.desk = desk
        self.limits = limits or DESK_LIMITS
        self._budget = Budget(self.limits.in_hand_bytes_max)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="onefold-desk")
        self.waiting = Waiting(lambda ids: self._off(desk.states, ids), wait_s_max)
        self.routes = [
            Route("/{queue}", self.issue, methods=["POST"]),
            Route("/{queue}/{id}", self.put, methods=["PUT"]),
            Route("/{queue}/{id}", self.submit, methods=["POST"]),
            Route("/{queue}/{id}", self.look, methods=["GET"]),
            Route("/{queue}/{id}", self.forget, methods=["DELETE"]),
        ]
        self._router = Router(self.routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(scope, receive, self.limits, self._budget)
        try:
            await self._router({**scope, "app": self}, body.receive, send)
        except ClientDisconnect:
            pass
        except Exception as error:
            status, text = refusal(error, log, STATUSES)
            headers = error.headers if isinstance(error, HTTPException) else None
            await answer({"error": text}, status, headers)(scope, receive, send)
        finally:
            body.close()

    def close(self) -> None:
        """End its threads; the desk stays open."""
        self._pool.shutdown()

    async def issue(self, request: Request) -> Response:
        await _no_body(request)
        queue, new = request.path_params["queue"], self.desk.issue()
        await self._off(self.desk.put, queue, new)
        location = f"{request.scope.get('root_path', '')}/{queue}/{new}"
        return answer({"id": new, "status": "open"}, 201, {"location": location})

    async def put(self, request: Request) -> Response:
        await _no_body(request)
        queue, named = _named(request)
        is_new = await self._off(self.desk.put, queue, named)
        return answer(_document(named, await self._off(self.desk.status, named, queue)), 201 if is_new else 200)

    async def submit(self, request: Request) -> Response:
        queue, named = _named(request)
        body = read_json(await request.body(), "the body")
        trace = {name: request.headers[name] for name in TRACE if name in request.headers}
        slot = await self._off(self.desk.submit, queue, named, body, trace)
        slot = await self.waiting.answer(named, slot, _wait_s(request))
        return answer(_document(named, slot), 200 if slot.status == ANSWERED else 202)

    async def look(self, request: Request) -> Response:
        queue, named = _named(request)
        slot = await self._off(self.desk.status, named, queue)
        return answer(_document(named, await self.waiting.answer(named, slot, _wait_s(request))))

    async def forget(self, request: Request) -> Response:
        queue, named = _named(request)
        await self._off(self.desk.forget, named, queue)
        return Response(status_code=204)

    async def _off(self, call: Callable[..., T], *values: Any) -> T:
        """Call it in a thread, because the stores block."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *values)


class DeskServer(HttpServer):
    """Serves a desk until it is stopped; then closes it."""

    name = "desk"
    statuses = STATUSES
    loggers = ("onefold.outbox",)

    def __init__(self, desk: Desk, settings: DeskSettings | None = None) -> None:
        self.settings = settings = settings or DeskSettings()
        check_host(settings.host, settings.token)  # before anything is opened or made
        self.desk = desk
        desk.endpoint.world  # noqa: B018 # opens the stores, so that errors show before requests are taken
        self._answers = desk.answering()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._app = DeskApp(desk, wait_s_max=settings.wait_s_max)
        super().__init__(settings.host, settings.port, settings.token, settings.limits)

    def run(self, say: Callable[[str], None] = lambda url: None) -> None:
        """Serve; ``say`` is called with the URL as soon as requests are answered."""
        try:
            with self._answers:
                super().run(say)
        finally:
            self.desk.close()

    async def serve(self) -> None:
        app = self._app
        with closing(app):
            await self.answer(
                app.routes, health=self._health, metrics=self._metrics, blocking=True, drain=app.waiting.close
            )

    def answered(self, method: str, status: int) -> None:
        self._counts[method if method in METHODS else "other", str(status)] += 1

    def _health(self) -> dict[str, Any]:
        problem = self._answers.problem
        return {} if problem is None else {"problem": f"answers do not come in: {problem}"}

    def _metrics(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "onefold_desk_requests", "Requests by how they were answered.", labels=["method", "status"]
        )
        for labels, count in list(self._counts.items()):
            requests.add_metric(labels, count)
        yield requests
        if self._answers.consumer is not None:
            yield from outbox_metrics(self._answers.consumer)
