"""A run against the truth: was anything counted twice, lost, or missed?

Because the faults were ours, the right answer is known for every row; rows are matched by ``offset``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onefold.verdict import Verdict

_RANGE = ("lower_timestamp", "lower_sequence", "upper_timestamp", "upper_sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far a run is from the truth; all zeros and equal ranges is perfect."""

    rows: int
    counted_twice: int
    """Copies that were called FIRST."""
    lost: int
    """New messages that were called something else."""
    accepted: int
    """Damaged rows that were not rejected."""
    ranges: int
    """Missing ranges in truth."""
    ranges_found: int
    ranges_invented: int

    @property
    def perfect(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.counted_twice + self.lost + self.accepted + self.ranges_invented
        return wrong == 0 and self.ranges_found == self.ranges


def score(run: Path, truth: Path) -> Score:
    """Compare a run's folder (strategy drop) with the truth that `write` left beside the traffic."""
    rows = pq.read_table(truth / "rows.parquet", columns=["offset", "verdict"])
    said = np.full(rows.num_rows, "", dtype="U6")
    for verdict, folder in zip(Verdict, ("firsts", "repeats", "unsure", "rejects"), strict=True):
        said[pq.read_table(run / folder, columns=["offset"])["offset"].to_numpy()] = str(verdict)
    true = rows["verdict"].to_numpy(zero_copy_only=False).astype("U6")
    found, real = _ranges(pq.read_table(run / "gaps")), _ranges(pq.read_table(truth / "missing.parquet"))
    return Score(
        rows=rows.num_rows,
        counted_twice=int(np.sum((true == "REPEAT") & (said == "FIRST"))),
        lost=int(np.sum((true == "FIRST") & (said != "FIRST"))),
        accepted=int(np.sum((true == "REJECT") & (said != "REJECT"))),
        ranges=len(real),
        ranges_found=len(found & real),
        ranges_invented=len(found - real),
    )


def _ranges(table: pa.Table) -> set[tuple[Any, ...]]:
    keys = [name for name in table.column_names if name not in _RANGE]
    return set(zip(*(table[name].to_pylist() for name in (*sorted(keys), *_RANGE)), strict=True))
