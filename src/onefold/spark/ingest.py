"""Reading a source: any Spark format, one clear error for what cannot be read, no row lost for what is malformed.

In text formats (JSON lines, CSV) the columns that hold numbers are read as text, so that one bad value spoils its own
row and not the type of the column; lines that cannot be parsed at all are kept whole in ``_corrupt_record`` and
rejected as `malformed`.
"""

from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse
from onefold.spark import log_source
from onefold.spark.columns import TEXT, milliseconds, quoted, whole
from onefold.spark.judging import Named
from onefold.spark.place import Place
from onefold.spark.validate import CORRUPT

PROBE_ROWS = 1_000
"""How many rows are looked at before a text column is believed to hold numbers."""

_FORMATS = {"jsonl": "json", "ndjson": "json"}
_DEFAULT_OPTIONS = {"csv": {"header": "true"}}
_FILES = {"parquet", "json", "csv", "orc", "text", "avro"}
_PLAIN = {"key", "producer", "payload", "frame", "station", "kind", "device"}  # columns whose values are not numbers
TIMES = ("timestamp", "arrival", "order", "time")
"""Roles whose columns hold times, or numbers; that of the previous message may be empty for long."""
_STREAM_OPTIONS = {"maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "maxFileAge", "cleanSource"}


def read(
    spark: SparkSession, path: str, *, format: str = "parquet", options: Mapping[str, str] | None = None,
    columns: Named,
) -> DataFrame:  # fmt: skip
    """The table at a path, ready to be judged by these columns."""
    kind = _kind(spark, format)
    chosen = {**_DEFAULT_OPTIONS.get(kind, {}), **(options or {})}
    if path and "://" not in path and not _exists(spark, path):
        raise Misuse(f"there is nothing at {path}", path=path)
    try:
        df = _as_text(spark, path, chosen, columns) if kind == "json" else _load(spark, path, kind, chosen)
    except AnalysisException as error:
        raise Misuse(f"cannot read {path} as {format}: {first_line(error)}", path=path, format=format) from error
    except Py4JJavaError as error:  # such as a format that is not there
        said = str(error.java_exception.getMessage()).splitlines()[0]
        raise Misuse(f"cannot read {path} as {format}: {said}", path=path, format=format) from error
    except PySparkException as error:
        raise OSError(f"cannot read {path} as {format}: {first_line(error)}") from error
    columns.check(df)
    _refuse_words(df, columns)
    return df


def read_stream(
    spark: SparkSession, path: str, *, format: str = "parquet", options: Mapping[str, str] | None = None,
    columns: Named,
) -> DataFrame:  # fmt: skip
    """The source at a path as a stream; of files, those that are there now say what the columns are."""
    kind = _kind(spark, format)
    reader = spark.readStream.format(kind).options(**{**_DEFAULT_OPTIONS.get(kind, {}), **(options or {})})
    if kind in _FILES:
        batch = {key: value for key, value in (options or {}).items() if key not in _STREAM_OPTIONS}
        schema = read(spark, path, format=format, options=batch, columns=columns).schema
        return reader.schema(schema).load(path)
    try:
        df = reader.load(path)
    except (AnalysisException, Py4JJavaError) as error:
        raise Misuse(f"cannot read {path} as {format}: {first_line(error)}", path=path, format=format) from error
    columns.check(df)
    return df


def _kind(spark: SparkSession, format: str) -> str:
    """The format as Spark calls it; our own is made known to the session."""
    if format == log_source.NAME:
        log_source.register_log(spark)
    return _FORMATS.get(format, format)


def first_line(error: Exception) -> str:
    """What a Spark error says, without its stack; of one out of the JVM, what began it."""
    said: object = error
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause is not None:
            said, cause = cause.getMessage() or said, cause.getCause()
    text = str(said).strip().splitlines()
    return text[0] if text else type(error).__name__


def _exists(spark: SparkSession, path: str) -> bool:
    return any(char in path for char in "*?[{") or Place(spark, path).exists()


def _load(spark: SparkSession, path: str, kind: str, options: Mapping[str, str]) -> DataFrame:
    reader = spark.read.format(kind).options(**options)
    if kind != "csv":
        return reader.load(path)
    names = reader.load(path).schema
    return reader.schema(T.StructType([*names.fields, T.StructField(CORRUPT, T.StringType())])).load(path)


def _as_text(spark: SparkSession, path: str, options: Mapping[str, str], columns: Named) -> DataFrame:
    reader = spark.read.format("json").options(**options)
    inferred = reader.load(path).schema
    numbers = {name for role, name in columns.named if role not in _PLAIN}
    fields = [T.StructField(f.name, T.StringType()) if f.name in numbers else f for f in inferred if f.name != CORRUPT]
    return reader.schema(T.StructType([*fields, T.StructField(CORRUPT, T.StringType())])).load(path)


def _refuse_words(df: DataFrame, columns: Named) -> None:
    """A text column without a single number or time among its first values is the wrong column, not a bad row."""
    wanted = {name: role in TIMES for role, name in columns.named if role in (*TIMES, "sequence")}
    texts = [name for name in wanted if isinstance(df.schema[name].dataType, TEXT)]
    if not texts:
        return
    head = df.select(*(F.col(quoted(name)) for name in texts)).limit(PROBE_ROWS)
    cells = [cell for name in texts for cell in (
        F.count(milliseconds(df, name) if wanted[name] else whole(df, name)),
        F.first(F.col(quoted(name)), ignorenulls=True))]  # fmt: skip
    found = head.agg(*cells).collect()[0]
    for i, name in enumerate(texts):
        if found[2 * i] == 0 and found[2 * i + 1] is not None:
            what = "a whole number or a time" if wanted[name] else "a whole number"
            raise Misuse(f"column {name!r} is text without {what} in it, such as {found[2 * i + 1]!r}", column=name)
