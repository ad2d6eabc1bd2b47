"""The verdict: every message gets exactly one of four.

Each comes with a *reason*, a short lower-case name from the closed set of its engine. The books count verdicts:
``in = first + repeat + unsure + reject``.
"""

from enum import StrEnum
from typing import NamedTuple, Self


class Verdict(StrEnum):
    """Does this message count?

    >>> Verdict.FIRST, str(Verdict.REPEAT)
    (<Verdict.FIRST: 'FIRST'>, 'REPEAT')
    """

    FIRST = "FIRST"
    """Count it: it was not seen before."""
    REPEAT = "REPEAT"
    """Do not count it: it was seen before."""
    UNSURE = "UNSURE"
    """Cannot be known: its range was forgotten, it names no previous message, or its first copy is being written."""
    REJECT = "REJECT"
    """Malformed, inconsistent or hostile. It changed nothing."""


class _Pair(NamedTuple):
    verdict: Verdict
    reason: str


class Answer(_Pair):
    """A verdict and its reason; what every engine's ``judge`` returns.

    `retry` says whether the sender should try again: true if the outcome will be known later or the message was not
    taken (in flight, write failed, coordinator down), false if it never will be known (forgotten, late). Two answers
    are equal if verdict and reason are.

    >>> verdict, reason = Answer(Verdict.FIRST, "in_order")
    >>> str(Answer(Verdict.REPEAT, "seen"))
    'REPEAT seen'
    >>> Answer(Verdict.UNSURE, "in_flight", retry=True).retry, Answer(Verdict.UNSURE, "forgotten").retry
    (True, False)
    """

    retry: bool = False

    def __new__(cls, verdict: Verdict, reason: str, retry: bool = False) -> Self:
        answer = super().__new__(cls, verdict, reason)
        answer.retry = retry
        return answer

    def __str__(self) -> str:
        return f"{self.verdict} {self.reason}"
