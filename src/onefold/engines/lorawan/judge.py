"""Both levels put together, without the I/O between them.

::

    MIC (find_counter) -> uplink: owner -> level 1 -> validation -> claim -> [the store decides] -> settle

A frame comes in with its MIC verified: a forged one never gets here, and so changes nothing. `NetworkServer.uplink`
gives a judgement, which is final when it has no claim. Else the claim is made, and `settle` says what came of it.

The frame of a device that was counted last is known for ever, by its key, and so is every DevNonce that a device has
joined with. The ADR forgets the one after the expiry and the other after five minutes; ``strict_adr`` does so, too.

What validation refuses is taken back from level 1. In the deployed code it stays there, and the copy of a refused frame
from a second station passes as a soft duplicate, which is not validated.
"""

from typing import Final, NamedTuple

from onefold.engines.lorawan.answers import (
    COORDINATOR_DOWN,
    COUNTED_BEFORE,
    FORGOTTEN,
    LATE,
    NEW_FRAME,
    NEW_JOIN,
    NONCE_USED,
    OLD_COUNTER,
    OTHER_GATEWAY,
    OTHER_SERVER,
    REPLAYED,
    RESTARTED,
)
from onefold.engines.lorawan.frames import DataUp, JoinRequest
from onefold.engines.lorawan.routing import NOWHERE, Route, route, route_lost
from onefold.engines.lorawan.server import Claim, Claimed
from onefold.engines.lorawan.station import Stations
from onefold.engines.lorawan.status import DUPLICATE, NOT_DUPLICATE, RESUBMISSION, SOFT_DUPLICATE, Status, Strategy
from onefold.engines.lorawan.validation import FIRST_MESSAGE_MAX, GAP_MAX, RESUBMITS_MAX, Device, Heard, check
from onefold.verdict import Answer, Verdict

JOIN_KEEP_MS: Final = 300_000
"""How long it is remembered which server answered a join; by strict_adr, also how long its DevNonce is. As deployed."""
JOINS: Final = "join/"
"""What the claim of a join request begins with, where that of a data frame has the DevEUI alone."""


class Judged(NamedTuple):
    """What a server makes of a reception."""

    answer: Answer
    status: Status
    route: Route
    fcnt: int
    """32 bit."""
    claim: Claim | None
    """To be made before this is final; None: it is final."""


class NetworkServer:
    """One of the servers: the memory of its stations, and its name among the others."""

    __slots__ = ("gap_max", "name", "resubmits_max", "stations", "strict_adr")

    def __init__(
        self,
        name: str,
        stations: Stations | None = None,
        *,
        gap_max: int = GAP_MAX,
        resubmits_max: int = RESUBMITS_MAX,
        strict_adr: bool = False,
    ) -> None:
        self.name = name
        self.stations = Stations() if stations is None else stations
        self.gap_max = gap_max
        self.resubmits_max = resubmits_max
        self.strict_adr = strict_adr

    def uplink(self, device: Device, frame: DataUp, fcnt: int, heard: Heard, station: str, now_ms: int) -> Judged:
        """Judge a data frame whose MIC is right under this 32-bit counter.

        ``heard`` is what this server knows of the device, and is updated. After a restart it comes from the store.
        """
        if device.gateway is not None and device.gateway != self.name:
            return Judged(OTHER_GATEWAY, NOT_DUPLICATE, NOWHERE, fcnt, None)
        key, confirmed = frame.key, frame.confirmed
        counted = None if self.strict_adr else heard.frame
        status, answer = self.stations.data(key, station, device.strategy, now_ms, counted)
        routed = route(status, device.strategy, confirmed=confirmed, first_message=fcnt <= FIRST_MESSAGE_MAX)
        if status is SOFT_DUPLICATE or status is DUPLICATE:
            return Judged(answer, status, routed, fcnt, None)
        known, last = status is RESUBMISSION, heard.fcnt_up
        problem, restarted = check(
            device,
            heard,
            fcnt,
            confirmed=confirmed,
            known=known,
            gap_max=self.gap_max,
            resubmits_max=self.resubmits_max,
        )
        if problem is not None:
            if not known or answer is COUNTED_BEFORE:
                self.stations.forget(key)
            if problem is REPLAYED and answer is COUNTED_BEFORE:
                problem = COUNTED_BEFORE  # no confirmation explains it, but who sent it again is not known, either
            if problem is OLD_COUNTER and answer is FORGOTTEN:
                problem = FORGOTTEN  # it may be a copy of what level 1 had to give up: no reason to accuse it
            return Judged(problem, status, NOWHERE, fcnt, None)
        if not known:
            answer = _new(answer, again=fcnt == last, restarted=restarted)
        heard.frame = key
        claim = Claim(
            f"{device.dev_eui:016x}",
            self.name,
            fcnt,
            wants_down=routed.down,
            restarted_after=last if restarted else None,
            frame=key.hex(),
        )
        return Judged(answer, status, routed, fcnt, claim)

    def join(self, request: JoinRequest, station: str, now_ms: int) -> Judged:
        """Judge a join request whose MIC is right. The claim on its nonce lets one server answer."""
        status, answer = self.stations.join(request.key, station, now_ms)
        if status is DUPLICATE:
            return Judged(answer, status, NOWHERE, 0, None)
        name, nonce = f"{JOINS}{request.dev_eui:016x}/{request.join_eui:016x}", request.dev_nonce
        if self.strict_adr:
            claim = Claim(f"{name}/{nonce}", self.name, 0, keep_ms=JOIN_KEEP_MS)
        else:
            claim = Claim(name, self.name, 0, keep_ms=JOIN_KEEP_MS, nonce=nonce)
        return Judged(answer, status, Route(True, True, False), 0, claim)

    def settle(self, judged: Judged, strategy: Strategy, claimed: Claimed | None) -> Judged:
        """The final judgement, after the claim. ``claimed`` None: the coordinator could not be asked.

        Then nothing goes down, for another server may answer too; and what would have been FIRST is UNSURE.
        """
        claim = judged.claim
        if claim is None:
            return judged
        if claimed is None:
            answer = COORDINATOR_DOWN if judged.answer.verdict is Verdict.FIRST else judged.answer
            return judged._replace(answer=answer, route=judged.route._replace(down=False), claim=None)
        if claimed.won:  # where level 1 had to give up a join, the store knows that it is new
            answer = NEW_JOIN if claim.nonce is not None else judged.answer
            return judged._replace(answer=answer, claim=None)
        if claim.device.startswith(JOINS):  # a join request is dropped whatever the strategy
            answer = NONCE_USED if claimed.server in ("", self.name) else OTHER_SERVER
            return judged._replace(answer=answer, route=NOWHERE, claim=None)
        # Past this frame the store knows only that a later one was counted, not whether anybody counted this one.
        answer = OTHER_SERVER if claimed.fcnt_up == claim.fcnt_up else LATE
        lost = route_lost(strategy)
        return judged._replace(answer=answer, route=lost._replace(up=lost.up and judged.route.up), claim=None)


def _new(answer: Answer, *, again: bool, restarted: bool) -> Answer:
    """The answer to a frame that level 1 does not know and that passed: here the counter knows more."""
    if restarted:
        return RESTARTED if answer is NEW_FRAME else FORGOTTEN
    # The last counter once more, after the expiry or a restart of the server: was the first copy counted?
    return FORGOTTEN if again else NEW_FRAME
