"""Going through a segment frame by frame, in large reads, and judging the place where it stops.

A frame that is not right is either the torn end of a group that was being written when the power went, or damage to
what was once durable. Both look alike; what lies behind them does not. A group is written only after the one before it
was synced, so a true header behind the bad place that belongs to a later group proves that the bad place was durable.
"""

from __future__ import annotations

from collections.abc import Iterator

from onefold.ports import Record
from onefold.stores.segments.files import Files
from onefold.stores.segments.frames import HEAD_BYTES_MAX, Header, decode, header, search

CHUNK_BYTES = 256 * 1024
"""Read at once: a thousand records or more, so that opening the file does not matter, and no more memory than that."""

END = 2**63
"""An offset that no log reaches: as far as there are frames."""


def walk(
    files: Files, path: str, base: int, position: int, offset: int, end: int
) -> Iterator[tuple[list[Record], int]]:
    """The records from ``offset``, which lies at ``position``, up to ``end``: some at a time, with the position behind.

    Stops before ``end`` where the segment ends or where a frame is not right: the caller sees how far it came.
    """
    want = CHUNK_BYTES
    while offset < end:
        data = files.read(path, position, want)
        records, at = decode(data, position, base, offset, end)
        if records:
            position += at
            offset += len(records)
            yield records, position
            if at == len(data) < want:
                return
            want = CHUNK_BYTES
            continue
        head = header(data, 0, position, base)
        if head is None or head.length <= len(data) or len(data) < want:
            return
        want = head.length


def headers(files: Files, path: str, base: int, position: int) -> Iterator[tuple[int, Header]]:
    """All true headers at or behind a position, with their positions, whatever lies between them."""
    while True:
        data = files.read(path, position, CHUNK_BYTES + HEAD_BYTES_MAX)
        at = 0
        while (found := search(data, at, position, base)) is not None and found[0] < CHUNK_BYTES:
            yield position + found[0], found[1]
            at = found[0] + 1
        if len(data) <= CHUNK_BYTES:
            return
        position += CHUNK_BYTES


def was_durable(files: Files, path: str, base: int, position: int) -> bool:
    """Is there proof, behind it, that a bad place was once durable?"""
    return any(at - head.group > position for at, head in headers(files, path, base, position + 1))
