"""Rows as Parquet files that tasks write directly, for tables whose commits name their files.

Each attempt at a task writes files under unique names and returns these when the files are complete; files of a dead
task are never named. So no rename is needed, and any store that pyarrow opens will do. The rows are counted on their
way into the files, by verdict and reason, and again by the footers of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.spark import publish
from onefold.spark.columns import quoted
from onefold.spark.host import REASON, VERDICT
from onefold.spark.sinks.sink import counted, received
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

Files: TypeAlias = Callable[[], fs.FileSystem]
"""Opens a store, in a task."""
GROUP_ROWS: Final = 1 << 20
_OUTCOME: Final = "name string, size long, footer long, verdict string, reason string, rows long"


@dataclass(frozen=True, slots=True)
class DataFile:
    name: str
    size: int
    rows: int
    verdict: str | None
    """The verdict of all its rows; None: rows were not split by verdict."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How rows are written to files."""

    files: Files
    folder: str
    schema: pa.Schema
    """The columns of the files; other columns are dropped."""
    split: bool = False
    """Whether each file has the rows of one verdict."""

    def write(self, rows: DataFrame) -> tuple[list[DataFile], Tally]:
        """Write rows that have a verdict and a reason; they are evaluated once."""
        passing, counter = counted(rows)
        if self.split:
            passing = passing.withColumn(VERDICT, F.coalesce(VERDICT, F.lit("")))
        ordered = publish.sorted_in_files(passing, *([VERDICT] if self.split else []))
        outcome = self._written(ordered)
        files = {
            row["name"]: DataFile(row["name"], row["size"], row["footer"], row["verdict"] if self.split else None)
            for row in outcome
        }
        counts: dict[Answer, int] = {}
        for row in outcome:
            answer = Answer(Verdict(row["verdict"]), row["reason"])
            counts[answer] = counts.get(answer, 0) + row["rows"]
        Tally(sum(file.rows for file in files.values()), counts).check()  # against the footers
        return [*files.values()], Tally(received(counter), counts).check()

    def write_plain(self, rows: DataFrame) -> list[DataFile]:
        """Write rows that have no verdict."""
        outcome = self._written(rows)
        return [DataFile(row["name"], row["size"], row["footer"], None) for row in outcome]

    def _written(self, rows: DataFrame) -> list[Any]:
        # Numbered, because mapInArrow fails on names such as a.b.
        numbered = rows.select(*(F.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(rows.columns)))
        return numbered.mapInArrow(partial(self._write_task, rows.columns), _OUTCOME).collect()

    def _write_task(self, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task; runs in the task."""
        files, drafts = self.files(), dict[Any, _Draft]()
        for batch in batches:
            for verdict, part in self._parts(pa.Table.from_batches([batch]).rename_columns(names)):
                if part.num_rows and verdict not in drafts:
                    drafts[verdict] = _Draft(files, self.folder, self.schema)
                if part.num_rows:
                    drafts[verdict].add(part)
        for draft in drafts.values():
            yield draft.finished()

    def _parts(self, rows: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        if not self.split:
            yield None, rows
            return
        for verdict in pc.unique(rows[VERDICT]).to_pylist():
            yield verdict, rows.filter(pc.equal(rows[VERDICT], verdict))


class _Draft:
    """A file being written."""

    def __init__(self, files: fs.FileSystem, folder: str, schema: pa.Schema) -> None:
        self._name = f"{uuid4().hex}.parquet"
        self._files, self._path, self._schema = files, f"{folder}/{self._name}", schema
        self._stream = files.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._stream, schema, store_schema=False)
        self._counts: dict[tuple[str | None, str | None], int] = {}

    def add(self, rows: pa.Table) -> None:
        names: Sequence[str] = [VERDICT, REASON] if {VERDICT, REASON} <= {*rows.column_names} else []
        groups = rows.group_by(names).aggregate([([], "count_all")]) if names else None
        for group in [{"count_all": rows.num_rows}] if groups is None else groups.to_pylist():
            answer = group.get(VERDICT), group.get(REASON)
            self._counts[answer] = self._counts.get(answer, 0) + group["count_all"]
        for batch in rows.select(self._schema.names).cast(self._schema).to_batches():
            self._writer.write_batch(batch, row_group_size=GROUP_ROWS)

    def finished(self) -> pa.RecordBatch:
        """Close the file and read its footer; return one line per answer."""
        self._writer.close()
        self._stream.close()
        with self._files.open_input_file(self._path) as file:
            size, footer = file.size(), pq.read_metadata(file).num_rows
        lines = [
            {"name": self._name, "size": size, "footer": footer, "verdict": verdict, "reason": reason, "rows": rows}
            for (verdict, reason), rows in self._counts.items()
        ]
        whole = {"size": pa.int64(), "footer": pa.int64(), "rows": pa.int64()}
        names = ("name", "size", "footer", "verdict", "reason", "rows")
        return pa.RecordBatch.from_pylist(lines, pa.schema([(n, whole.get(n, pa.string())) for n in names]))


def remove_others(files: fs.FileSystem, folder: str, own: str) -> None:
    """Remove the files of other attempts at a batch; it is committed now, so no commit will ever name them."""
    for info in files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        if info.type == fs.FileType.Directory and info.base_name != own:
            files.delete_dir(info.path)
