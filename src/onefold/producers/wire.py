"""The binary format of a batch (many messages of one producer) and of the reply to it.

    request   b"OFB1" | request u32 | epoch u32 (0: none) | name length u16 | count u32
              | name | count x (sequence i64, length u32) | payloads
    reply     b"OFR1" | request u32 | status u8 | count u32
              | count x (verdict u8, offset i64, reason length u8, reason) | text (the rest)

All numbers are little endian; a verdict is its position in `Verdict`; names and text are UTF-8, reasons ASCII. Foreign
bytes are not trusted: every length is checked against the data and the limits before it is used; else `BadInput` names
the byte.

>>> data = encode_request(7, "till", 1, [(0, b"1 coffee"), (1, b"2 teas")])
>>> decode_request(data)
BatchRequest(request=7, producer='till', epoch=1, messages=[(0, b'1 coffee'), (1, b'2 teas')])
>>> decode_request(data[:-1])
Traceback (most recent call last):
    ...
onefold.errors.BadInput: byte 46: 14 bytes of payload must follow, there are 13
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from onefold.errors import BadInput, Misuse
from onefold.producers.records import NAME_BYTES_MAX
from onefold.producers.requests import Message, Receipt
from onefold.verdict import Verdict

CONTENT_TYPE: Final = "application/vnd.onefold.batch"
MESSAGES_MAX: Final = 10_000
"""In one request. Kafka's producer limits bytes only; a count also bounds the reply, which has no payloads."""
BYTES_MAX: Final = 4 << 20
"""Of a whole request; NATS allows 1 MiB per message by default, Kafka 1 MiB per batch, Pulsar 5 MiB."""
TEXT_BYTES_MAX: Final = 4_096

_REQUEST: Final = struct.Struct("<4sIIHI")
_MESSAGE: Final = struct.Struct("<qI")
_REPLY: Final = struct.Struct("<4sIBI")
_RECEIPT: Final = struct.Struct("<BqB")
_REQUEST_MAGIC: Final = b"OFB1"
_REPLY_MAGIC: Final = b"OFR1"
_VERDICTS: Final = tuple(Verdict)
_CODES: Final = {verdict: code for code, verdict in enumerate(Verdict)}


class WireStatus(IntEnum):
    OK = 0
    """Judged: see the receipts."""
    BUSY = 1
    """Not taken: try again in a moment."""
    FAILED = 2
    """Not stored: try again."""
    REFUSED = 3
    """Invalid: the text says why. Sending it again does not help."""


class BatchRequest(NamedTuple):
    request: int
    """A number chosen by the sender, repeated in the reply."""
    producer: str
    epoch: int | None
    messages: list[Message]


class BatchReply(NamedTuple):
    request: int
    status: WireStatus
    receipts: list[Receipt]
    text: str


def encode_request(request: int, producer: str, epoch: int | None, messages: Sequence[Message]) -> bytes:
    """Encode a request; `Misuse` if a value does not fit its field."""
    name = producer.encode()
    try:
        head = _REQUEST.pack(_REQUEST_MAGIC, request, epoch or 0, len(name), len(messages))
        pack = _MESSAGE.pack
        entries = [pack(sequence, len(payload)) for sequence, payload in messages]
    except struct.error as error:
        raise Misuse(f"request {request} of {producer!r}: {error}", request=request, epoch=epoch) from error
    return b"".join([head, name, *entries, *[payload for _, payload in messages]])


def decode_request(data: bytes, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> BatchRequest:
    """Decode a request; `BadInput` with the byte offset if it is invalid. Cost: one copy of each payload."""
    _at_most(0, "bytes", len(data), bytes_max)
    request, epoch, name_bytes, count = _head(_REQUEST, _REQUEST_MAGIC, data)
    if not 1 <= name_bytes <= NAME_BYTES_MAX:
        raise _wrong(12, f"the name has {name_bytes} bytes, must be 1 to {NAME_BYTES_MAX}")
    _at_most(14, "messages", count, messages_max)
    table = _REQUEST.size + name_bytes
    payloads = table + count * _MESSAGE.size
    if payloads > len(data):
        raise _wrong(_REQUEST.size, f"{payloads - _REQUEST.size} bytes of name and table must follow, "
                                    f"there are {len(data) - _REQUEST.size}")  # fmt: skip
    producer = _text(data, _REQUEST.size, table, "utf-8", "name")
    entries = list(_MESSAGE.iter_unpack(memoryview(data)[table:payloads]))
    ends = list(accumulate((length for _, length in entries), initial=payloads))
    if ends[-1] != len(data):
        raise _wrong(payloads, f"{ends[-1] - payloads} bytes of payload must follow, there are {len(data) - payloads}")
    messages = [
        (sequence, data[begin:end]) for (sequence, _), (begin, end) in zip(entries, pairwise(ends), strict=True)
    ]
    return BatchRequest(request, producer, epoch or None, messages)


def encode_reply(
    request: int, status: WireStatus, receipts: Iterable[tuple[Verdict, str, int]] = (), text: str = ""
) -> bytes:
    """Encode a reply; a text over `TEXT_BYTES_MAX` is cut."""
    pack, codes = _RECEIPT.pack, _CODES
    parts = [pack(codes[verdict], offset, len(reason)) + reason.encode("ascii") for verdict, reason, offset in receipts]
    whole_characters = text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return b"".join([_REPLY.pack(_REPLY_MAGIC, request, status, len(parts)), *parts, whole_characters])


def decode_reply(data: bytes, *, messages_max: int = MESSAGES_MAX) -> BatchReply:
    """Decode a reply; `BadInput` with the byte offset if it is invalid."""
    request, status, count = _head(_REPLY, _REPLY_MAGIC, data)
    if status >= len(WireStatus):
        raise _wrong(8, f"the status is {status}, must be 0 to {len(WireStatus) - 1}")
    _at_most(9, "receipts", count, messages_max)
    receipts: list[Receipt] = []
    at = _REPLY.size
    for _ in range(count):
        begin = at + _RECEIPT.size
        if begin > len(data):
            raise _wrong(at, f"receipt {len(receipts)} of {count} is cut off")
        code, offset, length = _RECEIPT.unpack_from(data, at)
        if code >= len(_VERDICTS):
            raise _wrong(at, f"the verdict is {code}, must be 0 to {len(_VERDICTS) - 1}")
        if begin + length > len(data):
            raise _wrong(begin, f"the reason must have {length} bytes, there are {len(data) - begin}")
        at = begin + length
        receipts.append(Receipt(_VERDICTS[code], _text(data, begin, at, "ascii", "reason"), offset))
    _at_most(at, "bytes of text", len(data) - at, TEXT_BYTES_MAX)
    return BatchReply(request, WireStatus(status), receipts, _text(data, at, len(data), "utf-8", "text"))


def request_number(data: bytes) -> int:
    """The number of a request that may be invalid otherwise; 0 if it cannot be read."""
    return int.from_bytes(data[4:8], "little") if data[:4] == _REQUEST_MAGIC and len(data) >= 8 else 0


def _head(shape: struct.Struct, magic: bytes, data: bytes) -> tuple[int, ...]:
    if len(data) < shape.size:
        raise _wrong(0, f"a head has {shape.size} bytes, there are {len(data)}")
    begin, *fields = shape.unpack_from(data)
    if begin != magic:
        raise _wrong(0, f"begins with {begin!r}, must begin with {magic!r}")
    return tuple(fields)


def _text(data: bytes, begin: int, end: int, encoding: str, what: str) -> str:
    try:
        return data[begin:end].decode(encoding)
    except UnicodeDecodeError as error:
        raise _wrong(begin + error.start, f"the {what} is not {encoding.upper()}") from error


def _at_most(at: int, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise _wrong(at, f"{count:,} {what}, at most {limit:,} are allowed")


def _wrong(at: int, why: str) -> BadInput:
    return BadInput(f"byte {at}: {why}", offset=at)
