"""Radio: receptions and downlinks, readers for the JSON of gateways, the regions, and the base class of links.

Three protocols bring receptions in: Basics Station over websockets, Semtech's UDP, ChirpStack's events over MQTT. The
service does not know which: a station is the lower-case hex EUI of the gateway, and downlinks go through a `Back`.

Foreign JSON is read field by field, each within its range; an error names the field and its shortened value. Times are
the exception: a gateway without a good clock still hears well, so a time that cannot be read counts as missing.

The regions are from the LoRaWAN regional parameters (RP002), their configuration for stations from the LNS protocol of
Basics Station: ``DRs`` are 16 triples of spreading factor (0: FSK, -1: none), bandwidth in kHz, and whether it is for
down frames only; ``sx1301_conf`` places two radios and tunes eight channels, one fast LoRa channel and one FSK channel
relative to them.
"""

import base64
import binascii
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from onefold.clock import Clock
from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.lorawan.frames import PHY_BYTES_MAX, Frame
from onefold.lorawan.rules import BUSY, MALFORMED
from onefold.verdict import Answer

log: Final = logging.getLogger("onefold.gateway")


class Radio(NamedTuple):
    frequency_hz: int
    data_rate: int
    """Its index in the region's table of up data rates."""
    rssi: float | None = None
    snr: float | None = None
    time_ms: int | None = None
    """The station's own clock, Unix time in milliseconds; None: it has no trustworthy one."""


Window: TypeAlias = tuple[int, int]
"""Frequency in Hz, data rate."""


class Downlink(NamedTuple):
    """A frame to transmit: ``rx_delay_s`` after the uplink in the first window, or a second later in the other."""

    pdu: bytes
    dev_eui: int
    device_class: str
    """``A`` or ``C``: class C always listens to its second window."""
    rx_delay_s: int
    rx1: Window
    rx2: Window
    number: int
    """Unique in this server: with it the station confirms the transmission."""


Back: TypeAlias = Callable[[Downlink], bool]
"""Has the station transmit a frame; knows what the protocol needs of the uplink, such as its clock and antenna. False:
the station is gone. Never blocks, never raises."""


@dataclass(frozen=True, slots=True)
class Reception:
    frame: Frame
    station: str
    """As `station_name` writes it."""
    radio: Radio
    back: Back | None = field(compare=False)
    """None: the station cannot transmit."""
    received_ms: int
    """This server's clock, Unix time in milliseconds."""


def station_name(eui: int) -> str:
    """The name of a station everywhere: ``0016c001ff10a235``."""
    return f"{eui:016x}"


def dashed(eui: int) -> str:
    """An EUI as Basics Stations write it: ``00-16-C0-01-FF-10-A2-35``."""
    return eui.to_bytes(8, "big").hex("-").upper()


SHOWN_MAX: Final = 60
FREQUENCY_HZ_MAX: Final = 2**32 - 1
GPS_EPOCH_MS: Final = 315_964_800_000
"""6 January 1980. No gateway is older, so an earlier clock was never set."""
GPS_LEAP_MS: Final = 18_000
"""GPS time is ahead of UTC by this since 2017, and no further leap second is announced."""
TIME_MS_MAX: Final = 2**53
FSK_BITS_PER_S: Final = 50_000
"""The one bit rate of FSK in LoRaWAN."""


def shown(value: object) -> str:
    """The value as an error may show it: one line, short, printable.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    if isinstance(value, dict | list):  # its text may be long, and deep
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    line = repr(value) if not isinstance(value, int) or abs(value) < 10**SHOWN_MAX else "a giant number"
    return line if len(line) <= SHOWN_MAX else line[:SHOWN_MAX] + "..."


def document(data: bytes | str, what: str) -> dict[str, Any]:
    value = read_json(data, what)
    if not isinstance(value, dict):
        raise BadInput(f"{what} is {shown(value)}, must be a JSON object")
    return value


def wrong(source: Mapping[str, Any], name: str, must: str) -> BadInput:
    """The error for a field with a wrong value."""
    value = shown(source[name]) if name in source else "missing"
    return BadInput(f"{name} is {value}, must be {must}", field=name)


def whole(source: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number within these bounds; 5.0 and true are refused."""
    value = source.get(name)
    if type(value) is not int or not low <= value <= high:
        raise wrong(source, name, f"a whole number, {low} to {high}")
    return value


def integer(source: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Like `whole`, but takes 868100000.0, too."""
    value = source.get(name)
    return whole({name: int(value)} if isinstance(value, float) and value.is_integer() else source, name, low, high)


def number(source: Mapping[str, Any], name: str, low: float, high: float) -> float:
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong(source, name, f"a number, {low:g} to {high:g}")
    return float(value)


def decibels(source: Mapping[str, Any], name: str) -> float | None:
    """A level in dB or dBm, or None if it is not given."""
    return None if source.get(name) is None else number(source, name, -1_000, 1_000)


def text(source: Mapping[str, Any], name: str) -> str:
    value = source.get(name)
    if not isinstance(value, str):
        raise wrong(source, name, "a string")
    return value


def part(source: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = source.get(name)
    if not isinstance(value, dict):
        raise wrong(source, name, "an object")
    return value


def octets(source: Mapping[str, Any], name: str, bytes_max: int = PHY_BYTES_MAX) -> bytes:
    """Bytes in base64; some gateways omit the padding, and Semtech's own example has the alphabet of URLs."""
    value = text(source, name)
    if len(value) > 4 * (bytes_max + 3) // 3:
        raise BadInput(f"{name} has {len(value)} characters, that is more than {bytes_max} bytes", field=name)
    plain = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise wrong(source, name, "base64") from None


def moment_ms(source: Mapping[str, Any], name: str) -> int | None:
    """Unix time in milliseconds from an ISO 8601 time (UTC if it names no zone); None: missing or invalid.

    >>> moment_ms({"time": "2013-03-31T16:21:17.528002Z"}, "time")
    1364746877528
    >>> moment_ms({"time": "1970-01-01T00:00:08Z"}, "time") is None
    True
    """
    value = source.get(name)
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
        since = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return trusted_ms(math.floor(since * 1_000))


def gps_ms(source: Mapping[str, Any], name: str) -> int | None:
    """Unix time in milliseconds from GPS time in milliseconds; None: missing or invalid.

    >>> gps_ms({"tmms": 1_384_000_018_000}, "tmms"), gps_ms({"tmms": "soon"}, "tmms")
    (1699964800000, None)
    """
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIME_MS_MAX:
        return None
    return trusted_ms(GPS_EPOCH_MS + math.floor(value) - GPS_LEAP_MS)


def trusted_ms(time_ms: int) -> int | None:
    """The time, or None if it is from a clock that was never set."""
    return time_ms if GPS_EPOCH_MS <= time_ms <= TIME_MS_MAX else None


Rate: TypeAlias = tuple[int, int, int]
NONE: Final[Rate] = (-1, 0, 0)
SUB_BAND: Final = 2
"""Of US915: channels 8 to 15 and 65, which The Things Network and Helium use."""


@dataclass(frozen=True, slots=True)
class Region:
    name: str
    station_name: str
    """Its name in Basics Station."""
    frequencies: tuple[int, int]
    rates: tuple[Rate, ...]
    rx1_rates: tuple[int, ...]
    """The data rate of the answer in the first window, by the data rate of the uplink."""
    rx2: Window
    max_eirp: float
    channels: tuple[tuple[int, int, int], ...]
    """Frequency, lowest and highest data rate up."""
    radio: dict[str, Any]

    def rx1(self, frequency: int, data_rate: int) -> Window:
        """The first receive window of a device."""
        if self.name != "US915":
            return frequency, self.rx1_rates[data_rate]
        wide = self.rates[data_rate][1] == 500
        channel = round((frequency - 903_000_000) / 1_600_000) if wide else round((frequency - 902_300_000) / 200_000)
        return 923_300_000 + channel % 8 * 600_000, self.rx1_rates[data_rate]

    @property
    def power_dbm(self) -> int:
        """Transmission power (EIRP) as in ChirpStack: gateways refuse what they cannot do, and many cannot do more.

        >>> EU868.power_dbm, region("US915").power_dbm
        (14, 20)
        """
        return min(20, int(self.max_eirp) - 2)

    def data_rate(self, spreading_factor: int, bandwidth_khz: int) -> int:
        """The index of a rate of devices; FSK is (0, 0). `BadInput` if the region does not have it.

        >>> EU868.data_rate(7, 125), EU868.data_rate(0, 0), region("US915").data_rate(8, 500)
        (5, 7, 4)
        """
        for index in range(len(self.rx1_rates)):
            if self.rates[index][:2] == (spreading_factor, bandwidth_khz):
                return index
        raise BadInput(f"{self.name} has no data rate SF{spreading_factor}BW{bandwidth_khz} for devices")

    def modulation(self, data_rate: int) -> tuple[int, int]:
        """Spreading factor and bandwidth in kHz of a data rate; `BadInput` if the region does not have it.

        >>> EU868.modulation(0), region("US915").modulation(8)
        ((12, 125), (12, 500))
        """
        if not 0 <= data_rate < len(self.rates) or self.rates[data_rate] == NONE:
            raise BadInput(f"{self.name} has no data rate {data_rate}")
        return self.rates[data_rate][:2]

    def router_config(self, *, mux_time: float, production: bool = False) -> dict[str, Any]:
        """The radio configuration of a station; without filters, since the registry knows our devices.

        A production station warns of the test switches, so it does not get them.
        """
        switches = {} if production else {"nocca": False, "nodc": False, "nodwell": False}
        return {
            "msgtype": "router_config",
            "NetID": None,
            "JoinEui": None,
            "region": self.station_name,
            "hwspec": "sx1301/1",
            "freq_range": list(self.frequencies),
            "DRs": [list(rate) for rate in self.rates],
            "upchannels": [list(channel) for channel in self.channels],
            "max_eirp": self.max_eirp,
            "sx1301_conf": [self.radio],
            "bcning": None,
            "MuxTime": mux_time,
            **switches,
        }


def _radio(
    radios: tuple[int, int], channels: list[tuple[int, int]], fast: dict[str, Any], fsk: dict[str, Any]
) -> dict[str, Any]:
    conf: dict[str, Any] = {f"radio_{i}": {"enable": True, "freq": freq} for i, freq in enumerate(radios)}
    for i, (freq, radio) in enumerate(channels):
        conf[f"chan_multiSF_{i}"] = {"enable": True, "radio": radio, "if": freq - radios[radio]}
    return {**conf, "chan_Lora_std": fast, "chan_FSK": fsk}


def _eu868() -> Region:
    radios = (867_500_000, 868_500_000)
    low = [(867_100_000 + 200_000 * i, 0) for i in range(5)]
    high = [(868_100_000 + 200_000 * i, 1) for i in range(3)]
    fast = {"enable": True, "radio": 1, "if": -200_000, "bandwidth": 250_000, "spread_factor": 7}
    fsk = {"enable": True, "radio": 1, "if": 300_000, "bandwidth": 125_000, "datarate": 50_000}
    return Region(
        "EU868",
        "EU863",
        (863_000_000, 870_000_000),
        (*((12 - i, 125, 0) for i in range(6)), (7, 250, 0), (0, 0, 0), *[NONE] * 8),
        tuple(range(8)),
        (869_525_000, 0),
        16.0,
        (*((freq, 0, 5) for freq, _ in high + low), (868_300_000, 6, 6), (868_800_000, 7, 7)),
        _radio(radios, high + low, fast, fsk),
    )


def _us915(sub_band: int) -> Region:
    first = 902_300_000 + 1_600_000 * (sub_band - 1)
    radios = (first + 400_000, first + 1_100_000)
    narrow = [(first + 200_000 * i, i // 4) for i in range(8)]
    fast = {"enable": True, "radio": 0, "if": 300_000, "bandwidth": 500_000, "spread_factor": 8}
    down = tuple((12 - i, 500, 1) for i in range(6))
    return Region(
        "US915",
        "US902",
        (902_000_000, 928_000_000),
        (*((10 - i, 125, 0) for i in range(4)), (8, 500, 0), *[NONE] * 3, *down, *[NONE] * 2),
        (10, 11, 12, 13, 13),
        (923_300_000, 8),
        30.0,
        (*((freq, 0, 3) for freq, _ in narrow), (first + 700_000, 4, 4)),
        _radio(radios, narrow, fast, {"enable": False}),
    )


EU868: Final = _eu868()
NAMES: Final = ("EU868", "US915")


def region(name: str, sub_band: int = SUB_BAND) -> Region:
    """The region of this name; ``sub_band`` (1 to 8) chooses the channels of US915."""
    if name == "EU868":
        return EU868
    if name != "US915":
        raise Misuse(f"region is {name!r}, must be one of {', '.join(NAMES)}", region=name)
    if not 1 <= sub_band <= 8:
        raise Misuse(f"sub_band is {sub_band}, must be 1 to 8", sub_band=sub_band)
    return _us915(sub_band)


TELL_S: Final = 10.0
"""Between two log lines about wrong input from gateways; all of it is counted."""


class Receiver(Protocol):
    """Takes what the links receive: ``arrive``, then ``hear`` or ``refuse`` once for each; the tally compares the two.

    ``hear`` raises `Busy` if the queue is full, and then has not taken the reception.
    """

    def arrive(self) -> None: ...
    def hear(self, reception: Reception) -> None: ...
    def refuse(self, station: str, answer: Answer, problem: str) -> None: ...
    def transmitted(self, number: int) -> None: ...


class Complaints:
    """Logs wrong input from gateways, but not so often that a stranger could fill a disk."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def tell(self, station: str, problem: str) -> None:
        now_s = monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + TELL_S
            log.error("station %s: %s", station, problem)


class GatewayLink(ABC):
    """A protocol that brings receptions in; counts events by name."""

    def __init__(self, receiver: Receiver, region: Region, clock_ms: Clock, figures: Iterable[str]) -> None:
        self.problem: str | None = None
        """Why it receives nothing; None: no problem is known."""
        self._receiver, self._region, self._clock_ms = receiver, region, clock_ms
        self._complaints = Complaints()
        self._counts = dict.fromkeys(figures, 0)

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def figures(self) -> Mapping[str, int]: ...

    def _count(self, name: str) -> None:
        self._counts[name] += 1

    def _busy(self, station: str, busy: Exception) -> None:
        self._count("busy")
        self._receiver.refuse(station, BUSY, str(busy))

    def _refuse(self, station: str, error: BadInput) -> None:
        self._count("malformed")
        self._complaints.tell(station, str(error))
        self._receiver.arrive()
        self._receiver.refuse(station, MALFORMED, str(error))

    def _fail(self, who: str, error: Exception) -> None:
        self._count("failed")
        self._complaints.tell(who, f"unexpected: {type(error).__name__}: {error}")
