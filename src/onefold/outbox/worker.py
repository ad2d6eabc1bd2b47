"""A consumer: threads that lease batches and process them, until it is stopped or the queues are empty.

Beside them one thread keeps the leases of what is in hand from running out, and one is the pump: now and then it
finishes what others left (see `recovery`) and does the endpoint's chores.

To stop: nothing more is leased, the messages that are being processed are finished, the rest of each batch goes back.
When a store or the transport fails, what was in hand goes back, and the consumer waits, longer each time, until they
answer again. It does not wait at its start: who cannot reach the stores then was given the wrong address.

What a consumer keeps account of: every delivery and what was said of it, and what it has on loan.

Turns at entities, among the threads of one process.

Two threads at one entity do no harm: one is told so by the store, and tries again. But where a whole queue is about one
entity they would do little else. So a thread takes the entities of a round, and leaves those that another one has.

A leased batch: read, processed in rounds, and given back where it must come again.

All messages of a round go through their plan in step; no two of them are of one entity, for the second would find its
entity changed. So it waits for the next round, inside the same lease.

    applied, resumed, duplicate, tidied    acknowledged by the plan
    conflict                               tried again at once a few times, then released
    handler_failed                         released, each time for longer; after `attempts_max` deliveries a dead letter
    it killed every process that took it   a dead letter after ten times as many
    store_failed                           released, however often: the message cannot help it
    malformed, no_handler, foreign_token   a dead letter at once

Dead letters keep their token: they can be dug up, and are processed then, once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold.errors import BadInput, Damaged, Misuse, OnefoldError
from onefold.outbox.plans import ANSWERS
from onefold.outbox.ports import Delivery, Parcel, Queue
from onefold.outbox.recovery import SECONDS_MAX, Recovered, recover
from onefold.outbox.runner import HandlerFailed, Work, attempt, describe
from onefold.outbox.steps import Key, Outcome, unpack_message
from onefold.tally import Tally
from onefold.verdict import Answer

if TYPE_CHECKING:
    from onefold.outbox.endpoint import Endpoint

log: Final = logging.getLogger("onefold.outbox")


class WorkerBooks:
    """Deliveries as they come in, and verdicts as they are given, by any thread.

    >>> books = WorkerBooks()
    >>> books.received(3)
    >>> books.judged("applied", 2)
    >>> books.given_back(1)
    >>> str(books.tally())
    '2 in = 2 first + 0 repeat + 0 unsure + 0 reject'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received = 0
        self._counts: Counter[Answer] = Counter()
        self._buried = 0

    @property
    def buried(self) -> int:
        """How many were set aside as dead letters."""
        return self._buried

    def received(self, many: int) -> None:
        """So many were leased."""
        with self._lock:
            self._received += many

    def given_back(self, many: int) -> None:
        """So many were released untouched: they come in another time."""
        with self._lock:
            self._received -= many

    def judged(self, reason: str, many: int = 1) -> None:
        """So many ended like this."""
        with self._lock:
            self._counts[ANSWERS[reason]] += many

    def set_aside(self) -> None:
        """One more is a dead letter."""
        with self._lock:
            self._buried += 1

    def tally(self) -> Tally:
        """What the two columns say now; while a batch is in hand they differ by it."""
        with self._lock:
            return Tally(self._received, self._counts)


class LeasedMessages:
    """What is on loan from the transport: as long as it is in hand, its leases are kept from running out."""

    def __init__(self, queue: Queue, lease_ms: int) -> None:
        self._queue = queue
        self._lease_ms = lease_ms
        self._lock = threading.Lock()
        self._in_hand: dict[str, Delivery] = {}

    @contextmanager
    def of(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """They are in hand until this ends, or until they are `returned`."""
        with self._lock:
            self._in_hand |= {delivery.receipt: delivery for delivery in deliveries}
        try:
            yield
        finally:
            self.returned(deliveries)

    def returned(self, deliveries: Iterable[Delivery]) -> None:
        """They are acknowledged, released or set aside."""
        with self._lock:
            for delivery in deliveries:
                self._in_hand.pop(delivery.receipt, None)

    def keep(self, ended: threading.Event) -> None:
        """Extend the leases of all in hand, three times in the time of one, until this is over."""
        while not ended.wait(self._lease_ms / 3000):
            with self._lock:
                in_hand = list(self._in_hand.values())
            if not in_hand:
                continue
            try:
                self._queue.extend(in_hand, self._lease_ms)
            except Exception as error:  # if they run out, others get them too: no harm, only work
                log.warning("could not extend %d leases: %s", len(in_hand), describe(error))


class EntityTurns:
    """Who is at which entity. Turns are short, a round each, and nobody waits for one while having another."""

    def __init__(self) -> None:
        self._taken: set[Key] = set()
        self._given = threading.Condition()

    @contextmanager
    def at(self, keys: Sequence[Key], wait_s: float) -> Iterator[set[Key]]:
        """Those of the entities that are free, until this ends; if none is, the first to become so."""
        with self._given:
            self._given.wait_for(lambda: not self._taken.issuperset(keys), wait_s)
            ours = set(keys) - self._taken
            self._taken |= ours
        try:
            yield ours
        finally:
            self._give(ours)

    def _give(self, keys: Iterable[Key]) -> None:
        with self._given:
            self._taken.difference_update(keys)
            self._given.notify_all()


CONFLICT_TRIES_MAX: Final = 8
"""At once, before a message is released: of all who are at one entity, one gets through each time."""
FATAL_TIMES: Final = 10
"""Times `attempts_max`: a message that was given out so often and never came to any end kills whoever takes it."""
CONFLICT_S: Final = 0.1
"""So long, at most, it is released then."""
TURN_S: Final = 0.25
"""For a turn at an entity; then it is looked whether the consumer ends."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """How often a message that fails comes again, and when."""

    attempts_max: int
    backoff_s: float
    backoff_max_s: float

    def delay_ms(self, times: int) -> int:
        """Before the next delivery: twice as long each time, and not the same for all.

        >>> 2_000 <= Retrying(10, backoff_s=1.0, backoff_max_s=300).delay_ms(times=3) <= 4_000
        True
        """
        longest = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(times - 1, 60))
        return round(uniform(longest / 2, longest) * 1000)


class Held(NamedTuple):
    """A message in hand."""

    delivery: Delivery
    work: Work
    tries: int = 1
    """This one included, since it was leased."""


class Batches:
    """Processes what was leased; the threads of a consumer share one."""

    def __init__(
        self, app: Endpoint, retrying: Retrying, books: WorkerBooks, loans: LeasedMessages, ending: threading.Event
    ) -> None:  # fmt: skip
        self._app, self._world = app, app.world
        self._retrying, self._books, self._loans, self._ending = retrying, books, loans, ending
        self._turns = EntityTurns()

    def process(self, deliveries: Sequence[Delivery]) -> Exception | None:
        """Give each its verdict, or give it back untouched: at the end of the consumer, or because a store failed.

        What the store raised is returned. `Misuse` and `Damaged` are raised: to go on would not help.
        """
        self._books.received(len(deliveries))
        with self._loans.of(deliveries):
            try:
                realm = self._world.tokens.realm
            except Exception as error:
                self._store_failed(deliveries)
                return _bearable(error)
            left = [held for each in deliveries if (held := self._read(each, realm)) is not None]
            failed: Exception | None = None
            while left and failed is None and not self._ending.is_set():
                with self._turns.at([held.work.key for held in left], TURN_S) as ours:
                    now, later = _parted(left, ours)
                    failed, again = self._round(now)
                left = later + again
            self._books.given_back(len(left))
            self._release([held.delivery for held in left])
        return None if failed is None else _bearable(failed)

    def _read(self, delivery: Delivery, realm: str) -> Held | None:
        reason = "malformed"
        try:
            if delivery.times > FATAL_TIMES * self._retrying.attempts_max:
                reason = "handler_failed"
                raise BadInput(f"it was given out {delivery.times} times and came to no end: does it kill the process?")
            message = unpack_message(delivery.payload)
            if message.to not in self._app.handlers:
                reason = "no_handler"
                raise BadInput(f"{self._app.name} has no handler for {message.to!r:.300}")
            if message.to != delivery.queue:
                raise BadInput(f"it is for {message.to!r} and came by {delivery.queue!r}")
            if message.realm != realm:
                reason = "foreign_token"
                raise BadInput(f"its token is kept in {message.realm!r:.300}, not in {realm!r}")
            return Held(delivery, self._app.work(message, delivery))
        except BaseException as error:  # a key function can raise anything
            self._bury(delivery, f"{reason}: {error if isinstance(error, OnefoldError) else describe(error)}")
            self._books.judged(reason)
            return None

    def _round(self, now: Sequence[Held]) -> tuple[Exception | None, list[Held]]:
        """Attempt each once: the error of a store, if one failed, and those to be tried again at once."""
        ended = attempt(self._world, self._app.plan, [held.work for held in now], self._app.loop)
        errors: list[tuple[Delivery, Exception]] = []
        again: list[Held] = []
        for held, end in zip(now, ended, strict=True):
            if end is Outcome.CONFLICT:
                again += self._conflicted(held)
            elif isinstance(end, Outcome):
                self._books.judged(str(end))
            elif isinstance(end, HandlerFailed):
                self._handler_failed(held.delivery, end)
            else:
                errors.append((held.delivery, end))
        self._loans.returned({held.delivery for held in now} - {held.delivery for held in again})
        self._store_failed([delivery for delivery, _ in errors])
        if again and len(again) == len(now):  # nobody got through: not all at the same time again
            sleep(uniform(0, 0.001 * 2 ** again[0].tries))
        return (errors[0][1] if errors else None), again

    def _conflicted(self, held: Held) -> list[Held]:
        if held.tries < CONFLICT_TRIES_MAX:
            # Read anew: the handler may have changed the body that it was given.
            work = replace(held.work, message=unpack_message(held.delivery.payload))
            return [Held(held.delivery, work, held.tries + 1)]
        self._release([held.delivery], round(uniform(0, CONFLICT_S) * 1000))
        self._books.judged("conflict")
        return []

    def _handler_failed(self, delivery: Delivery, error: HandlerFailed) -> None:
        self._books.judged("handler_failed")
        if delivery.times >= self._retrying.attempts_max:
            self._bury(delivery, f"{error} (delivery {delivery.times})")
        else:
            log.warning("%s (delivery %d of %d)", error, delivery.times, self._retrying.attempts_max)
            self._release([delivery], self._retrying.delay_ms(delivery.times))

    def _store_failed(self, deliveries: Sequence[Delivery]) -> None:
        self._books.judged("store_failed", len(deliveries))
        self._release(deliveries, self._retrying.delay_ms(1))

    def _release(self, deliveries: Sequence[Delivery], delay_ms: int = 0) -> None:
        """Let them come again. What was given out often becomes a new parcel, whose deliveries count from one: what a
        store, or the end of a consumer, sent back does not kill whoever takes it. A copy does no harm."""
        queue, often = self._world.queue, self._retrying.attempts_max
        anew = [delivery for delivery in deliveries if delivery.times >= often]
        back = [delivery for delivery in deliveries if delivery.times < often]
        try:
            if anew:
                queue.send([Parcel(delivery.queue, delivery.payload) for delivery in anew])
                queue.acknowledge(anew)
            if back:
                queue.release(back, delay_ms)
        except Exception as error:  # then the leases run out
            log.warning("could not give %d messages back: %s", len(deliveries), describe(error))

    def _bury(self, delivery: Delivery, reason: str) -> None:
        log.error("set aside: %s", reason)
        try:
            self._world.queue.bury([delivery], reason)
        except Exception as error:  # then it comes again, and is judged again
            log.warning("could not set it aside: %s", describe(error))
        else:
            self._books.set_aside()


def _bearable(error: Exception) -> Exception:
    if isinstance(error, Misuse | Damaged):
        raise error
    return error


def _parted(left: Sequence[Held], ours: set[Key]) -> tuple[list[Held], list[Held]]:
    """The first message of each entity that is ours, and the others."""
    first: dict[Key, Held] = {}
    later = [held for held in left if held.work.key not in ours or first.setdefault(held.work.key, held) is not held]
    return list(first.values()), later


WAIT_MS: Final = 250
"""For a first message; so long it takes, at most, to notice the end."""
POLL_S: Final = 0.05
OUTAGE_S: Final = 0.1
OUTAGE_MAX_S: Final = 30.0
"""Between two looks whether a store answers again: it begins with the first and doubles."""
OUTAGES_MAX: Final = 10
"""Looks in vain before a consumer that is to empty its queues gives up: about 80 s."""
PROBE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """How a consumer works."""

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
        for name in ("concurrency", "batch", "attempts_max"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise Misuse(f"{name} is {value!r}, must be a whole number of at least 1", **{name: value})
        leasts = {"lease_s": 0.01, "recover_s": 0.01}
        for name in ("lease_s", "recover_s", "backoff_s", "backoff_max_s", "stranded_s", "tombstone_s"):
            value, least = getattr(self, name), leasts.get(name, 0)
            if not least <= value <= SECONDS_MAX:
                raise Misuse(f"{name} is {value}, must be from {least} to {SECONDS_MAX:,}", **{name: value})


class Consumer:
    """One run over the queues of an endpoint."""

    def __init__(
        self, app: Endpoint, settings: Consuming | None = None, *, stop: threading.Event | None = None
    ) -> None:  # fmt: skip
        if not app.handlers:
            raise Misuse(f"{app.name} has no handlers: there is nothing to consume")
        self.app = app
        self.settings = settings or Consuming()
        self.books = WorkerBooks()
        self.recovered = Recovered()
        self.trouble: str | None = None
        """Why it waits, if it does: what a store said."""
        self._stop = stop or threading.Event()
        self.ending = threading.Event()
        """Set when it ends: what is in hand is finished."""
        self._errors: list[BaseException] = []
        self._epoch_ms = app.clock_ms() - round(1000 * monotonic())  # what the clock says when monotonic() is 0

    def run(self, on_start: Callable[[], object] | None = None) -> Tally:
        """Consume; blocks. What cannot be mended by waiting is raised."""
        self._probe()
        for warning in self.app.world.tokens.warnings():
            log.warning("%s", warning)
        settings = self.settings
        loans = LeasedMessages(self.app.world.queue, round(settings.lease_s * 1000))
        retrying = Retrying(settings.attempts_max, settings.backoff_s, settings.backoff_max_s)
        batches = Batches(self.app, retrying, self.books, loans, self.ending)
        workers = [self._thread("consumer", lambda: self._work(batches)) for _ in range(settings.concurrency)]
        ended = threading.Event()
        tending = [self._thread("leases", lambda: loans.keep(ended)), self._thread("pump", self._pump)]
        for thread in (*workers, *tending):
            thread.start()
        try:
            if on_start is not None:
                on_start()
            self._wait_for(workers)
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

    def _wait_for(self, workers: list[threading.Thread]) -> None:
        while not (self._errors or self._stop.is_set()) and any(worker.is_alive() for worker in workers):
            sleep(POLL_S)  # not stop.wait: that has a lock now and then, for which a signal that sets it would wait

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # a thread must not end without a word
                self._errors.append(error)
                self.ending.set()

        return threading.Thread(target=guarded, name=f"onefold-{name}", daemon=True)

    def _work(self, batches: Batches) -> None:
        queue, settings, queues = self.app.world.queue, self.settings, list(self.app.handlers)
        outages, due = 0, 0.0
        while not self.ending.is_set():
            try:
                deliveries = queue.lease(queues, settings.batch, round(settings.lease_s * 1000), WAIT_MS)
                if not deliveries and settings.until_empty and self._is_empty(queues):
                    return
                error = batches.process(deliveries) if deliveries else None
            except (Misuse, Damaged):
                raise
            except Exception as failed:
                error = failed
            if error is not None:
                self._wait_out(error, outages)
                outages, due = outages + 1, monotonic() + settings.backoff_s
            elif outages and (deliveries or monotonic() > due):  # before that, what failed has not come again
                outages, self.trouble = 0, None

    def _is_empty(self, queues: list[str]) -> bool:
        waiting = self.app.world.queue.waiting()
        return not any(waiting.get(queue) for queue in queues)

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
        """Whether all three answer."""
        world = self.app.world
        world.entities.load([Key(self.app.name, PROBE)])
        world.tokens.holds([PROBE])
        world.queue.waiting()

    def _pump(self) -> None:
        while True:
            for chore in (self._recover, *self.app.chores):
                try:
                    chore()
                except Exception as error:  # the next run finds the same; the other chores are done
                    log.error("the pump: %s", describe(error))
            if self.ending.wait(self.settings.recover_s):
                return

    def _recover(self) -> None:
        latest_ms = self._epoch_ms + round(1000 * monotonic())  # a clock that was set ahead since makes nothing older
        settings = self.settings
        self.recovered += recover(self.app, settings.stranded_s, settings.tombstone_s, latest_ms=latest_ms)
