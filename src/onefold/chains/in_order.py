"""Messages in order: early ones are held until what is missing before them arrives or is given up.

A message is *next* if its previous one was released last, or if it names none (then nothing is known to be missing).
It is released at once, with all held messages that become next by it. All others are held, and the gap below the lowest
held message is worked on, one gap at a time:

    found            GapFound    from the last released to the lowest held message
    after wait_ms    Resend      from just above the one to the previous number of the other, as they were when found
    every retry_ms   Resend      again, requests_max times in all (0: never ask, only wait)
    then             Unfillable  once the last request is answered, or retry_ms after it; the order continues
    its end          GapResolved after the held message that ended it is released

With ``strategy="full"`` only the current gap is given up, and the next one gets its own wait. With "light" everything
held is released, and the other gaps below it are reported as unfillable too, without a wait.

Invariants: held numbers are above the last released, and their claims ``(previous, number]`` are disjoint (a violation
is REJECT gap_mismatch); a gap is open exactly while messages are held. Reasons are those of `ChainDetector`, so a held
message can be ``in_order`` with what has been seen. Ranges that were given up are remembered: a message that comes too
late for one is UNSURE given_up, not REPEAT, since it was never seen. Beyond ``gap_count_max`` such ranges the lowest is
forgotten, and everything up to its end is UNSURE. Beyond ``buffer_max`` the lowest gap is given up at once.

Every event carries the time that the caller passed. In `GapFound` and `Unfillable` both ends are existing messages, and
what is missing lies between them; in `Resend` both ends belong to the requested range.

From: Streamr client, OrderingUtil (later OrderedMessageChain and GapFiller). Cost: O(1) in order; to hold a message and
to release it later, O(log held) and a memory move each.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from onefold.chains import rules
from onefold.chains.rules import START, Number, just_above, just_below, text, valid
from onefold.errors import BadInput, Misuse
from onefold.intervals import Gaps
from onefold.verdict import Answer, Verdict

M = TypeVar("M")


class Released(NamedTuple, Generic[M]):
    """The next message in order: process it."""

    at_ms: int
    number: Number
    message: M


class GapFound(NamedTuple):
    """Messages are missing between the last released and the lowest held one; the wait begins."""

    at_ms: int
    lower: Number
    upper: Number


class Resend(NamedTuple):
    """Request the messages from ``first`` to ``last``, both inclusive."""

    at_ms: int
    first: Number
    last: Number


class Unfillable(NamedTuple):
    """What is missing between the two was given up; the order continues at ``upper``."""

    at_ms: int
    lower: Number
    upper: Number


class GapResolved(NamedTuple):
    """The current gap has ended: its upper end has just been released."""

    at_ms: int


Event: TypeAlias = Released[M] | GapFound | Resend | Unfillable | GapResolved
"""What happens in an `OrderedChain`: a released message, a gap, a request, a range given up."""


class Step(NamedTuple, Generic[M]):
    """The answer to one message, and the events that it caused."""

    answer: Answer
    events: list[Event[M]]


Strategy: TypeAlias = Literal["light", "full"]

WAIT_MS = 5_000
"""Streamr client: gapFillTimeout 5000. Most gaps are messages that overtook each other, and close without a request."""
RETRY_MS = 5_000
"""Streamr client: retryResendAfter 5000."""
REQUESTS_MAX = 5
"""Streamr client: maxGapRequests 5."""
BUFFER_MAX = 10_000
"""Streamr client: no limit, so one lost message can fill the memory. Here as many as the detector keeps gaps."""
GAP_COUNT_MAX = 10_000
"""As in the detector: 10,000 ranges stay below 1 MB."""


class OrderSettings(NamedTuple):
    wait_ms: int
    retry_ms: int
    requests_max: int
    strategy: Strategy
    buffer_max: int
    gap_count_max: int

    @property
    def longest_ms(self) -> int:
        return max(1, self.wait_ms, self.retry_ms)

    def checked(self) -> OrderSettings:
        """Return self if every setting makes sense; else raise `Misuse` naming the first that does not."""
        if self.strategy not in ("light", "full"):
            raise Misuse(f'strategy is {self.strategy!r}, must be "light" or "full"', strategy=self.strategy)
        least = {"wait_ms": 0, "retry_ms": 0, "requests_max": 0, "buffer_max": 1, "gap_count_max": 1}
        for name, value in self._asdict().items():
            if name in least and value < least[name]:
                raise Misuse(f"{name} is {value}, must be at least {least[name]}", **{name: value})
        return self


FORMAT = 1


class OpenGap(NamedTuple):
    """The current gap: the range to request, the held message that ends it, and the state of the requests."""

    first: Number
    last: Number
    upper: Number
    due_ms: int
    asked_count: int = 0
    asked_ms: int = 0


class OrderedState(NamedTuple):
    """The whole state of an ordered chain; ``held`` has number, previous number and message, ascending."""

    settings: OrderSettings
    floor: Number | None
    last: Number
    forgotten: Number | None
    given_up: list[tuple[Number, Number]]
    held: list[tuple[Number, Number | None, Any]]
    gap: OpenGap | None


def encode(state: OrderedState) -> bytes:
    """The state as JSON. The held messages are the caller's: bytes are stored as hex, other values as JSON text.

    A value that JSON would not restore equal (a tuple, an object, NaN) raises `Misuse`.
    """

    def pack(message: object) -> tuple[str, str]:
        if isinstance(message, bytes):
            return "hex", message.hex()
        with suppress(TypeError, ValueError, RecursionError):
            text = json.dumps(message)
            if json.loads(text) == message:
                return "json", text
        raise Misuse(f"a held message is neither bytes nor a JSON value: {message!r:.80}", held=message)

    messages = [(number, previous, *pack(message)) for number, previous, message in state.held]
    fields = {**state._asdict(), "settings": state.settings._asdict(), "held": messages}
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def decode(data: bytes) -> OrderedState:
    """Decode a state; `BadInput` if it is invalid."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise BadInput(f"not an ordered-chain snapshot of format {FORMAT}: begins {data[:20]!r}")
        raw = OrderedState(**fields)
        gap = None
        if raw.gap is not None:
            first, last, upper, *counts = raw.gap
            due_ms, asked_count, asked_ms = map(_whole, counts)
            gap = OpenGap(_number(first), _number(last), _number(upper), due_ms, asked_count, asked_ms)
        state = OrderedState(
            OrderSettings(**cast(dict[str, Any], raw.settings)).checked(),
            _number_or_none(raw.floor),
            _number(raw.last),
            _number_or_none(raw.forgotten),
            [(_number(lower), _number(upper)) for lower, upper in raw.given_up],
            [
                (_number(n), _number_or_none(previous), bytes.fromhex(text) if kind == "hex" else json.loads(text))
                for n, previous, kind, text in cast(list[Any], raw.held)
            ],
            gap,
        )
    except (ValueError, TypeError, Misuse, RecursionError) as error:
        raise BadInput(f"not an ordered-chain snapshot: {error}") from error
    bounds = [*filter(None, [state.forgotten]), *(bound for lost in state.given_up for bound in lost), state.last]
    for number, previous, _ in state.held:
        bounds += [number] if previous is None else [previous, number]
    for lower, upper in pairwise(bounds):
        if lower > upper:
            raise BadInput(f"ordered-chain snapshot: bounds descend from {lower} to {upper}", lower=lower, upper=upper)
    numbers = {number for number, _, _ in state.held}
    gap_fits = gap.upper in numbers if gap else not numbers
    if not gap_fits or len(numbers) < len(state.held) or (numbers and state.floor is None):
        raise BadInput(f"ordered-chain snapshot: {len(state.held)} held do not fit the gap {gap}", gap=gap)
    return state


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.80} is not a whole number")
    return value


def _number(value: Any) -> Number:
    timestamp, sequence = value
    return _whole(timestamp), _whole(sequence)


def _number_or_none(value: Any) -> Number | None:
    return None if value is None else _number(value)


class OrderedChain(Generic[M]):
    """Puts the messages of one chain in order.

    >>> chain = OrderedChain[str](wait_ms=50)
    >>> for previous, number in [((0, 0), (1, 0)), ((3, 0), (4, 0))]:
    ...     print(*chain.add(previous, number, "hello", now_ms=0))
    FIRST new_chain [Released(at_ms=0, number=(1, 0), message='hello')]
    FIRST opens_gap [GapFound(at_ms=0, lower=(1, 0), upper=(4, 0))]
    >>> chain.due_ms, chain.tick(now_ms=50)
    (50, [Resend(at_ms=50, first=(1, 1), last=(3, 0))])
    >>> str(chain)
    'out to 1|0, 1 held, (1|0, 3|0] missing'
    """

    def __init__(
        self,
        *,
        wait_ms: int = WAIT_MS,
        retry_ms: int = RETRY_MS,
        requests_max: int = REQUESTS_MAX,
        strategy: Strategy = "light",
        buffer_max: int = BUFFER_MAX,
        gap_count_max: int = GAP_COUNT_MAX,
    ) -> None:
        self.settings = OrderSettings(wait_ms, retry_ms, requests_max, strategy, buffer_max, gap_count_max).checked()
        self._floor: Number | None = None
        self._last = START
        self._numbers: list[Number] = []  # of held messages, ascending
        self._held: dict[Number, tuple[Number | None, M]] = {}
        self._gap: OpenGap | None = None
        self._given_up: Gaps[Number] = Gaps()
        self.forgotten: Number | None = None  # the upper end of the forgotten ranges

    @property
    def last(self) -> Number | None:
        """The number released last; None before the first message."""
        return None if self._floor is None else self._last

    @property
    def held_count(self) -> int:
        """How many messages are held; never more than ``buffer_max``."""
        return len(self._numbers)

    @property
    def due_ms(self) -> int | None:
        """When to call `tick` next; None while no gap is open."""
        return None if self._gap is None else self._gap.due_ms

    def given_up(self) -> list[tuple[Number, Number]]:
        """The remembered ranges ``(lower, upper]`` that were given up, ascending."""
        return list(self._given_up)

    def add(self, previous: Number | None, number: Number, message: M, now_ms: int) -> Step[M]:
        """Judge one message; release it or hold it if it is new. Never raises on a message, whatever it holds."""
        own = valid(number)
        before = None if previous is None else valid(previous)
        if own is None or (before is None) != (previous is None):
            return Step(rules.BAD_NUMBER, [])
        answer = self._judge(before, own)
        if answer.verdict is not Verdict.FIRST:
            return Step(answer, [])
        if self._floor is None:
            self._floor, self._last = own, just_below(own) if before is None else before
        insort(self._numbers, own)
        self._held[own] = before, message
        events = list(self._advance(now_ms))
        if len(self._numbers) > self.settings.buffer_max:
            events += self._advance(now_ms, self._numbers[0])
        return Step(answer, events)

    def tick(self, now_ms: int) -> list[Event[M]]:
        """Do what is due. A late tick requests once and waits ``retry_ms``: no gap is given up without a request.

        A due time is never later than the settings allow from now on: a clock that was ahead costs one wait.
        """
        events: list[Event[M]] = []
        settings = self.settings
        latest_ms = now_ms + settings.longest_ms
        if self._gap is not None and self._gap.due_ms > latest_ms:
            self._gap = self._gap._replace(due_ms=latest_ms)
        while (gap := self._gap) is not None and gap.due_ms <= now_ms:
            if gap.asked_count < settings.requests_max:
                due_ms = now_ms + settings.retry_ms
                self._gap = gap._replace(due_ms=due_ms, asked_count=gap.asked_count + 1, asked_ms=now_ms)
                return [*events, Resend(now_ms, gap.first, gap.last)]
            events += self._give_up_gap(gap, now_ms)
        return events

    def answered(self, now_ms: int, resend: Resend | None = None) -> list[Event[M]]:
        """A resend is complete; after the last request, give up what is still missing. ``resend``: the request."""
        gap = self._gap
        if gap is None or gap.asked_count < max(1, self.settings.requests_max):
            return []
        if resend not in (None, Resend(gap.asked_ms, gap.first, gap.last)):
            return []
        return list(self._give_up_gap(gap, now_ms))

    def give_up(self, now_ms: int, to: Number | None = None) -> list[Event[M]]:
        """Give up what is missing before the held messages up to ``to`` (None: all of them)."""
        reach = valid(to) if to is not None else (self._numbers or [START])[-1]
        if reach is None:
            raise Misuse(f"to is {to!r}, must be a number (timestamp, sequence)", to=to)
        return list(self._advance(now_ms, reach))

    def _judge(self, previous: Number | None, number: Number) -> Answer:
        if previous is not None and previous >= number:
            return rules.BAD_NUMBERING
        if self._floor is None:
            return rules.NEW_CHAIN
        if number <= self._last:
            if number < self._floor:
                return rules.BEHIND_HEAD if previous is None else rules.BELOW_FLOOR
            if self.forgotten is not None and number <= self.forgotten:
                return rules.FORGOTTEN
            if number in self._given_up:
                return rules.GIVEN_UP
            return rules.BEHIND_HEAD if previous is None and number not in (self._floor, self._last) else rules.SEEN
        if number in self._held:
            return rules.SEEN
        i = bisect_left(self._numbers, number)
        below = self._numbers[i - 1] if i else self._last
        if previous is not None and previous < below:
            return rules.GAP_MISMATCH
        if i < len(self._numbers):
            claimed, _ = self._held[self._numbers[i]]
            return rules.GAP_MISMATCH if claimed is not None and claimed < number else rules.FILLS_GAP
        if previous is None:
            return rules.AHEAD
        return rules.IN_ORDER if previous == below else rules.OPENS_GAP

    def _advance(self, now_ms: int, give_up_to: Number | None = None) -> Iterator[Event[M]]:
        """Release what is next, and up to ``give_up_to`` also what is not; then open a new gap if one is left."""
        while self._numbers:
            number = self._numbers[0]
            previous, message = self._held[number]
            if previous is None:
                if len(self._numbers) > 1:  # it may skip what is known to be missing, which must not become REPEAT
                    self._abandon(just_below(number))
            elif previous != self._last:
                if give_up_to is None or number > give_up_to:
                    break
                self._abandon(previous)
                yield Unfillable(now_ms, self._last, number)
            del self._numbers[0], self._held[number]
            self._last = number
            yield Released(now_ms, number, message)
            if self._gap is not None and self._gap.upper == number:
                self._gap = None
                yield GapResolved(now_ms)
        if self._numbers and self._gap is None:
            upper = self._numbers[0]
            previous = self._held[upper][0]
            assert previous is not None, "without a previous number it would have been next"
            self._gap = OpenGap(just_above(self._last), previous, upper, now_ms + self.settings.wait_ms)
            yield GapFound(now_ms, self._last, upper)

    def _give_up_gap(self, gap: OpenGap, now_ms: int) -> Iterator[Event[M]]:
        return self._advance(now_ms, gap.upper if self.settings.strategy == "full" else self._numbers[-1])

    def _abandon(self, upper: Number) -> None:
        if self._last < upper:
            self._given_up.append(self._last, upper)
        if len(self._given_up) > self.settings.gap_count_max:
            self.forgotten = self._given_up.drop_lowest()

    @property
    def state(self) -> OrderedState:
        """The state as one value; `snapshot` is the same as bytes."""
        messages = [(number, *self._held[number]) for number in self._numbers]
        return OrderedState(
            self.settings, self._floor, self._last, self.forgotten, self.given_up(), messages, self._gap
        )

    @classmethod
    def resumed(cls, state: OrderedState) -> OrderedChain[Any]:
        """A chain that continues exactly from this state."""
        chain: OrderedChain[Any] = cls(**state.settings._asdict())
        chain._floor, chain._last, chain.forgotten = state.floor, state.last, state.forgotten
        chain._given_up, chain._gap = Gaps(state.given_up), state.gap
        chain._numbers = [number for number, _, _ in state.held]
        chain._held = {number: (previous, message) for number, previous, message in state.held}
        return chain

    def snapshot(self) -> bytes:
        """The state with settings and held messages, which must be bytes or JSON values, else `Misuse`."""
        return encode(self.state)

    @classmethod
    def restore(cls, data: bytes) -> OrderedChain[Any]:
        """A chain that continues exactly from ``snapshot``; foreign bytes raise `BadInput`."""
        return cls.resumed(decode(data))

    def __str__(self) -> str:
        if self._floor is None:
            return "nothing yet"
        if not self._numbers:
            return f"out to {text(self._last)}"
        missing = f"({text(self._last)}, {text(self._held[self._numbers[0]][0] or START)}] missing"
        return f"out to {text(self._last)}, {len(self._numbers)} held, {missing}"

    def __repr__(self) -> str:
        return f"<OrderedChain {self}>"
