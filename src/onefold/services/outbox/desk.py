"""The desk: where requests from outside get their token, by an issue/submit handshake.

A client that sends a request and hears nothing does not know whether it arrived. If it sends it again and it had, it is
done twice. So a request has two steps, and both can be repeated without harm: first a place for it is made under an id
that the client chose (*open*), then it is filled with a body (*submitted*), which sends the message, once. Who was
never issued, or is expired, or forgotten, cannot be submitted.

A request is an entity, and a source with the marks 0 and 1 (`engines.outbox.source`): mark 1 sends. The digest of the
body that came first is kept with it; another body is refused. A handler answers by `Out.reply`; the answer comes as a
message to the desk's own queue, and is stored with the request. All of it ends when the id is a window old.

    open --submit--> submitted --the handler's reply--> answered
      \\___________________ forget, or a window ___________________> gone
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from onefold.engines.outbox import Entity, Message, Out, Outcome, mark_of, pack
from onefold.engines.outbox.handling import check_queue
from onefold.errors import BadInput, Misuse, OnefoldError, StaleWrite
from onefold.ports import EntityStore, Ledger, Queue, TokenStore
from onefold.services.outbox.desk_ids import check_id, new_id, time_of
from onefold.services.outbox.desk_pages import Pages, noted
from onefold.services.outbox.endpoint import Endpoint
from onefold.stores.counters import wall_ms

WINDOW_S: Final = 86_400
"""As long as Stripe keeps the answer to an idempotency key."""
WINDOW_S_MAX: Final = 6 * 86_400
"""What was forgotten is remembered for seven days by whoever consumes or recovers: the window must be shorter."""
AHEAD_S: Final = 300
"""How far a client's clock may be fast; Kerberos allows as much."""
SLACK_S: Final = 3_600
"""Between the end of a request and its removal: clocks of two desks may differ, and attempts take time."""
TEND_S: Final = 60
TRIES_MAX: Final = 30
"""Of a write that others meet at: as many as there are threads, and some."""
OPEN, SUBMITTED, ANSWERED = "open", "submitted", "answered"


class Unknown(OnefoldError):
    """No such request was ever issued."""


class Gone(OnefoldError):
    """The request is expired or forgotten: it is not executed, and its id cannot be used again."""


class Differs(OnefoldError):
    """The request is there, for another queue or with another body."""


class Slot(NamedTuple):
    """What is known of a request."""

    status: str
    """``open``, ``submitted`` or ``answered``."""
    until_ms: int
    """When it will be gone."""
    answer: Any = None


class Desk:
    """Takes requests, and hands each on once. Its endpoint must be consumed somewhere, for answers and for chores.

    All desks of one name have one window. It can be changed: an id that was too old once stays so.
    """

    def __init__(
        self, *, store: str | Ledger | EntityStore, transport: str | Queue, tokens: str | TokenStore | None = None,
        plan: str | None = None, name: str = "desk", window_s: float = WINDOW_S, queues: Collection[str] | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:  # fmt: skip
        if not 0 < window_s <= WINDOW_S_MAX:
            raise Misuse(f"window_s is {window_s}, must be above 0 and at most {WINDOW_S_MAX:,}", window_s=window_s)
        self.endpoint = Endpoint(
            name, store=store, transport=transport, tokens=tokens, plan=plan, clock_ms=clock_ms
        )  # fmt: skip
        self.endpoint.handler(name, key=_request)(answered)
        self.endpoint.chores.append(self._tend)
        self.queues = None if queues is None else frozenset(check_queue(queue) for queue in queues)
        """Those that can be asked for; None: all but the desk's own."""
        self._window_ms = round(window_s * 1_000)
        self._pages = Pages(name, self._window_ms)
        self._tended_ms = 0

    @property
    def tombstone_s(self) -> float:
        """For how long, at least, what was forgotten must be remembered."""
        return self._window_ms / 1_000 + SLACK_S

    def issue(self) -> str:
        """A new id; the request has still to be `put`."""
        return new_id(self.endpoint.clock_ms())

    def put(self, queue: str, request: str) -> bool:
        """Make room for a request; whether it was made now, or was there already."""
        request = check_id(request)
        self._check_queue(queue)
        now, made = self.endpoint.clock_ms(), time_of(request)
        if made > now + AHEAD_S * 1_000:
            raise BadInput(f"id {request} is of a time {(made - now) // 1_000:,} s ahead; at most {AHEAD_S} s can be")
        if made + self._window_ms <= now:
            raise Gone(f"id {request} is more than {self._window_ms // 1_000:,} s old: make a new one")
        if made <= self._pages.begin(self.endpoint.world.entities, now):
            raise Gone(f"id {request} was too old when the window was shorter: make a new one")
        written = False
        for _ in range(TRIES_MAX):
            done, now_written = self._put(queue, request, made + self._window_ms)
            written = written or now_written
            if done:
                return written
        raise _contended(request)

    def _put(self, queue: str, request: str, until_ms: int) -> tuple[bool, bool]:
        """Write the request, and its id on its page; whether both are there, and whether the request is new."""
        entities = self.endpoint.world.entities
        leaf, slot = entities.load([self._pages.key(request, until_ms), self.endpoint.key(request)])
        if slot.version:
            until_ms = self._live(slot, queue).state["until_ms"]
            leaf = entities.load([self._pages.key(request, until_ms)])[0]  # the window may have been another
        page = noted(leaf, request)
        paged = page is None or entities.persist([page])[0]
        if slot.version or not paged:
            return paged, False
        written = entities.persist([slot.changed({"mark": 0, "queue": queue, "until_ms": until_ms})])[0]
        return written, written

    def submit(self, queue: str, request: str, body: Any) -> Slot:
        """Fill a request and send it, once, however often this is called; `Differs` for another body."""
        request = check_id(request)
        self._check_queue(queue)
        digest = hashlib.sha256(pack(body).encode()).hexdigest()
        until_ms = self._live(self._load(request), queue).state["until_ms"]
        origin = f"{self.endpoint.name}/{request}"
        taken = self.endpoint.take(request, 1, [Out(queue, body)], origin=origin, known=True, also={"digest": digest})
        if taken is Outcome.CONFLICT:
            raise _contended(request)
        if taken is Outcome.APPLIED:  # it is sent: to look again, and find it expired or forgotten, would deny that
            return Slot(SUBMITTED, until_ms)
        entity = self._live(self._load(request), queue)
        if entity.state.get("digest") != digest:
            raise Differs(f"request {request} was submitted with another body")
        return slot_of(entity)

    def status(self, request: str, queue: str | None = None) -> Slot:
        """What is known of it; `Unknown` or `Gone` if nothing is."""
        return slot_of(self._live(self._load(check_id(request)), queue))

    def states(self, requests: Sequence[str]) -> list[Slot | None]:
        """The same of many at once; None for those that are unknown or gone."""
        found = self.endpoint.world.entities.load([self.endpoint.key(request) for request in requests])
        return [None if entity.state is None else slot_of(entity) for entity in found]

    def forget(self, request: str, queue: str | None = None) -> None:
        """Let go of a request, whatever became of it; what was submitted goes on, and its answer is dropped."""
        request = check_id(request)
        for _ in range(TRIES_MAX):
            entity = self._load(request)
            if entity.version and entity.state is None:
                return
            self._check_known(entity, queue)
            if self._persist(entity, None):
                return
        raise _contended(request)

    def expire(self) -> int:
        """Remove the requests that ended an hour ago; how many there were."""
        return self._pages.expire(self.endpoint.world.entities, self.endpoint.clock_ms(), SLACK_S * 1_000)

    def close(self) -> None:
        """Let go of the stores."""
        self.endpoint.close()

    def _tend(self) -> None:
        now = self.endpoint.clock_ms()
        if not 0 <= now - self._tended_ms < TEND_S * 1_000:  # also when the clock was set back since
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
                raise Gone(f"request {request} is expired, if it ever was")
            raise Unknown(f"request {request} was never issued")
        if entity.state is not None and queue not in (None, entity.state["queue"]):
            raise Differs(f"request {request} is for the queue {entity.state['queue']}, not {queue}")

    def _check_queue(self, queue: str) -> None:
        check_queue(queue)
        if queue == self.endpoint.name or (self.queues is not None and queue not in self.queues):
            raise Unknown(f"no requests are taken for the queue {queue!r}")

    def _load(self, request: str) -> Entity:
        return self.endpoint.world.entities.load([self.endpoint.key(request)])[0]

    def _persist(self, entity: Entity, state: Any) -> bool:
        return self.endpoint.world.entities.persist([entity.changed(state)])[0]


def answered(state: Any, message: Message) -> tuple[Any, list[Out]]:
    """The handler of the desk's own queue: keeps an answer with its request. The first one counts."""
    if state is None or "answer" in state:
        return state, []
    return {**state, "answer": message.get("answer")}, []


def _request(message: Message) -> str:
    """Whose answer it is. Checked: the desk has other entities than requests."""
    return check_id(str(message.get("request")))


def slot_of(entity: Entity) -> Slot:
    """What a request's entity says of it."""
    state = entity.state
    status = ANSWERED if "answer" in state else SUBMITTED if mark_of(state) else OPEN
    return Slot(status, state["until_ms"], state.get("answer"))


def _contended(request: str) -> StaleWrite:
    return StaleWrite(f"request {request}: somebody else wrote it in each of {TRIES_MAX} tries")
