"""Batches as commits of a Delta table: Spark writes the files, one commit of the log makes them visible.

    PATH/_delta_log/                                          the log; files that it does not name do not exist
    PATH/data/000000000012/<attempt>/verdict=FIRST/*.parquet  the files of a batch
    PATH/_onefold/                                            drafts, and what the rows are judged by; ignored by
                                                              readers and VACUUM
    PATH_gaps/                                                the gaps, a table of their own

No jar is needed: the package ``deltalake`` writes the log. Each commit carries a transaction identifier (application =
the stream, version = the batch), so the table knows the last batch of a stream, and a second commit of a batch is
refused. A commit that conflicts with another writer, such as a DELETE, is retried after the table is read again.

The books of the batch and of all batches so far are in the commit too, and once more in ``_onefold/books.json``: old
commits, including ours, are removed from a log that others go on writing.

With ``drop`` and ``mark`` the table is partitioned by verdict: reading FIRST opens no other files. With ``none`` the
rows are unchanged.

The gaps are committed just before the rows, under the same batch id. After a crash between the two, the gaps of a batch
are visible before its rows; its replay finds the gaps committed and adds only the rows.
"""

import json
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import BadInput, Misuse, StaleWrite
from onefold.spark import publish
from onefold.spark.columns import quoted
from onefold.spark.files import Place
from onefold.spark.host import REASON, VERDICT
from onefold.spark.lakes import delta_trouble
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.sinks.sink import DRAFT, TOKEN, WORD, Attempt, another, counted, other_columns, received, stranger
from onefold.tally import Tally

BOOKS = "onefold"
DATA, OURS, ROWS, GAPS = "data", "_onefold", "rows", "gaps"
STREAM, KEPT = "stream.json", "books.json"
CONFLICTS_MAX = 20
"""How often a commit is retried because others committed; deltalake itself retries 15 times if nothing conflicts."""
# The protocol allows these in a name only with column mapping, which not every reader supports.
FORBIDDEN = " ,;{}()\n\t="
PLAIN = (T.StringType, T.NumericType, T.BooleanType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType)
# Spark's default, INT96, makes other readers, which use nanoseconds, fail on years before 1677 and after 2262.
TIMESTAMP_TYPE = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class DeltaSink:
    """A Delta table on a local path, and one for the gaps beside it."""

    def __init__(
        self, spark: SparkSession, path: str, strategy: publish.Strategy, meaning: Meaning | None = None
    ) -> None:
        self._place = Place(spark, path.rstrip("/") or path)
        if not str(self._place).startswith("file:"):
            reason = "the delta sink writes to local paths only, where Spark and deltalake see the same files"
            raise Misuse(f"{self._place}: {reason}", path=path)
        self._strategy = strategy
        self._meaning = meaning
        self._rows = _Table(self._place, [] if strategy == "none" else [VERDICT])
        self._gaps = _Table(Place(spark, f"{self._place}_gaps"), [])

    def __str__(self) -> str:
        return self._place.shown

    def last(self, stream: str) -> int | None:
        begun = self._begun()
        self._gaps.last(stream, begun)
        last = self._rows.last(stream, begun)
        signed = self._place / OURS / STREAM
        if last is not None and self._meaning is not None and signed.exists():
            refuse_other(self, signed.read_json().get("meaning", {}), self._meaning)
        return last

    def _begun(self) -> Container[str]:
        """The names that an attempt at the first batch may have left: our own folder, and data files."""
        ours = (self._place / OURS).names()
        if not all(name.startswith((WORD, STREAM, KEPT)) or DRAFT.fullmatch(name) for name in ours):
            return ()
        return (DATA, OURS) if WORD in ours else (OURS,)

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        """Stage the files, move them to their final folder, then commit the gaps, then the rows."""
        total = self.total()
        schema = self._visible(rows).schema
        self._rows.check_schema(schema)
        last_gaps = self._gaps.last(stream, self._begun())
        new_gaps = gaps if last_gaps is None or last_gaps < batch else None
        if new_gaps is not None:
            self._gaps.check_schema(new_gaps.schema)
        attempt = Attempt(self._place / OURS, batch)
        if self._meaning is not None and not (self._place / OURS / STREAM).exists():
            (self._place / OURS / STREAM).write_json({"stream": stream, "meaning": dict(self._meaning)})
        spark, (name, value) = rows.sparkSession, TIMESTAMP_TYPE
        before = spark.conf.get(name)
        spark.conf.set(name, value)
        try:
            passing, counter = counted(rows)
            if self._strategy == "none":
                passing.write.parquet(str(attempt.draft / "marked"))
                staged = _read(attempt.draft / "marked", rows)
                self._visible(publish.sorted_again(staged)).write.parquet(str(attempt.draft / ROWS))
            else:
                split = passing.withColumn(VERDICT, F.coalesce(VERDICT, F.lit("")))
                publish.sorted_in_files(split, VERDICT).write.partitionBy(VERDICT).parquet(str(attempt.draft / ROWS))
                staged = _read(attempt.draft / ROWS, rows.drop(publish.ORDER))
            tally = publish.books(staged, received(counter)).check()
            written = sum(map(_count, _files(attempt.draft / ROWS)))  # by the footers of the files to be committed
            tally = Tally(written, dict(tally)).check()
            if new_gaps is not None:
                new_gaps.write.parquet(str(attempt.draft / GAPS))
        finally:
            spark.conf.set(name, str(before))
        attempt.check()
        if new_gaps is not None:
            self._gaps.take(attempt.draft / GAPS, batch, attempt.token)
            self._gaps.commit(stream, batch, attempt.token, new_gaps.schema, {"batch": batch})
        self._rows.take(attempt.draft / ROWS, batch, attempt.token)
        books = {"batch": batch, "tally": tally.to_dict(), "total": (total + tally).to_dict()}
        self._rows.commit(stream, batch, attempt.token, schema, books)
        (self._place / OURS / KEPT).write_json({"stream": stream, **books})
        attempt.draft.remove()
        return tally

    def total(self) -> Tally:
        kept = self._place / OURS / KEPT
        books = self._rows.books(kept.read_json() if kept.exists() else {})
        return Tally() if books is None else Tally.from_dict(books["total"])

    def _visible(self, rows: DataFrame) -> DataFrame:
        hidden = (publish.ORDER, *((VERDICT, REASON) if self._strategy == "none" else ()))
        return rows.select(*(F.col(quoted(name)) for name in rows.columns if name not in hidden))


class _Table:
    """One Delta table: reads its log, and commits batches to it."""

    def __init__(self, home: Place, partition_by: list[str]) -> None:
        self._place = home
        self._partition_by = partition_by

    def last(self, stream: str, allowed: Container[str]) -> int | None:
        """The last batch of this stream; `Misuse` if the table is another's, or other files lie where there is none."""
        table = self._open()
        if table is None and (names := [name for name in self._place.names() if name not in allowed]):
            raise stranger(self._place.shown, names[0])
        return self._last_in(table, stream)

    def _last_in(self, table: DeltaTable | None, stream: str) -> int | None:
        version = None if table is None else table.transaction_version(stream)
        if table is not None and version is None:
            raise another(self._place.shown)
        return version

    def check_schema(self, schema: T.StructType) -> None:
        _check_type(schema, "")
        if (table := self._open()) is not None:
            self._check_columns(table, schema)

    def _check_columns(self, table: DeltaTable, schema: T.StructType) -> None:
        there, wanted = _types(table.schema()), _types(_schema(schema))
        if there != wanted:
            raise other_columns(self._place.shown, there, wanted)
        if table.metadata().partition_columns != self._partition_by:
            raise Misuse(f"{self._place.shown} is partitioned by {table.metadata().partition_columns}, not by verdict")

    def take(self, folder: Place, batch: int, token: str) -> None:
        """Move the files to their final folder; no commit names them yet."""
        (self._place / DATA / f"{batch:012}").make()
        folder.publish_as(self._place / DATA / f"{batch:012}" / token)

    def commit(self, stream: str, batch: int, token: str, schema: T.StructType, books: dict[str, Any]) -> None:
        folder = self._place / DATA / f"{batch:012}"
        actions = [
            AddAction(
                path=file.relative_to(self._place.shown).as_posix(),
                size=file.stat().st_size,
                partition_values={name: file.parent.name.removeprefix(f"{name}=") for name in self._partition_by},
                modification_time=int(file.stat().st_mtime * 1000),
                data_change=True,
                stats=json.dumps({"numRecords": _count(file)}),
            )
            for file in _files(folder / token)
        ]
        properties = CommitProperties(app_transactions=[Transaction(stream, batch)], custom_metadata={BOOKS: books})
        how: dict[str, Any] = {"partition_by": self._partition_by, "commit_properties": properties}
        for _ in range(CONFLICTS_MAX):
            table = self._open()
            last = self._last_in(table, stream)
            if last is not None and last >= batch:
                raise StaleWrite(f"{self._place.shown} got batch {batch} from somebody else in between", batch=batch)
            with suppress(CommitFailedError), delta_trouble(self._place.shown):
                if table is None:
                    create_table_with_add_actions(self._place.shown, _schema(schema), actions, **how)
                else:
                    self._check_columns(table, schema)
                    table.create_write_transaction([*actions], mode="append", schema=_schema(schema), **how)
                break
        else:
            raise StaleWrite(f"{self._place.shown}: others committed {CONFLICTS_MAX} times in between", batch=batch)
        for name in folder.names():  # of attempts that got this far, and can never commit now
            if name != token and TOKEN.fullmatch(name):
                (folder / name).remove()

    def books(self, kept: dict[str, Any]) -> dict[str, Any] | None:
        """The books in the newest of our commits, else those ``kept`` beside the table; None: there is no table."""
        table = self._open()
        if table is None:
            return None
        for limit in (1, 100, None):  # mostly the newest commit is ours; others are OPTIMIZE or VACUUM by users
            for commit in table.history(limit):
                if BOOKS in commit:
                    return dict(commit[BOOKS])
        if kept and table.transaction_version(kept["stream"]) == kept["batch"]:
            return kept
        raise BadInput(f"the log of {self._place.shown} holds no books of ours any more", path=self._place.shown)

    def _open(self) -> DeltaTable | None:
        path = self._place.shown
        with delta_trouble(path):
            return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def _files(folder: Place) -> list[Path]:
    return sorted(Path(folder.shown).rglob("*.parquet"))


def _count(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


def _read(folder: Place, like: DataFrame) -> DataFrame:
    return like.sparkSession.read.schema(like.schema).parquet(str(folder))


def _schema(schema: T.StructType) -> Schema:
    """Spark's schema as Delta's: the same JSON, with everything nullable and without metadata."""
    return Schema.from_json(json.dumps(_plain(schema.jsonValue())))


def _check_type(kind: T.DataType, name: str) -> None:
    """Raise `Misuse` for a name or a type that Delta's protocol does not allow, at any depth."""
    if isinstance(kind, T.StructType):
        for field in kind:
            if not field.name or set(field.name) & set(FORBIDDEN):
                raise Misuse(f"column {field.name!r}: Delta allows none of {FORBIDDEN!r} in a name; rename it")
            _check_type(field.dataType, field.name)
    elif isinstance(kind, T.ArrayType):
        _check_type(kind.elementType, name)
    elif isinstance(kind, T.MapType):
        _check_type(kind.keyType, name)
        _check_type(kind.valueType, name)
    elif not isinstance(kind, PLAIN):
        raise Misuse(f"column {name!r} is {kind.simpleString()}, which Delta has no type for", column=name)


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: field.type.to_json() for field in schema.fields}


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    fixed = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: fixed[key] if key in fixed else _plain(value) for key, value in node.items()}
