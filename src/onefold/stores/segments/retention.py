"""Removing the oldest segments: which, and how, so that a power cut leaves no hole.

Only whole segments go, from the front, and never the one that is being written. The files of the segments are removed
one after the other, and each removal is synced before the next: were two under way at once, the second could be on the
disk without the first, and the log would begin with a gap. Where the log begins is written down before anything is
removed (see `folder`): a segment that is missing although nobody removed it is a loss that can be told.

Times come from clocks, and a clock may have been far ahead. Records are stored in the order in which they came, so none
is younger than one behind it: a segment is as old as the youngest thing in it, or the beginning of one behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from onefold.stores.segments.files import Files
from onefold.stores.segments.folder import INDEX, SEGMENT, name, write_start
from onefold.stores.segments.reader import LogReader


def beyond(
    reader: LogReader, bases: Sequence[int], sizes: Sequence[int], bytes_max: int | None, before_ms: int | None
) -> int:
    """The offset below which a log is larger than it should be, or older."""
    total, limit = sum(sizes), bases[0]
    for i, (base, following, size) in enumerate(zip(bases, bases[1:], sizes, strict=False)):
        old = before_ms is not None and _latest(reader, base, bases[i + 1 :], before_ms) < before_ms
        large = bytes_max is not None and total > bytes_max
        if not old and not large:
            break
        total, limit = total - size, following
    return limit


def _latest(reader: LogReader, base: int, following: Sequence[int], enough_ms: int) -> int:
    """When the newest record of a segment was stored at the latest; looked for until it is below ``enough_ms``."""
    end = reader.end
    latest, newest = reader.latest(base), min((r.time_ms for r in reader.read(end - 1, end)), default=0)
    for begin in following:
        if latest < enough_ms or latest <= newest or begin >= end:
            break
        latest = min(latest, next(reader.read(begin, begin + 1)).time_ms)
    return min(latest, newest)


def remove(files: Files, folder: str, bases: list[int], limit: int) -> None:
    """Remove the segments all of whose offsets are below a limit, and take them off the list of bases."""
    kept = max((base for base in bases if base <= limit), default=bases[0])
    if kept > bases[0]:
        write_start(files, folder, kept)
    while len(bases) > 1 and bases[1] <= limit:
        files.sync_folder(folder)  # the removal before this one, also if that was in a call that failed
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{name(bases[0], INDEX)}")
        files.unlink(f"{folder}/{name(bases[0], SEGMENT)}")
        del bases[0]
    files.sync_folder(folder)
