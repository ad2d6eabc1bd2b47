"""What the addresses of ledgers, token stores and queues have in common."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from onefold.errors import Misuse

TIMEOUT_MAX_S: Final = 86_400
"""A day: sockets and clocks cannot count for ever, and nobody waits so long."""


def masked(url: str) -> str:
    """What may be shown of an address that leads nowhere: behind the scheme there may be a password.

    >>> masked("http://me:secret@db.example"), masked("shop.db"), masked("redis:/me:secret@db.example")
    ('http://...', "'shop.db'", "'redis:...'")
    """
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url):
        return f"{scheme[0]}..."
    first, found, _ = url.partition(":")
    return repr(f"{first}:..." if found else url) if "@" not in first else "an address that is not shown"


def sqlite_file(url: str) -> str | None:
    """The file that is meant by ``sqlite:///x.db``; None if this is no such address.

    >>> sqlite_file("sqlite:////srv/a%20b.db"), sqlite_file("memory://")
    ('/srv/a b.db', None)
    """
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite" or len(rest) < 2 or not rest.startswith("/"):
        return None
    if "?" in rest:
        raise Misuse(f"{url}: sqlite:/// takes no options; a ? in the name of a file is written %3F", url=url)
    return unquote(rest[1:])


def check_timeout(where: object, timeout_s: float) -> float:
    """The time, if one can wait so long; `Misuse` naming it if not."""
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        told = f"{where}: timeout_s is {timeout_s}, must be more than 0 and at most {TIMEOUT_MAX_S}"
        raise Misuse(told, timeout_s=timeout_s)
    return timeout_s
