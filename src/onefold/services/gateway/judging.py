"""Whose frame is it, under which counter, and does it count? All that happens between a link and the books.

Up to the MIC nothing changes, whatever is sent. Judging is quick and done on the event loop, in the order of arrival;
what needs a store waits for its desk (`claiming`), and goes on when that tells.

A device that was not heard since the start is looked up first, so a restart forgets no counter. It is looked up again,
not too often, when a frame does not fit its counter: another server may have counted on, or heard that it began again.
Its counters live in the shared store, or in this server's own where only this server may serve the device; at first
sight both are asked, for it may have been otherwise before.
"""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from onefold.engines.lorawan.answers import (
    BAD_MIC,
    COORDINATOR_DOWN,
    COUNTER_GAP,
    OLD_COUNTER,
    OTHER_GATEWAY,
    UNKNOWN_DEVICE,
)
from onefold.engines.lorawan.frames import DataUp, JoinRequest
from onefold.engines.lorawan.judge import Judged, NetworkServer
from onefold.engines.lorawan.mic import find_counter, join_mic
from onefold.engines.lorawan.routing import NOWHERE
from onefold.engines.lorawan.server import Claim, Claimed, Counters, Unfinished
from onefold.engines.lorawan.status import Status
from onefold.services.gateway.claiming import ClaimDesk
from onefold.services.gateway.delivery import Delivery
from onefold.services.gateway.recovery import Recovery
from onefold.services.gateway.sessions import Item, Session, Sessions, expected
from onefold.verdict import Answer

ASK_S: Final = 10.0
"""A device whose frames do not fit its counter is looked up again, this often at most."""
log: Final = logging.getLogger("onefold.gateway")


class Judging:
    """Judges receptions, and hands on what is decided. Lives on one event loop; `open` gives it its desks.

    Whatever goes wrong with one reception, ``failed`` is told and the others go on.
    """

    def __init__(
        self, judge: NetworkServer, sessions: Sessions, delivery: Delivery, recovery: Recovery, *,
        decided: Callable[[Item, Judged], None], failed: Callable[[Item, Exception], None],
    ) -> None:  # fmt: skip
        self.sessions = sessions
        self.desks: tuple[ClaimDesk, ...] = ()
        self._judge = judge
        self._server = judge.name
        self._delivery = delivery
        self._recovery = recovery
        self._decided = decided
        self._failed = failed

    def open(self, local: ClaimDesk, shared: ClaimDesk | None) -> None:
        """Claim at these desks; without a shared one, all at the local one."""
        self._local, self._shared = local, shared or local
        self.desks = (local,) if shared is None else (local, shared)

    def take(self, item: Item) -> None:
        """A reception has come."""
        try:
            frame = item.reception.frame
            if isinstance(frame, JoinRequest):
                self._join(item, frame)
            else:
                self._data(item, frame)
        except Exception as error:
            self._failed(item, error)

    # --- whose is it ------------------------------------------------------------------------------------------------

    def _data(self, item: Item, frame: DataUp) -> None:
        sessions = self.sessions.at(frame.dev_addr)
        ours = [session for session in sessions if session.entry.device.gateway in (None, self._server)]
        for session in ours:
            if session.asking is not None or not session.loaded:
                self._ask(session, item)
                return
        if sessions and not ours:  # their counters are none of our business, so their codes cannot be checked
            self._refuse(item, OTHER_GATEWAY)
        else:
            self._find(item, frame, sessions)

    def _find(self, item: Item, frame: DataUp, sessions: Sequence[Session], *, down: bool = False) -> None:
        """Whose frame is it, and under which counter? With ``down`` the store could not be asked."""
        for session in sessions:
            fcnt = find_counter(session.entry.nwk_skey or b"", frame, session.heard.fcnt_up)
            if fcnt is not None:
                self._uplink(item, frame, session, fcnt, down=down)
                return
        if not sessions:
            self._refuse(item, UNKNOWN_DEVICE)
        elif down:
            self._refuse(item, COORDINATOR_DOWN)
        else:
            for session in sessions:
                if session.loaded and _due(session):  # its counter may have gone on without this server
                    self._ask(session, item)
                    return
            self._refuse(item, BAD_MIC)

    def _uplink(self, item: Item, frame: DataUp, session: Session, fcnt: int, *, down: bool) -> None:
        entry, reception = session.entry, item.reception
        item.session = session
        judged = item.judged = self._judge.uplink(
            entry.device, frame, fcnt, session.heard, reception.station, item.ticks_ms
        )
        claim, answer = judged.claim, judged.answer
        # Another server may have counted on; or heard that it began again.
        behind = answer is COUNTER_GAP or (answer is OLD_COUNTER and entry.device.relaxed)
        if claim is not None and not down:
            if claim.restarted_after is not None:
                session.fcnt_down = 0  # the device counts anew what it hears, too
            claim = claim._replace(device=entry.session, fcnt_down=session.fcnt_down)
            self._claim(item, session, judged, claim)
        elif claim is not None:
            self._decided(item, self._judge.settle(judged, entry.device.strategy, None))
        elif behind and down:
            self._refuse(item, COORDINATOR_DOWN)
        elif behind and _due(session):
            self._ask(session, item)
        else:
            self._decided(item, judged)

    def _join(self, item: Item, request: JoinRequest) -> None:
        entry = self.sessions.registry.by_eui.get(request.dev_eui)
        if entry is None or entry.app_key is None:
            self._refuse(item, UNKNOWN_DEVICE)
        elif join_mic(entry.app_key, request.raw) != request.mic:
            self._refuse(item, BAD_MIC)
        elif entry.device.gateway not in (None, self._server):
            self._refuse(item, OTHER_GATEWAY)
        else:
            session = item.session = self.sessions.of(entry)
            judged = item.judged = self._judge.join(request, item.reception.station, item.ticks_ms)
            if judged.claim is None:
                self._decided(item, judged)
            else:
                self._claim(item, session, judged, judged.claim)

    def _claim(self, item: Item, session: Session, judged: Judged, claim: Claim) -> None:
        """With what goes upstream if it is won: the store keeps it until it is there, whatever becomes of us."""
        if judged.route.up:
            item.record = self._delivery.record(item, judged)
            claim = claim._replace(body=item.record.decode())
        desk = item.desk = self._home(session)
        session.claims += 1
        desk.claim(claim, item)

    def _home(self, session: Session) -> ClaimDesk:
        return self._shared if session.entry.device.gateway is None else self._local

    def _ask(self, session: Session, item: Item) -> None:
        """The store that is its own comes last; another is not waited for."""
        home = self._home(session)
        if session.asking is None:
            others = [desk for desk in self.desks if desk is not home and desk.name not in session.asked]
            session.asking = others[0] if others and not session.loaded and others[0].problem is None else home
        session.asking.ask(session.entry.session, item, brief=session.asking is not home)

    def _refuse(self, item: Item, answer: Answer) -> None:
        """It is nobody's that we know, or cannot be known to be: nothing of it goes anywhere."""
        fcnt = item.reception.frame.fcnt if isinstance(item.reception.frame, DataUp) else 0
        self._decided(item, Judged(answer, Status.NOT_DUPLICATE, NOWHERE, fcnt, None))

    # --- what the desks tell ----------------------------------------------------------------------------------------

    def known(
        self, desk: ClaimDesk, device: str, items: Sequence[Item], counters: Counters | None, *, down: bool
    ) -> None:
        """A device was looked up; who waited for that is judged now."""
        session, home = self.sessions.named(device), True
        if session is not None:
            home = desk is self._home(session)
            session.asking = None
            session.asked.add(desk.name)
            if home:
                session.asked_at = monotonic()
                self._begin_again(session, items, counters)
            if not down:
                session.learn(counters, self._server, home=home)
                session.loaded = session.loaded or home
        for item in items:
            try:
                frame = item.reception.frame
                assert isinstance(frame, DataUp)
                if down and home:
                    self._find(item, frame, self.sessions.at(frame.dev_addr), down=True)
                else:
                    self._data(item, frame)
            except Exception as error:
                self._failed(item, error)

    def _begin_again(self, session: Session, items: Sequence[Item], counters: Counters | None) -> None:
        """Has another server heard that it began again? Then a frame that was too low for us goes on from there."""
        last = session.heard.fcnt_up
        if counters is None or last is None or not session.entry.device.relaxed or session.claims:
            return
        above = expected(counters, self._server)
        low = (item.judged.fcnt for item in items if item.judged is not None and item.session is session)
        if counters.server != self._server and counters.fcnt_up < last and any(above < fcnt <= last for fcnt in low):
            session.begin_again(counters)

    def claimed(self, item: Item, claim: Claim, claimed: Claimed | None) -> None:
        """A claim was made, or nobody knows."""
        try:
            session, judged = item.session, item.judged
            assert session is not None
            assert judged is not None
            session.claims -= 1
            item.claim, item.claimed = claim, claimed
            if claimed is not None and claimed.won:
                session.fcnt_down = max(session.fcnt_down, claimed.fcnt_down)
            self._decided(item, self._judge.settle(judged, session.entry.device.strategy, claimed))
        except Exception as error:
            self._failed(item, error)

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[[ClaimDesk], None]:
        """An earlier run left something behind. Blocks."""
        return self._recovery.sort_out(unfinished)


def _due(session: Session) -> bool:
    return monotonic() - session.asked_at >= ASK_S
