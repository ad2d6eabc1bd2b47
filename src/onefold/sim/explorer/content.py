"""What is in the database: all its rows, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onefold.engines.outbox.record import Key

Rows = tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...]
"""Per table its rows, in the order of their keys: two databases are equal if these are."""


@dataclass(frozen=True, slots=True)
class Content:
    """One content of the database."""

    tokens: frozenset[str]
    parents: Mapping[str, str]
    """Of each token that has one."""
    states: Mapping[Key, str]
    """The state of each entity that is there, as JSON."""
    entries: tuple[tuple[Key, str], ...]
    """The outbox entries, by entity and name."""
    others: Mapping[str, tuple[tuple[Any, ...], ...]]
    """The rows of tables that a specimen has of its own."""

    @property
    def values(self) -> dict[str, Any]:
        """The states by the name of their entity; two endpoints with one name between them get theirs before it."""
        names = [key.name for key in self.states]
        return {
            key.name if names.count(key.name) == 1 else str(key): json.loads(text) for key, text in self.states.items()
        }


def read(rows: Rows) -> Content:
    """The meaning of the rows. The columns are those of the SQLite store, in its order."""
    tables = dict(rows)
    tokens = tables["outbox_tokens"]
    return Content(
        frozenset(row[0] for row in tokens),
        {row[0]: row[2] for row in tokens if row[2]},
        {Key(row[0], row[1]): row[3] for row in tables["outbox_entities"] if row[3] is not None},
        tuple((Key(row[0], row[1]), row[2]) for row in tables["outbox_entries"]),
        {name: table for name, table in rows if not name.startswith("outbox_")},
    )
