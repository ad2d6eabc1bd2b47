"""What an index knows of each bucket of a table, and the one pass of native aggregates that finds it out.

    count        how many rows
    sum, xor     of their ids, as fingerprints need them; a sum of 256 bits comes as eight sums of 32-bit halves,
                 which no 2^31 rows of a bucket can overflow
    low, high    the least and the greatest of what tells buckets apart: the time, or the first word of the id
    first, last  an id that has it. Where several rows share it, it is any of theirs: it tells where the bucket begins
                 and ends, and need not be the very first

All aggregates are over numbers of 64 bits, so Spark keeps them in a hash table and sorts nothing. Sums of disjoint sets
of files add up.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from io import BytesIO
from math import prod
from typing import Final
from zipfile import BadZipFile, ZipFile

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.engines.negentropy.arrays import Ints, Limbs, Rows, Stamps
from onefold.engines.negentropy.fingerprint import minus, plus, running_sums
from onefold.errors import BadInput
from onefold.spark.peer_layout import Layout
from onefold.spark.peer_naming import TIME, WORDS, words

_BUCKET, _ORDER, _CELL = "_onefold_bucket", "_onefold_order", "_onefold_cell"
_HALF: Final = (1 << 32) - 1
_TOP: Final = np.uint64(1 << 63)
NOTHING: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Buckets:
    """The sums of all buckets of a layout, as columns."""

    counts: Ints
    sums: Limbs
    xors: Limbs
    low: Stamps
    high: Stamps
    first: Rows
    last: Rows

    def __len__(self) -> int:
        return len(self.counts)

    @staticmethod
    def none(size: int) -> Buckets:
        """So many empty ones."""
        limbs, ids = np.zeros((size, 4), dtype=np.uint64), np.zeros((size, 32), dtype=np.uint8)
        low, high = np.full(size, NOTHING), np.zeros(size, dtype=np.uint64)
        return Buckets(np.zeros(size, dtype=np.int64), limbs, limbs, low, high, ids, ids)

    @property
    def rows(self) -> int:
        """Of all of them."""
        return int(self.counts.sum())

    def padded(self, size: int) -> Buckets:
        """With empty ones behind them."""
        if size == len(self):
            return self
        empty = Buckets.none(max(0, size - len(self)))
        return Buckets(*(np.concatenate((a, b)) for a, b in zip(self._columns(), empty._columns(), strict=True)))

    def taken(self, which: slice) -> Buckets:
        """Some of them."""
        return Buckets(*(column[which] for column in self._columns()))

    def __add__(self, other: Buckets) -> Buckets:
        """The sums of both, which have no rows in common."""
        ours = (self.counts > 0) & ((other.counts == 0) | (self.low <= other.low))
        ours_last = (self.counts > 0) & ((other.counts == 0) | (self.high >= other.high))
        return Buckets(
            self.counts + other.counts,
            plus(self.sums, other.sums),
            self.xors ^ other.xors,
            np.where(ours, self.low, other.low),
            np.where(ours_last, self.high, other.high),
            np.where(ours[:, None], self.first, other.first),
            np.where(ours_last[:, None], self.last, other.last),
        )

    def grouped(self, size: int) -> Buckets:
        """Each so many neighbours as one; there must be a whole number of groups."""
        groups = np.arange(0, len(self), size)
        totals, ends = running_sums(self.sums), np.append(groups[1:], len(self))
        least = groups + self.low.reshape(-1, size).argmin(axis=1)
        most = groups + np.where(self.counts > 0, self.high, 0).reshape(-1, size).argmax(axis=1)
        return Buckets(
            np.add.reduceat(self.counts, groups),
            minus(totals[ends], totals[groups]),
            np.bitwise_xor.reduceat(self.xors, groups),
            self.low[least],
            self.high[most],
            self.first[least],
            self.last[most],
        )

    def to_bytes(self) -> bytes:
        """For a file."""
        file = BytesIO()
        np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Buckets:
        """From a file; `BadInput` if it is none of ours."""
        columns = read_arrays(data, [field.name for field in fields(Buckets)])
        size = len(next(iter(columns.values())))
        for (name, column), like in zip(columns.items(), Buckets.none(0)._columns(), strict=True):
            if column.dtype != like.dtype or column.shape != (size, *like.shape[1:]):
                raise BadInput(f"not the sums of buckets: {name} is {column.dtype} of {column.shape}")
        return Buckets(**columns)

    def _columns(self) -> Iterable[np.ndarray]:
        return [getattr(self, field.name) for field in fields(self)]


ARRAY_BYTES_MAX: Final = 1 << 26
"""Of one column in a file: the widest column of as many buckets as there can be takes a thirtieth of it."""
UNREADABLE: Final = (
    OSError, ValueError, LookupError, EOFError, RuntimeError, RecursionError, MemoryError, struct.error, zlib.error,
    BadZipFile,
)  # fmt: skip
"""What zipfile and numpy raise for bytes that are none of theirs."""


def read_arrays(data: bytes, names: Sequence[str], *, bytes_max: int = ARRAY_BYTES_MAX) -> dict[str, np.ndarray]:
    """The columns of these names that ``np.savez_compressed`` wrote; `BadInput` if they are not there.

    Not by ``np.load``: what it finds in a file decides how much memory it takes.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with ZipFile(BytesIO(data)) as file:
            for name in names:
                told = file.getinfo(f"{name}.npy")
                if told.file_size > bytes_max:
                    raise BadInput(f"not a file of columns: {name} has {told.file_size:,} bytes")
                found[name] = _read_array(file.read(told))
    except UNREADABLE as error:
        raise BadInput(f"not a file of columns: {error}") from error
    return found


def _read_array(data: bytes) -> np.ndarray:
    member = BytesIO(data)
    version = npy.read_magic(member)
    if version != (1, 0):
        raise ValueError(f"an array of format {version}")
    shape, columns_first, dtype = npy.read_array_header_1_0(member)
    rest = data[member.tell() :]
    if columns_first or dtype.hasobject or len(rest) != prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of {dtype} of {shape} in {len(rest)} bytes")
    return np.frombuffer(rest, dtype).reshape(shape)


def summed(df: DataFrame, layout: Layout) -> Buckets:
    """The sums of a table with times and ids, in one job."""
    placed = with_bucket(df, layout).withColumn(_ORDER, layout.order())
    found = placed.groupBy(_BUCKET).agg(*_aggregates()).toArrow()
    return _placed(found, layout)


def with_bucket(df: DataFrame, layout: Layout, wanted: Ints | None = None) -> DataFrame:
    """The times, words and buckets of a table with times and ids; of rows in wanted buckets alone."""
    # The words of an id are dear to make: if the bucket can be told without them, only for rows that are wanted.
    early = layout.by_id_alone
    rows = df if early else df.select(TIME, *words())
    rows = rows.withColumn(_BUCKET, layout.column())
    if wanted is not None:
        rows = rows.where(_among(F.col(_BUCKET), wanted))
    return rows.select(TIME, *words(), _BUCKET) if early else rows


def _among(bucket: Column, wanted: Ints) -> Column:
    """Whether a bucket is one of these: a look into a bitmap. A join would be a second job, for its broadcast."""
    bits = np.zeros(-(-(int(wanted[-1]) + 1) // 64) * 64, dtype=np.uint8)
    bits[wanted] = 1
    limbs = np.packbits(bits, bitorder="little").view("<i8").tolist()
    bitmap = F.split(F.lit(",".join(map(str, limbs))), ",").cast("array<bigint>")
    return F.coalesce(F.getbit(F.get(bitmap, F.shiftright(bucket, 6)), bucket.bitwiseAND(F.lit(63))) == 1, F.lit(False))


def _aggregates() -> list[Column]:
    order = F.col(_ORDER)
    halves = [_swapped(half) for word in WORDS for half in (
        F.shiftrightunsigned(word, 32), F.col(word).bitwiseAND(F.lit(_HALF)))]  # fmt: skip
    cells = [F.count(F.lit(1)), *map(F.sum, halves), *map(F.bit_xor, WORDS), F.min(order), F.max(order)]
    cells += [pick(word, order) for pick in (F.min_by, F.max_by) for word in WORDS]
    return [cell.alias(f"{_CELL}{i}") for i, cell in enumerate(cells)]


def _swapped(half: Column) -> Column:
    """A number of 32 bits with its bytes the other way round: ids are added up as little-endian numbers."""

    def byte(column: Column, mask: int) -> Column:
        return column.bitwiseAND(F.lit(mask))

    inner = F.shiftleft(byte(half, 0xFF00), 8) + byte(F.shiftrightunsigned(half, 8), 0xFF00)
    return F.shiftleft(byte(half, 0xFF), 24) + inner + F.shiftrightunsigned(half, 24)


def _placed(found: pa.Table, layout: Layout) -> Buckets:
    """The cells of all buckets that have rows, in their places."""
    places, *cells = (column.to_numpy().astype(np.int64, copy=False) for column in found.columns)
    counts, halves, xors, (low, high), first, last = (
        cells[0], cells[1:9], cells[9:13], cells[13:15], cells[15:19], cells[19:23]
    )  # fmt: skip
    carry, digits = np.zeros(len(places), dtype=np.uint64), []
    for half in halves:
        total = half.astype(np.uint64) + carry
        digits.append(total & np.uint64(_HALF))
        carry = total >> np.uint64(32)
    limbs = [digits[2 * i] | digits[2 * i + 1] << np.uint64(32) for i in range(4)]
    flip = np.where(layout.cut[places], _TOP, np.uint64(0))
    empty = Buckets.none(len(layout))
    columns = (
        counts, np.stack(limbs, axis=1), _bytes(xors).view("<u8"), low.view(np.uint64) ^ flip,
        high.view(np.uint64) ^ flip, _bytes(first), _bytes(last),
    )  # fmt: skip
    full = []
    for blank, values in zip(empty._columns(), columns, strict=True):
        column = blank.copy()
        column[places] = values
        full.append(column)
    return Buckets(*full)


def _bytes(columns: list[Ints]) -> Rows:
    """Words as the bytes of ids."""
    return np.stack(columns, axis=1).astype(">i8").view(np.uint8)


def total(parts: Iterable[Buckets], size: int) -> Buckets:
    """The sums of several parts of a table, which may have been made when there were fewer buckets."""
    return reduce(Buckets.__add__, (part.padded(size) for part in parts), Buckets.none(size))
