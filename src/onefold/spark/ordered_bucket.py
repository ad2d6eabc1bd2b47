"""One bucket of ordered chains: rows go in as they come, and come out in the order of their chains. No Spark here.

Every row is judged when it comes, and keeps that answer. A FIRST comes out when its chain releases it, all else at
once: a repeat does not wait for what it repeats. Held rows are kept as an Arrow table in the order of their ids, which
are all that the chains (`OrderedChain`) know of them. Nobody can be asked for what is missing, so a gap is waited for
and then given up. The strategy is "light": giving up releases all that its chain holds, so that losses in a row cost
one wait and not one each. Only chains that are touched or due are woken.

    head       "OFOB", format, next id, count of chains, count of held rows
    chains     name (two halves), due_ms (-1: nothing is held), length of the snapshot; then the snapshots
    held       id, code, previous number; then the rows as an Arrow stream, if there are any
"""

import struct
from bisect import bisect_left
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onefold.engines.chains import ANSWERS
from onefold.engines.chains.answers import STATE_FULL
from onefold.engines.chains.columnar import NO_PREVIOUS
from onefold.engines.chains.number import Number, unpack
from onefold.engines.chains.ordering import OrderedChain
from onefold.engines.chains.ordering_events import Event, Released, Unfillable
from onefold.engines.chains.ordering_settings import Settings
from onefold.errors import BadInput, Misuse
from onefold.spark.ordering import Columns, Int64s, chains, order
from onefold.verdict import Verdict

FORMAT: Final = 1
GAP: Final = -1
"""The code of a row that is no message but a range that was given up."""

_MAGIC: Final = b"OFOB"
_HEAD: Final = struct.Struct("<4sHqqq")
_CODES: Final = {answer: code for code, answer in enumerate(ANSWERS)}

_Name: TypeAlias = tuple[int, int]
_Asleep: TypeAlias = tuple[int, bytes]  # when it is due, and its snapshot


class Out(NamedTuple):
    """What comes out, in order."""

    rows: pa.Table
    """The messages; for a gap, the message above it with everything but its key set to null."""
    codes: NDArray[np.int8]
    """The answer to each row; `GAP` for a gap."""
    bounds: Int64s
    """A line per gap: lower timestamp and sequence (seen), upper timestamp and sequence (missing)."""


class OrderedBucket:
    """The chains of a bucket, and the rows that they hold back; ``key`` is where the key is among the columns."""

    def __init__(self, settings: Settings, key: frozenset[int], chains_max: int | None = None) -> None:
        self._settings = settings.checked()
        self._key = key
        self._chains_max = chains_max
        self._asleep: dict[_Name, _Asleep] = {}
        self._awake: dict[_Name, OrderedChain[int]] = {}
        self._next = 0
        self._ids: list[int] = []
        self._codes: list[int] = []
        self._previous: list[int] = []
        self._rows: pa.Table | None = None
        self._held_before = 0

    def judge(self, integers: Int64s, rows: pa.Table | None, now_ms: int) -> Out:
        """Take in the rows (None: none came), do what is due, and give out all that waits no longer."""
        self._held_before = offset = len(self._ids)
        columns = Columns(*integers)
        turn = order(_steady(columns), columns)
        columns = columns.take(turn)
        table = self._with_held(rows, turn)
        self._ids += range(self._next, self._next + len(turn))
        self._codes += [GAP] * len(turn)
        self._previous += columns.previous.tolist()
        self._next += len(turn)
        going = _Going()
        names = zip(columns.key.tolist(), columns.key_check.tolist(), strict=True)
        for place, (name, number) in enumerate(zip(names, columns.number.tolist(), strict=True), offset):
            if number < 0:
                self._codes[place] = -1 - number
                going.row(place)
            else:
                self._add(name, place, number, now_ms, going)
        self._tick(now_ms, going)
        return self._out(table, going)

    def due_ms(self) -> int | None:
        """When something is to be done even if nothing comes; None: never."""
        asleep = [due for due, _ in self._asleep.values() if due >= 0]
        awake = [chain.due_ms for chain in self._awake.values() if chain.due_ms is not None]
        return min([*asleep, *awake], default=None)

    def figures(self) -> dict[str, int]:
        """What there is to watch; ``gaps`` are those that are waited for."""
        gaps = sum(due >= 0 for due, _ in self._asleep.values())
        gaps += sum(chain.due_ms is not None for chain in self._awake.values())
        held = {"held": len(self._ids), "held_before": self._held_before}
        return {"keys": len(self._asleep) + len(self._awake), "gaps": gaps, **held}

    def _add(self, name: _Name, place: int, number: int, now_ms: int, going: "_Going") -> None:
        chain = self._wake(name)
        if chain is None:
            self._codes[place] = _CODES[STATE_FULL]
            return going.row(place)
        previous = None if self._previous[place] == NO_PREVIOUS else unpack(self._previous[place])
        step = chain.add(previous, unpack(number), self._ids[place], now_ms)
        self._codes[place] = _CODES[step.answer]
        if step.answer.verdict is not Verdict.FIRST:
            return going.row(place)
        return self._follow(step.events, going)

    def _tick(self, now_ms: int, going: "_Going") -> None:
        latest_ms = now_ms + self._settings.longest_ms  # what is due later was found by a clock that was ahead
        due = [name for name, (due, _) in self._asleep.items() if 0 <= due <= now_ms or due > latest_ms]
        due += [name for name, chain in self._awake.items() if chain.due_ms is not None]
        for name in sorted(due):
            chain = self._wake(name)
            if chain is not None:
                self._follow(chain.tick(now_ms), going)

    def _follow(self, events: list[Event[int]], going: "_Going") -> None:
        given_up: Number | None = None
        for event in events:
            if isinstance(event, Unfillable):
                given_up = event.lower
            elif isinstance(event, Released):
                place = bisect_left(self._ids, event.message)
                if given_up is not None:  # what is missing ends with the number that the next one names
                    going.gap(place, given_up, unpack(self._previous[place]))
                    given_up = None
                going.row(place)

    def _wake(self, name: _Name) -> OrderedChain[int] | None:
        if name in self._awake:
            return self._awake[name]
        if name in self._asleep:
            _, data = self._asleep.pop(name)
            chain: OrderedChain[int] = OrderedChain.restore(data)
            chain.settings = self._settings  # those of this start
        elif self._chains_max is not None and len(self._awake) + len(self._asleep) >= self._chains_max:
            return None
        else:
            chain = OrderedChain(**self._settings._asdict())
        self._awake[name] = chain
        return chain

    def _with_held(self, rows: pa.Table | None, turn: Int64s) -> pa.Table | None:
        if rows is None:
            return self._rows
        came = pa.Table.from_arrays(rows.take(pa.array(turn)).columns, names=rows.column_names)
        if self._rows is None:
            return came
        if self._rows.schema != came.schema:
            raise Misuse(
                "the rows held back have other columns than those that come: use an empty checkpoint and place"
            )
        return pa.concat_tables([self._rows, came])

    def _out(self, table: pa.Table | None, going: "_Going") -> Out:
        places, gaps = np.array(going.places, np.int64), np.array(going.is_gap, np.bool_)
        codes = np.array(self._codes, np.int8)[places] if len(places) else np.empty(0, np.int8)
        codes[gaps] = GAP
        stay = np.ones(len(self._ids), np.bool_)
        stay[places] = False
        kept = np.flatnonzero(stay)
        if len(self._ids) != len(kept) + np.count_nonzero(~gaps):
            raise AssertionError("a row came out twice")
        bounds = np.array(going.bounds, np.int64).reshape(-1, 4)
        self._ids, self._codes, self._previous = (
            [values[i] for i in kept] for values in (self._ids, self._codes, self._previous)
        )
        if table is None:
            return Out(pa.table({}), codes, bounds)
        self._rows = table.take(pa.array(kept)) if len(kept) else None
        whole, key_only = pa.array(places), pa.array(places, mask=gaps)
        columns = [c.take(whole if i in self._key else key_only) for i, c in enumerate(table.columns)]
        return Out(pa.Table.from_arrays(columns, names=table.column_names), codes, bounds)

    def snapshot(self) -> bytes:
        """Everything but the settings."""
        all_ = dict(self._asleep)
        for name, chain in self._awake.items():
            all_[name] = -1 if chain.due_ms is None else chain.due_ms, chain.snapshot()
        lines = [(*name, due, len(data)) for name, (due, data) in all_.items()]
        held = np.array([self._ids, self._codes, self._previous], np.int64)
        return b"".join(
            [
                _HEAD.pack(_MAGIC, FORMAT, self._next, len(lines), len(self._ids)),
                np.array(lines, np.int64).tobytes(),
                *(data for _, data in all_.values()),
                held.tobytes(),
                _to_stream(self._rows),
            ]
        )

    @classmethod
    def restore(
        cls, blob: bytes, settings: Settings, key: frozenset[int], chains_max: int | None = None
    ) -> "OrderedBucket":
        """Goes on where ``snapshot`` was taken; foreign bytes raise `BadInput`."""
        bucket = cls(settings, key, chains_max)
        if len(blob) < _HEAD.size or blob[:4] != _MAGIC:
            raise BadInput(f"not a bucket of ordered chains: begins {blob[:20]!r}")
        _, format_, bucket._next, chain_count, held_count = _HEAD.unpack_from(blob)
        if format_ != FORMAT:
            raise BadInput(f"a bucket of ordered chains of format {format_}, this is format {FORMAT}")
        if min(chain_count, held_count) < 0 or 32 * chain_count + 24 * held_count > len(blob):
            raise BadInput(f"a broken bucket: {chain_count} chains and {held_count} rows in {len(blob)} bytes")
        try:
            at = _HEAD.size + 32 * chain_count
            for key_, check, due, length in np.frombuffer(blob[_HEAD.size : at], np.int64).reshape(-1, 4).tolist():
                if not 0 <= length <= len(blob) - at:
                    raise ValueError(f"a chain of {length} bytes at byte {at} of {len(blob)}")
                bucket._asleep[key_, check] = due, blob[at : at + length]
                at += length
            held = np.frombuffer(blob[at : at + 24 * held_count], np.int64).reshape(3, held_count)
            bucket._ids, bucket._codes, bucket._previous = held.tolist()
            bucket._rows = pa.ipc.open_stream(blob[at + 24 * held_count :]).read_all() if held_count else None
            if bucket._rows is not None:
                bucket._rows.validate(full=True)
        except (ValueError, OSError, MemoryError, pa.ArrowException) as error:  # as Arrow says that bytes are none
            raise BadInput(f"a broken bucket of ordered chains: {error}") from error
        return bucket


def held_count(head: bytes) -> int:
    """How many rows a bucket holds back, as the beginning of its snapshot tells."""
    return int(_HEAD.unpack_from(head)[4]) if head[:4] == _MAGIC else 0


class _Going:
    """What goes out: places of rows, and of the rows above gaps."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.is_gap: list[bool] = []
        self.bounds: list[tuple[int, int, int, int]] = []

    def row(self, place: int) -> None:
        self.places.append(place)
        self.is_gap.append(False)

    def gap(self, place: int, lower: Number, upper: Number) -> None:
        self.places.append(place)
        self.is_gap.append(True)
        self.bounds.append((*lower, *upper))


def _steady(columns: Columns) -> Int64s:
    """The chains by their names: which of them finds the last room must not hang on the order in which rows came."""
    code = chains(columns)
    _, first = np.unique(code, return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.lexsort((columns.key_check[first], columns.key[first]))] = np.arange(len(first))
    return rank[code]


def _to_stream(rows: pa.Table | None) -> bytes:
    if rows is None:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
