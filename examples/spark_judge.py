"""A table of messages in your own SparkSession: every row gets its verdict and reason, no row is dropped.

Run it: python examples/spark_judge.py
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession

from onefold.spark import ChainColumns, judge_chains

SCHEMA = "device string, sent long, sent_before long, received long, degrees double"
ROWS = [
    ("kitchen", 1_000, None, 1_100, 20.5),
    ("kitchen", 2_000, 1_000, 2_100, 20.6),
    ("kitchen", 2_000, 1_000, 2_900, 20.6),  # the sender tried again
    ("kitchen", 4_000, 3_000, 4_100, 20.9),  # 3,000 is missing
    ("cellar", 1_500, None, 1_600, 11.0),
    ("cellar", 9_999_999, 1_500, 2_600, 11.0),  # a wrong clock
    (None, 1_700, None, 1_800, 3.0),
]
COLUMNS = ChainColumns(
    key=("device",),
    timestamp="sent",
    sequence=None,
    previous_timestamp="sent_before",
    previous_sequence=None,
    arrival="received",
)


def own_session() -> SparkSession:
    """Any SparkSession works; without JAVA_HOME, onefold's `local_session` finds a Java or brings one."""
    if "JAVA_HOME" not in os.environ:
        from onefold.spark import local_session

        return local_session(master="local[2]")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need pyarrow and onefold too
    return SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1").getOrCreate()


def judged(df: DataFrame) -> DataFrame:
    """The table with two new columns: verdict and reason."""
    return df.transform(judge_chains(COLUMNS))


def main() -> None:
    """Judge the rows and print them by arrival."""
    spark = own_session()
    table = judged(spark.createDataFrame(ROWS, SCHEMA))
    table.orderBy("received").select("device", "sent", "verdict", "reason").show()
    spark.stop()


if __name__ == "__main__":
    main()
