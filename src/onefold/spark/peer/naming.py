"""What a row of a table is known by when it is reconciled, an id and a time to sort by; and the buckets of an index.

The id is the SHA-256 of the canonical form (`fingerprints`) of some columns, or of all. Columns that are named count
in the order in which they are named, so that tables with other names can agree; else all count in the order of their
names, so that it does not matter where a table has them. Types must be alike: whole numbers of any width are, a float
is no double. The time is a column of whole numbers, or of Spark timestamps, which count in milliseconds since 1970.
Without one it is 0 for all rows, and they are sorted by id. Ids are handled as four words of 64 bits, the first bytes
in the highest: Spark can add them up, and Arrow hands them over without copying.
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
"""Of an id, by which rows without a time are scattered over buckets: four digits in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """By which columns rows are known, and by which they are sorted.

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
            raise Misuse("no column is named that the ids could be made of")

    def names(self, df: DataFrame) -> list[str]:
        """The columns that an id is made of, in their order; `Misuse` that names one if it cannot be."""
        names = sorted(df.columns) if self.columns is None else list(dict.fromkeys(self.columns))
        for name in (*names, *([] if self.time is None else [self.time])):
            if df.columns.count(name) != 1:
                raise Misuse(f"no column {name!r}: the columns are {', '.join(df.columns)}", column=name)
        if self.time is not None and not isinstance(df.schema[self.time].dataType, (*WHOLE, T.TimestampType)):
            kind = df.schema[self.time].dataType.simpleString()
            raise Misuse(f"column {self.time!r} is {kind}, must be whole numbers or a timestamp", column=self.time)
        return names

    def made_from(self, df: DataFrame) -> dict[str, Any]:
        """What ids and times are made from, for a file: where it is the same, they are."""
        kinds = {name: df.schema[name].dataType.simpleString() for name in self.names(df)}
        time = None if self.time is None else [self.time, df.schema[self.time].dataType.simpleString()]
        return {"columns": [[name, kind] for name, kind in kinds.items()], "time": time}

    def with_id(self, df: DataFrame) -> DataFrame:
        """The table with the time and the id of each row, in hex."""
        time = F.lit(0).cast("long") if self.time is None else milliseconds(df, self.time)
        return df.withColumns({TIME: time, ID: whole_row_id(df, self.names(df))})

    def during(self, df: DataFrame, since: int, until: int | None) -> Column:
        """Whether a row is of this time, ``until`` left out; written so that files can pass over what is not."""
        assert self.time is not None
        time, stamped = F.col(quoted(self.time)), isinstance(df.schema[self.time].dataType, T.TimestampType)

        def at(moment: int) -> Column:
            return F.timestamp_millis(F.lit(moment)) if stamped else F.lit(moment)

        return time >= at(since) if until is None else (time >= at(since)) & (time < at(until))


def words() -> list[Column]:
    return [F.conv(F.substring(F.col(ID), 1 + 16 * i, 16), 16, -10).cast("long").alias(n) for i, n in enumerate(WORDS)]


def rows_of(table: pa.Table) -> tuple[Stamps, Rows]:
    """Times and ids, from a table with a time and the words."""
    ids = np.empty((table.num_rows, len(WORDS)), dtype=">i8")
    for i, name in enumerate(WORDS):
        ids[:, i] = table.column(name).to_numpy()
    return table.column(TIME).to_numpy().astype(np.uint64), ids.view(np.uint8)


BUCKETS_MAX: Final = 1 << 16
"""What the sums of all buckets take in the driver: some 10 MB."""
QUANTILES: Final = 1 << 14
"""Of the times of a table. Cuts of heavy milliseconds may double them, so that BUCKETS_MAX is never passed."""
QUANTILE_ERROR: Final = 4
"""The inverse of a quantile's error, in buckets: none is more than half as large again as it should be."""


@dataclass(frozen=True)
class IndexLayout:
    """Where the buckets of an index begin: the records of a table cut into stretches, in their order of time and id.

    A layout is a row of *slots* of time, each from its start to the next one's. A slot is one bucket; or, where a
    single millisecond holds very many rows, that millisecond alone is a slot, cut by the first bits of the ids into
    2^bits buckets. A table without times is one such slot, at 0. Behind a slot that is cut there is always another one,
    so that a cut slot has one time only. The starts are quantiles of the times, so buckets are of about the same size
    whatever the distribution. A layout grows at its end only: buckets keep their numbers, and old sums stay good.

    Cost: the bucket of a row without a time is a shift in the JVM; of one with a time, a binary search in numpy.
    """

    starts: Stamps
    bits: Ints
    rows: int
    """For how many rows that was thought out."""

    @staticmethod
    def by_id(bits: int, rows: int = 0) -> IndexLayout:
        """All at time 0, cut by the first bits of the ids."""
        return IndexLayout(np.array([0, 1], dtype=np.uint64), np.array([bits, 0]), rows)

    @staticmethod
    def by_time(quantiles: Stamps, rows: int, bucket_rows: int) -> IndexLayout:
        """Slots that begin at these ascending times, as many as give each bucket so many rows."""
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
        """Whether all rows are in one slot, which is cut: then the id alone tells the bucket."""
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
        """Which buckets are parts of a slot: in these the ids tell the order, in the others the time does."""
        return np.asarray(self.bits[self.slots] > 0)

    def then(self, later: IndexLayout, after: int) -> IndexLayout:
        """This one, and those slots of a later one that begin after a time up to which all rows are known."""
        new = later.starts > np.uint64(after)
        old = ~np.isin(self.starts, later.starts[new])  # but for the last one, which is empty, and may be cut now
        starts = np.concatenate((self.starts[old], later.starts[new]))
        bits = np.concatenate((self.bits[old], later.bits[new]))
        return IndexLayout(starts, bits, self.rows + later.rows)

    def places(self, times: Stamps, words: Limbs) -> Ints:
        """The buckets that rows with these times, and first words of ids, are in."""
        slot = np.searchsorted(self.starts, times, side="right") - 1
        bits = self.bits[slot]
        inner = (words >> np.uint64(1)) >> (63 - bits).astype(np.uint64)  # in two steps: by 64 nothing can be shifted
        return np.asarray(self.firsts[slot] + inner.astype(np.int64), dtype=np.int64)

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        """From when to when, that left out, these buckets reach; None: for ever."""
        end = int(self.slots[last]) + 1
        until = int(self.starts[end]) if end < len(self.starts) else None
        return int(self.starts[self.slots[first]]), until

    def column(self) -> Column:
        """The bucket of a row that has a time and words; the id is enough if it alone tells it."""
        if self.by_id_alone:
            beginning = F.conv(F.substring(F.col(ID), 1, BEGINNING_BITS // 4), 16, 10).cast("long")
            return F.shiftright(beginning, BEGINNING_BITS - int(self.bits[0]))

        def places(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            for batch in batches:
                yield pa.array(self.places(*(column.to_numpy().view(np.uint64) for column in batch)))

        bucket: Column = iterator_udf(places, T.LongType())(F.col(TIME), F.col(WORDS[0]))
        return bucket

    def order(self) -> Column:
        """What tells rows of one bucket apart from those of its neighbours: the time, or the first word of the id."""
        word = F.col(WORDS[0]).bitwiseXOR(F.lit(-(1 << 63)))  # as Spark compares numbers with a sign
        if self.by_id_alone:
            return word
        cut = self.starts[self.bits > 0].tolist()
        return F.when(F.col(TIME).isin(cut), word).otherwise(F.col(TIME)) if cut else F.col(TIME)


def quantiles(time: Column) -> Column:
    """The times that cut a table into QUANTILES stretches of about the same size."""
    # As one text that Spark splits itself: an array of so many literals takes seconds to hand over.
    shares = ",".join(map(str, np.arange(QUANTILES) / QUANTILES))
    return F.percentile_approx(time, F.split(F.lit(shares), ",").cast("array<double>"), QUANTILE_ERROR * QUANTILES)


def first_words(bounds: Bounds) -> Limbs:
    return bounds.ids[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
