"""The feed: the messages of a log become messages with tokens, each once.

The log is a source (see `plans`), and its mark is the offset of the last record that was taken. Records are taken in
chunks; a chunk begins behind the mark and goes as far as the log does. So two feeds of one log could cut it in
different ways, and each would believe its own: that is why a chunk is only taken while the mark still stands where the
chunk begins. What of the log is no message (openings, conflicts) is passed over, and the mark with it.

A message's body is the payload, which must be JSON then; or a document that the log makes of the whole record, whose
payload may be anything. Which log it is, and how it is read, is the caller's business: ``onefold outbox feed`` passes
the log of a topic.
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
"""Of the payloads of a chunk: they are written to an outbox in one go."""
POLL_S: Final = 0.2


class FeedRecord(NamedTuple):
    offset: int
    payload: bytes
    is_message: bool = True
    document: Any = None
    """What is sent instead of the payload; None: the payload, which must be JSON."""


class FeedLog(Protocol):
    """A log that only grows, and that may lose its oldest records."""

    @property
    def name(self) -> str:
        """Two logs of one name need two endpoints."""

    @property
    def start(self) -> int:
        """The first offset that is still kept."""

    @property
    def end(self) -> int:
        """The offset behind the last durable record."""

    def read(self, start: int, end: int) -> Iterator[FeedRecord]:
        """The records from ``start`` up to, not including, ``end``."""


@dataclass(slots=True)
class Fed:
    mark: int = -1
    """The offset of the last record that was taken; -1: none."""
    sent: int = 0
    resumed: int = 0
    """Messages of a chunk that was cut off before, and is finished now."""


class Feed:
    """Feeds one log into one queue. The marks are the endpoint's: two logs of one name need two endpoints."""

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
        """Take all that is there; with ``follow`` also what comes, until ``stop`` is set. ``tell``: after a chunk."""
        stop = stop or threading.Event()
        self._resume()
        while not stop.is_set():
            if self._take():
                tell(self.fed)
            elif not follow:
                break
            else:
                sleep(POLL_S)  # not stop.wait: a signal that sets it could wait for a lock that this has
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
                f"{self._source}: the records {start} to {first - 1} were removed before they were taken: the log must"
                " be kept for longer than the feed stands still",
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
        else:  # somebody else is at it: see how far they are
            self._resume()
        return True

    def _body(self, record: FeedRecord) -> Any:
        try:
            return read_json(record.payload, f"{self._source}: the payload of record {record.offset}")
        except BadInput as error:
            raise BadInput(f"{error}; send whole records instead", offset=record.offset) from error
