"""Where a table is: ``postgresql://user:password@host/database?options#schema.table``.

The part after ``#`` is ours, the rest is PostgreSQL's own. What is shown of an address never holds the password; an
address that cannot be read is not shown at all, for nobody knows where in it the password stands.
"""

from dataclasses import dataclass, field
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onefold.errors import Misuse

TABLE = "onefold_messages"
SCHEMES = ("postgresql://", "postgres://")
# PostgreSQL cuts longer names off without an error: two columns, or two tables, could become one.
NAME_BYTES_MAX = 63
SUFFIX_BYTES_MAX = len("_staging_0123456789_0_parts")


@dataclass(frozen=True, slots=True)
class Address:
    """A table of a database; ``schema`` None is the first of the user's search path."""

    conninfo: str = field(repr=False)
    shown: str
    schema: str | None
    table: str

    def __str__(self) -> str:
        return self.shown


def parse(url: str) -> Address:
    """Read an address.

    >>> parse("postgresql://me:secret@db.example/shop#sales.orders").shown
    'postgresql://db.example/shop#sales.orders'
    """
    conninfo, _, fragment = url.partition("#")
    if not conninfo.startswith(SCHEMES):
        raise Misuse("the place of a postgres sink must be like postgresql://user@host/database#schema.table")
    if set(fragment) & set("@/:?#"):
        raise Misuse("what follows # in the address must be a table or schema.table; a # before that is written %23")
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise Misuse("this is not an address that PostgreSQL can read (it may hold a password: not shown)") from None
    schema, _, table = unquote(fragment or TABLE).rpartition(".")
    check_name(table, NAME_BYTES_MAX - SUFFIX_BYTES_MAX)
    host = parts.get("host") or parts.get("hostaddr") or ""
    port = f":{parts['port']}" if parts.get("port") else ""
    place = f"postgresql://{host}{port}/{parts.get('dbname') or ''}"
    if "@" in place:  # a / in the password ended the host: the rest of it would be shown as the database
        raise Misuse("this address has an @ too many (not shown); write %40 for an @ and %2F for a / in a password")
    shown = f"{place}#{unquote(fragment or TABLE)}"
    return Address(conninfo, shown, schema or None, table)


def check_name(name: str, bytes_max: int = NAME_BYTES_MAX) -> None:
    """Raise `Misuse` if PostgreSQL could not keep this name as it is."""
    size = len(name.encode())
    if not 0 < size <= bytes_max or "\0" in name:
        raise Misuse(f"the name {name!r} has {size} bytes, PostgreSQL can keep 1 to {bytes_max}", name=name)
