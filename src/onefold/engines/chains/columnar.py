"""The detector over columns: many chains at once, rows sorted by chain and then in the order of judgement.

The scalar `ChainDetector` is the truth; this form gives the same answers faster. Most messages are newer than all seen
of their chain, and for those one number decides, the newest seen: numpy finds it for all rows at once, as the running
maximum of each chain. A copy of such a message, previous number and all, is a repeat, and is found among them. What is
left is few: messages that open a gap, and the other ones behind the newest. Only those meet the gaps, one by one.

The running maximum is the newest number *counted* only while no message ahead of it is refused. Chains in which one is
(its previous number lies below the newest, or it jumps too far) are judged row by row: rare, and exact.

Numbers come packed (see `number`), a missing previous is ``NO_PREVIOUS``. A negative number marks a row that was
refused before it came here: ``refused(code)`` is answered with ``code``, and the row is no part of any chain.

A message that names no previous one and is behind the newest cannot be known by gaps (UNSURE behind_head). A table has
all rows of a chain, so there it can: `TableDetector` looks at the rows of equal number a second time.

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
from onefold.verdict import Verdict

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]
Order: TypeAlias = Int64s | NDArray[np.object_]

NO_PREVIOUS = P.NO_PREVIOUS
_TO_JUDGE = 127  # judge this row by the whole rule
_BEHIND = 126  # judge this row by the gaps alone

_FIRST = np.array([answer.verdict is Verdict.FIRST for answer in ANSWERS])


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
    ['FIRST new_chain', 'FIRST in_order', 'REPEAT seen']
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


class TableDetector:
    """Judges a table: rows with a previous number by the gaps, those without exactly, by the numbers of their chain.

    What `judge` must leave open (a row without previous that is UNSURE, behind_head or forgotten) `review` settles: of
    the rows of one number, the first that is FIRST or open counts, and those of them that follow are REPEAT seen. So
    no number counts twice, and every number that some row has without a previous one counts once.

    >>> table = TableDetector()
    >>> rows = np.zeros(4, np.int64), np.full(4, NO_PREVIOUS), np.array([5, 9, 7, 7])
    >>> codes = table.judge(*rows)
    >>> answers(codes)[2:], answers(table.review(*rows, codes))[2:]
    (['UNSURE behind_head', 'UNSURE behind_head'], ['FIRST late', 'REPEAT seen'])
    """

    def __init__(self, *, gap_count_max: int = GAP_COUNT_MAX, floor: Floor = "first") -> None:
        self._detector = ColumnarDetector(gap_count_max=gap_count_max, floor=floor)
        self._counted: tuple[int, int] | None = None  # chain and number that the last review ended with, if it counts
        self.due = False
        """Was a row left open, so that a review is needed?"""

    def judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
        """As `ColumnarDetector.judge`."""
        codes = self._detector.judge(chain, previous, number)
        self.due = self.due or bool(_left_open(previous, codes).any())
        return codes

    def review(self, chain: Int64s, previous: Int64s, number: Int64s, codes: Codes) -> Codes:
        """The codes of a table that was judged, with nothing left open that the table can tell.

        The rows must be sorted by chain, and those of one number must come in the order of judgement, in one call or in
        calls that follow each other.
        """
        last = int(chain[-1]), int(number[-1])
        if self._counted is not None and self._counted[0] == chain[0]:  # what counted before stands in as one row
            codes = self._settled(
                np.concatenate((chain[:1], chain)),
                np.concatenate(([NO_PREVIOUS], previous)),
                np.concatenate(([self._counted[1]], number)),
                np.concatenate((np.array([P.LATE], np.int8), codes)),
            )[1:]
        else:
            codes = self._settled(chain, previous, number, codes)
        if self._counted != last:
            counts = _FIRST[codes] & (number == last[1]) & (chain == last[0])
            self._counted = last if counts.any() else None
        return codes

    @staticmethod
    def _settled(chain: Int64s, previous: Int64s, number: Int64s, codes: Codes) -> Codes:
        open_rows = _left_open(previous, codes)
        rank = np.cumsum(np.concatenate(([True], chain[1:] != chain[:-1])))
        concerned = np.zeros(len(chain) + 1, np.bool_)
        concerned[rank[open_rows]] = True
        concerned[1] = True  # it may go on from the call before
        rows = np.flatnonzero((open_rows | _FIRST[codes]) & concerned[rank])
        if not len(rows):
            return codes
        again = _again(rank[rows], number[rows])
        codes = codes.astype(np.int8)
        codes[rows[again]] = P.SEEN
        codes[rows[~again & open_rows[rows]]] = P.LATE
        return codes


def _again(chain: Int64s, number: Int64s) -> Bools:
    """Which rows have a number that a row of their chain before them has."""
    order, _ = _in_chain_order(Rows(np.concatenate(([True], chain[1:] != chain[:-1])), number, number))
    by_number = np.argsort(order, kind="stable")
    in_order = order[by_number]
    again = np.zeros(len(order), np.bool_)
    again[by_number[1:]] = in_order[1:] == in_order[:-1]
    return again


def _left_open(previous: Int64s, codes: Codes) -> Bools:
    """Which rows the gaps cannot tell, and the numbers of a whole chain can."""
    open_rows: Bools = (previous == NO_PREVIOUS) & ((codes == P.BEHIND_HEAD) | (codes == P.FORGOTTEN))
    return open_rows


def classify(rows: Rows, jump_max_ms: int | None = None) -> tuple[Codes, Int64s]:
    """The codes of all rows that one comparison decides, and the newest number up to and with each row."""
    begins, previous, number = rows
    order, number_of = _in_chain_order(rows)
    top = np.maximum.accumulate(order)
    newest = number_of(top)
    ahead = np.concatenate(([True], order[1:] > top[:-1]))  # of all rows of their chain before them
    head = np.concatenate(([P.START], newest[:-1]))
    codes = np.full(len(number), P.IN_ORDER, np.int8)
    odd = np.flatnonzero(~ahead | (previous != head))
    odd_ahead, below, above = ahead[odd], previous[odd] < head[odd], previous[odd] > head[odd]
    alone = previous[odd] == NO_PREVIOUS
    codes[odd] = np.where(odd_ahead, np.where(above, P.OPENS_GAP, P.AHEAD), _BEHIND)
    codes[_copies(odd[~odd_ahead & ~alone], previous, order, top)] = P.SEEN
    codes[odd[~odd_ahead & alone & (number[odd] == head[odd])]] = P.SEEN
    refusal = odd[odd_ahead & below & ~alone]
    if jump_max_ms is not None:
        jump = (number >> SEQUENCE_BITS) - (head >> SEQUENCE_BITS)
        refusal = np.concatenate((refusal, np.flatnonzero(ahead & (jump > jump_max_ms))))
    refusal = refusal[~begins[refusal]]
    if len(refusal):
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
    starts = np.flatnonzero(begins)
    reaches: list[tuple[int, int]] = []
    columns = (_first_rows(starts, visits), codes[visits], newest[visits - 1], previous[visits], number[visits])
    current = -1
    judged = set()
    answered: list[int] = []
    for first, code, head, before, own in zip(*(column.tolist() for column in columns), strict=True):
        if first != current:
            detector, current = begin(first), first
            behind = detector.behind
            detector.forgetting = lambda reach: reaches.append((len(answered), reach))
        if code == _BEHIND:
            code = behind(before, own)
        elif code == _TO_JUDGE:
            judged.add(first)
            code = detector.judge(before, own)
        else:
            detector.open_gap(head, before)
        answered.append(code)
    if reaches:
        at, reach = np.array(reaches, np.int64).T
        _forget_copies(codes, number, starts, visits[at], reach)
    codes[visits] = answered
    return judged


def _copies(rows: Int64s, previous: Int64s, order: Order, top: Order) -> Int64s:
    """Which of these rows repeat, previous number and all, one that was newer than all before it.

    Between that row's previous number and its own there is nothing unseen any more, so the copy was seen, whatever the
    gaps are.
    """
    same = np.searchsorted(top, order[rows])  # the row that got so far first: theirs, or one that jumped over it
    copies: Int64s = rows[(order[same] == order[rows]) & (previous[same] == previous[rows])]
    return copies


def _forget_copies(codes: Codes, number: Int64s, starts: Int64s, rows: Int64s, reach: Int64s) -> None:
    """A copy that lies within what was forgotten before it came is no longer known to be one."""
    copies = np.flatnonzero(codes == P.SEEN)
    last = np.searchsorted(rows, copies) - 1
    elsewhere = (last < 0) | (rows[last] < _first_rows(starts, copies))
    codes[copies[~elsewhere & (number[copies] <= reach[last])]] = P.FORGOTTEN


def _first_rows(starts: Int64s, rows: Int64s) -> Int64s:
    """The first row of each row's chain."""
    return starts[np.searchsorted(starts, rows, "right") - 1]


def _in_chain_order(rows: Rows) -> tuple[Order, Callable[[Order], Int64s]]:
    """One integer per row that rises from chain to chain, and within a chain as the number does; and the way back."""
    rank = np.cumsum(rows.begins)
    rank_bits = int(rank[-1]).bit_length()
    least = int(rows.number.min())
    bits = (int(rows.number.max()) - least).bit_length()
    if bits + rank_bits <= 63:
        return rank << bits | rows.number - least, lambda order: (order & (1 << bits) - 1) + least
    # Days of traffic, or chains by the thousand: do without the bits of the sequence that no message uses.
    timestamp, sequence = rows.number >> SEQUENCE_BITS, rows.number & SEQUENCE_MAX
    least = int(timestamp.min())
    sequence_bits = int(sequence.max()).bit_length()
    bits = (int(timestamp.max()) - least).bit_length() + sequence_bits
    if bits + rank_bits > 63:  # decades of traffic with long ties: exact, but slower
        rank, timestamp = rank.astype(object), timestamp.astype(object)

    def number_of(order: Order) -> Int64s:
        timestamp = ((order & (1 << bits) - 1) >> sequence_bits) + least
        return (timestamp << SEQUENCE_BITS | order & (1 << sequence_bits) - 1).astype(np.int64)

    return rank << bits | timestamp - least << sequence_bits | sequence, number_of
