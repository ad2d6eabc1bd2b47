"""A queue in NATS JetStream, for endpoints on several machines.

A parcel is a message of a work-queue stream, a queue is a subject of it with one durable pull consumer that is made
when somebody first leases. A receipt is the address that NATS wants its acknowledgement at.

What differs from a queue in a database:

- The lease is a setting of the consumer (``ack_wait``), the same for all parcels of a queue, also for those on loan
  already. A lease of another length changes it. So all who lease from one queue should ask for the same; `extend`
  begins the same time anew, whatever length it is asked for.
- Of several queues each gives its oldest, and each gets its share; there is no order among them but in the answer.
- An acknowledgement that comes late removes the parcel also when it was given out again.
- A dead letter is stored first and acknowledged then: a crash between leaves a copy, which has the same token.

Durable means that the server wrote the parcel to its file before it answered. It syncs the file every two minutes
unless told otherwise: that outlives a crash of the server, and a power cut only with replicas, or with
``sync_interval: always`` in the settings of the server. A client cannot see which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec

from nats.aio.client import Client
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from onefold.engines.outbox.handling import check_queue
from onefold.errors import Misuse
from onefold.ports import Buried, Delivery, Parcel, Strayed
from onefold.stores.addresses import check_timeout
from onefold.stores.nats.address import Address, parse
from onefold.stores.nats.link import Link
from onefold.stores.nats.loans import Loans
from onefold.stores.nats.sending import IN_FLIGHT_MAX, Letter, publish, tell
from onefold.stores.nats.streams import Names, Receipt, make_streams
from onefold.stores.queues import REASON_MAX, check_lease, check_least, check_parcels, letter_number

STREAM = "onefold"
TIMEOUT_S = 5.0
"""For each answer; nats-py's own for JetStream."""
_REASON = "Onefold-Reason"


class NatsQueue:
    """A `Queue` in two streams of one JetStream server or cluster; threads may share it.

    Nothing is asked of the server before the first call, and a server that went away and came back is found again.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str = STREAM,
        replicas: int | None = None,
        timeout_s: float = TIMEOUT_S,
        credentials: str | None = None,
    ) -> None:
        """Point at ``nats://[user:password@ | token@]host[:port]``, or ``tls://``; several hosts with commas between.

        ``credentials`` is a file as NATS makes them for users. ``replicas`` is how many servers keep each parcel; a
        stream that is there already must have as many (None: whatever it has). Each answer may take ``timeout_s``.
        """
        address = parse(url)
        if "?" in url:
            raise Misuse(f"{address}: options behind a '?' are for open_queue")
        check_timeout(address, timeout_s)
        if credentials is not None:
            _check_credentials(address, credentials)
        if replicas is not None:
            check_least("replicas", replicas, 1)
        self.url = str(address)
        self._names, self._replicas, self._timeout_s = Names(stream), replicas, timeout_s
        self._link = Link(address, timeout_s, credentials=credentials, prepare=self._prepare)
        self._loans = Loans(self._names, timeout_s)

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Take them all; many are under way at once, and each is waited for."""
        check_parcels(parcels)
        letters = [Letter(self._names.subject(queue), payload) for queue, payload in parcels]

        async def work(client: Client) -> None:
            for queue, payload in parcels:
                if len(payload) > client.max_payload:
                    told = f"{len(payload)} bytes, more than the {client.max_payload} that the server takes"
                    raise Misuse(f"{self.url}: a parcel for {queue} has {told}", queue=queue)
            await publish(client, letters, self._timeout_s)

        self._link.run(work, self._more_s(len(letters)))

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[Delivery]:
        """The oldest of each queue, and of all their share."""
        queues = check_lease(queues, limit, lease_ms, wait_ms)
        wait_s = wait_ms / 1000
        return self._link.run(lambda client: self._loans.lease(client, queues, limit, lease_ms, wait_s), wait_s)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Let them be removed from the stream; late ones too."""
        self._settle(deliveries, b"+ACK")

    def extend(self, deliveries: Sequence[Delivery], lease_ms: int) -> None:
        """Let the leases run from now, of those that still do; for as long as the consumer has it."""
        check_least("lease_ms", lease_ms, 1)
        receipts = self._receipts(deliveries)

        async def work(client: Client) -> None:
            await tell(client, self._loans.extended(receipts, lease_ms), b"+WPI", self._timeout_s)

        self._link.run(work)

    def release(self, deliveries: Sequence[Delivery], delay_ms: int = 0) -> None:
        """Give them out again, after so long."""
        check_least("delay_ms", delay_ms, 0)
        self._settle(deliveries, f'-NAK {{"delay": {delay_ms * 1_000_000}}}'.encode() if delay_ms else b"-NAK")

    def bury(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Store them as dead letters, then acknowledge them."""
        headers = {_REASON: json.dumps(reason[:REASON_MAX])}  # as JSON it is ASCII, and on one line
        letters = [Letter(self._names.dead_subject(each.queue), each.payload, headers) for each in deliveries]
        self._settle(deliveries, b"+ACK", letters)

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[Buried]:
        """Dead letters, oldest first. Cost: a round trip for each."""
        check_least("limit", limit, 1)
        subject = self._names.dead_subject(">" if queue is None else check_queue(queue))

        async def work(client: Client) -> list[Buried]:
            js = client.jetstream(timeout=self._timeout_s)
            found: list[Buried] = []
            after = 0
            try:
                while len(found) < limit:
                    letter = await js.get_msg(self._names.dead, seq=after + 1, subject=subject, next=True)
                    after = letter.seq or 0
                    found.append(self._letter(letter))
            except NotFoundError:
                return found
            return found

        return self._link.run(work, self._more_s(limit))

    def dig_up(self, letters: Sequence[Buried], *, deliver: bool) -> None:
        """Send each anew and remove it then, or only remove it; one that is not there any more does no harm."""
        numbers = [letter_number(letter) for letter in dict.fromkeys(letters)]

        async def work(client: Client) -> None:
            js = client.jetstream(timeout=self._timeout_s)
            for number in numbers:
                try:
                    letter = await js.get_msg(self._names.dead, seq=number)
                    if deliver:
                        queue = self._names.queue(letter.subject or "")
                        await js.publish(self._names.subject(queue), letter.data or b"")
                    await js.delete_msg(self._names.dead, number)
                except NotFoundError:
                    continue

        self._link.run(work, self._more_s(len(numbers)))

    def waiting(self) -> dict[str, int]:
        """How many parcels each queue holds."""

        async def work(client: Client) -> dict[str, int]:
            js = client.jetstream(timeout=self._timeout_s)
            info = await js.stream_info(self._names.stream, subjects_filter=">")
            return {self._names.queue(subject): many for subject, many in (info.state.subjects or {}).items()}

        return self._link.run(work)

    def strayed(self, *, mend: bool = False) -> list[Strayed]:
        """None that can be seen: leases and delays go by the server's clock, and it does not tell when they end."""
        self._link.run(_nothing)
        return []

    def close(self) -> None:
        """Let go of the connection; what is on loan to us comes again when its lease runs out."""
        self._link.close()

    async def _prepare(self, client: Client) -> None:
        self._loans.forget_consumers()
        await make_streams(client.jetstream(timeout=self._timeout_s), self._names, self._replicas)

    def _settle(self, deliveries: Sequence[Delivery], word: bytes, letters: Sequence[Letter] = ()) -> None:
        """Say the word to each delivery, after these letters were stored."""
        receipts = self._receipts(deliveries)

        async def work(client: Client) -> None:
            await publish(client, [letter.fit(client.max_payload) for letter in letters], self._timeout_s)
            await tell(client, receipts, word, self._timeout_s)
            self._loans.ended(receipts)

        self._link.run(work, self._more_s(len(letters)))

    def _receipts(self, deliveries: Sequence[Delivery]) -> list[str]:
        for delivery in deliveries:
            if Receipt.parse(delivery.receipt).stream != self._names.stream:
                raise Misuse(f"no receipt of stream {self._names.stream}: {delivery.receipt}", receipt=delivery.receipt)
        return [delivery.receipt for delivery in deliveries]

    def _letter(self, stored: RawStreamMsg) -> Buried:
        reason = _reason((stored.headers or {}).get(_REASON, '""'))
        at_ms = round(stored.time.timestamp() * 1000) if stored.time else 0
        return Buried(self._names.queue(stored.subject or ""), stored.data or b"", str(stored.seq), reason, at_ms)

    def _more_s(self, many: int) -> float:
        """The time that so many may take beyond that of one."""
        return many / IN_FLIGHT_MAX * self._timeout_s


def _reason(header: str) -> str:
    """Why it is a dead letter; what somebody else wrote there is told as it is."""
    try:
        told = json.loads(header)
    except (ValueError, RecursionError):
        told = header
    return told if isinstance(told, str) else header


async def _nothing(_client: Client) -> None:
    """Only whether the server answers."""


def _check_credentials(address: Address, file: str) -> None:
    if not file:
        raise Misuse(f"{address}: credentials is '': name a file")
    if find_spec("nkeys") is None:  # nats-py signs with it, and does without it otherwise
        raise Misuse(f"{address}: credentials need the package nkeys: pip install nkeys", credentials=file)
