"""Batches as folders of parquet files: a batch is staged as a whole, then one rename makes it visible.

    PATH/stream.json                            the stream's id, columns and meaning; written before the first batch
    PATH/batches/000000000012/firsts/           and repeats/ unsure/ rejects/ (drop), or messages/ (mark, none)
                              gaps/             if gaps were given
                              tally.json        the books of the batch
    PATH/progress.jsonl                         the progress of `onefold run`, a line per batch; report.html: its page
    PATH/_staging/                              the batch being written, or left by a driver that died

``PATH/batches/*/firsts`` is what the next step reads, with any reader of parquet. The last batch is the highest name:
twelve digits sort as text like numbers. This needs a file system with an atomic rename; in an object store one put of
a commit publishes a batch, and ``tally.json`` in its folder marks it as carried out (see `commits`).

Cost: one pass over the rows, one over the written rows; with ``none`` they are written once more, without verdict and
reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onefold.errors import Misuse
from onefold.spark import publish
from onefold.spark.columns import quoted
from onefold.spark.commits import COMMIT, COMMITS, Commit, batch_numbers, commit_of
from onefold.spark.files import Place
from onefold.spark.host import REASON, VERDICT
from onefold.spark.meaning import Meaning, refuse_other
from onefold.spark.objects import LOCK
from onefold.spark.sinks.sink import Attempt, another, counted, other_columns, received, stranger
from onefold.tally import Tally

FORMAT = 1
STREAM, BATCHES = "stream.json", "batches"
PROGRESS = "progress.jsonl"
KNOWN = {STREAM, f"{STREAM}.new", LOCK, BATCHES, COMMITS, publish.STAGING, PROGRESS, f"{PROGRESS}.new", *publish.FILES}


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """A batch being written, or a version of a run with a memory: one rename makes it visible."""

    attempt: Attempt
    batch: int
    root: Place
    parts: dict[str, Place] = field(default_factory=dict)

    @property
    def target(self) -> Place:
        return version_folder(self.root, self.batch)

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
        if not self.place.renames:
            self.parts.update(parts)
            Commit.of(self.place, parts, "", {}).put(self.place / COMMIT)  # to be audited
            return
        for name, part in parts.items():
            part.move_to(self.place / name)
        self.staging.remove()

    def keep(self, name: str) -> Place:
        return self.place / name

    def publish(self, tally: Tally, documents: Mapping[str, Any] | None = None) -> None:
        """Make the batch visible, with these documents beside its rows, and last its books."""
        every = {**(documents or {}), publish.TALLY: {"batch": self.batch, **tally.to_dict()}}
        if not self.place.renames:
            folder = f"{BATCHES}/{self.batch:012}/"
            named = {f"{folder}{name}": document for name, document in every.items()}
            commit = Commit.of(self.root, self.parts, folder, named)
            self.attempt.check()
            commit.put(commit_of(self.root, self.batch), new=True)
            commit.carry_out(self.root)
            return
        for name, document in every.items():
            if isinstance(document, bytes):
                (self.place / name).write_bytes(document)
            else:
                (self.place / name).write_json(document)
        self.attempt.check()
        self.place.publish_as(self.target)

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        self.publish(tally.check(), {publish.MANIFEST: manifest, publish.RUN: run})


class ParquetSink:
    def __init__(
        self, spark: SparkSession, path: str, strategy: publish.Strategy, meaning: Meaning | None = None
    ) -> None:
        self._place = Place(spark, path)
        self._strategy = strategy
        self._meaning = meaning
        self._last: int | None = None

    def __str__(self) -> str:
        return self._place.shown

    def last(self, stream: str) -> int | None:
        """The highest batch: listed once, then followed one by one, because there may be many."""
        names = self._place.names()
        for name in names:
            if name not in KNOWN:
                raise stranger(self, name)
        if STREAM not in names:
            if strangers := [name for name in names if name not in (f"{STREAM}.new", LOCK)]:
                raise stranger(self, strangers[0])
            return None
        self._check_owner(stream)
        if self._last is None or not self._committed(self._last).exists():
            self._last = max(self._batches(), default=None)
        while self._last is not None and self._committed(self._last + 1).exists():
            self._last += 1
        if self._last is not None and not self._place.renames and not self._books(self._last).exists():
            commit = Commit.read(self._committed(self._last))  # of a start that died after its commit
            if commit is not None:
                commit.carry_out(self._place)
        return self._last

    def _committed(self, batch: int) -> Place:
        """The folder or commit that exists once a batch is published."""
        return self.folder(batch) if self._place.renames else commit_of(self._place, batch)

    def _books(self, batch: int) -> Place:
        return self.folder(batch) / publish.TALLY

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        draft = self.draft(stream, batch, rows.drop(publish.ORDER).schema)
        passing, counter = counted(rows)
        staged = publish.stage(passing, draft.staging, self._strategy)
        tally = publish.books(staged, received(counter)).check()
        if gaps is not None:
            (draft.staging / publish.GAPS).write(gaps)
        original = [F.col(quoted(name)) for name in rows.columns if name not in (VERDICT, REASON, publish.ORDER)]
        draft.commit(publish.staged(draft.staging, staged, self._strategy, original, gaps=gaps is not None))
        draft.publish(tally)
        return tally

    def draft(self, stream: str, batch: int, schema: StructType) -> BatchDraft:
        """Begin to write a batch with these columns; from the first one on, the output belongs to this stream."""
        self._place.make()
        columns = {field.name: field.dataType.simpleString() for field in schema}
        before = self._check_owner(stream, columns) if (self._place / STREAM).exists() else None
        signed = {"format": FORMAT, "stream": stream, "strategy": self._strategy, "columns": columns}
        meaning = {} if self._meaning is None else {"meaning": dict(self._meaning)}
        if before is None or not meaning.keys() <= before.keys():
            (self._place / STREAM).write_json(signed | meaning)
        (self._place / BATCHES).make()
        return BatchDraft(Attempt(self._place / publish.STAGING, batch), batch, self._place)

    def total(self) -> Tally:
        return sum((self._tally(batch) for batch in self._batches()), start=Tally())

    def _tally(self, batch: int) -> Tally:
        books = self._books(batch)
        if not self._place.renames and not books.exists():  # committed, and not carried out yet
            commit = Commit.read(self._committed(batch))
            if commit is not None:
                return Tally.from_dict(commit.documents[f"{BATCHES}/{batch:012}/{publish.TALLY}"])
        return Tally.from_dict(books.read_json())

    def folder(self, batch: int) -> Place:
        return version_folder(self._place, batch)

    def _batches(self) -> list[int]:
        if not self._place.renames:
            return batch_numbers(self._place)
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
