"""Publishing a run: everything becomes visible together, or the run does not count.

The judged rows are written once, into ``_staging``, split by where they belong. From what lies there the books are made
and the missing ranges found: what is counted is what was written. Then the folders are moved into place and
``run.json`` is written, last; a run without it is not complete, and running again replaces it. The same input gives
the same rows.

The strategy decides what becomes of rows that are not FIRST:

    drop    firsts/ repeats/ unsure/ rejects/    downstream reads firsts/
    mark    messages/                            all rows, with verdict and reason
    none    messages/                            all rows as they came

An engine may publish more, made from the judged rows: ``uplinks/`` holds the receptions of each radio frame merged.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.judge import REASON, VERDICT
from onefold.spark.place import Place
from onefold.tally import Tally
from onefold.verdict import Answer, Verdict

Strategy: TypeAlias = Literal["drop", "mark", "none"]

FOLDERS = {Verdict.FIRST: "firsts", Verdict.REPEAT: "repeats", Verdict.UNSURE: "unsure", Verdict.REJECT: "rejects"}
MESSAGES, GAPS, STAGING, TALLY, RUN = "messages", "gaps", "_staging", "tally.json", "run.json"
EXTRAS = ("uplinks",)
AUDIT = "audit"
"""Where a run whose audit failed keeps the rows that are wrong."""
PROGRESS, REPORT = "progress.json", "report.html"
FILES = {name + end for name in (TALLY, RUN, PROGRESS, REPORT) for end in ("", ".new")}
KNOWN = {*FOLDERS.values(), *EXTRAS, MESSAGES, GAPS, STAGING, AUDIT, *FILES}

_FOLDER = "_onefold_folder"


def prepare(spark: SparkSession, path: str) -> Place:
    """The place of a run: made if it is not there, refused if something else lives there."""
    place = Place(spark, path)
    strangers = [name for name in place.names() if name not in KNOWN]
    if strangers:
        raise Misuse(f"{place.shown} is not a run's folder: it holds {strangers[0]!r}; choose another", path=path)
    place.make()
    (place / STAGING).remove()
    (place / STAGING).make()
    return place


def stage(judged: DataFrame, place: Place, strategy: Strategy) -> DataFrame:
    """Write all judged rows into the staging folder, in one pass; return them as read back from there."""
    spark = judged.sparkSession
    staged = place / STAGING / "rows"
    judged.withColumn(_FOLDER, _folder(strategy)).write.partitionBy(_FOLDER).parquet(str(staged))
    schema = judged.schema
    rows = spark.read.schema(schema.add(_FOLDER, "string")).parquet(str(staged)) if staged.names() else None
    return spark.createDataFrame([], schema) if rows is None else rows.drop(_FOLDER)


def stage_extras(place: Place, extras: Mapping[str, DataFrame]) -> None:
    """Write what an engine publishes besides into the staging folder."""
    for name, rows in extras.items():
        rows.write.mode("overwrite").parquet(str(place / STAGING / name))


def books(rows: DataFrame, received: int) -> Tally:
    """The tally of the rows, against the number that came in."""
    counted = rows.groupBy(VERDICT, REASON).count().collect()
    return Tally(received, {Answer(Verdict(row[VERDICT]), row[REASON]): row["count"] for row in counted})


def commit(
    place: Place, rows: DataFrame, strategy: Strategy, original: list[Column], *, gaps: bool = True,
    extras: Iterable[str] = (),
) -> None:  # fmt: skip
    """Move what was staged into place, gaps and extras too if there are any. Until ``run.json`` is written it does not
    count.

    A stream's batch has no ``run.json``: it is made out of sight, by the same steps, and moved as a whole.
    """
    for name in (RUN, REPORT):
        (place / name).remove()
    staged = place / STAGING / "rows"
    if strategy == "none":
        rows.select(*original).write.mode("overwrite").parquet(str(place / STAGING / MESSAGES))
        staged = place / STAGING
    wanted = [MESSAGES] if strategy != "drop" else list(FOLDERS.values())
    for name in {*FOLDERS.values(), *EXTRAS, MESSAGES, AUDIT} - set(wanted):
        (place / name).remove()
    for name in wanted:
        source = staged / name if strategy == "none" else staged / f"{_FOLDER}={name}"
        if not source.exists():
            rows.limit(0).coalesce(1).write.parquet(str(source))
        source.move_to(place / name)
    for name in (*([GAPS] if gaps else []), *extras):
        (place / STAGING / name).move_to(place / name)


def finish(place: Place, tally: Tally, run: dict[str, object]) -> None:
    """Write the books, then the word that the run is complete, and tidy up."""
    (place / TALLY).write_json(tally.check().to_dict())
    (place / STAGING).remove()
    (place / RUN).write_json(run)


def _folder(strategy: Strategy) -> Column:
    if strategy != "drop":
        return F.lit(MESSAGES)
    folder = F.lit(FOLDERS[Verdict.REJECT])
    for verdict, name in FOLDERS.items():
        folder = F.when(F.col(VERDICT) == str(verdict), F.lit(name)).otherwise(folder)
    return folder
