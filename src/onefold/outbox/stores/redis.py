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
from onefold.outbox.ports import Live, Token
from onefold.outbox.steps import Birth, Removal
from onefold.stores.addresses import check_timeout
from onefold.stores.redis import TIMEOUT_S, concerns, shown

PREFIX: Final = "onefold:outbox:"
TOKENS_MAX: Final = 500
"""In one call, which holds up the server for some milliseconds; more are sent as several calls. (As for claims.)"""

_KEYS: Final = ("realm", "tokens", "names", "ages", "children")
_SCRIPT: Final = files(__package__).joinpath("tokens.lua").read_text(encoding="utf-8")


class RedisTokens:
    """A `TokenStore` in one Redis server (with its replicas; not a Redis Cluster). Threads may share it.

    Nothing is asked of the server before the first call, and a server that went away and came back is found again.
    """

    def __init__(
        self,
        url: str,
        prefix: str = PREFIX,
        timeout_s: float = TIMEOUT_S,
        replicas_min: int = 0,
        *,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
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
            return self._known()

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        held: list[bool] = []
        with self._asking():
            for at in range(0, len(tokens), TOKENS_MAX):
                held += self._call("holds", list(tokens[at : at + TOKENS_MAX]))
        return held

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist."""
        made: list[bool] = []
        with self._asking():
            for together in _in_calls(births):
                asked = [(birth.parent, birth.attempt, birth.guarded, birth.tokens) for birth in together]
                made += self._call("create", [str(self._clock_ms()), *asked], writes=True)
        return made

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others."""
        with self._asking():
            for at in range(0, len(removals), TOKENS_MAX):
                self._call("remove", list(removals[at : at + TOKENS_MAX]), writes=True)

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        with self._asking():
            (was_there,) = self._call("discard", [token, parent], writes=True)
        return bool(was_there)

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token.

        Cost: several calls for many, between which tokens come and go; orphans are sought among all that have a parent.
        """
        with self._asking():
            if orphans:
                return nsmallest(limit, (token for token in self._orphans() if token.token > after))
            found: list[Token] = []
            while len(found) < limit:
                page = min(TOKENS_MAX, limit - len(found))
                tokens = self._call("listed", [found[-1].token if found else after, page])
                found += [_token(row) for row in tokens]
                if len(tokens) < page:
                    break
        return found

    def live(self) -> Live:
        """How many there are, and when the oldest was made."""
        with self._asking():
            tokens, oldest_ms = self._call("live", [])
        return Live(tokens, None if oldest_ms is None else int(oldest_ms))

    def warnings(self) -> list[str]:
        """Settings of the server by which it can lose what it has answered, one sentence each; to be said at start."""
        with self._asking():
            return [f"{self.url}: {concern}" for concern in concerns(self._client, self._replicas_min, "tokens")]

    def close(self) -> None:
        """Close all connections."""
        self._open = False
        self._client.close()

    def _orphans(self) -> Iterator[Token]:
        behind, many = "-", TOKENS_MAX
        while many == TOKENS_MAX:
            many, last, orphans = self._call("orphans", [behind, TOKENS_MAX])
            behind = f"({last}"
            yield from map(_token, orphans)

    def _known(self) -> str:
        if not self._realm:
            (self._realm,) = self._run("realm", [token_hex(8)], writes=True)
        return self._realm

    def _call(self, verb: str, asked: Sequence[Any], *, writes: bool = False) -> Any:
        self._known()
        return self._run(verb, asked, writes=writes)

    def _run(self, verb: str, asked: Sequence[Any], *, writes: bool) -> Any:
        packed = json.dumps(asked, ensure_ascii=False)
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
            told = f"{self.url}: {reached} replicas have it, replicas_min is {self._replicas_min}"
            raise StoreFailed(told, reached=reached, replicas_min=self._replicas_min)
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
            if not (told := str(error)).startswith("REALM"):
                raise StoreFailed(f"{self.url}: {_line(error)}", url=self.url) from error
            found = told.removeprefix("REALM").strip()
            what = f"{self.url}: this was the store {self._realm!r} and is {found!r} now: it was emptied or replaced"
            raise Damaged(what, realm=self._realm, found=found) from error
        except (redis.RedisError, OSError) as error:
            raise StoreFailed(f"{self.url}: {_line(error)}", url=self.url) from error


def _in_calls(births: Sequence[Birth]) -> Iterator[list[Birth]]:
    """One birth is one step; several go together while they are not too many."""
    together: list[Birth] = []
    many = 0
    for birth in births:
        weight = 1 + len(birth.tokens)
        if together and many + weight > TOKENS_MAX:
            yield together
            together, many = [], 0
        together.append(birth)
        many += weight
    if together:
        yield together


def _token(row: Sequence[str]) -> Token:
    token, to, parent, attempt, at_ms = row
    return Token(token, to, parent, attempt, int(at_ms))


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
