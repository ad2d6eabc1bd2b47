"""A consumer: threads that lease batches and process them, until it is stopped or the queues are empty.

A leased batch is processed in rounds. All messages of a round go through their plan in step; no two of them are of one
entity, for the second would find its entity changed. So it waits for the next round, inside the same lease.

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
again. It does not wait at its start: who cannot reach the stores then was given the wrong address.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from operator import add
from random import uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold.errors import BadInput, Damaged, Misuse, OnefoldError, StoreFailed
from onefold.outbox.plans import (
    ANSWERS,
    MARK,
    RECOVERIES,
    SECONDS_MAX,
    HandlerFailed,
    Key,
    Message,
    Outcome,
    Retry,
    check_retry,
    unpack_message,
)
from onefold.outbox.ports import FOREVER_MS, REASON_MAX, STEP_MS, Delivery, Parcel, Stranded
from onefold.outbox.runner import Job, Work, World, attempt, describe, raised, run
from onefold.tally import Tally
from onefold.verdict import Answer

if TYPE_CHECKING:
    from onefold.outbox.endpoint import Endpoint

log: Final = logging.getLogger("onefold.outbox")

CONFLICT_TRIES_MAX: Final = 8
"""At once, before a message is released: of all who are at one entity, one gets through each time."""
CONFLICT_S: Final = 0.1
"""So long, at most, it is released then."""
FATAL_TIMES: Final = 10
"""Times `attempts_max`: a message that was given out so often and never came to any end kills whoever takes it."""
TURN_S: Final = 0.25
"""For a turn at an entity; then it is looked whether the consumer ends."""
WAIT_MS: Final = 250
"""For a first message; so long it takes, at most, to notice the end."""
POLL_S: Final = 0.05
OUTAGE_S: Final = 0.1
OUTAGE_MAX_S: Final = 30.0
"""Between two looks whether a store answers again: it begins with the first and doubles."""
OUTAGES_MAX: Final = 10
"""Looks in vain before a consumer that is to empty its queues gives up: about 80 s."""
PAGE: Final = 500
"""Entries, or tokens, that are read at once: each entry can hold 1,000 messages."""
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


class InHand(NamedTuple):
    delivery: Delivery
    work: Work
    tries: int = 1
    """This one included, since it was leased."""


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
        self._stop = stop or threading.Event()
        self._errors: list[BaseException] = []
        self._epoch_ms = app.clock_ms() - round(1000 * monotonic())  # what the clock says when monotonic() is 0
        self._lock = threading.Lock()
        self._leased: dict[str, Delivery] = {}
        self._busy: set[Key] = set()
        self._freed = threading.Condition()

    def run(self, on_start: Callable[[], object] | None = None) -> Tally:
        """Consume; blocks. What cannot be mended by waiting is raised."""
        self._probe()
        for warning in self.app.world.tokens.warnings():
            log.warning("%s", warning)
        ended = threading.Event()
        workers = [self._thread("consumer", self._work) for _ in range(self.settings.concurrency)]
        tending = [self._thread("leases", lambda: self._extend_leases(ended)), self._thread("pump", self._pump)]
        for thread in (*workers, *tending):
            thread.start()
        try:
            if on_start is not None:
                on_start()
            while not (self._errors or self._stop.is_set()) and any(worker.is_alive() for worker in workers):
                sleep(POLL_S)  # not stop.wait: that has a lock now and then, for which a signal handler would wait
        finally:
            self.ending.set()
            for thread in workers:
                thread.join()
            ended.set()
            for thread in tending:
                thread.join()
        if self._errors:
            raise self._errors[0]
        return self.books.tally().check()

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # a thread must not end without a word
                self._errors.append(error)
                self.ending.set()

        return threading.Thread(target=guarded, name=f"onefold-{name}", daemon=True)

    def _work(self) -> None:
        queue, settings, queues = self.app.world.queue, self.settings, list(self.app.handlers)
        outages, due = 0, 0.0
        while not self.ending.is_set():
            deliveries: list[Delivery] = []
            try:
                deliveries = self._lease(queues)
                if not deliveries and settings.until_empty:
                    waiting = queue.waiting()
                    if not any(waiting.get(name) for name in queues):
                        return
                error = self._process(deliveries) if deliveries else None
            except Exception as failed:
                error = failed
            if isinstance(error, Misuse | Damaged):  # to go on would not help
                raise error
            if error is not None:
                self._wait_out(error, outages)
                outages, due = outages + 1, monotonic() + settings.backoff_s
            elif outages and (deliveries or monotonic() > due):  # before that, what failed has not come again
                outages, self.trouble = 0, None

    def _lease(self, queues: Sequence[str]) -> list[Delivery]:
        """A batch: of the queues of the highest priority first; if none has anything, the first that comes."""
        lease, settings, handlers = self.app.world.queue.lease, self.settings, self.app.handlers
        priorities = sorted({handlers[queue].priority for queue in queues}, reverse=True)
        deliveries: list[Delivery] = []
        for priority in priorities if len(priorities) > 1 else ():
            if room := settings.batch - len(deliveries):
                equals = [queue for queue in queues if handlers[queue].priority == priority]
                try:
                    deliveries += lease(equals, room, settings.lease_ms, 0)
                except StoreFailed:
                    if not deliveries:
                        raise
        return deliveries or lease(queues, settings.batch, settings.lease_ms, WAIT_MS)

    def _process(self, deliveries: Sequence[Delivery]) -> Exception | None:
        """Give each its verdict, or give it back untouched when the consumer ends or a store fails, whose error is
        returned."""
        self.books.received(len(deliveries))
        with self._lock:
            self._leased |= {delivery.receipt: delivery for delivery in deliveries}
        try:
            try:
                realm = self.app.world.tokens.realm
            except Exception as error:
                self._store_failed(deliveries)
                return error
            messages = [message for each in deliveries if (message := self._read(each, realm)) is not None]
            failed: Exception | None = None
            while messages and failed is None and not self.ending.is_set():
                with self._turns([message.work.key for message in messages]) as ours:
                    first: dict[Key, InHand] = {}
                    later = [
                        message
                        for message in messages
                        if message.work.key not in ours or first.setdefault(message.work.key, message) is not message
                    ]
                    failed, again = self._round(list(first.values()))
                messages = later + again
            self.books.received(-len(messages))
            self._release([message.delivery for message in messages])
        finally:
            with self._lock:
                for delivery in deliveries:
                    self._leased.pop(delivery.receipt, None)
        return failed

    def _read(self, delivery: Delivery, realm: str) -> InHand | None:
        """The message with its handler; None: it is set aside."""
        reason = "malformed"
        try:
            if delivery.times > FATAL_TIMES * self.settings.attempts_max:
                reason = "handler_failed"
                raise BadInput(f"it was given out {delivery.times} times and came to no end: does it kill the process?")
            message = unpack_message(delivery.payload)
            if message.to not in self.app.handlers:
                reason = "no_handler"
                raise BadInput(f"{self.app.name} has no handler for {message.to!r:.300}")
            if message.to != delivery.queue:
                raise BadInput(f"it is for {message.to!r} and came by {delivery.queue!r}")
            if message.realm != realm:
                reason = "foreign_token"
                raise BadInput(f"its token is kept in {message.realm!r:.300}, not in {realm!r}")
            if wait_ms := self._early_ms(message):
                self.books.received(-1)
                self._give_back([delivery], wait_ms)
                return None
            return InHand(delivery, self.app.work(message, delivery))
        except BaseException as error:  # a key function can raise anything
            self._bury(delivery, f"{reason}: {error if isinstance(error, OnefoldError) else describe(error)}")
            self.books.judged(reason)
            return None

    def _early_ms(self, message: Message) -> int:
        """How long it has to wait yet. A delay that began later than it is now was told by a clock that was ahead."""
        early_ms = message.due_ms - self.app.clock_ms() if message.due_ms else 0
        return 0 if message.delay_ms and early_ms > message.delay_ms + STEP_MS else max(0, early_ms)

    @contextmanager
    def _turns(self, keys: Sequence[Key]) -> Iterator[set[Key]]:
        """Those of the entities that no other thread is at, until this ends; if there are none, the first to be free.
        Two threads at one entity do no harm, but where a whole queue is about one entity they would do little else than
        try again. Nobody waits for a turn while having another."""
        with self._freed:
            self._freed.wait_for(lambda: not self._busy.issuperset(keys), TURN_S)
            ours = set(keys) - self._busy
            self._busy |= ours
        try:
            yield ours
        finally:
            with self._freed:
                self._busy -= ours
                self._freed.notify_all()

    def _round(self, messages: Sequence[InHand]) -> tuple[Exception | None, list[InHand]]:
        """Attempt each once: the error of a store, if one failed, and those to be tried again at once."""
        works = [message.work for message in messages]
        ends = attempt(self.app.world, self.app.plan, works, self.app.loop, self.app.clock_ms())
        errors: dict[Delivery, Exception] = {}
        again: list[InHand] = []
        for message, end in zip(messages, ends, strict=True):
            delivery, work, tries = message
            if end is Outcome.CONFLICT and tries < CONFLICT_TRIES_MAX:
                # Read anew: the handler may have changed the body that it was given.
                anew = self.app.handlers[work.message.to].typed(unpack_message(delivery.payload))
                again.append(InHand(delivery, work._replace(message=anew), tries + 1))
            elif end is Outcome.CONFLICT:
                self._release([delivery], round(uniform(0, CONFLICT_S) * 1000))
                self.books.judged("conflict")
            elif isinstance(end, Outcome):
                self.books.judged(str(end))
            elif not isinstance(end, HandlerFailed):
                errors[delivery] = end
            else:
                self._handler_failed(delivery, work.message, end)
        self._store_failed(list(errors))
        if again and len(again) == len(messages):  # nobody got through: not all at the same time again
            sleep(uniform(0, 0.001 * 2 ** again[0].tries))
        return next(iter(errors.values()), None), again

    def _handler_failed(self, delivery: Delivery, message: Message, failed: HandlerFailed) -> None:
        """Let it come again, or set it aside, with the traceback; one that came too early once counts that not."""
        self.books.judged("handler_failed")
        handling, error = self.app.handlers[message.to], failed.__cause__
        times, attempts_max = delivery.times - bool(message.due_ms), (handling.retry or self.settings).attempts_max
        if isinstance(error, handling.fatal) or times >= attempts_max:
            head = f"{failed} (delivery {times}{', fatal' if isinstance(error, handling.fatal) else ''})"
            lines = "".join(traceback.format_exception(error)) if error is not None else ""
            self._bury(delivery, f"{head}\n{lines[-max(1, REASON_MAX - len(head) - 1) :]}", error)
        else:
            log.warning("%s (delivery %d of %d)", failed, times, attempts_max, exc_info=error)
            self._give_back([delivery], self.settings.delay_ms(times, handling.retry))

    def _store_failed(self, deliveries: Sequence[Delivery]) -> None:
        self.books.judged("store_failed", len(deliveries))
        self._release(deliveries, self.settings.delay_ms(1))

    def _release(self, deliveries: Sequence[Delivery], delay_ms: int = 0) -> None:
        """Let them come again. What was given out often becomes a new parcel, whose deliveries count from one: what a
        store, or the end of a consumer, sent back does not kill whoever takes it. A copy does no harm."""
        queue, often = self.app.world.queue, self.settings.attempts_max
        anew = [delivery for delivery in deliveries if delivery.times >= often]
        try:
            if anew:
                queue.send([Parcel(delivery.queue, delivery.payload) for delivery in anew])
                queue.acknowledge(anew)
        except Exception as error:  # then the leases run out
            log.warning("could not give %d messages back: %s", len(anew), describe(error))
        self._give_back([delivery for delivery in deliveries if delivery.times < often], delay_ms)

    def _give_back(self, deliveries: Sequence[Delivery], delay_ms: int) -> None:
        try:
            if deliveries:
                self.app.world.queue.release(deliveries, delay_ms)
        except Exception as error:  # then the leases run out
            log.warning("could not give %d messages back: %s", len(deliveries), describe(error))

    def _bury(self, delivery: Delivery, reason: str, error: BaseException | None = None) -> None:
        log.error("set aside: %s", reason.splitlines()[0], exc_info=error)
        try:
            self.app.world.queue.bury([delivery], reason)
        except Exception as error:  # then it comes again, and is judged again
            log.warning("could not set it aside: %s", describe(error))
        else:
            self.books.set_aside()

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
            settings = self.settings
            self.recovered += recover(self.app, settings.stranded_s, settings.tombstone_s, latest_ms=latest_ms)

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


def recover(app: Endpoint, older_than_s: float, tombstone_s: float, *, latest_ms: int = FOREVER_MS) -> Recovered:
    """Recover all that an endpoint left behind; ``latest_ms``: no later than this is believed of the clock.

    That is for tombstones alone. To finish an entry too early does no harm, but what a tombstone remembers is gone with
    it: a request that was forgotten could be made again.
    """
    if not (0 <= older_than_s <= SECONDS_MAX and 0 <= tombstone_s <= SECONDS_MAX):
        raise Misuse(f"older_than_s is {older_than_s}, tombstone_s {tombstone_s}: must be from 0 to {SECONDS_MAX:,}")
    now_ms = app.clock_ms()
    recovered = recover_stores(app.world, now_ms, older_than_s, app.name, app.plan)
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
            ends = run(world, [Job(RECOVERIES[plan](each.key, each.name)) for each in first.values()])
            conflicts += [raised(end) for end in ends].count(Outcome.CONFLICT)
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
