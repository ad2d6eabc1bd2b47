"""What a consumer keeps account of: every delivery and what was said of it, and what it has on loan."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from onefold.engines.outbox.handling import ANSWERS
from onefold.ports import Delivery, Queue
from onefold.services.outbox.calling import describe
from onefold.tally import Tally
from onefold.verdict import Answer

log: Final = logging.getLogger("onefold.outbox")


class Books:
    """Deliveries as they come in, and verdicts as they are given, by any thread.

    >>> books = Books()
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


class Loans:
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
