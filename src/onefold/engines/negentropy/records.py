"""A record: bytes with a timestamp, and the id that both are known by.

The id is the SHA-256 of the timestamp, 8 bytes big-endian, and the body; of a set with shorter ids its first bytes. So
whoever is sent a record can tell whether it is the one that was asked for, and a peer can change neither its bytes nor
its place in the order unseen. A record without a body is an id that somebody else has the bytes of: its id is taken as
it is told.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from onefold.engines.negentropy.bound import INFINITY
from onefold.errors import BadInput


class Record(NamedTuple):
    """A timestamp, an id, and the bytes that belong to them; None: they are not here."""

    timestamp: int
    id: bytes
    body: bytes | None = None

    @property
    def genuine(self) -> bool:
        """Whether the body is there and is the one that the id names."""
        return self.body is not None and self.id == id_of(self.timestamp, self.body, len(self.id))


def id_of(timestamp: int, body: bytes, id_size: int = 32) -> bytes:
    """The id of these bytes at that time.

    >>> id_of(5, b"1 coffee").hex()[:16]
    '9ee51c12a16f99cf'
    """
    return sha256(timestamp.to_bytes(8) + body).digest()[:id_size]


def record(timestamp: int, body: bytes, id_size: int = 32) -> Record:
    """These bytes as a record; BadInput for a timestamp that none can have."""
    if not 0 <= timestamp < INFINITY:
        raise BadInput(f"timestamp {timestamp} is no whole number from 0 to 2^64 - 2", timestamp=timestamp)
    return Record(timestamp, id_of(timestamp, body, id_size), body)
