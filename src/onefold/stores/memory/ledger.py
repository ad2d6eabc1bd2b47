"""Entities, outboxes and tokens in memory: right among the threads of one process, gone with it.

Values are kept as text, as every other store keeps them: what a handler does to a state that it was given, or still has
a hold of, does not reach what is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from secrets import token_hex
from threading import Lock

from onefold.engines.outbox.record import Entity, Key, pack_entry, unpack_entry
from onefold.engines.outbox.steps import Birth, Finish, Open, Opened, Removal, Settle, Settled
from onefold.errors import Misuse
from onefold.ports import FOREVER_MS, Live, Stranded, Token
from onefold.stores.counters import wall_ms
from onefold.stores.packing import pack_outbox, pack_state, settled_birth, settled_entry, unpack


@dataclass(slots=True)
class _Kept:
    """An entity as it is kept; the outbox has the text of each entry, and when it was first written."""

    version: int
    state: str | None
    at_ms: int
    outbox: dict[str, tuple[str, int]] = field(default_factory=dict)


class MemoryLedger:
    """A `Ledger` in three dicts.

    >>> ledger = MemoryLedger()
    >>> ledger.create([Birth("", "a1", (("t1", "orders"),), guarded=False)])
    [True]
    >>> ledger.settle([Settle(Entity(Key("shop", "7"), state={"paid": 20}), "t1", "t1")] * 2)
    [<Settled.DONE: 'done'>, <Settled.NO_TOKEN: 'no_token'>]
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms, realm: str | None = None) -> None:
        """Begin with nothing; ``realm``: the name that messages know this store by, a new one if it is not given."""
        self._clock_ms = clock_ms
        self._realm = realm or token_hex(8)
        self._entities: dict[Key, _Kept] = {}
        self._tokens: dict[str, Token] = {}
        self._children: dict[str, set[str]] = defaultdict(set)  # by parent: exactly the tokens that have one
        self._lock = Lock()
        self._open = True

    @property
    def realm(self) -> str:
        """The name of this store."""
        self._check_open()
        return self._realm

    def load(self, keys: Sequence[Key]) -> list[Entity]:
        """The entities, in this order; version 0 for those that never were."""
        with self._lock:
            self._check_open()
            return [self._loaded(key) for key in keys]

    def persist(self, entities: Sequence[Entity]) -> list[bool]:
        """Write each whose version is still the stored one, which grows by one; False for the others."""
        with self._lock:
            self._check_open()
            now_ms = self._clock_ms()
            return [self._persist(entity, now_ms) for entity in entities]

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = FOREVER_MS
    ) -> list[Stranded]:
        """Outbox entries first written before one time or after the other, oldest first; of one endpoint or of all."""
        with self._lock:
            self._check_open()
            found = (
                (at_ms, key, name, text)
                for key, kept in self._entities.items()
                if endpoint in (None, key.endpoint)
                for name, (text, at_ms) in kept.outbox.items()
                if at_ms < before_ms or at_ms > after_ms
            )
            oldest = nsmallest(limit, found)
        return [Stranded(key, name, at_ms, unpack_entry(text)) for at_ms, key, name, text in oldest]

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        """Remove the tombstones that were written before this time, and say how many there were."""
        with self._lock:
            self._check_open()
            gone = [
                key
                for key, kept in self._entities.items()
                if kept.state is None and not kept.outbox
                if kept.at_ms < before_ms and endpoint in (None, key.endpoint)
            ]
            for key in gone:
                del self._entities[key]
            return len(gone)

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        """Which of them exist."""
        with self._lock:
            self._check_open()
            return [token in self._tokens for token in tokens]

    def create(self, births: Sequence[Birth]) -> list[bool]:
        """Make the tokens of each birth; False where it is guarded and the parent does not exist."""
        with self._lock:
            self._check_open()
            now_ms = self._clock_ms()
            return [self._create(birth, now_ms) for birth in births]

    def remove(self, removals: Sequence[Removal]) -> None:
        """Remove each token; of those made for it, free the ones of this attempt and remove the others."""
        with self._lock:
            self._check_open()
            for removal in removals:
                self._drop(removal.token)
                for child in self._children.pop(removal.token, ()):
                    if self._tokens[child].attempt == removal.attempt:
                        self._tokens[child] = self._tokens[child]._replace(parent="")
                    else:
                        del self._tokens[child]

    def discard(self, token: str, parent: str | None = None) -> bool:
        """Remove this token alone, if its parent is this one (None: whatever it is); say whether it was there."""
        with self._lock:
            self._check_open()
            found = self._tokens.get(token)
            if found is None or parent not in (None, found.parent):
                return False
            self._drop(token)
            return True

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[Token]:
        """Tokens by name, from behind ``after``; ``orphans``: only those with a parent that has no token."""
        with self._lock:
            self._check_open()
            behind = (each for each in self._tokens.values() if each.token > after)
            if orphans:
                behind = (each for each in behind if each.parent and each.parent not in self._tokens)
            return nsmallest(limit, behind)

    def live(self) -> Live:
        """How many there are, and when the oldest was made."""
        with self._lock:
            self._check_open()
            return Live(len(self._tokens), min((each.at_ms for each in self._tokens.values()), default=None))

    def warnings(self) -> list[str]:
        """It is gone with the process, and says so by its name."""
        return []

    def open(self, steps: Sequence[Open]) -> list[Opened]:
        """Entities, each with whether its token exists at the same moment."""
        with self._lock:
            self._check_open()
            return [Opened(self._loaded(step.key), step.token in self._tokens) for step in steps]

    def settle(self, steps: Sequence[Settle]) -> list[Settled]:
        """Do each or change nothing for it, in this order."""
        with self._lock:
            self._check_open()
            now_ms = self._clock_ms()
            return [self._settle(step, now_ms) for step in steps]

    def finish(self, steps: Sequence[Finish]) -> None:
        """Remove these outbox entries; the versions stay. One that is not there does no harm."""
        with self._lock:
            self._check_open()
            for step in steps:
                if step.key in self._entities:
                    self._entities[step.key].outbox.pop(step.name, None)

    def close(self) -> None:
        """Let go of it; what it held is gone with it."""
        with self._lock:
            self._open = False
            self._entities, self._tokens, self._children = {}, {}, defaultdict(set)

    def _loaded(self, key: Key) -> Entity:
        kept = self._entities.get(key)
        if kept is None:
            return Entity(key)
        return unpack(key, kept.version, kept.state, {name: text for name, (text, _) in kept.outbox.items()})

    def _persist(self, entity: Entity, now_ms: int) -> bool:
        kept = self._kept(entity)
        if kept is None:
            return False
        first = {name: at_ms for name, (_, at_ms) in kept.outbox.items()}
        outbox = {name: (text, first.get(name, now_ms)) for name, text in pack_outbox(entity).items()}
        self._entities[entity.key] = _Kept(entity.version + 1, pack_state(entity.state), now_ms, outbox)
        return True

    def _settle(self, step: Settle, now_ms: int) -> Settled:
        if step.token is not None and step.token not in self._tokens:
            return Settled.NO_TOKEN
        kept = self._kept(step.entity)
        if kept is None:
            return Settled.STALE
        state, entry = pack_state(step.entity.state), settled_entry(step)
        added = {step.name: (pack_entry(entry), now_ms)} if entry else {}
        self._entities[step.entity.key] = _Kept(step.entity.version + 1, state, now_ms, {**kept.outbox, **added})
        if step.token is not None:
            self._drop(step.token)
        if entry:
            self._create(settled_birth(entry), now_ms)
        return Settled.DONE

    def _kept(self, entity: Entity) -> _Kept | None:
        """What is to be written over; None if it is not what the writer read."""
        kept = self._entities.get(entity.key, _Kept(0, None, 0))
        return kept if kept.version == entity.version else None

    def _create(self, birth: Birth, now_ms: int) -> bool:
        if birth.guarded and birth.parent not in self._tokens:
            return False
        for token, to in birth.tokens:
            if token not in self._tokens:
                self._tokens[token] = Token(token, to, birth.parent, birth.attempt, now_ms)
                if birth.parent:
                    self._children[birth.parent].add(token)
        return True

    def _drop(self, token: str) -> None:
        found = self._tokens.pop(token, None)
        if found is not None and found.parent:
            siblings = self._children[found.parent]
            siblings.discard(token)
            if not siblings:
                del self._children[found.parent]

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("this ledger was closed")
