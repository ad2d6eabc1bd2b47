"""The detector over columns: many chains at once, rows sorted by chain and then in the order of judgement; no Spark.

The scalar `ChainDetector` is the reference; this form gives the same answers faster. Most messages are newer than all
seen of their chain, so comparing them with the newest number decides: numpy computes it for all rows at once, as the
running maximum of each chain. An exact copy of such a message, with the same previous number, is a repeat too. Few
messages are left: those that open a gap, and the others behind the newest. Only these are checked against the gaps, one
by one.

The running maximum is the newest *counted* number only while no message ahead of it is refused. Chains with a refused
one (its previous number is below the newest, or it jumps too far) are judged row by row: rare, and exact.

A number is one int64 (`rules.pack`), a missing previous is ``NO_PREVIOUS``, an answer is its index in ``ANSWERS``. A
negative number, ``refused(reason)``, marks a row that was refused earlier: it gets that reason's code and belongs to no
chain.

    PackedDetector     one chain, message by message: `ChainDetector` laid out for speed
    ColumnarDetector   batches of rows, the rows of a chain contiguous: for streaming input of any size
    TableDetector      a whole table: decides rows without a previous number too, by other rows of the same number
    ChainBank          a batch of a stream, with the memory of the chains that it touches as columns
    OrderedBank        the same for messages that come out in order: also decides which of them wait

Cost: a dozen numpy passes per batch (and bank), and about half a microsecond per message checked against the gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from onefold.chains.in_order import OpenGap, OrderedChain, OrderedState, OrderSettings, Released, Unfillable
from onefold.chains.rules import ANSWERS, DEFAULTS, SEQUENCE_BITS, SEQUENCE_MAX, ChainSettings, Number, unpack
from onefold.hashed_names import find
from onefold.intervals import Gaps
from onefold.verdict import Verdict

NO_PREVIOUS = -1
START = -2  # below every packed number, and below NO_PREVIOUS; the lower end of the floor
UNNAMED = -3  # the lower end of a floor whose upper end is no message, but the place just below one

CODES = {answer.reason: code for code, answer in enumerate(ANSWERS)}

NEW_CHAIN, IN_ORDER = CODES["new_chain"], CODES["in_order"]
OPENS_GAP, FILLS_GAP, AHEAD = CODES["opens_gap"], CODES["fills_gap"], CODES["ahead"]
SEEN, BEHIND_HEAD, BELOW_FLOOR = CODES["seen"], CODES["behind_head"], CODES["below_floor"]
FORGOTTEN, BAD_NUMBERING = CODES["forgotten"], CODES["bad_numbering"]
GAP_MISMATCH, JUMP_TOO_FAR = CODES["gap_mismatch"], CODES["jump_too_far"]
STATE_FULL, LATE, GIVEN_UP = CODES["state_full"], CODES["late"], CODES["given_up"]


class PackedDetector:
    """One chain. `judge` is the whole rule; `begin`, `open_gap` and `behind` are parts of it for callers with the head.

    >>> detector = PackedDetector(DEFAULTS)
    >>> detector.judge(NO_PREVIOUS, 5), detector.judge(7, 8), detector.judge(5, 7), detector.judge(5, 7)
    (0, 2, 3, 5)
    """

    __slots__ = ("_first", "_forgotten", "_gap_count_max", "_gaps", "_jump_max_ms", "forgetting", "head")

    def __init__(self, settings: ChainSettings) -> None:
        self._gap_count_max, floor, self._jump_max_ms = settings
        self._first = floor == "first"
        self._gaps: Gaps[int] = Gaps()
        self._forgotten = START
        self.head = START
        self.forgetting: Callable[[int], None] | None = None  # called with the new end of the forgotten range

    def resume(self, head: int, forgotten: int, lowers: list[int], uppers: list[int]) -> None:
        """Continue from the head and the `memory` of another detector."""
        self.head = head
        self._forgotten = forgotten
        self._gaps.lowers, self._gaps.uppers = lowers, uppers

    def memory(self) -> tuple[int, list[int], list[int]]:
        """The end of the forgotten range (START: none), and the lower and upper ends of the gaps."""
        return self._forgotten, self._gaps.lowers, self._gaps.uppers

    def judge(self, previous: int, number: int) -> int:
        head = self.head
        if previous >= number:
            return BAD_NUMBERING
        if head == START:
            self.begin(previous, number)
            return NEW_CHAIN
        if number <= head:
            return SEEN if number == head and previous == NO_PREVIOUS else self.behind(previous, number)
        if self._jump_max_ms is not None and (number >> SEQUENCE_BITS) - (head >> SEQUENCE_BITS) > self._jump_max_ms:
            return JUMP_TOO_FAR
        if previous < head and previous != NO_PREVIOUS:
            return GAP_MISMATCH
        self.head = number
        if previous <= head:
            return IN_ORDER if previous == head else AHEAD
        self.open_gap(head, previous)
        return OPENS_GAP

    def begin(self, previous: int, number: int) -> None:
        self.head = number
        if previous == NO_PREVIOUS:
            self._gaps.append(UNNAMED, number - 1)
        else:
            self._gaps.append(START, previous)
        self._forget()

    def open_gap(self, head: int, previous: int) -> None:
        """Add the gap between the head and the previous number of a message ahead of it."""
        gaps = self._gaps
        gaps.lowers.append(head)
        gaps.uppers.append(previous)
        if len(gaps.lowers) >= self._gap_count_max:
            self._forget()

    def behind(self, previous: int, number: int) -> int:
        """The code for a message behind the head, or equal to it with a previous number."""
        if number <= self._forgotten:
            return FORGOTTEN
        gaps = self._gaps
        i = bisect_left(gaps.lowers, number) - 1
        if i < 0:
            return BEHIND_HEAD if previous == NO_PREVIOUS else SEEN
        lower, upper = gaps.lowers[i], gaps.uppers[i]
        floor = START
        if previous == NO_PREVIOUS:
            if lower == UNNAMED and number == upper + 1:
                return SEEN
            if self._first or lower >= 0 or number > upper:
                return BEHIND_HEAD
            previous, floor = number - 1, UNNAMED
        if lower < 0 and self._first:
            return SEEN if number > upper else BELOW_FLOOR
        if previous >= upper:
            return SEEN
        if previous < lower or number > upper:
            return GAP_MISMATCH
        if lower < 0:
            gaps.lowers[i] = floor
        gaps.fill(i, previous, number)
        if len(gaps.lowers) >= self._gap_count_max:
            self._forget()
        return FILLS_GAP

    def _forget(self) -> None:
        gaps = self._gaps
        while (
            len(gaps) + 1 - (hidden := self._first and bool(gaps.lowers) and gaps.lowers[0] < 0) > self._gap_count_max
        ):
            if hidden:
                gaps.drop_lowest()
            self._forgotten = gaps.drop_lowest()
            if self.forgetting is not None:
                self.forgetting(self._forgotten)


Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]
Order: TypeAlias = Int64s | NDArray[np.object_]

_TO_JUDGE = 127  # judge this row by the whole rule
_BEHIND = 126  # judge this row by the gaps alone

COUNTS = np.array([answer.verdict is Verdict.FIRST for answer in ANSWERS])
"""By code: whether the message counts."""


def refused(reason: str) -> int:
    """The number of a row that was already refused for this reason."""
    return -1 - CODES[reason]


def answers(codes: Codes) -> list[str]:
    """
    >>> answers(np.array([1, 5]))
    ['FIRST in_order', 'REPEAT seen']
    """
    return [str(ANSWERS[code]) for code in codes]


class Rows(NamedTuple):
    """Columns of equal length, sorted by chain."""

    begins: Bools
    """Whether it is the first row of its chain."""
    previous: Int64s
    number: Int64s


class ColumnarDetector:
    """Judges batches of rows; the rows of a chain must be contiguous over all batches.

    >>> columns = ColumnarDetector()
    >>> chain = np.zeros(3, np.int64)
    >>> answers(columns.judge(chain, np.array([NO_PREVIOUS, 5, NO_PREVIOUS]), np.array([5, 6, 5])))
    ['FIRST new_chain', 'FIRST in_order', 'REPEAT seen']
    """

    def __init__(self, settings: ChainSettings = DEFAULTS) -> None:
        self._settings = settings.checked()
        self._detector = PackedDetector(settings)
        self._chain: int | None = None  # of the last row of the last batch

    def judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
        bad = previous >= number
        if not (bad | (number < 0)).any():
            return self._judge(chain, previous, number)
        codes = np.where(number < 0, -1 - number, BAD_NUMBERING).astype(np.int8)
        good = np.flatnonzero(~bad & (number >= 0))
        codes[good] = self._judge(chain[good], previous[good], number[good])
        return codes

    def _judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
        if len(number) == 0:
            return np.empty(0, np.int8)
        goes_on = self._chain == int(chain[0])
        self._chain = int(chain[-1])
        if goes_on:  # a row with the head represents what was seen before
            chain = np.concatenate((chain[:1], chain))
            previous = np.concatenate(([NO_PREVIOUS], previous))
            number = np.concatenate(([self._detector.head], number))
        rows = Rows(np.concatenate(([True], chain[1:] != chain[:-1])), previous, number)
        codes, newest = classify(rows, self._settings.jump_max_ms)
        at = 0 if goes_on else -1  # the first row of the chain that self._detector belongs to

        def begin(first: int) -> PackedDetector:
            nonlocal at
            if first != at:
                at, self._detector = first, PackedDetector(self._settings)
                self._detector.begin(int(previous[first]), int(number[first]))
            return self._detector

        judged = walk(rows, codes, newest, begin)
        last = int(np.flatnonzero(rows.begins)[-1])
        begin(last)
        if last not in judged:
            self._detector.head = int(newest[-1])
        return codes[goes_on:]


class TableDetector:
    """Judges a table: rows with a previous number by the gaps, rows without exactly, by the numbers of their chain.

    `judge` leaves some rows open (without previous, and UNSURE behind_head or forgotten), which `review` decides: among
    the rows of one number that are FIRST or open, the first counts and the others are REPEAT seen. So no number counts
    twice, and every number of a row without previous counts once.

    >>> table = TableDetector()
    >>> rows = np.zeros(4, np.int64), np.full(4, NO_PREVIOUS), np.array([5, 9, 7, 7])
    >>> codes = table.judge(*rows)
    >>> answers(codes)[2:], answers(table.review(*rows, codes))[2:]
    (['UNSURE behind_head', 'UNSURE behind_head'], ['FIRST late', 'REPEAT seen'])
    """

    def __init__(self, settings: ChainSettings = DEFAULTS) -> None:
        self._detector = ColumnarDetector(settings)
        self._counted: tuple[int, int] | None = None  # chain and number at the end of the last review, if counted
        self.due = False
        """Whether a row was left open, so that a review is needed."""

    def judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
        codes = self._detector.judge(chain, previous, number)
        self.due = self.due or bool(_left_open(previous, codes).any())
        return codes

    def review(self, chain: Int64s, previous: Int64s, number: Int64s, codes: Codes) -> Codes:
        """The final codes of a judged table.

        The rows must be sorted by chain, and those of one number in the order of judgement, in one call or in
        consecutive calls.
        """
        last = int(chain[-1]), int(number[-1])
        if self._counted is not None and self._counted[0] == chain[0]:  # a row represents the number counted before
            codes = self._settled(
                np.concatenate((chain[:1], chain)),
                np.concatenate(([NO_PREVIOUS], previous)),
                np.concatenate(([self._counted[1]], number)),
                np.concatenate((np.array([LATE], np.int8), codes)),
            )[1:]
        else:
            codes = self._settled(chain, previous, number, codes)
        if self._counted != last:
            counts = COUNTS[codes] & (number == last[1]) & (chain == last[0])
            self._counted = last if counts.any() else None
        return codes

    @staticmethod
    def _settled(chain: Int64s, previous: Int64s, number: Int64s, codes: Codes) -> Codes:
        open_rows = _left_open(previous, codes)
        rank = np.cumsum(np.concatenate(([True], chain[1:] != chain[:-1])))
        concerned = np.zeros(len(chain) + 1, np.bool_)
        concerned[rank[open_rows]] = True
        concerned[1] = True  # it may continue from the previous call
        rows = np.flatnonzero((open_rows | COUNTS[codes]) & concerned[rank])
        if not len(rows):
            return codes
        begins = np.concatenate(([True], rank[rows[1:]] != rank[rows[:-1]]))
        order, _ = in_chain_order(Rows(begins, previous[rows], number[rows]))
        by_number = np.argsort(order, kind="stable")
        in_order = order[by_number]
        again = np.zeros(len(order), np.bool_)  # an earlier row of the chain has the same number
        again[by_number[1:]] = in_order[1:] == in_order[:-1]
        codes = codes.astype(np.int8)
        codes[rows[again]] = SEEN
        codes[rows[~again & open_rows[rows]]] = LATE
        return codes


def _left_open(previous: Int64s, codes: Codes) -> Bools:
    open_rows: Bools = (previous == NO_PREVIOUS) & ((codes == BEHIND_HEAD) | (codes == FORGOTTEN))
    return open_rows


def classify(rows: Rows, jump_max_ms: int | None = None) -> tuple[Codes, Int64s]:
    """The codes of all rows that one comparison decides, and the newest number up to and including each row."""
    begins, previous, number = rows
    order, number_of = in_chain_order(rows)
    top = np.maximum.accumulate(order)
    newest = number_of(top)
    ahead = np.concatenate(([True], order[1:] > top[:-1]))  # of all earlier rows of the chain
    head = np.concatenate(([START], newest[:-1]))
    codes = np.full(len(number), IN_ORDER, np.int8)
    odd = np.flatnonzero(~ahead | (previous != head))
    odd_ahead, below, above = ahead[odd], previous[odd] < head[odd], previous[odd] > head[odd]
    alone = previous[odd] == NO_PREVIOUS
    codes[odd] = np.where(odd_ahead, np.where(above, OPENS_GAP, AHEAD), _BEHIND)
    # An exact copy (with the same previous number) of a row that was ahead is a repeat, whatever the gaps are: nothing
    # between that row's previous number and its own is unseen.
    late = odd[~odd_ahead & ~alone]
    same = np.searchsorted(top, order[late])  # the first row to reach that number, or one that jumped over it
    codes[late[(order[same] == order[late]) & (previous[same] == previous[late])]] = SEEN
    codes[odd[~odd_ahead & alone & (number[odd] == head[odd])]] = SEEN
    refusal = odd[odd_ahead & below & ~alone]
    if jump_max_ms is not None:
        jump = (number >> SEQUENCE_BITS) - (head >> SEQUENCE_BITS)
        refusal = np.concatenate((refusal, np.flatnonzero(ahead & (jump > jump_max_ms))))
    refusal = refusal[~begins[refusal]]
    if len(refusal):
        rank = np.cumsum(begins)
        codes[np.isin(rank, rank[refusal])] = _TO_JUDGE
    codes[begins] = NEW_CHAIN
    return codes, newest


def walk(rows: Rows, codes: Codes, newest: Int64s, begin: Callable[[int], PackedDetector]) -> set[int]:
    """Judge, in order, the rows that open a gap, are behind, or need the whole rule.

    ``begin(first)`` returns the detector of the chain whose first row is there, with that row already judged. Returns
    the first rows of the chains judged by the whole rule: only their detectors have the right head.
    """
    begins, previous, number = rows
    visits = np.flatnonzero((codes == OPENS_GAP) | (codes >= _BEHIND))
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
    if reaches:  # a copy in a range that was forgotten before it is no longer known to be one
        at, reach = np.array(reaches, np.int64).T
        copies, forgot = np.flatnonzero(codes == SEEN), visits[at]
        last = np.searchsorted(forgot, copies) - 1
        elsewhere = (last < 0) | (forgot[last] < _first_rows(starts, copies))
        codes[copies[~elsewhere & (number[copies] <= reach[last])]] = FORGOTTEN
    codes[visits] = answered
    return judged


def _first_rows(starts: Int64s, rows: Int64s) -> Int64s:
    return starts[np.searchsorted(starts, rows, "right") - 1]


def in_chain_order(rows: Rows) -> tuple[Order, Callable[[Order], Int64s]]:
    """One integer per row, sorted by chain and then by number; and the function back to the numbers."""
    rank = np.cumsum(rows.begins)
    rank_bits = int(rank[-1]).bit_length()
    least = int(rows.number.min())
    bits = (int(rows.number.max()) - least).bit_length()
    if bits + rank_bits <= 63:
        return rank << bits | rows.number - least, lambda order: (order & (1 << bits) - 1) + least
    # Days of traffic, or thousands of chains: leave out the bits of the sequence that no message uses.
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


class Chains(NamedTuple):
    """One row per chain, sorted by name."""

    key: Int64s
    key_check: Int64s
    head: Int64s
    heard_ms: Int64s
    forgotten: Int64s

    @classmethod
    def none(cls) -> Chains:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))


class GapRows(NamedTuple):
    """One row per gap, sorted by the index of its chain, ascending within a chain."""

    owner: Int64s
    lower: Int64s
    upper: Int64s

    @classmethod
    def none(cls) -> GapRows:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def take(self, rows: Bools | Int64s) -> GapRows:
        return GapRows(*(column[rows] for column in self))


C = TypeVar("C", Chains, "OrderedChains")


def sorted_by_name(chains: C, gaps: GapRows) -> tuple[C, GapRows]:
    order = np.lexsort((chains.key_check, chains.key))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    gaps = GapRows(rank[gaps.owner], gaps.lower, gaps.upper)
    by_owner = np.argsort(gaps.owner, kind="stable")
    return type(chains)(*(column[order] for column in chains)), gaps.take(by_owner)


class ChainMessages(NamedTuple):
    """A batch as columns, sorted by chain and then in the order of judgement."""

    key: Int64s
    """The first half of the chain's name."""
    key_check: Int64s
    """The other half."""
    previous: Int64s
    number: Int64s

    def take(self, rows: Int64s) -> ChainMessages:
        return ChainMessages(*(column[rows] for column in self))


class ChainBank:
    """Judges batches of messages of many chains, and remembers them.

    One Python object per chain would cost more than the judgement, so chains and gaps are columns, sorted by name. In a
    batch, a first row with the head represents each known chain; numpy decides what one comparison can decide, and only
    chains whose gaps are touched get a detector.

    The state grows with disorder, not with history, and has two more bounds. A chain that is idle for long can
    `give_up` its gaps: what lies below them is UNSURE from then on; the head stays, so that nothing seen is taken for
    new. Beyond ``chains_max`` chains, messages of a new one are UNSURE state_full; the others continue as before.

    >>> bank = ChainBank()
    >>> one = np.array([1, 1])
    >>> bank.judge(ChainMessages(one, one, np.array([NO_PREVIOUS, 5]), np.array([5, 6]))).tolist()
    [0, 1]
    >>> bank = ChainBank(chains=bank.chains, gaps=bank.gaps)
    >>> bank.judge(ChainMessages(one, one, np.array([5, 7]), np.array([6, 8]))).tolist(), str(bank)
    ([5, 2], '1 chain, 1 gap')
    """

    def __init__(
        self, settings: ChainSettings = DEFAULTS, *, chains_max: int | None = None, chains: Chains | None = None,
        gaps: GapRows | None = None,
    ) -> None:  # fmt: skip
        """``chains`` and ``gaps``: the memory to start from."""
        self._settings = settings.checked()
        self.chains_max = chains_max
        self._chains = Chains.none() if chains is None else chains
        self._gaps = GapRows.none() if gaps is None else gaps

    @property
    def chains(self) -> Chains:
        return self._chains

    @property
    def gaps(self) -> GapRows:
        return self._gaps

    def __len__(self) -> int:
        return len(self._chains.key)

    @property
    def gap_count(self) -> int:
        return int(np.count_nonzero(self._gaps.lower >= 0))

    def judge(self, messages: ChainMessages, now_ms: int = 0) -> Codes:
        """The code of each message (its index in ``ANSWERS``); ``now_ms`` is the time of the batch."""
        codes, good = _admitted(messages, self.find, None if self.chains_max is None else self.chains_max - len(self))
        if len(good):
            codes[good] = self._judge(messages if len(good) == len(codes) else messages.take(good), now_ms)
        return codes

    def give_up(self, before_ms: int) -> None:
        """Give up the gaps of chains idle since before this time."""
        idle = (self._chains.heard_ms < before_ms) & (self._chains.heard_ms > 0)  # 0: no time was kept
        torn = np.zeros(len(self), np.bool_)
        torn[self._gaps.owner[self._gaps.lower >= 0]] = True  # chains without gaps are small already
        forget = (idle & torn)[self._gaps.owner]
        if forget.any():
            forgotten = self._chains.forgotten.copy()
            np.maximum.at(forgotten, self._gaps.owner[forget], self._gaps.upper[forget])
            self._chains, self._gaps = self._chains._replace(forgotten=forgotten), self._gaps.take(~forget)

    def _judge(self, messages: ChainMessages, now_ms: int) -> Codes:
        firsts = np.flatnonzero(_begins(messages))
        names = messages.take(firsts)
        at = self.find(names.key, names.key_check)
        rows, places = _after_heads(messages, firsts, at, self._chains.head)
        codes, newest = classify(rows)
        starts = np.flatnonzero(rows.begins)
        chain_of = dict(zip(starts.tolist(), range(len(starts)), strict=True))
        ends = np.searchsorted(self._gaps.owner, np.arange(len(self) + 1))
        visited: dict[int, PackedDetector] = {}

        def begin(first: int) -> PackedDetector:
            chain = chain_of[first]
            detector = visited[chain] = PackedDetector(self._settings)
            row = int(at[chain])
            if row < 0:
                detector.begin(int(rows.previous[first]), int(rows.number[first]))
                return detector
            head, forgotten = int(self._chains.head[row]), int(self._chains.forgotten[row])
            lower, upper = (column[ends[row] : ends[row + 1]].tolist() for column in self._gaps[1:])
            detector.resume(head, forgotten, lower, upper)
            return detector

        judged = walk(rows, codes, newest, begin)
        heads = newest[np.append(starts[1:], len(newest)) - 1]
        for first in judged:
            heads[chain_of[first]] = visited[chain_of[first]].head
        self._learn(names, at, heads, now_ms, visited)
        return np.delete(codes, places)

    @property
    def names(self) -> tuple[Int64s, Int64s]:
        return self._chains.key, self._chains.key_check

    def find(self, key: Int64s, key_check: Int64s) -> Int64s:
        """The indexes of these chains in the bank; -1 for new ones."""
        return find(self._chains.key, self._chains.key_check, key, key_check)

    def _learn(
        self, names: ChainMessages, at: Int64s, heads: Int64s, now_ms: int, visited: dict[int, PackedDetector]
    ) -> None:
        """Update the memory; ``visited`` are the chains whose gaps may have changed."""
        new = np.flatnonzero(at < 0)
        at = at.copy()
        at[new] = len(self) + np.arange(len(new))
        touched = np.fromiter(visited, np.int64, len(visited))
        # New chains whose gaps were not touched have one: the gap below their first message.
        first = names.take(new)
        alone, reach = first.previous == NO_PREVIOUS, np.full(len(new), START, np.int64)
        upper = np.where(alone, first.number - 1, first.previous)
        fresh = np.flatnonzero(~np.isin(new, touched))
        if self._settings.floor == "open" and self._settings.gap_count_max == 1:  # no room for even this one
            reach, fresh = upper, fresh[:0]
        below = GapRows(at[new[fresh]], np.where(alone, UNNAMED, START)[fresh], upper[fresh])
        blank = np.full(len(new), START, np.int64)
        added = (names.key[new], names.key_check[new], blank, blank, reach)
        chains = Chains(*(np.concatenate(pair) for pair in zip(self._chains, added, strict=True)))
        chains.head[at] = heads
        chains.heard_ms[at] = now_ms
        untouched_before = self._gaps.take(~np.isin(self._gaps.owner, at[touched]))
        memories = [detector.memory() for detector in visited.values()]
        chains.forgotten[at[touched]] = [forgotten for forgotten, _, _ in memories]
        changed = GapRows(
            np.repeat(at[touched], [len(lowers) for _, lowers, _ in memories]),
            np.array([lower for _, lowers, _ in memories for lower in lowers], np.int64),
            np.array([upper for _, _, uppers in memories for upper in uppers], np.int64),
        )
        gaps = (np.concatenate(columns) for columns in zip(untouched_before, below, changed, strict=True))
        self._chains, self._gaps = sorted_by_name(chains, GapRows(*gaps))

    def __str__(self) -> str:
        chains, gaps = len(self), self.gap_count
        return f"{chains} chain{'s' * (chains != 1)}, {gaps} gap{'s' * (gaps != 1)}"


class OrderedChains(NamedTuple):
    """One row per chain in ordered mode, sorted by name."""

    key: Int64s
    key_check: Int64s
    head: Int64s  # the newest seen
    forgotten: Int64s
    floor: Int64s  # the first message that arrived
    last: Int64s  # the last one released
    due_ms: Int64s  # when the gap above ``last`` is given up; -1: nothing is held
    upper: Int64s  # the lowest held message when that wait began

    @classmethod
    def none(cls) -> OrderedChains:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))


class HeldMessages(NamedTuple):
    """Held messages, sorted by the index of their chain, then by number."""

    owner: Int64s
    previous: Int64s
    number: Int64s


class OrderMemory(NamedTuple):
    """The memory of a chain: as in `OrderedChains`, with its gaps, first those given up."""

    head: int
    forgotten: int
    last: int
    due_ms: int
    upper: int
    gaps: Gaps[int]


class PackedOrder:
    """`OrderedChain` for callers with the head, for a chain whose held messages all name their previous one.

    Its gaps describe such a chain completely: what lies below the first gap is released, the rest is held.
    """

    __slots__ = ("_above", "_floor", "_forgotten", "_given_up", "_held", "due_ms", "gaps", "upper")

    def __init__(self, floor: int, forgotten: int = START, due_ms: int = -1, upper: int = START) -> None:
        self._floor, self._forgotten, self.due_ms, self.upper = floor, forgotten, due_ms, upper
        self._given_up: Gaps[int] = Gaps()
        self.gaps: Gaps[int] = Gaps()
        self._above: dict[int, int] = {}  # the message above a gap, by the gap's upper end
        self._held: set[int] = set()  # of earlier batches, or arrived in a gap

    def resume(self, given_up: Gaps[int], gaps: Gaps[int], previous: list[int], number: list[int]) -> None:
        """Continue with these gaps and held messages."""
        self._given_up, self.gaps = given_up, gaps
        self._above, self._held = dict(zip(previous, number, strict=True)), set(number)

    def memory(self, head: int) -> OrderMemory:
        gaps = Gaps([*self._given_up, *self.gaps])
        return OrderMemory(head, self._forgotten, self.last(head), self.due_ms, self.upper, gaps)

    def last(self, head: int) -> int:
        return self.gaps.lowers[0] if self.gaps.lowers else head

    def open_gap(self, head: int, previous: int, number: int, due_ms: int) -> None:
        if not self.gaps.lowers:
            self.due_ms, self.upper = due_ms, number
        self.gaps.append(head, previous)
        self._above[previous] = number

    def behind(self, head: int, previous: int, number: int, due_ms: int, before: Int64s) -> int:
        """The code of a message that is not above the head; ``before``: the newest number after each earlier row."""
        last, gaps = self.last(head), self.gaps
        if number <= last:
            if number < self._floor:
                return BEHIND_HEAD if previous == NO_PREVIOUS else BELOW_FLOOR
            if number <= self._forgotten:
                return FORGOTTEN
            if number in self._given_up:
                return GIVEN_UP
            return BEHIND_HEAD if previous == NO_PREVIOUS and number not in (self._floor, last) else SEEN
        i = gaps.locate(number)
        lower = gaps.lowers[i]
        if number > gaps.uppers[i]:  # not in a gap: it is held, or it contradicts the chain
            return SEEN if number in self._held or before[np.searchsorted(before, number)] == number else GAP_MISMATCH
        if previous < lower:
            return GAP_MISMATCH
        gaps.fill(i, previous, number)
        self._held.add(number)
        if previous > lower:
            self._above[previous] = number
        elif i == 0 and self.upper <= self.last(head):
            self.due_ms, self.upper = (due_ms, self._above[gaps.uppers[0]]) if gaps.lowers else (-1, START)
        return FILLS_GAP


class OrderedBank:
    """Judges batches of many chains in ordered mode, decides which messages wait, and remembers.

    `OrderedChain` is the reference. Numpy decides as for `ChainBank`; only messages that open a gap or are behind the
    newest are checked against the gaps. A chain with contradicting messages, with more held than allowed, or with
    messages without previous while others are held, is judged by `OrderedChain` itself for this batch.

    For a batch call `judge`, then `tick`; a message that counts waits if its number is above ``last`` of its chain. No
    requests are made (``requests_max=0``), and giving up releases everything that a chain holds (``strategy="light"``).

    >>> bank, one = OrderedBank(OrderSettings(50, 0, 0, "light", 9, 9)), np.array([1, 1])
    >>> bank.judge(ChainMessages(one, one, np.array([NO_PREVIOUS, 6]), np.array([5, 7])), now_ms=0).tolist()
    [0, 2]
    >>> bank.chains.last.tolist(), bank.chains.due_ms.tolist()
    ([5], [50])
    >>> bank.tick(now_ms=50).tolist(), bank.chains.last.tolist()
    ([[1], [1], [5], [6]], [7])
    """

    def __init__(
        self, settings: OrderSettings, *, chains_max: int | None = None, chains: OrderedChains | None = None,
        gaps: GapRows | None = None, held: HeldMessages | None = None,
    ) -> None:  # fmt: skip
        """``chains``, ``gaps`` (also given up ones) and ``held``: the memory to start from."""
        self._settings = settings.checked()
        self.chains_max = chains_max
        self.chains = OrderedChains.none() if chains is None else chains
        self.gaps = GapRows.none() if gaps is None else gaps
        self.held = HeldMessages(*(np.empty((3, 0), np.int64))) if held is None else held
        self._lost: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self.chains.key)

    @property
    def open(self) -> Bools:
        """Which gaps are not given up."""
        return self.gaps.lower >= self.chains.last[self.gaps.owner]

    def find(self, key: Int64s, key_check: Int64s) -> Int64s:
        """The indexes of these chains in the bank; -1 for new ones."""
        return find(self.chains.key, self.chains.key_check, key, key_check)

    def judge(self, messages: ChainMessages, now_ms: int) -> Codes:
        """The code of each message, whether it waits or not."""
        codes, good = _admitted(messages, self.find, None if self.chains_max is None else self.chains_max - len(self))
        if len(good):
            codes[good] = self._judge(messages.take(good), now_ms)
        return codes

    def tick(self, now_ms: int) -> Int64s:
        """Give up what is due, and release what its chains hold. Returns the ranges given up by this batch in four
        rows: both halves of the chain's name, lower and upper end.
        """
        due_ms = np.minimum(self.chains.due_ms, now_ms + self._settings.longest_ms)  # of a clock that was ahead
        over = (due_ms >= 0) & (due_ms <= now_ms)
        ends = self.chains._replace(due_ms=np.where(over, -1, due_ms), upper=np.where(over, START, self.chains.upper))
        owner = self.gaps.owner
        lost = over[owner] & self.open
        self.chains = ends._replace(last=np.where(over, ends.head, ends.last), forgotten=ends.forgotten.copy())
        # Each range given up drops the lowest one if there are too many.
        added, count = (np.bincount(owner[which], minlength=len(self)) for which in (lost, ~self.open))
        drop = np.minimum(added, np.maximum(0, count - self._settings.gap_count_max))
        forgotten = np.arange(len(owner)) - np.searchsorted(owner, owner) < drop[owner]
        np.maximum.at(self.chains.forgotten, owner[forgotten], self.gaps.upper[forgotten])
        ranges = [self.chains.key[owner[lost]], self.chains.key_check[owner[lost]], *self.gaps.take(lost)[1:]]
        self.gaps = self.gaps.take(~forgotten)
        early = np.array(self._lost, np.int64).reshape(-1, 4).T
        self._lost = []
        return np.concatenate((early, np.stack(ranges)), axis=1)

    def _judge(self, messages: ChainMessages, now_ms: int) -> Codes:
        firsts = np.flatnonzero(_begins(messages))
        names = messages.take(firsts)
        at = self.find(names.key, names.key_check)
        rows, places = _after_heads(messages, firsts, at, self.chains.head)
        codes, newest = classify(rows)
        starts, rank = np.flatnonzero(rows.begins), np.cumsum(rows.begins) - 1
        heads = newest[np.append(starts[1:], len(newest)) - 1]
        torn, whole = self._torn(rows, codes, rank, at)
        visits = np.flatnonzero(((codes == OPENS_GAP) | (codes == _BEHIND)) & ~whole[rank])
        columns = (rank[visits], visits, codes[visits], newest[visits - 1], rows.previous[visits], rows.number[visits])
        current, due_ms = -1, now_ms + self._settings.wait_ms
        visited: dict[int, PackedOrder] = {}
        answered: list[int] = []
        for chain, row, code, head, previous, number in zip(*(column.tolist() for column in columns), strict=True):
            if chain != current:
                current, start = chain, int(starts[chain])
                order = visited[chain] = self._order(int(at[chain]), int(rows.number[start]))
            if code == OPENS_GAP:
                order.open_gap(head, previous, number, due_ms)
            else:
                code = order.behind(head, previous, number, due_ms, newest[start:row])
            answered.append(code)
        codes[visits] = answered
        memories = {chain: order.memory(int(heads[chain])) for chain, order in visited.items()}
        codes = np.delete(codes, places)
        for chain in np.flatnonzero(whole).tolist():
            own = slice(firsts[chain], firsts[chain + 1] if chain + 1 < len(firsts) else None)
            rule = self._whole(int(at[chain]))
            codes[own] = self._judge_whole(rule, messages.take(np.arange(len(codes))[own]), now_ms)
            memories[chain] = _memory_of(rule.state)
        self._learn(names, at, heads, ~torn, memories)
        return codes

    def _torn(self, rows: Rows, codes: Codes, rank: Int64s, at: Int64s) -> tuple[Bools, Bools]:
        """Which chains of a batch hold messages, before or after it, and which need the whole rule."""
        torn, alone, whole = (np.zeros(len(at), np.bool_) for _ in range(3))
        old = np.flatnonzero(at >= 0)
        torn[old] = self.chains.due_ms[at[old]] >= 0
        torn[rank[codes == OPENS_GAP]] = True
        unnamed, count = np.zeros(len(self), np.bool_), np.bincount(self.held.owner, minlength=len(self))
        unnamed[self.held.owner[self.held.previous == NO_PREVIOUS]] = True
        alone[old] = unnamed[at[old]]
        alone[rank[(rows.previous == NO_PREVIOUS) & ~rows.begins]] = True
        most = np.bincount(rank, minlength=len(at))
        most[old] += count[at[old]]
        whole[rank[codes == _TO_JUDGE]] = True
        return torn, whole | (torn & (alone | (most > self._settings.buffer_max)))

    def _missing(self, row: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The given up and the open gaps of a chain."""
        a, b = np.searchsorted(self.gaps.owner, [row, row + 1])
        gaps = list(zip(self.gaps.lower[a:b].tolist(), self.gaps.upper[a:b].tolist(), strict=True))
        last = int(self.chains.last[row])
        return [gap for gap in gaps if gap[0] < last], [gap for gap in gaps if gap[0] >= last]

    def _waiting(self, row: int) -> tuple[list[int], list[int]]:
        """Previous numbers and numbers of the messages that a chain holds."""
        a, b = np.searchsorted(self.held.owner, [row, row + 1])
        return self.held.previous[a:b].tolist(), self.held.number[a:b].tolist()

    def _order(self, row: int, first: int) -> PackedOrder:
        if row < 0:
            return PackedOrder(first)
        *_, forgotten, floor, _, due_ms, upper = (int(column[row]) for column in self.chains)
        order = PackedOrder(floor, forgotten, due_ms, upper)
        given_up, gaps = self._missing(row)
        order.resume(Gaps(given_up), Gaps(gaps), *self._waiting(row))
        return order

    def _whole(self, row: int) -> OrderedChain[int]:
        if row < 0:
            return OrderedChain(**self._settings._asdict())
        *_, forgotten, floor, last, due_ms, upper = (int(column[row]) for column in self.chains)
        given_up = [(unpack(lower), unpack(upper_)) for lower, upper_ in self._missing(row)[0]]
        waiting = [
            (unpack(number), None if previous == NO_PREVIOUS else unpack(previous), previous)
            for previous, number in zip(*self._waiting(row), strict=True)
        ]
        gap = None if due_ms < 0 else OpenGap(unpack(last), unpack(upper), unpack(upper), due_ms)  # makes no requests
        reach = None if forgotten == START else unpack(forgotten)
        state = OrderedState(self._settings, unpack(floor), unpack(last), reach, given_up, waiting, gap)
        return OrderedChain.resumed(state)

    def _judge_whole(self, rule: OrderedChain[int], messages: ChainMessages, now_ms: int) -> list[int]:
        codes = []
        for key, check, previous, number in zip(*(column.tolist() for column in messages), strict=True):
            step = rule.add(None if previous == NO_PREVIOUS else unpack(previous), unpack(number), previous, now_ms)
            codes.append(CODES[step.answer.reason])
            lower: Number | None = None
            for event in step.events:
                if isinstance(event, Unfillable):
                    lower = event.lower
                elif isinstance(event, Released) and lower is not None:  # the missing range ends at its previous number
                    self._lost.append((key, check, _packed(lower), event.message))
                    lower = None
        return codes

    def _learn(
        self, names: ChainMessages, at: Int64s, heads: Int64s, quiet: Bools, memories: dict[int, OrderMemory]
    ) -> None:
        """Update the memory; ``quiet``: chains that hold nothing; ``memories``: of chains judged one by one."""
        new = np.flatnonzero(at < 0)
        at = at.copy()
        at[new] = len(self) + np.arange(len(new))
        blank = np.full(len(new), START, np.int64)
        added = (names.key[new], names.key_check[new], blank, blank, names.number[new], blank, blank + 1, blank)
        chains = OrderedChains(*(np.concatenate(pair) for pair in zip(self.chains, added, strict=True)))
        chains.head[at] = heads
        chains.last[at[quiet]] = heads[quiet]
        touched = at[np.fromiter(memories, np.int64, len(memories))]
        for name in ("head", "forgotten", "last", "due_ms", "upper"):
            getattr(chains, name)[touched] = [getattr(memory, name) for memory in memories.values()]
        others = self.gaps.take(~np.isin(self.gaps.owner, touched))
        changed = GapRows(
            np.repeat(touched, [len(memory.gaps) for memory in memories.values()]),
            np.array([lower for memory in memories.values() for lower in memory.gaps.lowers], np.int64),
            np.array([upper for memory in memories.values() for upper in memory.gaps.uppers], np.int64),
        )
        gaps = GapRows(*(np.concatenate(pair) for pair in zip(others, changed, strict=True)))
        self.chains, self.gaps = sorted_by_name(chains, gaps)


def _packed(number: Number) -> int:
    """Like `pack`, also for the place just below a number."""
    return (number[0] << SEQUENCE_BITS) + number[1]


def _memory_of(state: OrderedState) -> OrderMemory:
    last = head = _packed(state.last)
    gaps = Gaps([(_packed(lower), _packed(upper)) for lower, upper in state.given_up])
    for number, _, previous in state.held:
        if previous > head:
            gaps.append(head, previous)
        head = _packed(number)
    due_ms, upper = (-1, START) if state.gap is None else (state.gap.due_ms, _packed(state.gap.upper))
    return OrderMemory(head, START if state.forgotten is None else _packed(state.forgotten), last, due_ms, upper, gaps)


def _admitted(
    messages: ChainMessages, find_: Callable[[Int64s, Int64s], Int64s], room: int | None
) -> tuple[Codes, Int64s]:
    """The codes of rows refused without looking at the memory or for lack of room, and the indexes of the others."""
    codes = np.where(messages.number < 0, -1 - messages.number, BAD_NUMBERING).astype(np.int8)
    good = np.flatnonzero((messages.previous < messages.number) & (messages.number >= 0))
    if room is None:
        return codes, good
    rows = messages.take(good)
    begins = _begins(rows)
    names = rows.take(np.flatnonzero(begins))
    new = np.flatnonzero(find_(names.key, names.key_check) < 0)
    by_name = new[np.lexsort((names.key_check[new], names.key[new]))]  # the same ones at every retry
    refused_ = np.zeros(len(names.key), np.bool_)
    refused_[by_name[max(0, room) :]] = True
    full = refused_[np.cumsum(begins) - 1]
    codes[good[full]] = STATE_FULL
    return codes, good[~full]


def _after_heads(messages: ChainMessages, firsts: Int64s, at: Int64s, heads: Int64s) -> tuple[Rows, Int64s]:
    """The rows with the head of each known chain before its first row, and the positions of those heads."""
    old = np.flatnonzero(at >= 0)
    before, places = firsts[old], firsts[old] + np.arange(len(old))
    begins = np.insert(_begins(messages), before, True)
    begins[places + 1] = False
    previous = np.insert(messages.previous, before, NO_PREVIOUS)
    return Rows(begins, previous, np.insert(messages.number, before, heads[at[old]])), places


def _begins(messages: ChainMessages) -> Bools:
    key, check = messages.key, messages.key_check
    return np.concatenate(([True], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))[: len(key)]
