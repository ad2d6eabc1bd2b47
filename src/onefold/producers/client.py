"""A producer: publishes to a topic so that every message is stored once, through crashes on either side.

Each message has a sequence id, and the topic remembers per producer name what it has stored. A message without an
answer is sent again with the same id. A program that restarts under the same name continues after
`Producer.last_sequence_id`: nothing is doubled, nothing is missing. From Pulsar's PIP-6.

    names      chosen: stable over restarts, and unique; a second producer with the name shuts the first one out.
               Not chosen: a unique one is assigned; then retries are safe, but nothing is known after a restart
    ids        counted from after the last stored one; or your own, for every message, ascending, holes allowed (the
               offset in a file, the id of a row: no progress to keep elsewhere)

A thread sends the messages to the topic, in order. Everything queued goes out in batches as large as the topic accepts,
while earlier batches are in flight; messages queued while an answer is awaited go out with the next batch: the slower
the topic, the larger the batches.

Trouble (a lost connection, a busy server, a failed store, an UNSURE with ``retry``) ends the connection. All unanswered
messages go back to the front of the queue, in order, with the same ids, and are sent again over a new connection. The
topic answers REPEAT to those that were stored. So nothing is stored twice, nothing is left out, and nothing is stored
before a message that was handed over earlier.
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
"""How long a connection attempt that was given up may still be queued somewhere on the way."""


class ClientClaim:
    """A producer's name, its epoch, and how far it is stored; notices when another producer takes the name.

    Every opening of a name gets the next epoch, and only the newest may write. If another producer opened the name
    before this one reconnects, this one must stop: its messages would be taken for repeats of the other's.

        epoch one above mine                    nobody else opened it
        epoch further above                     that many openings in between: another producer, or ghosts
        something stored beyond all I sent      another producer

    A *ghost* is an opening of my own whose greeting was lost: it may have taken effect, even after a later one.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.epoch = 0
        self.last_sequence_id = -1
        """The highest id known to be stored."""
        self.sent = -1
        """The highest id this producer has sent."""
        self.floor = -1
        self._ghosts = 0
        self._ghost_at = 0.0

    def unsure(self, now: float) -> None:
        """An attempt to open the name ended without an answer."""
        self._ghosts = self._live_ghosts(now) + 1
        self._ghost_at = now

    def opened(self, session: ProducerSession, now: float) -> None:
        """The name was opened, perhaps again; `Misuse` if another producer has taken it."""
        if self.epoch:
            # A topic that forgot the producer continues above all forgotten epochs, not with the next one.
            forgotten = session.last_sequence_id < max(self.last_sequence_id, session.floor)
            between = 0 if forgotten else session.epoch - self.epoch - 1
            if between > self._live_ghosts(now) or session.last_sequence_id > max(self.sent, self.last_sequence_id):
                raise self._taken()
            self._ghosts -= between
        self.name, self.epoch, self.floor = session.name, session.epoch, session.floor
        self.last_sequence_id = max(self.last_sequence_id, session.last_sequence_id)

    def fenced(self, now: float) -> Exception:
        """The error for a newer epoch: `Busy` if it may be that of a ghost, else `Misuse`."""
        if self._live_ghosts(now):
            return Busy(f"producer {self.name!r}: an earlier connection attempt came through late", name=self.name)
        return self._taken()

    def _live_ghosts(self, now: float) -> int:
        return self._ghosts if now - self._ghost_at < GHOST_S else 0

    def _taken(self) -> Misuse:
        text = f"producer {self.name!r}: another producer took this name; this one may not send any more"
        return Misuse(text, name=self.name, epoch=self.epoch)


OUTSTANDING_MAX: Final = 16
"""Requests in flight, as many as a server allows a connection; Kafka's producers have 5, and also keep the order."""
BATCH_MESSAGES_MAX: Final = 1_000
"""Even where more are allowed: one batch should be in flight while the next is being packed."""
BATCH_BYTES_MAX: Final = 1 << 20
"""As for a request of Kafka's producers."""
OPEN_S: Final = 10.0
"""Timeout of a connection attempt, as in websockets."""
HEAD_BYTES: Final = 256
"""Bytes of a request besides its messages, with the name: an upper bound."""
MESSAGE_BYTES: Final = 12
"""Bytes of a message on the wire besides its payload."""


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
        self._waiting = messages  # published by `receive`

    def receive(self) -> list[Receipt]:
        return self._topic.publish(self.session.name, self._waiting, self.session.epoch)

    def close(self) -> None:
        pass  # the topic stays open


class Remote:
    """A session with a topic of a server; batches are answered in order, and an error ends it."""

    def __init__(self, url: str, token: str | None, answer_s: float) -> None:
        from onefold.net.websocket import WebSocket  # an extra, not needed for a folder

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
        """``at``: the address of a server, a folder of topics, or open `Topics`."""
        self.close: Callable[[], None] = lambda: None
        self.connect: Callable[[str | None], Embedded | Remote]
        if isinstance(at, str) and "://" in at:
            from onefold.net.websocket import topic_url

            topic_url(at, topic, None)  # refuses an invalid address now
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
"""Errors that are worth a retry."""
CLOSE_S: Final = 0.2
"""How long an interrupted close waits for the answer in progress."""
CLOSE_S_MAX: Final = 15.0
"""How long a close waits for the thread to end at most; after that it may still try to connect, which does no harm."""
NEW_EPOCH: Final = frozenset({"forgotten", "unknown_epoch", "epoch_missing"})
"""Reasons that a new epoch may cure, because the topic forgot the old one: retried once, then final."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
"""The pause between two tries doubles up to this; gRPC goes from 1 to 120 s, for far more clients than a log has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    unanswered_max: int = 10_000
    """Messages without an answer; beyond, `Producer.send_async` waits. Pulsar has 1,000, Kafka 32 MiB."""
    unanswered_bytes_max: int = 64 << 20
    answer_s: float = 30
    """A connection without an answer for this long counts as lost; 30 s as in Kafka."""


@dataclass(eq=False, slots=True)
class QueuedMessage:
    sequence: int
    payload: bytes
    awaited: bool
    """Whether a caller waits for the answer, and so sees an error."""
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

        ``at`` is the address of a server (http://, https://, ws://, wss://), a folder of topics, which this producer
        then has for itself, or open `Topics`. ``initial_sequence_id`` is the id of the first message; by default it
        follows the last stored one. Temporary errors are retried for up to ``retry_s`` seconds; None: for ever.
        """
        _check(initial_sequence_id)
        if retry_s is not None and not retry_s >= 0:
            raise Misuse(f"retry_s is {retry_s}, must be at least 0, or None: for ever", retry_s=retry_s)
        self._retry_s, self._limits = retry_s, limits or ProducerLimits()
        self._way = Way(topic, at, token, self._limits.answer_s)
        self._claim = ClientClaim(name)
        self._dead: Exception | None = None  # why nothing can be sent any more
        self._lost = 0  # messages without an answer at that time that no caller waits for
        self._count = self._bytes = self.message_bytes_max = 0
        self._waiting: deque[QueuedMessage] = deque()  # not sent yet
        self._outstanding: deque[list[QueuedMessage]] = deque()  # sent over this connection, without an answer
        self._connection: Embedded | Remote | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._reset_pause()
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
        self._reset_pause()
        self._thread.start()

    @property
    def name(self) -> str:
        return str(self._claim.name)

    @property
    def epoch(self) -> int:
        """Rises with every connection of this name; only the newest may send."""
        return self._claim.epoch

    @property
    def last_sequence_id(self) -> int:
        """The highest id of this name known to be stored; -1: none."""
        return self._claim.last_sequence_id

    @property
    def floor(self) -> int:
        """Ids at or below it are refused: the topic forgot a producer that may have stored them; -1: no floor."""
        return self._claim.floor

    def send(self, payload: Payload, sequence_id: int | None = None) -> Receipt:
        """Store a message; returns when it is on disk, or when the topic has refused it."""
        if self._here:
            raise Misuse("send waits for an answer, and may not be called by the callback of one: use send_async")
        return self._hand_over(payload, sequence_id, awaited=True).result()

    def send_async(self, payload: Payload, sequence_id: int | None = None) -> Future[Receipt]:
        """Queue a message; waits only while too many have no answer. The future cannot be cancelled."""
        return self._hand_over(payload, sequence_id)

    async def asend(self, payload: Payload, sequence_id: int | None = None) -> Receipt:
        """Like `send`, for asyncio. Many may be awaited at once; they are stored in the order of the calls."""
        # No waiting for room: the awaiting caller holds the payload anyway.
        return await asyncio.wrap_future(self._hand_over(payload, sequence_id, wait=False, awaited=True))

    @property
    def _here(self) -> bool:
        """Whether this is the producer's own thread, in the callback of a future: it must not wait for itself."""
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
            item.future.set_running_or_notify_cancel()  # it cannot be cancelled
            self._waiting.append(item)
            self._count += 1
            self._bytes += size
            self._changed.notify_all()
        return item.future

    def _number(self, sequence_id: int | None) -> int:
        own = sequence_id is not None
        if self._own_ids not in (None, own):
            raise Misuse("sequence ids: give one with every message of a producer, or with none")
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
        """Wait until every message has an answer; False if that took longer than ``timeout_s``.

        Raises, once, if messages of `send_async` could not be stored. Verdicts are in the futures only.
        """
        unanswered = wait(self._unanswered(), timeout_s).not_done
        if self._dead is not None and self._lost:
            self._lost = 0  # raise once
            raise self._dead
        return not unanswered

    def close(self) -> None:
        """Wait for all answers and disconnect; raises if messages could not be stored."""
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
            connection.close()  # ends its wait for an answer
        self._thread.join(CLOSE_S_MAX)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, Exception):  # messages queued before it are still wanted
            wait(self._unanswered())
        self._end()  # an interrupt does not wait for the server

    def _run(self) -> None:
        while not self._closing.is_set() and self._dead is None:
            with self._changed:
                while not (self._waiting or self._outstanding or self._closing.is_set() or self._dead):
                    self._reset_pause()
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

    def _reset_pause(self) -> None:
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
            except Exception as error:  # any error ends the producer, so that no caller waits for ever
                self._disconnect()
                self._dead = error

    def _connect(self) -> Embedded | Remote:
        if self._connection is None:
            try:
                self._connection = self._way.connect(self._claim.name)
            except ConnectionRefusedError:
                raise  # it was certainly not opened
            except (ConnectionError, Busy):  # a proxy may have answered "busy" after it was opened
                self._claim.unsure(monotonic())
                raise
            self._claim.opened(self._connection.session, monotonic())
            self.message_bytes_max = self._connection.limits.message_bytes_max
        return self._connection

    def _disconnect(self) -> None:
        """Drop the connection; unanswered messages go back to the front of the queue, in order."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with self._changed:
            for batch in reversed(self._outstanding):
                self._waiting.extendleft(item for item in reversed(batch) if not item.future.done())
            self._outstanding.clear()

    def _converse(self) -> None:
        """Send queued messages as far as the limits allow, then receive one answer."""
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
        """Deliver the receipts of the oldest batch; those that ask for a retry raise an error of `TROUBLE`."""
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
            self._reset_pause()
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
