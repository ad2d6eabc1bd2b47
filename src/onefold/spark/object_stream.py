"""A folder of an object store as a stream, where Spark has no connector for it: a Python data source of Spark 4.1.

The files of each batch are logged before the batch begins, in the place and format of Spark's own file source
(``sources/0/N`` in the checkpoint). So a retried batch reads the same files, and `stream.StreamFiles` reads both kinds
of log. A file is listed once only: if it is overwritten later, it is not read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from onefold.spark.dialect import arrow_schema
from onefold.spark.memory import Storage
from onefold.spark.objects import Unit, UnitReader, matching, tasks_of

NAME = "onefold-objects"


def source_of(files: Any) -> type[DataSource]:
    """The data source class for this file system, which is pickled with it."""

    class Objects(ObjectSource):
        store = files

    return Objects


class ObjectSource(DataSource):
    store: Any = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: T.StructType) -> ObjectStream:
        return ObjectStream(self.store, self.options, schema)


class ObjectStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, store: Any, options: Any, schema: T.StructType) -> None:
        self._path, self._kind = options["path"], options["kind"]
        self._log = Storage(options["log"])
        self._aside = set(json.loads(options["aside"]))
        self._files_max = int(options["maxFiles"]) or None
        self._store, self._schema = store, arrow_schema(schema)
        self._until: set[str] | None = None
        self._known: set[str] = set()
        """The files in the first ``_entry_count`` entries of the log, spelled as there."""
        self._entry_count = 0

    def initialOffset(self) -> dict[str, int]:
        return {"logOffset": -1}

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = {file.url for file in matching(self._path, self._store)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._files_max is None else ReadMaxFiles(self._files_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        number = start["logOffset"] + 1
        if self._entries(number):  # logged by an earlier start that died before the batch
            return {"logOffset": number}
        for each in range(self._entry_count, number):
            self._known |= {entry["path"] for entry in self._entries(each)}
        self._entry_count = number
        new = [file for file in matching(self._path, self._store) if _spelled(file.url) not in self._known]
        new = sorted(
            (file for file in new if self._until is None or file.url in self._until),
            key=lambda f: (f.modified_ms, f.url),
        )
        entries = [
            {"path": _spelled(file.url), "timestamp": file.modified_ms, "batchId": number, "size": file.size}
            for file in (new[: limit.max_files] if isinstance(limit, ReadMaxFiles) else new)
        ]
        if not entries:
            return start
        self._log.write(str(number), "\n".join(["v1", *map(json.dumps, entries)]).encode())
        return {"logOffset": number}

    def _entries(self, number: int) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in bytes(self._log.read(str(number))).decode().splitlines()[1:]]
        except FileNotFoundError:
            return []

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        numbers = range(start["logOffset"] + 1, end["logOffset"] + 1)
        entries = [entry for number in numbers for entry in self._entries(number)]
        files = [(unquote(entry["path"]), int(entry["size"])) for entry in entries]
        return [InputPartition(units) for units in tasks_of([f for f in files if f[0] not in self._aside], self._kind)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reader = UnitReader(self._store, self._kind, self._schema, self._path)
        for unit in partition.value:
            yield from reader.read(Unit(*unit))


def _spelled(url: str) -> str:
    """A file's path as Spark spells it in its log."""
    return quote(url, safe=":/")
