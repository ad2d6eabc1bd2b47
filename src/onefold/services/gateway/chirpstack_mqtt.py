"""The ChirpStack gateway bridge (or MQTT forwarder) through an MQTT broker.

Whoever may publish on a gateway's topic at the broker is that gateway; so the broker's users and access list are the
authentication here, and an event that names another gateway than its topic is refused. Events are read in the JSON of
versions 3 and 4 (`chirpstack_events`); protobuf is refused with a hint.

Subscriptions and commands have QoS 1. That reaches as far as this process: what is in its hands when it dies, or is
published while it is not connected, is lost to this server, as for a gateway that is off the air (other servers at the
same broker hear it too). A connection that breaks is made again, with a growing wait. All queues are bounded: an event
that finds its queue full is dropped and counted, and a command that is too late to transmit is not sent.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import aiomqtt

from onefold.engines.lorawan.answers import BUSY, MALFORMED
from onefold.errors import BadInput, Busy
from onefold.services.gateway import chirpstack_events as events
from onefold.services.gateway.mqtt_address import parse_address
from onefold.services.gateway.mqtt_connection import QOS, MqttLimits, connection
from onefold.services.gateway.receiving import Complaints, Receiver, power_dbm
from onefold.services.gateway.reception import Downlink, Reception
from onefold.services.gateway.regions import Region
from onefold.services.topic_settings import wall_ms

BUSY_STEP_S: Final = 0.01
FIGURES: Final = (
    "connects",
    "disconnects",
    "events",
    "not_protocol",
    "retained",
    "oversize",
    "queue_full",
    "frames",
    "crc_failed",
    "malformed",
    "busy",
    "failed",
    "stats",
    "other_events",
    "downlinks",
    "undeliverable",
    "late",
    "tx_ok",
    "tx_failed",
)
log: Final = logging.getLogger("onefold.gateway")


class _Command(NamedTuple):
    topic: str
    payload: bytes
    until_s: float


class ChirpstackMqtt:
    """The link: ``await start()``, then it runs by itself until ``await stop()``, broker or no broker."""

    def __init__(
        self,
        receiver: Receiver,
        region: Region,
        url: str,
        *,
        limits: MqttLimits | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.address = parse_address(url)
        self.problem: str | None = None
        """Why it is not connected; None: it is, or was not started."""
        self.connected = asyncio.Event()
        self._receiver = receiver
        self._region = region
        self._limits = limits or MqttLimits()
        self._power_dbm = power_dbm(region)
        self._clock_ms = clock_ms
        self._complaints = Complaints()
        self._outstanding: OrderedDict[int, int] = OrderedDict()  # the numbers of downlinks, by what the gateway says
        self._commands: asyncio.Queue[_Command] = asyncio.Queue(self._limits.commands_max)
        self._counts = dict.fromkeys(FIGURES, 0)
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect; `connected` is set while there is a broker."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Disconnect; what was taken is with the receiver."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None

    def figures(self) -> dict[str, int]:
        """What happened so far, by name, and whether there is a broker now."""
        return {**self._counts, "connected": int(self.connected.is_set())}

    def transmit(self, topic: events.Topic, uplink: events.Heard, downlink: Downlink, heard_s: float) -> bool:
        """Have a command sent; False: there is no broker, or too much is waiting."""
        try:
            if not self.connected.is_set():
                raise Busy("no broker")
            payload = events.command(topic.station, uplink, downlink, self._region, self._power_dbm)
            until_s = heard_s + downlink.rx_delay_s + 1
            self._commands.put_nowait(_Command(f"{topic.root}/command/down", payload, until_s))
        except (BadInput, Busy, asyncio.QueueFull):
            self._count("undeliverable")
            return False
        self._outstanding[events.name(downlink)] = downlink.number
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
                self._lost(str(error) or type(error).__name__)
            except Exception as error:  # of whatever kind: it is no reason to end for ever
                self._lost(f"unexpected: {type(error).__name__}: {error}")
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # not all servers at the same time
            wait_s = min(2 * wait_s, self._limits.wait_max_s)

    async def _serve(self, client: aiomqtt.Client) -> None:
        """Read events and send commands, until the connection breaks."""
        while not self._commands.empty():  # of the last connection: nobody waits for them any more
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
                except Exception as error:  # the next event is another one
                    self._count("failed")
                    self._complaints.tell(str(message.topic)[:100], f"unexpected: {type(error).__name__}: {error}")
        finally:
            self.connected.clear()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    def _lost(self, why: str) -> None:
        self._count("disconnects")
        if why != self.problem:  # once for each cause, however often it is tried again
            log.error("no connection to %s: %s", self.address, why)
        self.problem = why

    async def _send(self, client: aiomqtt.Client) -> None:
        while True:
            command = await self._commands.get()
            if time.monotonic() > command.until_s:
                self._count("late")
                continue
            try:
                await client.publish(command.topic, command.payload, QOS)
                self._count("downlinks")
            except Exception:  # of whatever kind: the next command is another one
                self._count("undeliverable")

    async def _take(self, text: str, message: aiomqtt.Message) -> None:
        self._count("events")
        topic, payload = events.read_topic(text), message.payload
        if topic is None or not isinstance(payload, bytes | bytearray):
            self._count("not_protocol")
        elif message.retain:  # the bridge retains no events: whatever this is, it is not of now
            self._count("retained")
        elif topic.event == "up":
            await self._up(topic, bytes(payload))
        elif topic.event in ("ack", "txack"):
            self._acked(topic, bytes(payload))
        else:
            self._count("stats" if topic.event == "stats" else "other_events")

    async def _up(self, topic: events.Topic, payload: bytes) -> None:
        try:
            heard = events.heard(payload, topic.station, self._region)
        except BadInput as error:
            self._refuse(topic.station, error)
            return
        if heard is None:
            self._count("crc_failed")
            return
        back = _Way(self, topic, heard) if heard.context else None
        reception = Reception(heard.frame, topic.station, heard.radio, back, self._clock_ms())
        deadline = time.monotonic() + self._limits.busy_s
        self._receiver.arrive()
        while True:
            try:
                self._receiver.hear(reception)
            except Busy as busy:
                try:
                    if time.monotonic() < deadline:
                        await asyncio.sleep(BUSY_STEP_S)
                        continue
                except asyncio.CancelledError:  # the server ends
                    self._receiver.refuse(topic.station, BUSY, str(busy))
                    raise
                self._count("busy")
                self._receiver.refuse(topic.station, BUSY, str(busy))
            else:
                self._count("frames")
            return

    def _acked(self, topic: events.Topic, payload: bytes) -> None:
        try:
            name, done = events.outcome(payload)
        except BadInput as error:
            self._refuse(topic.station, error)
            return
        self._count("tx_ok" if done else "tx_failed")
        number = self._outstanding.pop(name, None) if name is not None else None
        if done and number is not None:
            self._receiver.transmitted(number)

    def _refuse(self, station: str, error: BadInput) -> None:
        self._count("malformed")
        self._complaints.tell(station, str(error))
        self._receiver.arrive()
        self._receiver.refuse(station, MALFORMED, str(error))

    def _count(self, name: str) -> None:
        self._counts[name] += 1


class _Way:
    """The way back after one uplink."""

    __slots__ = ("_heard", "_heard_s", "_link", "_topic")

    def __init__(self, link: ChirpstackMqtt, topic: events.Topic, heard: events.Heard) -> None:
        self._link, self._topic, self._heard = link, topic, heard
        self._heard_s = time.monotonic()

    def send(self, downlink: Downlink) -> bool:
        """Hand it to the gateway, by way of the broker."""
        return self._link.transmit(self._topic, self._heard, downlink, self._heard_s)
