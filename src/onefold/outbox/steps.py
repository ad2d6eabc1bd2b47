"""Everything an attempt may ask of the world, one small class each, with what it is answered.

An attempt is a generator of these steps. It decides nothing else and touches nothing else, so whoever runs it can stop
it between any two of them: a crash is simply not going on. A step is atomic, for one store can make it so; two are not.

A step that finds the world changed is answered, not raised: False, or a word. What is raised ends the attempt, and the
message comes again.

What the outbox algorithm keeps and sends: an entity with its outbox, a message with its token.

A message is processed only while its *token* exists; the token is also its name. An *entity* is what handlers change,
one JSON value under a key, and inside the same record it has an *outbox*: per message that is being processed, what it
sends. The two are written together or not at all. That is what makes the algorithm work.

An entity has a *version*, which grows with each write and never falls back: who writes says which version it read. An
entity whose state is None is not there; but once it was, its record stays, as a *tombstone*, with its version. Without
it a deleted and recreated entity would have an old version again, and a worker that was held up meanwhile could write
what it made of the old one.

Values are JSON, packed to text the same way everywhere. They are packed when they come in, so what cannot be stored is
refused while the one who made it can still be told.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from onefold.errors import BadInput


class Key(NamedTuple):
    """Which entity: the endpoint whose it is, and its name there."""

    endpoint: str
    name: str

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.name}"


class Message(NamedTuple):
    """One message to one destination; what is in brackets is looked for in its body.

    >>> message = Message("t1", "orders", {"order": 7, "sum": 20})
    >>> message["sum"], message.get("currency", "EUR")
    (20, 'EUR')
    """

    token: str
    """Its name, and the name of the token without which it is not processed."""
    to: str
    """The queue it goes to."""
    body: Any
    """A JSON value."""
    cause: str = ""
    """The message, or the mark of a source, that it was sent for."""
    origin: str = ""
    """The request that it all began with, as ``queue/id``: whom `Out.reply` answers. Empty: nobody asked."""
    realm: str = ""
    """Which token store keeps its token. Another one must not take its absence for a sign."""

    def __getitem__(self, name: Any) -> Any:  # that it is a tuple too is nobody's business
        return self.body[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the body, if it has any."""
        return self.body.get(name, default) if isinstance(self.body, dict) else default


class Outgoing(NamedTuple):
    """A message that is to be sent: without a token until the checkpoint that fixes one."""

    to: str
    body: Any
    token: str = ""


class Entry(NamedTuple):
    """What one message sends, kept until it is sent."""

    outgoing: tuple[Outgoing, ...] = ()
    attempt: str = ""
    """Whose tokens these are; empty: they have none yet."""
    origin: str = ""
    """That of the message, and of all that follow from it."""

    def checkpointed(self, attempt: str, tokens: tuple[str, ...]) -> Entry:
        """The same, with tokens: from the write of this on, they are what is sent."""
        named = zip(self.outgoing, tokens, strict=True)
        return Entry(tuple(Outgoing(out.to, out.body, token) for out, token in named), attempt, self.origin)

    def messages(self, cause: str) -> tuple[Message, ...]:
        """What is to be dispatched: nothing before the checkpoint."""
        return tuple(Message(out.token, out.to, out.body, cause, self.origin) for out in self.outgoing if out.token)


class Entity(NamedTuple):
    """A record: version 0 is one that was never written."""

    key: Key
    version: int = 0
    state: Any = None
    outbox: Mapping[str, Entry] = MappingProxyType({})

    @property
    def stored(self) -> Entity:
        """What the store has after it took this one."""
        return Entity(self.key, self.version + 1, self.state, self.outbox)

    def changed(self, state: Any) -> Entity:
        """With this state."""
        return Entity(self.key, self.version, state, self.outbox)

    def keeping(self, name: str, entry: Entry) -> Entity:
        """With this entry in its outbox."""
        return Entity(self.key, self.version, self.state, {**self.outbox, name: entry})

    def without(self, name: str) -> Entity:
        """With no such entry."""
        left = {other: entry for other, entry in self.outbox.items() if other != name}
        return Entity(self.key, self.version, self.state, left)


# Made once, which is half of the cost; what contains itself is found by the recursion that it causes.
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False, check_circular=False)


def pack(value: Any) -> str:
    """A JSON value as text, one text per value: `BadInput` for what JSON cannot hold.

    >>> pack({"b": 1, "a": [None, "é"]})
    '{"a":[null,"\\\\u00e9"],"b":1}'
    >>> pack({1, 2})
    Traceback (most recent call last):
    onefold.errors.BadInput: not a JSON value: Object of type set is not JSON serializable
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"not a JSON value: {error}") from error


def pack_entry(entry: Entry) -> str:
    """An outbox entry as text, for stores."""
    outgoing = [[out.to, out.body, out.token] for out in entry.outgoing]
    return pack({"outgoing": outgoing, "attempt": entry.attempt, "origin": entry.origin})


def unpack_entry(text: str) -> Entry:
    """What `pack_entry` made; `BadInput` for anything else."""
    try:
        data = json.loads(text)
        entry = Entry(tuple(Outgoing(to, body, token) for to, body, token in data["outgoing"]), **_rest(data))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BadInput(f"not an outbox entry: {error!r:.200}") from error
    texts = [entry.attempt, entry.origin, *(word for out in entry.outgoing for word in (out.to, out.token))]
    if not all(isinstance(word, str) for word in texts):
        raise BadInput(f"not an outbox entry: names and tokens must be text in {text!r:.200}")
    return entry


def _rest(data: dict[str, Any]) -> dict[str, Any]:
    return {"attempt": data["attempt"], "origin": data["origin"]}


def pack_message(message: Message, realm: str = "") -> bytes:
    """A message as bytes, for transports; ``realm`` is where its token is, if the message does not say so."""
    fields = {"token": message.token, "to": message.to, "body": message.body}
    fields |= {"realm": realm or message.realm, "cause": message.cause, "origin": message.origin}
    return pack(fields).encode()


def unpack_message(payload: bytes) -> Message:
    """What `pack_message` made; `BadInput` for anything else.

    >>> unpack_message(b'{"token": "t1", "to": "orders", "body": 7}')
    Message(token='t1', to='orders', body=7, cause='', origin='', realm='')
    >>> unpack_message(b'{"token": 1, "to": "orders", "body": 7}')
    Traceback (most recent call last):
    onefold.errors.BadInput: not a message: token is 1, must be text
    """
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a message: {error}") from error
    if not isinstance(data, dict) or not {"token", "to", "body"} <= data.keys() <= _FIELDS:
        raise BadInput(f"not a message: must be an object with token, to, body and at most {sorted(_FIELDS)}")
    for name in _FIELDS - {"body"}:
        if not isinstance(data.get(name, ""), str):
            raise BadInput(f"not a message: {name} is {data[name]!r:.100}, must be text")
    return Message(**data)


_FIELDS = frozenset({"token", "to", "body", "cause", "origin", "realm"})


class Load(NamedTuple):
    """Read an entity. Answered with the `Entity`; version 0 if there is none."""

    key: Key


class Holds(NamedTuple):
    """Does this token exist? Answered with a bool."""

    token: str


class OpenedAttempt(NamedTuple):
    """An entity, and whether the token existed at that moment."""

    entity: Entity
    held: bool


class Open(NamedTuple):
    """`Load` and `Holds` at one moment, of a store that has both. Answered with `OpenedAttempt`."""

    key: Key
    token: str


class Handled(NamedTuple):
    """What a handler made of a message: the new state, and what is to be sent."""

    state: Any
    outgoing: tuple[Outgoing, ...]


class Handle(NamedTuple):
    """Call the user's handler for the message with this state. Answered with `Handled`."""

    state: Any


class Fresh(NamedTuple):
    """Make ids that nobody has ever seen. Answered with a tuple of so many."""

    many: int


class Birth(NamedTuple):
    """Tokens that are to be made."""

    parent: str
    """For which message; that message's removal frees the tokens of one attempt and sweeps those of the others."""
    attempt: str
    tokens: tuple[tuple[str, str], ...]
    """Each with its destination."""
    guarded: bool = True
    """Only while the parent's token exists: who comes late makes nothing."""


class Create(NamedTuple):
    """Make tokens, all or none. Answered with a bool: False if the parent is gone."""

    birth: Birth


class Persist(NamedTuple):
    """Write an entity if its version is still the one it has here; it is one higher then. Answered with a bool."""

    entity: Entity


class Settled(StrEnum):
    """What became of a `Settle`."""

    DONE = "done"
    STALE = "stale"
    NO_TOKEN = "no_token"  # noqa: S105 # no password


class Settle(NamedTuple):
    """In one transaction: remove the token, write the entity, make the tokens of its entry of this name.

    Answered with `Settled`: NO_TOKEN before STALE, and nothing is changed unless DONE.
    """

    entity: Entity
    name: str
    """Of the outbox entry; that of the token, if there is one."""
    token: str | None
    """None: it comes from a source whose mark is in the entity, and needs none."""


class Dispatch(NamedTuple):
    """Give messages to the transport. Answered when all are taken; a copy too many does no harm."""

    messages: tuple[Message, ...]


class Removal(NamedTuple):
    """A token that has done its work, and the attempt whose tokens stay."""

    token: str
    attempt: str


class Remove(NamedTuple):
    """Remove a token; those made for it by this attempt are free from now on, those of other attempts go."""

    removal: Removal


class Finish(NamedTuple):
    """Remove an outbox entry, whatever the entity's version is."""

    key: Key
    name: str


class Acknowledge(NamedTuple):
    """Tell the transport that the message need not come again."""


Step = (
    Load | Holds | Open | Handle | Fresh | Create | Persist | Settle | Dispatch | Remove | Finish | Acknowledge
)  # fmt: skip


class Outcome(StrEnum):
    """How an attempt ended."""

    APPLIED = "applied"
    """It changed the state, and what it sends is sent."""
    RESUMED = "resumed"
    """The state was changed before; what was left to do is done."""
    DUPLICATE = "duplicate"
    """There is no token: it was processed long ago."""
    TIDIED = "tidied"
    """There is no token, but an outbox entry was left; it is gone now."""
    CONFLICT = "conflict"
    """Somebody else wrote in between: nothing is lost, try again."""


Attempt = Generator[Step, Any, Outcome]
