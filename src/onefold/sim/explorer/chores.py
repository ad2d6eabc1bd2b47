"""What is done besides the workers: stranded outboxes are finished, tokens that a late source left are swept."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from onefold.engines.outbox.attempt import MARK
from onefold.engines.outbox.record import Entity, Key
from onefold.engines.outbox.source import sourced
from onefold.engines.outbox.steps import Attempt, Load, Outcome
from onefold.sim.explorer.content import Content
from onefold.sim.explorer.topology import Algorithm, Chore, Topology
from onefold.stores.sqlite.ledger import SqliteLedger


def chores_of(topology: Topology, algorithm: Algorithm) -> list[Chore]:
    """What is done besides the workers here."""
    chores = list(algorithm.chores)
    if topology.pumps and algorithm.recovery is not None:
        chores.append(pump(topology, algorithm))
    if topology.pumps and topology.source is not None and algorithm.sourced is sourced:
        chores.append(sweeper(topology))
    return chores


def pump(topology: Topology, algorithm: Algorithm) -> Chore:
    """Finishes outbox entries, by the recovery of the plan: also the young ones, which it leaves alone in life."""
    recovery = algorithm.recovery
    assert recovery is not None

    def offers(content: Content) -> Sequence[str]:
        return ["\t".join((*key, name)) for key, name in content.entries]

    def begin(offer: str) -> Attempt:
        endpoint, name, entry = offer.split("\t")
        return recovery(Key(endpoint, name), entry)

    return Chore("the pump", topology.pumps, offers, begin, "takes up the outbox entry of")


class Discard(NamedTuple):
    """Remove one token, if it still has this parent."""

    token: str
    parent: str

    def perform(self, ledger: SqliteLedger, connection: sqlite3.Connection) -> Any:
        """By the store."""
        return ledger.discard(self.token, self.parent)

    def told(self, answer: Any) -> str:
        """For a history."""
        return f"discards the token {self.token}" if answer else f"finds the token {self.token} gone"


def sweeper(topology: Topology) -> Chore:
    """Sweeps tokens of a source whose outbox entry is gone: read the token first, then look for the entry."""
    assert topology.source is not None
    key = Key(topology.source.endpoint, topology.source.name)

    def offers(content: Content) -> Sequence[str]:
        return [token for token, parent in sorted(content.parents.items()) if MARK in parent]

    def begin(token: str) -> Attempt:
        return _swept(key, token)

    return Chore("the sweeper", topology.pumps, offers, begin, "looks at the token")


def _swept(key: Key, token: str) -> Generator[Any, Any, Outcome]:
    mark = token.partition(".")[0].removeprefix("mark")
    parent = f"{key}{MARK}{mark}"
    entity: Entity = yield Load(key)
    if parent not in entity.outbox:
        yield Discard(token, parent)
    return Outcome.TIDIED
