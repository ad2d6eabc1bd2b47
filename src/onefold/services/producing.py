"""The thread that takes a producer's messages to its topic, in order, through any trouble.

    waiting       handed over, not sent yet
    outstanding   sent over this connection, not answered yet: batches, oldest first

All that waits goes out in batches, as large as the topic takes them, while earlier ones are on their way. What comes
while an answer is awaited goes out with the next: the slower the topic, the larger the batches.

Trouble (a lost connection, a busy server, a failed store, an UNSURE that will clear up) ends the connection. All that
was not answered goes back to the front of what waits, in order, with the same ids, and is sent again over a new one. A
part of it may have been stored: the topic says REPEAT to that, and that is an answer. So nothing is stored twice,
nothing is left out, and nothing is ever stored before something that was handed over earlier.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from onefold.errors import Busy, Misuse, OnefoldError, StoreFailed
from onefold.services.claim import Claim
from onefold.services.connections import HEAD_BYTES, MESSAGE_BYTES, Connection, Way
from onefold.services.requests import Receipt
from onefold.verdict import Verdict

TROUBLE: Final = (Busy, StoreFailed, ConnectionError)
"""What may be gone when it is tried again."""
CLOSE_S: Final = 0.2
"""An answer that is awaited when a producer is closed without waiting for it may still come, for so long."""
CLOSE_S_MAX: Final = 15.0
"""The longest that a thread is waited for; it is trying to connect, and can do no harm."""
CLEARS_UP: Final = frozenset({"in_flight", "fenced", "write_failed"})
"""Reasons of UNSURE that mean: later."""
NEW_EPOCH: Final = frozenset({"forgotten", "unknown_epoch", "epoch_missing"})
"""Reasons that a new epoch may put right, because the topic forgot the old one; asked once again, then believed."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
"""Of the pause between two tries, which doubles; gRPC goes from 1 to 120 s, for far more clients than a log has."""


@dataclass(eq=False, slots=True)
class Item:
    """A message that was handed over."""

    sequence: int
    payload: bytes
    awaited: bool
    """Somebody waits for the answer, and so gets to see an error."""
    future: Future[Receipt] = field(default_factory=Future)
    asked_again: bool = False


class Sender:
    """Takes messages to a topic and answers them. All methods may be called from any thread."""

    def __init__(self, way: Way, name: str | None, *, retry_s: float | None, count_max: int, bytes_max: int) -> None:
        """Connect; as everything else, it is tried for ``retry_s`` (None: for ever)."""
        self.claim = Claim(name)
        self.message_bytes_max = 0
        self.dead: Exception | None = None
        """Why nothing can be sent any more."""
        self.lost = 0
        """How many messages that nobody waits for had no answer when it died."""
        self._way, self._retry_s = way, retry_s
        self._count_max, self._bytes_max = count_max, bytes_max
        self._count = self._bytes = 0
        self._waiting: deque[Item] = deque()
        self._outstanding: deque[list[Item]] = deque()
        self._connection: Connection | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._calm()
        self._thread = threading.Thread(target=self._run, name="onefold producer", daemon=True)
        try:
            self._try(self._connect)
            if self.dead is not None:
                raise self.dead
        except BaseException:
            self._disconnect()
            way.close()
            raise
        self._calm()
        self._thread.start()

    # --- handed over by the application -------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Is this the sender's own thread, in the callback of a future? It must not wait for itself."""
        return threading.current_thread() is self._thread

    def hand_over(self, payload: bytes, number: Callable[[], int], *, wait: bool, awaited: bool) -> Future[Receipt]:
        """Take a message; its number is asked for when there is room, so that numbers go in the order of the queue."""
        with self._changed:
            while wait and not self._room(len(payload)) and not self._gone() and not self.here:
                self._changed.wait()
            if error := self._gone():
                raise error
            item = Item(number(), payload, awaited)
            item.future.set_running_or_notify_cancel()  # what is on its way cannot be called back
            self._waiting.append(item)
            self._count += 1
            self._bytes += len(payload)
            self._changed.notify_all()
        return item.future

    def _room(self, size: int) -> bool:
        return self._count == 0 or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    def _gone(self) -> Exception | None:
        return Misuse("this producer is closed") if self._closing.is_set() else self.dead

    def unanswered(self) -> list[Future[Receipt]]:
        """The futures of all that was handed over and has no answer yet."""
        with self._changed:
            return [item.future for item in self._all() if not item.future.done()]

    def _all(self) -> Iterator[Item]:
        for batch in self._outstanding:
            yield from batch
        yield from self._waiting

    def close(self) -> None:
        """Stop; what has no answer yet gets an error."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self.here:
            return
        self._thread.join(CLOSE_S)
        connection = self._connection
        if self._thread.is_alive() and connection is not None:
            connection.close()  # it waits for an answer that nobody wants any more
        self._thread.join(CLOSE_S_MAX)

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._something():
            self._try(self._converse)
        self._fail(self.dead or Misuse("the producer was closed before the answer: it may or may not be stored"))
        self._disconnect()
        self._way.close()

    def _something(self) -> bool:
        """Wait until there is something to do; False: stop."""
        with self._changed:
            while not (self._waiting or self._outstanding or self._closing.is_set() or self.dead):
                self._calm()
                self._changed.wait()
        return not self._closing.is_set() and self.dead is None

    def _try(self, step: Callable[[], None]) -> None:
        """Do it, until it works, it never will, or there was trouble for too long."""
        while self.dead is None and not self._closing.is_set():
            try:
                return step()
            except TROUBLE as error:
                self._disconnect()
                self._wait_or_die(error)
            except Exception as error:  # whatever it is: nobody may wait for ever
                self._disconnect()
                self.dead = error

    def _calm(self) -> None:
        """There is no trouble: something was answered, or there is nothing to send."""
        self._trouble_since: float | None = None
        self._pause_s = PAUSE_S

    def _wait_or_die(self, error: Exception) -> None:
        now = monotonic()
        since = self._trouble_since = now if self._trouble_since is None else self._trouble_since
        left = float("inf") if self._retry_s is None else since + self._retry_s - now
        if left <= 0:
            self.dead = _given_up(error, self._retry_s)
            return
        self._closing.wait(min(self._pause_s * random.uniform(0.5, 1), left))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _connect(self) -> None:
        """Open the next session, if there is none."""
        if self._connection is not None:
            return
        try:
            self._connection = self._way.connect(self.claim.name)
        except ConnectionRefusedError:
            raise  # it was not opened, for certain
        except (ConnectionError, Busy):  # somebody on the way may have said busy after it was opened
            self.claim.unsure(monotonic())
            raise
        self.claim.opened(self._connection.session, monotonic())
        self.message_bytes_max = self._connection.limits.message_bytes_max

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
        self._connect()
        connection = self._connection
        assert connection is not None
        while len(self._outstanding) < connection.limits.outstanding_max and (batch := self._batch(connection)):
            connection.send([(item.sequence, item.payload) for item in batch])
        if self._outstanding:
            self._settle(connection.receive())

    def _batch(self, connection: Connection) -> list[Item]:
        """Take the next batch from what waits: one message, and more while they fit."""
        batch: list[Item] = []
        room = connection.limits.batch_bytes_max - HEAD_BYTES
        with self._changed:
            while self._waiting and len(batch) < connection.limits.batch_messages_max:
                room -= MESSAGE_BYTES + len(self._waiting[0].payload)
                if batch and room < 0:
                    break
                batch.append(self._waiting.popleft())
            if batch:
                self._outstanding.append(batch)
                self.claim.sent = max(self.claim.sent, batch[-1].sequence)
        return batch

    def _settle(self, receipts: list[Receipt]) -> None:
        """Give out the answers to the oldest batch; if one of them is no answer yet, that is trouble."""
        trouble: Exception | None = None
        answered = []
        for item, receipt in zip(self._outstanding[0], receipts, strict=True):
            if receipt.reason == "stale_epoch":
                trouble = self.claim.fenced(monotonic())
            elif _later(item, receipt):
                trouble = trouble or Busy(f"{self._way}: {receipt.verdict} {receipt.reason}", reason=receipt.reason)
            else:
                answered.append((item, receipt))
        self._answer(answered)
        if trouble is not None:
            raise trouble
        with self._changed:
            self._outstanding.popleft()

    def _answer(self, answered: list[tuple[Item, Receipt]]) -> None:
        if not answered:
            return
        self._calm()
        stored = [item.sequence for item, receipt in answered if receipt.verdict in (Verdict.FIRST, Verdict.REPEAT)]
        self.claim.last_sequence_id = max(self.claim.last_sequence_id, *stored, -1)
        with self._changed:
            self._count -= len(answered)
            self._bytes -= sum(len(item.payload) for item, _ in answered)
            self._changed.notify_all()
        for item, receipt in answered:
            item.future.set_result(receipt)

    def _fail(self, error: Exception) -> None:
        """Answer all that is left with this error, in order."""
        with self._changed:
            left = [item for item in self._all() if not item.future.done()]
            self.lost += sum(not item.awaited for item in left)
            self._outstanding.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for item in left:
            item.future.set_exception(error)


def _later(item: Item, receipt: Receipt) -> bool:
    """Is this no answer yet?"""
    if receipt.verdict == Verdict.UNSURE and receipt.reason in CLEARS_UP:
        return True
    if receipt.reason in NEW_EPOCH and not item.asked_again:
        item.asked_again = True
        return True
    return False


def _given_up(error: Exception, retry_s: float | None) -> Exception:
    """The last error, with how long it was tried."""
    text = f"gave up after {retry_s:g} s: {error}"
    return type(error)(text, **error.values) if isinstance(error, OnefoldError) else ConnectionError(text)
