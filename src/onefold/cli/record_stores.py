"""What the commands about records share: opening a store that is a file, and reading an id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from onefold.errors import Misuse
from onefold.ports.records import Records
from onefold.stores.addresses import masked, sqlite_file
from onefold.stores.records import open_records

STORE: Final = "The store: a file, such as notes.db."
Store: TypeAlias = Annotated[str, typer.Argument(metavar="STORE", help=STORE)]
NewStore: TypeAlias = Annotated[str, typer.Argument(metavar="STORE", help=f"{STORE} Made if it is not there.")]


def file_of(address: str) -> Path:
    """The file that a store is in."""
    path = sqlite_file(address) if "://" in address else address
    if not path:
        raise Misuse(f"{masked(address)}: name the file of a store, such as notes.db or sqlite:///notes.db")
    return Path(path)


@contextmanager
def opened_records(address: str, *, make: bool = False, id_size: int | None = None) -> Iterator[Records]:
    """Open a store, and close it in the end; ``make`` it if it is not there, else `Misuse`."""
    file = file_of(address)
    if not make and not file.exists():
        raise Misuse(f"{file}: there is no such store", store=str(file))
    records = open_records(address, id_size, make=make)
    try:
        yield records
    finally:
        records.close()


def read_id(text: str, id_size: int) -> bytes:
    """An id as it is written, in hex; `Misuse` if it is none of this store."""
    try:
        id = bytes.fromhex(text)
    except ValueError:
        raise Misuse(f"{text!r:.80} is no id: it is written in hex") from None
    if len(id) != id_size:
        raise Misuse(f"{text!r:.80} has {count(len(id), 'byte')}; the ids of this store have {id_size}")
    return id


def count(many: int, what: str) -> str:
    """So many of these.

    >>> count(1, "record"), count(2_000, "record")
    ('1 record', '2,000 records')
    """
    return f"{many:,} {what}{'s' * (many != 1)}"
