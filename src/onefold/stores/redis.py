"""A Redis server: its address and options, and warnings about settings that can lose acknowledged writes.

By default Redis only writes a dump from time to time: a restart loses minutes. A coordinator needs ``appendonly yes``
and ``appendfsync always`` (every answer waits for the disk; ``everysec`` loses up to two seconds), ``maxmemory-policy
noeviction`` (others drop keys when memory is short) and, if replicas may take over, claims that wait for them. A lost
entry matters: a frame that was heard before counts once more, and a replayed one is taken for new.

Hosted servers often forbid CONFIG; then INFO shows a part of it, and settings that cannot be read are named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onefold.errors import Misuse, StoreFailed
from onefold.stores.addresses import check_timeout, options_of

TIMEOUT_S = 2.0
OPTIONS = {"prefix": str, "timeout_s": float, "replicas_min": int}
# Setting: the value that keeps everything, and what can happen with any other.
WANTED = {
    "appendonly": ("yes", "after a restart {what} are missing"),
    "appendfsync": ("always", "after a crash the {what} of the last seconds are missing"),
    "no-appendfsync-on-rewrite": ("no", "{what} made while the file is rewritten can be missing after a crash"),
    "maxmemory-policy": ("noeviction", "when memory is short what is kept is thrown away"),
}


class RedisStore:
    """A store in one Redis server (with its replicas; not a Redis Cluster), changed by one script, which the server
    runs atomically. Thread-safe; it connects at the first call, and reconnects by itself. After a lost answer it is not
    known whether the call took effect: that is `StoreFailed`, and the call is not repeated here."""

    script: ClassVar[str]
    contents: ClassVar[str]
    """The contents as named in warnings."""
    closed: ClassVar[str]
    """The text of `Misuse` after `close`."""

    def __init__(self, url: str, timeout_s: float, replicas_min: int) -> None:
        self.url = shown(url)
        self._timeout_s = check_timeout(self.url, timeout_s)
        if replicas_min < 0:
            raise Misuse(f"{self.url}: replicas_min is {replicas_min}, must be 0 or more", replicas_min=replicas_min)
        self._replicas_min = replicas_min
        try:
            self._client = redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0),
                protocol=2, driver_info=None,
            )  # fmt: skip
            self._client.connection_pool.make_connection()  # does not connect, but refuses unknown options
        except (TypeError, ValueError, redis.RedisError) as error:
            raise Misuse(f"{self.url}: {_line(error)}", url=self.url) from None
        self._sha = str(self._client.register_script(self.script).sha)
        self._open = True

    def warnings(self) -> list[str]:
        """Settings of the server that can lose acknowledged writes, one sentence each; to be shown at start."""
        with self._asking():
            return [f"{self.url}: {concern}" for concern in concerns(self._client, self._replicas_min, self.contents)]

    def close(self) -> None:
        self._open = False
        self._client.close()

    def _run(self, *words: str | int, writes: bool = True) -> bytes:
        """Run the script with the number of keys, the keys and the arguments."""
        try:
            return self._send("evalsha", self._sha, *words, writes=writes)
        except redis.exceptions.NoScriptError:  # no effect; EVAL also caches the script for the next call
            return self._send("eval", self.script, *words, writes=writes)

    def _send(self, verb: str, *words: str | int, writes: bool) -> bytes:
        if not (writes and self._replicas_min):
            return cast(bytes, getattr(self._client, verb)(*words))
        pipeline = self._client.pipeline(transaction=False)  # one connection: WAIT covers its own writes only
        getattr(pipeline, verb)(*words)
        # Half of our timeout, so that the server reports late replicas before that.
        pipeline.wait(self._replicas_min, max(1, int(self._timeout_s * 500)))
        answer, reached = pipeline.execute()
        if reached < self._replicas_min:
            problem = f"{self.url}: {reached} replicas have it, replicas_min is {self._replicas_min}"
            raise StoreFailed(problem, reached=reached, replicas_min=self._replicas_min)
        return cast(bytes, answer)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        if not self._open:
            raise Misuse(f"{self.url}: {self.closed}")
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise StoreFailed(f"{self.url}: {_line(error)}", url=self.url) from error


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def concerns(client: redis.Redis, replicas_min: int, what: str) -> list[str]:
    """One sentence per setting that can lose ``what``, or that could not be read."""
    try:
        info, hidden = client.info(), ""
    except redis.ResponseError as error:
        info, hidden = {}, str(error)
    values: dict[str, str] = {}
    refusal = "the server does not know it"
    try:
        for name in WANTED:
            values |= cast(dict[str, str], client.config_get(name))
    except redis.ResponseError as error:
        refusal = str(error)
        if "aof_enabled" in info:
            values["appendonly"] = "yes" if info["aof_enabled"] else "no"
        if "maxmemory_policy" in info:
            values["maxmemory-policy"] = info["maxmemory_policy"]
    unsynced = values.get("appendonly") == "no"  # then appendfsync does not matter
    lines = [
        f"{name} is {values[name]}, should be {wanted}: {harm.format(what=what)}"
        for name, (wanted, harm) in WANTED.items()
        if name in values and values[name] != wanted and not (unsynced and "appendfsync" in name)
    ]
    unseen = [name for name in WANTED if name not in values]
    if unseen:
        lines.append(f"{', '.join(unseen)} could not be checked ({refusal})")
    replicas = int(info.get("connected_slaves", 0))
    if hidden:
        lines.append(f"whether it has replicas could not be checked ({hidden})")
    elif replicas and not replicas_min:
        lines.append(f"it has {replicas} replica(s), replicas_min is 0: {what} may be missing when one takes over")
    return lines


def shown(url: str) -> str:
    """An address without user, password and options; an invalid one is `Misuse`, which does not show it.

    >>> shown("redis://me:secret@cache.example:6380/2?ssl_ca_certs=x")
    'redis://cache.example:6380/2'
    """
    problem = Misuse("the address of a Redis must be like redis://user:password@host:6379/0 (yours is not shown)")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise problem from None
    database = parts.path.removeprefix("/") or "0"
    if parts.scheme not in ("redis", "rediss") or not host or not database.isdecimal():
        raise problem
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or 6379}/{database}"


def split_options(url: str) -> tuple[str, dict[str, Any]]:
    """The address with only redis-py's options for TLS, and our options: prefix, timeout_s, replicas_min.

    >>> split_options("redis://cache.example/0?prefix=shop&timeout_s=5&ssl_ca_certs=x")
    ('redis://cache.example/0?ssl_ca_certs=x', {'prefix': 'shop', 'timeout_s': 5.0})
    """
    where, parts = shown(url), urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    theirs = urlencode([pair for pair in pairs if pair[0].startswith("ssl_")])
    ours = urlencode([pair for pair in pairs if not pair[0].startswith("ssl_")])
    return parts._replace(query=theirs).geturl(), options_of(where, ours, OPTIONS, ["ssl_..."])
