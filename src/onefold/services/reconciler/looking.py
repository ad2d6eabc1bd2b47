"""The look: which ids do these records and those of a peer lack of each other? Nothing is moved by it.

The peer is not trusted: what it says has limits in rounds, bytes, ids and time, each with a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from onefold.engines.negentropy import (
    FRAME_SIZE_MIN_XOR,
    INFINITY,
    Items,
    Limits,
    Session,
    SessionLimit,
    Window,
    frame_size_min,
)
from onefold.errors import BadInput, Misuse
from onefold.links.exchange import MESSAGE, OPEN, OPENED, Opened, Opening, tell, told
from onefold.ports.records import Channel
from onefold.services.reconciler.asking import answer

EVER: Final = INFINITY - 1
"""The last time that a record can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What a reconciliation may cost, and how long trouble is waited out."""

    session: Limits = field(default_factory=Limits)
    """Of one look: rounds, bytes, ids that we are said to lack."""
    look_s_max: float = 3_600
    """That a look waits for answers, all together: against a server that never ends. What this side takes itself does
    not count, nor do other programs on this machine."""
    frame_size_max: int = 500_000
    """Of a message of ours and of the peer's; published relays have the same. The peer may want less. Wire v1 needs
    4,096."""
    tries: int = 5
    """In a row that moved no record; then it is given up."""
    pause_s: float = 0.25
    """Before the next try. It doubles each time."""
    pause_s_max: float = 5

    def __post_init__(self) -> None:
        for name, least in (("look_s_max", 0), ("tries", 1), ("pause_s", 0), ("frame_size_max", FRAME_SIZE_MIN_XOR)):
            if not getattr(self, name) >= least:
                raise Misuse(
                    f"{name} is {getattr(self, name)}, must be at least {least}", **{name: getattr(self, name)}
                )


@dataclass(slots=True)
class Found:
    """What a look has found, and what it took."""

    opened: Opened
    """What the peer said of itself."""
    here: int
    """How many records were looked at on this side; on the other it is ``opened.records``."""
    have: list[bytes] = field(default_factory=list)
    """Ids that only this side has."""
    need: list[bytes] = field(default_factory=list)
    """Ids that only the peer has."""
    both_ways: int = 0
    """Ids of wire xor that were named in both directions, and are in neither list: both sides have them, at two times,
    or one side counts bounds otherwise."""
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __str__(self) -> str:
        trips = f"{self.rounds:,} round trip{'s' * (self.rounds != 1)}"
        return f"after {trips}: {len(self.have):,} only here, {len(self.need):,} only there"


def find_ids(
    items: Items,
    channel: Channel,
    opening: Opening,
    limits: ClientLimits | None = None,
    *,
    say: Callable[[str], object] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Find what these records and those of the peer lack of each other, exactly.

    ``items`` is the whole set; of times that the opening leaves out nothing is looked at. The session stays open, for a
    transfer; closing the channel ends it. ``say`` is told how it goes, a line for each round.

    `Misuse`: the peer refuses. `BadInput`: it breaks the protocol, or a limit. `ConnectionError`, `Busy`: try again.
    """
    limits = limits or ClientLimits()
    waited_s = 0.0
    channel.send(tell(OPEN, opening))
    opened = told(Opened, answer(channel, OPENED))
    some = items if (opening.since, opening.until) == (0, EVER) else Window(items, opening.since, opening.until)
    session = Session(
        some, opening.wire, opening.id_size, frame_size_max=_frame_size(limits, opened, opening.wire),
        limits=limits.session,
    )  # fmt: skip
    found = Found(opened, len(some))
    message: bytes | None = session.initiate()
    while message is not None:
        began = clock()
        channel.send(bytes((MESSAGE,)) + message)
        reply = answer(channel, MESSAGE)
        waited_s += clock() - began
        if waited_s > limits.look_s_max:
            raise SessionLimit(
                f"the session is over: answers took more than {limits.look_s_max:g} s in all, look_s_max",
                rounds=found.rounds,
            )
        message, have, need = session.reconcile(reply[1:])
        found.have += have
        found.need += need
        spent = session.spent
        found.rounds, found.bytes_up, found.bytes_down = spent.rounds, spent.bytes_out, spent.bytes_in
        say(str(found))
    found.both_ways = session.both_ways
    return found


def _frame_size(limits: ClientLimits, opened: Opened, wire: str) -> int:
    """How large our messages may be: one byte before them tells their kind."""
    if opened.message_bytes_max <= frame_size_min(wire):
        raise BadInput(f"the peer takes {opened.message_bytes_max} bytes at once, fewer than the protocol needs")
    return min(limits.frame_size_max, opened.message_bytes_max - 1)
