"""Records by address: ``memory://``, ``sqlite:///x.db`` or a plain file name; and what all stores ask of a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from onefold.engines.negentropy.arrays import padded, width_of
from onefold.engines.negentropy.bound import INFINITY
from onefold.engines.negentropy.columns import Columns
from onefold.engines.negentropy.items import ID_SIZES
from onefold.engines.negentropy.records import Record
from onefold.errors import BadInput, Misuse
from onefold.ports import Records
from onefold.stores.addresses import masked, sqlite_file

KINDS = "memory://, sqlite:///file.db, sqlite:////folder/file.db, file.db"


def open_records(address: str, id_size: int | None = None, *, make: bool = True) -> Records:
    """The records at an address; what is not a URL is the name of a SQLite file.

    ``id_size`` is for a store that is made by this; 32 if it is not given. One that is there has an id size already,
    and it is `Misuse` to ask for another. Without ``make``, a file that holds no records is `Misuse`, and is
    left as it is.

    >>> len(open_records("memory://"))
    0
    >>> open_records("redis://me:secret@db")
    Traceback (most recent call last):
    onefold.errors.Misuse: no records at redis://...; there are some at memory://, sqlite:///file.db, ...
    """
    scheme, is_url, rest = address.partition("://")
    if scheme == "memory" and is_url and not rest:
        from onefold.stores.memory.records import MemoryRecords

        return MemoryRecords(32 if id_size is None else id_size)
    path = sqlite_file(address) if is_url else address
    if not path:
        raise Misuse(f"no records at {masked(address)}; there are some at {KINDS}")
    from onefold.stores.sqlite.records import SqliteRecords

    return SqliteRecords(path, id_size, make=make)


def check_id_size(id_size: int) -> int:
    """The size, if ids can have it; else `Misuse`."""
    if id_size not in ID_SIZES:
        raise Misuse(f"id_size is {id_size}, must be from {ID_SIZES[0]} to {ID_SIZES[-1]}", id_size=id_size)
    return id_size


def by_id(records: Iterable[Record], id_size: int) -> dict[bytes, Record]:
    """The records, each once, of equal ids the first; `BadInput` naming one that no store may take."""
    found: dict[bytes, Record] = {}
    for record in records:
        if len(record.id) != id_size:
            told = f"id {record.id.hex()} has {len(record.id)} bytes, must have {id_size}"
            raise BadInput(told, id=record.id.hex(), id_size=id_size)
        if not 0 <= record.timestamp < INFINITY:
            told = f"timestamp {record.timestamp} of id {record.id.hex()} is no whole number from 0 to 2^64 - 2"
            raise BadInput(told, id=record.id.hex(), timestamp=record.timestamp)
        first = found.setdefault(record.id, record)
        if first.timestamp != record.timestamp:
            told = f"id {record.id.hex()} comes with two timestamps, {first.timestamp} and {record.timestamp}"
            raise BadInput(told, id=record.id.hex(), timestamps=(first.timestamp, record.timestamp))
    return found


def flags(records: Sequence[Record], new: Iterable[bytes]) -> list[bool]:
    """For each record whether it is new: of equal ones the first is."""
    left = set(new)
    answers = []
    for record in records:
        answers.append(record.id in left)
        left.discard(record.id)
    return answers


def columns_of(records: Iterable[Record], id_size: int) -> Columns:
    """Their timestamps and ids as columns, in order."""
    pairs = [(record.timestamp, record.id) for record in records]
    stamps = np.array([stamp for stamp, _ in pairs], dtype=np.uint64)
    ids = np.frombuffer(b"".join(id for _, id in pairs), dtype=np.uint8).reshape(len(pairs), id_size)
    return Columns.sorted_from(stamps, padded(ids, width_of(id_size)))
