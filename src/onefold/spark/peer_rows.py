"""The rows that ids stand for, and ids as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.engines.negentropy.arrays import Rows, Stamps
from onefold.spark.columns import quoted
from onefold.spark.diff_files import HAVE, NEED, write_outcome
from onefold.spark.peer_items import Indexed
from onefold.spark.peer_naming import ID, TIME, rows_of, words
from onefold.spark.signature import Signed


def known(index: Indexed, ids: Rows) -> tuple[Stamps, Rows]:
    """The times and ids of the rows with these ids, in any order."""
    return rows_of(_with_ids(index, [row.tobytes() for row in ids]).select(TIME, *words()).toArrow())


def rows_with(index: Indexed, ids: Sequence[bytes]) -> DataFrame:
    """The rows with these ids, as they are in the table."""
    found = _with_ids(index, ids)
    return found.select(*(F.col(quoted(name)) for name in index.df.columns))


def as_table(spark: SparkSession, ids: Sequence[bytes]) -> DataFrame:
    """Ids as a table of one column, ``id``, in hex."""
    return spark.createDataFrame(pa.table({"id": pa.array([id.hex() for id in ids], pa.string())}))


def write_found(
    folder: Signed, index: Indexed, have: Sequence[bytes], need: Sequence[bytes], figures: Mapping[str, Any]
) -> None:
    """Write what a peer lacks, as rows, what we lack, as ids, and the figures last."""
    write_outcome(folder, {HAVE: rows_with(index, have), NEED: as_table(index.df.sparkSession, need)}, figures)


def _with_ids(index: Indexed, ids: Sequence[bytes]) -> DataFrame:
    wanted = as_table(index.df.sparkSession, ids).withColumnRenamed("id", ID)
    return index.naming.with_id(index.df).join(wanted, ID, "left_semi")
