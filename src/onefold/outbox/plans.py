"""One attempt at one message: the three plans, each read from top to bottom like the published listing.

A message is processed only while its token exists (token-based deduplication, Masternak and Pobiega). What a duplicate
filter forgets too early comes in twice; a token that is gone cannot come back, so nothing has to be remembered.

Why each line stands where it does, in all plans:

- *load, then look for the token*: if the token is still there after the load, then whoever finishes this message later
  also writes the entity later, and our write is refused. The other way round, it could finish between the two.
- *every write is checked against the version*: of two workers at one message, one gets through.
- *tokens before their messages, and a checkpoint between*: what is sent carries the tokens of the attempt that got
  through. Ids are new in each attempt. A token that was used up is never made again.
- *send, then remove the token, then clear the outbox*: a crash between any two is found at the next delivery.
- *no token: look again, and clear what is left*: the worker before us may have died after it removed the token.
- *what a plan finds left by another plan, it can finish*: an endpoint may change its plan while messages are in flight.
- *tokens are made only while their parent exists*, and go with it unless their attempt won: no garbage.

`checkpointed` is the published final listing: seven round trips to the stores, and the handler is called only when
there is a token. `parented` makes the tokens before the one write that fixes state, messages and tokens together: five.
`transactional` needs one database for all and has three.

    plan            reads and writes of entities and tokens
    checkpointed    load, holds, persist, create, persist, remove, persist
    parented        load, create, persist, remove, persist
    transactional   open, settle, finish

Where messages come from first: sources that have no token, but a mark that only grows.

A message needs a token, a token is made by whoever sends the message, and somebody has to be the first. What comes from
outside is known by its place: the offset in a log, the number of a batch of a query, the "one" of a request that is
made once. Such a *mark* grows, so the highest one that was taken is all that has to be kept. It is the state of an
entity, one per source, and it is written together with an outbox entry for what the mark sends. From there on it is the
same algorithm: tokens, checkpoint, dispatch, and an empty outbox.

A mark that is not above the kept one was taken before: what is left of it is finished, and nothing is sent anew. A
source that skips marks is believed: what lies between is never taken again (see `Taken.after`).

`sourced` is for two stores. There is no parent token that could guard the making of tokens; the entry's name stands in
for it. A worker that is late leaves tokens whose parent has no outbox entry: garbage, which whoever recovers outboxes
can tell for certain and sweeps (read such tokens first, then look for the entry: an entry that is gone has freed its
own). `sourced_at_once` is for one database, and leaves none.

What a handler is given and may give back: ``handler(state, message) -> (state, outgoing)``.

The state is a JSON value, or None where there is no entity; a new state of None deletes it. What is to be sent is a
list of `Out`, each to one or more queues; a message to three queues is three messages with a token each, for each of
the three is processed at its own time. A handler returns what shall happen and does nothing itself: it may be called
again after a crash, and for a copy that comes too late; what it returned then counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from onefold.errors import BadInput, Misuse
from onefold.outbox.steps import (
    Acknowledge,
    Attempt,
    Birth,
    Create,
    Dispatch,
    Entity,
    Entry,
    Finish,
    Fresh,
    Handle,
    Handled,
    Holds,
    Key,
    Load,
    Message,
    Open,
    OpenedAttempt,
    Outcome,
    Outgoing,
    Persist,
    Removal,
    Remove,
    Settle,
    Settled,
    Step,
    pack,
)
from onefold.verdict import Answer, Verdict


def checkpointed(key: Key, message: Message) -> Attempt:
    """For any two stores: the published listing, with the clean-up that it lacks."""
    token = message.token
    entity: Entity = yield Load(key)
    if not (yield Holds(token)):
        return (yield from _tidied(key, token))
    applied = token not in entity.outbox
    if applied:
        done: Handled = yield Handle(entity.state)
        entity = entity.changed(done.state).keeping(token, Entry(done.outgoing, origin=message.origin))
        if not (yield Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    ended = yield from sent(entity, token, guarded=True)
    if ended is not None:
        return ended
    yield Acknowledge()
    return Outcome.APPLIED if applied else Outcome.RESUMED


def parented(key: Key, message: Message) -> Attempt:
    """For any two stores, in fewer steps: making the tokens is also the look whether ours exists."""
    token = message.token
    entity: Entity = yield Load(key)
    applied = token not in entity.outbox
    if applied:
        done: Handled = yield Handle(entity.state)
        entry = yield from named(Entry(done.outgoing, origin=message.origin))
        if not (yield Create(_birth(token, entry, guarded=True))):
            return (yield from _tidied(key, token))
        entity = entity.changed(done.state).keeping(token, entry)
        if not (yield Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    ended = yield from sent(entity, token, guarded=True)
    if ended is not None:
        return ended
    yield Acknowledge()
    return Outcome.APPLIED if applied else Outcome.RESUMED


def transactional(key: Key, message: Message) -> Attempt:
    """For one database: token, state, outbox and the new tokens change in one transaction."""
    token = message.token
    opened: OpenedAttempt = yield Open(key, token)
    entity = opened.entity
    if not opened.held:
        return (yield from sent_again(entity, token))
    if token in entity.outbox:  # begun by another plan, which removes the token last
        ended = yield from sent(entity, token, guarded=True, at_once=True)
        if ended is not None:
            return ended
        yield Acknowledge()
        return Outcome.RESUMED
    done: Handled = yield Handle(entity.state)
    entry = yield from named(Entry(done.outgoing, origin=message.origin))
    entity = entity.changed(done.state)
    if entry.outgoing:
        entity = entity.keeping(token, entry)
    settled: Settled = yield Settle(entity, token, token)
    if settled is not Settled.DONE:  # somebody else was at it
        return Outcome.CONFLICT
    if entry.outgoing:
        yield Dispatch(entry.messages(token))
        yield Finish(key, token)
    yield Acknowledge()
    return Outcome.APPLIED


def resumed(key: Key, name: str) -> Attempt:
    """What is left to do of a stranded outbox entry, whichever plan left it; the message itself is not needed."""
    entity: Entity = yield Load(key)
    if name not in entity.outbox:
        return Outcome.DUPLICATE
    ended = yield from sent(entity, name, guarded=MARK not in name)
    return ended or Outcome.RESUMED


def resumed_at_once(key: Key, name: str) -> Attempt:
    """The same for `transactional`, which clears entries without a new version: to write all of them would bring back
    one that was cleared since the load."""
    entity: Entity = yield Load(key)
    if name not in entity.outbox:
        return Outcome.DUPLICATE
    ended = yield from sent(entity, name, guarded=MARK not in name, at_once=True)
    return ended or Outcome.RESUMED


Plan = Callable[[Key, Message], Attempt]
Recovery = Callable[[Key, str], Attempt]

PLANS: Final[Mapping[str, Plan]] = MappingProxyType(
    {"checkpointed": checkpointed, "parented": parented, "transactional": transactional}
)
RECOVERIES: Final[Mapping[str, Recovery]] = MappingProxyType(
    {"checkpointed": resumed, "parented": resumed, "transactional": resumed_at_once}
)


def sent(entity: Entity, name: str, *, guarded: bool, at_once: bool = False) -> Generator[Step, Any, Outcome | None]:
    """From the entry to the end: tokens, messages, removal, and an empty outbox; an outcome if it could not be.

    ``at_once``: in one database, where an entry is cleared alone.
    """
    entry = entity.outbox[name]
    if entry.outgoing and not entry.attempt:
        entry = yield from named(entry)
        if not (yield Create(_birth(name, entry, guarded=guarded))):
            return (yield from _tidied(entity.key, name))
        entity = entity.keeping(name, entry)
        if not (yield Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    if entry.outgoing:
        yield Dispatch(entry.messages(name))
    yield Remove(Removal(name, entry.attempt))
    if at_once:
        yield Finish(entity.key, name)
    elif not (yield Persist(entity.without(name))):
        return Outcome.CONFLICT
    return None


def named(entry: Entry) -> Generator[Step, Any, Entry]:
    """With the fresh ids of this attempt."""
    if not entry.outgoing:
        return entry
    attempt, *tokens = yield Fresh(1 + len(entry.outgoing))
    return entry.checkpointed(attempt, tuple(tokens))


def _birth(parent: str, entry: Entry, *, guarded: bool) -> Birth:
    return Birth(parent, entry.attempt, tuple((out.token, out.to) for out in entry.outgoing), guarded)


def _tidied(key: Key, token: str) -> Attempt:
    """There is no token. What was loaded may be older than that: look again before saying that nothing is left.

    One of the first two plans has sent what is left; `transactional` perhaps not. So it is sent.
    """
    entity: Entity = yield Load(key)
    entry = entity.outbox.get(token)
    if entry is not None:
        if entry.outgoing:
            yield Dispatch(entry.messages(token))
        if not (yield Persist(entity.without(token))):
            return Outcome.CONFLICT
    yield Acknowledge()
    return Outcome.DUPLICATE if entry is None else Outcome.TIDIED


def sent_again(entity: Entity, token: str) -> Attempt:
    """There is no token, so the message was applied. If its entry is left, its messages may never have been sent."""
    entry = entity.outbox.get(token)
    if entry is not None:
        yield Dispatch(entry.messages(token))
        yield Finish(entity.key, token)
    yield Acknowledge()
    return Outcome.DUPLICATE if entry is None else Outcome.RESUMED


MARK: Final = "#"
"""In the name of an outbox entry that a source made: ``orders.log#41``. Tokens have none of it."""


NO_MARK = -1


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source has to send at one mark."""

    key: Key
    """Of the source: the endpoint that takes it in, and the source's name there."""
    mark: int
    outgoing: tuple[Outgoing, ...]
    origin: str = ""
    known: bool = False
    """Refuse a source that was never heard of: a request has to be issued before it is submitted."""
    after: int | None = None
    """Only while the source stands at this mark. For sources that can be cut in more than one way: of two takers that
    cut the same log differently, each would take the other's mark for a mere gap."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What else the source's entity keeps from now on."""

    @property
    def name(self) -> str:
        """Of the outbox entry, which is the parent of its tokens too.

        >>> Taken(Key("shop", "orders.log"), 41, ()).name
        'shop/orders.log#41'
        """
        return f"{self.key}{MARK}{self.mark}"


def mark_of(state: Any) -> int:
    """How far a source was taken; -1 if it never was.

    >>> mark_of(None), mark_of({"mark": 41})
    (-1, 41)
    """
    return NO_MARK if state is None else int(state["mark"])


def sourced(taken: Taken) -> Attempt:
    """For any two stores; ends as APPLIED, RESUMED, DUPLICATE or CONFLICT."""
    entity: Entity = yield Load(taken.key)
    if not _is_new(entity, taken):
        return (yield from _left(entity, taken))
    if not _is_next(entity, taken):
        return Outcome.CONFLICT
    entity = _advanced(entity, taken).keeping(taken.name, Entry(taken.outgoing, origin=taken.origin))
    if not (yield Persist(entity)):
        return Outcome.CONFLICT
    ended = yield from sent(entity.stored, taken.name, guarded=False)
    return ended or Outcome.APPLIED


def sourced_at_once(taken: Taken) -> Attempt:
    """For one database; ends as APPLIED, RESUMED, DUPLICATE or CONFLICT."""
    entity: Entity = yield Load(taken.key)
    if not _is_new(entity, taken):
        return (yield from _left(entity, taken, at_once=True))
    if not _is_next(entity, taken):
        return Outcome.CONFLICT
    entry = yield from named(Entry(taken.outgoing, origin=taken.origin))
    entity = _advanced(entity, taken)
    if entry.outgoing:
        entity = entity.keeping(taken.name, entry)
    settled: Settled = yield Settle(entity, taken.name, None)
    if settled is not Settled.DONE:
        return Outcome.CONFLICT
    if entry.outgoing:
        yield Dispatch(entry.messages(taken.name))
        yield Finish(taken.key, taken.name)
    return Outcome.APPLIED


def _is_new(entity: Entity, taken: Taken) -> bool:
    return taken.mark > mark_of(entity.state) and not (taken.known and entity.state is None)


def _is_next(entity: Entity, taken: Taken) -> bool:
    return taken.after is None or taken.after == mark_of(entity.state)


def _left(entity: Entity, taken: Taken, *, at_once: bool = False) -> Attempt:
    """It was taken before: finish what is left of it."""
    if taken.name not in entity.outbox:
        return Outcome.DUPLICATE
    ended = yield from sent(entity, taken.name, guarded=False, at_once=at_once)
    return ended or Outcome.RESUMED


def _advanced(entity: Entity, taken: Taken) -> Entity:
    return entity.changed({**(entity.state or {}), **taken.also, "mark": taken.mark})


BODY_BYTES_MAX: Final = 256 * 1024
"""Of one message, as JSON: what SQS takes; NATS takes 1 MiB unless told otherwise."""
STATE_BYTES_MAX: Final = 1024 * 1024
"""Of one entity, as JSON: it is read and written whole for each message."""
OUTGOING_MAX: Final = 1_000
"""Messages that one message may send."""
ROOM: Final = 100
"""Levels of nesting, and of calls, that a store or a transport may need beyond what a value itself has."""
NAME_MAX: Final = 200
"""Characters in the name of a queue, an entity, an endpoint."""


class Out(NamedTuple):
    """A message to be sent, to one queue or to several.

    >>> Out("shipping", {"order": 7})
    Out(to='shipping', body={'order': 7})
    """

    to: str | tuple[str, ...]
    body: Any

    @classmethod
    def reply(cls, body: Any) -> Out:
        """An answer to the request that all this began with; nothing is sent if it began with none."""
        return cls((), body)


Handler = Callable[[Any, Message], Any]
KeyOf = str | Callable[[Message], Any]


def key_of(message: Message, key: KeyOf) -> str:
    """The name of the entity that a message is for: a field of its body, or what a function makes of the message.

    >>> key_of(Message("t", "orders", {"order": 7}), "order")
    '7'
    >>> key_of(Message("t", "orders", {}), "order")
    Traceback (most recent call last):
    onefold.errors.BadInput: orders: the message has no 'order' to find its entity by
    """
    found = message.get(key) if isinstance(key, str) else key(message)
    if found is None:
        what = repr(key) if isinstance(key, str) else "key"
        raise BadInput(f"{message.to}: the message has no {what} to find its entity by", token=message.token)
    if not isinstance(found, str | int) or isinstance(found, bool):
        raise BadInput(f"{message.to}: the key is {found!r}, must be text or a whole number", token=message.token)
    return check_name(str(found), "key")


def check_name(name: str, what: str) -> str:
    """The name, if it can be one: `BadInput` if it is empty, too long, or not printable."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise BadInput(f"{what} is {name!r:.300}, must be 1 to {NAME_MAX} printable characters")
    return name


def handled(answer: Any, message: Message) -> Handled:
    """What a handler returned, checked and ready to be stored; `BadInput` says what is wrong with it.

    >>> handled(({"paid": 20}, [Out("shipping", {"order": 7})]), Message("t", "orders", {})).outgoing
    (Outgoing(to='shipping', body={'order': 7}, token=''),)
    """
    if not isinstance(answer, tuple) or len(answer) != 2 or isinstance(answer, Out):
        raise BadInput(f"{message.to}: the handler returned {answer!r:.200}, not (state, outgoing)")
    state, outgoing = answer
    packed = _packed(state)
    if len(packed) > STATE_BYTES_MAX:
        raise BadInput(f"{message.to}: the new state has {len(packed)} bytes, more than {STATE_BYTES_MAX}")
    # Through the text and back: what the handler keeps a hold of cannot change any more, and tuples are lists already.
    return Handled(json.loads(packed), outgoings(outgoing or (), message.to, message.origin))


def outgoings(outs: Iterable[Any], where: str, origin: str = "") -> tuple[Outgoing, ...]:
    """One message per destination, each checked; ``where`` is who sends it."""
    if isinstance(outs, Out):
        raise BadInput(f"{where}: what is sent must be a list of Out, not one Out alone")
    found = [each for out in outs for each in _addressed(out, where, origin)]
    if len(found) > OUTGOING_MAX:
        raise BadInput(f"{where}: {len(found)} messages at once, more than {OUTGOING_MAX}")
    return tuple(found)


def _addressed(out: Any, where: str, origin: str) -> list[Outgoing]:
    if not isinstance(out, Out):
        raise BadInput(f"{where}: what is sent is {out!r:.200}, must be an Out(to, body)")
    packed = _packed(out.body)
    if len(packed) > BODY_BYTES_MAX:
        raise BadInput(f"{where}: a message to {out.to!r} has {len(packed)} bytes, more than {BODY_BYTES_MAX}")
    body = json.loads(packed)
    if out.to == ():
        queue, _, request = origin.partition("/")
        return [Outgoing(check_queue(queue), {"request": request, "answer": body})] if origin else []
    return [Outgoing(check_queue(to), body) for to in ([out.to] if isinstance(out.to, str) else out.to)]


def _packed(value: Any) -> str:
    """The value as text. One that is nested so deep that it could not be stored any more is refused here: there it
    would fail all messages of a batch, and again each time they come."""
    packed = pack(value)
    if packed.count("[") + packed.count("{") > ROOM:  # only then can it be deep
        for _ in range(ROOM):
            value = [value]
        pack(value)
    return packed


@lru_cache(maxsize=1_000)
def check_queue(name: str) -> str:
    """The name of a queue, which becomes part of a subject or a path: letters, digits, ``-``, ``_`` and ``.`` within.

    >>> check_queue("orders.eu-1")
    'orders.eu-1'
    """
    check_name(name, "the name of a queue")
    if not (name[0].isalnum() and name[-1].isalnum() and ".." not in name and name.isascii()):
        raise BadInput(f"the name of a queue is {name!r}, must be like orders.eu-1")
    if not all(part.isalnum() or part in "-_." for part in name):
        raise BadInput(f"the name of a queue is {name!r}, must be of letters, digits, '-', '_' and '.'")
    return name


def check_token(token: str) -> str:
    """A token as it may come from outside."""
    if MARK in check_name(token, "token"):
        raise Misuse(f"token is {token!r}: {MARK!r} belongs to the marks of sources")
    return token


def _answers() -> dict[str, Answer]:
    first, repeat, unsure, reject = Verdict
    by_verdict = {
        first: ["applied"],
        repeat: ["resumed", "duplicate", "tidied"],
        unsure: ["conflict", "handler_failed", "store_failed"],
        reject: ["malformed", "no_handler", "foreign_token"],
    }
    return {
        reason: Answer(verdict, reason, retry=verdict is unsure)
        for verdict, reasons in by_verdict.items()
        for reason in reasons
    }


ANSWERS: Final = _answers()
"""What can be said of a delivery, by reason. The names of `Outcome` are the first five."""

RULES: Final[Mapping[Answer, str]] = {
    ANSWERS["applied"]: "Its token was there: it changed the state, and what it sends is sent.",
    ANSWERS["resumed"]: "An earlier delivery changed the state and was cut off; what was left to do is done.",
    ANSWERS["duplicate"]: "It has no token any more: it was processed before.",
    ANSWERS["tidied"]: "It has no token any more; an outbox entry was left, and is gone now.",
    ANSWERS["conflict"]: "Somebody else wrote the entity in between: nothing was changed, it comes again.",
    ANSWERS[
        "handler_failed"
    ]: "The handler raised, or returned what cannot be kept: it comes again, then it is set aside.",
    ANSWERS["store_failed"]: "A store or the transport did not answer: it comes again.",
    ANSWERS["malformed"]: "It is not a message, or has no key: it is set aside, with its token.",
    ANSWERS["no_handler"]: "Nobody handles its queue here: it is set aside, with its token.",
    ANSWERS["foreign_token"]: "Its token is kept in another store than the one asked: it is set aside, with its token.",
}
"""Each reason in one sentence."""
