"""A stream of chains in order: per chain, messages come out in order, or after the gap before them was given up.

Host and memory are those of every engine; only the rows that are held back come on top. They lie beside the records of
their chains:

    MEMORY/_held/000000000012/*.parquet    the rows that version 12 holds back, each with the code of its answer
    MEMORY/_held/000000000012.json         marks the folder as complete: its number of rows, and their columns

A batch judges the new rows together with all rows that the version before it held back, in the same tasks. A row keeps
the answer that it got when it arrived; the task returns that code, with `HELD` added if the row is to wait. So a chain
that holds rows is looked at in every batch, and a wait ends with the first batch after it. Waiting rows are written
before anything is published: once the sink has a batch, the next batch finds everything that it needs.

Every row is judged when it arrives. A FIRST comes out when its chain releases it, all other rows at once. Giving up a
gap releases everything that its chain holds, so that consecutive losses cost one wait and not one each; the ranges
given up are the blob of a bucket, and get their keys from the rows that they release.

The time is that of the micro-batch, which Spark logs before running it: a retried batch gives up the same gaps. A task
holds the integers of all its rows in memory, new and waiting.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onefold.chains.columns import (
    COUNTS,
    ChainMessages,
    GapRows,
    HeldMessages,
    OrderedBank,
    OrderedChains,
)
from onefold.chains.in_order import BUFFER_MAX, OrderSettings
from onefold.errors import BadInput, Misuse
from onefold.spark import host
from onefold.spark.columns import quoted
from onefold.spark.files import Place
from onefold.spark.gaps import CHAINS, gaps_below
from onefold.spark.host import REASON, Codes, KeyColumns, MemoryOptions
from onefold.spark.memory import Bucket, ItemLists, KeyRecords, MemoryFolder, Storage
from onefold.spark.publish import ORDER
from onefold.tally import BooksDoNotBalance

if TYPE_CHECKING:
    from onefold.spark.chains import ChainsEngine

HELD: Final = 64
"""Added to the code of a row that is to wait."""
CODE: Final = "_onefold_code"
NEW: Final = -1
"""The code of a row that is not judged yet."""
FOLDER: Final = "_held"

OrderedStep: TypeAlias = Callable[[DataFrame], AbstractContextManager[tuple[DataFrame, DataFrame]]]
"""From a batch to the messages that come out with it, and the ranges that it gave up."""

_VALUES: Final = OrderedChains._fields[2:]


def settings_of(engine: ChainsEngine, options: MemoryOptions) -> OrderSettings:
    """How chains wait. Messages below the first one of a chain are repeats (``floor="first"``)."""
    settings = OrderSettings(int(options.ordered_wait_ms or 0), 0, 0, "light", BUFFER_MAX, engine.gap_count_max)
    if engine.floor != "first":
        raise Misuse(
            'floor is "open", must be "first" where messages are held back: the first one is where order begins'
        )
    if options.idle_ms is not None:
        raise Misuse(f"idle_ms is {options.idle_ms}, must be off where messages are held back: order_wait_ms is it")
    return settings.checked()


@contextmanager
def in_order(rows: DataFrame, engine: ChainsEngine, options: MemoryOptions) -> Iterator[tuple[DataFrame, DataFrame]]:
    """The messages that come out with a batch, and the ranges that it gave up; waiting rows are written by then.

    The batch is judged once, however often the two are evaluated.
    """
    engine.columns.check(rows)
    host.prepare(rows)
    fitted = replace(engine.fitted(rows), rows_in_memory_max=sys.maxsize)  # a chain comes out as a whole
    version = int(options.version or 0)
    waiting = HeldRows(Place(rows.sparkSession, f"{options.path}/{FOLDER}"), rows.schema)
    before, count = waiting.of(rows, version - 1)
    new = rows.withColumn(CODE, F.lit(NEW).cast("byte"))
    both = new if before is None else new.unionByName(before)
    coded = host.coded(both, fitted, options, F.col(CODE).cast("long")).drop(CODE)
    coded = coded.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        written = waiting.write(coded.where(F.col(REASON) >= HELD), version, options.keep)
        newest = MemoryFolder.anywhere(str(options.path)).newest(version + 1).values()
        own = [run for run in newest if run.header["version"] == version]
        again = sum(run.header["figures"]["again"] for run in own)
        held = sum(run.header["figures"]["held"] for run in newest)
        if (again, held) != (count, written):
            raise BooksDoNotBalance(
                f"batch {version}: {count} rows were held back and {again} of them came again; of those judged {held}"
                f" are to wait, and {written} were kept"
            )
        integers = fitted.integers(rows)
        out = coded.where(F.col(REASON) < HELD).transform(integers.read)
        key, check, _, _, number, *_ = integers.columns
        order = F.struct(key.alias("key"), check.alias("check"), number.alias("number"), REASON)
        messages = out.withColumn(ORDER, order).drop(*integers.readings)
        blobs = (np.frombuffer(run.blob, np.int64).reshape(4, -1) for run in own)
        lost = np.concatenate([np.empty((4, 0), np.int64), *blobs], axis=1)
        counted = out.where(F.col(REASON).isin(np.flatnonzero(COUNTS).tolist()))
        gaps = gaps_below(counted if lost.size else counted.limit(0), fitted.columns, integers.columns, lost)
        one = gaps.repartition(1).sortWithinPartitions(*gaps.columns)
        yield host.labelled(messages, fitted, F.col(REASON)), one
    finally:
        coded.unpersist()


class HeldRows:
    """The waiting rows of each version, with these columns."""

    def __init__(self, folder: Place, schema: T.StructType) -> None:
        self._folder = folder
        self._columns = [[field.name, field.dataType.simpleString()] for field in schema]
        # By position, because Spark's column names are case-insensitive.
        fields = [T.StructField(f"c{i}", field.dataType) for i, field in enumerate(schema)]
        self._schema = T.StructType([*fields, T.StructField(CODE, T.ByteType())])

    def of(self, rows: DataFrame, version: int) -> tuple[DataFrame | None, int]:
        """The rows that a version held back (None: none), and how many there must be."""
        if version < 0:
            return None, 0
        whole = self._folder / f"{version:012}.json"
        if not whole.exists():
            raise BadInput(f"{whole.shown} is missing: what batch {version} held back is lost")
        document = whole.read_json()
        if document["columns"] != self._columns:
            raise Misuse(
                "the rows held back have other columns than those that come: use an empty checkpoint and place"
            )
        if not document["rows"]:
            return None, 0
        read = (self._folder / f"{version:012}").read(self._schema)
        return read.toDF(*rows.columns, CODE), int(document["rows"])

    def write(self, rows: DataFrame, version: int, keep: int) -> int:
        """Write the rows that a version holds back, replacing an earlier attempt; return how many."""
        folder, whole = self._folder / f"{version:012}", self._folder / f"{version:012}.json"
        whole.remove()
        counter = Observation()
        passing = rows.observe(counter, F.count(F.lit(1)).alias("rows"))
        columns = [F.col(quoted(name)).alias(f"c{i}") for i, (name, _) in enumerate(self._columns)]
        code = (F.col(REASON) - HELD).cast("byte").alias(CODE)
        folder.remove()
        folder.write(passing.select(*columns, code))
        count = int(counter.get["rows"])
        if not count:
            folder.remove()
        whole.write_json({"rows": count, "columns": self._columns})
        for name in self._folder.names():
            if int(name.partition(".")[0]) < version - keep:
                (self._folder / name).remove()
        return count


def verify_held(storage: Storage) -> tuple[int, list[str]]:
    """Read all rows that a memory holds back; return the number of files, and a line for each problem."""
    files, problems = 0, []
    for document in (name for name in storage.names(FOLDER) if name.endswith(".json")):
        version = f"{FOLDER}/{document.removesuffix('.json')}"
        expected, count = json.loads(bytes(storage.read(f"{FOLDER}/{document}")))["rows"], 0
        for name in (name for name in storage.names(version) if name.endswith(".parquet")):
            files += 1
            try:
                count += len(pq.read_table(pa.BufferReader(bytes(storage.read(f"{version}/{name}")))))
            except (OSError, pa.ArrowException) as error:
                problems.append(f"{storage.url}/{version}/{name} is damaged: {error}")
        if count != expected:
            problems.append(f"{storage.url}/{version} has {count:,} rows that can be read, not {expected:,}")
    return files, problems


def judge_bucket(
    rows: KeyColumns, bucket: Bucket, settings: OrderSettings, options: MemoryOptions, now_ms: int
) -> Codes:
    """The codes of a bucket's rows, new and waiting; runs in a task."""
    (code,) = rows.more
    again = np.flatnonzero(code >= 0)
    first = np.concatenate(([True], (rows.key[1:] != rows.key[:-1]) | (rows.key_check[1:] != rows.key_check[:-1])))
    entries = bucket.find(CHAINS, rows.key[first], rows.key_check[first])
    bank = OrderedBank(settings)
    if entries is not None:
        counts, (lower, upper) = entries.lists["gaps"]
        bank.chains = OrderedChains(entries.key, entries.check, *(entries.values[name] for name in _VALUES))
        bank.gaps = GapRows(np.repeat(np.arange(len(counts)), counts), lower, upper)
    waiting = rows.take(again)
    owner = bank.find(waiting.key, waiting.key_check)
    turn = np.lexsort((waiting.number, owner))
    bank.held = HeldMessages(owner[turn], waiting.previous[turn], waiting.number[turn])
    if options.state_rows_max is not None:
        bank.chains_max = max(0, options.state_rows_max - bucket.figures["keys"] + len(bank))
    before = len(bank)
    codes = code.astype(np.int8)
    new = rows.take(np.flatnonzero(code < 0))
    codes[code < 0] = bank.judge(ChainMessages(new.key, new.key_check, new.previous, new.number), now_ms)
    bucket.blob = bank.tick(now_ms).tobytes()
    chains, gaps = bank.chains, bank.gaps
    row = bank.find(rows.key, rows.key_check)
    waits = COUNTS[codes] & (row >= 0)
    waits[waits] = rows.number[waits] > chains.last[row[waits]]
    codes[waits] += HELD
    due_ms = chains.due_ms[chains.due_ms >= 0]
    bucket.figures |= {
        "keys": bucket.figures["keys"] + len(bank) - before,
        "gaps": int(np.count_nonzero(bank.open)),
        "held": int(np.count_nonzero(waits)),
        "again": len(again),
        "due": int(due_ms.min(initial=np.iinfo(np.int64).max)),
        "latest": int(due_ms.max(initial=0)),
    }
    missing = ItemLists(np.bincount(gaps.owner, minlength=len(bank)).astype(np.int64), (gaps.lower, gaps.upper))
    values = dict(zip(_VALUES, chains[2:], strict=True))
    bucket.keep(CHAINS, KeyRecords(chains.key, chains.key_check, values, {"gaps": missing}))
    return codes
