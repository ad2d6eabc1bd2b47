"""Ids (after ADR 007's first level, for any id): find duplicates by ids that are remembered for a window of time."""

from onefold.ids.rules import ANSWERS, RULES, IdDetector

__all__ = ["ANSWERS", "RULES", "IdDetector"]
