"""Reading receptions from a file or folder: JSON lines as text, whole; everything else as Spark reads it."""

from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from onefold.errors import Misuse
from onefold.spark import log_source
from onefold.spark.files import first_line
from onefold.spark.place import Place
from onefold.spark.receptions import receptions

LOG: Final = log_source.NAME
LINES: Final = {"json": "text", "jsonl": "text", "ndjson": "text", "text": "text"}
"""Formats of one JSON object a line. Spark's own reader would need a pass over all of it, to guess a schema."""

_ENDINGS: Final = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".txt": "json", ".log": "json",
                   ".parquet": "parquet", ".orc": "orc"}  # fmt: skip
_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_GLOB: Final = "*.{json,jsonl,ndjson,txt,log}*"


def read_receptions(spark: SparkSession, path: str, format: str = "auto", shape: str = "auto") -> DataFrame:
    """The receptions at a path in the normal form, one row each; see `receptions`."""
    return receptions(read_rows(spark, path, format=format), shape)


def read_rows(
    spark: SparkSession, path: str, *, format: str = "auto", options: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows at a path as they are stored; "auto" goes by the endings of names, and knows the folder of a topic."""
    if "://" not in path and not any(char in path for char in "*?[{") and not Place(spark, path).exists():
        raise Misuse(f"there is nothing at {path}", path=path)
    kind = found_format(spark, path) if format == "auto" else format
    if kind == LOG:
        log_source.register_log(spark)
    reader = spark.read.format(LINES.get(kind, kind)).options(**(options or {}))
    if kind in LINES and format == "auto" and _is_folder(spark, path):
        reader = reader.option("pathGlobFilter", _GLOB)  # beside them may lie a registry, a plan, a read-me
    try:
        return reader.load(path)
    except AnalysisException as error:
        raise Misuse(f"cannot read {path} as {kind}: {first_line(error)}", path=path, format=kind) from error
    except Py4JJavaError as error:  # such as a format that is not there
        said = str(error.java_exception.getMessage()).splitlines()[0]
        raise Misuse(f"cannot read {path} as {kind}: {said}", path=path, format=kind) from error


def found_format(spark: SparkSession, path: str) -> str:
    """By the ending of the file, or of the first one in the folder that has a known one."""
    if "://" in path and not path.startswith("file:"):
        names = [path]
    else:
        names = Place(spark, path).names() if not any(char in path for char in "*?[{") else [path]
    if "topic.json" in names:
        return LOG
    for name in [path, *names]:
        for ending, kind in _ENDINGS.items():
            if _unpacked(name).endswith(ending):
                return kind
    return "parquet"


def _unpacked(name: str) -> str:
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return name


def _is_folder(spark: SparkSession, path: str) -> bool:
    place = Place(spark, path)
    return place.names() != [str(place).rsplit("/", 1)[-1]]
