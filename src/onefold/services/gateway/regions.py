"""The radio plans: which data rates and channels a region has, and where a device listens for an answer.

From the LoRaWAN regional parameters (RP002) and, for what a station is told, from the LNS protocol of Basics Station:
``DRs`` are 16 triples of spreading factor (0: FSK, -1: none), bandwidth in kHz, and whether it is for down frames only;
``sx1301_conf`` places two radios and tunes eight channels, one fast LoRa channel and one FSK channel relative to them.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onefold.errors import BadInput, Misuse

Rate: TypeAlias = tuple[int, int, int]
Window: TypeAlias = tuple[int, int]
"""Frequency in Hz, data rate."""

NONE: Final[Rate] = (-1, 0, 0)
SUB_BAND: Final = 2
"""Of US915: channels 8 to 15 and 65, which The Things Network and Helium use."""


@dataclass(frozen=True, slots=True)
class Region:
    """A plan, and what follows from it."""

    name: str
    station_name: str
    """What Basics Station calls it."""
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
        """Where a device listens first.

        >>> EU868.rx1(868_300_000, 5), region("US915").rx1(904_100_000, 3)
        ((868300000, 5), (923900000, 13))
        """
        if self.name != "US915":
            return frequency, self.rx1_rates[data_rate]
        wide = self.rates[data_rate][1] == 500
        channel = round((frequency - 903_000_000) / 1_600_000) if wide else round((frequency - 902_300_000) / 200_000)
        return 923_300_000 + channel % 8 * 600_000, self.rx1_rates[data_rate]

    def is_up(self, data_rate: int) -> bool:
        """Can an uplink have this data rate?"""
        return 0 <= data_rate < len(self.rx1_rates)

    def data_rate(self, spreading_factor: int, bandwidth_khz: int) -> int:
        """The index of a rate that devices send at; FSK is (0, 0). `BadInput`: the region has none.

        >>> EU868.data_rate(7, 125), EU868.data_rate(0, 0), region("US915").data_rate(8, 500)
        (5, 7, 4)
        """
        for index in range(len(self.rx1_rates)):
            if self.rates[index][:2] == (spreading_factor, bandwidth_khz):
                return index
        raise BadInput(f"{self.name} has no data rate SF{spreading_factor}BW{bandwidth_khz} for devices")

    def modulation(self, data_rate: int) -> tuple[int, int]:
        """Spreading factor and bandwidth in kHz of a rate that gateways send at; `BadInput`: the region has none.

        >>> EU868.modulation(0), region("US915").modulation(8)
        ((12, 125), (12, 500))
        """
        if not 0 <= data_rate < len(self.rates) or self.rates[data_rate] == NONE:
            raise BadInput(f"{self.name} has no data rate {data_rate}")
        return self.rates[data_rate][:2]

    def router_config(self, *, mux_time: float, production: bool = False) -> dict[str, Any]:
        """What a station is told about the radio; no filters, for the registry knows which devices are ours.

        A production station warns of the switches for tests, so it does not get them.
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
    """The plan of this name; ``sub_band`` (1 to 8) chooses the channels of US915."""
    if name == "EU868":
        return EU868
    if name != "US915":
        raise Misuse(f"region is {name!r}, must be one of {', '.join(NAMES)}", region=name)
    if not 1 <= sub_band <= 8:
        raise Misuse(f"sub_band is {sub_band}, must be 1 to 8", sub_band=sub_band)
    return _us915(sub_band)
