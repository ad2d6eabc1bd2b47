"""Look up 128-bit names in sorted columns: the first half finds a name, the second half confirms it."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64s: TypeAlias = NDArray[np.int64]


def find(names: Int64s, checks: Int64s, name: Int64s, check: Int64s) -> Int64s:
    """The positions of these names in ``names``, ``checks``, sorted by first half; -1 for those that are not there.

    >>> find(np.array([3, 5, 5]), np.array([0, 1, 2]), np.array([5, 4, 5]), np.array([2, 0, 9])).tolist()
    [2, -1, -1]
    """
    if not len(names):
        return np.full(len(name), -1, np.int64)
    at = np.minimum(np.searchsorted(names, name), len(names) - 1)
    places = np.where(names[at] == name, at, -1).astype(np.int64)
    for i in np.flatnonzero((places >= 0) & (checks[at] != check)):  # two names, one first half
        same = range(int(places[i]), int(np.searchsorted(names, name[i], "right")))
        places[i] = next((j for j in same if checks[j] == check[i]), -1)
    return places
