"""Files, as Spark sees them: those of a source (the manifest), and folders that are read or written (`Place`).

A reader that skips a file, stops early or joins two lines does so silently, and an audit through the same reader cannot
notice. So before a source is read, each of its files is opened here by other means: the footer of a Parquet or ORC file
gives its rows and columns; the lines of a text file are counted, which also proves that a compressed file can be
unpacked to its end. Unreadable files are found, and named, before any row is judged.

    rows = lines - blank lines - header lines

Where lines are not rows (multi-line values, other encodings, comments, unknown formats) nothing is counted, and the
manifest says why.

Local files are read by Python, in threads (zlib, numpy and the disk release the GIL). From other file systems only
footers and first lines come through the driver; lines are counted by a Spark job that parses nothing.
Cost: a pass over the bytes of text files; only the footers of Parquet and ORC files.

A `Place` is a path on a local disk, HDFS or an object store, opened through Hadoop's file systems, so that driver and
executors mean the same place. Spark Connect does not offer these: there pyarrow opens it, and the server must see a
local path too. Errors are `OSError` with one line that names the place.
"""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from py4j.protocol import Py4JJavaError
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import Misuse, StaleWrite
from onefold.spark import objects
from onefold.spark.dialect import file_of
from onefold.spark.session import is_connect, opens
from onefold.stores.addresses import is_far

BadFiles: TypeAlias = Literal["stop", "set_aside"]

THREADS_MAX: Final = 8
"""How many files are looked at at once: enough to keep a disk or an object store busy."""
CHUNK_BYTES: Final = 4 << 20
HEAD_BYTES_MAX: Final = 1 << 20
"""The maximum length of a header line; Spark itself stops at about 128 columns of 4,096 characters by default."""
NAMED_MAX: Final = 3
"""How many files an error names in its one line."""

LINES: Final = ("json", "csv", "text")
FOOTED: Final = ("parquet", "orc")
LISTING: Final = {"pathglobfilter", "recursivefilelookup", "basepath", "modifiedbefore", "modifiedafter"}
"""The options that select files."""
_INDEX: Final = ("path", "modificationTime", "length", "content")
"""The columns of Spark's ``binaryFile`` format; all others come from partition folders."""
_BLANK: Final = {"json": b" \t", "csv": bytes(range(33)), "text": b""}
"""Spark's readers skip lines that consist of these bytes. To the text reader every line is a row."""
_ASCII: Final = {"utf-8", "us-ascii", "ascii", "iso-8859-1", "latin1", "iso-8859-15", "windows-1252", "cp1252"}
"""Encodings in which the byte 0x0A is always a line feed."""
_FOREIGN: Final = {
    b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"ORC": "ORC", b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip
"""The first bytes of files that are not text in UTF-8, whatever their names say."""
_PACKED: Final = (".deflate", ".zst", ".lz4", ".snappy", ".xz", ".lzo")
"""Compressed in ways that Spark may know, and that Python's standard library does not unpack."""
_TOPIC_FAILED: Final = re.compile(r"^(?:OSError|onefold\.errors\.\w+): (kafka://.*)$", re.M)
_FAILED: Final = re.compile(r"\[FAILED_READ_FILE[^\]]*\] \w.*? file (\S+?)\.?\s")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and what is known of it without the reader."""

    path: str
    size: int
    modified_ms: int
    rows: int | None = None
    """None: not counted."""
    blank: int = 0
    """Blank lines, which are no rows."""
    header: int = 0
    layout: str = ""
    """Its columns as the file states them: the header line of a CSV file, the schema of a Parquet file."""
    trouble: str = ""
    """Why it cannot be read; empty: it can be."""
    metadata_path: str = ""
    """The path as Spark's ``_metadata.file_path`` spells it."""

    @property
    def shown(self) -> str:
        """The path as a person writes it."""
        return self.path.removeprefix("file:")

    def to_dict(self) -> dict[str, Any]:
        file = {"path": self.shown, "size": self.size, "modified_ms": self.modified_ms}
        if self.trouble:
            return {**file, "trouble": self.trouble}
        return {**file, "rows": self.rows, "blank": self.blank, "header": self.header}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> SourceFile:
        path = str(line["path"])
        return cls(path if is_far(path) else f"file:{path}", int(line["size"]), int(line["modified_ms"]),
                   rows=line.get("rows"), blank=int(line.get("blank", 0)), header=int(line.get("header", 0)),
                   trouble=str(line.get("trouble", "")), metadata_path=str(line.get("metadata_path", "")))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a source: those that can be read, and those that were set aside."""

    files: tuple[SourceFile, ...] = ()
    aside: tuple[SourceFile, ...] = ()
    why_not: str = ""
    """Why the rows were not counted; empty: they were."""
    snapshot: Mapping[str, Any] | None = None
    """For a table with snapshots: its format, its name, and the version that was read."""

    @property
    def rows(self) -> int | None:
        """The number of rows in all files; None: not counted."""
        return None if self.why_not else sum(file.rows or 0 for file in self.files)

    @property
    def parts(self) -> Sequence[Any]:
        """The units that rows were counted for, each with `shown`, `rows` and the reader's `metadata_path`."""
        return self.files

    def only(self, urls: Iterable[str]) -> Manifest:
        """Without files that are not among these: they appeared after the reader had listed the source."""
        names = {plain_path(url) for url in urls}
        return replace(self, files=tuple(file for file in self.files if file.path in names))

    def to_dict(self) -> dict[str, Any]:
        """The sums, for run.json; the files themselves are lines of the manifest beside it."""
        return {
            "files": len(self.files),
            "bytes": sum(file.size for file in self.files),
            "rows": self.rows,
            "blank": sum(file.blank for file in self.files),
            "header": sum(file.header for file in self.files),
            "not_counted": self.why_not or None,
            "set_aside": [file.to_dict() for file in self.aside],
            **({} if self.snapshot is None else {"snapshot": dict(self.snapshot)}),
        }

    def lines(self) -> bytes:
        """The manifest as JSON lines, one per file."""
        files = sorted((*self.files, *self.aside), key=lambda file: file.path)
        text = "".join(json.dumps(file.to_dict(), ensure_ascii=False) + "\n" for file in files)
        return text.encode(errors="surrogateescape")

    @classmethod
    def from_lines(cls, data: bytes) -> Manifest:
        # Split as bytes: of text, splitlines would also cut at characters such as U+2028 in the name of a file.
        lines = (line.decode(errors="surrogateescape") for line in data.splitlines())
        every = [SourceFile.from_dict(json.loads(line)) for line in lines]
        files = tuple(file for file in every if not file.trouble)
        uncounted = any(file.rows is None for file in files)
        return cls(files, tuple(file for file in every if file.trouble), "they were not" if uncounted else "")

    def changed(self, now: Iterable[SourceFile], *, new: bool = False) -> list[str]:
        """The files that have changed since, one line each; ``new``: also list new files."""
        current, lines = {file.path: file for file in now}, []
        for file in (*self.files, *self.aside):
            same = current.pop(file.path, None)
            if same is None:
                lines.append(f"{file.shown} is gone: it had {file.size:,} bytes")
            elif same.size != file.size:
                verb = "has grown" if same.size > file.size else "has shrunk"
                lines.append(f"{file.shown} {verb} from {file.size:,} to {same.size:,} bytes")
            elif same.modified_ms != file.modified_ms:
                lines.append(f"{file.shown} was written again: {same.size:,} bytes, as before")
        return lines + ([f"{file.shown} is new" for file in current.values()] if new else [])


class SourceFiles:
    """The files of a path, as Spark lists them for a format with these options."""

    def __init__(
        self, spark: SparkSession, path: str, kind: str, options: Mapping[str, str],
        only: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """``only``: the paths of the files that count; None: all."""
        self._spark = spark
        self._path, self._only = path, None if only is None else frozenset(only)
        self.kind = kind
        self.options = {name.lower(): value for name, value in options.items()}  # Spark's names are case-insensitive
        self.has_header = kind == "csv" and is_true(self.options.get("header"))
        encoding = (self.options.get("encoding") or self.options.get("charset") or "utf-8").lower()
        self.encoding = "utf-8" if encoding == "utf8" else encoding
        self.is_wide = self.encoding not in _ASCII
        """Whether the byte 0x0A may be part of another character in this encoding."""
        self.why_not = self._why_not()
        """Why the rows of these files are not counted; empty: they are."""
        self.by_arrow = not opens(spark, objects.scheme_of(path))
        """Whether the files are in a store that Spark cannot open."""
        if self.by_arrow:
            self._refuse_what_arrow_lacks()
        self._index = None if self.by_arrow else self._listing()

    def _refuse_what_arrow_lacks(self) -> None:
        where, needs = f"{self._path} as {self.kind}", "needs Spark's own connector for that store, which is not there"
        if self.kind not in (*FOOTED, "json", "text") or self.is_wide:
            what = f"{where}, encoding {self.encoding}," if self.is_wide else where
            raise Misuse(f"{what} {needs}; without it: Parquet, ORC, JSON lines and text in UTF-8", path=self._path)
        for name in sorted({*LISTING, "linesep", "multiline", "wholetext"} & self.options.keys()):
            raise Misuse(f"{where}: the option {name} {needs}", path=self._path, option=name)

    def _why_not(self) -> str:
        if self.kind in FOOTED:
            return ""
        if self.kind not in LINES:
            return f"how many rows a file of format {self.kind!r} holds is not known without its reader"
        for option, why in (("multiline", "a value may have several lines"), ("wholetext", "a file is one value")):
            if is_true(self.options.get(option)):
                return f"{why} ({option} = true)"
        if self.is_wide:
            return f"lines are counted in encodings like UTF-8 only (encoding = {self.encoding})"
        return "lines may be comments (comment is set)" if self.options.get("comment") else ""

    def _listing(self, paths: Sequence[str] | None = None) -> DataFrame:
        which = {name: value for name, value in self.options.items() if name in LISTING}
        return self._spark.read.format("binaryFile").options(**which).load(list(paths or [self._path]))

    def folders(self, *, infer: bool) -> list[T.StructField]:
        """The columns from partition folders such as ``device=7``: as text, or typed as Spark infers them."""
        if self._index is None:  # always text: Spark's inference is not available
            names = {name: None for file in self.listed() for name in objects.folder_values(self._path, file.path)}
            return [T.StructField(name, T.StringType()) for name in names]
        columns = [column for column in self._index.schema if column.name not in _INDEX]
        return [column if infer else T.StructField(column.name, T.StringType()) for column in columns]

    def listed(self, paths: Sequence[str] | None = None) -> list[SourceFile]:
        """The files that exist now (``paths``: of these), unopened, with empty ones, which Spark's readers skip."""
        if self.by_arrow:
            stored = (
                objects.matching(self._path) if paths is None else [f for p in paths for f in objects.files_below(p)]
            )
            all_ = [SourceFile(url, size, ms, metadata_path=url) for url, size, ms in stored]
            return [file for file in all_ if self._only is None or file.path in self._only]
        index = self._listing(paths)
        rows = index.select("path", "length", F.unix_millis("modificationTime"), "_metadata.file_path").collect()
        files = {str(path): SourceFile(str(path), size, ms, metadata_path=at) for path, size, ms, at in rows}
        names = (plain_path(url) for url in index.inputFiles())
        empty = [SourceFile(name, 0, 0) for name in names if name not in files]
        found = sorted([*files.values(), *empty], key=lambda file: file.path)
        return found if self._only is None else [file for file in found if file.path in self._only]

    def rows(self, kind: str, files: Sequence[SourceFile], schema: T.StructType, at: str | None = None) -> DataFrame:
        """The rows of some of the files, read through Arrow; ``kind``: "text" for lines."""
        stored = [objects.StoredFile(file.path, file.size) for file in files]
        return objects.rows(self._spark, stored, schema, kind=kind, root=self._path, at=at)

    def inspected(
        self, bad_files: BadFiles = "stop", *, count: bool = True, before: Manifest | None = None
    ) -> Manifest:
        """The manifest of the files that exist now. ``count``: also count rows. ``before``: files that have not changed
        since this manifest are not opened again.

        Raise `OSError` that names the first unreadable files, unless they are to be set aside.
        """
        earlier = {(f.path, f.size, f.modified_ms): f for f in (*before.files, *before.aside)} if before else {}
        files = self.listed()
        new = [file for file in files if (file.path, file.size, file.modified_ms) not in earlier]
        opened = {file.path: file for file in self._look_at(new, count=count)}
        files = [opened.get(file.path) or earlier[file.path, file.size, file.modified_ms] for file in files]
        bad = tuple(file for file in files if file.trouble)
        if bad and bad_files == "stop":
            raise OSError(cannot_read(bad) if count else named_files(bad))
        return Manifest(tuple(file for file in files if not file.trouble), bad, self.why_not if count else "not asked")

    def looked_at(self, paths: Sequence[str]) -> list[SourceFile]:
        """These files, each with its trouble if it cannot be read."""
        return self._look_at(self.listed(paths), count=False) if paths else []

    def _look_at(self, files: Sequence[SourceFile], *, count: bool) -> list[SourceFile]:
        """Each file with its layout and rows, or with its trouble."""
        if is_connect(self._spark) and any(f.path.startswith("file:") and not Path(f.shown).exists() for f in files):
            self.why_not = "the files are on the disk of the Connect server, which is not this machine's"
            return [replace(file, layout=file.path) for file in files]
        count = count and not self.why_not
        with ThreadPoolExecutor(max_workers=THREADS_MAX) as pool:
            files = list(pool.map(partial(self._open_and_look, count=count), files))
        uncounted = [file for file in files if count and file.rows is None and not file.trouble]
        counted = {file.path: file for file in self._count_by_spark(uncounted)} if uncounted else {}
        return [counted.get(file.path, file) for file in files]

    def _open_and_look(self, file: SourceFile, *, count: bool) -> SourceFile:
        if not file.size:
            return replace(file, trouble="it is empty (0 bytes)")
        is_local = file.path.startswith("file:")
        try:
            local = Path(file.path.removeprefix("file:"))
            with local.open("rb") if is_local else _opened(self._spark, file) as raw:
                if self.kind == "orc":
                    orc = pa.orc.ORCFile(raw)
                    return replace(file, rows=orc.nrows, layout=str(orc.schema.remove_metadata()))
                if self.kind == "parquet":
                    footer = pa.parquet.ParquetFile(raw).metadata
                    spark = (footer.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata", b"")
                    schema = str(footer.schema).partition("\n")[2]  # the first line is a memory address
                    return replace(file, rows=footer.num_rows, layout=f"{schema}\n{spark!r}")
                return self._look_at_lines(file, raw, is_local, count) if self.kind in LINES else file
        except (OSError, EOFError, ValueError, zlib.error, pa.ArrowException) as error:
            return replace(file, trouble=_words(error))

    def _look_at_lines(self, file: SourceFile, raw: IO[bytes], is_local: bool, count: bool) -> SourceFile:
        ending = next((end for end in (*objects.UNPACKED, *_PACKED) if file.path.endswith(end)), "")
        if ending in _PACKED:
            return file
        unpacked = objects.unpacked(file.path, raw)
        head = unpacked.read(HEAD_BYTES_MAX if is_local or self.has_header else 8)
        if not ending and not self.is_wide:
            for magic, kind in _FOREIGN.items():
                if head.startswith(magic):
                    raise ValueError(f"it is {kind}, not text in UTF-8")
        blank = _BLANK[self.kind]
        if self.has_header:
            first = (line for line in head.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip(blank))
            file = replace(file, layout=next(first, b"").decode(errors="backslashreplace"))
        if not is_local or "linesep" in self.options:
            return file
        chunks = _chunks(head, unpacked, None if ending else file.size)
        if not count:
            for _ in chunks if ending else ():  # unpack a compressed file to its end, to prove that it is whole
                pass
            return file
        lines, rows = counted(chunks, blank)
        return self._with_counts(file, lines, lines if self.kind == "text" else rows)

    def _with_counts(self, file: SourceFile, lines: int, rows: int) -> SourceFile:
        header = 1 if self.has_header and rows else 0
        return replace(file, rows=rows - header, blank=lines - rows, header=header)

    def _count_in_tasks(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        """Count lines in tasks through pyarrow, where Spark cannot open the files."""
        store, blank = objects.file_system(files[0].path)[0], _BLANK[self.kind]
        paths = [objects.path_in(file.path) for file in files]

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in (number for batch in batches for number in batch.column(0).to_pylist()):
                lines, rows, trouble = 0, 0, ""
                try:
                    with store.open_input_file(paths[number]) as raw:
                        file = objects.unpacked(paths[number], raw)
                        lines, rows = counted(iter(partial(file.read, CHUNK_BYTES), b""), blank)
                except (OSError, EOFError, ValueError, zlib.error, pa.ArrowException) as error:
                    trouble = _words(error)
                values = [[number], [lines], [rows], [trouble]]
                arrays = [pa.array(*pair) for pair in zip(values, (pa.int64(),) * 3 + (pa.string(),), strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, ["file", "lines", "rows", "trouble"])

        counts = self._spark.range(0, len(files), 1, len(files)).mapInArrow(
            count, "file long, lines long, rows long, trouble string"
        )
        found = {number: (lines, rows, trouble) for number, lines, rows, trouble in counts.collect()}
        return [
            replace(file, trouble=found[i][2]) if found[i][2] else self._with_counts(
                file, found[i][0], found[i][0] if self.kind == "text" else found[i][1]
            )
            for i, file in enumerate(files)
        ]  # fmt: skip

    def _count_by_spark(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        """Count lines by a Spark job, for files that Python cannot reach or unpack."""
        if self.by_arrow:
            return self._count_in_tasks(files)
        reader = self._spark.read.format("text")
        if "linesep" in self.options:
            reader = reader.option("lineSep", self.options["linesep"])
        blanks = _BLANK[self.kind].decode()
        is_row = F.btrim(F.col("value"), F.lit(blanks)) != "" if blanks else F.lit(True)
        try:
            lines = reader.load([file.path for file in files]).groupBy("_metadata.file_path")
            counts = {at: (n, rows) for at, n, rows in lines.agg(F.count(F.lit(1)), F.count_if(is_row)).collect()}
        except (PySparkException, Py4JJavaError) as error:
            if len(files) == 1:
                return [replace(files[0], trouble=_words(error))]
            with ThreadPoolExecutor(max_workers=THREADS_MAX) as pool:  # one by one, to find the unreadable ones
                return [file for each in pool.map(lambda file: self._count_by_spark([file]), files) for file in each]
        return [self._with_counts(file, *counts.get(file.metadata_path, (0, 0))) for file in files]


def is_in(files: Iterable[SourceFile]) -> Column:
    """Whether a row comes from one of these files; as a filter, Spark opens no other files."""
    return F.col("_metadata.file_path").isin([file.metadata_path for file in files if file.metadata_path])


def is_true(value: str | None) -> bool:
    """Whether a reader option is "true"."""
    return str(value or "").strip().lower() == "true"


def counted(chunks: Iterable[bytes], blank: bytes) -> tuple[int, int]:
    """How many lines there are, and how many of them are not blank, that is, contain a byte other than ``blank``.

    A line ends with a line feed, a carriage return or both, as for Hadoop's readers; the last line may lack its end.

    >>> counted([b"a\\r\\nb\\n", b" \\n\\nc"], b" ")
    (5, 3)
    """
    lines = rows = 0
    in_line = in_row = after_return = False
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        feeds, returns = data == 10, data == 13
        both = np.count_nonzero(feeds[1:] & returns[:-1]) + bool(after_return and feeds[0])
        lines += int(np.count_nonzero(feeds) + np.count_nonzero(returns) - both)
        after_return, in_line = bool(returns[-1]), not (feeds[-1] or returns[-1])
        # With blanks removed, a row is a run of bytes that contains no line end.
        text = np.frombuffer(chunk.translate(None, bytes(set(blank) - {10, 13})), np.uint8)
        if len(text):
            inside = (text != 10) & (text != 13)
            rows += int(np.count_nonzero(inside[1:] & ~inside[:-1])) + bool(inside[0] and not in_row)
            in_row = bool(inside[-1])
    return lines + in_line, rows


def _chunks(head: bytes, file: IO[bytes], size: int | None) -> Iterator[bytes]:
    """The bytes of a file from its beginning, at most ``size``: bytes appended meanwhile are not read."""
    chunk = head
    while chunk and (size is None or size > 0):
        yield chunk[:size]
        size = None if size is None else size - len(chunk)
        chunk = file.read(CHUNK_BYTES)


def _opened(spark: SparkSession, file: SourceFile) -> Any:
    """Open a file that is not local, for the few bytes of a footer or a header."""
    if is_connect(spark) or not opens(spark, objects.scheme_of(file.path)):
        return objects.opened(file.path)
    try:
        return io.BufferedReader(_Remote(_Hadoop(spark, file.path).open(), file), 64 << 10)
    except Py4JJavaError as error:
        raise OSError(_words(error)) from error


class _Remote(io.RawIOBase):
    """A file through Hadoop."""

    def __init__(self, stream: Any, file: SourceFile) -> None:
        self._stream = stream
        self._at, self._size = 0, file.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        try:
            self._stream.seek(self._at)
            data = bytes(self._stream.readNBytes(min(len(buffer), max(0, self._size - self._at))))
        except Py4JJavaError as error:
            raise OSError(_words(error)) from error
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def cannot_read(files: Sequence[SourceFile]) -> str:
    """One line that names the first unreadable files, and the option to continue without them."""
    return (
        f'{named_files(files)}; to go on without such files: --bad-files set_aside, bad_files = "set_aside" in [source]'
    )


def named_files(files: Sequence[SourceFile]) -> str:
    named = "; ".join(f"{file.shown}: {file.trouble}" for file in files[:NAMED_MAX])
    more = f"; and {len(files) - NAMED_MAX:,} more" if len(files) > NAMED_MAX else ""
    return f"cannot read {named}{more}"


def first_line(error: Exception) -> str:
    """The first line of a Spark error; for a JVM exception, of its root cause."""
    message: object = error
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause is not None:
            message, cause = cause.getMessage() or message, cause.getCause()
    text = str(message).strip().splitlines()
    return text[0] if text else type(error).__name__


def _words(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)).strip()
    return " ".join(text.split())[:300] or type(error).__name__


@contextmanager
def naming_files() -> Iterator[None]:
    """Turn Spark's long error about a file that it failed to read into one line that names the file."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        line = failed_file(str(error))
        if line is None:
            raise
        raise OSError(line) from error


def failed_file(text: str) -> str | None:
    """The file or topic that Spark failed to read, and why, from the text of its error; None: another error.

    >>> failed_file("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a%20b.orc. SQLSTATE: X\\n"
    ...             "\\tat x\\nCaused by: java.io.IOException: no ORC")
    'cannot read /a b.orc: no ORC'
    """
    if (topic := _TOPIC_FAILED.search(text)) is not None:
        return topic[1].strip()
    match = _FAILED.search(text)
    if match is None:
        return None
    causes = [line.partition(": ")[2] for line in text[match.end() :].splitlines() if line.startswith("Caused by: ")]
    causes = [cause.partition(": ")[2] or cause for cause in causes]
    return f"cannot read {plain_path(match[1]).removeprefix('file:')}: {causes[-1] if causes else 'the reader failed'}"


def plain_path(url: str) -> str:
    """The path of a URL, unquoted, as Hadoop prints paths."""
    return "file:" + unquote(url.removeprefix("file://")) if url.startswith("file:///") else unquote(url)


def located(spark: SparkSession, path: str) -> str:
    """The path as this session resolves it: absolute, with its scheme."""
    try:
        return str(Place(spark, path)) if path else path
    except (OSError, Misuse):  # not a path, such as a table's name: its reader reports what is wrong
        return path


class _Hadoop:
    """A path, through Hadoop's file systems in the JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        # By its full name: for jvm.org.apache... py4j looks up every step as a class, in every jar.
        there = getattr(jvm, "org.apache.hadoop.fs.Path")(path)
        self.files = there.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._path = self.files.makeQualified(there)
        self.url = str(self._path.toString())

    def exists(self) -> bool:
        return bool(self.files.exists(self._path))

    def names(self) -> list[str]:
        if not self.files.exists(self._path):
            return []
        return [str(status.getPath().getName()) for status in self.files.listStatus(self._path)]

    def all_files(self) -> Iterator[str]:
        statuses = self.files.listFiles(self._path, True)
        while statuses.hasNext():
            yield str(statuses.next().getPath().toString()).removeprefix(f"{self.url}/")

    def make(self) -> bool:
        return bool(self.files.mkdirs(self._path))

    def remove(self) -> None:
        self.files.delete(self._path, True)

    def rename(self, target: _Hadoop) -> bool:
        return bool(self.files.rename(self._path, target._path))

    def copy(self, target: _Hadoop) -> None:
        self.files.mkdirs(target._path.getParent())
        if not self.rename(target) and not target.exists():  # the store renames by itself; copying goes through here
            raise OSError(f"cannot move {self.url} to {target.url}")

    def open(self) -> Any:
        return self.files.open(self._path)

    def read(self) -> bytes:
        stream = self.open()
        data = bytes(stream.readAllBytes())
        stream.close()
        return data

    def write(self, data: bytes, *, over: bool) -> bool:
        """Write the file; False if there is one already and ``over`` is not set."""
        try:
            stream = self.files.create(self._path, over)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            raise
        stream.write(bytearray(data))
        stream.close()
        return True


class _Arrow:
    """A path, through pyarrow: for Spark Connect, which has no file system API, and stores without a connector."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._files, self._path = objects.file_system(path)
        self.url = path.rstrip("/") if is_far(path) else f"file:{self._path}"

    def exists(self) -> bool:
        return bool(self._files.get_file_info(self._path).type != fs.FileType.NotFound)

    def _infos(self, *, recursive: bool) -> list[Any]:
        return self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True, recursive=recursive))  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        return [info.base_name for info in self._infos(recursive=False)]

    def all_files(self) -> Iterator[str]:
        files = (info.path for info in self._infos(recursive=True) if info.type == fs.FileType.File)
        return (path.removeprefix(f"{self._path}/") for path in files)

    def make(self) -> bool:
        if not is_far(self.url):  # in a store a folder exists with its first file
            self._files.create_dir(self._path, recursive=True)
        return True

    def remove(self) -> None:
        kind = self._files.get_file_info(self._path).type
        if kind == fs.FileType.Directory:
            if is_far(self.url):  # delete_dir alone may leave a marker object
                self._files.delete_dir_contents(self._path, missing_dir_ok=True)
            with suppress(FileNotFoundError):
                self._files.delete_dir(self._path)
        elif kind != fs.FileType.NotFound:
            self._files.delete_file(self._path)

    def rename(self, target: _Arrow) -> bool:
        if not is_far(self.url):
            self._files.move(self._path, target._path)
            return True
        for name in list(self.all_files()):  # a store cannot rename a folder
            self._files.copy_file(f"{self._path}/{name}", f"{target._path}/{name}")
        self.remove()
        return True

    def copy(self, target: _Arrow) -> None:
        self._files.copy_file(self._path, target._path)

    def open(self) -> Any:
        return self._files.open_input_file(self._path)

    def read(self) -> bytes:
        with self.open() as stream:
            return bytes(stream.read())

    def write(self, data: bytes, *, over: bool) -> bool:
        if not over and is_far(self.url):
            return objects.put_new(self.url, data)
        if not over and self.exists():
            return False
        with self._files.open_output_stream(self._path) as stream:
            stream.write(data)
        return True


class Place:
    """A folder or file wherever Spark can write.

    ``place / "firsts"`` is a folder or file below it; ``str(place)`` is the URL that Spark reads and writes.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._url = path
        self.by_spark = opens(spark, objects.scheme_of(path))
        """Whether Spark has a connector for this place."""
        with self._naming("open"):
            self._there: Any = (_Hadoop if self.by_spark and not is_connect(spark) else _Arrow)(spark, path)
        self._url = self._there.url

    def __truediv__(self, name: str) -> Place:
        return Place(self._spark, f"{self}/{name}")

    def __str__(self) -> str:
        return self._url

    @property
    def shown(self) -> str:
        """The place for people: a local path without its scheme."""
        return self._url.removeprefix("file:")

    @property
    def local(self) -> Path | None:
        """The path for Python if the place is on a local disk, else None."""
        return Path(self.shown) if self._url.startswith("file:") else None

    @property
    def renames(self) -> bool:
        """Whether renaming a folder is atomic; object stores copy file by file."""
        return self.by_spark and objects.scheme_of(self._url) not in objects.STORES

    def read(self, schema: T.StructType | None = None) -> DataFrame:
        """The rows of a folder of Parquet files; if `write` wrote it through Arrow, of the files in its list."""
        if self.by_spark:
            return parquet(self._spark, [self._url], schema)
        files = objects.written(self._url)
        if schema is None and not files:
            raise OSError(f"there is no Parquet file at {self._url}")
        return objects.rows(self._spark, files, schema or objects.schema_of(files[0].url), root=self._url)

    def write(self, rows: DataFrame, partition_by: str | None = None) -> None:
        """Write rows as Parquet into a new folder, with a partition folder for each value of ``partition_by``."""
        if self.by_spark:
            rows.write.partitionBy(*([partition_by] if partition_by else [])).parquet(self._url)
            return
        with self._naming("write"):
            objects.write(rows, self._url, partition_by)

    def exists(self) -> bool:
        with self._naming("look at"):
            return bool(self._there.exists())

    def names(self) -> list[str]:
        """The names in the folder, without those that begin with a dot; empty if there is no folder."""
        with self._naming("list"):
            names = self._there.names()
        return sorted(name for name in names if not name.startswith("."))

    def files(self) -> list[str]:
        """The relative paths of all files below the folder, at any depth, without Hadoop's checksum files."""
        if (folder := self.local) is not None:  # one call to the JVM costs as much as a hundred of these
            walk = ((Path(above), [*folders, *names]) for above, folders, names in os.walk(folder))
            paths = [above / name for above, names in walk for name in names]
            paths = [path for path in paths if path.is_symlink() or not path.is_dir()]
            files = [path for path in paths if not (path.name.startswith(".") and path.name.endswith(".crc"))]
            return sorted(path.relative_to(folder).as_posix() for path in files)
        if not self.exists():
            return []
        with self._naming("list"):
            return sorted(self._there.all_files())

    def make(self) -> None:
        with self._naming("write to"):
            if not self._there.make():
                raise OSError(f"cannot write to {self.shown}")

    def remove(self) -> None:
        """Remove the place with everything below it; no error if it does not exist."""
        with self._naming("remove"):
            self._there.remove()

    def move_to(self, target: Place) -> None:
        """Rename; an existing target is removed first."""
        target.remove()
        with self._naming("move"):
            if not self._there.rename(target._there):
                raise OSError(f"cannot move {self.shown} to {target.shown}")

    def settle_as(self, target: Place) -> None:
        """Copy or rename a file within a store; a rename that was done before is no error."""
        with self._naming("copy"):
            self._there.copy(target._there)

    def publish_as(self, target: Place) -> None:
        """Rename to a name that must not exist yet: raise `StaleWrite` if it does, and leave it alone."""
        inside = target / self._url.rpartition("/")[2]  # where Hadoop's rename moves a folder if the target exists
        with self._naming("publish"):
            moved = not target.exists() and self._there.rename(target._there)
        if not moved or inside.exists():
            inside.remove()
            if target.exists():
                raise StaleWrite(f"{target.shown} was published by somebody else in between", path=target.shown)
            raise OSError(f"cannot publish {self.shown} as {target.shown}")

    def write_bytes(self, data: bytes) -> None:
        if not self.by_spark:  # a single put is atomic
            self.write_over(data)
            return
        draft = Place(self._spark, f"{self}.new")
        if isinstance(draft._there, _Hadoop):
            draft._there.files.setWriteChecksum(False)  # no .crc files beside documents for people
        draft.write_over(data)
        if (file := self.local) is not None:
            os.replace(draft.shown, file)  # atomic, where Hadoop needs two steps
        else:
            draft.move_to(self)

    def write_new(self, data: bytes) -> bool:
        """Write a file that must not exist yet; return False if it does. In a store see `put_new`."""
        with self._naming("write"):
            return bool(self._there.write(data, over=False))

    def write_over(self, data: bytes) -> None:
        """Write a file, replacing an existing one; not atomic: a concurrent reader may see a part of it."""
        with self._naming("write"):
            self._there.write(data, over=True)

    def read_bytes(self) -> bytes:
        with self._naming("read"):
            return bytes(self._there.read())

    def write_json(self, document: Any) -> None:
        self.write_bytes((json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self) -> Any:
        return json.loads(self.read_bytes())

    @contextmanager
    def _naming(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (Py4JJavaError, pa.ArrowException) as error:
            raise OSError(f"cannot {verb} {self.shown}: {first_line(error)}") from error
        except OSError as error:
            if self.by_spark or type(error) is not OSError:
                raise
            raise OSError(f"cannot {verb} {self.shown}: {objects.plain_error(error)}") from error


def parquet(
    spark: SparkSession, urls: Sequence[str], schema: T.StructType | None = None, *, root: str = "",
    at: str | None = None,
) -> DataFrame:  # fmt: skip
    """The rows of Parquet files, at least one. ``at``: add a column of this name with the file of each row."""
    if opens(spark, objects.scheme_of(urls[0])):
        reader = spark.read if schema is None else spark.read.schema(schema)
        rows = reader.parquet(*urls)
        return rows if at is None else rows.withColumn(at, file_of(rows))
    files = [objects.StoredFile(url, 0) for url in urls]
    return objects.rows(spark, files, schema or objects.schema_of(urls[0]), root=root, at=at)
