"""Tokens in SQLite; the caller sees to the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from onefold.engines.outbox.steps import Birth, Removal
from onefold.ports import Live, Token

_HOLDS: Final = "select 1 from outbox_tokens where token = ?"
CREATE: Final = """
    insert into outbox_tokens (token, destination, parent, attempt, at_ms) values (?, ?, ?, ?, ?)
    on conflict do nothing
"""
REMOVE: Final = "delete from outbox_tokens where token = ?"
_FREE: Final = "update outbox_tokens set parent = '' where parent = ? and attempt = ? and parent <> ''"
_SWEEP: Final = "delete from outbox_tokens where parent = ? and parent <> ''"
_DISCARD: Final = "delete from outbox_tokens where token = ?1 and (?2 is null or parent = ?2)"
_LISTED: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens
    where token > ? order by token limit ?
"""
# Few tokens have a parent, for a moment each: they are found by the index that holds these alone.
_ORPHANS: Final = """
    select token, destination, parent, attempt, at_ms from outbox_tokens as t indexed by outbox_children
    where parent <> '' and token > ? and not exists (select 1 from outbox_tokens as p where p.token = t.parent)
    order by token limit ?
"""
_LIVE: Final = "select count(*), min(at_ms) from outbox_tokens"


def holds(db: sqlite3.Connection, tokens: Sequence[str]) -> list[bool]:
    """Which of them exist."""
    ask = db.cursor().execute
    return [ask(_HOLDS, (token,)).fetchone() is not None for token in tokens]


def create(db: sqlite3.Connection, births: Sequence[Birth], now_ms: int) -> list[bool]:
    """For each: all of its tokens, or none."""
    made = []
    for birth in births:
        made.append(not birth.guarded or holds(db, [birth.parent])[0])
        if made[-1] and birth.tokens:
            parent, attempt = birth.parent, birth.attempt
            db.executemany(CREATE, [(token, to, parent, attempt, now_ms) for token, to in birth.tokens])
    return made


def remove(db: sqlite3.Connection, removals: Sequence[Removal]) -> None:
    """The tokens go; their children of the right attempt are free, the others go too."""
    # The second removal of a token finds nothing left; those of different tokens do not touch each other's children.
    first = {removal.token: removal for removal in reversed(removals)}
    tokens = [(token,) for token in first]
    db.executemany(REMOVE, tokens)
    db.executemany(_FREE, first.values())
    db.executemany(_SWEEP, tokens)


def discard(db: sqlite3.Connection, token: str, parent: str | None) -> bool:
    """One token alone."""
    return db.execute(_DISCARD, (token, parent)).rowcount == 1


def listed(db: sqlite3.Connection, after: str, limit: int, *, orphans: bool) -> list[Token]:
    """By name, from behind one."""
    return [Token(*row) for row in db.execute(_ORPHANS if orphans else _LISTED, (after, limit))]


def live(db: sqlite3.Connection) -> Live:
    """How many there are."""
    return Live(*db.execute(_LIVE).fetchone())
