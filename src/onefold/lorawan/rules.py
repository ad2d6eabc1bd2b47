"""The rules of LoRaWAN deduplication (ADR 007 of the Azure starter kit), both levels, without the I/O between them.

    MIC (find_counter) -> uplink: owner -> level 1 -> validation -> claim -> [the store decides] -> settle

A frame comes in with its MIC verified: a forged one never gets here, and so changes nothing. `NetworkServer.uplink`
gives a judgement, which is final when it has no claim. Else the claim is made, and `settle` says what came of it.

- *Level 1* (`Stations`, one server): nobody heard the frame before, another station did, or the same station did. That
  is its *status*. With the *strategy* of its device it says where the frame goes (`TABLE`).
- *Validation* (`check`): may this counter be, after the last one of its device? What is refused is taken back from
  level 1; in the deployed code it stays, and a copy of it from a second station passes as a soft duplicate.
- *Level 2* (`decide`, several servers): who counts it, and who answers the device. It does not change the status.

The frame of a device that was counted last is known for ever, by its key, and so is every DevNonce that a device has
joined with. The ADR forgets the one after the expiry and the other after five minutes; ``strict_adr`` does so, too.
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
"""The integrity code is right under no counter that the device may have: forged, damaged, or another one's key."""
OLD_COUNTER: Final = Answer(Verdict.REJECT, "old_counter")
COUNTER_GAP: Final = Answer(Verdict.REJECT, "counter_gap")
OTHER_GATEWAY: Final = Answer(Verdict.REJECT, "other_gateway")
COUNTED_BEFORE: Final = Answer(Verdict.REPEAT, "counted_before")
NONCE_USED: Final = Answer(Verdict.REPEAT, "nonce_used")
MIC_BUDGET: Final = Answer(Verdict.REJECT, "mic_budget")
BUSY: Final = Answer(Verdict.REJECT, "busy", retry=True)

RULES: Final = {
    NEW_FRAME: "Nobody heard it within the expiry, and its counter is new.",
    RESTARTED: "Its counter began again at 0 or 1, and its device may do that (ABP, relaxed).",
    NEW_JOIN: "Its device never joined with this DevNonce (by strict_adr: not within the expiry).",
    OTHER_STATION: "Another station of this server heard it first.",
    RESUBMITTED: "The same station heard it before: its device sends it again.",
    ECHOED: "The same station heard the same transmission twice, less than echo_ms apart.",
    REPLAYED: "The same station heard it before, and no confirmation was asked for that would explain it.",
    RESUBMIT_LIMIT: "It asked for its confirmation more than resubmits_max times again.",
    OTHER_SERVER: "Another server was first to count it.",
    JOIN_REPEATED: "The same join request was heard within the expiry, by any station.",
    FORGOTTEN: "It may have been heard before: the memory of that is given up or expired, and its counter cannot tell.",
    LATE: "What it is compared with has moved on past it: between servers a higher counter, on Spark a later time.",
    STATE_FULL: "It is new to the memory, and there is no room to remember another one within state_rows_max.",
    COORDINATOR_DOWN: "The coordinator could not be asked: another server may have counted it.",
    MALFORMED: "It could not be read at all.",
    NULL_KEY: "What identifies it, or its station, is null.",
    BAD_TIME: "Its time is null, or not one that can be reckoned with.",
    UNKNOWN_DEVICE: "No device with its address is registered.",
    BAD_MIC: "Its message integrity code is wrong under every counter that it can stand for.",
    OLD_COUNTER: "Its counter was passed, and level 1 does not know it: a replay, or a copy after the expiry.",
    COUNTER_GAP: "Its counter is more than gap_max ahead of the last one.",
    OTHER_GATEWAY: "Its device belongs to another server.",
    COUNTED_BEFORE: "It is the frame of its device that was counted last, after the expiry: a retry, or a late copy.",
    NONCE_USED: "Its device has joined with this DevNonce before: a join request that somebody replays.",
    MIC_BUDGET: "Too many wrong codes came from its station for its address of late: its own was not looked at.",
    BUSY: "The server had no room for it, or was about to end: it was not looked at.",
}

ANSWERS: Final = tuple(RULES)
"""Every answer of this engine; the position of one is its code in columns, so new ones go to the end."""
"""The position is the answer's code wherever answers travel in columns: new ones go to the end. The verdict says if
a reception counts; where it goes, up or down, is a matter of the strategy (`TABLE`)."""


class Strategy(StrEnum):
    """What to do with what was heard before."""

    DROP = "drop"
    MARK = "mark"
    """It goes upstream, marked as a duplicate: its signal strength helps to locate the device."""
    NONE = "none"
    """It goes upstream as it is: the default of the ADR."""


class Status(StrEnum):
    """What level 1 makes of a frame; the names in the ADR are NonDuplicate, SoftDuplicate and so on."""

    NOT_DUPLICATE = "not_duplicate"
    """Not heard before, or so long ago that it is forgotten."""
    SOFT_DUPLICATE = "soft_duplicate"
    """Heard by another station before, and the strategy lets it pass."""
    RESUBMISSION = "resubmission"
    """Heard by the same station before (DuplicateDueToResubmission)."""
    DUPLICATE = "duplicate"
    """Heard by another station before, and the strategy drops it; or a join request that was heard before."""


# By their plain names, which read like the ADR and are found without asking the class each time.
DROP, MARK, NONE = Strategy
NOT_DUPLICATE, SOFT_DUPLICATE, RESUBMISSION, DUPLICATE = Status


class Route(NamedTuple):
    """Where a frame goes: up to the application, down to the device."""

    up: bool
    down: bool
    """Its confirmation is sent to the device."""
    marked: bool
    """Upstream it says that it is a duplicate."""


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
"""The decision of the ADR: read it next to "Further processing of messages based on their duplication status", one line
here is one line there. The deployed code marks soft duplicates under None too, which the ADR does not."""

LOST: Final = {DROP: NOWHERE, MARK: _MARKED, NONE: _UP}
"""Level 2, "Upstream Processing"; down goes only the answer of the server that was first."""


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
    """Who heard a frame first, when, and when it was last heard by anybody; Unix milliseconds."""

    station: str
    since_ms: int
    last_ms: int
    own_ms: int
    """When the first station heard it last, as the clock said then, also if that was set back before."""


NEVER_MS: Final = -(1 << 62)


class Sightings:
    """Who heard a key: the memory of level 1.

    A key expires ``expiry_ms`` after it was heard last (*sliding*, as in the ADR) or first (*fixed*); at that very
    moment it is new. Entries stand in the order in which they expire. When there is no more room the front one goes
    before its time: until then a miss may be a mistake, and `forgot` says so. Time never falls: an earlier one counts
    as the latest that was seen.

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
        """What was remembered of this key before now; None if it is new. From now on it is remembered."""
        clock_ms = now_ms
        self._now_ms = now_ms = max(now_ms, self._now_ms)
        heard = self._heard
        while heard:  # drop what is expired
            oldest = next(iter(heard))
            if self._expires_ms(heard[oldest]) > now_ms:
                break
            del heard[oldest]
        before = heard.get(key)
        if before is None:
            if len(heard) >= self.entries_max:
                # The front one expires first, and those that went before it had expired earlier still.
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
        """Take back a sighting: the frame was refused, and no copy may pass as a duplicate of something good."""
        self._heard.pop(key, None)

    def forgot(self, now_ms: int) -> bool:
        """Could a miss be due to an entry that went before its time?"""
        return max(now_ms, self._now_ms) < self._forgot_until_ms

    def _expires_ms(self, sighting: Sighting) -> int:
        return (sighting.last_ms if self.sliding else sighting.since_ms) + self.expiry_ms


class Stations:
    """Level 1: one network server, several stations ("Deduplication on the network server level").

    The same key from the station that heard it first is a resubmission: the device missed its confirmation, or was
    restarted, or somebody replays. From another station it is a duplicate under Drop and a soft duplicate else. A join
    request is only known or not known.

    Not in the ADR, to which what is expired is new: devices wait for minutes before they try again, so ``last``, the
    key of the frame that was counted last, is a resubmission for ever, from whatever station. Likewise a join request
    whose nonce was used. Not in the ADR either, and off unless asked for: a station with two antennas, or one that
    hears a strong signal on an image frequency too, reports one transmission twice within milliseconds. With
    ``echo_ms`` that is no resubmission, or the device would be answered twice.

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
        """What a data frame with this key is, heard by this station now; ``last``: what its device counted last."""
        before = self.sightings.see(key, station, now_ms)
        if before is None and key == last:
            return RESUBMISSION, COUNTED_BEFORE
        if before is None:
            return NOT_DUPLICATE, FORGOTTEN if self.sightings.forgot(now_ms) else NEW_FRAME
        if station != before.station:
            answer = OTHER_STATION
        elif self.echo_ms and 0 <= now_ms - before.own_ms < self.echo_ms:
            # Since *this* station heard it: a true resubmission may have reached another station a moment ago. Below 0
            # the clock was set back between the two, and a device that asks again must get its answer.
            answer = ECHOED
        else:
            return RESUBMISSION, RESUBMITTED
        return DUPLICATE if strategy is DROP else SOFT_DUPLICATE, answer

    def join(self, key: bytes, station: str, now_ms: int, *, used: bool = False) -> tuple[Status, Answer]:
        """What a join request with this key is; ``used``: its device has joined with it before."""
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
"""A counter that a device begins with: the ADR says 1, devices that count from 0 exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a server must know of a device to judge its frames; no keys."""

    dev_eui: int
    dev_addr: int | None = None
    strategy: Strategy = Strategy.NONE
    gateway: str | None = None
    """The one server that may serve it; None: any."""
    activation: Literal["abp", "otaa"] = "abp"
    relaxed: bool = False
    """An ABP device that begins again at 0 or 1 is believed. Who recorded those frames can replay them."""
    device_class: Literal["A", "C"] = "A"


@dataclass(slots=True)
class Heard:
    """What one server remembers of a device."""

    fcnt_up: int | None = None
    """The last counter that passed; None: nothing is known, any counter may come."""
    resubmits: int = 0
    """How often that one came again."""
    frame: bytes | None = None
    """The key of the frame that had it; None: it is not known."""


class Checked(NamedTuple):
    """What `check` says of a counter: why it may not be (None: it may), and whether the device began again."""

    problem: Answer | None
    restarted: bool


_RISES = Checked(None, False)
_RESTARTS = Checked(None, True)


def check(
    device: Device, heard: Heard, fcnt: int, *, confirmed: bool, known: bool, gap_max: int = GAP_MAX,
    resubmits_max: int = RESUBMITS_MAX,
) -> Checked:  # fmt: skip
    """May this counter (32 bit) be? It must rise, by no more than ``gap_max``. Equal to the last one if the device
    asks for a confirmation that it missed, three times; below it if the device is allowed to begin again.

    ``known``: level 1 had the frame from the same station. Updates ``heard`` if it passes, else nothing changes.

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
    # Known and above the last: from before the device began again. To take it would shut out what the device sends now.
    return Checked(REPLAYED if known else OLD_COUNTER, False)


LATE_MAX: Final = 1_000
"""So many frames a server may be late with the news that a device began again."""


class Counters(NamedTuple):
    """What is known of a device by all servers: its last counters up and down, of 32 bits, and who counted."""

    fcnt_up: int
    fcnt_down: int
    server: str
    frame: str = ""
    """The key of the frame that was counted last, in hex; empty: it is not known."""


class Claim(NamedTuple):
    """A server wants to count this frame; of all servers that do, the coordinator lets one."""

    device: str
    server: str
    fcnt_up: int
    fcnt_down: int = 0
    """What this server knows to have been used: the next one is above it."""
    wants_down: bool = False
    """It needs a counter to answer with."""
    restarted_after: int | None = None
    """The device began again, and this was its last counter before that, as this server heard it; None: it did not."""
    keep_ms: int = 0
    """How long the store remembers it; 0: for ever."""
    body: str = ""
    """What goes upstream if it wins, kept until it is finished; empty: nothing to keep."""
    number: int = 0
    """Of this claim in the outbox of its server, chosen by the claimant; only the same claim made again has it too."""
    frame: str = ""
    """The key of the frame, in hex."""
    nonce: int | None = None
    """Of a join request: its DevNonce, won once, ever; ``keep_ms`` is how long the store remembers who did it. None: it
    is no join, or one that may be won again after ``keep_ms``."""

    @property
    def entry(self) -> str:
        """What the store keeps its counters under."""
        return self.device if self.nonce is None else f"{self.device}/{self.nonce}"


class Claimed(NamedTuple):
    """What the coordinator answers a `Claim`: whether it won, and whose the frame is."""

    won: bool
    server: str
    fcnt_up: int
    fcnt_down: int
    """The counter to answer with; 0 unless won and asked for."""
    previous: str | None
    """Who had the device before, if that was another one and this one won."""


class Finished(NamedTuple):
    """A message of this server is durable upstream: its body can go."""

    server: str
    number: int


class Unfinished(NamedTuple):
    """A message that its server won and has not finished.

    A server can die between winning a claim and storing its message upstream, when every other server has lost that
    frame. So the step in which a claim wins keeps its message (`Claim.body`), until the server says that it is stored
    (`Finished`). What it finds when it starts again it stores first: none is lost.
    """

    number: int
    device: str
    fcnt_up: int
    body: str


def won_before(unfinished: Unfinished | None, claim: Claim) -> bool:
    """Is ``unfinished``, what the outbox has under the claim's number, the message of this very claim?

    Then it was won, its answer was lost, and it is made again. It is still won, also where a later frame was counted
    since, or its message would wait in the outbox for a server that thinks it lost. Only a downlink is not given twice.
    """
    if unfinished is None or not claim.body:
        return False
    return (unfinished.device, unfinished.fcnt_up) == (claim.device, claim.fcnt_up)


def decide(counters: Counters | None, claim: Claim) -> tuple[Counters, Claimed]:
    """Level 2: what is known after a claim, and what became of it ("Deduplication between different network servers").

    A claim wins with a higher counter, or with the same one if its server has that already (it does its work again
    after a crash). All others lose. Only the winner gets a counter to send down with. A store says "won" to a lost one
    that was `won_before`.

    The store does this in one atomic step. The deployed system takes a lock with an expiry, reads, and writes: a server
    that is held up between two of these steps wins what another has won. Counters have 32 bits: by the 16 of the air, a
    device that reaches 65,536 looks like one that fell back to 0, and nothing of it counts for the next 65,535 frames.

    >>> known, a = decide(None, Claim("d", "a", 7, wants_down=True))
    >>> known, b = decide(known, Claim("d", "b", 7, wants_down=True))
    >>> a.won, a.fcnt_down, b.won, b.fcnt_down, b.server
    (True, 1, False, 0, 'a')

    A device that may begin again does so once, though a copy of its 0 comes after its 2:

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
    """What becomes of a claim with a nonce, which is kept for ever: whoever recorded the request can send it again
    years later. There are 65,536 at most, and only requests whose MIC is right get here, so no stranger can fill the
    store. ``used``: its device has joined with it; ``counters``: who did it of late.

    A store says "won" to a lost one that was `won_before`. No server is named: the request is replayed.

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
    """Is this the first that the store hears of the device's beginning again?

    Each server notices for itself, and the first one begins anew in the store. The copies of the others must not do so
    once more: they would win what is counted, and shut out what the device sends now. So the claim says what this
    server heard last before. If the store is behind that, it has begun again already; unless it is so far ahead of the
    claim that no server can be so late.
    """
    after = claim.restarted_after
    if after is None or claim.fcnt_up >= counters.fcnt_up:
        return False
    if counters.server == claim.server:  # which tells in order what it hears
        return True
    # After 0 and 1 alone nobody can tell: the 1 of another server may be the one that follows the 0 claimed here.
    if counters.fcnt_up <= FIRST_MESSAGE_MAX:
        return False
    return counters.fcnt_up >= after or counters.fcnt_up - claim.fcnt_up > LATE_MAX


JOIN_KEEP_MS: Final = 300_000
"""How long it is remembered which server answered a join; by strict_adr, also how long its DevNonce is. As deployed."""
JOINS: Final = "join/"
"""What the claim of a join request begins with, where that of a data frame has the DevEUI alone."""


class Judged(NamedTuple):
    """What becomes of a reception: its answer, its status after ADR 007, where it goes, its counter of 32 bits."""

    answer: Answer
    status: Status
    route: Route
    fcnt: int
    claim: Claim | None
    """To be made before this is final; None: it is final."""


@dataclass(slots=True)
class NetworkServer:
    """One of the servers: the memory of its stations, and its name among the others."""

    name: str
    stations: Stations = field(default_factory=Stations)
    gap_max: int = field(default=GAP_MAX, kw_only=True)
    resubmits_max: int = field(default=RESUBMITS_MAX, kw_only=True)
    strict_adr: bool = field(default=False, kw_only=True)

    def uplink(self, device: Device, frame: DataUp, fcnt: int, heard: Heard, station: str, now_ms: int) -> Judged:
        """Judge a data frame whose MIC is right under this 32-bit counter; ``heard`` is updated."""
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
                problem = COUNTED_BEFORE  # no confirmation explains it, but who sent it again is not known, either
            if problem is OLD_COUNTER and answer is FORGOTTEN:
                problem = FORGOTTEN  # it may be a copy of what level 1 had to give up: no reason to accuse it
            return Judged(problem, status, NOWHERE, fcnt, None)
        if not is_known and restarted:  # level 1 does not know it, and it passed: here the counter knows more
            answer = RESTARTED if answer is NEW_FRAME else FORGOTTEN
        elif not is_known:
            # The last counter once more, after the expiry or a restart of the server: was the first copy counted?
            answer = FORGOTTEN if fcnt == last else NEW_FRAME
        heard.frame = key
        claim = Claim(
            f"{device.dev_eui:016x}", self.name, fcnt, wants_down=routed.down,
            restarted_after=last if restarted else None, frame=key.hex(),
        )  # fmt: skip
        return Judged(answer, status, routed, fcnt, claim)

    def join(self, request: JoinRequest, station: str, now_ms: int) -> Judged:
        """Judge a join request whose MIC is right. The claim on its nonce lets one server answer."""
        status, answer = self.stations.join(request.key, station, now_ms)
        if status is DUPLICATE:
            return Judged(answer, status, NOWHERE, 0, None)
        name, nonce = f"{JOINS}{request.dev_eui:016x}/{request.join_eui:016x}", request.dev_nonce
        claim = Claim(name, self.name, 0, keep_ms=JOIN_KEEP_MS, nonce=nonce)
        if self.strict_adr:  # it may be won again
            claim = claim._replace(device=claim.entry, nonce=None)
        return Judged(answer, status, Route(True, True, False), 0, claim)

    def settle(self, judged: Judged, strategy: Strategy, claimed: Claimed | None) -> Judged:
        """The final judgement, after the claim. ``claimed`` None: the coordinator could not be asked. Then nothing goes
        down, for another server may answer too; and what would have been FIRST is UNSURE."""
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
