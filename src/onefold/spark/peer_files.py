"""The files of a table: which there are, and a table of some of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.spark.diff_files import Table

Files: TypeAlias = dict[str, tuple[int, int]]
"""Paths, each with the size and the time of the last change: where both are the same, so are the rows."""

IMMUTABLE: Final = frozenset({"parquet", "orc", "json", "jsonl", "ndjson", "csv", "avro", "text"})
"""Formats in which the rows are those of the files. In others a list of what is deleted may lie beside them."""


def files_of(df: DataFrame, table: Table) -> Files:
    """The files of a table, as they are now; none if it is not made of files that can be told apart.

    Cost: about a millisecond for each.
    """
    if table.format not in IMMUTABLE:
        return {}
    jvm: Any = df.sparkSession.sparkContext._jvm
    configuration = df.sparkSession.sparkContext._jsc.hadoopConfiguration()
    to_path, to_uri = getattr(jvm, "org.apache.hadoop.fs.Path"), getattr(jvm, "java.net.URI")
    found = {}
    for name in df.inputFiles():
        path = to_path(to_uri(name))
        status = path.getFileSystem(configuration).getFileStatus(path)
        found[_as_in_rows(name)] = (int(status.getLen()), int(status.getModificationTime()))
    return found


def only(df: DataFrame, files: Iterable[str]) -> DataFrame:
    """The rows of some files; Spark does not open the others."""
    return df.where(F.col("_metadata.file_path").isin(list(files)))


def _as_in_rows(name: str) -> str:
    """A file's name as Spark tells it beside a row: a local one has fewer slashes there."""
    return "file:/" + name.removeprefix("file:///") if name.startswith("file:///") else name
