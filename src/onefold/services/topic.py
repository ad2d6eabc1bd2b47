"""A topic: the producers' engine in front of a log, so that every message is stored once, through any crash.

    judge     under a lock, at once: is it new? what is goes into the queue, and into the engine's overlay as pushed
    commit    whoever comes first takes all that is queued and writes it as one group: one write, one sync for many
              publishers; who comes meanwhile queues for the next group
    answer    only then: the engine is told that the group is persisted, and every publisher gets its receipts

A write that fails takes all that is queued with it: a later message of a producer must not be stored before an earlier
one, or the earlier one's retry would look like a repeat; what was sent ahead waits, see `fence`. Nobody gets an answer
but the named error, the overlay falls back to what is persisted, and a retry is judged anew.

What a topic remembers is a function of its log. Every now and then it is saved with its position; opening the topic
loads it and reads the records behind it.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from onefold.engines.producers.answers import BUSY, FENCED, WRITE_FAILED
from onefold.engines.producers.recovery import Cadence, Snapshot, recover
from onefold.errors import Busy, Misuse, OnefoldError, StoreFailed
from onefold.ports import AppendLog, Draft
from onefold.services import requests
from onefold.services.fence import Fence
from onefold.services.requests import Batch, Message, Receipt, Request, Session
from onefold.services.topic_settings import Clock, TopicSettings, TopicTime, elapsed_ms, wall_ms
from onefold.tally import Tally

__all__ = ["Clock", "Receipt", "Session", "Topic", "TopicSettings", "wall_ms"]

T = TypeVar("T")


class _Ticket(NamedTuple):
    """A place in the queue."""

    request: Request[Any]
    future: Future[Any]
    size: int


class Topic:
    """Messages of named producers, each stored once. All methods may be called from any thread.

    >>> from onefold.stores.memory.append_log import MemoryLog
    >>> topic = Topic(MemoryLog())
    >>> [str(receipt.verdict) for receipt in topic.publish("meter", [(0, b"a"), (1, b"b")])]
    ['FIRST', 'FIRST']
    >>> [f"{r.verdict} {r.offset}" for r in topic.publish("meter", [(1, b"b"), (2, b"c")])]  # a retry, and news
    ['REPEAT -1', 'FIRST 2']
    """

    def __init__(
        self,
        log: AppendLog,
        settings: TopicSettings | None = None,
        *,
        clock: Clock = wall_ms,
        elapsed: Clock | None = None,
    ) -> None:
        """Recover what the log says. ``clock`` is Unix time, ``elapsed`` what cannot be set; both in milliseconds.

        A ``clock`` that is given alone is taken for both: time passes as it says.
        """
        self.settings = settings or TopicSettings()
        self.log = log
        self.tally = Tally()
        self.problem: str | None = None
        """Why the last snapshot or trim did not work; None: it did. Publishing goes on without."""
        self._clock = clock
        self._elapsed = elapsed or (elapsed_ms if clock is wall_ms else clock)
        self._timing = threading.Lock()
        self._judging = threading.Lock()
        self._committing = threading.Lock()
        self._queue: list[_Ticket] = []
        self._queued_bytes = 0
        self._fence = Fence(self.settings.producers_max)
        self._closed = False
        self._groups = 0
        self._recover()
        if log.end == 0 and not self.settings.deduplicate:
            self.switch(False)

    def _recover(self) -> None:
        snapshot = self.log.load()
        tail = requests.entries(self.log.read(snapshot.position if snapshot else 0))
        recovered = recover(snapshot, tail, **self.settings.of_memory())
        self._memory = recovered.sequences
        last = next(self.log.read(max(self.log.start, self.log.end - 1)), None)
        self._time = TopicTime(last.time_ms if last else 0, self._clock(), self._elapsed())
        self._cadence = Cadence(self.settings.snapshot_entries, self.settings.snapshot_ms)
        self._cadence.done(self._elapsed())
        self._cadence.note(recovered.since_snapshot, self._elapsed())

    def _now(self) -> int:
        """The topic's time."""
        with self._timing:
            return self._time.read(self._clock(), self._elapsed())

    def _set_clock(self) -> None:
        """If the wall clock was set and has stayed so: note it in the log, and go by it."""
        self._now()
        if not self._time.due:
            return
        now_ms = self._time.time_ms + self._time.off_ms
        request = requests.set_clock(self._memory, self._time.time_ms)
        offset = self.log.append(request.drafts, now_ms)
        with self._judging:
            request.settle(offset, now_ms)
            with self._timing:
                self._time.follow()

    def connect(self, name: str | None = None) -> Session:
        """Open a producer's session: a new epoch, which fences off whoever used the name before.

        None: a name that nobody has is given out.
        """
        given = f"producer-{uuid4().hex}" if name is None else name
        session = self._settled(self._ask(lambda: requests.connect(self._memory, given), len(given)))
        with self._judging:
            self._fence.lift(given)
        return session

    def arrive(self, count: int) -> None:
        """So many messages came in, and will be submitted: said by the one who took them in, before anybody judges."""
        with self._judging:
            self.tally.arrive(count)

    def submit(self, producer: str, messages: Sequence[Message], epoch: int | None = None) -> Future[list[Receipt]]:
        """Judge messages of one producer now; their receipts come with the next `flush` of anybody.

        Who submits has said `arrive`; `publish` does both.
        """
        return self._submit(Batch.of(producer, messages), epoch)

    def _submit(self, batch: Batch, epoch: int | None) -> Future[list[Receipt]]:
        def judge() -> Request[list[Receipt]]:
            if self._fence.holds(batch):
                return requests.refuse(FENCED, len(batch))
            request = requests.publish(self._memory, batch, epoch, self.settings.message_bytes_max)
            self._fence.passed(batch, request)
            return request

        return self._ask(judge, batch.size, len(batch))

    def submit_keyed(self, key: str, payload: bytes) -> Future[Receipt]:
        """Judge a message by its key now; its receipt comes with the next `flush` of anybody."""
        bytes_max = self.settings.message_bytes_max
        return self._ask(
            lambda: requests.publish_keyed(self._memory, key, payload, self._now(), bytes_max), len(payload), 1
        )

    def publish(self, producer: str, messages: Sequence[Message], epoch: int | None = None) -> list[Receipt]:
        """Store messages of one producer, those that are new; what became of each, when it is on disk."""
        batch = Batch.of(producer, messages)
        self.arrive(len(messages))
        return self._settled(self._submit(batch, epoch))

    def publish_keyed(self, key: str, payload: bytes) -> Receipt:
        """Store a message that has a key of its own instead of a producer and a sequence."""
        self.arrive(1)
        return self._settled(self.submit_keyed(key, payload))

    def switch(self, deduplicate: bool) -> None:
        """Switch deduplication on or off. Off forgets everything; on begins with nothing."""
        self._settled(self._ask(lambda: requests.switch(self._memory, deduplicate), 0))
        with self._judging:
            self._fence.clear()

    def reset(self, producer: str) -> None:
        """Forget the sequences of one producer: its next one is new, whatever it is. What is stored stays stored."""
        self._settled(self._ask(lambda: requests.reset(self._memory, producer), 0))
        with self._judging:
            self._fence.lift(producer)

    @property
    def deduplicates(self) -> bool:
        """Is deduplication on?"""
        return self._memory.switched_on

    def last_sequence_id(self, producer: str) -> int:
        """The highest sequence of this producer that is stored; -1: none."""
        with self._judging:
            return self._memory.last_sequence_id(producer)

    def floor(self, producer: str) -> int:
        """Sequences at or below it may have been stored by somebody who was forgotten; -1: nothing was."""
        with self._judging:
            return self._memory.floor(producer)

    def books(self) -> Tally:
        """A copy of the tally, taken between two groups."""
        with self._judging:
            return self.tally + Tally()

    def figures(self) -> dict[str, int]:
        """What there is to watch."""
        with self._judging:
            return {
                "producers": len(self._memory),
                "pending": self._memory.pending,
                "queued_bytes": self._queued_bytes,
                "groups": self._groups,
                "start": self.log.start,
                "end": self.log.end,
                "clock_off_ms": self._time.off_ms,
                "clock_steps": self._time.steps,
            }

    def _ask(self, judge: Callable[[], Request[T]], size: int, count: int = 0) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # what is on its way cannot be called back
        with self._judging:
            if self._closed:
                self.tally.judge(BUSY, count)
                raise Misuse("this topic is closed")
            if self._queued_bytes and self._queued_bytes + size > self.settings.pending_bytes_max:
                self.tally.judge(BUSY, count)
                raise Busy(f"{self._queued_bytes:,} bytes wait to be stored, {size:,} more would be over the limit of "
                           f"{self.settings.pending_bytes_max:,}", waiting=self._queued_bytes)  # fmt: skip
            request = judge()
            if request.drafts:
                self._queue.append(_Ticket(request, future, size))
                self._queued_bytes += size
                return future
            self._book(request)
        future.set_result(request.settle(-1, 0))
        return future

    def _settled(self, future: Future[T]) -> T:
        if not future.done():
            self.flush()
        return future.result()

    def flush(self) -> None:
        """Store all that is queued, as one group; who calls while another does waits for that, then looks again."""
        answers: list[Callable[[], None]] = []
        try:
            with self._committing:
                with self._judging:
                    tickets, self._queue = self._queue, []
                    self._queued_bytes = 0
                if tickets:
                    self._commit(tickets, answers)
                    self._keep_house()
        finally:
            for answer in answers:  # whoever is called back may publish
                answer()

    def _commit(self, tickets: list[_Ticket], answers: list[Callable[[], None]]) -> None:
        drafts: list[Draft] = []
        for ticket in tickets:
            drafts += ticket.request.drafts
        end = self.log.end
        try:
            self._set_clock()
            time_ms = self._now()
            end = self.log.end
            offset = self.log.append(drafts, time_ms)
            with self._judging:
                settled = []
                for ticket in tickets:
                    settled.append(partial(ticket.future.set_result, ticket.request.settle(offset, time_ms)))
                    self._book(ticket.request)
                    offset += len(ticket.request.drafts)
                self._groups += 1
                self._cadence.note(len(drafts), self._elapsed())
            answers += settled
        except BaseException as error:
            self._give_up(tickets, error, answers)
            if isinstance(error, StoreFailed):
                return  # which the futures tell
            if self.log.end != end:  # interrupted when it was stored, but not known to be
                with self._judging:
                    self._recover()
            raise

    def _give_up(self, tickets: list[_Ticket], error: BaseException, answers: list[Callable[[], None]]) -> None:
        """Nothing of this group was stored, so nothing that was judged after it may be stored either."""
        with self._judging:
            tickets = tickets + self._queue
            self._queue, self._queued_bytes = [], 0
            self._memory.forget_overlay()
            for ticket in tickets:
                if self.settings.memory == "highest" and self._memory.switched_on:
                    self._fence.raise_for(ticket.request.drafts)
                self.tally.judge(WRITE_FAILED, sum(count for _, count in ticket.request.verdicts))
        answers += [partial(ticket.future.set_exception, error) for ticket in tickets]

    def _book(self, request: Request[Any]) -> None:
        for answer, count in request.verdicts:
            self.tally.judge(answer, count)

    def tend(self) -> None:
        """What is due by the clock alone: for topics that nobody publishes to."""
        with self._committing:
            if self._closed:
                return
            try:
                self._set_clock()
            except (OnefoldError, OSError) as error:
                self.problem = str(error)
            self._keep_house()
            self._retain()

    def _keep_house(self) -> None:
        """If it is due: forget idle producers, save what is remembered, drop what need not be kept."""
        if not self._cadence.due(self._elapsed()):
            return
        try:
            if self.settings.idle_ms is not None:
                self._purge(self.settings.idle_ms)
            self._save()
            self.problem = None
        except (OnefoldError, OSError) as error:
            self.problem = str(error)
            self._cadence.done(self._elapsed())  # and again when the next one is due
        self._retain()

    def _retain(self) -> None:
        limit, age = self.settings.retain_bytes, self.settings.retain_ms
        if limit is None and age is None:
            return
        try:
            self.log.retain(bytes=limit, before_ms=None if age is None else self._now() - age)
        except (OnefoldError, OSError) as error:
            self.problem = str(error)

    def _purge(self, idle_ms: int) -> None:
        now_ms = self._now()
        with self._judging:
            request = requests.purge(self._memory, now_ms - idle_ms)
        offset = self.log.append(request.drafts, now_ms)
        with self._judging:
            request.settle(offset, now_ms)

    def save(self) -> None:
        """Save what is remembered, with its position: the next opening reads only the records behind it."""
        with self._committing:
            self._save()

    def _save(self) -> None:
        with self._judging:
            snapshot = Snapshot(self.log.end, self._memory.snapshot())
        self.log.save(snapshot)
        self._cadence.done(self._elapsed())

    def close(self) -> None:
        """Store what is queued, save what is remembered, and let go of the log.

        `BooksDoNotBalance` if something arrived that has no verdict, or has two: then all of that is done first.
        """
        with self._judging:
            if self._closed:
                return
            self._closed = True
        try:
            self.flush()
            self.save()
        except (OnefoldError, OSError) as error:
            self.problem = str(error)
        finally:
            self.log.close()
        self.books().check()
