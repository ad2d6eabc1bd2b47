"""Producers (after Pulsar's PIP-6): each message is stored once, through retries, failed writes and crashes."""

from onefold.engines.producers.answers import ANSWERS, RULES, Part, Pushed
from onefold.engines.producers.bounds import Settings
from onefold.engines.producers.records import NO_DIGEST, Entry, Kind
from onefold.engines.producers.recovery import Cadence, Recovered, Snapshot, recover
from onefold.engines.producers.sequences import Sequences

__all__ = [
    "ANSWERS",
    "NO_DIGEST",
    "RULES",
    "Cadence",
    "Entry",
    "Kind",
    "Part",
    "Pushed",
    "Recovered",
    "Sequences",
    "Settings",
    "Snapshot",
    "recover",
]
