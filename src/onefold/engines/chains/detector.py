"""Has this message been seen? Answered from the gaps, in memory that does not grow with history.

A chain is a sequence of messages with strictly rising numbers, each naming its predecessor. Seen messages form long
closed stretches; what is worth remembering is the gaps between them, and the last gap reaches to infinity:

    seen 1..6, 10..12, 18..20     state  (6, 9] (12, 17] (20, inf]

Invariants: gaps are disjoint and ascending; every ``lower`` was seen, every ``upper`` is known to exist and was not.
For a message ``previous -> number``, take the last gap that begins below ``number``:

    previous >= upper             the stretch above that gap is closed           REPEAT seen
    lower <= previous, in it      contract, divide or close the gap              FIRST
    otherwise                     the message contradicts the chain              REJECT gap_mismatch

A message without previous is compared with the newest number only: above it is FIRST ahead, below it nothing can tell:
UNSURE behind_head. The newest number itself, and that of the first message of the chain, are known: REPEAT seen.
REPEAT, UNSURE and REJECT leave the state as it was.

Below the first message that ever arrived lies one more gap, ``(-inf, floor]``: with ``floor="first"`` it answers REPEAT
below_floor and stays (as published), with ``floor="open"`` it is a gap like any other. More than ``gap_count_max`` gaps
are not kept: the lowest is forgotten, with how far it reached, and a number down there is UNSURE, never REPEAT.

From: Streamr network, "Duplicate detection". Cost: O(1) in order, O(log gaps) for an old duplicate.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from onefold.engines.chains import answers as A
from onefold.engines.chains.number import INFINITY, PART_MAX, START, Number, just_above, just_below, text, valid
from onefold.engines.chains.snapshot import State, decode, encode
from onefold.engines.intervals import Gaps
from onefold.errors import Misuse
from onefold.verdict import Answer

Floor: TypeAlias = Literal["first", "open"]

GAP_COUNT_MAX = 10_000
"""As published; at 32 bytes a gap a chain in the worst disorder stays below 1 MB."""


class ChainDetector:
    """Judges the messages of one chain.

    >>> d = ChainDetector()
    >>> for previous, number in [((5, 0), (6, 0)), ((9, 0), (10, 0)), ((6, 0), (7, 0)), ((6, 0), (7, 0))]:
    ...     print(d.judge(previous, number), "->", d)
    FIRST new_chain -> (6|0, inf]
    FIRST opens_gap -> (6|0, 9|0] (10|0, inf]
    FIRST fills_gap -> (7|0, 9|0] (10|0, inf]
    REPEAT seen -> (7|0, 9|0] (10|0, inf]
    >>> d.missing()
    [((7, 1), (9, 0))]
    """

    __slots__ = ("_floor_named", "_forgotten", "_gaps", "_head", "floor", "gap_count_max", "jump_max_ms")

    def __init__(
        self, *, gap_count_max: int = GAP_COUNT_MAX, floor: Floor = "first", jump_max_ms: int | None = None
    ) -> None:
        """Begin with nothing seen.

        ``jump_max_ms`` refuses numbers that far ahead of their arrival time (or, when ``judge`` is told none, of the
        newest number seen), so that one poisoned message cannot mute a chain. None: no such limit.
        """
        if type(gap_count_max) is not int or gap_count_max < 1:
            raise Misuse(f"gap_count_max is {gap_count_max!r}, must be at least 1", gap_count_max=gap_count_max)
        if floor not in ("first", "open"):
            raise Misuse(f'floor is {floor!r}, must be "first" or "open"', floor=floor)
        if jump_max_ms is not None and (type(jump_max_ms) is not int or jump_max_ms < 0):
            raise Misuse(f"jump_max_ms is {jump_max_ms!r}, must be a number of ms or None", jump_max_ms=jump_max_ms)
        self.gap_count_max = gap_count_max
        self.floor: Floor = floor
        self.jump_max_ms = jump_max_ms
        self._head: Number | None = None
        self._gaps: Gaps[Number] = Gaps()
        self._forgotten: Number | None = None
        self._floor_named = False  # is the upper end of (-inf, floor] a message, or only the place below one?

    @property
    def head(self) -> Number | None:
        """The newest number seen; None before the first message."""
        return self._head

    @property
    def forgotten(self) -> Number | None:
        """How far the forgotten gaps reached; None if none was forgotten."""
        return self._forgotten

    def judge(self, previous: Number | None, number: Number, arrival_ms: int | None = None) -> Answer:
        """Judge one message and remember it. Never raises on a message, whatever it holds."""
        if previous is not None and previous == self._head and self.jump_max_ms is None:
            timestamp, sequence = number if type(number) is tuple and len(number) == 2 else (None, None)
            if type(timestamp) is int and type(sequence) is int and -1 < sequence <= PART_MAX >= timestamp > -1:
                if previous >= number:
                    return A.BAD_NUMBERING
                self._head = number
                return A.IN_ORDER
        return self._judge(previous, number, arrival_ms)

    def _judge(self, claimed_previous: Number | None, claimed: Number, arrival_ms: int | None) -> Answer:
        number = valid(claimed)
        previous = None if claimed_previous is None else valid(claimed_previous)
        if number is None or (previous is None) != (claimed_previous is None):
            return A.BAD_NUMBER
        if max(*number, *(previous or START)) > PART_MAX:
            return A.NUMBER_OUT_OF_RANGE
        if previous is not None and previous >= number:
            return A.BAD_NUMBERING
        if self._too_far(number, arrival_ms):
            return A.JUMP_TOO_FAR
        if self._head is None:
            self._gaps.append(START, just_below(number) if previous is None else previous)
            self._floor_named = previous is not None
            self._head = number
            self._forget()
            return A.NEW_CHAIN
        if self._forgotten is not None and number <= self._forgotten:
            return A.FORGOTTEN
        return self._without_previous(number) if previous is None else self._with_previous(previous, number)

    def _with_previous(self, previous: Number, number: Number) -> Answer:
        head = cast(Number, self._head)
        if number > head:
            if previous < head:
                return A.GAP_MISMATCH
            self._head = number
            if previous == head:
                return A.IN_ORDER
            self._gaps.append(head, previous)
            self._forget()
            return A.OPENS_GAP
        i = self._gaps.locate(number)
        if i < 0:
            return A.SEEN
        lower, upper = self._gaps.lowers[i], self._gaps.uppers[i]
        if lower == START and self.floor == "first":
            return A.SEEN if number > upper else A.BELOW_FLOOR
        if previous >= upper:
            return A.SEEN
        if previous < lower or number > upper:
            return A.GAP_MISMATCH
        self._fill(i, previous, number, named=True)
        return A.FILLS_GAP

    def _without_previous(self, number: Number) -> Answer:
        head = cast(Number, self._head)
        if number >= head:
            self._head = number
            return A.AHEAD if number > head else A.SEEN
        if not self._has_floor:
            return A.BEHIND_HEAD
        floor = self._gaps.uppers[0]
        if floor == just_below(number) and not self._floor_named:
            return A.SEEN
        if self.floor == "first" or number > floor:
            return A.BEHIND_HEAD
        # The first message of a chain names no previous one: arriving late, it must still count.
        self._fill(0, just_below(number), number, named=False)
        return A.FILLS_GAP

    def _fill(self, i: int, previous: Number, number: Number, *, named: bool) -> None:
        if self._gaps.lowers[i] == START:
            self._floor_named = named
        self._gaps.fill(i, previous, number)
        self._forget()

    def _too_far(self, number: Number, arrival_ms: int | None) -> bool:
        if self.jump_max_ms is None:
            return False
        reference = arrival_ms if arrival_ms is not None else self._head and self._head[0]
        return reference is not None and number[0] - reference > self.jump_max_ms

    def _forget(self) -> None:
        while len(self._gaps) + 1 - self._floor_hidden > self.gap_count_max:
            if self._floor_hidden:
                self._gaps.drop_lowest()
            self._forgotten = self._gaps.drop_lowest()

    @property
    def _has_floor(self) -> bool:
        return len(self._gaps) > 0 and self._gaps.lowers[0] == START

    @property
    def _floor_hidden(self) -> bool:
        return self.floor == "first" and self._has_floor

    def gaps(self) -> list[tuple[Number, Number | None]]:
        """The state: every ``(lower, upper]``, ascending; an upper end of None is infinity."""
        if self._head is None:
            return []
        return [*list(self._gaps)[self._floor_hidden :], (self._head, None)]

    def missing(self) -> list[tuple[Number, Number]]:
        """The ranges to ask a resend for, both ends inclusive: what is known to exist and was not seen."""
        unknown = self._has_floor and (self.floor == "first" or not self._floor_named)
        # A sequence of -1 is the place below a message that named none before it: nothing is known to be there.
        known = [(lower, upper) for lower, upper in list(self._gaps)[unknown:] if upper[1] >= 0]
        return [((0, 0) if lower == START else just_above(lower), upper) for lower, upper in known]

    def merge(self, other: ChainDetector) -> ChainDetector:
        """Unite with what another node saw of the same chain: afterwards seen = seen by either. Returns self.

        What either has forgotten stays UNSURE. Cost: O(gaps of both).
        """
        if other._head is None:
            return self
        if self._head is None:
            self._head, self._gaps, self._floor_named = other._head, Gaps(other._gaps), other._floor_named
        else:
            floors = [(d._gaps.uppers[0], not d._floor_named) for d in (self, other) if d._has_floor]
            self._floor_named = bool(floors) and not min(floors)[1]
            unseen = self._unseen().intersection(other._unseen())
            self._head = unseen.lowers.pop()
            unseen.uppers.pop()
            self._gaps = unseen
        self._forgotten = max(filter(None, (self._forgotten, other._forgotten)), default=None)
        self._forget()
        return self

    def _unseen(self) -> Gaps[Number]:
        return Gaps([*self._gaps, (cast(Number, self._head), cast(Number, INFINITY))])

    def snapshot(self) -> bytes:
        """Everything, settings included, in a few bytes: about 20, and about 6 more per gap."""
        settings = (self.gap_count_max, self.floor, self.jump_max_ms)
        return encode(State(*settings, self._head, self._forgotten, self._floor_named, list(self._gaps)))

    @classmethod
    def restore(cls, data: bytes) -> ChainDetector:
        """A detector that goes on exactly where ``snapshot`` was taken; foreign bytes raise `BadInput`."""
        state = decode(data)
        detector = cls(gap_count_max=state.gap_count_max, floor=state.floor, jump_max_ms=state.jump_max_ms)
        detector._head, detector._forgotten, detector._floor_named = state.head, state.forgotten, state.floor_named
        detector._gaps = Gaps(state.gaps)
        return detector

    def __str__(self) -> str:
        if self._head is None:
            return "(-inf, inf]"
        forgot = [] if self._forgotten is None else [f"forgot {text(self._forgotten)}"]
        gaps = [f"({text(lower)}, {'inf' if upper is None else text(upper)}]" for lower, upper in self.gaps()]
        return " ".join(forgot + gaps)

    def __repr__(self) -> str:
        return f"<ChainDetector {self}>"
