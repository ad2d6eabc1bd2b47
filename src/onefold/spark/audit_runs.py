"""The audit of a run: its source against the folder that it left.

While a batch run reads its source, the fingerprint of every row is taken in passing. When the rows are published, those
that can now be read there are summed up and compared with it. Only if the two do not agree is the source read a second
time, to name what is missing or surplus. So a source that grows while the run is going on is no trouble.

``onefold audit`` comes later and knows no fingerprint: it reads both.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark.audit_ids import identity
from onefold.spark.audit_passing import comparable
from onefold.spark.audit_tables import Audit, audit
from onefold.spark.diff_ranges import Fingerprint
from onefold.spark.judging import Judging
from onefold.spark.place import Place
from onefold.spark.publish import FOLDERS, MESSAGES, RUN, STAGING
from onefold.spark.signature import Signed, signed
from onefold.spark.sinks import open_sink
from onefold.spark.sinks.parquet import BATCHES, STREAM
from onefold.spark.table import REASON, VERDICT
from onefold.tally import Tally

KINDS = {"missing", "surplus", "twice", "orphans"}
"""The folders that hold what is wrong."""
NO_FILES = "UNABLE_TO_INFER_SCHEMA"
"""What Spark says of folders without a single file."""

_FOLDER = "_onefold_folder"


def audit_run(source: DataFrame, place: Place, judging: Judging, sent: Fingerprint | None = None) -> Audit:
    """Compare the messages of a source with what a run published at a place."""
    rows = _found(source.sparkSession, place)
    if rows is None:
        rows = source.limit(0).withColumns({name: F.lit("") for name in (VERDICT, REASON)})
    return audit(source, rows, identity(judging.fitted(source)), columns=comparable(source), sent=sent)


def published(spark: SparkSession, place: Place) -> DataFrame:
    """All rows that a run published, under whatever verdict, or all batches of a stream; `Misuse` if there is no file
    of any.
    """
    rows = _found(spark, place)
    if rows is None:
        raise Misuse(f"{place.shown} holds no rows of a run", path=place.shown)
    return rows


def _found(spark: SparkSession, place: Place) -> DataFrame | None:
    """The rows of all folders that are there; None if they hold no file."""
    names = [MESSAGES, *FOLDERS.values()]
    batches = [place / BATCHES / name for name in (place / BATCHES).names()]
    if batches:  # a batch has the folders of its stream's strategy; of one that is damaged, some
        there = [str(place / BATCHES / "*" / name) for name in names if any((b / name).exists() for b in batches)]
    else:
        there = [str(place / name) for name in names if (place / name).exists()]
    try:
        return spark.read.parquet(*there) if there else None
    except AnalysisException as error:
        if error.getCondition() != NO_FILES:
            raise
        return None


def books(spark: SparkSession, place: Place) -> Tally:
    """The books that a run, or a stream, left there."""
    if (place / STREAM).exists():
        strategy = (place / STREAM).read_json()["strategy"]
        return open_sink(spark, str(place), format="parquet", strategy=strategy).total()
    if not (place / RUN).exists():
        raise Misuse(f"{place.shown} is not a complete run: it holds no {RUN}", path=place.shown)
    return Tally.from_dict((place / RUN).read_json()["tally"])


def books_differ(run: Tally, spark: SparkSession, place: Place) -> list[str]:
    """Where the books of a run say another number than its rows, or rows lie in a folder of another verdict; one line
    each.
    """
    folder = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -2)
    rows = _found(spark, place)
    counted = [] if rows is None else rows.groupBy(VERDICT, REASON, folder.alias(_FOLDER)).count().collect()
    said, there, lines = {str(answer): count for answer, count in run}, Counter[str](), []
    for verdict, reason, name, count in counted:
        there[f"{verdict} {reason}"] += count
        if name in FOLDERS.values() and name != FOLDERS.get(verdict):
            lines.append(f"{count:,} rows that are {verdict} lie in {name}/")
    return lines + [
        f"the books say {said.get(answer, 0):,} {answer}, the rows {there[answer]:,}"
        for answer in {**said, **there}
        if said.get(answer, 0) != there[answer]
    ]


@contextmanager
def kinds_folder(place: Place) -> Iterator[Signed]:
    """A folder for what is wrong: emptied of what an audit left there, refused if something else lives there."""
    with signed(place, "audit", [STAGING]) as folder:
        for name in (*sorted(KINDS), STAGING):
            folder.remove(name)
        yield folder


def keep_in(folder: Signed, audited: Audit) -> None:
    """Write all rows of what is wrong to a folder of their own, by kind."""
    staging = folder.place / STAGING
    keep(audited, staging)
    folder.replace({kind: staging / kind for kind in audited.tables}, KINDS)
    folder.remove(STAGING)


def keep(audited: Audit, place: Place) -> None:
    """Write all rows of what is wrong to a folder, by kind."""
    for kind, rows in audited.tables.items():
        rows.write.parquet(str(place / kind))
