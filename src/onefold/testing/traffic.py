"""Faulty traffic from one seed, with the truth beside it.

Chains of messages are published (`messages`), sent through the faults (`delivery`), some rows are spoilt (`damage`),
and what arrives is one table in arrival order. Because the faults are ours, the right verdict of every row is known and
so is every gap (`truth`): a judge is right if it says the same. The same settings make the same traffic, byte for byte.

Cost: about a second per million rows, whatever the number of chains; nothing runs per row in Python.

The messages as they were published, before anything went wrong.

Messages lie in flat arrays, chain after chain, each chain ascending by (timestamp, sequence); so the predecessor of
message ``i`` is message ``i - 1`` of the same chain, and nothing here costs Python time per message.

The part that a row plays, and what a judge that is right must say of it.

Damage: rows that must be refused, each for exactly one reason.

A damaged row began as a copy of a true one, perhaps of one that was lost; then one thing about it was spoilt. It is
never the delivery of its message. Spoilt is only what the reason names: a row with a negative number has a whole key
and a believable arrival, so a judge that looks in another order still gives the same reason. The one exception is a
timestamp of 2^43 or more, which is also far in the future; there ``number_out_of_range`` comes first, for such a number
cannot even be compared once it is packed.

From numpy to Arrow: key columns, number columns and payloads, none of them touched row by row.

A key column has few names, so it is those names taken by index; a payload is 40 characters made from the message's
index, written as one block of bytes.

The way of the messages: what arrives, when, how often, and what never does.

Every chain has its own constant distance, so without faults its messages arrive in order. A late message is delayed on
top of that; a copy comes some time after the first delivery, never before it. So the truth is known by construction:
the row that delivers a message is FIRST, each copy of it REPEAT, and all other rows are damage.

The truth beside the traffic: what a plain set with endless memory would say, and what can be known to be missing.

A lost message is *known* to be missing once a later one arrives that names its predecessor. So of a chain's lost
messages, each maximal run that such a message follows is one range ``(lower, upper]``; a run at the end of a chain, or
in a chain that names nothing, leaves no trace.

Made traffic on disk: what arrived and the truth beside it, whole or not at all.

    path/messages/part-00000.parquet ...   or .jsonl, one object per line; in arrival order over all files
    path/truth/rows.parquet  lost.parquet  missing.parquet  traffic.json

All is written into a temporary directory beside ``path``, which is then renamed.

A run against the truth: was anything counted twice, lost, or missed?

Because the faults were ours, the right answer is known for every row; rows are matched by ``offset``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onefold.chains import rules as A
from onefold.chains.rules import SEQUENCE_BITS
from onefold.errors import Misuse
from onefold.testing.faults import DAY_MS, Faults, Plan, Range, check, plan
from onefold.verdict import Answer, Verdict

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
class TrafficMessages:
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


def publish(
    rng: np.random.Generator, lengths: Ints, *, ties: float, interval_ms: int, no_previous: float
) -> TrafficMessages:
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
    return TrafficMessages(
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


class TrafficPart(IntEnum):
    """Why a row is there; its code wherever parts travel in columns."""

    ORIGINAL = 0
    COPY = 1
    POISONED = 2
    NULL_KEY = 3
    NULL_NUMBER = 4
    NEGATIVE_NUMBER = 5
    BAD_PREVIOUS = 6
    FAR_FUTURE = 7
    BIG_SEQUENCE = 8
    BIG_TIMESTAMP = 9
    TEXT_NUMBER = 10


REJECTIONS: Final[Mapping[TrafficPart, Answer]] = {
    TrafficPart.POISONED: A.JUMP_TOO_FAR,
    TrafficPart.NULL_KEY: A.NULL_KEY,
    TrafficPart.NULL_NUMBER: A.BAD_NUMBER,
    TrafficPart.NEGATIVE_NUMBER: A.BAD_NUMBER,
    TrafficPart.BAD_PREVIOUS: A.BAD_NUMBERING,
    TrafficPart.FAR_FUTURE: A.JUMP_TOO_FAR,
    TrafficPart.BIG_SEQUENCE: A.NUMBER_OUT_OF_RANGE,
    TrafficPart.BIG_TIMESTAMP: A.NUMBER_OUT_OF_RANGE,
    TrafficPart.TEXT_NUMBER: A.BAD_NUMBER,
}
"""The parts that are damage, and the one answer to each."""

KINDS: Final = tuple(part for part in REJECTIONS if part is not TrafficPart.POISONED)
"""The kinds of malformed rows."""


FAR_MS: Final = 7_258_118_400_000
"""2200-01-01. Not later: past the year 2248 a number is out of range before it is a jump too far."""
YEAR_MS: Final = 31_536_000_000

TEXTS: Final = ("abc", "12.5", "")
"""Numbers that are none; the second is one that a careless cast makes 12."""


@dataclass(slots=True, eq=False)
class TrafficRows:
    """The columns that damage can touch, in arrival order."""

    numbers: dict[str, Ints]
    nulls: dict[str, Bools]
    """Of the key and number columns."""
    texts: dict[str, tuple[Ints, npt.NDArray[np.str_]]] = field(default_factory=dict)
    """Per number column: the rows where it holds text, and which."""

    def has_previous(self, at: Ints) -> Bools:
        """Which of these rows name a previous number."""
        return ~self.nulls[PREVIOUS[0]][at]


def spoil(rng: np.random.Generator, rows: TrafficRows, part: npt.NDArray[np.int8]) -> None:
    """Damage every row as its part says."""
    damaged = np.flatnonzero(part > TrafficPart.COPY)
    kinds = part[damaged]
    for kind, how in _HOW.items():
        how(rng, rows, damaged[kinds == kind])


def _null_key(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    column = rng.integers(0, len(KEY), len(at))
    for i, name in enumerate(KEY):
        rows.nulls[name][at[column == i]] = True


def _null_number(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    for name, where in _one_column_each(rng, rows, at):
        rows.nulls[name][where] = True


def _negative_number(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    for name, where in _one_column_each(rng, rows, at):
        rows.numbers[name][where] = -1 - rows.numbers[name][where]


def _text_number(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    for name, where in _one_column_each(rng, rows, at):
        rows.texts[name] = where, rng.choice(TEXTS, len(where))


def _one_column_each(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> Iterator[tuple[str, Ints]]:
    """One number column of each row; half a previous number is as bad as half a number."""
    column = rng.integers(0, np.where(rows.has_previous(at), 4, 2))
    for i, name in enumerate(NUMBER + PREVIOUS):
        yield name, at[column == i]


def _bad_previous(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    for number, previous in zip(NUMBER, PREVIOUS, strict=True):
        rows.numbers[previous][at] = rows.numbers[number][at] + rng.integers(0, 2, len(at))
        rows.nulls[previous][at] = False


def _far_future(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    rows.numbers["timestamp"][at] = FAR_MS + rng.integers(0, YEAR_MS, len(at))


def _poisoned(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    for number, previous in zip(NUMBER, PREVIOUS, strict=True):
        rows.numbers[previous][at] = rows.numbers[number][at]
        rows.nulls[previous][at] = False
    rows.numbers["sequence"][at] = 0
    _far_future(rng, rows, at)


def _big_sequence(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    rows.numbers["sequence"][at] = np.int64(1) << rng.integers(SEQUENCE_BITS, 63, len(at))


def _big_timestamp(rng: np.random.Generator, rows: TrafficRows, at: Ints) -> None:
    rows.numbers["timestamp"][at] = np.int64(1) << rng.integers(63 - SEQUENCE_BITS, 63, len(at))


How: TypeAlias = Callable[[np.random.Generator, TrafficRows, Ints], None]
_HOW: Final[Mapping[TrafficPart, How]] = {
    TrafficPart.POISONED: _poisoned,
    TrafficPart.NULL_KEY: _null_key,
    TrafficPart.NULL_NUMBER: _null_number,
    TrafficPart.NEGATIVE_NUMBER: _negative_number,
    TrafficPart.BAD_PREVIOUS: _bad_previous,
    TrafficPart.FAR_FUTURE: _far_future,
    TrafficPart.BIG_SEQUENCE: _big_sequence,
    TrafficPart.BIG_TIMESTAMP: _big_timestamp,
    TrafficPart.TEXT_NUMBER: _text_number,
}


KEY_FIELDS: Final = tuple(pa.field(name, pa.int32() if name == "partition" else pa.string()) for name in KEY)

PAYLOAD_CHARS: Final = 40
_HEX: Final = np.array([f"{byte:02x}" for byte in range(256)], "S2").view(np.uint16)


def schema(*, text_numbers: bool = False) -> pa.Schema:
    """The columns of the messages, in order."""
    number = pa.string() if text_numbers else pa.int64()
    numbers = [pa.field(name, number) for name in NUMBER + PREVIOUS]
    rest = [pa.field("arrival", pa.int64()), pa.field("payload", pa.string()), pa.field("offset", pa.int64())]
    return pa.schema([*KEY_FIELDS, *numbers, *rest])


def key_columns(chains: int, chain: Ints, nulls: Mapping[str, Bools] | None = None) -> list[pa.Array]:
    """The four key columns for rows of these chains."""
    columns = []
    for key_field, (names, which) in zip(KEY_FIELDS, keys(chains).values(), strict=True):
        index = pa.array(which[chain], mask=None if nulls is None else nulls[key_field.name])
        columns.append(pa.array(names, key_field.type).take(index))
    return columns


def number_columns(rows: TrafficRows, *, text_numbers: bool) -> list[pa.Array]:
    """The two numbers and the two previous ones; as text, with what text was written over them, if asked for."""
    columns = {name: pa.array(rows.numbers[name], mask=rows.nulls[name]) for name in NUMBER + PREVIOUS}
    if not text_numbers:
        return list(columns.values())
    return [_as_text(column, rows, name) for name, column in columns.items()]


def _as_text(column: pa.Array, rows: TrafficRows, name: str) -> pa.Array:
    text = pc.cast(column, pa.string())
    if name not in rows.texts:
        return text
    at, texts = rows.texts[name]
    mask = np.zeros(len(column), np.bool_)
    mask[at] = True
    return pc.replace_with_mask(text, pa.array(mask), pa.array(texts, pa.string()))


def payloads(seed: int, ids: Ints) -> pa.Array:
    """A payload for each id; equal ids have equal payloads."""
    words = np.empty((len(ids), PAYLOAD_CHARS // 2), np.uint16)
    words[:, :4] = np.frombuffer(b"reading=", np.uint16)
    salted = ids.astype(np.uint64) + _mixed(np.array([seed], np.uint64))
    words[:, 4:12] = _HEX[_mixed(salted).view(np.uint8).reshape(-1, 8)]
    words[:, 12:] = _HEX[_mixed(~salted).view(np.uint8).reshape(-1, 8)]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * PAYLOAD_CHARS
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(words))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: neighbours come out as strangers. Products wrap, as they should: these are arrays, not scalars."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


DISTANCE_MAX_MS: Final = 100
"""From any publisher to us: within one continent."""


@dataclass(frozen=True, slots=True, eq=False)
class FaultyDelivery:
    """Rows in arrival order: the message each comes from, when it arrives and the part it plays."""

    source: Ints
    arrival: Ints
    part: npt.NDArray[np.int8]
    lost: Bools
    """Per message, not per row."""


def deliver(
    rng: np.random.Generator, sent: TrafficMessages, plan: Plan, faults: Faults, *, text_numbers: bool
) -> FaultyDelivery:
    """Send all messages through the faults."""
    arrival = _late(rng, sent, faults)
    heads = _late_heads(rng, sent, plan, faults)
    _hold_back(rng, heads, arrival, faults)
    lost = _losses(rng, sent, heads, plan.lost)
    originals = np.flatnonzero(~lost)
    copies = _copies(rng, originals, plan)
    victims = rng.choice(len(sent.starts), plan.poisoned, replace=False)
    poisoned = sent.starts[victims] + rng.integers(0, sent.lengths[victims])
    malformed = rng.integers(0, len(sent), plan.malformed)
    kinds = [kind for kind in KINDS if text_numbers or kind is not TrafficPart.TEXT_NUMBER]
    extra = [
        np.full(len(copies), TrafficPart.COPY),
        np.full(len(poisoned), TrafficPart.POISONED),
        np.resize(kinds, len(malformed)),
    ]
    source = np.concatenate([originals, copies, poisoned, malformed])
    part = np.concatenate([np.full(len(originals), TrafficPart.ORIGINAL), *extra]).astype(np.int8)
    arrivals = arrival[source]
    arrivals[len(originals) :] += rng.integers(0, faults.copy_delay_ms, len(source) - len(originals), endpoint=True)
    order = np.argsort(arrivals, kind="stable")  # stable: at the same ms an original stays before its copies
    return FaultyDelivery(source[order], arrivals[order], part[order], lost)


def _late(rng: np.random.Generator, sent: TrafficMessages, faults: Faults) -> Ints:
    """When each message would arrive first, were none lost."""
    on_time = sent.timestamp + rng.integers(1, DISTANCE_MAX_MS, len(sent.starts), endpoint=True)[sent.chain]
    late = np.flatnonzero(rng.random(len(sent)) < faults.reorder)
    latest = on_time[late] + faults.reorder_ms
    successor = np.minimum(late + 1, len(sent) - 1)
    follows = sent.chain[successor] == sent.chain[late]
    earliest = np.where(follows, np.minimum(on_time[successor] + 1, latest), on_time[late])
    arrival = on_time.copy()
    arrival[late] = rng.integers(earliest, latest, endpoint=True)
    return arrival


def _late_heads(rng: np.random.Generator, sent: TrafficMessages, plan: Plan, faults: Faults) -> Ints:
    """The first messages that shall arrive after their successors; both will be spared by the losses."""
    able = np.flatnonzero(sent.lengths > 1)
    chains = len(sent.starts)
    count = min(round(faults.late_heads * chains), len(able), plan.originals - chains)
    heads: Ints = sent.starts[rng.choice(able, count, replace=False)]
    return heads


def _hold_back(rng: np.random.Generator, heads: Ints, arrival: Ints, faults: Faults) -> None:
    delay = 1 + rng.integers(0, faults.reorder_ms, len(heads), endpoint=True)
    arrival[heads] = np.maximum(arrival[heads], arrival[heads + 1]) + delay


def _losses(rng: np.random.Generator, sent: TrafficMessages, heads: Ints, count: int) -> Bools:
    spared = np.zeros(len(sent), np.bool_)
    kept = sent.starts + rng.integers(0, sent.lengths)
    kept[sent.chain[heads]] = heads
    spared[kept] = True
    spared[heads + 1] = True
    lost = np.zeros(len(sent), np.bool_)
    lost[rng.choice(np.flatnonzero(~spared), count, replace=False)] = True
    return lost


def _copies(rng: np.random.Generator, originals: Ints, plan: Plan) -> Ints:
    copied = rng.choice(originals, plan.copied, replace=False)
    again = rng.choice(copied, plan.copies - plan.copied) if plan.copies else copied
    return np.concatenate([copied, again])


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What is so, whatever a judge may say."""

    rows: pa.Table
    """Per row, by ``offset``: ``verdict``; ``reason`` and the kind of ``damage``, null unless it is a REJECT."""
    lost: pa.Table
    """The messages never delivered: key, ``timestamp``, ``sequence``."""
    missing: pa.Table
    """The ranges known to be missing: key, ``lower_*`` (the last delivered below; null at the start of a chain) and
    ``upper_*`` (the last lost one), both a timestamp and a sequence."""


def truth(sent: TrafficMessages, part: npt.NDArray[np.int8], lost: Bools) -> Truth:
    """All three tables."""
    return Truth(_rows(part), _lost(sent, lost), _missing(sent, lost))


def _rows(part: npt.NDArray[np.int8]) -> pa.Table:
    delivers = {TrafficPart.ORIGINAL: Verdict.FIRST, TrafficPart.COPY: Verdict.REPEAT}
    verdicts = [str(delivers.get(p, Verdict.REJECT)) for p in TrafficPart]
    reasons = [REJECTIONS[p].reason if p in REJECTIONS else None for p in TrafficPart]
    damages = [p.name.lower() if p in REJECTIONS else None for p in TrafficPart]
    code = pa.array(part)
    columns = {
        "offset": pa.array(np.arange(len(part))),
        "verdict": pa.array(verdicts, pa.string()).take(code),
        "reason": pa.array(reasons, pa.string()).take(code),
        "damage": pa.array(damages, pa.string()).take(code),
    }
    return pa.table(columns)


def _lost(sent: TrafficMessages, lost: Bools) -> pa.Table:
    at = np.flatnonzero(lost)
    return _keyed(sent, at, {"timestamp": pa.array(sent.timestamp[at]), "sequence": pa.array(sent.sequence[at])})


def _missing(sent: TrafficMessages, lost: Bools) -> pa.Table:
    # Only a message that is not the first of its chain names one, so its neighbour is of the same chain.
    upper = np.flatnonzero(lost[:-1] & ~lost[1:] & sent.names_previous[1:])
    delivered = np.maximum.accumulate(np.where(lost, -1, np.arange(len(sent))))
    lower = delivered[upper]
    none = lower < sent.starts[sent.chain[upper]]
    columns = {
        "lower_timestamp": pa.array(sent.timestamp[lower], mask=none),
        "lower_sequence": pa.array(sent.sequence[lower], mask=none),
        "upper_timestamp": pa.array(sent.timestamp[upper]),
        "upper_sequence": pa.array(sent.sequence[upper]),
    }
    return _keyed(sent, upper, columns)


def _keyed(sent: TrafficMessages, at: Ints, columns: dict[str, pa.Array]) -> pa.Table:
    fields = [*KEY_FIELDS, *(pa.field(name, pa.int64()) for name in columns)]
    keys = key_columns(len(sent.starts), sent.chain[at])
    return pa.Table.from_arrays([*keys, *columns.values()], schema=pa.schema(fields))


__all__ = ["Faults", "Made", "Traffic", "Truth", "make"]

SPAN_MAX_MS: Final = 200_000_000_000
"""Six years: the most that ``rows * interval_ms`` may be, so that the far future stays far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What to make.

    >>> Traffic(rows=10, chains=20)
    Traceback (most recent call last):
    onefold.errors.Misuse: chains is 20, must be at most rows, which is 10
    """

    seed: int = 1
    rows: int = 10_000
    """Delivered rows, exactly: originals, copies, poisoned and malformed."""
    chains: int = 100
    skew: float = 0.0
    """How unequal the chains are: 0 equal, 1 as words are in a text (Zipf)."""
    ties: float = 0.05
    """Share of messages in the same ms as the one before; their sequence goes up instead."""
    interval_ms: int = 1_000
    """Mean time between two messages of a chain."""
    text_numbers: bool = False
    """Number columns as strings, as they come from CSV; then some malformed numbers are text."""
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        check(self, RANGES)
        if self.chains > self.rows:
            raise Misuse(f"chains is {self.chains}, must be at most rows, which is {self.rows}", chains=self.chains)
        if self.rows * self.interval_ms > SPAN_MAX_MS:
            most = SPAN_MAX_MS // self.rows
            text = f"interval_ms is {self.interval_ms}, must be at most {most} for {self.rows} rows"
            raise Misuse(text, interval_ms=self.interval_ms)
        if self.text_numbers not in (True, False):
            text = f"text_numbers is {self.text_numbers!r}, must be true or false"
            raise Misuse(text, text_numbers=self.text_numbers)
        plan(self.rows, self.chains, self.faults)


RANGES: Final[Mapping[str, Range]] = {
    "seed": (0, 2**63 - 1),
    "rows": (1, 50_000_000),  # above it the payloads no longer fit into one Arrow string column of 2 GiB
    "chains": (1, 50_000_000),
    "skew": (0.0, 4.0),
    "ties": (0.0, 0.9),  # so that no sequence ever comes near its limit of 2^20
    "interval_ms": (1, DAY_MS),
}


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Traffic, and the truth about it."""

    traffic: Traffic
    messages: pa.Table
    """In arrival order; ``offset`` is the row's place in it."""
    truth: Truth


def make(traffic: Traffic) -> Made:
    """Make the traffic.

    >>> made = make(Traffic(rows=1000, chains=10))
    >>> len(made.messages), made.messages.column_names[4:8]
    (1000, ['timestamp', 'sequence', 'previous_timestamp', 'previous_sequence'])
    """
    rng = np.random.default_rng(traffic.seed)
    faults, text_numbers = traffic.faults, traffic.text_numbers
    counts = plan(traffic.rows, traffic.chains, faults)
    lengths = spread(rng, counts.messages, traffic.chains, traffic.skew)
    sent = publish(rng, lengths, ties=traffic.ties, interval_ms=traffic.interval_ms, no_previous=faults.no_previous)
    delivery = deliver(rng, sent, counts, faults, text_numbers=text_numbers)
    rows = _traffic_rows(sent, delivery)
    spoil(rng, rows, delivery.part)
    return Made(traffic, _table(traffic, sent, delivery, rows), truth(sent, delivery.part, delivery.lost))


def _traffic_rows(sent: TrafficMessages, delivery: FaultyDelivery) -> TrafficRows:
    at = delivery.source
    no_previous = ~sent.names_previous[at]
    before = np.where(no_previous, at, at - 1)
    numbers = {
        "timestamp": sent.timestamp[at],
        "sequence": sent.sequence[at],
        "previous_timestamp": sent.timestamp[before],
        "previous_sequence": sent.sequence[before],
    }
    nulls = {name: np.zeros(len(at), np.bool_) for name in (*KEY, "timestamp", "sequence")}
    nulls |= {name: no_previous.copy() for name in ("previous_timestamp", "previous_sequence")}
    return TrafficRows(numbers, nulls)


def _table(traffic: Traffic, sent: TrafficMessages, delivery: FaultyDelivery, rows: TrafficRows) -> pa.Table:
    # A poisoned row is no copy: it has a payload of its own.
    ids = delivery.source + len(sent) * (delivery.part == TrafficPart.POISONED)
    columns = [
        *key_columns(traffic.chains, sent.chain[delivery.source], rows.nulls),
        *number_columns(rows, text_numbers=traffic.text_numbers),
        pa.array(delivery.arrival),
        payloads(traffic.seed, ids),
        pa.array(np.arange(traffic.rows)),
    ]
    return pa.Table.from_arrays(columns, schema=schema(text_numbers=traffic.text_numbers))


Format: TypeAlias = Literal["parquet", "jsonl"]

FILE_COUNT_MAX: Final = 10_000
LINES_AT_ONCE: Final = 100_000
"""About 30 MB of text: far below the 2 GiB of an Arrow string column."""


def write(made: Made, path: str | Path, format: Format = "parquet", files: int = 1) -> None:
    """Write traffic and truth below ``path``, which must not exist or be empty."""
    path = Path(path)
    if format not in _WRITERS:
        raise Misuse(f"format is {format!r}, must be one of {', '.join(_WRITERS)}", format=format)
    if type(files) is not int or not 1 <= files <= FILE_COUNT_MAX:
        raise Misuse(f"files is {files!r}, must be a whole number between 1 and {FILE_COUNT_MAX}", files=files)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise Misuse(f"path is {str(path)!r}, which exists and is not an empty directory", path=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        whole = Path(temporary) / path.name  # one level down: the temporary directory itself is for our eyes only
        _write_messages(made.messages, whole / "messages", format, files)
        _write_truth(made, whole / "truth")
        whole.rename(path)


def _write_messages(messages: pa.Table, folder: Path, format: Format, files: int) -> None:
    folder.mkdir(parents=True)
    for i in range(files):
        begin, end = (len(messages) * n // files for n in (i, i + 1))
        _WRITERS[format](messages.slice(begin, end - begin), folder / f"part-{i:05}.{format}")


def _write_truth(made: Made, folder: Path) -> None:
    folder.mkdir()
    for name in ("rows", "lost", "missing"):
        pq.write_table(getattr(made.truth, name), folder / f"{name}.parquet")
    (folder / "traffic.json").write_text(json.dumps(asdict(made.traffic), indent=2) + "\n")


def _write_parquet(table: pa.Table, file: Path) -> None:
    pq.write_table(table, file)


def _write_jsonl(table: pa.Table, file: Path) -> None:
    with file.open("wb") as out:
        for batch in table.to_batches(max_chunksize=LINES_AT_ONCE):
            lines = pc.binary_join_element_wise(*_pieces(batch), "")
            every_line = pa.ListArray.from_arrays([0, len(lines)], lines)
            out.write(pc.binary_join(every_line, "")[0].as_buffer())


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.Array | str]:
    """What the lines of this batch are joined from: texts that are the same for all, and columns."""
    before = "{"
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield f'{before}"{name}":'
        yield _json_values(column)
        before = ","
    yield "}\n"


def _json_values(column: pa.Array) -> pa.Array:
    # Nothing is escaped: traffic makes no text that holds a quote, a backslash or a control character.
    is_text = pa.types.is_string(column.type)
    values = pc.binary_join_element_wise('"', column, '"', "") if is_text else pc.cast(column, pa.string())
    return pc.fill_null(values, "null")


_WRITERS: Final[Mapping[str, Callable[[pa.Table, Path], None]]] = {"parquet": _write_parquet, "jsonl": _write_jsonl}


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
