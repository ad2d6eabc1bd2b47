"""What a link hands to the service: one frame as one station heard it, and the way back to that station.

Three protocols bring receptions in: Basics Station over websockets, Semtech's UDP, ChirpStack's events over MQTT.
Behind this page nothing knows which: a station is the lower-case hex EUI of the gateway, and the way back is a `Back`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from onefold.engines.lorawan.frames import Frame


class Radio(NamedTuple):
    """How it came in."""

    frequency_hz: int
    data_rate: int
    """Its index in the region's table of up data rates."""
    rssi: float | None = None
    snr: float | None = None
    time_ms: int | None = None
    """The station's own clock, ms since 1970; None: it has none that can be trusted."""


class Downlink(NamedTuple):
    """A frame to transmit: ``rx_delay_s`` after the uplink in the first window, or a second later in the other."""

    pdu: bytes
    dev_eui: int
    device_class: str
    """``A`` or ``C``: one of class C listens to its second window all the time."""
    rx_delay_s: int
    rx1: tuple[int, int]
    """Frequency in Hz, data rate."""
    rx2: tuple[int, int]
    number: int
    """Unique in this server: the station names it when it has transmitted."""


class Back(Protocol):
    """The way back to the station, with what its protocol needs to know of the uplink (its clock, its antenna)."""

    def send(self, downlink: Downlink) -> bool:
        """Hand it to the station, which transmits it; False: the station is gone. Never blocks, never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Reception:
    """One frame, heard by one station."""

    frame: Frame
    station: str
    """Sixteen lower-case hex digits: ``0016c001ff10a235``."""
    radio: Radio
    back: Back | None = field(compare=False)
    """None: nothing can be transmitted there."""
    received_ms: int
    """This server's clock, ms since 1970."""


def station_name(eui: int) -> str:
    """How a station is called everywhere.

    >>> station_name(0x0016C001FF10A235)
    '0016c001ff10a235'
    """
    return f"{eui:016x}"
