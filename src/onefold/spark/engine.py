"""What Spark's jobs ask of an engine: how rows are read, judged, remembered and shown. One `Engine` value says it all.

Settings, jobs, audit, explain, figures and commands ask the value; none of them knows which engine it is. A new engine
is a class in a file of its own and a line in `ENGINES`; its words for people are a value in `onefold.wording`.

The value also travels: a task that judges a part of a table (`judge_partition`) or a bucket of a memory
(`judge_bucket`) gets it pickled. So the file of an engine imports nothing that executors need not have: numpy,
pyarrow and pyspark, no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.errors import Misuse
from onefold.spark import host
from onefold.spark.columns import RANGE_ENDS, Columns, moment, quoted
from onefold.spark.host import Codes, Integers, KeyColumns, MemoryOptions, Transform
from onefold.spark.meaning import Meaning
from onefold.spark.memory import Bucket, KeyRecords
from onefold.spark.notes import NoteRules
from onefold.tally import Tally
from onefold.verdict import Answer

if TYPE_CHECKING:
    from onefold.settings import Judge
    from onefold.spark.in_order import OrderedStep


class Named(Protocol):
    """The columns of a table, by what they are for."""

    @property
    def named(self) -> list[tuple[str, str]]:
        """(role, column) of every column that is there."""

    def of(self, df: Columns) -> Self:
        """The same, in the spelling of this table."""

    def added_to(self, df: DataFrame) -> DataFrame:
        """The table with what is named in it and is no column yet: fields of structs, expressions."""

    def check(self, df: Columns) -> None:
        """Raise `Misuse` that names the column if one is missing or of a wrong type."""


class AnyShape:
    """No columns in particular: each row says by itself what it is."""

    named: Final[list[tuple[str, str]]] = []

    def of(self, df: Columns) -> Self:
        return self

    def added_to(self, df: DataFrame) -> DataFrame:
        return df

    def check(self, df: Columns) -> None:
        """Any table will do."""


SOURCES: Final = ("source", "station", "gateway", "receiver", "relay", "node", "kafka_partition")
"""Columns of these names say through whom a copy came, where the engine knows of no such column."""
FILE: Final = "_of_onefold_file"
"""The column with the file, or the source, through which a row of a check came."""


class Untold(NamedTuple):
    """Something that an engine cannot tell with these settings, and the setting that would tell it."""

    about: Literal["lost", "copies", "restarts"]
    what: str
    option: str = ""  # the setting's name; empty: nothing would tell it
    value: str = ""  # what it must be; COLUMN stands for the name of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """By what two rows are the same message."""

    names: tuple[str, ...]  # columns that are compared as they are: the chain, the producer, the frame
    numbers: tuple[str, ...] = ()  # columns that are compared as whole numbers or times, whatever their type
    time: str | None = None
    expiry_ms: int = 0  # with a time: an id is new again after so long

    @property
    def columns(self) -> list[str]:
        return [*self.names, *self.numbers]

    def number(self, df: DataFrame) -> list[Column]:
        """The number of each row in longs, equal where the judge takes it for the same."""
        times = [moment(df, name) for name in self.numbers]
        return [part for time in times for part in time if part is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the columns of judged rows are for, as audit, explain and figures ask."""

    key: tuple[str, ...] = ()  # who: a chain, a producer, a device
    identity: Identity | None = None
    message: tuple[str, ...] = ()  # which of theirs, as people name it: its number, its frame
    number: str | None = None
    """The column whose values the missing ranges are of; of two, the first. None: nothing is known to be missing."""
    number_is_time: bool = False
    least: int | None = None  # the number that every key begins at; None: nobody knows
    order: str | None = None  # the order of judgement
    axis: str | None = None  # by which the rows are put on the timeline
    axis_is_time: bool = True
    arrival: str | None = None  # the clock by which copies are late
    arrival_least: int | None = None  # the least number that is a time; what is below it only orders rows
    no_arrival: str = "this engine knows of no time of arrival"  # why there is no such clock
    window_ms: int | None = None  # after how long a copy is no longer known as one; None: it always is
    source: str | None = None  # through whom a copy came

    @property
    def lower(self) -> str:
        """The column with the lower end of a missing range, which was seen."""
        return RANGE_ENDS[0 if self.number_is_time else 1]

    @property
    def upper(self) -> str:
        """The column with the upper end of a missing range."""
        return RANGE_ENDS[2 if self.number_is_time else 3]

    @property
    def columns(self) -> list[str]:
        ids = [] if self.identity is None else self.identity.columns
        singles = [name for name in (self.number, self.axis, self.arrival) if name is not None]
        return list(dict.fromkeys([*self.key, *ids, *singles]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(ABC):
    """How messages are judged. The settings of an engine are its fields, under the names of the [judge] table."""

    name: ClassVar[str]
    answers: ClassVar[Sequence[Answer]]  # what the codes mean
    timed: ClassVar[bool] = False  # whether a batch is judged by when it began
    knows_gaps: ClassVar[bool] = True  # whether it can know that something is missing
    tells_copies: ClassVar[bool] = False  # whether a check asks it for more than the books
    ordered_rows: ClassVar[bool] = True  # whether the rows of a bucket must come in the order of judgement

    columns: Named  # where it looks in a message
    partitions: int | None = None  # how many tasks judge; None: by the size of the input
    rows_in_memory_max: int = host.ROWS_IN_MEMORY_MAX
    """How many rows a task sorts in memory; beyond it, on disk."""

    def __post_init__(self) -> None:
        for name in ("rows_in_memory_max", "partitions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Misuse(f"{name} is {value}, must be at least 1", **{name: value})

    @classmethod
    @abstractmethod
    def configured(cls, judge: Judge, *, strategy: str, partitions: int | None) -> Self:
        """The engine of these settings."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns that name a chain, a producer, a device."""

    @property
    def reads(self) -> Named:
        """What the source must have, before it is shaped."""
        return self.columns

    @property
    def reads_lines(self) -> bool:
        """Whether JSON is read as lines of text, each of which says by itself what it is."""
        return False

    def fitted(self, source: DataFrame) -> Self:
        """The same, looking only where this source has columns, which may be spelled in another case."""
        return replace(self, columns=self.columns.of(source))

    def shaped(self, source: DataFrame) -> DataFrame:
        """The messages of the source, one a row, with the columns that are looked at."""
        return source

    def others(self, source: DataFrame) -> int:
        """How many rows of the source are no messages, and are not among the shaped ones."""
        return 0

    @abstractmethod
    def integers(self, df: DataFrame) -> Integers:
        """What the judgement needs of a row."""

    @abstractmethod
    def judge_partition(self, parts: Iterator[KeyColumns]) -> Iterator[Codes]:
        """The codes of the rows of a partition of a table; runs in a task."""

    @abstractmethod
    def judge_bucket(self, rows: KeyColumns, bucket: Bucket, options: MemoryOptions, now_ms: int) -> Codes:
        """The codes of rows of a bucket, in the order of judgement if they are ``ordered_rows``; what they teach is
        kept in the bucket.

        ``now_ms``: when the batch began; 0 unless the engine is ``timed`` or ``idle_ms`` is set. Runs in a task.
        """

    def compacted(
        self, table: str, records: KeyRecords, figures: dict[str, int], options: MemoryOptions, now_ms: int
    ) -> KeyRecords:
        """KeyRecords of a bucket that are written again, as they are to be kept from now on; runs in a task."""
        return records

    @abstractmethod
    def meaning(self, df: DataFrame, options: MemoryOptions) -> Meaning:
        """What the memory of these rows means: whoever goes on with it must mean the same."""

    def source_meaning(self) -> Meaning:
        """What else a stream hangs on from its first batch to its last: how its source is shaped."""
        return {}

    def step(self, options: MemoryOptions | None = None) -> Transform:
        """The step that adds ``verdict`` and ``reason`` to a table or a stream, which remembers like this."""
        options = options or MemoryOptions()
        return lambda df: host.with_verdict(df, self, options)

    def stream(self, options: MemoryOptions) -> Transform:
        """The same, as a sink of a stream wants the rows."""
        return self.step(options)

    def ordered(self, options: MemoryOptions) -> OrderedStep:
        """The step that judges a batch of a stream and gives the messages of each key out in order."""
        raise Misuse(f"order_wait_ms is {options.ordered_wait_ms}, but only chains can be put in order")

    def note_rules(self, df: DataFrame) -> NoteRules | None:
        """How its tasks are to note what they see in passing; None: they do not."""
        return None

    @abstractmethod
    def missing(self, firsts: DataFrame) -> DataFrame:
        """The ranges that are known to be missing: the key, lower ends (seen; null: before all), upper ends."""

    def missing_messages(self, ranges: DataFrame) -> Column | None:
        """How many messages all missing ranges are; None: their numbers have holes by themselves."""
        return None

    def naming(self, rows: DataFrame) -> DataFrame:
        """Of the judged rows of a table as few as have every key among them."""
        return rows

    def named_gaps(self, rows: DataFrame, gaps: DataFrame) -> DataFrame:
        """The same, from ranges as its tasks note them or its memory knows them, beside the columns of their keys
        (`gaps`); ``rows`` has the types.
        """
        raise TypeError(f"{self.name} notes no missing ranges")

    def keys(self, rows: DataFrame, tally: Tally) -> int:
        """How many chains, producers or devices there are among judged rows: who has a message that counts."""
        firsts = rows.where(F.col(host.VERDICT) == "FIRST")
        return firsts.select(*(F.col(quoted(name)) for name in self.key)).distinct().count() if self.key else 0

    def extras(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        """What a batch run publishes besides, by the name of its folder, made from the judged rows."""
        return {}

    def copies(self, rows: DataFrame, tally: Tally) -> Mapping[str, Any]:
        """Of an engine that ``tells_copies``: what a check says of those among judged rows with a column `FILE`."""
        raise TypeError(f"{self.name} tells nothing of copies beyond the books")

    def cannot_tell(self, tally: Tally) -> Sequence[Untold]:
        """What nobody may claim of rows that were judged like this, beyond what guarantees.md says of the engine."""
        return ()

    def doubts(self, rows: DataFrame, tally: Tally) -> Sequence[Untold]:
        """What else a check cannot tell, by a look at all columns of the rows that were judged."""
        return ()

    @abstractmethod
    def subject(self, rows: DataFrame) -> Subject:
        """What the columns of judged rows are for."""


def named_like(kind: type[Any], judge: Judge) -> dict[str, Any]:
    """The settings that have the name of a field of this dataclass: an option is declared once, and passed on."""
    return {field.name: getattr(judge, field.name) for field in fields(kind) if hasattr(judge, field.name)}


ENGINES: Final = {
    "chains": "onefold.spark.chains.ChainsEngine",
    "lorawan": "onefold.spark.receptions.judge.LorawanEngine",
    "producers": "onefold.spark.producers.ProducersEngine",
    "ids": "onefold.spark.ids.IdsEngine",
}
"""By name; loaded when it is asked for. Rows of which nobody says how they were judged are taken for the first's whose
usual columns they have."""


def engine_class(name: str) -> type[Engine]:
    module, _, kind = ENGINES[name].rpartition(".")
    return getattr(import_module(module), kind)  # type: ignore[no-any-return]


def usual_engines() -> Iterator[Engine]:
    """Each engine with its usual columns and settings."""
    for name in ENGINES:
        kind: Any = engine_class(name)
        yield kind()
