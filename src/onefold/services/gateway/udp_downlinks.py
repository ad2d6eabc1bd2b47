"""The downlinks that a gateway did not answer yet: what it takes to try the second window when it refuses the first."""

import secrets
from collections import OrderedDict
from typing import NamedTuple

from onefold.services.gateway.reception import Downlink


class Sent(NamedTuple):
    """A downlink that was handed to a gateway."""

    downlink: Downlink
    ticks: int
    """The concentrator's clock at the end of the uplink."""
    second: bool
    """It was for the second window already."""
    at_s: float


class Unanswered:
    """By gateway and token. Bounded: what waits too long, or is too much, waits no more."""

    def __init__(self, *, unanswered_max: int, unanswered_s: float) -> None:
        self._max = unanswered_max
        self._wait_s = unanswered_s
        self._sent: OrderedDict[tuple[int, bytes], Sent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def token(self, eui: int) -> bytes:
        """One that no downlink of this gateway waits under, and that nobody can guess."""
        token = secrets.token_bytes(2)
        while (eui, token) in self._sent:
            token = secrets.token_bytes(2)
        return token

    def wait(self, eui: int, token: bytes, sent: Sent) -> None:
        """An answer is expected."""
        while self._sent:
            oldest = next(iter(self._sent.values()))
            if len(self._sent) < self._max and sent.at_s - oldest.at_s <= self._wait_s:
                break
            self._sent.popitem(last=False)
        self._sent[eui, token] = sent

    def waits(self, eui: int, token: bytes) -> bool:
        """Is an answer expected under this token?"""
        return (eui, token) in self._sent

    def answered(self, eui: int, token: bytes) -> Sent:
        """What this is the answer to."""
        return self._sent.pop((eui, token))
