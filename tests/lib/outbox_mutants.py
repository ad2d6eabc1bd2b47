"""The shipped plans with one mistake each: rewriters of their steps. The explorer has to convict every one.

A rewriter is given the real attempt. It passes its steps on, changes one, holds one back or asks another one first;
nothing of the plans is written down a second time.
"""

import sqlite3
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

from onefold.outbox.explore import SHIPPED, Algorithm
from onefold.outbox.explore.system import fresh, name_of
from onefold.outbox.plans import (
    Acknowledge,
    Commit,
    Create,
    Dispatch,
    Entity,
    Finish,
    Fresh,
    Holds,
    Key,
    Load,
    Message,
    Open,
    Persist,
    Remove,
    Settle,
    Settled,
)
from onefold.outbox.stores.sqlite import SqliteLocal

Steps = Generator[Any, Any, Any]
Rewriter = Callable[[Steps, Key, Message], Steps]


def mutant(plan: str, rewriter: Rewriter, **changes: Any) -> Algorithm:
    """A shipped plan whose attempts go through a rewriter."""
    shipped = SHIPPED[plan]

    def rewritten(key: Key, message: Message) -> Steps:
        return rewriter(shipped.plan(key, message), key, message)

    return replace(shipped, name=f"{plan} with {rewriter.__name__}", plan=rewritten, **changes)


def at_version(entity: Entity, version: int) -> Entity:
    return Entity(entity.key, version, entity.state, entity.outbox)


class Forced(NamedTuple):
    """Write an entity whatever its version is."""

    entity: Entity
    writes: bool = True

    def perform(self, ledger: SqliteLocal, connection: sqlite3.Connection) -> Any:
        (now,) = ledger.load([self.entity.key])
        return ledger.persist([self.entity._replace(version=now.version)])[0]

    def describe(self, answer: Any) -> str:
        return f"writes {self.entity.key} over whatever is there (outbox: {', '.join(self.entity.outbox) or 'empty'})"


class ForcedSettle(NamedTuple):
    """Settle whatever the version is, or whether the token is there or not."""

    step: Settle
    version: bool
    token: bool
    writes: bool = True

    def perform(self, ledger: SqliteLocal, connection: sqlite3.Connection) -> Any:
        step = self.step
        if not self.version:
            (now,) = ledger.load([step.entity.key])
            step = step._replace(entity=at_version(step.entity, now.version))
        if not self.token:
            step = step._replace(token=None)
        (answer,) = ledger.settle([step])
        if answer is Settled.DONE and not self.token:
            ledger.remove([Remove(self.step.name, "")])
        return answer

    def describe(self, answer: Any) -> str:
        return f"settles {self.step.name} without a look: {answer}"


class ForcedCommit(NamedTuple):
    """Commit whatever the version is, or whatever became of the lease."""

    step: Commit
    version: bool
    lease: bool
    writes: bool = True

    def perform(self, store: SqliteLocal, connection: sqlite3.Connection) -> Any:
        step = self.step
        if not self.version and step.entity is not None:
            (now,) = store.peek([step.entity.key])
            step = step._replace(entity=at_version(step.entity, now.version))
        if not self.lease:
            there = {str(position) for (position,) in connection.execute("select position from outbox_queue")}
            step = step._replace(receipts=tuple(each for each in step.receipts if each.partition("-")[0] in there))
        (answer,) = store.commit([step])
        return answer

    def describe(self, answer: Any) -> str:
        return f"commits without a look: {answer}"


class Added(NamedTuple):
    """Add rows in a transaction of their own."""

    messages: tuple[Message, ...]

    def perform(self, store: SqliteLocal, connection: sqlite3.Connection) -> Any:
        return store.commit([Commit(None, (), self.messages)])

    def describe(self, answer: Any) -> str:
        return f"adds rows for {', '.join(message.token for message in self.messages)}"


def insert_outside_the_transaction(steps: Steps, key: Key, message: Message) -> Steps:
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Commit) and step.messages:
            answer = yield step._replace(messages=())
            if answer is Settled.DONE:
                yield Added(step.messages)
        else:
            answer = yield step


class Purged(NamedTuple):
    """Write, and leave no tombstone."""

    step: Any
    writes: bool = True

    def perform(self, ledger: SqliteLocal, connection: sqlite3.Connection) -> Any:
        answer: Any = None
        if isinstance(self.step, Persist):
            (answer,) = ledger.persist([self.step.entity])
        elif isinstance(self.step, Settle):
            (answer,) = ledger.settle([self.step])
        elif isinstance(self.step, Commit):
            (answer,) = ledger.commit([self.step])
        else:
            ledger.finish([self.step])
        ledger.purge(1)
        return answer

    def describe(self, answer: Any) -> str:
        return f"does {self.step} and leaves no tombstone: {answer}"


def changing(change: Callable[[Any, str], Any]) -> Rewriter:
    """Every step is replaced by what this makes of it."""

    def changed(steps: Steps, key: Key, message: Message) -> Steps:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield change(step, message.token)

    return changed


def held_back(first: Callable[[Any, str], bool], until: type, answered: Any = None) -> Rewriter:
    """The steps that this picks are answered at once, and done after the next one of the other kind."""

    def swapped(steps: Steps, key: Key, message: Message) -> Steps:
        answer, held = None, None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            if first(step, message.token):
                held, answer = step, answered
                continue
            answer = yield step
            if held is not None and isinstance(step, until):
                yield held
                held = None

    return swapped


def named(name: str, rewriter: Rewriter) -> Rewriter:
    rewriter.__name__ = name
    return rewriter


def applies(step: Any, token: str) -> bool:
    return isinstance(step, Persist) and token in step.entity.outbox and not step.entity.outbox[token].attempt


def checkpoints(step: Any, token: str) -> bool:
    return isinstance(step, Persist) and token in step.entity.outbox and bool(step.entity.outbox[token].attempt)


def clears(step: Any, token: str) -> bool:
    return isinstance(step, Persist) and token not in step.entity.outbox


def forcing(which: Callable[[Any, str], bool]) -> Rewriter:
    return changing(lambda step, token: Forced(step.entity) if which(step, token) else step)


def check_before_load(steps: Steps, key: Key, message: Message) -> Steps:
    """The published order turned round: is there a token, and then what is in the entity."""
    held = yield Holds(message.token)
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Holds):
            answer = held
        elif isinstance(step, Create):
            answer = (yield step._replace(guarded=False)) if held else False
        else:
            answer = yield step


def deterministic_ids(steps: Steps, key: Key, message: Message) -> Steps:
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = fresh(name_of(message.token), 0, step.many) if isinstance(step, Fresh) else (yield step)


def dispatch_first(steps: Steps, key: Key, message: Message) -> Steps:
    """Send before the write that fixes the tokens, and not again."""
    answer: Any = None
    sent = False
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Settle) or checkpoints(step, message.token):
            entry = step.entity.outbox.get(message.token)
            if entry is not None:
                yield Dispatch(entry.messages(message.token))
                sent = True
        if sent and isinstance(step, Dispatch):
            answer = None
        else:
            answer = yield step


def acknowledge_first(steps: Steps, key: Key, message: Message) -> Steps:
    yield Acknowledge()
    return (yield from steps)


def no_reload(steps: Steps, key: Key, message: Message) -> Steps:
    """What was loaded first is believed to the end."""
    answer, loaded = None, None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Load) and loaded is not None:
            answer = loaded
        else:
            answer = yield step
            loaded = answer if isinstance(step, Load) else loaded


def token_never_asked(steps: Steps, key: Key, message: Message) -> Steps:
    """Neither at the beginning nor when it settles."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Open):
            entity, _ = yield step
            answer = entity, True
        else:
            answer = yield ForcedSettle(step, version=True, token=False) if isinstance(step, Settle) else step


def as_it_is(steps: Steps, key: Key, message: Message) -> Steps:
    return (yield from steps)


unguarded_create = named(
    "unguarded_create",
    changing(lambda step, _: step._replace(guarded=False) if isinstance(step, Create) else step),
)
no_tombstone = named(
    "no_tombstone",
    changing(lambda step, _: Purged(step) if isinstance(step, Persist | Settle | Finish | Commit) else step),
)
no_version_to_apply = named("no_version_to_apply", forcing(applies))
no_version_to_checkpoint = named("no_version_to_checkpoint", forcing(checkpoints))
no_version_to_clear = named("no_version_to_clear", forcing(clears))
no_version_to_settle = named(
    "no_version_to_settle",
    changing(lambda step, _: ForcedSettle(step, version=False, token=True) if isinstance(step, Settle) else step),
)
settle_without_token = named(
    "settle_without_token",
    changing(lambda step, _: ForcedSettle(step, version=True, token=False) if isinstance(step, Settle) else step),
)
remove_before_dispatch = named("remove_before_dispatch", held_back(lambda step, _: isinstance(step, Dispatch), Remove))
finish_before_dispatch = named("finish_before_dispatch", held_back(lambda step, _: isinstance(step, Dispatch), Finish))
checkpoint_before_create = named(
    "checkpoint_before_create", held_back(lambda step, _: isinstance(step, Create), Persist, True)
)
persist_before_remove = named("persist_before_remove", held_back(lambda step, _: isinstance(step, Remove), Persist))
settle_without_the_rows_deletion = named(
    "settle_without_the_rows_deletion",
    changing(lambda step, _: step._replace(receipts=()) if isinstance(step, Commit) else step),
)
state_without_version = named(
    "state_without_version",
    changing(lambda step, _: ForcedCommit(step, version=False, lease=True) if isinstance(step, Commit) else step),
)
lease_not_checked = named(
    "lease_not_checked",
    changing(lambda step, _: ForcedCommit(step, version=True, lease=False) if isinstance(step, Commit) else step),
)
