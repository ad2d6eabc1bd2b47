"""Batches as folders of parquet files: a batch is staged as a whole, then one rename makes it visible.

    PATH/stream.json                            whose output this is, its columns and meaning; before the first batch
    PATH/batches/000000000012/firsts/           and repeats/ unsure/ rejects/ (drop), or messages/ (mark, none)
                              gaps/             if gaps were given
                              tally.json        the books of the batch
    PATH/progress.jsonl                         what `onefold run` tells of the batches; report.html: their report
    PATH/_staging/                              what is being written, or was when a driver died

``PATH/batches/*/firsts`` is what the next step reads, with any reader of parquet. The last batch is the highest name:
twelve digits sort as text like numbers. A rename in one step needs a file system that has one; object stores copy
file by file and are refused.

Cost: one pass over the rows, one over what was written; with ``none`` what was written is written again without its
two columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onefold.errors import Misuse
from onefold.spark import publish
from onefold.spark.columns import quoted
from onefold.spark.files import Place
from onefold.spark.host import REASON, VERDICT
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.sinks.sink import Attempt, another, counted, other_columns, received, stranger
from onefold.tally import Tally

FORMAT = 1
STREAM, BATCHES = "stream.json", "batches"
PROGRESS = "progress.jsonl"
KNOWN = {STREAM, f"{STREAM}.new", BATCHES, publish.STAGING, PROGRESS, f"{PROGRESS}.new", *publish.FILES}
# Here a folder is only a part of many names: a rename is a copy per file, and a crash would show half a batch.
OBJECT_STORES = {"s3", "s3a", "s3n", "gs", "oss", "obs", "cos", "cosn", "wasb", "wasbs", "swift"}


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """A batch that is being written, or a version of a run that goes on: one rename makes it visible."""

    attempt: Attempt
    batch: int
    target: Place

    @property
    def place(self) -> Place:
        return self.attempt.draft

    @property
    def staging(self) -> Place:
        return self.attempt.draft / publish.STAGING

    @property
    def shown(self) -> str:
        return self.target.shown

    def commit(self, parts: Mapping[str, Place]) -> None:
        for name, part in parts.items():
            part.move_to(self.place / name)
        self.staging.remove()

    def keep(self, name: str) -> Place:
        return self.place / name

    def publish(self, tally: Tally) -> None:
        (self.place / publish.TALLY).write_json({"batch": self.batch, **tally.to_dict()})
        self.attempt.check()
        self.place.publish_as(self.target)

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        (self.place / publish.MANIFEST).write_bytes(manifest)
        (self.place / publish.RUN).write_json(run)
        self.publish(tally.check())


class ParquetSink:
    def __init__(
        self, spark: SparkSession, path: str, strategy: publish.Strategy, meaning: Meaning | None = None
    ) -> None:
        scheme = path.partition(":")[0].lower()
        if scheme in OBJECT_STORES:
            raise Misuse(
                f"{path}: {scheme} cannot rename a folder in one step, so a crash could show half a batch;"
                " write to a file system that can (local, HDFS)",
                path=path,
            )
        self._place = Place(spark, path)
        self._strategy = strategy
        self._meaning = meaning
        self._last: int | None = None

    def __str__(self) -> str:
        return self._place.shown

    def last(self, stream: str) -> int | None:
        """The highest name below ``batches``: found by a listing, then followed, for there may be many."""
        names = self._place.names()
        for name in names:
            if name not in KNOWN:
                raise stranger(self, name)
        if STREAM not in names:
            if strangers := [name for name in names if name != f"{STREAM}.new"]:
                raise stranger(self, strangers[0])
            return None
        self._check_owner(stream)
        if self._last is None or not self.folder(self._last).exists():
            self._last = max(self._batches(), default=None)
        while self._last is not None and self.folder(self._last + 1).exists():
            self._last += 1
        return self._last

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        draft = self.draft(stream, batch, rows.drop(publish.ORDER).schema)
        passing, counter = counted(rows)
        staged = publish.stage(passing, draft.staging, self._strategy)
        tally = publish.books(staged, received(counter)).check()
        if gaps is not None:
            gaps.write.parquet(str(draft.staging / publish.GAPS))
        original = [F.col(quoted(name)) for name in rows.columns if name not in (VERDICT, REASON, publish.ORDER)]
        draft.commit(publish.staged(draft.staging, staged, self._strategy, original, gaps=gaps is not None))
        draft.publish(tally)
        return tally

    def draft(self, stream: str, batch: int, schema: StructType) -> BatchDraft:
        """A batch that is to be written, with these columns; the place is this stream's from now on."""
        self._place.make()
        columns = {field.name: field.dataType.simpleString() for field in schema}
        before = self._check_owner(stream, columns) if (self._place / STREAM).exists() else None
        signed = {"format": FORMAT, "stream": stream, "strategy": self._strategy, "columns": columns}
        meaning = {} if self._meaning is None else {"meaning": dict(self._meaning)}
        if before is None or not meaning.keys() <= before.keys():
            (self._place / STREAM).write_json(signed | meaning)
        (self._place / BATCHES).make()
        return BatchDraft(Attempt(self._place / publish.STAGING, batch), batch, self.folder(batch))

    def total(self) -> Tally:
        books = ((self.folder(batch) / publish.TALLY).read_json() for batch in self._batches())
        return sum(map(Tally.from_dict, books), start=Tally())

    def folder(self, batch: int) -> Place:
        return version_folder(self._place, batch)

    def _batches(self) -> list[int]:
        names = (self._place / BATCHES).names()
        for name in names:
            if len(name) != 12 or not name.isdecimal():
                raise stranger(self._place / BATCHES, name)
        return [int(name) for name in names]

    def _check_owner(self, stream: str, columns: dict[str, str] | None = None) -> dict[str, Any]:
        signed = (self._place / STREAM).read_json()
        if not isinstance(signed, dict) or signed.get("format") != FORMAT:
            raise stranger(self, STREAM)
        if signed.get("stream") != stream:
            raise another(self)
        if signed.get("strategy") != self._strategy:
            raise Misuse(
                f"{self} was begun with strategy {signed.get('strategy')}, not {self._strategy}: its folders would not"
                " hold all batches; go on with the old one, or use an empty place and an empty checkpoint",
                strategy=self._strategy,
            )
        if self._meaning is not None and signed.get("meaning") is not None:
            refuse_other(self, signed["meaning"], self._meaning)
        if columns is not None and columns != signed["columns"]:
            raise other_columns(self, signed["columns"], columns)
        return signed


def version_folder(output: Place, batch: int) -> Place:
    return output / BATCHES / f"{batch:012}"
