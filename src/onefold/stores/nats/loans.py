"""What is on loan: the consumers that give parcels out, their leases, and when those run out."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from nats.aio.client import Client
from nats.aio.msg import Msg

from onefold.ports import Delivery
from onefold.stores.nats.pulling import ConsumerGone, pull
from onefold.stores.nats.streams import Names, Receipt, consumer_config

TURN_S = 0.1
"""How long some queues are waited for before others are, when there are more queues than parcels wanted."""


class Loans:
    """The loans of one `NatsQueue`. Used by the thread of its event loop alone."""

    def __init__(self, names: Names, timeout_s: float) -> None:
        """Begin with none."""
        self._names = names
        self._timeout_s = timeout_s
        self._leases_ms: dict[str, int] = {}  # by consumer, what it was told
        self._until: dict[str, float] = {}  # by receipt, when the lease runs out; the first to do so stands first
        self._turn = 0

    def forget_consumers(self) -> None:
        """On a new connection, or when one is missing, they are made anew or found as they are."""
        self._leases_ms.clear()

    async def lease(
        self, client: Client, queues: Sequence[str], limit: int, lease_ms: int, wait_s: float
    ) -> list[Delivery]:
        """At most so many of these queues; waits for the first one."""
        deadline = monotonic() + wait_s
        consumers = [await self._made(client, queue, lease_ms) for queue in queues]
        try:
            found = await self._pull_now(client, consumers, limit)
            while not found and (left_s := deadline - monotonic()) > 0:
                found = await self._pull_first(client, consumers, limit, left_s)
                if found and len(found) < limit:  # it seldom comes alone
                    found += await self._pull_now(client, consumers, limit - len(found))
        except ConsumerGone:
            self.forget_consumers()
            raise
        return self._lent(found, lease_ms)

    def extended(self, receipts: Sequence[str], lease_ms: int) -> list[str]:
        """Those whose leases still run; from now on they are taken to run from now."""
        now = monotonic()
        running = [receipt for receipt in dict.fromkeys(receipts) if self._until.get(receipt, 0) > now]
        for receipt in running:
            del self._until[receipt]
            self._until[receipt] = now + self._leases_ms.get(Receipt.parse(receipt).consumer, lease_ms) / 1000
        return running

    def ended(self, receipts: Sequence[str]) -> None:
        """They are on loan to us no more."""
        for receipt in receipts:
            self._until.pop(receipt, None)

    async def _made(self, client: Client, queue: str, lease_ms: int) -> str:
        consumer = self._names.consumer(queue)
        if self._leases_ms.get(consumer) != lease_ms:
            config = consumer_config(self._names, queue, lease_ms)
            await client.jetstream(timeout=self._timeout_s).add_consumer(self._names.stream, config)
            self._leases_ms[consumer] = lease_ms
        return consumer

    async def _pull_now(self, client: Client, consumers: Sequence[str], limit: int) -> list[Msg]:
        """What there is: each round asks for equal shares, of those that may have more."""
        found: list[Msg] = []
        rest = self._in_turn(consumers)
        while rest and len(found) < limit:
            pulled = await pull(client, self._names.stream, _shares(rest, limit - len(found)))
            found += pulled.parcels
            rest = [consumer for consumer in rest if consumer not in pulled.emptied]
        return found

    async def _pull_first(self, client: Client, consumers: Sequence[str], limit: int, left_s: float) -> list[Msg]:
        asked = dict.fromkeys(self._in_turn(consumers)[:limit], 1)  # one each: no more can come than are wanted
        wait_s = left_s if len(asked) == len(consumers) else min(left_s, TURN_S)
        return (await pull(client, self._names.stream, asked, wait_s)).parcels

    def _in_turn(self, consumers: Sequence[str]) -> list[str]:
        """The same, beginning with another one each time."""
        self._turn += 1
        first = self._turn % len(consumers)
        return [*consumers[first:], *consumers[:first]]

    def _lent(self, found: Sequence[Msg], lease_ms: int) -> list[Delivery]:
        now = monotonic()
        while self._until and next(iter(self._until.values())) <= now:
            del self._until[next(iter(self._until))]
        lent = sorted((Receipt.parse(msg.reply).sequence, msg.reply, msg) for msg in found)
        for _, receipt, _ in lent:
            self._until[receipt] = now + lease_ms / 1000
        return [
            Delivery(self._names.queue(msg.subject), msg.data, receipt, Receipt.parse(receipt).times)
            for _, receipt, msg in lent
        ]


def _shares(consumers: Sequence[str], limit: int) -> dict[str, int]:
    """Equal shares of the limit, the first ones get what is left over.

    >>> _shares(["a", "b", "c"], 7), _shares(["a", "b", "c"], 2)
    ({'a': 3, 'b': 2, 'c': 2}, {'a': 1, 'b': 1})
    """
    share, over = divmod(limit, len(consumers))
    shares = {consumer: share + (at < over) for at, consumer in enumerate(consumers)}
    return {consumer: many for consumer, many in shares.items() if many}
