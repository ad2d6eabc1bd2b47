"""Whose frame is it, under which counter, and does it count? All that happens between a link and the books.

Up to the MIC nothing changes, whatever is sent. Judging is quick and done on the event loop, in the order of arrival;
what needs a store waits for its desk (`claiming`), and goes on when that tells.

A device that was not heard since the start is looked up first, so a restart forgets no counter. It is looked up again,
not too often, when a frame does not fit its counter: another server may have counted on, or heard that it began again.
Its counters live in the shared store, or in this server's own where only this server may serve the device; at first
sight both are asked, for it may have been otherwise before.

Many devices may share an address, and then only the code tells whose a frame is. All of them are looked up with one
question, and a frame costs one pass over their codes; if it is nobody's, those that were not looked up for a while are,
once, and there is one more pass. Whoever sends forged frames to such an address must not keep a core busy: codes that
fail are counted by station and address, and too many in a short while mean that no more are looked at (`MicBudget`).
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from onefold.engines.lorawan.answers import (
    BAD_MIC,
    COORDINATOR_DOWN,
    COUNTER_GAP,
    MIC_BUDGET,
    OLD_COUNTER,
    OTHER_GATEWAY,
    UNKNOWN_DEVICE,
)
from onefold.engines.lorawan.frames import DataUp, JoinRequest
from onefold.engines.lorawan.judge import Judged, NetworkServer
from onefold.engines.lorawan.mic import find_owner, join_mic
from onefold.engines.lorawan.routing import NOWHERE
from onefold.engines.lorawan.server import Claim, Claimed, Counters, Unfinished
from onefold.engines.lorawan.status import Status
from onefold.services.gateway.claiming import ClaimDesk
from onefold.services.gateway.delivery import Delivery
from onefold.services.gateway.recovery import Recovery
from onefold.services.gateway.sessions import Item, Question, Session, Sessions, expected
from onefold.verdict import Answer

ASK_S: Final = 10.0
"""A device whose frames do not fit its counter is looked up again, this often at most."""
PAIRS_MAX: Final = 10_000
"""Stations and addresses between which codes failed of late; beyond, the oldest are forgotten. Some 200 bytes each."""
log: Final = logging.getLogger("onefold.gateway")


class MicBudget:
    """How many codes may fail between one station and one address.

    >>> budget = MicBudget(failures_max=3, window_ms=1_000)
    >>> budget.spend("s", 1, 4, 0)
    >>> budget.spent("s", 1, 999), budget.spent("t", 1, 999), budget.spent("s", 1, 1_000)
    (True, False, False)
    """

    def __init__(self, *, failures_max: int, window_ms: int, pairs_max: int = PAIRS_MAX) -> None:
        self._failures_max, self._window_ms, self._pairs_max = failures_max, window_ms, pairs_max
        self._windows: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()  # since when, how many

    def spend(self, station: str, dev_addr: int, codes: int, now_ms: int) -> None:
        """So many codes were tried for nothing."""
        pair = station, dev_addr
        since_ms, failures = self._windows.get(pair, (now_ms, 0))
        if now_ms - since_ms >= self._window_ms:
            since_ms, failures = now_ms, 0
            del self._windows[pair]
        self._windows[pair] = since_ms, failures + codes  # in the order in which their windows begin
        if len(self._windows) > self._pairs_max:
            self._windows.popitem(last=False)

    def spent(self, station: str, dev_addr: int, now_ms: int) -> bool:
        """Were there too many within the window?"""
        since_ms, failures = self._windows.get((station, dev_addr), (0, 0))
        return failures > self._failures_max and now_ms - since_ms < self._window_ms


class Judging:
    """Judges receptions, and hands on what is decided. Lives on one event loop; `open` gives it its desks.

    Whatever goes wrong with one reception, ``failed`` is told and the others go on.
    """

    def __init__(
        self, judge: NetworkServer, sessions: Sessions, delivery: Delivery, recovery: Recovery, budget: MicBudget, *,
        decided: Callable[[Item, Judged], None], failed: Callable[[Item, Exception], None],
    ) -> None:  # fmt: skip
        self.sessions = sessions
        self.desks: tuple[ClaimDesk, ...] = ()
        self._judge = judge
        self._server = judge.name
        self._delivery = delivery
        self._recovery = recovery
        self._budget = budget
        self._copies: dict[str, list[tuple[Item, Judged]]] = {}  # of frames whose claim is under way, by their keys
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
        if self._budget.spent(item.reception.station, frame.dev_addr, item.ticks_ms):
            self._refuse(item, MIC_BUDGET)
            return
        sessions = self.sessions.at(frame.dev_addr)
        ours = [session for session in sessions if session.entry.device.gateway in (None, self._server)]
        unknown = [session for session in ours if session.asking is not None or not session.loaded]
        if unknown:
            self._ask(unknown, item)
        elif sessions and not ours:  # their counters are none of our business, so their codes cannot be checked
            self._refuse(item, OTHER_GATEWAY)
        else:
            self._find(item, frame, sessions)

    def _find(self, item: Item, frame: DataUp, sessions: Sequence[Session], *, down: bool = False) -> None:
        """Whose frame is it, and under which counter? With ``down`` the store could not be asked."""
        if not sessions:
            self._refuse(item, UNKNOWN_DEVICE)
            return
        place, fcnt, tried = find_owner(
            ((session.entry.nwk_skey or b"", session.heard.fcnt_up) for session in sessions), frame
        )
        if fcnt is not None:
            self._uplink(item, frame, sessions[place], fcnt, down=down)
            return
        self._budget.spend(item.reception.station, frame.dev_addr, tried, item.ticks_ms)
        if down:
            self._refuse(item, COORDINATOR_DOWN)
            return
        homes = {desk for desk in self.desks if desk not in item.retried}
        due = [each for each in sessions if each.loaded and self._home(each) in homes and _due(each)]
        if due:  # their counters may have gone on without this server
            item.retried.add(self._home(due[0]))
            self._ask(due, item)
        else:
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
            self._copies.setdefault(claim.frame, [])  # its answer comes later, and ends the wait
        elif claim is not None:
            self._decided(item, self._judge.settle(judged, entry.device.strategy, None))
        elif behind and down:
            self._refuse(item, COORDINATOR_DOWN)
        elif behind and _due(session):
            self._ask([session], item)
        elif judged.route.up and (copies := self._copies.get(frame.key.hex())) is not None:
            copies.append((item, judged))  # nobody upstream is to hear of a copy before the frame itself
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

    def _ask(self, sessions: Sequence[Session], item: Item) -> None:
        """Look these up: of those that the same store is to be asked for, all with one question.

        The answer brings the item back here if there is more to ask. The store that is a device's own comes last;
        another is not waited for."""
        question = next((session.asking for session in sessions if session.asking is not None), None)
        if question is None:
            desk, brief = self._next(sessions[0])
            same = [session for session in sessions if self._next(session) == (desk, brief)]
            question = Question(desk, tuple(session.entry.session for session in same), brief)
            for session in same:
                session.asking = question
        question.desk.ask(question.devices, item, brief=question.brief)

    def _next(self, session: Session) -> tuple[ClaimDesk, bool]:
        """Who is to be asked for it, and whether that is not its own store."""
        home = self._home(session)
        if not session.loaded:
            for desk in self.desks:
                if desk is not home and desk.name not in session.asked and desk.problem is None:
                    return desk, True
        return home, False

    def _refuse(self, item: Item, answer: Answer) -> None:
        """It is nobody's that we know, or cannot be known to be: nothing of it goes anywhere."""
        fcnt = item.reception.frame.fcnt if isinstance(item.reception.frame, DataUp) else 0
        self._decided(item, Judged(answer, Status.NOT_DUPLICATE, NOWHERE, fcnt, None))

    # --- what the desks tell ----------------------------------------------------------------------------------------

    def known(
        self, desk: ClaimDesk, devices: Sequence[str], items: Sequence[Item], counters: Sequence[Counters | None], *,
        down: bool,
    ) -> None:  # fmt: skip
        """Devices were looked up; who waited for that is judged now."""
        home, now_s = True, monotonic()
        low: dict[Session, list[int]] = {}
        for item in items:
            if item.judged is not None and item.session is not None:
                low.setdefault(item.session, []).append(item.judged.fcnt)
        for device, known in zip(devices, counters, strict=True):
            session = self.sessions.named(device)
            if session is None:
                continue
            home = desk is self._home(session)
            session.asking = None
            session.asked.add(desk.name)
            if home:
                session.asked_at = now_s
                self._begin_again(session, low.get(session, ()), known)
            if not down:
                session.learn(known, self._server, home=home)
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

    def _begin_again(self, session: Session, low: Sequence[int], counters: Counters | None) -> None:
        """Has another server heard that it began again? Then a frame that was too low for us goes on from there."""
        last = session.heard.fcnt_up
        if counters is None or last is None or not session.entry.device.relaxed or session.claims:
            return
        above = expected(counters, self._server)
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
        for copy, judged in self._copies.pop(claim.frame, ()):
            try:
                self._decided(copy, judged)
            except Exception as error:
                self._failed(copy, error)

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[[ClaimDesk], None]:
        """An earlier run left something behind. Blocks."""
        return self._recovery.sort_out(unfinished)


def _due(session: Session) -> bool:
    return monotonic() - session.asked_at >= ASK_S
