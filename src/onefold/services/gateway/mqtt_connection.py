"""A connection to an MQTT broker: aiomqtt, with bounds, without noise, and with an end that leaves nothing behind."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiomqtt

from onefold.services.gateway.mqtt_address import MqttAddress

QOS: Final = 1
QUIET: Final = logging.Logger("onefold.gateway.paho", logging.CRITICAL)
"""What paho has to say is said once, by us, when a connection is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttLimits:
    """Every bound of the link."""

    event_bytes_max: int = 64 << 10
    """An uplink has about 1,000; statistics of a busy gateway a few thousand."""
    events_max: int = 1_000
    """Events that wait to be read."""
    commands_max: int = 1_000
    """Commands that wait to be sent, and those whose outcome is waited for."""
    senders: int = 16
    """Commands under way to the broker at once; of more than 20, paho would queue the rest itself."""
    busy_s: float = 0.5
    """How long an event waits for the service to have room; longer is of no use to its downlink."""
    answer_s: float = 10
    """For the broker to answer."""
    wait_min_s: float = 0.5
    wait_max_s: float = 30
    """Between two attempts to connect; the bridge itself waits up to a minute."""


@contextlib.asynccontextmanager
async def connection(
    address: MqttAddress, limits: MqttLimits, count: Callable[[str], None]
) -> AsyncIterator[aiomqtt.Client]:
    """A client that is connected and subscribed; `aiomqtt.MqttError` or `OSError` when that fails, or breaks."""
    client = aiomqtt.Client(
        address.host,
        address.port,
        username=address.user,
        password=address.password,
        tls_context=address.context(),
        logger=QUIET,
        timeout=limits.answer_s,
        queue_type=_queue(limits.event_bytes_max, count),
        max_queued_incoming_messages=limits.events_max,
    )
    try:
        async with client:
            for topic in address.topics:
                granted: Any = await client.subscribe(topic, QOS)
                if any(code.is_failure for code in granted):
                    raise aiomqtt.MqttError(f"the broker refuses the subscription to {topic}")
            yield client
    finally:  # after an attempt that failed, aiomqtt leaves the socket and a task behind
        client._client.on_disconnect = None
        client._client.disconnect()


def _queue(event_bytes_max: int, count: Callable[[str], None]) -> type[asyncio.Queue[aiomqtt.Message]]:
    class Events(asyncio.Queue[aiomqtt.Message]):
        """What the broker sent, within the limits; aiomqtt's own would drop in silence."""

        def put_nowait(self, item: aiomqtt.Message) -> None:
            if len(item.payload) > event_bytes_max:
                count("oversize")
            elif self.full():
                count("queue_full")
            else:
                super().put_nowait(item)

    return Events
