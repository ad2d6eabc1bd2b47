"""The counters of devices in memory: right among the threads of one process, gone with it; so are unfinished bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from threading import Lock

from onefold.errors import Misuse
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished, decide, decide_join, won_before


class MemoryCounters:
    """A `CounterStore` in a dict.

    >>> counters = MemoryCounters(lambda: 0)
    >>> a, b = counters.claim([Claim("0004a30b001c0530", server, fcnt_up=7) for server in ("a", "b")])
    >>> a.won, b.won, b.server
    (True, False, 'a')
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """Begin with nothing; the clock says when what is kept for a while (``keep_ms``) is to be forgotten."""
        self._clock_ms = clock_ms
        self._kept: dict[str, tuple[Counters, int | None]] = {}
        # Who has an end, by when it may be due: each device stands there once, however often its end is moved.
        self._due: list[tuple[int, str]] = []
        self._queued: set[str] = set()
        self._nonces: dict[str, set[int]] = {}
        self._outboxes: dict[str, dict[int, Unfinished]] = {}  # by server, by number
        self._lock = Lock()
        self._open = True

    def claim(self, claims: Sequence[Claim], finished: Sequence[Finished] = ()) -> list[Claimed]:
        """Let go of what is finished, and judge the claims, in this order; nothing comes between them."""
        with self._lock:
            self._check_open()
            now_ms = self._clock_ms()
            while self._due and self._due[0][0] <= now_ms:  # drop what was kept long enough
                _, device = heappop(self._due)
                _, until = self._kept.get(device, (None, None))
                if until is not None and until > now_ms:
                    heappush(self._due, (until, device))
                    continue
                self._queued.discard(device)
                if until is not None:
                    del self._kept[device]
            for done in finished:
                self._outboxes.get(done.server, {}).pop(done.number, None)
            return [self._claim(claim, now_ms) for claim in claims]

    def unfinished(self, server: str) -> list[Unfinished]:
        with self._lock:
            self._check_open()
            return sorted(self._outboxes.get(server, {}).values())

    def known(self, devices: Sequence[str]) -> list[Counters | None]:
        with self._lock:
            self._check_open()
            now_ms = self._clock_ms()
            return [self._find(device, now_ms) for device in devices]

    def forget(self, device: str) -> None:
        with self._lock:
            self._check_open()
            self._kept.pop(device, None)
            self._nonces.pop(device, None)

    def close(self) -> None:
        self._open = False

    def __len__(self) -> int:
        """How many entries it holds: one per device, those of its joins that are not expired, and one of its nonces."""
        return len(self._kept) + len(self._nonces)

    def _claim(self, claim: Claim, now_ms: int) -> Claimed:
        before, entry = self._find(claim.entry, now_ms), claim.entry
        if claim.nonce is None:
            counters, claimed = decide(before, claim)
        else:
            counters = Counters(claim.fcnt_up, 0, claim.server)
            claimed = decide_join(before, claim, used=claim.nonce in self._nonces.get(claim.device, ()))
        if not claimed.won:
            unfinished = self._outboxes.get(claim.server, {}).get(claim.number)
            return claimed._replace(won=won_before(unfinished, claim))
        until = now_ms + claim.keep_ms if claim.keep_ms else None
        self._kept[entry] = counters, until
        if claim.nonce is not None:
            self._nonces.setdefault(claim.device, set()).add(claim.nonce)
        if claim.body:
            message = Unfinished(claim.number, claim.device, claim.fcnt_up, claim.body)
            self._outboxes.setdefault(claim.server, {})[claim.number] = message
        if until is not None and entry not in self._queued:
            self._queued.add(entry)
            heappush(self._due, (until, entry))
        return claimed

    def _find(self, device: str, now_ms: int) -> Counters | None:
        counters, until = self._kept.get(device, (None, None))
        return None if until is not None and until <= now_ms else counters

    def _check_open(self) -> None:
        if not self._open:
            raise Misuse("these counters were closed")
