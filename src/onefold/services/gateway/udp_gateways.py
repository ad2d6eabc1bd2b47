"""Where the gateways are, as far as their PULL_DATA says: the way back through whatever NAT lies between.

Each polls every few seconds (10 by default, the forwarder calls it the keepalive); the last address is where its
downlinks go. Nobody proves who he is, so the first comer is believed while he goes on polling: another *host* with the
same EUI gets nothing until the first was silent for ``silent_s``. Another port of the same host is a NAT that moved, or
a restart.
"""

from collections import OrderedDict
from typing import NamedTuple

from onefold.services.gateway.udp_allow import address


class Gateway(NamedTuple):
    """The way back to a gateway."""

    peer: tuple[str | int, ...]
    """As the socket gave it: two items, four for IPv6."""
    version: int
    last_s: float


class Gateways:
    """The gateways that poll. Bounded: when it is full a new one is not taken while all others are alive."""

    def __init__(self, *, gateways_max: int = 1_000, silent_s: float = 30, expiry_s: float = 60) -> None:
        self._gateways_max = gateways_max
        self._silent_s = silent_s
        self._expiry_s = expiry_s
        self._known: OrderedDict[int, Gateway] = OrderedDict()  # who polled last comes last

    def __len__(self) -> int:
        return len(self._known)

    def poll(self, eui: int, peer: tuple[str | int, ...], version: int, now_s: float) -> str | None:
        """This gateway polled from there; None: noted, else why not: ``moved`` or ``full``."""
        self._expire(now_s)
        known = self._known.get(eui)
        if known is None and len(self._known) >= self._gateways_max:
            return "full"
        if known is not None and not _same_host(known.peer, peer) and now_s - known.last_s < self._silent_s:
            return "moved"
        self._known[eui] = Gateway(peer, version, now_s)
        self._known.move_to_end(eui)
        return None

    def find(self, eui: int, now_s: float) -> Gateway | None:
        """Where this gateway is; None: it never polled, or not for so long that the way is closed."""
        self._expire(now_s)
        return self._known.get(eui)

    def is_at(self, eui: int, peer: tuple[str | int, ...], now_s: float) -> bool:
        """Does this come from the host that polls for it?"""
        known = self.find(eui, now_s)
        return known is not None and _same_host(known.peer, peer)

    def _expire(self, now_s: float) -> None:
        while self._known:
            eui, oldest = next(iter(self._known.items()))
            if now_s - oldest.last_s < self._expiry_s:
                return
            del self._known[eui]


def _same_host(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> bool:
    return one[0] == other[0] or address(str(one[0])) == address(str(other[0]))
