"""A Spark table where a store of records is expected: others can find what they and the table lack of each other.

Ids alone: nobody is given the bytes of a row, and nothing is taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from onefold.engines.negentropy.records import Record
from onefold.errors import Misuse
from onefold.spark.peer_index import TableIndex
from onefold.spark.peer_items import ROWS_MAX, Indexed, TableItems
from onefold.spark.peer_rows import known

REFRESH_S: Final = 10.0
"""A session sees a table that was looked at so many seconds ago, or less."""


class TableRecords:
    """The rows of a table, as records without bodies; see `onefold.ports.records.Records`.

    The index is made with the first session, and brought up to date when another one opens, at most every
    ``refresh_s`` seconds. Sessions wait for each other there, and nowhere else.
    """

    id_size: Final = 32

    def __init__(
        self, index: TableIndex, *, refresh_s: float = REFRESH_S, rows_max: int = ROWS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._index, self._refresh_s, self._rows_max, self._clock = index, refresh_s, rows_max, clock
        self._lock = threading.Lock()
        self._indexed: Indexed | None = None
        self._looked = 0.0
        self._closed = False

    def __len__(self) -> int:
        return self._now().buckets.rows

    def add(self, records: Sequence[Record]) -> list[bool]:
        """`Misuse`: a table is not written to from here."""
        raise Misuse("a Spark table is read here, and not written: write to it with Spark")

    def remove(self, ids: Sequence[bytes]) -> int:
        """`Misuse`: a table is not written to from here."""
        raise Misuse("a Spark table is read here, and not written: write to it with Spark")

    def read(self, ids: Sequence[bytes]) -> list[Record | None]:
        """The records with these ids, without bodies, by one job; None for one that is not there."""
        if wrong := next((id for id in ids if len(id) != self.id_size), None):
            raise Misuse(f"an id has {len(wrong)} bytes, must have {self.id_size}")
        if not ids:
            return []
        now = self._now()
        times, rows = known(now, np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), self.id_size))
        found = {row.tobytes(): int(at) for at, row in zip(times, rows, strict=True)}
        return [Record(found[id], id) if id in found else None for id in ids]

    def snapshot(self) -> TableItems:
        """The rows as they are now, for one session."""
        return TableItems(self._now(), rows_max=self._rows_max)

    def close(self) -> None:
        """Let go of the table. May be called twice."""
        self._closed, self._indexed = True, None

    def _now(self) -> Indexed:
        with self._lock:
            if self._closed:
                raise Misuse("the table is closed")
            if self._indexed is None or self._clock() - self._looked >= self._refresh_s:
                self._indexed = self._index.refresh()
                self._looked = self._clock()
            return self._indexed
