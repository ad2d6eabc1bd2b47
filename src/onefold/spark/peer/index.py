"""A table as one side of a session: its index, and the rows of the few buckets that have to be read.

An index cuts the records of a table into *buckets* (`naming.IndexLayout`) and stores for each the number of rows, the
sum and the XOR of their ids, and its first and last record. It is built by one pass of native aggregates, kept beside
the table, and updated incrementally:

    index.json         what it was made from, the layout's file, and the parts
    layout-*.npz       where the buckets begin
    part-*.npz         the sums of all buckets over the files that index.json names for this part

A part is valid while its files exist with the same size and modification time. New files are read alone and become a
part; if a part lost a file, its other files are read again. Too many parts are folded into fewer, without reading the
table. Everything is read again if the layout is outgrown, or the index is damaged or of another version. A table that
is not made of plain files has no parts: its index is built each time, and not kept.

A range that begins and ends at bucket edges is answered from the index alone. Where a bound lies inside a bucket, or
records are listed, rows are read: those of all buckets that a message needs in one Spark job, which ``expect`` starts,
and they stay in memory until the session is over. Ranges are cut at bucket edges, unless the bucket was read, so a cut
hardly ever needs a job. If files changed in between, that is a `StaleWrite`, not a wrong answer.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from hashlib import sha256
from io import BytesIO
from json import dumps
from math import prod
from typing import Any, Final, TypeAlias
from uuid import uuid4
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import BadInput, Misuse, StaleWrite
from onefold.reconcile import Bounds, SessionLimit, items
from onefold.reconcile.items import Columns, Flags, Ints, Limbs, Rows, Stamps
from onefold.spark.dialect import to_arrow
from onefold.spark.diff_files import DiffTable, read_table
from onefold.spark.files import Place, first_line
from onefold.spark.overlap import refuse_inside
from onefold.spark.peer import naming
from onefold.spark.peer.naming import TIME, WORDS, IndexLayout, Naming, words
from onefold.spark.session import file_status

Files: TypeAlias = dict[str, tuple[int, int]]
"""Paths, each with its size and modification time: if both are unchanged, so are the rows."""

IMMUTABLE: Final = frozenset({"parquet", "orc", "json", "jsonl", "ndjson", "csv", "avro", "text"})
"""Formats in which the rows are exactly those of the files. Others may have lists of deleted rows beside them."""


def files_of(df: DataFrame, table: DiffTable) -> Files:
    """The files of a table, which takes a millisecond each; empty if its rows are not just those of its files."""
    if table.format not in IMMUTABLE:
        return {}
    files = {}
    for url, size, modified_ms in file_status(df.sparkSession, df.inputFiles()):
        if url.startswith("file:///"):  # `_metadata.file_path` names a local file with fewer slashes
            url = "file:/" + url.removeprefix("file:///")
        files[url] = size, modified_ms
    return files


def only(df: DataFrame, files: Iterable[str]) -> DataFrame:
    """The rows of these files; Spark does not open the others."""
    return df.where(F.col("_metadata.file_path").isin(list(files)))


_BUCKET, _ORDER, _CELL = "_onefold_bucket", "_onefold_order", "_onefold_cell"
_HALF: Final = (1 << 32) - 1
_TOP: Final = np.uint64(1 << 63)
NOTHING: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Buckets:
    """The sums of all buckets of a layout, as columns. Sums of disjoint sets of files can be added."""

    counts: Ints
    sums: Limbs
    xors: Limbs
    low: Stamps
    """The lowest and the highest sort key of its rows: the time, or in a cut slot the first word of the id."""
    high: Stamps
    first: Rows
    """The id of a row with the lowest key; if several rows share the key, of any of them."""
    last: Rows

    def __len__(self) -> int:
        return len(self.counts)

    @staticmethod
    def none(size: int) -> Buckets:
        limbs, ids = np.zeros((size, 4), dtype=np.uint64), np.zeros((size, 32), dtype=np.uint8)
        low, high = np.full(size, NOTHING), np.zeros(size, dtype=np.uint64)
        return Buckets(np.zeros(size, dtype=np.int64), limbs, limbs, low, high, ids, ids)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def padded(self, size: int) -> Buckets:
        """With empty buckets appended."""
        if size == len(self):
            return self
        empty = Buckets.none(max(0, size - len(self)))
        return Buckets(*(np.concatenate((a, b)) for a, b in zip(self._columns(), empty._columns(), strict=True)))

    def take(self, which: slice) -> Buckets:
        return Buckets(*(column[which] for column in self._columns()))

    def __add__(self, other: Buckets) -> Buckets:
        """The sums of two sets of files that have no file in common."""
        ours = (self.counts > 0) & ((other.counts == 0) | (self.low <= other.low))
        ours_last = (self.counts > 0) & ((other.counts == 0) | (self.high >= other.high))
        return Buckets(
            self.counts + other.counts,
            items.plus(self.sums, other.sums),
            self.xors ^ other.xors,
            np.where(ours, self.low, other.low),
            np.where(ours_last, self.high, other.high),
            np.where(ours[:, None], self.first, other.first),
            np.where(ours_last[:, None], self.last, other.last),
        )

    def grouped(self, size: int) -> Buckets:
        """Every ``size`` neighbours joined into one; the number of buckets must be a multiple."""
        groups = np.arange(0, len(self), size)
        totals, ends = items.running_sums(self.sums), np.append(groups[1:], len(self))
        least = groups + self.low.reshape(-1, size).argmin(axis=1)
        most = groups + np.where(self.counts > 0, self.high, 0).reshape(-1, size).argmax(axis=1)
        return Buckets(
            np.add.reduceat(self.counts, groups),
            items.minus(totals[ends], totals[groups]),
            np.bitwise_xor.reduceat(self.xors, groups),
            self.low[least], self.high[most], self.first[least], self.last[most],
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        file = BytesIO()
        np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Buckets:
        """Read a part file; `BadInput` if it is not one."""
        columns = read_arrays(data, [field.name for field in fields(Buckets)])
        size = len(next(iter(columns.values())))
        for (name, column), like in zip(columns.items(), Buckets.none(0)._columns(), strict=True):
            if column.dtype != like.dtype or column.shape != (size, *like.shape[1:]):
                raise BadInput(f"not the sums of buckets: {name} is {column.dtype} of {column.shape}")
        return Buckets(**columns)

    def _columns(self) -> Iterable[np.ndarray]:
        return [getattr(self, field.name) for field in fields(self)]


ARRAY_BYTES_MAX: Final = 1 << 26
"""Of one column in a file: thirty times the widest column with the largest number of buckets."""
UNREADABLE: Final = (
    OSError, ValueError, LookupError, EOFError, RuntimeError, RecursionError, MemoryError, struct.error, zlib.error,
    BadZipFile,
)  # fmt: skip
"""What zipfile and numpy raise for malformed bytes."""


def read_arrays(data: bytes, names: Sequence[str], *, bytes_max: int = ARRAY_BYTES_MAX) -> dict[str, np.ndarray]:
    """The columns of these names from a file of ``np.savez_compressed``; `BadInput` if they are not there.

    Not by ``np.load``, which allocates whatever size the file claims.
    """
    columns: dict[str, np.ndarray] = {}
    try:
        with ZipFile(BytesIO(data)) as file:
            for name in names:
                entry = file.getinfo(f"{name}.npy")
                if entry.file_size > bytes_max:
                    raise BadInput(f"not a file of columns: {name} has {entry.file_size:,} bytes")
                member = BytesIO(file.read(entry))
                version = npy.read_magic(member)
                if version != (1, 0):
                    raise ValueError(f"an array of format {version}")
                shape, columns_first, dtype = npy.read_array_header_1_0(member)
                body = member.read()
                if columns_first or dtype.hasobject or len(body) != prod(shape) * dtype.itemsize:
                    raise ValueError(f"an array of {dtype} of {shape} in {len(body)} bytes")
                columns[name] = np.frombuffer(body, dtype).reshape(shape)
    except UNREADABLE as error:
        raise BadInput(f"not a file of columns: {error}") from error
    return columns


def summed(df: DataFrame, layout: IndexLayout) -> Buckets:
    """The sums of a table with times and ids, in one job.

    All aggregates are over 64-bit numbers, so Spark uses a hash table and sorts nothing. A sum of 256 bits is computed
    as eight sums of 32-bit halves, which 2^31 rows in a bucket cannot overflow.
    """
    order = F.col(_ORDER)
    halves = [_swapped(half) for word in WORDS for half in (
        F.shiftrightunsigned(word, 32), F.col(word).bitwiseAND(F.lit(_HALF)))]  # fmt: skip
    aggregates = [F.count(F.lit(1)), *map(F.sum, halves), *map(F.bit_xor, WORDS), F.min(order), F.max(order)]
    aggregates += [pick(word, order) for pick in (F.min_by, F.max_by) for word in WORDS]
    named = [aggregate.alias(f"{_CELL}{i}") for i, aggregate in enumerate(aggregates)]
    rows = to_arrow(with_bucket(df, layout).withColumn(_ORDER, layout.order()).groupBy(_BUCKET).agg(*named))

    places, *cells = (column.to_numpy().astype(np.int64, copy=False) for column in rows.columns)
    counts, sums, xors, (low, high), first, last = (
        cells[0], cells[1:9], cells[9:13], cells[13:15], cells[15:19], cells[19:23]
    )  # fmt: skip
    carry, digits = np.zeros(len(places), dtype=np.uint64), []
    for half in sums:
        total = half.astype(np.uint64) + carry
        digits.append(total & np.uint64(_HALF))
        carry = total >> np.uint64(32)
    limbs = [digits[2 * i] | digits[2 * i + 1] << np.uint64(32) for i in range(4)]
    flip = np.where(layout.cut[places], _TOP, np.uint64(0))
    columns = (
        counts, np.stack(limbs, axis=1), _bytes(xors).view("<u8"), low.view(np.uint64) ^ flip,
        high.view(np.uint64) ^ flip, _bytes(first), _bytes(last),
    )  # fmt: skip
    full = []
    for blank, values in zip(Buckets.none(len(layout))._columns(), columns, strict=True):
        column = blank.copy()
        column[places] = values
        full.append(column)
    return Buckets(*full)


def with_bucket(df: DataFrame, layout: IndexLayout, wanted: Ints | None = None) -> DataFrame:
    """The times, words and buckets of a table with times and ids; only of the wanted buckets, if they are given."""
    # The words of an id are expensive: if the bucket does not need them, they are made only for wanted rows.
    early = layout.by_id_alone
    rows = df if early else df.select(TIME, *words())
    rows = rows.withColumn(_BUCKET, layout.column())
    if wanted is not None:
        rows = rows.where(_among(F.col(_BUCKET), wanted))
    return rows.select(TIME, *words(), _BUCKET) if early else rows


def _among(bucket: Column, wanted: Ints) -> Column:
    """Whether a bucket is one of these, by a bitmap. A join would need a second job, for its broadcast."""
    bits = np.zeros(-(-(int(wanted[-1]) + 1) // 64) * 64, dtype=np.uint8)
    bits[wanted] = 1
    limbs = np.packbits(bits, bitorder="little").view("<i8").tolist()
    bitmap = F.split(F.lit(",".join(map(str, limbs))), ",").cast("array<bigint>")
    return F.coalesce(F.getbit(F.get(bitmap, F.shiftright(bucket, 6)), bucket.bitwiseAND(F.lit(63))) == 1, F.lit(False))


def _swapped(half: Column) -> Column:
    """A 32-bit number with its bytes reversed: ids are summed as little-endian numbers."""

    def byte(column: Column, mask: int) -> Column:
        return column.bitwiseAND(F.lit(mask))

    inner = F.shiftleft(byte(half, 0xFF00), 8) + byte(F.shiftrightunsigned(half, 8), 0xFF00)
    return F.shiftleft(byte(half, 0xFF), 24) + inner + F.shiftrightunsigned(half, 24)


def _bytes(columns: list[Ints]) -> Rows:
    return np.stack(columns, axis=1).astype(">i8").view(np.uint8)


def total(parts: Iterable[Buckets], size: int) -> Buckets:
    """The sums of several parts of a table, some perhaps from when the layout had fewer buckets."""
    return reduce(Buckets.__add__, (part.padded(size) for part in parts), Buckets.none(size))


ROWS_MAX: Final = 1_000_000
"""Rows that a session may read: some 70 MB in the driver, with their totals. The peer decides how many it needs."""
FEW: Final = 256
"""A range with fewer records in whole buckets is read in advance: it may be listed. Lists have fewer than 32."""
MANY: Final = 1 << 16
"""A range to be listed with more records than this is not read in advance: it will not fit into a frame."""
SPANS_MAX: Final = 64
"""Up to this many spans of time are pushed down to the file reader; of more, only the overall span."""


@dataclass(frozen=True)
class Indexed:
    path: str
    df: DataFrame
    naming: Naming
    layout: IndexLayout
    buckets: Buckets

    @cached_property
    def starts(self) -> Ints:
        """The rank of the first record of each bucket; then the number of records."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.buckets.counts)))

    @cached_property
    def filled(self) -> Ints:
        """How many of the buckets below each one have rows."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.buckets.counts > 0)))

    @cached_property
    def sums(self) -> Limbs:
        return items.running_sums(self.buckets.sums)

    @cached_property
    def xors(self) -> Limbs:
        return items.running_xors(self.buckets.xors)

    def read(self, wanted: Ints) -> Columns:
        df = self.df
        if self.naming.time is not None:
            runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > 1) + 1)
            runs = runs if len(runs) <= SPANS_MAX else [wanted]
            first, *others = (self.naming.during(df, *self.layout.span(int(run[0]), int(run[-1]))) for run in runs)
            for other in others:
                first = first | other
            df = df.where(first)
        try:
            rows = to_arrow(with_bucket(self.naming.with_id(df), self.layout, wanted))
        except (PySparkException, Py4JJavaError) as error:
            raise OSError(f"cannot read {self.path}: {first_line(error)}") from error
        return Columns.sorted_from(*naming.rows_of(rows))


class TableItems:
    """The records of a table, for one session: see `onefold.reconcile.Items`."""

    id_size: Final = 32

    def __init__(self, index: Indexed, *, rows_max: int = ROWS_MAX) -> None:
        self._index, self._rows_max = index, rows_max
        self.close()

    def __len__(self) -> int:
        return int(self._index.starts[-1])

    def expect(self, upper: Bounds, whole: Flags) -> None:
        """Read all buckets that these ranges need, in one job."""
        if not len(upper):
            return
        index = self._index
        places, inside, above = self._between(upper)
        # The whole buckets of a range: those between the buckets of its lower and of its upper bound.
        last, after = places + above, places + (above | inside)
        first = np.minimum(np.concatenate((np.zeros(1, dtype=np.int64), after[:-1])), last)
        counts, alone = index.starts[last] - index.starts[first], index.filled[last] - index.filled[first] == 1
        wanted = (counts < FEW) | alone | (whole & (counts <= MANY))
        self._load(np.concatenate((places[inside], items.spans(first[wanted], last[wanted]))))

    def cuts(self, ranks: Ints, lower: Ints, upper: Ints) -> Ints:
        """The same ranks, or the nearest bucket edge where a rank is inside an unread bucket."""
        starts, places = self._index.starts, self._places(ranks)
        begin, end = starts[places], starts[places + 1]
        inside = (ranks > begin) & (self._offsets[places] < 0)
        below, above = begin > lower, end < upper
        self._load(places[inside & ~below & ~above])  # the range lies within one bucket: there is no edge to move to
        nearer = below & (~above | (ranks - begin <= end - ranks))
        return np.asarray(np.where(inside & (below | above), np.where(nearer, begin, end), ranks), dtype=np.int64)

    def find(self, bounds: Bounds) -> Ints:
        places, inside, above = self._between(bounds)
        ranks, which = self._index.starts[places + above], np.flatnonzero(inside)
        if len(which):
            self._load(places[which])
            # The rows read are sorted, so a bound inside a bucket is found among the rows of that bucket.
            inner = self._read.find(bounds.take(which)) - self._offsets[places[which]]
            ranks[which] = self._index.starts[places[which]] + inner
        return ranks

    def sums(self, lower: Ints, upper: Ints) -> Limbs:
        return items.minus(self._sum_below(upper), self._sum_below(lower))

    def xors(self, lower: Ints, upper: Ints) -> Rows:
        limbs = self._xor_below(upper) ^ self._xor_below(lower)
        return limbs.astype("<u8").view(np.uint8).reshape(len(limbs), self.id_size)

    def rows(self, ranks: Ints) -> tuple[Stamps, Rows]:
        index, places = self._index, self._places(ranks)
        inner, counts = ranks - index.starts[places], index.buckets.counts[places]
        first, last = inner == 0, inner == counts - 1
        # The ends of a bucket are in the index; but of two rows with the same key, not which comes first.
        tied = (counts == 2) & (index.buckets.low[places] == index.buckets.high[places])
        self._load(places[~(first | last) | tied])
        offsets = self._offsets[places]
        read = offsets >= 0
        times, ids = np.empty(len(ranks), dtype=np.uint64), np.empty((len(ranks), self.id_size), dtype=np.uint8)
        at = offsets[read] + inner[read]
        times[read], ids[read] = self._read.timestamps[at], self._read.ids[at]
        for which, order, end in (
            (~read & first, index.buckets.low, index.buckets.first),
            (~read & ~first, index.buckets.high, index.buckets.last),
        ):
            bucket = places[which]
            starts = index.layout.starts[index.layout.slots[bucket]]
            times[which] = np.where(index.layout.cut[bucket], starts, order[bucket])
            ids[which] = end[bucket]
        return times, ids

    def snapshot(self) -> TableItems:
        return self

    def close(self) -> None:
        """Free the rows that were read. May be called twice."""
        self._read = Columns(np.zeros(0, dtype=np.uint64), np.zeros((0, self.id_size), dtype=np.uint8))
        self._offsets = np.full(len(self._index.buckets), -1, dtype=np.int64)  # of buckets in `_read`; -1: not read

    def _places(self, ranks: Ints) -> Ints:
        """The bucket of each rank; for the rank after the last record, the number of buckets."""
        return np.searchsorted(self._index.starts, ranks, side="right") - 1

    def _between(self, bounds: Bounds) -> tuple[Ints, Flags, Flags]:
        """For each bound its bucket, whether it lies between rows of the bucket, and whether above all of them."""
        layout, buckets = self._index.layout, self._index.buckets
        words = naming.first_words(bounds)
        places = layout.places(bounds.timestamps, words)
        cut = layout.cut[places]
        key = np.where(cut, words, bounds.timestamps)
        longer = np.where(cut, bounds.ids[:, 8:].any(axis=1), bounds.ids.any(axis=1))
        low, high = buckets.low[places], buckets.high[places]
        below = (key < low) | ((key == low) & ~longer) | (buckets.counts[places] == 0)
        above = ~below & (key > high)
        return places, ~below & ~above, above

    def _sum_below(self, ranks: Ints) -> Limbs:
        places, inner, at = self._inside(ranks)
        sums = self._index.sums[places]
        if len(inner):
            sums[inner] = items.plus(sums[inner], items.minus(self._read.sums[at[1]], self._read.sums[at[0]]))
        return sums

    def _xor_below(self, ranks: Ints) -> Limbs:
        places, inner, at = self._inside(ranks)
        xors = self._index.xors[places]
        xors[inner] ^= self._read.xors[at[1]] ^ self._read.xors[at[0]]
        return xors

    def _inside(self, ranks: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
        """The buckets of the ranks; which ranks lie inside one; for those, bucket start and rank in `_read`."""
        places = self._places(ranks)
        over = ranks - self._index.starts[places]
        inner = np.flatnonzero(over)
        self._load(places[inner])
        begin = self._offsets[places[inner]]
        return places, inner, (begin, begin + over[inner])

    def _load(self, buckets: Ints) -> None:
        index = self._index
        wanted = np.unique(buckets)
        wanted = wanted[(self._offsets[wanted] < 0) & (index.buckets.counts[wanted] > 0)]
        if not len(wanted):
            return
        rows = len(self._read) + int(index.buckets.counts[wanted].sum())
        if rows > self._rows_max:
            raise SessionLimit(f"the session is over: it needs {rows} rows of the table, rows_max is {self._rows_max}")
        records = index.read(wanted)
        self._check(records, wanted)
        merged = self._read.merged(records)
        ids = np.sort(items.texts(merged.ids))
        if len(twice := np.flatnonzero(ids[1:] == ids[:-1])):  # perhaps in two buckets, at two times
            id = ids[twice[0]].ljust(self.id_size, b"\0").hex()
            raise Misuse(f"{index.path}: id {id} is there twice: name the columns that tell rows apart", id=id)
        loaded = np.union1d(np.flatnonzero(self._offsets >= 0), wanted)
        counts = index.buckets.counts[loaded]
        offsets = self._offsets.copy()
        offsets[loaded] = np.cumsum(counts) - counts
        self._read, self._offsets = merged, offsets

    def _check(self, records: Columns, wanted: Ints) -> None:
        index = self._index
        places = index.layout.places(records.timestamps, naming.first_words(records.bounds()))
        counts = np.bincount(np.searchsorted(wanted, places), minlength=len(wanted))
        if len(counts) != len(wanted) or (counts != index.buckets.counts[wanted]).any():
            expected = int(index.buckets.counts[wanted].sum())
            text = f"{index.path} changed during the session: {len(records)} rows, the index has {expected}"
            raise StaleWrite(text, rows=len(records), known=expected)
        ends = np.cumsum(counts)
        if (records.xors[ends] ^ records.xors[ends - counts] != index.buckets.xors[wanted]).any():
            text = f"{index.path} changed during the session: as many rows as in the index, but others"
            raise StaleWrite(text, rows=len(records))


VERSION: Final = 1
SUFFIX: Final = ".onefold-index"
HEAD: Final = "index.json"
OWN: Final = re.compile(r"(part|layout)-[0-9a-f]{32}\.npz")
"""Names that only an index gives: no other file in its folder is ever removed."""
BUCKET_ROWS: Final = 128
"""Rows per bucket: 4 kB of ids to read for a bound inside it. With 10 million rows it is 150: buckets are limited."""
PARTS_MAX: Final = 16
UNREADABLE_INDEX: Final = (OSError, BadInput, ValueError, KeyError, TypeError, RecursionError)
"""What reading a file may raise that is missing, torn, or not ours."""
OUTGROWN: Final = 4
"""A layout is rebuilt when the table has this many times the rows that it was made for."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    name: str
    rows: int
    files: Files


@dataclass(frozen=True, slots=True)
class _State:
    made_from: Mapping[str, Any]
    layout_name: str
    layout: IndexLayout
    parts: Sequence[IndexPart]
    buckets: Buckets


class TableIndex:
    """The index of a table, in ``folder`` or beside the table. Each set of columns has its own subfolder."""

    def __init__(
        self, spark: SparkSession, table: DiffTable, naming: Naming, *, folder: str | None = None,
        bucket_rows: int = BUCKET_ROWS,
    ) -> None:  # fmt: skip
        if bucket_rows < 1:
            raise Misuse(f"bucket_rows is {bucket_rows}, must be at least 1", bucket_rows=bucket_rows)
        self._spark, self._table, self._naming, self._bucket_rows = spark, table, naming, bucket_rows
        if folder is not None:
            refuse_inside(("the table", table.path), ("the index", folder))
        elif not any(sign in table.path for sign in "*?[{"):  # a pattern has no place "beside it"
            # Hidden: if the table is a partition of a larger one, Spark must not read the index as another partition.
            above, slash, name = table.path.rstrip("/").rpartition("/")
            folder = f"{above}{slash}.{name}{SUFFIX}"
        self._folder = folder
        self._state: _State | None = None

    def refresh(self) -> Indexed:
        """The current table with an index of all its rows. Cost: one pass over the new files."""
        try:
            df = read_table(self._spark, self._table)
            return Indexed(self._table.path, df, self._naming, *self._refreshed(df))
        except (PySparkException, Py4JJavaError) as error:
            raise OSError(f"cannot read {self._table.path}: {first_line(error)}") from error

    def _refreshed(self, df: DataFrame) -> tuple[IndexLayout, Buckets]:
        table, files = self._table, files_of(df, self._table)
        if not files or self._folder is None:
            return self._made(df)
        path = str(Place(self._spark, table.path)) if "*" not in table.path else table.path
        options = _digest(sorted(table.options.items()))  # not in plain text: one may be a secret
        source = {"path": path, "format": table.format, "options": options}
        made_from = {**self._naming.made_from(df), **source, "bucket_rows": self._bucket_rows}
        store = _Store(Place(self._spark, self._folder) / _digest(made_from), made_from)
        state = self._state
        if state is None or state.made_from != made_from:  # a new file may add a column, or widen a type
            state = store.read()
        self._state = state = self._updated(df, files, state, store)
        return state.layout, state.buckets

    def _updated(self, df: DataFrame, files: Files, state: _State | None, store: _Store) -> _State:
        parts = [part for part in state.parts if part.files.items() <= files.items()] if state else []
        old = {name for part in parts for name in part.files}
        new = {name: stamp for name, stamp in files.items() if name not in old}
        if state is None or not parts:
            return self._anew(df, files, store)
        whole = len(parts) == len(state.parts)
        if whole and not new:
            return state
        before = state.buckets if whole else store.total(parts, len(state.layout))
        if before is None:
            return self._anew(df, files, store)
        layout, more = state.layout, Buckets.none(len(before))
        if new:
            layout, more = self._extended(only(df, new), state.layout, before)
        size, most = len(layout), naming.BUCKETS_MAX
        if size > most or (before.rows + more.rows > OUTGROWN * layout.rows and size < most):
            return self._anew(df, files, store)
        if new:
            parts.append(store.add(more, new))
        name = state.layout_name if layout is state.layout else store.add_layout(layout)
        both = total((before, more), size)
        updated = _State(store.made_from, name, layout, store.folded(parts, size), both)
        store.write(updated)
        return updated

    def _anew(self, df: DataFrame, files: Files, store: _Store) -> _State:
        layout, buckets = self._made(df)
        state = _State(store.made_from, store.add_layout(layout), layout, [store.add(buckets, files)], buckets)
        store.write(state)
        return state

    def _made(self, df: DataFrame) -> tuple[IndexLayout, Buckets]:
        """A layout for the whole table, and its sums.

        Without a time column, one pass puts the rows into 65,536 buckets by the first bits of their ids, and neighbours
        are then joined. With a time column, a first pass reads that column for the layout, a second one sums.
        """
        if self._naming.time is not None:
            layout = self._by_time(df, after=-1)
            return layout, summed(self._naming.with_id(df), layout)
        fine = summed(self._naming.with_id(df), IndexLayout.by_id(naming.BEGINNING_BITS))
        bits = min(naming.BEGINNING_BITS, max(0, fine.rows // self._bucket_rows - 1).bit_length())
        layout = IndexLayout.by_id(max(1, bits), fine.rows)
        grouped = fine.take(slice(0, -1)).grouped(1 << (naming.BEGINNING_BITS - int(layout.bits[0])))
        return layout, grouped.padded(len(layout))

    def _extended(self, df: DataFrame, layout: IndexLayout, buckets: Buckets) -> tuple[IndexLayout, Buckets]:
        """The layout extended for the times of more rows that are after all times in the buckets; and their sums."""
        if self._naming.time is not None:
            last = np.flatnonzero(buckets.counts > 0)[-1:]
            times = np.where(layout.cut[last], layout.starts[layout.slots[last]], buckets.high[last])
            latest = int(times[0]) if len(times) else 0
            later = self._by_time(df, after=latest)
            if later.rows:
                layout = layout.then(later, latest)
        return layout, summed(self._naming.with_id(df), layout)

    def _by_time(self, df: DataFrame, after: int) -> IndexLayout:
        """A layout for the rows after a time; `BadInput` if a row has no valid time."""
        time = F.col(TIME)
        later = F.when(time > after, time)
        times = self._naming.with_id(df).select(TIME)
        timeless = F.count_if(time.isNull() | (time < 0))
        [(rows, count, cuts)] = times.agg(timeless, F.count(later), naming.quantiles(later)).collect()
        if rows:
            column = self._naming.time
            text = f"{self._table.path}: {rows} rows have no time in {column!r}: it is null, or before 0 (1970)"
            raise BadInput(text, rows=rows, column=column)
        return IndexLayout.by_time(np.array(cuts or [], dtype=np.uint64), count, self._bucket_rows)


def _digest(document: Any) -> str:
    return sha256(dumps(document).encode()).hexdigest()[:16]


class _Store:
    def __init__(self, folder: Place, made_from: Mapping[str, Any]) -> None:
        self._folder, self.made_from = folder, made_from

    def read(self) -> _State | None:
        """The stored index; None if there is none that can be read."""
        try:
            head = (self._folder / HEAD).read_json()
            if head["version"] != VERSION or head["made_from"] != self.made_from:
                return None
            columns = read_arrays((self._folder / head["layout"]).read_bytes(), ["starts", "bits", "rows"])
            layout = IndexLayout(columns["starts"], columns["bits"], int(columns["rows"]))
            parts = [
                IndexPart(part["name"], part["rows"], {name: (size, at) for name, size, at in part["files"]})
                for part in head["parts"]
            ]
        except UNREADABLE_INDEX:
            return None
        buckets = self.total(parts, len(layout))
        return None if buckets is None else _State(self.made_from, head["layout"], layout, parts, buckets)

    def total(self, parts: Sequence[IndexPart], size: int) -> Buckets | None:
        """The sums of these parts; None if one cannot be read, perhaps because another process has folded it."""
        try:
            return total((Buckets.from_bytes((self._folder / part.name).read_bytes()) for part in parts), size)
        except UNREADABLE_INDEX:
            return None

    def folded(self, parts: Sequence[IndexPart], size: int) -> Sequence[IndexPart]:
        """The same parts; if there are too many, the smaller half is joined into one."""
        if len(parts) <= PARTS_MAX:
            return parts
        ordered = sorted(parts, key=lambda part: part.rows)
        small, large = ordered[: len(parts) // 2], ordered[len(parts) // 2 :]
        files = {name: stamp for part in small for name, stamp in part.files.items()}
        both = self.total(small, size)
        return parts if both is None else [*large, self.add(both, files)]

    def add(self, buckets: Buckets, files: Files) -> IndexPart:
        name = f"part-{uuid4().hex}.npz"
        (self._folder / name).write_bytes(buckets.to_bytes())
        return IndexPart(name, buckets.rows, files)

    def add_layout(self, layout: IndexLayout) -> str:
        name, file = f"layout-{uuid4().hex}.npz", BytesIO()
        np.savez_compressed(file, starts=layout.starts, bits=layout.bits, rows=np.int64(layout.rows))
        (self._folder / name).write_bytes(file.getvalue())
        return name

    def write(self, state: _State) -> None:
        """Make this the index, and remove files that no longer belong to it."""
        parts = [
            {"name": part.name, "rows": part.rows, "files": [[name, *stamp] for name, stamp in part.files.items()]}
            for part in state.parts
        ]
        head = {"version": VERSION, "made_from": self.made_from, "layout": state.layout_name, "parts": parts}
        (self._folder / HEAD).write_json(head)
        names = {HEAD, state.layout_name, *(part.name for part in state.parts)}
        for name in self._folder.names():
            if name not in names and OWN.fullmatch(name):
                (self._folder / name).remove()
