"""The client: finds out what a store and a peer lack of each other, and exchanges it.

    look      the ids, by a session of the protocol, see `looking`
    transfer  the records, see `transfer`
    again     if the connection is lost, the peer is busy or ends the session: connect, look, and go on

There is no book of how far a transfer got. Whatever arrived is no longer missing at the next look, so a client can be
killed at any moment and started again, and so can its peer.

A record is kept only if its time and its bytes hash to the id that was asked for. A peer can still keep silent about
records that it has: nobody can tell that from not having them.

What a client gets for a frame: the answer to it, or an error that says whether it is worth trying again.

ConnectionError, Busy   the session is over, and another one may go better
Misuse                  the peer will say the same again: fix the call, or the settings of the peer
BadInput                the peer does not speak the protocol

How a client reaches its peer: a server, by its address, or a store of this process.

The look: which ids do these records and those of a peer lack of each other? Nothing is moved by it.

The peer is not trusted: what it says has limits in rounds, bytes, ids and time, each with a name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

from onefold.errors import BadInput, Busy, Misuse
from onefold.reconcile import FRAME_SIZE_MIN_XOR, INFINITY, Items, Limits, Session, SessionLimit, Window, frame_size_min
from onefold.reconcile.exchange import MESSAGE, OPEN, OPENED, Opening, OpenReply, Pipe, tell, told
from onefold.reconcile.records import Channel, Records
from onefold.reconcile.transfer import Transfer, answer
from onefold.stores.addresses import masked
from onefold.tally import Tally
from onefold.verdict import Verdict

SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
ANSWER_S: Final = 600.0
"""For an answer: a server may have to read much for it, and other peers wait for their turn too. A server that is gone
is noticed by its missing pongs, in less than a minute."""


def is_server(address: str) -> bool:
    """Whether this is the address of a server, and not of a store.

    >>> is_server("ws://127.0.0.1:7657"), is_server("notes.db")
    (True, False)
    """
    return address.partition("://")[0].lower() in SCHEMES and "://" in address


def dial(address: str, token: str | None = None, *, answer_s: float = ANSWER_S) -> Callable[[], Channel]:
    """What connects to the server at an address: ws://, wss://, http:// or https://. Nothing is opened yet.

    >>> dial("ws://me:secret@example.org")
    Traceback (most recent call last):
    onefold.errors.Misuse: an address with a user or a password: a server is given a token
    """
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 # it is checked when it is asked for
    except ValueError:  # what is wrong may be a password
        raise Misuse(f"{masked(address)} is no address of a server: HOST:PORT, a port up to 65535") from None
    if parts.username is not None or parts.password is not None:
        raise Misuse("an address with a user or a password: a server is given a token")
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise Misuse(f"{address!r} is no address of a server: ws://HOST:PORT, or wss, http, https", address=address)
    if parts.query or parts.fragment:
        raise Misuse(f"{address!r}: the address of a reconcile server has nothing behind its path", address=address)
    url = urlunsplit((SCHEMES[parts.scheme], parts.netloc, parts.path or "/", "", ""))

    def connect() -> Channel:
        from onefold.net.websocket import WebSocket  # an extra: who has both stores here does without

        return WebSocket(url, token=token, answer_s=answer_s, greeted=False)

    return connect


def beside(records: Records) -> Callable[[], Channel]:
    """What connects to a store of this process, as if it were served."""
    from onefold.reconcile.peer import Peer

    def connect() -> Channel:
        peer = Peer(records)
        return Pipe(peer.answer, peer.close)

    return connect


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

    opened: OpenReply
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
    opened = told(OpenReply, answer(channel, OPENED))
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


def _frame_size(limits: ClientLimits, opened: OpenReply, wire: str) -> int:
    """How large our messages may be: one byte before them tells their kind."""
    if opened.message_bytes_max <= frame_size_min(wire):
        raise BadInput(f"the peer takes {opened.message_bytes_max} bytes at once, fewer than the protocol needs")
    return min(limits.frame_size_max, opened.message_bytes_max - 1)


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

    >>> from onefold.reconcile import record
    >>> from onefold.reconcile.exchange import Pipe
    >>> from onefold.reconcile.peer import Peer
    >>> from onefold.reconcile.records import MemoryRecords
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
