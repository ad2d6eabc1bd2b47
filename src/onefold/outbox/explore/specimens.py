"""The published drafts that do not work, kept as specimens: an explorer that cannot convict them is worth nothing.

`evicted` is where the source document begins: remember what was processed, and look it up. Whatever is remembered is
forgotten one day, for nobody can keep it for ever; here forgetting is a move like any other.

`remade` is its first draft with tokens, the second listing: a message is processed only while its token exists, but the
tokens of what it sends are made anew by each attempt.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from onefold.outbox.explore.topology import Algorithm, Chore, Content, Topology, order, pay, stage
from onefold.outbox.steps import (
    Acknowledge,
    Attempt,
    Birth,
    Create,
    Dispatch,
    Entity,
    Entry,
    Fresh,
    Handle,
    Handled,
    Holds,
    Key,
    Load,
    Message,
    Outcome,
    Persist,
    Removal,
    Remove,
)
from onefold.outbox.stores.sqlite import SqliteLedger


class Seen(NamedTuple):
    """Was this message processed?"""

    message: str

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> bool:
        """Look it up."""
        return connection.execute("select 1 from inbox where message = ?", [self.message]).fetchone() is not None

    def told(self, answer: bool) -> str:
        """For a history."""
        return f"looks whether {self.message} was processed: {'yes' if answer else 'no'}"


class Remember(NamedTuple):
    """This message was processed."""

    message: str

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> None:
        """Write it down."""
        connection.execute("insert or ignore into inbox values (?)", [self.message])

    def told(self, answer: None) -> str:
        """For a history."""
        return f"remembers that {self.message} was processed"


class Forget(NamedTuple):
    """Nobody can remember everything."""

    message: str

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> None:
        """Evict it."""
        connection.execute("delete from inbox where message = ?", [self.message])

    def told(self, answer: None) -> str:
        """For a history."""
        return f"forgets that {self.message} was processed"


def evicted(key: Key, message: Message) -> Generator[Any, Any, Outcome]:
    """The positive check: what is not known as processed is processed. Ids of messages are fixed."""
    name = message.token
    entity: Entity = yield Load(key)
    if (yield Seen(name)):
        yield Acknowledge()
        return Outcome.DUPLICATE
    if name not in entity.outbox:
        done: Handled = yield Handle(entity.state)
        ids = tuple(f"{name}.{place}" for place in range(1, len(done.outgoing) + 1))
        entity = entity.changed(done.state).keeping(name, Entry(done.outgoing).checkpointed(name, ids))
        if not (yield Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    yield Dispatch(entity.outbox[name].messages(name))
    yield Remember(name)
    if not (yield Persist(entity.without(name))):
        return Outcome.CONFLICT
    yield Acknowledge()
    return Outcome.APPLIED


def remade(key: Key, message: Message) -> Attempt:
    """The inverted check without a checkpoint: whoever sends again makes tokens again."""
    name = message.token
    entity: Entity = yield Load(key)
    if not (yield Holds(name)):
        yield Acknowledge()
        return Outcome.DUPLICATE
    if name not in entity.outbox:
        done: Handled = yield Handle(entity.state)
        entity = entity.changed(done.state).keeping(name, Entry(done.outgoing))
        if not (yield Persist(entity)):
            return Outcome.CONFLICT
        entity = entity.stored
    entry = entity.outbox[name]
    if entry.outgoing:
        attempt, *tokens = yield Fresh(1 + len(entry.outgoing))
        entry = entry.checkpointed(attempt, tuple(tokens))
        yield Create(Birth("", "", tuple((out.token, out.to) for out in entry.outgoing), guarded=False))
        yield Dispatch(entry.messages(name))
    yield Remove(Removal(name, ""))
    if not (yield Persist(entity.without(name))):
        return Outcome.CONFLICT
    yield Acknowledge()
    return Outcome.APPLIED


def _evictions() -> Chore:
    def offers(content: Content) -> Sequence[str]:
        return [message for (message,) in content.others["inbox"]]

    def begin(message: str) -> Generator[Any, Any, Outcome]:
        yield Forget(message)
        return Outcome.TIDIED

    return Chore("the store", 1, offers, begin, "needs room, and picks")


class Specimen(NamedTuple):
    """A wrong draft, and a small world that shows it."""

    algorithm: Algorithm
    topology: Topology


_INBOX: Final = "create table inbox (message text primary key) without rowid"

SPECIMENS: Final[Mapping[str, Specimen]] = MappingProxyType(
    {
        "evicted": Specimen(
            Algorithm("evicted", evicted, tokens=False, tables=(_INBOX,), chores=(_evictions(),)),
            Topology(
                "copied",
                "one message, delivered twice",
                (stage("payment", pay, 1),),
                (("payment", {"n": 1}),),
                copies=1,
                crashes=0,
                expiries=0,
            ),
        ),
        "remade": Specimen(
            Algorithm("remade", remade),
            Topology(
                "resent",
                "one message that sends another",
                (stage("order", order, 1), stage("payment", pay, 1)),
                (("order", {"n": 1}),),
            ),
        ),
    }
)
"""By name."""
