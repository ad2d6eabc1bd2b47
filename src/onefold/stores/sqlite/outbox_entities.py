"""Entities and their outboxes in SQLite; the caller sees to the transaction.

An entity and its entries are read by one statement, so they are of one moment. A write names the version that was read,
and the row says by not being found that somebody else was faster.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from onefold.engines.outbox.record import Entity, Key
from onefold.engines.outbox.steps import Finish, Open, Opened
from onefold.ports import Stranded
from onefold.stores.packing import pack_outbox, pack_state, read_entry, unpack

_LOAD: Final = """
    select version, state, (
        select json_group_object(entry_name, entry) from outbox_entries as x
        where x.endpoint = e.endpoint and x.name = e.name
    )
    from outbox_entities as e where endpoint = ? and name = ?
"""
_NEVER: Final = (None, None, "{}")
_OPEN: Final = """
    select exists (select 1 from outbox_tokens where token = ?), version, state, (
        select json_group_object(entry_name, entry) from outbox_entries as x
        where x.endpoint = e.endpoint and x.name = e.name
    )
    from (select 1) left join outbox_entities as e on endpoint = ? and name = ?
"""
INSERT: Final = """
    insert into outbox_entities (state, at_ms, version, endpoint, name) values (?, ?, ? + 1, ?, ?)
    on conflict do nothing
"""
UPDATE: Final = """
    update outbox_entities set state = ?, at_ms = ?, version = version + 1
    where version = ? and endpoint = ? and name = ?
"""
_ENTRY_NAMES: Final = "select entry_name from outbox_entries where endpoint = ? and name = ?"
KEEP: Final = """
    insert into outbox_entries (endpoint, name, entry_name, entry, at_ms) values (?, ?, ?, ?, ?)
    on conflict do update set entry = excluded.entry
"""
_DROP: Final = "delete from outbox_entries where endpoint = ? and name = ? and entry_name = ?"
_STRANDED: Final = """
    select endpoint, name, entry_name, at_ms, entry from outbox_entries
    where (at_ms < ?1 or at_ms > ?2) and (?3 is null or endpoint = ?3)
    order by at_ms, endpoint, name, entry_name limit ?4
"""
_PURGE: Final = """
    delete from outbox_entities
    where state is null and at_ms < ?1 and (?2 is null or endpoint = ?2) and not exists (
        select 1 from outbox_entries as x where x.endpoint = outbox_entities.endpoint and x.name = outbox_entities.name
    )
"""


def load(db: sqlite3.Connection, keys: Sequence[Key]) -> list[Entity]:
    """Each of its own moment, unless the caller began a transaction."""
    ask = db.cursor().execute
    return [_entity(key, *(ask(_LOAD, key).fetchone() or _NEVER)) for key in keys]


def open_(db: sqlite3.Connection, steps: Sequence[Open]) -> list[Opened]:
    """Each of one moment with its token."""
    ask, opened = db.cursor().execute, []
    for key, token in steps:
        held, version, state, entries = ask(_OPEN, (token, *key)).fetchone()
        opened.append(Opened(_entity(key, version, state, entries), held == 1))
    return opened


def persist(db: sqlite3.Connection, entity: Entity, now_ms: int) -> bool:
    """Write it with its whole outbox, if the version is right."""
    if db.execute(UPDATE if entity.version else INSERT, row_of(entity, now_ms)).rowcount != 1:
        return False
    outbox = pack_outbox(entity)
    gone = [(*entity.key, name) for (name,) in db.execute(_ENTRY_NAMES, entity.key) if name not in outbox]
    if gone:
        db.executemany(_DROP, gone)
    if outbox:
        db.executemany(KEEP, [(*entity.key, name, entry, now_ms) for name, entry in outbox.items()])
    return True


def finish(db: sqlite3.Connection, steps: Sequence[Finish]) -> None:
    """Remove these entries."""
    db.executemany(_DROP, [(*step.key, step.name) for step in steps])


def stranded(db: sqlite3.Connection, before_ms: int, after_ms: int, limit: int, endpoint: str | None) -> list[Stranded]:
    """Old entries. There are as many as messages under way, so all are looked at: an index would cost each write."""
    rows = db.execute(_STRANDED, (before_ms, after_ms, endpoint, limit))
    found = [(Key(*key), name, at_ms, entry) for *key, name, at_ms, entry in rows]
    return [Stranded(key, name, at_ms, read_entry(key, name, entry)) for key, name, at_ms, entry in found]


def purge(db: sqlite3.Connection, before_ms: int, endpoint: str | None) -> int:
    """Remove old tombstones."""
    return db.execute(_PURGE, (before_ms, endpoint)).rowcount


def row_of(entity: Entity, now_ms: int) -> tuple[Any, ...]:
    """What `UPDATE` or, for a new one, `INSERT` takes."""
    return pack_state(entity.state), now_ms, entity.version, *entity.key


def _entity(key: Key, version: int | None, state: str | None, entries: str) -> Entity:
    if version is None:
        return Entity(key)
    return unpack(key, version, state, {} if entries == "{}" else json.loads(entries))
