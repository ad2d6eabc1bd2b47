"""The port to an append-only log: what a topic asks of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from onefold.producers.rules import SequencesSnapshot


class Draft(NamedTuple):
    """A record to be stored: what it is and whose. The log adds its place and its time."""

    kind: int
    producer: str
    sequence: int
    epoch: int
    digest: int
    """``zlib.crc32(payload)``, made where the payload came in; a log refuses a draft whose two do not agree."""
    payload: bytes


class LogRecord(NamedTuple):
    offset: int
    time_ms: int
    kind: int
    producer: str
    sequence: int
    epoch: int
    digest: int
    payload: bytes


class AppendLog(Protocol):
    """An append-only log: offsets 0, 1, 2, ... without holes.

    One writer. Besides records it keeps snapshots of what was made of them; retention may remove records from the
    front, but never one that the older of the kept snapshots still needs.
    """

    @property
    def start(self) -> int:
        """The first offset that is still kept."""

    @property
    def end(self) -> int:
        """The offset that the next record gets: all below it are durable."""

    def append(self, drafts: Sequence[Draft], time_ms: int) -> int:
        """Store drafts as one commit group; the first offset. Durable when it returns; `StoreFailed`: none is kept."""

    def read(self, start: int, end: int | None = None) -> Iterator[LogRecord]:
        """The durable records of ``[start, end)`` (None: all now); one removed or not written yet is `Misuse`."""

    def save(self, snapshot: SequencesSnapshot) -> None:
        """Keep a snapshot of what the records below its position made; durable when it returns."""

    def load(self) -> SequencesSnapshot | None:
        """The newest snapshot that is whole; None if there never was one."""

    def retain(self, *, bytes: int | None = None, before_ms: int | None = None) -> int:
        """Remove old records: while all together have more than ``bytes``, or older than ``before_ms``.

        No record is younger than one behind it, whatever its own time says: a clock that was once ahead keeps nothing.
        What the kept snapshots need stays, and more may stay (a log on disk removes whole files). Returns the new
        ``start``.
        """

    def close(self) -> None:
        """Let go of the log; it can be opened again by anybody."""
