"""LoRaWAN after ADR 007 of the Azure starter kit: a frame counts once, however many stations and servers hear it.

`onefold.lorawan.mic` is loaded on first use: it needs the ``cryptography`` package, judging does not.
"""

from typing import TYPE_CHECKING

from onefold.lorawan.frames import (
    DataDown,
    DataUp,
    Frame,
    JoinRequest,
    candidates,
    data_key,
    join_key,
    parse,
    parse_down,
)
from onefold.lorawan.rules import (
    ANSWERS,
    BAD_MIC,
    RULES,
    Checked,
    Claim,
    Claimed,
    Counters,
    Device,
    Finished,
    Heard,
    Judged,
    NetworkServer,
    Route,
    Sighting,
    Sightings,
    Stations,
    Status,
    Strategy,
    Unfinished,
    check,
    decide,
    decide_join,
    route,
    route_lost,
)
from onefold.moved import loaded_on_use

if TYPE_CHECKING:
    from onefold.lorawan.mic import find_counter, signed_up

__all__ = [
    "ANSWERS", "BAD_MIC", "RULES", "Checked", "Claim", "Claimed", "Counters", "DataDown", "DataUp", "Device",
    "Finished", "Frame", "Heard", "JoinRequest", "Judged", "NetworkServer", "Route", "Sighting", "Sightings",
    "Stations", "Status", "Strategy", "Unfinished", "candidates", "check", "data_key", "decide", "decide_join",
    "find_counter", "join_key", "parse", "parse_down", "route", "route_lost", "signed_up",
]  # fmt: skip

__getattr__ = loaded_on_use(__name__, {"find_counter": "mic", "signed_up": "mic"})
