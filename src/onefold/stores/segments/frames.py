"""Records as bytes: frames that can be told from anything else, and only in their own place.

    magic "OFL1" | length | offset | time | epoch | group | count | kind | 0 | name length | crc
    | name (UTF-8) | sequences | lengths | digests | payloads

Little endian, 42 bytes of header. A frame holds up to 128 records that follow each other in the log and have kind,
producer and epoch in common: what a producer sends together costs one header. ``length`` counts the whole frame, so it
is never 0 and zeros are never a record. ``group`` is how many bytes of its commit group lie before this frame: a frame
that begins another group than a bad one before it proves that the bad one was once durable, because a group is written
only after the one before it was synced.

The crc covers all before the payloads and begins with a number made of the place (segment and position). So a frame
that was copied elsewhere, by a stray block of an old file or as the payload of a message, is no frame there. A digest
is the crc32 of its payload.

Cost: half a microsecond to encode a record of many, one to decode it; payloads are copied once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise, repeat
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

from onefold.errors import Misuse
from onefold.ports import Draft, Record

MAGIC = b"OFL1"
HEADER = struct.Struct("<4sIQqIIHBBHI")
HEADER_BYTES = HEADER.size
NAME_BYTES_MAX = 0xFFFF
COUNT_MAX = 128
"""Records in a frame: damage to one byte costs no more than so many."""
TABLE_BYTES = 16
"""A record's sequence, length and digest."""
HEAD_BYTES_MAX = HEADER_BYTES + NAME_BYTES_MAX + TABLE_BYTES * COUNT_MAX
"""All that the crc of a frame covers, at most."""

_HEAD = struct.Struct("<4sIQqIIHBBH")  # all but the crc
_CRC = struct.Struct("<I")
_MASK = 0xFFFF_FFFF
_SPREAD = 0x9E37_79B1  # 2^32 / golden ratio: neighbouring segments get seeds far apart
_UNKEEPABLE = (struct.error, ValueError, TypeError, AttributeError)

_record: Callable[[Iterable[object]], Record] = partial(tuple.__new__, Record)  # as Record(*columns), but faster


class Header(NamedTuple):
    """What the header of a frame says, once its crc is right."""

    length: int
    offset: int
    group: int


def encode(drafts: Sequence[Draft], offset: int, time_ms: int, base: int, position: int) -> bytes:
    """One commit group, as it is to be written at ``position`` of the segment that begins with offset ``base``.

    A draft that cannot be kept as it is, or whose digest is not that of its payload, is `Misuse`.
    """
    parts: list[bytes] = []
    seed, group = _seed(base, position), 0
    for run in _runs(drafts):
        try:
            size = _frame(run, offset, time_ms, seed, group, parts)
        except _UNKEEPABLE as error:
            raise Misuse(f"a log cannot keep {_culprit(run)[:5]!r}: {error}", drafts=len(drafts)) from error
        offset, group = offset + len(run), group + size
    return b"".join(parts)


def _runs(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Neighbours that share a frame."""
    for _, same in groupby(drafts, itemgetter(0, 1, 3)):  # kind, producer, epoch
        run = list(same)
        yield from (run[i : i + COUNT_MAX] for i in range(0, len(run), COUNT_MAX))


def _frame(run: Sequence[Draft], offset: int, time_ms: int, seed: int, group: int, parts: list[bytes]) -> int:
    """Add a frame to the parts; how long it is."""
    _, _, sequences, _, digests, payloads = zip(*run, strict=True)
    if tuple(map(crc32, payloads)) != digests:
        raise ValueError("its digest is not the crc32 of its payload")
    kind, producer, _, epoch, _, _ = run[0]
    name, count = producer.encode(), len(run)
    lengths = list(map(len, payloads))
    table = name + struct.pack(f"<{count}q{2 * count}I", *sequences, *lengths, *digests)
    size = HEADER_BYTES + len(table) + sum(lengths)
    head = _HEAD.pack(MAGIC, size, offset, time_ms, epoch, group, count, kind, 0, len(name))
    parts += (head, _CRC.pack(crc32(table, crc32(head, seed + group & _MASK))), table, *payloads)
    return size


def _culprit(run: Sequence[Draft]) -> Draft:
    """The first draft that cannot be kept, not even alone."""
    for draft in run:
        try:
            _frame([draft], 0, 0, 0, 0, [])
        except _UNKEEPABLE:
            return draft
    return run[0]


def decode(data: bytes, position: int, base: int, offset: int, end: int) -> tuple[list[Record], int]:
    """The records from ``offset`` up to ``end`` that ``data`` begins with, and the index in it where they stop.

    ``data`` lies at ``position`` of the segment ``base``. It stops early at a frame that is not whole or not right; why
    is for the caller to find out, with `header` and with more data.
    """
    records: list[Record] = []
    at, seed = 0, _seed(base, position)
    while offset < end:
        found = _whole(data, at, seed)
        if found is None or found.offset != offset or found.length != _add(records, data, found):
            break
        at, offset = found.stop, offset + found.length
    if offset > end:
        del records[end - offset :]
    return records, at


class _Found(NamedTuple):
    """A frame whose header, name and table are right."""

    stop: int
    table: int
    payloads: int
    length: int
    """In records."""
    offset: int
    group: int
    same: tuple[int, int, str, int]
    """Time, kind, producer and epoch of all its records."""


def _whole(data: bytes, at: int, seed: int) -> _Found | None:
    """The frame at index ``at``, if it is all there; its payloads are not looked at."""
    found = _read(data, at, seed)
    return None if found is None or found.stop > len(data) else found


def _read(data: bytes, at: int, seed: int) -> _Found | None:
    start = at + HEADER_BYTES
    if len(data) < start:
        return None
    magic, length, offset, time_ms, epoch, group, count, kind, _, name_length, crc = HEADER.unpack_from(data, at)
    table = start + name_length
    payloads = table + TABLE_BYTES * count
    if magic != MAGIC or not 0 < count <= COUNT_MAX or at + length < payloads or payloads > len(data):
        return None
    if crc32(data[start:payloads], crc32(data[at : start - 4], seed + at & _MASK)) != crc:
        return None
    same = time_ms, kind, data[start:table].decode(), epoch
    return _Found(at + length, table, payloads, count, offset, group, same)


def _add(records: list[Record], data: bytes, found: _Found) -> int:
    """Add the records of a frame; how many, which is none if a payload is not right."""
    count = found.length
    numbers = struct.unpack_from(f"<{count}q{2 * count}I", data, found.table)
    sequences, lengths, digests = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    borders = list(accumulate(lengths, initial=found.payloads))
    payloads = [data[begin:stop] for begin, stop in pairwise(borders)]
    if borders[-1] != found.stop or tuple(map(crc32, payloads)) != digests:
        return 0
    time_ms, kind, producer, epoch = found.same
    offsets = range(found.offset, found.offset + count)
    same = repeat(time_ms), repeat(kind), repeat(producer), repeat(epoch)
    records += map(_record, zip(offsets, *same[:3], sequences, same[3], digests, payloads, strict=False))
    return count


def header(data: bytes, at: int, position: int, base: int) -> Header | None:
    """The header at index ``at`` of ``data`` (which lies at ``position``), if it is one; payloads are not looked at."""
    found = _read(data, at, _seed(base, position))
    return None if found is None else Header(found.stop - at, found.offset, found.group)


def search(data: bytes, at: int, position: int, base: int) -> tuple[int, Header] | None:
    """The next true header at or after index ``at`` of ``data``, and where it is."""
    while (at := data.find(MAGIC, at)) >= 0:
        found = header(data, at, position, base)
        if found is not None:
            return at, found
        at += 1
    return None


def _seed(base: int, position: int) -> int:
    return base * _SPREAD + position & _MASK
