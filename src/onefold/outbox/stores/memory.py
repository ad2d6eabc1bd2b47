"""A ledger and a queue in memory: right among the threads of one process, gone with it.

Values are kept as text, as every other store keeps them: what a handler does to a state that it was given, or still has
a hold of, does not reach what is stored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from itertools import count
from secrets import token_hex
from threading import Condition, Lock
from time import monotonic

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox import plans, ports

# How often a waiter looks at the clock while something is on loan or delayed. It is a clock that tests may turn.
POLL_S = 0.02


@dataclass(slots=True)
class _StoredEntity:
    """An entity as text; the outbox has the text of each entry, and when it was first written."""

    version: int
    state: str | None
    at_ms: int
    outbox: dict[str, tuple[str, int]] = field(default_factory=dict)


class MemoryLedger:
    """A `Ledger` in three dicts.

    >>> ledger = MemoryLedger()
    >>> ledger.create([plans.Birth("", "a1", (("t1", "orders"),), guarded=False)])
    [True]
    >>> ledger.settle([plans.Settle(plans.Entity(plans.Key("shop", "7"), state={"paid": 20}), "t1", "t1")] * 2)
    [<Settled.DONE: 'done'>, <Settled.NO_TOKEN: 'no_token'>]
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms, realm: str | None = None) -> None:
        """Begin with nothing; ``realm``: the name that messages know this store by, a new one if it is not given."""
        self._clock_ms = clock_ms
        self._realm = realm or token_hex(8)
        self._entities: dict[plans.Key, _StoredEntity] = {}
        self._tokens: dict[str, ports.Token] = {}
        self._children: dict[str, set[str]] = defaultdict(set)  # by parent: exactly the tokens that have one
        self._lock = Lock()
        self._open = True

    @property
    def realm(self) -> str:
        with self._locked():
            return self._realm

    def load(self, keys: Sequence[plans.Key]) -> list[plans.Entity]:
        with self._locked():
            return [self._loaded(key) for key in keys]

    def persist(self, entities: Sequence[plans.Entity]) -> list[bool]:
        with self._locked():
            now_ms = self._clock_ms()
            written = []
            for entity in entities:
                record = self._current(entity)
                written.append(record is not None)
                if record is None:
                    continue
                first = {name: at_ms for name, (_, at_ms) in record.outbox.items()}
                outbox = {name: (text, first.get(name, now_ms)) for name, text in entity.packed_outbox.items()}
                self._entities[entity.key] = _StoredEntity(entity.version + 1, entity.packed_state, now_ms, outbox)
            return written

    def stranded(
        self, before_ms: int, limit: int, endpoint: str | None = None, *, after_ms: int = ports.FOREVER_MS
    ) -> list[ports.Stranded]:
        with self._locked():
            entries = (
                (at_ms, key, name, text)
                for key, record in self._entities.items()
                if endpoint in (None, key.endpoint)
                for name, (text, at_ms) in record.outbox.items()
                if at_ms < before_ms or at_ms > after_ms
            )
            oldest = nsmallest(limit, entries)
        return [ports.Stranded(key, name, at_ms, plans.unpack_entry(text)) for at_ms, key, name, text in oldest]

    def purge(self, before_ms: int, endpoint: str | None = None) -> int:
        with self._locked():
            tombstones = [
                key
                for key, record in self._entities.items()
                if record.state is None and not record.outbox
                if record.at_ms < before_ms and endpoint in (None, key.endpoint)
            ]
            for key in tombstones:
                del self._entities[key]
            return len(tombstones)

    def holds(self, tokens: Sequence[str]) -> list[bool]:
        with self._locked():
            return [token in self._tokens for token in tokens]

    def create(self, births: Sequence[plans.Birth]) -> list[bool]:
        with self._locked():
            now_ms = self._clock_ms()
            return [self._create(birth, now_ms) for birth in births]

    def remove(self, removals: Sequence[plans.Removal]) -> None:
        with self._locked():
            for removal in removals:
                self._drop(removal.token)
                for child in self._children.pop(removal.token, ()):
                    if self._tokens[child].attempt == removal.attempt:
                        self._tokens[child] = self._tokens[child]._replace(parent="")
                    else:
                        del self._tokens[child]

    def discard(self, token: str, parent: str | None = None) -> bool:
        with self._locked():
            stored = self._tokens.get(token)
            if stored is None or parent not in (None, stored.parent):
                return False
            self._drop(token)
            return True

    def listed(self, *, after: str = "", limit: int = 1_000, orphans: bool = False) -> list[ports.Token]:
        with self._locked():
            behind = (each for each in self._tokens.values() if each.token > after)
            if orphans:
                behind = (each for each in behind if each.parent and each.parent not in self._tokens)
            return nsmallest(limit, behind)

    def live(self) -> ports.Live:
        with self._locked():
            return ports.Live(len(self._tokens), min((each.at_ms for each in self._tokens.values()), default=None))

    def warnings(self) -> list[str]:
        """It is gone with the process, and says so by its name."""
        return []

    def open(self, steps: Sequence[plans.Open]) -> list[plans.OpenedAttempt]:
        with self._locked():
            return [plans.OpenedAttempt(self._loaded(step.key), step.token in self._tokens) for step in steps]

    def settle(self, steps: Sequence[plans.Settle]) -> list[plans.Settled]:
        with self._locked():
            now_ms = self._clock_ms()
            return [self._settle(step, now_ms) for step in steps]

    def finish(self, steps: Sequence[plans.Finish]) -> None:
        with self._locked():
            for step in steps:
                if step.key in self._entities:
                    self._entities[step.key].outbox.pop(step.name, None)

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._entities, self._tokens, self._children = {}, {}, defaultdict(set)

    def _loaded(self, key: plans.Key) -> plans.Entity:
        record = self._entities.get(key)
        if record is None:
            return plans.Entity(key)
        entries = {name: text for name, (text, _) in record.outbox.items()}
        return plans.Entity.unpacked(key, record.version, record.state, entries)

    def _settle(self, step: plans.Settle, now_ms: int) -> plans.Settled:
        if step.token is not None and step.token not in self._tokens:
            return plans.Settled.NO_TOKEN
        record = self._current(step.entity)
        if record is None:
            return plans.Settled.STALE
        entity, entry = step.entity, step.entry
        added = {step.name: (plans.pack_entry(entry), now_ms)} if entry else {}
        outbox = {**record.outbox, **added}
        self._entities[entity.key] = _StoredEntity(entity.version + 1, entity.packed_state, now_ms, outbox)
        if step.token is not None:
            self._drop(step.token)
        if entry:
            tokens = tuple((out.token, out.to) for out in entry.outgoing)
            self._create(plans.Birth("", entry.attempt, tokens, guarded=False), now_ms)
        return plans.Settled.DONE

    def _current(self, entity: plans.Entity) -> _StoredEntity | None:
        """What is to be written over; None if it is not what the writer read."""
        record = self._entities.get(entity.key, _StoredEntity(0, None, 0))
        return record if record.version == entity.version else None

    def _create(self, birth: plans.Birth, now_ms: int) -> bool:
        if birth.guarded and birth.parent not in self._tokens:
            return False
        for token, to in birth.tokens:
            if token not in self._tokens:
                self._tokens[token] = ports.Token(token, to, birth.parent, birth.attempt, now_ms)
                if birth.parent:
                    self._children[birth.parent].add(token)
        return True

    def _drop(self, token: str) -> None:
        dropped = self._tokens.pop(token, None)
        if dropped is not None and dropped.parent:
            siblings = self._children[dropped.parent]
            siblings.discard(token)
            if not siblings:
                del self._children[dropped.parent]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            if not self._open:
                raise Misuse("this ledger was closed")
            yield


@dataclass(slots=True)
class _Queued:
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
        return self.due_ms > 0 and self.since_ms > now_ms + ports.STEP_MS


class MemoryQueue:
    """A `Queue` in dicts.

    >>> queue = MemoryQueue(lambda: 0)
    >>> queue.send([ports.Parcel("orders", b"{}")])
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    [Delivery(queue='orders', payload=b'{}', receipt='1-1', times=1)]
    >>> queue.lease(["orders"], limit=10, lease_ms=30_000)
    []
    """

    def __init__(self, clock_ms: Callable[[], int] = wall_ms) -> None:
        self._clock_ms = clock_ms
        self._parcels: dict[int, _Queued] = {}
        # Heaps: by queue, which wait; and when which lease or delay ends. Both may name what has moved on since.
        self._ready: dict[str, list[int]] = defaultdict(list)
        self._later: list[tuple[int, int]] = []
        self._latest_ms = 0  # when the last lease or delay began, as the clock said
        self._letters: dict[int, ports.Buried] = {}
        self._positions, self._numbers = count(1), count(1)
        self._changed = Condition()
        self._open = True

    def send(self, parcels: Sequence[ports.Parcel]) -> None:
        ports.check_parcels(parcels)
        with self._locked():
            for parcel in parcels:
                self._put(parcel.queue, parcel.payload)
            self._changed.notify_all()

    def lease(self, queues: Sequence[str], limit: int, lease_ms: int, wait_ms: int = 0) -> list[ports.Delivery]:
        """The oldest of all these queues together; a waiter that the queue is closed on is told so by `Misuse`."""
        queues = ports.check_lease(queues, limit, lease_ms, wait_ms)
        deadline = monotonic() + wait_ms / 1000
        with self._changed:
            while True:
                self._check_open()
                if leased := self._take(queues, limit, lease_ms):
                    return leased
                rest_s = deadline - monotonic()
                if rest_s <= 0:
                    return []
                self._changed.wait(min(rest_s, POLL_S) if self._later else rest_s)

    def acknowledge(self, deliveries: Sequence[ports.Delivery]) -> None:
        with self._locked():
            for position, _ in self._lent(deliveries):
                del self._parcels[position]

    def extend(self, deliveries: Sequence[ports.Delivery], lease_ms: int) -> None:
        ports.check_least("lease_ms", lease_ms, 1)
        with self._locked():
            now_ms = self._clock_ms()
            for position, parcel in self._lent(deliveries):
                if parcel.due_ms > now_ms:
                    self._postpone(position, parcel, now_ms, lease_ms)

    def release(self, deliveries: Sequence[ports.Delivery], delay_ms: int = 0) -> None:
        ports.check_least("delay_ms", delay_ms, 0)
        with self._locked():
            now_ms = self._clock_ms()
            for position, parcel in self._lent(deliveries):
                parcel.loan = 0
                self._postpone(position, parcel, now_ms, delay_ms)
            self._changed.notify_all()

    def bury(self, deliveries: Sequence[ports.Delivery], reason: str) -> None:
        with self._locked():
            now_ms = self._clock_ms()
            for position, parcel in self._lent(deliveries):
                del self._parcels[position]
                number = next(self._numbers)
                self._letters[number] = ports.Buried(
                    parcel.queue, parcel.payload, str(number), reason[: ports.REASON_MAX], now_ms
                )

    def buried(self, limit: int = 1_000, queue: str | None = None) -> list[ports.Buried]:
        ports.check_least("limit", limit, 1)
        with self._locked():
            return [letter for letter in self._letters.values() if queue in (None, letter.queue)][:limit]

    def dig_up(self, letters: Sequence[ports.Buried], *, deliver: bool) -> None:
        with self._locked():
            for letter in letters:
                stored = self._letters.pop(letter.number, None)
                if stored and deliver:
                    self._put(stored.queue, stored.payload)
            self._changed.notify_all()

    def waiting(self) -> dict[str, int]:
        with self._locked():
            return dict(Counter(parcel.queue for parcel in self._parcels.values()))

    def strayed(self, *, mend: bool = False) -> list[ports.Strayed]:
        with self._locked():
            now_ms = self._clock_ms()
            ahead: dict[str, list[int]] = defaultdict(list)
            for parcel in self._parcels.values():
                if parcel.strayed(now_ms):
                    ahead[parcel.queue].append(parcel.due_ms - now_ms)
            if mend:
                self._free(now_ms)
                self._changed.notify_all()
            return [ports.Strayed(queue, len(those), max(those)) for queue, those in sorted(ahead.items())]

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _put(self, queue: str, payload: bytes) -> None:
        position = next(self._positions)
        self._parcels[position] = _Queued(queue, payload)
        heappush(self._ready[queue], position)

    def _take(self, queues: Sequence[str], limit: int, lease_ms: int) -> list[ports.Delivery]:
        now_ms = self._clock_ms()
        if self._latest_ms > now_ms + ports.STEP_MS:  # the clock was set back
            self._free(now_ms)
        while self._later and self._later[0][0] <= now_ms:
            due_ms, position = heappop(self._later)
            parcel = self._parcels.get(position)
            if parcel and parcel.due_ms == due_ms:  # else it is gone, or its end was moved
                parcel.due_ms = 0
                heappush(self._ready[parcel.queue], position)
        leased: list[ports.Delivery] = []
        while len(leased) < limit and (fronts := [front for queue in queues if (front := self._front(queue))]):
            position = heappop(min(fronts))
            parcel = self._parcels[position]
            parcel.times += 1
            parcel.loan = parcel.times
            self._postpone(position, parcel, now_ms, lease_ms)
            leased.append(ports.Delivery(parcel.queue, parcel.payload, f"{position}-{parcel.loan}", parcel.times))
        return leased

    def _front(self, queue: str) -> list[int]:
        """The heap of a queue, with one that waits on top; empty if none does."""
        ready = self._ready.get(queue, [])
        while ready and not ((parcel := self._parcels.get(ready[0])) and parcel.due_ms == 0):
            heappop(ready)
        return ready

    def _postpone(self, position: int, parcel: _Queued, now_ms: int, span_ms: int) -> None:
        parcel.since_ms, parcel.due_ms = now_ms, now_ms + span_ms
        self._latest_ms = max(self._latest_ms, now_ms)
        heappush(self._later, (parcel.due_ms, position))

    def _free(self, now_ms: int) -> None:
        """Make due what waits for a time that only a wrong clock can have set."""
        for position, parcel in self._parcels.items():
            if parcel.strayed(now_ms):
                parcel.due_ms = 0
                heappush(self._ready[parcel.queue], position)
        self._latest_ms = now_ms

    def _lent(self, deliveries: Sequence[ports.Delivery]) -> list[tuple[int, _Queued]]:
        """Which of them were not given out again since; their leases may have run out."""
        lent = []
        for position, loan in dict.fromkeys(delivery.numbers for delivery in deliveries):
            parcel = self._parcels.get(position)
            if parcel and parcel.loan == loan:
                lent.append((position, parcel))
        return lent

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._changed:
            self._check_open()
            yield

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("this queue was closed")
