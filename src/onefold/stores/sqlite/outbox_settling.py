"""The one transaction of the plan `transactional`, in SQLite: tokens go, entities are written, entries and tokens come.

Nearly always all of a batch is in order: every token is there and every version is right. Then the batch is a handful
of statements, each for all of its rows at once, and their row counts say that nothing was missing. If one was, all is
undone up to the savepoint, and each step is judged alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from onefold.engines.outbox.record import Entry, pack_entry
from onefold.engines.outbox.steps import Settle, Settled
from onefold.stores.packing import settled_entry
from onefold.stores.sqlite.outbox_entities import INSERT, KEEP, UPDATE, row_of
from onefold.stores.sqlite.outbox_tokens import CREATE, REMOVE, holds

Sending = list[tuple[Settle, Entry]]
"""The steps that send something, with what that is."""


def settle(db: sqlite3.Connection, steps: Sequence[Settle], now_ms: int) -> list[Settled]:
    """What becomes of each, in this order."""
    if len(steps) > 1:
        sending = [(step, entry) for step in steps if (entry := settled_entry(step))]
        if _apart(steps, sending) and _at_once(db, steps, sending, now_ms):
            return [Settled.DONE] * len(steps)
    return [_one(db, step, now_ms) for step in steps]


def _apart(steps: Sequence[Settle], sending: Sending) -> bool:
    """No step needs what another one changes: their order makes no difference."""
    keys = {step.entity.key for step in steps}
    spent = [step.token for step in steps if step.token is not None]
    born = {out.token for _, entry in sending for out in entry.outgoing}
    return len(keys) == len(steps) and len(set(spent)) == len(spent) and born.isdisjoint(spent)


def _at_once(db: sqlite3.Connection, steps: Sequence[Settle], sending: Sending, now_ms: int) -> bool:
    """Whether all was in order; if not, nothing is changed."""
    db.execute("savepoint settle")
    done = _changed(db, steps, now_ms)
    if not done:
        db.execute("rollback to settle")
    elif sending:
        db.executemany(KEEP, [_entry_row(step, entry, now_ms) for step, entry in sending])
        db.executemany(CREATE, [row for _, entry in sending for row in _token_rows(entry, now_ms)])
    db.execute("release settle")
    return done


def _changed(db: sqlite3.Connection, steps: Sequence[Settle], now_ms: int) -> bool:
    spent = [(step.token,) for step in steps if step.token is not None]
    known = [row_of(step.entity, now_ms) for step in steps if step.entity.version]
    new = [row_of(step.entity, now_ms) for step in steps if not step.entity.version]
    return all(
        db.executemany(statement, rows).rowcount == len(rows)
        for statement, rows in ((REMOVE, spent), (UPDATE, known), (INSERT, new))
        if rows
    )


def _one(db: sqlite3.Connection, step: Settle, now_ms: int) -> Settled:
    if step.token is not None and not holds(db, [step.token])[0]:
        return Settled.NO_TOKEN
    if db.execute(UPDATE if step.entity.version else INSERT, row_of(step.entity, now_ms)).rowcount != 1:
        return Settled.STALE
    if step.token is not None:
        db.execute(REMOVE, (step.token,))
    entry = settled_entry(step)
    if entry is not None:
        db.execute(KEEP, _entry_row(step, entry, now_ms))
        db.executemany(CREATE, _token_rows(entry, now_ms))
    return Settled.DONE


def _entry_row(step: Settle, entry: Entry, now_ms: int) -> tuple[Any, ...]:
    return *step.entity.key, step.name, pack_entry(entry), now_ms


def _token_rows(entry: Entry, now_ms: int) -> list[tuple[Any, ...]]:
    return [(out.token, out.to, "", entry.attempt, now_ms) for out in entry.outgoing]
