"""Semtech's packet forwarder over UDP: the oldest way in, and the one that most gateways come with.

**It has no authentication and no encryption.** Who reaches the port can claim to be any gateway, and who is on the way
can read and change everything. A forged *frame* still fails its integrity code, and a copied one is a repeat; but where
a gateway is, is only its own word (`udp_gateways`). So this listens on loopback, for a forwarder on the same machine or
at the end of a tunnel, unless a list says which gateways or networks to believe (`udp_allow`).

PUSH_DATA is acknowledged at once, as the protocol wants, then its packets are taken one by one: a malformed one is
refused, the others count. Downlinks go to where the gateway polls from (PULL_DATA). A gateway of version 2 says whether
it will transmit (TX_ACK); only if it will not, the second window is tried: no uplink is answered twice on the air.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from onefold.engines.lorawan.answers import BUSY, MALFORMED
from onefold.errors import BadInput, Busy, Misuse
from onefold.services.gateway import semtech_packets as wire
from onefold.services.gateway.radio_json import document
from onefold.services.gateway.receiving import Complaints, Receiver, power_dbm
from onefold.services.gateway.reception import Downlink, Reception, station_name
from onefold.services.gateway.regions import Region
from onefold.services.gateway.udp_allow import Allow
from onefold.services.gateway.udp_downlinks import Sent, Unanswered
from onefold.services.gateway.udp_gateways import Gateways
from onefold.services.gateway.udp_limits import UdpLimits
from onefold.services.serving import is_loopback
from onefold.services.topic_settings import wall_ms

PORT: Final = 1700
"""What packet forwarders are configured for when they leave the factory."""
BURST_BYTES: Final = 1 << 20
"""What the system is asked to keep for us while we are busy: about a thousand datagrams; it may give less."""
FIGURES: Final = (
    "datagrams",
    "not_protocol",
    "not_allowed",
    "pushes",
    "polls",
    "moved",
    "full",
    "frames",
    "crc_failed",
    "malformed",
    "busy",
    "failed",
    "stats",
    "downlinks",
    "undeliverable",
    "tx_ok",
    "tx_failed",
    "not_asked",
    "send_errors",
)


class SemtechUdp(asyncio.DatagramProtocol):
    """The link: ``await start()``, then it runs by itself until ``await stop()``."""

    def __init__(
        self,
        receiver: Receiver,
        region: Region,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        allow: Iterable[str] = (),
        limits: UdpLimits | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.problem: str | None = None
        """There is none that it would know of."""
        self._allow = Allow(allow)
        if not self._allow and not is_loopback(host):
            told = (
                "UDP has no token, so to listen on more than loopback needs a list of gateways or networks to believe"
            )
            raise Misuse(f"host is {host!r}: {told}", host=host)
        self._receiver = receiver
        self._region = region
        self._where = (host, port)
        self._limits = limits or UdpLimits()
        self._power_dbm = power_dbm(region)
        self._clock_ms = clock_ms
        self._complaints = Complaints()
        self._gateways = Gateways(
            gateways_max=self._limits.gateways_max, silent_s=self._limits.silent_s, expiry_s=self._limits.expiry_s
        )
        self._unanswered = Unanswered(
            unanswered_max=self._limits.unanswered_max, unanswered_s=self._limits.unanswered_s
        )
        self._counts = dict.fromkeys(FIGURES, 0)
        self._transport: asyncio.DatagramTransport | None = None
        self._held_up = False
        self._closed: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Listen; `OSError` if the port is taken."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=self._where)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BURST_BYTES)

    async def stop(self) -> None:
        """Listen no more; what was taken is with the receiver."""
        if self._transport is not None and self._closed is not None:
            self._transport.close()
            await self._closed

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._transport is None:
            raise Misuse("the UDP link is not started")
        return int(self._transport.get_extra_info("sockname")[1])

    def figures(self) -> dict[str, int]:
        """What happened so far, by name, and how many gateways poll now."""
        return {**self._counts, "gateways": len(self._gateways)}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The system takes no more for now: nothing is queued behind 64 KiB, what comes late is of no use."""
        self._held_up = True

    def resume_writing(self) -> None:
        """It does again."""
        self._held_up = False

    def error_received(self, exc: Exception) -> None:
        """Something could not be sent, or a gateway's host says that nobody listens there."""
        self._count("send_errors")

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """One datagram, from anybody."""
        self._count("datagrams")
        try:
            self._take(data, addr)
        except Exception as error:  # whatever it is, the next datagram is another one
            self._fail(str(addr[0]), error)

    def _take(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        try:
            if len(data) > self._limits.datagram_bytes_max:
                raise BadInput(f"the datagram has {len(data)} bytes, the limit is {self._limits.datagram_bytes_max}")
            datagram = wire.read(data)
        except BadInput:  # nobody to name, and nothing to answer: a port scan must not fill the books
            self._count("not_protocol")
            return
        if not self._allow.admits(datagram.eui, str(addr[0])):
            self._count("not_allowed")
        elif datagram.kind == wire.PUSH_DATA:
            self._push(datagram, addr)
        elif datagram.kind == wire.PULL_DATA:
            self._poll(datagram, addr)
        else:
            self._answered(datagram, addr)

    def _push(self, datagram: wire.Datagram, addr: tuple[str | Any, int]) -> None:
        self._count("pushes")
        self._send(wire.answer(datagram), addr)
        station = station_name(datagram.eui)
        try:
            push = document(datagram.body, "PUSH_DATA")
            packets = wire.packets(push, self._limits.packets_max)
        except BadInput as error:
            self._refuse(station, error)
            return
        if "stat" in push:
            self._count("stats")
        for packet in packets:
            try:
                heard = wire.heard(packet, self._region)
            except BadInput as error:
                self._refuse(station, error)
                continue
            if heard is None:
                self._count("crc_failed")
            else:
                self._hear(datagram.eui, station, heard)

    def _hear(self, eui: int, station: str, heard: wire.Heard) -> None:
        back = _Way(self, eui, heard.ticks)
        try:
            self._receiver.arrive()
            self._receiver.hear(Reception(heard.frame, station, heard.radio, back, self._clock_ms()))
            self._count("frames")
        except Busy as busy:
            self._count("busy")
            self._receiver.refuse(station, BUSY, str(busy))
        except Exception as error:  # the other packets of the datagram are none the worse
            self._fail(station, error)

    def _poll(self, datagram: wire.Datagram, addr: tuple[str | Any, int]) -> None:
        self._count("polls")
        refused = self._gateways.poll(datagram.eui, addr, datagram.version, _now_s())
        if refused is None:
            self._send(wire.answer(datagram), addr)
        else:
            self._count(refused)

    def _answered(self, datagram: wire.Datagram, addr: tuple[str | Any, int]) -> None:
        """TX_ACK. Only the host that polls is believed: a second transmission is nothing for a stranger to ask for."""
        asked = self._unanswered.waits(datagram.eui, datagram.token)
        if not asked or not self._gateways.is_at(datagram.eui, addr, _now_s()):
            self._count("not_asked")
            return
        sent = self._unanswered.answered(datagram.eui, datagram.token)
        try:
            failed = wire.failure(datagram)
        except BadInput as error:  # whether it transmits is not known, so it is not asked again
            self._refuse(station_name(datagram.eui), error)
            return
        self._count("tx_ok" if failed is None else "tx_failed")
        if failed is None:
            self._receiver.transmitted(sent.downlink.number)
        elif not sent.second:
            self.transmit(datagram.eui, sent.ticks, sent.downlink, second=True)

    def transmit(self, eui: int, ticks: int, downlink: Downlink, *, second: bool = False) -> bool:
        """Ask the gateway to transmit, in the first or second window after an uplink that ended at this tick."""
        now_s = _now_s()
        gateway = self._gateways.find(eui, now_s)
        token = self._unanswered.token(eui)
        try:
            at = wire.window(downlink, ticks, second=second)
            data = wire.transmit(
                gateway.version if gateway else 2, token, downlink.pdu, at, self._region, self._power_dbm
            )
        except BadInput:
            gateway = None
        if gateway is None or not self._send(data, gateway.peer):
            self._count("undeliverable")
            return False
        self._count("downlinks")
        if gateway.version > 1:
            self._unanswered.wait(eui, token, Sent(downlink, ticks, second, now_s))
        return True

    def _send(self, data: bytes, peer: tuple[Any, ...]) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing() or self._held_up:
            return False
        transport.sendto(data, peer)
        return True

    def _refuse(self, station: str, error: BadInput) -> None:
        self._count("malformed")
        self._complaints.tell(station, str(error))
        self._receiver.arrive()
        self._receiver.refuse(station, MALFORMED, str(error))

    def _fail(self, who: str, error: Exception) -> None:
        self._count("failed")
        self._complaints.tell(who, f"unexpected: {type(error).__name__}: {error}")

    def _count(self, name: str) -> None:
        self._counts[name] += 1


class _Way:
    """The way back after one uplink."""

    __slots__ = ("_eui", "_link", "_ticks")

    def __init__(self, link: SemtechUdp, eui: int, ticks: int) -> None:
        self._link, self._eui, self._ticks = link, eui, ticks

    def send(self, downlink: Downlink) -> bool:
        """Hand it to the gateway; False: it does not poll."""
        return self._link.transmit(self._eui, self._ticks, downlink)


def _now_s() -> float:
    return time.monotonic()
