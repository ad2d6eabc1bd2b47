"""The verdict: what onefold says of every message, exactly once.

Four verdicts and no fifth. Each comes with a *reason*, a short lower-case name from the closed set of the engine that
gave it. The books are kept in these words: ``in = first + repeat + unsure + reject``.
"""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """Does this message count?

    >>> Verdict.FIRST, str(Verdict.REPEAT)
    (<Verdict.FIRST: 'FIRST'>, 'REPEAT')
    """

    FIRST = "FIRST"
    """Count it: it was not seen before."""
    REPEAT = "REPEAT"
    """Do not count it: it is known."""
    UNSURE = "UNSURE"
    """Cannot be known: its range was forgotten, it names no previous message, or its first copy is being written."""
    REJECT = "REJECT"
    """Malformed, inconsistent or hostile. It changed nothing."""


class Answer(NamedTuple):
    """A verdict and its reason; what every engine's ``judge`` returns.

    >>> verdict, reason = Answer(Verdict.FIRST, "in_order")
    >>> str(Answer(Verdict.REPEAT, "seen"))
    'REPEAT seen'
    """

    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.verdict} {self.reason}"
