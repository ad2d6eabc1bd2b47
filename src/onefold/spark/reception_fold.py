"""Level 1 of lorawan as a guest of the stateful host: a bank of frames per bucket."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from onefold.engines.lorawan.bank import FrameBank, Receptions
from onefold.engines.lorawan.columnar import CODES, Windows
from onefold.spark.ordering import Columns, chains, order
from onefold.spark.stateful import Codes, Int64s

AHEAD_MS_MAX: Final = 900_000
"""A quarter of an hour: more than clocks that are set at all are off. What is further ahead of the batch than that is
no time: one such row would age all that is remembered."""


@dataclass(frozen=True, slots=True)
class ReceptionFold:
    """Puts the rows of a bucket in the order of judgement, and shows them to the bank."""

    bank: FrameBank

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row, whatever the order in which the rows come; ``now_ms``: when the batch began."""
        columns = Columns.of(integers)
        codes = np.where(columns.number < 0, -1 - columns.number, CODES["bad_time"]).astype(np.int8)
        good = np.flatnonzero((columns.number >= 0) & (columns.arrival <= now_ms + AHEAD_MS_MAX))
        columns = columns.take(good)
        turn = np.empty(len(good), np.int64)
        turn[order(chains(columns), columns)] = np.arange(len(good))
        chain, chain_check, time, join, station, tie, key, key_check = columns.flat
        by_frame = Columns(key, key_check, time, join, station, tie)
        rows = order(chains(by_frame), by_frame)
        receptions = Receptions(key, key_check, station, time, join != 0, chain, chain_check, turn)
        codes[good[rows]] = self.bank.judge(receptions.take(rows))
        return codes

    def snapshot(self) -> bytes:
        """The memory of the bank."""
        return self.bank.snapshot()

    def figures(self) -> dict[str, int]:
        """What there is to watch."""
        return {"keys": len(self.bank), "gaps": 0}


@dataclass(frozen=True, slots=True)
class Resume:
    """Opens the bank of a bucket with these settings."""

    windows: Windows
    late_ms: int
    frames_max: int | None
    strict_adr: bool = False

    def __call__(self, blob: bytes | None) -> ReceptionFold:
        """The bank as the last batch left it; None: an empty one."""
        bank = FrameBank(self.windows, late_ms=self.late_ms, frames_max=self.frames_max, strict_adr=self.strict_adr)
        return ReceptionFold(bank if blob is None else bank.resume(blob))
