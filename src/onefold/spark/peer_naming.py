"""What a row of a table is known by when it is reconciled: an id, and a time to sort by.

The id is the SHA-256 of the canonical form (`diff_forms`) of some columns, or of all. Columns that are named count in
the order in which they are named, so that tables with other names can agree; else all count in the order of their
names, so that it does not matter where a table has them. Types must be alike: whole numbers of any width are, a float
is no double.

The time is a column of whole numbers, or of Spark timestamps, which count in milliseconds since 1970. Without one it
is 0 for all rows, and they are sorted by id.

Ids are handled as four words of 64 bits, the first bytes in the highest: Spark can add them up, and Arrow hands them
over without copying.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.engines.negentropy.arrays import Rows, Stamps
from onefold.errors import Misuse
from onefold.spark.columns import WHOLE, milliseconds, quoted
from onefold.spark.diff_forms import row_form
from onefold.spark.diff_ranges import row_id

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
        form = row_form((F.col(quoted(name)), df.schema[name].dataType) for name in self.names(df))
        time = F.lit(0).cast("long") if self.time is None else milliseconds(df, self.time)
        return df.withColumns({TIME: time, ID: row_id(form)})

    def during(self, df: DataFrame, since: int, until: int | None) -> Column:
        """Whether a row is of this time, ``until`` left out; written so that files can pass over what is not."""
        assert self.time is not None
        time, stamped = F.col(quoted(self.time)), isinstance(df.schema[self.time].dataType, T.TimestampType)

        def at(moment: int) -> Column:
            return F.timestamp_millis(F.lit(moment)) if stamped else F.lit(moment)

        return time >= at(since) if until is None else (time >= at(since)) & (time < at(until))


def beginning() -> Column:
    """The first bits of the id, as a number."""
    return F.conv(F.substring(F.col(ID), 1, BEGINNING_BITS // 4), 16, 10).cast("long")


def words() -> list[Column]:
    """The four words of the id."""
    return [F.conv(F.substring(F.col(ID), 1 + 16 * i, 16), 16, -10).cast("long").alias(n) for i, n in enumerate(WORDS)]


def rows_of(table: pa.Table) -> tuple[Stamps, Rows]:
    """Times and ids, from a table with a time and the words."""
    ids = np.empty((table.num_rows, len(WORDS)), dtype=">i8")
    for i, name in enumerate(WORDS):
        ids[:, i] = table.column(name).to_numpy()
    return table.column(TIME).to_numpy().astype(np.uint64), ids.view(np.uint8)
