"""How many of everything, so that the rows asked for are exactly the rows made.

    rows = originals + copies + poisoned + malformed          messages = originals + lost

Extra rows are counted first. What room is left is shared between originals and their copies; losses come on top of it,
for a lost message takes no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onefold.errors import Misuse
from onefold.sim.faults import Faults

COPIES_EACH: Final = 1.25
"""Rows per copied message beside the original: most are repeated once, some twice or more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts that add up.

    >>> plan(1000, 10, Faults(copies=0.1, losses=0.002))
    Plan(originals=889, lost=2, copied=89, copies=111, poisoned=0, malformed=0)
    """

    originals: int
    lost: int
    copied: int
    """Messages with at least one copy."""
    copies: int
    poisoned: int
    malformed: int

    @property
    def messages(self) -> int:
        """All that were published."""
        return self.originals + self.lost


def plan(rows: int, chains: int, faults: Faults) -> Plan:
    """Share out the rows; `Misuse` if the extra rows leave less than one row per chain."""
    poisoned, malformed = round(faults.poisoned * chains), round(faults.malformed * rows)
    room = rows - poisoned - malformed
    if room < chains:
        extra = f"{poisoned:,} poisoned and {malformed:,} malformed rows"
        raise Misuse(f"rows is {rows}, must hold {extra} and one row for each of {chains:,} chains", rows=rows)
    originals = max(chains, round(room / (1 + COPIES_EACH * faults.copies)))
    copies = room - originals
    copied = min(copies, max(1, round(faults.copies * originals)))
    lost = round(originals * faults.losses / (1 - faults.losses))
    return Plan(originals, lost, copied, copies, poisoned, malformed)
