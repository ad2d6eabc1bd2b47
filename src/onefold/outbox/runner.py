"""Runs attempts: gives each the answers it asks for, and many of them side by side.

An attempt is a generator of steps. All that are under way are led in step: whatever they ask for in one round is sorted
by kind, and each kind is one call to its store. So a hundred messages cost as many round trips, and as many syncs, as
one; and no plan knows of it.

What one attempt raises ends that one. What a store raises ends all that asked it: their messages come again.

How a handler is called: what it returns is checked, and what it raises is told apart from what a store raises.

Handlers that are coroutines run on one event loop, in a thread of its own: all of a batch are begun before the first is
waited for, so a hundred of them that wait for something wait together.

Messages through their plan: one, or a batch of them in step.

`process` is the whole of it for who has a transport of their own: a message, a handler, two stores or one, and an
outcome. `Endpoint` and the consumer stand on the same lines.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from time import time_ns
from typing import Any, Final, cast

from onefold.errors import Misuse, OnefoldError
from onefold.outbox.plans import PLANS, Handler, KeyOf, check_name, check_token, checkpointed, handled, key_of
from onefold.outbox.ports import Delivery, EntityStore, Ledger, Parcel, Queue, TokenStore
from onefold.outbox.steps import (
    Acknowledge,
    Attempt,
    Create,
    Dispatch,
    Finish,
    Fresh,
    Handle,
    Handled,
    Holds,
    Key,
    Load,
    Message,
    Open,
    Outcome,
    Persist,
    Remove,
    Settle,
    Step,
    pack_message,
)

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
class RunnerWorld:
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


def run(world: RunnerWorld, jobs: Iterable[Job]) -> list[Outcome | Exception]:
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


def _answer(world: RunnerWorld, kind: type, group: list[Job]) -> None:
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


def _acknowledge(world: RunnerWorld, group: list[Job]) -> list[None]:
    world.queue.acknowledge([job.delivery for job in group if job.delivery is not None])
    return [None] * len(group)


def _remove(world: RunnerWorld, steps: Sequence[Remove]) -> list[None]:
    world.tokens.remove([step.removal for step in steps])
    return [None] * len(steps)


def _fresh(world: RunnerWorld, steps: Sequence[Fresh]) -> list[tuple[str, ...]]:
    ids = iter(world.fresh(sum(step.many for step in steps)))
    return [tuple(islice(ids, step.many)) for step in steps]


def _finish(world: RunnerWorld, steps: Sequence[Finish]) -> list[None]:
    world.ledger.finish(steps)
    return [None] * len(steps)


_VERBS: Final[dict[type, Callable[[RunnerWorld, Any], Sequence[Any]]]] = {
    Load: lambda world, steps: world.entities.load([step.key for step in steps]),
    Persist: lambda world, steps: world.entities.persist([step.entity for step in steps]),
    Holds: lambda world, steps: world.tokens.holds([step.token for step in steps]),
    Create: lambda world, steps: world.tokens.create([step.birth for step in steps]),
    Remove: _remove,
    Open: lambda world, steps: world.ledger.open(steps),
    Settle: lambda world, steps: world.ledger.settle(steps),
    Finish: _finish,
    Dispatch: RunnerWorld.dispatch,
    Fresh: _fresh,
}


TEXT_MAX: Final = 500
"""Characters of an error that are kept with a dead letter."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler, and the queue that it is for."""

    queue: str
    call: Handler
    key: KeyOf


class HandlerFailed(OnefoldError):
    """A handler raised, or returned what cannot be kept; the error itself is the cause of this one."""


class Loop:
    """An event loop in a thread of its own, which is started when the first coroutine comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, Handled]) -> Future[Handled]:
        """Start it there; the result can be waited for in any other thread."""
        with self._lock:
            if self._closed:
                work.close()
                raise Misuse("the endpoint is closed: there is no loop for async handlers any more")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="onefold-handlers", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what still runs, and end the thread. May be called twice."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def calling(call: Handler, message: Message, loop: Loop) -> Callable[[Any], Handled | Future[Handled]]:
    """What `stores.attempts.Job` calls with the state; whatever goes wrong is `HandlerFailed`."""

    def handle(state: Any) -> Handled | Future[Handled]:
        try:
            answer = call(state, message)
            if not inspect.iscoroutine(answer):
                return handled(answer, message)
        except BaseException as error:  # SystemExit and the like must not end a thread of the consumer either
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # somebody pressed Ctrl-C
            raise _failed(message, error) from error
        return loop.begin(_awaited(answer, message))

    return handle


async def _awaited(answer: Coroutine[Any, Any, Any], message: Message) -> Handled:
    try:
        return handled(await answer, message)
    except GeneratorExit:
        raise
    except BaseException as error:  # here it would end the loop, and all who wait for it would wait for ever
        raise _failed(message, error) from error


def _failed(message: Message, error: BaseException) -> HandlerFailed:
    return HandlerFailed(f"{message.to}: {describe(error)}", token=message.token)


def describe(error: BaseException) -> str:
    """An error in one line.

    >>> describe(ValueError("no such order"))
    'ValueError: no such order'
    """
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:TEXT_MAX]


def process(
    message: Message, handler: Handler, *, key: KeyOf, entities: EntityStore, tokens: TokenStore, queue: Queue,
    plan: str = "transactional", endpoint: str = "default",
) -> Outcome:  # fmt: skip
    """Attempt one message, once; whoever delivered it is told by the caller.

    Whatever the outcome is, but CONFLICT, the message need not come again. After CONFLICT or an error it must. What a
    handler raises is raised here, and nothing was changed. Endpoints that share a store need names of their own.
    """
    check_plan(plan)
    if plan == "transactional" and entities is not cast(object, tokens):
        raise Misuse("the plan 'transactional' needs entities and tokens in one database: these are two")
    where = Key(check_name(endpoint, "endpoint"), key_of(message, key))
    check_token(message.token)
    with closing(Loop()) as loop:
        (ended,) = attempt(RunnerWorld(entities, tokens, queue), plan, [Work(message, where, handler)], loop)
    return settled(ended)


@dataclass(frozen=True, slots=True)
class Work:
    """A message that is to be processed, and by whom."""

    message: Message
    key: Key
    call: Handler
    delivery: Delivery | None = None
    """What is acknowledged when it is done; None: nothing."""


def check_plan(plan: str) -> str:
    """The name of a plan, or `Misuse`."""
    if plan not in PLANS:
        raise Misuse(f"plan is {plan!r}, must be one of {', '.join(PLANS)}", plan=plan)
    return plan


def attempt(world: RunnerWorld, plan: str, works: Sequence[Work], loop: Loop) -> list[Outcome | Exception]:
    """Try each once, all in step: what each came to, or what stopped it. No two may be of one entity."""
    jobs = [
        Job(PLANS[plan](work.key, work.message), calling(work.call, work.message, loop), work.delivery)
        for work in works
    ]
    ended = run(world, jobs)
    if plan == "parented":
        _forgive(world, works, ended)
    return ended


def _forgive(world: RunnerWorld, works: Sequence[Work], ended: list[Outcome | Exception]) -> None:
    """A copy that comes too late need not please the handler, which this plan calls before it looks for the token.

    So where one failed and there is no token, the message is a duplicate. `checkpointed` looks first, and tidies up.
    """
    failed = [number for number, each in enumerate(ended) if isinstance(each, HandlerFailed)]
    if not failed:
        return
    try:
        held = world.tokens.holds([works[number].message.token for number in failed])
    except Exception as error:
        for number in failed:
            ended[number] = error
        return
    late = [number for number, there in zip(failed, held, strict=True) if not there]
    jobs = [Job(checkpointed(works[n].key, works[n].message), None, works[n].delivery) for n in late]
    for number, outcome in zip(late, run(world, jobs), strict=True):
        ended[number] = outcome


def settled(ended: Outcome | Exception) -> Outcome:
    """The outcome, or the error raised; a handler's own instead of ours around it."""
    if isinstance(ended, HandlerFailed) and ended.__cause__ is not None:
        raise ended.__cause__
    if isinstance(ended, Exception):
        raise ended
    return ended
