"""Notes that judging tasks take of a table: missing ranges, the worst keys, the lags of copies.

A task has all rows of its keys, as integers, and the codes of their answers. So it can compute, without another pass
over the rows, the data of a page and a list of missing ranges. It writes its notes before it returns its first code; a
retried task writes the same:

    NOTES/00007.parquet    its missing ranges: the key's hash, in two halves, and both ends
    NOTES/00007.json       the rest, bounded: rows per code, the keys with the most rows that are not FIRST, the keys
                           that miss most, and a histogram of the lags of copies

Between two neighbours ``a < b`` of a key's firsts, messages are missing exactly if ``b`` claims a previous message
above ``a``: then ``(a, previous of b]`` was never seen.

A task that had to sort on disk, or cannot write there, writes nothing. Then the rows per code do not add up to the
books, and the caller reads the rows instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark import TaskContext

from onefold.chains.columns import NO_PREVIOUS, START, Rows, in_chain_order
from onefold.chains.rules import TIMESTAMP_MAX
from onefold.decoding import read_json
from onefold.errors import Misuse
from onefold.spark.memory import Storage
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

GAP_COLUMNS: Final = "_onefold_key", "_onefold_check", "_onefold_lower", "_onefold_upper", "_onefold_since"
"""Of a missing range: the hash of its key in two halves, and both ends as the engine counts. A lower end below 0: the
range lies before the first message seen. Where numbers restart, also the time at which the lower end was seen."""
DIGITS: Final = 12
"""Lags up to this many bits are exact, longer ones are rounded down to this many significant bits."""
KEYS_MAX: Final = 20
STRIPS_MAX: Final = 300
RANGES_MAX: Final = 40
"""Limits of the notes, as a page shows them: the worst keys, the keys that miss most, and the ranges of one key."""
_VERDICTS: Final = list(Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRules:
    """How to read the integers of an engine, and how much to keep."""

    answers: Sequence[Answer]
    claims: Literal["previous", "one_below"] | None
    """How a message claims its predecessor: by the column of previous numbers, or as its own number less one."""
    restarts: bool = False
    """Whether numbers restart: then messages are also identified and ordered by time, which is in the column of
    arrivals; the arrivals are in the column of previous numbers."""
    is_floor_open: bool  # whether messages that the first one claims before it are missing
    ms_bits: int  # bits by which a number is shifted right for display
    is_time: bool  # whether the shifted number is a time; the missing share is then one of time
    arrival: Literal["ms", "us", "text"] | None  # the unit of arrivals (see `in_order`); None: no arrivals
    keys_max: int = KEYS_MAX
    strips_max: int = STRIPS_MAX
    ranges_max: int = RANGES_MAX


class NoteTaker:
    """Observes the rows of a task and their codes."""

    def __init__(self, rules: NoteRules, storage: Storage, rows_max: int) -> None:
        self._rules, self._storage, self._rows_max = rules, storage, rows_max
        self._parts: list[Sequence[Int64s]] = []
        self._rows = 0

    def watch_rows(self, parts: Iterator[Sequence[Int64s]]) -> Iterator[Sequence[Int64s]]:
        for part in parts:
            self._rows += len(part[0])
            if self._rows <= self._rows_max:
                self._parts.append(part)
            else:
                self._parts.clear()
            yield part

    def watch_codes(self, parts: Iterator[NDArray[np.int8]]) -> Iterator[NDArray[np.int8]]:
        codes = list(parts)
        if self._parts:
            columns = [np.concatenate([part[i] for part in self._parts]) for i in range(5)]
            self._parts.clear()
            gaps, summary = noted(self._rules, columns, np.concatenate(codes))
            with suppress(OSError, Misuse):  # missing notes show in the sums
                self._write(gaps, summary)
        yield from codes

    def _write(self, gaps: Sequence[Int64s], summary: Mapping[str, Any]) -> None:
        context = TaskContext.get()
        name, storage = f"{0 if context is None else context.partitionId():05}", self._storage
        if len(gaps[0]):
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table(dict(zip(GAP_COLUMNS, gaps, strict=False))), sink)
            storage.write(f"{name}.parquet", sink.getvalue().to_pybytes())
        storage.write(f"{name}.json", json.dumps(summary).encode())


def noted(
    rules: NoteRules, columns: Sequence[Int64s], codes: NDArray[np.int8]
) -> tuple[tuple[Int64s, ...], dict[str, Any]]:
    """The missing ranges and the other notes of a task, from all rows of its keys; ``columns``: the first five of
    `KeyColumns`.
    """
    verdict = np.array([_VERDICTS.index(answer.verdict) for answer in rules.answers], np.int8)[codes]
    turn = by_name(columns[0], columns[1])
    key, check, arrival, previous, number = (column[turn] for column in columns)
    verdict = verdict[turn]
    begins = np.concatenate(([True], (key[1:] != key[:-1]) | (check[1:] != check[:-1])))
    starts, owner = np.flatnonzero(begins), np.cumsum(begins) - 1
    counts = np.bincount(4 * owner + verdict, minlength=4 * len(starts)).reshape(-1, 4)
    time = arrival
    if rules.restarts:
        arrival = previous
        order: Any = ranked(owner, time, number)
    else:
        order, _ = in_chain_order(Rows(begins, previous, number))
    first = np.flatnonzero(verdict == 0)
    first = first[np.argsort(order[first], kind="stable")]
    shown = number >> rules.ms_bits
    keys = _Keys(key[starts], check[starts], counts, *_spans(owner, shown, first, len(starts)))
    forgotten = np.array([answer.reason == "forgotten" for answer in rules.answers])[codes][turn]
    mark = np.full(len(starts), -1, np.int64)
    np.maximum.at(mark, owner[forgotten], shown[forgotten])
    lower, upper, above = _gaps(rules, owner[first], number[first], previous[first])
    gap_owner = owner[first][above]
    base = 1 if rules.claims == "one_below" else 0  # a memory counts such numbers from 1
    since = [time[first[above - 1]]] if rules.restarts else []
    return (keys.key[gap_owner], keys.check[gap_owner], lower + base, upper + base, *since), {
        "codes": np.bincount(codes, minlength=len(rules.answers)).tolist(),
        "keys": int(np.count_nonzero(counts[:, 0])),
        "worst": _worst(keys, rules.keys_max),
        "strips": _strips(rules, keys, mark, lower >> rules.ms_bits, upper >> rules.ms_bits, gap_owner),
        "lags": _lags(rules, order, first, np.flatnonzero(verdict == 1), arrival),
    }


def ranked(*columns: Int64s) -> Int64s:
    """The dense rank of each row, by the first column, then the second..."""
    turn = np.lexsort(columns[::-1])
    other = np.logical_or.reduce([column[turn][1:] != column[turn][:-1] for column in columns])
    rank = np.empty(len(turn), np.int64)
    rank[turn] = np.concatenate(([0], np.cumsum(other)))[: len(turn)]
    return rank


def by_name(key: Int64s, check: Int64s) -> Int64s:
    """Row indices sorted by name; stable."""
    encoded = pa.array(key).dictionary_encode()
    of_code = encoded.dictionary.to_numpy()
    rank = np.empty(len(of_code), np.int64)
    rank[np.argsort(of_code)] = np.arange(len(of_code))
    rank = rank[encoded.indices.to_numpy()]
    checks = np.empty(len(of_code), np.int64)
    checks[rank] = check
    if not np.array_equal(checks[rank], check):  # two keys share the first half of their names
        return np.lexsort((check, key))
    turn: Int64s = np.arange(len(key))
    for shift in range(0, max(1, len(of_code).bit_length()), 16):  # 16-bit integers are radix-sorted
        turn = turn[np.argsort((rank >> shift).astype(np.uint16)[turn], kind="stable")]
    return turn


class _Keys(NamedTuple):
    key: Int64s
    check: Int64s
    counts: Int64s  # a row per key: first, repeat, unsure, reject
    least: Int64s  # of its firsts' numbers, as displayed
    most: Int64s


def _spans(owner: Int64s, time: Int64s, first: Int64s, keys: int) -> tuple[Int64s, Int64s]:
    """The least and the greatest first of each key; ``first``: the rows that are firsts, sorted by key and number."""
    least, most = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    owners = owner[first]
    at = np.flatnonzero(np.concatenate(([True], owners[1:] != owners[:-1]))[: len(owners)])
    if len(at):
        least[owners[at]], most[owners[at]] = (by.reduceat(time[first], at) for by in (np.minimum, np.maximum))
    return least, most


def _gaps(rules: NoteRules, owner: Int64s, number: Int64s, previous: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Lower and upper ends of missing ranges, and the row above each, for firsts sorted by key and number."""
    if rules.claims is None or not len(owner):
        return (np.empty(0, np.int64),) * 3
    claim = previous if rules.claims == "previous" else number - 1
    begins = np.concatenate(([True], owner[1:] != owner[:-1]))
    before = np.where(begins, START, np.concatenate(([START], number[:-1])))
    missing = claim > before
    missing &= claim != NO_PREVIOUS
    if not rules.is_floor_open:
        missing &= ~begins
    return before[missing], claim[missing], np.flatnonzero(missing)


def _worst(keys: _Keys, most: int) -> list[dict[str, Any]]:
    """The keys with the most rows that are not FIRST. Ties are broken by name, so that two runs agree."""
    rest = keys.counts[:, 1:].sum(axis=1)
    rows = np.flatnonzero(rest)
    rows = rows[np.lexsort((keys.check[rows], keys.key[rows], rest[rows]))[::-1][:most]]
    return [{"name": [int(keys.key[i]), int(keys.check[i])], "counts": keys.counts[i].tolist()} for i in rows]


def _strips(
    rules: NoteRules, keys: _Keys, mark: Int64s, lower: Int64s, upper: Int64s, owner: Int64s
) -> list[dict[str, Any]]:
    """The keys that miss the greatest share of time or of messages, each with its widest ranges."""
    if not len(owner):
        return []
    # The size of a range before the first message seen is known only where counting starts at a known number.
    start = upper if rules.claims == "previous" else np.full(len(upper), -1, np.int64)
    is_before = lower < 0
    width = upper - np.where(is_before, start, lower)
    ranges = np.bincount(owner, minlength=len(keys.key))
    lost = np.zeros(len(keys.key), np.int64)
    np.add.at(lost, owner, width)
    every = keys.most - keys.least if rules.is_time else lost + keys.counts[:, 0]
    share = np.minimum(np.divide(lost, every, out=np.zeros(len(lost)), where=every > 0), 1.0)
    rows = np.flatnonzero(ranges)
    rows = rows[np.lexsort((keys.check[rows], keys.key[rows], ranges[rows], share[rows]))[::-1][: rules.strips_max]]
    ends = np.searchsorted(owner, np.arange(len(keys.key) + 1))
    strips = []
    for i in rows.tolist():
        own = np.arange(ends[i], ends[i + 1])
        widest = own[np.lexsort((upper[own], width[own]))[::-1][: rules.ranges_max]].tolist()
        strips.append({
            "name": [int(keys.key[i]), int(keys.check[i])],
            "share": float(share[i]),
            "ranges": int(ranges[i]),
            "from": int(keys.least[i]),
            "to": int(keys.most[i]),
            "forgotten": None if mark[i] < 0 else int(mark[i]),
            "shown": [[int(width[j]), None if is_before[j] else int(lower[j]), int(upper[j])] for j in widest],
        })  # fmt: skip
    return strips


def _lags(rules: NoteRules, order: Any, first: Int64s, copies: Int64s, arrival: Int64s) -> dict[str, Any]:
    """A histogram of the lags of copies behind their first. ``order`` identifies messages; firsts are sorted by it."""
    lower, count, most = np.empty(0, np.int64), np.empty(0, np.int64), 0
    if rules.arrival is not None and len(first) and len(copies):
        at = np.minimum(np.searchsorted(order[first], order[copies]), len(first) - 1)
        is_there = order[first[at]] == order[copies]
        pairs = arrival[first[at[is_there]]], arrival[copies[is_there]]
        is_timed = np.logical_and.reduce([half != np.iinfo(np.int64).min for half in pairs])
        began, ended = (_milliseconds(half[is_timed], rules.arrival) for half in pairs)
        lag = ended - began
        lag = lag[((ended ^ began) & (ended ^ lag)) >= 0]  # a difference of foreign times may overflow a long
        late = np.maximum(lag, 0)
        shift = np.maximum(np.frexp(late.astype(np.float64))[1] - DIGITS, 0)
        lower, count = np.unique(late >> shift << shift, return_counts=True)
        most = int(late.max(initial=0))
    return {"lower": lower.tolist(), "count": count.tolist(), "most": most}


def _milliseconds(arrival: Int64s, unit: str) -> Int64s:
    if unit == "ms":
        return arrival
    if unit == "us":
        return arrival // 1000
    far = np.abs(arrival) > 1000 * TIMESTAMP_MAX
    return np.where(far, arrival - np.sign(arrival) * 999 * TIMESTAMP_MAX, arrival // 1000)


@dataclass(frozen=True, slots=True)
class Lags:
    """A histogram: the number of values in each bucket."""

    lower: Int64s
    count: Int64s
    most: int

    @property
    def total(self) -> int:
        return int(self.count.sum())


class Notes(NamedTuple):
    """The merged notes of all tasks."""

    keys: int
    worst: list[dict[str, Any]]
    strips: list[dict[str, Any]]
    lags: Lags
    gaps: list[str]  # the files with the missing ranges

    @classmethod
    def read(cls, folder: str, rules: NoteRules, tally: Tally) -> Notes | None:
        """Merge the notes of a run's tasks; None if they do not cover all rows in its books."""
        storage = Storage(folder)
        names = storage.names()
        tasks = [read_json(bytes(storage.read(name)), f"{folder}/{name}") for name in names if name.endswith(".json")]
        seen = np.sum([task["codes"] for task in tasks], axis=0) if tasks else np.zeros(len(rules.answers), np.int64)
        if any(tally.count(*answer) != count for answer, count in zip(rules.answers, seen.tolist(), strict=True)):
            return None
        lags = Counter[int]()
        for task in tasks:
            lags.update(dict(zip(task["lags"]["lower"], task["lags"]["count"], strict=True)))
        lower = np.array(sorted(lags), np.int64)
        return cls(
            sum(task["keys"] for task in tasks),
            _best([entry for task in tasks for entry in task["worst"]], _badness, rules.keys_max),
            _best([entry for task in tasks for entry in task["strips"]], _holes, rules.strips_max),
            Lags(lower, np.array([lags[value] for value in lower.tolist()], np.int64),
                 max((task["lags"]["most"] for task in tasks), default=0)),
            [f"{storage.url}/{name}" for name in names if name.endswith(".parquet")],
        )  # fmt: skip

    @property
    def names(self) -> list[tuple[int, int]]:
        """The hashes of the listed keys."""
        return list(dict.fromkeys((entry["name"][0], entry["name"][1]) for entry in (*self.worst, *self.strips)))


def _badness(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return sum(entry["counts"][1:]), *entry["name"]


def _holes(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["share"], entry["ranges"], *entry["name"]


def _best(entries: list[dict[str, Any]], rank: Any, most: int) -> list[dict[str, Any]]:
    return sorted(entries, key=rank, reverse=True)[:most]
