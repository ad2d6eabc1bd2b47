"""The feed: each message of a log is sent to a queue once, with a token.

The log is a source (see `plans`), and its mark is the offset of the last record that was taken. Records are taken in
chunks; a chunk begins after the mark and ends where the log ends now, or at a limit. Two feeds of one log may cut it
differently, so a chunk is only taken while the mark is still where the chunk begins. Records that are no messages
(openings, conflicts) are skipped, and the mark moves past them.

A message's body is the record's payload, which must be JSON; or a document that the log makes of the whole record,
whose payload may be anything. The caller passes the log: for ``onefold outbox feed`` it is that of a topic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import sleep
from typing import Any, Final, NamedTuple, Protocol

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.outbox.endpoint import Endpoint
from onefold.outbox.plans import OUTGOING_MAX, RECOVERIES, Out, Outcome, check_queue, mark_of, outgoings
from onefold.outbox.runner import run_one

CHUNK_MAX: Final = 500
CHUNK_BYTES_MAX: Final = 4 << 20
"""Of the payloads of a chunk, which are written to an outbox in one transaction."""
POLL_S: Final = 0.2


class FeedRecord(NamedTuple):
    offset: int
    payload: bytes
    is_message: bool = True
    document: Any = None
    """The body of the message; None: the payload, which must be JSON."""


class FeedLog(Protocol):
    """An append-only log, which may remove its oldest records."""

    @property
    def name(self) -> str:
        """Feeds of two logs with one name need two endpoints."""

    @property
    def start(self) -> int:
        """The first offset that is still kept."""

    @property
    def end(self) -> int:
        """One more than the offset of the last durable record."""

    def read(self, start: int, end: int) -> Iterator[FeedRecord]:
        """The records from ``start`` up to, not including, ``end``."""


@dataclass(slots=True)
class Fed:
    mark: int = -1
    """The offset of the last record that was taken; -1: none."""
    sent: int = 0
    resumed: int = 0
    """Messages of a chunk that an earlier feed began and this one finished."""


class Feed:
    """Sends the messages of one log to one queue. Marks belong to an endpoint: two logs of one name need two."""

    def __init__(self, log: FeedLog, to: str, endpoint: Endpoint, *, chunk_max: int = CHUNK_MAX) -> None:
        if not 1 <= chunk_max <= OUTGOING_MAX:
            raise Misuse(f"chunk_max is {chunk_max}, must be from 1 to {OUTGOING_MAX:,}", chunk_max=chunk_max)
        self._log = log
        self._to = check_queue(to)
        self._source = f"{log.name}>{self._to}"
        self._endpoint = endpoint
        self._chunk_max = chunk_max
        self.fed = Fed()

    def run(
        self, *, follow: bool = False, stop: threading.Event | None = None,
        tell: Callable[[Fed], None] = lambda fed: None,
    ) -> Fed:  # fmt: skip
        """Take all records; with ``follow``, wait for more until ``stop`` is set. ``tell`` is called after a chunk."""
        stop = stop or threading.Event()
        self._resume()
        while not stop.is_set():
            if self._take():
                tell(self.fed)
            elif not follow:
                break
            else:
                sleep(POLL_S)  # not stop.wait: a signal handler that sets it could wait for a lock held here
        return self.fed

    def _resume(self) -> None:
        key, world = self._endpoint.key(self._source), self._endpoint.world
        entity = world.entities.load([key])[0]
        for name, entry in entity.outbox.items():
            if run_one(world, RECOVERIES[self._endpoint.plan](key, name)) is Outcome.RESUMED:
                self.fed.resumed += len(entry.outgoing)
        self.fed.mark = mark_of(entity.state)

    def _take(self) -> bool:
        """Take the next chunk; False if there is none."""
        start, first = self.fed.mark + 1, self._log.start
        if start < first and self.fed.mark >= 0:
            raise Misuse(
                f"{self._source}: the records {start} to {first - 1} were removed before they were taken: keep the log"
                " for longer than the feed is ever stopped",
                start=start, first=first,
            )  # fmt: skip
        start, end = max(start, first), self._log.end
        if start > end:
            raise Misuse(f"{self._source}: {start} records were taken, the log has {end}: it is not the same log")
        if start == end:
            return False
        mark, size = start - 1, 0
        outs: list[Out] = []
        offsets: list[int] = []
        for record in islice(self._log.read(start, end), self._chunk_max):
            size += len(record.payload)
            if outs and size > CHUNK_BYTES_MAX:
                break
            mark = record.offset
            if record.is_message:
                offsets.append(record.offset)
                outs.append(Out(self._to, self._body(record) if record.document is None else record.document))
        try:
            outcome = self._endpoint.take(self._source, mark, outs, after=self.fed.mark)
        except BadInput:
            for offset, out in zip(offsets, outs, strict=True):
                try:
                    outgoings([out], self._to)
                except BadInput as error:
                    text = f"{self._source}: record {offset} cannot be sent: {error}"
                    raise BadInput(text, offset=offset) from error
            raise
        if outcome is Outcome.APPLIED:
            self.fed.sent += len(outs)
            self.fed.mark = mark
        else:  # another feed took it: read how far that one is
            self._resume()
        return True

    def _body(self, record: FeedRecord) -> Any:
        try:
            return read_json(record.payload, f"{self._source}: the payload of record {record.offset}")
        except BadInput as error:
            raise BadInput(f"{error}; send whole records instead", offset=record.offset) from error
