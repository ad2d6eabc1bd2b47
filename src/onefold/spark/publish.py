"""Publishing a run: everything becomes visible together, or the run does not count.

The judged rows are written once, into ``_staging``, split by where they belong, and counted for the books on their way.
Then the folders are moved into place, and what is made from the rows, such as the missing ranges, follows. ``run.json``
is written last; a run without it is not complete, and running again replaces it. Only what the folder's signature names
is removed (see `signature`), and one run at a time has it. In an object store, which renames no folder, one put of a
commit does the same (see `commits`), and until then the run before stays as it is.

The strategy decides what becomes of rows that are not FIRST:

    drop    firsts/ repeats/ unsure/ rejects/    downstream reads firsts/
    mark    messages/                            all rows, with verdict and reason
    none    messages/                            all rows as they came

An engine may publish more, made from the judged rows: ``uplinks/`` holds the receptions of each radio frame merged.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, Protocol, TypeAlias
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import StaleWrite
from onefold.spark.commits import COMMIT, Commit
from onefold.spark.files import Place
from onefold.spark.fingerprints import Counts
from onefold.spark.host import REASON, VERDICT
from onefold.spark.signature import Signed, signed
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

Strategy: TypeAlias = Literal["drop", "mark", "none"]

FOLDERS = {Verdict.FIRST: "firsts", Verdict.REPEAT: "repeats", Verdict.UNSURE: "unsure", Verdict.REJECT: "rejects"}
MESSAGES, GAPS, STAGING, TALLY, RUN = "messages", "gaps", "_staging", "tally.json", "run.json"
EXTRAS = ("uplinks",)
AUDIT = "audit"
"""Where a run whose audit failed keeps the rows that are wrong."""
PROGRESS, REPORT, FIGURES = "progress.json", "report.html", "figures.json"
MANIFEST = "manifest.jsonl"
"""The files of the source, a line each: size, time, and rows as they were counted without the reader."""
FILES = {name + end for name in (TALLY, RUN, PROGRESS, REPORT, FIGURES, MANIFEST) for end in ("", ".new")}
ROWS = "rows"
ORDER = "_onefold_order"
"""A column by which rows are sorted in the files, and which does not get there; it begins with a hash of the key."""

_FOLDER = "_onefold_folder"
_NO_ANSWER = -1


class Output(Protocol):
    """Where a run publishes: all of it at once, with ``run.json``."""

    @property
    def place(self) -> Place:
        """Where what was committed can be read, and is audited, before it counts."""

    @property
    def staging(self) -> Place:
        """What is being made; of this attempt alone, for the tasks of one that was killed may write for a while yet."""

    @property
    def shown(self) -> str:
        """Where it will be, as a person writes it."""

    def commit(self, parts: Mapping[str, Place]) -> None:
        """Move what was staged to its place: the rows first, and later what was made from them. Until `finish` it does
        not count."""

    def keep(self, name: str) -> Place:
        """A folder to keep something in though the run does not count."""

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        """Write the books and the manifest, then the word that the run is complete, and tidy up."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run while the run has it for itself: what the run before left is replaced."""

    signed: Signed
    staging: Place
    parts: dict[str, Place] = field(default_factory=dict)
    """What was committed, and where it was staged."""

    @property
    def place(self) -> Place:
        return self.signed.place

    @property
    def shown(self) -> str:
        return self.place.shown

    def commit(self, parts: Mapping[str, Place]) -> None:
        for name in (RUN, REPORT):
            self.signed.remove(name)
        self.signed.replace(parts, [] if self.parts else _REPLACED)
        self.parts.update(parts)

    def keep(self, name: str) -> Place:
        self.signed.own({name: None})
        return self.place / name

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        (self.place / TALLY).write_json(tally.check().to_dict())
        (self.place / MANIFEST).write_bytes(manifest)
        self.signed.remove(STAGING)
        (self.place / RUN).write_json(run)


_REPLACED = [*FOLDERS.values(), *EXTRAS, MESSAGES, GAPS, AUDIT]
"""The folders of a run that the next one replaces."""


@dataclass(frozen=True, slots=True)
class StoredRun(RunFolder):
    """The same in an object store."""

    @property
    def place(self) -> Place:
        return self.staging

    @property
    def shown(self) -> str:
        return self.signed.place.shown

    def commit(self, parts: Mapping[str, Place]) -> None:
        self.parts.update(parts)
        Commit.of(self.staging, self.parts, "", {}).put(self.staging / COMMIT)  # to be audited

    def keep(self, name: str) -> Place:
        self.signed.remove(name)
        self.signed.own({name: None})
        return self.signed.place / name

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        documents = {TALLY: tally.check().to_dict(), MANIFEST: manifest, RUN: run}
        root = self.signed.place
        commit = Commit.of(root, self.parts, "", documents)
        for name in _REPLACED:
            self.signed.refuse_foreign(name)
        files: dict[str, list[str]] = {name: (root / name).files() for name in {*_REPLACED, *self.parts}}
        for name in commit.files:
            folder, _, file = name.partition("/")
            files[folder] = sorted({*files[folder], file})
        self.signed.own({name: own for name, own in files.items() if own})
        commit.put(root / COMMIT)
        carry_out(self.signed, commit)


def carry_out(signed: Signed, commit: Commit) -> None:
    """Put the files of a run that is committed in their places, instead of those of the run before."""
    root = signed.place
    for name in (RUN, REPORT):
        signed.remove(name)
    for name in _REPLACED:
        for file in (root / name).files():
            if f"{name}/{file}" not in commit.files:
                (root / name / file).remove()
    commit.carry_out(root)
    signed.remove(COMMIT)


@contextmanager
def opened(spark: SparkSession, path: str) -> Iterator[RunFolder]:
    """The folder of a run: made if it is not there, refused if something else lives there or another run is at it."""
    with signed(Place(spark, path), "run", [*sorted(FILES), STAGING, COMMIT], _of_former_versions) as folder:
        if not folder.place.renames and (commit := Commit.read(folder.place / COMMIT)) is not None:
            try:
                commit.where(folder.place)
            except FileNotFoundError:  # put by a run that had lost the folder, and what it wrote, to another
                folder.remove(COMMIT)
            else:
                carry_out(folder, commit)  # of a run that died when it was published
        folder.remove(STAGING)
        staging = folder.place / STAGING / uuid4().hex[:12]
        staging.make()
        try:
            yield (RunFolder if folder.place.renames else StoredRun)(folder, staging)
        finally:
            with suppress(StaleWrite):  # then it is somebody else's by now
                if folder.place.renames or not (folder.place / COMMIT).exists():  # it names files there
                    folder.remove(STAGING)


def _of_former_versions(folder: Place) -> list[str]:
    """What is a run's own in a folder that has no signature, only a run.json: the folders of its strategy."""
    try:
        run = (folder / RUN).read_json() if (folder / RUN).exists() else None
    except ValueError:
        return []
    if not isinstance(run, dict) or run.get("complete") is not True or "tally" not in run:
        return []
    rows = list(FOLDERS.values()) if (folder / FOLDERS[Verdict.FIRST]).exists() else [MESSAGES]
    return [*rows, *EXTRAS, GAPS]


def kept(rows: DataFrame, place: Place | None) -> DataFrame:
    """Rows as read back from where they were written, or in Spark's storage, which is full when this returns."""
    if place is None:
        rows = rows.persist()
        rows.count()
        return rows
    place.write(rows)
    return place.read()


def stage(judged: DataFrame, staging: Place | None, strategy: Strategy) -> DataFrame:
    """Write all judged rows into the staging folder, in one pass; return them as read back from there."""
    if staging is None:
        return kept(judged, None)
    spark = judged.sparkSession
    staged = staging / ROWS
    schema = judged.schema if strategy == "none" else judged.drop(ORDER).schema  # there it is written once more
    folder = F.lit(FOLDERS[Verdict.REJECT] if strategy == "drop" else MESSAGES)
    for verdict, name in FOLDERS.items() if strategy == "drop" else ():
        folder = F.when(F.col(VERDICT) == str(verdict), F.lit(name)).otherwise(folder)
    placed = judged.withColumn(_FOLDER, folder)
    placed = placed if strategy == "none" else sorted_in_files(placed, _FOLDER)
    staged.write(placed, _FOLDER)
    if not staged.exists():
        raise OSError(f"Spark wrote {staged.shown}, and it is not there: is it on the disk of another machine?")
    rows = staged.read(schema.add(_FOLDER, "string")) if staged.names() else None
    return spark.createDataFrame([], schema) if rows is None else rows.drop(_FOLDER)


def sorted_in_files(rows: DataFrame, *folders: str) -> DataFrame:
    """The rows of each task in their order, if they have one. Spark sorts what is split into folders by these columns,
    which must not be null, and leaves it alone where that is done.
    """
    return rows.sortWithinPartitions(*folders, ORDER).drop(ORDER) if ORDER in rows.columns else rows


def sorted_again(rows: DataFrame) -> DataFrame:
    """The same of rows that were read back: a key may have come to several tasks."""
    return sorted_in_files(rows.repartition(F.col(ORDER)["key"])) if ORDER in rows.columns else rows


def books(rows: DataFrame, received: int) -> Tally:
    """The books of judged rows, by reading them."""
    counted = rows.groupBy(VERDICT, REASON).count().collect()
    return Tally(received, {Answer(Verdict(row[VERDICT]), row[REASON]): row["count"] for row in counted})


class Books:
    """Counts what each answer was given while the judged rows are on their way to where they are written."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        # Compared one after another: a look-up in an array takes several times as long.
        number, *others = (
            (F.col(VERDICT) == str(answer.verdict)) & (F.col(REASON) == answer.reason) for answer in answers
        )
        numbered = reduce(lambda cases, case: cases.when(case[1], case[0]), enumerate(others, 1), F.when(number, 0))
        self._counts = Counts(numbered.otherwise(_NO_ANSWER), 2 * len(answers), called="onefold_books")

    def watch(self, judged: DataFrame, **more: Column) -> DataFrame:
        return self._counts.watch(judged, **more)

    def seen(self, name: str) -> Any:
        return self._counts.seen(name)

    def tally(self, received: int) -> Tally | None:
        """The books; None if they were forgotten, or hold what is no answer of this engine."""
        counts = self._counts.counts
        if counts is None or _NO_ANSWER in counts:
            return None
        return Tally(received, {self._answers[number]: count for number, count in counts.items()})


def staged(
    staging: Place, rows: DataFrame, strategy: Strategy, original: list[Column], *, gaps: bool = False
) -> dict[str, Place]:
    """The folders of the rows by their names, and of the missing ranges, if those are staged, too."""
    if strategy == "none":
        (staging / MESSAGES).write(sorted_again(rows).select(*original))
        parts = {MESSAGES: staging / MESSAGES}
    else:
        names = [MESSAGES] if strategy == "mark" else list(FOLDERS.values())
        parts = {name: staging / ROWS / f"{_FOLDER}={name}" for name in names}
    for part in parts.values():
        if not part.exists():
            part.write(rows.limit(0).coalesce(1))
    return parts | ({GAPS: staging / GAPS} if gaps else {})
