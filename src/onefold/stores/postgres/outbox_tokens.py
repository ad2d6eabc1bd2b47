"""Tokens in PostgreSQL.

Whoever changes tokens locks them first, all in the order of their birth: two that want the same ones wait for each
other, never in a circle. (Not in the order of their names: a child that was born while we waited for its parent would
come before it half of the time. If two should meet all the same, PostgreSQL undoes one, and it is made again.)

A guarded birth holds its parent's row until its tokens are there. So a removal that comes second waits, and then looks
for children with a statement of its own: the one that waited still sees the world as it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from onefold.engines.outbox.steps import Birth, Removal
from onefold.ports import Live, Token
from onefold.stores.postgres.connections import Connection

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
    for together in _apart(births):
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


def _apart(births: Sequence[Birth]) -> Iterator[list[Birth]]:
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
