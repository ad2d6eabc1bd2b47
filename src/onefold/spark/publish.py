"""Publishing a run: everything becomes visible together, or the run does not count.

The judged rows are written once, into ``_staging``, split by where they belong. The books are made and the missing
ranges found from what lies there. Then the folders are moved into place and ``run.json`` is written, last; a run
without it is not complete, and running again replaces it. Only what the folder's signature names is removed (see
`signature`), and one run at a time has it.

The strategy decides what becomes of rows that are not FIRST:

    drop    firsts/ repeats/ unsure/ rejects/    downstream reads firsts/
    mark    messages/                            all rows, with verdict and reason
    none    messages/                            all rows as they came

An engine may publish more, made from the judged rows: ``uplinks/`` holds the receptions of each radio frame merged.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import StaleWrite
from onefold.spark.files import Place
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
PROGRESS, REPORT = "progress.json", "report.html"
MANIFEST = "manifest.jsonl"
"""The files of the source, a line each: size, time, and rows as they were counted without the reader."""
FILES = {name + end for name in (TALLY, RUN, PROGRESS, REPORT, MANIFEST) for end in ("", ".new")}
ROWS = "rows"

_FOLDER = "_onefold_folder"


@dataclass(frozen=True, slots=True)
class Output:
    """The folder of a run while the run has it for itself."""

    signed: Signed
    staging: Place
    """What is being made; of this attempt alone, for the tasks of one that was killed may write for a while yet."""

    @property
    def place(self) -> Place:
        return self.signed.place


@contextmanager
def opened(spark: SparkSession, path: str) -> Iterator[Output]:
    """The folder of a run: made if it is not there, refused if something else lives there or another run is at it."""
    with signed(Place(spark, path), "run", [*sorted(FILES), STAGING], _of_former_versions) as folder:
        folder.remove(STAGING)
        staging = folder.place / STAGING / uuid4().hex[:12]
        staging.make()
        try:
            yield Output(folder, staging)
        finally:
            with suppress(StaleWrite):  # then it is somebody else's by now
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


def stage(judged: DataFrame, staging: Place, strategy: Strategy) -> DataFrame:
    """Write all judged rows into the staging folder, in one pass; return them as read back from there."""
    spark = judged.sparkSession
    staged = staging / ROWS
    folder = F.lit(FOLDERS[Verdict.REJECT] if strategy == "drop" else MESSAGES)
    for verdict, name in FOLDERS.items() if strategy == "drop" else ():
        folder = F.when(F.col(VERDICT) == str(verdict), F.lit(name)).otherwise(folder)
    judged.withColumn(_FOLDER, folder).write.partitionBy(_FOLDER).parquet(str(staged))
    schema = judged.schema
    rows = spark.read.schema(schema.add(_FOLDER, "string")).parquet(str(staged)) if staged.names() else None
    return spark.createDataFrame([], schema) if rows is None else rows.drop(_FOLDER)


def books(rows: DataFrame, received: int) -> Tally:
    counted = rows.groupBy(VERDICT, REASON).count().collect()
    return Tally(received, {Answer(Verdict(row[VERDICT]), row[REASON]): row["count"] for row in counted})


def staged(
    staging: Place, rows: DataFrame, strategy: Strategy, original: list[Column], *, gaps: bool = True,
    extras: Iterable[str] = (),
) -> dict[str, Place]:  # fmt: skip
    if strategy == "none":
        rows.select(*original).write.parquet(str(staging / MESSAGES))
        parts = {MESSAGES: staging / MESSAGES}
    else:
        names = [MESSAGES] if strategy == "mark" else list(FOLDERS.values())
        parts = {name: staging / ROWS / f"{_FOLDER}={name}" for name in names}
    for part in parts.values():
        if not part.exists():
            rows.limit(0).coalesce(1).write.parquet(str(part))
    return parts | {name: staging / name for name in (*([GAPS] if gaps else []), *extras)}


def commit(output: Output, parts: Mapping[str, Place]) -> None:
    """Replace what the run before left by what was staged. Until ``run.json`` is written it does not count."""
    for name in (RUN, REPORT):
        output.signed.remove(name)
    output.signed.replace(parts, [*FOLDERS.values(), *EXTRAS, MESSAGES, GAPS, AUDIT])


def finish(output: Output, tally: Tally, run: dict[str, object], manifest: bytes) -> None:
    """Write the books and the manifest, then the word that the run is complete, and tidy up."""
    (output.place / TALLY).write_json(tally.check().to_dict())
    (output.place / MANIFEST).write_bytes(manifest)
    output.signed.remove(STAGING)
    (output.place / RUN).write_json(run)
