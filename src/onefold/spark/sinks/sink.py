"""The contract of sinks, and the order of batches.

Structured Streaming delivers a micro-batch at least once: after a crash it retries the last one, with the same id and
the same rows. A sink makes this exactly once by two rules.

- *Atomic.* A batch's rows, gaps and tally become visible together with the batch's id, in one atomic step: a rename
  (parquet), a commit of the log (Delta) or of the catalogue (Iceberg), a transaction (PostgreSQL). So the output itself
  knows its last batch.
- *In order.* The ids of a checkpoint are 0, 1, 2, ... without holes. The next id is written, the last one is a replay
  and is skipped unread, and every other id is refused: then checkpoint and output do not belong together, and
  continuing would count messages twice or lose them.

If the checkpoint is deleted, ids start again at 0 under a new stream id; the output still has the old stream id.

Sinks that write files have a fence (`Attempt`), because a driver that was believed dead may wake up while its successor
writes the batch again:

- each attempt has a folder of its own, ``draft``, that no task of another attempt writes to;
- it writes its token into ``attempt.json`` before it removes the drafts of earlier attempts, and checks the token again
  right before it renames its draft: another token means that its files may be gone;
- a draft is renamed before it is removed, so either its owner or its successor gets all of it;
- a rename to an existing name is refused, so a batch comes from one attempt only.

Rows are counted on their way to the files: if driver and executors have different disks under one path, files are
missing afterwards, and the books do not balance.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeAlias
from uuid import uuid4

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from onefold.errors import Misuse, StaleWrite
from onefold.spark.files import Place
from onefold.spark.meaning import Meaning
from onefold.spark.publish import Strategy
from onefold.tally import Tally

Format: TypeAlias = Literal["parquet", "delta", "iceberg", "postgres"]
FOLDERS: Final = ("parquet", "delta")
"""The formats whose path is a folder; for the others it is the address of a table."""

_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg", "postgres": "psycopg"}


class Sink(Protocol):
    """An output for batches; ``str()`` of it is its address, without any password."""

    def last(self, stream: str) -> int | None:
        """The last batch that this stream committed; None if the output is empty.

        `Misuse` if it holds the output of another stream, or with another meaning, or something that is not ours.
        """

    def write(self, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally:
        """Write a batch and make it visible atomically; remains of an earlier attempt are replaced.

        ``rows`` has the columns of the source, ``verdict`` and ``reason``, and is evaluated once; so is ``gaps``, which
        must not depend on ``rows``. With a column ``publish.ORDER``, the rows of a key, which are in one task, are
        written to one file, sorted by it (in files; a table has no order). The tally counts the written rows. An empty
        batch is committed too.
        """

    def total(self) -> Tally:
        """The books of all committed batches."""


def publish(sink: Sink, stream: str, batch: int, rows: DataFrame, gaps: DataFrame | None) -> Tally | None:
    """Write the batch if it is the next one; if it is the last one again, evaluate nothing and return None.

    The trap: Spark fails a query with state of its own if a batch is not evaluated
    (STATE_STORE_COMMIT_VALIDATION_FAILED). On None, such a caller must evaluate the rows:
    ``rows.write.format("noop").mode("overwrite").save()``.
    """
    last = sink.last(stream)
    if batch == last:
        return None
    if batch == (0 if last is None else last + 1):
        return sink.write(stream, batch, rows, gaps)
    if last is None:
        problem = (
            f"{sink} is empty, but this checkpoint goes on with batch {batch}: the output is missing its earlier"
            " batches; use the place that they were written to, or an empty checkpoint"
        )
    elif batch < last:
        problem = (
            f"batch {batch} goes backwards: {sink} already holds the batches up to {last};"
            " use the checkpoint that wrote them, or an empty place"
        )
    else:
        problem = (
            f"batch {batch} leaves a hole: {sink} ends with batch {last}, so {last + 1} must come next;"
            " use the place and the checkpoint that belong together"
        )
    raise Misuse(problem, batch=batch, last=last)


def open_sink(
    spark: SparkSession, path: str, *, format: Format, strategy: Strategy, meaning: Meaning | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Sink:  # fmt: skip
    """The sink of this format at this path; nothing is written yet.

    ``meaning``: what the rows are judged by (see `meaning`); it is kept with the first batch, and an output that was
    begun with another meaning is refused. None: not checked. ``options``: of an Iceberg table's catalogue and store.
    """
    package = _PACKAGES.get(format)
    if package is not None and find_spec(package) is None:
        raise Misuse(f"the {format} sink needs the package {package}: pip install 'onefold[{format}]'", format=format)
    # Imported here because parquet needs neither deltalake nor psycopg.
    if format == "parquet":
        from onefold.spark.sinks.parquet import ParquetSink

        return ParquetSink(spark, path, strategy, meaning)
    if format == "delta":
        from onefold.spark.sinks.delta import DeltaSink

        return DeltaSink(spark, path, strategy, meaning)
    if format == "iceberg":
        from onefold.spark.sinks.iceberg import IcebergSink

        return IcebergSink(path, strategy, meaning, options)
    if format == "postgres":
        from onefold.spark.sinks.postgres import PostgresSink

        return PostgresSink(path, strategy, meaning)
    raise Misuse(f"format is {format!r}, must be parquet, delta, iceberg or postgres", format=format)


def another(sink: object) -> Misuse:
    """The error for an output that another stream writes to."""
    return Misuse(
        f"{sink} was written by another checkpoint or memory than this one's: its versions start again at 0 and would"
        " be counted twice; use the one it was begun with, or an empty place",
        place=str(sink),
    )


def stranger(sink: object, name: str) -> Misuse:
    """The error for an output that holds something no sink of ours wrote."""
    return Misuse(f"{sink} is not a stream's output: it holds {name!r}; choose another place", place=str(sink))


def other_columns(sink: object, there: Mapping[str, str], here: Mapping[str, str]) -> Misuse:
    """The error for a batch whose columns differ from those of the batches before it."""
    wrong = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    what = "their order differs"
    if wrong:
        what = f"{wrong[0]!r} is {there.get(wrong[0], 'missing')} there, {here.get(wrong[0], 'missing')} here"
    return Misuse(f"{sink} has other columns than this batch: {what}", columns=wrong)


WORD = "attempt.json"
TOKEN: Final = re.compile("[0-9a-f]{12}")
"""The id of an attempt."""
DRAFT: Final = re.compile(rf"(\d{{12}}|trash)-{TOKEN.pattern}")
"""The names of an attempt's folders: nothing else is ever removed."""


class Attempt:
    """The newest attempt in this folder, until the next one begins."""

    def __init__(self, home: Place, batch: int) -> None:
        self.token = uuid4().hex[:12]
        self.draft = home / f"{batch:012}-{self.token}"
        self._word = home / WORD
        home.make()
        self._word.write_json({"attempt": self.token})
        for name in home.names():
            if not DRAFT.fullmatch(name):
                continue
            if not home.renames:  # until one attempt at this batch is committed, any of them may be
                if name < f"{batch:012}":
                    (home / name).remove()
            else:
                trash = home / f"trash-{uuid4().hex[:12]}"
                (home / name).move_to(trash)
                trash.remove()

    def check(self) -> None:
        """Raise `StaleWrite` if a later attempt has begun."""
        newest = self._word.read_json().get("attempt") if self._word.exists() else None
        if newest != self.token:
            raise StaleWrite(
                f"another attempt to write this batch began in between ({self._word.shown} says {newest}): is a second"
                " query running on this checkpoint?",
                attempt=self.token,
            )


def counted(rows: DataFrame) -> tuple[DataFrame, Observation]:
    """The same rows, and an observation that counts them; call `received` on it after they are written."""
    counter = Observation()
    return rows.observe(counter, F.count(F.lit(1)).alias("rows")), counter


def received(counter: Observation) -> int:
    return int(counter.get["rows"])
