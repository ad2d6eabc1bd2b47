"""The shapes of numpy columns that this engine works on, and a few moves over many rows at once.

An id is a row of bytes, filled up with zeros to whole *limbs* of 8 bytes. Read as big-endian numbers the limbs of two
rows compare as the ids do; read as little-endian numbers they are the digits of the sum that v1 fingerprints. Indices
are positions in a sorted set; a range of items is a pair of them, lower included and upper excluded.
"""

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stamps: TypeAlias = NDArray[np.uint64]
Rows: TypeAlias = NDArray[np.uint8]  # (n, width)
Limbs: TypeAlias = NDArray[np.uint64]  # (n, width / 8)
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

FEW: Final = 64  # ranges of a message: up to here a plain loop over them is faster than numpy


def width_of(id_size: int) -> int:
    """How many bytes a row has: whole limbs.

    >>> width_of(32), width_of(20)
    (32, 24)
    """
    return -(-id_size // 8) * 8


def padded(ids: Rows, width: int) -> Rows:
    """The same ids, zeros behind them, in one piece of memory."""
    if ids.shape[1] == width:
        return np.ascontiguousarray(ids)
    rows = np.zeros((len(ids), width), dtype=np.uint8)
    rows[:, : ids.shape[1]] = ids
    return rows


def whole(rows: Rows) -> NDArray[Any]:
    """Each row as one value: rows are then moved in one piece, which is much faster than byte by byte."""
    return rows.view(f"V{rows.shape[1]}")[:, 0]


def texts(rows: Rows) -> NDArray[Any]:
    """One comparable value per row. Trailing zeros do not count, and rows of one width are equal without them too."""
    return rows.view(f"S{rows.shape[1]}")[:, 0]


def blobs(rows: Rows) -> list[bytes]:
    """The rows as bytes, zeros included.

    >>> blobs(np.array([[1, 0], [2, 3]], dtype=np.uint8))
    [b'\\x01\\x00', b'\\x02\\x03']
    """
    values: list[bytes] = whole(rows).tolist()
    return values


def flagged(flags: NDArray[Any]) -> Ints:
    """Where flags are set, or numbers are not 0: ``np.flatnonzero`` at a fifth of its cost for a short column.

    >>> flagged(np.array([True, False, True])).tolist()
    [0, 2]
    """
    return flags.nonzero()[0]


def spans(lower: Ints, upper: Ints) -> Ints:
    """All indices of all the ranges, one after another.

    >>> spans(np.array([3, 10]), np.array([5, 11])).tolist()
    [3, 4, 10]
    """
    return spans_by(lower, upper - lower, 1)


def spans_by(starts: Ints, counts: Ints, step: int) -> Ints:
    """Where the members of many rows of things stand, if they are so many bytes apart.

    >>> spans_by(np.array([3, 100]), np.array([2, 1]), 32).tolist()
    [3, 35, 100]
    """
    before = counts.cumsum() - counts
    return np.asarray(np.arange(int(counts.sum())) * step + np.repeat(starts - before * step, counts), dtype=np.int64)


def windows(buffer: Any, size: int) -> NDArray[Any]:
    """Every run of so many bytes in a buffer, by where it begins: many can be read or written at once.

    >>> windows(b"abcde", 2)[np.array([0, 3])].tolist()
    [b'ab', b'de']
    """
    return np.ndarray((max(0, len(buffer) - size + 1),), dtype=f"V{size}", buffer=buffer, strides=(1,))


def firsts_differ(left: Rows, right: Rows) -> Ints:
    """For each pair of rows the first byte in which they differ; 0 for equal rows, which have none."""
    return np.asarray((left != right).argmax(axis=1), dtype=np.int64)
