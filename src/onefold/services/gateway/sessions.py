"""What this server knows of its devices while it runs, and the receptions that are on their way."""

from math import inf
from time import perf_counter
from typing import Final

from onefold.engines.lorawan.judge import Judged
from onefold.engines.lorawan.server import Claim, Claimed
from onefold.engines.lorawan.validation import Heard
from onefold.services.gateway.reception import Reception
from onefold.services.gateway.registry import Entry, Registry

BEHIND_MAX: Final = 16
"""Frames of one device that one server may be behind another: half a minute of a very busy device."""


class Session:
    """A device under one set of keys."""

    __slots__ = ("asked_at", "asking", "entry", "heard", "loaded")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.heard = Heard(entry.fcnt_up)
        self.loaded = False
        """Was the store asked for its counter?"""
        self.asking = False
        self.asked_at = -inf

    def learn(self, fcnt_up: int, *, own: bool) -> None:
        """The store has this counter. If another server counted it, that frame and some before it may still be on their
        way to this one: our copies are to be told apart as repeats, not refused as old."""
        last = fcnt_up if own else fcnt_up - 1 - BEHIND_MAX
        if last >= 0 and (self.heard.fcnt_up is None or last > self.heard.fcnt_up):
            self.heard.fcnt_up = last


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

    __slots__ = ("at", "claim", "claimed", "judged", "reception", "record", "session")

    def __init__(self, reception: Reception) -> None:
        self.reception = reception
        self.at = perf_counter()
        self.session: Session | None = None
        self.judged: Judged | None = None
        self.claim: Claim | None = None
        self.claimed: Claimed | None = None
        self.record: bytes | None = None
        """What goes upstream if the claim is won."""

    @property
    def owes(self) -> Claim | None:
        """The claim whose body the store keeps, or may keep, until it is told that this was stored."""
        kept = self.claim is not None and self.claim.body and (self.claimed is None or self.claimed.won)
        return self.claim if kept else None
