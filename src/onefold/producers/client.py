"""A producer: publishes to a topic so that every message is stored once, through crashes on either side.

Each message has a sequence id, and the topic remembers for each producer's name what it has stored. A message that was
sent and not answered is simply sent again with the same id. A program that restarts under the same name asks
`Producer.last_sequence_id` and goes on after it: nothing is doubled, nothing is missing. From Pulsar's PIP-6.

    names      chosen: stable over restarts, and yours alone; a second producer of the name shuts the first one out.
               Not chosen: a unique one is given out; then retries are safe, but a restart knows nothing of before
    ids        counted from after the last stored one, or your own: then for every message, ascending, with holes if you
               like (the offset in a file, the id of a row: no second book to keep)

A thread takes the messages to the topic, in order, through any trouble. All that waits goes out in batches,
as large as the topic takes them, while earlier ones are on their way; what comes while an answer is awaited goes out
with the next: the slower the topic, the larger the batches.

Trouble (a lost connection, a busy server, a failed store, an UNSURE that will clear up) ends the connection. All that
was not answered goes back to the front of what waits, in order, with the same ids, and is sent again over a new one. A
part of it may have been stored: the topic says REPEAT to that, and that is an answer. So nothing is stored twice,
nothing is left out, and nothing is ever stored before something that was handed over earlier.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from onefold.decoding import read_json
from onefold.errors import BadInput, Busy, Misuse, OnefoldError, StoreFailed
from onefold.producers.records import SEQUENCE_MAX
from onefold.producers.requests import Message, ProducerSession, Receipt
from onefold.producers.topic import Topic, Topics, topic_folder
from onefold.producers.wire import WireStatus, decode_reply, encode_request
from onefold.verdict import Verdict

GHOST_S: Final = 60.0
"""How long a try that was given up may still be in some queue on the way."""


class ClientClaim:
    """A producer's name, its epoch, and how far it is stored: tells its own new connection from another producer.

    Every opening of a name gets the next epoch, and only the newest may write. If somebody else opened the name before
    a producer opens it again, that one is the producer now, and this one must stop: its messages would be taken for
    repeats of the other's.

        epoch one above mine                    nobody was there
        epoch further above                     that many openings in between: another producer, or ghosts
        something stored beyond all I sent      another producer

    A *ghost* is an opening of my own whose greeting was lost: it may have counted, even a little later than the next.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.epoch = 0
        self.last_sequence_id = -1
        """The highest id that is known to be stored."""
        self.sent = -1
        """The highest id that this producer has ever sent."""
        self.floor = -1
        self._ghosts = 0
        self._ghost_at = 0.0

    def unsure(self, now: float) -> None:
        """A try to open the name ended without an answer."""
        self._ghosts = self._around(now) + 1
        self._ghost_at = now

    def opened(self, session: ProducerSession, now: float) -> None:
        """The name was opened, perhaps again; `Misuse` if it shows that it is another producer's now."""
        if self.epoch:
            # A topic that forgot the producer gives out epochs above all that were forgotten, not the next one.
            forgotten = session.last_sequence_id < max(self.last_sequence_id, session.floor)
            between = 0 if forgotten else session.epoch - self.epoch - 1
            if between > self._around(now) or session.last_sequence_id > max(self.sent, self.last_sequence_id):
                raise self._taken()
            self._ghosts -= between
        self.name, self.epoch, self.floor = session.name, session.epoch, session.floor
        self.last_sequence_id = max(self.last_sequence_id, session.last_sequence_id)

    def fenced(self, now: float) -> Exception:
        """What it means that a newer epoch was given out: `Busy` if a ghost may have got it, or else `Misuse`."""
        if self._around(now):
            return Busy(f"producer {self.name!r}: an earlier try to connect came through late", name=self.name)
        return self._taken()

    def _around(self, now: float) -> int:
        return self._ghosts if now - self._ghost_at < GHOST_S else 0

    def _taken(self) -> Misuse:
        text = f"producer {self.name!r}: another producer took this name; this one may not send any more"
        return Misuse(text, name=self.name, epoch=self.epoch)


OUTSTANDING_MAX: Final = 16
"""As many requests as a server lets a connection have on their way; Kafka's producers have 5, and keep order so."""
BATCH_MESSAGES_MAX: Final = 1_000
"""Even where more are allowed: a part of what waits should be on its way while the rest is being packed."""
BATCH_BYTES_MAX: Final = 1 << 20
"""Kafka's producers allow as much for a request."""
OPEN_S: Final = 10.0
"""For a connection to come about; websockets has as much."""
HEAD_BYTES: Final = 256
"""Of a request on the wire, its name with it; at least."""
MESSAGE_BYTES: Final = 12
"""Of a message on the wire, besides its payload."""


class BatchLimits(NamedTuple):
    message_bytes_max: int
    batch_messages_max: int
    batch_bytes_max: int
    outstanding_max: int


class Embedded:
    """A session with a topic of this process: one batch at a time, which is one group of the log."""

    def __init__(self, topic: Topic, name: str | None) -> None:
        self.session = topic.connect(name)
        self.limits = BatchLimits(topic.settings.message_bytes_max, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX, 1)
        self._topic = topic
        self._waiting: Sequence[Message] = ()

    def send(self, messages: Sequence[Message]) -> None:
        self._waiting = messages  # judged and stored when its receipts are asked for

    def receive(self) -> list[Receipt]:
        return self._topic.publish(self.session.name, self._waiting, self.session.epoch)

    def close(self) -> None:
        pass  # the topic goes on


class Remote:
    """A session with a topic of a server; batches are answered in order, and after an error it is done with."""

    def __init__(self, url: str, token: str | None, answer_s: float) -> None:
        from onefold.net.websocket import WebSocket  # an extra: who embeds the log does without

        self._socket = WebSocket(url, token=token, open_s=min(OPEN_S, answer_s), answer_s=answer_s)
        self._expected: deque[tuple[int, int]] = deque()
        self._request = 0
        try:
            self.session, self.limits = _greeted(url, self._socket.greeting)
        except BaseException:
            self.close()
            raise

    def send(self, messages: Sequence[Message]) -> None:
        request, self._request = self._request, (self._request + 1) & 0xFFFF_FFFF
        self._expected.append((request, len(messages)))
        self._socket.send(encode_request(request, self.session.name, self.session.epoch, messages))

    def receive(self) -> list[Receipt]:
        request, count = self._expected.popleft()
        reply = decode_reply(self._socket.receive(), messages_max=count)
        if reply.request != request:
            raise BadInput(f"{self._socket.url}: a reply to request {reply.request}, expected {request}")
        if reply.status == WireStatus.REFUSED:
            raise Misuse(f"{self._socket.url}: refused: {reply.text}")
        if reply.status != WireStatus.OK and not reply.receipts:
            kind = Busy if reply.status == WireStatus.BUSY else StoreFailed
            raise kind(f"{self._socket.url}: {reply.text or 'busy'}")
        if len(reply.receipts) != count:
            raise BadInput(f"{self._socket.url}: {len(reply.receipts)} receipts for {count} messages")
        return reply.receipts

    def close(self) -> None:
        self._socket.close()


def _greeted(url: str, greeting: str | bytes) -> tuple[ProducerSession, BatchLimits]:
    try:
        fields = read_json(greeting, "the greeting")
        numbers = (int(fields[key]) for key in ("epoch", "last_sequence_id", "floor"))
        session = ProducerSession(str(fields["name"]), *numbers)
        messages_max = min(int(fields["batch_messages_max"]), BATCH_MESSAGES_MAX)
        bytes_max = min(int(fields["batch_bytes_max"]), BATCH_BYTES_MAX)
        if messages_max < 1:
            raise ValueError("no message fits into a batch")
        return session, BatchLimits(int(fields["message_bytes_max"]), messages_max, bytes_max, OUTSTANDING_MAX)
    except (BadInput, ValueError, KeyError, TypeError, OverflowError) as error:
        raise Misuse(f"{url}: not an ingest server: it greets with {greeting[:100]!r}", url=url) from error


class Way:
    def __init__(self, topic: str, at: str | Path | Topics, token: str | None, answer_s: float) -> None:
        """``at``: the address of a server, a folder of topics, or one that is open already."""
        self.close: Callable[[], None] = lambda: None
        self.connect: Callable[[str | None], Embedded | Remote]
        if isinstance(at, str) and "://" in at:
            from onefold.net.websocket import topic_url

            topic_url(at, topic, None)  # one that cannot be is refused now
            self.connect = lambda name: Remote(topic_url(at, topic, name), token, answer_s)
            self.name = f"topic {topic!r} at {at}"
        else:
            topics = at if isinstance(at, Topics) else Topics(at)
            topic_folder(topics.root, topic)
            self.connect = lambda name: Embedded(topics.topic(topic), name)
            self.name = f"topic {topic!r} at {topics.root}"
            if topics is not at:
                self.close = topics.close


TROUBLE: Final = (Busy, StoreFailed, ConnectionError)
"""What may be gone when it is tried again."""
CLOSE_S: Final = 0.2
"""An answer that is awaited when a producer is closed without waiting for it may still come, for so long."""
CLOSE_S_MAX: Final = 15.0
"""The longest that a thread is waited for; it is trying to connect, and can do no harm."""
NEW_EPOCH: Final = frozenset({"forgotten", "unknown_epoch", "epoch_missing"})
"""Reasons that a new epoch may put right, because the topic forgot the old one; asked once again, then believed."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
"""Of the pause between two tries, which doubles; gRPC goes from 1 to 120 s, for far more clients than a log has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    unanswered_max: int = 10_000
    """Messages handed over and not answered; `Producer.send_async` waits for room. Pulsar has 1,000, Kafka 32 MiB."""
    unanswered_bytes_max: int = 64 << 20
    answer_s: float = 30
    """A server that does not answer for so long counts as lost. Kafka has 30 s too."""


@dataclass(eq=False, slots=True)
class QueuedMessage:
    sequence: int
    payload: bytes
    awaited: bool
    """Somebody waits for the answer, and so gets to see an error."""
    future: Future[Receipt] = field(default_factory=Future)
    asked_again: bool = False


Payload: TypeAlias = bytes | bytearray | memoryview


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
        _check(initial_sequence_id)
        if retry_s is not None and not retry_s >= 0:
            raise Misuse(f"retry_s is {retry_s}, must be at least 0, or None: for ever", retry_s=retry_s)
        self._retry_s, self._limits = retry_s, limits or ProducerLimits()
        self._way = Way(topic, at, token, self._limits.answer_s)
        self._claim = ClientClaim(name)
        self._dead: Exception | None = None  # why nothing can be sent any more
        self._lost = 0  # messages that nobody waits for, and that had no answer when it died
        self._count = self._bytes = self.message_bytes_max = 0
        self._waiting: deque[QueuedMessage] = deque()  # handed over, not sent yet
        self._outstanding: deque[list[QueuedMessage]] = deque()  # batches of this connection that have no answer yet
        self._connection: Embedded | Remote | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._calm()
        self._thread = threading.Thread(target=self._run, name="onefold producer", daemon=True)
        try:
            self._try(self._connect)
            if self._dead is not None:
                raise self._dead
        except BaseException:
            self._disconnect()
            self._way.close()
            raise
        start = max(self._claim.last_sequence_id, self._claim.floor) + 1
        self._next = start if initial_sequence_id is None else initial_sequence_id
        self._lowest = 0 if initial_sequence_id is None else initial_sequence_id
        self._own_ids: bool | None = None
        self._calm()
        self._thread.start()

    @property
    def name(self) -> str:
        return str(self._claim.name)

    @property
    def epoch(self) -> int:
        """How many times the name was opened: it rises with every connection, and only the newest may send."""
        return self._claim.epoch

    @property
    def last_sequence_id(self) -> int:
        """The highest id of this name that is known to be stored; -1: none."""
        return self._claim.last_sequence_id

    @property
    def floor(self) -> int:
        """Ids at or below it cannot be stored: the topic forgot a producer that may have had them; -1: it did not."""
        return self._claim.floor

    def send(self, payload: Payload, sequence_id: int | None = None) -> Receipt:
        """Store a message; returns when it is on disk, or when the topic has said that it will not be."""
        if self._here:
            raise Misuse("send waits for an answer, and may not be called by the callback of one: use send_async")
        return self._hand_over(payload, sequence_id, awaited=True).result()

    def send_async(self, payload: Payload, sequence_id: int | None = None) -> Future[Receipt]:
        """Hand a message over; waits only while too many have no answer. The future cannot be cancelled."""
        return self._hand_over(payload, sequence_id)

    async def asend(self, payload: Payload, sequence_id: int | None = None) -> Receipt:
        """Like `send`, for asyncio. Many may wait at once; those that were called first are stored first."""
        # No waiting for room: who awaits this holds the payload anyway.
        return await asyncio.wrap_future(self._hand_over(payload, sequence_id, wait=False, awaited=True))

    @property
    def _here(self) -> bool:
        """Is this the producer's own thread, in the callback of a future? It must not wait for itself."""
        return threading.current_thread() is self._thread

    def _hand_over(
        self, payload: Payload, sequence_id: int | None, *, wait: bool = True, awaited: bool = False
    ) -> Future[Receipt]:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise Misuse(f"a payload is bytes, not {type(payload).__name__}: encode it first")
        data, limits = bytes(payload), self._limits
        if (size := len(data)) > self.message_bytes_max:
            raise Misuse(f"a payload of {size:,} bytes: the topic takes {self.message_bytes_max:,}", size=size)
        _check(sequence_id)
        with self._changed:
            while wait and self._count and self._dead is None and not self._closing.is_set() and not self._here:
                if self._count < limits.unanswered_max and self._bytes + size <= limits.unanswered_bytes_max:
                    break
                self._changed.wait()
            if self._closing.is_set():
                raise Misuse("this producer is closed")
            if self._dead is not None:
                raise self._dead
            item = QueuedMessage(self._number(sequence_id), data, awaited)
            item.future.set_running_or_notify_cancel()  # what is on its way cannot be called back
            self._waiting.append(item)
            self._count += 1
            self._bytes += size
            self._changed.notify_all()
        return item.future

    def _number(self, sequence_id: int | None) -> int:
        own = sequence_id is not None
        if self._own_ids not in (None, own):
            raise Misuse("sequence ids: all messages of a producer carry their own, or none does")
        sequence = max(self._next, self._claim.floor + 1) if sequence_id is None else sequence_id
        if own and sequence < self._lowest:
            text = f"sequence id {sequence}: must ascend, the next is at least {self._lowest}"
            raise Misuse(text, sequence=sequence)
        if sequence > SEQUENCE_MAX:
            raise Misuse(f"sequence id {sequence}: the last possible one is {SEQUENCE_MAX}", sequence=sequence)
        self._own_ids, self._next, self._lowest = own, sequence + 1, sequence + 1
        return sequence

    def _unanswered(self) -> dict[Future[Receipt], QueuedMessage]:
        with self._changed:
            items = chain(*self._outstanding, self._waiting)
            return {item.future: item for item in items if not item.future.done()}

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed over has an answer; False: not in that time.

        Raises, once, if messages that nobody waits for could not be stored. A verdict is in its message's future only.
        """
        unanswered = wait(self._unanswered(), timeout_s).not_done
        if self._dead is not None and self._lost:
            self._lost = 0  # raised once
            raise self._dead
        return not unanswered

    def close(self) -> None:
        """Wait for all answers and let go; raises if messages that were handed over could not be stored."""
        try:
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._here:
            return
        self._thread.join(CLOSE_S)
        connection = self._connection
        if self._thread.is_alive() and connection is not None:
            connection.close()  # it waits for an answer that nobody wants any more
        self._thread.join(CLOSE_S_MAX)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, Exception):  # what was handed over before is still wanted
            wait(self._unanswered())
        self._end()  # an interrupt does not wait for a server that may not come back

    def _run(self) -> None:
        while not self._closing.is_set() and self._dead is None:
            with self._changed:
                while not (self._waiting or self._outstanding or self._closing.is_set() or self._dead):
                    self._calm()
                    self._changed.wait()
            self._try(self._converse)
        error = self._dead or Misuse("the producer was closed before the answer: it may or may not be stored")
        with self._changed:
            unanswered = self._unanswered()
            self._lost += sum(not item.awaited for item in unanswered.values())
            self._outstanding.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for future in unanswered:
            future.set_exception(error)
        self._disconnect()
        self._way.close()

    def _calm(self) -> None:
        self._trouble_since: float | None = None
        self._pause_s = PAUSE_S

    def _try(self, step: Callable[[], object]) -> None:
        while self._dead is None and not self._closing.is_set():
            try:
                step()
                return
            except TROUBLE as error:
                self._disconnect()
                now = monotonic()
                since = self._trouble_since = now if self._trouble_since is None else self._trouble_since
                remaining = float("inf") if self._retry_s is None else since + self._retry_s - now
                if remaining > 0:
                    self._closing.wait(min(self._pause_s * random.uniform(0.5, 1), remaining))
                    self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
                    continue
                text = f"gave up after {self._retry_s:g} s: {error}"
                self._dead = ConnectionError(text)
                if isinstance(error, OnefoldError):
                    self._dead = type(error)(text, **error.values)
            except Exception as error:  # whatever it is: nobody may wait for ever
                self._disconnect()
                self._dead = error

    def _connect(self) -> Embedded | Remote:
        if self._connection is None:
            try:
                self._connection = self._way.connect(self._claim.name)
            except ConnectionRefusedError:
                raise  # it was not opened, for certain
            except (ConnectionError, Busy):  # somebody on the way may have said busy after it was opened
                self._claim.unsure(monotonic())
                raise
            self._claim.opened(self._connection.session, monotonic())
            self.message_bytes_max = self._connection.limits.message_bytes_max
        return self._connection

    def _disconnect(self) -> None:
        """Drop the connection; what it did not answer goes back to the front, in order."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with self._changed:
            for batch in reversed(self._outstanding):
                self._waiting.extendleft(item for item in reversed(batch) if not item.future.done())
            self._outstanding.clear()

    def _converse(self) -> None:
        """Send what waits, as far as it may be on its way, and take one answer."""
        connection = self._connect()
        while len(self._outstanding) < connection.limits.outstanding_max and (batch := self._batch(connection.limits)):
            connection.send([(item.sequence, item.payload) for item in batch])
        if self._outstanding:
            self._settle(connection.receive())

    def _batch(self, limits: BatchLimits) -> list[QueuedMessage]:
        batch: list[QueuedMessage] = []
        room = limits.batch_bytes_max - HEAD_BYTES
        with self._changed:
            while self._waiting and len(batch) < limits.batch_messages_max:
                room -= MESSAGE_BYTES + len(self._waiting[0].payload)
                if batch and room < 0:
                    break
                batch.append(self._waiting.popleft())
            if batch:
                self._outstanding.append(batch)
                self._claim.sent = max(self._claim.sent, batch[-1].sequence)
        return batch

    def _settle(self, receipts: list[Receipt]) -> None:
        """Give out the answers to the oldest batch; if one of them is no answer yet, that is trouble."""
        trouble: Exception | None = None
        answered = []
        for item, receipt in zip(self._outstanding[0], receipts, strict=True):
            if receipt.reason == "stale_epoch":
                trouble = self._claim.fenced(monotonic())
            elif receipt.retry or (receipt.reason in NEW_EPOCH and not item.asked_again):
                item.asked_again = item.asked_again or not receipt.retry
                trouble = trouble or Busy(
                    f"{self._way.name}: {receipt.verdict} {receipt.reason}", reason=receipt.reason
                )
            else:
                answered.append((item, receipt))
        if answered:
            self._calm()
            stored = [item.sequence for item, receipt in answered if receipt.verdict in (Verdict.FIRST, Verdict.REPEAT)]
            self._claim.last_sequence_id = max(self._claim.last_sequence_id, *stored, -1)
            with self._changed:
                self._count -= len(answered)
                self._bytes -= sum(len(item.payload) for item, _ in answered)
                self._changed.notify_all()
            for item, receipt in answered:
                item.future.set_result(receipt)
        if trouble is not None:
            raise trouble
        with self._changed:
            self._outstanding.popleft()


def _check(sequence_id: int | None) -> None:
    if sequence_id is not None and (type(sequence_id) is not int or not 0 <= sequence_id <= SEQUENCE_MAX):
        raise Misuse(f"sequence id {sequence_id!r}: must be a whole number from 0 to 2^63 - 2", sequence=sequence_id)
