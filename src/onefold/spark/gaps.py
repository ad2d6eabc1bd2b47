"""The missing ranges of each chain or producer, from the messages that counted, or from a memory.

Between two neighbours ``a < b`` of a chain something is missing exactly if ``b`` names a previous message above ``a``:
then ``(a, previous of b]`` was never seen. That is the state the engine ends with, gaps it had to forget included, so a
window over the firsts finds all of it in the JVM, in one narrow shuffle.

A memory has the gaps that are open, by the hashes of their keys. The keys themselves are in the rows.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from onefold.chains.columns import START
from onefold.chains.rules import SEQUENCE_BITS, SEQUENCE_MAX, Floor
from onefold.spark.columns import RANGE_ENDS, TIME, ChainColumns, ProducerColumns, as_time, moment, quoted, whole
from onefold.spark.memory import MemoryFolder

LOWER, UPPER = RANGE_ENDS[:2], RANGE_ENDS[2:]

_NUMBER, _PREVIOUS, _BEFORE = "_onefold_number", "_onefold_previous", "_onefold_before"
_NAME = "_onefold_key", "_onefold_check"
CHAINS = "chains"
"""The table of a memory that holds heads and gaps, of chains and of producers."""


def missing_ranges(firsts: DataFrame, columns: ChainColumns | None = None, *, floor: Floor = "first") -> DataFrame:
    """One row per missing range: the key columns, ``lower`` (seen; null: before all) and ``upper`` (missing).

    ``firsts``: the rows whose verdict is FIRST. With ``floor="first"`` nothing before the first message is missing. The
    timestamps are of the type of the column if it is one of times, else milliseconds.
    """
    names = (columns or ChainColumns()).of(firsts)
    key = [F.col(quoted(name)) for name in names.key]
    if names.previous_timestamp is None:  # nobody names what came before: nothing can be known to be missing
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
    """The end of a range as the table has its numbers: a time of the type of its column, else milliseconds."""
    kind = df.schema[names.timestamp].dataType
    if not isinstance(kind, TIME):
        return [ms.alias(ends[0]), sequence.alias(ends[1])]
    if names.sequence is not None:
        return [as_time(ms, None, kind).alias(ends[0]), sequence.alias(ends[1])]
    nothing = F.when(ms.isNotNull(), F.lit(0).cast("long"))  # what is below the millisecond is part of the time
    return [as_time(ms, sequence, kind).alias(ends[0]), nothing.alias(ends[1])]


def missing_sequences(firsts: DataFrame, columns: ProducerColumns | None = None) -> DataFrame:
    """One row per missing range: the producer, ``lower_sequence`` (stored; null: before all) and ``upper_sequence``.

    ``firsts``: the rows whose verdict is FIRST. A producer is taken to begin at sequence 0.
    """
    names = columns or ProducerColumns()
    key = [F.col(quoted(name)) for name in names.producer]
    narrow = firsts.select(*key, whole(firsts, names.sequence).alias(_NUMBER))
    before = F.lag(_NUMBER).over(Window.partitionBy(*key).orderBy(_NUMBER))
    missing = narrow.withColumn(_BEFORE, before).where(F.col(_NUMBER) - F.coalesce(_BEFORE, F.lit(-1)) > 1)
    return missing.select(*key, F.col(_BEFORE).alias(LOWER[1]), (F.col(_NUMBER) - 1).alias(UPPER[1]))


def open_gaps(
    tables: Sequence[DataFrame], key: Sequence[str], memory: MemoryFolder, below: int, least: int
) -> DataFrame:
    """The gaps that a memory has open below a version, with their keys as these tables name them: the key columns, and
    the ends as they are remembered. Those whose lower end is below ``least`` are left out.
    """
    parts = []
    for _, records in memory.table(CHAINS, below):
        counts, (lower, upper) = records.lists["gaps"]
        owners = (np.repeat(half, counts) for half in (records.key, records.check))
        parts.append(np.stack((*owners, lower, upper))[:, lower >= least])
    gaps = _table(tables[0].sparkSession, np.concatenate(parts, axis=1) if parts else np.empty((4, 0), np.int64))
    cells = [F.col(quoted(name)) for name in key]
    hashes = F.xxhash64(*cells), F.xxhash64(F.lit(1), *cells)  # as the engines name their keys
    names = [half.alias(name) for half, name in zip(hashes, _NAME, strict=True)]
    named = reduce(DataFrame.unionByName, (table.select(*cells, *names) for table in tables))
    wanted = F.broadcast(gaps.select(*_NAME).distinct())
    return named.join(wanted, [*_NAME], "left_semi").dropDuplicates([*_NAME]).join(gaps, [*_NAME])


def _table(spark: SparkSession, gaps: NDArray[np.int64]) -> DataFrame:
    frame = pd.DataFrame(dict(zip((*_NAME, _BEFORE, _PREVIOUS), gaps, strict=True)))
    return spark.createDataFrame(frame, ", ".join(f"{name} long" for name in frame))


def gaps_below(
    rows: DataFrame, columns: ChainColumns, integers: Sequence[Column], gaps: NDArray[np.int64]
) -> DataFrame:
    """These gaps (both halves of the key's hash, lower and upper ends) with their keys, as ranges: above each of them
    lies exactly one of the rows, which names its upper end as its previous number.
    """
    key, check, _, previous, *_ = integers
    named = zip((*_NAME, _PREVIOUS), (key, check, previous), strict=True)
    above = rows.select(*(F.col(quoted(name)) for name in columns.key), *(end.alias(name) for name, end in named))
    joined = above.join(F.broadcast(_table(rows.sparkSession, gaps)), [*_NAME, _PREVIOUS])
    return _as_ranges(joined, rows, columns)


def open_ranges(
    rows: DataFrame, columns: ChainColumns, memory: MemoryFolder, below: int, *more: DataFrame, floor: Floor = "first"
) -> DataFrame:
    """What `missing_ranges` tells, from a memory of chains; the rows, and ``more``, say which keys there are."""
    names = columns.of(rows)
    gaps = open_gaps([rows, *more], names.key, memory, below, START if floor == "open" else 0)
    return _as_ranges(gaps, rows, names)


def _as_ranges(gaps: DataFrame, rows: DataFrame, names: ChainColumns) -> DataFrame:
    """Gaps of chains with their ends as these rows have their numbers."""
    seen = F.when(F.col(_BEFORE) >= 0, F.col(_BEFORE))
    ends = [
        end
        for packed, to in ((seen, LOWER), (F.col(_PREVIOUS), UPPER))
        for end in range_end(rows, names, F.shiftright(packed, SEQUENCE_BITS), packed.bitwiseAND(SEQUENCE_MAX), to)
    ]
    return gaps.select(*(F.col(quoted(name)) for name in names.key), *ends)


def open_sequences(
    rows: DataFrame, columns: ProducerColumns, memory: MemoryFolder, below: int, *more: DataFrame
) -> DataFrame:
    """What `missing_sequences` tells, from a memory of producers, which counts sequences from 1."""
    gaps = open_gaps([rows, *more], columns.producer, memory, below, 0)
    lower = F.when(F.col(_BEFORE) > 0, F.col(_BEFORE) - 1)
    key = (F.col(quoted(name)) for name in columns.producer)
    return gaps.select(*key, lower.alias(LOWER[1]), (F.col(_PREVIOUS) - 1).alias(UPPER[1]))


def _number(df: DataFrame, timestamp: str, sequence: str | None) -> Column:
    time = moment(df, timestamp)
    below = F.lit(0).cast("long") if time.below is None else time.below
    return F.struct(time.ms.alias("t"), (below if sequence is None else whole(df, sequence)).alias("s"))
