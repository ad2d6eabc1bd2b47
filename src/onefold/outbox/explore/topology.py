"""What is explored: which endpoint handles which queue with how many workers, which messages come, and which faults.

Faults are budgets: with one crash and one expiry, every history with at most one of each is tried, at every position.
Within these limits the result is certain; it says nothing about one more worker, message or fault.

`SHIPPED` are the library's own plans and `TOPOLOGIES` the systems that they are explored in. `SPECIMENS` are the
published drafts that do not work: an explorer that does not convict them is worth nothing. `evicted` is where the
source document begins: remember what was processed, and look it up. Nobody can remember everything for ever; here
forgetting is a move like any other. `remade` is its first draft with tokens, the second listing: a message is processed
only while its token exists, but each attempt makes new tokens for what it sends.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from onefold.errors import Misuse
from onefold.outbox import plans
from onefold.outbox.plans import Attempt, Handler, Handling, Key, Message, Out, Outcome, Plan
from onefold.outbox.stores.sqlite import SqliteLedger


class Wrong(StrEnum):
    APPLIED_TWICE = "applied_twice"
    TWO_TOKENS = "two_tokens"
    """One message was sent under two tokens: it will be processed twice."""
    TWO_PAYLOADS = "two_payloads"
    TOKEN_BACK = "token_back"  # noqa: S105 # no password
    """A token that was removed exists again."""
    LOST = "lost"
    """At rest, a message was not processed or not sent."""
    STATE = "state"
    """At rest, the entities differ from those of every order without faults."""
    TOKEN_LEFT = "token_left"  # noqa: S105 # no password
    """At rest, there is a token without a message."""
    ENTRY_LEFT = "entry_left"
    """At rest, there is an outbox entry."""
    STUCK = "stuck"
    """Not at rest, and no move is possible."""
    CIRCLE = "circle"
    TWO_KEYS = "two_keys"
    """One external call of one message was made under two keys: it is executed twice."""
    HANDLER = "handler"
    """The handler raises, or returns something invalid."""
    ACTS = "acts_on_the_world"
    """The handler writes a file, opens a connection, starts a process: each call does it again."""
    CHANCE = "depends_on_chance"
    """Equal calls of the handler return different results."""
    INVARIANT = "invariant"


class Offence(NamedTuple):
    wrong: Wrong
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    tokens: frozenset[str]
    parents: Mapping[str, str]
    """By token, for tokens that have one."""
    states: Mapping[Key, str]
    """The state of each entity that has one, as JSON."""
    entries: tuple[tuple[Key, str], ...]
    others: Mapping[str, tuple[tuple[Any, ...], ...]]
    """The rows of a specimen's own tables."""

    @property
    def values(self) -> dict[str, Any]:
        """The states by name of entity, with the endpoint before it if two endpoints have an entity of that name."""
        names = [key.name for key in self.states]
        return {
            key.name if names.count(key.name) == 1 else str(key): json.loads(text) for key, text in self.states.items()
        }


class Stage(NamedTuple):
    """An endpoint: its handlers, and how many workers share them. Workers of a stage are interchangeable."""

    endpoint: str
    handlings: tuple[Handling, ...]
    workers: int = 1


class TopologySource(NamedTuple):
    """A source with marks: what each mark sends, in order. A mark is offered again until it is taken."""

    endpoint: str
    name: str
    marks: tuple[tuple[Out, ...], ...]
    workers: int = 2


@dataclass(frozen=True, slots=True)
class Topology:
    """One system to explore, and the budget of each fault."""

    name: str
    title: str
    stages: tuple[Stage, ...]
    messages: tuple[tuple[str, Any], ...] = ()
    """Queue and body of the messages at the beginning; each has a token, as if a desk had made it."""
    source: TopologySource | None = None
    crashes: int = 1
    """A worker dies before any of its steps, or while it sends; its lease ends, and it starts again."""
    expiries: int = 1
    """A lease expires while the worker goes on: its later steps still take effect, also its acknowledgement."""
    copies: int = 0
    """The transport delivers a message once more, acknowledged or not."""
    pumps: int = 0
    """The recovery pump takes up an outbox entry, however young it is."""

    def __post_init__(self) -> None:
        for name in ("crashes", "expiries", "copies", "pumps"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= BUDGET_MAX:
                raise Misuse(f"{name} is {value!r}, must be a whole number from 0 to {BUDGET_MAX}", **{name: value})
        for stage in self.stages:
            if type(stage.workers) is not int or not 1 <= stage.workers <= WORKERS_MAX:
                raise Misuse(f"workers is {stage.workers!r}, must be a whole number from 1 to {WORKERS_MAX}")

    @property
    def extent(self) -> str:
        """The size of the search in words.

        >>> TOPOLOGIES["pumped"].extent
        '2 messages, 2 workers, crashes up to 0, expired leases 0, copies 0, pumps 1'
        """
        messages = len(self.messages) + (len(self.source.marks) if self.source else 0)
        workers = sum(stage.workers for stage in self.stages) + (self.source.workers if self.source else 0)
        faults = f"crashes up to {self.crashes}, expired leases {self.expiries}, copies {self.copies}"
        pumps = f", pumps {self.pumps}" if self.pumps else ""
        return f"{messages} message{'s' * (messages != 1)}, {workers} workers, {faults}{pumps}"

    @property
    def served(self) -> dict[str, tuple[int, Stage, Handling]]:
        """By queue: the number of its stage, the stage, and the handler."""
        stages = enumerate(self.stages)
        return {handling.queue: (number, stage, handling) for number, stage in stages for handling in stage.handlings}


BUDGET_MAX: Final = 9
"""Each fault more multiplies the states by about five, so ten would take too long."""
WORKERS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class Chore:
    """Work beside the workers, such as the pump's, up to ``times`` times."""

    who: str
    times: int
    offers: Callable[[Content], Sequence[tuple[str, ...]]]
    """The work there is in a database: arguments of ``begin``, the last of which names it in a history."""
    begin: Callable[..., Attempt]
    finds: str
    """In a history: ``the pump {finds} m1``."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A plan on trial, with what belongs to it."""

    name: str
    plan: Plan
    recovery: plans.Recovery | None = None
    sourced: Callable[[plans.Taken], Attempt] | None = None
    tokens: bool = True
    """The first messages have tokens. False for a specimen without tokens."""
    tables: tuple[str, ...] = ()
    """Statements that create tables beside the store's own."""
    chores: tuple[Chore, ...] = ()
    tidy: bool = True
    """No garbage is left at rest. False: tokens and entries may be left for the pump and the sweeper."""
    rows: bool = False
    """The row of a message in the store is its token."""
    others: tuple[Plan, ...] = ()
    """Plans that a worker may choose instead for each message: an endpoint that changes its plan while messages are in
    flight."""


SHIPPED: Final[Mapping[str, Algorithm]] = {
    name: Algorithm(name, plan, plans.RECOVERIES[name], plans.SOURCED[name], rows=name == "local")
    for name, plan in plans.PLANS.items()
}


def sending(*queues: str) -> Handler:
    """A handler that keeps the numbers it saw, and sends each to all these queues; nobody handles ``told``."""

    def handler(state: Any, message: Message) -> Any:
        return [*(state or []), message["n"]], [Out(queues, {"n": message["n"]})] if queues else []

    return handler


order, pay, tell, announce = sending("payment"), sending(), sending("told"), sending("payment", "told")


def close(state: Any, message: Message) -> Any:
    """The second message deletes the entity and sends what it was; the others create it or add to it."""
    if message["n"] == 2:
        return None, [Out("told", {"was": state})]
    return [*(state or []), message["n"]], []


def stage(name: str, call: Any, workers: int) -> Stage:
    """An endpoint with one handler; all its messages are for one entity."""
    return Stage(name, (Handling(name, call, lambda message: "one"),), workers)


def _sent(queue: str, many: int) -> tuple[tuple[str, Any], ...]:
    return tuple((queue, {"n": number}) for number in range(1, many + 1))


_MARKS: Final = tuple((Out("payment", {"n": number}),) for number in (1, 2))
_WORLDS: Final = [
    Topology(
        "one-to-two", "one upstream worker, two consumers", (stage("order", order, 1), stage("payment", tell, 2)),
        _sent("order", 1), crashes=1, expiries=2,
    ),
    Topology(
        "two-to-one", "two upstream workers, one consumer", (stage("order", order, 2), stage("payment", pay, 1)),
        _sent("order", 1), crashes=2, expiries=1,
    ),
    Topology(
        "two-to-two", "two upstream workers, two consumers", (stage("order", order, 2), stage("payment", pay, 2)),
        _sent("order", 1), crashes=0, expiries=1,
    ),
    Topology(
        "one-entity", "two messages on one entity", (stage("payment", tell, 2),), _sent("payment", 2),
        crashes=0, expiries=1,
    ),
    Topology(
        "pumped", "two messages on one entity, and a pump", (stage("payment", tell, 2),), _sent("payment", 2),
        crashes=0, expiries=0, pumps=1,
    ),
    Topology(
        "recreated", "an entity that is deleted and made again", (stage("payment", close, 2),),
        _sent("payment", 3), crashes=0, expiries=1,
    ),
    Topology(
        "two-queues", "one message to two queues, copies, and a pump",
        (stage("order", announce, 1), stage("payment", pay, 1)), _sent("order", 1),
        crashes=1, expiries=0, copies=1, pumps=1,
    ),
    Topology(
        "source", "a source with two marks, and a pump", (), (), TopologySource("shop", "orders.log", _MARKS, 2),
        crashes=0, expiries=1, pumps=1,
    ),
]  # fmt: skip
TOPOLOGIES: Final[Mapping[str, Topology]] = {each.name: each for each in _WORLDS}


class Inbox(NamedTuple):
    """A step that reads or changes the inbox of `evicted`."""

    verb: str
    message: str

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> bool:
        return connection.execute(_INBOX_STEPS[self.verb], [self.message]).fetchone() is not None

    def describe(self, answer: bool) -> str:
        text = f"{self.verb} {self.message} was processed"
        return text if self.verb != "looks whether" else f"{text}: {'yes' if answer else 'no'}"


def evicted(key: Key, message: Message) -> Generator[Any, Any, Outcome]:
    """The positive check: a message that is not in the inbox is processed. Ids of messages are fixed."""
    name = message.token
    entity: plans.Entity = yield plans.Load(key)
    if (yield Inbox("looks whether", name)):
        yield plans.Acknowledge()
        return Outcome.DUPLICATE
    if name not in entity.outbox:
        done: plans.Handled = yield plans.Handle(entity.state)
        ids = tuple(f"{name}.{position}" for position in range(1, len(done.outgoing) + 1))
        entity = entity.changed(done.state).keeping(name, plans.Entry(done.outgoing).checkpointed(name, ids))
        if not (yield plans.Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    yield plans.Dispatch(entity.outbox[name].messages(name))
    yield Inbox("remembers that", name)
    if not (yield plans.Persist(entity.without(name))):
        return Outcome.CONFLICT
    yield plans.Acknowledge()
    return Outcome.APPLIED


def remade(key: Key, message: Message) -> Attempt:
    """The inverted check without a checkpoint: a second attempt to send makes new tokens."""
    name = message.token
    entity: plans.Entity = yield plans.Load(key)
    if not (yield plans.Holds(name)):
        yield plans.Acknowledge()
        return Outcome.DUPLICATE
    if name not in entity.outbox:
        done: plans.Handled = yield plans.Handle(entity.state)
        entity = entity.changed(done.state).keeping(name, plans.Entry(done.outgoing))
        if not (yield plans.Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    entry = entity.outbox[name]
    if entry.outgoing:
        attempt, *tokens = yield plans.Fresh(1 + len(entry.outgoing))
        entry = entry.checkpointed(attempt, tuple(tokens))
        yield plans.Create("", "", tuple((out.token, out.to) for out in entry.outgoing), guarded=False)
        yield plans.Dispatch(entry.messages(name))
    yield plans.Remove(name, "")
    if not (yield plans.Persist(entity.without(name))):
        return Outcome.CONFLICT
    yield plans.Acknowledge()
    return Outcome.APPLIED


def _forget(message: str) -> Generator[Any, Any, Outcome]:
    yield Inbox("forgets that", message)
    return Outcome.TIDIED


_EVICTIONS: Final = Chore(
    "the store", 1, lambda content: list(content.others["inbox"]), _forget, "needs room, and picks"
)


class Specimen(NamedTuple):
    """A wrong draft, and a small system that shows its error."""

    algorithm: Algorithm
    topology: Topology


_INBOX: Final = "create table inbox (message text primary key) without rowid"
_INBOX_STEPS: Final = {
    "looks whether": "select 1 from inbox where message = ?",
    "remembers that": "insert or ignore into inbox values (?)",
    "forgets that": "delete from inbox where message = ?",
}

SPECIMENS: Final[Mapping[str, Specimen]] = {
    "evicted": Specimen(
        Algorithm("evicted", evicted, tokens=False, tables=(_INBOX,), chores=(_EVICTIONS,)),
        Topology(
            "copied", "one message, delivered twice", (stage("payment", pay, 1),), _sent("payment", 1),
            crashes=0, expiries=0, copies=1,
        ),
    ),
    "remade": Specimen(
        Algorithm("remade", remade),
        Topology(
            "resent", "one message that sends another", (stage("order", order, 1), stage("payment", pay, 1)),
            _sent("order", 1),
        ),
    ),
}  # fmt: skip
