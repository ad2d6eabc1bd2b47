"""Addresses of stores, such as ``memory://``, ``sqlite:///x.db``, ``redis://host:6379/0``."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from onefold.errors import Misuse

TIMEOUT_MAX_S: Final = 86_400
"""A day: sockets have limits, and longer makes no sense."""


def masked(url: str) -> str:
    """What may be shown of an invalid address: what follows the scheme may hold a password.

    >>> masked("http://me:secret@db.example"), masked("shop.db"), masked("redis:/me:secret@db.example")
    ('http://...', "'shop.db'", "'redis:...'")
    """
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url):
        return f"{scheme[0]}..."
    first, colon, _ = url.partition(":")
    return repr(f"{first}:..." if colon else url) if "@" not in first else "an address that is not shown"


def is_far(path: str) -> bool:
    """Whether a path is a URL of something other than this machine's disks.

    >>> [is_far(path) for path in ("s3://b/out", "S3A://b", "data/a:b", "file:///out", "C:/x", "out", "dbfs:/x")]
    [True, True, False, False, False, False, True]
    """
    url = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path)
    return url is not None and url[1].lower() != "file"


def scheme_of(url: str) -> tuple[str, str]:
    """The kind of store of an address, and the SQLite file or the address itself; ('', '') for any other.

    >>> scheme_of("memory://"), scheme_of("sqlite:////srv/a%20b.db"), scheme_of("redis://cache.example/0")
    (('memory', ''), ('sqlite', '/srv/a b.db'), ('redis', 'redis://cache.example/0'))
    >>> scheme_of("memory://x"), scheme_of("shop.db")
    (('', ''), ('', ''))
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite":
        path = sqlite_file(url)
        return ("", "") if path is None else (scheme, path)
    if scheme == "memory":
        return ("", "") if rest or not separator else (scheme, "")
    return (scheme, url) if separator else ("", "")


def nothing_at(url: str, what: str, kinds: str) -> Misuse:
    """The error for an unknown kind of address; it does not show secrets."""
    return Misuse(f"no {what} at {masked(url)}; there are some at {kinds}")


def sqlite_file(url: str) -> str | None:
    """The file of ``sqlite:///x.db``; None for other addresses.

    >>> sqlite_file("sqlite:////srv/a%20b.db"), sqlite_file("memory://")
    ('/srv/a b.db', None)
    """
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite" or len(rest) < 2 or not rest.startswith("/"):
        return None
    if "?" in rest:
        raise Misuse(f"{url}: sqlite:/// takes no options; a ? in the name of a file is written %3F", url=url)
    return unquote(rest[1:])


def options_of(
    where: object, query: str, kinds: Mapping[str, Callable[[str], Any]], others: Sequence[str] = ()
) -> dict[str, Any]:
    """The options after the ``?`` of an address, converted by ``kinds``; ``others`` are also named in an error.

    >>> options_of("cache.example", "timeout_s=5", {"prefix": str, "timeout_s": float})
    {'timeout_s': 5.0}
    """
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in kinds:
            raise Misuse(f"{where}: no option {name!r}; there are {', '.join((*kinds, *others))}", name=name)
        try:
            options[name] = kinds[name](value)
        except ValueError:
            raise Misuse(f"{where}: {name}={value}: this must be a number", name=name) from None
    return options


def check_timeout(where: object, timeout_s: float) -> float:
    """The timeout if it is valid, else `Misuse`."""
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        text = f"{where}: timeout_s is {timeout_s}, must be more than 0 and at most {TIMEOUT_MAX_S}"
        raise Misuse(text, timeout_s=timeout_s)
    return timeout_s
