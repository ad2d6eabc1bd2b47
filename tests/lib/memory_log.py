"""An append-only log in memory, with the behaviour of the one on disk but not its durability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from zlib import crc32

from onefold.errors import Misuse
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot


class MemoryLog:
    """An `AppendLog` in a list.

    >>> log = MemoryLog()
    >>> log.append([Draft(0, "p", 7, 0, crc32(b"hello"), b"hello")], time_ms=1)
    0
    >>> [record.payload for record in log.read(0)]
    [b'hello']
    """

    def __init__(self, *, snapshots_kept: int = 2) -> None:
        """Begin with nothing; ``snapshots_kept`` says, as on disk, how much retention has to leave."""
        if snapshots_kept < 1:
            raise Misuse(f"snapshots_kept is {snapshots_kept}, must be at least 1", snapshots_kept=snapshots_kept)
        self._records: list[LogRecord] = []
        self._snapshots: list[SequencesSnapshot] = []
        self._kept = snapshots_kept
        self._start = 0
        self._open = True

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._start + len(self._records)

    def append(self, drafts: Sequence[Draft], time_ms: int) -> int:
        self._check_open()
        first = self.end
        for draft in drafts:
            if crc32(draft.payload) != draft.digest:
                raise Misuse(f"digest {draft.digest} is not the crc32 of the payload", draft=draft)
        self._records += [LogRecord(first + n, time_ms, *draft) for n, draft in enumerate(drafts)]
        return first

    def read(self, start: int, end: int | None = None) -> Iterator[LogRecord]:
        self._check_open()
        end = self.end if end is None else end
        if not self._start <= start <= end <= self.end:
            raise Misuse(f"this log holds [{self._start}, {self.end}), not [{start}, {end})", start=start, end=end)
        return islice(self._records, start - self._start, end - self._start)

    def save(self, snapshot: SequencesSnapshot) -> None:
        self._check_open()
        if not self._start <= snapshot.position <= self.end:
            raise Misuse(
                f"a snapshot at {snapshot.position} of a log that holds [{self._start}, {self.end})",
                position=snapshot.position,
            )
        others = [other for other in self._snapshots if other.position != snapshot.position]
        self._snapshots = sorted([*others, snapshot])[-self._kept :]

    def load(self) -> SequencesSnapshot | None:
        self._check_open()
        return self._snapshots[-1] if self._snapshots else None

    def trim(self, before_offset: int) -> int:
        """Remove the records below an offset, as far as no kept snapshot needs them; return the new ``start``."""
        self._check_open()
        safe = self._snapshots[0].position if len(self._snapshots) == self._kept else 0
        limit = max(self._start, min(before_offset, safe))
        # A new list: whoever is reading the old one goes on reading it.
        self._records, self._start = self._records[limit - self._start :], limit
        return limit

    def retain(self, *, bytes: int | None = None, before_ms: int | None = None) -> int:
        self._check_open()
        total, limit = sum(len(record.payload) for record in self._records), self._start
        ages = [*accumulate((record.time_ms for record in reversed(self._records)), min)][::-1]
        for record, time_ms in zip(self._records, ages, strict=True):
            old = before_ms is not None and time_ms < before_ms
            if not (old or (bytes is not None and total > bytes)):
                break
            total, limit = total - len(record.payload), record.offset + 1
        return self.trim(limit)

    def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("this log was closed")
