"""The chain engine as a guest of the stateful host: a bank of chains per bucket."""

from dataclasses import dataclass

import numpy as np

from onefold.engines.chains.bank import ChainBank, Messages
from onefold.engines.chains.detector import Floor
from onefold.spark.ordering import Columns, chains, order
from onefold.spark.stateful import Codes, Int64s


@dataclass(frozen=True, slots=True)
class ChainFold:
    """Puts the rows of a bucket in the order of judgement, and shows them to the bank."""

    bank: ChainBank

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row."""
        columns = Columns(*integers)
        rows = order(chains(columns), columns)
        sorted_ = columns.take(rows)
        codes = np.empty(len(rows), np.int8)
        messages = Messages(sorted_.key, sorted_.key_check, sorted_.previous, sorted_.number)
        codes[rows] = self.bank.judge(messages, now_ms)
        return codes

    def snapshot(self) -> bytes:
        """The memory of the bank."""
        return self.bank.snapshot()

    def figures(self) -> dict[str, int]:
        """What there is to watch."""
        return {"keys": len(self.bank), "gaps": self.bank.gap_count}


@dataclass(frozen=True, slots=True)
class Resume:
    """Opens the bank of a bucket with these settings."""

    gap_count_max: int
    floor: Floor
    idle_ms: int | None
    chains_max: int | None

    def __call__(self, blob: bytes | None) -> ChainFold:
        """The bank as the last batch left it; None: an empty one."""
        bank = ChainBank(
            gap_count_max=self.gap_count_max, floor=self.floor, idle_ms=self.idle_ms, chains_max=self.chains_max
        )
        return ChainFold(bank if blob is None else bank.resume(blob))
