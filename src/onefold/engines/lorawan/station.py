"""Level 1: one network server, several stations ("Deduplication on the network server level").

The first station that heard a frame is remembered with its key. The same key from the same station is a resubmission:
the device missed its confirmation, or was restarted, or somebody replays. From another station it is a duplicate under
Drop and a soft duplicate else. A join request is only known or not known. What is not remembered is new.

Not in the ADR: what is expired is new to it, and a device whose confirmation was lost for longer than the expiry counts
twice. Devices wait for minutes before they try again, so ``last``, the key of the frame that was counted last, is known
for ever: it is a resubmission, from whatever station. (For a minute after that it is known as any other.) Likewise a
join request whose nonce was ``used``. Without these two, this is the ADR.

Another thing is not in the ADR and is off unless asked for: a station with two antennas, or one that hears a strong
signal on an image frequency too, reports one transmission twice within milliseconds. With ``echo_ms`` that is no
resubmission, or the device would be answered twice.
"""

from onefold.engines.lorawan.answers import (
    COUNTED_BEFORE,
    ECHOED,
    FORGOTTEN,
    JOIN_REPEATED,
    NEW_FRAME,
    NEW_JOIN,
    NONCE_USED,
    OTHER_STATION,
    RESUBMITTED,
)
from onefold.engines.lorawan.sightings import Sightings
from onefold.engines.lorawan.status import (
    DROP,
    DUPLICATE,
    NOT_DUPLICATE,
    RESUBMISSION,
    SOFT_DUPLICATE,
    Status,
    Strategy,
)
from onefold.errors import Misuse
from onefold.verdict import Answer


class Stations:
    """What the stations of one server have heard.

    >>> stations = Stations()
    >>> for station in ("a", "a", "b"):
    ...     status, answer = stations.data(b"key", station, Strategy.MARK, 0)
    ...     print(status, "/", answer)
    not_duplicate / FIRST new_frame
    resubmission / REPEAT resubmitted
    soft_duplicate / REPEAT other_station
    """

    __slots__ = ("echo_ms", "sightings")

    def __init__(self, sightings: Sightings | None = None, *, echo_ms: int = 0) -> None:
        if echo_ms < 0:
            raise Misuse(f"echo_ms is {echo_ms}, must be 0 or more", echo_ms=echo_ms)
        self.sightings = Sightings() if sightings is None else sightings
        self.echo_ms = echo_ms

    def data(
        self, key: bytes, station: str, strategy: Strategy, now_ms: int, last: bytes | None = None
    ) -> tuple[Status, Answer]:
        """What a data frame with this key is, heard by this station now; ``last``: what its device counted last."""
        before = self.sightings.see(key, station, now_ms)
        if before is None and key == last:
            return RESUBMISSION, COUNTED_BEFORE
        if before is None:
            return NOT_DUPLICATE, FORGOTTEN if self.sightings.forgot(now_ms) else NEW_FRAME
        if station != before.station:
            answer = OTHER_STATION
        elif self.echo_ms and 0 <= now_ms - before.own_ms < self.echo_ms:
            # Since *this* station heard it: a true resubmission may have reached another station a moment ago. Below 0
            # the clock was set back between the two, and a device that asks again must get its answer.
            answer = ECHOED
        else:
            return RESUBMISSION, RESUBMITTED
        return DUPLICATE if strategy is DROP else SOFT_DUPLICATE, answer

    def join(self, key: bytes, station: str, now_ms: int, *, used: bool = False) -> tuple[Status, Answer]:
        """What a join request with this key is; ``used``: its device has joined with it before."""
        if self.sightings.see(key, station, now_ms) is not None:
            return DUPLICATE, JOIN_REPEATED
        if used:
            return DUPLICATE, NONCE_USED
        return NOT_DUPLICATE, FORGOTTEN if self.sightings.forgot(now_ms) else NEW_JOIN

    def forget(self, key: bytes) -> None:
        """The frame was refused: a copy of it must not pass as a duplicate of something good."""
        self.sightings.forget(key)
