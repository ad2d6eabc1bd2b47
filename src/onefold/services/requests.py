"""What a topic can be asked, each as three things: the drafts to store, the verdicts, and what to do once it is stored.

A request is judged before anything is written, so its drafts are only what is new. It is settled when they are on disk:
the engine takes them from its overlay into its memory, and the receipts get their offsets. If the store fails it is
never settled; the topic then throws the whole overlay away.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from onefold.engines.producers import answers
from onefold.engines.producers.records import Entry, Kind
from onefold.engines.producers.sequences import Sequences
from onefold.errors import Misuse
from onefold.ports import Draft, Record
from onefold.verdict import Answer, Verdict

T = TypeVar("T")

Message: TypeAlias = tuple[int, bytes]
"""A sequence id and a payload."""


class Receipt(NamedTuple):
    """What became of a message; a FIRST is on disk when it is given out."""

    verdict: Verdict
    reason: str
    offset: int = -1
    """Where it is stored; -1 unless it is a FIRST."""


class Session(NamedTuple):
    """What a producer is told when it connects."""

    name: str
    epoch: int
    last_sequence_id: int
    """The highest that is stored; -1: none."""
    floor: int
    """Sequences at or below it may have been stored by somebody who was forgotten; -1: nothing was."""


def entries(records: Iterable[Record]) -> Iterator[tuple[int, Entry]]:
    """What of the records of a log concerns the memory, with their offsets."""
    for offset, time_ms, kind, producer, sequence, epoch, digest, _ in records:
        yield offset, Entry(kind, producer, sequence, epoch, digest, time_ms)


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """Judged, and waiting to be stored."""

    drafts: list[Draft]
    verdicts: list[tuple[Answer, int]]
    """For the books: how many messages get which answer, once it is stored."""
    settle: Callable[[int, int], T]
    """Called with the first offset and the time of its drafts; what the one who asked is told."""

    @property
    def settles(self) -> bool:
        """Is any of it stored, now or before?"""
        return any(answer.verdict in (Verdict.FIRST, Verdict.REPEAT) for answer, _ in self.verdicts)


MESSAGE_COST: Final = 200
"""Bytes that a message takes in the queue beside its payload: an empty one is not free."""


def size(producer: str, messages: Sequence[Message]) -> int:
    """What messages take in the queue; `Misuse` if they are none."""
    total = len(producer)
    for sequence, payload in messages:
        if type(sequence) is not int or type(payload) is not bytes:
            raise Misuse(f"a message is a whole number and bytes, not ({sequence!r}, {type(payload).__name__})")
        total += MESSAGE_COST + len(payload)
    return total


def publish(
    memory: Sequences, producer: str, messages: Sequence[Message], epoch: int | None, bytes_max: int
) -> Request[list[Receipt]]:
    """Store those of a producer's messages that are new."""
    batch = _Batch(memory, producer, messages, epoch)
    i = 0
    while i < len(messages):
        j = i + 1
        if len(messages[i][1]) > bytes_max:
            batch.answer(1, answers.TOO_LARGE)
        else:
            while j < len(messages) and messages[j][0] == messages[j - 1][0] + 1 and len(messages[j][1]) <= bytes_max:
                j += 1
            batch.judge(i, j)
        i = j
    return Request(batch.drafts, [(span.answer, span.length) for span in batch.spans], batch.settle)


def refuse(answer: Answer, count: int) -> Request[list[Receipt]]:
    """So many messages get this answer, and nothing is stored."""
    return Request([], [(Answer(*answer), count)], lambda first, time_ms: [Receipt(*answer)] * count)


class _Span(NamedTuple):
    """Neighbours in a request that get the same answer."""

    length: int
    answer: Answer
    draft: int
    """Its first draft; -1: nothing of it is stored."""


@dataclass(slots=True)
class _Batch:
    memory: Sequences
    producer: str
    messages: Sequence[Message]
    epoch: int | None
    drafts: list[Draft] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)

    def answer(self, count: int, answer: Answer) -> None:
        """So many messages get this answer, and nothing of them is stored."""
        self.spans.append(_Span(count, Answer(*answer), -1))

    def judge(self, i: int, j: int) -> None:
        """Judge a run of consecutive sequences as one."""
        low, payload = self.messages[i]
        digests = [zlib.crc32(payload) for _, payload in self.messages[i:j]]
        pushed = self.memory.push(self.producer, low, high=low + j - i - 1, epoch=self.epoch, digests=digests)
        if pushed.verdict == Verdict.FIRST:
            self._store(i, j, digests, Answer(*pushed), pushed.parts)
        elif pushed != answers.CONFLICT:
            self.answer(j - i, pushed)
        elif j - i > 1:  # somewhere in it: one by one
            for k in range(i, j):
                self.judge(k, k + 1)
        else:
            self.spans.append(_Span(1, Answer(*pushed), len(self.drafts)))
            self.drafts.append(Draft(Kind.CONFLICT, self.producer, low, self.epoch or 0, digests[0], payload))

    def _store(self, i: int, j: int, digests: list[int], answer: Answer, parts: Sequence[tuple[int, int]]) -> None:
        first, epoch, producer, messages = self.messages[i][0], self.epoch or 0, self.producer, self.messages
        at = i
        for low, high in parts:
            begin, end = i + low - first, i + high - first + 1
            if at < begin:
                self.answer(begin - at, self.memory.stored)
            self.spans.append(_Span(end - begin, answer, len(self.drafts)))
            kind = Kind.MESSAGE
            self.drafts += [
                Draft(kind, producer, messages[k][0], epoch, digests[k - i], messages[k][1]) for k in range(begin, end)
            ]
            at = end
        if at < j:
            self.answer(j - at, self.memory.stored)

    def settle(self, first: int, time_ms: int) -> list[Receipt]:
        """The drafts are stored from this offset on."""
        receipts: list[Receipt] = []
        for count, (verdict, reason), draft in self.spans:
            if verdict != Verdict.FIRST:
                receipts += [Receipt(verdict, reason)] * count
                continue
            stored = self.drafts[draft : draft + count]
            digests = [record.digest for record in stored]
            self.memory.persist(
                self.producer, stored[0].sequence, epoch=stored[0].epoch, digests=digests, time_ms=time_ms
            )
            receipts += [Receipt(verdict, reason, offset) for offset in range(first + draft, first + draft + count)]
        return receipts


def publish_keyed(memory: Sequences, key: str, payload: bytes, now_ms: int, bytes_max: int) -> Request[Receipt]:
    """Store a message that has a key instead of a producer and a sequence, if the key is new."""
    digest = zlib.crc32(payload)
    answer = Answer(*(answers.TOO_LARGE if len(payload) > bytes_max else memory.push_key(key, digest, now_ms)))
    stored = answer.verdict == Verdict.FIRST
    kind = Kind.KEYED if stored else Kind.CONFLICT
    drafts = [Draft(kind, key, 0, 0, digest, payload)] if stored or answer == answers.CONFLICT else []

    def settle(first: int, time_ms: int) -> Receipt:
        if not stored:
            return Receipt(*answer)
        memory.persist_key(key, digest, time_ms)
        return Receipt(*answer, first)

    return Request(drafts, [(answer, 1)], settle)


def connect(memory: Sequences, name: str) -> Request[Session]:
    """Give a producer a new epoch, which fences off whoever used its name before."""
    epoch = memory.push_open(name)

    def settle(first: int, time_ms: int) -> Session:
        memory.persist_open(name, epoch, time_ms)
        return Session(name, epoch, memory.last_sequence_id(name), memory.floor(name))

    return Request([Draft(Kind.OPEN, name, 0, epoch, 0, b"")], [], settle)


def switch(memory: Sequences, on: bool) -> Request[None]:
    """Switch deduplication on or off: off forgets everything, on begins with nothing."""
    return _control(memory, Kind.SWITCH, int(on))


def purge(memory: Sequences, before_ms: int) -> Request[None]:
    """Forget the producers that were not heard from since, down to a floor."""
    return _control(memory, Kind.PURGE, before_ms)


def _control(memory: Sequences, kind: Kind, value: int) -> Request[None]:
    def settle(first: int, time_ms: int) -> None:
        memory.apply(Entry(kind, "", value, 0, 0, time_ms))

    text = kind.name.encode()
    return Request([Draft(kind, "", value, 0, zlib.crc32(text), text)], [], settle)
