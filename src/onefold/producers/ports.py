"""The append-only log that a topic needs, as a protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from onefold.producers.rules import SequencesSnapshot


class Draft(NamedTuple):
    """A record to be stored. The log adds its offset and its time."""

    kind: int
    producer: str
    sequence: int
    epoch: int
    digest: int
    """``zlib.crc32(payload)``, computed where the payload came in; a log refuses a draft whose digest is wrong."""
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

    One writer. Besides records it keeps snapshots of the memory built from them; retention removes records from the
    front, but never one that the oldest kept snapshot still needs.
    """

    @property
    def start(self) -> int:
        """The lowest offset that is still kept."""

    @property
    def end(self) -> int:
        """The offset of the next record: all below it are durable."""

    def append(self, drafts: Sequence[Draft], time_ms: int) -> int:
        """Store drafts durably as one commit group; returns the first offset. After `StoreFailed` none is kept."""

    def read(self, start: int, end: int | None = None) -> Iterator[LogRecord]:
        """The durable records of ``[start, end)`` (None: all now); `Misuse` if one is removed or not written yet."""

    def save(self, snapshot: SequencesSnapshot) -> None:
        """Keep a snapshot of the memory after the records below its position; durable when it returns."""

    def load(self) -> SequencesSnapshot | None:
        """The newest undamaged snapshot; None if there is none."""

    def retain(self, *, bytes: int | None = None, before_ms: int | None = None) -> int:
        """Remove the oldest records while the log exceeds ``bytes``, and those older than ``before_ms``.

        A record counts as at least as old as any later one, so that a clock that was once ahead keeps nothing. Records
        that a kept snapshot needs stay, and more may stay (a log on disk removes whole files). Returns the new
        ``start``.
        """

    def close(self) -> None:
        """Close the log and release its lock."""
