"""Producers (after Pulsar's PIP-6): each message is stored once, through retries, failed writes and crashes."""

from onefold.producers.records import ANSWERS, NO_DIGEST, RULES, Kind, Part, Pushed, SequenceEntry
from onefold.producers.rules import Cadence, RecoveredSequences, Sequences, SequencesSnapshot, recover

__all__ = [
    "ANSWERS",
    "NO_DIGEST",
    "RULES",
    "Cadence",
    "Kind",
    "Part",
    "Pushed",
    "RecoveredSequences",
    "SequenceEntry",
    "Sequences",
    "SequencesSnapshot",
    "recover",
]
