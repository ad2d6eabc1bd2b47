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
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, Final

from onefold.engines.outbox.record import Entity, Entry, Key, Message
from onefold.engines.outbox.steps import (
    Acknowledge,
    Attempt,
    Birth,
    Create,
    Dispatch,
    Finish,
    Fresh,
    Handle,
    Handled,
    Holds,
    Load,
    Open,
    Opened,
    Outcome,
    Persist,
    Removal,
    Remove,
    Settle,
    Settled,
    Step,
)


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
    opened: Opened = yield Open(key, token)
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
