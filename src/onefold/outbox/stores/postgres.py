"""A ledger in PostgreSQL, for endpoints on several machines.

Nearly every call is one statement: one round trip, one commit, however many arguments. If a connection breaks while
waiting for the result, it is unknown whether the call was done: the call raises `StoreFailed` and is not retried here.
The next attempt finds out.

*Locks.* A call first locks what it changes, tokens before entities and each in a fixed order, so calls cannot deadlock.
Entities are locked in key order and checked against the version that was read; new entities are inserted after that, in
the same order. (A batch that writes one entity twice takes two statements, and can deadlock with another such batch.
PostgreSQL rolls one back, and it is retried.) Tokens are locked in the order of creation, not by name: a child created
while we waited for its parent would sort before the parent half of the time. A locked row is written by its ctid,
without another search. If another writer changed it while we waited for the lock, its version is higher and the row is
not found.

A guarded `create` locks its parent's row until its tokens exist. So a concurrent removal waits, and then looks for
children in a separate statement: the statement that waited still has the snapshot from before.

*Plans.* PostgreSQL keeps a plan made for a table of ten rows, and it is bad for a million: tables that are filled and
emptied all day have no typical size. So statements are written such that only index lookups are possible, sequential
scans are off, and one generic plan serves all calls. Names are compared byte by byte (collation "C"), as in every other
store, whatever the database's locale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from onefold.clock import wall_ms
from onefold.errors import Damaged, Misuse
from onefold.outbox import plans, ports
from onefold.stores.addresses import check_timeout
from onefold.stores.postgres import SCHEMES, Connection, Connections, PostgresAddress, parse

Step = TypeVar("Step")

CONNECTIONS_MAX: Final = 8
"""PostgreSQL allows 100 in all by default: room for a dozen processes."""
TIMEOUT_S: Final = 10.0
"""For a statement, a lock, a connection: a commit takes milliseconds, and a lease is 30 s."""

TABLES: Final = ("outbox_entities", "outbox_entries", "outbox_tokens", "outbox_realm", "outbox_schema")
SCHEMA: Final = (
    """
    create table if not exists outbox_entities (
        endpoint text collate "C",
        name text collate "C",
        version bigint not null,
        state text,
        at_ms bigint not null,
        primary key (endpoint, name)
    ) with (fillfactor = 80)
    """,
    # Earlier versions had this index; an index on a column that every write changes prevents HOT updates.
    "drop index if exists outbox_tombstones",
    """
    create table if not exists outbox_entries (
        endpoint text collate "C",
        name text collate "C",
        entry_name text collate "C",
        entry text not null,
        at_ms bigint not null,
        primary key (endpoint, name, entry_name)
    )
    """,
    """
    create table if not exists outbox_tokens (
        token text collate "C" primary key,
        destination text not null,
        parent text collate "C" not null,
        attempt text collate "C" not null,
        at_ms bigint not null,
        born bigint generated always as identity
    )
    """,
    "create index if not exists outbox_children on outbox_tokens (parent) where parent <> ''",
    "create table if not exists outbox_realm (realm text not null, one boolean primary key default true check (one))",
    *ports.SCHEMA_TABLE,
)
# For two processes that create the tables at once: despite "if not exists", one would fail.
_ONE_MAKER: Final = "select pg_advisory_xact_lock(hashtextextended('onefold.outbox.' || current_schema(), 0))"
_MISSING: Final = "select 1 from unnest(%s::text[]) as wanted (name) where to_regclass(quote_ident(name)) is null"

_SETTINGS: Final = """
    select set_config('search_path', quote_ident(nspname), false),
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('plan_cache_mode', 'force_generic_plan', false),
        set_config('enable_seqscan', 'off', false),
        set_config('enable_mergejoin', 'off', false),
        set_config('jit', 'off', false)
    from pg_namespace where nspname = coalesce(%s, current_schema())
"""
# Set again for this session, so that a reload of the configuration cannot change it.
_DURABILITY: Final = """
    select set_config('synchronous_commit', current_setting('synchronous_commit'), false), current_setting('fsync')
"""
# "remote_apply" waits for even more. With the other values, a commit can return before it is durable.
DURABLE: Final = ("on", "remote_apply")

_OPEN: Final = """
    select coalesce(e.version, 0), e.state, (
        select json_object_agg(x.entry_name, x.entry) from outbox_entries as x
        where x.endpoint = a.endpoint and x.name = a.name
    ), (select true from outbox_tokens as t where t.token = a.token)
    from unnest(%(endpoints)b::text[], %(names)b::text[], %(tokens)b::text[])
        with ordinality as a (endpoint, name, token, n)
    left join lateral (
        select version, state from outbox_entities as e where e.endpoint = a.endpoint and e.name = a.name offset 0
    ) as e on true
    order by a.n
"""
_ASKED: Final = """
    asked as materialized (
        select n, endpoint collate "C" as endpoint, name collate "C" as name, version, state, token
        from unnest(
            %(endpoints)b::text[], %(names)b::text[], %(versions)b::bigint[], %(states)b::text[], %(tokens)b::text[]
        ) with ordinality as a (endpoint, name, version, state, token, n)
    )
"""
# From "able", the steps that may be written, to "won", those that were.
_WRITTEN: Final = """
    known as materialized (
        select a.n, a.state, e.place
        from (select * from able where version > 0 order by endpoint, name) as a
        cross join lateral (
            select ctid as place from outbox_entities as e
            where e.endpoint = a.endpoint and e.name = a.name and e.version = a.version for update
        ) as e
    ), changed as (
        update outbox_entities as e set version = e.version + 1, state = k.state, at_ms = %(at_ms)s
        from known as k where e.ctid = k.place and (select count(*) from known) >= 0  -- not before all are locked
        returning k.n, e.endpoint, e.name
    ), added as (
        insert into outbox_entities (endpoint, name, version, state, at_ms)
        select endpoint, name, 1, state, %(at_ms)s from able as a
        where version = 0 and (select count(*) from changed) >= 0
            -- To add what is there already would be to wait for whoever changes it.
            and (select true from outbox_entities as e where e.endpoint = a.endpoint and e.name = a.name) is null
        order by endpoint, name
        on conflict do nothing
        returning endpoint, name
    ), won as materialized (
        select n, endpoint, name from changed
        union all
        select a.n, endpoint, name from added join able as a using (endpoint, name)
    )
"""
_ENTRIES: Final = """
    select w.n, w.endpoint, w.name, x.entry_name, x.entry
    from unnest(%(entries_of)b::bigint[], %(entry_names)b::text[], %(entries)b::text[]) as x (n, entry_name, entry)
    join won as w using (n)
"""
_KEEP: Final = """
    insert into outbox_entries (endpoint, name, entry_name, entry, at_ms)
    select endpoint, name, entry_name, entry, %(at_ms)s from entries order by endpoint, name, entry_name collate "C"
    on conflict (endpoint, name, entry_name) do update set entry = excluded.entry
    where outbox_entries.entry <> excluded.entry
"""
_PERSIST: Final = f"""
    with {_ASKED}, able as materialized (select * from asked), {_WRITTEN}, there as materialized (
        select w.n, x.place, x.entry_name from (select * from won order by endpoint, name) as w
        cross join lateral (
            select ctid as place, entry_name from outbox_entries as x
            where x.endpoint = w.endpoint and x.name = w.name order by entry_name for update
        ) as x
    ), entries as materialized ({_ENTRIES} where (select count(*) from there) >= 0), kept as ({_KEEP}), dropped as (
        delete from outbox_entries where ctid = any(array(
            select place from there as t where not exists (
                select from entries as e where e.n = t.n and e.entry_name = t.entry_name
            )
        ))
    )
    select n from won
"""  # noqa: S608 # parts of this file alone
_SETTLE: Final = f"""
    with held as materialized (
        select token from outbox_tokens where token = any(%(tokens)b::text[]) order by born for update
    ), {_ASKED}, able as materialized (
        select * from asked where token is null or token in (select token from held)
    ), {_WRITTEN}, entries as materialized ({_ENTRIES}), kept as ({_KEEP}), spent as (
        delete from outbox_tokens where token = any(array(select a.token from won join able as a using (n)))
    ), born as (
        insert into outbox_tokens (token, destination, parent, attempt, at_ms)
        select b.token, b.destination, '', b.attempt, %(at_ms)s
        from unnest(%(births_of)b::bigint[], %(births)b::text[], %(destinations)b::text[], %(attempts)b::text[])
            as b (n, token, destination, attempt)
        join won using (n)
        order by b.token collate "C"
        on conflict do nothing
    )
    select a.n, w.n is not null from able as a left join won as w using (n)
"""  # noqa: S608 # parts of this file alone
# The setting applies to this transaction only; its value at the commit counts.
_FINISH: Final = """
    with loose as materialized (select set_config('synchronous_commit', 'off', true))
    delete from outbox_entries as x
    using loose, unnest(%(endpoints)b::text[], %(names)b::text[], %(entry_names)b::text[])
        as f (endpoint, name, entry_name)
    where x.endpoint = f.endpoint and x.name = f.name and x.entry_name = f.entry_name
"""
_STRANDED: Final = """
    select endpoint, name, entry_name, at_ms, entry from outbox_entries
    where (at_ms < %(before_ms)s or at_ms > %(after_ms)s)
        and (%(endpoint)s::text is null or endpoint = %(endpoint)s)
    order by at_ms, endpoint, name, entry_name limit %(limit)s
"""
# "skip locked": a tombstone that another transaction is writing is no longer old.
_PURGE: Final = """
    delete from outbox_entities where ctid = any(array(
        select ctid from outbox_entities as e
        where state is null and at_ms < %(before_ms)s and (%(endpoint)s::text is null or endpoint = %(endpoint)s)
            and (select true from outbox_entries as x where x.endpoint = e.endpoint and x.name = e.name limit 1) is null
        for update skip locked
    ))
"""
_HOLDS: Final = "select token from outbox_tokens where token = any(%s::text[])"
_CREATE: Final = """
    with held as materialized (
        select token from outbox_tokens where token = any(%(guards)b::text[]) order by born for key share
    ), able as materialized (
        select n, parent, attempt
        from unnest(%(parents)b::text[], %(attempts)b::text[], %(guarded)b::boolean[])
            with ordinality as b (parent, attempt, guarded, n)
        where not guarded or parent in (select token from held)
    ), born as (
        insert into outbox_tokens (token, destination, parent, attempt, at_ms)
        select t.token, t.destination, a.parent, a.attempt, %(at_ms)s
        from unnest(%(of)b::bigint[], %(tokens)b::text[], %(destinations)b::text[]) as t (n, token, destination)
        join able as a using (n)
        order by t.token collate "C", t.n
        on conflict do nothing
    )
    select n from able
"""
_REMOVE: Final = """
    with family as materialized (
        select token from outbox_tokens
        where token = any(%(tokens)b::text[]) or (parent = any(%(tokens)b::text[]) and parent <> '')
        order by born for update
    )
    delete from outbox_tokens where token = any(array(
        select token from family where token = any(%(tokens)b::text[])
    ))
"""
_SWEEP: Final = """
    with children as materialized (
        select token, parent, attempt from outbox_tokens
        where parent = any(%(tokens)b::text[]) and parent <> '' order by born for update
    ), winners as materialized (
        select c.token from children as c
        join unnest(%(tokens)b::text[], %(attempts)b::text[]) as r (parent, attempt) using (parent, attempt)
    ), freed as (
        update outbox_tokens set parent = '' where token = any(array(select token from winners))
    )
    delete from outbox_tokens
    where token = any(array(select token from children except select token from winners))
"""
_DISCARD: Final = """
    delete from outbox_tokens where token = %(token)s and (%(parent)s::text is null or parent = %(parent)s)
"""
_LISTED: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens
    where token > %s order by token limit %s
"""
_ORPHANS: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens as t
    where parent <> '' and token > %s and (select true from outbox_tokens as p where p.token = t.parent) is null
    order by token limit %s
"""
_LIVE: Final = "select count(*), min(at_ms) from outbox_tokens"


class PostgresLedger:
    """A `Ledger` in four tables whose names begin with ``outbox_``. Threads share it; it reconnects by itself."""

    tables: tuple[str, ...] = TABLES
    schema: tuple[str, ...] = SCHEMA

    def __init__(
        self, url: str, clock_ms: Callable[[], int] | None = None, *,
        connections_max: int = CONNECTIONS_MAX, timeout_s: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        """Connect to ``postgresql://user:password@host/database#schema``, and create missing tables.

        Without ``#schema`` they are in the first schema of the search path. `Misuse` if the server could lose a commit.
        """
        self._address = address = _address(url)
        if connections_max < 1:
            problem = f"connections_max is {connections_max}, must be at least 1"
            raise Misuse(f"{self._address}: {problem}", connections_max=connections_max)
        check_timeout(self._address, timeout_s)
        self._clock_ms = clock_ms or wall_ms
        self._realm = ""
        self._connections = Connections(
            address.conninfo, address.shown, self._prepare, connections_max=connections_max, timeout_s=timeout_s
        )
        try:
            self._realm = self._connections.run(self._make)
        except BaseException:
            self._connections.close()
            raise

    @property
    def realm(self) -> str:
        self._connections.check_open()
        return self._realm

    def load(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        return [entity for entity, _ in self.open([plans.Open(key, "") for key in keys])]

    def persist(self, entities: Sequence[plans.Entity]) -> list[bool]:
        def work(db: Connection) -> list[bool]:
            answers = []
            for together in _apart(entities, [{entity.key} for entity in entities]):
                outboxes = [entity.packed_outbox.items() for entity in together]
                entries = [(n, *entry) for n, outbox in enumerate(outboxes, 1) for entry in outbox]
                arguments = _arguments(together, [None] * len(together), entries, self._clock_ms())
                won = {n for (n,) in db.execute(_PERSIST, arguments)}
                answers += [n in won for n in range(1, len(together) + 1)]
            return answers

        return self._connections.run(work)

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = ports.FOREVER_MS
    ) -> list[ports.Stranded]:
        """Scans all entries: there are only as many as messages in progress, and an index would slow every write."""
        arguments = {"before_ms": before_ms, "after_ms": after_ms, "limit": limit, "endpoint": endpoint}
        rows = self._connections.run(lambda db: db.execute(_STRANDED, arguments).fetchall())
        return [ports.Stranded.stored(*row) for row in rows]

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        arguments = {"before_ms": before_ms, "endpoint": endpoint}
        return self._connections.run(lambda db: db.execute(_PURGE, arguments).rowcount)

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        exist = set(self._connections.run(lambda db: db.execute(_HOLDS, [list(tokens)]).fetchall()))
        return [(token,) in exist for token in tokens]

    def create(self, births: Sequence[plans.Create]) -> list[bool]:
        """One statement, unless one token made here is the parent of another: the statement would not see it."""
        touched = [{*dict(birth.tokens), *([birth.parent] if birth.guarded else [])} for birth in births]

        def work(db: Connection) -> list[bool]:
            answers = []
            for together in _apart(births, touched):
                children = [(n, *token) for n, birth in enumerate(together, 1) for token in birth.tokens]
                arguments = {
                    "guards": [birth.parent for birth in together if birth.guarded],
                    "parents": [birth.parent for birth in together],
                    "attempts": [birth.attempt for birth in together],
                    "guarded": [birth.guarded for birth in together],
                    "of": [n for n, _, _ in children],
                    "tokens": [token for _, token, _ in children],
                    "destinations": [to for _, _, to in children],
                    "at_ms": self._clock_ms(),
                }
                able = {n for (n,) in db.execute(_CREATE, arguments)}
                answers += [n in able for n in range(1, len(together) + 1)]
            return answers

        return self._connections.run(work)

    def remove(self, removals: Sequence[plans.Remove]) -> None:
        """Two statements in one round trip; of two removals of one token, the first counts."""
        attempts = dict(reversed(removals))
        arguments = {"tokens": list(attempts), "attempts": list(attempts.values())}

        def work(db: Connection) -> None:
            with db.pipeline(), db.transaction():
                for statement in (_REMOVE, _SWEEP):
                    db.execute(statement, arguments)

        if removals:
            self._connections.run(work)

    def discard(self, token: str, parent: str | None = None) -> bool:
        arguments = {"token": token, "parent": parent}
        return self._connections.run(lambda db: db.execute(_DISCARD, arguments).rowcount == 1)

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[ports.Token]:
        statement = _ORPHANS if orphans else _LISTED
        rows = self._connections.run(lambda db: db.execute(statement, [after, limit]).fetchall())
        return [ports.Token(*row) for row in rows]

    def live(self) -> ports.Live:
        """Cost: scans all tokens."""
        count, oldest_ms = self._connections.run(lambda db: db.execute(_LIVE).fetchone()) or (0, None)
        return ports.Live(count, oldest_ms)

    def warnings(self) -> list[str]:
        """None: a store that could lose commits is not opened."""
        return []

    def open(self, steps: Sequence[plans.Open]) -> list[tuple[plans.Entity, bool]]:
        arguments = {**_keys([step.key for step in steps]), "tokens": [step.token for step in steps]}
        rows = self._connections.run(lambda db: db.execute(_OPEN, arguments).fetchall())
        return [
            (plans.Entity.unpacked(step.key, version, state, entries or {}), bool(has_token))
            for step, (version, state, entries, has_token) in zip(steps, rows, strict=True)
        ]

    def settle(self, steps: Sequence[plans.Settle]) -> list[plans.Settled]:
        """One transaction, and one statement unless two steps share an entity or token."""
        touched = []
        for step in steps:
            born = [out.token for out in step.entry.outgoing] if step.entry else []
            touched.append({step.entity.key, *born, *([] if step.token is None else [step.token])})
        rounds = list(_apart(steps, touched))

        def work(db: Connection) -> list[plans.Settled]:
            with db.transaction() if len(rounds) > 1 else nullcontext():
                return [answer for together in rounds for answer in _settle(db, together, self._clock_ms())]

        return self._connections.run(work)

    def finish(self, steps: Sequence[plans.Finish]) -> None:
        """In key order. Not synced: an entry restored by a crash is sent again, and the tokens filter out the
        duplicates."""
        drops = sorted({(*step.key, step.name) for step in steps})
        names = ("endpoints", "names", "entry_names")
        arguments = {name: [drop[at] for drop in drops] for at, name in enumerate(names)}

        if steps:
            self._connections.run(lambda db: db.execute(_FINISH, arguments))

    def close(self) -> None:
        self._connections.close()

    def _make(self, connection: Connection) -> str:
        """Create or update the tables; returns the realm. A user who may not create tables can use existing ones:
        ``onefold outbox migrate --sql`` prints the statements for an administrator."""
        missing, version = connection.execute(_MISSING, [list(self.tables)]).fetchone() is not None, None
        if not missing:
            (version,) = connection.execute(ports.SCHEMA_ASKED).fetchone() or (None,)
        ports.check_schema(self._address.shown, version)
        if (version or 0) < ports.SCHEMA_VERSION:
            with connection.transaction():
                connection.execute(_ONE_MAKER)
                for statement in self.schema:
                    connection.execute(statement)
        connection.execute(_NAME_REALM, [token_hex(8)])
        return _realm_of(connection)

    def _prepare(self, connection: Connection) -> None:
        """Set up a connection; `Misuse` if the schema does not exist or a commit could be lost; `Damaged` if this is a
        different store than before: a missing token would mean nothing there."""
        address, schema = self._address.shown, self._address.schema
        if connection.execute(_SETTINGS, [schema]).fetchone() is None:
            raise Misuse(f"{address}: there is no schema {schema or 'in its search path'!r}", schema=schema)
        commit, fsync = connection.execute(_DURABILITY).fetchone() or ("", "")
        if commit not in DURABLE:
            problem = f"synchronous_commit is {commit}, must be on: a crash could undo what was answered"
            raise Misuse(f"{address}: {problem}", synchronous_commit=commit)
        if fsync != "on":
            raise Misuse(f"{address}: fsync is {fsync}, must be on: a crash could undo what was answered", fsync=fsync)
        if self._realm and (realm := _realm_of(connection)) != self._realm:
            raise Damaged(
                f"{address}: this was the store {self._realm!r} and is {realm!r} now: it was emptied or replaced"
            )


_NAME_REALM: Final = (
    "insert into outbox_realm (realm) select %s where not exists (select from outbox_realm) on conflict do nothing"
)


def _settle(db: Connection, steps: Sequence[plans.Settle], now_ms: int) -> list[plans.Settled]:
    entries, births = [], []
    for n, step in enumerate(steps, 1):
        if (entry := step.entry) is not None:
            entries.append((n, step.name, plans.pack_entry(entry)))
            births += [(n, out.token, out.to, entry.attempt) for out in entry.outgoing]
    arguments = _arguments([step.entity for step in steps], [step.token for step in steps], entries, now_ms)
    for at, name in enumerate(("births_of", "births", "destinations", "attempts")):
        arguments[name] = [birth[at] for birth in births]
    won: dict[int, bool] = dict(db.execute(_SETTLE, arguments).fetchall())
    answers = {True: plans.Settled.DONE, False: plans.Settled.STALE, None: plans.Settled.NO_TOKEN}
    return [answers[won.get(n)] for n in range(1, len(steps) + 1)]


def _keys(keys: Sequence[plans.Key]) -> dict[str, list[Any]]:
    return {"endpoints": [key.endpoint for key in keys], "names": [key.name for key in keys]}


def _arguments(
    entities: Sequence[plans.Entity], tokens: Sequence[str | None], entries: Sequence[tuple[int, str, str]], now_ms: int
) -> dict[str, Any]:
    """The arguments of `_PERSIST` and `_SETTLE`."""
    return {
        **_keys([entity.key for entity in entities]),
        "versions": [entity.version for entity in entities],
        "states": [entity.packed_state for entity in entities],
        "tokens": list(tokens),
        "entries_of": [n for n, _, _ in entries],
        "entry_names": [name for _, name, _ in entries],
        "entries": [entry for _, _, entry in entries],
        "at_ms": now_ms,
    }


def _apart(steps: Sequence[Step], touched: Sequence[set[Any]]) -> Iterator[list[Step]]:
    """Split so that no two steps of one statement touch the same row: the second must see the first's changes."""
    together: list[Step] = []
    seen: set[Any] = set()
    for step, touches in zip(steps, touched, strict=True):
        if seen & touches:
            yield together
            together, seen = [], set()
        together.append(step)
        seen |= touches
    if together:
        yield together


def _realm_of(connection: Connection) -> str:
    row = connection.execute("select realm from outbox_realm").fetchone()
    return str(row[0]) if row else ""


def _address(url: str) -> PostgresAddress:
    """The parsed address; its ``shown`` has no password.

    >>> _address("postgresql://me:secret@db.example/shop#outbox").shown
    'postgresql://db.example/shop#outbox'
    """
    conninfo, hash_sign, schema = url.partition("#")
    if not conninfo.startswith(SCHEMES) or (hash_sign and not schema):
        raise Misuse("the address of a ledger must be like postgresql://user:password@host/database#schema")
    address = parse(f"{conninfo}#{schema}.outbox" if schema else conninfo)
    public = address.shown.partition("#")[0]
    return replace(address, shown=f"{public}#{unquote(schema)}" if schema else public)
