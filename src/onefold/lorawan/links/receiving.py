"""What a link needs of the service, somebody who takes what it hears; and what the operator is told by a link."""

import logging
import time
from typing import Final, Protocol

from onefold.lorawan.radio import Reception, Region
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

    def refuse(self, station: str, answer: Answer, problem: str) -> None:
        """Something came from this station that is not a reception."""
        ...

    def transmitted(self, number: int) -> None:
        """A station says that it transmits the downlink of this number."""
        ...


def power_dbm(region: Region) -> int:
    """How strong to transmit (EIRP), as ChirpStack does: gateways refuse what they cannot, and many cannot do more.

    >>> from onefold.lorawan.radio import EU868, region
    >>> power_dbm(EU868), power_dbm(region("US915"))
    (14, 20)
    """
    return min(20, int(region.max_eirp) - 2)


class Complaints:
    """What gateways do wrong, in the log: not in silence, and not so often that a stranger could fill a disk."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def tell(self, station: str, problem: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + TELL_S
            log.error("station %s: %s", station, problem)
