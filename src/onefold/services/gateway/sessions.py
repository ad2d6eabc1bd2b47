"""What this server knows of its devices while it runs, and the receptions that are on their way."""

from math import inf
from time import perf_counter
from typing import Final, NamedTuple

from onefold.engines.lorawan.judge import Judged
from onefold.engines.lorawan.server import Claim, Claimed, Counters
from onefold.engines.lorawan.validation import Heard
from onefold.services.gateway.claiming import ClaimDesk, Devices
from onefold.services.gateway.reception import Reception
from onefold.services.gateway.registry import Entry, Registry

BEHIND_MAX: Final = 16
"""Frames of one device that one server may be behind another: half a minute of a very busy device."""


class Question(NamedTuple):
    """What a store is asked, for one device or for all that share an address."""

    desk: ClaimDesk
    devices: Devices
    brief: bool
    """It is not their own store, and is not waited for if it is down."""


class Session:
    """A device under one set of keys."""

    __slots__ = ("asked", "asked_at", "asking", "claims", "elsewhere", "entry", "fcnt_down", "heard", "loaded")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.heard = Heard(entry.fcnt_up)
        self.fcnt_down = 0
        """The last counter that went down, as far as this server knows: a store may have lost it, or never had it."""
        self.loaded = False
        """Was its store asked for its counter?"""
        self.asked: set[str] = set()
        """The stores that were, by name."""
        self.asking: Question | None = None
        self.asked_at = -inf
        self.claims = 0
        """Under way."""
        self.elsewhere: Counters | None = None
        """What another store than its own knows of it, where that may be of before it began again."""

    def learn(self, counters: Counters | None, server: str, *, home: bool) -> None:
        """A store has these counters: its own (``home``), or another in which the device was counted once.

        The highest of all is right; but of one that may begin again its own store is right, if that knows anything."""
        if counters is not None:
            self.fcnt_down = max(self.fcnt_down, counters.fcnt_down)
        if not home and self.entry.device.relaxed:
            self.elsewhere = counters
            return
        counters = self.elsewhere if counters is None else counters
        if counters is None or (last := expected(counters, server)) < 0:
            return
        heard, before = self.heard, self.heard.fcnt_up
        heard.fcnt_up = max(last, before or 0)
        if before is None or last > before or (heard.frame is None and last == before):
            # Only of our own: what another server counted last is not told by its frame but by the claim.
            own = counters.server == server and counters.frame
            heard.frame = bytes.fromhex(counters.frame) if own else None

    def begin_again(self, counters: Counters) -> None:
        """It began again, and only another server heard that."""
        self.heard = Heard()
        self.fcnt_down = counters.fcnt_down


def expected(counters: Counters, server: str) -> int:
    """The counter that ours have to be above. If another server counted the last frame, that and some before it may
    still be on their way to this one: our copies are to be told apart as repeats, not refused as old."""
    return counters.fcnt_up if counters.server == server else counters.fcnt_up - 1 - BEHIND_MAX


class Sessions:
    """The devices of a registry that were heard of; at most as many as it has."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._found: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._found)

    def at(self, dev_addr: int) -> list[Session]:
        """Those that have this address."""
        return [self.of(entry) for entry in self.registry.at(dev_addr)]

    def of(self, entry: Entry) -> Session:
        """What is known of a device."""
        session = self._found.get(entry.session)
        if session is None:
            session = self._found[entry.session] = Session(entry)
        return session

    def named(self, name: str) -> Session | None:
        """The one whose counters are kept under this name; None: it is gone."""
        return self._found.get(name)

    def use(self, registry: Registry) -> None:
        """Another registry: devices keep what is known of them as long as they keep their keys."""
        self.registry = registry
        kept = {}
        for entry in registry.by_eui.values():
            session = self._found.get(entry.session)
            if session is not None:
                session.entry = entry
                kept[entry.session] = session
        self._found = kept


class Item:
    """A reception on its way."""

    __slots__ = ("at", "claim", "claimed", "decided", "desk", "done", "judged", "reception", "record", "retried",
                 "session", "ticks_ms")  # fmt: skip

    def __init__(self, reception: Reception, ticks_ms: int) -> None:
        self.reception = reception
        self.at = perf_counter()
        self.ticks_ms = ticks_ms
        """When it came, by a clock that nobody sets."""
        self.retried: set[ClaimDesk] = set()
        """Who was asked again, once, because its code is wrong by all that was known."""
        self.session: Session | None = None
        self.judged: Judged | None = None
        self.desk: ClaimDesk | None = None
        """Where it was claimed: the device may belong elsewhere by now."""
        self.claim: Claim | None = None
        self.claimed: Claimed | None = None
        self.record: bytes | None = None
        """What goes upstream if the claim is won."""
        self.decided = False
        """It is in the books."""
        self.done = False

    @property
    def owes(self) -> int:
        """The number under which the store keeps its body, or may keep it, until it is told that it was stored."""
        if self.claim is None or (self.claimed is not None and not self.claimed.won):
            return 0
        return self.claim.number
