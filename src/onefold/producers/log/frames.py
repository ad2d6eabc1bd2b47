"""The frames of a log: records as bytes that are valid only at their own position.

    magic "OFL1" | length | offset | time | epoch | group | count | kind | 0 | name length | crc
    | name (UTF-8) | sequences | lengths | digests | payloads

Little endian, 42 bytes of header. A frame holds up to 128 consecutive records of one kind, producer and epoch, so a
batch of a producer costs one header. ``length`` counts the whole frame, so it is never 0 and zeros are never a frame.
``group`` counts the bytes of the commit group before this frame. A frame of a later group after a bad frame proves that
the bad one was durable, because a group is written only after the one before it was synced.

The crc covers everything before the payloads, seeded with the place (segment and position). So a frame that was copied
elsewhere, as a stray block of an old file or as the payload of a message, is not valid there. A digest is the crc32 of
its payload.

A bad frame is either the torn end of a group that was being written when the power failed, or damage to durable data.
They differ only in what follows them: see `was_durable`.

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
from onefold.producers.log.disk import Files
from onefold.producers.ports import Draft, LogRecord

MAGIC = b"OFL1"
HEADER = struct.Struct("<4sIQqIIHBBHI")
HEADER_BYTES = HEADER.size
NAME_BYTES_MAX = 0xFFFF
COUNT_MAX = 128
"""Records in a frame at most: damage to one byte costs no more records."""
TABLE_BYTES = 16
"""A record's sequence, length and digest."""
HEAD_BYTES_MAX = HEADER_BYTES + NAME_BYTES_MAX + TABLE_BYTES * COUNT_MAX
"""Bytes that the crc of a frame covers at most."""

_HEAD = struct.Struct("<4sIQqIIHBBH")  # all but the crc
_CRC = struct.Struct("<I")
_TABLES = tuple(struct.Struct(f"<{n}q{2 * n}I") for n in range(COUNT_MAX + 1))  # sequences, lengths, digests
_MASK = 0xFFFF_FFFF
_SPREAD = 0x9E37_79B1  # 2^32 / golden ratio: neighbouring segments get seeds far apart
_INVALID = (struct.error, ValueError, TypeError, AttributeError)

_record: Callable[[Iterable[object]], LogRecord] = partial(tuple.__new__, LogRecord)  # LogRecord(*columns), but faster


class Header(NamedTuple):
    length: int
    offset: int
    group: int


def encode(drafts: Sequence[Draft], offset: int, time_ms: int, base: int, position: int) -> bytes:
    """One commit group for ``position`` of the segment ``base``; `Misuse` for an invalid draft."""
    parts: list[bytes] = []
    seed, group = _seed(base, position), 0
    runs: Iterable[Sequence[Draft]] = [drafts]
    if len(drafts) != 1:  # neighbours of one kind, producer and epoch share a frame
        same = (list(group) for _, group in groupby(drafts, itemgetter(0, 1, 3)))
        runs = (run[i : i + COUNT_MAX] for run in same for i in range(0, len(run), COUNT_MAX))
    for run in runs:
        try:
            size = _frame(run, offset, time_ms, seed, group, parts)
        except _INVALID as error:
            raise Misuse(f"a log cannot keep {_culprit(run)[:5]!r}: {error}", drafts=len(drafts)) from error
        offset, group = offset + len(run), group + size
    return b"".join(parts)


def _frame(run: Sequence[Draft], offset: int, time_ms: int, seed: int, group: int, parts: list[bytes]) -> int:
    kind, producer, sequence, epoch, digest, payload = run[0]
    name, count = producer.encode(), len(run)
    if count == 1:
        payloads: Sequence[bytes] = (payload,)
        right, room = crc32(payload) == digest, len(payload)
        table = name + _TABLES[1].pack(sequence, room, digest)
    else:
        _, _, sequences, _, digests, payloads = zip(*run, strict=True)
        lengths = list(map(len, payloads))
        right, room = tuple(map(crc32, payloads)) == digests, sum(lengths)
        table = name + _TABLES[count].pack(*sequences, *lengths, *digests)
    if not right:
        raise ValueError("its digest is not the crc32 of its payload")
    size = HEADER_BYTES + len(table) + room
    head = _HEAD.pack(MAGIC, size, offset, time_ms, epoch, group, count, kind, 0, len(name))
    parts += (head, _CRC.pack(crc32(table, crc32(head, seed + group & _MASK))), table, *payloads)
    return size


def _culprit(run: Sequence[Draft]) -> Draft:
    """The first draft that cannot be encoded."""
    for draft in run:
        try:
            _frame([draft], 0, 0, 0, 0, [])
        except _INVALID:
            return draft
    return run[0]


def decode(data: bytes, position: int, base: int, offset: int, end: int) -> tuple[list[LogRecord], int]:
    """The records from ``offset`` up to ``end`` that ``data`` begins with, and the index in it where they stop.

    ``data`` lies at ``position`` of the segment ``base``. It stops at an incomplete or bad frame; the caller finds out
    which, with `header` and with more data.
    """
    records: list[LogRecord] = []
    add, unpack, one, new = records.append, HEADER.unpack_from, _TABLES[1].unpack_from, tuple.__new__
    at, size, seed = 0, len(data), _seed(base, position)
    last, producer = b"", ""
    while offset < end and size - at >= HEADER_BYTES:
        magic, length, number, time_ms, epoch, _, count, kind, _, name_length, crc = unpack(data, at)
        start, stop = at + HEADER_BYTES, at + length
        table = start + name_length
        body = table + TABLE_BYTES * count
        if magic != MAGIC or number != offset or not body <= stop <= size or not 0 < count <= COUNT_MAX:
            break
        if crc32(data[start:body], crc32(data[at : start - 4], seed + at & _MASK)) != crc:
            break
        if (name := data[start:table]) != last:
            try:
                last, producer = name, name.decode()
            except UnicodeDecodeError:  # not written by us
                break
        if count == 1:
            sequence, room, digest = one(data, table)
            payload = data[body:stop]
            if room != len(payload) or crc32(payload) != digest:
                break
            add(new(LogRecord, (offset, time_ms, kind, producer, sequence, epoch, digest, payload)))
        else:
            same = offset, time_ms, kind, producer, epoch
            if (many := _many(data, table, body, stop, count, same)) is None:
                break
            records += many
        at, offset = stop, offset + count
    if offset > end:
        del records[end - offset :]
    return records, at


def _many(
    data: bytes, table: int, body: int, stop: int, count: int, same: tuple[int, int, int, str, int]
) -> Iterator[LogRecord] | None:
    """The records of a frame from its table and payloads; None if a digest is wrong."""
    numbers = _TABLES[count].unpack_from(data, table)
    sequences, lengths, digests = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    borders = list(accumulate(lengths, initial=body))
    payloads = [data[begin:end] for begin, end in pairwise(borders)]
    if borders[-1] != stop or tuple(map(crc32, payloads)) != digests:
        return None
    offset, time_ms, kind, producer, epoch = same
    offsets = range(offset, offset + count)
    of_all = repeat(time_ms), repeat(kind), repeat(producer)
    return map(_record, zip(offsets, *of_all, sequences, repeat(epoch), digests, payloads, strict=False))


def header(data: bytes, at: int, position: int, base: int) -> Header | None:
    """The valid header at index ``at`` of ``data`` (which lies at ``position``), or None; ignores the payloads."""
    start = at + HEADER_BYTES
    if len(data) < start:
        return None
    magic, length, offset, _, _, group, count, _, _, name_length, crc = HEADER.unpack_from(data, at)
    body = start + name_length + TABLE_BYTES * count
    if magic != MAGIC or not 0 < count <= COUNT_MAX or at + length < body or body > len(data):
        return None
    seed = _seed(base, position) + at & _MASK
    if crc32(data[start:body], crc32(data[at : start - 4], seed)) != crc:
        return None
    return Header(length, offset, group)


def _seed(base: int, position: int) -> int:
    return base * _SPREAD + position & _MASK


CHUNK_BYTES = 256 * 1024
"""Read at once: a thousand records or more, so that opening the file costs little, in bounded memory."""

END = 2**63
"""An offset that no log reaches: read to the last frame."""


def walk(
    files: Files, path: str, base: int, position: int, offset: int, end: int
) -> Iterator[tuple[list[LogRecord], int]]:
    """The records from ``offset`` (at ``position``) up to ``end``, in parts, each with the position after it.

    Stops early at the end of the segment or at a bad frame; the caller sees how far it came.
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
    """All valid headers from a position on, with their positions, whatever lies between them."""
    while True:
        data = files.read(path, position, CHUNK_BYTES + HEAD_BYTES_MAX)
        at = -1
        while 0 <= (at := data.find(MAGIC, at + 1)) < CHUNK_BYTES:
            if (head := header(data, at, position, base)) is not None:
                yield position + at, head
        if len(data) <= CHUNK_BYTES:
            return
        position += CHUNK_BYTES


def was_durable(files: Files, path: str, base: int, position: int) -> bool:
    """Whether a bad frame at ``position`` was once durable: proved by a valid header of a later group after it."""
    return any(at - head.group > position for at, head in headers(files, path, base, position + 1))
