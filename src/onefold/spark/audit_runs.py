"""The audit of a run: its source against the folder that it left.

While a batch run reads its source, the fingerprint of every row is taken in passing. When the rows are published, those
that can now be read there are summed up and compared with it. Only if the two do not agree is the source read a second
time, to name what is missing or surplus. So a source that grows while the run is going on is no trouble.

``onefold audit`` comes later and knows no fingerprint: it reads both.
"""

from pyspark.sql import DataFrame, SparkSession

from onefold.errors import Misuse
from onefold.spark.audit_ids import identity
from onefold.spark.audit_passing import comparable
from onefold.spark.audit_tables import Audit, audit
from onefold.spark.diff_ranges import Fingerprint
from onefold.spark.judging import Judging
from onefold.spark.place import Place
from onefold.spark.publish import FOLDERS, MESSAGES, RUN
from onefold.spark.publish import books as counted
from onefold.spark.sinks import open_sink
from onefold.spark.sinks.parquet import BATCHES, STREAM
from onefold.tally import Tally

KINDS = {"missing", "surplus", "twice", "orphans"}
"""The folders that hold what is wrong."""


def audit_run(source: DataFrame, place: Place, judging: Judging, sent: Fingerprint | None = None) -> Audit:
    """Compare the messages of a source with what a run published at a place."""
    rows = published(source.sparkSession, place)
    return audit(source, rows, identity(judging), columns=comparable(source), sent=sent)


def published(spark: SparkSession, place: Place) -> DataFrame:
    """All rows that a run published, under whatever verdict, or all batches of a stream; a folder that is gone has
    none.
    """
    names = [MESSAGES, *FOLDERS.values()]
    there = [str(place / name) for name in names if (place / name).exists()]
    batches = [place / BATCHES / name for name in (place / BATCHES).names()]
    if batches:  # a batch has the folders of its stream's strategy, all of them
        there = [str(place / BATCHES / "*" / name) for name in names if (batches[0] / name).exists()]
    if not there:
        raise Misuse(f"{place.shown} holds no rows of a run", path=place.shown)
    return spark.read.parquet(*there)


def books(spark: SparkSession, place: Place) -> Tally:
    """The books that a run, or a stream, left there."""
    if (place / STREAM).exists():
        strategy = (place / STREAM).read_json()["strategy"]
        return open_sink(spark, str(place), format="parquet", strategy=strategy).total()
    if not (place / RUN).exists():
        raise Misuse(f"{place.shown} is not a complete run: it holds no {RUN}", path=place.shown)
    return Tally.from_dict((place / RUN).read_json()["tally"])


def books_differ(run: Tally, published_rows: DataFrame) -> list[str]:
    """Where the books of a run say another number than its rows; one line each."""
    found = counted(published_rows, run.received)
    said, there = dict(run), dict(found)
    return [
        f"the books say {said.get(answer, 0):,} {answer}, the rows {there.get(answer, 0):,}"
        for answer in {**said, **there}
        if said.get(answer, 0) != there.get(answer, 0)
    ]


def prepare_kinds(place: Place) -> Place:
    """A folder for what is wrong: emptied of what an audit left there, refused if something else lives there."""
    strangers = [name for name in place.names() if name not in KINDS]
    if strangers:
        raise Misuse(f"{place.shown} holds {strangers[0]!r}, which no audit wrote: choose another", path=place.shown)
    for name in KINDS:
        (place / name).remove()
    return place


def keep(audited: Audit, place: Place) -> None:
    """Write all rows of what is wrong to a folder, by kind."""
    for kind, rows in audited.tables.items():
        rows.write.mode("overwrite").parquet(str(place / kind))
