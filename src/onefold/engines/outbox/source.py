"""Where messages come from first: sources that have no token, but a mark that only grows.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onefold.engines.outbox.attempt import MARK, named, sent
from onefold.engines.outbox.record import Entity, Entry, Key, Outgoing
from onefold.engines.outbox.steps import Attempt, Dispatch, Finish, Load, Outcome, Persist, Settle, Settled

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
