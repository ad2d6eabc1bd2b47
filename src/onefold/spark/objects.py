"""Object stores: opening them, and reading and writing rows through Arrow where Spark has no connector.

Driver and tasks open a store with ``pyarrow.fs``, with time limits: a store that does not answer is an error after
seconds. Settings in the driver's environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``) travel with
the tasks; without them each machine uses its own (a profile, the role of the machine).

Spark reads and writes rows there itself if it has a connector (`session.opens`). If not, its tasks do it through Arrow:

    to read     the driver lists files; each task gets some files, or some row groups of a large one
    to write    each task writes files under names unique to its attempt and returns these names. When the job is done,
                the list is put beside the files (``_files.json``), without the files of failed attempts

The result is the same as by Spark's own Parquet reader and writer, types included; the files hold the schema in Spark's
metadata too. Text and JSON are read line by line.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute
import pyarrow.orc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from onefold.errors import Misuse
from onefold.spark.dialect import arrow_schema
from onefold.stores.addresses import is_far

S3: Final = ("s3", "s3a", "s3n")
STORES: Final = {*S3, "gs", "gcs", "oss", "obs", "cos", "cosn", "wasb", "wasbs", "swift"}
"""Stores without real folders: renaming one is a copy per file, and not atomic."""
LOCK: Final = "_onefold.lock"
"""A lease on a folder, see `signature`."""
LISTED: Final = "_files.json"
"""The files that a job wrote into a folder, and how many rows each has."""
CONNECT_S: Final = 5
REQUEST_S: Final = 15
"""How long to wait for a byte; S3 sends some while it copies. Hadoop's connector waits 200 s, four times or more."""
ATTEMPTS_MAX: Final = 3
"""As AWS's own tools; a silent store is an error within a minute."""
SLICE_BYTES: Final = 64 << 20
"""How much of a Parquet file a task reads: half of Spark's default, because Arrow's columns use Python's memory too."""
OPEN_BYTES: Final = 4 << 20
"""The cost of opening a file, in bytes, as in Spark: small files are packed into one task."""
TASKS: Final = 64
"""Files are packed together only beyond this number of tasks."""
BATCH_ROWS: Final = 65_536
GROUP_BYTES: Final = 64 << 20
"""The size of a row group in memory before it is written, as in Arrow; about a quarter of that on disk."""
FILE_BYTES: Final = 4 << 30
"""Where a file ends and the next one begins: S3 copies at most 5 GB in one request."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"


def scheme_of(path: str) -> str:
    return path.partition(":")[0].lower() if is_far(path) else "file"


def local_path(url: str) -> str:
    """The absolute local path of a path or a ``file:`` URL."""
    own = unquote(re.sub("^//(localhost)?(?=/)", "", url[5:])) if url.lower().startswith("file:") else url
    return os.path.abspath(own)


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it; `Misuse` if pyarrow has none for it."""
    return _store(url)[0], path_in(url)


def path_in(url: str) -> str:
    """The path of a URL in its file system; in a store the name is taken literally, without unquoting.

    >>> path_in("s3a://b/in//a%20b #1"), path_in("file:///tmp/a%20b")
    ('b/in/a%20b #1', '/tmp/a b')
    """
    if not is_far(url):
        return local_path(url)
    _, root, key = _parts(url)
    top = root if scheme_of(url) in S3 else _store(url)[1]
    return "/".join((top.rstrip("/"), *(part for part in key.split("/") if part)))


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, bucket (or container, or host) and key of a URL; `Misuse` if it has credentials or no bucket."""
    scheme, _, rest = url.partition(":")
    root, _, key = rest.removeprefix("//").partition("/")
    owner, at, host = root.rpartition("@")
    if at and (":" in owner or scheme.lower() in S3):
        plain = f"{scheme}://{host}/{key}"
        raise Misuse(f"{plain}: the URL has credentials in it, which belong in the environment", path=plain)
    if scheme.lower() in S3 and not root:
        raise Misuse(f"{url}: the URL names no bucket", path=url)
    return scheme.lower(), root, key


def _store(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path of the URL's root in it."""
    if not is_far(url):
        return fs.LocalFileSystem(), ""
    scheme, root, _ = _parts(url)
    return (_s3(root, *_of_environment()), root) if scheme in S3 else _other(scheme, root)


@lru_cache(maxsize=64)
def _other(scheme: str, root: str) -> tuple[Any, str]:
    url = f"{scheme}://{root}"
    try:  # by default Google's library retries for a quarter of an hour
        limit = f"?retry_limit_seconds={REQUEST_S * ATTEMPTS_MAX}" if scheme in ("gs", "gcs") else ""
        files, top = fs.FileSystem.from_uri(url + limit)
    except (OSError, ValueError) as error:
        what = f"neither Spark nor pyarrow opens it: {plain_error(error)}"
        raise Misuse(f"{url}: no file system of that scheme: {what}", path=url) from error
    return files, str(top)


def _of_environment() -> tuple[str | None, ...]:
    names = (
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION"), ("AWS_ACCESS_KEY_ID",),
        ("AWS_SECRET_ACCESS_KEY",), ("AWS_SESSION_TOKEN",),
    )  # fmt: skip
    return tuple(next(filter(None, (os.environ.get(name) for name in some)), None) for some in names)


@lru_cache(maxsize=64)
def _s3(bucket: str, endpoint: str | None, region: str | None, *keys: str | None) -> Any:
    retry = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX)
    own = dict(zip(("access_key", "secret_key", "session_token"), keys, strict=True)) if all(keys[:2]) else {}
    if region is None and endpoint is None:
        try:
            region = fs.resolve_s3_region(bucket)
        except OSError as error:
            raise OSError(f"cannot open s3://{bucket}: {plain_error(error)}") from error
    return fs.S3FileSystem(
        endpoint_override=endpoint, region=region or "us-east-1", connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S, retry_strategy=retry, **own,
    )  # fmt: skip


def plain_error(error: BaseException) -> str:
    """A store's error in one line, without the request id."""
    text = re.sub(r" \(Request ID: [^)]*\)| Detail: .*$", "", " ".join(str(error).split()))
    return text[:300] or type(error).__name__


def put_new(url: str, data: bytes) -> bool:
    """Write an object that must not exist yet; False, and nothing is written, if it exists with other bytes.

    On S3 this is one conditional put if botocore is installed: of two concurrent writers one gets True. Otherwise it
    looks first, and two writers at the same moment go unnoticed. A put whose answer is lost is retried and then finds
    the object: so the bytes must be unique to the writer, who recognises its own by them.
    """
    files, path = file_system(url)
    client = _client(*_of_environment()[:2]) if scheme_of(url) in S3 else None
    if client is None:
        is_there = files.get_file_info(path).type != fs.FileType.NotFound
        if not is_there:
            with files.open_output_stream(path) as stream:
                stream.write(data)
    else:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _, key = path.partition("/")
        try:
            client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            is_there = False
        except ClientError as error:
            is_there = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (409, 412)
            if not is_there:
                raise OSError(plain_error(error)) from error
        except BotoCoreError as error:
            raise OSError(plain_error(error)) from error
    if not is_there:
        return True
    with suppress(FileNotFoundError), files.open_input_file(path) as stream:
        return bytes(stream.read()) == data
    return False


@cache
def _client(endpoint: str | None, region: str | None) -> Any:
    """An S3 client with conditional puts, which pyarrow's lacks; None: botocore is not installed."""
    try:
        from botocore.config import Config
        from botocore.session import get_session
    except ImportError:
        return None
    retries = {"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"}
    limits = Config(connect_timeout=CONNECT_S, read_timeout=REQUEST_S, retries=retries)
    return get_session().create_client("s3", region_name=region, endpoint_url=endpoint, config=limits)


class StoredFile(NamedTuple):
    """A file in a store, by its URL."""

    url: str
    size: int
    modified_ms: int = 0


def files_below(url: str, store: Any = None) -> list[StoredFile]:
    """All files at a URL or below it, sorted, without those that Spark skips. ``store``: the file system, if known."""
    files, root = file_system(url) if store is None else (store, path_in(url))
    try:
        info = files.get_file_info(root)
        if info.type == fs.FileType.File:
            return [_stored(url.rstrip("/"), info)]
        below = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        raise OSError(f"cannot list {url}: {plain_error(error)}") from error
    names = ((info.path[len(root) + 1 :], info) for info in below if info.type == fs.FileType.File)
    files = [(name, info) for name, info in names if not any(_is_hidden(part) for part in name.split("/"))]
    if name := next((name for name, _ in files if "//" in f"/{name}"), None):
        raise OSError(f"cannot read {url.rstrip('/')}/{name}: a name with an empty part, which pyarrow does not open")
    return sorted(_stored(f"{url.rstrip('/')}/{name}", info) for name, info in files)


def _is_hidden(name: str) -> bool:
    """Whether Spark skips this name, or it is a folder marker of Hadoop."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("_$folder$")


def _stored(url: str, info: Any) -> StoredFile:
    return StoredFile(url, int(info.size or 0), 0 if info.mtime_ns is None else int(info.mtime_ns // 1_000_000))


def opened(url: str) -> Any:
    """Open a file for random access."""
    files, path = file_system(url)
    return files.open_input_file(path)


def schema_of(url: str, kind: str = "parquet") -> T.StructType:
    """The columns of a Parquet or ORC file, as Spark would read them."""
    with opened(url) as raw:
        arrow = pa.orc.ORCFile(raw).schema if kind == "orc" else pq.ParquetFile(raw).schema_arrow
    own = (arrow.metadata or {}).get(_SPARK_SCHEMA)
    if own is not None:
        return T.StructType.fromJson(json.loads(own))
    try:
        return from_arrow_schema(pa.schema([pa.field(field.name, _known(field.type)) for field in arrow]))
    except Exception as error:  # for an unknown type, each version of Spark raises another exception
        raise OSError(f"cannot read {url}: {plain_error(error)}") from error


def _known(kind: pa.DataType) -> pa.DataType:
    """The Arrow type of a Parquet column as Spark reads it."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    if pa.types.is_dictionary(kind):
        return _known(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz and "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_known(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _known(field.type)) for field in kind])
    return wider.get(kind, kind)


def folder_values(root: str, url: str) -> dict[str, str | None]:
    """The values of a file's partition folders such as ``device=7``, below a root, which may be a pattern.

    >>> folder_values("s3://b/*", "s3://b/in/day=3/device=a%2Fb/x.parquet")
    {'day': '3', 'device': 'a/b'}
    """
    between = url.split("/")[root.rstrip("/").count("/") + 1 : -1] if root else []
    pairs = (part.partition("=") for part in between if "=" in part)
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in pairs}


PATTERN: Final = re.compile(r"[*?\[{]")
"""The characters that make a path a pattern to Hadoop."""


def matches(pattern: str, name: str) -> bool:
    """Whether a name without a slash matches a pattern without braces.

    >>> matches("day=[^0]*", "day=1"), matches("day=[!0]*", "day=0"), matches("a+b", "a+b")
    (True, False, True)
    """
    if not PATTERN.search(pattern):
        return pattern == name

    def any_of(escaped: re.Match[str]) -> str:
        inside = re.sub(r"\\(.)", r"\1", escaped[1])
        negated = inside[:1] in ("!", "^")
        return f"[{'^' * negated}{inside[negated:]}]".replace("\\", "\\\\")

    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    try:
        return re.fullmatch(re.sub(r"\\\[(.*?)\\\]", any_of, text), name, re.S) is not None
    except re.error:  # unknown syntax: assume that it matches
        return True


def matching(pattern: str, store: Any = None) -> list[StoredFile]:
    """The files at or below a URL, or below everything that matches it if it is a pattern."""
    if sign := set(pattern) & set("{\\"):
        what = f"{min(sign)} in a pattern needs Spark's own connector; use the part that all paths share"
        raise Misuse(f"{pattern}: {what}", path=pattern)
    parts = pattern.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if PATTERN.search(part)), len(parts))
    return [
        file
        for file in files_below("/".join(parts[:fixed]), store)
        if all(matches(part, name) for name, part in zip(file.url.split("/")[fixed:], parts[fixed:], strict=False))
        and len(file.url.split("/")) >= len(parts)
    ]


def rows(
    spark: SparkSession, files: Sequence[StoredFile], schema: T.StructType, *, kind: str = "parquet", root: str = "",
    at: str | None = None,
) -> DataFrame:  # fmt: skip
    """The rows of these files. ``kind``: "parquet", "orc", or "text" for lines. Partition folders below ``root`` may be
    columns. ``at``: add a column of this name with the file of each row.
    """
    lines = kind == "text"
    fields = [
        T.StructField(field.name, T.BinaryType()) if lines and field.name == "value" else field for field in schema
    ]
    wanted = T.StructType([*fields, *([T.StructField(at, T.StringType())] if at else [])])
    if not files:
        return spark.createDataFrame([], T.StructType([*schema, *wanted.fields[len(schema) :]]))
    tasks = tasks_of([(file.url, file.size) for file in files], kind)
    reader = UnitReader(file_system(files[0].url)[0], kind, arrow_schema(wanted), root, at)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            for unit in tasks[number]:
                yield from reader.read(unit)

    df = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, wanted)
    return df.withColumn("value", F.col("value").cast("string")) if lines else df  # keeps bytes that are not UTF-8


class Unit(NamedTuple):
    """A part of a file."""

    url: str
    part: int
    parts: int


def tasks_of(files: Sequence[tuple[str, int]], kind: str) -> list[list[Unit]]:
    """The units of each task, for files with these sizes: a part of a large file, or several small files.

    >>> [len(units) for units in tasks_of([("s3://b/large", 200 << 20)] + 130 * [("s3://b/small", 1)], "parquet")][:6]
    [1, 1, 1, 1, 2, 2]
    """
    slice_bytes = min(SLICE_BYTES, sum(size + OPEN_BYTES for _, size in files) // TASKS)
    tasks: list[list[Unit]] = []
    room = 0
    for url, size in files:
        parts = max(1, -(-size // SLICE_BYTES)) if kind == "parquet" else 1
        for part in range(parts):
            cost = size // parts + OPEN_BYTES
            if cost > room:
                tasks.append([])
                room = slice_bytes
            tasks[-1].append(Unit(url, part, parts))
            room -= cost
    return tasks


class UnitReader:
    """Reads units in a task; pickled into it. ``schema``: the columns of the output."""

    def __init__(self, files: Any, kind: str, schema: pa.Schema, root: str, at: str | None = None) -> None:
        self._files, self._kind, self._schema, self._root, self._at = files, kind, schema, root, at

    def read(self, unit: Unit) -> Iterator[pa.RecordBatch]:
        own = {self._at: unit.url} if self._at else {}
        known: dict[str, str | None] = {**folder_values(self._root, unit.url), **own}
        try:
            for batch in self._batches(*unit):
                yield _fitted(batch, self._schema, known)
        except (OSError, EOFError, pa.ArrowException) as error:
            raise OSError(f"cannot read {unit.url}: {plain_error(error)}") from None

    def _batches(self, url: str, part: int, parts: int) -> Iterator[pa.RecordBatch]:
        with self._files.open_input_file(path_in(url)) as raw:
            if self._kind == "orc":
                file = pa.orc.ORCFile(raw)
                for stripe in range(file.nstripes):
                    yield file.read_stripe(stripe)
            elif self._kind == "parquet":
                file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us", pre_buffer=True)
                groups = [g for g in range(file.num_row_groups) if g * parts // file.num_row_groups == part]
                wanted = {name.lower() for name in self._schema.names}
                names = [name for name in file.schema_arrow.names if name.lower() in wanted]
                if groups:
                    yield from file.iter_batches(BATCH_ROWS, groups, columns=names)
            else:
                yield from _lines(unpacked(url, raw))


UNPACKED: Final[Mapping[str, Any]] = {".gz": lambda raw: gzip.GzipFile(fileobj=raw), ".bz2": bz2.BZ2File}


def unpacked(url: str, raw: Any) -> IO[bytes]:
    ending = next((end for end in UNPACKED if url.endswith(end)), None)
    return io.BufferedReader(raw, 1 << 20) if ending is None else UNPACKED[ending](raw)


def _lines(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Lines as Hadoop's reader splits them: at a line feed, a carriage return or both."""
    lines: list[bytes] = []
    rest = file.read(3).removeprefix(b"\xef\xbb\xbf")
    while True:
        chunk = file.read(4 << 20)
        text = rest + chunk
        if chunk and text.endswith(b"\r"):  # a line feed may follow
            rest = text
            continue
        pieces = re.split(b"\r\n|\n|\r", text)
        rest = pieces.pop()
        lines = pieces + ([rest] if not chunk and rest else [])
        for start in range(0, len(lines), BATCH_ROWS):
            yield pa.RecordBatch.from_arrays([pa.array(lines[start : start + BATCH_ROWS], pa.binary())], ["value"])
        if not chunk:
            return


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, known: Mapping[str, str | None]) -> pa.RecordBatch:
    """The columns of a schema, from the file, from its folders, or null."""
    places = {name.lower(): i for i, name in enumerate(batch.schema.names)}
    columns = []
    for field in schema:
        if field.name in known:
            value = pa.scalar(known[field.name], pa.string())
            column = pa.repeat(value, batch.num_rows)
        elif (place := places.get(field.name.lower())) is not None:
            column = batch.column(place)
        else:
            column = pa.nulls(batch.num_rows, field.type)
        if column.type != field.type:
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            column = column.cast(field.type, safe=not pa.types.is_timestamp(field.type))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write(df: DataFrame, url: str, partition_by: str | None = None) -> list[tuple[str, int, int]]:
    """Write rows as Parquet below a URL; return each file's relative name, bytes and rows.

    ``partition_by``: a column whose values become folders ``column=value``; it is not in the files.
    """
    schema = T.StructType([field for field in df.schema if field.name != partition_by])
    task = _Write(url, partition_by, arrow_schema(schema).with_metadata({_SPARK_SCHEMA: schema.json().encode()}))
    done = df.mapInArrow(task, "name string, size long, rows long").collect()
    files = sorted((str(name), int(size), int(count)) for name, size, count in done)
    if not files and partition_by is None:  # without any file the columns would not be known
        files = [task.empty()]
    target, path = file_system(url)
    with target.open_output_stream(f"{path}/{LISTED}") as stream:
        stream.write(json.dumps(files).encode())
    return files


class _Write:
    """Writes the rows of a task; pickled into it."""

    def __init__(self, url: str, partition_by: str | None, schema: pa.Schema) -> None:
        self._files, self._url, self._by, self._schema = file_system(url)[0], url, partition_by, schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: dict[str, _Part] = {}
        files = []
        try:
            for batch in batches:
                for folder, own in self._split(batch):
                    if folder not in parts:
                        parts[folder] = _Part(self._files, self._url, folder, self._schema)
                    parts[folder].add(own)
                    if parts[folder].size >= FILE_BYTES:
                        files.append(parts.pop(folder).close())
            files += [part.close() for part in parts.values()]
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"cannot write to {self._url}: {plain_error(error)}") from None
        columns = list(zip(*files, strict=True)) or [(), (), ()]
        kinds = (pa.string(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, ["name", "size", "rows"])

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._by is None:
            yield "", batch
            return
        at = batch.schema.get_field_index(self._by)
        values, rest = batch.column(at), batch.remove_column(at)
        for value in values.unique().to_pylist():
            own = rest.filter(pa.compute.equal(values, value)) if value is not None else rest.filter(values.is_null())
            yield f"{self._by}={NO_VALUE if value is None else quote(str(value), safe='')}/", own

    def empty(self) -> tuple[str, int, int]:
        return _Part(self._files, self._url, "", self._schema).close()


class _Part:
    """A file being written; in a store it appears as a whole when it is closed."""

    def __init__(self, files: Any, url: str, folder: str, schema: pa.Schema) -> None:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        self._name, self._schema = f"{folder}part-{task:05}-{uuid4().hex[:12]}.parquet", schema
        path = path_in(f"{url}/{self._name}")
        if isinstance(files, fs.LocalFileSystem):
            files.create_dir(os.path.dirname(path), recursive=True)
        self._raw = files.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._raw, schema, compression="snappy")
        self._batches: list[pa.RecordBatch] = []
        self._bytes, self._rows = 0, 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= GROUP_BYTES:
            self._flush()

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._raw.tell())

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
        self._batches, self._bytes = [], 0

    def close(self) -> tuple[str, int, int]:
        self._flush()
        self._writer.close()
        size = self.size
        self._raw.close()
        return self._name, size, self._rows


def written(url: str) -> list[StoredFile]:
    """The files in the list of a folder that `write` wrote; without a list, as Spark writes, all Parquet files."""
    folder, _, name = url.rstrip("/").rpartition("/")
    for where, prefix in ((url.rstrip("/"), ""), (folder, f"{name}/")):
        files, path = file_system(f"{where}/{LISTED}")
        try:
            with files.open_input_file(path) as stream:
                listed = json.loads(stream.read())
        except FileNotFoundError:
            continue
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"cannot read {where}/{LISTED}: {plain_error(error)}") from error
        return [StoredFile(f"{where}/{file}", size) for file, size, _ in listed if file.startswith(prefix)]
    return [file for file in files_below(url) if file.url.endswith(".parquet")]
