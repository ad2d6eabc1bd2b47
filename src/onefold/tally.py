"""The tally: the books of a run, and the law that they balance.

Two counts are kept apart on purpose. `arrive` counts messages where they come in (the transport), `judge` counts
verdicts where they are given. So a message that is lost or answered twice between the two places shows when ``check()``
compares them: ``in = first + repeat + unsure + reject``. `pending` is the number of messages in between; at rest it
must be 0. Tallies of parts add up to the tally of the whole, so workers, batches and days can be merged in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from onefold.errors import BadInput, Misuse, OnefoldError
from onefold.verdict import Answer, Verdict


class BooksDoNotBalance(OnefoldError):
    """A message was lost or counted twice inside onefold: the one error that must never be seen."""


class Tally:
    """Counts per verdict and reason, and a separate count of what came in.

    >>> tally = Tally()
    >>> tally.arrive(4)
    >>> tally.judge(Answer(Verdict.FIRST, "in_order"), 3)
    >>> str(tally), tally.pending
    ('4 in != 3 first + 0 repeat + 0 unsure + 0 reject', 1)
    >>> tally.judge(Answer(Verdict.REPEAT, "seen"))
    >>> str(tally)
    '4 in = 3 first + 1 repeat + 0 unsure + 0 reject'
    >>> (tally + tally).received
    8
    """

    __slots__ = ("_counts", "received")

    def __init__(self, received: int = 0, counts: Mapping[Answer, int] | None = None) -> None:
        if received < 0 or any(n < 0 for n in (counts or {}).values()):
            raise BadInput(f"a tally cannot hold a negative count: received {received}, counts {counts}")
        self.received = received
        self._counts = Counter(counts or {})

    def arrive(self, n: int = 1) -> None:
        """Count ``n`` messages that came in; call it where they arrive, before they are judged."""
        self.received += _increment(n)

    def judge(self, answer: Answer, n: int = 1) -> None:
        """Count ``n`` messages with this answer; call it where they are judged."""
        self._counts[answer] += _increment(n)

    def count(self, verdict: Verdict, reason: str | None = None) -> int:
        """How many messages have this verdict, or this verdict and reason."""
        return sum(n for a, n in self._counts.items() if a.verdict == verdict and reason in (None, a.reason))

    @property
    def judged(self) -> int:
        """How many messages have a verdict."""
        return sum(self._counts.values())

    @property
    def pending(self) -> int:
        """How many messages that arrived have no verdict yet; negative if there are more verdicts than messages."""
        return self.received - self.judged

    @property
    def balanced(self) -> bool:
        """Whether every message that arrived has one verdict; at rest it must."""
        return not self.pending

    def check(self) -> Tally:
        """Return self if the law holds; raise `BooksDoNotBalance` with both sides if not."""
        if not self.balanced:
            raise BooksDoNotBalance(f"the books do not balance: {self}", received=self.received, judged=self.judged)
        return self

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.received + other.received, Counter(self._counts) + Counter(other._counts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self.received == other.received and +self._counts == +other._counts

    __hash__ = None  # type: ignore[assignment]  # a tally grows: it cannot be a key

    def __iter__(self) -> Iterator[tuple[Answer, int]]:
        """Answers with their counts, by verdict in the order of the law, then the largest first."""
        order = list(Verdict)
        lines = [(a, n) for a, n in self._counts.items() if n]
        return iter(sorted(lines, key=lambda line: (order.index(line[0].verdict), -line[1], line[0].reason)))

    def __str__(self) -> str:
        sides = " + ".join(f"{self.count(v):,} {v.lower()}" for v in Verdict)
        return f"{self.received:,} in {'=' if self.balanced else '!='} {sides}"

    def __repr__(self) -> str:
        return f"<Tally {self}>"

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON, with the sums per verdict."""
        totals = {v.lower(): self.count(v) for v in Verdict}
        lines = [{"verdict": str(a.verdict), "reason": a.reason, "count": n} for a, n in self]
        return {"in": self.received, **totals, "balanced": self.balanced, "reasons": lines}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        """Read the form of `to_dict`; `BadInput` if the sums contradict the lines."""
        try:
            lines = [(Answer(Verdict(x["verdict"]), str(x["reason"])), _count(x["count"])) for x in data["reasons"]]
            tally = cls(_count(data["in"]), dict(lines))
            claimed = {v: _count(data[v.lower()]) for v in Verdict}
            balanced = data["balanced"]
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"not a tally: {error!r} in {data!r}") from error
        if len(lines) > len(dict(lines)):
            raise BadInput("this tally lies: it has two lines for one reason", lines=lines)
        for verdict, claim in claimed.items():
            if claim != tally.count(verdict):
                raise BadInput(
                    f"this tally lies: it claims {claim} {verdict}, its lines add up to {tally.count(verdict)}"
                )
        if balanced is not tally.balanced:
            raise BadInput(f"this tally lies: it claims balanced = {balanced!r} of {tally}", balanced=balanced)
        return tally


def _increment(n: int) -> int:
    """``n`` if it may be added; `Misuse` if it is negative."""
    if n < 0:
        raise Misuse(f"n is {n}, must not be negative: what is in the books stays there", n=n)
    return n


def _count(value: object) -> int:
    """The value if it is an int; a float would be rounded."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
