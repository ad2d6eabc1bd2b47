"""The ChirpStack gateway bridge (or MQTT forwarder) through an MQTT broker: ``mqtt://user:password@host:1883/prefix``.

Whoever may publish on a gateway's topic can act as that gateway. So the broker's users and access list are the
authentication, and an event that names another gateway than its topic is refused.

Subscriptions and commands have QoS 1. That covers delivery to this process only: events that it holds when it dies, or
that are published while it is not connected, are lost to this server (others at the same broker hear them). A broken
connection is retried with a growing wait. All queues are bounded: an event that finds its queue full is dropped and
counted, and a command that is too late to transmit is not sent.

Events and commands are protobuf messages (``gw.proto``) in their JSON form, of version 3 or 4, on the topics
``[PREFIX/]gateway/ID/event/up`` and ``.../command/down``; protobuf itself is refused with a hint. Bytes are base64.

    version    gateway              modulation                             bandwidth    rx time    timing
    3          gatewayID, base64    "LORA" and loRaModulationInfo {...}    kHz          time       "DELAY", ...
    4          gatewayId, hex       {"lora": {...}}                        Hz           gwTime     {"delay": {...}}

Version 4 leaves out what is zero, as protobuf does: no ``snr`` is an SNR of 0 dB. A command is written in the version
of the uplink, and offers both windows; the gateway transmits in at most one. The ``context`` of an uplink holds the
gateway's clock, and is sent back unchanged.
"""

import asyncio
import base64
import contextlib
import json
import logging
import random
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import aiomqtt

from onefold.clock import Clock, wall_ms
from onefold.errors import BadInput, Busy, Misuse
from onefold.lorawan import radio
from onefold.lorawan.frames import Frame, parse
from onefold.lorawan.radio import Downlink, GatewayLink, Radio, Receiver, Reception, Region

STATION: Final = re.compile(r"[0-9a-fA-F]{16}")
CONTEXT_BYTES_MAX: Final = 256
"""The bridge writes 4 for a packet forwarder, 16 for a Basics Station."""
NAMES: Final = 2**32
"""How many names downlinks have in version 4."""
BAD_CRC: Final = ("BAD_CRC", 1)
HINT: Final = 'set marshaler="json" in the gateway bridge (json=true in the MQTT forwarder): protobuf is not read here'


class MqttTopic(NamedTuple):
    """The parts of an event's topic; commands go to below ``root``."""

    root: str
    """``eu868/gateway/0016c001ff10a235``"""
    station: str
    event: str


class UplinkEvent(NamedTuple):
    frame: Frame
    radio: Radio
    version: int
    context: bytes
    board: int
    antenna: int


def read_topic(text: str) -> MqttTopic | None:
    """The parts of an event's topic, or None if it is not one.

    >>> read_topic("eu868/gateway/0016c001ff10a235/event/up")
    MqttTopic(root='eu868/gateway/0016c001ff10a235', station='0016c001ff10a235', event='up')
    """
    levels = text.split("/")
    if len(levels) < 4 or levels[-4] != "gateway" or levels[-2] != "event" or not STATION.fullmatch(levels[-3]):
        return None
    return MqttTopic("/".join(levels[:-2]), levels[-3].lower(), levels[-1])


def read_heard(payload: bytes, station: str, region: Region) -> UplinkEvent | None:
    """An uplink from the topic of this station; None if its CRC is wrong."""
    event = read(payload)
    tx, rx = radio.part(event, "txInfo"), radio.part(event, "rxInfo")
    version = 3 if isinstance(tx.get("modulation"), str) else 4
    field_name = "gatewayID" if "gatewayID" in rx else "gatewayId"
    named = radio.text(rx, field_name).lower()
    if not STATION.fullmatch(named):
        eui = radio.octets(rx, field_name, 8) if version == 3 else b""
        if len(eui) != 8:
            raise radio.wrong(rx, field_name, "an EUI")
        named = eui.hex()
    if named != station:  # the broker's access list protects the topic, not the content
        raise BadInput(f"the event names gateway {named}, but came on the topic of {station}", gateway=named)
    if rx.get("crcStatus") in BAD_CRC:
        return None
    heard = Radio(
        radio.integer(tx, "frequency", 1, radio.FREQUENCY_HZ_MAX),
        region.data_rate(*_rate(tx, version)),
        radio.decibels(rx, "rssi"),
        radio.decibels(rx, "loRaSNR") if version == 3 else radio.decibels({"snr": 0.0, **rx}, "snr"),
        radio.moment_ms(rx, "gwTime") or radio.moment_ms(rx, "time"),  # early releases of version 4 still have time
    )
    context = radio.octets(rx, "context", CONTEXT_BYTES_MAX) if rx.get("context") is not None else b""
    board, antenna = (radio.integer({name: 0, **rx}, name, 0, 255) for name in ("board", "antenna"))
    return UplinkEvent(parse(radio.octets(event, "phyPayload")), heard, version, context, board, antenna)


def _rate(tx: Mapping[str, Any], version: int) -> tuple[int, int]:
    """Spreading factor and bandwidth in kHz; zeros: FSK."""
    if version == 3:
        if tx["modulation"] not in ("FSK", "LORA"):
            raise radio.wrong(tx, "modulation", "LORA or FSK")
        is_fsk, source, fsk, lora = tx["modulation"] == "FSK", tx, "fskModulationInfo", "loRaModulationInfo"
        bandwidths, unit = (1, 2_000), 1
    else:
        source, fsk, lora = radio.part(tx, "modulation"), "fsk", "lora"
        is_fsk, bandwidths, unit = "fsk" in source, (1_000, 2_000_000), 1_000
    if is_fsk:
        radio.integer(radio.part(source, fsk), "datarate", radio.FSK_BITS_PER_S, radio.FSK_BITS_PER_S)
        return 0, 0
    how = radio.part(source, lora)
    return radio.integer(how, "spreadingFactor", 5, 12), radio.integer(how, "bandwidth", *bandwidths) // unit


def read(payload: bytes) -> dict[str, Any]:
    """The JSON of an event; the error for anything else says how to switch from protobuf."""
    try:
        return radio.document(payload, "the event")
    except BadInput as error:
        raise BadInput(f"{error}; {HINT}") from None


def outcome(payload: bytes) -> tuple[int | None, bool]:
    """Of an ``event/ack``: the name of the downlink, if given, and whether it will be transmitted."""
    ack = read(payload)
    items = ack.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadInput(f"items is {radio.shown(items)}, must be an array of objects")
    named = None
    if ack.get("downlinkID") is not None:
        named = int.from_bytes(radio.octets(ack, "downlinkID", 16)) % NAMES
    elif ack.get("downlinkId") is not None:
        named = radio.integer(ack, "downlinkId", 0, NAMES - 1)
    if not items:  # bridges before 3.9 knew one window
        return named, not ack.get("error")
    return named, any(item.get("status") in ("OK", 1) for item in items)


def command(station: str, uplink: UplinkEvent, downlink: Downlink, region: Region) -> bytes:
    """``command/down`` with both windows, in the version of the uplink; class C need not wait for the second."""
    old, delay_s = uplink.version == 3, downlink.rx_delay_s
    windows = [(downlink.rx1, delay_s), (downlink.rx2, None if downlink.device_class == "C" else delay_s + 1)]
    items = []
    for (frequency, data_rate), after_s in windows:
        spreading, bandwidth_khz = region.modulation(data_rate)
        tx: dict[str, Any] = {"frequency": frequency, "power": region.power_dbm}
        if spreading:
            how: dict[str, Any] = {"bandwidth": bandwidth_khz * (1 if old else 1_000), "spreadingFactor": spreading}
            how |= {"codeRate": "4/5" if old else "CR_4_5", "polarizationInversion": True}
            tx |= {"modulation": "LORA", "loRaModulationInfo": how} if old else {"modulation": {"lora": how}}
        else:
            how = {"datarate": radio.FSK_BITS_PER_S, "frequencyDeviation": radio.FSK_BITS_PER_S // 2}
            tx |= {"modulation": "FSK", "fskModulationInfo": how} if old else {"modulation": {"fsk": how}}
        tx |= {"board": uplink.board, "antenna": uplink.antenna}
        if after_s is None:
            tx |= {"timing": "IMMEDIATELY", "immediatelyTimingInfo": {}} if old else {"timing": {"immediately": {}}}
        else:
            delay = {"delay": f"{after_s}s"}
            tx |= {"timing": "DELAY", "delayTimingInfo": delay} if old else {"timing": {"delay": delay}}
        items.append({"phyPayload": _base64(downlink.pdu), "txInfo": {**tx, "context": _base64(uplink.context)}})
    if old:
        ids = {
            "gatewayID": _base64(bytes.fromhex(station)),
            "token": downlink.number % 2**16,
            "downlinkID": _base64((downlink.number % 2**128).to_bytes(16)),
        }
    else:
        ids = {"gatewayId": station, "downlinkId": downlink.number % NAMES}
    return json.dumps({**ids, "items": items}, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


class MqttAddress:
    """The URL of a broker: host, login, and the topic prefix of the gateways ("": any one level, or none).

    Errors never repeat the URL: it may hold a password.

    >>> address = MqttAddress("mqtts://me:p%40ss@broker.example/eu868")
    >>> str(address), address.user, address.password, address.topics
    ('mqtts://broker.example:8883/eu868', 'me', 'p@ss', ['eu868/gateway/+/event/+'])
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            hint = "it is like mqtt://user:password@host:1883"
            raise Misuse(f"the URL of the MQTT broker cannot be read; {hint}") from None
        if parts.scheme not in PORTS or not parts.hostname:
            raise Misuse("the URL of the MQTT broker must begin with mqtt://HOST or mqtts://HOST", scheme=parts.scheme)
        if parts.query or parts.fragment:
            raise Misuse("the URL of the MQTT broker has a ? or a #; in a password they are written %3F and %23")
        self.prefix = unquote(parts.path).strip("/")
        if set(self.prefix) & set("+#\0"):
            raise Misuse(f"the topic prefix {self.prefix!r} of the MQTT broker's URL must be plain, without + and #")
        self.host, self.port, self.tls = parts.hostname, port or PORTS[parts.scheme], parts.scheme == "mqtts"
        self.user, self.password = (
            None if text is None else unquote(text) for text in (parts.username, parts.password)
        )
        self.topics = [f"{self.prefix}/gateway/+/event/+"]
        if not self.prefix:
            self.topics = ["gateway/+/event/+", "+/gateway/+/event/+"]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}/{self.prefix}"


QOS: Final = 1
QUIET: Final = logging.Logger("onefold.gateway.paho", logging.CRITICAL)
"""Silences paho: a lost connection is logged once, here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttLimits:
    event_bytes_max: int = 64 << 10
    """An uplink has about 1,000; statistics of a busy gateway a few thousand."""
    events_max: int = 1_000
    """Events that wait to be read."""
    commands_max: int = 1_000
    """Commands that wait to be sent, and those that wait for their outcome."""
    senders: int = 16
    """Commands in flight to the broker; beyond 20, paho would queue them itself."""
    busy_s: float = 0.5
    """How long an event waits for room in the service; after that its downlink would be too late."""
    answer_s: float = 10
    """Timeout for the broker's answers."""
    wait_min_s: float = 0.5
    wait_max_s: float = 30
    """Between two attempts to connect; the bridge itself waits up to a minute."""


@contextlib.asynccontextmanager
async def connection(
    address: MqttAddress, limits: MqttLimits, count: Callable[[str], None]
) -> AsyncIterator[aiomqtt.Client]:
    """A connected and subscribed client; `aiomqtt.MqttError` or `OSError` if that fails, or the connection breaks."""

    class Events(asyncio.Queue[aiomqtt.Message]):
        """The broker's messages within the limits; aiomqtt's own queue would drop the others in silence."""

        def put_nowait(self, item: aiomqtt.Message) -> None:
            if len(item.payload) > limits.event_bytes_max:
                count("oversize")
            elif self.full():
                count("queue_full")
            else:
                super().put_nowait(item)

    client = aiomqtt.Client(
        address.host, address.port, username=address.user, password=address.password,
        tls_context=ssl.create_default_context() if address.tls else None, logger=QUIET, timeout=limits.answer_s,
        queue_type=Events, max_queued_incoming_messages=limits.events_max,
    )  # fmt: skip
    try:
        async with client:
            for topic in address.topics:
                granted: Any = await client.subscribe(topic, QOS)
                if any(code.is_failure for code in granted):
                    raise aiomqtt.MqttError(f"the broker refuses the subscription to {topic}")
            yield client
    finally:  # after a failed attempt aiomqtt leaves the socket and a task behind
        client._client.on_disconnect = None
        client._client.disconnect()


BUSY_STEP_S: Final = 0.01
FIGURES: Final = (
    "connects", "disconnects", "events", "not_protocol", "retained", "oversize", "queue_full", "frames", "crc_failed",
    "malformed", "busy", "failed", "stats", "other_events", "downlinks", "undeliverable", "late", "tx_ok", "tx_failed",
)  # fmt: skip
log: Final = logging.getLogger("onefold.gateway")


class ChirpstackMqtt(GatewayLink):
    """The link: runs from ``await start()`` to ``await stop()``, and reconnects by itself."""

    def __init__(
        self, receiver: Receiver, region: Region, url: str, *, limits: MqttLimits | None = None,
        clock_ms: Clock = wall_ms,
    ) -> None:  # fmt: skip
        super().__init__(receiver, region, clock_ms, FIGURES)
        self.address = MqttAddress(url)
        self.connected = asyncio.Event()
        self._limits = limits or MqttLimits()
        self._outstanding: OrderedDict[int, int] = OrderedDict()  # numbers of downlinks, by their names in events
        self._commands: asyncio.Queue[tuple[str, bytes, float]] = asyncio.Queue(self._limits.commands_max)
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None

    def figures(self) -> dict[str, int]:
        return {**self._counts, "connected": int(self.connected.is_set())}

    def transmit(self, topic: MqttTopic, uplink: UplinkEvent, heard_s: float, downlink: Downlink) -> bool:
        """Queue a command; False if there is no broker, or the queue is full."""
        try:
            if not self.connected.is_set():
                raise Busy("no broker")
            payload = command(topic.station, uplink, downlink, self._region)
            until_s = heard_s + downlink.rx_delay_s + 1
            self._commands.put_nowait((f"{topic.root}/command/down", payload, until_s))
        except (BadInput, Busy, asyncio.QueueFull):
            self._count("undeliverable")
            return False
        self._outstanding[downlink.number % NAMES] = downlink.number
        while len(self._outstanding) > self._limits.commands_max:
            self._outstanding.popitem(last=False)
        return True

    async def _run(self) -> None:
        wait_s = self._limits.wait_min_s
        while True:
            try:
                async with connection(self.address, self._limits, self._count) as client:
                    wait_s = self._limits.wait_min_s
                    await self._serve(client)
            except (aiomqtt.MqttError, OSError) as error:
                why = str(error) or type(error).__name__
            except Exception as error:  # whatever it is, connect again
                why = f"unexpected: {type(error).__name__}: {error}"
            else:
                why = "the connection was closed"
            self._count("disconnects")
            if why != self.problem:  # once per cause, not per attempt
                log.error("no connection to %s: %s", self.address, why)
            self.problem = why
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # not all servers at the same time
            wait_s = min(2 * wait_s, self._limits.wait_max_s)

    async def _serve(self, client: aiomqtt.Client) -> None:
        while not self._commands.empty():  # commands of the last connection are too late
            self._commands.get_nowait()
            self._count("late")
        senders = [asyncio.create_task(self._send(client)) for _ in range(self._limits.senders)]
        if self.problem is not None:
            log.error("connected to %s", self.address)
        self.problem = None
        self.connected.set()
        self._count("connects")
        try:
            async for message in client.messages:
                try:
                    await self._take(str(message.topic), message)
                except Exception as error:  # whatever it is, go on with the next event
                    self._fail(str(message.topic)[:100], error)
        finally:
            self.connected.clear()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    async def _send(self, client: aiomqtt.Client) -> None:
        while True:
            topic, payload, until_s = await self._commands.get()
            if time.monotonic() > until_s:
                self._count("late")
                continue
            try:
                await client.publish(topic, payload, QOS)
                self._count("downlinks")
            except Exception:  # whatever it is, go on with the next command
                self._count("undeliverable")

    async def _take(self, text: str, message: aiomqtt.Message) -> None:
        self._count("events")
        topic, payload = read_topic(text), message.payload
        if topic is None or not isinstance(payload, bytes | bytearray):
            self._count("not_protocol")
        elif message.retain:  # the bridge retains no events: this one is old
            self._count("retained")
        elif topic.event == "up":
            await self._up(topic, bytes(payload))
        elif topic.event not in ("ack", "txack"):
            self._count("stats" if topic.event == "stats" else "other_events")
        else:
            try:
                name, is_used = outcome(bytes(payload))
            except BadInput as error:
                self._refuse(topic.station, error)
                return
            self._count("tx_ok" if is_used else "tx_failed")
            number = self._outstanding.pop(name, None) if name is not None else None
            if is_used and number is not None:
                self._receiver.transmitted(number)

    async def _up(self, topic: MqttTopic, payload: bytes) -> None:
        try:
            heard = read_heard(payload, topic.station, self._region)
        except BadInput as error:
            self._refuse(topic.station, error)
            return
        if heard is None:
            self._count("crc_failed")
            return
        back = partial(self.transmit, topic, heard, time.monotonic()) if heard.context else None
        reception = Reception(heard.frame, topic.station, heard.radio, back, self._clock_ms())
        deadline = time.monotonic() + self._limits.busy_s
        self._receiver.arrive()
        while True:
            try:
                self._receiver.hear(reception)
                self._count("frames")
                return
            except Busy as busy:
                if time.monotonic() >= deadline:
                    return self._busy(topic.station, busy)
                try:
                    await asyncio.sleep(BUSY_STEP_S)
                except asyncio.CancelledError:  # the server ends
                    self._busy(topic.station, busy)
                    raise
