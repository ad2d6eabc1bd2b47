"""Counters by address: ``memory://``, ``sqlite:///x.db``, ``redis://host:6379/0``."""

from __future__ import annotations

from time import time_ns
from urllib.parse import parse_qsl, urlencode, urlsplit

from onefold.errors import Misuse
from onefold.ports import CounterStore
from onefold.stores.addresses import masked, sqlite_file

KINDS = "memory://, sqlite:///file.db, sqlite:////folder/file.db, redis://host:6379/0, rediss://host:6379/0"


def open_counters(url: str) -> CounterStore:
    """The store at an address; whether a Redis server is there shows at the first call.

    ``sqlite:///x.db`` is a file of the working folder, ``sqlite:////srv/x.db`` (four strokes) one by its full path.
    ``redis://`` takes options behind a ``?``: ``prefix``, ``timeout_s`` and ``replicas_min`` of `RedisCounters`, and
    redis-py's own for TLS, whose names begin with ``ssl_``.

    >>> open_counters("memory://").known(["0004a30b001c0530"])
    [None]
    >>> open_counters("http://cache.example")
    Traceback (most recent call last):
    onefold.errors.Misuse: no counters at http://...; there are some at memory://, sqlite:///file.db, ...
    """
    scheme, found, rest = url.partition("://")
    if scheme == "memory" and found and not rest:
        from onefold.stores.memory.counter_store import MemoryCounters

        return MemoryCounters(wall_ms)
    if (path := sqlite_file(url)) is not None:
        from onefold.stores.sqlite.counter_store import SqliteCounters

        return SqliteCounters(path, wall_ms)
    if scheme in ("redis", "rediss"):
        return _open_redis(url)
    raise Misuse(f"no counters at {masked(url)}; there are some at {KINDS}")


def _open_redis(url: str) -> CounterStore:
    from onefold.stores.redis.counter_store import PREFIX, TIMEOUT_S, RedisCounters, shown

    where = shown(url)
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    prefix = options.pop("prefix", PREFIX)
    timeout, replicas = options.pop("timeout_s", str(TIMEOUT_S)), options.pop("replicas_min", "0")
    for name in options:
        if not name.startswith("ssl_"):
            raise Misuse(f"{where}: no option {name!r}; there are prefix, timeout_s, replicas_min, ssl_...", name=name)
    try:
        timeout_s, replicas_min = float(timeout), int(replicas)
    except ValueError:
        raise Misuse(f"{where}: timeout_s={timeout}, replicas_min={replicas}: these must be numbers") from None
    plain = urlsplit(url)._replace(query=urlencode(options)).geturl()
    return RedisCounters(plain, prefix, timeout_s, replicas_min=replicas_min)


def wall_ms() -> int:
    """What the clock on the wall says, in milliseconds since 1970."""
    return time_ns() // 1_000_000
