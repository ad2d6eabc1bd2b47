"""Everything an attempt may ask of the world, one small class each, with what it is answered.

An attempt is a generator of these steps. It decides nothing else and touches nothing else, so whoever runs it can stop
it between any two of them: a crash is simply not going on. A step is atomic, for one store can make it so; two are not.

A step that finds the world changed is answered, not raised: False, or a word. What is raised ends the attempt, and the
message comes again.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import Any, NamedTuple

from onefold.engines.outbox.record import Entity, Key, Message, Outgoing


class Load(NamedTuple):
    """Read an entity. Answered with the `Entity`; version 0 if there is none."""

    key: Key


class Holds(NamedTuple):
    """Does this token exist? Answered with a bool."""

    token: str


class Opened(NamedTuple):
    """An entity, and whether the token existed at that moment."""

    entity: Entity
    held: bool


class Open(NamedTuple):
    """`Load` and `Holds` at one moment, of a store that has both. Answered with `Opened`."""

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
