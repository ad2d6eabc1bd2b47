"""The client: finds what a store and a peer lack of each other, and exchanges it.

    look      find the ids that each side lacks, by a session of the protocol; moves nothing
    pull      fetch ids, a few frames ahead; the peer sends the first records that fit into a frame, and the client
              asks again for the rest. Each record is checked against its id before it is stored; a batch is one `add`
    push      send records in frames, a few in flight; the peer answers with an outcome for each
    retry     if the connection is lost, the peer is busy or ends the session: connect, look, and continue

No progress is kept. Whatever arrived is no longer missing at the next look, so the client and the peer can be killed
at any moment and started again. Arrivals and verdicts are counted separately, and compared at the end; a record is
counted once, when its outcome is known. Only records that were pushed when the connection was lost leave a doubt: if
the next look finds one at the peer, it is counted as UNSURE, since nobody can tell who put it there.

The peer is not trusted: rounds, bytes, ids and time are limited, each by a named limit. A record is stored only if its
time and its bytes hash to the requested id. A peer can still hide records that it has: that looks like not having them.

Errors: `ConnectionError`, `Busy`: this session is over, a new one may succeed. `Misuse`: a retry will fail the same
way; fix the call, or the settings of the peer. `BadInput`: the peer does not speak the protocol.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

from onefold.errors import BadInput, Busy, Misuse
from onefold.reconcile import INFINITY, Items, Limits, Session, SessionLimit, Window, exchange, frame_size_min
from onefold.reconcile.exchange import Opening, OpenReply
from onefold.reconcile.records import Channel, Record, Records
from onefold.stores.addresses import masked
from onefold.tally import Tally
from onefold.text import plain
from onefold.verdict import Answer, Verdict

OUTSTANDING_MAX: Final = 4
"""Frames in flight: enough to keep a line busy while a store writes, and few enough to hold in memory."""
FETCH_IDS: Final = 16
FETCH_IDS_MAX: Final = 4_096
"""Ids in the first frame, and at most in any; in between it depends on the size of the answers."""
FRAME_BYTES: Final = 256 << 10
"""Size of a frame of several records, either way, even if the peer accepts or sends more. Frames in flight are held in
memory, and a ping waits behind them: with a megabyte each, a line of 1 Mbit/s would be taken for dead."""
READ_IDS: Final = 64
"""Records that are read from the store at once; each may have a megabyte."""
LATER: Final = frozenset({"store_failed", "time", "needs", "pushes", "not_open"})
"""Errors of the peer that a new session may not get: it continues where this one ended."""
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
ANSWER_S: Final = 600.0
"""Timeout of an answer: a server may have to read much for it, and may serve other peers first. A dead server is
noticed by its missing pongs, in less than a minute."""


def is_server(address: str) -> bool:
    """Whether this is the address of a server, not of a store.

    >>> is_server("ws://127.0.0.1:7657"), is_server("notes.db")
    (True, False)
    """
    return address.partition("://")[0].lower() in SCHEMES and "://" in address


def dial(address: str, token: str | None = None, *, answer_s: float = ANSWER_S) -> Callable[[], Channel]:
    """A function that connects to the server at an address: ws://, wss://, http:// or https://.

    >>> dial("ws://me:secret@example.org")
    Traceback (most recent call last):
    onefold.errors.Misuse: an address with a user or a password: a server is given a token
    """
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 # reading it validates it
    except ValueError:  # the faulty part may be a password
        raise Misuse(f"{masked(address)} is no address of a server: HOST:PORT, a port up to 65535") from None
    if parts.username is not None or parts.password is not None:
        raise Misuse("an address with a user or a password: a server is given a token")
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise Misuse(f"{address!r} is no address of a server: ws://HOST:PORT, or wss, http, https", address=address)
    if parts.query or parts.fragment:
        raise Misuse(f"{address!r}: the address of a reconcile server has nothing behind its path", address=address)
    url = urlunsplit((SCHEMES[parts.scheme], parts.netloc, parts.path or "/", "", ""))

    def connect() -> Channel:
        from onefold.net.websocket import WebSocket  # an extra, which two local stores do not need

        return WebSocket(url, token=token, answer_s=answer_s, greeted=False)

    return connect


def beside(records: Records) -> Callable[[], Channel]:
    """A function that connects to a store of this process, as if it were served."""
    from onefold.reconcile.peer import Peer

    def connect() -> Channel:
        peer = Peer(records)
        return exchange.Pipe(peer.answer, peer.close)

    return connect


EVER: Final = INFINITY - 1
"""The latest time that a record can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What a reconciliation may cost, and how it retries."""

    session: Limits = field(default_factory=Limits)
    """Of one look: rounds, bytes, ids that we lack by the peer's account."""
    look_s_max: float = 3_600
    """Total wait for the answers of a look, against a server that never ends. Our own work does not count."""
    frame_size_max: int = 500_000
    """Of our messages and the peer's; published relays have the same. The peer may set a lower limit for its own."""
    tries: int = 5
    """Give up after so many in a row that moved no record."""
    pause_s: float = 0.25
    """Before the first retry; doubles with each further one."""
    pause_s_max: float = 5

    def __post_init__(self) -> None:
        for name, least in (("look_s_max", 0), ("tries", 1), ("pause_s", 0), ("frame_size_max", frame_size_min("xor"))):
            if not (value := getattr(self, name)) >= least:
                raise Misuse(f"{name} is {value}, must be at least {least}", **{name: value})


@dataclass(slots=True)
class Found:
    opened: OpenReply
    here: int
    """How many records were compared on this side; on the other, ``opened.records``."""
    have: list[bytes] = field(default_factory=list)
    need: list[bytes] = field(default_factory=list)
    """Ids that only this side has, and that only the peer has."""
    both_ways: int = 0
    """Wire xor: ids that were named in both directions, and are in neither list: both sides have them, at two times, or
    one side treats bounds differently."""
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __str__(self) -> str:
        trips = f"{self.rounds:,} round trip{'s' * (self.rounds != 1)}"
        return f"after {trips}: {len(self.have):,} only here, {len(self.need):,} only there"


def find_ids(
    items: Items, channel: Channel, opening: Opening, limits: ClientLimits | None = None, *,
    say: Callable[[str], object] = lambda line: None, clock: Callable[[], float] = time.monotonic,
) -> Found:  # fmt: skip
    """Find exactly which ids only these records have, and which only the peer has.

    ``items`` is the whole set; only the times of the opening are compared. The session stays open for a transfer;
    closing the channel ends it. ``say`` gets a line of progress per round.

    `Misuse`: the peer refuses. `BadInput`: it breaks the protocol, or a limit. `ConnectionError`, `Busy`: try again.
    """
    limits = limits or ClientLimits()
    waited_s = 0.0
    channel.send(exchange.write_document(exchange.OPEN, opening))
    opened = exchange.read_document(OpenReply, _answer(channel, exchange.OPENED))
    window = items if (opening.since, opening.until) == (0, EVER) else Window(items, opening.since, opening.until)
    if opened.message_bytes_max <= frame_size_min(opening.wire):
        raise BadInput(f"the peer accepts {opened.message_bytes_max} bytes a message, fewer than the protocol needs")
    size = min(limits.frame_size_max, opened.message_bytes_max - 1)  # one byte is for the kind of frame
    session = Session(window, opening.wire, opening.id_size, frame_size_max=size, limits=limits.session)
    look = Found(opened, len(window))
    message: bytes | None = session.initiate()
    while message is not None:
        began = clock()
        channel.send(bytes((exchange.MESSAGE,)) + message)
        reply = _answer(channel, exchange.MESSAGE)
        waited_s += clock() - began
        if waited_s > limits.look_s_max:
            text = f"the session is over: answers took more than {limits.look_s_max:g} s in all, look_s_max"
            raise SessionLimit(text, rounds=look.rounds)
        message, have, need = session.reconcile(reply[1:])
        look.have += have
        look.need += need
        spent = session.spent
        look.rounds, look.bytes_up, look.bytes_down = spent.rounds, spent.bytes_out, spent.bytes_in
        say(str(look))
    look.both_ways = session.both_ways
    return look


def _answer(channel: Channel, kind: int) -> bytes:
    frame = channel.receive()
    if frame[:1] == bytes((kind,)):
        return frame
    if frame[:1] != bytes((exchange.ERROR,)):
        like = ", as a NIP-77 relay does" if frame[:1] == b"[" else ""
        raise BadInput(f"the peer answers with a frame of kind {frame[:1]!r}{like}, expected {chr(kind)!r}")
    trouble = exchange.read_document(exchange.Trouble, frame)
    text = "the peer says " + plain(f"{trouble.error}: {trouble.text}")
    if trouble.error == "busy":
        raise Busy(text)
    if trouble.error in LATER:
        raise ConnectionAbortedError(text)
    raise Misuse(text, error=trouble.error, offset=trouble.offset)


class Transfer:
    """The books of a transfer, over all its connections."""

    def __init__(self, records: Records, opening: Opening, say: Callable[[str], object]) -> None:
        self.pulled, self.pushed = Tally(), Tally()
        self._records, self._opening, self._say = records, opening, say
        self._refused: set[bytes] = set()  # rejected once: not tried again over the next connection
        self._in_flight: deque[list[bytes]] = deque()
        self.first: tuple[int, int] | None = None  # by the first look: how many ids only this side, only the peer had
        self.rounds = self.bytes_up = self.bytes_down = 0
        self.counted = (0, 0)  # pulled and pushed before the last look, so its counts include them
        self.stalls = 0  # looks in a row that found no fewer differences than the one before
        self._missing: int | None = None

    @property
    def moved(self) -> int:
        """How many records reached the side that lacked them."""
        return _arrived(self.pulled) + _arrived(self.pushed)

    def looked(self, look: Found) -> None:
        """Count a new look. A record that was pushed without an answer has arrived if the peer no longer lacks it."""
        arrived = {id for batch in self._in_flight for id in batch}
        self._in_flight.clear()
        arrived.difference_update(look.have)
        self.pushed.arrive(len(arrived))
        self.pushed.judge(exchange.UNANSWERED, len(arrived))
        self.first = self.first or (len(look.have), len(look.need))
        before, self._missing = self._missing, len(look.have) + len(look.need)
        self.stalls = self.stalls + 1 if before is not None and self._missing >= before else 0
        self.rounds += look.rounds
        self.bytes_up += look.bytes_up
        self.bytes_down += look.bytes_down
        self.counted = _arrived(self.pulled), _arrived(self.pushed)

    def pull(self, channel: Channel, opened: OpenReply, need: Sequence[bytes]) -> None:
        ids = [id for id in need if id not in self._refused] if self._refused else need
        most = min(FETCH_IDS_MAX, max(1, (opened.message_bytes_max - 1) // self._records.id_size))
        batches: deque[Sequence[bytes]] = deque()
        again: list[bytes] = []  # requested, but did not fit into the answer
        at, to_go, size = 0, len(ids), min(FETCH_IDS, most)
        while batches or again or at < len(ids):
            while len(batches) < OUTSTANDING_MAX and (again or at < len(ids)):
                if again:
                    batch, again = again[:size], again[size:]
                else:
                    batch, at = list(ids[at : at + size]), at + size
                channel.send(exchange.write_ids(batch))
                batches.append(batch)
            wanted = batches.popleft()
            frame = _answer(channel, exchange.RECORDS)
            records = exchange.read_records(frame, self._records.id_size)
            # An answer is the first of the requested records, at least one.
            if not records or len(records) > len(wanted):
                raise BadInput(f"the peer sent {len(records)} records, {len(wanted)} were requested")
            for id, record in zip(wanted, records, strict=False):
                if id != record.id:
                    raise BadInput(f"the peer sent {record.id.hex()}, requested was {id.hex()}", id=record.id.hex())
            self._keep(records)
            self.pulled.arrive(len(records))  # not earlier: records that the store failed to take arrive again
            again += wanted[len(records) :]
            size = min(2 * size if len(records) == len(wanted) else len(records), most)
            size = max(1, min(size, len(records) * FRAME_BYTES // len(frame)))
            to_go -= len(records)
            self._say(f"pulled {self.pulled.received:,} records, {to_go:,} to go")

    def _keep(self, records: Sequence[Record]) -> None:
        """Store the records that are genuine and in the requested time; count all."""
        good: list[Record] = []
        faults: list[tuple[Answer, bytes]] = []
        for record in records:
            if record.body is None:
                faults.append((exchange.NOT_THERE, record.id))
            elif not record.genuine:
                faults.append((exchange.WRONG_ID, record.id))
            elif not self._opening.since <= record.timestamp <= self._opening.until:
                faults.append((exchange.WRONG_TIME, record.id))
            else:
                good.append(record)
        for new in self._records.add(good) if good else []:
            self.pulled.judge(exchange.STORED if new else exchange.KNOWN)
        for why, id in faults:
            self._refuse(self.pulled, why, id)

    def push(self, channel: Channel, opened: OpenReply, have: Sequence[bytes]) -> None:
        ids = [id for id in have if id not in self._refused] if self._refused else have
        end = self.pushed.received + len(ids)
        for batch in self._batches(opened, ids):
            self._in_flight.append([record.id for record in batch])
            channel.send(exchange.write_records(exchange.PUSH, batch))
            if len(self._in_flight) == OUTSTANDING_MAX:
                self._settle(channel, end)
        while self._in_flight:
            self._settle(channel, end)

    def _batches(self, opened: OpenReply, ids: Sequence[bytes]) -> Iterator[list[Record]]:
        batch: list[Record] = []
        most = min(opened.message_bytes_max, FRAME_BYTES) - 1
        room = most
        for at in range(0, len(ids), READ_IDS):
            chunk = ids[at : at + READ_IDS]
            for id, record in zip(chunk, self._records.read(chunk), strict=True):
                if record is None or record.body is None:
                    self.pushed.arrive()
                    self._refuse(self.pushed, exchange.NOT_THERE, id)
                    continue
                size = exchange.size_of(record)
                if len(record.body) > opened.record_bytes_max or size > opened.message_bytes_max - 1:
                    self.pushed.arrive()
                    self._refuse(self.pushed, exchange.TOO_LARGE, id)
                    continue
                if batch and size > room:
                    yield batch
                    batch, room = [], most
                batch.append(record)
                room -= size
        if batch:
            yield batch

    def _settle(self, channel: Channel, end: int) -> None:
        """Count the outcomes of the oldest batch in flight; ``end`` is the final number of pushed records."""
        outcomes = exchange.read_outcomes(_answer(channel, exchange.PUSHED))
        batch = self._in_flight[0]
        if len(outcomes) != len(batch):
            raise BadInput(f"the peer sent {len(outcomes)} outcomes, {len(batch)} records were pushed")
        self.pushed.arrive(len(self._in_flight.popleft()))
        for id, outcome in zip(batch, outcomes, strict=True):
            self.pushed.judge(outcome)
            if outcome.verdict is Verdict.REJECT:
                self._refused.add(id)
        self._say(f"pushed {self.pushed.received:,} records, {end - self.pushed.received:,} to go")

    def _refuse(self, books: Tally, why: Answer, id: bytes) -> None:
        books.judge(why)
        self._refused.add(id)


def _arrived(books: Tally) -> int:
    """How many of these records the receiving side holds now."""
    return books.received - books.count(Verdict.REJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What `reconcile` found and moved."""

    have: int
    need: int
    """By the first look: how many records only this side had, and only the peer."""
    rounds: int
    """Of all looks together, like the bytes, which do not include records."""
    bytes_up: int
    bytes_down: int
    found: Found
    """The last look, with its ids."""
    pulled: Tally
    pushed: Tally
    """The outcomes of the records that were pulled and pushed, as in `exchange.RULES`."""
    unpulled: int
    """Known differences that remain: moving them was not requested, or they were rejected."""
    unpushed: int
    here: int
    there: int
    """How many records this side holds now, and the peer by its own account, within the requested time."""
    connections: int
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether both sides held the same to begin with."""
        return not self.have and not self.need

    @property
    def settled(self) -> bool:
        """Whether both sides hold the same now, as far as this side can tell."""
        return not self.unpulled and not self.unpushed


def reconcile(
    records: Records, connect: Callable[[], Channel], *, wire: Literal["v1", "xor"] = "v1", pull: bool = True,
    push: bool = True, since: int = 0, until: int = EVER, limits: ClientLimits | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Reconciliation:  # fmt: skip
    """Pull what this store lacks, and push what the peer lacks, so that both hold the same.

    ``connect`` opens a channel to the peer; it is called once per try. Without ``pull`` and ``push`` nothing is moved,
    and the result says what differs. ``since`` and ``until`` (inclusive) limit it to records of that time.

    `ConnectionError` if ``limits.tries`` in a row moved nothing; records that were moved before stay.

    >>> from onefold.reconcile import open_records, record
    >>> here, there = open_records("memory://"), open_records("memory://")
    >>> _ = here.add([record(1, b"both"), record(2, b"here")]), there.add([record(1, b"both"), record(3, b"there")])
    >>> done = reconcile(here, beside(there))
    >>> done.have, done.need, done.settled, len(here), len(there)
    (1, 1, True, 3, 3)
    """
    limits = limits or ClientLimits()
    size, frame_size = records.id_size, limits.frame_size_max
    opening = Opening(wire=wire, id_size=size, frame_size_max=frame_size, since=since, until=until)
    transfer, started, pause_s = Transfer(records, opening, say), time.monotonic(), limits.pause_s
    connections = failures = 0
    while True:
        moved = transfer.moved
        try:
            with closing(connect()) as channel:
                connections += 1
                look = None  # frees the ids of the look before
                with closing(records.snapshot()) as snapshot:
                    look = find_ids(snapshot, channel, opening, limits, say=say)
                transfer.looked(look)
                pulling, pushing = pull and look.opened.bodies, push and look.opened.writable
                if pulling:
                    transfer.pull(channel, look.opened, look.need)
                if pushing:
                    transfer.push(channel, look.opened, look.have)
            break
        except (ConnectionError, Busy) as error:
            failures += 1
            if transfer.moved > moved:
                failures, pause_s = 0, limits.pause_s
            # Stalls catch a peer that claims to have stored records that it did not.
            if max(failures, transfer.stalls) >= limits.tries:
                tries = f"{limits.tries} tries" if limits.tries > 1 else "one try"
                raise ConnectionError(f"gave up after {tries}: {error}") from error
            say(f"trying again: {error}")
        time.sleep(pause_s * random.uniform(0.5, 1))
        pause_s = min(2 * pause_s, limits.pause_s_max)
    have, need = transfer.first or (0, 0)
    return Reconciliation(
        have=have, need=need, found=look, pulled=transfer.pulled.check(), pushed=transfer.pushed.check(),
        rounds=transfer.rounds, bytes_up=transfer.bytes_up, bytes_down=transfer.bytes_down,
        unpulled=transfer.pulled.count(Verdict.REJECT) if pulling else len(look.need),
        unpushed=transfer.pushed.count(Verdict.REJECT) if pushing else len(look.have),
        here=look.here + _arrived(transfer.pulled) - transfer.counted[0],
        there=look.opened.records + _arrived(transfer.pushed) - transfer.counted[1],
        connections=connections, seconds=time.monotonic() - started,
    )  # fmt: skip
