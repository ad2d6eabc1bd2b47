"""A job that is run hour by hour, beside one run over all of it."""

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.spark import run as jobs
from onefold.spark.chains import ChainsEngine
from onefold.spark.host import MemoryOptions
from onefold.spark.ingest import SourceSpec
from onefold.testing.faults import Faults
from onefold.testing.traffic import Traffic, make

FOLDERS = ("firsts", "repeats", "unsure", "rejects")


def hours(messages: pa.Table, count: int) -> list[pa.Table]:
    """The messages as they arrived, cut into so many parts."""
    size = -(-len(messages) // count)
    return [messages.slice(start, size) for start in range(0, len(messages), size)]


def answers(folders):
    """Verdict and reason of every row, by its offset."""
    found = {}
    for folder in folders:
        for name in FOLDERS:
            for row in pq.read_table(folder / name, columns=["offset", "verdict", "reason"]).to_pylist():
                assert row["offset"] not in found, "a row was published twice"
                found[row["offset"]] = row["verdict"], row["reason"]
    return found


def missing(folder):
    return sorted(map(str, pq.read_table(folder / "gaps").to_pylist()))


def same_as_one_run(spark, folder, count, rows):
    """Run hour by hour, and over all of it at once; the same answers, the same ranges missing."""
    engine = ChainsEngine(floor="open", partitions=2)
    source = folder / "in"
    source.mkdir()
    memory = MemoryOptions(path=str(folder / "memory"))
    traffic = make(Traffic(rows=rows, chains=40, faults=Faults(losses=0.02)))
    for number, part in enumerate(hours(traffic.messages, count)):
        pq.write_table(part, source / f"{number:02}.parquet")
        result = jobs.run(
            spark, SourceSpec(path=str(source)), engine, str(folder / "hourly"), memory=memory, say=lambda step: None
        )
        assert result.version == number
    jobs.run(spark, SourceSpec(path=str(source)), engine, str(folder / "once"), say=lambda step: None)
    versions = sorted((folder / "hourly" / "batches").iterdir())
    assert len(versions) == count
    one, other = answers(versions), answers([folder / "once"])
    differ = {offset: (one.get(offset), other[offset]) for offset in other if one.get(offset) != other[offset]}
    assert not differ, f"{len(differ)} of {len(other)} rows differ, such as {list(differ.items())[:3]}"
    assert missing(versions[-1]) == missing(folder / "once")
