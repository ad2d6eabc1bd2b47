"""The counters of devices in Redis, for servers on several machines: one script, one round trip, no lock.

The ADR takes a lock in Redis, reads, compares, writes and unlocks. A lock must expire, or a server that dies holds the
device for ever; but it can also expire while its owner is only slow, and then two servers win. Here the whole
comparison is a script (claim.lua) that Redis runs as one step.

A batch is one call of the script, done as a whole or not at all. If the answer is lost, it is unknown which: that is
`StoreFailed`. Retries of redis-py are switched off; the caller may make the same claims again, and those that had won
win again. A retry only takes the next down counter once more, so one may be skipped, which devices accept; no two
answers ever have the same one.

The same step keeps the bodies of won claims, in one hash per server (``unfinished/...``, which no device is called),
and deletes those that are finished. The nonces of a device are a set of small numbers, two bytes each up to 512 of
them. Entries with ``keep_ms`` expire by the clock of the Redis server (PX).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import cast

from onefold.errors import StoreFailed
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished
from onefold.stores.redis import TIMEOUT_S, RedisStore

PREFIX = "onefold:lorawan:"
CLAIMS_MAX = 500
"""Claims in one call, and as many finished messages. A call of this size blocks the Redis server for milliseconds."""

_NUMBER = Claim._fields.index("number")
_COUNTERS = re.compile(r"(\d+) (\d+) (?:=([0-9a-f]*) )?(.*)", re.DOTALL)
_SCRIPT = files(__package__).joinpath("claim.lua").read_text(encoding="utf-8")


class RedisCounters(RedisStore):
    """A `CounterStore` in one Redis server."""

    script = _SCRIPT
    contents = "claims"
    closed = "these counters were closed"

    def __init__(self, url: str, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S, *, replicas_min: int = 0) -> None:
        """The URL is ``redis://[user:password@]host[:port][/db]``, or ``rediss://`` for TLS.

        ``prefix`` comes before each key. Each wait for the server lasts at most ``timeout_s``. With ``replicas_min`` a
        claim is answered only when so many replicas have it, too. TLS options are part of the URL, with redis-py's
        names: ``rediss://host?ssl_ca_certs=ca.pem``.
        """
        super().__init__(url, timeout_s, replicas_min)
        self._prefix = prefix

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        with self._asking():
            while len(finished) > CLAIMS_MAX:  # all before the first claim, which may add the same number again
                self._call((), finished[:CLAIMS_MAX])
                finished = finished[CLAIMS_MAX:]
            answers = self._call(claims[:CLAIMS_MAX], finished) if claims or finished else []
            for at in range(CLAIMS_MAX, len(claims), CLAIMS_MAX):
                answers += self._call(claims[at : at + CLAIMS_MAX])
        return answers

    def unfinished(self, server: str) -> list[Unfinished]:
        outbox = self._outbox(server)
        with self._asking():
            messages = cast(dict[bytes, bytes], self._client.hgetall(outbox))
        unfinished = []
        try:
            for number, message in messages.items():
                device, fcnt_up, body = json.loads(message)
                unfinished.append(Unfinished(int(number), device, fcnt_up, body))
        except (TypeError, ValueError, RecursionError):
            raise StoreFailed(f"{self.url}: {outbox} holds something else than messages", server=server) from None
        return sorted(unfinished)

    def known(self, devices: Sequence[str]) -> list[Counters | None]:
        values: list[bytes | None] = []
        with self._asking():
            for at in range(0, len(devices), CLAIMS_MAX):
                keys = [self._prefix + device for device in devices[at : at + CLAIMS_MAX]]
                values += cast(list[bytes | None], self._client.mget(keys))
        counters: list[Counters | None] = []
        for device, value in zip(devices, values, strict=True):
            if value is None:
                counters.append(None)
            elif fields := _COUNTERS.fullmatch(value.decode(errors="replace")):
                counters.append(Counters(int(fields[1]), int(fields[2]), fields[4], fields[3] or ""))
            else:
                problem = f"{self.url}: {self._prefix}{device} holds something else than counters"
                raise StoreFailed(problem, device=device)
        return counters

    def _outbox(self, server: str) -> str:
        return f"{self._prefix}unfinished/{server}"

    def _call(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        servers = {claim.server: [claim.server] for claim in claims if claim.body}
        for server, number in finished:
            servers.setdefault(server, [server]).append(str(number))
        keys = [self._prefix + claim.entry for claim in claims] + [self._outbox(server) for server in servers]
        # JSON: redis-py takes 28 microseconds to send the twelve fields of a claim as words, this takes 7.
        rows: list[list[object]] = []
        for claim in claims:
            if claim.nonce is not None:
                keys.append(f"{self._prefix}nonces/{claim.device}")
            rows.append([*claim._replace(number=0), len(keys)])
            rows[-1][_NUMBER] = str(claim.number)
        words: list[str | int] = [len(keys), *keys, json.dumps([rows, list(servers.values())])]
        # Without claims Lua returns {}, which is empty too.
        return [Claimed(*answer) for answer in json.loads(self._run(*words))]
