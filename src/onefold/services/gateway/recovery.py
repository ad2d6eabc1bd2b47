"""After a start: what an earlier run heard is known, and what it won and did not store is stored.

The counters are in their store, so only the memory of level 1 is gone. The log has it: whatever was stored within the
expiry was heard. And a run that died between winning a frame and storing it left the record with the store of the
claim, for by then all other servers had lost that frame.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from onefold.engines.lorawan.server import Claim, Unfinished
from onefold.engines.lorawan.sightings import Sightings
from onefold.services.gateway.claiming import ClaimDesk
from onefold.services.gateway.delivery import Delivery


class Recovery:
    """The bridge between two runs of one server."""

    def __init__(self, server: str, sightings: Sightings, delivery: Delivery) -> None:
        self.recovered = 0
        """Records that were won and had not been stored."""
        self._server = server
        self._sightings = sightings
        self._delivery = delivery

    def remember(self, since_ms: int) -> None:
        """A frame that was stored since then and comes again is no new one."""
        for stored in self._delivery.tail(since_ms):
            self._see(_Heard.of(stored.payload))

    def recover(self, desk: ClaimDesk, unfinished: Sequence[Unfinished]) -> None:
        """Store what was won, unless it is in the log already; then the store need not keep it."""
        if not unfinished:
            return
        heard = [_Heard.of(body.encode()) for _, _, body in unfinished]
        since_ms = min(each.received_ms for each in heard)
        stored = {_Heard.of(record.payload) for record in self._delivery.tail(since_ms)}
        for (device, fcnt_up, body), each in zip(unfinished, heard, strict=True):
            self._see(each)
            claim = Claim(device, self._server, fcnt_up)
            if each in stored:
                desk.finish(claim)
            else:
                self.recovered += 1
                self._delivery.restore(body.encode(), partial(desk.finish, claim))

    def _see(self, heard: "_Heard") -> None:
        self._sightings.see(bytes.fromhex(heard.key), heard.station, heard.received_ms)


class _Heard(NamedTuple):
    """One reception; what became of it may differ between two records of it."""

    key: str
    station: str
    received_ms: int

    @classmethod
    def of(cls, record: bytes) -> "_Heard":
        row = json.loads(record)
        return cls(row["key"], row["station"], row["received_ms"])
