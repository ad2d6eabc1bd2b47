"""The way upstream: records into the durable log, many with one sync, and whoever waits for that is told.

The server is the producer; its records are numbered without gaps from where the log ends. A write that fails is tried
again with the same numbers until it works, so nothing is stored twice and nothing is left out; meanwhile what is in
hand grows, and the server stops to read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from onefold.errors import StoreFailed
from onefold.ports import Record
from onefold.services.topic import Topic
from onefold.verdict import Verdict

RETRY_S: Final = (0.05, 2.0)
"""The first wait and the longest; in between it doubles."""
LINGER_S: Final = 0.01
"""A record waits so long for others to share its sync. Devices listen a second later, and the disk is the claims' too:
with fewer syncs of the log, decisions are quicker."""
TAIL_STEP: Final = 10_000
MESSAGE_KIND: Final = 0
log: Final = logging.getLogger("onefold.gateway")


class Upstream:
    """One topic, written by one server. Lives on one event loop."""

    def __init__(
        self,
        topic: Topic,
        producer: str,
        stored: Callable[[Any], None],
        lost: Callable[[Any], None],
        *,
        batch_max: int = 512,
        queued_max: int | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why nothing can be stored; None: it can."""
        self.unstored = 0
        """Records that were given up at the end."""
        self.refused = 0
        """Records that were not taken, for too many were queued."""
        self.topic = topic
        self._producer = producer
        self._stored = stored
        self._lost = lost
        self._batch_max = batch_max
        self._queued_max = queued_max
        self._began = topic.log.end
        self._next = topic.last_sequence_id(producer) + 1
        self._queue: deque[tuple[bytes | None, Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="onefold-upstream")
        self._worker: asyncio.Task[None] | None = None
        self._enough = asyncio.Event()

    def put(self, record: bytes | None, item: Any = None) -> None:
        """Store a record; then ``stored`` is called with the item, or ``lost`` if it had to be given up at the end.

        None: there is nothing to store, only to wait for all before it. Beyond ``queued_max`` nothing is taken."""
        if self._queued_max is not None and len(self._queue) >= self._queued_max:
            self.refused += 1
            return
        self._queue.append((record, item))
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    def __len__(self) -> int:
        return len(self._queue)

    async def close(self, seconds: float) -> None:
        """Store what is queued, for so long at most."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=seconds)
        self._enough.set()
        while self._worker is not None:
            await asyncio.wait([self._worker])
        self._pool.shutdown(wait=False)

    def tail(self, since_ms: int, least: int = 0) -> Iterator[Record]:
        """The messages that earlier runs have stored since, and some before; at least so many of the last records.

        Oldest first. Blocks."""
        records = self.topic.log
        start = self._began
        if records.start >= start:  # all of it is gone by retention
            return
        while start > records.start:
            start = max(records.start, start - TAIL_STEP)
            first = next(iter(records.read(start, start + 1)))
            if first.time_ms < since_ms and self._began - start >= least:
                break
        yield from (record for record in records.read(start, self._began) if record.kind == MESSAGE_KIND)

    async def _work(self) -> None:
        try:
            while self._queue:
                if len(self._queue) < self._batch_max and not self._enough.is_set():
                    await asyncio.sleep(LINGER_S)
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
                records = [record for record, _ in batch if record is not None]
                tell = self._stored
                if records and not await self._store(records):
                    self.unstored += len(records)
                    log.error("%d records were not stored: %s", len(records), self.problem)
                    tell = self._lost
                for _, item in batch:
                    if item is not None:
                        self._tell(tell, item)
        finally:
            self._worker = None

    @staticmethod
    def _tell(tell: Callable[[Any], None], item: Any) -> None:
        """Whatever becomes of one, the others are told, too."""
        try:
            tell(item)
        except Exception as error:
            log.error("upstream: unexpected: %s: %s", type(error).__name__, error)

    async def _store(self, records: list[bytes]) -> bool:
        messages = list(zip(range(self._next, self._next + len(records)), records, strict=True))
        wait = RETRY_S[0]
        while True:
            try:
                await self._loop.run_in_executor(self._pool, self._publish, messages)
            except Exception as error:  # of whatever kind: it is not stored, and must be
                if self.problem is None:
                    log.error("nothing can be stored: %s: %s", type(error).__name__, error)
                self.problem = str(error) or type(error).__name__
                if self._enough.is_set():
                    return False
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_S[1])
                continue
            if self.problem is not None:
                log.error("records are stored again")
                self.problem = None
            self._next += len(records)
            return True

    def _publish(self, messages: list[tuple[int, bytes]]) -> None:
        for receipt in self.topic.publish(self._producer, messages):
            # A repeat is what an earlier try of the same batch stored.
            if receipt.verdict not in (Verdict.FIRST, Verdict.REPEAT):
                raise StoreFailed(f"a record was answered {receipt.verdict} {receipt.reason}")
