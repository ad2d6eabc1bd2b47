"""The id and the time by which a row of a table is reconciled; and the buckets of an index.

The id is the SHA-256 of the canonical form (`fingerprints`) of the named columns, in the order in which they are
named, so that tables with other column names can agree; or of all columns, sorted by name, so that their order in the
table does not matter. Types must match: whole numbers of any width do, float and double do not. The time is a column
of whole numbers, or of Spark timestamps as milliseconds since 1970. Without a time column it is 0 for all rows, and
they are sorted by id. Ids are handled as four words of 64 bits, big-endian: Spark can sum them, and Arrow passes them
on without copying.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.reconcile.items import Bounds, Flags, Ints, Limbs, Rows, Stamps
from onefold.spark.columns import WHOLE, listed, milliseconds, quoted
from onefold.spark.dialect import iterator_udf
from onefold.spark.fingerprints import whole_row_id

TIME, ID = "_onefold_time", "_onefold_id"
WORDS: Final = tuple(f"_onefold_word{i}" for i in range(4))
BEGINNING_BITS: Final = 16
"""The bits of an id that choose the bucket of a row without a time: four hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The columns that make the id of a row, and the one that is its time.

    >>> Naming(columns=("order", "line"), time="placed").columns
    ('order', 'line')
    """

    columns: tuple[str, ...] | None = None
    """None: all."""
    time: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(listed(self.columns)))
        if self.columns is not None and not self.columns:
            raise Misuse("columns is empty, must name at least one column, or be None: all")

    def names(self, df: DataFrame) -> list[str]:
        """The columns of the id, in order; `Misuse` that names a column that is missing or has a wrong type."""
        names = sorted(df.columns) if self.columns is None else list(dict.fromkeys(self.columns))
        for name in (*names, *([] if self.time is None else [self.time])):
            if df.columns.count(name) != 1:
                raise Misuse(f"no column {name!r}: the columns are {', '.join(df.columns)}", column=name)
        if self.time is not None and not isinstance(df.schema[self.time].dataType, (*WHOLE, T.TimestampType)):
            kind = df.schema[self.time].dataType.simpleString()
            raise Misuse(f"column {self.time!r} is {kind}, must be whole numbers or a timestamp", column=self.time)
        return names

    def made_from(self, df: DataFrame) -> dict[str, Any]:
        """The columns and types of ids and times, as JSON: an index is valid only for the same ones."""
        kinds = {name: df.schema[name].dataType.simpleString() for name in self.names(df)}
        time = None if self.time is None else [self.time, df.schema[self.time].dataType.simpleString()]
        return {"columns": [[name, kind] for name, kind in kinds.items()], "time": time}

    def with_id(self, df: DataFrame) -> DataFrame:
        """The table with the time of each row, and its id in hex."""
        time = F.lit(0).cast("long") if self.time is None else milliseconds(df, self.time)
        return df.withColumns({TIME: time, ID: whole_row_id(df, self.names(df))})

    def during(self, df: DataFrame, since: int, until: int | None) -> Column:
        """Whether a row's time is from ``since`` to before ``until``; this is pushed down to the files."""
        assert self.time is not None
        time, stamped = F.col(quoted(self.time)), isinstance(df.schema[self.time].dataType, T.TimestampType)

        def at(moment: int) -> Column:
            return F.timestamp_millis(F.lit(moment)) if stamped else F.lit(moment)

        return time >= at(since) if until is None else (time >= at(since)) & (time < at(until))


def words() -> list[Column]:
    return [F.conv(F.substring(F.col(ID), 1 + 16 * i, 16), 16, -10).cast("long").alias(n) for i, n in enumerate(WORDS)]


def rows_of(table: pa.Table) -> tuple[Stamps, Rows]:
    """The times and ids of a table with the time and the words."""
    ids = np.empty((table.num_rows, len(WORDS)), dtype=">i8")
    for i, name in enumerate(WORDS):
        ids[:, i] = table.column(name).to_numpy()
    return table.column(TIME).to_numpy().astype(np.uint64), ids.view(np.uint8)


BUCKETS_MAX: Final = 1 << 16
"""Their sums take some 10 MB in the driver."""
QUANTILES: Final = 1 << 14
"""Of the times of a table. Cutting crowded milliseconds may double the buckets, which stays below BUCKETS_MAX."""
QUANTILE_ERROR: Final = 4
"""The inverse of a quantile's error, in buckets: no bucket is more than half as large again as it should be."""


@dataclass(frozen=True)
class IndexLayout:
    """Where the buckets of an index begin, in the order of time and id.

    A layout is a sequence of *slots* of time, each from its start to the start of the next. A slot is one bucket; but a
    single millisecond with very many rows is a slot of its own, cut by the first bits of the ids into 2^bits buckets. A
    table without times is one such slot, at 0. A cut slot is always followed by another slot, so that it covers one
    time only. The starts are quantiles of the times, so buckets have about the same size whatever the distribution. A
    layout grows only at its end: buckets keep their numbers, and old sums stay valid.

    Cost: the bucket of a row without a time is a shift in the JVM; of one with a time, a binary search in numpy.
    """

    starts: Stamps
    bits: Ints
    rows: int
    """The number of rows that the layout was made for."""

    @staticmethod
    def by_id(bits: int, rows: int = 0) -> IndexLayout:
        """A single slot at time 0, cut by the first bits of the ids."""
        return IndexLayout(np.array([0, 1], dtype=np.uint64), np.array([bits, 0]), rows)

    @staticmethod
    def by_time(quantiles: Stamps, rows: int, bucket_rows: int) -> IndexLayout:
        """Slots that begin at some of these ascending times, so that each bucket gets about ``bucket_rows``."""
        cuts = quantiles[:: max(1, -(-bucket_rows * len(quantiles) // max(1, rows)))]
        starts, repeats = np.unique(cuts, return_counts=True)
        cut = repeats > 1
        bits = np.where(cut, np.ceil(np.log2(repeats)).astype(np.int64), 0)
        behind = np.setdiff1d(starts[cut] + np.uint64(1), starts)
        before = np.zeros(int(not len(starts) or starts[0] > 0), dtype=np.uint64)
        every = np.concatenate((before, starts, behind))
        order = np.argsort(every)
        padded = np.concatenate((np.zeros(len(before), np.int64), bits, np.zeros(len(behind), np.int64)))
        return IndexLayout(every[order], padded[order], rows)

    def __len__(self) -> int:
        return int(self.firsts[-1]) + (1 << int(self.bits[-1]))

    @property
    def by_id_alone(self) -> bool:
        """Whether all rows are in one cut slot, so that the id alone determines the bucket."""
        return len(self.starts) == 2 and bool(self.bits[0])

    @cached_property
    def firsts(self) -> Ints:
        counts = np.left_shift(1, self.bits)
        return np.cumsum(counts) - counts

    @cached_property
    def slots(self) -> Ints:
        return np.repeat(np.arange(len(self.starts)), np.left_shift(1, self.bits))

    @cached_property
    def cut(self) -> Flags:
        """Which buckets are parts of a cut slot: their sort key is the id, of the others it is the time."""
        return np.asarray(self.bits[self.slots] > 0)

    def then(self, later: IndexLayout, after: int) -> IndexLayout:
        """This layout, followed by the slots of ``later`` that begin after the latest time so far."""
        new = later.starts > np.uint64(after)
        old = ~np.isin(self.starts, later.starts[new])  # the last slot is empty: the new layout may cut it
        starts = np.concatenate((self.starts[old], later.starts[new]))
        bits = np.concatenate((self.bits[old], later.bits[new]))
        return IndexLayout(starts, bits, self.rows + later.rows)

    def places(self, times: Stamps, words: Limbs) -> Ints:
        """The buckets of rows with these times and first words of ids."""
        slot = np.searchsorted(self.starts, times, side="right") - 1
        bits = self.bits[slot]
        inner = (words >> np.uint64(1)) >> (63 - bits).astype(np.uint64)  # two steps: a shift by 64 is undefined
        return np.asarray(self.firsts[slot] + inner.astype(np.int64), dtype=np.int64)

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        """The times that these buckets cover, from the first to before the second; None: no end."""
        end = int(self.slots[last]) + 1
        until = int(self.starts[end]) if end < len(self.starts) else None
        return int(self.starts[self.slots[first]]), until

    def column(self) -> Column:
        """The bucket of a row with a time and words; with the id alone if that determines it."""
        if self.by_id_alone:
            beginning = F.conv(F.substring(F.col(ID), 1, BEGINNING_BITS // 4), 16, 10).cast("long")
            return F.shiftright(beginning, BEGINNING_BITS - int(self.bits[0]))

        def places(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            for batch in batches:
                yield pa.array(self.places(*(column.to_numpy().view(np.uint64) for column in batch)))

        bucket: Column = iterator_udf(places, T.LongType())(F.col(TIME), F.col(WORDS[0]))
        return bucket

    def order(self) -> Column:
        """The sort key of a row within the layout: the time, or in a cut slot the first word of the id."""
        word = F.col(WORDS[0]).bitwiseXOR(F.lit(-(1 << 63)))  # because Spark compares signed numbers
        if self.by_id_alone:
            return word
        cut = self.starts[self.bits > 0].tolist()
        return F.when(F.col(TIME).isin(cut), word).otherwise(F.col(TIME)) if cut else F.col(TIME)


def quantiles(time: Column) -> Column:
    """The times that cut a table into QUANTILES parts of about the same size."""
    # As one string that Spark splits: an array of so many literals takes seconds to pass to the JVM.
    shares = ",".join(map(str, np.arange(QUANTILES) / QUANTILES))
    return F.percentile_approx(time, F.split(F.lit(shares), ",").cast("array<double>"), QUANTILE_ERROR * QUANTILES)


def first_words(bounds: Bounds) -> Limbs:
    return bounds.ids[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
