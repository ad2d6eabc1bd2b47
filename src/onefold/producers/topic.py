"""A topic: the producers' engine in front of a log, so that every message is stored once, through any crash.

    judge     under a lock: new messages are queued, and are pushed in the engine's overlay
    commit    one thread takes the whole queue and writes it as one group, with one write and one sync for many
              publishers; messages that arrive meanwhile are queued for the next group
    answer    then the engine marks the group as persisted, and every publisher gets its receipts

If a write fails, everything queued fails with it: storing a later message of a producer before an earlier one would
make the retry of the earlier one look like a repeat (see `Fence`). The publishers get the error, the overlay falls back
to what is persisted, and retries are judged anew.

The memory of a topic is a function of its log. It is saved from time to time, with its position; opening the topic
loads the newest snapshot and replays the records behind it. `Topics` is a folder of topics, each opened on first use.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar, cast, get_args
from uuid import uuid4

from onefold.clock import Clock, elapsed_ms, wall_ms
from onefold.decoding import read_json
from onefold.errors import BadInput, Busy, Damaged, Misuse, OnefoldError, StoreFailed
from onefold.producers import records, requests
from onefold.producers.log.disk import REAL, failing, replace_file
from onefold.producers.log.segments import SEGMENT_BYTES, SegmentLog
from onefold.producers.ports import AppendLog, Draft
from onefold.producers.records import Kind, MemoryKind
from onefold.producers.requests import Batch, Message, ProducerSession, Receipt, Request
from onefold.producers.rules import Cadence, SequencesSnapshot, recover
from onefold.tally import Tally
from onefold.verdict import Verdict

STEP_MAX_MS: Final = 10_000
"""A wall clock that differs by more from the time elapsed was set. ntpd slews up to 0.128 s and steps beyond; this
leaves room for smeared leap seconds and machines that stall."""
STEPOUT_MS: Final = 300_000
"""A step of the wall clock is accepted when it has lasted this long: ntpd's stepout."""


class TopicTime:
    """The time of a topic: it follows the wall clock, but accepts a step of it only after a while.

    Time advances by the monotonic clock ``elapsed_ms``, and follows the wall clock while the two agree. A difference
    means that the wall clock was set, or is wrong: it is reported (`off_ms`) and counted (`steps`). Once it has lasted
    for `STEPOUT_MS` it is `due`, and `follow` accepts it. Steps made while the topic is closed go unnoticed: it starts
    at the wall clock's time, or at the time of the last record if that is later.

    >>> time = TopicTime(0, 1_000, 0)
    >>> time.read(9_999_000, 100), time.off_ms  # one wild reading
    (1100, 9997900)
    >>> time.read(1_200, 200), time.off_ms
    (1200, 0)
    """

    def __init__(self, last_ms: int, wall_ms: int, elapsed_ms: int) -> None:
        self.time_ms = max(last_ms, wall_ms)
        self.off_ms = 0
        """How far the wall clock is ahead of the topic's time; 0 while it is followed."""
        self.steps = 0
        """How many steps of the wall clock were noticed."""
        self._elapsed_ms = elapsed_ms
        self._since_ms: int | None = None
        self.read(wall_ms, elapsed_ms)

    def read(self, wall_ms: int, elapsed_ms: int) -> int:
        passed = max(0, elapsed_ms - self._elapsed_ms)
        self._elapsed_ms = elapsed_ms
        off = wall_ms - self.time_ms - passed
        if abs(off) <= STEP_MAX_MS:
            self.time_ms = max(self.time_ms, wall_ms)
            self._since_ms, self.off_ms = None, 0
            return self.time_ms
        if self._since_ms is None or abs(off - self.off_ms) > STEP_MAX_MS:
            self._since_ms = elapsed_ms
            self.steps += 1
        self.time_ms += passed
        self.off_ms = off
        return self.time_ms

    @property
    def due(self) -> bool:
        """Whether a step of the wall clock has lasted long enough to be accepted."""
        return self._since_ms is not None and self._elapsed_ms - self._since_ms >= STEPOUT_MS

    def follow(self) -> None:
        self.time_ms += self.off_ms
        self._since_ms, self.off_ms = None, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    deduplicate: bool = True
    """For a new topic; later, `Topic.switch` changes it."""
    memory: MemoryKind = "highest"
    """For a new topic; it can never be changed."""
    producers_max: int = records.PRODUCERS_MAX
    gap_count_max: int = records.GAP_COUNT_MAX
    digests_max: int = records.DIGESTS_MAX
    keys_max: int = records.KEYS_MAX
    keys_ms: int = records.KEYS_MS
    jump_max: int | None = None
    """Reject a sequence further above the highest of its producer; None: accept any, as published."""
    idle_ms: int | None = None
    """Producers idle for this long are forgotten, down to a floor; None: never."""
    snapshot_entries: int = 100_000
    """Take a snapshot after this many records: half a second of reading at the next start. (PIP-6 has 1,000.)"""
    snapshot_ms: int = 60_000
    retain_bytes: int | None = None
    retain_ms: int | None = None
    pending_bytes_max: int = 64 << 20
    """Payloads waiting to be stored; beyond this, `Busy`."""
    message_bytes_max: int = 1 << 20


class Fence:
    """The lowest sequence of each producer whose write failed and has not been retried yet.

    With the memory "highest", a stored message makes all lower sequences repeats. So nothing above the lowest failed
    sequence is accepted until that one is retried and stored, or the producer reconnects and learns what is stored.
    (Pulsar closes the producer's connection for that.)
    """

    def __init__(self, count_max: int) -> None:
        self._failed: dict[str, int] = {}
        self._count_max = count_max

    def raise_for(self, drafts: Sequence[Draft]) -> None:
        """Note that these could not be stored. Beyond the bound, the producers that failed longest ago are dropped."""
        for draft in drafts:
            if draft.kind == Kind.MESSAGE:
                lowest = self._failed.pop(draft.producer, draft.sequence)
                self._failed[draft.producer] = min(lowest, draft.sequence)
        while len(self._failed) > self._count_max:
            del self._failed[next(iter(self._failed))]

    def holds(self, batch: Batch) -> bool:
        failed = self._failed.get(batch.producer)
        return failed is not None and len(batch) > 0 and batch.sequences[0] > failed

    def note_judged(self, batch: Batch, request: Request[list[Receipt]]) -> None:
        """Lift the fence of the batch's producer if the failed sequence was among it and was not refused."""
        failed = self._failed.get(batch.producer)
        judged = any(answer.verdict in (Verdict.FIRST, Verdict.REPEAT) for answer, _ in request.verdicts)
        if failed is not None and judged and batch.sequences[-1] >= failed:
            del self._failed[batch.producer]

    def clear(self) -> None:
        self._failed.clear()

    def lift(self, producer: str) -> None:
        self._failed.pop(producer, None)


T = TypeVar("T")


_Ticket: TypeAlias = tuple[Request[Any], Future[Any]]


class Topic:
    """Messages of named producers, each stored once. All methods may be called from any thread.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> topic = Topic(SegmentLog(folder.name))
    >>> [str(receipt.verdict) for receipt in topic.publish("meter", [(0, b"a"), (1, b"b")])]
    ['FIRST', 'FIRST']
    >>> [f"{r.verdict} {r.offset}" for r in topic.publish("meter", [(1, b"b"), (2, b"c")])]  # a retry, and news
    ['REPEAT -1', 'FIRST 2']
    >>> topic.close(); folder.cleanup()
    """

    def __init__(
        self,
        log: AppendLog,
        settings: TopicSettings | None = None,
        *,
        clock: Clock = wall_ms,
        elapsed: Clock | None = None,
    ) -> None:
        """Recover from the log. ``clock`` is Unix time, ``elapsed`` a monotonic clock (default: ``clock`` if that is
        given); both in milliseconds.
        """
        self.settings = settings or TopicSettings()
        self.log = log
        self.tally = Tally()
        self._problems: dict[str, str] = {}  # by task
        self._clock = clock
        self._elapsed = elapsed or (elapsed_ms if clock is wall_ms else clock)
        self._timing = threading.Lock()
        self._judging = threading.Lock()
        self._committing = threading.RLock()  # a commit may also save a snapshot
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
        bounds = {
            name: value for name, value in asdict(self.settings).items() if name in records.SequenceBounds._fields
        }
        recovered = recover(snapshot, tail, **bounds)
        self._memory = recovered.sequences
        last = next(self.log.read(max(self.log.start, self.log.end - 1)), None)
        self._time = TopicTime(last.time_ms if last else 0, self._clock(), self._elapsed())
        self._cadence = Cadence(self.settings.snapshot_entries, self.settings.snapshot_ms)
        self._cadence.done(self._elapsed())
        self._cadence.note(recovered.since_snapshot, self._elapsed())

    def _now(self) -> int:
        with self._timing:
            return self._time.read(self._clock(), self._elapsed())

    def _set_clock(self) -> None:
        """If a step of the wall clock is due: record it in the log and accept it."""
        self._now()
        if self._time.due:
            self._note(Kind.CLOCK, self._time.time_ms, self._time.time_ms + self._time.off_ms)

    def _note(self, kind: Kind, value: int, now_ms: int) -> None:
        """Append a record of the topic's own to the log."""
        request = requests.control(self._memory, kind, value)
        offset = self.log.append(request.drafts, now_ms)
        with self._judging:
            request.settle(offset, now_ms)
            if kind == Kind.CLOCK:
                with self._timing:
                    self._time.follow()

    def connect(self, name: str | None = None) -> ProducerSession:
        """Open a session with a new epoch, which fences off older sessions of the name; None assigns a unique name."""
        producer = f"producer-{uuid4().hex}" if name is None else name
        session = self._settled(self._ask(lambda: requests.connect(self._memory, producer), requests.MESSAGE_COST))
        with self._judging:
            self._fence.lift(producer)
        return session

    def arrive(self, count: int) -> None:
        """Count messages that came in and will be submitted; called where they come in, before they are judged."""
        with self._judging:
            self.tally.arrive(count)

    def submit(self, producer: str, messages: Sequence[Message], epoch: int | None = None) -> Future[list[Receipt]]:
        """Judge messages now; the receipts come with the next `flush`. Call `arrive` first (`publish` does both)."""
        return self._submit(Batch.of(producer, messages), epoch)

    def _submit(self, batch: Batch, epoch: int | None) -> Future[list[Receipt]]:
        def judge() -> Request[list[Receipt]]:
            if self._fence.holds(batch):
                return requests.refuse(records.FENCED, len(batch))
            request = requests.publish(self._memory, batch, epoch, self.settings.message_bytes_max)
            self._fence.note_judged(batch, request)
            return request

        return self._ask(judge, batch.size, len(batch))

    def submit_keyed(self, key: str, payload: bytes) -> Future[Receipt]:
        def judge() -> Request[Receipt]:
            return requests.publish_keyed(self._memory, key, payload, self._now(), self.settings.message_bytes_max)

        return self._ask(judge, len(payload), 1)

    def publish(self, producer: str, messages: Sequence[Message], epoch: int | None = None) -> list[Receipt]:
        """Store the new ones among these messages of one producer; returns the receipts when they are on disk."""
        batch = Batch.of(producer, messages)
        self.arrive(len(messages))
        return self._settled(self._submit(batch, epoch))

    def publish_keyed(self, key: str, payload: bytes) -> Receipt:
        if type(payload) is not bytes:
            raise Misuse(f"a payload is bytes, not {type(payload).__name__}")
        self.arrive(1)
        return self._settled(self.submit_keyed(key, payload))

    def switch(self, deduplicate: bool) -> None:
        """Switch deduplication on or off. Off forgets everything; on starts from nothing."""
        self._settled(self._ask(lambda: requests.control(self._memory, Kind.SWITCH, int(deduplicate)), 0))
        with self._judging:
            self._fence.clear()

    def reset(self, producer: str) -> None:
        """Forget the sequences of one producer: its next one is new, whatever it is. Stored messages stay stored."""
        self._settled(self._ask(lambda: requests.control(self._memory, Kind.RESET, 0, producer), 0))
        with self._judging:
            self._fence.lift(producer)

    @property
    def problem(self) -> str | None:
        """Why the last snapshot, trim or clock record failed; None: they did not. Publishing goes on without them."""
        return next(iter(list(self._problems.values())), None)

    @property
    def waiting(self) -> bool:
        """Whether `flush` has anything to store."""
        return bool(self._queue)

    @property
    def deduplicates(self) -> bool:
        return self._memory.switched_on

    def last_sequence_id(self, producer: str) -> int:
        with self._judging:
            return self._memory.last_sequence_id(producer)

    def floor(self, producer: str) -> int:
        with self._judging:
            return self._memory.floor(producer)

    def books(self) -> Tally:
        """A copy of the tally, taken between two groups."""
        with self._judging:
            return self.tally + Tally()

    def figures(self) -> dict[str, int]:
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
        future.set_running_or_notify_cancel()  # it cannot be cancelled
        with self._judging:
            if self._closed:
                self.tally.judge(records.BUSY, count)
                raise Misuse("this topic is closed")
            if self._queued_bytes and self._queued_bytes + size > self.settings.pending_bytes_max:
                self.tally.judge(records.BUSY, count)
                raise Busy(f"{self._queued_bytes:,} bytes wait to be stored, {size:,} more would be over the limit of "
                           f"{self.settings.pending_bytes_max:,}", waiting=self._queued_bytes)  # fmt: skip
            request = judge()
            if request.drafts:
                self._queue.append((request, future))
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
        """Store everything queued as one group. A concurrent caller waits for it, then stores what has come since."""
        answers: list[Callable[[], None]] = []
        try:
            with self._committing:
                with self._judging:
                    tickets, self._queue = self._queue, []
                    self._queued_bytes = 0
                if tickets:
                    self._commit(tickets, answers)
                    self._maintain()
        finally:
            for answer in answers:  # outside the lock: a callback may publish
                answer()

    def _commit(self, tickets: list[_Ticket], answers: list[Callable[[], None]]) -> None:
        drafts = list(chain.from_iterable(request.drafts for request, _ in tickets))
        end = self.log.end
        try:
            self._set_clock()
            time_ms = self._now()
            end = self.log.end
            offset = self.log.append(drafts, time_ms)
            with self._judging:
                settled = []
                for request, future in tickets:
                    settled.append(partial(future.set_result, request.settle(offset, time_ms)))
                    self._book(request)
                    offset += len(request.drafts)
                self._groups += 1
                self._cadence.note(len(drafts), self._elapsed())
            answers += settled
        except BaseException as error:
            # This group was not stored, so nothing that was judged after it may be stored either.
            with self._judging:
                tickets = tickets + self._queue
                self._queue, self._queued_bytes = [], 0
                self._memory.forget_overlay()
                for request, _ in tickets:
                    if self.settings.memory == "highest" and self._memory.switched_on:
                        self._fence.raise_for(request.drafts)
                    self.tally.judge(records.WRITE_FAILED, sum(count for _, count in request.verdicts))
            # An interrupt is for this thread alone: in another it would end whoever waits there.
            failure = error if isinstance(error, Exception) else StoreFailed("the write was interrupted: try again")
            answers += [partial(future.set_exception, failure) for _, future in tickets]
            if isinstance(error, StoreFailed):
                return  # the futures have the error
            if self.log.end != end:  # interrupted after the group was stored
                with self._judging:
                    self._recover()
            raise

    def _book(self, request: Request[Any]) -> None:
        for answer, count in request.verdicts:
            self.tally.judge(answer, count)

    def tend(self) -> None:
        """Do what is due by the clock alone, for topics that nobody publishes to."""
        with self._committing:
            if self._closed:
                return
            with self._housekeeping("clock"):
                self._set_clock()
            self._maintain()
            self._retain()

    def _maintain(self) -> None:
        """If a snapshot is due: forget idle producers, save the memory, apply retention."""
        if not self._cadence.due(self._elapsed()):
            return
        with self._housekeeping("snapshot"):
            if self.settings.idle_ms is not None:
                now_ms = self._now()
                self._note(Kind.PURGE, now_ms - self.settings.idle_ms, now_ms)
            self.save()
        self._cadence.done(self._elapsed())  # also after a failure: it is tried again when the next one is due
        self._retain()

    def _retain(self) -> None:
        limit, age = self.settings.retain_bytes, self.settings.retain_ms
        if limit is not None or age is not None:
            with self._housekeeping("retention"):
                self.log.retain(bytes=limit, before_ms=None if age is None else self._now() - age)

    @contextmanager
    def _housekeeping(self, task: str) -> Iterator[None]:
        """Keep an error of this task as a problem of the topic, until the task succeeds; publishers never see it."""
        try:
            yield
            self._problems.pop(task, None)
        except (OnefoldError, OSError) as error:
            self._problems[task] = str(error)

    def save(self) -> None:
        """Save the memory with its position: the next opening reads only the records behind it."""
        with self._committing:
            with self._judging:
                snapshot = SequencesSnapshot(self.log.end, self._memory.snapshot())
            self.log.save(snapshot)
            self._cadence.done(self._elapsed())

    def close(self) -> None:
        """Store what is queued, save the memory and close the log.

        Then `BooksDoNotBalance` if a message that arrived has no verdict, or has two.
        """
        with self._judging:
            if self._closed:
                return
            self._closed = True
        try:
            with self._housekeeping("snapshot"):
                self.flush()
                self.save()
        finally:
            self.log.close()
        self.books().check()


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FILE: Final = "topic.json"
"""Holds what is chosen when a topic is made and never changed: its kind of memory."""


class Topics:
    """A folder with a folder per topic, written by this process alone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Topics(Path(folder)) as topics:
    ...     topics.topic("orders").publish("till", [(0, b"1 coffee")])[0].offset, topics.names()
    (0, ['orders'])
    """

    def __init__(
        self, root: str | PathLike[str], defaults: TopicSettings | None = None, *, topics_max: int = 1_000,
        segment_bytes: int = SEGMENT_BYTES, clock: Clock = wall_ms, elapsed: Clock | None = None,
    ) -> None:  # fmt: skip
        self.root = Path(root)
        self.defaults = defaults or TopicSettings()
        self._topics_max = topics_max
        self._segment_bytes = segment_bytes
        self._clock, self._elapsed = clock, elapsed
        self._open: dict[str, Topic] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> "Topics":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def names(self) -> list[str]:
        return topic_names(self.root)

    def topic(self, name: str, *, create: bool = True, defaults: TopicSettings | None = None) -> Topic:
        """The topic of this name; made with these defaults if it does not exist, unless ``create`` is False."""
        with self._opening:
            if name not in self._open:
                self._open[name] = self._load(name, create, defaults or self.defaults)
            return self._open[name]

    def _load(self, name: str, create: bool, settings: TopicSettings) -> Topic:
        folder = topic_folder(self.root, name)
        if not (folder / FILE).is_file():
            if not create:
                raise Misuse(f"there is no topic {name!r} in {self.root}", topic=name)
            if len(self.names()) >= self._topics_max:
                raise Misuse(f"there are {self._topics_max:,} topics in {self.root} already, the limit", topic=name)
            _make(folder, settings.memory)
        settings = replace(settings, memory=memory_of(folder))
        log = SegmentLog(folder, segment_bytes=self._segment_bytes)
        try:
            return Topic(log, settings, clock=self._clock, elapsed=self._elapsed)
        except BaseException:
            log.close()  # else its lock would stop the next try
            raise

    def close(self) -> None:
        """Close all topics, then raise the first error of any."""
        errors: list[BaseException] = []
        with self._opening:
            while self._open:
                try:
                    self._open.popitem()[1].close()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def topic_folder(root: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise Misuse(f"topic {name!r}: must be 1 to 100 of A-Z a-z 0-9 . _ -, the first a letter or digit", topic=name)
    return root / name


def topic_names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob(f"*/{FILE}"))


def _make(folder: Path, memory: MemoryKind) -> None:
    """Write the file of a new topic, durably, before anything is stored in it."""
    if any(folder.glob("*.log")):  # a new file could name another kind of memory
        raise Damaged(f"{folder}: has a log, but no {FILE}", path=str(folder))
    with failing(str(folder / FILE)):
        REAL.make_folder(str(folder))
        replace_file(REAL, str(folder / FILE), json.dumps({"format": 1, "memory": memory}).encode() + b"\n")
        REAL.sync_folder(str(folder))


def memory_of(folder: Path) -> MemoryKind:
    path = folder / FILE
    try:
        kind = read_json(path.read_bytes(), "it")["memory"]
    except (OSError, BadInput, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not the file of a topic: {error}", path=str(path)) from error
    if kind not in get_args(MemoryKind):
        raise BadInput(f"{path}: memory is {kind!r}, must be one of {', '.join(get_args(MemoryKind))}", path=str(path))
    return cast(MemoryKind, kind)
