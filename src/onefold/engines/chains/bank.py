"""The memory of many chains in a few columns: judged a batch at a time, kept as one blob between batches.

A stream needs on Tuesday what it saw on Monday. One Python object per chain would cost more than the judgement, so a
bank keeps its chains as columns, sorted by name, and their gaps flat beside them:

    name (128 bits)   head   heard_ms   forgotten      one row per chain
    owner   lower   upper                              one row per gap, in the order of the chains

A batch is judged by the rules of `columnar`: the head of each known chain stands in as a first row, numpy decides what
one comparison can decide, and only the chains whose gaps are touched become detectors for a moment.

State is bounded by disorder, not by history, and in two more ways:

    idle_ms      a chain not heard from for so long gives up its gaps: what lies below them is UNSURE from then on,
                 the head stays, so that nothing seen is ever taken for new
    chains_max   when so many are known, messages of a new chain are UNSURE state_full; the known go on as before

Cost: a dozen numpy passes over batch and bank, half a microsecond per message that meets the gaps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onefold.engines.chains import bank_snapshot as snapshot
from onefold.engines.chains import packed as P
from onefold.engines.chains.bank_snapshot import Chains, GapRows
from onefold.engines.chains.columnar import NO_PREVIOUS, Bools, Codes, Int64s, Rows, classify, walk
from onefold.engines.chains.detector import GAP_COUNT_MAX, ChainDetector, Floor
from onefold.errors import Misuse


class Messages(NamedTuple):
    """A batch as columns, sorted by chain and then in the order of judgement."""

    key: Int64s
    """The first half of the chain's name."""
    key_check: Int64s
    """The other half."""
    previous: Int64s
    number: Int64s

    def take(self, rows: Int64s) -> Messages:
        """These rows, in this order."""
        return Messages(*(column[rows] for column in self))


class ChainBank:
    """Judges batches of messages of many chains, and remembers.

    >>> bank = ChainBank()
    >>> one = np.array([1, 1])
    >>> bank.judge(Messages(one, one, np.array([NO_PREVIOUS, 5]), np.array([5, 6]))).tolist()
    [0, 1]
    >>> bank = ChainBank().resume(bank.snapshot())
    >>> bank.judge(Messages(one, one, np.array([5, 7]), np.array([6, 8]))).tolist(), str(bank)
    ([5, 2], '1 chain, 1 gap')
    """

    def __init__(
        self,
        *,
        gap_count_max: int = GAP_COUNT_MAX,
        floor: Floor = "first",
        idle_ms: int | None = None,
        chains_max: int | None = None,
    ) -> None:
        ChainDetector(gap_count_max=gap_count_max, floor=floor)  # refuses misuse
        for name, value in (("idle_ms", idle_ms), ("chains_max", chains_max)):
            if value is not None and value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})
        self._settings = (gap_count_max, floor, None)
        self._idle_ms = idle_ms
        self._chains_max = chains_max
        self._chains = Chains.none()
        self._gaps = GapRows.none()

    def __len__(self) -> int:
        return len(self._chains.key)

    @property
    def gap_count(self) -> int:
        """How many ranges are missing now, in all chains."""
        return int(np.count_nonzero(self._gaps.lower >= 0))

    def judge(self, messages: Messages, now_ms: int = 0) -> Codes:
        """The code of each message's answer (its place in ``ANSWERS``); ``now_ms`` is when the batch was heard."""
        codes = np.where(messages.number < 0, -1 - messages.number, P.BAD_NUMBERING).astype(np.int8)
        good = np.flatnonzero((messages.previous < messages.number) & (messages.number >= 0))
        if self._chains_max is not None:
            good, full = self._with_room(good, messages)
            codes[full] = P.STATE_FULL
        if len(good):
            codes[good] = self._judge(messages if len(good) == len(codes) else messages.take(good), now_ms)
        if self._idle_ms is not None:
            self._shrink(now_ms - self._idle_ms)
        return codes

    def _judge(self, messages: Messages, now_ms: int) -> Codes:
        firsts = np.flatnonzero(_begins(messages))
        names = messages.take(firsts)
        at = self.find(names.key, names.key_check)
        known = np.flatnonzero(at >= 0)
        places = firsts[known] + np.arange(len(known))  # where the heads come to stand
        rows = _with_heads(messages, firsts[known], self._chains.head[at[known]], places)
        codes, newest = classify(rows)
        starts = np.flatnonzero(rows.begins)
        chain_of = dict(zip(starts.tolist(), range(len(starts)), strict=True))
        ends = np.searchsorted(self._gaps.owner, np.arange(len(self) + 1))
        visited: dict[int, P.PackedDetector] = {}

        def begin(first: int) -> P.PackedDetector:
            chain = chain_of[first]
            detector = visited[chain] = P.PackedDetector(*self._settings)
            if at[chain] >= 0:
                place = int(at[chain])
                detector.resume(*self._recall(place, int(ends[place]), int(ends[place + 1])))
            else:
                detector.begin(int(rows.previous[first]), int(rows.number[first]))
            return detector

        judged = walk(rows, codes, newest, begin)
        heads = newest[np.append(starts[1:], len(newest)) - 1]
        for first in judged:
            heads[chain_of[first]] = visited[chain_of[first]].head
        self._learn(names, at, heads, now_ms, visited)
        return np.delete(codes, places)

    def _with_room(self, good: Int64s, messages: Messages) -> tuple[Int64s, Int64s]:
        """Which of the good rows can be judged, and which belong to chains that there is no room for."""
        rows = messages.take(good)
        begins = _begins(rows)
        names = rows.take(np.flatnonzero(begins))
        new = np.flatnonzero(self.find(names.key, names.key_check) < 0)
        room = max(0, int(self._chains_max or 0) - len(self))
        if len(new) <= room:
            return good, good[:0]
        by_name = new[np.lexsort((names.key_check[new], names.key[new]))]  # the same ones, however often it is tried
        refused = np.zeros(len(names.key), np.bool_)
        refused[by_name[room:]] = True
        full = refused[np.cumsum(begins) - 1]
        return good[~full], good[full]

    @property
    def names(self) -> tuple[Int64s, Int64s]:
        """Both halves of the name of each chain, in the order of the bank."""
        return self._chains.key, self._chains.key_check

    @property
    def heads(self) -> Int64s:
        """The newest number of each chain, in the order of the bank."""
        return self._chains.head

    def find(self, key: Int64s, key_check: Int64s) -> Int64s:
        """Where these chains stand in the bank; -1 for those that are new."""
        chains = self._chains
        at = np.searchsorted(chains.key, key)
        inside = np.minimum(at, max(0, len(self) - 1))
        if not len(self):
            return np.full(len(key), -1, np.int64)
        found = np.where(chains.key[inside] == key, inside, -1).astype(np.int64)
        for i in np.flatnonzero((found >= 0) & (chains.key_check[inside] != key_check)):  # two names, one first half
            same = range(int(found[i]), int(np.searchsorted(chains.key, key[i], "right")))
            found[i] = next((j for j in same if chains.key_check[j] == key_check[i]), -1)
        return found

    def _recall(self, chain: int, low: int, high: int) -> tuple[int, int, list[int], list[int]]:
        head, forgotten = int(self._chains.head[chain]), int(self._chains.forgotten[chain])
        return head, forgotten, self._gaps.lower[low:high].tolist(), self._gaps.upper[low:high].tolist()

    def _learn(
        self, names: Messages, at: Int64s, heads: Int64s, now_ms: int, visited: dict[int, P.PackedDetector]
    ) -> None:
        """Keep what the batch taught; ``visited`` are the chains whose gaps may have changed."""
        new = np.flatnonzero(at < 0)
        at = at.copy()
        at[new] = len(self) + np.arange(len(new))
        touched = np.fromiter(visited, np.int64, len(visited))
        reach, untouched = self._beginnings(names.take(new), np.flatnonzero(np.isin(new, touched)))
        chains = self._chains.append(names.key[new], names.key_check[new], reach)
        chains.head[at] = heads
        chains.heard_ms[at] = now_ms
        below = GapRows(at[new[untouched.owner]], untouched.lower, untouched.upper)
        kept = self._gaps.take(~np.isin(self._gaps.owner, at[touched]))
        memories = [detector.memory() for detector in visited.values()]
        chains.forgotten[at[touched]] = [forgotten for forgotten, _, _ in memories]
        changed = GapRows(
            np.repeat(at[touched], [len(lowers) for _, lowers, _ in memories]),
            np.array([lower for _, lowers, _ in memories for lower in lowers], np.int64),
            np.array([upper for _, _, uppers in memories for upper in uppers], np.int64),
        )
        self._chains, self._gaps = snapshot.sorted_by_name(chains, GapRows.joined([kept, below, changed]))

    def _beginnings(self, first: Messages, visited: Int64s) -> tuple[Int64s, GapRows]:
        """What is remembered of new chains whose gaps were not touched: the gap below their first message."""
        gap_count_max, floor, _ = self._settings
        below = np.where(first.previous == NO_PREVIOUS, first.number - 1, first.previous)
        reach = np.full(len(below), P.START, np.int64)
        if floor == "open" and gap_count_max == 1:  # no room for even this one
            return below, GapRows.none()
        chain = np.delete(np.arange(len(below)), visited)
        lower: Int64s = np.where(first.previous == NO_PREVIOUS, P.UNNAMED, P.START).astype(np.int64)
        return reach, GapRows(chain, lower[chain], below[chain])

    def _shrink(self, before_ms: int) -> None:
        """Let chains that were last heard before this time give up their gaps."""
        idle = self._chains.heard_ms < before_ms
        torn = np.zeros(len(self), np.bool_)
        torn[self._gaps.owner[self._gaps.lower >= 0]] = True  # one with nothing missing is small already
        gone = (idle & torn)[self._gaps.owner]
        if gone.any():
            np.maximum.at(self._chains.forgotten, self._gaps.owner[gone], self._gaps.upper[gone])
            self._gaps = self._gaps.take(~gone)

    def snapshot(self) -> bytes:
        """All that is remembered, as bytes; the settings are not in it."""
        return snapshot.encode(self._chains, self._gaps)

    def resume(self, data: bytes) -> ChainBank:
        """Go on where another bank's snapshot was taken, with the settings of this one; else `BadInput`."""
        self._chains, self._gaps = snapshot.decode(data)
        return self

    def __str__(self) -> str:
        chains, gaps = len(self), self.gap_count
        return f"{chains} chain{'s' * (chains != 1)}, {gaps} gap{'s' * (gaps != 1)}"


def _begins(messages: Messages) -> Bools:
    key, check = messages.key, messages.key_check
    return np.concatenate(([True], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))[: len(key)]


def _with_heads(messages: Messages, before: Int64s, heads: Int64s, places: Int64s) -> Rows:
    """The rows, with the head of each known chain standing in as its first row."""
    begins = np.insert(_begins(messages), before, True)
    begins[places + 1] = False
    return Rows(begins, np.insert(messages.previous, before, NO_PREVIOUS), np.insert(messages.number, before, heads))
