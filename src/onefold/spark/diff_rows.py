"""The rows behind fingerprints that differ: read again, in those ranges only, and compared by their ids.

What is shuffled is narrow: the id of a row's key and the id of the whole row, 32 bytes each. From them comes the
*delta*: the ids that one table holds more often than the other, and how often each has their key. It is small where
the tables are alike, and it is what the rows are then picked by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.spark.columns import quoted
from onefold.spark.diff_forms import form
from onefold.spark.diff_ranges import RANGE, Compared, row_id, with_words, word_names

KEPT_SHARE: Final = 1 / 8
"""If no more of the ranges differ, their rows are kept in Spark's storage; else they are read again when wanted."""
ALL_SHARE: Final = 1 / 2
"""If more of the ranges differ, it does not pay to look whether a row is in one of them."""

DELTA_MAX: Final = 50_000
"""So many ids that differ, of about 100 bytes, come to the driver and go from there to every task."""

TOLD: Final = ("differs_in", "row_a", "row_b")
"""What stands beside the key of rows that differ."""

_KEY, _ROW, _N, _I = "_onefold_key", "_onefold_row", ("_onefold_na", "_onefold_nb"), "_onefold_i"
_KEYED: Final = ("_onefold_ka", "_onefold_kb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two tables, and how its rows are compared."""

    df: DataFrame
    cells: Mapping[str, Column]
    """The columns that are compared, in the common types."""
    kinds: Mapping[str, T.DataType]
    key: Sequence[str]
    key_form: Column
    row_form: Column
    range: Column
    values: Sequence[Column]
    """What the words of a row are made from."""

    def summed(self) -> DataFrame:
        """What the fingerprints are made of: the range and the words of each row."""
        return with_words(self.df.withColumn(RANGE, self.range), self.values).select(RANGE, *word_names())

    def suspects(self, ranges: DataFrame | None, *, whole: bool) -> DataFrame:
        """The rows in these ranges, all columns, with the ids of key and row; None: all rows."""
        rows = self.df
        if ranges is not None:
            rows = rows.withColumn(RANGE, self.range).join(F.broadcast(ranges), RANGE, "left_semi").drop(RANGE)
        rows = rows.withColumn(_ROW, F.unhex(row_id(self.row_form)))
        return rows.withColumn(_KEY, F.col(_ROW) if whole else F.unhex(row_id(self.key_form)))


class Rows:
    """The rows that two tables do not share."""

    def __init__(self, a: Side, b: Side, compared: Compared, *, whole: bool) -> None:
        self._sides = (a, b)
        self._whole = whole
        self._kept: list[DataFrame] = []
        self._clean = not len(compared.differing)
        share = len(compared.differing) / compared.ranges
        spark = a.df.sparkSession
        ranges = spark.createDataFrame(pa.table({RANGE: compared.differing})) if share <= ALL_SHARE else None
        self._suspects = [side.suspects(ranges, whole=whole) for side in self._sides]
        if not self._clean and share <= KEPT_SHARE:
            self._suspects = [self._keep(suspects) for suspects in self._suspects]
        self._delta = self._deltas()
        if not self._clean:
            found = self._delta.limit(DELTA_MAX + 1).toArrow()
            small = found.num_rows <= DELTA_MAX
            self._delta = spark.createDataFrame(found) if small else self._keep(self._delta)

    def counts(self) -> dict[str, int]:
        """How many rows and keys there are of each kind; runs the comparison."""
        if self._clean:
            return {}
        a, b = (F.col(name) for name in _KEYED)
        keys = self._delta.groupBy(_KEY).agg(*(F.any_value(name).alias(name) for name in _KEYED))
        cells = {"repeated_a": F.count_if(a > 1), "repeated_b": F.count_if(b > 1)}
        if self._whole:  # a row is its own key
            cells |= {"only_a": F.sum(F.when(a > b, a - b)), "only_b": F.sum(F.when(b > a, b - a))}
        else:
            cells |= {"only_a": F.sum(F.when(b == 0, a)), "only_b": F.sum(F.when(a == 0, b))}
            cells |= {"differing": F.count_if((a > 0) & (b > 0))}
        found = keys.agg(*(cell.alias(name) for name, cell in cells.items())).collect()[0]
        return {name: int(found[name] or 0) for name in cells}

    def only(self, side: int) -> DataFrame:
        """The rows of a side whose key the other lacks; of whole rows, what it holds more of."""
        df = self._sides[side].df
        if self._clean:
            return df.limit(0)
        if self._whole:
            rows = self._surplus(side)
        else:  # the other side has none of them, so all are wanted
            alone = self._delta.where(F.col(_KEYED[1 - side]) == 0).select(_ROW)
            rows = self._suspects[side].join(alone, _ROW, "left_semi")
        return rows.select(*(F.col(quoted(name)) for name in df.columns))

    def differing(self) -> DataFrame:
        """The rows that a shared key has on one side only, those of both sides paired."""
        a, b = (self._contents(side) for side in (0, 1))
        key, kinds = self._sides[0].key, self._sides[0].kinds
        rest = [name for name in kinds if name not in key]
        paired = a.join(b, [_KEY, _I], "full_outer")
        told = [F.coalesce(F.col("a_key").getField(name), F.col("b_key").getField(name)).alias(name) for name in key]
        differs = [
            F.when(
                form(F.col("a").getField(name), kinds[name]) != form(F.col("b").getField(name), kinds[name]),
                F.lit(name),
            )
            for name in rest
        ]
        both = F.col("a").isNotNull() & F.col("b").isNotNull()
        names = F.array_compact(F.array(*differs)) if differs else F.array().cast("array<string>")
        found = (F.when(both, names), F.col("a"), F.col("b"))
        return paired.select(*told, *(cell.alias(name) for cell, name in zip(found, TOLD, strict=True)))

    def close(self) -> None:
        """Give back what was kept in Spark's storage."""
        for df in self._kept:
            df.unpersist()
        self._kept.clear()

    def _keep(self, df: DataFrame) -> DataFrame:
        self._kept.append(df)
        return df.persist()

    def _deltas(self) -> DataFrame:
        """The ids that one side holds more often, how often each does, and how often each has their key."""
        ones = (F.lit(1).cast("long"), F.lit(0).cast("long"))
        a, b = (
            suspects.select(_KEY, _ROW, ones[i].alias(_N[0]), ones[1 - i].alias(_N[1]))
            for i, suspects in enumerate(self._suspects)
        )
        # By the key alone, so that the rows of a key meet once, and both steps below find them together.
        together = a.unionAll(b).repartition(_KEY)
        counted = together.groupBy(_KEY, _ROW).agg(*(F.sum(name).alias(name) for name in _N))
        if self._whole:
            totals = {_KEYED[i]: F.col(_N[i]) for i in (0, 1)}
        else:
            totals = {_KEYED[i]: F.sum(_N[i]).over(Window.partitionBy(_KEY)) for i in (0, 1)}
        return counted.withColumns(totals).where(F.col(_N[0]) != F.col(_N[1]))

    def _surplus(self, side: int) -> DataFrame:
        """The rows of a side that it holds more of, so many of them."""
        more = F.col(_N[side]) - F.col(_N[1 - side])
        wanted = self._delta.where(more > 0).drop(_KEY)
        rows = self._suspects[side].join(wanted, _ROW)
        nth = F.row_number().over(Window.partitionBy(_ROW).orderBy(_ROW))
        return rows.withColumn(_I, nth).where(F.col(_I) <= more)

    def _contents(self, side: int) -> DataFrame:
        """The rows of shared keys that the other side lacks: key and content as structs, numbered within the key."""
        it, name = self._sides[side], "ab"[side]
        surplus = self._surplus(side).where((F.col(_KEYED[0]) > 0) & (F.col(_KEYED[1]) > 0))
        if self._clean or self._whole:
            surplus = surplus.limit(0)
        rest = [
            column for column in it.cells if column not in it.key
        ] or it.key  # a struct of nothing cannot be written
        content = F.struct(*(it.cells[column].alias(column) for column in rest))
        keyed = F.struct(*(it.cells[column].alias(column) for column in it.key))
        nth = F.row_number().over(Window.partitionBy(_KEY).orderBy(_ROW))
        return surplus.select(_KEY, nth.alias(_I), keyed.alias(f"{name}_key"), content.alias(name))
