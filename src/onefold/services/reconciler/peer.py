"""The server's end of one connection, without I/O: a frame in, a frame out. What frames there are: `links.exchange`.

Every frame is answered, whatever it holds. An error closes the session, if one is open, and lets go of its snapshot;
the connection stays, and can open another one. Only after ``troubles_max`` errors it is `over`.

Records go out and come in apart from the session's snapshot: what is fetched is what is there now. A record that is not
there (any more), or whose bytes are not here, goes out without a body and with the timestamp 0. One that comes in is
held against its id first, and all the good ones of a frame are kept in one go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from onefold.engines.negentropy import Record
from onefold.errors import BadInput
from onefold.links import exchange
from onefold.links.exchange import Opened, Opening, Taken, Trouble
from onefold.ports.records import Records
from onefold.services.reconciler.books import Books
from onefold.services.reconciler.limits import ReconcileLimits
from onefold.services.reconciler.session import Hosted, Refused, failed
from onefold.services.reconciler.transfer import NOT_TAKEN, OUTCOMES

READ_MAX: Final = 16
"""Records that are read at once to fill a frame: a store may hold large ones, and the last of them may not fit."""


class Peer:
    """Answers the frames of one connection; by any thread, one at a time.

    >>> from onefold.engines.negentropy import record
    >>> from onefold.links.pipe import Pipe
    >>> from onefold.stores.memory.records import MemoryRecords
    >>> records = MemoryRecords()
    >>> _ = records.add([record(5, b"1 coffee")])
    >>> peer = Peer(records)
    >>> pipe = Pipe(peer.answer, peer.close)
    >>> pipe.send(exchange.tell(exchange.OPEN, Opening()))
    >>> exchange.told(Opened, pipe.receive()).records
    1
    >>> pipe.send(exchange.fetch([record(5, b"1 coffee").id]))
    >>> exchange.carried(pipe.receive(), id_size=32)[0].body
    b'1 coffee'
    """

    def __init__(
        self, records: Records, limits: ReconcileLimits | None = None, clock: Callable[[], float] = time.thread_time,
        books: Books | None = None, *, writable: bool = True, bodies: bool = True,
    ) -> None:  # fmt: skip
        """``books`` are shared by all connections of a server; ``bodies``: whether the store has any.

        ``clock`` is that of the CPU of a thread: what answering costs.
        """
        self._records = records
        self._limits = limits or ReconcileLimits()
        self._clock = clock
        self._books = books or Books()
        self._writable, self._bodies = writable, bodies
        self._lock = threading.Lock()
        self._session: Hosted | None = None
        self._fetched = self._pushed = self._troubles = 0
        self._verbs: dict[int, Callable[[Hosted, bytes], bytes]] = {
            exchange.MESSAGE: self._reconcile,
            exchange.FETCH: self._fetch,
            exchange.PUSH: self._push,
        }

    @property
    def over(self) -> bool:
        """Whether the connection should be closed: it had as many errors as one may have."""
        return self._troubles >= self._limits.troubles_max

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

    def waited(self, silence_s: float) -> None:
        """The connection was silent for so long, before whatever came next."""
        with self._lock:
            if self._session is not None:
                self._session.waited(silence_s)

    def expire(self) -> None:
        """Let go of what has no time left; for a connection that goes on with something else."""
        with self._lock:
            try:
                if self._session is not None:
                    self._session.transfer()
            except Refused:
                self._end()

    def close(self) -> None:
        """Let go of the session. May be called twice."""
        with self._lock:
            self._end()

    def _answer(self, frame: bytes) -> bytes:
        if not frame:
            raise Refused("bad_frame", "an empty frame", 0)
        if len(frame) > self._limits.message_bytes_max:
            most = self._limits.message_bytes_max
            raise Refused("frame", f"a frame of {len(frame)} bytes, message_bytes_max is {most}")
        if frame[0] == exchange.OPEN:
            return self._open(frame)
        if frame[0] == exchange.CLOSE:
            self._end()
            return bytes((exchange.CLOSED,))
        verb = self._verbs.get(frame[0])
        if verb is None:
            raise Refused("bad_frame", f"0x{frame[0]:02x} is no kind of frame that a client sends", 0)
        if self._session is None:
            raise Refused("not_open", f"{chr(frame[0])} belongs to a session, and none is open")
        return verb(self._session, frame)

    def _open(self, frame: bytes) -> bytes:
        opening = exchange.told(Opening, frame)
        if self._session is not None:
            raise Refused("bad_frame", "a session is open on this connection: close it first", 0)
        self._session = Hosted(self._records, opening, self._limits, self._clock, self._books)
        self._fetched = self._pushed = 0
        return exchange.tell(
            exchange.OPENED,
            Opened(
                records=self._session.records,
                bodies=self._bodies,
                writable=self._writable,
                message_bytes_max=self._limits.message_bytes_max,
                record_bytes_max=self._limits.record_bytes_max,
            ),
        )

    def _reconcile(self, session: Hosted, frame: bytes) -> bytes:
        return bytes((exchange.MESSAGE,)) + session.reconcile(frame[1:])

    def _fetch(self, session: Hosted, frame: bytes) -> bytes:
        session.transfer()
        ids = exchange.fetched(frame, self._records.id_size)
        found = list(self._filling(ids))
        self._fetched += len(found) or 1  # to ask for nothing is work too
        if self._fetched > self._limits.needs_max:
            raise Refused("needs", f"the session is over: more than {self._limits.needs_max} records were fetched")
        self._books.count("fetched", len(found))
        return exchange.carry(exchange.RECORDS, found)

    def _filling(self, ids: Sequence[bytes]) -> Iterator[Record]:
        """The first of these records, as many as fit into a frame; at least one."""
        room = self._limits.message_bytes_max - 1
        for start in range(0, len(ids), READ_MAX):
            some = ids[start : start + READ_MAX]
            found = self._records.read(some) if self._bodies else [None] * len(some)
            for place, (id, record) in enumerate(zip(some, found, strict=True), start):
                told = Record(0, id) if record is None or record.body is None else record
                room -= exchange.size_of(told)
                if room < 0 and place:
                    return
                yield told

    def _push(self, session: Hosted, frame: bytes) -> bytes:
        if not self._writable:
            raise Refused("read_only", "this server takes no records")
        session.transfer()
        records = exchange.carried(frame, self._records.id_size)
        self._books.arrive(len(records))
        try:
            taken = self._store(records)
        except BaseException:
            self._books.judge(NOT_TAKEN, len(records))
            raise
        for judged in taken:
            self._books.judge(OUTCOMES[judged])
        return exchange.pushed(taken)

    def _store(self, records: Sequence[Record]) -> list[Taken]:
        """Keep those of them that are what they say; what became of each."""
        self._pushed += len(records) or 1
        if self._pushed > self._limits.pushes_max:
            raise Refused("pushes", f"the session is over: more than {self._limits.pushes_max} records were pushed")
        taken = [self._judged(record) for record in records]
        good = [place for place, judged in enumerate(taken) if judged is Taken.STORED]
        for place, new in zip(good, self._records.add([records[place] for place in good]), strict=True):
            if not new:
                taken[place] = Taken.KNOWN
        return taken

    def _judged(self, record: Record) -> Taken:
        """Whether a record may be kept, before the store is asked."""
        if len(record.body or b"") > self._limits.record_bytes_max:
            return Taken.TOO_LARGE
        return Taken.STORED if record.genuine else Taken.WRONG_ID

    def _refuse(self, refused: Refused) -> bytes:
        self._end()
        self._troubles += 1
        self._books.trouble(refused.name)
        trouble = Trouble(error=refused.name, text=str(refused), offset=refused.offset)
        return exchange.tell(exchange.ERROR, trouble)

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
