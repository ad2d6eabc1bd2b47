"""A queue in memory: right among the threads of one process, gone with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from threading import Condition
from time import monotonic

from onefold.errors import Misuse
from onefold.ports import Buried, Delivery, Parcel, Strayed
from onefold.stores.counters import wall_ms
from onefold.stores.queues import REASON_MAX, STEP_MS, check_lease, check_least, check_parcels, letter_number, numbered

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
