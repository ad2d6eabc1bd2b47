"""The consumer: threads that lease batches of messages and process them, until stopped or the queues are empty.

The messages of a batch go through their plans in step. Under the plan `local`, messages of one entity are folded over
its state, in their order; under the other plans the second one would conflict, so it waits for the next round, within
the same lease. Redelivered messages are processed one at a time, in random order, so one that kills the process takes
no others with it. Their deliveries are counted when processing begins, not at the lease, so the counter grows only for
the message that kills. If the queue counts by itself (NATS), half of the messages beside it are finished each time.

The transaction that settles the last messages of a batch leases the next batch, if the store can do that (SQLite).

A handler that takes longer than `HOLD_S` blocks only its own thread: another thread takes its place, settles what is
ready and processes the rest of the batch. Coroutines that are not ready stay on their event loop.

    applied, resumed, duplicate, tidied    acknowledged by the plan
    conflict                               retried at once a few times, then released
    handler_failed                         released with growing backoff; after `attempts_max` deliveries a dead letter
    killed every process that took it      a dead letter after ten times as many deliveries
    store_failed                           released, however often: it is not the message's fault
    malformed, no_handler, foreign_token   a dead letter at once

Dead letters keep their token: they can be put back into the queue, and are then processed once. Beside the workers,
one thread extends the leases of messages in hand, and the pump periodically recovers what others left and runs the
endpoint's chores. To stop: no more leases, running handlers finish, the rest of each batch is released. When a store or
the transport fails, the messages in hand are released, and the consumer waits with growing backoff until both answer
again; also at startup, because a database may be starting as well.

*Recovery.* A message that was not acknowledged is redelivered, and the next delivery finishes the rest. But a transport
may give up a message, and a source may have no caller that retries, so the pump looks for *stranded* outbox entries. To
finish an entry while another worker does is harmless: one of the two wins. Orphans are tokens whose parent is gone
without having freed them: garbage, of two kinds.

- *of a source* over two stores (see `plans`), whose parent is a mark: read the tokens first, then check whether their
  outbox entry still exists. An entry that is gone has freed its tokens.
- *of a message*: the plan `transactional` frees no tokens, so the tokens of a worker of another plan that lost, on the
  same database, stay. They must be as old as a stranded entry: a worker may still be busy with a discarded parent.

A timestamp in the future was written by a clock that was ahead; its age is unknown, so it counts as old.
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
"""Immediate tries before a message is released: of all workers on one entity, one succeeds each time."""
FOLD_TRIES_MAX: Final = 3
"""In the first of these tries, the messages of one entity are tried together; then each alone."""
CONFLICT_S: Final = 0.1
"""Longest delay of the release after the last try."""
FATAL_MIN: Final = 20
"""`FATAL_TIMES` never applies to fewer deliveries: where the queue cannot count begun messages, half of the others are
processed each time, and none may be set aside with the one that kills."""
FATAL_TIMES: Final = 10
"""Times `attempts_max`: a message delivered so often without any result kills every process that takes it."""
TURN_S: Final = 0.25
"""Wait for a turn at an entity, before checking whether the consumer ends."""
WAIT_MS: Final = 250
"""Wait for a first message; also the longest time to notice that the consumer ends."""
POLL_S: Final = 0.05
HOLD_S: Final = 0.1
"""A handler that takes longer does not block others: most take some milliseconds."""
HELD_MAX: Final = 32
"""Threads that may wait for such handlers, beside the `concurrency` workers."""
LATE_MAX: Final = 1_000
"""Unfinished coroutines; at this number nothing more is leased."""
LATE_WAIT_MS: Final = 20
OUTAGE_S: Final = 0.1
OUTAGE_MAX_S: Final = 30.0
"""Between two probes of a failed store: starts at `OUTAGE_S` and doubles up to this."""
OUTAGES_MAX: Final = 10
"""Failed probes before a consumer with `until_empty` gives up: about 80 s."""
PAGE: Final = 500
"""Entries or tokens read at once: each entry can hold 1,000 messages."""
PURGE_S: Final = 3_600
"""The longest time between two purges of old tombstones. PostgreSQL scans all entities: an index on tombstones would
have to be written with every state."""
PROBE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    concurrency: int = 1
    """Threads. One thread processes a batch in step; coroutine handlers run concurrently anyway."""
    batch: int = 64
    """Messages leased at once: they share round trips and syncs."""
    lease_s: float = 30
    """How long a dead consumer's messages wait; the defaults of SQS and Pub/Sub are 30 and 10 s."""
    attempts_max: int = 10
    """Deliveries of a message whose handler fails, before it is a dead letter."""
    backoff_s: float = 1.0
    """Delay before the second delivery; doubles."""
    backoff_max_s: float = 300
    recover_s: float = 30
    """Between two runs of the pump."""
    stranded_s: float = 60
    """The pump finishes outbox entries older than this: longer than a lease, so it rarely interferes with workers."""
    tombstone_s: float = 7 * 86_400
    """How long the tombstone of a deleted entity is kept: no attempt may last longer."""
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
        """The delay before the next delivery: doubles each time, with jitter.

        >>> 2_000 <= Consuming(backoff_s=1.0, backoff_max_s=300).delay_ms(times=3) <= 4_000
        True
        """
        policy = retry or self
        longest = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** min(times - 1, 60))
        return round(uniform(longest / 2, longest) * 1000)


class ConsumerBooks:
    """Counts of deliveries and verdicts, thread-safe.

    >>> books = ConsumerBooks()
    >>> books.received(3)
    >>> books.judged("applied", 2)
    >>> books.received(-1)
    >>> str(books.tally())
    '2 in = 2 first + 0 repeat + 0 unsure + 0 reject'
    """

    def __init__(self) -> None:
        self.buried = 0
        """Dead letters."""
        self._lock = threading.Lock()
        self._received = 0
        self._counts: Counter[Answer] = Counter()

    def received(self, many: int) -> None:
        """Add leased messages; a negative number takes back messages released untouched, which are leased again."""
        with self._lock:
            self._received += many

    def judged(self, reason: str, many: int = 1) -> None:
        with self._lock:
            self._counts[ANSWERS[reason]] += many

    def set_aside(self) -> None:
        with self._lock:
            self.buried += 1

    def tally(self) -> Tally:
        """Both columns as of now; they differ by the messages in hand."""
        with self._lock:
            return Tally(self._received, self._counts)


class Lot:
    """The work of one thread: messages whose turn has not come yet, and the batch in progress."""

    def __init__(self, messages: Sequence[Work] = (), batch: Batch | None = None) -> None:
        self.messages = list(messages)
        self.batch = batch or Batch()
        self.error: Exception | None = None
        self.ahead = Ahead((), 0, 0)
        """Messages leased with the last commit."""

    def cut(self) -> Lot | None:
        """All but the job with a slow handler, for another thread; None if no handler is slow."""
        batch = self.batch
        with batch.lock:  # blocks the thread of the batch
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
        """The error of the store that it waits for, if any."""
        self.ending = threading.Event()
        """Set when the consumer ends: running handlers finish."""
        self._purge_at = 0.0
        ordered = any(handling.ordered for handling in app.handlers.values())
        self._leases_ahead = app.plan == "local" and not ordered
        self._stop = stop or threading.Event()
        self._errors: list[BaseException] = []
        self._epoch_ms = app.clock_ms() - round(1000 * monotonic())  # the clock's time when monotonic() is 0
        self._lock = threading.Lock()
        self._leased: dict[str, Delivery] = {}
        self._busy: set[Key | str] = set()
        self._freed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._lots: set[Lot] = set()
        self._late: set[Job] = set()
        """Jobs whose coroutines are not finished."""
        self._ready: SimpleQueue[Job] = SimpleQueue()
        """Late jobs whose coroutine is done."""

    def run(self, on_start: Callable[[], object] | None = None) -> Tally:
        """Consume; blocks. Errors that waiting cannot fix are raised."""
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
            while not (self._errors or self._stop.is_set()):
                if (alive := next((each for each in list(self._threads) if each.is_alive()), None)) is None:
                    break
                alive.join(POLL_S)  # not stop.wait: it briefly holds a lock, and a signal handler could deadlock on it
        finally:
            self.ending.set()
            while self._threads:  # a thread may add another meanwhile
                self._threads.pop().join()
            ended.set()
            for thread in (*tending, *self._threads):
                thread.join()
        if self._errors:
            raise self._errors[0]
        return self.books.tally().check()

    def _start(self) -> None:
        """Wait until the stores can be reached; not forever, because the address may be wrong."""
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
            except BaseException as error:  # a thread must not end silently
                self._errors.append(error)
                self.ending.set()

        return threading.Thread(target=guarded, name=f"onefold-{name}", daemon=True)

    def _add_thread(self, name: str, work: Callable[[], None]) -> None:
        thread = self._thread(name, work)
        self._threads.append(thread)
        thread.start()

    def _work(self, lot: Lot | None = None) -> None:
        """Lease and process until the end, or until another thread takes over; ``lot``: work taken over from one."""
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
            if isinstance(error, Misuse | Damaged):  # a retry would not help
                raise error
            if error is not None:
                self._wait_out(error, outages)
                outages, due = outages + 1, monotonic() + settings.backoff_s
            elif outages and (deliveries or monotonic() > due):  # before that, the failed messages are not due again
                outages, self.trouble = 0, None

    def _lease(self, wait_ms: int) -> list[Delivery]:
        """Lease from the ordered queues first: nothing notifies a waiter about them."""
        handlers, settings, world = self.app.handlers, self.settings, self.app.world
        ordered = [handling for handling in handlers.values() if handling.ordered]
        deadline = monotonic() + wait_ms / 1000
        while True:
            for handling in sample(ordered, len(ordered)):

                def turn_of(payload: bytes, handling: Handling = handling) -> str:
                    try:
                        return str(handling.read(unpack_message(payload))[0])
                    except Exception:  # it will become a dead letter
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
        """The late jobs that can continue."""
        jobs: list[Job] = []
        while True:
            try:
                job = self._ready.get_nowait()
            except Empty:
                return jobs
            self._late.discard(job)
            jobs.append(job)

    def _process(self, deliveries: Sequence[Delivery], lot: Lot) -> Exception | None:
        """Process the messages to a verdict; release the rest untouched when the consumer ends or a store fails, and
        return that store's error."""
        if deliveries:
            self.books.received(len(deliveries))
            with self._lock:
                self._leased |= {delivery.receipt: delivery for delivery in deliveries}
            try:
                world = self.app.world
                place = world.local.place if self.app.plan == "local" else world.tokens.realm + "?"
                if again := [delivery for delivery in deliveries if delivery.times > 1]:
                    world.queue.count(again, -1)  # counted again when processing begins, one by one
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
                if len(lot.messages) - conflicts >= len(jobs):  # none succeeded: jitter before the next try
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
        """Begin the messages whose turn it is; False if there are none. Redelivered messages are processed alone."""
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
        """Record the verdicts on a job's messages; put those to be retried at once back into the lot."""
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
                # Parsed again: the handler may have changed the body.
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
        if group[0].handling.ordered and not done and len(again) < len(group):  # later messages of this key must wait
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
        """Have another thread take over the work that waits behind a slow handler."""
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
        """The message with its handler; None if it became a dead letter, or was released because it is not due yet."""
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
        """The time left until it is due; 0 for a delay that began in the future, set by a clock that was ahead."""
        early_ms = message.due_ms - self.app.clock_ms()
        return 0 if message.delay_ms and early_ms > message.delay_ms + STEP_MS else max(0, early_ms)

    def _handler_failed(self, delivery: Delivery, message: Message, failed: HandlerFailed) -> None:
        """Release it for a retry, or make it a dead letter with the traceback."""
        self.books.judged("handler_failed")
        handling, error = self.app.handlers[message.to], failed.__cause__
        if error is not None and (trace := error.__traceback__) is not None:
            error.__traceback__ = trace.tb_next or trace  # without this library's frame
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
        """Release them for redelivery. ``anew``: reset their delivery count; None resets it for messages delivered
        often: one released because a store failed or the consumer ends does not kill processes."""
        often = self.settings.attempts_max
        try:
            for again in (False, True):
                if those := [each for each in deliveries if (each.times >= often if anew is None else anew) is again]:
                    self.app.world.queue.release(those, delay_ms, anew=again)
        except Exception as error:  # then the leases expire
            log.warning("could not give %d messages back: %s", len(deliveries), describe(error))
        self._forget(deliveries)

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        """Stop extending their leases."""
        with self._lock:
            for delivery in deliveries:
                self._leased.pop(delivery.receipt, None)

    def _bury(self, delivery: Delivery, reason: str, error: BaseException | None = None) -> None:
        log.error("set aside: %s", reason.splitlines()[0], exc_info=error)
        try:
            self.app.world.queue.bury([delivery], reason)
        except Exception as error:  # then it is redelivered and judged again
            log.warning("could not set it aside: %s", describe(error))
        else:
            self.books.set_aside()
        self._forget([delivery])

    def _extend_leases(self, ended: threading.Event) -> None:
        """Extend the leases of all messages in hand, three times per lease; acknowledged ones are not affected."""
        while not ended.wait(self.settings.lease_ms / 3000):
            with self._lock:
                leased = list(self._leased.values())
            if not leased:
                continue
            try:
                self.app.world.queue.extend(leased, self.settings.lease_ms)
            except Exception as error:  # if they expire, others get them too: no harm, only work
                log.warning("could not extend %d leases: %s", len(leased), describe(error))

    def _wait_out(self, error: Exception, outages: int) -> None:
        """Wait until the stores answer: leasing now would only add failed deliveries."""
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
            # A clock that was set forward since the start must not age tombstones.
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
                except Exception as error:  # the next run tries again; the other chores still run
                    log.error("the pump: %s", describe(error))
            if self.ending.wait(self.settings.recover_s):
                return


@dataclass(frozen=True, slots=True)
class Recovered:
    finished: int = 0
    """Outbox entries whose messages were sent and which were removed."""
    conflicts: int = 0
    """Entries that another worker was changing; it finishes them, or the next recovery does."""
    swept: int = 0
    """Orphaned tokens that were deleted."""
    purged: int = 0
    """Tombstones that were deleted."""

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(*map(add, astuple(self), astuple(other)))


def recover(app: Endpoint, older_than_s: float, tombstone_s: float | None, *, latest_ms: int = FOREVER_MS) -> Recovered:
    """Recover all that an endpoint left behind; ``latest_ms``: the latest time accepted from the clock.

    It applies only to tombstones, which all stay if ``tombstone_s`` is None. Finishing an entry too early is harmless,
    but deleting a tombstone too early is not: a forgotten request could be made again.
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
    """Finish the stranded entries of one endpoint or of all, and delete orphans. Tombstones stay: how long is a setting
    of the endpoint."""
    before_ms, after_ms = now_ms - round(older_than_s * 1000) + 1, now_ms + STEP_MS
    finished = conflicts = swept = 0
    while stranded := world.entities.stranded(before_ms, PAGE, endpoint, after_ms=after_ms):
        rest = stranded
        while rest:  # one per entity at a time: a second would conflict with the first
            first: dict[Key, Stranded] = {}
            later = [each for each in rest if first.setdefault(each.key, each) is not each]
            found = ends(world, [Job(RECOVERIES[plan](each.key, each.name)) for each in first.values()])
            conflicts += [raised(end) for end in found].count(Outcome.CONFLICT)
            rest = later
        finished += len(stranded)
        if conflicts or len(stranded) < PAGE:  # other workers hold the rest: do not loop
            break
    prefix = "" if endpoint is None else f"{endpoint}/"
    after = ""
    while page := world.tokens.listed(after=after, limit=PAGE, orphans=True):
        of_marks = [token for token in page if MARK in token.parent and token.parent.startswith(prefix)]
        garbage = [token for token in page if MARK not in token.parent and not before_ms <= token.at_ms <= after_ms]
        # The entity whose mark it is: the name of an endpoint contains no slash.
        sources = [Key(*token.parent.rpartition(MARK)[0].partition("/")[::2]) for token in of_marks]
        entities = world.entities.load(sources) if sources else []
        garbage += [token for token, at in zip(of_marks, entities, strict=True) if token.parent not in at.outbox]
        swept += sum(world.tokens.discard(token.token, token.parent) for token in garbage)
        after = page[-1].token
    return Recovered(finished - conflicts, conflicts, swept)
