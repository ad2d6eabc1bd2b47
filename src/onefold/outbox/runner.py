"""Runs attempts: sends each the results of its steps, and runs many of them side by side.

An attempt is a generator of steps (see `plans`). All attempts of a batch advance together: their steps are grouped by
kind, and each kind is one call to its store. So a hundred messages cost as many round trips and syncs as one, and the
plans need not know. An exception in an attempt ends that attempt. An exception in a store ends all attempts of the
call, and their messages are redelivered.

Coroutine handlers run on one event loop, in a thread of its own: all of a batch are started before the first is
awaited, so they wait concurrently.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from secrets import token_hex
from time import monotonic, time_ns
from types import CoroutineType
from typing import Any, Final, NamedTuple, TypeVar, cast

from onefold.errors import Misuse
from onefold.outbox import plans
from onefold.outbox.plans import PLANS, Attempt, Handler, HandlerFailed, Key, Message, Outcome
from onefold.outbox.ports import (
    Ahead,
    Delivery,
    EndedTransaction,
    EntityStore,
    Ledger,
    LocalStore,
    LocalTransaction,
    Queue,
    TokenStore,
    parcels_of,
)

T = TypeVar("T")
CHANCE_BYTES: Final = 10
TOGETHER_S: Final = 0.05
"""After calling handlers for so long, their results are settled first."""
TEXT_MAX: Final = 500
"""Characters of an error kept with a dead letter."""
CLOSED: Final = "the endpoint is closed: there is no loop for async handlers any more"


def fresh_ids(many: int) -> tuple[str, ...]:
    """New unique ids: the time in milliseconds, then 80 random bits each. Time first, as in a UUIDv7: ids made together
    are adjacent in an index, so ten times fewer of its pages are written."""
    width = 2 * CHANCE_BYTES
    time, chance = f"{time_ns() // 1_000_000:012x}", token_hex(CHANCE_BYTES * many)  # one system call for all
    return tuple(time + chance[at : at + width] for at in range(0, len(chance), width))


@dataclass(frozen=True, slots=True)
class World:
    """What performs the steps: two stores, or one ledger that is both, and a transport."""

    entities: EntityStore
    tokens: TokenStore
    queue: Queue

    @property
    def ledger(self) -> Ledger:
        """The one store of both entities and tokens; `Misuse` if they are two."""
        ledger = cast(Ledger, self.entities)
        if ledger is not self.tokens:
            raise Misuse("the plan 'transactional' needs entities and tokens in one database: these are two")
        return ledger

    @property
    def local(self) -> LocalStore:
        """The one store of entities, tokens and queue; `Misuse` if there are several."""
        stores: list[Any] = [self.queue, self.entities, self.tokens]
        if any(store is not stores[0] for store in stores):
            raise Misuse("the plan 'local' needs entities and queue in one database: these are two")
        return cast(LocalStore, stores[0])

    def perform(self, kind: type, steps: Sequence[Any], ahead: Ahead | None = None) -> Sequence[Any]:
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
        if kind is plans.Peek:
            return self.local.peek([step.key for step in steps])
        if kind is plans.Keep:
            return self.local.keep(steps)
        if kind is plans.Commit:
            return self.local.commit(steps, ahead)
        if kind is plans.Fresh:
            ids = iter(fresh_ids(sum(step.many for step in steps)))
            return [tuple(islice(ids, step.many)) for step in steps]
        if kind is plans.Remove:
            self.tokens.remove(steps)
        elif kind is plans.Finish:
            self.ledger.finish(steps)
        else:
            assert kind is plans.Dispatch, f"{kind.__name__} is no step of a store"
            messages = (message for step in steps for message in step.messages)
            self.queue.send(parcels_of(messages, self.tokens.realm))
        return [None] * len(steps)


UNLEASED: Final = Delivery("", b"", "", 0)
"""For a message not from a queue: there is nothing to acknowledge."""


class Work(NamedTuple):
    """A message and its handler."""

    message: Message
    key: Key | None
    """The key of its entity; None: the handler keeps no state here."""
    handling: plans.Handling
    delivery: Delivery = UNLEASED
    """Acknowledged at the end, or the lease of the message's row."""
    plan: str = ""
    tries: int = 1
    """Tries since the lease, including this one."""

    @property
    def turn(self) -> Key | str:
        """Its entity, used by one message at a time; a message without one never waits."""
        return self.key or self.delivery.receipt


@dataclass(slots=True, eq=False)
class Job:
    """An attempt in progress, and what it needs besides the stores."""

    attempt: Generator[plans.Step, Any, Any]
    works: Sequence[Work] = ()
    """The messages of the attempt."""
    call: Call | None = None
    """Calls a handler, or makes an external call for it; coroutines are started on the loop."""
    pending: plans.Step | None = None
    ended: Any = None
    """The result of the attempt, or the exception that ended it."""
    future: Future[Any] | None = None
    """The running coroutine, if any."""
    batch: Batch | None = None

    @property
    def deliveries(self) -> list[Delivery]:
        return [work.delivery for work in self.works if work.delivery is not UNLEASED]

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


class Batch:
    """Jobs that one thread runs in step. While it waits for a handler, another thread can take over the other jobs."""

    def __init__(self, jobs: Iterable[Job] = (), ahead: Ahead | None = None) -> None:
        self.jobs: list[Job] = []
        self.ahead = ahead
        """What to lease with the commit that ends all jobs."""
        self.is_left = False
        """Another thread has taken over the rest: this batch's thread stops after its one remaining job."""
        self.lock = threading.Lock()
        self._busy: Job | None = None
        self._since = 0.0
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            job.batch = self
            self.jobs.append(job)

    def enter(self, job: Job) -> bool:
        """To be called before the job's handler; False: another thread has taken over the job."""
        with self.lock:
            if job.batch is not self:
                return False
            self._busy, self._since = job, monotonic()
            return True

    def leave(self) -> None:
        with self.lock:
            self._busy = None

    def cut(self, hold_s: float) -> Batch | None:
        """All jobs but the one whose handler has run for ``hold_s``; None if there is none. The caller must hold
        the lock."""
        busy = self._busy
        if busy is None or self.is_left or monotonic() - self._since < hold_s:
            return None
        rest = Batch(job for job in self.jobs if job is not busy)
        self.jobs, self.is_left, self.ahead = [busy], True, None
        return rest


def run(world: World | _Within, batch: Batch, late_s: float | None = None) -> None:
    """Run all attempts to their ends. ``late_s``: how long to wait for coroutines; jobs whose coroutine is not done by
    then stay unfinished, and can continue in another batch."""
    for job in batch.jobs:
        if job.pending is None and job.ended is None:
            job.go_on(None)
    while True:
        by_kind: dict[type, list[Job]] = {}
        for job in batch.jobs:
            if job.pending is not None:
                by_kind.setdefault(type(job.pending), []).append(job)
        handling = by_kind.pop(plans.Handle, []) + by_kind.pop(plans.Call, [])
        if handling and not _call_handlers(batch, handling, late_s) and not by_kind:
            return
        if not by_kind and not handling:
            return
        for kind, group in by_kind.items():
            group = [job for job in group if job.batch is batch]
            answers: Sequence[Any] = [None] * len(group)
            try:
                if kind is plans.Acknowledge:
                    cast(World, world).queue.acknowledge([delivery for job in group for delivery in job.deliveries])
                else:
                    is_last = len(by_kind) == 1 and not handling
                    answers = world.perform(kind, [job.pending for job in group], batch.ahead if is_last else None)
            except Exception as error:
                for job in group:
                    job.fail(error)
                continue
            for job, answer in zip(group, answers, strict=True):
                job.go_on(answer)


def ends(world: World | _Within, jobs: Iterable[Job]) -> list[Any]:
    """Run the jobs; for each its result, or the exception that ended it."""
    batch = Batch(jobs)
    run(world, batch)
    return [job.ended for job in batch.jobs]


def _call_handlers(batch: Batch, group: list[Job], late_s: float | None) -> bool:
    """Whether any job advanced. All coroutines are started before any is awaited. After `TOGETHER_S` the remaining
    handlers wait until the finished ones are settled."""
    began, some = monotonic(), False
    try:
        for job in group:
            if job.future is not None:
                continue
            if some and monotonic() - began > TOGETHER_S:
                return True
            if not batch.enter(job):
                continue
            step: Any = job.pending
            some = True
            assert job.call is not None, "it has nothing to handle"
            try:
                answer = job.call(job.works[step.number], step)
            except Exception as error:
                job.go_on(None, error)
            else:
                if isinstance(answer, Future):
                    job.future = answer
                else:
                    job.go_on(answer)
    finally:
        batch.leave()
    late = {job.future: job for job in group if job.batch is batch and job.future is not None}
    if late:
        wait(late, late_s)
    for future, job in late.items():
        if not future.done():
            continue
        job.future, some = None, True
        try:
            answer = future.result()
        except Exception as error:
            job.go_on(None, error)
        else:
            job.go_on(answer)
    return some


def run_one(world: World, attempt: Attempt) -> Outcome:
    """Run one attempt that has no handler; raises the exception that ends it."""
    (ended,) = ends(world, [Job(attempt)])
    return raised(ended)


def raised(ended: Outcome | Exception) -> Outcome:
    """The outcome; an error is raised, and for `HandlerFailed` the handler's own error."""
    if isinstance(ended, HandlerFailed) and ended.__cause__ is not None:
        raise ended.__cause__
    if isinstance(ended, Exception):
        raise ended
    return ended


class Loop:
    """An event loop in a thread of its own, started with the first coroutine."""

    def __init__(self, name: str = "onefold-handlers", closed: str = CLOSED) -> None:
        """``closed``: the text of the `Misuse` raised after `close`."""
        self._name, self._closed = name, closed
        self._lock = threading.Lock()
        self._is_open = True
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_open(self) -> None:
        if not self._is_open:
            raise Misuse(self._closed)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; any other thread can wait for the result."""
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
        """Await ``last()``, cancel the tasks still running, and end the thread. May be called twice."""

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


Call = Callable[[Work, "plans.Handle | plans.Call"], Any]


@dataclass(frozen=True, slots=True)
class HandlerCalls:
    """A `Job.call`: checks what a handler returns, and turns every error into `HandlerFailed`."""

    loop: Loop
    now_ms: int = 0
    db: LocalTransaction | None = None

    def __call__(self, work: Work, step: plans.Handle | plans.Call) -> Any:
        message, handling = work.message, work.handling
        context: plans.Context | None = None
        try:
            if isinstance(step, plans.Call):
                answer = step.call(step.key)
            else:
                call = handling.call
                values = (message,) if handling.key is None else (step.state, message)
                if self.db is not None:
                    with self.db.savepoint():
                        return self._checked(work, step, call(*values, self.db.connection))
                if takes_context(call):
                    context = plans.Context(step.answers)
                    answer = call(*values, ctx=context)
                else:
                    answer = call(*values)
            if type(answer) is not CoroutineType:
                return self._checked(work, step, answer, context)
        except plans.Asked as asked:
            return asked
        except EndedTransaction:
            raise
        except BaseException as error:  # SystemExit and the like must not end a thread of the consumer either
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C
            raise _failure(message, error) from error
        return self.loop.begin(self._awaited(work, step, answer, context))

    async def _awaited(self, work: Work, step: Any, answer: Coroutine[Any, Any, Any], context: Any) -> Any:
        try:
            return self._checked(work, step, await answer, context)
        except plans.Asked as asked:
            return asked
        except GeneratorExit:
            raise
        except BaseException as error:  # it would end the loop, and threads waiting for results would hang
            raise _failure(work.message, error) from error

    def _checked(self, work: Work, step: Any, answer: Any, context: plans.Context | None = None) -> Any:
        if context is not None and context.asked is not None:
            raise Misuse(
                f"the handler went on behind ctx.once({context.asked.name!r}): it must not catch BaseException"
            )
        if type(step) is plans.Call:
            return plans.check_answer(answer, work.message)
        return plans.handled((None, answer) if work.handling.key is None else answer, work.message, self.now_ms)


def _failure(message: Message, error: BaseException) -> HandlerFailed:
    return HandlerFailed(f"{message.to}: {describe(error)}", token=message.token)


def takes_context(call: Handler) -> bool:
    """Whether a handler has a parameter ``ctx``."""
    try:
        return _takes_context(call)
    except TypeError:  # not hashable, for example a dataclass with `__call__`
        return _takes_context.__wrapped__(call)


@lru_cache(maxsize=1_000)
def _takes_context(call: Handler) -> bool:
    try:
        return "ctx" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # a function written in C may have no signature
        return False


def describe(error: BaseException) -> str:
    """An error in one line.

    >>> describe(ValueError("no such order"))
    'ValueError: no such order'
    """
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:TEXT_MAX]


def job_of(works: Sequence[Work], call: HandlerCalls) -> Job:
    """An attempt at messages of one entity: several only under the plan `local`."""
    first = works[0]
    if first.plan == "local":
        if any(work.delivery is UNLEASED for work in works):
            raise Misuse("the plan 'local' needs the delivery of the message: its row is its token")
        messages, receipts = tuple([work.message for work in works]), [work.delivery.receipt for work in works]
        return Job(plans.folded(first.key, messages, receipts, in_order=first.handling.ordered), works, call)
    assert first.key is not None, "only 'local' has handlers without state"
    return Job(PLANS[first.plan](first.key, first.message), works, call)


def attempted(world: World, work: Work, call: HandlerCalls) -> Any:
    """Try a message once: the result, or the exception that ended it."""
    if work.handling.takes_db:
        (end,) = in_transaction(world, [[work]], call)
    else:
        (end,) = ends(world, [job_of([work], call)])
    return end[0] if isinstance(end, tuple) else end


@dataclass(frozen=True, slots=True)
class _Within:
    """A world inside a transaction, for attempts of the plan `local`."""

    transaction: LocalTransaction

    def perform(self, kind: type, steps: Sequence[Any], ahead: Ahead | None = None) -> Sequence[Any]:
        if kind is plans.Peek:
            return self.transaction.peek([step.key for step in steps])
        if kind is plans.Fresh:
            return [fresh_ids(step.many) for step in steps]
        assert kind is plans.Commit, f"{kind.__name__} is no step of the plan 'local'"
        return [plans.Settled.DONE if self.transaction.commit(steps) else plans.Settled.STALE] * len(steps)


class _Undone(Exception):
    """Ends a transaction without a commit."""


def in_transaction(world: World, groups: Sequence[Sequence[Work]], call: HandlerCalls) -> list[Any]:
    """Messages whose handlers take the connection, by entity: all in one transaction, each handler in a savepoint. On
    any conflict all is rolled back, also what the handlers wrote, and each entity is tried in its own transaction."""

    def work(transaction: LocalTransaction) -> list[Any]:
        within = replace(call, db=transaction)
        found = ends(_Within(transaction), [job_of(works, within) for works in groups])
        for end in found:
            if not isinstance(end, tuple):
                raise end
        if any(each in (Outcome.CONFLICT, Outcome.DUPLICATE) for end in found for each in end):
            raise _Undone
        return found

    try:
        return world.local.transact(work)
    except _Undone:
        if len(groups) > 1:
            return [end for works in groups for end in in_transaction(world, [works], call)]
        works = groups[0]
        there = [world.local.holds_row(work.delivery) for work in works]
        return [tuple(Outcome.CONFLICT if row or len(works) > 1 else Outcome.DUPLICATE for row in there)]
    except Exception as error:
        return [error] * len(groups)
