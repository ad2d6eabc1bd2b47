"""The producers engine over columns: many at once, rows sorted by producer and then in the order of judgement.

The scalar `Sequences` is the truth; this form gives the answers that it gives when every FIRST is persisted at once. A
producer is a chain, so the columnar chain detector judges producers too:

    memory "highest"   a chain whose messages name no previous one: each is compared with the head only
    memory "gaps"      a chain whose message s names s - 1 as its previous one, and that begins with a message -1

The message -1 is made up, one per producer: with it, all that lies below the first sequence is a gap like any other,
and gaps are counted as the scalar engine counts them. What chains do not know is done around them:

    epochs      a row below the highest epoch before it is refused before the chain sees it
    jumps       so is a row that lies more than ``jump_max`` above the highest sequence before it, if that is set
    conflicts   a row that the chain has seen before is compared with the digest of the row that was FIRST

A negative sequence marks a row that was refused before it came here: ``refused(code)`` is answered with ``code``.

Cost: that of the chain detector, a sort of the epochs where they differ, and a sort of the repeats and their firsts.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.engines.chains import packed as P
from onefold.engines.chains.answers import ANSWERS as CHAIN_ANSWERS
from onefold.engines.chains.columnar import NO_PREVIOUS, ColumnarDetector
from onefold.engines.producers import answers as A
from onefold.engines.producers.bounds import MemoryKind

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]

NO_EPOCH: Final = -1
CODES: Final = {answer.reason: code for code, answer in enumerate(A.ANSWERS)}

_MEANINGS: Final = {
    A.NEW: (P.NEW_CHAIN, P.IN_ORDER, P.OPENS_GAP, P.AHEAD),
    A.FILLS_GAP: (P.FILLS_GAP,),
    A.SEEN: (P.SEEN,),
    A.BEHIND_HIGHEST: (P.BEHIND_HEAD,),
    A.FORGOTTEN: (P.FORGOTTEN,),
    A.STATE_FULL: (P.STATE_FULL,),
}
_OF_CHAIN: Final = np.array(  # the producers' code of each code of the chains
    [next((CODES[a.reason] for a, codes in _MEANINGS.items() if i in codes), -1) for i in range(len(CHAIN_ANSWERS))],
    np.int8,
)
_STORED: Final = np.array([answer in (A.NEW, A.FILLS_GAP) for answer in A.ANSWERS])
_BEHIND: Final = np.array([answer in (A.SEEN, A.BEHIND_HIGHEST, A.FORGOTTEN) for answer in A.ANSWERS])


def refused(reason: str) -> int:
    """The sequence that stands for "refused already, for this reason"."""
    return -1 - CODES[reason]


def chain_gaps_max(gap_count_max: int) -> int:
    """What a chain must be told to keep so many gaps: it counts the infinite one too."""
    return gap_count_max + 1


def begins(*names: Int64s) -> Bools:
    """Which rows are the first of their producer; its name may be several columns."""
    changes = np.logical_or.reduce([name[1:] != name[:-1] for name in names])
    return np.concatenate(([True], changes))[: len(names[0])]


class Digests(NamedTuple):
    """Which payloads were stored, or are asked for: one row each."""

    owner: Int64s
    """Whose: a number for each producer."""
    sequence: Int64s
    digest: Int64s

    @classmethod
    def none(cls) -> Digests:
        """No rows."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def take(self, rows: Int64s | Bools) -> Digests:
        """These rows."""
        return Digests(*(column[rows] for column in self))

    def and_then(self, other: Digests) -> Digests:
        """These rows, and then the others."""
        return Digests(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class AsChain(NamedTuple):
    """Sequences as the messages of chains, with the made-up ones among them."""

    memory: MemoryKind
    previous: Int64s
    number: Int64s
    before: Int64s
    """The rows that a made-up message was put before."""

    @classmethod
    def of(cls, sequence: Int64s, memory: MemoryKind, fresh: Bools) -> AsChain:
        """``fresh``: which rows are the first of a producer that nothing is known of."""
        number = sequence + 1
        if memory == "highest":
            return cls(memory, np.full(len(number), NO_PREVIOUS, np.int64), number, np.empty(0, np.int64))
        before = np.flatnonzero(fresh)
        return cls(memory, np.insert(sequence, before, NO_PREVIOUS), np.insert(number, before, 0), before)

    def spread(self, column: Int64s) -> Int64s:
        """A column of the rows, with the made-up ones among them."""
        return np.insert(column, self.before, column[self.before]) if len(self.before) else column

    def answers(self, codes: Codes) -> Codes:
        """What the chains' codes mean, without the made-up rows."""
        if len(self.before):
            codes = np.delete(codes, self.before + np.arange(len(self.before)))
        if self.memory == "highest":  # the highest itself is known, but has no reason of its own there
            codes = np.where(codes == P.SEEN, P.BEHIND_HEAD, codes).astype(np.int8)
        return _OF_CHAIN[codes]


def fences(rank: Int64s, epoch: Int64s, start: Int64s) -> Codes:
    """The code of each row that its epoch refuses, -1 of all others.

    ``rank`` numbers the producers 0, 1, 2... as they come; ``start`` is the highest epoch known of each before.

    >>> codes = fences(np.zeros(4, np.int64), np.array([1, 2, 1, -1]), np.array([NO_EPOCH]))
    >>> [A.ANSWERS[code].reason if code >= 0 else "" for code in codes]
    ['', '', 'stale_epoch', 'epoch_missing']
    """
    codes = np.full(len(epoch), -1, np.int8)
    if not len(epoch) or epoch.min() >= max(epoch.max(), start.max()):
        return codes
    firsts = np.flatnonzero(begins(rank))
    levels, level = np.unique(np.insert(epoch, firsts, start), return_inverse=True)
    highest = np.maximum.accumulate(np.insert(rank, firsts, rank[firsts]) * len(levels) + level)
    before = levels[
        highest[np.arange(len(epoch)) + rank] % len(levels)
    ]  # the row before it, its producer's start first
    codes[epoch < before] = CODES["stale_epoch"]
    codes[(epoch < before) & (epoch == NO_EPOCH)] = CODES["epoch_missing"]
    return codes


def jumps(rank: Int64s, sequence: Int64s, start: Int64s, jump_max: int | None) -> Bools:
    """Which rows lie more than ``jump_max`` above the highest sequence of their producer that was not refused so.

    ``rank`` numbers the producers 0, 1, 2... as they come; ``start`` is the highest sequence known of each before, -1:
    none, and then its first row may be any. Only producers with such a row are looked at row by row: rare, and exact.

    >>> rows = np.array([5, 9, 2**62, 10, 6])
    >>> jumps(np.zeros(5, np.int64), rows, np.array([-1]), 1000).tolist()
    [False, False, True, False, False]
    """
    refused = np.zeros(len(sequence), np.bool_)
    if jump_max is None or not len(sequence):
        return refused
    known = start[start >= 0]
    least = min(int(sequence.min()), int(known.min())) if len(known) else int(sequence.min())
    if int(sequence.max()) - least <= jump_max:
        return refused
    firsts = np.flatnonzero(begins(rank))
    levels, level = np.unique(np.insert(sequence, firsts, start), return_inverse=True)
    highest = np.maximum.accumulate(np.insert(rank, firsts, rank[firsts]) * len(levels) + level)
    before = levels[highest[np.arange(len(sequence)) + rank] % len(levels)]
    found = np.flatnonzero((before >= 0) & (sequence - np.maximum(before, 0) > jump_max))
    ends = np.append(firsts[1:], len(sequence))
    for producer in np.unique(rank[found]).tolist():  # what follows a refused row is measured by what came before it
        head, first = int(start[producer]), int(firsts[producer])
        for row, own in enumerate(sequence[first : ends[producer]].tolist(), first):
            if own - head > jump_max and head >= 0:
                refused[row] = True
            else:
                head = max(head, own)
    return refused


def contradictions(rows: Digests, codes: Codes, known: Digests) -> tuple[Int64s, Digests]:
    """Which rows contradict the one that was stored, and the rows that are stored by now.

    ``known``: what was stored before. Of one sequence, the rows must come in the order of judgement.
    """
    asked = np.flatnonzero(_BEHIND[codes])
    stored = rows.take(_STORED[codes])
    if not len(asked):
        return asked, stored
    return asked[_differ(known.and_then(stored), rows.take(asked))], stored


def _differ(stored: Digests, asked: Digests) -> Bools:
    """Which of the asked are stored, and with another digest."""
    bits = max(10, (8 * len(asked.owner)).bit_length())
    marked = np.zeros(1 << bits, np.bool_)
    marked[_slots(asked, bits)] = True
    stored = stored.take(marked[_slots(stored, bits)])  # most are never asked for: sorting them would be for nothing
    both = stored.and_then(asked)
    order = np.lexsort((both.sequence, both.owner))  # stable: what is stored comes before who asks
    owner, sequence, digest = both.take(order)
    place = np.arange(len(order))
    opens = np.maximum.accumulate(np.where(begins(owner, sequence), place, 0))
    last = np.maximum.accumulate(np.where(order < len(stored.owner), place, -1))
    different = np.empty(len(order), np.bool_)
    different[order] = (last >= opens) & (digest[last] != digest)
    return different[len(stored.owner) :]


def _slots(rows: Digests, bits: int) -> NDArray[np.uint64]:
    mixed = rows.sequence.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= rows.owner.view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed * np.uint64(0xFF51AFD7ED558CCD)) >> np.uint64(64 - bits)


class ColumnarSequences:
    """Judges a table's rows, in batches over which the rows of a producer must be contiguous.

    >>> columns = ColumnarSequences("gaps", 10_000)
    >>> producer, epoch = np.zeros(4, np.int64), np.full(4, NO_EPOCH)
    >>> [A.ANSWERS[code].reason for code in columns.judge(producer, epoch, np.array([2, 3, 0, 3]))]
    ['new', 'new', 'fills_gap', 'seen']
    """

    def __init__(self, memory: MemoryKind, gap_count_max: int, jump_max: int | None = None) -> None:
        self._memory: MemoryKind = memory
        self._jump_max = jump_max
        self._detector = ColumnarDetector(gap_count_max=chain_gaps_max(gap_count_max))
        self._epoch = (-1, NO_EPOCH)  # the producer that the last batch ended with, and its highest epoch
        self._highest = (-1, -1)  # and its highest sequence
        self._stored = Digests.none()

    def judge(self, producer: Int64s, epoch: Int64s, sequence: Int64s, *_: Int64s) -> Codes:
        """The code of each row's answer, which is its place in ``ANSWERS``; ``producer`` holds numbers from 0."""
        if len(sequence) and sequence.min() >= 0:
            return self._judge(producer, epoch, sequence)
        codes = np.where(sequence < 0, -1 - sequence, 0).astype(np.int8)
        good = np.flatnonzero(sequence >= 0)
        if len(good):
            codes[good] = self._judge(producer[good], epoch[good], sequence[good])
        return codes

    def _judge(self, producer: Int64s, epoch: Int64s, sequence: Int64s) -> Codes:
        first = begins(producer)
        start = np.full(int(np.count_nonzero(first)), NO_EPOCH, np.int64)
        if self._epoch[0] == producer[0]:
            start[0] = self._epoch[1]
        codes = fences(np.cumsum(first) - 1, epoch, start)
        last = int(np.flatnonzero(first)[-1])
        self._epoch = int(producer[-1]), max(int(start[-1]), int(epoch[last:].max()))
        live = np.flatnonzero(codes < 0)
        if len(live) < len(codes):
            producer, sequence = producer[live], sequence[live]
        if len(live) and self._jump_max is not None:
            far = self._jumps(producer, sequence)
            codes[live[far]] = CODES["jump_too_far"]
            live, producer, sequence = live[~far], producer[~far], sequence[~far]
        if len(live):
            codes[live] = self._as_chain(producer, sequence)
        return codes

    def _jumps(self, producer: Int64s, sequence: Int64s) -> Bools:
        first = begins(producer)
        start = np.full(int(np.count_nonzero(first)), -1, np.int64)
        if self._highest[0] == producer[0]:
            start[0] = self._highest[1]
        far = jumps(np.cumsum(first) - 1, sequence, start, self._jump_max)
        last = int(np.flatnonzero(first)[-1])
        taken = sequence[last:][~far[last:]]
        self._highest = int(producer[-1]), max(int(start[-1]), int(taken.max()) if len(taken) else -1)
        return far

    def _as_chain(self, producer: Int64s, sequence: Int64s) -> Codes:
        rows = AsChain.of(sequence, self._memory, begins(producer))  # shown again, a made-up message changes nothing
        return rows.answers(self._detector.judge(rows.spread(producer), rows.previous, rows.number))

    def review(self, producer: Int64s, epoch: Int64s, sequence: Int64s, digest: Int64s, codes: Codes) -> Codes:
        """The codes, with ``conflict`` where a repeat's digest is not that of the first.

        Of one sequence the rows must come in the order of judgement, in one call or in calls that follow each other.
        """
        rows = Digests(producer, sequence, digest)
        found, stored = contradictions(rows, codes, self._stored)
        codes = codes.copy()
        codes[found] = CODES["conflict"]
        stored = self._stored.and_then(stored)
        self._stored = stored.take((stored.owner == producer[-1]) & (stored.sequence == sequence[-1]))
        return codes
