"""The acknowledgement of a confirmed uplink: made with the counter that the claim gave, sent through the station that
heard the winning reception, and looked after until that station says that it was on the air.

A device listens twice after it has sent: ``rx_delay_s`` later on the first window's frequency, a second later on the
other's. What is not at the station by then is not sent: it would disturb others and reach nobody.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from onefold.engines.lorawan.frames import DataUp
from onefold.engines.lorawan.mic import ack_down
from onefold.services.gateway.reception import Downlink, Reception
from onefold.services.gateway.regions import Region
from onefold.services.gateway.registry import Entry

OUTSTANDING_MAX: Final = 100_000
SECOND_WINDOW_MS: Final = 1_000


@dataclass
class Downlinks:
    """Sends acknowledgements, and counts what becomes of them."""

    region: Region
    rx_delay_s: int
    next_number: int
    """Unique in this server also over restarts, where it begins with the time."""
    lost_ms: int = 30_000
    sent: int = 0
    transmitted: int = 0
    lost: int = 0
    """Sent, and no station said that it was on the air."""
    late: int = 0
    """Not sent, for the device does not listen any more."""
    gone: int = 0
    """Not sent, for the station is not there any more."""

    def __post_init__(self) -> None:
        self._outstanding: OrderedDict[int, int] = OrderedDict()

    def acknowledge(self, reception: Reception, entry: Entry, fcnt_down: int, now_ms: int) -> bool:
        """Confirm this uplink; whether a station has it in hand now."""
        frame, radio, device = reception.frame, reception.radio, entry.device
        if not isinstance(frame, DataUp) or entry.nwk_skey is None:
            return False
        if device.device_class == "A" and now_ms - reception.received_ms > 1_000 * self.rx_delay_s + SECOND_WINDOW_MS:
            self.late += 1
            return False
        downlink = Downlink(
            pdu=ack_down(nwk_skey=entry.nwk_skey, dev_addr=frame.dev_addr, fcnt=fcnt_down),
            dev_eui=device.dev_eui,
            device_class=device.device_class,
            rx_delay_s=self.rx_delay_s,
            rx1=self.region.rx1(radio.frequency_hz, radio.data_rate),
            rx2=self.region.rx2,
            number=self.next_number,
        )
        self.next_number += 1
        if reception.back is None or not reception.back.send(downlink):
            self.gone += 1
            return False
        self.sent += 1
        self._outstanding[downlink.number] = now_ms
        self.expire(now_ms)
        return True

    def was_transmitted(self, number: int) -> None:
        """A station says that it was on the air."""
        if self._outstanding.pop(number, None) is not None:
            self.transmitted += 1

    def expire(self, now_ms: int) -> None:
        """Give up those of which nobody said anything for too long; so do those that a clock which was ahead dated."""
        waiting = self._outstanding
        while waiting and (len(waiting) > OUTSTANDING_MAX or abs(now_ms - next(iter(waiting.values()))) > self.lost_ms):
            waiting.popitem(last=False)
            self.lost += 1

    def figures(self) -> dict[str, int]:
        """What became of them."""
        return {name: getattr(self, name) for name in ("sent", "transmitted", "lost", "late", "gone")}
