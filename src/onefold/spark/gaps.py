"""The missing ranges of each chain or producer, from the messages that counted, or from a memory.

Between two neighbours ``a < b`` of a chain something is missing exactly if ``b`` names a previous message above ``a``:
then ``(a, previous of b]`` was never seen. This is the final state of the engine, including gaps that it had to forget,
so a window over the firsts finds all ranges in the JVM, in one narrow shuffle.

The judging tasks note the ranges too (`notes`), and a memory has the open ones; both by the hashes of their keys. The
keys themselves are in the rows.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.chains.columns import START
from onefold.chains.rules import SEQUENCE_BITS, SEQUENCE_MAX, Floor
from onefold.producers.records import GAP_COUNT_MAX
from onefold.producers.restarts import Counters, Runs
from onefold.spark.columns import (
    RANGE_ENDS,
    TIME,
    ChainColumns,
    ProducerColumns,
    as_time,
    in_order,
    moment,
    ordered_time,
    quoted,
    whole,
)
from onefold.spark.files import parquet
from onefold.spark.memory import ItemLists, KeyRecords, MemoryFolder
from onefold.spark.notes import GAP_COLUMNS

LOWER, UPPER = RANGE_ENDS[:2], RANGE_ENDS[2:]

_NUMBER, _PREVIOUS, _BEFORE, _TIME = "_onefold_number", "_onefold_previous", "_onefold_before", "_onefold_time"
NAME = GAP_COLUMNS[:2]
CHAINS = "chains"
"""The table of a memory that holds heads and gaps, of chains and of producers."""


def missing_ranges(firsts: DataFrame, columns: ChainColumns | None = None, *, floor: Floor = "first") -> DataFrame:
    """One row per missing range: the key columns, ``lower`` (seen; null: before all) and ``upper`` (missing).

    ``firsts``: the rows whose verdict is FIRST. With ``floor="first"`` nothing before the first message is missing. The
    timestamps are of the type of the column if it is one of times, else milliseconds.
    """
    names = columns or ChainColumns()
    firsts = names.added_to(firsts)
    names = names.of(firsts)
    key = [F.col(quoted(name)) for name in names.key]
    if names.previous_timestamp is None:  # without previous numbers nothing can be known to be missing
        nothing = {name: F.lit(None).cast("long") for name in RANGE_ENDS}
        return firsts.select(*key, *(column.alias(name) for name, column in nothing.items())).limit(0)
    number = _number(firsts, names.timestamp, names.sequence)
    previous = _number(firsts, names.previous_timestamp, names.previous_sequence)
    narrow = firsts.select(*key, number.alias(_NUMBER), previous.alias(_PREVIOUS))
    before = F.lag(_NUMBER).over(Window.partitionBy(*key).orderBy(_NUMBER))
    named = F.col(_PREVIOUS)["t"].isNotNull()
    opens = named & (F.col(_BEFORE).isNull() if floor == "open" else F.lit(False))
    missing = narrow.withColumn(_BEFORE, before).where(opens | (named & (F.col(_PREVIOUS) > F.col(_BEFORE))))
    lower, upper = F.col(_BEFORE), F.col(_PREVIOUS)
    ends = range_end(firsts, names, lower["t"], lower["s"], LOWER)
    return missing.select(*key, *ends, *range_end(firsts, names, upper["t"], upper["s"], UPPER))


def range_end(df: DataFrame, names: ChainColumns, ms: Column, sequence: Column, ends: Sequence[str]) -> list[Column]:
    """The end of a range: a time of the column's type if it is one of times, else milliseconds."""
    kind = df.schema[names.timestamp].dataType
    if not isinstance(kind, TIME):
        return [ms.alias(ends[0]), sequence.alias(ends[1])]
    if names.sequence is not None:
        return [as_time(ms, None, kind).alias(ends[0]), sequence.alias(ends[1])]
    nothing = F.when(ms.isNotNull(), F.lit(0).cast("long"))  # the time includes the part below the millisecond
    return [as_time(ms, sequence, kind).alias(ends[0]), nothing.alias(ends[1])]


def missing_sequences(firsts: DataFrame, columns: ProducerColumns | None = None) -> DataFrame:
    """One row per missing range: the producer, ``lower_sequence`` (stored; null: before all) and ``upper_sequence``.

    ``firsts``: the rows whose verdict is FIRST. A producer is taken to begin at sequence 0. With a ``time``, by which
    its counter may restart, also ``lower_timestamp``: when the lower end was.
    """
    names = columns or ProducerColumns()
    firsts = names.added_to(firsts)
    names = names.of(firsts)
    key = [F.col(quoted(name)) for name in names.producer]
    time = F.lit(0).cast("long") if names.time is None else in_order(firsts, names.time)
    narrow = firsts.select(*key, whole(firsts, names.sequence).alias(_NUMBER), time.alias(_TIME))
    order = Window.partitionBy(*key).orderBy(_TIME, _NUMBER)
    rows = narrow.withColumn(_BEFORE, F.lag(_NUMBER).over(order)).withColumn(_TIME, F.lag(_TIME).over(order))
    missing = rows.where(F.col(_NUMBER) - F.coalesce(_BEFORE, F.lit(-1)) > 1)
    lower, upper = F.col(_BEFORE).alias(LOWER[1]), (F.col(_NUMBER) - 1).alias(UPPER[1])
    return missing.select(*key, *_seen_at(firsts, names, F.col(_TIME)), lower, upper)


def _seen_at(rows: DataFrame, names: ProducerColumns, time: Column) -> list[Column]:
    return [] if names.time is None else [ordered_time(rows, names.time, time).alias(LOWER[0])]


_COLUMNS = T.StructType([T.StructField(name, T.LongType()) for name in GAP_COLUMNS])
_SCHEMA = ", ".join(f"{name} long" for name in GAP_COLUMNS)


def noted_gaps(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """The missing ranges that tasks noted in these files: `GAP_COLUMNS`."""
    return parquet(spark, files, _COLUMNS) if files else spark.createDataFrame([], _SCHEMA)


def remembered_gaps(spark: SparkSession, memory: MemoryFolder, below: int) -> DataFrame:
    """The gaps that a memory has open below a version: `GAP_COLUMNS`."""
    parts = []
    for _, records in memory.table(CHAINS, below):
        counts, ends = gaps_of(records)
        parts.append(np.stack((*(np.repeat(half, counts) for half in (records.key, records.check)), *ends)))
    return _table(spark, np.concatenate(parts, axis=1) if parts else np.empty((4, 0), np.int64))


def gaps_of(records: KeyRecords) -> ItemLists:
    """The gaps of each key: lower and upper ends, and where numbers begin anew, when the lower one was seen."""
    if "runs" not in records.lists:
        return records.lists["gaps"]
    missing = counters_of(records).missing()
    counts = np.bincount(missing.owner, minlength=len(records.key)).astype(np.int64)
    return ItemLists(counts, (missing.lower + 1, missing.upper + 1, missing.since))


def counters_of(records: KeyRecords, runs_max: int = GAP_COUNT_MAX) -> Counters:
    """The restarting counters in a memory, numbered like the records."""
    counts, runs = records.lists["runs"]
    return Counters(
        Runs(np.repeat(np.arange(len(counts)), counts), *runs), records.values["forgotten"].copy(), runs_max
    )


def _table(spark: SparkSession, gaps: NDArray[np.int64]) -> DataFrame:
    columns = dict.fromkeys(GAP_COLUMNS, np.zeros(gaps.shape[1], np.int64)) | dict(zip(GAP_COLUMNS, gaps, strict=False))
    return spark.createDataFrame(pd.DataFrame(columns), _SCHEMA)


def gaps_below(
    rows: DataFrame, columns: ChainColumns, integers: Sequence[Column], gaps: NDArray[np.int64]
) -> DataFrame:
    """These gaps (both halves of the key's hash, lower and upper ends) with their keys, as ranges. Exactly one row lies
    directly above each gap: it names the gap's upper end as its previous number.
    """
    key, check, _, previous, *_ = integers
    by = [*NAME, GAP_COLUMNS[3]]
    named = (column.alias(name) for column, name in zip((key, check, previous), by, strict=True))
    above = rows.select(*(F.col(quoted(name)) for name in columns.key), *named)
    return named_ranges(rows, columns, above.join(F.broadcast(_table(rows.sparkSession, gaps)), by))


def key_names(tables: Sequence[DataFrame], key: Sequence[str], wanted: DataFrame) -> DataFrame:
    """The key columns and hashes of those keys in the tables whose hashes are wanted, once each."""
    cells = [F.col(quoted(name)) for name in key]
    hashes = F.xxhash64(*cells), F.xxhash64(F.lit(1), *cells)  # as in the engines
    names = [half.alias(name) for half, name in zip(hashes, NAME, strict=True)]
    every = reduce(DataFrame.unionByName, (table.select(*cells, *names) for table in tables))
    return every.join(F.broadcast(wanted.select(*NAME)), [*NAME], "left_semi").dropDuplicates([*NAME])


def named_ranges(rows: DataFrame, columns: ChainColumns, gaps: DataFrame, *, floor: Floor = "first") -> DataFrame:
    """The result of `missing_ranges`, from gaps with their keys; ``rows`` has the types of the columns."""
    names, (lower, upper) = columns.of(rows), map(F.col, GAP_COLUMNS[2:4])
    seen = F.when(lower >= 0, lower)
    ends = [
        end
        for packed, to in ((seen, LOWER), (upper, UPPER))
        for end in range_end(rows, names, F.shiftright(packed, SEQUENCE_BITS), packed.bitwiseAND(SEQUENCE_MAX), to)
    ]
    key = (F.col(quoted(name)) for name in names.key)
    return gaps.where(lower >= (START if floor == "open" else 0)).select(*key, *ends)


def named_sequences(rows: DataFrame, columns: ProducerColumns, gaps: DataFrame) -> DataFrame:
    """The result of `missing_sequences`, from gaps with their keys; their ends are sequences counted from 1."""
    lower, upper, since = map(F.col, GAP_COLUMNS[2:])
    ends = F.when(lower > 0, lower - 1).alias(LOWER[1]), (upper - 1).alias(UPPER[1])
    at = _seen_at(rows, columns, F.when(lower > 0, since))
    return gaps.where(lower >= -1).select(*(F.col(quoted(name)) for name in columns.producer), *at, *ends)


def _number(df: DataFrame, timestamp: str, sequence: str | None) -> Column:
    time = moment(df, timestamp)
    below = F.lit(0).cast("long") if time.below is None else time.below
    return F.struct(time.ms.alias("t"), (below if sequence is None else whole(df, sequence)).alias("s"))
