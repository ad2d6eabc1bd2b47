"""The requests to a topic: each has drafts to store, verdicts, and a function to call once the drafts are stored.

A request is judged before anything is written, so its drafts are only what is new. It is settled when they are on disk:
the engine moves them from its overlay into its memory, and the receipts get their offsets. If the store fails it is
never settled; the topic then discards the whole overlay.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

from onefold.errors import Misuse
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.records import CONFLICT, RETRIED, TOO_LARGE, Kind, SequenceEntry
from onefold.producers.rules import Sequences
from onefold.verdict import Answer, Verdict

T = TypeVar("T")

Message: TypeAlias = tuple[int, bytes]
"""A sequence id and a payload."""


class Receipt(NamedTuple):
    """The answer to a message; a FIRST is on disk when its receipt is returned."""

    verdict: Verdict
    reason: str
    offset: int = -1
    """Its offset in the log; -1 unless it is a FIRST."""

    @property
    def retry(self) -> bool:
        return self[:2] in RETRIED


class ProducerSession(NamedTuple):
    name: str
    epoch: int
    last_sequence_id: int
    """The highest stored sequence; -1: none."""
    floor: int
    """Sequences at or below it may have been stored by a forgotten producer; -1: no floor."""


def entries(records: Iterable[LogRecord]) -> Iterator[tuple[int, SequenceEntry]]:
    for offset, time_ms, kind, producer, sequence, epoch, digest, _ in records:
        yield offset, SequenceEntry(kind, producer, sequence, epoch, digest, time_ms)


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    drafts: list[Draft]
    verdicts: list[tuple[Answer, int]]
    """For the books: how many messages get each answer once the drafts are stored."""
    settle: Callable[[int, int], T]
    """Called with the first offset and the time of the stored drafts; returns the answer to the caller."""


MESSAGE_COST: Final = 200
"""Bytes that a message takes in the queue beside its payload: an empty one is not free."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one producer, as columns: they are handled all at once where possible."""

    producer: str
    sequences: tuple[int, ...]
    payloads: tuple[bytes, ...]
    digests: list[int]

    @classmethod
    def of(cls, producer: str, messages: Sequence[Message]) -> "Batch":
        sequences, payloads = zip(*messages, strict=True) if messages else ((), ())
        if {*map(type, sequences)} - {int} or {*map(type, payloads)} - {bytes}:
            wrong = next((s, type(p).__name__) for s, p in messages if type(s) is not int or type(p) is not bytes)
            raise Misuse(f"a message is a whole number and bytes, not ({wrong[0]!r}, {wrong[1]})", wrong=wrong)
        return cls(producer, sequences, payloads, list(map(crc32, payloads)))

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def size(self) -> int:
        return MESSAGE_COST * len(self) + sum(map(len, self.payloads))

    def runs(self, bytes_max: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each run of consecutive sequences; messages that are too large are left out."""
        sequences, payloads, n = self.sequences, self.payloads, len(self)
        if n and max(map(len, payloads)) <= bytes_max and sequences == tuple(range(sequences[0], sequences[0] + n)):
            yield 0, n
            return
        i = 0
        while i < n:
            j = i + 1
            if len(payloads[i]) <= bytes_max:
                while j < n and sequences[j] == sequences[j - 1] + 1 and len(payloads[j]) <= bytes_max:
                    j += 1
                yield i, j
            i = j


def publish(memory: Sequences, batch: Batch, epoch: int | None, bytes_max: int) -> Request[list[Receipt]]:
    judged = _Judged(memory, batch, epoch)
    at = 0
    for i, j in batch.runs(bytes_max):
        judged.answer(at, i, TOO_LARGE)
        judged.judge(i, j)
        at = j
    judged.answer(at, len(batch), TOO_LARGE)
    return Request(judged.drafts, [(answer, end - begin) for begin, end, answer, _ in judged.spans], judged.settle)


def refuse(answer: Answer, count: int) -> Request[list[Receipt]]:
    return Request([], [(Answer(*answer), count)], lambda first, time_ms: [Receipt(*answer)] * count)


_draft: Callable[[Iterable[object]], Draft] = partial(tuple.__new__, Draft)  # Draft(*columns) in a third of the time
_receipt: Callable[[Iterable[object]], Receipt] = partial(tuple.__new__, Receipt)


@dataclass(slots=True)
class _Judged:
    memory: Sequences
    batch: Batch
    epoch: int | None
    drafts: list[Draft] = field(default_factory=list)
    spans: list[tuple[int, int, Answer, int]] = field(default_factory=list)
    """Neighbours in the batch with the same answer: begin, end, answer, index of the first draft (-1: none)."""

    def answer(self, begin: int, end: int, answer: Answer, kind: Kind | None = None) -> None:
        """Give ``begin..end`` this answer, and store them as records of ``kind`` if that is given."""
        if begin == end:
            return
        self.spans.append((begin, end, Answer(*answer), -1 if kind is None else len(self.drafts)))
        if kind is not None:
            batch, rows = self.batch, slice(begin, end)
            kinds, names, epochs = repeat(kind), repeat(batch.producer), repeat(self.epoch or 0)
            columns = kinds, names, batch.sequences[rows], epochs, batch.digests[rows], batch.payloads[rows]
            self.drafts += map(_draft, zip(*columns, strict=False))

    def judge(self, i: int, j: int) -> None:
        batch, low = self.batch, self.batch.sequences[i]
        high, digests = low + j - i - 1, batch.digests[i:j]
        pushed = self.memory.push(batch.producer, low, high=high, epoch=self.epoch, digests=digests)
        if pushed.verdict == Verdict.FIRST:
            at = i
            for first, last in pushed.parts:
                begin, end = i + first - low, i + last - low + 1
                self.answer(at, begin, self.memory.stored)
                self.answer(begin, end, pushed, Kind.MESSAGE)
                at = end
            self.answer(at, j, self.memory.stored)
        elif pushed == CONFLICT and j - i > 1:  # somewhere in the run: judge its messages one by one
            for k in range(i, j):
                self.judge(k, k + 1)
        else:
            self.answer(i, j, pushed, Kind.CONFLICT if pushed == CONFLICT else None)

    def settle(self, first: int, time_ms: int) -> list[Receipt]:
        receipts: list[Receipt] = []
        for begin, end, (verdict, reason), draft in self.spans:
            if verdict != Verdict.FIRST:
                receipts += [Receipt(verdict, reason)] * (end - begin)
                continue
            batch, digests = self.batch, self.batch.digests[begin:end]
            low, epoch = batch.sequences[begin], self.epoch or 0
            self.memory.persist(batch.producer, low, epoch=epoch, digests=digests, time_ms=time_ms)
            offsets = range(first + draft, first + draft + end - begin)
            receipts += map(_receipt, zip(repeat(verdict), repeat(reason), offsets, strict=False))
        return receipts


def publish_keyed(memory: Sequences, key: str, payload: bytes, now_ms: int, bytes_max: int) -> Request[Receipt]:
    digest = crc32(payload)
    answer = Answer(*(TOO_LARGE if len(payload) > bytes_max else memory.push_key(key, digest, now_ms)))
    stored = answer.verdict == Verdict.FIRST
    kind = Kind.KEYED if stored else Kind.CONFLICT
    drafts = [Draft(kind, key, 0, 0, digest, payload)] if stored or answer == CONFLICT else []

    def settle(first: int, time_ms: int) -> Receipt:
        if not stored:
            return Receipt(*answer)
        memory.persist_key(key, digest, time_ms)
        return Receipt(*answer, first)

    return Request(drafts, [(answer, 1)], settle)


def connect(memory: Sequences, name: str) -> Request[ProducerSession]:
    """Give a producer a new epoch, which fences off older sessions of its name."""
    epoch = memory.push_open(name)

    def settle(first: int, time_ms: int) -> ProducerSession:
        memory.persist_open(name, epoch, time_ms)
        return ProducerSession(name, epoch, memory.last_sequence_id(name), memory.floor(name))

    return Request([Draft(Kind.OPEN, name, 0, epoch, 0, b"")], [], settle)


def control(memory: Sequences, kind: Kind, value: int, producer: str = "") -> Request[None]:
    """Store a record that changes the memory and is no message; see `Kind`."""

    def settle(first: int, time_ms: int) -> None:
        memory.apply(SequenceEntry(kind, producer, value, 0, 0, time_ms))

    text = kind.name.encode()
    return Request([Draft(kind, producer, value, 0, crc32(text), text)], [], settle)
