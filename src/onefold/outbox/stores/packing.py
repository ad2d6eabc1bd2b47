"""Entities as ledgers keep them: state and outbox entries as text, whatever the database is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onefold.errors import BadInput, Damaged
from onefold.outbox.steps import Birth, Entity, Entry, Key, Settle, pack, pack_entry, unpack_entry


def pack_state(state: Any) -> str | None:
    """The state as text; None if there is no entity.

    >>> pack_state({"paid": 20}), pack_state(None)
    ('{"paid":20}', None)
    """
    return None if state is None else pack(state)


def unpack(key: Key, version: int, state: str | None, entries: Mapping[str, str]) -> Entity:
    """An entity of what was kept of it; `Damaged` if that is no JSON, or not ours."""
    try:
        value = None if state is None else json.loads(state)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{key}: its state is no JSON: {error}", key=key) from error
    outbox = {name: read_entry(key, name, text) for name, text in entries.items()} if entries else {}
    return Entity(key, version, value, outbox)


def read_entry(key: Key, name: str, text: str) -> Entry:
    """One outbox entry; `Damaged` if it is none."""
    try:
        return unpack_entry(text)
    except BadInput as error:
        raise Damaged(f"{key}: its outbox entry {name!r} cannot be read: {error}", key=key, name=name) from error


def pack_outbox(entity: Entity) -> dict[str, str]:
    """All entries as text, by name."""
    return {name: pack_entry(entry) for name, entry in entity.outbox.items()}


def settled_entry(step: Settle) -> Entry | None:
    """The one outbox entry that a `Settle` writes; None if it sends nothing.

    The others stay as the store has them: `Finish` removes entries without a new version, so those that the step knows
    may be gone meanwhile, and must not come back.
    """
    return step.entity.outbox.get(step.name)


def settled_birth(entry: Entry) -> Birth:
    """The tokens that come with such an entry: free from the start, for no other attempt can win."""
    return Birth("", entry.attempt, tuple((out.token, out.to) for out in entry.outgoing), guarded=False)
