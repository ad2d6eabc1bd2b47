"""Ids of requests: UUIDs of version 7, which have the time of their making inside.

A request that is forgotten must never be made again, or what it did would be done twice. To remember all that was
forgotten would take room for ever. So an id is only taken for so long after its own time, and what was forgotten is
remembered for as long; after that, nobody can make a request with this id.
"""

from __future__ import annotations

from secrets import randbits
from typing import Final
from uuid import UUID

from onefold.errors import BadInput

VERSION: Final = 7


def new_id(now_ms: int) -> str:
    """A fresh id of this time.

    >>> time_of(new_id(1_800_000_000_000))
    1800000000000
    """
    time, version, variant = now_ms << 80, VERSION << 76, 0b10 << 62
    return str(UUID(int=time | version | randbits(12) << 64 | variant | randbits(62)))


def check_id(text: str) -> str:
    """The id in its one form, in lower case; `BadInput` if it is none.

    >>> check_id("0190D3A4-5B6C-7000-8000-000000000000")
    '0190d3a4-5b6c-7000-8000-000000000000'
    >>> check_id("6f1c2f0e-0000-4000-8000-000000000001")
    Traceback (most recent call last):
    onefold.errors.BadInput: id is '6f1c2f0e-0000-4000-8000-000000000001', must be a UUID of version 7
    """
    try:
        found = UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text.lower() or found.version != VERSION:
        raise BadInput(f"id is {text!r:.100}, must be a UUID of version {VERSION}")
    return str(found)


def time_of(request: str) -> int:
    """When the id was made, in milliseconds since 1970, as its maker's clock said."""
    return UUID(request).int >> 80
