"""A memory as bytes, and back: a few columns, so that 100,000 producers take milliseconds.

    magic, CRC-32 of all that follows
    header      memory, on/off, the settings, and how many rows each table has
    producers   head, forgotten, epoch, time, and the lengths of its name, digests and gaps; then those, end to end
    floors      bucket and sequence; bucket and epoch
    keys        time, digest and length; then the keys, end to end

All integers are little endian. The CRC finds damage by chance; behind it, bytes are still checked before they are
believed, so that foreign bytes raise `BadInput` and never become a wrong memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from onefold.engines.producers.bounds import Bounds, Settings
from onefold.engines.producers.known import DIGEST, Gapped, Highest, Known
from onefold.engines.producers.memory import Memory
from onefold.errors import BadInput, Misuse

MAGIC: Final = b"OFP2"
_HEAD: Final = Struct("<4sI")
_HEADER: Final = Struct("<BB 7q 4Q")
_OLD_MAGIC: Final = b"OFP1"
_OLD_HEADER: Final = Struct("<BB 6q 4Q")
"""Of snapshots without jump_max."""
_INT64: Final = np.dtype("<i8")
_UINT32: Final = np.dtype("<u4")


def encode(memory: Memory) -> bytes:
    """Everything the memory knows."""
    bounds, floors, keys = memory.bounds, memory.floors, memory.keys.items()
    known = list(memory.producers.values())
    names = [name.encode() for name in memory.producers]
    gaps = [k.gaps() for k in known] if bounds.memory == "gaps" else [[]] * len(known)
    header = _HEADER.pack(
        bounds.memory == "gaps",
        memory.on,
        *bounds[1:-1],
        bounds.jump_max or 0,
        len(known),
        len(floors.sequences),
        len(floors.epochs),
        len(keys),
    )
    body = b"".join(
        (
            header,
            _column([k.head for k in known]),
            _column([k.forgotten for k in known]),
            _column([k.epoch for k in known]),
            _column([k.time_ms for k in known]),
            _column(map(len, names), _UINT32),
            _column([len(k.digests) for k in known], _UINT32),
            _column(map(len, gaps), _UINT32),
            *names,
            *(k.digests for k in known),
            _column([bound for of_one in gaps for gap in of_one for bound in gap]),
            *(_column(column) for table in (floors.sequences, floors.epochs) for column in (table, table.values())),
            _column([stored.time_ms for _, stored in keys]),
            _column([stored.digest for _, stored in keys]),
            _column([len(key.encode()) for key, _ in keys], _UINT32),
            *(key.encode() for key, _ in keys),
        )
    )
    return _HEAD.pack(MAGIC, crc32(body)) + body


def decode(data: bytes, settings: Settings) -> Memory:
    """The memory that was encoded; ``settings`` replace those it was encoded with. Else `BadInput`."""
    layout = _OLD_HEADER if data[: len(MAGIC)] == _OLD_MAGIC else _HEADER
    if len(data) < _HEAD.size + layout.size or data[: len(MAGIC)] not in (MAGIC, _OLD_MAGIC):
        raise BadInput(f"not a snapshot of producers: {len(data)} bytes that begin {data[:4].hex()!r}", offset=0)
    if _HEAD.unpack_from(data)[1] != crc32(memoryview(data)[_HEAD.size :]):
        raise BadInput(f"damaged snapshot of producers: the CRC of its {len(data)} bytes is wrong", offset=4)
    gapped, on, *numbers = layout.unpack_from(data, _HEAD.size)
    if layout is _OLD_HEADER:
        numbers.insert(6, 0)
    if max(gapped, on) > 1:
        raise BadInput(f"snapshot of producers with unknown flags {gapped}, {on}", offset=_HEAD.size)
    try:
        old = Bounds("gaps" if gapped else "highest", *numbers[:6])._replace(jump_max=numbers[6] or None).checked()
    except Misuse as error:
        raise BadInput(f"snapshot of producers with impossible settings: {error}") from error
    try:
        memory = Memory(_rebound(old, settings, floors=numbers[8] + numbers[9]))
        memory.on = bool(on)
        reader = _Reader(data, _HEAD.size + layout.size)
        _read_producers(reader, memory, old, numbers[7])
        memory.floors.sequences = dict(zip(reader.column(numbers[8]), reader.column(numbers[8]), strict=True))
        memory.floors.epochs = dict(zip(reader.column(numbers[9]), reader.column(numbers[9]), strict=True))
        times, digests = reader.column(numbers[10]), reader.column(numbers[10])
        for key, digest, time_ms in zip(reader.names(reader.column(numbers[10], _UINT32)), digests, times, strict=True):
            memory.keys.restore(key, digest, time_ms)
        reader.end()
    except (ValueError, UnicodeDecodeError, OverflowError) as error:
        raise BadInput(f"snapshot of producers that contradicts itself: {error}") from error
    return memory


def _rebound(old: Bounds, settings: Settings, floors: int) -> Bounds:
    bounds = old._replace(**settings).checked()
    if floors and bounds.floors_count != old.floors_count:
        raise Misuse(
            f"floors_count is {bounds.floors_count}, but the snapshot has floors in {old.floors_count} buckets",
            floors_count=bounds.floors_count,
        )
    return bounds


def _read_producers(reader: _Reader, memory: Memory, old: Bounds, count: int) -> None:
    heads, forgotten, epochs, times = (reader.column(count) for _ in range(4))
    name_lengths, digest_lengths, gap_counts = (reader.column(count, _UINT32) for _ in range(3))
    names = reader.names(name_lengths)
    digests = reader.slices(digest_lengths)
    bounds = reader.column(2 * sum(gap_counts))
    keep = DIGEST.size * memory.bounds.digests_max
    blank = Gapped if memory.bounds.memory == "gaps" else Highest
    gap = 0
    for i, name in enumerate(names):
        if heads[i] < -1 or forgotten[i] < -1 or epochs[i] < 0 or digest_lengths[i] % DIGEST.size:
            raise ValueError(f"producer {name!r} has head {heads[i]}, floor {forgotten[i]}, epoch {epochs[i]}")
        known: Known = blank(forgotten[i])
        known.head, known.epoch, known.time_ms = heads[i], epochs[i], times[i]
        known.digests = digests[i][-keep:] if keep else b""
        gap, start = gap + 2 * gap_counts[i], gap
        if isinstance(known, Gapped):
            if old.memory == "highest":
                known.forgotten = max(known.forgotten, known.head)
            if gap > start:
                _refuse_disorder([forgotten[i], *bounds[start:gap], heads[i]])
                known.reset_gaps(list(zip(bounds[start:gap:2], bounds[start + 1 : gap : 2], strict=True)))
        memory.producers[name] = known
    if len(memory.producers) != count:
        raise ValueError("a producer is in it twice")


def _refuse_disorder(bounds: list[int]) -> None:
    """Gaps begin at or above what is forgotten, end below the head, and neither touch nor overlap."""
    steps = [upper - lower for lower, upper in pairwise(bounds)]
    if steps[0] < 0 or min(steps[1:]) < 1:
        raise ValueError(f"gaps out of order: {bounds}")


def _column(values: Iterable[int], dtype: npt.DTypeLike = _INT64) -> bytes:
    return np.fromiter(values, dtype).tobytes()


class _Reader:
    """Takes columns off the front of a snapshot; every length is checked before it is used."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"{size} bytes wanted at byte {start} of {len(self._data)}")
        return self._data[start : self._at]

    def column(self, count: int, dtype: np.dtype[Any] = _INT64) -> list[int]:
        column: list[int] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return column

    def slices(self, lengths: Sequence[int]) -> list[bytes]:
        data = self._take(sum(lengths))
        ends = list(accumulate(lengths))
        return [data[end - length : end] for length, end in zip(lengths, ends, strict=True)]

    def names(self, lengths: Sequence[int]) -> list[str]:
        return [name.decode() for name in self.slices(lengths)]

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"it goes on after its end at byte {self._at}")
