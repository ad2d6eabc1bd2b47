"""Runs attempts: gives each the answers it asks for, and many of them side by side.

An attempt is a generator of steps (see `plans`). All attempts of a batch advance together: their steps are grouped by
kind, and each kind is one call to its store. So a hundred messages cost as many round trips, and as many syncs, as one,
and no plan knows of it. What one attempt raises ends that one. What a store raises ends all that asked it: their
messages come again.

Handlers that are coroutines run on one event loop, in a thread of its own: all of a batch are started before the first
is awaited, so a hundred of them that wait for something wait together.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from secrets import token_hex
from time import time_ns
from typing import Any, Final, NamedTuple, TypeVar, cast

from onefold.errors import Misuse
from onefold.outbox import plans
from onefold.outbox.plans import PLANS, Attempt, Handler, HandlerFailed, Key, Message, Outcome
from onefold.outbox.ports import Delivery, EntityStore, Ledger, Parcel, Queue, TokenStore

T = TypeVar("T")
CHANCE_BYTES: Final = 10
TEXT_MAX: Final = 500
"""Characters of an error that are kept with a dead letter."""
CLOSED: Final = "the endpoint is closed: there is no loop for async handlers any more"


def fresh_ids(many: int) -> tuple[str, ...]:
    """Ids that nobody has ever seen: the time in milliseconds, then 80 random bits each. Time first, as in a UUIDv7:
    what is made together lies together in an index, and ten times fewer pages of it are written."""
    width = 2 * CHANCE_BYTES
    time, chance = f"{time_ns() // 1_000_000:012x}", token_hex(CHANCE_BYTES * many)  # one system call for all
    return tuple(time + chance[at : at + width] for at in range(0, len(chance), width))


@dataclass(frozen=True, slots=True)
class World:
    """What answers the steps: two stores, or one ledger that is both, and a transport."""

    entities: EntityStore
    tokens: TokenStore
    queue: Queue

    @property
    def ledger(self) -> Ledger:
        """The one store that is both; `Misuse` if they are two."""
        ledger = cast(Ledger, self.entities)
        if ledger is not self.tokens:
            raise Misuse("the plan 'transactional' needs entities and tokens in one database: these are two")
        return ledger

    def perform(self, kind: type, steps: Sequence[Any]) -> Sequence[Any]:
        if kind is plans.Load:
            return self.entities.load([step.key for step in steps])
        if kind is plans.Persist:
            return self.entities.persist([step.entity for step in steps])
        if kind is plans.Holds:
            return self.tokens.holds([step.token for step in steps])
        if kind is plans.Create:
            return self.tokens.create(steps)
        if kind is plans.Open:
            return self.ledger.open(steps)
        if kind is plans.Settle:
            return self.ledger.settle(steps)
        if kind is plans.Fresh:
            ids = iter(fresh_ids(sum(step.many for step in steps)))
            return [tuple(islice(ids, step.many)) for step in steps]
        if kind is plans.Remove:
            self.tokens.remove(steps)
        elif kind is plans.Finish:
            self.ledger.finish(steps)
        else:
            assert kind is plans.Dispatch, f"{kind.__name__} is no step of a store"
            realm = self.tokens.realm
            messages = [message for step in steps for message in step.messages]
            self.queue.send([Parcel(message.to, plans.pack_message(message, realm)) for message in messages])
        return [None] * len(steps)


@dataclass(slots=True)
class Job:
    """An attempt under way, and what it needs besides the stores."""

    attempt: Attempt
    handle: Handle | None = None
    """Calls the handler, or what it wants done outside, or starts it elsewhere; None: there is nothing to handle."""
    delivery: Delivery | None = None
    """What is acknowledged; None: nothing."""
    pending: plans.Step | None = None
    ended: Outcome | Exception | None = None

    def go_on(self, answer: Any, error: Exception | None = None) -> None:
        try:
            self.pending = self.attempt.send(answer) if error is None else self.attempt.throw(error)
        except StopIteration as stop:
            self.pending, self.ended = None, stop.value
        except Exception as failure:
            self.fail(failure)

    def fail(self, error: Exception) -> None:
        self.attempt.close()
        self.pending, self.ended = None, error


def run(world: World, jobs: Iterable[Job]) -> list[Outcome | Exception]:
    """Run all attempts to their ends: what each came to, or what stopped it, in the order of the jobs."""
    jobs = list(jobs)
    for job in jobs:
        job.go_on(None)
    while True:
        by_kind: dict[type, list[Job]] = {}
        for job in jobs:
            if job.pending is not None:
                by_kind.setdefault(type(job.pending), []).append(job)
        if not by_kind:
            return [cast("Outcome | Exception", job.ended) for job in jobs]
        for kind, group in by_kind.items():
            if kind in (plans.Handle, plans.Call):
                _call_handlers(group)
                continue
            answers: Sequence[Any] = [None] * len(group)
            try:
                if kind is plans.Acknowledge:
                    world.queue.acknowledge([job.delivery for job in group if job.delivery is not None])
                else:
                    answers = world.perform(kind, [job.pending for job in group])
            except Exception as error:
                for job in group:
                    job.fail(error)
                continue
            for job, answer in zip(group, answers, strict=True):
                job.go_on(answer)


def _call_handlers(group: list[Job]) -> None:
    """All are started before any is awaited: coroutines run side by side."""
    started: list[tuple[Job, Any]] = []
    for job in group:
        try:
            assert job.handle is not None, "this attempt has nothing to handle"
            started.append((job, job.handle(cast("plans.Handle | plans.Call", job.pending))))
        except Exception as error:
            job.go_on(None, error)
    for job, answer in started:
        try:
            answer = answer.result() if isinstance(answer, Future) else answer
        except Exception as error:
            job.go_on(None, error)
        else:
            job.go_on(answer)


def run_one(world: World, attempt: Attempt) -> Outcome:
    """Run one attempt that has no handler; what stops it is raised."""
    (ended,) = run(world, [Job(attempt)])
    return raised(ended)


def raised(ended: Outcome | Exception) -> Outcome:
    """The outcome; an error is raised, a handler's own instead of ours around it."""
    if isinstance(ended, HandlerFailed) and ended.__cause__ is not None:
        raise ended.__cause__
    if isinstance(ended, Exception):
        raise ended
    return ended


class Loop:
    """An event loop in a thread of its own, which is started when the first coroutine comes."""

    def __init__(self, name: str = "onefold-handlers", closed: str = CLOSED) -> None:
        """``closed`` is what `Misuse` says when that is the case."""
        self._name, self._closed = name, closed
        self._lock = threading.Lock()
        self._is_open = True
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_open(self) -> None:
        if not self._is_open:
            raise Misuse(self._closed)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it there; the result can be waited for in any other thread."""
        with self._lock:
            if not self._is_open:
                work.close()
            self.check_open()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Do what is ``last``, cancel what still runs, and end the thread. May be called twice."""

        async def end() -> None:
            if last is not None:
                await last()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with self._lock:
            self._is_open = False
            loop, self._loop = self._loop, None
        if loop is None:
            return
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


Handle = Callable[[plans.Handle | plans.Call], Any]


def calling(call: Handler, message: Message, loop: Loop, now_ms: int = 0) -> Handle:
    """`Job.handle` for a handler: what it returns is checked, and whatever goes wrong is `HandlerFailed`."""

    def handle(step: plans.Handle | plans.Call) -> Any:
        outside = isinstance(step, plans.Call)
        context = plans.Context(step.answers if isinstance(step, plans.Handle) else {})
        try:
            if isinstance(step, plans.Call):
                answer = step.call(step.key)
            else:
                answer = call(step.state, message, **({"ctx": context} if takes(call, "ctx") else {}))
            if not inspect.iscoroutine(answer):
                return checked(answer, context, outside)
        except plans.Asked as asked:
            return asked
        except BaseException as error:  # SystemExit and the like must not end a thread of the consumer either
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # somebody pressed Ctrl-C
            raise failure(error) from error
        return loop.begin(awaited(answer, context, outside))

    async def awaited(answer: Coroutine[Any, Any, Any], context: plans.Context, outside: bool) -> Any:
        try:
            return checked(await answer, context, outside)
        except plans.Asked as asked:
            return asked
        except GeneratorExit:
            raise
        except BaseException as error:  # here it would end the loop, and all who wait for it would wait for ever
            raise failure(error) from error

    def checked(answer: Any, context: plans.Context, outside: bool) -> Any:
        if context.asked is not None:
            raise Misuse(
                f"the handler went on behind ctx.once({context.asked.name!r}): it must not catch BaseException"
            )
        return plans.check_answer(answer, message) if outside else plans.handled(answer, message, now_ms)

    def failure(error: BaseException) -> HandlerFailed:
        return HandlerFailed(f"{message.to}: {describe(error)}", token=message.token)

    return handle


@lru_cache(maxsize=1_000)
def takes(call: Handler, name: str) -> bool:
    """Whether a handler has a parameter of this name, besides state and message."""
    try:
        return name in [*inspect.signature(call).parameters][2:]
    except (TypeError, ValueError):  # one that is written in C does not say
        return False


def describe(error: BaseException) -> str:
    """An error in one line.

    >>> describe(ValueError("no such order"))
    'ValueError: no such order'
    """
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:TEXT_MAX]


class Work(NamedTuple):
    message: Message
    key: Key
    call: Handler
    delivery: Delivery | None = None
    """What is acknowledged when it is done; None: nothing."""


def attempt(world: World, plan: str, works: Sequence[Work], loop: Loop, now_ms: int) -> list[Outcome | Exception]:
    """Try each once, all in step: what each came to, or what stopped it. No two may be of one entity."""
    begin = PLANS[plan]
    jobs = [
        Job(begin(each.key, each.message), calling(each.call, each.message, loop, now_ms), each.delivery)
        for each in works
    ]
    return run(world, jobs)
