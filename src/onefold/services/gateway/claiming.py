"""Claims in batches: whatever came while the last batch was on its way makes the next one.

A coordinator may be far away and slow, so it is asked in a thread and for many devices at once; the batch grows with
the load by itself. A server that lacks a device's counter asks for it here too, ahead of the claims of the same batch,
and says along with them what is stored upstream, so that the store need not keep it any longer.

When the coordinator is down nobody knows who owns a frame. There are two answers to that, and neither is a guess:

    park     claims wait, and are tried again until it is back; when too many wait, the oldest become unsure
    unsure   they become unsure at once, and for a moment nothing more is tried
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from onefold.engines.lorawan.server import Claim, Claimed, Counters, Finished, Unfinished
from onefold.ports import CounterStore

WhenDown: TypeAlias = Literal["park", "unsure"]
T_contra = TypeVar("T_contra", contravariant=True)

RETRY_S: Final = (0.05, 1.0)
"""The first wait and the longest; in between it doubles."""
DOWN_S: Final = 1.0
"""How long nothing is tried after a failure, where nothing waits for it either."""
FINISH_S: Final = 0.5
"""What is finished waits so long for a claim to go along with."""
FINISHED_MAX: Final = 100_000
"""While the store is down. Beyond, the oldest stay unfinished there, and are stored once more at the next start."""
log: Final = logging.getLogger("onefold.gateway")


class Claimant(Protocol[T_contra]):
    """The one who is told. ``item`` is what was given with the claim."""

    def claimed(self, item: T_contra, claimed: Claimed | None) -> None:
        """The claim was made; None: the coordinator is down, and nobody knows."""
        ...

    def known(self, device: str, items: Sequence[T_contra], counters: Counters | None, *, down: bool) -> None:
        """What the store knows of a device, for all who asked; with ``down`` it could not be asked."""
        ...

    def recover(self, desk: "ClaimDesk", unfinished: Sequence[Unfinished]) -> None:
        """What this server won before it died, and may not have stored. Once, before the first claim."""
        ...


class ClaimDesk:
    """One store, and all who want something of it for one server. Lives on one event loop."""

    def __init__(
        self, name: str, store: CounterStore, server: str, claimant: Claimant[Any], *, when_down: WhenDown = "park",
        batch_max: int = 512, parked_max: int = 10_000,
    ) -> None:  # fmt: skip
        self.name = name
        self.store = store
        self.problem: str | None = None
        """Why it cannot be asked; None: it can."""
        self._server = server
        self._claimant = claimant
        self._park = when_down == "park"
        self._batch_max = batch_max
        self._parked_max = parked_max
        self._asks: dict[str, list[Any]] = {}  # not asked yet
        self._asking: dict[str, list[Any]] = {}  # under way
        self._claims: deque[tuple[Claim, Any]] = deque()
        self._finished: deque[Finished] = deque(maxlen=FINISHED_MAX)
        self._finish_due = False
        self._recovered = False
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"onefold-{name}")
        self._worker: asyncio.Task[None] | None = None
        self._asked = 0
        self._under_way = 0  # claims
        self._down_until = 0.0
        self._enough = asyncio.Event()
        self._wake()

    def claim(self, claim: Claim, item: Any) -> None:
        """Make this claim; the claimant is told."""
        self._claims.append((claim, item))
        self._wake()

    def ask(self, device: str, *items: Any) -> None:
        """Look up what is known of a device; the claimant is told, once for all who ask meanwhile."""
        if device in self._asking:
            self._asking[device] += items
        else:
            self._asks.setdefault(device, []).extend(items)
        self._asked += len(items)
        self._wake()

    def finish(self, claim: Claim) -> None:
        """What was won by this claim is stored upstream: let its body go, with the next claims or in a moment."""
        if not self._finished:
            self._loop.call_later(FINISH_S, self._finish_now)
        self._finished.append(Finished(claim.server, claim.device, claim.fcnt_up))

    @property
    def waiting(self) -> int:
        """Claims without an answer, and who waits for a question to be answered."""
        return len(self._claims) + self._asked + self._under_way

    @property
    def parked(self) -> int:
        """How many of them wait for a store that is down."""
        return self.waiting if self.problem is not None and self._park else 0

    def give_up(self) -> None:
        """Wait for nothing more: what cannot be claimed now is unsure."""
        self._park = False
        self._enough.set()

    async def settle(self) -> None:
        """Wait for nothing more, and until all are told."""
        self.give_up()
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        """Say what is finished, and let go of the store."""
        await self.settle()
        if self._finished and self.problem is None:
            await self._round()
        await self._loop.run_in_executor(self._pool, self.store.close)
        self._pool.shutdown(wait=False)

    def _finish_now(self) -> None:
        self._finish_due = bool(self._finished)
        if self._finish_due and not self._enough.is_set():
            self._wake()

    def _wake(self) -> None:
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())
        elif self.problem is not None:
            self._trim()

    def _has_work(self) -> bool:
        later = self._finish_due or not self._recovered
        return bool(self._claims or self._asks or (later and not self._enough.is_set()))

    async def _work(self) -> None:
        wait = RETRY_S[0]
        try:
            while self._has_work():
                if self._is_down():
                    self._tell_all_down()
                    await self._pause(self._down_until - self._loop.time())
                elif await self._round():
                    wait = RETRY_S[0]
                elif self._park:
                    await self._pause(wait)
                    wait = min(2 * wait, RETRY_S[1])
        finally:
            self._worker = None

    def _is_down(self) -> bool:
        return not self._park and self._loop.time() < self._down_until

    async def _round(self) -> bool:
        """Ask the store once, for as much as fits; whether it answered."""
        asks = list(islice(self._asks, self._batch_max))
        self._asking = {device: self._asks.pop(device) for device in asks}
        batch = [self._claims.popleft() for _ in range(min(len(self._claims), self._batch_max))]
        self._under_way = len(batch)
        finished = list(islice(self._finished, 2 * self._batch_max))
        claims = [claim for claim, _ in batch]
        try:
            unfinished, found, made = await self._loop.run_in_executor(
                self._pool, self._ask_store, asks, claims, finished
            )
        except Exception as error:  # of whatever kind: the store did not answer
            self._fail(error)
            self._asks = {**self._asking, **self._asks}
            self._asking = {}
            self._claims.extendleft(reversed(batch))
            self._under_way = 0
            self._trim()
            return False
        self._under_way = 0
        for _ in finished:
            self._finished.popleft()
        self._finish_due = self._finish_due and bool(self._finished)
        self._answer(unfinished, found, batch, made)
        return True

    def _ask_store(
        self, asks: Sequence[str], claims: Sequence[Claim], finished: Sequence[Finished]
    ) -> tuple[list[Unfinished], list[Counters | None], list[Claimed]]:
        unfinished = [] if self._recovered else self.store.unfinished(self._server)
        found = [self.store.known(device) for device in asks]
        return unfinished, found, self.store.claim(claims, finished) if claims or finished else []

    def _answer(
        self, unfinished: list[Unfinished], found: list[Counters | None], batch: list[tuple[Claim, Any]],
        made: list[Claimed],
    ) -> None:  # fmt: skip
        if self.problem is not None:
            log.error("the coordinator %s is back", self.name)
            self.problem = None
        if not self._recovered:
            self._recovered = True
            self._claimant.recover(self, unfinished)
        asking, self._asking = self._asking, {}
        for (device, items), counters in zip(asking.items(), found, strict=True):
            self._asked -= len(items)
            self._claimant.known(device, items, counters, down=False)
        for (_, item), claimed in zip(batch, made, strict=True):
            self._claimant.claimed(item, claimed)

    def _fail(self, error: Exception) -> None:
        if self.problem is None:
            log.error("the coordinator %s is down, frames %s: %s: %s", self.name,
                      "wait" if self._park else "are unsure", type(error).__name__, error)  # fmt: skip
        self.problem = str(error) or type(error).__name__
        self._down_until = self._loop.time() + DOWN_S

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._enough.wait()
        except TimeoutError:
            pass

    def _trim(self) -> None:
        """What is too much to wait is told that nobody knows, the oldest first; all of it, if nothing waits."""
        if self._is_down():
            self._tell_all_down()
        while self._park and self.waiting > self._parked_max and (self._asks or self._claims):
            self._tell_one_down()

    def _tell_all_down(self) -> None:
        for _ in range(len(self._asks) + len(self._claims)):
            self._tell_one_down()

    def _tell_one_down(self) -> None:
        if not self._asks:
            self._claimant.claimed(self._claims.popleft()[1], None)
            return
        device = next(iter(self._asks))
        items = self._asks.pop(device)
        self._asked -= len(items)
        self._claimant.known(device, items, None, down=True)
