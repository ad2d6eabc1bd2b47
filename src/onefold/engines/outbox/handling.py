"""What a handler is given and may give back: ``handler(state, message) -> (state, outgoing)``.

The state is a JSON value, or None where there is no entity; a new state of None deletes it. What is to be sent is a
list of `Out`, each to one or more queues; a message to three queues is three messages with a token each, for each of
the three is processed at its own time. A handler returns what shall happen and does nothing itself: it may be called
again after a crash, and for a copy that comes too late; what it returned then counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from onefold.engines.outbox.attempt import MARK
from onefold.engines.outbox.record import Message, Outgoing, pack
from onefold.engines.outbox.steps import Handled
from onefold.errors import BadInput, Misuse
from onefold.verdict import Answer, Verdict

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
    return {reason: Answer(verdict, reason) for verdict, reasons in by_verdict.items() for reason in reasons}


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
