"""A queue in dicts and heaps, which shares no line with those that it is held against."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from threading import Condition
from time import monotonic

from onefold.clock import wall_ms
from onefold.errors import Misuse
from onefold.outbox import ports

# How often a waiter looks at the clock while something is on loan or delayed. It is a clock that tests may turn.
POLL_S = 0.02


@dataclass(slots=True)
class Queued:
    queue: str
    payload: bytes
    priority: int = 0
    times: int = 0
    loan: int = 0
    """It grows with each delivery and each release: which receipt is good."""
    due_ms: int = 0
    """When the lease or the delay ends: 0 while it waits."""
    since_ms: int = 0
    """When it began."""

    def strayed(self, now_ms: int) -> bool:
        """Whether it waits for a time that only a wrong clock can have set."""
        return self.due_ms > 0 and self.since_ms > now_ms + ports.STEP_MS


class DictQueue:
    """A `Queue` in dicts and heaps."""

    def __init__(self, clock_ms: Callable[[], int] = wall_ms) -> None:
        self._clock_ms = clock_ms
        self._parcels: dict[int, Queued] = {}
        # Heaps: by queue, which wait; and when which lease or delay ends. Both may name what has moved on since.
        self._ready: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._later: list[tuple[int, int]] = []
        self._latest_ms = 0  # when the last lease or delay began, as the clock said
        self._letters: dict[int, ports.Buried] = {}
        self._positions, self._numbers = count(1), count(1)
        self._changed = Condition()
        self._open = True

    def send(self, parcels: Sequence[ports.Parcel]) -> None:
        ports.check_parcels(parcels)
        with self._locked():
            now_ms = self._clock_ms()
            for parcel in parcels:
                position = self._put(parcel.queue, parcel.payload, parcel.priority)
                if parcel.delay_ms:
                    self._postpone(position, self._parcels[position], now_ms, parcel.delay_ms)
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

    def release(self, deliveries: Sequence[ports.Delivery], delay_ms: int = 0, *, anew: bool = False) -> None:
        ports.check_least("delay_ms", delay_ms, 0)
        with self._locked():
            now_ms = self._clock_ms()
            for position, parcel in self._lent(deliveries):
                parcel.loan += 1
                parcel.times *= not anew
                self._postpone(position, parcel, now_ms, delay_ms)
            self._changed.notify_all()

    def count(self, deliveries: Sequence[ports.Delivery], by: int) -> None:
        with self._locked():
            for _, parcel in self._lent(deliveries):
                parcel.times += by

    def bury(self, deliveries: Sequence[ports.Delivery], reason: str) -> None:
        with self._locked():
            now_ms = self._clock_ms()
            for position, parcel in self._lent(deliveries):
                del self._parcels[position]
                if any((each.queue, each.payload) == (parcel.queue, parcel.payload) for each in self._letters.values()):
                    continue
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

    def _put(self, queue: str, payload: bytes, priority: int = 0) -> int:
        position = next(self._positions)
        self._parcels[position] = Queued(queue, payload, priority)
        heappush(self._ready[queue], (-priority, position))
        return position

    def _take(self, queues: Sequence[str], limit: int, lease_ms: int) -> list[ports.Delivery]:
        now_ms = self._clock_ms()
        if self._latest_ms > now_ms + ports.STEP_MS:  # the clock was set back
            self._free(now_ms)
        while self._later and self._later[0][0] <= now_ms:
            due_ms, position = heappop(self._later)
            parcel = self._parcels.get(position)
            if parcel and parcel.due_ms == due_ms:  # else it is gone, or its end was moved
                parcel.due_ms = 0
                heappush(self._ready[parcel.queue], (-parcel.priority, position))
        leased: list[ports.Delivery] = []
        while len(leased) < limit and (fronts := [front for queue in queues if (front := self._front(queue))]):
            _, position = heappop(min(fronts))
            parcel = self._parcels[position]
            parcel.times += 1
            parcel.loan += 1
            self._postpone(position, parcel, now_ms, lease_ms)
            leased.append(ports.Delivery(parcel.queue, parcel.payload, f"{position}-{parcel.loan}", parcel.times))
        return leased

    def _front(self, queue: str) -> list[tuple[int, int]]:
        """The heap of a queue, with one that waits on top; empty if none does."""
        ready = self._ready.get(queue, [])
        while ready and not ((parcel := self._parcels.get(ready[0][1])) and parcel.due_ms == 0):
            heappop(ready)
        return ready

    def _postpone(self, position: int, parcel: Queued, now_ms: int, span_ms: int) -> None:
        parcel.since_ms, parcel.due_ms = now_ms, now_ms + span_ms
        self._latest_ms = max(self._latest_ms, now_ms)
        heappush(self._later, (parcel.due_ms, position))

    def _free(self, now_ms: int) -> None:
        """Make due what waits for a time that only a wrong clock can have set."""
        for position, parcel in self._parcels.items():
            if parcel.strayed(now_ms):
                parcel.due_ms = 0
                heappush(self._ready[parcel.queue], (-parcel.priority, position))
        self._latest_ms = now_ms

    def _lent(self, deliveries: Sequence[ports.Delivery]) -> list[tuple[int, Queued]]:
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
