"""Which gateways may speak UDP to this server.

The protocol has no authentication: whoever reaches the port can claim any EUI. So the server only listens on loopback
unless it is told whom to believe, entry by entry; one that fits is enough:

- ``10.0.0.0/8``: any gateway of this network (the strongest that the protocol allows: a private network or a VPN),
- ``0016c001ff10a235``: this gateway from anywhere, which keeps out strays, not liars,
- ``0016c001ff10a235@10.1.2.3``: this gateway, and from there only.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from onefold.errors import Misuse

EUI: Final = re.compile(r"[0-9a-fA-F]{16}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Allow:
    """The list; an empty one lets everybody speak, which is for loopback only.

    >>> allow = Allow(["10.0.0.0/8", "0016c001ff10a235@192.0.2.7"])
    >>> allow.admits(1, "10.1.2.3"), allow.admits(0x0016C001FF10A235, "192.0.2.7"), allow.admits(1, "192.0.2.7")
    (True, True, False)
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._entries = [_entry(text) for text in entries]
        self._euis = {eui for eui, network in self._entries if network is None}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def admits(self, eui: int, host: str) -> bool:
        """May this gateway speak from there?"""
        if not self._entries or eui in self._euis:
            return True
        where = address(host)
        return any(
            network is not None and where in network
            for known, network in self._entries
            if known is None or known == eui
        )


def address(host: str) -> Address:
    """The address of a peer; an IPv4 one that came to an IPv6 socket is itself again.

    >>> address("::ffff:10.1.2.3")
    IPv4Address('10.1.2.3')
    """
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _entry(text: str) -> tuple[int | None, Network | None]:
    eui, at, place = text.strip().partition("@")
    if not at and EUI.fullmatch(eui) is None:
        eui, place = "", eui
    try:
        if eui and EUI.fullmatch(eui) is None:
            raise ValueError
        network = ipaddress.ip_network(place) if at or not eui else None
    except ValueError:
        told = "must be an EUI of 16 hex digits, a network like 10.0.0.0/8, or EUI@network"
        raise Misuse(f"--udp-allow {text!r}: {told}", entry=text) from None
    return (int(eui, 16) if eui else None), network
