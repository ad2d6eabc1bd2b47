"""``python -m tests.lib.dying_driver FOLDER WAY MOMENT BATCH``: a stream whose driver dies at this moment of a batch.

Moments: "before" a batch is published, "between" its files and their commit (of a table), "after" that, "held" while
held rows are written, "never". The way "naive" has a sink that only appends; "delta" and "iceberg" are tables.
"""

import os
import signal
import sys
from typing import Any
from unittest import mock

from onefold.spark import sinks
from onefold.spark import stream as streams
from onefold.spark.chains import ChainsEngine
from onefold.spark.files import Place
from onefold.spark.ids import IdColumns, IdsEngine
from onefold.spark.ingest import SourceSpec
from onefold.spark.session import session
from onefold.spark.sinks import delta, iceberg

PLACES = {"delta": "out", "iceberg": "lake/catalog.db#db.out"}
NUMBER = ("stream", "partition", "publisher", "chain", "timestamp", "sequence")


def stream(spark, folder, way):
    """Judge what is in the folder, a file a batch, and go on where the last driver ended."""
    ordered = way == "ordered"
    columns = IdColumns(id=NUMBER, time="timestamp", order="offset")
    ids = IdsEngine(partitions=2, columns=columns, window_ms=86_400_000)
    streams.run_stream(
        spark,
        SourceSpec(path=f"{folder}/in/messages", options={"maxFilesPerTrigger": "1"}),
        ids if way == "ids" else ChainsEngine(partitions=2, floor="first" if ordered else "open"),
        streams.Streaming(
            checkpoint=f"{folder}/{way}.checkpoint", buckets=2, ordered_wait_ms=3_600_000 if ordered else None
        ),
        f"{folder}/{PLACES.get(way, 'out')}",
        format=way if way in PLACES else "parquet",
    )


def main(folder, way, moment, at):
    publish, write_json = sinks.publish, Place.write_json

    def naive(sink, stream, batch, rows, gaps):
        rows.write.mode("append").parquet(f"{folder}/naive")

    def deadly(sink, stream, batch, rows, gaps):
        if moment == "before" and batch == at:
            os.kill(os.getpid(), signal.SIGKILL)
        tally = (naive if way == "naive" else publish)(sink, stream, batch, rows, gaps)
        if moment == "after" and batch == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return tally

    def unfinished(place, document):
        if moment == "held" and str(place).endswith(f"_held/{at:012}.json"):
            os.kill(os.getpid(), signal.SIGKILL)
        write_json(place, document)

    def uncommitted(table, stream, batch, *more):
        if moment == "between" and batch == at:
            os.kill(os.getpid(), signal.SIGKILL)
        commit(table, stream, batch, *more)

    table: Any = {"delta": delta._Table, "iceberg": iceberg._Table}.get(way, delta._Table)
    commit, patched = table.commit, mock.patch.object
    with patched(streams, "publish", deadly), patched(Place, "write_json", unfinished), patched(
        table, "commit", uncommitted
    ):  # fmt: skip
        stream(session("local[2]", memory="1g", config={"spark.sql.shuffle.partitions": "2"}), folder, way)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
