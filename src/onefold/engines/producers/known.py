"""What the log holds of one producer, in a few numbers.

Two memories share one shape. `Highest` is the published one: the highest stored sequence, and all below it counts as
stored. `Gapped` also knows what lies below and was *not* stored:

    stored 5..6, 9..12      head 12, gaps (-1, 4] (6, 8]

``unseen(low, high)`` lists the parts of a range that are not known to be stored, ``store(low, high)`` adds a run that
the log holds. What lies at or below ``forgotten`` may have been stored, and nobody knows: it is listed as unseen, and
the caller must look at ``forgotten`` before writing it.
Beside it lie the epoch, the time of the last record, and the digests of the last few sequences, 12 bytes each.

Cost: O(1) at the head, O(log gaps) below it; about 0.5 kB per producer with 16 digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias

from onefold.engines.intervals import Gaps
from onefold.engines.producers.answers import BEHIND_HIGHEST, SEEN, Part, Pushed

DIGEST: Final = Struct("<qI")
_MASK: Final = 0xFFFF_FFFF


@lru_cache(maxsize=64)
def _rows(count: int) -> Struct:
    return Struct("<" + "qI" * count)


def _packed(low: int, digests: Sequence[int]) -> bytes:
    if len(digests) == 1:
        return DIGEST.pack(low, digests[0] & _MASK)
    row = [0] * (2 * len(digests))
    row[::2] = range(low, low + len(digests))
    row[1::2] = [digest & _MASK for digest in digests]
    return _rows(len(digests)).pack(*row)


class Highest:
    """A producer of which the highest stored sequence is remembered.

    >>> p = Highest()
    >>> p.store(5, 6)
    >>> p.unseen(4, 6), p.unseen(5, 9)
    ((), ((7, 9),))
    """

    __slots__ = ("digests", "epoch", "forgotten", "head", "time_ms")

    holes = False
    repeat: Pushed = BEHIND_HIGHEST

    def __init__(self, forgotten: int = -1) -> None:
        self.head = -1
        self.forgotten = forgotten
        self.epoch = 0
        self.time_ms = 0
        self.digests = b""

    def unseen(self, low: int, high: int) -> tuple[Part, ...]:
        """The parts of ``low..high`` that are not known to be stored, ascending."""
        head, forgotten = self.head, self.forgotten
        if low > head:
            return ((low, high),)
        if low <= forgotten:  # it may have been stored by somebody who was forgotten, or left out: nobody knows
            return ((low, min(high, forgotten)), *(((head + 1, high),) if high > head else ()))
        return ((head + 1, high),) if high > head else ()

    def store(self, low: int, high: int, gap_count_max: int = 0) -> None:
        """The log holds ``low..high``."""
        if high > self.head:
            self.head = high

    def gaps(self) -> list[Part]:
        """Every ``(lower, upper]`` below the head that is known not to be stored, ascending."""
        return []

    def note(self, low: int, digests: Sequence[int], count_max: int) -> None:
        """Remember the digests of a run that begins at ``low``; the newest ``count_max`` stay."""
        if count_max:
            newest = digests[-count_max:]
            packed = _packed(low + len(digests) - len(newest), newest)
            self.digests = (self.digests + packed)[-DIGEST.size * count_max :]

    def contradicts(self, low: int, high: int, digests: Sequence[int]) -> bool:
        """Is one of ``low..high`` known to be stored with another digest?"""
        known = dict(DIGEST.iter_unpack(self.digests))  # of a sequence that is in the log twice, the newest counts
        return any(low <= at <= high and digest != digests[at - low] & _MASK for at, digest in known.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Highest) and self._state() == other._state()

    __hash__ = None  # type: ignore[assignment] # it changes

    def _state(self) -> tuple[object, ...]:
        return self.repeat, self.head, self.forgotten, self.epoch, self.time_ms, self.digests, self.gaps()

    def __str__(self) -> str:
        return str(self.head)


class Gapped(Highest):
    """A producer of which every stored sequence is remembered, by the gaps between them.

    >>> p = Gapped()
    >>> p.store(5, 6, 10); p.store(9, 12, 10); print(p)
    (-1, 4] (6, 8] 12
    >>> p.unseen(6, 14)
    ((7, 8), (13, 14))
    """

    __slots__ = ("_gaps",)

    holes = True
    repeat = SEEN

    def __init__(self, forgotten: int = -1) -> None:
        super().__init__(forgotten)
        self._gaps: Gaps[int] | None = None  # most producers have none

    def unseen(self, low: int, high: int) -> tuple[Part, ...]:
        """The parts of ``low..high`` that are not known to be stored; what is forgotten is among them."""
        edge = max(self.head, self.forgotten)
        if low > edge:
            return ((low, high),)
        parts = [(low, min(high, self.forgotten))] if low <= self.forgotten else []
        parts.extend(self._missing(low, high))
        if high > edge:
            parts.append((edge + 1, high))
        return tuple(parts)

    def _missing(self, low: int, high: int) -> Iterator[Part]:
        gaps = self._gaps
        if gaps is None:
            return
        for i in range(max(gaps.locate(low), 0), len(gaps)):
            start, end = max(gaps.lowers[i] + 1, low), min(gaps.uppers[i], high)
            if start > high:
                return
            if start <= end:
                yield start, end

    def store(self, low: int, high: int, gap_count_max: int = 0) -> None:
        """The log holds ``low..high``: as one by one, where only the first can divide a gap or open one."""
        if low > self.head:
            edge = max(self.head, self.forgotten)
            if low - 1 > edge:
                self._gaps = self._gaps or Gaps()
                self._gaps.append(edge, low - 1)
                self._forget(gap_count_max)
        elif self._gaps is not None:
            self._fill(low, low)
            self._forget(gap_count_max)
            self._fill(low + 1, high)
        if high > self.head:
            self.head = high

    def _fill(self, low: int, high: int) -> None:
        for start, end in list(self._missing(low, high)):
            assert self._gaps is not None
            self._gaps.fill(self._gaps.locate(start), start - 1, end)

    def _forget(self, gap_count_max: int) -> None:
        assert self._gaps is not None
        while len(self._gaps) > gap_count_max:
            self.forgotten = self._gaps.drop_lowest()

    def gaps(self) -> list[Part]:
        """Every ``(lower, upper]`` below the head that is known not to be stored, ascending."""
        return [] if self._gaps is None else list(self._gaps)

    def reset_gaps(self, gaps: list[Part]) -> None:
        """Take these gaps instead: a snapshot is being restored."""
        self._gaps = Gaps(gaps) if gaps else None

    def __str__(self) -> str:
        forgot = [f"forgot {self.forgotten}"] if self.forgotten >= 0 else []
        return " ".join([*forgot, *(f"({lower}, {upper}]" for lower, upper in self.gaps()), str(self.head)])


Known: TypeAlias = Highest | Gapped
