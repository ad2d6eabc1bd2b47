"""The frames between client and server: one byte for the kind, then the content.

    client                                     server
    O  open: JSON, see `Opening`               o  opened: JSON, see `OpenReply`
    M  a message of the protocol               M  the reply to it
    F  fetch: ids, concatenated                R  records: the first of the requested ones, as many as fit
    P  push: records                           p  pushed: one byte per record, see `OUTCOMES`
    C  close                                   c  closed
                                               e  error: JSON, see `Trouble`; the session is over

Every frame of the client gets one answer, in order. F, P and M belong to a session, which O opens and C or an error
closes; a connection can have one session after another. Records are concatenated, each written as

    timestamp u64 | length of the body u32, 2^32 - 1: no body | id | body

with little-endian numbers. Bytes from the peer are not trusted: every length is checked against the bytes that are
there before anything is allocated for it, and a frame that does not fit is `BadInput` with the offset of the fault.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from struct import Struct
from typing import Final, Literal, TypeVar

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.reconcile.items import INFINITY
from onefold.reconcile.records import Record
from onefold.verdict import Answer, Verdict

VERSION: Final = 1
JSON_BYTES_MAX: Final = 4_096
NO_BODY: Final = 2**32 - 1
HEAD: Final = Struct("<QI")

OPEN, OPENED, MESSAGE, FETCH, RECORDS, PUSH, PUSHED, CLOSE, CLOSED, ERROR = b"OoMFRPpCce"


STORED: Final = Answer(Verdict.FIRST, "stored")
KNOWN: Final = Answer(Verdict.REPEAT, "known")
UNANSWERED: Final = Answer(Verdict.UNSURE, "unanswered")
WRONG_ID: Final = Answer(Verdict.REJECT, "wrong_id")
WRONG_TIME: Final = Answer(Verdict.REJECT, "wrong_time")
NOT_THERE: Final = Answer(Verdict.REJECT, "not_there")
TOO_LARGE: Final = Answer(Verdict.REJECT, "too_large")

RULES: Final[Mapping[Answer, str]] = {
    STORED: "It was missing, and is stored now.",
    KNOWN: "It arrived by another way in the meantime.",
    UNANSWERED: "It was pushed, the connection was lost before the answer, and the next look found it there.",
    WRONG_ID: "Its time and bytes do not hash to its id; it was not stored.",
    WRONG_TIME: "It is genuine, but lies outside the requested time; it was not stored.",
    NOT_THERE: "The side that has it sent no bytes: it knows only the id, the record is gone, or too large to send.",
    TOO_LARGE: "It is larger than the peer accepts; it was not sent.",
}
"""The possible answers for a record, explained for people."""

NOT_TAKEN: Final = Answer(Verdict.UNSURE, "not_taken", retry=True)
"""In a server's books: records in a frame that it refused or failed to store. The peer gets an error, then retries."""

OUTCOMES: Final = STORED, KNOWN, WRONG_ID, TOO_LARGE
"""The outcomes of a push; the index is the byte on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    version: int = VERSION
    wire: Literal["v1", "xor"] = "v1"
    id_size: int = 32
    frame_size_max: int = 0
    """The largest message that the client accepts; 0: any."""
    since: int = 0
    until: int = INFINITY - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReply:
    """What the server holds, and what it accepts."""

    records: int
    bodies: bool
    """Whether it can send the bytes of records; false: it knows only ids."""
    writable: bool
    message_bytes_max: int
    """The largest frame that it accepts."""
    record_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a frame failed: a short name for programs, a line for people, the offset of the fault if there is one."""

    error: str
    text: str
    offset: int | None = None


Document = TypeVar("Document", Opening, OpenReply, Trouble)


def write_document(kind: int, document: Opening | OpenReply | Trouble) -> bytes:
    return bytes((kind,)) + json.dumps(asdict(document), separators=(",", ":")).encode()


def read_document(kind: type[Document], frame: bytes) -> Document:
    """The JSON document of a frame; `BadInput` that names the wrong field.

    >>> read_document(Trouble, write_document(ERROR, Trouble(error="busy", text="later")))
    Trouble(error='busy', text='later', offset=None)
    """
    if len(frame) > JSON_BYTES_MAX:
        raise BadInput(f"{len(frame)} bytes of JSON, the limit is {JSON_BYTES_MAX}", offset=0)
    try:
        document = read_json(frame[1:], "the frame")
    except BadInput as error:
        raise BadInput(str(error), offset=1) from None
    if not isinstance(document, dict):
        raise BadInput("not a JSON object", offset=1)
    types = {field.name: str(field.type) for field in fields(kind)}  # the annotations as text
    for name, value in document.items():
        if name not in types:
            raise BadInput(f"unknown field {name!r:.50}", offset=1, field=name)
        right = {
            "int": type(value) is int and 0 <= value < 2**64,
            "int | None": value is None or (type(value) is int and value >= 0),
            "bool": isinstance(value, bool),
            "str": isinstance(value, str),
            "Literal['v1', 'xor']": value in ("v1", "xor"),
        }
        if not right[types[name]]:
            raise BadInput(f"{name} is {value!r:.50}, must be {types[name]}", offset=1, field=name)
    try:
        return kind(**document)
    except TypeError as error:
        raise BadInput(f"a field is missing: {error}", offset=1) from None


def write_ids(ids: Iterable[bytes]) -> bytes:
    return bytes((FETCH,)) + b"".join(ids)


def read_ids(frame: bytes, id_size: int) -> list[bytes]:
    whole, rest = divmod(len(frame) - 1, id_size)
    if rest:
        raise BadInput(f"{rest} bytes after the last id", offset=1 + whole * id_size)
    return [frame[at : at + id_size] for at in range(1, len(frame), id_size)]


def write_records(kind: int, records: Iterable[Record]) -> bytes:
    parts = [bytes((kind,))]
    for timestamp, id, body in records:
        parts += (HEAD.pack(timestamp, NO_BODY if body is None else len(body)), id, body or b"")
    return b"".join(parts)


def read_records(frame: bytes, id_size: int) -> list[Record]:
    """The records in a frame.

    >>> read_records(write_records(PUSH, [Record(5, b"a" * 8, b"coffee"), Record(6, b"b" * 8)]), id_size=8)
    [Record(timestamp=5, id=b'aaaaaaaa', body=b'coffee'), Record(timestamp=6, id=b'bbbbbbbb', body=None)]
    """
    records, at, end = [], 1, len(frame)
    while at < end:
        start = at + HEAD.size + id_size
        if start > end:
            raise BadInput("the frame ends inside the head of a record", offset=at)
        timestamp, size = HEAD.unpack_from(frame, at)
        if timestamp == INFINITY:
            raise BadInput("timestamp 2^64 - 1 is reserved", offset=at)
        id, stop = frame[start - id_size : start], start + (0 if size == NO_BODY else size)
        if stop > end:
            raise BadInput(f"a body of {size} bytes, but only {end - start} are left", offset=at + 8)
        records.append(Record(timestamp, id, None if size == NO_BODY else frame[start:stop]))
        at = stop
    return records


def size_of(record: Record) -> int:
    """The bytes that a record takes in a frame."""
    return HEAD.size + len(record.id) + len(record.body or b"")


def write_outcomes(outcomes: Sequence[Answer]) -> bytes:
    return bytes((PUSHED, *map(OUTCOMES.index, outcomes)))


def read_outcomes(frame: bytes) -> list[Answer]:
    try:
        return [OUTCOMES[byte] for byte in frame[1:]]
    except IndexError:
        raise BadInput(f"unknown outcome of a push: {max(frame[1:])} is above {len(OUTCOMES) - 1}", offset=1) from None


class Pipe:
    """A channel to a peer in this process: a frame is answered when it is sent, and the answer waits in a queue.

    >>> pipe = Pipe(bytes.upper)
    >>> pipe.send(b"first"); pipe.send(b"second")
    >>> pipe.receive(), pipe.receive()
    (b'FIRST', b'SECOND')
    """

    def __init__(self, answer: Callable[[bytes], bytes], close: Callable[[], None] = lambda: None) -> None:
        self._answer, self._close, self._closed = answer, close, False
        self._answers: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        if self._closed:
            raise ConnectionError("the pipe is closed")
        self._answers.append(self._answer(data))

    def receive(self) -> bytes:
        """The oldest answer; `Misuse` if there is none, because none would ever come."""
        if self._closed:
            raise ConnectionError("the pipe is closed")
        if not self._answers:
            raise Misuse("every frame that was sent has been answered")
        return self._answers.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close()
