"""The rules of LoRaWAN deduplication (ADR 007 of the Azure starter kit), both levels, without the I/O between them.

    MIC (find_counter) -> uplink: owner -> level 1 -> validation -> claim -> [the store decides] -> settle

The MIC of a frame is verified before, so a forged frame changes nothing. `NetworkServer.uplink` returns a judgement,
which is final if it has no claim. Otherwise the claim is made, and `settle` gives the final judgement.

- *Level 1* (`Stations`, one server): was the frame heard before, and by the same station? That is its *status*. Status
  and the *strategy* of the device decide where the frame goes (`TABLE`).
- *Validation* (`check`): is this counter possible after the last one of its device? A refused frame is removed from
  level 1; in the deployed code it stays, and its copy from a second station passes as a soft duplicate.
- *Level 2* (`decide`, several servers): who counts it, and who answers the device. It does not change the status.

The last counted frame of a device is known for ever, by its key, and so is every DevNonce that a device has joined
with. The ADR forgets the frame after the expiry and the nonce after five minutes; so does ``strict_adr``.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from onefold.errors import Misuse
from onefold.lorawan.frames import DataUp, JoinRequest
from onefold.verdict import Answer, Verdict

NEW_FRAME: Final = Answer(Verdict.FIRST, "new_frame")
RESTARTED: Final = Answer(Verdict.FIRST, "restarted")
NEW_JOIN: Final = Answer(Verdict.FIRST, "new_join")
OTHER_STATION: Final = Answer(Verdict.REPEAT, "other_station")
RESUBMITTED: Final = Answer(Verdict.REPEAT, "resubmitted")
ECHOED: Final = Answer(Verdict.REPEAT, "echoed")
REPLAYED: Final = Answer(Verdict.REPEAT, "replayed")
RESUBMIT_LIMIT: Final = Answer(Verdict.REPEAT, "resubmit_limit")
OTHER_SERVER: Final = Answer(Verdict.REPEAT, "other_server")
JOIN_REPEATED: Final = Answer(Verdict.REPEAT, "join_repeated")
FORGOTTEN: Final = Answer(Verdict.UNSURE, "forgotten")
LATE: Final = Answer(Verdict.UNSURE, "late")
STATE_FULL: Final = Answer(Verdict.UNSURE, "state_full")
COORDINATOR_DOWN: Final = Answer(Verdict.UNSURE, "coordinator_down", retry=True)
MALFORMED: Final = Answer(Verdict.REJECT, "malformed")
NULL_KEY: Final = Answer(Verdict.REJECT, "null_key")
BAD_TIME: Final = Answer(Verdict.REJECT, "bad_time")
UNKNOWN_DEVICE: Final = Answer(Verdict.REJECT, "unknown_device")
BAD_MIC: Final = Answer(Verdict.REJECT, "bad_mic")
"""The integrity code fits no possible counter: the frame is forged, damaged, or made with another key."""
OLD_COUNTER: Final = Answer(Verdict.REJECT, "old_counter")
COUNTER_GAP: Final = Answer(Verdict.REJECT, "counter_gap")
OTHER_GATEWAY: Final = Answer(Verdict.REJECT, "other_gateway")
COUNTED_BEFORE: Final = Answer(Verdict.REPEAT, "counted_before")
NONCE_USED: Final = Answer(Verdict.REPEAT, "nonce_used")
MIC_BUDGET: Final = Answer(Verdict.REJECT, "mic_budget")
BUSY: Final = Answer(Verdict.REJECT, "busy", retry=True)

RULES: Final = {
    NEW_FRAME: "It was not heard within the expiry, and its counter is new.",
    RESTARTED: "Its counter restarted at 0 or 1, and its device may do that (ABP, relaxed).",
    NEW_JOIN: "Its device never joined with this DevNonce (by strict_adr: not within the expiry).",
    OTHER_STATION: "Another station of this server heard it first.",
    RESUBMITTED: "The same station heard it before: its device sends it again.",
    ECHOED: "The same station heard the same transmission twice, less than echo_ms apart.",
    REPLAYED: "The same station heard it before, and no confirmation was asked for that would explain it.",
    RESUBMIT_LIMIT: "Its device asked for the confirmation again more than resubmits_max times.",
    OTHER_SERVER: "Another server was first to count it.",
    JOIN_REPEATED: "The same join request was heard within the expiry, by any station.",
    FORGOTTEN: "It may have been heard before: its sighting was evicted or has expired, and its counter cannot tell.",
    LATE: "It came too late: the coordinator has a higher counter, or on Spark the memory a later time.",
    STATE_FULL: "Its frame is new, and the memory is full (state_rows_max).",
    COORDINATOR_DOWN: "The coordinator could not be asked: another server may have counted it.",
    MALFORMED: "It could not be read.",
    NULL_KEY: "A column of its identity, or its station, is null.",
    BAD_TIME: "Its time is null or impossible.",
    UNKNOWN_DEVICE: "No device with its address is registered.",
    BAD_MIC: "Its message integrity code is wrong for every possible counter.",
    OLD_COUNTER: "Its counter is not above the last one, and level 1 does not know it: a replay, or a late copy.",
    COUNTER_GAP: "Its counter is more than gap_max ahead of the last one.",
    OTHER_GATEWAY: "Its device belongs to another server.",
    COUNTED_BEFORE: "It is the last counted frame of its device, again after the expiry: a retry, or a late copy.",
    NONCE_USED: "Its device has joined with this DevNonce before: a replayed join request.",
    MIC_BUDGET: "Its station recently sent too many wrong codes for its address: this one was not checked.",
    BUSY: "The server had no room for it, or was shutting down: it was not judged.",
}

ANSWERS: Final = tuple(RULES)
"""Every answer of this engine. An answer's position is its code in columns, so new ones go to the end. The verdict says
if a reception counts; where it goes, up or down, depends on the strategy (`TABLE`)."""


class Strategy(StrEnum):
    """What to do with a frame that was heard before."""

    DROP = "drop"
    MARK = "mark"
    """Send it upstream marked as a duplicate: its signal strength helps to locate the device."""
    NONE = "none"
    """Send it upstream unmarked: the default of the ADR."""


class Status(StrEnum):
    """What a frame is on level 1; the names in the ADR are NonDuplicate, SoftDuplicate and so on."""

    NOT_DUPLICATE = "not_duplicate"
    """Not heard within the expiry."""
    SOFT_DUPLICATE = "soft_duplicate"
    """Heard by another station before; the strategy is mark or none."""
    RESUBMISSION = "resubmission"
    """Heard by the same station before (DuplicateDueToResubmission)."""
    DUPLICATE = "duplicate"
    """Heard by another station before, and the strategy is drop; or a join request that was heard before."""


# As module names they read like the ADR, and cost no attribute look-up.
DROP, MARK, NONE = Strategy
NOT_DUPLICATE, SOFT_DUPLICATE, RESUBMISSION, DUPLICATE = Status


class Route(NamedTuple):
    """Where a frame goes: up to the application, down to the device."""

    up: bool
    down: bool
    """The device gets its confirmation."""
    marked: bool
    """Upstream it is marked as a duplicate."""


NOWHERE: Final = Route(False, False, False)

_UP, _DOWN, _BOTH = Route(True, False, False), Route(False, True, False), Route(True, True, False)
_MARKED, _MARKED_BOTH = Route(True, False, True), Route(True, True, True)

TABLE: Final[dict[tuple[Status, Strategy, bool, bool], Route]] = {
    (status, strategy, confirmed, first): routed
    for status, strategies, confirmations, firsts, routed in (
        # status, strategies, asks for a confirmation, first message: route
        (NOT_DUPLICATE, (DROP, MARK, NONE), (True,), (True, False), _BOTH),
        (NOT_DUPLICATE, (DROP, MARK, NONE), (False,), (True, False), _UP),
        (SOFT_DUPLICATE, (DROP, NONE), (True, False), (True, False), _UP),  # not down: answers may collide on the air
        (SOFT_DUPLICATE, (MARK,), (True, False), (True, False), _MARKED),
        (RESUBMISSION, (DROP,), (True,), (True, False), _DOWN),
        (RESUBMISSION, (MARK,), (True,), (True, False), _MARKED_BOTH),
        (RESUBMISSION, (NONE,), (True,), (True, False), _BOTH),
        (RESUBMISSION, (DROP,), (False,), (True, False), NOWHERE),
        (RESUBMISSION, (MARK,), (False,), (True,), _MARKED),  # a restarted device may send the same measurement
        (RESUBMISSION, (NONE,), (False,), (True,), _UP),
        (RESUBMISSION, (MARK, NONE), (False,), (False,), NOWHERE),
        (DUPLICATE, (DROP, MARK, NONE), (True, False), (True, False), NOWHERE),
    )
    for strategy in strategies
    for confirmed in confirmations
    for first in firsts
}
"""The ADR's table "Further processing of messages based on their duplication status", line by line. The deployed code
marks soft duplicates under None too, which the ADR does not."""

LOST: Final = {DROP: NOWHERE, MARK: _MARKED, NONE: _UP}
"""Level 2, "Upstream Processing". Only the server that was first answers the device."""


def route(status: Status, strategy: Strategy, *, confirmed: bool, first_message: bool) -> Route:
    """Where a frame of this status goes. ``first_message``: its counter is at most 1.

    >>> route(Status.RESUBMISSION, Strategy.DROP, confirmed=True, first_message=False)
    Route(up=False, down=True, marked=False)
    """
    return TABLE[status, strategy, confirmed, first_message]


def route_lost(strategy: Strategy) -> Route:
    """Where a frame goes that another server was first to count.

    >>> route_lost(Strategy.MARK)
    Route(up=True, down=False, marked=True)
    """
    return LOST[strategy]


class Sighting(NamedTuple):
    """Which station heard a frame first and when, and when any station heard it last; milliseconds."""

    station: str
    since_ms: int
    last_ms: int
    own_ms: int
    """When the first station heard it last; unlike the others not corrected where the clock was set back."""


NEVER_MS: Final = -(1 << 62)


class Sightings:
    """The memory of level 1: which station heard which key.

    A key expires ``expiry_ms`` after it was heard last (*sliding*, as in the ADR) or first (*fixed*); at exactly that
    time it is new. Entries are kept in the order of their expiry. When the memory is full, the first one is evicted:
    until it would have expired, a miss may be wrong, and `forgot` says so. Time never goes back: an earlier time counts
    as the latest one seen.

    Cost: O(1) amortised, some 300 bytes per entry.

    >>> sightings = Sightings(expiry_ms=60_000)
    >>> sightings.see(b"key", "a", 0), sightings.see(b"key", "b", 59_999).station, sightings.see(b"key", "b", 119_999)
    (None, 'a', None)
    """

    __slots__ = ("_forgot_until_ms", "_heard", "_now_ms", "entries_max", "evicted", "expiry_ms", "sliding")

    # Expiry: 60 s sliding is the ADR's. Entries: a minute at 16,000 frames/s, far above one server's radio traffic.
    def __init__(self, *, expiry_ms: int = 60_000, sliding: bool = True, entries_max: int = 1_000_000) -> None:
        for name, value in (("expiry_ms", expiry_ms), ("entries_max", entries_max)):
            if value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})
        self.expiry_ms = expiry_ms
        self.sliding = sliding
        self.entries_max = entries_max
        self.evicted = 0
        self._heard: OrderedDict[bytes, Sighting] = OrderedDict()
        self._now_ms = self._forgot_until_ms = NEVER_MS

    def __len__(self) -> int:
        return len(self._heard)

    def see(self, key: bytes, station: str, now_ms: int) -> Sighting | None:
        """Remember this key; return what was known of it before, or None if it is new."""
        clock_ms = now_ms
        self._now_ms = now_ms = max(now_ms, self._now_ms)
        heard = self._heard
        while heard:  # drop expired entries
            oldest = next(iter(heard))
            if self._expires_ms(heard[oldest]) > now_ms:
                break
            del heard[oldest]
        before = heard.get(key)
        if before is None:
            if len(heard) >= self.entries_max:
                # The first entry expires first; those evicted before it would have expired earlier.
                self._forgot_until_ms = self._expires_ms(heard.popitem(last=False)[1])
                self.evicted += 1
            heard[key] = Sighting(station, now_ms, now_ms, clock_ms)
            return None
        own_ms = clock_ms if station == before.station else before.own_ms
        heard[key] = Sighting(before.station, before.since_ms, now_ms, own_ms)
        if self.sliding:
            heard.move_to_end(key)
        return before

    def forget(self, key: bytes) -> None:
        """Remove a key: its frame was refused, and no copy may pass as the duplicate of a valid frame."""
        self._heard.pop(key, None)

    def forgot(self, now_ms: int) -> bool:
        """Could a miss be due to an evicted entry?"""
        return max(now_ms, self._now_ms) < self._forgot_until_ms

    def _expires_ms(self, sighting: Sighting) -> int:
        return (sighting.last_ms if self.sliding else sighting.since_ms) + self.expiry_ms


class Stations:
    """Level 1: one network server, several stations ("Deduplication on the network server level").

    The same key from the station that heard it first is a resubmission: the device missed its confirmation or
    restarted, or somebody replays the frame. From another station it is a duplicate under Drop and a soft duplicate
    otherwise. A join request is only known or not known.

    Two things are not in the ADR, for which every expired key is new. Devices wait for minutes before they retry, so
    ``last``, the key of the last counted frame, stays a resubmission for ever, from any station; likewise a join
    request whose nonce was used. And, only with ``echo_ms``: a station with two antennas, or one that also hears a
    strong signal on an image frequency, reports one transmission twice within milliseconds. That is no resubmission,
    or the device would be answered twice.

    >>> stations = Stations()
    >>> for station in ("a", "a", "b"):
    ...     status, answer = stations.data(b"key", station, Strategy.MARK, 0)
    ...     print(status, "/", answer)
    not_duplicate / FIRST new_frame
    resubmission / REPEAT resubmitted
    soft_duplicate / REPEAT other_station
    """

    __slots__ = ("echo_ms", "sightings")

    def __init__(self, sightings: Sightings | None = None, *, echo_ms: int = 0) -> None:
        if echo_ms < 0:
            raise Misuse(f"echo_ms is {echo_ms}, must be 0 or more", echo_ms=echo_ms)
        self.sightings = Sightings() if sightings is None else sightings
        self.echo_ms = echo_ms

    def data(
        self, key: bytes, station: str, strategy: Strategy, now_ms: int, last: bytes | None = None
    ) -> tuple[Status, Answer]:
        """Status and answer of a data frame; ``last``: the key of the last counted frame of its device."""
        before = self.sightings.see(key, station, now_ms)
        if before is None and key == last:
            return RESUBMISSION, COUNTED_BEFORE
        if before is None:
            return NOT_DUPLICATE, FORGOTTEN if self.sightings.forgot(now_ms) else NEW_FRAME
        if station != before.station:
            answer = OTHER_STATION
        elif self.echo_ms and 0 <= now_ms - before.own_ms < self.echo_ms:
            # Since *this* station heard it: a resubmission may have reached another station a moment ago. A negative
            # time means that the clock was set back in between: a device that asks again must get its answer.
            answer = ECHOED
        else:
            return RESUBMISSION, RESUBMITTED
        return DUPLICATE if strategy is DROP else SOFT_DUPLICATE, answer

    def join(self, key: bytes, station: str, now_ms: int, *, used: bool = False) -> tuple[Status, Answer]:
        """Status and answer of a join request; ``used``: its device has joined with this nonce before."""
        if self.sightings.see(key, station, now_ms) is not None:
            return DUPLICATE, JOIN_REPEATED
        if used:
            return DUPLICATE, NONCE_USED
        return NOT_DUPLICATE, FORGOTTEN if self.sightings.forgot(now_ms) else NEW_JOIN


GAP_MAX = 16_384
"""MAX_FCNT_GAP of LoRaWAN 1.0, and of the deployed system."""
RESUBMITS_MAX = 3
"""As deployed. Devices give up after eight transmissions at most."""
FIRST_MESSAGE_MAX = 1
"""The highest counter that a device may begin with: the ADR says 1, some devices count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a server must know of a device to judge its frames, without its keys."""

    dev_eui: int
    dev_addr: int | None = None
    strategy: Strategy = Strategy.NONE
    gateway: str | None = None
    """The one server that may serve it; None: any."""
    activation: Literal["abp", "otaa"] = "abp"
    relaxed: bool = False
    """An ABP device may restart its counter at 0 or 1. Whoever recorded those frames can replay them."""
    device_class: Literal["A", "C"] = "A"


@dataclass(slots=True)
class Heard:
    """What one server remembers of a device."""

    fcnt_up: int | None = None
    """The last valid counter; None: unknown, any counter is valid."""
    resubmits: int = 0
    """How often its frame was resubmitted."""
    frame: bytes | None = None
    """The key of its frame; None: unknown."""


class Checked(NamedTuple):
    """The result of `check`: why the counter is refused (None: it is valid), and whether the device restarted."""

    problem: Answer | None
    restarted: bool


_RISES = Checked(None, False)
_RESTARTS = Checked(None, True)


def check(
    device: Device, heard: Heard, fcnt: int, *, confirmed: bool, known: bool, gap_max: int = GAP_MAX,
    resubmits_max: int = RESUBMITS_MAX,
) -> Checked:  # fmt: skip
    """Validate a 32-bit counter. It must rise, by no more than ``gap_max``. It may equal the last one if the device
    asks again for a confirmation, ``resubmits_max`` times; it may be below it if the device may restart.

    ``known``: level 1 has the frame from the same station. ``heard`` is updated if the counter is valid.

    >>> heard = Heard(fcnt_up=5)
    >>> [check(Device(dev_eui=1), heard, 6, confirmed=True, known=n > 0).problem for n in range(5)][-2:]
    [None, Answer(verdict=<Verdict.REPEAT: 'REPEAT'>, reason='resubmit_limit')]
    """
    last = heard.fcnt_up
    if last is None or (fcnt > last and not known):
        if last is not None and fcnt - last > gap_max:
            return Checked(COUNTER_GAP, False)
        heard.fcnt_up, heard.resubmits = fcnt, 0
        return _RISES
    restarts = device.relaxed and device.activation == "abp" and fcnt <= min(last, FIRST_MESSAGE_MAX)
    if fcnt == last and confirmed and (known or not restarts):
        if heard.resubmits >= resubmits_max:
            return Checked(RESUBMIT_LIMIT, False)
        heard.resubmits += 1
        return _RISES
    if restarts:
        heard.fcnt_up, heard.resubmits = fcnt, 0
        return _RESTARTS
    # Known and above the last: from before the device restarted. Taking it would refuse what the device sends now.
    return Checked(REPLAYED if known else OLD_COUNTER, False)


LATE_MAX: Final = 1_000
"""How many frames late a server may be to notice that a device restarted."""


class Counters(NamedTuple):
    """What all servers know of a device: its last 32-bit counters up and down, and which server counted."""

    fcnt_up: int
    fcnt_down: int
    server: str
    frame: str = ""
    """The key of the last counted frame, in hex; empty: unknown."""


class Claim(NamedTuple):
    """A server asks to count this frame; the coordinator lets one server do so."""

    device: str
    server: str
    fcnt_up: int
    fcnt_down: int = 0
    """The last down counter that this server knows to have been used: the next one is above it."""
    wants_down: bool = False
    """The claimant needs a down counter for its answer."""
    restarted_after: int | None = None
    """The device restarted after this counter, the last that this server heard before; None: it did not restart."""
    keep_ms: int = 0
    """How long the store remembers the claim; 0: for ever."""
    body: str = ""
    """The message for upstream, kept until it is finished if the claim wins; empty: none."""
    number: int = 0
    """Names the claim in the outbox of its server; chosen by the claimant, and the same only for a retry."""
    frame: str = ""
    """The key of the frame, in hex."""
    nonce: int | None = None
    """The DevNonce of a join request, which can be won only once, ever; ``keep_ms`` is how long the store remembers who
    won it. None: not a join request, or one that can be won again after ``keep_ms``."""

    @property
    def entry(self) -> str:
        """The store's key for its counters."""
        return self.device if self.nonce is None else f"{self.device}/{self.nonce}"


class Claimed(NamedTuple):
    """The coordinator's answer to a `Claim`: whether it won, and which server owns the frame."""

    won: bool
    server: str
    fcnt_up: int
    fcnt_down: int
    """The counter for the answer; 0 unless the claim won and asked for one."""
    previous: str | None
    """The server that counted the device before, if another one and the claim won."""


class Finished(NamedTuple):
    """A message of this server is durable upstream: its body can be deleted."""

    server: str
    number: int


class Unfinished(NamedTuple):
    """A message that its server won and has not finished.

    A server can die between winning a claim and storing its message upstream, while every other server has lost that
    frame. So the store keeps the message (`Claim.body`) in the same step, until the server has stored it upstream
    (`Finished`). At its next start the server stores the unfinished ones first, so none is lost.
    """

    number: int
    device: str
    fcnt_up: int
    body: str


def won_before(unfinished: Unfinished | None, claim: Claim) -> bool:
    """Is ``unfinished``, the outbox entry under the claim's number, the message of this claim?

    Then the claim was won, its answer was lost, and this is the retry. It is still won, even if a later frame was
    counted since, or its message would wait in the outbox for a server that believes it lost. Only a down counter is
    not given twice.
    """
    if unfinished is None or not claim.body:
        return False
    return (unfinished.device, unfinished.fcnt_up) == (claim.device, claim.fcnt_up)


def decide(counters: Counters | None, claim: Claim) -> tuple[Counters, Claimed]:
    """Level 2: the counters after a claim, and its result ("Deduplication between different network servers").

    A claim wins with a higher counter, or with the same one if its server has that already (a retry after a crash). All
    others lose. Only the winner gets a down counter. To a losing claim that `won_before` the store answers "won".

    The store does this in one atomic step. The deployed system takes a lock with an expiry, reads, and writes: a server
    that is delayed between two of these steps wins what another has won. Counters have 32 bits: with the 16 bits of the
    air, a device that reaches 65,536 seems to fall back to 0, and none of its next 65,535 frames would count.

    >>> known, a = decide(None, Claim("d", "a", 7, wants_down=True))
    >>> known, b = decide(known, Claim("d", "b", 7, wants_down=True))
    >>> a.won, a.fcnt_down, b.won, b.fcnt_down, b.server
    (True, 1, False, 0, 'a')

    A device restarts only once, even if a copy of its 0 comes after its 2:

    >>> known, anew = decide(known, Claim("d", "a", 0, restarted_after=7))
    >>> known, two = decide(known, Claim("d", "a", 2))
    >>> known, copy = decide(known, Claim("d", "b", 0, restarted_after=7))
    >>> anew.won, two.won, copy.won, known.fcnt_up
    (True, True, False, 2)
    """
    previous = None if counters is None or counters.server == claim.server else counters.server
    if counters is not None and _begins_anew(counters, claim):
        counters = None
    if counters is not None and (
        claim.fcnt_up < counters.fcnt_up or (claim.fcnt_up == counters.fcnt_up and claim.server != counters.server)
    ):
        return counters, Claimed(False, counters.server, counters.fcnt_up, 0, None)
    fcnt_down = claim.fcnt_down if counters is None else max(counters.fcnt_down, claim.fcnt_down)
    if claim.wants_down:
        fcnt_down += 1
    frame = claim.frame
    if not frame and counters is not None and counters.fcnt_up == claim.fcnt_up:
        frame = counters.frame
    after = Counters(claim.fcnt_up, fcnt_down, claim.server, frame)
    return after, Claimed(True, claim.server, claim.fcnt_up, fcnt_down if claim.wants_down else 0, previous)


def decide_join(counters: Counters | None, claim: Claim, *, used: bool) -> Claimed:
    """The result of a claim with a nonce. Nonces are kept for ever: whoever recorded a join request can replay it years
    later. A device has 65,536 at most, and the MIC is verified before, so no stranger can fill the store. ``used``: the
    device has joined with this nonce; ``counters``: the server that won it recently.

    To a losing claim that `won_before` the store answers "won". If the result names no server, the request is a replay.

    >>> claim = Claim("join/d", "b", 0, nonce=7)
    >>> decide_join(None, claim, used=False).won, decide_join(None, claim, used=True).won
    (True, False)
    >>> decide_join(Counters(0, 0, "a"), claim, used=True).server
    'a'
    """
    if used or counters is not None:
        return Claimed(False, "" if counters is None else counters.server, claim.fcnt_up, 0, None)
    return Claimed(True, claim.server, claim.fcnt_up, 0, None)


def _begins_anew(counters: Counters, claim: Claim) -> bool:
    """Is this claim the first to tell the store that the device restarted?

    Each server notices a restart for itself, and the first claim resets the store. The claims of the others must not
    reset it again: they would win a frame that is counted, and refuse what the device sends now. So a claim tells the
    last counter that its server heard before the restart. If the store's counter is below that, the store was reset
    already; unless it is so far ahead of the claim that no server can be that late.
    """
    after = claim.restarted_after
    if after is None or claim.fcnt_up >= counters.fcnt_up:
        return False
    if counters.server == claim.server:  # a server makes its claims in order
        return True
    # A stored 0 or 1 cannot tell: the 1 of another server may follow the 0 that is claimed here.
    if counters.fcnt_up <= FIRST_MESSAGE_MAX:
        return False
    return counters.fcnt_up >= after or counters.fcnt_up - claim.fcnt_up > LATE_MAX


JOIN_KEEP_MS: Final = 300_000
"""How long the store remembers which server won a join; with strict_adr, also its DevNonce. As deployed."""
JOINS: Final = "join/"
"""The prefix of ``Claim.device`` for join requests; for data frames it is the DevEUI alone."""


class Judged(NamedTuple):
    """The judgement of a reception: its answer, its status after ADR 007, its route and its 32-bit counter."""

    answer: Answer
    status: Status
    route: Route
    fcnt: int
    claim: Claim | None
    """To be made before the judgement is final; None: it is final."""


@dataclass(slots=True)
class NetworkServer:
    """The rules of one server: its name among the servers, and the memory of its stations."""

    name: str
    stations: Stations = field(default_factory=Stations)
    gap_max: int = field(default=GAP_MAX, kw_only=True)
    resubmits_max: int = field(default=RESUBMITS_MAX, kw_only=True)
    strict_adr: bool = field(default=False, kw_only=True)

    def uplink(self, device: Device, frame: DataUp, fcnt: int, heard: Heard, station: str, now_ms: int) -> Judged:
        """Judge a data frame whose MIC fits this 32-bit counter; ``heard`` is updated."""
        if device.gateway is not None and device.gateway != self.name:
            return Judged(OTHER_GATEWAY, NOT_DUPLICATE, NOWHERE, fcnt, None)
        key, confirmed = frame.key, frame.confirmed
        counted = None if self.strict_adr else heard.frame
        status, answer = self.stations.data(key, station, device.strategy, now_ms, counted)
        routed = route(status, device.strategy, confirmed=confirmed, first_message=fcnt <= FIRST_MESSAGE_MAX)
        if status is SOFT_DUPLICATE or status is DUPLICATE:
            return Judged(answer, status, routed, fcnt, None)
        is_known, last = status is RESUBMISSION, heard.fcnt_up
        problem, restarted = check(
            device, heard, fcnt, confirmed=confirmed, known=is_known, gap_max=self.gap_max,
            resubmits_max=self.resubmits_max,
        )  # fmt: skip
        if problem is not None:
            if not is_known or answer is COUNTED_BEFORE:
                self.stations.sightings.forget(key)
            if problem is REPLAYED and answer is COUNTED_BEFORE:
                problem = COUNTED_BEFORE  # unconfirmed, but that somebody replays it is not known, either
            if problem is OLD_COUNTER and answer is FORGOTTEN:
                problem = FORGOTTEN  # it may be a copy of a frame that level 1 evicted
            return Judged(problem, status, NOWHERE, fcnt, None)
        if not is_known and restarted:
            answer = RESTARTED if answer is NEW_FRAME else FORGOTTEN
        elif not is_known:
            # The last counter again, after the expiry or a restart of the server: was the first copy counted?
            answer = FORGOTTEN if fcnt == last else NEW_FRAME
        heard.frame = key
        claim = Claim(
            f"{device.dev_eui:016x}", self.name, fcnt, wants_down=routed.down,
            restarted_after=last if restarted else None, frame=key.hex(),
        )  # fmt: skip
        return Judged(answer, status, routed, fcnt, claim)

    def join(self, request: JoinRequest, station: str, now_ms: int) -> Judged:
        """Judge a join request whose MIC is right. The claim on its nonce lets only one server answer."""
        status, answer = self.stations.join(request.key, station, now_ms)
        if status is DUPLICATE:
            return Judged(answer, status, NOWHERE, 0, None)
        name, nonce = f"{JOINS}{request.dev_eui:016x}/{request.join_eui:016x}", request.dev_nonce
        claim = Claim(name, self.name, 0, keep_ms=JOIN_KEEP_MS, nonce=nonce)
        if self.strict_adr:  # it can be won again
            claim = claim._replace(device=claim.entry, nonce=None)
        return Judged(answer, status, Route(True, True, False), 0, claim)

    def settle(self, judged: Judged, strategy: Strategy, claimed: Claimed | None) -> Judged:
        """The final judgement, after the claim. ``claimed`` is None if the coordinator is down: then nothing goes down,
        since another server may answer too, and a FIRST becomes UNSURE."""
        claim = judged.claim
        if claim is None:
            return judged
        if claimed is None:
            answer = COORDINATOR_DOWN if judged.answer.verdict is Verdict.FIRST else judged.answer
            return judged._replace(answer=answer, route=judged.route._replace(down=False), claim=None)
        if claimed.won:  # that a join is new the store knows, even if level 1 evicted entries
            answer = NEW_JOIN if claim.nonce is not None else judged.answer
            return judged._replace(answer=answer, claim=None)
        if claim.device.startswith(JOINS):  # a join request is dropped whatever the strategy
            answer = NONCE_USED if claimed.server in ("", self.name) else OTHER_SERVER
            return judged._replace(answer=answer, route=NOWHERE, claim=None)
        # If the store has a later counter, it does not know whether anybody counted this frame.
        answer = OTHER_SERVER if claimed.fcnt_up == claim.fcnt_up else LATE
        lost = route_lost(strategy)
        return judged._replace(answer=answer, route=lost._replace(up=lost.up and judged.route.up), claim=None)
