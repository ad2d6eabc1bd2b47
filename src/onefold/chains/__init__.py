"""Chains (after Streamr): duplicates found by the intervals not yet seen, and order restored, per message chain."""

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
