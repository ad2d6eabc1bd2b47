"""Runs attempts: gives each the answers it asks for, and many of them side by side.

An attempt is a generator of steps. All that are under way are led in step: whatever they ask for in one round is sorted
by kind, and each kind is one call to its store. So a hundred messages cost as many round trips, and as many syncs, as
one; and no plan knows of it.

What one attempt raises ends that one. What a store raises ends all that asked it: their messages come again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Final, cast

from onefold.engines.outbox.record import pack_message
from onefold.engines.outbox.steps import (
    Acknowledge,
    Attempt,
    Create,
    Dispatch,
    Finish,
    Fresh,
    Handle,
    Handled,
    Holds,
    Load,
    Open,
    Outcome,
    Persist,
    Remove,
    Settle,
    Step,
)
from onefold.errors import Misuse
from onefold.ports import Delivery, EntityStore, Ledger, Parcel, Queue, TokenStore


def fresh_ids(many: int) -> tuple[str, ...]:
    """Ids that nobody has ever seen: 128 random bits each."""
    return tuple(token_hex(16) for _ in range(many))


@dataclass(frozen=True, slots=True)
class World:
    """What stands behind the steps: two stores, or one ledger that is both, and a transport."""

    entities: EntityStore
    tokens: TokenStore
    queue: Queue
    fresh: Callable[[int], tuple[str, ...]] = fresh_ids

    @property
    def ledger(self) -> Ledger:
        """The one store that is both; `Misuse` if they are two."""
        ledger = cast(Ledger, self.entities)
        if ledger is not self.tokens:
            raise Misuse("the plan 'transactional' needs entities and tokens in one database: these are two")
        return ledger

    def perform(self, kind: type, steps: Sequence[Any]) -> Sequence[Any]:
        """The answers to steps of one kind, by one call."""
        return _VERBS[kind](self, steps)

    def dispatch(self, steps: Sequence[Dispatch]) -> list[None]:
        """Give all messages to the transport, each with the realm of its token."""
        realm = self.tokens.realm
        messages = [replace(message, realm=realm) for step in steps for message in step.messages]
        self.queue.send([Parcel(message.to, pack_message(message)) for message in messages])
        return [None] * len(steps)


@dataclass(slots=True)
class Job:
    """An attempt under way, and what it needs besides the stores."""

    attempt: Attempt
    handle: Callable[[Any], Handled] | None = None
    """What calls the handler; None: there is nothing to handle."""
    delivery: Delivery | None = None
    """What is acknowledged; None: nothing."""
    pending: Step | None = None
    ended: Outcome | Exception | None = None

    def go_on(self, answer: Any) -> None:
        """Let it make its next step, or end."""
        try:
            self.pending = self.attempt.send(answer)
        except StopIteration as stop:
            self.pending, self.ended = None, stop.value

    def fail(self, error: Exception) -> None:
        """It goes no further."""
        self.attempt.close()
        self.pending, self.ended = None, error


def run(world: World, jobs: Iterable[Job]) -> list[Outcome | Exception]:
    """Lead all attempts to their ends, in the order of the jobs: what each came to, or what stopped it."""
    jobs = list(jobs)
    for job in jobs:
        job.go_on(None)
    while waiting := [job for job in jobs if job.pending is not None]:
        by_kind: dict[type, list[Job]] = defaultdict(list)
        for job in waiting:
            by_kind[type(job.pending)].append(job)
        for kind, group in by_kind.items():
            _answer(world, kind, group)
    return [cast("Outcome | Exception", job.ended) for job in jobs]


def _answer(world: World, kind: type, group: list[Job]) -> None:
    if kind is Handle:
        for job in group:
            _handle(job)
        return
    try:
        answers = _acknowledge(world, group) if kind is Acknowledge else world.perform(kind, [j.pending for j in group])
    except Exception as error:
        for job in group:
            job.fail(error)
        return
    for job, answer in zip(group, answers, strict=True):
        job.go_on(answer)


def _handle(job: Job) -> None:
    step = cast(Handle, job.pending)
    try:
        if job.handle is None:
            raise Misuse("this attempt has nothing to handle")
        answer = job.handle(step.state)
    except Exception as error:
        job.fail(error)
    else:
        job.go_on(answer)


def _acknowledge(world: World, group: list[Job]) -> list[None]:
    world.queue.acknowledge([job.delivery for job in group if job.delivery is not None])
    return [None] * len(group)


def _remove(world: World, steps: Sequence[Remove]) -> list[None]:
    world.tokens.remove([step.removal for step in steps])
    return [None] * len(steps)


def _finish(world: World, steps: Sequence[Finish]) -> list[None]:
    world.ledger.finish(steps)
    return [None] * len(steps)


_VERBS: Final[dict[type, Callable[[World, Any], Sequence[Any]]]] = {
    Load: lambda world, steps: world.entities.load([step.key for step in steps]),
    Persist: lambda world, steps: world.entities.persist([step.entity for step in steps]),
    Holds: lambda world, steps: world.tokens.holds([step.token for step in steps]),
    Create: lambda world, steps: world.tokens.create([step.birth for step in steps]),
    Remove: _remove,
    Open: lambda world, steps: world.ledger.open(steps),
    Settle: lambda world, steps: world.ledger.settle(steps),
    Finish: _finish,
    Dispatch: World.dispatch,
    Fresh: lambda world, steps: [world.fresh(step.many) for step in steps],
}
