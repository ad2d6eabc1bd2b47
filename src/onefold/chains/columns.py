"""The detector over columns: many chains at once, rows sorted by chain and then in the order of judgement; no Spark.

The scalar `ChainDetector` is the truth; this form gives the same answers faster. Most messages are newer than all seen
of their chain, and for those one number decides, the newest seen: numpy finds it for all rows at once, as the running
maximum of each chain. A copy of such a message, previous number and all, is a repeat, and is found among them. What is
left is few: messages that open a gap, and the other ones behind the newest. Only those meet the gaps, one by one.

The running maximum is the newest number *counted* only while no message ahead of it is refused. Chains in which one is
(its previous number lies below the newest, or it jumps too far) are judged row by row: rare, and exact.

A number is one int64 (`rules.pack`), a missing previous is ``NO_PREVIOUS``, an answer its place in ``ANSWERS``. A
negative number marks a row that was refused before it came here: ``refused(reason)`` is answered with that reason's
code, and the row is no part of any chain.

    PackedDetector     one chain, message by message: `ChainDetector` laid out for speed
    ColumnarDetector   batches of rows, the rows of a chain contiguous: input of any size can stream through
    TableDetector      a whole table: also rows without a previous number are known, by the others of equal number
    ChainBank          a batch of a stream: the memory of the chains that it touches, as columns

Cost: a dozen numpy passes per batch (and bank), and about half a microsecond per message that meets the gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onefold.chains.rules import ANSWERS, DEFAULTS, SEQUENCE_BITS, SEQUENCE_MAX, ChainSettings
from onefold.hashed_names import find
from onefold.intervals import Gaps
from onefold.verdict import Verdict

NO_PREVIOUS = -1
START = -2  # below every packed number, and below NO_PREVIOUS; the lower end of the floor
UNNAMED = -3  # the lower end of a floor whose upper end nobody named: it lies just below a message that was seen

CODES = {answer.reason: code for code, answer in enumerate(ANSWERS)}

NEW_CHAIN, IN_ORDER = CODES["new_chain"], CODES["in_order"]
OPENS_GAP, FILLS_GAP, AHEAD = CODES["opens_gap"], CODES["fills_gap"], CODES["ahead"]
SEEN, BEHIND_HEAD, BELOW_FLOOR = CODES["seen"], CODES["behind_head"], CODES["below_floor"]
FORGOTTEN, BAD_NUMBERING = CODES["forgotten"], CODES["bad_numbering"]
GAP_MISMATCH, JUMP_TOO_FAR = CODES["gap_mismatch"], CODES["jump_too_far"]
STATE_FULL, LATE = CODES["state_full"], CODES["late"]


class PackedDetector:
    """One chain. `judge` is the whole rule; `begin`, `open_gap` and `behind` are its parts, for who knows the head.

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
        self.forgetting: Callable[[int], None] | None = None  # called with how far the forgotten reaches, when it grows

    def resume(self, head: int, forgotten: int, lowers: list[int], uppers: list[int]) -> None:
        """Go on where another detector stood: with its head and its `memory`."""
        self.head = head
        self._forgotten = forgotten
        self._gaps.lowers, self._gaps.uppers = lowers, uppers

    def memory(self) -> tuple[int, list[int], list[int]]:
        """How far the forgotten reaches (START: nowhere), and the lower and upper ends of the gaps."""
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
        """A message is ahead of the head, and its previous one too."""
        gaps = self._gaps
        gaps.lowers.append(head)
        gaps.uppers.append(previous)
        if len(gaps.lowers) >= self._gap_count_max:
            self._forget()

    def behind(self, previous: int, number: int) -> int:
        """The code of the answer to a message behind the head, or equal to it and with a previous one."""
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

_FIRST = np.array([answer.verdict is Verdict.FIRST for answer in ANSWERS])


def refused(reason: str) -> int:
    """The number that stands for "refused already, for this reason"."""
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

    def __init__(self, settings: ChainSettings = DEFAULTS) -> None:
        self._settings = settings.checked()
        self._detector = PackedDetector(settings)
        self._chain: int | None = None  # whose rows the last batch ended with

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
        if goes_on:  # one row stands in for what was seen before: the head
            chain = np.concatenate((chain[:1], chain))
            previous = np.concatenate(([NO_PREVIOUS], previous))
            number = np.concatenate(([self._detector.head], number))
        rows = Rows(np.concatenate(([True], chain[1:] != chain[:-1])), previous, number)
        codes, newest = classify(rows, self._settings.jump_max_ms)
        at = 0 if goes_on else -1  # the first row of the chain whose detector is at hand

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

    def __init__(self, settings: ChainSettings = DEFAULTS) -> None:
        self._detector = ColumnarDetector(settings)
        self._counted: tuple[int, int] | None = None  # chain and number that the last review ended with, if it counts
        self.due = False
        """Was a row left open, so that a review is needed?"""

    def judge(self, chain: Int64s, previous: Int64s, number: Int64s) -> Codes:
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
                np.concatenate((np.array([LATE], np.int8), codes)),
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
        begins = np.concatenate(([True], rank[rows[1:]] != rank[rows[:-1]]))
        order, _ = in_chain_order(Rows(begins, previous[rows], number[rows]))
        by_number = np.argsort(order, kind="stable")
        in_order = order[by_number]
        again = np.zeros(len(order), np.bool_)  # a row of the same chain before it has its number
        again[by_number[1:]] = in_order[1:] == in_order[:-1]
        codes = codes.astype(np.int8)
        codes[rows[again]] = SEEN
        codes[rows[~again & open_rows[rows]]] = LATE
        return codes


def _left_open(previous: Int64s, codes: Codes) -> Bools:
    open_rows: Bools = (previous == NO_PREVIOUS) & ((codes == BEHIND_HEAD) | (codes == FORGOTTEN))
    return open_rows


def classify(rows: Rows, jump_max_ms: int | None = None) -> tuple[Codes, Int64s]:
    """The codes of all rows that one comparison decides, and the newest number up to and with each row."""
    begins, previous, number = rows
    order, number_of = in_chain_order(rows)
    top = np.maximum.accumulate(order)
    newest = number_of(top)
    ahead = np.concatenate(([True], order[1:] > top[:-1]))  # of all rows of their chain before them
    head = np.concatenate(([START], newest[:-1]))
    codes = np.full(len(number), IN_ORDER, np.int8)
    odd = np.flatnonzero(~ahead | (previous != head))
    odd_ahead, below, above = ahead[odd], previous[odd] < head[odd], previous[odd] > head[odd]
    alone = previous[odd] == NO_PREVIOUS
    codes[odd] = np.where(odd_ahead, np.where(above, OPENS_GAP, AHEAD), _BEHIND)
    # A row that repeats, previous number and all, one that was newer than all before it was seen, whatever the gaps
    # are: between that row's previous number and its own there is nothing unseen any more.
    late = odd[~odd_ahead & ~alone]
    same = np.searchsorted(top, order[late])  # the row that got so far first: theirs, or one that jumped over it
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
    """Show to the gaps, in order, the rows that open one, are behind, or need the whole rule.

    ``begin(first)`` is the detector of the chain that has its first row there, with that row already told. Returns the
    chains, by their first row, that were judged by the whole rule: their detectors know the head, the others do not.
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
    if reaches:  # a copy that lies within what was forgotten before it came is no longer known to be one
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
    """One row per gap: sorted by the place of the chain it belongs to, and ascending within a chain."""

    owner: Int64s
    lower: Int64s
    upper: Int64s

    @classmethod
    def none(cls) -> GapRows:
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def take(self, rows: Bools | Int64s) -> GapRows:
        return GapRows(*(column[rows] for column in self))


def sorted_by_name(chains: Chains, gaps: GapRows) -> tuple[Chains, GapRows]:
    order = np.lexsort((chains.key_check, chains.key))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    gaps = GapRows(rank[gaps.owner], gaps.lower, gaps.upper)
    by_owner = np.argsort(gaps.owner, kind="stable")
    return Chains(*(column[order] for column in chains)), gaps.take(by_owner)


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
    """Judges batches of messages of many chains, and remembers.

    One Python object per chain would cost more than the judgement, so the chains are columns, sorted by name, and their
    gaps lie flat beside them. In a batch the head of each known chain stands in as a first row, numpy decides what one
    comparison can decide, and only the chains whose gaps are touched become detectors for a moment.

    State is bounded by disorder, not by history, and in two more ways. A chain that was not heard from for long can
    `give_up` its gaps: what lies below them is UNSURE from then on; the head stays, so that nothing seen is ever taken
    for new. Beyond ``chains_max`` chains, messages of a new one are UNSURE state_full; the others go on as before.

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
        """``chains`` and ``gaps``: what is known already, of some chains."""
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
        """The code of each message's answer (its place in ``ANSWERS``); ``now_ms`` is when the batch was heard."""
        codes = np.where(messages.number < 0, -1 - messages.number, BAD_NUMBERING).astype(np.int8)
        good = np.flatnonzero((messages.previous < messages.number) & (messages.number >= 0))
        if self.chains_max is not None:
            good, full = self._with_room(good, messages)
            codes[full] = STATE_FULL
        if len(good):
            codes[good] = self._judge(messages if len(good) == len(codes) else messages.take(good), now_ms)
        return codes

    def give_up(self, before_ms: int) -> None:
        """Let chains that were heard from last before this give up their gaps."""
        idle = (self._chains.heard_ms < before_ms) & (self._chains.heard_ms > 0)  # 0: nobody kept the time
        torn = np.zeros(len(self), np.bool_)
        torn[self._gaps.owner[self._gaps.lower >= 0]] = True  # one with nothing missing is small already
        forget = (idle & torn)[self._gaps.owner]
        if forget.any():
            forgotten = self._chains.forgotten.copy()
            np.maximum.at(forgotten, self._gaps.owner[forget], self._gaps.upper[forget])
            self._chains, self._gaps = self._chains._replace(forgotten=forgotten), self._gaps.take(~forget)

    def _judge(self, messages: ChainMessages, now_ms: int) -> Codes:
        firsts = np.flatnonzero(_begins(messages))
        names = messages.take(firsts)
        at = self.find(names.key, names.key_check)
        old = np.flatnonzero(at >= 0)
        before, places = firsts[old], firsts[old] + np.arange(len(old))  # where the heads come to stand
        begins = np.insert(_begins(messages), before, True)
        begins[places + 1] = False
        heads = self._chains.head[at[old]]
        rows = Rows(
            begins, np.insert(messages.previous, before, NO_PREVIOUS), np.insert(messages.number, before, heads)
        )
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

    def _with_room(self, good: Int64s, messages: ChainMessages) -> tuple[Int64s, Int64s]:
        """Which of the good rows can be judged, and which belong to chains that there is no room for."""
        rows = messages.take(good)
        begins = _begins(rows)
        names = rows.take(np.flatnonzero(begins))
        new = np.flatnonzero(self.find(names.key, names.key_check) < 0)
        room = max(0, int(self.chains_max or 0) - len(self))
        if len(new) <= room:
            return good, good[:0]
        by_name = new[np.lexsort((names.key_check[new], names.key[new]))]  # the same ones, however often it is tried
        refused = np.zeros(len(names.key), np.bool_)
        refused[by_name[room:]] = True
        full = refused[np.cumsum(begins) - 1]
        return good[~full], good[full]

    @property
    def names(self) -> tuple[Int64s, Int64s]:
        return self._chains.key, self._chains.key_check

    def find(self, key: Int64s, key_check: Int64s) -> Int64s:
        """Where these chains stand in the bank; -1 for those that are new."""
        return find(self._chains.key, self._chains.key_check, key, key_check)

    def _learn(
        self, names: ChainMessages, at: Int64s, heads: Int64s, now_ms: int, visited: dict[int, PackedDetector]
    ) -> None:
        """Keep what the batch taught; ``visited`` are the chains whose gaps may have changed."""
        new = np.flatnonzero(at < 0)
        at = at.copy()
        at[new] = len(self) + np.arange(len(new))
        touched = np.fromiter(visited, np.int64, len(visited))
        # Of new chains whose gaps were not touched, the gap below their first message is remembered.
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


def _begins(messages: ChainMessages) -> Bools:
    key, check = messages.key, messages.key_check
    return np.concatenate(([True], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))[: len(key)]
