"""Chains (after Streamr): find duplicates per message chain by the intervals not yet seen, and restore its order."""

from onefold.chains.in_order import Event, GapFound, GapResolved, OrderedChain, Released, Resend, Step, Unfillable
from onefold.chains.rules import ANSWERS, RULES, ChainDetector, Number

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
