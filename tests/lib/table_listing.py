"""A table that is a list, and an index of it by the plainest means: row by row, with Python's own numbers."""

from hashlib import sha256
from typing import Any

import numpy as np

from onefold.reconcile import Bounds, ItemSet
from onefold.reconcile.items import Columns
from onefold.spark.peer.index import Buckets, Indexed
from onefold.spark.peer.naming import Naming, first_words


def sealed(pairs):
    items = ItemSet.from_arrays([stamp for stamp, _ in pairs], [id for _, id in pairs], 32)
    items.seal()
    return items


def bounds_of(pairs):
    return Bounds.join([Bounds.one(stamp, id, 32) for stamp, id in pairs])


def buckets_of(layout, pairs):
    """The sums of all buckets, row by row."""
    plain = Buckets.none(len(layout))
    rows: list[list[tuple[int, bytes]]] = [[] for _ in range(len(layout))]
    if pairs:
        places = layout.places(np.array([t for t, _ in pairs], np.uint64), first_words(bounds_of(pairs)))
        for place, pair in zip(places.tolist(), pairs, strict=True):
            rows[place].append(pair)
    columns = {name: getattr(plain, name).copy() for name in Buckets.__dataclass_fields__}
    for place, members in enumerate(rows):
        if not members:
            continue
        order = [int.from_bytes(id[:8]) if layout.cut[place] else t for t, id in members]
        ids = [id for _, id in members]
        total = sum(int.from_bytes(id, "little") for id in ids) % 2**256
        xor = 0
        for id in ids:
            xor ^= int.from_bytes(id, "little")
        for name, number in (("sums", total), ("xors", xor)):
            columns[name][place] = np.frombuffer(number.to_bytes(32, "little"), "<u8")
        columns["counts"][place], columns["low"][place], columns["high"][place] = len(ids), min(order), max(order)
        columns["first"][place] = np.frombuffer(ids[order.index(min(order))], np.uint8)
        columns["last"][place] = np.frombuffer(ids[order.index(max(order))], np.uint8)
    return Buckets(**columns)


class Listed(Indexed):
    """An index whose table is a list; it counts how often rows are read."""

    pairs: list[tuple[int, bytes]]
    reads: list[int]

    @staticmethod
    def of(layout, pairs):
        table: Any = None
        index = Listed("a list", table, Naming(), layout, buckets_of(layout, pairs))
        index.__dict__.update(pairs=pairs, reads=[])
        return index

    def read(self, wanted):
        self.reads.append(len(wanted))
        rows = np.array([np.frombuffer(id, np.uint8) for _, id in self.pairs]).reshape(-1, 32)
        times = np.array([t for t, _ in self.pairs], np.uint64)
        chosen = np.isin(self.layout.places(times, first_words(bounds_of(self.pairs))), wanted)
        return Columns.sorted_from(times[chosen], rows[chosen])


def id_of(number):
    return sha256(b"%d" % number).digest()
