"""Claims in batches: whatever came while the last batch was on its way makes the next one.

A coordinator may be far away and slow, so it is asked in a thread and for many devices at once; the batch grows with
the load by itself. A server that lacks a device's counter asks for it here too, ahead of the claims of the same batch,
and says along with them what is stored upstream, so that the store need not keep it any longer.

When the coordinator is down nobody knows who owns a frame. There are two answers to that, and neither is a guess:

    park     claims wait, and are tried again until it is back; when too many wait, the oldest become unsure
    unsure   they become unsure at once, and for a moment nothing more is tried

What an earlier run left in the store is sorted out first: before that no claim is made, or our own would be among it.

To claim and to ask only fills a queue. One task works on it and tells the claimant, who may claim again meanwhile.

Who makes claims, and what a desk (`claiming`) tells him.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from onefold.errors import StoreFailed
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished
from onefold.lorawan.stores.port import CounterStore

T_contra = TypeVar("T_contra", contravariant=True)


class Claimant(Protocol[T_contra]):
    """The one who is told. ``item`` is what was given with the claim."""

    def claimed(self, item: T_contra, claim: Claim, claimed: Claimed | None) -> None:
        """The claim was made, with its number; None: nobody knows, and without a number it was never made."""
        ...

    def known(
        self, desk: "ClaimDesk", devices: Sequence[str], items: Sequence[T_contra],
        counters: Sequence[Counters | None], *, down: bool,
    ) -> None:  # fmt: skip
        """What the store knows of each of these devices, for all who asked; with ``down`` it could not be asked."""
        ...

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[["ClaimDesk"], None]:
        """What this server won before it died, and may not have stored; what is to be done about it, on the event loop.

        Called in a thread, where it may block; its result is used once, before the first claim."""
        ...


WhenDown: TypeAlias = Literal["park", "unsure"]
Devices: TypeAlias = tuple[str, ...]
"""The devices that one question is about."""

RETRY_S: Final = (0.05, 1.0)
"""The first wait and the longest; in between it doubles."""
DOWN_S: Final = 1.0
"""How long nothing is tried after a failure, where nothing waits for it either."""
FINISH_S: Final = 0.5
"""What is finished waits so long for a claim to go along with."""
FINISHED_MAX: Final = 100_000
"""While the store is down. Beyond, the oldest stay there, and are looked for in the log at the next start."""
log: Final = logging.getLogger("onefold.gateway")


class ClaimDesk:
    """One store, and all who want something of it for one server. Lives on one event loop.

    ``number`` is the first one for a claim that leaves a body in the store; it has to rise from run to run.
    """

    def __init__(
        self, name: str, store: CounterStore, server: str, claimant: Claimant[Any], *, number: int,
        when_down: WhenDown = "park", batch_max: int = 512, parked_max: int = 10_000,
    ) -> None:  # fmt: skip
        self.name = name
        self.store = store
        self.problem: str | None = None
        """Why it cannot be asked; None: it can."""
        self._server = server
        self._claimant = claimant
        self._next_number = number
        self._park = when_down == "park"
        self._batch_max = batch_max
        self._parked_max = parked_max
        self._asks: dict[Devices, list[Any]] = {}  # not asked yet
        self._asking: dict[Devices, list[Any]] = {}  # under way
        self._brief: set[Devices] = set()  # questions that are not worth a wait
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
        self._enough = False
        self._news = asyncio.Event()
        self._wake()

    def claim(self, claim: Claim, item: Any) -> None:
        """Make this claim; the claimant is told, later."""
        self._claims.append((claim, item))
        self._wake()

    def ask(self, devices: Devices, *items: Any, brief: bool = False) -> None:
        """Look up what is known of these devices; the claimant is told, later, once for all who ask the same meanwhile.

        One question, however many devices it is about: all that share an address are asked for together. ``brief``: if
        the store is down nobody waits for it, whatever else does."""
        if devices in self._asking:
            self._asking[devices] += items
        else:
            if not brief:
                self._brief.discard(devices)
            elif devices not in self._asks:
                self._brief.add(devices)
            self._asks.setdefault(devices, []).extend(items)
        self._asked += len(items)
        self._wake()

    def finish(self, number: int) -> None:
        """What was won by this claim is stored upstream: let its body go, with the next claims or in a moment."""
        if not self._finished:
            self._loop.call_later(FINISH_S, self._finish_now)
        self._finished.append(Finished(self._server, number))

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
        self._enough = True
        self._news.set()

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
        if self._finish_due and not self._enough:
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    # --- the one task -----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        wait = RETRY_S[0]
        try:
            while self._has_work():
                if not self._park and self._loop.time() < self._down_until:
                    self._tell_down()
                    await self._pause(self._down_until - self._loop.time())
                elif await self._round():
                    wait = RETRY_S[0]
                else:
                    self._tell_down()
                    if self._park:
                        await self._pause(wait)
                        wait = min(2 * wait, RETRY_S[1])
        finally:
            self._worker = None

    def _has_work(self) -> bool:
        later = self._finish_due or not self._recovered
        return bool(self._claims or self._asks or (later and not self._enough))

    async def _round(self) -> bool:
        """Ask the store for as much as fits: what is left, then what is known, then the claims; whether it answered."""
        return (self._recovered or await self._recover()) and await self._look_up() and await self._make()

    async def _look_up(self) -> bool:
        """Those who wait for this claim in the same round: no sync comes between."""
        asks, many = [], 0
        for devices in self._asks:  # at least one, though it may be about more devices than a batch is to have
            asks.append(devices)
            many += len(devices)
            if many >= self._batch_max:
                break
        if not asks:
            return True
        self._asking = {devices: self._asks.pop(devices) for devices in asks}
        try:
            found = await self._loop.run_in_executor(self._pool, self._known_all, asks)
        except Exception as error:  # of whatever kind: the store did not answer
            self._asks = {**self._asking, **self._asks}
            self._asking = {}
            return self._fail(error)
        self._is_back()
        asking, self._asking = self._asking, {}
        at = 0
        for devices, items in asking.items():
            self._tell_known(devices, items, found[at : at + len(devices)], down=False)
            at += len(devices)
        return True

    def _known_all(self, asks: Sequence[Devices]) -> list[Counters | None]:
        names = [device for devices in asks for device in devices]
        found = self.store.known(names)
        if len(found) != len(names):
            raise StoreFailed(f"{len(names)} devices were asked for, {len(found)} were answered")
        return found

    async def _make(self) -> bool:
        batch = [self._numbered(*self._claims.popleft()) for _ in range(min(len(self._claims), self._batch_max))]
        finished = list(islice(self._finished, 2 * self._batch_max))
        if not batch and not finished:
            return True
        self._under_way = len(batch)
        try:
            made = await self._loop.run_in_executor(
                self._pool, self._claim_all, [claim for claim, _ in batch], finished
            )
        except Exception as error:
            self._claims.extendleft(reversed(batch))
            self._under_way = 0
            return self._fail(error)
        self._under_way = 0
        for _ in finished:
            self._finished.popleft()
        self._finish_due = self._finish_due and bool(self._finished)
        self._is_back()
        for (claim, item), claimed in zip(batch, made, strict=True):
            self._tell(partial(self._claimant.claimed, item, claim, claimed))
        return True

    def _claim_all(self, claims: Sequence[Claim], finished: Sequence[Finished]) -> list[Claimed]:
        made = self.store.claim(claims, finished)
        if len(made) != len(claims):
            raise StoreFailed(f"{len(claims)} claims got {len(made)} answers")
        return made

    async def _recover(self) -> bool:
        """Sort out what an earlier run left; whether that is done now."""
        try:
            last, then = await self._loop.run_in_executor(self._pool, self._left_behind)
        except Exception as error:
            return self._fail(error)
        self._recovered = True
        self._next_number = max(self._next_number, last + 1)
        self._is_back()
        self._tell(partial(then, self))
        return True

    def _left_behind(self) -> tuple[int, Callable[["ClaimDesk"], None]]:
        unfinished = self.store.unfinished(self._server)
        return max((left.number for left in unfinished), default=0), self._claimant.sort_out(unfinished)

    def _numbered(self, claim: Claim, item: Any) -> tuple[Claim, Any]:
        """With a number, if it has none yet and the store is to keep something under it."""
        if claim.body and not claim.number:
            claim = claim._replace(number=self._next_number)
            self._next_number += 1
        return claim, item

    def _is_back(self) -> None:
        if self.problem is not None:
            log.error("the coordinator %s is back", self.name)
            self.problem = None

    def _fail(self, error: Exception) -> bool:
        if self.problem is None:
            log.error("the coordinator %s is down, frames %s: %s: %s", self.name,
                      "wait" if self._park else "are unsure", type(error).__name__, error)  # fmt: skip
        self.problem = str(error) or type(error).__name__
        self._down_until = self._loop.time() + DOWN_S
        return False

    async def _pause(self, seconds: float) -> None:
        """Try nothing for so long; but what comes meanwhile may be too much."""
        until = self._loop.time() + seconds
        while not self._enough and (left := until - self._loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                return
            self._news.clear()
            self._tell_down()

    def _tell_down(self) -> None:
        """What is too much to wait is told that nobody knows, the oldest first; all of it, if nothing waits."""
        for devices in [devices for devices in self._asks if devices in self._brief]:
            self._tell_known(devices, self._asks.pop(devices), [None] * len(devices), down=True)
        while (self._asks or self._claims) and (not self._park or self.waiting > self._parked_max):
            if self._asks:
                devices = next(iter(self._asks))
                self._tell_known(devices, self._asks.pop(devices), [None] * len(devices), down=True)
            else:
                claim, item = self._claims.popleft()
                self._tell(partial(self._claimant.claimed, item, claim, None))

    def _tell_known(
        self, devices: Devices, items: list[Any], counters: Sequence[Counters | None], *, down: bool
    ) -> None:
        self._asked -= len(items)
        self._brief.discard(devices)
        self._tell(partial(self._claimant.known, self, devices, items, counters, down=down))

    def _tell(self, tell: Callable[[], None]) -> None:
        """Whatever becomes of one, the others are told, too."""
        try:
            tell()
        except Exception as error:
            log.error("desk %s: unexpected: %s: %s", self.name, type(error).__name__, error)
