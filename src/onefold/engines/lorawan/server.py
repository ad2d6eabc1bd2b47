"""Level 2: several network servers ("Deduplication between different network servers").

Per device the shared store keeps the last counter, the server that counted it, and the last counter that went down. A
server that wants to count a frame makes a *claim*. It wins with a higher counter, or with the same one if it has that
already (it does its work again after a crash). All others lose. Only the winner gets a counter to send down with.

`decide` is what the store does in one atomic step. The deployed system takes a lock with an expiry, reads, and writes:
a server that is held up between two of these steps wins what another has won. Here there is nothing to hold.

With the counter stands the key of the frame. So the last frame of a device is known for ever, however late its copy
comes: after a restart, too. Older ones are told by their counters. And of each join request the DevNonce is kept for
ever (`decide_join`): a device uses each once, and whoever recorded the request can send it again years later. There are
65,536 at most, and only requests whose MIC is right get here, so no stranger can fill the store.

Counters have 32 bits. With the 16 of the air, a device that reaches 65,536 looks like one that fell back to 0, and
nothing of it counts for the next 65,535 frames.

A device that began again sends 0, then 1. Each server notices for itself, some later than others, and the first one
begins anew in the store. The copies of the others must not do so once more: they would win what is counted, and shut
out what the device sends now. So such a claim says what this server heard last before (`Claim.restarted_after`). If the
store is behind that, it has begun again already; unless it is so far ahead of the claim that no server can be so late.
Then this server had heard what never reached the store, or nothing of a whole life of the device between.

Between winning a claim and storing its message upstream a server can die, and by then every other server has lost that
frame: under Drop nobody would ever store it. So a claim may carry the message (`Claim.body`), and in the step in which
it wins the store keeps it as *unfinished*. When it is stored upstream the server says so along with its next claims
(`Finished`); what it finds when it starts again (`Unfinished`) it has to store first. None is lost, and one is stored
twice only if the server died between storing it and saying so.
"""

from typing import Final, NamedTuple

from onefold.engines.lorawan.validation import FIRST_MESSAGE_MAX

LATE_MAX: Final = 1_000
"""So many frames a server may be late with the news that a device began again."""


class Counters(NamedTuple):
    """What is known of a device by all servers."""

    fcnt_up: int
    """The last counter that was counted, 32 bit."""
    fcnt_down: int
    """The last counter that was given out for a frame down."""
    server: str
    """Who counted it."""
    frame: str = ""
    """The key of the frame that was counted last, in hex; empty: it is not known."""


class Claim(NamedTuple):
    """A server wants to count a frame."""

    device: str
    """The key of the device: its DevEUI in hex."""
    server: str
    fcnt_up: int
    """32 bit."""
    fcnt_down: int = 0
    """What this server knows to have been used: the next one is above it."""
    wants_down: bool = False
    """It needs a counter to answer with."""
    restarted_after: int | None = None
    """The device began again, and this was its last counter before that, as this server heard it; None: it did not."""
    keep_ms: int = 0
    """How long the store remembers it; 0: for ever."""
    body: str = ""
    """What goes upstream if it wins: kept until it is finished, however long that takes. Empty: nothing to keep."""
    number: int = 0
    """Of this claim in the outbox of its server. Chosen by the claimant, never used twice; but the same claim, made
    again because the store did not answer, has the same one."""
    frame: str = ""
    """The key of the frame, in hex: kept with the counter, so that the last frame of a device is known for ever."""
    nonce: int | None = None
    """Of a join request: its DevNonce, of 16 bits. Each is won once, ever, whatever ``keep_ms`` is; that is how long
    the store remembers who did it. None: it is no join, or one that may be won again after ``keep_ms``."""

    @property
    def entry(self) -> str:
        """What the store keeps its counters under."""
        return self.device if self.nonce is None else f"{self.device}/{self.nonce}"


class Claimed(NamedTuple):
    """What became of a claim."""

    won: bool
    server: str
    """Who has the device now."""
    fcnt_up: int
    """The counter that is stored now."""
    fcnt_down: int
    """The counter to answer with; 0 unless won and asked for."""
    previous: str | None
    """Who had the device before, if that was another one and this one won."""


class Finished(NamedTuple):
    """A message of this server is durable upstream: its body need not be kept any longer."""

    server: str
    number: int
    """Of the claim."""


class Unfinished(NamedTuple):
    """A message that its server won and has not finished."""

    number: int
    """Of the claim."""
    device: str
    fcnt_up: int
    body: str


def won_before(kept: Unfinished | None, claim: Claim) -> bool:
    """Is ``kept``, what the outbox has under the claim's number, the message of this very claim?

    Then it was won, its answer was lost, and it is made again. It is still won, also where a later frame was counted
    since, or its message would wait in the outbox for a server that thinks it lost. Only a downlink is not given twice.
    """
    return kept is not None and bool(claim.body) and (kept.device, kept.fcnt_up) == (claim.device, claim.fcnt_up)


def decide(known: Counters | None, claim: Claim) -> tuple[Counters, Claimed]:
    """What is known after a claim, and what became of it. A store says "won" to a lost one that was `won_before`.

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
    previous = None if known is None or known.server == claim.server else known.server
    if known is not None and _begins_anew(known, claim):
        known = None
    if known is not None and (
        claim.fcnt_up < known.fcnt_up or (claim.fcnt_up == known.fcnt_up and claim.server != known.server)
    ):
        return known, Claimed(False, known.server, known.fcnt_up, 0, None)
    fcnt_down = claim.fcnt_down if known is None else max(known.fcnt_down, claim.fcnt_down)
    if claim.wants_down:
        fcnt_down += 1
    same = known is not None and known.fcnt_up == claim.fcnt_up
    after = Counters(claim.fcnt_up, fcnt_down, claim.server, claim.frame or (known.frame if known and same else ""))
    return after, Claimed(True, claim.server, claim.fcnt_up, fcnt_down if claim.wants_down else 0, previous)


def decide_join(known: Counters | None, claim: Claim, *, used: bool) -> Claimed:
    """What becomes of a claim with a nonce. ``used``: its device has joined with it; ``known``: who did it of late.

    A store says "won" to a lost one that was `won_before`. Who lost and is told no server lost to nobody of now: the
    request is replayed.

    >>> claim = Claim("join/d", "b", 0, nonce=7)
    >>> decide_join(None, claim, used=False).won, decide_join(None, claim, used=True).won
    (True, False)
    >>> decide_join(Counters(0, 0, "a"), claim, used=True).server
    'a'
    """
    if used or known is not None:
        return Claimed(False, "" if known is None else known.server, claim.fcnt_up, 0, None)
    return Claimed(True, claim.server, claim.fcnt_up, 0, None)


def _begins_anew(known: Counters, claim: Claim) -> bool:
    """Is this the first that the store hears of the device's beginning again?"""
    after = claim.restarted_after
    if after is None or claim.fcnt_up >= known.fcnt_up:
        return False
    if known.server == claim.server:  # which tells in order what it hears
        return True
    # After 0 and 1 alone nobody can tell: the 1 of another server may be the one that follows the 0 claimed here.
    if known.fcnt_up <= FIRST_MESSAGE_MAX:
        return False
    return known.fcnt_up >= after or known.fcnt_up - claim.fcnt_up > LATE_MAX
