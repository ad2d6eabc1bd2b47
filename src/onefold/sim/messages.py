"""The messages as they were published, before anything went wrong.

Messages lie in flat arrays, chain after chain, each chain ascending by (timestamp, sequence); so the predecessor of
message ``i`` is message ``i - 1`` of the same chain, and nothing here costs Python time per message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

BEGIN_MS: Final = 1_704_067_200_000
"""2024-01-01: the earliest timestamp."""

KEY: Final = ("stream", "partition", "publisher", "chain")
NUMBER: Final = ("timestamp", "sequence")
PREVIOUS: Final = ("previous_timestamp", "previous_sequence")

CHAIN_IDS: Final = ("main", "alarm", "bulk")
PARTITION_COUNT: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Columns over messages, and the place of each chain in them."""

    starts: Ints
    """Per chain: the index of its first message."""
    lengths: Ints
    chain: Ints
    """Per message, as all that follow: the index of its chain."""
    timestamp: Ints
    sequence: Ints
    names_previous: Bools
    """False for the first of a chain, and all through a best-effort chain."""

    def __len__(self) -> int:
        return len(self.chain)


def publish(rng: np.random.Generator, lengths: Ints, *, ties: float, interval_ms: int, no_previous: float) -> Messages:
    """Publish chains of these lengths, one message per ``interval_ms`` on average."""
    starts = np.cumsum(lengths) - lengths
    chain = np.repeat(np.arange(len(lengths)), lengths)
    index = np.arange(len(chain))
    first = index == starts[chain]
    tied = (rng.random(len(chain)) < ties) & ~first
    steps = np.maximum(1, rng.exponential(interval_ms, len(chain))).astype(np.int64)
    steps[tied] = 0
    elapsed = np.cumsum(steps)
    begin = BEGIN_MS + rng.integers(0, 10 * interval_ms, len(lengths))
    best_effort = np.zeros(len(lengths), np.bool_)
    best_effort[rng.choice(len(lengths), round(no_previous * len(lengths)), replace=False)] = True
    return Messages(
        starts=starts,
        lengths=lengths,
        chain=chain,
        timestamp=elapsed + (begin - elapsed[starts])[chain],
        sequence=index - np.maximum.accumulate(np.where(tied, 0, index)),
        names_previous=~first & ~best_effort[chain],
    )


def spread(rng: np.random.Generator, messages: int, chains: int, skew: float) -> Ints:
    """The length of each chain: at least 1, equal for skew 0, else falling with its rank to the power of ``skew``.

    >>> spread(np.random.default_rng(1), 8, 3, 0.0).tolist()
    [3, 3, 2]
    """
    weights = np.arange(1, chains + 1) ** -skew
    shares = weights / weights.sum() * (messages - chains)
    lengths = 1 + shares.astype(np.int64)
    left = messages - int(lengths.sum())
    largest_remainders = np.argsort(np.floor(shares) - shares, kind="stable")[:left]
    lengths[largest_remainders] += 1
    return lengths if skew == 0 else rng.permutation(lengths)


def keys(chains: int) -> dict[str, tuple[list[str] | list[int], Ints]]:
    """Per key column its few names, and which of them each chain has. Neighbours differ in one column only."""
    rest, chain_id = np.divmod(np.arange(chains), len(CHAIN_IDS))
    rest, partition = np.divmod(rest, PARTITION_COUNT)
    side = math.isqrt(int(rest[-1])) + 1
    publisher, stream = np.divmod(rest, side)
    return {
        "stream": ([f"sensors/{i}" for i in range(side)], stream),
        "partition": (list(range(PARTITION_COUNT)), partition),
        # An odd factor modulo 2^32 maps one to one: publishers look like addresses and never collide.
        "publisher": ([f"0x{(i + 1) * 2_654_435_761 % 2**32:08x}" for i in range(side)], publisher),
        "chain": (list(CHAIN_IDS), chain_id),
    }
