"""Records as bytes: frames that can be told from anything else, and only in their own place.

    magic "OFL1" | length | offset | time | sequence | epoch | group | kind | 0 | name length | payload crc | head crc
    | name (UTF-8) | payload

Little endian, 52 bytes of header. ``length`` counts the whole frame, so it is never 0 and zeros are never a record.
``group`` is how many bytes of its commit group lie before this frame: a frame that begins another group than a bad one
before it proves that the bad one was once durable, because a group is written only after the one before it was synced.

The head crc covers the header and the name and begins with a number made of the place (segment and position). So a
frame that was copied elsewhere, by a stray block of an old file or as the payload of a message, is no frame there.

Cost: about 1 us to encode a frame and 2 us to decode one; payloads are copied once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from onefold.errors import Misuse
from onefold.ports import Draft, Record

MAGIC = b"OFL1"
HEADER = struct.Struct("<4sIQqqIIBBHII")
HEADER_BYTES = HEADER.size
NAME_BYTES_MAX = 0xFFFF
GROUP_BYTES_MAX = 0xFFFF_FFFF

_HEAD = struct.Struct("<4sIQqqIIBBHI")  # all but the head crc
_CRC = struct.Struct("<I")
_MASK = 0xFFFF_FFFF
_SPREAD = 0x9E37_79B1  # 2^32 / golden ratio: neighbouring segments get seeds far apart


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
    add, pack, pack_crc = parts.append, _HEAD.pack, _CRC.pack
    seed = _seed(base, position)
    group = 0
    last, name = None, b""
    try:
        for kind, producer, sequence, epoch, digest, payload in drafts:
            if producer is not last:
                last, name = producer, producer.encode()
            length = 52 + len(name) + len(payload)
            if crc32(payload) != digest:
                raise Misuse(f"digest {digest} is not the crc32 of the payload", producer=producer, sequence=sequence)
            head = pack(MAGIC, length, offset, time_ms, sequence, epoch, group, kind, 0, len(name), digest)
            add(head)
            add(pack_crc(crc32(name, crc32(head, seed + group & _MASK))))
            add(name)
            add(payload)
            group += length
            offset += 1
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        draft = drafts[len(parts) // 4]
        raise Misuse(f"a log cannot keep {draft[:5]!r}: {error}", draft=draft) from error
    return b"".join(parts)


def decode(data: bytes, position: int, base: int, offset: int, end: int) -> tuple[list[Record], int]:
    """The records from ``offset`` up to ``end`` that ``data`` begins with, and the index in it where they stop.

    ``data`` lies at ``position`` of the segment ``base``. It stops early at a frame that is not whole or not right; why
    is for the caller to find out, with `header` and with more data.
    """
    records: list[Record] = []
    add, unpack, new = records.append, HEADER.unpack_from, tuple.__new__
    at, size, seed = 0, len(data), _seed(base, position)
    last, producer = b"", ""
    while offset < end and size - at >= 52:
        magic, length, found, time_ms, sequence, epoch, _, kind, _, name_len, digest, crc = unpack(data, at)
        start = at + 52
        middle = start + name_len
        stop = at + length
        if magic != MAGIC or found != offset or stop < middle or stop > size:
            break
        name = data[start:middle]
        payload = data[middle:stop]
        if crc32(name, crc32(data[at : at + 48], seed + at & _MASK)) != crc or crc32(payload) != digest:
            break
        if name != last:
            last, producer = name, name.decode()
        add(new(Record, (offset, time_ms, kind, producer, sequence, epoch, digest, payload)))
        at = stop
        offset += 1
    return records, at


def header(data: bytes, at: int, position: int, base: int) -> Header | None:
    """The header at index ``at`` of ``data``, which lies at ``position``, if it is one; the payload may be anything."""
    if len(data) - at < HEADER_BYTES:
        return None
    magic, length, offset, _, _, _, group, _, _, name_len, _, crc = HEADER.unpack_from(data, at)
    stop = at + HEADER_BYTES + name_len
    if magic != MAGIC or length < HEADER_BYTES + name_len or stop > len(data):
        return None
    seed = _seed(base, position) + at & _MASK
    if crc32(data[at + HEADER_BYTES : stop], crc32(data[at : at + HEADER_BYTES - 4], seed)) != crc:
        return None
    return Header(length, offset, group)


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
