"""Tokens of messages in flight in Redis, for endpoints on several machines whose entities are in another store.

Every method is one call of a script (tokens.lua), which the server runs atomically: no lock is needed between checking
a parent and making its children. A batch is one call, or a few if it is large.

Losing data is worse here than in a cache: a message whose token is lost is taken for a duplicate. So `warnings` names
the settings that can lose writes, and each call carries the store's *realm*. A store that was emptied has another
realm, and the call raises `Damaged` instead of answering "no token".

If a response is lost, the call may or may not have been executed: the attempt restarts, and finds out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from importlib.resources import files
from secrets import token_hex
from typing import Any, Final

import redis

from onefold.clock import wall_ms
from onefold.errors import BadInput, Damaged
from onefold.outbox import plans, ports
from onefold.stores.redis import TIMEOUT_S, RedisStore

PREFIX: Final = "onefold:outbox:"
TOKENS_MAX: Final = 500
"""Per call, which blocks the server for some milliseconds; larger batches are split."""

_KEYS: Final = ("realm", "tokens", "names", "ages", "children")


class RedisTokens(RedisStore):
    """A `TokenStore` in one Redis server."""

    script = files(__package__).joinpath("tokens.lua").read_text(encoding="utf-8")
    contents = "tokens"
    closed = "this token store was closed"

    def __init__(
        self, url: str, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S, replicas_min: int = 0, *,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:  # fmt: skip
        """``url``: ``redis://[user:password@]host[:port][/db]``, or ``rediss://`` for TLS, with redis-py's options in
        the query: ``rediss://host?ssl_ca_certs=ca.pem``. ``prefix``: of each key. ``timeout_s``: for each response.
        ``replicas_min``: a write is confirmed when this many replicas have it.
        """
        super().__init__(url, timeout_s, replicas_min)
        self._keys, self._clock_ms = [prefix + name for name in _KEYS], clock_ms
        self._realm = ""

    @property
    def realm(self) -> str:
        """The name of this store, made by its first client. It is read once and kept."""
        with self._asking():
            return self._get_realm()

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        return [exists for part in _parts(tokens) for exists in self._call("holds", part)]

    def create(self, births: Sequence[plans.Create]) -> list[bool]:
        """Each birth is atomic; a call holds up to `TOKENS_MAX` tokens."""
        calls: list[list[plans.Create]] = []
        room = 0
        for birth in births:
            weight = 1 + len(birth.tokens)
            if weight > room:
                calls.append([])
                room = TOKENS_MAX
            calls[-1].append(birth)
            room -= weight
        created: list[bool] = []
        for call in calls:
            words = [(birth.parent, birth.attempt, birth.guarded, birth.tokens) for birth in call]
            created += self._call("create", [str(self._clock_ms()), *words], writes=True)
        return created

    def remove(self, removals: Sequence[plans.Remove]) -> None:
        for part in _parts(removals):
            self._call("remove", part, writes=True)

    def discard(self, token: str, parent: str | None = None) -> bool:
        (was_there,) = self._call("discard", [token, parent], writes=True)
        return bool(was_there)

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[ports.Token]:
        """Cost: several calls for many tokens, which may change in between; for orphans, a scan of all tokens that have
        a parent."""
        if orphans:
            return nsmallest(limit, (token for token in self._orphans() if token.token > after))
        tokens: list[ports.Token] = []
        while len(tokens) < limit:
            page = min(TOKENS_MAX, limit - len(tokens))
            rows = self._call("listed", [tokens[-1].token if tokens else after, page])
            tokens += map(_token, rows)
            if len(rows) < page:
                break
        return tokens

    def live(self) -> ports.Live:
        tokens, oldest_ms = self._call("live", [])
        return ports.Live(tokens, None if oldest_ms is None else int(oldest_ms))

    def _orphans(self) -> Iterator[ports.Token]:
        behind, many = "-", TOKENS_MAX
        while many == TOKENS_MAX:
            many, last, orphans = self._call("orphans", [behind, TOKENS_MAX])
            behind = f"({last}"
            yield from map(_token, orphans)

    def _get_realm(self) -> str:
        if not self._realm:
            (self._realm,) = self._answer("realm", [token_hex(8)], writes=True)
        return self._realm

    def _call(self, verb: str, arguments: Sequence[Any], *, writes: bool = False) -> Any:
        with self._asking():
            self._get_realm()
            return self._answer(verb, arguments, writes=writes)

    def _answer(self, verb: str, arguments: Sequence[Any], *, writes: bool) -> Any:
        packed = json.dumps(arguments, ensure_ascii=False)
        return json.loads(self._run(len(self._keys), *self._keys, verb, self._realm, packed, writes=writes))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with super()._asking():
            try:
                yield
            except UnicodeEncodeError as error:
                raise BadInput(f"{self.url} cannot keep the text {error.object!r:.100}") from error
            except redis.ResponseError as error:
                if not str(error).startswith("REALM"):
                    raise
                realm = str(error).removeprefix("REALM").strip()
                text = f"{self.url}: this was the store {self._realm!r} and is {realm!r} now"
                raise Damaged(f"{text}: it was emptied or replaced", realm=self._realm, found=realm) from error


def _parts(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[at : at + TOKENS_MAX] for at in range(0, len(values), TOKENS_MAX)]


def _token(row: Sequence[str]) -> ports.Token:
    token, to, parent, attempt, at_ms = row
    return ports.Token(token, to, parent, attempt, int(at_ms))
