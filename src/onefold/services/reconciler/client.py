"""The client: finds out what a store and a peer lack of each other, and exchanges it.

    look      the ids, by a session of the protocol, see `looking`
    transfer  the records, see `transfer`
    again     if the connection is lost, the peer is busy or ends the session: connect, look, and go on

There is no book of how far a transfer got. Whatever arrived is no longer missing at the next look, so a client can be
killed at any moment and started again, and so can its peer.

A record is kept only if its time and its bytes hash to the id that was asked for. A peer can still keep silent about
records that it has: nobody can tell that from not having them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onefold.errors import Busy
from onefold.links.exchange import Opening
from onefold.ports.records import Channel, Records
from onefold.services.reconciler.looking import EVER, ClientLimits, Found, find_ids
from onefold.services.reconciler.transfer import Transfer
from onefold.tally import Tally
from onefold.verdict import Verdict

__all__ = ["EVER", "ClientLimits", "Found", "Reconciliation", "find_ids", "reconcile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What came of it."""

    have: int
    """How many records only this side had, by the first look."""
    need: int
    """How many only the peer had."""
    rounds: int
    """Of all looks together, and so are the bytes; those of records are not in them."""
    bytes_up: int
    bytes_down: int
    found: Found
    """The last look, with its ids: the one after which no connection was lost."""
    pulled: Tally
    """What became of the records that came, as in `transfer.RULES`."""
    pushed: Tally
    """What became of those that went."""
    unpulled: int
    """Differences that are known and still there: nobody asked to exchange them, or they were rejected."""
    unpushed: int
    here: int
    """How many records this side holds now, of the time that it was about."""
    there: int
    """The same of the peer, by what it said."""
    connections: int
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether both sides held the same to begin with."""
        return not self.have and not self.need

    @property
    def settled(self) -> bool:
        """Whether both sides hold the same now, as far as this side can know."""
        return not self.unpulled and not self.unpushed


def reconcile(
    records: Records,
    connect: Callable[[], Channel],
    *,
    wire: Literal["v1", "xor"] = "v1",
    pull: bool = True,
    push: bool = True,
    since: int = 0,
    until: int = EVER,
    limits: ClientLimits | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Reconciliation:
    """Fetch what this store lacks of a peer, and push what the peer lacks; both hold the same then.

    ``connect`` opens a channel to the peer, as often as it takes. ``pull`` and ``push`` say which ways records go; if
    none, it is only told what differs. ``since`` and ``until``, both included, narrow it down to records of that time.

    `ConnectionError` if ``limits.tries`` in a row moved nothing; what was moved before that is kept.

    >>> from onefold.engines.negentropy import record
    >>> from onefold.links.pipe import Pipe
    >>> from onefold.services.reconciler.peer import Peer
    >>> from onefold.stores.memory.records import MemoryRecords
    >>> here, there = MemoryRecords(), MemoryRecords()
    >>> _ = here.add([record(1, b"both"), record(2, b"here")]), there.add([record(1, b"both"), record(3, b"there")])
    >>> done = reconcile(here, lambda: Pipe(Peer(there).answer))
    >>> done.have, done.need, done.settled, len(here), len(there)
    (1, 1, True, 3, 3)
    """
    limits = limits or ClientLimits()
    opening = Opening(
        wire=wire, id_size=records.id_size, frame_size_max=limits.frame_size_max, since=since, until=until
    )  # fmt: skip
    client = _Client(records, opening, limits, say)
    started = time.monotonic()
    while not client.attempt(connect, pull=pull, push=push):
        time.sleep(client.pause_s * random.uniform(0.5, 1))
    return client.result(time.monotonic() - started)


class _Client:
    """A reconciliation under way, over as many connections as it takes."""

    def __init__(self, records: Records, opening: Opening, limits: ClientLimits, say: Callable[[str], object]) -> None:
        self.pause_s = limits.pause_s
        self._records, self._opening, self._limits, self._say = records, opening, limits, say
        self._transfer = Transfer(records, opening, say)
        self._first: tuple[int, int] | None = None
        self._found: Found | None = None
        self._spent = (0, 0, 0)
        self._stored = (0, 0)  # booked before the last look: what it found was counted with them
        self._unpulled = self._unpushed = 0
        self._connections = self._failed = 0
        self._left: int | None = None
        self._stalled = 0

    def attempt(self, connect: Callable[[], Channel], *, pull: bool, push: bool) -> bool:
        """Connect, look and transfer. False: it was cut off, and another attempt may go better."""
        before = self._transfer.moved
        try:
            channel = connect()
            self._connections += 1
            try:
                self._converse(channel, pull=pull, push=push)
            finally:
                channel.close()
            return True
        except (ConnectionError, Busy) as error:
            moved = self._transfer.moved > before
            self._failed = 0 if moved else self._failed + 1
            self.pause_s = self._limits.pause_s if moved else min(2 * self.pause_s, self._limits.pause_s_max)
            # A peer may say that it stored what it did not: then the looks are what shows that nothing goes on.
            if max(self._failed, self._stalled) >= self._limits.tries:
                tries = f"{self._limits.tries} tries" if self._limits.tries > 1 else "one try"
                raise ConnectionError(f"gave up after {tries}: {error}") from error
            self._say(f"trying again: {error}")
            return False

    def _converse(self, channel: Channel, *, pull: bool, push: bool) -> None:
        found, transfer = self._look(channel), self._transfer
        pull, push = pull and found.opened.bodies, push and found.opened.writable
        if pull:
            transfer.pull(channel, found.opened, found.need)
        if push:
            transfer.push(channel, found.opened, found.have)
        self._unpulled = transfer.pulled.count(Verdict.REJECT) if pull else len(found.need)
        self._unpushed = transfer.pushed.count(Verdict.REJECT) if push else len(found.have)

    def _look(self, channel: Channel) -> Found:
        self._found = None  # ids can be many: those of the look before make room
        snapshot = self._records.snapshot()
        try:
            found = find_ids(snapshot, channel, self._opening, self._limits, say=self._say)
        finally:
            snapshot.close()
        self._transfer.looked(found.have)
        left = len(found.have) + len(found.need)
        self._stalled = self._stalled + 1 if self._left is not None and left >= self._left else 0
        self._left = left
        self._first = self._first or (len(found.have), len(found.need))
        rounds, up, down = self._spent
        self._spent = rounds + found.rounds, up + found.bytes_up, down + found.bytes_down
        self._stored = _held(self._transfer.pulled), _held(self._transfer.pushed)
        self._found = found
        return found

    def result(self, seconds: float) -> Reconciliation:
        """What came of it, when an attempt went through."""
        found, first, transfer = self._found, self._first, self._transfer
        assert found is not None
        assert first is not None
        return Reconciliation(
            have=first[0],
            need=first[1],
            rounds=self._spent[0],
            bytes_up=self._spent[1],
            bytes_down=self._spent[2],
            found=found,
            pulled=transfer.pulled.check(),
            pushed=transfer.pushed.check(),
            unpulled=self._unpulled,
            unpushed=self._unpushed,
            here=found.here + _held(transfer.pulled) - self._stored[0],
            there=found.opened.records + _held(transfer.pushed) - self._stored[1],
            connections=self._connections,
            seconds=seconds,
        )


def _held(books: Tally) -> int:
    """How many of these the other side holds now."""
    return books.received - books.count(Verdict.REJECT)
