"""What the store keeps of a source besides its buckets: the batch in hand, how it is cut, and whether it is complete.

Who goes on with a batch must cut it as it was begun: another number of buckets or another column would put rows into
other chunks, and some would be sent twice and some never. The next batch may be cut in another way, for it begins only
when the one before is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.engines.outbox import Entity, Key, mark_of
from onefold.errors import Misuse, StaleWrite
from onefold.ports import EntityStore
from onefold.spark.outbox_task import TRIES_MAX


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a source."""

    key: Key
    number: int
    query: str
    """The stream it is of; empty: of none."""
    shape: dict[str, Any]
    """What decides in which chunk a row is."""

    def begin(self, entities: EntityStore) -> bool:
        """Keep that it is in hand; False if it is complete long since, `Misuse` if it cannot be begun like this."""
        for _ in range(TRIES_MAX):
            entity = entities.load([self.key])[0]
            kept = entity.state or {}
            self._check_query(kept.get("query", ""))
            begun = mark_of(entity.state)
            if self.number < begun:
                return False
            if self.number == begun:
                self._check_shape(kept["shape"])
                return True
            if not kept.get("complete", True):
                raise Misuse(
                    f"source {self.key.name!r}: batch {begun} was begun and is not complete; finish it before"
                    f" {self.number}, or what is left of it is never sent",
                    source=self.key.name,
                )
            if self._keep(entities, entity, complete=False):
                return True
        raise self._stale()

    def finish(self, entities: EntityStore) -> None:
        """Keep that it is complete."""
        for _ in range(TRIES_MAX):
            entity = entities.load([self.key])[0]
            if mark_of(entity.state) != self.number or entity.state["complete"]:
                return
            if self._keep(entities, entity, complete=True):
                return
        raise self._stale()

    def _keep(self, entities: EntityStore, entity: Entity, *, complete: bool) -> bool:
        query = self.query or (entity.state or {}).get("query", "")
        state = {"mark": self.number, "shape": self.shape, "query": query, "complete": complete}
        return entities.persist([entity.changed(state)])[0]

    def _check_query(self, kept: str) -> None:
        if self.query and kept and kept != self.query:
            raise Misuse(
                f"source {self.key.name!r} belongs to the stream {kept}, this one is {self.query}: a new stream, or a"
                " new checkpoint, counts its batches from 0 again and needs a source of another name",
                source=self.key.name,
            )

    def _check_shape(self, kept: dict[str, Any]) -> None:
        for name, value in self.shape.items():
            if kept.get(name) != value:
                raise Misuse(
                    f"source {self.key.name!r}: batch {self.number} was begun with {name} {kept.get(name)!r}, not"
                    f" {value!r}: it must be finished as it was begun; the next one may differ",
                    source=self.key.name,
                )

    def _stale(self) -> StaleWrite:
        return StaleWrite(f"source {self.key.name!r}: somebody else wrote it in each of {TRIES_MAX} tries")
