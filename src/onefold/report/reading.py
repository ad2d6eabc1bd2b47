"""Reading a run's document with care: it is a file that anybody can edit, and an old one lacks what newer ones have.

A `Part` is a value together with its place, so that what is wrong with it is told as ``figures.lags.count: is "x", must
be a whole number``. What is missing is an empty part, and so is everything below it: a section asks for what it
needs and is left out if that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from onefold.errors import BadInput
from onefold.report.text import FOREIGN_MAX, foreign

ENTRIES_MAX: Final = 100_000
"""How many entries of a list or table are read: far more than a run ever writes."""

NUMBER_MAX: Final = 2**63
"""What no number of a run reaches; NaN and infinity do not either."""


@dataclass(frozen=True, slots=True)
class Part:
    """A value of a document, and where it stands.

    >>> document = Part({"figures": {"lags": {"count": 5}}})
    >>> document["figures"]["lags"]["count"].whole()
    5
    >>> bool(document["figures"]["timeline"]["bins"])
    False
    >>> document["figures"]["lags"].whole()
    Traceback (most recent call last):
    onefold.errors.BadInput: figures.lags: is {'count': 5}, must be a whole number
    """

    value: Any
    where: str = ""

    def __bool__(self) -> bool:
        """Whether it is there; an empty list is."""
        return self.value is not None

    def __getitem__(self, name: str) -> Part:
        """A part of a table."""
        if self.value is None:
            return self
        return Part(self._table().get(name), f"{self.where}.{name}" if self.where else name)

    def fields(self, most: int = ENTRIES_MAX) -> Iterator[tuple[str, Part]]:
        """The first entries of a table, with their names."""
        for name in list(self._table() if self else {})[:most]:
            yield str(name), self[name]

    def each(self, most: int = ENTRIES_MAX) -> list[Part]:
        """The first entries of a list."""
        if not self:
            return []
        if not isinstance(self.value, list | tuple):
            self.wrong("a list")
        return [Part(value, f"{self.where}[{i}]") for i, value in enumerate(self.value[:most])]

    def row(self, length: int) -> list[Part]:
        """The entries of a list that has so many."""
        entries = self.each()
        return entries if len(entries) == length else self.wrong(f"a list of {length}")

    def whole(self) -> int:
        """A whole number of 64 bits."""
        if type(self.value) is not int or abs(self.value) >= NUMBER_MAX:
            self.wrong("a whole number")
        return int(self.value)

    def count(self) -> int:
        """A whole number that is not negative; 0 if it is missing."""
        if not self:
            return 0
        return number if (number := self.whole()) >= 0 else self.wrong("0 or more")

    def real(self) -> float:
        """A number that is not negative."""
        if type(self.value) not in (int, float) or not 0 <= self.value < NUMBER_MAX:
            self.wrong("a number, 0 or more")
        return float(self.value)

    def counts(self) -> tuple[int, int, int, int]:
        """Four counts, in the order of the law: first, repeat, unsure, reject."""
        counts = [part.count() for part in self.each()]
        if len(counts) != 4:
            self.wrong("four counts: first, repeat, unsure, reject")
        return counts[0], counts[1], counts[2], counts[3]

    def text(self, most: int = FOREIGN_MAX) -> str:
        """As a short line of harmless text; what is no text as JSON writes it."""
        return plain(
            self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False, default=str), most
        )

    def wrong(self, wanted: str) -> NoReturn:
        """Refuse it, with its place."""
        shown = foreign(repr(self.value)).plain
        raise BadInput(f"{foreign(self.where or 'the document').plain}: is {shown}, must be {wanted}", where=self.where)

    def _table(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else self.wrong("a table")


def plain(value: object, most: int = FOREIGN_MAX) -> str:
    """A foreign value as one short line: control signs and those that turn the direction of writing become "?".

    >>> plain("a\\u202eb\\x00c" + "x" * 100, 12)
    'a?b?cxxxx...'
    """
    return foreign(value, most).plain


def named(key: Part, most: int = FOREIGN_MAX) -> list[tuple[str, str]]:
    """The columns of a row with their values, all of it harmless text."""
    return [(plain(name, most), part.text(most)) for name, part in key.fields(COLUMNS_MAX)]


COLUMNS_MAX: Final = 40
"""How many columns of a row are shown."""
