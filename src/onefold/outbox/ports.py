"""The doors to entities, tokens and queues (outbox)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from onefold.outbox.steps import Birth, Entity, Entry, Finish, Key, Open, OpenedAttempt, Removal, Settle, Settled

FOREVER_MS: Final = 2**62
"""A time that no clock reaches."""


class Stranded(NamedTuple):
    """An outbox entry that waits for somebody to finish it."""

    key: Key
    name: str
    """The token of the message, or the name of the mark, that it belongs to."""
    at_ms: int
    """When it was first written."""
    entry: Entry


class EntityStore(Protocol):
    """Entities with their outboxes, each written whole or not at all (outbox).

    Shared by threads, processes or machines. Every verb takes many at once, so that a batch is one round trip; each is
    judged alone. Whatever raises `StoreFailed` may have been done or not: begin the attempt anew.
    """

    def load(self, keys: Sequence[Key]) -> list[Entity]:
        """The entities, in this order; version 0 for those that never were."""
        ...

    def persist(self, entities: Sequence[Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others.

        Durable when it returns. In this order: of two writes of one entity in a batch the second is stale. An entity
        without state and without outbox stays as a tombstone.
        """
        ...

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before this time, oldest first; of one endpoint or of all.

        Those written after ``after_ms`` come too: what is dated later than now has a wrong date, and may be old.
        """
        ...

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time, and say how many there were.

        No attempt may be under way that began before that: it could write what it made of the deleted entity.
        """
        ...

    def close(self) -> None:
        """Let go of the store; every other call is `Misuse` from then on. May be called twice."""
        ...


class Token(NamedTuple):
    """A token that exists."""

    token: str
    to: str
    parent: str
    """For which message it was made; empty once that is done, and for those that had none."""
    attempt: str
    at_ms: int


class Live(NamedTuple):
    """How many tokens there are."""

    tokens: int
    oldest_ms: int | None


class TokenStore(Protocol):
    """The tokens of messages that are in flight: there are as many as those, and no more (outbox).

    All endpoints that send each other messages share one. Verbs take many at once; each is atomic, a batch need not be.
    """

    @property
    def realm(self) -> str:
        """The name of this store, made when it was: messages carry it."""
        ...

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        ...

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist.

        Durable when it returns. A token that exists already is left as it is.
        """
        ...

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others.

        What is free has no parent any more. A token that is not there does no harm, its children are still seen to.
        """
        ...

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        ...

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""
        ...

    def live(self) -> Live:
        """How many there are, and when the oldest was made."""
        ...

    def warnings(self) -> list[str]:
        """Settings by which it can lose what it has confirmed, one sentence each; to be said at the start."""
        ...

    def close(self) -> None:
        """Let go of the store; every other call is `Misuse` from then on. May be called twice."""
        ...


class Ledger(EntityStore, TokenStore, Protocol):
    """Entities and tokens in one database, which can change both in one transaction (outbox)."""

    def open(self, steps: Sequence[Open]) -> list[OpenedAttempt]:
        """Entities, each with whether its token exists at the same moment."""
        ...

    def settle(self, steps: Sequence[Settle]) -> list[Settled]:
        """Do each or change nothing for it, in this order, all in one transaction that is durable when it returns.

        The tokens of the new entry have no parent: there is no attempt that could lose.
        """
        ...

    def finish(self, steps: Sequence[Finish]) -> None:
        """Remove these outbox entries; the versions stay. One that is not there does no harm."""
        ...


class Parcel(NamedTuple):
    """What a queue is given."""

    queue: str
    payload: bytes


class Delivery(NamedTuple):
    """What a queue gives out, on loan."""

    queue: str
    payload: bytes
    receipt: str
    """Of this delivery; the next one of the same parcel has another."""
    times: int
    """How often it was given out, this time included."""


class Buried(NamedTuple):
    """A dead letter."""

    queue: str
    payload: bytes
    receipt: str
    reason: str
    at_ms: int


class Strayed(NamedTuple):
    """Parcels of a queue that wait for a time that only a wrong clock can have set."""

    queue: str
    parcels: int
    ahead_ms: int
    """How far ahead of now the last of them is due."""


class Queue(Protocol):
    """A transport that delivers at least once (outbox).

    A parcel is given out under a lease. If it is not acknowledged until that runs out it is given out again, to
    anybody, while the first may still work on it. Copies, late acknowledgements and any order are normal.

    A clock may step: a lease or delay that began later than it is now (by more than `STEP_MS` of `stores.queues`) is
    over, so no parcel waits longer than the longest lease or delay that was asked for, by whatever clock.
    """

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Take them all; durable when it returns. After `StoreFailed` some may have been taken."""
        ...

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[Delivery]:
        """At most so many parcels of these queues; waits so long for the first one, not for more.

        Within a queue the oldest come first, roughly: one that comes again may come later than its turn.
        """
        ...

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """They need not come again. A lease that ran out: no harm, but the parcel may."""
        ...

    def extend(self, deliveries: Sequence[Delivery], lease_ms: int) -> None:
        """Work on them goes on: the lease runs from now. One that ran out stays so."""
        ...

    def release(self, deliveries: Sequence[Delivery], delay_ms: int = 0) -> None:
        """Give them out again, after so long."""
        ...

    def bury(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Set them aside as dead letters, which nobody is given, until they are dug up or removed."""
        ...

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[Buried]:
        """Dead letters, oldest first."""
        ...

    def dig_up(self, letters: Sequence[Buried], *, deliver: bool) -> None:
        """Put dead letters back into their queue, as if new, or remove them for good."""
        ...

    def waiting(self) -> dict[str, int]:
        """How many parcels each queue holds, on loan or not; dead letters are not counted."""
        ...

    def strayed(self, *, mend: bool = False) -> list[Strayed]:
        """Parcels whose lease or delay began later than it is now, by queue; ``mend``: they are due from now on."""
        ...

    def close(self) -> None:
        """Let go of the transport; every other call is `Misuse` from then on. May be called twice."""
        ...
