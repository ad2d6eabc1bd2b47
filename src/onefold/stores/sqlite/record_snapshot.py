"""A set of records in a file as a session sees it: the directory in memory, and a few leaves at a time.

The directory answers what it can. What lies inside leaves is answered by reading these, all that a question is about at
once, one behind another: as leaves are in order, so are their records, and one look by numpy serves all of them.

``expect`` reads the leaves of a message before its questions come. ``cuts`` moves a cut that is inside a leaf that was
not read to an edge of that leaf. So to split large ranges nothing is read, and on the way to a difference a few leaves.

Memory: the directory, which all snapshots of a version share; and the leaves of the current message, up to
``items_max`` records of 40 bytes, with totals of 32 (for ids of 32 bytes). A question about more is answered part by
part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onefold.engines.negentropy.arrays import Flags, Ints, Limbs, Rows, Stamps, spans
from onefold.engines.negentropy.bound import Bounds
from onefold.engines.negentropy.columns import LITTLE, Columns
from onefold.engines.negentropy.fingerprint import minus, plus
from onefold.errors import Misuse
from onefold.stores.sqlite.record_file import Beside, read_leaves
from onefold.stores.sqlite.record_leaves import Directory, Loaded


class SqliteSnapshot:
    """A `Snapshot` of a file: a read transaction. While it is open SQLite keeps what it sees, so close it."""

    def __init__(self, file: Beside, directory: Directory, items_max: int) -> None:
        """Take over a connection that stands still, at the version of the directory."""
        self.id_size = directory.id_size
        self._file: Beside | None = file
        self._directory = directory
        self._items_max = items_max
        self._loaded = directory.loaded(np.zeros(0, dtype=np.int64), [])

    def __len__(self) -> int:
        return int(self._directory.starts[-1])

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Read the leaves that bounds are inside of, and those of whole ranges; forget the others."""
        below, begun = self._directory.around(upper)
        before = np.concatenate((np.zeros(1, dtype=np.int64), below[:-1]))[: len(below)][whole]
        leaves = np.union1d(below[below < begun], spans(before, np.maximum(before, begun[whole])))
        if self._directory.counts[leaves].sum() <= self._items_max:
            self._loaded = self._read(leaves)

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks where their leaf is at hand; else the nearer edge of it, if it lies inside the range."""
        leaves, starts = self._directory.leaf_of(ranks), self._directory.starts
        left, right = starts[leaves], starts[leaves + 1]
        left_inside, right_inside = left > lower, right < upper
        nearer_right = right_inside & (~left_inside | (right - ranks < ranks - left))
        edges = np.where(nearer_right, right, np.where(left_inside, left, ranks))
        return np.where(np.isin(leaves, self._loaded.leaves), ranks, edges)

    def find(self, bounds: Bounds) -> Ints:
        """For each bound, how many records lie below it."""
        below, begun = self._directory.around(bounds)
        ranks = self._directory.starts[below]
        inside = np.flatnonzero(below < begun)
        for which, begins, records in self._parts(below[inside]):
            ranks[inside[which]] += records.find(bounds.take(inside[which])) - begins
        return ranks

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        """For each range the sum of its ids."""
        leaves, offsets = self._placed(np.concatenate((lower, upper)))
        totals = self._directory.sums[leaves]
        for which, begins, places, records in self._inside(leaves, offsets, np.flatnonzero(offsets)):
            totals[which] = plus(totals[which], minus(records.sums[places], records.sums[begins]))
        return minus(totals[len(lower) :], totals[: len(lower)])

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        """For each range the exclusive or of its ids."""
        leaves, offsets = self._placed(np.concatenate((lower, upper)))
        totals = self._directory.xors[leaves]
        for which, begins, places, records in self._inside(leaves, offsets, np.flatnonzero(offsets)):
            totals[which] ^= records.xors[places] ^ records.xors[begins]
        limbs = totals[len(lower) :] ^ totals[: len(lower)]
        return limbs.astype(LITTLE).view(np.uint8).reshape(len(limbs), 8 * limbs.shape[1])

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        """The records at these ranks; those at the edges of leaves are in the directory."""
        leaves, offsets = self._placed(ranks)
        firsts, lasts = self._directory.firsts, self._directory.lasts
        stamps, ids = firsts.timestamps[leaves], firsts.ids[leaves]
        behind = self._directory.counts[leaves] - 1 - offsets
        last = np.flatnonzero(behind == 0)
        stamps[last], ids[last] = lasts.timestamps[leaves[last]], lasts.ids[leaves[last]]
        for which, _, places, records in self._inside(leaves, offsets, np.flatnonzero((offsets > 0) & (behind > 0))):
            stamps[which], ids[which] = records.timestamps[places], records.ids[places]
        return stamps, ids

    def snapshot(self) -> SqliteSnapshot:
        """Itself: it stands still."""
        return self

    def close(self) -> None:
        """End the transaction, and let go of what was read."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._loaded = self._directory.loaded(np.zeros(0, dtype=np.int64), [])

    def _placed(self, ranks: Ints) -> tuple[Ints, Ints]:
        """The leaf of each rank, and how many records of the leaf lie below it."""
        leaves = self._directory.leaf_of(ranks)
        return leaves, ranks - self._directory.starts[leaves]

    def _inside(self, leaves: Ints, offsets: Ints, which: Ints) -> Iterator[tuple[Ints, Ints, Ints, Columns]]:
        """Of some ranks, part by part: which of them, where their leaves begin, where they are, among which records."""
        for some, begins, records in self._parts(leaves[which]):
            here = which[some]
            yield here, begins, begins + offsets[here], records

    def _parts(self, leaves: Ints) -> Iterator[tuple[Ints, Ints, Columns]]:
        """For places in these leaves, part by part: which of them, where their leaves begin, among which records."""
        for group in self._directory.groups(np.unique(leaves), self._items_max):
            loaded = self._load(group)
            which = np.flatnonzero((leaves >= group[0]) & (leaves <= group[-1]))
            yield which, loaded.begins[np.searchsorted(loaded.leaves, leaves[which])], loaded.records

    def _load(self, leaves: Ints) -> Loaded:
        """These leaves, and with them as many of those that were read before as there may be."""
        if not np.isin(leaves, self._loaded.leaves).all():
            more = np.union1d(self._loaded.leaves, leaves)
            few = self._directory.counts[more].sum() <= self._items_max
            self._loaded = self._read(more if few else leaves)
        return self._loaded

    def _read(self, leaves: Ints) -> Loaded:
        """Ascending leaves; those that are at hand are not read again."""
        if self._file is None:
            raise Misuse("this snapshot was closed")
        missing = np.setdiff1d(leaves, self._loaded.leaves)
        with self._file.reading() as db:
            found = dict(zip(missing.tolist(), read_leaves(db, self._directory, missing), strict=True))
        parts = [found.get(leaf) or self._loaded.part(leaf) for leaf in leaves.tolist()]
        return self._directory.loaded(leaves, parts)
