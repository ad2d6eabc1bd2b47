"""A log that rots: cut at every byte and flipped in every byte, and never believed.

A small log with several segments and groups is damaged in one place, opened and read. It may say `Damaged` and name the
place, or give what was appended up to some record, exactly; it may never give a record that nobody wrote. And it may
stop early in silence only where nothing can tell damage from a group that was torn by a power cut: within the last
group, or where the last file itself ends early; and only when the writer's mark is gone too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from zlib import crc32

from onefold.errors import Damaged
from onefold.producers.log.disk import MARK, SEGMENT
from onefold.producers.log.frames import header
from onefold.producers.log.segments import SegmentLog
from onefold.producers.ports import Draft, LogRecord
from onefold.producers.rules import SequencesSnapshot
from tests.lib.disk import SimDisk

FOLDER = "/log"
BITS = tuple(1 << bit for bit in range(8))
PATTERNS = (*BITS, 0xFF)
"""Each bit of a byte alone, and all of them."""


class Place(NamedTuple):
    """Where a record lies."""

    path: str
    position: int
    stop: int
    offset: int


@dataclass(frozen=True)
class Specimen:
    """A whole log: its files, and what is in them."""

    contents: dict[str, bytes]
    records: list[LogRecord]
    places: list[Place]
    last_group: int
    """The offset that the last group begins with."""


@dataclass
class Outcomes:
    """How often which answer was given."""

    refused: int = 0
    cut: int = 0

    @property
    def total(self) -> int:
        """How many damaged logs were opened."""
        return self.refused + self.cut


def specimen(
    seed: int = 0, groups: int = 12, segment_bytes: int = 600, *, mark: bool = True, apart: bool = False
) -> Specimen:
    """A log of some groups in a few segments, closed in good order; without ``mark`` it cannot tell how far it went.

    Of the three records of a group two share a frame, or none if they are to be ``apart``.
    """
    rng, disk = Random(seed), SimDisk()
    log = SegmentLog(FOLDER, segment_bytes=segment_bytes, files=disk)
    last_group = 0
    for number in range(groups):
        payloads = [rng.randbytes(rng.randrange(28)) for _ in range(3)]
        last_group = log.append(
            [Draft(0, f"p{n if apart else n // 2}", n, 1, crc32(p), p) for n, p in enumerate(payloads)], number
        )
    records = list(log.read(0))
    log.close()
    contents = {path: data for path, data in disk.contents().items() if mark or not path.endswith(MARK)}
    return Specimen(contents, records, list(_places(contents)), last_group)


def with_snapshots(whole: Specimen, positions: Sequence[int]) -> Specimen:
    """The same log with snapshots at some positions."""
    disk = SimDisk(whole.contents)
    log = SegmentLog(FOLDER, files=disk)
    for position in positions:
        log.save(SequencesSnapshot(position, b"state at %d" % position))
    log.close()
    return Specimen(disk.contents(), whole.records, whole.places, whole.last_group)


def _places(contents: dict[str, bytes]) -> Iterator[Place]:
    for path in sorted(path for path in contents if path.endswith(SEGMENT)):
        position, base = 0, int(os.path.basename(path).removesuffix(SEGMENT))
        while position < len(contents[path]):
            frame = header(contents[path], position, 0, base)
            assert frame is not None
            yield Place(path, position, position + frame.length, frame.offset)
            position += frame.length


def flip_every_byte(whole: Specimen, patterns: Sequence[int] = PATTERNS) -> Outcomes:
    """Change every byte of every segment by every pattern."""
    outcomes = Outcomes()
    for path, data in whole.contents.items():
        for at in range(len(data) if path.endswith(SEGMENT) else 0):
            for pattern in patterns:
                damaged = data[:at] + bytes([data[at] ^ pattern]) + data[at + 1 :]
                _open(whole, path, damaged, at, outcomes)
    return outcomes


def cut_every_byte(whole: Specimen) -> Outcomes:
    """Cut every segment at every byte."""
    outcomes = Outcomes()
    for path, data in whole.contents.items():
        for at in range(len(data) if path.endswith(SEGMENT) else 0):
            _open(whole, path, data[:at], at, outcomes)
    return outcomes


def _open(whole: Specimen, path: str, data: bytes, at: int, outcomes: Outcomes) -> None:
    """Open one damaged log, read it, and judge what it said."""
    hit = next(place for place in whole.places if place.path == path and place.stop > at)
    try:
        log = SegmentLog(FOLDER, files=SimDisk({**whole.contents, path: data}))
        found = list(log.read(log.start))
    except Damaged as error:
        told = (error.values["path"], error.values["position"], error.values["offset"])
        assert told == (path, hit.position, hit.offset), f"byte {at} of {path} is damaged, not {told}"
        outcomes.refused += 1
        return
    assert found == whole.records[: len(found)], f"byte {at} of {path} is damaged, and a wrong record is accepted"
    assert hit.offset == len(found), f"byte {at} of {path} is damaged: {len(found)} records, not {hit.offset}"
    assert f"{FOLDER}/{MARK}" not in whole.contents, "acknowledged records are missing in silence"
    # Of a file that ends early nothing is left that could tell; of a changed byte, the groups behind it tell.
    short = len(data) == at and path == whole.places[-1].path
    assert hit.offset >= whole.last_group or short, f"byte {at} of {path}: a silent cut before the last group"
    outcomes.cut += 1
