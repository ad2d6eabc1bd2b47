"""What is shown of one pipeline or server: plain, bounded, and of foreign texts nothing but text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from onefold.tally import Tally
from onefold.verdict import Verdict

Kind: TypeAlias = Literal["stream", "run", "server"]
State: TypeAlias = Literal["waiting", "running", "complete", "stopped", "trouble"]
Unit: TypeAlias = Literal["count", "bytes", "seconds", "rate"]
Fact: TypeAlias = tuple[str, float, Unit]
Counts: TypeAlias = tuple[int, int, int, int]
"""In the order of the law: first, repeat, unsure, reject."""

TEXT_CHARS_MAX: Final = 120
POINTS_MAX: Final = 150
REJECTS_MAX: Final = 6
WHOLE_MAX: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Rows of one reason that were rejected; of some, one of them."""

    reason: str
    count: int
    where: str = ""
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A pipeline or a server as it stands."""

    name: str
    kind: Kind
    state: State
    told: str
    """What it is doing, or what is wrong."""
    at_ms: int | None = None
    """When it was last heard from."""
    counts: Counts | None = None
    balanced: bool = True
    points: tuple[tuple[int, int, int, int, int], ...] = ()
    """The time, and the counts up to then."""
    facts: tuple[Fact, ...] = ()
    rejects: tuple[Rejected, ...] = ()
    """The newest first."""
    report: bool = False
    """Whether there is a page of it."""
    explains: bool = False
    """Whether it can be asked about a message."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rejects = [{name: getattr(each, name) for name in each.__slots__} for each in self.rejects]
        return {**{name: getattr(self, name) for name in self.__slots__}, "rejects": rejects}


class Watched(Protocol):
    """Something that can be looked at again and again, from one thread at a time."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def every_s(self) -> float:
        """How often to look."""
        ...

    def look(self) -> View:
        """How it stands now; what is wrong with it is in the view, not raised."""
        ...


def shown(value: object, most: int = TEXT_CHARS_MAX) -> str:
    """A foreign value as a short line of text.

    >>> shown("a\\x00b\\u202ec" + "d" * 200, 10)
    'a?b?cdd...'
    """
    words = str(value)
    words = words if len(words) <= most else words[: most - 3] + "..."
    return "".join(sign if sign.isprintable() else "?" for sign in words)


def finite(value: Any) -> float:
    """A number that JSON can carry; ValueError for all else.

    >>> finite(5)
    5.0
    >>> finite(float("nan"))
    Traceback (most recent call last):
    ValueError: nan is no figure
    """
    if type(value) not in (int, float) or not -(2.0**63) < value < 2.0**63:
        raise ValueError(f"{shown(value)} is no figure")
    return float(value)


def whole(value: Any) -> int:
    """A whole number that a browser can hold, such as a time; ValueError for all else."""
    if type(value) is not int or not -WHOLE_MAX < value < WHOLE_MAX:
        raise ValueError(f"{shown(value)} is no whole number below {WHOLE_MAX:,}")
    return value


def counts_of(tally: Tally) -> Counts:
    """Its sums."""
    first, repeat, unsure, reject = (whole(tally.count(verdict)) for verdict in Verdict)
    return first, repeat, unsure, reject
