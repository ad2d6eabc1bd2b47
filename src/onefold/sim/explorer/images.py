"""The real store, at any of the contents that were ever reached.

A database in memory is copied out after each write and copied in before the next step. So two workers can go on from
one content in two ways, and the store that they ask is the one that is shipped. Each pair of content and step is
performed once; whoever comes there again is told what came of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

from onefold.engines.outbox.steps import Birth, Create, Finish, Persist, Remove, Settle
from onefold.ports import Parcel, Queue
from onefold.sim.explorer.content import Content, Rows, read
from onefold.stores.attempts import World
from onefold.stores.sqlite.ledger import SqliteLedger

PAGE_BYTES: Final = 1_024
"""Small pages make small copies."""
_WRITES: Final = frozenset({Create, Finish, Persist, Remove, Settle})


@runtime_checkable
class OwnStep(Protocol):
    """A step that no shipped plan has: of a specimen, a mutant or a chore. It knows how it is done."""

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> Any:
        """Do it, and give the answer."""
        ...

    def told(self, answer: Any) -> str:
        """What happened, for a history."""
        ...


class _Outbound:
    """Where the transport would be: keeps what it is given until somebody takes it."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []

    def send(self, parcels: Sequence[Parcel]) -> None:
        self.parcels += parcels


class Images:
    """All contents so far, by number; the first is number 0."""

    def __init__(self, tables: Iterable[str], first: Sequence[Birth]) -> None:
        self.contents: list[Content] = []
        self.performed = 0
        self._images: list[bytes] = []
        self._numbers: dict[Rows, int] = {}
        self._connection = db = sqlite3.connect(":memory:", isolation_level=None)
        db.execute(f"pragma page_size={PAGE_BYTES}")
        for statement in tables:
            db.execute(statement)
        self._ledger = SqliteLedger.over(db, lambda: 0)  # the clock stands: time is no part of a state
        self._outbound = _Outbound()
        self._world = World(self._ledger, self._ledger, cast(Queue, self._outbound))
        names = db.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        self._reads = [(name, f'select * from "{name}"') for (name,) in names]  # noqa: S608 # names of our own schema
        self._ledger.create(first)
        self._here = self._number()

    @property
    def realm(self) -> str:
        """The name of the token store."""
        return self._ledger.realm

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    def perform(self, content: int, step: Any) -> tuple[int, Any, list[Parcel]]:
        """Do one step there: the content after it, the answer, and what was sent."""
        self.performed += 1
        if self._here != content:
            self._connection.deserialize(self._images[content])
            self._here = content
        if isinstance(step, OwnStep):
            answer = step.perform(self._ledger, self._connection)
        else:
            (answer,) = self._world.perform(type(step), [step])
        if type(step) in _WRITES or isinstance(step, OwnStep):
            self._here = self._number()
        parcels, self._outbound.parcels = self._outbound.parcels, []
        return self._here, answer, parcels

    def _number(self) -> int:
        """Of the content that the connection has now."""
        execute = self._connection.execute
        # The order of the keys, for the tables have no other.
        rows = tuple((name, tuple(execute(sql))) for name, sql in self._reads)
        number = self._numbers.get(rows)
        if number is None:
            number = self._numbers[rows] = len(self.contents)
            self.contents.append(read(rows))
            self._images.append(self._connection.serialize())
        return number
