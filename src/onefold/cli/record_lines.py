"""Lines of files as records: each a record, or the reason why it is none.

A record is a line without its newline, byte for byte; an empty line is a record too. Its time is a field of it, if it
is JSON, else 0. Or the line names a record whose bytes are elsewhere: ``timestamp,id in hex``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from onefold.engines.negentropy.bound import INFINITY
from onefold.engines.negentropy.records import Record, record
from onefold.errors import BadInput

LINE_BYTES_MAX: Final = 512 << 10
"""As much as a server takes as one record, unless it is told otherwise: longer ones could not be exchanged."""


class BadLine(BadInput):
    """A line that is no record; ``reason`` is short, and one of a few."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Form:
    """How a line is read.

    >>> Form(32, time="at").read(b'{"at": 5, "what": "coffee"}').timestamp
    5
    >>> Form(32, time="at").read(b'{"at": "noon"}')
    Traceback (most recent call last):
    onefold.cli.record_lines.BadLine: at is 'noon', must be a whole number from 0 to 2^64 - 2
    """

    id_size: int
    time: str | None = None
    """The field of a JSON object that holds the time."""
    ids: bool = False
    """Lines are ``timestamp,id``."""

    def read(self, line: bytes) -> Record:
        """The record that a line is, or `BadLine`."""
        if len(line) > LINE_BYTES_MAX:
            raise BadLine("too_long", f"more than {LINE_BYTES_MAX:,} bytes")
        if self.ids:
            return self._named(line)
        return record(0 if self.time is None else self._time(line, self.time), line, self.id_size)

    def _time(self, line: bytes, field: str) -> int:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            raise BadLine("no_json", f"no JSON: {line[:80]!r}") from None
        if not isinstance(document, dict) or field not in document:
            raise BadLine("no_time", f"no JSON object with a field {field!r}: {line[:80]!r}")
        value = document[field]
        if type(value) is not int or not 0 <= value < INFINITY:
            raise BadLine("bad_time", f"{field} is {value!r:.80}, must be a whole number from 0 to 2^64 - 2")
        return value

    def _named(self, line: bytes) -> Record:
        stamp, comma, id = line.rstrip(b"\r").partition(b",")
        if not comma or not stamp.isdigit() or len(stamp) > 20 or int(stamp) >= INFINITY:
            raise BadLine("bad_time", f"{line[:80]!r} begins with no whole number from 0 to 2^64 - 2 and a comma")
        try:
            found = bytes.fromhex(id.decode("ascii"))
        except ValueError:
            raise BadLine("bad_id", f"{id[:80]!r} is no id in hex") from None
        if len(found) != self.id_size:
            raise BadLine("bad_id", f"{id[:80]!r} has {len(found)} bytes; the ids of this store have {self.id_size}")
        return Record(int(stamp), found)


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Every line and its number, without its newline; of one that is too long only the beginning is held."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 2):
        number += 1
        whole = line.endswith(b"\n")
        yield number, line[:-1] if whole else line
        while not whole and len(line) == LINE_BYTES_MAX + 2:  # the rest of it
            line = file.readline(LINE_BYTES_MAX + 2)
            whole = line.endswith(b"\n")
