"""Chains (after Streamr): duplicates found by the intervals not yet seen, and order restored, per message chain."""

from onefold.engines.chains.answers import ANSWERS, RULES
from onefold.engines.chains.detector import ChainDetector
from onefold.engines.chains.number import Number
from onefold.engines.chains.ordering import OrderedChain
from onefold.engines.chains.ordering_events import Event, GapFound, GapResolved, Released, Resend, Step, Unfillable

__all__ = [
    "ANSWERS",
    "RULES",
    "ChainDetector",
    "Event",
    "GapFound",
    "GapResolved",
    "Number",
    "OrderedChain",
    "Released",
    "Resend",
    "Step",
    "Unfillable",
]
