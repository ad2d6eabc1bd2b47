"""Entities and their outboxes in PostgreSQL: each verb is one statement, and so one round trip and one commit.

What a statement is given comes as arrays and is numbered. Rows that are there are locked one after the other in the
order of their keys and checked against the version that was read; new ones are added after that, in the same order. So
two batches wait for each other, never in a circle. `settle` locks its tokens before all that. (A batch that writes one
entity twice is two statements, and can meet another of its kind. PostgreSQL undoes one, and it is made again.)

A row that was locked is written by its place (ctid), without another search. If somebody else wrote it while we waited
for the lock, its version has grown and it is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from onefold.engines.outbox.record import Entity, Key, pack_entry
from onefold.engines.outbox.steps import Finish, Open, Opened, Settle, Settled
from onefold.ports import Stranded
from onefold.stores.packing import pack_outbox, pack_state, read_entry, settled_birth, settled_entry, unpack
from onefold.stores.postgres.connections import Connection

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


def open_(db: Connection, steps: Sequence[Open]) -> list[Opened]:
    """All of one moment, with their tokens."""
    asked = {**_keys([step.key for step in steps]), "tokens": [step.token for step in steps]}
    opened = []
    for step, (version, state, entries, held) in zip(steps, db.execute(_OPEN, asked), strict=True):
        opened.append(Opened(unpack(step.key, version, state, entries or {}), bool(held)))
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
