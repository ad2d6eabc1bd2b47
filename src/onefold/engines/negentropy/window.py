"""Some of the records: those from one time to another, as a set of their own.

Cost: two bounds are found once; then every verb is that of the whole set, with ranks shifted.
"""

from __future__ import annotations

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Rows, Stamps
from onefold.engines.negentropy.bound import INFINITY, Bounds
from onefold.engines.negentropy.items import Items
from onefold.errors import Misuse


class Window:
    """The records of a set with ``since <= timestamp <= until``.

    >>> from onefold.engines.negentropy import ItemSet
    >>> items = ItemSet.from_arrays([1, 2, 3], [b"a" * 32, b"b" * 32, b"c" * 32]); items.seal()
    >>> len(Window(items, since=2))
    2
    """

    def __init__(self, items: Items, since: int = 0, until: int = INFINITY - 1) -> None:
        if not 0 <= since <= until < INFINITY:
            raise Misuse(f"since is {since} and until {until}: must be 0 <= since <= until < 2^64 - 1")
        self._items = items.snapshot()
        self.id_size = items.id_size
        ends = Bounds.join([Bounds.one(stamp, b"", items.id_size) for stamp in (since, until + 1)])
        found = self._items.find(ends)
        self._start, self._end = int(found[0]), int(found[1])

    def __len__(self) -> int:
        return self._end - self._start

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        return np.asarray(np.clip(self._items.find(bounds), self._start, self._end) - self._start, dtype=np.int64)

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids."""
        return self._items.sums(lower + self._start, upper + self._start)

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        return self._items.xors(lower + self._start, upper + self._start)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks."""
        return self._items.rows(ranks + self._start)

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Pass on what will be asked about."""
        self._items.expect(upper, whole)

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """Where to cut, near these ranks."""
        start = self._start
        return np.asarray(self._items.cuts(ranks + start, lower + start, upper + start) - start, dtype=np.int64)

    def snapshot(self) -> Window:
        """Itself: it stands still."""
        return self
