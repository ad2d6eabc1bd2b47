"""One attempt at one message: the plans, each read from top to bottom like the published listing.

A message is processed only while its *token* exists (token-based deduplication, Masternak and Pobiega); the token is
also the message's id. A duplicate filter that forgets an id too early lets a duplicate in; a removed token is never
made again, so nothing has to be remembered. An *entity* is what handlers change: one JSON value under a key, and in the
same record an *outbox*: what each message in progress sends. State and outbox are written together or not at all.

An attempt is a generator of *steps*: each is one operation that one store can do atomically, and is sent the result.
The runner can stop between any two steps: a crash is an attempt that is not resumed. A step that meets a concurrent
change is answered False or with a `Settled`; an exception ends the attempt, and the message is redelivered.

Why the steps have this order, in all plans:

- *load, then look for the token*: if the token exists after the load, any worker that finishes this message later also
  writes the entity later, and our write is refused. In the other order, it could finish between the two.
- *every write checks the version*, which never decreases: of two workers on one message, one succeeds.
- *tokens before their messages, and a checkpoint between*: what is sent carries the tokens of the attempt that won. Ids
  are new in each attempt. A token that was used is never made again.
- *send, then remove the token, then clear the outbox*: the next delivery detects a crash between any two.
- *no token: load again, and clear what is left*: an earlier worker may have died after removing the token.
- *a plan can finish what another plan left*: an endpoint may change its plan while messages are in flight.
- *tokens are made only while their parent exists*, and are removed with it unless their attempt won: no garbage.

    plan            reads and writes of entities and tokens
    checkpointed    load, holds, persist, create, persist, remove, persist    the published listing
    parented        load, create, persist, remove, persist                    makes tokens before the one write
    transactional   open, settle, finish                                      needs one database for all
    local           lease, peek, commit                                       the queue is in that database, too

`local` is the published listing with everything in one database. The message's row in the queue *is* its token: it
exists as long as the message may be processed, and is deleted in the transaction that writes the entity and inserts the
rows of the messages sent. So nothing else is needed: no outbox entry, no later sending, no garbage. Safety does not
depend on leases, which need not survive a crash: of two workers that hold one row, the first to delete it wins. Several
messages of one entity are folded over its state, which is written once.

*Sources.* Input from outside has no token yet, but a *mark* that only grows: the offset in a log, the number of a
batch. The highest mark taken is the state of an entity, one per source, and is written together with an outbox entry
for what the mark sends. A mark not above it was taken before: the rest of its work is finished, and nothing new is
sent. A source may skip marks: those between are never taken later (see `Taken.after`). `sourced` is for two stores,
where a late worker leaves tokens whose parent has no outbox entry: garbage, which recovery deletes (read these tokens
first, then look for the entry: an entry that is gone has freed its tokens). `sourced_at_once` is for one database, and
leaves none.

*Handlers*: ``handler(state, message) -> (state, outgoing)``. The state is a JSON value, or None if there is no entity;
returning None deletes it. ``outgoing`` is a list of `Out`, each to one or more queues, with a token per queue. Handlers
return their effects and perform none: they may be called again after a crash, or for a late duplicate, whose result is
discarded.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from onefold.errors import BadInput, Damaged, Misuse, OnefoldError
from onefold.verdict import Answer, Verdict

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
TRACE: Final = ("traceparent", "tracestate")
"""Headers of W3C Trace Context."""
ENVELOPE: Final = 1
"""The version of the message format. A reader ignores unknown fields; a change that it must not ignore raises the
number."""


class Key(NamedTuple):
    """The key of an entity: its endpoint, and its name there."""

    endpoint: str
    name: str

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.name}"


class Message(NamedTuple):
    """One message to one destination; indexing reads fields of its body.

    >>> message = Message("t1", "orders", {"order": 7, "sum": 20})
    >>> message["sum"], message.get("currency", "EUR")
    (20, 'EUR')
    """

    token: str
    """The message's id, and the token without which it is not processed."""
    to: str
    body: Any
    """A JSON value."""
    cause: str = ""
    """The message, or the mark of a source, whose processing sent it."""
    origin: str = ""
    """The request at the start of the chain, as ``queue/id``, which `Out.reply` answers. Empty: none."""
    realm: str = ""
    """The store of its token. That the token is missing in another store means nothing."""
    headers: Mapping[str, str] = NO_HEADERS
    """Metadata, not for the handler's logic. Those in `TRACE` are copied to the messages sent for it."""
    due_ms: int = 0
    """Not before this time; 0: at once."""
    delay_ms: int = 0
    """The delay when it was sent: if more time than this is left, a clock was set back."""
    priority: int = 0
    """Within its queue the highest come first, if the queue supports priorities."""

    def __getitem__(self, name: Any) -> Any:  # not the tuple's own indexing
        return self.body[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the body, or the default, also if the body is not an object."""
        return self.body.get(name, default) if isinstance(self.body, dict) else default


class Outgoing(NamedTuple):
    """A message to be sent: without a token until the checkpoint assigns one."""

    to: str
    body: Any
    """A JSON value, perhaps `Packed`."""
    token: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    due_ms: int = 0
    delay_ms: int = 0
    priority: int = 0

    @property
    def stored(self) -> tuple[Any, ...]:
        """The fields stored in an entry: seldom more than the first three."""
        return (*self[:3], dict(self.headers), *self[4:]) if self.headers or any(self[4:]) else self[:3]


class Entry(NamedTuple):
    """An outbox entry: what one message sends, kept until it is sent."""

    outgoing: tuple[Outgoing, ...] = ()
    attempt: str = ""
    """The attempt that made the tokens; empty: there are none yet."""
    origin: str = ""
    """The `Message.origin` of the message, and of all messages that follow from it."""
    answers: Mapping[str, Any] = MappingProxyType({})
    """Answers of external calls for a message that is not applied yet: see `Context.once`."""

    def checkpointed(self, attempt: str, tokens: tuple[str, ...]) -> Entry:
        """The entry with tokens: once it is written, messages are sent with these."""
        pairs = zip(self.outgoing, tokens, strict=True)
        return self._replace(outgoing=tuple(out._replace(token=token) for out, token in pairs), attempt=attempt)

    def messages(self, cause: str) -> tuple[Message, ...]:
        """The messages to dispatch: none before the checkpoint."""
        return tuple(
            Message(out.token, out.to, out.body, cause, self.origin, "", *out[3:]) for out in self.outgoing if out.token
        )

    def creation(self, parent: str) -> Create:
        tokens = tuple((out.token, out.to) for out in self.outgoing)
        return Create(parent, self.attempt, tokens, guarded=MARK not in parent)


MARK: Final = "#"
"""Marks the name of a source's outbox entry: ``orders.log#41``. Tokens never contain it."""
ONCE: Final = f"{MARK}once"
"""Suffix of an entry that keeps answers for a message; before it stands the message's token."""
CALLS_MAX: Final = 100
"""External calls for one message: each costs a write and one more call of the handler."""


class Entity(NamedTuple):
    """A record; version 0 was never written.

    An entity with state None is deleted, but its record stays as a *tombstone* with its version. Otherwise a recreated
    entity would repeat old versions, and a delayed worker could write a result made from the deleted one.
    """

    key: Key
    version: int = 0
    state: Any = None
    outbox: Mapping[str, Entry] = MappingProxyType({})

    @classmethod
    def unpacked(cls, key: Key, version: int, state: str | None, entries: Mapping[str, str]) -> Entity:
        """An entity from the stored text; `Damaged` if that is not JSON, or not in our format."""
        try:
            value = None if state is None else _parsed(state)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{key}: its state is no JSON: {error}", key=key) from error
        outbox = {name: stored_entry(key, name, text) for name, text in entries.items()} if entries else {}
        return cls(key, version, value, outbox)

    @property
    def packed_state(self) -> str | None:
        return None if self.state is None else pack(self.state)

    @property
    def packed_outbox(self) -> dict[str, str]:
        return {name: pack_entry(entry) for name, entry in self.outbox.items()}

    @property
    def stored(self) -> Entity:
        return Entity(self.key, self.version + 1, self.state, self.outbox)

    def changed(self, state: Any) -> Entity:
        return Entity(self.key, self.version, state, self.outbox)

    def keeping(self, name: str, entry: Entry) -> Entity:
        return Entity(self.key, self.version, self.state, {**self.outbox, name: entry})

    def without(self, name: str) -> Entity:
        outbox = {other: entry for other, entry in self.outbox.items() if other != name}
        return Entity(self.key, self.version, self.state, outbox)


@dataclass(slots=True)
class Packed:
    """A JSON value as text: its creator cannot change it any more, and it is not packed again."""

    text: str

    @property
    def value(self) -> Any:
        """A new object each time."""
        return _SCAN(self.text, 0)[0]


def _jsonable(value: Any) -> Any:
    """Converts types that JSON lacks: dataclasses and pydantic models to objects, bytes to Base64, dates, times,
    decimals, UUIDs and enums as pydantic writes them, as text. Sets are refused: they have no order."""
    if type(value) is Packed:
        return value.value
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, set | frozenset | Iterator):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, by_alias=True)


# Created once, which halves the cost; a circular value is detected by its RecursionError.
_ENCODER = json.JSONEncoder(
    separators=(",", ":"), sort_keys=True, allow_nan=False, check_circular=False, default=_jsonable
)
_DECODER: Any = json.JSONDecoder()
_SCAN = _DECODER.scan_once
_QUOTED: Any = json.encoder.encode_basestring_ascii
# `encode` creates one of these for each value, which costs more than encoding a small value.
_MAKER: Any = getattr(json.encoder, "c_make_encoder", None)
_CHUNKS: Any = _MAKER and _MAKER(
    None, _jsonable, json.encoder.encode_basestring_ascii, None, ":", ",", True, False, False
)


def _parsed(text: str) -> Any:
    """`json.loads` without its two searches for surrounding white space: our own text has none."""
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else json.loads(text)


def pack(value: Any) -> str:
    """A JSON value as canonical text; `BadInput` if JSON cannot hold it.

    >>> pack({"b": 1, "a": [None, "é"]})
    '{"a":[null,"\\\\u00e9"],"b":1}'
    >>> pack({1, 2})
    Traceback (most recent call last):
    onefold.errors.BadInput: not a JSON value: Object of type set is not JSON serializable
    """
    if type(value) is Packed:
        return value.text
    try:
        return "".join(_CHUNKS(value, 0)) if _CHUNKS else _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"not a JSON value: {error}") from error


def pack_entry(entry: Entry) -> str:
    """An outbox entry as JSON text for a store; `unpack_entry` reads it."""
    stored = {"outgoing": [out.stored for out in entry.outgoing], "attempt": entry.attempt, "origin": entry.origin}
    return pack(stored | {"answers": dict(entry.answers)} if entry.answers else stored)


def unpack_entry(text: str) -> Entry:
    """Reads the text of `pack_entry`; `BadInput` for anything else."""
    try:
        data = json.loads(text)
        outgoing = tuple(Outgoing(*out) for out in data["outgoing"])
        entry = Entry(outgoing, data["attempt"], data["origin"], dict(data.get("answers", {})))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BadInput(f"not an outbox entry: {error!r:.200}") from error
    texts = [entry.attempt, entry.origin, *(word for out in entry.outgoing for word in (out.to, out.token))]
    if not all(isinstance(word, str) for word in texts):
        raise BadInput(f"not an outbox entry: names and tokens must be text in {text!r:.200}")
    for out in entry.outgoing:
        _check_extras(out, "an outbox entry")
    return entry


def _check_extras(sent: Message | Outgoing, what: str) -> None:
    headers: Any = sent.headers
    if not isinstance(headers, Mapping) or not all(isinstance(word, str) for pair in headers.items() for word in pair):
        raise BadInput(f"not {what}: headers is {headers!r:.100}, must be an object of texts")
    for name, least, most in (
        ("due_ms", 0, TIME_MS_MAX), ("delay_ms", 0, TIME_MS_MAX), ("priority", -PRIORITY_MAX, PRIORITY_MAX),
    ):  # fmt: skip
        if type(value := getattr(sent, name)) is not int or not least <= value <= most:
            raise BadInput(f"not {what}: {name} is {value!r:.100}, must be a whole number from {least} to {most}")


def stored_entry(key: Key, name: str, text: str) -> Entry:
    """An outbox entry from a store; `Damaged` if it cannot be read."""
    try:
        return unpack_entry(text)
    except BadInput as error:
        raise Damaged(f"{key}: its outbox entry {name!r} cannot be read: {error}", key=key, name=name) from error


def pack_message(message: Message, realm: str = "") -> bytes:
    """A message as bytes, for transports; ``realm``: the store of its token, instead of the message's own.

    >>> pack_message(Message("t1", "orders", 7))
    b'{"body":7,"cause":"","origin":"","realm":"","to":"orders","token":"t1","v":1}'
    """
    token, to, body, cause, origin, its_realm, headers, due_ms, delay_ms, priority = message
    names = token, to, cause, origin, realm or its_realm
    if headers or due_ms or delay_ms or priority:
        times = zip(_TIMES, (due_ms, delay_ms, priority), strict=True)
        fields = dict(zip(_TEXTS, names, strict=True)) | {"body": body, "v": ENVELOPE}
        fields |= {name: value for name, value in times if value}
        return pack(fields | {"headers": dict(headers)} if headers else fields).encode()
    token, to, cause, origin, realm = map(_QUOTED, names)
    text = (  # the same text, in a third of the time
        f'{{"body":{pack(body)},"cause":{cause},"origin":{origin},"realm":{realm},"to":{to},"token":{token},"v":{ENVELOPE}}}'
    )
    return text.encode()


def unpack_message(payload: bytes) -> Message:
    """Reads the bytes of `pack_message`, of this version or an earlier one; ignores unknown fields. `BadInput` for
    anything else.

    >>> unpack_message(b'{"token": "t1", "to": "orders", "body": 7, "colour": "red"}').body
    7
    >>> unpack_message(b'{"token": 1, "to": "orders", "body": 7}')
    Traceback (most recent call last):
    onefold.errors.BadInput: not a message: token is 1, must be text
    """
    try:
        data = _parsed(payload.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a message: {error}") from error
    if not isinstance(data, dict) or "token" not in data or "to" not in data or "body" not in data:
        raise BadInput("not a message: must be an object with token, to and body")
    version = data.get("v", ENVELOPE)
    if type(version) is not int or not 0 < version <= ENVELOPE:
        raise BadInput(f"not a message that can be read here: v is {version!r:.100}, known is up to {ENVELOPE}")
    get = data.get
    names = token, to, cause, origin, realm = (
        data["token"],
        data["to"],
        get("cause", ""),
        get("origin", ""),
        get("realm", ""),
    )
    if not type(token) is type(to) is type(cause) is type(origin) is type(realm) is str:
        wrong, value = next(pair for pair in zip(_TEXTS, names, strict=True) if not isinstance(pair[1], str))
        raise BadInput(f"not a message: {wrong} is {value!r:.100}, must be text")
    if _EXTRAS.isdisjoint(data):
        return Message(token, to, data["body"], cause, origin, realm)
    extras = {name: data[name] for name in _EXTRAS if name in data}
    message = Message(token, to, data["body"], cause, origin, realm, **extras)
    _check_extras(message, "a message")
    return message


_TEXTS: Final = ("token", "to", "cause", "origin", "realm")
_TIMES: Final = ("due_ms", "delay_ms", "priority")
_EXTRAS: Final = frozenset({"headers", *_TIMES})


class Load(NamedTuple):
    """Read an entity. Answered with the `Entity`; version 0 if there is none."""

    key: Key


class Holds(NamedTuple):
    """Whether this token exists. Answered with a bool."""

    token: str


class Open(NamedTuple):
    """`Load` and `Holds` in one atomic read, for a store with both. Answered with the `Entity` and a bool."""

    key: Key
    token: str


class Handled(NamedTuple):
    """The result of a handler: the new state, and what is to be sent."""

    state: Any
    """`Packed`, or None."""
    outgoing: tuple[Outgoing, ...]


class HandlerFailed(OnefoldError):
    """A handler raised, or returned a value that cannot be stored; the original error is the ``__cause__``."""


class Asked(BaseException):
    """A handler requests an external call; it is then called again with the answer."""

    def __init__(self, name: str, call: Callable[[str], Any]) -> None:
        super().__init__(name)
        self.name, self.call = name, call


class Context:
    """Passed to handlers that have a parameter ``ctx``."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self.asked: Asked | None = None

    def once(self, name: str, call: Callable[[str], Any]) -> Any:
        """Make an external call, ``call(key)``; its answer, a JSON value, is stored before the handler goes on.

        ``key`` is the same for every delivery of the message: use it as the provider's *Idempotency-Key*. After a crash
        between the call and the store the call is repeated with this key, and a provider that honours keys acts once.
        The handler is left here, and called again from its beginning with the answer available. ``call`` may return a
        coroutine, which is awaited; do not await this function itself.
        """
        if name not in self._answers:
            self.asked = Asked(check_name(name, "the name of a call"), call)
            raise self.asked
        return json.loads(pack(self._answers[name]))


class Handle(NamedTuple):
    """Call the user's handler for the message with this state. Answered with `Handled`, or with `Asked` for a call that
    is not among the ``answers``; exceptions are raised here."""

    state: Any
    number: int = 0
    """Index of the message within this attempt."""
    answers: Mapping[str, Any] = MappingProxyType({})


class Call(NamedTuple):
    """Make an external call, under a key. Answered with a JSON value; exceptions are raised here."""

    name: str
    key: str
    call: Callable[[str], Any]
    number: int = 0
    """Index of the message within this attempt."""

    def __repr__(self) -> str:
        return f"Call({self.name!r}, {self.key!r})"


class Keep(NamedTuple):
    """Store answers in a leased row. Answered with all answers stored there; None if the lease is lost."""

    receipt: str
    answers: Mapping[str, Any]


class Fresh(NamedTuple):
    """Make new unique ids. Answered with a tuple of ``many`` ids."""

    many: int


class Create(NamedTuple):
    """Make tokens, all or none. Answered with a bool: False if the parent is gone."""

    parent: str
    """The message they are made for: its `Remove` frees the tokens of one attempt and deletes those of the others."""
    attempt: str
    tokens: tuple[tuple[str, str], ...]
    """Each with its destination."""
    guarded: bool = True
    """Only while the parent's token exists: a late worker makes nothing."""


class Persist(NamedTuple):
    """Write an entity if its stored version is unchanged, and increase the version. Answered with a bool."""

    entity: Entity


class Lease(NamedTuple):
    """Lease the rows of these messages. Answered with a receipt for each; None if the row is gone."""

    tokens: tuple[str, ...]


class Peek(NamedTuple):
    """Read an entity without its outbox. Answered with the `Entity`."""

    key: Key


class Settled(StrEnum):
    """Result of the transaction that ends a message: done, or its entity was changed, or its token is gone."""

    DONE = "done"
    STALE = "stale"
    NO_TOKEN = "no_token"  # noqa: S105 # no password


class Settle(NamedTuple):
    """In one transaction: remove the token, write the entity, make the tokens of its entry ``name``.

    Answered with `Settled`: NO_TOKEN before STALE, and nothing is changed unless DONE.
    """

    entity: Entity
    name: str
    """Name of the outbox entry; equals ``token``, if there is one."""
    token: str | None
    """None: no token is needed, as for a source, whose mark is in the entity."""

    @property
    def entry(self) -> Entry | None:
        """The one outbox entry to write; None if nothing is sent. The other entries stay as stored: `Finish` removes
        entries without a new version, so entries loaded with this entity may be gone, and must not come back."""
        return self.entity.outbox.get(self.name)


class Commit(NamedTuple):
    """In one transaction: delete the rows of these receipts, write the entity, insert rows for these messages.

    Answered with `Settled`, as `Settle` is; NO_TOKEN if any row is gone. A worker whose lease expired may still win.
    """

    entity: Entity | None
    """None: the handler keeps no state here."""
    receipts: tuple[str, ...]
    messages: tuple[Message, ...]


class Dispatch(NamedTuple):
    """Send messages by the transport. Answered when all are accepted; duplicates are harmless."""

    messages: tuple[Message, ...]


class Remove(NamedTuple):
    """Remove a token; tokens made for it by this attempt are freed, those of other attempts deleted."""

    token: str
    attempt: str


class Finish(NamedTuple):
    """Remove an outbox entry, whatever the entity's version is."""

    key: Key
    name: str


class Acknowledge(NamedTuple):
    """Acknowledge the message to the transport."""


Step = (
    Load | Holds | Open | Handle | Call | Fresh | Create | Persist | Settle | Dispatch | Remove | Finish | Acknowledge
    | Lease | Peek | Keep | Commit
)  # fmt: skip


class Outcome(StrEnum):
    """How an attempt ends; `RULES` says what each means."""

    APPLIED = "applied"
    RESUMED = "resumed"
    DUPLICATE = "duplicate"
    TIDIED = "tidied"
    CONFLICT = "conflict"


Attempt = Generator[Step, Any, Outcome]
"""One try at one message: yields steps, is sent their results, and returns the outcome."""


def checkpointed(key: Key, message: Message) -> Attempt:
    """For any two stores: the published listing, with the clean-up that it lacks."""
    token = message.token
    entity: Entity = yield Load(key)
    if not (yield Holds(token)):
        return (yield from _tidied(key, token))
    if token in entity.outbox:
        return (yield from _delivered(entity, token, Outcome.RESUMED))
    entity, done = yield from _asked(entity, token)
    if isinstance(done, Outcome):
        return done
    entity = entity.changed(done.state).keeping(token, Entry(done.outgoing, origin=message.origin))
    entity = entity.without(token + ONCE)
    if not (yield Persist(entity)):
        return Outcome.CONFLICT
    return (yield from _delivered(entity.stored, token, Outcome.APPLIED))


def parented(key: Key, message: Message) -> Attempt:
    """For any two stores, in fewer steps: making the tokens also checks that the message's token exists."""
    token = message.token
    entity: Entity = yield Load(key)
    if token in entity.outbox:
        return (yield from _delivered(entity, token, Outcome.RESUMED))
    try:
        entity, done = yield from _asked(entity, token, unsure=True)
    except HandlerFailed:
        if (yield Holds(token)):
            raise
        done = Outcome.DUPLICATE  # for a late duplicate, the handler's error does not matter
    if done is Outcome.CONFLICT:
        return done
    if isinstance(done, Outcome):
        return (yield from _tidied(key, token))
    entry = yield from _with_ids(Entry(done.outgoing, origin=message.origin))
    if not (yield entry.creation(token)):
        return (yield from _tidied(key, token))
    entity = entity.changed(done.state).keeping(token, entry).without(token + ONCE)
    if not (yield Persist(entity)):
        return Outcome.CONFLICT
    return (yield from _delivered(entity.stored, token, Outcome.APPLIED))


def transactional(key: Key, message: Message) -> Attempt:
    """For one database: token, state, outbox and the new tokens change in one transaction."""
    token = message.token
    entity, has_token = yield Open(key, token)
    if not has_token:  # it was applied; if its entry is left, its messages may not have been sent
        if (rest := entity.outbox.get(token)) is not None:
            yield Dispatch(rest.messages(token))
            yield Finish(key, token)
        if token + ONCE in entity.outbox:
            yield Finish(key, token + ONCE)
        yield Acknowledge()
        return Outcome.DUPLICATE if rest is None else Outcome.RESUMED
    if token in entity.outbox:  # begun by another plan, which removes the token last
        return (yield from _delivered(entity, token, Outcome.RESUMED, at_once=True))
    entity, done = yield from _asked(entity, token, at_once=True)
    if isinstance(done, Outcome):
        return done
    entry = Entry(done.outgoing, origin=message.origin)
    outcome = yield from _settled(entity.changed(done.state), token, entry, token)
    if outcome is Outcome.APPLIED:
        if token + ONCE in entity.outbox:
            yield Finish(key, token + ONCE)
        yield Acknowledge()
    return outcome


Ends = tuple["Outcome | HandlerFailed | None", ...]
"""Outcomes of folded messages, in order; None: an earlier message failed, and this one waits for it."""


def folded(
    key: Key | None, messages: tuple[Message, ...], leased: Sequence[str] | None = None, *, in_order: bool = False
) -> Generator[Step, Any, Ends]:
    """For one database with the queue: the handler is folded over the messages of one entity, in one transaction. A
    message whose handler fails changes nothing and does not affect the others; ``in_order``: those behind it wait for
    it. ``key`` None: the handler keeps no state here. ``leased``: receipts of the rows, if they are leased already."""
    receipts: Sequence[str | None] = leased or (yield Lease(tuple([message.token for message in messages])))
    entity: Entity | None = None if key is None else (yield Peek(key))
    state = None if entity is None else entity.state
    ends: list[Outcome | HandlerFailed | None] = [Outcome.DUPLICATE] * len(messages)
    ours: list[str] = []
    outgoing: list[tuple[Message, Outgoing]] = []
    for number, (message, receipt) in enumerate(zip(messages, receipts, strict=True)):
        if receipt is None:
            continue
        if type(state) is Packed:
            state = state.value
        try:
            done: Handled | Asked | None = yield Handle(state, number)
            if isinstance(done, Asked):
                done = yield from _asked_with_row(receipt, message.token, state, number)
        except HandlerFailed as error:
            ends[number] = error
            if in_order:
                ends[number + 1 :] = [None] * (len(messages) - number - 1)
                break
            continue
        if done is None:  # the lease was lost to another worker
            ends[number] = Outcome.CONFLICT
            continue
        state = done.state
        for out in done.outgoing:
            outgoing.append((message, out))
        ours.append(receipt)
        ends[number] = Outcome.APPLIED
    if not ours:
        return tuple(ends)
    tokens: tuple[str, ...] = (yield Fresh(1 + len(outgoing)))[1:] if outgoing else ()
    sent = [
        Message(token, out.to, out.body, message.token, message.origin, "", *out[3:])
        for token, (message, out) in zip(tokens, outgoing, strict=True)
    ]
    settled: Settled = yield Commit(entity and entity.changed(state), tuple(ours), tuple(sent))
    if settled is not Settled.DONE:
        gone = settled is Settled.NO_TOKEN and len(messages) == 1
        other = Outcome.DUPLICATE if gone else Outcome.CONFLICT
        ends = [other if end is Outcome.APPLIED else end for end in ends]
    return tuple(ends)


def local(key: Key, message: Message) -> Attempt:
    """For one database with the queue: the row of the message is its token."""
    (end,) = yield from folded(key, (message,))
    if isinstance(end, HandlerFailed):
        raise end
    assert end is not None, "there is none before it"
    return end


def resumed(key: Key, name: str, *, at_once: bool = False) -> Attempt:
    """Finishes a stranded outbox entry, whichever plan left it; the message itself is not needed.

    ``at_once``: for `transactional`, which clears entries without a new version: writing all entries would bring back
    one cleared since the load.
    """
    entity: Entity = yield Load(key)
    if name not in entity.outbox:
        return Outcome.DUPLICATE
    if not name.endswith(ONCE):
        return (yield from _sent(entity, name, Outcome.RESUMED, at_once))
    if (yield Holds(name.removesuffix(ONCE))):  # its message is not finished, and needs the answers
        return Outcome.CONFLICT
    if at_once:
        yield Finish(key, name)
    elif not (yield Persist(entity.without(name))):
        return Outcome.CONFLICT
    return Outcome.TIDIED


Plan = Callable[[Key, Message], Attempt]
Recovery = Callable[[Key, str], Attempt]

PLANS: Final[Mapping[str, Plan]] = MappingProxyType(
    {"checkpointed": checkpointed, "parented": parented, "transactional": transactional, "local": local}
)
"""By name."""
RECOVERIES: Final[Mapping[str, Recovery]] = MappingProxyType(
    {
        "checkpointed": resumed, "parented": resumed,
        "transactional": partial(resumed, at_once=True), "local": partial(resumed, at_once=True),
    }
)  # fmt: skip
"""By the name of a plan: the attempt that finishes a stranded outbox entry."""


def _asked(
    entity: Entity, token: str, *, at_once: bool = False, unsure: bool = False
) -> Generator[Step, Any, tuple[Entity, Handled | Outcome]]:
    """The handler's result. Its external calls are made one after another, and each answer is stored in the record
    before the handler goes on. CONFLICT: another worker wrote the record. ``unsure``: the token was not checked yet; a
    late duplicate must make no external calls: DUPLICATE."""
    name = token + ONCE
    answers = entity.outbox[name].answers if name in entity.outbox else {}
    while not isinstance(done := (yield Handle(entity.state, 0, answers)), Handled):
        if unsure and not (yield Holds(token)):
            return entity, Outcome.DUPLICATE
        if len(answers) == CALLS_MAX:
            raise HandlerFailed(f"{token}: more than {CALLS_MAX} calls outside for one message", token=token)
        answer = yield Call(done.name, f"{token}:{done.name}", done.call)
        answers = {**answers, done.name: answer}
        entity = entity.keeping(name, Entry(answers=answers))
        kept = (yield Settle(entity, name, None)) is Settled.DONE if at_once else (yield Persist(entity))
        if not kept:
            return entity, Outcome.CONFLICT
        entity = entity.stored
    return entity, done


def _asked_with_row(receipt: str, token: str, state: Any, number: int) -> Generator[Step, Any, Handled | None]:
    """As `_asked`, but the answers are stored in the message's row, and deleted with it. None: the lease is lost."""
    answers: dict[str, Any] | None = yield Keep(receipt, {})
    while answers is not None:
        done: Handled | Asked = yield Handle(state, number, answers)
        if isinstance(done, Handled):
            return done
        if len(answers) == CALLS_MAX:
            raise HandlerFailed(f"{token}: more than {CALLS_MAX} calls outside for one message", token=token)
        answer = yield Call(done.name, f"{token}:{done.name}", done.call, number)
        answers = yield Keep(receipt, {done.name: answer})
    return None


def _delivered(entity: Entity, token: str, outcome: Outcome, *, at_once: bool = False) -> Attempt:
    """Finish the entry of a message, and acknowledge it."""
    end = yield from _sent(entity, token, outcome, at_once)
    if end is outcome:
        yield Acknowledge()
    return end


def _sent(entity: Entity, name: str, outcome: Outcome, at_once: bool = False) -> Attempt:
    """From the entry to the end: make tokens, send, remove the token, clear the entry; another outcome if it could not.
    ``at_once``: in one database, where the entry is cleared without writing the entity."""
    entry = entity.outbox[name]
    if entry.outgoing and not entry.attempt:
        entry = yield from _with_ids(entry)
        if not (yield entry.creation(name)):
            return (yield from _tidied(entity.key, name))
        entity = entity.keeping(name, entry)
        if not (yield Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    if entry.outgoing:
        yield Dispatch(entry.messages(name))
    yield Remove(name, entry.attempt)
    if at_once:
        yield Finish(entity.key, name)
    elif not (yield Persist(entity.without(name))):
        return Outcome.CONFLICT
    return outcome


def _settled(entity: Entity, name: str, entry: Entry, token: str | None) -> Attempt:
    """In one database: settle in one transaction, then send the messages; CONFLICT if another worker was first."""
    entry = yield from _with_ids(entry)
    settled: Settled = yield Settle(entity.keeping(name, entry) if entry.outgoing else entity, name, token)
    if settled is not Settled.DONE:
        return Outcome.CONFLICT
    if entry.outgoing:
        yield Dispatch(entry.messages(name))
        yield Finish(entity.key, name)
    return Outcome.APPLIED


def _with_ids(entry: Entry) -> Generator[Step, Any, Entry]:
    """The entry with new ids for this attempt."""
    if not entry.outgoing:
        return entry
    attempt, *tokens = yield Fresh(1 + len(entry.outgoing))
    return entry.checkpointed(attempt, tuple(tokens))


def _tidied(key: Key, token: str) -> Attempt:
    """There is no token. The entity may have been loaded before its removal: load again, to see if an entry is left.

    If one of the first two plans left the entry, its messages are sent; under `transactional` perhaps not, so they are
    sent again.
    """
    entity: Entity = yield Load(key)
    entry = entity.outbox.get(token)
    if entry is not None or token + ONCE in entity.outbox:
        if entry is not None and entry.outgoing:
            yield Dispatch(entry.messages(token))
        if not (yield Persist(entity.without(token).without(token + ONCE))):
            return Outcome.CONFLICT
    yield Acknowledge()
    return Outcome.DUPLICATE if entry is None else Outcome.TIDIED


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source sends at one mark."""

    key: Key
    """The key of the source: the endpoint that takes it in, and the source's name there."""
    mark: int
    outgoing: tuple[Outgoing, ...]
    origin: str = ""
    known: bool = False
    """Refuse an unknown source: a request must be issued before it is submitted."""
    after: int | None = None
    """Only while this is the source's highest mark. For sources that can be cut in several ways: of two readers that
    cut the same log differently, each would take the other's mark for a gap."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for the state of the source's entity."""

    @property
    def name(self) -> str:
        """Name of the outbox entry, and the parent of its tokens.

        >>> Taken(Key("shop", "orders.log"), 41, ()).name
        'shop/orders.log#41'
        """
        return f"{self.key}{MARK}{self.mark}"


def mark_of(state: Any) -> int:
    """The highest mark taken from a source; -1 if none.

    >>> mark_of(None), mark_of({"mark": 41})
    (-1, 41)
    """
    return -1 if state is None else int(state["mark"])


def sourced(source: Taken, *, at_once: bool = False, rows: bool = False) -> Attempt:
    """For any two stores; ``at_once``: for one database; ``rows``: for one database with the queue. Ends as APPLIED,
    RESUMED, DUPLICATE or CONFLICT."""
    entity: Entity = yield Load(source.key)
    highest = mark_of(entity.state)
    if source.mark <= highest or (source.known and entity.state is None):
        if source.name not in entity.outbox:
            return Outcome.DUPLICATE
        return (yield from _sent(entity, source.name, Outcome.RESUMED, at_once or rows))
    if source.after not in (None, highest):
        return Outcome.CONFLICT
    entity = entity.changed({**(entity.state or {}), **source.also, "mark": source.mark})
    entry = Entry(source.outgoing, origin=source.origin)
    if rows:
        messages = (yield from _with_ids(entry)).messages(source.name)
        done = yield Commit(entity, (), messages)
        return Outcome.APPLIED if done is Settled.DONE else Outcome.CONFLICT
    if at_once:
        return (yield from _settled(entity, source.name, entry, None))
    entity = entity.keeping(source.name, entry)
    if not (yield Persist(entity)):
        return Outcome.CONFLICT
    return (yield from _sent(entity.stored, source.name, Outcome.APPLIED))


sourced_at_once = partial(sourced, at_once=True)
sourced_as_rows = partial(sourced, rows=True)
SOURCED: Final[Mapping[str, Callable[[Taken], Attempt]]] = MappingProxyType(
    {"checkpointed": sourced, "parented": sourced, "transactional": sourced_at_once, "local": sourced_as_rows}
)


BODY_BYTES_MAX: Final = 256 * 1024
"""Of one message, as JSON: the limit of SQS; that of NATS is 1 MiB by default."""
STATE_BYTES_MAX: Final = 1024 * 1024
"""Of one entity, as JSON: each message reads and writes it whole."""
OUTGOING_MAX: Final = 1_000
"""Messages that one message may send."""
ROOM: Final = 100
"""Levels of nesting and calls that a store or a transport may need in addition to those of a value."""
NAME_MAX: Final = 200
"""Characters in the name of a queue, an entity, an endpoint."""
HEADERS_BYTES_MAX: Final = 8_192
"""Of one message, names and values together: a common limit of web servers for a request."""
DELAY_S_MAX: Final = 366 * 86_400
"""A year: what is due later belongs in a calendar of the application."""
TIME_MS_MAX: Final = 2**53
PRIORITY_MAX: Final = 1_000
"""From -1,000 to 1,000."""


class Out(NamedTuple):
    """A message to be sent, to one queue or to several, at once or later.

    >>> Out("shipping", {"order": 7}, delay_s=60).body
    {'order': 7}
    """

    to: str | tuple[str, ...]
    body: Any
    """A JSON value; also a dataclass or pydantic model, dates, decimals, UUIDs and bytes, which become text."""
    headers: Mapping[str, str] = NO_HEADERS
    delay_s: float = 0
    """Not due earlier than this many seconds from now."""
    at_s: float = 0
    """Alternative to ``delay_s``: not due before this Unix time in seconds, as from ``datetime.timestamp()``."""
    priority: int = 0
    """Within its queue the highest come first, if the queue supports priorities (NATS does not)."""

    @classmethod
    def reply(cls, body: Any) -> Out:
        """An answer to the request at the start of the chain (`Message.origin`); not sent if there is none."""
        return cls((), body)


Handler = Callable[..., Any]
KeyOf = str | Callable[[Message], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a message whose handler failed is redelivered."""

    attempts_max: int = 10
    """Deliveries before it is a dead letter."""
    backoff_s: float = 1.0
    """Delay before the second delivery; doubles."""
    backoff_max_s: float = 300

    def __post_init__(self) -> None:
        check_retry(self)


def check_retry(retry: Any) -> None:
    """`Misuse` for invalid values; also for other settings objects with these three fields."""
    if type(retry.attempts_max) is not int or retry.attempts_max < 1:
        raise Misuse(f"attempts_max is {retry.attempts_max!r}, must be a whole number of at least 1")
    for name in ("backoff_s", "backoff_max_s"):
        if not 0 <= (value := getattr(retry, name)) <= SECONDS_MAX:
            raise Misuse(f"{name} is {value}, must be from 0 to {SECONDS_MAX:,}", **{name: value})


SECONDS_MAX: Final = 100 * 366 * 86_400
"""The maximum of any duration setting: a hundred years. Clocks and locks cannot handle more."""


class Handling(NamedTuple):
    """A queue, its handler, and how a message's entity is found."""

    queue: str
    call: Handler
    key: KeyOf | None
    """None: the handler keeps no state here."""
    takes_db: bool = False
    """Pass the handler the connection, in the transaction that settles the message."""
    decode: Callable[[Any], Any] | None = None
    """Converts a body to the handler's type; `BadInput` if it cannot."""
    retry: Retry | None = None
    """None: the consumer's settings."""
    fatal: tuple[type[Exception], ...] = ()
    """Errors that a retry would not fix: a dead letter at once."""
    ordered: bool = False
    """Handle messages of one key in the order in which they were sent."""

    def read(self, message: Message) -> tuple[str | None, Message]:
        """The name of the message's entity, if any, and the message with its body decoded for the handler."""
        typed = self.typed(message)
        if self.key is None:
            return None, typed
        return key_of(message if isinstance(self.key, str) else typed, self.key), typed

    def typed(self, message: Message) -> Message:
        return message if self.decode is None else message._replace(body=self.decode(message.body))


def key_of(message: Message, key: KeyOf) -> str:
    """The name of a message's entity: a field of its body, or the result of a function of the message.

    >>> key_of(Message("t", "orders", {"order": 7}), "order")
    '7'
    >>> key_of(Message("t", "orders", {}), "order")
    Traceback (most recent call last):
    onefold.errors.BadInput: orders: the message has no 'order' to find its entity by
    """
    name = message.get(key) if isinstance(key, str) else key(message)
    if name is None:
        what = repr(key) if isinstance(key, str) else "key"
        raise BadInput(f"{message.to}: the message has no {what} to find its entity by", token=message.token)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise BadInput(f"{message.to}: the key is {name!r}, must be text or a whole number", token=message.token)
    return check_name(str(name), "key")


def check_name(name: str, what: str) -> str:
    """The name; `BadInput` if it is empty, too long, or not printable."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise BadInput(f"{what} is {name!r:.300}, must be 1 to {NAME_MAX} printable characters")
    return name


def handled(answer: Any, message: Message, now_ms: int = 0) -> Handled:
    """A handler's return value, checked and ready to be stored; `BadInput` says what is wrong with it.

    >>> handled(({"paid": 20}, [Out("shipping", {"order": 7})]), Message("t", "orders", {}))
    Handled(state=Packed(text='{"paid":20}'), outgoing=(Outgoing(to='shipping', body=Packed(text='{"order":7}'), ...),))
    """
    if not isinstance(answer, tuple) or len(answer) != 2 or isinstance(answer, Out):
        raise BadInput(f"{message.to}: the handler returned {answer!r:.200}, not (state, outgoing)")
    state, outgoing = answer
    packed = _packed(state)
    if len(packed) > STATE_BYTES_MAX:
        raise BadInput(f"{message.to}: the new state has {len(packed)} bytes, more than {STATE_BYTES_MAX}")
    # As text: the handler can no longer change it through references that it keeps.
    headers = message.headers
    trace = {name: headers[name] for name in TRACE if name in headers} if headers else NO_HEADERS
    sent = outgoings(outgoing, message.to, message.origin, now_ms, trace) if outgoing else ()
    return Handled(None if packed == "null" else Packed(packed), sent)


def check_answer(answer: Any, message: Message) -> Any:
    """The answer of an external call, as a JSON value."""
    packed = _packed(answer)
    if len(packed) > BODY_BYTES_MAX:
        raise BadInput(f"{message.to}: the answer of a call has {len(packed)} bytes, more than {BODY_BYTES_MAX}")
    return json.loads(packed)


def outgoings(
    outs: Iterable[Any], where: str, origin: str = "", now_ms: int = 0, trace: Mapping[str, str] = NO_HEADERS
) -> tuple[Outgoing, ...]:
    """One message per destination, each checked; ``where``: the sender, for errors; ``now_ms``: start of delays."""
    if isinstance(outs, Out):
        raise BadInput(f"{where}: what is sent must be a list of Out, not one Out alone")
    messages: list[Outgoing] = []
    for out in outs:
        if not isinstance(out, Out):
            raise BadInput(f"{where}: what is sent is {out!r:.200}, must be an Out(to, body)")
        to, body, headers, delay_s, at_s, priority = out
        packed = _packed(body)
        if len(packed) > BODY_BYTES_MAX:
            raise BadInput(f"{where}: a message to {to!r} has {len(packed)} bytes, more than {BODY_BYTES_MAX}")
        extras: tuple[Any, ...] = ()
        if headers or trace or delay_s != 0 or at_s != 0 or priority != 0:
            if type(priority) is not int or abs(priority) > PRIORITY_MAX:
                raise BadInput(f"{where}: priority of a message to {to!r} is {priority!r:.100}, over {PRIORITY_MAX}")
            times = (0, 0) if delay_s == 0 == at_s else _times(out, now_ms, where)
            extras = "", _headers(out, trace, where), *times, priority
        if isinstance(to, str):
            messages.append(Outgoing(check_queue(to), Packed(packed), *extras))
        elif to != ():
            messages += [Outgoing(check_queue(name), Packed(packed), *extras) for name in to]
        elif origin:
            queue, _, request = origin.partition("/")
            answer = Packed(f'{{"answer":{packed},"request":{pack(request)}}}')
            messages.append(Outgoing(check_queue(queue), answer, *extras))
    if len(messages) > OUTGOING_MAX:
        raise BadInput(f"{where}: {len(messages)} messages at once, more than {OUTGOING_MAX}")
    return tuple(messages)


def _headers(out: Out, trace: Mapping[str, str], where: str) -> dict[str, str]:
    """The message's headers with lower-case names, and the trace headers unless it has its own."""
    size, headers = 0, {}
    for name, value in out.headers.items():
        if not (isinstance(name, str) and isinstance(value, str) and name and name.isascii() and name.isprintable()):
            raise BadInput(f"{where}: header {name!r:.100} is {value!r:.100}, must be text under a name in ASCII")
        headers[name.lower()] = value
        size += len(name) + len(value.encode("utf-8", "surrogatepass"))
    if size > HEADERS_BYTES_MAX:
        raise BadInput(f"{where}: the headers of a message to {out.to!r} have {size} bytes, over {HEADERS_BYTES_MAX}")
    return headers if TRACE[0] in headers else {**trace, **headers}


def _times(out: Out, now_ms: int, where: str) -> tuple[int, int]:
    """``due_ms`` and ``delay_ms``."""
    for name, value, most in (("delay_s", out.delay_s, DELAY_S_MAX), ("at_s", out.at_s, TIME_MS_MAX // 1000)):
        if not isinstance(value, int | float) or not 0 <= value <= most:
            raise BadInput(f"{where}: {name} of a message to {out.to!r} is {value!r:.100}, must be from 0 to {most:,}")
    if out.delay_s and out.at_s:
        raise BadInput(f"{where}: a message to {out.to!r} has both delay_s and at_s: one of them says when")
    delay_ms = round(out.delay_s * 1000)
    return (now_ms + delay_ms, delay_ms) if delay_ms else (round(out.at_s * 1000), 0)


def _packed(value: Any) -> str:
    """The value as text. A value nested too deep to be stored is refused here: in the store it would fail all messages
    of its batch, at each delivery."""
    packed = pack(value)
    if len(packed) > ROOM and packed.count("[") + packed.count("{") > ROOM:  # otherwise it cannot be that deep
        for _ in range(ROOM):
            value = [value]
        pack(value)
    return packed


@lru_cache(maxsize=1_000)
def check_queue(name: str) -> str:
    """The name of a queue, which becomes part of a subject or path: letters, digits, and inside also ``-_.``.

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
    if MARK in check_name(token, "token"):
        raise Misuse(f"token is {token!r}: {MARK!r} belongs to the marks of sources")
    return token


_REPEAT, _REJECT = partial(Answer, Verdict.REPEAT), partial(Answer, Verdict.REJECT)
_UNSURE = partial(Answer, Verdict.UNSURE, retry=True)
RULES: Final[Mapping[Answer, str]] = {
    Answer(Verdict.FIRST, "applied"): "Its token was there: it changed the state, and what it sends is sent.",
    _REPEAT("resumed"): "An earlier delivery changed the state and was cut off; what was left to do is done.",
    _REPEAT("duplicate"): "It has no token any more: it was processed before.",
    _REPEAT("tidied"): "It has no token any more; an outbox entry was left, and is gone now.",
    _UNSURE("conflict"): "Somebody else wrote the entity in between: nothing was changed, it comes again.",
    _UNSURE("handler_failed"): "The handler raised, or its answer cannot be kept: it comes again, then is set aside.",
    _UNSURE("store_failed"): "A store or the transport did not answer: it comes again.",
    _REJECT("malformed"): "It is not a message, or has no key: it is set aside, with its token.",
    _REJECT("no_handler"): "Nobody handles its queue here: it is set aside, with its token.",
    _REJECT("foreign_token"): "Its token is kept in another store than the one asked: it is set aside, with its token.",
}
"""The verdicts on a delivery, each in one sentence."""
ANSWERS: Final = {answer.reason: answer for answer in RULES}
"""By reason: the names of `Outcome`, and the reasons that the consumer adds."""
