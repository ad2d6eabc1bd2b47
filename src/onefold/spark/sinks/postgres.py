"""Batches in PostgreSQL tables: executors copy into staging tables, one transaction of the driver publishes.

    TABLE                 the rows
    TABLE_gaps            the gaps
    TABLE_tally           batch, verdict, reason, count
    TABLE_stream          one row: the stream's id, its last batch, what it is judged by, the staging tables in use

The tasks copy the rows directly to the database, as text that Spark formats. A batch is staged in two unlogged tables:
the rows, each with the number of its part, and a list of the parts. A part is what one task copies, in one transaction;
a retried or speculative task waits for the other attempt at its part and replaces it. Then rows, gaps, books and the
batch id change in one transaction, with the row of TABLE_stream locked.

Each attempt at a batch has staging tables of its own, named in TABLE_stream: the next attempt drops them, and a task
that still writes for an earlier attempt fails because its table is gone. Their columns are c0, c1, ..., so no name can
clash. A user's own empty TABLE with the same columns is used as it is, with its indexes.

    string: text    byte, short: smallint    int: integer    long: bigint      float: real    double: double precision
    boolean: boolean    decimal: numeric     date: date      binary: bytea     timestamp: timestamp with time zone
    timestamp_ntz: timestamp without time zone    array, map, struct, variant: jsonb    anything else: text

PostgreSQL's text cannot hold NUL, and neither text nor jsonb holds bytes that are not UTF-8. Both become U+FFFD, as in
HTML and CommonMark: with an error, one hostile message could stop the stream for ever. A time outside PostgreSQL's
range (4713 BC to 294276 AD) is an error.

With ``drop`` and ``mark`` the table has ``verdict`` and ``reason``; ``where verdict = 'FIRST'`` selects the rows that
count. With ``none`` the rows are unchanged; the books are in TABLE_tally in any case.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, LiteralString, TypeAlias
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.csv as csv
from psycopg.sql import SQL, Identifier
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.errors import BadInput, Misuse, StaleWrite
from onefold.spark.columns import quoted
from onefold.spark.dialect import kinds, valid_utf8
from onefold.spark.host import REASON, VERDICT
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.publish import ORDER, Strategy
from onefold.spark.sinks.sink import another
from onefold.stores.postgres import check_name, parse
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

ROWS, GAPS, TALLY, STREAM = "", "_gaps", "_tally", "_stream"

CONNECT_SECONDS_MAX = 30
# A task whose machine died silently holds its lock until TCP notices.
LOCK_SECONDS_MAX = 300

NO_TEXT = "\ufffd"
NESTED = (T.ArrayType, T.MapType, T.StructType, *kinds("VariantType"))
TYPES: dict[type[T.DataType], LiteralString] = {
    T.ByteType: "smallint",
    T.ShortType: "smallint",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.BooleanType: "boolean",
    T.DecimalType: "numeric",
    T.TimestampType: "timestamp with time zone",
    T.TimestampNTZType: "timestamp without time zone",
    T.DateType: "date",
    T.BinaryType: "bytea",
}
# With the era, because the year before 1 AD is 1 BC; with the offset, because a session may have any time zone.
FORMATS: dict[type[T.DataType], str] = {
    T.TimestampType: "yyyy-MM-dd HH:mm:ss.SSSSSSxxxxx G",
    T.TimestampNTZType: "yyyy-MM-dd HH:mm:ss.SSSSSS G",
    T.DateType: "yyyy-MM-dd G",
}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column's name and its type, spelled as PostgreSQL's ``format_type`` does; ``hidden``: only counted."""

    name: str
    type: LiteralString
    hidden: bool


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging tables of one attempt for one kind of rows."""

    name: str
    columns: tuple[TableColumn, ...]

    @property
    def tables(self) -> tuple[str, str]:
        """The table of the rows, and that of the parts."""
        return self.name, f"{self.name}_parts"


class PostgresSink:
    """A table, and beside it its gaps, its books and the id of its last batch.

    Each call opens a connection of its own, so the sink can be pickled into tasks.
    """

    def __init__(self, url: str, strategy: Strategy, meaning: Meaning | None = None) -> None:
        self.address = parse(url)
        self._meaning = meaning
        self._hidden = (VERDICT, REASON) if strategy == "none" else ()

    def __str__(self) -> str:
        return str(self.address)

    def last(self, stream: str) -> int | None:
        with self._connect() as connection:
            row = None
            if _exists(connection, self._named(STREAM)):
                # As JSON: a table of an older version has no such column.
                query = SQL("select stream, batch, to_jsonb(s) ->> 'meaning' from {} s").format(self._id(STREAM))
                row = connection.execute(query).fetchone()
            if row is None and _exists(connection, self._named()):
                query = SQL("select 1 from {} limit 1").format(self._id())
                if connection.execute(query).fetchone() is not None:
                    raise Misuse(f"{self.address} holds rows that no stream of ours wrote; choose another table")
        if row is None:
            return None
        owner, batch, meaning = row
        if owner != stream:
            raise another(self)
        if self._meaning is not None and meaning is not None:
            refuse_other(self, json.loads(meaning), self._meaning)
        return int(batch) if batch is not None else None

    def total(self) -> Tally:
        with self._connect() as connection:
            if not _exists(connection, self._named(TALLY)):
                return Tally()
            query = SQL("select verdict, reason, sum(count)::bigint from {} group by 1, 2").format(self._id(TALLY))
            lines = connection.execute(query).fetchall()
        return _tally(sum(count for _, _, count in lines), lines)

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        """Let the executors copy everything into staging tables, then publish it in one transaction."""
        return self._commit(stream, batch, self._stage(stream, rows.drop(ORDER), gaps))

    def _stage(self, stream: str, rows: DataFrame, gaps: DataFrame | None) -> dict[str, Staging]:
        frames = {ROWS: rows} | ({} if gaps is None else {GAPS: gaps})
        token, staging = uuid4().hex[:10], dict[str, Staging]()
        for number, (kind, frame) in enumerate(frames.items()):
            columns = []
            for field in frame.schema:
                of = type(field.dataType)
                name: LiteralString = TYPES.get(of, "jsonb" if issubclass(of, NESTED) else "text")
                columns.append(TableColumn(field.name, name, hidden=field.name in self._hidden))
            staging[kind] = Staging(self._named(f"_staging_{token}_{number}"), tuple(columns))
        self._begin(stream, staging)
        for kind, frame in frames.items():
            text = frame.select(*(_text(field).alias(f"c{n}") for n, field in enumerate(frame.schema)))
            text.mapInArrow(partial(self._copy, staging[kind]), "sent long").collect()
        return staging

    def _begin(self, stream: str, staging: Mapping[str, Staging]) -> None:
        """Lock the stream's row, inserted if missing; drop the staging tables of an earlier attempt, create our own."""
        with self._connect() as connection:
            columns = SQL(
                "one boolean primary key default true check (one), stream text not null, batch bigint,"
                " staging text[] not null"
            )
            connection.execute(SQL("create table if not exists {} ({})").format(self._id(STREAM), columns))
            query = SQL("insert into {} (stream, staging) values (%s, %s) on conflict do nothing")
            connection.execute(query.format(self._id(STREAM)), [stream, []])
            query = SQL("select stream, staging from {} for update")
            owner, earlier = connection.execute(query.format(self._id(STREAM))).fetchone() or (None, [])
            if owner != stream:
                raise StaleWrite(f"{self.address} was taken by another stream in between", stream=owner)
            for name in earlier:
                connection.execute(SQL("drop table if exists {}").format(Identifier(name)))
            query = SQL("select to_jsonb(s) ->> 'meaning' from {} s")
            if self._meaning is not None and connection.execute(query.format(self._id(STREAM))).fetchone() == (None,):
                # A table of an older version gets the column.
                connection.execute(SQL("alter table {} add column if not exists meaning text").format(self._id(STREAM)))
                query = SQL("update {} set meaning = %s")
                connection.execute(query.format(self._id(STREAM)), [json.dumps(dict(self._meaning))])
            for kind, table in staging.items():
                self._check_columns(connection, kind, table.columns)
                own, parts = map(Identifier, table.tables)
                columns_ = [SQL("{} {}").format(Identifier(f"c{n}"), SQL(c.type)) for n, c in enumerate(table.columns)]
                query = SQL("create unlogged table {} ({})")
                connection.execute(query.format(own, SQL(", ").join([SQL("part integer"), *columns_])))
                connection.execute(query.format(parts, SQL("part integer primary key, count bigint not null")))
            connection.execute(SQL("update {} set staging = %s").format(self._id(STREAM)), [_names(staging)])

    def _check_columns(self, connection: Connection, kind: str, columns: Sequence[TableColumn]) -> None:
        for column in columns:
            check_name(column.name)
        query = (
            "select attname, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = to_regclass(quote_ident(%s)) and attnum > 0 and not attisdropped"
        )
        there: dict[str, str] = dict(connection.execute(query, [self._named(kind)]).fetchall())
        wanted = {column.name: column.type for column in columns if not column.hidden}
        for name in [*wanted, *there] if there else []:
            if there.get(name) != wanted.get(name):
                raise Misuse(
                    f"{self.address}: the table {self._named(kind)!r} has other columns than this batch: {name!r} is"
                    f" {there.get(name, 'missing')} there, {wanted.get(name, 'missing')} here",
                    column=name,
                )

    def _copy(self, staging: Staging, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the rows of a task, which are a part; runs in the task."""
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        count = self._copy_part(staging, part, ((batch.num_rows, _csv(batch, part)) for batch in batches))
        yield pa.record_batch({"sent": pa.array([count], pa.int64())})

    def _copy_part(self, staging: Staging, part: int, chunks: Iterable[tuple[int, bytes]]) -> int:
        """Copy one part, replacing an earlier attempt at it; ``chunks``: (number of rows, CSV with the part first)."""
        rows, parts = map(Identifier, staging.tables)
        count = 0
        with self._connect() as connection:
            query = SQL("insert into {} (part, count) values (%s, 0) on conflict do nothing").format(parts)
            new = connection.execute(query, [part]).rowcount  # waits for a concurrent attempt at this part
            connection.execute(SQL("select 1 from {} where part = %s for update").format(parts), [part])
            if not new:
                connection.execute(SQL("delete from {} where part = %s").format(rows), [part])
            with connection.cursor().copy(SQL("copy {} from stdin (format csv)").format(rows)) as copy:
                for size, chunk in chunks:
                    copy.write(chunk)
                    count += size
            connection.execute(SQL("update {} set count = %s where part = %s").format(parts), [count, part])
        return count

    def _commit(self, stream: str, batch: int, staging: Mapping[str, Staging]) -> Tally:
        with self._connect() as connection:
            query = SQL("select stream, batch, staging from {} for update").format(self._id(STREAM))
            row = connection.execute(query).fetchone()
            if row != (stream, batch - 1 if batch else None, _names(staging)):
                raise StaleWrite(f"somebody else wrote to {self.address} in between: {row}", batch=batch)
            for name in _names(staging):  # waits for late attempts at tasks; later ones find no table
                connection.execute(SQL("lock table {} in access exclusive mode").format(Identifier(name)))
            rows, parts = map(Identifier, staging[ROWS].tables)
            names = [column.name for column in staging[ROWS].columns]
            verdict, reason = (Identifier(f"c{names.index(name)}") for name in (VERDICT, REASON))
            query = SQL("select coalesce(sum(count), 0)::bigint from {}").format(parts)
            copied = connection.execute(query).fetchone()  # as counted by the tasks
            query = SQL("select {}, {}, count(*) from {} group by 1, 2").format(verdict, reason, rows)
            tally = _tally(copied[0] if copied else 0, connection.execute(query).fetchall()).check()
            for kind, table in staging.items():
                visible = [(n, column) for n, column in enumerate(table.columns) if not column.hidden]
                types = (SQL("{} {}").format(Identifier(column.name), SQL(column.type)) for _, column in visible)
                query = SQL("create table if not exists {} ({})").format(self._id(kind), SQL(", ").join(types))
                connection.execute(query)
                query = SQL("insert into {} ({}) select {} from {}").format(
                    self._id(kind),
                    SQL(", ").join(Identifier(column.name) for _, column in visible),
                    SQL(", ").join(Identifier(f"c{n}") for n, _ in visible),
                    Identifier(table.name),
                )
                connection.execute(query)
            self._book(connection, batch, tally)
            connection.execute(SQL("drop table {}").format(SQL(", ").join(map(Identifier, _names(staging)))))
            connection.execute(SQL("update {} set batch = %s, staging = %s").format(self._id(STREAM)), [batch, []])
        return tally

    def _book(self, connection: Connection, batch: int, tally: Tally) -> None:
        columns = SQL(
            "batch bigint, verdict text, reason text, count bigint not null, primary key (batch, verdict, reason)"
        )
        connection.execute(SQL("create table if not exists {} ({})").format(self._id(TALLY), columns))
        query = SQL("insert into {} (batch, verdict, reason, count) values (%s, %s, %s, %s)").format(self._id(TALLY))
        lines = [(batch, str(answer.verdict), answer.reason, count) for answer, count in tally]
        connection.cursor().executemany(query, lines)

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back by any error. Names are resolved in one schema only."""
        try:
            options: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS_MAX, "client_encoding": "utf8"}
            with psycopg.connect(self.address.conninfo, **options) as connection:
                connection.execute("select set_config('lock_timeout', %s, false)", [f"{LOCK_SECONDS_MAX}s"])
                query = (
                    "select set_config('search_path', quote_ident(nspname), false) from pg_namespace"
                    " where nspname = coalesce(%s, current_schema())"
                )
                if connection.execute(query, [self.address.schema]).fetchone() is None:
                    raise Misuse(f"{self.address}: there is no schema {self.address.schema!r}")
                yield connection
        except psycopg.DataError as error:
            raise BadInput(f"{self.address} cannot hold a value: {_line(error)}") from error
        except psycopg.Error as error:
            raise OSError(f"cannot use {self.address}: {_line(error)}") from error

    def _named(self, kind: str = ROWS) -> str:
        return self.address.table + kind

    def _id(self, kind: str = ROWS) -> Identifier:
        return Identifier(self._named(kind))


def _exists(connection: Connection, name: str) -> bool:
    return connection.execute("select to_regclass(quote_ident(%s))", [name]).fetchone() != (None,)


def _names(staging: Mapping[str, Staging]) -> list[str]:
    return [name for table in staging.values() for name in table.tables]


def _tally(received: int, lines: Iterable[Sequence[Any]]) -> Tally:
    return Tally(received, {Answer(Verdict(verdict), reason): count for verdict, reason, count in lines})


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _csv(batch: pa.RecordBatch, part: int) -> bytes:
    """The rows as CSV for COPY, with their part first; null is an empty field, the empty text is ``""``."""
    parts = pa.repeat(pa.scalar(part, pa.int32()), batch.num_rows)
    table = pa.Table.from_arrays([parts, *batch.columns], names=["part", *batch.schema.names])
    buffer = io.BytesIO()
    csv.write_csv(table, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return buffer.getvalue()


def _text(field: T.StructField) -> Column:
    column, kind = F.col(quoted(field.name)), type(field.dataType)
    if kind in FORMATS:
        return F.regexp_replace(F.date_format(column, FORMATS[kind]), r"^\+", "")  # "+" stands before years over 9999
    if kind is T.BinaryType:
        return F.concat(F.lit("\\x"), F.hex(column))
    if issubclass(kind, NESTED):
        # Match an escaped NUL, but not an escaped backslash followed by u0000.
        json = F.to_json(column, {"ignoreNullFields": "false"})
        return valid_utf8(F.regexp_replace(json, r"(?<!\\)((?:\\\\)*)\\u0000", f"$1{NO_TEXT}"))
    return valid_utf8(F.replace(column.cast("string"), F.lit("\0"), F.lit(NO_TEXT)))
