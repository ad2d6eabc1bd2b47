"""A bank's columns, and the same as bytes.

Bytes: a magic, the format number and the counts of chains and gaps, then the columns one after another, deflated.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from onefold.decoding import inflate
from onefold.engines.chains.columnar import Bools, Int64s
from onefold.engines.chains.packed import START
from onefold.errors import BadInput

FORMAT = 1
_HEADER = struct.Struct("<4sHQQ")
_MAGIC = b"OFcb"


class Chains(NamedTuple):
    """One row per chain, sorted by name."""

    key: Int64s
    key_check: Int64s
    head: Int64s
    heard_ms: Int64s
    forgotten: Int64s

    @classmethod
    def none(cls) -> Chains:
        """No chains."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def append(self, key: Int64s, key_check: Int64s, forgotten: Int64s) -> Chains:
        """These chains too, at the end; a copy, in which heads and times can be set."""
        blank = np.full(len(key), START, np.int64)
        added = (key, key_check, blank, blank, forgotten)
        return Chains(*(np.concatenate(pair) for pair in zip(self, added, strict=True)))


class GapRows(NamedTuple):
    """One row per gap: sorted by the place of the chain it belongs to, and ascending within a chain."""

    owner: Int64s
    lower: Int64s
    upper: Int64s

    @classmethod
    def none(cls) -> GapRows:
        """No gaps."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    @classmethod
    def joined(cls, parts: list[GapRows]) -> GapRows:
        """All of them, one part after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def take(self, rows: Bools | Int64s) -> GapRows:
        """These rows."""
        return GapRows(*(column[rows] for column in self))


def sorted_by_name(chains: Chains, gaps: GapRows) -> tuple[Chains, GapRows]:
    """The chains in the order of their names, and the gaps in the order of the chains."""
    order = np.lexsort((chains.key_check, chains.key))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    gaps = GapRows(rank[gaps.owner], gaps.lower, gaps.upper)
    by_owner = np.argsort(gaps.owner, kind="stable")
    return Chains(*(column[order] for column in chains)), gaps.take(by_owner)


def encode(chains: Chains, gaps: GapRows) -> bytes:
    """The columns as bytes."""
    counts = np.bincount(gaps.owner, minlength=len(chains.key)).astype(np.int64)
    columns = b"".join(column.astype("<i8").tobytes() for column in (*chains, counts, gaps.lower, gaps.upper))
    return _HEADER.pack(_MAGIC, FORMAT, len(chains.key), len(gaps.lower)) + zlib.compress(columns, 1)


def decode(data: bytes) -> tuple[Chains, GapRows]:
    """The columns that were encoded; anything else raises `BadInput`."""
    if len(data) < _HEADER.size:
        raise BadInput(f"not a bank of chains: {len(data)} bytes, fewer than the header's {_HEADER.size}", offset=0)
    magic, version, chain_count, gap_count = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != FORMAT:
        raise BadInput(f"not a bank of chains of format {FORMAT}: begins {data[:6].hex()}", offset=0)
    columns = inflate(data[_HEADER.size :], 8 * (6 * chain_count + 2 * gap_count), "a damaged bank of chains")
    ends = np.cumsum([chain_count] * 6 + [gap_count] * 2)
    *named, lower, upper, _ = np.split(np.frombuffer(columns, "<i8").astype(np.int64), ends)
    *per_chain, counts = named
    if (counts < 0).any() or (counts > gap_count).any() or counts.sum() != gap_count:  # a sum may wrap around
        raise BadInput(f"a damaged bank of chains: it counts {int(counts.sum())} gaps, not {gap_count}", offset=0)
    return Chains(*per_chain), GapRows(np.repeat(np.arange(chain_count), counts), lower, upper)
