"""The missing ranges of each chain or producer, from the messages that counted.

Between two neighbours ``a < b`` of a chain something is missing exactly if ``b`` names a previous message above ``a``:
then ``(a, previous of b]`` was never seen. That is the state the engine ends with, gaps it had to forget included, so a
window over the firsts finds all of it in the JVM, in one narrow shuffle.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from onefold.engines.chains.detector import Floor
from onefold.spark.columns import ChainColumns, ProducerColumns, quoted, whole

LOWER, UPPER = ("lower_timestamp", "lower_sequence"), ("upper_timestamp", "upper_sequence")


def missing_ranges(firsts: DataFrame, columns: ChainColumns | None = None, *, floor: Floor = "first") -> DataFrame:
    """One row per missing range: the key columns, ``lower`` (seen; null: before all) and ``upper`` (missing).

    ``firsts``: the rows whose verdict is FIRST. With ``floor="first"`` nothing before the first message is missing.
    """
    names = columns or ChainColumns()
    key = [F.col(quoted(name)) for name in names.key]
    if names.previous_timestamp is None:  # nobody names what came before: nothing can be known to be missing
        return firsts.select(*key, *(F.lit(None).cast("long").alias(name) for name in (*LOWER, *UPPER))).limit(0)
    number = F.struct(whole(firsts, names.timestamp).alias("t"), _sequence(firsts, names.sequence).alias("s"))
    previous = F.struct(
        whole(firsts, names.previous_timestamp).alias("t"), _sequence(firsts, names.previous_sequence).alias("s")
    )
    narrow = firsts.select(*key, number.alias("_n"), previous.alias("_p"))
    before = F.lag("_n").over(Window.partitionBy(*key).orderBy("_n"))
    opens = F.col("_p.t").isNotNull() & (F.col("_b").isNull() if floor == "open" else F.lit(False))
    inside = F.col("_p.t").isNotNull() & (F.col("_p") > F.col("_b"))
    found = narrow.withColumn("_b", before).where(opens | inside)
    return found.select(*key, *_ends("_b", LOWER), *_ends("_p", UPPER))


def missing_sequences(firsts: DataFrame, columns: ProducerColumns | None = None) -> DataFrame:
    """One row per missing range: the producer, ``lower_sequence`` (stored; null: before all) and ``upper_sequence``.

    ``firsts``: the rows whose verdict is FIRST. A producer is taken to begin at sequence 0.
    """
    names = columns or ProducerColumns()
    key = [F.col(quoted(name)) for name in names.producer]
    narrow = firsts.select(*key, whole(firsts, names.sequence).alias("_n"))
    before = F.lag("_n").over(Window.partitionBy(*key).orderBy("_n"))
    found = narrow.withColumn("_b", before).where(F.col("_n") - F.coalesce("_b", F.lit(-1)) > 1)
    return found.select(*key, F.col("_b").alias(LOWER[1]), (F.col("_n") - 1).alias(UPPER[1]))


def _sequence(df: DataFrame, name: str | None) -> Column:
    return F.lit(0).cast("long") if name is None else whole(df, name)


def _ends(struct: str, names: tuple[str, str]) -> list[Column]:
    return [F.col(f"{struct}.t").alias(names[0]), F.col(f"{struct}.s").alias(names[1])]
