"""Entities, outboxes and tokens in PostgreSQL, for endpoints on several machines.

Nearly every call is one statement: one round trip, one commit, however many it was given. What a call changes it locks
first, tokens before entities and each in a fixed order, so no two calls wait in a circle. The statements are in
`outbox_entities` and `outbox_tokens`.

When a connection breaks while it waits for its answer nobody knows whether the call was done: that is `StoreFailed`,
and it is not made again here. The attempt is begun anew, and finds out.

Entities and their outboxes in PostgreSQL: each verb is one statement, and so one round trip and one commit.

What a statement is given comes as arrays and is numbered. Rows that are there are locked one after the other in the
order of their keys and checked against the version that was read; new ones are added after that, in the same order. So
two batches wait for each other, never in a circle. `settle` locks its tokens before all that. (A batch that writes one
entity twice is two statements, and can meet another of its kind. PostgreSQL undoes one, and it is made again.)

A row that was locked is written by its place (ctid), without another search. If somebody else wrote it while we waited
for the lock, its version has grown and it is not found.

The tables of the outbox in PostgreSQL, and what a connection to them has to be like.

Names are compared byte by byte (collation "C"), as in every other store, whatever language the database speaks.

A plan that PostgreSQL made for a table of ten rows is kept, and is bad for one of a million: tables that are filled and
emptied all day have no size to plan for. So statements are written such that only a look into an index is left, full
scans are off, and one plan is made for all calls.

Tokens in PostgreSQL.

Whoever changes tokens locks them first, all in the order of their birth: two that want the same ones wait for each
other, never in a circle. (Not in the order of their names: a child that was born while we waited for its parent would
come before it half of the time. If two should meet all the same, PostgreSQL undoes one, and it is made again.)

A guarded birth holds its parent's row until its tokens are there. So a removal that comes second waits, and then looks
for children with a statement of its own: the one that waited still sees the world as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from onefold.clock import wall_ms
from onefold.errors import Damaged, Misuse
from onefold.outbox.ports import FOREVER_MS, Live, Stranded, Token
from onefold.outbox.steps import Birth, Entity, Finish, Key, Open, OpenedAttempt, Removal, Settle, Settled, pack_entry
from onefold.outbox.stores.packing import pack_outbox, pack_state, read_entry, settled_birth, settled_entry, unpack
from onefold.stores.addresses import check_timeout
from onefold.stores.postgres import SCHEMES, Connection, Connections, PostgresAddress, parse

Step = TypeVar("Step")

_OPEN: Final = """
    select coalesce(e.version, 0), e.state, (
        select json_object_agg(x.entry_name, x.entry) from outbox_entries as x
        where x.endpoint = a.endpoint and x.name = a.name
    ), (select true from outbox_tokens as t where t.token = a.token)
    from unnest(%(endpoints)s::text[], %(names)s::text[], %(tokens)s::text[])
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
            %(endpoints)s::text[], %(names)s::text[], %(versions)s::bigint[], %(states)s::text[], %(tokens)s::text[]
        ) with ordinality as a (endpoint, name, version, state, token, n)
    )
"""
# From "able", what may be written, to "won", what was.
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
    from unnest(%(entries_of)s::bigint[], %(entry_names)s::text[], %(entries)s::text[]) as x (n, entry_name, entry)
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
        select token from outbox_tokens where token = any(%(tokens)s::text[]) order by born for update
    ), {_ASKED}, able as materialized (
        select * from asked where token is null or token in (select token from held)
    ), {_WRITTEN}, entries as materialized ({_ENTRIES}), kept as ({_KEEP}), spent as (
        delete from outbox_tokens where token = any(array(select a.token from won join able as a using (n)))
    ), born as (
        insert into outbox_tokens (token, destination, parent, attempt, at_ms)
        select b.token, b.destination, '', b.attempt, %(at_ms)s
        from unnest(%(births_of)s::bigint[], %(births)s::text[], %(destinations)s::text[], %(attempts)s::text[])
            as b (n, token, destination, attempt)
        join won using (n)
        order by b.token collate "C"
        on conflict do nothing
    )
    select a.n, w.n is not null from able as a left join won as w using (n)
"""  # noqa: S608 # parts of this file alone
_FINISH: Final = "delete from outbox_entries where endpoint = %s and name = %s and entry_name = %s"
_STRANDED: Final = """
    select endpoint, name, entry_name, at_ms, entry from outbox_entries
    where (at_ms < %(before_ms)s or at_ms > %(after_ms)s)
        and (%(endpoint)s::text is null or endpoint = %(endpoint)s)
    order by at_ms, endpoint, name, entry_name limit %(limit)s
"""
# A tombstone that somebody else is at is no old one any more.
_PURGE: Final = """
    delete from outbox_entities where ctid = any(array(
        select ctid from outbox_entities as e
        where state is null and at_ms < %(before_ms)s and (%(endpoint)s::text is null or endpoint = %(endpoint)s)
            and (select true from outbox_entries as x where x.endpoint = e.endpoint and x.name = e.name limit 1) is null
        for update skip locked
    ))
"""


def load(db: Connection, keys: Sequence[Key]) -> list[Entity]:
    """All of one moment."""
    return [opened.entity for opened in open_(db, [Open(key, "") for key in keys])]


def open_(db: Connection, steps: Sequence[Open]) -> list[OpenedAttempt]:
    """All of one moment, with their tokens."""
    asked = {**_keys([step.key for step in steps]), "tokens": [step.token for step in steps]}
    opened = []
    for step, (version, state, entries, held) in zip(steps, db.execute(_OPEN, asked), strict=True):
        opened.append(OpenedAttempt(unpack(step.key, version, state, entries or {}), bool(held)))
    return opened


def persist(db: Connection, entities: Sequence[Entity], now_ms: int) -> list[bool]:
    """Write each with its whole outbox, if the version is right."""
    answers = []
    for together in _apart(entities, [{entity.key} for entity in entities]):
        entries = [(n, *entry) for n, entity in enumerate(together, 1) for entry in pack_outbox(entity).items()]
        asked = _written(together, [None] * len(together), entries, now_ms)
        won = {n for (n,) in db.execute(_PERSIST, asked)}
        answers += [n in won for n in range(1, len(together) + 1)]
    return answers


def settle(db: Connection, steps: Sequence[Settle], now_ms: int) -> list[Settled]:
    """One transaction, and one statement unless two steps touch the same."""
    rounds = list(_apart(steps, [_touched(step) for step in steps]))
    if len(rounds) == 1:
        return _settle(db, rounds[0], now_ms)
    with db.transaction():
        return [answer for together in rounds for answer in _settle(db, together, now_ms)]


def _settle(db: Connection, steps: Sequence[Settle], now_ms: int) -> list[Settled]:
    entries, births = [], []
    for n, step in enumerate(steps, 1):
        entry = settled_entry(step)
        if entry is not None:
            entries.append((n, step.name, pack_entry(entry)))
            births += [(n, token, to, entry.attempt) for token, to in settled_birth(entry).tokens]
    asked = _written([step.entity for step in steps], [step.token for step in steps], entries, now_ms)
    for at, name in enumerate(("births_of", "births", "destinations", "attempts")):
        asked[name] = [birth[at] for birth in births]
    won: dict[int, bool] = dict(db.execute(_SETTLE, asked).fetchall())
    answers = {True: Settled.DONE, False: Settled.STALE, None: Settled.NO_TOKEN}
    return [answers[won.get(n)] for n in range(1, len(steps) + 1)]


def finish(db: Connection, steps: Sequence[Finish]) -> None:
    """A small statement for each, in the order of their keys, all sent at once and as one transaction."""
    with db.pipeline(), db.transaction(), db.cursor() as cursor:
        cursor.executemany(_FINISH, sorted({(*step.key, step.name) for step in steps}))


def stranded(db: Connection, before_ms: int, after_ms: int, limit: int, of: str | None) -> list[Stranded]:
    """Old entries. There are as many as messages under way, so all are looked at: an index would cost each write."""
    asked = {"before_ms": before_ms, "after_ms": after_ms, "limit": limit, "endpoint": of}
    rows = db.execute(_STRANDED, asked)
    return [
        Stranded(Key(endpoint, entity), name, at_ms, read_entry(Key(endpoint, entity), name, entry))
        for endpoint, entity, name, at_ms, entry in rows
    ]


def purge(db: Connection, before_ms: int, endpoint: str | None) -> int:
    """Remove old tombstones."""
    return db.execute(_PURGE, {"before_ms": before_ms, "endpoint": endpoint}).rowcount


def _keys(keys: Sequence[Key]) -> dict[str, list[Any]]:
    return {"endpoints": [key.endpoint for key in keys], "names": [key.name for key in keys]}


def _written(
    entities: Sequence[Entity],
    tokens: Sequence[str | None],
    entries: Sequence[tuple[int, str, str]],
    now_ms: int,
) -> dict[str, Any]:
    return {
        **_keys([entity.key for entity in entities]),
        "versions": [entity.version for entity in entities],
        "states": [pack_state(entity.state) for entity in entities],
        "tokens": list(tokens),
        "entries_of": [n for n, _, _ in entries],
        "entry_names": [name for _, name, _ in entries],
        "entries": [entry for _, _, entry in entries],
        "at_ms": now_ms,
    }


def _touched(step: Settle) -> set[Key | str | None]:
    entry = settled_entry(step)
    return {step.entity.key, step.token, *(out.token for out in (entry.outgoing if entry else ()))} - {None}


def _apart(steps: Sequence[Step], touched: Sequence[set[Any]]) -> Iterator[list[Step]]:
    """Cut so that no two of one statement touch the same: the second must see what the first did."""
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


TABLES: Final = ("outbox_entities", "outbox_entries", "outbox_tokens", "outbox_realm")
SCHEMA: Final = (
    """
    create table if not exists outbox_entities (
        endpoint text collate "C",
        name text collate "C",
        version bigint not null,
        state text,
        at_ms bigint not null,
        primary key (endpoint, name)
    )
    """,
    "create index if not exists outbox_tombstones on outbox_entities (at_ms) where state is null",
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
)
# Two that make the tables at once: "if not exists" is no protection against that, one would fail.
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
# Said again for this session, so that a new configuration cannot change it under our feet.
_DURABILITY: Final = """
    select set_config('synchronous_commit', current_setting('synchronous_commit'), false), current_setting('fsync')
"""
# "remote_apply" waits for even more. The others can answer before what was answered is safe.
DURABLE: Final = ("on", "remote_apply")


def prepare(connection: Connection, shown: str, schema: str | None) -> None:
    """Set a connection up; `Misuse` if there is no such schema, or if a commit there can be lost."""
    if connection.execute(_SETTINGS, [schema]).fetchone() is None:
        raise Misuse(f"{shown}: there is no schema {schema or 'in its search path'!r}", schema=schema)
    commit, fsync = connection.execute(_DURABILITY).fetchone() or ("", "")
    if commit not in DURABLE:
        told = f"{shown}: synchronous_commit is {commit}, must be on: a crash could undo what was answered"
        raise Misuse(told, synchronous_commit=commit)
    if fsync != "on":
        raise Misuse(f"{shown}: fsync is {fsync}, must be on: a crash could undo what was answered", fsync=fsync)


def make(connection: Connection) -> str:
    """Make the tables that are not there; the realm is answered. Who may not make tables can use those that are."""
    if connection.execute(_MISSING, [list(TABLES)]).fetchone() is not None:
        with connection.transaction():
            connection.execute(_ONE_MAKER)
            for statement in SCHEMA:
                connection.execute(statement)
    insert = (
        "insert into outbox_realm (realm) select %s where not exists (select from outbox_realm) on conflict do nothing"
    )
    connection.execute(insert, [token_hex(8)])
    return realm_of(connection)


def realm_of(connection: Connection) -> str:
    """The name of the store."""
    row = connection.execute("select realm from outbox_realm").fetchone()
    return str(row[0]) if row else ""


def check_realm(connection: Connection, shown: str, realm: str) -> None:
    """`Damaged` if this is another store than before: that a token is not there would mean nothing."""
    found = realm_of(connection)
    if found != realm:
        raise Damaged(f"{shown}: this was the store {realm!r} and is {found!r} now: it was emptied or replaced")


_HOLDS: Final = "select token from outbox_tokens where token = any(%s::text[])"
_CREATE: Final = """
    with held as materialized (
        select token from outbox_tokens where token = any(%(guards)s::text[]) order by born for key share
    ), able as materialized (
        select n, parent, attempt
        from unnest(%(parents)s::text[], %(attempts)s::text[], %(guarded)s::boolean[])
            with ordinality as b (parent, attempt, guarded, n)
        where not guarded or parent in (select token from held)
    ), born as (
        insert into outbox_tokens (token, destination, parent, attempt, at_ms)
        select t.token, t.destination, a.parent, a.attempt, %(at_ms)s
        from unnest(%(of)s::bigint[], %(tokens)s::text[], %(destinations)s::text[]) as t (n, token, destination)
        join able as a using (n)
        order by t.token collate "C", t.n
        on conflict do nothing
    )
    select n from able
"""
_REMOVE: Final = """
    with family as materialized (
        select token from outbox_tokens
        where token = any(%(tokens)s::text[]) or (parent = any(%(tokens)s::text[]) and parent <> '')
        order by born for update
    )
    delete from outbox_tokens where token = any(array(
        select token from family where token = any(%(tokens)s::text[])
    ))
"""
_SWEEP: Final = """
    with children as materialized (
        select token, parent, attempt from outbox_tokens
        where parent = any(%(tokens)s::text[]) and parent <> '' order by born for update
    ), winners as materialized (
        select c.token from children as c
        join unnest(%(tokens)s::text[], %(attempts)s::text[]) as r (parent, attempt) using (parent, attempt)
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


def holds(db: Connection, tokens: Sequence[str]) -> list[bool]:
    """Which of them exist."""
    held = {token for (token,) in db.execute(_HOLDS, [list(tokens)])}
    return [token in held for token in tokens]


def create(db: Connection, births: Sequence[Birth], now_ms: int) -> list[bool]:
    """Make them, in one statement unless one birth is the parent of another."""
    answers = []
    for together in _tokens_apart(births):
        children = [(n, *token) for n, birth in enumerate(together, 1) for token in birth.tokens]
        asked = {
            "guards": [birth.parent for birth in together if birth.guarded],
            "parents": [birth.parent for birth in together],
            "attempts": [birth.attempt for birth in together],
            "guarded": [birth.guarded for birth in together],
            "of": [n for n, _, _ in children],
            "tokens": [token for _, token, _ in children],
            "destinations": [to for _, _, to in children],
            "at_ms": now_ms,
        }
        able = {n for (n,) in db.execute(_CREATE, asked)}
        answers += [n in able for n in range(1, len(together) + 1)]
    return answers


def remove(db: Connection, removals: Sequence[Removal]) -> None:
    """Two statements that are sent at once; the first of two removals of one token decides."""
    attempts: dict[str, str] = {}
    for token, attempt in removals:
        attempts.setdefault(token, attempt)
    asked = {"tokens": list(attempts), "attempts": list(attempts.values())}
    with db.pipeline(), db.transaction():
        for statement in (_REMOVE, _SWEEP):
            db.execute(statement, asked)


def discard(db: Connection, token: str, parent: str | None) -> bool:
    """One token alone."""
    return db.execute(_DISCARD, {"token": token, "parent": parent}).rowcount == 1


def listed(db: Connection, after: str, limit: int, *, orphans: bool) -> list[Token]:
    """By name, from behind one."""
    return [Token(*row) for row in db.execute(_ORPHANS if orphans else _LISTED, [after, limit])]


def live(db: Connection) -> Live:
    """How many there are."""
    count, oldest_ms = db.execute(_LIVE).fetchone() or (0, None)
    return Live(count, oldest_ms)


def _tokens_apart(births: Sequence[Birth]) -> Iterator[list[Birth]]:
    """Cut so that no parent is made by the statement that asks for it: it would not be seen."""
    together: list[Birth] = []
    made: set[str] = set()
    for birth in births:
        if birth.guarded and birth.parent in made:
            yield together
            together, made = [], set()
        together.append(birth)
        made.update(token for token, _ in birth.tokens)
    if together:
        yield together


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
        return self._connections.run(lambda db: load(db, keys))

    def persist(self, entities: Sequence[Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others."""
        if not entities:
            return []
        return self._connections.run(lambda db: persist(db, entities, self._clock_ms()))

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before one time or after the other, oldest first; of one endpoint or of all."""
        return self._connections.run(lambda db: stranded(db, before_ms, after_ms, limit, endpoint))

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time, and say how many there were."""
        return self._connections.run(lambda db: purge(db, before_ms, endpoint))

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        return self._connections.run(lambda db: holds(db, tokens))

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth, all or none; False where it is guarded and the parent does not exist."""
        if not births:
            return []
        return self._connections.run(lambda db: create(db, births, self._clock_ms()))

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others."""
        if removals:
            self._connections.run(lambda db: remove(db, removals))

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        return self._connections.run(lambda db: discard(db, token, parent))

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""
        return self._connections.run(lambda db: listed(db, after, limit, orphans=orphans))

    def live(self) -> Live:
        """How many there are, and when the oldest was made. Cost: it looks at each."""
        return self._connections.run(live)

    def warnings(self) -> list[str]:
        """None: what can lose something is not opened."""
        return []

    def open(self, steps: Sequence[Open]) -> list[OpenedAttempt]:
        """Entities, each with whether its token exists at the same moment."""
        return self._connections.run(lambda db: open_(db, steps))

    def settle(self, steps: Sequence[Settle]) -> list[Settled]:
        """Do each or change nothing for it, in this order, all in one transaction that is durable when it returns."""
        if not steps:
            return []
        return self._connections.run(lambda db: settle(db, steps, self._clock_ms()))

    def finish(self, steps: Sequence[Finish]) -> None:
        """Remove these outbox entries; the versions stay. One that is not there does no harm."""
        if steps:
            self._connections.run(lambda db: finish(db, steps))

    def close(self) -> None:
        """Close all connections; those in use are closed when their calls are over."""
        self._connections.close()

    def _prepare(self, connection: Connection) -> None:
        prepare(connection, self._address.shown, self._address.schema)
        if self._realm:
            check_realm(connection, self._address.shown, self._realm)


def _address(url: str) -> PostgresAddress:
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
