"""The service: every reception gets one answer, and one server answers the device.

    a link parses it -> the registry knows the address -> the MIC is right under one counter -> level 1 -> validation
    -> the claim, with others, in a thread -> settled -> into the log, with others, in a thread -> the acknowledgement

How a reception is judged is in `judging`. Here is what surrounds it: what is in hand, how much of that there may be,
and that each reception comes to its end, whatever goes wrong on its way.
"""

import asyncio
import logging
from time import monotonic_ns
from typing import Final

from onefold.engines.lorawan.judge import Judged, NetworkServer
from onefold.engines.lorawan.sightings import Sightings
from onefold.engines.lorawan.station import Stations
from onefold.errors import Busy
from onefold.ports import CounterStore
from onefold.services.gateway.claiming import ClaimDesk, WhenDown
from onefold.services.gateway.delivery import Delivery
from onefold.services.gateway.judging import Judging, MicBudget
from onefold.services.gateway.reception import Reception
from onefold.services.gateway.recovery import Recovery
from onefold.services.gateway.registry import Registry
from onefold.services.gateway.sessions import Item, Sessions
from onefold.services.gateway.settings import GatewaySettings
from onefold.services.topic_settings import Clock, wall_ms
from onefold.services.topics import Topics
from onefold.tally import Tally
from onefold.verdict import Answer

NUMBER_BITS: Final = 10
"""Claims are numbered from the time of the start on: a million a second would be needed to run into the next start."""
log: Final = logging.getLogger("onefold.gateway")


def ticks_ms() -> int:
    """A clock that nobody sets, in milliseconds: what level 1 goes by, or one wrong hour would stop its expiry."""
    return monotonic_ns() // 1_000_000


class GatewayService:
    """Takes receptions of any protocol. Lives on one event loop.

    ``shared`` keeps the counters of devices that any server may serve, ``local`` those that only this one may.
    """

    def __init__(
        self, settings: GatewaySettings, registry: Registry, topics: Topics, *, shared: CounterStore | None,
        local: CounterStore, clock: Clock = wall_ms, ticks: Clock = ticks_ms,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.region = settings.region
        self.sessions = Sessions(registry)
        self.in_hand = 0
        """Receptions that were taken and are not done."""
        self.failed = 0
        """Those that ended in an error of ours."""
        self.closing = False
        self.delivery = Delivery(settings, topics, clock, self._done)
        self._undecided = 0
        self._waiting = 0  # receptions that came and for which there was no room
        self._clock = clock
        self._ticks = ticks
        self._changed = asyncio.Event()
        self._sightings = Sightings(expiry_ms=settings.expiry_ms, sliding=settings.sliding)
        self._recovery = Recovery(self._sightings, self.delivery, clock, ticks)
        self._recovery.remember(clock() - settings.expiry_ms)
        stations = Stations(self._sightings, echo_ms=settings.echo_ms)
        judge = NetworkServer(settings.name, stations, strict_adr=settings.strict_adr)
        limits = settings.limits
        budget = MicBudget(failures_max=limits.mic_failures_max, window_ms=round(1_000 * limits.mic_window_s))
        self._judging = Judging(
            judge, self.sessions, self.delivery, self._recovery, budget, decided=self._decided, failed=self._failed
        )
        self._local = self._desk("local", local, "park")
        self._shared = self._local if shared is None else self._desk("shared", shared, settings.when_down)
        self._desks = (self._local,) if shared is None else (self._local, self._shared)
        self._judging.open(self._local, None if shared is None else self._shared)

    def _desk(self, name: str, store: CounterStore, when_down: WhenDown) -> ClaimDesk:
        limits = self.settings.limits
        return ClaimDesk(
            name, store, self.settings.name, self._judging, number=self._clock() << NUMBER_BITS, when_down=when_down,
            batch_max=limits.batch_max, parked_max=limits.parked_max,
        )  # fmt: skip

    @property
    def tally(self) -> Tally:
        """The books: all that came in, and all that was decided."""
        return self.delivery.tally

    # --- what links call ------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Something came in, and is to be heard or refused: the one side of the books, `delivery` keeps the other."""
        self.tally.arrive()

    def hear(self, reception: Reception) -> None:
        """Take a reception, at once; `Busy`: too much is in hand, and it was not taken."""
        if self.in_hand >= self.settings.limits.in_hand_max:
            raise Busy(f"{self.in_hand:,} receptions are in hand, the limit", in_hand=self.in_hand)
        if self.closing:
            raise Busy("the server is shutting down")
        self.in_hand += 1
        self._undecided += 1
        self._judging.take(Item(reception, self._ticks()))

    def refuse(self, station: str, answer: Answer, told: str) -> None:
        """Something came from this station that is no reception: it is counted, with what was wrong."""
        self.delivery.refused(station, answer, told)

    def transmitted(self, number: int) -> None:
        """A station says that this downlink was on the air."""
        self.delivery.downlinks.was_transmitted(number)

    async def room(self) -> None:
        """Wait until a reception can be taken; for ever, if the server is about to end."""
        self._waiting += 1
        try:
            while self.closing or self.in_hand >= self.settings.limits.in_hand_max:
                await self._change()
        finally:
            self._waiting -= 1

    def use(self, registry: Registry) -> None:
        """Judge by another registry from now on."""
        self.sessions.use(registry)

    # --- deciding -------------------------------------------------------------------------------------------------

    def _decided(self, item: Item, judged: Judged) -> None:
        self._undecided -= 1
        self.delivery.decided(item, judged)

    def _failed(self, item: Item, error: Exception) -> None:
        """Something that nobody has thought of: this reception ends here, and is in the books."""
        self.failed += 1
        log.error("a reception of station %s: unexpected: %s: %s", item.reception.station, type(error).__name__, error)
        if not item.decided:
            self._undecided -= 1
            self.delivery.give_up(item)
        self._done(item, False)

    def _done(self, item: Item, stored: bool) -> None:
        if item.done:
            return
        item.done = True
        if stored and item.owes and item.desk is not None:
            item.desk.finish(item.owes)
        self.in_hand -= 1
        self._changed.set()

    # --- watching and ending ----------------------------------------------------------------------------------------

    def figures(self) -> dict[str, int]:
        """What there is to watch, beside the tally, the statuses, the latency and the downlinks."""
        self.delivery.downlinks.expire(self._clock())
        return {
            "in_hand": self.in_hand,
            "in_flight": self._undecided,
            "claiming": sum(desk.waiting for desk in self._desks),
            "parked": sum(desk.parked for desk in self._desks),
            "devices": len(self.sessions.registry),
            "sessions": len(self.sessions),
            "sightings": len(self._sightings),
            "evicted": self._sightings.evicted,
            "unstored": self.delivery.unstored,
            "unkept": self.delivery.unkept,
            "recovered": self._recovery.recovered,
            "unreadable": self._recovery.unreadable,
            "failed": self.failed,
            "arrived": self.tally.received,
            "unaccounted": self.unaccounted,
        }

    @property
    def unaccounted(self) -> int:
        """Receptions that came in and have no verdict though nothing is under way; below 0: they have one too many."""
        return self.tally.pending if not (self.in_hand or self._waiting) else 0

    def problems(self) -> dict[str, str]:
        """What is wrong; empty: nothing is known to be."""
        found = {desk.name: desk.problem for desk in self._desks if desk.problem is not None}
        if self.unaccounted:
            found["books"] = str(self.tally)
        return found | self.delivery.problems()

    async def idle(self) -> None:
        """Wait until nothing is in hand."""
        while self.in_hand:
            await self._change()

    async def drain(self, seconds: float) -> None:
        """Decide and store what is in hand and send its acknowledgements; what cannot be decided in time is unsure."""
        self.closing = True
        try:
            async with asyncio.timeout(seconds):
                await self.idle()
        except TimeoutError:
            for desk in self._desks:
                desk.give_up()

    async def close(self) -> None:
        """Finish, and let go of the stores; the topics are their owner's."""
        self.closing = True
        for desk in self._desks:
            await desk.settle()
        await self.delivery.close()
        for desk in self._desks:
            await desk.close()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
