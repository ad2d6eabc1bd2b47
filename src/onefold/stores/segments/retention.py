"""Removing the oldest segments: which, and how, so that a power cut leaves no hole.

Only whole segments go, from the front, and never the one that is being written. The files of the segments are removed
one after the other, and each removal is synced before the next: were two under way at once, the second could be on the
disk without the first, and the log would begin with a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from onefold.stores.segments.files import Files
from onefold.stores.segments.folder import INDEX, SEGMENT, name
from onefold.stores.segments.reader import LogReader


def beyond(
    reader: LogReader, bases: Sequence[int], sizes: Sequence[int], bytes_max: int | None, before_ms: int | None
) -> int:
    """The offset below which a log is larger than it should be, or older."""
    total, limit = sum(sizes), bases[0]
    for base, following, size in zip(bases, bases[1:], sizes, strict=False):
        old = before_ms is not None and reader.latest(base) < before_ms
        large = bytes_max is not None and total > bytes_max
        if not old and not large:
            break
        total, limit = total - size, following
    return limit


def remove(files: Files, folder: str, bases: list[int], limit: int) -> None:
    """Remove the segments all of whose offsets are below a limit, and take them off the list of bases."""
    while len(bases) > 1 and bases[1] <= limit:
        files.sync_folder(folder)  # the removal before this one, also if that was in a call that failed
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{name(bases[0], INDEX)}")
        files.unlink(f"{folder}/{name(bases[0], SEGMENT)}")
        del bases[0]
    files.sync_folder(folder)
