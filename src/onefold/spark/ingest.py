"""Reading a source in any Spark format: one clear error for a source that cannot be read, and no row lost.

Nothing is inferred that could change a message:

    keys and numbers    in text formats (JSON lines, CSV) are read as text, as written: ``"001"`` stays ``"001"``, and
                        one bad value spoils its row, not the type of the column
    partition folders   hold text (``device=001`` and ``device=1`` are two devices), unless ``partition_types="infer"``
    columns             are collected over all files: a column that only some files have is null in the others; each CSV
                        file is read by its own header; Parquet and ORC files that disagree on a type are refused
    JSON lines          are checked one by one. A line that is not exactly one JSON object with distinct keys is odd: it
                        is kept whole in ``_corrupt_record`` and rejected as `malformed`; other lines are unaffected.
                        If no line is odd, there is no such column
    unreadable files    including empty ones, are reported by name (`files`)

Spark's JSON parser is lenient: of two objects on a line it takes the first, of a duplicate key the last, it spreads a
list into rows, replaces bytes that are not UTF-8; and two spellings of one name (``Note``, ``note``) in a single line
make the whole source unreadable. So JSON lines are surveyed first, in one native pass: which columns there are, and
whether any line is odd. If none is odd, Spark's own reader reads them, which is fastest; else each line is parsed here,
with one column expression per check:

    valid text      ``is_valid_utf8``
    one object      it is parsed as the first element of a list whose second is a random mark: a second object ends the
                    list early or makes it longer. A line with a single, outer pair of braces needs no such check
    distinct keys   ``try_parse_json`` refuses a duplicate key at any depth; applied to the line in lower case, also two
                    spellings of one key. It refuses malformed numbers and lone surrogates too

Blank lines are skipped.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.decoding import read_json
from onefold.errors import BadInput, Misuse
from onefold.spark import objects
from onefold.spark.columns import CORRUPT, TEXT, milliseconds, no_number, quoted, whole
from onefold.spark.dialect import SPARK, kinds, try_cast, valid_utf8
from onefold.spark.engine import Named
from onefold.spark.files import (
    FOOTED,
    LISTING,
    BadFiles,
    Manifest,
    Place,
    SourceFile,
    SourceFiles,
    first_line,
    is_in,
    is_true,
)
from onefold.spark.host import Transform
from onefold.spark.lakes import DELTA, ICEBERG, PACKAGES, Snapshot, open_snapshot, refuse_connector_options
from onefold.spark.session import opens
from onefold.spark.versions import FileKey

PartitionTypes: TypeAlias = Literal["text", "infer"]

TABLE: Final = "table"
"""A table of Spark's catalogue; its path is the table's name."""
KAFKA: Final = "kafka"
"""Kafka topics; the path is kafka://HOST:PORT/TOPIC, see `kafka`."""
LOG: Final = "onefold-log"
"""The log of a topic, see `log_source`."""
PROBE_ROWS = 1_000
"""How many rows are checked for a number before a text column is refused."""
TIMES = ("timestamp", "arrival", "order", "time")
"""Roles whose columns hold times or numbers. (The previous message's time may be null in many first rows.)"""
LOOSE: Final = {
    "allowcomments", "allowunquotedfieldnames", "allowsinglequotes", "allownumericleadingzeros", "infertimestamp",
    "allowbackslashescapinganycharacter", "allowunquotedcontrolchars", "allownonnumericnumbers", "multiline",
}  # fmt: skip
"""Options for more than strict JSON lines: with one of them, Spark's own reader decides what a row is."""
STRICT: Final = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
NAMED: Final = {"columnNameOfCorruptRecord": CORRUPT}
"""Overrides the session's name for this column: under another name, rows that were cut short would pass as good."""
VALUE: Final = "value"
"""The column with the text of a line."""
AT: Final = "_onefold_at"
"""The column with the file that a row came from."""

_FORMATS = {"jsonl": "json", "ndjson": "json"}
_FILES = {"parquet", "json", "csv", "orc", "text", "avro"}
_DEFAULT_OPTIONS = {"csv": {"header": "true"}}
_STREAM_OPTIONS = {"maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "cleansource"}
_INFERRED = {"payload"}
"""Roles whose columns are only compared: their types may be inferred."""
_LADDERS: Final = ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))
"""In each ladder, a type holds all values of the types before it."""
_OBJECT: Final = re.compile(r"`(?:[^`]|``)*`|OBJECT<")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """Where the messages are, and how they are read."""

    path: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    bad_files: BadFiles = "stop"
    """"stop": a file that cannot be read ends the job; "set_aside": the job continues without it. Both name it."""
    partition_types: PartitionTypes = "text"
    """Whether the values of partition folders are text, or typed as Spark infers them."""
    only: Collection[str] | None = None
    """The paths of the files to read; None: all."""
    probed: bool = False
    """Whether the caller has checked already that number and time columns hold numbers and times."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source that is ready to be judged, and what is known of it without its reader."""

    rows: DataFrame
    manifest: Manifest
    files: SourceFiles | None = None
    """None: the source is not made of files."""
    rows_by_file: Callable[[], dict[str, int]] = dict
    """How many rows the reader returns per file; takes another pass."""
    count: Callable[[int], Manifest] | None = None
    """For a source that is counted after it was read: from the number of rows read to the manifest."""

    def counted(self, read: int) -> OpenSource:
        """The same source with its rows counted without the reader; ``read``: how many rows the reader returned."""
        return self if self.count is None else replace(self, manifest=self.count(read), count=None)

    def changed(self) -> list[str]:
        """The files that have changed since the source was opened, one line each."""
        return [] if self.files is None else self.manifest.changed(self.files.listed())


def open_source(
    spark: SparkSession, source: SourceSpec, columns: Named, *, count: bool = True, at: bool = False
) -> OpenSource:
    """The table of a source, ready to be judged by these columns. ``count``: also count the rows without the reader.
    ``at``: add a column `AT` with the file of each row, where Spark's ``input_file_name`` does not have it.

    Raise `Misuse` for a missing source or column or a wrong type, `OSError` for files that cannot be read.
    """
    with _clear_errors(spark, source) as (kind, options):
        if kind in _FILES:
            opened = _open_files(Reading(spark, source, columns, kind, options), count, at)
        elif kind in PACKAGES:
            opened = _open_lake(spark, source, kind, options)
        elif kind == KAFKA:
            from onefold.spark import kafka

            opened = kafka.open_table(spark, source.path, options, naming(columns), source.only)
        else:
            why = f"the rows of format {source.format!r} can be counted by its reader only"
            opened = OpenSource(_loaded(spark, spark.read.options(**options), kind, source.path), Manifest(why_not=why))
        opened = replace(opened, rows=columns.added_to(opened.rows))
        columns.check(opened.rows)
        if not source.probed:
            _refuse_words(opened.rows, columns)
    return opened


def listed(
    spark: SparkSession, source: SourceSpec, before: Callable[[], Collection[FileKey]]
) -> list[SourceFile] | None:  # fmt: skip
    """The files of a source, unopened; None: it is not made of files. For topics: the ranges that were read ``before``,
    and those that are new.
    """
    with _clear_errors(spark, source) as (kind, options):
        if kind == KAFKA:
            from onefold.spark import kafka

            return kafka.listed(spark, source.path, options, before())
        if kind in PACKAGES and _connector(spark, source.path, kind, options, None) is None:
            refuse_connector_options(source.path, kind, options)
            return list(_of_snapshot(open_snapshot(source.path, kind, options)).files)
        return SourceFiles(spark, source.path, kind, options).listed() if kind in _FILES else None


def _open_lake(spark: SparkSession, source: SourceSpec, kind: str, options: Mapping[str, str]) -> OpenSource:
    """A snapshot of a table, read by the platform's own connector if Spark has it, else through Arrow."""
    has_package = find_spec(PACKAGES[kind]) is not None
    rows = _connector(spark, source.path, kind, options, None)
    if rows is not None and not (has_package and kind == DELTA):
        return OpenSource(rows, Manifest(why_not=f"the rows of this {kind} table can be counted by its connector only"))
    if rows is None:
        refuse_connector_options(source.path, kind, options)
    snapshot = open_snapshot(source.path, kind, options)
    if rows is not None:
        rows = _connector(spark, source.path, kind, options, snapshot.version)
    if source.only is not None:
        snapshot = snapshot.only(source.only)

    def rows_by_file() -> dict[str, int]:
        counts = snapshot.read(spark, at=AT).groupBy(AT).count().collect()
        return {str(at): int(count) for at, count in counts}

    read = snapshot.read(spark) if rows is None else rows
    return OpenSource(read, _of_snapshot(snapshot), None, rows_by_file if rows is None else dict)


def _of_snapshot(snapshot: Snapshot) -> Manifest:
    files = (SourceFile(file.path, file.size, 0, file.rows, metadata_path=file.path) for file in snapshot.files)
    return Manifest(tuple(sorted(files, key=lambda file: file.path)), snapshot=snapshot.named)


def _connector(
    spark: SparkSession, path: str, kind: str, options: Mapping[str, str], version: int | None
) -> DataFrame | None:
    """The table through Spark's own connector; None: Spark has none, or does not know the catalogue."""
    if kind == ICEBERG and ("#" in path or spark.conf.get(f"spark.sql.catalog.{path.partition('.')[0]}", None) is None):
        return None
    at = {} if version is None else {"versionAsOf": str(version)}
    try:
        rows = spark.read.format(kind).options(**{**options, **at}).load(path)
        return rows if rows.schema else None  # Spark Connect resolves the table only here
    except (Py4JJavaError, PySparkException) as error:
        if _lacks_connector(error):
            return None
        raise


def _lacks_connector(error: Exception) -> bool:
    return any(sign in str(error) for sign in ("DATA_SOURCE_NOT_FOUND", "Failed to find data source"))


def naming(columns: Named) -> set[str]:
    """The columns whose text must stay as written, because they identify or order messages."""
    return {name for role, name in columns.named if role not in _INFERRED}


def _open_files(reading: Reading, count: bool, at: bool) -> OpenSource:
    reading.look(count=count)
    parts = reading.parts()

    def table(*, at: bool = False) -> DataFrame:
        frames = [reading.read(part, at=at) for part in parts]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

    def rows_by_file() -> dict[str, int]:
        return {str(at): int(rows) for at, rows in table(at=True).groupBy(AT).count().collect()}

    if reading.files.by_arrow:  # reads exactly the files of the manifest
        return OpenSource(table(at=at), reading.manifest, reading.files, rows_by_file)
    df = table()
    if count:  # the reader has just listed the files: count those again that have changed since the first look
        reading.look(count=True)
    return OpenSource(df, reading.manifest.only(df.inputFiles()), reading.files, rows_by_file)


def read(
    spark: SparkSession, path: str, *, format: str = "parquet", options: Mapping[str, str] | None = None,
    columns: Named, partition_types: PartitionTypes = "text",
) -> DataFrame:  # fmt: skip
    """The table at a path, ready to be judged by these columns."""
    source = SourceSpec(path=path, format=format, options=options or {}, partition_types=partition_types)
    return open_source(spark, source, columns, count=False).rows


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A source as a stream, and what its files must be like."""

    rows: DataFrame
    files: SourceFiles | None = None
    """None: the source is not made of files."""
    header: str | None = None
    """The header line that CSV files must have; None: any."""
    start: Mapping[str, Any] | None = None
    """For topics: the first offsets, which the next start must be given; None: Spark keeps them."""

    def judged(self, file: SourceFile) -> SourceFile:
        """The file, with a trouble if its header line is not that of the stream."""
        if file.trouble or self.header is None or file.layout == self.header:
            return file
        return replace(file, trouble=f"its header line is {file.layout!r}, and the stream reads {self.header!r}")


def open_stream(
    spark: SparkSession, source: SourceSpec, columns: Named, aside: Sequence[SourceFile] = (), *, log: str = "",
    start: Mapping[str, Any] | None = None,
) -> OpenedStream:  # fmt: skip
    """A source as a stream; the files that exist now determine the columns. ``aside``: files not to be read. ``log``:
    where the list of files is kept if Spark cannot open them. ``start``: the first offsets of topics, as an earlier
    start of the same stream settled them.
    """
    with _clear_errors(spark, source) as (kind, options):
        reader = spark.readStream.options(**options)
        if kind in _FILES:
            batch = {name: value for name, value in options.items() if name.lower() not in _STREAM_OPTIONS}
            reading = Reading(spark, replace(source, bad_files="set_aside"), columns, kind, batch)
            reading.look(count=False, aside=aside)  # unreadable files are reported with their batch
            part, header = reading.stream_part(source.bad_files)
            _refuse_words(reading.read(part), columns)
            if reading.files.by_arrow:
                rows = _stored_stream(spark, source, part, aside, log)
            else:
                rows = part.read(reader, source.path, aside)
            opened = OpenedStream(rows, reading.files, header)
        elif kind == KAFKA:
            from onefold.spark import kafka

            rows, start = kafka.open_stream(spark, source.path, options, naming(columns), start)
            opened = OpenedStream(rows, start=start)
        else:
            opened = OpenedStream(_loaded(spark, reader, kind, source.path))
        opened = replace(opened, rows=columns.added_to(opened.rows))
        columns.check(opened.rows)
    return opened


def _stored_stream(
    spark: SparkSession, source: SourceSpec, part: SourcePart, aside: Sequence[SourceFile], log: str
) -> DataFrame:
    """The files of a store that Spark cannot open, as a stream."""
    try:
        from onefold.spark.object_stream import NAME, source_of
    except ImportError as error:
        raise Misuse(
            f"{source.path}: a stream from there needs Spark's own connector, or Spark 4.1; this is"
            f" {pyspark.__version__}"
        ) from error
    own = {name.lower(): value for name, value in source.options.items() if name.lower() in _STREAM_OPTIONS}
    if other := sorted(own.keys() - {"maxfilespertrigger"}):
        raise Misuse(f"{source.path}: the option {other[0]} needs Spark's own connector for that store")
    spark.dataSource.register(source_of(objects.file_system(source.path)[0]))
    lines = part.kind == "text"
    fields = [T.StructField(VALUE, T.BinaryType()) if lines and f.name == VALUE else f for f in part.schema]
    reader = spark.readStream.format(NAME).schema(T.StructType(fields)).options(
        kind=part.kind, log=log, aside=json.dumps([file.path for file in aside]),
        maxFiles=own.get("maxfilespertrigger", "0"),
    )  # fmt: skip
    rows = reader.load(source.path)
    return part.step(rows.withColumn(VALUE, F.col(VALUE).cast("string")) if lines else rows)


def _loaded(spark: SparkSession, reader: Any, kind: str, path: str) -> DataFrame:
    if kind in PACKAGES:
        try:
            return reader.format(kind).load(path)  # type: ignore[no-any-return]
        except (Py4JJavaError, PySparkException) as error:
            if not _lacks_connector(error):
                raise
            what = f"a stream reads a {kind} table through Spark's own connector, which is not here"
            raise Misuse(f"{path}: {what}: add its jar, or run batches with [memory]", path=path) from error
    if kind != TABLE:
        return reader.format(kind).load(path)  # type: ignore[no-any-return]
    if not spark.catalog.tableExists(path):
        raise Misuse(f"there is no table {path}, nor a file of that name", path=path)
    return reader.table(path)  # type: ignore[no-any-return]


def is_table_name(text: str) -> bool:
    """Whether this may be a catalogue table's name, of two or three parts, and not a path.

    >>> [is_table_name(name) for name in ("db.events", "main.sales.orders", "events", "in/a.b", "a.json", "x.csv.gz")]
    [True, True, False, False, False, False]
    """
    ending = text.rpartition(".")[2].lower()
    is_file = ending in (*_FORMATS, *_FILES, "gz", "bz2", "zst", "txt", "log", "tsv")
    return re.fullmatch(r"(`[^`]+`|\w[\w-]*)([.](`[^`]+`|\w[\w-]*)){1,2}", text) is not None and not is_file


@contextmanager
def _clear_errors(spark: SparkSession, source: SourceSpec) -> Iterator[tuple[str, dict[str, str]]]:
    """The format as Spark calls it, and its options; errors of Spark inside become one clear line."""
    is_pattern = objects.PATTERN.search(source.path) is not None
    is_path = source.path and source.format not in (TABLE, *PACKAGES) and "://" not in source.path and not is_pattern
    is_stored = "://" in source.path and not is_pattern and not opens(spark, objects.scheme_of(source.path))
    if (is_path or (is_stored and _FORMATS.get(source.format, source.format) in _FILES)) and not Place(
        spark, source.path
    ).exists():
        raise Misuse(f"there is nothing at {source.path}", path=source.path)
    if source.format == LOG:
        register_log(spark)
    kind, what = _FORMATS.get(source.format, source.format), f"cannot read {source.path} as {source.format}"
    try:
        yield kind, {**_DEFAULT_OPTIONS.get(kind, {}), **source.options}
    except AnalysisException as error:
        raise Misuse(f"{what}: {first_line(error)}", path=source.path, format=source.format) from error
    except Py4JJavaError as error:  # such as a format that is not there
        message = str(error.java_exception.getMessage() or first_line(error)).splitlines()[0]
        raise Misuse(f"{what}: {message}", path=source.path, format=source.format) from error
    except PySparkException as error:
        if _lacks_connector(error):  # of Spark Connect
            raise Misuse(f"{what}: {first_line(error)}", path=source.path, format=source.format) from error
        raise OSError(f"{what}: {first_line(error)}") from error


def register_log(spark: SparkSession) -> None:
    """Register the format ``onefold-log``, the log of a topic, with a session."""
    try:
        from onefold.spark.log_source import OnefoldLog
    except ImportError as error:
        raise Misuse(f"format {LOG!r} needs Spark 4.1 or newer, this is {pyspark.__version__}") from error
    spark.dataSource.register(OnefoldLog)


def _refuse_words(df: DataFrame, columns: Named) -> None:
    """Refuse a text column without a single number or time among its first values: it is the wrong column."""
    df, present = columns.added_to(df), set(df.columns)
    roles = {name: role for role, name in columns.of(df).named if role in (*TIMES, "sequence") and name in present}
    texts = [name for name in roles if isinstance(df.schema[name].dataType, TEXT)]
    if not texts:
        return
    cells = []
    for name in texts:
        cells.append(F.count(milliseconds(df, name) if roles[name] in TIMES else whole(df, name)))
        cells.append(F.first(F.col(quoted(name)), ignorenulls=True))
    head = df.select(*(F.col(quoted(name)) for name in texts)).limit(PROBE_ROWS)
    row = head.agg(*cells).collect()[0]
    for name, count, example in zip(texts, row[::2], row[1::2], strict=True):
        if count == 0 and example is not None:
            raise no_number(name, roles[name], example)


@dataclass(frozen=True, slots=True)
class SourcePart:
    """How some or all of the files are read."""

    kind: str
    options: Mapping[str, str]
    schema: T.StructType
    step: Transform = lambda df: df
    """From the rows as read to the table; keeps a column `AT`."""
    only: Sequence[SourceFile] | None = None
    """None: all files."""

    def read(self, reader: Any, path: str, aside: Sequence[SourceFile] = (), *, at: bool = False) -> DataFrame:
        """The table of these files. ``reader``: for a batch or a stream. ``at``: with the file of each row."""
        df: DataFrame = reader.format(self.kind).options(**self.options).schema(self.schema).load(path)
        if self.only is not None:
            df = df.where(is_in(self.only))
        elif any(file.metadata_path for file in aside):
            df = df.where(~is_in(aside))
        return self.step(df.withColumn(AT, F.col("_metadata.file_path")) if at else df)


class Reading:
    """Determines the columns of a source over all of its files, and how to read them."""

    def __init__(
        self, spark: SparkSession, source: SourceSpec, columns: Named, kind: str, options: Mapping[str, str]
    ) -> None:  # fmt: skip
        self.spark, self.source = spark, source
        self._kind, self._options = kind, {**options, **NAMED} if kind in ("json", "csv") else options
        self.files = SourceFiles(spark, source.path, kind, options, source.only)
        self.manifest = Manifest()
        self._roles = naming(columns)
        self._text = {name.lower() for name in self._roles}
        mode = self.files.options.get("mode", "").upper()
        if kind in ("json", "csv") and mode == "DROPMALFORMED":
            raise Misuse('source.options: mode is "DROPMALFORMED", which drops rows in silence: leave it out')
        corrupt = self.files.options.get("columnnameofcorruptrecord", CORRUPT)
        if kind in ("json", "csv") and corrupt != CORRUPT:
            what = f"columnNameOfCorruptRecord is {corrupt!r}, but malformed rows are always kept in {CORRUPT}"
            raise Misuse(f"source.options: {what}: leave it out")
        self._fails_fast = mode == "FAILFAST"

    def look(self, *, count: bool, aside: Sequence[SourceFile] = ()) -> None:
        """Inspect the files that exist now, except those inspected before that have not changed."""
        manifest = self.files.inspected(self.source.bad_files, count=count, before=self.manifest)
        paths = {file.path for file in aside}
        bad = (*manifest.aside, *(file for file in manifest.files if file.path in paths))
        good = tuple(file for file in manifest.files if file.path not in paths)
        self.manifest = replace(manifest, files=good, aside=bad)
        if bad and not good:
            why = bad[0].trouble or "it was set aside"
            raise OSError(f"there is no file at {self.source.path} that can be read; {bad[0].shown}: {why}")

    def read(self, part: SourcePart, *, at: bool = False) -> DataFrame:
        """The table of a part without the files set aside. ``at``: with the file of each row."""
        if self.files.by_arrow:
            files = self.manifest.files if part.only is None else part.only
            return part.step(self.files.rows(part.kind, files, part.schema, AT if at else None))
        return part.read(self.spark.read, self.source.path, self.manifest.aside, at=at)

    def parts(self) -> list[SourcePart]:
        if self._kind == "csv" and self.manifest.files:
            return self._csv()
        if self._kind == "json" and self.manifest.files:
            return [self._json()]
        columns = self._merged() if self.manifest.files else self._inferred()
        return [SourcePart(self._kind, self._options, self._with_folders(columns), only=self._some)]

    @property
    def _some(self) -> Sequence[SourceFile] | None:
        return None if self.source.only is None else self.manifest.files

    def stream_part(self, bad_files: BadFiles) -> tuple[SourcePart, str | None]:
        """How a stream reads the source, and the header line that its files must have."""
        if self._kind == "json" and self.manifest.files and not self._is_loose:
            if self._fails_fast:
                raise Misuse('source.options: mode is "FAILFAST", but a stream rejects malformed lines: leave it out')
            return self._line_by_line(), None
        parts = sorted(self.parts(), key=lambda part: -len(part.only or ()))
        if len(parts) > 1 and bad_files == "stop":
            one, other = ((part.only or ())[0].shown for part in parts[:2])
            raise Misuse(f"{one} and {other} have different header lines: a stream reads one", path=self.source.path)
        has_header = self.files.has_header and self.manifest.files
        header = (parts[0].only or self.manifest.files)[0].layout if has_header else None
        return replace(parts[0], only=None), header

    def _inferred(self, files: Sequence[SourceFile] | None = None) -> T.StructType:
        """The columns as Spark's own reader infers them."""
        if self.files.by_arrow:
            if not (some := files or self.manifest.files):
                raise Misuse(f"there is no file at {self.source.path}", path=self.source.path)
            if self._kind == "text":
                return T.StructType([_text(VALUE)])
            return objects.schema_of(some[0].path, self._kind)
        paths = self.source.path if files is None else [file.path for file in files]
        return self.spark.read.format(self._kind).options(**self._options).load(paths).schema

    def _with_folders(self, columns: T.StructType, *more: T.StructField) -> T.StructType:
        """The columns of the files, then ``more``, then those of partition folders."""
        folders = self.files.folders(infer=self.source.partition_types == "infer")
        names = {column.name.lower() for column in folders}
        return T.StructType([*(each for each in (*columns, *more) if each.name.lower() not in names), *folders])

    def _merged(self) -> T.StructType:
        """The columns of all files. Files of one layout have the same columns, so one file per layout is read."""
        if self._kind not in FOOTED:
            return self._inferred(self.manifest.files)
        columns: dict[str, tuple[T.StructField, SourceFile]] = {}
        for file in {file.layout: file for file in reversed(self.manifest.files)}.values():
            for column in self._inferred([file]):
                earlier, first = columns.get(column.name.lower(), (column, file))
                kind = _wider(earlier.dataType, column.dataType)
                if kind is None:
                    here, there = column.dataType.simpleString(), earlier.dataType.simpleString()
                    raise Misuse(
                        f"column {column.name!r} is {here} in {file.shown}, {there} in {first.shown}: no type is both",
                        column=column.name,
                    )
                columns[column.name.lower()] = (T.StructField(earlier.name, kind), first)
        return T.StructType([column for column, _ in columns.values()])

    def _csv(self) -> list[SourcePart]:
        """Each file by its own header line; files with the same header together."""
        layouts: dict[str, list[SourceFile]] = {}
        for file in self.manifest.files:
            layouts.setdefault(file.layout, []).append(file)
        infer = is_true(self.files.options.get("inferschema"))
        schemas = [self._inferred(files if infer else files[:1]) for files in layouts.values()]
        types: dict[str, T.DataType] = {}
        for column in (column for schema in schemas for column in schema):
            earlier = types.get(column.name.lower(), column.dataType)
            types[column.name.lower()] = _wider(earlier, column.dataType) or T.StringType()
        parts = []
        for columns, files in zip(schemas, layouts.values(), strict=True):
            typed = [T.StructField(column.name, types[column.name.lower()]) for column in columns]
            schema = self._with_folders(self._as_written(typed), _text(CORRUPT))
            parts.append(SourcePart("csv", self._options, schema, only=files if len(layouts) > 1 else self._some))
        return parts

    def _as_written(self, columns: Iterable[T.StructField]) -> T.StructType:
        """The columns, with those that identify or order messages as text."""
        nested = T.StructType | T.ArrayType | T.MapType
        return T.StructType([
            _text(each.name) if each.name.lower() in self._text and not isinstance(each.dataType, nested) else each
            for each in columns
        ])  # fmt: skip

    @property
    def _is_loose(self) -> bool:
        """Whether Spark's own reader decides what a row of JSON is."""
        return any(is_true(self.files.options.get(name)) for name in LOOSE) or self.files.is_wide

    def _json(self) -> SourcePart:
        """By Spark's own reader if the options demand it or no line is odd; else line by line."""
        if self.files.by_arrow:
            if self._is_loose or SPARK < (4, 0):
                what = "options that ask for less than strict JSON" if self._is_loose else "JSON lines on Spark 3.5"
                raise Misuse(f"{self.source.path}: {what} need Spark's own connector for that store")
            return self._line_by_line()
        if SPARK < (4, 0) and not self._is_loose:
            self._refuse_odd_lines()
        if SPARK < (4, 0) or self._is_loose:
            columns = self._as_written(each for each in self._inferred(self.manifest.files) if each.name != CORRUPT)
            return SourcePart("json", self._options, self._with_folders(columns, _text(CORRUPT)), only=self._some)
        outcome = self._surveyed(self.read(self._lines()))
        table = JsonTable.of(outcome.keys, self._roles, self.files.options)
        if outcome.odd or any(len(spellings) > 1 for spellings in table.keys.values()):
            return self._line_by_line()
        schema = T.StructType([T.StructField(name, kind) for name, kind in table.types.items()])
        # A run with a memory has the column in every version: the next version may have an odd line.
        more = () if self.source.only is None else (_text(CORRUPT),)
        return SourcePart("json", self._options, self._with_folders(schema, *more), only=self._some)

    def _refuse_odd_lines(self) -> None:
        """Spark 3.5 has no functions that detect odd lines, and its reader may misread them: so Python checks."""
        rows = self.read(self._lines()).where(_trimmed() != "")
        odd = F.udf(_is_odd, "boolean")(VALUE)
        count, sample = rows.where(odd).agg(F.count(F.lit(1)), F.any_value(VALUE)).collect()[0]
        if count:
            what = f"{count:,} lines are not one JSON object each, such as {str(sample)[:80]!r}"
            raise Misuse(f"{self.source.path}: {what}: Spark 4 sets them aside", path=self.source.path)

    def _line_by_line(self) -> SourcePart:
        """Each line parsed by itself; odd lines contribute no columns."""
        lines = self._lines()
        table = JsonTable.of(self._surveyed(self.read(lines), strict=True).keys, self._roles, self.files.options)
        return replace(lines, step=lambda df: table.rows(lines.step(df).where(_trimmed() != ""), self.files.options))

    def _surveyed(self, lines: DataFrame, *, strict: bool = False) -> Survey:
        outcome = survey(lines, strict=strict)
        if outcome.odd and self._fails_fast:
            raise OSError(
                f"{self.source.path}: {outcome.odd:,} lines are not one JSON object each, such as {outcome.sample!r}"
            )
        return outcome

    def _lines(self) -> SourcePart:
        options = {name: value for name, value in self.files.options.items() if name in {*LISTING, "linesep"}}
        schema = self._with_folders(T.StructType([_text(VALUE)]))
        decoded = F.decode(F.col(VALUE).cast("binary"), self.files.encoding)
        part = SourcePart("text", options, schema, only=self._some)
        return part if self.files.encoding == "utf-8" else replace(part, step=lambda df: df.withColumn(VALUE, decoded))


def _text(name: str) -> T.StructField:
    return T.StructField(name, T.StringType())


def _wider(one: T.DataType, other: T.DataType) -> T.DataType | None:
    """The type that holds all values of both; None: there is none."""
    if one == other or isinstance(other, T.NullType):
        return one
    if isinstance(one, T.NullType):
        return other
    for ladder in _LADDERS:
        if type(one) in ladder and type(other) in ladder:
            return max(one, other, key=lambda kind: ladder.index(type(kind)))
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        element = _wider(one.elementType, other.elementType)
        return None if element is None else T.ArrayType(element)
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        columns = {column.name.lower(): column for column in one}
        for column in other:
            earlier = columns.get(column.name.lower(), column)
            kind = _wider(earlier.dataType, column.dataType)
            if kind is None:
                return None
            columns[column.name.lower()] = T.StructField(earlier.name, kind)
        return T.StructType(list(columns.values()))
    return None


class Survey(NamedTuple):
    """What one pass over all JSON lines found."""

    keys: T.StructType
    """Every key of every line, in each of its spellings, with the common type of its values."""
    odd: int
    """How many lines are odd."""
    sample: str | None
    """An odd line."""


def survey(lines: DataFrame, *, strict: bool = False) -> Survey:
    """Read all lines once: which columns there are, and how many lines are odd.

    Unless ``strict``, a line with two spellings of a key does not count as odd; there is no such line if no column is
    spelled in two ways.
    """
    is_sound = _is_text_of_object() & (_has_distinct_keys() if strict else F.lit(True))
    parsed = lines.where(_trimmed() != "").select(
        F.col(VALUE), F.when(is_sound, F.try_parse_json(VALUE)).alias("parsed"), _is_one_object().alias("one")
    )
    is_odd = F.col("parsed").isNull() | ~F.col("one")
    schema, odd, sample = parsed.agg(
        F.schema_of_variant_agg(F.when(~is_odd, F.col("parsed"))),
        F.count_if(is_odd),
        F.any_value(F.when(is_odd, F.col(VALUE)), True),
    ).collect()[0]
    ddl = _OBJECT.sub(lambda part: "STRUCT<" if part[0] == "OBJECT<" else part[0], schema)
    keys = T.DataType.fromDDL(ddl) if ddl.startswith("STRUCT<") else T.StructType()
    return Survey(keys, int(odd), None if sample is None else str(sample)[:80])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class JsonTable:
    """The columns of a table of JSON lines, and the keys that each is read from."""

    keys: Mapping[str, tuple[str, ...]]
    """The spellings of each column's key."""
    types: Mapping[str, T.DataType]
    as_written: frozenset[str]
    """The columns whose values are read as text, as written."""

    @classmethod
    def of(cls, surveyed: T.StructType, as_written: Collection[str], options: Mapping[str, str]) -> JsonTable:
        """One column for all spellings of a key. If its values have no common type, the column is their JSON as text.

        ``options``: of Spark's reader, by names in lower case.
        """
        spelled: dict[str, dict[str, T.DataType]] = {}
        for key in surveyed:
            spelled.setdefault(key.name.lower(), {})[key.name] = key.dataType
        lower, keys, types = {name.lower() for name in as_written}, {}, {}
        for spellings in spelled.values():
            name = next((name for name in spellings if name in as_written), max(spellings))  # max prefers lower case
            kinds = set(spellings.values()) - {T.NullType()}
            if not kinds and is_true(options.get("dropfieldifallnull")):
                continue
            kind = _settled(kinds.pop(), options) if len(kinds) == 1 else T.StringType()
            is_plain = not isinstance(kind, T.StructType | T.ArrayType)
            is_text = is_plain and name.lower() in lower
            keys[name], types[name] = tuple(spellings), T.StringType() if is_text else kind
        return cls(keys, types, frozenset(name for name in keys if name.lower() in lower))

    def rows(self, lines: DataFrame, options: Mapping[str, str], kept: Column | None = None) -> DataFrame:
        """The table of these lines; an odd line has only its text, or what is ``kept`` of it."""
        keys = [(key, self.types[name]) for name, spellings in self.keys.items() for key in spellings]
        cells = {key: f"c{i}" for i, (key, _) in enumerate(keys)}
        schema = T.StructType([*(T.StructField(*key) for key in keys), _text(CORRUPT)])
        # By position, because Spark's column names are case-insensitive.
        by_position = T.StructType([*(T.StructField(cells[key], kind) for key, kind in keys), _text(CORRUPT)])
        own = {name: value for name, value in options.items() if name not in ("mode", "linesep")}
        parsed = F.from_json(F.col(VALUE), schema, {**own, **STRICT, **NAMED}).cast(by_position)
        others = [F.col(quoted(name)) for name in lines.columns if name != VALUE]
        known = _is_one_object() & _has_distinct_keys() if SPARK >= (4, 0) else ~F.udf(_is_odd, "boolean")(VALUE)
        rows = lines.select(*others, F.col(VALUE), parsed.alias("row"), F.coalesce(known, F.lit(False)).alias("sound"))
        is_parsed = F.col("row").isNotNull() & F.col(f"row.{CORRUPT}").isNull()
        rows = rows.withColumn("sound", F.col("sound") & is_parsed)
        hidden = {name.lower() for name in lines.columns}
        columns = [
            F.when(F.col("sound"), F.coalesce(*(self._cell(name, key, cells[key]) for key in spellings))).alias(name)
            for name, spellings in self.keys.items()
            if name.lower() not in hidden
        ]
        kept = valid_utf8(F.col(VALUE)) if kept is None else kept
        return rows.select(*columns, F.when(~F.col("sound"), kept).alias(CORRUPT), *others)

    def _cell(self, name: str, key: str, cell: str) -> Column:
        """The value of a key. Spark parses a fraction as a double; its text as written is taken from the line."""
        value = F.col(f"row.{cell}")
        if name not in self.as_written or self.types[name] != T.StringType():
            return value
        pattern = rf'"{re.escape(key)}"[ \t]*:[ \t]*(-?[0-9][0-9.eE+-]*)'
        text = F.regexp_extract(F.col(VALUE), pattern, 1)
        is_same = try_cast(text, "double") == try_cast(value, "double")
        return F.when(value.rlike("[.E]") & is_same, text).otherwise(value)


def _settled(kind: T.DataType, options: Mapping[str, str]) -> T.DataType:
    """The type of a column, from the common type of its values."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_settled(kind.elementType, options))
    if isinstance(kind, T.StructType) and 0 < len(kind) == len({key.name.lower() for key in kind}):
        return T.StructType([T.StructField(key.name, _settled(key.dataType, options)) for key in kind])
    if isinstance(kind, (T.StructType, T.NullType, *kinds("VariantType"))) or is_true(
        options.get("primitivesasstring")
    ):
        return T.StringType()
    if isinstance(kind, T.DecimalType) and kind.scale and not is_true(options.get("prefersdecimal")):
        return T.DoubleType()
    return kind


def _is_odd(line: str | None) -> bool:
    try:
        return line is None or "\ufffd" in line or not isinstance(read_json(line.encode(), ""), dict)
    except (BadInput, UnicodeEncodeError):
        return True


def _trimmed() -> Column:
    return F.btrim(F.col(VALUE), F.lit(" \t\r\n"))


def _is_text_of_object() -> Column:
    return F.is_valid_utf8(F.col(VALUE)) & _trimmed().startswith("{")


def _is_one_object() -> Column:
    """Whether the line is one JSON object with nothing after it; may be true for a line that is no JSON at all."""
    line = _trimmed()
    alone = (F.locate("{", line, 2) == 0) & (F.instr(line, "}") == F.length(line))
    mark = secrets.token_hex(8)
    element = T.StructType([T.StructField(mark, T.BooleanType())])
    schema = T.StructType([T.StructField(mark, T.ArrayType(element))])
    wrapped = F.concat(F.lit(f'{{"{mark}":['), F.col(VALUE), F.lit(f',{{"{mark}":true}}]}}'))
    elements = F.from_json(wrapped, schema, dict(STRICT))[mark]
    is_first = (F.size(elements) == 2) & elements[0].isNotNull() & elements[1][mark]
    return _is_text_of_object() & F.when(alone, F.lit(True)).otherwise(F.coalesce(is_first, F.lit(False)))


def _has_distinct_keys() -> Column:
    """Whether no object of the line has a key twice, ignoring case."""
    keys = F.json_object_keys(VALUE)
    distinct = F.size(F.array_distinct(F.transform(keys, lambda key: F.lower(key)))) == F.size(keys)
    # Lower-casing the line leaves \u escapes alone: there the decoded keys are compared.
    escaped = F.when(F.instr(F.col(VALUE), "\\u") > 0, distinct).otherwise(F.lit(True))
    return F.try_parse_json(VALUE).isNotNull() & F.try_parse_json(F.lower(F.col(VALUE))).isNotNull() & escaped
