"""After a start: what an earlier run heard is known, and what it won and did not store is stored.

The counters are in their store, so only the memory of level 1 is gone. The log has it: whatever was stored within the
expiry was heard. And a run that died between winning a frame and storing it left the record with the store of the
claim, for by then all other servers had lost that frame.

Some of what it left is in the log, if it died before it could say so. A record is found there by what was heard, where
and when, whatever the clock said when it was written: the log is read from well before, and never less than a server
can have left behind.

What cannot be read, of another version or damaged, is nobody's: in the log it is passed over, in the store it stays.
"""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from onefold.engines.lorawan.server import Unfinished
from onefold.engines.lorawan.sightings import Sightings
from onefold.services.gateway.claiming import FINISHED_MAX, ClaimDesk
from onefold.services.gateway.delivery import Delivery
from onefold.services.gateway.records import FORMAT
from onefold.services.topic_settings import Clock

MARGIN_MS: Final = 600_000
"""A clock that was set may be off by so much."""
LEAST: Final = 2 * FINISHED_MAX
"""Records that are looked at in any case: what was not finished yet, with as much again that had no claim."""
KEY: Final = b'"key":"'
KEY_DIGITS: Final = 64
log: Final = logging.getLogger("onefold.gateway")


class Recovery:
    """The bridge between two runs of one server. ``ticks`` is the clock of level 1, which nobody sets."""

    def __init__(self, sightings: Sightings, delivery: Delivery, clock: Clock, ticks: Clock) -> None:
        self.recovered = 0
        """Records that were won and had not been stored."""
        self.unreadable = 0
        """Those that cannot be read, and are still where they were."""
        self._sightings = sightings
        self._delivery = delivery
        self._clock = clock
        self._ticks = ticks

    def remember(self, since_ms: int) -> None:
        """A frame that was stored since then and comes again is no new one. Blocks."""
        for stored in self._delivery.tail(since_ms):
            heard = _Heard.of(stored.payload)
            if heard is not None and stored.time_ms >= since_ms:
                self._see(heard)

    def sort_out(self, unfinished: Sequence[Unfinished]) -> Callable[[ClaimDesk], None]:
        """Which of these are stored, and which are not? Blocks; what comes of it is for the event loop."""
        if not unfinished:
            return _nothing
        left = [(each, heard) for each in unfinished if (heard := _Heard.of(each.body.encode())) is not None]
        stored = self._stored([heard for _, heard in left])
        missing: list[tuple[Unfinished, _Heard]] = []
        for each, heard in left:  # a station may hear one frame twice in a millisecond: which of them is stored?
            body = each.body.encode()
            if body in stored.get(heard, ()):
                stored[heard].remove(body)
            else:
                missing.append((each, heard))
        missing = [(each, heard) for each, heard in missing if not (stored.get(heard) and stored[heard].pop())]
        return partial(self._recover, unfinished, left, {each.number for each, _ in missing})

    def _stored(self, wanted: Sequence["_Heard"]) -> dict["_Heard", list[bytes]]:
        """The records of these receptions."""
        found: dict[_Heard, list[bytes]] = {heard: [] for heard in wanted}
        if not found:
            return found
        keys = {heard.key.encode() for heard in found}
        for record in self._delivery.tail(min(heard.received_ms for heard in found) - MARGIN_MS, LEAST):
            at = record.payload.find(KEY) + len(KEY)
            if record.payload[at : at + KEY_DIGITS] in keys:  # all others need not be parsed
                heard = _Heard.of(record.payload)
                if heard in found:
                    found[heard].append(record.payload)
        return found

    def _recover(
        self, unfinished: Sequence[Unfinished], left: Sequence[tuple[Unfinished, "_Heard"]], missing: set[int],
        desk: ClaimDesk,
    ) -> None:  # fmt: skip
        """Store what was won and is not in the log; then the store need not keep it."""
        bad = {each.number for each in unfinished} - {each.number for each, _ in left}
        if bad:
            self.unreadable += len(bad)
            log.error("store %s: %d messages of an earlier run cannot be read, and stay there; the first is number %d",
                      desk.name, len(bad), min(bad))  # fmt: skip
        for each, heard in left:
            self._see(heard)
            if each.number in missing:
                self.recovered += 1
                self._delivery.restore(each.body.encode(), partial(desk.finish, each.number))
            else:
                desk.finish(each.number)

    def _see(self, heard: "_Heard") -> None:
        """By our clock it was so long ago; not in the future, whatever that clock said then."""
        ago_ms = max(0, self._clock() - heard.received_ms)
        self._sightings.see(bytes.fromhex(heard.key), heard.station, self._ticks() - ago_ms)


class _Heard(NamedTuple):
    """One reception; what became of it may differ between two records of it."""

    key: str
    station: str
    received_ms: int

    @classmethod
    def of(cls, record: bytes) -> "_Heard | None":
        """None: it is nothing that we have written."""
        try:
            row = json.loads(record)
            if row["v"] != FORMAT:
                return None
            heard = cls(row["key"], row["station"], row["received_ms"])
            good = len(bytes.fromhex(heard.key)) == KEY_DIGITS // 2 and type(heard.received_ms) is int
            return heard if good and isinstance(heard.station, str) else None
        except (ValueError, TypeError, LookupError, RecursionError):
            return None


def _nothing(desk: ClaimDesk) -> None:
    """There was nothing left."""
