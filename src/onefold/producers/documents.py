"""The JSON documents of the ingest server; an error names the place and the value in the body."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from onefold.decoding import read_json
from onefold.errors import BadInput
from onefold.producers.ports import LogRecord
from onefold.producers.records import MESSAGES, Kind
from onefold.producers.requests import Message, Receipt
from onefold.verdict import Verdict

T = TypeVar("T")
SHOWN_MAX: Final = 60
"""Characters of a foreign value that an error shows."""


def publication(body: bytes, messages_max: int) -> tuple[str, int | None, list[Message]]:
    """Read the document of a publish: producer, epoch and messages.

    >>> publication(b'{"producer": "p", "messages": [{"sequence": 0, "payload": {"a": 1}}]}', 10)
    ('p', None, [(0, b'{"a":1}')])
    >>> publication(b'{"producer": "p", "messages": [{"sequence": "x", "payload": 1}]}', 10)
    Traceback (most recent call last):
        ...
    onefold.errors.BadInput: messages[0].sequence: is "x", must be a whole number
    """
    document = _object("", read_json(body, "the body"), {"producer", "messages"}, {"epoch"})
    items, epoch = _typed(list, "messages", document["messages"], "a list"), document.get("epoch")
    if len(items) > messages_max:
        raise BadInput(f"messages: are {len(items):,}, at most {messages_max:,} are allowed")
    messages = [_message(f"messages[{i}]", item) for i, item in enumerate(items)]
    producer = _typed(str, "producer", document["producer"], "text")
    if epoch is not None and (type(epoch) is not int or not 0 <= epoch < 2**32):
        raise _wrong("epoch", epoch, "a whole number from 0 to 4,294,967,295, or null")
    return producer, epoch, messages


def producer_name(body: bytes) -> str | None:
    """Read the document of a session to open: its name; None: assign one."""
    name = _object("", read_json(body or b"{}", "the body"), set(), {"name"}).get("name")
    return None if name is None else _typed(str, "name", name, "text")


def wanted_switch(body: bytes) -> bool | None:
    """Read the document of a topic: whether to deduplicate; None: leave it as it is."""
    value = _object("", read_json(body or b"{}", "the body"), set(), {"deduplicate"}).get("deduplicate")
    return None if value is None else _typed(bool, "deduplicate", value, "true or false")


def whole_number(name: str, text: str | None, default: int, low: int, high: int) -> int:
    """Read a number of a query string.

    >>> whole_number("max", "ten", 100, 1, 1000)
    Traceback (most recent call last):
        ...
    onefold.errors.BadInput: max: is "ten", must be a whole number from 1 to 1,000
    """
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise _wrong(name, text, f"a whole number from {low:,} to {high:,}")


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    return {"verdict": str(receipt.verdict), "reason": receipt.reason, "offset": receipt.offset}


def record_document(record: LogRecord) -> dict[str, Any]:
    """A stored record for JSON; its payload as a JSON value if that encodes to the same bytes, else in base 64.

    >>> record_document(LogRecord(7, 1000, Kind.MESSAGE, "p", 3, 1, 0, b'{"a":1}'))["payload"]
    {'a': 1}
    """
    kind = Kind(record.kind)
    document: dict[str, Any] = {"offset": record.offset, "time_ms": record.time_ms}
    if kind not in MESSAGES:
        document["kind"] = kind.name.lower()
    if kind == Kind.KEYED:
        document["key"] = record.producer
    else:
        document |= {"producer": record.producer, "sequence": record.sequence, "epoch": record.epoch}
    try:
        value = read_json(record.payload, "the payload")
        exact = _compact(value) == record.payload
    except (BadInput, ValueError, RecursionError):
        exact = False
    return document | ({"payload": value} if exact else {"payload_base64": b64encode(record.payload).decode()})


def http_status(receipts: Sequence[Receipt]) -> int:
    """The HTTP status for these receipts, for clients that do not read them.

    >>> http_status([Receipt(Verdict.FIRST, "new", 0), Receipt(Verdict.REJECT, "conflict")])
    200
    >>> http_status([Receipt(Verdict.REJECT, "conflict")])
    409
    >>> http_status([Receipt(Verdict.UNSURE, "in_flight")]), http_status([Receipt(Verdict.UNSURE, "forgotten")])
    (503, 409)
    """
    verdicts = {receipt.verdict for receipt in receipts}
    if Verdict.UNSURE in verdicts:
        return 503 if any(receipt.retry for receipt in receipts) else 409
    if verdicts != {Verdict.REJECT}:
        return 200
    statuses = {REJECTED.get(receipt.reason, 400) for receipt in receipts}
    return statuses.pop() if len(statuses) == 1 else 400


REJECTED: Final[Mapping[str, int]] = {
    "conflict": 409,
    "stale_epoch": 409,
    "unknown_epoch": 409,
    "epoch_missing": 409,
    "jump_too_far": 409,
    "too_large": 413,
}
"""Status by reason where all messages are rejected; for any other reason 400."""


def _message(path: str, value: object) -> Message:
    item = _object(path, value, {"sequence"}, {"payload", "payload_base64"})
    sequence = _typed(int, f"{path}.sequence", item["sequence"], "a whole number")
    if ("payload" in item) == ("payload_base64" in item):
        raise BadInput(f"{path}: must have one of payload and payload_base64")
    if "payload" in item:
        try:
            return sequence, _compact(item["payload"])
        except (ValueError, RecursionError):  # a lone surrogate, an infinite float, nesting too deep
            raise BadInput(f"{path}.payload: cannot be stored as JSON in UTF-8") from None
    text = item["payload_base64"]
    try:
        if isinstance(text, str):
            return sequence, b64decode(text, validate=True)
    except ValueError:
        pass
    raise _wrong(f"{path}.payload_base64", text, "base 64")


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _object(path: str, value: object, needed: set[str], allowed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path or "the body", value, "an object")
    before = f"{path}." if path else ""
    for key in sorted(value.keys() - needed - allowed):
        names = ", ".join(sorted(needed | allowed))
        raise BadInput(f"{before}{shown(key)[1:-1]}: is not known; known are {names}")
    for key in sorted(needed - value.keys()):
        raise BadInput(f"{before}{key}: is missing")
    return value


def _typed(kind: type[T], path: str, value: object, must: str) -> T:
    if type(value) is not kind:
        raise _wrong(path, value, must)
    return value


def _wrong(path: str, value: object, must: str) -> BadInput:
    return BadInput(f"{path}: is {shown(value)}, must be {must}", place=path)


def shown(value: object) -> str:
    if isinstance(value, str):
        text = json.dumps(value[:SHOWN_MAX])
        return text if len(value) <= SHOWN_MAX else f'{text[:-1]}..."'
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
