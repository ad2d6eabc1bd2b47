"""The tables of the outbox in PostgreSQL, and what a connection to them has to be like.

Names are compared byte by byte (collation "C"), as in every other store, whatever language the database speaks.

A plan that PostgreSQL made for a table of ten rows is kept, and is bad for one of a million: tables that are filled and
emptied all day have no size to plan for. So statements are written such that only a look into an index is left, full
scans are off, and one plan is made for all calls.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Final

from onefold.errors import Damaged, Misuse
from onefold.stores.postgres.connections import Connection

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
