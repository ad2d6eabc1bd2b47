"""Ids (after ADR 007's first level, for any id): duplicates found by names that are remembered for a while."""

from onefold.ids.rules import ANSWERS, RULES, IdDetector

__all__ = ["ANSWERS", "RULES", "IdDetector"]
