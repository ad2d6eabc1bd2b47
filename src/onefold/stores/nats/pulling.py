"""Asking several consumers for parcels at once, over one inbox.

A pull is a message with an address for the answers: parcels, and at the end a word (404: no more, 408: the time is up).
When the first parcel is here nobody wants the other pulls any more. Then the inbox is given up, and one more round trip
shows that the server knows it: from then on it gives nothing to those pulls, and what it gave before has arrived. So no
parcel is on loan to nobody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg

from onefold.errors import StoreFailed
from onefold.stores.nats.streams import Receipt

_NO_MORE = ("404", "408")
_UNLIMITED = 0  # of what an inbox holds: it is bounded by what was asked for


class ConsumerGone(StoreFailed):
    """Somebody removed the consumer, or the stream: it is made again by the next call."""


@dataclass(slots=True)
class Pulled:
    """What came of it."""

    parcels: list[Msg] = field(default_factory=list)
    emptied: set[str] = field(default_factory=set)
    """The consumers that had no more."""


async def pull(client: Client, stream: str, wanted: Mapping[str, int], wait_s: float = 0) -> Pulled:
    """So many parcels of each consumer at most.

    Without a wait: what they have now. With one: until the first parcel is there or the time is up.
    """
    pulled, left = Pulled(), dict(wanted)
    consumers = list(wanted)
    enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    inbox = client.new_inbox()

    async def take(msg: Msg) -> None:
        if msg.subject.startswith(inbox):
            consumer = consumers[int(msg.subject.rpartition(".")[2])]
            status = (msg.headers or {}).get("Status", "")
            if status in _NO_MORE:
                pulled.emptied.add(consumer)
            elif not enough.done():
                enough.set_exception(_trouble(stream, consumer, status, msg))
            left.pop(consumer, None)
        else:
            pulled.parcels.append(msg)
            consumer = Receipt.parse(msg.reply).consumer
            left[consumer] -= 1
            if left[consumer] == 0:
                del left[consumer]
        if not enough.done() and (not left or (wait_s and pulled.parcels)):
            enough.set_result(None)

    subscription = await client.subscribe(
        f"{inbox}.*", cb=take, pending_msgs_limit=_UNLIMITED, pending_bytes_limit=_UNLIMITED
    )
    try:
        for number, (consumer, batch) in enumerate(wanted.items()):
            await client.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", _asked(batch, wait_s), reply=f"{inbox}.{number}"
            )
        await enough
    finally:
        if left:
            await subscription.drain()  # type: ignore[no-untyped-call]
        else:
            await subscription.unsubscribe()
    return pulled


def _asked(batch: int, wait_s: float) -> bytes:
    how = {"expires": int(wait_s * 1e9)} if wait_s else {"no_wait": True}
    return json.dumps({"batch": batch, **how}).encode()


def _trouble(stream: str, consumer: str, status: str, msg: Msg) -> StoreFailed:
    told = (msg.headers or {}).get("Description", "")
    if status == "503" or "Deleted" in told:
        return ConsumerGone(f"stream {stream}: the consumer {consumer} is not there")
    return StoreFailed(f"stream {stream}: consumer {consumer}: {status} {' '.join(told.split())}")
