"""A leased batch: read, processed in rounds, and given back where it must come again.

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

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import uniform
from time import sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from onefold.engines.outbox.record import Key, unpack_message
from onefold.engines.outbox.steps import Outcome
from onefold.errors import BadInput, Damaged, Misuse, OnefoldError
from onefold.ports import Delivery, Parcel
from onefold.services.outbox.books import Books, Loans, log
from onefold.services.outbox.calling import HandlerFailed, describe
from onefold.services.outbox.processing import Work, attempt
from onefold.services.outbox.turns import Turns

if TYPE_CHECKING:
    from onefold.services.outbox.endpoint import Endpoint

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
        self, app: Endpoint, retrying: Retrying, books: Books, loans: Loans, ending: threading.Event
    ) -> None:  # fmt: skip
        self._app, self._world = app, app.world
        self._retrying, self._books, self._loans, self._ending = retrying, books, loans, ending
        self._turns = Turns()

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
