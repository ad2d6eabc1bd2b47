"""Records in memory: right among the threads of one process, gone with it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from onefold.engines.negentropy import Window
from onefold.engines.negentropy.index import Index
from onefold.engines.negentropy.records import Record
from onefold.errors import Misuse
from onefold.stores.records import by_id, check_id_size, columns_of, flags


class MemorySnapshot(Window):
    """All records of one moment. It shares the columns of the set, which never change: nothing is copied."""

    def close(self) -> None:
        """Nothing to let go of."""


class MemoryRecords:
    """`Records` in a dict, with an index beside it.

    >>> from onefold.engines.negentropy import record
    >>> records = MemoryRecords()
    >>> records.add([record(5, b"1 coffee"), record(5, b"1 coffee"), record(6, b"2 teas")])
    [True, False, True]
    >>> len(records.snapshot())
    2
    """

    def __init__(self, id_size: int = 32) -> None:
        """Begin with nothing."""
        self.id_size = check_id_size(id_size)
        self._kept: dict[bytes, Record] = {}
        self._index = Index(id_size, columns_of([], id_size))
        self._lock = Lock()
        self._open = True

    def __len__(self) -> int:
        self._check_open()
        return len(self._kept)

    def add(self, records: Sequence[Record]) -> list[bool]:
        """Keep these, all or none; for each whether it is new."""
        told = by_id(records, self.id_size)
        with self._lock:
            self._check_open()
            new = {id: record for id, record in told.items() if id not in self._kept}
            self._index = self._index.added(columns_of(new.values(), self.id_size))
            self._kept.update(new)
        return flags(records, new)

    def remove(self, ids: Sequence[bytes]) -> int:
        """Forget these; how many there were."""
        with self._lock:
            self._check_open()
            gone = {id: self._kept[id] for id in ids if id in self._kept}
            columns = columns_of(gone.values(), self.id_size)
            self._index = self._index.removed(columns.timestamps, columns.ids)
            for id in gone:
                del self._kept[id]
        return len(gone)

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, in the same order; None for one that is not there."""
        with self._lock:
            self._check_open()
            return [self._kept.get(id) for id in ids]

    def snapshot(self) -> MemorySnapshot:
        """The records as they are now."""
        with self._lock:
            self._check_open()
            return MemorySnapshot(self._index)

    def close(self) -> None:
        """Let go of it; what it held is gone with it, but for snapshots that are still open."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("these records were closed")
