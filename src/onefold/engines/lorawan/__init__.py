"""LoRaWAN (after ADR 007 of the Azure starter kit): a frame counts once, though many stations and servers hear it.

`onefold.engines.lorawan.mic` is not imported here: it needs the ``cryptography`` package, judging does not.
"""

from onefold.engines.lorawan.answers import ANSWERS, RULES
from onefold.engines.lorawan.counter import candidates
from onefold.engines.lorawan.frames import DataDown, DataUp, Frame, JoinRequest, parse, parse_down
from onefold.engines.lorawan.judge import Judged, NetworkServer
from onefold.engines.lorawan.keys import data_key, join_key
from onefold.engines.lorawan.routing import Route, route, route_lost
from onefold.engines.lorawan.server import Claim, Claimed, Counters, Finished, Unfinished, decide, decide_join
from onefold.engines.lorawan.sightings import Sighting, Sightings
from onefold.engines.lorawan.station import Stations
from onefold.engines.lorawan.status import Status, Strategy
from onefold.engines.lorawan.validation import Checked, Device, Heard, check

__all__ = [
    "ANSWERS",
    "RULES",
    "Checked",
    "Claim",
    "Claimed",
    "Counters",
    "DataDown",
    "DataUp",
    "Device",
    "Finished",
    "Frame",
    "Heard",
    "JoinRequest",
    "Judged",
    "NetworkServer",
    "Route",
    "Sighting",
    "Sightings",
    "Stations",
    "Status",
    "Strategy",
    "Unfinished",
    "candidates",
    "check",
    "data_key",
    "decide",
    "decide_join",
    "join_key",
    "parse",
    "parse_down",
    "route",
    "route_lost",
]
