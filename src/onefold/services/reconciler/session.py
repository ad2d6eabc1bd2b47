"""One session of the server's side, within its limits, whichever envelope its messages come in.

It has a seat (there are ``sessions_max`` of them), a snapshot of the records and an engine. Whatever goes wrong is a
`Refused` with a short name that does not change:

    bad_frame     it is not written as it must be, or has no place here
    bad_open      a session like this cannot be: its wire, size of ids, frame or times
    bad_message   a message breaks the protocol; the offset is the byte where
    frame         the message is larger than message_bytes_max
    rounds  bytes  needs  pushes  work   the session has cost as much as a session may
    time          its peer was silent for as long as it may be, all together
    busy          sessions_max are open: try again later
    not_open      there is no session
    read_only     nothing is taken here
    store_failed  the store could not do it: try again later
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from onefold.engines.negentropy import Session, SessionLimit, Violation, Window
from onefold.errors import BadInput, Misuse, OnefoldError
from onefold.links.exchange import VERSION, Opening
from onefold.ports.records import Records
from onefold.services.reconciler.books import Books
from onefold.services.reconciler.limits import ReconcileLimits

log: Final = logging.getLogger("onefold.reconcile")
log.addHandler(logging.NullHandler())  # a server shows it; a peer in this process raises what it is told


class Refused(BadInput):
    """A peer gets no answer but this: a name, a line for people, and the byte where, if it was one."""

    def __init__(self, name: str, text: str, offset: int | None = None) -> None:
        super().__init__(text, name=name, offset=offset)
        self.name, self.offset = name, offset


def failed(error: Exception) -> Refused:
    """What a peer is told of an error of ours: it is logged, and what nobody expected is not shown."""
    log.error("%s: %s", type(error).__name__, error)
    return Refused("store_failed", str(error) if isinstance(error, OnefoldError) else type(error).__name__)


class Hosted:
    """A session with one peer; it must be closed."""

    def __init__(
        self, records: Records, opening: Opening, limits: ReconcileLimits, clock: Callable[[], float], books: Books
    ) -> None:
        """Open it, or `Refused`: bad_open, busy, store_failed. The clock is that of the CPU of this thread."""
        _check(opening, records.id_size)
        if not books.sit(limits.sessions_max):
            raise Refused("busy", f"{limits.sessions_max} sessions are open, as many as there may be: try again later")
        self._limits, self._clock, self._books = limits, clock, books
        self._silence_s = self._work_s = 0.0
        self._closed = False
        try:
            self._snapshot = records.snapshot()
        except Exception as error:
            self._leave()
            raise failed(error) from error
        try:
            window = Window(self._snapshot, opening.since, opening.until)
            frame = min(opening.frame_size_max or limits.frame_size_max, limits.frame_size_max)
            self._session = Session(window, opening.wire, frame_size_max=frame, limits=limits.engine)
            self.records = len(window)
        except Misuse as error:
            self.close()
            raise Refused("bad_open", str(error)) from error
        except Exception as error:
            self.close()
            raise failed(error) from error

    def waited(self, silence_s: float) -> None:
        """The peer was silent for so long: neither what the server took nor what it waited for its turn is in it."""
        self._silence_s += silence_s

    @property
    def settled(self) -> bool:
        """Whether its time for messages is over."""
        return self._silence_s > self._limits.look_silence_s_max

    def reconcile(self, message: bytes) -> bytes:
        """The reply to a message of the protocol."""
        if self.settled:
            raise _silent(self._limits.look_silence_s_max)
        if self._work_s > self._limits.work_s_max:
            most = self._limits.work_s_max
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
        assert reply is not None  # only a client's session ever ends by itself
        self._books.count("bytes_in", len(message))
        self._books.count("bytes_out", len(reply))
        return reply

    def transfer(self) -> None:
        """Records are to be moved: `Refused` if it is too late; the snapshot goes when no message may follow."""
        if self._silence_s > self._limits.transfer_silence_s_max:
            raise _silent(self._limits.transfer_silence_s_max)
        if self.settled:
            self._snapshot.close()

    def close(self) -> None:
        """Let go of the snapshot and the seat. May be called twice."""
        if not self._closed:
            self._leave()
            self._snapshot.close()

    def _leave(self) -> None:
        self._closed = True
        self._books.leave()


def _silent(most_s: float) -> Refused:
    return Refused("time", f"the session is over: its peer was silent for more than {most_s:g} s in all")


def _check(opening: Opening, id_size: int) -> None:
    if opening.version != VERSION:
        raise Refused("bad_open", f"version is {opening.version}, this server speaks {VERSION}")
    if opening.id_size != id_size:
        raise Refused("bad_open", f"id_size is {opening.id_size}, the ids here have {id_size} bytes")
