"""The tokens of messages in flight in Redis, for endpoints on several machines whose entities are elsewhere.

Every verb is one script (tokens.lua), which the server runs as one step: there is no lock, and nothing can come between
the look for a parent and the making of its children. A batch goes out as one call, or as a few if it is large.

What Redis forgets is worse here than in a cache: a message whose token is lost is taken for one that was processed. So
the settings that can lose something are named (`warnings`), and each call says which store it means. One that was
emptied has another *realm*, and answers nothing any more: that is `Damaged`, not "no token".

When an answer is lost nobody knows whether the call was done. That is `StoreFailed`, and it is not made again here: the
attempt is begun anew, and finds out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from importlib.resources import files
from secrets import token_hex
from typing import Any, Final, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onefold.clock import wall_ms
from onefold.errors import BadInput, Damaged, Misuse, StoreFailed
from onefold.outbox import plans, ports
from onefold.stores.addresses import check_timeout
from onefold.stores.redis import TIMEOUT_S, concerns, shown

PREFIX: Final = "onefold:outbox:"
TOKENS_MAX: Final = 500
"""In one call, which holds up the server for some milliseconds; more are sent as several calls. (As for claims.)"""

_KEYS: Final = ("realm", "tokens", "names", "ages", "children")
_SCRIPT: Final = files(__package__).joinpath("tokens.lua").read_text(encoding="utf-8")


class RedisTokens:
    """A `TokenStore` in one Redis server (with its replicas; not a Redis Cluster). Threads may share it; it connects at
    the first call, and reconnects by itself."""

    def __init__(
        self, url: str, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S, replicas_min: int = 0, *,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:  # fmt: skip
        """Point at ``redis://[user:password@]host[:port][/db]``, or ``rediss://`` for TLS.

        ``prefix`` comes before each key. Each wait for the server lasts ``timeout_s`` at most. With ``replicas_min`` a
        change is only answered when so many replicas have it, too. Options for TLS stand in the address, with
        redis-py's names: ``rediss://host?ssl_ca_certs=ca.pem``.
        """
        self.url = shown(url)
        check_timeout(self.url, timeout_s)
        if replicas_min < 0:
            raise Misuse(f"{self.url}: replicas_min is {replicas_min}, must be 0 or more", replicas_min=replicas_min)
        self._keys = [prefix + name for name in _KEYS]
        self._timeout_s, self._replicas_min, self._clock_ms = timeout_s, replicas_min, clock_ms
        try:
            self._client = redis.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                driver_info=None,
            )
            self._client.connection_pool.make_connection()  # connects nowhere, but refuses options that do not exist
        except (TypeError, ValueError, redis.RedisError) as error:
            raise Misuse(f"{self.url}: {_line(error)}", url=self.url) from None
        self._sha = str(self._client.register_script(_SCRIPT).sha)
        self._realm = ""
        self._open = True

    @property
    def realm(self) -> str:
        """The name of this store, made by whoever asked first. It is asked for once."""
        with self._asking():
            return self._get_realm()

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        exist: list[bool] = []
        with self._asking():
            for at in range(0, len(tokens), TOKENS_MAX):
                exist += self._call("holds", list(tokens[at : at + TOKENS_MAX]))
        return exist

    def create(self, births: Sequence[plans.Create]) -> list[bool]:
        """One birth is one step; several go in one call while they are not too many."""
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
        with self._asking():
            for call in calls:
                words = [(birth.parent, birth.attempt, birth.guarded, birth.tokens) for birth in call]
                created += self._call("create", [str(self._clock_ms()), *words], writes=True)
        return created

    def remove(self, removals: Sequence[plans.Remove]) -> None:
        with self._asking():
            for at in range(0, len(removals), TOKENS_MAX):
                self._call("remove", list(removals[at : at + TOKENS_MAX]), writes=True)

    def discard(self, token: str, parent: str | None = None) -> bool:
        with self._asking():
            (was_there,) = self._call("discard", [token, parent], writes=True)
        return bool(was_there)

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[ports.Token]:
        """Cost: several calls for many, between which tokens come and go; orphans are sought among all that have a
        parent."""
        with self._asking():
            if orphans:
                return nsmallest(limit, (token for token in self._orphans() if token.token > after))
            tokens: list[ports.Token] = []
            while len(tokens) < limit:
                page = min(TOKENS_MAX, limit - len(tokens))
                rows = self._call("listed", [tokens[-1].token if tokens else after, page])
                tokens += [_token(row) for row in rows]
                if len(rows) < page:
                    break
        return tokens

    def live(self) -> ports.Live:
        with self._asking():
            tokens, oldest_ms = self._call("live", [])
        return ports.Live(tokens, None if oldest_ms is None else int(oldest_ms))

    def warnings(self) -> list[str]:
        with self._asking():
            return [f"{self.url}: {concern}" for concern in concerns(self._client, self._replicas_min, "tokens")]

    def close(self) -> None:
        self._open = False
        self._client.close()

    def _orphans(self) -> Iterator[ports.Token]:
        behind, many = "-", TOKENS_MAX
        while many == TOKENS_MAX:
            many, last, orphans = self._call("orphans", [behind, TOKENS_MAX])
            behind = f"({last}"
            yield from map(_token, orphans)

    def _get_realm(self) -> str:
        if not self._realm:
            (self._realm,) = self._run("realm", [token_hex(8)], writes=True)
        return self._realm

    def _call(self, verb: str, arguments: Sequence[Any], *, writes: bool = False) -> Any:
        self._get_realm()
        return self._run(verb, arguments, writes=writes)

    def _run(self, verb: str, arguments: Sequence[Any], *, writes: bool) -> Any:
        packed = json.dumps(arguments, ensure_ascii=False)
        words: list[str | int] = [len(self._keys), *self._keys, verb, self._realm, packed]
        try:
            answer = self._send("evalsha", writes, self._sha, *words)
        except redis.exceptions.NoScriptError:  # nothing was done; EVAL also leaves the script there for the next
            answer = self._send("eval", writes, _SCRIPT, *words)
        return json.loads(answer)

    def _send(self, verb: Literal["eval", "evalsha"], writes: bool, *words: str | int) -> Any:
        if not (writes and self._replicas_min):
            return getattr(self._client, verb)(*words)
        pipeline = self._client.pipeline(transaction=False)  # one connection: WAIT is about what came over it
        getattr(pipeline, verb)(*words)
        # Half of the time that we wait for the answer: that the replicas are late is to be told by the server.
        pipeline.wait(self._replicas_min, max(1, int(self._timeout_s * 500)))
        answer, reached = pipeline.execute()
        if reached < self._replicas_min:
            problem = f"{reached} replicas have it, replicas_min is {self._replicas_min}"
            raise StoreFailed(f"{self.url}: {problem}", reached=reached, replicas_min=self._replicas_min)
        return answer

    @contextmanager
    def _asking(self) -> Iterator[None]:
        if not self._open:
            raise Misuse(f"{self.url}: this token store was closed")
        try:
            yield
        except UnicodeEncodeError as error:
            raise BadInput(f"{self.url} cannot keep the text {error.object!r:.100}") from error
        except redis.ResponseError as error:
            if not str(error).startswith("REALM"):
                raise StoreFailed(f"{self.url}: {_line(error)}", url=self.url) from error
            realm = str(error).removeprefix("REALM").strip()
            what = f"{self.url}: this was the store {self._realm!r} and is {realm!r} now: it was emptied or replaced"
            raise Damaged(what, realm=self._realm, found=realm) from error
        except (redis.RedisError, OSError) as error:
            raise StoreFailed(f"{self.url}: {_line(error)}", url=self.url) from error


def _token(row: Sequence[str]) -> ports.Token:
    token, to, parent, attempt, at_ms = row
    return ports.Token(token, to, parent, attempt, int(at_ms))


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
