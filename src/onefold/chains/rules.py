"""Has this message been seen? Answered from the gaps, in memory that does not grow with history.

A chain is a sequence of messages with strictly rising numbers, each naming its predecessor. Seen messages form long
closed stretches, so it is enough to remember the gaps between them; the last gap reaches to infinity:

    seen 1..6, 10..12, 18..20     state  (6, 9] (12, 17] (20, inf]

Invariants: gaps are disjoint and ascending; every ``lower`` was seen, every ``upper`` is known to exist and was not.
For a message ``previous -> number``, take the last gap that begins below ``number``:

    previous >= upper             the stretch above that gap is closed           REPEAT seen
    lower <= previous, in it      contract, divide or close the gap              FIRST
    otherwise                     the message contradicts the chain              REJECT gap_mismatch

A message without previous is compared with the newest number only: above it is FIRST ahead, below it UNSURE
behind_head, since it may be new or a copy. The newest number itself, and that of the first message of the chain, are
known: REPEAT seen. REPEAT, UNSURE and REJECT leave the state unchanged.

Below the first message that arrived lies one more gap, ``(-inf, floor]``: with ``floor="first"`` it answers REPEAT
below_floor and stays (as published), with ``floor="open"`` it is a gap like any other. Beyond ``gap_count_max`` gaps
the lowest is forgotten. Its upper end is kept, and numbers at or below it are UNSURE, never REPEAT.

A number is a pair ``(timestamp, sequence)``: Unix time in milliseconds, and a tie-breaker within a millisecond. For
columns, numbers are packed into one int64 of the same order, ``timestamp << 20 | sequence``: 43 bits of time (to the
year 2248) and 1,048,576 messages per millisecond; numbers that do not fit are never wrapped.

From: Streamr network, "Duplicate detection". Cost: O(1) in order, O(log gaps) for an old duplicate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from onefold.errors import BadInput, Misuse
from onefold.intervals import Gaps
from onefold.verdict import Answer, Verdict

NEW_CHAIN: Final = Answer(Verdict.FIRST, "new_chain")
IN_ORDER: Final = Answer(Verdict.FIRST, "in_order")
OPENS_GAP: Final = Answer(Verdict.FIRST, "opens_gap")
FILLS_GAP: Final = Answer(Verdict.FIRST, "fills_gap")
AHEAD: Final = Answer(Verdict.FIRST, "ahead")
SEEN: Final = Answer(Verdict.REPEAT, "seen")
BEHIND_HEAD: Final = Answer(Verdict.UNSURE, "behind_head")
BELOW_FLOOR: Final = Answer(Verdict.REPEAT, "below_floor")
FORGOTTEN: Final = Answer(Verdict.UNSURE, "forgotten")
BAD_NUMBERING: Final = Answer(Verdict.REJECT, "bad_numbering")
GAP_MISMATCH: Final = Answer(Verdict.REJECT, "gap_mismatch")
JUMP_TOO_FAR: Final = Answer(Verdict.REJECT, "jump_too_far")
BAD_NUMBER: Final = Answer(Verdict.REJECT, "bad_number")
NUMBER_OUT_OF_RANGE: Final = Answer(Verdict.REJECT, "number_out_of_range")
NULL_KEY: Final = Answer(Verdict.REJECT, "null_key")
MALFORMED: Final = Answer(Verdict.REJECT, "malformed")
GIVEN_UP: Final = Answer(Verdict.UNSURE, "given_up")
STATE_FULL: Final = Answer(Verdict.UNSURE, "state_full")
LATE: Final = Answer(Verdict.FIRST, "late")
BAD_TIME: Final = Answer(Verdict.REJECT, "bad_time")
TIME_TOO_FINE: Final = Answer(Verdict.REJECT, "time_too_fine")

RULES: Final = {
    NEW_CHAIN: "It is the first message of its chain that arrived.",
    IN_ORDER: "It follows the newest message seen, and names it as its previous one.",
    OPENS_GAP: "It is newer than all seen, and its previous one is still missing.",
    FILLS_GAP: "It lies in a range that was known to be missing.",
    AHEAD: "It names no previous message, and is newer than all seen.",
    SEEN: "Its number was seen, or lies in a range that has been seen completely.",
    BEHIND_HEAD: "It names no previous message, and is older than the newest seen: whether it is new cannot be told.",
    BELOW_FLOOR: 'It is older than the first message that arrived (floor = "first": what came before is not counted).',
    FORGOTTEN: "The memory of its range was given up to stay within gap_count_max.",
    BAD_NUMBERING: "Its previous number is not below its own.",
    GAP_MISMATCH: "Its previous number contradicts what was seen: one of the two messages is wrong.",
    JUMP_TOO_FAR: "Its timestamp lies more than jump_max_ms ahead.",
    BAD_NUMBER: "Its number, or its previous number, is missing, negative, or no whole number and no time.",
    NUMBER_OUT_OF_RANGE: "Its number does not fit: timestamp below 2^43 ms, sequence below 2^20.",
    NULL_KEY: "A part of its chain key is null.",
    MALFORMED: "The row could not be read at all.",
    GIVEN_UP: "Its range was given up as unfillable before it arrived.",
    STATE_FULL: "Its chain is new, and there is no room to remember another one within state_rows_max.",
    LATE: "It names no previous message and is older than the newest, and no row before it has its number.",
    BAD_TIME: "Its arrival is neither a whole number nor a time.",
    TIME_TOO_FINE: "Its time has a part below the millisecond, which has no room beside a sequence.",
}

ANSWERS: Final = tuple(RULES)
"""The position of an answer is its code wherever answers travel in columns: new answers go to the end."""

Number: TypeAlias = tuple[int, int]
"""A message's position in its chain: its time in milliseconds, and a sequence among messages of the same time."""

START: Number = (-1, -1)
"""Below every number."""

INFINITY: tuple[float, float] = (math.inf, math.inf)
"""Above every number."""

SEQUENCE_BITS = 20
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
TIMESTAMP_MAX = (1 << (63 - SEQUENCE_BITS)) - 1

PART_MAX = (1 << 63) - 1
"""The largest timestamp and sequence of a number that is not packed: 63 bits, as in stores and wire formats."""


def valid(value: object) -> Number | None:
    """The value as a number if it is a pair of non-negative ints, else None.

    >>> valid((10, 0)), valid([10, 0]), valid((10, -1)), valid((float("inf"), 0)), valid("10|0")
    ((10, 0), (10, 0), None, None, None)
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    timestamp, sequence = value
    if type(timestamp) is not int or type(sequence) is not int or timestamp < 0 or sequence < 0:
        return None
    return timestamp, sequence


def just_below(number: Number) -> Number:
    """The largest pair below this one; not a valid number if the sequence is 0."""
    return number[0], number[1] - 1


def just_above(number: Number) -> Number:
    return number[0], number[1] + 1


def text(number: Number) -> str:
    """
    >>> text((10, 0)), text(START)
    ('10|0', '-inf')
    """
    return "-inf" if number == START else f"{number[0]}|{number[1]}"


def pack(number: Number) -> int | None:
    """One int64 in the same order; None if it does not fit.

    >>> unpack(pack((1_700_000_000_000, 3))), pack((TIMESTAMP_MAX + 1, 0)), pack((1, SEQUENCE_MAX + 1))
    ((1700000000000, 3), None, None)
    """
    timestamp, sequence = number
    if not (0 <= timestamp <= TIMESTAMP_MAX and 0 <= sequence <= SEQUENCE_MAX):
        return None
    return timestamp << SEQUENCE_BITS | sequence


def unpack(packed: int) -> Number:
    return packed >> SEQUENCE_BITS, packed & SEQUENCE_MAX


Floor: TypeAlias = Literal["first", "open"]

GAP_COUNT_MAX = 10_000
"""As published; at 32 bytes a gap a chain in the worst disorder stays below 1 MB."""


class ChainSettings(NamedTuple):
    gap_count_max: int = GAP_COUNT_MAX
    floor: Floor = "first"
    jump_max_ms: int | None = None

    def checked(self) -> ChainSettings:
        """Return self if every setting makes sense; else raise `Misuse` naming the first that does not."""
        gap_count_max, floor, jump_max_ms = self
        if type(gap_count_max) is not int or gap_count_max < 1:
            raise Misuse(f"gap_count_max is {gap_count_max!r}, must be at least 1", gap_count_max=gap_count_max)
        if floor not in ("first", "open"):
            raise Misuse(f'floor is {floor!r}, must be "first" or "open"', floor=floor)
        if jump_max_ms is not None and (type(jump_max_ms) is not int or jump_max_ms < 0):
            raise Misuse(f"jump_max_ms is {jump_max_ms!r}, must be a number of ms or None", jump_max_ms=jump_max_ms)
        return self


DEFAULTS: Final = ChainSettings()

FORMAT = 1
_SEEN, _FORGOT, _NAMED, _OPEN, _GUARDED = 1, 2, 4, 8, 16
_VARINT_BYTES_MAX = 10  # 64 bits and a little: timestamps of 2^53 fit, endless input does not


class State(NamedTuple):
    settings: ChainSettings
    head: Number | None
    forgotten: Number | None
    floor_named: bool
    gaps: list[tuple[Number, Number]]


def encode(state: State) -> bytes:
    """The state as bytes: about 20, and about 6 more per gap.

    One format byte, one flag byte, then unsigned LEB128 integers: the settings, the number of gaps, and all bounds in
    ascending order as differences (a timestamp step and a sequence), so that close bounds cost two or three bytes each.
    """
    gap_count_max, floor, jump_max_ms = state.settings
    flags = (
        (state.head is not None) * _SEEN
        | (state.forgotten is not None) * _FORGOT
        | state.floor_named * _NAMED
        | (floor == "open") * _OPEN
        | (jump_max_ms is not None) * _GUARDED
    )
    values = [gap_count_max, *([] if jump_max_ms is None else [jump_max_ms]), len(state.gaps)]
    last = -1
    for timestamp, sequence in _bounds(state):
        values += timestamp - last, sequence + 1
        last = timestamp
    out = bytearray((FORMAT, flags))
    for value in values:
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def _bounds(state: State) -> list[Number]:
    gaps = (bound for gap in state.gaps for bound in gap)
    return [bound for bound in (state.forgotten, *gaps, state.head) if bound is not None]


def decode(data: bytes) -> State:
    """Decode a state; `BadInput` with the offset if it is invalid."""
    if len(data) < 2 or data[0] != FORMAT or data[1] >= 2 * _GUARDED:
        raise BadInput(f"not a chain snapshot of format {FORMAT}: begins {data[:2].hex() or 'with nothing'}", offset=0)
    flags = data[1]
    values = _varints(data, 2)
    timestamp = -1

    def number() -> Number:
        nonlocal timestamp
        timestamp += next(values)
        return timestamp, next(values) - 1

    try:
        gap_count_max = next(values)
        jump_max_ms = next(values) if flags & _GUARDED else None
        gap_count = next(values)
        if 4 * gap_count > len(data):
            raise BadInput(f"chain snapshot claims {gap_count} gaps in {len(data)} bytes", gap_count=gap_count)
        forgotten = number() if flags & _FORGOT else None
        gaps = [(number(), number()) for _ in range(gap_count)]
        head = number() if flags & _SEEN else None
    except StopIteration:
        raise BadInput("chain snapshot ends too early") from None
    if next(values, None) is not None:
        raise BadInput(f"chain snapshot of {len(data)} bytes goes on after its end")
    settings = ChainSettings(gap_count_max, "open" if flags & _OPEN else "first", jump_max_ms)
    state = State(settings, head, forgotten, bool(flags & _NAMED), gaps)
    _refuse_nonsense(state)
    return state


def _varints(data: bytes, offset: int) -> Iterator[int]:
    while offset < len(data):
        start, value, more = offset, 0, True
        while more:
            if offset == len(data) or offset - start == _VARINT_BYTES_MAX:
                raise BadInput(f"chain snapshot: integer cut off or too long at byte {start}", offset=start)
            value |= (data[offset] & 0x7F) << 7 * (offset - start)
            more = data[offset] >= 0x80
            offset += 1
        if data[offset - 1] == 0 and offset - start > 1:
            raise BadInput(f"chain snapshot: integer with leading zeros at byte {start}", offset=start)
        yield value


def _refuse_nonsense(state: State) -> None:
    """Raise `BadInput` for a state that no detector can reach: its answers would be wrong."""
    lowers, uppers = [lower for lower, _ in state.gaps], [upper for _, upper in state.gaps]
    has_floor = lowers[:1] == [START]
    gap_count_max, floor, _ = state.settings
    if not 1 <= len(state.gaps) + 1 - (floor == "first" and has_floor) <= gap_count_max:
        raise BadInput(f"chain snapshot: {len(state.gaps)} gaps, gap_count_max {gap_count_max}")
    if state.head is None and (state.forgotten or state.gaps or state.floor_named):
        raise BadInput("chain snapshot: gaps in a chain of which nothing was seen")
    bounds = _bounds(state)
    for lower, upper in pairwise(bounds):
        if lower >= upper:
            raise BadInput(f"chain snapshot: {lower} is followed by {upper}", lower=lower, upper=upper)
    edge, top = [*filter(None, [state.forgotten])], [*filter(None, [state.head])]
    if min([*edge, *uppers, *top], default=(0, 0)) < (0, -1) or any(s < 0 for _, s in [*lowers[has_floor:], *top]):
        raise BadInput(f"chain snapshot: a bound is no number in {bounds}", bounds=bounds)


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

    __slots__ = ("_floor_named", "_gaps", "floor", "forgotten", "gap_count_max", "head", "jump_max_ms")

    def __init__(
        self, *, gap_count_max: int = GAP_COUNT_MAX, floor: Floor = "first", jump_max_ms: int | None = None
    ) -> None:
        """``jump_max_ms`` rejects numbers further ahead of their arrival time, so that one poisoned message cannot mute
        a chain; if ``judge`` gets no arrival time, further ahead of the newest number seen. None: no limit.
        """
        self.gap_count_max, self.floor, self.jump_max_ms = ChainSettings(gap_count_max, floor, jump_max_ms).checked()
        self.head: Number | None = None  # the newest number seen
        self._gaps: Gaps[Number] = Gaps()
        self.forgotten: Number | None = None  # the upper end of the forgotten gaps
        self._floor_named = False  # whether the floor's upper end is a message, not just the place below one

    def judge(self, previous: Number | None, number: Number, arrival_ms: int | None = None) -> Answer:
        """Judge one message and remember it. Never raises on a message, whatever it holds."""
        if previous is not None and previous == self.head and self.jump_max_ms is None:
            timestamp, sequence = number if type(number) is tuple and len(number) == 2 else (None, None)
            if type(timestamp) is int and type(sequence) is int and -1 < sequence <= PART_MAX >= timestamp > -1:
                if previous >= number:
                    return BAD_NUMBERING
                self.head = number
                return IN_ORDER
        return self._judge(previous, number, arrival_ms)

    def _judge(self, claimed_previous: Number | None, claimed: Number, arrival_ms: int | None) -> Answer:
        number = valid(claimed)
        previous = None if claimed_previous is None else valid(claimed_previous)
        if number is None or (previous is None) != (claimed_previous is None):
            return BAD_NUMBER
        if max(*number, *(previous or START)) > PART_MAX:
            return NUMBER_OUT_OF_RANGE
        if previous is not None and previous >= number:
            return BAD_NUMBERING
        if self.jump_max_ms is not None:
            reference = arrival_ms if arrival_ms is not None else self.head and self.head[0]
            if reference is not None and number[0] - reference > self.jump_max_ms:
                return JUMP_TOO_FAR
        if self.head is None:
            self._gaps.append(START, just_below(number) if previous is None else previous)
            self._floor_named = previous is not None
            self.head = number
            self._forget()
            return NEW_CHAIN
        if self.forgotten is not None and number <= self.forgotten:
            return FORGOTTEN
        return self._without_previous(number) if previous is None else self._with_previous(previous, number)

    def _with_previous(self, previous: Number, number: Number) -> Answer:
        head = cast(Number, self.head)
        if number > head:
            if previous < head:
                return GAP_MISMATCH
            self.head = number
            if previous == head:
                return IN_ORDER
            self._gaps.append(head, previous)
            self._forget()
            return OPENS_GAP
        i = self._gaps.locate(number)
        if i < 0:
            return SEEN
        lower, upper = self._gaps.lowers[i], self._gaps.uppers[i]
        if lower == START and self.floor == "first":
            return SEEN if number > upper else BELOW_FLOOR
        if previous >= upper:
            return SEEN
        if previous < lower or number > upper:
            return GAP_MISMATCH
        self._fill(i, previous, number, named=True)
        return FILLS_GAP

    def _without_previous(self, number: Number) -> Answer:
        head = cast(Number, self.head)
        if number >= head:
            self.head = number
            return AHEAD if number > head else SEEN
        if not self._has_floor:
            return BEHIND_HEAD
        floor = self._gaps.uppers[0]
        if floor == just_below(number) and not self._floor_named:
            return SEEN
        if self.floor == "first" or number > floor:
            return BEHIND_HEAD
        # The first message of a chain names no previous one: arriving late, it must still count.
        self._fill(0, just_below(number), number, named=False)
        return FILLS_GAP

    def _fill(self, i: int, previous: Number, number: Number, *, named: bool) -> None:
        if self._gaps.lowers[i] == START:
            self._floor_named = named
        self._gaps.fill(i, previous, number)
        self._forget()

    def _forget(self) -> None:
        while len(self._gaps) + 1 - self._floor_hidden > self.gap_count_max:
            if self._floor_hidden:
                self._gaps.drop_lowest()
            self.forgotten = self._gaps.drop_lowest()

    @property
    def _has_floor(self) -> bool:
        return len(self._gaps) > 0 and self._gaps.lowers[0] == START

    @property
    def _floor_hidden(self) -> bool:
        return self.floor == "first" and self._has_floor

    def gaps(self) -> list[tuple[Number, Number | None]]:
        """The state: every ``(lower, upper]``, ascending; an upper end of None is infinity."""
        return [] if self.head is None else [*list(self._gaps)[self._floor_hidden :], (self.head, None)]

    def missing(self) -> list[tuple[Number, Number]]:
        """The missing ranges, both ends inclusive: known to exist and not seen."""
        unknown = self._has_floor and (self.floor == "first" or not self._floor_named)
        # A sequence of -1 is the place below a message without previous: nothing is known to be there.
        gaps = [(lower, upper) for lower, upper in list(self._gaps)[unknown:] if upper[1] >= 0]
        return [((0, 0) if lower == START else just_above(lower), upper) for lower, upper in gaps]

    def merge(self, other: ChainDetector) -> ChainDetector:
        """Add what another detector saw; what either forgot stays UNSURE. Returns self. Cost: O(gaps of both)."""
        if other.head is None:
            return self
        if self.head is None:
            self.head, self._gaps, self._floor_named = other.head, Gaps(other._gaps), other._floor_named
        else:
            floors = [(d._gaps.uppers[0], not d._floor_named) for d in (self, other) if d._has_floor]
            self._floor_named = bool(floors) and not min(floors)[1]
            mine, others = (Gaps([*d._gaps, (cast(Number, d.head), cast(Number, INFINITY))]) for d in (self, other))
            unseen = mine.intersection(others)
            self.head = unseen.lowers.pop()
            unseen.uppers.pop()
            self._gaps = unseen
        self.forgotten = max(filter(None, (self.forgotten, other.forgotten)), default=None)
        self._forget()
        return self

    def snapshot(self) -> bytes:
        """The state with its settings as bytes; see `encode`."""
        settings = ChainSettings(self.gap_count_max, self.floor, self.jump_max_ms)
        return encode(State(settings, self.head, self.forgotten, self._floor_named, list(self._gaps)))

    @classmethod
    def restore(cls, data: bytes) -> ChainDetector:
        """A detector that continues exactly from ``snapshot``; foreign bytes raise `BadInput`."""
        state = decode(data)
        detector = cls(**state.settings._asdict())
        detector.head, detector.forgotten, detector._floor_named = state.head, state.forgotten, state.floor_named
        detector._gaps = Gaps(state.gaps)
        return detector

    def __str__(self) -> str:
        if self.head is None:
            return "(-inf, inf]"
        forgot = [] if self.forgotten is None else [f"forgot {text(self.forgotten)}"]
        gaps = [f"({text(lower)}, {'inf' if upper is None else text(upper)}]" for lower, upper in self.gaps()]
        return " ".join(forgot + gaps)

    def __repr__(self) -> str:
        return f"<ChainDetector {self}>"
