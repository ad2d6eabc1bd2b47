"""What an ordered chain tells its owner to do or to know, in the order in which it happened.

Every event carries the time it was given. In `GapFound` and `Unfillable` both ends are messages that are there and
what is missing lies between them; in `Resend` both ends belong to the range that is asked for.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

from onefold.engines.chains.number import Number
from onefold.verdict import Answer

M = TypeVar("M")


class Released(NamedTuple, Generic[M]):
    """The next message in order: act on it."""

    at_ms: int
    number: Number
    message: M


class GapFound(NamedTuple):
    """Something is missing between the last released and the lowest held message; the wait begins."""

    at_ms: int
    lower: Number
    upper: Number


class Resend(NamedTuple):
    """Ask somebody who may have them for the messages from ``first`` to ``last``, both inclusive."""

    at_ms: int
    first: Number
    last: Number


class Unfillable(NamedTuple):
    """What is missing between the two was given up; the order goes on at ``upper``."""

    at_ms: int
    lower: Number
    upper: Number


class GapResolved(NamedTuple):
    """The gap that was found last is over: its upper end has just been released."""

    at_ms: int


Event: TypeAlias = Released[M] | GapFound | Resend | Unfillable | GapResolved


class Step(NamedTuple, Generic[M]):
    """What came of one message: its verdict, and what happened because of it."""

    answer: Answer
    events: list[Event[M]]
