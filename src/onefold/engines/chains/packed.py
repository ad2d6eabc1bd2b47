"""`ChainDetector` on packed integers, answering codes: the same rules, laid out for speed.

A number is one int64 (see `number`), an answer its place in ``ANSWERS``. There is no second opinion in here: the
property tests hold it equal to the scalar detector, message by message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from onefold.engines.chains.answers import ANSWERS
from onefold.engines.chains.number import SEQUENCE_BITS
from onefold.engines.intervals import Gaps

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

    >>> detector = PackedDetector(10_000, "first", None)
    >>> detector.judge(NO_PREVIOUS, 5), detector.judge(7, 8), detector.judge(5, 7), detector.judge(5, 7)
    (0, 2, 3, 5)
    """

    __slots__ = ("_first", "_forgotten", "_gap_count_max", "_gaps", "_jump_max_ms", "forgetting", "head")

    def __init__(self, gap_count_max: int, floor: str, jump_max_ms: int | None) -> None:
        self._gap_count_max = gap_count_max
        self._first = floor == "first"
        self._jump_max_ms = jump_max_ms
        self._gaps: Gaps[int] = Gaps()
        self._forgotten = START
        self.head = START
        self.forgetting: Callable[[int], None] | None = None  # is told how far the forgotten reaches, when it grows

    def resume(self, head: int, forgotten: int, lowers: list[int], uppers: list[int]) -> None:
        """Go on where another detector stood: with its head and its `memory`."""
        self.head = head
        self._forgotten = forgotten
        self._gaps.lowers, self._gaps.uppers = lowers, uppers

    def memory(self) -> tuple[int, list[int], list[int]]:
        """How far the forgotten reaches (START: nowhere), and the lower and upper ends of the gaps."""
        return self._forgotten, self._gaps.lowers, self._gaps.uppers

    def judge(self, previous: int, number: int) -> int:
        """The code of the answer to one message."""
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
        """The first message of the chain."""
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
