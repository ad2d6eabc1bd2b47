"""What was decided goes where it belongs: into the books, into the log, and back to the device.

The order is the guarantee. An acknowledgement tells the device that its frame is safe, so it is sent when the frame is
in the durable log, and not before; also where this reception stores nothing itself, because an earlier one did.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from onefold.engines.lorawan.answers import COORDINATOR_DOWN
from onefold.engines.lorawan.judge import Judged
from onefold.ports import Record
from onefold.services.gateway import records
from onefold.services.gateway.downlinks import Downlinks
from onefold.services.gateway.latency import Latency
from onefold.services.gateway.sessions import Item
from onefold.services.gateway.settings import GatewaySettings
from onefold.services.gateway.upstream import Upstream
from onefold.services.topic_settings import Clock
from onefold.services.topics import Topics
from onefold.tally import Tally
from onefold.verdict import Answer

UPLINKS: Final = "uplinks"
"""The topic of what goes upstream."""
RECEPTIONS: Final = "receptions"
"""The topic of everything, where that is kept."""


class Delivery:
    """The books, the log and the downlinks of a server.

    ``done`` is called when nothing is left to do for an item, with False if its record could not be stored.
    """

    def __init__(
        self, settings: GatewaySettings, topics: Topics, clock: Clock, done: Callable[[Item, bool], None]
    ) -> None:
        limits = settings.limits
        self.tally = Tally()
        self.statuses: Counter[tuple[Answer, str]] = Counter()
        """As the tally, by status too; empty: it was refused before it had one."""
        self.latency = Latency()
        """From the arrival of a reception to its answer."""
        self.downlinks = Downlinks(
            settings.region, settings.rx_delay_s, clock() << 10, lost_ms=round(1_000 * limits.lost_s)
        )
        self._server = settings.name
        self._grace_s = limits.grace_s
        self._clock = clock
        self._done = done
        self._uplinks = Upstream(
            topics.topic(UPLINKS), settings.name, self._stored, self._lost, batch_max=limits.batch_max
        )
        self._all: Upstream | None = None
        if settings.keep_all:
            self._all = Upstream(
                topics.topic(RECEPTIONS), settings.name, _nothing, _nothing, batch_max=4 * limits.batch_max,
                queued_max=limits.in_hand_max,
            )  # fmt: skip

    def record(self, item: Item, judged: Judged) -> bytes:
        """What is stored of it."""
        device = None if item.session is None else item.session.entry.device.dev_eui
        return records.record(self._server, item.reception, device, judged)

    def restore(self, record: bytes, then: Callable[[], None]) -> None:
        """Store what an earlier run had won; it is in that run's books."""
        self._uplinks.put(record, then)

    def decided(self, item: Item, judged: Judged) -> None:
        """This is final."""
        item.judged = judged
        item.decided = True
        self._book(judged.answer, judged.status if item.session is not None else "")
        self.latency.note(perf_counter() - item.at)
        up, down, record = judged.route.up, judged.route.down, None
        if up or self._all is not None:
            won = item.claimed is not None and item.claimed.won
            record = item.record if won and item.record is not None else self.record(item, judged)
            if self._all is not None:
                self._all.put(record)
        if up or down:
            self._uplinks.put(record if up else None, item)
        else:
            self._done(item, True)

    def give_up(self, item: Item) -> None:
        """It cannot be decided, by an error of ours: it goes nowhere. What it won, the next start will find."""
        item.decided = True
        self._book(COORDINATOR_DOWN, "")

    def refused(self, station: str, answer: Answer, told: str) -> None:
        """Something came in that is no reception."""
        self._book(answer, "")
        if self._all is not None:
            self._all.put(records.refused(self._server, station, self._clock(), *answer, told))

    def _book(self, answer: Answer, status: str) -> None:
        self.tally.judge(answer)
        self.statuses[answer, status] += 1

    def _stored(self, item: Item | Callable[[], None]) -> None:
        if not isinstance(item, Item):
            item()
            return
        judged, claimed, session = item.judged, item.claimed, item.session
        try:
            if judged and judged.route.down and claimed is not None and claimed.fcnt_down and session is not None:
                self.downlinks.acknowledge(item.reception, session.entry, claimed.fcnt_down, self._clock())
        finally:
            self._done(item, True)

    def _lost(self, item: Item | Callable[[], None]) -> None:
        if isinstance(item, Item):
            self._done(item, False)

    def tail(self, since_ms: int, least: int = 0) -> Iterator[Record]:
        """What went upstream in earlier runs since, and some before; at least so many of the last records. Blocks."""
        return self._uplinks.tail(since_ms, least)

    def problems(self) -> dict[str, str]:
        """What cannot be stored, and why."""
        found = {UPLINKS: self._uplinks.problem, RECEPTIONS: None if self._all is None else self._all.problem}
        return {name: problem for name, problem in found.items() if problem is not None}

    @property
    def unstored(self) -> int:
        """Records that were given up at the end."""
        return self._uplinks.unstored + (0 if self._all is None else self._all.unstored)

    @property
    def unkept(self) -> int:
        """Receptions that were to be kept, but too many waited for the disk: what goes upstream comes first."""
        return 0 if self._all is None else self._all.refused

    def tend(self) -> None:
        """What the topics owe by the clock alone. Blocks."""
        for upstream in (self._uplinks, self._all):
            if upstream is not None:
                upstream.topic.tend()

    async def close(self) -> None:
        """Store what is queued; the topics are their owner's."""
        for upstream in (self._uplinks, self._all):
            if upstream is not None:
                await upstream.close(self._grace_s)


def _nothing(item: object) -> None:
    """Nobody waits for what is stored of everything."""
