"""Entities, outboxes and tokens in PostgreSQL, for endpoints on several machines.

Nearly every call is one statement: one round trip, one commit, however many it was given. What a call changes it locks
first, tokens before entities and each in a fixed order, so no two calls wait in a circle. The statements are in
`outbox_entities` and `outbox_tokens`.

When a connection breaks while it waits for its answer nobody knows whether the call was done: that is `StoreFailed`,
and it is not made again here. The attempt is begun anew, and finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from onefold.engines.outbox.record import Entity, Key
from onefold.engines.outbox.steps import Birth, Finish, Open, Opened, Removal, Settle, Settled
from onefold.errors import Misuse
from onefold.ports import FOREVER_MS, Live, Stranded, Token
from onefold.stores.addresses import check_timeout
from onefold.stores.counters import wall_ms
from onefold.stores.postgres import outbox_entities as entities_table
from onefold.stores.postgres import outbox_tokens as tokens_table
from onefold.stores.postgres.address import SCHEMES, Address, parse
from onefold.stores.postgres.connections import Connection, Connections
from onefold.stores.postgres.outbox_schema import check_realm, make, prepare

CONNECTIONS_MAX: Final = 8
"""PostgreSQL allows 100 in all, unless told otherwise: room for a dozen processes."""
TIMEOUT_S: Final = 10.0
"""For a statement, a lock, a connection: a commit takes milliseconds, and a lease is 30 s."""


class PostgresLedger:
    """A `Ledger` in a database of its own or shared with others: four tables whose names begin with ``outbox_``.

    Threads share it. A server that went away and came back is found again.
    """

    def __init__(
        self,
        url: str,
        clock_ms: Callable[[], int] | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Connect to ``postgresql://user:password@host/database#schema``, and make the tables that are not there.

        Without ``#schema`` they are in the first schema of the search path. `Misuse` if the server could lose a commit.
        """
        self._address = _address(url)
        if connections_max < 1:
            told = f"{self._address}: connections_max is {connections_max}, must be at least 1"
            raise Misuse(told, connections_max=connections_max)
        check_timeout(self._address, timeout_s)
        self._clock_ms = clock_ms or wall_ms
        self._realm = ""
        self._connections = Connections(
            self._address.conninfo,
            self._address.shown,
            self._prepare,
            connections_max=connections_max,
            timeout_s=timeout_s,
        )
        try:
            self._realm = self._connections.run(make)
        except BaseException:
            self._connections.close()
            raise

    @property
    def realm(self) -> str:
        """The name of this store, made when the tables were."""
        self._connections.check_open()
        return self._realm

    def load(self, keys: Sequence[Key]) -> list[Entity]:
        """The entities, in this order; version 0 for those that never were."""
        return self._connections.run(lambda db: entities_table.load(db, keys))

    def persist(self, entities: Sequence[Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others."""
        if not entities:
            return []
        return self._connections.run(lambda db: entities_table.persist(db, entities, self._clock_ms()))

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before one time or after the other, oldest first; of one endpoint or of all."""
        return self._connections.run(lambda db: entities_table.stranded(db, before_ms, after_ms, limit, endpoint))

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time, and say how many there were."""
        return self._connections.run(lambda db: entities_table.purge(db, before_ms, endpoint))

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        return self._connections.run(lambda db: tokens_table.holds(db, tokens))

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist."""
        if not births:
            return []
        return self._connections.run(lambda db: tokens_table.create(db, births, self._clock_ms()))

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others."""
        if removals:
            self._connections.run(lambda db: tokens_table.remove(db, removals))

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        return self._connections.run(lambda db: tokens_table.discard(db, token, parent))

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""
        return self._connections.run(lambda db: tokens_table.listed(db, after, limit, orphans=orphans))

    def live(self) -> Live:
        """How many there are, and when the oldest was made. Cost: it looks at each."""
        return self._connections.run(tokens_table.live)

    def warnings(self) -> list[str]:
        """None: what can lose something is not opened."""
        return []

    def open(self, steps: Sequence[Open]) -> list[Opened]:
        """Entities, each with whether its token exists at the same moment."""
        return self._connections.run(lambda db: entities_table.open_(db, steps))

    def settle(self, steps: Sequence[Settle]) -> list[Settled]:
        """Do each or change nothing for it, in this order, all in one transaction that is durable when it returns."""
        if not steps:
            return []
        return self._connections.run(lambda db: entities_table.settle(db, steps, self._clock_ms()))

    def finish(self, steps: Sequence[Finish]) -> None:
        """Remove these outbox entries; the versions stay. One that is not there does no harm."""
        if steps:
            self._connections.run(lambda db: entities_table.finish(db, steps))

    def close(self) -> None:
        """Close all connections; those in use are closed when their calls are over."""
        self._connections.close()

    def _prepare(self, connection: Connection) -> None:
        prepare(connection, self._address.shown, self._address.schema)
        if self._realm:
            check_realm(connection, self._address.shown, self._realm)


def _address(url: str) -> Address:
    """Where the tables are; what is shown of it holds no password.

    >>> _address("postgresql://me:secret@db.example/shop#outbox").shown
    'postgresql://db.example/shop#outbox'
    """
    conninfo, found, schema = url.partition("#")
    if not conninfo.startswith(SCHEMES) or (found and not schema):
        raise Misuse("the address of a ledger must be like postgresql://user:password@host/database#schema")
    address = parse(f"{conninfo}#{schema}.outbox" if schema else conninfo)
    shown = address.shown.partition("#")[0]
    return replace(address, shown=f"{shown}#{unquote(schema)}" if schema else shown)
