"""The producers engine as a guest of the stateful host: a bank of producers per bucket.

Beside the bank of chains (see `sequences` for why producers are chains) a bucket remembers, in the order of the bank:

    epochs     the highest epoch of each producer
    digests    of the last ``digests_max`` sequences stored of each producer, in the order in which they were stored

Within a micro-batch a repeat is compared with its first, however far apart they are; across batches, with the digests
that are remembered. That finds every conflict that the scalar engine finds, and never one that is none.

    head       "OFPB", format, memory, length of the bank, count of producers, count of digests
    bank       its own bytes
    columns    epochs, count of digests of each producer, sequences, digests; deflated
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from onefold.decoding import inflate
from onefold.engines.chains.bank import ChainBank, Messages
from onefold.engines.producers.bounds import MemoryKind
from onefold.errors import BadInput, Misuse
from onefold.spark.ordering import Columns, chains, order
from onefold.spark.sequences import (
    CODES,
    NO_EPOCH,
    AsChain,
    Bools,
    Codes,
    Digests,
    Int64s,
    begins,
    chain_gaps_max,
    contradictions,
    fences,
    jumps,
)

FORMAT: Final = 1
_MAGIC: Final = b"OFPB"
_HEAD: Final = struct.Struct("<4sHBQQQ")
_MEMORIES: Final[tuple[MemoryKind, ...]] = ("highest", "gaps")


class ProducerFold:
    """The producers of a bucket, and what is remembered of them."""

    def __init__(self, bank: ChainBank, memory: MemoryKind, digests_max: int, jump_max: int | None = None) -> None:
        self._bank = bank
        self._jump_max = jump_max
        self._memory: MemoryKind = memory
        self._digests_max = digests_max
        self._epochs = np.empty(0, np.int64)
        self._digests = Digests.none()

    def judge(self, integers: Int64s, now_ms: int) -> Codes:
        """The code of each row, whatever the order in which the rows come."""
        columns = Columns.of(integers)
        rows = order(chains(columns), columns)
        codes = np.empty(len(rows), np.int8)
        codes[rows] = self._judge(columns.take(rows), now_ms)
        return codes

    def _judge(self, columns: Columns, now_ms: int) -> Codes:
        codes = np.where(columns.number < 0, -1 - columns.number, 0).astype(np.int8)
        good = np.flatnonzero(columns.number >= 0)
        if len(good) < len(codes):
            columns = columns.take(good)
        first = begins(columns.key, columns.key_check)
        rank = np.cumsum(first) - 1
        names = columns.key[first], columns.key_check[first]
        known = self._bank.names
        at = self._bank.find(*names)
        judged = fences(rank, columns.previous, np.append(self._epochs, NO_EPOCH)[at])
        live = np.flatnonzero(judged < 0)
        if self._jump_max is not None:
            live = self._without_jumps(columns, rank, at, judged, live)
        judged[live] = self._as_chains(columns.take(live), at[rank[live]] < 0, now_ms)
        if self._jump_max is not None:  # who has no room has no highest sequence to jump from either
            full = np.isin(rank, rank[judged == CODES["state_full"]])
            judged[full & (judged == CODES["jump_too_far"])] = CODES["state_full"]
        moved, now_at = self._bank.find(*known), self._bank.find(*names)
        self._learn_epochs(moved, now_at, columns.previous, np.flatnonzero(first))
        if columns.more:
            rows = Digests(now_at[rank], columns.number, columns.more[0])
            judged[self._learn_digests(moved, rows, judged)] = CODES["conflict"]
        else:
            self._digests = self._digests._replace(owner=moved[self._digests.owner])
        codes[good] = judged
        return codes

    def _without_jumps(self, columns: Columns, rank: Int64s, at: Int64s, judged: Codes, live: Int64s) -> Int64s:
        """Refuse the rows that jump too far; the others. A producer's head in the bank is its highest sequence, + 1."""
        present, own = np.unique(rank[live], return_inverse=True)
        start = np.append(self._bank.heads, 0)[at[present]] - 1
        far = jumps(own, columns.number[live], start, self._jump_max)
        judged[live[far]] = CODES["jump_too_far"]
        return live[~far]

    def _as_chains(self, columns: Columns, new: Bools, now_ms: int) -> Codes:
        fresh = begins(columns.key, columns.key_check) & new
        rows = AsChain.of(columns.number, self._memory, fresh)
        messages = Messages(rows.spread(columns.key), rows.spread(columns.key_check), rows.previous, rows.number)
        return rows.answers(self._bank.judge(messages, now_ms))

    def _learn_epochs(self, moved: Int64s, at: Int64s, epoch: Int64s, firsts: Int64s) -> None:
        """``moved``: where the producers known before stand now; ``at``: where those of the batch do, or -1."""
        epochs = np.full(len(self._bank), NO_EPOCH, np.int64)
        epochs[moved] = self._epochs
        if len(firsts):
            kept = np.flatnonzero(at >= 0)
            highest = np.maximum.reduceat(epoch, firsts)
            epochs[at[kept]] = np.maximum(epochs[at[kept]], highest[kept])
        self._epochs = epochs

    def _learn_digests(self, moved: Int64s, rows: Digests, judged: Codes) -> Int64s:
        """Which rows conflict; the digests of what was stored are remembered."""
        known = self._digests._replace(owner=moved[self._digests.owner])
        found, stored = contradictions(rows, judged, known)
        everything = known.and_then(stored)
        everything = everything.take(np.argsort(everything.owner, kind="stable"))
        after = np.searchsorted(everything.owner, everything.owner, "right") - np.arange(len(everything.owner))
        self._digests = everything.take(after <= self._digests_max)
        return found

    def snapshot(self) -> bytes:
        """All that is remembered, as bytes."""
        bank, count, digests = self._bank.snapshot(), len(self._epochs), self._digests
        counts = np.bincount(digests.owner, minlength=count).astype(np.int64)
        columns = np.concatenate((self._epochs, counts, digests.sequence, digests.digest)).astype("<i8").tobytes()
        head = _HEAD.pack(_MAGIC, FORMAT, _MEMORIES.index(self._memory), len(bank), count, len(digests.owner))
        return head + bank + zlib.compress(columns, 1)

    def resume(self, data: bytes) -> ProducerFold:
        """Go on where a snapshot was taken; `BadInput` if it is none, `Misuse` if it has another memory."""
        if len(data) < _HEAD.size or data[:6] != _HEAD.pack(_MAGIC, FORMAT, 0, 0, 0, 0)[:6]:
            raise BadInput(f"not a bank of producers of format {FORMAT}: begins {data[:6].hex()}", offset=0)
        _, _, memory, bank_bytes, producers, digests = _HEAD.unpack_from(data)
        if memory != _MEMORIES.index(self._memory):
            other = _MEMORIES[memory] if memory < len(_MEMORIES) else memory
            raise Misuse(f"the checkpoint was made with memory {other!r}, this run has {self._memory!r}", memory=other)
        end = _HEAD.size + bank_bytes
        self._bank.resume(data[_HEAD.size : end])
        if len(self._bank) != producers:
            raise BadInput(f"a damaged bank of producers: {len(self._bank)} of {producers} producers", offset=end)
        columns = inflate(data[end:], 16 * (producers + digests), "a damaged bank of producers")
        split = np.cumsum([producers, producers, digests])
        epochs, counts, sequence, digest = np.split(np.frombuffer(columns, "<i8").astype(np.int64), split)
        if (counts < 0).any() or (counts > digests).any() or counts.sum() != digests:  # a sum may wrap around
            raise BadInput(f"a damaged bank of producers: it counts {int(counts.sum())} digests", offset=end)
        self._epochs, self._digests = epochs, Digests(np.repeat(np.arange(producers), counts), sequence, digest)
        return self

    def figures(self) -> dict[str, int]:
        """What there is to watch."""
        return {"keys": len(self._bank), "gaps": self._bank.gap_count}


@dataclass(frozen=True, slots=True)
class Resume:
    """Opens the bank of a bucket with these settings."""

    memory: MemoryKind
    gap_count_max: int
    digests_max: int
    idle_ms: int | None
    producers_max: int | None
    jump_max: int | None = None

    def __call__(self, blob: bytes | None) -> ProducerFold:
        """The bank as the last batch left it; None: an empty one."""
        bank = ChainBank(
            gap_count_max=chain_gaps_max(self.gap_count_max), idle_ms=self.idle_ms, chains_max=self.producers_max
        )
        fold = ProducerFold(bank, self.memory, self.digests_max, self.jump_max)
        return fold if blob is None else fold.resume(blob)
