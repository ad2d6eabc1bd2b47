"""Runs attempts: gives each the answers it asks for, and many of them side by side.

An attempt is a generator of steps. All that are under way are led in step: whatever they ask for in one round is sorted
by kind, and each kind is one call to its store. So a hundred messages cost as many round trips, and as many syncs, as
one; and no plan knows of it.

What one attempt raises ends that one. What a store raises ends all that asked it: their messages come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from time import time_ns
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

CHANCE_BYTES: Final = 10


def fresh_ids(many: int) -> tuple[str, ...]:
    """Ids that nobody has ever seen: the time in milliseconds, then 80 random bits each.

    The time comes first, as in a UUIDv7, so that what is made together lies together in an index: ten times fewer pages
    of it are written.
    """
    width = 2 * CHANCE_BYTES
    time, chance = f"{time_ns() // 1_000_000:012x}", token_hex(CHANCE_BYTES * many)  # one system call for all
    return tuple(time + chance[at : at + width] for at in range(0, len(chance), width))


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
        messages = [message for step in steps for message in step.messages]
        self.queue.send([Parcel(message.to, pack_message(message, realm)) for message in messages])
        return [None] * len(steps)


@dataclass(slots=True)
class Job:
    """An attempt under way, and what it needs besides the stores."""

    attempt: Attempt
    handle: Callable[[Any], Handled | Future[Handled]] | None = None
    """What calls the handler, or begins it elsewhere; None: there is nothing to handle."""
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
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """It goes no further."""
        self.attempt.close()
        self.pending, self.ended = None, error


def run(world: World, jobs: Iterable[Job]) -> list[Outcome | Exception]:
    """Lead all attempts to their ends, in the order of the jobs: what each came to, or what stopped it."""
    jobs = list(jobs)
    for job in jobs:
        job.go_on(None)
    while by_kind := _by_kind(jobs):
        for kind, group in by_kind.items():
            _answer(world, kind, group)
    return [cast("Outcome | Exception", job.ended) for job in jobs]


def _by_kind(jobs: list[Job]) -> dict[type, list[Job]]:
    found: dict[type, list[Job]] = {}
    for job in jobs:
        if (step := job.pending) is not None:
            kind = type(step)
            if kind in found:
                found[kind].append(job)
            else:
                found[kind] = [job]
    return found


def _answer(world: World, kind: type, group: list[Job]) -> None:
    if kind is Handle:
        _handle(group)
        return
    try:
        answers = _acknowledge(world, group) if kind is Acknowledge else world.perform(kind, [j.pending for j in group])
    except Exception as error:
        for job in group:
            job.fail(error)
        return
    for job, answer in zip(group, answers, strict=True):
        job.go_on(answer)


def _handle(group: list[Job]) -> None:
    """All are begun before any is waited for: what runs elsewhere runs side by side."""
    elsewhere: list[tuple[Job, Future[Handled]]] = []
    for job in group:
        try:
            if job.handle is None:
                raise Misuse("this attempt has nothing to handle")
            answer = job.handle(cast(Handle, job.pending).state)
        except Exception as error:
            job.fail(error)
        else:
            if isinstance(answer, Future):
                elsewhere.append((job, answer))
            else:
                job.go_on(answer)
    for job, begun in elsewhere:
        try:
            answer = begun.result()
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


def _fresh(world: World, steps: Sequence[Fresh]) -> list[tuple[str, ...]]:
    ids = iter(world.fresh(sum(step.many for step in steps)))
    return [tuple(islice(ids, step.many)) for step in steps]


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
    Fresh: _fresh,
}
