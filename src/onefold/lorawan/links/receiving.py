"""What a link needs of the service, somebody who takes what it hears; and what links have in common."""

import logging
import time
from collections.abc import Iterable
from typing import Final, Protocol

from onefold.clock import Clock
from onefold.errors import BadInput
from onefold.lorawan.radio import Reception, Region
from onefold.lorawan.rules import BUSY, MALFORMED
from onefold.verdict import Answer

TELL_S: Final = 10.0
"""One line on what gateways do wrong, this often at most: all of it is counted."""
log: Final = logging.getLogger("onefold.gateway")


class Receiver(Protocol):
    """Takes what the links hear."""

    def arrive(self) -> None:
        """Count something that came in: each is heard or refused after that, once, and the books compare the two."""
        ...

    def hear(self, reception: Reception) -> None:
        """Take it, at once; `Busy`: the queue is full, and nothing was taken."""
        ...

    def refuse(self, station: str, answer: Answer, problem: str) -> None: ...

    def transmitted(self, number: int) -> None: ...


class Complaints:
    """What gateways do wrong, in the log: not in silence, and not so often that a stranger could fill a disk."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def tell(self, station: str, problem: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + TELL_S
            log.error("station %s: %s", station, problem)


class CountingLink:
    """A link that counts what happens, by name."""

    def __init__(self, receiver: Receiver, region: Region, clock_ms: Clock, figures: Iterable[str]) -> None:
        self.problem: str | None = None
        """Why it brings nothing in; None: it can, as far as it knows."""
        self._receiver, self._region, self._clock_ms = receiver, region, clock_ms
        self._complaints = Complaints()
        self._counts = dict.fromkeys(figures, 0)

    def _count(self, name: str) -> None:
        self._counts[name] += 1

    def _busy(self, station: str, busy: Exception) -> None:
        self._count("busy")
        self._receiver.refuse(station, BUSY, str(busy))

    def _refuse(self, station: str, error: BadInput) -> None:
        self._count("malformed")
        self._complaints.tell(station, str(error))
        self._receiver.arrive()
        self._receiver.refuse(station, MALFORMED, str(error))

    def _fail(self, who: str, error: Exception) -> None:
        self._count("failed")
        self._complaints.tell(who, f"unexpected: {type(error).__name__}: {error}")
