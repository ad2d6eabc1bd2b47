"""Claims in batches: whatever came while the last batch was on its way makes the next one.

A coordinator may be far away and slow, so it is asked in a thread and for many devices at once. A frame gives its claim
to the desk and awaits the `Reply`. So does a frame that needs a device's counters (a `Lookup`): look-ups go ahead of
the claims of the same round. Along with these goes what is stored upstream by now, and need not be kept any longer.

When the coordinator is down nobody knows who owns a frame. There are two answers to that, and neither is a guess:

    park     claims wait, and are tried again until it is back; when too many wait, the oldest become unsure
    unsure   they become unsure at once, and for a moment nothing more is tried

What an earlier run left in the store is sorted out first: before that no claim is made, or our own would be among it.
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
"""How long nothing is tried after a failure, where nothing waits for it either."""
FINISH_S: Final = 0.5
"""What is finished waits so long for a claim to go along with."""
FINISHED_MAX: Final = 100_000
"""While the store is down. Beyond, the oldest stay there, and are looked for in the log at the next start."""
log: Final = logging.getLogger("onefold.gateway")


class Reply(Generic[T]):
    """What a frame awaits. When it is resolved, those who wait go on at once, in the order in which they came.

    A future of asyncio would let them go on in a later turn of the event loop. A frame that arrived in between would
    then be judged before an earlier one of its device, and the earlier one be refused as old.
    """

    __slots__ = ("_frames", "_resolved", "_value")

    def __init__(self) -> None:
        self._frames: list[Coroutine[Reply[Any], None, None]] = []
        self._resolved = False
        self._value: T | None = None

    def __await__(self) -> Generator["Reply[Any]", None, T]:
        if not self._resolved:
            yield self
        return self._value  # type: ignore[return-value]  # resolved: a cast would cost a call for each frame

    def resolve(self, value: T) -> None:
        self._resolved, self._value = True, value
        frames, self._frames = self._frames, []
        for frame in frames:
            Reply.advance(frame)

    @staticmethod
    def advance(frame: "Coroutine[Reply[Any], None, None]") -> None:
        """Run a frame's coroutine until it awaits a reply, or ends. It may await nothing else, and must not raise."""
        try:
            reply = frame.send(None)
        except StopIteration:
            return
        reply._frames.append(frame)


class Lookup(Reply[Sequence[Counters | None] | None]):
    """A question to a store about one device, or about all that share an address. None: it could not be asked.

    ``brief``: it is not the devices' own store, and nobody waits for it if it is down.
    """

    __slots__ = ("brief", "desk", "devices", "waiters")

    def __init__(self, desk: "ClaimDesk", devices: tuple[str, ...], *, brief: bool) -> None:
        super().__init__()
        self.desk, self.devices, self.brief, self.waiters = desk, devices, brief, 0


class ClaimDesk:
    """One store, and all that one server wants of it. Lives on one event loop; one task asks the store in a thread.

    ``number`` is the first one for a claim that leaves a body in the store; it has to rise from run to run.
    ``sort_out`` is called once, in the thread, with what an earlier run won and may not have stored; what it returns is
    called on the event loop, before the first claim is made.
    """

    def __init__(
        self, name: str, store: CounterStore, server: str,
        sort_out: Callable[[Sequence[Unfinished]], Callable[["ClaimDesk"], None]], *, number: int,
        when_down: WhenDown = "park", batch_max: int = 512, parked_max: int = 10_000,
    ) -> None:  # fmt: skip
        self.name = name
        self.problem: str | None = None
        """Why the store cannot be asked; None: it can."""
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
        self._under_way = 0  # claims
        self._down_until = 0.0
        self._enough = False
        self._news = asyncio.Event()
        self._wake()

    def claim(self, claim: Claim) -> Reply[tuple[int, Claimed | None]]:
        """Make this claim. The reply: the number under which the store keeps its body, and what became of the claim.

        None: nobody knows; with a number it may have been made, without one it was not, or had no body."""
        reply: Reply[tuple[int, Claimed | None]] = Reply()
        self._claims.append((claim, reply))
        self._wake()
        return reply

    def ask(self, lookup: Lookup) -> Lookup:
        """Wait for this look-up, which is made once, however many wait for it."""
        if not lookup.waiters:
            self._lookups.append(lookup)
        lookup.waiters += 1
        self._asking += 1
        self._wake()
        return lookup

    def finish(self, number: int) -> None:
        """What was won by this claim is stored upstream: let its body go, with the next claims or in a moment."""
        if not self._finished:
            self._loop.call_later(FINISH_S, self._finish_now)
        self._finished.append(Finished(self._server, number))

    @property
    def waiting(self) -> int:
        """Claims without an answer, and frames that wait for a look-up."""
        return len(self._claims) + self._asking + self._under_way

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
        """Wait for nothing more, and until all are answered."""
        self.give_up()
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        """Say what is finished, and let go of the store."""
        await self.settle()
        if self._finished and self.problem is None:
            await self._round()
        await self._loop.run_in_executor(self._pool, self._store.close)
        self._pool.shutdown(wait=False)

    def _finish_now(self) -> None:
        self._finish_due = bool(self._finished)
        if not self._enough:
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    async def _work(self) -> None:
        wait = RETRY_S[0]
        try:
            while self._claims or self._lookups or (not self._enough and (self._finish_due or not self._recovered)):
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
        """Ask the store for as much as fits; whether it answered.

        Frames that waited for a look-up make their claims in the same round: no sync comes between."""
        return (self._recovered or await self._recover()) and await self._look_up() and await self._make()

    async def _recover(self) -> bool:
        def left_behind() -> tuple[int, Callable[["ClaimDesk"], None]]:
            unfinished = self._store.unfinished(self._server)
            return max((each.number for each in unfinished), default=0), self._sort_out(unfinished)

        answer = await self._ask_store(left_behind)
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
        while self._lookups and len(devices) < self._batch_max:  # at least one, though it may be about more devices
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

    async def _make(self) -> bool:
        batch = [self._claims.popleft() for _ in range(min(len(self._claims), self._batch_max))]
        finished = list(islice(self._finished, 2 * self._batch_max))
        if not batch and not finished:
            return True
        for at, (claim, reply) in enumerate(batch):
            if claim.body and not claim.number:  # made again it keeps its number
                batch[at] = claim._replace(number=self._next_number), reply
                self._next_number += 1
        claims = [claim for claim, _ in batch]
        self._under_way = len(batch)
        results = await self._ask_store(lambda: _all(self._store.claim(claims, finished), len(claims), "claims"))
        self._under_way = 0
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
        """The answer, asked for in the thread; None: the store is down."""
        try:
            answer = await self._loop.run_in_executor(self._pool, question)
        except Exception as error:  # of whatever kind: the store did not answer
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
        """Try nothing for so long; but what comes meanwhile may be too much."""
        until = self._loop.time() + seconds
        while not self._enough and (rest := until - self._loop.time()) > 0:
            try:
                async with asyncio.timeout(rest):
                    await self._news.wait()
            except TimeoutError:
                return
            self._news.clear()
            self._answer_down()

    def _answer_down(self) -> None:
        """Answer what is too much to wait that nobody knows, the oldest first; all of it, if nothing waits."""
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
