"""A consumer: threads that lease batches and process them, until it is stopped or the queues are empty.

The messages of a leased batch go through their plans in step. Under the plan `local` those of one entity are folded
over its state, in their order; under the others the second would find its entity changed, so it waits for the next
round, inside the same lease. What was given out before and came back is processed alone, in any order: if it kills the
process, it takes nobody with it. It is counted when it is begun, not when it is leased: only what kills grows old. If
a queue counts by itself (NATS), half of those beside it are through each time.

The transaction that settles the last messages of a batch leases the next one, where the store can do that (SQLite).

A handler that takes longer than `HOLD_S` keeps its thread, and nothing else: what is ready is settled and the rest of
the batch processed by another thread, which goes on in its place. Coroutines that are not ready stay on their loop.

    applied, resumed, duplicate, tidied    acknowledged by the plan
    conflict                               tried again at once a few times, then released
    handler_failed                         released, each time for longer; after `attempts_max` deliveries a dead letter
    it killed every process that took it   a dead letter after ten times as many
    store_failed                           released, however often: the message cannot help it
    malformed, no_handler, foreign_token   a dead letter at once

Dead letters keep their token: they can be dug up, and are processed then, once. Beside the workers one thread extends
the leases of what is in hand, and one is the pump: now and then it recovers what others left, and does the endpoint's
chores. To stop: nothing more is leased, what is being processed is finished, the rest of each batch goes back. When a
store or the transport fails, what was in hand goes back, and the consumer waits, longer each time, until they answer
again. At its start, too: a database may be starting as well.

*Recovery.* A message that was not acknowledged comes again, and its next delivery finishes what is left. But a
transport may give a message up, and a source may have nobody who asks again; so now and then somebody looks for
*stranded* outbox entries. To finish one that somebody is still at does no harm: one of the two gets through. Orphans
are tokens whose parent is gone and did not free them: garbage, of two kinds.

- *of a source* over two stores (see `plans`), whose parent is a mark: tokens are read first, then whether the entry
  that they were made for is still there. An entry that is gone has freed its own.
- *of a message*: the plan `transactional` frees no tokens, so what a worker of another plan made and lost with, on the
  same database, stays. They have to be as old as a stranded entry: somebody may still be at a discarded parent.

What is dated later than now was written by a clock that was ahead: how old it is cannot be known, so it is old.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from hashlib import sha256
from operator import add
from queue import Empty, SimpleQueue
from random import choice, sample, uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from onefold.errors import BadInput, Damaged, Misuse, OnefoldError, StoreFailed
from onefold.outbox.plans import (
    ANSWERS,
    MARK,
    RECOVERIES,
    SECONDS_MAX,
    HandlerFailed,
    Handling,
    Key,
    Message,
    Outcome,
    Retry,
    check_retry,
    unpack_message,
)
from onefold.outbox.ports import FOREVER_MS, REASON_MAX, STEP_MS, Ahead, Delivery, Stranded
from onefold.outbox.runner import (
    Batch,
    HandlerCalls,
    Job,
    Work,
    World,
    describe,
    ends,
    in_transaction,
    job_of,
    raised,
    run,
)
from onefold.tally import Tally
from onefold.verdict import Answer

if TYPE_CHECKING:
    from onefold.outbox.endpoint import Endpoint

log: Final = logging.getLogger("onefold.outbox")

CONFLICT_TRIES_MAX: Final = 8
"""At once, before a message is released: of all who are at one entity, one gets through each time."""
FOLD_TRIES_MAX: Final = 3
"""Of these, messages of one entity are tried together; then each alone."""
CONFLICT_S: Final = 0.1
"""So long, at most, it is released then."""
FATAL_MIN: Final = 20
"""But not before: where the queue cannot count what is begun, each time half of the bystanders are processed first, and
none shall go with the one that kills."""
FATAL_TIMES: Final = 10
"""Times `attempts_max`: a message that was given out so often and never came to any end kills whoever takes it."""
TURN_S: Final = 0.25
"""For a turn at an entity; then it is looked whether the consumer ends."""
WAIT_MS: Final = 250
"""For a first message; so long it takes, at most, to notice the end."""
POLL_S: Final = 0.05
HOLD_S: Final = 0.1
"""A handler that takes longer holds nobody else: most take some milliseconds."""
HELD_MAX: Final = 32
"""Threads that may wait for such handlers, beside those that work."""
LATE_MAX: Final = 1_000
"""Coroutines that may be at work; no more is leased then."""
LATE_WAIT_MS: Final = 20
OUTAGE_S: Final = 0.1
OUTAGE_MAX_S: Final = 30.0
"""Between two looks whether a store answers again: it begins with the first and doubles."""
OUTAGES_MAX: Final = 10
"""Looks in vain before a consumer that is to empty its queues gives up: about 80 s."""
PAGE: Final = 500
"""Entries, or tokens, that are read at once: each entry can hold 1,000 messages."""
PURGE_S: Final = 3_600
"""Between two looks for old tombstones, at most: PostgreSQL looks at each entity, for an index on what makes one a
tombstone would be written with every state."""
PROBE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    concurrency: int = 1
    """Threads. A batch is processed in step by one of them; handlers that are coroutines run side by side anyway."""
    batch: int = 64
    """Messages that are leased at once: they share the round trips and the syncs."""
    lease_s: float = 30
    """How long a dead consumer's messages wait; SQS and Pub/Sub begin with 30 and 10 s."""
    attempts_max: int = 10
    """Deliveries of a message whose handler fails, before it is a dead letter."""
    backoff_s: float = 1.0
    """Before the second delivery; it doubles."""
    backoff_max_s: float = 300
    recover_s: float = 30
    """Between two runs of the pump."""
    stranded_s: float = 60
    """Outbox entries older than this are finished by the pump: more than a lease, so that it rarely meddles."""
    tombstone_s: float = 7 * 86_400
    """What is left of a deleted entity is kept so long: no attempt may last longer."""
    until_empty: bool = False

    def __post_init__(self) -> None:
        check_retry(self)
        for name in ("concurrency", "batch"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise Misuse(f"{name} is {value!r}, must be a whole number of at least 1", **{name: value})
        for name, least in {"lease_s": 0.01, "recover_s": 0.01, "stranded_s": 0, "tombstone_s": 0}.items():
            value = getattr(self, name)
            if not least <= value <= SECONDS_MAX:
                raise Misuse(f"{name} is {value}, must be from {least} to {SECONDS_MAX:,}", **{name: value})

    @property
    def lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    def delay_ms(self, times: int, retry: Retry | None = None) -> int:
        """Before the next delivery: twice as long each time, and not the same for all.

        >>> 2_000 <= Consuming(backoff_s=1.0, backoff_max_s=300).delay_ms(times=3) <= 4_000
        True
        """
        policy = retry or self
        longest = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** min(times - 1, 60))
        return round(uniform(longest / 2, longest) * 1000)


class ConsumerBooks:
    """Deliveries as they come in, and verdicts as they are given, by any thread.

    >>> books = ConsumerBooks()
    >>> books.received(3)
    >>> books.judged("applied", 2)
    >>> books.received(-1)
    >>> str(books.tally())
    '2 in = 2 first + 0 repeat + 0 unsure + 0 reject'
    """

    def __init__(self) -> None:
        self.buried = 0
        """How many were set aside as dead letters."""
        self._lock = threading.Lock()
        self._received = 0
        self._counts: Counter[Answer] = Counter()

    def received(self, many: int) -> None:
        """So many were leased; fewer than 0: released untouched, they come in another time."""
        with self._lock:
            self._received += many

    def judged(self, reason: str, many: int = 1) -> None:
        with self._lock:
            self._counts[ANSWERS[reason]] += many

    def set_aside(self) -> None:
        with self._lock:
            self.buried += 1

    def tally(self) -> Tally:
        """What the two columns say now; while a batch is in hand they differ by it."""
        with self._lock:
            return Tally(self._received, self._counts)


class Lot:
    """What one thread has in hand: messages whose turn has not come, and the batch of those whose has."""

    def __init__(self, messages: Sequence[Work] = (), batch: Batch | None = None) -> None:
        self.messages = list(messages)
        self.batch = batch or Batch()
        self.error: Exception | None = None
        self.ahead = Ahead((), 0, 0)
        """What was leased with the last commit."""

    def cut(self) -> Lot | None:
        """All but the message whose handler takes long, for another thread; None if there is none such."""
        batch = self.batch
        with batch.lock:  # its thread cannot go on meanwhile
            rest = batch.cut(HOLD_S)
            if rest is None:
                return None
            messages, self.messages = self.messages, []
            return Lot(messages, rest)


class Consumer:
    """One run over the queues of an endpoint."""

    def __init__(
        self, app: Endpoint, settings: Consuming | None = None, *, stop: threading.Event | None = None
    ) -> None:
        if not app.handlers:
            raise Misuse(f"{app.name} has no handlers: there is nothing to consume")
        self.app = app
        self.settings = settings or Consuming()
        self.books = ConsumerBooks()
        self.recovered = Recovered()
        self.trouble: str | None = None
        """Why it waits, if it does: what a store said."""
        self.ending = threading.Event()
        """Set when it ends: what is in hand is finished."""
        self._purge_at = 0.0
        ordered = any(handling.ordered for handling in app.handlers.values())
        self._leases_ahead = app.plan == "local" and not ordered
        self._stop = stop or threading.Event()
        self._errors: list[BaseException] = []
        self._epoch_ms = app.clock_ms() - round(1000 * monotonic())  # what the clock says when monotonic() is 0
        self._lock = threading.Lock()
        self._leased: dict[str, Delivery] = {}
        self._busy: set[Key | str] = set()
        self._freed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._lots: set[Lot] = set()
        self._late: set[Job] = set()
        """Their coroutines are still at work."""
        self._ready: SimpleQueue[Job] = SimpleQueue()
        """Of those: what can go on."""

    def run(self, on_start: Callable[[], object] | None = None) -> Tally:
        """Consume; blocks. What cannot be mended by waiting is raised."""
        self._start()
        ended = threading.Event()
        for _ in range(self.settings.concurrency):
            self._add_thread("consumer", self._work)
        tending = [
            self._thread("leases", lambda: self._extend_leases(ended)), self._thread("pump", self._pump),
            self._thread("watch", lambda: self._watch(ended)),
        ]  # fmt: skip
        for thread in tending:
            thread.start()
        try:
            if on_start is not None:
                on_start()
            while not (self._errors or self._stop.is_set()) and any(each.is_alive() for each in list(self._threads)):
                sleep(POLL_S)  # not stop.wait: that has a lock now and then, for which a signal handler would wait
        finally:
            self.ending.set()
            while self._threads:  # one may add another meanwhile
                self._threads.pop().join()
            ended.set()
            for thread in (*tending, *self._threads):
                thread.join()
        if self._errors:
            raise self._errors[0]
        return self.books.tally().check()

    def _start(self) -> None:
        """Reach the stores, or wait until they can be reached; not for ever, for the address may be wrong."""
        outages = 0
        while not self._stop.is_set():
            try:
                self._probe()
                for warning in self.app.world.tokens.warnings():
                    log.warning("%s", warning)
            except StoreFailed as error:
                if outages >= OUTAGES_MAX:
                    raise
                log.error("%s: waiting for it", describe(error))
                self._stop.wait(min(OUTAGE_MAX_S, OUTAGE_S * 2.0**outages))
                outages += 1
            else:
                return

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # a thread must not end without a word
                self._errors.append(error)
                self.ending.set()

        return threading.Thread(target=guarded, name=f"onefold-{name}", daemon=True)

    def _add_thread(self, name: str, work: Callable[[], None]) -> None:
        thread = self._thread(name, work)
        self._threads.append(thread)
        thread.start()

    def _work(self, lot: Lot | None = None) -> None:
        """Lease and process until the end, or until another thread takes over; ``lot``: what this one takes over."""
        queue, settings, queues = self.app.world.queue, self.settings, list(self.app.handlers)
        outages, due = 0, 0.0
        patience_ms = 0 if settings.until_empty else WAIT_MS
        ahead: Sequence[Delivery] = ()
        while lot is not None or self._late or ahead or not self.ending.is_set():
            deliveries: Sequence[Delivery] = ()
            try:
                if lot is None:
                    lot = Lot(batch=Batch(self._ready_jobs()))
                    if ahead:
                        deliveries = ahead
                    elif not self.ending.is_set() and len(self._late) < LATE_MAX:
                        wait_ms = LATE_WAIT_MS if self._late else 0 if lot.batch.jobs else patience_ms
                        deliveries = self._lease(wait_ms)
                    elif not lot.batch.jobs:
                        sleep(LATE_WAIT_MS / 1000)
                    if not deliveries and not lot.batch.jobs and settings.until_empty:
                        waiting = queue.waiting()
                        if not any(waiting.get(name) for name in queues):
                            return
                        patience_ms = WAIT_MS
                error = self._process(deliveries, lot)
                if lot.batch.is_left:
                    if lot.ahead.deliveries:
                        self._let_go(lot.ahead.deliveries)
                    return
            except Exception as failed:
                error = failed
            ahead = () if lot is None else lot.ahead.deliveries
            lot = None
            if ahead and (error is not None or self.ending.is_set()):
                self._let_go(ahead)
                ahead = ()
            if isinstance(error, Misuse | Damaged):  # to go on would not help
                raise error
            if error is not None:
                self._wait_out(error, outages)
                outages, due = outages + 1, monotonic() + settings.backoff_s
            elif outages and (deliveries or monotonic() > due):  # before that, what failed has not come again
                outages, self.trouble = 0, None

    def _lease(self, wait_ms: int) -> list[Delivery]:
        """Of the ordered queues first: they have nothing to be woken by."""
        handlers, settings, world = self.app.handlers, self.settings, self.app.world
        ordered = [handling for handling in handlers.values() if handling.ordered]
        deadline = monotonic() + wait_ms / 1000
        while True:
            for handling in sample(ordered, len(ordered)):

                def turn_of(payload: bytes, handling: Handling = handling) -> str:
                    try:
                        return str(handling.read(unpack_message(payload))[0])
                    except Exception:  # it will be set aside
                        return f"#{sha256(payload).hexdigest()}"

                args = handling.queue, turn_of, settings.batch, settings.lease_ms
                if deliveries := world.local.lease_in_turn(*args):
                    return deliveries
            others = [name for name, handling in handlers.items() if not handling.ordered]
            if not ordered:
                return world.queue.lease(others, settings.batch, settings.lease_ms, wait_ms)
            if others and (deliveries := world.queue.lease(others, settings.batch, settings.lease_ms, 0)):
                return deliveries
            if monotonic() >= deadline or self.ending.wait(POLL_S):
                return []

    def _ready_jobs(self) -> list[Job]:
        """Of the late ones, those that can go on."""
        jobs: list[Job] = []
        while True:
            try:
                job = self._ready.get_nowait()
            except Empty:
                return jobs
            self._late.discard(job)
            jobs.append(job)

    def _process(self, deliveries: Sequence[Delivery], lot: Lot) -> Exception | None:
        """Give each its verdict, or give it back untouched when the consumer ends or a store fails, whose error is
        returned."""
        if deliveries:
            self.books.received(len(deliveries))
            with self._lock:
                self._leased |= {delivery.receipt: delivery for delivery in deliveries}
            try:
                world = self.app.world
                place = world.local.place if self.app.plan == "local" else world.tokens.realm + "?"
                if again := [delivery for delivery in deliveries if delivery.times > 1]:
                    world.queue.count(again, -1)  # each when it is begun: none for the one that kills
            except Exception as error:
                self._store_failed(deliveries)
                return error
            handlers = self.app.handlers
            read = [self._read(each, handlers, place) for each in deliveries]
            lot.messages += [work for work in read if work is not None]
        with self._lock:
            self._lots.add(lot)
        try:
            while True:
                if not lot.batch.jobs and not self._begin(lot):
                    break
                run(self.app.world, lot.batch, HOLD_S)
                jobs, lot.batch.jobs = lot.batch.jobs, []
                conflicts = len(lot.messages)
                done: list[Job] = []
                for job in jobs:
                    ended = job.ended
                    if type(ended) is tuple and ended.count(Outcome.APPLIED) == len(ended):
                        done.append(job)
                    else:
                        self._end(job, lot)
                if done:
                    applied = [work.delivery for job in done for work in job.works]
                    self.books.judged("applied", len(applied))
                    self._forget(applied)
                    with self._freed:
                        self._busy.difference_update([job.works[0].turn for job in done])
                        self._freed.notify_all()
                if len(lot.messages) - conflicts >= len(jobs):  # nobody got through: not all at the same time again
                    sleep(uniform(0, 0.001 * 2 ** lot.messages[-1].tries))
                if lot.batch.is_left or (not lot.messages or lot.error is not None or self.ending.is_set()):
                    break
        finally:
            with self._lock:
                self._lots.discard(lot)
        if lot.messages:
            self.books.received(-len(lot.messages))
            self._let_go([work.delivery for work in lot.messages])
            lot.messages = []
        return lot.error

    def _begin(self, lot: Lot) -> bool:
        """Begin with the messages whose turn it is; False if there are none. What was given out before is alone."""
        if not lot.messages or lot.error is not None:
            return False
        first, alone, behind = list[Work](), list[Work](), set[Key | str]()
        for work in lot.messages:
            if behind and work.turn in behind:
                continue
            if work.delivery.times == 1:
                first.append(work)
                continue
            alone.append(work)
            if work.handling.ordered:
                behind.add(work.turn)
        candidates = first or [choice(alone)]
        turns = [work.turn for work in candidates]
        with self._freed:
            self._freed.wait_for(lambda: not self._busy.issuperset(turns), TURN_S)
            ours = set(turns) - self._busy
            self._busy |= ours
        together: dict[Key | str, list[Work]] = {}
        for work, turn in zip(candidates, turns, strict=True):
            if turn not in ours:
                continue
            if (group := together.get(turn)) is None:
                together[turn] = [work]
            elif work.plan == "local" == group[0].plan and work.tries == group[0].tries <= FOLD_TRIES_MAX:
                group.append(work)
        if together and not first and candidates[0].tries == 1:
            try:
                self.app.world.queue.count([candidates[0].delivery], 1)
            except Exception as error:
                lot.error = error
                with self._freed:
                    self._busy -= ours
                    self._freed.notify_all()
                return False
        jobs, later = list[Job](), list[Work]()
        call, within = HandlerCalls(self.app.loop, self.app.clock_ms()), list[Job]()
        for group in together.values():
            jobs.append(job := job_of(group, call))
            if group[0].handling.takes_db:
                within.append(job)
        if within:
            found = in_transaction(self.app.world, [job.works for job in within], call)
            for job, end in zip(within, found, strict=True):
                job.attempt.close()
                job.ended = end
        if sum(map(len, together.values())) < len(lot.messages):
            begun = {work.delivery.receipt for group in together.values() for work in group}
            later = [work for work in lot.messages if work.delivery.receipt not in begun]
        ahead = None
        is_last = not later and not lot.ahead.deliveries and not self.ending.is_set() and len(self._late) < LATE_MAX
        if self._leases_ahead and is_last:
            ahead = lot.ahead = Ahead(list(self.app.handlers), self.settings.batch, self.settings.lease_ms)
        lot.messages, lot.batch = later, Batch(jobs, ahead)
        return True

    def _end(self, job: Job, lot: Lot) -> None:
        """The verdicts on its messages; those to be tried again at once are in the lot again."""
        if job.ended is None:
            self._late.add(job)
            assert job.future is not None, "only a coroutine is waited for"
            job.future.add_done_callback(lambda _: self._ready.put(job))
            return
        group = list(job.works)
        ends = job.ended if isinstance(job.ended, tuple) else [job.ended] * len(group)
        again, failed, behind = list[Work](), list[Delivery](), list[Delivery]()
        for work, end in zip(group, ends, strict=True):
            delivery, tries = work.delivery, work.tries
            if end is None:
                behind.append(delivery)
            elif end is Outcome.CONFLICT and tries < CONFLICT_TRIES_MAX:
                # Read anew: the handler may have changed the body that it was given.
                message = work.handling.typed(unpack_message(delivery.payload))
                again.append(work._replace(message=message, tries=tries + 1))
            elif end is Outcome.CONFLICT:
                self._let_go([delivery], round(uniform(0, CONFLICT_S) * 1000))
                self.books.judged("conflict")
            elif isinstance(end, Outcome):
                self.books.judged(str(end))
                self._forget([delivery])
            elif not isinstance(end, HandlerFailed):
                failed.append(delivery)
                lot.error = end
            else:
                self._handler_failed(delivery, work.message, end)
        if failed:
            self._store_failed(failed)
        done = all(end in (Outcome.APPLIED, Outcome.DUPLICATE) for end in ends)
        if group[0].handling.ordered and not done and len(again) < len(group):  # the rest has to wait for it
            behind += [work.delivery for work in (*again, *lot.messages) if work.turn == group[0].turn]
            lot.messages = [work for work in lot.messages if work.turn != group[0].turn]
            again = []
        if behind:
            self.books.received(-len(behind))
            self._let_go(behind, anew=True)
        lot.messages = again + lot.messages
        with self._freed:
            self._busy.discard(group[0].turn)
            self._freed.notify_all()

    def _watch(self, ended: threading.Event) -> None:
        """Have another thread take over what waits behind a handler that takes long."""
        while not ended.wait(HOLD_S / 2):
            with self._lock:
                lots = list(self._lots)
            if len(self._threads) >= self.settings.concurrency + HELD_MAX:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                continue
            for lot in lots:
                if (other := lot.cut()) is not None:
                    self._add_thread("consumer", partial(self._work, other))

    def _read(self, delivery: Delivery, handlers: Mapping[str, Handling], place: str) -> Work | None:
        """The message with its handler; None: it is set aside, or nobody can tell now where its token is."""
        reason = "malformed"
        try:
            if delivery.times > max(FATAL_MIN, FATAL_TIMES * self.settings.attempts_max):
                reason = "handler_failed"
                raise BadInput(f"it was given out {delivery.times} times and came to no end: does it kill the process?")
            message = unpack_message(delivery.payload)
            if message.to not in handlers:
                reason = "no_handler"
                raise BadInput(f"{self.app.name} has no handler for {message.to!r:.300}")
            if message.to != delivery.queue:
                raise BadInput(f"it is for {message.to!r} and came by {delivery.queue!r}")
            reason = "foreign_token"
            plan = "local" if message.realm == place else self.app.plan_of(message)
            reason = "malformed"
            if message.due_ms and (wait_ms := self._early_ms(message)):
                self.books.received(-1)
                self._let_go([delivery], wait_ms, anew=True)
                return None
            return self.app.work(message, delivery, plan)
        except BaseException as error:  # a key function can raise anything
            self._bury(delivery, f"{reason}: {error if isinstance(error, OnefoldError) else describe(error)}")
            self.books.judged(reason)
            return None

    def _early_ms(self, message: Message) -> int:
        """How long it has to wait yet. A delay that began later than it is now was told by a clock that was ahead."""
        early_ms = message.due_ms - self.app.clock_ms()
        return 0 if message.delay_ms and early_ms > message.delay_ms + STEP_MS else max(0, early_ms)

    def _handler_failed(self, delivery: Delivery, message: Message, failed: HandlerFailed) -> None:
        """Let it come again, or set it aside, with the traceback."""
        self.books.judged("handler_failed")
        handling, error = self.app.handlers[message.to], failed.__cause__
        if error is not None and (trace := error.__traceback__) is not None:
            error.__traceback__ = trace.tb_next or trace  # without our own frame
        attempts_max = (handling.retry or self.settings).attempts_max
        if isinstance(error, handling.fatal) or delivery.times >= attempts_max:
            head = f"{failed} (delivery {delivery.times}{', fatal' if isinstance(error, handling.fatal) else ''})"
            lines = "".join(traceback.format_exception(error)) if error is not None else ""
            self._bury(delivery, f"{head}\n{lines[-max(1, REASON_MAX - len(head) - 1) :]}", error)
        else:
            log.warning("%s (delivery %d of %d)", failed, delivery.times, attempts_max, exc_info=error)
            self._let_go([delivery], self.settings.delay_ms(delivery.times, handling.retry), anew=False)

    def _store_failed(self, deliveries: Sequence[Delivery]) -> None:
        self.books.judged("store_failed", len(deliveries))
        self._let_go(deliveries, self.settings.delay_ms(1))

    def _let_go(self, deliveries: Sequence[Delivery], delay_ms: int = 0, *, anew: bool | None = None) -> None:
        """Let them come again; ``anew``: counted from one again. So is, if nothing is said, what was given out often:
        what a store, or the end of a consumer, sent back does not kill whoever takes it."""
        often = self.settings.attempts_max
        try:
            for again in (False, True):
                if those := [each for each in deliveries if (each.times >= often if anew is None else anew) is again]:
                    self.app.world.queue.release(those, delay_ms, anew=again)
        except Exception as error:  # then the leases run out
            log.warning("could not give %d messages back: %s", len(deliveries), describe(error))
        self._forget(deliveries)

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        """They are not in hand any more: their leases are not extended."""
        with self._lock:
            for delivery in deliveries:
                self._leased.pop(delivery.receipt, None)

    def _bury(self, delivery: Delivery, reason: str, error: BaseException | None = None) -> None:
        log.error("set aside: %s", reason.splitlines()[0], exc_info=error)
        try:
            self.app.world.queue.bury([delivery], reason)
        except Exception as error:  # then it comes again, and is judged again
            log.warning("could not set it aside: %s", describe(error))
        else:
            self.books.set_aside()
        self._forget([delivery])

    def _extend_leases(self, ended: threading.Event) -> None:
        """Extend the leases of all batches in hand, three times in the time of one; what is done already stays so."""
        while not ended.wait(self.settings.lease_ms / 3000):
            with self._lock:
                leased = list(self._leased.values())
            if not leased:
                continue
            try:
                self.app.world.queue.extend(leased, self.settings.lease_ms)
            except Exception as error:  # if they run out, others get them too: no harm, only work
                log.warning("could not extend %d leases: %s", len(leased), describe(error))

    def _wait_out(self, error: Exception, outages: int) -> None:
        """Wait until the stores answer; a delivery that would only fail again is not worth counting."""
        while not self.ending.is_set():
            self.trouble = describe(error)
            if self.settings.until_empty and outages >= OUTAGES_MAX:
                raise error
            log.error("%s: waiting for it", self.trouble)
            if self.ending.wait(min(OUTAGE_MAX_S, OUTAGE_S * 2.0 ** min(outages, 60))):
                return
            try:
                self._probe()
            except (Misuse, Damaged):
                raise
            except Exception as again:
                error, outages = again, outages + 1
            else:
                return

    def _probe(self) -> None:
        world = self.app.world
        world.entities.load([Key(self.app.name, PROBE)])
        world.tokens.holds([PROBE])
        world.queue.waiting()

    def _pump(self) -> None:
        def recover_ours() -> None:
            # A clock that was set ahead since the start makes nothing older.
            latest_ms = self._epoch_ms + round(1000 * monotonic())
            settings, late = self.settings, monotonic() >= self._purge_at
            tombstone_s = settings.tombstone_s if late else None
            self.recovered += recover(self.app, settings.stranded_s, tombstone_s, latest_ms=latest_ms)
            if late:
                self._purge_at = monotonic() + min(PURGE_S, settings.tombstone_s / 100)

        while True:
            for chore in (recover_ours, *self.app.chores):
                try:
                    chore()
                except Exception as error:  # the next run finds the same; the other chores are done
                    log.error("the pump: %s", describe(error))
            if self.ending.wait(self.settings.recover_s):
                return


@dataclass(frozen=True, slots=True)
class Recovered:
    finished: int = 0
    """Outbox entries whose messages are sent now, and which are gone."""
    conflicts: int = 0
    """Entries that somebody else was at; they are theirs, or the next recovery's."""
    swept: int = 0
    """Tokens that were made for nothing."""
    purged: int = 0
    """Tombstones that were old enough."""

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(*map(add, astuple(self), astuple(other)))


def recover(app: Endpoint, older_than_s: float, tombstone_s: float | None, *, latest_ms: int = FOREVER_MS) -> Recovered:
    """Recover all that an endpoint left behind; ``latest_ms``: no later than this is believed of the clock.

    That is for tombstones alone, which all stay if ``tombstone_s`` is None. To finish an entry too early does no harm,
    but what a tombstone remembers is gone with it: a request that was forgotten could be made again.
    """
    if not (0 <= older_than_s <= SECONDS_MAX and 0 <= (tombstone_s or 0) <= SECONDS_MAX):
        raise Misuse(f"older_than_s is {older_than_s}, tombstone_s {tombstone_s}: must be from 0 to {SECONDS_MAX:,}")
    now_ms = app.clock_ms()
    recovered = recover_stores(app.world, now_ms, older_than_s, app.name, app.plan)
    if tombstone_s is None:
        return recovered
    purged = app.world.entities.purge(min(now_ms, latest_ms) - round(tombstone_s * 1000), app.name)
    return replace(recovered, purged=purged)


def recover_stores(
    world: World, now_ms: int, older_than_s: float, endpoint: str | None = None, plan: str = "parented"
) -> Recovered:
    """Finish the stranded entries of one endpoint or of all, and sweep orphans; tombstones stay: their time is the
    endpoint's."""
    before_ms, after_ms = now_ms - round(older_than_s * 1000) + 1, now_ms + STEP_MS
    finished = conflicts = swept = 0
    while stranded := world.entities.stranded(before_ms, PAGE, endpoint, after_ms=after_ms):
        rest = stranded
        while rest:  # no two of one entity at once: the second would write what the first one changed
            first: dict[Key, Stranded] = {}
            later = [each for each in rest if first.setdefault(each.key, each) is not each]
            found = ends(world, [Job(RECOVERIES[plan](each.key, each.name)) for each in first.values()])
            conflicts += [raised(end) for end in found].count(Outcome.CONFLICT)
            rest = later
        finished += len(stranded)
        if conflicts or len(stranded) < PAGE:  # what is left is somebody's: not again and again
            break
    prefix = "" if endpoint is None else f"{endpoint}/"
    after = ""
    while page := world.tokens.listed(after=after, limit=PAGE, orphans=True):
        of_marks = [token for token in page if MARK in token.parent and token.parent.startswith(prefix)]
        garbage = [token for token in page if MARK not in token.parent and not before_ms <= token.at_ms <= after_ms]
        # The entity whose mark it is: the name of an endpoint has no stroke in it.
        sources = [Key(*token.parent.rpartition(MARK)[0].partition("/")[::2]) for token in of_marks]
        entities = world.entities.load(sources) if sources else []
        garbage += [token for token, at in zip(of_marks, entities, strict=True) if token.parent not in at.outbox]
        swept += sum(world.tokens.discard(token.token, token.parent) for token in garbage)
        after = page[-1].token
    return Recovered(finished - conflicts, conflicts, swept)
