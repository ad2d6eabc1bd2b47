"""What a store of counters must do, and opening one by its URL: ``memory://``, ``sqlite:///x.db``, ``redis://host``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onefold.clock import wall_ms
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished
from onefold.stores.addresses import nothing_at, scheme_of


class CounterStore(Protocol):
    """What all network servers know of each device: its last counters, and which server counted its last frame.

    Shared by threads, processes or machines. The rules are `decide` and, for join requests, `decide_join`; a claim is
    one atomic step. There is one entry per device: its counters, the key of the frame that was counted last, and each
    nonce that it has joined with. Beside the entries there is an outbox: the messages of claims that were won and are
    not yet stored upstream.
    """

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        """Decide the claims in this order, each after those before it; the results, in the same order.

        When it returns, a won claim is stored as durably as the store can, for ``keep_ms`` (0: for ever), and its nonce
        for ever; a lost claim changes nothing. The body of a won claim is kept in the same step, until it is finished,
        under its server and number (0 to 2^63 - 1): two receptions of one frame keep both bodies, the same claim made
        again keeps one. The bodies of ``finished`` claims are deleted before; a missing one is no error.

        `StoreFailed`: it is unknown whether any of this was done. Retry the same call: a claim with a body that had won
        wins again, whatever was counted since; only a down counter may then be skipped, or not be given. A caller that
        does not retry must finish the claim like a won one, since its body may be kept.
        """
        ...

    def unfinished(self, server: str) -> list[Unfinished]:
        """The messages that this server won and has not finished, by number: to be stored upstream after a crash."""
        ...

    def known(self, devices: Sequence[str]) -> list[Counters | None]:
        """The counters of each device, in this order; None if it was never counted, or its entry has expired."""
        ...

    def close(self) -> None:
        """Close the store; every other call raises `Misuse` from then on. May be called twice."""
        ...


def open_counters(url: str) -> CounterStore:
    """The store at a URL. A Redis server is not contacted before the first call.

    ``redis://`` takes options after a ``?``: ``prefix``, ``timeout_s`` and ``replicas_min`` of `RedisCounters`, and
    redis-py's TLS options, whose names begin with ``ssl_``.

    >>> open_counters("memory://").known(["0004a30b001c0530"])
    [None]
    >>> open_counters("http://cache.example")
    Traceback (most recent call last):
    onefold.errors.Misuse: no counters at http://...; there are some at memory://, sqlite:///file.db, ...
    """
    match scheme_of(url):
        case "memory", _:
            from onefold.lorawan.stores.sqlite import MemoryCounters

            return MemoryCounters(wall_ms)
        case "sqlite", path:
            from onefold.lorawan.stores.sqlite import SqliteCounters

            return SqliteCounters(path, wall_ms)
        case (("redis" | "rediss"), _):
            from onefold.lorawan.stores.redis import RedisCounters
            from onefold.stores.redis import split_options

            address, options = split_options(url)
            return RedisCounters(address, **options)
    kinds = "memory://, sqlite:///file.db, sqlite:////folder/file.db, redis://host:6379/0, rediss://host:6379/0"
    raise nothing_at(url, "counters", kinds)
