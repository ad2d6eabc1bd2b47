"""Damage: rows that must be refused, each for exactly one reason.

A damaged row began as a copy of a true one, perhaps of one that was lost; then one thing about it was spoilt. It is
never the delivery of its message. Spoilt is only what the reason names: a row with a negative number has a whole key
and a believable arrival, so a judge that looks in another order still gives the same reason. The one exception is a
timestamp of 2^43 or more, which is also far in the future; there ``number_out_of_range`` comes first, for such a number
cannot even be compared once it is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from onefold.engines.chains.number import SEQUENCE_BITS
from onefold.sim.messages import KEY, NUMBER, PREVIOUS, Bools, Ints
from onefold.sim.part import Part

FAR_MS: Final = 7_258_118_400_000
"""2200-01-01. Not later: past the year 2248 a number is out of range before it is a jump too far."""
YEAR_MS: Final = 31_536_000_000

TEXTS: Final = ("abc", "12.5", "")
"""Numbers that are none; the second is one that a careless cast makes 12."""


@dataclass(slots=True, eq=False)
class Rows:
    """The columns that damage can touch, in arrival order."""

    numbers: dict[str, Ints]
    nulls: dict[str, Bools]
    """Of the key and number columns."""
    texts: dict[str, tuple[Ints, npt.NDArray[np.str_]]] = field(default_factory=dict)
    """Per number column: the rows where it holds text, and which."""

    def has_previous(self, at: Ints) -> Bools:
        """Which of these rows name a previous number."""
        return ~self.nulls[PREVIOUS[0]][at]


def spoil(rng: np.random.Generator, rows: Rows, part: npt.NDArray[np.int8]) -> None:
    """Damage every row as its part says."""
    damaged = np.flatnonzero(part > Part.COPY)
    kinds = part[damaged]
    for kind, how in _HOW.items():
        how(rng, rows, damaged[kinds == kind])


def _null_key(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    column = rng.integers(0, len(KEY), len(at))
    for i, name in enumerate(KEY):
        rows.nulls[name][at[column == i]] = True


def _null_number(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    for name, where in _one_column_each(rng, rows, at):
        rows.nulls[name][where] = True


def _negative_number(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    for name, where in _one_column_each(rng, rows, at):
        rows.numbers[name][where] = -1 - rows.numbers[name][where]


def _text_number(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    for name, where in _one_column_each(rng, rows, at):
        rows.texts[name] = where, rng.choice(TEXTS, len(where))


def _one_column_each(rng: np.random.Generator, rows: Rows, at: Ints) -> Iterator[tuple[str, Ints]]:
    """One number column of each row; half a previous number is as bad as half a number."""
    column = rng.integers(0, np.where(rows.has_previous(at), 4, 2))
    for i, name in enumerate(NUMBER + PREVIOUS):
        yield name, at[column == i]


def _bad_previous(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    for number, previous in zip(NUMBER, PREVIOUS, strict=True):
        rows.numbers[previous][at] = rows.numbers[number][at] + rng.integers(0, 2, len(at))
        rows.nulls[previous][at] = False


def _far_future(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    rows.numbers["timestamp"][at] = FAR_MS + rng.integers(0, YEAR_MS, len(at))


def _poisoned(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    for number, previous in zip(NUMBER, PREVIOUS, strict=True):
        rows.numbers[previous][at] = rows.numbers[number][at]
        rows.nulls[previous][at] = False
    rows.numbers["sequence"][at] = 0
    _far_future(rng, rows, at)


def _big_sequence(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    rows.numbers["sequence"][at] = np.int64(1) << rng.integers(SEQUENCE_BITS, 63, len(at))


def _big_timestamp(rng: np.random.Generator, rows: Rows, at: Ints) -> None:
    rows.numbers["timestamp"][at] = np.int64(1) << rng.integers(63 - SEQUENCE_BITS, 63, len(at))


How: TypeAlias = Callable[[np.random.Generator, Rows, Ints], None]
_HOW: Final[Mapping[Part, How]] = {
    Part.POISONED: _poisoned,
    Part.NULL_KEY: _null_key,
    Part.NULL_NUMBER: _null_number,
    Part.NEGATIVE_NUMBER: _negative_number,
    Part.BAD_PREVIOUS: _bad_previous,
    Part.FAR_FUTURE: _far_future,
    Part.BIG_SEQUENCE: _big_sequence,
    Part.BIG_TIMESTAMP: _big_timestamp,
    Part.TEXT_NUMBER: _text_number,
}
