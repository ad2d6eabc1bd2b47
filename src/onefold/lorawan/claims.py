"""Claims in batches: what arrives while one batch is in flight makes the next one.

A coordinator may be far away and slow, so it is called in a thread and for many devices at once. A frame hands its
claim to the desk and awaits the `Reply`; so does a frame that needs a device's counters (a `Lookup`). Each round makes
the look-ups first, then the claims; with the claims go the numbers of messages that are stored upstream and need not
be kept any longer.

While the coordinator is down nobody can know who owns a frame. There are two ways to handle that, and neither guesses:

    park     claims wait and are retried until it is back; when too many wait, the oldest become unsure
    unsure   claims become unsure at once, and the coordinator is left alone for a moment

What an earlier run left in the store is recovered before the first claim, or our own claims would be among it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from onefold.errors import StoreFailed
from onefold.lorawan.ports import CounterStore
from onefold.lorawan.rules import Claim, Claimed, Counters, Finished, Unfinished

T = TypeVar("T")
WhenDown: TypeAlias = Literal["park", "unsure"]

RETRY_S: Final = (0.05, 1.0)
"""The first wait and the longest; in between it doubles."""
DOWN_S: Final = 1.0
"""How long the store is left alone after a failure with ``when_down="unsure"``."""
FINISH_S: Final = 0.5
"""How long finished messages wait for a claim to share a call with."""
FINISHED_MAX: Final = 100_000
"""Finished messages queued while the store is down. Beyond, the oldest stay in the store until the next start, which
finds them in the log."""
log: Final = logging.getLogger("onefold.gateway")


class Reply(Generic[T]):
    """What a frame awaits. When it is resolved, the waiting frames continue at once, in the order of their arrival.

    An asyncio future would resume them in a later turn of the event loop. A frame that arrived in between would then be
    judged before an earlier one of its device, and the earlier one be refused as old.
    """

    __slots__ = ("_frames", "_resolved", "_value")

    def __init__(self) -> None:
        self._frames: list[Coroutine[Reply[Any], None, None]] = []
        self._resolved = False
        self._value: T | None = None

    def __await__(self) -> Generator["Reply[Any]", None, T]:
        if not self._resolved:
            yield self
        return self._value  # type: ignore[return-value]  # a cast would cost a call per frame

    def resolve(self, value: T) -> None:
        self._resolved, self._value = True, value
        frames, self._frames = self._frames, []
        for frame in frames:
            Reply.advance(frame)

    @staticmethod
    def advance(frame: "Coroutine[Reply[Any], None, None]") -> None:
        """Run a frame's coroutine until it awaits a reply or ends. It may await nothing else, and must not raise."""
        try:
            reply = frame.send(None)
        except StopIteration:
            return
        reply._frames.append(frame)


class Lookup(Reply[Sequence[Counters | None] | None]):
    """Asks a store for the counters of one device, or of all that share an address. The reply is None if the store is
    down.

    ``brief``: it is not the devices' own store, so nobody waits until it is back.
    """

    __slots__ = ("brief", "desk", "devices", "waiters")

    def __init__(self, desk: "ClaimDesk", devices: tuple[str, ...], *, brief: bool) -> None:
        super().__init__()
        self.desk, self.devices, self.brief, self.waiters = desk, devices, brief, 0


class ClaimDesk:
    """All calls of one server to one store. Lives on one event loop; one task calls the store in a thread.

    ``number`` is that of the first claim with a body; it must rise from run to run. ``sort_out`` is called once, in the
    thread, with what an earlier run won and may not have stored; the function that it returns is called on the event
    loop before the first claim.
    """

    def __init__(
        self, name: str, store: CounterStore, server: str,
        sort_out: Callable[[Sequence[Unfinished]], Callable[["ClaimDesk"], None]], *, number: int,
        when_down: WhenDown = "park", batch_max: int = 512, parked_max: int = 10_000,
    ) -> None:  # fmt: skip
        self.name = name
        self.problem: str | None = None
        """Why the store does not answer; None if it does."""
        self._store = store
        self._server = server
        self._sort_out = sort_out
        self._next_number = number
        self._park = when_down == "park"
        self._batch_max = batch_max
        self._parked_max = parked_max
        self._lookups: deque[Lookup] = deque()
        self._claims: deque[tuple[Claim, Reply[tuple[int, Claimed | None]]]] = deque()
        self._finished: deque[Finished] = deque(maxlen=FINISHED_MAX)
        self._finish_due = False
        self._recovered = False
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"onefold-{name}")
        self._worker: asyncio.Task[None] | None = None
        self._asking = 0  # frames that wait for a look-up
        self._in_flight = 0  # claims
        self._down_until = 0.0
        self._closing = False
        self._work_due = asyncio.Event()
        self._wake()

    def claim(self, claim: Claim) -> Reply[tuple[int, Claimed | None]]:
        """Make this claim. The reply is the number under which the store keeps its body, and the result.

        A result of None is unknown: with a number the claim may have been made; with 0 it was not, or has no body."""
        reply: Reply[tuple[int, Claimed | None]] = Reply()
        self._claims.append((claim, reply))
        self._wake()
        return reply

    def ask(self, lookup: Lookup) -> Lookup:
        """Wait for this look-up, which is made once for all frames that wait for it."""
        if not lookup.waiters:
            self._lookups.append(lookup)
        lookup.waiters += 1
        self._asking += 1
        self._wake()
        return lookup

    def finish(self, number: int) -> None:
        """The message of this claim is stored upstream: delete its body, with the next claims or in a moment."""
        if not self._finished:
            self._loop.call_later(FINISH_S, self._finish_now)
        self._finished.append(Finished(self._server, number))

    @property
    def waiting(self) -> int:
        """Claims without a result, and frames that wait for a look-up."""
        return len(self._claims) + self._asking + self._in_flight

    @property
    def parked(self) -> int:
        """As ``waiting``, if they wait for a store that is down."""
        return self.waiting if self.problem is not None and self._park else 0

    def give_up(self) -> None:
        """Stop waiting for the store: what cannot be claimed now is unsure."""
        self._park = False
        self._closing = True
        self._work_due.set()

    async def settle(self) -> None:
        """Give up, and wait until all are answered."""
        self.give_up()
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        """Settle, send what is finished, and close the store."""
        await self.settle()
        if self._finished and self.problem is None:
            await self._round()
        await self._loop.run_in_executor(self._pool, self._store.close)
        self._pool.shutdown(wait=False)

    def _finish_now(self) -> None:
        self._finish_due = bool(self._finished)
        if not self._closing:
            self._wake()

    def _wake(self) -> None:
        self._work_due.set()
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    async def _work(self) -> None:
        wait = RETRY_S[0]
        try:
            while self._claims or self._lookups or (not self._closing and (self._finish_due or not self._recovered)):
                if not self._park and self._loop.time() < self._down_until:
                    self._answer_down()
                    await self._pause(self._down_until - self._loop.time())
                elif await self._round():
                    wait = RETRY_S[0]
                else:
                    self._answer_down()
                    if self._park:
                        await self._pause(wait)
                        wait = min(2 * wait, RETRY_S[1])
        finally:
            self._worker = None

    async def _round(self) -> bool:
        """Call the store for as much as fits in a batch; False if it is down.

        Frames that waited for a look-up make their claims in the same round, without a sync in between."""
        return (self._recovered or await self._recover()) and await self._look_up() and await self._make_claims()

    async def _recover(self) -> bool:
        def read_unfinished() -> tuple[int, Callable[["ClaimDesk"], None]]:
            unfinished = self._store.unfinished(self._server)
            return max((each.number for each in unfinished), default=0), self._sort_out(unfinished)

        answer = await self._ask_store(read_unfinished)
        if answer is None:
            return False
        last, restore = answer
        self._recovered = True
        self._next_number = max(self._next_number, last + 1)
        try:
            restore(self)
        except Exception as error:
            log.error("desk %s: unexpected: %s: %s", self.name, type(error).__name__, error)
        return True

    async def _look_up(self) -> bool:
        batch: list[Lookup] = []
        devices: list[str] = []
        while self._lookups and len(devices) < self._batch_max:  # at least one, of however many devices
            batch.append(self._lookups.popleft())
            devices += batch[-1].devices
        if not batch:
            return True
        counters = await self._ask_store(lambda: _all(self._store.known(devices), len(devices), "devices"))
        if counters is None:
            self._lookups.extendleft(reversed(batch))
            return False
        rest = iter(counters)
        for lookup in batch:
            self._answer(lookup, list(islice(rest, len(lookup.devices))))
        return True

    async def _make_claims(self) -> bool:
        batch = [self._claims.popleft() for _ in range(min(len(self._claims), self._batch_max))]
        finished = list(islice(self._finished, 2 * self._batch_max))
        if not batch and not finished:
            return True
        for at, (claim, reply) in enumerate(batch):
            if claim.body and not claim.number:  # a retry keeps its number
                batch[at] = claim._replace(number=self._next_number), reply
                self._next_number += 1
        claims = [claim for claim, _ in batch]
        self._in_flight = len(batch)
        results = await self._ask_store(lambda: _all(self._store.claim(claims, finished), len(claims), "claims"))
        self._in_flight = 0
        if results is None:
            self._claims.extendleft(reversed(batch))
            return False
        for _ in finished:
            self._finished.popleft()
        self._finish_due = self._finish_due and bool(self._finished)
        for (claim, reply), claimed in zip(batch, results, strict=True):
            reply.resolve((claim.number, claimed))
        return True

    async def _ask_store(self, question: Callable[[], T]) -> T | None:
        """Run this in the thread; None if the store is down."""
        try:
            answer = await self._loop.run_in_executor(self._pool, question)
        except Exception as error:  # whatever it is, the store did not answer
            if self.problem is None:
                log.error("the coordinator %s is down, frames %s: %s: %s", self.name,
                          "wait" if self._park else "are unsure", type(error).__name__, error)  # fmt: skip
            self.problem = str(error) or type(error).__name__
            self._down_until = self._loop.time() + DOWN_S
            return None
        if self.problem is not None:
            log.error("the coordinator %s is back", self.name)
            self.problem = None
        return answer

    async def _pause(self, seconds: float) -> None:
        """Leave the store alone for so long, but keep to ``parked_max``."""
        until = self._loop.time() + seconds
        while not self._closing and (rest := until - self._loop.time()) > 0:
            try:
                async with asyncio.timeout(rest):
                    await self._work_due.wait()
            except TimeoutError:
                return
            self._work_due.clear()
            self._answer_down()

    def _answer_down(self) -> None:
        """Resolve what does not wait for a store that is down: brief look-ups, and the oldest beyond ``parked_max``; or
        everything, unless claims are parked."""
        for lookup in [lookup for lookup in self._lookups if lookup.brief]:
            self._lookups.remove(lookup)
            self._answer(lookup, None)
        while (self._lookups or self._claims) and (not self._park or self.waiting > self._parked_max):
            if self._lookups:
                self._answer(self._lookups.popleft(), None)
            else:
                claim, reply = self._claims.popleft()
                reply.resolve((claim.number, None))

    def _answer(self, lookup: Lookup, counters: Sequence[Counters | None] | None) -> None:
        self._asking -= lookup.waiters
        lookup.resolve(counters)


def _all(answers: list[T], count: int, what: str) -> list[T]:
    if len(answers) != count:
        raise StoreFailed(f"{count} {what} got {len(answers)} answers")
    return answers
