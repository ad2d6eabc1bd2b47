"""The detector over columns: many chains at once, rows sorted by chain and then in the order of judgement.

The scalar `ChainDetector` is the truth; this form gives the same answers faster. Most messages are newer than all seen
of their chain, and for those one number decides, the newest seen: numpy finds it for all rows at once, as the running
maximum of each chain. What is left is few: messages that open a gap, and messages behind the newest. Only those meet
the gaps, one by one.

The running maximum is the newest number *counted* only while no message ahead of it is refused. Chains in which one is
(its previous number lies below the newest, or it jumps too far) are judged row by row: rare, and exact.

Numbers come packed (see `number`), a missing previous is ``NO_PREVIOUS``. A negative number marks a row that was
refused before it came here: ``refused(code)`` is answered with ``code``, and the row is no part of any chain.

Memory: one batch, and the gaps of the chain that it ended in, so input of any size can stream through.
Cost: a dozen numpy passes per batch, and about half a microsecond per message that meets the gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.engines.chains import packed as P
from onefold.engines.chains.answers import ANSWERS
from onefold.engines.chains.detector import GAP_COUNT_MAX, ChainDetector, Floor
from onefold.engines.chains.number import SEQUENCE_BITS, SEQUENCE_MAX

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]

NO_PREVIOUS = P.NO_PREVIOUS
_TO_JUDGE = 127  # judge this row by the whole rule
_BEHIND = 126  # judge this row by the gaps alone


def refused(reason: str) -> int:
    """The number that stands for "refused already, for this reason"."""
    return -1 - P.CODES[reason]


def answers(codes: Codes) -> list[str]:
    """The answers in words.

    >>> answers(np.array([1, 5]))
    ['FIRST in_order', 'REPEAT seen']
    """
    return [str(ANSWERS[code]) for code in codes]


class Rows(NamedTuple):
    """Columns of equal length, sorted by chain."""

    begins: Bools
    """Is it the first row of its chain?"""
    previous: Int64s
    number: Int64s


class ColumnarDetector:
    """Judges batches of rows; the rows of a chain must be contiguous over all batches.

    >>> columns = ColumnarDetector()
    >>> chain = np.zeros(3, np.int64)
    >>> answers(columns.judge(chain, np.array([NO_PREVIOUS, 5, NO_PREVIOUS]), np.array([5, 6, 5])))
    ['FIRST new_chain', 'FIRST in_order', 'REPEAT behind_head']
    """

    def __init__(
        self, *, gap_count_max: int = GAP_COUNT_MAX, floor: Floor = "first", jump_max_ms: int | None = None
    ) -> None:
        ChainDetector(gap_count_max=gap_count_max, floor=floor, jump_max_ms=jump_max_ms)  # refuses misuse
        self._settings = (gap_count_max, floor, jump_max_ms)
        self._detector = P.PackedDetector(*self._settings)
        self._chain: int | None = None  # whose rows the last batch ended with

    def judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
        """The code of each row's answer, which is its place in ``ANSWERS``."""
        bad = previous >= number
        if not (bad | (number < 0)).any():
            return self._judge(chain, previous, number)
        codes = np.where(number < 0, -1 - number, P.BAD_NUMBERING).astype(np.int8)
        good = np.flatnonzero(~bad & (number >= 0))
        codes[good] = self._judge(chain[good], previous[good], number[good])
        return codes

    def _judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
        if len(number) == 0:
            return np.empty(0, np.int8)
        goes_on = self._chain == int(chain[0])
        self._chain = int(chain[-1])
        if goes_on:  # what was seen before stands in for by one row: the head
            chain = np.concatenate((chain[:1], chain))
            previous = np.concatenate(([NO_PREVIOUS], previous))
            number = np.concatenate(([self._detector.head], number))
        rows = Rows(np.concatenate(([True], chain[1:] != chain[:-1])), previous, number)
        codes, newest = classify(rows, self._settings[2])
        at = 0 if goes_on else -1  # the first row of the chain whose detector is at hand

        def begin(first: int) -> P.PackedDetector:
            nonlocal at
            if first != at:
                at, self._detector = first, P.PackedDetector(*self._settings)
                self._detector.begin(int(previous[first]), int(number[first]))
            return self._detector

        judged = walk(rows, codes, newest, begin)
        last = int(np.flatnonzero(rows.begins)[-1])
        begin(last)
        if last not in judged:
            self._detector.head = int(newest[-1])
        return codes[goes_on:]


def classify(rows: Rows, jump_max_ms: int | None = None) -> tuple[Codes, Int64s]:
    """The codes of all rows that one comparison decides, and the newest number up to and with each row."""
    begins, previous, number = rows
    ahead = _ahead(rows)
    newest = number[np.maximum.accumulate(np.where(ahead, np.arange(len(number)), 0))]
    head = np.concatenate(([P.START], newest[:-1]))
    codes = np.full(len(number), _BEHIND, np.int8)
    codes[ahead] = P.IN_ORDER
    codes[ahead & (previous > head)] = P.OPENS_GAP
    codes[ahead & (previous == NO_PREVIOUS)] = P.AHEAD
    refusal = ahead & ~begins & (previous < head) & (previous != NO_PREVIOUS)
    if jump_max_ms is not None:
        refusal |= ahead & ~begins & ((number >> SEQUENCE_BITS) - (head >> SEQUENCE_BITS) > jump_max_ms)
    if refusal.any():
        rank = np.cumsum(begins)
        codes[np.isin(rank, rank[refusal])] = _TO_JUDGE
    codes[begins] = P.NEW_CHAIN
    return codes, newest


def walk(rows: Rows, codes: Codes, newest: Int64s, begin: Callable[[int], P.PackedDetector]) -> set[int]:
    """Show to the gaps, in order, the rows that open one, are behind, or need the whole rule.

    ``begin(first)`` is the detector of the chain that has its first row there, with that row already told. Returns the
    chains, by their first row, that were judged by the whole rule: their detectors know the head, the others do not.
    """
    begins, previous, number = rows
    visits = np.flatnonzero((codes == P.OPENS_GAP) | (codes >= _BEHIND))
    start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
    columns = (start[visits], codes[visits], newest[visits - 1], previous[visits], number[visits])
    current = -1
    judged = set()
    answered: list[int] = []
    for first, code, head, before, own in zip(*(column.tolist() for column in columns), strict=True):
        if first != current:
            detector, current = begin(first), first
            behind = detector.behind
        if code == _BEHIND:
            code = behind(before, own)
        elif code == _TO_JUDGE:
            judged.add(first)
            code = detector.judge(before, own)
        else:
            detector.open_gap(head, before)
        answered.append(code)
    codes[visits] = answered
    return judged


def _ahead(rows: Rows) -> Bools:
    """Which rows are newer than all rows of their chain before them."""
    order = _in_chain_order(rows)
    ahead = np.ones(len(order), np.bool_)
    np.greater(order[1:], np.maximum.accumulate(order)[:-1], out=ahead[1:])
    return ahead


def _in_chain_order(rows: Rows) -> Int64s | NDArray[np.object_]:
    """One integer per row that rises from chain to chain, and within a chain as the number does."""
    timestamp, sequence = rows.number >> SEQUENCE_BITS, rows.number & SEQUENCE_MAX
    timestamp -= timestamp.min()
    rank = np.cumsum(rows.begins)
    sequence_bits = int(sequence.max()).bit_length()
    number_bits = int(timestamp.max()).bit_length() + sequence_bits
    if number_bits + int(rank[-1]).bit_length() > 63:  # decades of traffic with long ties: exact, but slower
        return rank.astype(object) << number_bits | (timestamp.astype(object) << sequence_bits) | sequence
    return rank << number_bits | timestamp << sequence_bits | sequence
