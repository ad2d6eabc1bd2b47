"""The transfer: once it is known what either side lacks, the records themselves.

    pull    ask for ids, a few frames ahead; the peer answers with the first of them that fit into a frame, and the rest
            is asked for again. Each record is held against its id before it is kept; a batch is one `add`
    push    records in frames as large as the peer takes them, a few on their way; it says of each what became of it

Arrivals and verdicts are counted apart, and compared at the end: what came in a frame, or was sent in one that was
answered, against what the store or the peer said of each record. A record is booked when its fate is known, once. So a
transfer can be cut off anywhere: what was booked is kept, and the
rest is found again by the next look. Only for what was pushed and not answered a cut leaves doubt: if the next look
finds it at the peer, it is booked as UNSURE, since nobody can tell by whom it got there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from onefold.errors import BadInput, Busy, Misuse
from onefold.reconcile.exchange import (
    ERROR,
    PUSH,
    PUSHED,
    RECORDS,
    Opening,
    OpenReply,
    PushReply,
    Trouble,
    carried,
    carry,
    fetch,
    outcomes,
    size_of,
    told,
)
from onefold.reconcile.records import Channel, Record, Records
from onefold.tally import Tally
from onefold.text import plain
from onefold.verdict import Answer, Verdict

OUTSTANDING_MAX: Final = 4
"""Frames on their way: enough to keep a line busy while a store writes, and few enough to hold in memory."""
FETCH_IDS: Final = 16
FETCH_IDS_MAX: Final = 4_096
"""Ids of the first frame, and of any; in between by how large the answers are."""
FRAME_BYTES: Final = 256 << 10
"""Of a frame of several records, either way, even if the peer takes or gives more. Frames on their way are held in
memory, and a ping waits behind them: with a megabyte each, a line of 1 Mbit/s is taken for dead."""
READ_IDS: Final = 64
"""Records that are read from the store at once; each may have a megabyte."""

LATER: Final = frozenset({"store_failed", "time", "needs", "pushes", "not_open"})
"""Troubles that a new session does not have, or not at once: it takes up where this one ended."""

STORED: Final = Answer(Verdict.FIRST, "stored")
KNOWN: Final = Answer(Verdict.REPEAT, "known")
UNANSWERED: Final = Answer(Verdict.UNSURE, "unanswered")
WRONG_ID: Final = Answer(Verdict.REJECT, "wrong_id")
WRONG_TIME: Final = Answer(Verdict.REJECT, "wrong_time")
NOT_THERE: Final = Answer(Verdict.REJECT, "not_there")
TOO_LARGE: Final = Answer(Verdict.REJECT, "too_large")

RULES: Final[Mapping[Answer, str]] = {
    STORED: "It was not there, and is kept now.",
    KNOWN: "It came by another way in the meantime.",
    UNANSWERED: "It was pushed, the connection was lost before the answer, and the next look found it there.",
    WRONG_ID: "Its time and bytes do not hash to its id; it was not kept.",
    WRONG_TIME: "It is genuine, and lies outside of the time that was asked about; it was not kept.",
    NOT_THERE: "The side that is said to have it has no bytes for it: it knows the id alone, or it is gone.",
    TOO_LARGE: "It is larger than the peer takes a record; it was not sent.",
}
"""What can become of a record, for people."""

NOT_TAKEN: Final = Answer(Verdict.UNSURE, "not_taken", retry=True)
"""Of a server's books: a frame of records that it refused or could not store. The peer is told, and looks again."""

OUTCOMES: Final[Mapping[PushReply, Answer]] = {
    PushReply.STORED: STORED,
    PushReply.KNOWN: KNOWN,
    PushReply.WRONG_ID: WRONG_ID,
    PushReply.TOO_LARGE: TOO_LARGE,
}


def answer(channel: Channel, kind: int) -> bytes:
    """The peer's next frame, which must be of this kind."""
    frame = channel.receive()
    if frame[:1] == bytes((kind,)):
        return frame
    if frame[:1] != bytes((ERROR,)):
        raise BadInput(f"the peer answers with a frame of kind {frame[:1]!r}, expected {chr(kind)!r}")
    trouble = told(Trouble, frame)
    text = "the peer says " + plain(f"{trouble.error}: {trouble.text}")
    if trouble.error == "busy":
        raise Busy(text)
    if trouble.error in LATER:
        raise ConnectionAbortedError(text)
    raise Misuse(text, error=trouble.error, offset=trouble.offset)


class Transfer:
    """The books of a transfer, over as many connections as it takes."""

    def __init__(self, records: Records, opening: Opening, say: Callable[[str], object]) -> None:
        self.pulled, self.pushed = Tally(), Tally()
        self._records, self._opening, self._say = records, opening, say
        self._refused: set[bytes] = set()  # rejected once: they are not tried again over the next connection
        self._on_their_way: deque[list[bytes]] = deque()

    @property
    def moved(self) -> int:
        """How many records reached the side that lacked them; if it does not grow, nothing goes on."""
        return sum(books.received - books.count(Verdict.REJECT) for books in (self.pulled, self.pushed))

    def looked(self, have: Sequence[bytes]) -> None:
        """A new look found what the peer lacks: of what was pushed and not answered, the rest did arrive."""
        lost = {id for batch in self._on_their_way for id in batch}
        self._on_their_way.clear()
        lost.difference_update(have)
        self.pushed.arrive(len(lost))
        self.pushed.judge(UNANSWERED, len(lost))

    # --- pull ---------------------------------------------------------------------------------------------------

    def pull(self, channel: Channel, opened: OpenReply, need: Sequence[bytes]) -> None:
        """Fetch these records, verify and keep them."""
        ids = self._untried(need)
        most = min(FETCH_IDS_MAX, max(1, (opened.message_bytes_max - 1) // self._records.id_size))
        asked: deque[Sequence[bytes]] = deque()
        again: list[bytes] = []  # asked for, and they did not fit into the answer
        at, left, size = 0, len(ids), min(FETCH_IDS, most)
        while asked or again or at < len(ids):
            while len(asked) < OUTSTANDING_MAX and (again or at < len(ids)):
                if again:
                    batch, again = again[:size], again[size:]
                else:
                    batch, at = list(ids[at : at + size]), at + size
                channel.send(fetch(batch))
                asked.append(batch)
            wanted = asked.popleft()
            frame = answer(channel, RECORDS)
            got = carried(frame, self._records.id_size)
            self._check(wanted, got)
            self._keep(got)
            self.pulled.arrive(len(got))  # not before: what the store could not take comes again
            again += wanted[len(got) :]
            size = min(2 * size if len(got) == len(wanted) else len(got), most)
            size = max(1, min(size, len(got) * FRAME_BYTES // len(frame)))
            left -= len(got)
            self._say(f"pulled {self.pulled.received:,} records, {left:,} to go")

    def _check(self, wanted: Sequence[bytes], got: Sequence[Record]) -> None:
        """The first of those that were asked for, at least one: whatever else comes is no answer."""
        if not got or len(got) > len(wanted):
            raise BadInput(f"the peer sent {len(got)} records for {len(wanted)} that were asked for")
        for id, record in zip(wanted, got, strict=False):
            if id != record.id:
                raise BadInput(f"the peer sent {record.id.hex()}, asked for was {id.hex()}", id=record.id.hex())

    def _keep(self, got: Sequence[Record]) -> None:
        held = [(record, self._wrong(record)) for record in got]
        good = [record for record, wrong in held if wrong is None]
        for new in self._records.add(good) if good else []:
            self.pulled.judge(STORED if new else KNOWN)
        for record, wrong in held:
            if wrong is not None:
                self._refuse(self.pulled, wrong, record.id)

    def _wrong(self, record: Record) -> Answer | None:
        if record.body is None:
            return NOT_THERE
        if not record.genuine:
            return WRONG_ID
        return None if self._opening.since <= record.timestamp <= self._opening.until else WRONG_TIME

    # --- push ---------------------------------------------------------------------------------------------------

    def push(self, channel: Channel, opened: OpenReply, have: Sequence[bytes]) -> None:
        """Send these records, those that have bytes and that the peer can take."""
        ids = self._untried(have)
        end = self.pushed.received + len(ids)
        for batch in self._batches(opened, ids):
            self._on_their_way.append([record.id for record in batch])
            channel.send(carry(PUSH, batch))
            if len(self._on_their_way) == OUTSTANDING_MAX:
                self._settle(channel, end)
        while self._on_their_way:
            self._settle(channel, end)

    def _batches(self, opened: OpenReply, ids: Sequence[bytes]) -> Iterator[list[Record]]:
        """The records, as many at once as fit into a frame of the peer."""
        batch: list[Record] = []
        most = min(opened.message_bytes_max, FRAME_BYTES) - 1
        room = most
        for at in range(0, len(ids), READ_IDS):
            some = ids[at : at + READ_IDS]
            for id, record in zip(some, self._records.read(some), strict=True):
                if record is None or record.body is None:
                    self.pushed.arrive()
                    self._refuse(self.pushed, NOT_THERE, id)
                    continue
                size = size_of(record)
                if len(record.body) > opened.record_bytes_max or size > opened.message_bytes_max - 1:
                    self.pushed.arrive()
                    self._refuse(self.pushed, TOO_LARGE, id)
                    continue
                if batch and size > room:
                    yield batch
                    batch, room = [], most
                batch.append(record)
                room -= size
        if batch:
            yield batch

    def _settle(self, channel: Channel, end: int) -> None:
        """Book what the peer says of the oldest batch that is on its way; in the end there are so many in the books."""
        taken = outcomes(answer(channel, PUSHED))
        batch = self._on_their_way[0]
        if len(taken) != len(batch):
            raise BadInput(f"the peer tells of {len(taken)} records, {len(batch)} were pushed")
        self.pushed.arrive(len(self._on_their_way.popleft()))
        for id, outcome in zip(batch, taken, strict=True):
            booked = OUTCOMES[outcome]
            if booked.verdict is Verdict.REJECT:
                self._refuse(self.pushed, booked, id)
            else:
                self.pushed.judge(booked)
        self._say(f"pushed {self.pushed.received:,} records, {end - self.pushed.received:,} to go")

    # ------------------------------------------------------------------------------------------------------------

    def _refuse(self, books: Tally, why: Answer, id: bytes) -> None:
        books.judge(why)
        self._refused.add(id)

    def _untried(self, ids: Sequence[bytes]) -> Sequence[bytes]:
        return [id for id in ids if id not in self._refused] if self._refused else ids
