"""Publishing a run: everything becomes visible together, or the run does not count.

The judged rows are written once, into ``_staging``, split by their target folder, and counted for the books in the same
pass. The missing ranges are computed from the staged rows. Then the folders are moved into place, and ``run.json`` is
written last; a run without it is not complete, and the next run replaces it. Only what the folder's signature names is
removed (see `signature`), and the folder is locked by one run. In an object store, which cannot rename folders, one put
of a commit publishes (see `commits`), and until then the previous run stays as it is.

The strategy decides what happens to rows that are not FIRST:

    drop    firsts/ repeats/ unsure/ rejects/    downstream reads firsts/
    mark    messages/                            all rows, with verdict and reason
    none    messages/                            all rows, unchanged

An engine may publish more folders, made from the judged rows: ``uplinks/`` merges the receptions of each radio frame.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""Where a run whose audit failed keeps the wrong rows."""
PROGRESS, REPORT, FIGURES = "progress.json", "report.html", "figures.json"
MANIFEST = "manifest.jsonl"
"""The files of the source, one line each: size, time, and rows as counted without the reader."""
FILES = {name + end for name in (TALLY, RUN, PROGRESS, REPORT, FIGURES, MANIFEST) for end in ("", ".new")}
ROWS = "rows"
ORDER = "_onefold_order"
"""A column by which rows are sorted in the files; it is not written itself. It begins with a hash of the key."""

_FOLDER = "_onefold_folder"
_NO_ANSWER = -1


class Output(Protocol):
    """Where a run publishes, all at once, with ``run.json``."""

    @property
    def place(self) -> Place:
        """Where committed parts can be read and audited before they count."""

    @property
    def staging(self) -> Place:
        """The folder of this attempt alone: tasks of a killed attempt may go on writing for a while."""

    @property
    def shown(self) -> str:
        """The final place, for people."""

    def commit(self, parts: Mapping[str, Place]) -> None:
        """Move the staged parts to their place. They do not count until `finish`."""

    def keep(self, name: str) -> Place:
        """A folder that is kept although the run fails."""

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        """Write the books and the manifest, remove the staging folder, and mark the run as complete."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The locked folder of a run; replaces the previous run."""

    signed: Signed
    staging: Place

    @property
    def place(self) -> Place:
        return self.signed.place

    @property
    def shown(self) -> str:
        return self.place.shown

    def commit(self, parts: Mapping[str, Place]) -> None:
        for name in (RUN, REPORT):
            self.signed.remove(name)
        self.signed.replace(parts, _REPLACED)

    def keep(self, name: str) -> Place:
        self.signed.own({name: None})
        return self.place / name

    def finish(self, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
        (self.place / TALLY).write_json(tally.check().to_dict())
        (self.place / MANIFEST).write_bytes(manifest)
        self.signed.remove(STAGING)
        (self.place / RUN).write_json(run)


_REPLACED = [*FOLDERS.values(), *EXTRAS, MESSAGES, GAPS, AUDIT]
"""The folders that a run replaces."""


@dataclass(frozen=True, slots=True)
class StoredRun(RunFolder):
    """The folder of a run in an object store."""

    parts: dict[str, Place] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return self.staging

    @property
    def shown(self) -> str:
        return self.signed.place.shown

    def commit(self, parts: Mapping[str, Place]) -> None:
        self.parts.update(parts)
        Commit.of(self.staging, parts, "", {}).put(self.staging / COMMIT)  # to be audited

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
    """Give the files of a committed run their final names, in place of the files of the previous run."""
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
    """Open the folder of a run, created if missing; `Misuse` if it holds anything else or another run has it locked."""
    with signed(Place(spark, path), "run", [*sorted(FILES), STAGING, COMMIT], _of_former_versions) as folder:
        if not folder.place.renames and (commit := Commit.read(folder.place / COMMIT)) is not None:
            try:
                commit.where(folder.place)
            except FileNotFoundError:  # put by a run whose lock, and staged files, another had taken over
                folder.remove(COMMIT)
            else:
                carry_out(folder, commit)  # of a run that died after its commit
        folder.remove(STAGING)
        staging = folder.place / STAGING / uuid4().hex[:12]
        staging.make()
        try:
            yield (RunFolder if folder.place.renames else StoredRun)(folder, staging)
        finally:
            with suppress(StaleWrite):  # another run has taken the folder over
                if folder.place.renames or not (folder.place / COMMIT).exists():  # a commit names staged files
                    folder.remove(STAGING)


def _of_former_versions(folder: Place) -> list[str]:
    """The names that are a run's own in a folder without a signature, which has only a run.json."""
    try:
        run = (folder / RUN).read_json() if (folder / RUN).exists() else None
    except ValueError:
        return []
    if not isinstance(run, dict) or run.get("complete") is not True or "tally" not in run:
        return []
    rows = list(FOLDERS.values()) if (folder / FOLDERS[Verdict.FIRST]).exists() else [MESSAGES]
    return [*rows, *EXTRAS, GAPS]


def kept(rows: DataFrame, place: Place | None) -> DataFrame:
    """Write rows and return them as read back; without a place, persist them in Spark's storage, computed."""
    if place is None:
        rows = rows.persist()
        rows.count()
        return rows
    place.write(rows)
    return place.read()


def stage(judged: DataFrame, staging: Place | None, strategy: Strategy) -> DataFrame:
    """Write all judged rows into the staging folder, in one pass; return them as read back."""
    if staging is None:
        return kept(judged, None)
    spark = judged.sparkSession
    staged = staging / ROWS
    schema = judged.schema if strategy == "none" else judged.drop(ORDER).schema  # "none" writes the rows again, sorted
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
    """The rows of each task sorted by `ORDER`, if they have it. ``folders``: the partition columns, which must not be
    null: Spark sorts by them before it writes, unless the rows are sorted by them already.
    """
    return rows.sortWithinPartitions(*folders, ORDER).drop(ORDER) if ORDER in rows.columns else rows


def sorted_again(rows: DataFrame) -> DataFrame:
    """The same for rows that were read back, where a key may be in several tasks."""
    return sorted_in_files(rows.repartition(F.col(ORDER)["key"])) if ORDER in rows.columns else rows


def books(rows: DataFrame, received: int) -> Tally:
    """The books, counted from the judged rows."""
    counted = rows.groupBy(VERDICT, REASON).count().collect()
    return Tally(received, {Answer(Verdict(row[VERDICT]), row[REASON]): row["count"] for row in counted})


class Books:
    """Counts the answers while the judged rows are being written."""

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
        """The books; None if the counts were lost, or include a pair that is no answer of this engine."""
        counts = self._counts.counts
        if counts is None or _NO_ANSWER in counts:
            return None
        return Tally(received, {self._answers[number]: count for number, count in counts.items()})


def staged(
    staging: Place, rows: DataFrame, strategy: Strategy, original: list[Column], *, gaps: bool = True,
    extras: Iterable[str] = (),
) -> dict[str, Place]:  # fmt: skip
    if strategy == "none":
        (staging / MESSAGES).write(sorted_again(rows).select(*original))
        parts = {MESSAGES: staging / MESSAGES}
    else:
        names = [MESSAGES] if strategy == "mark" else list(FOLDERS.values())
        parts = {name: staging / ROWS / f"{_FOLDER}={name}" for name in names}
    for part in parts.values():
        if not part.exists():
            part.write(rows.limit(0).coalesce(1))
    return parts | {name: staging / name for name in (*([GAPS] if gaps else []), *extras)}
