"""The door to the counters of devices, by address: ``memory://``, ``sqlite:///x.db``, ``redis://host:6379/0``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onefold.clock import wall_ms
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished
from onefold.stores.addresses import nothing_at, scheme_of


class CounterStore(Protocol):
    """What all network servers know of each device: its last counters, and whose its last frame was (lorawan).

    Shared by threads, processes or machines. The rules are `decide` and, for join requests, `decide_join`; a claim is
    one step that nothing can come between. One entry per device: its counters, the key of the frame that was counted
    last, and each nonce that it has joined with. Beside them stands an outbox: the messages of claims that were won and
    are not yet stored upstream.
    """

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        """Judge the claims in this order, each against what those before it left; the answers, in the same order.

        What was won is kept when it returns, as durably as the store can, for ``keep_ms`` from then on (0: for ever),
        and a nonce for ever in any case; a lost claim changes nothing. A won claim's body is kept in the same step, for
        ever, under its server and number (0 to 2^63 - 1): two receptions of one frame keep both, the same claim made
        again keeps one. The bodies of what is ``finished`` are let go before; one that is not there does no harm.

        `StoreFailed`: nothing is known of these claims and of what was finished. Make the same call again: who had won,
        with a body, wins again, whatever was counted since; only a downlink's number may then be skipped, or not be
        given. Whoever gives a claim up instead finishes it like the others: its body may be kept.
        """
        ...

    def unfinished(self, server: str) -> list[Unfinished]:
        """What this server won, with a body, and has not finished, by number: to be stored upstream after a crash."""
        ...

    def known(self, devices: Sequence[str]) -> list[Counters | None]:
        """What is kept of each device, in this order; None if it was never heard, or kept long enough."""
        ...

    def close(self) -> None:
        """Let go of the store; every other call is `Misuse` from then on. May be called twice."""
        ...


KINDS = "memory://, sqlite:///file.db, sqlite:////folder/file.db, redis://host:6379/0, rediss://host:6379/0"


def open_counters(url: str) -> CounterStore:
    """The store at an address; whether a Redis server is there shows at the first call.

    ``redis://`` takes options behind a ``?``: ``prefix``, ``timeout_s`` and ``replicas_min`` of `RedisCounters`, and
    redis-py's own for TLS, whose names begin with ``ssl_``.

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
    raise nothing_at(url, "counters", KINDS)
