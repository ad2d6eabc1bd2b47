"""The service: every reception gets one answer, and one server answers the device.

    a link parses it -> the registry knows the address -> the MIC is right under one counter -> level 1 -> validation
    -> the claim, with others, in a thread -> settled -> into the log, with others, in a thread -> the acknowledgement

Up to the MIC nothing changes, whatever is sent. Judging is quick and done on the event loop, in the order of arrival.
A device that was not heard since the start is looked up in the store first, so a restart forgets no counter.

Its counters live in the shared store, or in this server's own where only this server may serve the device.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Final

from onefold.engines.lorawan.answers import BAD_MIC, COORDINATOR_DOWN, OLD_COUNTER, OTHER_GATEWAY, UNKNOWN_DEVICE
from onefold.engines.lorawan.frames import DataUp, JoinRequest
from onefold.engines.lorawan.judge import Judged, NetworkServer
from onefold.engines.lorawan.mic import find_counter, join_mic
from onefold.engines.lorawan.routing import NOWHERE
from onefold.engines.lorawan.server import Claim, Claimed, Counters, Unfinished
from onefold.engines.lorawan.sightings import Sightings
from onefold.engines.lorawan.station import Stations
from onefold.engines.lorawan.status import Status
from onefold.errors import Busy
from onefold.ports import CounterStore
from onefold.services.gateway.claiming import ClaimDesk
from onefold.services.gateway.delivery import Delivery
from onefold.services.gateway.reception import Reception
from onefold.services.gateway.recovery import Recovery
from onefold.services.gateway.registry import Registry
from onefold.services.gateway.sessions import Item, Session, Sessions
from onefold.services.gateway.settings import GatewaySettings
from onefold.services.topic_settings import Clock, wall_ms
from onefold.services.topics import Topics
from onefold.tally import Tally
from onefold.verdict import Answer

ASK_S: Final = 10.0
"""A device whose frames do not fit its counter is looked up again, this often at most."""


class GatewayService:
    """Takes receptions of any protocol. Lives on one event loop.

    ``shared`` keeps the counters of devices that any server may serve, ``local`` those that only this one may.
    """

    def __init__(
        self, settings: GatewaySettings, registry: Registry, topics: Topics, *, shared: CounterStore | None,
        local: CounterStore, clock: Clock = wall_ms,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.region = settings.region
        self.sessions = Sessions(registry)
        self.in_hand = 0
        """Receptions that were taken and are not done."""
        self.closing = False
        self.delivery = Delivery(settings, topics, clock, self._done)
        self._undecided = 0
        self._clock = clock
        self._changed = asyncio.Event()
        sightings = Sightings(expiry_ms=settings.expiry_ms, sliding=settings.sliding)
        self._judge = NetworkServer(settings.name, Stations(sightings, echo_ms=settings.echo_ms))
        bounds = {"batch_max": settings.limits.batch_max, "parked_max": settings.limits.parked_max}
        self._recovery = Recovery(settings.name, sightings, self.delivery)
        self._recovery.remember(clock() - settings.expiry_ms)
        self._local = ClaimDesk("local", local, settings.name, self, when_down="park", **bounds)
        self._shared = self._local
        if shared is not None:
            self._shared = ClaimDesk("shared", shared, settings.name, self, when_down=settings.when_down, **bounds)
        self._desks = (self._local,) if self._shared is self._local else (self._local, self._shared)

    @property
    def tally(self) -> Tally:
        """The books: all that was decided."""
        return self.delivery.tally

    # --- what links call ------------------------------------------------------------------------------------------

    def hear(self, reception: Reception) -> None:
        """Take a reception, at once; `Busy`: too much is in hand, and it was not taken."""
        if self.in_hand >= self.settings.limits.in_hand_max:
            raise Busy(f"{self.in_hand:,} receptions are in hand, the limit", in_hand=self.in_hand)
        if self.closing:
            raise Busy("the server is shutting down")
        self.in_hand += 1
        self._undecided += 1
        item = Item(reception)
        if isinstance(reception.frame, JoinRequest):
            self._join(item, reception.frame)
        else:
            self._data(item, reception.frame)

    def refuse(self, station: str, answer: Answer, told: str) -> None:
        """Something came from this station that is no reception: it is counted, with what was wrong."""
        self.delivery.refused(station, answer, told)

    def transmitted(self, number: int) -> None:
        """A station says that this downlink was on the air."""
        self.delivery.downlinks.was_transmitted(number)

    async def room(self) -> None:
        """Wait until a reception can be taken; for ever, if the server is about to end."""
        while self.closing or self.in_hand >= self.settings.limits.in_hand_max:
            await self._change()

    def use(self, registry: Registry) -> None:
        """Judge by another registry from now on."""
        self.sessions.use(registry)

    # --- judging --------------------------------------------------------------------------------------------------

    def _data(self, item: Item, frame: DataUp) -> None:
        sessions = self.sessions.at(frame.dev_addr)
        for session in sessions:
            if session.asking or not session.loaded:
                self._ask(session, item)
                return
        self._find(item, frame, sessions)

    def _find(self, item: Item, frame: DataUp, sessions: Sequence[Session], *, down: bool = False) -> None:
        """Whose frame is it, and under which counter? With ``down`` the store could not be asked."""
        for session in sessions:
            fcnt = find_counter(session.entry.nwk_skey or b"", frame, session.heard.fcnt_up)
            if fcnt is not None:
                self._uplink(item, frame, session, fcnt)
                return
        if not sessions:
            self._refuse(item, UNKNOWN_DEVICE)
        elif down:
            self._refuse(item, COORDINATOR_DOWN)
        else:
            for session in sessions:
                if monotonic() - session.asked_at >= ASK_S:  # its counter may have gone on without this server
                    self._ask(session, item)
                    return
            self._refuse(item, BAD_MIC)

    def _uplink(self, item: Item, frame: DataUp, session: Session, fcnt: int) -> None:
        entry, reception = session.entry, item.reception
        item.session = session
        judged = item.judged = self._judge.uplink(
            entry.device, frame, fcnt, session.heard, reception.station, reception.received_ms
        )
        if judged.claim is not None:
            self._claim(item, session, judged, judged.claim._replace(device=entry.session))
            return
        self._decided(item, judged)
        if judged.answer is OLD_COUNTER and entry.device.relaxed and monotonic() - session.asked_at >= ASK_S:
            self._ask(session)  # it may have begun again, and only another server heard that

    def _join(self, item: Item, request: JoinRequest) -> None:
        entry = self.sessions.registry.by_eui.get(request.dev_eui)
        if entry is None or entry.app_key is None:
            self._refuse(item, UNKNOWN_DEVICE)
        elif join_mic(entry.app_key, request.raw) != request.mic:
            self._refuse(item, BAD_MIC)
        elif entry.device.gateway not in (None, self.settings.name):
            self._refuse(item, OTHER_GATEWAY)
        else:
            session = item.session = self.sessions.of(entry)
            judged = item.judged = self._judge.join(request, item.reception.station, item.reception.received_ms)
            if judged.claim is None:
                self._decided(item, judged)
            else:
                self._claim(item, session, judged, judged.claim)

    def _claim(self, item: Item, session: Session, judged: Judged, claim: Claim) -> None:
        """With what goes upstream if it is won: the store keeps it until it is there, whatever becomes of us."""
        if judged.route.up:
            item.record = self.delivery.record(item, judged)
            claim = claim._replace(body=item.record.decode())
        item.claim = claim
        self._desk(session).claim(claim, item)

    def _desk(self, session: Session) -> ClaimDesk:
        return self._shared if session.entry.device.gateway is None else self._local

    def _ask(self, session: Session, *items: Item) -> None:
        session.asking = True
        self._desk(session).ask(session.entry.session, *items)

    # --- what the desks tell ----------------------------------------------------------------------------------------

    def known(self, device: str, items: Sequence[Item], counters: Counters | None, *, down: bool) -> None:
        """A device was looked up; who waited for that is judged now."""
        session = self.sessions.named(device)
        if session is not None:
            session.asking = False
            session.asked_at = monotonic()
            session.loaded = session.loaded or not down
            if counters is not None:
                if not items and counters.fcnt_up < (session.heard.fcnt_up or 0):
                    session.heard.fcnt_up = None  # what `_uplink` asked for: it began again elsewhere
                session.learn(counters.fcnt_up, own=counters.server == self.settings.name)
        for item in items:
            frame = item.reception.frame
            assert isinstance(frame, DataUp)
            if down:
                self._find(item, frame, self.sessions.at(frame.dev_addr), down=True)
            else:
                self._data(item, frame)

    def claimed(self, item: Item, claimed: Claimed | None) -> None:
        """A claim was made, or nobody knows."""
        session, judged = item.session, item.judged
        assert session is not None
        assert judged is not None
        item.claimed = claimed
        self._decided(item, self._judge.settle(judged, session.entry.device.strategy, claimed))

    def recover(self, desk: ClaimDesk, unfinished: Sequence[Unfinished]) -> None:
        """An earlier run left something behind."""
        self._recovery.recover(desk, unfinished)

    # --- deciding ---------------------------------------------------------------------------------------------------

    def _refuse(self, item: Item, answer: Answer) -> None:
        """It is nobody's that we know, or cannot be known to be: nothing of it goes anywhere."""
        fcnt = item.reception.frame.fcnt if isinstance(item.reception.frame, DataUp) else 0
        self._decided(item, Judged(answer, Status.NOT_DUPLICATE, NOWHERE, fcnt, None))

    def _decided(self, item: Item, judged: Judged) -> None:
        self._undecided -= 1
        self.delivery.decided(item, judged)

    def _done(self, item: Item, stored: bool) -> None:
        claim = item.owes
        if claim is not None and item.session is not None and stored:
            self._desk(item.session).finish(claim)
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
            "sightings": len(self._judge.stations.sightings),
            "evicted": self._judge.stations.sightings.evicted,
            "unstored": self.delivery.unstored,
            "recovered": self._recovery.recovered,
        }

    def problems(self) -> dict[str, str]:
        """What is wrong; empty: nothing is known to be."""
        found = {desk.name: desk.problem for desk in self._desks if desk.problem is not None}
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
