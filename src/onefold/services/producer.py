"""A producer: publishes to a topic so that every message is stored once, through crashes on either side.

Each message has a sequence id, and the topic remembers for each producer's name what it has stored. A message that was
sent and not answered is simply sent again with the same id. A program that restarts under the same name asks
`Producer.last_sequence_id` and goes on after it: nothing is doubled, nothing is missing. From Pulsar's PIP-6.

    names      chosen: stable over restarts, and yours alone; a second producer of the name shuts the first one out.
               Not chosen: a unique one is given out; then retries are safe, but a restart knows nothing of before
    ids        counted from after the last stored one, or your own: then for every message, ascending, with holes if you
               like (the offset in a file, the id of a row: no second book to keep)
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from onefold.engines.producers.names import SEQUENCE_MAX
from onefold.errors import Misuse
from onefold.services.connections import Way
from onefold.services.producing import Sender
from onefold.services.requests import Receipt
from onefold.services.topics import Topics

Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """How much may wait, and for how long."""

    unanswered_max: int = 10_000
    """Messages handed over and not answered; `Producer.send_async` waits for room. Pulsar has 1,000, Kafka 32 MiB."""
    unanswered_bytes_max: int = 64 << 20
    answer_s: float = 30
    """A server that does not answer for so long counts as lost. Kafka has 30 s too."""


class Producer:
    """Publishes to a topic; all methods may be called from any thread.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Producer("orders", at=folder, name="till") as producer:
    ...         print(producer.last_sequence_id, producer.send(b"1 coffee"), producer.last_sequence_id)
    ...     with Producer("orders", at=folder, name="till") as producer:  # the program was restarted
    ...         print(producer.last_sequence_id, producer.send(b"2 teas").reason)
    -1 Receipt(verdict=<Verdict.FIRST: 'FIRST'>, reason='new', offset=1) 0
    0 new
    """

    def __init__(
        self,
        topic: str,
        *,
        at: str | Path | Topics = "onefold-log",
        name: str | None = None,
        initial_sequence_id: int | None = None,
        token: str | None = None,
        retry_s: float | None = 60,
        limits: ProducerLimits | None = None,
    ) -> None:
        """Connect to a topic.

        ``at`` is the address of a server (http://, https://, ws://, wss://), a folder with topics, which this producer
        then has for itself, or open `Topics`. ``initial_sequence_id`` is the id of the first message; by default it
        follows the last stored one. Trouble that may pass is waited for, up to ``retry_s``; None: for ever.
        """
        if initial_sequence_id is not None:
            _check(initial_sequence_id)
        if retry_s is not None and not retry_s >= 0:
            raise Misuse(f"retry_s is {retry_s}, must be at least 0, or None: for ever", retry_s=retry_s)
        limits = limits or ProducerLimits()
        self._sender = Sender(
            Way(topic, at, token, limits.answer_s),
            name,
            retry_s=retry_s,
            count_max=limits.unanswered_max,
            bytes_max=limits.unanswered_bytes_max,
        )
        start = max(self._sender.claim.last_sequence_id, self._sender.claim.floor) + 1
        self._next = start if initial_sequence_id is None else initial_sequence_id
        self._lowest = 0 if initial_sequence_id is None else initial_sequence_id
        self._own_ids: bool | None = None

    @property
    def name(self) -> str:
        """The chosen or assigned name."""
        return str(self._sender.claim.name)

    @property
    def epoch(self) -> int:
        """How many times the name was opened: it rises with every connection, and only the newest may send."""
        return self._sender.claim.epoch

    @property
    def last_sequence_id(self) -> int:
        """The highest id of this name that is known to be stored; -1: none."""
        return self._sender.claim.last_sequence_id

    @property
    def floor(self) -> int:
        """Ids at or below it cannot be stored: the topic forgot a producer that may have had them; -1: it did not."""
        return self._sender.claim.floor

    @property
    def message_bytes_max(self) -> int:
        """How large a payload may be."""
        return self._sender.message_bytes_max

    def send(self, payload: Payload, sequence_id: int | None = None) -> Receipt:
        """Store a message; returns when it is on disk, or when the topic has said that it will not be."""
        if self._sender.here:
            raise Misuse("send waits for an answer, and may not be called by the callback of one: use send_async")
        return self._hand_over(payload, sequence_id, awaited=True).result()

    def send_async(self, payload: Payload, sequence_id: int | None = None) -> Future[Receipt]:
        """Hand a message over and go on; waits only while too many have no answer yet.

        The future can be waited for, not cancelled: what is on its way cannot be called back.
        """
        return self._hand_over(payload, sequence_id)

    async def asend(self, payload: Payload, sequence_id: int | None = None) -> Receipt:
        """Like `send`, for asyncio. Many may wait at once; those that were called first are stored first."""
        # No waiting for room: who awaits this holds the payload anyway.
        return await asyncio.wrap_future(self._hand_over(payload, sequence_id, wait=False, awaited=True))

    def _hand_over(
        self, payload: Payload, sequence_id: int | None, *, wait: bool = True, awaited: bool = False
    ) -> Future[Receipt]:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise Misuse(f"a payload is bytes, not {type(payload).__name__}: encode it first")
        data = bytes(payload)
        if len(data) > self.message_bytes_max:
            raise Misuse(
                f"a payload of {len(data):,} bytes: the topic takes {self.message_bytes_max:,}", size=len(data)
            )
        return self._sender.hand_over(data, self._number(sequence_id), wait=wait, awaited=awaited)

    def _number(self, sequence_id: int | None) -> Callable[[], int]:
        """What chooses the id, called under the queue's lock."""
        if sequence_id is not None:
            _check(sequence_id)

        def number() -> int:
            own = sequence_id is not None
            if self._own_ids is not None and self._own_ids != own:
                raise Misuse("sequence ids: all messages of a producer carry their own, or none does")
            if sequence_id is not None and sequence_id < self._lowest:
                raise Misuse(
                    f"sequence id {sequence_id}: must ascend, the next is at least {self._lowest}", sequence=sequence_id
                )
            self._own_ids = own
            given = max(self._next, self._sender.claim.floor + 1) if sequence_id is None else sequence_id
            if given > SEQUENCE_MAX:
                raise Misuse(f"sequence id {given}: the last possible one is {SEQUENCE_MAX}", sequence=given)
            self._next = self._lowest = given + 1
            return given

        return number

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed over has an answer; False: not in that time.

        Raises, once, if messages that nobody waits for could not be stored. A verdict is in its message's future only.
        """
        left = wait(self._sender.unanswered(), timeout_s).not_done
        if self._sender.dead is not None and self._sender.lost:
            self._sender.lost = 0  # told
            raise self._sender.dead
        return not left

    def close(self) -> None:
        """Wait for all answers and let go; raises if messages that were handed over could not be stored."""
        try:
            self.flush()
        finally:
            self._sender.close()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, Exception):  # what was handed over before is still wanted
            wait(self._sender.unanswered())
        self._sender.close()  # an interrupt does not wait for a server that may not come back


def _check(sequence_id: int) -> None:
    if type(sequence_id) is not int or not 0 <= sequence_id <= SEQUENCE_MAX:
        raise Misuse(f"sequence id {sequence_id!r}: must be a whole number from 0 to 2^63 - 2", sequence=sequence_id)
