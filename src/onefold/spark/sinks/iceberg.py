"""Batches as snapshots of an Iceberg table: tasks write the files, one commit of the catalogue makes them visible.

    LOCATION/data/000000000012/<attempt>/*.parquet    the files of a batch; files that no snapshot names do not exist
    NAME, NAME_gaps                                   the table, and one of its own for the gaps

No jar is needed: pyiceberg commits. The summary of each snapshot names its stream and batch (``onefold.stream``,
``onefold.batch``). The same commit writes the newest batch, the books of all batches and what the rows are judged by
into the properties of the table, which remain when old snapshots expire.

A commit succeeds only if the table has not changed since its last batch was read. A commit that conflicts with another
writer, such as a compaction, is retried after the table is read again; if our batch is there by then, it is refused.

With ``drop`` and ``mark`` the table is partitioned by verdict. The gaps are committed just before the rows, under the
same batch number; after a crash between the two the replay adds only the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyarrow import fs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from onefold.errors import Misuse, StaleWrite
from onefold.spark import publish
from onefold.spark.host import REASON, VERDICT
from onefold.spark.lakes import IcebergName, iceberg_schema
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.sinks.data_files import DataFile, Writing, remove_others
from onefold.spark.sinks.sink import another, other_columns
from onefold.tally import Tally

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

STREAM, BATCH, TOTAL, MEANING, ATTEMPT = (
    f"onefold.{name}" for name in ("stream", "batch", "total", "meaning", "attempt")
)
CONFLICTS_MAX: Final = 20
"""How often a commit is retried because others committed; pyiceberg itself retries 4 times."""
PARTITION_ID: Final = 1000
"""The first number of a partition field, by Iceberg's specification."""


class IcebergSink:
    def __init__(
        self, path: str, strategy: publish.Strategy, meaning: Meaning | None, options: Mapping[str, str]
    ) -> None:
        name = IcebergName.parse(path, options)
        self._strategy = strategy
        self._meaning = meaning
        self._rows = _Table(name, split=strategy != "none")
        self._gaps = _Table(name.beside("_gaps"), split=False)

    def __str__(self) -> str:
        return str(self._rows)

    def last(self, stream: str) -> int | None:
        self._gaps.last(stream)
        last = self._rows.last(stream)
        meaning = self._rows.properties().get(MEANING)
        if last is not None and self._meaning is not None and meaning is not None:
            refuse_other(self, json.loads(meaning), self._meaning)
        return last

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        """Write the files, then commit the gaps, then the rows."""
        token = uuid4().hex[:12]
        total = self.total()
        hidden = (publish.ORDER, *((VERDICT, REASON) if self._strategy == "none" else ()))
        schema = T.StructType([each for each in rows.schema if each.name not in hidden])
        writing = self._rows.writing(stream, schema, batch, token)
        last_gaps = None if gaps is None else self._gaps.last(stream)
        if gaps is not None and (last_gaps is None or last_gaps < batch):
            gaps_writing = self._gaps.writing(stream, gaps.schema, batch, token)
            gap_files = gaps_writing.write_plain(gaps)
        files, tally = writing.write(rows)
        if gaps is not None and (last_gaps is None or last_gaps < batch):
            self._gaps.commit(stream, batch, token, gap_files, {})
        books = {TOTAL: json.dumps((total + tally).to_dict())}
        if self._meaning is not None:
            books[MEANING] = json.dumps(dict(self._meaning))
        self._rows.commit(stream, batch, token, files, books)
        return tally

    def total(self) -> Tally:
        books = self._rows.properties().get(TOTAL)
        return Tally() if books is None else Tally.from_dict(json.loads(books))


class _Table:
    """One Iceberg table: reads its properties, and commits batches to it."""

    def __init__(self, name: IcebergName, *, split: bool) -> None:
        self._name = name
        self._split = split
        self._catalog: Catalog | None = None

    def __str__(self) -> str:
        return self._name.shown

    def _open(self) -> Table | None:
        self._catalog = self._catalog or self._name.opened(make=True)
        return self._name.table_of(self._catalog)

    def properties(self) -> Mapping[str, str]:
        table = self._open()
        return {} if table is None else table.properties

    def last(self, stream: str) -> int | None:
        """The last batch of this stream; `Misuse` if the table is not this stream's."""
        return self._last_in(self._open(), stream)

    def _last_in(self, table: Table | None, stream: str) -> int | None:
        if table is None:
            return None
        owner = table.properties.get(STREAM)
        if owner is None:
            raise Misuse(f"{self} is a table that no stream of ours made; choose another name", path=str(self))
        if owner != stream:
            raise another(self)
        batch = table.properties.get(BATCH)
        return None if batch is None else int(batch)

    def writing(self, stream: str, schema: T.StructType, batch: int, token: str) -> Writing:
        """How the files of an attempt are written; creates the table, empty, if it does not exist."""
        wanted = Schema.model_validate(iceberg_schema(schema))
        table = self._open()
        if table is None and self._catalog is not None:
            spec = UNPARTITIONED_PARTITION_SPEC
            if self._split:
                verdict = wanted.find_field(VERDICT).field_id
                spec = PartitionSpec(PartitionField(verdict, PARTITION_ID, IdentityTransform(), VERDICT))
            with self._name.trouble():
                table = self._catalog.create_table(
                    self._name.table, wanted, partition_spec=spec, properties={STREAM: stream}
                )
        assert table is not None
        there, here = ({f.name: str(f.field_type) for f in each.fields} for each in (table.schema(), wanted))
        if there != here:
            raise other_columns(self, there, here)
        if (len(table.spec().fields) > 0) != self._split:
            raise Misuse(f"{self} was begun with another strategy: it is{' not' * self._split} partitioned by verdict")
        return Writing(
            partial(_files, table.io, table.location()), _path(table.io, _folder(table, batch, token)),
            schema_to_pyarrow(table.schema(), include_field_ids=False), self._split,
        )  # fmt: skip

    def commit(
        self, stream: str, batch: int, token: str, files: list[DataFile], more: Mapping[str, str]
    ) -> None:  # fmt: skip
        """Commit one snapshot with these files and its batch number, atomically with the properties."""
        for _ in range(CONFLICTS_MAX):
            table = self._open()
            last = self._last_in(table, stream)
            if table is None or (last is not None and last >= batch):
                raise StaleWrite(f"{self} got batch {last} from somebody else in between", batch=batch)
            before = table.properties.get(ATTEMPT)
            # Set in our copy only: a retry by pyiceberg itself would not check the last batch again.
            table.metadata = table.metadata.model_copy(
                update={"properties": {**table.properties, "commit.retry.num-retries": "0"}}
            )
            transaction = table.transaction()
            with self._name.trouble():
                try:
                    transaction.set_properties({STREAM: stream, BATCH: str(batch), ATTEMPT: token, **more})
                    paths = [f"{_folder(table, batch, token)}/{file.name}" for file in files]
                    transaction.add_files(
                        paths, {STREAM: stream, BATCH: str(batch)}, check_duplicate_files=False
                    )  # fmt: skip
                    transaction.commit_transaction()
                except CommitFailedException:
                    continue
                except FileNotFoundError as error:
                    raise StaleWrite(f"{self}: a second query wrote batch {batch} and removed these files") from error
            opened = _files(table.io, table.location())
            for number, own in ((batch, token), (batch - 1, before)):
                if own is not None and number >= 0:
                    remove_others(opened, _path(table.io, _folder(table, number, "")), own)
            return
        raise StaleWrite(f"{self}: others committed {CONFLICTS_MAX} times in between", batch=batch)


def _folder(table: Table, batch: int, token: str) -> str:
    return f"{table.location().rstrip('/')}/data/{batch:012}/{token}".rstrip("/")


def _files(io: Any, location: str) -> fs.FileSystem:
    scheme, netloc, _ = PyArrowFileIO.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, netloc)


def _path(io: Any, location: str) -> str:
    """The path of a location in its file system."""
    return PyArrowFileIO.parse_location(location, io.properties)[2]
