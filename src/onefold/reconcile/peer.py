"""The server's end of one connection, without I/O: a frame in, a frame out. The frames are those of `exchange`.

Every frame gets an answer. An error closes the session, if one is open, and its snapshot; the connection stays open
for another session, until it is `over` after ``troubles_max`` errors. An error has a stable short name:

    bad_frame     malformed, or out of turn
    bad_open      an impossible session: version, wire, id size, frame size or times
    bad_message   a message breaks the protocol; the offset is that of the fault
    frame         a frame is larger than message_bytes_max
    rounds  bytes  needs  pushes  work   the session has reached this limit
    time          the peer's silences add up to the limit
    busy          sessions_max are open: try again later
    not_open      there is no session
    read_only     the server takes no records
    store_failed  the store failed: try again later

A session is limited by what its peer does: its silences, and the work that it causes (rounds, bytes, records, CPU
seconds). The time that the server takes for an answer, or before it gets to one, never counts: a busy server is not
the peer's fault.

A fetch returns what the store holds now, whatever the session's snapshot holds. A record that is missing, or whose
bytes are missing, is sent without a body and with timestamp 0. A pushed record is checked against its id, and all
valid records of a frame are stored in one transaction. Arrivals are counted when a frame is read, verdicts when the
store has answered; the two must agree when the server stops (`pending` on the metrics page, 0 at rest).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from math import inf
from typing import Final

from onefold.errors import BadInput, Misuse, OnefoldError
from onefold.net.limits import HttpLimits
from onefold.reconcile import FRAME_SIZE_MIN, Limits, Record, Session, SessionLimit, Violation, Window, exchange
from onefold.reconcile.exchange import Opening, OpenReply
from onefold.reconcile.records import Records
from onefold.tally import Tally
from onefold.verdict import Answer


class PeerBooks:
    """What a server counts over all its connections; thread-safe.

    >>> books = PeerBooks()
    >>> books.open_session(1), books.open_session(1)
    (True, False)
    >>> books.close_session()
    >>> books.sessions, books.of("sessions")
    (0, 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._troubles: Counter[str] = Counter()
        self._pushed = Tally()
        self.sessions = 0  # open now

    def open_session(self, sessions_max: int) -> bool:
        with self._lock:
            if self.sessions >= sessions_max:
                return False
            self.sessions += 1
            self._counts["sessions"] += 1
            return True

    def close_session(self) -> None:
        with self._lock:
            self.sessions -= 1

    def count(self, what: str, many: int = 1) -> None:
        with self._lock:
            self._counts[what] += many

    def of(self, what: str) -> int:
        return self._counts[what]

    def arrive(self, many: int) -> None:
        with self._lock:
            self._pushed.arrive(many)

    def judge(self, answer: Answer, many: int = 1) -> None:
        with self._lock:
            self._pushed.judge(answer, many)

    def pushed(self) -> Tally:
        with self._lock:
            return Tally() + self._pushed

    def trouble(self, name: str) -> None:
        with self._lock:
            self._troubles[name] += 1

    def troubles(self) -> dict[str, int]:
        with self._lock:
            return dict(self._troubles)


ID_BYTES_MAX: Final = 32
ENVELOPE_BYTES: Final = 1_024
"""Of a NIP-77 message, beside its hex digits; a subscription's name has at most 64 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileLimits(HttpLimits):
    """The limits of the server and its sessions; reaching one is an error that names it."""

    connections_max: int = 256
    """At the same time. Each may hold a message of ``message_bytes_max``."""
    sessions_max: int = 64
    """At the same time, over all connections. Each holds a snapshot of the records, which may cost the store."""
    subscriptions_max: int = 20
    """NIP-77 sessions per connection; strfry's relays allow as many."""
    message_bytes_max: int = 1 << 20
    """Of any incoming message, and of a frame of records that is sent; websockets has the same default."""
    frame_size_max: int = 500_000
    """Of a protocol message that is sent; strfry's relays have the same. As hex in NIP-77 it is still below 1 MiB."""
    rounds_max: int = 64
    """Messages per session, beside those that frame limits force; a billion records need 8."""
    bytes_max: int = 1 << 30
    """Of a session's messages, both ways; a million records that all differ take 64 MB."""
    needs_max: int = 10_000_000
    """Records fetched per session; a client that needs more opens another session."""
    pushes_max: int = 10_000_000
    """Records pushed per session."""
    record_bytes_max: int = 512 << 10
    """Body of a pushed record; strfry's events have at most 64 KiB."""
    work_s_max: float = 60
    """CPU of the server for the messages of a session: a million records that all differ take three seconds."""
    look_silence_s_max: float = 600
    """Sum of the peer's silences up to its last message: ten times ``idle_s``. A snapshot should not live long."""
    transfer_silence_s_max: float = 3_600
    """Sum of the peer's silences up to the last record: 10 GB at 3 MB/s. A client may continue in another session."""
    idle_s: float = 60
    """One silence on a connection; nginx allows as much on a proxied one."""
    write_s: float = 20
    """For sending one answer; after that the peer does not read, and its connection is aborted."""
    troubles_max: int = 8
    """Errors per connection; the last one closes it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise Misuse(f"{field.name} is {value}, must be above 0", **{field.name: value})
        if self.frame_size_max < FRAME_SIZE_MIN:
            raise Misuse(f"frame_size_max is {self.frame_size_max}, must be at least {FRAME_SIZE_MIN}")
        size = self.message_bytes_max
        rooms = {"record_bytes_max": size - exchange.HEAD.size - ID_BYTES_MAX - 1}
        rooms["frame_size_max"] = (size - ENVELOPE_BYTES) // 2
        for name, most in rooms.items():
            if (value := getattr(self, name)) > most:
                why = f"to fit into message_bytes_max, {size}"
                raise Misuse(f"{name} is {value}, must be at most {most}, {why}")


log: Final = logging.getLogger("onefold.reconcile")
log.addHandler(logging.NullHandler())  # a server prints these; a client in this process gets them as errors


class Refused(BadInput):
    """The error that a peer gets: a name, a line for people, and the offset of the fault if there is one."""

    def __init__(self, name: str, text: str, offset: int | None = None) -> None:
        super().__init__(text, name=name, offset=offset)
        self.name, self.offset = name, offset


def failed(error: Exception) -> Refused:
    """An error of the server as the peer sees it. It is logged; the text of an unexpected one is not sent."""
    log.error("%s: %s", type(error).__name__, error)
    return Refused("store_failed", str(error) if isinstance(error, OnefoldError) else type(error).__name__)


class OpenSession:
    """A session with one peer; close it."""

    def __init__(
        self, records: Records, opening: Opening, limits: ReconcileLimits, clock: Callable[[], float], books: PeerBooks
    ) -> None:
        """Open it, or `Refused`: bad_open, busy, store_failed. ``clock`` is the CPU clock of the calling thread."""
        if opening.version != exchange.VERSION:
            raise Refused("bad_open", f"version is {opening.version}, this server speaks {exchange.VERSION}")
        if opening.id_size != records.id_size:
            raise Refused("bad_open", f"id_size is {opening.id_size}, the ids here have {records.id_size} bytes")
        if not books.open_session(limits.sessions_max):
            raise Refused("busy", f"{limits.sessions_max} sessions are open, the limit: try again later")
        self._limits, self._clock, self._books = limits, clock, books
        self._silence_s = self._work_s = 0.0
        self._closing = ExitStack()
        self._closing.callback(books.close_session)
        try:
            self._snapshot = records.snapshot()
        except Exception as error:
            self.close()
            raise failed(error) from error
        self._closing.callback(self._snapshot.close)
        try:
            window = Window(self._snapshot, opening.since, opening.until)
            frame = min(opening.frame_size_max or limits.frame_size_max, limits.frame_size_max)
            most = Limits(rounds_max=limits.rounds_max, bytes_max=limits.bytes_max, needs_max=limits.needs_max)
            self._session = Session(window, opening.wire, frame_size_max=frame, limits=most)
            self.records = len(window)
        except Misuse as error:
            self.close()
            raise Refused("bad_open", str(error)) from error
        except Exception as error:
            self.close()
            raise failed(error) from error

    def waited(self, silence_s: float) -> None:
        """Add a silence of the peer, which includes none of the server's own time."""
        self._silence_s += silence_s

    @property
    def settled(self) -> bool:
        """Whether its time for protocol messages is over."""
        return self._silence_s > self._limits.look_silence_s_max

    def reconcile(self, message: bytes) -> bytes:
        if self.settled:
            raise _silent(self._limits.look_silence_s_max)
        if self._work_s > (most := self._limits.work_s_max):
            raise Refused("work", f"the session is over: it took more than {most:g} s of CPU, work_s_max")
        began = self._clock()
        try:
            reply = self._session.reconcile(message).reply
        except Violation as error:
            raise Refused("bad_message", str(error), error.values["offset"]) from error
        except SessionLimit as error:
            raise Refused("rounds" if "rounds" in error.values else "bytes", str(error)) from error
        except Exception as error:
            raise failed(error) from error
        finally:
            self._work_s += self._clock() - began
        assert reply is not None  # only a client's session ends by itself
        self._books.count("bytes_in", len(message))
        self._books.count("bytes_out", len(reply))
        return reply

    def transfer(self) -> None:
        """Allow moving records, or `Refused` if it is too late; closes the snapshot if no message may follow."""
        if self._silence_s > self._limits.transfer_silence_s_max:
            raise _silent(self._limits.transfer_silence_s_max)
        if self.settled:
            self._snapshot.close()

    def close(self) -> None:
        """Release the snapshot and the place among the open sessions. May be called twice."""
        self._closing.close()


def _silent(most_s: float) -> Refused:
    return Refused("time", f"the session is over: the peer was silent for more than {most_s:g} s in total")


READ_MAX: Final = 16
"""Records that are read at once to fill a frame: they may be large, and not all may fit."""


class PeerSessions:
    """The sessions of one connection, by name; thread-safe."""

    def __init__(self, records: Records, limits: ReconcileLimits, clock: Callable[[], float], books: PeerBooks) -> None:
        self._records, self._limits, self._clock, self._books = records, limits, clock, books
        self._lock = threading.Lock()
        self._sessions: dict[str, OpenSession] = {}
        self._troubles = 0

    @property
    def over(self) -> bool:
        """Whether the connection has had too many errors, and should be closed."""
        return self._troubles >= self._limits.troubles_max

    def waited(self, silence_s: float) -> None:
        """Add a silence of the peer to all open sessions."""
        with self._lock:
            for session in self._sessions.values():
                session.waited(silence_s)

    def close(self) -> None:
        with self._lock:
            for name in list(self._sessions):
                self._end(name)

    def _open(self, name: str, opening: Opening) -> OpenSession:
        session = OpenSession(self._records, opening, self._limits, self._clock, self._books)
        self._sessions[name] = session
        return session

    def _end(self, name: str) -> None:
        if (session := self._sessions.pop(name, None)) is not None:
            session.close()

    def _trouble(self, refused: Refused) -> None:
        self._troubles += 1
        self._books.trouble(refused.name)


ONLY: Final = ""
"""The name of the session; a connection with our own frames has one at a time."""


class Peer(PeerSessions):
    """Answers the frames of one connection.

    >>> from onefold.reconcile import record
    >>> from onefold.reconcile.exchange import Pipe
    >>> from onefold.reconcile.records import MemoryRecords
    >>> records = MemoryRecords()
    >>> _ = records.add([record(5, b"1 coffee")])
    >>> peer = Peer(records)
    >>> pipe = Pipe(peer.answer, peer.close)
    >>> pipe.send(exchange.write_document(exchange.OPEN, Opening()))
    >>> exchange.read_document(OpenReply, pipe.receive()).records
    1
    >>> pipe.send(exchange.write_ids([record(5, b"1 coffee").id]))
    >>> exchange.read_records(pipe.receive(), id_size=32)[0].body
    b'1 coffee'
    """

    def __init__(
        self, records: Records, limits: ReconcileLimits | None = None, clock: Callable[[], float] = time.thread_time,
        books: PeerBooks | None = None, *, writable: bool = True, bodies: bool = True, answer_bytes_max: float = inf,
    ) -> None:  # fmt: skip
        """``clock`` is the CPU clock of the calling thread; ``books`` are shared by all connections of a server.

        Frames of records are no larger than ``answer_bytes_max``, and a record that does not fit is sent without its
        body: a frame that the client refuses would end its connection, and every further one at the same record.
        """
        super().__init__(records, limits or ReconcileLimits(), clock, books or PeerBooks())
        self._writable, self._bodies, self._answer_bytes_max = writable, bodies, answer_bytes_max
        self._fetched = self._pushed = 0

    def answer(self, frame: bytes) -> bytes:
        """The answer to a frame; never raises."""
        with self._lock:
            try:
                return self._answer(frame)
            except Refused as refused:
                return self._refuse(refused)
            except BadInput as error:
                return self._refuse(Refused("bad_frame", str(error), error.values.get("offset")))
            except Exception as error:
                return self._refuse(failed(error))

    def expire(self) -> None:
        """Close a session whose time is up, while the connection is used for NIP-77."""
        with self._lock:
            try:
                for session in self._sessions.values():
                    session.transfer()
            except Refused:
                self._end(ONLY)

    def _answer(self, frame: bytes) -> bytes:
        if not frame:
            raise Refused("bad_frame", "an empty frame", 0)
        if len(frame) > (most := self._limits.message_bytes_max):
            raise Refused("frame", f"a frame of {len(frame)} bytes, message_bytes_max is {most}")
        kind, session = frame[0], self._sessions.get(ONLY)
        if kind == exchange.OPEN:
            return self._opened(frame)
        if kind == exchange.CLOSE:
            self._end(ONLY)
            return bytes((exchange.CLOSED,))
        if kind not in (exchange.MESSAGE, exchange.FETCH, exchange.PUSH):
            raise Refused("bad_frame", f"0x{kind:02x} is no kind of frame that a client sends", 0)
        if session is None:
            raise Refused("not_open", f"{chr(kind)} needs an open session")
        if kind == exchange.MESSAGE:
            return bytes((exchange.MESSAGE,)) + session.reconcile(frame[1:])
        return self._fetch(session, frame) if kind == exchange.FETCH else self._push(session, frame)

    def _opened(self, frame: bytes) -> bytes:
        opening = exchange.read_document(Opening, frame)
        if self._sessions:
            raise Refused("bad_frame", "a session is open on this connection: close it first", 0)
        self._fetched = self._pushed = 0
        reply = OpenReply(
            records=self._open(ONLY, opening).records, bodies=self._bodies, writable=self._writable,
            message_bytes_max=self._limits.message_bytes_max, record_bytes_max=self._limits.record_bytes_max,
        )  # fmt: skip
        return exchange.write_document(exchange.OPENED, reply)

    def _fetch(self, session: OpenSession, frame: bytes) -> bytes:
        session.transfer()
        records = list(self._first_records(exchange.read_ids(frame, self._records.id_size)))
        self._fetched += len(records) or 1  # an empty request is work too
        if self._fetched > self._limits.needs_max:
            raise Refused("needs", f"the session is over: more than {self._limits.needs_max} records were fetched")
        self._books.count("fetched", len(records))
        return exchange.write_records(exchange.RECORDS, records)

    def _first_records(self, ids: Sequence[bytes]) -> Iterator[Record]:
        """The first of these records that fit into a frame; at least one."""
        room = min(self._limits.message_bytes_max, self._answer_bytes_max) - 1
        for start in range(0, len(ids), READ_MAX):
            chunk = ids[start : start + READ_MAX]
            records = self._records.read(chunk) if self._bodies else [None] * len(chunk)
            for number, (id, record) in enumerate(zip(chunk, records, strict=True), start):
                if record is None or record.body is None or exchange.size_of(record) >= self._answer_bytes_max:
                    record = Record(0, id)
                room -= exchange.size_of(record)
                if room < 0 and number:
                    return
                yield record

    def _push(self, session: OpenSession, frame: bytes) -> bytes:
        if not self._writable:
            raise Refused("read_only", "this server takes no records")
        session.transfer()
        records = exchange.read_records(frame, self._records.id_size)
        self._books.arrive(len(records))
        try:
            outcomes = self._store(records)
        except BaseException:
            self._books.judge(exchange.NOT_TAKEN, len(records))
            raise
        for outcome in outcomes:
            self._books.judge(outcome)
        return exchange.write_outcomes(outcomes)

    def _store(self, records: Sequence[Record]) -> list[Answer]:
        self._pushed += len(records) or 1
        if self._pushed > self._limits.pushes_max:
            raise Refused("pushes", f"the session is over: more than {self._limits.pushes_max} records were pushed")
        outcomes = []
        for record in records:
            if len(record.body or b"") > self._limits.record_bytes_max:
                outcomes.append(exchange.TOO_LARGE)
            else:
                outcomes.append(exchange.STORED if record.genuine else exchange.WRONG_ID)
        good = [number for number, outcome in enumerate(outcomes) if outcome is exchange.STORED]
        for number, new in zip(good, self._records.add([records[number] for number in good]), strict=True):
            if not new:
                outcomes[number] = exchange.KNOWN
        return outcomes

    def _refuse(self, refused: Refused) -> bytes:
        self._end(ONLY)
        self._trouble(refused)
        trouble = exchange.Trouble(error=refused.name, text=str(refused), offset=refused.offset)
        return exchange.write_document(exchange.ERROR, trouble)
