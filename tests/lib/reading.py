"""Sources that are hard to read: lines that are no message, files that are torn; and the ways to read them."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.columns import ChainColumns
from onefold.spark.files import Manifest
from onefold.spark.ingest import SourceSpec, open_source
from onefold.spark.stream import Streaming, run_stream

DEVICES = ChainsEngine(
    columns=ChainColumns(
        key=("device",), timestamp="ts", sequence=None, previous_timestamp=None, previous_sequence=None, arrival=None
    ),
    floor="open",
    partitions=1,
)


def run(spark, folder, out, format="jsonl", judging=DEVICES, **source):
    where = SourceSpec(path=str(folder), format=format, **source)
    return jobs.run(spark, where, judging, str(out), strategy="mark", say=lambda step: None)


def read(spark, path, format="jsonl", judging=DEVICES, **source) -> tuple[list[dict[str, Any]], Manifest]:
    """Each row with its verdict, and the manifest: the part of a run that depends on how a source is read."""
    opened = open_source(spark, SourceSpec(path=str(path), format=format, **source), judging.reads)
    rows = opened.rows.transform(judging.fitted(opened.rows).step()).collect()
    return [row.asDict(recursive=True) for row in rows], opened.manifest


def published(out):
    return pq.read_table(out / "messages").to_pylist()


GOOD = ['{"device": "a", "ts": 1}', '{"device": "b", "ts": 1, "only": {"deep": [1, 2]}}', '{"device": "a", "ts": 2}']
ODD = {
    "two objects": '{"device": "c", "ts": 1}{"device": "d", "ts": 1}',
    "two objects with a comma": '{"device": "c", "ts": 1}, {"device": "d", "ts": 1}',
    "garbage after the object": '{"device": "c", "ts": 1} ?',
    "a bracket after the object": '{"device": "c", "ts": 1}], "x": [{}',
    "a brace after the object": '{"device": "c", "ts": 1}, "x": {"y": 1}}',
    "a key twice": '{"device": "c", "ts": 1, "ts": 2}',
    "a key twice, deep": '{"device": "c", "ts": 1, "only": {"deep": 1, "deep": 2}}',
    "a key in two spellings": '{"device": "c", "ts": 1, "note": "x", "Note": "y"}',
    "a spelling behind an escape": '{"device": "c", "ts": 1, "note": "x", "\\u004eote": "y"}',
    "not a number": '{"device": "c", "ts": NaN}',
    "infinity": '{"device": "c", "ts": 1, "value": -Infinity}',
    "a list": '[{"device": "c", "ts": 1}]',
    "an empty list": "[]",
    "a number": "7",
    "null": "null",
    "half a line": '{"device": "c", "t',
    "half a character": '{"device": "c\\ud800", "ts": 1}',
}


def torn(data):
    return data[: len(data) // 2]


GOOD_LINES = ("\n".join(GOOD) + "\n").encode()
BAD_FILES = {
    "an empty Parquet file": ("parquet", "bad.parquet", b"", r"it is empty \(0 bytes\)"),
    "a Parquet file without its end": ("parquet", "bad.parquet", b"PAR1half", "Parquet"),
    "empty JSON": ("jsonl", "bad.jsonl", b"", r"it is empty \(0 bytes\)"),
    "half of packed JSON": ("jsonl", "bad.jsonl.gz", torn(gzip.compress(GOOD_LINES * 50)), "end-of-stream"),
    "JSON that is not packed": ("jsonl", "bad.jsonl.gz", GOOD_LINES, "Not a gzipped file"),
    "packed JSON by another name": ("jsonl", "bad.jsonl", gzip.compress(GOOD_LINES), "it is gzip, not text"),
    "JSON in UTF-16": ("jsonl", "bad.jsonl", GOOD_LINES.decode().encode("utf-16"), "it is UTF-16, not text in UTF-8"),
    "half of packed CSV": ("csv", "bad.csv.gz", torn(gzip.compress(b"device,ts\n" + b"a,1\n" * 99)), "end-of-stream"),
}


def put_good(folder: Path, format: str) -> None:
    """Two messages."""
    folder.mkdir()
    if format == "parquet":
        pq.write_table(pa.table({"device": ["a", "b"], "ts": [1, 1]}), folder / "good.parquet")
    elif format == "csv":
        (folder / "good.csv").write_text("device,ts\na,1\nb,1\n")
    else:
        (folder / "good.jsonl").write_text("\n".join(GOOD[:2]) + "\n")


def stream(spark, folder, format, **source):
    streaming = Streaming(checkpoint=str(folder / "checkpoint"), buckets=2)
    where = SourceSpec(path=str(folder / "in"), format=format, **source)
    return run_stream(spark, where, DEVICES, streaming, str(folder / "streamed"), strategy="mark")


def streamed(folder):
    files = sorted((folder / "streamed").rglob("messages/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
