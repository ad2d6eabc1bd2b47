"""A consumer: threads that lease batches and process them, until it is stopped or the queues are empty.

Beside them one thread keeps the leases of what is in hand from running out, and one is the pump: now and then it
finishes what others left (see `recovery`) and does the endpoint's chores.

To stop: nothing more is leased, the messages that are being processed are finished, the rest of each batch goes back.
When a store or the transport fails, what was in hand goes back, and the consumer waits, longer each time, until they
answer again. It does not wait at its start: who cannot reach the stores then was given the wrong address.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from onefold.engines.outbox.record import Key
from onefold.errors import Damaged, Misuse
from onefold.services.outbox.batches import Batches, Retrying
from onefold.services.outbox.books import Books, Loans, log
from onefold.services.outbox.calling import describe
from onefold.services.outbox.recovery import SECONDS_MAX, Recovered, recover
from onefold.tally import Tally

if TYPE_CHECKING:
    from onefold.services.outbox.endpoint import Endpoint

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
        self.books = Books()
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
        loans = Loans(self.app.world.queue, round(settings.lease_s * 1000))
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
