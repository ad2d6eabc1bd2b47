"""Entities, outboxes and tokens in memory: right among the threads of one process, gone with it.

Values are kept as text, as every other store keeps them: what a handler does to a state that it was given, or still has
a hold of, does not reach what is stored.

A queue in memory: right among the threads of one process, gone with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from itertools import count
from secrets import token_hex
from threading import Condition, Lock
from time import monotonic

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox.ports import FOREVER_MS, Buried, Delivery, Live, Parcel, Stranded, Strayed, Token
from onefold.outbox.steps import (
    Birth,
    Entity,
    Finish,
    Key,
    Open,
    OpenedAttempt,
    Removal,
    Settle,
    Settled,
    pack_entry,
    unpack_entry,
)
from onefold.outbox.stores.packing import pack_outbox, pack_state, settled_birth, settled_entry, unpack
from onefold.outbox.stores.queues import (
    REASON_MAX,
    STEP_MS,
    check_lease,
    check_least,
    check_parcels,
    letter_number,
    numbered,
)


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

    def open(self, steps: Sequence[Open]) -> list[OpenedAttempt]:
        """Entities, each with whether its token exists at the same moment."""
        with self._lock:
            self._check_open()
            return [OpenedAttempt(self._loaded(step.key), step.token in self._tokens) for step in steps]

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


# How often a waiter looks at the clock while something is on loan or delayed. It is a clock that tests may turn.
POLL_S = 0.02


@dataclass(slots=True)
class _Held:
    queue: str
    payload: bytes
    times: int = 0
    loan: int = 0
    """Which delivery holds it: 0 while it waits."""
    due_ms: int = 0
    """When the lease or the delay ends: 0 while it waits."""
    since_ms: int = 0
    """When it began."""

    def strayed(self, now_ms: int) -> bool:
        """Whether it waits for a time that only a wrong clock can have set."""
        return self.due_ms > 0 and self.since_ms > now_ms + STEP_MS


class MemoryQueue:
    """A `Queue` in dicts.

    >>> queue = MemoryQueue(lambda: 0)
    >>> queue.send([Parcel("orders", b"{}")])
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    [Delivery(queue='orders', payload=b'{}', receipt='1-1', times=1)]
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    []
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms) -> None:
        """Begin with nothing; the clock says when leases and delays end."""
        self._clock_ms = clock_ms
        self._held: dict[int, _Held] = {}
        # Heaps: by queue, which wait; and when which lease or delay ends. Both may name what has moved on since.
        self._ready: dict[str, list[int]] = defaultdict(list)
        self._later: list[tuple[int, int]] = []
        self._latest_ms = 0  # when the last lease or delay began, as the clock said
        self._letters: dict[int, Buried] = {}
        self._positions, self._numbers = count(1), count(1)
        self._changed = Condition()
        self._open = True

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Take them all."""
        check_parcels(parcels)
        with self._changed:
            self._check_open()
            for parcel in parcels:
                self._put(parcel.queue, parcel.payload)
            self._changed.notify_all()

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[Delivery]:
        """The oldest of all these queues together; a waiter that the queue is closed on is told so by `Misuse`."""
        queues = check_lease(queues, limit, lease_ms, wait_ms)
        deadline = monotonic() + wait_ms / 1000
        with self._changed:
            while True:
                self._check_open()
                if leased := self._take(queues, limit, lease_ms):
                    return leased
                left = deadline - monotonic()
                if left <= 0:
                    return []
                self._changed.wait(min(left, POLL_S) if self._later else left)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget them; one whose lease ran out too, unless it was given out again."""
        with self._changed:
            self._check_open()
            for position, _ in self._lent(deliveries):
                del self._held[position]

    def extend(self, deliveries: Sequence[Delivery], lease_ms: int) -> None:
        """Let the leases run from now, of those that still do."""
        check_least("lease_ms", lease_ms, 1)
        with self._changed:
            self._check_open()
            now_ms = self._clock_ms()
            for position, held in self._lent(deliveries):
                if held.due_ms > now_ms:
                    self._postpone(position, held, now_ms, lease_ms)

    def release(self, deliveries: Sequence[Delivery], delay_ms: int = 0) -> None:
        """Give them out again, after so long; this receipt is worth nothing any more."""
        check_least("delay_ms", delay_ms, 0)
        with self._changed:
            self._check_open()
            now_ms = self._clock_ms()
            for position, held in self._lent(deliveries):
                held.loan = 0
                self._postpone(position, held, now_ms, delay_ms)
            self._changed.notify_all()

    def bury(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Set them aside; one that was given out again is left to whom it was given to."""
        with self._changed:
            self._check_open()
            now_ms = self._clock_ms()
            for position, held in self._lent(deliveries):
                del self._held[position]
                number = next(self._numbers)
                self._letters[number] = Buried(held.queue, held.payload, str(number), reason[:REASON_MAX], now_ms)

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[Buried]:
        """Dead letters, oldest first."""
        check_least("limit", limit, 1)
        with self._changed:
            self._check_open()
            return [letter for letter in self._letters.values() if queue in (None, letter.queue)][:limit]

    def dig_up(self, letters: Sequence[Buried], *, deliver: bool) -> None:
        """Put them back or remove them; one that is not there any more does no harm."""
        with self._changed:
            self._check_open()
            for number in map(letter_number, letters):
                found = self._letters.pop(number, None)
                if found and deliver:
                    self._put(found.queue, found.payload)
            self._changed.notify_all()

    def waiting(self) -> dict[str, int]:
        """How many parcels each queue holds."""
        with self._changed:
            self._check_open()
            return dict(Counter(held.queue for held in self._held.values()))

    def strayed(self, *, mend: bool = False) -> list[Strayed]:
        """Parcels whose lease or delay began later than it is now."""
        with self._changed:
            self._check_open()
            now_ms = self._clock_ms()
            ahead: dict[str, list[int]] = defaultdict(list)
            for held in self._held.values():
                if held.strayed(now_ms):
                    ahead[held.queue].append(held.due_ms - now_ms)
            if mend:
                self._free(now_ms)
                self._changed.notify_all()
            return [Strayed(queue, len(those), max(those)) for queue, those in sorted(ahead.items())]

    def close(self) -> None:
        """Let go of it; what it held is gone with it."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _put(self, queue: str, payload: bytes) -> None:
        position = next(self._positions)
        self._held[position] = _Held(queue, payload)
        heappush(self._ready[queue], position)

    def _take(self, queues: Sequence[str], limit: int, lease_ms: int) -> list[Delivery]:
        now_ms = self._clock_ms()
        self._wake(now_ms)
        leased: list[Delivery] = []
        while len(leased) < limit and (fronts := [front for queue in queues if (front := self._front(queue))]):
            position = heappop(min(fronts))
            held = self._held[position]
            held.times += 1
            held.loan = held.times
            self._postpone(position, held, now_ms, lease_ms)
            leased.append(Delivery(held.queue, held.payload, f"{position}-{held.loan}", held.times))
        return leased

    def _front(self, queue: str) -> list[int]:
        """The heap of a queue, with one that waits on top; empty if none does."""
        ready = self._ready.get(queue, [])
        while ready and not ((held := self._held.get(ready[0])) and held.due_ms == 0):
            heappop(ready)
        return ready

    def _postpone(self, position: int, held: _Held, now_ms: int, span_ms: int) -> None:
        held.since_ms, held.due_ms = now_ms, now_ms + span_ms
        self._latest_ms = max(self._latest_ms, now_ms)
        heappush(self._later, (held.due_ms, position))

    def _free(self, now_ms: int) -> None:
        """Make due what waits for a time that only a wrong clock can have set."""
        for position, held in self._held.items():
            if held.strayed(now_ms):
                held.due_ms = 0
                heappush(self._ready[held.queue], position)
        self._latest_ms = now_ms

    def _wake(self, now_ms: int) -> None:
        if self._latest_ms > now_ms + STEP_MS:  # the clock was set back
            self._free(now_ms)
        while self._later and self._later[0][0] <= now_ms:
            due_ms, position = heappop(self._later)
            held = self._held.get(position)
            if held and held.due_ms == due_ms:  # else it is gone, or its end was moved
                held.due_ms = 0
                heappush(self._ready[held.queue], position)

    def _lent(self, deliveries: Sequence[Delivery]) -> list[tuple[int, _Held]]:
        """Which of them were not given out again since; their leases may have run out."""
        found = []
        for position, loan in dict.fromkeys(map(numbered, deliveries)):
            held = self._held.get(position)
            if held and held.loan == loan:
                found.append((position, held))
        return found

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("this queue was closed")
