"""Records come into leaves, and go out of them: the leaves that they belong to are read, changed and written anew.

A record belongs to the first leaf that ends with it or above it; one above all to the last leaf. Leaves that are
neighbours and change together are one stretch, which is cut anew: so leaves that grew are split, leaves that shrank are
joined, and one that lost its last record is gone. A small leaf between two that do not change stays small.

Cost: each leaf that changes is read and written, 20 to 40 kB. Of these leaves no more are in memory at once than
``items_max`` records.
"""

from __future__ import annotations

import sqlite3

import numpy as np

from onefold.engines.negentropy.arrays import Ints, blobs
from onefold.engines.negentropy.columns import Columns
from onefold.errors import Damaged
from onefold.stores.sqlite.record_file import read_leaves
from onefold.stores.sqlite.record_leaves import Directory, Lines, cut, sizes_of


class Leaves:
    """The leaves of a file, in a transaction that changes them."""

    def __init__(self, db: sqlite3.Connection, directory: Directory, leaf_items: int, items_max: int) -> None:
        self._db = db
        self._directory = directory
        self._leaf_items = leaf_items
        self._items_max = items_max
        self._number = int(directory.lines["number"].max(initial=0)) + 1

    def added(self, records: Columns) -> Directory:
        """The directory with records that are new, in order."""
        if len(self._directory):
            return self._changed(records, 1)
        nowhere = np.zeros(0, dtype=np.int64)
        sizes, places = sizes_of(np.array([len(records)]), self._leaf_items)
        return self._directory.replaced(nowhere, places, self._write(nowhere, records, sizes))

    def removed(self, records: Columns) -> Directory:
        """The directory without records that are there, in order."""
        return self._changed(records, -1)

    def _changed(self, records: Columns, sign: int) -> Directory:
        directory = self._directory
        owner = np.minimum(directory.lasts.find(records.bounds()), len(directory) - 1)
        touched = np.unique(owner)
        places, lines = [], []
        for group in directory.groups(touched, self._items_max):
            own = slice(*np.searchsorted(owner, (group[0], group[-1] + 1)))
            old = directory.loaded(group, read_leaves(self._db, directory, group)).records
            mine = Columns(records.timestamps[own], records.ids[own])
            stretches = np.flatnonzero(np.diff(group, prepend=-2) > 1)
            moved = np.bincount(np.searchsorted(group, owner[own]), minlength=len(group))
            totals = np.add.reduceat(directory.counts[group] + sign * moved, stretches)
            sizes, source = sizes_of(totals, self._leaf_items)
            lines.append(self._write(group, old.merged(mine) if sign > 0 else _without(old, mine), sizes))
            places.append(group[stretches][source])
        return directory.replaced(touched, np.concatenate(places), np.concatenate(lines))

    def _write(self, gone: Ints, records: Columns, sizes: Ints) -> Lines:
        """Records as leaves of these sizes, in the place of leaves that are gone."""
        numbers = [(number,) for number in self._directory.lines["number"][gone].tolist()]
        self._db.executemany("delete from record_leaves where number = ?", numbers)
        self._db.executemany("delete from record_blocks where number = ?", numbers)
        lines, blocks = cut(records, sizes, self._directory.id_size, self._number)
        self._number += len(lines)
        new, heads = lines["number"].tolist(), blobs(lines.view(np.uint8).reshape(len(lines), lines.itemsize))
        self._db.executemany("insert into record_leaves values (?, ?)", zip(new, heads, strict=True))
        self._db.executemany("insert into record_blocks values (?, ?)", zip(new, blocks, strict=True))
        return lines


def _without(records: Columns, gone: Columns) -> Columns:
    places = records.places(gone.timestamps, gone.ids)
    if len(lost := np.flatnonzero(places < 0)):
        id = gone.ids[lost[0]].tobytes().hex()
        raise Damaged(f"the record with id {id} is in no leaf", id=id)
    return records.without(places)
