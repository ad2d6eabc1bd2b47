"""Ledgers and token stores by address: ``memory://``, ``sqlite:///x.db``, ``postgresql://host/db``, ``redis://host``."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from onefold.errors import Misuse
from onefold.outbox.ports import Ledger, TokenStore
from onefold.stores.addresses import masked, sqlite_file

LEDGERS = "memory://, sqlite:///file.db, sqlite:////folder/file.db, postgresql://user@host/database"
TOKENS = f"{LEDGERS}, redis://host:6379/0, rediss://host:6379/0"
_REDIS_OPTIONS = {"prefix": str, "timeout_s": float, "replicas_min": int}


def open_ledger(url: str) -> Ledger:
    """The ledger at an address.

    ``sqlite:///x.db`` is a file of the working folder, ``sqlite:////srv/x.db`` (four strokes) one by its full path.

    >>> open_ledger("memory://").live()
    Live(tokens=0, oldest_ms=None)
    >>> open_ledger("http://me:secret@db.example")
    Traceback (most recent call last):
    onefold.errors.Misuse: no ledger at http://...; there are some at memory://, sqlite:///file.db, ...
    """
    return _found(url) or _refuse(url, "ledger", LEDGERS)


def open_tokens(url: str) -> TokenStore:
    """The token store at an address: any ledger, or a Redis, which is asked nothing before the first call.

    ``redis://`` takes options behind a ``?``: ``prefix``, ``timeout_s`` and ``replicas_min`` of `RedisTokens`, and
    redis-py's own for TLS, whose names begin with ``ssl_``.
    """
    if url.partition("://")[0] in ("redis", "rediss"):
        return _open_redis(url)
    return _found(url) or _refuse(url, "token store", TOKENS)


def _found(url: str) -> Ledger | None:
    scheme, found, rest = url.partition("://")
    if scheme == "memory" and found and not rest:
        from onefold.outbox.stores.memory import MemoryLedger

        return MemoryLedger()
    if (path := sqlite_file(url)) is not None:
        from onefold.outbox.stores.sqlite import SqliteLedger

        return SqliteLedger(path)
    if scheme in ("postgresql", "postgres") and found:
        from onefold.outbox.stores.postgres import PostgresLedger

        return PostgresLedger(url)
    return None


def _refuse(url: str, what: str, kinds: str) -> Any:
    raise Misuse(f"no {what} at {masked(url)}; there are some at {kinds}")


def _open_redis(url: str) -> TokenStore:
    from onefold.outbox.stores.redis import RedisTokens
    from onefold.stores.redis import shown

    where = shown(url)
    given: dict[str, Any] = {}
    passed_on = {}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name.startswith("ssl_"):
            passed_on[name] = value
        elif name not in _REDIS_OPTIONS:
            raise Misuse(f"{where}: no option {name!r}; there are {', '.join(_REDIS_OPTIONS)}, ssl_...", name=name)
        else:
            given[name] = _number(where, name, value)
    return RedisTokens(urlsplit(url)._replace(query=urlencode(passed_on)).geturl(), **given)


def _number(where: str, name: str, value: str) -> Any:
    try:
        return _REDIS_OPTIONS[name](value)
    except ValueError:
        raise Misuse(f"{where}: {name}={value}: this must be a number", name=name) from None
