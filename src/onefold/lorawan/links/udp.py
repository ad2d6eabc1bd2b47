"""Semtech's packet forwarder over UDP: the oldest protocol, which most gateways are delivered with.

**It has no authentication and no encryption.** Whoever reaches the port can claim to be any gateway. A forged *frame*
still fails its integrity code, and a copied one is a repeat; but nothing proves where a gateway is. So this listens on
loopback, for a forwarder on the same machine or at the end of a tunnel, unless a list says whom to trust (`Allow`).

The protocol has versions 1 and 2 (PROTOCOL.TXT in Semtech's repository ``packet_forwarder``). Every datagram begins
with four bytes: the version, a token of two bytes that the answer repeats, and the kind. Datagrams of a gateway
continue with its EUI (eight bytes, big-endian) and, for PUSH_DATA and TX_ACK, a JSON object:

    gateway to server    PUSH_DATA 0 {"rxpk": [...], "stat": {...}}    PULL_DATA 2    TX_ACK 5 {"txpk_ack": {...}}
    server to gateway    PUSH_ACK 1                                    PULL_ACK 4     PULL_RESP 3 {"txpk": {...}}

PUSH_DATA is acknowledged at once, as the protocol demands, then its packets are taken one by one: a malformed one is
refused, the others count. Downlinks go to where the gateway polls from (PULL_DATA). A gateway of version 2 says in
TX_ACK whether it will transmit; the second window is tried only if it will not, so no uplink is answered twice on the
air. Version 1 has no TX_ACK, and the token of its PULL_RESP is unused.
"""

import asyncio
import base64
import ipaddress
import json
import math
import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, cast

from onefold.clock import Clock, wall_ms
from onefold.errors import BadInput, Busy, Misuse
from onefold.lorawan import radio
from onefold.lorawan.frames import PHY_BYTES_MAX, Frame, parse
from onefold.lorawan.radio import Downlink, GatewayLink, Radio, Receiver, Reception, Region, station_name
from onefold.net.http import is_loopback

VERSIONS: Final = frozenset({1, 2})
PUSH_DATA, PUSH_ACK, PULL_DATA, PULL_RESP, PULL_ACK, TX_ACK = range(6)
FROM_GATEWAYS: Final = frozenset({PUSH_DATA, PULL_DATA, TX_ACK})
HEAD_BYTES: Final = 12
TICKS: Final = 2**32
"""The concentrator counts microseconds in 32 bits, and wraps after 71 minutes."""
LORA_RATE: Final = re.compile(r"SF([0-9]{1,2})BW([0-9]{1,4})")
CRC_OK: Final = 1


class Datagram(NamedTuple):
    """One datagram of a gateway; ``body`` is what follows the EUI."""

    version: int
    token: bytes
    kind: int
    eui: int
    body: bytes


class Rxpk(NamedTuple):
    frame: Frame
    radio: Radio
    ticks: int


def read(data: bytes) -> Datagram:
    """Read a datagram from a gateway; `BadInput` if it is none.

    >>> read(bytes.fromhex("02 abcd 02 0016c001ff10a235")).token.hex()
    'abcd'
    """
    if len(data) < HEAD_BYTES:
        raise BadInput(f"the datagram has {len(data)} bytes, must have at least {HEAD_BYTES}", bytes=len(data))
    version, kind = data[0], data[3]
    if version not in VERSIONS:
        raise BadInput(f"byte 0 of the datagram, the version, is {version}, must be 1 or 2", version=version)
    if kind not in FROM_GATEWAYS:
        raise BadInput(f"byte 3 of the datagram is {kind}, no gateway sends that", kind=kind)
    return Datagram(version, data[1:3], kind, int.from_bytes(data[4:HEAD_BYTES]), data[HEAD_BYTES:])


def answer(to: Datagram) -> bytes:
    """PUSH_ACK or PULL_ACK, with the token of the datagram."""
    return bytes([to.version]) + to.token + bytes([PUSH_ACK if to.kind == PUSH_DATA else PULL_ACK])


def read_packets(push: Mapping[str, Any], packets_max: int) -> list[Any]:
    """The ``rxpk`` of a PUSH_DATA, at most so many; empty if it only has the gateway's statistics."""
    packets = push.get("rxpk", [])
    if not isinstance(packets, list):
        raise BadInput(f"rxpk is {radio.shown(packets)}, must be an array")
    if len(packets) > packets_max:
        raise BadInput(f"rxpk has {len(packets)} packets, the limit is {packets_max}", packets=len(packets))
    return packets


def read_heard(packet: object, region: Region) -> Rxpk | None:
    """One ``rxpk``; None if its CRC is missing or wrong, so that its bytes cannot be trusted."""
    if not isinstance(packet, dict):
        raise BadInput(f"a packet of rxpk is {radio.shown(packet)}, must be an object")
    if packet.get("stat") is None or radio.integer(packet, "stat", -1, 1) != CRC_OK:
        return None
    ticks = radio.integer(packet, "tmst", 0, TICKS - 1)
    megahertz = radio.number(packet, "freq", 0.000_001, radio.FREQUENCY_HZ_MAX / 1e6)
    spreading = bandwidth_khz = 0  # FSK
    if packet.get("modu") == "FSK":
        radio.integer(packet, "datr", radio.FSK_BITS_PER_S, radio.FSK_BITS_PER_S)
    elif packet.get("modu") != "LORA":
        raise radio.wrong(packet, "modu", "LORA or FSK")
    elif rate := LORA_RATE.fullmatch(radio.text(packet, "datr")):
        spreading, bandwidth_khz = int(rate[1]), int(rate[2])
    else:
        raise radio.wrong(packet, "datr", "like SF7BW125")
    data_rate = region.data_rate(spreading, bandwidth_khz)
    antennas = packet.get("rsig")
    if not antennas or "rssi" in packet:  # FSK has no SNR
        rssi, snr = radio.decibels(packet, "rssi"), radio.decibels(packet, "lsnr")
    elif isinstance(antennas, list) and all(isinstance(antenna, dict) for antenna in antennas):
        levels = [(radio.number(each, "rssic", -1_000, 1_000), radio.decibels(each, "lsnr")) for each in antennas]
        rssi, snr = max(levels, key=lambda level: (-math.inf if level[1] is None else level[1], level[0]))
    else:
        raise radio.wrong(packet, "rsig", "an array of objects")
    phy = radio.octets(packet, "data")
    if "size" in packet and radio.integer(packet, "size", 0, PHY_BYTES_MAX) != len(phy):
        raise BadInput(f"size is {packet['size']}, but data has {len(phy)} bytes", size=packet["size"])
    time_ms = radio.moment_ms(packet, "time")
    if time_ms is None:
        time_ms = radio.gps_ms(packet, "tmms")
    return Rxpk(parse(phy), Radio(round(megahertz * 1e6), data_rate, rssi, snr, time_ms), ticks)


def failure(ack: Datagram) -> str | None:
    """Why the gateway will not transmit, from its TX_ACK; None if it will."""
    if not ack.body.strip(b"\0 "):  # an empty body is a success; some forwarders send the zero at the end of a string
        return None
    outcome = radio.part(radio.document(ack.body, "TX_ACK"), "txpk_ack")
    if outcome.get("error") is None:  # newer forwarders only warn that they cannot reach the power
        return None
    error = radio.text(outcome, "error")
    return None if error == "NONE" else error


def transmit(version: int, token: bytes, downlink: Downlink, ticks: int, region: Region, *, second: bool) -> bytes:
    """PULL_RESP: transmit this in the first or second receive window after an uplink that ended at this tick.

    A LoRa downlink has inverted polarity and no CRC, so no gateway hears it.
    """
    frequency_hz, data_rate = downlink.rx2 if second else downlink.rx1
    spreading, bandwidth_khz = region.modulation(data_rate)
    after_us = (downlink.rx_delay_s + second) * 1_000_000
    when = {"imme": False, "tmst": (ticks + after_us) % TICKS}
    if second and downlink.device_class == "C":  # it listens to its second window all the time
        when = {"imme": True}
    if spreading:
        rate = f"SF{spreading}BW{bandwidth_khz}"
        how = {"modu": "LORA", "datr": rate, "codr": "4/5", "ipol": True, "ncrc": True}
    else:
        how = {"modu": "FSK", "datr": radio.FSK_BITS_PER_S, "fdev": radio.FSK_BITS_PER_S // 2}
    packet = {
        **when, "freq": round(frequency_hz / 1e6, 6), "rfch": 0, "powe": region.power_dbm, **how,
        "size": len(downlink.pdu), "data": base64.b64encode(downlink.pdu).decode(),
    }  # fmt: skip
    head = bytes([version]) + (token if version > 1 else b"\0\0") + bytes([PULL_RESP])
    return head + json.dumps({"txpk": packet}, separators=(",", ":")).encode()


ENTRY: Final = re.compile(r"([0-9a-fA-F]{16})|(?:([0-9a-fA-F]{16})@)?(.*)")
"""An EUI, a network, or EUI@network."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Allow:
    """Which gateways are admitted: those that match any entry. Without entries all are, for loopback only.

    - ``10.0.0.0/8``: any gateway of this network (a private network or a VPN is the best that the protocol allows),
    - ``0016c001ff10a235``: this gateway from anywhere, which keeps out strays, but no liars,
    - ``0016c001ff10a235@10.1.2.3``: this gateway, only from there.

    >>> allow = Allow(["10.0.0.0/8", "0016c001ff10a235@192.0.2.7"])
    >>> allow.admits(1, "10.1.2.3"), allow.admits(0x0016C001FF10A235, "192.0.2.7"), allow.admits(1, "192.0.2.7")
    (True, True, False)
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._entries: list[tuple[int | None, Network | None]] = []
        for entry in entries:
            parts = ENTRY.fullmatch(entry.strip())
            alone, at, host = parts.groups() if parts else (None, None, "")
            eui = alone or at
            try:
                network = None if alone else ipaddress.ip_network(host)
            except ValueError:
                kinds = "an EUI of 16 hex digits, a network like 10.0.0.0/8, or EUI@network"
                raise Misuse(f"--udp-allow {entry!r}: must be {kinds}", entry=entry) from None
            self._entries.append((int(eui, 16) if eui else None, network))
        self._euis = {eui for eui, network in self._entries if network is None}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def admits(self, eui: int, host: str) -> bool:
        if not self._entries or eui in self._euis:
            return True
        where = address(host)
        networks = [network for gateway, network in self._entries if gateway is None or gateway == eui]
        return any(network is not None and where in network for network in networks)


def address(host: str) -> Address:
    """The address of a peer; one that is IPv4 mapped to IPv6 as IPv4.

    >>> address("::ffff:10.1.2.3")
    IPv4Address('10.1.2.3')
    """
    peer = ipaddress.ip_address(host.partition("%")[0])
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return mapped or peer


class SentDownlink(NamedTuple):
    downlink: Downlink
    ticks: int
    """The concentrator's clock at the end of the uplink."""
    second: bool
    """It was sent for the second window."""
    at_s: float


class Gateway(NamedTuple):
    peer: tuple[str | int, ...]
    """As the socket gave it: two items, four for IPv6."""
    version: int
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpLimits:
    datagram_bytes_max: int = 65_507
    """All that UDP can carry; a forwarder with 8 packets sends about 4,500."""
    packets_max: int = 256
    """In one PUSH_DATA; a forwarder for the SX1302 takes at most 255 at a time."""
    gateways_max: int = 1_000
    silent_s: float = 30
    """After so long without a poll, another host can take over a gateway's EUI."""
    expiry_s: float = 60
    """After so long without a poll, a gateway is gone; ChirpStack waits a minute too."""
    unanswered_max: int = 1_000
    """Downlinks that wait for their TX_ACK; beyond, the oldest get no second window."""
    unanswered_s: float = 15


class Gateways:
    """The addresses that gateways poll from (PULL_DATA), where downlinks go: also through a NAT.

    Nothing proves who polls, so the first host keeps an EUI while it polls (every 10 s by default): another *host* with
    the same EUI gets nothing until the first was silent for ``silent_s``. Another port of the same host is a NAT that
    changed, or a restart. When the table is full, a new gateway is refused until another expires.
    """

    def __init__(self, limits: UdpLimits) -> None:
        self._limits = limits
        self._known: OrderedDict[int, Gateway] = OrderedDict()  # by the time of the last poll

    def __len__(self) -> int:
        return len(self._known)

    def poll(self, eui: int, peer: tuple[str | int, ...], version: int, now_s: float) -> str | None:
        """Note a poll; None, or why it was refused: ``moved`` or ``full``."""
        self._expire(now_s)
        gateway = self._known.get(eui)
        if gateway is None and len(self._known) >= self._limits.gateways_max:
            return "full"
        if gateway and not _same_host(gateway.peer, peer) and now_s - gateway.last_s < self._limits.silent_s:
            return "moved"
        self._known[eui] = Gateway(peer, version, now_s)
        self._known.move_to_end(eui)
        return None

    def find(self, eui: int, now_s: float) -> Gateway | None:
        """The gateway, or None if it has not polled within the expiry."""
        self._expire(now_s)
        return self._known.get(eui)

    def is_at(self, eui: int, peer: tuple[str | int, ...], now_s: float) -> bool:
        """Is this the host that the gateway polls from?"""
        gateway = self.find(eui, now_s)
        return gateway is not None and _same_host(gateway.peer, peer)

    def _expire(self, now_s: float) -> None:
        while self._known and now_s - next(iter(self._known.values())).last_s >= self._limits.expiry_s:
            self._known.popitem(last=False)


def _same_host(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> bool:
    return one[0] == other[0] or address(str(one[0])) == address(str(other[0]))


PORT: Final = 1700
"""The default of packet forwarders."""
BURST_BYTES: Final = 1 << 20
"""The receive buffer that is asked for: about a thousand datagrams; the system may grant less."""
FIGURES: Final = (
    "datagrams", "not_protocol", "not_allowed", "pushes", "polls", "moved", "full", "frames", "crc_failed", "malformed",
    "busy", "failed", "stats", "downlinks", "undeliverable", "tx_ok", "tx_failed", "not_asked", "send_errors",
)  # fmt: skip


class SemtechUdp(GatewayLink, asyncio.DatagramProtocol):
    """The link: runs from ``await start()`` to ``await stop()``."""

    def __init__(
        self, receiver: Receiver, region: Region, *, host: str = "127.0.0.1", port: int = PORT,
        allow: Iterable[str] = (), limits: UdpLimits | None = None, clock_ms: Clock = wall_ms,
    ) -> None:  # fmt: skip
        super().__init__(receiver, region, clock_ms, FIGURES)
        self._allow = Allow(allow)
        if not self._allow and not is_loopback(host):
            needs = "to listen on more than loopback needs a list of gateways or networks to believe"
            raise Misuse(f"host is {host!r}: UDP has no token, so {needs}", host=host)
        self._where = (host, port)
        self._limits = limits or UdpLimits()
        self._gateways = Gateways(self._limits)
        # Kept to try the second window if the gateway refuses the first, within the limits.
        self._unanswered: OrderedDict[tuple[int, bytes], SentDownlink] = OrderedDict()  # by gateway and token
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
        if self._transport is not None and self._closed is not None:
            self._transport.close()
            await self._closed

    @property
    def port(self) -> int:
        if self._transport is None:
            raise Misuse("the UDP link is not started")
        return int(self._transport.get_extra_info("sockname")[1])

    def figures(self) -> dict[str, int]:
        return {**self._counts, "gateways": len(self._gateways)}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The send buffer (64 KiB) is full: drop instead of queueing, since late answers are of no use."""
        self._held_up = True

    def resume_writing(self) -> None:
        self._held_up = False

    def error_received(self, exc: Exception) -> None:
        """A send failed, or ICMP says that nobody listens there."""
        self._count("send_errors")

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._count("datagrams")
        try:
            try:
                if len(data) > self._limits.datagram_bytes_max:
                    raise BadInput(f"the datagram has {len(data)} bytes")
                datagram = read(data)
            except BadInput:  # not counted as a reception: a port scan must not fill the tally
                self._count("not_protocol")
                return
            if not self._allow.admits(datagram.eui, str(addr[0])):
                self._count("not_allowed")
            elif datagram.kind == PUSH_DATA:
                self._push(datagram, addr)
            elif datagram.kind == PULL_DATA:
                self._count("polls")
                problem = self._gateways.poll(datagram.eui, addr, datagram.version, time.monotonic())
                if problem is None:
                    self._send(answer(datagram), addr)
                else:
                    self._count(problem)
            else:
                self._answered(datagram, addr)
        except Exception as error:  # whatever it is, go on with the next datagram
            self._fail(str(addr[0]), error)

    def _push(self, datagram: Datagram, addr: tuple[str | Any, int]) -> None:
        self._count("pushes")
        self._send(answer(datagram), addr)
        station = station_name(datagram.eui)
        try:
            push = radio.document(datagram.body, "PUSH_DATA")
            packets = read_packets(push, self._limits.packets_max)
        except BadInput as error:
            self._refuse(station, error)
            return
        if "stat" in push:
            self._count("stats")
        for packet in packets:
            try:
                heard = read_heard(packet, self._region)
                if heard is None:
                    self._count("crc_failed")
                    continue
                back = partial(self.transmit, datagram.eui, heard.ticks)
                self._receiver.arrive()
                self._receiver.hear(Reception(heard.frame, station, heard.radio, back, self._clock_ms()))
                self._count("frames")
            except BadInput as error:
                self._refuse(station, error)
            except Busy as busy:
                self._busy(station, busy)
            except Exception as error:  # whatever it is, go on with the next packet
                self._fail(station, error)

    def _answered(self, datagram: Datagram, addr: tuple[str | Any, int]) -> None:
        """TX_ACK. It counts only from the host that polls: a stranger must not cause a second transmission."""
        eui, token = datagram.eui, datagram.token
        if (eui, token) not in self._unanswered or not self._gateways.is_at(eui, addr, time.monotonic()):
            self._count("not_asked")
            return
        first = self._unanswered.pop((eui, token))
        try:
            problem = failure(datagram)
        except BadInput as error:  # it may have transmitted, so the second window is not tried
            self._refuse(station_name(eui), error)
            return
        self._count("tx_ok" if problem is None else "tx_failed")
        if problem is None:
            self._receiver.transmitted(first.downlink.number)
        elif not first.second:
            self.transmit(eui, first.ticks, first.downlink, second=True)

    def transmit(self, eui: int, ticks: int, downlink: Downlink, *, second: bool = False) -> bool:
        """Ask the gateway to transmit, in the first or second window after an uplink that ended at this tick."""
        now_s = time.monotonic()
        gateway = self._gateways.find(eui, now_s)
        waiting = self._unanswered
        while (eui, token := secrets.token_bytes(2)) in waiting:  # a token that nobody can guess
            pass
        try:
            data = transmit(gateway.version if gateway else 2, token, downlink, ticks, self._region, second=second)
        except BadInput:
            gateway = None
        if gateway is None or not self._send(data, gateway.peer):
            self._count("undeliverable")
            return False
        self._count("downlinks")
        if gateway.version > 1:
            while waiting and (
                len(waiting) >= self._limits.unanswered_max
                or now_s - next(iter(waiting.values())).at_s > self._limits.unanswered_s
            ):
                waiting.popitem(last=False)
            waiting[eui, token] = SentDownlink(downlink, ticks, second, now_s)
        return True

    def _send(self, data: bytes, peer: tuple[Any, ...]) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing() or self._held_up:
            return False
        transport.sendto(data, peer)
        return True
