"""The missing ranges of each chain or producer, from the messages that counted.

Between two neighbours ``a < b`` of a chain something is missing exactly if ``b`` names a previous message above ``a``:
then ``(a, previous of b]`` was never seen. That is the state the engine ends with, gaps it had to forget included, so a
window over the firsts finds all of it in the JVM, in one narrow shuffle.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.chains.rules import Floor
from onefold.spark.columns import RANGE_ENDS, TIME, ChainColumns, ProducerColumns, as_time, moment, quoted, whole

LOWER, UPPER = RANGE_ENDS[:2], RANGE_ENDS[2:]

_NUMBER, _PREVIOUS, _BEFORE = "_onefold_number", "_onefold_previous", "_onefold_before"


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


def _number(df: DataFrame, timestamp: str, sequence: str | None) -> Column:
    time = moment(df, timestamp)
    below = F.lit(0).cast("long") if time.below is None else time.below
    return F.struct(time.ms.alias("t"), (below if sequence is None else whole(df, sequence)).alias("s"))
