"""Faulty traffic from one seed, with the truth about it.

Chains of messages are published (`publish`), sent through the faults (`deliver`), and some rows are damaged (`spoil`);
the result is one table in arrival order. As the faults are simulated, the right verdict of every row and every gap are
known (`truth`), and a judge can be compared with them (`score`). The same settings make the same traffic, byte by byte.

Messages lie in flat arrays, chain after chain, each chain ascending by (timestamp, sequence); so the predecessor of
message ``i`` is message ``i - 1`` of the same chain. Every chain has a constant delay, so without faults its messages
arrive in order. A late message is delayed further; a copy arrives after the first delivery, never before it. So the row
that delivers a message is FIRST, each copy of it REPEAT, and all other rows are damage.

A damaged row is a copy of a message, perhaps of a lost one, with one thing changed. It is never the delivery of its
message. Only what the reason names is changed: a row with a negative number has a whole key and a plausible arrival, so
a judge that checks in another order still gives the same reason. The one exception is a timestamp of 2^43 or more,
which is also far in the future; there ``number_out_of_range`` comes first, since such a number cannot be packed.

A lost message is *known* to be missing once a later one arrives that names its predecessor. So each maximal run of lost
messages that is followed by such a message is one range ``(lower, upper]``; a run at the end of a chain, or in a chain
without previous numbers, leaves no trace.

Cost: about a second per million rows, whatever the number of chains; nothing runs per row in Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onefold.chains import rules
from onefold.errors import Misuse
from onefold.testing.faults import DAY_MS, Faults, MostlyLess, Plan, check, plan, whole_folder
from onefold.verdict import Answer, Verdict

if TYPE_CHECKING:
    from onefold.testing.readings import Readings

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

BEGIN_MS: Final = 1_704_067_200_000
"""2024-01-01: the earliest timestamp."""

KEY: Final = ("stream", "partition", "publisher", "chain")
NUMBER: Final = ("timestamp", "sequence")
PREVIOUS: Final = ("previous_timestamp", "previous_sequence")

CHAIN_IDS: Final = ("main", "alarm", "bulk")
PARTITION_COUNT: Final = 4
FAR_MS: Final = 7_258_118_400_000
"""2200-01-01. Not later: past the year 2248 a number is out of range before it is a jump too far."""
YEAR_MS: Final = 31_536_000_000
TEXTS: Final = ("abc", "12.5", "")
"""Invalid numbers; a careless cast turns the second into 12."""
KEY_FIELDS: Final = tuple(pa.field(name, pa.int32() if name == "partition" else pa.string()) for name in KEY)
PAYLOAD_CHARS: Final = 40
_HEX: Final = np.array([f"{byte:02x}" for byte in range(256)], "S2").view(np.uint16)
DISTANCE_MAX_MS: Final = 100
"""Delay from any publisher: within one continent."""
SPAN_MAX_MS: Final = 200_000_000_000
"""Six years: the limit of ``rows * interval_ms``, so that the far future stays far."""
Format: TypeAlias = Literal["parquet", "jsonl"]
FILE_COUNT_MAX: Final = 10_000
LINES_AT_ONCE: Final = 100_000
"""About 30 MB of text: far below the 2 GiB of an Arrow string column."""
_RANGE = ("lower_timestamp", "lower_sequence", "upper_timestamp", "upper_sequence")


@dataclass(frozen=True, slots=True, eq=False)
class TrafficMessages:
    starts: Ints
    """Per chain: the index of its first message."""
    lengths: Ints
    chain: Ints
    """Per message, like all below: the index of its chain."""
    timestamp: Ints
    sequence: Ints
    names_previous: Bools
    """False for the first message of a chain, and for all of a best-effort chain."""

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
    rest = messages - int(lengths.sum())
    largest_remainders = np.argsort(np.floor(shares) - shares, kind="stable")[:rest]
    lengths[largest_remainders] += 1
    return lengths if skew == 0 else rng.permutation(lengths)


def key_columns(chains: int, chain: Ints, nulls: Mapping[str, Bools] | None = None) -> list[pa.Array]:
    """The four key columns for rows of these chains; neighbouring chains differ in one column only."""
    rest, chain_id = np.divmod(np.arange(chains), len(CHAIN_IDS))
    rest, partition = np.divmod(rest, PARTITION_COUNT)
    side = math.isqrt(int(rest[-1])) + 1
    publisher, stream = np.divmod(rest, side)
    # Per column its few names, and which of them each chain has.
    keys: dict[str, tuple[list[str] | list[int], Ints]] = {
        "stream": ([f"sensors/{i}" for i in range(side)], stream),
        "partition": (list(range(PARTITION_COUNT)), partition),
        # An odd factor modulo 2^32 maps one to one: publishers look like addresses and never collide.
        "publisher": ([f"0x{(i + 1) * 2_654_435_761 % 2**32:08x}" for i in range(side)], publisher),
        "chain": (list(CHAIN_IDS), chain_id),
    }
    columns = []
    for key_field, (names, which) in zip(KEY_FIELDS, keys.values(), strict=True):
        index = pa.array(which[chain], mask=None if nulls is None else nulls[key_field.name])
        columns.append(pa.array(names, key_field.type).take(index))
    return columns


class TrafficPart(IntEnum):
    """Why a row exists; the value is its code in columns."""

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
    TrafficPart.POISONED: rules.JUMP_TOO_FAR,
    TrafficPart.NULL_KEY: rules.NULL_KEY,
    TrafficPart.NULL_NUMBER: rules.BAD_NUMBER,
    TrafficPart.NEGATIVE_NUMBER: rules.BAD_NUMBER,
    TrafficPart.BAD_PREVIOUS: rules.BAD_NUMBERING,
    TrafficPart.FAR_FUTURE: rules.JUMP_TOO_FAR,
    TrafficPart.BIG_SEQUENCE: rules.NUMBER_OUT_OF_RANGE,
    TrafficPart.BIG_TIMESTAMP: rules.NUMBER_OUT_OF_RANGE,
    TrafficPart.TEXT_NUMBER: rules.BAD_NUMBER,
}
"""The kinds of damage, with the answer to each."""

KINDS: Final = tuple(part for part in REJECTIONS if part is not TrafficPart.POISONED)


def spoil(
    rng: np.random.Generator, numbers: dict[str, Ints], nulls: dict[str, Bools], part: npt.NDArray[np.int8]
) -> dict[str, tuple[Ints, npt.NDArray[np.str_]]]:
    """Damage every row according to its part; returns per number column the rows that hold text, and the texts."""
    texts = {}
    damaged = np.flatnonzero(part > TrafficPart.COPY)
    for kind in REJECTIONS:
        at = damaged[part[damaged] == kind]
        if kind in (TrafficPart.POISONED, TrafficPart.BAD_PREVIOUS):
            for number, previous in zip(NUMBER, PREVIOUS, strict=True):
                more = rng.integers(0, 2, len(at)) if kind is TrafficPart.BAD_PREVIOUS else 0
                numbers[previous][at] = numbers[number][at] + more
                nulls[previous][at] = False
        if kind is TrafficPart.POISONED:
            numbers["sequence"][at] = 0
        if kind in (TrafficPart.POISONED, TrafficPart.FAR_FUTURE):
            numbers["timestamp"][at] = FAR_MS + rng.integers(0, YEAR_MS, len(at))
        elif kind is TrafficPart.NULL_KEY:
            column = rng.integers(0, len(KEY), len(at))
            for i, name in enumerate(KEY):
                nulls[name][at[column == i]] = True
        elif kind is TrafficPart.BIG_SEQUENCE:
            numbers["sequence"][at] = np.int64(1) << rng.integers(rules.SEQUENCE_BITS, 63, len(at))
        elif kind is TrafficPart.BIG_TIMESTAMP:
            numbers["timestamp"][at] = np.int64(1) << rng.integers(63 - rules.SEQUENCE_BITS, 63, len(at))
        elif kind is not TrafficPart.BAD_PREVIOUS:
            # One number column of each row; half a previous number is as bad as half a number.
            column = rng.integers(0, np.where(nulls[PREVIOUS[0]][at], 2, 4))
            for i, name in enumerate(NUMBER + PREVIOUS):
                chosen = at[column == i]
                if kind is TrafficPart.NULL_NUMBER:
                    nulls[name][chosen] = True
                elif kind is TrafficPart.NEGATIVE_NUMBER:
                    numbers[name][chosen] = -1 - numbers[name][chosen]
                else:
                    texts[name] = chosen, rng.choice(TEXTS, len(chosen))
    return texts


def schema(*, text_numbers: bool = False) -> pa.Schema:
    number = pa.string() if text_numbers else pa.int64()
    numbers = [pa.field(name, number) for name in NUMBER + PREVIOUS]
    rest = [pa.field("arrival", pa.int64()), pa.field("payload", pa.string()), pa.field("offset", pa.int64())]
    return pa.schema([*KEY_FIELDS, *numbers, *rest])


def payloads(seed: int, ids: Ints) -> pa.Array:
    """40 characters for each id, written as one block of bytes; equal ids have equal payloads."""
    words = np.empty((len(ids), PAYLOAD_CHARS // 2), np.uint16)
    words[:, :4] = np.frombuffer(b"reading=", np.uint16)
    salted = ids.astype(np.uint64) + _mixed(np.array([seed], np.uint64))
    words[:, 4:12] = _HEX[_mixed(salted).view(np.uint8).reshape(-1, 8)]
    words[:, 12:] = _HEX[_mixed(~salted).view(np.uint8).reshape(-1, 8)]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * PAYLOAD_CHARS
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(words))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64, which turns similar words into unrelated ones. Products wrap without a warning in arrays."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def deliver(
    rng: np.random.Generator, messages: TrafficMessages, plan: Plan, faults: Faults, *, text_numbers: bool
) -> tuple[Ints, Ints, npt.NDArray[np.int8], Bools]:
    """Rows in arrival order: message, arrival and part of each; and per message whether it is lost."""
    count, starts, chain = len(messages), messages.starts, messages.chain
    # The first arrival of each message if none were lost.
    on_time = messages.timestamp + rng.integers(1, DISTANCE_MAX_MS, len(starts), endpoint=True)[chain]
    late = np.flatnonzero(rng.random(count) < faults.reorder)
    latest = on_time[late] + faults.reorder_ms
    successor = np.minimum(late + 1, count - 1)
    follows = chain[successor] == chain[late]
    earliest = np.where(follows, np.minimum(on_time[successor] + 1, latest), on_time[late])
    arrival = on_time.copy()
    arrival[late] = rng.integers(earliest, latest, endpoint=True)
    # First messages that arrive after their successors; both are never lost.
    able = np.flatnonzero(messages.lengths > 1)
    head_count = min(round(faults.late_heads * len(starts)), len(able), plan.originals - len(starts))
    heads = starts[rng.choice(able, head_count, replace=False)]
    delay = 1 + rng.integers(0, faults.reorder_ms, len(heads), endpoint=True)
    arrival[heads] = np.maximum(arrival[heads], arrival[heads + 1]) + delay
    # Each chain keeps at least one message.
    survivors = starts + rng.integers(0, messages.lengths)
    survivors[chain[heads]] = heads
    spared = np.zeros(count, np.bool_)
    spared[survivors] = True
    spared[heads + 1] = True
    lost = np.zeros(count, np.bool_)
    lost[rng.choice(np.flatnonzero(~spared), plan.lost, replace=False)] = True
    originals = np.flatnonzero(~lost)
    copied = rng.choice(originals, plan.copied, replace=False)
    again = rng.choice(copied, plan.copies - plan.copied) if plan.copies else copied
    victims = rng.choice(len(starts), plan.poisoned, replace=False)
    poisoned = starts[victims] + rng.integers(0, messages.lengths[victims])
    malformed = rng.integers(0, count, plan.malformed)
    kinds = [kind for kind in KINDS if text_numbers or kind is not TrafficPart.TEXT_NUMBER]
    source = np.concatenate([originals, copied, again, poisoned, malformed])
    parts = [
        np.full(len(originals), TrafficPart.ORIGINAL),
        np.full(len(copied) + len(again), TrafficPart.COPY),
        np.full(len(poisoned), TrafficPart.POISONED),
        np.resize(kinds, len(malformed)),
    ]
    part = np.concatenate(parts).astype(np.int8)
    arrivals = arrival[source]
    arrivals[len(originals) :] += rng.integers(0, faults.copy_delay_ms, len(source) - len(originals), endpoint=True)
    order = np.argsort(arrivals, kind="stable")  # stable: at the same ms an original stays before its copies
    return source[order], arrivals[order], part[order], lost


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The right answers."""

    rows: pa.Table
    """Per row, by ``offset``: ``verdict``; ``reason`` and the kind of ``damage``, null unless it is a REJECT."""
    lost: pa.Table
    """The messages never delivered: key, ``timestamp``, ``sequence``."""
    missing: pa.Table
    """The ranges known to be missing: key, ``lower_*`` (the last delivered below; null at the start of a chain) and
    ``upper_*`` (the last lost one), both a timestamp and a sequence."""
    reboots: pa.Table | None = None
    """For readings: the first reading after each reboot."""


def truth(messages: TrafficMessages, part: npt.NDArray[np.int8], lost: Bools) -> Truth:
    """The verdicts of a set with unlimited memory, and the ranges that can be known to be missing."""
    delivers = {TrafficPart.ORIGINAL: Verdict.FIRST, TrafficPart.COPY: Verdict.REPEAT}
    texts = {
        "verdict": [str(delivers.get(p, Verdict.REJECT)) for p in TrafficPart],
        "reason": [REJECTIONS[p].reason if p in REJECTIONS else None for p in TrafficPart],
        "damage": [p.name.lower() if p in REJECTIONS else None for p in TrafficPart],
    }
    columns = {name: pa.array(values, pa.string()).take(pa.array(part)) for name, values in texts.items()}
    rows = pa.table({"offset": pa.array(np.arange(len(part))), **columns})

    def keyed(at: Ints, columns: dict[str, pa.Array]) -> pa.Table:
        fields = [*KEY_FIELDS, *(pa.field(name, pa.int64()) for name in columns)]
        keys = key_columns(len(messages.starts), messages.chain[at])
        return pa.Table.from_arrays([*keys, *columns.values()], schema=pa.schema(fields))

    timestamp, sequence, at = messages.timestamp, messages.sequence, np.flatnonzero(lost)
    # Only a message that is not the first of its chain names one, so its neighbour is of the same chain.
    upper = np.flatnonzero(lost[:-1] & ~lost[1:] & messages.names_previous[1:])
    lower = np.maximum.accumulate(np.where(lost, -1, np.arange(len(messages))))[upper]
    none = lower < messages.starts[messages.chain[upper]]
    missing = {
        "lower_timestamp": pa.array(timestamp[lower], mask=none),
        "lower_sequence": pa.array(sequence[lower], mask=none),
        "upper_timestamp": pa.array(timestamp[upper]),
        "upper_sequence": pa.array(sequence[upper]),
    }
    lost_columns = {"timestamp": pa.array(timestamp[at]), "sequence": pa.array(sequence[at])}
    return Truth(rows, keyed(at, lost_columns), keyed(upper, missing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What to make.

    >>> Traffic(rows=10, chains=20)
    Traceback (most recent call last):
    onefold.errors.Misuse: chains is 20, must be at most rows, which is 10
    """

    seed: Annotated[int, (0, 2**63 - 1)] = 1
    rows: Annotated[int, (1, 50_000_000)] = 10_000  # of more the payloads do not fit into a string column of 2 GiB
    """Delivered rows, exactly: originals, copies, poisoned and malformed."""
    chains: Annotated[int, (1, 50_000_000)] = 100
    skew: Annotated[float, (0.0, 4.0)] = 0.0
    """How unequal the chains are: 0 equal, 1 as words are in a text (Zipf)."""
    ties: MostlyLess = 0.05  # so that no sequence ever comes near its limit of 2^20
    """Share of messages in the same ms as the one before; their sequence goes up instead."""
    interval_ms: Annotated[int, (1, DAY_MS)] = 1_000
    """Mean time between two messages of a chain."""
    text_numbers: bool = False
    """Number columns as strings, as they come from CSV; then some malformed numbers are text."""
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        check(self)
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


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """The messages as a table, and the truth about them; `write` puts both into a folder."""

    traffic: Traffic | Readings
    messages: pa.Table
    """In arrival order; ``offset`` is the row's index."""
    truth: Truth

    @property
    def settings(self) -> Traffic | Readings:
        return self.traffic

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        tables = {name: getattr(self.truth, name) for name in ("rows", "lost", "missing", "reboots")}
        return {name: table for name, table in tables.items() if table is not None}


def make(traffic: Traffic) -> Made:
    """Make the traffic.

    >>> made = make(Traffic(rows=1000, chains=10))
    >>> len(made.messages), made.messages.column_names[4:8]
    (1000, ['timestamp', 'sequence', 'previous_timestamp', 'previous_sequence'])
    """
    rng = np.random.default_rng(traffic.seed)
    faults, text_numbers = traffic.faults, traffic.text_numbers
    counts = plan(traffic.rows, traffic.chains, faults)
    lengths = spread(rng, counts.originals + counts.lost, traffic.chains, traffic.skew)
    messages = publish(rng, lengths, ties=traffic.ties, interval_ms=traffic.interval_ms, no_previous=faults.no_previous)
    at, arrival, part, lost = deliver(rng, messages, counts, faults, text_numbers=text_numbers)
    no_previous = ~messages.names_previous[at]
    before = np.where(no_previous, at, at - 1)
    numbers = {
        "timestamp": messages.timestamp[at],
        "sequence": messages.sequence[at],
        "previous_timestamp": messages.timestamp[before],
        "previous_sequence": messages.sequence[before],
    }
    nulls = {name: np.zeros(len(at), np.bool_) for name in KEY + NUMBER}
    nulls |= {name: no_previous.copy() for name in PREVIOUS}
    texts = spoil(rng, numbers, nulls, part)
    columns = {name: pa.array(numbers[name], mask=nulls[name]) for name in NUMBER + PREVIOUS}
    if text_numbers:
        columns = {name: pc.cast(column, pa.string()) for name, column in columns.items()}
        for name, (rows, words) in texts.items():
            mask = np.zeros(len(at), np.bool_)
            mask[rows] = True
            columns[name] = pc.replace_with_mask(columns[name], pa.array(mask), pa.array(words, pa.string()))
    # A poisoned row is no copy: it has a payload of its own.
    payload = payloads(traffic.seed, at + len(messages) * (part == TrafficPart.POISONED))
    columns |= {"arrival": pa.array(arrival), "payload": payload, "offset": pa.array(np.arange(traffic.rows))}
    keys = key_columns(traffic.chains, messages.chain[at], nulls)
    table = pa.Table.from_arrays([*keys, *columns.values()], schema=schema(text_numbers=text_numbers))
    return Made(traffic, table, truth(messages, part, lost))


class Delivered(Protocol):
    """Traffic of any kind, with the truth about it."""

    @property
    def settings(self) -> Any: ...
    @property
    def messages(self) -> pa.Table: ...
    @property
    def tables(self) -> Mapping[str, pa.Table]: ...


def write(made: Delivered, path: str | Path, format: Format = "parquet", files: int = 1) -> None:
    """Write traffic and truth below ``path``, which must not exist or be empty, completely or not at all.

    path/messages/part-00000.parquet ...   or .jsonl, one object per line; in arrival order over all files
    path/truth/rows.parquet  traffic.json  and of chains and devices  lost.parquet  missing.parquet  (reboots.parquet)
    """
    path, formats = Path(path), get_args(Format)
    if format not in formats:
        raise Misuse(f"format is {format!r}, must be one of {', '.join(formats)}", format=format)
    if type(files) is not int or not 1 <= files <= FILE_COUNT_MAX:
        raise Misuse(f"files is {files!r}, must be a whole number between 1 and {FILE_COUNT_MAX}", files=files)
    with whole_folder(path, "path") as whole:
        (whole / "messages").mkdir()
        (whole / "truth").mkdir()
        for i in range(files):
            begin, end = (len(made.messages) * n // files for n in (i, i + 1))
            table, file = made.messages.slice(begin, end - begin), whole / "messages" / f"part-{i:05}.{format}"
            if format == "parquet":
                pq.write_table(table, file)
            else:
                write_jsonl(table, file)
        for name, truth in made.tables.items():
            pq.write_table(truth, whole / "truth" / f"{name}.parquet")
        (whole / "truth" / "traffic.json").write_text(json.dumps(asdict(made.settings), indent=2) + "\n")


def write_jsonl(table: pa.Table, file: Path) -> None:
    """One object per line. Needs no escaping: traffic has no quotes, backslashes or control characters."""
    with file.open("wb") as out:
        for batch in table.to_batches(max_chunksize=LINES_AT_ONCE):
            pieces: list[pa.Array | str] = []  # constant texts, and columns
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_timestamp(column.type):
                    column = pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
                is_text = pa.types.is_string(column.type)
                values = pc.binary_join_element_wise('"', column, '"', "") if is_text else pc.cast(column, pa.string())
                pieces += [f'{"," if pieces else "{"}"{name}":', pc.fill_null(values, "null")]
            lines = pc.binary_join_element_wise(*pieces, "}\n", "")
            every_line = pa.ListArray.from_arrays([0, len(lines)], lines)
            out.write(pc.binary_join(every_line, "")[0].as_buffer())


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far a run is from the truth; perfect if all counts of errors are 0 and all ranges are found."""

    rows: int
    counted_twice: int
    """Copies judged FIRST."""
    lost: int
    """New messages not judged FIRST."""
    accepted: int
    """Damaged rows that were not rejected."""
    ranges: int
    """Missing ranges in truth."""
    ranges_found: int
    ranges_invented: int

    @property
    def perfect(self) -> bool:
        """Whether nothing is counted twice, lost, accepted or invented, and every missing range is found."""
        wrong = self.counted_twice + self.lost + self.accepted + self.ranges_invented
        return wrong == 0 and self.ranges_found == self.ranges


def score(run: Path, truth: Path) -> Score:
    """Compare a run's folder (strategy drop) with the truth that `write` wrote, by ``offset``."""
    rows = pq.read_table(truth / "rows.parquet", columns=["offset", "verdict"])
    verdicts = np.full(rows.num_rows, "", dtype="U6")
    for verdict, folder in zip(Verdict, ("firsts", "repeats", "unsure", "rejects"), strict=True):
        verdicts[pq.read_table(run / folder, columns=["offset"])["offset"].to_numpy()] = str(verdict)
    true = rows["verdict"].to_numpy(zero_copy_only=False).astype("U6")
    reported, real = _ranges(pq.read_table(run / "gaps")), _ranges(pq.read_table(truth / "missing.parquet"))
    return Score(
        rows=rows.num_rows,
        counted_twice=int(np.sum((true == "REPEAT") & (verdicts == "FIRST"))),
        lost=int(np.sum((true == "FIRST") & (verdicts != "FIRST"))),
        accepted=int(np.sum((true == "REJECT") & (verdicts != "REJECT"))),
        ranges=len(real),
        ranges_found=len(reported & real),
        ranges_invented=len(reported - real),
    )


def _ranges(table: pa.Table) -> set[tuple[Any, ...]]:
    keys = sorted(name for name in table.column_names if name not in _RANGE)
    ends = (name for name in _RANGE if name in table.column_names)
    return set(zip(*(table[name].to_pylist() for name in (*keys, *ends)), strict=True))
